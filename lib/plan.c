/* SPDX-License-Identifier: MIT */
/* From chain to steps; the rewrites of a list of them are rewrite.c's. */
#include "plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "states.h"

static int32_t vector_index(rfi_plan *plan, const char *name) {
    if (!*name || rfi_is_row_input(name)) return -1;
    int v = 0;
    while (v < plan->num_vectors && strcmp(plan->vectors[v], name)) v++;
    if (v == plan->num_vectors) strcpy(plan->vectors[plan->num_vectors++], name);
    return v;
}

/* 1 + the index of the row input, or 0. */
static int32_t row_place(rfi_plan *plan, const rf_op *op) {
    if (!rfi_is_row_input(op->vector)) return 0;
    int r = 0;
    while (r < plan->num_rows && strcmp(plan->rows[r].name, op->vector + 1)) r++;
    if (r == plan->num_rows) {
        strcpy(plan->rows[r].name, op->vector + 1);
        const rf_row_use use = rfi_op_find(op->kind)->row_use;
        plan->rows[r].is_column = use != RF_ROW_NUMBER;
        plan->rows[r].several = use == RF_ROW_COLUMNS;
        plan->num_rows++;
    }
    return r + 1;
}

static void add_steps(rfi_plan *plan, int first, int end, rfi_steps *steps) {
    for (int i = first; i < end; i++) {
        const rf_op *op = &plan->chain.ops[i];
        steps->at[steps->count++] = (rfi_step){.kind = op->kind,
            .vector = vector_index(plan, op->vector),
            .a = op->params[0],
            .b = op->params[1],
            .source = i,
            .row = row_place(plan, op)};
    }
}

static void name_branch(rfi_plan *plan, int index) {
    const rfi_branch *branch = &plan->branches[index];
    const char *name = branch->reduction ? rfi_op_find(branch->reduction)->name : "logits";
    int same = 1;
    for (int i = 0; i < index; i++) same += plan->branches[i].reduction == branch->reduction;
    if (same == 1) strcpy(plan->branches[index].name, name);
    else snprintf(plan->branches[index].name, RF_MAX_NAME, "%.20s_%d", name, same);
}

static void add_output(rfi_plan *plan, int branch, int part) {
    const rfi_branch *b = &plan->branches[branch];
    rfi_result_part *out = &plan->outputs[plan->num_outputs++];
    *out = (rfi_result_part){.branch = branch, .part = part, .is_index = part || b->gives_index};
    strcpy(out->name, b->name);
    if (part) strcat(out->name, "_indices");
}

static void add_branch(rfi_plan *plan, const rfi_result *result) {
    rfi_branch *branch = &plan->branches[plan->num_branches++];
    const int folds = result->reduction >= 0;
    *branch = (rfi_branch){.source = result->reduction, .fold = -1, .width = folds ? 1 : plan->out_features};
    /* Of a single result all is the trunk's. */
    add_steps(plan, result->first, folds ? result->reduction : result->end,
        plan->chain.num_results == 1 ? &plan->trunk : &branch->pre);
    if (folds) {
        const rf_op *op = &plan->chain.ops[result->reduction];
        const rfi_op_desc *desc = rfi_op_find(op->kind);
        branch->reduction = op->kind;
        branch->row = row_place(plan, op);
        branch->ignore = desc->num_params == 2 ? (int64_t)op->params[1] : RFI_IGNORES_NONE;
        branch->gives_index = desc->gives_index;
        branch->top = desc->top ? (int)op->params[0] : 0;
        branch->gathers = desc->row_use == RF_ROW_COLUMNS;
        branch->seeded = (rfi_reduction_flags(op->kind) & RFI_RF_SEEDED) != 0;
        branch->count = rfi_divisor_f64((double)plan->out_features, desc->corrects ? op->params[0] : 0);
        branch->width = branch->gathers ? 0 : branch->top ? branch->top : 1;
        add_steps(plan, result->reduction + 1, result->end, &branch->post);
    }
    name_branch(plan, plan->num_branches - 1);
    branch->output = plan->num_outputs;
    add_output(plan, plan->num_branches - 1, 0);
    if (branch->top) add_output(plan, plan->num_branches - 1, 1);
}

static int reads_saved(const rfi_steps *steps) {
    for (int i = 0; i < steps->count && steps->at[i].kind != RF_OP_SAVE; i++)
        if (rfi_op_find(steps->at[i].kind)->flags & RFI_OPF_READS_SAVED) return 1;
    return 0;
}

/* If a branch reads what the trunk saved last, that save and all behind it become the branches' own. */
static void cut_trunk(rfi_plan *plan) {
    rfi_steps *trunk = &plan->trunk;
    int wanted = 0, cut = trunk->count;
    for (int b = 0; b < plan->num_branches; b++) wanted |= reads_saved(&plan->branches[b].pre);
    if (!wanted) return;
    while (trunk->at[--cut].kind != RF_OP_SAVE) {}
    const int moved = trunk->count - cut;
    for (int b = 0; b < plan->num_branches; b++) {
        rfi_steps *pre = &plan->branches[b].pre;
        memmove(&pre->at[moved], pre->at, (size_t)pre->count * sizeof *pre->at);
        memcpy(pre->at, &trunk->at[cut], (size_t)moved * sizeof *pre->at);
        pre->count += moved;
    }
    trunk->count = cut;
}

static int same_number(double a, double b) { return !memcmp(&a, &b, sizeof a); }

static int same_steps(const rfi_steps *one, const rfi_steps *two) {
    if (one->count != two->count) return 0;
    for (int i = 0; i < one->count; i++) {
        const rfi_step *p = &one->at[i], *q = &two->at[i];
        if (p->kind != q->kind || p->vector != q->vector || p->row != q->row || !same_number(p->a, q->a) ||
            !same_number(p->b, q->b))
            return 0;
    }
    return 1;
}

/* Can one state serve a branch, as far as the column goes that it asks for, beside those of another? */
static int same_column(const rfi_branch *one, const rfi_branch *other) {
    return one->row == other->row && one->ignore == other->ignore;
}

/* Does the branch find its state in the fold? If the fold's is a part of the branch's, it grows to that. */
static int joins(rfi_plan *plan, int b, rfi_fold *fold) {
    const rfi_branch *branch = &plan->branches[b], *owner = &plan->branches[fold->branch];
    if (!same_steps(&branch->pre, &owner->pre)) return 0;
    if (branch->reduction == fold->reduction) return same_column(branch, owner);
    if (rfi_state_begins_with(fold->reduction, branch->reduction)) return !branch->row || same_column(branch, owner);
    if (!rfi_state_begins_with(branch->reduction, fold->reduction) || (owner->row && !same_column(branch, owner)))
        return 0;
    *fold = (rfi_fold){branch->reduction, b};
    return 1;
}

static void find_folds(rfi_plan *plan) {
    for (int b = 0; b < plan->num_branches; b++) {
        rfi_branch *branch = &plan->branches[b];
        if (!branch->reduction || branch->gathers) continue;
        int f = 0;
        while (f < plan->num_folds && !joins(plan, b, &plan->folds[f])) f++;
        if (f == plan->num_folds) plan->folds[plan->num_folds++] = (rfi_fold){branch->reduction, b};
        branch->fold = f;
    }
}

/* Steps that are affine in each column, with parameters known to be finite (vectors are looked at when they come),
 * before a sum or a mean. */
static int is_collapsible(const rfi_plan *plan) {
    const int32_t reduction = plan->branches[0].reduction;
    if (plan->num_branches > 1) return 0;
    if ((reduction != RF_OP_SUM && reduction != RF_OP_MEAN) || !plan->out_features) return 0;
    for (int i = 0; i < plan->trunk.count; i++) {
        const rfi_step *step = &plan->trunk.at[i];
        double scale, shift;
        if (step->kind == RF_OP_SAVE || step->kind == RF_OP_ADD_SAVED) continue;
        if (step->row || !rfi_step_affine(step, step->vector < 0 ? step->a : 1, &scale, &shift)) return 0;
        if (!isfinite(scale) || !isfinite(shift)) return 0;
    }
    return 1;
}

static void simplify_steps(rfi_plan *plan, rfi_rewrites *log) {
    if (plan->simplify == RF_SIMPLIFY_NONE) return;
    rfi_rewrite_steps(&plan->chain, &plan->trunk, log);
    for (int b = 0; b < plan->num_branches; b++) {
        rfi_rewrite_steps(&plan->chain, &plan->branches[b].pre, log);
        rfi_rewrite_steps(&plan->chain, &plan->branches[b].post, log);
    }
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
    plan->simplify = simplify;
    add_steps(plan, 1, chain->trunk_end, &plan->trunk);
    for (int r = 0; r < chain->num_results; r++) add_branch(plan, &chain->results[r]);
    plan->width = plan->branches[0].width;
    cut_trunk(plan);
    simplify_steps(plan, log);
    find_folds(plan);
    return RF_OK;
}
