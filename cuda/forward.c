/* SPDX-License-Identifier: MIT */
/* Forward: prepares x where the kernel asks for it, and launches. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "dtype.h"
#include "error.h"
#include "layout.h"

static cudaError_t (*const launchers[])(const rfi_cuda_fold *, cudaStream_t) = {
#define RFI_CUDA_KERNEL(id, name, family, tile_rows, tile_columns, fold_columns, can_run, efficiency, fold, launcher) \
    launcher,
#include "kernels.def"
#undef RFI_CUDA_KERNEL
};

/* Rows on the device, of one piece of a call or of all of it. */
typedef struct piece {
    const void *x;
    rfi_output outputs[RF_MAX_RESULTS];
    int64_t first, rows, ldx; /* `first` among the call's */
    int padded;               /* what follows a row up to whole 16 bytes is the library's memory, written */
} piece;

/* x in terms, which becomes the fold's, and tickets cleared. */
static rf_status bring_to_terms(const rfi_cuda_prepared *p, const rfi_cuda_layout *l, const piece *piece,
    char *workspace, const rfi_cuda_clear *clear, cudaStream_t stream, rfi_cuda_fold *fold) {
    const int terms = l->problem.x_terms;
    rfi_cuda_split split = {
        .data = piece->x,
        .rows = piece->rows,
        .columns = l->problem.in_features,
        .ld = piece->ldx,
        .dtype = l->problem.x_dtype,
        .terms = terms,
        .term_dtype = l->problem.term_dtype,
        .high = workspace + l->terms[0],
        .low = terms > 1 ? workspace + l->terms[1] : NULL,
        .least = terms > 2 ? workspace + l->terms[2] : NULL,
        .ld_terms = l->depth * l->levels,
        .depth = l->depth,
        .strict = p->strict,
        .dense = p->dense,
        .w_infinite = p->w_infinite,
        .scale = (float *)(workspace + l->scale),
        .irregular = (uint8_t *)(workspace + l->flag),
        .clear = *clear,
    };
    if (l->levels == 2)
        split.levels = (rfi_cuda_levels){(uint8_t *)(workspace + l->wide), (float *)(workspace + l->ratio)};
    fold->irregular = split.irregular;
    fold->levels = split.levels;
    fold->x_stored = fold->x;
    fold->x = (rfi_cuda_rows){.data = split.high,
        .low = split.low,
        .least = split.least,
        .scale = split.scale,
        .ld = split.ld_terms,
        .dtype = split.term_dtype,
        .level = l->levels == 2 ? l->depth : 0};
    return rfi_cuda_status(rfi_cuda_launch_split(&split, stream), "preparing x");
}

/* Clears the tickets and prepares x. */
static rf_status prepare(const rfi_cuda_prepared *p, const rfi_cuda_layout *l, const piece *piece, char *workspace,
    cudaStream_t stream, rfi_cuda_fold *fold) {
    const rfi_cuda_clear clear = {.words = (unsigned *)(workspace + l->tickets),
        .count = l->num_tickets,
        .overlaps = fold->overlaps,
        .w_borrowed = fold->w_borrowed};
    if (l->choice.uses_terms) {
        rf_status status = bring_to_terms(p, l, piece, workspace, &clear, stream, fold);
        if (!status && !l->choice.irregular)
            status = rfi_cuda_status(rfi_cuda_fold_irregular(fold, stream), "computing irregular rows");
        return status;
    }
    rf_status status = rfi_cuda_status(rfi_cuda_launch_clear(&clear, stream), "clearing the tickets");
    size_t item = rfi_dtype_size(l->problem.x_dtype);
    if (!status && l->choice.aligned_x &&
        !rfi_cuda_in_pieces(piece->x, piece->ldx, l->problem.in_features, item, piece->padded)) {
        rfi_cuda_copy copy = {
            .from = piece->x,
            .to = workspace + l->copy,
            .rows = piece->rows,
            .columns = l->problem.in_features,
            .ld_from = piece->ldx,
            .ld_to = l->depth,
            .item = (int32_t)item,
        };
        fold->x.data = copy.to;
        fold->x.ld = copy.ld_to;
        status = rfi_cuda_status(rfi_cuda_launch_copy(&copy, stream), "aligning x");
    }
    return status;
}

/* Row input `index` of a piece in the form that kernels read, to the workspace. */
static rf_status bring_row_input(const rfi_spec *spec, const rfi_cuda_layout *l, const rfi_forward *call, int index,
    const piece *piece, char *workspace) {
    const rfi_row_values *values = &call->rows[index];
    const int is_column = spec->plan.rows[index].is_column;
    const size_t item = is_column ? rfi_index_size(values->dtype) : rfi_dtype_size(values->dtype);
    const rf_dtype to_dtype = is_column ? RF_INT64 : spec->compute_dtype;
    const size_t to_item = is_column ? sizeof(int64_t) : rfi_dtype_size(to_dtype);
    rfi_cuda_convert convert = {
        .from = (const char *)values->data + (size_t)(piece->first * values->ld) * item,
        .to = workspace + (is_column ? l->row_columns : l->row_numbers) + (size_t)(index * piece->rows) * to_item,
        .count = piece->rows,
        .ld = values->ld,
        .from_dtype = values->dtype,
        .to_dtype = to_dtype,
    };
    rf_status status = RF_OK;
    if (values->memory == RF_MEMORY_HOST) {
        char *given = workspace + l->row_given + (size_t)(index * piece->rows) * sizeof(int64_t);
        status = rfi_cuda_status(cudaMemcpy2DAsync(given, item, convert.from, (size_t)values->ld * item, item,
                                     (size_t)piece->rows, cudaMemcpyHostToDevice, call->stream),
            "copying a row input to the device");
        convert.from = given;
        convert.ld = 1;
    }
    return status ? status : rfi_cuda_status(rfi_cuda_launch_convert(&convert, call->stream), "converting a row input");
}

static rf_status run_pass(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_layout *l, int pass,
    const rfi_forward *call, const piece *piece, char *workspace) {
    cudaStream_t stream = call->stream;
    const rfi_cuda_pass *what = &p->passes.at[pass];
    const rfi_output *y = &piece->outputs[what->branches[0]];
    rfi_cuda_fold fold = {
        .x = {.data = piece->x, .ld = piece->ldx, .dtype = call->x_dtype},
        .w = p->w,
        .batch = piece->rows,
        .in_features = spec->plan.in_features,
        .out_features = spec->plan.out_features,
        .bias = p->columns,
        .vectors = p->vectors,
        .num_vectors = spec->plan.num_vectors,
        .y = y->data,
        .ldy = y->ld,
        .y_dtype = y->dtype,
        .fold_columns = l->choice.fold_columns,
        .partials = workspace + l->partials,
        .num_partials = l->num_partials,
        .row_inputs = workspace + l->row_numbers,
        .picked = workspace + l->picked,
        .shared_per_block = (int32_t)p->figures.shared_per_block,
        .tickets = l->split_tickets ? (unsigned *)(workspace + l->tickets) : NULL,
        .groups = l->groups,
        .splits = l->choice.splits,
        .split_depth = l->choice.split_depth,
        .split_sums = workspace + l->split_sums,
        .split_tickets = (unsigned *)(workspace + l->tickets) + l->split_tickets,
        .overlaps = p->overlaps,
        .w_borrowed = !p->weight,
        .chain = p->programs[pass].chain,
    };
    if (what->column >= 0) fold.columns = (const int64_t *)(workspace + l->row_columns) + what->column * piece->rows;
    if (what->reduction == RFI_CUDA_ANSWERS) {
        fold.num_results = what->num_branches;
        for (int i = 0; i < what->num_branches; i++) {
            const rfi_output *out = &piece->outputs[what->branches[i]];
            fold.results[i] = p->programs[pass].results[i];
            fold.results[i].y = out->data;
            fold.results[i].ldy = out->ld;
            fold.results[i].y_dtype = out->dtype;
        }
    }
    if (p->collapsed) return rfi_cuda_collapse_launch(p, &fold, stream);
    if (fold.tickets) {
        fold.next_tile = fold.tickets + l->split_tickets - RFI_CUDA_COUNTERS;
        fold.irregular_ticket = fold.next_tile + 1;
    }
    rf_status status = prepare(p, l, piece, workspace, stream, &fold);
    if (!status) status = rfi_cuda_status(launchers[l->choice.kernel](&fold, stream), "launching the kernel");
    return status;
}

/* The passes one behind the other, in the same workspace. */
static rf_status run_piece(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_layout *layouts,
    const rfi_forward *call, const piece *piece, char *workspace) {
    rf_status status = RF_OK;
    for (int pass = 0; pass < p->passes.count && !status; pass++) {
        for (int i = 0; i < spec->plan.num_rows && !status; i++)
            status = bring_row_input(spec, &layouts[pass], call, i, piece, workspace);
        if (!status) status = run_pass(spec, p, &layouts[pass], pass, call, piece, workspace);
    }
    return status;
}

static size_t item_of(const rfi_output *output) {
    return rfi_dtype_size(output->dtype) + rfi_index_size(output->dtype);
}

static rf_status bring_x(const rfi_spec *spec, const rfi_forward *call, char *to, piece *piece) {
    const size_t item = rfi_dtype_size(call->x_dtype), width = (size_t)spec->plan.in_features * item;
    const void *from = piece->x;
    piece->x = to;
    piece->ldx = rfi_cuda_staged_ld(spec);
    piece->padded = 1;
    rf_status status = RF_OK;
    /* What a kernel reads beside the last column in the same 16 bytes is not used, but it is written, so that nothing
     * unwritten is ever read. */
    if (piece->ldx != spec->plan.in_features)
        status = rfi_cuda_status(
            cudaMemsetAsync(to, 0, (size_t)(piece->rows * piece->ldx) * item, call->stream), "clearing x's place");
    if (width && !status)
        status = rfi_cuda_status(cudaMemcpy2DAsync(to, (size_t)piece->ldx * item, from, (size_t)call->ldx * item, width,
                                     (size_t)piece->rows, cudaMemcpyHostToDevice, call->stream),
            "copying x to the device");
    return status;
}

/* Host buffers pass through the device in pieces; what is on the device already is used as it is. The kernel is the
 * same for all pieces. */
static rf_status run(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_layout *layouts,
    const rfi_forward *call, char *workspace, const rfi_cuda_stage *s, char *staging) {
    const rfi_plan *plan = &spec->plan;
    const size_t x_item = rfi_dtype_size(call->x_dtype);
    rf_status status = RF_OK;
    for (int64_t first = 0; first < call->batch && !status; first += s->rows) {
        piece piece = {
            .x = (const char *)call->x + (size_t)(first * call->ldx) * x_item,
            .first = first,
            .rows = call->batch - first < s->rows ? call->batch - first : s->rows,
            .ldx = call->ldx,
        };
        rfi_output to[RF_MAX_RESULTS];
        for (int b = 0; b < plan->num_branches; b++) {
            to[b] = piece.outputs[b] = call->outputs[b];
            to[b].data = piece.outputs[b].data =
                (char *)call->outputs[b].data + (size_t)(first * call->outputs[b].ld) * item_of(&to[b]);
            if (to[b].memory != RF_MEMORY_HOST) continue;
            piece.outputs[b].data = staging + s->results[b];
            piece.outputs[b].ld = plan->branches[b].width;
        }
        if (call->x_memory == RF_MEMORY_HOST) status = bring_x(spec, call, staging + s->x, &piece);
        if (!status) status = run_piece(spec, p, layouts, call, &piece, workspace);
        for (int b = 0; b < plan->num_branches && !status; b++) {
            const size_t item = item_of(&to[b]), width = (size_t)plan->branches[b].width * item;
            if (to[b].memory == RF_MEMORY_HOST)
                status = rfi_cuda_status(cudaMemcpy2DAsync(to[b].data, (size_t)to[b].ld * item, piece.outputs[b].data,
                                             width, width, (size_t)piece.rows, cudaMemcpyDeviceToHost, call->stream),
                    "copying y to the host");
        }
    }
    return status;
}

/* Whether the call reads or writes the host's memory, which is the caller's again when it returns. */
static int uses_host(const rfi_spec *spec, const rfi_forward *call) {
    int host = call->x_memory == RF_MEMORY_HOST;
    for (int b = 0; b < spec->plan.num_branches; b++) host |= call->outputs[b].memory == RF_MEMORY_HOST;
    for (int i = 0; i < spec->plan.num_rows; i++) host |= call->rows[i].memory == RF_MEMORY_HOST;
    return host;
}

/* Kernels read and write all of it. */
static rf_status check_pointers(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_forward *call) {
    rf_status status = RF_OK;
    if (call->x_memory == RF_MEMORY_DEVICE) status = rfi_cuda_check_pointer("x", call->x, p->device);
    for (int b = 0; b < spec->plan.num_branches && !status; b++)
        if (call->outputs[b].memory == RF_MEMORY_DEVICE)
            status = rfi_cuda_check_pointer(
                spec->plan.num_branches > 1 ? spec->plan.branches[b].name : "y", call->outputs[b].data, p->device);
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
    rfi_cuda_layout layouts[RF_MAX_RESULTS];
    size_t total = 0;
    for (int pass = 0; pass < p->passes.count; pass++) {
        const rfi_cuda_shape shape = rfi_cuda_shape_of(spec, call, pass);
        rfi_cuda_lay_out(spec, p, &shape, &layouts[pass]);
        if (layouts[pass].total > total) total = layouts[pass].total;
    }
    status = check_pointers(spec, p, call);
    const rfi_cuda_stage s = rfi_cuda_lay_out_stage(spec, call);
    void *own = NULL, *staging = NULL;
    if (!status && !call->workspace) status = allocate(p, total, call, "memory for a workspace", &own);
    if (!status) status = allocate(p, s.total, call, "memory for host rows on the device", &staging);
    if (!status) status = run(spec, p, layouts, call, own ? own : call->workspace, &s, staging);
    if (uses_host(spec, call)) {
        rf_status drained = rfi_cuda_status(cudaStreamSynchronize(call->stream), "waiting for the result");
        if (!status) status = drained;
    }
    release(staging, call, &status);
    release(own, call, &status);
    rfi_cuda_leave(before);
    return status;
}

/* Brings a piece of x to terms and adds up what its rows are flagged with; `flags` has room for two of each row. */
static rf_status count_piece(const rfi_cuda_prepared *p, const rfi_cuda_layout *l, const piece *piece, char *workspace,
    cudaStream_t stream, uint8_t *flags, rf_ways *ways) {
    const rfi_cuda_clear clear = {.w_borrowed = 1};
    const size_t rows = (size_t)piece->rows;
    rfi_cuda_fold fold = {.x = {.data = piece->x, .ld = piece->ldx, .dtype = l->problem.x_dtype}};
    rf_status status = bring_to_terms(p, l, piece, workspace, &clear, stream, &fold);
    if (!status)
        status = rfi_cuda_status(
            cudaMemcpyAsync(flags, fold.irregular, rows, cudaMemcpyDeviceToHost, stream), "reading the rows' flags");
    if (!status && fold.levels.wide)
        status = rfi_cuda_status(cudaMemcpyAsync(flags + rows, fold.levels.wide, rows, cudaMemcpyDeviceToHost, stream),
            "reading the rows' levels");
    rf_status drained = rfi_cuda_status(cudaStreamSynchronize(stream), "preparing x");
    if (status || drained) return status ? status : drained;
    int64_t last = -1;
    for (int64_t i = 0; i < piece->rows; i++) {
        ways->irregular_rows += flags[i];
        if (!fold.levels.wide || !flags[piece->rows + i]) continue;
        ways->two_level_rows++;
        if (i / l->choice.tile_rows != last) ways->two_level_tiles++;
        last = i / l->choice.tile_rows;
    }
    ways->tiles += (piece->rows + l->choice.tile_rows - 1) / l->choice.tile_rows;
    return RF_OK;
}

rf_status rfi_cuda_count_ways(const rfi_spec *spec, const void *prepared, const rfi_forward *call, rf_ways *ways) {
    const rfi_cuda_prepared *p = prepared;
    if (p->collapsed) return RF_OK;
    int before;
    rf_status status = rfi_cuda_enter(p->device, &before);
    if (status) return status;
    rfi_cuda_layout l;
    const rfi_cuda_shape shape = rfi_cuda_shape_of(spec, call, 0);
    rfi_cuda_lay_out(spec, p, &shape, &l);
    ways->weight_terms = p->w_terms;
    if (!l.choice.uses_terms) {
        rfi_cuda_leave(before);
        return RF_OK;
    }
    ways->x_terms = l.problem.x_terms;
    rfi_output nowhere[RF_MAX_RESULTS] = {{0}};
    for (int b = 0; b < spec->plan.num_branches; b++) nowhere[b].memory = RF_MEMORY_DEVICE;
    rfi_forward x_alone = *call;
    x_alone.outputs = nowhere;
    const rfi_cuda_stage s = rfi_cuda_lay_out_stage(spec, &x_alone);
    uint8_t *flags = malloc(2 * (size_t)s.rows);
    if (!flags) status = rfi_error(RF_OUT_OF_MEMORY, "no memory for the flags of %lld rows", (long long)s.rows);
    if (!status && call->x_memory == RF_MEMORY_DEVICE) status = rfi_cuda_check_pointer("x", call->x, p->device);
    if (!status) status = rfi_cuda_check_pointer("workspace", call->workspace, p->device);
    void *own = NULL, *staging = NULL;
    if (!status && !call->workspace) status = allocate(p, l.total, call, "memory for a workspace", &own);
    if (!status) status = allocate(p, s.total, call, "memory for host rows on the device", &staging);
    for (int64_t first = 0; first < call->batch && !status; first += s.rows) {
        piece piece = {
            .x = (const char *)call->x + (size_t)(first * call->ldx) * rfi_dtype_size(call->x_dtype),
            .first = first,
            .rows = call->batch - first < s.rows ? call->batch - first : s.rows,
            .ldx = call->ldx,
        };
        if (call->x_memory == RF_MEMORY_HOST) status = bring_x(spec, call, (char *)staging + s.x, &piece);
        if (!status) status = count_piece(p, &l, &piece, own ? own : call->workspace, call->stream, flags, ways);
    }
    release(staging, call, &status);
    release(own, call, &status);
    free(flags);
    rfi_cuda_leave(before);
    return status;
}
