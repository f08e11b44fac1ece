/* SPDX-License-Identifier: MIT */
/* What a backend is. backends.c holds the ordered list: best first, the readable reference last. */
#ifndef ROWFOLD_BACKEND_H
#define ROWFOLD_BACKEND_H

#include "plan.h"
#include "states.h"

/* Everything a backend needs to know about a model before its weights come. */
typedef struct rfi_spec {
    rfi_plan plan;
    rf_dtype weight_dtype;
    rf_dtype compute_dtype; /* RF_FLOAT64 for float64 weights, else RF_FLOAT32: the type of logits, steps and vectors */
    rf_dtype x_dtype, y_dtype; /* defaults of forward */
    rf_math math;
    int batch_invariant;
    int threads; /* CPU threads, at least 1 */
    int device;  /* CUDA device index asked for, or -1 for any */
} rfi_spec;

/* A bias or vector in device memory, as the caller has it; data NULL: it is on the host. */
typedef struct rfi_device_column {
    const void *data; /* (N) of `dtype` */
    rf_dtype dtype;
} rfi_device_column;

/* The weights as load_weights or update_weights got them, checked. Bias and vectors on the host have been brought to
 * the compute type; W is as the caller has it. */
typedef struct rfi_weight_view {
    const void *weight; /* (N, K) of spec.weight_dtype */
    int64_t ld;
    rf_memory memory; /* of W */
    int borrow;
    void *stream;
    const void *bias;           /* (N) of spec.compute_dtype on the host; zeros if there is none */
    const void *const *vectors; /* plan.num_vectors pointers to (N) of spec.compute_dtype on the host */
    int has_bias;
    const rfi_device_column *on_device; /* (1 + plan.num_vectors), the bias first; those with data have none on the
                                           host. NULL: all are on the host */
} rfi_weight_view;

/* Where one part of a result goes: (batch, its width). */
typedef struct rfi_output {
    void *data;
    int64_t ld;
    rf_dtype dtype; /* RF_INT64 of columns and numbers of them */
    rf_memory memory;
} rfi_output;

/* One value per row, or several. */
typedef struct rfi_row_values {
    const void *data;
    int64_t ld;      /* elements from one row's to the next */
    int64_t columns; /* of a row */
    rf_dtype dtype;
    rf_memory memory;
} rfi_row_values;

/* A forward call, checked: nothing is NULL or default any more. */
typedef struct rfi_forward {
    const void *x;
    void *y;
    int64_t batch;           /* rows of the results */
    const int64_t *wanted;   /* (batch) which rows of x and the row inputs these are; NULL: the same */
    rf_memory wanted_memory; /* in device memory nobody has looked at them */
    int64_t x_rows;          /* of x and the row inputs */
    int64_t ldx, ldy;
    rf_dtype x_dtype, y_dtype;
    rf_memory x_memory, y_memory;
    const rfi_output *outputs;  /* plan.num_outputs; y and what belongs to it are the first, which a backend of one
                                   result reads instead */
    const rfi_row_values *rows; /* plan.num_rows. Columns on the host are in range, or one that a branch ignores */
    void *workspace;            /* NULL: allocate for this call */
    size_t workspace_size;
    void *stream;
    double *states; /* (batch, groups of plan.columns, words of plan.folds): instead of outputs, the states of the
                       columns; else NULL */
    rf_memory states_memory;
} rfi_forward;

/* Words of a row's state in one group: those of the folds side by side. */
static inline int rfi_plan_words_before(const rfi_plan *plan, int fold) {
    int words = 0;
    for (int f = 0; f < fold; f++) words += rfi_reduction_words(plan->folds[f].reduction);
    return words;
}
static inline int rfi_plan_words(const rfi_plan *plan) { return rfi_plan_words_before(plan, plan->num_folds); }

/* The states of one shard, as forward writes them. */
typedef struct rfi_part {
    const double *states;
    int64_t groups;
    rf_memory memory;
} rfi_part;

/* What explain says of a backend's way to run one batch size. Times are seconds, negative where unknown. */
typedef struct rfi_estimate {
    char kernel[256];  /* which kernel and tiles, and what is unusual about the weights, in words */
    char sums[96];     /* how products are added where that is not one by one in the compute type; empty: it is */
    char machine[160]; /* what the figures rest on */
    double flops_per_second, bytes_per_second;
    double fused_seconds, unfused_seconds;
    double flops, bytes;  /* of the fused way */
    int64_t weight_reads; /* how often it reads W from memory, 0 where that is not known: once for each block of so many
                             rows */
    int64_t block_rows;
    int collapsed;     /* a collapsible plan is run as one dot product a row */
    int columns_twice; /* of a row, at most, for a rank: those computed together with the one asked for, before the pass
                        */
} rfi_estimate;

typedef struct rfi_backend {
    const char *name;
    int is_cuda;
    /* Can it run on this machine? If not, *reason is a sentence in static storage. */
    int (*available)(const char **reason);
    /* Where it can run, is it one to choose? One that is not has to be asked for by name. NULL: it is. */
    int (*chosen)(void);
    /* Index of the calling thread's current device, which a model gets that asks for none. NULL where there are none.
     */
    int (*current_device)(void);
    /* Can it run this model? RF_OK, or RF_UNSUPPORTED with the reason as last error. Needs no weights and allocates
     * nothing. */
    rf_status (*supports)(const rfi_spec *spec);
    /* Prepares the weights. On success *prepared belongs to the caller, to be given to `release`; `bytes` is what it
     * holds. */
    rf_status (*prepare)(const rfi_spec *spec, const rfi_weight_view *weights, void **prepared, size_t *bytes);
    void (*release)(void *prepared);
    /* Puts other numbers in their place; `keep_form` as RF_KEEP_FORM. No other call uses `prepared` meanwhile. After a
     * failure it is still to be released, and what it computes is one of the two or a mixture. */
    rf_status (*update)(
        const rfi_spec *spec, const rfi_weight_view *weights, int keep_form, void *prepared, size_t *bytes);
    /* Of a call: of its batch > 0, and of where and of which type x is. x_dtype 0: for any of both; x NULL: for any
     * address. `prepared` may be NULL: the weights are not there yet, and neither are types and addresses. */
    rf_status (*workspace_size)(const rfi_spec *spec, const void *prepared, const rfi_forward *call, size_t *bytes);
    /* batch > 0. Any number of threads at once. */
    rf_status (*forward)(const rfi_spec *spec, const void *prepared, const rfi_forward *call);
    /* Joins the states of all columns, in the order of the parts, and finishes them to the outputs, with the bits that
     * forward gives on one process. batch > 0; x is not there, nor need weights be. NULL: forward of the backend writes
     * no states, either. */
    rf_status (*merge)(const rfi_spec *spec, const rfi_forward *call, const rfi_part *parts, size_t num_parts);
    /* Memory of the model's device for one call, in the order of `stream`. NULL, both, where there is no device. */
    rf_status (*take_memory)(const rfi_spec *spec, size_t bytes, void *stream, void **memory);
    void (*give_back)(const rfi_spec *spec, void *stream, void *memory);
    /* Which ways the rows of a call take; of that x, workspace and stream alone are there. batch > 0; *ways is zeros
     * but for `rows`. NULL: all take the same. */
    rf_status (*count_ways)(const rfi_spec *spec, const void *prepared, const rfi_forward *call, rf_ways *ways);
    /* `prepared` may be NULL: the weights are not there yet. */
    rf_status (*estimate)(const rfi_spec *spec, const void *prepared, int64_t batch, rfi_estimate *estimate);
    /* Adds to the log which steps on logits a kernel computes as one operation of its own, with the bits of one after
     * the other; of such a call as `estimate`. NULL: none. */
    rf_status (*lower)(const rfi_spec *spec, const void *prepared, int64_t batch, rfi_rewrites *log);
} rfi_backend;

extern const rfi_backend *const rfi_backends[]; /* rf_backend_count() of them */

/* The backend for a model: `forced` (or $ROWFOLD_BACKEND) by name, else the best that is available on `device` ("cpu",
 * "cuda", "cuda:N" or NULL) and supports the spec. Sets spec->device. */
rf_status rfi_backend_choose(rfi_spec *spec, const char *forced, const char *device, const rfi_backend **backend);

#endif
