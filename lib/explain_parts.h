/* SPDX-License-Identifier: MIT */
/* What explain has to say, before it is text or JSON. */
#ifndef ROWFOLD_EXPLAIN_PARTS_H
#define ROWFOLD_EXPLAIN_PARTS_H

#include "backend.h"
#include "constant.h"

/* Where an operator of the chain is computed. */
typedef enum rfi_place {
    RFI_PLACE_TILE,      /* on a tile of logits: the linear layer and what stands before the reduction */
    RFI_PLACE_REDUCTION, /* folds tiles into one state per row */
    RFI_PLACE_ROW,       /* on one number per row, after the reduction */
    RFI_PLACE_COLLAPSED, /* in the dot product with the column sums of W */
    RFI_PLACE_REMOVED    /* nowhere: a rewrite took it */
} rfi_place;

typedef struct rfi_story {
    rfi_place place;
    char written[RFI_OP_TEXT]; /* the operator as the chain has it */
    char now[RFI_OP_TEXT];     /* as it is computed; empty if removed */
} rfi_story;

/* Of one forward. Negative: unknown. */
typedef struct rfi_cost {
    double flops;  /* an elementwise operator counts as one a value */
    double bytes;  /* read and written in memory */
    double memory; /* held beside x and the weights, y included */
    double seconds;
} rfi_cost;

typedef struct rfi_explanation {
    const rfi_spec *spec;
    const char *backend;
    const rfi_estimate *estimate; /* or NULL */
    const rfi_rewrites *lowered;  /* what the kernel computes as one; or NULL */
    int64_t batch;
    size_t workspace;
    int collapsed;                                    /* the plan is collapsible and the backend makes use of it */
    const char *math, *simplify;                      /* names */
    rfi_rewrites log;                                 /* what made the plan */
    char constant[RF_MAX_RESULTS][RFI_CONSTANT_TEXT]; /* why a result is the same for all finite inputs; empty if not */
    rfi_story story[RF_MAX_OPS];                      /* by index in the chain */
    rfi_cost fused, unfused;
} rfi_explanation;

/* Did the rewrite change or remove operator i, or make that possible? */
static inline int rfi_rewrite_concerns(const rfi_rewrite *rewrite, int i) {
    return !rewrite->algebraic && (rewrite->first == i || rewrite->last == i);
}

/* malloc'd, or NULL without memory. */
char *rfi_explain_text(const rfi_explanation *about);
char *rfi_explain_json(const rfi_explanation *about);

#endif
