/* From sums of products in registers to y: scales, bias, steps, the fold of a thread's columns, and the combination of blocks of columns.
 *
 * Registers are what these kernels have least of: a value more that lives here is spilled in the main loop. So steps run on chunks of the accumulators, and
 * states are merged through shared memory. */
#ifndef ROWFOLD_CUDA_HOPPER_EPILOGUE_CUH
#define ROWFOLD_CUDA_HOPPER_EPILOGUE_CUH

#include "hopper_config.cuh"
#include "typed.cuh"

namespace hopper {

/* Copies chunk c of the accumulators out. Registers have no run-time index: a branch a chunk instead. */
template <int N> __device__ __forceinline__ void take_chunk(const float (&total)[N], int c, float (&v)[CHUNK]) {
#define TAKE(i)                                                                                     \
    case i:                                                                                         \
        if constexpr ((i) * CHUNK < N) {                                                            \
            _Pragma("unroll") for (int j = 0; j < CHUNK; j++) v[j] = total[((i) * CHUNK + j) % N];   \
        }                                                                                           \
        break;
    switch (c) { TAKE(0) TAKE(1) TAKE(2) TAKE(3) TAKE(4) TAKE(5) TAKE(6) TAKE(7) }
#undef TAKE
    static_assert(N <= 8 * CHUNK, "chunks without a branch");
}

/* Values of this thread's columns of chunk c, two in eight; `table` begins at its first column of the tile. */
template <int COLUMNS> __device__ __forceinline__ void load_columns(const float *table, int c, float (&out)[COLUMNS]) {
#pragma unroll
    for (int g = 0; g < COLUMNS / 2; g++) {
        float2 q = *reinterpret_cast<const float2 *>(table + c * COLUMNS * 4 + g * 8);
        out[2 * g] = q.x, out[2 * g + 1] = q.y;
    }
}

/* Sums of products to logits; chunk c of the thread's, or all. Accumulator j is of row j / 2 % 2 and of column j / 4 * 2 + j % 2. */
template <class C, int N>
__device__ __forceinline__ void scale_and_shift(const rfi_cuda_fold &f, float (&v)[N], int c, const float *table, const float (&row_scale)[2]) {
    float bias[N / 2];
    load_columns(table + C::BN, c, bias);
    if (C::PRODUCTS > 1 || f.w.scale) {
        float scale[N / 2];
        load_columns(table, c, scale);
#pragma unroll
        for (int j = 0; j < N; j++) {
            int column = j / 4 * 2 + j % 2;
            v[j] = fmaf(v[j], scale[column] * row_scale[j / 2 % 2], bias[column]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < N; j++) v[j] += bias[j / 4 * 2 + j % 2];
    }
}

template <class C> __device__ __forceinline__ void apply_steps(const rfi_cuda_fold &f, float (&v)[CHUNK], int c, const float *table) {
    float saved[CHUNK] = {};
#pragma unroll 1
    for (int i = 0; i < f.chain.num_pre; i++) {
        const rfi_cuda_step &step = f.chain.steps[i];
        const float b = step.b32;
        float a[CHUNK / 2];
#pragma unroll
        for (int j = 0; j < CHUNK / 2; j++) a[j] = step.a32;
        if (step.vector >= 0) load_columns(table + (2 + step.vector) * C::BN, c, a);
        switch (step.kind) {
#define RFI_OP(id, number, name, params, flags, formula, doc)                       \
    case number:                                                                    \
        _Pragma("unroll") for (int j = 0; j < CHUNK; j++) {                         \
            v[j] = rfi_op_##id##_f32(v[j], a[j / 4 * 2 + j % 2], b, saved[j]);      \
            if ((flags) & RFI_OPF_SAVES) saved[j] = v[j];                           \
        }                                                                           \
        break;
#include "ops.def"
#undef RFI_OP
        }
    }
}

/* Folds this thread's columns of each of its two rows. RAGGED: `width` columns are real, counted from the thread's first. */
template <bool RAGGED, int N> __device__ __forceinline__ void fold_columns(int reduction, const float (&v)[N], int width, rfi_state_f32 (&state)[2]) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, name, peak0_, peak_, term_, rescale_, finish_, empty_ok, doc)            \
    case number:                                                                                           \
        _Pragma("unroll") for (int r = 0; r < 2; r++) {                                                    \
            float m = rfi_peak0_##id##_f32(), t = 0;                                                       \
            _Pragma("unroll") for (int j = 2 * r; j < N; j += j % 2 ? 3 : 1)                               \
                if (!RAGGED || j / 4 * 8 + j % 2 < width) m = rfi_peak_##id##_f32(m, v[j]);                \
            _Pragma("unroll") for (int j = 2 * r; j < N; j += j % 2 ? 3 : 1)                               \
                if (!RAGGED || j / 4 * 8 + j % 2 < width) t += rfi_term_##id##_f32(m, v[j]);               \
            state[r].m = m;                                                                                \
            state[r].t = t;                                                                                \
        }                                                                                                  \
        break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}

__device__ __forceinline__ bool is_irregular(const rfi_cuda_fold &f, int64_t row) { return f.irregular && f.irregular[row]; }

__device__ __forceinline__ void store_logits(const rfi_cuda_fold &f, const float (&v)[CHUNK], int64_t row, int64_t column) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= f.batch || is_irregular(f, row + 8 * r)) continue;
#pragma unroll
        for (int g = 0; g < CHUNK / 4; g++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int64_t to = column + g * 8 + e;
                if (to < f.out_features) rfi_store_as<float>(f.y, f.y_dtype, (row + 8 * r) * f.ldy + to, v[4 * g + 2 * r + e]);
            }
    }
}

/* Merges the states of LANES neighbouring lanes, a power of two; all get the same bits. */
template <int LANES> __device__ __forceinline__ rfi_state_f32 merge_lanes(int reduction, rfi_state_f32 state) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        rfi_state_f32 other = {__shfl_xor_sync(~0u, state.m, step), __shfl_xor_sync(~0u, state.t, step)};
        bool upper = threadIdx.x & step;
        rfi_state_f32 first = upper ? other : state, second = upper ? state : other;
        state = rfi_state_merge_f32(reduction, first, second);
    }
    return state;
}

/* Merges `count` states into one: the common peak first, then every total once. */
__device__ __forceinline__ rfi_state_f32 merge_block(int reduction, rfi_state_f32 state, const float2 *block, int count) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, name, peak0_, peak_, term_, rescale_, finish_, empty_ok, doc)            \
    case number: {                                                                                         \
        float m = state.m;                                                                                 \
        for (int i = 0; i < count; i++) m = rfi_peak_##id##_f32(m, block[i].x);                            \
        float t = state.t * rfi_rescale_##id##_f32(state.m, m);                                            \
        for (int i = 0; i < count; i++) t += block[i].y * rfi_rescale_##id##_f32(block[i].x, m);           \
        state.m = m;                                                                                       \
        state.t = t;                                                                                       \
        break;                                                                                             \
    }
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return state;
}

/* Merges states [first, first + count) of each of 64 rows, in their order; two threads a row, both get the result. `scratch` holds 16 states of each row.
 * Rows from `rows` on are not there: their states are not read, and what comes of them is not used. */
__device__ __forceinline__ rfi_state_f32 combine_states(const rfi_cuda_fold &f, const float2 *states, int rows, int first, int count, int warpgroup, float2 *scratch) {
    constexpr int BLOCK = 16, PITCH = BLOCK + 2; /* the padding spreads rows over the banks */
    const int thread = thread_in_warpgroup(), row = thread / 2, half = thread % 2;
    rfi_state_f32 state = rfi_state_empty_f32(f.chain.reduction);
#pragma unroll 1
    for (int done = 0; done < count; done += BLOCK) {
        barrier_sync(1 + warpgroup, 128);
#pragma unroll
        for (int i = 0; i < BLOCK / 4; i++) {
            int r = thread / 8 + i * 16, pair = thread % 8 * 2;
            if (r < rows && done + pair < count) copy_async_16(shared_address(scratch + r * PITCH + pair), states + r * f.num_partials + first + done + pair);
        }
        copy_async_wait();
        barrier_sync(1 + warpgroup, 128);
        int mine = min(max(count - done - half * BLOCK / 2, 0), BLOCK / 2);
        state = merge_block(f.chain.reduction, state, scratch + row * PITCH + half * BLOCK / 2, mine);
    }
    return merge_lanes<2>(f.chain.reduction, state);
}

/* The states that another kernel wrote for an irregular row. */
__device__ __forceinline__ rfi_state_f32 combine_irregular(const rfi_cuda_fold &f, int64_t row) {
    const rfi_state_f32 *states = (const rfi_state_f32 *)f.partials + row * f.num_partials;
    rfi_state_f32 state = rfi_state_empty_f32(f.chain.reduction);
    for (int64_t i = 0; i * RFI_FOLD_COLUMNS < f.out_features; i++)
        state = rfi_state_merge_f32(f.chain.reduction, state, {__ldcg(&states[i].m), __ldcg(&states[i].t)});
    return state;
}

/* Draws a ticket once the whole warpgroup has written its states. True for the last of `holders`; everything the others wrote before theirs is then visible. */
__device__ __forceinline__ bool last_to_finish(unsigned *ticket, unsigned holders, int warpgroup, uint32_t *last) {
    __threadfence();
    barrier_sync(1 + warpgroup, 128);
    if (thread_in_warpgroup() == 0) last[warpgroup] = atomicAdd(ticket, 1u) == holders - 1;
    barrier_sync(1 + warpgroup, 128);
    if (!last[warpgroup]) return false;
    __threadfence();
    return true;
}

__device__ __forceinline__ void finish_row(const rfi_cuda_fold &f, int64_t row, rfi_state_f32 state) {
    float v = rfi_state_finish_f32(f.chain.reduction, state, (float)f.out_features), saved = 0;
#pragma unroll 1
    for (int i = f.chain.num_pre; i < f.chain.num_pre + f.chain.num_post; i++) {
        const rfi_cuda_step &step = f.chain.steps[i];
        v = rfi_op_apply_f32(step.kind, v, step.a32, step.b32, saved);
        if (step.kind == RF_OP_SAVE) saved = v;
    }
    rfi_store_as<float>(f.y, f.y_dtype, row * f.ldy, v);
}

/* The states of a tile go to memory. The last warpgroup to finish one of a group of tiles side by side merges the group's, the last to finish a group merges the
 * groups', always in the order of the columns: the result does not depend on who is last, and nobody has many to merge. */
template <class C>
__device__ __forceinline__ void finish_tile(const Parameters &p, const Place &at, Tile tile, rfi_state_f32 (&state)[2], const Shared<C> &sh) {
    const rfi_cuda_fold &f = p.fold;
    const int block = C::SPLITS == 1 ? tile.m * 2 + at.warpgroup : tile.m, slot = C::SPLITS == 1 ? tile.n : tile.n * 2 + at.warpgroup;
    const int64_t first_row = (int64_t)block * 64;
    if (first_row >= f.batch || slot >= p.slots) return; /* the same for the whole warpgroup */
    float2 *states = (float2 *)f.partials + first_row * f.num_partials, *scratch = sh.scratch + at.warpgroup * (C::SCRATCH / 8);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        rfi_state_f32 all = merge_lanes<4>(f.chain.reduction, state[r]);
        int row = at.row + r * 8;
        if (at.thread % 4 == 0 && first_row + row < f.batch && !is_irregular(f, first_row + row)) states[row * f.num_partials + slot] = {all.m, all.t};
    }
    const int groups = (p.slots + GROUP - 1) / GROUP, group = slot / GROUP, first = group * GROUP, count = min(p.slots - first, GROUP);
    unsigned *tickets = f.tickets + (int64_t)block * (groups + 1);
    if (!last_to_finish(tickets + group, count, at.warpgroup, sh.last)) return;
    const int rows = (int)min(f.batch - first_row, (int64_t)64);
    rfi_state_f32 all = combine_states(f, states, rows, first, count, at.warpgroup, scratch);
    const int thread = thread_in_warpgroup();
    const int64_t row = first_row + thread / 2;
    const bool mine = thread % 2 == 0 && row < f.batch;
    if (groups > 1) {
        if (mine && !is_irregular(f, row)) states[thread / 2 * f.num_partials + p.group_slot + group] = {all.m, all.t};
        if (!last_to_finish(tickets + groups, groups, at.warpgroup, sh.last)) return;
        all = combine_states(f, states, rows, p.group_slot, groups, at.warpgroup, scratch);
    }
    if (!mine) return;
    if (is_irregular(f, row)) all = combine_irregular(f, row);
    finish_row(f, row, all);
}

template <class C, int N>
__device__ __forceinline__ void epilogue(const Parameters &p, const Place &at, Tile tile, float (&total)[N], const float *table, const Shared<C> &sh) {
    const rfi_cuda_fold &f = p.fold;
    const int reduction = f.chain.reduction;
    const int first = (C::SPLITS == 1 ? 0 : at.warpgroup * C::WN) + at.column; /* this thread's first column in the tile */
    const int64_t column = (int64_t)tile.n * C::BN + first, row = (int64_t)tile.m * C::BM + (C::SPLITS == 1 ? at.warpgroup * 64 : 0) + at.row;
    table += first;
    float row_scale[2] = {1, 1};
    if (f.x.scale) {
        row_scale[0] = row < f.batch ? f.x.scale[row] : 1;
        row_scale[1] = row + 8 < f.batch ? f.x.scale[row + 8] : 1;
    }
    rfi_state_f32 state[2] = {rfi_state_empty_f32(reduction), rfi_state_empty_f32(reduction)};
    if (!f.chain.num_pre && reduction != RF_OP_NONE && column + 2 * N <= f.out_features) { /* nothing in between: all registers at once */
        scale_and_shift<C>(f, total, 0, table, row_scale);
        fold_columns<false>(reduction, total, 0, state);
    } else {
#pragma unroll 1
        for (int c = 0; c < N / CHUNK; c++) {
            float v[CHUNK];
            take_chunk(total, c, v);
            scale_and_shift<C>(f, v, c, table, row_scale);
            apply_steps<C>(f, v, c, table);
            const int64_t from = column + c * CHUNK * 2;
            if (reduction == RF_OP_NONE) {
                store_logits(f, v, row, from);
                continue;
            }
            rfi_state_f32 chunk[2];
            if (from + 2 * CHUNK <= f.out_features) fold_columns<false>(reduction, v, 0, chunk);
            else fold_columns<true>(reduction, v, (int)max(f.out_features - from, (int64_t)0), chunk);
#pragma unroll
            for (int r = 0; r < 2; r++) state[r] = rfi_state_merge_f32(reduction, state[r], chunk[r]);
        }
    }
    if (reduction != RF_OP_NONE) finish_tile<C>(p, at, tile, state, sh);
}

} // namespace hopper
#endif
