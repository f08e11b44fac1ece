/* SPDX-License-Identifier: MIT */
/* On a CPU a row's bits do not depend on the batch, on its place in it, or on the number of threads: every backend,
 * weight type and kind of chain, at sizes on both sides of the edges of slivers, panels, chunks, units and narrow
 * layers, and where the inputs are split. */
#include <math.h>
#include <rowfold.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "slow.h"

enum { MAX_BATCH = 130, K = 1100, N = 700 };

static uint32_t state = 1;

/* Uniform in [-1, 1). */
static float uniform(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) * 0x1p-23f - 1;
}

static void check(rf_status status, const char *what) {
    if (!status) return;
    fprintf(stderr, "%s: %s\n", what, rf_last_error());
    exit(1);
}

/* The bit patterns 0x2800 to 0x2bff and their negatives are small numbers as float16 and as bfloat16. */
static void fill(void *values, size_t count, rf_dtype dtype) {
    for (size_t i = 0; i < count; i++) {
        float v = uniform();
        if (dtype == RF_FLOAT64) ((double *)values)[i] = (double)v;
        else if (dtype == RF_FLOAT32) ((float *)values)[i] = v;
        else ((uint16_t *)values)[i] = (uint16_t)((v < 0 ? 0x8000 : 0) | 0x2800 | (uint16_t)(fabsf(v) * 1023));
    }
}

typedef struct subject {
    const char *backend, *chain;
    rf_dtype dtype;
    rf_simplify simplify;
} subject;

static rf_model *make(const subject *s, int threads, int64_t k, int64_t n, const void *weight) {
    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config,
        .chain = s->chain,
        .in_features = k,
        .out_features = n,
        .weight_dtype = s->dtype,
        .simplify = s->simplify,
        .backend = s->backend,
        .threads = threads};
    check(rf_model_create(&model, &config), "create");
    check(rf_model_load_weights(model, weight, weight, NULL, 0), "load"); /* some of W is as good a bias as any */
    return model;
}

/* Which of two operands gives a NaN its sign is the compiler's to choose, for each of its versions of a loop. */
static int same_values(const void *a, const void *b, size_t bytes, rf_dtype dtype) {
    const size_t item = dtype == RF_FLOAT64 ? sizeof(double) : sizeof(float);
    for (size_t at = 0; at < bytes; at += item) {
        const char *one = (const char *)a + at, *two = (const char *)b + at;
        const int nan = dtype == RF_FLOAT64 ? isnan(*(const double *)one) && isnan(*(const double *)two)
                                            : isnan(*(const float *)one) && isnan(*(const float *)two);
        if (!nan && memcmp(one, two, item)) return 0;
    }
    return 1;
}

/* Forward of the whole batch, and of the same rows cut into pieces of all sizes and run on other numbers of threads. */
static int same_bits(
    const subject *s, int64_t batch, int64_t k, int64_t n, const void *x, size_t item, const void *weight) {
    static double whole[MAX_BATCH * N], pieces[MAX_BATCH * N];
    static const int threads[] = {2, 1, 3};
    rf_model *models[3];
    for (int i = 0; i < 3; i++) models[i] = make(s, threads[i], k, n, weight);
    rf_model_info info = {.size = sizeof info};
    check(rf_model_get_info(models[0], &info), "info");
    size_t row = (size_t)info.output_features * (info.y_dtype == RF_FLOAT64 ? sizeof(double) : sizeof(float));
    memset(whole, 0xaa, sizeof whole);
    memset(pieces, 0x55, sizeof pieces);
    check(rf_model_forward(models[0], x, batch, whole), "forward");
    int64_t size = 1;
    for (int64_t first = 0; first < batch; first += size, size = size % 17 + 2) {
        if (size > batch - first) size = batch - first;
        check(rf_model_forward(models[size % 3], (const char *)x + (size_t)(first * k) * item, size,
                  (char *)pieces + (size_t)first * row),
            "forward of a piece");
    }
    for (int i = 0; i < 3; i++) rf_model_destroy(models[i]);
    if (same_values(whole, pieces, (size_t)batch * row, (rf_dtype)info.y_dtype)) return 1;
    fprintf(stderr, "%s, \"%s\", dtype %d, %lld x %lld x %lld: bits differ\n", s->backend, s->chain, (int)s->dtype,
        (long long)batch, (long long)k, (long long)n);
    return 0;
}

int main(void) {
    static const char *const chains[] = {
        "linear | logsumexp | gelu",
        "linear | mul(2) | save | add_saved | clamp(-10, 10) | mean | mish",
        "linear | max",
        "linear | sum | max",
        "linear | gelu | save | tanh | mul_saved",
    };
    static const int64_t shapes[][3] = {{1, 3, 1}, {5, 7, 33}, {67, 21, 13}, {33, 513, 4}, {MAX_BATCH, K, 2},
        {MAX_BATCH, K, 48}, {20, 30, 49}, {15, 512, 256}, {29, 513, 257}, {MAX_BATCH, K, N},
        {20, K, 100}}; /* whose inputs three threads split */
    static double x[MAX_BATCH * K], weight[N * K];
    static const size_t items[] = {[RF_FLOAT32] = 4, [RF_FLOAT64] = 8, [RF_FLOAT16] = 2, [RF_BFLOAT16] = 2};
    const int slower = times_slower("the cases");
    unsigned number = 0;
    int failures = 0;
    for (size_t b = 0; b < rf_backend_count(); b++) {
        subject s = {.backend = rf_backend_name(b)};
        if (strncmp(s.backend, "cpu-", 4) || !rf_backend_available(b, NULL)) continue;
        for (s.dtype = RF_FLOAT32; s.dtype <= RF_BFLOAT16; s.dtype++) {
            fill(x, MAX_BATCH * K, s.dtype);
            fill(weight, N * K, s.dtype);
            /* Rows that a collapsed sum must leave to the full path, between rows that it need not. */
            if (s.dtype == RF_FLOAT32)
                for (int i = 2; i < MAX_BATCH; i += 3) ((float *)x)[(size_t)i * 3] = 3e38f;
            for (size_t c = 0; c < sizeof chains / sizeof *chains; c++)
                for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                    for (s.chain = chains[c], s.simplify = RF_SIMPLIFY_NONE; s.simplify <= RF_SIMPLIFY_ALGEBRAIC;
                        s.simplify += 2)
                        failures += is_among(number++, slower) &&
                            !same_bits(&s, shapes[i][0], shapes[i][1], shapes[i][2], x, items[s.dtype], weight);
        }
    }
    return failures != 0;
}
