/* SPDX-License-Identifier: MIT */
/* Problems of few tiles: narrow layers, short batches, a long K. Plain multiply-adds in float32, any data types, any
 * alignment; x is read as it is stored, so that no row is irregular and nothing is prepared.
 *
 * A block of 256 threads multiplies a tile of ROWS x COLUMNS by teams, each of which takes its own part of every stage
 * of K; the teams' sums are added in their order. Where tiles are fewer than multiprocessors, K is shared out among
 * `splits` blocks a tile, too: see sm80/splits.cuh.
 *
 *   K       0      64     128    192    256    320 ...
 *           |stage |stage |stage |stage |stage |
 *   splits  |---- block z = 0 ---|---- block z = 1 ---| ...
 *   teams   |0 |1  |0 |1  | ...                            (of a stage: its halves; with 8 rows its eighths)
 */
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "common/pieces.cuh"
#include "sm80/splits.cuh"

using namespace pieces;

namespace {

static_assert(RFI_SPLIT_DEPTH % DEPTH<float> == 0, "parts are whole stages");
constexpr int COLUMNS = 64;
constexpr int THREAD_ROWS = 4, THREAD_COLUMNS = 4; /* of a tile */
constexpr int W_STEPS = COLUMNS * PIECES / THREADS;
constexpr int TILE_LD = COLUMNS + 4;

template <int ROWS_, int BLOCKS_> struct shape {
    static constexpr int ROWS = ROWS_, BLOCKS = BLOCKS_; /* of a tile; of a multiprocessor */
    static constexpr int ROW_GROUPS = ROWS / THREAD_ROWS, TEAM = ROW_GROUPS * (COLUMNS / THREAD_COLUMNS),
                         TEAMS = THREADS / TEAM;
    static constexpr int X_STEPS = (ROWS * PIECES + THREADS - 1) / THREADS;
    static constexpr int STAGE = DEPTH<float> * (ROWS + COLUMNS); /* values */
    static_assert(
        THREADS % TEAM == 0 && DEPTH<float> % TEAMS == 0 && COLUMNS == RFI_FOLD_COLUMNS, "whole teams; one state");
    static_assert(STAGE >= ROWS * TILE_LD, "the tile takes the stage's place");
};

/* sum += a team's part of a stage. */
template <class S> __device__ __forceinline__ void multiply(
    float (&sum)[THREAD_ROWS][THREAD_COLUMNS], const float *x, const float *w, int team, int row, int column) {
    constexpr int team_depth = DEPTH<float> / S::TEAMS;
#pragma unroll
    for (int i = 0; i < team_depth; i++) {
        const int k = team * team_depth + i;
        float a[THREAD_ROWS], b[THREAD_COLUMNS];
        load_four(a, x + place<float, S::ROWS>(k, row));
        load_four(b, w + place<float, COLUMNS>(k, column));
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
            for (int c = 0; c < THREAD_COLUMNS; c++) sum[r][c] = fma(a[r], b[c], sum[r][c]);
    }
}

/* The teams' sums, added in their order, to the tile in shared memory. */
template <class S> __device__ __forceinline__ void add_teams(
    float *tile, const float (&sum)[THREAD_ROWS][THREAD_COLUMNS], int team, int row, int column) {
#pragma unroll 1
    for (int turn = 0; turn < S::TEAMS; turn++) {
        __syncthreads(); /* the stage is read, or the team before has added */
        if (team != turn) continue;
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
            for (int c = 0; c < THREAD_COLUMNS; c++) {
                float &to = tile[(row + r) * TILE_LD + column + c];
                to = turn ? to + sum[r][c] : sum[r][c];
            }
    }
    __syncthreads(); /* the tile is written */
}

template <class S> __global__ void __launch_bounds__(THREADS, S::BLOCKS)
    fold_few_tiles(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    constexpr int ROWS = S::ROWS, X_STEPS = S::X_STEPS;
    __shared__ __align__(16) float shared[S::STAGE];
    float *const x = shared, *const w = x + DEPTH<float> * ROWS;
    const int64_t row0 = (int64_t)blockIdx.x * ROWS, column0 = (int64_t)blockIdx.y * COLUMNS;
    const int rows = (int)min((int64_t)ROWS, p.product.batch - row0),
              columns = (int)min((int64_t)COLUMNS, p.product.out_features - column0);
    const int team = threadIdx.x / S::TEAM, row = threadIdx.x % S::ROW_GROUPS * THREAD_ROWS,
              column = threadIdx.x % S::TEAM / S::ROW_GROUPS * THREAD_COLUMNS;
    const auto [first, end] = rfi_part_of(p);
    const operand x_from = operand_of<float>(p.product.x), w_from = operand_of<float>(p.product.w);
    float x_scale[X_STEPS], w_scale[W_STEPS];
#pragma unroll
    for (int s = 0; s < X_STEPS; s++) x_scale[s] = 1;
    const auto x_row = [=](int row) { return row0 + row; };
    const auto w_row = [=](int row) { return column0 + row; };
    share<float, ROWS, X_STEPS, 1> next_x;
    share<float, COLUMNS, W_STEPS, 3> next_w;
    float sum[THREAD_ROWS][THREAD_COLUMNS] = {};
    rfi_release_next();
    rfi_wait_for_previous();
    scales_of(w_scale, p.product, column0, threadIdx.x);
    next_x.load(x_from, rows, first, end, threadIdx.x, x_row);
    next_w.load(w_from, columns, first, end, threadIdx.x, w_row);
    for (int64_t k0 = first; k0 < end; k0 += DEPTH<float>) {
        __syncthreads(); /* the stage is read */
        next_x.put(x, x_from, x_scale, threadIdx.x);
        next_w.put(w, w_from, w_scale, threadIdx.x);
        __syncthreads(); /* the stage is written */
        if (k0 + DEPTH<float> < end) {
            next_x.load(x_from, rows, k0 + DEPTH<float>, end, threadIdx.x, x_row);
            next_w.load(w_from, columns, k0 + DEPTH<float>, end, threadIdx.x, w_row);
        }
        multiply<S>(sum, x, w, team, row, column);
    }
    float *const tile = shared;
    add_teams<S>(tile, sum, team, row, column);
    if (p.schedule.splits > 1 && !rfi_add_splits<ROWS, COLUMNS, THREADS>(p.schedule, tile, TILE_LD, rows)) return;
    rfi_fold_tile<float>(p, tile, TILE_LD, row0, rows, column0, COLUMNS);
    if (p.schedule.tickets) rfi_finish_rows<float>(p, blockIdx.x, blockIdx.y, gridDim.y, row0, rows);
}

template <class S> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t row_blocks = rfi_tiles(fold->product.batch, S::ROWS),
                  column_blocks = rfi_tiles(fold->product.out_features, COLUMNS);
    if (row_blocks > INT32_MAX || column_blocks > 65535 || fold->schedule.splits > 65535)
        return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_few_tiles<S>, fold,
        dim3((unsigned)row_blocks, (unsigned)column_blocks, (unsigned)fold->schedule.splits), THREADS, 0, stream,
        fold->schedule.overlaps);
}

} // namespace

cudaError_t rfi_cuda_fold_few_8x64_f32(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<8, 2>>(fold, stream);
}
cudaError_t rfi_cuda_fold_few_32x64_f32(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<32, 2>>(fold, stream);
}
