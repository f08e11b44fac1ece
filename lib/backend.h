/* What a backend is. backends.c holds the ordered list: best first, the readable reference last. */
#ifndef ROWFOLD_BACKEND_H
#define ROWFOLD_BACKEND_H

#include "plan.h"

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

/* The weights as load_weights got them, checked. Bias and vectors have been brought to the compute type on the host; W
 * is as the caller has it. */
typedef struct rfi_weight_view {
    const void *weight; /* (N, K) of spec.weight_dtype */
    int64_t ld;
    rf_memory memory; /* of W */
    int borrow;
    void *stream;
    const void *bias;           /* (N) of spec.compute_dtype on the host; zeros if there is none */
    const void *const *vectors; /* plan.num_vectors pointers to (N) of spec.compute_dtype on the host */
} rfi_weight_view;

/* Where one result goes: (batch, its width). */
typedef struct rfi_output {
    void *data;
    int64_t ld;
    rf_dtype dtype; /* RF_INT64 of one that is a column */
    rf_memory memory;
} rfi_output;

/* One value per row. */
typedef struct rfi_row_values {
    const void *data;
    int64_t ld; /* elements from one row's to the next */
    rf_dtype dtype;
    rf_memory memory;
} rfi_row_values;

/* A forward call, checked: nothing is NULL or default any more. */
typedef struct rfi_forward {
    const void *x;
    void *y;
    int64_t batch, ldx, ldy;
    rf_dtype x_dtype, y_dtype;
    rf_memory x_memory, y_memory;
    const rfi_output *outputs;  /* plan.num_branches; y and what belongs to it are the first, which a backend of one
                                   result reads instead */
    const rfi_row_values *rows; /* plan.num_rows. Columns on the host are in range, or one that a branch ignores */
    void *workspace;            /* NULL: allocate for this call */
    size_t workspace_size;
    void *stream;
} rfi_forward;

/* What explain says of a backend's way to run one batch size. Times are seconds, negative where unknown. */
typedef struct rfi_estimate {
    char kernel[256];  /* which kernel and tiles, and what is unusual about the weights, in words */
    char machine[160]; /* what the figures rest on */
    double flops_per_second, bytes_per_second;
    double fused_seconds, unfused_seconds;
    double flops, bytes;  /* of the fused way */
    int64_t weight_reads; /* how often it reads W from memory, 0 where that is not known: once for each block of so many
                             rows */
    int64_t block_rows;
    int collapsed; /* a collapsible plan is run as one dot product a row */
} rfi_estimate;

typedef struct rfi_backend {
    const char *name;
    int is_cuda;
    /* Can it run on this machine? If not, *reason is a sentence in static storage. */
    int (*available)(const char **reason);
    /* Index of the calling thread's current device, which a model gets that asks for none. NULL where there are none.
     */
    int (*current_device)(void);
    /* Can it run this model? RF_OK, or RF_UNSUPPORTED with the reason as last error. Needs no weights and allocates
     * nothing. */
    rf_status (*supports)(const rfi_spec *spec);
    /* Copies device memory to the host once `stream` has come to it. NULL where there is no device memory. */
    rf_status (*copy_to_host)(const rfi_spec *spec, void *host, const void *device, size_t bytes, void *stream);
    /* Prepares the weights. On success *prepared belongs to the caller, to be given to `release`; `bytes` is what it
     * holds. */
    rf_status (*prepare)(const rfi_spec *spec, const rfi_weight_view *weights, void **prepared, size_t *bytes);
    void (*release)(void *prepared);
    /* `prepared` may be NULL: the weights are not there yet. */
    rf_status (*workspace_size)(const rfi_spec *spec, const void *prepared, int64_t batch, size_t *bytes);
    /* batch > 0. Any number of threads at once. */
    rf_status (*forward)(const rfi_spec *spec, const void *prepared, const rfi_forward *call);
    /* `prepared` may be NULL: the weights are not there yet. */
    rf_status (*estimate)(const rfi_spec *spec, const void *prepared, int64_t batch, rfi_estimate *estimate);
} rfi_backend;

extern const rfi_backend *const rfi_backends[]; /* rf_backend_count() of them */

/* The backend for a model: `forced` (or $ROWFOLD_BACKEND) by name, else the best that is available on `device` ("cpu",
 * "cuda", "cuda:N" or NULL) and supports the spec. Sets spec->device. */
rf_status rfi_backend_choose(rfi_spec *spec, const char *forced, const char *device, const rfi_backend **backend);

#endif
