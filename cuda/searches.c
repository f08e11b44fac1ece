/* SPDX-License-Identifier: MIT */
/* Columns that come before a bound, of rank and topk: how the bound is found, ahead of the pass that gives other
 * results or behind it, and where what is found goes. */
#include "run.h"

#include "answers.h"
#include "device.h"
#include "dtype.h"
#include "error.h"
#include "partials.h"

static rfi_cuda_before before_of(const rfi_cuda_running *r, int branch) {
    const rfi_cuda_search_place *at = &r->l->searches[branch];
    const int lists = r->spec->plan.branches[branch].top > 0;
    return (rfi_cuda_before){
        .values = r->workspace + at->values,
        .columns = (const int32_t *)(r->workspace + at->columns),
        .counts = (unsigned *)(r->workspace + at->counts),
        .found = lists ? r->workspace + at->found : NULL,
        .found_columns = lists ? (int32_t *)(r->workspace + at->found_columns) : NULL,
        .room = at->room,
    };
}

/* Which columns the rows of a piece ask for in a branch, or NULL. */
static const int64_t *asked_in(const rfi_cuda_running *r, int branch, const rfi_cuda_piece *piece) {
    const int row = r->spec->plan.branches[branch].row;
    return row ? (const int64_t *)(r->workspace + r->l->row_columns) + (row - 1) * piece->rows : NULL;
}

/* Is the bound of a branch known ahead of the pass? */
static int is_ahead(const rfi_cuda_running *r, int pass, int branch) {
    const rfi_cuda_ahead *ahead = &r->l->aheads[pass].ahead;
    const int top = r->spec->plan.branches[branch].top;
    /* A sample is as large as the largest k wants it that has one. */
    return top ? ahead->opening || ahead->sample >= rfi_cuda_sample_of(&r->spec->plan, top, &r->l->passes[pass].choice)
               : ahead->chunk > 0;
}

/* A bound for a search, by what is known of the first `columns` columns, while that is in its place. `wanted`: one
 * that rows get whose search with another bound was in vain. */
static rf_status find_bound(
    const rfi_cuda_running *r, int pass, int branch, const rfi_cuda_piece *piece, int64_t columns, unsigned *wanted) {
    const rfi_cuda_layout *l = &r->l->passes[pass];
    const rfi_cuda_search_place *at = &r->l->searches[branch];
    const rfi_cuda_bound bound = {
        .batch = piece->rows,
        .out_features = columns,
        .dtype = r->spec->compute_dtype,
        .top = r->spec->plan.branches[branch].top,
        .picked = r->workspace + (is_ahead(r, pass, branch) ? r->l->aheads[pass].picked : l->picked),
        .asked = asked_in(r, branch, piece),
        .partials = r->workspace + l->partials,
        .num_partials = l->num_partials,
        .fold_columns = columns < r->spec->plan.out_features ? l->choice.ahead_columns : l->choice.fold_columns,
        .irregular = l->choice.uses_terms ? (const uint8_t *)r->workspace + l->flag : NULL,
        .values = r->workspace + at->values,
        .columns = (int32_t *)(r->workspace + at->columns),
        .counts = (unsigned *)(r->workspace + at->counts),
        .room = at->room,
        .wanted = wanted,
    };
    return rfi_cuda_status(rfi_cuda_launch_bound(&bound, r->call->stream), "finding where to search");
}

/* All columns of a row as the pass stores them. */
static rfi_cuda_before stored_by(const rfi_cuda_running *r, int pass, int64_t columns) {
    char *const stored = r->workspace + r->l->aheads[pass].stored;
    return (rfi_cuda_before){.values = stored, .found = stored, .room = columns};
}

static rf_status store_found(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece) {
    const rfi_cuda_pass *what = &r->p->passes.at[pass];
    const int64_t whole = r->l->aheads[what->before].ahead.whole;
    rf_status status = RF_OK;
    for (int i = 0; i < what->num_branches && !status; i++) {
        const rfi_branch *branch = &r->spec->plan.branches[what->branches[i]];
        const rfi_output *y = &piece->outputs[branch->output], *indices = y + (branch->top > 0);
        const rfi_cuda_found found = {
            .search = branch->top && whole ? stored_by(r, what->before, whole) : before_of(r, what->branches[i]),
            .batch = piece->rows,
            .columns = r->spec->plan.out_features,
            .dtype = r->spec->compute_dtype,
            .top = branch->top,
            .y = y->data,
            .ldy = y->ld,
            .y_dtype = y->dtype,
            .indices = indices->data,
            .ld_indices = indices->ld,
        };
        status = rfi_cuda_status(rfi_cuda_launch_found(&found, r->call->stream), "storing what was found");
    }
    return status;
}

/* A launch of a pass without results. */
static rfi_cuda_fold without_results(const rfi_cuda_fold *fold) {
    rfi_cuda_fold without = *fold;
    without.visitor.num_results = 0;
    without.visitor.columns = NULL;
    without.visitor.before[0] = without.visitor.before[1] = (rfi_cuda_before){0};
    without.schedule.first_column = without.schedule.end_column = 0;
    return without;
}

/* One for what a pass knows ahead: of other columns. */
static rfi_cuda_fold fold_ahead(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold, int64_t columns) {
    const rfi_cuda_choice *choice = &r->l->passes[pass].choice;
    rfi_cuda_fold ahead = without_results(fold);
    ahead.product.out_features = ahead.visitor.out_features = columns;
    ahead.visitor.fold_columns = choice->ahead_columns;
    ahead.schedule.groups = rfi_cuda_groups(choice, columns);
    return ahead;
}

/* The columns that `part` of a piece asks for, from row `first` of it on: by the kernel that computes all others, of
 * these rows of W alone, so that they have the same bits. */
static rf_status pick_ahead(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *part, int64_t first,
    const int64_t *asked, const rfi_cuda_fold *fold) {
    const rfi_cuda_ahead_place *at = &r->l->aheads[pass];
    const rfi_cuda_rows *w = &r->p->w;
    const int64_t item = w->dtype == RF_FLOAT64 ? 8 : w->dtype == RF_FLOAT32 ? 4 : 2, k = fold->product.depth;
    const size_t number = rfi_dtype_size(r->spec->compute_dtype);
    char *const place = r->workspace + at->w;
    const int64_t depth = (k * item + 15) / 16 * 16 / item;
    const size_t apart = w->low && w->panel ? (size_t)((const char *)w->low - (const char *)w->data)
                                            : (size_t)(depth * item * part->rows);
    const rfi_cuda_diagonal diagonal = {
        .asked = asked + first,
        .rows = part->rows,
        .depth = k,
        .out_features = fold->product.out_features,
        .from = *w,
        .to = {.data = place,
            .low = w->low ? place + apart : NULL,
            .least = w->least ? place + 2 * apart : NULL,
            .scale = w->scale ? (float *)(r->workspace + at->scale) : NULL,
            .rest = w->rest ? (const uint8_t *)(r->workspace + at->rest) : NULL,
            .rest_ld = part->rows,
            .ld = w->panel ? (part->rows + RFI_BLOCK_ROWS - 1) / RFI_BLOCK_ROWS * RFI_BLOCK_ROWS : depth,
            .dtype = w->dtype,
            .panel = w->panel},
        .bias = fold->visitor.bias,
        .vectors = fold->visitor.vectors,
        .to_bias = r->workspace + at->bias,
        .to_vectors = r->workspace + at->vectors,
        .columns = (int64_t *)(r->workspace + at->columns),
        .num_vectors = fold->visitor.num_vectors,
        .dtype = r->spec->compute_dtype,
    };
    rfi_cuda_fold ahead = fold_ahead(r, pass, fold, part->rows);
    ahead.product.batch = ahead.visitor.batch = part->rows;
    ahead.product.x = (rfi_cuda_rows){.data = part->x, .ld = part->ldx, .dtype = r->call->x_dtype};
    ahead.product.w = diagonal.to;
    ahead.schedule.w_in_flight = ahead.schedule.apart = 1; /* a kernel in front writes it, and its bias */
    ahead.visitor.bias = diagonal.to_bias;
    ahead.visitor.vectors = diagonal.to_vectors;
    ahead.visitor.columns = diagonal.columns;
    ahead.visitor.picked = r->workspace + at->picked + (size_t)first * number;
    ahead.visitor.keeps_states = 0;
    rf_status status =
        rfi_cuda_status(rfi_cuda_launch_diagonal(&diagonal, r->call->stream), "taking the rows of W asked for");
    if (!status) status = rfi_cuda_make_ready(r, pass, part, &ahead);
    return status ? status : rfi_cuda_launch_ahead(r, pass, &ahead);
}

static rf_status pick_all_ahead(
    const rfi_cuda_running *r, int pass, const int64_t *asked, const rfi_cuda_piece *piece, const rfi_cuda_fold *fold) {
    const int64_t chunk = r->l->aheads[pass].ahead.chunk;
    rf_status status = RF_OK;
    for (int64_t first = 0; first < piece->rows && !status; first += chunk) {
        rfi_cuda_piece part = *piece;
        part.x = (const char *)piece->x + (size_t)(first * piece->ldx) * rfi_dtype_size(r->call->x_dtype);
        part.rows = piece->rows - first < chunk ? piece->rows - first : chunk;
        status = pick_ahead(r, pass, &part, first, asked, fold);
    }
    return status;
}

/* The same by a kernel of its own, for all rows of a piece at once, and the bounds with them. 0: it cannot be used. Its
 * scratch lies where the rows of W would. */
static int can_ask_alone(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece) {
    const rfi_cuda_layout *l = &r->l->passes[pass];
    const int64_t k = l->problem.in_features, parts = (k + RFI_SM90_PART - 1) / RFI_SM90_PART;
    const size_t item = rfi_dtype_size(l->problem.x_dtype), room = r->l->aheads[pass].scale - r->l->aheads[pass].w;
    return l->choice.opens && parts <= 65535 && rfi_cuda_in_pieces(piece->x, piece->ldx, k, item, piece->padded) &&
        (size_t)piece->rows * (sizeof(int64_t) + (size_t)parts * sizeof(float)) <= room;
}

/* The pass is ready then, for its x is taken as it lies, and if it picks the same columns it need not look for them. */
static rf_status ask_alone(
    const rfi_cuda_running *r, int pass, int branch, const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const rfi_cuda_search_place *at = &r->l->searches[branch];
    char *const scratch = r->workspace + r->l->aheads[pass].w;
    rfi_cuda_asked asked = {
        .fold = without_results(fold),
        .asked = asked_in(r, branch, piece),
        .columns_there = fold->product.out_features,
        .own = (int64_t *)scratch,
        .parts = (float *)(scratch + (size_t)piece->rows * sizeof(int64_t)),
        .columns = (int32_t *)(r->workspace + at->columns),
        .counts = (unsigned *)(r->workspace + at->counts),
        .clear = rfi_cuda_clear_of(r, pass, fold),
    };
    asked.fold.product.out_features = asked.fold.visitor.out_features = RFI_BLOCK_ROWS;
    asked.fold.visitor.columns = asked.own;
    asked.fold.visitor.picked = r->workspace + at->values;
    asked.fold.visitor.knows_picked = 0;
    if (fold->visitor.columns == asked.asked) {
        fold->visitor.picked = r->workspace + at->values;
        fold->visitor.knows_picked = 1;
    }
#ifdef RFI_BUILD_SM90
    return rfi_cuda_status(rfi_cuda_launch_asked(&asked, r->call->stream), "computing the columns asked for");
#else
    (void)asked;
    return rfi_error(RF_INTERNAL, "this build has no kernel whose choice says that it opens a pass");
#endif
}

/* States of some columns, in which the best k of all have their bound. */
static rf_status sample_ahead(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const rfi_cuda_ahead_place *at = &r->l->aheads[pass];
    const int64_t sample = at->ahead.sample;
    const size_t item = rfi_dtype_size(r->spec->compute_dtype), width = (size_t)sample * item;
    rfi_cuda_fold ahead = fold_ahead(r, pass, fold, sample);
    rf_status status = RF_OK;
    ahead.visitor.keeps_states = 1;
    if (fold->visitor.num_vectors > 1) {
        ahead.visitor.vectors = r->workspace + at->sample_vectors;
        status = rfi_cuda_status(cudaMemcpy2DAsync(r->workspace + at->sample_vectors, width, fold->visitor.vectors,
                                     (size_t)fold->product.out_features * item, width,
                                     (size_t)fold->visitor.num_vectors, cudaMemcpyDeviceToDevice, r->call->stream),
            "copying the vectors of some columns");
    }
    if (!status) status = rfi_cuda_make_ready(r, pass, piece, &ahead);
    return status ? status : rfi_cuda_launch_ahead(r, pass, &ahead);
}

/* Bounds of what is known ahead, for the pass itself, which is made ready. */
static rf_status begin_searches(const rfi_cuda_running *r, int pass, const rfi_cuda_pass *search,
    const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const int64_t sample = r->l->aheads[pass].ahead.sample, whole = r->l->aheads[pass].ahead.whole;
    rf_status status = RF_OK;
    int sampled = 0, ready = 0, stores = 0;
    for (int i = 0; i < search->num_branches && !status; i++) {
        const int branch = search->branches[i], top = r->spec->plan.branches[branch].top;
        if (!is_ahead(r, pass, branch) || (top && r->l->aheads[pass].ahead.opening)) continue;
        if (!top && can_ask_alone(r, pass, piece)) {
            status = ask_alone(r, pass, branch, piece, fold);
            ready = 1;
            continue;
        }
        ready = 0;
        if (!top) status = pick_all_ahead(r, pass, asked_in(r, branch, piece), piece, fold);
        else if (!sampled++) status = sample_ahead(r, pass, piece, fold);
        if (!status) status = find_bound(r, pass, branch, piece, top ? sample : fold->product.out_features, NULL);
    }
    for (int i = 0; i < search->num_branches; i++)
        if (is_ahead(r, pass, search->branches[i])) fold->visitor.before[i] = before_of(r, search->branches[i]);
        else if (whole && r->spec->plan.branches[search->branches[i]].top && !stores++)
            fold->visitor.before[i] = stored_by(r, pass, whole);
    return status || ready ? status : rfi_cuda_make_ready(r, pass, piece, fold);
}

/* The first columns of the pass, and bounds from these for the others, which `fold` is left with. */
static rf_status open_pass(const rfi_cuda_running *r, int pass, const rfi_cuda_pass *search,
    const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const int64_t columns = r->l->aheads[pass].ahead.opening;
    const rfi_cuda_before stored = stored_by(r, pass, columns);
    rfi_cuda_fold opening = *fold;
    int lists = 0;
    opening.schedule.end_column = fold->schedule.first_column = (int32_t)columns;
    for (int i = 0; i < search->num_branches; i++)
        if (r->spec->plan.branches[search->branches[i]].top)
            opening.visitor.before[i] = lists++ ? (rfi_cuda_before){0} : stored;
    rf_status status = rfi_cuda_launch_fold(r, pass, &opening);
    for (int i = 0; i < search->num_branches && !status; i++) {
        const rfi_cuda_search_place *at = &r->l->searches[search->branches[i]];
        const rfi_cuda_bound bound = {
            .batch = piece->rows,
            .out_features = columns,
            .dtype = r->spec->compute_dtype,
            .top = r->spec->plan.branches[search->branches[i]].top,
            .values = r->workspace + at->values,
            .columns = (int32_t *)(r->workspace + at->columns),
            .counts = (unsigned *)(r->workspace + at->counts),
            .room = at->room,
            .stored = stored.found,
            .found = r->workspace + at->found,
            .found_columns = (int32_t *)(r->workspace + at->found_columns),
            .wanted = (unsigned *)(r->workspace + r->l->aheads[pass].wanted),
        };
        if (bound.top)
            status = rfi_cuda_status(rfi_cuda_launch_bound(&bound, r->call->stream), "finding the first bound");
    }
    fold->schedule.next_tile = opening.schedule.next_tile + 1;
    return status;
}

/* Behind the pass: for what was not known ahead, and once more for rows whose sample told too little. Too many columns
 * for the list came before its bound, or, where it had other bits, too few: mostly of no row, which the device alone
 * knows. */
static rf_status search_again(const rfi_cuda_running *r, int pass, const rfi_cuda_pass *search,
    const rfi_cuda_piece *piece, const rfi_cuda_fold *fold) {
    unsigned *const wanted = (unsigned *)(r->workspace + r->l->aheads[pass].wanted);
    const int behind = r->l->aheads[pass].ahead.behind;
    rfi_cuda_fold again = without_results(fold);
    rf_status status = RF_OK;
    if (!r->l->aheads[pass].ahead.opening)
        status =
            rfi_cuda_status(cudaMemsetAsync(wanted, 0, sizeof *wanted, r->call->stream), "clearing what is wanted");
    for (int i = 0; i < search->num_branches && !status; i++) {
        const int branch = search->branches[i], ahead = is_ahead(r, pass, branch);
        const int top = r->spec->plan.branches[branch].top;
        if (top ? r->l->aheads[pass].ahead.whole > 0 : ahead) continue;
        again.visitor.before[i] = before_of(r, branch);
        status = find_bound(r, pass, branch, piece, fold->product.out_features, ahead ? wanted : NULL);
    }
    again.schedule.wanted = behind ? NULL : wanted;
    if (!status) status = rfi_cuda_clear_again(r, pass, &again);
    return status ? status : rfi_cuda_launch_fold(r, pass, &again);
}

rf_status rfi_cuda_run_with_searches(
    const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const rfi_cuda_ahead *ahead = &r->l->aheads[pass].ahead;
    const int searches = rfi_cuda_search_of(&r->p->passes, pass);
    const rfi_cuda_pass *search = &r->p->passes.at[searches];
    rf_status status = begin_searches(r, pass, search, piece, fold);
    if (!status && ahead->opening) status = open_pass(r, pass, search, piece, fold);
    if (!status) status = rfi_cuda_launch_fold(r, pass, fold);
    if (!status && (ahead->opening || ahead->sample || ahead->behind))
        status = search_again(r, pass, search, piece, fold);
    return status ? status : store_found(r, searches, piece);
}
