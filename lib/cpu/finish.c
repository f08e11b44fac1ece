/* From the partial states of a row to its number in y. */
#include "cpu/forward.h"
#include "dtype.h"
#include "ops.h"

static double load_state(const rfi_cpu_run *run, int64_t index) { return rfi_load(run->states, run->spec->compute_dtype, index); }

/* In double and in the order of the columns: one pass for the peak, one for the total. */
static rfi_state_f64 merge(const rfi_cpu_run *run, int kind, int64_t row) {
    int64_t units = run->blocking.units, first = row * units * 2;
    rfi_state_f64 state = rfi_state_empty_f64(kind);
    for (int64_t u = 0; u < units; u++) {
        rfi_state_f64 unit = {load_state(run, first + 2 * u), load_state(run, first + 2 * u + 1)};
        state = rfi_state_merge_f64(kind, state, unit);
    }
    return state;
}

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

void rfi_cpu_finish_row(const rfi_cpu_run *run, int64_t i) {
    const rfi_plan *plan = &run->spec->plan;
    rfi_state_f64 state = merge(run, plan->reduction, i);
    rfi_cpu_store_row(run, rfi_cpu_row(run, i), rfi_state_finish_f64(plan->reduction, state, (double)plan->out_features));
}
