/* The plan: what a chain becomes after the rewrites. A pure function of the chain, K, N and the allowed rewrites;
 * backends read it, explain prints it.
 *
 *     logits -> trunk -> branch 0: pre -> reduction -> post -> result 0
 *                     -> branch 1: pre -> reduction -> post -> result 1 ...
 *
 * A chain with one result is the case of one branch, all of whose steps before the reduction are the trunk's. */
#ifndef ROWFOLD_PLAN_H
#define ROWFOLD_PLAN_H

#include "rewrite.h"

enum { RFI_MAX_BRANCHES = 1 };

typedef struct rfi_branch {
    rfi_steps pre;     /* on logits, behind the trunk's */
    int32_t reduction; /* rf_op_kind that folds the N columns, or RF_OP_NONE */
    int32_t source;    /* index of the reduction in the chain, or -1 */
    rfi_steps post;    /* on the one number of a row */
} rfi_branch;

typedef struct rfi_plan {
    rfi_chain chain;                   /* as written */
    int64_t in_features, out_features; /* K, N */
    int64_t width;                     /* columns of y: 1 or N */
    rf_simplify simplify;

    rfi_steps trunk; /* on logits, for all branches */
    int num_branches;
    rfi_branch branches[RFI_MAX_BRANCHES];

    int num_vectors;
    char vectors[RF_MAX_OPS][RF_MAX_NAME];

    /* The trunk's steps are affine per feature and the one reduction is sum or mean: logits_j becomes scale_j * logit_j
     * + shift_j, and the whole is dot(x, sum_j scale_j W_j) + sum_j (scale_j b_j + shift_j), subject to the guards that
     * need the weights (collapse.h). */
    int collapsible;
} rfi_plan;

/* simplify is not RF_SIMPLIFY_DEFAULT. The chain's size is settled. `log` receives what was rewritten; it may be NULL.
 */
rf_status rfi_plan_make(const rfi_chain *chain, rf_simplify simplify, rfi_plan *plan, rfi_rewrites *log);

#endif
