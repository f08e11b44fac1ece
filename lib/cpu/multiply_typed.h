/* The microkernel: `rows` rows of x times one chunk of a panel of W, sums in registers. Included once for each pair of compute type and weight type; no
 * include guard on purpose. Needs
 *   T, V, LANES              the compute type, a vector of it, and how many it holds
 *   W, LOAD_W(pointer)       the type of W in memory, and LANES of them as a V
 *   BROADCAST(value), FMA(a, b, c), LOAD(pointer), STORE(pointer, v)
 *   VECTORS                  vectors in a row of a panel
 *   NAME(stem)               the stem with this pair's suffix
 *   EACH_ROWS(X)             X(1) X(2) ... for every number of rows */

/* The row count is a constant in each instance, so that the sums live in registers: rows * VECTORS of them, with VECTORS for W and one for x. */
static inline __attribute__((always_inline)) void NAME(multiply)(const rfi_cpu_sliver *s, const int rows) {
    const T *x = s->x;
    const W *w = s->w;
    V sum[ROWS_MAX][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sum[i][v] = BROADCAST(0);
    for (int64_t k = 0; k < s->depth; k++) {
        V wv[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) wv[v] = LOAD_W(w + v * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            V xv = BROADCAST(x[i * RFI_CPU_X_LD]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[i][v] = FMA(xv, wv[v], sum[i][v]);
        }
        x++;
        w += VECTORS * LANES;
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        const T *in = (const T *)s->in + i * s->ld_in;
        T *out = (T *)s->out + i * s->ld_out;
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) STORE(out + v * LANES, LOAD(in + v * LANES) + sum[i][v]);
    }
}

#define ONE(rows) \
    static void NAME(multiply_##rows)(const rfi_cpu_sliver *s) { NAME(multiply)(s, rows); }
EACH_ROWS(ONE)
#undef ONE

static const rfi_cpu_multiply NAME(multiply_table)[] = {
#define ONE(rows) NAME(multiply_##rows),
    EACH_ROWS(ONE)
#undef ONE
};
