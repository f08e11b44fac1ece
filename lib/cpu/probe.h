/* SPDX-License-Identifier: MIT */
/* What this machine's processor does at best. */
#ifndef ROWFOLD_CPU_PROBE_H
#define ROWFOLD_CPU_PROBE_H

#include "cpu/kernel.h"

typedef struct rfi_cpu_figures {
    double flops, bytes; /* a second: float32 multiply-adds counted as two, and reads from memory */
} rfi_cpu_figures;

/* Measures for about `seconds`, reading a buffer of `bytes`. A buffer that cannot be had leaves figures.bytes 0. */
rfi_cpu_figures rfi_cpu_probe(const rfi_cpu_isa *isa, int threads, double seconds, size_t bytes);

/* The same in 0.05 s, of a buffer about as large as the weights (64 to 256 MiB): how fast memory is depends on how much
 * of it the cache holds. Measured when the instruction set, the threads or that size are others than the last time. */
rfi_cpu_figures rfi_cpu_probe_cached(const rfi_cpu_isa *isa, int threads, double weight_bytes);

/* The best instruction set of this machine. */
const rfi_cpu_isa *rfi_cpu_best_isa(void);

#endif
