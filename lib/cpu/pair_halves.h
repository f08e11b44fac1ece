/* SPDX-License-Identifier: MIT */
/* Both values of 16 pairs as floats: of float16 where RFI_CPU_F16_PAIRS is defined before, else of bfloat16. */
#ifndef ROWFOLD_CPU_PAIR_HALVES_H
#define ROWFOLD_CPU_PAIR_HALVES_H

#include <immintrin.h>

typedef __m512 vf;

#ifdef RFI_CPU_F16_PAIRS
static inline vf upper(__m512i pairs) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16))); }

static inline vf lower(__m512i pairs) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)); }
#else
static inline vf upper(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

static inline vf lower(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
#endif

#endif
