/* SPDX-License-Identifier: MIT */
/* Products of float16 on AMX-FP16. Subnormal inputs count, and no sum is subnormal: each is a multiple of 2^-48. */
#ifndef TILE_DP /* assemblers know the instruction before compilers do */
#define TILE_DP_OF(sum, x, w) __asm__ volatile("tdpfp16ps\t%%tmm" #w ", %%tmm" #x ", %%tmm" #sum : :)
#define TILE_DP(sum, x, w) TILE_DP_OF(sum, x, w)
#endif
/* Four exponents around that of 1: products of 22 bits, whose sums have more than a float. */
#define SOME_PAIR(bits) (((bits) & 0x8fff8fff) | 0x30003000)
#include "cpu/amx_pairs_typed.h"

const rfi_cpu_pairs rfi_cpu_f16_pairs_amx_fp16 = {
    .name = "AMX-FP16",
    .max_rows = RFI_CPU_TILE_ROWS,
    .rows_step = RFI_CPU_TILE,
    .block_rows = RFI_CPU_TILE_BLOCK,
    .alone_rows = RFI_CPU_ALONE_BLOCK,
    .tiles = 1,
    .begins = 1,
    .rate = 4, /* as AMX-BF16's: doc/kernels/cpu.md 63 */
    .multiply = table,
    .pack = rfi_cpu_pairs_pack,
    .widen = rfi_cpu_f16_pairs_widen,
    .begin = rfi_cpu_amx_begin,
    .end = rfi_cpu_amx_end,
};

int rfi_cpu_tiles_as_documented_amx_fp16(void) {
    /* The largest and the smallest, subnormal ones among them. */
    static const uint16_t special[] = {0x7c00, 0xfc00, 0x7e01, 0x7bff, 0xfbff, 0x8000, 0x0001, 0x83ff};
    return tiles_as_documented(special, rfi_cpu_f16_tiles_multiply);
}
