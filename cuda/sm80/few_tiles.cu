/* SPDX-License-Identifier: MIT */
/* Problems of few tiles: narrow layers, short batches, a long K. Plain multiply-adds in the compute type, any data
 * types, any alignment; x is read as it is stored, so that no row is irregular and nothing is prepared.
 *
 * A block of 256 threads multiplies a tile of ROWS x COLUMNS by teams, each of which takes its own part of every stage
 * of K; the teams' sums are added in their order. Where tiles are fewer than multiprocessors, K is shared out among
 * `splits` blocks a tile, too: each writes its sums, and the last of them, known by a ticket, adds all in the order of
 * K and goes on with the fold. So the bits depend on the number of parts, not on which block comes last.
 *
 *   K       0      64     128    192    256    320 ...
 *           |stage |stage |stage |stage |stage |
 *   splits  |---- block z = 0 ---|---- block z = 1 ---| ...
 *   teams   |0 |1  |0 |1  | ...                            (of a stage: its first half, its second)
 */
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "common/pieces.cuh"
#include "sm80/splits.cuh"

using namespace pieces;

namespace {

static_assert(RFI_SPLIT_DEPTH % DEPTH<float> == 0 && RFI_SPLIT_DEPTH % DEPTH<double> == 0, "parts are whole stages");
constexpr int TILE_LD = RFI_FOLD_COLUMNS + 4;
constexpr int THREAD_ROWS = 4, THREAD_COLUMNS = 4; /* of a tile */

template <int ROWS_, int COLUMNS_> struct shape {
    static constexpr int rows = ROWS_, columns = COLUMNS_;
    static constexpr int team = rows / THREAD_ROWS * (columns / THREAD_COLUMNS), teams = THREADS / team;
    static constexpr int row_groups = rows / THREAD_ROWS;
    static constexpr int x_steps = (rows * PIECES + THREADS - 1) / THREADS,
                         w_steps = (columns * PIECES + THREADS - 1) / THREADS;
    static_assert(
        THREADS % team == 0 && DEPTH<double> % teams == 0 && columns <= RFI_FOLD_COLUMNS, "whole teams; one state");
    template <class T> static constexpr size_t stage_bytes = sizeof(T) * DEPTH<T> * (rows + columns);
    template <class T> static constexpr size_t tile_bytes = sizeof(T) * rows * TILE_LD;
    template <class T> static constexpr size_t shared_bytes =
        stage_bytes<T> > tile_bytes<T> ? stage_bytes<T> : tile_bytes<T>;
};

/* sum += a team's part of a stage. */
template <class S, class T> __device__ __forceinline__ void multiply(
    T (&sum)[THREAD_ROWS][THREAD_COLUMNS], const T *x, const T *w, int team, int row, int column) {
    constexpr int team_depth = DEPTH<T> / S::teams;
#pragma unroll
    for (int i = 0; i < team_depth; i++) {
        const int k = team * team_depth + i;
        T a[THREAD_ROWS], b[THREAD_COLUMNS];
        load_four(a, x + place<T, S::rows>(k, row));
        load_four(b, w + place<T, S::columns>(k, column));
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
            for (int c = 0; c < THREAD_COLUMNS; c++) sum[r][c] = fma(a[r], b[c], sum[r][c]);
    }
}

/* The teams' sums, added in their order, to the tile in shared memory. */
template <class S, class T> __device__ __forceinline__ void add_teams(
    T *tile, const T (&sum)[THREAD_ROWS][THREAD_COLUMNS], int team, int row, int column) {
#pragma unroll 1
    for (int turn = 0; turn < S::teams; turn++) {
        __syncthreads(); /* the stage is read, or the team before has added */
        if (team != turn) continue;
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
            for (int c = 0; c < THREAD_COLUMNS; c++) {
                T &to = tile[(row + r) * TILE_LD + column + c];
                to = turn ? to + sum[r][c] : sum[r][c];
            }
    }
    __syncthreads(); /* the tile is written */
}

/* Of many rows a thread has many loads on their way, and no second block the registers. */
template <class S, class T> __global__ void __launch_bounds__(THREADS, S::rows > 64 ? 1 : 2)
    fold_few_tiles(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    extern __shared__ __align__(16) unsigned char shared[];
    T *const x = (T *)shared, *const w = x + DEPTH<T> * S::rows;
    const int64_t row0 = (int64_t)blockIdx.x * S::rows, column0 = (int64_t)blockIdx.y * S::columns;
    const int rows = (int)min((int64_t)S::rows, p.product.batch - row0),
              columns = (int)min((int64_t)S::columns, p.product.out_features - column0);
    const int team = threadIdx.x / S::team, row = threadIdx.x % S::row_groups * THREAD_ROWS,
              column = threadIdx.x % S::team / S::row_groups * THREAD_COLUMNS;
    const auto [first, end] = rfi_part_of(p);
    const operand x_from = operand_of<T>(p.product.x), w_from = operand_of<T>(p.product.w);
    T x_scale[S::x_steps], w_scale[S::w_steps];
#pragma unroll
    for (int s = 0; s < S::x_steps; s++) x_scale[s] = 1;
    scales_of(w_scale, p.product, column0, threadIdx.x);
    const auto x_row = [=](int row) { return row0 + row; };
    const auto w_row = [=](int row) { return column0 + row; };
    share<T, S::rows, S::x_steps, 1> next_x;
    share<T, S::columns, S::w_steps, sizeof(T) == 4 ? 3 : 1> next_w;
    T sum[THREAD_ROWS][THREAD_COLUMNS] = {};
    rfi_release_next();
    rfi_wait_for_previous();
    next_x.load(x_from, rows, first, end, threadIdx.x, x_row);
    next_w.load(w_from, columns, first, end, threadIdx.x, w_row);
    for (int64_t k0 = first; k0 < end; k0 += DEPTH<T>) {
        __syncthreads(); /* the stage is read */
        next_x.put(x, x_from, x_scale, threadIdx.x);
        next_w.put(w, w_from, w_scale, threadIdx.x);
        __syncthreads(); /* the stage is written */
        if (k0 + DEPTH<T> < end) {
            next_x.load(x_from, rows, k0 + DEPTH<T>, end, threadIdx.x, x_row);
            next_w.load(w_from, columns, k0 + DEPTH<T>, end, threadIdx.x, w_row);
        }
        multiply<S>(sum, x, w, team, row, column);
    }
    T *const tile = (T *)shared;
    add_teams<S>(tile, sum, team, row, column);
    if (p.schedule.splits > 1 && !rfi_add_splits<S::rows, S::columns, THREADS>(p.schedule, tile, TILE_LD, rows)) return;
    /* A warp then takes all its rows together, of double two turns. */
    constexpr int AT_ONCE = S::rows <= 32 ? 1 : S::rows / (sizeof(T) == 4 ? 32 : 64);
    rfi_fold_tile<T, AT_ONCE>(p, (const T *)tile, TILE_LD, row0, rows, column0, RFI_FOLD_COLUMNS);
    if (p.schedule.tickets) rfi_finish_rows<T>(p, blockIdx.x, blockIdx.y, gridDim.y, row0, rows);
}

template <class S, class T> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t row_blocks = rfi_tiles(fold->product.batch, S::rows),
                  column_blocks = rfi_tiles(fold->product.out_features, S::columns);
    if (row_blocks > INT32_MAX || column_blocks > 65535 || fold->schedule.splits > 65535)
        return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_few_tiles<S, T>, fold,
        dim3((unsigned)row_blocks, (unsigned)column_blocks, (unsigned)fold->schedule.splits), THREADS,
        S::template shared_bytes<T>, stream, fold->schedule.overlaps);
}

} // namespace

cudaError_t rfi_cuda_fold_few_32x64_f32(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<32, 64>, float>(fold, stream);
}
cudaError_t rfi_cuda_fold_few_128x8_f32(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<128, 8>, float>(fold, stream);
}
cudaError_t rfi_cuda_fold_few_128x8_f64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<128, 8>, double>(fold, stream);
}
