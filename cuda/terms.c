/* SPDX-License-Identifier: MIT */
#include "terms.h"

#include "dtype.h"
#include "sizes.h"

/* Terms have a price for each tile; below this many columns plain multiply-adds are as fast, and a single product of
 * two terms each would be less accurate than one rounding. */
enum { SPLIT_DEPTH = 32 };

int rfi_cuda_weight_terms(rf_dtype w_dtype, rf_math math, int64_t in_features) {
    return w_dtype != RF_FLOAT32 || in_features < SPLIT_DEPTH ? 0 : math == RF_MATH_F32 ? 2 : 1;
}

/* A value of bfloat16 is a term, one of binary16 two of bfloat16 or one of its own, one of float32 three of bfloat16
 * or, but for its range, two of binary16. */
int rfi_cuda_x_terms(int w_terms, rf_dtype w_dtype, rf_dtype x_dtype, int64_t in_features, rf_dtype *dtype) {
    *dtype = w_terms == 3 || (!w_terms && w_dtype == RF_BFLOAT16) ? RF_BFLOAT16 : RF_FLOAT16;
    if (w_terms == 3 || w_terms == 1) return w_terms;
    if (w_terms == 2) return x_dtype == RF_FLOAT32 ? 2 : 1;
    if (!rfi_is_16_bit(w_dtype) || x_dtype == RF_FLOAT64 || w_dtype == x_dtype || in_features < SPLIT_DEPTH) return 0;
    return x_dtype == RF_FLOAT32 ? w_dtype == RF_BFLOAT16 ? 3 : 2 : x_dtype == RF_FLOAT16 ? 2 : 1;
}

/* Products of term `i` of x are taken with those terms of W whose number and i are together below the larger number of
 * terms. */
static int products_of(int i, int x_terms, int w_terms) {
    const int x = x_terms ? x_terms : 1, w = w_terms ? w_terms : 1;
    return (int)least(w, (x > w ? x : w) - i);
}

int rfi_cuda_products(int x_terms, int w_terms) {
    int products = 0;
    for (int i = 0; i < (x_terms ? x_terms : 1); i++) products += products_of(i, x_terms, w_terms);
    return products;
}

int rfi_cuda_last_meets_first(int x_terms, int w_terms) {
    return products_of(x_terms ? x_terms - 1 : 0, x_terms, w_terms) == 1;
}
