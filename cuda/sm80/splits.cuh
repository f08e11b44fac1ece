/* SPDX-License-Identifier: MIT */
/* K in parts, for tiles that are fewer than multiprocessors, or for the last of many: a block a part. Each writes its
 * sums; the last of a tile, known by a ticket, adds all in the order of K and goes on with the fold. More than
 * RFI_SPLIT_GROUP parts are added a group at a time, each by its own last block, for one block alone gets little from
 * the second-level cache:
 *
 *   parts     0  1  2  3  4  5  6  7    8  9 10 11 12 13 14 15   16 17 18
 *   groups    |------ group 0 -----|    |------ group 1 -----|   |- 2 -|     the last block of a group adds its parts
 *   tile      group 0 + group 1 + group 2                                    and the last of those the groups
 *
 * So the bits depend on the number of parts, not on which block comes last. */
#ifndef ROWFOLD_CUDA_SPLITS_CUH
#define ROWFOLD_CUDA_SPLITS_CUH

#include "common/epilogue.cuh"

/* The columns of K that a block multiplies: from `first` on, up to `end`. */
struct rfi_part {
    int64_t first, end;
};

/* Of part `part`; all columns where K is not in parts. */
static __device__ __forceinline__ rfi_part rfi_part_of(const rfi_cuda_fold &p, bool in_parts, int part) {
    const int64_t depth = in_parts ? p.schedule.split_depth : p.product.depth, first = part * depth;
    return {first, min(first + depth, p.product.depth)};
}

/* Where the parts are blockIdx.z. */
static __device__ __forceinline__ rfi_part rfi_part_of(const rfi_cuda_fold &p) {
    return rfi_part_of(p, p.schedule.splits > 1, blockIdx.z);
}

/* put(i, total) gets the sums of `count` parts, RFI_SPLIT_GROUP at most, which lie `step` from one to the next, in
 * their order. */
template <class T, int THREADS, class Put> static __device__ __forceinline__ void rfi_add_parts(
    const four<T> *parts, int64_t step, int count, int there, Put put) {
    for (int i = threadIdx.x; i < there; i += THREADS) {
        uint4 raw[RFI_SPLIT_GROUP][sizeof(T) / 4]; /* all on their way at once */
#pragma unroll
        for (int s = 0; s < RFI_SPLIT_GROUP; s++)
#pragma unroll
            for (size_t j = 0; j < sizeof(T) / 4; j++) /* past the first-level cache: other blocks wrote them */
                if (s < count) raw[s][j] = __ldcg((const uint4 *)&parts[s * step + i] + j);
        four<T> total = {};
#pragma unroll
        for (int s = 0; s < RFI_SPLIT_GROUP; s++) {
            if (s >= count) continue;
            const four<T> part = *(const four<T> *)raw[s];
#pragma unroll
            for (int j = 0; j < 4; j++) total.v[j] += part.v[j];
        }
        put(i, total);
    }
}

/* The sums of all parts to `tile` (ROWS, COLUMNS), of which the first `rows` count, `ld` apart in shared memory, where
 * those of this block's part are, if it is the last of the tile, number `tile_index` of those in parts, to come here;
 * else false. By all threads, after a barrier. */
template <int ROWS, int COLUMNS, int THREADS, class T> static __device__ __forceinline__ bool rfi_add_splits(
    const rfi_cuda_schedule &p, int64_t tile_index, int part, T *tile, int ld, int rows) {
    constexpr int FOURS = ROWS * COLUMNS / 4;
    const int there = rows * (COLUMNS / 4), groups = rfi_split_groups(p.splits);
    unsigned *const tickets = p.split_tickets + tile_index * rfi_split_tickets(p.splits);
    four<T> *const sums = (four<T> *)p.split_sums + tile_index * p.splits * FOURS;
    const auto place = [=](int i) { return (four<T> *)(tile + i * 4 / COLUMNS * ld + i * 4 % COLUMNS); };
    for (int i = threadIdx.x; i < there; i += THREADS) sums[part * FOURS + i] = *place(i);
    const auto to_tile = [=](int i, const four<T> &total) { *place(i) = total; };
    const int group = part / RFI_SPLIT_GROUP, first = group * RFI_SPLIT_GROUP,
              count = min(p.splits - first, RFI_SPLIT_GROUP);
    four<T> *const mine = sums + (int64_t)first * FOURS;
    if (!rfi_is_last(tickets + group, count)) return false;
    if (groups == 1) {
        rfi_add_parts<T, THREADS>(mine, FOURS, count, there, to_tile);
    } else {
        rfi_add_parts<T, THREADS>(mine, FOURS, count, there, [=](int i, const four<T> &total) { mine[i] = total; });
        if (!rfi_is_last(tickets + groups, groups)) return false;
        rfi_add_parts<T, THREADS>(sums, (int64_t)RFI_SPLIT_GROUP * FOURS, groups, there, to_tile);
    }
    __syncthreads(); /* the tile is written */
    return true;
}

/* Where the parts are blockIdx.z, and the tiles blockIdx.x and y. */
template <int ROWS, int COLUMNS, int THREADS, class T>
static __device__ __forceinline__ bool rfi_add_splits(const rfi_cuda_schedule &p, T *tile, int ld, int rows) {
    return rfi_add_splits<ROWS, COLUMNS, THREADS>(
        p, (int64_t)blockIdx.y * gridDim.x + blockIdx.x, blockIdx.z, tile, ld, rows);
}

#endif
