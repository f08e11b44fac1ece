/* Layers of few columns: a task is a block of rows. Steps run along the rows or along the columns, whichever leaves
 * fewer lanes empty; a reduction folds a row a lane. */
#include <string.h>

#include "cpu/forward.h"
#include "dtype.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

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
    int steps = plan->branches[0].reduction || plan->trunk.count,
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
    int vectors = round_up(t->columns, p->kernel->lanes), padded = (int)t->ld;
    for (int i = 0; i < t->rows; i++) {
        char *values = t->by_rows + (size_t)(i * t->ld) * t->value;
        memset(values + (size_t)vectors * t->value, 0, (size_t)(padded - vectors) * t->value);
        p->kernel->apply(run->spec->plan.trunk.at, run->spec->plan.trunk.count, p->vectors, 0, values, padded);
    }
}

/* A column's parameter is the same in all rows. */
static void apply_to_column(const rfi_cpu_run *run, int column, char *values, int padded) {
    const rfi_cpu_prepared *p = run->prepared;
    rfi_step steps[RF_MAX_OPS];
    int count = run->spec->plan.trunk.count;
    for (int i = 0; i < count; i++) {
        steps[i] = run->spec->plan.trunk.at[i];
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
        if (run->spec->plan.trunk.count && !t->by_row) apply_to_column(run, c, values, padded);
    }
}

/* Logits to what y gets: rows of results, or of `width` values, in by_rows. Returns how far apart. */
static int64_t finish(const rfi_cpu_run *run, const block *t) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    int padded = round_up(t->rows, kernel->panel);
    if (t->by_row && plan->trunk.count) apply_to_rows(run, t);
    if (t->by_row && !plan->branches[0].reduction) return t->ld;
    if (t->by_row) kernel->turn(t->by_rows, t->ld, t->columns, t->rows, t->by_columns, RFI_CPU_NARROW_ROWS);
    apply_to_columns(run, t, t->by_row ? t->rows : round_up(t->rows, kernel->lanes), padded);
    if (!plan->branches[0].reduction) {
        kernel->turn(t->by_columns, RFI_CPU_NARROW_ROWS, t->rows, t->columns, t->by_rows, t->ld);
        return t->ld;
    }
    kernel->fold_rows(plan->branches[0].reduction, t->by_columns, RFI_CPU_NARROW_ROWS, t->columns, padded, t->by_rows);
    kernel->apply(plan->branches[0].post.at, plan->branches[0].post.count, NULL, 0, t->by_rows, padded);
    return 1;
}

/* The rows of by_rows, `ld` apart, to where y has these rows. */
static void store(const rfi_cpu_run *run, const block *t, int64_t ld) {
    const rfi_forward *call = run->call;
    int64_t width = run->spec->plan.width;
    size_t item = rfi_dtype_size(call->y_dtype);
    int64_t together = run->row_list || call->ldy != width || ld != width ? 1 : t->rows;
    for (int64_t i = 0; i < t->rows; i += together) {
        char *y = (char *)call->y + (size_t)(rfi_cpu_row(run, t->row + i) * call->ldy) * item;
        run->prepared->kernel->narrow(y, t->by_rows + (size_t)(i * ld) * t->value, call->y_dtype, together * width);
    }
}

void rfi_cpu_run_narrow(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const block t = block_of_task(run, task, slot);
    for (int first = 0; first < t.rows; first += RFI_CPU_GROUP_ROWS) multiply_group(run, &t, first);
    store(run, &t, finish(run, &t));
}
