/* SPDX-License-Identifier: MIT */
/* The blocked forward. */
#ifndef ROWFOLD_CPU_FORWARD_H
#define ROWFOLD_CPU_FORWARD_H

#include "cpu/blocking.h"
#include "rows.h"
#include "top.h"

#include <pthread.h>

enum { RFI_CPU_LOCKS = 64 };

/* What the tasks of one forward share. */
typedef struct rfi_cpu_run {
    const rfi_spec *spec;
    const rfi_cpu_prepared *prepared;
    const rfi_forward *call;
    rfi_cpu_blocking blocking;
    int64_t rows;                      /* that take the full path */
    int64_t *row_list;                 /* (rows) which of the batch they are; NULL: all, in order */
    rfi_states states[RF_MAX_RESULTS]; /* by fold, of the rows that take the full path */
    char *tops[RF_MAX_RESULTS];        /* by branch: lists of the best columns of these rows (top.h) */
    pthread_mutex_t *locks;            /* (RFI_CPU_LOCKS) of the lists of row i, lock i % RFI_CPU_LOCKS */
    char *apart;                       /* (sums, rows, c_ld_apart) sums of chunks, where the inputs are split; or logits
                                          of (parted) tiles */
    char *scratch;                     /* (threads) of blocking.scratch bytes */
} rfi_cpu_run;

static inline int64_t rfi_cpu_row(const rfi_cpu_run *run, int64_t i) { return run->row_list ? run->row_list[i] : i; }

/* Where the inputs of row i of the run begin, which take `item` bytes each. */
static inline const char *rfi_cpu_x(const rfi_cpu_run *run, int64_t i, size_t item) {
    const rfi_forward *call = run->call;
    return (const char *)call->x + (size_t)(rfi_row_of_x(call, rfi_cpu_row(run, i)) * call->ldx) * item;
}

static inline rfi_top *rfi_cpu_top(const rfi_cpu_run *run, int branch, int64_t i) {
    return (rfi_top *)(run->tops[branch] + i * rfi_top_bytes(run->spec->plan.branches[branch].top));
}

/* The column that row i of the run asks for in a branch. */
static inline int64_t rfi_cpu_asked(const rfi_cpu_run *run, const rfi_branch *branch, int64_t i) {
    return rfi_row_column(&run->spec->plan, branch, run->call, rfi_cpu_row(run, i));
}

/* Those of `count` rows of the run, brought together in `to`; NULL where the branch asks for none. */
static inline const int64_t *rfi_cpu_ask(
    const rfi_cpu_run *run, const rfi_branch *branch, int64_t first, int count, int64_t *to) {
    if (!branch->row) return NULL;
    for (int i = 0; i < count; i++) to[i] = rfi_cpu_asked(run, branch, first + i);
    return to;
}

/* The steps for row i of the run, its numbers in place of row inputs: the list itself where there are none, or `own`.
 */
const rfi_step *rfi_cpu_steps_of_row(
    const rfi_cpu_run *run, const rfi_steps *steps, int64_t i, rfi_step own[RF_MAX_OPS]);

/* The same for `count` rows a lane each, from `first` on: row inputs are vectors, up to whole panels. */
typedef struct rfi_cpu_lanes {
    rfi_step steps[RF_MAX_OPS];
    const void *vectors[RF_MAX_OPS];
    double numbers[RF_MAX_OPS][RFI_CPU_FINISH_ROWS] __attribute__((aligned(RFI_CPU_ALIGN))); /* of either type */
} rfi_cpu_lanes;

/* `steps` on values of `count` <= RFI_CPU_FINISH_ROWS rows, a row a lane, from row `first` of the run on. `columns` are
 * the prepared vectors where the values are those of column `column`, or NULL behind a reduction. */
void rfi_cpu_apply_to_lanes(const rfi_cpu_run *run, const rfi_steps *steps, int64_t first, int count,
    const void *const *columns, int column, void *values);

/* An rfi_pool_task: the columns of one unit that rows ask for whose folds begin with them (RFI_RF_SEEDED), into the
 * peaks of their states. */
void rfi_cpu_run_ahead(void *run, int64_t unit, int slot);

/* An rfi_pool_task: a block of rows and columns, up to the partial states, or into y where nothing is folded. The
 * context is a run. */
void rfi_cpu_run_tile(void *run, int64_t task, int slot);

/* Its two halves where columns and inputs are split: part task % splits of the inputs times part task / splits of the
 * columns, into sums that lie apart; and of a block, from these. */
void rfi_cpu_run_part(void *run, int64_t task, int slot);
void rfi_cpu_run_parts_end(void *run, int64_t task, int slot);

/* The same where the last tiles are parted: tasks of whole tiles and of parts, each thread's parts behind its tiles;
 * and the fold of the parted tile `task`. */
int64_t rfi_cpu_tasks_of_parted(const rfi_cpu_blocking *blocking);
void rfi_cpu_run_tile_or_part(void *run, int64_t task, int slot);
void rfi_cpu_run_parted_end(void *run, int64_t task, int slot);

/* The same for a narrow layer: a block of rows, up to y; and where few rows are split, part `task` of the columns, and
 * from the sums that lie apart up to y. */
void rfi_cpu_run_narrow(void *run, int64_t task, int slot);
void rfi_cpu_run_narrow_part(void *run, int64_t task, int slot);
void rfi_cpu_run_narrow_end(void *run, int64_t task, int slot);

/* Joins the partial states of `count` <= RFI_CPU_FINISH_ROWS rows of the run to those of groups, in the call's states
 * or in `scratch`, and from there stores the rows' results. */
void rfi_cpu_finish_rows(const rfi_cpu_run *run, int64_t first, int count, void *scratch);

/* Results of rows whose states are at `states`, (count, groups, words). */
void rfi_cpu_merge_rows(const rfi_cpu_run *run, int64_t first, int count, const double *states, int64_t groups);

/* `count` results of a branch's reduction, from row `first` of the run on, through the steps behind it and to where
 * they go. */
void rfi_cpu_store_results(const rfi_cpu_run *run, int branch, int64_t first, int count, void *results);

/* Stores the best columns of row i of the run. */
void rfi_cpu_store_top(const rfi_cpu_run *run, int branch, int64_t i, const rfi_top *top);

/* Stores those of the columns that row i of the run asks for in a branch that gathers which are among `n` from `column`
 * on; value j is `stride` from value j - 1. */
void rfi_cpu_gather(
    const rfi_cpu_run *run, int branch, int64_t i, int64_t column, int n, const void *values, int64_t stride);

/* Takes the steps behind the reduction with `value`, and writes y of row `row` of the batch. */
void rfi_cpu_store_row(const rfi_cpu_run *run, int64_t row, double value);

/* A backend's merge. */
rf_status rfi_cpu_merge(const rfi_cpu_kernel *kernel, const rfi_spec *spec, const rfi_forward *call,
    const rfi_part *parts, size_t num_parts);

rf_status rfi_cpu_forward(const rfi_spec *spec, const void *prepared, const rfi_forward *call);

#endif
