/* SPDX-License-Identifier: MIT */
/* The kernel that can do everything: plain multiply-adds in the compute type, any data types, any alignment, one
 * sequential sum a logit. Others are faster where they apply; this one also computes the rows that they cannot
 * represent. */
#include "fma_tile.cuh"
#include "launch.cuh"

using namespace fma_tile;

namespace {

template <class T> __global__ void __launch_bounds__(THREADS) fold_fma(const __grid_constant__ rfi_cuda_fold p) {
    extern __shared__ __align__(16) unsigned char shared[];
    const auto sync = [] { __syncthreads(); };
    const int64_t row0 = (int64_t)blockIdx.x * ROWS, column0 = (int64_t)blockIdx.y * COLUMNS;
    const int rows = (int)min((int64_t)ROWS, p.batch - row0);
    multiply<T>(p, p.x, shared, row0, rows, column0, nullptr, threadIdx.x, sync);
    rfi_fold_tile(p, (const T *)shared, TILE_LD, row0, rows, column0, COLUMNS);
    if (p.tickets) rfi_finish_rows<T>(p, &p.tickets[blockIdx.x], gridDim.y, row0, rows);
}

/* How many rows are flagged is known to the device alone: a block for each tile of columns looks for them. Mostly there
 * are none. */
__global__ void __launch_bounds__(THREADS) fold_irregular(const __grid_constant__ rfi_cuda_fold p) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ int list[WINDOW], counts[WARPS];
    const int64_t column0 = (int64_t)blockIdx.x * COLUMNS;
    const auto sync = [] { __syncthreads(); };
    rfi_release_next();
    rfi_wait_for_previous();
    for (int64_t window = 0; window < p.batch; window += WINDOW) {
        bool flagged = false;
        for (int64_t row = window + threadIdx.x; row < min(window + WINDOW, p.batch); row += THREADS)
            flagged |= p.irregular[row];
        if (!__syncthreads_or(flagged)) continue;
        const int count = list_irregular(p, window, list, counts, threadIdx.x, sync);
        for (int first = 0; first < count; first += ROWS) {
            const int rows = min(ROWS, count - first);
            multiply<float>(p, p.x, shared, 0, rows, column0, list + first, threadIdx.x, sync);
            rfi_fold_tile(p, (const float *)shared, TILE_LD, 0, rows, column0, COLUMNS, list + first);
            __syncthreads(); /* the tile is read */
        }
    }
}

/* The batch varies fastest: W streams from memory once, x stays in the second-level cache. */
template <class T> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    int64_t row_blocks = rfi_tiles(fold->batch, ROWS), column_blocks = rfi_tiles(fold->out_features, COLUMNS);
    if (row_blocks > INT32_MAX || column_blocks > 65535) return cudaErrorInvalidConfiguration;
    return rfi_launch(
        fold_fma<T>, fold, dim3((unsigned)row_blocks, (unsigned)column_blocks), THREADS, shared_bytes<T>(), stream);
}

} // namespace

cudaError_t rfi_cuda_fold_fma_f32(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<float>(fold, stream);
}
cudaError_t rfi_cuda_fold_fma_f64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<double>(fold, stream);
}
cudaError_t rfi_cuda_fold_irregular(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t column_blocks = rfi_tiles(fold->out_features, COLUMNS);
    if (fold->batch > INT32_MAX || column_blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    return rfi_launch(
        fold_irregular, fold, dim3((unsigned)column_blocks), THREADS, shared_bytes<float>(), stream, fold->overlaps);
}
