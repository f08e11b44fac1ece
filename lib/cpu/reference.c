/* The readable truth: plain loops, dot products and folds in double, one thread. Slow on purpose; every other backend
 * is tested against what this says. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "dtype.h"
#include "error.h"
#include "ops.h"

enum { BLOCK = 256 }; /* columns folded at a time: bounds the stack */

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
    for (size_t j = 0; j < n && k; j++)
        memcpy(
            (char *)p->weight + j * k * item, (const char *)weights->weight + j * (size_t)weights->ld * item, k * item);
    rfi_convert(p->bias, RF_FLOAT64, weights->bias, spec->compute_dtype, (int64_t)n);
    for (int v = 0; v < plan->num_vectors; v++)
        rfi_convert(p->vector + (size_t)v * n, RF_FLOAT64, weights->vectors[v], spec->compute_dtype, (int64_t)n);
    *state = p;
    *bytes = n * k * item + n * sizeof(double) * (1 + (size_t)plan->num_vectors);
    return RF_OK;
}

static rf_status workspace_size(const rfi_spec *spec, const void *state, int64_t batch, size_t *bytes) {
    (void)spec, (void)state, (void)batch;
    *bytes = 0;
    return RF_OK;
}

/* One step on one value, in the compute type; a double carries either type exactly. */
static double step_apply(const rfi_spec *spec, const rfi_step *step, double x, double a, double s) {
    if (spec->compute_dtype == RF_FLOAT64) return rfi_op_apply_f64(step->kind, x, a, step->b, s);
    return rfi_op_apply_f32(step->kind, (float)x, (float)a, (float)step->b, (float)s);
}

static double round_to_compute(const rfi_spec *spec, double v) {
    return spec->compute_dtype == RF_FLOAT64 ? v : (float)v;
}

/* The value of column j in front of the reduction. */
static double column(const rfi_spec *spec, const prepared *p, const rfi_forward *call, int64_t row, int64_t j) {
    const rfi_plan *plan = &spec->plan;
    double dot = 0;
    for (int64_t k = 0; k < plan->in_features; k++)
        dot += rfi_load(call->x, call->x_dtype, row * call->ldx + k) *
            rfi_load(p->weight, spec->weight_dtype, j * plan->in_features + k);
    double v = round_to_compute(spec, dot + p->bias[j]), saved = 0;
    for (int i = 0; i < plan->trunk.count; i++) {
        const rfi_step *step = &plan->trunk.at[i];
        double a = step->vector < 0 ? step->a : p->vector[step->vector * plan->out_features + j];
        v = step_apply(spec, step, v, a, saved);
        if (step->kind == RF_OP_SAVE) saved = v;
    }
    return v;
}

static double fold_row(const rfi_spec *spec, const prepared *p, const rfi_forward *call, int64_t row) {
    const rfi_plan *plan = &spec->plan;
    int kind = plan->branches[0].reduction;
    rfi_state_f64 state = rfi_state_empty_f64(kind);
    for (int64_t first = 0; first < plan->out_features; first += BLOCK) {
        double value[BLOCK];
        int count = plan->out_features - first < BLOCK ? (int)(plan->out_features - first) : BLOCK;
        for (int j = 0; j < count; j++) value[j] = column(spec, p, call, row, first + j);
        rfi_state_f64 block = rfi_state_empty_f64(kind);
        for (int j = 0; j < count; j++) block.m = rfi_state_peak_f64(kind, block.m, value[j]);
        for (int j = 0; j < count; j++) block.t += rfi_state_term_f64(kind, block.m, value[j]);
        state = rfi_state_merge_f64(kind, state, block);
    }
    double v = round_to_compute(spec, rfi_state_finish_f64(kind, state, (double)plan->out_features)), saved = 0;
    const rfi_steps *post = &plan->branches[0].post;
    for (int i = 0; i < post->count; i++) {
        v = step_apply(spec, &post->at[i], v, post->at[i].a, saved);
        if (post->at[i].kind == RF_OP_SAVE) saved = v;
    }
    return v;
}

static rf_status forward(const rfi_spec *spec, const void *state, const rfi_forward *call) {
    for (int64_t row = 0; row < call->batch; row++) {
        if (spec->plan.branches[0].reduction) {
            rfi_store(call->y, call->y_dtype, row * call->ldy, fold_row(spec, state, call, row));
            continue;
        }
        for (int64_t j = 0; j < spec->plan.out_features; j++)
            rfi_store(call->y, call->y_dtype, row * call->ldy + j, column(spec, state, call, row, j));
    }
    return RF_OK;
}

static rf_status estimate(const rfi_spec *spec, const void *state, int64_t batch, rfi_estimate *out) {
    (void)spec, (void)state, (void)batch;
    memset(out, 0, sizeof *out);
    strcpy(out->kernel, "plain loops, sums in double, one thread");
    out->fused_seconds = out->unfused_seconds = -1;
    return RF_OK;
}

const rfi_backend rfi_backend_reference = {
    .name = "reference",
    .available = available,
    .supports = supports,
    .prepare = prepare,
    .release = release,
    .workspace_size = workspace_size,
    .forward = forward,
    .estimate = estimate,
};
