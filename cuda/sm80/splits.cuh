/* SPDX-License-Identifier: MIT */
/* K in parts, for tiles that are fewer than multiprocessors: a block a part, blockIdx.z. Each writes its sums; the last
 * of a tile, known by a ticket, adds all in the order of K and goes on with the fold. So the bits depend on the number
 * of parts, not on which block comes last. */
#ifndef ROWFOLD_CUDA_SPLITS_CUH
#define ROWFOLD_CUDA_SPLITS_CUH

#include "common/epilogue.cuh"

/* The columns of K that this block multiplies: from `first` on, up to `end`. */
struct rfi_part {
    int64_t first, end;
};

static __device__ __forceinline__ rfi_part rfi_part_of(const rfi_cuda_fold &p) {
    const int64_t depth = p.schedule.splits > 1 ? p.schedule.split_depth : p.product.in_features,
                  first = blockIdx.z * depth;
    return {first, min(first + depth, p.product.in_features)};
}

/* The sums of all parts to `tile` (ROWS, COLUMNS), of which the first `rows` count, `ld` apart in shared memory, where
 * this block's are, if it is the last of its tile to come here; else false. By all threads, after a barrier. */
template <int ROWS, int COLUMNS, int THREADS, class T>
static __device__ __forceinline__ bool rfi_add_splits(const rfi_cuda_schedule &p, T *tile, int ld, int rows) {
    constexpr int FOURS = ROWS * COLUMNS / 4;
    const int there = rows * (COLUMNS / 4);
    __shared__ bool last;
    const int64_t tile_index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    four<T> *sums = (four<T> *)p.split_sums + tile_index * p.splits * FOURS;
    const auto place = [=](int i) { return (four<T> *)(tile + i * 4 / COLUMNS * ld + i * 4 % COLUMNS); };
    for (int i = threadIdx.x; i < there; i += THREADS) sums[blockIdx.z * FOURS + i] = *place(i);
    __syncthreads(); /* the block has written its sums */
    if (threadIdx.x == 0) {
        __threadfence(); /* ... which all see before the ticket */
        last = atomicAdd(&p.split_tickets[tile_index], 1u) == (unsigned)p.splits - 1;
    }
    __syncthreads();
    if (!last) return false;
    __threadfence();
    for (int i = threadIdx.x; i < there; i += THREADS) {
        four<T> total = {};
#pragma unroll 8
        for (int s = 0; s < p.splits; s++) {
            uint4 raw[sizeof(T) / 4]; /* past the first-level cache: other blocks wrote them */
#pragma unroll
            for (size_t j = 0; j < sizeof(T) / 4; j++) raw[j] = __ldcg((const uint4 *)&sums[s * FOURS + i] + j);
            const four<T> part = *(const four<T> *)raw;
#pragma unroll
            for (int j = 0; j < 4; j++) total.v[j] += part.v[j];
        }
        *place(i) = total;
    }
    __syncthreads(); /* the tile is written */
    return true;
}

#endif
