/* SPDX-License-Identifier: MIT */
/* Products of bfloat16 on AMX-BF16, and what all tiles need around their products. */
#define TILE_DP(sum, x, w) _tile_dpbf16ps(sum, x, w)
/* Eight exponents up to that of 1, so that sums of products have more bits than a float. */
#define SOME_PAIR(bits) (((bits) & 0x83ff83ff) | 0x3c003c00)
#include "cpu/amx_pairs_typed.h"

/* All tiles whole. As LDTILECFG reads it. */
void rfi_cpu_amx_begin(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(RFI_CPU_ALIGN))) = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    const void *all = &config; /* not the first eight bytes alone, which is what some compilers see */
    __asm__ volatile("" : "+r"(all) : : "memory");
    _tile_loadconfig(all);
}

/* A processor whose tiles are in use saves more with every switch of threads, and may run slower. */
void rfi_cpu_amx_end(void) { _tile_release(); }

const rfi_cpu_pairs rfi_cpu_pairs_amx_bf16 = {
    .name = "AMX-BF16",
    .max_rows = RFI_CPU_TILE_ROWS,
    .rows_step = RFI_CPU_TILE,
    .block_rows = RFI_CPU_TILE_BLOCK,
    .alone_rows = RFI_CPU_ALONE_BLOCK,
    .tiles = 1,
    .begins = 1,
    .flushes = 1,
    .rate = 4, /* doc/kernels/cpu.md 19 */
    .multiply = table,
    .multiply_any = rfi_cpu_tiles_multiply,
    .multiply_float = rfi_cpu_pairs_multiply_float,
    .pack = rfi_cpu_pairs_pack,
    .widen = rfi_cpu_pairs_widen,
    .begin = rfi_cpu_amx_begin,
    .end = rfi_cpu_amx_end,
};

int rfi_cpu_tiles_as_documented_amx_bf16(void) {
    /* The last is 2^64, whose square overflows. */
    static const uint16_t special[] = {0x7f80, 0xff80, 0x7fc1, 0x7f7f, 0xff7f, 0x0000, 0x8000, 0x5f80};
    return tiles_as_documented(special, rfi_cpu_tiles_multiply);
}
