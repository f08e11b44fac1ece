/* SPDX-License-Identifier: MIT */
/* The order in which tiles add products of pairs, by multiply-adds (tile_steps.h), included once for each type of them
 * (pair_halves.h): TILES_TABLE, by rows - 1. A step takes RFI_CPU_TILE_DEPTH inputs, and the sum of steps begins with
 * zero in every chunk. A chunk of 512 inputs has 16 steps, so no product passes through more than 33 roundings and most
 * of them are of small sums.
 *
 * Nothing is flushed here, so this is right for all values, and has the tiles' bits where they flush nothing. */
#include "cpu/tile_steps.h"

/* `rows` <= ROWS of the sliver, from `first` on. */
static inline __attribute__((always_inline)) void multiply_rows(
    const rfi_cpu_sliver *s, const int64_t first, const int rows) {
    const uint32_t *x = (const uint32_t *)s->x + first * RFI_CPU_PAIRS_LD, *w = s->w;
    vf sum[ROWS][VECTORS];
    clear(sum, rows);
    for (int64_t k = 0; k < s->depth; k += RFI_CPU_TILE_DEPTH, x += RFI_CPU_TILE, w += RFI_CPU_TILE * PANEL)
        add_step(sum, x, RFI_CPU_PAIRS_LD, w, pairs_of_step(s, k), rows);
    store_sums(s, sum, first, rows);
}

MULTIPLY_ALL_ROWS

RFI_CPU_EACH_TILE_ROWS(RFI_CPU_ONE_TILE_ROWS)
#define TILES_TABLE {RFI_CPU_EACH_TILE_ROWS(RFI_CPU_NAME_TILE_ROWS)}
