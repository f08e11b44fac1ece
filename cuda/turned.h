/* SPDX-License-Identifier: MIT */
/* The kernels of sm90/turned.cuh, for those that choose and launch them: the heights of their tiles, and in how many
 * groups a batch is cut. */
#ifndef ROWFOLD_CUDA_TURNED_H
#define ROWFOLD_CUDA_TURNED_H

#include <stdint.h>

/* The heights that their tiles are compiled for, the lowest first: the width of a product, and how many. Those of
 * several results have the same heights up to 272, of products of which registers hold some sums twice. K in three
 * parts has no high ones, in more than three the low ones alone. */
#define RFI_TURNED_LOW(HEIGHT) HEIGHT(48, 1) HEIGHT(80, 1) HEIGHT(96, 1) HEIGHT(112, 1) HEIGHT(136, 1)
#define RFI_TURNED_MIDDLE(HEIGHT) HEIGHT(160, 1) HEIGHT(192, 1) HEIGHT(224, 1) HEIGHT(256, 1)
#define RFI_TURNED_HIGH(HEIGHT) HEIGHT(136, 2) HEIGHT(144, 2) HEIGHT(160, 2)
#define RFI_TURNED_ANSWERS_MIDDLE(HEIGHT) HEIGHT(160, 1) HEIGHT(192, 1) HEIGHT(112, 2)
#define RFI_TURNED_ANSWERS_HIGH(HEIGHT) HEIGHT(128, 2) HEIGHT(136, 2)
#define RFI_TURNED_LOW_ROWS 136
#define RFI_TURNED_MIDDLE_ROWS 256
#define RFI_TURNED_ROWS 320
#define RFI_TURNED_ANSWERS_MIDDLE_ROWS 224
#define RFI_TURNED_ANSWERS_ROWS 272
#define RFI_TURNED_COLUMNS 128
#define RFI_TURNED_STATES (1 << 21) /* of all rows at most, of 64 columns: 16 MiB */

/* The height that the tiles of a batch in so many groups of rows are computed with. */
static inline int rfi_turned_height(int64_t batch, int64_t groups) {
#define RFI_HEIGHT(width, products) (width) * (products),
    static const int heights[] = {RFI_TURNED_LOW(RFI_HEIGHT) RFI_TURNED_MIDDLE(RFI_HEIGHT) RFI_TURNED_HIGH(RFI_HEIGHT)};
#undef RFI_HEIGHT
    const int64_t rows = (batch + groups - 1) / groups;
    unsigned i = 0;
    while (heights[i] < rows && heights[i] < RFI_TURNED_ROWS) i++;
    return heights[i];
}

/* Seconds that their tiles take in all rounds over the multiprocessors of a whole device: products, and what follows
 * these; `steps`: how much longer that takes where a fold is not plain. `parts`: of so many blocks a tile, which share
 * out K, or 1; `answers`: sums are added by parts of K. A stage takes as long as what is slowest: the tensor cores;
 * shared memory, through which each row goes several times; the second-level cache, which all blocks read; memory,
 * which those of one group read, and from which a stage comes no sooner for some of them than for all. Fitted to times
 * on 9.0 at 1.98 GHz: see few-rows.md 52, 54, 57, 58, 65 and 66. */
typedef struct rfi_turned_time {
    double products, ends, steps;
} rfi_turned_time;
static inline rfi_turned_time rfi_turned_time_of(
    int64_t batch, int64_t columns, int64_t depth, int parts, int answers, int64_t groups) {
    enum { STAGE = 64, BESIDE = 2, FORMS = 5, KEPT = 36 << 20, FEW = 50 }; /* bytes of W that the cache keeps; blocks */
    static const struct rfi_turned_figures {
        double row, stage, stage_row, read, memory; /* nanoseconds of a stage */
        double least;                               /* of one of a W that is not kept, for more blocks than FEW */
        double block;                               /* and for each block that runs, but of memory */
        double end, end_row;                        /* of a tile */
        double step_row;                            /* of a fold that is not plain: see sm90/turned_fold.cuh */
    } figures[2][FORMS] = {                         /* side by side; halves, thirds, quarters and eighths of K */
        {{2.2, 115, 0.848, 0.0121, 3.7, 320, 0.766, 2206, 11, 19},
            {2.24, 130, 0.802, 0.0134, 3.55, 385, 0.116, 1866, 20, 5},
            {1.98, 110, 0.72, 0.00996, 3.37, 320, 1.02, 1918, 26, 6},
            {2.04, 117, 0.754, 0.0113, 3.7, 320, 1.05, 287, 24.8, 6},
            {1.94, 104, 0.689, 0.00533, 1.89, 400, 1.64, 3982, 17, 6}},
        {{2, 130, 0.81, 0.01264, 3.09, 320, 0.716, 200, 24.6, 24},
            {2.17, 138, 1.02, 0.0123, 3.59, 385, 0.439, 200, 23.3, 16},
            {2.05, 95.2, 1.17, 0.00737, 1.25, 320, 1, 4061, 22, 12},
            {2.15, 105, 1.27, 0.00892, 2.41, 320, 0.996, 4537, 17.8, 12},
            {2.31, 105, 1.45, 0.00261, 4.14, 400, 1.19, 4005, 17.7, 8}}};
    const struct rfi_turned_figures *const f = &figures[answers != 0][parts == 8 ? 4 : parts - 1];
    const int64_t most = parts > 3 ? 120
        : parts == 3               ? 117
                                   : 132, /* blocks at a time: larger clusters leave some out */
        cluster = parts > 1 ? parts : BESIDE,
                  wide = (parts > 1 ? 1 : BESIDE) * RFI_TURNED_COLUMNS, /* columns of a cluster */
        of_group = (columns + wide - 1) / wide * cluster, blocks = of_group * groups,
                  rounds = (blocks + most - 1) / most;
    const double height = rfi_turned_height(batch, groups), rows = (double)((batch + groups - 1) / groups),
                 at_once = (double)(blocks < most ? blocks : most),
                 stages = (double)((depth + STAGE - 1) / STAGE) / parts;
    const double loaders = (double)of_group / (double)((of_group + most - 1) / most), /* blocks of a round */
        memory = f->memory * loaders,
                 takes[] = {f->row * height, f->stage + f->stage_row * height,
                     f->read * at_once * (RFI_TURNED_COLUMNS + (parts > 1 ? rows : rows / BESIDE))};
    double stage = 0;
    for (unsigned i = 0; i < sizeof takes / sizeof *takes; i++)
        if (takes[i] > stage) stage = takes[i];
    stage += f->block * at_once;
    if (memory > stage) stage = memory;
    if (2.0 * (double)columns * (double)depth > KEPT && loaders > FEW && f->least > stage) stage = f->least;
    return (rfi_turned_time){1e-9 * (double)rounds * stages * stage,
        1e-9 * (double)rounds * (f->end + f->end_row * height), 1e-9 * (double)rounds * f->step_row * height};
}

/* Rows of a tile. */
static inline int rfi_turned_most_rows(int parts, int answers) {
    if (parts > 3) return RFI_TURNED_LOW_ROWS;
    if (parts == 3) return answers ? RFI_TURNED_ANSWERS_MIDDLE_ROWS : RFI_TURNED_MIDDLE_ROWS;
    return answers ? RFI_TURNED_ANSWERS_ROWS : RFI_TURNED_ROWS;
}

/* In how many groups of rows that is least. */
static inline int64_t rfi_turned_groups(int64_t batch, int64_t columns, int64_t depth, int parts, int answers) {
    enum { MORE = 5 };
    const int64_t most = rfi_turned_most_rows(parts, answers), fewest = batch > most ? (batch + most - 1) / most : 1;
    int64_t best = fewest;
    double least = 0;
    for (int64_t groups = fewest; groups <= fewest + MORE && (groups == fewest || groups <= batch); groups++) {
        const rfi_turned_time time = rfi_turned_time_of(batch, columns, depth, parts, answers, groups);
        const double seconds = time.products + time.ends;
        if (groups == fewest || seconds < least) best = groups, least = seconds;
    }
    return best;
}

#endif
