/* SPDX-License-Identifier: MIT */
/* The sums of a tile of irregular_tile.cuh over all of K. */
#ifndef ROWFOLD_CUDA_IRREGULAR_SUMS_CUH
#define ROWFOLD_CUDA_IRREGULAR_SUMS_CUH

#include "common/irregular_pieces.cuh"

namespace irregular_tile {

/* The sums of a tile by mma.sync: a warp has 32 x 32 of them. Of the two warps that share a scheduler one multiplies a
 * stage in start, before it brings the next one, the other in finish. */
template <Pass PASS> struct ByWarps {
    static constexpr bool PLAIN = false,
                          ASYNCHRONOUS = false; /* of what is: start and finish lie around what brings the next stage */
    typedef Shape<PASS, 64, 128> Tile;
    static constexpr int ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS, WARP_ROWS = 32, WARP_COLUMNS = 32,
                         M = WARP_ROWS / 16, N = WARP_COLUMNS / 8;
    static constexpr int COUNT = M * N * 4;
    static constexpr int PAIR = 2; /* tiles of 16 rows, and of 8 columns, whose products are taken together */
    static_assert(M % PAIR == 0 && N % PAIR == 0, "whole pairs");
    static_assert(ROWS / WARP_ROWS * (COLUMNS / WARP_COLUMNS) == WARPS, "warps cover the tile");
    float total[M][N][4] = {};
    uint32_t x, w; /* where the lane's first fragments lie in a stage */
    int row, column, pairs;
    bool late;

    __device__ __forceinline__ ByWarps(int thread, int rows, bool overlaps) {
        const int warp = thread / 32, lane = thread % 32;
        row = warp / (COLUMNS / WARP_COLUMNS) * WARP_ROWS, column = warp % (COLUMNS / WARP_COLUMNS) * WARP_COLUMNS;
        x = place_of<Tile::ROW>(row + lane % 16, lane / 16);
        w = Tile::FIRST_W + place_of<Tile::ROW>(column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
        pairs = (rows - row + PAIR * 16 - 1) / (PAIR * 16);
        late = overlaps && warp >= WARPS / 2;
        row += lane / 4, column += lane % 4 * 2;
    }
    /* By each thread that has written to a stage, before the barrier behind which it is read. */
    static __device__ __forceinline__ void written() {}
    __device__ __forceinline__ void start(uint32_t stage) {
        if (!late) multiply(stage);
    }
    __device__ __forceinline__ void finish(uint32_t stage) {
        if (late) multiply(stage);
    }
    /* use(row, column, sum, its number) */
    template <class Use> __device__ __forceinline__ void each(Use use) const {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    use(row + m * 16 + i / 2 * 8, column + n * 8 + i % 2, total[m][n][i], (m * N + n) * 4 + i);
    }

  private:
    /* Fragments of 32 bytes of K of a pair: of 32 rows of one term of x, of 16 columns of one of W. */
    static __device__ __forceinline__ void load_x(uint32_t (&x)[PAIR][4], uint32_t at, int k) {
#pragma unroll
        for (int m = 0; m < PAIR; m++) rfi_load_matrices(x[m], (at ^ k << 5) + m * 16 * Tile::ROW);
    }
    static __device__ __forceinline__ void multiply_pair(
        float (&sum)[PAIR][PAIR][4], const uint32_t (&x)[PAIR][4], const uint32_t (&w)[4]) {
#pragma unroll
        for (int m = 0; m < PAIR; m++)
#pragma unroll
            for (int n = 0; n < PAIR; n++) {
                if (Tile::TF32) rfi_mma_tf32(sum[m][n], x[m], w[2 * n], w[2 * n + 1]);
                else rfi_mma<__nv_bfloat16>(sum[m][n], x[m], w[2 * n], w[2 * n + 1]);
            }
    }
    /* total += a stage; `pairs` of the warp's rows are there. Three products are summed up by themselves, the small
     * ones first, see rfi_unbiased; of signs any sum is exact. */
    __device__ __forceinline__ void multiply(uint32_t stage) {
        constexpr int STEPS = Tile::ROW / 32, BIG = Tile::TERMS;
#pragma unroll
        for (int m = 0; m < M / PAIR; m++) {
            if (m >= pairs) break;
            const uint32_t x_pair = stage + x + m * PAIR * 16 * Tile::ROW;
#pragma unroll
            for (int n = 0; n < N / PAIR; n++) {
                const uint32_t w_pair = stage + w + n * PAIR * 8 * Tile::ROW;
                float part[PAIR][PAIR][4] = {};
                uint32_t a[BIG][PAIR][4], b[BIG][4];
                if (PASS == VALUES)
#pragma unroll
                    for (int k = 0; k < STEPS; k++) {
#pragma unroll
                        for (int t = 0; t < BIG; t++) {
                            load_x(a[t], x_pair + t * Tile::X_TERM, k);
                            rfi_load_matrices(b[t], (w_pair ^ k << 5) + t * Tile::W_TERM);
                        }
#pragma unroll
                        for (int sum = BIG - 1; sum > 0; sum--)
#pragma unroll
                            for (int i = sum; i >= 0; i--) multiply_pair(part, a[i], b[sum - i]);
                    }
#pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    load_x(a[0], x_pair, k);
                    rfi_load_matrices(b[0], w_pair ^ k << 5);
                    multiply_pair(part, a[0], b[0]);
                }
#pragma unroll
                for (int i = 0; i < PAIR; i++)
#pragma unroll
                    for (int j = 0; j < PAIR; j++)
#pragma unroll
                        for (int c = 0; c < 4; c++) total[m * PAIR + i][n * PAIR + j][c] += part[i][j][c];
            }
        }
    }
};

/* The sums of a tile of `rows` rows, those of `list`, over all of K, from stages in `shared`, which has `bytes`. By
 * THREADS threads; sync() is a barrier of them. Of signs, notes.infinities has the numbers then. Nobody reads `shared`
 * any more. */
template <class Sums, class Sync> __device__ __forceinline__ void multiply(Sums &sums, const rfi_cuda_fold &p,
    unsigned char *shared, int bytes, Notes &notes, const int *list, int rows, int64_t column0, int thread, Sync sync) {
    typedef typename Sums::Tile S;
    constexpr Pass PASS = S::PASS;
    XPieces<S> x(p, list, rows, thread);
    WPieces<S> w(p, column0, thread);
    const Room room = room_of<Sums>(bytes, w.terms);
    const uint32_t stages = rfi_shared_address(shared), raw = stages + room.buffers * room.buffer + thread * 16;
    int64_t asked = 0; /* columns of which raw stages are asked for */
    int slot = 0;      /* of the raw stage to be put */
    const auto load = [&](int to) {
        if (asked < p.product.in_features) {
            x.load(raw + to * room.raw, asked + thread % PIECES * 8, p.product.in_features);
            w.load(p.product, raw + to * room.raw, asked + thread % PIECES * 8);
        }
        rfi_copy_commit();
        asked += DEPTH;
    };
    /* The next stage to a buffer; a thread reads what it has asked for itself: no barrier. */
    const auto put = [&](int buffer) {
        wait_for_oldest(room.stages);
        typename XPieces<S>::Fetched xs;
        typename WPieces<S>::Fetched ws;
        x.fetch(xs, raw + slot * room.raw);
        w.fetch(ws, raw + slot * room.raw);
        x.put(stages + buffer, xs);
        w.put(p.product, stages + buffer, ws, thread);
        load(slot);
        if (++slot == room.stages) slot = 0;
        Sums::written();
    };
    const bool single = !Sums::ASYNCHRONOUS && room.buffers == 1;
    const int other = single ? 0 : room.buffer;
    if (PASS != VALUES && thread < (PASS == X_INFINITIES ? S::ROWS : S::COLUMNS)) notes.infinities[thread] = 0;
    sync(); /* the notes are there, and what lay in this memory is read */
    for (int i = 0; i < room.stages; i++) load(i);
    put(0);
    sync(); /* the first stage is written */
    int buffer = 0;
    for (int64_t k0 = 0; k0 < p.product.in_features; k0 += DEPTH) {
        sums.start(stages + buffer);
        if (single) {
            sums.finish(stages);
            sync(); /* the stage is read */
        }
        if (k0 + DEPTH < p.product.in_features) put(other - buffer);
        if (!single) sums.finish(stages + buffer);
        sync(); /* the next stage is written, and this one is read */
        buffer = other - buffer;
    }
    rfi_copy_wait<0>();
    if (PASS == X_INFINITIES) x.count(notes.infinities, thread);
    if (PASS == W_INFINITIES) w.count(notes.infinities, thread);
    if (PASS != VALUES) sync(); /* all infinities are counted */
}

} // namespace irregular_tile
#endif
