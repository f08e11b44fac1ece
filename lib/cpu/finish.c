/* SPDX-License-Identifier: MIT */
/* From the partial states of a row to its results. */
#include "cpu/forward.h"
#include "dtype.h"
#include "sizes.h"

#include <string.h>

const rfi_step *rfi_cpu_steps_of_row(
    const rfi_cpu_run *run, const rfi_steps *steps, int64_t i, rfi_step own[RF_MAX_OPS]) {
    int rows = 0;
    for (int s = 0; s < steps->count; s++) rows |= steps->at[s].row;
    if (!rows) return steps->at;
    memcpy(own, steps->at, (size_t)steps->count * sizeof *own);
    for (int s = 0; s < steps->count; s++)
        if (own[s].row) own[s].a = rfi_row_number(run->call, &own[s], rfi_cpu_row(run, i));
    return own;
}

/* Row inputs as vectors of the compute type over the lanes; those beyond the last row have its numbers. */
static void spread_rows(const rfi_cpu_run *run, rfi_cpu_lanes *lanes, int count, int64_t first, int rows) {
    for (int s = 0; s < count; s++) {
        rfi_step *step = &lanes->steps[s];
        if (!step->row) continue;
        for (int i = 0; i < RFI_CPU_FINISH_ROWS; i++) {
            const int64_t row = rfi_cpu_row(run, first + (i < rows ? i : rows - 1));
            rfi_store(lanes->numbers[s], run->spec->compute_dtype, i, rfi_row_number(run->call, step, row));
        }
        lanes->vectors[s] = lanes->numbers[s];
        step->vector = s;
    }
}

void rfi_cpu_apply_to_lanes(const rfi_cpu_run *run, const rfi_steps *steps, int64_t first, int count,
    const void *const *columns, int column, void *values) {
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    const int padded = (int)round_up(count, kernel->panel);
    int all = 1;
    for (int s = 0; s < steps->count; s++) all &= rfi_step_is_scalar(&steps->at[s]);
    if (all) {
        kernel->apply(steps->at, steps->count, NULL, 0, values, padded);
        return;
    }
    rfi_cpu_lanes lanes;
    memcpy(lanes.steps, steps->at, (size_t)steps->count * sizeof *lanes.steps);
    for (int s = 0; s < steps->count; s++) {
        rfi_step *step = &lanes.steps[s];
        if (step->vector < 0) continue;
        /* A column's parameter is the same in all rows. */
        step->a = rfi_load(columns[step->vector], run->spec->compute_dtype, column);
        step->vector = -1;
    }
    spread_rows(run, &lanes, steps->count, first, count);
    kernel->apply(lanes.steps, steps->count, lanes.vectors, 0, values, padded);
}

static double post_step(rf_dtype compute, const rfi_step *step, double x, double saved) {
    if (compute == RF_FLOAT64) return rfi_op_apply_f64(step->kind, x, step->a, step->b, saved);
    return rfi_op_apply_f32(step->kind, (float)x, (float)step->a, (float)step->b, (float)saved);
}

void rfi_cpu_store_row(const rfi_cpu_run *run, int64_t row, double value) {
    const rfi_steps *post = &run->spec->plan.branches[0].post;
    const rfi_output *out = &run->call->outputs[0];
    rf_dtype compute = run->spec->compute_dtype;
    double saved = 0;
    if (compute == RF_FLOAT32) value = (float)value;
    for (int i = 0; i < post->count; i++) {
        rfi_step step = post->at[i];
        if (step.row) step.a = rfi_row_number(run->call, &step, row);
        value = post_step(compute, &step, value, saved);
        if (step.kind == RF_OP_SAVE) saved = value;
    }
    rfi_store(out->data, out->dtype, row * out->ld, value);
}

void rfi_cpu_store_top(const rfi_cpu_run *run, int branch, int64_t i, const rfi_top *top) {
    const rfi_branch *b = &run->spec->plan.branches[branch];
    const rfi_output *values = &run->call->outputs[b->output], *columns = values + 1;
    const int64_t row = rfi_cpu_row(run, i);
    for (int c = 0; c < b->top; c++) {
        rfi_store(values->data, values->dtype, row * values->ld + c, top->at[c].value);
        ((int64_t *)columns->data)[row * columns->ld + c] = top->at[c].column;
    }
}

void rfi_cpu_gather(
    const rfi_cpu_run *run, int branch, int64_t i, int64_t column, int n, const void *values, int64_t stride) {
    const rfi_branch *b = &run->spec->plan.branches[branch];
    const rfi_output *out = &run->call->outputs[b->output];
    const int64_t row = rfi_cpu_row(run, i), columns = run->call->rows[b->row - 1].columns;
    for (int64_t c = 0; c < columns; c++) {
        const int64_t at = rfi_row_gathers(b, run->call, row, c) - column;
        if (at < 0 || at >= n) continue;
        rfi_store(out->data, out->dtype, row * out->ld + c, rfi_load(values, run->spec->compute_dtype, at * stride));
    }
}

static void store_indices(const rfi_cpu_run *run, const rfi_output *out, int64_t first, int count, const void *words) {
    for (int i = 0; i < count; i++)
        ((int64_t *)out->data)[rfi_cpu_row(run, first + i) * out->ld] = run->spec->compute_dtype == RF_FLOAT64
            ? rfi_column_of_f64(((const double *)words)[i])
            : rfi_column_of_f32(((const float *)words)[i]);
}

void rfi_cpu_store_results(const rfi_cpu_run *run, int branch, int64_t first, int count, void *results) {
    const rfi_branch *b = &run->spec->plan.branches[branch];
    const rfi_output *out = &run->call->outputs[b->output];
    if (b->gives_index) {
        store_indices(run, out, first, count, results);
        return;
    }
    rfi_cpu_apply_to_lanes(run, &b->post, first, count, NULL, 0, results);
    const size_t value = rfi_dtype_size(run->spec->compute_dtype), item = rfi_dtype_size(out->dtype);
    const int together = run->row_list || out->ld != 1 ? 1 : count;
    for (int i = 0; i < count; i += together)
        run->prepared->kernel->narrow((char *)out->data + (size_t)(rfi_cpu_row(run, first + i) * out->ld) * item,
            (char *)results + (size_t)i * value, out->dtype, together);
}

void rfi_cpu_finish_rows(const rfi_cpu_run *run, int64_t first, int count) {
    const rfi_plan *plan = &run->spec->plan;
    double results[RFI_CPU_FINISH_ROWS] __attribute__((aligned(RFI_CPU_ALIGN))); /* of either type */
    int64_t asked[RFI_CPU_FINISH_ROWS];
    for (int b = 0; b < plan->num_branches; b++) {
        const rfi_branch *branch = &plan->branches[b];
        if (branch->gathers) continue;
        for (int i = 0; i < count && branch->top; i++)
            rfi_cpu_store_top(run, b, first + i, rfi_cpu_top(run, b, first + i));
        if (branch->top) continue;
        const rfi_states *states = &run->states[branch->fold];
        run->prepared->kernel->merge(branch->reduction, rfi_states_at(states, first, 0), states->words, states->units,
            branch->count, count, rfi_cpu_ask(run, branch, first, count, asked), results);
        rfi_cpu_store_results(run, b, first, count, results);
    }
}
