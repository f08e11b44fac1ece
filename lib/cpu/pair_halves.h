/* SPDX-License-Identifier: MIT */
/* Panels of pairs on AVX-512, of float16 where RFI_CPU_F16_PAIRS is defined before, else of bfloat16. */
#ifndef ROWFOLD_CPU_PAIR_HALVES_H
#define ROWFOLD_CPU_PAIR_HALVES_H

#include <immintrin.h>

#include "cpu/kernel.h"

enum { LANES = 16, VECTORS = 2, PANEL = RFI_CPU_TILE_PANEL };
typedef __m512 vf;

/* Both values of 16 pairs as floats. */
#ifdef RFI_CPU_F16_PAIRS
static inline vf upper(__m512i pairs) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16))); }

static inline vf lower(__m512i pairs) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)); }
#else
static inline vf upper(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

static inline vf lower(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
#endif

/* What rfi_cpu_pairs says of `widen`. */
static inline void widen_pairs(float *to, const uint32_t *from, int64_t depth) {
    for (int64_t k = 0; k < depth; k += 2, from += PANEL, to += 2 * PANEL)
        for (int v = 0; v < VECTORS; v++) {
            const __m512i pairs = _mm512_load_si512(from + v * LANES);
            _mm512_store_ps(to + v * LANES, upper(pairs));
            if (k + 1 < depth) _mm512_store_ps(to + PANEL + v * LANES, lower(pairs));
        }
}

#endif
