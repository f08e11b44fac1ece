/* SPDX-License-Identifier: MIT */
/* Forward: prepares x where the kernel asks for it, and launches. */
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
    void *y;
    int64_t rows, ldx, ldy;
    int padded; /* what follows a row up to whole 16 bytes is the library's memory, written */
} piece;

/* Clears the tickets and prepares x. */
static rf_status prepare(const rfi_cuda_prepared *p, const rfi_cuda_layout *l, const piece *piece, char *workspace,
    cudaStream_t stream, rfi_cuda_fold *fold) {
    const rfi_cuda_clear clear = {.words = (unsigned *)(workspace + l->tickets),
        .count = l->num_tickets,
        .overlaps = fold->overlaps,
        .w_borrowed = fold->w_borrowed};
    if (l->choice.uses_terms) {
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
            .scale = (float *)(workspace + l->scale),
            .irregular = (uint8_t *)(workspace + l->flag),
            .clear = clear,
        };
        if (l->levels == 2)
            split.levels = (rfi_cuda_levels){(uint8_t *)(workspace + l->wide), (float *)(workspace + l->ratio)};
        rf_status status = rfi_cuda_status(rfi_cuda_launch_split(&split, stream), "preparing x");
        if (status) return status;
        fold->irregular = split.irregular;
        fold->levels = split.levels;
        if (!l->choice.irregular)
            status = rfi_cuda_status(rfi_cuda_fold_irregular(fold, stream), "computing irregular rows");
        fold->x_stored = fold->x;
        fold->x = (rfi_cuda_rows){.data = split.high,
            .low = split.low,
            .least = split.least,
            .scale = split.scale,
            .ld = split.ld_terms,
            .dtype = split.term_dtype,
            .level = l->levels == 2 ? l->depth : 0};
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

static rf_status run_piece(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_layout *l,
    const rfi_forward *call, const piece *piece, char *workspace) {
    cudaStream_t stream = call->stream;
    rfi_cuda_fold fold = {
        .x = {.data = piece->x, .ld = piece->ldx, .dtype = call->x_dtype},
        .w = p->w,
        .batch = piece->rows,
        .in_features = spec->plan.in_features,
        .out_features = spec->plan.out_features,
        .bias = p->columns,
        .vectors = p->vectors,
        .num_vectors = spec->plan.num_vectors,
        .y = piece->y,
        .ldy = piece->ldy,
        .y_dtype = call->y_dtype,
        .fold_columns = l->choice.fold_columns,
        .partials = workspace + l->partials,
        .num_partials = l->num_partials,
        .shared_per_block = (int32_t)p->figures.shared_per_block,
        .tickets = l->split_tickets ? (unsigned *)(workspace + l->tickets) : NULL,
        .splits = l->choice.splits,
        .split_depth = l->choice.split_depth,
        .split_sums = workspace + l->split_sums,
        .split_tickets = (unsigned *)(workspace + l->tickets) + l->split_tickets,
        .overlaps = p->overlaps,
        .w_borrowed = !p->weight,
        .chain = p->chain,
    };
    if (p->collapsed) return rfi_cuda_collapse_launch(p, &fold, stream);
    if (fold.tickets) {
        fold.next_tile = fold.tickets + l->split_tickets - RFI_CUDA_COUNTERS;
        fold.irregular_ticket = fold.next_tile + 1;
    }
    rf_status status = prepare(p, l, piece, workspace, stream, &fold);
    if (!status) status = rfi_cuda_status(launchers[l->choice.kernel](&fold, stream), "launching the kernel");
    return status;
}

/* Host buffers pass through the device in pieces; what is on the device already is used as it is. The kernel is the
 * same for all pieces. */
static rf_status run(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_layout *l,
    const rfi_forward *call, char *workspace, const rfi_cuda_stage *s, char *staging) {
    const rfi_plan *plan = &spec->plan;
    int host_x = call->x_memory == RF_MEMORY_HOST, host_y = call->y_memory == RF_MEMORY_HOST;
    size_t x_item = rfi_dtype_size(call->x_dtype),
           y_item = rfi_dtype_size(call->y_dtype) + rfi_index_size(call->y_dtype);
    size_t x_width = (size_t)plan->in_features * x_item, y_width = (size_t)plan->width * y_item;
    int64_t step = host_x || host_y ? s->rows : call->batch;
    rf_status status = RF_OK;
    for (int64_t first = 0; first < call->batch && !status; first += step) {
        piece piece = {
            .x = (const char *)call->x + (size_t)(first * call->ldx) * x_item,
            .y = (char *)call->y + (size_t)(first * call->ldy) * y_item,
            .rows = call->batch - first < step ? call->batch - first : step,
            .ldx = call->ldx,
            .ldy = call->ldy,
        };
        const void *from = piece.x;
        void *to = piece.y;
        if (host_x) {
            piece.x = staging + s->x;
            piece.ldx = rfi_cuda_staged_ld(spec);
            piece.padded = 1;
            /* What a kernel reads beside the last column in the same 16 bytes is not used, but it is written, so that
             * nothing unwritten is ever read. */
            if (piece.ldx != plan->in_features)
                status = rfi_cuda_status(
                    cudaMemsetAsync(staging + s->x, 0, (size_t)(piece.rows * piece.ldx) * x_item, call->stream),
                    "clearing x's place");
            if (x_width && !status)
                status = rfi_cuda_status(
                    cudaMemcpy2DAsync(staging + s->x, (size_t)piece.ldx * x_item, from, (size_t)call->ldx * x_item,
                        x_width, (size_t)piece.rows, cudaMemcpyHostToDevice, call->stream),
                    "copying x to the device");
        }
        if (host_y) {
            piece.y = staging + s->y;
            piece.ldy = plan->width;
        }
        if (!status) status = run_piece(spec, p, l, call, &piece, workspace);
        if (host_y && !status)
            status = rfi_cuda_status(cudaMemcpy2DAsync(to, (size_t)call->ldy * y_item, piece.y, y_width, y_width,
                                         (size_t)piece.rows, cudaMemcpyDeviceToHost, call->stream),
                "copying y to the host");
    }
    if (host_x || host_y) {
        rf_status drained = rfi_cuda_status(cudaStreamSynchronize(call->stream), "waiting for the result");
        if (!status) status = drained;
    }
    return status;
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
    rfi_cuda_layout l;
    const rfi_cuda_shape shape = rfi_cuda_shape_of(spec, call);
    rfi_cuda_lay_out(spec, p, &shape, &l);
    if (call->x_memory == RF_MEMORY_DEVICE) status = rfi_cuda_check_pointer("x", call->x, p->device);
    if (!status && call->y_memory == RF_MEMORY_DEVICE) status = rfi_cuda_check_pointer("y", call->y, p->device);
    if (!status) status = rfi_cuda_check_pointer("workspace", call->workspace, p->device);
    const int host = call->x_memory == RF_MEMORY_HOST || call->y_memory == RF_MEMORY_HOST;
    const rfi_cuda_stage s = host ? rfi_cuda_lay_out_stage(spec, call->batch) : (rfi_cuda_stage){0};
    void *own = NULL, *staging = NULL;
    if (!status && !call->workspace) status = allocate(p, l.total, call, "memory for a workspace", &own);
    if (!status) status = allocate(p, s.total, call, "memory for host rows on the device", &staging);
    if (!status) status = run(spec, p, &l, call, own ? own : call->workspace, &s, staging);
    release(staging, call, &status);
    release(own, call, &status);
    rfi_cuda_leave(before);
    return status;
}
