/* SPDX-License-Identifier: MIT */
/* One task of a forward: the logits of a block of rows and columns, the steps on them, and their fold. */
#include <string.h>

#include "cpu/forward.h"
#include "dtype.h"
#include "sizes.h"

enum { STREAM_AHEAD = 4096 }; /* bytes between use and prefetch where W only passes through */

/* A block of rows and of units, and the scratch of the thread that works on it. */
typedef struct tile {
    int64_t row, rows, unit, units;
    size_t value; /* bytes of the compute type */
    char *x, *w, *c;
    uint32_t *pairs; /* x, where W is in pairs */
} tile;

static tile tile_of_task(const rfi_cpu_run *run, int64_t task, int slot) {
    const rfi_cpu_blocking *b = &run->blocking;
    char *scratch = run->scratch + (size_t)slot * b->scratch;
    int64_t row = task % b->row_blocks * b->rows, unit = task / b->row_blocks * b->block_units;
    return (tile){
        .row = row,
        .rows = least(b->rows, run->rows - row),
        .unit = unit,
        .units = least(b->block_units, b->units - unit),
        .value = rfi_dtype_size(run->spec->compute_dtype),
        .x = scratch + b->x_offset,
        .w = scratch + b->w_offset,
        .c = scratch + b->c_offset,
        .pairs = (uint32_t *)(void *)(scratch + b->pairs_offset),
    };
}

static const char *x_of(const rfi_cpu_run *run, const tile *t, int64_t i, int64_t k) {
    const rfi_forward *call = run->call;
    const int64_t row = rfi_cpu_row(run, t->row + i);
    return (const char *)call->x + (size_t)(row * call->ldx + k) * rfi_dtype_size(call->x_dtype);
}

/* Where the multiplication of a tile stands: a chunk of inputs, and in it one panel after the other. */
typedef struct place {
    int64_t k, depth;
    int64_t column; /* first of the panel */
    int least;      /* of x in pairs: rfi_cpu_pairs_exact; 0 if it is not there */
    int widened;    /* x is there in the compute type */
} place;

static void widen_x(const rfi_cpu_run *run, const tile *t, place *at) {
    at->widened = 1;
    if (!at->depth) return; /* x may be NULL */
    for (int64_t i = 0; i < t->rows; i++)
        run->prepared->kernel->widen(
            t->x + (size_t)(i * RFI_CPU_X_LD) * t->value, x_of(run, t, i, at->k), run->call->x_dtype, at->depth);
}

static void pack_x(const rfi_cpu_run *run, const tile *t, place *at) {
    const rfi_cpu_pairs *pairs = run->prepared->pairs;
    if (!pairs || run->call->x_dtype != RF_BFLOAT16 || !at->depth) {
        widen_x(run, t, at);
        return;
    }
    at->least = RFI_CPU_ALL_ZERO;
    for (int64_t i = 0; i < t->rows; i++) {
        const void *from = x_of(run, t, i, at->k);
        at->least = (int)least(at->least, pairs->pack(t->pairs + i * RFI_CPU_PAIRS_LD, from, at->depth));
    }
}

static const char *panel_of(const rfi_cpu_run *run, const place *at) {
    const rfi_cpu_prepared *p = run->prepared;
    int64_t unit = at->column / RFI_CPU_UNIT, packed = least(p->depth - at->k, RFI_CPU_DEPTH);
    int64_t offset = rfi_cpu_chunk_offset(p, unit, at->k) + at->column % RFI_CPU_UNIT * packed;
    return (const char *)p->weight + (size_t)offset * rfi_dtype_size(run->spec->weight_dtype);
}

/* Inputs whose products are added one after the other in float, at most. A rounding errs by the size of the sum that it
 * is made in: with one sum for all of RFI_CPU_DEPTH a logit's error is 1.7 times as large (doc/kernels/cpu.md 2). */
enum { SUM_DEPTH = 176 };

/* A chunk in even blocks of whole turns of the microkernel; it depends on the chunk alone. */
static int64_t block_of(int64_t depth, size_t value) {
    if (value != sizeof(float) || depth <= SUM_DEPTH) return RFI_CPU_DEPTH;
    int64_t blocks = ceil_div(depth, SUM_DEPTH), each = ceil_div(depth, blocks);
    return round_up(each, RFI_CPU_STEP);
}

/* A row of a panel, of either type. */
static const double zeros[RFI_CPU_UNIT];

/* What a panel is multiplied with. A row of x and an input of W begin so many bytes after the one before; an input of x
 * takes x_item. */
typedef struct factors {
    const rfi_cpu_multiply *multiply;
    const char *x, *w;
    size_t x_row, x_item, w_item;
} factors;

/* Every way adds the same products in the same order and rounds each sum alike, so that a row's bits do not depend on
 * the others of its tile, which have a part in the choice. */
static factors factors_of(const rfi_cpu_run *run, const tile *t, place *at, int64_t slivers) {
    const rfi_cpu_prepared *p = run->prepared;
    const rfi_cpu_kernel *kernel = p->kernel;
    const rf_dtype stored = run->spec->weight_dtype, compute = run->spec->compute_dtype;
    const size_t panel = (size_t)kernel->panel;
    factors f = {
        .multiply = p->pairs ? p->pairs->multiply_float : kernel->multiply[stored],
        .x = t->x,
        .w = panel_of(run, at),
        .x_row = RFI_CPU_X_LD * t->value,
        .x_item = t->value,
        .w_item = panel * rfi_dtype_size(stored),
    };
    if (p->pairs && at->depth && rfi_cpu_pairs_exact(at->least, *rfi_cpu_least_of(p, at->column, at->k))) {
        f.multiply = p->pairs->multiply;
        f.x = (const char *)t->pairs;
        f.x_row = RFI_CPU_PAIRS_LD * sizeof(uint32_t);
        f.x_item = sizeof(uint32_t) / 2;
        return f;
    }
    if (!at->widened) widen_x(run, t, at);
    if (f.multiply && (slivers == 1 || stored == compute)) return f;
    if (p->pairs) p->pairs->widen((float *)(void *)t->w, (const uint32_t *)(const void *)f.w, at->depth);
    else kernel->widen(t->w, f.w, stored, at->depth * kernel->panel);
    f.multiply = kernel->multiply[compute];
    f.w = t->w;
    f.w_item = panel * t->value;
    return f;
}

/* All rows of the tile times one panel. Slivers of nearly equal height: a short last one would leave the multipliers
 * idle. */
static void multiply_panel(const rfi_cpu_run *run, const tile *t, place *at, const char *next) {
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    int64_t c_ld = run->blocking.c_ld, slivers = ceil_div(t->rows, kernel->max_rows);
    const factors f = factors_of(run, t, at, slivers);
    int64_t bytes = at->depth * kernel->panel * (int64_t)rfi_dtype_size(run->spec->weight_dtype);
    int last = at->k + at->depth == run->spec->plan.in_features;
    int64_t lines = bytes / RFI_CPU_ALIGN, turns = at->depth / RFI_CPU_STEP + 1;
    const int64_t block = block_of(at->depth, t->value);
    for (int64_t s = 0; s < slivers; s++) {
        int64_t first = t->rows * s / slivers, rows = t->rows * (s + 1) / slivers - first;
        char *c = t->c + (size_t)(first * c_ld + at->column - t->unit * RFI_CPU_UNIT) * t->value;
        const char *bias =
            last ? (const char *)run->prepared->bias + (size_t)at->column * t->value : (const char *)zeros;
        rfi_cpu_sliver sliver = {
            .depth = least(block, at->depth),
            .x = f.x + (size_t)first * f.x_row,
            .w = f.w,
            .in = at->k ? c : (const char *)zeros,
            .ld_in = at->k ? c_ld : 0,
            .bias = at->depth <= block ? bias : (const char *)zeros,
            .out = c,
            .ld_out = c_ld,
            .ahead = slivers == 1 ? f.w + STREAM_AHEAD : next + lines * s / slivers * RFI_CPU_ALIGN,
            .ahead_lines = (int)ceil_div(lines, slivers * turns),
        };
        f.multiply[rows - 1](&sliver);
        for (int64_t k = block; k < at->depth; k += block) {
            sliver.depth = least(block, at->depth - k);
            sliver.x = (const char *)sliver.x + (size_t)block * f.x_item;
            sliver.w = (const char *)sliver.w + (size_t)block * f.w_item;
            sliver.in = c;
            sliver.ld_in = c_ld;
            sliver.ahead += block / RFI_CPU_STEP * sliver.ahead_lines * RFI_CPU_ALIGN;
            if (k + block >= at->depth) sliver.bias = bias;
            f.multiply[rows - 1](&sliver);
        }
    }
}

/* The logits of a tile. A layer without inputs still has its bias: one chunk of no depth. */
static void multiply_tile(const rfi_cpu_run *run, const tile *t) {
    int64_t in_features = run->spec->plan.in_features, panel = run->prepared->kernel->panel;
    int64_t begin = t->unit * RFI_CPU_UNIT, end = least(begin + t->units * RFI_CPU_UNIT, run->prepared->padded);
    for (int64_t k = 0; k == 0 || k < in_features; k += RFI_CPU_DEPTH) {
        place at = {.k = k, .depth = least(RFI_CPU_DEPTH, in_features - k)};
        pack_x(run, t, &at);
        for (at.column = begin; at.column < end; at.column += panel) {
            place next = {.k = k, .depth = at.depth, .column = at.column + panel};
            if (next.column >= end)
                next = (place){.k = k + RFI_CPU_DEPTH,
                    .depth = least(RFI_CPU_DEPTH, in_features - k - RFI_CPU_DEPTH),
                    .column = begin};
            multiply_panel(run, t, &at, next.depth > 0 ? panel_of(run, &next) : run->prepared->weight);
        }
    }
}

/* One row's part of a unit, behind the trunk's steps, into the states of all folds. The last may work in place. */
static void fold_unit(const rfi_cpu_run *run, int64_t row, int64_t unit, char *values, int n, int padded) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_cpu_prepared *p = run->prepared;
    const int64_t column = unit * RFI_CPU_UNIT;
    const size_t bytes = (size_t)padded * rfi_dtype_size(run->spec->compute_dtype);
    double copy[RFI_CPU_UNIT] __attribute__((aligned(RFI_CPU_ALIGN))); /* of either type */
    for (int f = 0; f < plan->num_folds; f++) {
        const rfi_fold *fold = &plan->folds[f];
        const rfi_branch *branch = &plan->branches[fold->branch];
        void *folded = values;
        if (branch->pre.count) {
            rfi_step own[RF_MAX_OPS];
            if (f + 1 < plan->num_folds) folded = memcpy(copy, values, bytes);
            p->kernel->apply(rfi_cpu_steps_of_row(run, &branch->pre, row, own), branch->pre.count, p->vectors, column,
                folded, padded);
        }
        p->kernel->fold(fold->reduction, folded, n, plan->columns.first + column, rfi_cpu_asked(run, branch, row),
            rfi_states_at(&run->states[f], row, unit));
    }
}

/* Steps on one row's part of a unit, then into its states, or to where it goes if nothing is folded. */
static void finish_unit(const rfi_cpu_run *run, const tile *t, int64_t i, int64_t unit) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_cpu_prepared *p = run->prepared;
    int64_t column = unit * RFI_CPU_UNIT, row = t->row + i;
    int padded = (int)least(RFI_CPU_UNIT, p->padded - column),
        n = (int)least(RFI_CPU_UNIT, plan->out_features - column);
    char *values = t->c + (size_t)(i * run->blocking.c_ld + (unit - t->unit) * RFI_CPU_UNIT) * t->value;
    rfi_step own[RF_MAX_OPS];
    p->kernel->apply(
        rfi_cpu_steps_of_row(run, &plan->trunk, row, own), plan->trunk.count, p->vectors, column, values, padded);
    if (plan->num_folds) {
        fold_unit(run, row, unit, values, n, padded);
        return;
    }
    const rfi_output *out = &run->call->outputs[0];
    p->kernel->narrow(
        (char *)out->data + (size_t)(row * out->ld + column) * rfi_dtype_size(out->dtype), values, out->dtype, n);
}

void rfi_cpu_run_tile(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const tile t = tile_of_task(run, task, slot);
    multiply_tile(run, &t);
    for (int64_t i = 0; i < t.rows; i++)
        for (int64_t unit = t.unit; unit < t.unit + t.units; unit++) finish_unit(run, &t, i, unit);
}
