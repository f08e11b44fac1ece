/* SPDX-License-Identifier: MIT */
/* The thread's last error: one sentence for rf_last_error(). */
#ifndef ROWFOLD_ERROR_H
#define ROWFOLD_ERROR_H

#include "rowfold.h"

/* Records the sentence and returns `status`, so that callers write `return rfi_error(RF_INVALID_ARGUMENT, "...")`. */
rf_status rfi_error(rf_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
