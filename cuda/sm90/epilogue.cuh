/* SPDX-License-Identifier: MIT */
/* From sums of products in registers to logits, or to the states of a thread's columns: scales, bias, steps, the fold.
 *
 * Registers are what these kernels have least of: a value more that lives here is spilled in the main loop. So steps
 * run on chunks of the accumulators. */
#ifndef ROWFOLD_CUDA_SM90_EPILOGUE_CUH
#define ROWFOLD_CUDA_SM90_EPILOGUE_CUH

#include "common/epilogue.cuh"
#include "sm90/config.cuh"
#include "sm90/searches.cuh"
#include "sm90/states.cuh"

namespace hopper {

/* For rfi_fold_tile, which is not inlined, by `threads` threads; there before any of them has passed another barrier.
 * As memory, not as constants: of those a warp reads one at a time. The results only where the fold finishes rows,
 * FINISHES. */
template <bool FINISHES = false>
__device__ __forceinline__ void copy_parameters(const rfi_cuda_fold &f, rfi_cuda_fold *to, int thread, int threads) {
    const uint64_t *from = (const uint64_t *)&f;
    asm volatile("" : "+l"(from));
    constexpr int RESULTS = offsetof(rfi_cuda_fold, visitor.num_results);
    static_assert(RESULTS % sizeof *from == 0 && sizeof f % sizeof *from == 0, "whole words");
    const int words = (int)((FINISHES && rfi_is_alone(f) ? sizeof f : RESULTS) / sizeof *from);
    for (int i = thread; i < words; i += threads) ((uint64_t *)to)[i] = from[i];
}

/* Instructions that nobody has run come from far, a few at a time, and a fold is a thousand of them, which a block with
 * one tile runs once while all of it waits. So a warp that has nothing else to do goes the same way before, with a row
 * that is not there. Steps may read inputs of row 0: wait for the kernel in front first. */
struct Rehearsal {                                /* in shared memory */
    __align__(16) float logits[RFI_FOLD_COLUMNS]; /* read four at a time */
    int row;
    /* By that warp; barrier behind. */
    __device__ __forceinline__ void prepare() {
        const int lane = threadIdx.x % 32;
        for (int i = lane; i < RFI_FOLD_COLUMNS; i += 32) logits[i] = 0;
        if (lane == 0) row = -1;
    }
};
template <int AT_ONCE, class Put>
__device__ __forceinline__ void rehearse_fold(const rfi_cuda_fold &f, const Rehearsal &of, int64_t column0, Put put) {
    rfi_fold_tile<float, AT_ONCE, Put>(
        f, of.logits, 0, 0, 1, column0, RFI_FOLD_COLUMNS, &of.row, threadIdx.x % 32, 1, put);
}

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

/* And back. */
template <int N, int SIZE> __device__ __forceinline__ void put_chunk(float (&total)[N], int c, const float (&v)[SIZE]) {
#define PUT(i)                                                                                   \
    case i:                                                                                      \
        if constexpr ((i) * SIZE < N) {                                                          \
            _Pragma("unroll") for (int j = 0; j < SIZE; j++) total[((i) * SIZE + j) % N] = v[j]; \
        }                                                                                        \
        break;
    switch (c) { CHUNKS(PUT) }
#undef PUT
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
    const rfi_cuda_product &f, float (&v)[N], int c, const float *table, const float (&row_scale)[2]) {
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

/* Whether rows of this warp's have a value that outweighs all others. By shuffle, so that the compiler sees that it is
 * the same for a warp: a branch that might divide it would cost the next tile's loop over products its uniform
 * registers. */
template <class C> __device__ __forceinline__ bool have_lone(const rfi_cuda_product &f, int64_t row) {
    const int32_t first = f.lone[min(row, f.batch - 1)].column, second = f.lone[min(row + 8, f.batch - 1)].column;
    return __shfl_sync(~0u, __any_sync(~0u, max(first, second) >= 0), 0);
}

/* What those come to, added to logits of columns from `column` on, the scales of which begin at `scale`. Rows of x
 * without such a value compute something that is not taken. */
template <class C, int N> __device__ __forceinline__ void add_lone(
    const rfi_cuda_product &f, float (&v)[N], int64_t row, int64_t column, const float *scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const rfi_cuda_lone lone = f.lone[min(row + 8 * r, f.batch - 1)];
        const int64_t k = max(lone.column, 0);
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            float &logit = v[j / 2 * 4 + 2 * r + j % 2];
            const int at = j / 2 * 8 + j % 2;
            const float w = rfi_unscaled(f.w, min(column + at, f.out_features - 1), k) * scale[at];
            logit = lone.column < 0 ? logit : fmaf(lone.value, w, logit);
        }
    }
}

/* To all accumulators, a chunk at a time: in one piece the code would be larger than all else. */
template <class C, int N> __device__ __forceinline__ void add_lone_to_all(
    const rfi_cuda_product &f, float (&total)[N], int64_t row, int64_t column, const float *scale) {
    constexpr int SIZE = N < CHUNK ? N : CHUNK;
#pragma unroll 1
    for (int c = 0; c < N / SIZE; c++) {
        float v[SIZE];
        take_chunk(total, c, v);
        add_lone<C>(f, v, row, column + c * SIZE * 2, scale + c * SIZE * 2);
        put_chunk(total, c, v);
    }
}

/* A step whose parameter is a row input. Of these there are versions of their own, as of states with more words: what
 * the others keep in registers stays as it is. */
template <int SIZE> __device__ __forceinline__ void apply_row_step(
    const rfi_cuda_visitor &f, const rfi_cuda_step &step, float (&v)[SIZE], int64_t row) {
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
    const rfi_cuda_visitor &f, float (&v)[SIZE], int c, int64_t row, const float *table) {
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
#define RFI_OP(id, number, name, params, flags, ...)                           \
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
__device__ __forceinline__ void apply_affine(const rfi_cuda_visitor &f, float (&v)[N], const float *table) {
    constexpr int SIZE = SAVES && N > 64 ? N / 2 : N;
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

/* The third total of rfi_answers over a thread's columns of row r, none of which is NaN: two instructions a column. */
template <bool RAGGED, int N>
__device__ __forceinline__ float first_largest(const float (&v)[N], int r, float m, int64_t column, int width) {
    int first = -1;
#pragma unroll
    for (int j = N - 1; j >= 0; j--) {
        const int offset = j / 4 * 8 + j % 2;
        if (j / 2 % 2 == r && (!RAGGED || offset < width)) first = v[j] == m ? offset : first;
    }
    return first < 0 ? INFINITY : rfi_typed<float>::word((int32_t)column + first);
}

/* The same of those that are NaN. */
template <bool RAGGED, int N>
__device__ __forceinline__ float first_nan(const float (&v)[N], int r, int64_t column, int width) {
    float word = INFINITY;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int offset = j / 4 * 8 + j % 2;
        if (j / 2 % 2 == r && (!RAGGED || offset < width) && v[j] != v[j])
            word = rfi_answers::join(2, word, rfi_answers::nan_word<float>((int32_t)column + offset));
    }
    return word;
}

/* The peak of `m` and of a thread's columns of row r. By several chains: in one each waits for the one before. */
template <class R, bool RAGGED, int N>
__device__ __forceinline__ float peak_of(const float (&v)[N], int r, float m, int width) {
    constexpr int CHAINS = 4;
    static_assert(!(R::FLAGS & RFI_RF_MEAN), "a peak that may count a column twice");
    float part[CHAINS] = {m, m, m, m};
#pragma unroll
    for (int j = 0; j < N; j++)
        if (j / 2 % 2 == r && (!RAGGED || j / 4 * 8 + j % 2 < width)) {
            float &to = part[(j / 4 * 2 + j % 2) % CHAINS];
            to = R::peak(to, v[j]);
        }
    return R::peak(R::peak(part[0], part[1]), R::peak(part[2], part[3]));
}

/* Joins to the first TOTALS totals what a thread's columns of row r, whose peak is m, have of them. */
template <class R, int TOTALS, bool RAGGED, int N> __device__ __forceinline__ void join_terms(
    State<R::TOTALS> &s, const float (&v)[N], int r, float m, int64_t column, int width) {
#pragma unroll
    for (int j = 2 * r; j < N; j += j % 2 ? 3 : 1)
        if (!RAGGED || j / 4 * 8 + j % 2 < width)
#pragma unroll
            for (int i = 0; i < TOTALS; i++)
                s.t[i] = R::join(
                    i, s.t[i], R::term(i, m, v[j], (int32_t)column + j / 4 * 8 + j % 2, (int32_t)RFI_COLUMN_OUTSIDE));
}

/* Folds columns of this thread into the state of each of its two rows, `row` and `row` + 8; the first of its columns is
 * `column`. RAGGED: `width` columns are real, counted from that one. */
template <class R, bool RAGGED, int N> __device__ __forceinline__ void fold_columns_of(
    const float (&v)[N], int64_t column, int width, State<R::TOTALS> (&state)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float m = peak_of<R, RAGGED>(v, r, state[r].m, width);
        rfi_carry<R>(state[r], m);
        join_terms<R, R::TOTALS, RAGGED>(state[r], v, r, m, column, width);
    }
}

/* The same of rfi_answers, of which results show what `shows` says. A row with a NaN has that word beside the peak of
 * all others, whatever they show. */
template <bool RAGGED, int N> __device__ __forceinline__ void fold_answers(
    const float (&v)[N], int64_t column, int width, int shows, State<rfi_answers::TOTALS> (&state)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        State<rfi_answers::TOTALS> s = state[r];
        float m, nan = INFINITY;
        if (shows & RFI_CUDA_SHOWS_TOTAL) {
            m = peak_of<rfi_answers, RAGGED>(v, r, s.m, width);
            rfi_carry<rfi_answers>(s, m);
            if ((shows & RFI_CUDA_SHOWS_TOTALS) == RFI_CUDA_SHOWS_TOTALS)
                join_terms<rfi_answers, 2, RAGGED>(s, v, r, m, column, width);
            else join_terms<rfi_answers, 1, RAGGED>(s, v, r, m, column, width);
            if (s.t[0] != s.t[0]) nan = first_nan<RAGGED>(v, r, column, width);
        } else {
            m = peak_of<rfi_reduction_MAX, RAGGED>(v, r, s.m, width);
            if (m != m) {
                m = peak_of<rfi_answers, RAGGED>(v, r, s.m, width);
                nan = first_nan<RAGGED>(v, r, column, width);
            }
            s.t[2] = rfi_answers::moved(2, s.m, m, s.t);
            s.m = m;
        }
        if (shows & RFI_CUDA_SHOWS_COLUMN)
            s.t[2] = rfi_answers::join(2, s.t[2], first_largest<RAGGED>(v, r, m, column, width));
        s.t[2] = rfi_answers::join(2, s.t[2], nan);
        state[r] = s;
    }
}

template <bool SEARCHES, bool RAGGED, int TOTALS, int N> __device__ __forceinline__ void fold_columns(
    const rfi_cuda_fold &f, const float (&v)[N], int64_t row, int64_t column, int width, State<TOTALS> (&state)[2]) {
    if constexpr (TOTALS != rfi_answers::TOTALS) {
        with_reduction<TOTALS>(f.visitor.chain.reduction,
            [&](auto of) { fold_columns_of<decltype(of), RAGGED>(v, column, width, state); });
    } else {
        fold_answers<RAGGED>(v, column, width, f.visitor.chain.shows, state);
        if (f.visitor.columns && !f.visitor.knows_picked) {
            pick_column(f, v, row, column, 0);
            pick_column(f, v, row + 8, column, 1);
        }
    }
    if constexpr (SEARCHES) {
#pragma unroll 1
        for (int i = 0; i < 2; i++)
            if (f.visitor.before[i].values)
                find_before<RAGGED>(f.product, f.visitor.before[i], v, row, column, width, state);
        if (f.visitor.squares.sums) add_squares<RAGGED>(f, v, row, column, width);
    }
}

/* Columns of a thread behind the first `width`, which are not there, to what changes no state: the peak of nothing. */
template <int N> __device__ __forceinline__ void leave_out(float (&v)[N], int width, float peak0) {
#pragma unroll
    for (int j = 0; j < N; j++)
        if (j / 4 * 8 + j % 2 >= width) v[j] = peak0;
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
    const bool paired = (uintptr_t)f.visitor.y % sizeof(Pair<T>) == 0 && f.visitor.ldy % 2 == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= f.product.batch || is_irregular(f.product, row + 8 * r)) continue;
        T *to = (T *)f.visitor.y + (row + 8 * r) * f.visitor.ldy + column;
#pragma unroll
        for (int g = 0; g < SIZE / 4; g++) {
            const Pair<T> pair = {rounded<T>(v[4 * g + 2 * r]), rounded<T>(v[4 * g + 2 * r + 1])};
            const int64_t there = f.product.out_features - column - g * 8; /* columns from the first of the pair on */
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
    switch (f.visitor.y_dtype) {
    case RF_FLOAT64: store_typed<double>(f, v, row, column); break;
    case RF_FLOAT16: store_typed<__half>(f, v, row, column); break;
    case RF_BFLOAT16: store_typed<__nv_bfloat16>(f, v, row, column); break;
    default: store_typed<float>(f, v, row, column); break;
    }
}

/* Whether so many columns are there, from the first of the four lanes' on. Where shuffles follow, of a search or of
 * what is stored, the compiler must see that it is the same for a warp, elsewhere the shuffle would cost: see
 * hopper.md 80. */
template <class C> __device__ __forceinline__ bool are_there(const rfi_cuda_product &f, int64_t column, int count) {
    const bool there = column / 8 * 8 + count <= f.out_features;
    if constexpr (C::ASKS_BY_SHUFFLE) return __shfl_sync(~0u, (int)there, 0);
    return there;
}

/* Two values as they are stored, the first in the lower half. */
template <class T> __device__ __forceinline__ uint32_t packed(float first, float second);
template <> __device__ __forceinline__ uint32_t packed<__half>(float first, float second) {
    const __half2 pair = __floats2half2_rn(first, second);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
template <> __device__ __forceinline__ uint32_t packed<__nv_bfloat16>(float first, float second) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

/* Word j of lane i of four to word i of lane j. */
__device__ __forceinline__ void transpose_lanes(uint32_t (&w)[4]) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            const uint32_t got = __shfl_xor_sync(~0u, upper ? w[i] : w[i + step], step);
            if (upper) w[i] = got;
            else w[i + step] = got;
        }
    }
}

/* Logits of 16 bits, all of whose columns are there: 16 bytes a lane and 64 of a row side by side, for a sector of
 * which half is written takes as long as a whole one, twice. `column` is that of the first of the four lanes. */
template <class T, int SIZE> __device__ __forceinline__ void store_pieces(
    const rfi_cuda_fold &f, const float (&v)[SIZE], int64_t row, int64_t column, const bool (&stored)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        T *const to = (T *)f.visitor.y + (row + 8 * r) * f.visitor.ldy + column + threadIdx.x % 4 * 8;
#pragma unroll
        for (int g = 0; g < SIZE / 4; g += 4) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = packed<T>(v[4 * (g + i) + 2 * r], v[4 * (g + i) + 2 * r + 1]);
            transpose_lanes(w);
            if (stored[r]) *(uint4 *)(to + g * 8) = {w[0], w[1], w[2], w[3]};
        }
    }
}

/* Sums of products to logits, through the steps, and to y. `table` begins at this thread's first column. */
template <class C, int N> __device__ __forceinline__ void store_sums(const rfi_cuda_fold &f, float (&total)[N],
    int64_t row, int64_t column, const float *table, const float (&row_scale)[2], bool lone) {
    constexpr int SIZE = N < CHUNK ? N : CHUNK;
    const int dtype = f.visitor.y_dtype;
    const bool pieces = (dtype == RF_FLOAT16 || dtype == RF_BFLOAT16) && (uintptr_t)f.visitor.y % 16 == 0 &&
        f.visitor.ldy % 8 == 0 && are_there<C>(f.product, column, 2 * N);
    bool stored[2];
#pragma unroll
    for (int r = 0; r < 2; r++) stored[r] = row + 8 * r < f.product.batch && !is_irregular(f.product, row + 8 * r);
    const int64_t first = column / 8 * 8;
    /* Without steps all registers at once. */
    if (pieces && !f.visitor.chain.num_pre) {
        scale_and_shift<C>(f.product, total, 0, table, row_scale);
        if (lone) add_lone_to_all<C>(f.product, total, row, column, table);
        if (dtype == RF_FLOAT16) store_pieces<__half>(f, total, row, first, stored);
        else store_pieces<__nv_bfloat16>(f, total, row, first, stored);
        return;
    }
#pragma unroll 1
    for (int c = 0; c < N / SIZE; c++) {
        float v[SIZE];
        take_chunk(total, c, v);
        scale_and_shift<C>(f.product, v, c, table, row_scale);
        if (lone) add_lone<C>(f.product, v, row, column + c * SIZE * 2, table + c * SIZE * 2);
        apply_steps<C>(f.visitor, v, c, row, table);
        if (!pieces) store_logits(f, v, row, column + c * SIZE * 2);
        else if (dtype == RF_FLOAT16) store_pieces<__half>(f, v, row, first + c * SIZE * 2, stored);
        else store_pieces<__nv_bfloat16>(f, v, row, first + c * SIZE * 2, stored);
    }
}

/* Sums of products to logits, through the steps, and to y or to the states of this thread's rows, whose columns begin
 * `offset` behind the warp's. `table` begins at its first column. `may_be_lone`: of some rows one value outweighs all
 * others. */
template <class C, int N> __device__ __forceinline__ void fold_sums(const rfi_cuda_fold &f, float (&total)[N],
    int64_t row, int64_t first, int offset, const float *table, bool may_be_lone, State<C::TOTALS> (&state)[2]) {
    const int64_t column = first + offset;
    constexpr int SIZE = N < CHUNK ? N : CHUNK;
    const int reduction = f.visitor.chain.reduction;
    float row_scale[2] = {1, 1};
    if constexpr (C::ROW_INPUTS) prefetch_rows<C::SEARCHES>(f, row);
    if (f.product.x.scale) {
        row_scale[0] = row < f.product.batch ? f.product.x.scale[row] : 1;
        row_scale[1] = row + 8 < f.product.batch ? f.product.x.scale[row + 8] : 1;
    }
    const bool lone = C::PRODUCTS > 1 && !C::BF16 && __shfl_sync(~0u, may_be_lone, 0) && have_lone<C>(f.product, row);
    if constexpr (C::STORES) {
        store_sums<C>(f, total, row, column, table, row_scale, lone);
        return;
    }
    state[0] = state[1] = empty_state<C::TOTALS>(reduction);
    const auto columns_from = [&](int64_t from) { return (int)max(f.product.out_features - from, (int64_t)0); };
    const float peak0 = state[0].m;
    /* Nothing dear in between: all registers at once; with searches only where all columns are there. Elsewhere a
     * lane's column is asked for all the same, whose tile has some: where the compiler takes the condition for that of
     * a warp, ptxas puts this behind the code of dear operators, from where instructions come late (hopper.md 80, 109).
     */
    if ((!f.visitor.chain.num_pre || f.visitor.chain.num_affine) && reduction != RF_OP_NONE &&
        are_there<C>(f.product, column, C::SEARCHES ? 2 * N : 0)) {
        scale_and_shift<C>(f.product, total, 0, table, row_scale);
        if (lone) add_lone_to_all<C>(f.product, total, row, column, table);
        if (f.visitor.chain.affine_saves) apply_affine<C, true>(f.visitor, total, table);
        else apply_affine<C, false>(f.visitor, total, table);
        if (!C::SEARCHES && !are_there<C>(f.product, column, 2 * N)) leave_out(total, columns_from(column), peak0);
        fold_columns<C::SEARCHES, false>(f, total, row, column, 0, state);
        return;
    }
    int chunks = N / SIZE; /* with columns */
    if constexpr (C::ROW_INPUTS)
        chunks = (int)min((f.product.out_features - first + 2 * SIZE - 1) / (2 * SIZE), (int64_t)chunks);
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        float v[SIZE];
        take_chunk(total, c, v);
        scale_and_shift<C>(f.product, v, c, table, row_scale);
        if (lone) add_lone<C>(f.product, v, row, column + c * SIZE * 2, table + c * SIZE * 2);
        apply_steps<C>(f.visitor, v, c, row, table);
        const int64_t from = column + c * SIZE * 2;
        if (reduction == RF_OP_NONE) store_logits(f, v, row, from);
        else if (C::SEARCHES && !are_there<C>(f.product, from, 2 * SIZE))
            fold_columns<C::SEARCHES, true>(f, v, row, from, columns_from(from), state);
        else {
            if (!are_there<C>(f.product, from, 2 * SIZE)) leave_out(v, columns_from(from), peak0);
            fold_columns<C::SEARCHES, false>(f, v, row, from, 0, state);
        }
    }
}

} // namespace hopper
#endif
