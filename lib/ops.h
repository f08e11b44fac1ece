/* SPDX-License-Identifier: MIT */
/* The rows of ops.def and reductions.def as functions, for float (_f32) and double (_f64). The C compiler and nvcc both
 * compile this file: there is one formula for both machines, and only the primitives differ: lib/vmath.h on the CPU
 * (vectorisable), CUDA's own on the GPU.
 *
 *   rfi_op_<ID>_f32(x, a, b, s)            one function an operator
 *   rfi_op_apply_f32(kind, x, a, b, s)     the same by kind, for values that come one at a time
 *   rfi_state_f32 and rfi_red_*            reductions: see ops_typed.h */
#ifndef ROWFOLD_OPS_H
#define ROWFOLD_OPS_H

#include <math.h>

#include "rowfold.h"

#ifdef __CUDACC__
#define RFI_FN static __device__ __forceinline__
#define RFI_PRIMITIVES "../cuda/primitives.cuh"
#include RFI_PRIMITIVES
#else
#define RFI_FN static inline __attribute__((always_inline, unused))
#include "vmath.h"
#endif

#define RFI_JOIN_(a, b) a##b
#define RFI_JOIN(a, b) RFI_JOIN_(a, b)
#define RFI_TYPED(name) RFI_JOIN(name, RFI_SUFFIX)

#define RFI_T float
#define RFI_SUFFIX _f32
#include "ops_typed.h"
#undef RFI_T
#undef RFI_SUFFIX

#define RFI_T double
#define RFI_SUFFIX _f64
#include "ops_typed.h"
#undef RFI_T
#undef RFI_SUFFIX

#endif
