/* SPDX-License-Identifier: MIT */
/* What the kernels of sm_90a can run: a part of choose.c. */
#ifndef ROWFOLD_CUDA_SM90_FAMILY_H
#define ROWFOLD_CUDA_SM90_FAMILY_H

/* Columns of a stage of hopper_128x256 and the like, which is a panel of W where that is in blocks. */
static int stage_columns(const rfi_cuda_problem *p) {
    return p->w_terms == 3 ? 16 : p->w_terms <= 1 && p->x_terms < 3 ? 64 : 32;
}

static int on_hopper(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return f->major == 9 && f->minor == 0 && in_16_bit(p) && p->num_vectors <= RFI_SM90_VECTORS && p->out_features &&
        p->in_features && (!p->w_panel || p->w_panel == stage_columns(p));
}

static int runs_hopper(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return on_hopper(p, f) && p->states == RFI_CUDA_PAIRS;
}

/* As kernels see it that read one term of W by 64 columns, however many terms x has: blocks of 64 columns are as good
 * as rows (0), others they cannot read (-1). */
static rfi_cuda_problem of_wide_stages(const rfi_cuda_problem *p) {
    rfi_cuda_problem same = *p;
    if (p->w_terms <= 1 && p->w_panel) same.w_panel = p->w_panel == 64 ? 0 : -1;
    return same;
}

/* Tiles of 64 rows. */
static int runs_hopper_64(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    const rfi_cuda_problem wide = of_wide_stages(p);
    return runs_hopper(&wide, f);
}

/* One product, and a reduction, for which the kernel is made. Its states are of 192 columns, which the columns that
 * must be alike are no multiple of. */
static int runs_hopper_192(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper(p, f) && p->w_terms <= 1 && p->x_terms <= 1 && !in_tf32(p) && p->reduction && !p->alike;
}

static int runs_hopper_answers(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return on_hopper(p, f) && p->states == RFI_CUDA_ANSWER_STATES;
}

/* One product, for which it is compiled. */
static int runs_hopper_answers_single(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper_answers(p, f) && p->w_terms <= 1 && p->x_terms <= 1 && !in_tf32(p);
}

static int runs_hopper_searches(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return on_hopper(p, f) && p->states == RFI_CUDA_SEARCH_STATES;
}

static int runs_hopper_answers_64(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    const rfi_cuda_problem wide = of_wide_stages(p);
    return runs_hopper_answers(&wide, f);
}
static int runs_hopper_searches_64(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    const rfi_cuda_problem wide = of_wide_stages(p);
    return runs_hopper_searches(&wide, f);
}

/* 16-bit values as they are stored. A kernel behind it merges the states of all columns, of which those of several
 * results are twice as large. */
static int are_turned(const rfi_cuda_problem *p, int64_t most_states) {
    return !p->w_terms && !p->x_terms && p->reduction && !p->batch_invariant &&
        p->batch <= most_states / ceil_div(p->out_features, RFI_FOLD_COLUMNS);
}
static int runs_hopper_turned(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper(p, f) && are_turned(p, RFI_TURNED_STATES);
}
static int runs_hopper_turned_answers(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return (runs_hopper_answers(p, f) || runs_hopper_searches(p, f)) && are_turned(p, RFI_TURNED_STATES / 2);
}

/* The last of so many parts of K has what stages the others leave, one at least. */
static int has_parts(const rfi_cuda_problem *p, int parts) {
    const int64_t stages = ceil_div(p->in_features, 64);
    return (parts - 1) * ceil_div(stages, parts) < stages;
}
static int runs_hopper_thirds(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper_turned(p, f) && has_parts(p, 3);
}
static int runs_hopper_thirds_answers(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper_turned_answers(p, f) && has_parts(p, 3);
}
static int runs_hopper_quarters(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper_turned(p, f) && has_parts(p, 4);
}
static int runs_hopper_eighths(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper_turned(p, f) && has_parts(p, 8);
}
static int runs_hopper_quarters_answers(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper_turned_answers(p, f) && has_parts(p, 4);
}
static int runs_hopper_eighths_answers(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper_turned_answers(p, f) && has_parts(p, 8);
}

/* Three terms of x are three times as wide. */
static int is_small(const rfi_cuda_problem *p) {
    return !in_tf32(p) && p->batch <= (p->x_terms == 3 ? 32 : 64) && !p->batch_invariant;
}

static int runs_hopper_small(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    const rfi_cuda_problem wide = of_wide_stages(p);
    return runs_hopper(&wide, f) && is_small(p);
}

/* K of two stages at least, for there are two parts of it. */
static int runs_hopper_halves(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    const rfi_cuda_problem wide = of_wide_stages(p);
    return runs_hopper(&wide, f) && p->w_terms < 3 && !in_tf32(p) && p->in_features > RFI_HALVES_DEPTH &&
        !p->batch_invariant;
}

static int runs_hopper_answers_small(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    const rfi_cuda_problem wide = of_wide_stages(p);
    return (runs_hopper_answers(&wide, f) || runs_hopper_searches(&wide, f)) && is_small(p);
}

/* One product of 16-bit values as they are stored, all of which run at once. */
static int runs_whole(const rfi_cuda_problem *p, const rfi_cuda_figures *f, int tile_rows, int tile_columns) {
    const int blocks = rfi_whole_blocks(p->out_features, tile_columns);
    return blocks && !p->w_terms && !p->x_terms && p->reduction && !p->batch_invariant && !p->keeps_states &&
        ceil_div(p->batch, tile_rows) <= rfi_whole_clusters(blocks, f->multiprocessors);
}
static int runs_hopper_whole_64x64(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper(p, f) && runs_whole(p, f, 64, 64);
}
static int runs_hopper_whole_64x128(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper(p, f) && runs_whole(p, f, 64, 128);
}
static int runs_hopper_whole_128x128(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper(p, f) && runs_whole(p, f, 128, 128);
}
static int runs_hopper_answers_whole_64x64(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper_answers(p, f) && runs_whole(p, f, 64, 64);
}
static int runs_hopper_answers_whole_64x128(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper_answers(p, f) && runs_whole(p, f, 64, 128);
}
static int runs_hopper_answers_whole_128x128(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    return runs_hopper_answers(p, f) && runs_whole(p, f, 128, 128);
}

/* Of W's blocks, for a problem that has it in rows; 0: in rows. */
static int panel_of(const rfi_cuda_problem *p, const rfi_cuda_figures *f) {
    if (!on_hopper(p, f) || p->states == RFI_CUDA_OTHER_STATES) return 0;
    /* Of W as it is stored the same for x of any type, which may be another with every call. hopper_128x256 and
     * hopper_128x128 cannot read that beside three terms of x; others are as good up to some hundred rows. */
    return p->w_terms ? stage_columns(p) : in_tf32(p) ? 0 : 64;
}

/* What all kernels of tiles have in common. */
#define HOPPER_TILES .unit = WARPGROUP16, .terms = 1, .irregular = 1, .groups = 1, .affine = 1
static const family HOPPER = {HOPPER_TILES, .paired = 128, .beside = 64, .single = 1.12, .single_start = -0.7e-6};
static const family HOPPER_256 = {
    HOPPER_TILES, .paired = 128, .beside = 64, .single = 1.12, .start = 3e-6, .single_start = -3.2e-6};
#define ANSWERS HOPPER_TILES, .single_joins = 1
static const family HOPPER_ANSWERS = {
    ANSWERS, .paired = 128, .beside = 64, .single = 0.84, .single_start = 1.1e-6, .single_fold = 4.6};
static const family HOPPER_ANSWERS_128 = {
    ANSWERS, .paired = 128, .single = 1.28, .single_start = 2.6e-6, .single_fold = 3.8};
static const family HOPPER_ANSWERS_256 = {
    ANSWERS, .paired = 128, .beside = 64, .single = 1.42, .single_start = 3.3e-6, .single_fold = 5.7};
static const family HOPPER_SEARCHES = {
    ANSWERS, .paired = 128, .beside = 64, .single = 0.72, .single_start = 0.9e-6, .single_fold = 7.3};
static const family HOPPER_SEARCHES_256 = {
    ANSWERS, .paired = 128, .beside = 64, .single = 1.27, .single_start = -1.6e-6, .single_fold = 12.6};
#undef ANSWERS
static const family HOPPER_192 = {HOPPER_TILES, .beside = 128, .start = -0.45e-6};
static const family HOPPER_128 = {
    HOPPER_TILES, .paired = 128, .single = 1.16, .start = 2.5e-6, .single_start = -2.75e-6};
static const family HOPPER_HALVES = {HOPPER_TILES, .of_cluster = 2, .single = 0.945};
static const family HOPPER_WHOLE = {HOPPER_TILES, .whole = 1, .start = 0.1e-6};
static const family HOPPER_ANSWERS_WHOLE = {HOPPER_TILES, .whole = 1, .start = 2.3e-6};
#undef HOPPER_TILES
#define TURNED .unit = WARPGROUP16, .terms = 1, .irregular = 1, .turned = 1
#define TURNED_PAIRS TURNED, .memory = 1.2
#define TURNED_ANSWERS TURNED, .memory = 0.93
static const family HOPPER_TURNED = {TURNED_PAIRS, .beside = RFI_TURNED_ROWS, .start = -0.65e-6};
static const family HOPPER_TURNED_HALVES = {TURNED_PAIRS, .of_cluster = 2, .start = -0.75e-6};
static const family HOPPER_TURNED_THIRDS = {TURNED_PAIRS, .of_cluster = 3, .start = -1.2e-6};
static const family HOPPER_TURNED_QUARTERS = {TURNED_PAIRS, .of_cluster = 4, .start = -0.2e-6};
static const family HOPPER_TURNED_EIGHTHS = {TURNED_PAIRS, .of_cluster = 8, .start = -2.7e-6};
static const family HOPPER_TURNED_ANSWERS = {TURNED_ANSWERS, .beside = RFI_TURNED_ANSWERS_ROWS, .start = 2.8e-6};
static const family HOPPER_TURNED_ANSWERS_HALVES = {TURNED_ANSWERS, .of_cluster = 2, .start = 2.8e-6};
static const family HOPPER_TURNED_ANSWERS_THIRDS = {TURNED_ANSWERS, .of_cluster = 3, .start = -1.05e-6};
static const family HOPPER_TURNED_ANSWERS_QUARTERS = {TURNED_ANSWERS, .of_cluster = 4, .start = -1.55e-6};
static const family HOPPER_TURNED_ANSWERS_EIGHTHS = {TURNED_ANSWERS, .of_cluster = 8, .start = -0.8e-6};
#undef TURNED_PAIRS
#undef TURNED_ANSWERS
#undef TURNED
#define HOPPER_FEW \
    .unit = WARPGROUP16, .terms = 1, .irregular = 1, .promotes = 1, .least_rows = 8, .shares = 1, .start = 2e-6
static const family HOPPER_SMALL = {HOPPER_FEW, .single_memory = 0.98, .single_start = -1.2e-6, .single_fold = 5};
static const family HOPPER_ANSWERS_SMALL = {
    HOPPER_FEW, .single_memory = 0.94, .single = 1.32, .single_start = 1e-6, .single_fold = 3.4, .single_joins = 1};
#undef HOPPER_FEW

#endif
