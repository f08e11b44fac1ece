/* SPDX-License-Identifier: MIT */
/* A float64 result is rounded to y's type once: halfway cases, what lies a hair beside them, and the ends of the range.
 * Through float32, or with one more rounding on the way, several of these come out wrong. */
#include <math.h>
#include <rowfold.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

static const struct {
    double value;
    rf_dtype dtype;
    uint16_t bits;
} cases[] = {
    {65504, RF_FLOAT16, 0x7bff},
    {65519.99999999999, RF_FLOAT16, 0x7bff}, /* 65520 in float32 */
    {65520, RF_FLOAT16, 0x7c00},
    {65520.00000000001, RF_FLOAT16, 0x7c00},
    {-65519.99999999999, RF_FLOAT16, 0xfbff},
    {-65520, RF_FLOAT16, 0xfc00},
    {1e300, RF_FLOAT16, 0x7c00},
    {1 + 0x1p-11, RF_FLOAT16, 0x3c00}, /* a tie, to even */
    {1 + 0x1p-11 + 0x1p-50, RF_FLOAT16, 0x3c01},
    {1 + 3 * 0x1p-11, RF_FLOAT16, 0x3c02},
    {1 + 3 * 0x1p-11 - 0x1p-50, RF_FLOAT16, 0x3c01},
    {0x1p-14, RF_FLOAT16, 0x0400},
    {0x1p-14 + 0x1p-25, RF_FLOAT16, 0x0400},
    {0x1.8p-14, RF_FLOAT16, 0x0600},
    {0x1p-14 - 0x1p-26, RF_FLOAT16, 0x0400}, /* up to the smallest normal number */
    {0x1p-14 - 0x1p-24, RF_FLOAT16, 0x03ff}, /* the largest subnormal one */
    {0x1.8p-15, RF_FLOAT16, 0x0300},
    {0x1p-24, RF_FLOAT16, 0x0001},
    {0x1p-25, RF_FLOAT16, 0x0000},
    {0x1p-25 + 0x1p-60, RF_FLOAT16, 0x0001},
    {-0x1p-25, RF_FLOAT16, 0x8000},
    {1 + 0x1p-8, RF_BFLOAT16, 0x3f80},
    {1 + 0x1p-8 + 0x1p-40, RF_BFLOAT16, 0x3f81}, /* the tie above in float32 */
    {1 + 3 * 0x1p-8, RF_BFLOAT16, 0x3f82},
    {1 + 3 * 0x1p-8 - 0x1p-40, RF_BFLOAT16, 0x3f81},
    {-1 - 0x1p-8 - 0x1p-40, RF_BFLOAT16, 0xbf81},
    {0x1.fefffffffffffp127, RF_BFLOAT16, 0x7f7f},
    {0x1.ffp127, RF_BFLOAT16, 0x7f80},
    {1e300, RF_BFLOAT16, 0x7f80},
    {0x1p-133, RF_BFLOAT16, 0x0001},
    {0x1p-134, RF_BFLOAT16, 0x0000},
    {0x1p-134 + 0x1p-180, RF_BFLOAT16, 0x0001},
};
enum { COUNT = sizeof cases / sizeof *cases };

/* A layer of one input, and of one or several columns, whose results are the values. */
static void check(const char *backend, const char *chain, int columns) {
    rf_model *model = NULL;
    double weight[4], x[COUNT];
    const rf_config config = {.size = sizeof config,
        .chain = chain,
        .in_features = 1,
        .out_features = columns,
        .weight_dtype = RF_FLOAT64,
        .backend = backend};
    for (int i = 0; i < 4; i++) weight[i] = 1;
    for (int i = 0; i < COUNT; i++) x[i] = cases[i].value;
    CHECK(!rf_model_create(&model, &config) && !rf_model_load_weights(model, weight, NULL, NULL, 0), "%s",
        rf_last_error());
    for (int d = 0; d < 2; d++) {
        const rf_dtype dtype = d ? RF_BFLOAT16 : RF_FLOAT16;
        uint16_t y[COUNT] = {0};
        const rf_forward_args args = {.size = sizeof args, .x = x, .y = y, .batch = COUNT, .y_dtype = dtype};
        CHECK(!rf_model_forward_ex(model, &args), "%s", rf_last_error());
        for (int i = 0; i < COUNT; i++)
            CHECK(cases[i].dtype != dtype || y[i] == cases[i].bits, "%s, %s: %.17g became 0x%04x, expected 0x%04x",
                backend, chain, x[i], y[i], cases[i].bits);
    }
    rf_model_destroy(model);
}

int main(void) {
    for (size_t i = 0; i < rf_backend_count(); i++) {
        const char *backend = rf_backend_name(i);
        if (!rf_backend_available(i, NULL)) continue;
        check(backend, "linear", 1);
        check(backend, "linear | max", 4);
        check(backend, "linear | mean", 4); /* a collapsed one */
    }
    return failures != 0;
}
