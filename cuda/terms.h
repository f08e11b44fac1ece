/* SPDX-License-Identifier: MIT */
/* In how many terms of 16 bits W and x are multiplied: doc/kernels/accuracy.md says why. */
#ifndef ROWFOLD_CUDA_TERMS_H
#define ROWFOLD_CUDA_TERMS_H

#include "rowfold.h"

/* 16-bit terms for W, by its type and the accuracy asked for, if its values are tame: 0 keeps W as it is stored. */
int rfi_cuda_weight_terms(rf_dtype w_dtype, rf_math math, int64_t in_features);

/* Those that x is brought to where W is in `w_terms`, and their type; 0: x is multiplied as it is stored. */
int rfi_cuda_x_terms(int w_terms, rf_dtype w_dtype, rf_dtype x_dtype, int64_t in_features, rf_dtype *dtype);

/* Products of a term of x with one of W that a product of values is the sum of; of values as stored, one. */
int rfi_cuda_products(int x_terms, int w_terms);

/* Whether the last term of x is multiplied by one of W alone, the first. */
int rfi_cuda_last_meets_first(int x_terms, int w_terms);

#endif
