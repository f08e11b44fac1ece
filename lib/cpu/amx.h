/* SPDX-License-Identifier: MIT */
/* What the kernels of AMX-BF16 share. TDPBF16PS adds the products of a tile of x, 16 rows of 16 pairs, with one of W,
 * 16 pairs of 16 columns, to one of 16 x 16 floats. Slivers of two tiles of rows by two of columns are 4 sums; with 2
 * tiles of x and 2 of W, all 8. Rows of x behind the last are multiplied as they are, and nobody looks at their sums.
 */
#ifndef ROWFOLD_CPU_AMX_H
#define ROWFOLD_CPU_AMX_H

#include <immintrin.h>

#include "cpu/kernel.h"

enum { LANES = 16, VECTORS = 2, PANEL = RFI_CPU_TILE_PANEL, W_BYTES = PANEL * 4, SUM_BYTES = PANEL * 4 };
/* The tiles, which have to be constants: sums by row and column, x by row, W by column. */
#define SUM_00 0
#define SUM_01 1
#define SUM_10 2
#define SUM_11 3
#define X_0 4
#define X_1 5
#define W_0 6
#define W_1 7

/* Before and after a thread's products. */
void rfi_cpu_amx_begin(void);
void rfi_cpu_amx_end(void);

/* To some compilers a load of a tile is a function of an address, for which nothing has to be in memory. */
static inline __attribute__((always_inline)) void write_out(void) { __asm__ volatile("" ::: "memory"); }

static inline __attribute__((always_inline)) void clear_sums(void) {
    _tile_zero(SUM_00);
    _tile_zero(SUM_01);
    _tile_zero(SUM_10);
    _tile_zero(SUM_11);
}

/* To and from (rows, panel), whole tiles of rows. */
static inline __attribute__((always_inline)) void leave_sums(float *to, const int tiles) {
    _tile_stored(SUM_00, to, SUM_BYTES);
    _tile_stored(SUM_01, to + LANES, SUM_BYTES);
    if (tiles < 2) return;
    _tile_stored(SUM_10, to + RFI_CPU_TILE * PANEL, SUM_BYTES);
    _tile_stored(SUM_11, to + RFI_CPU_TILE * PANEL + LANES, SUM_BYTES);
}

static inline __attribute__((always_inline)) void take_sums(const float *from, const int tiles) {
    _tile_loadd(SUM_00, from, SUM_BYTES);
    _tile_loadd(SUM_01, from + LANES, SUM_BYTES);
    if (tiles < 2) return;
    _tile_loadd(SUM_10, from + RFI_CPU_TILE * PANEL, SUM_BYTES);
    _tile_loadd(SUM_11, from + RFI_CPU_TILE * PANEL + LANES, SUM_BYTES);
}

/* out = (in + sum) + bias. */
static inline __attribute__((always_inline)) void store_sums(const rfi_cpu_sliver *s, const int rows, const int tiles) {
    float sums[RFI_CPU_TILE_ROWS][PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
    const float *in = s->in, *bias = s->bias;
    float *out = s->out;
    leave_sums(&sums[0][0], tiles);
    const __m512 bias_0 = _mm512_loadu_ps(bias), bias_1 = _mm512_loadu_ps(bias + LANES);
    for (int i = 0; i < rows; i++, in += s->ld_in, out += s->ld_out) {
        _mm512_storeu_ps(out, _mm512_loadu_ps(in) + _mm512_load_ps(&sums[i][0]) + bias_0);
        _mm512_storeu_ps(out + LANES, _mm512_loadu_ps(in + LANES) + _mm512_load_ps(&sums[i][LANES]) + bias_1);
    }
}

#endif
