/* SPDX-License-Identifier: MIT */
/* Laying out the workspace of a call, once for each shape. */
#include "layout.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "dtype.h"
#include "error.h"
#include "sizes.h"

enum {
    STAGE_BYTES = 16 << 20, /* of host rows on the device at a time */
    STAGE_ROWS = 128,       /* ... rounded to these where more fit */
    DEPTH_ALIGN = 128,      /* values: a level of x ends on whole stages of every kernel */
    REMEMBERED = 16         /* shapes */
};

/* The oldest goes where there is no room. */
struct rfi_cuda_layouts {
    pthread_mutex_t mutex;
    int used, next;
    rfi_cuda_shape shapes[REMEMBERED];
    rfi_cuda_layout layouts[REMEMBERED];
};

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
static void lay_out_fold(
    const rfi_spec *spec, const rfi_cuda_pass *pass, const rfi_cuda_shape *shape, rfi_cuda_layout *l) {
    const rfi_cuda_choice *c = &l->choice;
    int64_t n = spec->plan.out_features, batch = shape->batch;
    l->depth = round_up(spec->plan.in_features, DEPTH_ALIGN);
    l->num_partials = n > RFI_FOLD_COLUMNS ? (n + RFI_FOLD_COLUMNS - 1) / RFI_FOLD_COLUMNS : 1;
    if (c->grouped) {
        int64_t states = (n + c->tile_columns - 1) / c->tile_columns * (c->tile_columns / c->fold_columns);
        int64_t groups = (states + RFI_SM90_GROUP - 1) / RFI_SM90_GROUP, needed = round_up(states, 2) + groups;
        if (l->num_partials < needed) l->num_partials = needed;
        l->num_tickets = (batch + 63) / 64 * (groups + 1);
    } else {
        const int64_t blocks = (n + c->tile_columns - 1) / c->tile_columns;
        if (!c->irregular && blocks > RFI_UNGROUPED_BLOCKS)
            l->groups = (int32_t)((blocks + RFI_GROUP_BLOCKS - 1) / RFI_GROUP_BLOCKS);
        l->num_partials += l->groups; /* behind those of the columns */
        l->num_tickets = (batch + c->tile_rows - 1) / c->tile_rows * (l->groups + 1);
    }
    if (c->irregular)
        l->num_partials = round_up(l->num_partials, 2) + (c->grouped ? 0 : RFI_SM90_BLOCKS); /* see kernels.h */
    l->num_tickets += RFI_CUDA_COUNTERS;
    if (!pass->reduction) l->num_tickets = 0;
    l->split_tickets = l->num_tickets;
    if (c->splits > 1) {
        const int64_t tiles = (batch + c->tile_rows - 1) / c->tile_rows * ((n + c->tile_columns - 1) / c->tile_columns);
        l->num_tickets += tiles;
        l->split_sums = take(&l->total, tiles * c->splits,
            (int64_t)c->tile_rows * c->tile_columns * (int64_t)rfi_dtype_size(spec->compute_dtype));
    }
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
    if (c->aligned_x && shape->copies_x) l->copy = take(&l->total, batch, l->depth * 2);
    if (pass->reduction)
        l->partials = take(&l->total, batch,
            l->num_partials * rfi_cuda_state_words(pass) * (int64_t)rfi_dtype_size(spec->compute_dtype));
}

static void lay_out(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_shape *shape, rfi_cuda_layout *l) {
    const rfi_cuda_pass *pass = &p->passes.at[shape->pass];
    *l = (rfi_cuda_layout){.problem = rfi_cuda_problem_of(spec, p, pass, shape->batch, shape->x_dtype)};
    rfi_cuda_choose(&l->problem, &p->figures, p->forced, &l->choice);
    if (!p->collapsed) lay_out_fold(spec, pass, shape, l);
    const int64_t rows = spec->plan.num_rows;
    if (rows) {
        l->row_numbers = take(&l->total, shape->batch, rows * (int64_t)rfi_dtype_size(spec->compute_dtype));
        l->row_columns = take(&l->total, shape->batch, rows * (int64_t)sizeof(int64_t));
        l->row_given = take(&l->total, shape->batch, rows * (int64_t)sizeof(int64_t));
    }
    if (pass->column >= 0) l->picked = take(&l->total, shape->batch, (int64_t)rfi_dtype_size(spec->compute_dtype));
}

rfi_cuda_layouts *rfi_cuda_layouts_create(void) {
    rfi_cuda_layouts *layouts = calloc(1, sizeof *layouts);
    if (layouts) pthread_mutex_init(&layouts->mutex, NULL);
    return layouts;
}

void rfi_cuda_layouts_clear(rfi_cuda_layouts *layouts) { layouts->used = layouts->next = 0; }

void rfi_cuda_layouts_destroy(rfi_cuda_layouts *layouts) {
    if (layouts) pthread_mutex_destroy(&layouts->mutex);
    free(layouts);
}

static int same_shape(const rfi_cuda_shape *a, const rfi_cuda_shape *b) {
    return a->batch == b->batch && a->x_dtype == b->x_dtype && a->pass == b->pass && a->copies_x == b->copies_x;
}

void rfi_cuda_lay_out(
    const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_shape *shape, rfi_cuda_layout *l) {
    rfi_cuda_layouts *known = p->layouts;
    /* A lock that is held is no reason to wait, least of all in a child of fork, where nobody would let go of it:
     * laying out anew takes a microsecond. */
    if (!known || pthread_mutex_trylock(&known->mutex)) {
        lay_out(spec, p, shape, l);
        return;
    }
    int i = 0;
    while (i < known->used && !same_shape(&known->shapes[i], shape)) i++;
    if (i == known->used) {
        if (i == REMEMBERED) i = known->next;
        else known->used++;
        known->next = (i + 1) % REMEMBERED;
        known->shapes[i] = *shape;
        lay_out(spec, p, shape, &known->layouts[i]);
    }
    *l = known->layouts[i];
    pthread_mutex_unlock(&known->mutex);
}

rfi_cuda_shape rfi_cuda_shape_of(const rfi_spec *spec, const rfi_forward *call, int pass) {
    const size_t item = rfi_dtype_size(call->x_dtype);
    const int readable = call->x_memory == RF_MEMORY_HOST /* copied to aligned rows on its way to the device */
        || (call->x && rfi_cuda_in_pieces(call->x, call->ldx, spec->plan.in_features, item, 0));
    return (rfi_cuda_shape){call->batch, call->x_dtype, pass, !readable};
}

rfi_cuda_stage rfi_cuda_lay_out_stage(const rfi_spec *spec, const rfi_forward *call) {
    rfi_cuda_stage s = {0};
    int64_t x_row =
        call->x_memory == RF_MEMORY_HOST ? rfi_cuda_staged_ld(spec) * (int64_t)rfi_dtype_size(spec->compute_dtype) : 0;
    int64_t results[RF_MAX_RESULTS] = {0}, all = x_row;
    for (int b = 0; b < spec->plan.num_branches; b++) {
        if (call->outputs[b].memory == RF_MEMORY_HOST)
            results[b] = spec->plan.branches[b].width * (int64_t)sizeof(double);
        all += results[b];
    }
    s.rows = call->batch;
    if (!all) return s;
    s.rows = STAGE_BYTES / (all + 1);
    if (s.rows >= STAGE_ROWS) s.rows = s.rows / STAGE_ROWS * STAGE_ROWS;
    if (s.rows < 1) s.rows = 1;
    if (s.rows > call->batch) s.rows = call->batch;
    s.x = take(&s.total, s.rows, x_row);
    for (int b = 0; b < spec->plan.num_branches; b++) s.results[b] = take(&s.total, s.rows, results[b]);
    return s;
}

/* The most that any type of x that goes with the weights takes, wherever it lies. */
static size_t most_workspace(const rfi_spec *spec, const rfi_cuda_prepared *p, int64_t batch) {
    static const rf_dtype single[] = {RF_FLOAT32, RF_FLOAT16, RF_BFLOAT16}, twofold[] = {RF_FLOAT64};
    int wide = spec->compute_dtype == RF_FLOAT64;
    size_t most = 0;
    for (int i = 0; i < (wide ? 1 : 3); i++)
        for (int pass = 0; pass < p->passes.count; pass++) {
            rfi_cuda_layout l;
            const rfi_cuda_shape shape = {batch, wide ? twofold[i] : single[i], pass, 1};
            lay_out(spec, p, &shape, &l);
            if (l.total > most) most = l.total;
        }
    return most;
}

/* Without weights: for whatever form they will be kept in. */
static rf_status most_for_any_weights(const rfi_spec *spec, int64_t batch, size_t *most) {
    rfi_cuda_prepared plain = {.forced = -1};
    rf_status status = rfi_cuda_get_figures(spec->device, &plain.figures);
    if (status) return status;
    rfi_cuda_passes_of(&spec->plan, &plain.passes);
    const int tame = rfi_cuda_weight_terms(spec->weight_dtype, spec->math, spec->plan.in_features);
    static const struct {
        int terms, infinite; /* 0: as tame values are kept */
    } forms[] = {{0, 0}, {3, 0}, {2, 1}, {3, 1}};
    for (int i = 0; i < (tame ? 4 : 1); i++) {
        plain.w_terms = forms[i].terms ? forms[i].terms : tame;
        plain.w_infinite = forms[i].infinite;
        plain.w.panel = 0;
        const size_t rows = most_workspace(spec, &plain, batch);
        const rfi_cuda_problem problem =
            rfi_cuda_problem_of(spec, &plain, rfi_cuda_hardest_pass(&plain.passes), batch, spec->x_dtype);
        plain.w.panel = rfi_cuda_weight_panel(&problem, &plain.figures, plain.forced);
        const size_t panels = most_workspace(spec, &plain, batch);
        if (rows > *most) *most = rows;
        if (panels > *most) *most = panels;
    }
    return RF_OK;
}

rf_status rfi_cuda_workspace_size(const rfi_spec *spec, const void *prepared, const rfi_forward *call, size_t *bytes) {
    const rfi_cuda_prepared *p = prepared;
    size_t most = 0;
    if (!p) {
        rf_status status = most_for_any_weights(spec, call->batch, &most);
        if (status) return status;
    } else if (!call->x_dtype) {
        most = most_workspace(spec, p, call->batch);
    } else {
        for (int pass = 0; pass < p->passes.count; pass++) {
            rfi_cuda_layout l;
            const rfi_cuda_shape shape = rfi_cuda_shape_of(spec, call, pass);
            rfi_cuda_lay_out(spec, p, &shape, &l);
            if (l.total > most) most = l.total;
        }
    }
    if (most == SIZE_MAX)
        return rfi_error(
            RF_OUT_OF_MEMORY, "batch %lld needs more workspace than memory can hold", (long long)call->batch);
    *bytes = most;
    return RF_OK;
}
