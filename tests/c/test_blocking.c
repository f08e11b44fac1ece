/* SPDX-License-Identifier: MIT */
/* Blocks and workspace for batches up to the largest number: no sum or product may overflow. Compiled so that one that
 * does ends the program. */
#include "cpu/blocking.h"

#include <stdio.h>
#include <string.h>

#include "check.h"

static rfi_spec spec_of(int64_t k, int64_t n, int reduction, int threads) {
    rfi_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.plan.in_features = k;
    spec.plan.out_features = n;
    spec.plan.columns = (rfi_shard){0, n, n};
    spec.plan.num_branches = 1;
    spec.plan.branches[0].reduction = reduction;
    spec.plan.num_folds = reduction != 0;
    spec.plan.folds[0].reduction = reduction;
    spec.plan.collapsible = reduction != 0;
    spec.weight_dtype = RF_FLOAT16;
    spec.compute_dtype = RF_FLOAT32;
    spec.threads = threads;
    return spec;
}

/* The largest workspace that is not refused, and the row after it: states of a float take 8 bytes a row and unit, the
 * list of rows 8 a row. */
static void largest(const rfi_cpu_kernel *kernel, int64_t n, int64_t most, const char *of) {
    const rfi_spec spec = spec_of(512, n, RF_OP_SUM, 1);
    rfi_cpu_blocking b;
    CHECK(!rfi_cpu_block(&spec, kernel, most, &b), "%s of batch %lld: refused", of, (long long)most);
    CHECK(rfi_cpu_block(&spec, kernel, most + 1, &b) == RF_OUT_OF_MEMORY, "%s of batch %lld: not refused", of,
        (long long)most + 1);
}

int main(void) {
    static const int64_t batches[] = {0, 1, 55, 56, 111, 112, 113, 1000, 1 << 20, (int64_t)1 << 40, (int64_t)1 << 60,
        INT64_MAX / 2, INT64_MAX - 111, INT64_MAX - 1, INT64_MAX};
    static const int64_t sizes[] = {0, 1, 255, 256, 257, 8192, (int64_t)1 << 32, (int64_t)1 << 40};
    static const int threads[] = {1, 2, 3, 64, 1024};
    const rfi_cpu_kernel kernel = {.max_rows = 14, .panel = 32};
    int refused = 0;
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++)
            for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
                for (int folds = 0; folds < 2; folds++) {
                    const int64_t batch = batches[i], n = sizes[j];
                    const rfi_spec spec = spec_of(512, n, folds ? RF_OP_SUM : 0, threads[t]);
                    rfi_cpu_blocking b;
                    memset(&b, 0, sizeof b);
                    if (rfi_cpu_block(&spec, &kernel, batch, &b)) {
                        refused++;
                        CHECK(folds && batch >= (int64_t)1 << 40, "batch %lld, %lld columns: refused", (long long)batch,
                            (long long)n);
                        continue;
                    }
                    CHECK(b.threads >= 1 && b.threads <= threads[t], "batch %lld, %lld columns: %d threads",
                        (long long)batch, (long long)n, b.threads);
                    CHECK(b.narrow ? b.rows >= 1 && b.column_blocks == 1
                                   : b.rows >= 1 && b.rows <= 112 && b.block_units >= 1 && b.block_units <= 8,
                        "batch %lld, %lld columns: blocks of %lld x %lld", (long long)batch, (long long)n,
                        (long long)b.rows, (long long)b.block_units);
                    /* Every row and every unit in one block, the last not empty. */
                    CHECK(batch == 0 ? b.row_blocks == 1 : (batch - 1) / b.rows + 1 == b.row_blocks,
                        "batch %lld: %lld blocks of %lld", (long long)batch, (long long)b.row_blocks,
                        (long long)b.rows);
                    CHECK(n == 0 || b.narrow || (b.units - 1) / b.block_units + 1 == b.column_blocks,
                        "%lld columns: %lld blocks of %lld units", (long long)n, (long long)b.column_blocks,
                        (long long)b.block_units);
                    CHECK(!folds || b.states >= (size_t)b.units * 8 * (size_t)batch,
                        "batch %lld, %lld columns: %zu bytes of states", (long long)batch, (long long)n, b.states);
                }
    largest(&kernel, 4 * RFI_CPU_UNIT, PTRDIFF_MAX / 2 / (4 * 8), "states");
    largest(&kernel, 1, PTRDIFF_MAX / 4 / 8, "the list");
    CHECK(refused > 0, "no workspace was too large");
    return failures != 0;
}
