/* SPDX-License-Identifier: MIT */
/* Data types: sizes, names and conversions. */
#ifndef ROWFOLD_DTYPE_H
#define ROWFOLD_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "rowfold.h"

size_t rfi_dtype_size(rf_dtype dtype);      /* of a floating type; 0 if there is none of that number */
size_t rfi_index_size(rf_dtype dtype);      /* the same of the integer types */
const char *rfi_dtype_name(rf_dtype dtype); /* "float32" ... */
static inline int rfi_is_16_bit(rf_dtype dtype) { return dtype == RF_FLOAT16 || dtype == RF_BFLOAT16; }

static inline float rfi_float_of_bf16(uint16_t v) {
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Rounds to nearest even; NaN stays a NaN. */
static inline uint16_t rfi_bf16_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (f != f) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

float rfi_float_of_half(uint16_t v);
uint16_t rfi_half_of_float(float f);

/* One value at index i of an array of any type, as double (exact), and back (rounded once). */
double rfi_load(const void *data, rf_dtype dtype, int64_t i);
void rfi_store(void *data, rf_dtype dtype, int64_t i, double value);

/* The column at index i of an array of an integer type. */
int64_t rfi_load_index(const void *data, rf_dtype dtype, int64_t i);

/* n values from one type to another, rounded once. */
void rfi_convert(void *to, rf_dtype to_dtype, const void *from, rf_dtype from_dtype, int64_t n);

#endif
