/* SPDX-License-Identifier: MIT */
/* Steps: elementwise operators with their parameters found, and lists of them. */
#ifndef ROWFOLD_STEPS_H
#define ROWFOLD_STEPS_H

#include "chain.h"

typedef struct rfi_step {
    int32_t kind;   /* an elementwise rf_op_kind; behind a reduction also a reduction, over a width of 1 */
    int32_t vector; /* index into plan.vectors that replaces a, or -1 */
    double a, b;    /* parameters, defaults filled in */
    int32_t source; /* index of the op in the chain this step came from, for explain */
    int32_t row;    /* 1 + index into plan.rows of what replaces a, or 0 */
} rfi_step;

typedef struct rfi_steps {
    int32_t count;
    rfi_step at[RF_MAX_OPS];
} rfi_steps;

/* Is the parameter the number a, the same for all values? */
static inline int rfi_step_is_scalar(const rfi_step *step) { return step->vector < 0 && !step->row; }

/* One step as chain text: "mul(4)". `chain` is the one it came from. */
const char *rfi_step_format(const rfi_chain *chain, const rfi_step *step, char text[RFI_OP_TEXT]);

/* Is the step x -> x * scale + shift, with a as its parameter? Sets both if so. */
int rfi_step_affine(const rfi_step *step, double a, double *scale, double *shift);

/* What a reduction makes of a single column. */
typedef enum rfi_width_one {
    RFI_WIDTH_ONE_OTHER,
    RFI_WIDTH_ONE_SAME,
    RFI_WIDTH_ONE_PLUS_ZERO /* the same, but -0 becomes +0 */
} rfi_width_one;
rfi_width_one rfi_reduction_width_one(int kind);

#endif
