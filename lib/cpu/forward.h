/* SPDX-License-Identifier: MIT */
/* The blocked forward. */
#ifndef ROWFOLD_CPU_FORWARD_H
#define ROWFOLD_CPU_FORWARD_H

#include "cpu/blocking.h"
#include "states.h"

/* What the tasks of one forward share. */
typedef struct rfi_cpu_run {
    const rfi_spec *spec;
    const rfi_cpu_prepared *prepared;
    const rfi_forward *call;
    rfi_cpu_blocking blocking;
    int64_t rows;      /* that take the full path */
    int64_t *row_list; /* (rows) which of the batch they are; NULL: all, in order */
    rfi_states states; /* of the rows that take the full path */
    char *scratch;     /* (threads) of blocking.scratch bytes */
} rfi_cpu_run;

static inline int64_t rfi_cpu_row(const rfi_cpu_run *run, int64_t i) { return run->row_list ? run->row_list[i] : i; }

/* The column that row i of the run asks for. */
static inline int64_t rfi_cpu_asked(const rfi_cpu_run *run, int64_t i) {
    return run->call->columns ? run->call->columns[rfi_cpu_row(run, i)] : RFI_COLUMN_OUTSIDE;
}

/* The columns that `count` rows of the run ask for, brought together in `to`; NULL where rows ask for none. */
static inline const int64_t *rfi_cpu_ask(const rfi_cpu_run *run, int64_t first, int count, int64_t *to) {
    if (!run->call->columns) return NULL;
    for (int i = 0; i < count; i++) to[i] = rfi_cpu_asked(run, first + i);
    return to;
}

/* An rfi_pool_task: a block of rows and columns, up to the partial states, or into y where nothing is folded. The
 * context is a run. */
void rfi_cpu_run_tile(void *run, int64_t task, int slot);

/* The same for a narrow layer: a block of rows, up to y. */
void rfi_cpu_run_narrow(void *run, int64_t task, int slot);

enum { RFI_CPU_FINISH_ROWS = 64 /* rows a task merges */ };

/* Merges the partial states of `count` <= RFI_CPU_FINISH_ROWS rows of the run and stores their numbers. */
void rfi_cpu_finish_rows(const rfi_cpu_run *run, int64_t first, int count);

/* `count` results of the reduction, from row `first` of the run on, through the steps behind it and to y. */
void rfi_cpu_store_results(const rfi_cpu_run *run, int64_t first, int count, void *results);

/* Takes the steps behind the reduction with `value`, and writes y of row `row` of the batch. */
void rfi_cpu_store_row(const rfi_cpu_run *run, int64_t row, double value);

rf_status rfi_cpu_forward(const rfi_spec *spec, const void *prepared, const rfi_forward *call);

#endif
