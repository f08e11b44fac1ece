/* SPDX-License-Identifier: MIT */
/* What tiles of bfloat16 add, by multiply-adds. */
#include "cpu/tiles_typed.h"

const rfi_cpu_multiply rfi_cpu_tiles_multiply[] = TILES_TABLE;

const rfi_cpu_pairs rfi_cpu_pairs_avx512_tiles = {
    .name = "multiply-adds in the order of tiles",
    .max_rows = RFI_CPU_TILE_ROWS,
    .rows_step = RFI_CPU_TILE,
    .block_rows = RFI_CPU_TILE_BLOCK,
    .alone_rows = RFI_CPU_ALONE_BLOCK,
    .tiles = 1,
    .flushes = 1,
    .rate = 0.7,
    .multiply = rfi_cpu_tiles_multiply,
    .multiply_any = rfi_cpu_tiles_multiply,
    .multiply_float = rfi_cpu_pairs_multiply_float,
    .pack = rfi_cpu_pairs_pack,
    .widen = rfi_cpu_pairs_widen,
};
