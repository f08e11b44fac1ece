/* SPDX-License-Identifier: MIT */
/* From the states of a row's tiles to y: who writes them where, who is the last, and joins and finishes them. */
#ifndef ROWFOLD_CUDA_SM90_FINISH_CUH
#define ROWFOLD_CUDA_SM90_FINISH_CUH

#include "common/epilogue.cuh"
#include "sm90/states.cuh"

namespace hopper {

/* Draws a ticket for what one thread or several wrote before a barrier that this one has passed. True for the last of
 * `holders`; everything the others wrote before theirs is then visible to this thread, and to those that it tells. */
__device__ __forceinline__ bool draw(unsigned *ticket, int holders) {
    __threadfence();
    const bool last = atomicAdd(ticket, 1u) == (unsigned)holders - 1;
    __threadfence();
    return last;
}

/* One copy of the steps behind the reduction for all reductions, in its place: a call would spill. */
template <int TOTALS>
__device__ __forceinline__ void finish_row(const rfi_cuda_visitor &f, int64_t row, const State<TOTALS> &state) {
    float v = 0;
    bool there = false;
    const auto keep = [&](const rfi_cuda_visitor &, int64_t, float number) { v = number, there = true; };
    with_reduction<TOTALS>(f.chain.reduction, [&](auto of) { rfi_finish_state<decltype(of)>(f, row, state, keep); });
    if (there) rfi_store_number(f, row, v);
}

/* What a consumer's part of a tile is among the states of its 64 rows. */
struct Slot {
    int64_t first_row;
    int block, slot, groups, group, first, count; /* first and count: the slots of its group */
    bool there; /* a part beyond the last row or column has none, but goes the same way: the compiler must see that all
                   threads do */
};

/* Of 64 rows, where `joined` states are joined at a time. */
__device__ __forceinline__ Slot slot_at(const Parameters &p, int block, int slot) {
    Slot s;
    s.block = block;
    s.slot = slot;
    s.first_row = (int64_t)s.block * 64;
    s.there = s.first_row < p.fold.product.batch && s.slot < p.slots;
    s.groups = (p.slots + p.group - 1) / p.group;
    s.group = s.slot / p.group;
    s.first = s.group * p.group;
    s.count = min(p.slots - s.first, p.group);
    return s;
}

template <class C> __device__ __forceinline__ Slot slot_of(const Parameters &p, Tile tile, int warpgroup) {
    return C::SPLITS == 1 ? slot_at(p, tile.m * 2 + warpgroup, tile.n) : slot_at(p, tile.m, tile.n * 2 + warpgroup);
}

__device__ __forceinline__ unsigned *tickets_of(const rfi_cuda_schedule &f, const Slot &s) {
    return f.tickets + (int64_t)s.block * (s.groups + 1);
}

/* The states of a tile go to memory. The last warpgroup to finish one of a group of tiles side by side merges the
 * group's, the last to finish a group merges the groups', always in the order of the columns: the result does not
 * depend on who is last, and nobody has many to merge. */
template <class C> __device__ __forceinline__ void write_states(
    const Parameters &p, const Place &at, const Slot &s, State<C::TOTALS> (&state)[2], const Shared<C> &sh) {
    const rfi_cuda_fold &f = p.fold;
    State<C::TOTALS> *states = (State<C::TOTALS> *)f.visitor.partials + s.first_row * f.visitor.num_partials;
    join_lanes<4>(f.visitor.chain.reduction, state);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = at.row + r * 8;
        if (at.thread % 4 == 0 && s.there && s.first_row + row < f.product.batch &&
            !(*sh.irregular && is_irregular(f.product, s.first_row + row)))
            rfi_write_state(states, row * f.visitor.num_partials + s.slot, state[r]);
    }
    barrier_arrive(written_barrier(at.warpgroup), 160);
}

/* A ticket takes two microseconds to draw: a warp of the producer's does it for a consumer, while that one multiplies
 * the next tile. `slot` says which one of a tile is the consumer's. A block that does not draw goes the same way: one
 * of its own through the loop over tiles would be what hopper.md 12 says. */
template <class C, class SlotOf> __device__ __forceinline__ void draw_tickets(
    const Parameters &p, const Shared<C> &sh, int warpgroup, bool draws, SlotOf slot) {
    rfi_wait_for_previous();
    for (Walk walk = first_tile<C>(p); walk.is_there(); take_next<C>(sh, walk)) {
        const Slot s = slot(walk);
        barrier_sync(written_barrier(warpgroup), 160);
        if (threadIdx.x % 32 == 0) {
            sh.last[walk.count % 2 * CONSUMERS + warpgroup] =
                draws && s.there && draw(tickets_of(p.fold.schedule, s) + s.group, s.count);
            mbarrier_arrive(sh.drawn + 8 * warpgroup);
        }
        __syncwarp(); /* a barrier by name is for whole warps */
    }
}

/* What finish_states needs of a launch and of 64 rows of it. By value: in memory each of these would be a wait of its
 * own, and nobody has anything else to do meanwhile. */
struct Finish {
    const rfi_cuda_fold *fold;
    State<1> *states; /* of the first of the rows, and from each to the next: */
    int64_t ld;
    const uint8_t *irregular; /* of the first; NULL: none is */
    unsigned *tickets;
    uint32_t *last;
    void *y;
    int64_t ldy, first_row;
    float columns;
    int rows; /* there */
    int reduction, y_dtype, num_pre, num_post, first, count, groups, group, group_slot, warpgroup;
};

__device__ __forceinline__ Finish finish_of(
    const Parameters &p, const Slot &s, int warpgroup, uint32_t *last, bool irregular) {
    const rfi_cuda_fold &f = p.fold;
    Finish q;
    q.fold = &f;
    q.states = (State<1> *)f.visitor.partials + s.first_row * f.visitor.num_partials;
    q.ld = f.visitor.num_partials;
    q.irregular = irregular ? f.product.irregular + s.first_row : NULL;
    q.tickets = tickets_of(f.schedule, s);
    q.last = last + 2 * CONSUMERS + warpgroup;
    q.y = f.visitor.y;
    q.ldy = f.visitor.ldy;
    q.first_row = s.first_row;
    q.columns = (float)f.product.out_features;
    q.rows = (int)min(f.product.batch - s.first_row, (int64_t)64);
    q.reduction = f.visitor.chain.reduction;
    q.y_dtype = f.visitor.y_dtype;
    q.num_pre = f.visitor.chain.num_pre;
    q.num_post = f.visitor.chain.num_post;
    q.first = s.first;
    q.count = s.count;
    q.groups = s.groups;
    q.group = s.group;
    q.group_slot = p.group_slot;
    q.warpgroup = warpgroup;
    return q;
}

/* A pair and the first `count` of COUNT beside it. No branch on what is there, so that their latencies overlap; totals
 * are added in double, to which a product is brought once: conversions are slow. */
template <class R, int COUNT>
__device__ __forceinline__ void join_pairs(State<1> &s, const State<1> (&v)[COUNT], int count) {
    static_assert(R::adds(0), "totals that are added");
    float m = s.m, none;
#pragma unroll
    for (int c = 0; c < COUNT; c++) m = c < count ? R::peak(m, v[c].m) : m;
    rfi_carry<R>(s, m);
    R::empty(0, none);
    double t = s.t[0];
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
        const float peak = c < count ? v[c].m : m, total[1] = {c < count ? v[c].t[0] : none};
        t += (double)(R::moved(0, peak, m, total) * R::factor(0, peak, m));
    }
    s.t[0] = (float)t;
}

/* Joins states [first, first + count) of each of ROWS rows, by LANES threads, two neighbouring states a thread in turn;
 * all get the result. All loads are on their way at once. */
template <class R, int ROWS> __device__ __forceinline__ void combine_rows(
    State<1> *const (&states)[ROWS], const bool (&there)[ROWS], int first, int count, State<1> (&all)[ROWS]) {
    constexpr int BLOCK = GROUP / 2, PAIRS = BLOCK / 2;
    const int lane = threadIdx.x % LANES;
#pragma unroll
    for (int r = 0; r < ROWS; r++) rfi_empty_state<R>(all[r]);
    int done = 0;
#pragma unroll 1
    do {
        const int pairs = max((count - done) / 2 - lane + LANES - 1, 0) / LANES;
        State<1> block[ROWS][BLOCK];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                float4 pair = {};
                if (there[r] && i < pairs) pair = __ldcg((const float4 *)(states[r] + first + done) + i * LANES + lane);
                block[r][2 * i] = {pair.x, {pair.y}}, block[r][2 * i + 1] = {pair.z, {pair.w}};
            }
#pragma unroll
        for (int r = 0; r < ROWS; r++) join_pairs<R>(all[r], block[r], there[r] ? 2 * pairs : 0);
        done += LANES * BLOCK;
    } while (done < count);
    if (count % 2) { /* the last is no pair */
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            State<1> one[1];
            rfi_empty_state<R>(one[0]);
            if (there[r] && lane == 0) one[0] = rfi_read_state<float, 1>(states[r], first + count - 1);
            join_pairs<R>(all[r], one, there[r] && lane == 0);
        }
    }
    __syncwarp();
    rfi_join_lanes<R, LANES>(all);
}

/* The steps behind the reduction, each from a lane of its own, whose loads then overlap. All lanes of a warp. */
struct Steps {
    int kind;
    float a, b;
    bool slow; /* more than there are lanes, or a step that reads a row input */
};
__device__ __forceinline__ Steps load_steps(const Finish &q) {
    const int lane = threadIdx.x % 32;
    Steps s = {0, 0, 0, q.num_post > 32};
    bool reads = false;
    if (lane < q.num_post) {
        const rfi_cuda_step &step = q.fold->visitor.chain.steps[q.num_pre + lane];
        s.kind = step.kind, s.a = step.a32, s.b = step.b32, reads = step.row >= 0;
    }
    s.slow |= __any_sync(~0u, reads);
    return s;
}
__device__ __forceinline__ float run_steps(const Finish &q, const Steps &s, int64_t row, float v) {
    if (s.slow) return rfi_run_steps(q.fold->visitor, q.num_pre, q.num_post, min(row, q.fold->product.batch - 1), v);
    float saved = 0;
#pragma unroll 1
    for (int i = 0; i < q.num_post; i++) {
        const int kind = __shfl_sync(~0u, s.kind, i);
        v = rfi_typed<float>::apply(kind, v, __shfl_sync(~0u, s.a, i), __shfl_sync(~0u, s.b, i), saved);
        if (kind == RF_OP_SAVE) saved = v;
    }
    return v;
}

/* Joins the states of a group of tiles side by side, and those of the groups if this group is the last of them, and
 * finishes the rows. By a warpgroup, LANES threads a row. Nobody runs this until everybody waits for it, when its
 * instructions would come from memory, a line after the other: `tries` is for running it on no rows, before there is
 * anything else to do. Not inlined, so that these are the same instructions. */
static __device__ __noinline__ void finish_states(Finish q, bool tries) {
    constexpr int ROWS = LANES / 2; /* of a thread */
    const int thread = thread_in_warpgroup();
    const Steps steps = load_steps(q);
    int row[ROWS];
    bool there[ROWS];
    State<1> *states[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        row[r] = thread / LANES + r * (128 / LANES);
        there[r] = !tries && row[r] < q.rows && !(q.irregular && q.irregular[row[r]]);
        states[r] = q.states + row[r] * q.ld;
    }
    const int mine = thread % LANES; /* each row by a lane of its own */
    bool ends = true;
    float v = 0;
    with_reduction<1>(q.reduction, [&](auto of) {
        typedef decltype(of) R;
        State<1> all[ROWS];
        int first = q.first, count = q.count;
#pragma unroll 1
        for (int left = q.groups > 1 && !tries;; left--) {
            combine_rows<R>(states, there, first, count, all);
            if (!left) break;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (there[r] && mine == 0) rfi_write_state(states[r], q.group_slot + q.group, all[r]);
            __syncwarp();
            barrier_sync(own_barrier(q.warpgroup), 128);
            if (thread == 0) *q.last = draw(q.tickets + q.groups, q.groups);
            __syncwarp();
            barrier_sync(own_barrier(q.warpgroup), 128);
            if (!*q.last) {
                ends = false;
                return;
            }
            first = q.group_slot, count = q.groups;
        }
        State<1> state = all[0];
#pragma unroll
        for (int r = 1; r < ROWS; r++)
            if (mine == r) state = all[r];
        v = R::finish(state.m, state.t, q.columns, (int32_t)RFI_COLUMN_OUTSIDE);
    });
    if (!ends) return;
    bool stores = there[0] && mine == 0;
    int at = row[0];
#pragma unroll
    for (int r = 1; r < ROWS; r++)
        if (mine == r) at = row[r], stores = there[r];
    v = run_steps(q, steps, q.first_row + at, v);
    if (stores) rfi_store_as<float>(q.y, q.y_dtype, (q.first_row + at) * q.ldy, v);
}

/* Whether there is time to try it before x is there: where x is brought to terms in front, that is done sooner, and it
 * is tried while the last ticket is drawn. */
__device__ __forceinline__ bool has_time(const rfi_cuda_fold &f) {
    return f.visitor.chain.reduction != RF_OP_NONE && !f.product.x.scale;
}

/* What is left to do for a tile once its ticket is drawn. `phase` is 0 for the first tile of this consumer, 1 for the
 * second, and so on in turn. */
template <class C> __device__ __forceinline__ void finish_tile(
    const Parameters &p, const Place &at, const Slot &s, uint32_t phase, const Shared<C> &sh) {
    const rfi_cuda_fold &f = p.fold;
    mbarrier_wait(sh.drawn + 8 * at.warpgroup, phase);
    if (!sh.last[phase * CONSUMERS + at.warpgroup]) return;
    if constexpr (C::TOTALS == 1) {
        finish_states(finish_of(p, s, at.warpgroup, sh.last, *sh.irregular), false);
        return;
    }
    const int thread = thread_in_warpgroup();
    const int64_t row = s.first_row + thread / 2;
    const bool there = row < f.product.batch && !(*sh.irregular && is_irregular(f.product, row)),
               mine = there && thread % 2 == 0;
    State<C::TOTALS> *states = (State<C::TOTALS> *)f.visitor.partials + row * f.visitor.num_partials;
    State<C::TOTALS> all = combine_states(f.visitor, states, s.first, there ? s.count : 0);
    if (s.groups > 1) {
        if (mine) rfi_write_state(states, p.group_slot + s.group, all);
        barrier_sync(own_barrier(at.warpgroup), 128);
        uint32_t *last = sh.last + 2 * CONSUMERS + at.warpgroup;
        if (thread == 0) *last = draw(tickets_of(f.schedule, s) + s.groups, s.groups);
        __syncwarp();
        barrier_sync(own_barrier(at.warpgroup), 128);
        if (!*last) return;
        all = combine_states(f.visitor, states, p.group_slot, there ? s.groups : 0);
    }
    if (mine) finish_row(f.visitor, row, all);
}

} // namespace hopper
#endif
