/* SPDX-License-Identifier: MIT */
/* AVX2 with FMA and F16C: 6 rows of 2 vectors are 12 sums; with 2 vectors of W and one of x, 15 of 16 registers. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m256 vf;
typedef __m256d vd;

#define RFI_CPU_ISA(stem) stem##_avx2
#define ISA_NAME "AVX2"
#define ISA_X_LIES
#define ISA_BYTES 32
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define F32_VECTORS 2
#define F64_VECTORS 2
#define F32_BROADCAST(s) _mm256_set1_ps(s)
#define F64_BROADCAST(s) _mm256_set1_pd(s)
#define F32_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define F64_FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#define ISA_WIDENS
#define HALF_LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define HALF_LOAD_PART(p, n) load_halves(p, n)
#define F32_FROM_F16(h) _mm256_cvtph_ps(h)
#define F32_FROM_BF16(h) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))
#define F32_STORE_F16(p, v) \
    _mm_storeu_si128((__m128i *)(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))

/* 4 rows of 3 columns are 12 sums; with 3 vectors of W and one of x, all 16 registers. */
#define INNER_COLUMNS 3
#define EACH_INNER_COLUMNS(X) X(1) X(2) X(3)
#define F32_LOAD_PART(p, n) \
    _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)))
#define F64_LOAD_PART(p, n) \
    _mm256_maskload_pd(p, _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)))
#define F32_NEAR(a, b) (_mm256_shuffle_ps(a, b, 0x88) + _mm256_shuffle_ps(a, b, 0xdd))
#define F64_NEAR(a, b) (_mm256_unpacklo_pd(a, b) + _mm256_unpackhi_pd(a, b))
#define F32_FAR(a, b) (_mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31))
#define F64_FAR(a, b) (_mm256_permute2f128_pd(a, b, 0x20) + _mm256_permute2f128_pd(a, b, 0x31))

/* Up to three 16-bit values, the first in the lowest bits. */
static inline uint64_t load_three(const uint16_t *p, int n) {
    uint32_t two = 0;
    uint16_t one = 0;
    if (n & 2) memcpy(&two, p, sizeof two);
    if (n & 1) memcpy(&one, p + (n & 2), sizeof one);
    return n & 2 ? two | (uint64_t)one << 32 : one;
}

/* Up to seven. In registers: what is stored in pieces cannot be loaded as a whole until it has reached the cache. */
static inline __m128i load_halves(const uint16_t *p, int n) {
    uint64_t low = 0;
    if (n < 4) return _mm_cvtsi64_si128((long long)load_three(p, n));
    memcpy(&low, p, sizeof low);
    return _mm_set_epi64x((long long)load_three(p + 4, n - 4), (long long)low);
}

#include "cpu/kernel_typed.h"
