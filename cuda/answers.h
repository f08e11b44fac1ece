/* SPDX-License-Identifier: MIT */
/* What results take beside passes over W: kernels that fold nothing, and their launchers, which return CUDA's own
 * status. Plain C. Arrays with one value per row are of the compute type where nothing else is said. */
#ifndef ROWFOLD_CUDA_ANSWERS_H
#define ROWFOLD_CUDA_ANSWERS_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a search begins: rfi_cuda_before, which these are written for. */
typedef struct rfi_cuda_bound {
    int64_t batch, out_features;
    int32_t dtype;      /* the compute type */
    int32_t top;        /* k: the bound is such that the first k columns come before it; 0: the column asked for is the
                           bound */
    const void *picked; /* as in rfi_cuda_fold */
    const int64_t *asked;
    const void *partials; /* of a fold whose states are RFI_CUDA_ANSWERS */
    int64_t num_partials;
    int32_t fold_columns;
    const uint8_t *irregular; /* rows whose states are of RFI_FOLD_COLUMNS; NULL: none */
    void *values;
    int32_t *columns; /* -1 where the row asks for a column that is not there */
    unsigned *counts; /* set to 0 */
    int64_t room; /* where a search has been made with a bound from few columns: rows that found less than k, or more
                     than this, get another bound, and all others none */
    unsigned *wanted;   /* set to 1 if there are such rows; NULL: no search has been made. With
                           `stored` set to 0 */
    const void *stored; /* (batch, out_features) of the compute type, the first columns of all: the k best of these
                           are the bound, and what is found so far; NULL: by partial states */
    void *found;        /* (batch, room), as in rfi_cuda_before: written with `stored` alone */
    int32_t *found_columns;
} rfi_cuda_bound;

/* The rows of W that rows of a batch ask for, in W's own form, and what belongs to them. */
typedef struct rfi_cuda_diagonal {
    const int64_t *asked; /* (rows) */
    int64_t rows, depth, out_features;
    rfi_cuda_rows from, to; /* `to` written */
    const void *bias, *vectors;
    void *to_bias, *to_vectors; /* (rows), (num_vectors, rows) */
    int64_t *columns;           /* (rows): which of these each row asks for: its own, or -1 */
    int32_t num_vectors, dtype;
} rfi_cuda_diagonal;

/* The columns that rows ask for, of x and W in 16 bits as they are stored, where the kernel of the pass sums up
 * RFI_SM90_PART values of K at a time: sm90/asked.cu. `fold` is of these alone, out_features 64: a row's column is its
 * own of the 64 rows around it. Its bounds are written, as by rfi_cuda_bound with top 0; `fold.visitor.picked` is their
 * values.
 */
typedef struct rfi_cuda_asked {
    rfi_cuda_fold fold;
    const int64_t *asked;
    int64_t columns_there; /* of W */
    int64_t *own;          /* (batch), for fold.visitor.columns; scratch */
    float *parts;          /* (parts of K, batch); likewise */
    int32_t *columns;
    unsigned *counts;
    rfi_cuda_clear clear; /* for the pass behind it */
} rfi_cuda_asked;

/* What a search found, as a result. */
typedef struct rfi_cuda_found {
    rfi_cuda_before search; /* without found_columns: `found` are all columns as they lie */
    int64_t batch, columns;
    int32_t dtype, top; /* top 0: a rank, which goes to `indices`: the count, or -1 */
    void *y;
    int64_t ldy;
    int32_t y_dtype;
    int64_t *indices;
    int64_t ld_indices;
} rfi_cuda_found;

/* Behind a pass for squares, whose chain, squares and results `fold` has. */
typedef struct rfi_cuda_spread {
    rfi_cuda_fold fold;
    double counts[RF_MAX_RESULTS]; /* what the squares are divided by, of each result */
    int32_t dtype;
} rfi_cuda_spread;

/* Columns of x W^T + b behind the steps of fold.visitor.chain, each a dot product of its own: y (batch, columns). */
typedef struct rfi_cuda_gather {
    rfi_cuda_fold fold;
    const void *asked; /* RF_INT64 or RF_INT32, rows `ld` apart */
    int64_t ld, columns;
    int32_t asked_dtype, dtype;
    const int64_t *list; /* (batch): which rows of `asked`; NULL: all in turn */
    int64_t asked_rows;
} rfi_cuda_gather;

/* Rows that are wanted, as they are. */
typedef struct rfi_cuda_take {
    const void *from;
    void *to;
    const int64_t *list;                              /* (rows) */
    int64_t from_rows, rows, columns, ld_from, ld_to; /* columns behind the last are zeroed */
    int32_t dtype;                                    /* an rf_dtype; a row that is not there is NaN, of integers -1 */
} rfi_cuda_take;

cudaError_t rfi_cuda_launch_bound(const rfi_cuda_bound *bound, cudaStream_t stream);
cudaError_t rfi_cuda_launch_diagonal(const rfi_cuda_diagonal *diagonal, cudaStream_t stream);
cudaError_t rfi_cuda_launch_asked(const rfi_cuda_asked *asked, cudaStream_t stream);
cudaError_t rfi_cuda_launch_found(const rfi_cuda_found *found, cudaStream_t stream);
cudaError_t rfi_cuda_launch_spread(const rfi_cuda_spread *spread, cudaStream_t stream);
cudaError_t rfi_cuda_launch_gather(const rfi_cuda_gather *gather, cudaStream_t stream);
cudaError_t rfi_cuda_launch_take(const rfi_cuda_take *take, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
