/* SPDX-License-Identifier: MIT */
/* Products of pairs on AMX, included once for each type of them: `table`, and whether the processor adds as documented.
 * Pairs of x and W lie as for AVX512-BF16: which half of a pair comes first is the same in both, and makes no
 * difference. Needs
 *   TILE_DP(sum, x, w)     the instruction
 *   SOME_PAIR(bits)        two values of both signs from random bits, with exponents close to each other */
#include <string.h>

#include "cpu/amx.h"

enum { X_BYTES = RFI_CPU_PAIRS_LD * 4 };

static inline __attribute__((always_inline)) void step(const uint32_t *x, const uint32_t *w, const int tiles) {
    _tile_loadd(W_0, w, W_BYTES);
    _tile_loadd(X_0, x, X_BYTES);
    TILE_DP(SUM_00, X_0, W_0);
    _tile_loadd(W_1, w + LANES, W_BYTES);
    TILE_DP(SUM_01, X_0, W_1);
    if (tiles < 2) return;
    _tile_loadd(X_1, x + RFI_CPU_TILE * RFI_CPU_PAIRS_LD, X_BYTES);
    TILE_DP(SUM_10, X_1, W_0);
    TILE_DP(SUM_11, X_1, W_1);
}

/* `tiles` of rows, 1 or 2, of which `rows` rows are there. */
static inline __attribute__((always_inline)) void multiply_tiles(
    const rfi_cpu_sliver *s, const int rows, const int tiles) {
    const uint32_t *x = s->x, *w = s->w;
    const char *ahead = s->ahead;
    int64_t k = 0;
    write_out();
    if (s->begun) take_sums(s->begun, tiles);
    else clear_sums();
    for (; k + RFI_CPU_TILE_DEPTH <= s->depth; k += RFI_CPU_TILE_DEPTH) {
        step(x, w, tiles);
        for (int turn = 0; turn < s->ahead_turns; turn++, ahead += s->ahead_step)
            rfi_cpu_ask_for_lines(s, ahead, s->ahead_lines, 0);
        x += RFI_CPU_TILE;
        w += RFI_CPU_TILE * PANEL;
    }
    if (k < s->depth) { /* x has zeros there, but W other inputs, which may be infinite */
        uint32_t last[RFI_CPU_TILE * PANEL] __attribute__((aligned(RFI_CPU_ALIGN))) = {0};
        memcpy(last, w, (size_t)((s->depth - k + 1) / 2) * W_BYTES);
        write_out();
        step(x, last, tiles);
        write_out(); /* nor may `last` be given up before */
    }
    if (s->inner) leave_sums(s->out, tiles);
    else store_sums(s, rows, tiles);
}

RFI_CPU_TILE_TABLE(table);

static uint32_t some_bits(uint32_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 17;
    *random ^= *random << 5;
    return *random;
}

/* Values of all signs with exponents close to each other, whose sums are rounded at every step, and in some rows and
 * columns `special` ones, infinities, NaN and zeros among them: any other order than plain_table's shows. */
static int tiles_as_documented(const uint16_t special[8], const rfi_cpu_multiply *plain_table) {
    enum { ROWS = RFI_CPU_TILE_ROWS, DEPTH = 3 * RFI_CPU_TILE_DEPTH };
    static const float zeros[PANEL];
    uint32_t x[ROWS * RFI_CPU_PAIRS_LD], random = 1;
    uint32_t w[DEPTH / 2 * PANEL] __attribute__((aligned(RFI_CPU_ALIGN)));
    float tiles[ROWS * PANEL], plain[ROWS * PANEL];
    for (int i = 0; i < ROWS * DEPTH / 2; i++) {
        x[i / (DEPTH / 2) * RFI_CPU_PAIRS_LD + i % (DEPTH / 2)] = SOME_PAIR(some_bits(&random));
        w[i] = SOME_PAIR(some_bits(&random));
    }
    for (uint32_t i = 0; i < 8; i++) {
        x[(3 * i + 1) * RFI_CPU_PAIRS_LD + 5 * i] = (uint32_t)special[i] << (i & 1 ? 16 : 0);
        w[5 * i * PANEL + 4 * i] = (uint32_t)special[(i + 3) % 8] << (i & 1 ? 0 : 16);
    }
    rfi_cpu_sliver s = {
        .depth = DEPTH, .x = x, .w = w, .in = zeros, .bias = zeros, .ld_out = PANEL, .ahead = (const char *)w};
    s.out = plain;
    plain_table[ROWS - 1](&s);
    s.out = tiles;
    rfi_cpu_amx_begin();
    table[ROWS - 1](&s);
    rfi_cpu_amx_end();
    for (int i = 0; i < ROWS * PANEL; i++)
        if (memcmp(&tiles[i], &plain[i], sizeof tiles[i]) && !(__builtin_isnan(tiles[i]) && __builtin_isnan(plain[i])))
            return 0;
    return 1;
}
