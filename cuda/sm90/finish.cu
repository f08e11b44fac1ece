/* SPDX-License-Identifier: MIT */
/* Rows are finished by a kernel of its own, which waits on the multiprocessors that have no tile any more until all
 * states are written. The last block of a row could do it, as where tickets are drawn, but it would first have to learn
 * that it is the last: a fence, an atomic and two barriers, 2 us, and then to fetch instructions that nobody has run
 * before, while all others are idle. See doc/kernels/hopper.md 69 and 116. */
#include "kernels.h"
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "sm90/states.cuh"

namespace hopper {
namespace {

constexpr int FINISH_THREADS = 128;
constexpr int EACH = 8; /* states of a row that a lane merges at a time, or half as many of few: with fewer lanes a row
                           lies in more pieces, with more of them there are more instructions, which the blocks that
                           are there early, on a few multiprocessors, wait for */
constexpr int FEW_LANES = 3, MOST_LANES = 5; /* of few states, and a warp's; as powers of two */

constexpr int REHEARSING_BLOCKS = 64; /* at most: many take turns, so that the first have fetched what others run */

struct Finish {
    rfi_cuda_visitor visitor;
    const uint8_t *irregular; /* of each row: 1 for one that the fold kernel finishes itself; NULL: none is */
    int32_t first, slots;     /* states of a row */
    int32_t lanes;            /* that share them out, as a power of two */
};

/* A lane's states, all words of them or, where the others are not shown, without those that are added. No branch, so
 * that their latencies overlap; totals are added in double, to which a product is brought once: conversions are slow.
 */
template <class R, bool ADDS, int N> __device__ __forceinline__ State<N> join_loaded(const State<N> (&v)[EACH]) {
    State<N> s;
    rfi_empty_state<R>(s);
    double added[N];
#pragma unroll
    for (int i = 0; i < N; i++) added[i] = s.t[i];
#pragma unroll
    for (int c = 0; c < EACH; c++) s.m = R::peak(s.m, v[c].m);
#pragma unroll
    for (int c = 0; c < EACH; c++)
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (R::adds(i) && !ADDS) continue;
            const float total = R::moved(i, v[c].m, s.m, v[c].t) * R::factor(i, v[c].m, s.m);
            if (R::adds(i)) added[i] += (double)total;
            else s.t[i] = R::join(i, s.t[i], total);
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (R::adds(i)) s.t[i] = (float)added[i];
    return s;
}
template <class R, int N> __device__ __forceinline__ State<N> join_loaded(const State<N> (&v)[EACH], int shows) {
    if constexpr (std::is_same<R, rfi_answers>::value) {
        if (!(shows & RFI_CUDA_SHOWS_TOTAL)) return join_loaded<R, false>(v);
    }
    return join_loaded<R, true>(v);
}

/* Where it is wanted: without a branch, behind which the next would wait, and from the second-level cache. */
__device__ __forceinline__ void load_if(bool wanted, const State<1> *from, State<1> &v) {
    asm volatile("{\n.reg .pred wanted;\n"
                 "setp.ne.b32 wanted, %3, 0;\n"
                 "@wanted ld.global.cg.v2.f32 {%0, %1}, [%2];\n}"
        : "+f"(v.m), "+f"(v.t[0])
        : "l"(from), "r"((int)wanted)
        : "memory");
}
__device__ __forceinline__ void load_if(bool wanted, const State<3> *from, State<3> &v) {
    asm volatile("{\n.reg .pred wanted;\n"
                 "setp.ne.b32 wanted, %5, 0;\n"
                 "@wanted ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
        : "+f"(v.m), "+f"(v.t[0]), "+f"(v.t[1]), "+f"(v.t[2])
        : "l"(from), "r"((int)wanted)
        : "memory");
}

/* `count` of a lane's states, `done` behind where the first of each lie; all on their way at once. */
template <int N> __device__ __forceinline__ void load_states(
    State<N> (&v)[EACH], const State<N> &empty, const State<N> *(&from)[EACH], int done, int count) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] = empty;
        load_if(i < count, from[i] + done, v[i]);
    }
}

/* States have TOTALS totals. */
template <int TOTALS>
__global__ __launch_bounds__(FINISH_THREADS) void finish_kernel(const __grid_constant__ Finish p) {
    const int lanes = p.lanes, lane = threadIdx.x & (1 << lanes) - 1, reduction = p.visitor.chain.reduction;
    const int64_t row = (int64_t)blockIdx.x * (FINISH_THREADS >> lanes) + (threadIdx.x >> lanes);
    rfi_release_next();
    const State<TOTALS> *const states =
        (const State<TOTALS> *)p.visitor.partials + row * p.visitor.num_partials + p.first;
    const State<TOTALS> empty = empty_state<TOTALS>(reduction);
    /* Every 2^lanes-th from its own on are a lane's. */
    const State<TOTALS> *from[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) from[i] = states + lane + (i << lanes);
    const int held = row < p.visitor.batch ? (p.slots - lane + (1 << lanes) - 1) >> lanes : 0;
    /* First without rows, while there are none to be had: then the instructions are near. Nothing is read from memory
     * then: of what is written since, the first-level cache would keep what was there before. */
    const bool rehearses = gridDim.x <= REHEARSING_BLOCKS && !p.visitor.row_inputs && !p.visitor.columns;
#pragma unroll 1
    for (int turn = !rehearses; turn < 2; turn++) {
        if (turn) rfi_wait_for_previous();
        const bool there = turn && row < p.visitor.batch && !(p.irregular && p.irregular[row]);
        float value = 0;
        bool gives = false;
        State<TOTALS> v[EACH];
        load_states(v, empty, from, 0, there ? held : 0);
        with_reduction<TOTALS>(reduction, [&](auto of) {
            typedef decltype(of) R;
            State<TOTALS> all[1] = {join_loaded<R>(v, p.visitor.chain.shows)};
#pragma unroll 1
            for (int done = EACH << lanes; done < p.slots; done += EACH << lanes) {
                load_states(v, empty, from, done, there ? held - (done >> lanes) : 0);
                const State<TOTALS> joined[1] = {join_loaded<R>(v, p.visitor.chain.shows)};
                rfi_join_states<R>(all[0], joined);
            }
            join_some_lanes<R>(all[0], 1 << lanes);
            if (lane == 0 && (there || !turn))
                rfi_finish_state<R>(
                    p.visitor, row, all[0],
                    [&](const rfi_cuda_visitor &, int64_t, float number) { value = number, gives = true; }, turn);
        });
        if (gives) rfi_store_number(p.visitor, row, value, turn);
    }
}

template <int TOTALS> cudaError_t launch_finish(const Finish &p, cudaStream_t stream) {
    const int rows = FINISH_THREADS >> p.lanes; /* of a block */
    return rfi_launch(finish_kernel<TOTALS>, &p, dim3((unsigned)((p.visitor.batch + rows - 1) / rows)), FINISH_THREADS,
        0, stream, true);
}

/* By the states of a row alone, so that its bits do not depend on the batch. */
int lanes_for(int slots) {
    int lanes = 0;
    while (lanes < MOST_LANES && (lanes < FEW_LANES ? EACH / 2 : EACH) << lanes < slots) lanes++;
    return lanes;
}

} // namespace
} // namespace hopper

extern "C" cudaError_t rfi_cuda_finish_sm90(const rfi_cuda_fold *fold, int first, int slots, cudaStream_t stream) {
    using namespace hopper;
    const Finish p = {fold->visitor, fold->product.irregular, first, slots, lanes_for(slots)};
    return fold->visitor.chain.reduction == RFI_CUDA_ANSWERS ? launch_finish<rfi_answers::TOTALS>(p, stream)
                                                             : launch_finish<1>(p, stream);
}
