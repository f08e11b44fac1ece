/* SPDX-License-Identifier: MIT */
/* How a forward is cut into tasks and its workspace into parts: a pure function of the sizes. No choice made here
 * changes a bit of the result. */
#ifndef ROWFOLD_CPU_BLOCKING_H
#define ROWFOLD_CPU_BLOCKING_H

#include "cpu/prepared.h"

typedef struct rfi_cpu_blocking {
    int threads;
    int narrow;                         /* blocks of rows alone, in dot products: narrow.c */
    int groups;                         /* of rows there that share each chunk of W */
    int64_t units;                      /* of all columns */
    int64_t row_blocks, rows;           /* rows in a block, at most */
    int64_t column_blocks, block_units; /* units in a block of columns, at most */
    int64_t splits, column_parts; /* parts of the inputs, whole chunks each, by parts of the columns, whole panels each,
                                     that are multiplied by a task each, for all rows; 1 by 1: not split */
    int64_t parted, parts; /* so many tiles, the last, are multiplied in so many parts of the columns, whole panels
                              each, by a task each, and folded behind all others; 0: none */
    int64_t sums;          /* chunks of inputs, whose sums are stored apart where the inputs are split */
    int64_t c_ld;          /* elements from one row of a task's logits to the next */
    size_t x_offset, w_offset,
        c_offset; /* of a thread's parts in its scratch: packed x, a widened panel (narrow: the lanes' sums), logits */
    size_t stretch_offset; /* and of the sums of a stretch behind the first, where there are several */
    size_t pairs_offset;   /* and of x packed in pairs, where W is, one or several terms of it */
    size_t ranges_offset;  /* and of rfi_cpu_range of its rows, where it is several */
    size_t rows_offset;    /* and, if narrow, logits row by row, or results */
    size_t own_offset;     /* and behind these a copy of the logits for a branch's own steps */
    size_t scratch;        /* bytes a thread; when all tiles are done it holds the states of groups */
    size_t states;         /* bytes of partial states, (batch, units), in front of all; 0 without a reduction */
    size_t tops;           /* bytes behind them for the best columns of topk, (batch) lists of each */
    size_t row_list;       /* bytes behind them for the rows that cannot be collapsed; 0 if the plan cannot */
    size_t apart; /* bytes behind these for (sums, rows_of_sums, c_ld_apart) sums of the compute type; or for the
                     logits of (parted) tiles */
    int64_t rows_of_sums, c_ld_apart;
} rfi_cpu_blocking;

/* RF_OUT_OF_MEMORY if no workspace could be that large. */
rf_status rfi_cpu_block(const rfi_spec *spec, const rfi_cpu_kernel *kernel, int64_t batch, rfi_cpu_blocking *blocking);

/* Bytes of the partial states of one fold, behind those of the folds before it. */
size_t rfi_cpu_fold_states(const rfi_spec *spec, int fold, int64_t batch, int64_t units);

/* Bytes of the lists of one branch, behind those of the branches before it. Blocks of rows alone need none. */
size_t rfi_cpu_branch_tops(const rfi_cpu_blocking *blocking, const rfi_branch *branch, int64_t batch);

/* Inputs whose products are added one after the other in float, at most. A rounding errs by the size of the sum that it
 * is made in: with one sum for all of RFI_CPU_DEPTH a logit's error is 1.7 times as large (doc/kernels/cpu.md 2). Of
 * 16-bit weights fewer, for what single logits of these may be off by is promised in parts of a row's scale (40). */
enum { RFI_CPU_SUM_DEPTH = 176, RFI_CPU_SUM_DEPTH_16 = 128 };

/* A chunk in even blocks of whole turns of the microkernel, for weights stored as `weight`. */
static inline int64_t rfi_cpu_block_depth(int64_t depth, rf_dtype weight) {
    const int64_t longest = weight == RF_FLOAT64 ? RFI_CPU_DEPTH
        : weight == RF_FLOAT32                   ? RFI_CPU_SUM_DEPTH
                                                 : RFI_CPU_SUM_DEPTH_16;
    if (depth <= longest) return RFI_CPU_DEPTH;
    return round_up(ceil_div(depth, ceil_div(depth, longest)), RFI_CPU_STEP);
}

static inline int rfi_cpu_is_split(const rfi_cpu_blocking *blocking) {
    return blocking->splits * blocking->column_parts > 1;
}

/* Bytes of a tile's logits. */
static inline size_t rfi_cpu_tile_bytes(const rfi_cpu_blocking *blocking) {
    return blocking->stretch_offset - blocking->c_offset;
}

static inline size_t rfi_cpu_workspace(const rfi_cpu_blocking *blocking) {
    return blocking->states + blocking->tops + blocking->row_list + blocking->apart +
        (size_t)blocking->threads * blocking->scratch;
}

#endif
