/* The blocked CPU backends: one for each instruction set, all driving the same code. */
#include <stdio.h>

#include "config.h"
#include "cpu/features.h"
#include "cpu/forward.h"
#include "cpu/probe.h"
#include "dtype.h"
#include "error.h"

/* Of the measured peak, what the blocked product reaches on large shapes; for estimates only. */
static const double BLOCKED_EFFICIENCY = 0.92;

static int available_generic(const char **reason) {
    *reason = "";
    return 1;
}

static rf_status supports(const rfi_spec *spec) {
    (void)spec;
    return RF_OK;
}

static const rfi_cpu_kernel *kernel_of(const rfi_cpu_isa *isa, const rfi_spec *spec) {
    return spec->compute_dtype == RF_FLOAT64 ? &isa->f64 : &isa->f32;
}

static rf_status workspace_size(const rfi_cpu_isa *isa, const rfi_spec *spec, int64_t batch, size_t *bytes) {
    rfi_cpu_blocking blocking;
    rf_status status = rfi_cpu_block(spec, kernel_of(isa, spec), batch, &blocking);
    if (!status) *bytes = rfi_cpu_workspace(&blocking);
    return status;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* The product is the same both ways; unfused, every operator also reads and writes the whole (batch, out_features) matrix. */
static rf_status estimate(const rfi_cpu_isa *isa, const rfi_spec *spec, int64_t batch, rfi_estimate *out) {
    const rfi_plan *plan = &spec->plan;
    const rfi_cpu_kernel *kernel = kernel_of(isa, spec);
    double k = (double)plan->in_features, n = (double)plan->out_features, rows = (double)batch;
    double value = (double)rfi_dtype_size(spec->compute_dtype);
    *out = (rfi_estimate){.fused_seconds = -1, .unfused_seconds = -1};
    rfi_cpu_blocking b;
    rf_status status = rfi_cpu_block(spec, kernel, batch, &b);
    if (status) return status;

    rfi_cpu_figures figures = rfi_cpu_probe_cached(isa, spec->threads);
    if (spec->compute_dtype == RF_FLOAT64) figures.flops /= 2;
    snprintf(out->kernel, sizeof out->kernel, "%s, %s, slivers of %d x %d, blocks of %lld x %lld, %d thread%s", isa->name,
             rfi_dtype_name(spec->compute_dtype), kernel->max_rows, kernel->panel, (long long)b.rows, (long long)(b.block_units * RFI_CPU_UNIT), b.threads,
             b.threads == 1 ? "" : "s");
    snprintf(out->machine, sizeof out->machine, "measured with %d thread%s: %.0f GFLOP/s in %s multiply-adds, %.1f GB/s read", spec->threads,
             spec->threads == 1 ? "" : "s", figures.flops * 1e-9, rfi_dtype_name(spec->compute_dtype), figures.bytes * 1e-9);
    out->flops_per_second = figures.flops;
    out->bytes_per_second = figures.bytes;
    out->flops = 2 * rows * n * k;
    double weight = n * k * (double)rfi_dtype_size(spec->weight_dtype), x = rows * k * (double)rfi_dtype_size(spec->x_dtype);
    double y = rows * (double)plan->width * (double)rfi_dtype_size(spec->y_dtype);
    out->bytes = weight * (double)b.row_blocks + x + y;
    if (figures.flops <= 0 || figures.bytes <= 0) return RF_OK;
    double product = out->flops / (BLOCKED_EFFICIENCY * figures.flops);
    double passes = 1 + 2.0 * plan->num_pre + (plan->reduction ? 1 : 0);
    out->fused_seconds = larger(product, out->bytes / figures.bytes);
    out->unfused_seconds = larger(product, (weight + x) / figures.bytes) + passes * rows * n * value / figures.bytes;
    return RF_OK;
}

/* The functions of an instruction set, and its row in the list of backends. */
#define BACKEND(isa)                                                                                                                         \
    static rf_status prepare_##isa(const rfi_spec *spec, const rfi_weight_view *weights, void **prepared, size_t *bytes) {                   \
        return rfi_cpu_prepare(kernel_of(&rfi_cpu_##isa, spec), spec, weights, prepared, bytes);                                             \
    }                                                                                                                                        \
    static rf_status workspace_size_##isa(const rfi_spec *spec, const void *prepared, int64_t batch, size_t *bytes) {                        \
        (void)prepared;                                                                                                                      \
        return workspace_size(&rfi_cpu_##isa, spec, batch, bytes);                                                                           \
    }                                                                                                                                        \
    static rf_status estimate_##isa(const rfi_spec *spec, const void *prepared, int64_t batch, rfi_estimate *out) {                          \
        (void)prepared;                                                                                                                      \
        return estimate(&rfi_cpu_##isa, spec, batch, out);                                                                                   \
    }                                                                                                                                        \
    const rfi_backend rfi_backend_cpu_##isa = {                                                                                              \
        .name = "cpu-" #isa,                                                                                                                 \
        .available = available_##isa,                                                                                                        \
        .supports = supports,                                                                                                                \
        .prepare = prepare_##isa,                                                                                                            \
        .release = rfi_cpu_release,                                                                                                          \
        .workspace_size = workspace_size_##isa,                                                                                                    \
        .forward = rfi_cpu_forward,                                                                                                          \
        .estimate = estimate_##isa,                                                                                                          \
    };

static int available_avx2(const char **reason) { return rfi_cpu_has_avx2(reason); }
static int available_avx512(const char **reason) { return rfi_cpu_has_avx512(reason); }

/* A backend that is not built stays in the list to say so; its table is never used. */
#ifndef RFI_BUILD_AVX2
#define rfi_cpu_avx2 rfi_cpu_generic
#endif
#ifndef RFI_BUILD_AVX512
#define rfi_cpu_avx512 rfi_cpu_generic
#endif

BACKEND(generic)
BACKEND(avx2)
BACKEND(avx512)

const rfi_cpu_isa *rfi_cpu_best_isa(void) {
    const char *reason;
    if (rfi_cpu_has_avx512(&reason)) return &rfi_cpu_avx512;
    if (rfi_cpu_has_avx2(&reason)) return &rfi_cpu_avx2;
    return &rfi_cpu_generic;
}
