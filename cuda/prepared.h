/* SPDX-License-Identifier: MIT */
/* A model's weights on its device, immutable while calls are made, and what every forward needs to know beside them. */
#ifndef ROWFOLD_CUDA_PREPARED_H
#define ROWFOLD_CUDA_PREPARED_H

#include "backend.h"
#include "choose.h"
#include "kernels.h"
#include "passes.h"

/* A pass as kernels get it. */
typedef struct rfi_cuda_program {
    rfi_cuda_chain chain;
    rfi_cuda_result results[RF_MAX_RESULTS]; /* but for where they go */
} rfi_cuda_program;

typedef struct rfi_cuda_prepared {
    int device;
    rfi_cuda_figures figures;
    int32_t overlaps;    /* see rfi_cuda_overlaps */
    int forced;          /* index of the kernel asked for by ROWFOLD_CUDA_KERNEL, or -1 */
    int w_terms;         /* 0 if W is kept as it is stored */
    int w_nonfinite;     /* W is kept as it is stored and not finite: x is not brought to terms, for a term of 0 times
                            infinity is NaN */
    int w_infinite;      /* W is in terms, of which some stand for infinities */
    int w_several;       /* and of these so many rows have several that all of x goes the way of irregular rows */
    int w_tf32;          /* W is kept as it is stored, but rounded to TF32, and x is brought to the same */
    int updating;        /* an update was not waited for: what writes W may still be in front of a call */
    int strict, dense;   /* what of x may be lost: see rfi_cuda_split */
    const uint8_t *thin; /* likewise, in `columns` or NULL */
    rfi_cuda_findings findings;
    rfi_cuda_rows w;
    rfi_cuda_verdicts verdicts;                     /* of rows of W with several infinities, if they are few */
    size_t weight_bytes, columns_bytes, sums_bytes; /* of what is owned */
    void *weight;  /* owned: W in either form, with its scales and verdicts; NULL if W is borrowed */
    void *columns; /* owned: bias, then the vectors, then what is known of the columns of W */
    void *vectors; /* within columns */
    rfi_cuda_passes passes;
    rfi_cuda_program *programs; /* owned: of each pass, then of each branch that gathers, up to its reduction */
    int num_programs;
    int collapsed; /* the chain is a dot product a row: `collapse` but for its fold */
    rfi_cuda_collapse collapse;
    void *sums;                       /* owned: what `collapse` points to */
    cudaMemPool_t pool;               /* the device's, held: workspaces of calls that bring none */
    struct rfi_cuda_layouts *layouts; /* owned; what changes with calls, under a lock of its own. See layout.h */
} rfi_cuda_prepared;

/* Columns that are multiplied, those of verdicts included. `prepared` may be NULL. */
static inline int64_t rfi_cuda_depth(const rfi_cuda_prepared *prepared, const rfi_spec *spec) {
    return spec->plan.in_features + (prepared ? prepared->verdicts.columns : 0);
}

/* Bytes of what two terms leave of a row of float32 W, which is kept for rows of x of which one value is nearly all; 0:
 * it is not. */
static inline int64_t rfi_cuda_rest_bytes(const rfi_cuda_prepared *p, const rfi_spec *spec) {
    const int kept =
        p->w_terms == 2 && !p->w_infinite && spec->weight_dtype == RF_FLOAT32 && spec->plan.in_features < INT32_MAX;
    return kept ? (spec->plan.in_features + 7) / 8 : 0;
}

/* Whether the rows of x may have lone values: of several terms, with W's values at hand. */
static inline int rfi_cuda_finds_lone(
    const rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_cuda_problem *problem) {
    return problem->term_dtype == RF_FLOAT16 &&
        (rfi_cuda_rest_bytes(p, spec) > 0 || (!p->w_terms && problem->x_terms > 1));
}

/* Rows of W that have verdicts, at most. */
int64_t rfi_cuda_most_verdicts(int64_t in_features);

rf_status rfi_cuda_prepare(const rfi_spec *spec, const rfi_weight_view *weights, void **prepared, size_t *bytes);
void rfi_cuda_release(void *prepared);
rf_status rfi_cuda_update(
    const rfi_spec *spec, const rfi_weight_view *weights, int keep_form, void *prepared, size_t *bytes);

/* The passes of the plan and, owned, their programs. */
rf_status rfi_cuda_fill_programs(rfi_cuda_prepared *p, const rfi_plan *plan, rf_dtype weight_dtype);

/* If the plan is collapsible and the weights allow it, sets p->collapsed; bias and vectors are in their place by then.
 * Then launches it for the rows that `fold` says. */
rf_status rfi_cuda_collapse_prepare(rfi_cuda_prepared *p, const rfi_spec *spec, const rfi_weight_view *weights);
rf_status rfi_cuda_collapse_launch(const rfi_cuda_prepared *p, const rfi_cuda_fold *fold, cudaStream_t stream);

/* The problem that a pass of a forward of `batch` rows is. `prepared` may be NULL. */
rfi_cuda_problem rfi_cuda_problem_of(const rfi_spec *spec, const rfi_cuda_prepared *prepared, const rfi_cuda_pass *pass,
    int64_t batch, rf_dtype x_dtype);

/* What a pass left in memory to the states that the caller gets, of the rows from `first` on; the folds that it has. */
rf_status rfi_cuda_write_states(
    const rfi_spec *spec, const rfi_cuda_pass *pass, const rfi_cuda_fold *fold, double *states, cudaStream_t stream);
/* Whether a pass has the state of any fold. */
int rfi_cuda_has_folds(const rfi_plan *plan, const rfi_cuda_pass *pass);
rf_status rfi_cuda_merge(const rfi_spec *spec, const rfi_forward *call, const rfi_part *parts, size_t num_parts);
rf_status rfi_cuda_take_memory(const rfi_spec *spec, size_t bytes, void *stream, void **memory);
void rfi_cuda_give_back(const rfi_spec *spec, void *stream, void *memory);

rf_status rfi_cuda_workspace_size(const rfi_spec *spec, const void *prepared, const rfi_forward *call, size_t *bytes);
rf_status rfi_cuda_forward(const rfi_spec *spec, const void *prepared, const rfi_forward *call);
rf_status rfi_cuda_count_ways(const rfi_spec *spec, const void *prepared, const rfi_forward *call, rf_ways *ways);

#endif
