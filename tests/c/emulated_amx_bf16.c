/* SPDX-License-Identifier: MIT */
#include "emulated_tiles.h"

#include "cpu/kernel_amx_bf16.c"
