/* SPDX-License-Identifier: MIT */
/* The facts that explain states; explain_text.c and explain_json.c say them. */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "explain_parts.h"

static const char *const math_names[] = {[RF_MATH_F32] = "f32", [RF_MATH_TF32] = "tf32", [RF_MATH_BF16] = "bf16"};
static const char *const simplify_names[] = {[RF_SIMPLIFY_DEFAULT] = "default",
    [RF_SIMPLIFY_NONE] = "none",
    [RF_SIMPLIFY_EXACT] = "exact",
    [RF_SIMPLIFY_ALGEBRAIC] = "algebraic"};

static void tell_steps(rfi_explanation *about, const rfi_steps *steps, rfi_place place) {
    for (const rfi_step *step = steps->at; step < steps->at + steps->count; step++) {
        rfi_story *story = &about->story[step->source];
        story->place = place;
        rfi_step_format(&about->spec->plan.chain, step, story->now);
    }
}

static void tell_operators(rfi_explanation *about) {
    const rfi_plan *plan = &about->spec->plan;
    rfi_place tile = about->collapsed ? RFI_PLACE_COLLAPSED : RFI_PLACE_TILE;
    for (int i = 0; i < plan->chain.num_ops; i++) {
        about->story[i].place = RFI_PLACE_REMOVED;
        if (plan->chain.ops[i].kind != RF_OP_RESULT) rfi_op_format(&plan->chain.ops[i], about->story[i].written);
    }
    about->story[0].place = tile;
    strcpy(about->story[0].now, about->story[0].written);
    tell_steps(about, &plan->trunk, tile);
    for (const rfi_branch *branch = plan->branches; branch < plan->branches + plan->num_branches; branch++) {
        if (branch->reduction) {
            rfi_story *fold = &about->story[branch->source];
            fold->place = about->collapsed ? RFI_PLACE_COLLAPSED : RFI_PLACE_REDUCTION;
            strcpy(fold->now, fold->written);
        }
        tell_steps(about, &branch->pre, tile);
        tell_steps(about, &branch->post, RFI_PLACE_ROW);
    }
}

/* The ops of one result in their order, the trunk's first. */
typedef struct path {
    int count, own; /* at[own] is the first of its own */
    const rf_op *at[RF_MAX_OPS];
} path;

static path path_of(const rfi_chain *chain, const rfi_result *result) {
    path p = {.count = 0};
    for (int i = 0; i < chain->trunk_end; i++) p.at[p.count++] = &chain->ops[i];
    p.own = p.count;
    for (int i = result->first; i < result->end; i++) p.at[p.count++] = &chain->ops[i];
    return p;
}

static int flags_of(const path *p, int i) { return (int)rfi_op_find(p->at[i]->kind)->flags; }

/* Is what was last saved before op i still wanted by it or a later one? */
static int saved_is_wanted(const path *p, int i) {
    for (; i < p->count && !(flags_of(p, i) & RFI_OPF_SAVES); i++)
        if (flags_of(p, i) & RFI_OPF_READS_SAVED) return 1;
    return 0;
}

/* One operator at a time, each reading and writing its whole matrix, as the chain is written. Later results begin with
 * the trunk's values, which are held until then. */
static rfi_cost unfused_cost(const rfi_explanation *about) {
    const rfi_spec *spec = about->spec;
    const rfi_plan *plan = &spec->plan;
    double rows = (double)about->batch, k = (double)plan->in_features, n = (double)plan->out_features;
    double item =
        (double)rfi_dtype_size(spec->x_dtype == spec->weight_dtype ? spec->weight_dtype : spec->compute_dtype);
    double logits = rows * n,
           inputs = rows * k * (double)rfi_dtype_size(spec->x_dtype) +
        n * k * (double)rfi_dtype_size(spec->weight_dtype) + n * item;
    rfi_cost cost = {
        .flops = 2 * logits * k + logits, .bytes = inputs + logits * item, .memory = logits * item, .seconds = -1};
    for (int r = 0; r < plan->chain.num_results; r++) {
        const path p = path_of(&plan->chain, &plan->chain.results[r]);
        double values = logits;
        for (int i = r ? p.own : 1; i < p.count; i++) {
            const rfi_op_desc *desc = rfi_op_find(p.at[i]->kind);
            double results = desc->op_class == RF_CLASS_REDUCTION ? rows : values;
            if (desc->flags & RFI_OPF_SAVES) continue;
            double read = values + (desc->flags & RFI_OPF_READS_SAVED ? values : 0) + (*p.at[i]->vector ? n : 0);
            double held = values + results;
            /* Right behind the save the saved values are the current ones. */
            if (saved_is_wanted(&p, i) && !(flags_of(&p, i - 1) & RFI_OPF_SAVES)) held += values;
            if (i > p.own && r + 1 < plan->chain.num_results) held += logits;
            cost.flops += values;
            cost.bytes += (read + results) * item;
            if (held * item > cost.memory) cost.memory = held * item;
            values = results;
        }
    }
    return cost;
}

/* Steps that compute something. */
static int work_of(const rfi_steps *steps) {
    int work = 0;
    for (int i = 0; i < steps->count; i++) work += steps->at[i].kind != RF_OP_SAVE;
    return work;
}

static rfi_cost fused_cost(const rfi_explanation *about) {
    const rfi_spec *spec = about->spec;
    const rfi_plan *plan = &spec->plan;
    double rows = (double)about->batch, k = (double)plan->in_features, n = (double)plan->out_features, y = 0,
           item = (double)rfi_dtype_size(spec->compute_dtype);
    for (int i = 0; i < plan->num_outputs; i++)
        y += rows * (double)plan->branches[plan->outputs[i].branch].width *
            (double)(plan->outputs[i].is_index ? sizeof(int64_t) : rfi_dtype_size(spec->y_dtype));
    double x = rows * k * (double)rfi_dtype_size(spec->x_dtype);
    rfi_cost cost = {.memory = y + (double)about->workspace, .seconds = -1};
    if (about->collapsed) {
        cost.flops = 2 * rows * k + rows;
        cost.bytes = x + k * sizeof(double) + y;
    } else {
        cost.flops = 2 * rows * n * k + rows * n * (1 + work_of(&plan->trunk));
        for (int f = 0; f < plan->num_folds; f++)
            cost.flops += rows * n * (1 + work_of(&plan->branches[plan->folds[f].branch].pre));
        cost.bytes = x + n * k * (double)rfi_dtype_size(spec->weight_dtype) + n * item * (1 + plan->num_vectors) + y;
        if (about->estimate) cost.flops += 2 * rows * k * about->estimate->columns_twice;
        /* The backend knows how often its blocking reads W. */
        if (about->estimate && about->estimate->bytes > cost.bytes) cost.bytes = about->estimate->bytes;
    }
    for (int b = 0; b < plan->num_branches; b++) cost.flops += rows * work_of(&plan->branches[b].post);
    return cost;
}

rf_status rfi_explain(const rfi_spec *spec, const char *backend, const rfi_estimate *estimate,
    const rfi_rewrites *lowered, size_t workspace, int64_t batch, rf_format format, char **text) {
    rfi_explanation *about = calloc(1, sizeof *about);
    rfi_plan *again = malloc(sizeof *again);
    if (!about || !again) {
        free(about);
        free(again);
        return rfi_error(RF_OUT_OF_MEMORY, "no memory for the explanation");
    }
    *about = (rfi_explanation){
        .spec = spec,
        .backend = backend,
        .estimate = estimate,
        .lowered = lowered,
        .batch = batch,
        .workspace = workspace,
        .collapsed = spec->plan.collapsible && estimate && estimate->collapsed,
        .math = math_names[spec->math],
        .simplify = simplify_names[spec->plan.simplify],
    };
    rfi_plan_make(&spec->plan.chain, spec->plan.simplify, again, &about->log);
    for (int b = 0; b < spec->plan.num_branches; b++)
        rfi_find_constant(&spec->plan, &spec->plan.branches[b], about->constant[b]);
    tell_operators(about);
    about->unfused = unfused_cost(about);
    about->fused = fused_cost(about);
    if (estimate) {
        about->fused.seconds = estimate->fused_seconds;
        about->unfused.seconds = estimate->unfused_seconds;
    }
    *text = format == RF_FORMAT_JSON ? rfi_explain_json(about) : rfi_explain_text(about);
    free(about);
    free(again);
    return *text ? RF_OK : rfi_error(RF_OUT_OF_MEMORY, "no memory for the explanation");
}
