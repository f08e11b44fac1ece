/* SPDX-License-Identifier: MIT */
/* The kernel of float32 in terms for AMX, compiled with tiles in plain C, so that it runs where the processor has none:
 * what Intel's manual says of TDPBF16PS, subnormal inputs and sums taken for zero. */
#include "emulated_tiles.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_zero(tile) zero(tile)
#define _tile_loadd(tile, base, stride) load(tile, base, stride)
#define _tile_stored(tile, base, stride) store(tile, base, stride)
#define _tile_dpbf16ps(sum, x, w) add_products(sum, x, w)

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

static void zero(int tile) { memset(tiles[tile], 0, sizeof tiles[tile]); }

static void load(int tile, const void *base, int64_t stride) {
    emulated.loads++;
    for (int i = 0; i < SIDE; i++) memcpy(tiles[tile][i], (const char *)base + i * stride, sizeof tiles[tile][i]);
}

static void store(int tile, void *base, int64_t stride) {
    for (int i = 0; i < SIDE; i++) memcpy((char *)base + i * stride, tiles[tile][i], sizeof tiles[tile][i]);
}

/* The half of each pair that is `half` lies in the lower bits where that is 0. */
static float half_of(uint32_t pair, int half) { return flushed(float_of(half ? pair & 0xffff0000 : pair << 16)); }

static void add_products(int sum, int x, int w) {
    emulated.products++;
    emulated.outside += !emulated.begun;
    for (int m = 0; m < SIDE; m++) {
        float parts[SIDE][2] = {{0}};
        for (int k = 0; k < SIDE; k++)
            for (int n = 0; n < SIDE; n++)
                for (int half = 0; half < 2; half++)
                    parts[n][half] =
                        flushed(fmaf(half_of(tiles[x][m][k], half), half_of(tiles[w][k][n], half), parts[n][half]));
        for (int n = 0; n < SIDE; n++) {
            const float both = flushed(parts[n][0] + parts[n][1]),
                        all = flushed(flushed(float_of(tiles[sum][m][n])) + both);
            memcpy(&tiles[sum][m][n], &all, sizeof all);
        }
    }
}

#include "cpu/kernel_amx_terms.c"

void rfi_cpu_amx_begin(void) { emulated.begun = 1; }
void rfi_cpu_amx_end(void) { emulated.begun = 0; }
