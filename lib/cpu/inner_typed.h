/* Dot products of rows of x with rows of W, both along the inputs. Included once for each pair of compute type and weight type, as multiply_typed.h is; needs
 * besides
 *   LOAD_PART(pointer, n)    the first n < LANES values as a V, the other lanes 0; reads no more than those
 *   INNER_COLUMNS            columns that INNER_ROWS rows take at a time */

/* Lane l of a sum adds the products of the inputs l, l + LANES, ... in their order, whatever the rows and columns beside it. */
static inline __attribute__((always_inline)) void NAME(inner_block)(const rfi_cpu_inner *in, int row, int column, const int rows, const int columns) {
    V sum[INNER_ROWS][INNER_COLUMNS], wv[INNER_COLUMNS];
    const T *x[INNER_ROWS];
    const W *w = (const W *)in->w + column * in->ldw;
    const int64_t whole = in->depth - in->depth % LANES, ldw = in->ldw;
    T *lanes = (T *)in->lanes + (column * RFI_CPU_GROUP_ROWS + row) * LANES;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        x[i] = in->x[row + i];
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++) sum[i][c] = BROADCAST(0);
    }
    for (int64_t k = 0; k < whole; k += LANES, w += LANES) {
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++) wv[c] = LOAD_W(w + c * ldw);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            V xv = LOAD(x[i] + k);
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++) sum[i][c] = FMA(xv, wv[c], sum[i][c]);
        }
    }
    if (whole < in->depth) {
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++) wv[c] = LOAD_W(w + c * ldw);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            V xv = LOAD_PART(x[i] + whole, (int)(in->depth - whole));
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++) sum[i][c] = FMA(xv, wv[c], sum[i][c]);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < columns; c++)
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            T *out = lanes + (c * RFI_CPU_GROUP_ROWS + i) * LANES;
            if (!in->first) sum[i][c] += LOAD(out);
            STORE(out, sum[i][c]);
        }
}

static inline __attribute__((always_inline)) void NAME(inner_rows)(const rfi_cpu_inner *in, int column, const int columns) {
    int row = 0;
    for (; row + INNER_ROWS <= in->rows; row += INNER_ROWS) NAME(inner_block)(in, row, column, INNER_ROWS, columns);
    for (; row < in->rows; row++) NAME(inner_block)(in, row, column, 1, columns);
}

/* Groups of nearly as many columns each: a last one of a single column would leave the multipliers idle. */
static void NAME(inner)(const rfi_cpu_inner *in) {
    int groups = (in->columns + INNER_COLUMNS - 1) / INNER_COLUMNS;
    for (int g = 0; g < groups; g++) {
        int column = in->columns * g / groups;
        switch (in->columns * (g + 1) / groups - column) {
#define ONE(n) \
    case n: NAME(inner_rows)(in, column, n); break;
            EACH_INNER_COLUMNS(ONE)
#undef ONE
        }
    }
}
