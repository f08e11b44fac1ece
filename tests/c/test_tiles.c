/* SPDX-License-Identifier: MIT */
/* Pairs of 16-bit values: that tiles, in plain C here, have the bits of multiply-adds, and that a processor which adds
 * another way is told. */
#include <string.h>

#include "check.h"
#include "emulated_tiles.h"
#include "random.h"

enum { PANEL = RFI_CPU_TILE_PANEL, ROWS = RFI_CPU_TILE_ROWS, DEPTH = RFI_CPU_DEPTH };

static uint16_t values[ROWS][DEPTH];
static uint32_t x[ROWS * RFI_CPU_PAIRS_LD], w[DEPTH / 2 * PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
static float in[ROWS * PANEL], bias[PANEL], tiles[ROWS * PANEL], plain[ROWS * PANEL];

/* Any float16 that is no NaN: subnormal ones, zeros and, seldom, infinities among them. */
static uint16_t some_fp16(void) {
    const uint16_t bits = (uint16_t)next_random();
    if ((bits & 0x7c00) != 0x7c00) return bits;
    return next_random() % 4096 ? bits & 0x83ff : bits & 0xfc00;
}

/* bfloat16 from 2^-8 to 2, whose products tiles do not flush. */
static uint16_t some_bf16(void) { return (uint16_t)((next_random() & 0x81ff) | 0x3e00); }

static int is_same(float a, float b) { return !memcmp(&a, &b, sizeof a) || (a != a && b != b); }

/* The same sliver in two blocks of whole steps but for the last: what the first leaves is all that the second needs. */
static void check_halves(const rfi_cpu_pairs *amx, rfi_cpu_sliver s, int rows) {
    static float begun[ROWS * PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
    const int64_t depth = s.depth, half = depth / 2 / RFI_CPU_TILE_DEPTH * RFI_CPU_TILE_DEPTH;
    if (!half) return;
    memset(begun, 0xff, sizeof begun);
    memset(tiles, 0xff, sizeof tiles);
    amx->begin();
    s.depth = half;
    s.inner = 1;
    s.out = begun;
    amx->multiply[rows - 1](&s);
    s.depth = depth - half;
    s.inner = 0;
    s.begun = begun;
    s.out = tiles;
    s.x = x + half / 2;
    s.w = w + half / 2 * PANEL;
    amx->multiply[rows - 1](&s);
    amx->end();
    for (int i = 0; i < rows * PANEL; i++)
        CHECK(is_same(tiles[i], plain[i]), "%s, %lld inputs of %lld first, row %d of %d: %a, %a", amx->name,
            (long long)half, (long long)depth, i / PANEL, rows, tiles[i], plain[i]);
}

/* A sliver of every height, of chunks of whole steps and others, behind which W has infinities. */
static void check_bits(const rfi_cpu_pairs *amx, const rfi_cpu_multiply *by_steps, uint16_t (*some)(void)) {
    static const int depths[] = {1, 2, 31, 32, 33, 63, 64, 101, 511, 512};
    for (int i = 0; i < ROWS * PANEL; i++) in[i] = (float)(next_random() % 1000) * 0.37f;
    for (int j = 0; j < PANEL; j++) bias[j] = (float)(next_random() % 100) * 0.11f;
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++)
        for (int rows = 1; rows <= ROWS; rows++) {
            const int depth = depths[d], steps = (depth + RFI_CPU_TILE_DEPTH - 1) / RFI_CPU_TILE_DEPTH;
            uint16_t seen[RFI_CPU_LEAST];
            memset(x, 0xff, sizeof x);
            memset(w, 0x7c, sizeof w);
            memset(seen, 0xff, sizeof seen);
            for (int i = 0; i < rows; i++) {
                for (int k = 0; k < depth; k++) values[i][k] = some();
                amx->pack(x + i * RFI_CPU_PAIRS_LD, values[i], depth, seen);
            }
            for (int p = 0; p < (depth + 1) / 2 * PANEL; p++) w[p] = (uint32_t)some() << 16 | some();
            if (depth % 2) /* the half behind the last input */
                for (int j = 0; j < PANEL; j++) w[depth / 2 * PANEL + j] &= 0xffff0000;
            rfi_cpu_sliver s = {.depth = depth,
                .x = x,
                .w = w,
                .in = in,
                .ld_in = PANEL,
                .bias = bias,
                .ld_out = PANEL,
                .ahead = (const char *)w};
            s.out = plain;
            by_steps[rows - 1](&s);
            s.out = tiles;
            emulated = (emulated_tiles){0};
            amx->begin();
            amx->multiply[rows - 1](&s);
            amx->end();
            for (int i = 0; i < rows * PANEL; i++)
                CHECK(is_same(tiles[i], plain[i]), "%s, %d inputs, row %d of %d: %a, %a", amx->name, depth, i / PANEL,
                    rows, tiles[i], plain[i]);
            const long each = rows > RFI_CPU_TILE ? 2 : 1;
            CHECK(!emulated.outside && !emulated.flushed, "%ld products without tiles, %ld subnormal", emulated.outside,
                emulated.flushed);
            CHECK(emulated.products == 2 * each * steps && emulated.loads == (2 + each) * steps,
                "%d rows, %d steps: %ld products, %ld loads", rows, steps, emulated.products, emulated.loads);
            check_halves(amx, s, rows);
        }
}

/* W brought to values again, and, where the kernel has that, values times W in pairs, as x of another type is
 * multiplied. */
static void check_values(const rfi_cpu_pairs *pairs, float (*value)(uint16_t bits), uint16_t (*some)(void)) {
    static float of_x[RFI_CPU_X_LD], of_w[DEPTH * PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
    static const float zeros[PANEL];
    for (int depth = 1; depth < 12; depth++) {
        for (int p = 0; p < (depth + 1) / 2 * PANEL; p++) w[p] = (uint32_t)some() << 16 | some();
        for (int k = 0; k < depth; k++) of_x[k] = (float)(next_random() % 100);
        rfi_cpu_sliver s = {.depth = depth,
            .x = of_x,
            .w = w,
            .in = zeros,
            .more = zeros,
            .bias = zeros,
            .out = plain,
            .ahead = (const char *)w};
        if (pairs->multiply_float) pairs->multiply_float[0](&s);
        pairs->widen(of_w, w, depth);
        for (int j = 0; j < PANEL; j++) {
            float sum = 0;
            for (int k = 0; k < depth; k++) {
                const float one = value((uint16_t)(w[k / 2 * PANEL + j] >> (k % 2 ? 0 : 16)));
                CHECK(is_same(of_w[k * PANEL + j], one), "%s, input %d of column %d", pairs->name, k, j);
                sum = __builtin_fmaf(of_x[k], one, sum);
            }
            CHECK(!pairs->multiply_float || is_same(plain[j], sum), "%s, column %d: %a, %a", pairs->name, j, plain[j],
                sum);
        }
    }
}

static float value_of_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

__attribute__((target("f16c"))) static float value_of_fp16(uint16_t bits) { return _cvtsh_ss(bits); }

/* Is a processor that adds in any other order, or takes subnormal float16 for zero, not taken? */
static void check_doubts(void) {
    for (int fp16 = 0; fp16 < 2; fp16++) {
        int (*const is_as_documented)(void) =
            fp16 ? rfi_cpu_tiles_as_documented_amx_fp16 : rfi_cpu_tiles_as_documented_amx_bf16;
        emulated = (emulated_tiles){0};
        CHECK(is_as_documented(), "type %d: as documented", fp16);
        emulated = (emulated_tiles){.backwards = 1};
        CHECK(!is_as_documented(), "type %d: backwards", fp16);
        emulated = (emulated_tiles){.together = 1};
        CHECK(!is_as_documented(), "type %d: halves together", fp16);
    }
    emulated = (emulated_tiles){.flushes = 1};
    CHECK(!rfi_cpu_tiles_as_documented_amx_fp16(), "subnormal numbers for zero");
}

int main(void) {
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
        fprintf(stderr, "this processor lacks AVX-512\n");
        return 77;
    }
    check_bits(&rfi_cpu_pairs_amx_bf16, rfi_cpu_tiles_multiply, some_bf16);
    check_bits(&rfi_cpu_f16_pairs_amx_fp16, rfi_cpu_f16_tiles_multiply, some_fp16);
    check_values(&rfi_cpu_pairs_amx_bf16, value_of_bf16, some_bf16);
    check_values(&rfi_cpu_f16_pairs_amx_fp16, value_of_fp16, some_fp16);
    check_doubts();
    return failures != 0;
}
