/* SPDX-License-Identifier: MIT */
/* Of the kernels for groups of rows: what they are compiled for, the tiles of a cluster, and the ring of stages with
 * the threads that have it filled. */
#ifndef ROWFOLD_CUDA_SM90_TURNED_RING_CUH
#define ROWFOLD_CUDA_SM90_TURNED_RING_CUH

#include "common/epilogue.cuh"
#include "sm90/fold.cuh"
#include "turned.h"

namespace hopper {
namespace turned {

constexpr int CONSUMER_THREADS = 2 * 128, BLOCK_THREADS = CONSUMER_THREADS + 128;
constexpr int FEATURES = RFI_TURNED_COLUMNS, HALF = FEATURES / 2; /* of a tile, and of a warpgroup */
constexpr int K = 64, ROW = 2 * K; /* columns of a stage, and bytes of a row of it: the swizzle's */
constexpr int BOXES = 2;           /* of x in a stage, and rows of one at most */
constexpr int MOST_BOX_ROWS = 256;
constexpr int W_BYTES = FEATURES * ROW;
constexpr int RING_BYTES = 210 * 1024;          /* at most */
constexpr int NEAR_STAGES = 12, NEAR_ROWS = 96; /* of W that are asked for ahead, to the L2, and of a group at most:
                                                   with more rows memory is not what a call waits for */
constexpr int64_t NEAR_BYTES = 40 << 20;        /* of W at most, which the L2 holds beside what else is there */
constexpr int TILE_BARRIER = 1;                 /* by name, of all consumers */
constexpr int COPIED_BARRIER = 2;               /* of these and the warp that rehearses: the parameters are copied */
constexpr int EIGHT_BYTES = 8 * FEATURES * 4;   /* of the sums of eight rows */

struct Parameters {
    CUtensorMap x[BOXES], w;    /* of the boxes of a group's rows; of W unless that is in blocks */
    int32_t box_rows[BOXES];    /* whole eights in the first of two; 0: there is none */
    int32_t group_rows, groups; /* of the batch */
    int32_t stages, tiles;      /* of K, of a block; of features */
    int32_t last_stages;        /* of the last of more than two */
    int32_t halves;             /* the blocks of a cluster share out K */
    int32_t w_near;             /* stages of W behind the ring that are asked for ahead */
    int64_t w_panel;            /* bytes of a panel of W, if that is in blocks */
    rfi_cuda_fold fold;
};

/* PARTS products of NT rows each. More than two blocks of a cluster share out K, of two p.halves says whether. ANSWERS:
 * for states of rfi_answers, which a single logit shows in. */
template <bool BF16_, int NT_, int PARTS_, int CLUSTER_, bool ANSWERS_> struct Config {
    static constexpr bool BF16 = BF16_, TF32 = false, ANSWERS = ANSWERS_;
    static constexpr int CLUSTER = CLUSTER_;
    static constexpr bool BY_ROWS = CLUSTER > 2;                      /* what a block finishes */
    static constexpr int NT = NT_, PARTS = PARTS_, ROWS = NT * PARTS; /* of a group at most: what lies in the place of
                                   those that are not there is multiplied as it is, and nobody reads the result */
    static constexpr int STAGE = W_BYTES + ROWS * ROW, STAGES = RING_BYTES / STAGE;
    static constexpr int SUMS = NT / 2;                                  /* of a thread and a product */
    static constexpr bool IN_TURN = ANSWERS && ROWS > 80;                /* see take_turn */
    static constexpr int TURN_BARRIER = 3;                               /* and 4 */
    static constexpr int EIGHTS = ROWS / 8;                              /* of rows: a thread has four sums of each */
    static constexpr int MOST_EIGHTS = (EIGHTS + CLUSTER - 1) / CLUSTER; /* of what a block finishes, BY_ROWS */
    static constexpr int TOTALS = ANSWERS ? rfi_answers::TOTALS : 1;     /* of a state */
    /* With low tiles BY_ROWS a warp goes through the fold beforehand, for which it needs registers. */
    static constexpr bool REHEARSES = BY_ROWS && ROWS <= RFI_TURNED_LOW_ROWS;
    static constexpr int RAISED = REHEARSES ? 176 : 240, LOWERED = REHEARSES ? 152 : 24;
    static constexpr int FOLDED = /* rows of a lane at once: then the warps have one turn with a tile, or few */
        BY_ROWS       ? MOST_EIGHTS > 10 ? 5 : (MOST_EIGHTS + 1) / 2
        : ROWS <= 64  ? 2
        : ROWS <= 96  ? 3
        : ROWS <= 128 ? 4
                      : 5;
    /* In some tiles what a plain fold asks for would take uniform registers from descriptors; in the highest its being
     * rehearsed, too. */
    static constexpr bool COPIES = PARTS > 1 || (ANSWERS && BY_ROWS && ROWS == 112), AHEAD = ROWS <= 288;
    static constexpr int EACH = BY_ROWS ? (MOST_EIGHTS + 1) / 2 : (ROWS + 31) / 32,
                         MOST = ANSWERS ? 3
        : ROWS > 256                    ? 4
                                        : 6,
                         TURNS = (EACH + MOST - 1) / MOST,
                         FOLDED_PLAIN = (EACH + TURNS - 1) / TURNS; /* the same of a plain fold, for which a lane has so
                                                                       many rows in all */
    static constexpr int SENT_BYTES =
        BY_ROWS ? CLUSTER * MOST_EIGHTS * EIGHT_BYTES : ROWS * HALF * 4; /* to the block that finishes them, at most */
    static constexpr int TILE_BYTES = (BY_ROWS ? MOST_EIGHTS * 8 : ROWS) * (FEATURES + 4) * 4; /* see tile_ld */
    static constexpr int SHARED = 1024 + (STAGES * STAGE > TILE_BYTES ? STAGES * STAGE : TILE_BYTES);
    static constexpr int TURN = 4 * FOLDED_PLAIN, /* rows: what lies behind the last may be read, and is not used */
        READ = ((BY_ROWS ? MOST_EIGHTS * 8 : ROWS) + TURN - 1) / TURN * TURN * (FEATURES + 4) * 4;
    static_assert(STAGES > 2 && STAGE % 1024 == 0 && NT % 8 == 0, "as the swizzle wants it");
    static_assert((BY_ROWS ? SENT_BYTES : 0) + READ <= SHARED - 1024 && SENT_BYTES <= STAGES * STAGE &&
            SHARED < SHARED_LIMIT - 8192,
        "there is room");
};

typedef uint32_t Address; /* in shared memory */

/* Barriers and stages. */
struct Shared {
    Address ring, full, empty, folded; /* the last: nobody of the cluster reads a tile any more in this place */
    Address drained, arrived;          /* of what blocks send others: there is room for it there; it is here */
    float *tile;                       /* where the ring is */
    float *bias;                       /* of the tile's columns: see fetch_bias */
    rfi_cuda_fold *fold;               /* a copy of the parameters: see copy_parameters */
};

/* Tiles of clusters, in all groups. */
template <class C> __host__ __device__ __forceinline__ int cluster_tiles(const Parameters &p) {
    return (C::BY_ROWS || p.halves ? p.tiles : (p.tiles + 1) / C::CLUSTER) * p.groups;
}

/* The tiles of a cluster in turn: those of all groups of rows with the same features are side by side. */
struct Walk {
    int at, count; /* of cluster_tiles; tiles before it */
    template <class C> __device__ __forceinline__ bool is_there(const Parameters &p) const {
        return at < cluster_tiles<C>(p);
    }
    template <class C> __device__ __forceinline__ bool is_last(const Parameters &p) const {
        return at + (int)gridDim.x / C::CLUSTER >= cluster_tiles<C>(p);
    }
    template <class C> __device__ __forceinline__ void advance() { at += gridDim.x / C::CLUSTER, count++; }
    __device__ __forceinline__ int group(const Parameters &p) const { return at % p.groups; }
    template <class C> __device__ __forceinline__ int tile(const Parameters &p, int rank) const {
        return C::BY_ROWS || p.halves ? at / p.groups : at / p.groups * C::CLUSTER + rank;
    }
};
template <class C> __device__ __forceinline__ Walk first_of() { return {(int)blockIdx.x / C::CLUSTER, 0}; }

/* The ring as one goes round it. */
struct Ring {
    int slot, round;
    template <class C> __device__ __forceinline__ void advance() {
        if (++slot == C::STAGES) slot = 0, round++;
    }
};

/* This block's first stage of K, and how many it has. Both halves have as many, of which those behind K are all zeros:
 * what differs between the blocks the compiler takes for different within a warp, and does not count in uniform
 * registers. Of more parts the last has what the others leave: there a shuffle says that it does not differ. */
template <class C> __device__ __forceinline__ int first_stage(const Parameters &p, int rank) {
    return C::BY_ROWS || p.halves ? rank * p.stages : 0;
}

template <class C> __device__ __forceinline__ int stages_of(const Parameters &p, int rank) {
    return C::BY_ROWS ? __shfl_sync(~0u, rank == C::CLUSTER - 1 ? p.last_stages : p.stages, 0) : p.stages;
}

/* The threads that drive copies have no time to lose: what a stage is loaded from is counted on, not computed anew. One
 * of them loads W: `ahead`, what the ring takes of the first tile, and then the rest. A block without features loads
 * another's. While the kernel in front ends memory has little to do: more of a small W is asked for then. */
template <class C>
__device__ __forceinline__ void produce_w(const Parameters &p, const Shared &sh, int rank, int stages, bool ahead) {
    constexpr int BLOCKS = FEATURES / RFI_BLOCK_ROWS, BLOCK = RFI_BLOCK_ROWS * ROW;
    const rfi_cuda_product &f = p.fold.product;
    const uint64_t policy = policy_of(p.groups == 1);
    const bool awaits = awaits_w(p.fold);
    const int fetched = awaits ? 0 : min(stages, C::STAGES);
    if (awaits && ahead) return;
    if (awaits) rfi_wait_for_previous();
    Ring ring = {0, 0};
    for (Walk walk = first_of<C>(); walk.template is_there<C>(p); walk.template advance<C>()) {
        const int tile = min(walk.template tile<C>(p, rank), p.tiles - 1),
                  skipped = !ahead && !walk.count ? fetched : 0, first = first_stage<C>(p, rank) + skipped,
                  end = first_stage<C>(p, rank) + (ahead ? fetched : stages);
        const uint32_t bytes =
            p.w_panel ? min(BLOCKS, (int)(f.w.ld / RFI_BLOCK_ROWS) - tile * BLOCKS) * BLOCK : W_BYTES;
        const char *from = (const char *)f.w.data + (int64_t)tile * W_BYTES + first * p.w_panel;
        if (walk.count) mbarrier_wait(sh.folded, (walk.count - 1) & 1);
        if (skipped) ring = {skipped % C::STAGES, skipped / C::STAGES};
#pragma unroll 1
        for (int k = first; k < end; k++, from += p.w_panel, ring.advance<C>()) {
            const Address full = sh.full + 8 * ring.slot, to = sh.ring + ring.slot * C::STAGE;
            if (ring.round) mbarrier_wait(sh.empty + 8 * ring.slot, (ring.round - 1) & 1);
            mbarrier_arrive_expect(full, bytes);
            if (p.w_panel) bulk_load(to, from, bytes, full, policy);
            else tma_load(to, &p.w, full, k * K, tile * FEATURES);
        }
        if (!ahead) continue;
        const int near = walk.template is_last<C>(p) ? min(p.w_near, stages - fetched) : 0;
#pragma unroll 1
        for (int k = 0; k < near; k++, from += p.w_panel) bulk_prefetch(from, bytes);
        return;
    }
    /* No block leaves while another may still write to it: what both say of its slots has come. */
    for (int i = 0; !(C::BY_ROWS || p.halves) && i < C::STAGES; i++, ring.advance<C>())
        if (ring.round) mbarrier_wait(sh.empty + 8 * ring.slot, (ring.round - 1) & 1);
}

/* Another x: all of a group's rows, or SHARED, this block's box for both. */
template <class C, bool SHARED>
__device__ __forceinline__ void produce_x(const Parameters &p, const Shared &sh, int rank, int stages) {
    const int bytes = (p.box_rows[0] + p.box_rows[1]) * ROW, box = SHARED ? rank : 0, before = box * p.box_rows[0],
              second = SHARED ? 0 : p.box_rows[1], first = first_stage<C>(p, rank) * K, end = first + stages * K;
    const Address to = sh.ring + W_BYTES + before * ROW;
    const bool loads = p.box_rows[box];
    Ring ring = {0, 0};
    rfi_wait_for_previous();
    for (Walk walk = first_of<C>(); walk.template is_there<C>(p); walk.template advance<C>()) {
        const int row = walk.group(p) * p.group_rows + before;
        if (walk.count) mbarrier_wait(sh.folded, (walk.count - 1) & 1);
#pragma unroll 1
        for (int column = first; column < end; column += K, ring.advance<C>()) {
            const Address full = sh.full + 8 * ring.slot, at = to + ring.slot * C::STAGE;
            if (ring.round) mbarrier_wait(sh.empty + 8 * ring.slot, (ring.round - 1) & 1);
            mbarrier_arrive_expect(full, bytes);
            if (SHARED) {
                if (loads) tma_load_multicast(at, &p.x[box], full, column, row, (1 << C::CLUSTER) - 1);
            } else {
                tma_load(at, &p.x[0], full, column, row);
                if (C::ROWS > MOST_BOX_ROWS && second)
                    tma_load(at + MOST_BOX_ROWS * ROW, &p.x[1], full, column, row + MOST_BOX_ROWS);
            }
        }
    }
}

/* A warp has read a slot, to which both blocks of two bring x, or this one alone. */
template <class C> __device__ __forceinline__ void release(const Parameters &p, const Shared &sh, int slot, int rank) {
    const int lane = threadIdx.x % 32;
    if (lane < C::CLUSTER && (lane == rank || !(C::BY_ROWS || p.halves)))
        mbarrier_arrive_remote(sh.empty + 8 * slot, lane);
}

} // namespace turned
} // namespace hopper
#endif
