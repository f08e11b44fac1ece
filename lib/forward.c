/* SPDX-License-Identifier: MIT */
/* Forward: everything is checked here, and nothing is touched before all checks have passed. */
#include "dtype.h"
#include "error.h"
#include "guard.h"
#include "model.h"
#include "sized.h"

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

/* A (batch, columns) buffer: leading dimension, size and alignment. One without rows or columns is never touched: it
 * may be anything. */
static rf_status check_matrix(
    const char *name, const void *data, int64_t batch, int64_t columns, int64_t ld, rf_dtype dtype, rows *out) {
    if (!rfi_dtype_size(dtype))
        return rfi_error(RF_INVALID_ARGUMENT, "%s_dtype is %d, which is no rf_dtype", name, (int)dtype);
    if (ld < columns)
        return rfi_error(
            RF_INVALID_ARGUMENT, "ld%s is %lld; expected %lld or more", name, (long long)ld, (long long)columns);
    int64_t elements = rfi_size_mul(batch, ld);
    int64_t item = (int64_t)rfi_dtype_size(dtype);
    if (elements < 0 || rfi_size_mul(elements, item) < 0)
        return rfi_error(
            RF_INVALID_ARGUMENT, "batch %lld times ld%s %lld overflows", (long long)batch, name, (long long)ld);
    *out = (rows){.first = (uintptr_t)data, .count = columns ? batch : 0, .row = columns * item, .step = ld * item};
    if (!out->count) return RF_OK;
    if (!data) return rfi_error(RF_INVALID_ARGUMENT, "%s is NULL", name);
    if ((uintptr_t)data % (uintptr_t)item)
        return rfi_error(RF_INVALID_ARGUMENT, "%s is not aligned to its type, %s", name, rfi_dtype_name(dtype));
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

static rf_status check_memory(const rf_model *model, const char *name, rf_memory memory) {
    if (memory != RF_MEMORY_HOST && memory != RF_MEMORY_DEVICE)
        return rfi_error(RF_INVALID_ARGUMENT, "%s_memory is %d, which is no rf_memory", name, (int)memory);
    if (memory == RF_MEMORY_DEVICE && !model->backend->is_cuda)
        return rfi_error(RF_INVALID_ARGUMENT,
            "%s_memory is RF_MEMORY_DEVICE, but the model runs on backend \"%s\", which has host memory only", name,
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

static rf_status check_call(const rf_model *model, const rfi_forward *call) {
    const rfi_plan *plan = &model->spec.plan;
    rows x, y;
    rf_status status = check_matrix("x", call->x, call->batch, plan->in_features, call->ldx, call->x_dtype, &x);
    if (!status) status = check_matrix("y", call->y, call->batch, plan->width, call->ldy, call->y_dtype, &y);
    if (!status) status = check_memory(model, "x", call->x_memory);
    if (!status) status = check_memory(model, "y", call->y_memory);
    if (status) return status;
    status = check_types(model, call);
    if (status) return status;
    if (overlap(&x, &y)) return rfi_error(RF_INVALID_ARGUMENT, "y overlaps x; expected separate buffers");
    return check_workspace(model, call);
}

/* The arguments with their defaults filled in. */
static rfi_forward call_of(const rf_model *model, const rf_forward_args *args) {
    const rfi_spec *spec = &model->spec;
    return (rfi_forward){
        .x = args->x,
        .y = args->y,
        .batch = args->batch,
        .ldx = args->ldx ? args->ldx : spec->plan.in_features,
        .ldy = args->ldy ? args->ldy : spec->plan.width,
        .x_dtype = args->x_dtype ? (rf_dtype)args->x_dtype : spec->x_dtype,
        .y_dtype = args->y_dtype ? (rf_dtype)args->y_dtype : spec->y_dtype,
        .x_memory = args->x_memory ? (rf_memory)args->x_memory : RF_MEMORY_HOST,
        .y_memory = args->y_memory ? (rf_memory)args->y_memory : RF_MEMORY_HOST,
        .workspace = args->workspace,
        .workspace_size = args->workspace_size,
        .stream = args->stream,
    };
}

rf_status rf_model_forward_ex(const rf_model *model, const rf_forward_args *given) {
    RFI_GUARDED;
    rf_forward_args own, *args = &own;
    rf_status status = rfi_sized_read("args", "rf_forward_args", given, args, sizeof *args);
    if (!status) status = check_ready(model, args->batch);
    if (status) return status;
    const rfi_forward call = call_of(model, args);
    status = check_call(model, &call);
    if (status || !call.batch || !model->spec.plan.width) return status;
    return model->backend->forward(&model->spec, model->prepared, &call);
}

rf_status rf_model_forward(const rf_model *model, const void *x, int64_t batch, void *y) {
    const rf_forward_args args = {.size = sizeof args, .x = x, .y = y, .batch = batch};
    return rf_model_forward_ex(model, &args);
}

static rf_status workspace_size(const rf_model *model, const rfi_forward *call, size_t *bytes) {
    size_t size = 0;
    if (!bytes) return rfi_error(RF_INVALID_ARGUMENT, "bytes is NULL");
    rf_status status = call->batch ? model->backend->workspace_size(&model->spec, model->prepared, call, &size) : RF_OK;
    if (!status) *bytes = size;
    return status;
}

rf_status rf_model_workspace_size(const rf_model *model, int64_t batch, size_t *bytes) {
    RFI_GUARDED;
    const rfi_forward call = {.batch = batch};
    rf_status status = check_ready(model, batch);
    return status ? status : workspace_size(model, &call, bytes);
}

rf_status rf_model_workspace_size_ex(const rf_model *model, const rf_forward_args *given, size_t *bytes) {
    RFI_GUARDED;
    rf_forward_args own, *args = &own;
    rows x;
    rf_status status = rfi_sized_read("args", "rf_forward_args", given, args, sizeof *args);
    if (!status) status = check_ready(model, args->batch);
    if (status) return status;
    const rfi_forward call = call_of(model, args);
    /* Any address that is not NULL stands for x where there is none. */
    status =
        check_matrix("x", call.x ? call.x : &x, call.batch, model->spec.plan.in_features, call.ldx, call.x_dtype, &x);
    if (!status) status = check_types(model, &call);
    if (!status) status = check_memory(model, "x", call.x_memory);
    return status ? status : workspace_size(model, &call, bytes);
}
