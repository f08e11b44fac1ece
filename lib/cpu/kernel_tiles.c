/* SPDX-License-Identifier: MIT */
/* The order in which tiles add products of bfloat16, by multiply-adds: what Intel's manual says of TDPBF16PS. A step
 * takes RFI_CPU_TILE_DEPTH inputs. The products of the upper halves of its pairs are one sum from zero on, in their
 * order, those of the lower halves another; the two are added, and that to the sum of the steps before, which begins
 * with zero in every chunk. A chunk of 512 inputs has 16 steps, so no product passes through more than 33 roundings and
 * most of them are of small sums.
 *
 * Nothing is flushed here, so this is right for all values, and has the tiles' bits where they flush nothing. */
#include <immintrin.h>

#include "cpu/kernel.h"

enum { LANES = 16, VECTORS = 2, PANEL = LANES * VECTORS, ROWS = 4 /* at a time: 24 sums */ };

typedef __m512 vf;

static inline __attribute__((always_inline)) void add_pair(
    vf upper[][VECTORS], vf lower[][VECTORS], const uint32_t *x, const uint32_t *w, const int rows) {
    const __m512i half = _mm512_set1_epi32((int)0xffff0000);
    vf w_upper[VECTORS], w_lower[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) {
        const __m512i pairs = _mm512_load_si512(w + v * LANES);
        w_upper[v] = _mm512_castsi512_ps(_mm512_and_si512(pairs, half));
        w_lower[v] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        const __m512i pair = _mm512_set1_epi32((int)x[i * RFI_CPU_PAIRS_LD]);
        const vf x_upper = _mm512_castsi512_ps(_mm512_and_si512(pair, half)),
                 x_lower = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) {
            upper[i][v] = _mm512_fmadd_ps(x_upper, w_upper[v], upper[i][v]);
            lower[i][v] = _mm512_fmadd_ps(x_lower, w_lower[v], lower[i][v]);
        }
    }
}

static inline __attribute__((always_inline)) void clear(vf sums[][VECTORS], const int rows) {
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sums[i][v] = _mm512_setzero_ps();
}

/* `rows` <= ROWS of the sliver, from `first` on. */
static inline __attribute__((always_inline)) void multiply_rows(
    const rfi_cpu_sliver *s, const int64_t first, const int rows) {
    const uint32_t *x = (const uint32_t *)s->x + first * RFI_CPU_PAIRS_LD, *w = s->w;
    vf sum[ROWS][VECTORS], upper[ROWS][VECTORS], lower[ROWS][VECTORS];
    clear(sum, rows);
    for (int64_t k = 0; k < s->depth; k += RFI_CPU_TILE_DEPTH) {
        const int64_t left = (s->depth - k + 1) / 2, pairs = left < RFI_CPU_TILE ? left : RFI_CPU_TILE;
        clear(upper, rows);
        clear(lower, rows);
        for (int64_t p = 0; p < pairs; p++, x++, w += PANEL) add_pair(upper, lower, x, w, rows);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++) sum[i][v] += upper[i][v] + lower[i][v];
    }
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

static void multiply(const rfi_cpu_sliver *s, int rows) {
    int first = 0;
    for (; first + ROWS <= rows; first += ROWS) multiply_rows(s, first, ROWS);
    switch (rows - first) {
    case 1: multiply_rows(s, first, 1); break;
    case 2: multiply_rows(s, first, 2); break;
    case 3: multiply_rows(s, first, 3); break;
    }
}

#define ONE(rows) \
    static void multiply_##rows(const rfi_cpu_sliver *s) { multiply(s, rows); }
RFI_CPU_EACH_TILE_ROWS(ONE)
#undef ONE

#define ONE(rows) multiply_##rows,
const rfi_cpu_multiply rfi_cpu_tiles_multiply[] = {RFI_CPU_EACH_TILE_ROWS(ONE)};
#undef ONE

const rfi_cpu_pairs rfi_cpu_pairs_avx512_tiles = {
    .name = "multiply-adds in the order of tiles",
    .max_rows = RFI_CPU_TILE_ROWS,
    .rows_step = RFI_CPU_TILE,
    .block_rows = RFI_CPU_TILE_BLOCK,
    .whole = 1,
    .rate = 0.7,
    .multiply = rfi_cpu_tiles_multiply,
    .multiply_any = rfi_cpu_tiles_multiply,
    .multiply_float = rfi_cpu_pairs_multiply_float,
    .pack = rfi_cpu_pairs_pack,
    .widen = rfi_cpu_pairs_widen,
};
