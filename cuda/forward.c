/* SPDX-License-Identifier: MIT */
/* Forward: brings what the call has in host memory, or among other rows, to the device, and results back. */
#include "run.h"

#include <stdlib.h>

#include "answers.h"
#include "device.h"
#include "dtype.h"
#include "error.h"
#include "shards.h"

/* Rows [first, first + rows) of those that a call wants of host memory, `width` bytes each and `step` bytes from one to
 * the next, to the device: as few copies as there are runs of rows that follow each other. */
static rf_status copy_wanted(const rfi_forward *call, const void *from, size_t step, size_t width, int64_t first,
    int64_t rows, void *to, size_t pitch, const char *what) {
    rf_status status = RF_OK;
    for (int64_t i = 0, run; i < rows && width && !status; i += run) {
        const int64_t *wanted = call->wanted ? call->wanted + first + i : NULL;
        for (run = 1; i + run < rows && (!wanted || wanted[run] == wanted[0] + run); run++) {}
        const int64_t row = wanted ? wanted[0] : first + i;
        status = rfi_cuda_status(
            cudaMemcpy2DAsync((char *)to + (size_t)i * pitch, pitch, (const char *)from + (size_t)row * step, step,
                width, (size_t)run, cudaMemcpyHostToDevice, call->stream),
            what);
    }
    return status;
}

/* Row input `index` of a piece in the form that kernels read, to the workspace. */
static rf_status bring_row_input(const rfi_cuda_running *r, int index, const rfi_cuda_piece *piece) {
    const rfi_forward *call = r->call;
    const rfi_row_values *values = &call->rows[index];
    const int is_column = r->spec->plan.rows[index].is_column;
    const size_t item = is_column ? rfi_index_size(values->dtype) : rfi_dtype_size(values->dtype);
    const rf_dtype to_dtype = is_column ? RF_INT64 : r->spec->compute_dtype;
    const size_t to_item = is_column ? sizeof(int64_t) : rfi_dtype_size(to_dtype);
    char *given = r->workspace + r->l->row_given + (size_t)(index * piece->rows) * sizeof(int64_t);
    rfi_cuda_convert convert = {
        .from = values->data,
        .to = r->workspace + (is_column ? r->l->row_columns : r->l->row_numbers) +
            (size_t)(index * piece->rows) * to_item,
        .count = piece->rows,
        .ld = values->ld,
        .from_dtype = values->dtype,
        .to_dtype = to_dtype,
    };
    rf_status status = RF_OK;
    if (values->memory == RF_MEMORY_HOST) {
        status = copy_wanted(call, values->data, (size_t)values->ld * item, item, piece->first, piece->rows, given,
            item, "copying a row input to the device");
    } else if (call->wanted) {
        const rfi_cuda_take take = {
            .from = values->data,
            .to = given,
            .list = (const int64_t *)(r->workspace + r->l->list),
            .from_rows = call->x_rows,
            .rows = piece->rows,
            .columns = 1,
            .ld_from = values->ld,
            .ld_to = 1,
            .dtype = values->dtype,
        };
        status = rfi_cuda_status(rfi_cuda_launch_take(&take, call->stream), "choosing of a row input");
    } else {
        convert.from = (const char *)values->data + (size_t)(piece->first * values->ld) * item;
    }
    if (convert.from == values->data && (values->memory == RF_MEMORY_HOST || call->wanted)) {
        convert.from = given;
        convert.ld = 1;
    }
    if (!status) status = rfi_cuda_status(rfi_cuda_launch_convert(&convert, call->stream), "converting a row input");
    if (status || !is_column || !rfi_plan_is_shard(&r->spec->plan)) return status;
    const rfi_cuda_own_columns own = {convert.to, piece->rows, r->spec->plan.columns.first, r->spec->plan.out_features};
    return rfi_cuda_status(rfi_cuda_launch_own_columns(&own, call->stream), "finding the columns of the shard");
}

static size_t item_of(const rfi_output *output) {
    return rfi_dtype_size(output->dtype) + rfi_index_size(output->dtype);
}

/* Rows of x in host memory, or those that are wanted of device memory, to rows of the library's own. */
static rf_status bring_x(const rfi_cuda_running *r, char *to, rfi_cuda_piece *piece) {
    const rfi_forward *call = r->call;
    const size_t item = rfi_dtype_size(call->x_dtype), width = (size_t)r->spec->plan.in_features * item;
    piece->x = to;
    piece->ldx = rfi_cuda_staged_ld(r->spec);
    piece->padded = 1;
    if (call->x_memory != RF_MEMORY_HOST) {
        const rfi_cuda_take take = {
            .from = call->x,
            .to = to,
            .list = (const int64_t *)(r->workspace + r->l->list),
            .from_rows = call->x_rows,
            .rows = piece->rows,
            .columns = r->spec->plan.in_features,
            .ld_from = call->ldx,
            .ld_to = piece->ldx,
            .dtype = call->x_dtype,
        };
        return rfi_cuda_status(rfi_cuda_launch_take(&take, call->stream), "bringing the wanted rows together");
    }
    rf_status status = RF_OK;
    /* What a kernel reads beside the last column in the same 16 bytes is not used, but it is written, so that nothing
     * unwritten is ever read. */
    if (piece->ldx != r->spec->plan.in_features)
        status = rfi_cuda_status(
            cudaMemsetAsync(to, 0, (size_t)(piece->rows * piece->ldx) * item, call->stream), "clearing x's place");
    if (!status)
        status = copy_wanted(call, call->x, (size_t)call->ldx * item, width, piece->first, piece->rows, to,
            (size_t)piece->ldx * item, "copying x to the device");
    return status;
}

/* Which columns the rows of a piece ask for, where they are several. */
static rf_status bring_gathers(
    const rfi_cuda_running *r, const rfi_cuda_stage *s, char *staging, rfi_cuda_piece *piece) {
    const rfi_forward *call = r->call;
    rf_status status = RF_OK;
    for (int i = 0; i < r->spec->plan.num_rows && !status; i++) {
        rfi_row_values *to = &piece->gathers[i];
        *to = call->rows[i];
        if (!r->spec->plan.rows[i].several) continue;
        const size_t item = rfi_index_size(to->dtype), width = (size_t)to->columns * item;
        if (to->memory == RF_MEMORY_HOST) {
            status = copy_wanted(call, to->data, (size_t)to->ld * item, width, piece->first, piece->rows,
                staging + s->gathers[i], width, "copying the columns asked for to the device");
            to->data = staging + s->gathers[i];
            to->ld = to->columns;
        } else if (!call->wanted) {
            to->data = (const char *)to->data + (size_t)(piece->first * to->ld) * item;
        }
    }
    return status;
}

/* The part of the list of wanted rows that a piece is of, to the device. */
static rf_status bring_list(const rfi_cuda_running *r, const rfi_cuda_piece *piece) {
    return rfi_cuda_status(
        cudaMemcpyAsync(r->workspace + r->l->list, r->call->wanted + piece->first,
            (size_t)piece->rows * sizeof(int64_t),
            r->call->wanted_memory == RF_MEMORY_HOST ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice,
            r->call->stream),
        "copying the list of wanted rows");
}

/* Words of the states of a row. */
static int64_t words_of(const rfi_plan *plan) { return rfi_shard_groups(&plan->columns) * rfi_plan_words(plan); }

/* Results of a piece, or its states, that are for the host. */
static rf_status bring_back(const rfi_cuda_running *r, const rfi_cuda_piece *piece) {
    const rfi_forward *call = r->call;
    rf_status status = RF_OK;
    if (call->states) {
        const int64_t words = words_of(&r->spec->plan);
        if (call->states_memory != RF_MEMORY_HOST) return RF_OK;
        return rfi_cuda_status(
            cudaMemcpyAsync(call->states + piece->first * words, piece->states,
                (size_t)(piece->rows * words) * sizeof *piece->states, cudaMemcpyDeviceToHost, call->stream),
            "copying states to the host");
    }
    for (int i = 0; i < r->spec->plan.num_outputs && !status; i++) {
        const rfi_output *to = &call->outputs[i];
        if (to->memory != RF_MEMORY_HOST) continue;
        const size_t item = item_of(to), width = (size_t)rfi_cuda_width(&r->spec->plan, call, i) * item;
        status = rfi_cuda_status(
            cudaMemcpy2DAsync((char *)to->data + (size_t)(piece->first * to->ld) * item, (size_t)to->ld * item,
                piece->outputs[i].data, width, width, (size_t)piece->rows, cudaMemcpyDeviceToHost, call->stream),
            "copying y to the host");
    }
    return status;
}

/* Host buffers pass through the device in pieces; what is on the device already is used as it is. The kernel is the
 * same for all pieces. */
static rf_status run(const rfi_cuda_running *r, const rfi_cuda_stage *s, char *staging) {
    const rfi_plan *plan = &r->spec->plan;
    const rfi_forward *call = r->call;
    const size_t x_item = rfi_dtype_size(call->x_dtype);
    const int on_host = call->x_memory == RF_MEMORY_HOST;
    rf_status status = RF_OK;
    for (int64_t first = 0; first < call->batch && !status; first += s->rows) {
        rfi_cuda_piece piece = {
            .x = (const char *)call->x + (size_t)(first * call->ldx) * x_item,
            .first = first,
            .rows = call->batch - first < s->rows ? call->batch - first : s->rows,
            .ldx = call->ldx,
        };
        if (call->states)
            piece.states = call->states_memory == RF_MEMORY_HOST ? (double *)(staging + s->states)
                                                                 : call->states + first * words_of(plan);
        for (int i = 0; i < plan->num_outputs && !call->states; i++) {
            rfi_output *out = &piece.outputs[i];
            *out = call->outputs[i];
            out->data = (char *)out->data + (size_t)(first * out->ld) * item_of(out);
            if (out->memory != RF_MEMORY_HOST) continue;
            out->data = staging + s->results[i];
            out->ld = rfi_cuda_width(plan, call, i);
        }
        if (call->wanted) status = bring_list(r, &piece);
        if (!status && (on_host || call->wanted))
            status = bring_x(r, on_host ? staging + s->x : r->workspace + r->l->x, &piece);
        if (!status) status = bring_gathers(r, s, staging, &piece);
        for (int i = 0; i < plan->num_rows && !status; i++)
            if (!plan->rows[i].several) status = bring_row_input(r, i, &piece);
        if (!status) status = rfi_cuda_run_piece(r, &piece);
        if (!status) status = bring_back(r, &piece);
    }
    return status;
}

/* Whether the call reads or writes the host's memory, which is the caller's again when it returns. */
static int uses_host(const rfi_spec *spec, const rfi_forward *call) {
    int host = call->x_memory == RF_MEMORY_HOST;
    host |= call->wanted && call->wanted_memory == RF_MEMORY_HOST;
    host |= call->states && call->states_memory == RF_MEMORY_HOST;
    for (int i = 0; i < spec->plan.num_outputs; i++) host |= call->outputs[i].memory == RF_MEMORY_HOST;
    for (int i = 0; i < spec->plan.num_rows; i++) host |= call->rows[i].memory == RF_MEMORY_HOST;
    return host;
}

/* Kernels read and write all of it. */
static rf_status check_pointers(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_forward *call) {
    rf_status status = RF_OK;
    if (call->x_memory == RF_MEMORY_DEVICE) status = rfi_cuda_check_pointer("x", call->x, p->device);
    if (!status && call->wanted && call->wanted_memory == RF_MEMORY_DEVICE)
        status = rfi_cuda_check_pointer("rows", call->wanted, p->device);
    if (!status && call->states && call->states_memory == RF_MEMORY_DEVICE)
        status = rfi_cuda_check_pointer("args.states", call->states, p->device);
    for (int i = 0; i < spec->plan.num_outputs && !status; i++)
        if (call->outputs[i].memory == RF_MEMORY_DEVICE)
            status = rfi_cuda_check_pointer(
                spec->plan.num_outputs > 1 ? spec->plan.outputs[i].name : "y", call->outputs[i].data, p->device);
    for (int i = 0; i < spec->plan.num_rows && !status; i++)
        if (call->rows[i].memory == RF_MEMORY_DEVICE)
            status = rfi_cuda_check_pointer(spec->plan.rows[i].name, call->rows[i].data, p->device);
    return status ? status : rfi_cuda_check_pointer("workspace", call->workspace, p->device);
}

/* From the device's pool, in the order of the call's stream. */
static rf_status allocate(
    const rfi_cuda_prepared *p, size_t bytes, const rfi_forward *call, const char *what, void **block) {
    if (bytes == SIZE_MAX)
        return rfi_error(
            RF_OUT_OF_MEMORY, "batch %lld needs more workspace than memory can hold", (long long)call->batch);
    return bytes ? rfi_cuda_status(cudaMallocFromPoolAsync(block, bytes, p->pool, call->stream), what) : RF_OK;
}

/* Gives a block back, if there is one; *status keeps the first failure. */
static void release(void *block, const rfi_forward *call, rf_status *status) {
    if (!block) return;
    rf_status freed = rfi_cuda_status(cudaFreeAsync(block, call->stream), "freeing the workspace");
    if (!*status) *status = freed;
}

rf_status rfi_cuda_forward(const rfi_spec *spec, const void *prepared, const rfi_forward *call) {
    const rfi_cuda_prepared *p = prepared;
    int before;
    rf_status status = rfi_cuda_enter(p->device, &before);
    if (status) return status;
    rfi_cuda_call_layout l;
    rfi_cuda_lay_out(spec, p, call, &l);
    status = check_pointers(spec, p, call);
    const rfi_cuda_stage s = rfi_cuda_lay_out_stage(spec, call, l.rows);
    void *own = NULL, *staging = NULL;
    if (!status && !call->workspace) status = allocate(p, l.total, call, "memory for a workspace", &own);
    if (!status) status = allocate(p, s.total, call, "memory for host rows on the device", &staging);
    const rfi_cuda_running r = {spec, p, &l, call, own ? own : call->workspace};
    if (!status) status = run(&r, &s, staging);
    if (uses_host(spec, call)) {
        rf_status drained = rfi_cuda_status(cudaStreamSynchronize(call->stream), "waiting for the result");
        if (!status) status = drained;
    }
    release(staging, call, &status);
    release(own, call, &status);
    rfi_cuda_leave(before);
    return status;
}

/* What is read back of rows that were brought to terms: (rows) each. */
typedef struct rfi_cuda_told {
    rfi_cuda_lone *lone;
    uint8_t *irregular, *wide;
} rfi_cuda_told;

/* Brings a piece of x to terms and adds up what its rows are flagged with. */
static rf_status count_piece(
    const rfi_cuda_running *r, const rfi_cuda_piece *piece, const rfi_cuda_told *told, rf_ways *ways) {
    const rfi_cuda_clear clear = {.w_in_flight = 1};
    const int tile_rows = r->l->passes[0].choice.tile_rows;
    const size_t rows = (size_t)piece->rows;
    cudaStream_t stream = r->call->stream;
    rfi_cuda_fold fold = {.product = {.x = {.data = piece->x, .ld = piece->ldx, .dtype = r->call->x_dtype}}};
    rf_status status = rfi_cuda_bring_to_terms(r, 0, piece, &clear, &fold);
    if (!status)
        status = rfi_cuda_status(
            cudaMemcpyAsync(told->irregular, fold.product.irregular, rows, cudaMemcpyDeviceToHost, stream),
            "reading the rows' flags");
    if (!status && fold.product.levels.wide)
        status =
            rfi_cuda_status(cudaMemcpyAsync(told->wide, fold.product.levels.wide, rows, cudaMemcpyDeviceToHost, stream),
                "reading the rows' levels");
    if (!status && fold.product.lone)
        status = rfi_cuda_status(
            cudaMemcpyAsync(told->lone, fold.product.lone, rows * sizeof *told->lone, cudaMemcpyDeviceToHost, stream),
            "reading which values outweigh all others");
    rf_status drained = rfi_cuda_status(cudaStreamSynchronize(stream), "preparing x");
    if (status || drained) return status ? status : drained;
    int64_t last = -1;
    for (int64_t i = 0; i < piece->rows; i++) {
        ways->irregular_rows += told->irregular[i];
        ways->lone_rows += fold.product.lone && told->lone[i].column >= 0;
        if (!fold.product.levels.wide || !told->wide[i]) continue;
        ways->two_level_rows++;
        if (i / tile_rows != last) ways->two_level_tiles++;
        last = i / tile_rows;
    }
    ways->tiles += (piece->rows + tile_rows - 1) / tile_rows;
    return RF_OK;
}

/* The call with x alone: its results are nowhere. */
static rf_status count_rows(const rfi_cuda_running *r, rf_ways *ways) {
    const rfi_forward *call = r->call;
    const rfi_cuda_stage s = rfi_cuda_lay_out_stage(r->spec, call, r->l->rows);
    rfi_cuda_lone *lone = malloc((size_t)s.rows * (sizeof *lone + 2));
    if (!lone) return rfi_error(RF_OUT_OF_MEMORY, "no memory for the flags of %lld rows", (long long)s.rows);
    uint8_t *flags = (uint8_t *)(lone + s.rows);
    const rfi_cuda_told told = {lone, flags, flags + s.rows};
    void *own = NULL, *staging = NULL;
    rf_status status = RF_OK;
    if (!call->workspace) status = allocate(r->p, r->l->total, call, "memory for a workspace", &own);
    if (!status) status = allocate(r->p, s.total, call, "memory for host rows on the device", &staging);
    rfi_cuda_running there = *r;
    there.workspace = own ? own : call->workspace;
    for (int64_t first = 0; first < call->batch && !status; first += s.rows) {
        rfi_cuda_piece piece = {
            .x = (const char *)call->x + (size_t)(first * call->ldx) * rfi_dtype_size(call->x_dtype),
            .first = first,
            .rows = call->batch - first < s.rows ? call->batch - first : s.rows,
            .ldx = call->ldx,
        };
        if (call->x_memory == RF_MEMORY_HOST) status = bring_x(&there, (char *)staging + s.x, &piece);
        if (!status) status = count_piece(&there, &piece, &told, ways);
    }
    release(staging, call, &status);
    release(own, call, &status);
    free(lone);
    return status;
}

rf_status rfi_cuda_count_ways(const rfi_spec *spec, const void *prepared, const rfi_forward *call, rf_ways *ways) {
    const rfi_cuda_prepared *p = prepared;
    if (p->collapsed || !p->passes.count) return RF_OK;
    rfi_output nowhere[RFI_MAX_OUTPUTS] = {{0}};
    rfi_row_values none[RF_MAX_OPS] = {{0}};
    for (int i = 0; i < spec->plan.num_outputs; i++) nowhere[i].memory = RF_MEMORY_DEVICE;
    for (int i = 0; i < spec->plan.num_rows; i++) none[i].memory = RF_MEMORY_DEVICE;
    rfi_forward x_alone = *call;
    x_alone.outputs = nowhere;
    x_alone.rows = none;
    int before;
    rf_status status = rfi_cuda_enter(p->device, &before);
    if (status) return status;
    rfi_cuda_call_layout l;
    rfi_cuda_lay_out(spec, p, &x_alone, &l);
    ways->weight_terms = p->w_terms;
    if (l.passes[0].choice.uses_terms) {
        ways->x_terms = l.passes[0].problem.x_terms;
        const rfi_cuda_running r = {spec, p, &l, &x_alone, NULL};
        if (call->x_memory == RF_MEMORY_DEVICE) status = rfi_cuda_check_pointer("x", call->x, p->device);
        if (!status) status = rfi_cuda_check_pointer("workspace", call->workspace, p->device);
        if (!status) status = count_rows(&r, ways);
    }
    rfi_cuda_leave(before);
    return status;
}
