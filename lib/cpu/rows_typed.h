/* SPDX-License-Identifier: MIT */
/* What is done to a group of rows at once, a row a lane. Included once for each compute type T, as fold_typed.h is;
 * needs besides
 *   NEAR(a, b)   sums of the even and odd lanes of a, then of b, within each 16 bytes
 *   FAR(a, b)    the same of whole 16 bytes */

/* The sums of the lanes of `count` <= LANES vectors, `stride` values apart, each in its own lane. A sum is taken in the
 * same tree wherever its vector stands and whatever stands beside it; lanes without a vector get any sum. */
static inline __attribute__((always_inline)) V NAME(sum_each)(const T *from, int64_t stride, int count) {
    V v[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) v[i] = LOAD(from + (i < count ? i : 0) * stride);
#pragma GCC unroll 2
    for (int left = LANES, near = 16 / (int)sizeof(T); near > 1; near /= 2, left /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < left / 2; i++) v[i] = NEAR(v[2 * i], v[2 * i + 1]);
#pragma GCC unroll 2
    for (int left = ISA_BYTES / 16; left > 1; left /= 2)
#pragma GCC unroll 2
        for (int i = 0; i < left / 2; i++) v[i] = FAR(v[2 * i], v[2 * i + 1]);
    return v[0];
}

/* One vector is not worth the whole tree. */
static inline __attribute__((always_inline)) V NAME(sum_some)(const T *from, int64_t stride, int count) {
    return count >= LANES ? NAME(sum_each)(from, stride, LANES)
        : count == 1      ? NAME(sum_each)(from, stride, 1)
                          : NAME(sum_each)(from, stride, count);
}

static void NAME(sums_by_column)(const void *lanes, int columns, int rows, const void *bias, void *values, int64_t ld) {
    for (int c = 0; c < columns; c++)
        for (int r = 0; r < rows; r += LANES) {
            const T *from = (const T *)lanes + (c * RFI_CPU_GROUP_ROWS + r) * LANES;
            STORE((T *)values + c * ld + r, NAME(sum_some)(from, LANES, rows - r) + BROADCAST(((const T *)bias)[c]));
        }
}

static void NAME(sums_by_row)(const void *lanes, int columns, int rows, const void *bias, void *values, int64_t ld) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c += LANES) {
            const T *from = (const T *)lanes + (c * RFI_CPU_GROUP_ROWS + r) * LANES;
            STORE((T *)values + r * ld + c,
                NAME(sum_some)(from, RFI_CPU_GROUP_ROWS * LANES, columns - c) + LOAD((const T *)bias + c));
        }
}

/* The columns that GROUP rows from `row` on ask for; those beyond the last row ask for what the last does. */
static inline __attribute__((always_inline)) void NAME(find_columns)(
    const int64_t *q, int row, int rows, COLUMN *restrict out) {
    for (int l = 0; l < GROUP; l++) out[l] = q ? (COLUMN)q[row + l < rows ? row + l : rows - 1] : RFI_COLUMN_OUTSIDE;
}

/* Columns in ascending order; the result is finished in double. Unrolled, the loops over GROUP rows would be taken
 * apart into scalars. */
#define ROLLED _Pragma("GCC unroll 1")
/* A number of columns may be larger than T counts. */
#define RESULT(flags, v) ((flags) & RFI_RF_COUNT ? OP(rfi_word)((COLUMN)(v)) : (T)(v))
#define PUSH(id, i)                                       \
    if (i < rfi_totals_##id)                              \
    ROLLED for (int l = 0; l < GROUP; l++) totals[i][l] = \
        OP(rfi_join_##id)(i, totals[i][l], OP(rfi_term_##id)(i, peaks[l], values[c * ld + r + l], c, asked[l]))
#define RFI_REDUCTION(id, number, name, flags, ...)                                                                    \
    static void NAME(fold_rows_##id)(const T *values, int64_t ld, int columns, double count, int rows,                 \
        const int64_t *q, T *restrict out, double *restrict states, int64_t ld_states) {                               \
        for (int r = 0; r < rows; r += GROUP) {                                                                        \
            T peaks[GROUP], totals[RFI_TOTALS][GROUP];                                                                 \
            COLUMN asked[GROUP];                                                                                       \
            NAME(find_columns)((flags) & RFI_RF_COLUMN ? q : NULL, r, rows, asked);                                    \
            for (int l = 0; l < GROUP; l++) peaks[l] = OP(rfi_peak0_##id)();                                           \
            for (int i = 0; i < RFI_TOTALS; i++)                                                                       \
                for (int l = 0; l < GROUP; l++) totals[i][l] = OP(rfi_empty_##id)(i);                                  \
            for (int c = 0; c < columns; c++)                                                                          \
                ROLLED for (int l = 0; l < GROUP; l++) peaks[l] = OP(rfi_peak_##id)(peaks[l], values[c * ld + r + l]); \
            if ((flags) & RFI_RF_MEAN)                                                                                 \
                for (int l = 0; l < GROUP; l++) peaks[l] /= (T)columns;                                                \
            if ((flags) & RFI_RF_SEEDED)                                                                               \
                for (int l = 0; l < GROUP; l++) peaks[l] = values[(asked[l] < 0 ? 0 : asked[l]) * ld + r + l];         \
            for (int c = 0; c < columns; c++) {                                                                        \
                PUSH(id, 0);                                                                                           \
                PUSH(id, 1);                                                                                           \
            }                                                                                                          \
            for (int l = 0; states && l < GROUP && r + l < rows; l++) {                                                \
                states[(r + l) * ld_states] = (double)peaks[l];                                                        \
                for (int i = 0; i < rfi_totals_##id; i++) states[(r + l) * ld_states + 1 + i] = (double)totals[i][l];  \
            }                                                                                                          \
            if (states) continue;                                                                                      \
            ROLLED for (int l = 0; l < GROUP; l++) out[r + l] = RESULT(flags,                                          \
                rfi_finish_##id##_f64((double)peaks[l], (double)totals[0][l], (double)totals[1][l], count, asked[l])); \
        }                                                                                                              \
    }
#include "reductions.def"
#undef RFI_REDUCTION
#undef PUSH
#undef RESULT
#undef ROLLED

static void NAME(fold_rows)(int reduction, const void *values, int64_t ld, int columns, double count, int rows,
    const int64_t *q, void *out, double *states, int64_t ld_states) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, ...) \
    case number: NAME(fold_rows_##id)(values, ld, columns, count, rows, q, out, states, ld_states); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}

static void NAME(turn)(const void *values, int64_t ld, int columns, int rows, void *out, int64_t ld_out) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) ((T *)out)[c * ld_out + r] = ((const T *)values)[r * ld + c];
}
