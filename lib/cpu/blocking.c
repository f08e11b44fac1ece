/* SPDX-License-Identifier: MIT */
#include "cpu/blocking.h"

#include <math.h>

#include "dtype.h"
#include "error.h"
#include "sizes.h"
#include "rows.h"
#include "top.h"

enum {
    BLOCK_UNITS = 8,        /* of a block of columns, at most: packing x is paid once for so many columns */
    BLOCK_LOGITS = 5 << 16, /* of a block, at most, where its rows could be more */
    TASKS_PER_THREAD = 8,   /* of a narrow layer, so that threads finish together */
    ROUNDS = 16,            /* tasks a thread, above which it does not matter how many they are */
    SHARED_BYTES = 6 << 16, /* of W of a narrow layer that threads share, at least, where rows are few, */
    NEAR_BYTES = 7 << 16,   /* of W of a narrow layer, which are still near when the next group of rows begins */
    SPLIT_ROWS = 64,        /* of a batch whose inputs are split, at most: its sums are stored apart for every chunk, */
    SPLIT_BYTES = 1 << 23,  /* and take no more than this */
    SPLIT_TASKS = 4,        /* tasks a thread then, at most */
    PARTED_BYTES = 1 << 22, /* of logits of tiles that threads share, at most, */
    MOST_PARTS = 8          /* each in so many parts */
};

/* In multiply-adds: packing a value of x; an operator on a logit, or folding it; for an input and column what a sliver
 * takes besides; reading a byte of W from a shared cache, which goes on beside the arithmetic of a block but for a part
 * of it, or once by all threads from memory. In tasks: by how much some thread is late at the end (doc/kernels/cpu.md
 * 11, 59). Tiles wait longer beside what is read, since their loads and it come the same way (60): longer than that,
 * but W of few rows is to be parted evenly among many threads. */
static const double PACK = 16, STEP = 40, SLIVER = 0.7, READ = 3, READ_BESIDES = 0.5, READ_BESIDES_TILES = 0.8,
                    MEMORY = 15, LATE = 0.25;

/* What is left of the time, at most, where the inputs are split; and where tiles are parted, for whose fold all
 * threads wait for each other once more: so many multiply-adds of one. */
static const double SPLIT_GAIN = 0.8, PARTED_GAIN = 0.95, WAIT = 1e6;

/* A thread is worth waking for this many multiply-adds. */
static const double WORK_PER_THREAD = 5e5;

/* Explain may be asked about any batch: a number of blocks beyond all counting is as good as the largest. */
static int64_t product(int64_t a, int64_t b) {
    int64_t result;
    return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

static size_t align_256(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

static int useful_threads(const rfi_spec *spec, int64_t batch) {
    const rfi_plan *plan = &spec->plan;
    const double steps = 1 + plan->trunk.count, k = (double)plan->in_features, n = (double)plan->out_features,
                 rows = (double)batch, read = READ * (double)rfi_dtype_size(spec->weight_dtype),
                 work = n * k * (rows > read || !batch ? rows : read) + rows * (n * STEP * steps + PACK * k);
    return work / WORK_PER_THREAD < spec->threads ? 1 + (int)(work / WORK_PER_THREAD) : spec->threads;
}

/* Would groups of rows leave more than a fifth of the threads' time idle? Columns leave less. But with more rows than
 * columns each thread would read more of x than of W. */
static int columns_are_parted(int64_t batch, int64_t groups, int64_t columns, int64_t threads) {
    if (!batch || batch > RFI_CPU_NARROW_ROWS || columns < 2 || (groups > 1 && batch > columns)) return 0;
    return 4 * ceil_div(groups, threads) * RFI_CPU_GROUP_ROWS * threads > 5 * batch;
}

/* Blocks of rows; or, where these are too few for all threads, parts of the columns. */
static void block_narrow(const rfi_spec *spec, const rfi_cpu_kernel *kernel, int64_t batch, rfi_cpu_blocking *b) {
    const size_t value = rfi_dtype_size(spec->compute_dtype), n = (size_t)spec->plan.out_features;
    const int64_t threads = b->threads;
    int64_t padded = round_up(spec->plan.out_features, kernel->panel),
            even = ceil_div(batch, (int64_t)b->threads * TASKS_PER_THREAD);
    b->rows = b->threads > 1 ? least(round_up(even, RFI_CPU_GROUP_ROWS), RFI_CPU_NARROW_ROWS) : RFI_CPU_NARROW_ROWS;
    b->row_blocks = most(1, ceil_div(batch, b->rows));
    b->column_blocks = 1;
    b->threads = (int)least(b->threads, b->row_blocks);
    const int64_t bytes = product(spec->plan.in_features, (int64_t)(n * value)),
                  groups = ceil_div(batch, RFI_CPU_GROUP_ROWS);
    b->groups = bytes > NEAR_BYTES ? (int)ceil_div(b->rows, RFI_CPU_GROUP_ROWS) : 1;
    if (threads > 1 && bytes >= SHARED_BYTES && columns_are_parted(batch, groups, (int64_t)n, threads)) {
        b->rows = batch;
        b->row_blocks = 1;
        b->column_parts = least(threads, (int64_t)n);
        b->threads = (int)b->column_parts;
        b->groups = (int)groups;
        b->apart = align_256((size_t)(groups * RFI_CPU_GROUP_ROWS * kernel->lanes) * n * value);
    }
    b->w_offset = b->x_offset + align_256((size_t)(RFI_CPU_GROUP_ROWS * RFI_CPU_X_LD) * value);
    b->c_offset = b->w_offset + align_256((size_t)(b->groups * RFI_CPU_GROUP_ROWS * kernel->lanes) * n * value);
    b->rows_offset = b->c_offset + align_256(RFI_CPU_NARROW_ROWS * n * value);
    b->own_offset = b->rows_offset + align_256((size_t)(RFI_CPU_NARROW_ROWS * (padded + 1)) * value);
    int own = 0;
    for (int r = 0; r < spec->plan.num_branches; r++) own |= spec->plan.branches[r].pre.count;
    b->scratch = b->own_offset + (own ? align_256(RFI_CPU_NARROW_ROWS * n * value) : 0);
}

/* Rows in even blocks, at least so many, and columns in blocks of so many units. */
typedef struct cut {
    int64_t row_blocks, rows, column_blocks, block_units, splits, column_parts, parted, parts;
} cut;

/* The layer as far as that is concerned. */
typedef struct layer {
    int64_t batch, inputs, columns, units, panel, chunks;
    int threads;
    double weight_bytes, besides, product; /* reading a byte besides, and a product, in multiply-adds */
    int block_rows;                        /* at most */
    int max_rows, rows_step;               /* of a sliver; tiles of AMX take whole multiples */
    size_t value;
} layer;

static cut cut_into(int64_t batch, int64_t units, int64_t row_blocks, int64_t block_units) {
    const int64_t rows = most(1, ceil_div(batch, row_blocks));
    return (cut){most(1, ceil_div(batch, rows)), rows, most(1, ceil_div(units, block_units)), block_units, 1, 1, 0, 1};
}

/* A column of W times rows that take so long, in multiply-adds for each input; and times a block of rows. */
static double time_of_column(const layer *l, double products) {
    const double read = READ * l->weight_bytes;
    return (products > read ? products : read) + l->besides * l->weight_bytes;
}

static double column_of_block(const layer *l, int64_t block_rows) {
    /* Divided sooner than 64 bits are. */
    const unsigned rows = (unsigned)block_rows, max_rows = (unsigned)l->max_rows, step = (unsigned)l->rows_step,
                   slivers = (rows + max_rows - 1) / max_rows,
                   whole = step > 1 ? (rows + step - 1) / step * step : rows;
    return time_of_column(l, (whole + SLIVER * slivers) * l->product);
}

/* A block of rows times so many columns. */
static double time_of_task(const layer *l, int64_t columns, int64_t rows) {
    return column_of_block(l, rows) * (double)columns + PACK * (double)rows;
}

static int64_t width_of(const layer *l, const cut *c) { return least(c->block_units * RFI_CPU_UNIT, l->columns); }

/* Until the last of the threads is done. Tasks are handed out one by one, those of the last block of columns at the
 * end: they may be smaller, and then several of them fit in beside a last larger one. */
static double time_of_tiles(const layer *l, const cut *c) {
    const int threads = l->threads;
    const int64_t width = c->block_units * RFI_CPU_UNIT, rest = l->columns - width * (c->column_blocks - 1),
                  large = product(c->row_blocks, c->column_blocks - (rest < width)), rounds = ceil_div(large, threads),
                  beside = (threads - large % threads) % threads;
    const double column = column_of_block(l, c->rows), pack = PACK * (double)c->rows,
                 small_time = column * (double)rest + pack, large_time = column * (double)width + pack;
    if (c->column_blocks == 1) return ((double)ceil_div(c->row_blocks, threads) + LATE) * small_time;
    const double left = rest < width ? (double)c->row_blocks - (double)beside * floor(large_time / small_time) : 0;
    return ((double)rounds + LATE) * large_time + (left > 0 ? ceil(left / threads) * small_time : 0);
}

/* The same where tiles that are no whole round of the threads are parted. */
static double time_of_parted(const layer *l, const cut *c) {
    const int64_t width = width_of(l, c), rounds = product(c->row_blocks, c->column_blocks) / l->threads,
                  part = ceil_div(ceil_div(width, l->panel), c->parts) * l->panel;
    const double end = (STEP * (double)width * (double)c->rows + WAIT) / (double)most(1, l->inputs);
    return (double)rounds * time_of_task(l, width, c->rows) +
        ((double)ceil_div(c->parted * c->parts, l->threads) + LATE) * time_of_task(l, part, c->rows) + end;
}

static double time_of(const layer *l, const cut *c) { return c->parted ? time_of_parted(l, c) : time_of_tiles(l, c); }

/* The same for all rows times a part of the columns and of the inputs. */
static double time_split(const layer *l, int64_t column_parts, int64_t splits) {
    const int64_t columns = ceil_div(l->columns / l->panel, column_parts) * l->panel;
    /* The last chunk may be short, so that a part of as many chunks as others is not. */
    const double share =
        (double)least(ceil_div(l->chunks, splits) * RFI_CPU_DEPTH, l->inputs) / (double)most(l->inputs, 1);
    return ((double)ceil_div(column_parts * splits, l->threads) + LATE) * share * time_of_task(l, columns, l->batch);
}

/* Few rows and few columns are too few tasks, so that some threads have nothing to do or every one reads all of W. Then
 * columns are cut within units, and the inputs, too, if that gains enough for a second pass, in which units are folded.
 */
static cut split_columns_and_inputs(cut c, const layer *l) {
    const int64_t tasks = (int64_t)l->threads * SPLIT_TASKS, panels = l->columns / l->panel;
    if (l->threads == 1 || l->batch > SPLIT_ROWS || l->units > tasks) return c;
    double least_time = SPLIT_GAIN * time_of(l, &c);
    cut best = c;
    for (int64_t parts = 1; parts <= panels && parts <= tasks; parts++)
        for (int64_t splits = 1; splits <= l->chunks && splits * parts <= tasks; splits++) {
            const double time = time_split(l, parts, splits);
            if (time >= least_time || splits * parts == 1) continue;
            least_time = time;
            best = cut_into(l->batch, l->units, 1, 1);
            best.splits = ceil_div(l->chunks, ceil_div(l->chunks, splits));
            best.column_parts = parts;
        }
    return best;
}

static int64_t tasks_of(const cut *c) {
    return product(product(c->row_blocks, c->column_blocks), product(c->splits, c->column_parts)) +
        c->parted * (c->parts - 1);
}

/* A thread that has nothing to do reads nothing of W either. */
static double time_of_memory(const layer *l, const cut *c) {
    const int64_t tasks = tasks_of(c);
    return MEMORY * l->weight_bytes * (double)l->columns / (double)least(tasks, l->threads);
}

static void consider(cut *best, double *least_time, const cut *c, double time) {
    if (best->rows && time >= *least_time) return;
    *least_time = time;
    *best = *c;
}

/* Elements from one row of a tile's logits to the next. */
static int64_t ld_of(const layer *l, const cut *c) { return width_of(l, c) + 16; }

/* A cut whose last tiles, no whole round of all threads, are parted, if they take no more than PARTED_BYTES. There is a
 * round of whole tiles, so that all logits are never stored. */
static void consider_parted(const layer *l, cut *best, double *least_time, cut *c) {
    const int64_t tiles = product(c->row_blocks, c->column_blocks), panels = ceil_div(width_of(l, c), l->panel);
    if (tiles < l->threads || tiles / l->threads > ROUNDS) return;
    c->parted = tiles % l->threads;
    if (!c->parted || product(c->parted, product(c->rows * (int64_t)l->value, ld_of(l, c))) > PARTED_BYTES) return;
    for (c->parts = 2; c->parts <= least(panels, MOST_PARTS); c->parts *= 2)
        consider(best, least_time, c, time_of_parted(l, c) + time_of_memory(l, c));
}

/* Of a block of so many units. */
static int64_t most_rows(const layer *l, int64_t block_units) {
    const int64_t rows = BLOCK_LOGITS / (block_units * RFI_CPU_UNIT);
    return least(l->block_rows, rows - rows % l->rows_step);
}

/* For each width of a block of columns the highest blocks of rows, and blocks of which whole rounds of all threads make
 * the batch; or where tiles are parted the fewest that are more than these. One thread has the widest of the highest.
 */
static cut cut_in_rounds(const layer *l, int parting, double *least_time) {
    cut best = {0};
    for (int64_t widest = most(1, least(BLOCK_UNITS, l->units)); widest; widest--) {
        const int64_t column_blocks = most(1, ceil_div(l->units, widest)),
                      block_units = most(1, ceil_div(l->units, column_blocks));
        if (block_units < widest) continue; /* no fewer blocks than with fewer units */
        const int64_t highest = most_rows(l, block_units), fewest = most(1, ceil_div(l->batch, highest));
        for (int64_t rounds = 0; rounds <= ROUNDS; rounds++) {
            const int64_t tiles = rounds * l->threads,
                          row_blocks = (tiles + (parting ? column_blocks - 1 : 0)) / column_blocks;
            if (rounds && row_blocks <= fewest) continue;
            if (row_blocks > l->batch) break;
            cut c = cut_into(l->batch, l->units, most(row_blocks, fewest), block_units);
            if (parting) consider_parted(l, &best, least_time, &c);
            else consider(&best, least_time, &c, time_of_tiles(l, &c) + time_of_memory(l, &c));
            if (l->threads == 1) break;
        }
        if (l->threads == 1 && highest >= least(l->batch, l->block_rows)) break;
    }
    return best;
}

/* Tiles are parted where there is enough to gain. */
static cut cut_evenly(const layer *l) {
    double least_time = 0, parted_time = 0;
    const cut even = cut_in_rounds(l, 0, &least_time);
    const double column = time_of_column(l, (double)l->batch * l->product) + MEMORY * l->weight_bytes,
                 no_less = column * (double)l->columns / l->threads + WAIT / (double)most(1, l->inputs);
    if (l->threads == 1 || no_less >= PARTED_GAIN * least_time) return even;
    const cut parted = cut_in_rounds(l, 1, &parted_time);
    return parted.rows && parted_time < PARTED_GAIN * least_time ? parted : even;
}

/* Blocks of rows and of columns. */
static void block_wide(const rfi_spec *spec, const rfi_cpu_kernel *kernel, int64_t batch, rfi_cpu_blocking *b) {
    int64_t padded = round_up(spec->plan.out_features, kernel->panel);
    size_t value = rfi_dtype_size(spec->compute_dtype);
    b->units = ceil_div(padded, RFI_CPU_UNIT);
    const rfi_cpu_pairs *pairs = rfi_cpu_pairs_of(spec, kernel);
    const rfi_cpu_terms *terms = rfi_cpu_in_terms(spec, kernel) ? kernel->terms : NULL;
    const double bytes = (double)rfi_cpu_weight_item(spec, kernel),
                 rate = pairs ? pairs->rate
        : terms               ? terms->rate
                              : 1;
    const int64_t chunks = ceil_div(spec->plan.in_features, RFI_CPU_DEPTH);
    const layer l = {
        .batch = batch,
        .inputs = spec->plan.in_features,
        .columns = padded,
        .units = b->units,
        .panel = kernel->panel,
        .chunks = chunks,
        .threads = b->threads,
        .weight_bytes = bytes,
        .besides = terms || (pairs && pairs->tiles) ? READ_BESIDES_TILES : READ_BESIDES,
        .product = 1 / rate,
        .block_rows = pairs ? (b->threads == 1 ? (int)most(pairs->alone_rows, pairs->block_rows) : pairs->block_rows)
            : terms         ? terms->block_rows
                            : RFI_CPU_ROWS,
        .max_rows = pairs ? pairs->max_rows
            : terms       ? terms->max_rows
                          : kernel->max_rows,
        .rows_step = pairs ? pairs->rows_step
            : terms        ? terms->rows_step
                           : 1,
        .value = value,
    };
    cut c = cut_evenly(&l);
    if (!pairs && !terms && product(product(batch, padded), product(chunks, (int64_t)value)) <= SPLIT_BYTES)
        c = split_columns_and_inputs(c, &l);
    b->row_blocks = c.row_blocks;
    b->rows = c.rows;
    b->column_blocks = c.column_blocks;
    b->block_units = c.block_units;
    b->splits = c.splits;
    b->column_parts = c.column_parts;
    b->parted = c.parted;
    b->parts = c.parts;
    b->threads = (int)least(b->threads, tasks_of(&c));

    b->c_ld = ld_of(&l, &c);
    b->pairs_offset = b->x_offset + align_256((size_t)b->rows * RFI_CPU_X_LD * value);
    const int64_t row_pairs = pairs ? round_up(b->rows, pairs->rows_step) * RFI_CPU_PAIRS_LD
        : terms                     ? round_up(b->rows, terms->rows_step) * RFI_CPU_TERMS_LD
                                    : 0;
    b->ranges_offset = b->pairs_offset + align_256((size_t)row_pairs * sizeof(uint32_t));
    b->w_offset = b->ranges_offset + (terms ? align_256((size_t)b->rows * sizeof(rfi_cpu_range)) : 0);
    b->c_offset = b->w_offset +
        (spec->weight_dtype == spec->compute_dtype && !terms
                ? 0
                : align_256((size_t)(RFI_CPU_DEPTH * kernel->panel) * value));
    const size_t logits = align_256((size_t)(b->rows * b->c_ld) * value);
    b->stretch_offset = b->c_offset + logits;
    b->scratch = b->stretch_offset + (spec->plan.in_features > RFI_CPU_STRETCH ? logits : 0);
    b->apart = (size_t)b->parted * logits;
    if (rfi_cpu_is_split(b)) {
        b->sums = chunks;
        b->rows_of_sums = batch;
        b->c_ld_apart = padded + 16;
        b->apart = align_256((size_t)(b->sums * batch * b->c_ld_apart) * value);
    }
    const size_t group = (size_t)rfi_plan_words(&spec->plan) * sizeof(double),
                 groups = (size_t)rfi_shard_groups(&spec->plan.columns) * RFI_CPU_FINISH_ROWS;
    b->scratch = (size_t)most((int64_t)b->scratch, (int64_t)align_256(groups * group));
}

size_t rfi_cpu_fold_states(const rfi_spec *spec, int fold, int64_t batch, int64_t units) {
    const int words = rfi_reduction_words(spec->plan.folds[fold].reduction);
    return align_256((size_t)batch * (size_t)units * (size_t)words * rfi_dtype_size(spec->compute_dtype));
}

size_t rfi_cpu_branch_tops(const rfi_cpu_blocking *blocking, const rfi_branch *branch, int64_t batch) {
    return branch->top && !blocking->narrow ? align_256((size_t)batch * (size_t)rfi_top_bytes(branch->top)) : 0;
}

rf_status rfi_cpu_block(const rfi_spec *spec, const rfi_cpu_kernel *kernel, int64_t batch, rfi_cpu_blocking *b) {
    int64_t value = (int64_t)rfi_dtype_size(spec->compute_dtype), states = 0, list = 0, tops = 0,
            words = rfi_plan_words(&spec->plan);
    *b = (rfi_cpu_blocking){.threads = useful_threads(spec, batch),
        .narrow = rfi_cpu_is_narrow(spec, kernel),
        .splits = 1,
        .column_parts = 1,
        .parts = 1};
    (b->narrow ? block_narrow : block_wide)(spec, kernel, batch, b);
    for (int r = 0; r < spec->plan.num_branches; r++)
        if (spec->plan.branches[r].top) tops += rfi_top_bytes(spec->plan.branches[r].top);
    if (words &&
        (__builtin_mul_overflow(batch, b->units, &states) || __builtin_mul_overflow(states, words * value, &states) ||
            __builtin_mul_overflow(batch, (int64_t)sizeof(int64_t), &list) ||
            __builtin_mul_overflow(batch, tops, &tops) || states > PTRDIFF_MAX / 2 || list > PTRDIFF_MAX / 4 ||
            tops > PTRDIFF_MAX / 8))
        return rfi_error(
            RF_OUT_OF_MEMORY, "batch %lld needs a larger workspace than memory can hold", (long long)batch);
    b->row_list = spec->plan.collapsible ? align_256((size_t)list) : 0;
    for (int f = 0; f < spec->plan.num_folds; f++) b->states += rfi_cpu_fold_states(spec, f, batch, b->units);
    for (int r = 0; r < spec->plan.num_branches; r++) b->tops += rfi_cpu_branch_tops(b, &spec->plan.branches[r], batch);
    return RF_OK;
}
