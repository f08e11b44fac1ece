/* SPDX-License-Identifier: MIT */
/* The rows of ops.def and reductions.def as functions, for float (_f32) and double (_f64). The C compiler and nvcc both
 * compile this file: there is one formula for both machines, and only the primitives differ: lib/vmath.h on the CPU
 * (vectorisable), CUDA's own on the GPU.
 *
 *   rfi_op_<ID>_f32(x, a, b, s)            one function an operator
 *   rfi_op_apply_f32(kind, x, a, b, s)     the same by kind, for values that come one at a time
 *   rfi_term_<ID>_f32(...) and so on       one function a part of a reduction; what is made of them: states.h */
#ifndef ROWFOLD_OPS_H
#define ROWFOLD_OPS_H

#include <math.h>

#include "rowfold.h"

#ifdef __CUDACC__
#define RFI_FN static __device__ __forceinline__
#define RFI_PRIMITIVES "../cuda/common/primitives.cuh"
#include RFI_PRIMITIVES
#else
#define RFI_FN static inline __attribute__((always_inline, unused))
#include "vmath.h"
#endif

/* What a reduction is besides its formulas. */
enum {
    RFI_RF_EMPTY = 1,
    RFI_RF_INDEX = 2,
    RFI_RF_COLUMN = 4,
    RFI_RF_IGNORES = 8,
    RFI_RF_COLUMNS = 16,
    RFI_RF_TOP = 32,
    RFI_RF_COUNT = 64,
    RFI_RF_SEEDED = 128,
    RFI_RF_MEAN = 256,
    RFI_RF_CORRECTION = 512,
};

/* What stands for q where a row names no column of the layer. */
enum {
    RFI_COLUMN_OUTSIDE = -1, /* the result is NaN */
    RFI_COLUMN_IGNORED = -2, /* the result is 0 */
};

/* A total that a reduction does not have. */
#define RFI_NO_TOTAL (NONE, C(0), C(0), C(1))
#define RFI_THERE(join, term, moved, factor) RFI_THERE_##join
#define RFI_THERE_ADD 1
#define RFI_THERE_LEAST 1
#define RFI_THERE_NONE 0

enum {
    RFI_TOTALS = 2, /* of a state, at most */
#define RFI_REDUCTION(id, number, name, flags, peak0, peak, total0, total1, ...) \
    rfi_totals_##id = RFI_THERE total0 + RFI_THERE total1,
#include "reductions.def"
#undef RFI_REDUCTION
};

#define RFI_JOIN_(a, b) a##b
#define RFI_JOIN(a, b) RFI_JOIN_(a, b)
#define RFI_TYPED(name) RFI_JOIN(name, RFI_SUFFIX)

/* Columns of a float32 model are counted in 32 bits: loops over them take as many lanes as those over values. */
#define RFI_T float
#define RFI_SUFFIX _f32
#define RFI_COLUMN int32_t
#define RFI_BITS uint32_t
#define RFI_MANTISSA 23
#include "ops_typed.h"
#undef RFI_T
#undef RFI_SUFFIX
#undef RFI_COLUMN
#undef RFI_BITS
#undef RFI_MANTISSA

#define RFI_T double
#define RFI_SUFFIX _f64
#define RFI_COLUMN int64_t
#define RFI_BITS uint64_t
#define RFI_MANTISSA 52
#include "ops_typed.h"
#undef RFI_T
#undef RFI_SUFFIX
#undef RFI_COLUMN
#undef RFI_BITS
#undef RFI_MANTISSA

#endif
