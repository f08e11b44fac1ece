/* SPDX-License-Identifier: MIT */
/* Which results of a plan a kernel gives at once. A pass reads W and multiplies; most plans have one. A pure function
 * of the plan. */
#ifndef ROWFOLD_CUDA_PASSES_H
#define ROWFOLD_CUDA_PASSES_H

#include "choose.h"
#include "plan.h"

typedef struct rfi_cuda_pass {
    int num_branches, branches[RF_MAX_RESULTS]; /* indices into plan.branches: one but for RFI_CUDA_ANSWERS */
    int32_t reduction;                          /* as in rfi_cuda_chain */
    int column;                                 /* index into plan.rows of the columns that its rows ask for, or -1 */
    rfi_cuda_states states;
} rfi_cuda_pass;

typedef struct rfi_cuda_passes {
    int count;
    rfi_cuda_pass at[RF_MAX_RESULTS];
} rfi_cuda_passes;

void rfi_cuda_passes_of(const rfi_plan *plan, rfi_cuda_passes *passes);

/* The pass whose states the fewest kernels take. */
const rfi_cuda_pass *rfi_cuda_hardest_pass(const rfi_cuda_passes *passes);

/* Words of the state of a row. */
int rfi_cuda_state_words(const rfi_cuda_pass *pass);

/* Steps of the pass, before its reductions and behind them. */
int rfi_cuda_num_steps(const rfi_plan *plan, const rfi_cuda_pass *pass);

#endif
