/* SPDX-License-Identifier: MIT */
#include "emulated_tiles.h"

#include "cpu/kernel_amx_terms.c"
