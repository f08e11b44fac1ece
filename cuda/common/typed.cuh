/* SPDX-License-Identifier: MIT */
/* The functions of ops.h under one name for both compute types, and loads and stores of any data type. */
#ifndef ROWFOLD_CUDA_TYPED_CUH
#define ROWFOLD_CUDA_TYPED_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "chain.h"
#include "kernels.h"
#include "ops.h"

template <class T> struct rfi_typed;
template <> struct rfi_typed<float> {
    typedef int32_t column;
    static __device__ __forceinline__ float a(const rfi_cuda_step &step) { return step.a32; }
    static __device__ __forceinline__ float b(const rfi_cuda_step &step) { return step.b32; }
    static __device__ float apply(int kind, float x, float a, float b, float s) {
        return rfi_op_apply_f32(kind, x, a, b, s);
    }
    static __device__ __forceinline__ float word(int32_t column) { return rfi_word_f32(column); }
    static __device__ __forceinline__ int32_t column_of(float word) { return rfi_column_of_f32(word); }
    static __device__ __forceinline__ float down(float m) { return rfi_down_f32(m); }
};
template <> struct rfi_typed<double> {
    typedef int64_t column;
    static __device__ __forceinline__ double a(const rfi_cuda_step &step) { return step.a64; }
    static __device__ __forceinline__ double b(const rfi_cuda_step &step) { return step.b64; }
    static __device__ double apply(int kind, double x, double a, double b, double s) {
        return rfi_op_apply_f64(kind, x, a, b, s);
    }
    static __device__ __forceinline__ double word(int64_t column) { return rfi_word_f64(column); }
    static __device__ __forceinline__ int64_t column_of(double word) { return rfi_column_of_f64(word); }
    static __device__ __forceinline__ double down(double m) { return rfi_down_f64(m); }
};

#define RFI_OP(id, ...)                                                                                    \
    RFI_FN float rfi_op_##id(float x, float a, float b, float s) { return rfi_op_##id##_f32(x, a, b, s); } \
    RFI_FN double rfi_op_##id(double x, double a, double b, double s) { return rfi_op_##id##_f64(x, a, b, s); }
#include "ops.def"
#undef RFI_OP

/* A sum of what tensor cores summed up in pieces. They truncate when they add: measured, pieces of 32 products lose 0.6
 * (signs mixed) to 0.9 (all equal) units of a float's last place on average, always towards zero, which a sum over the
 * columns shows. An odd last place is rounded away from zero, half a unit on average; a sum short enough to have been
 * exact is even, and left alone. Infinities stay, and so does NaN, of which the sum is 0x7fffffff: the least that is
 * taken off keeps its bits from overflowing. */
static __device__ __forceinline__ float rfi_unbiased(float sum) {
    const int bits = __float_as_int(sum);
    return __int_as_float(min(bits, 0x7ffffffe) + (bits & 1));
}

/* Two values of a 16-bit type. */
template <class E> static __device__ __forceinline__ float2 rfi_widen(uint32_t two);
template <> __device__ __forceinline__ float2 rfi_widen<__half>(uint32_t two) {
    return __half22float2(*(const __half2 *)&two);
}
template <> __device__ __forceinline__ float2 rfi_widen<__nv_bfloat16>(uint32_t two) {
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
}

/* Value `i` of an array of any type, in the compute type. */
template <class T> static __device__ __forceinline__ T rfi_load_as(const void *data, int dtype, int64_t i) {
    switch (dtype) {
    case RF_FLOAT64: return (T)((const double *)data)[i];
    case RF_FLOAT16: return (T)__half2float(((const __half *)data)[i]);
    case RF_BFLOAT16: return (T)__bfloat162float(((const __nv_bfloat16 *)data)[i]);
    default: return (T)((const float *)data)[i];
    }
}

/* What a bit of rfi_cuda_rows.rest stands for, beside that second term. */
static __device__ __forceinline__ float rfi_rest_of(float second) {
    return __uint_as_float(__float_as_uint(second) & 0xff800000u) * 0x1p-11f;
}

/* How many places of infinities the verdicts have. */
static __device__ __forceinline__ int rfi_verdict_places(const rfi_cuda_verdicts &verdicts) {
    return (int)min(verdicts.used[1], (unsigned long long)verdicts.room);
}

/* Where value `i` of a row lies in blocks, counted from its term in the first one. The lowest bits of the number of a
 * 16-byte piece are turned over by those of the row: so the swizzle of 128, 64 or 32 bytes wants it in shared memory.
 */
static __device__ __forceinline__ int64_t rfi_place(int panel, int64_t panel_rows, int64_t row, int64_t i) {
    const int turn = panel == 64 ? row & 7
        : panel == 32            ? row >> 1 & 3
                                 : row >> 2 & 1,
              shift = panel == 64 ? 6
        : panel == 32             ? 5
                                  : 4;
    const int64_t block = (i >> shift) * (panel_rows / RFI_BLOCK_ROWS) + row / RFI_BLOCK_ROWS;
    return block * rfi_block_values(panel) + (int)(row % RFI_BLOCK_ROWS) * panel + (((int)i & (panel - 1)) ^ turn << 3);
}

/* Value `i` of row `row` of x or W, of x with one level. */
template <class T>
static __device__ __forceinline__ T rfi_load_rows(const rfi_cuda_rows &rows, int64_t row, int64_t i) {
    int64_t at = rows.panel ? rfi_place(rows.panel, rows.ld, row, i) : row * rows.ld + i;
    T v = rfi_load_as<T>(rows.data, rows.dtype, at);
    if (rows.low) v += rfi_load_as<T>(rows.low, rows.dtype, at);
    if (rows.least) v += rfi_load_as<T>(rows.least, rows.dtype, at);
    if (rows.scale) v *= (T)rows.scale[row];
    return v;
}

/* The value that W, in up to two terms of binary16, has in column k of a row, but for the row's scale. */
static __device__ __forceinline__ float rfi_unscaled(const rfi_cuda_rows &w, int64_t row, int64_t k) {
    const int64_t at = w.panel ? rfi_place(w.panel, w.ld, row, k) : row * w.ld + k;
    const float first = __half2float(((const __half *)w.data)[at]);
    if (!w.low) return first;
    const float second = __half2float(((const __half *)w.low)[at]);
    const bool more = w.rest && w.rest[k / 8 * w.rest_ld + row] >> k % 8 & 1;
    return first + (more ? second + rfi_rest_of(second) : second);
}

/* Rounds once, whatever the types. */
template <class T> static __device__ __forceinline__ void rfi_store_as(void *data, int dtype, int64_t i, T v) {
    switch (dtype) {
    case RF_FLOAT64: ((double *)data)[i] = (double)v; break;
    case RF_FLOAT16: ((__half *)data)[i] = sizeof(T) == 8 ? __double2half((double)v) : __float2half_rn((float)v); break;
    case RF_BFLOAT16:
        ((__nv_bfloat16 *)data)[i] = sizeof(T) == 8 ? __double2bfloat16((double)v) : __float2bfloat16_rn((float)v);
        break;
    default: ((float *)data)[i] = (float)v; break;
    }
}

#endif
