/* SPDX-License-Identifier: MIT */
/* States of a group of rows become one state per row, a row a lane, and states results. All is joined in double and in
 * the order of the columns, so the two compute types share the code; they differ in how states are read and results
 * written. Included once for each instruction set, behind the headers of its types. */

/* Rows at a time. Unrolled, the loops over them would be taken apart into scalars. */
enum { JOIN_ROWS = F32_VECTORS * (ISA_BYTES / 4) };
#define ROLLED _Pragma("GCC unroll 1")

typedef struct joined {
    double m[JOIN_ROWS], t[RFI_TOTALS][JOIN_ROWS];
} joined;

/* `count` states of each of `rows` rows, `words` apart and `stride` from one row to the next, of floats or doubles. */
typedef struct to_join {
    const void *states;
    int words, rows, is_float;
    int64_t stride, count;
} to_join;

/* State u of the rows from r on: those of lanes beyond the last row are the first row's. */
#define LOAD_STATES(type)                                                                \
    static inline __attribute__((always_inline)) void load_states_##type(                \
        const to_join *s, int r, int64_t u, int totals, joined *restrict out) {          \
        const type *from = (const type *)s->states + (r * s->stride + u) * s->words;     \
        for (int l = 0; l < JOIN_ROWS; l++) {                                            \
            const type *state = from + (r + l < s->rows ? l : 0) * s->stride * s->words; \
            out->m[l] = (double)state[0];                                                \
            for (int i = 0; i < totals; i++) out->t[i][l] = (double)state[1 + i];        \
        }                                                                                \
    }
LOAD_STATES(float)
LOAD_STATES(double)
#undef LOAD_STATES

static void load_states(const to_join *s, int r, int64_t u, int totals, joined *restrict out) {
    if (s->is_float) totals == 1 ? load_states_float(s, r, u, 1, out) : load_states_float(s, r, u, RFI_TOTALS, out);
    else totals == 1 ? load_states_double(s, r, u, 1, out) : load_states_double(s, r, u, RFI_TOTALS, out);
}

#define RFI_REDUCTION(id, number, ...)                                                                           \
    static void join_rows_##id(const to_join *s, int r, joined *restrict out) {                                  \
        joined next;                                                                                             \
        for (int l = 0; l < JOIN_ROWS; l++) out->m[l] = rfi_peak0_##id##_f64();                                  \
        for (int i = 0; i < RFI_TOTALS; i++)                                                                     \
            for (int l = 0; l < JOIN_ROWS; l++) out->t[i][l] = next.t[i][l] = rfi_empty_##id##_f64(i);           \
        if (s->count) load_states(s, r, 0, rfi_totals_##id, out);                                                \
        for (int64_t u = 1; u < s->count; u++) {                                                                 \
            load_states(s, r, u, rfi_totals_##id, &next);                                                        \
            ROLLED for (int l = 0; l < JOIN_ROWS; l++) {                                                         \
                rfi_state both = rfi_state_join_##id((rfi_state){out->m[l], {out->t[0][l], out->t[1][l]}},       \
                    (rfi_state){next.m[l], {next.t[0][l], next.t[1][l]}});                                       \
                out->m[l] = both.m, out->t[0][l] = both.t[0], out->t[1][l] = both.t[1];                          \
            }                                                                                                    \
        }                                                                                                        \
    }                                                                                                            \
    static void finish_rows_##id(const joined *from, double count, const int64_t *asked, double *restrict out) { \
        ROLLED for (int l = 0; l < JOIN_ROWS; l++) out[l] =                                                      \
            rfi_finish_##id##_f64(from->m[l], from->t[0][l], from->t[1][l], count, asked[l]);                    \
    }
#include "reductions.def"
#undef RFI_REDUCTION
#undef ROLLED

static void join_rows(int reduction, const to_join *s, int r, joined *restrict out) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, ...) \
    case number: join_rows_##id(s, r, out); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}

static void finish_rows(int reduction, const joined *from, double count, const int64_t *asked, double *restrict out) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, ...) \
    case number: finish_rows_##id(from, count, asked, out); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}

static void join(int reduction, const to_join *s, double *out, int64_t ld) {
    const int totals = rfi_reduction_words(reduction) - 1;
    for (int r = 0; r < s->rows; r += JOIN_ROWS) {
        joined all;
        join_rows(reduction, s, r, &all);
        for (int l = 0; l < JOIN_ROWS && r + l < s->rows; l++) {
            out[(r + l) * ld] = all.m[l];
            for (int i = 0; i < totals; i++) out[(r + l) * ld + 1 + i] = all.t[i][l];
        }
    }
}

static void join_f32(
    int reduction, const void *states, int words, int64_t stride, int64_t count, int rows, double *out, int64_t ld) {
    const to_join all = {states, words, rows, 1, stride, count};
    join(reduction, &all, out, ld);
}

static void join_f64(
    int reduction, const void *states, int words, int64_t stride, int64_t count, int rows, double *out, int64_t ld) {
    const to_join all = {states, words, rows, 0, stride, count};
    join(reduction, &all, out, ld);
}

/* To results of one type, the other NULL. A number of columns may be larger than a float counts. */
static void merge(int reduction, const to_join *s, double count, const int64_t *q, float *f32, double *f64) {
    const int flags = rfi_reduction_flags(reduction);
    for (int r = 0; r < s->rows; r += JOIN_ROWS) {
        joined all;
        int64_t asked[JOIN_ROWS];
        double results[JOIN_ROWS];
        for (int l = 0; l < JOIN_ROWS; l++)
            asked[l] = q && flags & RFI_RF_COLUMN ? q[r + (r + l < s->rows ? l : 0)] : RFI_COLUMN_OUTSIDE;
        join_rows(reduction, s, r, &all);
        finish_rows(reduction, &all, count, asked, results);
        for (int l = 0; f32 && l < JOIN_ROWS; l++)
            f32[r + l] = flags & RFI_RF_COUNT ? rfi_word_f32((int32_t)results[l]) : (float)results[l];
        for (int l = 0; f64 && l < JOIN_ROWS; l++)
            f64[r + l] = flags & RFI_RF_COUNT ? rfi_word_f64((int64_t)results[l]) : results[l];
    }
}

static void merge_f32(int reduction, const double *states, int words, int64_t stride, int64_t groups, double count,
    int rows, const int64_t *q, void *out) {
    const to_join all = {states, words, rows, 0, stride, groups};
    merge(reduction, &all, count, q, out, NULL);
}

static void merge_f64(int reduction, const double *states, int words, int64_t stride, int64_t groups, double count,
    int rows, const int64_t *q, void *out) {
    const to_join all = {states, words, rows, 0, stride, groups};
    merge(reduction, &all, count, q, NULL, out);
}
