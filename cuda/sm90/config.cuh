/* SPDX-License-Identifier: MIT */
/* What the parts of a Hopper kernel agree on: the tiles, what lies where in shared memory, and the parameters of a
 * launch. */
#ifndef ROWFOLD_CUDA_SM90_CONFIG_CUH
#define ROWFOLD_CUDA_SM90_CONFIG_CUH

#include <cuda.h>

#include "choose.h"
#include "sm90/ptx.cuh"
#include "kernels.h"
#include "common/launch.cuh"
#include "common/states.cuh"

namespace hopper {

constexpr int GROUP = RFI_SM90_GROUP; /* states of a row that are merged at a time, where they are many */
constexpr int CHUNK = 16; /* accumulators at most that a thread takes through the steps at a time: the branch on a step
                             is paid once for these */
constexpr int CONSUMERS = 2; /* warpgroups that multiply */
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int LEVEL_WORDS = 32;      /* of the map of tiles whose rows have two levels */
constexpr int COUNTED_TILES = 64;    /* tiles of rows of a cluster whose irregular rows are counted */
constexpr int HANDED_OUT = 4;        /* tiles that a cluster knows of at a time */
constexpr int SHARED_LIMIT = 232448; /* of a block, less what is declared statically */

struct Parameters {
    CUtensorMap x[3], w[3];           /* of their terms; a box is what one block loads of a stage */
    CUtensorMap x_rest[3], w_rest[3]; /* the same for the last rows, where they do not fill a box */
    int32_t x_rest_rows, w_rest_rows; /* of a box of these: hardly more than there are, for TMA takes longer for rows
                                         outside than for others (hopper.md 92) */
    int32_t stages;                   /* of a tile, for each level of x */
    int32_t w_column,
        w_block; /* what a stage adds to the first and third coordinate of a box of W: see encode_blocks */
    int32_t m_tiles, n_tiles, first_tile; /* n_tiles of a row from that one on */
    int32_t m_group;                      /* clusters of row tiles that are walked before the next columns */
    int32_t slots;                        /* states of a row */
    int32_t group_slot;                   /* where the states of groups of them begin */
    rfi_cuda_fold fold;
};

/* ANSWERS: for states of rfi_answers and row inputs, in place of pairs. SEARCHES: with what goes beside the fold, which
 * takes registers. STORES: logits are stored, and nothing is folded. */
template <int X_TERMS_, int W_TERMS_, bool BF16_, int BM_, int BN_, int CLUSTER_M_, int CLUSTER_N_, bool ANSWERS_,
    bool SEARCHES_, bool STORES_ = false, bool TF32_ = false>
struct Config {
    static constexpr int X_TERMS = X_TERMS_,
                         W_TERMS = W_TERMS_; /* 16-bit terms that a value of x and of W is the sum of */
    static constexpr bool BF16 = BF16_;
    static constexpr bool TF32 = TF32_;              /* one term, of 32 bits, */
    static constexpr int UNITS = TF32_ ? 2 : 1;      /* which counts as two columns of 16 */
    static constexpr bool LEVELS = !BF16_ && !TF32_; /* rows of x may have two */
    static constexpr int BM = BM_, BN = BN_, CLUSTER_M = CLUSTER_M_, CLUSTER_N = CLUSTER_N_;
    static constexpr int ORDER =
        X_TERMS > W_TERMS ? X_TERMS : W_TERMS; /* products of terms i and j are taken where i + j is below */
    static constexpr int PRODUCTS = X_TERMS == 3 && W_TERMS == 3 ? 6 : X_TERMS + W_TERMS - 1;
    static constexpr bool ROW_INPUTS = ANSWERS_, SEARCHES = SEARCHES_;
    static constexpr bool STORES = STORES_;
    static constexpr bool ASKS_BY_SHUFFLE = SEARCHES_ || STORES_; /* see are_there */
    static constexpr int TOTALS = ANSWERS_ ? rfi_answers::TOTALS : 1;
    static constexpr bool AHEAD =
        PRODUCTS == 1 && !SEARCHES && !STORES && TOTALS == 1 && BN <= 128; /* see goes_ahead */
    static constexpr bool MERGES = TOTALS > 1; /* states of a row, if the launch has tickets: pairs never have */
    static constexpr bool PROMOTE =
        PRODUCTS > 1 || ANSWERS_; /* what a stage gives is added to float32 registers: the tensor cores truncate when
                                     they add, which a result shows that is one logit */

    static constexpr int DEPTH = PROMOTE && PRODUCTS == 1 ? 2 : 1; /* stages that the tensor cores add before that */
    static_assert(DEPTH <= 2, "two are told apart");
    static constexpr bool REGAINS = DEPTH == 2 && !TF32;
    static constexpr bool IN_TURN = PRODUCTS == 2 || (ANSWERS_ && PRODUCTS == 1 && BM == 128 && BN == 128); /* the
                                   consumers: see take_turn. With so few products, or such tiles, they may fall into
                                   adding at once */
    static constexpr int TURN_BARRIER = 6;

    static constexpr int K = PRODUCTS > 3           ? 16
        : W_TERMS == 1 && (X_TERMS < 3 || BM == 64) ? 64
                                                    : 32;         /* columns of x and W in a stage */
    static constexpr int PARTS = K == 64 && PRODUCTS > 2 ? 2 : 1; /* of a stage, promoted one after the other: tiles of
                                                                     all sizes add as many columns, for the same bits */
    static_assert(PARTS == 1 || (PROMOTE && DEPTH == 1), "two groups on their way are told apart");
    static constexpr int ROW = 2 * K; /* bytes of a row of a term in a stage, and the width of the swizzle */
    static constexpr int A_TERM = BM * ROW, B_TERM = BN * ROW;
    static constexpr int A_BYTES = X_TERMS * A_TERM, B_BYTES = W_TERMS * B_TERM, STAGE = A_BYTES + B_BYTES;
    static constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
    static constexpr int SPLITS = BM == 64 ? 2 : 1;           /* warpgroups side by side along the columns */
    static constexpr int WN = BN / SPLITS;                    /* columns of a warpgroup */
    static constexpr int NT = PROMOTE && WN > 128 ? 128 : WN; /* columns of one wgmma */
    static constexpr int SUMS = WN / 2;                       /* accumulators of a thread */
    static constexpr int COLUMN_ROWS = 2 + RFI_SM90_VECTORS;  /* scale, bias, vectors */
    static constexpr int COLUMN_BYTES = COLUMN_ROWS * BN * 4;
    static constexpr int OTHER = 1024 + 2 * COLUMN_BYTES + 1024;
    static constexpr int STAGES = (SHARED_LIMIT - OTHER) / STAGE / DEPTH * DEPTH;
    static constexpr int SHARED = OTHER - 1024 + STAGES * STAGE;
    static_assert(BM == 64 || BM == 128, "a consumer has 64 rows");
    static_assert(STAGES >= 3, "loading, multiplying and being released at the same time");
};

/* Shared memory; barriers and stages by address. */
template <class C> struct Shared {
    uint32_t stages, full, empty, columns_full, columns_empty, drawn, tile_full, tile_empty;
    const uint64_t *tiles; /* handed out: see pack */
    float *columns;        /* two buffers of COLUMN_ROWS x BN */
    uint32_t
        *last; /* for each consumer, two tiles in turn and the groups: whether the ticket drawn for it was the last */
    uint32_t *irregular; /* whether there are rows for compute_irregular */
    uint32_t *wide;      /* (LEVEL_WORDS): see is_wide */
    uint32_t *left_out;  /* (COUNTED_TILES): see is_idle */
    uint32_t *lone;      /* whether rows have a value that outweighs all others */
    uint32_t wide_known; /* the barrier of these */
    __device__ __forceinline__ uint8_t *ring() const { return (uint8_t *)columns - C::STAGES * C::STAGE; }
};

/* Barriers by name. 0 is that of __syncthreads. */
constexpr int CONSUMERS_BARRIER = 1 + 2 * CONSUMERS;                                /* of both consumers' threads */
__device__ __forceinline__ int own_barrier(int warpgroup) { return 1 + warpgroup; } /* of a consumer's threads */
__device__ __forceinline__ int written_barrier(int warpgroup) {
    return 1 + CONSUMERS + warpgroup;
} /* a consumer has written its states */

/* Whether a launch of the call's own lies between what is in front of the call and the fold: words are cleared there,
 * or terms made, and it lets the fold begin once W may be read (rfi_begin). */
__host__ __device__ __forceinline__ bool follows_own(const rfi_cuda_fold &f) {
    return f.schedule.next_tile || f.product.x.scale;
}

/* Whether the kernel in front may still be writing W, which then is in rows: it is not to be loaded before that has
 * finished. */
__device__ __forceinline__ bool awaits_w(const rfi_cuda_fold &f) {
    return f.schedule.w_in_flight && !f.schedule.apart && !follows_own(f);
}

struct Tile {
    int m, n;
};

/* A tile as it is handed out; one with m below 0 ends the walk. */
__device__ __forceinline__ uint64_t pack(Tile tile) { return (uint64_t)(uint32_t)tile.n << 32 | (uint32_t)tile.m; }
__device__ __forceinline__ Tile unpack(uint64_t packed) { return {(int)(uint32_t)packed, (int)(packed >> 32)}; }

template <class C> __device__ __forceinline__ int num_tiles(const Parameters &p) {
    return ((p.m_tiles + C::CLUSTER_M - 1) / C::CLUSTER_M) * ((p.n_tiles + C::CLUSTER_N - 1) / C::CLUSTER_N);
}

/* Tile `index` of all, as the first block of a cluster has it. */
template <class C> __device__ __forceinline__ Tile tile_at(const Parameters &p, int index) {
    if (index >= num_tiles<C>(p)) return {-1, 0};
    int m_clusters = (p.m_tiles + C::CLUSTER_M - 1) / C::CLUSTER_M,
        n_clusters = (p.n_tiles + C::CLUSTER_N - 1) / C::CLUSTER_N;
    int group = index / (p.m_group * n_clusters), rest = index - group * p.m_group * n_clusters;
    int height = min(p.m_group, m_clusters - group * p.m_group);
    int m = group * p.m_group + rest % height, n = rest / height;
    return {m * C::CLUSTER_M, p.first_tile + n * C::CLUSTER_N};
}

/* Where a role of a block is on the walk of its cluster: at a tile, after `count` others. */
struct Walk {
    Tile tile; /* the first block's */
    uint32_t count;
    __device__ __forceinline__ bool is_there() const { return tile.m >= 0; }
    template <class C> __device__ __forceinline__ Tile of(int rank) const {
        return {tile.m + rank % C::CLUSTER_M, tile.n + rank / C::CLUSTER_M};
    }
};

template <class C> __device__ __forceinline__ Walk first_tile(const Parameters &p) {
    return {tile_at<C>(p, blockIdx.x / C::CLUSTER), 0};
}

/* Whether states are merged by this kernel, of those that can: the last to write one of a row is known by its ticket.
 */
__device__ __forceinline__ bool draws_tickets(const rfi_cuda_fold &f) { return f.schedule.tickets != NULL; }

/* Whether a row's only state is finished by who writes it: that needs no ticket. */
template <class C> __host__ __device__ __forceinline__ bool finishes_alone(const Parameters &p) {
    return C::MERGES && p.slots == 1;
}

template <class C> __device__ __forceinline__ bool reduces(const Parameters &p) {
    return !C::STORES && p.fold.visitor.chain.reduction != RF_OP_NONE;
}

/* Warps of a block that take_next is for. */
template <class C> __device__ __forceinline__ int tile_readers(const Parameters &p) {
    return 4 * CONSUMERS + 1 + (C::MERGES && reduces<C>(p) ? CONSUMERS : 0);
}

/* Whether a row of those that a cluster computes with this block has two levels (see rfi_cuda_levels): they go through
 * K together, for they share W. Some that share a bit of the map may be told so though they have none, which takes time
 * and changes nothing. */
template <class C> __device__ __forceinline__ uint32_t levels_bit(int m) {
    return (uint32_t)(m / C::CLUSTER_M) % (32 * LEVEL_WORDS);
}
template <class C> __device__ __forceinline__ bool is_wide(const Shared<C> &sh, int m) {
    return sh.wide[levels_bit<C>(m) / 32] >> levels_bit<C>(m) % 32 & 1;
}

/* Whether rows can be irregular. By shuffle, so that the compiler sees that it is the same for a warp: else the loop
 * over products spills (hopper.md 12). */
__device__ __forceinline__ bool may_be_irregular(const Parameters &p) {
    return __shfl_sync(~0u, (int)(p.fold.product.irregular != nullptr), 0);
}

/* Looks for rows with two levels, of which it fills the map, for some with a value that outweighs all others, and for
 * irregular ones, which it counts by tiles; by `threads` threads. Whether this one has seen one of the last. x is
 * loaded only then: of several rows everything is asked for at once. */
template <class C>
__device__ __forceinline__ bool find_unusual(const rfi_cuda_product &f, const Shared<C> &sh, int thread, int threads) {
    constexpr int AT_ONCE = 4;
    static_assert(C::BM % AT_ONCE == 0 && RFI_LEVEL_ROWS % AT_ONCE == 0, "those of levels in one piece");
    if (!f.irregular) return false;
    bool found = false;
    for (int64_t first = 0; first < f.batch; first += AT_ONCE * threads) {
        const int64_t four = first + AT_ONCE * thread;
        const uint32_t wide = f.levels.wide && four < f.batch ? __ldcg((const uint32_t *)(f.levels.wide + four)) : 0;
        uint8_t irregular[AT_ONCE];
        int32_t lone = -1;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int64_t row = min(first + i * threads + thread, f.batch - 1);
            irregular[i] = f.irregular[row];
            if (f.lone) lone = max(lone, f.lone[row].column);
        }
        if (lone >= 0) *sh.lone = 1;
        if (wide) {
            const uint32_t bit = levels_bit<C>((int)(four / C::BM));
            atomicOr(sh.wide + bit / 32, 1u << bit % 32);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int64_t row = first + i * threads + thread;
            if (row >= f.batch || !irregular[i]) continue;
            found = true;
            if (row < (int64_t)COUNTED_TILES * C::BM * C::CLUSTER_M)
                atomicAdd(sh.left_out + row / (C::BM * C::CLUSTER_M), 1u);
        }
    }
    return found;
}

/* Whether all rows that a cluster computes with this block, which `m` says of its first, are irregular: nobody wants
 * their products. */
template <class C> __device__ __forceinline__ bool is_idle(const Parameters &p, const Shared<C> &sh, int m) {
    const int tile = m / C::CLUSTER_M;
    return tile < COUNTED_TILES &&
        sh.left_out[tile] == min(p.fold.product.batch - (int64_t)m * C::BM, (int64_t)C::BM * C::CLUSTER_M);
}

/* Stages of a tile, the one after `count` others, of each level: of an idle one those of which W may be on its way
 * already. */
template <class C> __device__ __forceinline__ int stages_of(const Parameters &p, bool idle, uint32_t count) {
    return !idle ? p.stages : count ? 0 : min(p.stages, C::STAGES);
}

/* To the tile that the first block's producer hands out next, for a whole warp. By shuffle, so that the compiler sees
 * that all lanes get the same. The slot is free for the next tile once this has arrived in the first block, by a way
 * that may be faster than the read of the slot, which nothing else waits for. So the address of the barrier depends on
 * what was read: n is never negative. */
template <class C> __device__ __forceinline__ void take_next(const Shared<C> &sh, Walk &walk) {
    const uint32_t slot = walk.count % HANDED_OUT, phase = walk.count / HANDED_OUT % 2;
    mbarrier_wait(sh.tile_full + 8 * slot, phase);
    walk.tile = unpack(sh.tiles[slot]);
    walk.tile.m = __shfl_sync(~0u, walk.tile.m, 0);
    walk.tile.n = __shfl_sync(~0u, walk.tile.n, 0);
    if (threadIdx.x % 32 == 0) mbarrier_arrive_remote(sh.tile_empty + 8 * slot + ((uint32_t)walk.tile.n >> 31), 0);
    walk.count++;
}

/* What a consumer thread is. */
struct Place {
    int warpgroup, thread; /* of the consumers; of the warpgroup */
    int row, column;       /* first row and column of this thread in the warpgroup's part of the tile */
    int rank;              /* of the block in its cluster */
};

} // namespace hopper
#endif
