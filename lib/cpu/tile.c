/* SPDX-License-Identifier: MIT */
/* One task of a forward: the logits of a block of rows and columns, the steps on them, and their fold. */
#include <string.h>

#include "cpu/tile.h"
#include "dtype.h"
#include "sizes.h"

static rfi_cpu_tile tile_of_task(const rfi_cpu_run *run, int64_t task, int slot) {
    const rfi_cpu_blocking *b = &run->blocking;
    char *scratch = run->scratch + (size_t)slot * b->scratch;
    int64_t row = task % b->row_blocks * b->rows, unit = task / b->row_blocks * b->block_units;
    int64_t units = least(b->block_units, b->units - unit), first = unit * RFI_CPU_UNIT;
    return (rfi_cpu_tile){
        .row = row,
        .rows = least(b->rows, run->rows - row),
        .unit = unit,
        .units = units,
        .value = rfi_dtype_size(run->spec->compute_dtype),
        .item = rfi_dtype_size(run->call->x_dtype),
        .x = scratch + b->x_offset,
        .w = scratch + b->w_offset,
        .c = scratch + b->c_offset,
        .stretch = scratch + b->stretch_offset,
        .pairs = (uint32_t *)(void *)(scratch + b->pairs_offset),
        .ranges = (rfi_cpu_range *)(void *)(scratch + b->ranges_offset),
        .end = run->spec->plan.in_features,
        .first = first,
        .last = least(first + units * RFI_CPU_UNIT, run->prepared->padded),
    };
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

/* A unit of a few rows, behind the trunk's steps. */
typedef struct part {
    int64_t row, unit, column; /* the first row of the run, and the first column of the unit */
    int rows, n, padded;       /* n columns, padded to whole panels */
    size_t apart;              /* bytes from one row to the next */
    char *values;
    int64_t asked[RFI_CPU_FOLD_ROWS];
} part;

/* Into the states of a fold. A branch with steps of its own has each row copied, and folded alone; so are rows whose
 * best columns are looked for, while they are in the cache. */
static void fold_part(const rfi_cpu_run *run, part *p, int fold) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_branch *branch = &plan->branches[plan->folds[fold].branch];
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    const rfi_states *states = &run->states[fold];
    const size_t value = rfi_dtype_size(run->spec->compute_dtype);
    const int64_t first = plan->columns.first + p->column;
    double copy[RFI_CPU_UNIT] __attribute__((aligned(RFI_CPU_ALIGN))); /* of either type */
    int together = branch->pre.count ? 1 : p->rows;
    for (int b = 0; b < plan->num_branches; b++)
        if (plan->branches[b].top && plan->branches[b].fold == fold) together = 1;
    for (int i = 0; i < p->rows; i++) p->asked[i] = rfi_cpu_asked(run, branch, p->row + i);
    for (int i = 0; i < p->rows; i += together) {
        const int64_t row = p->row + i;
        const void *folded =
            take_own_steps(run, branch, row, p->column, p->values + (size_t)i * p->apart, p->padded, copy);
        char *state = rfi_states_at(states, row, p->unit);
        kernel->fold(plan->folds[fold].reduction, folded, (int64_t)(p->apart / value), together, p->n, first,
            p->asked + i, state, states->units * states->words);
        for (int b = 0; b < plan->num_branches; b++)
            if (plan->branches[b].top && plan->branches[b].fold == fold)
                push_tops(run, b, row, p->column, folded, p->n, rfi_load(state, run->spec->compute_dtype, 0));
    }
}

static void gather_part(const rfi_cpu_run *run, const part *p, int branch) {
    double copy[RFI_CPU_UNIT] __attribute__((aligned(RFI_CPU_ALIGN))); /* of either type */
    for (int i = 0; i < p->rows; i++)
        rfi_cpu_gather(run, branch, p->row + i, p->column, p->n,
            take_own_steps(run, &run->spec->plan.branches[branch], p->row + i, p->column,
                p->values + (size_t)i * p->apart, p->padded, copy),
            1);
}

/* Steps on a few rows of a unit, then into their states, or to where they go if nothing is folded. */
static void finish_part(const rfi_cpu_run *run, part *p) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_cpu_prepared *prepared = run->prepared;
    for (int i = 0; i < p->rows && plan->trunk.count; i++) {
        rfi_step own[RF_MAX_OPS];
        prepared->kernel->apply(rfi_cpu_steps_of_row(run, &plan->trunk, p->row + i, own), plan->trunk.count,
            prepared->vectors, p->column, p->values + (size_t)i * p->apart, p->padded);
    }
    if (plan->branches[0].reduction) {
        for (int f = 0; f < plan->num_folds; f++) fold_part(run, p, f);
        for (int b = 0; b < plan->num_branches; b++)
            if (plan->branches[b].gathers) gather_part(run, p, b);
        return;
    }
    const rfi_output *out = &run->call->outputs[0];
    for (int i = 0; i < p->rows; i++)
        prepared->kernel->narrow(
            (char *)out->data + (size_t)((p->row + i) * out->ld + p->column) * rfi_dtype_size(out->dtype),
            p->values + (size_t)i * p->apart, out->dtype, p->n);
}

static void finish_tile(const rfi_cpu_run *run, const rfi_cpu_tile *t) {
    const rfi_plan *plan = &run->spec->plan;
    for (int64_t i = 0; i < t->rows; i += RFI_CPU_FOLD_ROWS)
        for (int64_t unit = t->unit; unit < t->unit + t->units; unit++) {
            const int64_t column = unit * RFI_CPU_UNIT;
            part p = {
                .row = t->row + i,
                .unit = unit,
                .column = column,
                .rows = (int)least(RFI_CPU_FOLD_ROWS, t->rows - i),
                .n = (int)least(RFI_CPU_UNIT, plan->out_features - column),
                .padded = (int)least(RFI_CPU_UNIT, run->prepared->padded - column),
                .apart = (size_t)run->blocking.c_ld * t->value,
                .values = t->c + (size_t)(i * run->blocking.c_ld + (unit - t->unit) * RFI_CPU_UNIT) * t->value,
            };
            finish_part(run, &p);
        }
}

void rfi_cpu_run_tile(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const rfi_cpu_tile t = tile_of_task(run, task, slot);
    rfi_cpu_begin_products(run);
    rfi_cpu_multiply_tile(run, &t);
    rfi_cpu_end_products(run);
    finish_tile(run, &t);
}

/* Part `i` of `parts` of so many columns from `first` on, in whole panels: none, where these are fewer. */
static void take_columns(
    const rfi_cpu_run *run, rfi_cpu_tile *t, int64_t first, int64_t columns, int64_t i, int64_t parts) {
    const int64_t panel = run->prepared->kernel->panel, panels = columns / panel;
    t->first = first + panels * i / parts * panel;
    t->last = first + panels * (i + 1) / parts * panel;
}

/* The first tile that is parted. */
static int64_t first_parted(const rfi_cpu_blocking *b) { return b->row_blocks * b->column_blocks - b->parted; }

/* What a thread begins with of them, as the pool hands them out: whole tiles, then parts. */
static int64_t whole_each(const rfi_cpu_blocking *b) { return ceil_div(first_parted(b), b->threads); }
static int64_t parts_each(const rfi_cpu_blocking *b) { return ceil_div(b->parted * b->parts, b->threads); }

int64_t rfi_cpu_tasks_of_parted(const rfi_cpu_blocking *b) { return b->threads * (whole_each(b) + parts_each(b)); }

/* Parted tile i, with its logits where those of all its parts lie. */
static rfi_cpu_tile parted_tile(const rfi_cpu_run *run, int64_t i, int slot) {
    rfi_cpu_tile t = tile_of_task(run, first_parted(&run->blocking) + i, slot);
    t.c = run->apart + (size_t)i * rfi_cpu_tile_bytes(&run->blocking);
    return t;
}

/* Part `i` of all those of parted tiles. */
static void run_part_of_tile(const rfi_cpu_run *run, int64_t i, int slot) {
    const rfi_cpu_blocking *b = &run->blocking;
    rfi_cpu_tile t = parted_tile(run, i / b->parts, slot);
    take_columns(run, &t, t.first, t.last - t.first, i % b->parts, b->parts);
    if (t.first == t.last) return;
    rfi_cpu_begin_products(run);
    rfi_cpu_multiply_tile(run, &t);
    rfi_cpu_end_products(run);
}

void rfi_cpu_run_tile_or_part(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const rfi_cpu_blocking *b = &run->blocking;
    const int64_t tiles = whole_each(b), parts = parts_each(b), thread = task / (tiles + parts),
                  i = task % (tiles + parts), tile = thread * tiles + i, nth = thread * parts + i - tiles;
    if (i < tiles && tile < first_parted(b)) rfi_cpu_run_tile(context, tile, slot);
    if (i >= tiles && nth < b->parted * b->parts) run_part_of_tile(run, nth, slot);
}

void rfi_cpu_run_parted_end(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const rfi_cpu_tile t = parted_tile(run, task, slot);
    finish_tile(run, &t);
}

static char *apart_of(const rfi_cpu_run *run, const rfi_cpu_tile *t) {
    return run->apart + (size_t)(t->row * run->blocking.c_ld_apart + t->unit * RFI_CPU_UNIT) * t->value;
}

void rfi_cpu_run_part(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const rfi_cpu_blocking *b = &run->blocking;
    const int64_t in_features = run->spec->plan.in_features, input_part = task % b->splits,
                  chunks = ceil_div(in_features, RFI_CPU_DEPTH);
    rfi_cpu_tile t = tile_of_task(run, 0, slot);
    t.apart = apart_of(run, &t);
    t.begin = chunks * input_part / b->splits * RFI_CPU_DEPTH;
    t.end = least(chunks * (input_part + 1) / b->splits * RFI_CPU_DEPTH, in_features);
    take_columns(run, &t, 0, run->prepared->padded, task / b->splits, b->column_parts);
    rfi_cpu_multiply_tile(run, &t);
}

/* The order in which a task alone adds the chunks. Each is from 0 on, and the sum of 0 and of what follows is never -0,
 * so a chunk of -0 that was stored as 0 makes no difference. */
void rfi_cpu_run_parts_end(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const rfi_cpu_blocking *b = &run->blocking;
    const rfi_cpu_tile t = tile_of_task(run, task, slot);
    for (int64_t i = 0; i < t.rows; i++)
        run->prepared->kernel->add_up(t.c + (size_t)(i * b->c_ld) * t.value,
            apart_of(run, &t) + (size_t)(i * b->c_ld_apart) * t.value, b->rows_of_sums * b->c_ld_apart, b->sums,
            RFI_CPU_STRETCH / RFI_CPU_DEPTH, (const char *)run->prepared->bias + (size_t)t.first * t.value,
            (int)(t.last - t.first));
    finish_tile(run, &t);
}

enum { AHEAD_ROWS = 16 }; /* that ask for a column of one panel, taken together */

/* The rows of a tile ask for columns of the panel that begins with `column`: their values in a branch, to the peaks of
 * the fold's states. */
static void seed_rows(const rfi_cpu_run *run, const rfi_cpu_tile *t, int fold, int64_t column) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_cpu_prepared *p = run->prepared;
    const rfi_branch *branch = &plan->branches[plan->folds[fold].branch];
    const rfi_states *states = &run->states[fold];
    const int padded = p->kernel->panel;
    rfi_cpu_tile one = *t;
    one.first = column, one.last = column + padded;
    rfi_cpu_multiply_tile(run, &one);
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
static void seed_fold(const rfi_cpu_run *run, const rfi_cpu_tile *t, int fold) {
    rfi_cpu_tile gathered = *t;
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
        gathered.list = lists[at], gathered.rows = counts[at], counts[at] = 0;
        seed_rows(run, &gathered, fold, begin + at * panel);
    }
    for (int64_t at = 0; at < RFI_CPU_UNIT / panel; at++) {
        if (!counts[at]) continue;
        gathered.list = lists[at], gathered.rows = counts[at];
        seed_rows(run, &gathered, fold, begin + at * panel);
    }
}

void rfi_cpu_run_ahead(void *context, int64_t unit, int slot) {
    const rfi_cpu_run *run = context;
    const rfi_plan *plan = &run->spec->plan;
    rfi_cpu_tile t = tile_of_task(run, 0, slot);
    t.unit = unit;
    t.units = 1;
    rfi_cpu_begin_products(run);
    for (int f = 0; f < plan->num_folds; f++)
        if (plan->branches[plan->folds[f].branch].seeded) seed_fold(run, &t, f);
    rfi_cpu_end_products(run);
}
