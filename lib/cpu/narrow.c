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
    size_t value; /* bytes of the compute type */
    int by_row;   /* where the logits are: in by_rows or in by_columns */
    int64_t ld;   /* values from one row of by_rows to the next */
    char *x, *lanes;
    char *by_columns; /* (columns, RFI_CPU_NARROW_ROWS) */
    char *by_rows;    /* (RFI_CPU_NARROW_ROWS, columns); later the results */
} block;

static block block_of_task(const rfi_cpu_run *run, int64_t task, int slot) {
    const rfi_cpu_blocking *b = &run->blocking;
    const rfi_plan *plan = &run->spec->plan;
    char *scratch = run->scratch + (size_t)slot * b->scratch;
    int rows = (int)least(b->rows, run->rows - task * b->rows), columns = (int)plan->out_features,
        panel = run->prepared->kernel->panel;
    int steps = plan->reduction || plan->num_pre,
        by_row = !steps || rows * round_up(columns, panel) < columns * round_up(rows, panel);
    return (block){
        .row = task * b->rows,
        .rows = rows,
        .columns = columns,
        .value = rfi_dtype_size(run->spec->compute_dtype),
        .by_row = by_row,
        .ld = by_row && steps ? round_up(columns, panel) : columns,
        .x = scratch + b->x_offset,
        .lanes = scratch + b->w_offset,
        .by_columns = scratch + b->c_offset,
        .by_rows = scratch + b->rows_offset,
    };
}

/* `depth` inputs from k on of the group's rows: where they are, or widened if no kernel takes them so. */
static void find_x(
    const rfi_cpu_run *run, const block *t, int first, int rows, int64_t k, int64_t depth, const void **x) {
    const rfi_forward *call = run->call;
    size_t item = rfi_dtype_size(call->x_dtype);
    for (int i = 0; i < rows && depth; i++) { /* without inputs x may be NULL */
        x[i] = (const char *)call->x + (size_t)(rfi_cpu_row(run, t->row + first + i) * call->ldx + k) * item;
        if (run->prepared->kernel->inner[call->x_dtype]) continue;
        char *wide = t->x + (size_t)(i * RFI_CPU_X_LD) * t->value;
        run->prepared->kernel->widen(wide, x[i], call->x_dtype, depth);
        x[i] = wide;
    }
}

/* The logits of RFI_CPU_GROUP_ROWS rows of the block from `first` on, or of as many as there are. */
static void multiply_group(const rfi_cpu_run *run, const block *t, int first) {
    const rfi_cpu_prepared *p = run->prepared;
    const rfi_cpu_kernel *kernel = p->kernel;
    int64_t in_features = run->spec->plan.in_features;
    rf_dtype x_dtype = kernel->inner[run->call->x_dtype] ? run->call->x_dtype : run->spec->compute_dtype;
    int rows = (int)least(RFI_CPU_GROUP_ROWS, t->rows - first);
    for (int64_t k = 0; k == 0 || k < in_features; k += RFI_CPU_DEPTH) {
        const void *x[RFI_CPU_GROUP_ROWS] = {0};
        int64_t depth = least(RFI_CPU_DEPTH, in_features - k);
        find_x(run, t, first, rows, k, depth, x);
        const rfi_cpu_inner inner = {
            .x = x,
            .w = (const char *)p->weight + (size_t)(k * t->columns) * t->value,
            .ldw = rfi_cpu_narrow_ld(kernel, depth),
            .lanes = t->lanes,
            .depth = depth,
            .columns = t->columns,
            .rows = rows,
            .first = k == 0,
        };
        kernel->inner[x_dtype](&inner);
    }
    if (t->by_row)
        kernel->sums_by_row(
            t->lanes, t->columns, rows, p->bias, t->by_rows + (size_t)(first * t->ld) * t->value, t->ld);
    else
        kernel->sums_by_column(
            t->lanes, t->columns, rows, p->bias, t->by_columns + (size_t)first * t->value, RFI_CPU_NARROW_ROWS);
}

static void apply_to_rows(const rfi_cpu_run *run, const block *t) {
    const rfi_cpu_prepared *p = run->prepared;
    int vectors = (int)round_up(t->columns, p->kernel->lanes), padded = (int)t->ld;
    for (int i = 0; i < t->rows; i++) {
        char *values = t->by_rows + (size_t)(i * t->ld) * t->value;
        memset(values + (size_t)vectors * t->value, 0, (size_t)(padded - vectors) * t->value);
        p->kernel->apply(p->steps, run->spec->plan.num_pre, p->vectors, 0, values, padded);
    }
}

/* A column's parameter is the same in all rows. */
static void apply_to_column(const rfi_cpu_run *run, int column, char *values, int padded) {
    const rfi_cpu_prepared *p = run->prepared;
    rfi_cpu_step steps[RF_MAX_OPS];
    int count = run->spec->plan.num_pre;
    for (int i = 0; i < count; i++) {
        steps[i] = p->steps[i];
        if (steps[i].vector < 0) continue;
        steps[i].a = rfi_load(p->vectors[steps[i].vector], run->spec->compute_dtype, column);
        steps[i].vector = -1;
    }
    p->kernel->apply(steps, count, NULL, 0, values, padded);
}

/* Whole panels of rows in by_columns, of which the first `written` are there, and the steps on them. */
static void apply_to_columns(const rfi_cpu_run *run, const block *t, int written, int padded) {
    for (int c = 0; c < t->columns; c++) {
        char *values = t->by_columns + (size_t)(c * RFI_CPU_NARROW_ROWS) * t->value;
        memset(values + (size_t)written * t->value, 0, (size_t)(padded - written) * t->value);
        if (run->spec->plan.num_pre && !t->by_row) apply_to_column(run, c, values, padded);
    }
}

/* A row's number from its logits in by_columns, through the fold and to y. */
static void fold_block(const rfi_cpu_run *run, const block *t) {
    int64_t asked[RFI_CPU_NARROW_ROWS];
    run->prepared->kernel->fold_rows(run->spec->plan.reduction, t->by_columns, RFI_CPU_NARROW_ROWS, t->columns, t->rows,
        rfi_cpu_ask(run, t->row, t->rows, asked), t->by_rows);
    rfi_cpu_store_results(run, t->row, t->rows, t->by_rows);
}

/* The rows of by_rows to where y has these rows. */
static void store_rows(const rfi_cpu_run *run, const block *t) {
    const rfi_forward *call = run->call;
    size_t item = rfi_dtype_size(call->y_dtype);
    int64_t together = run->row_list || call->ldy != t->columns || t->ld != t->columns ? 1 : t->rows;
    for (int64_t i = 0; i < t->rows; i += together) {
        char *y = (char *)call->y + (size_t)(rfi_cpu_row(run, t->row + i) * call->ldy) * item;
        run->prepared->kernel->narrow(
            y, t->by_rows + (size_t)(i * t->ld) * t->value, call->y_dtype, together * t->columns);
    }
}

/* Logits to y. */
static void finish(const rfi_cpu_run *run, const block *t) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    int padded = (int)round_up(t->rows, kernel->panel);
    if (t->by_row && plan->num_pre) apply_to_rows(run, t);
    if (t->by_row && !plan->reduction) {
        store_rows(run, t);
        return;
    }
    if (t->by_row) kernel->turn(t->by_rows, t->ld, t->columns, t->rows, t->by_columns, RFI_CPU_NARROW_ROWS);
    apply_to_columns(run, t, t->by_row ? t->rows : (int)round_up(t->rows, kernel->lanes), padded);
    if (plan->reduction) {
        fold_block(run, t);
        return;
    }
    kernel->turn(t->by_columns, RFI_CPU_NARROW_ROWS, t->rows, t->columns, t->by_rows, t->ld);
    store_rows(run, t);
}

void rfi_cpu_run_narrow(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const block t = block_of_task(run, task, slot);
    for (int first = 0; first < t.rows; first += RFI_CPU_GROUP_ROWS) multiply_group(run, &t, first);
    finish(run, &t);
}
