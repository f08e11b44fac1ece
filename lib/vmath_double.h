/* SPDX-License-Identifier: MIT */
/* The functions of vmath_typed.h for double: on the CPU, and on a GPU, too, where CUDA's own branch, so that several of
 * them cannot be under way at once. */
#ifndef ROWFOLD_VMATH_DOUBLE_H
#define ROWFOLD_VMATH_DOUBLE_H

#define RFI_NUM_T double
#define RFI_NUM_U uint64_t
#define RFI_NUM_SUFFIX _f64
#define RFI_NUM_MANTISSA 52
#define RFI_NUM_BIAS 1023
#define RFI_NUM_EXP_MAX 710
#define RFI_NUM_EXP_MIN -746
#define RFI_NUM_ONE_MIN -38
#define RFI_NUM_ONE_MAX 20
#include "vmath_typed.h"

#endif
