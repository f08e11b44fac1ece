/* SPDX-License-Identifier: MIT */
/* Cheap operators side by side as one that needs no branch on what it is: a kernel then computes them on all its values
 * at once. Plain C. */
#ifndef ROWFOLD_CUDA_AFFINE_H
#define ROWFOLD_CUDA_AFFINE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What an rfi_cuda_affine adds to a product. */
typedef enum rfi_cuda_addend { RFI_CUDA_ADDS_B, RFI_CUDA_ADDS_SAVED } rfi_cuda_addend;

/* min(max(v * a + addend, low), high), remembered if it `saves` and something reads it. At most one of the operators in
 * it is rounded, so the bits are those of one operator after the other (products with 2, 4, 8 and so on are not), but
 * for the sign of a zero that relu and clamp make of -0.0. */
typedef struct rfi_cuda_affine {
    float a, b, low, high;
    int16_t a_vector, b_vector; /* indices of per-feature vectors in place of a and b, or -1 */
    int8_t addend;              /* rfi_cuda_addend */
    int8_t clamps, saves;
} rfi_cuda_affine;

/* Which of the steps an operator is made of: indices. */
typedef struct rfi_cuda_span {
    int first, last;
} rfi_cuda_span;

/* `steps` as such operators, no more than there are steps, and the span of each unless `spans` is NULL. Their number,
 * or 0 if one of the steps is of another kind. */
struct rfi_steps;
int rfi_cuda_affine_steps(const struct rfi_steps *steps, rfi_cuda_affine *out, rfi_cuda_span *spans);

/* Adds such operators to a log of what became of a plan's steps, for explain; those that are there already once. */
struct rfi_plan;
struct rfi_rewrites;
void rfi_cuda_affine_tell(const struct rfi_plan *plan, const struct rfi_steps *steps, struct rfi_rewrites *log);

#ifdef __cplusplus
}
#endif

#endif
