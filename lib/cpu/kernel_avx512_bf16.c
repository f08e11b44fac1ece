/* SPDX-License-Identifier: MIT */
/* AVX512-BF16: VDPBF16PS adds two products of bfloat16 to each of 16 floats. */
#include <immintrin.h>
#include <string.h>

#define ADD_PAIRS(sum, x, w) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(w))
#define MULTIPLY_FLOAT rfi_cpu_pairs_multiply_float
#define WIDEN rfi_cpu_pairs_widen
#include "cpu/pairs_typed.h"

/* The values behind the last are zero, and a row has room for a whole vector. */
static inline __m512i pack_some(uint32_t *to, __m512i values, __m512i smallest) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), one = _mm512_set1_epi16(1);
    _mm512_storeu_si512(to, _mm512_rol_epi32(values, 16));
    return _mm512_min_epu16(smallest, _mm512_sub_epi16(_mm512_and_si512(values, magnitude), one));
}

void rfi_cpu_pairs_pack(uint32_t *to, const uint16_t *from, int64_t depth, uint16_t *least) {
    enum { VALUES = 2 * LANES };
    __m512i smallest = _mm512_loadu_si512(least), other = smallest;
    int64_t k = 0;
    for (; k + 2 * VALUES <= depth; k += 2 * VALUES) {
        smallest = pack_some(to + k / 2, _mm512_loadu_si512(from + k), smallest);
        other = pack_some(to + k / 2 + LANES, _mm512_loadu_si512(from + k + VALUES), other);
    }
    for (; k < depth; k += VALUES) {
        const __mmask32 some = depth - k >= VALUES ? ~(__mmask32)0 : ((__mmask32)1 << (depth - k)) - 1;
        smallest = pack_some(to + k / 2, _mm512_maskz_loadu_epi16(some, from + k), smallest);
    }
    _mm512_storeu_si512(least, _mm512_min_epu16(smallest, other));
}

const rfi_cpu_pairs rfi_cpu_pairs_avx512_bf16 = {
    .name = "AVX512-BF16",
    .max_rows = ROWS_MAX,
    .rows_step = 1,
    .block_rows = RFI_CPU_ROWS,
    .flushes = 1,
    .rate = 1.85, /* doc/kernels/cpu.md 8 */
    .multiply = pairs_table,
    .multiply_float = rfi_cpu_pairs_multiply_float,
    .pack = rfi_cpu_pairs_pack,
    .widen = rfi_cpu_pairs_widen,
};

/* All the same in every lane. */
static __m512i pair_of(float first, float second) {
    uint32_t upper, lower;
    memcpy(&upper, &first, sizeof upper);
    memcpy(&lower, &second, sizeof lower);
    return _mm512_set1_epi32((int)((upper & 0xffff0000) | lower >> 16));
}

int rfi_cpu_pairs_as_documented_avx512_bf16(void) {
    /* x and w of the upper half, of the lower half, and the sum before. */
    static const volatile float cases[][5] = {
        {0x1p-12f, 0x1p-12f, 0x1p-24f, 1, 1},    /* both at once would round up */
        {0x1p-24f, 1, 0x1p-23f, 1, 1},           /* so would the lower half first */
        {0x1p-24f, 1.0078125f, 0, 1, 1},         /* and this is up, */
        {-0x1p-25f, 1.0078125f, 0, 1, 1},        /* this down */
        {0x1p100f, 0x1p28f, 0, 1, -0x1.fep127f}, /* a product that is rounded before it is added is infinite */
        {0x1p100f, 1, -0x1p100f, 1, 1},          /* two that are added to each other first leave 1 */
        {0x1p127f, 2, 0x1p127f, -2, 0},
        {__builtin_inff(), 0, 1, 1, 1},
        {__builtin_inff(), 1, -__builtin_inff(), 1, 1},
        {1, __builtin_nanf("0x410000"), -__builtin_nanf("0x20000"), 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const float x1 = cases[i][0], w1 = cases[i][1], x0 = cases[i][2], w0 = cases[i][3];
        const vf before = _mm512_set1_ps(cases[i][4]);
        const vf pairs = ADD_PAIRS(before, pair_of(x1, x0), pair_of(w1, w0));
        const vf once = _mm512_fmadd_ps(_mm512_set1_ps(x1), _mm512_set1_ps(w1), before);
        const vf twice = _mm512_fmadd_ps(_mm512_set1_ps(x0), _mm512_set1_ps(w0), once);
        if (_mm512_cmpneq_epi32_mask(_mm512_castps_si512(pairs), _mm512_castps_si512(twice))) return 0;
    }
    return 1;
}
