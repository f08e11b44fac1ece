/* SPDX-License-Identifier: MIT */
#include "dtype.h"

#include <math.h>

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [RF_FLOAT32] = {"float32", 4},
    [RF_FLOAT64] = {"float64", 8},
    [RF_FLOAT16] = {"float16", 2},
    [RF_BFLOAT16] = {"bfloat16", 2},
    [RF_INT32] = {"int32", 4},
    [RF_INT64] = {"int64", 8},
};

static int is_float(rf_dtype dtype) { return dtype >= RF_FLOAT32 && dtype <= RF_BFLOAT16; }
static int is_index(rf_dtype dtype) { return dtype == RF_INT32 || dtype == RF_INT64; }

size_t rfi_dtype_size(rf_dtype dtype) { return is_float(dtype) ? types[dtype].size : 0; }
size_t rfi_index_size(rf_dtype dtype) { return is_index(dtype) ? types[dtype].size : 0; }

const char *rfi_dtype_name(rf_dtype dtype) {
    return is_float(dtype) || is_index(dtype) ? types[dtype].name : "unknown";
}

int64_t rfi_load_index(const void *data, rf_dtype dtype, int64_t i) {
    return dtype == RF_INT32 ? ((const int32_t *)data)[i] : ((const int64_t *)data)[i];
}

float rfi_float_of_half(uint16_t v) {
    uint32_t sign = (uint32_t)(v & 0x8000) << 16, exponent = (v >> 10) & 31, fraction = v & 0x3ff, u;
    if (exponent == 31) {
        u = sign | 0x7f800000 | fraction << 13;
    } else if (exponent) {
        u = sign | (exponent + 112) << 23 | fraction << 13;
    } else {
        float f = (float)fraction * 0x1p-24f;
        return sign ? -f : f;
    }
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Rounds a double (or a float, exactly widened) to the nearest half, ties to even, in one step. */
static uint16_t half_of_double(double d) {
    uint16_t sign = signbit(d) ? 0x8000 : 0;
    double a = fabs(d);
    if (d != d) return sign | 0x7e00;
    if (a >= 65520) return sign | 0x7c00;
    /* Below 2^-14 halves are multiples of 2^-24; above, of 2^(e-10). nearbyint in the default mode rounds ties to even.
     */
    if (a < 0x1p-14) return sign | (uint16_t)nearbyint(a * 0x1p24);
    int e;
    frexp(a, &e);
    return sign | (uint16_t)(((e + 14) << 10) + (int)nearbyint(ldexp(a, 11 - e)) - 1024);
}

uint16_t rfi_half_of_float(float f) { return half_of_double(f); }

/* Rounding through float first would round twice: a float that is inexact is nudged to odd, so that the second rounding
 * sees which side it came from. */
static float float_to_odd(double d) {
    float f = (float)d;
    if ((double)f == d || f != f) return f;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (!(u & 1)) u = (fabs((double)f) < fabs(d)) ? u + 1 : u - 1;
    memcpy(&f, &u, sizeof f);
    return f;
}

double rfi_load(const void *data, rf_dtype dtype, int64_t i) {
    switch (dtype) {
    case RF_FLOAT64: return ((const double *)data)[i];
    case RF_FLOAT16: return rfi_float_of_half(((const uint16_t *)data)[i]);
    case RF_BFLOAT16: return rfi_float_of_bf16(((const uint16_t *)data)[i]);
    default: return ((const float *)data)[i];
    }
}

void rfi_store(void *data, rf_dtype dtype, int64_t i, double value) {
    switch (dtype) {
    case RF_FLOAT64: ((double *)data)[i] = value; break;
    case RF_FLOAT16: ((uint16_t *)data)[i] = half_of_double(value); break;
    case RF_BFLOAT16: ((uint16_t *)data)[i] = rfi_bf16_of_float(float_to_odd(value)); break;
    default: ((float *)data)[i] = (float)value; break;
    }
}

void rfi_convert(void *to, rf_dtype to_dtype, const void *from, rf_dtype from_dtype, int64_t n) {
    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)n * rfi_dtype_size(to_dtype));
        return;
    }
    for (int64_t i = 0; i < n; i++) rfi_store(to, to_dtype, i, rfi_load(from, from_dtype, i));
}
