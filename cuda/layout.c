/* SPDX-License-Identifier: MIT */
/* Laying out the workspace of a call, once for each shape. */
#include "layout.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "dtype.h"
#include "error.h"
#include "partials.h"
#include "sizes.h"
#include "terms.h"

enum {
    STAGE_BYTES = 16 << 20,  /* of host rows on the device at a time */
    FOUND_BYTES = 160 << 20, /* of the lists of what is found, likewise */
    PIECE_ROWS = 256,        /* ... rounded to these where more fit */
    STAGE_ROWS = 128,        /* likewise, of host rows */
    DEPTH_ALIGN = 128,       /* values: a level of x ends on whole stages of every kernel */
    WIDEST_TILE = 256,       /* columns */
    REMEMBERED = 32          /* shapes, each of a pass */
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

/* Whether the multiprocessors take the same share of tiles each, which then need not be counted: those of kernels that
 * draw them have no more to do than to multiply, and no more than two. */
static int in_fixed_shares(const rfi_cuda_choice *c, int64_t batch, int64_t n) {
    const int64_t tiles = round_up(ceil_div(batch, c->tile_rows), 2) * ceil_div(n, c->tile_columns);
    return tiles <= 2 * (c->multiprocessors / 2 * 2);
}

/* What a fold kernel needs. */
static void lay_out_fold(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_pass *pass,
    const rfi_cuda_shape *shape, rfi_cuda_layout *l) {
    const rfi_cuda_choice *c = &l->choice;
    const int64_t n = spec->plan.out_features;
    l->depth = round_up(l->problem.in_features, DEPTH_ALIGN);
    int64_t term_bytes = 0; /* of a row of x, of each term */
    if (c->uses_terms) {
        /* A value of binary16 is a term of its own, bfloat16 has the range of float32. */
        l->levels = l->problem.term_dtype == RF_FLOAT16 && l->problem.x_dtype != RF_FLOAT16 ? 2 : 1;
        term_bytes = l->depth * l->levels * (l->problem.term_dtype == RF_FLOAT32 ? 4 : 2);
    }
    const int64_t copy_bytes = c->aligned_x && shape->copies_x ? l->depth * 2 : 0;
    l->x_rows =
        rfi_cuda_rows_of_x(c, shape->batch, l->problem.in_features, n, term_bytes * l->problem.x_terms + copy_bytes);
    l->rows = least(l->rows, l->x_rows);
    if (pass->reduction) {
        const int searched = pass->searched || pass->role == RFI_CUDA_SEARCHES;
        const rfi_cuda_partials partials = rfi_cuda_partials_of(c, shape->batch, l->problem.in_features, n, searched);
        l->num_partials = partials.states;
        l->num_tickets = partials.tickets;
        l->groups = partials.groups;
        l->rows = least(l->rows, partials.rows);
    }
    const int64_t batch = l->rows;
    if (pass->reduction && c->irregular &&
        (!c->apart || c->uses_terms || (c->grouped && !in_fixed_shares(c, batch, n))))
        l->num_tickets += RFI_CUDA_COUNTERS;
    l->split_tickets = l->irregular_tickets = l->num_tickets;
    if (c->irregular && c->uses_terms && pass->reduction) l->num_tickets += rfi_cuda_irregular_groups(batch);
    if (c->splits > 1) {
        /* A layer of no columns has a tile, too. */
        const int64_t tiles =
            ceil_div(batch, c->tile_rows) * (most(ceil_div(n, c->tile_columns), 1) - c->whole_columns);
        l->num_tickets += tiles * rfi_split_tickets(c->splits);
        l->split_sums = take(&l->total, tiles * c->splits,
            (int64_t)c->tile_rows * c->tile_columns * (int64_t)rfi_dtype_size(spec->compute_dtype));
    }
    l->tickets = take(&l->total, l->num_tickets, sizeof(unsigned));
    if (c->uses_terms) {
        l->flag = take(&l->total, batch, 1);
        l->scale = take(&l->total, batch, sizeof(float));
        if (l->levels == 2) {
            l->wide = take(&l->total, round_up(batch, RFI_LEVEL_ROWS), 1);
            l->ratio = take(&l->total, batch, sizeof(float));
        }
        if (rfi_cuda_finds_lone(p, spec, &l->problem)) l->lone = take(&l->total, batch, sizeof(rfi_cuda_lone));
        for (int i = 0; i < l->problem.x_terms; i++) l->terms[i] = take(&l->total, batch, term_bytes);
    }
    if (copy_bytes) l->copy = take(&l->total, batch, copy_bytes);
    if (pass->reduction)
        l->partials = take(&l->total, batch,
            l->num_partials * rfi_cuda_state_words(pass) * (int64_t)rfi_dtype_size(spec->compute_dtype));
}

static void lay_out(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_shape *shape, rfi_cuda_layout *l) {
    const rfi_cuda_pass *pass = &p->passes.at[shape->pass];
    *l = (rfi_cuda_layout){.problem = rfi_cuda_problem_of(spec, p, pass, shape->batch, shape->x_dtype),
        .rows = shape->rows,
        .x_rows = shape->batch};
    if (shape->states) l->problem.alike = l->problem.keeps_states = 1; /* as those of shards are */
    rfi_cuda_choose(&l->problem, &p->figures, p->forced, &l->choice);
    if (!p->collapsed || shape->states) lay_out_fold(spec, p, pass, shape, l);
    if (shape->states) l->unread = take(&l->total, l->rows, sizeof(double));
    if (pass->column >= 0) l->picked = take(&l->total, l->rows, (int64_t)rfi_dtype_size(spec->compute_dtype));
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
    return a->batch == b->batch && a->rows == b->rows && a->x_dtype == b->x_dtype && a->pass == b->pass &&
        a->states == b->states && a->copies_x == b->copies_x;
}

static void lay_out_known(
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

/* `whole`: as in rfi_cuda_ahead; then what would be listed is stored. */
static void lay_out_search(const rfi_spec *spec, const rfi_branch *branch, const rfi_cuda_layout *pass, int64_t whole,
    int64_t rows, size_t *total, rfi_cuda_search_place *place) {
    const int64_t item = (int64_t)rfi_dtype_size(spec->compute_dtype);
    place->room = whole ? 0 : rfi_cuda_room_of(&spec->plan, branch->top, &pass->choice);
    place->values = take(total, rows, item);
    place->columns = take(total, rows, sizeof(int32_t));
    place->counts = take(total, rows, sizeof(unsigned));
    place->found = take(total, rows, place->room * item);
    place->found_columns = take(total, rows, place->room * (int64_t)sizeof(int32_t));
}

static void lay_out_spread(const rfi_spec *spec, int64_t rows, size_t *total, rfi_cuda_spread_place *place) {
    const int64_t item = (int64_t)rfi_dtype_size(spec->compute_dtype), n = spec->plan.out_features;
    place->units = round_up(n ? n : 1, WIDEST_TILE) / RFI_FOLD_COLUMNS; /* whole tiles are written */
    place->sums = take(total, rows, place->units * RFI_CUDA_SQUARE_WORDS * item);
}

static void lay_out_ahead(const rfi_spec *spec, const rfi_cuda_prepared *p, rfi_cuda_ahead ahead, int64_t rows,
    size_t *total, rfi_cuda_ahead_place *place) {
    const int64_t item = (int64_t)rfi_dtype_size(spec->compute_dtype), vectors = spec->plan.num_vectors;
    const int64_t w_item = p->w_terms ? p->w_terms * 2 : (int64_t)rfi_dtype_size(spec->weight_dtype);
    place->ahead = ahead;
    place->w =
        take(total, round_up(ahead.chunk, RFI_BLOCK_ROWS), round_up(rfi_cuda_depth(p, spec), DEPTH_ALIGN) * w_item);
    place->scale = take(total, ahead.chunk, sizeof(float));
    place->rest = take(total, ahead.chunk, rfi_cuda_rest_bytes(p, spec));
    place->bias = take(total, ahead.chunk, item);
    place->vectors = take(total, ahead.chunk, vectors * item);
    place->columns = take(total, ahead.chunk, sizeof(int64_t));
    place->picked = take(total, ahead.chunk ? rows : 0, item);
    place->sample_vectors = take(total, ahead.sample, vectors * item);
    place->stored = take(total, ahead.opening || ahead.whole ? rows : 0, (ahead.opening + ahead.whole) * item);
    place->wanted = take(total, 1, sizeof(unsigned));
}

/* What the pass that a search begins with stores of a row: see rfi_cuda_ahead. */
static int64_t whole_before(
    const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_call_layout *l, int search, int64_t batch) {
    const int pass = p->passes.at[search].before;
    return rfi_cuda_ahead_of(&spec->plan, &p->passes, pass, &l->passes[pass].choice, batch).whole;
}

/* As many as x and the states of all passes, the lists of what is found, and the logits of the first columns, have room
 * for: in pieces of the same size, of whole pairs of tiles, for each reads W once more; but where x decides in those
 * whose rounds of tiles are full. */
static int64_t rows_at_once(
    const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_call_layout *l, int64_t batch) {
    const int64_t value = (int64_t)rfi_dtype_size(spec->compute_dtype), item = value + (int64_t)sizeof(int32_t);
    int64_t bytes = 0;
    for (int i = 0; i < p->passes.count; i++) {
        const rfi_cuda_pass *pass = &p->passes.at[i];
        const rfi_cuda_ahead ahead = rfi_cuda_ahead_of(&spec->plan, &p->passes, i, &l->passes[i].choice, batch);
        bytes += (ahead.opening + ahead.whole) * value;
        if (pass->role != RFI_CUDA_SEARCHES || whole_before(spec, p, l, i, batch)) continue;
        for (int b = 0; b < pass->num_branches; b++)
            bytes +=
                rfi_cuda_room_of(&spec->plan, spec->plan.branches[pass->branches[b]].top, &l->passes[i].choice) * item;
    }
    int64_t rows = most(FOUND_BYTES / (bytes + 1), 1), x_rows = batch;
    for (int i = 0; i < p->passes.count; i++) {
        rows = least(rows, most(l->passes[i].rows, 1));
        x_rows = least(x_rows, l->passes[i].x_rows);
    }
    if (rows == x_rows) return rows;
    const int64_t pieces = ceil_div(batch, rows), even = round_up(ceil_div(batch, most(pieces, 1)), PIECE_ROWS);
    return least(even <= rows ? even : rows, batch);
}

/* What the passes share, once they are laid out. Of x that lies on the device the wanted rows are brought together. */
static void lay_out_shared(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_forward *call, rf_dtype x_dtype,
    rfi_cuda_call_layout *l) {
    const int64_t rows = spec->plan.num_rows;
    l->rows = rows_at_once(spec, p, l, call->batch);
    for (int i = 0; i < p->passes.count; i++)
        if (l->passes[i].total > l->total) l->total = l->passes[i].total;
    if (rows) {
        l->row_numbers = take(&l->total, l->rows, rows * (int64_t)rfi_dtype_size(spec->compute_dtype));
        l->row_columns = take(&l->total, l->rows, rows * (int64_t)sizeof(int64_t));
        l->row_given = take(&l->total, l->rows, rows * (int64_t)sizeof(int64_t));
    }
    if (call->wanted) {
        l->list = take(&l->total, l->rows, sizeof(int64_t));
        if (call->x_memory != RF_MEMORY_HOST)
            l->x = take(&l->total, l->rows, rfi_cuda_staged_ld(spec) * (int64_t)rfi_dtype_size(x_dtype));
    }
    for (int i = 0; i < p->passes.count; i++) {
        const rfi_cuda_pass *pass = &p->passes.at[i];
        lay_out_ahead(spec, p, rfi_cuda_ahead_of(&spec->plan, &p->passes, i, &l->passes[i].choice, l->rows), l->rows,
            &l->total, &l->aheads[i]);
        if (pass->role == RFI_CUDA_SPREADS) lay_out_spread(spec, l->rows, &l->total, &l->spreads[i]);
        for (int b = 0; b < pass->num_branches && pass->role == RFI_CUDA_SEARCHES; b++)
            lay_out_search(spec, &spec->plan.branches[pass->branches[b]], &l->passes[i],
                whole_before(spec, p, l, i, l->rows), l->rows, &l->total, &l->searches[pass->branches[b]]);
    }
}

/* Rows that are staged at a time, of `bytes` each. */
static int64_t staged_rows(int64_t bytes, int64_t most_rows) {
    const int64_t rows = STAGE_BYTES / (bytes + 1);
    return least(most(rows >= STAGE_ROWS ? rows / STAGE_ROWS * STAGE_ROWS : rows, 1), most_rows);
}

/* Bytes of a row of x that comes from the host. */
static int64_t staged_x(const rfi_spec *spec, const rfi_forward *call) {
    return call->x_memory == RF_MEMORY_HOST ? rfi_cuda_staged_ld(spec) * (int64_t)rfi_dtype_size(spec->compute_dtype)
                                            : 0;
}

/* By x alone: where results go, who asks for the size of a workspace need not say. */
static rfi_cuda_shape shape_of(const rfi_spec *spec, const rfi_forward *call, int pass) {
    const size_t item = rfi_dtype_size(call->x_dtype);
    const int readable = call->x_memory == RF_MEMORY_HOST || call->wanted /* copied to aligned rows on the device */
        || (call->x && rfi_cuda_in_pieces(call->x, call->ldx, spec->plan.in_features, item, 0));
    const int64_t x_row = staged_x(spec, call);
    return (rfi_cuda_shape){.batch = call->batch,
        .rows = x_row ? staged_rows(x_row, call->batch) : call->batch,
        .x_dtype = call->x_dtype,
        .pass = pass,
        .states = call->states != NULL,
        .copies_x = !readable};
}

void rfi_cuda_lay_out(
    const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_forward *call, rfi_cuda_call_layout *l) {
    l->total = 0;
    for (int pass = 0; pass < p->passes.count; pass++) {
        const rfi_cuda_shape shape = shape_of(spec, call, pass);
        lay_out_known(spec, p, &shape, &l->passes[pass]);
    }
    lay_out_shared(spec, p, call, call->x_dtype, l);
}

rfi_cuda_stage rfi_cuda_lay_out_stage(const rfi_spec *spec, const rfi_forward *call, int64_t most) {
    rfi_cuda_stage s = {0};
    const rfi_plan *plan = &spec->plan;
    const int64_t x_row = staged_x(spec, call);
    const int64_t states = call->states && call->states_memory == RF_MEMORY_HOST
        ? rfi_shard_groups(&plan->columns) * rfi_plan_words(plan) * (int64_t)sizeof(double)
        : 0;
    int64_t results[RFI_MAX_OUTPUTS] = {0}, gathers[RF_MAX_OPS] = {0}, all = x_row + states;
    for (int i = 0; i < plan->num_outputs && !call->states; i++) {
        if (call->outputs[i].memory == RF_MEMORY_HOST)
            results[i] = rfi_cuda_width(plan, call, i) * (int64_t)sizeof(double);
        all += results[i];
    }
    for (int i = 0; i < plan->num_rows; i++) {
        if (plan->rows[i].several && call->rows[i].memory == RF_MEMORY_HOST)
            gathers[i] = call->rows[i].columns * (int64_t)sizeof(int64_t);
        all += gathers[i];
    }
    s.rows = most;
    if (!all) return s;
    s.rows = staged_rows(all, most);
    s.x = take(&s.total, s.rows, x_row);
    s.states = take(&s.total, s.rows, states);
    for (int i = 0; i < plan->num_outputs; i++) s.results[i] = take(&s.total, s.rows, results[i]);
    for (int i = 0; i < plan->num_rows; i++) s.gathers[i] = take(&s.total, s.rows, gathers[i]);
    return s;
}

/* The most that any type of x that goes with the weights takes, wherever it lies. */
static size_t most_workspace(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_forward *call) {
    static const rf_dtype single[] = {RF_FLOAT32, RF_FLOAT16, RF_BFLOAT16}, twofold[] = {RF_FLOAT64};
    int wide = spec->compute_dtype == RF_FLOAT64;
    size_t most = 0;
    for (int i = 0; i < (wide ? 1 : 3); i++)
        for (int states = 0; states <= (spec->plan.num_folds > 0); states++) {
            rfi_cuda_call_layout l;
            const rf_dtype x_dtype = wide ? twofold[i] : single[i];
            l.total = 0;
            for (int pass = 0; pass < p->passes.count; pass++) {
                const rfi_cuda_shape shape = {.batch = call->batch,
                    .rows = call->batch,
                    .x_dtype = x_dtype,
                    .pass = pass,
                    .states = states,
                    .copies_x = 1};
                lay_out(spec, p, &shape, &l.passes[pass]);
            }
            lay_out_shared(spec, p, call, x_dtype, &l);
            if (l.total > most) most = l.total;
        }
    return most;
}

/* Without weights: for whatever form they will be kept in. */
static rf_status most_for_any_weights(const rfi_spec *spec, const rfi_forward *call, size_t *most) {
    rfi_cuda_prepared plain = {0};
    rf_status status = rfi_cuda_get_figures(spec->device, &plain.figures);
    if (!status) status = rfi_cuda_forced(&plain.forced);
    if (status) return status;
    rfi_cuda_passes_of(&spec->plan, spec->weight_dtype, &plain.passes);
    const int tame = rfi_cuda_weight_terms(spec->weight_dtype, spec->math, spec->plan.in_features),
              sixteen = rfi_is_16_bit(spec->weight_dtype);
    enum { AS_TAME = -1 };
    static const struct {
        int terms, infinite, verdicts, tf32, nonfinite;
    } forms[] = {{AS_TAME, 0, 0, 0, 0}, {0, 0, 0, 0, 1}, {2, 0, 0, 0, 0}, {2, 1, 0, 0, 0}, {2, 1, 1, 0, 0},
        {3, 0, 0, 0, 0}, {3, 1, 0, 0, 0}, {3, 1, 1, 0, 0}, {0, 0, 0, 1, 0}};
    /* weights.c: choose_terms. TF32 is float32's alone; W that is too short for terms has one form. */
    const int count = tame ? 9 : !sixteen ? 1 : spec->x_dtype != spec->weight_dtype ? 8 : 2;
    for (int i = 0; i < count; i++) {
        plain.w_terms = forms[i].terms == AS_TAME ? tame : forms[i].terms;
        plain.w_infinite = forms[i].infinite;
        plain.verdicts.columns = forms[i].verdicts ? (int32_t)rfi_cuda_most_verdicts(spec->plan.in_features) : 0;
        plain.w_tf32 = forms[i].tf32;
        plain.w_nonfinite = forms[i].nonfinite;
        plain.w.panel = 0;
        const size_t rows = most_workspace(spec, &plain, call);
        const rfi_cuda_problem problem =
            rfi_cuda_problem_of(spec, &plain, rfi_cuda_hardest_pass(&plain.passes), call->batch, spec->x_dtype);
        plain.w.panel = rfi_cuda_weight_panel(&problem, &plain.figures, plain.forced);
        const size_t panels = most_workspace(spec, &plain, call);
        if (rows > *most) *most = rows;
        if (panels > *most) *most = panels;
    }
    return RF_OK;
}

rf_status rfi_cuda_workspace_size(const rfi_spec *spec, const void *prepared, const rfi_forward *call, size_t *bytes) {
    const rfi_cuda_prepared *p = prepared;
    size_t most = 0;
    if (!p) {
        rf_status status = most_for_any_weights(spec, call, &most);
        if (status) return status;
    } else if (!call->x_dtype) {
        most = most_workspace(spec, p, call);
    } else {
        rfi_cuda_call_layout l;
        rfi_cuda_lay_out(spec, p, call, &l);
        most = l.total;
    }
    if (most == SIZE_MAX)
        return rfi_error(
            RF_OUT_OF_MEMORY, "batch %lld needs more workspace than memory can hold", (long long)call->batch);
    *bytes = most;
    return RF_OK;
}
