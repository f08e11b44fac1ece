/* SPDX-License-Identifier: MIT */
/* float32 in three terms of bfloat16 on AMX-BF16: six products of tiles for every step, slivers and tiles as in
 * kernel_amx_bf16.c. The small products of all steps come first, then those of the first terms, so that a chunk of 512
 * inputs has 16 roundings of its large sum, and not 96. */
#include <pthread.h>
#include <string.h>

#include "cpu/amx.h"

enum { X_BYTES = RFI_CPU_TERMS_LD * 4, STEP_PAIRS = RFI_CPU_TILE * PANEL };

/* Where a step of both factors begins: its first terms, and in pairs how far apart the terms of W are. Those of x are
 * RFI_CPU_PAIRS_LD. */
typedef struct factors {
    const uint32_t *x, *w;
    int64_t w_apart;
} factors;

/* Term i of x times term j of W. `had` says which of both the step before, if there was one, has left in their tiles.
 */
static inline __attribute__((always_inline)) void step(
    const factors *f, const int i, const int j, const int had_i, const int had_j, const int tiles) {
    const uint32_t *x = f->x + i * RFI_CPU_PAIRS_LD, *w = f->w + j * f->w_apart;
    if (j != had_j) _tile_loadd(W_0, w, W_BYTES);
    if (i != had_i) _tile_loadd(X_0, x, X_BYTES);
    _tile_dpbf16ps(SUM_00, X_0, W_0);
    if (j != had_j) _tile_loadd(W_1, w + LANES, W_BYTES);
    _tile_dpbf16ps(SUM_01, X_0, W_1);
    if (tiles < 2) return;
    if (i != had_i) _tile_loadd(X_1, x + RFI_CPU_TILE * RFI_CPU_TERMS_LD, X_BYTES);
    _tile_dpbf16ps(SUM_10, X_1, W_0);
    _tile_dpbf16ps(SUM_11, X_1, W_1);
}

/* The step that begins with input k. What is left of a last one has been copied: x has zeros behind it, but W other
 * panels, which may be infinite. */
static inline __attribute__((always_inline)) factors factors_at(
    const rfi_cpu_sliver *s, int64_t k, const uint32_t *last) {
    const uint32_t *x = (const uint32_t *)s->x + k / 2, *w = s->w;
    return k + RFI_CPU_TILE_DEPTH > s->depth ? (factors){x, last, STEP_PAIRS}
                                             : (factors){x, w + k / 2 * PANEL, (s->depth + 1) / 2 * PANEL};
}

static void copy_last(const rfi_cpu_sliver *s, uint32_t *last) {
    const int64_t whole = s->depth - s->depth % RFI_CPU_TILE_DEPTH, apart = (s->depth + 1) / 2 * PANEL;
    memset(last, 0, RFI_CPU_TERMS * STEP_PAIRS * sizeof *last);
    for (int t = 0; t < RFI_CPU_TERMS; t++)
        memcpy(last + t * STEP_PAIRS, (const uint32_t *)s->w + t * apart + whole / 2 * PANEL,
            (size_t)((s->depth - whole + 1) / 2) * W_BYTES);
}

/* What is wanted soon, so many turns of it. */
static inline __attribute__((always_inline)) const char *ask(
    const rfi_cpu_sliver *s, const char *ahead, const int turns) {
    for (int turn = 0; turn < turns; turn++, ahead += s->ahead_step) rfi_cpu_ask_for_lines(s, ahead, s->ahead_lines, 0);
    return ahead;
}

/* `tiles` of rows, 1 or 2, of which `rows` rows are there. A turn's lines are asked for behind each small product, the
 * others behind those of the first terms: tiles wait for all that was asked for just before. */
static inline __attribute__((always_inline)) void multiply_tiles(
    const rfi_cpu_sliver *s, const int rows, const int tiles) {
#define ONE(i, j) +1
    enum { TURNS = RFI_CPU_TILE_DEPTH / RFI_CPU_STEP, SMALL = RFI_CPU_EACH_SMALL_PRODUCT(ONE) };
#undef ONE
    uint32_t last[RFI_CPU_TERMS * STEP_PAIRS] __attribute__((aligned(RFI_CPU_ALIGN)));
    const char *ahead = s->ahead;
    if (s->depth % RFI_CPU_TILE_DEPTH) copy_last(s, last);
    write_out();
    clear_sums();
    for (int64_t k = 0; k < s->depth; k += RFI_CPU_TILE_DEPTH) {
        const factors f = factors_at(s, k, last);
        int had_i = -1, had_j = -1;
#define ONE(i, j)                        \
    step(&f, i, j, had_i, had_j, tiles); \
    ahead = ask(s, ahead, 1);            \
    had_i = i;                           \
    had_j = j;
        RFI_CPU_EACH_SMALL_PRODUCT(ONE)
#undef ONE
    }
    for (int64_t k = 0; k < s->depth; k += RFI_CPU_TILE_DEPTH) {
        const factors f = factors_at(s, k, last);
        step(&f, 0, 0, -1, -1, tiles);
        ahead = ask(s, ahead, TURNS - SMALL);
    }
    write_out(); /* nor may `last` be given up before */
    store_sums(s, rows, tiles);
}

RFI_CPU_TILE_TABLE(table);

const rfi_cpu_terms rfi_cpu_terms_amx = {
    .name = "AMX-BF16",
    .max_rows = RFI_CPU_TILE_ROWS,
    .rows_step = RFI_CPU_TILE,
    .block_rows = RFI_CPU_TILE_BLOCK,
    .rate = 2, /* doc/kernels/cpu.md 32 and 34: reckoned */
    .multiply = table,
    .split_row = rfi_cpu_terms_split_row,
    .split_panel = rfi_cpu_terms_split_panel,
    .join_panel = rfi_cpu_terms_join_panel,
    .begin = rfi_cpu_amx_begin,
    .end = rfi_cpu_amx_end,
};

/* The bits of all slivers of values that have terms, against those of multiply-adds. */
static int as_documented;

static void find_as_documented(void) {
    enum { MOST = RFI_CPU_TILE_ROWS, DEPTH = 2 * RFI_CPU_TILE_DEPTH + 5, PANEL_PAIRS = (DEPTH + 1) / 2 * PANEL };
    static const float zeros[PANEL];
    /* More than every thread's stack has. Memory that may be refused would have a processor's word depend on it. */
    static struct {
        uint32_t w[RFI_CPU_TERMS * PANEL_PAIRS] __attribute__((aligned(RFI_CPU_ALIGN)));
        uint32_t x[MOST * RFI_CPU_TERMS_LD];
        rfi_cpu_seen seen[PANEL];
        float values[DEPTH * PANEL], tiles[MOST * PANEL], plain[MOST * PANEL];
    } t;
    uint32_t random = 1;
    for (int i = 0; i < DEPTH * PANEL; i++) {
        random = random * 1664525 + 1013904223;
        t.values[i] = (float)(int32_t)random * 0x1p-30f;
    }
    for (int i = 0; i < MOST; i++) rfi_cpu_terms_split_row(t.x + i * RFI_CPU_TERMS_LD, t.values + 7 * i, DEPTH);
    rfi_cpu_terms_split_panel(t.w, PANEL_PAIRS, t.values, DEPTH, t.seen);
    rfi_cpu_sliver s = {
        .depth = DEPTH, .x = t.x, .w = t.w, .in = zeros, .bias = zeros, .ld_out = PANEL, .ahead = (const char *)&t};
    as_documented = 1;
    for (int rows = 15; rows <= MOST; rows += 17) {
        s.out = t.plain;
        rfi_cpu_terms_multiply[rows - 1](&s);
        s.out = t.tiles;
        rfi_cpu_amx_begin();
        table[rows - 1](&s);
        rfi_cpu_amx_end();
        as_documented &= !memcmp(t.tiles, t.plain, (size_t)rows * PANEL * sizeof(float));
    }
}

int rfi_cpu_terms_as_documented_amx(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_as_documented);
    return as_documented;
}
