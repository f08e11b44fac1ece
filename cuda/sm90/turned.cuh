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
    const int fetched = min(stages, C::STAGES);
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

/* Where a plain fold reads the parameters. */
template <class C> __device__ __forceinline__ const rfi_cuda_fold &folded(const Parameters &p, const Shared &sh) {
    return C::COPIES ? *sh.fold : p.fold;
}

/* The bias of a tile's columns, for a plain fold: asked for before what is sent comes, in shared memory behind it. */
__device__ __forceinline__ float fetch_bias(const rfi_cuda_fold &f, int64_t column0, int features) {
    const int64_t column = column0 + threadIdx.x;
    return threadIdx.x < features && column < f.product.out_features ? ((const float *)f.visitor.bias)[column] : 0;
}

/* Whether nothing is asked of a tile but the states of its rows, as they come from the products: that is little code,
 * and takes few registers. */
__device__ __forceinline__ bool is_plain(const rfi_cuda_fold &f) {
    const rfi_cuda_visitor &v = f.visitor;
    return !v.chain.num_pre && !v.columns && !v.before[0].values && !v.before[1].values && !v.squares.sums &&
        !f.product.irregular && !rfi_is_alone(f);
}

/* What rfi_fold_tile does of such a tile, with the same bits but where a product and its sum are rounded as one (the
 * entropy's): rows of FEATURES or HALF columns, of which `there` are there, from `column0` on, to the states of the
 * first row at `states`, rows of which are `stride` apart. With `rows` below 0 it takes the same way, and stores
 * nothing. */
template <int TOTALS, int AT_ONCE> __device__ __forceinline__ void fold_plain(const rfi_cuda_chain &chain,
    const float *tile, int tile_ld, const float *bias, int rows, int64_t column0, int there, State<TOTALS> *states,
    int64_t stride, int warp, int warps) {
    constexpr int LANES = 8, COLS = RFI_FOLD_COLUMNS / LANES, ROWS = 32 / LANES;
    const int lane = threadIdx.x % LANES, sub = threadIdx.x % 32 / LANES,
              slabs = (there + RFI_FOLD_COLUMNS - 1) / RFI_FOLD_COLUMNS,
              steps = rows < 0 ? warps : (rows + ROWS * AT_ONCE - 1) / (ROWS * AT_ONCE) * slabs;
#pragma unroll 1
    for (int step = warp; step < steps; step += warps) {
        const int slab = slabs > 1 ? step % 2 : 0, r0 = (slabs > 1 ? step / 2 : step) * ROWS * AT_ONCE + sub,
                  c0 = slab * RFI_FOLD_COLUMNS + lane * 4;
        const auto offset = [=](int c) { return c0 + c / 4 * (RFI_FOLD_COLUMNS / 2) + c % 4; };
        const bool whole = there >= (slab + 1) * RFI_FOLD_COLUMNS;
        float v[AT_ONCE][COLS];
#pragma unroll
        for (int c = 0; c < COLS; c += 4) {
            const four<float> shift = *(const four<float> *)(bias + offset(c));
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++) {
                const four<float> logits = *(const four<float> *)(tile + (r0 + a * ROWS) * tile_ld + offset(c));
#pragma unroll
                for (int i = 0; i < 4; i++) v[a][c + i] = logits.v[i] + shift.v[i];
            }
        }
        with_reduction<TOTALS>(chain.reduction, [&](auto of) {
            typedef decltype(of) R;
            State<TOTALS> s[AT_ONCE];
            if (!whole) {
                float peak0;
                R::peak0(peak0);
#pragma unroll
                for (int c = 0; c < COLS; c++)
                    if (offset(c) >= there)
#pragma unroll
                        for (int a = 0; a < AT_ONCE; a++) v[a][c] = peak0;
            }
            const auto valid = [](int) { return true; };
            const auto column = [=](int c) { return column0 + offset(c); };
            if constexpr (std::is_same<R, rfi_answers>::value) {
                int64_t row[AT_ONCE];
#pragma unroll
                for (int a = 0; a < AT_ONCE; a++) row[a] = r0 + a * ROWS < rows ? 0 : -1;
                rfi_fold_answers<LANES>(v, row, valid, column, chain.shows, s);
            } else rfi_fold_chunk<R, LANES>(v, valid, column, s);
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++)
                if (lane == 0 && r0 + a * ROWS < rows) rfi_write_state(states, (r0 + a * ROWS) * stride + slab, s[a]);
        });
    }
}

/* The states of `rows` rows of a tile, from `row0` on. A plain fold comes once ahead of all products, `rehearses`,
 * while x is not there yet: instructions that nobody has run come from far, and all of a block would wait for them. */
template <class C> __device__ __forceinline__ void fold_rows(const Parameters &p, const Shared &sh, bool plain,
    bool rehearses, const float *tile, int tile_ld, int64_t row0, int rows, int64_t column0, int features) {
    const rfi_cuda_fold &f = folded<C>(p, sh);
    typedef State<C::TOTALS> S;
    if (plain)
        fold_plain<C::TOTALS, C::FOLDED_PLAIN>(f.visitor.chain, rehearses ? sh.bias : tile, rehearses ? 0 : tile_ld,
            sh.bias, rehearses ? -1 : rows, column0, (int)min(f.product.out_features - column0, (int64_t)features),
            (S *)f.visitor.partials + row0 * f.visitor.num_partials + column0 / RFI_FOLD_COLUMNS,
            f.visitor.num_partials, threadIdx.x / 32, CONSUMER_THREADS / 32);
    else
        rfi_fold_tile<float, C::FOLDED>(
            *sh.fold, tile, tile_ld, row0, rows, column0, features, nullptr, threadIdx.x, CONSUMER_THREADS / 32);
}

/* Before the first tile. What is rehearsed comes before the kernel in front is waited for. */
template <class C> __device__ __forceinline__ void begin_fold(const rfi_cuda_fold &f, const Shared &sh, bool plain) {
    if (C::COPIES || !plain) copy_parameters<true>(f, sh.fold, threadIdx.x, CONSUMER_THREADS);
    if (plain && C::COPIES) barrier_sync(TILE_BARRIER, CONSUMER_THREADS);
    if (!plain && C::REHEARSES) barrier_arrive(COPIED_BARRIER, CONSUMER_THREADS + 32);
    if (!plain || !C::AHEAD) rfi_wait_for_previous();
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
