/* SPDX-License-Identifier: MIT */
#include "emulated_tiles.h"
#define TILE_DP(sum, x, w) emulated_add_fp16(sum, x, w)

#include "cpu/kernel_amx_fp16.c"
