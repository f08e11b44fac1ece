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
    char *states;   /* (batch, units, 2) of the compute type */
    char *scratch;  /* (threads) of blocking.scratch bytes */
} rfi_cpu_run;

rf_status rfi_cpu_forward(const rfi_spec *spec, const void *prepared, const rfi_forward *call);

/* Merges the partial states of rows first to last - 1, takes the steps behind the reduction and writes y. */
void rfi_cpu_finish_rows(const rfi_cpu_run *run, int64_t first, int64_t last);

#endif
