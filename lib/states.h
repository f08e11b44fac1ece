/* SPDX-License-Identifier: MIT */
/* The state of a row: what a reduction knows of some of its columns.
 *
 * A state is a peak and one or two totals (reductions.def), as many words as rfi_reduction_words says. States of
 * neighbouring columns are joined the same way everywhere: the common peak first (of two means from what they count),
 * then every total once, carried from its peak to the common one. So the bits depend on which states are joined in
 * which order, and on nothing else; every kernel has an order that depends on the number of columns alone.
 *
 * Where partial states lie, in the compute type:
 *
 *     row 0    | m t0 t1 | m t0 t1 | ...  one for each unit of columns, side by side in their order
 *     row 1    | m t0 t1 | m t0 t1 | ...
 *
 * t1 only where the reduction has it. The unit is the kernel's: RFI_CPU_UNIT columns on the CPU; on a GPU see
 * kernels.h.
 *
 * Column numbers of float32 states are WORDs in 32 bits: RFI_MOST_COLUMNS at most. */
#ifndef ROWFOLD_STATES_H
#define ROWFOLD_STATES_H

#include <string.h>

#include "ops.h"

#define RFI_MOST_COLUMNS (INT32_C(0x7f7fffff) - INT32_C(0x00800000))

/* The state of nothing or of some columns, in double: it carries those of either type exactly. */
typedef struct rfi_state {
    double m, t[RFI_TOTALS];
} rfi_state;

/* Partial states as in the picture. */
typedef struct rfi_states {
    char *at;
    int64_t units; /* of a row */
    int words;     /* of a state */
    int item;      /* bytes of a word */
} rfi_states;

static inline char *rfi_states_at(const rfi_states *s, int64_t row, int64_t unit) {
    return s->at + (row * s->units + unit) * s->words * s->item;
}

static inline int rfi_reduction_words(int kind) {
    switch (kind) {
#define RFI_REDUCTION(id, number, ...) \
    case number: return 1 + rfi_totals_##id;
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return 0;
}

static inline int rfi_reduction_flags(int kind) {
    switch (kind) {
#define RFI_REDUCTION(id, number, name, flags, ...) \
    case number: return (flags);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return 0;
}

/* The peak of two states. The mean of nothing is 0, and counts for nothing. */
static inline double rfi_mean_of_both(rfi_state p, rfi_state q) {
    return q.t[0] > 0 ? p.m + (q.m - p.m) * (q.t[0] / (p.t[0] + q.t[0])) : p.m;
}

#define RFI_REDUCTION(id, number, name, flags, ...)                                                                 \
    /* Both, p's columns before q's. */                                                                             \
    RFI_FN rfi_state rfi_state_join_##id(rfi_state p, rfi_state q) {                                                \
        rfi_state r = {.m = (flags) & RFI_RF_MEAN ? rfi_mean_of_both(p, q) : rfi_peak_##id##_f64(p.m, q.m)};        \
        for (int i = 0; i < RFI_TOTALS; i++) {                                                                      \
            /* Two statements: the products that a compiler makes part of a multiply-add shall be the same ones. */ \
            double one = rfi_carry_##id##_f64(i, p.m, r.m, p.t[0], p.t[1]);                                         \
            double two = rfi_carry_##id##_f64(i, q.m, r.m, q.t[0], q.t[1]);                                         \
            r.t[i] = rfi_join_##id##_f64(i, one, two);                                                              \
        }                                                                                                           \
        return r;                                                                                                   \
    }                                                                                                               \
    RFI_FN rfi_state rfi_state_fold_##id(const double *values, int n, int64_t first, int64_t q, double z) {         \
        rfi_state s = {.m = rfi_peak0_##id##_f64()};                                                                \
        for (int i = 0; i < RFI_TOTALS; i++) s.t[i] = rfi_empty_##id##_f64(i);                                      \
        for (int j = 0; j < n; j++) s.m = rfi_peak_##id##_f64(s.m, values[j]);                                      \
        if ((flags) & RFI_RF_MEAN && n) s.m /= n;                                                                   \
        if ((flags) & RFI_RF_SEEDED) s.m = z;                                                                       \
        for (int i = 0; i < RFI_TOTALS; i++)                                                                        \
            for (int j = 0; j < n; j++)                                                                             \
                s.t[i] = rfi_join_##id##_f64(i, s.t[i], rfi_term_##id##_f64(i, s.m, values[j], first + j, q));      \
        return s;                                                                                                   \
    }
#include "reductions.def"
#undef RFI_REDUCTION

/* The state of n columns from `first` on; of none, with which every fold begins. The row asks for column q, of value z
 * where the reduction is seeded with it. */
static inline rfi_state rfi_state_fold(int kind, const double *values, int n, int64_t first, int64_t q, double z) {
    switch (kind) {
#define RFI_REDUCTION(id, number, ...) \
    case number: return rfi_state_fold_##id(values, n, first, q, z);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return (rfi_state){0};
}

/* Both, p's columns before q's. */
static inline rfi_state rfi_state_join(int kind, rfi_state p, rfi_state q) {
    switch (kind) {
#define RFI_REDUCTION(id, number, ...) \
    case number: return rfi_state_join_##id(p, q);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return p;
}

/* The result over n columns, less the correction; of an index its WORD. */
static inline double rfi_state_finish(int kind, rfi_state s, double n, int64_t q) {
    switch (kind) {
#define RFI_REDUCTION(id, number, ...) \
    case number: return rfi_finish_##id##_f64(s.m, s.t[0], s.t[1], n, q);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return s.t[0];
}

/* Of any columns, has the state of one reduction the words of another's first, so that the other can be read from it?
 * Asked of the formulas. */
static inline int rfi_state_begins_with(int kind, int other) {
    static const double probes[] = {0.0, 1.0, -2.5, 700.0, -1e30, 3e38, INFINITY, -INFINITY, NAN};
    enum { COUNT = sizeof probes / sizeof *probes };
    if (rfi_reduction_words(other) > rfi_reduction_words(kind)) return 0;
    const size_t bytes = (size_t)rfi_reduction_words(other) * sizeof(double);
    for (int i = 0; i < COUNT * COUNT; i++) {
        const double pair[2] = {probes[i / COUNT], probes[i % COUNT]};
        rfi_state s[2];
        for (int k = 0; k < 2; k++) {
            const int of = k ? other : kind;
            s[k] = rfi_state_join(
                of, rfi_state_fold(of, pair, 2, 0, 1, pair[1]), rfi_state_fold(of, &pair[1], 1, 2, 1, pair[1]));
        }
        const double *one = (const double *)&s[0], *two = (const double *)&s[1];
        for (size_t w = 0; w < bytes / sizeof *one; w++)
            if (memcmp(&one[w], &two[w], sizeof *one) && !(one[w] != one[w] && two[w] != two[w])) return 0;
    }
    return 1;
}

#endif
