/* SPDX-License-Identifier: MIT */
/* From sums of products in registers to y: scales, bias, steps, the fold of a thread's columns, and the combination of
 * blocks of columns.
 *
 * Registers are what these kernels have least of: a value more that lives here is spilled in the main loop. So steps
 * run on chunks of the accumulators, and states are merged through shared memory. */
#ifndef ROWFOLD_CUDA_SM90_EPILOGUE_CUH
#define ROWFOLD_CUDA_SM90_EPILOGUE_CUH

#include "common/epilogue.cuh"
#include "sm90/config.cuh"

namespace hopper {

/* Registers have no run-time index: a branch a chunk instead. */
#define CHUNKS(CASE) CASE(0) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)

/* Copies chunk c of the accumulators out. */
template <int N, int SIZE>
__device__ __forceinline__ void take_chunk(const float (&total)[N], int c, float (&v)[SIZE]) {
    static_assert(N <= 8 * SIZE, "chunks without a branch");
#define TAKE(i)                                                                                  \
    case i:                                                                                      \
        if constexpr ((i) * SIZE < N) {                                                          \
            _Pragma("unroll") for (int j = 0; j < SIZE; j++) v[j] = total[((i) * SIZE + j) % N]; \
        }                                                                                        \
        break;
    switch (c) { CHUNKS(TAKE) }
#undef TAKE
}
#undef CHUNKS

/* Values of this thread's columns of chunk c, two in eight; `table` begins at its first column of the tile. */
template <int COLUMNS> __device__ __forceinline__ void load_columns(const float *table, int c, float (&out)[COLUMNS]) {
#pragma unroll
    for (int g = 0; g < COLUMNS / 2; g++) {
        float2 q = *reinterpret_cast<const float2 *>(table + c * COLUMNS * 4 + g * 8);
        out[2 * g] = q.x, out[2 * g + 1] = q.y;
    }
}

/* Sums of products to logits; chunk c of the thread's, or all. Accumulator j is of row j / 2 % 2 and of column j / 4 *
 * 2 + j % 2. */
template <class C, int N> __device__ __forceinline__ void scale_and_shift(
    const rfi_cuda_fold &f, float (&v)[N], int c, const float *table, const float (&row_scale)[2]) {
    table += c * N * 2;
    if (C::PRODUCTS > 1 || f.w.scale || f.x.scale) {
#pragma unroll
        for (int g = 0; g < N / 4; g++) { /* a pair of columns, in both rows */
            const float2 scale = *reinterpret_cast<const float2 *>(table + g * 8),
                         bias = *reinterpret_cast<const float2 *>(table + C::BN + g * 8);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float a = v[4 * g + 2 * r], b = v[4 * g + 2 * r + 1];
                v[4 * g + 2 * r] = fmaf(C::PRODUCTS > 1 ? rfi_unbiased(a) : a, scale.x * row_scale[r], bias.x);
                v[4 * g + 2 * r + 1] = fmaf(C::PRODUCTS > 1 ? rfi_unbiased(b) : b, scale.y * row_scale[r], bias.y);
            }
        }
    } else {
#pragma unroll
        for (int g = 0; g < N / 4; g++) {
            const float2 bias = *reinterpret_cast<const float2 *>(table + C::BN + g * 8);
#pragma unroll
            for (int r = 0; r < 2; r++) v[4 * g + 2 * r] += bias.x, v[4 * g + 2 * r + 1] += bias.y;
        }
    }
}

/* A step whose parameter is a row input. Of these there are versions of their own, as of states with more words: what
 * the others keep in registers stays as it is. */
template <int SIZE> __device__ __forceinline__ void apply_row_step(
    const rfi_cuda_fold &f, const rfi_cuda_step &step, float (&v)[SIZE], int64_t row) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float part[SIZE / 2];
        const float a = ((const float *)f.row_inputs)[step.row * f.batch + min(row + 8 * r, f.batch - 1)];
#pragma unroll
        for (int j = 0; j < SIZE / 2; j++) part[j] = v[j / 2 * 4 + 2 * r + j % 2];
        rfi_apply_row_step(step, part, a);
#pragma unroll
        for (int j = 0; j < SIZE / 2; j++) v[j / 2 * 4 + 2 * r + j % 2] = part[j];
    }
}

template <class C, int SIZE> __device__ __forceinline__ void apply_steps(
    const rfi_cuda_fold &f, float (&v)[SIZE], int c, int64_t row, const float *table) {
    float saved[SIZE] = {};
    int op = f.chain.steps[0].op, vector = f.chain.steps[0].vector;
    float a0 = f.chain.steps[0].a32, b0 = f.chain.steps[0].b32;
#pragma unroll 1
    for (int i = 0; i < f.chain.num_pre; i++) {
        const int now = op;
        const float b = b0;
        float a[SIZE / 2];
#pragma unroll
        for (int j = 0; j < SIZE / 2; j++) a[j] = a0;
        if (vector >= 0) load_columns(table + (2 + vector) * C::BN, c, a);
        const rfi_cuda_step &next =
            f.chain.steps[min(i + 1, f.chain.num_pre - 1)]; /* on its way while this one is computed */
        op = next.op, vector = next.vector, a0 = next.a32, b0 = next.b32;
        if constexpr (C::ROW_INPUTS) {
            if (f.chain.steps[i].row >= 0) {
                apply_row_step(f, f.chain.steps[i], v, row);
                continue;
            }
        }
        switch (now) {
#define RFI_OP(id, number, name, params, flags, formula, doc)                  \
    case RFI_CUDA_OP_##id:                                                     \
        _Pragma("unroll") for (int j = 0; j < SIZE; j++) {                     \
            v[j] = rfi_op_##id##_f32(v[j], a[j / 4 * 2 + j % 2], b, saved[j]); \
            if ((flags) & RFI_OPF_SAVES) saved[j] = v[j];                      \
        }                                                                      \
        break;
#include "ops.def"
#undef RFI_OP
        }
    }
}

/* The steps on all accumulators of a thread, in place. SAVES: a step remembers values, of half of the accumulators at a
 * time, for 64 more registers are there, not 128. */
template <class C, bool SAVES, int N>
__device__ __forceinline__ void apply_affine(const rfi_cuda_fold &f, float (&v)[N], const float *table) {
    constexpr int SIZE = SAVES && N > 64 ? 64 : N;
#pragma unroll
    for (int first = 0; first < N; first += SIZE) {
        float saved[SAVES ? SIZE : 1] = {};
#pragma unroll 1
        for (int i = 0; i < f.chain.num_affine; i++) {
            const rfi_cuda_affine &step = f.chain.affine[i];
            const float a = step.a, b = step.b, low = step.low, high = step.high;
            if (step.a_vector >= 0 || step.b_vector >= 0) {
                const float *as = table + (2 + max(step.a_vector, 0)) * C::BN,
                            *bs = table + (2 + max(step.b_vector, 0)) * C::BN;
#pragma unroll
                for (int g = 0; g < SIZE / 4; g++) {
                    const float2 p =
                        step.a_vector >= 0 ? *reinterpret_cast<const float2 *>(as + first * 2 + g * 8) : float2{a, a};
                    const float2 q =
                        step.b_vector >= 0 ? *reinterpret_cast<const float2 *>(bs + first * 2 + g * 8) : float2{b, b};
#pragma unroll
                    for (int j = 4 * g; j < 4 * g + 4; j++)
                        v[first + j] = fmaf(v[first + j], j % 2 ? p.y : p.x, j % 2 ? q.y : q.x);
                }
            } else if (SAVES && step.addend == RFI_CUDA_ADDS_SAVED) {
#pragma unroll
                for (int j = 0; j < SIZE; j++) v[first + j] = fmaf(v[first + j], a, saved[SAVES ? j : 0]);
            } else {
#pragma unroll
                for (int j = 0; j < SIZE; j++) v[first + j] = fmaf(v[first + j], a, b);
            }
            if (step.clamps) {
#pragma unroll
                for (int j = 0; j < SIZE; j++) v[first + j] = rfi_minn_f32(rfi_maxn_f32(v[first + j], low), high);
            }
            if (SAVES && step.saves) {
#pragma unroll
                for (int j = 0; j < SIZE; j++) saved[SAVES ? j : 0] = v[first + j];
            }
        }
    }
}

__device__ __forceinline__ bool is_irregular(const rfi_cuda_fold &f, int64_t row) {
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

/* The logit that a row asks for, if it is one of this thread's, which are as in fold_columns. */
template <int N> __device__ __forceinline__ void pick_column(
    const rfi_cuda_fold &f, const float (&v)[N], int64_t row, int64_t column, int r) {
    const int64_t asked = rfi_asked(f, row), offset = asked - column;
    if (row >= f.batch || asked >= f.out_features || offset < 0 || offset >= 2 * N || is_irregular(f, row)) return;
#pragma unroll
    for (int j = 2 * r; j < N; j += j % 2 ? 3 : 1)
        if (offset == j / 4 * 8 + j % 2) ((float *)f.picked)[row] = v[j];
}

/* Of columns that all lie before the bound z's own, or all behind it, those come before it that are not at or below
 * this: NaN, too, and of equal ones those that lie before. */
__device__ __forceinline__ float threshold_of(float z, bool lie_before) {
    if (!lie_before) return z;
    if (z == -INFINITY) return NAN;
    const int bits = __float_as_int(z);
    return z != z ? INFINITY : __int_as_float(z > 0 ? bits - 1 : z < 0 ? bits + 1 : (int)0x80000001);
}

/* word |= bit if x is above t or either is NaN. By hand: the compiler makes a tree of selects of all columns, and
 * spills the tree. */
__device__ __forceinline__ void mark_above(uint32_t &word, float x, float t, uint32_t bit) {
    asm("{\n.reg .pred p;\nsetp.gtu.f32 p, %1, %2;\n@p or.b32 %0, %0, %3;\n}" : "+r"(word) : "f"(x), "f"(t), "r"(bit));
}

/* How many of a thread's columns of a row, which are as in fold_columns, lie before the place `offset` from the first,
 * as a mask of so many bits. */
template <int N> __device__ __forceinline__ uint64_t places_before(int64_t offset) {
    const int at = (int)min(max(offset, (int64_t)0), (int64_t)2 * N), count = at / 8 * 2 + min(at % 8, 2);
    return count < 64 ? (UINT64_C(1) << count) - 1 : ~UINT64_C(0);
}

/* Of this thread's columns, which are as in fold_columns, those before a bound are counted, or listed. `state` is of
 * these columns, at least: many tiles have nothing so large. All lanes of a warp. It is two instructions a column:
 * where a bound's own column is among them, a second round tells those before it from those behind it. */
template <bool RAGGED, int N> __device__ __forceinline__ void find_before(const rfi_cuda_fold &f,
    const rfi_cuda_before &b, const float (&v)[N], int64_t row, int64_t column, int width,
    const State<rfi_answers::TOTALS> (&state)[2]) {
    const int lane = threadIdx.x % 4; /* of those that share the rows */
    float z[2];
    uint64_t ahead[2]; /* of the bound's column */
    bool looks[2], among = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t at = min(row + 8 * r, f.batch - 1);
        z[r] = ((const float *)b.values)[at];
        ahead[r] = places_before<N>(b.columns[at] - column);
        looks[r] = row + 8 * r < f.batch && !is_irregular(f, at) && (z[r] == z[r] || ahead[r]) &&
            !(state[r].m < z[r] && state[r].t[0] == state[r].t[0]);
        among |= ahead[r] && ahead[r] != places_before<N>(2 * N);
    }
    if (!__any_sync(~0u, looks[0] || looks[1])) return;
    among = __any_sync(~0u, among);
    uint64_t found[2] = {};
#pragma unroll 1
    for (int round = among; round >= 0; round--)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float t = threshold_of(z[r], !round && ahead[r]);
            uint64_t above = 0;
#pragma unroll
            for (int w = 0; w < (N / 2 + 31) / 32; w++) {
                uint32_t word = 0;
#pragma unroll
                for (int i = 32 * w; i < min(N / 2, 32 * w + 32); i++)
                    mark_above(word, v[i / 2 * 4 + 2 * r + i % 2], t, 1u << i % 32);
                above |= (uint64_t)word << 32 * w;
            }
            if (!among) found[r] = above;
            else if (!round) found[r] |= above & ahead[r];
            else if (z[r] == z[r]) found[r] = above & ~ahead[r];
        }
    unsigned mine = 0; /* of both rows, of which this thread has 64 columns each at most */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (!looks[r]) found[r] = 0;
        if (RAGGED) found[r] &= places_before<N>(width);
        mine += (unsigned)__popcll(found[r]) << 16 * r;
    }
    unsigned before = mine;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const unsigned other = __shfl_up_sync(~0u, before, step, 4);
        if (lane >= step) before += other;
    }
    const unsigned all = __shfl_sync(~0u, before, 3, 4), count = lane < 2 ? all >> 16 * lane & 0xffff : 0;
    unsigned to = 0;
    if (count) to = atomicAdd(b.counts + row + 8 * lane, count);
    if (!b.found || !__any_sync(~0u, all)) return;
    before -= mine;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        unsigned at = __shfl_sync(~0u, to, r, 4) + (before >> 16 * r & 0xffff);
        if (at + (mine >> 16 * r & 0xffff) > b.room) found[r] = 0;
        float *values = (float *)b.found + (row + 8 * r) * b.room;
        int32_t *places = b.found_columns + (row + 8 * r) * b.room;
        /* Few at a time, of which no thread of the warp mostly has found any. */
#pragma unroll
        for (int i = 0; i < N / 2; i += 4) {
            if (!__any_sync(~0u, found[r] >> i & 15)) continue;
#pragma unroll
            for (int j = i; j < i + 4; j++)
                if (found[r] >> j & 1) {
                    values[at] = v[j / 2 * 4 + 2 * r + j % 2];
                    places[at++] = (int32_t)column + j / 2 * 8 + j % 2;
                }
        }
    }
}

/* The squares of the columns of four lanes. A unit is theirs alone, whatever they add to it one after the other, by
 * what the first ones are near, or brought down by what is largest so far. */
template <bool RAGGED, int N> __device__ __forceinline__ void add_squares(
    const rfi_cuda_fold &f, const float (&v)[N], int64_t row, int64_t column, int width) {
    const rfi_cuda_squares &s = f.squares;
    const bool magnitudes = s.magnitudes;
    const int64_t base = column - threadIdx.x % 4 * 2, start = base / f.fold_columns * f.fold_columns;
    const int count = (int)min(max(f.out_features - base, (int64_t)0), (int64_t)2 * N);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t at = min(row + 8 * r, f.batch - 1);
        rfi_square_unit<float> *const to = (rfi_square_unit<float> *)s.sums + at * s.units + start / RFI_FOLD_COLUMNS;
        float largest = magnitudes ? 0 : -INFINITY, below = 0;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float x = v[i / 2 * 4 + 2 * r + i % 2];
            if (!RAGGED || i / 2 * 8 + i % 2 < width) largest = fmaxf(largest, magnitudes ? fabsf(x) : x);
        }
#pragma unroll
        for (int step = 1; step < 4; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            if (!RAGGED || i / 2 * 8 + i % 2 < width) below += rfi_below(v[i / 2 * 4 + 2 * r + i % 2], largest);
#pragma unroll
        for (int step = 1; step < 4; step *= 2) below += __shfl_xor_sync(~0u, below, step);
        float centre = magnitudes ? largest : rfi_centre(largest, below, (float)count);
        rfi_square_unit<float> before = {};
        if (base != start) {
            if (threadIdx.x % 4 == 0) before = *to; /* what this lane has written */
            before.centre = __shfl_sync(~0u, before.centre, 0, 4);
            centre = magnitudes ? fmaxf(centre, before.centre) : centre == centre ? before.centre : centre;
        }
        const float factor = magnitudes ? rfi_down_f32(centre) : 1, shift = magnitudes ? 0 : centre;
        float sum = 0, squares = 0;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float part = (v[i / 2 * 4 + 2 * r + i % 2] - shift) * factor;
            if (RAGGED && i / 2 * 8 + i % 2 >= width) continue;
            sum += part;
            squares = fmaf(part, part, squares);
        }
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            sum += __shfl_xor_sync(~0u, sum, step);
            squares += __shfl_xor_sync(~0u, squares, step);
        }
        if (threadIdx.x % 4 || row + 8 * r >= f.batch || is_irregular(f, at) || !count) continue;
        const float less = magnitudes && before.count > 0 ? factor / rfi_down_f32(before.centre) : 1;
        *to = {before.count + (float)count, centre, before.sum + sum, fmaf(before.squares * less, less, squares)};
    }
}

/* The third total of rfi_answers over a thread's columns of row r: two instructions a column. */
template <bool RAGGED, int N> __device__ __forceinline__ float first_largest(
    const float (&v)[N], int r, float m, float sum, int64_t column, int width) {
    int first = -1;
#pragma unroll
    for (int j = N - 1; j >= 0; j--) {
        const int offset = j / 4 * 8 + j % 2;
        if (j / 2 % 2 == r && (!RAGGED || offset < width)) first = v[j] == m ? offset : first;
    }
    float word = first < 0 ? INFINITY : rfi_typed<float>::word((int32_t)column + first);
    if (sum != sum) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int offset = j / 4 * 8 + j % 2;
            if (j / 2 % 2 == r && (!RAGGED || offset < width) && v[j] != v[j])
                word = rfi_answers::join(2, word, rfi_answers::nan_word<float>((int32_t)column + offset));
        }
    }
    return word;
}

/* Folds columns of this thread into the state of each of its two rows, `row` and `row` + 8; the first of its columns is
 * `column`. RAGGED: `width` columns are real, counted from that one. */
template <class R, bool RAGGED, int N> __device__ __forceinline__ void fold_columns_of(
    const float (&v)[N], int64_t column, int width, State<R::TOTALS> (&state)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = state[r].m;
#pragma unroll
        for (int j = 2 * r; j < N; j += j % 2 ? 3 : 1)
            if (!RAGGED || j / 4 * 8 + j % 2 < width) m = R::peak(m, v[j]);
        rfi_carry<R>(state[r], m);
        State<R::TOTALS> s = state[r];
        constexpr bool ANSWERS = std::is_same<R, rfi_answers>::value;
#pragma unroll
        for (int j = 2 * r; j < N; j += j % 2 ? 3 : 1)
            if (!RAGGED || j / 4 * 8 + j % 2 < width)
#pragma unroll
                for (int i = 0; i < (ANSWERS ? 2 : R::TOTALS); i++)
                    s.t[i] = R::join(i, s.t[i],
                        R::term(i, m, v[j], (int32_t)column + j / 4 * 8 + j % 2, (int32_t)RFI_COLUMN_OUTSIDE));
        if constexpr (ANSWERS) s.t[2] = R::join(2, s.t[2], first_largest<RAGGED>(v, r, m, s.t[0], column, width));
        state[r] = s;
    }
}

template <bool SEARCHES, bool RAGGED, int TOTALS, int N> __device__ __forceinline__ void fold_columns(
    const rfi_cuda_fold &f, const float (&v)[N], int64_t row, int64_t column, int width, State<TOTALS> (&state)[2]) {
    with_reduction<TOTALS>(
        f.chain.reduction, [&](auto of) { fold_columns_of<decltype(of), RAGGED>(v, column, width, state); });
    if constexpr (TOTALS == rfi_answers::TOTALS) {
        if (f.columns) {
            pick_column(f, v, row, column, 0);
            pick_column(f, v, row + 8, column, 1);
        }
    }
    if constexpr (SEARCHES) {
#pragma unroll 1
        for (int i = 0; i < 2; i++)
            if (f.before[i].values) find_before<RAGGED>(f, f.before[i], v, row, column, width, state);
        if (f.squares.sums) add_squares<RAGGED>(f, v, row, column, width);
    }
}

/* Two neighbouring values of y, in one store where `paired`. */
template <class T> struct alignas(2 * sizeof(T)) Pair {
    T first, second;
};
template <class T> __device__ __forceinline__ T rounded(float v) { return (T)v; }
template <> __device__ __forceinline__ __half rounded(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat16 rounded(float v) { return __float2bfloat16_rn(v); }

template <class T, int SIZE> __device__ __forceinline__ void store_typed(
    const rfi_cuda_fold &f, const float (&v)[SIZE], int64_t row, int64_t column) {
    const bool paired = (uintptr_t)f.y % sizeof(Pair<T>) == 0 && f.ldy % 2 == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= f.batch || is_irregular(f, row + 8 * r)) continue;
        T *to = (T *)f.y + (row + 8 * r) * f.ldy + column;
#pragma unroll
        for (int g = 0; g < SIZE / 4; g++) {
            const Pair<T> pair = {rounded<T>(v[4 * g + 2 * r]), rounded<T>(v[4 * g + 2 * r + 1])};
            const int64_t there = f.out_features - column - g * 8; /* columns from the first of the pair on */
            if (paired && there > 1) *(Pair<T> *)(to + g * 8) = pair;
            else {
                if (there > 0) to[g * 8] = pair.first;
                if (there > 1) to[g * 8 + 1] = pair.second;
            }
        }
    }
}

template <int SIZE> __device__ __forceinline__ void store_logits(
    const rfi_cuda_fold &f, const float (&v)[SIZE], int64_t row, int64_t column) {
    switch (f.y_dtype) {
    case RF_FLOAT64: store_typed<double>(f, v, row, column); break;
    case RF_FLOAT16: store_typed<__half>(f, v, row, column); break;
    case RF_BFLOAT16: store_typed<__nv_bfloat16>(f, v, row, column); break;
    default: store_typed<float>(f, v, row, column); break;
    }
}

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

/* Joins the first `count` of BLOCK states to one. */
template <int TOTALS, int BLOCK> __device__ __forceinline__ void join_some(
    int reduction, State<TOTALS> &state, const State<TOTALS> (&block)[BLOCK], int count) {
    with_reduction<TOTALS>(reduction, [&](auto of) { rfi_join_some<decltype(of)>(state, block, count); });
}

/* Joins states [first, first + count) of a row, of more words than a pair, in their order; two neighbouring lanes do,
 * and both get the result. All loads of a round are on their way at once. */
template <int TOTALS> __device__ __forceinline__ State<TOTALS> combine_states(
    const rfi_cuda_fold &f, const State<TOTALS> *states, int first, int count) {
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
__device__ __forceinline__ void finish_row(const rfi_cuda_fold &f, int64_t row, const State<TOTALS> &state) {
    float v = 0;
    bool there = false;
    const auto keep = [&](const rfi_cuda_fold &, int64_t, float number) { v = number, there = true; };
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

template <class C> __device__ __forceinline__ Slot slot_of(const Parameters &p, Tile tile, int warpgroup) {
    Slot s;
    s.block = C::SPLITS == 1 ? tile.m * 2 + warpgroup : tile.m;
    s.slot = C::SPLITS == 1 ? tile.n : tile.n * 2 + warpgroup;
    s.first_row = (int64_t)s.block * 64;
    s.there = s.first_row < p.fold.batch && s.slot < p.slots;
    s.groups = (p.slots + GROUP - 1) / GROUP;
    s.group = s.slot / GROUP;
    s.first = s.group * GROUP;
    s.count = min(p.slots - s.first, GROUP);
    return s;
}

__device__ __forceinline__ unsigned *tickets_of(const rfi_cuda_fold &f, const Slot &s) {
    return f.tickets + (int64_t)s.block * (s.groups + 1);
}

/* The states of a tile go to memory. The last warpgroup to finish one of a group of tiles side by side merges the
 * group's, the last to finish a group merges the groups', always in the order of the columns: the result does not
 * depend on who is last, and nobody has many to merge. */
template <class C> __device__ __forceinline__ void write_states(
    const Parameters &p, const Place &at, const Slot &s, State<C::TOTALS> (&state)[2], const Shared<C> &sh) {
    const rfi_cuda_fold &f = p.fold;
    State<C::TOTALS> *states = (State<C::TOTALS> *)f.partials + s.first_row * f.num_partials;
    join_lanes<4>(f.chain.reduction, state);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = at.row + r * 8;
        if (at.thread % 4 == 0 && s.there && s.first_row + row < f.batch &&
            !(*sh.irregular && is_irregular(f, s.first_row + row)))
            rfi_write_state(states, row * f.num_partials + s.slot, state[r]);
    }
    barrier_arrive(written_barrier(at.warpgroup), 160);
}

/* A ticket takes two microseconds to draw: a warp of the producer's does it for a consumer, while that one multiplies
 * the next tile. */
template <class C>
__device__ __forceinline__ void draw_tickets(const Parameters &p, const Shared<C> &sh, int rank, int warpgroup) {
    rfi_wait_for_previous();
    for (Walk walk = first_tile<C>(p); walk.is_there(); take_next<C>(sh, walk)) {
        const Slot s = slot_of<C>(p, walk.of<C>(rank), warpgroup);
        barrier_sync(written_barrier(warpgroup), 160);
        if (threadIdx.x % 32 == 0) {
            sh.last[walk.count % 2 * CONSUMERS + warpgroup] = s.there && draw(tickets_of(p.fold, s) + s.group, s.count);
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
    q.states = (State<1> *)f.partials + s.first_row * f.num_partials;
    q.ld = f.num_partials;
    q.irregular = irregular ? f.irregular + s.first_row : NULL;
    q.tickets = tickets_of(f, s);
    q.last = last + 2 * CONSUMERS + warpgroup;
    q.y = f.y;
    q.ldy = f.ldy;
    q.first_row = s.first_row;
    q.columns = (float)f.out_features;
    q.rows = (int)min(f.batch - s.first_row, (int64_t)64);
    q.reduction = f.chain.reduction;
    q.y_dtype = f.y_dtype;
    q.num_pre = f.chain.num_pre;
    q.num_post = f.chain.num_post;
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
template <class R, int LANES, int ROWS> __device__ __forceinline__ void combine_rows(
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
        const rfi_cuda_step &step = q.fold->chain.steps[q.num_pre + lane];
        s.kind = step.kind, s.a = step.a32, s.b = step.b32, reads = step.row >= 0;
    }
    s.slow |= __any_sync(~0u, reads);
    return s;
}
__device__ __forceinline__ float run_steps(const Finish &q, const Steps &s, int64_t row, float v) {
    if (s.slow) return rfi_run_steps(*q.fold, q.num_pre, q.num_post, min(row, q.fold->batch - 1), v);
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
template <int LANES> static __device__ __noinline__ void finish_states(Finish q, bool tries) {
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
            combine_rows<R, LANES>(states, there, first, count, all);
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

/* Whether there is time to try it: where x is brought to terms in front, that is done sooner. */
__device__ __forceinline__ bool has_time(const rfi_cuda_fold &f) {
    return f.chain.reduction != RF_OP_NONE && !f.x.scale;
}

/* What is left to do for a tile once its ticket is drawn. `phase` is 0 for the first tile of this consumer, 1 for the
 * second, and so on in turn. */
template <class C> __device__ __forceinline__ void finish_tile(
    const Parameters &p, const Place &at, const Slot &s, uint32_t phase, const Shared<C> &sh) {
    const rfi_cuda_fold &f = p.fold;
    mbarrier_wait(sh.drawn + 8 * at.warpgroup, phase);
    if (!sh.last[phase * CONSUMERS + at.warpgroup]) return;
    if constexpr (C::TOTALS == 1) {
        finish_states<2>(finish_of(p, s, at.warpgroup, sh.last, *sh.irregular), false);
        return;
    }
    const int thread = thread_in_warpgroup();
    const int64_t row = s.first_row + thread / 2;
    const bool there = row < f.batch && !(*sh.irregular && is_irregular(f, row)), mine = there && thread % 2 == 0;
    State<C::TOTALS> *states = (State<C::TOTALS> *)f.partials + row * f.num_partials;
    State<C::TOTALS> all = combine_states(f, states, s.first, there ? s.count : 0);
    if (s.groups > 1) {
        if (mine) rfi_write_state(states, p.group_slot + s.group, all);
        barrier_sync(own_barrier(at.warpgroup), 128);
        uint32_t *last = sh.last + 2 * CONSUMERS + at.warpgroup;
        if (thread == 0) *last = draw(tickets_of(f, s) + s.groups, s.groups);
        __syncwarp();
        barrier_sync(own_barrier(at.warpgroup), 128);
        if (!*last) return;
        all = combine_states(f, states, p.group_slot, there ? s.groups : 0);
    }
    if (mine) finish_row(f, row, all);
}

/* Sums of products to logits, through the steps, and to y or to the states of this thread's rows. `table` begins at its
 * first column. */
template <class C, int N> __device__ __forceinline__ void fold_sums(const rfi_cuda_fold &f, float (&total)[N],
    int64_t row, int64_t column, const float *table, State<C::TOTALS> (&state)[2]) {
    constexpr int SIZE = N < CHUNK ? N : CHUNK;
    const int reduction = f.chain.reduction;
    float row_scale[2] = {1, 1};
    if constexpr (C::SEARCHES) { /* bounds are near when they are asked for */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const rfi_cuda_before &b = f.before[i / 2];
            const int64_t at = min(row + i % 2 * 8, f.batch - 1);
            if (b.values) prefetch_l1((const float *)b.values + at), prefetch_l1(b.columns + at);
        }
    }
    if (f.x.scale) {
        row_scale[0] = row < f.batch ? f.x.scale[row] : 1;
        row_scale[1] = row + 8 < f.batch ? f.x.scale[row + 8] : 1;
    }
    state[0] = state[1] = empty_state<C::TOTALS>(reduction);
    /* Nothing dear in between, and all columns there, by the first of the four lanes': all registers at once. */
    if ((!f.chain.num_pre || f.chain.num_affine) && reduction != RF_OP_NONE &&
        column / 8 * 8 + 2 * N <= f.out_features) {
        scale_and_shift<C>(f, total, 0, table, row_scale);
        if (f.chain.affine_saves) apply_affine<C, true>(f, total, table);
        else apply_affine<C, false>(f, total, table);
        fold_columns<C::SEARCHES, false>(f, total, row, column, 0, state);
        return;
    }
#pragma unroll 1
    for (int c = 0; c < N / SIZE; c++) {
        float v[SIZE];
        take_chunk(total, c, v);
        scale_and_shift<C>(f, v, c, table, row_scale);
        apply_steps<C>(f, v, c, row, table);
        const int64_t from = column + c * SIZE * 2;
        if (reduction == RF_OP_NONE) store_logits(f, v, row, from);
        else if (from / 8 * 8 + 2 * SIZE <= f.out_features) fold_columns<C::SEARCHES, false>(f, v, row, from, 0, state);
        else fold_columns<C::SEARCHES, true>(f, v, row, from, (int)max(f.out_features - from, (int64_t)0), state);
    }
}

} // namespace hopper
#endif
