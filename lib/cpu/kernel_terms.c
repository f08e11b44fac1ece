/* SPDX-License-Identifier: MIT */
/* float32 in three terms of bfloat16: taken apart, joined again, and multiplied in the order in which tiles do
 * (kernel_amx_terms.c), by multiply-adds. */
#include "cpu/tile_steps.h"

/* The nearest bfloat16, of two the even one, as a float. Its bits grow past those of the largest exponent to
 * infinity's: a value that large has no terms (rfi_cpu_has_terms). */
static inline __m512i rounded(vf v) {
    const __m512i bits = _mm512_castps_si512(v), one = _mm512_set1_epi32(1);
    const __m512i half =
        _mm512_add_epi32(_mm512_and_si512(_mm512_srli_epi32(bits, 16), one), _mm512_set1_epi32(0x7fff));
    return _mm512_and_si512(_mm512_add_epi32(bits, half), _mm512_set1_epi32((int)0xffff0000));
}

/* Both subtractions are exact. */
static inline void terms_of(vf v, __m512i terms[RFI_CPU_TERMS]) {
    terms[0] = rounded(v);
    const vf rest = _mm512_sub_ps(v, _mm512_castsi512_ps(terms[0]));
    terms[1] = rounded(rest);
    terms[2] = _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(terms[1])));
}

/* The values of earlier and later inputs to pairs, `apart` pairs from one term to the next. */
static inline void store_terms(uint32_t *to, int64_t apart, vf earlier, vf later) {
    __m512i first[RFI_CPU_TERMS], second[RFI_CPU_TERMS];
    terms_of(earlier, first);
    terms_of(later, second);
#pragma GCC unroll 3
    for (int t = 0; t < RFI_CPU_TERMS; t++)
        _mm512_storeu_si512(to + t * apart, _mm512_or_si512(first[t], _mm512_srli_epi32(second[t], 16)));
}

/* rfi_cpu_seen in each lane. */
typedef struct seen {
    __m512i least, greatest, second;
} seen;

static inline void look_at(seen *s, vf v) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
    s->least = _mm512_min_epu32(s->least, _mm512_sub_epi32(magnitude, _mm512_set1_epi32(1)));
    s->second = _mm512_max_epu32(s->second, _mm512_min_epu32(s->greatest, magnitude));
    s->greatest = _mm512_max_epu32(s->greatest, magnitude);
}

/* All lanes are one row. */
static inline rfi_cpu_range range_of_row(const seen *s) {
    const uint32_t greatest = _mm512_reduce_max_epu32(s->greatest);
    const __mmask16 where = _mm512_cmpeq_epu32_mask(s->greatest, _mm512_set1_epi32((int)greatest)),
                    others = where & (__mmask16)(where - 1); /* but one */
    const __m512i rest = _mm512_mask_blend_epi32((__mmask16)(where ^ others), s->greatest, s->second);
    return rfi_cpu_range_of((rfi_cpu_seen){
        _mm512_reduce_min_epu32(s->least), greatest, _mm512_reduce_max_epu32(_mm512_max_epu32(rest, s->second))});
}

static inline __mmask16 first_lanes(int64_t n) {
    return n >= LANES ? (__mmask16)-1 : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

rfi_cpu_range rfi_cpu_terms_split_row(uint32_t *to, const float *from, int64_t depth) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
                  odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    seen s = {_mm512_set1_epi32(-1), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int64_t k = 0; k < depth; k += 2 * LANES) {
        const vf a = _mm512_maskz_loadu_ps(first_lanes(depth - k), from + k),
                 b = _mm512_maskz_loadu_ps(first_lanes(depth - k - LANES), from + k + LANES);
        look_at(&s, a);
        look_at(&s, b);
        store_terms(
            to + k / 2, RFI_CPU_PAIRS_LD, _mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b));
    }
    return range_of_row(&s);
}

/* Pairs from one term of a panel to the next. */
static inline int64_t term_of_panel(int64_t depth) { return (depth + 1) / 2 * PANEL; }

void rfi_cpu_terms_split_panel(uint32_t *to, int64_t apart, const float *from, int64_t depth, rfi_cpu_seen *columns) {
    seen s[VECTORS];
    uint32_t least[PANEL], greatest[PANEL], second[PANEL];
    for (int j = 0; j < PANEL; j++)
        least[j] = columns[j].least, greatest[j] = columns[j].greatest, second[j] = columns[j].second;
    for (int v = 0; v < VECTORS; v++)
        s[v] = (seen){_mm512_loadu_si512(least + v * LANES), _mm512_loadu_si512(greatest + v * LANES),
            _mm512_loadu_si512(second + v * LANES)};
    for (int64_t k = 0; k < depth; k += 2, from += 2 * PANEL, to += PANEL)
        for (int v = 0; v < VECTORS; v++) {
            const vf earlier = _mm512_loadu_ps(from + v * LANES),
                     later = k + 1 < depth ? _mm512_loadu_ps(from + PANEL + v * LANES) : _mm512_setzero_ps();
            look_at(&s[v], earlier);
            look_at(&s[v], later);
            store_terms(to + v * LANES, apart, earlier, later);
        }
    for (int v = 0; v < VECTORS; v++) {
        _mm512_storeu_si512(least + v * LANES, s[v].least);
        _mm512_storeu_si512(greatest + v * LANES, s[v].greatest);
        _mm512_storeu_si512(second + v * LANES, s[v].second);
    }
    for (int j = 0; j < PANEL; j++) columns[j] = (rfi_cpu_seen){least[j], greatest[j], second[j]};
}

/* The first two terms have a sum of no more bits than the value. */
void rfi_cpu_terms_join_panel(float *to, const uint32_t *from, int64_t depth) {
    const int64_t apart = term_of_panel(depth);
    for (int64_t k = 0; k < depth; k += 2, from += PANEL, to += 2 * PANEL)
        for (int v = 0; v < VECTORS; v++) {
            const __m512i first = _mm512_load_si512(from + v * LANES),
                          second = _mm512_load_si512(from + apart + v * LANES),
                          third = _mm512_load_si512(from + 2 * apart + v * LANES);
            _mm512_storeu_ps(to + v * LANES, upper(first) + upper(second) + upper(third));
            if (k + 1 < depth) _mm512_storeu_ps(to + PANEL + v * LANES, lower(first) + lower(second) + lower(third));
        }
}

/* `rows` <= ROWS of the sliver, from `first` on. */
static inline __attribute__((always_inline)) void multiply_rows(
    const rfi_cpu_sliver *s, const int64_t first, const int rows) {
    const uint32_t *x = (const uint32_t *)s->x + first * RFI_CPU_TERMS_LD, *w = s->w;
    const int64_t w_apart = term_of_panel(s->depth);
    vf sum[ROWS][VECTORS];
    clear(sum, rows);
#define ONE(i, j)                                                                                          \
    add_step(sum, x + (i) * RFI_CPU_PAIRS_LD + k / 2, RFI_CPU_TERMS_LD, w + (j) * w_apart + k / 2 * PANEL, \
        pairs_of_step(s, k), rows);
    for (int64_t k = 0; k < s->depth; k += RFI_CPU_TILE_DEPTH) { RFI_CPU_EACH_SMALL_PRODUCT(ONE) }
    for (int64_t k = 0; k < s->depth; k += RFI_CPU_TILE_DEPTH) ONE(0, 0)
#undef ONE
    store_sums(s, sum, first, rows);
}

MULTIPLY_ALL_ROWS

RFI_CPU_EACH_TILE_ROWS(RFI_CPU_ONE_TILE_ROWS)
const rfi_cpu_multiply rfi_cpu_terms_multiply[] = {RFI_CPU_EACH_TILE_ROWS(RFI_CPU_NAME_TILE_ROWS)};

const rfi_cpu_terms rfi_cpu_terms_avx512 = {
    .name = "multiply-adds in the order of tiles",
    .max_rows = RFI_CPU_TILE_ROWS,
    .rows_step = RFI_CPU_TILE,
    .block_rows = RFI_CPU_TILE_BLOCK,
    .rate = 0.17,
    .multiply = rfi_cpu_terms_multiply,
    .split_row = rfi_cpu_terms_split_row,
    .split_panel = rfi_cpu_terms_split_panel,
    .join_panel = rfi_cpu_terms_join_panel,
};
