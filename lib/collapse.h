/* SPDX-License-Identifier: MIT */
/* The collapse of a sum (or mean) of affine columns:
 *
 *   sum_j (scale_j (x . W_j + b_j) + shift_j)  =  x . weight_sum + constant
 *
 * with weight_sum = sum_j scale_j W_j, all in float64. It is equal over the reals; this holds what it takes to give the
 * infinities and NaN of the full path, too. */
#ifndef ROWFOLD_COLLAPSE_H
#define ROWFOLD_COLLAPSE_H

#include "backend.h"

typedef struct rfi_collapse {
    int usable;         /* 0: every row takes the full path, for `reason`; nothing else is set then */
    const char *reason; /* static storage */
    int64_t in_features;
    double *weight_sum; /* (K), owned */
    double constant;
    double divisor; /* N for mean, 1 for sum */

    /* (K), owned. What an infinite x_k does to the columns: 1: all become infinite with its sign, -1: all with the
     * other sign, 0: some differ or become NaN, and so does their sum. */
    signed char *sign;

    /* While max |x_k| * slope + offset <= limit over the finite x_k, no logit, step or partial sum of the full path can
     * overflow. */
    double slope, offset, limit;
} rfi_collapse;

/* `weights` is in host memory, the plan collapsible. RF_OUT_OF_MEMORY; otherwise RF_OK, and look at out->usable. One
 * pass over W. */
rf_status rfi_collapse_prepare(const rfi_plan *plan, const rfi_weight_view *weights, rf_dtype weight_dtype,
    rf_dtype compute_dtype, rfi_collapse *out);
void rfi_collapse_release(rfi_collapse *collapse);

/* What an instruction set brings for one compute type: members of its rfi_cpu_kernel, described there. */
typedef struct rfi_collapse_kernel {
    rf_dtype compute_dtype;
    void (*widen)(void *to, const void *from, rf_dtype dtype, int64_t n);
    double (*dot)(const void *values, const double *weight, int64_t n, double *largest);
} rfi_collapse_kernel;

/* The value in front of the post steps, unrounded, of a row of K values. *full is set to whether the row must take the
 * full path instead (the value is meaningless then). */
double rfi_collapse_row(
    const rfi_collapse *collapse, const rfi_collapse_kernel *kernel, const void *x, rf_dtype x_dtype, int *full);

#endif
