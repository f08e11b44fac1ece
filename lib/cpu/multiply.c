/* SPDX-License-Identifier: MIT */
/* The logits of a tile: each chunk of x times one panel of W after the other, in the form that both allow. */
#include <string.h>

#include "cpu/features.h"
#include "cpu/tile.h"
#include "dtype.h"
#include "sizes.h"

enum { STREAM_AHEAD = 4096 }; /* bytes between use and prefetch of a panel that none follows */

static const char *panel_of(const rfi_cpu_run *run, const rfi_cpu_place *at) {
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
    int tiles, begins;          /* which are tiles', and may come in halves */
} factors;

static rfi_cpu_range range_of_panel(const rfi_cpu_prepared *p, const rfi_cpu_place *at) {
    return p->ranges[rfi_cpu_panel_chunk(p, at->column, at->k)];
}

/* The values of a panel that is packed in terms. */
static const float *values_of_panel(const rfi_cpu_run *run, const rfi_cpu_tile *t, const rfi_cpu_place *at) {
    const void *w = panel_of(run, at);
    if (!rfi_cpu_has_terms(range_of_panel(run->prepared, at))) return w;
    run->prepared->terms->join_panel((float *)(void *)t->w, w, at->depth);
    return (const float *)(const void *)t->w;
}

/* Every way for x of one type adds the same products in the same order and rounds each sum alike, so that a row's bits
 * do not depend on the others of its tile, which have a part in the choice. */
static factors factors_of(const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at) {
    enum { HALVING_THREADS = 4 }; /* more may be two on a core, whose first cache has no room for a half of each (64) */
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
        .block = rfi_cpu_block_depth(at->depth, stored),
    };
    if (at->depth && rfi_cpu_x_lies(run, t)) {
        f.multiply = kernel->multiply_lying;
        f.x = rfi_cpu_x_of_tile(run, t, 0, at->k);
        f.x_row = (size_t)run->call->ldx * t->item;
        return f;
    }
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
    const int in_pairs = at->depth && rfi_cpu_x_in_pairs(run),
              exact = in_pairs &&
        (!p->pairs->flushes || rfi_cpu_pairs_exact(at->least, p->least[rfi_cpu_panel_chunk(p, at->column, at->k)]));
    if (exact || (in_pairs && p->pairs->multiply_any)) {
        f.multiply = exact ? p->pairs->multiply : p->pairs->multiply_any;
        f.x = (const char *)t->pairs;
        f.x_row = RFI_CPU_PAIRS_LD * sizeof(uint32_t);
        f.x_item = sizeof(uint32_t) / 2;
        f.slivers = ceil_div(t->rows, p->pairs->max_rows);
        f.rows_step = p->pairs->rows_step;
        f.tiles = p->pairs->tiles;
        f.begins = exact && p->pairs->begins && run->blocking.threads <= HALVING_THREADS;
        if (f.tiles) f.block = RFI_CPU_DEPTH;
        return f;
    }
    rfi_cpu_need_values(run, t, at);
    if (f.multiply && (f.slivers == 1 || stored == compute)) return f;
    if (p->pairs) p->pairs->widen((float *)(void *)t->w, (const uint32_t *)(const void *)f.w, at->depth);
    else kernel->widen(t->w, f.w, stored, at->depth * kernel->panel);
    f.multiply = kernel->multiply[compute];
    f.w = t->w;
    f.w_item = panel * t->value;
    return f;
}

/* Does x come from farther away than what was read a while ago? */
static int x_is_far(const rfi_cpu_run *run, const rfi_cpu_tile *t) {
    enum { FAR_BYTES = 3 << 20 };
    return (double)run->rows * (double)run->call->ldx * (double)t->item >= FAR_BYTES;
}

/* Do rows of x follow each other at one distance, from tile to tile? */
static int x_is_alike(const rfi_cpu_run *run, const rfi_cpu_tile *t) {
    return !t->list && !run->row_list && !run->call->wanted;
}

/* What of x is read next is asked for while a chunk is multiplied, if more of it is read than of W, or it comes from
 * far. That leaves half of the chunk's blocks for W. */
static int x_comes_ahead(const rfi_cpu_run *run, const rfi_cpu_tile *t) {
    return x_is_alike(run, t) && (t->rows > t->last - t->first || x_is_far(run, t));
}

/* While a chunk that is one block is multiplied, but by tiles of pairs, it is asked for instead of W, if there is more
 * of it or a chunk of W stays near. */
static int x_comes_instead(const rfi_cpu_run *run, const rfi_cpu_tile *t) {
    enum { NEAR_BYTES = 512 }; /* of W for each input */
    const int64_t columns = t->last - t->first;
    return x_is_alike(run, t) &&
        (t->rows > columns || (4 * t->rows > columns && columns * (int64_t)run->prepared->item <= NEAR_BYTES));
}

/* What that is: this tile's next chunk; or, if that is short or none and x is far, the first of the tile behind, with
 * which the thread most likely goes on. */
static void want_x(const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at) {
    enum { SHORT = RFI_CPU_DEPTH / 4 };
    const int has_next = !t->apart && t->row + run->blocking.rows < run->rows;
    at->wanted = most(0, least(RFI_CPU_DEPTH, t->end - at->k - RFI_CPU_DEPTH));
    at->of_next = at->wanted < SHORT && has_next && x_is_far(run, t);
    if (!at->of_next) return;
    const int is_asked_for = at->k > t->begin && at->depth < SHORT;
    at->wanted = is_asked_for ? 0 : least(RFI_CPU_DEPTH, t->end);
}

/* What block `block` of `blocks` of a panel's chunk asks for of rows `first` to `end`: some of them, a line of each in
 * a turn. Panels and blocks share the rows. */
static void ask_for_x(const rfi_cpu_run *run, const rfi_cpu_tile *t, const rfi_cpu_place *at, int64_t first,
    int64_t end, int64_t block, int64_t blocks, rfi_cpu_sliver *sliver) {
    /* Once for every block of a sliver, some 2000 cycles: 32 bits are divided sooner than 64. */
    const uint32_t parts = (uint32_t)(at->panels * blocks), part = (uint32_t)(at->panel * blocks + block);
    const int64_t ahead = at->of_next ? run->blocking.rows : 0, /* rows */
        last = at->of_next ? least(end, run->rows - t->row - ahead) : end;
    const uint32_t rows = (uint32_t)most(0, last - first), before = rows * part / parts;
    const int64_t row = first + before;
    sliver->ahead_lines = at->wanted ? (int)(rows * (part + 1) / parts - before) : 0;
    if (!sliver->ahead_lines) return;
    sliver->ahead_is_x = 1;
    /* A chunk's first line, where rows begin anywhere, was the last one of the chunk before. */
    sliver->ahead = at->of_next ? rfi_cpu_x(run, t->row + ahead + row, t->item)
                                : rfi_cpu_x_of_tile(run, t, row, at->k + RFI_CPU_DEPTH) + RFI_CPU_ALIGN - 1;
    sliver->ahead_apart = run->call->ldx * (int64_t)t->item;
    sliver->ahead_step = (uint32_t)at->wanted * (uint32_t)t->item / (uint32_t)most(1, sliver->depth / RFI_CPU_STEP);
}

/* What sliver `s` of `slivers` asks for while `depth` inputs of a panel's chunk are multiplied: its part of the next
 * one, in every turn a line from each of several places that are pages apart, since a processor reads faster ahead of
 * several streams than of one. More slivers of tiles than a few ask once a step, for lines in a row: with a line in
 * every turn each would be asked for several times. The last panel of a task asks for itself, where it passes only
 * once. Of so few rows that little is done with a line, some processors do better unasked. */
static void ask_for_w(const rfi_cpu_run *run, const rfi_cpu_tile *t, const rfi_cpu_place *at, const char *next,
    int64_t s, int64_t slivers, int64_t depth, int tiles, rfi_cpu_sliver *sliver) {
    enum { FEW_BYTES = 16 /* of a feature's logits */, FEW_SLIVERS = 2 };
    const int unasked = (size_t)t->rows * t->value <= FEW_BYTES && rfi_cpu_reads_ahead(),
              once = tiles && slivers > FEW_SLIVERS, in_a_row = !next || once;
    const int64_t lines = at->depth * run->prepared->kernel->panel * (int64_t)run->prepared->item / RFI_CPU_ALIGN,
                  turns = most(1, depth / (once ? RFI_CPU_TILE_DEPTH : RFI_CPU_STEP)),
                  in_turn = ceil_div(lines, slivers * turns);
    sliver->ahead = next ? next + lines * s / slivers * RFI_CPU_ALIGN : (const char *)sliver->w + STREAM_AHEAD;
    sliver->ahead_turns = once ? 1 : RFI_CPU_TILE_DEPTH / RFI_CPU_STEP;
    sliver->ahead_apart = (in_a_row ? 1 : turns) * RFI_CPU_ALIGN;
    sliver->ahead_step = (in_a_row ? in_turn : 1) * RFI_CPU_ALIGN;
    sliver->ahead_lines = (next || slivers == 1) && !unasked ? (int)in_turn : 0;
}

/* Is the chunk's last block the last that is added to its panel's logits, with the bias? */
static int ends_logits(const rfi_cpu_run *run, const rfi_cpu_tile *t, const rfi_cpu_place *at) {
    return !t->apart && at->sums == t->c && at->k + at->depth == run->spec->plan.in_features;
}

/* A chunk's last block of several: its sum joins those of the chunks before, if there are some. */
static void end_chunk(rfi_cpu_sliver *sliver, const rfi_cpu_sliver *whole) {
    sliver->more = whole->in;
    sliver->ld_more = whole->ld_in;
    sliver->bias = whole->bias;
    sliver->out = whole->out;
    sliver->ld_out = whole->ld_out;
    sliver->inner = 0;
}

/* Sliver `s` of all rows of a panel's chunk, as if that were one block. Slivers are of nearly equal height: a short
 * last one would leave the multipliers idle. */
static rfi_cpu_sliver sliver_of(const rfi_cpu_run *run, const rfi_cpu_tile *t, const rfi_cpu_place *at,
    const factors *f, int64_t s, int64_t *first, int64_t *end) {
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    const int64_t c_ld = t->apart ? run->blocking.c_ld_apart : run->blocking.c_ld;
    const size_t sums = t->apart ? (size_t)(run->blocking.rows_of_sums * c_ld) * t->value : 0;
    char *const out = t->apart ? t->apart + (size_t)(at->k / RFI_CPU_DEPTH) * sums : at->sums;
    const int from_zero = t->apart || at->from_zero;
    *first = round_up(t->rows * s / f->slivers, f->rows_step);
    *end = least(round_up(t->rows * (s + 1) / f->slivers, f->rows_step), t->rows);
    char *c = out + (size_t)(*first * c_ld + at->column - t->unit * RFI_CPU_UNIT) * t->value;
    return (rfi_cpu_sliver){
        .depth = at->depth,
        .x = f->x + (size_t)*first * f->x_row,
        .ld_x = run->call->ldx,
        .w = f->w,
        .in = from_zero ? (const char *)zeros : c,
        .ld_in = from_zero ? 0 : c_ld,
        .more = zeros,
        .bias = ends_logits(run, t, at) ? (const char *)run->prepared->bias + (size_t)at->column * t->value
                                        : (const char *)zeros,
        .out = c,
        .ld_out = c_ld,
        .half = at->column + kernel->panel / 2 >= run->spec->plan.out_features,
    };
}

/* By tiles, of so many slivers the first half of the inputs before the second: from sliver to sliver that half of the
 * panel stays in the first cache, which has no room for all of it beside x. The order of sums is the same. */
static void multiply_panel_in_halves(
    const rfi_cpu_run *run, const rfi_cpu_tile *t, const rfi_cpu_place *at, const factors *f, const char *next) {
    enum { SLIVERS = 8, HALF = RFI_CPU_DEPTH / 2 };
    float begun[SLIVERS][RFI_CPU_TILE_ROWS * RFI_CPU_TILE_PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
    for (int64_t group = 0; group < f->slivers; group += SLIVERS)
        for (int64_t k = 0; k < at->depth; k += HALF)
            for (int64_t s = group; s < least(group + SLIVERS, f->slivers); s++) {
                int64_t first, end;
                rfi_cpu_sliver sliver = sliver_of(run, t, at, f, s, &first, &end);
                ask_for_w(run, t, at, next, s, f->slivers, at->depth, 1, &sliver);
                sliver.depth = least(HALF, at->depth - k);
                sliver.x = (const char *)sliver.x + (size_t)k * f->x_item;
                sliver.w = (const char *)sliver.w + (size_t)k * f->w_item;
                sliver.ahead += k / RFI_CPU_TILE_DEPTH * sliver.ahead_turns * sliver.ahead_step;
                if (k) sliver.begun = begun[s - group];
                if (k + HALF < at->depth) sliver.inner = 1, sliver.out = begun[s - group];
                f->multiply[end - first - 1](&sliver);
            }
}

/* All rows of the tile times one panel. */
static void multiply_panel(const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at, const char *next) {
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    const factors f = factors_of(run, t, at);
    if (f.begins && f.slivers > 1) {
        multiply_panel_in_halves(run, t, at, &f, next);
        return;
    }
    const int64_t block = f.block, blocks = ceil_div(at->depth, block);
    float of_chunk[RFI_CPU_BLOCK_ROWS * RFI_CPU_BLOCK_PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
    /* A layer without inputs has no blocks, nor a next chunk. Tiles of x are loaded from far enough: with lines of x
     * under way besides, they would wait for each other. */
    const int64_t of_w = f.tiles ? blocks
        : blocks > 1             ? blocks - (at->asks ? blocks / 2 : 0)
                                 : blocks && !at->asks_instead;
    at->asked |= of_w < blocks;
    for (int64_t s = 0; s < f.slivers; s++) {
        int64_t first, end;
        rfi_cpu_sliver sliver = sliver_of(run, t, at, &f, s, &first, &end);
        const rfi_cpu_sliver whole = sliver;
        const rfi_cpu_multiply multiply = f.multiply[end - first - 1];
        if (blocks > 1) {
            sliver.depth = block;
            sliver.in = sliver.bias = zeros;
            sliver.ld_in = 0;
            sliver.out = of_chunk;
            sliver.ld_out = kernel->panel;
            sliver.inner = 1;
        }
        if (of_w < 1 && blocks) ask_for_x(run, t, at, first, end, 0, blocks, &sliver);
        else ask_for_w(run, t, at, next, s, f.slivers, least(of_w * block, at->depth), f.tiles, &sliver);
        multiply(&sliver);
        for (int64_t k = block; k < at->depth; k += block) {
            sliver.depth = least(block, at->depth - k);
            sliver.x = (const char *)sliver.x + (size_t)block * f.x_item;
            sliver.w = (const char *)sliver.w + (size_t)block * f.w_item;
            if (k / block >= of_w) ask_for_x(run, t, at, first, end, k / block - of_w, blocks - of_w, &sliver);
            else sliver.ahead += block / RFI_CPU_STEP * sliver.ahead_step;
            sliver.in = of_chunk;
            sliver.ld_in = kernel->panel;
            if (k + block >= at->depth) end_chunk(&sliver, &whole);
            multiply(&sliver);
        }
    }
}

/* Rows `first` to `end` of a tile times a panel of values, as cpu-avx512 does, to (rows, panel). */
static void multiply_in_float(const rfi_cpu_run *run, const rfi_cpu_tile *t, const rfi_cpu_place *at, const float *w,
    int64_t first, int64_t end, float *to) {
    const rfi_cpu_prepared *p = run->prepared;
    const int64_t panel = p->kernel->panel, c_ld = run->blocking.c_ld,
                  block = rfi_cpu_block_depth(at->depth, RF_FLOAT32);
    const int last = ends_logits(run, t, at);
    for (int64_t row = first; row < end; row += p->kernel->max_rows) {
        const int64_t rows = least(p->kernel->max_rows, end - row);
        const float *c = (const float *)(const void *)at->sums + row * c_ld + at->column - t->unit * RFI_CPU_UNIT;
        const int alone = at->depth <= block;
        rfi_cpu_sliver s = {.in = alone && !at->from_zero ? (const void *)c : zeros,
            .ld_in = alone && !at->from_zero ? c_ld : 0,
            .more = zeros,
            .bias = zeros,
            .out = to + (row - first) * panel,
            .ld_out = panel,
            .ahead = (const char *)w};
        for (int64_t k = 0; k < at->depth; k += block) {
            s.depth = least(block, at->depth - k);
            s.x = (const float *)(const void *)t->x + row * RFI_CPU_X_LD + k;
            s.w = w + k * panel;
            const int ends = k + block >= at->depth;
            if (ends && !alone && !at->from_zero) s.more = c, s.ld_more = c_ld;
            if (ends && last) s.bias = (const float *)p->bias + at->column;
            p->kernel->multiply[RF_FLOAT32][rows - 1](&s);
            s.in = s.out;
            s.ld_in = panel;
        }
    }
}

/* A row whose products with a panel may be subnormal, overflow or meet infinities is multiplied with it in float. That
 * depends on the row's part of the chunk and on W alone. Where some rows are such, all go through the tiles, and these
 * get their own sums afterwards. */
static void multiply_panel_in_terms(
    const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at, const char *next) {
    const rfi_cpu_range w = range_of_panel(run->prepared, at);
    const int64_t panel = run->prepared->kernel->panel, c_ld = run->blocking.c_ld;
    float sums[RFI_CPU_TILE_BLOCK * RFI_CPU_TILE_PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
    at->apart = 0;
    for (int64_t i = 0; i < t->rows; i++) at->apart += !rfi_cpu_terms_exact(t->ranges[i], w);
    if (at->apart == 0 || at->apart == t->rows) {
        multiply_panel(run, t, at, next);
        return;
    }
    rfi_cpu_need_values(run, t, at);
    const float *values = values_of_panel(run, t, at);
    for (int64_t i = 0, end; i < t->rows; i = end + 1) {
        for (end = i; end < t->rows && !rfi_cpu_terms_exact(t->ranges[end], w);) end++;
        if (end > i) multiply_in_float(run, t, at, values, i, end, sums + i * panel);
    }
    multiply_panel(run, t, at, next);
    float *c = (float *)(void *)at->sums + at->column - t->unit * RFI_CPU_UNIT;
    for (int64_t i = 0; i < t->rows; i++)
        if (!rfi_cpu_terms_exact(t->ranges[i], w)) memcpy(c + i * c_ld, sums + i * panel, (size_t)panel * sizeof *sums);
}

void rfi_cpu_begin_products(const rfi_cpu_run *run) {
    const rfi_cpu_prepared *p = run->prepared;
    if (rfi_cpu_x_in_pairs(run) && p->pairs->begin) p->pairs->begin();
    if (p->terms && p->terms->begin) p->terms->begin();
}

void rfi_cpu_end_products(const rfi_cpu_run *run) {
    const rfi_cpu_prepared *p = run->prepared;
    if (rfi_cpu_x_in_pairs(run) && p->pairs->end) p->pairs->end();
    if (p->terms && p->terms->end) p->terms->end();
}

/* The panel's sums of a stretch join those of the stretches before it while they are in the cache. */
static void end_stretch(const rfi_cpu_run *run, const rfi_cpu_tile *t, const rfi_cpu_place *at) {
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    const int last = at->k + at->depth == run->spec->plan.in_features;
    const char *bias = last ? (const char *)run->prepared->bias + (size_t)at->column * t->value : (const char *)zeros;
    const int64_t stretch = (t->stretch - t->c) / (int64_t)t->value;
    for (int64_t i = 0; i < t->rows; i++) {
        char *c = t->c + (size_t)(i * run->blocking.c_ld + at->column - t->unit * RFI_CPU_UNIT) * t->value;
        kernel->add_up(c, c, stretch, 2, 1, bias, kernel->panel);
    }
}

static void multiply_any_panel(const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at, const char *next) {
    const int64_t end = at->k + at->depth;
    const int joins =
        !t->apart && at->sums != t->c && (end % RFI_CPU_STRETCH == 0 || end == run->spec->plan.in_features);
    if (run->prepared->terms && at->depth) multiply_panel_in_terms(run, t, at, next);
    else multiply_panel(run, t, at, next);
    if (joins) end_stretch(run, t, at);
}

/* The logits of a tile. A layer without inputs still has its bias: one chunk of no depth. */
void rfi_cpu_multiply_tile(const rfi_cpu_run *run, const rfi_cpu_tile *t) {
    int64_t in_features = t->end, panel = run->prepared->kernel->panel;
    int64_t begin = t->first, end = t->last;
    const int asks = x_comes_ahead(run, t), asks_instead = x_comes_instead(run, t);
    int came_ahead = 0;
    for (int64_t k = t->begin; k == t->begin || k < in_features; k += RFI_CPU_DEPTH) {
        rfi_cpu_place at = {.k = k,
            .sums = k < RFI_CPU_STRETCH ? t->c : t->stretch,
            .from_zero = k % RFI_CPU_STRETCH == 0,
            .depth = least(RFI_CPU_DEPTH, in_features - k),
            .came_ahead = came_ahead,
            .asks = asks,
            .asks_instead = asks_instead,
            .panels = (end - begin) / panel};
        want_x(run, t, &at);
        rfi_cpu_pack_x(run, t, &at);
        for (at.column = begin; at.column < end; at.column += panel, at.panel++) {
            rfi_cpu_place next = {.k = k, .depth = at.depth, .column = at.column + panel};
            if (next.column >= end)
                next = (rfi_cpu_place){.k = k + RFI_CPU_DEPTH,
                    .depth = least(RFI_CPU_DEPTH, in_features - k - RFI_CPU_DEPTH),
                    .column = begin};
            multiply_any_panel(run, t, &at, next.depth > 0 ? panel_of(run, &next) : NULL);
        }
        came_ahead = at.asked && at.wanted && !at.of_next;
    }
}
