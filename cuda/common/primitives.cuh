/* SPDX-License-Identifier: MIT */
/* The primitives of ops.h for nvcc: in float CUDA's full-accuracy functions but for Phi, in double those of the CPU.
 * None of the files here is compiled with --use_fast_math, so expf is within 1 ulp, logf 1, log1pf 1, expm1f 1, tanhf 2
 * (CUDA C++ Programming Guide, mathematical functions), divisions and square roots are rounded correctly and subnormals
 * are kept. gelu is within 3.6 ulps and what an ulp of x changes, found by trying all floats. The terms of a logsumexp
 * alone take the special function unit as it is: 2^-22 of a term, and 2^-24 of one for each unit that its exponent lies
 * below the largest, which the sum does not show. */
#ifndef ROWFOLD_CUDA_PRIMITIVES_CUH
#define ROWFOLD_CUDA_PRIMITIVES_CUH

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "vmath_poly.h"

#define RFI_MATH static __device__ __forceinline__
RFI_MATH uint32_t rfi_bits_f32(float x) { return __float_as_uint(x); }
RFI_MATH float rfi_from_bits_f32(uint32_t u) { return __uint_as_float(u); }

RFI_MATH float rfi_exp_f32(float x) { return expf(x); }
RFI_MATH float rfi_exp_term_f32(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.44269504f));
    return r;
}
RFI_MATH float rfi_maxnum_f32(float v, float w) { return fmaxf(v, w); }
RFI_MATH float rfi_maxn_f32(float v, float w) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(v), "f"(w));
    return r;
}
RFI_MATH float rfi_minn_f32(float v, float w) {
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(v), "f"(w));
    return r;
}
RFI_MATH float rfi_expm1_f32(float x) { return expm1f(x); }
RFI_MATH float rfi_log_f32(float x) { return logf(x); }
RFI_MATH float rfi_log1p_f32(float x) { return log1pf(x); }
RFI_MATH float rfi_tanh_f32(float x) { return tanhf(x); }
RFI_MATH float rfi_reciprocal_f32(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
/* Within 1 ulp. A division that is rounded correctly has a branch, behind which nothing of the next value can begin. */
RFI_MATH float rfi_quotient_f32(float v, float w) {
    const float r = rfi_reciprocal_f32(w), q = v * r;
    return fmaf(fmaf(-q, w, v), r, q);
}
/* Phi(-z) is exp(-z^2 / 2) times a polynomial in z / (z + 3), in a third of the instructions of normcdff. What
 * rounding z^2 loses is what half an ulp of x would change. The exponential is taken by halves so that subnormal
 * results are kept. */
RFI_MATH float rfi_normcdf_f32(float x) {
    const float z = fminf(fabsf(x), RFI_NORMCDF_END_f32); /* the exponential alone is 0 from there on */
    const float t = z * rfi_reciprocal_f32(z + 3.0f);
    float half;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(half) : "f"(x * (-0.25f * RFI_LOG2E_f32) * x));
    const float tail = half * RFI_POLY_TAIL_f32(t) * half;
    return x > 0.0f ? 1.0f - tail : tail;
}
RFI_MATH float rfi_sqrt_f32(float x) { return sqrtf(x); }
RFI_MATH float rfi_abs_f32(float x) { return fabsf(x); }
RFI_MATH double rfi_sqrt_f64(double x) { return sqrt(x); }
RFI_MATH double rfi_quotient_f64(double v, double w) { return v / w; }
RFI_MATH double rfi_abs_f64(double x) { return fabs(x); }
RFI_MATH double rfi_copysign_f64(double x, double sign) { return copysign(x, sign); }
#include "vmath_double.h"
RFI_MATH double rfi_exp_term_f64(double x) { return rfi_exp_f64(x); }
RFI_MATH double rfi_maxnum_f64(double v, double w) { return fmax(v, w); }
RFI_MATH double rfi_maxn_f64(double v, double w) { return v != v || v > w ? v : w; }
RFI_MATH double rfi_minn_f64(double v, double w) { return v != v || v < w ? v : w; }

#endif
