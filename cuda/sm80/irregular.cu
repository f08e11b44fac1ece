/* SPDX-License-Identifier: MIT */
/* The rows that terms of 16 bits do not represent, in front of a portable kernel that reads x in terms. */
#include "common/irregular_tile.cuh"
#include "common/launch.cuh"

namespace {

namespace tile = irregular_tile;

constexpr int BLOCKS = 256; /* at most: as many as most devices run at a time, and few enough to be gone at once */

/* How many rows are flagged is known to the device alone: mostly there are none. */
__global__ void __launch_bounds__(tile::THREADS) fold_irregular(const __grid_constant__ rfi_cuda_fold p) {
    extern __shared__ __align__(128) unsigned char shared[];
    rfi_release_next();
    rfi_wait_for_previous();
    bool flagged = false;
    for (int64_t row = threadIdx.x; row < p.batch; row += tile::THREADS) flagged |= p.irregular[row];
    if (!__syncthreads_or(flagged)) return;
    tile::Notes &notes = *(tile::Notes *)(shared + tile::SHARED);
    tile::compute(p, shared, notes, threadIdx.x, blockIdx.x, gridDim.x, [] { __syncthreads(); });
}

} // namespace

cudaError_t rfi_cuda_fold_irregular(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t tiles = rfi_tiles(fold->out_features, tile::COLUMNS) * rfi_tiles(fold->batch, tile::ROWS);
    if (fold->batch > INT32_MAX) return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_irregular, fold, dim3((unsigned)(tiles < BLOCKS ? tiles : BLOCKS)), tile::THREADS,
        tile::SHARED + sizeof(tile::Notes), stream, fold->overlaps);
}
