/* SPDX-License-Identifier: MIT */
/* The plan: what a chain becomes after the rewrites, as two lists of steps around at most one reduction. A pure
 * function of the chain, K, N and the allowed rewrites; backends read it, explain prints it. */
#ifndef ROWFOLD_PLAN_H
#define ROWFOLD_PLAN_H

#include "chain.h"

/* A rewrite removes a step, or turns one into a kind that is never turned again; and one concerns the whole. */
#define RFI_MAX_REWRITES (2 * RF_MAX_OPS)

typedef struct rfi_step {
    int32_t kind;   /* an elementwise rf_op_kind; in `post` also a reduction over a width of 1 */
    int32_t vector; /* index into plan.vectors that replaces a, or -1 */
    double a, b;    /* parameters, defaults filled in */
    int32_t source; /* index of the op in the chain this step came from, for explain */
} rfi_step;

/* One rewrite that was applied, in words for explain. */
typedef struct rfi_rewrite {
    const char *rule; /* name of the rule, static storage */
    int algebraic;    /* 0: exact */
    int first, last;  /* ops of the chain it concerned; what is left of them counts as `first` unless that is a save */
    char text[160];   /* what became of them */
} rfi_rewrite;

typedef struct rfi_plan {
    rfi_chain chain;                   /* as written */
    int64_t in_features, out_features; /* K, N */
    int64_t width;                     /* columns of y: 1 or N */
    rf_simplify simplify;

    int num_pre, num_post;
    rfi_step pre[RF_MAX_OPS];  /* on logits, in order */
    int32_t reduction;         /* rf_op_kind that folds the N columns, or RF_OP_NONE */
    rfi_step post[RF_MAX_OPS]; /* on the one number of a row, in order */

    int num_vectors;
    char vectors[RF_MAX_OPS][RF_MAX_NAME];

    /* The pre steps are affine per feature and the reduction is sum or mean: logits_j becomes scale_j * logit_j +
     * shift_j, and the whole is dot(x, sum_j scale_j W_j) + sum_j (scale_j b_j + shift_j), subject to the guards that
     * need the weights (collapse.h). */
    int collapsible;

    int num_rewrites;
    rfi_rewrite rewrites[RFI_MAX_REWRITES];
    char constant[200]; /* why the result is the same for all finite inputs; empty if it is not */
} rfi_plan;

/* simplify is not RF_SIMPLIFY_DEFAULT. The chain's size is settled. */
rf_status rfi_plan_make(const rfi_chain *chain, rf_simplify simplify, rfi_plan *plan);

/* One step as chain text: "mul(4)". */
const char *rfi_step_format(const rfi_plan *plan, const rfi_step *step, char text[RFI_OP_TEXT]);

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
