/* SPDX-License-Identifier: MIT */
/* Arithmetic of sizes. None is negative; b and multiple are above 0. */
#ifndef ROWFOLD_SIZES_H
#define ROWFOLD_SIZES_H

#include <stdint.h>

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* a / b, rounded up; for any a, without overflow. */
static inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* The next multiple. The caller sees to it that it exists. */
static inline int64_t round_up(int64_t value, int64_t multiple) { return ceil_div(value, multiple) * multiple; }

#endif
