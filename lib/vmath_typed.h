/* SPDX-License-Identifier: MIT */
/* Included by vmath.h once for each RFI_NUM_T (float, double); no include guard on purpose. Polynomials and constants:
 * vmath_poly.h.
 *
 * "exact" below means without rounding. Where it matters that a result is exact, it stays so when products are
 * contracted. */

#ifndef RFI_NUM
#define RFI_NUM(name) RFI_NUM_JOIN(name, RFI_NUM_SUFFIX)
#define RFI_NUM_JOIN(a, b) RFI_NUM_JOIN_(a, b)
#define RFI_NUM_JOIN_(a, b) a##b
#endif

#define T RFI_NUM_T
#define U RFI_NUM_U
#define V(c) ((T)(c))
#define ULP_OF_ONE (V(1) / (T)((U)1 << RFI_NUM_MANTISSA))
#define MANTISSA_MASK (((U)1 << RFI_NUM_MANTISSA) - 1)
#define MIN_NORMAL (RFI_NUM(rfi_from_bits)((U)1 << RFI_NUM_MANTISSA))
/* Numbers from ONE_IS_ULP up to twice that are integers, the low bits of their mantissas count them. ROUNDER + v rounds
 * v to an integer. */
#define ONE_IS_ULP ((T)((U)1 << RFI_NUM_MANTISSA))
#define ROUNDER (V(1.5) * ONE_IS_ULP)

RFI_MATH U RFI_NUM(rfi_bits)(T x) {
    U u;
    memcpy(&u, &x, sizeof u);
    return u;
}

RFI_MATH T RFI_NUM(rfi_from_bits)(U u) {
    T x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Both keep a NaN x. */
RFI_MATH T RFI_NUM(rfi_at_most)(T x, T high) { return high < x ? high : x; }
RFI_MATH T RFI_NUM(rfi_at_least)(T x, T low) { return low > x ? low : x; }

/* 2^k for an integer 1 - BIAS <= k <= BIAS. The sum holds k + BIAS in its low bits; the shift leaves only those, as the
 * exponent. Nothing here needs a conversion or an arithmetic shift of 64 bits, which older vector units lack. */
RFI_MATH T RFI_NUM(rfi_exp2i)(T k) {
    return RFI_NUM(rfi_from_bits)(RFI_NUM(rfi_bits)(k + (ROUNDER + V(RFI_NUM_BIAS))) << RFI_NUM_MANTISSA);
}

/* exp(r) - 1 for the r of x = k ln 2 + r - lo, |r| <= ln(2) / 2, k an integer: the two-term argument reduction of W. J.
 * Cody and W. Waite
 * ("Software Manual for the Elementary Functions", 1980). k LN2_HI and its difference from x are exact. */
RFI_MATH T RFI_NUM(rfi_expm1_reduced)(T x, T lo, T *k) {
    *k = (x * RFI_NUM(RFI_LOG2E) + ROUNDER) - ROUNDER;
    T r = ((x - *k * RFI_NUM(RFI_LN2_HI)) - *k * RFI_NUM(RFI_LN2_LO)) - lo;
    return r + r * r * RFI_NUM(RFI_POLY_EXPM1)(r);
}

/* v exp(x - lo) for EXP_MIN <= x <= EXP_MAX (NaN too), lo tiny beside 1 and v not far from 1. 2^k may be out of range
 * where the result is not, so it comes in two factors; the first product is exact, and so the result is rounded once,
 * also where it is subnormal. */
RFI_MATH T RFI_NUM(rfi_exp_times)(T x, T lo, T v) {
    T k, e = RFI_NUM(rfi_expm1_reduced)(x, lo, &k);
    T half = (k * V(0.5) + ROUNDER) - ROUNDER;
    return (v + v * e) * RFI_NUM(rfi_exp2i)(half) * RFI_NUM(rfi_exp2i)(k - half);
}

RFI_MATH T RFI_NUM(rfi_exp)(T x) {
    x = RFI_NUM(rfi_at_most)(RFI_NUM(rfi_at_least)(x, V(RFI_NUM_EXP_MIN)), V(RFI_NUM_EXP_MAX));
    return RFI_NUM(rfi_exp_times)(x, V(0), V(1));
}

/* 2^k (1 + e) - 1 = 2 (2^(k-1) e + (2^(k-1) - 1/2)), halved because 2^k may overflow where the result does not. k is 0
 * near 0, where the result is e alone. Below half an ulp of 1, x is the result; that keeps the sign of 0, and subnormal
 * x from being halved. */
RFI_MATH T RFI_NUM(rfi_expm1)(T x) {
    T k, c = RFI_NUM(rfi_at_most)(RFI_NUM(rfi_at_least)(x, V(RFI_NUM_ONE_MIN)), V(RFI_NUM_EXP_MAX));
    T e = RFI_NUM(rfi_expm1_reduced)(c, V(0), &k);
    T scale = RFI_NUM(rfi_exp2i)(k - V(1));
    T y = V(2) * (scale * e + (scale - V(0.5)));
    return RFI_NUM(rfi_abs)(x) < V(0.5) * ULP_OF_ONE ? x : y;
}

/* x = 2^k m with sqrt(1/2) <= m < sqrt(2), for a positive normal x. Returns m. */
RFI_MATH T RFI_NUM(rfi_split)(T x, T *k) {
    U sqrt_half = RFI_NUM(rfi_bits)(V(0.70710678118654752440));
    U u = RFI_NUM(rfi_bits)(x) + (RFI_NUM(rfi_bits)(V(1)) - sqrt_half);
    *k = RFI_NUM(rfi_from_bits)(RFI_NUM(rfi_bits)(ONE_IS_ULP) | u >> RFI_NUM_MANTISSA) - (ONE_IS_ULP + V(RFI_NUM_BIAS));
    return RFI_NUM(rfi_from_bits)((u & MANTISSA_MASK) + sqrt_half);
}

/* log(2^k (1 + f)) for sqrt(1/2) <= 1 + f <= sqrt(2), smallest terms first; k LN2_HI is exact. */
RFI_MATH T RFI_NUM(rfi_log_joined)(T k, T f) {
    T square = f * f;
    T small = f * square * RFI_NUM(RFI_POLY_LOG1P)(f) + k * RFI_NUM(RFI_LN2_LO);
    return k * RFI_NUM(RFI_LN2_HI) + (f - (V(0.5) * square - small));
}

/* y, the logarithm of v, where v is positive and finite. */
RFI_MATH T RFI_NUM(rfi_log_special)(T v, T y) {
    T finite = v < V(INFINITY) ? y : v;
    T not_above = v == V(0) ? V(-INFINITY) : V(NAN);
    return v > V(0) ? finite : not_above;
}

RFI_MATH T RFI_NUM(rfi_log)(T x) {
    T k, normal = x < MIN_NORMAL ? x * ONE_IS_ULP : x;
    T shift = x < MIN_NORMAL ? V(RFI_NUM_MANTISSA) : V(0);
    T f = RFI_NUM(rfi_split)(normal, &k) - V(1);
    return RFI_NUM(rfi_log_special)(x, RFI_NUM(rfi_log_joined)(k - shift, f));
}

/* With k from the rounded 1 + x, the f of 1 + x = 2^k (1 + f) is 2^-k x + (2^-k - 1), where only the last addition
 * rounds; for k = 0 it is x. Four times 2^-k, as 2^-k itself may be subnormal. */
RFI_MATH T RFI_NUM(rfi_log1p)(T x) {
    T k, u = V(1) + x;
    RFI_NUM(rfi_split)(u, &k);
    T scale = RFI_NUM(rfi_exp2i)(V(2) - k);
    T f = V(0.25) * x * scale + (V(0.25) * scale - V(1));
    T y = RFI_NUM(rfi_log_special)(u, RFI_NUM(rfi_log_joined)(k, f));
    return RFI_NUM(rfi_abs)(x) < V(0.5) * ULP_OF_ONE ? x : y;
}

/* A polynomial near 0; 1 - 2 / (exp(2|x|) + 1) further out, where the subtrahend is the smaller and its error counts
 * less. */
RFI_MATH T RFI_NUM(rfi_tanh)(T x) {
    T a = RFI_NUM(rfi_abs)(x), square = a * a;
    T near = a + a * (square * RFI_NUM(RFI_POLY_TANH)(square));
    T k, e = RFI_NUM(rfi_expm1_reduced)(V(2) * RFI_NUM(rfi_at_most)(a, V(RFI_NUM_ONE_MAX)), V(0), &k);
    T scale = RFI_NUM(rfi_exp2i)(k);
    T far = V(1) - V(2) / ((scale + scale * e) + V(1));
    return RFI_NUM(rfi_copysign)(a < RFI_NUM(RFI_TANH_CUT) ? near : far, x);
}

/* Phi(x), the distribution function of the standard normal, erfc(-x / sqrt(2)) / 2, to full relative accuracy in its
 * lower tail: there exp magnifies a rounding of x^2 / 2 by x^2 / 2, so the square is taken in two parts. That of the
 * upper half of z's bits is exact. What the rounding of z + 1.25 loses (exactly `lost`) goes into the smaller part, as
 * exp(-lost / (z + 1.25)): the polynomial is between 0.39 and 0.63, so 2 mills is near enough to 1 / (z + 1.25). */
RFI_MATH T RFI_NUM(rfi_normcdf)(T x) {
    T z = RFI_NUM(rfi_at_most)(RFI_NUM(rfi_abs)(x), RFI_NUM(RFI_NORMCDF_END));
    T upper = RFI_NUM(rfi_from_bits)(RFI_NUM(rfi_bits)(z) & ~(((U)1 << (RFI_NUM_MANTISSA + 2) / 2) - 1));
    T t = (z - RFI_NUM(RFI_NORMCDF_K)) / (z + RFI_NUM(RFI_NORMCDF_K));
    T below = z + V(1.25), lost = z - (below - V(1.25));
    T mills = RFI_NUM(RFI_POLY_NORMCDF)(t) / below;
    T rest = V(0.5) * (z - upper) * (z + upper) + V(2) * mills * lost;
    T tail = RFI_NUM(rfi_exp_times)(V(-0.5) * upper * upper, rest, mills);
    return x > V(0) ? V(1) - tail : tail;
}

#undef T
#undef U
#undef V
#undef ULP_OF_ONE
#undef MANTISSA_MASK
#undef MIN_NORMAL
#undef ONE_IS_ULP
#undef ROUNDER
#undef RFI_NUM_T
#undef RFI_NUM_U
#undef RFI_NUM_SUFFIX
#undef RFI_NUM_MANTISSA
#undef RFI_NUM_BIAS
#undef RFI_NUM_EXP_MAX
#undef RFI_NUM_EXP_MIN
#undef RFI_NUM_ONE_MIN
#undef RFI_NUM_ONE_MAX
