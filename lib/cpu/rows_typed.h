/* SPDX-License-Identifier: MIT */
/* What is done to a group of rows at once, a row a lane. Included once for each compute type T, as fold_typed.h is;
 * needs besides NEAR(a, b)   sums of the even and odd lanes of a, then of b, within each 16 bytes FAR(a, b)    the same
 * of whole 16 bytes */

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

/* Columns in ascending order; the result is finished in double. Unrolled, the loops over GROUP rows would be taken
 * apart into scalars. */
#define ROLLED _Pragma("GCC unroll 1")
#define RFI_REDUCTION(id, number, name, peak0, peak, term, rescale, finish, empty_ok, doc)                             \
    static void NAME(fold_rows_##id)(const T *values, int64_t ld, int columns, int rows, T *restrict out) {            \
        for (int r = 0; r < rows; r += GROUP) {                                                                        \
            T peaks[GROUP], totals[GROUP];                                                                             \
            for (int l = 0; l < GROUP; l++) peaks[l] = OP(rfi_peak0_##id)(), totals[l] = T_ZERO;                       \
            for (int c = 0; c < columns; c++)                                                                          \
                ROLLED for (int l = 0; l < GROUP; l++) peaks[l] = OP(rfi_peak_##id)(peaks[l], values[c * ld + r + l]); \
            for (int c = 0; c < columns; c++)                                                                          \
                ROLLED for (int l = 0; l < GROUP; l++) totals[l] +=                                                    \
                    OP(rfi_term_##id)(peaks[l], values[c * ld + r + l]);                                               \
            ROLLED for (int l = 0; l < GROUP; l++) out[r + l] =                                                        \
                (T)rfi_finish_##id##_f64((double)peaks[l], (double)totals[l], (double)columns);                        \
        }                                                                                                              \
    }
#include "reductions.def"
#undef RFI_REDUCTION

/* In double and in the order of the units. */
#define RFI_REDUCTION(id, number, name, peak0, peak, term, rescale, finish, empty_ok, doc)                             \
    static void NAME(merge_##id)(const T *states, int64_t units, int64_t columns, int rows, T *restrict out) {         \
        for (int r = 0; r < rows; r += GROUP) {                                                                        \
            double m[GROUP], t[GROUP], unit_m[GROUP], unit_t[GROUP];                                                   \
            for (int l = 0; l < GROUP; l++) m[l] = rfi_peak0_##id##_f64(), t[l] = 0;                                   \
            for (int64_t u = 0; u < units; u++) {                                                                      \
                for (int l = 0; l < GROUP; l++) {                                                                      \
                    const T *state = states + ((r + (r + l < rows ? l : 0)) * units + u) * 2;                          \
                    unit_m[l] = (double)state[0], unit_t[l] = (double)state[1];                                        \
                }                                                                                                      \
                if (!u) {                                                                                              \
                    memcpy(m, unit_m, sizeof m);                                                                       \
                    memcpy(t, unit_t, sizeof t);                                                                       \
                    continue;                                                                                          \
                }                                                                                                      \
                ROLLED for (int l = 0; l < GROUP; l++) {                                                               \
                    rfi_state_f64 merged =                                                                             \
                        rfi_merge_##id##_f64((rfi_state_f64){m[l], t[l]}, (rfi_state_f64){unit_m[l], unit_t[l]});      \
                    m[l] = merged.m, t[l] = merged.t;                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            ROLLED for (int l = 0; l < GROUP; l++) out[r + l] = (T)rfi_finish_##id##_f64(m[l], t[l], (double)columns); \
        }                                                                                                              \
    }
#include "reductions.def"
#undef RFI_REDUCTION
#undef ROLLED

static void NAME(merge)(int reduction, const void *states, int64_t units, int64_t columns, int rows, void *out) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, name, peak0, peak, term, rescale, finish, empty_ok, doc) \
    case number: NAME(merge_##id)(states, units, columns, rows, out); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}

static void NAME(fold_rows)(int reduction, const void *values, int64_t ld, int columns, int rows, void *out) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, name, peak0, peak, term, rescale, finish, empty_ok, doc) \
    case number: NAME(fold_rows_##id)(values, ld, columns, rows, out); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}

static void NAME(turn)(const void *values, int64_t ld, int columns, int rows, void *out, int64_t ld_out) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) ((T *)out)[c * ld_out + r] = ((const T *)values)[r * ld + c];
}
