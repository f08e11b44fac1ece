/* SPDX-License-Identifier: MIT */
/* A tile of logits by plain multiply-adds: any data types, any alignment, one sequential sum a logit. A kernel of its
 * own, and what others do with the rows that terms do not represent. */
#ifndef ROWFOLD_CUDA_FMA_TILE_CUH
#define ROWFOLD_CUDA_FMA_TILE_CUH

#include "common/pieces.cuh"

namespace fma_tile {

using namespace pieces;

constexpr int ROWS = 64, COLUMNS = 128; /* of a tile */
constexpr int TILE_LD = COLUMNS + 4;
constexpr int THREAD_ROWS = 8, THREAD_COLUMNS = 4; /* of a tile: 8 x 32 threads */
constexpr int WINDOW = 2048;                       /* rows among which flagged ones are looked for at a time */
constexpr int WARPS = THREADS / 32;
constexpr int X_STEPS = ROWS * PIECES / THREADS, W_STEPS = COLUMNS * PIECES / THREADS;

template <class T> constexpr size_t shared_bytes() {
    constexpr size_t stage = sizeof(T) * DEPTH<T> * (ROWS + COLUMNS), tile = sizeof(T) * ROWS * TILE_LD;
    return stage > tile ? stage : tile;
}

/* Logits without bias of a tile, to shared memory: `rows` rows of x, as it is stored, from row0 on, or those that
 * `list` names. By THREADS threads; sync() is a barrier of them. */
template <class T, class Sync> __device__ void multiply(const rfi_cuda_fold &p, const rfi_cuda_rows &x,
    unsigned char *shared, int64_t row0, int rows, int64_t column0, const int *list, int thread, Sync sync) {
    T *const x_stage = (T *)shared, *const w_stage = x_stage + DEPTH<T> * ROWS;
    const int tr = thread / 32 * THREAD_ROWS, tc = thread % 32 * THREAD_COLUMNS;
    const int columns = (int)min(p.out_features - column0, (int64_t)COLUMNS);
    const auto x_row = [=](int row) { return list ? (int64_t)list[row] : row0 + row; };
    const auto w_row = [=](int row) { return column0 + row; };
    const operand x_from = operand_of<T>(x), w_from = operand_of<T>(p.w);
    T x_scale[X_STEPS], w_scale[W_STEPS];
#pragma unroll
    for (int s = 0; s < X_STEPS; s++) x_scale[s] = 1;
    scales_of(w_scale, p, column0, thread);
    share<T, ROWS, X_STEPS, 1> next_x;
    share<T, COLUMNS, W_STEPS, sizeof(T) == 4 ? 3 : 1> next_w;
    T sum[THREAD_ROWS][THREAD_COLUMNS] = {};
    next_x.load(x_from, rows, 0, p.in_features, thread, x_row);
    next_w.load(w_from, columns, 0, p.in_features, thread, w_row);
    for (int64_t k0 = 0; k0 < p.in_features; k0 += DEPTH<T>) {
        sync(); /* the stage is read */
        next_x.put(x_stage, x_from, x_scale, thread);
        next_w.put(w_stage, w_from, w_scale, thread);
        sync(); /* the stage is written */
        const int64_t left = p.in_features - k0;
        if (left > DEPTH<T>) {
            next_x.load(x_from, rows, k0 + DEPTH<T>, p.in_features, thread, x_row);
            next_w.load(w_from, columns, k0 + DEPTH<T>, p.in_features, thread, w_row);
        }
        const int depth = left < DEPTH<T> ? (int)left : DEPTH<T>;
#pragma unroll 1
        for (int piece = 0; piece < depth; piece += PIECE<T>) {
#pragma unroll
            for (int i = 0; i < PIECE<T>; i++) {
                T a[2][4], b[4];
                load_four(a[0], x_stage + place<T, ROWS>(piece + i, tr));
                load_four(a[1], x_stage + place<T, ROWS>(piece + i, tr + 4));
                load_four(b, w_stage + place<T, COLUMNS>(piece + i, tc));
#pragma unroll
                for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
                    for (int c = 0; c < THREAD_COLUMNS; c++) sum[r][c] = fma(a[r / 4][r % 4], b[c], sum[r][c]);
            }
        }
    }
    sync(); /* the last stage is read: the tile takes its place */
    T *tile = (T *)shared;
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; i++)
#pragma unroll
        for (int j = 0; j < THREAD_COLUMNS; j++) tile[(tr + i) * TILE_LD + tc + j] = sum[i][j];
    sync(); /* the tile is written */
}

/* The flagged rows among the WINDOW from row `first` on, in their order, which is the same in every block. Their
 * number; `list` and `counts` (WARPS of them) are in shared memory. */
template <class Sync>
__device__ int list_irregular(const rfi_cuda_fold &p, int64_t first, int *list, int *counts, int thread, Sync sync) {
    constexpr int EACH = WINDOW / THREADS;
    const int64_t row = first + thread * EACH;
    const int lane = thread % 32;
    unsigned flags = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (row + i < p.batch && p.irregular[row + i]) flags |= 1u << i;
    int upto = __popc(flags);
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += below;
    }
    sync(); /* what was there is read */
    if (lane == 31) counts[thread / 32] = upto;
    sync(); /* the counts are written */
    int at = upto - __popc(flags), all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w < thread / 32) at += counts[w];
        all += counts[w];
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (flags >> i & 1) list[at++] = (int)(row + i);
    sync(); /* the list is written */
    return all;
}

} // namespace fma_tile
#endif
