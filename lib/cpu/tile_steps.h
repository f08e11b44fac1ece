/* SPDX-License-Identifier: MIT */
/* A step of tiles in multiply-adds: what Intel's manual says of TDPBF16PS and TDPFP16PS, for tiles_typed.h and
 * kernel_terms.c. The products of the upper halves of RFI_CPU_TILE pairs are one sum from zero on, in their order,
 * those of the lower halves another; the two are added, and that to the sum of the steps before. Nothing is flushed
 * here. */
#ifndef ROWFOLD_CPU_TILE_STEPS_H
#define ROWFOLD_CPU_TILE_STEPS_H

#include "cpu/pair_halves.h"

enum { ROWS = 4 }; /* at a time: 24 sums */

static inline __attribute__((always_inline)) void clear(vf sums[][VECTORS], const int rows) {
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sums[i][v] = _mm512_setzero_ps();
}

/* `rows` rows of x, x_ld pairs apart, times a panel of W. */
static inline __attribute__((always_inline)) void add_step(
    vf sum[][VECTORS], const uint32_t *x, const int64_t x_ld, const uint32_t *w, const int64_t pairs, const int rows) {
    vf of_upper[ROWS][VECTORS], of_lower[ROWS][VECTORS];
    clear(of_upper, rows);
    clear(of_lower, rows);
    for (int64_t p = 0; p < pairs; p++, x++, w += PANEL) {
        __m512i wv[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) wv[v] = _mm512_load_si512(w + v * LANES);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            const __m512i xv = _mm512_set1_epi32((int)x[i * x_ld]);
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++) {
                of_upper[i][v] = _mm512_fmadd_ps(upper(xv), upper(wv[v]), of_upper[i][v]);
                of_lower[i][v] = _mm512_fmadd_ps(lower(xv), lower(wv[v]), of_lower[i][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sum[i][v] += of_upper[i][v] + of_lower[i][v];
}

/* Pairs of the step that begins with input k. */
static inline int64_t pairs_of_step(const rfi_cpu_sliver *s, int64_t k) {
    const int64_t left = (s->depth - k + 1) / 2;
    return left < RFI_CPU_TILE ? left : RFI_CPU_TILE;
}

/* out = (in + sum) + bias, of rows from `first` on. */
static inline __attribute__((always_inline)) void store_sums(
    const rfi_cpu_sliver *s, vf sum[][VECTORS], const int64_t first, const int rows) {
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) {
            const float *in = (const float *)s->in + (first + i) * s->ld_in + v * LANES,
                        *bias = (const float *)s->bias + v * LANES;
            float *out = (float *)s->out + (first + i) * s->ld_out + v * LANES;
            _mm512_storeu_ps(out, _mm512_loadu_ps(in) + sum[i][v] + _mm512_loadu_ps(bias));
        }
}

/* All rows of a sliver by `multiply_rows(sliver, first, rows)`, whose last argument is a constant. */
#define MULTIPLY_ALL_ROWS                                                          \
    static void multiply(const rfi_cpu_sliver *s, int rows) {                      \
        int first = 0;                                                             \
        for (; first + ROWS <= rows; first += ROWS) multiply_rows(s, first, ROWS); \
        switch (rows - first) {                                                    \
        case 1: multiply_rows(s, first, 1); break;                                 \
        case 2: multiply_rows(s, first, 2); break;                                 \
        case 3: multiply_rows(s, first, 3); break;                                 \
        }                                                                          \
    }

#endif
