/* SPDX-License-Identifier: MIT */
/* sin and cos of vmath.h, for the CPU alone. Those of float are computed in double: x in quarter turns, n + t with |t|
 * not above 1/2, or a little more where a rounding decides. */
#ifndef ROWFOLD_VMATH_TRIG_H
#define ROWFOLD_VMATH_TRIG_H

/* t, and n in the low bits of `quarters`, modulo 4. x 2/pi loses its whole turns before it is computed: an x from 2^44
 * on is an integer times 2^21, and that is multiplied by what 2^21 2/pi is modulo 4, a number between -2 and 2; and so
 * on. Its two leading parts have exact products with m, which has 24 bits. So has `first` an exact difference to n, and
 * the sum of that with `second` is rounded once, to the size of t. For infinity and NaN t is NaN. The numbers for the
 * size of x are chosen by masks: of selects that share their conditions gcc makes branches, and no vector code. */
RFI_MATH double rfi_quarter_turns(float x, uint64_t *quarters) {
    const double a = (double)fabsf(x);
    const uint64_t from1 = a < 0x1p44 ? 0 : UINT64_MAX, from2 = a < 0x1p65 ? 0 : UINT64_MAX;
    const uint64_t from3 = a < 0x1p86 ? 0 : UINT64_MAX, from4 = a < 0x1p107 ? 0 : UINT64_MAX;
#define CHANGE(from, v, w) ((from) & (rfi_bits_f64(v) ^ rfi_bits_f64(w)))
#define BY_SIZE(v0, v1, v2, v3, v4)                                                                              \
    rfi_from_bits_f64(rfi_bits_f64(v0) ^ CHANGE(from1, v0, v1) ^ CHANGE(from2, v1, v2) ^ CHANGE(from3, v2, v3) ^ \
        CHANGE(from4, v3, v4))
#define PART(i) \
    BY_SIZE(RFI_QUARTERS_0_##i, RFI_QUARTERS_1_##i, RFI_QUARTERS_2_##i, RFI_QUARTERS_3_##i, RFI_QUARTERS_4_##i)
    const double m = a * BY_SIZE(1, 0x1p-21, 0x1p-42, 0x1p-63, 0x1p-84);
    const double first = m * PART(0), second = m * PART(1), third = m * PART(2);
#undef PART
#undef BY_SIZE
#undef CHANGE
    const double rounder = 0x1.8p52, sum = (first + second) + rounder;
    *quarters = rfi_bits_f64(sum);
    return ((first - (sum - rounder)) + second) + third;
}

/* sin((n + t) pi / 2). */
RFI_MATH double rfi_sine_of_quarters(uint64_t n, double t) {
    const double square = t * t, sine = t * RFI_POLY_SIN_f64(square), cosine = RFI_POLY_COS_f64(square);
    const double y = n & 1 ? cosine : sine;
    return n & 2 ? -y : y;
}

/* -0 has its own sign, and lost it in |x|. */
RFI_MATH float rfi_sin_f32(float x) {
    uint64_t n;
    const double t = rfi_quarter_turns(x, &n);
    const float y = (float)rfi_sine_of_quarters(n, t);
    return rfi_from_bits_f32(rfi_bits_f32(y) ^ (rfi_bits_f32(x) & (uint32_t)1 << 31));
}

RFI_MATH float rfi_cos_f32(float x) {
    uint64_t n;
    const double t = rfi_quarter_turns(x, &n);
    return (float)rfi_sine_of_quarters(n + 1, t);
}

/* Of double the C library's, a call for each: 1100 bits of 2/pi would be as long without branches. */
RFI_MATH double rfi_sin_f64(double x) { return sin(x); }
RFI_MATH double rfi_cos_f64(double x) { return cos(x); }

#endif
