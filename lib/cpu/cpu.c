/* SPDX-License-Identifier: MIT */
/* The blocked CPU backends: one for each instruction set, all driving the same code. */
#include "config.h"
#include "cpu/estimate.h"
#include "cpu/features.h"
#include "cpu/forward.h"
#include "cpu/probe.h"
#include "error.h"

static int available_generic(const char **reason) {
    *reason = "";
    return 1;
}

static rf_status supports(const rfi_spec *spec) {
    for (int b = 0; b < spec->plan.num_branches; b++)
        if ((spec->plan.branches[b].gives_index || spec->plan.branches[b].row || spec->plan.branches[b].top) &&
            spec->plan.columns.total > RFI_MOST_COLUMNS)
            return rfi_error(RF_UNSUPPORTED, "the layer has %lld columns; %s tells %d apart",
                (long long)spec->plan.columns.total, spec->plan.branches[b].name, (int)RFI_MOST_COLUMNS);
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

/* The functions of an instruction set, and its row in the list of backends. */
#define BACKEND(isa, label, is_chosen)                                                                              \
    static rf_status prepare_##isa(                                                                                 \
        const rfi_spec *spec, const rfi_weight_view *weights, void **prepared, size_t *bytes) {                     \
        return rfi_cpu_prepare(kernel_of(&rfi_cpu_##isa, spec), spec, weights, prepared, bytes);                    \
    }                                                                                                               \
    static rf_status workspace_size_##isa(                                                                          \
        const rfi_spec *spec, const void *prepared, const rfi_forward *call, size_t *bytes) {                       \
        (void)prepared;                                                                                             \
        return workspace_size(&rfi_cpu_##isa, spec, call->batch, bytes);                                            \
    }                                                                                                               \
    static rf_status merge_##isa(                                                                                   \
        const rfi_spec *spec, const rfi_forward *call, const rfi_part *parts, size_t num_parts) {                   \
        return rfi_cpu_merge(kernel_of(&rfi_cpu_##isa, spec), spec, call, parts, num_parts);                        \
    }                                                                                                               \
    static rf_status estimate_##isa(const rfi_spec *spec, const void *prepared, int64_t batch, rfi_estimate *out) { \
        return rfi_cpu_estimate(&rfi_cpu_##isa, kernel_of(&rfi_cpu_##isa, spec), spec, prepared, batch, out);       \
    }                                                                                                               \
    const rfi_backend rfi_backend_cpu_##isa = {                                                                     \
        .name = "cpu-" label,                                                                                       \
        .available = available_##isa,                                                                               \
        .chosen = is_chosen,                                                                                        \
        .supports = supports,                                                                                       \
        .prepare = prepare_##isa,                                                                                   \
        .release = rfi_cpu_release,                                                                                 \
        .update = rfi_cpu_update,                                                                                   \
        .workspace_size = workspace_size_##isa,                                                                     \
        .forward = rfi_cpu_forward,                                                                                 \
        .merge = merge_##isa,                                                                                       \
        .estimate = estimate_##isa,                                                                                 \
    };

static int available_avx2(const char **reason) { return rfi_cpu_has_avx2(reason); }
static int available_avx512(const char **reason) { return rfi_cpu_has_avx512(reason); }
static int available_avx512_bf16(const char **reason) { return rfi_cpu_has_avx512_bf16(reason); }
static int available_avx512_tiles(const char **reason) { return rfi_cpu_has_avx512_tiles(reason); }
static int available_avx512_terms(const char **reason) { return rfi_cpu_has_avx512_tiles(reason); }
static int available_amx_bf16(const char **reason) { return rfi_cpu_has_amx_bf16(reason); }
static int available_amx_fp16(const char **reason) { return rfi_cpu_has_amx_fp16(reason); }
static int available_amx_terms(const char **reason) { return rfi_cpu_has_amx_terms(reason); }

/* A backend that is not built stays in the list to say so; its table is never used. */
#ifndef RFI_BUILD_AVX2
#define rfi_cpu_avx2 rfi_cpu_generic
#endif
#ifndef RFI_BUILD_AVX512
#define rfi_cpu_avx512 rfi_cpu_generic
#endif
#ifndef RFI_BUILD_AVX512_BF16
#define rfi_cpu_avx512_bf16 rfi_cpu_generic
#define rfi_cpu_avx512_tiles rfi_cpu_generic
#define rfi_cpu_avx512_terms rfi_cpu_generic
#endif
#ifndef RFI_BUILD_AMX
#define rfi_cpu_amx_bf16 rfi_cpu_generic
#define rfi_cpu_amx_terms rfi_cpu_generic
#endif
#ifndef RFI_BUILD_AMX_FP16
#define rfi_cpu_amx_fp16 rfi_cpu_generic
#endif

/* By name alone: what has the bits of AMX elsewhere; and float32 in terms on AMX, faster from about 32 rows on, and
 * slower with fewer, which wait for W, half as many bytes again (doc/kernels/cpu.md 62). */
static int never(void) { return 0; }

BACKEND(generic, "generic", NULL)
BACKEND(avx2, "avx2", NULL)
BACKEND(avx512, "avx512", NULL)
BACKEND(avx512_bf16, "avx512-bf16", rfi_cpu_prefers_avx512_bf16)
BACKEND(avx512_tiles, "avx512-tiles", never)
BACKEND(avx512_terms, "avx512-terms", never)
BACKEND(amx_bf16, "amx-bf16", NULL)
BACKEND(amx_fp16, "amx-fp16", NULL)
BACKEND(amx_terms, "amx-terms", never)

const rfi_cpu_isa *rfi_cpu_best_isa(void) {
    const char *reason;
    if (rfi_cpu_has_amx_fp16(&reason)) return &rfi_cpu_amx_fp16;
    if (rfi_cpu_has_amx_bf16(&reason)) return &rfi_cpu_amx_bf16;
    if (rfi_cpu_has_avx512_bf16(&reason) && rfi_cpu_prefers_avx512_bf16()) return &rfi_cpu_avx512_bf16;
    if (rfi_cpu_has_avx512(&reason)) return &rfi_cpu_avx512;
    if (rfi_cpu_has_avx2(&reason)) return &rfi_cpu_avx2;
    return &rfi_cpu_generic;
}
