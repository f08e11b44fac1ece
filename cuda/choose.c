/* SPDX-License-Identifier: MIT */
#include "choose.h"

#include <math.h>
#include <string.h>

#include "dtype.h"
#include "sizes.h"
#include "terms.h"
#include "turned.h"
#include "whole.h"

/* Operations a clock and multiprocessor, a multiply-add counted as two: dense binary16 matrix instructions with float32
 * sums, as mma.sync reaches them, float32 and float64. From NVIDIA's architecture white papers; on 9.0 mma.sync reaches
 * five eighths of what wgmma does. A newer device counts as the last row that is not above it. */
static const struct {
    int major, minor;
    double mma16, fma32, f64;
} rates[] = {
    {8, 0, 2048, 128, 128},
    {8, 6, 512, 256, 4},
    {8, 7, 1024, 256, 4},
    {8, 9, 512, 256, 4},
    {9, 0, 2560, 256, 256},
    {10, 0, 2560, 256, 128},
    {12, 0, 1024, 256, 4},
};

static const double WARPGROUP16_RATE = 4096; /* operations a clock of the matrix instructions of sm_90a */
static const double STREAM32 = 128; /* and of float32 on any device, where shared memory feeds the operands: of which
                                       sm80/stream.cu reaches 0.3 on 9.0 */

static const double LAUNCH_SECONDS = 3e-6; /* from one kernel of a stream to the next */

/* Bytes of a tile's sums that one block adds in a second, of however many parts, where these are not counted: measured
 * on 9.0. */
static const double ADDED = 4.5e9;

/* What the last block of a tile waits for the parts of K of others, those of a last round longer; and what combining a
 * state takes, and of each of the tile's rows; one for so many columns whatever the kernel's own have, up to as many as
 * are combined by one block: measured on 9.0. */
static const double SPLIT_SECONDS = 3.2e-6, LAST_ROUND_SECONDS = 20e-6, STATE_SECONDS = 0.05e-6,
                    STATE_ROW_SECONDS = 1.1e-9;
enum { MOST_STATES = 64 };

/* Of what a multiprocessor takes for the folds of small blocks that share it, what one alone takes, measured on 9.0. */
static const double LEAST_SHARE = 0.4;

/* Least time that a row of x takes to be brought to terms, and one of up to RFI_SHORTEST_ROW values, whole pieces of 16
 * bytes or not, or to be copied, measured on 9.0. */
static const double PREPARED_ROW[] = {1.9e-9, 0.8e-9}, PREPARED_RAGGED_ROW[] = {3.3e-9, 1.3e-9}, COPIED_ROW = 1e-9;

/* What a row and a state take in the kernel behind a fold that merges states, likewise; and how much later that begins
 * where each multiprocessor has a block of large tiles to the end, beside which there are no registers for it to wait
 * with. */
static const double MERGED_ROW = 0.5e-9, MERGED_STATE = 5e-12, CROWDED_SECONDS = 4e-6;

/* What folding takes where results show less of a state of several than all, by rfi_cuda_problem.shows, of what it
 * takes with all; kernels for groups of rows take hardly less. And what a call saves where the kernel that folds a
 * row's only state finishes it, by tiles and by groups of rows. Measured on 9.0. */
static const double SHOWN_FOLD[] = {0.84, 1, 1, 1, 0.94, 1, 1, 1};
static const double ALONE_SECONDS = 3.2e-6, TURNED_ALONE_SECONDS = 2e-6;

/* What a row takes longer where something is searched for, by kernels for groups of rows, which open no pass: between
 * what topk and var take, measured on 9.0. */
static const double SEARCHED_ROW = 0.06e-6;

/* What a multiprocessor takes for a value of rows that are no whole pieces of 16 bytes, where a kernel loads them one
 * by one: those of 16 bits, of 32 and of 64, measured on 9.0. */
static const double LOADED_VALUE[] = {0.4e-9, 0.2e-9, 0.18e-9};

/* The clock of the device that rfi_turned_time_of was fitted on. */
static const double TURNED_CLOCK = 1.98e9;

typedef int (*can_run_fn)(const rfi_cuda_problem *, const rfi_cuda_figures *);

/* Bytes of shared memory that the stages of sm80/mma.cu take, and a little for what else a block keeps there. */
enum { MMA_SHARED = 98304 + 1024 };

/* Both sides as 16-bit values of one type. */
static int in_16_bit(const rfi_cuda_problem *p) {
    return p->x_terms || (!p->w_terms && rfi_is_16_bit(p->w_dtype) && p->w_dtype == p->x_dtype);
}

/* As what tensor cores take for TF32. */
static int in_tf32(const rfi_cuda_problem *p) { return p->x_terms && p->term_dtype == RF_FLOAT32; }

static int runs_mma(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return p->out_features && in_16_bit(p) && !in_tf32(p) && !p->w_panel && f->shared_per_block >= MMA_SHARED;
}

/* Small tiles: a block of W is one of their stages where there is one product. Several results are left to kernels of
 * sm_90a, see shows_less. */
static int runs_mma_small(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    rfi_cuda_problem in_rows = *p;
    if (p->w_terms <= 1 && p->x_terms <= 1 && p->states == RFI_CUDA_PAIRS) in_rows.w_panel = 0;
    return runs_mma(&in_rows, f);
}

/* Large tiles: stages of three terms a side take more. */
enum { MMA_WIDE_SHARED = 163840 + 1024 };
static int runs_mma_large(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_mma(p, f) && (p->w_terms < 3 || f->shared_per_block >= MMA_WIDE_SHARED);
}

/* One product: both sides as stored, or in one term. */
static int runs_mma_single(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_mma(p, f) && p->w_terms <= 1 && p->x_terms <= 1;
}

/* Whether x as it is stored may be multiplied with W as it is kept. */
static int takes_stored_x(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return !p->w_infinite ||
        f->shared_per_block < MMA_SHARED; /* with less no kernel reads terms of x, and one must run */
}

static int runs_stream(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return takes_stored_x(p, f) && p->batch <= 8 && !p->batch_invariant && p->out_features &&
        p->compute_dtype == RF_FLOAT32 && (p->w_terms || rfi_is_16_bit(p->w_dtype));
}

static int runs_few(const rfi_cuda_problem *p, const rfi_cuda_figures *f, rf_dtype compute_dtype) {
    return takes_stored_x(p, f) && p->compute_dtype == compute_dtype && p->out_features && p->in_features;
}

static int runs_few_f32(const rfi_cuda_problem *p, const rfi_cuda_figures *f) { return runs_few(p, f, RF_FLOAT32); }

/* A tile of eight rows reads W for these alone. */
static int runs_few_rows(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_few_f32(p, f) && p->batch <= 16 && !p->batch_invariant;
}

static int runs_few_f64(const rfi_cuda_problem *p, const rfi_cuda_figures *f) { return runs_few(p, f, RF_FLOAT64); }

static int runs_narrow_8(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_few_f32(p, f) && p->out_features <= 8;
}

static int runs_narrow_16(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_few_f32(p, f) && p->out_features <= 16 && p->x_dtype == RF_FLOAT32;
}

/* Tiles of many rows: float32 values of x as they are stored, in stages of three chunks of 32 columns of K; with 64
 * columns and sums that do not fit into registers, which pays from one whole chunk on. */
enum { NARROW_TILES_SHARED = 65536 + 1024, NARROW_TILES_64_SHARED = 139264 + 1024 };
static int runs_narrow_tiles_64(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_few_f32(p, f) && p->x_dtype == RF_FLOAT32 && p->in_features >= 32 &&
        f->shared_per_block >= NARROW_TILES_64_SHARED;
}

static int runs_narrow_tiles_32(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_few_f32(p, f) && p->out_features <= 32 && p->x_dtype == RF_FLOAT32 &&
        f->shared_per_block >= NARROW_TILES_SHARED;
}

static int runs_narrow_tiles_16(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_narrow_tiles_32(p, f) && p->out_features <= 16;
}

static int runs_narrow_f64(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_few_f64(p, f) && p->out_features <= 8;
}

static int runs_f32(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return takes_stored_x(p, f) && p->compute_dtype == RF_FLOAT32;
}

static int runs_f64(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    (void)f;
    return p->compute_dtype == RF_FLOAT64;
}

/* Which unit of a multiprocessor multiplies. */
typedef enum unit { WARPGROUP16, MMA16, STREAMED32, FMA32, MMA64, FMA64 } unit;

/* What the kernels of a family have in common. */
typedef struct family {
    unit unit;
    int terms;      /* multiplies values of 16 bits, and terms */
    int irregular;  /* computes flagged rows itself, and fetches W while x is being prepared */
    int groups;     /* merges the states of a row a group at a time */
    int affine;     /* computes steps on logits as rfi_cuda_affine where all of them are such */
    int promotes;   /* what tensor cores sum up is added in float32 before long, whatever the states */
    int of_cluster; /* so many blocks share out K of a tile; 0: one has all */
    int paired;     /* rows of the tiles whose clusters are two along the batch, also where there is one: then half of
                       the blocks have nothing to do. With one product of 16-bit values they are along the columns
                       then, unless something is searched for */
    int beside;     /* the same along the columns */
    int turned;     /* groups of rows as equal as can be, and what they take: see rfi_turned_time_of */
    int whole;      /* a cluster has whole rows, and merges their states itself: see rfi_whole_products */
    double memory;  /* of the bytes that memory serves in a second it reaches so much; 0: what most do */
    double single_memory; /* the same with one product; 0: as of several */
    int parts;            /* shares out K where there are few tiles, to so many blocks a multiprocessor */
    int last_round;       /* and of the last tiles where there are many */
    int fewer_parts;      /* than there is room for, if that is expected to be faster */
    int least_depth; /* of K that is shared out: parts of less take longer to add than they save, measured on 9.0 */
    int shares;      /* so many of its blocks share a multiprocessor: a round has all of them */
    double share[4]; /* of what these reach together, what fewer do: one, two and so on; 0: all is said by `shares` */
    double added;    /* bytes of parts of K that a block adds in a second, and */
    double add;      /* seconds that it takes besides, measured on 9.0; 0: ADDED counts */
    int by_rows;     /* folds faster where a tile has few rows */
    int least_rows;  /* that a tile is computed with, down by halves to the batch; 0: all that it has */
    double by_value; /* where rows are no whole pieces of 16 bytes it loads values one by one, and if these are W's,
                        too, takes so many seconds more */
    double unhidden; /* of what loading these takes, so much does not go on while it multiplies */
    double value;    /* seconds that a multiprocessor takes for a value of x, measured on 9.0; 0: what FEED and the
                        arithmetic say */
    double single; /* of one product it reaches so many times `efficiency`, for power leaves the clock higher; 0: as of
                      several */
    double start;  /* seconds that a call takes besides, measured on 9.0 with graphs of small ones */
    double single_start; /* and more with one product */
    double single_fold;  /* in place of `fold` with one product, of all rows of a tile, less of fewer where
                            there are `least_rows`; 0: as of several */
    int single_joins;    /* with one product, what merging states takes is in `single_start`, however many there are */
} family;

#ifdef RFI_BUILD_SM90
#include "sm90/family.h"
#endif
static const family MMA = {.unit = MMA16, .terms = 1};
static const family MMA_64 = {.unit = MMA16, .terms = 1, .parts = 1};
static const family MMA_16 = {.unit = MMA16, .terms = 1, .parts = 2};
static const family STREAM = {.unit = STREAMED32, .parts = 1, .least_depth = 832, .shares = 1, .least_rows = 1};
static const family FEW =
    {.unit = FMA32, .parts = 2, .shares = 2, .share = {0.85, 1}, .by_value = 7.5e-6, .unhidden = 0.3, .start = 1.4e-6};
static const family NARROW_16 = {.unit = FMA32, .parts = 2, .least_depth = 704, .shares = 2, .value = 0.42e-9};
static const family NARROW = {.unit = FMA32, .parts = 2, .least_depth = 896, .shares = 2, .value = 0.2e-9};
static const family NARROW_TILES = {.unit = FMA32, .parts = 2, .shares = 2};
static const family NARROW_TILES_64 = {.unit = FMA32,
    .parts = 2,
    .fewer_parts = 1,
    .shares = 1,
    .added = 36e9,
    .add = 4e-6,
    .by_value = 5.5e-6,
    .unhidden = 0.5};
static const family FMA = {.unit = FMA32, .by_value = 5.5e-6, .by_rows = 1};
static const family MMA_F64 = {.unit = MMA64,
    .by_rows = 1,
    .parts = 3,
    .last_round = 1,
    .fewer_parts = 1,
    .shares = 3,
    .share = {0.64, 0.7, 1},
    .added = 20e9,
    .add = 4e-6,
    .start = 3e-6};
static const family MMA_F64_32 = {.unit = MMA64,
    .by_rows = 1,
    .parts = 4,
    .fewer_parts = 1,
    .shares = 4,
    .share = {0.85, 0.88, 0.94, 1},
    .added = 20e9,
    .add = 4e-6,
    .start = 3e-6};
static const family FEW_F64 = {.unit = FMA64,
    .by_rows = 1,
    .parts = 6,
    .fewer_parts = 1,
    .shares = 3,
    .share = {0.88, 0.92, 1},
    .added = 20e9,
    .add = 1.5e-6};
static const family NARROW_F64 = {.unit = FMA64, .parts = 2, .least_depth = 576, .shares = 2, .value = 0.3e-9};
static const family FMA_F64 = {.unit = FMA64, .by_value = 5.5e-6, .start = 1.5e-6};

static const struct kernel {
    const char *name;
    const family *family;
    int tile_rows, tile_columns, fold_columns;
    can_run_fn can_run;
    double efficiency, fold;
} kernels[] = {
#define RFI_CUDA_KERNEL(id, name, family, tile_rows, tile_columns, fold_columns, can_run, efficiency, fold, launcher) \
    {name, &family, tile_rows, tile_columns, fold_columns, can_run, efficiency, fold},
#include "kernels.def"
#undef RFI_CUDA_KERNEL
};

int rfi_cuda_kernel_find(const char *name) {
    for (int i = 0; i < RFI_CUDA_NUM_KERNELS; i++)
        if (!strcmp(kernels[i].name, name)) return i;
    return -1;
}

/* The kernel of smaller tiles whose sums are the same, for launches of few tiles. */
static rfi_cuda_kernel_id ahead_of(int kernel) {
#ifdef RFI_BUILD_SM90
    if (kernel == RFI_CUDA_HOPPER_SEARCHES_128X256) return RFI_CUDA_HOPPER_SEARCHES_64X128;
#endif
    return (rfi_cuda_kernel_id)kernel;
}

/* See rfi_cuda_choice.opens. */
static int opens(const rfi_cuda_problem *p, int kernel) {
#ifdef RFI_BUILD_SM90
    return (kernel == RFI_CUDA_HOPPER_SEARCHES_128X256 || kernel == RFI_CUDA_HOPPER_SEARCHES_64X128) && !p->x_terms &&
        !p->w_terms && rfi_is_16_bit(p->w_dtype) && p->x_dtype == p->w_dtype;
#else
    return (void)p, (void)kernel, 0;
#endif
}

static size_t item(rf_dtype dtype) { return dtype == RF_FLOAT64 ? 8 : dtype == RF_FLOAT32 ? 4 : 2; }

static double tiles(int64_t size, int tile) { return (double)most(ceil_div(size, tile), 1); }

static double larger(double a, double b) { return a > b ? a : b; }

static int parts_of(const family *f) { return f->of_cluster > 1 ? f->of_cluster : 1; }

static double row_tiles_of(const struct kernel *k, const rfi_cuda_problem *p) {
    return k->family->turned ? (double)rfi_turned_groups(p->batch, p->out_features, p->in_features, parts_of(k->family),
                                   p->states != RFI_CUDA_PAIRS)
                             : tiles(p->batch, k->tile_rows);
}

/* Rows that a tile of a kernel is computed with: those for few rows leave out what is beyond the batch, down to a half,
 * a quarter and so on. */
static int computed_rows(const struct kernel *k, const rfi_cuda_problem *p) {
    const int least = k->family->least_rows ? k->family->least_rows : k->tile_rows;
    int rows = k->tile_rows;
    while (rows / 2 >= least && rows / 2 >= p->batch) rows /= 2;
    return rows;
}

/* Bytes that reach one multiprocessor in a second, from the second-level cache. Measured on 9.0: 65 to 70 GB/s where it
 * copies and does nothing else, by bulk copies as well as with plain loads. What fits the times of kernels is less. */
static const double FEED = 60e9;

/* The same of the kernels for few rows, of one product, where more than half of the multiprocessors load a W that the
 * second-level cache does not keep: pairs of them share a way. Measured on 9.0, see few-rows.md 66. */
static const double FEED_SHARED = 43e9;

/* Parts of K, so that each multiprocessor has blocks to overlap; the last block of a tile adds them all by itself.
 * Where there are more tiles than such blocks, some kernels share out K of those of the last round, in whole columns of
 * tiles: a row's bits do not depend on its place, but equal columns may differ by a rounding. */
static void split(
    const rfi_cuda_problem *p, const rfi_cuda_figures *f, int kernel, double most_parts, rfi_cuda_choice *c) {
    enum { MOST = RFI_SPLIT_GROUP * RFI_SPLIT_GROUP, LEAST_STAGES = 2 };
    const family *const shared = kernels[kernel].family;
    const double row_tiles = tiles(p->batch, c->tile_rows),
                 blocks = row_tiles * tiles(p->out_features, c->tile_columns),
                 round = (double)shared->parts * f->multiprocessors;
    const int64_t stages = (p->in_features + RFI_SPLIT_DEPTH - 1) / RFI_SPLIT_DEPTH;
    const int shares_last = shared->last_round && !p->alike;
    const double whole = shares_last && blocks <= INT32_MAX ? floor(floor(blocks / round) * round / row_tiles)
                                                            : 0; /* columns of tiles */
    double parts = blocks > whole * row_tiles ? round / (blocks - whole * row_tiles) : 1;
    if (parts > most_parts) parts = most_parts;
    if (parts > MOST) parts = MOST;
    if (parts > (double)stages / LEAST_STAGES) parts = (double)stages / LEAST_STAGES;
    c->splits = 1;
    c->split_depth = p->in_features;
    if (parts < 2 || p->in_features < shared->least_depth) return;
    const int64_t part_stages = (stages + (int64_t)parts - 1) / (int64_t)parts;
    c->splits = (int)((stages + part_stages - 1) / part_stages);
    c->split_depth = part_stages * RFI_SPLIT_DEPTH;
    c->whole_columns = (int)whole;
}

/* Operations a clock and multiprocessor. */
static double rate_of(unit multiplier, const rfi_cuda_figures *f) {
    size_t row = 0;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (f->major > rates[i].major || (f->major == rates[i].major && f->minor >= rates[i].minor)) row = i;
    switch (multiplier) {
    case WARPGROUP16: return WARPGROUP16_RATE;
    case MMA16: return rates[row].mma16;
    case STREAMED32: return STREAM32;
    case FMA32: return rates[row].fma32;
    default: return rates[row].f64; /* on tensor cores; plain multiply-adds say by their efficiency what they reach */
    }
}

/* Of one product, as sm90/config.cuh and sm80/mma.cu have it; no more than a part of K has, `depth`. */
static int summed_columns(const family *kernel, const rfi_cuda_problem *p, int64_t depth) {
    const rf_dtype dtype = p->x_terms ? p->term_dtype : p->w_dtype;
    if (kernel->unit == MMA16) return (int)least(dtype == RF_BFLOAT16 ? 2048 : 512, depth);
    if (kernel->unit != WARPGROUP16) return 0;
    return p->states == RFI_CUDA_PAIRS && !kernel->promotes ? RFI_CUDA_SUMMED_ALL : RFI_SM90_PART;
}

/* Whether blocks of one round leave hardly a multiprocessor to a kernel behind them that has many rows of several
 * results to finish: then those that finish rows themselves, by tickets, are faster by 1 to 5 us, elsewhere slower by
 * as much. What merges a row must not depend on the batch where bits must not. */
static int is_crowded(const rfi_cuda_problem *p, const rfi_cuda_figures *f, double blocks) {
    enum { MANY_ROWS = 1280, PART = 4 };
    return p->states == RFI_CUDA_ANSWER_STATES && !p->batch_invariant && p->batch > MANY_ROWS &&
        blocks * PART >= f->multiprocessors && blocks <= f->multiprocessors;
}

/* With the parts of K that `c` says. */
static void expect(const rfi_cuda_problem *p, const rfi_cuda_figures *f, int kernel, rfi_cuda_choice *c) {
    const struct kernel *k = &kernels[kernel];
    const family *const shared = k->family;
    /* A product of TF32 takes as long as two of 16 bits. */
    const int products = (shared->terms ? rfi_cuda_products(p->x_terms, p->w_terms) : 1) << in_tf32(p),
              term = in_tf32(p) ? 4 : 2; /* bytes */
    double batch = (double)p->batch, n = (double)p->out_features, depth = (double)p->in_features;
    const int splits = c->splits, whole_columns = c->whole_columns;
    const int64_t split_depth = c->split_depth;
    size_t w_item = p->w_terms ? 2 * (size_t)p->w_terms : item(p->w_dtype);
    *c = (rfi_cuda_choice){
        .kernel = (rfi_cuda_kernel_id)kernel,
        .name = k->name,
        .tile_rows = k->tile_rows,
        .tile_columns = k->tile_columns,
        .fold_columns = k->fold_columns,
        .ahead = ahead_of(kernel),
        .ahead_columns = kernels[ahead_of(kernel)].fold_columns,
        .opens = opens(p, kernel),
        .multiprocessors = f->multiprocessors,
        .irregular = shared->irregular,
        .affine = shared->affine,
        .grouped = shared->groups,
        .uses_terms = shared->terms && p->x_terms > 0,
        .aligned_x = shared->terms && !p->x_terms,
        .summed = products > 1 ? 0 : summed_columns(shared, p, splits > 1 ? split_depth : INT32_MAX),
        .splits = splits,
        .whole_columns = whole_columns,
        .split_depth = split_depth,
        .flops_per_second = rate_of(shared->unit, f) * f->multiprocessors * f->clock_hz,
        .bytes_per_second = f->memory_bytes_per_second,
        .flops = 2 * batch * n * depth * products,
    };
    c->bytes = n * depth * (double)w_item + batch * depth * (double)item(p->x_dtype);
    if (!p->reduction) c->bytes += batch * n * 4;
    /* The kernels of sm_90a fetch W while what prepares x runs, which is longer for terms. */
    double launches = shared->irregular ? 1 + c->uses_terms : c->uses_terms ? 4 : 2;
    /* Rows of x that are no whole pieces are copied to such, unless there is room between them. */
    const int ragged = p->in_features * (int64_t)item(p->x_dtype) % 16 != 0,
              copies = c->aligned_x && depth > 0 && ragged;
    double preparation = c->uses_terms ? batch * depth * (double)(item(p->x_dtype) + (size_t)(term * p->x_terms))
        : copies                       ? 2 * batch * depth * (double)item(p->x_dtype)
                                       : 0;
    /* Whole tiles in whole rounds over the multiprocessors, but for one round of small blocks that share one. */
    const int sharers = parts_of(shared), paired = shared->paired == k->tile_rows,
              turned_aside = paired && products == 1 && !in_tf32(p) && p->batch <= k->tile_rows &&
        p->states != RFI_CUDA_SEARCH_STATES,
              along = paired && !turned_aside ? 2 : 1, across = turned_aside || shared->beside == k->tile_rows ? 2 : 1;
    const double whole_tiles = whole_columns * tiles(p->batch, k->tile_rows), down = row_tiles_of(k, p);
    double blocks = ((along > 1 ? along * tiles(p->batch, along * k->tile_rows) : down) * across *
                            tiles(p->out_features, across * k->tile_columns) -
                        whole_tiles) *
        splits * sharers,
           sms = f->multiprocessors, part = (splits > 1 ? (double)split_depth : depth) / sharers;
    const double at_once = shared->shares ? shared->shares : 1;
    double rounds = blocks > at_once * sms ? at_once * ceil(blocks / (at_once * sms)) : larger(blocks / sms, 1);
    if (shared->share[0] > 0) { /* blocks of many rounds do not begin and end together: the last is its own */
        const double whole_rounds = floor(blocks / (at_once * sms)), last = ceil(blocks / sms - whole_rounds * at_once);
        rounds = whole_rounds * at_once +
            (last > 0 ? last / shared->share[last < at_once ? (int)last - 1 : shared->shares - 1] : 0);
    }
    if (whole_columns) rounds += whole_tiles / sms * depth / part; /* of parts */
    double rows = computed_rows(k, p);
    double tile_flops = 2.0 * rows * k->tile_columns * part * products;
    const double efficiency = k->efficiency * (products == 1 && shared->single > 0 ? shared->single : 1);
    double arithmetic = rounds * tile_flops / (c->flops_per_second / sms * efficiency);
    /* Larger tiles are shared by the blocks of a cluster, or have more arithmetic than this takes. */
    double x_item = (double)(c->uses_terms ? (size_t)(term * p->x_terms) : item(p->x_dtype));
    const int shares_feed =
        products == 1 && shared->single_memory > 0 && blocks > sms / 2 && c->bytes > (double)f->l2_bytes;
    if (k->tile_columns <= 64 || k->tile_rows <= 64)
        arithmetic = larger(arithmetic,
            rounds * (rows * x_item + k->tile_columns * (double)w_item) * part / (shares_feed ? FEED_SHARED : FEED));
    const size_t x_size = item(p->x_dtype);
    const double merged_rows = batch < rows ? batch : rows;
    const int by_value = shared->by_value > 0 && ragged;
    if (by_value) {
        const double loads = rounds * (merged_rows + k->tile_columns) * part * LOADED_VALUE[x_size / 4];
        arithmetic = larger(arithmetic + shared->unhidden * loads, loads);
    }
    arithmetic = larger(arithmetic, rounds * rows * part * shared->value);
    /* The last block of a group adds its parts, the last of a tile the groups: the parts of a sum at once, so that
     * their number hardly counts. */
    const int levels = splits == 1 ? 0 : splits <= RFI_SPLIT_GROUP ? 1 : 2;
    const double sums = merged_rows * k->tile_columns * (double)item(p->compute_dtype),
                 read = levels < 2 ? splits : RFI_SPLIT_GROUP + ceil((double)splits / RFI_SPLIT_GROUP);
    const double merge = !levels ? 0
        : shared->added > 0      ? levels * shared->add + read * sums / shared->added
                                 : levels * sums / ADDED;
    /* Short rows wait for what brings them to terms, a block, a warp or half of one, not for memory. */
    preparation = larger(preparation / (0.5 * c->bytes_per_second),
        c->uses_terms ? batch * (ragged ? PREPARED_RAGGED_ROW : PREPARED_ROW)[p->in_features <= RFI_SHORTEST_ROW]
            : copies  ? batch * COPIED_ROW
                      : 0);
    const double row_tiles = down * tiles(p->out_features, k->tile_columns) * sharers;
    /* Where a kernel behind it combines the states, `fold` says so. */
    const int64_t slots = ceil_div(p->out_features, k->tile_columns) * (k->tile_columns / k->fold_columns);
    const int answers = p->states == RFI_CUDA_ANSWER_STATES && shared->irregular,
              alone = answers && !shared->whole &&
        (shared->turned ? p->out_features <= RFI_FOLD_COLUMNS : shared->groups && slots == 1);
    c->apart = shared->turned || shared->whole ||
        (shared->irregular && (p->states == RFI_CUDA_PAIRS || (answers && (alone || !is_crowded(p, f, blocks)))));
    const double states =
        c->apart || (products == 1 && shared->single_joins) ? 0 : tiles(p->out_features, RFI_FOLD_COLUMNS);
    const int single_fold = products == 1 && shared->single_fold > 0, single_answers = answers && single_fold;
    const double fold = 1e-6 * (single_fold ? shared->single_fold : k->fold) *
        (single_answers ? SHOWN_FOLD[p->shows] : 1) *
        (shared->by_rows || (single_fold && shared->least_rows) ? 0.2 + 0.8 * merged_rows / k->tile_rows : 1);
    const double turns = single_answers || (shared->shares == 1 && row_tiles > sms)
        ? ceil(row_tiles / sms)
        : larger(row_tiles / sms, shared->shares ? LEAST_SHARE : 1);
    double folds = turns * fold +
        (states < MOST_STATES ? states : MOST_STATES) * (STATE_SECONDS + merged_rows * STATE_ROW_SECONDS);
    if (shared->turned) { /* in place of what tiles of one height would take */
        const rfi_turned_time time = rfi_turned_time_of(
            p->batch, p->out_features, p->in_features, parts_of(shared), p->states != RFI_CUDA_PAIRS, (int64_t)down);
        const double slower = TURNED_CLOCK / f->clock_hz;
        arithmetic = slower * time.products, folds = slower * (time.ends + (p->plain ? 0 : time.steps));
    }
    const int behind = c->apart && !alone && !shared->whole; /* a kernel merges states */
    if (shared->whole)
        arithmetic = rfi_whole_products(p->in_features,
            (int64_t)down * rfi_whole_blocks(p->out_features, k->tile_columns), k->tile_rows, k->tile_columns);
    /* What is fetched before x is there hides some of it. */
    const double reached = products == 1 && shared->single_memory > 0 ? shared->single_memory
        : shared->memory > 0                                          ? shared->memory
                                                                      : 0.9;
    const double memory = c->bytes / (reached * c->bytes_per_second);
    c->seconds = larger(arithmetic, memory) + preparation + merge + folds + launches * LAUNCH_SECONDS +
        (alone           ? -(shared->turned ? TURNED_ALONE_SECONDS : ALONE_SECONDS)
                : behind ? batch * (MERGED_ROW + (double)slots * MERGED_STATE)
                         : 0) +
        (shared->turned && p->states == RFI_CUDA_SEARCH_STATES ? batch * SEARCHED_ROW : 0) +
        (behind && k->tile_columns > 64 && fmod(blocks, sms) == 0 ? CROWDED_SECONDS : 0) + shared->start +
        (products == 1 ? shared->single_start : 0) + (by_value && !p->w_terms ? shared->by_value : 0) +
        (splits == 1            ? 0
                : whole_columns ? LAST_ROUND_SECONDS
                                : SPLIT_SECONDS);
}

/* Whether a single logit, which one of several results may be, would be less exact by one kernel than by another,
 * faster or not. */
static int shows_less(const rfi_cuda_problem *p, const rfi_cuda_choice *c, const rfi_cuda_choice *other) {
    return (p->states == RFI_CUDA_ANSWER_STATES || p->states == RFI_CUDA_SEARCH_STATES) &&
        other->summed == RFI_SM90_PART && c->summed > other->summed;
}

/* The kernel with K in as many parts as there is room for, or fewer: no more than are added at once, for no more blocks
 * than multiprocessors, both, one. */
static rfi_cuda_choice best_parts(const rfi_cuda_problem *p, const rfi_cuda_figures *f, int kernel) {
    const struct kernel *k = &kernels[kernel];
    const double blocks = tiles(p->batch, k->tile_rows) * tiles(p->out_features, k->tile_columns),
                 alone = floor(f->multiprocessors / blocks),
                 most_parts[] = {
                     INFINITY, RFI_SPLIT_GROUP, alone < RFI_SPLIT_GROUP ? alone : RFI_SPLIT_GROUP, 1, alone};
    rfi_cuda_choice best = {0};
    for (size_t i = 0; i < (k->family->fewer_parts ? sizeof most_parts / sizeof *most_parts : 1); i++) {
        rfi_cuda_choice c = {.tile_rows = k->tile_rows, .tile_columns = k->tile_columns};
        split(p, f, kernel, most_parts[i], &c);
        expect(p, f, kernel, &c);
        if (!i || c.seconds < best.seconds) best = c;
    }
    return best;
}

void rfi_cuda_choose(
    const rfi_cuda_problem *problem, const rfi_cuda_figures *figures, int forced, rfi_cuda_choice *choice) {
    rfi_cuda_problem p = *problem;
    if (p.batch_invariant) p.batch = 1024; /* any constant: the same kernel whatever the batch */
    int best = -1;
    for (int i = 0; i < RFI_CUDA_NUM_KERNELS; i++) {
        if (!kernels[i].can_run(&p, figures)) continue;
        rfi_cuda_choice c = best_parts(&p, figures, i);
        if (best >= 0 && i != forced && shows_less(&p, &c, choice)) continue;
        if (best < 0 || c.seconds < choice->seconds || i == forced) {
            best = i;
            *choice = c;
        }
        if (i == forced) break;
    }
    expect(problem, figures, best, choice);
}

int rfi_cuda_weight_panel(const rfi_cuda_problem *problem, const rfi_cuda_figures *figures, int forced) {
#ifdef RFI_BUILD_SM90
    if (forced >= 0 && kernels[forced].family->unit != WARPGROUP16) return 0;
    return panel_of(problem, figures);
#else
    return (void)problem, (void)figures, (void)forced, 0;
#endif
}
