/* SPDX-License-Identifier: MIT */
#include "passes.h"

#include <math.h>

#include "dtype.h"
#include "sizes.h"
#include "states.h"

/* Results that rfi_answers (common/states.cuh) has all of. */
static int is_answer(int32_t reduction) {
    return reduction == RF_OP_LOGSUMEXP || reduction == RF_OP_MAX || reduction == RF_OP_ENTROPY ||
        reduction == RF_OP_ARGMAX || reduction == RF_OP_PICK || reduction == RF_OP_LOGPROB;
}

/* Those that it has of the columns with their signs turned. */
static int is_turned(int32_t reduction) { return reduction == RF_OP_MIN || reduction == RF_OP_ARGMIN; }

/* Those that have a state of their own, too, which takes less: of products of 16 bits, whose sums its kernels leave to
 * the tensor cores for long, what does not show a single logit alone. */
static int is_plain(int32_t reduction, int narrow) {
    return reduction == RF_OP_LOGSUMEXP || (!narrow && (reduction == RF_OP_MAX || reduction == RF_OP_MIN));
}

static int is_searched(int32_t reduction) { return reduction == RF_OP_RANK || reduction == RF_OP_TOPK; }

static int is_spread(int32_t reduction) {
    return reduction == RF_OP_VAR || reduction == RF_OP_STD || reduction == RF_OP_NORM;
}

static int same_values(const rfi_plan *plan, const rfi_cuda_pass *pass, const rfi_branch *branch) {
    return !plan->branches[pass->like].pre.count && !branch->pre.count;
}

static int reads_rows(const rfi_steps *steps) {
    for (int i = 0; i < steps->count; i++)
        if (steps->at[i].row) return 1;
    return 0;
}

enum {
    CHUNK = 2048,    /* rows: of so many a large tile is computed with all multiprocessors */
    CHUNK_PART = 8,  /* of the columns, at most */
    SAMPLE_PART = 4, /* likewise */
    LEAST_BLOCKS = 8,
    SAMPLE_UNIT = 256, /* columns of whole tiles */
    OPENING = 8192,    /* columns: of one wave of tiles each as many as it has room for */
    LEAST_OPENING = 4096,
    ROOM_FOR_ONE = 32 /* times the samples that all columns are: the best of one sample has 62 columns before it in the
                         mean, seldom ten times that */
};

/* Is the column that it asks for known ahead, whatever the batch? */
static int asks_ahead(const rfi_plan *plan, const rfi_branch *branch) {
    return branch->reduction == RF_OP_RANK && plan->out_features >= CHUNK * CHUNK_PART && !reads_rows(&plan->trunk) &&
        !reads_rows(&branch->pre);
}

static int joins(const rfi_plan *plan, const rfi_cuda_pass *pass, const rfi_branch *branch) {
    const int32_t first = plan->branches[pass->like].reduction;
    if (pass->role != RFI_CUDA_GIVES || !same_values(plan, pass, branch)) return 0;
    if (is_turned(first) && is_turned(branch->reduction)) return 1;
    if (!(is_answer(first) || is_searched(first))) return 0;
    if (!(is_answer(branch->reduction) || is_searched(branch->reduction))) return 0;
    if (is_searched(branch->reduction) && pass->searched == RFI_CUDA_MOST_BOUNDS) return 0;
    return !branch->row || asks_ahead(plan, branch) || pass->column < 0 || branch->row - 1 == pass->column;
}

/* What a result is read from. */
static int shown_by(int32_t reduction) {
    switch (reduction) {
    case RF_OP_LOGSUMEXP:
    case RF_OP_LOGPROB: return RFI_CUDA_SHOWS_TOTAL;
    case RF_OP_ENTROPY: return RFI_CUDA_SHOWS_TOTALS;
    case RF_OP_ARGMAX:
    case RF_OP_ARGMIN: return RFI_CUDA_SHOWS_COLUMN;
    default: return 0;
    }
}

/* What the pass's state is. */
static void settle(const rfi_plan *plan, int narrow, rfi_cuda_pass *pass) {
    const rfi_branch *first = &plan->branches[pass->like];
    pass->reduction = first->reduction;
    const int rows = reads_rows(&plan->trunk) || reads_rows(&first->pre), words = rfi_reduction_words(pass->reduction);
    pass->states = rows || words > 2 || rfi_reduction_flags(pass->reduction) & RFI_RF_INDEX ? RFI_CUDA_OTHER_STATES
                                                                                            : RFI_CUDA_PAIRS;
    if (pass->role == RFI_CUDA_SEARCHES || pass->role == RFI_CUDA_SPREADS || pass->searched || pass->column >= 0 ||
        ((is_answer(pass->reduction) || is_turned(pass->reduction)) &&
            (pass->num_branches > 1 || rows || !is_plain(pass->reduction, narrow)))) {
        pass->turned = is_turned(pass->reduction);
        pass->reduction = RFI_CUDA_ANSWERS;
        pass->shows = pass->keeps_states ? RFI_CUDA_SHOWS_COLUMN : 0; /* a search begins with the best of each */
        for (int i = 0; i < pass->num_branches; i++)
            pass->shows |= shown_by(plan->branches[pass->branches[i]].reduction);
        pass->states = pass->searched || pass->role == RFI_CUDA_SEARCHES || pass->role == RFI_CUDA_SPREADS
            ? RFI_CUDA_SEARCH_STATES
            : RFI_CUDA_ANSWER_STATES;
    }
}

static rfi_cuda_pass *add(rfi_cuda_passes *passes, rfi_cuda_role role, int like, int before) {
    rfi_cuda_pass *pass = &passes->at[passes->count++];
    *pass = (rfi_cuda_pass){.role = role, .like = like, .before = before, .column = -1};
    return pass;
}

/* To the pass for the results that it gives, and to that behind it for what is searched. */
static void place(const rfi_plan *plan, int b, rfi_cuda_passes *passes) {
    const rfi_branch *branch = &plan->branches[b];
    int i = 0;
    while (i < passes->count && !joins(plan, &passes->at[i], branch)) i++;
    if (i == passes->count) add(passes, RFI_CUDA_GIVES, b, -1);
    rfi_cuda_pass *pass = &passes->at[i];
    if (branch->row && !asks_ahead(plan, branch)) pass->column = branch->row - 1;
    if (!is_searched(branch->reduction)) {
        pass->branches[pass->num_branches++] = b;
        return;
    }
    pass->keeps_states |= branch->top > 0;
    if (!pass->searched++) add(passes, RFI_CUDA_SEARCHES, b, i);
    rfi_cuda_pass *search = &passes->at[rfi_cuda_search_of(passes, i)];
    search->branches[search->num_branches++] = b;
}

/* Variances and deviations have the same squares. */
static void place_spread(const rfi_plan *plan, int b, rfi_cuda_passes *passes) {
    const rfi_branch *branch = &plan->branches[b];
    int i = 0;
    while (i < passes->count &&
        !(passes->at[i].role == RFI_CUDA_SPREADS && same_values(plan, &passes->at[i], branch) &&
            (plan->branches[passes->at[i].like].reduction == RF_OP_NORM) == (branch->reduction == RF_OP_NORM)))
        i++;
    if (i == passes->count) { add(passes, RFI_CUDA_SPREADS, b, -1); }
    passes->at[i].branches[passes->at[i].num_branches++] = b;
}

void rfi_cuda_passes_of(const rfi_plan *plan, rf_dtype weight_dtype, rfi_cuda_passes *passes) {
    const int narrow = rfi_is_16_bit(weight_dtype);
    passes->count = 0;
    passes->at[0] = (rfi_cuda_pass){.reduction = RF_OP_MAX, .column = -1};
    for (int b = 0; b < plan->num_branches; b++) {
        const rfi_branch *branch = &plan->branches[b];
        if (is_spread(branch->reduction)) place_spread(plan, b, passes);
        else if (!branch->gathers) place(plan, b, passes);
    }
    for (int i = 0; i < passes->count; i++) settle(plan, narrow, &passes->at[i]);
}

const rfi_cuda_pass *rfi_cuda_hardest_pass(const rfi_cuda_passes *passes) {
    const rfi_cuda_pass *hardest = &passes->at[0];
    for (int i = 1; i < passes->count; i++)
        if (passes->at[i].states > hardest->states) hardest = &passes->at[i];
    return hardest;
}

int rfi_cuda_search_of(const rfi_cuda_passes *passes, int pass) {
    for (int s = pass + 1; s < passes->count; s++)
        if (passes->at[s].role == RFI_CUDA_SEARCHES && passes->at[s].before == pass) return s;
    return -1;
}

/* More than half as many blocks again as columns, and so many columns that a list of k blocks has room for several
 * times what mostly comes before the bound, which is one and a half times k for each sample that all columns are. */
int64_t rfi_cuda_sample_of(const rfi_plan *plan, int k, const rfi_cuda_choice *choice) {
    const int64_t blocks = k + k * 5 / 8, least_columns = 4 * plan->out_features / choice->fold_columns,
                  columns = (blocks < LEAST_BLOCKS ? LEAST_BLOCKS : blocks) * choice->ahead_columns;
    return round_up(columns > least_columns ? columns : least_columns, SAMPLE_UNIT);
}

int64_t rfi_cuda_room_of(const rfi_plan *plan, int k, const rfi_cuda_choice *choice) {
    const int64_t sampled = ROOM_FOR_ONE * ceil_div(plan->out_features, rfi_cuda_sample_of(plan, k, choice)),
                  blocks = (int64_t)k * choice->fold_columns;
    return k ? least(blocks > sampled ? blocks : sampled, plan->out_features) : 0;
}

/* Columns of whole waves of tiles, a quarter of all at most. */
static int64_t opening_of(const rfi_plan *plan, const rfi_cuda_choice *choice, int64_t batch) {
    if (!choice->opens) return 0;
    const int64_t rows = round_up(ceil_div(batch, choice->tile_rows), 2), across = OPENING / choice->tile_columns,
                  waves = ceil_div(rows * across, choice->multiprocessors),
                  columns = waves * choice->multiprocessors / rows * choice->tile_columns,
                  most_columns = plan->out_features / SAMPLE_PART,
                  whole = least(columns, most_columns) / SAMPLE_UNIT * SAMPLE_UNIT;
    return whole < LEAST_OPENING ? 0 : whole;
}

/* All columns, if some list would take as much memory, and to look through them all takes less than another pass. */
static int64_t whole_of(const rfi_plan *plan, const rfi_cuda_pass *search, const rfi_cuda_choice *choice) {
    if (plan->out_features > OPENING) return 0;
    for (int i = 0; i < search->num_branches; i++) {
        const int top = plan->branches[search->branches[i]].top;
        if (top && rfi_cuda_room_of(plan, top, choice) == plan->out_features)
            return round_up(plan->out_features, SAMPLE_UNIT); /* blocks of a cluster have a tile each, even behind
                                                                 the last column */
    }
    return 0;
}

rfi_cuda_ahead rfi_cuda_ahead_of(
    const rfi_plan *plan, const rfi_cuda_passes *passes, int pass, const rfi_cuda_choice *choice, int64_t batch) {
    rfi_cuda_ahead ahead = {0};
    const int s = rfi_cuda_search_of(passes, pass);
    if (s >= 0) ahead.whole = whole_of(plan, &passes->at[s], choice);
    for (int i = 0; s >= 0 && i < passes->at[s].num_branches; i++) {
        const rfi_branch *branch = &plan->branches[passes->at[s].branches[i]];
        const int rows = reads_rows(&plan->trunk) || reads_rows(&branch->pre);
        const int64_t chunk = rows ? batch : least(batch, CHUNK),
                      sample = rfi_cuda_sample_of(plan, branch->top, choice);
        if (branch->top && ahead.whole) continue;
        if (branch->top && opening_of(plan, choice, batch)) ahead.opening = opening_of(plan, choice, batch);
        else if (branch->top ? sample * SAMPLE_PART > plan->out_features : chunk * CHUNK_PART > plan->out_features)
            ahead.behind++;
        else if (!branch->top) ahead.chunk = chunk;
        else if (ahead.sample < sample) ahead.sample = sample;
    }
    return ahead;
}

int rfi_cuda_state_words(const rfi_cuda_pass *pass) {
    return pass->reduction == RFI_CUDA_ANSWERS ? 4 : rfi_reduction_words(pass->reduction);
}

void rfi_cuda_pre_steps(const rfi_plan *plan, const rfi_branch *branch, const rfi_cuda_pass *pass, rfi_steps *pre) {
    *pre = plan->trunk;
    for (int i = 0; i < branch->pre.count; i++) pre->at[pre->count++] = branch->pre.at[i];
    if (pass && pass->turned)
        pre->at[pre->count++] = (rfi_step){.kind = RF_OP_MUL, .vector = -1, .a = -1, .source = -1};
}

int rfi_cuda_lower_step(const rfi_step *step, rfi_step lowered[RFI_CUDA_LOWERED]) {
    lowered[0] = *step;
    if (step->kind == RF_OP_NORM) {
        lowered[0] = (rfi_step){.kind = RF_OP_ABS, .vector = -1};
    } else if (step->kind == RF_OP_VAR || step->kind == RF_OP_STD) {
        lowered[0] = (rfi_step){.kind = RF_OP_MUL, .vector = -1, .a = rfi_divisor_f64(1, step->a) > 0 ? 0 : NAN};
        lowered[1] = (rfi_step){.kind = RF_OP_ADD, .vector = -1}; /* -0 to 0 */
        return 2;
    }
    return 1;
}

static int count_steps(const rfi_steps *steps) {
    rfi_step lowered[RFI_CUDA_LOWERED];
    int count = 0;
    for (int i = 0; i < steps->count; i++) count += rfi_cuda_lower_step(&steps->at[i], lowered);
    return count;
}

int rfi_cuda_num_pre(const rfi_plan *plan, const rfi_cuda_pass *pass) {
    return plan->trunk.count + plan->branches[pass->like].pre.count + pass->turned;
}

int rfi_cuda_num_steps(const rfi_plan *plan, const rfi_cuda_pass *pass) {
    int steps = rfi_cuda_num_pre(plan, pass);
    for (int i = 0; i < pass->num_branches; i++) steps += count_steps(&plan->branches[pass->branches[i]].post);
    return steps;
}
