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

#include "common/epilogue.cuh"
#include "sm90/fold.cuh"
#include "common/ptx.cuh"

namespace hopper {
namespace small {

constexpr int FEATURES = 64; /* of a tile */
constexpr int CONSUMER_THREADS = 2 * 128;
constexpr int BLOCK_THREADS = CONSUMER_THREADS + 32;
constexpr int BOX = 64, BOX_ROW = 2 * BOX; /* columns of a box of x, and its bytes a row: the width of the swizzle */
constexpr int RING_BYTES = 200 * 1024;     /* at most */
constexpr int PREFETCHED =
    8; /* stages behind the ring's first round that are fetched to the L2: 16 MB of it, by all blocks */
constexpr int TILE_LD = FEATURES + 4;        /* see rfi_fold_tile */
constexpr int MOST_STATES = RFI_SM90_BLOCKS; /* of a row that are merged at a time */
constexpr int STATES_LD = MOST_STATES + 4; /* of those of a row in shared memory: so the banks of eight rows' differ */

struct Parameters {
    CUtensorMap x[3], w[3]; /* of their terms, of W unless that is in blocks; a box of x is as high as the batch: rows
                               outside would cost as much as others */
    int32_t stages, tiles;  /* stages of a tile */
    int64_t w_panel;        /* bytes of a panel of W, if that is in blocks */
    rfi_cuda_fold fold;
};

template <int X_TERMS_, int W_TERMS_, bool BF16_, int ROWS_, int CLUSTER_, bool ANSWERS_> struct Config {
    static constexpr int X_TERMS = X_TERMS_,
                         W_TERMS = W_TERMS_; /* 16-bit terms that a value of x and of W is the sum of */
    static constexpr bool BF16 = BF16_, TF32 = false;
    static constexpr bool LEVELS = !BF16;
    static constexpr int ROWS = ROWS_; /* of x, a multiple of 8: those behind the batch are multiplied as they are, and
                                          nobody reads the result */
    static constexpr int CLUSTER = CLUSTER_;
    static constexpr int TOTALS = ANSWERS_ ? rfi_answers::TOTALS : 1;
    static constexpr int PIECES = W_TERMS >= 2 || (ROWS == 64 && X_TERMS == 2 && LEVELS)
        ? 1
        : 2; /* boxes of a term of x side by side in a stage, which so has 16 KB of W, 24 of three terms, or 8 where
                there is so much of x */
    static constexpr int K = PIECES * BOX;
    static constexpr int W_COLUMNS = W_TERMS == 3 ? 16
        : W_TERMS == 2                            ? 32
                                                  : 64,
                         W_ROW = 2 * W_COLUMNS; /* of a box of W: of a panel */
    static constexpr int W_BOX = FEATURES * W_ROW, X_BOX = ROWS * BOX_ROW,
                         W_BOXES = K / W_COLUMNS * W_TERMS; /* in the order of a block, the terms of a panel in turn */
    static constexpr int W_BYTES = W_BOXES * W_BOX, X_BOXES = PIECES * X_TERMS, X_BYTES = X_BOXES * X_BOX,
                         STAGE = W_BYTES + (LEVELS ? 2 : 1) * X_BYTES; /* behind x its second level */
    /* Even, so that a slot is always the same warpgroup's. Of an odd ring a warpgroup gets a slot that the other had
     * the round before; it would take that round, while its bytes are still on their way, for the one behind: a parity
     * tells apart two rounds, not three. */
    static constexpr int STAGES = RING_BYTES / STAGE / 2 * 2;
    static constexpr int SHARED = 1024 + STAGES * STAGE + ROWS * TILE_LD * 4;
    static constexpr int SUMS = ROWS / 2; /* of a thread */
    static constexpr int MIDDLE_SUMS =
        W_TERMS == 3 ? 2 * SUMS : 1; /* of W's second term of three, with x's first two */
    /* Whether sums of x's second level have registers of their own, beside those of the first, of W's last term and of
     * a stage; else they are added to those of the first stage by stage. */
    static constexpr bool APART = (2 + (W_TERMS > 1) + X_TERMS) * SUMS <= 128;
    static constexpr bool PROMOTE = X_TERMS + W_TERMS >
        2; /* terms are finite, and so are their sums: see rfi_unbiased. Stored values need not be */
    static_assert(APART || PROMOTE, "sums that are scaled");
    static_assert(W_TERMS < 3 || (X_TERMS == 3 && !LEVELS), "three terms on both sides, or on x's alone");
    static constexpr int W_BLOCK = W_TERMS * W_BOX, W_BLOCKS = K / W_COLUMNS; /* as they lie in memory */
    static_assert(FEATURES == RFI_BLOCK_ROWS, "a stage is whole blocks");
    static_assert(STAGES >= 4, "each warpgroup one to multiply and one to load");
    static_assert(SHARED <= SHARED_LIMIT, "more than a block may have");
};

/* Barriers and stages by address. */
struct Shared {
    uint32_t ring, full, full_second, empty; /* the second: of the second levels of x, where it has any */
    float *x_scale;                          /* (ROWS) */
    float *ratio;                            /* (ROWS), of the levels: see rfi_cuda_levels */
    uint32_t known;                          /* the barrier of `wide` */
    bool *wide;                              /* whether a row has two levels */
    float *tile;                             /* (ROWS, TILE_LD) */
    bool *last;                              /* whether this block is the last to finish */
    bool *irregular;                         /* whether there are rows for compute_irregular */
    bool *regular;                           /* and whether there are others */
    void *states;    /* (2, ROWS) of State: of each row this block's, and that of the block behind it in the cluster */
    uint32_t theirs; /* the barrier of the second */
    rfi_cuda_fold *fold; /* a copy of the parameters: a function that is not inlined reads them faster here, and the
                            first time no slower */
};

/* Where the producer is: stage k of a tile goes to `slot` of the ring, in the ring's `round`. */
template <class C> struct Walk {
    int tile, k, slot, round, stages;
    __device__ __forceinline__ void advance() {
        if (++slot == C::STAGES) slot = 0, round++;
        if (++k == stages) k = 0, tile += gridDim.x;
    }
};

/* The blocks of a cluster walk together, also where some have no tile: they share x. */
__device__ __forceinline__ bool is_there(const Parameters &p, int tile, int rank) { return tile - rank < p.tiles; }

/* The first block of a stage of W, which others follow a panel apart. */
template <class C> __device__ __forceinline__ const char *blocks_of(const Parameters &p, const Walk<C> &at) {
    const int tile =
        min(at.tile, p.tiles - 1); /* a block without a tile loads another's, and nobody reads the result */
    return (const char *)p.fold.product.w.data + (int64_t)tile * C::W_BLOCK + at.k * (C::W_BLOCKS * p.w_panel);
}

template <class C> __device__ __forceinline__ void load_w(const Parameters &p, const Shared &sh, const Walk<C> &at) {
    const uint32_t full = sh.full + 8 * at.slot, to = sh.ring + at.slot * C::STAGE;
    mbarrier_arrive_expect(full, C::W_BYTES + C::X_BOXES * BOX_ROW * (int)p.fold.product.batch);
    if (p.w_panel) {
        const char *from = blocks_of<C>(p, at);
#pragma unroll
        for (int i = 0; i < C::W_BLOCKS; i++)
            bulk_load_once(to + i * C::W_BLOCK, from + i * p.w_panel, C::W_BLOCK, full);
        return;
    }
#pragma unroll
    for (int i = 0; i < C::W_BOXES; i++)
        tma_load_once(to + i * C::W_BOX, &p.w[i % C::W_TERMS], full, at.k * C::K + i / C::W_TERMS * C::W_COLUMNS,
            at.tile * FEATURES);
}

/* Block r of a cluster loads boxes r, r + CLUSTER, ... of x, counted from the first slot of the ring on. */
template <class C> __device__ __forceinline__ bool loads_box(int slot, int box, int rank) {
    return (slot * C::X_BOXES + box - rank) % C::CLUSTER == 0;
}

template <class C> __device__ __forceinline__ bool loads_x(int slot, int rank) {
    bool loads = false;
#pragma unroll
    for (int i = 0; i < C::X_BOXES; i++) loads |= loads_box<C>(slot, i, rank);
    return loads;
}

template <class C> __device__ __forceinline__ void load_boxes(
    const Parameters &p, const Walk<C> &at, uint32_t to, uint32_t full, int column, int rank) {
#pragma unroll
    for (int i = 0; i < C::X_BOXES; i++)
        if (loads_box<C>(at.slot, i, rank))
            load_part(C::CLUSTER > 1, to + i * C::X_BOX, &p.x[i % C::X_TERMS], full, column + i / C::X_TERMS * BOX, 0,
                (1 << C::CLUSTER) - 1);
}

/* `wide`: with its second level. */
template <class C>
__device__ __forceinline__ void load_x(const Parameters &p, const Shared &sh, const Walk<C> &at, bool wide, int rank) {
    const uint32_t to = sh.ring + at.slot * C::STAGE + C::W_BYTES, second = sh.full_second + 8 * at.slot;
    load_boxes<C>(p, at, to, sh.full + 8 * at.slot, at.k * C::K, rank);
    if (!C::LEVELS || !wide) return;
    mbarrier_arrive_expect(second, C::X_BOXES * BOX_ROW * (int)p.fold.product.batch);
    load_boxes<C>(p, at, to + C::X_BYTES, second, (int)p.fold.product.x.level + at.k * C::K, rank);
}

/* Stages whose W is loaded before x is there: as many as the ring takes, of the first tile. */
template <class C> __device__ __forceinline__ int stages_ahead(const Parameters &p) { return min(p.stages, C::STAGES); }

/* W of these, and what comes next to the L2, while memory would have nothing to do. */
template <class C> __device__ __forceinline__ void load_ahead(const Parameters &p, const Shared &sh, int rank) {
    Walk<C> at = {(int)blockIdx.x, 0, 0, 0, p.stages};
    if (!is_there(p, at.tile, rank)) return;
#pragma unroll 1
    for (int i = 0; i < stages_ahead<C>(p); i++, at.advance()) load_w<C>(p, sh, at);
    if (!p.w_panel) return;
#pragma unroll 1
    for (int i = 0; i < PREFETCHED && is_there(p, at.tile, rank); i++, at.advance()) {
        const char *from = blocks_of<C>(p, at);
#pragma unroll
        for (int i = 0; i < C::W_BLOCKS; i++) bulk_prefetch(from + i * p.w_panel, C::W_BLOCK);
    }
}

/* What load_ahead has left. */
template <class C> __device__ __forceinline__ void produce(const Parameters &p, const Shared &sh, int rank) {
    Walk<C> at = {(int)blockIdx.x, 0, 0, 0, p.stages};
    bool wide = false;
    rfi_wait_for_previous();
    if (p.fold.product.levels.wide) {
        mbarrier_wait(sh.known, 0);
        wide = *sh.wide;
    }
    int ahead = stages_ahead<C>(p);
#pragma unroll 1
    for (; ahead && is_there(p, at.tile, rank); ahead--, at.advance()) load_x<C>(p, sh, at, wide, rank);
    if (p.fold.product.irregular) {
        mbarrier_wait(sh.known, 0);
        if (!*sh.regular) return; /* nobody wants the products */
    }
#pragma unroll 1
    for (; is_there(p, at.tile, rank); at.advance()) {
        if (at.round) mbarrier_wait(sh.empty + 8 * at.slot, (at.round - 1) & 1);
        load_w<C>(p, sh, at);
        load_x<C>(p, sh, at, wide, rank);
    }
}

/* A warp has read a slot: so says it to the producers that write there, its own block's with W and those of the cluster
 * that load what lies there of x. */
template <class C> __device__ __forceinline__ void release(const Shared &sh, int slot, int rank) {
    const int lane = threadIdx.x % 32;
    const uint32_t empty = sh.empty + 8 * slot;
    if (C::CLUSTER == 1) {
        if (lane == 0) mbarrier_arrive(empty);
    } else if (lane < C::CLUSTER && (lane == rank || loads_x<C>(slot, lane))) mbarrier_arrive_remote(empty, lane);
}

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

/* A block merges what it has of each row, and a pair of blocks what both have; pairs of words are left to the kernel
 * behind this one (finish.cu), of longer states the last to draw a ticket merges these. All states of the block's tiles
 * are written, and all consumers know it. */
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
    if constexpr (C::TOTALS > 1) {
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

/* By all consumers; there before any of them has passed another barrier. As memory, not as constants: of those a warp
 * reads one at a time. All but the results, which a fold does not write. */
__device__ __forceinline__ void copy_parameters(const rfi_cuda_fold &f, rfi_cuda_fold *to) {
    const uint64_t *from = (const uint64_t *)&f;
    asm volatile("" : "+l"(from));
    constexpr int WORDS = offsetof(rfi_cuda_fold, visitor.num_results) / sizeof *from;
    static_assert(offsetof(rfi_cuda_fold, visitor.num_results) % sizeof *from == 0, "whole words");
    for (int i = threadIdx.x; i < WORDS; i += CONSUMER_THREADS) ((uint64_t *)to)[i] = from[i];
}

template <class C> __device__ __forceinline__ void consume(const Parameters &p, const Shared &sh, int rank) {
    const rfi_cuda_fold &f = p.fold;
    /* By shuffle, so that the compiler sees that it is the same for a warp: descriptors then live in uniform registers.
     */
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0),
              feature = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    int slot = 0, round = 0;
    copy_parameters(f, sh.fold);
    rfi_wait_for_previous();
    static_assert(C::ROWS <= CONSUMER_THREADS, "a thread a row");
    if (threadIdx.x < f.product.batch) *(is_irregular(f.product, threadIdx.x) ? sh.irregular : sh.regular) = true;
    for (int r = threadIdx.x; r < C::ROWS; r += CONSUMER_THREADS) {
        sh.x_scale[r] = f.product.x.scale && r < f.product.batch ? f.product.x.scale[r] : 1;
        sh.ratio[r] = f.product.levels.wide && r < f.product.batch ? __ldcg(f.product.levels.ratio + r) : 0;
        if (sh.ratio[r] != 0) *sh.wide = true;
    }
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
        rfi_fold_tile<float, (C::ROWS > 32 ? 2 : 1), Put<C::TOTALS>>(*sh.fold, (const float *)sh.tile, TILE_LD, 0,
            (int)f.product.batch, column0, FEATURES, nullptr, threadIdx.x, CONSUMER_THREADS / 32,
            {(State<C::TOTALS> *)sh.states, is_single(p, gridDim.x)});
        barrier_sync(1, CONSUMER_THREADS); /* the tile is read, its states are written */
    }
    if (f.visitor.chain.reduction != RF_OP_NONE && !idle) finish<C>(p, sh, rank);
    barrier_sync(1, CONSUMER_THREADS); /* the ring is free */
    static_assert(
        IRREGULAR_BYTES<Of16Rows> <= C::STAGES * C::STAGE && IRREGULAR_BYTES<Of64Rows> <= C::STAGES * C::STAGE,
        "it fits where the ring was");
    if (__shfl_sync(~0u, (int)*sh.irregular, 0)) {
        uint8_t *const ring = (uint8_t *)sh.tile - C::STAGES * C::STAGE;
        if constexpr (C::ROWS <= irregular_tile::PLAIN_ROWS && C::W_TERMS < 3)
            compute_irregular<C::TOTALS, Of16Rows>(f, ring, C::STAGES * C::STAGE, threadIdx.x, 1);
        else compute_irregular<C::TOTALS, Of64Rows>(f, ring, C::STAGES * C::STAGE, threadIdx.x, 1);
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
    __shared__ State<C::TOTALS> states[2 * C::ROWS];
    __shared__ uint64_t theirs, known;
    __shared__ bool last, irregular, regular, wide;
    __shared__ rfi_cuda_fold fold;
    const uint32_t ring = (shared_address(raw) + 1023) & ~1023u; /* as the swizzle wants it */
    const Shared sh = {ring, shared_address(full), shared_address(full_second), shared_address(empty), x_scale, ratio,
        shared_address(&known), &wide, (float *)(raw + (ring - shared_address(raw)) + C::STAGES * C::STAGE), &last,
        &irregular, &regular, states, shared_address(&theirs), &fold};
    const int rank = C::CLUSTER > 1 ? cluster_rank() : 0;
    const bool produces = __shfl_sync(~0u, (int)threadIdx.x / 32, 0) ==
        CONSUMER_THREADS / 32; /* by shuffle, so that the compiler sees that it is the same for a warp */
    rfi_release_next();
    if (threadIdx.x == CONSUMER_THREADS) {
        irregular = regular = wide = false;
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
    if (produces && elect_lane()) load_ahead<C>(p, sh, rank);
    __syncwarp();
    if (C::CLUSTER > 1) cluster_sync(); /* the barriers of all blocks are there */
    if (!produces) consume<C>(p, sh, rank);
    else if (elect_lane()) produce<C>(p, sh, rank);
    __syncwarp();
    if (C::CLUSTER > 1) cluster_sync(); /* no block leaves while another may still write to it */
}

} // namespace small
} // namespace hopper
#endif
