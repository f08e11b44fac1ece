/* SPDX-License-Identifier: MIT */
/* Partial states as callers hand them in and out. */
#ifndef ROWFOLD_SHARDS_H
#define ROWFOLD_SHARDS_H

#include "model.h"

/* Can the model write states, and merge them? */
rf_status rfi_states_supported(const rf_model *model);

/* Bytes of a row's states of these columns. */
int64_t rfi_states_row_bytes(const rfi_plan *plan, const rfi_shard *columns);

/* Is there a buffer as the struct says, large enough for `batch` rows of these columns? */
rf_status rfi_states_check(
    const rf_model *model, const char *name, const rf_states *states, const rfi_shard *columns, int64_t batch);

/* What rf_states_info calls `chain`. */
uint64_t rfi_states_chain(const rf_model *model);

/* All checks of a call that gives `args` to every rank: those of a forward, and of a merge. */
rf_status rfi_forward_check_sharded(const rf_model *model, const rf_forward_args *args);

#endif
