/* SPDX-License-Identifier: MIT */
/* What tiles of float16 add, by multiply-adds. */
#define RFI_CPU_F16_PAIRS
#include "cpu/tiles_typed.h"

const rfi_cpu_multiply rfi_cpu_f16_tiles_multiply[] = TILES_TABLE;

void rfi_cpu_f16_pairs_widen(float *to, const uint32_t *from, int64_t depth) { widen_pairs(to, from, depth); }

const rfi_cpu_pairs rfi_cpu_f16_pairs_avx512_tiles = {
    .name = "multiply-adds in the order of tiles",
    .max_rows = RFI_CPU_TILE_ROWS,
    .rows_step = RFI_CPU_TILE,
    .block_rows = RFI_CPU_TILE_BLOCK,
    .alone_rows = RFI_CPU_ALONE_BLOCK,
    .tiles = 1,
    .rate = 0.5,
    .multiply = rfi_cpu_f16_tiles_multiply,
    .pack = rfi_cpu_pairs_pack,
    .widen = rfi_cpu_f16_pairs_widen,
};
