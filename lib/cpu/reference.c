/* SPDX-License-Identifier: MIT */
/* The readable truth: plain loops, dot products and folds in double, one thread. Slow on purpose; every other backend
 * is tested against what this says. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "dtype.h"
#include "error.h"
#include "rows.h"
#include "top.h"

enum { BLOCK = RFI_GROUP_UNIT }; /* columns folded at a time: bounds the stack */

typedef struct prepared {
    void *weight;   /* (N, K) dense, of spec.weight_dtype */
    double *bias;   /* (N) */
    double *vector; /* (num_vectors, N) */
} prepared;

static int available(const char **reason) {
    (void)reason;
    return 1;
}

static rf_status supports(const rfi_spec *spec) {
    (void)spec;
    return RF_OK;
}

static void release(void *state) {
    prepared *p = state;
    if (!p) return;
    free(p->weight);
    free(p->bias);
    free(p->vector);
    free(p);
}

static void fill(prepared *p, const rfi_spec *spec, const rfi_weight_view *weights) {
    const rfi_plan *plan = &spec->plan;
    size_t n = (size_t)plan->out_features, k = (size_t)plan->in_features, item = rfi_dtype_size(spec->weight_dtype);
    for (size_t j = 0; j < n && k; j++)
        memcpy(
            (char *)p->weight + j * k * item, (const char *)weights->weight + j * (size_t)weights->ld * item, k * item);
    rfi_convert(p->bias, RF_FLOAT64, weights->bias, spec->compute_dtype, (int64_t)n);
    for (int v = 0; v < plan->num_vectors; v++)
        rfi_convert(p->vector + (size_t)v * n, RF_FLOAT64, weights->vectors[v], spec->compute_dtype, (int64_t)n);
}

static rf_status update(
    const rfi_spec *spec, const rfi_weight_view *weights, int keep_form, void *state, size_t *bytes) {
    (void)keep_form, (void)bytes;
    fill(state, spec, weights);
    return RF_OK;
}

static rf_status prepare(const rfi_spec *spec, const rfi_weight_view *weights, void **state, size_t *bytes) {
    const rfi_plan *plan = &spec->plan;
    size_t n = (size_t)plan->out_features, k = (size_t)plan->in_features, item = rfi_dtype_size(spec->weight_dtype);
    prepared *p = calloc(1, sizeof *p);
    if (p) {
        p->weight = malloc(n * k * item + 1);
        p->bias = malloc((n + 1) * sizeof(double));
        p->vector = malloc((n * (size_t)plan->num_vectors + 1) * sizeof(double));
    }
    if (!p || !p->weight || !p->bias || !p->vector) {
        release(p);
        return rfi_error(
            RF_OUT_OF_MEMORY, "the reference backend could not allocate %zu bytes for the weights", n * k * item);
    }
    fill(p, spec, weights);
    *state = p;
    *bytes = n * k * item + n * sizeof(double) * (1 + (size_t)plan->num_vectors);
    return RF_OK;
}

static rf_status workspace_size(const rfi_spec *spec, const void *state, const rfi_forward *call, size_t *bytes) {
    (void)spec, (void)state, (void)call;
    *bytes = 0;
    return RF_OK;
}

static double round_to_compute(const rfi_spec *spec, double v) {
    return spec->compute_dtype == RF_FLOAT64 ? v : (float)v;
}

/* A value on its way through the steps, in the compute type, which a double carries exactly. */
typedef struct value {
    double x, saved;
} value;

/* The steps on the value of column j, or behind the reduction, where no step has a vector. */
static void take_steps(const rfi_spec *spec, const prepared *p, const rfi_forward *call, const rfi_steps *steps,
    int64_t row, int64_t j, value *v) {
    for (int i = 0; i < steps->count; i++) {
        const rfi_step *step = &steps->at[i];
        double a = step->vector >= 0 ? p->vector[step->vector * spec->plan.out_features + j]
            : step->row              ? rfi_row_number(call, step, row)
                                     : step->a;
        v->x = spec->compute_dtype == RF_FLOAT64
            ? rfi_op_apply_f64(step->kind, v->x, a, step->b, v->saved)
            : rfi_op_apply_f32(step->kind, (float)v->x, (float)a, (float)step->b, (float)v->saved);
        if (step->kind == RF_OP_SAVE) v->saved = v->x;
    }
}

/* Column j behind the trunk's steps. */
static double column(const rfi_spec *spec, const prepared *p, const rfi_forward *call, int64_t row, int64_t j) {
    const rfi_plan *plan = &spec->plan;
    double dot = 0;
    for (int64_t k = 0; k < plan->in_features; k++)
        dot += rfi_load(call->x, call->x_dtype, rfi_row_of_x(call, row) * call->ldx + k) *
            rfi_load(p->weight, spec->weight_dtype, j * plan->in_features + k);
    value v = {.x = round_to_compute(spec, dot + p->bias[j])};
    take_steps(spec, p, call, &plan->trunk, row, j, &v);
    return v.x;
}

/* Column j of a branch, whose value behind the trunk's steps is `trunk`. */
static double branch_column(const rfi_spec *spec, const prepared *p, const rfi_forward *call, const rfi_branch *branch,
    int64_t row, int64_t j, double trunk) {
    value v = {.x = trunk};
    take_steps(spec, p, call, &branch->pre, row, j, &v);
    return v.x;
}

/* What is known of a row. */
typedef struct row_state {
    rfi_state fold[RF_MAX_RESULTS]; /* of one group of columns */
    double seed[RF_MAX_RESULTS]; /* by fold: the value of the column asked for, where that is wanted before the pass */
    union {
        rfi_top top;
        char room[sizeof(rfi_top) + RF_MAX_TOP * sizeof(rfi_ranked)];
    } best[RF_MAX_RESULTS]; /* by branch */
} row_state;

static void begin_row(const rfi_spec *spec, const prepared *p, const rfi_forward *call, int64_t row, row_state *state) {
    const rfi_plan *plan = &spec->plan;
    for (int b = 0; b < plan->num_branches; b++) state->best[b].top.count = 0;
    for (int f = 0; f < plan->num_folds; f++) {
        const rfi_branch *branch = &plan->branches[plan->folds[f].branch];
        const int64_t asked = rfi_row_column(plan, branch, call, row);
        state->seed[f] = branch->seeded && asked >= 0
            ? branch_column(spec, p, call, branch, row, asked, column(spec, p, call, row, asked))
            : 0;
    }
}

/* `count` columns from `first` on, joined to the states of the folds, and looked through for the best ones. */
static void fold_block(const rfi_spec *spec, const prepared *p, const rfi_forward *call, int64_t row, int64_t first,
    int count, const double *trunk, row_state *state) {
    const rfi_plan *plan = &spec->plan;
    for (int f = 0; f < plan->num_folds; f++) {
        const rfi_fold *fold = &plan->folds[f];
        const rfi_branch *branch = &plan->branches[fold->branch];
        double values[BLOCK];
        for (int j = 0; j < count; j++) values[j] = branch_column(spec, p, call, branch, row, first + j, trunk[j]);
        const rfi_state block = rfi_state_fold(fold->reduction, values, count, plan->columns.first + first,
            rfi_row_column(plan, branch, call, row), state->seed[f]);
        state->fold[f] = rfi_state_join(fold->reduction, state->fold[f], block);
        for (int b = 0; b < plan->num_branches; b++)
            for (int j = 0; j < count && plan->branches[b].top && plan->branches[b].fold == f; j++)
                rfi_top_push(&state->best[b].top, plan->branches[b].top, (rfi_ranked){values[j], first + j});
    }
}

static void store_top(const rfi_branch *branch, const rfi_forward *call, int64_t row, const rfi_top *top) {
    const rfi_output *values = &call->outputs[branch->output], *columns = values + 1;
    for (int i = 0; i < branch->top; i++) {
        rfi_store(values->data, values->dtype, row * values->ld + i, top->at[i].value);
        ((int64_t *)columns->data)[row * columns->ld + i] = top->at[i].column;
    }
}

static void gather(
    const rfi_spec *spec, const prepared *p, const rfi_forward *call, const rfi_branch *branch, int64_t row) {
    const rfi_output *out = &call->outputs[branch->output];
    for (int64_t i = 0; i < call->rows[branch->row - 1].columns; i++) {
        const int64_t j = rfi_row_gathers(branch, call, row, i);
        rfi_store(out->data, out->dtype, row * out->ld + i,
            branch_column(spec, p, call, branch, row, j, column(spec, p, call, row, j)));
    }
}

static void finish_branch(
    const rfi_spec *spec, const prepared *p, const rfi_forward *call, int branch, int64_t row, const rfi_state *state) {
    const rfi_branch *b = &spec->plan.branches[branch];
    const rfi_output *out = &call->outputs[b->output];
    const int64_t asked = rfi_row_column(&spec->plan, b, call, row);
    const double result = rfi_state_finish(b->reduction, *state, b->count, asked);
    if (b->gives_index) {
        const int is_count = (rfi_reduction_flags(b->reduction) & RFI_RF_COUNT) != 0;
        ((int64_t *)out->data)[row * out->ld] = is_count ? (int64_t)result : rfi_column_of_f64(result);
        return;
    }
    value v = {.x = round_to_compute(spec, result)};
    take_steps(spec, p, call, &b->post, row, 0, &v);
    rfi_store(out->data, out->dtype, row * out->ld, v.x);
}

static void put_state(const rfi_plan *plan, int fold, const rfi_state *state, double *group) {
    double *words = group + rfi_plan_words_before(plan, fold);
    const int count = rfi_reduction_words(plan->folds[fold].reduction);
    words[0] = state->m;
    for (int i = 1; i < count; i++) words[i] = state->t[i - 1];
}

static rfi_state get_state(const rfi_plan *plan, int fold, const double *group) {
    const double *words = group + rfi_plan_words_before(plan, fold);
    const int count = rfi_reduction_words(plan->folds[fold].reduction);
    rfi_state state = {.m = words[0]};
    for (int i = 1; i < count; i++) state.t[i - 1] = words[i];
    return state;
}

static void start(const rfi_plan *plan, rfi_state *states) {
    for (int f = 0; f < plan->num_folds; f++) states[f] = rfi_state_fold(plan->folds[f].reduction, NULL, 0, 0, 0, 0);
}

/* One group of columns of a row, to a state for each fold. */
static void fold_group(
    const rfi_spec *spec, const prepared *p, const rfi_forward *call, int64_t row, int64_t group, row_state *state) {
    const rfi_plan *plan = &spec->plan;
    const int64_t end = least(rfi_shard_border(&plan->columns, group + 1) * BLOCK, plan->out_features);
    start(plan, state->fold);
    for (int64_t first = rfi_shard_border(&plan->columns, group) * BLOCK; first < end; first += BLOCK) {
        double trunk[BLOCK];
        const int count = (int)least(BLOCK, end - first);
        for (int j = 0; j < count; j++) trunk[j] = column(spec, p, call, row, first + j);
        fold_block(spec, p, call, row, first, count, trunk, state);
    }
}

/* What is in states. */
static void finish_row(
    const rfi_spec *spec, const prepared *p, const rfi_forward *call, int64_t row, const rfi_state *states) {
    const rfi_plan *plan = &spec->plan;
    for (int b = 0; b < plan->num_branches; b++) {
        const rfi_branch *branch = &plan->branches[b];
        if (!branch->gathers && !branch->top) finish_branch(spec, p, call, b, row, &states[branch->fold]);
    }
}

static void fold_row(const rfi_spec *spec, const prepared *p, const rfi_forward *call, int64_t row) {
    const rfi_plan *plan = &spec->plan;
    const int64_t groups = plan->num_folds ? rfi_shard_groups(&plan->columns) : 0, words = rfi_plan_words(plan);
    rfi_state states[RF_MAX_RESULTS];
    row_state state;
    begin_row(spec, p, call, row, &state);
    start(plan, states);
    for (int64_t g = 0; g < groups; g++) {
        fold_group(spec, p, call, row, g, &state);
        for (int f = 0; f < plan->num_folds; f++) {
            if (call->states) put_state(plan, f, &state.fold[f], call->states + (row * groups + g) * words);
            else states[f] = rfi_state_join(plan->folds[f].reduction, states[f], state.fold[f]);
        }
    }
    if (call->states) return;
    finish_row(spec, p, call, row, states);
    for (int b = 0; b < plan->num_branches; b++) {
        const rfi_branch *branch = &plan->branches[b];
        if (branch->gathers) gather(spec, p, call, branch, row);
        if (branch->top) store_top(branch, call, row, &state.best[b].top);
    }
}

static rf_status merge(const rfi_spec *spec, const rfi_forward *call, const rfi_part *parts, size_t num_parts) {
    const rfi_plan *plan = &spec->plan;
    const int64_t words = rfi_plan_words(plan);
    for (int64_t row = 0; row < call->batch; row++) {
        rfi_state states[RF_MAX_RESULTS];
        start(plan, states);
        for (size_t p = 0; p < num_parts; p++)
            for (int64_t g = 0; g < parts[p].groups; g++)
                for (int f = 0; f < plan->num_folds; f++)
                    states[f] = rfi_state_join(plan->folds[f].reduction, states[f],
                        get_state(plan, f, parts[p].states + (row * parts[p].groups + g) * words));
        finish_row(spec, NULL, call, row, states);
    }
    return RF_OK;
}

static rf_status forward(const rfi_spec *spec, const void *state, const rfi_forward *call) {
    const rfi_output *out = &call->outputs[0];
    for (int64_t row = 0; row < call->batch; row++) {
        if (spec->plan.branches[0].reduction) {
            fold_row(spec, state, call, row);
            continue;
        }
        for (int64_t j = 0; j < spec->plan.out_features; j++)
            rfi_store(out->data, out->dtype, row * out->ld + j, column(spec, state, call, row, j));
    }
    return RF_OK;
}

static rf_status estimate(const rfi_spec *spec, const void *state, int64_t batch, rfi_estimate *out) {
    (void)state, (void)batch;
    memset(out, 0, sizeof *out);
    strcpy(out->kernel, "plain loops, sums in double, one thread");
    out->fused_seconds = out->unfused_seconds = -1;
    for (int f = 0; f < spec->plan.num_folds; f++)
        out->columns_twice += spec->plan.branches[spec->plan.folds[f].branch].seeded;
    return RF_OK;
}

const rfi_backend rfi_backend_reference = {
    .name = "reference",
    .available = available,
    .supports = supports,
    .prepare = prepare,
    .release = release,
    .update = update,
    .workspace_size = workspace_size,
    .forward = forward,
    .merge = merge,
    .estimate = estimate,
};
