/* SPDX-License-Identifier: MIT */
/* W of float16 in pairs, as tiles take it, times x of another type: values, by AVX-512. */
#define RFI_CPU_F16_PAIRS
#define MULTIPLY_FLOAT rfi_cpu_f16_pairs_multiply_float
#define WIDEN rfi_cpu_f16_pairs_widen
#include "cpu/pairs_typed.h"
