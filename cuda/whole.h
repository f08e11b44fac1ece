/* SPDX-License-Identifier: MIT */
/* The kernels of sm90/whole.cuh, for those that choose and launch them: into how many blocks a cluster cuts a row, how
 * many clusters run at a time, and what they take. */
#ifndef ROWFOLD_CUDA_WHOLE_H
#define ROWFOLD_CUDA_WHOLE_H

#include <stdint.h>

#define RFI_WHOLE_COLUMNS 1024 /* at most: of 8 tiles, or of 16 of 64 columns */

/* Blocks of a cluster, a power of two, that have a tile of all columns each; 0: they are too many. */
static inline int rfi_whole_blocks(int64_t columns, int tile_columns) {
    int blocks = 1;
    while (blocks * tile_columns < columns && blocks * tile_columns <= RFI_WHOLE_COLUMNS) blocks *= 2;
    return columns <= RFI_WHOLE_COLUMNS ? blocks : 0;
}

/* Clusters of so many blocks that run at a time: of large ones not all multiprocessors have part. Every device has
 * clusters of 8; those of 16 lie in one of up to 8 graphics processing clusters, of which one has as many
 * multiprocessors where all have more than 8 times 15. */
static inline int64_t rfi_whole_clusters(int blocks, int multiprocessors) {
    if (blocks > 8 && multiprocessors <= 8 * 15) return 0;
    return (int64_t)multiprocessors * (blocks > 2 ? 10 : 11) / (11 * blocks);
}

/* Seconds that all tiles take to be multiplied, which run at once: a stage takes as long as the second-level cache
 * takes to bring it to all blocks, or what one waits for. Fitted to times on 9.0: see hopper.md 113. */
static inline double rfi_whole_products(int64_t depth, int64_t blocks, int tile_rows, int tile_columns) {
    enum { STAGE = 64, SIZES = 3 };
    static const struct {
        int values;            /* rows and columns together */
        double served, waited; /* bytes a second, seconds */
    } figures[SIZES] = {{128, 7.2e12, 0.14e-6}, {192, 8.2e12, 0.17e-6}, {256, 6.6e12, 0.288e-6}};
    const int values = tile_rows + tile_columns;
    int i = 0;
    while (i < SIZES - 1 && figures[i].values < values) i++;
    const double served = 2.0 * STAGE * values * (double)blocks / figures[i].served, waited = figures[i].waited,
                 stages = (double)((depth + STAGE - 1) / STAGE);
    return stages * (served > waited ? served : waited);
}

#endif
