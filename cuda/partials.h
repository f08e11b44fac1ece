/* SPDX-License-Identifier: MIT */
/* How many partial states a row has in the workspace, and how many rows at a time: a pure function of the choice. */
#ifndef ROWFOLD_CUDA_PARTIALS_H
#define ROWFOLD_CUDA_PARTIALS_H

#include "choose.h"

typedef struct rfi_cuda_partials {
    int64_t states;  /* of a row, those of groups of them included; kernels.h says how they lie */
    int64_t tickets; /* of who writes them */
    int64_t rows;    /* at a time */
    int32_t groups;  /* as in rfi_cuda_fold */
} rfi_cuda_partials;

/* Of `batch` rows of k inputs and n columns. `searched`: a search follows, and kernels for what is known ahead of it
 * write states to the same place. */
rfi_cuda_partials rfi_cuda_partials_of(
    const rfi_cuda_choice *choice, int64_t batch, int64_t k, int64_t n, int searched);

/* How many of `batch` rows of k inputs pass through at a time, of n columns, if each takes `row_bytes` of the workspace
 * for itself, as terms or as a copy: half of all, between 32 and 128 MiB, but so many that pieces take hardly longer
 * than larger ones would; of the sizes that this allows the one that takes least time. */
int64_t rfi_cuda_rows_of_x(const rfi_cuda_choice *choice, int64_t batch, int64_t k, int64_t n, int64_t row_bytes);

/* Groups of the states of a portable kernel. */
int32_t rfi_cuda_groups(const rfi_cuda_choice *choice, int64_t n);

#endif
