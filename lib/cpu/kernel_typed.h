/* SPDX-License-Identifier: MIT */
/* Builds one instruction set's table from its primitives. The file that includes this (kernel_*.c) has defined
 *   RFI_CPU_ISA(stem)             names: rfi_cpu_avx2 for RFI_CPU_ISA(rfi_cpu)
 *   ISA_NAME, ISA_BYTES           the name as text; bytes in a vector
 *   EACH_ROWS(X)                  X(1) X(2) ... X(most rows in a sliver)
 *   F32_VECTORS, F64_VECTORS      vectors in a row of a panel
 *   vf, vd                        vectors of float and double, and for each of them (F32_ and F64_):
 *   _BROADCAST(s) _FMA(a, b, c)   every lane s; a * b + c
 *   ISA_X_LIES                    if there are registers for a pointer to each row of x in a sliver
 * and, where it defines ISA_WIDENS,
 *   HALF_LOAD(p) HALF_LOAD_PART(p, n)  as many 16-bit values as a vf has; the first n of them with zeros behind, and no
 *                                      more is read
 *   F32_FROM_F16(h) F32_FROM_BF16(h)   these as a vf
 *   F32_STORE_F16(p, v)                a vf rounded to float16
 * For dot products: INNER_COLUMNS, EACH_INNER_COLUMNS(X), X(1) X(2) ... up to it; and _LOAD_PART(p, n), the first n
 * values of a vector with zeros behind them, _NEAR, _FAR (see rows_typed.h), _FAR
 * where a vector has more than 16 bytes. */
#include <string.h>

#include "chain.h"
#include "cpu/kernel.h"
#include "dtype.h"
#include "states.h"

#define PLUS_ONE(rows) +1
enum { ROWS_MAX = 0 EACH_ROWS(PLUS_ONE) };
#undef PLUS_ONE

_Static_assert(ROWS_MAX <= (int)RFI_CPU_BLOCK_ROWS && F32_VECTORS * ISA_BYTES / 4 <= RFI_CPU_BLOCK_PANEL,
    "multiply.c keeps the sums of a chunk");

enum { INNER_ROWS = 4 };

/* Elements need not be aligned to a vector in x, bias and C. */
typedef vf vf_unaligned __attribute__((aligned(4), may_alias));
typedef vd vd_unaligned __attribute__((aligned(8), may_alias));
typedef vf vf_aligned __attribute__((may_alias));
typedef vd vd_aligned __attribute__((may_alias));

/* float */
#define T float
#define COLUMN int32_t
#define T_ZERO 0.0f
#define V vf
#define LANES (ISA_BYTES / 4)
#define VECTORS F32_VECTORS
#define GROUP (LANES * VECTORS)
#define BROADCAST(s) F32_BROADCAST(s)
#define FMA(a, b, c) F32_FMA(a, b, c)
#define LOAD(p) (*(const vf_unaligned *)(p))
#define STORE(p, v) (*(vf_unaligned *)(p) = (v))
#define NEAR(a, b) F32_NEAR(a, b)
#define FAR(a, b) F32_FAR(a, b)
#define OP(stem) stem##_f32

#define NAME(stem) stem##_f32
#define W float
#define LOAD_W(p) (*(const vf_aligned *)(p))
#define X float
#define LOAD_X(p) LOAD(p)
#define LOAD_X_PART(p, n) F32_LOAD_PART(p, n)
#define BITS uint32_t
#define HALF_BITS 0x7fffffffu
#include "cpu/dot_typed.h"
#include "cpu/fold_typed.h"
#include "cpu/inner_typed.h"
#ifdef ISA_X_LIES
#define LIES
#endif
#include "cpu/multiply_typed.h"
#undef LIES
#include "cpu/rows_typed.h"
#undef NAME
#undef W
#undef LOAD_W
#undef X
#undef LOAD_X_PART

#ifdef ISA_WIDENS
#undef LOAD_X
#define LOAD_X(p) LOAD_W(p)
#define W uint16_t
#define X uint16_t
#define NAME(stem) stem##_f16
#define LOAD_W(p) F32_FROM_F16(HALF_LOAD(p))
#define LOAD_X_PART(p, n) F32_FROM_F16(HALF_LOAD_PART(p, n))
#include "cpu/inner_typed.h"
#include "cpu/multiply_typed.h"
#undef NAME
#undef LOAD_W
#undef LOAD_X_PART
#define NAME(stem) stem##_bf16
#define LOAD_W(p) F32_FROM_BF16(HALF_LOAD(p))
#define LOAD_X_PART(p, n) F32_FROM_BF16(HALF_LOAD_PART(p, n))
#include "cpu/inner_typed.h"
#include "cpu/multiply_typed.h"
#undef NAME
#undef LOAD_W
#undef LOAD_X_PART
#undef W
#undef X
#endif
#undef LOAD_X

#undef T
#undef COLUMN
#undef T_ZERO
#undef V
#undef LANES
#undef VECTORS
#undef GROUP
#undef BROADCAST
#undef FMA
#undef LOAD
#undef STORE
#undef NEAR
#undef FAR
#undef OP
#undef BITS
#undef HALF_BITS

/* double */
#define T double
#define COLUMN int64_t
#define T_ZERO 0.0
#define V vd
#define LANES (ISA_BYTES / 8)
#define VECTORS F64_VECTORS
#define GROUP (LANES * VECTORS)
#define BROADCAST(s) F64_BROADCAST(s)
#define FMA(a, b, c) F64_FMA(a, b, c)
#define LOAD(p) (*(const vd_unaligned *)(p))
#define STORE(p, v) (*(vd_unaligned *)(p) = (v))
#define NEAR(a, b) F64_NEAR(a, b)
#define FAR(a, b) F64_FAR(a, b)
#define OP(stem) stem##_f64

#define NAME(stem) stem##_f64
#define W double
#define LOAD_W(p) (*(const vd_aligned *)(p))
#define X double
#define LOAD_X(p) LOAD(p)
#define LOAD_X_PART(p, n) F64_LOAD_PART(p, n)
#define BITS uint64_t
#define HALF_BITS 0x7fffffffffffffffu
#include "cpu/dot_typed.h"
#include "cpu/fold_typed.h"
#include "cpu/inner_typed.h"
#ifdef ISA_X_LIES
#define LIES
#endif
#include "cpu/multiply_typed.h"
#undef LIES
#include "cpu/rows_typed.h"

/* From here on names are not typed. */
#include "cpu/join.h"

static void widen_f32(void *to, const void *from, rf_dtype dtype, int64_t n) {
    float *restrict out = to;
    const uint16_t *restrict in = from;
    int64_t i = 0;
    if (dtype == RF_FLOAT32) {
        memcpy(to, from, (size_t)n * sizeof(float));
    } else if (dtype == RF_BFLOAT16) {
        for (; i < n; i++) out[i] = rfi_float_of_bf16(in[i]);
    } else {
#ifdef ISA_WIDENS
        const int lanes = ISA_BYTES / 4;
        for (; i + lanes <= n; i += lanes) *(vf_unaligned *)(out + i) = F32_FROM_F16(HALF_LOAD(in + i));
#endif
        for (; i < n; i++) out[i] = rfi_float_of_half(in[i]);
    }
}

static void widen_f64(void *to, const void *from, rf_dtype dtype, int64_t n) {
    (void)dtype; /* float64 goes with float64 only */
    memcpy(to, from, (size_t)n * sizeof(double));
}

static void narrow_f32(void *to, const void *from, rf_dtype dtype, int64_t n) {
    const float *restrict in = from;
    uint16_t *restrict out = to;
    int64_t i = 0;
    if (dtype == RF_BFLOAT16) {
        for (; i < n; i++) out[i] = rfi_bf16_of_float(in[i]);
        return;
    }
#ifdef ISA_WIDENS
    const int lanes = ISA_BYTES / 4;
    if (dtype == RF_FLOAT16)
        for (; i + lanes <= n; i += lanes) F32_STORE_F16(out + i, *(const vf_unaligned *)(in + i));
#endif
    rfi_convert((char *)to + (size_t)i * rfi_dtype_size(dtype), dtype, in + i, RF_FLOAT32, n - i);
}

static void narrow_f64(void *to, const void *from, rf_dtype dtype, int64_t n) {
    rfi_convert(to, dtype, from, RF_FLOAT64, n);
}

/* Enough independent sums to cover the latency of a multiply-add on every unit that can do them. */
enum { BURN_SUMS = 12 };

static double burn(int64_t count) {
    vf sum[BURN_SUMS], factor = F32_BROADCAST(0.999999f), term = F32_BROADCAST(1e-3f);
#pragma GCC unroll 12
    for (int i = 0; i < BURN_SUMS; i++) sum[i] = F32_BROADCAST((float)i);
    for (int64_t c = 0; c < count; c++) {
#pragma GCC unroll 12
        for (int i = 0; i < BURN_SUMS; i++) {
            sum[i] = F32_FMA(sum[i], factor, term);
            __asm__ volatile("" : "+x"(sum[i]));
        }
    }
    return 2.0 * BURN_SUMS * (ISA_BYTES / 4) * (double)count;
}

/* As several streams at once, which is the fastest, and how W is read (multiply.c). */
static uint64_t read_memory(const void *data, size_t bytes) {
    enum { STREAMS = 8 };
    typedef uint64_t vu __attribute__((vector_size(ISA_BYTES), may_alias));
    vu all[4] = {{0}};
    const size_t part = bytes / STREAMS;
    for (const char *p = data; p < (const char *)data + part; p += 4 * ISA_BYTES)
        for (size_t s = 0; s < STREAMS; s++)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) all[i] |= *(const vu *)(p + s * part + i * ISA_BYTES);
    all[0] |= all[1] | all[2] | all[3];
    uint64_t any = 0;
    for (int i = 0; i < ISA_BYTES / 8; i++) any |= all[0][i];
    return any;
}

#ifdef ISA_WIDENS
#define WIDENED(kernel) kernel
#else
#define WIDENED(kernel) NULL
#endif
#ifdef ISA_X_LIES
#define LYING(kernel) kernel
#else
#define LYING(kernel) NULL
#endif

/* The table of this instruction set, or of this and one that adds products in pairs or terms. */
#define RFI_CPU_TABLE(symbol, label, bf16_pairs, f16_pairs, in_terms) \
    const rfi_cpu_isa symbol = {                                      \
        .name = label,                                                \
        .f32 =                                                        \
            {                                                         \
                .max_rows = ROWS_MAX,                                 \
                .panel = F32_VECTORS * ISA_BYTES / 4,                 \
                .lanes = ISA_BYTES / 4,                               \
                .multiply =                                           \
                    {                                                 \
                        [RF_FLOAT32] = multiply_table_f32,            \
                        [RF_FLOAT16] = WIDENED(multiply_table_f16),   \
                        [RF_BFLOAT16] = WIDENED(multiply_table_bf16), \
                    },                                                \
                .multiply_lying = LYING(multiply_lying_table_f32),    \
                .widen = widen_f32,                                   \
                .narrow = narrow_f32,                                 \
                .apply = apply_f32,                                   \
                .add_up = add_up_f32,                                 \
                .fold = fold_f32,                                     \
                .join = join_f32,                                     \
                .merge = merge_f32,                                   \
                .dot = dot_f32,                                       \
                .inner =                                              \
                    {                                                 \
                        [RF_FLOAT32] = inner_f32,                     \
                        [RF_FLOAT16] = WIDENED(inner_f16),            \
                        [RF_BFLOAT16] = WIDENED(inner_bf16),          \
                    },                                                \
                .sums_by_column = sums_by_column_f32,                 \
                .sums_by_row = sums_by_row_f32,                       \
                .turn = turn_f32,                                     \
                .fold_rows = fold_rows_f32,                           \
                .pairs =                                              \
                    {                                                 \
                        [RF_FLOAT16] = f16_pairs,                     \
                        [RF_BFLOAT16] = bf16_pairs,                   \
                    },                                                \
                .terms = in_terms,                                    \
            },                                                        \
        .f64 =                                                        \
            {                                                         \
                .max_rows = ROWS_MAX,                                 \
                .panel = F64_VECTORS * ISA_BYTES / 8,                 \
                .lanes = ISA_BYTES / 8,                               \
                .multiply = {[RF_FLOAT64] = multiply_table_f64},      \
                .multiply_lying = LYING(multiply_lying_table_f64),    \
                .widen = widen_f64,                                   \
                .narrow = narrow_f64,                                 \
                .apply = apply_f64,                                   \
                .add_up = add_up_f64,                                 \
                .fold = fold_f64,                                     \
                .join = join_f64,                                     \
                .merge = merge_f64,                                   \
                .dot = dot_f64,                                       \
                .inner = {[RF_FLOAT64] = inner_f64},                  \
                .sums_by_column = sums_by_column_f64,                 \
                .sums_by_row = sums_by_row_f64,                       \
                .turn = turn_f64,                                     \
                .fold_rows = fold_rows_f64,                           \
            },                                                        \
        .burn = burn,                                                 \
        .read = read_memory,                                          \
    }

RFI_CPU_TABLE(RFI_CPU_ISA(rfi_cpu), ISA_NAME, NULL, NULL, NULL);
