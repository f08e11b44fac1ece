/* SPDX-License-Identifier: MIT */
/* The ring of stages of the kernel for few rows: what a stage is, and the thread that has it filled. */
#ifndef ROWFOLD_CUDA_SM90_SMALL_RING_CUH
#define ROWFOLD_CUDA_SM90_SMALL_RING_CUH

#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "sm90/fold.cuh"

namespace hopper {
namespace small {

constexpr int FEATURES = 64; /* of a tile */
constexpr int CONSUMER_THREADS = 2 * 128;
constexpr int BOX = 64, BOX_ROW = 2 * BOX; /* columns of a box of x, and its bytes a row: the width of the swizzle */
constexpr int RING_BYTES = 200 * 1024;     /* at most */
constexpr int PREFETCHED =
    8; /* stages behind the ring's first round that are fetched to the L2: 16 MB of it, by all blocks */
constexpr int FETCHED_BYTES = 2048;   /* of a row of W that is waited for: twice as much takes longer */
constexpr int TILE_LD = FEATURES + 4; /* see rfi_fold_tile */

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
    static constexpr int SUMS = ROWS / 2;            /* of a thread */
    static constexpr int FOLDED = ROWS > 32 ? 2 : 1; /* rows of a lane at once */
    static constexpr int MIDDLE_SUMS =
        W_TERMS == 3 ? 2 * SUMS : 1; /* of W's second term of three, with x's first two */
    /* Whether sums of x's second level have registers of their own, beside those of the first, of W's last term and of
     * a stage; else they are added to those of the first stage by stage. */
    static constexpr bool APART = (2 + (W_TERMS > 1) + X_TERMS) * SUMS <= 128;
    static constexpr bool PROMOTE = X_TERMS + W_TERMS > 2;
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
    bool *lone;                              /* whether one has a value that outweighs all others */
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
    int tile, k, slot, round;
    __device__ __forceinline__ void advance(const Parameters &p) {
        if (++slot == C::STAGES) slot = 0, round++;
        if (++k == p.stages) k = 0, tile += gridDim.x;
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

/* The beginnings of the rows of the first tile to the L2, by a warp: of W that must not be loaded yet. What is written
 * later is written there, too. */
__device__ __forceinline__ void fetch_rows(const Parameters &p) {
    const rfi_cuda_product &f = p.fold.product;
    const uint32_t bytes = (uint32_t)min(f.depth * 2, (int64_t)FETCHED_BYTES) & ~15u;
#pragma unroll
    for (int i = threadIdx.x % 32; i < FEATURES; i += 32) {
        const int64_t row = (int64_t)blockIdx.x * FEATURES + i;
        if (row < f.out_features && bytes) bulk_prefetch((const uint16_t *)f.w.data + row * f.w.ld, bytes);
    }
}

/* Stages whose W is loaded before x is there: as many as the ring takes, of the first tile. */
template <class C> __device__ __forceinline__ int stages_ahead(const Parameters &p) {
    return awaits_w(p.fold) ? 0 : min(p.stages, C::STAGES);
}

/* W of these, and what comes next to the L2, while memory would have nothing to do. */
template <class C> __device__ __forceinline__ void load_ahead(const Parameters &p, const Shared &sh, int rank) {
    Walk<C> at = {(int)blockIdx.x, 0, 0, 0};
    if (!is_there(p, at.tile, rank)) return;
#pragma unroll 1
    for (int i = 0; i < stages_ahead<C>(p); i++, at.advance(p)) load_w<C>(p, sh, at);
    if (!p.w_panel) return;
#pragma unroll 1
    for (int i = 0; i < PREFETCHED && is_there(p, at.tile, rank); i++, at.advance(p)) {
        const char *from = blocks_of<C>(p, at);
#pragma unroll
        for (int i = 0; i < C::W_BLOCKS; i++) bulk_prefetch(from + i * p.w_panel, C::W_BLOCK);
    }
}

/* What load_ahead has left. */
template <class C> __device__ __forceinline__ void produce(const Parameters &p, const Shared &sh, int rank) {
    Walk<C> at = {(int)blockIdx.x, 0, 0, 0};
    bool wide = false;
    rfi_wait_for_previous();
    if (p.fold.product.levels.wide) {
        mbarrier_wait(sh.known, 0);
        wide = *sh.wide;
    }
    int ahead = stages_ahead<C>(p);
#pragma unroll 1
    for (; ahead && is_there(p, at.tile, rank); ahead--, at.advance(p)) load_x<C>(p, sh, at, wide, rank);
    if (p.fold.product.irregular) {
        mbarrier_wait(sh.known, 0);
        if (!*sh.regular) return; /* nobody wants the products */
    }
#pragma unroll 1
    for (; is_there(p, at.tile, rank); at.advance(p)) {
        if (at.round) mbarrier_wait(sh.empty + 8 * at.slot, (at.round - 1) & 1);
        load_w<C>(p, sh, at);
        load_x<C>(p, sh, at, wide, rank);
    }
}

/* A warp has read a slot: so says it to the producers that write there, its own block's with W and those of the cluster
 * that load what lies there of x. */
template <class C> __device__ __forceinline__ void release(const Shared &sh, int slot, int rank) {
    const uint32_t empty = sh.empty + 8 * slot;
    if (C::CLUSTER == 1) {
        if (elect_lane()) mbarrier_arrive(empty); /* a thread's number may lie in memory: hopper.md 127 */
        return;
    }
    const int lane = threadIdx.x % 32;
    if (lane < C::CLUSTER && (lane == rank || loads_x<C>(slot, lane))) mbarrier_arrive_remote(empty, lane);
}

} // namespace small
} // namespace hopper
#endif
