/* SPDX-License-Identifier: MIT */
/* The plan: what a chain becomes after the rewrites. A pure function of the chain, K, N and the allowed rewrites;
 * backends read it, explain prints it.
 *
 *     logits -> trunk -> branch 0: pre -> reduction -> post -> result 0
 *                     -> branch 1: pre -> reduction -> post -> result 1 ...
 *
 * A chain with one result is the case of one branch, all of whose steps before the reduction are the trunk's. No step
 * of a branch reads what the trunk saved: where the chain does, the trunk ends before that save.
 *
 * Of topk the state says where the best columns may be; its results are two, k values and k columns. gather folds
 * nothing.
 *
 * Branches whose reductions see the same values and know the same of them share one state per row, a fold. */
#ifndef ROWFOLD_PLAN_H
#define ROWFOLD_PLAN_H

#include "groups.h"
#include "rewrite.h"

#define RFI_IGNORES_NONE INT64_MIN
#define RFI_MAX_OUTPUTS (2 * RF_MAX_RESULTS)

typedef struct rfi_branch {
    rfi_steps pre;          /* on logits, behind the trunk's */
    int32_t reduction;      /* rf_op_kind that folds the N columns, or RF_OP_NONE */
    int32_t source;         /* index of the reduction in the chain, or -1 */
    int32_t fold;           /* index into plan.folds, or -1 without a reduction, and of gather */
    int32_t row;            /* 1 + index into plan.rows of the column or columns that the reduction asks for, or 0 */
    int64_t ignore;         /* what is no column but means that the result is 0, or RFI_IGNORES_NONE; where `row` */
    int gives_index;        /* the result is int64 */
    int top;                /* k of topk, else 0 */
    int gathers;            /* the result has the columns of the call's row input */
    int seeded;             /* the value of the column asked for is wanted before the pass */
    double count;           /* what a mean divides by: N, less a correction */
    int output;             /* index into plan.outputs: its result, or the first of two */
    rfi_steps post;         /* on the one number of a row */
    int64_t width;          /* columns of the result: 1, k of topk, N without a reduction, 0 of gather */
    char name[RF_MAX_NAME]; /* the reduction's, numbered if it is not the first of that name; "logits" without one */
} rfi_branch;

/* One state per row. */
typedef struct rfi_fold {
    int32_t reduction; /* whose state it is; its words begin with those of all the branches' */
    int32_t branch;    /* whose pre steps and row it has */
} rfi_fold;

/* One value per row that each call gives, or several. */
typedef struct rfi_row_input {
    char name[RF_MAX_NAME]; /* without # */
    int is_column;          /* or columns; else a number */
    int several;            /* values of a row, as many as the call says */
} rfi_row_input;

/* One buffer that a call writes to. */
typedef struct rfi_result_part {
    int branch;
    int is_index;           /* int64: columns, or a number of them */
    int part;               /* 1 of topk's columns */
    char name[RF_MAX_NAME]; /* the branch's, or "topk_indices" */
} rfi_result_part;

typedef struct rfi_plan {
    rfi_chain chain;                   /* as written */
    int64_t in_features, out_features; /* K, N */
    rfi_shard columns;                 /* which columns of how many these are; all of them but in a shard */
    int64_t width;                     /* of the first result */
    rf_simplify simplify;

    rfi_steps trunk; /* on logits, for all branches */
    int num_branches, num_folds;
    rfi_branch branches[RF_MAX_RESULTS];
    rfi_fold folds[RF_MAX_RESULTS];

    int num_outputs;
    rfi_result_part outputs[RFI_MAX_OUTPUTS];

    int num_vectors, num_rows;
    char vectors[RF_MAX_OPS][RF_MAX_NAME];
    rfi_row_input rows[RF_MAX_OPS];

    /* There is one branch, the trunk's steps are affine per feature and the reduction is sum or mean: logits_j becomes
     * scale_j * logit_j + shift_j, and the whole is dot(x, sum_j scale_j W_j) + sum_j (scale_j b_j + shift_j), subject
     * to the guards that need the weights (collapse.h). */
    int collapsible;
} rfi_plan;

/* A result that is not made from states of columns alone: it needs all of them in one model. NULL: there is none. */
static inline const rfi_branch *rfi_plan_whole_branch(const rfi_plan *plan) {
    for (int b = 0; b < plan->num_branches; b++)
        if (plan->branches[b].top || plan->branches[b].gathers || plan->branches[b].seeded) return &plan->branches[b];
    return NULL;
}

static inline int rfi_plan_is_shard(const rfi_plan *plan) { return plan->columns.count != plan->columns.total; }

/* simplify is not RF_SIMPLIFY_DEFAULT. The chain's size is settled. `log` receives what was rewritten; it may be NULL.
 */
rf_status rfi_plan_make(const rfi_chain *chain, rf_simplify simplify, rfi_plan *plan, rfi_rewrites *log);

#endif
