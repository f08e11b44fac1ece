/* SPDX-License-Identifier: MIT */
/* The collapse against the columns added up one by one: values, infinities, NaN, and that no row is let through that
 * overflows. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "collapse.h"
#include "dtype.h"
#include "ops.h"
#include "random.h"

static double uniform(void) { return (double)(next_random() >> 11) * 0x1p-52 - 1; }

enum { MOST = 40, LONGEST = MOST * MOST / 2 };

/* A model small enough to hold in the hand; everything is stored as doubles and, for float32, rounded to it. */
typedef struct model {
    rfi_plan plan;
    rf_dtype dtype;
    int64_t k, n;
    double weight[MOST * MOST], bias[MOST], vector[2][MOST];
    char weight_data[MOST * MOST * 8], bias_data[MOST * 8], vector_data[2][MOST * 8];
} model;

static double stored(rf_dtype dtype, double v) { return dtype == RF_FLOAT64 ? v : (double)(float)v; }

static int make(model *m, const char *text, rf_dtype dtype, int64_t k, int64_t n) {
    rfi_chain chain;
    rf_status status = rfi_chain_from_text(text, &chain);
    chain.in_features = k; /* 0 cannot be said in a config */
    chain.out_features = chain.total_columns = n;
    if (!status) status = rfi_plan_make(&chain, RF_SIMPLIFY_ALGEBRAIC, &m->plan, NULL);
    CHECK(!status && m->plan.collapsible, "\"%s\": %s", text, rf_last_error());
    m->dtype = dtype;
    m->k = k;
    m->n = n;
    for (int64_t i = 0; i < k * n; i++) m->weight[i] = stored(dtype, uniform());
    for (int64_t j = 0; j < n; j++) {
        m->bias[j] = stored(dtype, uniform());
        for (int v = 0; v < 2; v++) m->vector[v][j] = stored(dtype, uniform());
    }
    return !status;
}

static rf_status prepare(model *m, rfi_collapse *c) {
    rfi_convert(m->weight_data, m->dtype, m->weight, RF_FLOAT64, m->k * m->n);
    rfi_convert(m->bias_data, m->dtype, m->bias, RF_FLOAT64, m->n);
    for (int v = 0; v < 2; v++) rfi_convert(m->vector_data[v], m->dtype, m->vector[v], RF_FLOAT64, m->n);
    const void *vectors[2] = {m->vector_data[0], m->vector_data[1]};
    const rfi_weight_view view = {
        .weight = m->weight_data, .ld = m->k, .memory = RF_MEMORY_HOST, .bias = m->bias_data, .vectors = vectors};
    return rfi_collapse_prepare(&m->plan, &view, m->dtype, m->dtype, c);
}

/* The full path in the model's own type, one operation at a time; *magnitude is the sum of what was added up, in
 * float64. */
static double full_path(const model *m, const double *x, double *magnitude) {
    double total = 0;
    *magnitude = 0;
    for (int64_t j = 0; j < m->n; j++) {
        double logit = 0, reach = fabs(m->bias[j]);
        for (int64_t k = 0; k < m->k; k++) {
            logit = stored(m->dtype, logit + stored(m->dtype, x[k] * m->weight[j * m->k + k]));
            reach += fabs(x[k] * m->weight[j * m->k + k]);
        }
        double v = stored(m->dtype, logit + m->bias[j]), s = 0, s_reach = 0;
        for (int i = 0; i < m->plan.trunk.count; i++) {
            const rfi_step *step = &m->plan.trunk.at[i];
            double a = stored(m->dtype, step->vector < 0 ? step->a : m->vector[step->vector][j]), scale = 1, shift = 0;
            v = m->dtype == RF_FLOAT64 ? rfi_op_apply_f64(step->kind, v, a, 0, s)
                                       : (double)rfi_op_apply_f32(step->kind, (float)v, (float)a, 0, (float)s);
            if (rfi_step_affine(step, a, &scale, &shift)) reach = reach * fabs(scale) + fabs(shift);
            if (step->kind == RF_OP_SAVE) s = v, s_reach = reach;
            if (step->kind == RF_OP_ADD_SAVED) reach += s_reach;
        }
        total = stored(m->dtype, total + v);
        *magnitude += reach;
    }
    *magnitude /= m->plan.branches[0].reduction == RF_OP_MEAN ? (double)m->n : 1;
    return m->plan.branches[0].reduction == RF_OP_MEAN ? stored(m->dtype, total / (double)m->n) : total;
}

/* The kernels' own code, as any instruction set compiles it. */
#define T float
#define BITS uint32_t
#define HALF_BITS 0x7fffffffu
#define NAME(stem) stem##_f32
#include "cpu/dot_typed.h"
#undef T
#undef BITS
#undef HALF_BITS
#undef NAME
#define T double
#define BITS uint64_t
#define HALF_BITS 0x7fffffffffffffffu
#define NAME(stem) stem##_f64
#include "cpu/dot_typed.h"

static const rfi_collapse_kernel kernel_f32 = {RF_FLOAT32, NULL, dot_f32}, kernel_f64 = {RF_FLOAT64, NULL, dot_f64};

/* Collapsed equals full: to rounding for finite rows, in kind for the others. Returns whether the row was let through.
 */
static int compare(const model *m, const rfi_collapse *c, const double *x, const char *text) {
    double data[LONGEST], magnitude;
    rfi_convert(data, m->dtype, x, RF_FLOAT64, m->k);
    int full;
    double value = rfi_collapse_row(c, m->dtype == RF_FLOAT64 ? &kernel_f64 : &kernel_f32, data, m->dtype, &full),
           expected = full_path(m, x, &magnitude);
    if (full) return 0;
    /* Every operation of the full path errs by half an ulp of what it adds to, at most `magnitude`: K + N + steps + 2
     * of them in a row. The collapse errs by as many halves of an ulp of float64, which the second factor covers for a
     * float64 model, too. */
    double unit = m->dtype == RF_FLOAT64 ? 0x1p-53 : 0x1p-24,
           allowed = 2.01 * unit * (double)(m->k + m->n + m->plan.trunk.count + 2) * magnitude;
    if (isnan(expected)) CHECK(isnan(value), "\"%s\": %g, expected nan", text, value);
    else if (isinf(expected)) CHECK(value == expected, "\"%s\": %g, expected %g", text, value, expected);
    else
        CHECK(fabs(value - expected) <= allowed, "\"%s\": %.17g, expected %.17g within %g", text, value, expected,
            allowed);
    return 1;
}

static const char *const chains[] = {
    "linear | sum",
    "linear | mean",
    "linear | mul(@s) | add(@t) | sum",
    "linear | save | mul(3) | add_saved | mean",
    "linear | save | mul(-3) | add_saved | sum",
    "linear | div(-7) | sub(0.3) | neg | mean",
    "linear | save | mul(@s) | add_saved | sub(@t) | save | add(1) | add_saved | sum",
    "linear | mul(0) | sum",
};
enum { NUM_CHAINS = sizeof chains / sizeof *chains };

static void finite_rows(rf_dtype dtype) {
    static model m;
    for (int t = 0; t < 40 * NUM_CHAINS; t++) {
        const char *text = chains[t / 5 % NUM_CHAINS];
        rfi_collapse c;
        /* Short rows, and some that are longer than what is looked at in one go. */
        int64_t k = (int64_t)(next_random() % (t % 8 ? MOST : LONGEST)),
                n = 1 + (int64_t)(next_random() % (t % 8 ? MOST - 1 : 2));
        if (!make(&m, text, dtype, k, n)) continue;
        CHECK(prepare(&m, &c) == RF_OK && c.usable, "\"%s\": %s", text, c.reason);
        for (int row = 0; row < 5; row++) {
            double x[LONGEST];
            for (int64_t k = 0; k < m.k; k++) x[k] = stored(dtype, uniform() * (row == 4 ? 1e20 : 1));
            if (k > 300 && row == 3) x[k - 2] = INFINITY;
            CHECK(compare(&m, &c, x, text), "\"%s\": an ordinary row was sent the full way", text);
        }
        rfi_collapse_release(&c);
    }
}

/* Infinities and NaN in x, with columns of W that are all positive, all negative, mixed, or hold a zero. */
static void special_rows(rf_dtype dtype) {
    static model m;
    int infinite = 0;
    for (int t = 0; t < 200 * NUM_CHAINS; t++) {
        const char *text = chains[t % NUM_CHAINS];
        rfi_collapse c;
        if (!make(&m, text, dtype, 1 + (int64_t)(next_random() % 6), 1 + (int64_t)(next_random() % 5))) continue;
        for (int64_t k = 0; k < m.k; k++) {
            uint64_t kind = next_random() % 6;
            for (int64_t j = 0; j < m.n && kind < 4; j++)
                m.weight[j * m.k + k] = (kind % 2 ? -1 : 1) * fabs(m.weight[j * m.k + k]);
            if (kind == 4) m.weight[(int64_t)(next_random() % (uint64_t)m.n) * m.k + k] = 0;
        }
        int same_sign = next_random() % 2 == 0;
        for (int64_t j = 0; j < m.n && same_sign; j++) m.vector[0][j] = fabs(m.vector[0][j]);
        CHECK(prepare(&m, &c) == RF_OK && c.usable, "\"%s\": %s", text, c.reason);
        for (int row = 0; row < 10; row++) {
            double x[LONGEST], magnitude;
            for (int64_t k = 0; k < m.k; k++) {
                uint64_t kind = next_random() % 8;
                x[k] = kind == 0            ? INFINITY
                    : kind == 1             ? -INFINITY
                    : kind == 2 && row == 9 ? NAN
                                            : stored(dtype, uniform());
            }
            CHECK(compare(&m, &c, x, text), "\"%s\": the row was sent the full way", text);
            infinite += isinf(full_path(&m, x, &magnitude)) != 0;
        }
        rfi_collapse_release(&c);
    }
    CHECK(infinite > 500, "only %d rows were infinite: the generator lost its use", infinite);
}

/* Rows near the end of the range: those let through agree, so whatever overflows on the full path went there. */
static void large_rows(rf_dtype dtype) {
    static const char *const large[] = {"linear | mul(1e30) | mul(1e-30) | sum", "linear | add(3e38) | sub(3e38) | sum",
        "linear | mean", "linear | sum", "linear | save | mul(-1) | add_saved | sum",
        "linear | add(3e38) | mul(1e-30) | sum", "linear | add(8e37) | sum"};
    static model m;
    int through = 0, overflowed = 0;
    double top = dtype == RF_FLOAT64 ? DBL_MAX : FLT_MAX;
    for (int t = 0; t < 1400; t++) {
        const char *text = large[t % 7];
        rfi_collapse c;
        if (!make(&m, text, dtype, 1 + (int64_t)(next_random() % (MOST - 1)), 1 + (int64_t)(next_random() % 8)))
            continue;
        CHECK(prepare(&m, &c) == RF_OK && c.usable, "\"%s\": %s", text, c.reason);
        for (int row = 0; row < 8; row++) {
            double x[LONGEST], magnitude;
            int exponent = (int)(next_random() % 6), lonely = row % 2;
            for (int64_t k = 0; k < m.k; k++) x[k] = stored(dtype, uniform() * (lonely ? 1 : ldexp(top, -exponent)));
            if (lonely) x[next_random() % (uint64_t)m.k] = stored(dtype, ldexp(top, -exponent));
            if (row == 0) x[0] = INFINITY;
            through += compare(&m, &c, x, text);
            overflowed += !isfinite(full_path(&m, x, &magnitude));
        }
        rfi_collapse_release(&c);
    }
    CHECK(through > 50 && overflowed > 50, "%d rows let through, %d overflowed: the generator lost its use", through,
        overflowed);
}

/* Weights that are not finite leave every row to the full path. */
static void unusable(rf_dtype dtype) {
    static const double bad[] = {INFINITY, -INFINITY, NAN};
    static model m;
    for (int t = 0; t < 12; t++) {
        rfi_collapse c;
        if (!make(&m, "linear | mul(@s) | add(@t) | sum", dtype, 7, 5)) continue;
        *(t % 4 == 0 ? &m.weight[17] : t % 4 == 1 ? &m.bias[3] : &m.vector[t % 4 - 2][4]) = bad[t / 4];
        CHECK(prepare(&m, &c) == RF_OK && !c.usable && c.reason && !c.weight_sum && !c.sign, "case %d", t);
        rfi_collapse_release(&c);
    }
    rfi_collapse c;
    if (make(&m, "linear | div(@s) | sum", dtype, 7, 5)) {
        m.vector[0][2] = 0;
        CHECK(prepare(&m, &c) == RF_OK && !c.usable, "a division by 0");
    }
    if (dtype == RF_FLOAT32 && make(&m, "linear | mul(1e300) | sum", dtype, 7, 5))
        CHECK(prepare(&m, &c) == RF_OK && !c.usable, "1e300 is infinite in float32");
}

/* A row is let through up to a quarter of the range and not beyond it: the rest is for the roundings of the full path.
 */
static void quarter_of_the_range(rf_dtype dtype) {
    static model m;
    rfi_collapse c;
    const double top = dtype == RF_FLOAT64 ? DBL_MAX : FLT_MAX;
    if (!make(&m, "linear | sum", dtype, 1, 2)) return;
    m.weight[0] = m.weight[1] = 1, m.bias[0] = m.bias[1] = 0;
    CHECK(prepare(&m, &c) == RF_OK && c.usable, "%s", c.reason);
    for (int i = 0; i < 8; i++) {
        static const double parts[] = {0.2, 0.2499, 0.2501, 0.3, 0.49, 0.51, 0.9, 0.999};
        const double x[1] = {stored(dtype, parts[i] * top / 2)};
        double data[1];
        int full;
        rfi_convert(data, dtype, x, RF_FLOAT64, 1);
        rfi_collapse_row(&c, dtype == RF_FLOAT64 ? &kernel_f64 : &kernel_f32, data, dtype, &full);
        CHECK(full == (i >= 2), "a row that comes to %g of the range: full is %d", parts[i], full);
    }
    rfi_collapse_release(&c);
}

/* Columns that cancel to far less than their sum's last place, in W, in the bias, and in what the steps add. */
static void columns_that_cancel(rf_dtype dtype) {
    static model m;
    rfi_collapse c;
    const double large = 0x1p80;
    if (!make(&m, "linear | add(@s) | sum", dtype, 2, 3)) return;
    const double weight[] = {large, 3, 1, -large, -large, large}, values[] = {large, 5, -large};
    memcpy(m.weight, weight, sizeof weight);
    memcpy(m.bias, values, sizeof values);
    for (int j = 0; j < 3; j++) m.vector[0][j] = values[2 - j];
    CHECK(prepare(&m, &c) == RF_OK && c.usable, "%s", c.reason);
    CHECK(c.weight_sum[0] == 1 && c.weight_sum[1] == 3, "the columns of W come to %g and %g, expected 1 and 3",
        c.weight_sum[0], c.weight_sum[1]);
    CHECK(c.constant == 10, "bias and vector come to %g, expected 10", c.constant);
    rfi_collapse_release(&c);
}

int main(void) {
    static const rf_dtype types[] = {RF_FLOAT32, RF_FLOAT64};
    for (int t = 0; t < 2; t++) {
        finite_rows(types[t]);
        special_rows(types[t]);
        large_rows(types[t]);
        unusable(types[t]);
        quarter_of_the_range(types[t]);
        columns_that_cancel(types[t]);
    }
    return failures != 0;
}
