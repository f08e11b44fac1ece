/* SPDX-License-Identifier: MIT */
#include "collapse.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"

/* The value of one column as an affine function of its logit, and how far it can be from 0: |value| <= reach * max|x| +
 * rest. */
typedef struct column {
    double scale, shift;
    int sign; /* of an infinite logit's image: 1, -1, or 0 for NaN */
    double reach, rest;
} column;

static int sign_of(double v) { return (v > 0) - (v < 0); }

static void apply(column *v, double scale, double shift) {
    v->scale *= scale;
    v->shift = v->shift * scale + shift;
    v->sign *= sign_of(scale);
    v->reach *= fabs(scale);
    v->rest = v->rest * fabs(scale) + fabs(shift);
}

/* inf - inf is NaN even where the scales do not cancel, so the signs must agree. */
static void add(column *v, const column *s) {
    v->scale += s->scale;
    v->shift += s->shift;
    if (v->sign != s->sign) v->sign = 0;
    v->reach += s->reach;
    v->rest += s->rest;
}

/* Runs the steps for column j; raises out's bounds to what they reach on the way. */
static void run_steps(const rfi_plan *plan, const rfi_weight_view *weights, rf_dtype compute_dtype, int64_t j,
    column *v, rfi_collapse *out) {
    column saved = *v;
    for (int i = 0;; i++) {
        if (v->reach > out->slope) out->slope = v->reach;
        if (v->rest > out->offset) out->offset = v->rest;
        if (i == plan->trunk.count) return;
        const rfi_step *step = &plan->trunk.at[i];
        double a = step->vector < 0 ? step->a : rfi_load(weights->vectors[step->vector], compute_dtype, j), scale,
               shift;
        if (compute_dtype != RF_FLOAT64) a = (float)a; /* as the full path sees it */
        if (step->kind == RF_OP_SAVE) {
            saved = *v;
        } else if (step->kind == RF_OP_ADD_SAVED) {
            add(v, &saved);
        } else {
            rfi_step_affine(step, a, &scale, &shift);
            apply(v, scale, shift);
        }
    }
}

/* Row j of W as doubles. Returns the sum of magnitudes: not finite if an element is not. */
static double load_row(const rfi_weight_view *weights, rf_dtype dtype, int64_t j, int64_t k, double *row) {
    int64_t first = j * weights->ld;
    if (dtype == RF_FLOAT32) {
        const float *from = (const float *)weights->weight + first;
        for (int64_t i = 0; i < k; i++) row[i] = from[i];
    } else {
        for (int64_t i = 0; i < k; i++) row[i] = rfi_load(weights->weight, dtype, first + i);
    }
    /* Four sums, for their latency. */
    double sum[4] = {0, 0, 0, 0};
    for (int64_t i = 0; i + 4 <= k; i += 4)
        for (int l = 0; l < 4; l++) sum[l] += fabs(row[i + l]);
    for (int64_t i = k - k % 4; i < k; i++) sum[0] += fabs(row[i]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* total + error += value, with the rounding error of the addition kept (Knuth's two-sum): N may be large and the sum
 * may cancel. */
static inline void add_exactly(double *total, double *error, double value) {
    double sum = *total + value, back = sum - *total;
    *error += (*total - (sum - back)) + (value - back);
    *total = sum;
}

static void add_row(rfi_collapse *out, double *error, const double *row, const column *v, int first) {
    for (int64_t i = 0; i < out->in_features; i++) {
        add_exactly(&out->weight_sum[i], &error[i], v->scale * row[i]);
        signed char sign = (signed char)(v->sign * sign_of(row[i]));
        out->sign[i] = first || out->sign[i] == sign ? sign : 0;
    }
}

/* One pass over W. Returns why the collapse cannot be used, or NULL. */
static const char *sum_columns(const rfi_plan *plan, const rfi_weight_view *weights, rf_dtype weight_dtype,
    rf_dtype compute_dtype, double *error, double *row, rfi_collapse *out) {
    double constant_error = 0, reach = 0, rest = 0;
    for (int64_t j = 0; j < plan->out_features; j++) {
        double bias = rfi_load(weights->bias, compute_dtype, j);
        column v = {.scale = 1,
            .sign = 1,
            .reach = load_row(weights, weight_dtype, j, plan->in_features, row),
            .rest = fabs(bias)};
        if (!isfinite(v.reach)) return "the weights hold infinities or NaN, or overflow when summed";
        if (!isfinite(bias)) return "the bias holds infinities or NaN";
        run_steps(plan, weights, compute_dtype, j, &v, out);
        if (!isfinite(v.scale) || !isfinite(v.shift) || !isfinite(v.reach) || !isfinite(v.rest))
            return "the scale or shift of a column is infinite or NaN";
        add_row(out, error, row, &v, j == 0);
        add_exactly(&out->constant, &constant_error, v.scale * bias);
        add_exactly(&out->constant, &constant_error, v.shift);
        reach += v.reach;
        rest += v.rest;
    }
    out->constant += constant_error;
    for (int64_t i = 0; i < plan->in_features; i++) out->weight_sum[i] += error[i];
    if (reach > out->slope) out->slope = reach;
    if (rest > out->offset) out->offset = rest;
    return isfinite(reach) && isfinite(rest) ? NULL : "the sum of the columns overflows";
}

void rfi_collapse_release(rfi_collapse *collapse) {
    free(collapse->weight_sum);
    free(collapse->sign);
    collapse->weight_sum = NULL;
    collapse->sign = NULL;
}

rf_status rfi_collapse_prepare(const rfi_plan *plan, const rfi_weight_view *weights, rf_dtype weight_dtype,
    rf_dtype compute_dtype, rfi_collapse *out) {
    size_t k = (size_t)plan->in_features;
    *out = (rfi_collapse){.in_features = plan->in_features,
        .divisor = plan->branches[0].reduction == RF_OP_MEAN ? (double)plan->out_features : 1};
    /* Every operation of the full path rounds up by at most a factor of 1 + 2^-24; a quarter of the range leaves room
     * for 2^24 of them in a row. */
    out->limit = (compute_dtype == RF_FLOAT64 ? DBL_MAX : FLT_MAX) / 4;
    out->weight_sum = calloc(k + 1, sizeof(double));
    out->sign = calloc(k + 1, 1);
    double *error = calloc(k + 1, sizeof(double)), *row = malloc((k + 1) * sizeof(double));
    if (out->weight_sum && out->sign && error && row)
        out->reason = sum_columns(plan, weights, weight_dtype, compute_dtype, error, row, out);
    int enough = out->weight_sum && out->sign && error && row;
    free(error);
    free(row);
    out->usable = enough && !out->reason;
    if (!out->usable) rfi_collapse_release(out);
    return enough ? RF_OK : rfi_error(RF_OUT_OF_MEMORY, "no memory for the column sums of %zu features", k);
}

/* The finite elements of a row, and what the others come to. */
typedef struct row_sum {
    double sum, largest;
    int up, down; /* columns that become infinite, and in which direction; NaN is both */
} row_sum;

static void add_special(const rfi_collapse *collapse, int64_t k, double v, row_sum *row) {
    int direction = isnan(v) ? 0 : sign_of(v) * collapse->sign[k];
    row->up |= direction >= 0;
    row->down |= direction <= 0;
}

/* The inputs from k on, some of which are not finite. */
static void add_one_by_one(
    const rfi_collapse *collapse, int64_t k, const void *x, rf_dtype dtype, int64_t count, row_sum *row) {
    for (int64_t i = 0; i < count; i++) {
        double v = rfi_load(x, dtype, i);
        if (!isfinite(v)) {
            add_special(collapse, k + i, v, row);
            continue;
        }
        row->sum += v * collapse->weight_sum[k + i];
        row->largest = fmax(row->largest, fabs(v));
    }
}

enum { BLOCK = 512 }; /* inputs widened at a time */

double rfi_collapse_row(
    const rfi_collapse *collapse, const rfi_collapse_kernel *kernel, const void *x, rf_dtype x_dtype, int *full) {
    row_sum row = {.sum = collapse->constant};
    for (int64_t k = 0; k < collapse->in_features; k += BLOCK) {
        double widened[BLOCK], largest;
        int64_t count = collapse->in_features - k < BLOCK ? collapse->in_features - k : BLOCK;
        const void *block = (const char *)x + (size_t)k * rfi_dtype_size(x_dtype);
        if (x_dtype != kernel->compute_dtype) {
            kernel->widen(widened, block, x_dtype, count);
            block = widened;
        }
        double sum = kernel->dot(block, collapse->weight_sum + k, count, &largest);
        if (isfinite(largest)) {
            row.sum += sum;
            row.largest = fmax(row.largest, largest);
        } else {
            add_one_by_one(collapse, k, block, kernel->compute_dtype, count, &row);
        }
    }
    *full = !(row.largest * collapse->slope + collapse->offset <= collapse->limit);
    if (row.up && row.down) return NAN;
    if (row.up || row.down) return row.up ? INFINITY : -INFINITY;
    return row.sum / collapse->divisor;
}
