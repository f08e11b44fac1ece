/* SPDX-License-Identifier: MIT */
/* A model as the blocked kernel wants it: W packed, bias and vectors padded to whole panels. */
#ifndef ROWFOLD_CPU_PREPARED_H
#define ROWFOLD_CPU_PREPARED_H

#include "collapse.h"
#include "cpu/kernel.h"
#include "dtype.h"
#include "sizes.h"

typedef struct rfi_cpu_prepared {
    const rfi_cpu_kernel *kernel;
    const rfi_cpu_pairs *pairs; /* W is packed in pairs; or NULL */
    const rfi_cpu_terms *terms; /* W is packed in pairs of terms; or NULL */
    size_t item;                /* bytes of a packed value of W, all of its terms */
    int64_t padded;             /* out_features rounded up to whole panels */
    int64_t depth;              /* in_features, rounded up to whole pairs if W is packed in any */
    void *weight;     /* owned; packed as kernel.h says, of its own type or, if narrow, of the compute type. In
                         terms: a panel's chunk that has none lies there as values */
    void *columns;    /* owned; bias and vectors */
    const void *bias; /* (padded) in columns */
    const void *vectors[RF_MAX_OPS]; /* (padded) each, in columns */
    uint8_t *least;        /* owned; of W in pairs, by panel and chunk: rfi_cpu_least_exponent of its values */
    rfi_cpu_range *ranges; /* owned; of W in terms, likewise */
    rfi_collapse collapse; /* usable only where the plan is collapsible */
} rfi_cpu_prepared;

static inline int rfi_cpu_is_narrow(const rfi_spec *spec, const rfi_cpu_kernel *kernel) {
    const rfi_plan *plan = &spec->plan;
    const int in_pairs = kernel->pairs[spec->weight_dtype] && spec->x_dtype == spec->weight_dtype,
              is_long = plan->in_features >= RFI_CPU_LONG;
    int most = plan->branches[0].reduction || is_long ? RFI_CPU_NARROW : RFI_CPU_NARROW_SHORT;
    if (in_pairs) most = is_long ? RFI_CPU_NARROW_PAIRS : RFI_CPU_NARROW_SHORT;
    return plan->out_features > 0 && plan->out_features <= most && !rfi_plan_is_shard(plan);
}

/* In which W is packed, or NULL. */
static inline const rfi_cpu_pairs *rfi_cpu_pairs_of(const rfi_spec *spec, const rfi_cpu_kernel *kernel) {
    return rfi_cpu_is_narrow(spec, kernel) ? NULL : kernel->pairs[spec->weight_dtype];
}

static inline int rfi_cpu_in_terms(const rfi_spec *spec, const rfi_cpu_kernel *kernel) {
    return kernel->terms && spec->weight_dtype == RF_FLOAT32 && !rfi_cpu_is_narrow(spec, kernel);
}

/* Bytes of a value of W as it is packed, where the layer is not narrow. */
static inline size_t rfi_cpu_weight_item(const rfi_spec *spec, const rfi_cpu_kernel *kernel) {
    return rfi_cpu_in_terms(spec, kernel) ? RFI_CPU_TERMS * sizeof(uint16_t) : rfi_dtype_size(spec->weight_dtype);
}

/* Elements from one column of a narrow layer's chunk of `depth` inputs to the next. The chunk starting at input k
 * begins at element k * out_features. */
static inline int64_t rfi_cpu_narrow_ld(const rfi_cpu_kernel *kernel, int64_t depth) {
    return round_up(depth, kernel->lanes);
}

rf_status rfi_cpu_prepare(
    const rfi_cpu_kernel *kernel, const rfi_spec *spec, const rfi_weight_view *weights, void **prepared, size_t *bytes);
void rfi_cpu_release(void *prepared);
rf_status rfi_cpu_update(
    const rfi_spec *spec, const rfi_weight_view *weights, int keep_form, void *prepared, size_t *bytes);

/* Element at which unit `unit`'s chunk starting at input k begins in the packed weights. Panels follow each other,
 * depth * panel elements apart. */
int64_t rfi_cpu_chunk_offset(const rfi_cpu_prepared *prepared, int64_t unit, int64_t k);

/* The number of the panel that begins at `column`, in the chunk that begins at input k. */
static inline int64_t rfi_cpu_panel_chunk(const rfi_cpu_prepared *prepared, int64_t column, int64_t k) {
    const int64_t chunks = ceil_div(prepared->depth, RFI_CPU_DEPTH);
    return column / prepared->kernel->panel * chunks + k / RFI_CPU_DEPTH;
}

#endif
