/* SPDX-License-Identifier: MIT */
/* Chain text, and op lists, to plan, explanation and a small forward. The first byte says which: text is the rest of
 * the input; an op takes its kind, parameters and vector's name from it, now from the tables and now as they come.
 * Promises: a status with a sentence, or a chain that prints and parses back to itself, and a model whose explanation
 * has the length that was asked for. */
#include "fuzz.h"

#include <math.h>

enum { K = 3, N = 5, BATCH = 2 };

static const double params[] = {0, 1, -1, 2, 0.5, -0.5, 4, 1e30, -1e30, 1e-30, 20};

static int32_t take_kind(taker *in) {
    const uint8_t byte = take(in);
    int32_t kind = 0;
    if (byte == 255) {
        take_bytes(in, &kind, sizeof kind);
        return kind;
    }
    rf_op_info info = {.size = sizeof info};
    REQUIRE(!rf_op_get_info(byte % rf_op_count(), &info), "%s", rf_last_error());
    return info.kind;
}

static rf_op take_op(taker *in) {
    rf_op op = {.kind = take_kind(in)};
    const uint8_t shape = take(in);
    op.num_params = shape & 64 ? (int8_t)take(in) : shape & 3;
    for (int i = 0; i < RF_MAX_OP_PARAMS; i++) {
        if (shape & 4) take_bytes(in, &op.params[i], sizeof op.params[i]);
        else if (i < op.num_params) op.params[i] = params[take(in) % (sizeof params / sizeof *params)];
    }
    if (shape & 8) {
        op.num_params = 0;
        strcpy(op.vector, shape & 16 ? "v" : "scale");
    } else if (shape & 32) {
        take_bytes(in, op.vector, sizeof op.vector);
    }
    return op;
}

/* Any NaN is written as "nan". */
static int same_number(double a, double b) { return (isnan(a) && isnan(b)) || !memcmp(&a, &b, sizeof a); }

static int same_ops(const rf_op *a, const rf_op *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (a[i].kind != b[i].kind || a[i].num_params != b[i].num_params || strcmp(a[i].vector, b[i].vector)) return 0;
        for (int j = 0; j < a[i].num_params; j++)
            if (!same_number(a[i].params[j], b[i].params[j])) return 0;
    }
    return 1;
}

/* A chain that has a text is what that text says. */
static void prints_and_parses_back(const rf_op *ops, size_t num_ops) {
    size_t needed = 0, again = 0;
    char *text;
    rf_op parsed[RF_MAX_OPS];
    if (rf_chain_format(ops, num_ops, NULL, 0, &needed)) return;
    text = malloc(needed);
    REQUIRE(rf_chain_format(ops, num_ops, text, needed - 1, NULL) == RF_BUFFER_TOO_SMALL, "%zu bytes", needed);
    REQUIRE(!rf_chain_format(ops, num_ops, text, needed, NULL) && strlen(text) == needed - 1, "%s", rf_last_error());
    REQUIRE(!rf_chain_parse(text, parsed, RF_MAX_OPS, &again), "'%s': %s", text, rf_last_error());
    REQUIRE(again == num_ops && same_ops(ops, parsed, again), "'%s' means something else", text);
    free(text);
}

static void explains(const rf_model *model, int64_t batch, rf_format format) {
    size_t needed = 0;
    rf_status status = rf_model_explain(model, batch, format, NULL, 0, &needed);
    if (status == RF_OUT_OF_MEMORY && batch == INT64_MAX && *rf_last_error()) return; /* states of so many rows */
    REQUIRE(!status, "%d: %s", (int)status, rf_last_error());
    char *text = malloc(needed);
    REQUIRE(!rf_model_explain(model, batch, format, text, needed, NULL), "%s", rf_last_error());
    REQUIRE(strlen(text) == needed - 1, "%zu bytes were asked for", needed);
    free(text);
}

/* A call with all results of the chain, each in a buffer of its own length, and all of its row inputs. */
static void answers(const rf_model *model, const rf_model_info *info, const float *x, int64_t n) {
    enum { COLUMNS = 2 };
    static const float numbers[BATCH] = {-2, 0.5f};
    const int64_t columns[BATCH * COLUMNS] = {0, n - 1, n / 2, 0};
    rf_row_input inputs[RF_MAX_OPS];
    rf_result results[RF_MAX_OPS];
    const size_t num_inputs = (size_t)info->num_row_inputs, num_results = (size_t)info->num_results;
    int asks = 0;
    for (size_t i = 0; i < num_inputs; i++) {
        rf_row_input_info row = {.size = sizeof row};
        REQUIRE(!rf_model_row_input_info(model, i, &row), "%s", rf_last_error());
        inputs[i] = (rf_row_input){.size = sizeof *inputs,
            .name = row.name,
            .data = row.use == RF_ROW_NUMBER ? (const void *)numbers : columns,
            .length = BATCH,
            .columns = row.use == RF_ROW_COLUMNS ? COLUMNS : 1};
        asks |= row.use != RF_ROW_NUMBER;
    }
    for (size_t i = 0; i < num_results; i++) {
        rf_result_info one = {.size = sizeof one};
        REQUIRE(!rf_model_result_info(model, i, &one), "%s", rf_last_error());
        const size_t width = one.kind == RF_OP_GATHER ? COLUMNS : (size_t)one.width;
        results[i] =
            (rf_result){.size = sizeof *results, .data = malloc(BATCH * width * (one.dtype == RF_INT64 ? 8 : 4))};
    }
    rf_forward_args args = {.size = sizeof args,
        .x = x,
        .batch = BATCH,
        .results = results,
        .num_results = num_results,
        .row_inputs = inputs,
        .num_row_inputs = num_inputs};
    /* A layer without columns has none that could be asked for. */
    rf_status status = rf_model_forward_ex(model, &args);
    REQUIRE(status == (asks && n == 0 ? RF_INVALID_ARGUMENT : RF_OK), "%d: %s", (int)status, rf_last_error());
    if (num_inputs) {
        args.num_row_inputs--;
        status = rf_model_forward_ex(model, &args);
        REQUIRE(status == RF_INVALID_ARGUMENT && *rf_last_error(), "%d without a row input", (int)status);
    }
    for (size_t i = 0; i < num_results; i++) free(results[i].data);
}

static void runs(rf_model *model, const rf_op *ops, size_t num_ops, int64_t k, int64_t n) {
    static const float w[N * K] = {1, -2, 0.5f, 3, 1e-3f, -7, 1e30f, 2, 0, -0.0f, 5, 1, 1, -1, 2}, b[N] = {0, 1, -1};
    static const float x[BATCH * K] = {1, 2, -3, 1e-20f, 0, 9}, v[N] = {2, -1, 0, 1e10f, 0.5f};
    rf_vector vectors[RF_MAX_OPS];
    size_t count = 0;
    for (size_t i = 0; i < num_ops; i++) {
        size_t known = 0;
        while (known < count && strcmp(vectors[known].name, ops[i].vector)) known++;
        if (*ops[i].vector && *ops[i].vector != '#' && known == count)
            vectors[count++] = (rf_vector){.size = sizeof *vectors, .name = ops[i].vector, .data = v, .length = n};
    }
    if (k > K || n > N) return; /* the chain says so; nothing here is as large */
    float y[BATCH * N];
    rf_status status = rf_model_load_weights(model, w, b, vectors, count);
    REQUIRE(!status, "%d: %s", (int)status, rf_last_error());
    rf_model_info info = {.size = sizeof info};
    REQUIRE(!rf_model_get_info(model, &info), "%s", rf_last_error());
    /* Several results, one with its columns, and row inputs have no place here: the call is refused. */
    status = rf_model_forward(model, x, BATCH, y);
    REQUIRE(!status == (info.num_results == 1 && !info.num_row_inputs), "%d: %s", (int)status, rf_last_error());
    answers(model, &info, x, n);
    explains(model, BATCH, RF_FORMAT_JSON);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    taker in = {data, size};
    const uint8_t how = take(&in);
    rf_op ops[RF_MAX_OPS];
    size_t num_ops = 0;
    char *text = NULL;
    if (how & 1) {
        while (in.left && num_ops < RF_MAX_OPS) ops[num_ops++] = take_op(&in);
    } else {
        text = malloc(in.left + 1);
        memcpy(text, in.at, in.left);
        text[in.left] = 0;
        rf_status status = rf_chain_parse(text, ops, RF_MAX_OPS, &num_ops);
        if (status) {
            REQUIRE(*rf_last_error(), "status %d without a sentence", (int)status);
            free(text);
            return 0;
        }
    }
    prints_and_parses_back(ops, num_ops);

    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config,
        .chain = text,
        .ops = text ? NULL : ops,
        .num_ops = text ? 0 : num_ops,
        .in_features = how & 2 ? K : 0,
        .out_features = how & 2 ? N : 0,
        .simplify = (how >> 2) & 3,
        .backend = how & 16 ? "reference" : NULL,
        .threads = 1};
    rf_status status = rf_model_create(&model, &config);
    if (status) {
        REQUIRE(!model && *rf_last_error(), "status %d", (int)status);
    } else {
        rf_model_info info = {.size = sizeof info};
        REQUIRE(!rf_model_get_info(model, &info), "%s", rf_last_error());
        explains(model, how & 32 ? INT64_MAX : how & 64 ? 0 : BATCH, how & 128 ? RF_FORMAT_JSON : RF_FORMAT_TEXT);
        runs(model, ops, num_ops, info.in_features, info.out_features);
    }
    rf_model_destroy(model);
    free(text);
    return 0;
}
