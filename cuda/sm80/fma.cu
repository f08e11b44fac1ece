/* SPDX-License-Identifier: MIT */
/* The kernel that can do everything: plain multiply-adds in the compute type, any data types, any alignment, one
 * sequential sum a logit. Others are faster where they apply. */
#include "common/epilogue.cuh"
#include "common/launch.cuh"

namespace {

/* Stages of 16 columns, converted as they are loaded: a thread holds little, and two blocks share a multiprocessor. */
constexpr int THREADS = 256, ROWS = 64, COLUMNS = 128, TILE_LD = COLUMNS + 4;
constexpr int DEPTH = 16;
constexpr int THREAD_ROWS = 8, THREAD_COLUMNS = 4; /* of a tile: 8 x 32 threads */
constexpr int STEP = 4;                            /* values of one row that a thread loads at a time */

template <class T> struct stage {
    T x[DEPTH][ROWS + 4], w[DEPTH][COLUMNS + 4]; /* k-major, so that a thread's rows and columns are neighbours */
};

template <class T> constexpr size_t shared_bytes() {
    return sizeof(stage<T>) > sizeof(T) * ROWS * TILE_LD ? sizeof(stage<T>) : sizeof(T) * ROWS * TILE_LD;
}

/* STEP values of a row from column k on; zero where the row or the column is not there. All at once where they are
 * float32 at an aligned address; where they are of the compute type, each without a question, so that all are on their
 * way together. */
template <class T> __device__ __forceinline__ void load_step(
    T (&v)[STEP], const rfi_cuda_rows &rows, bool there, int64_t row, int64_t k, int64_t depth) {
    if (rows.dtype == RF_FLOAT32 && rows.ld % 4 == 0 && (uintptr_t)rows.data % 16 == 0 && there && k + STEP <= depth) {
        const float4 four = *(const float4 *)((const float *)rows.data + row * rows.ld + k);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        return;
    }
    if (rows.dtype == (sizeof(T) == 8 ? RF_FLOAT64 : RF_FLOAT32) && !rows.panel && !rows.low && !rows.scale) {
        const T *const from = (const T *)rows.data + row * rows.ld + k;
#pragma unroll
        for (int i = 0; i < STEP; i++) v[i] = there && k + i < depth ? from[i] : (T)0;
        return;
    }
#pragma unroll
    for (int i = 0; i < STEP; i++) v[i] = there && k + i < depth ? rfi_load_rows<T>(rows, row, k + i) : (T)0;
}

template <class T> struct loads {
    T x[STEP], w[2][STEP];
};

template <class T> __device__ __forceinline__ void load(
    loads<T> &v, const rfi_cuda_product &p, int64_t x_row, bool x_there, int64_t column0, int64_t k0) {
    const int64_t k = k0 + threadIdx.x % 4 * STEP, column = column0 + threadIdx.x / 4;
    load_step(v.x, p.x, x_there, x_row, k, p.in_features);
    load_step(v.w[0], p.w, column < p.out_features, column, k, p.in_features);
    load_step(v.w[1], p.w, column + 64 < p.out_features, column + 64, k, p.in_features);
}

template <class T> __device__ __forceinline__ void put(stage<T> &s, const loads<T> &v) {
    const int k = threadIdx.x % 4 * STEP, row = threadIdx.x / 4;
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        s.x[k + i][row] = v.x[i];
        s.w[k + i][row] = v.w[0][i];
        s.w[k + i][row + 64] = v.w[1][i];
    }
}

/* Logits without bias of a tile, to shared memory. */
template <class T>
__device__ void multiply(const rfi_cuda_product &p, unsigned char *shared, int64_t row0, int rows, int64_t column0) {
    stage<T> &s = *(stage<T> *)shared;
    const int tr = threadIdx.x / 32 * THREAD_ROWS, tc = threadIdx.x % 32 * THREAD_COLUMNS, index = threadIdx.x / 4;
    const bool there = index < rows;
    T sum[THREAD_ROWS][THREAD_COLUMNS] = {};
    loads<T> next;
    load(next, p, row0 + index, there, column0, 0);
    for (int64_t k0 = 0; k0 < p.in_features; k0 += DEPTH) {
        __syncthreads(); /* the stage is read */
        put(s, next);
        __syncthreads(); /* the stage is written */
        if (k0 + DEPTH < p.in_features) load(next, p, row0 + index, there, column0, k0 + DEPTH);
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
    __syncthreads(); /* the last stage is read: the tile takes its place */
    T *tile = (T *)shared;
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; i++)
#pragma unroll
        for (int j = 0; j < THREAD_COLUMNS; j++) tile[(tr + i) * TILE_LD + tc + j] = sum[i][j];
    __syncthreads(); /* the tile is written */
}

template <class T> __global__ void __launch_bounds__(THREADS) fold_fma(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    extern __shared__ __align__(16) unsigned char shared[];
    const int64_t row0 = (int64_t)blockIdx.x * ROWS, column0 = (int64_t)blockIdx.y * COLUMNS;
    const int rows = (int)min((int64_t)ROWS, p.product.batch - row0);
    rfi_release_next();
    rfi_wait_for_previous();
    multiply<T>(p.product, shared, row0, rows, column0);
    /* Twice as many rows at once take more registers than there are in double. */
    rfi_fold_tile<T, sizeof(T) == 4 ? 2 : 1>(p, (const T *)shared, TILE_LD, row0, rows, column0, COLUMNS);
    if (p.schedule.tickets) rfi_finish_rows<T>(p, blockIdx.x, blockIdx.y, gridDim.y, row0, rows);
}

/* The batch varies fastest: W streams from memory once, x stays in the second-level cache. */
template <class T> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    int64_t row_blocks = rfi_tiles(fold->product.batch, ROWS),
            column_blocks = rfi_tiles(fold->product.out_features, COLUMNS);
    if (row_blocks > INT32_MAX || column_blocks > 65535) return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_fma<T>, fold, dim3((unsigned)row_blocks, (unsigned)column_blocks), THREADS,
        shared_bytes<T>(), stream, fold->schedule.overlaps);
}

} // namespace

cudaError_t rfi_cuda_fold_fma_f32(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<float>(fold, stream);
}
cudaError_t rfi_cuda_fold_fma_f64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<double>(fold, stream);
}
