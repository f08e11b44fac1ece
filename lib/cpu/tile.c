/* SPDX-License-Identifier: MIT */
/* One task of a forward: the logits of a block of rows and columns, the steps on them, and their fold. */
#include <math.h>
#include <string.h>

#include "cpu/forward.h"
#include "dtype.h"
#include "sizes.h"

enum { STREAM_AHEAD = 4096 }; /* bytes between use and prefetch where W only passes through */

/* A block of rows and of units, and the scratch of the thread that works on it. */
typedef struct tile {
    int64_t row, rows, unit, units;
    const int64_t *list; /* (rows) which of the run they are; NULL: from `row` on */
    size_t value;        /* bytes of the compute type */
    char *x, *w, *c;
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
    };
}

static void pack_x(const rfi_cpu_run *run, const tile *t, int64_t k, int64_t depth) {
    const rfi_forward *call = run->call;
    size_t item = rfi_dtype_size(call->x_dtype);
    if (!depth) return; /* x may be NULL */
    for (int64_t i = 0; i < t->rows; i++) {
        const char *from = rfi_cpu_x(run, t->list ? t->list[i] : t->row + i) + (size_t)k * item;
        run->prepared->kernel->widen(t->x + (size_t)(i * RFI_CPU_X_LD) * t->value, from, call->x_dtype, depth);
    }
}

/* Where the multiplication of a tile stands: a chunk of inputs, and in it one panel after the other. */
typedef struct place {
    int64_t k, depth;
    int64_t column; /* first of the panel */
} place;

static const char *panel_of(const rfi_cpu_run *run, const place *at) {
    const rfi_cpu_prepared *p = run->prepared;
    int64_t unit = at->column / RFI_CPU_UNIT;
    int64_t offset =
        rfi_cpu_chunk_offset(p, run->spec->plan.in_features, unit, at->k) + at->column % RFI_CPU_UNIT * at->depth;
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

/* All rows of the tile times one panel. Slivers of nearly equal height: a short last one would leave the multipliers
 * idle. */
static void multiply_panel(const rfi_cpu_run *run, const tile *t, const place *at, const char *next) {
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    const rfi_cpu_multiply *multiply = kernel->multiply[run->spec->weight_dtype];
    const char *w = panel_of(run, at);
    int64_t c_ld = run->blocking.c_ld, slivers = ceil_div(t->rows, kernel->max_rows);
    int64_t bytes = at->depth * kernel->panel * (int64_t)rfi_dtype_size(run->spec->weight_dtype);
    int last = at->k + at->depth == run->spec->plan.in_features;
    int64_t lines = bytes / RFI_CPU_ALIGN, turns = at->depth / RFI_CPU_STEP + 1;
    if (!multiply || (slivers > 1 && run->spec->weight_dtype != run->spec->compute_dtype)) {
        kernel->widen(t->w, w, run->spec->weight_dtype, at->depth * kernel->panel);
        multiply = kernel->multiply[run->spec->compute_dtype];
        w = t->w;
    }
    const int64_t block = block_of(at->depth, t->value);
    const size_t block_bytes = (size_t)(block * kernel->panel) *
        rfi_dtype_size(w == t->w ? run->spec->compute_dtype : run->spec->weight_dtype);
    for (int64_t s = 0; s < slivers; s++) {
        int64_t first = t->rows * s / slivers, rows = t->rows * (s + 1) / slivers - first;
        char *c = t->c + (size_t)(first * c_ld + at->column - t->unit * RFI_CPU_UNIT) * t->value;
        const char *bias =
            last ? (const char *)run->prepared->bias + (size_t)at->column * t->value : (const char *)zeros;
        rfi_cpu_sliver sliver = {
            .depth = least(block, at->depth),
            .x = t->x + (size_t)(first * RFI_CPU_X_LD) * t->value,
            .w = w,
            .in = at->k ? c : (const char *)zeros,
            .ld_in = at->k ? c_ld : 0,
            .bias = at->depth <= block ? bias : (const char *)zeros,
            .out = c,
            .ld_out = c_ld,
            .ahead = slivers == 1 ? w + STREAM_AHEAD : next + lines * s / slivers * RFI_CPU_ALIGN,
            .ahead_lines = (int)ceil_div(lines, slivers * turns),
        };
        multiply[rows - 1](&sliver);
        for (int64_t k = block; k < at->depth; k += block) {
            sliver.depth = least(block, at->depth - k);
            sliver.x = (const char *)sliver.x + (size_t)block * t->value;
            sliver.w = (const char *)sliver.w + block_bytes;
            sliver.in = c;
            sliver.ld_in = c_ld;
            sliver.ahead += block / RFI_CPU_STEP * sliver.ahead_lines * RFI_CPU_ALIGN;
            if (k + block >= at->depth) sliver.bias = bias;
            multiply[rows - 1](&sliver);
        }
    }
}

/* The logits of a tile. A layer without inputs still has its bias: one chunk of no depth. */
static void multiply_tile(const rfi_cpu_run *run, const tile *t) {
    int64_t in_features = run->spec->plan.in_features, panel = run->prepared->kernel->panel;
    int64_t begin = t->unit * RFI_CPU_UNIT, end = least(begin + t->units * RFI_CPU_UNIT, run->prepared->padded);
    for (int64_t k = 0; k == 0 || k < in_features; k += RFI_CPU_DEPTH) {
        place at = {.k = k, .depth = least(RFI_CPU_DEPTH, in_features - k)};
        pack_x(run, t, at.k, at.depth);
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

/* Values of one row, from `column` on, behind the trunk's steps, taken through a branch's own: in `copy` if there are
 * any. */
static void *take_own_steps(const rfi_cpu_run *run, const rfi_branch *branch, int64_t row, int64_t column, void *values,
    int padded, void *copy) {
    const rfi_cpu_prepared *p = run->prepared;
    rfi_step own[RF_MAX_OPS];
    if (!branch->pre.count) return values;
    memcpy(copy, values, (size_t)padded * rfi_dtype_size(run->spec->compute_dtype));
    p->kernel->apply(
        rfi_cpu_steps_of_row(run, &branch->pre, row, own), branch->pre.count, p->vectors, column, copy, padded);
    return copy;
}

enum { TOGETHER = 16 };

/* Few columns of many are wanted: those that certainly are not are passed over TOGETHER at a time, which makes whole
 * vectors of a loop whose length is a constant. */
#define PUSH(T, suffix)                                                                         \
    static int all_below_##suffix(const T *v, T least) {                                        \
        int others = 0;                                                                         \
        for (int l = 0; l < TOGETHER; l++) others |= !(v[l] < least);                           \
        return !others;                                                                         \
    }                                                                                           \
    static void push_##suffix(rfi_top *top, int k, int64_t column, const void *values, int n) { \
        const T *v = values;                                                                    \
        for (int j = 0; j < n; j++) {                                                           \
            const T least = top->count < k ? (T)NAN : (T)top->at[k - 1].value;                  \
            if (v[j] < least) {                                                                 \
                while (j + TOGETHER <= n && all_below_##suffix(v + j, least)) j += TOGETHER;    \
                if (j == n) return;                                                             \
            }                                                                                   \
            if (!(v[j] < least)) rfi_top_push(top, k, (rfi_ranked){(double)v[j], column + j});  \
        }                                                                                       \
    }
PUSH(float, f32)
PUSH(double, f64)
#undef PUSH

/* Those of n columns that are among the best so far, into the row's list, which other threads have other columns for.
 * No column is better than `peak`. */
static void push_tops(
    const rfi_cpu_run *run, int branch, int64_t row, int64_t column, const void *values, int n, double peak) {
    const int k = run->spec->plan.branches[branch].top;
    rfi_top *top = rfi_cpu_top(run, branch, row);
    pthread_mutex_t *lock = &run->locks[row % RFI_CPU_LOCKS];
    pthread_mutex_lock(lock);
    if (rfi_top_wants(top, k, (rfi_ranked){peak, column}))
        (run->spec->compute_dtype == RF_FLOAT64 ? push_f64 : push_f32)(top, k, column, values, n);
    pthread_mutex_unlock(lock);
}

/* One row's part of a unit, behind the trunk's steps, into the states of all folds, and what else is looked for. */
static void fold_unit(const rfi_cpu_run *run, int64_t row, int64_t unit, char *values, int n, int padded) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_cpu_prepared *p = run->prepared;
    const int64_t column = unit * RFI_CPU_UNIT;
    double copy[RFI_CPU_UNIT] __attribute__((aligned(RFI_CPU_ALIGN))); /* of either type */
    for (int f = 0; f < plan->num_folds; f++) {
        const rfi_fold *fold = &plan->folds[f];
        const rfi_branch *branch = &plan->branches[fold->branch];
        const void *folded = take_own_steps(run, branch, row, column, values, padded, copy);
        char *state = rfi_states_at(&run->states[f], row, unit);
        p->kernel->fold(fold->reduction, folded, n, column, rfi_cpu_asked(run, branch, row), state);
        for (int b = 0; b < plan->num_branches; b++)
            if (plan->branches[b].top && plan->branches[b].fold == f)
                push_tops(run, b, row, column, folded, n, rfi_load(state, run->spec->compute_dtype, 0));
    }
    for (int b = 0; b < plan->num_branches; b++)
        if (plan->branches[b].gathers)
            rfi_cpu_gather(
                run, b, row, column, n, take_own_steps(run, &plan->branches[b], row, column, values, padded, copy), 1);
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
    if (plan->branches[0].reduction) {
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

enum { AHEAD_ROWS = 16 }; /* that ask for a column of one panel, taken together */

/* The rows of a tile ask for columns of the panel that begins with `column`: their values in a branch, to the peaks of
 * the fold's states. */
static void seed_rows(const rfi_cpu_run *run, const tile *t, int fold, int64_t column) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_cpu_prepared *p = run->prepared;
    const rfi_branch *branch = &plan->branches[plan->folds[fold].branch];
    const rfi_states *states = &run->states[fold];
    const int padded = p->kernel->panel;
    for (int64_t k = 0; k == 0 || k < plan->in_features; k += RFI_CPU_DEPTH) {
        const place at = {.k = k, .depth = least(RFI_CPU_DEPTH, plan->in_features - k), .column = column};
        pack_x(run, t, at.k, at.depth);
        multiply_panel(run, t, &at, p->weight);
    }
    for (int64_t i = 0; i < t->rows; i++) {
        rfi_step own[RF_MAX_OPS];
        double copy[RFI_CPU_UNIT] __attribute__((aligned(RFI_CPU_ALIGN))); /* of either type */
        char *values = t->c + (size_t)(i * run->blocking.c_ld + column - t->unit * RFI_CPU_UNIT) * t->value;
        p->kernel->apply(rfi_cpu_steps_of_row(run, &plan->trunk, t->list[i], own), plan->trunk.count, p->vectors,
            column, values, padded);
        const char *folded = take_own_steps(run, branch, t->list[i], column, values, padded, copy);
        const char *seed = folded + (size_t)(rfi_cpu_asked(run, branch, t->list[i]) - column) * t->value;
        for (int64_t u = 0; u < states->units; u++) memcpy(rfi_states_at(states, t->list[i], u), seed, t->value);
    }
}

/* Rows are gathered by panel, so that W is read once for several of them. What a row gets does not depend on which. */
static void seed_fold(const rfi_cpu_run *run, tile *t, int fold) {
    const rfi_branch *branch = &run->spec->plan.branches[run->spec->plan.folds[fold].branch];
    const int64_t panel = run->prepared->kernel->panel, begin = t->unit * RFI_CPU_UNIT;
    const int most = (int)least(AHEAD_ROWS, run->blocking.rows);
    int64_t lists[RFI_CPU_UNIT / RFI_CPU_LEAST_PANEL][AHEAD_ROWS];
    int counts[RFI_CPU_UNIT / RFI_CPU_LEAST_PANEL] = {0};
    for (int64_t row = 0; row < run->rows; row++) {
        const int64_t asked = rfi_cpu_asked(run, branch, row) - begin;
        if (asked < 0 || asked >= RFI_CPU_UNIT) continue;
        const int64_t at = asked / panel;
        lists[at][counts[at]++] = row;
        if (counts[at] < most) continue;
        t->list = lists[at], t->rows = counts[at], counts[at] = 0;
        seed_rows(run, t, fold, begin + at * panel);
    }
    for (int64_t at = 0; at < RFI_CPU_UNIT / panel; at++) {
        if (!counts[at]) continue;
        t->list = lists[at], t->rows = counts[at];
        seed_rows(run, t, fold, begin + at * panel);
    }
}

void rfi_cpu_run_ahead(void *context, int64_t unit, int slot) {
    const rfi_cpu_run *run = context;
    const rfi_plan *plan = &run->spec->plan;
    tile t = tile_of_task(run, 0, slot);
    t.unit = unit;
    t.units = 1;
    for (int f = 0; f < plan->num_folds; f++)
        if (plan->branches[plan->folds[f].branch].seeded) seed_fold(run, &t, f);
}
