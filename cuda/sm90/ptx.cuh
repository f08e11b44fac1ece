/* SPDX-License-Identifier: MIT */
/* PTX instructions of Hopper that CUDA C++ has no function for, one a function. Addresses of shared memory are 32-bit,
 * from shared_address(). */
#ifndef ROWFOLD_CUDA_SM90_PTX_CUH
#define ROWFOLD_CUDA_SM90_PTX_CUH

#include <cuda.h>
#include <stdint.h>

namespace hopper {

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* mbarriers */
__device__ __forceinline__ void mbarrier_init(uint32_t bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
/* The barrier at the same place in the shared memory of block `rank` of the cluster. */
__device__ __forceinline__ void mbarrier_arrive_remote(uint32_t bar, uint32_t rank) {
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(bar),
        "r"(rank)
        : "memory");
}
/* Eight bytes to block `rank` of the cluster, counted by the barrier `bar` there; both addresses as they are in this
 * block. */
__device__ __forceinline__ void store_remote(uint32_t to, uint64_t value, uint32_t bar, uint32_t rank) {
    asm volatile("{\n.reg .b32 there, counter;\n"
                 "mapa.shared::cluster.u32 there, %0, %3;\n"
                 "mapa.shared::cluster.u32 counter, %2, %3;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64 [there], %1, [counter];\n}" ::"r"(to),
        "l"(value), "r"(bar), "r"(rank)
        : "memory");
}
/* The same place in the shared memory of block `rank` of the cluster. */
__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
/* 16 bytes to another block, counted by a barrier there; addresses from address_in. */
__device__ __forceinline__ void send(uint32_t to, float a, float b, float c, float d, uint32_t bar) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
        "f"(a), "f"(b), "f"(c), "f"(d), "r"(bar)
        : "memory");
}
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
    return done;
}
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity) {
    while (!mbarrier_try_wait(bar, parity)) {}
}

/* named barriers: `threads` counts arriving and waiting ones */
__device__ __forceinline__ void barrier_sync(uint32_t id, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t id, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Volatile, so that what is computed from it is not kept in registers over the main loop. */
__device__ __forceinline__ int thread_in_warpgroup() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread % 128;
}

/* True for one lane of a whole warp. The compiler knows that one alone goes on, and takes operands of TMA from its
 * registers without a loop that asks who else is there: the lane that drives TMA has no time to lose. */
__device__ __forceinline__ bool elect_lane() {
    uint32_t elected;
    asm volatile("{\n.reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(elected));
    return elected;
}

/* clusters */
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* The barriers in shared memory that a thread has initialised are visible to the cluster by its mbarrier_init_fence;
 * nothing else is: a release would wait for all that is on its way to memory. */
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_meet() {
    cluster_arrive();
    cluster_wait();
}
/* With all that was written. */
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* TMA */
__device__ __forceinline__ void prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int column, int row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
            "r"(to),
        "l"(map), "r"(bar), "r"(column), "r"(row)
        : "memory");
}
/* Of what is read once: it is the first to leave the L2. */
__device__ __forceinline__ void tma_load_once(uint32_t to, const CUtensorMap *map, uint32_t bar, int column, int row) {
    asm volatile(
        "{\n.reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], policy;\n}" ::
            "r"(to),
        "l"(map), "r"(bar), "r"(column), "r"(row)
        : "memory");
}
/* For loads of what is read once, which leaves the L2 first, and of other things. */
__device__ __forceinline__ uint64_t policy_of(bool once) {
    uint64_t policy;
    if (once) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/* The same bytes, at the same address, in every block of the cluster that `mask` names; each block's own barrier counts
 * them. */
__device__ __forceinline__ void tma_load_multicast(
    uint32_t to, const CUtensorMap *map, uint32_t bar, int column, int row, uint16_t mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::
            "r"(to),
        "l"(map), "r"(bar), "r"(column), "r"(row), "h"(mask)
        : "memory");
}

/* By three coordinates. */
__device__ __forceinline__ void tma_load(
    uint32_t to, const CUtensorMap *map, uint32_t bar, int column, int row, int block) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
            "r"(to),
        "l"(map), "r"(bar), "r"(column), "r"(row), "r"(block)
        : "memory");
}
__device__ __forceinline__ void tma_load_multicast(
    uint32_t to, const CUtensorMap *map, uint32_t bar, int column, int row, int block, uint16_t mask) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::
            "r"(to),
        "l"(map), "r"(bar), "r"(column), "r"(row), "r"(block), "h"(mask)
        : "memory");
}
__device__ __forceinline__ void tma_load_by(
    uint32_t to, const CUtensorMap *map, uint32_t bar, int column, int row, int block, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::
            "r"(to),
        "l"(map), "r"(bar), "r"(column), "r"(row), "r"(block), "l"(policy)
        : "memory");
}

/* Without a tensor map: `bytes`, a multiple of 16, that lie one behind the other, as those of a block do. Memory serves
 * this faster. */
__device__ __forceinline__ void bulk_load_once(uint32_t to, const void *from, uint32_t bytes, uint32_t bar) {
    asm volatile(
        "{\n.reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy;\n}" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
}

__device__ __forceinline__ void bulk_load(
    uint32_t to, const void *from, uint32_t bytes, uint32_t bar, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(bar), "l"(policy)
        : "memory");
}

/* To the L2. */
__device__ __forceinline__ void bulk_prefetch(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* The line of an address in global memory, to the first-level cache. */
__device__ __forceinline__ void prefetch_l1(const void *p) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(p)) : "memory");
}

/* registers */
template <int N> __device__ __forceinline__ void registers_raise() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_lower() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* wgmma: see sm90/wgmma.cuh for the products themselves */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Descriptor of a K-major tile in rows of ROW bytes, 128, 64 or 32, with the swizzle of that width; the tile begins at
 * a multiple of 8 rows. Steps along a row, and whole multiples of 8 rows, are added to it in units of 16 bytes. */
template <int ROW> __device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address) {
    const uint64_t rows8 = 8 * ROW >> 4, swizzle = ROW == 128 ? 1 : ROW == 64 ? 2 : 3;
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | rows8 << 32 | swizzle << 62;
}

} // namespace hopper
#endif
