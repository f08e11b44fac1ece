/* SPDX-License-Identifier: MIT */
/* Whole rows in a cluster: of layers of so few columns that the blocks of a cluster have a tile each, side by side, and
 * so few rows that all run at once. The states of a row meet in the shared memory of one of them, which finishes it: no
 * kernel behind this one, and nothing in memory but the results. One product of 16-bit values.
 *
 * The roles of a block are those of fold.cuh, each for one tile; that is all that the blocks of a cluster share. */
#ifndef ROWFOLD_CUDA_SM90_WHOLE_CUH
#define ROWFOLD_CUDA_SM90_WHOLE_CUH

#include "sm90/fold.cuh"

namespace hopper {
namespace whole {

struct Parameters : hopper::Parameters {
    int32_t blocks; /* of a cluster, a power of two */
};

constexpr int STATES = 128; /* of the rows that a block finishes */

/* What a block has beside Shared: these states, (rows, states of a row), and its place in the cluster. */
template <class C> struct Rows {
    State<C::TOTALS> *states;
    uint32_t full; /* the barrier that counts them */
    int blocks, rank;
    __device__ __forceinline__ int slots() const { return blocks * C::SPLITS; } /* states of a row */
    __device__ __forceinline__ int each() const { return C::BM / blocks; }      /* rows */
};

/* One thread. W is fetched before x is there. */
template <class C> __device__ __forceinline__ void produce_stages(const Parameters &p, const Shared<C> &sh, Tile tile) {
    const rfi_cuda_product &f = p.fold.product;
    const int x_row = tile.m * C::BM, w_row = tile.n * C::BN;
    const hopper::Rows xs = rows_of<C::BM>(f.batch, x_row, 1, p.x_rest_rows),
                       ws = rows_of<C::BN>(f.out_features, w_row, 1, p.w_rest_rows);
    const CUtensorMap *x = xs.whole ? p.x : p.x_rest, *w = ws.whole ? p.w : ws.boxes ? p.w_rest : nullptr;
    const uint32_t bytes = C::ROW * (xs.loaded + ws.loaded);
    const auto load_w = [&](int stage, int k) {
        const uint32_t full = sh.full + 8 * stage;
        mbarrier_arrive_expect(full, bytes);
        if (w)
            tma_load(sh.stages + stage * C::STAGE + C::A_BYTES, w, full, k * p.w_column, p.w_block ? 0 : w_row,
                p.w_block ? w_row / RFI_BLOCK_ROWS + k * p.w_block : 0);
    };
    const int ahead = min(p.stages, C::STAGES);
    if (awaits_w(p.fold)) rfi_wait_for_previous();
#pragma unroll 1
    for (int k = 0; k < ahead; k++) load_w(k, k);
    rfi_wait_for_previous();
    int stage = 0, phase = 1;
#pragma unroll 1
    for (int k = 0; k < p.stages; k++) {
        if (k >= ahead) {
            mbarrier_wait(sh.empty + 8 * stage, phase);
            load_w(stage, k);
        }
        tma_load(sh.stages + stage * C::STAGE, x, sh.full + 8 * stage, k * C::K, x_row);
        if (++stage == C::STAGES) stage = 0, phase ^= 1;
    }
}

/* The states of this thread's rows, each to the block that finishes the row. Of columns that are not there, too. A
 * single block, which is no cluster, has all. */
template <class C> __device__ __forceinline__ void send_states(
    const Parameters &p, const Rows<C> &rows, const Place &at, State<C::TOTALS> (&state)[2]) {
    join_lanes<4>(p.fold.visitor.chain.reduction, state);
    if (at.thread % 4) return;
    const int slot = rows.rank * C::SPLITS + (C::SPLITS == 1 ? 0 : at.warpgroup), each = rows.each();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = (C::SPLITS == 1 ? at.warpgroup * 64 : 0) + at.row + r * 8;
        State<C::TOTALS> *const place = &rows.states[row % each * rows.slots() + slot];
        if (rows.blocks == 1) {
            *place = state[r];
            continue;
        }
        const uint64_t *words = (const uint64_t *)&state[r];
        const uint32_t to = shared_address(place);
#pragma unroll
        for (int i = 0; i < (int)sizeof state[r] / 8; i++) store_remote(to + 8 * i, words[i], rows.full, row / each);
    }
}

/* Rows of this block, from `first` on, by a warpgroup, which has a thread for each state. Where none `is_there` it goes
 * the same way, but for what would be stored. */
template <class C> __device__ __forceinline__ void finish_rows(
    const Parameters &p, const Rows<C> &rows, int64_t first, int thread, bool is_there) {
    const int slots = rows.slots();
    const int64_t row = first + thread / slots;
    float value = 0;
    bool gives = false;
    with_reduction<C::TOTALS>(p.fold.visitor.chain.reduction, [&](auto of) {
        typedef decltype(of) R;
        State<C::TOTALS> s;
        rfi_empty_state<R>(s);
        if (is_there) s = rows.states[thread];
        join_some_lanes<R>(s, slots);
        /* Several results are stored one after the other, which is not rehearsed. */
        if (thread % slots == 0 && (C::TOTALS == 1 || is_there) && row < p.fold.product.batch)
            rfi_finish_state<R>(p.fold.visitor, row, s,
                [&](const rfi_cuda_visitor &, int64_t, float number) { value = number, gives = is_there; });
    });
    if (gives) rfi_store_number(p.fold.visitor, row, value);
}

/* Whether what rows pick is written, by another block than the one that finishes the row. */
__device__ __forceinline__ bool picks(const Parameters &p) { return p.fold.visitor.columns != NULL; }

/* A warpgroup. Everything is gone through once while there is nothing to do it with, for the kernel in front runs and W
 * is on its way: instructions that nobody has run come from far (see Rehearsal of epilogue.cuh). Steps that read inputs
 * of rows must not be, for these may come from the kernel in front. */
template <class C> __device__ __forceinline__ void consume(
    const Parameters &p, const Shared<C> &sh, const Rows<C> &rows, const Place &at, Tile tile) {
    const uint64_t a = wgmma_descriptor<C::ROW>(sh.stages + (C::SPLITS == 1 ? at.warpgroup * 64 * C::ROW : 0));
    const uint64_t b =
        wgmma_descriptor<C::ROW>(sh.stages + C::A_BYTES + (C::SPLITS == 1 ? 0 : at.warpgroup * C::WN * C::ROW));
    const int first = C::SPLITS == 1 ? 0 : at.warpgroup * C::WN; /* column of this warpgroup in the tile */
    const int64_t first_row = (int64_t)tile.m * C::BM + rows.rank * rows.each();
    const int stages = __shfl_sync(~0u, p.stages, 0);
    float total[C::SUMS];
#pragma unroll
    for (int i = 0; i < C::SUMS; i++) total[i] = 0;
    mbarrier_wait(sh.columns_full, 0);
    cluster_wait(); /* the barriers of all blocks are there */
#pragma unroll 1
    for (int turn = p.fold.visitor.row_inputs || picks(p); turn < 2; turn++) {
        int64_t row = p.fold.product.batch;
        if (turn) {
            Ring ring = {0, 0};
            rfi_wait_for_previous();
            begin_turns<C>(at.warpgroup);
            if constexpr (C::PROMOTE)
                multiply_by_stages<C>(total, p, sh, ring, a, b, tile, stages, false, at.warpgroup);
            else multiply_through<C>(total, p, sh, ring, a, b, tile, stages, false, at.warpgroup);
            end_turns<C>(at.warpgroup);
            row = first_row_of<C>(tile, at.warpgroup) + at.row;
        }
        State<C::TOTALS> state[2];
        fold_sums<C>(p.fold, total, row, (int64_t)tile.n * C::BN + first, at.column, sh.columns + first + at.column,
            false, state);
        if (turn) {
            if (picks(p)) __threadfence(); /* all lanes of a row have, before any sends its state */
            send_states<C>(p, rows, at, state);
        }
        if (rows.blocks == 1) barrier_sync(CONSUMERS_BARRIER, 128 * CONSUMERS);
        if (at.warpgroup) continue;
        if (turn && rows.blocks > 1) mbarrier_wait(rows.full, 0);
        finish_rows<C>(p, rows, first_row, at.thread, turn);
        __syncwarp(); /* or the compiler takes the next turn's loop over stages for one that may divide a warp */
    }
}

template <class C> __global__ __launch_bounds__(THREADS, 1) void whole_kernel(const __grid_constant__ Parameters p) {
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[C::STAGES], empty[C::STAGES], columns_full, rows_full;
    __shared__ __align__(16) uint8_t states[STATES * sizeof(State<C::TOTALS>)];
    const uint32_t base = (shared_address(raw) + 1023) & ~1023u; /* as the swizzle wants it */
    uint8_t *behind = raw + (base - shared_address(raw)) + C::STAGES * C::STAGE;
    Shared<C> sh = {};
    sh.stages = base, sh.full = shared_address(full), sh.empty = shared_address(empty);
    sh.columns_full = shared_address(&columns_full), sh.columns = (float *)behind;
    const Rows<C> rows = {(State<C::TOTALS> *)states, shared_address(&rows_full), p.blocks, (int)cluster_rank()};
    const Tile tile = {(int)blockIdx.x / p.blocks, rows.rank};
    static_assert(C::BM * C::SPLITS == STATES, "a thread of a warpgroup for each");
    rfi_release_next();
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(sh.full + 8 * i, 1);
            mbarrier_init(sh.empty + 8 * i, 4 * CONSUMERS);
        }
        mbarrier_init(sh.columns_full, 32);
        mbarrier_init(rows.full, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(rows.full, sizeof states);
        prefetch_map(&p.x[0]);
        prefetch_map(&p.w[0]);
    }
    __syncthreads();
    cluster_arrive();
    /* By shuffle, so that the compiler sees that it is the same for a warp: descriptors then live in uniform registers.
     */
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    if (warpgroup == 0) {
        registers_lower<24>();
        const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
        if (warp == 0) {
            if (elect_lane()) produce_stages<C>(p, sh, tile);
            __syncwarp();
        } else if (warp == 1) {
            fetch_columns<C>(p.fold, (int64_t)tile.n * C::BN, sh.columns, threadIdx.x % 32);
            mbarrier_arrive(sh.columns_full);
        }
        cluster_wait();
    } else {
        registers_raise<240>();
        const int thread = threadIdx.x % 128, lane = thread % 32;
        const Place at = {warpgroup - 1, thread, thread / 32 * 16 + lane / 4, 2 * (lane % 4), 0};
        consume<C>(p, sh, rows, at, tile);
    }
}

} // namespace whole
} // namespace hopper
#endif
