/* SPDX-License-Identifier: MIT */
/* The microkernel: `rows` rows of x times one chunk of a panel of W, sums in registers. Included once for each pair of
 * compute type and weight type; no
 * include guard on purpose. Needs
 *   T, V, LANES              the compute type, a vector of it, and how many it holds
 *   W, LOAD_W(pointer)       the type of W in memory, and LANES of them as a V
 *   BROADCAST(value), FMA(a, b, c), LOAD(pointer), STORE(pointer, v)
 *   VECTORS                  vectors in a row of a panel
 *   NAME(stem)               the stem with this pair's suffix
 *   LIES                     if x is multiplied where it lies, too
 *   EACH_ROWS(X)             X(1) X(2) ... for every number of rows */

/* The row count is a constant in each instance, so that the sums live in registers: rows * VECTORS of them, with
 * VECTORS for W and one for x. */
static inline __attribute__((always_inline)) void NAME(add_product)(
    V sum[][VECTORS], const T *const *x, int64_t k, const W *w, const int rows, const int vectors) {
    V wv[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) wv[v] = LOAD_W(w + v * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        V xv = BROADCAST(x[i][k]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[i][v] = FMA(xv, wv[v], sum[i][v]);
    }
}

/* Of a panel's columns only `vectors` vectors, the others are zero. Up to FEW rows leave the first cache room for what
 * is asked for. */
static inline __attribute__((always_inline)) void NAME(multiply)(
    const rfi_cpu_sliver *s, const int rows, const int64_t ld_x, const int vectors) {
    const T *x[ROWS_MAX];
    const W *w = s->w;
    const int64_t depth = s->depth, ld_in = s->ld_in, ld_more = s->ld_more, ld_out = s->ld_out;
    const T *in = s->in, *more = s->more, *bias = s->bias;
    T *out = s->out;
    const char *ahead = s->ahead;
    enum { FEW = 4 };
    const int lines = s->ahead_lines, near = rows <= FEW || s->ahead_is_x;
    V sum[ROWS_MAX][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) x[i] = (const T *)s->x + i * ld_x;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sum[i][v] = BROADCAST(0);
    /* A whole chunk of W has passed through the cache since these were touched. */
    if (!s->inner) {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) __builtin_prefetch(out + i * ld_out + v * LANES, 1, 3);
    }
    int64_t k = 0;
    for (; k + RFI_CPU_STEP <= depth; k += RFI_CPU_STEP) {
#pragma GCC unroll 4
        for (int u = 0; u < RFI_CPU_STEP; u++) NAME(add_product)(sum, x, k + u, w + u * VECTORS * LANES, rows, vectors);
        rfi_cpu_ask_for_lines(s, ahead, lines, near);
        ahead += s->ahead_step;
        w += RFI_CPU_STEP * VECTORS * LANES;
    }
    for (; k < depth; k++, w += VECTORS * LANES) NAME(add_product)(sum, x, k, w, rows, vectors);
    if (s->inner) {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++, in += ld_in)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) STORE(out + (i * VECTORS + v) * LANES, LOAD(in + v * LANES) + sum[i][v]);
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            STORE(out + v * LANES, LOAD(in + v * LANES) + sum[i][v] + LOAD(more + v * LANES) + LOAD(bias + v * LANES));
#pragma GCC unroll 4
        for (int v = vectors; v < VECTORS; v++) STORE(out + v * LANES, BROADCAST(0));
        in += ld_in;
        more += ld_more;
        out += ld_out;
    }
}

#define ONE(rows)                                                              \
    static void NAME(multiply_##rows)(const rfi_cpu_sliver *s) {               \
        if (s->half) NAME(multiply)(s, rows, RFI_CPU_X_LD, (VECTORS + 1) / 2); \
        else NAME(multiply)(s, rows, RFI_CPU_X_LD, VECTORS);                   \
    }
EACH_ROWS(ONE)
#undef ONE

static const rfi_cpu_multiply NAME(multiply_table)[] = {
#define ONE(rows) NAME(multiply_##rows),
    EACH_ROWS(ONE)
#undef ONE
};

#ifdef LIES
#define ONE(rows)                                                         \
    static void NAME(multiply_lying_##rows)(const rfi_cpu_sliver *s) {    \
        if (s->half) NAME(multiply)(s, rows, s->ld_x, (VECTORS + 1) / 2); \
        else NAME(multiply)(s, rows, s->ld_x, VECTORS);                   \
    }
EACH_ROWS(ONE)
#undef ONE

static const rfi_cpu_multiply NAME(multiply_lying_table)[] = {
#define ONE(rows) NAME(multiply_lying_##rows),
    EACH_ROWS(ONE)
#undef ONE
};
#endif
