/* SPDX-License-Identifier: MIT */
#include "steps.h"

#include <math.h>
#include <string.h>

#include "ops.h"

const char *rfi_step_format(const rfi_chain *chain, const rfi_step *step, char text[RFI_OP_TEXT]) {
    const rfi_op_desc *desc = rfi_op_find(step->kind);
    rf_op op = {.kind = step->kind, .num_params = desc->num_params, .params = {step->a, step->b}};
    if (!rfi_step_is_scalar(step)) {
        op.num_params = 0;
        strcpy(op.vector, chain->ops[step->source].vector); /* no rewrite touches such a step */
    } else {
        /* A clamp keeps one bound in sight. */
        int least = desc->flags & RFI_OPF_ONE_PARAM ? 1 : desc->min_params;
        while (op.num_params > least && op.params[op.num_params - 1] == desc->param_defaults[op.num_params - 1])
            op.num_params--;
    }
    return rfi_op_format(&op, text);
}

int rfi_step_affine(const rfi_step *step, double a, double *scale, double *shift) {
    *scale = 1;
    *shift = 0;
    switch (step->kind) {
    case RF_OP_MUL: *scale = a; return 1;
    case RF_OP_DIV: *scale = 1 / a; return 1;
    case RF_OP_ADD: *shift = a; return 1;
    case RF_OP_SUB: *shift = -a; return 1;
    case RF_OP_NEG: *scale = -1; return 1;
    default: return 0;
    }
}

/* Bits, but any NaN is as good as another. */
static int same_f32(float v, float w) { return (v != v && w != w) || !memcmp(&v, &w, sizeof v); }
static int same_f64(double v, double w) { return (v != v && w != w) || !memcmp(&v, &w, sizeof v); }

/* Asked of the formula itself, so that a new row of reductions.def is treated rightly: values that any other function
 * would change. */
rfi_width_one rfi_reduction_width_one(int kind) {
    static const double probes[] = {0.0, 1.0, -1.0, 2.0, -3.5, 0.1, -0.7, 1e-3, -1e-3, 7.7e8, -1e30, 88.0, -104.5,
        710.0, -745.5, 3e38, -3e38, 1.2e-38, -1.2e-38, 0x1p-149, -0x1.8p-140, INFINITY, -INFINITY, NAN, 16777217.0,
        0x1.fffffep-1, 0x1.000002p0};
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        float v = (float)probes[i];
        if (!same_f32(rfi_op_apply_f32(kind, v, 0, 0, 0), v) ||
            !same_f64(rfi_op_apply_f64(kind, probes[i], 0, 0, 0), probes[i]))
            return RFI_WIDTH_ONE_OTHER;
    }
    float f = rfi_op_apply_f32(kind, -0.0f, 0, 0, 0);
    double d = rfi_op_apply_f64(kind, -0.0, 0, 0, 0);
    if (f != 0 || d != 0 || !signbit(f) != !signbit(d)) return RFI_WIDTH_ONE_OTHER;
    return signbit(f) ? RFI_WIDTH_ONE_SAME : RFI_WIDTH_ONE_PLUS_ZERO;
}
