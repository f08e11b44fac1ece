/* SPDX-License-Identifier: MIT */
#include "passes.h"

#include "states.h"

/* Results that rfi_answers (common/states.cuh) has all of. */
static int is_answer(int32_t reduction) {
    return reduction == RF_OP_LOGSUMEXP || reduction == RF_OP_MAX || reduction == RF_OP_ENTROPY ||
        reduction == RF_OP_ARGMAX || reduction == RF_OP_PICK || reduction == RF_OP_LOGPROB;
}

/* Those that have a state of their own, too, which takes less. */
static int is_plain(int32_t reduction) { return reduction == RF_OP_LOGSUMEXP || reduction == RF_OP_MAX; }

static int joins(const rfi_plan *plan, const rfi_cuda_pass *pass, const rfi_branch *branch) {
    const rfi_branch *first = &plan->branches[pass->branches[0]];
    return is_answer(first->reduction) && is_answer(branch->reduction) && !first->pre.count && !branch->pre.count &&
        (!branch->row || pass->column < 0 || branch->row - 1 == pass->column);
}

static int reads_rows(const rfi_steps *steps) {
    for (int i = 0; i < steps->count; i++)
        if (steps->at[i].row) return 1;
    return 0;
}

/* What the pass's state is. */
static void settle(const rfi_plan *plan, rfi_cuda_pass *pass) {
    const rfi_branch *first = &plan->branches[pass->branches[0]];
    const int rows = reads_rows(&plan->trunk) || reads_rows(&first->pre), words = rfi_reduction_words(first->reduction);
    pass->reduction = first->reduction;
    pass->states = rows || words > 2 || rfi_reduction_flags(first->reduction) & RFI_RF_INDEX ? RFI_CUDA_OTHER_STATES
                                                                                             : RFI_CUDA_PAIRS;
    if (is_answer(first->reduction) && (pass->num_branches > 1 || rows || !is_plain(first->reduction))) {
        pass->reduction = RFI_CUDA_ANSWERS;
        pass->states = RFI_CUDA_ANSWER_STATES;
    }
}

void rfi_cuda_passes_of(const rfi_plan *plan, rfi_cuda_passes *passes) {
    passes->count = 0;
    for (int b = 0; b < plan->num_branches; b++) {
        const rfi_branch *branch = &plan->branches[b];
        int i = 0;
        while (i < passes->count && !joins(plan, &passes->at[i], branch)) i++;
        rfi_cuda_pass *pass = &passes->at[i];
        if (i == passes->count) {
            passes->count++;
            *pass = (rfi_cuda_pass){.column = -1};
        }
        pass->branches[pass->num_branches++] = b;
        if (branch->row) pass->column = branch->row - 1;
    }
    for (int i = 0; i < passes->count; i++) settle(plan, &passes->at[i]);
}

const rfi_cuda_pass *rfi_cuda_hardest_pass(const rfi_cuda_passes *passes) {
    const rfi_cuda_pass *hardest = &passes->at[0];
    for (int i = 1; i < passes->count; i++)
        if (passes->at[i].states > hardest->states) hardest = &passes->at[i];
    return hardest;
}

int rfi_cuda_state_words(const rfi_cuda_pass *pass) {
    return pass->reduction == RFI_CUDA_ANSWERS ? 4 : rfi_reduction_words(pass->reduction);
}

int rfi_cuda_num_steps(const rfi_plan *plan, const rfi_cuda_pass *pass) {
    int steps = plan->trunk.count + plan->branches[pass->branches[0]].pre.count;
    for (int i = 0; i < pass->num_branches; i++) steps += plan->branches[pass->branches[i]].post.count;
    return steps;
}
