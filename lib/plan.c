/* From chain to steps; the rewrites of a list of them are rewrite.c's. */
#include "plan.h"

#include <math.h>
#include <string.h>

static int32_t vector_index(rfi_plan *plan, const char *name) {
    if (!*name) return -1;
    int v = 0;
    while (v < plan->num_vectors && strcmp(plan->vectors[v], name)) v++;
    if (v == plan->num_vectors) strcpy(plan->vectors[plan->num_vectors++], name);
    return v;
}

/* Steps that are affine in each column, with parameters known to be finite (vectors are looked at when they come),
 * before a sum or a mean. */
static int is_collapsible(const rfi_plan *plan) {
    const int32_t reduction = plan->branches[0].reduction;
    if ((reduction != RF_OP_SUM && reduction != RF_OP_MEAN) || !plan->out_features) return 0;
    for (int i = 0; i < plan->trunk.count; i++) {
        const rfi_step *step = &plan->trunk.at[i];
        double scale, shift;
        if (step->kind == RF_OP_SAVE || step->kind == RF_OP_ADD_SAVED) continue;
        if (!rfi_step_affine(step, step->vector < 0 ? step->a : 1, &scale, &shift)) return 0;
        if (!isfinite(scale) || !isfinite(shift)) return 0;
    }
    return 1;
}

static void simplify_steps(rfi_plan *plan, rfi_rewrites *log) {
    if (plan->simplify == RF_SIMPLIFY_NONE) return;
    rfi_rewrite_steps(&plan->chain, &plan->trunk, log);
    rfi_rewrite_steps(&plan->chain, &plan->branches[0].post, log);
    plan->collapsible = plan->simplify == RF_SIMPLIFY_ALGEBRAIC && is_collapsible(plan);
    if (plan->collapsible && log)
        log->at[log->count++] = (rfi_rewrite){.rule = "collapse",
            .algebraic = 1,
            .last = plan->branches[0].source,
            .text = "the sum of affine columns became one dot product with the column sums of W"};
}

rf_status rfi_plan_make(const rfi_chain *chain, rf_simplify simplify, rfi_plan *plan, rfi_rewrites *log) {
    memset(plan, 0, sizeof *plan);
    if (log) log->count = 0;
    plan->chain = *chain;
    plan->in_features = chain->in_features;
    plan->out_features = chain->out_features;
    plan->width = chain->reduction < 0 ? chain->out_features : 1;
    plan->simplify = simplify;
    plan->num_branches = 1;
    rfi_branch *branch = &plan->branches[0];
    branch->reduction = chain->reduction < 0 ? RF_OP_NONE : chain->ops[chain->reduction].kind;
    branch->source = chain->reduction;
    for (int i = 1; i < chain->num_ops; i++) {
        const rf_op *op = &chain->ops[i];
        if (i == chain->reduction) continue;
        rfi_steps *steps = chain->reduction >= 0 && i > chain->reduction ? &branch->post : &plan->trunk;
        steps->at[steps->count++] = (rfi_step){.kind = op->kind,
            .vector = vector_index(plan, op->vector),
            .a = op->params[0],
            .b = op->params[1],
            .source = i};
    }
    simplify_steps(plan, log);
    return RF_OK;
}
