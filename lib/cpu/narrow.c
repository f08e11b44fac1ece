/* SPDX-License-Identifier: MIT */
/* Layers of few columns: a task is a block of rows. Steps run along the rows or along the columns, whichever leaves
 * fewer lanes empty; a reduction folds a row a lane. */
#include <string.h>

#include "cpu/forward.h"
#include "dtype.h"
#include "sizes.h"

/* A block of rows, and the scratch of the thread that works on it. */
typedef struct block {
    int64_t row;
    int rows, columns;
    int column, columns_end; /* the columns that the task multiplies */
    size_t value;            /* bytes of the compute type */
    int by_row;              /* where the logits are: in by_rows or in by_columns */
    int64_t ld;              /* values from one row of by_rows to the next */
    char *x, *lanes;
    char *by_columns; /* (columns, RFI_CPU_NARROW_ROWS) */
    char *by_rows;    /* (RFI_CPU_NARROW_ROWS, columns); later the results */
    char *own;        /* as by_columns, for a branch with steps of its own */
} block;

static block block_of_task(const rfi_cpu_run *run, int64_t task, int slot) {
    const rfi_cpu_blocking *b = &run->blocking;
    const rfi_plan *plan = &run->spec->plan;
    char *scratch = run->scratch + (size_t)slot * b->scratch;
    int rows = (int)least(b->rows, run->rows - task * b->rows), columns = (int)plan->out_features,
        panel = run->prepared->kernel->panel;
    int steps = plan->branches[0].reduction || plan->trunk.count,
        by_row = !steps || rows * round_up(columns, panel) < columns * round_up(rows, panel);
    return (block){
        .row = task * b->rows,
        .rows = rows,
        .columns = columns,
        .columns_end = columns,
        .value = rfi_dtype_size(run->spec->compute_dtype),
        .by_row = by_row,
        .ld = by_row && steps ? round_up(columns, panel) : columns,
        .x = scratch + b->x_offset,
        .lanes = scratch + b->w_offset,
        .by_columns = scratch + b->c_offset,
        .by_rows = scratch + b->rows_offset,
        .own = scratch + b->own_offset,
    };
}

static int rows_of_group(const block *t, int first) { return (int)least(RFI_CPU_GROUP_ROWS, t->rows - first); }

/* `depth` inputs from k on of the group's rows: where they are, or widened if no kernel takes them so. */
static void find_x(
    const rfi_cpu_run *run, const block *t, int first, int rows, int64_t k, int64_t depth, const void **x) {
    const rfi_forward *call = run->call;
    size_t item = rfi_dtype_size(call->x_dtype);
    for (int i = 0; i < rows && depth; i++) { /* without inputs x may be NULL */
        x[i] = rfi_cpu_x(run, t->row + first + i, item) + (size_t)k * item;
        if (run->prepared->kernel->inner[call->x_dtype]) continue;
        char *wide = t->x + (size_t)(i * RFI_CPU_X_LD) * t->value;
        run->prepared->kernel->widen(wide, x[i], call->x_dtype, depth);
        x[i] = wide;
    }
}

/* From the inputs from k on of the group at `first` to what is read next of x: the same ones of the next group that is
 * under way, the next ones of the first of these, or, behind the last, the first ones of the group that follows, if
 * there is one. Rows that do not follow each other in memory are left alone. */
static int64_t to_next(const rfi_cpu_run *run, const block *t, int begin, int first, int end, int64_t k) {
    const int64_t rows = RFI_CPU_GROUP_ROWS, group = rows * run->call->ldx;
    if (run->row_list || run->call->wanted || !run->prepared->kernel->inner[run->call->x_dtype]) return RFI_CPU_DEPTH;
    if (first + rows < end) return group;
    if (k + RFI_CPU_DEPTH < run->spec->plan.in_features) return RFI_CPU_DEPTH - (first - begin) / rows * group;
    return t->row + first + rows < run->rows ? group - k : RFI_CPU_DEPTH;
}

enum { FAR_BYTES = 1 << 24 }; /* of x: more than is near */

/* The sums of the products of a group of rows with the inputs of the chunk at k. */
static void multiply_chunk(const rfi_cpu_run *run, const block *t, int first, int64_t k, int64_t ahead, char *lanes) {
    const rfi_cpu_prepared *p = run->prepared;
    const rfi_cpu_kernel *kernel = p->kernel;
    const rf_dtype x_dtype = kernel->inner[run->call->x_dtype] ? run->call->x_dtype : run->spec->compute_dtype;
    const int rows = rows_of_group(t, first);
    const int64_t depth = least(RFI_CPU_DEPTH, run->spec->plan.in_features - k);
    const int64_t ldw = rfi_cpu_narrow_ld(kernel, depth);
    const void *x[RFI_CPU_GROUP_ROWS] = {0};
    find_x(run, t, first, rows, k, depth, x);
    const rfi_cpu_inner inner = {
        .x = x,
        .w = (const char *)p->weight + (size_t)(k * t->columns + t->column * ldw) * t->value,
        .ldw = ldw,
        .lanes = lanes + (size_t)(t->column * RFI_CPU_GROUP_ROWS * kernel->lanes) * t->value,
        .depth = depth,
        .ahead = ahead,
        .columns = t->columns_end - t->column,
        .rows = rows,
        .first = k == 0,
        .far = run->rows * run->spec->plan.in_features >= FAR_BYTES / (int64_t)rfi_dtype_size(run->call->x_dtype),
    };
    kernel->inner[x_dtype](&inner);
}

static size_t lanes_of_group(const rfi_cpu_run *run, const block *t) {
    return (size_t)(RFI_CPU_GROUP_ROWS * t->columns * run->prepared->kernel->lanes) * t->value;
}

/* The products of the block's rows from `begin` to `end`, groups of RFI_CPU_GROUP_ROWS that share each chunk of W, to
 * the sums of lanes. */
static void multiply_groups(const rfi_cpu_run *run, const block *t, int begin, int end) {
    const size_t group = lanes_of_group(run, t);
    for (int64_t k = 0; k == 0 || k < run->spec->plan.in_features; k += RFI_CPU_DEPTH) {
        char *lanes = t->lanes;
        for (int first = begin; first < end; first += RFI_CPU_GROUP_ROWS, lanes += group)
            multiply_chunk(run, t, first, k, to_next(run, t, begin, first, end, k), lanes);
    }
}

/* From there to the logits. */
static void add_lanes(const rfi_cpu_run *run, const block *t, int begin, int end) {
    const rfi_cpu_prepared *p = run->prepared;
    const rfi_cpu_kernel *kernel = p->kernel;
    const size_t group = lanes_of_group(run, t);
    const char *lanes = t->lanes;
    for (int first = begin; first < end; first += RFI_CPU_GROUP_ROWS, lanes += group) {
        const int rows = rows_of_group(t, first);
        if (t->by_row)
            kernel->sums_by_row(
                lanes, t->columns, rows, p->bias, t->by_rows + (size_t)(first * t->ld) * t->value, t->ld);
        else
            kernel->sums_by_column(
                lanes, t->columns, rows, p->bias, t->by_columns + (size_t)first * t->value, RFI_CPU_NARROW_ROWS);
    }
}

static void apply_to_rows(const rfi_cpu_run *run, const block *t) {
    const rfi_cpu_prepared *p = run->prepared;
    const rfi_steps *trunk = &run->spec->plan.trunk;
    int vectors = (int)round_up(t->columns, p->kernel->lanes), padded = (int)t->ld;
    for (int i = 0; i < t->rows; i++) {
        rfi_step own[RF_MAX_OPS];
        char *values = t->by_rows + (size_t)(i * t->ld) * t->value;
        memset(values + (size_t)vectors * t->value, 0, (size_t)(padded - vectors) * t->value);
        p->kernel->apply(
            rfi_cpu_steps_of_row(run, trunk, t->row + i, own), trunk->count, p->vectors, 0, values, padded);
    }
}

static char *column_of(const block *t, char *by_columns, int c) {
    return by_columns + (size_t)(c * RFI_CPU_NARROW_ROWS) * t->value;
}

/* Whole panels of rows in by_columns, of which the first `written` are there, and the trunk's steps on them. */
static void apply_to_columns(const rfi_cpu_run *run, const block *t, int written, int padded) {
    const rfi_steps *trunk = &run->spec->plan.trunk;
    for (int c = 0; c < t->columns; c++) {
        char *values = column_of(t, t->by_columns, c);
        memset(values + (size_t)written * t->value, 0, (size_t)(padded - written) * t->value);
        if (trunk->count && !t->by_row)
            rfi_cpu_apply_to_lanes(run, trunk, t->row, t->rows, run->prepared->vectors, c, values);
    }
}

/* The logits in by_columns behind a branch's own steps: a copy where it has some. */
static const char *branch_columns(const rfi_cpu_run *run, const block *t, const rfi_branch *branch, int padded) {
    if (!branch->pre.count) return t->by_columns;
    for (int c = 0; c < t->columns; c++) {
        char *values = memcpy(column_of(t, t->own, c), column_of(t, t->by_columns, c), (size_t)padded * t->value);
        rfi_cpu_apply_to_lanes(run, &branch->pre, t->row, t->rows, run->prepared->vectors, c, values);
    }
    return t->own;
}

/* From the logits in by_columns to the states of the one group that there is. */
static void fold_states(const rfi_cpu_run *run, const block *t, int padded) {
    const rfi_plan *plan = &run->spec->plan;
    const int64_t words = rfi_plan_words(plan);
    int64_t asked[RFI_CPU_NARROW_ROWS];
    for (int f = 0; f < plan->num_folds; f++) {
        const rfi_branch *branch = &plan->branches[plan->folds[f].branch];
        run->prepared->kernel->fold_rows(plan->folds[f].reduction, branch_columns(run, t, branch, padded),
            RFI_CPU_NARROW_ROWS, t->columns, branch->count, t->rows, rfi_cpu_ask(run, branch, t->row, t->rows, asked),
            NULL, run->call->states + t->row * words + rfi_plan_words_before(plan, f), words);
    }
}

/* The best columns of each row; values by column. */
static void find_tops(const rfi_cpu_run *run, const block *t, int branch, const char *values) {
    const int k = run->spec->plan.branches[branch].top;
    union {
        rfi_top top;
        char room[sizeof(rfi_top) + RFI_CPU_NARROW * sizeof(rfi_ranked)];
    } best;
    for (int i = 0; i < t->rows; i++) {
        best.top.count = 0;
        for (int c = 0; c < t->columns; c++)
            rfi_top_push(
                &best.top, k, (rfi_ranked){rfi_load(values, run->spec->compute_dtype, c * RFI_CPU_NARROW_ROWS + i), c});
        rfi_cpu_store_top(run, branch, t->row + i, &best.top);
    }
}

/* From the logits in by_columns through the folds to the results. So few columns are folded for each result anew. */
static void fold_block(const rfi_cpu_run *run, const block *t, int padded) {
    const rfi_plan *plan = &run->spec->plan;
    int64_t asked[RFI_CPU_NARROW_ROWS];
    for (int b = 0; b < plan->num_branches; b++) {
        const rfi_branch *branch = &plan->branches[b];
        const char *values = branch_columns(run, t, branch, padded);
        if (branch->top) find_tops(run, t, b, values);
        for (int i = 0; i < t->rows && branch->gathers; i++)
            rfi_cpu_gather(run, b, t->row + i, 0, t->columns, values + (size_t)i * t->value, RFI_CPU_NARROW_ROWS);
        if (branch->top || branch->gathers) continue;
        run->prepared->kernel->fold_rows(branch->reduction, values, RFI_CPU_NARROW_ROWS, t->columns, branch->count,
            t->rows, rfi_cpu_ask(run, branch, t->row, t->rows, asked), t->by_rows, NULL, 0);
        rfi_cpu_store_results(run, b, t->row, t->rows, t->by_rows);
    }
}

/* The rows of by_rows to where they go. */
static void store_rows(const rfi_cpu_run *run, const block *t) {
    const rfi_output *out = &run->call->outputs[0];
    size_t item = rfi_dtype_size(out->dtype);
    int64_t together = run->row_list || out->ld != t->columns || t->ld != t->columns ? 1 : t->rows;
    for (int64_t i = 0; i < t->rows; i += together) {
        char *y = (char *)out->data + (size_t)(rfi_cpu_row(run, t->row + i) * out->ld) * item;
        run->prepared->kernel->narrow(
            y, t->by_rows + (size_t)(i * t->ld) * t->value, out->dtype, together * t->columns);
    }
}

/* From logits to results. */
static void finish(const rfi_cpu_run *run, const block *t) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    int padded = (int)round_up(t->rows, kernel->panel);
    if (t->by_row && plan->trunk.count) apply_to_rows(run, t);
    if (t->by_row && !plan->branches[0].reduction) {
        store_rows(run, t);
        return;
    }
    if (t->by_row) kernel->turn(t->by_rows, t->ld, t->columns, t->rows, t->by_columns, RFI_CPU_NARROW_ROWS);
    apply_to_columns(run, t, t->by_row ? t->rows : (int)round_up(t->rows, kernel->lanes), padded);
    if (plan->branches[0].reduction) {
        (run->call->states ? fold_states : fold_block)(run, t, padded);
        return;
    }
    kernel->turn(t->by_columns, RFI_CPU_NARROW_ROWS, t->rows, t->columns, t->by_rows, t->ld);
    store_rows(run, t);
}

void rfi_cpu_run_narrow(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const block t = block_of_task(run, task, slot);
    const int together = run->blocking.groups * RFI_CPU_GROUP_ROWS;
    for (int first = 0; first < t.rows; first += together) {
        const int end = (int)least(t.rows, first + together);
        multiply_groups(run, &t, first, end);
        add_lanes(run, &t, first, end);
    }
    finish(run, &t);
}

/* The only block of rows, whose lanes' sums lie where all threads see them. */
static block block_apart(const rfi_cpu_run *run, int slot) {
    block t = block_of_task(run, 0, slot);
    t.lanes = run->apart;
    return t;
}

void rfi_cpu_run_narrow_part(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const int64_t parts = run->blocking.column_parts;
    block t = block_apart(run, slot);
    t.column = (int)(t.columns * task / parts);
    t.columns_end = (int)(t.columns * (task + 1) / parts);
    multiply_groups(run, &t, 0, t.rows);
}

void rfi_cpu_run_narrow_end(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const block t = block_apart(run, slot);
    (void)task;
    add_lanes(run, &t, 0, t.rows);
    finish(run, &t);
}
