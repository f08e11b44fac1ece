/* SPDX-License-Identifier: MIT */
/* One layer in parts: from partial states of a kernel to those of groups of columns (lib/groups.h), which callers get,
 * and from these to results. Plain C. */
#ifndef ROWFOLD_CUDA_SHARDS_H
#define ROWFOLD_CUDA_SHARDS_H

#include "groups.h"
#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the state of one of a plan's folds goes among the words of a group. */
typedef struct rfi_cuda_group_fold {
    int32_t reduction, word;
} rfi_cuda_group_fold;

/* After a pass, whose partial states are in `partials` as rfi_cuda_fold says: joins those of a group, unit by unit in
 * an order that depends on their number alone, in double. */
typedef struct rfi_cuda_grouping {
    const void *partials;
    int64_t num_partials;
    const uint8_t *irregular; /* as in rfi_cuda_fold: rows whose units are RFI_FOLD_COLUMNS columns; or NULL */
    const int64_t *columns;   /* (batch) as the pass got them, or NULL */
    const void *picked;
    rfi_cuda_squares squares; /* instead of partial states, where the pass is for them */
    double *states;           /* (batch, groups, words) */
    int64_t batch, out_features, first_column;
    int64_t borders[RFI_MOST_GROUPS + 1]; /* columns of the model, the last out_features */
    int32_t groups, words;
    int32_t unit;      /* columns of a partial state: 256 is a multiple of it */
    int32_t reduction; /* of the pass */
    int32_t wide;      /* the compute type is double */
    int32_t num_folds;
    rfi_cuda_group_fold folds[RF_MAX_RESULTS];
} rfi_cuda_grouping;

/* A row input as it came, on the device. */
typedef struct rfi_cuda_given {
    const void *data; /* (batch), `ld` values apart */
    int64_t ld;
    int32_t dtype;
} rfi_cuda_given;

/* A step on the number of a row. */
typedef struct rfi_cuda_number_step {
    double a, b;
    int16_t kind, row; /* row: index into `rows` of what replaces a, or -1 */
} rfi_cuda_number_step;

/* Neighbouring parts that have as many groups each, and lie at even distances. */
typedef struct rfi_cuda_run {
    const double *states; /* (batch, groups, words) of the first */
    int64_t stride;       /* words from part to part */
    int32_t groups, count;
} rfi_cuda_run;

#define RFI_CUDA_MERGED_RUNS 32 /* at a time */

/* The states of all columns to one result. */
typedef struct rfi_cuda_merging {
    int64_t batch, total_columns;
    void *y;
    int64_t ldy, ignore; /* `ignore` as in rfi_branch */
    double count;        /* what a mean divides by */
    int32_t y_dtype, wide, reduction;
    int32_t word, words; /* where the state begins among those of a group, and their number */
    int32_t asks;        /* index into `rows` of the column that the row asks for, or -1 */
    int32_t num_steps, num_runs;
    rfi_cuda_run runs[RFI_CUDA_MERGED_RUNS];
    rfi_cuda_given rows[RF_MAX_OPS];
    rfi_cuda_number_step steps[RF_MAX_OPS];
} rfi_cuda_merging;

cudaError_t rfi_cuda_launch_grouping(const rfi_cuda_grouping *grouping, cudaStream_t stream);
cudaError_t rfi_cuda_launch_merging(const rfi_cuda_merging *merging, cudaStream_t stream);

/* Columns of the layer, `count` of them, to those of a model that has `width` from `first` on; any other is
 * RFI_COLUMN_OUTSIDE. */
typedef struct rfi_cuda_own_columns {
    int64_t *columns;
    int64_t count, first, width;
} rfi_cuda_own_columns;
cudaError_t rfi_cuda_launch_own_columns(const rfi_cuda_own_columns *own, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
