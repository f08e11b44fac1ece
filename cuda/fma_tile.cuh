/* SPDX-License-Identifier: MIT */
/* A tile of logits by plain multiply-adds: any data types, any alignment, one sequential sum a logit. A kernel of its
 * own, and what others do with the rows that terms do not represent. */
#ifndef ROWFOLD_CUDA_FMA_TILE_CUH
#define ROWFOLD_CUDA_FMA_TILE_CUH

#include "epilogue.cuh"

namespace fma_tile {

constexpr int THREADS = 256, ROWS = 64, COLUMNS = 128,
              DEPTH = 16; /* of a tile, and what of K is in shared memory at a time */
constexpr int TILE_LD = COLUMNS + 4;
constexpr int THREAD_ROWS = 8, THREAD_COLUMNS = 4; /* of a tile: 8 x 32 threads */
constexpr int STEP = 4;                            /* values of one row that a thread loads at a time */
constexpr int WINDOW = 2048;                       /* rows among which flagged ones are looked for at a time */
constexpr int WARPS = THREADS / 32;

template <class T> struct stage {
    T x[DEPTH][ROWS + 4], w[DEPTH][COLUMNS + 4]; /* k-major, so that a thread's rows and columns are neighbours */
};

template <class T> constexpr size_t shared_bytes() {
    return sizeof(stage<T>) > sizeof(T) * ROWS * TILE_LD ? sizeof(stage<T>) : sizeof(T) * ROWS * TILE_LD;
}

/* STEP values of a row from column k on; zero where the row or the column is not there. All at once where they are
 * float32 at an aligned address, or terms in blocks. */
template <class T> __device__ __forceinline__ void load_step(
    T (&v)[STEP], const rfi_cuda_rows &rows, bool there, int64_t row, int64_t k, int64_t depth) {
    if (rows.dtype == RF_FLOAT32 && rows.ld % 4 == 0 && (uintptr_t)rows.data % 16 == 0 && there && k + STEP <= depth) {
        const float4 four = *(const float4 *)((const float *)rows.data + row * rows.ld + k);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        return;
    }
    if (rows.panel && there && k + STEP <= depth) {
        const int64_t at = rfi_place(rows.panel, rows.ld, row, k);
        const void *const terms[3] = {rows.data, rows.low, rows.least};
        const T scale = rows.scale ? (T)rows.scale[row] : (T)1;
#pragma unroll
        for (int t = 0; t < 3; t++) {
            if (!terms[t]) break;
            const uint2 four = *(const uint2 *)((const uint16_t *)terms[t] + at);
            const bool bfloat16 = rows.dtype == RF_BFLOAT16;
            const float2 a = bfloat16 ? rfi_widen<__nv_bfloat16>(four.x) : rfi_widen<__half>(four.x),
                         b = bfloat16 ? rfi_widen<__nv_bfloat16>(four.y) : rfi_widen<__half>(four.y);
            const float values[STEP] = {a.x, a.y, b.x, b.y};
#pragma unroll
            for (int i = 0; i < STEP; i++) v[i] = t ? v[i] + (T)values[i] : (T)values[i];
        }
#pragma unroll
        for (int i = 0; i < STEP; i++) v[i] *= scale;
        return;
    }
#pragma unroll
    for (int i = 0; i < STEP; i++) v[i] = there && k + i < depth ? rfi_load_rows<T>(rows, row, k + i) : (T)0;
}

template <class T> struct loads {
    T x[STEP], w[2][STEP];
};

template <class T> __device__ __forceinline__ void load(loads<T> &v, const rfi_cuda_fold &p, const rfi_cuda_rows &x,
    int64_t x_row, bool x_there, int64_t column0, int64_t k0, int thread) {
    const int64_t k = k0 + thread % 4 * STEP, column = column0 + thread / 4;
    load_step(v.x, x, x_there, x_row, k, p.in_features);
    load_step(v.w[0], p.w, column < p.out_features, column, k, p.in_features);
    load_step(v.w[1], p.w, column + 64 < p.out_features, column + 64, k, p.in_features);
}

template <class T> __device__ __forceinline__ void put(stage<T> &s, const loads<T> &v, int thread) {
    const int k = thread % 4 * STEP, row = thread / 4;
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        s.x[k + i][row] = v.x[i];
        s.w[k + i][row] = v.w[0][i];
        s.w[k + i][row + 64] = v.w[1][i];
    }
}

/* Logits without bias of a tile, to shared memory: `rows` rows of x from row0 on, or those that `list` names. By
 * THREADS threads; sync() is a barrier of them. */
template <class T, class Sync> __device__ void multiply(const rfi_cuda_fold &p, const rfi_cuda_rows &x,
    unsigned char *shared, int64_t row0, int rows, int64_t column0, const int *list, int thread, Sync sync) {
    stage<T> &s = *(stage<T> *)shared;
    const int tr = thread / 32 * THREAD_ROWS, tc = thread % 32 * THREAD_COLUMNS;
    const int index = thread / 4;
    const bool there = index < rows;
    const int64_t x_row = !there ? 0 : list ? list[index] : row0 + index;
    T sum[THREAD_ROWS][THREAD_COLUMNS] = {};
    loads<T> next;
    load(next, p, x, x_row, there, column0, 0, thread);
    for (int64_t k0 = 0; k0 < p.in_features; k0 += DEPTH) {
        sync(); /* the stage is read */
        put(s, next, thread);
        sync(); /* the stage is written */
        if (k0 + DEPTH < p.in_features) load(next, p, x, x_row, there, column0, k0 + DEPTH, thread);
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            T a[THREAD_ROWS], b[THREAD_COLUMNS];
#pragma unroll
            for (int i = 0; i < THREAD_ROWS; i++) a[i] = s.x[k][tr + i];
#pragma unroll
            for (int j = 0; j < THREAD_COLUMNS; j++) b[j] = s.w[k][tc + j];
#pragma unroll
            for (int i = 0; i < THREAD_ROWS; i++)
#pragma unroll
                for (int j = 0; j < THREAD_COLUMNS; j++) sum[i][j] = fma(a[i], b[j], sum[i][j]);
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
