/* SPDX-License-Identifier: MIT */
/* Rows that terms do not represent, from the stored values of x, in the kernel that leaves them out of its tiles: a
 * launch that mostly finds none would keep the next one waiting. */
#ifndef ROWFOLD_CUDA_SM90_IRREGULAR_CUH
#define ROWFOLD_CUDA_SM90_IRREGULAR_CUH

#include "common/irregular_plain.cuh"
#include "sm90/finish.cuh"
#include "sm90/wgmma.cuh"

namespace hopper {

/* Joins the states of `rows` rows, no more than ROWS, by a warp, and finishes them, a lane each. Several rows at a
 * time: what is read for one does not wait for another's. */
template <int TOTALS, int ROWS>
__device__ __forceinline__ void finish_irregular(const rfi_cuda_visitor &f, const int *list, int rows, int lane) {
    State<TOTALS> mine = {};
    with_reduction<TOTALS>(f.chain.reduction, [&](auto of) {
        typedef decltype(of) R;
        State<TOTALS> state[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) rfi_empty_state<R>(state[r]);
        for (int64_t i = lane; i * RFI_FOLD_COLUMNS < f.out_features; i += 32) {
            State<TOTALS> next[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                next[r] = rfi_read_state<float, TOTALS>(f.partials, list[min(r, rows - 1)] * f.num_partials + i);
#pragma unroll
            for (int r = 0; r < ROWS; r++) rfi_join_states<R>(state[r], {next[r]});
        }
        __syncwarp();
        rfi_join_lanes<R, 32>(state);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (lane == r) mine = state[r];
    });
    if (lane < rows) finish_row(f, list[lane], mine);
}

/* The sums of a tile by wgmma, from the stages, which lie as it reads them: of 128 rows a warpgroup has 64 with all
 * columns, of 64 it has all with half of the columns. A stage is multiplied while the threads bring the next one, which
 * for TF32 takes them half as many instructions as for bfloat16. */
template <irregular_tile::Pass PASS, int ROWS_, int COLUMNS_> struct ByWarpgroups {
    static constexpr bool PLAIN = false, ASYNCHRONOUS = true;
    typedef irregular_tile::Shape<PASS, ROWS_, COLUMNS_> Tile;
    static constexpr bool VALUES = PASS == irregular_tile::VALUES;
    static constexpr int COLUMNS = ROWS_ == 128 ? COLUMNS_ : COLUMNS_ / 2, COUNT = COLUMNS / 2; /* of a warpgroup */
    static constexpr int STEPS = Tile::ROW / 32, ORDER = Tile::TERMS;
    static_assert(ROWS_ == 64 || ROWS_ == 128, "two warpgroups");
    float total[COUNT] = {}, part[VALUES ? COUNT : 1];
    int row, column;
    uint32_t x, w; /* of this warpgroup, in a stage */

    __device__ __forceinline__ ByWarpgroups(int thread, int, bool) {
        const int warpgroup = __shfl_sync(~0u, thread / 128, 0), lane = thread % 32,
                  row0 = ROWS_ == 128 ? warpgroup * 64 : 0, column0 = ROWS_ == 128 ? 0 : warpgroup * COLUMNS;
        x = row0 * Tile::ROW;
        w = Tile::FIRST_W + column0 * Tile::ROW;
        row = row0 + thread % 128 / 32 * 16 + lane / 4, column = column0 + lane % 4 * 2;
    }
    static __device__ __forceinline__ void written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
    __device__ __forceinline__ void start(uint32_t stage) {
        const uint64_t x0 = wgmma_descriptor<Tile::ROW>(stage + x), w0 = wgmma_descriptor<Tile::ROW>(stage + w);
        wgmma_fence();
#pragma unroll
        for (int sum = ORDER - 1; sum >= 0; sum--)
#pragma unroll
            for (int i = sum; i >= 0; i--)
#pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    const uint64_t a = x0 + (i * Tile::X_TERM >> 4) + k * (32 >> 4),
                                   b = w0 + ((sum - i) * Tile::W_TERM >> 4) + k * (32 >> 4);
                    if constexpr (VALUES) wgmma_tf32(part, a, b, sum < ORDER - 1 || i < sum || k > 0);
                    else wgmma_bf16(total, a, b, true); /* exact: whole numbers */
                }
        wgmma_commit();
    }
    __device__ __forceinline__ void finish(uint32_t) {
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            /* The compiler does not know that the sums were being written. */
            float &sum = VALUES ? part[VALUES ? i : 0] : total[i];
            asm volatile("" : "+f"(sum)::"memory");
            if (VALUES) total[i] += sum;
        }
    }
    template <class Use> __device__ __forceinline__ void each(Use use) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) use(row + i / 2 % 2 * 8, column + i / 4 * 8 + i % 2, total[i], i);
    }
};
/* For fewer rows more tiles, so that more multiprocessors have one, and for very few plain multiply-adds. */
template <class C> struct OfFewRows {
    template <irregular_tile::Pass> using Sums = irregular_tile::plain::Sums<C::BF16, C::W_TERMS, C::ROWS>;
};
template <irregular_tile::Pass PASS> using Of64Rows = ByWarpgroups<PASS, 64, 64>;
template <int ROWS> struct Of {
    template <irregular_tile::Pass PASS> using Sums = ByWarpgroups<PASS, ROWS, 128>;
};

constexpr int IRREGULAR_THREADS = irregular_tile::THREADS;
static_assert(IRREGULAR_THREADS == 128 * CONSUMERS, "the consumers of a block");

/* x of bfloat16 beside W of bfloat16 is multiplied as it lies, whatever it holds. */
template <class C> constexpr bool MAY_BE_IRREGULAR = !(C::BF16 && C::X_TERMS == 1);
template <class C> bool takes(const rfi_cuda_fold &f) { return MAY_BE_IRREGULAR<C> || !f.product.irregular; }

/* What compute_irregular takes of the ring at least. */
template <template <irregular_tile::Pass> class Sums> constexpr int IRREGULAR_BYTES =
    Sums<irregular_tile::VALUES>::Tile::TWO_STAGES_BYTES + (int)sizeof(irregular_tile::Notes);

/* By the consumers of every block, once all its tiles are done: blocks share out the tiles of such rows, the last to
 * finish one of a group of rows joins the states of these. `shared` is memory that nothing uses any more, `bytes` of
 * it, `barrier` one by name that those threads may use. */
template <int TOTALS, template <irregular_tile::Pass> class Sums> __device__ __forceinline__ void compute_irregular(
    const rfi_cuda_fold &f, uint8_t *shared, int bytes, int thread, int barrier) {
    constexpr int AT_ONCE = 4; /* rows of a warp */
    const auto sync = [=] { barrier_sync(barrier, IRREGULAR_THREADS); };
    bytes -= (int)sizeof(irregular_tile::Notes);
    irregular_tile::Notes &notes = *(irregular_tile::Notes *)(shared + bytes);
    const auto finish = [&](int64_t number, int64_t groups, int rows, int count, int64_t tiles, int64_t first) {
        if (f.visitor.chain.reduction == RF_OP_NONE) return;
        for (int g = thread; g < groups; g += IRREGULAR_THREADS) notes.last[g] = 0;
        sync();
        /* A thread a tile, for a ticket takes microseconds to draw. */
        for (int64_t i = first + (int64_t)thread * gridDim.x; i < groups * tiles;
            i += (int64_t)IRREGULAR_THREADS * gridDim.x)
            if (draw(f.schedule.irregular_tickets + number + i % groups, (int)tiles)) notes.last[i % groups] = 1;
        sync(); /* all tickets are drawn */
#pragma unroll 1
        for (int g = 0; g < groups; g++) {
            if (!notes.last[g]) continue;
            const int end = min((g + 1) * rows, count);
            for (int i = g * rows + thread / 32 * AT_ONCE; i < end; i += IRREGULAR_THREADS / 32 * AT_ONCE)
                finish_irregular<TOTALS, AT_ONCE>(f.visitor, notes.list + i, min(AT_ONCE, end - i), thread % 32);
        }
    };
    irregular_tile::compute<Sums>(f, shared, bytes, notes, thread, blockIdx.x, gridDim.x, sync, finish);
}

} // namespace hopper
#endif
