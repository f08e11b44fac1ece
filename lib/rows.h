/* SPDX-License-Identifier: MIT */
/* What a row of a call brings besides x: its row inputs. */
#ifndef ROWFOLD_ROWS_H
#define ROWFOLD_ROWS_H

#include "backend.h"
#include "dtype.h"
#include "states.h"

/* The row of x, and of what was given for each of its rows, that result row `row` is of. */
static inline int64_t rfi_row_of_x(const rfi_forward *call, int64_t row) {
    return call->wanted ? call->wanted[row] : row;
}

/* The number of row `row` that replaces a step's parameter: step->row is not 0. */
static inline double rfi_row_number(const rfi_forward *call, const rfi_step *step, int64_t row) {
    const rfi_row_values *values = &call->rows[step->row - 1];
    return rfi_load(values->data, values->dtype, rfi_row_of_x(call, row) * values->ld);
}

/* The column that row `row` asks for in a branch, or RFI_COLUMN_*. */
static inline int64_t rfi_row_column(
    const rfi_plan *plan, const rfi_branch *branch, const rfi_forward *call, int64_t row) {
    if (!branch->row) return RFI_COLUMN_OUTSIDE;
    const rfi_row_values *values = &call->rows[branch->row - 1];
    const int64_t column = rfi_load_index(values->data, values->dtype, rfi_row_of_x(call, row) * values->ld);
    if (column == branch->ignore) return RFI_COLUMN_IGNORED;
    return column >= 0 && column < plan->out_features ? column : RFI_COLUMN_OUTSIDE;
}

/* Column i of those that row `row` asks for in a branch that gathers. */
static inline int64_t rfi_row_gathers(const rfi_branch *branch, const rfi_forward *call, int64_t row, int64_t i) {
    const rfi_row_values *values = &call->rows[branch->row - 1];
    return rfi_load_index(values->data, values->dtype, rfi_row_of_x(call, row) * values->ld + i);
}

#endif
