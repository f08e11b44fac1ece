/* SPDX-License-Identifier: MIT */
/* float32 in three terms of bfloat16: that they are all of a value, what is seen on the way, and that tiles, in plain C
 * here, have the bits of multiply-adds for all values that may be multiplied so. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "emulated_tiles.h"
#include "random.h"

enum { PANEL = RFI_CPU_TILE_PANEL, ROWS = RFI_CPU_TILE_ROWS, DEPTH = RFI_CPU_DEPTH };

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float some_value(int exponent) {
    const uint64_t random = next_random();
    return ldexpf(1 + (float)(random & 0x7fffff) * 0x1p-23f, exponent) * (random >> 63 ? -1.0f : 1.0f);
}

/* Term t of input k of a row, or of column j of a panel whose terms are `apart` pairs apart. */
static float term_of_row(const uint32_t *row, int t, int k) {
    const uint32_t pair = row[t * RFI_CPU_PAIRS_LD + k / 2];
    return float_of(k % 2 ? pair << 16 : pair & 0xffff0000);
}

static float term_of_panel(const uint32_t *panel, int64_t apart, int t, int k, int j) {
    const uint32_t pair = panel[t * apart + k / 2 * PANEL + j];
    return float_of(k % 2 ? pair << 16 : pair & 0xffff0000);
}

static int is_whole(const float terms[RFI_CPU_TERMS], float value) {
    int normal = 1;
    for (int t = 0; t < RFI_CPU_TERMS; t++) normal &= terms[t] == 0 || isnormal(terms[t]);
    return normal && (double)terms[0] + (double)terms[1] + (double)terms[2] == (double)value &&
        fabsf(value - terms[0]) <= ldexpf(fabsf(value), -8) && fabsf(terms[2]) <= ldexpf(fabsf(value), -16);
}

static int exponent_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (int)(bits >> 23 & 255);
}

/* Of values with exponents from -126 to 127, as far as they have terms. */
static void check_rows(void) {
    static uint32_t row[RFI_CPU_TERMS_LD];
    for (int trial = 0; trial < 20000; trial++) {
        const int depth = 1 + (int)(next_random() % (trial % 10 ? 70 : DEPTH)), spread = 1 + (int)(next_random() % 40),
                  low = -126 + (int)(next_random() % (254 - (uint64_t)spread));
        float values[DEPTH];
        int least = RFI_CPU_ALL_ZERO, greatest = 0, second = 0;
        for (int k = 0; k < depth; k++) {
            values[k] = next_random() % 8 ? some_value(low + (int)(next_random() % (uint64_t)spread)) : 0;
            const int e = values[k] == 0 ? 0 : exponent_of(values[k]);
            if (e && e < least) least = e;
            if (e > greatest) second = greatest, greatest = e;
            else if (e > second) second = e;
        }
        memset(row, 0xff, sizeof row);
        const rfi_cpu_range range = rfi_cpu_terms_split_row(row, values, depth);
        CHECK(range.least == least && range.greatest == greatest, "trial %d: %d to %d, not %d to %d", trial,
            range.least, range.greatest, least, greatest);
        CHECK(range.alone == (greatest && greatest - second >= RFI_CPU_ALONE), "trial %d: %d and %d, alone is %d",
            trial, greatest, second, range.alone);
        const int normal = least >= 24 && greatest <= 253;
        CHECK(rfi_cpu_has_terms(range) == (normal && !range.alone), "trial %d: %d to %d", trial, least, greatest);
        for (int k = 0; k < depth && normal; k++) {
            const float terms[] = {term_of_row(row, 0, k), term_of_row(row, 1, k), term_of_row(row, 2, k)};
            CHECK(is_whole(terms, values[k]), "%a is %a, %a and %a", values[k], terms[0], terms[1], terms[2]);
        }
        for (int k = depth; k % RFI_CPU_TILE_DEPTH && normal; k++)
            for (int t = 0; t < RFI_CPU_TERMS; t++)
                CHECK(term_of_row(row, t, k) == 0, "input %d of %d has term %d", k, depth, t);
    }
}

/* What is no finite normal number has no terms, nor has what is too close to the ends, nor one value alone. */
static void check_ends(void) {
    static const struct {
        float value;
        int has;
    } ends[] = {{0, 1}, {-0.0f, 1}, {1, 1}, {INFINITY, 0}, {-INFINITY, 0}, {NAN, 0}, {0x1p-126f, 0}, {0x1p-149f, 0},
        {0x1p-104f, 0}, {-0x1.fffffep-104f, 0}, {0x1p-103f, 1}, {0x1.fffffep-103f, 1}, {-0x1.fffffep126f, 1},
        {0x1p127f, 0}, {0x1.fffffep127f, 0}};
    static uint32_t row[RFI_CPU_TERMS_LD];
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const float twice[] = {0, ends[i].value, ends[i].value}, alone[] = {0, ends[i].value, 0};
        const int of_two = rfi_cpu_has_terms(rfi_cpu_terms_split_row(row, twice, 3));
        CHECK(of_two == ends[i].has, "%a: %d", ends[i].value, of_two);
        const int of_one = rfi_cpu_has_terms(rfi_cpu_terms_split_row(row, alone, 3));
        CHECK(of_one == (ends[i].value == 0), "%a alone: %d", ends[i].value, of_one);
    }
}

/* A panel in parts, as W is packed, is its values again; what each column has been seen of adds up. */
static void check_panels(void) {
    static float values[DEPTH * PANEL], back[DEPTH * PANEL];
    static uint32_t panel[RFI_CPU_TERMS * DEPTH / 2 * PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
    for (int depth = 1; depth <= DEPTH; depth += depth < 70 ? 1 : 221) {
        const int64_t apart = (depth + 1) / 2 * PANEL;
        rfi_cpu_seen seen[PANEL];
        for (int i = 0; i < depth * PANEL; i++)
            values[i] = some_value((int)(next_random() % (RFI_CPU_ALONE - 1)) - 100);
        for (int j = 0; j < PANEL; j++) seen[j] = (rfi_cpu_seen){UINT32_MAX, 0, 0};
        for (int k = 0; k < depth; k += RFI_CPU_TILE_DEPTH)
            rfi_cpu_terms_split_panel(panel + k / 2 * PANEL, apart, values + k * PANEL,
                depth - k < RFI_CPU_TILE_DEPTH ? depth - k : RFI_CPU_TILE_DEPTH, seen);
        rfi_cpu_terms_join_panel(back, panel, depth);
        CHECK(!memcmp(back, values, (size_t)(depth * PANEL) * sizeof *back), "%d inputs: not what they were", depth);
        for (int j = 0; j < PANEL; j++) {
            int least = RFI_CPU_ALL_ZERO, greatest = 0;
            for (int k = 0; k < depth; k++) {
                const float value = values[k * PANEL + j];
                const float terms[] = {term_of_panel(panel, apart, 0, k, j), term_of_panel(panel, apart, 1, k, j),
                    term_of_panel(panel, apart, 2, k, j)};
                CHECK(is_whole(terms, value), "%a is %a, %a and %a", value, terms[0], terms[1], terms[2]);
                if (exponent_of(value) < least) least = exponent_of(value);
                if (exponent_of(value) > greatest) greatest = exponent_of(value);
            }
            const rfi_cpu_range range = rfi_cpu_range_of(seen[j]);
            CHECK(range.least == least && range.greatest == greatest && range.alone == (depth == 1),
                "%d inputs, column %d: %d to %d, alone is %d", depth, j, range.least, range.greatest, range.alone);
        }
    }
}

static uint32_t x[ROWS * RFI_CPU_TERMS_LD];
static uint32_t w[RFI_CPU_TERMS * DEPTH / 2 * PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
static float x_values[ROWS][DEPTH], w_values[DEPTH * PANEL], plain[ROWS * PANEL], tiles[ROWS * PANEL];

/* Values below and above these exponents, to terms. Are they of a kind that may be multiplied so? */
static int draw(int depth, int low_x, int high_x, int low_w, int high_w) {
    rfi_cpu_range of_x = {.least = RFI_CPU_ALL_ZERO}, of_w = of_x;
    rfi_cpu_seen seen[PANEL];
    memset(x, 0xff, sizeof x); /* NaN, which other rows and other panels may be */
    memset(w, 0xff, sizeof w);
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < depth; k++)
            x_values[i][k] = some_value(low_x + (int)(next_random() % (uint64_t)(high_x - low_x + 1)));
        const rfi_cpu_range row = rfi_cpu_terms_split_row(x + i * RFI_CPU_TERMS_LD, x_values[i], depth);
        if (row.least < of_x.least) of_x.least = row.least;
        if (row.greatest > of_x.greatest) of_x.greatest = row.greatest;
    }
    for (int k = 0; k < depth * PANEL; k++)
        w_values[k] = some_value(low_w + (int)(next_random() % (uint64_t)(high_w - low_w + 1)));
    for (int j = 0; j < PANEL; j++) seen[j] = (rfi_cpu_seen){UINT32_MAX, 0, 0};
    rfi_cpu_terms_split_panel(w, (depth + 1) / 2 * PANEL, w_values, depth, seen);
    for (int j = 0; j < PANEL; j++) {
        const rfi_cpu_range column = rfi_cpu_range_of(seen[j]);
        if (column.least < of_w.least) of_w.least = column.least;
        if (column.greatest > of_w.greatest) of_w.greatest = column.greatest;
    }
    return rfi_cpu_terms_exact(of_x, of_w);
}

/* One sliver by tiles and by multiply-adds. */
static void multiply(int rows, int depth) {
    static const float zeros[PANEL];
    rfi_cpu_sliver s = {
        .depth = depth, .x = x, .w = w, .in = zeros, .bias = zeros, .ld_out = PANEL, .ahead = (const char *)w};
    s.out = plain;
    rfi_cpu_terms_multiply[rows - 1](&s);
    s.out = tiles;
    emulated = (emulated_tiles){0};
    rfi_cpu_terms_amx.begin();
    rfi_cpu_terms_amx.multiply[rows - 1](&s);
    rfi_cpu_terms_amx.end();
}

static void check_tiles(void) {
    static const int depths[] = {1, 2, 31, 32, 33, 63, 64, 101, 511, 512},
                     /* of x, then of W: in the midst, and as small and as large as may be */
        exponents[][4] = {{-3, 1, -3, 1}, {-30, 0, -30, 0}, {-60, -55, -20, -15}, {-20, 0, -60, -50},
            {-103, -95, 23, 30}, {50, 60, 50, 55}, {-10, 126, -12, -11}};
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++)
        for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++) {
            const int depth = depths[d], rows = 1 + (int)(next_random() % ROWS), *range = exponents[e],
                      steps = (depth + RFI_CPU_TILE_DEPTH - 1) / RFI_CPU_TILE_DEPTH;
            CHECK(draw(depth, range[0], range[1], range[2], range[3]), "%zu: not to be multiplied", e);
            multiply(rows, depth);
            CHECK(!memcmp(tiles, plain, (size_t)(rows * PANEL) * sizeof *tiles), "%d inputs, %d rows, exponents %zu",
                depth, rows, e);
            CHECK(!emulated.flushed, "%d inputs, exponents %zu: %ld subnormal", depth, e, emulated.flushed);
            for (int i = 0; i < rows * PANEL; i++) CHECK(isfinite(tiles[i]), "%d inputs, exponents %zu", depth, e);
            CHECK(!emulated.outside, "%ld products without tiles", emulated.outside);
            const long each = rows > RFI_CPU_TILE ? 2 : 1;
            CHECK(emulated.products == 12 * each * steps && emulated.loads == (8 + 4 * each) * steps,
                "%d rows, %d steps: %ld products, %ld loads", rows, steps, emulated.products, emulated.loads);
        }
}

/* One binade below what may be multiplied so, a product is subnormal. */
static void check_least_products(void) {
    for (int below = 0; below < 2; below++) {
        const float lowest = ldexpf(1 + 0x1p-23f, -40 - below), one[] = {lowest, lowest},
                    other = ldexpf(1 + 0x1p-23f, -40);
        rfi_cpu_seen seen[PANEL];
        for (int j = 0; j < PANEL; j++) seen[j] = (rfi_cpu_seen){UINT32_MAX, 0, 0};
        for (int k = 0; k < 2 * PANEL; k++) w_values[k] = other;
        const rfi_cpu_range of_x = rfi_cpu_terms_split_row(x, one, 2);
        rfi_cpu_terms_split_panel(w, PANEL, w_values, 2, seen);
        CHECK(rfi_cpu_terms_exact(of_x, rfi_cpu_range_of(seen[0])) == !below, "below is %d", below);
        multiply(1, 2);
        CHECK(!emulated.flushed == !below, "below is %d: %ld subnormal", below, emulated.flushed);
    }
}

int main(void) {
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
        fprintf(stderr, "this processor lacks AVX-512\n");
        return 77;
    }
    check_rows();
    check_ends();
    check_panels();
    check_tiles();
    check_least_products();
    CHECK(rfi_cpu_terms_as_documented_amx(), "tiles do not add as multiply-adds do");
    return failures != 0;
}
