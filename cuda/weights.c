/* Loading: brings the weights to the device, in the form that the model's products are computed from. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "dtype.h"
#include "error.h"
#include "prepared.h"

enum {
    SLICE_BYTES = 64 << 20, /* of host weights on the device at a time, while they are brought to terms */
    ALIGN = 16,             /* bytes that kernels read at once */
    DEPTH_ALIGN = 64        /* values: a row of terms ends on whole stages of the kernels */
};

static int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

void rfi_cuda_release(void *state) {
    rfi_cuda_prepared *p = state;
    if (!p) return;
    int before;
    if (rfi_cuda_enter(p->device, &before) == RF_OK) {
        if (p->weight) cudaFree(p->weight);
        if (p->columns) cudaFree(p->columns);
        if (p->sums) cudaFree(p->sums);
        cudaGetLastError(); /* a device that failed earlier fails here too: the caller has been told then */
        rfi_cuda_leave(before);
    }
    if (p->pool) rfi_cuda_leave_pool(p->device);
    free(p);
}

static rf_status copy_columns(
    rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, size_t *bytes) {
    const rfi_plan *plan = &spec->plan;
    size_t row = (size_t)plan->out_features * rfi_dtype_size(spec->compute_dtype),
           total = row * (size_t)(1 + plan->num_vectors);
    rf_status status = rfi_cuda_status(cudaMalloc(&p->columns, total), "memory for the bias and the vectors");
    if (status || !total) return status;
    p->vectors = (char *)p->columns + row;
    status = rfi_cuda_status(
        cudaMemcpyAsync(p->columns, weights->bias, row, cudaMemcpyHostToDevice, weights->stream), "copying the bias");
    for (int v = 0; v < plan->num_vectors && !status; v++)
        status = rfi_cuda_status(cudaMemcpyAsync((char *)p->vectors + (size_t)v * row, weights->vectors[v], row,
                                     cudaMemcpyHostToDevice, weights->stream),
            "copying a vector");
    *bytes += total;
    return status;
}

/* The panels of the blocks that W is best kept in, 0 for rows. A collapsed sum needs W for rows close to overflow only,
 * and reads rows. */
static int plan_panel(const rfi_cuda_prepared *p, const rfi_spec *spec) {
    const rfi_cuda_problem problem = rfi_cuda_problem_of(spec, p, 1, spec->x_dtype);
    return p->collapsed ? 0 : rfi_cuda_weight_panel(&problem, &p->figures, p->forced);
}

/* Device memory of one preparation: part of W as stored (host weights only), and what is found out about W. */
typedef struct scratch {
    char *block;
    void *slice;
    rfi_cuda_findings *findings;
    unsigned *lost; /* behind the findings */
    int64_t rows;   /* of W at a time */
} scratch;

static rf_status take_scratch(scratch *s, const rfi_spec *spec, const rfi_weight_view *weights, int panel) {
    int64_t row = spec->plan.in_features * (int64_t)rfi_dtype_size(spec->weight_dtype), n = spec->plan.out_features;
    const int64_t whole = panel ? RFI_BLOCK_ROWS : 1; /* rows that stay together */
    s->rows = weights->memory == RF_MEMORY_DEVICE ? n : SLICE_BYTES / row / whole * whole;
    if (s->rows < whole) s->rows = whole;
    if (s->rows > n) s->rows = n;
    size_t slice = weights->memory == RF_MEMORY_DEVICE ? 0 : (size_t)(s->rows * row),
           found = 256 + (size_t)spec->plan.in_features * sizeof *s->lost;
    slice = (slice + 255) / 256 * 256;
    rf_status status = rfi_cuda_status(cudaMalloc((void **)&s->block, slice + found), "memory to prepare the weights");
    if (status) return status;
    s->slice = s->block;
    s->findings = (rfi_cuda_findings *)(s->block + slice);
    s->lost = (unsigned *)(s->block + slice + 256);
    return rfi_cuda_status(
        cudaMemsetAsync(s->findings, 0, found, weights->stream), "clearing what is found out about the weights");
}

/* Rows of W on the device: what a step of the preparation works on. */
typedef struct slice {
    const void *data;
    int64_t first, rows, ld;
} slice;

/* The rows from `first` on that there is room for, host weights copied. */
static rf_status next_slice(
    slice *s, int64_t first, const rfi_spec *spec, const rfi_weight_view *weights, const scratch *scratch) {
    const rfi_plan *plan = &spec->plan;
    size_t item = rfi_dtype_size(spec->weight_dtype), width = (size_t)plan->in_features * item;
    int64_t left = plan->out_features - first;
    *s = (slice){(const char *)weights->weight + (size_t)(first * weights->ld) * item, first,
        left < scratch->rows ? left : scratch->rows, weights->ld};
    if (weights->memory == RF_MEMORY_DEVICE) return RF_OK;
    const void *from = s->data;
    s->data = scratch->slice;
    s->ld = plan->in_features;
    return rfi_cuda_status(cudaMemcpy2DAsync(scratch->slice, width, from, (size_t)weights->ld * item, width,
                               (size_t)s->rows, cudaMemcpyHostToDevice, weights->stream),
        "copying the weights");
}

/* How far from W's first value row `first` begins: of blocks, the one in the first panel. */
static size_t place_of(const rfi_cuda_rows *w, int64_t first) {
    return (size_t)(w->panel ? first / RFI_BLOCK_ROWS * rfi_block_values(w->panel) : first * w->ld);
}

/* Columns of all panels: hopper_small takes two at a time. */
static int64_t panel_depth(const rfi_plan *plan, int panel) { return round_up(plan->in_features, 2 * panel); }

/* Makes W's place, `terms` of 16-bit values: rows or blocks. */
static rf_status take_place(rfi_cuda_prepared *p, const rfi_plan *plan, int terms, rf_dtype dtype, size_t others,
    const rfi_weight_view *weights, size_t *bytes) {
    const int panel = p->w.panel;
    const int64_t depth = panel ? panel_depth(plan, panel) : round_up(plan->in_features, DEPTH_ALIGN),
                  rows = panel ? round_up(plan->out_features, RFI_BLOCK_ROWS) : plan->out_features;
    const size_t term = (size_t)(depth * rows * 2), total = term * (size_t)terms;
    rf_status status = rfi_cuda_status(cudaMalloc(&p->weight, total + others), "memory for the weights");
    if (status) return status;
    const size_t apart = panel ? (size_t)(RFI_BLOCK_ROWS * panel * 2) : term; /* bytes from a term to the next */
    p->w = (rfi_cuda_rows){
        .data = p->weight,
        .low = terms > 1 ? (char *)p->weight + apart : NULL,
        .least = terms > 2 ? (char *)p->weight + 2 * apart : NULL,
        .scale = others ? (const float *)((char *)p->weight + total) : NULL,
        .ld = panel ? rows : depth,
        .dtype = dtype,
        .panel = panel,
    };
    *bytes += total + others;
    /* Rows behind the last are read, though nothing comes of it. */
    return rows > plan->out_features
        ? rfi_cuda_status(cudaMemsetAsync(p->weight, 0, total, weights->stream), "clearing the weights' memory")
        : RF_OK;
}

/* 16-bit values to blocks. */
static rf_status keep_blocks(
    rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, size_t *bytes) {
    const rfi_plan *plan = &spec->plan;
    scratch s = {0};
    rf_status status = take_place(p, plan, 1, spec->weight_dtype, 0, weights, bytes);
    if (!status) status = take_scratch(&s, spec, weights, p->w.panel);
    slice part;
    for (int64_t first = 0; first < plan->out_features && !status; first += s.rows) {
        status = next_slice(&part, first, spec, weights, &s);
        const rfi_cuda_pack pack = {
            .from = part.data,
            .to = (uint16_t *)p->weight + place_of(&p->w, first),
            .rows = part.rows,
            .columns = plan->in_features,
            .ld_from = part.ld,
            .depth = panel_depth(plan, p->w.panel),
            .panel_rows = p->w.ld,
            .panel = p->w.panel,
        };
        if (!status) status = rfi_cuda_status(rfi_cuda_launch_pack(&pack, weights->stream), "copying the weights");
    }
    rf_status drained = rfi_cuda_status(cudaStreamSynchronize(weights->stream), "copying the weights");
    if (s.block) cudaFree(s.block);
    return status ? status : drained;
}

/* W as it is stored: borrowed where rows are whole 16-byte pieces at aligned addresses, else copied to such rows, or to
 * blocks. */
static rf_status keep_stored(
    rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, size_t *bytes) {
    const rfi_plan *plan = &spec->plan;
    int64_t item = (int64_t)rfi_dtype_size(spec->weight_dtype);
    p->w = (rfi_cuda_rows){.dtype = spec->weight_dtype};
    if (weights->borrow && weights->memory == RF_MEMORY_DEVICE && (uintptr_t)weights->weight % ALIGN == 0 &&
        weights->ld * item % ALIGN == 0 && plan->in_features * item % ALIGN == 0) {
        p->w.data = weights->weight;
        p->w.ld = weights->ld;
        return RF_OK;
    }
    p->w.panel = plan_panel(p, spec);
    if (p->w.panel) return keep_blocks(p, spec, weights, bytes);
    p->w.ld = round_up(plan->in_features, ALIGN / item);
    size_t pitch = (size_t)(p->w.ld * item), width = (size_t)(plan->in_features * item),
           total = pitch * (size_t)plan->out_features;
    if (!total) return RF_OK;
    rf_status status = rfi_cuda_status(cudaMalloc(&p->weight, total), "memory for the weights");
    if (!status && pitch != width)
        status = rfi_cuda_status(cudaMemsetAsync(p->weight, 0, total, weights->stream), "clearing the weights' memory");
    if (!status)
        status = rfi_cuda_status(cudaMemcpy2DAsync(p->weight, pitch, weights->weight, (size_t)(weights->ld * item),
                                     width, (size_t)plan->out_features, cudaMemcpyDefault, weights->stream),
            "copying the weights");
    p->w.data = p->weight;
    *bytes += total;
    return status;
}

static rf_status split_slices(
    rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, const scratch *s) {
    const rfi_plan *plan = &spec->plan;
    rf_status status = RF_OK;
    slice part;
    for (int64_t first = 0; first < plan->out_features && !status; first += s->rows) {
        status = next_slice(&part, first, spec, weights, s);
        const size_t place = place_of(&p->w, first);
        const rfi_cuda_split split = {
            .data = part.data,
            .rows = part.rows,
            .columns = plan->in_features,
            .ld = part.ld,
            .dtype = spec->weight_dtype,
            .terms = p->w_terms,
            .term_dtype = p->w.dtype,
            .high = (uint16_t *)p->w.data + place,
            .low = p->w.low ? (uint16_t *)p->w.low + place : NULL,
            .least = p->w.least ? (uint16_t *)p->w.least + place : NULL,
            .ld_terms = p->w.ld,
            .depth = p->w.panel ? panel_depth(plan, p->w.panel) : p->w.ld,
            .panel = p->w.panel,
            .panel_rows = p->w.ld,
            .scale = (float *)p->w.scale + first,
        };
        if (!status) status = rfi_cuda_status(rfi_cuda_launch_split(&split, weights->stream), "preparing the weights");
    }
    return status;
}

/* W in terms. */
static rf_status keep_terms(rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, size_t *bytes) {
    scratch s = {0};
    p->w.panel = plan_panel(p, spec);
    rf_status status = take_place(p, &spec->plan, p->w_terms, p->w_terms == 3 ? RF_BFLOAT16 : RF_FLOAT16,
        (size_t)spec->plan.out_features * sizeof(float), weights, bytes);
    if (!status) status = take_scratch(&s, spec, weights, p->w.panel);
    if (!status) status = split_slices(p, spec, weights, &s);
    if (!status) status = rfi_cuda_status(cudaStreamSynchronize(weights->stream), "preparing the weights");
    if (s.block) cudaFree(s.block);
    return status;
}

/* Counts what W is like, for `terms` of binary16. *lost: the most rows that would lose the value of one and the same
 * column. */
static rf_status count_findings(const rfi_spec *spec, const rfi_weight_view *weights, int terms, const scratch *s,
    rfi_cuda_findings *findings, unsigned *lost) {
    const rfi_plan *plan = &spec->plan;
    const size_t columns = (size_t)plan->in_features;
    unsigned *counts = malloc(columns * sizeof *counts);
    if (!counts) return rfi_error(RF_OUT_OF_MEMORY, "no memory for %zu counts of the weights' columns", columns);
    rf_status status = RF_OK;
    slice part;
    for (int64_t first = 0; first < plan->out_features && !status; first += s->rows) {
        status = next_slice(&part, first, spec, weights, s);
        const rfi_cuda_survey survey = {
            part.data, part.rows, plan->in_features, part.ld, spec->weight_dtype, terms, s->findings, s->lost};
        if (!status)
            status = rfi_cuda_status(rfi_cuda_launch_survey(&survey, weights->stream), "looking at the weights");
    }
    if (!status)
        status = rfi_cuda_status(
            cudaMemcpyAsync(findings, s->findings, sizeof *findings, cudaMemcpyDeviceToHost, weights->stream),
            "reading what was found");
    if (!status)
        status = rfi_cuda_status(
            cudaMemcpyAsync(counts, s->lost, columns * sizeof *counts, cudaMemcpyDeviceToHost, weights->stream),
            "reading what was found");
    rf_status drained = rfi_cuda_status(cudaStreamSynchronize(weights->stream), "looking at the weights");
    *lost = 0;
    for (size_t i = 0; i < columns && !status && !drained; i++)
        if (counts[i] > *lost) *lost = counts[i];
    free(counts);
    return status ? status : drained;
}

enum {
    LENIENT_DEPTH = 512
}; /* with fewer columns no value of x is lost: there are not enough others that one could do without */

/* In which terms W is kept, by its values: see doc/kernels/accuracy.md. */
static rf_status choose_terms(rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights) {
    const rfi_plan *plan = &spec->plan;
    p->w_terms = rfi_cuda_weight_terms(spec->weight_dtype, spec->math, plan->in_features);
    const int sixteen = spec->weight_dtype == RF_FLOAT16 || spec->weight_dtype == RF_BFLOAT16;
    if (!p->w_terms && (!sixteen || !plan->in_features)) return RF_OK;
    scratch s = {0};
    unsigned lost = 0;
    rf_status status = take_scratch(&s, spec, weights, 0);
    if (!status) status = count_findings(spec, weights, p->w_terms ? p->w_terms : 1, &s, &p->findings, &lost);
    if (s.block) cudaFree(s.block);
    if (status) return status;
    p->strict = plan->in_features < LENIENT_DEPTH || p->findings.concentrated;
    if (!p->w_terms) p->w_nonfinite = p->findings.nonfinite > 0;
    else if (p->findings.infinite) p->w_terms = 0;
    else if (p->findings.wide || (int64_t)lost * 64 > plan->out_features) p->w_terms = 3;
    return RF_OK;
}

static rf_status keep_weights(
    rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, size_t *bytes) {
    p->w_terms = 0;
    rf_status status = spec->plan.out_features && !p->collapsed ? choose_terms(p, spec, weights) : RF_OK;
    if (status) return status;
    return p->w_terms ? keep_terms(p, spec, weights, bytes) : keep_stored(p, spec, weights, bytes);
}

static rfi_cuda_op op_of(rf_op_kind kind) {
    switch ((int)kind) {
#define RFI_OP(id, number, name, params, flags, formula, doc) \
    case number: return RFI_CUDA_OP_##id;
#include "ops.def"
#undef RFI_OP
    }
    return RFI_CUDA_OP_SAVE; /* the plan has elementwise operators alone; this one changes nothing */
}

static void fill_chain(rfi_cuda_chain *chain, const rfi_plan *plan) {
    const rfi_steps *pre = &plan->trunk, *post = &plan->branches[0].post;
    chain->num_pre = pre->count;
    chain->num_post = post->count;
    chain->num_affine = rfi_cuda_affine_steps(pre->at, pre->count, chain->affine);
    for (int i = 0; i < chain->num_affine; i++) chain->affine_saves |= chain->affine[i].saves;
    chain->reduction = plan->branches[0].reduction;
    for (int i = 0; i < pre->count + post->count; i++) {
        const rfi_step *step = i < pre->count ? &pre->at[i] : &post->at[i - pre->count];
        chain->steps[i] = (rfi_cuda_step){
            .op = (int8_t)op_of(step->kind),
            .kind = (int16_t)step->kind,
            .vector = (int16_t)step->vector,
            .a32 = (float)step->a,
            .b32 = (float)step->b,
            .a64 = step->a,
            .b64 = step->b,
        };
    }
}

static rf_status choose_kernel(rfi_cuda_prepared *p) {
    const char *name = getenv("ROWFOLD_CUDA_KERNEL");
    p->forced = -1;
    if (!name || !*name) return RF_OK;
    p->forced = rfi_cuda_kernel_find(name);
    return p->forced < 0 ? rfi_error(RF_INVALID_ARGUMENT,
                               "ROWFOLD_CUDA_KERNEL is \"%.40s\", which is no kernel of the CUDA backend", name)
                         : RF_OK;
}

static rf_status prepare_on_device(
    rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, size_t *bytes) {
    rf_status status = rfi_cuda_get_figures(p->device, &p->figures);
    if (!status) status = rfi_cuda_status(rfi_cuda_overlaps(&p->overlaps), "asking what the kernels are compiled for");
    if (!status) status = rfi_cuda_take_pool(p->device, &p->pool);
    if (!status) status = copy_columns(p, spec, weights, bytes);
    if (!status) status = rfi_cuda_collapse_prepare(p, spec, weights, bytes);
    if (!status) status = keep_weights(p, spec, weights, bytes);
    /* The caller's buffers are his again. */
    rf_status drained = rfi_cuda_status(cudaStreamSynchronize(weights->stream), "loading the weights");
    return status ? status : drained;
}

rf_status rfi_cuda_prepare(const rfi_spec *spec, const rfi_weight_view *weights, void **prepared, size_t *bytes) {
    rfi_cuda_prepared *p = calloc(1, sizeof *p);
    if (!p) return rfi_error(RF_OUT_OF_MEMORY, "no memory for a model's description");
    p->device = spec->device;
    fill_chain(&p->chain, &spec->plan);
    size_t held = sizeof *p;
    int before;
    rf_status status = choose_kernel(p);
    if (!status) status = rfi_cuda_enter(p->device, &before);
    if (status) {
        free(p);
        return status;
    }
    status = prepare_on_device(p, spec, weights, &held);
    if (status) rfi_cuda_release(p);
    rfi_cuda_leave(before);
    if (status) return status;
    *prepared = p;
    *bytes = held;
    return RF_OK;
}
