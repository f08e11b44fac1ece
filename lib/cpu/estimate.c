/* SPDX-License-Identifier: MIT */
#include "cpu/estimate.h"

#include <stdio.h>

#include "cpu/blocking.h"
#include "cpu/probe.h"
#include "dtype.h"
#include "number.h"

/* Of the measured peak, what the blocked product reaches on large shapes. */
static const double BLOCKED_EFFICIENCY = 0.9;

static double larger(double a, double b) { return a > b ? a : b; }
static const char *plural(int count) { return count == 1 ? "" : "s"; }

/* How products in pairs and of terms stand for those of x of the model's usual type and W. */
typedef struct way {
    const char *text, *name; /* "" where none do */
    int max_rows;
    double rate; /* to that of multiply-adds */
} way;

static way way_of(const rfi_spec *spec, const rfi_cpu_kernel *kernel) {
    const rfi_cpu_pairs *pairs = rfi_cpu_pairs_of(spec, kernel);
    const rfi_cpu_terms *terms = kernel->terms;
    if (pairs && spec->x_dtype == spec->weight_dtype)
        return (way){", products in pairs by ", pairs->name, pairs->max_rows, pairs->rate};
    if (rfi_cpu_in_terms(spec, kernel))
        return (way){", products of three bfloat16 terms each by ", terms->name, terms->max_rows, terms->rate};
    return (way){"", "", kernel->max_rows, 1};
}

static void describe(const rfi_cpu_isa *isa, const rfi_cpu_kernel *kernel, const rfi_spec *spec,
    const rfi_cpu_blocking *b, rfi_cpu_figures figures, rfi_estimate *out) {
    const char *type = rfi_dtype_name(spec->compute_dtype);
    const way w = way_of(spec, kernel);
    char parted[64] = "";
    if (b->parted)
        snprintf(parted, sizeof parted, ", the last %lld in %lld parts", (long long)b->parted, (long long)b->parts);
    if (out->collapsed)
        snprintf(out->kernel, sizeof out->kernel,
            "a dot product a row with the summed weights, in float64; rows near overflow in full on %s", isa->name);
    else if (b->narrow && rfi_cpu_is_split(b))
        snprintf(out->kernel, sizeof out->kernel,
            "%s, %s, few columns: dot products along the inputs, a block of %lld rows, %d threads share the columns",
            isa->name, type, (long long)b->rows, b->threads);
    else if (b->narrow)
        snprintf(out->kernel, sizeof out->kernel,
            "%s, %s, few columns: dot products along the inputs, blocks of %lld rows, %d thread%s", isa->name, type,
            (long long)b->rows, b->threads, plural(b->threads));
    else
        snprintf(out->kernel, sizeof out->kernel,
            "%s, %s%s%s, slivers of %d x %d, blocks of %lld x %lld%s, %d thread%s", isa->name, type, w.text, w.name,
            w.max_rows, kernel->panel, (long long)b->rows, (long long)(b->block_units * RFI_CPU_UNIT), parted,
            b->threads, plural(b->threads));
    char read[RFI_NUMBER_TEXT];
    snprintf(out->machine, sizeof out->machine,
        "measured with %d thread%s: %.0f GFLOP/s in %s multiply-adds, %s GB/s read", spec->threads,
        plural(spec->threads), figures.flops * 1e-9, type, rfi_number_fixed(figures.bytes * 1e-9, 1, read));
}

/* Unfused, every operator also reads and writes the whole (batch, out_features) matrix. */
rf_status rfi_cpu_estimate(const rfi_cpu_isa *isa, const rfi_cpu_kernel *kernel, const rfi_spec *spec,
    const rfi_cpu_prepared *prepared, int64_t batch, rfi_estimate *out) {
    const rfi_plan *plan = &spec->plan;
    double k = (double)plan->in_features, n = (double)plan->out_features, rows = (double)batch;
    rfi_cpu_blocking b;
    *out = (rfi_estimate){.fused_seconds = -1, .unfused_seconds = -1};
    rf_status status = rfi_cpu_block(spec, kernel, batch, &b);
    if (status) return status;

    const double weight =
        n * k * (double)(b.narrow ? rfi_dtype_size(spec->compute_dtype) : rfi_cpu_weight_item(spec, kernel));
    rfi_cpu_figures figures = rfi_cpu_probe_cached(isa, spec->threads, weight);
    if (spec->compute_dtype == RF_FLOAT64) figures.flops /= 2;
    out->collapsed = plan->collapsible && (!prepared || prepared->collapse.usable);
    describe(isa, kernel, spec, &b, figures, out);
    out->flops_per_second = figures.flops;
    out->bytes_per_second = figures.bytes;

    double x = rows * k * (double)rfi_dtype_size(spec->x_dtype);
    double y = rows * (double)plan->width * (double)rfi_dtype_size(spec->y_dtype), product = 2 * rows * n * k;
    for (int f = 0; f < plan->num_folds && !b.narrow; f++)
        out->columns_twice +=
            plan->branches[plan->folds[f].branch].seeded * (int)least(kernel->panel, plan->out_features);
    out->flops = out->collapsed ? 2 * rows * k : product;
    /* The W of few columns stays in a cache. */
    int64_t reads = out->collapsed || b.narrow ? 0 : b.row_blocks;
    out->weight_reads = reads;
    out->block_rows = reads ? b.rows : 0;
    out->bytes = (out->collapsed ? k * (double)sizeof(double) : weight * (double)(reads ? reads : 1)) + x + y;
    if (figures.flops <= 0 || figures.bytes <= 0) return RF_OK;
    const double rate = BLOCKED_EFFICIENCY * figures.flops * way_of(spec, kernel).rate;
    double passes = 1 + 2.0 * plan->trunk.count + (plan->branches[0].reduction ? 1 : 0),
           value = (double)rfi_dtype_size(spec->compute_dtype);
    out->fused_seconds = larger(out->flops / rate, out->bytes / figures.bytes);
    out->unfused_seconds =
        larger(product / rate, (weight + x) / figures.bytes) + passes * rows * n * value / figures.bytes;
    return RF_OK;
}
