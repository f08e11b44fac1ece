/* SPDX-License-Identifier: MIT */
/* The primitives of ops.h on the CPU, for float (_f32) and double (_f64).
 *
 * Plain C without branches, tables or calls, so that a loop over them becomes vector code on any instruction set:
 *
 *     for (size_t i = 0; i < n; i++) v[i] = rfi_exp_f32(v[i]);
 *
 * given -O3 -fno-math-errno -fno-trapping-math. Not -ffast-math: the argument reductions rely on additions being done
 * as written, and infinities, NaN and subnormal numbers have their IEEE meaning. Products may be contracted into fused
 * multiply-adds or not: the bits of a result depend on that, its accuracy does not. The largest errors in ulp, for
 * float of all 2^32 arguments, for double of those that tests/c/test_vmath.c tries:
 *
 *              exp    expm1  log    log1p  tanh   normcdf  sin    cos
 *     float    1.1    1.8    1.0    1.5    1.5    3.0      0.51   0.51
 *     double   1.1    2.2    1.0    1.5    1.5    3.0      1      1
 *
 * Results below the smallest normal number are rounded to it once. sqrt and abs are the processor's own, sin and cos of
 * double the C library's. */
#ifndef ROWFOLD_VMATH_H
#define ROWFOLD_VMATH_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "vmath_poly.h"

#ifdef __FAST_MATH__
#error "-ffast-math (and -Ofast) breaks these functions, and what infinities and NaN mean to the operators"
#endif
#if FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "float and double must be rounded after each operation; on i386 that takes -msse2 -mfpmath=sse"
#endif

#define RFI_MATH static inline __attribute__((always_inline, unused))

RFI_MATH float rfi_sqrt_f32(float x) { return sqrtf(x); }
RFI_MATH float rfi_abs_f32(float x) { return fabsf(x); }
RFI_MATH float rfi_copysign_f32(float x, float sign) { return copysignf(x, sign); }
RFI_MATH float rfi_quotient_f32(float v, float w) { return v / w; }
RFI_MATH double rfi_sqrt_f64(double x) { return sqrt(x); }
RFI_MATH double rfi_abs_f64(double x) { return fabs(x); }
RFI_MATH double rfi_copysign_f64(double x, double sign) { return copysign(x, sign); }
RFI_MATH double rfi_quotient_f64(double v, double w) { return v / w; }

/* MANTISSA  stored mantissa bits, and BIAS, the exponent's
 * EXP_MAX   the least integer whose exp overflows, EXP_MIN the greatest whose exp rounds to 0
 * ONE_MIN   an integer whose expm1 rounds to -1
 * ONE_MAX   an integer from which on tanh rounds to 1 */
#define RFI_NUM_T float
#define RFI_NUM_U uint32_t
#define RFI_NUM_SUFFIX _f32
#define RFI_NUM_MANTISSA 23
#define RFI_NUM_BIAS 127
#define RFI_NUM_EXP_MAX 89
#define RFI_NUM_EXP_MIN -104
#define RFI_NUM_ONE_MIN -18
#define RFI_NUM_ONE_MAX 10
#include "vmath_typed.h"

#include "vmath_double.h"

#include "vmath_trig.h"

/* What a fold does to every logit: a GPU has shorter instructions for these. fmax and fmin would drop a NaN; maxn and
 * minn keep it from either side. Two selects: gcc's vectoriser does not see through one of two conditions. */
#define RFI_MAXN_MINN(T, suffix)             \
    RFI_MATH T rfi_maxn_##suffix(T v, T w) { \
        T max = v > w ? v : w;               \
        return v != v ? v : max;             \
    }                                        \
    RFI_MATH T rfi_minn_##suffix(T v, T w) { \
        T min = v < w ? v : w;               \
        return v != v ? v : min;             \
    }
RFI_MAXN_MINN(float, f32)
RFI_MAXN_MINN(double, f64)
#undef RFI_MAXN_MINN
/* exp(x) of a term beside others of which one is 1 or infinite: 0 where exp(x) would be subnormal or nearly so,
 * infinity where it would be nearly that. So one power of two does for both ends. */
#define RFI_EXP_TERM(T, suffix, end)                                                  \
    RFI_MATH T rfi_exp_term_##suffix(T x) {                                           \
        T k, e = rfi_expm1_reduced_##suffix(rfi_at_least_##suffix(x, -(end)), 0, &k); \
        T y = ((T)1 + e) * rfi_exp2i_##suffix(k);                                     \
        y = x < -(end) ? (T)0 : y;                                                    \
        return x > (end) ? (T)INFINITY : y;                                           \
    }
RFI_EXP_TERM(float, f32, 87.0f)
RFI_EXP_TERM(double, f64, 708.0)
#undef RFI_EXP_TERM
RFI_MATH float rfi_maxnum_f32(float v, float w) { return w > v ? w : v; }
RFI_MATH double rfi_maxnum_f64(double v, double w) { return w > v ? w : v; }

#endif
