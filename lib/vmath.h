/* The primitives of ops.h on the CPU. Branch-free, so that loops over them vectorise. */
#ifndef ROWFOLD_VMATH_H
#define ROWFOLD_VMATH_H

#include <math.h>

#define RFI_MATH static inline __attribute__((always_inline, unused))
RFI_MATH float rfi_exp_f32(float x) { return expf(x); }
RFI_MATH float rfi_expm1_f32(float x) { return expm1f(x); }
RFI_MATH float rfi_log_f32(float x) { return logf(x); }
RFI_MATH float rfi_log1p_f32(float x) { return log1pf(x); }
RFI_MATH float rfi_tanh_f32(float x) { return tanhf(x); }
RFI_MATH float rfi_erfc_f32(float x) { return erfcf(x); }
RFI_MATH float rfi_sqrt_f32(float x) { return sqrtf(x); }
RFI_MATH float rfi_abs_f32(float x) { return fabsf(x); }
RFI_MATH double rfi_exp_f64(double x) { return exp(x); }
RFI_MATH double rfi_expm1_f64(double x) { return expm1(x); }
RFI_MATH double rfi_log_f64(double x) { return log(x); }
RFI_MATH double rfi_log1p_f64(double x) { return log1p(x); }
RFI_MATH double rfi_tanh_f64(double x) { return tanh(x); }
RFI_MATH double rfi_erfc_f64(double x) { return erfc(x); }
RFI_MATH double rfi_sqrt_f64(double x) { return sqrt(x); }
RFI_MATH double rfi_abs_f64(double x) { return fabs(x); }

#endif
