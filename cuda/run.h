/* SPDX-License-Identifier: MIT */
/* A call on its way through the device: rows at a time, pass by pass. */
#ifndef ROWFOLD_CUDA_RUN_H
#define ROWFOLD_CUDA_RUN_H

#include "layout.h"

/* Rows on the device, of one piece of a call or of all of it. */
typedef struct rfi_cuda_piece {
    const void *x;
    rfi_output outputs[RFI_MAX_OUTPUTS];
    rfi_row_values gathers[RF_MAX_OPS]; /* row inputs of several columns, the rows of the call's or of the piece's */
    double *states;                     /* where those of the first row go, if the call wants states */
    int64_t first, rows, ldx;           /* `first` among the call's */
    int padded;                         /* what follows a row up to whole 16 bytes is the library's memory, written */
} rfi_cuda_piece;

/* A call on its way. */
typedef struct rfi_cuda_running {
    const rfi_spec *spec;
    const rfi_cuda_prepared *p;
    const rfi_cuda_call_layout *l;
    const rfi_forward *call;
    char *workspace;
} rfi_cuda_running;

/* All results of a piece, whose row inputs are in their place. */
rf_status rfi_cuda_run_piece(const rfi_cuda_running *r, const rfi_cuda_piece *piece);

/* What a pass is made of (run.c): the tickets that are cleared in front of it; x made ready and the tickets cleared,
 * for the rows of a piece, which sets what `fold` says of x; the kernel of the pass, or that for what is known ahead;
 * the tickets once more, for the next launch with the same rows. */
rfi_cuda_clear rfi_cuda_clear_of(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold);
rf_status rfi_cuda_bring_to_terms(
    const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece, const rfi_cuda_clear *clear, rfi_cuda_fold *fold);
rf_status rfi_cuda_make_ready(const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece, rfi_cuda_fold *fold);
rf_status rfi_cuda_launch_fold(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold);
rf_status rfi_cuda_launch_ahead(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold);
rf_status rfi_cuda_clear_again(const rfi_cuda_running *r, int pass, const rfi_cuda_fold *fold);

/* A pass that searches begin with, and these (searches.c). */
rf_status rfi_cuda_run_with_searches(
    const rfi_cuda_running *r, int pass, const rfi_cuda_piece *piece, rfi_cuda_fold *fold);

#endif
