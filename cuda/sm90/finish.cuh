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

__device__ __forceinline__ Slot slot_at(const Parameters &p, int block, int slot) {
    Slot s;
    s.block = block;
    s.slot = slot;
    s.first_row = (int64_t)s.block * 64;
    s.there = s.first_row < p.fold.product.batch && s.slot < p.slots;
    s.groups = (p.slots + GROUP - 1) / GROUP;
    s.group = s.slot / GROUP;
    s.first = s.group * GROUP;
    s.count = min(p.slots - s.first, GROUP);
    return s;
}

template <class C> __device__ __forceinline__ Slot slot_of(const Parameters &p, Tile tile, int warpgroup) {
    return C::SPLITS == 1 ? slot_at(p, tile.m * 2 + warpgroup, tile.n) : slot_at(p, tile.m, tile.n * 2 + warpgroup);
}

__device__ __forceinline__ unsigned *tickets_of(const rfi_cuda_schedule &f, const Slot &s) {
    return f.tickets + (int64_t)s.block * (s.groups + 1);
}

/* The states of a tile go to memory. A kernel behind this one merges them all: see finish.cu. Or, where there are
 * tickets, the last warpgroup to finish one of a group of tiles side by side merges the group's, the last to finish a
 * group merges the groups', always in the order of the columns: the result does not depend on who is last. */
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
    if (C::MERGES) barrier_arrive(written_barrier(at.warpgroup), 160);
}

/* A ticket takes two microseconds to draw: a warp of the producer's does it for a consumer, while that one multiplies
 * the next tile. Where none is drawn all go the same way: one of its own through the loop over tiles would be what
 * hopper.md 12 says. Where a state is all that there is of a row, it is the last. */
template <class C>
__device__ __forceinline__ void draw_tickets(const Parameters &p, const Shared<C> &sh, int warpgroup, int rank) {
    rfi_wait_for_previous();
    for (Walk walk = first_tile<C>(p); walk.is_there(); take_next<C>(sh, walk)) {
        const Slot s = slot_of<C>(p, walk.of<C>(rank), warpgroup);
        barrier_sync(written_barrier(warpgroup), 160);
        if (threadIdx.x % 32 == 0) {
            sh.last[walk.count % 2 * CONSUMERS + warpgroup] = s.there &&
                (draws_tickets(p.fold) ? draw(tickets_of(p.fold.schedule, s) + s.group, s.count)
                                       : finishes_alone<C>(p));
            mbarrier_arrive(sh.drawn + 8 * warpgroup);
        }
        __syncwarp(); /* a barrier by name is for whole warps */
    }
}

/* Merges the states of a group of tiles side by side, and those of the groups if this group is the last of them, and
 * finishes the rows. By a warpgroup. */
template <int TOTALS>
__device__ __forceinline__ void merge_group(const Parameters &p, const Slot &s, uint32_t *last, bool irregular) {
    const rfi_cuda_fold &f = p.fold;
    const int thread = thread_in_warpgroup(), warpgroup = threadIdx.x / 128 - 1;
    const int64_t row = s.first_row + thread / 2;
    const bool there = row < f.product.batch && !(irregular && is_irregular(f.product, row)),
               mine = there && thread % 2 == 0;
    State<TOTALS> *states = (State<TOTALS> *)f.visitor.partials + row * f.visitor.num_partials;
    State<TOTALS> all = combine_states(f.visitor, states, s.first, there ? s.count : 0);
    if (s.groups > 1) {
        if (mine) rfi_write_state(states, p.group_slot + s.group, all);
        barrier_sync(own_barrier(warpgroup), 128);
        if (thread == 0) *last = draw(tickets_of(f.schedule, s) + s.groups, s.groups);
        __syncwarp();
        barrier_sync(own_barrier(warpgroup), 128);
        if (!*last) return;
        all = combine_states(f.visitor, states, p.group_slot, there ? s.groups : 0);
    }
    if (mine) finish_row(f.visitor, row, all);
}

/* What is left to do for a tile once its ticket is drawn. `phase` is 0 for the first tile of this consumer, 1 for the
 * second, and so on in turn. Inlined: a call spills states of so many words. */
template <class C> __device__ __forceinline__ void finish_tile(
    const Parameters &p, int warpgroup, const Slot &s, uint32_t phase, const Shared<C> &sh) {
    mbarrier_wait(sh.drawn + 8 * warpgroup, phase);
    if (!sh.last[phase * CONSUMERS + warpgroup]) return;
    merge_group<C::TOTALS>(p, s, sh.last + 2 * CONSUMERS + warpgroup, *sh.irregular);
}

} // namespace hopper
#endif
