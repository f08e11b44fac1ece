/* SPDX-License-Identifier: MIT */
/* One layer in parts on the device: the states of a shard's columns out, those of all columns in. */
#include "shards.h"

#include <string.h>

#include "device.h"
#include "dtype.h"
#include "error.h"
#include "prepared.h"
#include "sizes.h"

/* Of the branches that find their state in a fold, that whose reduction it has. */
static int has_fold(const rfi_plan *plan, const rfi_cuda_pass *pass, int fold) {
    for (int i = 0; i < pass->num_branches; i++)
        if (pass->branches[i] == plan->folds[fold].branch) return 1;
    return 0;
}

int rfi_cuda_has_folds(const rfi_plan *plan, const rfi_cuda_pass *pass) {
    for (int f = 0; f < plan->num_folds; f++)
        if (has_fold(plan, pass, f)) return 1;
    return 0;
}

rf_status rfi_cuda_write_states(
    const rfi_spec *spec, const rfi_cuda_pass *pass, const rfi_cuda_fold *fold, double *states, cudaStream_t stream) {
    const rfi_plan *plan = &spec->plan;
    rfi_cuda_grouping g = {
        .partials = fold->visitor.partials,
        .num_partials = fold->visitor.num_partials,
        .irregular = fold->product.irregular,
        .columns = fold->visitor.columns,
        .picked = fold->visitor.picked,
        .squares = fold->visitor.squares,
        .states = states,
        .batch = fold->product.batch,
        .out_features = plan->out_features,
        .first_column = plan->columns.first,
        .groups = (int32_t)rfi_shard_groups(&plan->columns),
        .words = rfi_plan_words(plan),
        .unit = fold->visitor.fold_columns,
        .reduction = pass->reduction,
        .wide = spec->compute_dtype == RF_FLOAT64,
    };
    for (int i = 0; i <= g.groups; i++)
        g.borders[i] = least(rfi_shard_border(&plan->columns, i) * RFI_GROUP_UNIT, plan->out_features);
    for (int f = 0; f < plan->num_folds; f++)
        if (has_fold(plan, pass, f))
            g.folds[g.num_folds++] = (rfi_cuda_group_fold){plan->folds[f].reduction, rfi_plan_words_before(plan, f)};
    return rfi_cuda_status(rfi_cuda_launch_grouping(&g, stream), "joining the states of groups");
}

/* Memory of one call, from the device's pool. */
rf_status rfi_cuda_take_memory(const rfi_spec *spec, size_t bytes, void *stream, void **memory) {
    cudaMemPool_t pool;
    int before;
    rf_status status = rfi_cuda_enter(spec->device, &before);
    if (status) return status;
    status = rfi_cuda_take_pool(spec->device, &pool);
    if (!status) {
        *memory = NULL;
        if (bytes)
            status = rfi_cuda_status(
                cudaMallocFromPoolAsync(memory, bytes, pool, stream), "memory for states on the device");
        if (status) rfi_cuda_leave_pool(spec->device);
    }
    rfi_cuda_leave(before);
    return status;
}

void rfi_cuda_give_back(const rfi_spec *spec, void *stream, void *memory) {
    int before;
    const int entered = rfi_cuda_enter(spec->device, &before) == RF_OK;
    /* Memory knows its device, whichever is the current one. */
    if (memory && cudaFreeAsync(memory, stream) != cudaSuccess)
        cudaGetLastError(); /* of a device that failed: what waits for the stream reports it */
    rfi_cuda_leave_pool(spec->device);
    if (entered) rfi_cuda_leave(before);
}

/* What a merge has on the device besides what the caller has there: offsets. */
typedef struct room {
    size_t states, rows[RF_MAX_OPS], results[RF_MAX_RESULTS], total;
    int64_t row_bytes; /* of the states of all parts, if they are gathered there; else 0 */
} room;

static rf_status take(room *r, int64_t rows, int64_t bytes, size_t *at) {
    int64_t size;
    *at = r->total;
    if (__builtin_mul_overflow(rows, bytes, &size) || size > INT64_MAX / 4 || r->total > SIZE_MAX / 4)
        return rfi_error(RF_OUT_OF_MEMORY, "the states of %lld rows are more than memory can hold", (long long)rows);
    r->total += (size_t)round_up(size, 256);
    return RF_OK;
}

static size_t item_of_row(const rfi_spec *spec, const rfi_forward *call, int row) {
    const rf_dtype dtype = call->rows[row].dtype;
    return spec->plan.rows[row].is_column ? rfi_index_size(dtype) : rfi_dtype_size(dtype);
}

static size_t item_of_output(const rfi_output *out) { return rfi_dtype_size(out->dtype) + rfi_index_size(out->dtype); }

/* Whether all states are where the kernel can read them: then `m` says where. Those that one all_gather has brought lie
 * at even distances, and are few runs however many parts there are: of parts that are smaller than a group only those
 * across one of its borders have another number of groups than their neighbours. */
static int find_runs(const rfi_part *parts, size_t num_parts, rfi_cuda_merging *m) {
    rfi_cuda_run *last = NULL;
    m->num_runs = 0;
    for (size_t i = 0; i < num_parts; i++) {
        if (!parts[i].groups) continue;
        if (parts[i].memory == RF_MEMORY_HOST) return 0;
        const intptr_t word = sizeof(double);
        const int64_t away = last ? ((intptr_t)parts[i].states - (intptr_t)last->states) / word : 0;
        if (last && last->groups == parts[i].groups && last->count < INT32_MAX &&
            (last->count == 1 || away == last->count * last->stride)) {
            if (last->count++ == 1) last->stride = away;
            continue;
        }
        if (m->num_runs == RFI_CUDA_MERGED_RUNS) return 0;
        last = &m->runs[m->num_runs++];
        *last = (rfi_cuda_run){.states = parts[i].states, .groups = (int32_t)parts[i].groups, .count = 1};
    }
    return 1;
}

/* States of the host, or of many parts that lie anywhere, are gathered first. */
static rf_status plan_room(
    const rfi_spec *spec, const rfi_forward *call, const rfi_part *parts, size_t num_parts, int gathers, room *r) {
    int64_t groups = 0;
    for (size_t i = 0; i < num_parts; i++) groups += parts[i].groups;
    rf_status status = RF_OK;
    if (gathers) {
        r->row_bytes = groups * rfi_plan_words(&spec->plan) * (int64_t)sizeof(double);
        status = take(r, call->batch, r->row_bytes, &r->states);
    }
    for (int i = 0; i < spec->plan.num_rows && !status; i++)
        if (call->rows[i].memory == RF_MEMORY_HOST)
            status = take(r, call->batch, (int64_t)item_of_row(spec, call, i), &r->rows[i]);
    for (int b = 0; b < spec->plan.num_branches && !status; b++)
        if (call->outputs[b].memory == RF_MEMORY_HOST)
            status = take(r, call->batch, (int64_t)item_of_output(&call->outputs[b]), &r->results[b]);
    return status;
}

static rf_status bring_parts(const rfi_spec *spec, const rfi_forward *call, const rfi_part *parts, size_t num_parts,
    const room *r, char *own, rfi_cuda_merging *m) {
    rf_status status = RF_OK;
    const size_t word = sizeof(double), group = (size_t)rfi_plan_words(&spec->plan) * word, all = (size_t)r->row_bytes;
    size_t at = 0;
    for (size_t i = 0; i < num_parts && !status; i++) {
        const size_t width = (size_t)parts[i].groups * group;
        if (!width) continue;
        status = rfi_cuda_status(
            cudaMemcpy2DAsync(own + r->states + at, all, parts[i].states, width, width, (size_t)call->batch,
                parts[i].memory == RF_MEMORY_HOST ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice, call->stream),
            "gathering states");
        at += width;
    }
    m->num_runs = 1;
    m->runs[0] =
        (rfi_cuda_run){.states = (const double *)(own + r->states), .groups = (int32_t)(all / group), .count = 1};
    return status;
}

static rf_status bring_rows(
    const rfi_spec *spec, const rfi_forward *call, const room *r, char *own, rfi_cuda_merging *m) {
    rf_status status = RF_OK;
    for (int i = 0; i < spec->plan.num_rows && !status; i++) {
        const rfi_row_values *values = &call->rows[i];
        m->rows[i] = (rfi_cuda_given){values->data, values->ld, values->dtype};
        if (values->memory != RF_MEMORY_HOST) continue;
        const size_t item = item_of_row(spec, call, i);
        m->rows[i].data = own + r->rows[i];
        m->rows[i].ld = 1;
        status = rfi_cuda_status(cudaMemcpy2DAsync(own + r->rows[i], item, values->data, (size_t)values->ld * item,
                                     item, (size_t)call->batch, cudaMemcpyHostToDevice, call->stream),
            "copying a row input to the device");
    }
    return status;
}

/* One result of all rows. */
static rf_status merge_branch(const rfi_spec *spec, const rfi_forward *call, int b, void *staged, rfi_cuda_merging *m) {
    const rfi_branch *branch = &spec->plan.branches[b];
    const rfi_output *out = &call->outputs[b];
    m->y = staged ? staged : out->data;
    m->ldy = staged ? 1 : out->ld;
    m->y_dtype = out->dtype;
    m->ignore = branch->ignore;
    m->count = branch->count;
    m->reduction = branch->reduction;
    m->word = rfi_plan_words_before(&spec->plan, branch->fold);
    m->asks = branch->row - 1;
    m->num_steps = branch->post.count;
    for (int i = 0; i < branch->post.count; i++) {
        const rfi_step *step = &branch->post.at[i];
        m->steps[i] = (rfi_cuda_number_step){step->a, step->b, (int16_t)step->kind, (int16_t)(step->row - 1)};
    }
    rf_status status = rfi_cuda_status(rfi_cuda_launch_merging(m, call->stream), "merging states");
    if (status || !staged) return status;
    const size_t item = item_of_output(out);
    return rfi_cuda_status(cudaMemcpy2DAsync(out->data, (size_t)out->ld * item, staged, item, item, (size_t)call->batch,
                               cudaMemcpyDeviceToHost, call->stream),
        "copying results to the host");
}

/* Kernels read and write all of it. */
static rf_status check_pointers(
    const rfi_spec *spec, const rfi_forward *call, const rfi_part *parts, size_t num_parts, int *host) {
    const rfi_plan *plan = &spec->plan;
    rf_status status = RF_OK;
    *host = 0;
    for (size_t i = 0; i < num_parts && !status; i++) {
        if (!parts[i].groups) continue;
        if (parts[i].memory == RF_MEMORY_HOST) *host = 1;
        else status = rfi_cuda_check_pointer("the data of a part", parts[i].states, spec->device);
    }
    for (int b = 0; b < plan->num_branches && !status; b++) {
        if (call->outputs[b].memory == RF_MEMORY_HOST) *host = 1;
        else status = rfi_cuda_check_pointer(plan->branches[b].name, call->outputs[b].data, spec->device);
    }
    for (int i = 0; i < plan->num_rows && !status; i++) {
        if (call->rows[i].memory == RF_MEMORY_HOST) *host = 1;
        else status = rfi_cuda_check_pointer(plan->rows[i].name, call->rows[i].data, spec->device);
    }
    return status;
}

rf_status rfi_cuda_merge(const rfi_spec *spec, const rfi_forward *call, const rfi_part *parts, size_t num_parts) {
    rfi_cuda_merging m = {
        .batch = call->batch,
        .total_columns = spec->plan.columns.total,
        .wide = spec->compute_dtype == RF_FLOAT64,
        .words = rfi_plan_words(&spec->plan),
    };
    room r = {0};
    void *own = NULL;
    int before, host;
    const int gathers = !find_runs(parts, num_parts, &m);
    rf_status status = plan_room(spec, call, parts, num_parts, gathers, &r);
    if (!status) status = rfi_cuda_enter(spec->device, &before);
    if (status) return status;
    status = check_pointers(spec, call, parts, num_parts, &host);
    const int taken = !status && r.total && !(status = rfi_cuda_take_memory(spec, r.total, call->stream, &own));
    if (!status && gathers) status = bring_parts(spec, call, parts, num_parts, &r, own, &m);
    if (!status) status = bring_rows(spec, call, &r, own, &m);
    for (int b = 0; b < spec->plan.num_branches && !status; b++)
        status = merge_branch(
            spec, call, b, call->outputs[b].memory == RF_MEMORY_HOST ? (char *)own + r.results[b] : NULL, &m);
    if (host) {
        rf_status drained = rfi_cuda_status(cudaStreamSynchronize(call->stream), "waiting for the results");
        if (!status) status = drained;
    }
    if (taken) rfi_cuda_give_back(spec, call->stream, own);
    rfi_cuda_leave(before);
    return status;
}
