/* SPDX-License-Identifier: MIT */
/* Rows of 16 bits on Hopper, some tens of them and more, up to 320 in a tile.
 *
 * With a hundred rows and more tiles of 128 x 128 are one for each multiprocessor, and wait for what their blocks read
 * of the L2: the more a tile multiplies of that, the better. And rows that fill no tiles of 128 are multiplied all the
 * same, or take another round. Here, as in the kernel for few rows, W is the operand that wgmma takes 64 rows of, and
 * the batch its other side, whose width goes by eights. A batch is cut into groups of as many rows each; a tile is such
 * a group by 128 features, 64 of each warpgroup.
 *
 *   stage: W   128 rows of 64 columns     x   the rows of a group, 64 columns, in two boxes at most
 *
 * The two blocks of a cluster have the same tile, and half of K each: then either finishes 64 of its features, to which
 * it adds what the other has of them. Or, where there are enough tiles, they have features side by side and share the
 * rows of x: each loads a box, for both. Or, where there are few, three, four or eight blocks have as many parts of K;
 * a state is of 64 features, so that each of these finishes some of the rows instead.
 *
 * A tile's logits take the place of the ring: nothing is loaded for the next tile before this one is folded. Where
 * there are many tiles that counts, and is worth it for rows that would leave much of other tiles empty. */
#ifndef ROWFOLD_CUDA_SM90_TURNED_CUH
#define ROWFOLD_CUDA_SM90_TURNED_CUH

#include "sm90/turned_fold.cuh"

namespace hopper {
namespace turned {

/* Nobody uses sums before the wait for them. */
template <int N> __device__ __forceinline__ void hold(float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

/* What the tensor cores add up of STAGES stages, a product after the other, added to the sums in float32, with what
 * they cut off of it on average. */
template <class C, int STAGES> __device__ __forceinline__ void add_stages(float (&total)[C::PARTS][C::SUMS],
    const Parameters &p, const Shared &sh, Ring &ring, int rank, int warpgroup, uint64_t w0, uint64_t x0,
    float regain) {
    int slots[STAGES];
#pragma unroll
    for (int part = 0; part < C::PARTS; part++) {
        float sums[C::SUMS];
        take_turn<C>(warpgroup);
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            if (part == 0) {
                mbarrier_wait(sh.full + 8 * ring.slot, ring.round & 1);
                slots[i] = ring.slot;
                ring.advance<C>();
            }
            const uint64_t at = (uint64_t)slots[i] * (C::STAGE >> 4);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < K / 16; s++)
                multiply<C>(sums, w0 + at + s * (32 >> 4), x0 + at + s * (32 >> 4) + part * (C::NT * ROW >> 4), i || s);
            wgmma_commit();
        }
        pass_turn<C>(warpgroup);
        if (STAGES > 1 && part == C::PARTS - 1) {
            wgmma_wait<1>();
            release<C>(p, sh, slots[0], rank);
        }
        wgmma_wait<0>();
        if (part == C::PARTS - 1) release<C>(p, sh, slots[STAGES - 1], rank);
        hold(sums);
#pragma unroll
        for (int i = 0; i < C::SUMS; i++) total[part][i] = fmaf(sums[i], regain, total[part][i]);
    }
}

/* The sums of a tile over this block's share of K: added by the tensor cores, or, where a single logit shows, by parts
 * of RFI_SM90_PART columns. */
template <class C> __device__ __forceinline__ void sum_products(float (&total)[C::PARTS][C::SUMS], const Parameters &p,
    const Shared &sh, Ring &ring, int rank, int stages, int warpgroup) {
    const uint64_t w0 = wgmma_descriptor<ROW>(sh.ring + warpgroup * HALF * ROW),
                   x0 = wgmma_descriptor<ROW>(sh.ring + W_BYTES);
#pragma unroll
    for (int part = 0; part < C::PARTS; part++)
#pragma unroll
        for (int i = 0; i < C::SUMS; i++) total[part][i] = 0;
    if constexpr (C::ANSWERS) {
        constexpr int STAGES = RFI_SM90_PART / K;
        static_assert(STAGES == 2, "the last of an odd number by itself");
        const float regain = p.fold.product.regain;
        for (int k = STAGES; k <= stages; k += STAGES)
            add_stages<C, STAGES>(total, p, sh, ring, rank, warpgroup, w0, x0, regain);
        if (stages % STAGES) add_stages<C, 1>(total, p, sh, ring, rank, warpgroup, w0, x0, regain);
        return;
    }
    int previous = 0;
    for (int k = 0; k < stages; k++) {
        mbarrier_wait(sh.full + 8 * ring.slot, ring.round & 1);
        const uint64_t at = (uint64_t)ring.slot * (C::STAGE >> 4);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < K / 16; s++)
#pragma unroll
            for (int part = 0; part < C::PARTS; part++)
                multiply<C>(
                    total[part], w0 + at + s * (32 >> 4), x0 + at + s * (32 >> 4) + part * (C::NT * ROW >> 4), true);
        wgmma_commit();
        wgmma_wait<1>();
        if (k) release<C>(p, sh, previous, rank);
        previous = ring.slot;
        ring.advance<C>();
    }
    wgmma_wait<0>();
    release<C>(p, sh, previous, rank);
#pragma unroll
    for (int part = 0; part < C::PARTS; part++) hold(total[part]);
}

/* Sum i of a thread and a product lies in row i / 4 * 8 + i % 2 of those behind the first, feature i / 2 % 2 * 8. */
template <class C> __device__ __forceinline__ void store_sums(
    const float (&total)[C::PARTS][C::SUMS], float *tile, int tile_ld, int first_feature) {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    float *const to = tile + lane % 4 * 2 * tile_ld + first_feature + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int part = 0; part < C::PARTS; part++)
#pragma unroll
        for (int i = 0; i < C::SUMS; i++)
            to[(part * C::NT + i / 4 * 8 + i % 2) * tile_ld + i / 2 % 2 * 8] = total[part][i];
}

/* Of a warpgroup, to the same of the other block, to where its ring was: 16 bytes of a thread behind those of the one
 * before. */
constexpr int SENT_STEP = 128 * 16;
template <class C> __device__ __forceinline__ void send_sums(
    const float (&total)[C::PARTS][C::SUMS], const Shared &sh, int rank, int turn) {
    mbarrier_wait(sh.drained, turn);
    const Address to = address_in(sh.ring + threadIdx.x % 128 * 16, rank ^ 1), bar = address_in(sh.arrived, rank ^ 1);
#pragma unroll
    for (int part = 0; part < C::PARTS; part++)
#pragma unroll
        for (int i = 0; i < C::SUMS; i += 4) {
            const float (&v)[C::SUMS] = total[part];
            send(to + (part * C::SUMS + i) / 4 * SENT_STEP, v[i], v[i + 1], v[i + 2], v[i + 3], bar);
        }
}
template <class C>
__device__ __forceinline__ void add_sent(float (&total)[C::PARTS][C::SUMS], const Shared &sh, int turn) {
    mbarrier_wait(sh.arrived, turn);
    const Address from = sh.ring + threadIdx.x % 128 * 16;
#pragma unroll
    for (int part = 0; part < C::PARTS; part++)
#pragma unroll
        for (int i = 0; i < C::SUMS; i += 4) {
            const irregular_tile::Words v =
                irregular_tile::words_of(irregular_tile::load_shared(from + (part * C::SUMS + i) / 4 * SENT_STEP));
#pragma unroll
            for (int j = 0; j < 4; j++) total[part][i + j] += __uint_as_float(v.w[j]);
        }
}

/* Where the tile was, stages of the next may come. The other blocks are told of all but the last: by then they may have
 * left. */
template <class C> __device__ __forceinline__ void give_back(const Shared &sh, int rank) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* what copies write there next comes behind */
    mbarrier_arrive(sh.folded); /* each by itself: racecheck follows no named barrier to the copies behind this */
    barrier_sync(TILE_BARRIER, CONSUMER_THREADS);
    if (threadIdx.x < C::CLUSTER && threadIdx.x != rank) mbarrier_arrive_remote(sh.folded, threadIdx.x);
}

/* More than two blocks a tile. */
namespace by_rows {

constexpr int TILE_LD = FEATURES + 4; /* see rfi_fold_tile */

/* The rows of a group that a block finishes, by eights: from `first` on, `count`; all but the last have `each`. */
struct Share {
    int each, first, count;
};
template <class C> __device__ __forceinline__ Share share_of(const Parameters &p, int rank) {
    const int all = (p.group_rows + 7) / 8, each = (all + C::CLUSTER - 1) / C::CLUSTER, first = rank * each;
    return {each, first, max(0, min(each, all - first))};
}

/* To the blocks that finish these rows, this one among them, to where their ring was: of each block that sends, in
 * turn, the eights, 16 bytes of a thread behind those of the one before. */
template <class C> __device__ __forceinline__ void send_sums(
    const float (&total)[C::PARTS][C::SUMS], const Parameters &p, const Shared &sh, int rank, int turn) {
    mbarrier_wait(sh.drained, turn);
#pragma unroll 1
    for (int by = 0; by < C::CLUSTER; by++) {
        const int to = (rank + by) % C::CLUSTER;
        const Share share = share_of<C>(p, to);
        /* Offsets behind the mapping, not in front of it: what lies before the first row lies before shared memory. */
        const Address there =
            address_in(sh.ring, to) + (rank * share.each - share.first) * EIGHT_BYTES + threadIdx.x * 16;
        const Address arrived = address_in(sh.arrived, to);
#pragma unroll
        for (int part = 0; part < C::PARTS; part++)
#pragma unroll
            for (int i = 0; i < C::SUMS; i += 4) {
                const int eight = (part * C::SUMS + i) / 4;
                const float (&v)[C::SUMS] = total[part];
                if ((unsigned)(eight - share.first) < (unsigned)share.count)
                    send(there + eight * EIGHT_BYTES, v[i], v[i + 1], v[i + 2], v[i + 3], arrived);
            }
    }
}

/* What came, added in the order of the parts, for equal columns are to have equal sums, to the tile, where nothing
 * came. Sum i of an eight lies in row i % 2, feature i / 2 * 8. */
template <class C>
__device__ __forceinline__ void add_sent(float *tile, const Shared &sh, const Share &share, int warpgroup) {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    Address from = sh.ring + threadIdx.x * 16;
    float *to = tile + lane % 4 * 2 * TILE_LD + warpgroup * HALF + thread / 32 * 16 + lane / 4;
#pragma unroll 1
    for (int eight = 0; eight < share.count; eight++, from += EIGHT_BYTES, to += 8 * TILE_LD) {
        irregular_tile::Words sent[C::CLUSTER]; /* all on their way at once */
#pragma unroll
        for (int k = 0; k < C::CLUSTER; k++)
            sent[k] = irregular_tile::words_of(irregular_tile::load_shared(from + k * share.each * EIGHT_BYTES));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum = __uint_as_float(sent[0].w[i]);
#pragma unroll
            for (int k = 1; k < C::CLUSTER; k++) sum += __uint_as_float(sent[k].w[i]);
            to[i % 2 * TILE_LD + i / 2 * 8] = sum;
        }
    }
}

template <class C> __device__ __forceinline__ void consume(
    const Parameters &p, const Shared &sh, bool plain, int rank, int stages, int warpgroup) {
    const rfi_cuda_product &f = p.fold.product;
    const Share share = share_of<C>(p, rank);
    float *const tile = sh.tile + C::SENT_BYTES / sizeof(float);
    Ring ring = {0, 0};
    begin_fold<C>(p.fold, sh, plain);
    begin_turns<C>(warpgroup);
    bool ahead = C::AHEAD && plain;
    for (Walk walk = first_of<C>(); walk.template is_there<C>(p);) {
        const bool rehearses = __shfl_sync(~0u, ahead, 0);
        const int turn = walk.count & 1;
        const int64_t group_row = (int64_t)walk.group(p) * p.group_rows, row0 = group_row + share.first * 8,
                      end = min(f.batch, min(group_row + p.group_rows, row0 + share.count * 8)),
                      column0 = (int64_t)walk.template tile<C>(p, rank) * FEATURES;
        if (!rehearses) {
            float total[C::PARTS][C::SUMS];
            if (threadIdx.x == 0) mbarrier_arrive_expect(sh.arrived, C::CLUSTER * share.count * EIGHT_BYTES);
            sum_products<C>(total, p, sh, ring, rank, stages, warpgroup);
            const float bias = plain ? fetch_bias(folded<C>(p, sh), column0, FEATURES) : 0;
            barrier_sync(TILE_BARRIER, CONSUMER_THREADS); /* the last stages are read */
            if (threadIdx.x < C::CLUSTER && threadIdx.x != rank) mbarrier_arrive_remote(sh.drained, threadIdx.x);
            send_sums<C>(total, p, sh, rank, turn);
            if (plain && threadIdx.x < FEATURES) sh.bias[threadIdx.x] = bias;
            mbarrier_wait(sh.arrived, turn);
            add_sent<C>(tile, sh, share, warpgroup);
            barrier_sync(TILE_BARRIER, CONSUMER_THREADS); /* the tile is written */
        }
        fold_rows<C>(p, sh, plain, rehearses, tile, TILE_LD, row0, (int)max(end - row0, (int64_t)0), column0, FEATURES);
        if (rehearses) {
            ahead = false;
            rfi_wait_for_previous();
            continue;
        }
        if (walk.template is_last<C>(p)) break;
        give_back<C>(sh, rank);
        walk.template advance<C>();
    }
    end_turns<C>(warpgroup);
}

} // namespace by_rows

template <class C> __device__ __forceinline__ void consume(
    const Parameters &p, const Shared &sh, bool plain, int rank, int stages, int warpgroup) {
    const rfi_cuda_product &f = p.fold.product;
    const bool halves = p.halves, sends = halves && warpgroup != rank;
    const int features = halves ? HALF : FEATURES, tile_ld = features + 4; /* see rfi_fold_tile */
    Ring ring = {0, 0};
    begin_fold<C>(p.fold, sh, plain);
    begin_turns<C>(warpgroup);
    bool ahead = C::AHEAD && plain;
    for (Walk walk = first_of<C>(); walk.template is_there<C>(p);) {
        const bool rehearses = __shfl_sync(~0u, ahead, 0);
        const int turn = walk.count & 1;
        const int64_t row0 = (int64_t)walk.group(p) * p.group_rows,
                      column0 = (int64_t)walk.template tile<C>(p, rank) * FEATURES + (halves ? rank * HALF : 0);
        if (!rehearses) {
            float total[C::PARTS][C::SUMS];
            if (halves && threadIdx.x == 0) mbarrier_arrive_expect(sh.arrived, C::SENT_BYTES);
            sum_products<C>(total, p, sh, ring, rank, stages, warpgroup);
            const float bias = plain ? fetch_bias(folded<C>(p, sh), column0, features) : 0;
            barrier_sync(TILE_BARRIER, CONSUMER_THREADS); /* the last stages are read */
            if (halves) {
                if (threadIdx.x == 0) mbarrier_arrive_remote(sh.drained, rank ^ 1);
                if (sends) send_sums<C>(total, sh, rank, turn);
                else add_sent<C>(total, sh, turn);
                /* What was sent is read. One warpgroup could do it, but then racecheck loses count of the barriers. */
                barrier_sync(TILE_BARRIER, CONSUMER_THREADS);
            }
            if (!sends) store_sums<C>(total, sh.tile, tile_ld, halves ? 0 : warpgroup * HALF);
            if (plain && threadIdx.x < FEATURES) sh.bias[threadIdx.x] = bias;
            barrier_sync(TILE_BARRIER, CONSUMER_THREADS); /* the tile is written */
        }
        fold_rows<C>(p, sh, plain, rehearses, sh.tile, tile_ld, row0, (int)min(f.batch - row0, (int64_t)p.group_rows),
            column0, features);
        if (rehearses) {
            ahead = false;
            rfi_wait_for_previous();
            continue;
        }
        if (walk.template is_last<C>(p)) break;
        give_back<C>(sh, rank);
        walk.template advance<C>();
    }
    end_turns<C>(warpgroup);
}

template <class C>
__global__ __launch_bounds__(BLOCK_THREADS, 1) void turned_kernel(const __grid_constant__ Parameters p) {
    if constexpr (C::ANSWERS) {
        if (!rfi_is_wanted(p.fold.schedule)) return;
    }
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[C::STAGES], empty[C::STAGES], folded, drained, arrived;
    __shared__ rfi_cuda_fold fold;
    __shared__ __align__(16) float bias[FEATURES]; /* read four at a time */
    __shared__ Rehearsal rehearsal;
    const Address ring = (shared_address(raw) + 1023) & ~1023u; /* as the swizzle wants it */
    const Shared sh = {ring, shared_address(full), shared_address(empty), shared_address(&folded),
        shared_address(&drained), shared_address(&arrived), (float *)(raw + (ring - shared_address(raw))), bias, &fold};
    /* By shuffle, so that the compiler sees that it is the same for a warp: descriptors then live in uniform registers.
     */
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), rank = __shfl_sync(~0u, (int)cluster_rank(), 0),
              stages = stages_of<C>(p, rank);
    const bool plain = __shfl_sync(~0u, is_plain(p.fold), 0);
    rfi_release_next();
    if (threadIdx.x == CONSUMER_THREADS) {
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(sh.full + 8 * i, 2); /* by two threads */
            mbarrier_init(sh.empty + 8 * i, (C::BY_ROWS || p.halves ? 1 : C::CLUSTER) * CONSUMER_THREADS / 32);
        }
        mbarrier_init(sh.folded, CONSUMER_THREADS + C::CLUSTER - 1);
        mbarrier_init(sh.drained, C::BY_ROWS ? C::CLUSTER - 1 : 1);
        mbarrier_init(sh.arrived, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    constexpr int PRODUCER = CONSUMER_THREADS / 32;
    if (warp == PRODUCER && elect_lane()) produce_w<C>(p, sh, rank, stages, true);
    __syncwarp();
    cluster_meet(); /* the barriers of all blocks are there */
    if (warp < PRODUCER) {
        registers_raise<C::RAISED>();
        if constexpr (C::BY_ROWS) by_rows::consume<C>(p, sh, plain, rank, stages, warp / 4);
        else consume<C>(p, sh, plain, rank, stages, warp / 4);
    } else {
        registers_lower<C::LOWERED>();
        if (C::REHEARSES && warp == PRODUCER + 2 && !plain) {
            rehearsal.prepare();
            rfi_wait_for_previous();
            barrier_sync(COPIED_BARRIER, CONSUMER_THREADS + 32);
            rehearse_fold<C::FOLDED>(
                *sh.fold, rehearsal, (int64_t)first_of<C>().template tile<C>(p, rank) * FEATURES, rfi_to_partials());
        }
        if (warp == PRODUCER && elect_lane()) produce_w<C>(p, sh, rank, stages, false);
        if (warp == PRODUCER + 1 && elect_lane()) {
            if (C::BY_ROWS || p.halves) produce_x<C, false>(p, sh, rank, stages);
            else produce_x<C, true>(p, sh, rank, stages);
        }
    }
}

} // namespace turned
} // namespace hopper
#endif
