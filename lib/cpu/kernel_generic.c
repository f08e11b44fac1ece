/* SPDX-License-Identifier: MIT */
/* Any processor: 16-byte vectors in the compiler's own notation, which it maps to SSE2, NEON or whatever there is.
 * Whether a * b + c is one instruction depends on the target, but is the same for every row and place. */
typedef float vf __attribute__((vector_size(16)));
typedef double vd __attribute__((vector_size(16)));

#define RFI_CPU_ISA(stem) stem##_generic
#define ISA_NAME "generic"
#define ISA_X_LIES
#define ISA_BYTES 16
#ifdef __aarch64__ /* 32 registers */
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define F32_VECTORS 4
#define F64_VECTORS 4
#else
#define EACH_ROWS(X) X(1) X(2) X(3) X(4)
#define F32_VECTORS 2
#define F64_VECTORS 2
#endif
#define F32_BROADCAST(s) broadcast_f32(s)
#define F64_BROADCAST(s) broadcast_f64(s)
#define F32_FMA(a, b, c) ((a) * (b) + (c))
#define F64_FMA(a, b, c) ((a) * (b) + (c))

static inline vf broadcast_f32(float s) { return (vf){s, s, s, s}; }
static inline vd broadcast_f64(double s) { return (vd){s, s}; }

#define INNER_COLUMNS 3
#define EACH_INNER_COLUMNS(X) X(1) X(2) X(3)
#define F32_LOAD_PART(p, n) load_part_f32(p, n)
#define F64_LOAD_PART(p, n) ((void)(n), (vd){(p)[0], 0})
#define F32_NEAR(a, b) ((vf){(a)[0], (a)[2], (b)[0], (b)[2]} + (vf){(a)[1], (a)[3], (b)[1], (b)[3]})
#define F64_NEAR(a, b) ((vd){(a)[0], (b)[0]} + (vd){(a)[1], (b)[1]})
#define F32_FAR(a, b) ((void)(b), (a))
#define F64_FAR(a, b) ((void)(b), (a))

static inline vf load_part_f32(const float *p, int n) { return (vf){p[0], n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, 0}; }

#include "cpu/kernel_typed.h"
