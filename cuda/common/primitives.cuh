/* SPDX-License-Identifier: MIT */
/* The primitives of ops.h for nvcc: in float CUDA's full-accuracy functions, in double those of the CPU. None of the
 * files here is compiled with
 * --use_fast_math, so expf is within 1 ulp, logf 1, log1pf 1, expm1f 1, tanhf 2, normcdff 5 (CUDA C++ Programming
 * Guide, mathematical functions), divisions and square roots are rounded correctly and subnormals are kept. The terms
 * of a logsumexp alone take the special function unit as it is: 2^-22 of a term, and 2^-24 of one for each unit that
 * its exponent lies below the largest, which the sum does not show. */
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
RFI_MATH float rfi_normcdf_f32(float x) { return normcdff(x); }
RFI_MATH float rfi_sqrt_f32(float x) { return sqrtf(x); }
RFI_MATH float rfi_abs_f32(float x) { return fabsf(x); }
RFI_MATH double rfi_sqrt_f64(double x) { return sqrt(x); }
RFI_MATH double rfi_abs_f64(double x) { return fabs(x); }
RFI_MATH double rfi_copysign_f64(double x, double sign) { return copysign(x, sign); }
#include "vmath_double.h"
RFI_MATH double rfi_exp_term_f64(double x) { return rfi_exp_f64(x); }
RFI_MATH double rfi_maxnum_f64(double v, double w) { return fmax(v, w); }
RFI_MATH double rfi_maxn_f64(double v, double w) { return v != v || v > w ? v : w; }
RFI_MATH double rfi_minn_f64(double v, double w) { return v != v || v < w ? v : w; }

#endif
