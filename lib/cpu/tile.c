/* SPDX-License-Identifier: MIT */
/* One task of a forward: the logits of a block of rows and columns, the steps on them, and their fold. */
#include <math.h>
#include <string.h>

#include "cpu/forward.h"
#include "dtype.h"
#include "sizes.h"

enum {
    STREAM_AHEAD = 4096, /* bytes between use and prefetch where W only passes through */
    ROWS_AHEAD = 8       /* rows between the packing of x and its prefetch */
};

/* A block of rows and of units, and the scratch of the thread that works on it. */
typedef struct tile {
    int64_t row, rows, unit, units;
    const int64_t *list; /* (rows) which of the run they are; NULL: from `row` on */
    size_t value, item;  /* bytes of the compute type, and of x */
    char *x, *w, *c;
    uint32_t *pairs;       /* x, where W is in pairs; several terms of it, where W is */
    rfi_cpu_range *ranges; /* (rows) of x in terms */
    char *apart;           /* where the sums of blocks lie, of the first column of the first row; NULL: added in c */
    int64_t begin, end;    /* of the inputs, whole chunks but for the last, */
    int64_t first, last;   /* and of the columns, in whole panels */
} tile;

static tile tile_of_task(const rfi_cpu_run *run, int64_t task, int slot) {
    const rfi_cpu_blocking *b = &run->blocking;
    char *scratch = run->scratch + (size_t)slot * b->scratch;
    int64_t row = task % b->row_blocks * b->rows, unit = task / b->row_blocks * b->block_units;
    int64_t units = least(b->block_units, b->units - unit), first = unit * RFI_CPU_UNIT;
    return (tile){
        .row = row,
        .rows = least(b->rows, run->rows - row),
        .unit = unit,
        .units = units,
        .value = rfi_dtype_size(run->spec->compute_dtype),
        .item = rfi_dtype_size(run->call->x_dtype),
        .x = scratch + b->x_offset,
        .w = scratch + b->w_offset,
        .c = scratch + b->c_offset,
        .pairs = (uint32_t *)(void *)(scratch + b->pairs_offset),
        .ranges = (rfi_cpu_range *)(void *)(scratch + b->ranges_offset),
        .end = run->spec->plan.in_features,
        .first = first,
        .last = least(first + units * RFI_CPU_UNIT, run->prepared->padded),
    };
}

static const char *x_of(const rfi_cpu_run *run, const tile *t, int64_t i, int64_t k) {
    return rfi_cpu_x(run, t->list ? t->list[i] : t->row + i, t->item) + (size_t)k * t->item;
}

/* Where the multiplication of a tile stands: a chunk of inputs, and in it one panel after the other. */
typedef struct place {
    int64_t k, depth;
    int64_t column; /* first of the panel */
    int least;      /* of x in pairs: rfi_cpu_pairs_exact; 0 if it is not there */
    int widened;    /* x is there in the compute type */
    int64_t apart;  /* rows of x in terms that this panel is multiplied with in float instead */
    int came_ahead; /* x was asked for while the chunk before was multiplied */
} place;

/* A row's part of a chunk is too short for the processor to see where the next one begins, unless that is where this
 * one ends. */
static void ask_for_row(const rfi_cpu_run *run, const tile *t, int64_t i, const place *at) {
    if (i + ROWS_AHEAD >= t->rows || at->depth == run->call->ldx || at->came_ahead) return;
    const char *x = x_of(run, t, i + ROWS_AHEAD, at->k);
    const size_t bytes = (size_t)at->depth * t->item;
    for (size_t b = 0; b < bytes; b += RFI_CPU_ALIGN) __builtin_prefetch(x + b);
}

static void widen_x(const rfi_cpu_run *run, const tile *t, place *at) {
    at->widened = 1;
    if (!at->depth) return; /* x may be NULL */
    for (int64_t i = 0; i < t->rows; i++) {
        ask_for_row(run, t, i, at);
        run->prepared->kernel->widen(
            t->x + (size_t)(i * RFI_CPU_X_LD) * t->value, x_of(run, t, i, at->k), run->call->x_dtype, at->depth);
    }
}

static void need_values(const rfi_cpu_run *run, const tile *t, place *at) {
    if (!at->widened) widen_x(run, t, at);
}

/* x of another type has fewer terms, and the others are zero. */
static void split_x(const rfi_cpu_run *run, const tile *t, place *at) {
    const rfi_cpu_terms *terms = run->prepared->terms;
    const int in_float = run->call->x_dtype == RF_FLOAT32;
    if (!in_float) widen_x(run, t, at);
    for (int64_t i = 0; i < t->rows; i++) {
        if (in_float) ask_for_row(run, t, i, at);
        const void *x = in_float ? x_of(run, t, i, at->k) : t->x + (size_t)(i * RFI_CPU_X_LD) * t->value;
        t->ranges[i] = terms->split_row(t->pairs + i * RFI_CPU_TERMS_LD, x, at->depth);
    }
}

static int x_in_pairs(const rfi_cpu_run *run) { return run->prepared->pairs && run->call->x_dtype == RF_BFLOAT16; }

static void pack_x(const rfi_cpu_run *run, const tile *t, place *at) {
    const rfi_cpu_pairs *pairs = run->prepared->pairs;
    if (run->prepared->terms && at->depth) {
        split_x(run, t, at);
        return;
    }
    if (!x_in_pairs(run) || !at->depth) {
        widen_x(run, t, at);
        return;
    }
    uint16_t smallest[RFI_CPU_LEAST];
    memset(smallest, 0xff, sizeof smallest);
    for (int64_t i = 0; i < t->rows; i++) {
        ask_for_row(run, t, i, at);
        pairs->pack(t->pairs + i * RFI_CPU_PAIRS_LD, (const void *)x_of(run, t, i, at->k), at->depth, smallest);
    }
    for (int i = 1; i < RFI_CPU_LEAST; i++) smallest[0] = smallest[i] < smallest[0] ? smallest[i] : smallest[0];
    at->least = rfi_cpu_least_exponent(smallest[0]);
}

static const char *panel_of(const rfi_cpu_run *run, const place *at) {
    const rfi_cpu_prepared *p = run->prepared;
    int64_t unit = at->column / RFI_CPU_UNIT, packed = least(p->depth - at->k, RFI_CPU_DEPTH);
    int64_t offset = rfi_cpu_chunk_offset(p, unit, at->k) + at->column % RFI_CPU_UNIT * packed;
    return (const char *)p->weight + (size_t)offset * p->item;
}

/* A row of a panel, of either type. */
static const double zeros[RFI_CPU_UNIT];

/* What a panel is multiplied with. A row of x and an input of W begin so many bytes after the one before; an input of x
 * takes x_item. */
typedef struct factors {
    const rfi_cpu_multiply *multiply;
    const char *x, *w;
    size_t x_row, x_item, w_item;
    int64_t slivers, rows_step; /* the tile's rows come in so many, whole multiples of rows_step but for the last */
    int64_t block;              /* inputs of a chunk whose products are added up at a time */
} factors;

static rfi_cpu_range range_of_panel(const rfi_cpu_prepared *p, const place *at) {
    return p->ranges[rfi_cpu_panel_chunk(p, at->column, at->k)];
}

/* The values of a panel that is packed in terms. */
static const float *values_of_panel(const rfi_cpu_run *run, const tile *t, const place *at) {
    const void *w = panel_of(run, at);
    if (!rfi_cpu_has_terms(range_of_panel(run->prepared, at))) return w;
    run->prepared->terms->join_panel((float *)(void *)t->w, w, at->depth);
    return (const float *)(const void *)t->w;
}

/* Every way for x of one type adds the same products in the same order and rounds each sum alike, so that a row's bits
 * do not depend on the others of its tile, which have a part in the choice. */
static factors factors_of(const rfi_cpu_run *run, const tile *t, place *at) {
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
        .slivers = ceil_div(t->rows, kernel->max_rows),
        .rows_step = 1,
        .block = rfi_cpu_block_depth(at->depth, t->value),
    };
    if (p->terms && at->depth) {
        if (at->apart < t->rows) {
            f.multiply = p->terms->multiply;
            f.x = (const char *)t->pairs;
            f.x_row = RFI_CPU_TERMS_LD * sizeof(uint32_t);
            f.slivers = ceil_div(t->rows, p->terms->max_rows);
            f.rows_step = p->terms->rows_step;
            f.block = RFI_CPU_DEPTH;
            return f;
        }
        f.w = (const char *)values_of_panel(run, t, at);
    }
    const int exact =
        p->pairs && at->depth && rfi_cpu_pairs_exact(at->least, p->least[rfi_cpu_panel_chunk(p, at->column, at->k)]);
    if (exact || (p->pairs && at->depth && x_in_pairs(run) && p->pairs->multiply_any)) {
        f.multiply = exact ? p->pairs->multiply : p->pairs->multiply_any;
        f.x = (const char *)t->pairs;
        f.x_row = RFI_CPU_PAIRS_LD * sizeof(uint32_t);
        f.x_item = sizeof(uint32_t) / 2;
        f.slivers = ceil_div(t->rows, p->pairs->max_rows);
        f.rows_step = p->pairs->rows_step;
        if (p->pairs->whole) f.block = RFI_CPU_DEPTH;
        return f;
    }
    need_values(run, t, at);
    if (f.multiply && (f.slivers == 1 || stored == compute)) return f;
    if (p->pairs) p->pairs->widen((float *)(void *)t->w, (const uint32_t *)(const void *)f.w, at->depth);
    else kernel->widen(t->w, f.w, stored, at->depth * kernel->panel);
    f.multiply = kernel->multiply[compute];
    f.w = t->w;
    f.w_item = panel * t->value;
    return f;
}

/* Is more of x read than of W, and all of it alike? Then the next chunk of x is asked for while this one is multiplied,
 * which leaves W to the processor's own foresight. */
static int x_comes_ahead(const rfi_cpu_run *run, const tile *t) {
    return t->rows > t->last - t->first && !t->list && !run->row_list && !run->call->wanted;
}

/* What block `block` of `blocks` of a panel's chunk asks for of rows `first` to `end` in the next chunk: some of them,
 * a line of each in a turn. Panels and blocks share the rows. */
static void ask_for_x(const rfi_cpu_run *run, const tile *t, const place *at, int64_t first, int64_t end, int64_t block,
    int64_t blocks, rfi_cpu_sliver *sliver) {
    const int64_t panel = run->prepared->kernel->panel, parts = (t->last - t->first) / panel * blocks,
                  part = (at->column - t->first) / panel * blocks + block, row = first + (end - first) * part / parts,
                  k = at->k + RFI_CPU_DEPTH, turns = most(1, sliver->depth / RFI_CPU_STEP);
    sliver->ahead_lines = k < t->end ? (int)(first + (end - first) * (part + 1) / parts - row) : 0;
    if (!sliver->ahead_lines) return;
    sliver->ahead = x_of(run, t, row, k);
    sliver->ahead_apart = run->call->ldx * (int64_t)t->item;
    sliver->ahead_step = least(RFI_CPU_DEPTH, t->end - k) * (int64_t)t->item / turns;
}

/* All rows of the tile times one panel. Slivers of nearly equal height: a short last one would leave the multipliers
 * idle. */
static void multiply_panel(const rfi_cpu_run *run, const tile *t, place *at, const char *next) {
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    const factors f = factors_of(run, t, at);
    const int64_t c_ld = t->apart ? run->blocking.c_ld_apart : run->blocking.c_ld, slivers = f.slivers, block = f.block;
    const size_t sums = t->apart ? (size_t)(run->blocking.rows_of_sums * c_ld) * t->value : 0;
    char *const out = t->apart ? t->apart + (size_t)rfi_cpu_block_number(at->k, t->value) * sums : t->c;
    int64_t bytes = at->depth * kernel->panel * (int64_t)run->prepared->item;
    const int last = !t->apart && at->k + at->depth == run->spec->plan.in_features, from_zero = t->apart || !at->k;
    int64_t lines = bytes / RFI_CPU_ALIGN, turns = at->depth / RFI_CPU_STEP + 1;
    const int64_t blocks = ceil_div(at->depth, block);
    const int ask = blocks && x_comes_ahead(run, t); /* a layer without inputs has no blocks, nor a next chunk */
    for (int64_t s = 0; s < slivers; s++) {
        const int64_t first = round_up(t->rows * s / slivers, f.rows_step),
                      end = least(round_up(t->rows * (s + 1) / slivers, f.rows_step), t->rows), rows = end - first;
        char *c = out + (size_t)(first * c_ld + at->column - t->unit * RFI_CPU_UNIT) * t->value;
        const char *bias =
            last ? (const char *)run->prepared->bias + (size_t)at->column * t->value : (const char *)zeros;
        rfi_cpu_sliver sliver = {
            .depth = least(block, at->depth),
            .x = f.x + (size_t)first * f.x_row,
            .w = f.w,
            .in = from_zero ? (const char *)zeros : c,
            .ld_in = from_zero ? 0 : c_ld,
            .bias = at->depth <= block ? bias : (const char *)zeros,
            .out = c,
            .ld_out = c_ld,
            .ahead = slivers == 1 ? f.w + STREAM_AHEAD : next + lines * s / slivers * RFI_CPU_ALIGN,
            .ahead_lines = (int)ceil_div(lines, slivers * turns),
            .ahead_apart = RFI_CPU_ALIGN,
        };
        sliver.ahead_step = sliver.ahead_lines * RFI_CPU_ALIGN;
        if (ask) ask_for_x(run, t, at, first, end, 0, blocks, &sliver);
        f.multiply[rows - 1](&sliver);
        for (int64_t k = block; k < at->depth; k += block) {
            sliver.depth = least(block, at->depth - k);
            sliver.x = (const char *)sliver.x + (size_t)block * f.x_item;
            sliver.w = (const char *)sliver.w + (size_t)block * f.w_item;
            if (t->apart) {
                sliver.out = (char *)sliver.out + sums;
            } else {
                sliver.in = c;
                sliver.ld_in = c_ld;
            }
            if (ask) ask_for_x(run, t, at, first, end, k / block, blocks, &sliver);
            else sliver.ahead += block / RFI_CPU_STEP * sliver.ahead_step;
            if (k + block >= at->depth) sliver.bias = bias;
            f.multiply[rows - 1](&sliver);
        }
    }
}

/* Rows `first` to `end` of a tile times a panel of values, as cpu-avx512 does, to (rows, panel). */
static void multiply_in_float(
    const rfi_cpu_run *run, const tile *t, const place *at, const float *w, int64_t first, int64_t end, float *to) {
    const rfi_cpu_prepared *p = run->prepared;
    const int64_t panel = p->kernel->panel, c_ld = run->blocking.c_ld,
                  block = rfi_cpu_block_depth(at->depth, sizeof(float));
    const int last = at->k + at->depth == run->spec->plan.in_features;
    for (int64_t row = first; row < end; row += p->kernel->max_rows) {
        const int64_t rows = least(p->kernel->max_rows, end - row);
        const float *c = (const float *)(const void *)t->c + row * c_ld + at->column - t->unit * RFI_CPU_UNIT;
        rfi_cpu_sliver s = {.in = at->k ? (const void *)c : zeros,
            .ld_in = at->k ? c_ld : 0,
            .out = to + (row - first) * panel,
            .ld_out = panel,
            .ahead = (const char *)w};
        for (int64_t k = 0; k < at->depth; k += block) {
            s.depth = least(block, at->depth - k);
            s.x = (const float *)(const void *)t->x + row * RFI_CPU_X_LD + k;
            s.w = w + k * panel;
            s.bias = last && k + block >= at->depth ? (const float *)p->bias + at->column : (const void *)zeros;
            p->kernel->multiply[RF_FLOAT32][rows - 1](&s);
            s.in = s.out;
            s.ld_in = panel;
        }
    }
}

/* A row whose products with a panel may be subnormal, overflow or meet infinities is multiplied with it in float. That
 * depends on the row's part of the chunk and on W alone. Where some rows are such, all go through the tiles, and these
 * get their own sums afterwards. */
static void multiply_panel_in_terms(const rfi_cpu_run *run, const tile *t, place *at, const char *next) {
    const rfi_cpu_range w = range_of_panel(run->prepared, at);
    const int64_t panel = run->prepared->kernel->panel, c_ld = run->blocking.c_ld;
    float sums[RFI_CPU_TILE_BLOCK * RFI_CPU_TILE_PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
    at->apart = 0;
    for (int64_t i = 0; i < t->rows; i++) at->apart += !rfi_cpu_terms_exact(t->ranges[i], w);
    if (at->apart == 0 || at->apart == t->rows) {
        multiply_panel(run, t, at, next);
        return;
    }
    need_values(run, t, at);
    const float *values = values_of_panel(run, t, at);
    for (int64_t i = 0, end; i < t->rows; i = end + 1) {
        for (end = i; end < t->rows && !rfi_cpu_terms_exact(t->ranges[end], w);) end++;
        if (end > i) multiply_in_float(run, t, at, values, i, end, sums + i * panel);
    }
    multiply_panel(run, t, at, next);
    float *c = (float *)(void *)t->c + at->column - t->unit * RFI_CPU_UNIT;
    for (int64_t i = 0; i < t->rows; i++)
        if (!rfi_cpu_terms_exact(t->ranges[i], w)) memcpy(c + i * c_ld, sums + i * panel, (size_t)panel * sizeof *sums);
}

static void begin_products(const rfi_cpu_run *run) {
    const rfi_cpu_prepared *p = run->prepared;
    if (x_in_pairs(run) && p->pairs->begin) p->pairs->begin();
    if (p->terms && p->terms->begin) p->terms->begin();
}

static void end_products(const rfi_cpu_run *run) {
    const rfi_cpu_prepared *p = run->prepared;
    if (x_in_pairs(run) && p->pairs->end) p->pairs->end();
    if (p->terms && p->terms->end) p->terms->end();
}

static void multiply_any_panel(const rfi_cpu_run *run, const tile *t, place *at, const char *next) {
    if (run->prepared->terms && at->depth) multiply_panel_in_terms(run, t, at, next);
    else multiply_panel(run, t, at, next);
}

/* The logits of a tile. A layer without inputs still has its bias: one chunk of no depth. */
static void multiply_tile(const rfi_cpu_run *run, const tile *t) {
    int64_t in_features = t->end, panel = run->prepared->kernel->panel;
    int64_t begin = t->first, end = t->last;
    for (int64_t k = t->begin; k == t->begin || k < in_features; k += RFI_CPU_DEPTH) {
        place at = {.k = k,
            .depth = least(RFI_CPU_DEPTH, in_features - k),
            .came_ahead = k > t->begin && x_comes_ahead(run, t)};
        pack_x(run, t, &at);
        for (at.column = begin; at.column < end; at.column += panel) {
            place next = {.k = k, .depth = at.depth, .column = at.column + panel};
            if (next.column >= end)
                next = (place){.k = k + RFI_CPU_DEPTH,
                    .depth = least(RFI_CPU_DEPTH, in_features - k - RFI_CPU_DEPTH),
                    .column = begin};
            multiply_any_panel(run, t, &at, next.depth > 0 ? panel_of(run, &next) : run->prepared->weight);
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

static void finish_tile(const rfi_cpu_run *run, const tile *t) {
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
    const tile t = tile_of_task(run, task, slot);
    begin_products(run);
    multiply_tile(run, &t);
    end_products(run);
    finish_tile(run, &t);
}

static char *apart_of(const rfi_cpu_run *run, const tile *t) {
    return run->apart + (size_t)(t->row * run->blocking.c_ld_apart + t->unit * RFI_CPU_UNIT) * t->value;
}

void rfi_cpu_run_part(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const rfi_cpu_blocking *b = &run->blocking;
    const int64_t in_features = run->spec->plan.in_features, panel = run->prepared->kernel->panel,
                  input_part = task % b->splits, column_part = task / b->splits,
                  chunks = ceil_div(in_features, RFI_CPU_DEPTH), panels = run->prepared->padded / panel;
    tile t = tile_of_task(run, 0, slot);
    t.apart = apart_of(run, &t);
    t.begin = chunks * input_part / b->splits * RFI_CPU_DEPTH;
    t.end = least(chunks * (input_part + 1) / b->splits * RFI_CPU_DEPTH, in_features);
    t.first = panels * column_part / b->column_parts * panel;
    t.last = panels * (column_part + 1) / b->column_parts * panel;
    multiply_tile(run, &t);
}

/* The order in which a task alone adds the blocks. Each is from 0 on, and the sum of 0 and of what follows is never -0,
 * so a block of -0 that was stored as 0 makes no difference. */
void rfi_cpu_run_parts_end(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const rfi_cpu_blocking *b = &run->blocking;
    const tile t = tile_of_task(run, task, slot);
    for (int64_t i = 0; i < t.rows; i++)
        run->prepared->kernel->add_up(t.c + (size_t)(i * b->c_ld) * t.value,
            apart_of(run, &t) + (size_t)(i * b->c_ld_apart) * t.value, b->rows_of_sums * b->c_ld_apart, b->sums,
            (const char *)run->prepared->bias + (size_t)t.first * t.value, (int)(t.last - t.first));
    finish_tile(run, &t);
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
        place at = {.k = k, .depth = least(RFI_CPU_DEPTH, plan->in_features - k), .column = column};
        pack_x(run, t, &at);
        multiply_any_panel(run, t, &at, p->weight);
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
static void seed_fold(const rfi_cpu_run *run, const tile *t, int fold) {
    tile gathered = *t;
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
    tile t = tile_of_task(run, 0, slot);
    t.unit = unit;
    t.units = 1;
    begin_products(run);
    for (int f = 0; f < plan->num_folds; f++)
        if (plan->branches[plan->folds[f].branch].seeded) seed_fold(run, &t, f);
    end_products(run);
}
