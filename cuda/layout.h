/* SPDX-License-Identifier: MIT */
/* What a call takes of its workspace: which kernel, and where each part lies. A pure function of the model and the
 * call's shape, remembered for the shapes that come again. */
#ifndef ROWFOLD_CUDA_LAYOUT_H
#define ROWFOLD_CUDA_LAYOUT_H

#include "prepared.h"

/* What a layout depends on, beside the model. */
typedef struct rfi_cuda_shape {
    int64_t batch, rows; /* rows: at a time, at most */
    rf_dtype x_dtype;
    int pass;     /* index into the passes of the model */
    int states;   /* the call wants states instead of results */
    int copies_x; /* x as it lies cannot be read in 16-byte pieces: a kernel that does so gets a copy */
} rfi_cuda_shape;

/* Offsets into the workspace of one forward. */
typedef struct rfi_cuda_layout {
    rfi_cuda_choice choice;
    rfi_cuda_problem problem;
    int64_t rows;                /* that there is room for: those of a call pass through in pieces */
    int64_t x_rows;              /* for which x has room: see rfi_cuda_rows_of_x */
    int64_t num_partials, depth; /* columns of x that are prepared, of a level */
    int64_t num_tickets;
    int32_t groups;                           /* as in rfi_cuda_fold */
    int levels;                               /* of x */
    int64_t split_tickets, irregular_tickets; /* behind the others; no kernel has both */
    size_t tickets, flag, wide, scale, ratio, lone, terms[3], copy, partials, split_sums, total;
    size_t picked;
    size_t unread; /* where a kernel that merges the states of its rows leaves results that nobody wants */
} rfi_cuda_layout;

/* What a branch that is searched for keeps from pass to pass: rfi_cuda_before. */
typedef struct rfi_cuda_search_place {
    size_t values, columns, counts, found, found_columns;
    int64_t room;
} rfi_cuda_search_place;

/* The same of a pass for squares. */
typedef struct rfi_cuda_spread_place {
    size_t sums;
    int64_t units;
} rfi_cuda_spread_place;

/* And of a pass that knows ahead: rfi_cuda_diagonal. */
typedef struct rfi_cuda_ahead_place {
    rfi_cuda_ahead ahead;
    size_t w, scale, rest, bias, vectors, columns, picked, sample_vectors, stored, wanted;
} rfi_cuda_ahead_place;

/* A whole call: its passes one behind the other in the same place, and behind that what all of them see. */
typedef struct rfi_cuda_call_layout {
    rfi_cuda_layout passes[RFI_CUDA_MOST_PASSES];
    int64_t rows;                                   /* at a time, so that states and what is found have room */
    size_t row_numbers, row_columns, row_given;     /* (num_rows, rows) of the compute type, of int64, and as they came
                                                       from the host, or from among rows that are not wanted */
    size_t list, x;                                 /* which rows are wanted, and these */
    rfi_cuda_search_place searches[RF_MAX_RESULTS]; /* by branch */
    rfi_cuda_spread_place spreads[RFI_CUDA_MOST_PASSES]; /* by pass */
    rfi_cuda_ahead_place aheads[RFI_CUDA_MOST_PASSES];   /* likewise */
    size_t total;
} rfi_cuda_call_layout;

/* Host rows on the device. */
typedef struct rfi_cuda_stage {
    int64_t rows; /* at a time */
    size_t x, states, results[RFI_MAX_OUTPUTS],
        gathers[RF_MAX_OPS]; /* by output and by row input: those in host memory */
    size_t total;
} rfi_cuda_stage;

enum {
    RFI_CUDA_COUNTERS = 2 /* behind the tickets: next_tile and that of a second launch */
};

/* Layouts of the latest shapes. Nothing in it is allocated when a call is made, and no call waits for another one. */
typedef struct rfi_cuda_layouts rfi_cuda_layouts;
rfi_cuda_layouts *rfi_cuda_layouts_create(void); /* NULL: no memory */
void rfi_cuda_layouts_clear(rfi_cuda_layouts *layouts);
void rfi_cuda_layouts_destroy(rfi_cuda_layouts *layouts);

void rfi_cuda_lay_out(
    const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_forward *call, rfi_cuda_call_layout *l);

/* Host buffers pass through in pieces, of `most` rows. */
rfi_cuda_stage rfi_cuda_lay_out_stage(const rfi_spec *spec, const rfi_forward *call, int64_t most);

/* Columns of a result: of a gather those that the call asks for. */
static inline int64_t rfi_cuda_width(const rfi_plan *plan, const rfi_forward *call, int output) {
    const rfi_branch *branch = &plan->branches[plan->outputs[output].branch];
    return branch->gathers ? call->rows[branch->row - 1].columns : branch->width;
}

/* Values from one row to the next of x that was brought to the device. */
static inline int64_t rfi_cuda_staged_ld(const rfi_spec *spec) { return (spec->plan.in_features + 7) / 8 * 8; }

/* Whether kernels may read rows of x in 16-byte pieces. What the last piece of a row holds beside the row is not used,
 * but it must be there to be read: `padded` says that it is the library's own. */
static inline int rfi_cuda_in_pieces(const void *x, int64_t ldx, int64_t columns, size_t item, int padded) {
    return (uintptr_t)x % 16 == 0 && (size_t)ldx * item % 16 == 0 && (padded || (size_t)columns * item % 16 == 0);
}

#endif
