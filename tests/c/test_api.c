/* SPDX-License-Identifier: MIT */
/* The library as a C program uses it, through rowfold.h alone: results, types, strides, op lists, and what a wrong call
 * leaves untouched. */
#include <rowfold.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define OK(call)                                                                                 \
    do {                                                                                         \
        rf_status status_ = (call);                                                              \
        CHECK(status_ == RF_OK, #call ": %s (%s)", rf_status_message(status_), rf_last_error()); \
    } while (0)
/* The call fails with this status, and its sentence holds this text. */
#define FAILS(expected, text, call)                                                                                   \
    do {                                                                                                              \
        rf_status status_ = (call);                                                                                   \
        CHECK(status_ == (expected), #call ": status %d, expected %d", (int)status_, (int)(expected));                \
        CHECK(strstr(rf_last_error(), text), #call ": the sentence \"%s\" does not speak of \"%s\"", rf_last_error(), \
            text);                                                                                                    \
    } while (0)

enum { BATCH = 3, K = 4, N = 5, LDX = 7, LDY = 2, LDW = 6 };

/* Small whole numbers: every type holds them, and no sum rounds. */
static const float x[BATCH][K] = {{1, 2, 3, 4}, {-1, 0, 1, 0}, {2, -2, 2, -2}};
static const float w[N][K] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {1, 1, 1, 1}, {-1, 2, 0, 1}, {0, 0, -3, 2}};
static const float b[N] = {0, 1, -2, 3, 0.5f}, v[N] = {1, 2, 3, 4, 5};

static float logit(int i, int j) {
    float sum = b[j];
    for (int k = 0; k < K; k++) sum += x[i][k] * w[j][k];
    return sum;
}

static float largest(int i) {
    float m = -INFINITY;
    for (int j = 0; j < N; j++) m = logit(i, j) > m ? logit(i, j) : m;
    return m;
}

static rf_model *created(const char *backend, const char *chain) {
    rf_model *model = NULL;
    const rf_config config = {
        .size = sizeof config, .chain = chain, .in_features = K, .out_features = N, .backend = backend};
    OK(rf_model_create(&model, &config));
    return model;
}

static void simple_form(const char *backend) {
    rf_model *model = created(backend, "linear | max");
    float y[BATCH];
    OK(rf_model_load_weights(model, w, b, NULL, 0));
    OK(rf_model_forward(model, x, BATCH, y));
    for (int i = 0; i < BATCH; i++)
        CHECK(y[i] == largest(i), "%s: row %d is %g, expected %g", backend, i, y[i], largest(i));
    OK(rf_model_forward(model, NULL, 0, NULL));
    rf_model_destroy(model);

    model = created(backend, "linear | mul(@v) | neg");
    float all[BATCH][N];
    const rf_vector vector = {.size = sizeof vector, .name = "v", .data = v, .length = N};
    OK(rf_model_load_weights(model, w, b, &vector, 1));
    OK(rf_model_forward(model, x, BATCH, all));
    for (int i = 0; i < BATCH; i++)
        for (int j = 0; j < N; j++)
            CHECK(all[i][j] == -logit(i, j) * v[j], "%s: (%d, %d) is %g", backend, i, j, all[i][j]);
    rf_model_destroy(model);
}

/* A layer of no inputs is its bias, with fewer and with more rows than columns. */
static void no_inputs(const char *backend) {
    enum { ROWS = 90, COLUMNS = 40 };
    float bias[COLUMNS], y[ROWS], all[ROWS][COLUMNS];
    for (int j = 0; j < COLUMNS; j++) bias[j] = (float)(j * 7 % COLUMNS);
    for (int columns = 1; columns <= COLUMNS; columns += 13) {
        rf_model *models[2] = {NULL};
        float most = 0;
        for (int j = 0; j < columns; j++) most = bias[j] > most ? bias[j] : most;
        for (int i = 0; i < 2; i++) {
            char chain[40];
            snprintf(chain, sizeof chain, "linear(0, %d)%s", columns, i ? "" : " | max");
            const rf_config config = {.size = sizeof config, .chain = chain, .backend = backend};
            OK(rf_model_create(&models[i], &config));
            OK(rf_model_load_weights(models[i], NULL, bias, NULL, 0));
        }
        for (int rows = 1; rows <= ROWS; rows += 11) {
            OK(rf_model_forward(models[0], NULL, rows, y));
            OK(rf_model_forward(models[1], NULL, rows, all));
            for (int i = 0; i < rows; i++) {
                CHECK(y[i] == most, "%s: %d columns: row %d of %d is %g, expected %g", backend, columns, i, rows, y[i],
                    most);
                const float *row = all[0] + i * columns;
                CHECK(!memcmp(row, bias, (size_t)columns * sizeof *row), "%s: %d columns: row %d of %d is another",
                    backend, columns, i, rows);
            }
        }
        rf_model_destroy(models[0]), rf_model_destroy(models[1]);
    }
}

/* Leading dimensions of x, W and y; what lies between the rows is not read and not written. */
static void strides(const char *backend) {
    float wide_x[BATCH][LDX], wide_w[N][LDW], y[BATCH][LDY];
    for (int i = 0; i < BATCH; i++)
        for (int k = 0; k < LDX; k++) wide_x[i][k] = k < K ? x[i][k] : NAN;
    for (int j = 0; j < N; j++)
        for (int k = 0; k < LDW; k++) wide_w[j][k] = k < K ? w[j][k] : NAN;
    for (int borrow = 0; borrow < 2; borrow++) {
        for (int i = 0; i < BATCH; i++) y[i][0] = y[i][1] = -7.25f;
        rf_model *model = created(backend, "linear | max");
        const rf_weights weights = {
            .size = sizeof weights, .weight = wide_w, .bias = b, .ld = LDW, .flags = borrow ? RF_BORROW : 0};
        OK(rf_model_load_weights_ex(model, &weights));
        const rf_forward_args args = {.size = sizeof args, .x = wide_x, .y = y, .batch = BATCH, .ldx = LDX, .ldy = LDY};
        OK(rf_model_forward_ex(model, &args));
        for (int i = 0; i < BATCH; i++)
            CHECK(y[i][0] == largest(i) && y[i][1] == -7.25f, "%s: row %d is %g, %g", backend, i, y[i][0], y[i][1]);
        rf_model_destroy(model);
    }
}

/* The same numbers in other types: bit patterns of 16-bit ones are written out here. */
static uint16_t bfloat16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}
static uint16_t float16(float f) { /* of 0 and of numbers that it holds as normal ones */
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t magnitude = f == 0 ? 0 : ((u >> 23 & 0xff) - 112) << 10 | (u >> 13 & 0x3ff);
    return (uint16_t)((u >> 16 & 0x8000) | magnitude);
}
static void convert(void *to, rf_dtype dtype, const float *from, int n) {
    for (int i = 0; i < n; i++) {
        if (dtype == RF_FLOAT32) ((float *)to)[i] = from[i];
        if (dtype == RF_FLOAT64) ((double *)to)[i] = from[i];
        if (dtype == RF_FLOAT16) ((uint16_t *)to)[i] = float16(from[i]);
        if (dtype == RF_BFLOAT16) ((uint16_t *)to)[i] = bfloat16(from[i]);
    }
}

static void types(const char *backend) {
    for (rf_dtype of_w = RF_FLOAT32; of_w <= RF_BFLOAT16; of_w++)
        for (rf_dtype of_x = RF_FLOAT32; of_x <= RF_BFLOAT16; of_x++)
            for (rf_dtype of_y = RF_FLOAT32; of_y <= RF_BFLOAT16; of_y++) {
                double stored_x[BATCH * K], stored_w[N * K], stored_b[N], y[BATCH], expected[BATCH];
                float m[BATCH];
                for (int i = 0; i < BATCH; i++) m[i] = largest(i);
                convert(stored_x, of_x, &x[0][0], BATCH * K);
                convert(stored_w, of_w, &w[0][0], N * K);
                convert(stored_b, of_w, b, N);
                convert(expected, of_y, m, BATCH);
                rf_model *model = NULL;
                const rf_config config = {.size = sizeof config,
                    .chain = "linear(4, 5) | max",
                    .weight_dtype = of_w,
                    .x_dtype = of_x,
                    .y_dtype = of_y,
                    .backend = backend};
                if ((of_w == RF_FLOAT64) != (of_x == RF_FLOAT64)) {
                    FAILS(RF_INVALID_ARGUMENT, "float64", rf_model_create(&model, &config));
                    continue;
                }
                rf_status status = rf_model_create(&model, &config);
                if (status == RF_UNSUPPORTED) continue;
                OK(status);
                OK(rf_model_load_weights(model, stored_w, stored_b, NULL, 0));
                OK(rf_model_forward(model, stored_x, BATCH, y));
                size_t size = of_y == RF_FLOAT64 ? 8 : of_y == RF_FLOAT32 ? 4 : 2;
                CHECK(!memcmp(y, expected, BATCH * size), "%s: W %d, x %d, y %d", backend, of_w, of_x, of_y);
                rf_model_destroy(model);
            }
}

static void op_list(const char *backend) {
    static const rf_op ops[] = {
        {.kind = RF_OP_LINEAR, .num_params = 2, .params = {K, N}},
        {.kind = RF_OP_MUL, .vector = "v"},
        {.kind = RF_OP_CLAMP, .num_params = 1, .params = {-3}},
        {.kind = RF_OP_MAX},
    };
    char text[100];
    OK(rf_chain_format(ops, 4, text, sizeof text, NULL));
    CHECK(!strcmp(text, "linear(4, 5) | mul(@v) | clamp(-3) | max"), "the chain prints as \"%s\"", text);
    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config, .ops = ops, .num_ops = 4, .backend = backend};
    OK(rf_model_create(&model, &config));
    const rf_vector vector = {.size = sizeof vector, .name = "v", .data = v, .length = N};
    OK(rf_model_load_weights(model, w, NULL, &vector, 1));
    rf_model_info info = {.size = sizeof info};
    OK(rf_model_get_info(model, &info));
    CHECK(!strcmp(info.chain, text) && !strcmp(info.backend, backend) && info.loaded && info.output_features == 1,
        "info: %s, %s", info.chain, info.backend);
    float y[BATCH];
    OK(rf_model_forward(model, x, BATCH, y));
    CHECK(y[0] == 30 && y[1] == 4 && y[2] == 2, "%s: %g %g %g", backend, y[0], y[1], y[2]);
    rf_model_destroy(model);
}

/* One byte short of enough, and at every address that is aligned to less than it must be. */
static void wrong_workspaces(const char *backend, const rf_model *model, float *y) {
    static char block[1 << 20];
    char *aligned = block + (256 - (uintptr_t)block % 256);
    size_t needed = 0;
    OK(rf_model_workspace_size(model, BATCH, &needed));
    if (!strcmp(backend, "cuda")) return; /* it would be on the device */
    CHECK(needed + 512 <= sizeof block, "%s wants %zu bytes", backend, needed);
    rf_forward_args args = {
        .size = sizeof args, .x = x, .y = y, .batch = BATCH, .workspace = aligned, .workspace_size = needed};
    if (needed) {
        args.workspace_size = needed - 1;
        FAILS(RF_WORKSPACE_TOO_SMALL, "batch 3 needs", rf_model_forward_ex(model, &args));
        args.workspace_size = needed;
    }
    for (int off = 1; off < 256; off *= 2) {
        args.workspace = aligned + off;
        FAILS(RF_INVALID_ARGUMENT, "workspace is not aligned to 256 bytes", rf_model_forward_ex(model, &args));
    }
}

static void wrong_calls(const char *backend) {
    rf_model *model = created(backend, "linear | mul(@v) | max");
    float y[BATCH + 2] = {-7.25f, -7.25f, -7.25f, -7.25f, -7.25f};
    size_t bytes = 77;
    const rf_vector good = {.size = sizeof good, .name = "v", .data = v, .length = N},
                    short_one = {.size = sizeof good, .name = "v", .data = v, .length = N - 1},
                    other = {.size = sizeof good, .name = "u", .data = v, .length = N};
    const rf_vector twice[] = {good, good}, both[] = {good, other};
    FAILS(RF_NOT_LOADED, "weights", rf_model_forward(model, x, BATCH, y + 1));
    FAILS(RF_NOT_LOADED, "weights", rf_model_workspace_size(model, BATCH, &bytes));
    FAILS(RF_INVALID_ARGUMENT, "weight is NULL", rf_model_load_weights(model, NULL, b, &good, 1));
    FAILS(RF_INVALID_ARGUMENT, "\"v\"", rf_model_load_weights(model, w, b, NULL, 0));
    FAILS(RF_INVALID_ARGUMENT, "length 4", rf_model_load_weights(model, w, b, &short_one, 1));
    FAILS(RF_INVALID_ARGUMENT, "twice", rf_model_load_weights(model, w, b, twice, 2));
    FAILS(RF_INVALID_ARGUMENT, "\"u\"", rf_model_load_weights(model, w, b, both, 2));
    FAILS(RF_INVALID_ARGUMENT, "num_vectors", rf_model_load_weights(model, w, b, NULL, 1));
    rf_weights weights = {
        .size = sizeof weights, .weight = w, .bias = b, .vectors = &good, .num_vectors = 1, .ld = K - 1};
    FAILS(RF_INVALID_ARGUMENT, "ld is 3", rf_model_load_weights_ex(model, &weights));
    weights.ld = INT64_MAX;
    FAILS(RF_INVALID_ARGUMENT, "ld", rf_model_load_weights_ex(model, &weights));
    weights.ld = 0, weights.memory = 9;
    FAILS(RF_INVALID_ARGUMENT, "memory", rf_model_load_weights_ex(model, &weights));
    weights.memory = 0, weights.bias_dtype = 5;
    FAILS(RF_INVALID_ARGUMENT, "bias_dtype is 5", rf_model_load_weights_ex(model, &weights));
    weights.bias_dtype = 0, weights.flags = 2;
    FAILS(RF_INVALID_ARGUMENT, "flags", rf_model_load_weights_ex(model, &weights));
    weights.flags = 0, weights.reserved = 1;
    FAILS(RF_INVALID_ARGUMENT, "reserved", rf_model_load_weights_ex(model, &weights));
    weights.reserved = 0, weights.weight = (const char *)w + 1;
    FAILS(RF_INVALID_ARGUMENT, "weight is not aligned", rf_model_load_weights_ex(model, &weights));
    weights.weight = w, weights.bias = (const char *)b + 1;
    FAILS(RF_INVALID_ARGUMENT, "bias is not aligned to its type", rf_model_load_weights_ex(model, &weights));
    rf_vector crooked = good;
    crooked.data = (const char *)good.data + 1;
    FAILS(RF_INVALID_ARGUMENT, "is not aligned to its type", rf_model_load_weights(model, w, b, &crooked, 1));
    OK(rf_model_load_weights(model, w, b, &good, 1));
    FAILS(RF_ALREADY_LOADED, "loaded", rf_model_load_weights(model, w, b, &good, 1));
    FAILS(RF_INVALID_ARGUMENT, "batch is -1", rf_model_forward(model, x, -1, y + 1));
    FAILS(RF_INVALID_ARGUMENT, "x is NULL", rf_model_forward(model, NULL, BATCH, y + 1));
    FAILS(RF_INVALID_ARGUMENT, "y is NULL", rf_model_forward(model, x, BATCH, NULL));
    FAILS(RF_INVALID_ARGUMENT, "batch", rf_model_forward(model, x, INT64_MAX, y + 1));
    FAILS(RF_INVALID_ARGUMENT, "aligned", rf_model_forward(model, (const char *)x + 2, 1, y + 1));
    FAILS(RF_INVALID_ARGUMENT, "x is not aligned", rf_model_forward(model, (const char *)x + 2, 1, y + 1));
    FAILS(RF_INVALID_ARGUMENT, "y is not aligned", rf_model_forward(model, x, 1, (char *)y + 2));
    wrong_workspaces(backend, model, y + 1);
    FAILS(RF_INVALID_ARGUMENT, "bytes is NULL", rf_model_workspace_size(model, BATCH, NULL));
    rf_forward_args asked = {.size = sizeof asked, .batch = BATCH, .x_dtype = 99};
    FAILS(RF_INVALID_ARGUMENT, "x_dtype is 99", rf_model_workspace_size_ex(model, &asked, &bytes));
    asked.x_dtype = RF_FLOAT64;
    FAILS(RF_INVALID_ARGUMENT, "float64 goes with float64 only", rf_model_workspace_size_ex(model, &asked, &bytes));
    asked.x_dtype = 0, asked.ldx = 1;
    FAILS(RF_INVALID_ARGUMENT, "ldx is 1", rf_model_workspace_size_ex(model, &asked, &bytes));
    asked.ldx = 0, asked.batch = -1;
    FAILS(RF_INVALID_ARGUMENT, "batch is -1", rf_model_workspace_size_ex(model, &asked, &bytes));
    FAILS(RF_INVALID_ARGUMENT, "args is NULL", rf_model_workspace_size_ex(model, NULL, &bytes));
    FAILS(RF_INVALID_ARGUMENT, "bytes is NULL", (asked.batch = BATCH, rf_model_workspace_size_ex(model, &asked, NULL)));
    for (int i = 0; i < BATCH + 2; i++) CHECK(y[i] == -7.25f, "%s: a wrong call wrote y[%d]", backend, i);
    CHECK(bytes == 77, "a wrong call wrote *bytes");
    rf_ways ways = {.size = sizeof ways, .rows = 77};
    FAILS(RF_INVALID_ARGUMENT, "x is NULL", rf_model_count_ways(model, &asked, &ways));
    FAILS(RF_INVALID_ARGUMENT, "ways is NULL", rf_model_count_ways(model, &asked, NULL));
    FAILS(RF_INVALID_ARGUMENT, "args is NULL", rf_model_count_ways(model, NULL, &ways));
    CHECK(ways.rows == 77, "a wrong call wrote *ways");
    asked.x = x;
    OK(rf_model_count_ways(model, &asked, &ways));
    CHECK(ways.rows == BATCH && !ways.irregular_rows && !ways.two_level_rows, "%s: ways of %lld rows, %lld irregular",
        backend, (long long)ways.rows, (long long)ways.irregular_rows);
    size_t most = 0, least = 77;
    OK(rf_model_workspace_size(model, BATCH, &most));
    OK(rf_model_workspace_size_ex(model, &asked, &least));
    CHECK(least <= most, "%s: a call needs %zu bytes, any call %zu", backend, least, most);
    OK(rf_model_forward(model, x, BATCH, y + 1));
    CHECK(y[0] == -7.25f && y[BATCH + 1] == -7.25f && y[1] != -7.25f, "%s: forward wrote beside y", backend);
    /* One row, as views of arrays have it: the way to a next row that is not there. */
    const int64_t far = INT64_MAX / (int64_t)sizeof(float);
    const rf_forward_args one = {.size = sizeof one, .batch = 1, .x = x, .ldx = far, .y = y + BATCH, .ldy = far};
    OK(rf_model_forward_ex(model, &one));
    CHECK(fabsf(y[BATCH] - y[1]) < 1e-5f && y[BATCH + 1] == -7.25f, "%s: one row with an ldx and ldy of %lld", backend,
        (long long)far);
    rf_model_destroy(model);
}

static void *other_thread(void *sentence) {
    CHECK(!*rf_last_error(), "a new thread has the error \"%s\"", rf_last_error());
    FAILS(RF_INVALID_ARGUMENT, "model is NULL", rf_model_forward(NULL, NULL, 1, NULL));
    return sentence;
}

static void last_error_is_the_threads_own(void) {
    rf_op ops[4];
    size_t n = 0;
    pthread_t thread;
    FAILS(RF_INVALID_CHAIN, "column 10", rf_chain_parse("linear | what", ops, 4, &n));
    CHECK(!pthread_create(&thread, NULL, other_thread, NULL) && !pthread_join(thread, NULL), "no thread");
    CHECK(strstr(rf_last_error(), "column 10"), "another thread's error took the place: %s", rf_last_error());
    CHECK(n == 0, "a wrong call wrote *num_ops");
}

/* What the machine can do depends on the threads that a model has: each count is measured for itself. */
static void explained_for_its_threads(void) {
    enum { TEXT = 1 << 16 };
    static char text[3][TEXT];
    double flops[3] = {0};
    for (int i = 0; i < 3; i++) {
        rf_model *model = NULL;
        const rf_config config = {
            .size = sizeof config, .chain = "linear(64, 64) | max", .device = "cpu", .threads = 1 + i % 2};
        OK(rf_model_create(&model, &config));
        OK(rf_model_explain(model, 8, RF_FORMAT_JSON, text[i], TEXT, NULL));
        rf_model_destroy(model);
        const char *at = strstr(text[i], "\"flops_per_second\"");
        CHECK(at && sscanf(strchr(at, ':') + 1, "%lf", &flops[i]) == 1, "no flops_per_second: %s", text[i]);
        CHECK(strstr(text[i], i % 2 ? "measured with 2 threads" : "measured with 1 thread:"), "%s", text[i]);
    }
    CHECK(flops[0] > 0 && flops[1] != flops[0], "1 thread and 2 threads are said to reach the same %g", flops[0]);
}

static void tables(void) {
    for (size_t i = 0; i < rf_op_count(); i++) {
        rf_op_info info = {.size = sizeof info};
        OK(rf_op_get_info(i, &info));
        CHECK(info.name && *info.name && info.description && *info.description && info.num_params <= RF_MAX_OP_PARAMS,
            "operator %zu", i);
    }
    rf_op_info info = {.size = sizeof info, .kind = -5};
    FAILS(RF_INVALID_ARGUMENT, "index", rf_op_get_info(rf_op_count(), &info));
    CHECK(info.kind == -5, "a wrong call wrote *info");
    CHECK(rf_preset_count() == 3 && rf_backend_count() >= 2, "%zu presets, %zu backends", rf_preset_count(),
        rf_backend_count());
    CHECK(!rf_backend_name(rf_backend_count()) && !rf_backend_available(rf_backend_count(), NULL),
        "a backend behind the last");
    CHECK(!strcmp(rf_backend_name(rf_backend_count() - 1), "reference"), "the last backend is not the reference");
    rf_op ops[2];
    size_t n = 0;
    FAILS(RF_BUFFER_TOO_SMALL, "capacity is 2", rf_chain_parse("linear | relu | max", ops, 2, &n));
    CHECK(n == 3, "the capacity needed is %zu", n);
    for (int status = 0; status <= RF_INTERNAL; status++)
        CHECK(*rf_status_message((rf_status)status), "status %d has no sentence", status);
}

int main(void) {
    tables();
    explained_for_its_threads();
    last_error_is_the_threads_own();
    for (size_t i = 0; i < rf_backend_count(); i++) {
        const char *backend = rf_backend_name(i), *why;
        if (!rf_backend_available(i, &why)) {
            printf("backend %s skipped: %s\n", backend, why);
            continue;
        }
        simple_form(backend);
        no_inputs(backend);
        strides(backend);
        types(backend);
        op_list(backend);
        wrong_calls(backend);
    }
    rf_model_destroy(NULL);
    return failures != 0;
}
