/* SPDX-License-Identifier: MIT */
/* Which CUDA kernel for which problem: a pure function, tested without a GPU. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "../../cuda/choose.h"
#include "../../cuda/terms.h"
#include "../../cuda/turned.h"

static const rfi_cuda_figures large = {"large", 8, 0, 108, 1.41e9, 1.94e12, 40 << 20, 163 << 10};
static const rfi_cuda_figures hopper = {"hopper", 9, 0, 132, 1.98e9, 4.8e12, 50 << 20, 227 << 10};
static const rfi_cuda_figures small = {"small", 8, 6, 28, 1.7e9, 3.6e11, 3 << 20, 99 << 10};
static const rfi_cuda_figures narrow = {"too little shared memory", 8, 0, 28, 1.7e9, 3.6e11, 3 << 20, 48 << 10};

static rfi_cuda_problem problem_of(int64_t batch, int64_t k, int64_t n, rf_dtype w, rf_dtype x, rf_math math) {
    rfi_cuda_problem p = {.batch = batch,
        .in_features = k,
        .out_features = n,
        .w_dtype = w,
        .x_dtype = x,
        .reduction = RF_OP_LOGSUMEXP,
        .plain = 1};
    p.compute_dtype = w == RF_FLOAT64 ? RF_FLOAT64 : RF_FLOAT32;
    p.w_terms = rfi_cuda_weight_terms(w, math, k);
    p.x_terms = rfi_cuda_x_terms(p.w_terms, w, x, k, &p.term_dtype);
    return p;
}

static rfi_cuda_choice choose(const rfi_cuda_problem *p, const rfi_cuda_figures *f, int forced) {
    rfi_cuda_choice c;
    memset(&c, 0, sizeof c);
    rfi_cuda_choose(p, f, forced, &c);
    return c;
}

static int is(const rfi_cuda_choice *c, const char *prefix) { return !strncmp(c->name, prefix, strlen(prefix)); }

static void test_terms(void) {
    CHECK(rfi_cuda_weight_terms(RF_FLOAT64, RF_MATH_F32, 8192) == 0, "float64 stays as it is");
    CHECK(rfi_cuda_weight_terms(RF_FLOAT32, RF_MATH_F32, 8192) == 2, "float32 takes two terms");
    CHECK(rfi_cuda_weight_terms(RF_FLOAT32, RF_MATH_TF32, 8192) == 1, "tf32 takes one");
    CHECK(rfi_cuda_weight_terms(RF_FLOAT32, RF_MATH_F32, 8) == 0, "short dot products are rounded once a product");
    CHECK(rfi_cuda_weight_terms(RF_BFLOAT16, RF_MATH_F32, 8192) == 0, "16-bit values are terms of their own");
    static const struct {
        int w_terms;
        rf_dtype w, x;
        int terms;
        rf_dtype dtype;
    } x_terms[] = {
        {2, RF_FLOAT32, RF_FLOAT32, 2, RF_FLOAT16},
        {2, RF_FLOAT32, RF_BFLOAT16, 1, RF_FLOAT16},
        {1, RF_FLOAT32, RF_FLOAT32, 1, RF_FLOAT16},
        {3, RF_FLOAT32, RF_FLOAT32, 3, RF_BFLOAT16},
        {3, RF_FLOAT32, RF_FLOAT16, 3, RF_BFLOAT16},
        {0, RF_BFLOAT16, RF_FLOAT32, 3, RF_BFLOAT16},
        {0, RF_BFLOAT16, RF_FLOAT16, 2, RF_BFLOAT16},
        {0, RF_FLOAT16, RF_FLOAT32, 2, RF_FLOAT16},
        {0, RF_FLOAT16, RF_BFLOAT16, 1, RF_FLOAT16},
        {0, RF_BFLOAT16, RF_BFLOAT16, 0, RF_BFLOAT16},
        {0, RF_FLOAT32, RF_FLOAT32, 0, RF_FLOAT16},
    };
    for (size_t i = 0; i < sizeof x_terms / sizeof *x_terms; i++) {
        rf_dtype dtype;
        const int terms = rfi_cuda_x_terms(x_terms[i].w_terms, x_terms[i].w, x_terms[i].x, 8192, &dtype);
        CHECK(terms == x_terms[i].terms && (!terms || dtype == x_terms[i].dtype),
            "x %d with W %d in %d terms: %d terms of %d", x_terms[i].x, x_terms[i].w, x_terms[i].w_terms, terms, dtype);
    }
    rf_dtype dtype;
    for (int64_t k = 31; k <= 32; k++)
        CHECK(!rfi_cuda_weight_terms(RF_FLOAT32, RF_MATH_F32, k) == (k < 32) &&
                !rfi_cuda_x_terms(0, RF_BFLOAT16, RF_FLOAT32, k, &dtype) == (k < 32),
            "terms of %lld inputs", (long long)k);
    CHECK(rfi_cuda_products(0, 0) == 1 && rfi_cuda_products(1, 2) == 2 && rfi_cuda_products(2, 2) == 3 &&
            rfi_cuda_products(3, 1) == 3 && rfi_cuda_products(3, 3) == 6,
        "the products of terms");
    CHECK(rfi_cuda_last_meets_first(1, 1) && rfi_cuda_last_meets_first(2, 2) && rfi_cuda_last_meets_first(3, 3) &&
            rfi_cuda_last_meets_first(3, 0) && rfi_cuda_last_meets_first(2, 1),
        "the last term of x meets others than the first of W");
    CHECK(!rfi_cuda_last_meets_first(1, 2) && !rfi_cuda_last_meets_first(1, 3) && !rfi_cuda_last_meets_first(2, 3),
        "all that a term of x meets counts");
}

/* To the byte. */
static void test_shared_memory(void) {
    rfi_cuda_figures device = large;
    const rfi_cuda_problem p = problem_of(64, 512, 512, RF_FLOAT16, RF_FLOAT16, RF_MATH_F32);
    for (int enough = 0; enough < 2; enough++) {
        device.shared_per_block = (size_t)(98304 + 1023 + enough);
        const rfi_cuda_choice c = choose(&p, &device, rfi_cuda_kernel_find("mma_64x64"));
        CHECK(is(&c, "mma_64x64") == enough, "%s with %zu bytes of shared memory", c.name, device.shared_per_block);
    }
}

/* Every problem has a kernel of its compute type, with an expectation that is a number. */
static void test_all_have_one(void) {
    static const rf_dtype types[] = {RF_FLOAT32, RF_FLOAT16, RF_BFLOAT16};
    static const int64_t sizes[] = {0, 1, 7, 31, 32, 64, 65, 1000, 8192};
    static const rfi_cuda_figures *const devices[] = {&large, &small, &hopper, &narrow};
    for (size_t d = 0; d < 4; d++)
        for (size_t i = 0; i < 9; i++)
            for (size_t j = 0; j < 9; j++)
                for (size_t t = 0; t < 10; t++) {
                    rf_dtype w = t < 9 ? types[t / 3] : RF_FLOAT64, x = t < 9 ? types[t % 3] : RF_FLOAT64;
                    for (int64_t n = 0; n < 300; n += 99) {
                        rfi_cuda_problem p = problem_of(sizes[i], sizes[j], n, w, x, RF_MATH_F32);
                        rfi_cuda_choice c = choose(&p, devices[d], -1);
                        CHECK(c.name && c.seconds > 0 && c.seconds < 1e3,
                            "no kernel for batch %d, K %d, N %d, W %d, x %d", (int)sizes[i], (int)sizes[j], (int)n, w,
                            x);
                        CHECK(c.fold_columns > 0 && c.tile_columns % c.fold_columns == 0 && c.tile_rows > 0,
                            "%s: tiles", c.name);
                        CHECK(!c.uses_terms || p.x_terms, "%s asks for terms that W is not kept in", c.name);
                        CHECK(!!strstr(c.name, "f64") == (w == RF_FLOAT64), "%s for a compute type that is not its own",
                            c.name);
                        CHECK(d < 3 || !is(&c, "mma_1"), "%s does not fit the device", c.name);
                    }
                }
}

static void test_expected(void) {
    rfi_cuda_problem p = problem_of(1024, 8192, 8192, RF_FLOAT32, RF_FLOAT32, RF_MATH_F32);
    rfi_cuda_choice c = choose(&p, &large, -1);
    CHECK(is(&c, "mma_128x128") && c.uses_terms, "a large float32 problem got %s", c.name);
    CHECK(c.flops == 3 * 2.0 * 1024 * 8192 * 8192, "three products are %g operations", c.flops);
    double three = c.seconds;
    p = problem_of(1024, 8192, 8192, RF_FLOAT32, RF_FLOAT32, RF_MATH_TF32);
    c = choose(&p, &large, -1);
    CHECK(c.seconds < 0.6 * three, "one product should take about a third of three: %g and %g", c.seconds, three);
#ifdef RFI_BUILD_SM90
    c = choose(&p, &hopper, -1);
    CHECK(is(&c, "hopper"), "sm_90 got %s", c.name);
    p.states = RFI_CUDA_ANSWER_STATES;
    c = choose(&p, &hopper, -1);
    CHECK(is(&c, "hopper_answers"), "several results got %s", c.name);
    CHECK(c.ahead == c.kernel && c.ahead_columns == c.fold_columns, "what is known ahead is the same kernel's");
    p.states = RFI_CUDA_SEARCH_STATES;
    c = choose(&p, &hopper, -1);
    CHECK(is(&c, "hopper_searches_128x256") && c.ahead == RFI_CUDA_HOPPER_SEARCHES_64X128 && c.ahead_columns == 64,
        "few columns by %s are of states of %d", c.name, c.ahead_columns);
    CHECK(!c.opens, "terms are prepared, and rows may be irregular: no pass in two launches");
    p.states = RFI_CUDA_OTHER_STATES;
    CHECK(!rfi_cuda_weight_panel(&p, &hopper, -1), "W in blocks for kernels that do not take the reduction");
    c = choose(&p, &hopper, -1);
    CHECK(is(&c, "mma"), "special states got %s", c.name);
#endif
    p = problem_of(1024, 8192, 8192, RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32);
    CHECK(choose(&p, &large, -1).summed == 2048, "bfloat16 on 8.0 is added every %d", choose(&p, &large, -1).summed);
    p = problem_of(64, 8192, 64, RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32);
    c = choose(&p, &large, rfi_cuda_kernel_find("mma_64x64"));
    CHECK(c.splits > 1 && c.split_depth < 2048 && c.summed == c.split_depth, "parts of %lld are added every %d",
        (long long)c.split_depth, c.summed);
    p = problem_of(1024, 8192, 8192, RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32);
#ifdef RFI_BUILD_SM90
    CHECK(choose(&p, &hopper, -1).summed == RFI_CUDA_SUMMED_ALL, "a logsumexp alone leaves its sums to tensor cores");
    p.states = RFI_CUDA_ANSWER_STATES;
    CHECK(choose(&p, &hopper, -1).summed == 128, "one that shows single logits does not");
    CHECK(!choose(&p, &hopper, -1).opens, "without a search nothing is known ahead");
    p.states = RFI_CUDA_SEARCH_STATES;
    CHECK(choose(&p, &hopper, -1).opens, "values as they are stored");
    for (int64_t rows = 1; rows <= 4096; rows = rows * 5 / 2 + 1)
        for (int64_t n = 16; n <= 70000; n = n * 5 / 2 + 1) {
            rfi_cuda_problem lent = problem_of(rows, 136 * (n % 7 + 1), n, RF_FLOAT16, RF_FLOAT16, RF_MATH_F32);
            lent.states = RFI_CUDA_ANSWER_STATES;
            lent.w_panel = 0;
            c = choose(&lent, &hopper, -1);
            CHECK(c.summed <= 128, "%lld x %lld by %s is added every %d", (long long)rows, (long long)n, c.name,
                c.summed);
        }
    p.states = RFI_CUDA_ANSWER_STATES;
    p.batch = 8;
    p.states = RFI_CUDA_PAIRS;
    CHECK(choose(&p, &hopper, -1).summed == 128, "nor does the kernel for few rows");
#endif
    p = problem_of(1024, 8192, 8192, RF_FLOAT32, RF_FLOAT32, RF_MATH_F32);
    CHECK(!choose(&p, &large, -1).summed, "several products are added as they come");
    p = problem_of(1, 8192, 8192, RF_FLOAT32, RF_FLOAT32, RF_MATH_F32);
    c = choose(&p, &large, -1);
    CHECK(is(&c, "stream") && !c.uses_terms, "one row got %s", c.name);
    CHECK(
        c.seconds > 4.0 * 8192 * 8192 / large.memory_bytes_per_second, "%g s is faster than W can be read", c.seconds);
    p = problem_of(1024, 8192, 8192, RF_FLOAT64, RF_FLOAT64, RF_MATH_F32);
    c = choose(&p, &large, -1);
    CHECK(is(&c, "mma_f64"), "float64 got %s", c.name);
    p = problem_of(100, 300, 500, RF_BFLOAT16, RF_FLOAT32, RF_MATH_F32);
    p.w_terms = p.x_terms = 0; /* irregular weights stay as they are stored */
    c = choose(&p, &large, -1);
    CHECK(is(&c, "fma") || is(&c, "few"), "irregular weights got %s", c.name);
}

/* x and W in float32 rounded to TF32: by wgmma, and by what reads float32. */
static void test_tf32(void) {
    static const int64_t batches[] = {1, 32, 1024};
    for (size_t i = 0; i < 3; i++) {
        rfi_cuda_problem p = problem_of(batches[i], 8192, 8192, RF_FLOAT32, RF_FLOAT32, RF_MATH_F32);
        p.w_terms = 0, p.x_terms = 1, p.term_dtype = RF_FLOAT32;
        rfi_cuda_choice c = choose(&p, &large, -1);
        CHECK(!is(&c, "mma") && !is(&c, "stream") && !c.uses_terms, "%s multiplies no TF32", c.name);
#ifdef RFI_BUILD_SM90
        c = choose(&p, &hopper, -1);
        CHECK(is(&c, batches[i] == 1024 ? "hopper_128x256" : "hopper_64x64") && c.uses_terms, "TF32, batch %d: %s",
            (int)batches[i], c.name);
        CHECK(c.flops == 4.0 * (double)batches[i] * 8192 * 8192, "a product of TF32 is %g operations", c.flops);
        CHECK(!rfi_cuda_weight_panel(&p, &hopper, -1), "blocks of TF32");
#endif
    }
}

#ifdef RFI_BUILD_SM90
/* Up to 64 rows in any precision, about a hundred, and rows that are no whole tiles, or an odd number. */
static void test_few_rows(void) {
    static const struct {
        int batch;
        const char *f32, *bf16;
    } expected[] = {
        {1, "hopper_small", "hopper_small"},
        {4, "hopper_small", "hopper_small"},
        {8, "hopper_small", "hopper_small"},
        {32, "hopper_small", "hopper_halves_320x128"},
        {64, "hopper_small", "hopper_halves_320x128"},
        {65, "hopper_halves", "hopper_halves_320x128"},
        {128, "hopper_halves", "hopper_halves_320x128"},
        {129, "hopper_halves", "hopper_halves_320x128"},
        {192, "hopper_halves", "hopper_halves_320x128"},
        {256, "hopper_halves", "hopper_128x128"},
        {257, "hopper_halves", "hopper_halves_320x128"},
        {320, "hopper_halves", "hopper_halves_320x128"},
        {384, "hopper_halves", "hopper_320x128"},
        {512, "hopper_128x256", "hopper_128x256"},
        {640, "hopper_halves", "hopper_320x128"},
        {1024, "hopper_128x256", "hopper_128x256"},
        {1025, "hopper_halves", "hopper_320x128"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        rfi_cuda_problem p = problem_of(expected[i].batch, 8192, 8192, RF_FLOAT32, RF_FLOAT32, RF_MATH_F32);
        rfi_cuda_choice c = choose(&p, &hopper, -1);
        CHECK(is(&c, expected[i].f32) && !c.grouped == (expected[i].batch <= 64) && c.affine == c.grouped,
            "float32, batch %d: %s", expected[i].batch, c.name);
        p = problem_of(expected[i].batch, 8192, 8192, RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32);
        c = choose(&p, &hopper, -1);
        CHECK(is(&c, expected[i].bf16) && c.aligned_x, "bfloat16, batch %d: %s", expected[i].batch, c.name);
        p.alike = 1;
        c = choose(&p, &hopper, rfi_cuda_kernel_find("hopper_128x192"));
        CHECK(!is(&c, "hopper_128x192"), "states of 192 columns for columns that must be alike");
        p.batch_invariant = 1;
        c = choose(&p, &hopper, -1);
        CHECK(is(&c, "hopper_128x256"), "batch-invariant, batch %d: %s", expected[i].batch, c.name);
        static const char *const others[] = {
            "hopper_small", "hopper_halves_128x128", "hopper_320x128", "hopper_halves_320x128"};
        for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
            c = choose(&p, &hopper, rfi_cuda_kernel_find(others[k]));
            CHECK(!is(&c, others[k]), "%s, which is not for every batch, was forced on a batch-invariant model",
                others[k]);
        }
    }
}
#endif

#ifdef RFI_BUILD_SM90
/* W in blocks: where the kernels of sm_90a read them at every type of x that may come. */
static void test_blocks(void) {
    static const struct {
        rf_dtype w, x;
        rf_math math;
        int panel;
    } expected[] = {
        {RF_FLOAT32, RF_FLOAT32, RF_MATH_F32, 32},
        {RF_FLOAT32, RF_BFLOAT16, RF_MATH_F32, 32},
        {RF_FLOAT32, RF_FLOAT32, RF_MATH_TF32, 64},
        {RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32, 64},
        {RF_FLOAT16, RF_FLOAT16, RF_MATH_TF32, 64},
        {RF_BFLOAT16, RF_FLOAT32, RF_MATH_F32, 64},
        {RF_BFLOAT16, RF_FLOAT16, RF_MATH_F32, 64},
        {RF_FLOAT64, RF_FLOAT64, RF_MATH_F32, 0},
    };
    const int small = rfi_cuda_kernel_find("hopper_small"), portable = rfi_cuda_kernel_find("mma_128x128");
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        rfi_cuda_problem p = problem_of(1, 8192, 8192, expected[i].w, expected[i].x, expected[i].math);
        int panel = rfi_cuda_weight_panel(&p, &hopper, -1);
        CHECK(panel == expected[i].panel, "W %d, x %d: panels of %d columns", expected[i].w, expected[i].x, panel);
        CHECK(rfi_cuda_weight_panel(&p, &hopper, small) == panel, "forced hopper_small reads blocks as well");
        CHECK(!rfi_cuda_weight_panel(&p, &hopper, portable) && !rfi_cuda_weight_panel(&p, &large, -1),
            "nobody else reads blocks");
        p.num_vectors = RFI_SM90_VECTORS + 1;
        CHECK(!rfi_cuda_weight_panel(&p, &hopper, -1), "more vectors than the kernels take");
        p.num_vectors = 0;
        p.w_panel = panel;
        for (p.batch = 1; panel && p.batch < 5000; p.batch *= 2)
            for (int kernel = -1; kernel < RFI_CUDA_NUM_KERNELS; kernel++) {
                rfi_cuda_choice c = choose(&p, &hopper, kernel);
                const int small_tiles = panel == 64 && (is(&c, "mma_64x64") || is(&c, "mma_16x64"));
                CHECK(is(&c, "hopper") || is(&c, "fma") || is(&c, "few") || is(&c, "stream") || is(&c, "narrow") ||
                        small_tiles,
                    "%s does not read blocks", c.name);
                rfi_cuda_problem several = p;
                several.states = RFI_CUDA_ANSWER_STATES;
                c = choose(&several, &hopper, kernel);
                CHECK(!is(&c, "mma"), "%s adds more columns than several results allow", c.name);
            }
    }
}
#endif

#ifdef RFI_BUILD_SM90
/* bfloat16 W in blocks for x of its own type, and float32 x comes: three terms. Stages of large tiles have 32 columns
 * of these, and cannot read blocks of 64, whoever asks for them. */
static void test_blocks_beside_three_terms(void) {
    static const struct {
        rfi_cuda_states states;
        int64_t batch;
        int batch_invariant;
        const char *kernel;
    } untold[] = {
        {RFI_CUDA_PAIRS, 1, 0, "hopper_small"},
        {RFI_CUDA_PAIRS, 32, 0, "hopper_small"},
        {RFI_CUDA_PAIRS, 33, 0, "hopper_halves_128x128"},
        {RFI_CUDA_PAIRS, 2048, 0, "hopper_halves_128x128"},
        {RFI_CUDA_PAIRS, 2048, 1, "hopper_64x128"},
        {RFI_CUDA_ANSWER_STATES, 32, 0, "hopper_answers_small"},
        {RFI_CUDA_ANSWER_STATES, 2048, 0, "hopper_answers_64x128"},
        {RFI_CUDA_SEARCH_STATES, 2048, 0, "hopper_searches_64x128"},
    };
    for (int i = 0; i < (int)(sizeof untold / sizeof *untold); i++) {
        rfi_cuda_problem p = problem_of(untold[i].batch, 8192, 8192, RF_BFLOAT16, RF_FLOAT32, RF_MATH_F32);
        p.states = untold[i].states, p.batch_invariant = untold[i].batch_invariant;
        for (int forced = -1; forced < RFI_CUDA_NUM_KERNELS; forced++) {
            p.w_panel = 64;
            const rfi_cuda_choice c = choose(&p, &hopper, forced);
            CHECK(forced >= 0 || !strcmp(c.name, untold[i].kernel), "%lld rows in three terms take %s, not %s",
                (long long)p.batch, c.name, untold[i].kernel);
            CHECK(!is(&c, "hopper") || strstr(c.name, "_small") || strstr(c.name, "_halves") || strstr(c.name, "_64x"),
                "%s has no stages of 64 columns beside three terms", c.name);
            p.w_panel = 32;
            const rfi_cuda_choice other = choose(&p, &hopper, forced);
            CHECK(!is(&other, "hopper_small") && !is(&other, "hopper_halves") &&
                    !(is(&other, "hopper") && strstr(other.name, "_64x")),
                "%s has no stages of 32 columns", other.name);
        }
    }
}
#endif

static void test_forced(void) {
    CHECK(rfi_cuda_kernel_find("no such kernel") == -1, "an unknown name was found");
    int kernel = rfi_cuda_kernel_find("fma_64x128");
    CHECK(kernel >= 0, "fma_64x128 is not there");
    rfi_cuda_problem p = problem_of(1024, 8192, 8192, RF_FLOAT32, RF_FLOAT32, RF_MATH_F32);
    rfi_cuda_choice c = choose(&p, &large, kernel);
    CHECK((int)c.kernel == kernel && !c.uses_terms, "forced fma_64x128 gave %s", c.name);
    p = problem_of(1024, 8192, 8192, RF_FLOAT64, RF_FLOAT64, RF_MATH_F32);
    c = choose(&p, &large, kernel);
    CHECK((int)c.kernel != kernel, "a float32 kernel was forced on float64");
    kernel = rfi_cuda_kernel_find("stream_8x64");
    p = problem_of(9, 8192, 8192, RF_FLOAT32, RF_FLOAT32, RF_MATH_F32);
    c = choose(&p, &large, kernel);
    CHECK((int)c.kernel != kernel, "eight rows at most was forced on nine");
}

/* Parts of K are whole stages but for the last, none is empty, and few tiles of a long K have several. */
/* Terms that stand for infinities of W are multiplied with terms of x. */
static void test_infinities_of_weights(void) {
    const rfi_cuda_figures *figures[] = {&large, &hopper, &small, &narrow};
    for (int i = 0; i < 4; i++)
        for (int64_t batch = 1; batch < 3000; batch = batch * 3 + 1) {
            rfi_cuda_problem p = problem_of(batch, 100, 7 * batch, RF_FLOAT32, RF_BFLOAT16, RF_MATH_F32);
            p.w_infinite = 1;
            for (int forced = -1; forced < RFI_CUDA_NUM_KERNELS; forced++) {
                const rfi_cuda_choice c = choose(&p, figures[i], forced);
                CHECK(c.uses_terms || figures[i] == &narrow, "%s of %lld rows on %s reads x as it is stored", c.name,
                    (long long)batch, figures[i]->name);
            }
        }
}

#ifdef RFI_BUILD_SM90
/* States of a row are merged behind the fold, any number of them, unless something is searched for. */
static void test_merged_behind(void) {
    static const struct {
        const char *name;
        int64_t batch;
    } kernels[] = {{"hopper_128x256", 300}, {"hopper_64x64", 300}, {"hopper_halves_128x128", 300}, {"hopper_small", 30},
        {"hopper_answers_128x256", 300}, {"hopper_answers_128x128", 300}, {"hopper_answers_64x128", 300},
        {"hopper_answers_small", 30}, {"hopper_answers_272x128", 300}};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        for (int64_t columns = 1000; columns < 200000; columns *= 14) {
            rfi_cuda_problem p = problem_of(kernels[i].batch, 512, columns, RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32);
            if (strstr(kernels[i].name, "answers")) p.states = RFI_CUDA_ANSWER_STATES;
            rfi_cuda_choice c = choose(&p, &hopper, rfi_cuda_kernel_find(kernels[i].name));
            CHECK(is(&c, kernels[i].name) && c.apart, "states of %d columns by %s are merged by it", (int)columns,
                c.name);
        }
    rfi_cuda_problem p = problem_of(300, 512, 1000, RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32);
    p.states = RFI_CUDA_SEARCH_STATES;
    rfi_cuda_choice c = choose(&p, &hopper, rfi_cuda_kernel_find("hopper_searches_64x128"));
    CHECK(
        is(&c, "hopper_searches_64x128") && !c.apart, "launches of some columns each by %s are merged behind", c.name);
    p.batch = 30;
    c = choose(&p, &hopper, rfi_cuda_kernel_find("hopper_answers_small"));
    CHECK(is(&c, "hopper_answers_small") && !c.apart, "a search by %s is", c.name);
    p.states = RFI_CUDA_ANSWER_STATES;
    p.batch = 4096;
    for (int alike = 0; alike < 2; alike++) {
        p.batch_invariant = alike;
        c = choose(&p, &hopper, rfi_cuda_kernel_find("hopper_answers_128x256"));
        CHECK(is(&c, "hopper_answers_128x256") && c.apart == alike, "rows that fill a round by %s are merged behind",
            c.name);
    }
}

/* All rows in one tile: clusters along the columns, whose second block has some, so that a round has twice as many; not
 * where something is searched for. */
static void test_one_tile_of_rows(void) {
    static const struct {
        const char *name;
        rfi_cuda_states states;
        int is_less; /* time than two tiles of rows, not the same */
    } kernels[] = {{"hopper_128x256", RFI_CUDA_PAIRS, 1}, {"hopper_128x128", RFI_CUDA_PAIRS, 1},
        {"hopper_answers_128x256", RFI_CUDA_ANSWER_STATES, 1}, {"hopper_answers_128x128", RFI_CUDA_ANSWER_STATES, 1},
        {"hopper_searches_128x256", RFI_CUDA_SEARCH_STATES, 0}};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        double seconds[2];
        for (int more = 0; more < 2; more++) {
            rfi_cuda_problem p = problem_of(128 + more, 4096, 32000, RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32);
            p.states = kernels[i].states;
            const rfi_cuda_choice c = choose(&p, &hopper, rfi_cuda_kernel_find(kernels[i].name));
            CHECK(is(&c, kernels[i].name), "%s, not %s", c.name, kernels[i].name);
            seconds[more] = c.seconds;
        }
        CHECK(kernels[i].is_less == (seconds[0] < 0.85 * seconds[1]), "128 rows by %s take %g, 129 %g", kernels[i].name,
            seconds[0], seconds[1]);
    }
}

/* Whole rows in a cluster: one product of 16 bits with few columns, where all tiles run at once. */
static void test_whole_rows(void) {
    static const rfi_cuda_figures of_114 = {"hopper", 9, 0, 114, 1.7e9, 2e12, 50 << 20, 227 << 10};
    static const char *const tiles[] = {"whole_64x64", "whole_64x128", "whole_128x128"};
    static const struct {
        const char *what;
        int64_t batch, columns;
        int runs[3]; /* which of them */
    } sizes[] = {{"few", 1, 1, {1, 1, 1}}, {"few rows", 64, 1000, {1, 1, 1}},
        {"as many columns as there may be", 448, 1024, {1, 1, 1}}, {"one more", 64, 1025, {0, 0, 0}},
        {"more clusters of 16 than run at a time", 449, 1000, {0, 1, 1}}, {"as many of eight", 960, 1000, {0, 1, 1}},
        {"more", 961, 1000, {0, 0, 1}}, {"as many of eight", 1920, 1000, {0, 0, 1}}, {"more", 1921, 1000, {0, 0, 0}},
        {"of eight and of four", 960, 512, {1, 1, 1}}, {"more of eight", 961, 512, {0, 1, 1}},
        {"of four", 1920, 512, {0, 1, 1}}, {"more", 1921, 512, {0, 0, 1}}, {"of two", 4224, 256, {0, 1, 1}},
        {"more", 4225, 256, {0, 0, 1}}, {"single blocks", 8448, 64, {1, 1, 1}}, {"more", 8449, 64, {0, 0, 1}},
        {"single blocks", 16896, 128, {0, 0, 1}}, {"more", 16897, 128, {0, 0, 0}}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kernel = 0; kernel < 6; kernel++) {
            char name[64];
            const int runs = sizes[i].runs[kernel % 3];
            snprintf(name, sizeof name, "hopper_%s%s", kernel < 3 ? "" : "answers_", tiles[kernel % 3]);
            rfi_cuda_problem p = problem_of(sizes[i].batch, 512, sizes[i].columns, RF_FLOAT16, RF_FLOAT16, RF_MATH_F32);
            if (kernel >= 3) p.states = RFI_CUDA_ANSWER_STATES;
            const int forced = rfi_cuda_kernel_find(name);
            rfi_cuda_choice c = choose(&p, &hopper, forced);
            CHECK(is(&c, name) == runs, "%s: %lld rows of %lld columns take %s, not %s", sizes[i].what,
                (long long)p.batch, (long long)p.out_features, c.name, name);
            if (!runs) continue;
            CHECK(c.apart, "%s: there are tickets", c.name);
            c = choose(&p, &of_114, forced);
            CHECK(!strstr(c.name, "whole_64x64") || p.out_features <= 512, "clusters of 16 blocks on a device of 114");
            rfi_cuda_problem others[] = {p, p, p, p, p};
            others[0].keeps_states = 1;
            others[1].batch_invariant = 1;
            others[2].reduction = 0;
            others[3].states = RFI_CUDA_SEARCH_STATES;
            others[4].x_dtype = RF_FLOAT32;
            others[4].x_terms = rfi_cuda_x_terms(0, RF_FLOAT16, RF_FLOAT32, 512, &others[4].term_dtype);
            for (int other = 0; other < 5; other++) {
                c = choose(&others[other], &hopper, forced);
                CHECK(!strstr(c.name, "whole"), "%s runs what it cannot: %d", c.name, other);
            }
        }
}

/* Groups of rows as equal as can be, as many as take the least time, and none of a height that is not compiled. */
static void test_groups_of_rows(void) {
    static const struct {
        int64_t batch, columns, depth;
        int parts, groups, height;
    } expected[] = {{0, 8192, 8192, 1, 1, 48}, {1, 8192, 8192, 2, 1, 48}, {129, 8192, 8192, 2, 1, 136},
        {257, 8192, 8192, 2, 1, 272}, {257, 8192, 8192, 1, 2, 136}, {320, 8192, 8192, 1, 2, 160},
        {384, 8192, 8192, 1, 2, 192}, {640, 8192, 8192, 1, 2, 320}, {224, 8192, 8192, 2, 1, 224},
        {273, 8192, 8192, 2, 1, 288}, {321, 128, 512, 2, 7, 48}, {1000, 4096, 4096, 1, 4, 256},
        {257, 128256, 4096, 1, 1, 272}, {128, 1024, 4096, 2, 3, 48}, {256, 2048, 2048, 2, 3, 96},
        {160, 4096, 4096, 2, 2, 80}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const int64_t groups =
            rfi_turned_groups(expected[i].batch, expected[i].columns, expected[i].depth, expected[i].parts, 0);
        const int height = rfi_turned_height(expected[i].batch, groups);
        CHECK(groups == expected[i].groups && height == expected[i].height, "%lld rows of %lld columns: %lld of %d",
            (long long)expected[i].batch, (long long)expected[i].columns, (long long)groups, height);
    }
    for (int64_t batch = 1; batch < 5000; batch += 7)
        for (int64_t columns = 1; columns < 140000; columns = columns * 3 / 2 + 100)
            for (int form = 0; form < 10; form++) {
                const int parts = form / 2 < 4 ? 1 + form / 2 : 8, answers = form % 2;
                const int64_t groups = rfi_turned_groups(batch, columns, 1 + batch % 700 * 13, parts, answers);
                const int height = rfi_turned_height(batch, groups);
                CHECK(height * groups >= batch && groups <= batch, "%lld rows in %lld groups", (long long)batch,
                    (long long)groups);
                CHECK(height <= rfi_turned_most_rows(parts, answers), "%lld rows in %lld groups are too high for %d",
                    (long long)batch, (long long)groups, parts);
            }
    /* The GPU tests take each height by as many columns (test_groups_of_rows). */
#define RFI_ALONE(height, most, answers)                                                   \
    for (int parts = 1; parts <= (most); parts += parts < 4 ? 1 : 4)                       \
        for (int64_t depth = 64; depth <= 385; depth += depth < 200 ? 136 : 185)           \
            CHECK(rfi_turned_groups(height, 33000 + (height), depth, parts, answers) == 1, \
                "%d rows are in several groups of %d parts", height, parts);
#define RFI_LOW(width, products) RFI_ALONE((width) * (products), 8, 0) RFI_ALONE((width) * (products), 8, 1)
#define RFI_MIDDLE(width, products) RFI_ALONE((width) * (products), 3, 0)
#define RFI_HIGH(width, products) RFI_ALONE((width) * (products), 2, 0)
#define RFI_ANSWERS_MIDDLE(width, products) RFI_ALONE((width) * (products), 3, 1)
#define RFI_ANSWERS_HIGH(width, products) RFI_ALONE((width) * (products), 2, 1)
    RFI_TURNED_LOW(RFI_LOW)
    RFI_TURNED_MIDDLE(RFI_MIDDLE)
    RFI_TURNED_HIGH(RFI_HIGH)
    RFI_TURNED_ANSWERS_MIDDLE(RFI_ANSWERS_MIDDLE)
    RFI_TURNED_ANSWERS_HIGH(RFI_ANSWERS_HIGH)
#undef RFI_ALONE
#undef RFI_LOW
#undef RFI_MIDDLE
#undef RFI_HIGH
#undef RFI_ANSWERS_MIDDLE
#undef RFI_ANSWERS_HIGH
    static const struct {
        const char *name;
        rfi_cuda_states states;
        int64_t most;
    } limits[] = {{"hopper_320x128", RFI_CUDA_PAIRS, RFI_TURNED_STATES},
        {"hopper_answers_272x128", RFI_CUDA_ANSWER_STATES, RFI_TURNED_STATES / 2}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        for (int64_t columns = 64; columns < 200000; columns *= 2) {
            const int kernel = rfi_cuda_kernel_find(limits[i].name);
            rfi_cuda_problem p =
                problem_of(limits[i].most / (columns / 64), 64, columns, RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32);
            p.states = limits[i].states;
            rfi_cuda_choice c = choose(&p, &hopper, kernel);
            CHECK(is(&c, limits[i].name), "%lld rows of %lld columns by %s", (long long)p.batch, (long long)columns,
                c.name);
            p.batch++;
            c = choose(&p, &hopper, kernel);
            CHECK(!is(&c, limits[i].name), "%lld rows of %lld columns have too many states", (long long)p.batch,
                (long long)columns);
        }
}

/* Where another kernel was measured to take 1.3 times as long and more. */
static void test_measured(void) {
    static const struct {
        rf_dtype dtype;
        int64_t batch, k, n;
        const char *kernel;
    } expected[] = {
        {RF_FLOAT32, 704, 7808, 64, "few_32x64"},
        {RF_FLOAT32, 4096, 64, 64, "few_32x64"},
        {RF_FLOAT32, 8768, 256, 64, "narrow_128x64"},
        {RF_FLOAT32, 100, 14336, 1024, "hopper_halves_128x128"},
        {RF_FLOAT64, 64, 4096, 512, "mma_f64_32x64"},
        {RF_FLOAT32, 8221, 320, 64, "few_32x64"},
        {RF_FLOAT32, 4, 16384, 1024, "stream_8x64"},
        {RF_FLOAT32, 1, 12992, 1131, "stream_8x64"},
        {RF_FLOAT32, 1, 2382, 697, "stream_8x64"},
        {RF_FLOAT32, 1, 7268, 128, "stream_8x64"},
        {RF_FLOAT32, 5, 3000, 100, "stream_8x64"},
        {RF_FLOAT32, 1, 22, 4595, "fma_64x128"},
        {RF_FLOAT32, 2, 448, 45824, "hopper_small"},
        {RF_FLOAT32, 1, 1000, 1000, "hopper_small"},
        {RF_FLOAT32, 6, 2, 19200, "fma_64x128"},
        {RF_FLOAT64, 6989, 20, 880, "mma_f64_64x64"},
        {RF_FLOAT64, 64, 8528, 128, "few_f64_8x64"},
        {RF_FLOAT64, 18, 7488, 3943, "mma_f64_32x64"},
        {RF_FLOAT64, 832, 4160, 19, "mma_f64_32x64"},
        {RF_FLOAT64, 1024, 8192, 8192, "mma_f64_64x64"},
        {RF_BFLOAT16, 64, 512, 1000, "hopper_whole_64x64"},
        {RF_BFLOAT16, 512, 512, 1000, "hopper_whole_64x128"},
        {RF_BFLOAT16, 1024, 512, 1000, "hopper_whole_128x128"},
        {RF_BFLOAT16, 2048, 512, 1000, "hopper_128x128"},
        {RF_BFLOAT16, 64, 15488, 256, "hopper_eighths_136x128"},
        {RF_FLOAT16, 896, 13376, 64, "hopper_eighths_136x128"},
        {RF_FLOAT16, 1536, 12946, 3, "narrow_32x8"},
        {RF_FLOAT32, 2394, 12480, 2, "narrow_32x8"},
        {RF_FLOAT32, 201, 889, 15, "narrow_16x16"},
        {RF_FLOAT32, 100, 8000, 12, "narrow_16x16"},
        {RF_FLOAT32, 9000, 700, 11, "narrow_128x16"},
        {RF_FLOAT32, 16384, 1024, 32, "narrow_128x32"},
        {RF_FLOAT32, 896, 7680, 26, "narrow_128x32"},
        {RF_FLOAT32, 6093, 84, 128, "narrow_128x64"},
        {RF_FLOAT32, 16384, 100, 40, "narrow_128x64"},
        {RF_FLOAT64, 463, 13557, 2, "narrow_f64_16x8"},
        {RF_FLOAT32, 1666, 13946, 114, "hopper_halves_128x128"},
        {RF_FLOAT32, 8704, 64, 192, "hopper_128x128"},
        {RF_FLOAT32, 6000, 50, 256, "hopper_128x128"},
        {RF_FLOAT32, 6128, 73, 192, "hopper_128x128"},
        {RF_FLOAT32, 1, 36, 26688, "hopper_64x128"},
        {RF_FLOAT32, 4096, 256, 64, "few_32x64"},
        {RF_FLOAT64, 64, 5877, 468, "mma_f64_32x64"},
        {RF_FLOAT64, 1000, 512, 768, "mma_f64_32x64"},
        {RF_FLOAT64, 8, 4096, 1000, "few_f64_8x64"},
        {RF_FLOAT64, 40, 16, 5000, "few_f64_8x64"},
        {RF_FLOAT64, 7, 701, 36723, "few_f64_8x64"},
        {RF_FLOAT64, 6, 272, 16640, "few_f64_8x64"},
        {RF_BFLOAT16, 1536, 2048, 2048, "hopper_320x128"},
        {RF_BFLOAT16, 1536, 8192, 1024, "hopper_halves_320x128"},
        {RF_BFLOAT16, 288, 2048, 8192, "hopper_320x128"}, /* 132 blocks of 128 x 192 would be slower */
        {RF_BFLOAT16, 129, 14336, 4096, "hopper_thirds_256x128"},
        {RF_BFLOAT16, 160, 8192, 2048, "hopper_thirds_256x128"},
        {RF_BFLOAT16, 40, 8192, 2048, "hopper_quarters_136x128"},
        {RF_BFLOAT16, 128, 4096, 1024, "hopper_quarters_136x128"},
        {RF_BFLOAT16, 128, 8192, 2048, "hopper_quarters_136x128"},
        {RF_BFLOAT16, 64, 8192, 512, "hopper_eighths_136x128"},
        {RF_BFLOAT16, 64, 16384, 1024, "hopper_eighths_136x128"},
        {RF_BFLOAT16, 8, 4096, 4096, "hopper_thirds_256x128"},
        {RF_BFLOAT16, 128, 4096, 32000, "hopper_128x256"},
        {RF_BFLOAT16, 257, 14336, 4096, "hopper_halves_320x128"},
        {RF_BFLOAT16, 257, 4096, 14336, "hopper_320x128"},
        {RF_BFLOAT16, 257, 8192, 28672, "hopper_320x128"},
        {RF_BFLOAT16, 129, 4096, 128256, "hopper_320x128"},
        {RF_BFLOAT16, 640, 4096, 4096, "hopper_320x128"},
        {RF_BFLOAT16, 16, 16384, 3000, "hopper_quarters_136x128"}, /* 72 blocks of thirds reach less of the memory */
        {RF_BFLOAT16, 1, 12288, 5120, "hopper_quarters_136x128"},
        {RF_BFLOAT16, 16, 13824, 5120, "hopper_quarters_136x128"},
        {RF_BFLOAT16, 130, 28672, 8192, "hopper_halves_320x128"},
        {RF_BFLOAT16, 96, 4096, 128256, "hopper_128x256"},
        {RF_FLOAT16, 1152, 8192, 8192, "hopper_320x128"},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const rf_dtype dtype = expected[i].dtype;
        rfi_cuda_problem p = problem_of(expected[i].batch, expected[i].k, expected[i].n, dtype, dtype, RF_MATH_F32);
        p.w_panel = rfi_cuda_weight_panel(&p, &hopper, -1);
        const rfi_cuda_choice c = choose(&p, &hopper, -1);
        CHECK(is(&c, expected[i].kernel), "%lld x %lld -> %lld takes %s, not %s", (long long)p.batch,
            (long long)p.in_features, (long long)p.out_features, c.name, expected[i].kernel);
    }
    rfi_cuda_problem stepped = problem_of(288, 2048, 8192, RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32);
    stepped.w_panel = rfi_cuda_weight_panel(&stepped, &hopper, -1);
    stepped.plain = 0;
    const rfi_cuda_choice by_halves = choose(&stepped, &hopper, -1);
    CHECK(is(&by_halves, "hopper_halves_320x128"), "with steps before the reduction %s", by_halves.name);
    static const struct {
        rfi_cuda_states states;
        int64_t batch, k, n;
        const char *kernel;
    } several[] = {
        {RFI_CUDA_ANSWER_STATES, 1, 8192, 8192, "hopper_answers_small"},
        {RFI_CUDA_ANSWER_STATES, 2003, 64, 4025, "hopper_answers_128x256"},
        {RFI_CUDA_ANSWER_STATES, 65, 8192, 8192, "hopper_answers_halves_272x128"},
        {RFI_CUDA_ANSWER_STATES, 192, 8192, 8192, "hopper_answers_halves_272x128"},
        {RFI_CUDA_ANSWER_STATES, 256, 8192, 8192, "hopper_answers_128x128"},
        {RFI_CUDA_ANSWER_STATES, 512, 4096, 4096, "hopper_answers_128x128"},
        {RFI_CUDA_ANSWER_STATES, 1024, 8192, 8192, "hopper_answers_128x256"},
        {RFI_CUDA_ANSWER_STATES, 129, 14336, 4096, "hopper_answers_thirds_224x128"},
        {RFI_CUDA_ANSWER_STATES, 16, 512, 1000, "hopper_answers_whole_64x64"},
        {RFI_CUDA_ANSWER_STATES, 512, 512, 1000, "hopper_answers_whole_64x128"},
        {RFI_CUDA_ANSWER_STATES, 8192, 1024, 64, "hopper_answers_whole_64x64"},
        {RFI_CUDA_ANSWER_STATES, 64, 8192, 1024, "hopper_answers_eighths_136x128"},
        {RFI_CUDA_ANSWER_STATES, 257, 4096, 1024, "hopper_answers_quarters_136x128"},
        {RFI_CUDA_ANSWER_STATES, 128, 4096, 32000, "hopper_answers_128x256"},
        {RFI_CUDA_ANSWER_STATES, 224, 4096, 14336, "hopper_answers_272x128"},
        {RFI_CUDA_ANSWER_STATES, 768, 8192, 8192, "hopper_answers_272x128"},
        {RFI_CUDA_SEARCH_STATES, 257, 8192, 8192, "hopper_answers_halves_272x128"},
        {RFI_CUDA_SEARCH_STATES, 512, 4096, 4096, "hopper_searches_128x256"}, /* all columns stored in one pass */
    };
    for (size_t i = 0; i < sizeof several / sizeof *several; i++) {
        rfi_cuda_problem p =
            problem_of(several[i].batch, several[i].k, several[i].n, RF_BFLOAT16, RF_BFLOAT16, RF_MATH_F32);
        p.states = several[i].states;
        p.w_panel = rfi_cuda_weight_panel(&p, &hopper, -1);
        const rfi_cuda_choice c = choose(&p, &hopper, -1);
        CHECK(is(&c, several[i].kernel), "several results of %lld x %lld -> %lld take %s, not %s", (long long)p.batch,
            (long long)p.in_features, (long long)p.out_features, c.name, several[i].kernel);
    }
}
#endif

static void test_parts(void) {
    const int kernel = rfi_cuda_kernel_find("few_32x64");
    for (int64_t depth = 1; depth < 100000; depth = depth * 3 / 2 + 1)
        for (int64_t batch = 1; batch < 5000; batch *= 3) {
            rfi_cuda_problem p = problem_of(batch, depth, 70, RF_FLOAT32, RF_FLOAT32, RF_MATH_F32);
            rfi_cuda_choice c = choose(&p, &large, kernel);
            CHECK(c.splits >= 1 && (c.splits == 1 || c.split_depth % RFI_SPLIT_DEPTH == 0), "parts of %lld",
                (long long)c.split_depth);
            CHECK(c.splits == 1 || ((c.splits - 1) * c.split_depth < depth && c.splits * c.split_depth >= depth),
                "%d parts of %lld in %lld", c.splits, (long long)c.split_depth, (long long)depth);
            CHECK(c.splits > 1 || depth < 1000 || batch > 1000, "%lld x %lld in one part", (long long)batch,
                (long long)depth);
        }
}

/* Short rows are not worth parts of K where there are few columns. */
static void test_parts_of_short_rows(void) {
    static const struct {
        const char *name;
        rf_dtype dtype;
        int64_t batch, columns, least;
    } kernels[] = {{"narrow_32x8", RF_BFLOAT16, 100, 1, 896}, {"narrow_16x16", RF_FLOAT32, 100, 10, 704},
        {"narrow_f64_16x8", RF_FLOAT64, 100, 8, 576}, {"stream_8x64", RF_BFLOAT16, 4, 64, 832}};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        for (int less = 0; less < 2; less++) {
            const rfi_cuda_problem p = problem_of(kernels[i].batch, kernels[i].least - less, kernels[i].columns,
                kernels[i].dtype, kernels[i].dtype, RF_MATH_F32);
            const rfi_cuda_choice c = choose(&p, &hopper, rfi_cuda_kernel_find(kernels[i].name));
            CHECK(is(&c, kernels[i].name) && (c.splits == 1) == less, "%s, not %s, takes %lld in %d parts", c.name,
                kernels[i].name, (long long)p.in_features, c.splits);
        }
}

/* In double, where K is long and tiles are few, a multiprocessor has one block. */
static void test_blocks_that_are_alone(void) {
    static const struct {
        int64_t batch, k, n;
        const char *kernel;
        int tile_rows;
    } layers[] = {
        {64, 5877, 468, "mma_f64_32x64", 32},
        {27, 5504, 728, "mma_f64_32x64", 32},
        {1, 8832, 1524, "few_f64_8x64", 8},
        {4, 4096, 4096, "few_f64_8x64", 8},
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        rfi_cuda_problem p = problem_of(layers[i].batch, layers[i].k, layers[i].n, RF_FLOAT64, RF_FLOAT64, RF_MATH_F32);
        const rfi_cuda_choice c = choose(&p, &hopper, rfi_cuda_kernel_find(layers[i].kernel));
        const int64_t tiles = (p.batch + layers[i].tile_rows - 1) / layers[i].tile_rows * ((p.out_features + 63) / 64);
        CHECK(c.splits > 1 && tiles * c.splits <= c.multiprocessors, "%lld tiles in %d parts", (long long)tiles,
            c.splits);
    }
}

/* Whole tiles for no more than whole rounds, and the rest in parts that fit into one round. */
static void test_last_tiles_in_parts(void) {
    const int kernel = rfi_cuda_kernel_find("mma_f64_64x64");
    int in_parts = 0;
    for (int64_t batch = 1; batch < 5000; batch = batch * 2 + 1)
        for (int64_t columns = 1; columns < 50000; columns = columns * 3 / 2 + 1) {
            rfi_cuda_problem p = problem_of(batch, 4096, columns, RF_FLOAT64, RF_FLOAT64, RF_MATH_F32);
            const rfi_cuda_choice c = choose(&p, &large, kernel);
            const int64_t rows = (batch + 63) / 64, tiles = rows * ((columns + 63) / 64),
                          last = tiles - rows * c.whole_columns, round = 3 * c.multiprocessors;
            CHECK(last > 0 || c.splits == 1, "%lld tiles, %lld of them not whole", (long long)tiles, (long long)last);
            CHECK(c.splits == 1 || last * c.splits <= round, "%lld tiles in %d parts", (long long)last, c.splits);
            CHECK(rows * c.whole_columns <= tiles / round * round, "%d whole columns of %lld tiles", c.whole_columns,
                (long long)rows);
            in_parts += c.whole_columns > 0;
            p.alike = 1;
            CHECK(!choose(&p, &large, kernel).whole_columns, "%lld tiles are not alike", (long long)tiles);
        }
    CHECK(in_parts > 10, "%d problems have tiles of both kinds", in_parts);
}

static void test_batch_invariant(void) {
    for (int kernel = -1; kernel < RFI_CUDA_NUM_KERNELS; kernel++) {
        rfi_cuda_problem p = problem_of(1, 512, 700, RF_FLOAT32, RF_FLOAT32, RF_MATH_F32);
        p.batch_invariant = 1;
        rfi_cuda_choice one = choose(&p, &large, kernel);
        for (p.batch = 2; p.batch < 5000; p.batch = p.batch * 2 + 1) {
            rfi_cuda_choice c = choose(&p, &large, kernel);
            CHECK(c.kernel == one.kernel && c.splits == one.splits, "batch %d takes %s in %d parts, batch 1 %s in %d",
                (int)p.batch, c.name, c.splits, one.name, one.splits);
        }
    }
}

int main(void) {
    test_terms();
    test_shared_memory();
    test_all_have_one();
    test_expected();
    test_tf32();
#ifdef RFI_BUILD_SM90
    test_few_rows();
    test_blocks();
    test_blocks_beside_three_terms();
    test_merged_behind();
    test_one_tile_of_rows();
    test_whole_rows();
    test_groups_of_rows();
    test_measured();
#endif
    test_forced();
    test_infinities_of_weights();
    test_parts();
    test_parts_of_short_rows();
    test_blocks_that_are_alone();
    test_last_tiles_in_parts();
    test_batch_invariant();
    return failures != 0;
}
