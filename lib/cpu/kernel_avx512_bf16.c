/* SPDX-License-Identifier: MIT */
/* AVX512-BF16: VDPBF16PS adds two products of bfloat16 to each of 16 floats. Slivers and panels are AVX-512's: 14 rows
 * of 2 vectors are 28 sums; with 2 vectors of W and one of x, 31 of 32 registers. */
#include <string.h>

#include "cpu/pair_halves.h"

#define ADD_PAIRS(sum, x, w) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(w))

enum { ROWS_MAX = 14 };
_Static_assert(
    ROWS_MAX <= (int)RFI_CPU_BLOCK_ROWS && PANEL <= (int)RFI_CPU_BLOCK_PANEL, "multiply.c keeps the sums of a chunk");
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)

/* A pair of inputs, x in pairs. */
static inline __attribute__((always_inline)) void add_pair(
    vf sum[][VECTORS], const void *x, const uint32_t *w, const int rows, const int vectors) {
    __m512i wv[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) wv[v] = _mm512_load_si512(w + v * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        __m512i xv = _mm512_set1_epi32(((const int *)x)[i * RFI_CPU_PAIRS_LD]);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[i][v] = ADD_PAIRS(sum[i][v], xv, wv[v]);
    }
}

/* The same of float x, of which the second is there only if `both`. */
static inline __attribute__((always_inline)) void add_pair_float(
    vf sum[][VECTORS], const float *x, const uint32_t *w, const int rows, const int both) {
    vf first[VECTORS], second[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) {
        __m512i pairs = _mm512_load_si512(w + v * LANES);
        first[v] = upper(pairs);
        second[v] = lower(pairs);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            sum[i][v] = _mm512_fmadd_ps(_mm512_set1_ps(x[i * RFI_CPU_X_LD]), first[v], sum[i][v]);
    if (!both) return;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            sum[i][v] = _mm512_fmadd_ps(_mm512_set1_ps(x[i * RFI_CPU_X_LD + 1]), second[v], sum[i][v]);
}

static inline __attribute__((always_inline)) void add_inputs(vf sum[][VECTORS], const char *x, const uint32_t *w,
    const int rows, const int floats, const int vectors, const int both) {
    if (floats) add_pair_float(sum, (const float *)(const void *)x, w, rows, both);
    else add_pair(sum, x, w, rows, vectors);
}

/* As in multiply_typed.h; RFI_CPU_STEP inputs are whole pairs. Floats are multiplied with all vectors. */
static inline __attribute__((always_inline)) void multiply(
    const rfi_cpu_sliver *s, const int rows, const int floats, const int vectors) {
    const char *x = s->x, *ahead = s->ahead;
    const uint32_t *w = s->w;
    const int64_t depth = s->depth, ld_in = s->ld_in, ld_more = s->ld_more, ld_out = s->ld_out;
    const float *in = s->in, *more = s->more, *bias = s->bias;
    float *out = s->out;
    const int lines = s->ahead_lines, near = s->ahead_is_x;
    const size_t step = floats ? 2 * sizeof(float) : sizeof(uint32_t);
    vf sum[ROWS_MAX][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sum[i][v] = _mm512_setzero_ps();
    if (!s->inner) {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++) __builtin_prefetch(out + i * ld_out + v * LANES, 1, 3);
    }
    int64_t k = 0;
    for (; k + RFI_CPU_STEP <= depth; k += RFI_CPU_STEP) {
#pragma GCC unroll 2
        for (int u = 0; u < RFI_CPU_STEP / 2; u++, x += step, w += PANEL)
            add_inputs(sum, x, w, rows, floats, vectors, 1);
        rfi_cpu_ask_for_lines(s, ahead, lines, near);
        ahead += s->ahead_step;
    }
    for (; k < depth; k += 2, x += step, w += PANEL) add_inputs(sum, x, w, rows, floats, vectors, k + 1 < depth);
    if (s->inner) {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++, in += ld_in)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                _mm512_store_ps(out + i * PANEL + v * LANES, _mm512_loadu_ps(in + v * LANES) + sum[i][v]);
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(out + v * LANES,
                _mm512_loadu_ps(in + v * LANES) + sum[i][v] + _mm512_loadu_ps(more + v * LANES) +
                    _mm512_loadu_ps(bias + v * LANES));
        if (vectors < VECTORS) _mm512_storeu_ps(out + LANES, _mm512_setzero_ps());
        in += ld_in;
        more += ld_more;
        out += ld_out;
    }
}

#define ONE(rows)                                                \
    static void multiply_pairs_##rows(const rfi_cpu_sliver *s) { \
        if (s->half) multiply(s, rows, 0, VECTORS / 2);          \
        else multiply(s, rows, 0, VECTORS);                      \
    }
EACH_ROWS(ONE)
#undef ONE

#define ONE(rows) multiply_pairs_##rows,
static const rfi_cpu_multiply pairs_table[] = {EACH_ROWS(ONE)};
#undef ONE

#define ONE(rows) \
    static void multiply_float_##rows(const rfi_cpu_sliver *s) { multiply(s, rows, 1, VECTORS); }
EACH_ROWS(ONE)
#undef ONE

#define ONE(rows) multiply_float_##rows,
const rfi_cpu_multiply rfi_cpu_pairs_multiply_float[] = {EACH_ROWS(ONE)};
#undef ONE

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

void rfi_cpu_pairs_widen(float *to, const uint32_t *from, int64_t depth) { widen_pairs(to, from, depth); }

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
