/* SPDX-License-Identifier: MIT */
/* How many partial states a row has in a GPU's workspace, and how many rows pass through at a time. */
#include "check.h"
#include "../../cuda/partials.h"

enum { MIB = 1 << 20, PAIR = 8, ANSWERS = 16 };

/* Kernels of 132 multiprocessors, by what the numbers depend on. */
static const rfi_cuda_choice tiles_of_256 = {.tile_rows = 128,
                                 .tile_columns = 256,
                                 .fold_columns = 256,
                                 .multiprocessors = 132,
                                 .irregular = 1,
                                 .grouped = 1,
                                 .apart = 1,
                                 .splits = 1},
                             portable = {.tile_rows = 128,
                                 .tile_columns = 128,
                                 .fold_columns = 64,
                                 .multiprocessors = 132,
                                 .splits = 1},
                             few_rows = {.tile_rows = 64,
                                 .tile_columns = 64,
                                 .fold_columns = 64,
                                 .multiprocessors = 132,
                                 .irregular = 1,
                                 .apart = 1,
                                 .splits = 1};

static int64_t bytes(rfi_cuda_partials p, int state) { return p.rows * p.states * state; }

/* A state for each that the kernel writes, and as many more as others do. */
static void test_states(void) {
    rfi_cuda_choice c = tiles_of_256;
    rfi_cuda_partials p = rfi_cuda_partials_of(&c, 1024, 4096, 8192, 0);
    CHECK(p.states == 32 && p.rows == 1024 && !p.tickets && !p.groups, "%lld states", (long long)p.states);
    p = rfi_cuda_partials_of(&c, 1024, 4096, 8193, 0);
    CHECK(p.states == 34, "33 states take an even number, not %lld", (long long)p.states);
    CHECK(rfi_cuda_partials_of(&c, 1024, 4096, 8192, 1).states == 128, "what is known ahead has states of 64 columns");
    c.uses_terms = 1;
    CHECK(rfi_cuda_partials_of(&c, 1024, 4096, 8192, 0).states == 128, "and so have irregular rows");
    CHECK(rfi_cuda_partials_of(&c, 1024, 4096, 65, 0).states == 2, "of two");
    c = tiles_of_256;
    c.apart = 0;
    p = rfi_cuda_partials_of(&c, 1000, 4096, 8193, 0);
    CHECK(p.states == 34 + 2 + 0 && p.tickets == 16 * 3, "33 states are two groups: %lld states, %lld tickets",
        (long long)p.states, (long long)p.tickets);
    CHECK(rfi_cuda_partials_of(&c, 1000, 4096, 31 * 256, 0).states == 32 + 1 + 1, "a group behind an odd number");
    c.tile_columns = 64, c.fold_columns = 32; /* smaller than a unit */
    CHECK(rfi_cuda_partials_of(&c, 10, 4096, 6400, 0).states == 200 + 7 + 1, "of 32 columns");
    CHECK(rfi_cuda_partials_of(&few_rows, 64, 4096, 8192, 0).states == 128 + RFI_SM90_BLOCKS,
        "those of blocks behind them");
    p = rfi_cuda_partials_of(&portable, 1000, 4096, 12800, 0);
    CHECK(p.states == 200 + 4 && p.groups == 4 && p.tickets == 8 * 5, "portable: %lld states, %d groups, %lld tickets",
        (long long)p.states, (int)p.groups, (long long)p.tickets);
    p = rfi_cuda_partials_of(&portable, 1000, 4096, 128, 0);
    CHECK(p.states == 2 && !p.groups && !p.tickets, "a block has all columns");
    CHECK(rfi_cuda_partials_of(&portable, 1000, 4096, 0, 0).states == 1, "no columns have a state, too");
}

/* Where the states of a row are many, so many rows that they take some 8 MiB. */
static void test_rows(void) {
    rfi_cuda_partials p = rfi_cuda_partials_of(&tiles_of_256, 8192, 4096, 128256, 0);
    CHECK(p.rows == 2048 && bytes(p, PAIR) <= 8 * MIB, "%lld rows take %lld bytes", (long long)p.rows,
        (long long)bytes(p, PAIR));
    p = rfi_cuda_partials_of(&tiles_of_256, 1024, 4096, 128256, 0);
    CHECK(p.rows == 1024 && bytes(p, PAIR) <= 4 * MIB, "%lld rows", (long long)p.rows);
    p = rfi_cuda_partials_of(&tiles_of_256, 8192, 64, 128256, 0);
    CHECK(p.rows == 8192, "of few inputs more rows, for they are soon done, not %lld", (long long)p.rows);
    CHECK(rfi_cuda_partials_of(&tiles_of_256, 1 << 20, 4096, 8192, 0).rows == 1 << 20,
        "few states of a row are no matter");
    rfi_cuda_choice shared = tiles_of_256;
    shared.splits = 2;
    CHECK(rfi_cuda_partials_of(&shared, 8192, 4096, 128256, 0).rows == 8192, "parts of K are chosen for all rows");
    static const rfi_cuda_choice *const kernels[] = {&tiles_of_256, &portable};
    for (int k = 0; k < 2; k++)
        for (int64_t n = 4000; n < 600000; n = n * 9 / 8)
            for (int searched = 0; searched < 2; searched++) {
                const rfi_cuda_choice *c = kernels[k];
                int64_t before = 0;
                for (int64_t batch = 1; batch < 1 << 22; batch *= 4) {
                    p = rfi_cuda_partials_of(c, batch, 4096, n, searched);
                    const int64_t now = bytes(p, ANSWERS),
                                  tiles = p.rows / c->tile_rows * ((n + c->tile_columns - 1) / c->tile_columns);
                    CHECK(p.rows <= batch && (p.rows == batch || p.rows % 2048 == 0),
                        "%lld of %lld rows of %lld columns", (long long)p.rows, (long long)batch, (long long)n);
                    CHECK(now >= before, "%lld rows take less than fewer", (long long)batch);
                    CHECK(p.rows == batch || tiles >= 24 * c->multiprocessors,
                        "%lld rows are few tiles of %lld columns", (long long)p.rows, (long long)n);
                    CHECK(p.states < 64 || p.rows <= 2048 || now <= 64 * MIB,
                        "%lld rows of %lld columns take %lld bytes", (long long)p.rows, (long long)n, (long long)now);
                    before = now;
                }
            }
}

/* Terms of float32 values of x: two levels of two terms of 16 bits, or one level. */
enum { TWO_LEVELS = 8, ONE_LEVEL = 4 };

static int64_t rows_of_x(const rfi_cuda_choice *c, int64_t batch, int64_t k, int64_t n, int64_t item) {
    return rfi_cuda_rows_of_x(c, batch, k, n, k * item);
}

/* So many rows that what x takes is half of what all would take, and 128 MiB at most; but rounds of tiles are full. */
static void test_rows_of_x(void) {
    const rfi_cuda_choice *const c = &tiles_of_256;
    CHECK(rfi_cuda_rows_of_x(c, 1 << 20, 8192, 8192, 0) == 1 << 20, "x that is read as it lies takes nothing");
    static const struct {
        int64_t batch, k, n, item, rows;
        const char *why;
    } cases[] = {
        {512, 8192, 8192, TWO_LEVELS, 512, "32 MiB are little"},
        {1024, 8192, 8192, TWO_LEVELS, 512, "half of 64"},
        {1024, 8192, 8192, ONE_LEVEL, 1024, "32 MiB, too"},
        {1500, 8192, 8192, TWO_LEVELS, 512, "three rounds, as of all at once"},
        {2048, 8192, 8192, TWO_LEVELS, 1024, "half of 128"},
        {8192, 8192, 8192, TWO_LEVELS, 2048, "128 MiB of 512"},
        {1 << 20, 8192, 8192, TWO_LEVELS, 2048, "and of any number"},
        {8192, 4096, 128256, TWO_LEVELS, 3840, "120, whose rounds are fuller"},
        {256, 32768, 32768, TWO_LEVELS, 256, "two tiles at least"},
        {2048, 8192, 4096, TWO_LEVELS, 1024, "512 rows leave half of the multiprocessors idle"},
        {1024, 8192, 11520, TWO_LEVELS, 1024, "and here a third"},
        {3000, 4096, 14336, TWO_LEVELS, 1792, "eleven rounds, as of all at once, where 1536 have twelve"},
        {8192, 8192, 1000, TWO_LEVELS, 4096, "of few columns as many as keep all at work"},
        {1 << 20, 512, 256, TWO_LEVELS, 99328, "and of few inputs for several rounds"},
        {9001, 1024, 4224, TWO_LEVELS, 5888, "six full rounds"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t rows = rows_of_x(c, cases[i].batch, cases[i].k, cases[i].n, cases[i].item);
        CHECK(rows == cases[i].rows, "%lld rows of %lld -> %lld: %lld at a time, not %lld: %s",
            (long long)cases[i].batch, (long long)cases[i].k, (long long)cases[i].n, (long long)rows,
            (long long)cases[i].rows, cases[i].why);
    }
    rfi_cuda_choice shared = tiles_of_256;
    shared.splits = 2;
    CHECK(rows_of_x(&shared, 8192, 8192, 8192, TWO_LEVELS) == 8192, "parts of K are chosen for all rows");
    for (int64_t k = 1; k < 1 << 18; k = k * 5 / 2 + 1)
        for (int64_t n = 1; n < 600000; n = n * 7 / 2 + 1) {
            int64_t before = 0;
            for (int64_t batch = 1; batch < INT64_C(1) << 60;
                batch += batch < 20000 ? batch / 9 + 100 : batch * 2 + 1) {
                const int64_t rows = rows_of_x(c, batch, k, n, TWO_LEVELS),
                              tiles = (n + 255) / 256 * ((rows + 127) / 128);
                CHECK(rows > 0 && rows <= batch, "%lld of %lld rows", (long long)rows, (long long)batch);
                CHECK(rows == batch || rows % 256 == 0, "%lld rows are not whole pairs of tiles", (long long)rows);
                CHECK(rows >= before, "%lld rows of %lld -> %lld take less than fewer", (long long)batch, (long long)k,
                    (long long)n);
                CHECK(rows == rows_of_x(&few_rows, batch, k, n, TWO_LEVELS), "whatever the kernel's tiles");
                CHECK(rows <= 256 || rows * k * TWO_LEVELS <= 128 * MIB || tiles <= c->multiprocessors ||
                        tiles * k <= 8192 * (int64_t)c->multiprocessors,
                    "%lld of %lld rows of %lld -> %lld keep all multiprocessors at work for long", (long long)rows,
                    (long long)batch, (long long)k, (long long)n);
                before = rows;
            }
        }
}

int main(void) {
    test_states();
    test_rows_of_x();
    test_rows();
    return failures != 0;
}
