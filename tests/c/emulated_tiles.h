/* SPDX-License-Identifier: MIT */
/* The kernels for AMX with tiles in plain C, so that they run where the processor has none: what Intel's manual says of
 * TDPBF16PS and TDPFP16PS. A kernel is compiled so where this is included before it. */
#ifndef ROWFOLD_TESTS_EMULATED_TILES_H
#define ROWFOLD_TESTS_EMULATED_TILES_H

#include <immintrin.h>

#include "cpu/kernel.h"

/* What the kernels have done, in tiles: loads and products; subnormal numbers taken for zero; products before begin or
 * after end. And what is asked for: a processor that adds another way. */
typedef struct emulated_tiles {
    long loads, products, flushed, outside;
    int begun;
    int backwards; /* the last product first */
    int together;  /* the halves of pairs in one sum */
    int flushes;   /* subnormal float16 taken for zero */
} emulated_tiles;

extern emulated_tiles emulated;

void emulated_zero(int tile);
void emulated_load(int tile, const void *base, int64_t stride);
void emulated_store(int tile, void *base, int64_t stride);
void emulated_add_bf16(int sum, int x, int w);
void emulated_add_fp16(int sum, int x, int w);

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_zero(tile) emulated_zero(tile)
#define _tile_loadd(tile, base, stride) emulated_load(tile, base, stride)
#define _tile_stored(tile, base, stride) emulated_store(tile, base, stride)
#define _tile_dpbf16ps(sum, x, w) emulated_add_bf16(sum, x, w)
#define _tile_loadconfig(config) ((void)(config), emulated.begun = 1)
#define _tile_release() (emulated.begun = 0)

#endif
