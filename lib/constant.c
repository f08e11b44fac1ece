/* SPDX-License-Identifier: MIT */
/* Chains whose result is the same for all finite inputs: almost always a mistake in the model. Follows what is known of
 * the value through the steps: an interval that holds it, and whether it is affine in some earlier value, so that x - x
 * is seen to be 0. Says nothing in doubt. */
#include "constant.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "number.h"
#include "states.h"

/* What is known of a value, overflow left aside. */
typedef struct known {
    double low, high;    /* it lies between; equal, or both NaN: it is constant */
    int base;            /* which unknown it is affine in */
    double scale, shift; /* value = scale * unknown + shift */
} known;

typedef struct search {
    known x, s;
    int bases; /* unknowns so far */
    int cause; /* the op behind which the value is constant, or -1 */
} search;

static int is_constant(const known *v) { return v->low == v->high || (isnan(v->low) && isnan(v->high)); }
static known exactly(double v) { return (known){.low = v, .high = v, .scale = 0, .shift = v}; }
static known between(search *at, double low, double high) {
    if (isnan(low) || isnan(high)) low = -DBL_MAX, high = DBL_MAX;
    return (known){.low = fmin(low, high), .high = fmax(low, high), .base = ++at->bases, .scale = 1};
}
/* Any finite value, so that 0 times it is 0. */
static known unknown(search *at) { return between(at, -DBL_MAX, DBL_MAX); }

/* A limit of infinity stands for finite values that overflowed. */
static double times(double v, double w) { return v == 0 || w == 0 ? 0 : v * w; }

static known product(search *at, const known *v, const known *w) {
    double corner[4] = {times(v->low, w->low), times(v->low, w->high), times(v->high, w->low), times(v->high, w->high)};
    double low = corner[0], high = corner[0];
    for (int i = 1; i < 4; i++) low = fmin(low, corner[i]), high = fmax(high, corner[i]);
    return between(at, low, high);
}

static known affine(const known *v, double scale, double shift) {
    known r = {.base = v->base, .scale = times(v->scale, scale), .shift = v->shift * scale + shift};
    if (r.scale == 0) return exactly(r.shift);
    double one = times(v->low, scale) + shift, two = times(v->high, scale) + shift;
    r.low = fmin(one, two);
    r.high = fmax(one, two);
    return r;
}

static known sum_of(search *at, const known *v, const known *w) {
    if (v->base != w->base) return between(at, v->low + w->low, v->high + w->high);
    known r = {.base = v->base, .scale = v->scale + w->scale, .shift = v->shift + w->shift};
    if (r.scale == 0) return exactly(r.shift);
    r.low = v->low + w->low;
    r.high = v->high + w->high;
    return r;
}

static known after(search *at, const rfi_step *step) {
    const rfi_op_desc *desc = rfi_op_find(step->kind);
    const known *x = &at->x, *s = &at->s;
    double scale, shift;
    if (desc->op_class == RF_CLASS_REDUCTION)
        return rfi_reduction_width_one(step->kind) == RFI_WIDTH_ONE_OTHER ? unknown(at) : *x;
    if (step->kind == RF_OP_SAVE) return *x;
    if (!rfi_step_is_scalar(step)) return unknown(at);
    if ((desc->flags & RFI_OPF_NAN_PARAMS) && (isnan(step->a) || isnan(step->b))) return exactly(NAN);
    int reads = (desc->flags & RFI_OPF_READS_SAVED) != 0;
    if (is_constant(x) && (!reads || is_constant(s)))
        return exactly(rfi_op_apply_f64(step->kind, x->low, step->a, step->b, s->low));
    if (step->kind == RF_OP_ADD_SAVED) return sum_of(at, x, s);
    if (step->kind == RF_OP_MUL_SAVED) return product(at, x, s);
    if (rfi_step_affine(step, step->a, &scale, &shift) && isfinite(scale) && isfinite(shift))
        return affine(x, scale, shift);
    int increasing = (desc->flags & RFI_OPF_INCREASING) || ((desc->flags & RFI_OPF_INCREASING_A) && step->a >= 0);
    if (!increasing) return unknown(at);
    double low = rfi_op_apply_f64(step->kind, x->low, step->a, step->b, 0),
           high = rfi_op_apply_f64(step->kind, x->high, step->a, step->b, 0);
    return low == high ? exactly(low) : between(at, low, high);
}

static void follow(search *at, const rfi_steps *steps) {
    for (int i = 0; i < steps->count; i++) {
        int before = is_constant(&at->x);
        at->x = after(at, &steps->at[i]);
        if (steps->at[i].kind == RF_OP_SAVE) at->s = at->x;
        if (!before && is_constant(&at->x)) at->cause = steps->at[i].source;
    }
}

/* The fold of n equal columns, by doubling. */
static double fold_equal(int kind, double v, int64_t n, double count) {
    rfi_state total = rfi_state_fold(kind, NULL, 0, 0, 0, 0), power = rfi_state_fold(kind, &v, 1, 0, 0, 0);
    for (int64_t rest = n; rest; rest >>= 1) {
        if (rest & 1) total = rfi_state_join(kind, total, power);
        power = rfi_state_join(kind, power, power);
    }
    double result = rfi_state_finish(kind, total, count, 0);
    return rfi_reduction_flags(kind) & RFI_RF_INDEX ? (double)rfi_column_of_f64(result) : result;
}

int rfi_find_constant(const rfi_plan *plan, const rfi_branch *branch, char text[RFI_CONSTANT_TEXT]) {
    search at = {.cause = -1};
    at.x = at.s = unknown(&at);
    follow(&at, &plan->trunk);
    follow(&at, &branch->pre);
    if (branch->reduction) {
        /* Which column a row asks for, and whether it is ignored, is not known; nor of several which is which. */
        at.x = is_constant(&at.x) && !branch->row && !branch->top
            ? exactly(fold_equal(branch->reduction, at.x.low, plan->out_features, branch->count))
            : unknown(&at);
        at.s = unknown(&at);
        follow(&at, &branch->post);
    }
    *text = 0;
    if (!is_constant(&at.x)) return 0;
    char number[RFI_NUMBER_TEXT], op[RFI_OP_TEXT];
    snprintf(text, RFI_CONSTANT_TEXT,
        "rounding and overflow aside, the result is %s for every finite input: behind %s (operator %d) nothing of the input is left",
        rfi_number_format(at.x.low, number), rfi_op_format(&plan->chain.ops[at.cause], op), at.cause);
    return 1;
}
