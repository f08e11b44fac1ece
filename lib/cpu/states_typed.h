/* SPDX-License-Identifier: MIT */
/* States of a group of rows become one state per row, a row a lane, and states results. Included once for each compute
 * type T, behind rows_typed.h. All is joined in double and in the order of the columns. */

/* Of the rows from r on: those of lanes beyond the last row are the first row's. Unrolled, the loops over GROUP rows
 * would be taken apart into scalars. */
#define ROLLED _Pragma("GCC unroll 1")
#define JOIN_STATES(id, S)                                                                                        \
    static inline __attribute__((always_inline)) void NAME(join_##S##_##id)(const S *states, int words,           \
        int64_t stride, int64_t count, int r, int rows, double *restrict m, double (*restrict t)[GROUP]) {        \
        double next_m[GROUP], next_t[RFI_TOTALS][GROUP];                                                          \
        for (int l = 0; l < GROUP; l++) m[l] = rfi_peak0_##id##_f64();                                            \
        for (int i = 0; i < RFI_TOTALS; i++)                                                                      \
            for (int l = 0; l < GROUP; l++) t[i][l] = next_t[i][l] = rfi_empty_##id##_f64(i);                     \
        for (int64_t u = 0; u < count; u++) {                                                                     \
            for (int l = 0; l < GROUP; l++) {                                                                     \
                const S *state = states + ((r + (r + l < rows ? l : 0)) * stride + u) * words;                    \
                next_m[l] = (double)state[0];                                                                     \
                for (int i = 0; i < rfi_totals_##id; i++) next_t[i][l] = (double)state[1 + i];                    \
            }                                                                                                     \
            if (!u) {                                                                                             \
                memcpy(m, next_m, sizeof next_m);                                                                 \
                memcpy(t, next_t, rfi_totals_##id * sizeof *next_t);                                              \
                continue;                                                                                         \
            }                                                                                                     \
            ROLLED for (int l = 0; l < GROUP; l++) {                                                              \
                rfi_state both = rfi_state_join_##id(                                                             \
                    (rfi_state){m[l], {t[0][l], t[1][l]}}, (rfi_state){next_m[l], {next_t[0][l], next_t[1][l]}}); \
                m[l] = both.m, t[0][l] = both.t[0], t[1][l] = both.t[1];                                          \
            }                                                                                                     \
        }                                                                                                         \
    }

#define RFI_REDUCTION(id, number, name, flags, ...)                                                              \
    JOIN_STATES(id, T)                                                                                           \
    static void NAME(join_##id)(                                                                                 \
        const T *states, int words, int64_t stride, int64_t count, int rows, double *restrict out, int64_t ld) { \
        for (int r = 0; r < rows; r += GROUP) {                                                                  \
            double m[GROUP], t[RFI_TOTALS][GROUP];                                                               \
            NAME(join_T_##id)(states, words, stride, count, r, rows, m, t);                                      \
            for (int l = 0; l < GROUP && r + l < rows; l++) {                                                    \
                out[(r + l) * ld] = m[l];                                                                        \
                for (int i = 0; i < rfi_totals_##id; i++) out[(r + l) * ld + 1 + i] = t[i][l];                   \
            }                                                                                                    \
        }                                                                                                        \
    }                                                                                                            \
    JOIN_STATES(id, double)                                                                                      \
    static void NAME(merge_##id)(const double *states, int words, int64_t stride, int64_t groups, double count,  \
        int rows, const int64_t *q, T *restrict out) {                                                           \
        for (int r = 0; r < rows; r += GROUP) {                                                                  \
            double m[GROUP], t[RFI_TOTALS][GROUP];                                                               \
            COLUMN asked[GROUP];                                                                                 \
            NAME(find_columns)((flags) & RFI_RF_COLUMN ? q : NULL, r, rows, asked);                              \
            NAME(join_double_##id)(states, words, stride, groups, r, rows, m, t);                                \
            ROLLED for (int l = 0; l < GROUP; l++) out[r + l] =                                                  \
                RESULT(flags, rfi_finish_##id##_f64(m[l], t[0][l], t[1][l], count, asked[l]));                   \
        }                                                                                                        \
    }
#include "reductions.def"
#undef RFI_REDUCTION
#undef JOIN_STATES
#undef ROLLED
#undef RESULT

static void NAME(join)(
    int reduction, const void *states, int words, int64_t stride, int64_t count, int rows, double *out, int64_t ld) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, ...) \
    case number: NAME(join_##id)(states, words, stride, count, rows, out, ld); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}

static void NAME(merge)(int reduction, const double *states, int words, int64_t stride, int64_t groups, double count,
    int rows, const int64_t *q, void *out) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, ...) \
    case number: NAME(merge_##id)(states, words, stride, groups, count, rows, q, out); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}
