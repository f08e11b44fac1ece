/* SPDX-License-Identifier: MIT */
/* Included by ops.h once for each RFI_T (float, double) with RFI_SUFFIX (_f32, _f64); no include guard on purpose. */

#define C(v) ((RFI_T)(v))
#define EXP(v) RFI_TYPED(rfi_exp)(v)
#define EXP_TERM(v) RFI_TYPED(rfi_exp_term)(v)
#define MAXNUM(v, w) RFI_TYPED(rfi_maxnum)((v), (w))
#define EXPM1(v) RFI_TYPED(rfi_expm1)(v)
#define LOG(v) RFI_TYPED(rfi_log)(v)
#define LOG1P(v) RFI_TYPED(rfi_log1p)(v)
#define TANH(v) RFI_TYPED(rfi_tanh)(v)
#define NORMCDF(v) RFI_TYPED(rfi_normcdf)(v)
#define SQRT(v) RFI_TYPED(rfi_sqrt)(v)
#define ABS(v) RFI_TYPED(rfi_abs)(v)
#define MAXN(v, w) RFI_TYPED(rfi_maxn)((v), (w))
#define MINN(v, w) RFI_TYPED(rfi_minn)((v), (w))
#define SIGMOID(v) RFI_TYPED(rfi_sigmoid)(v)
#define TANH_SOFTPLUS(v) RFI_TYPED(rfi_tanh_softplus)(v)
#define ANCHOR(v) RFI_TYPED(rfi_anchor)(v)

/* exp of -|x| alone, so nothing overflows and the lower tail keeps its relative accuracy. */
RFI_FN RFI_T RFI_TYPED(rfi_sigmoid)(RFI_T x) {
    RFI_T e = EXP(-ABS(x));
    return (x < C(0) ? e : C(1)) / (C(1) + e);
}

/* tanh(log(1 + e)) with e = exp(x) is n / (n + 2), n = e (e + 2). Above 20 it rounds to 1 in either type; the cut keeps
 * e * e finite. */
RFI_FN RFI_T RFI_TYPED(rfi_tanh_softplus)(RFI_T x) {
    RFI_T e = EXP(x > C(20) ? C(20) : x);
    RFI_T n = e * (e + C(2));
    return n / (n + C(2));
}

RFI_FN RFI_T RFI_TYPED(rfi_anchor)(RFI_T m) { return ABS(m) < C(INFINITY) ? m : C(0); }

#define RFI_OP(id, number, name, params, flags, formula, doc)                 \
    RFI_FN RFI_T RFI_TYPED(rfi_op_##id)(RFI_T x, RFI_T a, RFI_T b, RFI_T s) { \
        (void)a, (void)b, (void)s;                                            \
        return (formula);                                                     \
    }
#include "ops.def"
#undef RFI_OP

/* The state of one row, or of a block of its columns: see reductions.def. */
typedef struct RFI_TYPED(rfi_state) {
    RFI_T m, t;
} RFI_TYPED(rfi_state);

#define RFI_REDUCTION(id, number, name, peak0, peak_, term_, rescale_, finish_, empty_ok, doc)              \
    RFI_FN RFI_T RFI_TYPED(rfi_peak0_##id)(void) { return peak0; }                                          \
    RFI_FN RFI_T RFI_TYPED(rfi_peak_##id)(RFI_T m, RFI_T x) {                                               \
        (void)x;                                                                                            \
        return peak_;                                                                                       \
    }                                                                                                       \
    RFI_FN RFI_T RFI_TYPED(rfi_term_##id)(RFI_T m, RFI_T x) {                                               \
        (void)m, (void)x;                                                                                   \
        return term_;                                                                                       \
    }                                                                                                       \
    RFI_FN RFI_T RFI_TYPED(rfi_rescale_##id)(RFI_T m, RFI_T x) {                                            \
        (void)m, (void)x;                                                                                   \
        return rescale_;                                                                                    \
    }                                                                                                       \
    RFI_FN RFI_T RFI_TYPED(rfi_finish_##id)(RFI_T m, RFI_T t, RFI_T n) {                                    \
        (void)m, (void)t, (void)n;                                                                          \
        return finish_;                                                                                     \
    }                                                                                                       \
    RFI_FN RFI_TYPED(rfi_state) RFI_TYPED(rfi_merge_##id)(RFI_TYPED(rfi_state) p, RFI_TYPED(rfi_state) q) { \
        RFI_TYPED(rfi_state) r;                                                                             \
        r.m = RFI_TYPED(rfi_peak_##id)(p.m, q.m);                                                           \
        r.t = p.t * RFI_TYPED(rfi_rescale_##id)(p.m, r.m) + q.t * RFI_TYPED(rfi_rescale_##id)(q.m, r.m);    \
        return r;                                                                                           \
    }
#include "reductions.def"
#undef RFI_REDUCTION

RFI_FN RFI_T RFI_TYPED(rfi_op_apply)(int kind, RFI_T x, RFI_T a, RFI_T b, RFI_T s) {
    switch (kind) {
#define RFI_OP(id, number, name, params, flags, formula, doc) \
    case number: return RFI_TYPED(rfi_op_##id)(x, a, b, s);
#include "ops.def"
#undef RFI_OP
/* A reduction over a width of one. The total of nothing is +0, so the sum of a single -0 is +0, as in PyTorch. */
#define RFI_REDUCTION(id, number, name, peak0, peak_, term_, rescale_, finish_, empty_ok, doc) \
    case number: {                                                                             \
        RFI_T m = RFI_TYPED(rfi_peak_##id)(RFI_TYPED(rfi_peak0_##id)(), x);                    \
        return RFI_TYPED(rfi_finish_##id)(m, C(0) + RFI_TYPED(rfi_term_##id)(m, x), C(1));     \
    }
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return x;
}

RFI_FN RFI_TYPED(rfi_state) RFI_TYPED(rfi_state_empty)(int kind) {
    RFI_TYPED(rfi_state) state = {C(0), C(0)};
    switch (kind) {
#define RFI_REDUCTION(id, number, name, peak0, peak_, term_, rescale_, finish_, empty_ok, doc) \
    case number: state.m = RFI_TYPED(rfi_peak0_##id)(); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return state;
}

RFI_FN RFI_T RFI_TYPED(rfi_state_peak)(int kind, RFI_T m, RFI_T x) {
    switch (kind) {
#define RFI_REDUCTION(id, number, name, peak0, peak_, term_, rescale_, finish_, empty_ok, doc) \
    case number: return RFI_TYPED(rfi_peak_##id)(m, x);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return m;
}

RFI_FN RFI_T RFI_TYPED(rfi_state_term)(int kind, RFI_T m, RFI_T x) {
    switch (kind) {
#define RFI_REDUCTION(id, number, name, peak0, peak_, term_, rescale_, finish_, empty_ok, doc) \
    case number: return RFI_TYPED(rfi_term_##id)(m, x);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return x;
}

RFI_FN RFI_TYPED(rfi_state) RFI_TYPED(rfi_state_merge)(int kind, RFI_TYPED(rfi_state) p, RFI_TYPED(rfi_state) q) {
    switch (kind) {
#define RFI_REDUCTION(id, number, name, peak0, peak_, term_, rescale_, finish_, empty_ok, doc) \
    case number: return RFI_TYPED(rfi_merge_##id)(p, q);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return p;
}

RFI_FN RFI_T RFI_TYPED(rfi_state_finish)(int kind, RFI_TYPED(rfi_state) p, RFI_T n) {
    switch (kind) {
#define RFI_REDUCTION(id, number, name, peak0, peak_, term_, rescale_, finish_, empty_ok, doc) \
    case number: return RFI_TYPED(rfi_finish_##id)(p.m, p.t, n);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return p.t;
}

#undef C
#undef EXP
#undef EXP_TERM
#undef MAXNUM
#undef EXPM1
#undef LOG
#undef LOG1P
#undef TANH
#undef NORMCDF
#undef SQRT
#undef ABS
#undef MAXN
#undef MINN
#undef SIGMOID
#undef TANH_SOFTPLUS
#undef ANCHOR
