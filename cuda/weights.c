/* SPDX-License-Identifier: MIT */
/* Loading: brings the weights to the device, in the form that the model's products are computed from. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "dtype.h"
#include "error.h"
#include "layout.h"
#include "sizes.h"
#include "terms.h"

enum {
    SMALL_BYTES = 4 << 20,  /* of them that the pool may have, and keep */
    SLICE_BYTES = 64 << 20, /* of host weights on the device at a time, while they are brought to terms */
    ALIGN = 16,             /* bytes that kernels read at once */
    DEPTH_ALIGN = 64        /* values: a row of terms ends on whole stages of the kernels */
};

void rfi_cuda_release(void *state) {
    rfi_cuda_prepared *p = state;
    if (!p) return;
    int before;
    const int entered = rfi_cuda_enter(p->device, &before) == RF_OK;
    if (p->weight) cudaFree(p->weight); /* memory knows its device, whichever is the current one */
    if (p->columns) cudaFree(p->columns);
    if (p->sums) cudaFree(p->sums);
    cudaGetLastError(); /* a device that failed earlier fails here too: the caller has been told then */
    if (entered) rfi_cuda_leave(before);
    if (p->pool) rfi_cuda_leave_pool(p->device);
    rfi_cuda_layouts_destroy(p->layouts);
    free(p->programs);
    free(p);
}

/* One of them: from the host in the compute type, from the device in any. */
static rf_status place_column(
    void *to, const void *host, const rfi_device_column *device, const rfi_spec *spec, cudaStream_t stream) {
    const int64_t n = spec->plan.out_features;
    const size_t row = (size_t)n * rfi_dtype_size(spec->compute_dtype);
    if (!device || !device->data)
        return rfi_cuda_status(cudaMemcpyAsync(to, host, row, cudaMemcpyHostToDevice, stream), "copying a vector");
    if (device->dtype == spec->compute_dtype)
        return rfi_cuda_status(
            cudaMemcpyAsync(to, device->data, row, cudaMemcpyDeviceToDevice, stream), "copying a vector");
    const rfi_cuda_convert convert = {device->data, to, n, 1, device->dtype, spec->compute_dtype};
    return rfi_cuda_status(rfi_cuda_launch_convert(&convert, stream), "converting a vector");
}

/* Flags of the columns of W, behind the vectors. */
static size_t thin_bytes(const rfi_spec *spec) {
    return spec->compute_dtype == RF_FLOAT64 ? 0 : (size_t)spec->plan.in_features;
}

static uint8_t *thin_place(const rfi_cuda_prepared *p, const rfi_spec *spec) {
    return (uint8_t *)p->columns + p->columns_bytes - thin_bytes(spec);
}

static rf_status place_columns(rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights) {
    const rfi_plan *plan = &spec->plan;
    const size_t row = (size_t)plan->out_features * rfi_dtype_size(spec->compute_dtype),
                 total = row * (size_t)(1 + plan->num_vectors) + thin_bytes(spec);
    if (!row) return RF_OK;
    if (!p->columns) {
        rf_status status = rfi_cuda_status(cudaMalloc(&p->columns, total), "memory for the bias and the vectors");
        if (status) return status;
        p->columns_bytes = total;
    }
    const rfi_device_column *on_device = weights->on_device;
    p->vectors = (char *)p->columns + row;
    rf_status status = weights->has_bias
        ? place_column(p->columns, weights->bias, on_device, spec, weights->stream)
        : rfi_cuda_status(cudaMemsetAsync(p->columns, 0, row, weights->stream), "clearing the bias");
    for (int v = 0; v < plan->num_vectors && !status; v++)
        status = place_column((char *)p->vectors + (size_t)v * row, weights->vectors[v],
            on_device ? &on_device[1 + v] : NULL, spec, weights->stream);
    return status;
}

/* The panels of the blocks that W is best kept in, 0 for rows. A collapsed sum needs W for rows close to overflow only,
 * and reads rows. */
static int plan_panel(const rfi_cuda_prepared *p, const rfi_spec *spec) {
    rfi_cuda_problem problem = rfi_cuda_problem_of(spec, p, rfi_cuda_hardest_pass(&p->passes), 1, spec->x_dtype);
    problem.w_panel = 0; /* that of weights which are replaced does not count */
    return p->collapsed ? 0 : rfi_cuda_weight_panel(&problem, &p->figures, p->forced);
}

/* Device memory of one preparation: part of W as stored (host weights only), and what is found out about W. */
typedef struct scratch {
    char *block;
    void *slice;
    rfi_cuda_findings *findings;
    unsigned *lost; /* behind the findings */
    int64_t rows;   /* of W at a time */
    int from_pool;  /* in the order of the stream, which waits for nothing */
} scratch;

static void leave_scratch(scratch *s, const rfi_weight_view *weights) {
    if (!s->block) return;
    cudaError_t error = s->from_pool ? cudaFreeAsync(s->block, weights->stream) : cudaFree(s->block);
    if (error) cudaGetLastError(); /* of a device that failed: what waits for the stream reports it */
}

static rf_status take_scratch(scratch *s, const rfi_cuda_prepared *p, const rfi_spec *spec,
    const rfi_weight_view *weights, int panel, int surveys) {
    int64_t row = spec->plan.in_features * (int64_t)rfi_dtype_size(spec->weight_dtype), n = spec->plan.out_features;
    const int64_t whole = panel ? RFI_BLOCK_ROWS : 1; /* rows that stay together */
    s->rows = weights->memory == RF_MEMORY_DEVICE ? n : SLICE_BYTES / row / whole * whole;
    if (s->rows < whole) s->rows = whole;
    if (s->rows > n) s->rows = n;
    size_t slice = weights->memory == RF_MEMORY_DEVICE ? 0 : (size_t)(s->rows * row),
           found = surveys ? 256 + (size_t)spec->plan.in_features * sizeof *s->lost : 0;
    slice = (slice + 255) / 256 * 256;
    if (!(slice + found)) return RF_OK;
    /* What the pool has had it keeps: it is not for large slices. */
    s->from_pool = weights->memory == RF_MEMORY_DEVICE || slice + found <= SMALL_BYTES;
    rf_status status = rfi_cuda_status(s->from_pool
            ? cudaMallocFromPoolAsync((void **)&s->block, slice + found, p->pool, weights->stream)
            : cudaMalloc((void **)&s->block, slice + found),
        "memory to prepare the weights");
    s->slice = s->block;
    if (status || !surveys) return status;
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

/* Columns of all panels. */
static int64_t panel_depth(const rfi_cuda_prepared *p, const rfi_spec *spec) {
    return rfi_panel_depth(p->w.panel, rfi_cuda_depth(p, spec));
}

/* W's place, owned: the one that is there if it has the size, for of one size there is one form; else a new one,
 * *fresh. */
static rf_status own_place(rfi_cuda_prepared *p, size_t bytes, int *fresh) {
    *fresh = !p->weight || p->weight_bytes != bytes;
    if (!*fresh) return RF_OK;
    p->weight = NULL;
    rf_status status = rfi_cuda_status(cudaMalloc(&p->weight, bytes), "memory for the weights");
    p->weight_bytes = status ? 0 : bytes;
    return status;
}

/* Makes W's place, `terms` of 16-bit values: rows or blocks, of `scaled` ones their scales, and the verdicts. */
static rf_status take_place(
    rfi_cuda_prepared *p, const rfi_spec *spec, int terms, rf_dtype dtype, int scaled, const rfi_weight_view *weights) {
    const rfi_plan *plan = &spec->plan;
    const int panel = p->w.panel;
    const int64_t depth = panel ? panel_depth(p, spec) : round_up(rfi_cuda_depth(p, spec), DEPTH_ALIGN),
                  rows = panel ? round_up(plan->out_features, RFI_BLOCK_ROWS) : plan->out_features;
    rfi_cuda_verdicts *const verdicts = &p->verdicts;
    const size_t term = (size_t)(depth * rows * 2), total = term * (size_t)terms,
                 scales = scaled ? (size_t)round_up(plan->out_features * (int64_t)sizeof(float), ALIGN) : 0,
                 used = verdicts->columns ? ALIGN : 0,
                 rest = (size_t)(plan->out_features * rfi_cuda_rest_bytes(p, spec));
    int fresh;
    rf_status status = own_place(p, total + scales + used + verdicts->room * sizeof *verdicts->at + rest, &fresh);
    if (status) return status;
    if (used) {
        verdicts->used = (unsigned long long *)((char *)p->weight + total + scales);
        verdicts->at = (rfi_cuda_infinity *)((char *)p->weight + total + scales + used);
    }
    const size_t apart = panel ? (size_t)(RFI_BLOCK_ROWS * panel * 2) : term; /* bytes from a term to the next */
    p->w = (rfi_cuda_rows){
        .data = p->weight,
        .low = terms > 1 ? (char *)p->weight + apart : NULL,
        .least = terms > 2 ? (char *)p->weight + 2 * apart : NULL,
        .scale = scaled ? (const float *)((char *)p->weight + total) : NULL,
        .rest = rest ? (const uint8_t *)p->weight + total + scales : NULL, /* and then there are no verdicts */
        .rest_ld = plan->out_features,
        .ld = panel ? rows : depth,
        .dtype = dtype,
        .panel = panel,
    };
    /* Rows behind the last are read, though nothing comes of it. */
    return fresh && rows > plan->out_features
        ? rfi_cuda_status(cudaMemsetAsync(p->weight, 0, total, weights->stream), "clearing the weights' memory")
        : RF_OK;
}

/* 16-bit values to blocks. */
static rf_status keep_blocks(rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights) {
    const rfi_plan *plan = &spec->plan;
    scratch s = {0};
    rf_status status = take_place(p, spec, 1, spec->weight_dtype, 0, weights);
    if (!status) status = take_scratch(&s, p, spec, weights, p->w.panel, 0);
    slice part;
    for (int64_t first = 0; first < plan->out_features && !status; first += s.rows) {
        status = next_slice(&part, first, spec, weights, &s);
        const rfi_cuda_pack pack = {
            .from = part.data,
            .to = (uint16_t *)p->weight + place_of(&p->w, first),
            .rows = part.rows,
            .columns = plan->in_features,
            .ld_from = part.ld,
            .depth = panel_depth(p, spec),
            .panel_rows = p->w.ld,
            .panel = p->w.panel,
        };
        if (!status) status = rfi_cuda_status(rfi_cuda_launch_pack(&pack, weights->stream), "copying the weights");
    }
    leave_scratch(&s, weights);
    return status;
}

/* W as it is stored: borrowed where rows are whole 16-byte pieces at aligned addresses, else copied to such rows, or to
 * blocks. */
static rf_status keep_stored(rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights) {
    const rfi_plan *plan = &spec->plan;
    int64_t item = (int64_t)rfi_dtype_size(spec->weight_dtype);
    p->w = (rfi_cuda_rows){.dtype = spec->weight_dtype};
    if (weights->borrow && !p->w_tf32 && weights->memory == RF_MEMORY_DEVICE &&
        (uintptr_t)weights->weight % ALIGN == 0 && weights->ld * item % ALIGN == 0 &&
        plan->in_features * item % ALIGN == 0) {
        p->w.data = weights->weight;
        p->w.ld = weights->ld;
        p->weight = NULL;
        p->weight_bytes = 0;
        return RF_OK;
    }
    p->w.panel = plan_panel(p, spec);
    if (p->w.panel) return keep_blocks(p, spec, weights);
    p->w.ld = round_up(plan->in_features, ALIGN / item);
    size_t pitch = (size_t)(p->w.ld * item), width = (size_t)(plan->in_features * item),
           total = pitch * (size_t)plan->out_features;
    if (!total) return RF_OK;
    int fresh;
    rf_status status = own_place(p, total, &fresh);
    if (!status && fresh && pitch != width)
        status = rfi_cuda_status(cudaMemsetAsync(p->weight, 0, total, weights->stream), "clearing the weights' memory");
    if (!status)
        status = rfi_cuda_status(cudaMemcpy2DAsync(p->weight, pitch, weights->weight, (size_t)(weights->ld * item),
                                     width, (size_t)plan->out_features, cudaMemcpyDefault, weights->stream),
            "copying the weights");
    p->w.data = p->weight;
    if (status || !p->w_tf32) return status;
    const rfi_cuda_split round = {
        .data = p->weight,
        .rows = plan->out_features,
        .columns = plan->in_features,
        .ld = p->w.ld,
        .dtype = RF_FLOAT32,
        .terms = 1,
        .term_dtype = RF_FLOAT32,
        .high = p->weight,
        .ld_terms = p->w.ld,
        .depth = plan->in_features,
    };
    return rfi_cuda_status(rfi_cuda_launch_split(&round, weights->stream), "rounding the weights");
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
            .depth = p->w.panel ? panel_depth(p, spec) : p->w.ld,
            .panel = p->w.panel,
            .panel_rows = p->w.ld,
            .w_several = p->w_several,
            .verdicts = p->verdicts,
            .scale = (float *)p->w.scale + first,
            .rest = p->w.rest ? (uint8_t *)p->w.rest + first : NULL,
            .rest_ld = p->w.rest_ld,
        };
        if (!status) status = rfi_cuda_status(rfi_cuda_launch_split(&split, weights->stream), "preparing the weights");
    }
    return status;
}

/* W in terms. */
static rf_status keep_terms(rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights) {
    scratch s = {0};
    p->w.panel = plan_panel(p, spec);
    rf_status status = take_place(p, spec, p->w_terms, p->w_terms == 3 ? RF_BFLOAT16 : RF_FLOAT16, 1, weights);
    if (!status && p->verdicts.columns)
        status = rfi_cuda_status(cudaMemsetAsync(p->verdicts.used, 0, 2 * sizeof *p->verdicts.used, weights->stream),
            "clearing what is known of the weights' infinities");
    if (!status) status = take_scratch(&s, p, spec, weights, p->w.panel, 0);
    if (!status) status = split_slices(p, spec, weights, &s);
    leave_scratch(&s, weights);
    return status;
}

/* Counts what W is like, for `terms` of binary16. *lost: the most rows that would lose the value of one and the same
 * column. */
static rf_status count_findings(const rfi_spec *spec, const rfi_weight_view *weights, int terms, const scratch *s,
    rfi_cuda_findings *findings, unsigned *lost, uint8_t *thin) {
    const rfi_plan *plan = &spec->plan;
    const size_t columns = (size_t)plan->in_features;
    unsigned *counts = malloc(columns * sizeof *counts);
    if (!counts) return rfi_error(RF_OUT_OF_MEMORY, "no memory for %zu counts of the weights' columns", columns);
    rf_status status =
        rfi_cuda_status(cudaMemsetAsync(thin, 0, columns, weights->stream), "clearing what is found out");
    slice part;
    for (int64_t first = 0; first < plan->out_features && !status; first += s->rows) {
        status = next_slice(&part, first, spec, weights, s);
        const rfi_cuda_survey survey = {
            part.data, part.rows, plan->in_features, part.ld, spec->weight_dtype, terms, s->findings, s->lost, thin};
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
    PLAIN_FEATURES = 64, /* up to so many features plain multiply-adds, in which infinities are what they are, take as
                            long as terms */
    SHORT_DEPTH = 512,   /* with no more columns they take less than all of x as irregular rows */
    VERDICT_ROWS = 8,    /* so many rows with several, and as many infinities as they are long, are few in any layer, */
    VERDICT_COLUMNS = 8, /* and one row for so many columns, */
    PLACE_FEATURES = 1024,   /* and in wide ones as many infinities as one row in so many has columns */
    COUNTED_DEPTH = 1 << 24, /* with more columns float32 does not count a row's infinities */
    LENIENT_DEPTH = 512,     /* with fewer columns no value of x is lost: there are not enough others that one could do
                                without */
    DENSE_DEPTH = 1 << 20,   /* with more, what two levels leave adds up */
    THIN_DEPTH = 1 << 18     /* likewise, beside a fourth of the largest */
};

/* Whether the kernels of sm_90a read W: to compute all of x as irregular rows takes less time by theirs than to
 * multiply W as it is stored does, and they alone multiply TF32. */
static int has_wgmma(const rfi_cuda_prepared *p, const rfi_spec *spec) { return plan_panel(p, spec) != 0; }

int64_t rfi_cuda_most_verdicts(int64_t in_features) {
    return least(most(in_features / VERDICT_COLUMNS, VERDICT_ROWS), RFI_VERDICTS);
}

/* Whether rows of W with several infinities are so few that a column more for each, and to look rows of x up at all of
 * their places, hardly shows. */
static int have_verdicts(const rfi_cuda_prepared *p, const rfi_spec *spec) {
    const int64_t depth = spec->plan.in_features, rows = p->findings.many;
    return rows && rows <= rfi_cuda_most_verdicts(depth) &&
        p->findings.several <=
        (unsigned long long)(depth * most(spec->plan.out_features / PLACE_FEATURES, VERDICT_ROWS));
}

/* Whether W has rows with several infinities, and plain multiply-adds are the way for them. */
static int several_are_plain(const rfi_cuda_prepared *p, const rfi_spec *spec) {
    const int64_t depth = spec->plan.in_features;
    return p->findings.many &&
        (depth > COUNTED_DEPTH || (!have_verdicts(p, spec) && (depth <= SHORT_DEPTH || !has_wgmma(p, spec))));
}

/* Looks at W as `terms` of binary16 would hold it. *lost as in count_findings. */
static rf_status look_at_weights(
    rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, int terms, unsigned *lost) {
    scratch s = {0};
    rf_status status = take_scratch(&s, p, spec, weights, 0, 1);
    if (!status) status = count_findings(spec, weights, terms, &s, &p->findings, lost, thin_place(p, spec));
    leave_scratch(&s, weights);
    return status;
}

/* In which terms W is kept, by its values: see doc/kernels/accuracy.md. */
static rf_status choose_terms(rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights) {
    const rfi_plan *plan = &spec->plan;
    p->w_terms = rfi_cuda_weight_terms(spec->weight_dtype, spec->math, plan->in_features);
    const int sixteen = rfi_is_16_bit(spec->weight_dtype);
    if (!p->w_terms && (!sixteen || !plan->in_features)) return RF_OK;
    unsigned lost = 0;
    rf_status status = look_at_weights(p, spec, weights, p->w_terms ? p->w_terms : 1, &lost);
    if (!status && sixteen && p->findings.nonfinite && spec->x_dtype != spec->weight_dtype &&
        plan->out_features > PLAIN_FEATURES) {
        /* Several terms of a value of x times infinity do not add up to what the value gives: W goes the ways of
         * float32, in twice the memory. */
        p->w_terms = rfi_cuda_weight_terms(RF_FLOAT32, RF_MATH_F32, plan->in_features);
        if (p->w_terms) status = look_at_weights(p, spec, weights, p->w_terms, &lost);
    }
    if (status) return status;
    const int wide = p->findings.wide || (int64_t)lost * 64 > plan->out_features,
              unlike_one_term = wide || p->findings.infinite;
    if (p->w_terms == 1 && unlike_one_term && has_wgmma(p, spec)) p->w_tf32 = 1;
    else if (p->w_terms &&
        ((p->findings.infinite && plan->out_features <= PLAIN_FEATURES) || several_are_plain(p, spec)))
        p->w_terms = 0;
    else if (p->w_terms && wide) p->w_terms = 3;
    else if (p->w_terms && p->findings.infinite) p->w_terms = 2; /* one does not say what is zero beside an infinity */
    if (p->w_tf32) p->w_terms = 0;
    p->w_nonfinite = sixteen && !p->w_terms && p->findings.nonfinite > 0;
    p->w_infinite = p->w_terms && p->findings.infinite;
    p->w_several = p->w_terms && p->findings.many && !have_verdicts(p, spec);
    if (p->w_terms && have_verdicts(p, spec))
        p->verdicts = (rfi_cuda_verdicts){.columns = (int32_t)p->findings.many, .room = (unsigned)p->findings.several};
    p->strict = plan->in_features < LENIENT_DEPTH || p->findings.concentrated;
    p->dense = plan->in_features <= DENSE_DEPTH && !p->findings.sparse && !p->w_infinite;
    p->thin = plan->in_features <= THIN_DEPTH && !p->w_infinite ? thin_place(p, spec) : NULL;
    return RF_OK;
}

static rf_status keep_weights(
    rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights, int keep_form) {
    rf_status status = RF_OK;
    if (!keep_form) {
        p->w_terms = p->w_nonfinite = p->w_infinite = p->w_several = p->w_tf32 = 0;
        p->verdicts = (rfi_cuda_verdicts){0};
        if (spec->plan.out_features && !p->collapsed) status = choose_terms(p, spec, weights);
    }
    if (status) return status;
    return p->w_terms ? keep_terms(p, spec, weights) : keep_stored(p, spec, weights);
}

/* Kernels read all of it. */
static rf_status check_pointers(const rfi_spec *spec, const rfi_weight_view *weights) {
    rf_status status = RF_OK;
    if (weights->memory == RF_MEMORY_DEVICE) status = rfi_cuda_check_pointer("weight", weights->weight, spec->device);
    for (int i = 0; weights->on_device && i < 1 + spec->plan.num_vectors && !status; i++)
        status = rfi_cuda_check_pointer(i ? "a vector" : "bias", weights->on_device[i].data, spec->device);
    return status;
}

static size_t held(const rfi_cuda_prepared *p) {
    return sizeof *p + (size_t)p->num_programs * sizeof *p->programs + p->weight_bytes + p->columns_bytes +
        p->sums_bytes;
}

static rf_status prepare_on_device(rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights) {
    rf_status status = check_pointers(spec, weights);
    if (!status) status = rfi_cuda_get_figures(p->device, &p->figures);
    if (!status) status = rfi_cuda_status(rfi_cuda_overlaps(&p->overlaps), "asking what the kernels are compiled for");
    if (!status) status = rfi_cuda_take_pool(p->device, &p->pool);
    if (!status) status = place_columns(p, spec, weights);
    if (!status) status = rfi_cuda_collapse_prepare(p, spec, weights);
    if (!status) status = keep_weights(p, spec, weights, 0);
    /* The caller's buffers are his again. */
    rf_status drained = rfi_cuda_status(cudaStreamSynchronize(weights->stream), "loading the weights");
    return status ? status : drained;
}

rf_status rfi_cuda_prepare(const rfi_spec *spec, const rfi_weight_view *weights, void **prepared, size_t *bytes) {
    rfi_cuda_prepared *p = calloc(1, sizeof *p);
    if (p) p->layouts = rfi_cuda_layouts_create();
    if (!p || !p->layouts) {
        free(p);
        return rfi_error(RF_OUT_OF_MEMORY, "no memory for a model's description");
    }
    p->device = spec->device;
    int before;
    rf_status status = rfi_cuda_fill_programs(p, &spec->plan, spec->weight_dtype);
    if (!status) status = rfi_cuda_forced(&p->forced);
    if (!status) status = rfi_cuda_enter(p->device, &before);
    if (status) {
        rfi_cuda_layouts_destroy(p->layouts);
        free(p->programs);
        free(p);
        return status;
    }
    status = prepare_on_device(p, spec, weights);
    if (status) rfi_cuda_release(p);
    rfi_cuda_leave(before);
    if (status) return status;
    *prepared = p;
    *bytes = held(p);
    return RF_OK;
}

/* Whether the host's memory is read, which is the caller's again when the call returns. */
static int reads_host(const rfi_spec *spec, const rfi_weight_view *weights) {
    if (weights->memory != RF_MEMORY_DEVICE || (weights->has_bias && !weights->on_device[0].data)) return 1;
    for (int v = 0; v < spec->plan.num_vectors; v++)
        if (!weights->on_device[1 + v].data) return 1;
    return 0;
}

/* Works on `next`, whose new memory, if any, takes the place of the old once all has succeeded. */
rf_status rfi_cuda_update(
    const rfi_spec *spec, const rfi_weight_view *weights, int keep_form, void *prepared, size_t *bytes) {
    rfi_cuda_prepared *p = prepared, next = *p;
    int before;
    rf_status status = rfi_cuda_enter(p->device, &before);
    if (status) return status;
    status = check_pointers(spec, weights);
    if (!status) status = place_columns(&next, spec, weights);
    if (!status) status = rfi_cuda_collapse_prepare(&next, spec, weights);
    p->sums = next.sums;
    p->sums_bytes = next.sums_bytes;
    if (!status) status = keep_weights(&next, spec, weights, keep_form && next.collapsed == p->collapsed);
    void *unused = status ? next.weight : p->weight;
    if (next.weight == p->weight) unused = NULL;
    next.updating = !reads_host(spec, weights);
    if (!status) *p = next;
    rfi_cuda_layouts_clear(p->layouts);
    *bytes = held(p);
    if (!next.updating) {
        rf_status drained = rfi_cuda_status(cudaStreamSynchronize(weights->stream), "updating the weights");
        if (!status) status = drained;
    }
    if (unused && cudaFree(unused) != cudaSuccess) cudaGetLastError(); /* a device that failed: the caller is told */
    rfi_cuda_leave(before);
    return status;
}
