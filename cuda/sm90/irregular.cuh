/* SPDX-License-Identifier: MIT */
/* Rows that terms do not represent, from the stored values of x, in the kernel that leaves them out of its tiles: a
 * launch that mostly finds none would keep the next one waiting. */
#ifndef ROWFOLD_CUDA_SM90_IRREGULAR_CUH
#define ROWFOLD_CUDA_SM90_IRREGULAR_CUH

#include "common/irregular_tile.cuh"
#include "sm90/epilogue.cuh"

namespace hopper {

/* Whether there is such a row, for one of the `threads` that ask: each looks at some of the flags. */
__device__ __forceinline__ bool sees_irregular(const rfi_cuda_fold &f, int thread, int threads) {
    bool flagged = false;
    if (f.irregular)
        for (int64_t row = thread; row < f.batch; row += threads) flagged |= f.irregular[row];
    return flagged;
}

/* Joins the states of a row by a warp, and finishes it. */
template <int TOTALS> __device__ __forceinline__ void finish_irregular(const rfi_cuda_fold &f, int64_t row, int lane) {
    const State<TOTALS> *states = (const State<TOTALS> *)f.partials + row * f.num_partials;
    State<TOTALS> all = {};
    with_reduction<TOTALS>(f.chain.reduction, [&](auto of) {
        typedef decltype(of) R;
        State<TOTALS> state[1];
        rfi_empty_state<R>(state[0]);
        for (int64_t i = lane; i * RFI_FOLD_COLUMNS < f.out_features; i += 32) {
            const State<TOTALS> next[1] = {rfi_read_state<float, TOTALS>(states, i)};
            rfi_join_states<R>(state[0], next);
        }
        __syncwarp();
        rfi_join_lanes<R, 32>(state);
        all = state[0];
    });
    if (lane == 0) finish_row(f, row, all);
}

constexpr int IRREGULAR_THREADS = irregular_tile::THREADS;
static_assert(IRREGULAR_THREADS == 128 * CONSUMERS, "the consumers of a block");

/* What compute_irregular takes of the ring at least. */
constexpr int IRREGULAR_BYTES = irregular_tile::LEAST_BYTES + (int)sizeof(irregular_tile::Notes);

/* By the consumers of every block, once all its tiles are done: blocks share out the tiles of such rows, the last to
 * finish merges the states. `shared` is memory that nothing uses any more, `bytes` of it, `barrier` one by name that
 * those threads may use. */
template <int TOTALS> static __device__ __noinline__ void compute_irregular(
    const rfi_cuda_fold &f, uint8_t *shared, int bytes, int thread, int barrier) {
    const auto sync = [=] { barrier_sync(barrier, IRREGULAR_THREADS); };
    bytes -= (int)sizeof(irregular_tile::Notes);
    irregular_tile::Notes &notes = *(irregular_tile::Notes *)(shared + bytes);
    irregular_tile::compute(f, shared, bytes, notes, thread, blockIdx.x, gridDim.x, sync);
    if (f.chain.reduction == RF_OP_NONE) return;
    if (thread == 0) notes.counts[0] = draw(f.irregular_ticket, gridDim.x);
    sync();
    const bool last = notes.counts[0];
    if (!last) return;
    for (int64_t window = 0; window < f.batch; window += irregular_tile::WINDOW) {
        const int count = irregular_tile::list_rows(f, irregular_tile::ALL, window, notes, thread, sync);
        for (int i = thread / 32; i < count; i += IRREGULAR_THREADS / 32)
            finish_irregular<TOTALS>(f, notes.list[i], thread % 32);
    }
}

} // namespace hopper
#endif
