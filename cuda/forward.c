/* Forward: lays out the workspace, prepares x where the kernel asks for it, and launches. */
#include <string.h>

#include "device.h"
#include "dtype.h"
#include "error.h"
#include "prepared.h"

enum {
    STAGE_BYTES = 16 << 20, /* of host rows on the device at a time */
    STAGE_ROWS = 128,       /* ... rounded to these where more fit */
    DEPTH_ALIGN = 128,      /* values: a level of x ends on whole stages of every kernel */
    COUNTERS = 2            /* behind the tickets: next_tile and irregular_ticket */
};

static cudaError_t (*const launchers[])(const rfi_cuda_fold *, cudaStream_t) = {
#define RFI_CUDA_KERNEL(id, name, tile_rows, tile_columns, fold_columns, can_run, efficiency, launcher) launcher,
#include "kernels.def"
#undef RFI_CUDA_KERNEL
};

/* Offsets into the workspace of one forward. */
typedef struct layout {
    rfi_cuda_choice choice;
    rfi_cuda_problem problem;
    int64_t num_partials, depth; /* columns of x that are prepared, of a level */
    int64_t num_tickets;
    int levels; /* of x */
    size_t tickets, flag, wide, scale, ratio, terms[3], copy, partials, total;
} layout;

/* Host rows on the device. */
typedef struct stage {
    int64_t rows; /* at a time */
    size_t x, y, total;
} stage;

static int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/* The next part of the workspace. Sizes that do not fit stick at SIZE_MAX, which no allocation gives. */
static size_t take(size_t *total, int64_t a, int64_t b) {
    size_t at = *total, bytes;
    if (__builtin_mul_overflow((size_t)a, (size_t)b, &bytes) || bytes > SIZE_MAX / 2 || at > SIZE_MAX / 2) {
        *total = SIZE_MAX;
        return 0;
    }
    *total = at + (bytes + 255) / 256 * 256;
    return at;
}

/* What a fold kernel needs. */
static void lay_out_fold(const rfi_spec *spec, int64_t batch, layout *l) {
    const rfi_cuda_choice *c = &l->choice;
    int64_t n = spec->plan.out_features;
    l->depth = round_up(spec->plan.in_features, DEPTH_ALIGN);
    l->num_partials = n > RFI_FOLD_COLUMNS ? (n + RFI_FOLD_COLUMNS - 1) / RFI_FOLD_COLUMNS : 1;
    if (c->hopper) {
        int64_t states = (n + c->tile_columns - 1) / c->tile_columns * (c->tile_columns / c->fold_columns);
        int64_t groups = (states + RFI_HOPPER_GROUP - 1) / RFI_HOPPER_GROUP, needed = round_up(states, 2) + groups;
        if (l->num_partials < needed) l->num_partials = needed;
        l->num_tickets = (batch + 63) / 64 * (groups + 1);
    } else {
        l->num_tickets = (batch + c->tile_rows - 1) / c->tile_rows;
    }
    if (c->irregular)
        l->num_partials = round_up(l->num_partials, 2) + (c->hopper ? 0 : RFI_HOPPER_BLOCKS); /* see kernels.h */
    l->num_tickets += COUNTERS;
    if (!spec->plan.branches[0].reduction) l->num_tickets = 0;
    l->tickets = take(&l->total, l->num_tickets, sizeof(unsigned));
    if (c->uses_terms) {
        /* A value of binary16 is a term of its own, bfloat16 has the range of float32. */
        l->levels = l->problem.term_dtype == RF_FLOAT16 && l->problem.x_dtype != RF_FLOAT16 ? 2 : 1;
        l->flag = take(&l->total, batch, 1);
        l->scale = take(&l->total, batch, sizeof(float));
        if (l->levels == 2) {
            l->wide = take(&l->total, round_up(batch, RFI_LEVEL_ROWS), 1);
            l->ratio = take(&l->total, batch, sizeof(float));
        }
        for (int i = 0; i < l->problem.x_terms; i++) l->terms[i] = take(&l->total, batch, l->depth * l->levels * 2);
    }
    if (c->aligned_x) l->copy = take(&l->total, batch, l->depth * 2);
    if (spec->plan.branches[0].reduction)
        l->partials = take(&l->total, batch, l->num_partials * 2 * (int64_t)rfi_dtype_size(spec->compute_dtype));
}

/* Host buffers pass through in pieces. */
static stage lay_out_stage(const rfi_spec *spec, int64_t batch) {
    stage s = {0};
    int64_t x_row = round_up(spec->plan.in_features, 8) * (int64_t)rfi_dtype_size(spec->compute_dtype),
            y_row = spec->plan.width * (int64_t)sizeof(double);
    s.rows = STAGE_BYTES / (x_row + y_row + 1);
    if (s.rows >= STAGE_ROWS) s.rows = s.rows / STAGE_ROWS * STAGE_ROWS;
    if (s.rows < 1) s.rows = 1;
    if (s.rows > batch) s.rows = batch;
    s.x = take(&s.total, s.rows, x_row);
    s.y = take(&s.total, s.rows, y_row);
    return s;
}

static void lay_out(const rfi_spec *spec, const rfi_cuda_prepared *p, int64_t batch, rf_dtype x_dtype, layout *l) {
    *l = (layout){.problem = rfi_cuda_problem_of(spec, p, batch, x_dtype)};
    rfi_cuda_choose(&l->problem, &p->figures, p->forced, &l->choice);
    if (!p->collapsed) lay_out_fold(spec, batch, l);
}

/* The most that any type of x that goes with the weights takes. */
static size_t most_workspace(const rfi_spec *spec, const rfi_cuda_prepared *p, int64_t batch) {
    static const rf_dtype single[] = {RF_FLOAT32, RF_FLOAT16, RF_BFLOAT16}, twofold[] = {RF_FLOAT64};
    int wide = spec->compute_dtype == RF_FLOAT64;
    size_t most = 0;
    for (int i = 0; i < (wide ? 1 : 3); i++) {
        layout l;
        lay_out(spec, p, batch, wide ? twofold[i] : single[i], &l);
        if (l.total > most) most = l.total;
    }
    return most;
}

/* Without weights: for whatever form they will be kept in. */
rf_status rfi_cuda_workspace_size(const rfi_spec *spec, const void *prepared, int64_t batch, size_t *bytes) {
    rfi_cuda_prepared plain = {.forced = -1};
    size_t most = 0;
    if (prepared) most = most_workspace(spec, prepared, batch);
    else {
        rf_status status = rfi_cuda_get_figures(spec->device, &plain.figures);
        if (status) return status;
        const int tame = rfi_cuda_weight_terms(spec->weight_dtype, spec->math, spec->plan.in_features);
        for (int wide = 0; wide <= (tame > 0); wide++) {
            plain.w_terms = wide ? 3 : tame;
            plain.w.panel = 0;
            const size_t rows = most_workspace(spec, &plain, batch);
            const rfi_cuda_problem problem = rfi_cuda_problem_of(spec, &plain, batch, spec->x_dtype);
            plain.w.panel = rfi_cuda_weight_panel(&problem, &plain.figures, plain.forced);
            const size_t panels = most_workspace(spec, &plain, batch);
            if (rows > most) most = rows;
            if (panels > most) most = panels;
        }
    }
    if (most == SIZE_MAX)
        return rfi_error(RF_OUT_OF_MEMORY, "batch %lld needs more workspace than memory can hold", (long long)batch);
    *bytes = most;
    return RF_OK;
}

/* Rows on the device, of one piece of a call or of all of it. */
typedef struct piece {
    const void *x;
    void *y;
    int64_t rows, ldx, ldy;
    int padded; /* what follows a row up to whole 16 bytes is the library's memory, written */
} piece;

/* Whether kernels may read rows of x in 16-byte pieces. What the last piece of a row holds beside the row is not used,
 * but it must be there to be read. */
static int in_pieces(const piece *piece, int64_t columns, size_t item) {
    return (uintptr_t)piece->x % 16 == 0 && (size_t)piece->ldx * item % 16 == 0 &&
        (piece->padded || (size_t)columns * item % 16 == 0);
}

/* Clears the tickets and prepares x. */
static rf_status prepare(const rfi_cuda_prepared *p, const layout *l, const piece *piece, char *workspace,
    cudaStream_t stream, rfi_cuda_fold *fold) {
    const rfi_cuda_clear clear = {
        .words = fold->tickets, .count = l->num_tickets, .overlaps = fold->overlaps, .w_borrowed = fold->w_borrowed};
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
    if (!status && l->choice.aligned_x && !in_pieces(piece, l->problem.in_features, item)) {
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

static rf_status run_piece(const rfi_spec *spec, const rfi_cuda_prepared *p, const layout *l, const rfi_forward *call,
    const piece *piece, char *workspace) {
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
        .tickets = l->num_tickets ? (unsigned *)(workspace + l->tickets) : NULL,
        .overlaps = p->overlaps,
        .w_borrowed = !p->weight,
        .chain = p->chain,
    };
    if (p->collapsed) return rfi_cuda_collapse_launch(p, &fold, stream);
    if (fold.tickets) {
        fold.next_tile = fold.tickets + l->num_tickets - COUNTERS;
        fold.irregular_ticket = fold.next_tile + 1;
    }
    rf_status status = prepare(p, l, piece, workspace, stream, &fold);
    if (!status) status = rfi_cuda_status(launchers[l->choice.kernel](&fold, stream), "launching the kernel");
    return status;
}

/* Host buffers pass through the device in pieces; what is on the device already is used as it is. The kernel is the
 * same for all pieces. */
static rf_status run(const rfi_spec *spec, const rfi_cuda_prepared *p, const layout *l, const rfi_forward *call,
    char *workspace, const stage *s, char *staging) {
    const rfi_plan *plan = &spec->plan;
    int host_x = call->x_memory == RF_MEMORY_HOST, host_y = call->y_memory == RF_MEMORY_HOST;
    size_t x_item = rfi_dtype_size(call->x_dtype), y_item = rfi_dtype_size(call->y_dtype);
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
            piece.ldx = round_up(plan->in_features, 8);
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

/* A host pointer called a device's would break the process's whole context when a kernel reads it. */
static rf_status check_pointer(const char *name, const void *pointer, rf_memory memory, int device) {
    struct cudaPointerAttributes a;
    if (memory != RF_MEMORY_DEVICE || !pointer) return RF_OK;
    rf_status status = rfi_cuda_status(cudaPointerGetAttributes(&a, pointer), "asking what a pointer is");
    if (status) return status;
    if (a.type == cudaMemoryTypeUnregistered || (a.type == cudaMemoryTypeHost && a.devicePointer != pointer))
        return rfi_error(
            RF_INVALID_ARGUMENT, "%s_memory is RF_MEMORY_DEVICE, but %s is memory of the host", name, name);
    if (a.type == cudaMemoryTypeDevice && a.device != device)
        return rfi_error(
            RF_INVALID_ARGUMENT, "%s is on CUDA device %d; expected the model's, %d", name, a.device, device);
    return RF_OK;
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
    layout l;
    lay_out(spec, p, call->batch, call->x_dtype, &l);
    status = check_pointer("x", call->x, call->x_memory, p->device);
    if (!status) status = check_pointer("y", call->y, call->y_memory, p->device);
    if (!status && call->workspace) status = check_pointer("workspace", call->workspace, RF_MEMORY_DEVICE, p->device);
    const int host = call->x_memory == RF_MEMORY_HOST || call->y_memory == RF_MEMORY_HOST;
    const stage s = host ? lay_out_stage(spec, call->batch) : (stage){0};
    void *own = NULL, *staging = NULL;
    if (!status && !call->workspace) status = allocate(p, l.total, call, "memory for a workspace", &own);
    if (!status) status = allocate(p, s.total, call, "memory for host rows on the device", &staging);
    if (!status) status = run(spec, p, &l, call, own ? own : call->workspace, &s, staging);
    release(staging, call, &status);
    release(own, call, &status);
    rfi_cuda_leave(before);
    return status;
}
