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
#define RFI_OP(id, number, name, takes_vector, flags, ...)                                                          \
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
#define RFI_OP(id, number, ...) \
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

/* Each of `rows` rows on its own: GROUP running peaks and totals, column j in number j % GROUP, joined in halves. The
 * peak and the total of one row are a chain of operations that wait for each other, so each stage takes all rows before
 * the next begins. A last group of columns that is not whole is computed whole, and what is too much left out. */
#define PEAKS(id, values, count)                              \
    for (int l = 0; l < GROUP; l++) {                         \
        const T next = OP(rfi_peak_##id)(peak[l], values[l]); \
        peak[l] = l < (count) ? next : peak[l];               \
    }
#define TOTAL(id, i, values, count, from)                                                                            \
    if (i < rfi_totals_##id) {                                                                                       \
        const T next = OP(rfi_join_##id)(i, total[i][l], OP(rfi_term_##id)(i, m, values[l], (from) + (COLUMN)l, q)); \
        total[i][l] = l < (count) ? next : total[i][l];                                                              \
    }
#define TOTALS(id, values, count, from)   \
    for (int l = 0; l < GROUP; l++) {     \
        TOTAL(id, 0, values, count, from) \
        TOTAL(id, 1, values, count, from) \
    }
#define HALVE(of, join)                                                                                \
    _Pragma("GCC unroll 8") for (int step = GROUP / 2; step; step /= 2) for (int r = 0; r < rows; r++) \
        _Pragma("GCC unroll 1") for (int l = 0; l < step; l++) of[r][l] = join(of[r][l], of[r][l + step]);
#define RFI_REDUCTION(id, number, name, flags, ...)                                                  \
    static inline T NAME(halve_peak_##id)(T a, T b) { return OP(rfi_peak_##id)(a, b); }              \
    static inline T NAME(halve_0_##id)(T a, T b) { return OP(rfi_join_##id)(0, a, b); }              \
    static inline T NAME(halve_1_##id)(T a, T b) { return OP(rfi_join_##id)(1, a, b); }              \
    static void NAME(fold_##id)(const T *restrict values, int64_t ld, int rows, int n, COLUMN first, \
        const int64_t *restrict asked, T *restrict states, int64_t stride) {                         \
        T peaks[RFI_CPU_FOLD_ROWS][GROUP] __attribute__((aligned(RFI_CPU_ALIGN)));                   \
        T totals[RFI_TOTALS][RFI_CPU_FOLD_ROWS][GROUP] __attribute__((aligned(RFI_CPU_ALIGN)));      \
        const int left = n % GROUP, whole = n - left;                                                \
        for (int r = 0; r < rows; r++) {                                                             \
            const T *row = values + r * ld;                                                          \
            T peak[GROUP];                                                                           \
            for (int l = 0; l < GROUP; l++) peak[l] = OP(rfi_peak0_##id)();                          \
            for (int j = 0; j < whole; j += GROUP) PEAKS(id, (row + j), GROUP)                       \
            if (left) PEAKS(id, (row + whole), left)                                                 \
            for (int l = 0; l < GROUP; l++) peaks[r][l] = peak[l];                                   \
        }                                                                                            \
        HALVE(peaks, NAME(halve_peak_##id))                                                          \
        for (int r = 0; r < rows; r++) {                                                             \
            const T *row = values + r * ld;                                                          \
            const COLUMN q = (COLUMN)asked[r];                                                       \
            const T m = (flags) & RFI_RF_SEEDED ? states[r * stride]                                 \
                : (flags) & RFI_RF_MEAN         ? peaks[r][0] / (T)n                                 \
                                                : peaks[r][0];                                               \
            T total[RFI_TOTALS][GROUP];                                                              \
            for (int i = 0; i < RFI_TOTALS; i++)                                                     \
                for (int l = 0; l < GROUP; l++) total[i][l] = OP(rfi_empty_##id)(i);                 \
            for (int j = 0; j < whole; j += GROUP) TOTALS(id, (row + j), GROUP, first + (COLUMN)j)   \
            if (left) TOTALS(id, (row + whole), left, first + (COLUMN)whole)                         \
            for (int i = 0; i < rfi_totals_##id; i++)                                                \
                for (int l = 0; l < GROUP; l++) totals[i][r][l] = total[i][l];                       \
            states[r * stride] = m;                                                                  \
        }                                                                                            \
        if (rfi_totals_##id > 0) HALVE(totals[0], NAME(halve_0_##id))                                \
        if (rfi_totals_##id > 1) HALVE(totals[1], NAME(halve_1_##id))                                \
        for (int i = 0; i < rfi_totals_##id; i++)                                                    \
            for (int r = 0; r < rows; r++) states[r * stride + 1 + i] = totals[i][r][0];             \
    }
#include "reductions.def"
#undef RFI_REDUCTION
#undef HALVE
#undef TOTALS
#undef TOTAL
#undef PEAKS

static void NAME(fold)(int reduction, const void *values, int64_t ld, int rows, int n, int64_t first,
    const int64_t *asked, void *states, int64_t stride) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, ...) \
    case number: NAME(fold_##id)(values, ld, rows, n, (COLUMN)first, asked, states, stride); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}

static void NAME(add_up)(
    void *out, const void *runs, int64_t stride, int64_t count, int64_t together, const void *bias, int n) {
    for (int j = 0; j < n; j += GROUP) {
        const T *run = (const T *)runs + j;
        T sum[GROUP] = {0};
        for (int64_t i = 0; i < count; i += together) {
            T part[GROUP] = {0};
            for (int64_t end = least(i + together, count), r = i; r < end; r++, run += stride)
                for (int l = 0; l < GROUP; l++) part[l] += run[l];
            for (int l = 0; l < GROUP; l++) sum[l] += part[l];
        }
        for (int l = 0; l < GROUP; l++) ((T *)out)[j + l] = sum[l] + ((const T *)bias)[j + l];
    }
}
