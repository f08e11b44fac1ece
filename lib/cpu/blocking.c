/* SPDX-License-Identifier: MIT */
#include "cpu/blocking.h"

#include "dtype.h"
#include "error.h"
#include "sizes.h"
#include "states.h"
#include "top.h"

enum {
    ROWS = 112,      /* of a block: W passes through the cache once for so many rows, quicker than memory is slow */
    BLOCK_UNITS = 8, /* of a block of columns: packing x is paid once for so many columns */
    TASKS_PER_THREAD = 8, /* so that threads finish together */
    LEAST_ROWS = 56       /* below this reading W, not arithmetic, sets the pace */
};

/* A thread is worth waking for this many multiply-adds. */
static const double WORK_PER_THREAD = 2e6;

/* Explain may be asked about any batch: a number of blocks beyond all counting is as good as the largest. */
static int64_t product(int64_t a, int64_t b) {
    int64_t result;
    return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

static size_t align_256(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

static int useful_threads(const rfi_spec *spec, int64_t batch) {
    double work = (double)batch * (double)spec->plan.out_features * (double)most(spec->plan.in_features, 16);
    return work / WORK_PER_THREAD < spec->threads ? 1 + (int)(work / WORK_PER_THREAD) : spec->threads;
}

/* Blocks of rows alone. */
static void block_narrow(const rfi_spec *spec, const rfi_cpu_kernel *kernel, int64_t batch, rfi_cpu_blocking *b) {
    const size_t value = rfi_dtype_size(spec->compute_dtype), n = (size_t)spec->plan.out_features;
    int64_t padded = round_up(spec->plan.out_features, kernel->panel),
            even = ceil_div(batch, (int64_t)b->threads * TASKS_PER_THREAD);
    b->rows = b->threads > 1 ? least(round_up(even, RFI_CPU_GROUP_ROWS), RFI_CPU_NARROW_ROWS) : RFI_CPU_NARROW_ROWS;
    b->row_blocks = most(1, ceil_div(batch, b->rows));
    b->column_blocks = 1;
    b->threads = (int)least(b->threads, b->row_blocks);
    b->w_offset = b->x_offset + align_256((size_t)(RFI_CPU_GROUP_ROWS * RFI_CPU_X_LD) * value);
    b->c_offset = b->w_offset + align_256((size_t)(RFI_CPU_GROUP_ROWS * kernel->lanes) * n * value);
    b->rows_offset = b->c_offset + align_256(RFI_CPU_NARROW_ROWS * n * value);
    b->own_offset = b->rows_offset + align_256((size_t)(RFI_CPU_NARROW_ROWS * (padded + 1)) * value);
    int own = 0;
    for (int r = 0; r < spec->plan.num_branches; r++) own |= spec->plan.branches[r].pre.count;
    b->scratch = b->own_offset + (own ? align_256(RFI_CPU_NARROW_ROWS * n * value) : 0);
}

/* Blocks of rows and of columns. */
static void block_wide(const rfi_spec *spec, const rfi_cpu_kernel *kernel, int64_t batch, rfi_cpu_blocking *b) {
    int64_t padded = round_up(spec->plan.out_features, kernel->panel);
    size_t value = rfi_dtype_size(spec->compute_dtype);
    b->units = ceil_div(padded, RFI_CPU_UNIT);
    int64_t tasks = (int64_t)b->threads * (b->threads > 1 ? TASKS_PER_THREAD : 1);

    /* Rows in even blocks; columns in as large ones as leave every thread enough tasks; then smaller blocks of rows
     * where columns do not suffice. */
    b->row_blocks = most(1, ceil_div(batch, ROWS));
    b->block_units = most(1, least(BLOCK_UNITS, product(b->units, b->row_blocks) / tasks));
    b->column_blocks = most(1, ceil_div(b->units, b->block_units));
    if (product(b->row_blocks, b->column_blocks) < b->threads)
        b->row_blocks = most(b->row_blocks, least(ceil_div(tasks, b->column_blocks), batch / LEAST_ROWS));
    b->rows = most(1, ceil_div(batch, b->row_blocks));
    b->row_blocks = most(1, ceil_div(batch, b->rows));
    b->threads = (int)least(b->threads, product(b->row_blocks, b->column_blocks));

    b->c_ld = least(b->block_units * RFI_CPU_UNIT, padded) + 16;
    b->w_offset = b->x_offset + align_256((size_t)b->rows * RFI_CPU_X_LD * value);
    b->c_offset = b->w_offset +
        (spec->weight_dtype == spec->compute_dtype ? 0 : align_256((size_t)(RFI_CPU_DEPTH * kernel->panel) * value));
    b->scratch = b->c_offset + align_256((size_t)(b->rows * b->c_ld) * value);
}

size_t rfi_cpu_fold_states(const rfi_spec *spec, int fold, int64_t batch, int64_t units) {
    const int words = rfi_reduction_words(spec->plan.folds[fold].reduction);
    return align_256((size_t)batch * (size_t)units * (size_t)words * rfi_dtype_size(spec->compute_dtype));
}

size_t rfi_cpu_branch_tops(const rfi_cpu_blocking *blocking, const rfi_branch *branch, int64_t batch) {
    return branch->top && !blocking->narrow ? align_256((size_t)batch * (size_t)rfi_top_bytes(branch->top)) : 0;
}

rf_status rfi_cpu_block(const rfi_spec *spec, const rfi_cpu_kernel *kernel, int64_t batch, rfi_cpu_blocking *b) {
    int64_t value = (int64_t)rfi_dtype_size(spec->compute_dtype), states = 0, list = 0, tops = 0, words = 0;
    *b = (rfi_cpu_blocking){.threads = useful_threads(spec, batch), .narrow = rfi_cpu_is_narrow(&spec->plan)};
    (b->narrow ? block_narrow : block_wide)(spec, kernel, batch, b);
    for (int f = 0; f < spec->plan.num_folds; f++) words += rfi_reduction_words(spec->plan.folds[f].reduction);
    for (int r = 0; r < spec->plan.num_branches; r++)
        if (spec->plan.branches[r].top) tops += rfi_top_bytes(spec->plan.branches[r].top);
    if (words &&
        (__builtin_mul_overflow(batch, b->units, &states) || __builtin_mul_overflow(states, words * value, &states) ||
            __builtin_mul_overflow(batch, (int64_t)sizeof(int64_t), &list) ||
            __builtin_mul_overflow(batch, tops, &tops) || states > PTRDIFF_MAX / 2 || list > PTRDIFF_MAX / 4 ||
            tops > PTRDIFF_MAX / 8))
        return rfi_error(
            RF_OUT_OF_MEMORY, "batch %lld needs a larger workspace than memory can hold", (long long)batch);
    b->row_list = spec->plan.collapsible ? align_256((size_t)list) : 0;
    for (int f = 0; f < spec->plan.num_folds; f++) b->states += rfi_cpu_fold_states(spec, f, batch, b->units);
    for (int r = 0; r < spec->plan.num_branches; r++) b->tops += rfi_cpu_branch_tops(b, &spec->plan.branches[r], batch);
    return RF_OK;
}
