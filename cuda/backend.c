/* SPDX-License-Identifier: MIT */
/* The CUDA backend's row in the list of backends. */
#include "backend.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device.h"
#include "dtype.h"
#include "error.h"
#include "number.h"
#include "prepared.h"
#include "states.h"
#include "terms.h"

enum { OLDEST_MAJOR = 8, MAX_FEATURES = 65535 * 32 };

static pthread_once_t probed = PTHREAD_ONCE_INIT;
static char probe_reason[200];
static int num_devices;

/* Why CUDA counts no devices. Its own words for a machine without a driver are those for one that is too old. */
static void say_why(cudaError_t error) {
    static const char said[] = "CUDA finds no usable GPU: ";
    int driver = -1;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) cudaGetLastError();
    if (driver == 0) snprintf(probe_reason, sizeof probe_reason, "%sthere is no NVIDIA driver", said);
    else if (error == cudaErrorInsufficientDriver && driver > 0)
        snprintf(probe_reason, sizeof probe_reason, "%sthe NVIDIA driver is one of CUDA %d.%d; expected %d.0 or newer",
            said, driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000);
    else snprintf(probe_reason, sizeof probe_reason, "%s\"%s\"", said, cudaGetErrorString(error));
}

static void probe(void) {
    cudaError_t error = cudaGetDeviceCount(&num_devices);
    if (error != cudaSuccess) {
        cudaGetLastError();
        num_devices = 0;
        say_why(error);
        return;
    }
    for (int device = 0; device < num_devices; device++) {
        int major = 0;
        if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
            major >= OLDEST_MAJOR)
            return;
    }
    cudaGetLastError();
    snprintf(probe_reason, sizeof probe_reason, "none of the %d CUDA device%s has compute capability %d.0 or newer",
        num_devices, num_devices == 1 ? "" : "s", OLDEST_MAJOR);
}

static int available(const char **reason) {
    pthread_once(&probed, probe);
    *reason = probe_reason;
    return !probe_reason[0];
}

static int current_device(void) {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError(); /* supports() reports what is wrong with device 0 */
    return device;
}

static rf_status check_steps(const rfi_steps *steps) {
    for (int i = 0; i < steps->count; i++) {
        const rfi_op_desc *op = rfi_op_find(steps->at[i].kind);
        if (op->flags & RFI_OPF_HOST)
            return rfi_error(RF_UNSUPPORTED, "no CUDA kernel computes %s; device \"cpu\" does", op->name);
    }
    return RF_OK;
}

static rf_status supports(const rfi_spec *spec) {
    int device = spec->device, major = 0;
    if (device >= num_devices)
        return rfi_error(RF_UNAVAILABLE, "device \"cuda:%d\": this machine has %d CUDA device%s", device, num_devices,
            num_devices == 1 ? "" : "s");
    rf_status status = rfi_cuda_status(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for the compute capability");
    if (status) return status;
    if (major < OLDEST_MAJOR)
        return rfi_error(RF_UNSUPPORTED, "CUDA device %d has compute capability %d.x; expected %d.0 or newer", device,
            major, OLDEST_MAJOR);
    if (spec->plan.out_features > MAX_FEATURES)
        return rfi_error(RF_UNSUPPORTED, "out_features is %lld; the CUDA kernels go to %d",
            (long long)spec->plan.out_features, MAX_FEATURES);
    status = check_steps(&spec->plan.trunk);
    for (int b = 0; b < spec->plan.num_branches && !status; b++) {
        status = check_steps(&spec->plan.branches[b].pre);
        if (!status) status = check_steps(&spec->plan.branches[b].post);
    }
    if (status) return status;
    rfi_cuda_passes passes;
    rfi_cuda_passes_of(&spec->plan, spec->weight_dtype, &passes);
    for (int i = 0; i < passes.count; i++) {
        const int steps = rfi_cuda_num_steps(&spec->plan, &passes.at[i]);
        if (steps > RF_MAX_OPS)
            return rfi_error(RF_UNSUPPORTED, "the plan has %d steps; the CUDA kernels take %d", steps, RF_MAX_OPS);
    }
    return RF_OK;
}

rfi_cuda_problem rfi_cuda_problem_of(const rfi_spec *spec, const rfi_cuda_prepared *prepared, const rfi_cuda_pass *pass,
    int64_t batch, rf_dtype x_dtype) {
    const int w_terms =
        prepared ? prepared->w_terms : rfi_cuda_weight_terms(spec->weight_dtype, spec->math, spec->plan.in_features);
    rfi_cuda_problem problem = {
        .batch = batch,
        .in_features = rfi_cuda_depth(prepared, spec),
        /* Of a shard those of the layer: which kernel folds a group of columns must not depend on the others. */
        .out_features = spec->plan.num_folds ? spec->plan.columns.total : spec->plan.out_features,
        .compute_dtype = spec->compute_dtype,
        .x_dtype = x_dtype,
        .w_dtype = spec->weight_dtype,
        .w_terms = w_terms,
        .w_infinite = prepared && prepared->w_infinite,
        .w_panel = prepared ? prepared->w.panel : 0,
        .num_vectors = spec->plan.num_vectors,
        .reduction = pass->reduction,
        .states = pass->states,
        .shows = pass->shows,
        .plain = pass->states != RFI_CUDA_SEARCH_STATES && pass->column < 0 && !rfi_cuda_num_pre(&spec->plan, pass),
        .batch_invariant = spec->batch_invariant,
        .alike = spec->batch_invariant || rfi_plan_is_shard(&spec->plan) || pass->reduction == RF_OP_NONE ||
            pass->states != RFI_CUDA_PAIRS,
    };
    if (!prepared || !prepared->w_nonfinite)
        problem.x_terms =
            rfi_cuda_x_terms(w_terms, spec->weight_dtype, x_dtype, spec->plan.in_features, &problem.term_dtype);
    if (prepared && prepared->w_tf32) problem.x_terms = 1, problem.term_dtype = RF_FLOAT32;
    return problem;
}

/* Which way W's values take, where it is not the usual one: see doc/kernels/accuracy.md. */
static void describe_weights(const rfi_spec *spec, const rfi_cuda_prepared *p, char *text, size_t size) {
    if (p->w_tf32)
        snprintf(text, size,
            "; x and W in float32 rounded to TF32, for in a binary16 term %u rows of W, or one column, would lose too "
            "much, and %u have infinities",
            p->findings.wide, p->findings.infinite);
    else if (p->w_several)
        snprintf(text, size, "; all rows of x as irregular ones, for %u rows of W have several infinities",
            p->findings.many);
    else if (p->verdicts.columns)
        snprintf(text, size, "; W in %s, for %u rows of W have several infinities, and a column more for each of them",
            p->w_terms == 3 ? "three bfloat16 terms" : "two binary16 terms", p->findings.many);
    else if (p->w_terms == 3)
        snprintf(text, size,
            "; W in three bfloat16 terms, for in two binary16 terms %u rows of W, or one column, would lose too much",
            p->findings.wide);
    else if (p->w_terms && spec->weight_dtype != RF_FLOAT32)
        snprintf(text, size, "; W in two binary16 terms, for x has another type and %u rows of W are not finite",
            p->findings.nonfinite);
    else if (p->findings.many && !p->w_terms && p->w.dtype == RF_FLOAT32)
        snprintf(text, size, "; W as it is stored, for %u rows of it have several infinities", p->findings.many);
    else if (p->findings.infinite && !p->w_terms && p->w.dtype == RF_FLOAT32)
        snprintf(text, size, "; W as it is stored, for %u rows of it have infinities", p->findings.infinite);
    else if (p->w_nonfinite)
        snprintf(text, size, "; x of other types than W's by plain multiply-adds, for %u rows of W are not finite",
            p->findings.nonfinite);
}

static int plan_gathers(const rfi_plan *plan) {
    for (int b = 0; b < plan->num_branches; b++)
        if (plan->branches[b].gathers) return 1;
    return 0;
}

/* The kernel of a pass. Weights that are not there yet: as they will be loaded, unless they are lent. */
static rf_status choose_kernel(const rfi_spec *spec, const rfi_cuda_prepared *p, const rfi_cuda_passes *passes,
    int pass, int64_t batch, const rfi_cuda_figures *figures, rfi_cuda_choice *choice) {
    int forced = p ? p->forced : -1;
    const rf_status status = p ? RF_OK : rfi_cuda_forced(&forced);
    if (status) return status;
    rfi_cuda_problem problem = rfi_cuda_problem_of(spec, p, &passes->at[pass], batch, spec->x_dtype);
    if (!p) {
        const rfi_cuda_problem hardest =
            rfi_cuda_problem_of(spec, p, rfi_cuda_hardest_pass(passes), batch, spec->x_dtype);
        problem.w_panel = rfi_cuda_weight_panel(&hardest, figures, forced);
    }
    rfi_cuda_choose(&problem, figures, forced, choice);
    if (problem.out_features == spec->plan.out_features) return RF_OK;
    problem.out_features = spec->plan.out_features;
    rfi_cuda_choose(&problem, figures, (int)choice->kernel, choice);
    return RF_OK;
}

/* Which steps on logits each pass computes as multiply-adds: nothing of rows of columns alone, or of results that are
 * stored. */
static rf_status lower(const rfi_spec *spec, const void *prepared, int64_t batch, rfi_rewrites *log) {
    const rfi_cuda_prepared *p = prepared;
    if (p ? p->collapsed : spec->plan.collapsible) return RF_OK;
    rfi_cuda_figures figures;
    rf_status status = rfi_cuda_get_figures(spec->device, &figures);
    if (status) return status;
    rfi_cuda_passes passes;
    rfi_cuda_passes_of(&spec->plan, spec->weight_dtype, &passes);
    for (int i = 0; i < passes.count; i++) {
        const rfi_cuda_pass *pass = &passes.at[i];
        rfi_cuda_choice choice;
        rfi_steps steps;
        status = choose_kernel(spec, p, &passes, i, batch, &figures, &choice);
        if (status) return status;
        if (!choice.affine || pass->reduction == RF_OP_NONE) continue;
        rfi_cuda_pre_steps(&spec->plan, &spec->plan.branches[pass->like], pass, &steps);
        rfi_cuda_affine_tell(&spec->plan, &steps, log);
    }
    return RF_OK;
}

static rf_status estimate(const rfi_spec *spec, const void *prepared, int64_t batch, rfi_estimate *out) {
    const rfi_cuda_prepared *p = prepared;
    rfi_cuda_figures figures;
    rf_status status = rfi_cuda_get_figures(spec->device, &figures);
    if (status) return status;
    rfi_cuda_passes passes;
    rfi_cuda_passes_of(&spec->plan, spec->weight_dtype, &passes);
    rfi_cuda_choice c = {0}, one;
    int count = 0; /* of passes over all of W */
    int64_t columns = 0;
    for (int i = passes.count ? passes.count - 1 : 0; i >= 0; i--) {
        status = choose_kernel(spec, p, &passes, i, batch, &figures, &one);
        if (status) return status;
        rfi_cuda_ahead ahead = {.behind = 1};
        if (i < passes.count && passes.at[i].role == RFI_CUDA_SEARCHES)
            ahead = rfi_cuda_ahead_of(&spec->plan, &passes, passes.at[i].before, &one, batch);
        if (one.opens) ahead.chunk = 0; /* of each row one column alone */
        columns += ahead.sample + ahead.chunk;
        count += ahead.behind > 0;
        const double part =
            (double)(ahead.sample + ahead.chunk) / (double)(spec->plan.out_features + 1) + (ahead.behind > 0);
        one.seconds *= part, one.flops *= part, one.bytes *= part;
        one.seconds += c.seconds, one.flops += c.flops, one.bytes += c.bytes;
        c = one; /* of the first pass, but for the sums */
    }
    if (!passes.count) c.seconds = c.flops = c.bytes = 0; /* how many columns are gathered, each call says */
    *out = (rfi_estimate){
        .flops_per_second = c.flops_per_second,
        .bytes_per_second = c.bytes_per_second,
        .fused_seconds = c.seconds,
        .flops = c.flops,
        .bytes = c.bytes,
    };
    out->collapsed = p ? p->collapsed : spec->plan.collapsible;
    if (out->collapsed) {
        out->bytes = (double)batch * (double)spec->plan.in_features * (double)rfi_dtype_size(spec->x_dtype);
        out->flops = 2 * (double)batch * (double)spec->plan.in_features;
        out->fused_seconds = out->bytes / (0.9 * c.bytes_per_second) + 3e-6;
    }
    if (out->collapsed) snprintf(out->kernel, sizeof out->kernel, "collapse, one dot product a row");
    else if (!passes.count) snprintf(out->kernel, sizeof out->kernel, "a dot product for each column that is gathered");
    else {
        int used = snprintf(
            out->kernel, sizeof out->kernel, "%s, tiles of %d rows x %d features", c.name, c.tile_rows, c.tile_columns);
        if (c.splits > 1)
            used += snprintf(out->kernel + used, sizeof out->kernel - (size_t)used, ", K%s in %d parts",
                c.whole_columns ? " of the last tiles" : "", c.splits);
        if (count > 1)
            used += snprintf(out->kernel + used, sizeof out->kernel - (size_t)used,
                ", the first of %d passes: not all results can be read from one state", count);
        if (columns)
            used += snprintf(out->kernel + used, sizeof out->kernel - (size_t)used,
                "; %lld columns ahead of the pass, for rank and topk", (long long)columns);
        if (plan_gathers(&spec->plan))
            used += snprintf(out->kernel + used, sizeof out->kernel - (size_t)used,
                "; a dot product for each column that is gathered");
        if (p) describe_weights(spec, p, out->kernel + used, sizeof out->kernel - (size_t)used);
    }
    if (passes.count && !out->collapsed && c.summed == RFI_CUDA_SUMMED_ALL)
        snprintf(out->sums, sizeof out->sums, "by tensor cores, which truncate");
    else if (passes.count && !out->collapsed && c.summed)
        snprintf(out->sums, sizeof out->sums, "by tensor cores of %d columns, these in float32", c.summed);
    char clock[RFI_NUMBER_TEXT], memory[RFI_NUMBER_TEXT];
    snprintf(out->machine, sizeof out->machine,
        "%s: %d multiprocessors at %s GHz, %s TB/s, by the device's own figures", figures.name, figures.multiprocessors,
        rfi_number_fixed(figures.clock_hz * 1e-9, 2, clock),
        rfi_number_fixed(figures.memory_bytes_per_second * 1e-12, 2, memory));
    /* Unfused, the logits are written and every operator reads and writes them. */
    double sweeps = 1 + 2.0 * spec->plan.trunk.count + (spec->plan.branches[0].reduction ? 1 : 0);
    double logits = (double)batch * (double)spec->plan.out_features * (double)rfi_dtype_size(spec->compute_dtype);
    out->unfused_seconds = c.seconds + sweeps * logits / figures.memory_bytes_per_second;
    return RF_OK;
}

const rfi_backend rfi_backend_cuda = {
    .name = "cuda",
    .is_cuda = 1,
    .available = available,
    .current_device = current_device,
    .supports = supports,
    .prepare = rfi_cuda_prepare,
    .release = rfi_cuda_release,
    .update = rfi_cuda_update,
    .workspace_size = rfi_cuda_workspace_size,
    .forward = rfi_cuda_forward,
    .merge = rfi_cuda_merge,
    .take_memory = rfi_cuda_take_memory,
    .give_back = rfi_cuda_give_back,
    .count_ways = rfi_cuda_count_ways,
    .estimate = estimate,
    .lower = lower,
};
