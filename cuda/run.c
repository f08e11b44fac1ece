/* SPDX-License-Identifier: MIT */
/* The passes of a call: prepares x where the kernel asks for it, and launches. */
#include "run.h"

#include "answers.h"
#include "device.h"
#include "dtype.h"
#include "error.h"
#include "shards.h"
#include "terms.h"

static cudaError_t (*const launchers[])(const rfi_cuda_fold *, cudaStream_t) = {
#define RFI_CUDA_KERNEL(id, name, family, tile_rows, tile_columns, fold_columns, can_run, efficiency, fold, launcher) \
    launcher,
#include "kernels.def"
#undef RFI_CUDA_KERNEL
};

rfi_cuda_clear rfi_cuda_clear_of(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold) {
    const rfi_cuda_layout *l = &r->l->passes[pass];
    return (rfi_cuda_clear){.words = (unsigned *)(r->workspace + l->tickets),
        .count = l->num_tickets,
        .overlaps = fold->schedule.overlaps,
        .w_in_flight = fold->schedule.w_in_flight};
}

/* x in terms, which becomes the fold's, and words cleared. */
rf_status rfi_cuda_bring_to_terms(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece,
    const rfi_cuda_clear *clear, rfi_cuda_fold *fold) {
    const rfi_cuda_layout *l = &r->l->passes[pass];
    char *const workspace = r->workspace;
    const int terms = l->problem.x_terms;
    rfi_cuda_split split = {
        .data = piece->x,
        .rows = piece->rows,
        .columns = r->spec->plan.in_features,
        .ld = piece->ldx,
        .dtype = l->problem.x_dtype,
        .terms = terms,
        .term_dtype = l->problem.term_dtype,
        .high = workspace + l->terms[0],
        .low = terms > 1 ? workspace + l->terms[1] : NULL,
        .least = terms > 2 ? workspace + l->terms[2] : NULL,
        .ld_terms = l->depth * l->levels,
        .depth = l->depth,
        .strict = r->p->strict,
        .dense = r->p->dense,
        .thin = r->p->thin,
        .w_infinite = r->p->w_infinite,
        .w_several = r->p->w_several,
        .last_meets_first =
            rfi_cuda_last_meets_first(terms, l->problem.w_terms) && !r->p->w_infinite && !r->p->w_several,
        .verdicts = r->p->verdicts,
        .scale = (float *)(workspace + l->scale),
        .lone = rfi_cuda_finds_lone(r->p, r->spec, &l->problem) ? (rfi_cuda_lone *)(workspace + l->lone) : NULL,
        .irregular = (uint8_t *)(workspace + l->flag),
        .clear = *clear,
    };
    if (l->levels == 2)
        split.levels = (rfi_cuda_levels){(uint8_t *)(workspace + l->wide), (float *)(workspace + l->ratio)};
    fold->product.irregular = split.irregular;
    fold->product.levels = split.levels;
    fold->product.lone = split.lone;
    fold->product.x_stored = fold->product.x;
    fold->product.x = (rfi_cuda_rows){.data = split.high,
        .low = split.low,
        .least = split.least,
        .scale = split.term_dtype == RF_FLOAT32 ? NULL : split.scale,
        .ld = split.ld_terms,
        .dtype = split.term_dtype,
        .level = l->levels == 2 ? l->depth : 0};
    return rfi_cuda_status(rfi_cuda_launch_split(&split, r->call->stream), "preparing x");
}

/* Clears the tickets and prepares x. */
rf_status rfi_cuda_make_ready(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const rfi_cuda_layout *l = &r->l->passes[pass];
    cudaStream_t stream = r->call->stream;
    const rfi_cuda_clear clear = rfi_cuda_clear_of(r, pass, fold);
    if (l->choice.uses_terms) return rfi_cuda_bring_to_terms(r, pass, piece, &clear, fold);
    const size_t item = rfi_dtype_size(l->problem.x_dtype);
    if (!l->choice.aligned_x ||
        rfi_cuda_in_pieces(piece->x, piece->ldx, r->spec->plan.in_features, item, piece->padded))
        return rfi_cuda_status(rfi_cuda_launch_clear(&clear, stream), "clearing the tickets");
    const rfi_cuda_copy copy = {
        .from = piece->x,
        .to = r->workspace + l->copy,
        .rows = piece->rows,
        .columns = r->spec->plan.in_features,
        .ld_from = piece->ldx,
        .ld_to = l->depth,
        .clear = clear,
    };
    fold->product.x.data = copy.to;
    fold->product.x.ld = copy.ld_to;
    return rfi_cuda_status(rfi_cuda_launch_copy(&copy, stream), "aligning x");
}

/* The kernel of a layout, or that for what is known ahead, for what is prepared. */
static rf_status launch_kernel(
    const rfi_cuda_running *r, int pass, rfi_cuda_kernel_id kernel, const rfi_cuda_fold *fold) {
    const rfi_cuda_layout *l = &r->l->passes[pass];
    rf_status status = RF_OK;
    if (l->choice.uses_terms && !l->choice.irregular)
        status = rfi_cuda_status(rfi_cuda_fold_irregular(fold, r->call->stream), "computing irregular rows");
    return status ? status : rfi_cuda_status(launchers[kernel](fold, r->call->stream), "launching the kernel");
}

rf_status rfi_cuda_launch_fold(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold) {
    return launch_kernel(r, pass, r->l->passes[pass].choice.kernel, fold);
}

rf_status rfi_cuda_launch_ahead(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold) {
    return launch_kernel(r, pass, r->l->passes[pass].choice.ahead, fold);
}

/* Before the next launch with the same rows: x stays as it is prepared. */
rf_status rfi_cuda_clear_again(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold) {
    const rfi_cuda_clear clear = rfi_cuda_clear_of(r, pass, fold);
    return rfi_cuda_status(rfi_cuda_launch_clear(&clear, r->call->stream), "clearing the tickets");
}

/* The mean of what is cut off of RFI_SM90_PART products, of its own size, in units of 2^-24, by the model of
 * tools/tensor_sums.py. Of fewer products it is as much less. */
enum { REGAINED_BINARY16 = 6, REGAINED_BFLOAT16 = 2 };

static float regain_of(const rfi_cuda_prepared *p, int64_t in_features) {
    if (!p->findings.fine || p->w_terms) return 1;
    const int units = p->w.dtype == RF_FLOAT16 ? REGAINED_BINARY16 : p->w.dtype == RF_BFLOAT16 ? REGAINED_BFLOAT16 : 0;
    const double part = in_features < RFI_SM90_PART ? (double)in_features / RFI_SM90_PART : 1;
    return (float)(1 + units * part * 0x1p-24);
}

/* What all launches of a piece are told. */
static rfi_cuda_fold fold_of(const rfi_cuda_running *r, const rfi_cuda_piece *piece, const rfi_cuda_chain *chain) {
    const rfi_cuda_prepared *p = r->p;
    return (rfi_cuda_fold){.product = {.x = {.data = piece->x, .ld = piece->ldx, .dtype = r->call->x_dtype},
                               .w = p->w,
                               .batch = piece->rows,
                               .in_features = r->spec->plan.in_features,
                               .out_features = r->spec->plan.out_features,
                               .depth = rfi_cuda_depth(p, r->spec),
                               .verdicts = p->verdicts,
                               .regain = regain_of(p, r->spec->plan.in_features)},
        .visitor = {.batch = piece->rows,
            .out_features = r->spec->plan.out_features,
            .bias = p->columns,
            .vectors = p->vectors,
            .num_vectors = r->spec->plan.num_vectors,
            .row_inputs = r->spec->plan.num_rows ? r->workspace + r->l->row_numbers : NULL,
            .chain = *chain},
        .schedule = {.shared_per_block = (int32_t)p->figures.shared_per_block,
            .overlaps = p->overlaps,
            .w_in_flight = !p->weight || p->updating,
            .apart = p->updating}};
}

/* Where results of a pass go. */
static void give_results(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const rfi_cuda_pass *what = &r->p->passes.at[pass];
    fold->visitor.num_results = what->num_branches;
    for (int i = 0; i < what->num_branches; i++) {
        const rfi_output *out = &piece->outputs[r->spec->plan.branches[what->branches[i]].output];
        fold->visitor.results[i] = r->p->programs[pass].results[i];
        fold->visitor.results[i].y = out->data;
        fold->visitor.results[i].ldy = out->ld;
        fold->visitor.results[i].y_dtype = out->dtype;
    }
}

static void give_y(const rfi_cuda_running *r, int branch, const rfi_cuda_piece *piece, rfi_cuda_fold *fold) {
    const rfi_output *y = &piece->outputs[r->spec->plan.branches[branch].output];
    fold->visitor.y = y->data;
    fold->visitor.ldy = y->ld;
    fold->visitor.y_dtype = y->dtype;
}

static rfi_cuda_spread spread_of(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold) {
    const rfi_cuda_pass *what = &r->p->passes.at[pass];
    rfi_cuda_spread spread = {.fold = *fold, .dtype = r->spec->compute_dtype};
    for (int i = 0; i < what->num_branches; i++) spread.counts[i] = r->spec->plan.branches[what->branches[i]].count;
    return spread;
}

/* Before a pass for squares: room for them. */
static rf_status begin_spread(const rfi_cuda_running *r, int pass, rfi_cuda_fold *fold) {
    const rfi_cuda_spread_place *at = &r->l->spreads[pass];
    const size_t words = (size_t)(fold->product.batch * at->units) * RFI_CUDA_SQUARE_WORDS;
    fold->visitor.squares = (rfi_cuda_squares){
        .sums = r->workspace + at->sums,
        .units = at->units,
        .magnitudes = r->spec->plan.branches[r->p->passes.at[pass].like].reduction == RF_OP_NORM,
    };
    return rfi_cuda_status(
        cudaMemsetAsync(fold->visitor.squares.sums, 0, words * rfi_dtype_size(r->spec->compute_dtype), r->call->stream),
        "clearing the squares' place");
}

/* The kernel merges the states of its rows as always, which is little beside the fold, but nobody reads the results. */
static void want_states(const rfi_cuda_running *r, const rfi_cuda_layout *l, rfi_cuda_fold *fold) {
    fold->visitor.y = r->workspace + l->unread;
    fold->visitor.ldy = 1;
    fold->visitor.y_dtype = r->spec->compute_dtype;
    fold->visitor.chain.num_post = 0;
    fold->visitor.num_results = 0;
    fold->visitor.keeps_states = 1;
}

static rf_status run_pass(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece) {
    cudaStream_t stream = r->call->stream;
    const rfi_cuda_prepared *p = r->p;
    const rfi_cuda_layout *l = &r->l->passes[pass];
    const rfi_cuda_pass *what = &p->passes.at[pass];
    char *workspace = r->workspace;
    rf_status status = RF_OK;
    if (what->role == RFI_CUDA_SEARCHES) return RF_OK; /* the pass before has done it */
    rfi_cuda_fold fold = fold_of(r, piece, &p->programs[pass].chain);
    fold.visitor.fold_columns = l->choice.fold_columns;
    fold.visitor.partials = workspace + l->partials;
    fold.visitor.num_partials = l->num_partials;
    fold.visitor.picked = workspace + l->picked;
    unsigned *const words = (unsigned *)(workspace + l->tickets);
    fold.schedule.tickets = what->reduction && !l->choice.apart ? words : NULL;
    fold.schedule.groups = l->groups;
    fold.schedule.splits = l->choice.splits;
    fold.schedule.whole_columns = l->choice.whole_columns;
    fold.schedule.split_depth = l->choice.split_depth;
    fold.schedule.split_sums = workspace + l->split_sums;
    fold.schedule.split_tickets = words + l->split_tickets;
    fold.visitor.keeps_states = what->keeps_states;
    if (what->column >= 0)
        fold.visitor.columns = (const int64_t *)(workspace + r->l->row_columns) + what->column * piece->rows;
    if (what->reduction != RFI_CUDA_ANSWERS) give_y(r, what->branches[0], piece, &fold);
    else if (what->role == RFI_CUDA_GIVES) give_results(r, pass, piece, &fold);
    if (piece->states) want_states(r, l, &fold);
    else if (p->collapsed) return rfi_cuda_collapse_launch(p, &fold, stream);
    if (what->role == RFI_CUDA_SPREADS) status = begin_spread(r, pass, &fold);
    if (l->split_tickets) {
        fold.schedule.next_tile = words + l->split_tickets - RFI_CUDA_COUNTERS;
        fold.schedule.irregular_tickets = words + l->irregular_tickets;
    }
    if (what->searched) return rfi_cuda_run_with_searches(r, pass, piece, &fold);
    if (!status) status = rfi_cuda_make_ready(r, pass, piece, &fold);
    if (!status) status = rfi_cuda_launch_fold(r, pass, &fold);
    if (!status && piece->states) status = rfi_cuda_write_states(r->spec, what, &fold, piece->states, stream);
    if (status || piece->states) return status;
    if (what->role == RFI_CUDA_SPREADS) {
        give_results(r, pass, piece, &fold);
        const rfi_cuda_spread spread = spread_of(r, pass, &fold);
        status = rfi_cuda_status(rfi_cuda_launch_spread(&spread, stream), "adding the squares");
    }
    return status;
}

/* Columns that a branch gathers: no pass, and W as the model keeps it. */
static rf_status gather(
    const rfi_cuda_running *r, int branch, const rfi_cuda_chain *chain, const rfi_cuda_piece *piece) {
    const rfi_row_values *asked = &piece->gathers[r->spec->plan.branches[branch].row - 1];
    const int by_list = r->call->wanted && asked->memory == RF_MEMORY_DEVICE;
    rfi_cuda_gather gather = {
        .fold = fold_of(r, piece, chain),
        .asked = asked->data,
        .ld = asked->ld,
        .columns = asked->columns,
        .asked_dtype = asked->dtype,
        .dtype = r->spec->compute_dtype,
        .list = by_list ? (const int64_t *)(r->workspace + r->l->list) : NULL,
        .asked_rows = by_list ? r->call->x_rows : piece->rows,
    };
    give_y(r, branch, piece, &gather.fold);
    return rfi_cuda_status(rfi_cuda_launch_gather(&gather, r->call->stream), "gathering columns");
}

/* The passes one behind the other, in the same place. */
rf_status rfi_cuda_run_piece(const rfi_cuda_running *r, const rfi_cuda_piece *piece) {
    const rfi_plan *plan = &r->spec->plan;
    rf_status status = RF_OK;
    for (int pass = 0; pass < r->p->passes.count && !status; pass++)
        if (!piece->states || rfi_cuda_has_folds(plan, &r->p->passes.at[pass])) status = run_pass(r, pass, piece);
    if (piece->states) return status;
    const rfi_cuda_program *program = r->p->programs + r->p->passes.count;
    for (int b = 0; b < plan->num_branches && !status; b++)
        if (plan->branches[b].gathers) status = gather(r, b, &program++->chain, piece);
    return status;
}
