/* SPDX-License-Identifier: MIT */
/* The states of rows that the kernels of this family have, and how lanes join them. */
#ifndef ROWFOLD_CUDA_SM90_STATES_CUH
#define ROWFOLD_CUDA_SM90_STATES_CUH

#include "sm90/config.cuh"

namespace hopper {

__device__ __forceinline__ bool is_irregular(const rfi_cuda_product &f, int64_t row) {
    return f.irregular && f.irregular[row];
}

/* Calls f with the reduction, one of those whose states have TOTALS totals here: pairs, or rfi_answers. */
template <int TOTALS, class F> __device__ __forceinline__ void with_reduction(int reduction, F f) {
    if constexpr (TOTALS == rfi_answers::TOTALS) {
        f(rfi_answers());
    } else {
        switch (reduction) {
#define RFI_REDUCTION(id, number, ...)                                          \
    case number:                                                                \
        if constexpr (rfi_is_pair<rfi_reduction_##id>) f(rfi_reduction_##id()); \
        break;
#include "reductions.def"
#undef RFI_REDUCTION
        }
    }
}

template <int TOTALS> using State = rfi_state_of<float, TOTALS>;

/* The empty state of a reduction that this family takes. */
template <int TOTALS> __device__ __forceinline__ State<TOTALS> empty_state(int reduction) {
    State<TOTALS> state = {};
    with_reduction<TOTALS>(reduction, [&](auto of) { rfi_empty_state<decltype(of)>(state); });
    return state;
}

/* Joins the states of LANES neighbouring lanes, a power of two, for each of ROWS rows. All get the same bits. */
template <int LANES, int TOTALS, int ROWS>
__device__ __forceinline__ void join_lanes(int reduction, State<TOTALS> (&state)[ROWS]) {
    with_reduction<TOTALS>(reduction, [&](auto of) { rfi_join_lanes<decltype(of), LANES>(state); });
}

/* The same of a number of lanes that is known at run time. */
template <class R> __device__ __forceinline__ void join_some_lanes(State<R::TOTALS> &s, int lanes) {
    float m = s.m;
#pragma unroll 1
    for (int step = 1; step < lanes; step *= 2) m = R::peak(m, __shfl_xor_sync(~0u, m, step));
    rfi_carry<R>(s, m);
#pragma unroll 1
    for (int step = 1; step < lanes; step *= 2)
#pragma unroll
        for (int i = 0; i < R::TOTALS; i++) s.t[i] = R::join(i, s.t[i], __shfl_xor_sync(~0u, s.t[i], step));
}

/* Joins the first `count` of BLOCK states to one. */
template <int TOTALS, int BLOCK> __device__ __forceinline__ void join_some(
    int reduction, State<TOTALS> &state, const State<TOTALS> (&block)[BLOCK], int count) {
    with_reduction<TOTALS>(reduction, [&](auto of) { rfi_join_some<decltype(of)>(state, block, count); });
}

/* Joins states [first, first + count) of a row in their order; two neighbouring lanes do, and both get the result. All
 * loads of a round are on their way at once. */
template <int TOTALS> __device__ __forceinline__ State<TOTALS> combine_states(
    const rfi_cuda_visitor &f, const State<TOTALS> *states, int first, int count) {
    constexpr int BLOCK = GROUP / 8;
    const int half = threadIdx.x % 2;
    State<TOTALS> state[1] = {empty_state<TOTALS>(f.chain.reduction)};
#pragma unroll 1
    for (int done = 0; done < count; done += 2 * BLOCK) {
        const int mine = min(max(count - done - half * BLOCK, 0), BLOCK);
        const State<TOTALS> *from = states + first + done + half * BLOCK;
        State<TOTALS> block[BLOCK];
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            block[i] = {};
            if (i < mine) block[i] = rfi_read_state<float, TOTALS>(from, i);
        }
        join_some(f.chain.reduction, state[0], block, mine);
    }
    join_lanes<2>(f.chain.reduction, state);
    return state[0];
}

} // namespace hopper
#endif
