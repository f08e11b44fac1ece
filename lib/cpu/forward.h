/* SPDX-License-Identifier: MIT */
/* The blocked forward. */
#ifndef ROWFOLD_CPU_FORWARD_H
#define ROWFOLD_CPU_FORWARD_H

#include "cpu/blocking.h"

/* What the tasks of one forward share. */
typedef struct rfi_cpu_run {
    const rfi_spec *spec;
    const rfi_cpu_prepared *prepared;
    const rfi_forward *call;
    rfi_cpu_blocking blocking;
    int64_t rows;      /* that take the full path */
    int64_t *row_list; /* (rows) which of the batch they are; NULL: all, in order */
    char *states;      /* (rows, units, 2) of the compute type */
    char *scratch;     /* (threads) of blocking.scratch bytes */
} rfi_cpu_run;

static inline int64_t rfi_cpu_row(const rfi_cpu_run *run, int64_t i) { return run->row_list ? run->row_list[i] : i; }

/* An rfi_pool_task: a block of rows and columns, up to the partial states, or into y where nothing is folded. The
 * context is a run. */
void rfi_cpu_run_tile(void *run, int64_t task, int slot);

/* The same for a narrow layer: a block of rows, up to y. */
void rfi_cpu_run_narrow(void *run, int64_t task, int slot);

enum { RFI_CPU_FINISH_ROWS = 64 /* rows a task merges */ };

/* Merges the partial states of `count` <= RFI_CPU_FINISH_ROWS rows of the run and stores their numbers. */
void rfi_cpu_finish_rows(const rfi_cpu_run *run, int64_t first, int count);

/* Takes the steps behind the reduction with `value`, and writes y of row `row` of the batch. */
void rfi_cpu_store_row(const rfi_cpu_run *run, int64_t row, double value);

rf_status rfi_cpu_forward(const rfi_spec *spec, const void *prepared, const rfi_forward *call);

#endif
