/* SPDX-License-Identifier: MIT */
/* Dot products of rows of x with rows of W, both along the inputs. Included once for each pair of compute type and type
 * of x; no include guard on purpose.
 * Needs, of what multiply_typed.h does, T, V, LANES, BROADCAST, FMA, LOAD, STORE and NAME, and besides
 *   X, LOAD_X(pointer)       the type of x in memory, and LANES of them as a V
 *   LOAD_X_PART(pointer, n)  the first n < LANES of them, the other lanes 0; reads no more than those
 *   INNER_ROWS, INNER_COLUMNS   rows and columns that are under way at a time */

/* What is read next of x is asked for with the first columns, if that is little beside them: a row's part of a chunk is
 * too short for the processor to see where it goes on. Lane l of a sum adds the products of the inputs l, l + LANES,
 * ... in their order, whatever the rows and columns beside it. */
static inline __attribute__((always_inline)) void NAME(inner_block)(
    const rfi_cpu_inner *in, int row, int column, const int rows, const int columns, const int asks) {
    V sum[INNER_ROWS][INNER_COLUMNS], wv[INNER_COLUMNS];
    const X *x[INNER_ROWS];
    const T *w = (const T *)in->w + column * in->ldw;
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
        for (int c = 0; c < columns; c++) wv[c] = LOAD(w + c * ldw);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            V xv = LOAD_X(x[i] + k);
            if (asks && !column) __builtin_prefetch(x[i] + k + in->ahead, 0, 2);
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++) sum[i][c] = FMA(xv, wv[c], sum[i][c]);
        }
    }
    if (whole < in->depth) {
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++) wv[c] = LOAD(w + c * ldw);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            V xv = LOAD_X_PART(x[i] + whole, (int)(in->depth - whole));
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

static inline __attribute__((always_inline)) void NAME(inner_rows)(
    const rfi_cpu_inner *in, int column, const int columns, const int asks) {
    int row = 0;
    for (; row + INNER_ROWS <= in->rows; row += INNER_ROWS)
        NAME(inner_block)(in, row, column, INNER_ROWS, columns, asks);
    for (; row < in->rows; row++) NAME(inner_block)(in, row, column, 1, columns, asks);
}

/* Groups of nearly as many columns each: a last one of a single column would leave the multipliers idle. */
static void NAME(inner)(const rfi_cpu_inner *in) {
    int groups = (in->columns + INNER_COLUMNS - 1) / INNER_COLUMNS;
    for (int g = 0; g < groups; g++) {
        int column = in->columns * g / groups;
        switch (in->columns * (g + 1) / groups - column) {
#define ONE(n)                                                    \
    case n:                                                       \
        if (n > 1 || in->far) NAME(inner_rows)(in, column, n, 1); \
        else NAME(inner_rows)(in, column, n, 0);                  \
        break;
            EACH_INNER_COLUMNS(ONE)
#undef ONE
        }
    }
}
