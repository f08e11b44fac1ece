/* SPDX-License-Identifier: MIT */
/* The rows that terms of 16 bits do not represent, in front of a portable kernel that reads x in terms. */
#include "common/irregular_tile.cuh"
#include "common/launch.cuh"

namespace {

namespace tile = irregular_tile;

typedef tile::ByWarps<tile::VALUES>::Tile Shape;

constexpr int LEAST_BYTES = Shape::LEAST_BYTES;

constexpr int BLOCKS = 256; /* at most: as many as most devices run at a time, and few enough to be gone at once */

constexpr int BYTES = 200 * 1024; /* of shared memory, where a device has that: two stages and three on their way */

__host__ __device__ inline int bytes_of(const rfi_cuda_schedule &p) {
    const int most = (p.shared_per_block - (int)sizeof(tile::Notes)) / 128 * 128;
    return most < LEAST_BYTES ? LEAST_BYTES : most < BYTES ? most : BYTES;
}

/* How many rows are flagged is known to the device alone: mostly there are none. */
__global__ void __launch_bounds__(tile::THREADS) fold_irregular(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    extern __shared__ __align__(128) unsigned char shared[];
    rfi_release_next();
    rfi_wait_for_previous();
    bool flagged = false;
    for (int64_t row = threadIdx.x; row < p.product.batch; row += tile::THREADS) flagged |= p.product.irregular[row];
    if (!__syncthreads_or(flagged)) return;
    const int bytes = bytes_of(p.schedule);
    tile::Notes &notes = *(tile::Notes *)(shared + bytes);
    tile::compute<tile::ByWarps>(
        p, shared, bytes, notes, threadIdx.x, blockIdx.x, gridDim.x, [] { __syncthreads(); },
        [](int64_t, int64_t, int, int, int64_t, int64_t) {}); /* the kernel behind this one joins the states */
}

} // namespace

cudaError_t rfi_cuda_fold_irregular(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t tiles =
        rfi_tiles(fold->product.out_features, Shape::COLUMNS) * rfi_tiles(fold->product.batch, Shape::ROWS);
    if (fold->product.batch > INT32_MAX) return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_irregular, fold, dim3((unsigned)(tiles < BLOCKS ? tiles : BLOCKS)), tile::THREADS,
        bytes_of(fold->schedule) + sizeof(tile::Notes), stream, fold->schedule.overlaps);
}
