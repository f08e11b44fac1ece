/* SPDX-License-Identifier: MIT */
#include "cpu/forward.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/pool.h"
#include "dtype.h"
#include "error.h"
#include "sizes.h"

enum { COLLAPSED_ROWS = 16 /* rows a task takes the dot product of */ };

/* Partial states, and products of a collapsed sum, that one thread is done with before another has woken up. */
static const int64_t FINISH_ALONE = 4096, COLLAPSED_ALONE = 65536;

static void run_finish(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    int64_t first = task * RFI_CPU_FINISH_ROWS;
    rfi_cpu_finish_rows(run, first, (int)least(RFI_CPU_FINISH_ROWS, run->rows - first),
        run->scratch + (size_t)slot * run->blocking.scratch);
}

/* Are columns of some rows wanted before the pass? */
static int is_seeded(const rfi_plan *plan) {
    int seeded = 0;
    for (int f = 0; f < plan->num_folds; f++) seeded |= plan->branches[plan->folds[f].branch].seeded;
    return seeded;
}

/* The full path, for run->rows rows. */
static void run_rows(rfi_cpu_run *run) {
    rfi_cpu_blocking *b = &run->blocking;
    b->row_blocks = ceil_div(run->rows, b->rows);
    if (!b->narrow && is_seeded(&run->spec->plan)) rfi_pool_run(b->threads, b->units, rfi_cpu_run_ahead, run);
    const int64_t blocks = b->row_blocks * b->column_blocks;
    /* There may be fewer rows than the batch has. */
    b->parted = least(b->parted, blocks);
    if (b->parted) {
        rfi_pool_run(b->threads, rfi_cpu_tasks_of_parted(b), rfi_cpu_run_tile_or_part, run);
        rfi_pool_run(b->threads, b->parted, rfi_cpu_run_parted_end, run);
    } else if (rfi_cpu_is_split(b)) {
        rfi_pool_run(
            b->threads, b->splits * b->column_parts, b->narrow ? rfi_cpu_run_narrow_part : rfi_cpu_run_part, run);
        rfi_pool_run(b->threads, blocks, b->narrow ? rfi_cpu_run_narrow_end : rfi_cpu_run_parts_end, run);
    } else {
        rfi_pool_run(b->threads, blocks, b->narrow ? rfi_cpu_run_narrow : rfi_cpu_run_tile, run);
    }
    if (b->narrow || !run->spec->plan.num_folds) return;
    rfi_pool_run(run->rows * b->units <= FINISH_ALONE ? 1 : b->threads, ceil_div(run->rows, RFI_CPU_FINISH_ROWS),
        run_finish, run);
}

static void run_collapsed(void *context, int64_t task, int slot) {
    const rfi_cpu_run *run = context;
    const rfi_forward *call = run->call;
    (void)slot;
    const rfi_collapse_kernel kernel = {
        run->spec->compute_dtype, run->prepared->kernel->widen, run->prepared->kernel->dot};
    int64_t last = least((task + 1) * COLLAPSED_ROWS, call->batch);
    for (int64_t row = task * COLLAPSED_ROWS; row < last; row++) {
        int full;
        /* NULL where there are no inputs, whatever ldx says. */
        const char *x = call->x
            ? (const char *)call->x + (size_t)(rfi_row_of_x(call, row) * call->ldx) * rfi_dtype_size(call->x_dtype)
            : NULL;
        double value = rfi_collapse_row(&run->prepared->collapse, &kernel, x, call->x_dtype, &full);
        run->row_list[row] = full;
        if (!full) rfi_cpu_store_row(run, row, value);
    }
}

/* A sum as one dot product a row. The rows whose guard says no are listed and take the full path together; which path a
 * row takes depends on that row alone. */
static void run_collapsible(rfi_cpu_run *run) {
    int64_t batch = run->call->batch, refused = 0;
    int threads = batch * run->spec->plan.in_features <= COLLAPSED_ALONE ? 1 : run->spec->threads;
    rfi_pool_run(threads, ceil_div(batch, COLLAPSED_ROWS), run_collapsed, run);
    for (int64_t row = 0; row < batch; row++)
        if (run->row_list[row]) run->row_list[refused++] = row;
    run->rows = refused;
    if (refused) run_rows(run);
}

rf_status rfi_cpu_forward(const rfi_spec *spec, const void *prepared, const rfi_forward *call) {
    rfi_cpu_run run = {.spec = spec, .prepared = prepared, .call = call, .rows = call->batch};
    rf_status status = rfi_cpu_block(spec, run.prepared->kernel, call->batch, &run.blocking);
    if (status) return status;
    const rfi_cpu_blocking *b = &run.blocking;
    char *workspace = call->workspace;
    void *own = NULL;
    if (!workspace && posix_memalign(&own, 256, rfi_cpu_workspace(b)))
        return rfi_error(RF_OUT_OF_MEMORY, "no memory for a workspace of %zu bytes", rfi_cpu_workspace(b));
    if (own) workspace = own;
    char *states = workspace;
    for (int f = 0; f < spec->plan.num_folds; f++) {
        run.states[f] = (rfi_states){
            .at = states,
            .units = b->units,
            .words = rfi_reduction_words(spec->plan.folds[f].reduction),
            .item = (int)rfi_dtype_size(spec->compute_dtype),
        };
        states += rfi_cpu_fold_states(spec, f, call->batch, b->units);
    }
    pthread_mutex_t locks[RFI_CPU_LOCKS];
    run.locks = locks;
    for (int i = 0; i < RFI_CPU_LOCKS; i++) pthread_mutex_init(&locks[i], NULL);
    char *tops = workspace + b->states;
    memset(tops, 0, b->tops);
    for (int r = 0; r < spec->plan.num_branches; r++) {
        run.tops[r] = tops;
        tops += rfi_cpu_branch_tops(b, &spec->plan.branches[r], call->batch);
    }
    run.apart = workspace + b->states + b->tops + b->row_list;
    run.scratch = run.apart + b->apart;
    if (run.prepared->collapse.usable && !call->states) {
        run.row_list = (int64_t *)(workspace + b->states + b->tops);
        run_collapsible(&run);
    } else {
        run_rows(&run);
    }
    for (int i = 0; i < RFI_CPU_LOCKS; i++) pthread_mutex_destroy(&locks[i]);
    free(own);
    return RF_OK;
}
