/* SPDX-License-Identifier: MIT */
/* Blocks and workspace for batches up to the largest number: no sum or product may overflow. Compiled so that one that
 * does ends the program. And whether up to 64 threads have even parts, in a model of them. */
#include "cpu/blocking.h"

#include <stdio.h>
#include <string.h>

#include "check.h"
#include "dtype.h"
#include "sizes.h"

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

enum { INPUTS = 8192, PANEL = 32 };

/* Until the last thread is done with tasks that are handed out in ascending order, in multiply-adds for each input. A
 * multiply-add of a thread is the unit; beside them a sliver loads W and its sums, packing a value of x takes 16, and a
 * byte of W no less than 3 from a shared cache and 15 of all threads together from memory: 120 billion multiply-adds a
 * second with 40 and 8 gigabytes. Where columns and inputs are split a task has its share. Threads that take tasks one
 * after the other share what they read of W. Tiles take whole multiples of 16 rows, `rate` as fast. */
static double modelled(
    const rfi_cpu_blocking *b, int64_t batch, int64_t n, double weight_bytes, const rfi_cpu_pairs *tiles) {
    enum { MOST_THREADS = 64, SLIVER = 14, CHUNKS = INPUTS / RFI_CPU_DEPTH };
    const double sliver_load = 0.7, pack = 16, cached = 3, memory = 15;
    double busy[MOST_THREADS] = {0}, last = 0, read = 0;
    const int64_t parts = b->splits * b->column_parts, panels = ceil_div(n, PANEL),
                  tasks = b->row_blocks * (parts > 1 ? 1 : b->column_blocks) * parts, whole = tasks - b->parted;
    for (int64_t each = 0; each < whole + b->parted * b->parts; each++) {
        const int64_t tile = each < whole ? each : whole + (each - whole) / b->parts,
                      of_tile = each < whole ? 0 : (each - whole) % b->parts;
        const int64_t task = tile / parts, part = tile % b->splits, column_part = tile % parts / b->splits;
        const double share = (double)(CHUNKS * (part + 1) / b->splits - CHUNKS * part / b->splits) / CHUNKS;
        const int64_t row = task % b->row_blocks * b->rows, unit = task / b->row_blocks * b->block_units;
        const double rows = (double)least(b->rows, batch - row);
        int64_t of_task = parts > 1
            ? panels * (column_part + 1) / b->column_parts - panels * column_part / b->column_parts
            : least(b->block_units * RFI_CPU_UNIT / PANEL, panels - unit * RFI_CPU_UNIT / PANEL);
        if (each >= whole) of_task = of_task * (of_tile + 1) / b->parts - of_task * of_tile / b->parts;
        if (!of_task) continue;
        const double columns = (double)(of_task * PANEL);
        const double slivers = (double)ceil_div((int64_t)rows, SLIVER);
        const double arithmetic =
            tiles ? (double)round_up((int64_t)rows, tiles->rows_step) / tiles->rate : rows + sliver_load * slivers;
        int next = 0;
        for (int t = 1; t < b->threads; t++)
            if (busy[t] < busy[next]) next = t;
        busy[next] +=
            share * (columns * (arithmetic > cached * weight_bytes ? arithmetic : cached * weight_bytes) + pack * rows);
        if (busy[next] > last) last = busy[next];
        if (task % b->row_blocks % b->threads == 0) read += share * columns * weight_bytes * memory / b->threads;
    }
    return last > read ? last : read;
}

/* Threads against one: of linear, or of all that memory gives if that is less. At every number of threads, and on
 * average. */
static void balanced(
    const rfi_cpu_kernel *kernel, int64_t batch, int64_t n, rf_dtype weight_dtype, double least_of_all, double mean) {
    enum { MOST_THREADS = 64 };
    double alone = 0, sum = 0;
    rfi_cpu_pairs as_pairs = {0};
    if (kernel->terms) as_pairs.rows_step = kernel->terms->rows_step, as_pairs.rate = kernel->terms->rate;
    const rfi_cpu_pairs *tiles = kernel->terms ? &as_pairs : kernel->pairs[weight_dtype];
    for (int threads = 1; threads <= MOST_THREADS; threads++) {
        rfi_spec spec = spec_of(INPUTS, n, RF_OP_SUM, threads);
        rfi_cpu_blocking b;
        spec.weight_dtype = weight_dtype;
        CHECK(!rfi_cpu_block(&spec, kernel, batch, &b), "batch %lld: refused", (long long)batch);
        const double bytes = (double)rfi_cpu_weight_item(&spec, kernel), time = modelled(&b, batch, n, bytes, tiles);
        if (threads == 1) alone = time;
        const double read = (double)(b.units * RFI_CPU_UNIT) * bytes * 15 / threads;
        const double of_linear = (alone / threads > read ? alone / threads : read) / time;
        sum += of_linear;
        CHECK(of_linear >= least_of_all,
            "%lld rows, %lld columns, %d threads: %.3f of linear; %lld blocks of %lld x %lld, %lld in %lld parts",
            (long long)batch, (long long)n, threads, of_linear, (long long)(b.row_blocks * b.column_blocks),
            (long long)b.rows, (long long)(b.block_units * RFI_CPU_UNIT), (long long)b.parted, (long long)b.parts);
    }
    CHECK(sum >= mean * MOST_THREADS, "%lld rows, %lld columns: %.2f of linear on average", (long long)batch,
        (long long)n, sum / MOST_THREADS);
}

/* What a thread has of its own, and what all share beside states: constants, which the guarantee of working memory
 * tells. */
static void bounded(const rfi_cpu_kernel *kernel, rf_dtype weight_dtype, const char *of) {
    static const int64_t batches[] = {1, 16, 17, 64, 128, 129, 638, 1024, 4096, 100000},
                         inputs[] = {1, 16, 512, 700, 4096, 8192, 8193, 16384, 100000},
                         columns[] = {1, 8, 64, 100, 256, 300, 1000, 4096, 5000, 65536};
    static const int counts[] = {1, 2, 3, 4, 7, 9, 16, 17, 38, 64, 200};
    const rf_dtype compute = weight_dtype == RF_FLOAT64 ? RF_FLOAT64 : RF_FLOAT32;
    size_t own = 0, apart = 0;
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++)
            for (size_t n = 0; n < sizeof columns / sizeof *columns; n++)
                for (size_t t = 0; t < sizeof counts / sizeof *counts; t++) {
                    rfi_spec spec = spec_of(inputs[k], columns[n], RF_OP_SUM, counts[t]);
                    rfi_cpu_blocking b;
                    spec.weight_dtype = weight_dtype;
                    spec.compute_dtype = compute;
                    CHECK(!rfi_cpu_block(&spec, kernel, batches[i], &b), "%s: refused", of);
                    if (b.scratch > own) own = b.scratch;
                    if (b.apart > apart) apart = b.apart;
                }
    CHECK(own <= 4 << 20 && apart <= 9 << 20, "%s: %zu bytes a thread, %zu of all", of, own, apart);
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
    for (int type = RF_FLOAT32; type <= RF_BFLOAT16; type += RF_BFLOAT16 - RF_FLOAT32) {
        balanced(&kernel, 1024, 8192, (rf_dtype)type, 0.85, 0.9);
        balanced(&kernel, 1024, 1000, (rf_dtype)type, 0.85, 0.9);
        /* 32 units of few rows do not go evenly into every number of threads. */
        balanced(&kernel, 64, 8192, (rf_dtype)type, 0.85, 0.9);
        balanced(&kernel, 8, 64, (rf_dtype)type, 0.15, 0.4); /* 16 chunks */
    }
    /* Beside one thread with blocks of the same height. */
    const rfi_cpu_pairs tiles = {
        .max_rows = 32, .rows_step = RFI_CPU_TILE, .block_rows = RFI_CPU_TILE_BLOCK, .tiles = 1, .rate = 8};
    const rfi_cpu_kernel with_tiles = {.max_rows = 14, .panel = 32, .pairs = {[RF_BFLOAT16] = &tiles}};
    balanced(&with_tiles, 1024, 8192, RF_BFLOAT16, 0.95, 0.99);
    balanced(&with_tiles, 1024, 1000, RF_BFLOAT16, 0.95, 0.99);
    /* To read W takes as long as to multiply it with 64 rows, so that all threads have to. */
    balanced(&with_tiles, 64, 8192, RF_BFLOAT16, 0.85, 0.98);
    /* One thread has higher blocks, and narrower: logits stay near. */
    rfi_cpu_pairs alone = tiles;
    alone.alone_rows = RFI_CPU_ALONE_BLOCK;
    const rfi_cpu_kernel with_alone = {.max_rows = 14, .panel = 32, .pairs = {[RF_BFLOAT16] = &alone}};
    for (int threads_of = 1; threads_of <= 2; threads_of++) {
        rfi_spec spec = spec_of(INPUTS, 8192, RF_OP_SUM, threads_of);
        rfi_cpu_blocking b;
        spec.weight_dtype = RF_BFLOAT16;
        CHECK(!rfi_cpu_block(&spec, &with_alone, 1024, &b), "%d threads: refused", threads_of);
        CHECK((threads_of == 1 ? b.rows == 256 : b.rows <= 128) && b.rows * b.block_units * RFI_CPU_UNIT <= 5 << 16,
            "%d threads: blocks of %lld x %lld", threads_of, (long long)b.rows,
            (long long)(b.block_units * RFI_CPU_UNIT));
    }
    const rfi_cpu_terms terms = {
        .max_rows = 32, .rows_step = RFI_CPU_TILE, .block_rows = RFI_CPU_TILE_BLOCK, .rate = 2};
    const rfi_cpu_kernel with_terms = {.max_rows = 14, .panel = 32, .terms = &terms};
    balanced(&with_terms, 1024, 8192, RF_FLOAT32, 0.9, 0.95);
    balanced(&with_terms, 1024, 1000, RF_FLOAT32, 0.85, 0.95);
    balanced(&with_terms, 64, 8192, RF_FLOAT32, 0.85, 0.9);
    const rfi_cpu_kernel plain = {.max_rows = 14, .panel = 32, .lanes = 16},
                         doubles = {.max_rows = 14, .panel = 16, .lanes = 8};
    bounded(&plain, RF_FLOAT32, "float32");
    bounded(&plain, RF_BFLOAT16, "widened");
    bounded(&doubles, RF_FLOAT64, "float64");
    bounded(&with_alone, RF_BFLOAT16, "tiles");
    bounded(&with_terms, RF_FLOAT32, "terms");
    /* Many rows of few columns: x is packed once. */
    for (int64_t n = 520; n <= 2048; n += 40) {
        rfi_spec spec = spec_of(512, n, RF_OP_SUM, 4);
        rfi_cpu_blocking b;
        spec.weight_dtype = RF_FLOAT32;
        CHECK(!rfi_cpu_block(&spec, &kernel, 16384, &b), "%lld columns: refused", (long long)n);
        CHECK(b.column_blocks == 1 && b.rows > 100, "%lld columns: blocks of %lld x %lld", (long long)n,
            (long long)b.rows, (long long)(b.block_units * RFI_CPU_UNIT));
    }
    /* The last chunk is hardly a part of the inputs. */
    const rfi_cpu_kernel wide = {.max_rows = 14, .panel = 16};
    for (int64_t k = RFI_CPU_DEPTH + 1; k < RFI_CPU_DEPTH * 5 / 4; k++) {
        rfi_spec spec = spec_of(k, 128, RF_OP_SUM, 4);
        rfi_cpu_blocking b;
        spec.weight_dtype = spec.compute_dtype = RF_FLOAT64;
        CHECK(!rfi_cpu_block(&spec, &wide, 64, &b) && b.splits == 1, "%lld inputs in %lld parts", (long long)k,
            (long long)b.splits);
    }
    /* Few columns and few rows: no thread without columns, and rows where they go evenly into the threads. */
    const rfi_cpu_kernel narrow = {.max_rows = 14, .panel = 32, .lanes = 16};
    for (int64_t batch = 1; batch <= 80; batch++)
        for (int threads_of = 1; threads_of <= 40; threads_of++) {
            rfi_spec spec = spec_of(8000, 20, RF_OP_SUM, threads_of);
            rfi_cpu_blocking b;
            spec.weight_dtype = RF_FLOAT32;
            CHECK(!rfi_cpu_block(&spec, &narrow, batch, &b), "%lld rows: refused", (long long)batch);
            const int64_t tasks = most(b.row_blocks, b.column_parts);
            CHECK(b.narrow && b.column_parts <= 20 && b.threads <= tasks && b.rows * b.row_blocks >= batch &&
                    (b.row_blocks == 1 || b.column_parts == 1),
                "%lld rows, %d threads: %lld blocks, %lld parts", (long long)batch, threads_of, (long long)b.row_blocks,
                (long long)b.column_parts);
            if (batch <= 16 && threads_of <= 4)
                CHECK(b.threads == threads_of, "%lld rows: %d of %d threads", (long long)batch, b.threads, threads_of);
            CHECK(rfi_cpu_is_split(&b) ? b.apart >= (size_t)(round_up(batch, 16) * 20 * 16 * 4) : !b.apart,
                "%lld rows: %zu bytes of sums", (long long)batch, b.apart);
        }
    CHECK(refused > 0, "no workspace was too large");
    return failures != 0;
}
