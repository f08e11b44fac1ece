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
 * Branches whose reductions see the same values and know the same of them share one state per row, a fold. */
#ifndef ROWFOLD_PLAN_H
#define ROWFOLD_PLAN_H

#include "groups.h"
#include "rewrite.h"

#define RFI_IGNORES_NONE INT64_MIN

typedef struct rfi_branch {
    rfi_steps pre;          /* on logits, behind the trunk's */
    int32_t reduction;      /* rf_op_kind that folds the N columns, or RF_OP_NONE */
    int32_t source;         /* index of the reduction in the chain, or -1 */
    int32_t fold;           /* index into plan.folds, or -1 without a reduction */
    int32_t row;            /* 1 + index into plan.rows of the column that the reduction asks for, or 0 */
    int64_t ignore;         /* what is no column but means that the result is 0, or RFI_IGNORES_NONE; where `row` */
    int gives_index;        /* the result is a column */
    rfi_steps post;         /* on the one number of a row */
    int64_t width;          /* columns of the result: 1, or N without a reduction */
    char name[RF_MAX_NAME]; /* the reduction's, numbered if it is not the first of that name; "logits" without one */
} rfi_branch;

/* One state per row. */
typedef struct rfi_fold {
    int32_t reduction; /* whose state it is; its words begin with those of all the branches' */
    int32_t branch;    /* whose pre steps and row it has */
} rfi_fold;

/* One value per row that each call gives. */
typedef struct rfi_row_input {
    char name[RF_MAX_NAME]; /* without # */
    int is_column;          /* else a number */
} rfi_row_input;

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

    int num_vectors, num_rows;
    char vectors[RF_MAX_OPS][RF_MAX_NAME];
    rfi_row_input rows[RF_MAX_OPS];

    /* There is one branch, the trunk's steps are affine per feature and the reduction is sum or mean: logits_j becomes
     * scale_j * logit_j + shift_j, and the whole is dot(x, sum_j scale_j W_j) + sum_j (scale_j b_j + shift_j), subject
     * to the guards that need the weights (collapse.h). */
    int collapsible;
} rfi_plan;

static inline int rfi_plan_is_shard(const rfi_plan *plan) { return plan->columns.count != plan->columns.total; }

/* simplify is not RF_SIMPLIFY_DEFAULT. The chain's size is settled. `log` receives what was rewritten; it may be NULL.
 */
rf_status rfi_plan_make(const rfi_chain *chain, rf_simplify simplify, rfi_plan *plan, rfi_rewrites *log);

#endif
