/* SPDX-License-Identifier: MIT */
#ifndef ROWFOLD_TESTS_EMULATED_TILES_H
#define ROWFOLD_TESTS_EMULATED_TILES_H

#include "cpu/kernel.h"

/* What rfi_cpu_terms_amx has done, in tiles: loads and products; subnormal numbers taken for zero; products before
 * begin or after end. */
typedef struct emulated_tiles {
    long loads, products, flushed, outside;
    int begun;
} emulated_tiles;

extern emulated_tiles emulated;

#endif
