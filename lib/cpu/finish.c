/* SPDX-License-Identifier: MIT */
/* From the partial states of a row to its number in y. */
#include "cpu/forward.h"
#include "dtype.h"
#include "sizes.h"

static double post_step(rf_dtype compute, const rfi_step *step, double x, double saved) {
    if (compute == RF_FLOAT64) return rfi_op_apply_f64(step->kind, x, step->a, step->b, saved);
    return rfi_op_apply_f32(step->kind, (float)x, (float)step->a, (float)step->b, (float)saved);
}

void rfi_cpu_store_row(const rfi_cpu_run *run, int64_t row, double value) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_forward *call = run->call;
    rf_dtype compute = run->spec->compute_dtype;
    double saved = 0;
    if (compute == RF_FLOAT32) value = (float)value;
    for (int i = 0; i < plan->num_post; i++) {
        value = post_step(compute, &plan->post[i], value, saved);
        if (plan->post[i].kind == RF_OP_SAVE) saved = value;
    }
    rfi_store(call->y, call->y_dtype, row * call->ldy, value);
}

/* Columns by their WORDs, exactly where y's type can. */
static void store_indices(const rfi_cpu_run *run, int64_t first, int count, const void *words) {
    const rfi_forward *call = run->call;
    for (int i = 0; i < count; i++) {
        int64_t column = run->spec->compute_dtype == RF_FLOAT64 ? rfi_column_of_f64(((const double *)words)[i])
                                                                : rfi_column_of_f32(((const float *)words)[i]);
        rfi_store(call->y, call->y_dtype, rfi_cpu_row(run, first + i) * call->ldy, (double)column);
    }
}

void rfi_cpu_store_results(const rfi_cpu_run *run, int64_t first, int count, void *results) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_cpu_kernel *kernel = run->prepared->kernel;
    const rfi_forward *call = run->call;
    size_t value = rfi_dtype_size(run->spec->compute_dtype), item = rfi_dtype_size(call->y_dtype);
    int padded = (int)round_up(count, kernel->panel);
    if (rfi_reduction_flags(plan->reduction) & RFI_RF_INDEX) {
        if (!plan->num_post) {
            store_indices(run, first, count, results);
            return;
        }
        kernel->indices(results, count);
    }
    kernel->apply(run->prepared->post, plan->num_post, NULL, 0, results, padded);
    int together = run->row_list || call->ldy != 1 ? 1 : count;
    for (int i = 0; i < count; i += together)
        kernel->narrow((char *)call->y + (size_t)(rfi_cpu_row(run, first + i) * call->ldy) * item,
            (char *)results + (size_t)i * value, call->y_dtype, together);
}

void rfi_cpu_finish_rows(const rfi_cpu_run *run, int64_t first, int count) {
    double results[RFI_CPU_FINISH_ROWS] __attribute__((aligned(RFI_CPU_ALIGN))); /* of either type */
    int64_t asked[RFI_CPU_FINISH_ROWS];
    run->prepared->kernel->merge(run->spec->plan.reduction, rfi_states_at(&run->states, first, 0), run->states.units,
        run->spec->plan.out_features, count, rfi_cpu_ask(run, first, count, asked), results);
    rfi_cpu_store_results(run, first, count, results);
}
