/* SPDX-License-Identifier: MIT */
/* Up to 64 rows on Hopper, at the speed of reading W once.
 *
 * W is the operand that wgmma takes 64 rows of, the batch its narrow side: a block multiplies tiles of 64 features with
 * all rows of x, and shared memory gives a value of W to the tensor cores once for each of its terms. The terms of x
 * lie behind one another in a stage and are one operand as many times as wide.
 *
 * A block is two warpgroups, which take every other stage of a tile and add their sums at its end, and a warp whose
 * elected lane drives TMA round a ring of stages. It is persistent: the ring is filled for the next tile while this one
 * is folded. All that is loaded before the kernel in front has finished is W: a whole ring of it. The blocks of a
 * cluster work on tiles side by side and share x: each loads some of its boxes and multicasts them. */
#ifndef ROWFOLD_CUDA_SM90_SMALL_CUH
#define ROWFOLD_CUDA_SM90_SMALL_CUH

#include "sm90/small_ring.cuh"

namespace hopper {
namespace small {

constexpr int BLOCK_THREADS = CONSUMER_THREADS + 2 * 32; /* a warp that loads, and one that rehearses */
constexpr int COPIED_BARRIER = 2; /* by name: the consumers, whose own is 1, have copied the parameters for the other */
constexpr int MOST_STATES = RFI_SM90_BLOCKS; /* of a row that are merged at a time */
constexpr int STATES_LD = MOST_STATES + 4; /* of those of a row in shared memory: so the banks of eight rows' differ */

/* Keeps uses of the sums behind the wait for them: the compiler does not know that they are still being written before
 * it. */
template <int N> __device__ __forceinline__ void written(float (&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(v[i])::"memory");
}

/* What a stage's products come to, of W's first term and of the second of three: sum i of a thread. */
template <class C> __device__ __forceinline__ float sum_of_stage(
    const float (&part)[C::X_TERMS * C::SUMS], const float (&middle)[C::MIDDLE_SUMS], int i) {
    const float high = C::PROMOTE ? rfi_unbiased(part[i]) : part[i];
    float rest = C::X_TERMS > 1 ? part[C::SUMS * (C::X_TERMS - 1) + i] : 0;
    if constexpr (C::W_TERMS == 3) rest += middle[C::MIDDLE_SUMS / 2 + i];
    if (C::X_TERMS == 3) rest += part[C::SUMS * (C::X_TERMS / 2) + i];
    if constexpr (C::W_TERMS == 3) rest += middle[i];
    return high + rest;
}

template <class C> __device__ __forceinline__ void add_stage(float (&to)[C::SUMS],
    const float (&part)[C::X_TERMS * C::SUMS], const float (&middle)[C::MIDDLE_SUMS], const Parameters &p) {
#pragma unroll
    for (int i = 0; i < C::SUMS; i++)
        to[i] = C::PROMOTE ? to[i] + sum_of_stage<C>(part, middle, i) : fmaf(part[i], p.fold.product.regain, to[i]);
}

/* Where 16 columns of a stage lie, of the first terms, from where the stage does. */
template <class C> __device__ __forceinline__ constexpr int w_columns(int k) {
    return k / C::W_COLUMNS * C::W_TERMS * C::W_BOX + k % C::W_COLUMNS * 2 >> 4;
}
template <class C> __device__ __forceinline__ constexpr int x_columns(int k) {
    return k / BOX * C::X_TERMS * C::X_BOX + k % BOX * 2 >> 4;
}

/* Of the levels, for sum i of a thread. 0: a row of one level, whatever lies in the place of the second. */
__device__ __forceinline__ float ratio_of(const Shared &sh, int i) {
    return sh.ratio[threadIdx.x % 4 * 2 + i / 4 * 8 + i % 2];
}

/* The products of a stage of x's second level: in units of that where its sums are APART, else of the first. That level
 * is rare enough for its low products to have no sum of their own. */
template <class C> __device__ __forceinline__ void add_second(
    float (&to)[C::SUMS], uint64_t w, uint64_t x, const Parameters &p, const Shared &sh) {
    float part[C::X_TERMS * C::SUMS];
    const float none[C::MIDDLE_SUMS] = {};
    const auto add_scaled = [&](int i, float sum) {
        const float r = ratio_of(sh, i);
        if (r != 0) to[i] += sum * r;
    };
    if constexpr (C::W_TERMS == 2) {
        float low[C::SUMS];
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < C::K; k += 16)
            multiply<C>(low, w + w_columns<C>(k) + (C::W_BOX >> 4), x + x_columns<C>(k), k);
        wgmma_commit();
        wgmma_wait<0>();
        written(low);
#pragma unroll
        for (int i = 0; i < C::SUMS; i++) {
            if (C::APART) to[i] += low[i];
            else add_scaled(i, low[i]);
        }
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < C::K; k += 16) multiply<C>(part, w + w_columns<C>(k), x + x_columns<C>(k), k);
    wgmma_commit();
    wgmma_wait<0>();
    written(part);
    if constexpr (C::APART) add_stage<C>(to, part, none, p);
    else {
#pragma unroll
        for (int i = 0; i < C::SUMS; i++) add_scaled(i, sum_of_stage<C>(part, none, i));
    }
}

/* Sums of every other stage of a tile, from number `warpgroup` on; the tile's first stage is in `slot`. The tensor
 * cores add the products of one stage, plain additions the stages: those of W's last term are small enough to stay in
 * the tensor cores, which truncate when they add. Both levels of x are multiplied with a stage of W while it is there.
 */
template <class C> __device__ __forceinline__ void sum_products(
    float (&total)[C::SUMS], const Parameters &p, const Shared &sh, int warpgroup, int slot, int round, int rank) {
    const uint64_t w0 = wgmma_descriptor<C::W_ROW>(sh.ring), x0 = wgmma_descriptor<BOX_ROW>(sh.ring + C::W_BYTES);
    const bool wide = C::LEVELS && __shfl_sync(~0u, (int)*sh.wide, 0);
    float low[C::SUMS], second[C::APART ? C::SUMS : 1] = {};
#pragma unroll
    for (int i = 0; i < C::SUMS; i++) total[i] = low[i] = 0;
    for (int k = warpgroup, at = slot + warpgroup; k < p.stages; k += 2, at += 2) {
        if (at >= C::STAGES) at -= C::STAGES, round++;
        const uint64_t w = w0 + at * (C::STAGE >> 4), x = x0 + at * (C::STAGE >> 4);
        float part[C::X_TERMS * C::SUMS], middle[C::MIDDLE_SUMS] = {};
        mbarrier_wait(sh.full + 8 * at, round & 1);
        if (wide) {
            mbarrier_wait(sh.full_second + 8 * at, round & 1);
            if constexpr (C::APART) add_second<C>(second, w, x + (C::X_BYTES >> 4), p, sh);
            else add_second<C>(total, w, x + (C::X_BYTES >> 4), p, sh);
        }
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < C::K; k16 += 16) {
            multiply<C>(part, w + w_columns<C>(k16), x + x_columns<C>(k16), k16);
            if constexpr (C::W_TERMS == 3)
                multiply<C>(middle, w + w_columns<C>(k16) + (C::W_BOX >> 4), x + x_columns<C>(k16), k16);
            if constexpr (C::W_TERMS > 1)
                multiply<C>(
                    low, w + w_columns<C>(k16) + ((C::W_TERMS - 1) * C::W_BOX >> 4), x + x_columns<C>(k16), true);
        }
        wgmma_commit();
        wgmma_wait<0>();
        written(part);
        if constexpr (C::W_TERMS == 3) written(middle);
        release<C>(sh, at, rank);
        add_stage<C>(total, part, middle, p);
    }
    if (C::W_TERMS > 1) {
        written(low);
#pragma unroll
        for (int i = 0; i < C::SUMS; i++) total[i] += low[i];
    }
    if constexpr (C::LEVELS && C::APART) {
        if (!wide) return;
#pragma unroll
        for (int i = 0; i < C::SUMS; i++) {
            const float r = ratio_of(sh, i);
            if (r != 0) total[i] += second[i] * r;
        }
    }
}

/* Where sum i of a thread lies in the tile, counted from the place of its first. */
__device__ __forceinline__ constexpr int tile_offset(int i) { return (i / 4 * 8 + i % 2) * TILE_LD + i / 2 % 2 * 8; }

/* Half of a thread's sums, from number FIRST on, to the tile, for the other warpgroup. */
template <int FIRST, int SUMS> __device__ __forceinline__ void leave_half(float *to, const float (&total)[SUMS]) {
#pragma unroll
    for (int i = FIRST; i < FIRST + SUMS / 2; i++) to[tile_offset(i)] = total[i];
}

/* Half of the tile, from sum FIRST of a thread on: its own sums and what the other warpgroup left there. `x_scale`
 * begins at the thread's first row. */
template <int FIRST, int SUMS> __device__ __forceinline__ void finish_half(
    const rfi_cuda_product &f, float *to, const float (&total)[SUMS], const float (&w_scale)[2], const float *x_scale) {
#pragma unroll
    for (int i = FIRST; i < FIRST + SUMS / 2; i++) {
        float *at = to + tile_offset(i);
        const float sum = total[i] + *at;
        *at = f.w.scale || f.x.scale ? rfi_unscale(sum, w_scale[i / 2 % 2], x_scale[i / 4 * 8 + i % 2]) : sum;
    }
}

template <class C> constexpr bool MAY_BE_LONE = !C::BF16 && C::X_TERMS + C::W_TERMS > 2; /* values of x */

/* The sums of both warpgroups to the tile in shared memory: each finishes half of it. The barriers are in one place for
 * both, as synccheck wants it. */
template <int SUMS> __device__ __forceinline__ void store_tile(
    const rfi_cuda_product &f, const Shared &sh, const float (&total)[SUMS], int warpgroup, const float (&w_scale)[2]) {
    const int thread = threadIdx.x % 128, lane = thread % 32, row = lane % 4 * 2;
    float *to = sh.tile + row * TILE_LD + thread / 32 * 16 + lane / 4;
    if (warpgroup == 0) leave_half<SUMS / 2>(to, total);
    else leave_half<0>(to, total);
    barrier_sync(1, CONSUMER_THREADS);
    if (warpgroup == 0) finish_half<0>(f, to, total, w_scale, sh.x_scale + row);
    else finish_half<SUMS / 2>(f, to, total, w_scale, sh.x_scale + row);
    barrier_sync(1, CONSUMER_THREADS);
}

/* Copies of each row the states first, first + step, ..., `count` of them, to where the ring was. One after the other,
 * they may be another block's: past the first-level cache. Those further apart are this block's own. */
template <int TOTALS> __device__ __forceinline__ void fetch_states(
    const rfi_cuda_fold &f, const Shared &sh, State<TOTALS> *kept, int first, int count, int step) {
    constexpr int BYTES = sizeof(State<TOTALS>);
    const int width = TOTALS == 1 && step == 1 ? 2 : 1; /* of a copy */
    const bool irregular = *sh.irregular;
    for (int row = threadIdx.x / 32; row < (int)f.product.batch;
        row += CONSUMER_THREADS / 32) { /* a warp a row: no division, and no copy of what is not there */
        if (irregular && is_irregular(f.product, row)) continue;
        const uint32_t to = rfi_shared_address(kept + row * STATES_LD);
        const State<TOTALS> *from = (const State<TOTALS> *)f.visitor.partials + row * f.visitor.num_partials + first;
#pragma unroll 1
        for (int i = threadIdx.x % 32 * width; i < count; i += 32 * width) {
            if (width == 2) rfi_copy_async_16(to + i * BYTES, from + i, min(count - i, 2) * BYTES);
            else if (TOTALS == 1) rfi_copy_async_8(to + i * BYTES, from + (int64_t)i * step, 8);
            else rfi_copy_async_16(to + i * BYTES, from + (int64_t)i * step, 16);
        }
    }
    rfi_copy_commit();
    rfi_copy_wait<0>();
}

/* Joins to a state every LANES-th of `count`, from the thread's own on. */
template <int LANES, int TOTALS>
__device__ __forceinline__ void join_kept(int reduction, State<TOTALS> &state, const State<TOTALS> *kept, int count) {
    with_reduction<TOTALS>(
        reduction, [&](auto of) { rfi_join_kept<decltype(of), LANES>(state, kept, count, threadIdx.x % LANES); });
}

/* Merges of each row the states first, first + step, ... before `end`, in an order that depends on their number and
 * ROWS alone. put(row, state) gets them from one thread a row: all of at most ROWS rows at once. All consumers of the
 * block. */
template <class C, class Put> __device__ __forceinline__ void merge_rows(
    const rfi_cuda_fold &f, const Shared &sh, int first, int end, int step, Put put) {
    constexpr int LANES = C::ROWS > 32 ? 4 : 8;
    static_assert(C::ROWS <= CONSUMER_THREADS / LANES, "one round");
    static_assert(
        C::ROWS * STATES_LD * (int)sizeof(State<C::TOTALS>) <= C::STAGES * C::STAGE, "states fit where the ring was");
    State<C::TOTALS> *kept = (State<C::TOTALS> *)((uint8_t *)sh.tile - C::STAGES * C::STAGE);
    const int row = threadIdx.x / LANES;
    const bool there = row < f.product.batch && !(*sh.irregular && is_irregular(f.product, row));
    State<C::TOTALS> all[1] = {empty_state<C::TOTALS>(f.visitor.chain.reduction)};
#pragma unroll 1
    for (int at = first; at < end; at += MOST_STATES * step) {
        const int count = min((end - at + step - 1) / step, MOST_STATES);
        barrier_sync(1, CONSUMER_THREADS); /* what was kept before is read */
        fetch_states(f, sh, kept, at, count, step);
        barrier_sync(1, CONSUMER_THREADS);
        join_kept<LANES>(f.visitor.chain.reduction, all[0], kept + row * STATES_LD, there ? count : 0);
    }
    __syncwarp();
    join_lanes<LANES>(f.visitor.chain.reduction, all);
    if (there && threadIdx.x % LANES == 0) put(row, all[0]);
}

/* Whether each of so many blocks keeps the states of its only tile in shared memory. */
__host__ __device__ __forceinline__ bool is_single(const Parameters &p, int blocks) {
    return p.tiles <= blocks && !p.fold.visitor.keeps_states;
}

/* Where the states of clusters go: not in the place of a tile's, which its block may have to read yet. */
__host__ __device__ __forceinline__ int first_merged(const Parameters &p, bool single) {
    return single ? 0 : (p.tiles + 1) / 2 * 2;
}

/* Where the fold of a tile leaves its states: with one tile a block they stay here. */
template <int TOTALS> struct Put {
    State<TOTALS> *states;
    bool single;
    template <int N> __device__ __forceinline__ void operator()(
        const rfi_cuda_fold &f, int64_t row, int64_t index, const rfi_state_of<float, N> &s) const {
        if constexpr (N == TOTALS) {
            if (single) states[row] = s;
            else rfi_to_partials()(f, row, index, s);
        }
    }
};

/* A block merges what it has of each row, and a pair of blocks what both have; these are left to the kernel behind this
 * one (finish.cu), or, where there are tickets, the last to draw one merges them. All states of the block's tiles are
 * written, and all consumers know it. */
template <class C> __device__ __forceinline__ void finish(const Parameters &p, const Shared &sh, int rank) {
    const rfi_cuda_fold &f = p.fold;
    const bool single = is_single(p, gridDim.x);
    const int row = threadIdx.x;
    State<C::TOTALS> *const states = (State<C::TOTALS> *)sh.states;
    const int merged = first_merged(p, single);
    if (!single) {
        merge_rows<C>(f, sh, blockIdx.x, p.tiles, gridDim.x,
            [=](int row, const State<C::TOTALS> &state) { states[row] = state; });
        barrier_sync(1, CONSUMER_THREADS); /* the merged states are written, too */
    }
    if (C::CLUSTER > 1 && rank > 0) {
        if (row < f.product.batch && blockIdx.x < p.tiles) {
            const uint64_t *words = (const uint64_t *)&states[row];
            const uint32_t to = shared_address(&states[C::ROWS + row]);
#pragma unroll
            for (int i = 0; i < (int)sizeof *states / 8; i++) store_remote(to + 8 * i, words[i], sh.theirs, 0);
        }
        return;
    }
    const bool paired = C::CLUSTER > 1 && blockIdx.x + 1 < p.tiles;
    if (paired)
        mbarrier_wait(
            sh.theirs, 0); /* whatever the rows are: this block must not leave while states are on their way to it */
    if (row < f.product.batch && !(*sh.irregular && is_irregular(f.product, row))) {
        State<C::TOTALS> state = states[row];
        if (paired) join_kept<1>(f.visitor.chain.reduction, state, states + C::ROWS + row, 1);
        rfi_write_state(f.visitor.partials, row * f.visitor.num_partials + merged + blockIdx.x / C::CLUSTER, state);
    }
    if (C::TOTALS > 1 && draws_tickets(f)) {
        const int clusters = gridDim.x / C::CLUSTER;
        barrier_sync(1, CONSUMER_THREADS);
        if (threadIdx.x == 0) *sh.last = draw(f.schedule.tickets, clusters);
        barrier_sync(1, CONSUMER_THREADS);
        const int count = min((p.tiles + C::CLUSTER - 1) / C::CLUSTER, clusters);
        if (*sh.last)
            merge_rows<C>(f, sh, merged, merged + count, 1,
                [&f](int row, const State<C::TOTALS> &state) { finish_row(f.visitor, row, state); });
    }
}

template <class C, template <irregular_tile::Pass> class Sums>
__device__ __forceinline__ void compute_irregular_in_ring(const rfi_cuda_fold &f, const Shared &sh) {
    constexpr int RING = C::STAGES * C::STAGE;
    static_assert(IRREGULAR_BYTES<Sums> <= RING, "it fits where the ring was");
    compute_irregular<C::TOTALS, Sums>(f, (uint8_t *)sh.tile - RING, RING, threadIdx.x, 1);
}

template <class C> __device__ __forceinline__ void consume(const Parameters &p, const Shared &sh, int rank) {
    const rfi_cuda_fold &f = p.fold;
    /* By shuffle, so that the compiler sees that it is the same for a warp: descriptors then live in uniform registers.
     */
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0),
              feature = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    int slot = 0, round = 0;
    copy_parameters(f, sh.fold, threadIdx.x, CONSUMER_THREADS);
    barrier_arrive(COPIED_BARRIER, CONSUMER_THREADS + 32);
    rfi_wait_for_previous();
    static_assert(C::ROWS <= CONSUMER_THREADS, "a thread a row");
    const int r = threadIdx.x;
    const bool there = r < f.product.batch;
    /* Before anything is stored, so that all are asked for at once: x is loaded when they have come. */
    const bool irregular = there && is_irregular(f.product, r);
    const float scale = there && f.product.x.scale ? f.product.x.scale[r] : 1,
                ratio = there && f.product.levels.wide ? __ldcg(f.product.levels.ratio + r) : 0;
    const bool lone = MAY_BE_LONE<C> && there && f.product.lone && f.product.lone[r].column >= 0;
    if (r < C::ROWS) sh.x_scale[r] = scale, sh.ratio[r] = ratio;
    if (there) *(irregular ? sh.irregular : sh.regular) = true;
    if (ratio != 0) *sh.wide = true;
    if (lone) *sh.lone = true;
    mbarrier_arrive(sh.known);
    barrier_sync(1, CONSUMER_THREADS);                        /* all know what rows there are */
    const bool idle = __shfl_sync(~0u, (int)!*sh.regular, 0); /* nobody wants these products */
    if (idle && is_there(p, blockIdx.x, rank))
        for (int i = 0; i < stages_ahead<C>(p); i++) { /* what is on its way */
            mbarrier_wait(sh.full + 8 * i, 0);
            if (C::LEVELS && *sh.wide) mbarrier_wait(sh.full_second + 8 * i, 0);
        }
    for (int tile = blockIdx.x; !idle && is_there(p, tile, rank); tile += gridDim.x) {
        const int64_t column0 = (int64_t)tile * FEATURES;
        float w_scale[2] = {1, 1}, total[C::SUMS];
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (f.product.w.scale && column0 + feature + i * 8 < f.product.out_features)
                w_scale[i] = f.product.w.scale[column0 + feature + i * 8];
        if (threadIdx.x < FEATURES &&
            column0 + threadIdx.x <
                f.product.out_features) { /* what the fold reads is then near, when it waits for nothing else */
            prefetch_l1((const float *)f.visitor.bias + column0 + threadIdx.x);
            for (int v = 0; v < f.visitor.num_vectors; v++)
                prefetch_l1((const float *)f.visitor.vectors + v * f.product.out_features + column0 + threadIdx.x);
        }
        sum_products<C>(total, p, sh, warpgroup, slot, round, rank);
        slot += p.stages;
        round += slot / C::STAGES;
        slot %= C::STAGES;
        store_tile(f.product, sh, total, warpgroup, w_scale);
        if (MAY_BE_LONE<C> && *sh.lone) {
            rfi_add_lone_to_tile<FEATURES>(f.product, (float *)sh.tile, TILE_LD, 0, (int)f.product.batch, column0,
                threadIdx.x / 32, CONSUMER_THREADS / 32);
            barrier_sync(1, CONSUMER_THREADS);
        }
        rfi_fold_tile<float, C::FOLDED, Put<C::TOTALS>>(*sh.fold, (const float *)sh.tile, TILE_LD, 0,
            (int)f.product.batch, column0, FEATURES, nullptr, threadIdx.x, CONSUMER_THREADS / 32,
            {(State<C::TOTALS> *)sh.states, is_single(p, gridDim.x)});
        barrier_sync(1, CONSUMER_THREADS); /* the tile is read, its states are written */
    }
    if (f.visitor.chain.reduction != RF_OP_NONE && !idle) finish<C>(p, sh, rank);
    barrier_sync(1, CONSUMER_THREADS); /* the ring is free */
    if constexpr (MAY_BE_IRREGULAR<C>) {
        if (!__shfl_sync(~0u, (int)*sh.irregular, 0)) return;
        if constexpr (C::ROWS <= irregular_tile::PLAIN_ROWS && C::W_TERMS < 3)
            compute_irregular_in_ring<C, OfFewRows<C>::template Sums>(f, sh);
        else compute_irregular_in_ring<C, Of64Rows>(f, sh);
    }
}

template <class C>
__global__ __launch_bounds__(BLOCK_THREADS, 1) void small_kernel(const __grid_constant__ Parameters p) {
    if constexpr (C::TOTALS == rfi_answers::TOTALS) {
        if (!rfi_is_wanted(p.fold.schedule)) return;
    }
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[C::STAGES], full_second[C::STAGES], empty[C::STAGES];
    __shared__ float x_scale[C::ROWS], ratio[C::ROWS];
    __shared__ __align__(16) State<C::TOTALS> states[2 * C::ROWS]; /* read in words of 8 bytes */
    __shared__ uint64_t theirs, known;
    __shared__ bool last, irregular, regular, wide, lone;
    __shared__ rfi_cuda_fold fold;
    __shared__ Rehearsal rehearsal;
    const uint32_t ring = (shared_address(raw) + 1023) & ~1023u; /* as the swizzle wants it */
    const Shared sh = {ring, shared_address(full), shared_address(full_second), shared_address(empty), x_scale, ratio,
        shared_address(&known), &wide, &lone, (float *)(raw + (ring - shared_address(raw)) + C::STAGES * C::STAGE),
        &last, &irregular, &regular, states, shared_address(&theirs), &fold};
    const int rank = C::CLUSTER > 1 ? cluster_rank() : 0;
    /* By shuffle, so that the compiler sees that it is the same for a warp. */
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    const bool produces = warp == CONSUMER_THREADS / 32;
    rfi_release_next();
    if (threadIdx.x == CONSUMER_THREADS) {
        irregular = regular = wide = lone = false;
        mbarrier_init(sh.known, CONSUMER_THREADS);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(sh.full + 8 * i, 1);
            mbarrier_init(sh.full_second + 8 * i, 1);
            mbarrier_init(sh.empty + 8 * i, C::CLUSTER > 1 && loads_x<C>(i, rank) ? 4 * C::CLUSTER : 4);
        }
        mbarrier_init(sh.theirs, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(sh.theirs, (int)p.fold.product.batch * (int)sizeof(State<C::TOTALS>));
    }
    __syncthreads();
    if (produces && awaits_w(p.fold)) fetch_rows(p);
    __syncwarp();
    if (produces && elect_lane()) load_ahead<C>(p, sh, rank);
    __syncwarp();
    if (C::CLUSTER > 1) cluster_meet(); /* the barriers of all blocks are there */
    if (warp < CONSUMER_THREADS / 32) consume<C>(p, sh, rank);
    else if (!produces) {
        rehearsal.prepare();
        rfi_wait_for_previous();
        barrier_sync(COPIED_BARRIER, CONSUMER_THREADS + 32);
        rehearse_fold<C::FOLDED>(*sh.fold, rehearsal, (int64_t)blockIdx.x * FEATURES,
            Put<C::TOTALS>{(State<C::TOTALS> *)sh.states, is_single(p, gridDim.x)});
    } else if (elect_lane()) produce<C>(p, sh, rank);
    __syncwarp();
    if (C::CLUSTER > 1) cluster_sync(); /* no block leaves while another may still write to it */
}

} // namespace small
} // namespace hopper
#endif
