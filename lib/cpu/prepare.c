/* SPDX-License-Identifier: MIT */
/* Loading: packs W once, so that every forward streams it from end to end. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu/pool.h"
#include "cpu/prepared.h"
#include "dtype.h"
#include "error.h"
#include "sizes.h"

enum { HUGE_PAGE = 1 << 21 };

/* Without huge pages a stream of panels misses the TLB at every page. */
static void *allocate(size_t bytes) {
    void *block = NULL;
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : RFI_CPU_ALIGN;
    if (posix_memalign(&block, align, bytes ? bytes : 1)) return NULL;
#ifdef MADV_HUGEPAGE
    if (bytes >= HUGE_PAGE) madvise(block, bytes, MADV_HUGEPAGE); /* advice only: a refusal changes nothing but speed */
#endif
    return block;
}

int64_t rfi_cpu_chunk_offset(const rfi_cpu_prepared *p, int64_t unit, int64_t k) {
    int64_t first = unit * RFI_CPU_UNIT, width = least(p->padded - first, RFI_CPU_UNIT);
    return first * p->depth + k * width;
}

typedef struct pack_job {
    const rfi_cpu_prepared *prepared;
    const rfi_weight_view *weights;
    int64_t in_features, out_features;
    rf_dtype weight_dtype;
    size_t item, value; /* bytes of the weight type and of the compute type */
} pack_job;

/* (columns, depth) of W, rows ld apart, to (depth, panel); the columns that a last panel has too many are zero. A cache
 * line of each row at a time. */
#define PACK(name, type)                                                                                      \
    static void name(void *to, int64_t panel, const void *from, int64_t ld, int64_t columns, int64_t depth) { \
        const int64_t line = 64 / (int64_t)sizeof(type);                                                      \
        if (columns < panel) memset(to, 0, (size_t)(depth * panel) * sizeof(type));                           \
        for (int64_t k = 0; k < depth; k += line) {                                                           \
            int64_t count = least(line, depth - k);                                                           \
            for (int64_t j = 0; j < columns; j++) {                                                           \
                const type *restrict in = (const type *)from + j * ld + k;                                    \
                type *restrict out = (type *)to + k * panel + j;                                              \
                for (int64_t i = 0; i < count; i++) out[i * panel] = in[i];                                   \
            }                                                                                                 \
        }                                                                                                     \
    }
PACK(pack_16, uint16_t)
PACK(pack_32, uint32_t)
PACK(pack_64, uint64_t)
#undef PACK

/* The same to (depth / 2, panel) pairs. Returns the least exponent. */
static int pack_pairs(uint32_t *to, int64_t panel, const uint16_t *from, int64_t ld, int64_t columns, int64_t depth) {
    const int64_t line = 64 / (int64_t)sizeof *from;
    uint16_t smallest = 0xffff;
    if (columns < panel) memset(to, 0, (size_t)(round_up(depth, 2) * panel) * sizeof *from);
    for (int64_t k = 0; k < depth; k += line) {
        const int64_t count = least(line, depth - k);
        for (int64_t j = 0; j < columns; j++) {
            const uint16_t *restrict in = from + j * ld + k;
            uint32_t *restrict out = to + k / 2 * panel + j;
            for (int64_t i = 0; i < count; i++) {
                const uint16_t magnitude = (uint16_t)((in[i] & 0x7fff) - 1);
                if (magnitude < smallest) smallest = magnitude;
            }
            for (int64_t i = 0; i + 1 < count; i += 2) out[i / 2 * panel] = (uint32_t)in[i] << 16 | in[i + 1];
            if (count % 2) out[count / 2 * panel] = (uint32_t)in[count - 1] << 16;
        }
    }
    return rfi_cpu_least_exponent(smallest);
}

/* The same to terms, or, where not all have any, to (depth, panel) values, with a range that has none. */
static rfi_cpu_range pack_terms(
    const rfi_cpu_terms *terms, void *to, const void *from, int64_t ld, int64_t columns, int64_t depth) {
    enum { PANEL = RFI_CPU_TILE_PANEL, STEP = RFI_CPU_TILE_DEPTH };
    float values[STEP * PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
    rfi_cpu_seen seen[PANEL];
    rfi_cpu_range all = {.least = RFI_CPU_ALL_ZERO};
    for (int j = 0; j < PANEL; j++) seen[j] = (rfi_cpu_seen){UINT32_MAX, 0, 0};
    for (int64_t k = 0; k < depth; k += STEP) {
        const int64_t count = least(STEP, depth - k);
        pack_32(values, PANEL, (const float *)from + k, ld, columns, count);
        terms->split_panel((uint32_t *)to + k / 2 * PANEL, round_up(depth, 2) / 2 * PANEL, values, count, seen);
    }
    for (int j = 0; j < PANEL; j++) {
        const rfi_cpu_range of_column = rfi_cpu_range_of(seen[j]);
        if (of_column.least < all.least) all.least = of_column.least;
        if (of_column.greatest > all.greatest) all.greatest = of_column.greatest;
        all.alone |= of_column.alone;
    }
    if (rfi_cpu_has_terms(all)) return all;
    pack_32(to, PANEL, from, ld, columns, depth);
    return (rfi_cpu_range){.least = 0};
}

/* One panel, all its chunks. */
static void pack_panel(void *context, int64_t task, int slot) {
    const pack_job *job = context;
    const rfi_cpu_prepared *p = job->prepared;
    int64_t panel = p->kernel->panel, first = task * panel, columns = least(job->out_features - first, panel);
    int64_t unit = first / RFI_CPU_UNIT, place = first % RFI_CPU_UNIT;
    (void)slot;
    for (int64_t k = 0; k < job->in_features; k += RFI_CPU_DEPTH) {
        int64_t depth = least(job->in_features - k, RFI_CPU_DEPTH), packed = least(p->depth - k, RFI_CPU_DEPTH);
        char *to = (char *)p->weight + (size_t)(rfi_cpu_chunk_offset(p, unit, k) + place * packed) * p->item;
        const char *from = (const char *)job->weights->weight + (size_t)(first * job->weights->ld + k) * job->item;
        if (p->pairs) {
            p->least[rfi_cpu_panel_chunk(p, first, k)] =
                (uint8_t)pack_pairs((void *)to, panel, (const void *)from, job->weights->ld, columns, depth);
            continue;
        }
        if (p->terms) {
            p->ranges[rfi_cpu_panel_chunk(p, first, k)] =
                pack_terms(p->terms, to, from, job->weights->ld, columns, depth);
            continue;
        }
        void (*pack)(void *, int64_t, const void *, int64_t, int64_t, int64_t) = job->item == 2 ? pack_16
            : job->item == 4                                                                    ? pack_32
                                                                                                : pack_64;
        pack(to, panel, from, job->weights->ld, columns, depth);
    }
}

/* One column of a narrow layer, all its chunks. */
static void pack_column(void *context, int64_t column, int slot) {
    const pack_job *job = context;
    const rfi_cpu_prepared *p = job->prepared;
    (void)slot;
    for (int64_t k = 0; k < job->in_features; k += RFI_CPU_DEPTH) {
        int64_t depth = least(job->in_features - k, RFI_CPU_DEPTH), ld = rfi_cpu_narrow_ld(p->kernel, depth);
        char *to = (char *)p->weight + (size_t)(k * job->out_features + column * ld) * job->value;
        const char *from = (const char *)job->weights->weight + (size_t)(column * job->weights->ld + k) * job->item;
        p->kernel->widen(to, from, job->weight_dtype, depth);
        memset(to + (size_t)depth * job->value, 0, (size_t)(ld - depth) * job->value);
    }
}

/* Bias and vectors, the padding zero. Returns where the next one goes. */
static char *copy_columns(char *to, const void *from, int64_t n, int64_t padded, size_t item) {
    memcpy(to, from, (size_t)n * item);
    memset(to + (size_t)n * item, 0, (size_t)(padded - n) * item);
    return to + (size_t)padded * item;
}

void rfi_cpu_release(void *prepared) {
    rfi_cpu_prepared *p = prepared;
    if (!p) return;
    free(p->weight);
    free(p->columns);
    free(p->least);
    free(p->ranges);
    rfi_collapse_release(&p->collapse);
    free(p);
}

static void fill(rfi_cpu_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, int64_t out_features) {
    const rfi_plan *plan = &spec->plan;
    const size_t value = rfi_dtype_size(spec->compute_dtype);
    char *next = p->columns;
    p->bias = next;
    next = copy_columns(next, weights->bias, out_features, p->padded, value);
    for (int v = 0; v < plan->num_vectors; v++) {
        p->vectors[v] = next;
        next = copy_columns(next, weights->vectors[v], out_features, p->padded, value);
    }
    pack_job job = {
        .prepared = p,
        .weights = weights,
        .in_features = plan->in_features,
        .out_features = out_features,
        .weight_dtype = spec->weight_dtype,
        .item = rfi_dtype_size(spec->weight_dtype),
        .value = value,
    };
    if (rfi_cpu_is_narrow(spec, p->kernel)) rfi_pool_run(spec->threads, out_features, pack_column, &job);
    else rfi_pool_run(spec->threads, p->padded / p->kernel->panel, pack_panel, &job);
}

static size_t collapse_bytes(const rfi_cpu_prepared *p, const rfi_spec *spec) {
    return p->collapse.usable ? (size_t)spec->plan.in_features * (sizeof(double) + 1) : 0;
}

rf_status rfi_cpu_update(
    const rfi_spec *spec, const rfi_weight_view *weights, int keep_form, void *prepared, size_t *bytes) {
    rfi_cpu_prepared *p = prepared;
    (void)keep_form; /* W has one form here, whatever its values */
    if (spec->plan.collapsible) {
        rfi_collapse next;
        rf_status status = rfi_collapse_prepare(&spec->plan, weights, spec->weight_dtype, spec->compute_dtype, &next);
        if (status) return status;
        *bytes -= collapse_bytes(p, spec);
        rfi_collapse_release(&p->collapse);
        p->collapse = next;
        *bytes += collapse_bytes(p, spec);
    }
    fill(p, spec, weights, spec->plan.out_features);
    return RF_OK;
}

rf_status rfi_cpu_prepare(const rfi_cpu_kernel *kernel, const rfi_spec *spec, const rfi_weight_view *weights,
    void **prepared, size_t *bytes) {
    const rfi_plan *plan = &spec->plan;
    const rfi_cpu_pairs *pairs = rfi_cpu_pairs_of(spec, kernel);
    const int narrow = rfi_cpu_is_narrow(spec, kernel), terms = rfi_cpu_in_terms(spec, kernel);
    int64_t n = plan->out_features, k = plan->in_features, padded, weight_bytes, column_bytes;
    size_t value = rfi_dtype_size(spec->compute_dtype), item = rfi_cpu_weight_item(spec, kernel);
    if (n > INT64_MAX - RFI_CPU_UNIT || k > INT64_MAX - RFI_CPU_DEPTH || (padded = round_up(n, kernel->panel)) < n ||
        __builtin_mul_overflow(narrow ? n : padded,
            narrow               ? rfi_cpu_narrow_ld(kernel, k)
                : pairs || terms ? round_up(k, 2)
                                 : k,
            &weight_bytes) ||
        __builtin_mul_overflow(weight_bytes, (int64_t)(narrow ? value : item), &weight_bytes) ||
        __builtin_mul_overflow(padded, (1 + plan->num_vectors) * (int64_t)value, &column_bytes))
        return rfi_error(RF_OUT_OF_MEMORY, "%lld x %lld weights are more than memory can hold", (long long)n,
            (long long)plan->in_features);
    const size_t panel_chunks = (size_t)(padded / kernel->panel * ceil_div(k, RFI_CPU_DEPTH)),
                 least_bytes = pairs ? panel_chunks : 0,
                 ranges_bytes = terms ? panel_chunks * sizeof(rfi_cpu_range) : 0;
    rfi_cpu_prepared *p = calloc(1, sizeof *p);
    if (p) {
        p->weight = allocate((size_t)weight_bytes);
        p->columns = allocate((size_t)column_bytes);
        p->least = malloc(least_bytes + 1); /* never NULL for being empty */
        p->ranges = malloc(ranges_bytes + 1);
    }
    if (!p || !p->weight || !p->columns || !p->least || !p->ranges) {
        rfi_cpu_release(p);
        return rfi_error(RF_OUT_OF_MEMORY, "no memory for %lld bytes of packed weights", (long long)weight_bytes);
    }
    if (plan->collapsible) {
        rf_status status = rfi_collapse_prepare(plan, weights, spec->weight_dtype, spec->compute_dtype, &p->collapse);
        if (status) {
            rfi_cpu_release(p);
            return status;
        }
    }
    p->kernel = kernel;
    p->pairs = pairs;
    p->terms = terms ? kernel->terms : NULL;
    p->item = item;
    p->padded = padded;
    p->depth = pairs || terms ? round_up(k, 2) : k;
    fill(p, spec, weights, n);
    *prepared = p;
    *bytes =
        sizeof *p + (size_t)weight_bytes + (size_t)column_bytes + least_bytes + ranges_bytes + collapse_bytes(p, spec);
    return RF_OK;
}
