/* SPDX-License-Identifier: MIT */
/* The steps of each pass of a plan as kernels run them. */
#include <stdlib.h>

#include "error.h"
#include "prepared.h"

static rfi_cuda_op op_of(rf_op_kind kind) {
    switch ((int)kind) {
#define RFI_HOST_OP(...)
#define RFI_OP(id, number, ...) \
    case number: return RFI_CUDA_OP_##id;
#include "ops.def"
#undef RFI_OP
    }
    return RFI_CUDA_OP_SAVE; /* the plan has elementwise operators alone; this one changes nothing */
}

static void add_steps(rfi_cuda_chain *chain, int *count, const rfi_steps *steps) {
    rfi_step lowered[RFI_CUDA_LOWERED];
    for (int i = 0; i < steps->count * RFI_CUDA_LOWERED; i++) {
        const int part = i % RFI_CUDA_LOWERED;
        if (part >= rfi_cuda_lower_step(&steps->at[i / RFI_CUDA_LOWERED], lowered)) continue;
        const rfi_step *step = &lowered[part];
        chain->steps[(*count)++] = (rfi_cuda_step){
            .op = (int8_t)op_of(step->kind),
            .row = (int8_t)(step->row - 1),
            .kind = (int16_t)step->kind,
            .vector = (int16_t)step->vector,
            .a32 = (float)step->a,
            .b32 = (float)step->b,
            .a64 = step->a,
            .b64 = step->b,
        };
    }
}

/* What comes before the reduction of a branch; `pass` as in rfi_cuda_pre_steps. */
static int fill_pre(const rfi_plan *plan, const rfi_branch *branch, const rfi_cuda_pass *pass, rfi_cuda_chain *chain) {
    rfi_steps pre;
    int count = 0;
    rfi_cuda_pre_steps(plan, branch, pass, &pre);
    chain->num_affine = rfi_cuda_affine_steps(&pre, chain->affine, NULL);
    for (int i = 0; i < chain->num_affine; i++) chain->affine_saves |= chain->affine[i].saves;
    add_steps(chain, &count, &pre);
    chain->num_pre = count;
    return count;
}

static void fill_pass(
    const rfi_plan *plan, const rfi_cuda_pass *pass, rfi_cuda_chain *chain, rfi_cuda_result results[RF_MAX_RESULTS]) {
    *chain = (rfi_cuda_chain){.reduction = pass->reduction, .shows = pass->shows};
    int count = fill_pre(plan, &plan->branches[pass->like], pass, chain);
    for (int i = 0; i < pass->num_branches; i++) {
        const rfi_branch *branch = &plan->branches[pass->branches[i]];
        results[i] = (rfi_cuda_result){
            .ignore = branch->ignore,
            .reduction = branch->reduction,
            .first_step = count,
        };
        add_steps(chain, &count, &branch->post);
        results[i].num_steps = count - results[i].first_step;
    }
    if (pass->reduction != RFI_CUDA_ANSWERS && pass->num_branches) chain->num_post = results[0].num_steps;
}

rf_status rfi_cuda_fill_programs(rfi_cuda_prepared *p, const rfi_plan *plan, rf_dtype weight_dtype) {
    rfi_cuda_passes_of(plan, weight_dtype, &p->passes);
    p->num_programs = p->passes.count;
    for (int b = 0; b < plan->num_branches; b++) p->num_programs += plan->branches[b].gathers;
    p->programs = calloc((size_t)p->num_programs, sizeof *p->programs);
    if (!p->programs) return rfi_error(RF_OUT_OF_MEMORY, "no memory for a model's description");
    for (int i = 0; i < p->passes.count; i++)
        fill_pass(plan, &p->passes.at[i], &p->programs[i].chain, p->programs[i].results);
    rfi_cuda_program *program = p->programs + p->passes.count;
    for (int b = 0; b < plan->num_branches; b++)
        if (plan->branches[b].gathers) fill_pre(plan, &plan->branches[b], NULL, &program++->chain);
    return RF_OK;
}
