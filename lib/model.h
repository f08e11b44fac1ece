/* SPDX-License-Identifier: MIT */
/* The handle. Immutable once `prepared` is set. */
#ifndef ROWFOLD_MODEL_H
#define ROWFOLD_MODEL_H

#include <stdatomic.h>

#include "backend.h"

struct rf_model {
    rfi_spec spec;
    const rfi_backend *backend;
    char *chain_text;       /* owned; the chain as rf_chain_format prints it */
    atomic_flag claimed;    /* by the thread that loads the weights, or has loaded them */
    void *_Atomic prepared; /* owned by the backend, NULL until the weights are loaded; stored last of all */
    size_t prepared_bytes;
};

/* Product of two sizes, or -1 if it does not fit in a pointer's range. */
int64_t rfi_size_mul(int64_t a, int64_t b);

#endif
