/* SPDX-License-Identifier: MIT */
/* Columns that come before a bound, of rank and topk: how the bound is found, ahead of the pass that gives other
 * results or behind it, and where what is found goes. */
#include "run.h"

#include "answers.h"
#include "device.h"
#include "dtype.h"
#include "error.h"

rfi_cuda_before rfi_cuda_before_of(const rfi_cuda_running *r, int branch) {
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
        .picked = r->workspace + l->picked,
        .asked = rfi_cuda_asked(r, pass, piece),
        .partials = r->workspace + l->partials,
        .num_partials = l->num_partials,
        .fold_columns = l->choice.fold_columns,
        .irregular = l->choice.uses_terms ? (const uint8_t *)r->workspace + l->flag : NULL,
        .values = r->workspace + at->values,
        .columns = (int32_t *)(r->workspace + at->columns),
        .counts = (unsigned *)(r->workspace + at->counts),
        .room = at->room,
        .wanted = wanted,
    };
    return rfi_cuda_status(rfi_cuda_launch_bound(&bound, r->call->stream), "finding where to search");
}

/* Bounds for the searches that a pass is the beginning of. */
rf_status rfi_cuda_find_bounds(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece) {
    const rfi_cuda_passes *passes = &r->p->passes;
    rf_status status = RF_OK;
    for (int s = pass + 1; s < passes->count; s++)
        for (int i = 0; i < passes->at[s].num_branches && passes->at[s].before == pass && !status; i++)
            if (passes->at[s].role == RFI_CUDA_SEARCHES)
                status = find_bound(r, pass, passes->at[s].branches[i], piece, r->spec->plan.out_features, NULL);
    return status;
}

rf_status rfi_cuda_store_found(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece) {
    const rfi_cuda_pass *what = &r->p->passes.at[pass];
    rf_status status = RF_OK;
    for (int i = 0; i < what->num_branches && !status; i++) {
        const rfi_branch *branch = &r->spec->plan.branches[what->branches[i]];
        const rfi_output *y = &piece->outputs[branch->output], *indices = y + (branch->top > 0);
        const rfi_cuda_found found = {
            .search = rfi_cuda_before_of(r, what->branches[i]),
            .batch = piece->rows,
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

/* A launch of a pass for what it knows ahead: of other columns, without results. */
static rfi_cuda_fold fold_ahead(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold, int64_t columns) {
    rfi_cuda_fold ahead = *fold;
    ahead.out_features = columns;
    ahead.groups = rfi_cuda_groups(&r->l->passes[pass].choice, columns);
    ahead.num_results = 0;
    ahead.columns = NULL;
    ahead.before[0] = ahead.before[1] = (rfi_cuda_before){0};
    return ahead;
}

/* The columns that `part` of a piece asks for, from row `first` of it on: by the kernel that computes all others, of
 * these rows of W alone, so that they have the same bits. */
static rf_status pick_ahead(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *part, int64_t first,
    const rfi_cuda_fold *fold, rfi_cuda_fold *ahead) {
    const rfi_cuda_ahead_place *at = &r->l->aheads[pass];
    const rfi_cuda_rows *w = &r->p->w;
    const int64_t item = w->dtype == RF_FLOAT64 ? 8 : w->dtype == RF_FLOAT32 ? 4 : 2, k = fold->in_features;
    const size_t number = rfi_dtype_size(r->spec->compute_dtype);
    char *const place = r->workspace + at->w;
    const int64_t depth = (k * item + 15) / 16 * 16 / item;
    const size_t apart = w->low && w->panel ? (size_t)((const char *)w->low - (const char *)w->data)
                                            : (size_t)(depth * item * part->rows);
    const rfi_cuda_diagonal diagonal = {
        .asked = fold->columns + first,
        .rows = part->rows,
        .in_features = k,
        .out_features = fold->out_features,
        .from = *w,
        .to = {.data = place,
            .low = w->low ? place + apart : NULL,
            .least = w->least ? place + 2 * apart : NULL,
            .scale = w->scale ? (float *)(r->workspace + at->scale) : NULL,
            .ld = w->panel ? (part->rows + RFI_BLOCK_ROWS - 1) / RFI_BLOCK_ROWS * RFI_BLOCK_ROWS : depth,
            .dtype = w->dtype,
            .panel = w->panel},
        .bias = fold->bias,
        .vectors = fold->vectors,
        .to_bias = r->workspace + at->bias,
        .to_vectors = r->workspace + at->vectors,
        .columns = (int64_t *)(r->workspace + at->columns),
        .num_vectors = fold->num_vectors,
        .dtype = r->spec->compute_dtype,
    };
    *ahead = fold_ahead(r, pass, fold, part->rows);
    ahead->batch = part->rows;
    ahead->x = (rfi_cuda_rows){.data = part->x, .ld = part->ldx, .dtype = r->call->x_dtype};
    ahead->w = diagonal.to;
    ahead->w_borrowed = 1; /* a kernel in front writes it */
    ahead->bias = diagonal.to_bias;
    ahead->vectors = diagonal.to_vectors;
    ahead->columns = diagonal.columns;
    ahead->picked = (char *)fold->picked + (size_t)first * number;
    ahead->keeps_states = 0;
    rf_status status =
        rfi_cuda_status(rfi_cuda_launch_diagonal(&diagonal, r->call->stream), "taking the rows of W asked for");
    if (!status) status = rfi_cuda_make_ready(r, pass, part, ahead);
    return status ? status : rfi_cuda_launch_fold(r, pass, ahead);
}

static rf_status pick_all_ahead(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const int64_t chunk = r->l->aheads[pass].ahead.chunk;
    rf_status status = RF_OK;
    rfi_cuda_fold ahead;
    for (int64_t first = 0; first < piece->rows && !status; first += chunk) {
        rfi_cuda_piece part = *piece;
        part.x = (const char *)piece->x + (size_t)(first * piece->ldx) * rfi_dtype_size(r->call->x_dtype);
        part.rows = piece->rows - first < chunk ? piece->rows - first : chunk;
        status = pick_ahead(r, pass, &part, first, fold, &ahead);
    }
    return status;
}

/* States of some columns, in which the best k of all have their bound. */
static rf_status sample_ahead(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const rfi_cuda_ahead_place *at = &r->l->aheads[pass];
    const int64_t sample = at->ahead.sample;
    const size_t item = rfi_dtype_size(r->spec->compute_dtype), width = (size_t)sample * item;
    rfi_cuda_fold ahead = fold_ahead(r, pass, fold, sample);
    rf_status status = RF_OK;
    ahead.keeps_states = 1;
    if (fold->num_vectors > 1) {
        ahead.vectors = r->workspace + at->sample_vectors;
        status = rfi_cuda_status(cudaMemcpy2DAsync(r->workspace + at->sample_vectors, width, fold->vectors,
                                     (size_t)fold->out_features * item, width, (size_t)fold->num_vectors,
                                     cudaMemcpyDeviceToDevice, r->call->stream),
            "copying the vectors of some columns");
    }
    if (!status) status = rfi_cuda_make_ready(r, pass, piece, &ahead);
    return status ? status : rfi_cuda_launch_fold(r, pass, &ahead);
}

/* Once more for rows whose sample told too little: too many columns for the list came before its bound, or, where the
 * sample had other bits, too few. Mostly there are none, which the device alone knows. */
static rf_status search_again(const rfi_cuda_running *r, int pass, const rfi_cuda_pass *search,
    const rfi_cuda_piece *piece, const rfi_cuda_fold *fold) {
    unsigned *const wanted = (unsigned *)(r->workspace + r->l->aheads[pass].wanted);
    rfi_cuda_fold again = fold_ahead(r, pass, fold, fold->out_features);
    rf_status status =
        rfi_cuda_status(cudaMemsetAsync(wanted, 0, sizeof *wanted, r->call->stream), "clearing what is wanted");
    for (int i = 0; i < search->num_branches && !status; i++) {
        if (!r->spec->plan.branches[search->branches[i]].top) continue;
        again.before[i] = fold->before[i];
        status = find_bound(r, pass, search->branches[i], piece, fold->out_features, wanted);
    }
    again.wanted = wanted;
    if (!status) status = rfi_cuda_clear_again(r, pass, &again);
    return status ? status : rfi_cuda_launch_fold(r, pass, &again);
}

/* A pass and its searches at once. */
rf_status rfi_cuda_run_with_searches(
    const rfi_cuda_running *r, int pass, int searches, const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const rfi_cuda_ahead *ahead = &r->l->aheads[pass].ahead;
    const rfi_cuda_pass *search = &r->p->passes.at[searches];
    rf_status status = RF_OK;
    if (ahead->chunk) status = pick_all_ahead(r, pass, piece, fold);
    for (int i = 0; i < search->num_branches && !status; i++)
        if (!r->spec->plan.branches[search->branches[i]].top)
            status = find_bound(r, pass, search->branches[i], piece, fold->out_features, NULL);
    if (ahead->sample && !status) status = sample_ahead(r, pass, piece, fold);
    for (int i = 0; i < search->num_branches && !status; i++) {
        if (r->spec->plan.branches[search->branches[i]].top)
            status = find_bound(r, pass, search->branches[i], piece, ahead->sample, NULL);
        fold->before[i] = rfi_cuda_before_of(r, search->branches[i]);
    }
    if (!status) status = rfi_cuda_make_ready(r, pass, piece, fold);
    if (!status) status = rfi_cuda_launch_fold(r, pass, fold);
    if (ahead->sample && !status) status = search_again(r, pass, search, piece, fold);
    return status ? status : rfi_cuda_store_found(r, searches, piece);
}

/* The pass that searches for what this one begins, and knows enough of ahead; or -1. */
int rfi_cuda_searched_with(const rfi_cuda_running *r, int pass) {
    const rfi_cuda_ahead *ahead = &r->l->aheads[pass].ahead;
    if (!ahead->sample && !ahead->chunk) return -1;
    int s = pass + 1;
    while (r->p->passes.at[s].role != RFI_CUDA_SEARCHES || r->p->passes.at[s].before != pass) s++;
    return s;
}
