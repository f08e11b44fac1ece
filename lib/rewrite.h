/* SPDX-License-Identifier: MIT */
/* The rewrites of a list of steps, and the log of all that was rewritten, which explain shows. */
#ifndef ROWFOLD_REWRITE_H
#define ROWFOLD_REWRITE_H

#include "steps.h"

/* A rewrite removes a step, or turns one into a kind that is never turned again; and one concerns the whole. */
#define RFI_MAX_REWRITES (2 * RF_MAX_OPS)

/* One rewrite that was applied, in words. */
typedef struct rfi_rewrite {
    const char *rule; /* name of the rule, static storage */
    int algebraic;    /* 0: exact */
    int first, last;  /* ops of the chain it concerned; what is left of them counts as `first` unless that is a save */
    char text[160];   /* what became of them */
} rfi_rewrite;

typedef struct rfi_rewrites {
    int count;
    rfi_rewrite at[RFI_MAX_REWRITES];
} rfi_rewrites;

/* Applies the exact rules until none applies. `log` may be NULL. */
void rfi_rewrite_steps(const rfi_chain *chain, rfi_steps *steps, rfi_rewrites *log);

#endif
