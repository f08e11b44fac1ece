/* SPDX-License-Identifier: MIT */
/* The plan in words and numbers. */
#ifndef ROWFOLD_EXPLAIN_H
#define ROWFOLD_EXPLAIN_H

#include "backend.h"

/* *text is malloc'd, the caller frees it. `lowered` is the backend's log, or NULL; `workspace` the bytes that a forward
 * of `batch` rows takes. */
rf_status rfi_explain(const rfi_spec *spec, const char *backend, const rfi_estimate *estimate,
    const rfi_rewrites *lowered, size_t workspace, int64_t batch, rf_format format, char **text);

#endif
