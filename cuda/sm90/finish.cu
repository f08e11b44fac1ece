/* SPDX-License-Identifier: MIT */
/* Rows of few states are finished by a kernel of its own, which waits on the multiprocessors that have no tile any more
 * until all states are written. The last block of a row could do it, as where states are many, but it would first have
 * to learn that it is the last: a fence, an atomic and two barriers, 2 us, and then to fetch instructions that nobody
 * has run before, while all others are idle. See doc/kernels/hopper.md. */
#include "kernels.h"
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "sm90/states.cuh"

namespace hopper {
namespace {

constexpr int FINISH_THREADS = 128;
constexpr int LANES = 16, ALL_LANES = 32;     /* that merge the states of a row: of few, and of more */
constexpr int EACH = RFI_SM90_JOINED / LANES; /* so many states at a time */
static_assert(EACH % 2 == 0, "whole pairs");

constexpr int REHEARSED_ROWS = 64; /* at most: what is fetched for a rehearsal holds up a kernel with more work */

struct Finish {
    rfi_cuda_visitor visitor;
    const uint8_t *irregular; /* of each row: 1 for one that the fold kernel finishes itself; NULL: none is */
    int32_t first, slots;     /* states of a row */
};

/* The first `count` of a lane's states, all words of them or, where the others are not shown, without those that are
 * added. No branch on what is there, so that their latencies overlap; totals are added in double, to which a product is
 * brought once: conversions are slow. */
template <class R, bool ADDS, int N>
__device__ __forceinline__ State<N> join_loaded(const State<N> (&v)[EACH], int count) {
    State<N> s, none;
    rfi_empty_state<R>(none);
    float m = none.m;
#pragma unroll
    for (int c = 0; c < EACH; c++) m = c < count ? R::peak(m, v[c].m) : m;
    s = none;
    none.m = m;
    double added[N];
#pragma unroll
    for (int i = 0; i < N; i++) added[i] = s.t[i];
#pragma unroll
    for (int c = 0; c < EACH; c++) {
        const State<N> one = c < count ? v[c] : none;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (R::adds(i) && !ADDS) continue;
            const float total = R::moved(i, one.m, m, one.t) * R::factor(i, one.m, m);
            if (R::adds(i)) added[i] += (double)total;
            else s.t[i] = R::join(i, s.t[i], total);
        }
    }
    s.m = m;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (R::adds(i)) s.t[i] = (float)added[i];
    return s;
}
template <class R, int N>
__device__ __forceinline__ State<N> join_loaded(const State<N> (&v)[EACH], int count, int shows) {
    if constexpr (std::is_same<R, rfi_answers>::value) {
        if (!(shows & RFI_CUDA_SHOWS_TOTAL)) return join_loaded<R, false>(v, count);
    }
    return join_loaded<R, true>(v, count);
}

/* A lane's share of the first states of a row, as many as its lanes hold, all on their way at once; and how many. */
template <int LANES, int N>
__device__ __forceinline__ int load_states(State<N> (&v)[EACH], const float4 *states, int slots, int lane, bool there) {
    static_assert(sizeof(State<N>) == sizeof(float4), "or half of it, below");
    const int count = there ? max(0, (min(slots, LANES * EACH) - lane + LANES - 1) / LANES) : 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float4 words = {};
        if (i < count) words = __ldcg(states + lane + i * LANES);
        v[i] = {words.x, {words.y, words.z, words.w}};
    }
    return count;
}
template <int LANES>
__device__ __forceinline__ int load_states(State<1> (&v)[EACH], const float4 *states, int slots, int lane, bool there) {
    slots = min(slots, LANES * EACH);
    const int pairs = (slots + 1) / 2, mine = (pairs - lane + LANES - 1) / LANES; /* of this lane */
    const int count = 2 * mine - (slots % 2 && mine && (mine - 1) * LANES + lane == pairs - 1);
#pragma unroll
    for (int i = 0; i < EACH / 2; i++) {
        const float4 *const from = states + lane + i * LANES;
        float4 pair = {};
        if (there && 2 * i + 1 < count) pair = __ldcg(from);
        if (there && 2 * i + 1 == count) { /* the last, whose other half nobody has written */
            const float2 half = __ldcg((const float2 *)from);
            pair = {half.x, half.y, 0, 0};
        }
        v[2 * i] = {pair.x, {pair.y}}, v[2 * i + 1] = {pair.z, {pair.w}};
    }
    return there ? count : 0;
}

/* LANES threads a row, whose states have TOTALS totals. */
template <int LANES, int TOTALS>
__global__ __launch_bounds__(FINISH_THREADS) void finish_kernel(const __grid_constant__ Finish p) {
    constexpr bool ANSWERS = TOTALS == rfi_answers::TOTALS;
    const int64_t row = ((int64_t)blockIdx.x * FINISH_THREADS + threadIdx.x) / LANES;
    const int lane = threadIdx.x % LANES;
    rfi_release_next();
    const State<TOTALS> *const states =
        (const State<TOTALS> *)p.visitor.partials + row * p.visitor.num_partials + p.first;
    float value = 0;
    bool gives = false;
    /* First without rows, while there are none to be had: then the instructions are near. Nothing is read from memory
     * then: of what is written since, the first-level cache would keep what was there before. Several results are
     * stored one after the other, which is not rehearsed. */
#pragma unroll 1
    for (int turn = p.visitor.batch > REHEARSED_ROWS; turn < 2; turn++) {
        if (turn) rfi_wait_for_previous();
        const bool there = turn && row < p.visitor.batch && !(p.irregular && p.irregular[row]);
        State<TOTALS> v[EACH];
        const int count = load_states<LANES>(v, (const float4 *)states, p.slots, lane, there);
        with_reduction<TOTALS>(p.visitor.chain.reduction, [&](auto of) {
            typedef decltype(of) R;
            State<TOTALS> all[1] = {join_loaded<R>(v, count, p.visitor.chain.shows)};
            if constexpr (LANES == ALL_LANES) {
#pragma unroll 1
                for (int done = LANES * EACH; done < p.slots; done += LANES * EACH) {
                    State<TOTALS> next[EACH];
                    const int more =
                        load_states<LANES>(next, (const float4 *)(states + done), p.slots - done, lane, there);
                    const State<TOTALS> joined[1] = {join_loaded<R>(next, more, p.visitor.chain.shows)};
                    rfi_join_states<R>(all[0], joined);
                }
            }
            rfi_join_lanes<R, LANES>(all);
            if (lane == 0 && (ANSWERS ? there : row < p.visitor.batch))
                rfi_finish_state<R>(p.visitor, row, all[0],
                    [&](const rfi_cuda_visitor &, int64_t, float number) { value = number, gives = there; });
        });
    }
    if (gives) rfi_store_number(p.visitor, row, value);
}

template <int TOTALS> cudaError_t launch_finish(const Finish &p, cudaStream_t stream) {
    const int lanes = p.slots <= RFI_SM90_JOINED ? LANES : ALL_LANES;
    return rfi_launch(lanes == LANES ? finish_kernel<LANES, TOTALS> : finish_kernel<ALL_LANES, TOTALS>, &p,
        dim3((unsigned)((p.visitor.batch * lanes + FINISH_THREADS - 1) / FINISH_THREADS)), FINISH_THREADS, 0, stream,
        true);
}

} // namespace
} // namespace hopper

extern "C" cudaError_t rfi_cuda_finish_sm90(const rfi_cuda_fold *fold, int first, int slots, cudaStream_t stream) {
    using namespace hopper;
    const Finish p = {fold->visitor, fold->product.irregular, first, slots};
    return fold->visitor.chain.reduction == RFI_CUDA_ANSWERS ? launch_finish<rfi_answers::TOTALS>(p, stream)
                                                             : launch_finish<1>(p, stream);
}
