/* SPDX-License-Identifier: MIT */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/features.h"
#include "dtype.h"
#include "error.h"
#include "explain.h"
#include "guard.h"
#include "sized.h"

int64_t rfi_size_mul(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > PTRDIFF_MAX ? -1 : product;
}

static rf_status choose_threads(int asked, int *threads) {
    if (asked < 0 || asked > RFI_CPU_MAX_THREADS)
        return rfi_error(
            RF_INVALID_ARGUMENT, "config.threads is %d; expected 0 (all cores) to %d", asked, RFI_CPU_MAX_THREADS);
    const char *text = getenv("ROWFOLD_NUM_THREADS");
    if (!asked && text && *text) {
        char *end;
        long n = strtol(text, &end, 10);
        if (*end || n < 1 || n > RFI_CPU_MAX_THREADS)
            return rfi_error(RF_INVALID_ARGUMENT, "ROWFOLD_NUM_THREADS is \"%.40s\"; expected a number from 1 to %d",
                text, RFI_CPU_MAX_THREADS);
        asked = (int)n;
    }
    *threads = asked ? asked : rfi_cpu_cores();
    return RF_OK;
}

static rf_status choose_dtypes(const rf_config *config, rfi_spec *spec) {
    const struct {
        const char *name;
        int value;
    } given[] = {{"weight_dtype", config->weight_dtype}, {"x_dtype", config->x_dtype}, {"y_dtype", config->y_dtype}};
    for (int i = 0; i < 3; i++)
        if (given[i].value && !rfi_dtype_size((rf_dtype)given[i].value))
            return rfi_error(
                RF_INVALID_ARGUMENT, "config.%s is %d, which is no rf_dtype of numbers", given[i].name, given[i].value);
    spec->weight_dtype = config->weight_dtype ? (rf_dtype)config->weight_dtype : RF_FLOAT32;
    spec->compute_dtype = spec->weight_dtype == RF_FLOAT64 ? RF_FLOAT64 : RF_FLOAT32;
    spec->x_dtype = config->x_dtype ? (rf_dtype)config->x_dtype : spec->weight_dtype;
    spec->y_dtype = config->y_dtype ? (rf_dtype)config->y_dtype : spec->compute_dtype;
    if ((spec->x_dtype == RF_FLOAT64) != (spec->weight_dtype == RF_FLOAT64))
        return rfi_error(RF_INVALID_ARGUMENT,
            "config.x_dtype is %s and config.weight_dtype %s; float64 goes with float64 only",
            rfi_dtype_name(spec->x_dtype), rfi_dtype_name(spec->weight_dtype));
    return RF_OK;
}

static rf_status check_config(const rf_config *config) {
    if (!config->chain == !config->ops)
        return rfi_error(RF_INVALID_ARGUMENT, "config.chain and config.ops: expected exactly one of them, got %s",
            config->chain ? "both" : "neither");
    if (config->math < RF_MATH_F32 || config->math > RF_MATH_BF16)
        return rfi_error(RF_INVALID_ARGUMENT, "config.math is %d, which is no rf_math", config->math);
    if (config->simplify < RF_SIMPLIFY_DEFAULT || config->simplify > RF_SIMPLIFY_ALGEBRAIC)
        return rfi_error(RF_INVALID_ARGUMENT, "config.simplify is %d, which is no rf_simplify", config->simplify);
    if (config->flags & ~RF_BATCH_INVARIANT)
        return rfi_error(RF_INVALID_ARGUMENT, "config.flags is 0x%x; only RF_BATCH_INVARIANT is known", config->flags);
    return RF_OK;
}

/* Can a model hold some of the columns alone? */
static rf_status check_shard(const rfi_plan *plan) {
    const rfi_branch *branch = rfi_plan_whole_branch(plan);
    if (branch && rfi_plan_is_shard(plan))
        return rfi_error(RF_UNSUPPORTED,
            "%s needs all columns of the layer in one model, which has %lld of %lld; shards do not exchange it",
            branch->name, (long long)plan->columns.count, (long long)plan->columns.total);
    return RF_OK;
}

static rf_status plan_chain(const rf_config *config, rfi_spec *spec) {
    rfi_chain chain;
    rf_status status = config->chain ? rfi_chain_from_text(config->chain, &chain)
                                     : rfi_chain_from_ops(config->ops, config->num_ops, &chain);
    if (status) return status;
    chain.first_column = config->first_column;
    chain.total_columns = config->total_columns;
    status = rfi_chain_set_size(&chain, config->in_features, config->out_features);
    if (status) return status;
    rf_simplify simplify = config->simplify ? (rf_simplify)config->simplify : RF_SIMPLIFY_ALGEBRAIC;
    status = rfi_plan_make(&chain, simplify, &spec->plan, NULL);
    return status ? status : check_shard(&spec->plan);
}

static rf_status format_chain(rf_model *model) {
    const rfi_chain *chain = &model->spec.plan.chain;
    size_t needed = 0;
    rf_chain_format(chain->ops, (size_t)chain->num_ops, NULL, 0, &needed);
    model->chain_text = malloc(needed + 1);
    if (!model->chain_text) return rfi_error(RF_OUT_OF_MEMORY, "no memory for the chain's text");
    return rf_chain_format(chain->ops, (size_t)chain->num_ops, model->chain_text, needed + 1, NULL);
}

rf_status rf_model_create(rf_model **out, const rf_config *given) {
    RFI_GUARDED;
    if (!out) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_config own, *config = &own;
    rf_status status = rfi_sized_read("config", "rf_config", given, config, sizeof *config);
    if (!status) status = check_config(config);
    if (status) return status;
    rf_model *model = calloc(1, sizeof *model);
    if (!model) return rfi_error(RF_OUT_OF_MEMORY, "no memory for a model");
    atomic_flag_clear(&model->claimed);
    rfi_spec *spec = &model->spec;
    spec->math = (rf_math)config->math;
    spec->batch_invariant = (config->flags & RF_BATCH_INVARIANT) != 0;
    status = choose_dtypes(config, spec);
    if (!status) status = choose_threads(config->threads, &spec->threads);
    if (!status) status = plan_chain(config, spec);
    if (!status) status = rfi_backend_choose(spec, config->backend, config->device, &model->backend);
    if (!status) status = format_chain(model);
    if (status) {
        rf_model_destroy(model);
        return status;
    }
    *out = model;
    return RF_OK;
}

void rf_model_destroy(rf_model *model) {
    RFI_GUARDED;
    if (!model) return;
    if (model->prepared) model->backend->release(model->prepared);
    free(model->chain_text);
    free(model);
}

rf_status rf_model_get_info(const rf_model *model, rf_model_info *info) {
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_status status = rfi_sized_check("info", "rf_model_info", info, sizeof *info);
    if (status) return status;
    const rfi_spec *spec = &model->spec;
    const rf_model_info own = {
        .backend = model->backend->name,
        .chain = model->chain_text,
        .in_features = spec->plan.in_features,
        .out_features = spec->plan.out_features,
        .output_features = spec->plan.width,
        .weight_dtype = spec->weight_dtype,
        .x_dtype = spec->x_dtype,
        .y_dtype = (int32_t)(spec->plan.branches[0].gives_index ? RF_INT64 : spec->y_dtype),
        .math = spec->math,
        .simplify = spec->plan.simplify,
        .threads = spec->threads,
        .device = model->backend->is_cuda ? spec->device : -1,
        .loaded = model->prepared != NULL,
        .prepared_bytes = model->prepared_bytes,
        .num_results = spec->plan.num_outputs,
        .num_row_inputs = spec->plan.num_rows,
        .first_column = spec->plan.columns.first,
        .total_columns = spec->plan.columns.total,
    };
    rfi_sized_write(info, &own, sizeof own);
    return RF_OK;
}

static rf_status check_index(const rf_model *model, size_t index, int count, const char *what) {
    if (index >= (size_t)count)
        return rfi_error(RF_INVALID_ARGUMENT, "index is %zu; \"%.200s\" has %d %s%s", index, model->chain_text, count,
            what, count == 1 ? "" : "s");
    return RF_OK;
}

rf_status rf_model_result_info(const rf_model *model, size_t index, rf_result_info *info) {
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_status status = rfi_sized_check("info", "rf_result_info", info, sizeof *info);
    if (!status) status = check_index(model, index, model->spec.plan.num_outputs, "result");
    if (status) return status;
    const rfi_result_part *out = &model->spec.plan.outputs[index];
    const rfi_branch *branch = &model->spec.plan.branches[out->branch];
    const rf_result_info own = {
        .name = out->name,
        .width = branch->width,
        .dtype = (int32_t)(out->is_index ? RF_INT64 : model->spec.y_dtype),
        .kind = branch->reduction,
        .part = out->part,
        .row_input = branch->row,
    };
    rfi_sized_write(info, &own, sizeof own);
    return RF_OK;
}

rf_status rf_model_row_input_info(const rf_model *model, size_t index, rf_row_input_info *info) {
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_status status = rfi_sized_check("info", "rf_row_input_info", info, sizeof *info);
    if (!status) status = check_index(model, index, model->spec.plan.num_rows, "row input");
    if (status) return status;
    const rfi_row_input *row = &model->spec.plan.rows[index];
    const rf_row_input_info own = {
        .name = row->name,
        .use = row->several  ? RF_ROW_COLUMNS
            : row->is_column ? RF_ROW_COLUMN
                             : RF_ROW_NUMBER,
    };
    rfi_sized_write(info, &own, sizeof own);
    return RF_OK;
}

rf_status rf_model_explain(
    const rf_model *model, int64_t batch, rf_format format, char *text, size_t size, size_t *needed) {
    RFI_GUARDED;
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    if (batch < 0) return rfi_error(RF_INVALID_ARGUMENT, "batch is %lld; expected 0 or more", (long long)batch);
    if (format != RF_FORMAT_TEXT && format != RF_FORMAT_JSON)
        return rfi_error(RF_INVALID_ARGUMENT, "format is %d, which is no rf_format", (int)format);
    if (!text && size)
        return rfi_error(RF_INVALID_ARGUMENT, "text is NULL and size %zu; expected a buffer, or size 0", size);
    rfi_estimate estimate;
    size_t workspace = 0;
    rf_status status = model->backend->estimate(&model->spec, model->prepared, batch, &estimate);
    const rfi_forward call = {.batch = batch};
    if (!status && batch) status = model->backend->workspace_size(&model->spec, model->prepared, &call, &workspace);
    char *words = NULL;
    rfi_rewrites *lowered = NULL;
    if (!status && model->backend->lower) {
        lowered = calloc(1, sizeof *lowered);
        status = lowered ? model->backend->lower(&model->spec, model->prepared, batch, lowered)
                         : rfi_error(RF_OUT_OF_MEMORY, "no memory for the explanation");
    }
    if (!status)
        status = rfi_explain(&model->spec, model->backend->name, &estimate, lowered, workspace, batch, format, &words);
    free(lowered);
    if (status) return status;
    size_t length = strlen(words) + 1;
    if (needed) *needed = length;
    if (length <= size) {
        memcpy(text, words, length);
    } else if (text) {
        status = rfi_error(RF_BUFFER_TOO_SMALL, "size is %zu; the explanation takes %zu bytes", size, length);
    }
    free(words);
    return status;
}
