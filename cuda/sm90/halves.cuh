/* SPDX-License-Identifier: MIT */
/* About a hundred rows and more on Hopper, where there are fewer tiles than multiprocessors: K in two parts.
 *
 * The two blocks of a cluster compute the same tile of 128 x 128 logits, each over its half of K, and then give each
 * other half of the sums: a block ends with all of 64 columns. So it reads as much of W as for these columns over all
 * of K, and half of x, and the tensor cores get wide operands.
 *
 * Roles, the walk and columns are those of fold.cuh for tiles of 128 x 64 whose clusters are two blocks side by side
 * along the columns. What is new is the exchange: a slot of the ring, behind the last stage of a tile, that the other
 * block fills instead of TMA. The producer waits until the slot is free, as for any other, and tells the other block,
 * one tile at a time; that is long before the sums are there. The sum of two parts does not depend on their order. And
 * the blocks join their states, so that there are half as many. */
#ifndef ROWFOLD_CUDA_SM90_HALVES_CUH
#define ROWFOLD_CUDA_SM90_HALVES_CUH

#include "sm90/fold.cuh"

namespace hopper {
namespace halves {

struct Parameters : hopper::Parameters {
    int32_t part; /* stages of each part of K: of the second's the last may be all zeros, for if the parts differed the
                     compiler would no longer know that the stage is the same for a warp: see hopper.md 12 */
    int32_t w_once; /* W is read by one cluster: it leaves the L2 first */
};

template <int X_TERMS_, int W_TERMS_, bool BF16_, bool STORES_ = false> struct Config
    : hopper::Config<X_TERMS_, W_TERMS_, BF16_, 128, 128, 1, 1, false, false> {
    using Whole = hopper::Config<X_TERMS_, W_TERMS_, BF16_, 128, 128, 1, 1, false, false>;
    /* What a block ends with. */
    struct Folded : hopper::Config<X_TERMS_, W_TERMS_, BF16_, 128, 64, 1, 2, false, false, STORES_> {
        static constexpr bool ASKS_BY_SHUFFLE = Whole::PROMOTE || STORES_; /* hopper.md 85 */
    };
    static constexpr int PART = Whole::K;     /* columns whose products the tensor cores add, where they are promoted */
    static constexpr int K = 64, X_ROW = 128; /* columns of a stage, and bytes of a row of x there */
    static constexpr int W_ROW = W_TERMS_ == 1 ? 128 : 64, PANELS = X_ROW / W_ROW; /* and of W, in panels */
    static constexpr int X_TERM = Whole::BM * X_ROW, W_TERM = Whole::BN * W_ROW, W_PANEL = W_TERMS_ * W_TERM;
    static constexpr int X_BYTES = X_TERMS_ * X_TERM, W_BYTES = PANELS * W_PANEL, STAGE = X_BYTES + W_BYTES;
    static constexpr int OTHER = 1024 + 2 * Folded::COLUMN_BYTES;
    static constexpr int STAGES = (SHARED_LIMIT - OTHER - 2048) / STAGE;
    static constexpr int SHARED = OTHER + STAGES * STAGE;
    static constexpr int HALF = Whole::SUMS / 2,
                         SENT_BYTES = 256 * HALF * 4;     /* sums that a thread gives away, and all */
    static constexpr int W_BLOCK = 64 * W_ROW * W_TERMS_; /* bytes of 64 rows */
    static_assert(STAGES >= 3 && SENT_BYTES <= STAGE, "room for what is exchanged");
};

/* Stages of a tile's part, as stages_of has them. */
template <class C> __device__ __forceinline__ int part_of(const Parameters &p, bool idle, uint32_t tiles_before) {
    return !idle ? p.part : tiles_before ? 0 : min(p.part, C::STAGES);
}

template <class C> __device__ __forceinline__ void produce_stages(
    const Parameters &p, const Shared<typename C::Folded> &sh, uint32_t ready, int rank) {
    using E = typename C::Folded;
    const int begin = rank * p.part;
    const uint64_t policy = policy_of(p.w_once);
    const bool in_blocks = p.w_block; /* by address where there is one term, through maps where terms are apart */
    int first_column = 0, w_bytes = 0;
    const CUtensorMap *w = p.w;
    const auto w_of = [&](int panel) {
        return (const char *)p.fold.product.w.data +
            ((int64_t)panel * p.w_block + first_column / RFI_BLOCK_ROWS) * C::W_BLOCK;
    };
    const auto load_w = [&](int stage, int k, uint32_t x_bytes) {
        const uint32_t full = sh.full + 8 * stage, b = sh.stages + stage * C::STAGE + C::X_BYTES;
        mbarrier_arrive_expect(full, x_bytes + w_bytes);
        if (C::W_TERMS == 1 && in_blocks) {
            bulk_load(b, w_of(begin + k), w_bytes, full, policy);
            return;
        }
#pragma unroll
        for (int i = 0; i < C::PANELS * C::W_TERMS; i++) {
            const int panel = (begin + k) * C::PANELS + i / C::W_TERMS;
            tma_load_by(b + i * C::W_TERM, w + i % C::W_TERMS, full, panel * p.w_column, in_blocks ? 0 : first_column,
                in_blocks ? first_column / RFI_BLOCK_ROWS + panel * p.w_block : 0, policy);
        }
    };
    int stage = 0, phase = 1;
    int index = blockIdx.x / E::CLUSTER;
    bool waited = false;
    Walk walk = first_tile<E>(p);
    for (; walk.is_there(); hand_out<E>(p, sh, walk, index, rank)) {
        const int row = walk.tile.m * C::BM;
        first_column = walk.tile.n * E::BN;
        const Rows xs = rows_of<C::BM>(p.fold.product.batch, row, 1, p.x_rest_rows),
                   ws = rows_of<C::BN>(p.fold.product.out_features, first_column, 1, p.w_rest_rows);
        const CUtensorMap *const x = xs.whole ? p.x : p.x_rest;
        w = ws.whole ? p.w : p.w_rest;
        w_bytes = ws.loaded * (C::W_BYTES / C::BN);
        const uint32_t x_bytes = xs.loaded * (C::X_ROW * C::X_TERMS);
        const int ahead = waited ? 0 : min(p.part, C::STAGES); /* stages whose W is fetched first */
        if (!waited) {
            if (awaits_w(p.fold)) rfi_wait_for_previous();
#pragma unroll 1
            for (int k = 0; k < ahead; k++) load_w(k, k, x_bytes);
            rfi_wait_for_previous();
            if (p.fold.product.irregular) mbarrier_wait(sh.wide_known, 0);
        }
        waited = true;
        if (!p.fold.schedule.next_tile) index += gridDim.x / E::CLUSTER;
        else if (rank == 0) index = gridDim.x / E::CLUSTER + atomicAdd(p.fold.schedule.next_tile, 1u);
        const bool idle = is_idle<E>(p, sh, walk.tile.m), wide = !idle && is_wide<E>(sh, walk.tile.m);
        const int count = part_of<C>(p, idle, walk.count);
        for (int level = wide; level >= 0; level--) {
            const int x_column = level * (int)p.fold.product.x.level + begin * C::K;
            for (int k = 0; k < count; k++) {
                const uint32_t full = sh.full + 8 * stage, a = sh.stages + stage * C::STAGE;
                if (k >= ahead || level != wide) {
                    mbarrier_wait(sh.empty + 8 * stage, phase);
                    load_w(stage, k, x_bytes);
                }
#pragma unroll
                for (int i = 0; i < C::X_TERMS; i++) tma_load(a + i * C::X_TERM, x + i, full, x_column + k * C::K, row);
                if (++stage == C::STAGES) stage = 0, phase ^= 1;
            }
        }
        mbarrier_wait(sh.empty + 8 * stage, phase);
        mbarrier_arrive_expect(sh.full + 8 * stage, C::SENT_BYTES);
        /* The other block is told of one tile at a time: of two it would notice neither, and wait for ever. It has sent
         * its sums of the tile before once that tile's slot is filled, as it is if the ring has come round to it. That
         * slot lies in front of this tile's stages, which are counted again: remembered it would be spilled. */
        const int since = count * (wide + 1) + 1;
        if (walk.count && since < C::STAGES) {
            const bool round = stage < since; /* it is of the round before */
            mbarrier_wait(sh.full + 8 * (round ? stage + C::STAGES - since : stage - since), round ? phase : phase ^ 1);
        }
        mbarrier_arrive_remote(ready, rank ^ 1);
        if (++stage == C::STAGES) stage = 0, phase ^= 1;
    }
    await_others<E>(sh, walk, C::STAGES, stage, phase, rank);
}

/* The products of PART columns of a stage, from number `part` on, as one group; the small ones first. */
template <class C, int N> __device__ __forceinline__ void multiply_part(
    float (&d)[N], uint64_t a, uint64_t b, int stage, int part, bool accumulate) {
    constexpr int BYTES = 2 * C::PART;
    const uint64_t at = (uint64_t)stage * (C::STAGE >> 4);
    a += at + (part * BYTES >> 4);
    b += at + ((C::PANELS > 1 ? part * C::W_PANEL : part * BYTES) >> 4);
    wgmma_fence();
#pragma unroll
    for (int sum = C::ORDER - 1; sum >= 0; sum--)
#pragma unroll
        for (int i = min(sum, C::X_TERMS - 1); i >= 0; i--)
            if (sum - i < C::W_TERMS)
#pragma unroll
                for (int k16 = 0; k16 < C::PART / 16; k16++)
                    multiply<C>(d, a + (i * C::X_TERM + k16 * 32 >> 4), b + ((sum - i) * C::W_TERM + k16 * 32 >> 4),
                        accumulate || k16 || !is_first<C>(i, sum - i));
    wgmma_commit();
}

/* The sums of this block's part of K. */
template <class C, int N> __device__ __forceinline__ void sum_products(float (&total)[N], const Parameters &p,
    const Shared<typename C::Folded> &sh, Ring &ring, uint64_t a, uint64_t b, int count, bool wide, int64_t block) {
    constexpr int PARTS = C::K / C::PART;
#pragma unroll
    for (int i = 0; i < N; i++) total[i] = 0;
#pragma unroll 1
    for (int level = !C::BF16 && wide; level >= 0; level--) {
        if constexpr (C::PROMOTE) {
            for (int k = 0; k < count; k++) {
                mbarrier_wait(sh.full + 8 * ring.stage, ring.phase);
#pragma unroll
                for (int i = 0; i < PARTS; i++) {
                    float part[N];
                    multiply_part<C>(part, a, b, ring.stage, i, false);
                    wgmma_wait<0>();
                    if (i == PARTS - 1) release<C>(sh.empty + 8 * ring.stage);
#pragma unroll
                    for (int j = 0; j < N; j++) total[j] += part[j];
                }
                ring.advance<C>();
            }
        } else {
            multiply_level<C>(sh, ring, count, [&](int stage) { multiply_part<C>(total, a, b, stage, 0, true); });
        }
        if (!C::BF16 && level) change_level<C>(total, p.fold.product, block);
    }
}

/* Half of the sums to the other block, to the next slot of its ring, and its half of ours from that of this one, which
 * has the same number. */
template <class C, int N, int HALF> __device__ __forceinline__ void exchange(float (&mine)[HALF],
    const float (&total)[N], const Shared<typename C::Folded> &sh, Ring &ring, uint32_t ready, uint32_t phase,
    int thread, int rank) {
    constexpr int NEXT = 2 * 128 * 16; /* from 16 bytes of a thread to its next */
    mbarrier_wait(ready, phase);
    const uint32_t to = address_in(sh.stages + ring.stage * C::STAGE + thread * 16, rank ^ 1),
                   bar = address_in(sh.full + 8 * ring.stage, rank ^ 1);
#pragma unroll
    for (int i = 0; i < HALF; i += 4) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = rank ? total[i + j] : total[HALF + i + j];
            mine[i + j] = rank ? total[HALF + i + j] : total[i + j];
        }
        send(to + i / 4 * NEXT, v[0], v[1], v[2], v[3], bar);
    }
    mbarrier_wait(sh.full + 8 * ring.stage, ring.phase);
    const uint32_t from = sh.stages + ring.stage * C::STAGE + thread * 16;
#pragma unroll
    for (int i = 0; i < HALF; i += 4) {
        const irregular_tile::Words v = irregular_tile::words_of(irregular_tile::load_shared(from + i / 4 * NEXT));
#pragma unroll
        for (int j = 0; j < 4; j++) mine[i + j] += __uint_as_float(v.w[j]);
    }
    __syncwarp();
    release<C>(sh.empty + 8 * ring.stage);
    ring.advance<C>();
}

/* Where the state of a cluster's tile is among those of its 64 rows. */
__device__ __forceinline__ Slot place_of(const Parameters &p, Tile first, int warpgroup) {
    return slot_at(p, first.m * 2 + warpgroup, first.n / 2);
}

/* Both blocks' states of a tile are joined in the first. */
struct Pairs {
    State<1> *theirs; /* (128) */
    uint32_t full;
};

template <class C> __device__ __forceinline__ void join_and_write(const Parameters &p, const Place &at, const Slot &s,
    State<1> (&state)[2], const Shared<typename C::Folded> &sh, const Pairs &pairs, uint32_t phase) {
    const rfi_cuda_fold &f = p.fold;
    State<1> *states = (State<1> *)f.visitor.partials + s.first_row * f.visitor.num_partials;
    join_lanes<4>(f.visitor.chain.reduction, state);
    if (at.rank) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (at.thread % 4 == 0)
                store_remote(shared_address(&pairs.theirs[at.warpgroup * 64 + at.row + r * 8]), *(uint64_t *)&state[r],
                    pairs.full, 0);
        return;
    }
    mbarrier_wait(pairs.full, phase);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = at.row + r * 8;
        const State<1> other[1] = {pairs.theirs[at.warpgroup * 64 + row]};
        join_some(f.visitor.chain.reduction, state[r], other, 1);
        if (at.thread % 4 == 0 && s.there && s.first_row + row < f.product.batch &&
            !(*sh.irregular && is_irregular(f.product, s.first_row + row)))
            rfi_write_state(states, row * f.visitor.num_partials + s.slot, state[r]);
    }
}

template <class C> __device__ __forceinline__ void consume(
    const Parameters &p, const Shared<typename C::Folded> &sh, const Pairs &pairs, uint32_t ready, const Place &at) {
    using E = typename C::Folded;
    const uint64_t a = wgmma_descriptor<C::X_ROW>(sh.stages + at.warpgroup * 64 * C::X_ROW);
    const uint64_t b = wgmma_descriptor<C::W_ROW>(sh.stages + C::X_BYTES);
    const bool joins = reduces<E>(p) && at.rank == 0;
    Ring ring = {0, 0};
    Walk walk = first_tile<E>(p);
    rfi_wait_for_previous();
    if (find_unusual<E>(p.fold.product, sh, at.warpgroup * 128 + at.thread, 128 * CONSUMERS)) *sh.irregular = 1;
    mbarrier_arrive(sh.wide_known);
    barrier_sync(CONSUMERS_BARRIER, 128 * CONSUMERS); /* all have looked */
    for (; walk.is_there(); take_next<E>(sh, walk)) {
        float mine[E::SUMS];
        if (joins && at.warpgroup == 0 && at.thread == 0)
            mbarrier_arrive_expect(pairs.full, C::BM * (int)sizeof(State<1>));
        {
            float total[C::SUMS];
            const bool idle = is_idle<E>(p, sh, walk.tile.m),
                       wide = __shfl_sync(~0u, !idle && is_wide<E>(sh, walk.tile.m), 0);
            const int count = __shfl_sync(~0u, part_of<C>(p, idle, walk.count), 0);
            sum_products<C>(total, p, sh, ring, a, b, count, wide, first_row_of<E>(walk.tile, at.warpgroup));
            exchange<C>(mine, total, sh, ring, ready, walk.count % 2, at.warpgroup * 128 + at.thread, at.rank);
        }
        const Tile tile = walk.of<E>(at.rank);
        const uint32_t buffer = walk.count % 2; /* of the columns */
        const int64_t row = first_row_of<E>(tile, at.warpgroup) + at.row;
        State<1> state[2];
        mbarrier_wait(sh.columns_full + 8 * buffer, walk.count / 2 % 2);
        fold_sums<E>(p.fold, mine, row, (int64_t)tile.n * E::BN, at.column,
            sh.columns + buffer * E::COLUMN_ROWS * E::BN + at.column, *sh.lone, state);
        mbarrier_arrive(sh.columns_empty + 8 * buffer);
        if (reduces<E>(p))
            join_and_write<C>(p, at, place_of(p, walk.tile, at.warpgroup), state, sh, pairs, walk.count % 2);
    }
    if constexpr (MAY_BE_IRREGULAR<E>) {
        if (!may_be_irregular(p)) return;
        barrier_sync(CONSUMERS_BARRIER, 128 * CONSUMERS); /* the ring is free */
        static_assert(IRREGULAR_BYTES<Of<64>::Sums> <= C::STAGES * C::STAGE, "it fits where the ring was");
        if (__shfl_sync(~0u, *sh.irregular, 0))
            compute_irregular<1, Of<64>::Sums>(p.fold, (uint8_t *)sh.columns - C::STAGES * C::STAGE,
                C::STAGES * C::STAGE, at.warpgroup * 128 + at.thread, CONSUMERS_BARRIER);
    }
}

template <class C> __global__ __launch_bounds__(THREADS, 1) void halves_kernel(const __grid_constant__ Parameters p) {
    using E = typename C::Folded;
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[C::STAGES], empty[C::STAGES], columns_full[2], columns_empty[2], drawn[CONSUMERS],
        tile_full[HANDED_OUT], tile_empty[HANDED_OUT];
    __shared__ uint64_t tiles[HANDED_OUT];
    __shared__ uint32_t last[3 * CONSUMERS], irregular, lone, wide[LEVEL_WORDS], left_out[COUNTED_TILES];
    __shared__ uint64_t wide_known, ready_barrier, theirs_barrier;
    __shared__ State<1> theirs[C::BM];
    const uint32_t base = (shared_address(raw) + 1023) & ~1023u; /* as the swizzle wants it */
    uint8_t *behind = raw + (base - shared_address(raw)) + C::STAGES * C::STAGE;
    const Shared<E> sh = {base, shared_address(full), shared_address(empty), shared_address(columns_full),
        shared_address(columns_empty), shared_address(drawn), shared_address(tile_full), shared_address(tile_empty),
        tiles, (float *)behind, last, &irregular, wide, left_out, &lone, shared_address(&wide_known)};
    const uint32_t ready = shared_address(&ready_barrier);
    const Pairs pairs = {theirs, shared_address(&theirs_barrier)};
    const int rank = __shfl_sync(~0u, cluster_rank(), 0);
    rfi_release_next();
    if (threadIdx.x < LEVEL_WORDS) wide[threadIdx.x] = 0;
    if (threadIdx.x < COUNTED_TILES) left_out[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        irregular = lone = 0;
        mbarrier_init(ready, 1);
        mbarrier_init(pairs.full, 1);
        init_barriers<E>(p, sh, C::STAGES, 1);
    }
    __syncthreads();
    cluster_meet();
    /* By shuffle, so that the compiler sees that it is the same for a warp: descriptors then live in uniform registers.
     */
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    if (warpgroup == 0) {
        registers_lower<24>();
        const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
        if (warp == 0) {
            if (elect_lane()) produce_stages<C>(p, sh, ready, rank);
            __syncwarp();
        } else if (warp == 1) produce_columns<E>(p, sh, rank);
    } else {
        registers_raise<240>();
        const int thread = threadIdx.x % 128, lane = thread % 32;
        const Place at = {warpgroup - 1, thread, thread / 32 * 16 + lane / 4, 2 * (lane % 4), rank};
        consume<C>(p, sh, pairs, ready, at);
    }
}

} // namespace halves
} // namespace hopper
#endif
