/* SPDX-License-Identifier: MIT */
#include "emulated_tiles.h"

#include <math.h>
#include <string.h>

enum { SIDE = 16 };

emulated_tiles emulated;

static uint32_t tiles[8][SIDE][SIDE];

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float flushed(float value) {
    if (fpclassify(value) != FP_SUBNORMAL) return value;
    emulated.flushed++;
    return copysignf(0, value);
}

void emulated_zero(int tile) { memset(tiles[tile], 0, sizeof tiles[tile]); }

void emulated_load(int tile, const void *base, int64_t stride) {
    emulated.loads++;
    for (int i = 0; i < SIDE; i++) memcpy(tiles[tile][i], (const char *)base + i * stride, sizeof tiles[tile][i]);
}

void emulated_store(int tile, void *base, int64_t stride) {
    for (int i = 0; i < SIDE; i++) memcpy((char *)base + i * stride, tiles[tile][i], sizeof tiles[tile][i]);
}

/* The half of each pair that is `half` lies in the lower bits where that is 0. */
static float half_of_bf16(uint32_t pair, int half) { return flushed(float_of(half ? pair & 0xffff0000 : pair << 16)); }

static float half_of_fp16(uint32_t pair, int half) {
    const uint16_t bits = (uint16_t)(half ? pair >> 16 : pair);
    return emulated.flushes && !(bits & 0x7c00) ? 0 : _cvtsh_ss(bits);
}

static void add_products(int sum, int x, int w, float (*half_of)(uint32_t pair, int half)) {
    emulated.products++;
    emulated.outside += !emulated.begun;
    for (int m = 0; m < SIDE; m++) {
        float parts[SIDE][2] = {{0}};
        for (int i = 0; i < SIDE; i++)
            for (int n = 0; n < SIDE; n++)
                for (int half = 0; half < 2; half++) {
                    const int k = emulated.backwards ? SIDE - 1 - i : i;
                    float *part = &parts[n][emulated.together ? 0 : half];
                    *part = flushed(fmaf(half_of(tiles[x][m][k], half), half_of(tiles[w][k][n], half), *part));
                }
        for (int n = 0; n < SIDE; n++) {
            const float both = flushed(parts[n][0] + parts[n][1]),
                        all = flushed(flushed(float_of(tiles[sum][m][n])) + both);
            memcpy(&tiles[sum][m][n], &all, sizeof all);
        }
    }
}

void emulated_add_bf16(int sum, int x, int w) { add_products(sum, x, w, half_of_bf16); }
void emulated_add_fp16(int sum, int x, int w) { add_products(sum, x, w, half_of_fp16); }
