/* From the partial states of a row to its number in y. */
#include "cpu/forward.h"
#include "dtype.h"
#include "ops.h"

static double post_step(rf_dtype compute, const rfi_step *step, double x, double saved) {
    if (compute == RF_FLOAT64) return rfi_op_apply_f64(step->kind, x, step->a, step->b, saved);
    return rfi_op_apply_f32(step->kind, (float)x, (float)step->a, (float)step->b, (float)saved);
}

void rfi_cpu_store_row(const rfi_cpu_run *run, int64_t row, double value) {
    const rfi_forward *call = run->call;
    rf_dtype compute = run->spec->compute_dtype;
    double saved = 0;
    if (compute == RF_FLOAT32) value = (float)value;
    const rfi_steps *post = &run->spec->plan.branches[0].post;
    for (int i = 0; i < post->count; i++) {
        value = post_step(compute, &post->at[i], value, saved);
        if (post->at[i].kind == RF_OP_SAVE) saved = value;
    }
    rfi_store(call->y, call->y_dtype, row * call->ldy, value);
}

void rfi_cpu_finish_rows(const rfi_cpu_run *run, int64_t first, int count) {
    const rfi_plan *plan = &run->spec->plan;
    const rfi_branch *branch = &plan->branches[0];
    const rfi_cpu_prepared *p = run->prepared;
    const rfi_forward *call = run->call;
    double results[RFI_CPU_FINISH_ROWS] __attribute__((aligned(RFI_CPU_ALIGN))); /* of either type */
    size_t value = rfi_dtype_size(run->spec->compute_dtype), item = rfi_dtype_size(call->y_dtype);
    int64_t units = run->blocking.units;
    p->kernel->merge(branch->reduction, run->states + (size_t)(first * units * 2) * value, units, plan->out_features,
        count, results);
    p->kernel->apply(branch->post.at, branch->post.count, NULL, 0, results,
        (count + p->kernel->panel - 1) / p->kernel->panel * p->kernel->panel);
    int together = run->row_list || call->ldy != 1 ? 1 : count;
    for (int i = 0; i < count; i += together)
        p->kernel->narrow((char *)call->y + (size_t)(rfi_cpu_row(run, first + i) * call->ldy) * item,
            (char *)results + (size_t)i * value, call->y_dtype, together);
}
