/* SPDX-License-Identifier: MIT */
/* Included by ops.h once for each RFI_T (float, double) with RFI_SUFFIX (_f32, _f64), RFI_COLUMN and RFI_BITS, integers
 * of the same size, and RFI_MANTISSA, its stored bits; no include guard on purpose. */

#define C(v) ((RFI_T)(v))
#define EXP(v) RFI_TYPED(rfi_exp)(v)
#define EXP_TERM(v) RFI_TYPED(rfi_exp_term)(v)
#define MAXNUM(v, w) RFI_TYPED(rfi_maxnum)((v), (w))
#define EXPM1(v) RFI_TYPED(rfi_expm1)(v)
#define LOG(v) RFI_TYPED(rfi_log)(v)
#define LOG1P(v) RFI_TYPED(rfi_log1p)(v)
#define TANH(v) RFI_TYPED(rfi_tanh)(v)
#define SIN(v) RFI_TYPED(rfi_sin)(v)
#define COS(v) RFI_TYPED(rfi_cos)(v)
#define NORMCDF(v) RFI_TYPED(rfi_normcdf)(v)
#define SQRT(v) RFI_TYPED(rfi_sqrt)(v)
#define QUOTIENT(v, w) RFI_TYPED(rfi_quotient)((v), (w)) /* of finite numbers or NaN; w from 1 to 2^100 */
#define ABS(v) RFI_TYPED(rfi_abs)(v)
#define MAXN(v, w) RFI_TYPED(rfi_maxn)((v), (w))
#define MINN(v, w) RFI_TYPED(rfi_minn)((v), (w))
#define SIGMOID(v) RFI_TYPED(rfi_sigmoid)(v)
#define TANH_SOFTPLUS(v) RFI_TYPED(rfi_tanh_softplus)(v)
#define ANCHOR(v) RFI_TYPED(rfi_anchor)(v)
#define MOVE(m, p) ((m) == (p) ? C(0) : (m) - (p)) /* 0 from an infinity to itself */
/* v exp(v) for v up to 0, whose limit at -inf is 0. EXP_TERM is 0 below the cut. */
#define TIMES_EXP(v) (MAXNUM(C(-1000), v) * EXP_TERM(v))
#define SAME(v, w) (((v) == (w)) | (((v) != (v)) & ((w) != (w)))) /* NaN is the same as NaN */
#define WORD(j) RFI_TYPED(rfi_word)(j)
#define BEFORE(x, j, z, q) ((((x) > (z)) | (((x) != (x)) & ((z) == (z))) | (SAME(x, z) & ((j) < (q)))) ? C(1) : C(0))
#define DOWN(m) RFI_TYPED(rfi_down)(m)
#define ASKED(q, v) ((q) == RFI_COLUMN_IGNORED ? C(0) : (q) == RFI_COLUMN_OUTSIDE ? C(NAN) : (v))

/* exp of -|x| alone, so nothing overflows and the lower tail keeps its relative accuracy. */
RFI_FN RFI_T RFI_TYPED(rfi_sigmoid)(RFI_T x) {
    RFI_T e = EXP(-ABS(x));
    return QUOTIENT(x < C(0) ? e : C(1), C(1) + e);
}

/* tanh(log(1 + e)) with e = exp(x) is n / (n + 2), n = e (e + 2). Above 20 it rounds to 1 in either type; the cut keeps
 * e * e finite. */
RFI_FN RFI_T RFI_TYPED(rfi_tanh_softplus)(RFI_T x) {
    RFI_T e = EXP(x > C(20) ? C(20) : x);
    RFI_T n = e * (e + C(2));
    return QUOTIENT(n, n + C(2));
}

RFI_FN RFI_T RFI_TYPED(rfi_anchor)(RFI_T m) { return ABS(m) < C(INFINITY) ? m : C(0); }

/* 2^-e for m of 2^e to 2^(e+1). Of numbers so large or small that it would be subnormal or infinite in float the
 * nearest that is neither, in double too, where states of float are joined; and so for what is beyond the range of
 * double. */
RFI_FN RFI_T RFI_TYPED(rfi_down)(RFI_T m) {
    const RFI_COLUMN most = (RFI_COLUMN)(((RFI_BITS)1 << (sizeof(RFI_BITS) * 8 - 1 - RFI_MANTISSA)) - 3),
                     bias = most / 2 + 1;
    RFI_COLUMN e = (RFI_COLUMN)(RFI_TYPED(rfi_bits)(m) << 1 >> (RFI_MANTISSA + 1));
    e = e < 1 ? 1 : e;
    e = e > most ? most : e;
    e = ((e >= bias - 149) & (e < bias - 126)) ? bias - 126 : e;
    e = e == bias + 127 ? bias + 126 : e;
    return RFI_TYPED(rfi_from_bits)((RFI_BITS)(2 * bias - e) << RFI_MANTISSA);
}

/* What finish divides by: never below 0, as in PyTorch. */
RFI_FN RFI_T RFI_TYPED(rfi_divisor)(RFI_T n, RFI_T correction) { return n > correction ? n - correction : C(0); }

#define RFI_OP(id, number, name, params, flags, formula, ...)                 \
    RFI_FN RFI_T RFI_TYPED(rfi_op_##id)(RFI_T x, RFI_T a, RFI_T b, RFI_T s) { \
        (void)a, (void)b, (void)s;                                            \
        return (formula);                                                     \
    }
#include "ops.def"
#undef RFI_OP

/* Columns as values: the number whose bits they are, counted from those of the smallest normal number on. */
RFI_FN RFI_T RFI_TYPED(rfi_word)(RFI_COLUMN j) {
    return RFI_TYPED(rfi_from_bits)((RFI_BITS)j + ((RFI_BITS)1 << RFI_MANTISSA));
}
RFI_FN RFI_COLUMN RFI_TYPED(rfi_column_of)(RFI_T word) {
    return (RFI_COLUMN)(RFI_TYPED(rfi_bits)(word) - ((RFI_BITS)1 << RFI_MANTISSA));
}

/* The parts of a total. */
#define TERM_OF(join, term, moved, factor) (term)
#define MOVED_OF(join, term, moved, factor) (moved)
#define FACTOR_OF(join, term, moved, factor) (factor)
#define EMPTY_OF(join, term, moved, factor) EMPTY_##join
#define JOINED_OF(join, term, moved, factor) JOINED_##join
#define EMPTY_ADD C(0)
#define EMPTY_NONE C(0)
#define EMPTY_LEAST C(INFINITY)
#define JOINED_ADD (t + u)
#define JOINED_NONE t
#define JOINED_LEAST (u < t ? u : t)

/* What becomes of a state's parts: see reductions.def. i, the number of a total, is a constant. */
#define RFI_REDUCTION(id, number, name, flags, peak0, peak_, total0, total1, finish_, ...)                             \
    RFI_FN RFI_T RFI_TYPED(rfi_peak0_##id)(void) { return peak0; }                                                     \
    RFI_FN RFI_T RFI_TYPED(rfi_peak_##id)(RFI_T m, RFI_T x) {                                                          \
        (void)x;                                                                                                       \
        return peak_;                                                                                                  \
    }                                                                                                                  \
    RFI_FN RFI_T RFI_TYPED(rfi_empty_##id)(int i) { return i ? EMPTY_OF total1 : EMPTY_OF total0; }                    \
    RFI_FN RFI_T RFI_TYPED(rfi_term_##id)(int i, RFI_T m, RFI_T x, RFI_COLUMN j, RFI_COLUMN q) {                       \
        (void)m, (void)x, (void)j, (void)q;                                                                            \
        return i ? TERM_OF total1 : TERM_OF total0;                                                                    \
    }                                                                                                                  \
    RFI_FN RFI_T RFI_TYPED(rfi_moved_##id)(int i, RFI_T m, RFI_T p, RFI_T t0, RFI_T t1) {                              \
        (void)m, (void)p, (void)t0, (void)t1;                                                                          \
        return i ? MOVED_OF total1 : MOVED_OF total0;                                                                  \
    }                                                                                                                  \
    RFI_FN RFI_T RFI_TYPED(rfi_factor_##id)(int i, RFI_T m, RFI_T p) {                                                 \
        (void)m, (void)p;                                                                                              \
        return i ? FACTOR_OF total1 : FACTOR_OF total0;                                                                \
    }                                                                                                                  \
    /* A total taken at peak m, for peak p. */                                                                         \
    RFI_FN RFI_T RFI_TYPED(rfi_carry_##id)(int i, RFI_T m, RFI_T p, RFI_T t0, RFI_T t1) {                              \
        return RFI_TYPED(rfi_moved_##id)(i, m, p, t0, t1) * RFI_TYPED(rfi_factor_##id)(i, m, p);                       \
    }                                                                                                                  \
    RFI_FN RFI_T RFI_TYPED(rfi_join_##id)(int i, RFI_T t, RFI_T u) {                                                   \
        (void)u;                                                                                                       \
        return i ? JOINED_OF total1 : JOINED_OF total0;                                                                \
    }                                                                                                                  \
    RFI_FN RFI_T RFI_TYPED(rfi_finish_##id)(RFI_T m, RFI_T t0, RFI_T t1, RFI_T n, RFI_COLUMN q) {                      \
        (void)m, (void)t0, (void)t1, (void)n, (void)q;                                                                 \
        return finish_;                                                                                                \
    }                                                                                                                  \
    /* What it makes of a single column, a its parameter. The total of nothing is +0, so the sum of a single -0 is +0, \
     * as in PyTorch.                                                                                                  \
     */                                                                                                                \
    RFI_FN RFI_T RFI_TYPED(rfi_alone_##id)(RFI_T x, RFI_T a) {                                                         \
        RFI_T m = RFI_TYPED(rfi_peak_##id)(RFI_TYPED(rfi_peak0_##id)(), x);                                            \
        RFI_T t0 = RFI_TYPED(rfi_join_##id)(0, RFI_TYPED(rfi_empty_##id)(0), RFI_TYPED(rfi_term_##id)(0, m, x, 0, 0)); \
        RFI_T t1 = RFI_TYPED(rfi_join_##id)(1, RFI_TYPED(rfi_empty_##id)(1), RFI_TYPED(rfi_term_##id)(1, m, x, 0, 0)); \
        RFI_T n = (flags) & RFI_RF_CORRECTION ? RFI_TYPED(rfi_divisor)(C(1), a) : C(1);                                \
        RFI_T result = RFI_TYPED(rfi_finish_##id)(m, t0, t1, n, 0);                                                    \
        return (flags) & RFI_RF_INDEX ? (RFI_T)RFI_TYPED(rfi_column_of)(result) : result;                              \
    }
#include "reductions.def"
#undef RFI_REDUCTION

RFI_FN RFI_T RFI_TYPED(rfi_op_apply)(int kind, RFI_T x, RFI_T a, RFI_T b, RFI_T s) {
    switch (kind) {
#define RFI_OP(id, number, ...) \
    case number: return RFI_TYPED(rfi_op_##id)(x, a, b, s);
#include "ops.def"
#undef RFI_OP
/* A reduction over a width of one. */
#define RFI_REDUCTION(id, number, name, ...) \
    case number: return RFI_TYPED(rfi_alone_##id)(x, a);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return x;
}

#undef C
#undef EXP
#undef EXP_TERM
#undef MAXNUM
#undef EXPM1
#undef LOG
#undef LOG1P
#undef TANH
#undef SIN
#undef COS
#undef NORMCDF
#undef SQRT
#undef ABS
#undef MAXN
#undef MINN
#undef SIGMOID
#undef TANH_SOFTPLUS
#undef ANCHOR
#undef MOVE
#undef TIMES_EXP
#undef SAME
#undef WORD
#undef BEFORE
#undef DOWN
#undef ASKED
#undef TERM_OF
#undef MOVED_OF
#undef FACTOR_OF
#undef EMPTY_OF
#undef JOINED_OF
#undef EMPTY_ADD
#undef EMPTY_NONE
#undef EMPTY_LEAST
#undef JOINED_ADD
#undef JOINED_NONE
#undef JOINED_LEAST
