/* SPDX-License-Identifier: MIT */
/* The state of a row on the device (see lib/states.h): one set of joins for columns in registers, lanes, shared memory
 * and partial states in memory, whatever the reduction.
 *
 * Partial states in device memory, of a row side by side in the order of the columns, TOTALS + 1 words of the compute
 * type each:
 *
 *     row r, from state r * num_partials on    | m t0 t1 | m t0 t1 | ...
 *
 * Portable kernels and that of sm_90a for few rows write one for every RFI_FOLD_COLUMNS columns. The others of sm_90a
 * write one for each of their `fold_columns`. Behind those of the columns is what groups of them come to, of the kernel
 * for few rows what blocks come to. Kernels of sm_90a take reductions of a peak and one total that need no columns,
 * pairs of words, and, compiled for it alone, rfi_answers.
 *
 * Every join takes the common peak first and then every total once. */
#ifndef ROWFOLD_CUDA_STATES_CUH
#define ROWFOLD_CUDA_STATES_CUH

#include <type_traits>

#include "common/typed.cuh"

/* A pair is loaded and stored at once, four words are 16 bytes at a time. */
template <class T, int TOTALS> struct alignas(TOTALS == 1 ? 2 * sizeof(T) : TOTALS == 3 ? 16 : sizeof(T)) rfi_state_of {
    T m, t[TOTALS];
};

#define RFI_ADDS(join, term, moved, factor) RFI_ADDS_##join
#define RFI_ADDS_ADD true
#define RFI_ADDS_LEAST false
#define RFI_ADDS_NONE false
#define RFI_MEMBER static __device__ __forceinline__

/* The functions of a reduction for one type; i, the number of a total, is a constant. */
#define RFI_REDUCTION_OF(id, T, suffix, column)                                                             \
    RFI_MEMBER void peak0(T &m) { m = rfi_peak0_##id##suffix(); }                                           \
    RFI_MEMBER T peak(T m, T x) { return rfi_peak_##id##suffix(m, x); }                                     \
    RFI_MEMBER void empty(int i, T &t) { t = rfi_empty_##id##suffix(i); }                                   \
    RFI_MEMBER T term(int i, T m, T x, column j, column q) { return rfi_term_##id##suffix(i, m, x, j, q); } \
    RFI_MEMBER T moved(int i, T m, T p, const T(&t)[TOTALS]) {                                              \
        return rfi_moved_##id##suffix(i, m, p, t[0], TOTALS > 1 ? t[TOTALS - 1] : (T)0);                    \
    }                                                                                                       \
    RFI_MEMBER T factor(int i, T m, T p) { return rfi_factor_##id##suffix(i, m, p); }                       \
    RFI_MEMBER T join(int i, T t, T u) { return rfi_join_##id##suffix(i, t, u); }                           \
    RFI_MEMBER T finish(T m, const T(&t)[TOTALS], T n, column q) {                                          \
        return rfi_finish_##id##suffix(m, t[0], TOTALS > 1 ? t[TOTALS - 1] : (T)0, n, q);                   \
    }

/* A reduction as a type, for code that is compiled once for each. */
#define RFI_REDUCTION(id, number, name, flags, peak0_, peak_, total0, total1, finish_, ...)                     \
    struct rfi_reduction_##id {                                                                                 \
        static constexpr int TOTALS = rfi_totals_##id, FLAGS = (flags);                                         \
        static __host__ __device__ constexpr bool adds(int i) { return i ? RFI_ADDS total1 : RFI_ADDS total0; } \
        RFI_REDUCTION_OF(id, float, _f32, int32_t)                                                              \
        RFI_REDUCTION_OF(id, double, _f64, int64_t)                                                             \
    };
#include "reductions.def"
#undef RFI_REDUCTION
#undef RFI_REDUCTION_OF
#undef RFI_MEMBER

/* Several results of one pass, RFI_CUDA_ANSWERS: the state of the entropy, whose words are those of a logsumexp, too,
 * and the column of the largest logit. Of logits with their signs turned it gives min and argmin. The peak ignores NaN,
 * whose first column is known by a word of its own, below those of all others. A logit that a row asks for is no part
 * of it: it goes to `picked` at once. */
struct rfi_answers {
    typedef rfi_reduction_ENTROPY first;
    typedef rfi_reduction_ARGMAX last;
    static constexpr int TOTALS = 3, FLAGS = 0, BEHIND = 1 << 24; /* all columns */
    static __host__ __device__ constexpr bool adds(int i) { return i < 2; }
    template <class T> static __device__ __forceinline__ void peak0(T &m) { first::peak0(m); }
    template <class T> static __device__ __forceinline__ T peak(T m, T x) { return first::peak(m, x); }
    template <class T> static __device__ __forceinline__ void empty(int i, T &t) {
        if (i < 2) first::empty(i, t);
        else last::empty(0, t);
    }
    template <class T, class Column> static __device__ __forceinline__ T term(int i, T m, T x, Column j, Column q) {
        if (i < 2) return first::term(i, m, x, j, q);
        return x == m ? rfi_typed<T>::word(j) : (T)INFINITY;
    }
    /* Of a column that is NaN: to be joined where the first total says that there is one. */
    template <class T, class Column> static __device__ __forceinline__ T nan_word(Column j) {
        return -rfi_typed<T>::word(BEHIND - j);
    }
    template <class T> static __device__ __forceinline__ T moved(int i, T m, T p, const T (&t)[TOTALS]) {
        if (i < 2) return first::moved(i, m, p, {t[0], t[1]});
        return t[2] < 0 || m == p ? t[2] : (T)INFINITY;
    }
    template <class T> static __device__ __forceinline__ T factor(int i, T m, T p) {
        return i < 2 ? first::factor(i, m, p) : (T)1;
    }
    template <class T> static __device__ __forceinline__ T join(int i, T t, T u) {
        return i < 2 ? first::join(i, t, u) : last::join(0, t, u);
    }
};

/* The reductions that are read from it, alone as well: their own states are not compiled. */
template <class R> constexpr bool rfi_is_answered = false;
template <> constexpr bool rfi_is_answered<rfi_reduction_ENTROPY> = true;
template <> constexpr bool rfi_is_answered<rfi_reduction_ARGMAX> = true;
template <> constexpr bool rfi_is_answered<rfi_reduction_PICK> = true;
template <> constexpr bool rfi_is_answered<rfi_reduction_LOGPROB> = true;

/* Whether the kernels of sm_90a take the reduction; choose.c is told the same (rfi_cuda_states). */
template <class R> constexpr bool rfi_is_pair = R::TOTALS == 1 && !(R::FLAGS & (RFI_RF_INDEX | RFI_RF_COLUMN));

/* How far a column is below the largest of a unit, brought down so that a sum of 256 of these does not overflow. Of
 * equal columns it is 0. */
constexpr float RFI_BELOW_SCALE = 0x1p-9f;
static __device__ __forceinline__ float rfi_below(float x, float largest) {
    return fmaf(x, RFI_BELOW_SCALE, -largest * RFI_BELOW_SCALE);
}
static __device__ __forceinline__ double rfi_below(double x, double largest) {
    return fma(x, (double)RFI_BELOW_SCALE, -largest * RFI_BELOW_SCALE);
}

/* The mean of a unit from that, one of its columns if all are equal; NaN if any is infinite or NaN, whatever else is
 * added to the unit. */
template <class T> static __device__ __forceinline__ T rfi_centre(T largest, T below, T count) {
    const T centre = fma(below, (T)(1 / RFI_BELOW_SCALE) / count, largest);
    return fabs(centre) < (T)INFINITY ? centre : (T)NAN;
}

/* A unit of squares, as rfi_cuda_squares has them. */
template <class T> struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) rfi_square_unit {
    T count, centre, sum, squares;
};

/* The column that a row asks for. */
static __device__ __forceinline__ int64_t rfi_asked(const rfi_cuda_visitor &p, int64_t row) {
    return p.columns ? p.columns[min(row, p.batch - 1)] : RFI_COLUMN_OUTSIDE;
}

/* Does column j, of value x, come before column q, of value z? As BEFORE of ops_typed.h, without a branch on either. */
template <class T> static __device__ __forceinline__ bool rfi_comes_before(T x, int64_t j, T z, int64_t q) {
    const bool x_nan = x != x, z_nan = z != z;
    return (x > z) | (x_nan & !z_nan) | (((x == z) | (x_nan & z_nan)) & (j < q));
}

/* Calls f with the reduction that has that number, as a type. */
template <class F> static __device__ __forceinline__ void rfi_with_reduction(int32_t reduction, F f) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, ...)                                               \
    case number:                                                                     \
        if constexpr (!rfi_is_answered<rfi_reduction_##id>) f(rfi_reduction_##id()); \
        break;
#include "reductions.def"
#undef RFI_REDUCTION
    case RFI_CUDA_ANSWERS: f(rfi_answers()); break;
    }
}

template <class R, class T, int N> static __device__ __forceinline__ void rfi_empty_state(rfi_state_of<T, N> &s) {
    R::peak0(s.m);
#pragma unroll
    for (int i = 0; i < N; i++) R::empty(i, s.t[i]);
}

/* To the peak p of more columns. */
template <class R, class T, int N> static __device__ __forceinline__ void rfi_carry(rfi_state_of<T, N> &s, T p) {
    T t[N];
#pragma unroll
    for (int i = 0; i < N; i++) t[i] = R::moved(i, s.m, p, s.t) * R::factor(i, s.m, p);
#pragma unroll
    for (int i = 0; i < N; i++) s.t[i] = t[i];
    s.m = p;
}

/* The peaks of LANES neighbouring lanes, a power of two. All get the same bits. */
template <class R, int LANES, int ROWS, class T> static __device__ __forceinline__ void rfi_join_peaks(T (&m)[ROWS]) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
#pragma unroll
        for (int r = 0; r < ROWS; r++) m[r] = R::peak(m[r], __shfl_xor_sync(~0u, m[r], step));
}

/* Their totals, which are of one peak. */
template <class R, int LANES, int ROWS, class T, int N>
static __device__ __forceinline__ void rfi_join_totals(rfi_state_of<T, N> (&s)[ROWS]) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < N; i++) s[r].t[i] = R::join(i, s[r].t[i], __shfl_xor_sync(~0u, s[r].t[i], step));
}

/* One of these. */
template <class R, int I, int LANES, int ROWS, class T, int N>
static __device__ __forceinline__ void rfi_join_total(rfi_state_of<T, N> (&s)[ROWS]) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
#pragma unroll
        for (int r = 0; r < ROWS; r++) s[r].t[I] = R::join(I, s[r].t[I], __shfl_xor_sync(~0u, s[r].t[I], step));
}

/* Their states, for each of ROWS rows. */
template <class R, int LANES, int ROWS, class T, int N>
static __device__ __forceinline__ void rfi_join_lanes(rfi_state_of<T, N> (&s)[ROWS]) {
    T m[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) m[r] = s[r].m;
    rfi_join_peaks<R, LANES>(m);
#pragma unroll
    for (int r = 0; r < ROWS; r++) rfi_carry<R>(s[r], m[r]);
    rfi_join_totals<R, LANES>(s);
}

/* s and COUNT states beside it, all there: those that are not are empty. */
template <class R, int COUNT, class T, int N>
static __device__ __forceinline__ void rfi_join_states(rfi_state_of<T, N> &s, const rfi_state_of<T, N> (&v)[COUNT]) {
    T m = s.m;
#pragma unroll
    for (int c = 0; c < COUNT; c++) m = R::peak(m, v[c].m);
    rfi_carry<R>(s, m);
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int i = 0; i < N; i++)
            s.t[i] = R::join(i, s.t[i], R::moved(i, v[c].m, m, v[c].t) * R::factor(i, v[c].m, m));
}

/* A total of float that others are joined to in double: few additions, but of large numbers. */
template <class R> static __device__ __forceinline__ double rfi_join_wide(int i, double t, float moved, float factor) {
    if (R::adds(i)) return fma((double)moved, (double)factor, t);
    return moved < t ? (double)moved : t;
}

/* s and the first `count` of COUNT states beside it. */
template <class R, int COUNT, int N> static __device__ __forceinline__ void rfi_join_some(
    rfi_state_of<float, N> &s, const rfi_state_of<float, N> (&v)[COUNT], int count) {
    float m = s.m;
#pragma unroll
    for (int c = 0; c < COUNT; c++) m = c < count ? R::peak(m, v[c].m) : m;
    double t[N];
#pragma unroll
    for (int i = 0; i < N; i++) t[i] = (double)R::moved(i, s.m, m, s.t) * (double)R::factor(i, s.m, m);
#pragma unroll
    for (int c = 0; c < COUNT; c++)
        if (c < count)
#pragma unroll
            for (int i = 0; i < N; i++)
                t[i] = rfi_join_wide<R>(i, t[i], R::moved(i, v[c].m, m, v[c].t), R::factor(i, v[c].m, m));
    s.m = m;
#pragma unroll
    for (int i = 0; i < N; i++) s.t[i] = (float)t[i];
}

/* s and those of `count` states in shared memory whose number is `mine` and then every LANES-th. Totals are added in
 * double. Some at once, without a branch: their latencies are what this takes. */
template <class R, int LANES, int N> static __device__ __forceinline__ void rfi_join_kept(
    rfi_state_of<float, N> &s, const rfi_state_of<float, N> *kept, int count, int mine) {
    constexpr int AT_ONCE = 8;
    float m = s.m;
#pragma unroll 1
    for (int i = mine; i < count; i += AT_ONCE * LANES) {
        float peaks[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            R::peak0(peaks[j]);
            if (i + j * LANES < count) peaks[j] = kept[i + j * LANES].m;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) m = R::peak(m, peaks[j]);
    }
    rfi_carry<R>(s, m);
    double t[N][2];
#pragma unroll
    for (int k = 0; k < N; k++) {
        float none;
        R::empty(k, none);
        t[k][0] = s.t[k], t[k][1] = none;
    }
#pragma unroll 1
    for (int i = mine; i < count; i += AT_ONCE * LANES) {
        float terms[N][AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            rfi_state_of<float, N> v;
            rfi_empty_state<R>(v);
            v.m = m;
            if (i + j * LANES < count) v = kept[i + j * LANES];
#pragma unroll
            for (int k = 0; k < N; k++) terms[k][j] = R::moved(k, v.m, m, v.t) * R::factor(k, v.m, m);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
            for (int k = 0; k < N; k++)
                t[k][j % 2] = R::adds(k) ? t[k][j % 2] + terms[k][j] : fmin(t[k][j % 2], (double)terms[k][j]);
    }
#pragma unroll
    for (int k = 0; k < N; k++) s.t[k] = (float)(R::adds(k) ? t[k][0] + t[k][1] : fmin(t[k][0], t[k][1]));
}

/* Partial state i of a row, whose states begin at `partials`, past the first-level cache: another block wrote it. */
template <class T, int N>
static __device__ __forceinline__ rfi_state_of<T, N> rfi_read_state(const void *partials, int64_t i) {
    rfi_state_of<T, N> s;
    if constexpr (N == 1 && sizeof(T) == 4) {
        const float2 v = __ldcg((const float2 *)partials + i);
        s.m = v.x, s.t[0] = v.y;
    } else if constexpr (N == 1) {
        const double2 v = __ldcg((const double2 *)partials + i);
        s.m = v.x, s.t[0] = v.y;
    } else if constexpr (N == 3) {
        uint4 raw[sizeof(T) / 4];
#pragma unroll
        for (size_t j = 0; j < sizeof(T) / 4; j++) raw[j] = __ldcg((const uint4 *)partials + i * (sizeof(T) / 4) + j);
        memcpy(&s, raw, sizeof s);
    } else {
        const T *words = (const T *)partials + i * (1 + N);
        s.m = __ldcg(words);
#pragma unroll
        for (int k = 0; k < N; k++) s.t[k] = __ldcg(words + 1 + k);
    }
    return s;
}

template <class T, int N>
static __device__ __forceinline__ void rfi_write_state(void *partials, int64_t i, const rfi_state_of<T, N> &s) {
    if constexpr (N == 1 && sizeof(T) == 4) {
        ((float2 *)partials)[i] = float2{s.m, s.t[0]};
    } else if constexpr (N == 1) {
        ((double2 *)partials)[i] = double2{s.m, s.t[0]};
    } else if constexpr (N == 3) {
        ((rfi_state_of<T, N> *)partials)[i] = s;
    } else {
        T *words = (T *)partials + i * (1 + N);
        words[0] = s.m;
#pragma unroll
        for (int k = 0; k < N; k++) words[1 + k] = s.t[k];
    }
}

/* A number of a row through steps of the chain. */
template <class T>
static __device__ __forceinline__ T rfi_run_steps(const rfi_cuda_visitor &p, int first, int count, int64_t row, T v) {
    T saved = 0;
#pragma unroll 1
    for (int i = first; i < first + count; i++) {
        const rfi_cuda_step &step = p.chain.steps[i];
        const T a = step.row < 0 ? rfi_typed<T>::a(step) : ((const T *)p.row_inputs)[step.row * p.batch + row];
        v = rfi_typed<T>::apply(step.kind, v, a, rfi_typed<T>::b(step), saved);
        if (step.kind == RF_OP_SAVE) saved = v;
    }
    return v;
}

/* A number of a row through the steps behind the reduction, and to y, unless it is a rehearsal. */
template <class T> static __device__ __forceinline__ void rfi_store_number(
    const rfi_cuda_visitor &p, int64_t row, T v, bool stores = true) {
    v = rfi_run_steps(p, p.chain.num_pre, p.chain.num_post, row, v);
    if (stores) rfi_store_as<T>(p.y, p.y_dtype, row * p.ldy, v);
}

/* One of the results that a state of rfi_answers has; a column as its word. */
template <class T> static __device__ __forceinline__ T rfi_answer(const rfi_cuda_visitor &p,
    const rfi_cuda_result &result, int64_t row, const rfi_state_of<T, rfi_answers::TOTALS> &s) {
    typedef typename rfi_typed<T>::column number;
    const T n = (T)p.out_features, none[1] = {0};
    const int64_t asked = rfi_asked(p, row);
    const number q = asked == result.ignore    ? RFI_COLUMN_IGNORED
        : asked >= 0 && asked < p.out_features ? (number)asked
                                               : RFI_COLUMN_OUTSIDE;
    T picked = 0; /* of other blocks: past the first-level cache */
    if (q >= 0 && (result.reduction == RF_OP_PICK || result.reduction == RF_OP_LOGPROB))
        picked = __ldcg((const T *)p.picked + row);
    switch (result.reduction) {
    case RF_OP_LOGSUMEXP: return rfi_reduction_LOGSUMEXP::finish(s.m, {s.t[0]}, n, q);
    case RF_OP_ENTROPY: return rfi_reduction_ENTROPY::finish(s.m, {s.t[0], s.t[1]}, n, q);
    case RF_OP_LOGPROB: return rfi_reduction_LOGPROB::finish(s.m, {s.t[0], picked}, n, q);
    case RF_OP_PICK: return rfi_reduction_PICK::finish(s.m, {picked}, n, q);
    case RF_OP_MAX: return rfi_reduction_MAX::finish(s.t[2] < 0 ? (T)NAN : s.m, none, n, q);
    case RF_OP_MIN: return rfi_reduction_MIN::finish(s.t[2] < 0 ? (T)NAN : -s.m, none, n, q);
    default: /* RF_OP_ARGMAX, RF_OP_ARGMIN */
        return s.t[2] < 0 ? rfi_typed<T>::word(rfi_answers::BEHIND - rfi_typed<T>::column_of(-s.t[2])) : s.t[2];
    }
}

/* What the state of a whole row comes to, to y: a number goes to store(p, row, v), which takes it through the steps
 * behind the reduction; a column, which has none, goes to y as int64. Of a rehearsal, which `stores` nothing, a number
 * goes to `store` all the same. */
template <class R, class T, int N, class Store> static __device__ __forceinline__ void rfi_finish_state(
    const rfi_cuda_visitor &p, int64_t row, const rfi_state_of<T, N> &s, Store store, bool stores = true) {
    if constexpr (std::is_same<R, rfi_answers>::value) {
#pragma unroll 1
        for (int i = 0; i < p.num_results; i++) {
            const rfi_cuda_result &result = p.results[i];
            T v = rfi_answer(p, result, row, s);
            if (result.reduction == RF_OP_ARGMAX || result.reduction == RF_OP_ARGMIN) {
                if (stores) ((int64_t *)result.y)[row * result.ldy] = rfi_typed<T>::column_of(v);
                continue;
            }
            v = rfi_run_steps(p, result.first_step, result.num_steps, row, v);
            if (stores) rfi_store_as<T>(result.y, result.y_dtype, row * result.ldy, v);
        }
    } else {
        T v = R::finish(s.m, s.t, (T)p.out_features, RFI_COLUMN_OUTSIDE);
        if constexpr ((R::FLAGS & RFI_RF_INDEX) != 0) {
            if (stores) ((int64_t *)p.y)[row * p.ldy] = rfi_typed<T>::column_of(v);
        } else {
            store(p, row, v);
        }
    }
}

#endif
