/* SPDX-License-Identifier: MIT */
/* One layer in parts: which columns, and what states of them look like. */
#include "shards.h"

#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "guard.h"
#include "sized.h"

rf_status rfi_states_supported(const rf_model *model) {
    const rfi_branch *branch = rfi_plan_whole_branch(&model->spec.plan);
    if (branch)
        return rfi_error(RF_UNSUPPORTED,
            "%s has no states to write or merge: it needs all columns of the layer in one model", branch->name);
    if (!model->spec.plan.num_folds)
        return rfi_error(RF_UNSUPPORTED,
            "\"%.200s\" folds no columns, so there are no states: the results of its shards stand side by side",
            model->chain_text);
    if (!model->backend->merge)
        return rfi_error(RF_UNSUPPORTED, "backend \"%s\" writes and merges no partial states", model->backend->name);
    return RF_OK;
}

int64_t rfi_states_row_bytes(const rfi_plan *plan, const rfi_shard *columns) {
    return rfi_shard_groups(columns) * rfi_plan_words(plan) * (int64_t)sizeof(double);
}

rf_status rfi_states_check(
    const rf_model *model, const char *name, const rf_states *states, const rfi_shard *columns, int64_t batch) {
    const int64_t row = rfi_states_row_bytes(&model->spec.plan, columns), bytes = rfi_size_mul(batch, row);
    const int on_device = model->backend->is_cuda && states->memory == RF_MEMORY_DEVICE;
    if (states->memory != RF_MEMORY_DEFAULT && states->memory != RF_MEMORY_HOST && !on_device)
        return rfi_error(RF_INVALID_ARGUMENT, "%s.memory is %d; expected RF_MEMORY_HOST%s", name, states->memory,
            model->backend->is_cuda ? " or RF_MEMORY_DEVICE" : "");
    if (states->reserved)
        return rfi_error(RF_INVALID_ARGUMENT, "%s.reserved is %d; expected 0", name, states->reserved);
    if (bytes < 0)
        return rfi_error(RF_INVALID_ARGUMENT, "batch %lld times %lld bytes of states a row overflows", (long long)batch,
            (long long)row);
    if (states->bytes < (size_t)bytes)
        return rfi_error(RF_INVALID_ARGUMENT, "%s.bytes is %zu; %lld rows of %lld bytes need %lld", name, states->bytes,
            (long long)batch, (long long)row, (long long)bytes);
    if (!bytes) return RF_OK;
    if (!states->data) return rfi_error(RF_INVALID_ARGUMENT, "%s.data is NULL", name);
    if ((uintptr_t)states->data % sizeof(double))
        return rfi_error(RF_INVALID_ARGUMENT, "%s.data is not aligned to its type, float64", name);
    return RF_OK;
}

static uint64_t mix(uint64_t hash, const void *data, size_t size) {
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* FNV-1a of all that says which states there are and what becomes of them. Not of addresses, padding or the order of
 * bytes in memory that a text would not have: it travels. */
uint64_t rfi_states_chain(const rf_model *model) {
    const rfi_spec *spec = &model->spec;
    const rfi_plan *plan = &spec->plan;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    /* Without the linear layer, whose size may stand there, and differs between shards. */
    const char *const rest = strchr(model->chain_text, '|');
    if (rest) hash = mix(hash, rest, strlen(rest));
    const int64_t numbers[] = {plan->in_features, plan->columns.total, spec->compute_dtype, plan->simplify};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (int byte = 0; byte < 8; byte++) {
            const unsigned char one = (unsigned char)((uint64_t)numbers[i] >> (8 * byte));
            hash = mix(hash, &one, 1);
        }
    return hash ? hash : 1;
}

rf_status rf_model_states_info(const rf_model *model, rf_states_info *info) {
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_status status = rfi_sized_check("info", "rf_states_info", info, sizeof *info);
    if (!status) status = rfi_states_supported(model);
    if (status) return status;
    const rfi_plan *plan = &model->spec.plan;
    const rf_states_info own = {
        .dtype = RF_FLOAT64,
        .num_words = rfi_plan_words(plan),
        .num_groups = rfi_shard_groups(&plan->columns),
        .row_bytes = rfi_states_row_bytes(plan, &plan->columns),
        .first_column = plan->columns.first,
        .num_columns = plan->columns.count,
        .total_columns = plan->columns.total,
        .chain = rfi_states_chain(model),
    };
    rfi_sized_write(info, &own, sizeof own);
    return RF_OK;
}

static rf_status check_total(int64_t total_columns) {
    if (total_columns < 0 || total_columns > (INT64_C(1) << 40))
        return rfi_error(RF_INVALID_ARGUMENT, "total_columns is %lld; expected 0 to 2^40", (long long)total_columns);
    return RF_OK;
}

rf_status rf_states_groups(int64_t total_columns, int64_t *borders, size_t capacity, size_t *num_groups) {
    if (!num_groups) return rfi_error(RF_INVALID_ARGUMENT, "num_groups is NULL");
    if (!borders && capacity)
        return rfi_error(
            RF_INVALID_ARGUMENT, "borders is NULL and capacity %zu; expected a buffer, or capacity 0", capacity);
    rf_status status = check_total(total_columns);
    if (status) return status;
    const size_t groups = (size_t)rfi_num_groups(total_columns);
    *num_groups = groups;
    if (!borders) return RF_OK;
    if (capacity < groups + 1)
        return rfi_error(
            RF_BUFFER_TOO_SMALL, "capacity is %zu; %zu groups have %zu borders", capacity, groups, groups + 1);
    for (size_t i = 0; i <= groups; i++) borders[i] = rfi_group_border(total_columns, (int64_t)i);
    return RF_OK;
}

rf_status rf_shard_columns(
    int64_t total_columns, int64_t shard, int64_t num_shards, int64_t *first_column, int64_t *num_columns) {
    if (!first_column || !num_columns)
        return rfi_error(RF_INVALID_ARGUMENT, "%s is NULL", first_column ? "num_columns" : "first_column");
    rf_status status = check_total(total_columns);
    if (status) return status;
    if (num_shards < 1 || num_shards > INT32_MAX)
        return rfi_error(RF_INVALID_ARGUMENT, "num_shards is %lld; expected 1 to 2^31 - 1", (long long)num_shards);
    if (shard < 0 || shard >= num_shards)
        return rfi_error(
            RF_INVALID_ARGUMENT, "shard is %lld; expected 0 to %lld", (long long)shard, (long long)num_shards - 1);
    const int64_t groups = rfi_num_groups(total_columns);
    const int64_t begin = rfi_group_border(total_columns, shard * groups / num_shards),
                  end = rfi_group_border(total_columns, (shard + 1) * groups / num_shards);
    *first_column = begin;
    *num_columns = end - begin;
    return RF_OK;
}
