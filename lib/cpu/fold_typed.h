/* SPDX-License-Identifier: MIT */
/* Steps and folds over a run of columns of one row, from the rows of ops.def and reductions.def. Included once for each
 * compute type T with OP(stem) giving the names of ops.h and NAME(stem) those made here; no include guard on purpose.
 *
 * The loops go over RFI_CPU_GROUP columns at a time, a constant, so that the compiler turns a formula into whole
 * vectors with no remainder. */

#define RFI_P0 0
#define RFI_PW(word) 0
#define RFI_PV(name) 1
#define RFI_P1(name, value) 0
#define RFI_P1R(name) 0
#define RFI_P2(name_a, value_a, name_b, value_b) 0

/* One loop an operator and form of its parameter. The values, the vector and the saved values are different buffers. */
#define RFI_OP(id, number, name, takes_vector, flags, formula, doc)                                                 \
    static void NAME(step_##id)(T *restrict values, const T *restrict vector, T *restrict saved, T a, T b, int n) { \
        if ((takes_vector) && vector)                                                                               \
            for (int j = 0; j < n; j += GROUP)                                                                      \
                for (int l = j; l < j + GROUP; l++) values[l] = OP(rfi_op_##id)(values[l], vector[l], b, T_ZERO);   \
        else if ((flags) & RFI_OPF_READS_SAVED)                                                                     \
            for (int j = 0; j < n; j += GROUP)                                                                      \
                for (int l = j; l < j + GROUP; l++) values[l] = OP(rfi_op_##id)(values[l], a, b, saved[l]);         \
        else                                                                                                        \
            for (int j = 0; j < n; j += GROUP)                                                                      \
                for (int l = j; l < j + GROUP; l++) values[l] = OP(rfi_op_##id)(values[l], a, b, T_ZERO);           \
        if ((flags) & RFI_OPF_SAVES) memcpy(saved, values, (size_t)n * sizeof(T));                                  \
    }
#include "ops.def"
#undef RFI_OP

#undef RFI_P0
#undef RFI_PW
#undef RFI_PV
#undef RFI_P1
#undef RFI_P1R
#undef RFI_P2

/* A reduction over a single column. */
#define RFI_REDUCTION(id, number, ...)                                                        \
    static void NAME(alone_##id)(T * values, T a, int n) {                                    \
        for (int j = 0; j < n; j += GROUP)                                                    \
            for (int l = j; l < j + GROUP; l++) values[l] = OP(rfi_alone_##id)(values[l], a); \
    }
#include "reductions.def"
#undef RFI_REDUCTION

static void NAME(apply)(
    const rfi_step *steps, int num_steps, const void *const *vectors, int64_t first, void *values, int n) {
    T saved[RFI_CPU_UNIT] __attribute__((aligned(RFI_CPU_ALIGN)));
    for (const rfi_step *s = steps; s < steps + num_steps; s++) {
        const T *vector = s->vector < 0 ? NULL : (const T *)vectors[s->vector] + first;
        switch (s->kind) {
#define RFI_OP(id, number, name, params, flags, formula, doc) \
    case number: NAME(step_##id)(values, vector, saved, (T)s->a, (T)s->b, n); break;
#include "ops.def"
#undef RFI_OP
#define RFI_REDUCTION(id, number, ...) \
    case number: NAME(alone_##id)(values, (T)s->a, n); break;
#include "reductions.def"
#undef RFI_REDUCTION
        }
    }
}

/* GROUP running peaks and totals, column j in number j % GROUP, joined in ascending order at the end. */
#define PUSH(id, i, l, j)    \
    if (i < rfi_totals_##id) \
    totals[i][l] = OP(rfi_join_##id)(i, totals[i][l], OP(rfi_term_##id)(i, m, values[j], first + (COLUMN)(j), q))
#define RFI_REDUCTION(id, number, name, flags, ...)                                                                    \
    static void NAME(fold_##id)(const T *values, int n, COLUMN first, COLUMN q, T *state) {                            \
        T peaks[GROUP], totals[RFI_TOTALS][GROUP];                                                                     \
        int whole = n - n % GROUP;                                                                                     \
        for (int l = 0; l < GROUP; l++) peaks[l] = OP(rfi_peak0_##id)();                                               \
        for (int j = 0; j < whole; j += GROUP)                                                                         \
            for (int l = 0; l < GROUP; l++) peaks[l] = OP(rfi_peak_##id)(peaks[l], values[j + l]);                     \
        for (int l = 0; l < n - whole; l++) peaks[l] = OP(rfi_peak_##id)(peaks[l], values[whole + l]);                 \
        T m = peaks[0];                                                                                                \
        for (int l = 1; l < GROUP; l++) m = OP(rfi_peak_##id)(m, peaks[l]);                                            \
        if ((flags) & RFI_RF_MEAN) m /= (T)n;                                                                          \
        if ((flags) & RFI_RF_SEEDED) m = state[0];                                                                     \
        for (int i = 0; i < RFI_TOTALS; i++)                                                                           \
            for (int l = 0; l < GROUP; l++) totals[i][l] = OP(rfi_empty_##id)(i);                                      \
        for (int j = 0; j < whole; j += GROUP)                                                                         \
            for (int l = 0; l < GROUP; l++) {                                                                          \
                PUSH(id, 0, l, j + l);                                                                                 \
                PUSH(id, 1, l, j + l);                                                                                 \
            }                                                                                                          \
        for (int l = 0; l < n - whole; l++) {                                                                          \
            PUSH(id, 0, l, whole + l);                                                                                 \
            PUSH(id, 1, l, whole + l);                                                                                 \
        }                                                                                                              \
        state[0] = m;                                                                                                  \
        for (int i = 0; i < rfi_totals_##id; i++) {                                                                    \
            for (int step = GROUP / 2; step; step /= 2)                                                                \
                for (int l = 0; l < step; l++) totals[i][l] = OP(rfi_join_##id)(i, totals[i][l], totals[i][l + step]); \
            state[1 + i] = totals[i][0];                                                                               \
        }                                                                                                              \
    }
#include "reductions.def"
#undef RFI_REDUCTION
#undef PUSH

static void NAME(fold)(int reduction, const void *values, int n, int64_t first, int64_t q, void *state) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, ...) \
    case number: NAME(fold_##id)(values, n, (COLUMN)first, (COLUMN)q, state); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}
