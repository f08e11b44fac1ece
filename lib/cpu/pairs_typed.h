/* SPDX-License-Identifier: MIT */
/* Products of W in pairs on AVX-512, included once for each type of them. Slivers and panels are AVX-512's: 14 rows of
 * 2 vectors are 28 sums; with 2 vectors of W and one of x, 31 of 32 registers. Needs
 *   RFI_CPU_F16_PAIRS        as pair_halves.h says
 *   ADD_PAIRS(sum, x, w)     an instruction that adds the products of pairs to 16 floats, if there is one: pairs_table
 *   MULTIPLY_FLOAT           what rfi_cpu_pairs calls multiply_float
 *   WIDEN                    and widen */
#include "cpu/kernel.h"
#include "cpu/pair_halves.h"

enum { LANES = 16, VECTORS = 2, ROWS_MAX = 14, PANEL = LANES * VECTORS };
_Static_assert(
    ROWS_MAX <= (int)RFI_CPU_BLOCK_ROWS && PANEL <= (int)RFI_CPU_BLOCK_PANEL, "multiply.c keeps the sums of a chunk");
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)

#ifdef ADD_PAIRS
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
#endif

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
#ifdef ADD_PAIRS
    if (!floats) {
        add_pair(sum, x, w, rows, vectors);
        return;
    }
#endif
    (void)floats, (void)vectors;
    add_pair_float(sum, (const float *)(const void *)x, w, rows, both);
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

#ifdef ADD_PAIRS
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
#endif

#define ONE(rows) \
    static void multiply_float_##rows(const rfi_cpu_sliver *s) { multiply(s, rows, 1, VECTORS); }
EACH_ROWS(ONE)
#undef ONE

#define ONE(rows) multiply_float_##rows,
const rfi_cpu_multiply MULTIPLY_FLOAT[] = {EACH_ROWS(ONE)};
#undef ONE

void WIDEN(float *to, const uint32_t *from, int64_t depth) {
    for (int64_t k = 0; k < depth; k += 2, from += PANEL, to += 2 * PANEL)
        for (int v = 0; v < VECTORS; v++) {
            const __m512i pairs = _mm512_load_si512(from + v * LANES);
            _mm512_store_ps(to + v * LANES, upper(pairs));
            if (k + 1 < depth) _mm512_store_ps(to + PANEL + v * LANES, lower(pairs));
        }
}
