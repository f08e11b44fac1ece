#include "plan.h"

#include <string.h>

static int vector_index(rfi_plan *plan, const char *name) {
    if (!*name) return -1;
    int v = 0;
    while (v < plan->num_vectors && strcmp(plan->vectors[v], name)) v++;
    if (v == plan->num_vectors) strcpy(plan->vectors[plan->num_vectors++], name);
    return v;
}

rf_status rfi_plan_make(const rfi_chain *chain, rf_simplify simplify, rfi_plan *plan) {
    memset(plan, 0, sizeof *plan);
    plan->chain = *chain;
    plan->in_features = chain->in_features;
    plan->out_features = chain->out_features;
    plan->simplify = simplify;
    plan->reduction = chain->reduction < 0 ? RF_OP_NONE : chain->ops[chain->reduction].kind;
    plan->width = plan->reduction ? 1 : plan->out_features;
    for (int i = 1; i < chain->num_ops; i++) {
        const rf_op *op = &chain->ops[i];
        if (i == chain->reduction) continue;
        rfi_step step = {.kind = op->kind, .vector = vector_index(plan, op->vector), .a = op->params[0], .b = op->params[1], .source = i};
        if (chain->reduction < 0 || i < chain->reduction) plan->pre[plan->num_pre++] = step;
        else plan->post[plan->num_post++] = step;
    }
    return RF_OK;
}
