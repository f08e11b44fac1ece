/* SPDX-License-Identifier: MIT */
/* Which results of a plan a kernel gives at once, and which take two passes. A pass reads W and multiplies; most plans
 * have one. A pure function of the plan and of W's type. */
#ifndef ROWFOLD_CUDA_PASSES_H
#define ROWFOLD_CUDA_PASSES_H

#include "choose.h"
#include "plan.h"

/* What a pass is for. A gather takes none: each of its columns is a dot product. */
typedef enum rfi_cuda_role {
    RFI_CUDA_GIVES,    /* results, and what a search starts from */
    RFI_CUDA_SEARCHES, /* the columns before a bound that the pass `before` knows of: rank and topk */
    RFI_CUDA_SPREADS   /* squares beside the fold: var, std and norm */
} rfi_cuda_role;

typedef struct rfi_cuda_pass {
    rfi_cuda_role role;
    int before;                                 /* index of the pass that this one begins with, or -1 */
    int num_branches, branches[RF_MAX_RESULTS]; /* indices into plan.branches: whose results these are */
    int like;                                   /* the branch whose steps before its reduction the pass has */
    int32_t reduction;                          /* as in rfi_cuda_chain */
    int column;                                 /* index into plan.rows of the columns that its rows ask for, or -1 */
    int searched;     /* how many branches are searched for behind it: see RFI_CUDA_MOST_BOUNDS */
    int keeps_states; /* as in rfi_cuda_fold: a search begins with them */
    int shows;        /* as in rfi_cuda_chain */
    int turned;       /* the last step before the reductions, which are min and argmin, turns the sign */
    rfi_cuda_states states;
} rfi_cuda_pass;

enum {
    RFI_CUDA_MOST_PASSES = 2 * RF_MAX_RESULTS,
    RFI_CUDA_MOST_BOUNDS = 2 /* of a search: see rfi_cuda_fold */
};

typedef struct rfi_cuda_passes {
    int count; /* 0 where all results are gathered */
    rfi_cuda_pass at[RFI_CUDA_MOST_PASSES];
} rfi_cuda_passes;

void rfi_cuda_passes_of(const rfi_plan *plan, rf_dtype weight_dtype, rfi_cuda_passes *passes);

/* The pass whose states the fewest kernels take. */
const rfi_cuda_pass *rfi_cuda_hardest_pass(const rfi_cuda_passes *passes);

/* The pass that searches for what this one begins, or -1. */
int rfi_cuda_search_of(const rfi_cuda_passes *passes, int pass);

/* What is known ahead of a pass, so that its searches are a part of it: with many columns it is little work; or, with
 * so few that the list of a topk has room for all, that its k best are taken from what the pass stores.
 *   whole     columns of a row, those behind the last of whole tiles included, that the pass stores
 *   opening   first columns of W that a launch of its own folds and stores, and what is largest of them bounds the k
 *             best of the others, which the next one folds: they are no further work
 *   sample    first columns of W that are folded: the k-th largest of their blocks bounds the k best of all
 *   chunk     rows at a time whose column asked for is computed, among those of the other rows
 *   behind    branches of which it would be much, and which are searched for in a second pass */
typedef struct rfi_cuda_ahead {
    int64_t whole, opening, sample, chunk; /* 0: none */
    int behind;
} rfi_cuda_ahead;

/* The sample that topk(k) wants, and how many columns of a row its list has room for: as many as may come before the
 * k-th largest of all blocks, at least. By the columns of a state of the kernel of the pass, and of that for what is
 * known ahead. */
int64_t rfi_cuda_sample_of(const rfi_plan *plan, int k, const rfi_cuda_choice *choice);
int64_t rfi_cuda_room_of(const rfi_plan *plan, int k, const rfi_cuda_choice *choice);
rfi_cuda_ahead rfi_cuda_ahead_of(
    const rfi_plan *plan, const rfi_cuda_passes *passes, int pass, const rfi_cuda_choice *choice, int64_t batch);

/* Words of the state of a row. */
int rfi_cuda_state_words(const rfi_cuda_pass *pass);

/* Steps of the pass, before its reductions, and with those behind them. */
int rfi_cuda_num_pre(const rfi_plan *plan, const rfi_cuda_pass *pass);
int rfi_cuda_num_steps(const rfi_plan *plan, const rfi_cuda_pass *pass);

/* A step as the kernels know it, in their number of parts: var, std and norm of a single column, behind a reduction,
 * are 0 or NaN, and its magnitude. */
enum { RFI_CUDA_LOWERED = 2 };
int rfi_cuda_lower_step(const rfi_step *step, rfi_step lowered[RFI_CUDA_LOWERED]);

/* The steps on logits: the trunk's, the branch's before its reduction and, where it is of a `pass` that turns the sign,
 * that one, which no operator of the chain is. `pass` may be NULL. */
void rfi_cuda_pre_steps(const rfi_plan *plan, const rfi_branch *branch, const rfi_cuda_pass *pass, rfi_steps *pre);

#endif
