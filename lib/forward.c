/* SPDX-License-Identifier: MIT */
/* Forward: everything is checked here, and nothing is touched before all checks have passed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "guard.h"
#include "model.h"
#include "rows.h"
#include "shards.h"
#include "sized.h"
#include "sizes.h"

static rf_status check_ready(const rf_model *model, int64_t batch) {
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    if (!model->prepared)
        return rfi_error(RF_NOT_LOADED, "the model has no weights yet; call rf_model_load_weights first");
    if (batch < 0) return rfi_error(RF_INVALID_ARGUMENT, "batch is %lld; expected 0 or more", (long long)batch);
    return RF_OK;
}

/* Where the rows of a buffer lie: `row` bytes each, `step` bytes from one to the next. */
typedef struct rows {
    uintptr_t first;
    int64_t count, row, step;
} rows;

/* What the fields of a buffer are called in a sentence. */
typedef struct names {
    char data[40], ld[40], dtype[40], memory[40];
} names;

static names names_of(const char *array, int index) {
    names n;
    snprintf(n.data, sizeof n.data, "%s[%d].data", array, index);
    snprintf(n.ld, sizeof n.ld, "%s[%d].ld", array, index);
    snprintf(n.dtype, sizeof n.dtype, "%s[%d].dtype", array, index);
    snprintf(n.memory, sizeof n.memory, "%s[%d].memory", array, index);
    return n;
}

static const names x_names = {"x", "ldx", "x_dtype", "x_memory"}, y_names = {"y", "ldy", "y_dtype", "y_memory"},
                   rows_names = {.memory = "rows_memory"};

/* A (batch, columns) buffer: leading dimension, size and alignment, for `item` bytes an element. One without rows or
 * columns is never touched: it may be anything. A single row has no next one, which *ld could be the way to: that
 * becomes one that no multiple takes out of range, as aligned as it was. */
static rf_status check_matrix(const names *name, const void *data, int64_t batch, int64_t columns, int64_t *ld,
    rf_dtype dtype, size_t item, rows *out) {
    if (*ld < columns)
        return rfi_error(
            RF_INVALID_ARGUMENT, "%s is %lld; expected %lld or more", name->ld, (long long)*ld, (long long)columns);
    int64_t elements = rfi_size_mul(batch, *ld), bytes = (int64_t)item;
    if (elements < 0 || rfi_size_mul(elements, bytes) < 0)
        return rfi_error(
            RF_INVALID_ARGUMENT, "batch %lld times %s %lld overflows", (long long)batch, name->ld, (long long)*ld);
    *out = (rows){.first = (uintptr_t)data, .count = columns ? batch : 0, .row = columns * bytes, .step = *ld * bytes};
    if (batch == 1) *ld = least(*ld, round_up(columns, 64));
    if (!out->count) return RF_OK;
    if (!data) return rfi_error(RF_INVALID_ARGUMENT, "%s is NULL", name->data);
    if ((uintptr_t)data % item)
        return rfi_error(RF_INVALID_ARGUMENT, "%s is not aligned to its type, %s", name->data, rfi_dtype_name(dtype));
    return RF_OK;
}

static rf_status check_float(const names *name, rf_dtype dtype) {
    if (!rfi_dtype_size(dtype))
        return rfi_error(RF_INVALID_ARGUMENT, "%s is %d, which is no rf_dtype%s", name->dtype, (int)dtype,
            rfi_index_size(dtype) ? " of numbers" : "");
    return RF_OK;
}

static uintptr_t row_at(const rows *r, int64_t i) { return r->first + (uintptr_t)(i * r->step); }
static uintptr_t end_of(const rows *r, int64_t i) { return row_at(r, i) + (uintptr_t)r->row; }

/* Have they a byte in common? Rows of one may lie between those of the other, as in a matrix of which y is the last
 * column. */
static int overlap(const rows *a, const rows *b) {
    if (!a->count || !b->count || end_of(a, a->count - 1) <= b->first || end_of(b, b->count - 1) <= a->first) return 0;
    for (int64_t i = 0, j = 0; i < a->count && j < b->count;) {
        if (end_of(a, i) <= row_at(b, j)) i++;
        else if (end_of(b, j) <= row_at(a, i)) j++;
        else return 1;
    }
    return 0;
}

static rf_status check_memory(const rf_model *model, const names *name, rf_memory memory) {
    if (memory != RF_MEMORY_HOST && memory != RF_MEMORY_DEVICE)
        return rfi_error(RF_INVALID_ARGUMENT, "%s is %d, which is no rf_memory", name->memory, (int)memory);
    if (memory == RF_MEMORY_DEVICE && !model->backend->is_cuda)
        return rfi_error(RF_INVALID_ARGUMENT,
            "%s is RF_MEMORY_DEVICE, but the model runs on backend \"%s\", which has host memory only", name->memory,
            model->backend->name);
    return RF_OK;
}

static rf_status check_types(const rf_model *model, const rfi_forward *call) {
    if ((call->x_dtype == RF_FLOAT64) != (model->spec.weight_dtype == RF_FLOAT64))
        return rfi_error(RF_INVALID_ARGUMENT, "x_dtype is %s and the weights are %s; float64 goes with float64 only",
            rfi_dtype_name(call->x_dtype), rfi_dtype_name(model->spec.weight_dtype));
    return RF_OK;
}

static rf_status check_workspace(const rf_model *model, const rfi_forward *call) {
    if (!call->workspace || !call->batch) return RF_OK;
    size_t needed = 0;
    rf_status status = model->backend->workspace_size(&model->spec, model->prepared, call, &needed);
    if (status) return status;
    if (call->workspace_size < needed)
        return rfi_error(RF_WORKSPACE_TOO_SMALL, "workspace_size is %zu; batch %lld needs %zu bytes",
            call->workspace_size, (long long)call->batch, needed);
    if ((uintptr_t)call->workspace % 256)
        return rfi_error(RF_INVALID_ARGUMENT, "workspace is not aligned to 256 bytes");
    return RF_OK;
}

/* All that a call brings: what backends get, and where its rows lie. */
typedef struct call {
    rfi_forward forward;
    int64_t batch; /* rows of x */
    rfi_output outputs[RFI_MAX_OUTPUTS];
    rfi_row_values values[RF_MAX_OPS];
    rows x, results[RFI_MAX_OUTPUTS], row_inputs[RF_MAX_OPS], states, wanted;
} call;

static rf_memory memory_of(int32_t memory) { return memory ? (rf_memory)memory : RF_MEMORY_HOST; }

static rf_status take_x(const rf_model *model, const rf_forward_args *args, call *c) {
    const rfi_spec *spec = &model->spec;
    rfi_forward *f = &c->forward;
    f->x = args->x;
    f->ldx = args->ldx ? args->ldx : spec->plan.in_features;
    f->x_dtype = args->x_dtype ? (rf_dtype)args->x_dtype : spec->x_dtype;
    f->x_memory = memory_of(args->x_memory);
    rf_status status = check_float(&x_names, f->x_dtype);
    if (!status)
        status = check_matrix(
            &x_names, f->x, c->batch, spec->plan.in_features, &f->ldx, f->x_dtype, rfi_dtype_size(f->x_dtype), &c->x);
    return status;
}

/* States, and what is exchanged of them, are of all rows. */
static rf_status check_no_wanted(const rf_forward_args *args) {
    if (args->rows)
        return rfi_error(RF_UNSUPPORTED,
            "args.rows: states are of all rows of x; expected NULL, and x and the row inputs with the wanted rows alone");
    return RF_OK;
}

static rf_status check_num_rows(const rf_forward_args *args) {
    if (!args->rows || args->num_rows <= PTRDIFF_MAX / sizeof(int64_t)) return RF_OK;
    return rfi_error(RF_INVALID_ARGUMENT, "args.num_rows is %zu, more than memory can hold", args->num_rows);
}

/* Which rows are wanted. */
static rf_status take_wanted(const rf_model *model, const rf_forward_args *args, call *c) {
    if (!args->rows && args->num_rows)
        return rfi_error(RF_INVALID_ARGUMENT, "args.rows is NULL, and args.num_rows %zu", args->num_rows);
    if (!args->rows) return RF_OK;
    if (args->states) return check_no_wanted(args);
    if ((uintptr_t)args->rows % sizeof(int64_t))
        return rfi_error(RF_INVALID_ARGUMENT, "args.rows is not aligned to its type, int64");
    const rf_memory memory = memory_of(args->rows_memory);
    rf_status status = check_memory(model, &rows_names, memory);
    if (status) return status;
    status = check_num_rows(args); /* before any is read */
    if (status) return status;
    if (memory == RF_MEMORY_DEVICE && c->forward.x_memory != RF_MEMORY_DEVICE)
        return rfi_error(RF_INVALID_ARGUMENT, "rows_memory is RF_MEMORY_DEVICE; expected x there, too");
    for (size_t i = 0; i < args->num_rows && memory == RF_MEMORY_HOST; i++)
        if (args->rows[i] < 0 || args->rows[i] >= c->batch)
            return rfi_error(RF_INVALID_ARGUMENT, "rows[%zu] is %lld; expected a row of x, of which there are %lld", i,
                (long long)args->rows[i], (long long)c->batch);
    c->forward.wanted = args->rows;
    c->forward.wanted_memory = memory;
    c->wanted = (rows){(uintptr_t)args->rows, (int64_t)args->num_rows, sizeof(int64_t), sizeof(int64_t)};
    return RF_OK;
}

static rf_status take_output(const rf_model *model, int index, const names *name, const rfi_output *given, call *c) {
    const rfi_result_part *part = &model->spec.plan.outputs[index];
    const rfi_branch *branch = &model->spec.plan.branches[part->branch];
    const int64_t width = branch->gathers ? c->values[branch->row - 1].columns : branch->width;
    rfi_output *out = &c->outputs[index];
    *out = *given;
    if (!out->ld) out->ld = width;
    if (!out->dtype) out->dtype = part->is_index ? RF_INT64 : model->spec.y_dtype;
    if (part->is_index && out->dtype != RF_INT64)
        return rfi_error(RF_INVALID_ARGUMENT, "%s is %s (%d); expected RF_INT64: %s %s", name->dtype,
            rfi_dtype_name(out->dtype), (int)out->dtype, part->name,
            part->part        ? "are columns"
                : branch->row ? "is a number of columns"
                              : "is a column");
    rf_status status = part->is_index ? RF_OK : check_float(name, out->dtype);
    size_t item = part->is_index ? sizeof(int64_t) : rfi_dtype_size(out->dtype);
    if (!status)
        status = check_matrix(name, out->data, c->forward.batch, width, &out->ld, out->dtype, item, &c->results[index]);
    return status;
}

static rf_status take_states(const rf_model *model, const rf_forward_args *args, call *c) {
    const rfi_plan *plan = &model->spec.plan;
    rf_states given;
    rf_status status = rfi_sized_read("args.states", "rf_states", args->states, &given, sizeof given);
    if (!status && (args->y || args->results))
        return rfi_error(
            RF_INVALID_ARGUMENT, "args.%s and args.states: expected one of them, got both", args->y ? "y" : "results");
    if (!status) status = rfi_states_supported(model);
    if (!status) status = rfi_states_check(model, "args.states", &given, &plan->columns, c->forward.batch);
    if (status) return status;
    c->forward.states = given.data;
    c->forward.states_memory = memory_of(given.memory);
    c->states = (rows){.first = (uintptr_t)given.data,
        .count = rfi_shard_groups(&plan->columns) ? c->forward.batch : 0,
        .row = rfi_states_row_bytes(plan, &plan->columns),
        .step = rfi_states_row_bytes(plan, &plan->columns)};
    return RF_OK;
}

static rf_status take_results(const rf_model *model, const rf_forward_args *args, call *c) {
    const rfi_plan *plan = &model->spec.plan;
    if (args->states) return take_states(model, args, c);
    if (!args->results && args->num_results)
        return rfi_error(RF_INVALID_ARGUMENT, "args.results is NULL, and args.num_results %zu", args->num_results);
    if (!args->results && plan->num_outputs > 1)
        return rfi_error(RF_INVALID_ARGUMENT,
            "the chain has %d results; expected them in args.results of rf_model_forward_ex", plan->num_outputs);
    if (!args->results) {
        const rfi_output y = {args->y, args->ldy, (rf_dtype)args->y_dtype, memory_of(args->y_memory)};
        return take_output(model, 0, &y_names, &y, c);
    }
    if (args->y) return rfi_error(RF_INVALID_ARGUMENT, "args.y and args.results: expected one of them, got both");
    if (args->num_results != (size_t)plan->num_outputs)
        return rfi_error(RF_INVALID_ARGUMENT, "args.num_results is %zu; the chain has %d result%s", args->num_results,
            plan->num_outputs, plan->num_outputs == 1 ? "" : "s");
    for (int i = 0; i < plan->num_outputs; i++) {
        rf_result given;
        const names name = names_of("results", i);
        rf_status status = rfi_sized_item("results", "rf_result", args->results, (size_t)i, &given, sizeof given);
        if (status) return status;
        const rfi_output out = {given.data, given.ld, (rf_dtype)given.dtype, memory_of(given.memory)};
        status = take_output(model, i, &name, &out, c);
        if (status) return status;
    }
    return RF_OK;
}

/* Goes to the row input of that name. */
static rf_status find_row_input(const rfi_plan *plan, const rf_row_input *given, int index, int *found) {
    if (!given->name) return rfi_error(RF_INVALID_ARGUMENT, "row_inputs[%d].name is NULL", index);
    for (*found = 0; *found < plan->num_rows; ++*found)
        if (!strcmp(plan->rows[*found].name, given->name)) return RF_OK;
    return rfi_error(RF_INVALID_ARGUMENT, "row_inputs[%d] is \"%.40s\", and the chain names no #%.40s", index,
        given->name, given->name);
}

static rf_status check_row_dtype(const rf_model *model, const rfi_row_input *row, rf_dtype dtype) {
    if (row->is_column ? !rfi_index_size(dtype) : !rfi_dtype_size(dtype))
        return rfi_error(RF_INVALID_ARGUMENT, "row input \"%s\" has dtype %s (%d); expected %s", row->name,
            rfi_dtype_name(dtype), (int)dtype, row->is_column ? "RF_INT64 or RF_INT32" : "a floating one");
    if (!row->is_column && (dtype == RF_FLOAT64) != (model->spec.weight_dtype == RF_FLOAT64))
        return rfi_error(RF_INVALID_ARGUMENT,
            "row input \"%s\" is %s and the weights are %s; float64 goes with float64 only", row->name,
            rfi_dtype_name(dtype), rfi_dtype_name(model->spec.weight_dtype));
    return RF_OK;
}

static rf_status take_row_input(const rf_model *model, const rf_forward_args *args, int index, call *c) {
    const rfi_plan *plan = &model->spec.plan;
    rf_row_input given;
    int found = 0;
    const names name = names_of("row_inputs", index);
    rf_status status =
        rfi_sized_item("row_inputs", "rf_row_input", args->row_inputs, (size_t)index, &given, sizeof given);
    if (!status) status = find_row_input(plan, &given, index, &found);
    if (status) return status;
    const rfi_row_input *row = &plan->rows[found];
    rfi_row_values *to = &c->values[found];
    if (to->dtype) return rfi_error(RF_INVALID_ARGUMENT, "row input \"%s\" is given twice", row->name);
    if (given.length != c->batch)
        return rfi_error(RF_INVALID_ARGUMENT, "row input \"%s\" has length %lld; expected the batch, %lld", row->name,
            (long long)given.length, (long long)c->batch);
    const int64_t columns = given.columns ? given.columns : 1;
    if (columns < 1 || (columns > 1 && !row->several))
        return rfi_error(RF_INVALID_ARGUMENT, "row input \"%s\" has %lld columns; expected %s", row->name,
            (long long)columns, row->several ? "1 or more, or 0 for 1" : "1: one value for each row");
    *to = (rfi_row_values){
        given.data, given.ld ? given.ld : columns, columns, (rf_dtype)given.dtype, memory_of(given.memory)};
    if (!to->dtype) to->dtype = row->is_column ? RF_INT64 : model->spec.compute_dtype;
    status = check_row_dtype(model, row, to->dtype);
    if (!status) status = check_memory(model, &name, to->memory);
    if (!status && c->forward.wanted && c->forward.wanted_memory == RF_MEMORY_DEVICE && to->memory == RF_MEMORY_HOST)
        status = rfi_error(
            RF_INVALID_ARGUMENT, "rows_memory is RF_MEMORY_DEVICE; expected row input \"%s\" there, too", row->name);
    if (status) return status;
    const size_t item = row->is_column ? rfi_index_size(to->dtype) : rfi_dtype_size(to->dtype);
    return check_matrix(&name, to->data, c->batch, columns, &to->ld, to->dtype, item, &c->row_inputs[found]);
}

static rf_status take_row_inputs(const rf_model *model, const rf_forward_args *args, call *c) {
    const rfi_plan *plan = &model->spec.plan;
    if (!args->row_inputs && args->num_row_inputs)
        return rfi_error(
            RF_INVALID_ARGUMENT, "args.row_inputs is NULL, and args.num_row_inputs %zu", args->num_row_inputs);
    /* More than there are cannot all be of different names. */
    for (size_t i = 0; i < args->num_row_inputs; i++) {
        rf_status status = take_row_input(model, args, (int)i, c);
        if (status) return status;
    }
    for (int i = 0; i < plan->num_rows; i++)
        if (!c->values[i].dtype)
            return rfi_error(RF_INVALID_ARGUMENT,
                "the chain names the row input #%s; expected it in args.row_inputs of rf_model_forward_ex",
                plan->rows[i].name);
    return RF_OK;
}

/* Columns in host memory, before anything is computed. */
static rf_status check_columns(const rfi_plan *plan, const rfi_branch *branch, const rfi_forward *forward) {
    if (!branch->row || forward->rows[branch->row - 1].memory != RF_MEMORY_HOST) return RF_OK;
    const rfi_row_values *row = &forward->rows[branch->row - 1];
    for (int64_t i = 0; i < forward->batch * row->columns; i++) {
        const int64_t at = rfi_row_of_x(forward, i / row->columns), place = i % row->columns;
        const int64_t column = rfi_load_index(row->data, row->dtype, at * row->ld + place);
        if ((column >= 0 && column < plan->columns.total) || column == branch->ignore) continue;
        char ignored[60] = "", where[40] = "";
        if (branch->ignore != RFI_IGNORES_NONE)
            snprintf(ignored, sizeof ignored, ", or %lld to ignore the row", (long long)branch->ignore);
        if (branch->gathers) snprintf(where, sizeof where, " at place %lld", (long long)place);
        return rfi_error(RF_INVALID_ARGUMENT,
            "row input \"%s\" is %lld in row %lld%s; %s expects a column from 0 to %lld%s",
            plan->rows[branch->row - 1].name, (long long)column, (long long)at, where, branch->name,
            (long long)plan->columns.total - 1, ignored);
    }
    return RF_OK;
}

static rf_status check_overlaps(const rfi_plan *plan, const rf_forward_args *args, const call *c) {
    if (overlap(&c->x, &c->states))
        return rfi_error(RF_INVALID_ARGUMENT, "args.states overlaps x; expected separate buffers");
    for (int k = 0; k < plan->num_rows; k++)
        if (overlap(&c->row_inputs[k], &c->states))
            return rfi_error(RF_INVALID_ARGUMENT, "args.states overlaps row input \"%s\"; expected separate buffers",
                plan->rows[k].name);
    if (!args->results && overlap(&c->x, &c->results[0]))
        return rfi_error(RF_INVALID_ARGUMENT, "y overlaps x; expected separate buffers");
    for (int i = 0; i < plan->num_outputs; i++) {
        if (overlap(&c->x, &c->results[i]))
            return rfi_error(RF_INVALID_ARGUMENT, "results[%d] overlaps x; expected separate buffers", i);
        if (overlap(&c->wanted, &c->results[i]))
            return rfi_error(RF_INVALID_ARGUMENT, "results[%d] overlaps rows; expected separate buffers", i);
        for (int k = 0; k < plan->num_rows; k++)
            if (overlap(&c->row_inputs[k], &c->results[i]))
                return rfi_error(RF_INVALID_ARGUMENT,
                    "results[%d] overlaps row input \"%s\"; expected separate buffers", i, plan->rows[k].name);
        for (int k = 0; k < i; k++)
            if (overlap(&c->results[k], &c->results[i]))
                return rfi_error(
                    RF_INVALID_ARGUMENT, "results[%d] overlaps results[%d]; expected separate buffers", i, k);
    }
    return RF_OK;
}

static rf_status check_memories(const rf_model *model, const rf_forward_args *args, const call *c) {
    rf_status status = check_memory(model, &x_names, c->forward.x_memory);
    for (int i = 0; i < model->spec.plan.num_outputs && !args->states && !status; i++) {
        const names name = args->results ? names_of("results", i) : y_names;
        status = check_memory(model, &name, c->outputs[i].memory);
    }
    return status;
}

/* Has the model all columns that the results need? */
static rf_status check_whole(const rf_model *model, const rf_forward_args *args) {
    const rfi_plan *plan = &model->spec.plan;
    if (!args->states && rfi_plan_is_shard(plan) && plan->num_folds)
        return rfi_error(RF_INVALID_ARGUMENT,
            "the model holds columns %lld to %lld of %lld, and has no results of its own; expected args.states, or rf_model_forward_sharded",
            (long long)plan->columns.first, (long long)(plan->columns.first + plan->columns.count) - 1,
            (long long)plan->columns.total);
    return RF_OK;
}

static rf_status check_call(const rf_model *model, const rf_forward_args *args, call *c) {
    const rfi_plan *plan = &model->spec.plan;
    const rfi_forward *f = &c->forward;
    rf_status status = take_x(model, args, c);
    if (!status) status = take_wanted(model, args, c);
    if (!status) status = take_row_inputs(model, args, c); /* which say how wide some results are */
    if (!status) status = take_results(model, args, c);
    if (!status) status = check_memories(model, args, c);
    if (status) return status;
    status = check_types(model, f);
    if (!status) status = check_overlaps(plan, args, c);
    if (!status) status = check_workspace(model, f);
    for (int b = 0; b < plan->num_branches && !status; b++) status = check_columns(plan, &plan->branches[b], f);
    return status;
}

/* All of the logits, of which there are none. */
static int has_no_columns(const rfi_plan *plan) { return !plan->branches[0].reduction && !plan->width; }

static int64_t rows_of_results(const rf_forward_args *args) {
    return args->rows ? (int64_t)args->num_rows : args->batch;
}

rf_status rf_model_forward_ex(const rf_model *model, const rf_forward_args *given) {
    RFI_GUARDED;
    rf_forward_args own, *args = &own;
    rf_status status = rfi_sized_read("args", "rf_forward_args", given, args, sizeof *args);
    if (!status) status = check_ready(model, args->batch);
    if (status) return status;
    call c = {.batch = args->batch,
        .forward = {
            .batch = rows_of_results(args),
            .x_rows = args->batch,
            .outputs = c.outputs,
            .rows = c.values,
            .workspace = args->workspace,
            .workspace_size = args->workspace_size,
            .stream = args->stream,
        }};
    status = check_whole(model, args);
    if (!status) status = check_call(model, args, &c);
    if (status || !c.forward.batch || has_no_columns(&model->spec.plan)) return status;
    if (args->states && !model->spec.plan.out_features) return RF_OK;
    c.forward.y = c.outputs[0].data;
    c.forward.ldy = c.outputs[0].ld;
    c.forward.y_dtype = c.outputs[0].dtype;
    c.forward.y_memory = c.outputs[0].memory;
    return model->backend->forward(&model->spec, model->prepared, &c.forward);
}

rf_status rf_model_forward(const rf_model *model, const void *x, int64_t batch, void *y) {
    const rf_forward_args args = {.size = sizeof args, .x = x, .y = y, .batch = batch};
    return rf_model_forward_ex(model, &args);
}

rf_status rfi_forward_check_sharded(const rf_model *model, const rf_forward_args *args) {
    rf_status status = check_ready(model, args->batch);
    if (!status) status = rfi_states_supported(model);
    if (!status && args->states)
        return rfi_error(RF_INVALID_ARGUMENT, "args.states is not NULL; expected the results, or y");
    if (!status) status = check_no_wanted(args);
    if (status) return status;
    double states; /* stands for those that the workspace is for */
    call c = {.batch = args->batch,
        .forward = {
            .batch = args->batch,
            .outputs = c.outputs,
            .rows = c.values,
            .workspace = args->workspace,
            .workspace_size = args->workspace_size,
            .states = &states,
        }};
    return check_call(model, args, &c);
}

/* Of one part, which begins at column *next; moves that on. */
static rf_status take_part(const rf_model *model, const rf_states *parts, size_t index, int64_t batch, int64_t *next,
    rfi_part *out, rows *at) {
    const rfi_plan *plan = &model->spec.plan;
    rf_states given;
    char name[40];
    snprintf(name, sizeof name, "parts[%zu]", index);
    rf_status status = rfi_sized_item("parts", "rf_states", parts, index, &given, sizeof given);
    if (status) return status;
    if (given.first_column != *next || given.num_columns < 0 || given.num_columns > plan->columns.total - *next)
        return rfi_error(RF_INVALID_ARGUMENT,
            "parts[%zu] has %lld columns from column %lld on; expected them to begin with column %lld, of %lld", index,
            (long long)given.num_columns, (long long)given.first_column, (long long)*next,
            (long long)plan->columns.total);
    if (given.chain && given.chain != rfi_states_chain(model))
        return rfi_error(RF_INVALID_ARGUMENT,
            "parts[%zu] was written by a model of another chain, size or type; expected \"%.200s\" with in_features %lld and total_columns %lld",
            index, model->chain_text, (long long)plan->in_features, (long long)plan->columns.total);
    const rfi_shard columns = {given.first_column, given.num_columns, plan->columns.total};
    status = rfi_states_check(model, name, &given, &columns, batch);
    if (status) return status;
    *next += given.num_columns;
    *out = (rfi_part){given.data, rfi_shard_groups(&columns), memory_of(given.memory)};
    const int64_t row = rfi_states_row_bytes(plan, &columns);
    *at = (rows){(uintptr_t)given.data, row ? batch : 0, row, row};
    return RF_OK;
}

static rf_status check_part_overlaps(const rf_model *model, const call *c, const rows *part, size_t index) {
    for (int i = 0; i < model->spec.plan.num_outputs; i++)
        if (overlap(part, &c->results[i]))
            return rfi_error(
                RF_INVALID_ARGUMENT, "results[%d] overlaps parts[%zu]; expected separate buffers", i, index);
    return RF_OK;
}

static rf_status merge(const rf_model *model, const rf_states *parts, size_t num_parts, call *c, rfi_part *own) {
    int64_t next = 0;
    for (size_t i = 0; i < num_parts; i++) {
        rows at;
        rf_status status = take_part(model, parts, i, c->forward.batch, &next, &own[i], &at);
        if (!status) status = check_part_overlaps(model, c, &at, i);
        if (status) return status;
    }
    if (next != model->spec.plan.columns.total)
        return rfi_error(RF_INVALID_ARGUMENT, "the %zu parts have %lld columns; expected all %lld", num_parts,
            (long long)next, (long long)model->spec.plan.columns.total);
    return c->forward.batch ? model->backend->merge(&model->spec, &c->forward, own, num_parts) : RF_OK;
}

rf_status rf_states_merge(
    const rf_model *model, const rf_states *parts, size_t num_parts, const rf_forward_args *given) {
    RFI_GUARDED;
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_forward_args own, *args = &own;
    rf_status status = rfi_sized_read("args", "rf_forward_args", given, args, sizeof *args);
    if (status) return status;
    if (args->batch < 0)
        return rfi_error(RF_INVALID_ARGUMENT, "batch is %lld; expected 0 or more", (long long)args->batch);
    if (args->states)
        return rfi_error(RF_INVALID_ARGUMENT, "args.states is not NULL; expected the results, or y, of a merge");
    if (!parts && num_parts) return rfi_error(RF_INVALID_ARGUMENT, "parts is NULL, and num_parts %zu", num_parts);
    call c = {.batch = args->batch,
        .forward = {.batch = args->batch, .outputs = c.outputs, .rows = c.values, .stream = args->stream}};
    status = rfi_states_supported(model);
    if (!status) status = check_no_wanted(args);
    if (!status) status = take_row_inputs(model, args, &c);
    if (!status) status = take_results(model, args, &c);
    c.forward.x_memory = RF_MEMORY_HOST;
    if (!status) status = check_memories(model, args, &c);
    if (!status) status = check_overlaps(&model->spec.plan, args, &c);
    for (int b = 0; b < model->spec.plan.num_branches && !status; b++)
        status = check_columns(&model->spec.plan, &model->spec.plan.branches[b], &c.forward);
    if (status) return status;
    rfi_part *const taken = malloc((num_parts + 1) * sizeof *taken);
    if (!taken) return rfi_error(RF_OUT_OF_MEMORY, "no memory for a list of %zu parts", num_parts);
    status = merge(model, parts, num_parts, &c, taken);
    free(taken);
    return status;
}

static rf_status workspace_size(const rf_model *model, const rfi_forward *forward, size_t *bytes) {
    size_t size = 0;
    if (!bytes) return rfi_error(RF_INVALID_ARGUMENT, "bytes is NULL");
    rf_status status =
        forward->batch ? model->backend->workspace_size(&model->spec, model->prepared, forward, &size) : RF_OK;
    if (!status) *bytes = size;
    return status;
}

rf_status rf_model_workspace_size(const rf_model *model, int64_t batch, size_t *bytes) {
    RFI_GUARDED;
    const rfi_forward forward = {.batch = batch};
    rf_status status = check_ready(model, batch);
    return status ? status : workspace_size(model, &forward, bytes);
}

/* What a call says of x alone. */
static rf_status take_checked_x(const rf_model *model, const rf_forward_args *args, call *c) {
    rf_status status = take_x(model, args, c);
    if (!status) status = check_types(model, &c->forward);
    return status ? status : check_memory(model, &x_names, c->forward.x_memory);
}

rf_status rf_model_workspace_size_ex(const rf_model *model, const rf_forward_args *given, size_t *bytes) {
    RFI_GUARDED;
    rf_forward_args own, *args = &own;
    rf_status status = rfi_sized_read("args", "rf_forward_args", given, args, sizeof *args);
    if (!status) status = check_ready(model, args->batch);
    if (!status) status = check_num_rows(args);
    if (status) return status;
    call c = {.batch = args->batch, .forward = {.batch = rows_of_results(args)}};
    const void *const x = args->x;
    /* Any address that is not NULL stands for x where there is none. */
    if (!x) args->x = &own;
    status = take_checked_x(model, args, &c);
    c.forward.x = x;
    c.forward.wanted = args->rows;
    double states; /* stands for those of the call */
    c.forward.states = args->states ? &states : NULL;
    return status ? status : workspace_size(model, &c.forward, bytes);
}

rf_status rf_model_count_ways(const rf_model *model, const rf_forward_args *given, rf_ways *ways) {
    RFI_GUARDED;
    rf_forward_args own, *args = &own;
    rf_status status = rfi_sized_read("args", "rf_forward_args", given, args, sizeof *args);
    if (!status) status = rfi_sized_check("ways", "rf_ways", ways, sizeof *ways);
    if (!status) status = check_ready(model, args->batch);
    if (status) return status;
    call c = {.batch = args->batch,
        .forward = {
            .batch = args->batch,
            .workspace = args->workspace,
            .workspace_size = args->workspace_size,
            .stream = args->stream,
        }};
    status = take_checked_x(model, args, &c);
    if (!status) status = check_workspace(model, &c.forward);
    rf_ways found = {.rows = args->batch};
    if (!status && args->batch && model->backend->count_ways)
        status = model->backend->count_ways(&model->spec, model->prepared, &c.forward, &found);
    if (!status) rfi_sized_write(ways, &found, sizeof found);
    return status;
}
