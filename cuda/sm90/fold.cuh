/* SPDX-License-Identifier: MIT */
/* Linear + steps + row reduction on Hopper: TMA feeds a ring of shared-memory stages, wgmma multiplies, one launch.
 *
 * A block is three warpgroups: a producer (an elected lane drives TMA, one warp fetches what belongs to columns, two
 * draw the tickets of those that merge states) and two consumers. It is persistent and walks tiles of BM x BN logits,
 * the batch fastest, so that W streams from memory once and x stays in the L2. The first tile of a cluster is its
 * number; the producer of its first block draws the others while the one before is loaded, and tells all roles of all
 * blocks: clusters that merge states have less time for tiles, and with a fixed share all others would wait for them.
 * Blocks of a cluster share the tile of W (CLUSTER_M, neighbours along the batch) or of x (CLUSTER_N), each loading its
 * part and multicasting it.
 *
 * A stage is a piece of each row of the two tiles: 64 values, or 32 of each term where W has two or x three, 16 where
 * both have three. A tile with rows of x of two levels goes through K once for each, the second level first, with the
 * same W. */
#ifndef ROWFOLD_CUDA_SM90_FOLD_CUH
#define ROWFOLD_CUDA_SM90_FOLD_CUH

#include "sm90/epilogue.cuh"
#include "sm90/finish.cuh"
#include "sm90/irregular.cuh"
#include "sm90/wgmma.cuh"

namespace hopper {

/* This block's part of a tile, to every block of the cluster that `mask` names. */
__device__ __forceinline__ void load_part(
    bool multicast, uint32_t to, const CUtensorMap *map, uint32_t full, int column, int row, uint16_t mask) {
    if (multicast) tma_load_multicast(to, map, full, column, row, mask);
    else tma_load(to, map, full, column, row);
}

__device__ __forceinline__ void load_part(
    bool multicast, uint32_t to, const CUtensorMap *map, uint32_t full, int column, int row, int block, uint16_t mask) {
    if (multicast) tma_load_multicast(to, map, full, column, row, block, mask);
    else tma_load(to, map, full, column, row, block);
}

/* The same for the threads that drive TMA: the first block's hands out tile `index`. */
template <class C>
__device__ __forceinline__ void hand_out(const Parameters &p, const Shared<C> &sh, Walk &walk, int index, int rank) {
    const uint32_t slot = walk.count % HANDED_OUT, phase = walk.count / HANDED_OUT % 2, full = sh.tile_full + 8 * slot,
                   empty = sh.tile_empty + 8 * slot;
    if (rank == 0) {
        walk.tile = tile_at<C>(p, index);
        mbarrier_wait(empty, phase ^ 1); /* read everywhere, so that the last round of `full` is over everywhere, too */
        mbarrier_arrive_expect(full, sizeof(uint64_t));
        for (int i = 0; i < C::CLUSTER; i++) store_remote(shared_address(&sh.tiles[slot]), pack(walk.tile), full, i);
    } else {
        mbarrier_arrive_expect(full, sizeof(uint64_t));
        mbarrier_wait(full, phase);
        walk.tile = unpack(sh.tiles[slot]);
        mbarrier_arrive_remote(empty + ((uint32_t)walk.tile.n >> 31), 0); /* see take_next */
    }
    walk.count++;
}

/* Before the thread that drives TMA leaves: no block may, while another still writes to it. What the others say of its
 * stages has come, and in the first block of its tiles. It is told long before the last of them is folded; a barrier of
 * the cluster would have to come behind it, and waits for all that is on its way to memory. */
template <class C> __device__ __forceinline__ void await_others(
    const Shared<C> &sh, const Walk &walk, int stages, int stage, int phase, int rank) {
    for (int i = 0; i < stages; i++) {
        mbarrier_wait(sh.empty + 8 * stage, phase);
        if (++stage == stages) stage = 0, phase ^= 1;
    }
    for (uint32_t i = walk.count; rank == 0 && i < walk.count + HANDED_OUT; i++)
        mbarrier_wait(sh.tile_empty + 8 * (i % HANDED_OUT), i / HANDED_OUT % 2 ^ 1);
}

/* The rows from `first` on, of `all`, that `most` boxes of PART rows load: whole boxes and one of the rest. What lies
 * in the place of rows that are not there is multiplied to logits that nobody reads. */
struct Rows {
    int whole, boxes, loaded;
};
template <int PART> __device__ __forceinline__ Rows rows_of(int64_t all, int64_t first, int most, int rest_rows) {
    const int there = (int)min(max(all - first, (int64_t)0), (int64_t)most * PART), whole = there / PART,
              rest = there % PART != 0;
    return {whole, whole + rest, whole * PART + rest * rest_rows};
}

/* Clocks between the loads of W and those of x where three products keep shared memory busy: at once they cost 3% of
 * the time, probably by standing in its way. */
constexpr int PAUSE = 200;
__device__ __forceinline__ void pause(int clocks) {
    const long long begin = clock64();
    while (clock64() - begin < clocks) {}
}

/* x may come from the kernel in front, which this one overlaps with; W does not, so that its first stages are fetched
 * before x is there. */
template <class C> __device__ __forceinline__ void produce_stages(const Parameters &p, const Shared<C> &sh, int rank) {
    constexpr int A_PART = C::BM / C::CLUSTER_N,
                  B_PART = C::BN / C::CLUSTER_M; /* rows that this block loads for the cluster */
    const int rank_m = rank % C::CLUSTER_M, rank_n = rank / C::CLUSTER_M;
    uint16_t b_mask = ((1 << C::CLUSTER_M) - 1) << (rank_n * C::CLUSTER_M), a_mask = 0;
    for (int i = 0; i < C::CLUSTER_N; i++) a_mask |= 1 << (rank_m + i * C::CLUSTER_M);
    const CUtensorMap *x = p.x, *w = p.w; /* of this block's rows of a tile; NULL: there are none */
    auto load_w = [&](int stage, int k, int row, uint32_t bytes) {
        const uint32_t full = sh.full + 8 * stage,
                       b = sh.stages + stage * C::STAGE + C::A_BYTES + rank_m * B_PART * C::ROW;
        mbarrier_arrive_expect(full, bytes);
        if (!w) return;
        const int column = k * p.w_column, block = p.w_block ? row / RFI_BLOCK_ROWS + k * p.w_block : 0;
        if (p.w_block) row = 0;
#pragma unroll
        for (int i = 0; i < C::W_TERMS; i++)
            load_part(C::CLUSTER_M > 1, b + i * C::B_TERM, w + i, full, column, row, block, b_mask);
    };
    int stage = 0, phase = 1;
    int index = blockIdx.x / C::CLUSTER;
    bool waited = false;
    Walk walk = first_tile<C>(p);
    for (; walk.is_there(); hand_out<C>(p, sh, walk, index, rank)) {
        const Tile tile = walk.of<C>(rank);
        const int a_row = tile.m * C::BM + rank_n * A_PART, b_row = tile.n * C::BN + rank_m * B_PART;
        const rfi_cuda_product &f = p.fold.product;
        const Rows xs = rows_of<A_PART>(f.batch, (int64_t)tile.m * C::BM, C::CLUSTER_N, p.x_rest_rows),
                   ws = rows_of<B_PART>(f.out_features, (int64_t)tile.n * C::BN, C::CLUSTER_M, p.w_rest_rows);
        x = rank_n < xs.whole ? p.x : rank_n < xs.boxes ? p.x_rest : nullptr;
        w = rank_m < ws.whole ? p.w : rank_m < ws.boxes ? p.w_rest : nullptr;
        const uint32_t bytes = C::ROW * (C::X_TERMS * xs.loaded + C::W_TERMS * ws.loaded);
        const int ahead = waited ? 0 : min(p.stages, C::STAGES); /* stages whose W is fetched first */
        if (!waited && awaits_w(p.fold)) rfi_wait_for_previous();
#pragma unroll 1
        for (int k = 0; k < ahead; k++) load_w(k, k, b_row, bytes);
        if (!waited) {
            rfi_wait_for_previous();
            if (p.fold.product.irregular) mbarrier_wait(sh.wide_known, 0);
        }
        waited = true;
        if (!p.fold.schedule.next_tile) index += gridDim.x / C::CLUSTER;
        else if (rank == 0) index = gridDim.x / C::CLUSTER + atomicAdd(p.fold.schedule.next_tile, 1u);
        const bool idle = is_idle<C>(p, sh, walk.tile.m), wide = !idle && is_wide<C>(sh, walk.tile.m);
        const int stages = stages_of<C>(p, idle, walk.count);
        for (int level = wide; level >= 0; level--) {
            const int first = level * (int)p.fold.product.x.level;
            for (int k = 0; k < stages; k++) {
                const uint32_t full = sh.full + 8 * stage, a = sh.stages + stage * C::STAGE + rank_n * A_PART * C::ROW;
                if (k >= ahead || level != wide) {
                    mbarrier_wait(sh.empty + 8 * stage, phase);
                    load_w(stage, k, b_row, bytes);
                    if (C::PRODUCTS == 3 && C::BN == 256) pause(PAUSE);
                }
#pragma unroll
                for (int i = 0; i < C::X_TERMS; i++)
                    if (x) load_part(C::CLUSTER_N > 1, a + i * C::A_TERM, x + i, full, first + k * C::K, a_row, a_mask);
                if (++stage == C::STAGES) stage = 0, phase ^= 1;
            }
        }
    }
    if (C::CLUSTER > 1) await_others<C>(sh, walk, C::STAGES, stage, phase, rank);
}

/* Scale, bias and vectors of a tile's columns, from `first` on, to shared memory, by a warp. */
template <class C>
__device__ __forceinline__ void fetch_columns(const rfi_cuda_fold &f, int64_t first, float *to, int lane) {
    const float *bias = (const float *)f.visitor.bias, *vectors = (const float *)f.visitor.vectors;
    for (int j = lane; j < C::BN; j += 32) {
        int64_t column = first + j;
        if (column >= f.product.out_features) break;
        to[j] = f.product.w.scale ? f.product.w.scale[column] : 1;
        to[C::BN + j] = bias[column];
        for (int v = 0; v < f.visitor.num_vectors; v++)
            to[(2 + v) * C::BN + j] = vectors[v * f.product.out_features + column];
    }
}

/* One warp fetches what belongs to columns, a tile ahead of the consumers. */
template <class C> __device__ __forceinline__ void produce_columns(const Parameters &p, const Shared<C> &sh, int rank) {
    const int lane = threadIdx.x % 32;
    int buffer = 0, phase = 1;
    for (Walk walk = first_tile<C>(p); walk.is_there(); take_next<C>(sh, walk)) {
        const Tile tile = walk.of<C>(rank);
        mbarrier_wait(sh.columns_empty + 8 * buffer, phase);
        fetch_columns<C>(p.fold, (int64_t)tile.n * C::BN, sh.columns + buffer * C::COLUMN_ROWS * C::BN, lane);
        mbarrier_arrive(sh.columns_full + 8 * buffer);
        buffer ^= 1;
        if (!buffer) phase ^= 1;
    }
}

template <class C, int N>
__device__ __forceinline__ void multiply(float (&d)[N], uint64_t a, uint64_t b, bool accumulate) {
    if constexpr (C::TF32) wgmma_tf32(d, a, b, accumulate);
    else if constexpr (C::BF16) wgmma_bf16(d, a, b, accumulate);
    else wgmma_f16(d, a, b, accumulate);
}

/* The products of one term of x with one of W, for a part of the columns of a stage. */
template <class C, int N>
__device__ __forceinline__ void multiply_terms(float (&d)[N], uint64_t a, uint64_t b, bool accumulate) {
#pragma unroll
    for (int s = 0; s < C::K / C::PARTS / 16; s++)
        multiply<C>(d, a + s * (32 >> 4), b + s * (32 >> 4), accumulate || s);
}

/* Whether the product of terms i and j is the first that is taken. */
template <class C> __device__ __forceinline__ constexpr bool is_first(int i, int j) {
    return i + j == C::ORDER - 1 && i == C::X_TERMS - 1;
}

/* All products of a part of a stage, as one group. The small ones come first, so that little is lost when the large
 * ones are added. `a` and `b` are descriptors of this warpgroup's part of the first stage of the ring. */
template <class C, int N> __device__ __forceinline__ void multiply_stage(
    float (&d)[N], uint64_t a, uint64_t b, int stage, bool accumulate, int part = 0) {
    const uint64_t at = (uint64_t)stage * (C::STAGE >> 4) + part * (C::ROW / C::PARTS >> 4);
    wgmma_fence();
#pragma unroll
    for (int sum = C::ORDER - 1; sum >= 0; sum--)
#pragma unroll
        for (int i = min(sum, C::X_TERMS - 1); i >= 0; i--)
            if (sum - i < C::W_TERMS)
                multiply_terms<C>(d, a + at + (i * C::A_TERM >> 4), b + at + ((sum - i) * C::B_TERM >> 4),
                    accumulate || !is_first<C>(i, sum - i));
    wgmma_commit();
}

/* Every warp says for itself that it has read the stage, in each block whose TMA writes to this one. */
template <class C> __device__ __forceinline__ void release(uint32_t empty) {
    int lane = threadIdx.x % 32;
    if (C::CLUSTER == 1) {
        if (lane == 0) mbarrier_arrive(empty);
    } else if (lane < C::CLUSTER) mbarrier_arrive_remote(empty, lane);
}

/* The ring as a consumer goes round it. */
struct Ring {
    int stage, phase;
    template <class C, int BY = 1> __device__ __forceinline__ void advance() {
        static_assert(C::STAGES % BY == 0, "those of a step lie side by side");
        stage += BY;
        if (stage == C::STAGES) stage = 0, phase ^= 1;
    }
};

/* From the second level of x to the first: what is summed up so far, in units of the first. `block` is the first of
 * this warpgroup's rows. */
template <class C, int N>
__device__ __forceinline__ void change_level(float (&total)[N], const rfi_cuda_product &f, int64_t block) {
    const int thread = thread_in_warpgroup();
    const int64_t row = block + thread / 32 * 16 + thread % 32 / 4;
    float ratio[2];
#pragma unroll
    for (int r = 0; r < 2; r++) ratio[r] = row + r * 8 < f.batch ? __ldcg(f.levels.ratio + row + r * 8) : 0;
#pragma unroll
    for (int i = 0; i < N; i++) total[i] = ratio[i / 2 % 2] != 0 ? total[i] * ratio[i / 2 % 2] : 0;
}

/* The first row of a warpgroup's part of a tile. */
template <class C> __device__ __forceinline__ int64_t first_row_of(Tile tile, int warpgroup) {
    return (int64_t)tile.m * C::BM + (C::SPLITS == 1 ? warpgroup * 64 : 0);
}

/* C::IN_TURN the two warpgroups that multiply take turns with the tensor cores, by barriers TURN_BARRIER and the next:
 * one says that its products are on their way, and the other's come behind. Both at once would add what they give at
 * once, too, while nothing is multiplied. The first begins, and is the last to be told. */
template <class C> __device__ __forceinline__ void take_turn(int warpgroup) {
    if (C::IN_TURN) barrier_sync(C::TURN_BARRIER + warpgroup, 128 * CONSUMERS);
}
template <class C> __device__ __forceinline__ void pass_turn(int warpgroup) {
    if (C::IN_TURN) barrier_arrive(C::TURN_BARRIER + (warpgroup ^ 1), 128 * CONSUMERS);
}
template <class C> __device__ __forceinline__ void begin_turns(int warpgroup) {
    if (warpgroup) pass_turn<C>(1);
}
template <class C> __device__ __forceinline__ void end_turns(int warpgroup) {
    if (!warpgroup) take_turn<C>(0);
}

template <class C, int N, int NR>
__device__ __forceinline__ void add_part(float (&total)[N], int first, const float (&part)[NR], float regain) {
#pragma unroll
    for (int i = 0; i < NR; i++)
        total[first + i] = C::REGAINS ? fmaf(part[i], regain, total[first + i]) : total[first + i] + part[i];
}

/* What DEPTH stages give, or each of the PARTS of one, half of the columns after the other: the tensor cores add this,
 * plain additions the rest. Of one product of 16-bit values with what they cut off on average. */
template <class C, int N> __device__ __forceinline__ void add_stages(
    float (&total)[N], const Shared<C> &sh, Ring &ring, uint64_t a, uint64_t b, float regain, int warpgroup) {
    constexpr int HALVES = C::WN / C::NT, NR = C::NT / 2;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        float part[C::PARTS][NR];
        take_turn<C>((int)threadIdx.x / 128 - 1); /* not `warpgroup`, which may lie in memory: hopper.md 127 */
#pragma unroll
        for (int d = 0; d < C::DEPTH; d++) {
            if (h == 0) mbarrier_wait(sh.full + 8 * (ring.stage + d), ring.phase);
#pragma unroll
            for (int i = 0; i < C::PARTS; i++)
                multiply_stage<C>(part[i], a, b + h * (C::NT * C::ROW >> 4), ring.stage + d, d > 0, i);
        }
        pass_turn<C>(warpgroup);
        if (C::DEPTH > 1 && h == HALVES - 1) {
            wgmma_wait<1>();
            release<C>(sh.empty + 8 * ring.stage);
        }
        if (C::PARTS > 1) {
            wgmma_wait<1>();
            add_part<C>(total, h * NR, part[0], regain);
        }
        wgmma_wait<0>();
        if (h == HALVES - 1) release<C>(sh.empty + 8 * (ring.stage + C::DEPTH - 1));
        add_part<C>(total, h * NR, part[C::PARTS - 1], regain);
    }
    ring.advance<C, C::DEPTH>();
}

/* The sums of a tile. There are whole DEPTHs of stages. Beside a search one loop over the stages of both levels, for
 * two spill what is searched for; without one two loops, for one takes 2% longer: hopper.md 77. */
template <class C, int N> __device__ __forceinline__ void multiply_by_stages(float (&total)[N], const Parameters &p,
    const Shared<C> &sh, Ring &ring, uint64_t a, uint64_t b, Tile tile, int stages, bool wide, int warpgroup) {
#pragma unroll
    for (int i = 0; i < N; i++) total[i] = 0;
    if constexpr (C::SEARCHES) {
        const int first = C::LEVELS && wide ? stages : 0; /* where the first level begins */
#pragma unroll 1
        for (int k = -first; k < stages; k += C::DEPTH) {
            if (C::LEVELS && k == 0 && first) change_level<C>(total, p.fold.product, first_row_of<C>(tile, warpgroup));
            add_stages<C>(total, sh, ring, a, b, p.fold.product.regain, warpgroup);
        }
    } else {
#pragma unroll 1
        for (int level = !C::BF16 && wide; level >= 0; level--) {
            for (int k = 0; k < stages; k += C::DEPTH)
                add_stages<C>(total, sh, ring, a, b, p.fold.product.regain, warpgroup);
            if (!C::BF16 && level) change_level<C>(total, p.fold.product, first_row_of<C>(tile, warpgroup));
        }
    }
}

/* Multiplies stage after stage, the products of one on their way while the next is waited for: `add` begins them. */
template <class C, class S, class Add>
__device__ __forceinline__ void multiply_level(const Shared<S> &sh, Ring &ring, int stages, Add add) {
    int previous = 0;
    for (int k = 0; k < stages; k++) {
        mbarrier_wait(sh.full + 8 * ring.stage, ring.phase);
        add(ring.stage);
        wgmma_wait<1>();
        if (k) release<C>(sh.empty + 8 * previous);
        previous = ring.stage;
        ring.advance<C>();
    }
    wgmma_wait<0>();
    if (stages) release<C>(sh.empty + 8 * previous);
}

/* The sums of a tile, added by the tensor cores alone. */
template <class C, int N> __device__ __forceinline__ void multiply_through(float (&total)[N], const Parameters &p,
    const Shared<C> &sh, Ring &ring, uint64_t a, uint64_t b, Tile tile, int stages, bool wide, int warpgroup) {
#pragma unroll
    for (int i = 0; i < N; i++) total[i] = 0;
#pragma unroll 1
    for (int level = !C::BF16 && wide; level >= 0; level--) {
        multiply_level<C>(sh, ring, stages, [&](int stage) { multiply_stage<C>(total, a, b, stage, true); });
        if (!C::BF16 && level) change_level<C>(total, p.fold.product, first_row_of<C>(tile, warpgroup));
    }
}

/* Whether a block goes through the fold once ahead of all products, while x is not there yet: instructions that nobody
 * has run come from far, and a block with one tile would wait for them. Where it reads nothing that the kernel in front
 * may write. */
template <class C> __device__ __forceinline__ bool goes_ahead(const Parameters &p) {
    const rfi_cuda_fold &f = p.fold;
    return C::AHEAD && !f.product.irregular && !f.product.x.scale && !f.visitor.chain.num_pre && reduces<C>(p);
}

template <class C> __device__ __forceinline__ void consume(const Parameters &p, const Shared<C> &sh, const Place &at) {
    const uint64_t a = wgmma_descriptor<C::ROW>(sh.stages + (C::SPLITS == 1 ? at.warpgroup * 64 * C::ROW : 0));
    const uint64_t b =
        wgmma_descriptor<C::ROW>(sh.stages + C::A_BYTES + (C::SPLITS == 1 ? 0 : at.warpgroup * C::WN * C::ROW));
    Ring ring = {0, 0};
    Walk walk = first_tile<C>(p);
    Tile previous = {0, 0}; /* the tile that a ticket is being drawn for */
    bool ahead = goes_ahead<C>(p);
    if (!ahead) rfi_wait_for_previous();
    if (find_unusual<C>(p.fold.product, sh, at.warpgroup * 128 + at.thread, 128 * CONSUMERS)) *sh.irregular = 1;
    mbarrier_arrive(sh.wide_known);
    barrier_sync(CONSUMERS_BARRIER, 128 * CONSUMERS); /* all have looked */
    begin_turns<C>(at.warpgroup);
    while (walk.is_there()) {
        const bool rehearses = C::AHEAD && __shfl_sync(~0u, ahead, 0); /* no stages, and nothing is kept */
        float total[C::SUMS];
        const bool idle = is_idle<C>(p, sh, walk.tile.m), wide = !idle && is_wide<C>(sh, walk.tile.m);
        const int stages = __shfl_sync(~0u, rehearses ? 0 : stages_of<C>(p, idle, walk.count), 0);
        if constexpr (C::PROMOTE)
            multiply_by_stages<C>(total, p, sh, ring, a, b, walk.of<C>(at.rank), stages, wide, at.warpgroup);
        else multiply_through<C>(total, p, sh, ring, a, b, walk.of<C>(at.rank), stages, wide, at.warpgroup);
        const Tile tile = walk.of<C>(at.rank);
        const uint32_t buffer = walk.count % 2;                      /* of the columns */
        const int first = C::SPLITS == 1 ? 0 : at.warpgroup * C::WN; /* column of this warpgroup in the tile */
        const int64_t row = first_row_of<C>(tile, at.warpgroup) + at.row;
        State<C::TOTALS> state[2];
        mbarrier_wait(sh.columns_full + 8 * buffer, walk.count / 2 % 2);
        fold_sums<C>(p.fold, total, row, (int64_t)tile.n * C::BN + first, at.column,
            sh.columns + buffer * C::COLUMN_ROWS * C::BN + first + at.column, *sh.lone, state);
        if (rehearses) {
            for (const State<C::TOTALS> &s : state) asm volatile("" ::"f"(s.m), "f"(s.t[0])); /* or none of it is run */
            ahead = false;
            rfi_wait_for_previous();
            continue;
        }
        mbarrier_arrive(sh.columns_empty + 8 * buffer);
        if (reduces<C>(p)) {
            if constexpr (C::MERGES) {
                if (walk.count)
                    finish_tile<C>(p, at.warpgroup, slot_of<C>(p, previous, at.warpgroup), (walk.count + 1) % 2, sh);
            }
            write_states<C>(p, at, slot_of<C>(p, tile, at.warpgroup), state, sh);
            previous = tile;
        }
        take_next<C>(sh, walk);
    }
    if constexpr (C::MERGES) {
        if (walk.count && (draws_tickets(p.fold) || finishes_alone<C>(p)))
            finish_tile<C>(p, at.warpgroup, slot_of<C>(p, previous, at.warpgroup), (walk.count + 1) % 2, sh);
    }
    end_turns<C>(at.warpgroup);
    if constexpr (MAY_BE_IRREGULAR<C>) {
        if (!may_be_irregular(p)) return;
        barrier_sync(CONSUMERS_BARRIER, 128 * CONSUMERS); /* the ring is free */
        static_assert(IRREGULAR_BYTES<Of<C::BM>::template Sums> <= C::STAGES * C::STAGE, "it fits where the ring was");
        if (__shfl_sync(~0u, *sh.irregular, 0))
            compute_irregular<C::TOTALS, Of<C::BM>::template Sums>(
                p.fold, sh.ring(), C::STAGES * C::STAGE, at.warpgroup * 128 + at.thread, CONSUMERS_BARRIER);
    }
}

/* By one thread. A stage is released by the warps of `releasing` blocks. */
template <class C>
__device__ __forceinline__ void init_barriers(const Parameters &p, const Shared<C> &sh, int stages, int releasing) {
    mbarrier_init(sh.wide_known, 128 * CONSUMERS);
    for (int i = 0; i < stages; i++) {
        mbarrier_init(sh.full + 8 * i, 1);
        mbarrier_init(sh.empty + 8 * i, 4 * CONSUMERS * releasing);
    }
    for (int i = 0; i < 2; i++) {
        mbarrier_init(sh.columns_full + 8 * i, 32);
        mbarrier_init(sh.columns_empty + 8 * i, 128 * CONSUMERS);
    }
    for (int i = 0; i < CONSUMERS; i++) mbarrier_init(sh.drawn + 8 * i, 1);
    for (int i = 0; i < HANDED_OUT; i++) {
        mbarrier_init(sh.tile_full + 8 * i, 1);
        mbarrier_init(sh.tile_empty + 8 * i, C::CLUSTER * tile_readers<C>(p) + C::CLUSTER - 1);
    }
    mbarrier_init_fence();
    prefetch_map(&p.x[0]);
    prefetch_map(&p.w[0]);
}

template <class C> __global__ __launch_bounds__(THREADS, 1) void fold_kernel(const __grid_constant__ Parameters p) {
    if constexpr (C::SEARCHES) {
        if (!rfi_is_wanted(p.fold.schedule)) return;
    }
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[C::STAGES], empty[C::STAGES], columns_full[2], columns_empty[2], drawn[CONSUMERS],
        tile_full[HANDED_OUT], tile_empty[HANDED_OUT];
    __shared__ uint64_t tiles[HANDED_OUT];
    __shared__ uint32_t last[3 * CONSUMERS], irregular, lone, wide[LEVEL_WORDS], left_out[COUNTED_TILES];
    __shared__ uint64_t wide_known;
    const uint32_t base = (shared_address(raw) + 1023) & ~1023u; /* as the swizzle wants it */
    uint8_t *behind = raw + (base - shared_address(raw)) + C::STAGES * C::STAGE;
    Shared<C> sh = {base, shared_address(full), shared_address(empty), shared_address(columns_full),
        shared_address(columns_empty), shared_address(drawn), shared_address(tile_full), shared_address(tile_empty),
        tiles, (float *)behind, last, &irregular, wide, left_out, &lone, shared_address(&wide_known)};
    const int rank = C::CLUSTER > 1 ? cluster_rank() : 0;
    rfi_release_next();
    if (threadIdx.x < LEVEL_WORDS) wide[threadIdx.x] = 0;
    if (threadIdx.x < COUNTED_TILES) left_out[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        irregular = lone = 0;
        init_barriers(p, sh, C::STAGES, C::CLUSTER);
    }
    __syncthreads();
    if (C::CLUSTER > 1) cluster_meet();
    /* By shuffle, so that the compiler sees that it is the same for a warp: descriptors then live in uniform registers.
     */
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    if (warpgroup == 0) {
        registers_lower<24>();
        const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
        if (warp == 0) {
            if (elect_lane()) produce_stages<C>(p, sh, rank);
            __syncwarp();
        } else if (warp == 1) produce_columns<C>(p, sh, rank);
        else if (C::MERGES && reduces<C>(p)) draw_tickets<C>(p, sh, warp - 2, rank);
    } else {
        registers_raise<240>();
        const int thread = threadIdx.x % 128, lane = thread % 32;
        const Place at = {warpgroup - 1, thread, thread / 32 * 16 + lane / 4, 2 * (lane % 4), rank};
        consume<C>(p, sh, at);
    }
}

} // namespace hopper
#endif
