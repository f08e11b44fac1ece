/* SPDX-License-Identifier: MIT */
/* The explanation, from inside: what it says of each operator, its figures against hand-made ones, JSON that says the
 * same. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "explain.h"

static rfi_spec spec_of(const char *text, rf_simplify simplify) {
    rfi_chain chain;
    rfi_spec spec = {.weight_dtype = RF_FLOAT32,
        .compute_dtype = RF_FLOAT32,
        .x_dtype = RF_FLOAT32,
        .y_dtype = RF_FLOAT32,
        .threads = 1,
        .device = -1};
    rf_status status = rfi_chain_from_text(text, &chain);
    if (!status)
        status = rfi_chain_set_size(&chain, chain.in_features < 0 ? 8192 : 0, chain.out_features < 0 ? 8192 : 0);
    if (!status) status = rfi_plan_make(&chain, simplify, &spec.plan, NULL);
    CHECK(status == RF_OK, "\"%s\": %s", text, rf_last_error());
    return spec;
}

static const rfi_estimate no_estimate = {.fused_seconds = -1, .unfused_seconds = -1};
static const rfi_estimate an_estimate = {.kernel = "a kernel",
    .sums = "by somebody, these by somebody else",
    .machine = "a machine",
    .flops_per_second = 2e11,
    .bytes_per_second = 3e10,
    .fused_seconds = 0.75,
    .unfused_seconds = 1.25e-4,
    .collapsed = 1};

/* 10 blocks of 103 rows: 10 readings of 256 MiB in 0.09 s beside 0.7 s of arithmetic, or beside none to speak of. */
static const rfi_estimate blocks_of_rows = {.kernel = "a kernel",
    .machine = "a machine",
    .flops_per_second = 2e11,
    .bytes_per_second = 3e10,
    .fused_seconds = 0.7,
    .unfused_seconds = 0.8,
    .flops = 0x1p37,
    .bytes = 10 * 0x1p28,
    .weight_reads = 10,
    .block_rows = 103};
static const rfi_estimate quick_arithmetic = {.kernel = "a kernel",
    .machine = "a machine",
    .flops_per_second = 2e13,
    .bytes_per_second = 3e10,
    .fused_seconds = 0.1,
    .unfused_seconds = 0.2,
    .flops = 0x1p37,
    .bytes = 10 * 0x1p28,
    .weight_reads = 10,
    .block_rows = 103};
static const rfi_estimate one_block = {.kernel = "a kernel",
    .machine = "a machine",
    .flops_per_second = 2e11,
    .bytes_per_second = 3e10,
    .fused_seconds = 0.1,
    .unfused_seconds = 0.2,
    .flops = 0x1p30,
    .bytes = 0x1p28,
    .weight_reads = 1,
    .block_rows = 64};

/* Of the backend; NULL: it has none. */
static const rfi_rewrites *lowered;

static char *text_of(const char *chain, rf_simplify simplify, const rfi_estimate *estimate) {
    const rfi_spec spec = spec_of(chain, simplify);
    char *text = NULL;
    rf_status status =
        rfi_explain(&spec, "some-backend", estimate, lowered, 1048576 - 4096, 1024, RF_FORMAT_TEXT, &text);
    CHECK(status == RF_OK && text, "\"%s\": %s", chain, rf_last_error());
    return text;
}

static json_t *json_of(const char *chain, rf_simplify simplify, const rfi_estimate *estimate) {
    const rfi_spec spec = spec_of(chain, simplify);
    char *text = NULL;
    json_error_t error;
    rf_status status =
        rfi_explain(&spec, "some-backend", estimate, lowered, 1048576 - 4096, 1024, RF_FORMAT_JSON, &text);
    CHECK(status == RF_OK && text, "\"%s\": %s", chain, rf_last_error());
    json_t *root = json_loads(text ? text : "", 0, &error);
    CHECK(root, "%s", error.text);
    free(text);
    return root;
}

/* Each line must be in the text. */
static void expect_lines(
    const char *chain, rf_simplify simplify, const rfi_estimate *estimate, const char *const *lines) {
    char *text = text_of(chain, simplify, estimate);
    for (; text && *lines; lines++) CHECK(strstr(text, *lines), "\"%s\" is not in\n%s", *lines, text);
    free(text);
}

static void texts(void) {
    static const char *const mish[] = {
        "linear | mul(2) | save | add_saved | clamp(-10, 10) | logsumexp | save | mish | mul_saved\n",
        "x (1024, 8192) float32, W (8192, 8192) float32 -> y (1024, 1) float32; steps in float32, math f32\n",
        "backend some-backend: a kernel\nsums of products: by somebody, these by somebody else\n",
        "   0  linear          tile by tile; the (1024, 8192) logits are never stored\n",
        "   1  mul(2)          on each tile of logits, fused into the linear layer, as mul(4) (power_of_two)\n",
        "   2  save            removed (double, dead_save)\n",
        "   3  add_saved       removed (double, power_of_two)\n",
        "   4  clamp(-10, 10)  on each tile of logits, fused into the linear layer\n",
        "   5  logsumexp       the reduction: ",
        "   8  mul_saved       on one number per row, after the reduction\n",
        "rewrites (simplify=exact)\n",
        "  2, 3    double               exact      add_saved became mul(2)\n",
        "  arithmetic                       137.5 GFLOP      137.5 GFLOP\n",
        "  memory held beside x and weights 1 MiB            64 MiB\n", /* x + x: its input and its result */
        "  expected time                    750 ms           125 us\n",
        "  Expected times rest on: a machine.\n",
        NULL,
    };
    expect_lines("preset:scale_clamp_mish", RF_SIMPLIFY_EXACT, &an_estimate, mish);
    static const char *const sum[] = {
        "   1  sum        in one dot product a row\n",
        "   2  max        removed (width_one_reduction)\n",
        "   5  logsumexp  on one number per row, after the reduction, as add(0) (width_one_reduction)\n",
        "  0-1     collapse             algebraic  ",
        "  arithmetic                       16.78 MFLOP      137.5 GFLOP\n",
        "is algebraic: work that was removed",
        NULL,
    };
    expect_lines("preset:sum_pool", RF_SIMPLIFY_ALGEBRAIC, &an_estimate, sum);
    static const char *const not_used[] = {
        "This backend does not make use of collapse", "the reduction: folds", "Expected times: not known", NULL};
    expect_lines("preset:sum_pool", RF_SIMPLIFY_ALGEBRAIC, &no_estimate, not_used);
    static const char *const constant[] = {
        "WARNING: rounding and overflow aside, the result is 0 ", "rewrites (simplify=none)\n  none\n", NULL};
    expect_lines("linear | max | save | mean | neg | add_saved", RF_SIMPLIFY_NONE, NULL, constant);
}

static void readings_of_weights(void) {
    static const char *const hidden[] = {"  memory read and written          2.5 GiB          352 MiB\n",
        "  The fused way reads W 10 times, once for each block of 103 rows, to keep a block's logits in the cache; the reading hides behind the arithmetic.\n",
        NULL};
    static const char *const not_hidden[] = {
        "  The fused way reads W 10 times, once for each block of 103 rows, to keep a block's logits in the cache.\n",
        NULL};
    expect_lines("linear | logsumexp | gelu", RF_SIMPLIFY_NONE, &blocks_of_rows, hidden);
    expect_lines("linear | logsumexp | gelu", RF_SIMPLIFY_NONE, &quick_arithmetic, not_hidden);
    char *text = text_of("linear | logsumexp | gelu", RF_SIMPLIFY_NONE, &one_block);
    CHECK(!strstr(text, "reads W"), "one reading is nothing to explain:\n%s", text);
    free(text);
    text = text_of("linear(8, 8) | logsumexp", RF_SIMPLIFY_NONE, &blocks_of_rows);
    CHECK(!strstr(text, "reads W"), "256 bytes of W are nothing beside the rest:\n%s", text);
    free(text);
    json_t *root = json_of("linear | logsumexp | gelu", RF_SIMPLIFY_NONE, &blocks_of_rows);
    CHECK(json_integer_value(json_object_get(root, "weight_reads")) == 10 &&
            json_integer_value(json_object_get(root, "block_rows")) == 103,
        "readings in JSON");
    json_decref(root);
    root = json_of("linear | logsumexp | gelu", RF_SIMPLIFY_NONE, &no_estimate);
    CHECK(json_is_null(json_object_get(root, "weight_reads")) && json_is_null(json_object_get(root, "block_rows")),
        "readings that are not known");
    json_decref(root);
}

/* Four digits, between a thousand and 1024 of a unit, too. */
static void quantities(void) {
    static const char *const lines[] = {"  memory read and written          1010 KiB   ", NULL};
    expect_lines("linear(1, 128288) | max", RF_SIMPLIFY_NONE, &no_estimate, lines); /* 1010.25 */
}

static void lowerings(void) {
    static const char *const told[] = {
        "\nlowered: what the kernel computes as one multiply-add, to the same bits; v is the value before\n"
        "  1-4     multiply_add         v * 4, at least -10\n"
        "  5       multiply_add         v + 1\n\n",
        NULL};
    static const rfi_rewrites log = {2,
        {{.rule = "multiply_add", .first = 1, .last = 4, .text = "v * 4, at least -10"},
            {.rule = "multiply_add", .first = 5, .last = 5, .text = "v + 1"}}};
    static const rfi_rewrites none;
    const char *const chain = "linear | mul(2) | save | add_saved | maximum(-10) | add(1) | logsumexp";
    lowered = &log;
    expect_lines(chain, RF_SIMPLIFY_NONE, &an_estimate, told);
    json_t *root = json_of(chain, RF_SIMPLIFY_NONE, &an_estimate), *list = json_object_get(root, "lowered"),
           *first = json_array_get(list, 0);
    CHECK(json_array_size(list) == 2 && !strcmp(json_string_value(json_object_get(first, "rule")), "multiply_add") &&
            json_integer_value(json_object_get(first, "first")) == 1 &&
            json_integer_value(json_object_get(first, "last")) == 4 &&
            !strcmp(json_string_value(json_object_get(first, "text")), "v * 4, at least -10"),
        "lowered steps in JSON");
    json_decref(root);
    for (int i = 0; i < 2; i++) {
        lowered = i ? &none : NULL;
        char *text = text_of(chain, RF_SIMPLIFY_NONE, &an_estimate);
        CHECK(!strstr(text, "lowered"), "nothing was:\n%s", text);
        free(text);
        root = json_of(chain, RF_SIMPLIFY_NONE, &an_estimate);
        list = json_object_get(root, "lowered");
        CHECK(json_is_array(list) && !json_array_size(list), "an empty list");
        json_decref(root);
    }
    lowered = NULL;
}

/* Of linear(8192, 8192) | add(@v) | save | relu | add_saved | max, float32, 1024 rows. */
static void figures(void) {
    json_t *root = json_of("linear | add(@v) | save | relu | add_saved | max", RF_SIMPLIFY_NONE, NULL),
           *operators = json_object_get(root, "operators");
    json_t *fused = json_object_get(root, "fused"), *unfused = json_object_get(root, "unfused");
    const json_int_t b = 1024, n = 8192, k = 8192, values = b * n,
                     flops = 2 * b * n * k + 5 * values; /* bias, add, relu, add_saved, max */
    const json_int_t inputs = 4 * (b * k + n * k + n);
    /* Results of linear, add, relu, add_saved and max; inputs of the last four; the saved value; the vector. */
    const json_int_t moved = inputs + 4 * (4 * values + b + 4 * values + values + n);
    CHECK(json_integer_value(json_object_get(fused, "flops")) == flops, "fused FLOPs");
    CHECK(json_integer_value(json_object_get(unfused, "flops")) == flops, "unfused FLOPs");
    CHECK(json_integer_value(json_object_get(fused, "bytes")) == inputs + 4 * (n + b), "fused bytes");
    CHECK(json_integer_value(json_object_get(unfused, "bytes")) == moved, "unfused bytes");
    CHECK(json_integer_value(json_object_get(fused, "memory_bytes")) == 1048576, "fused memory");
    CHECK(json_integer_value(json_object_get(unfused, "memory_bytes")) == 3 * 4 * values,
        "unfused memory: saved, relu's and the sum");
    CHECK(json_is_null(json_object_get(fused, "seconds")) && json_is_null(json_object_get(root, "machine")),
        "a time without an estimate");
    CHECK(json_array_size(operators) == 6, "operators");
    CHECK(json_is_null(json_object_get(root, "constant")) && json_is_false(json_object_get(root, "collapsible")),
        "flags");
    json_decref(root);
}

static void json_of_presets(void) {
    for (size_t i = 0; i < rf_preset_count(); i++) {
        const char *name, *chain;
        rf_preset_get(i, &name, &chain);
        json_t *root = json_of(chain, RF_SIMPLIFY_ALGEBRAIC, &an_estimate),
               *operators = json_object_get(root, "operators"), *entry;
        size_t index;
        CHECK(!strcmp(json_string_value(json_object_get(root, "chain")), chain), "%s", name);
        json_array_foreach(operators, index, entry) {
            const char *place = json_string_value(json_object_get(entry, "place"));
            CHECK((size_t)json_integer_value(json_object_get(entry, "index")) == index, "%s", name);
            CHECK(!strcmp(place, "removed") == json_is_null(json_object_get(entry, "computed_as")), "%s operator %zu",
                name, index);
            if (!strcmp(place, "removed"))
                CHECK(json_array_size(json_object_get(entry, "rules")), "%s operator %zu went without a rule", name,
                    index);
        }
        json_array_foreach(json_object_get(root, "rewrites"), index, entry) {
            int algebraic = json_is_true(json_object_get(entry, "algebraic"));
            CHECK(algebraic == !strcmp(json_string_value(json_object_get(entry, "rule")), "collapse"), "%s rewrite %zu",
                name, index);
        }
        CHECK(json_real_value(json_object_get(json_object_get(root, "fused"), "seconds")) == 0.75, "%s", name);
        CHECK(!strcmp(json_string_value(json_object_get(json_object_get(root, "machine"), "description")), "a machine"),
            "%s", name);
        json_decref(root);
    }
}

int main(void) {
    texts();
    readings_of_weights();
    quantities();
    figures();
    lowerings();
    json_of_presets();
    return failures != 0;
}
