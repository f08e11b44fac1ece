/* SPDX-License-Identifier: MIT */
/* A program that was compiled with the header of 0.1.0, a copy of which lies here and never changes, runs with the
 * library of today. */
#include "rowfold_0_1.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define OK(call)                                                                                 \
    do {                                                                                         \
        rf_status status_ = (call);                                                              \
        CHECK(status_ == RF_OK, #call ": %s (%s)", rf_status_message(status_), rf_last_error()); \
    } while (0)

enum { BATCH = 2, K = 3, N = 4 };

static const float x[BATCH][K] = {{1, 2, 3}, {-1, 0, 4}};
static const float w[N][K] = {{1, 0, 0}, {0, 1, 0}, {1, 1, 1}, {-1, 2, 0}};
static const float b[N] = {0, 1, -2, 3}, u[N] = {1, 2, 3, 4}, v[N] = {4, 3, 2, 1};

static float expected(int i) {
    float m = -INFINITY;
    for (int j = 0; j < N; j++) {
        float sum = b[j];
        for (int k = 0; k < K; k++) sum += x[i][k] * w[j][k];
        sum = sum * u[j] + v[j];
        m = sum > m ? sum : m;
    }
    return m;
}

static rf_model *created(void) {
    rf_model *model = NULL;
    const rf_config config = {
        .size = sizeof config, .chain = "linear(3, 4) | mul(@u) | add(@v) | max", .backend = "reference", .threads = 1};
    OK(rf_model_create(&model, &config));
    return model;
}

static void check_forward(const rf_model *model) {
    float y[BATCH] = {0}, wide[BATCH][3];
    OK(rf_model_forward(model, x, BATCH, y));
    const rf_forward_args args = {.size = sizeof args, .x = x, .y = wide, .batch = BATCH, .ldx = K, .ldy = 3};
    OK(rf_model_forward_ex(model, &args));
    for (int i = 0; i < BATCH; i++)
        CHECK(y[i] == expected(i) && wide[i][0] == y[i], "row %d is %g and %g", i, (double)y[i], (double)wide[i][0]);
}

static void from_memory(void) {
    rf_model *model = created();
    const rf_vector vectors[] = {{.size = sizeof *vectors, .name = "v", .data = v, .length = N},
        {.size = sizeof *vectors, .name = "u", .data = u, .length = N}};
    const rf_weights weights = {.size = sizeof weights, .weight = w, .bias = b, .vectors = vectors, .num_vectors = 2};
    OK(rf_model_load_weights_ex(model, &weights));
    check_forward(model);
    /* Guards show whether the library writes more than this header knows. */
    struct {
        rf_model_info info;
        unsigned char guard[256];
    } about = {.info.size = sizeof about.info};
    memset(about.guard, 0x5a, sizeof about.guard);
    OK(rf_model_get_info(model, &about.info));
    CHECK(about.info.size == sizeof about.info && about.info.out_features == N && about.info.loaded &&
            about.info.prepared_bytes,
        "rf_model_info");
    for (size_t i = 0; i < sizeof about.guard; i++)
        CHECK(about.guard[i] == 0x5a, "rf_model_info was written beyond its end");
    rf_model_destroy(model);

    struct {
        rf_op_info info;
        unsigned char guard[256];
    } op = {.info.size = sizeof op.info};
    memset(op.guard, 0x5a, sizeof op.guard);
    OK(rf_op_get_info(0, &op.info));
    CHECK(op.info.kind == RF_OP_LINEAR && op.info.num_params == 2 && op.info.param_defaults[1] == -1, "rf_op_info");
    for (size_t i = 0; i < sizeof op.guard; i++) CHECK(op.guard[i] == 0x5a, "rf_op_info was written beyond its end");
}

static void from_file(void) {
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[4,3],\"data_offsets\":[0,48]},\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[48,64]},"
        "\"u\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[64,80]},\"v\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[80,96]}}";
    char path[] = "/tmp/rowfold-header-XXXXXX";
    int fd = mkstemp(path);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!out) {
        CHECK(0, "%s cannot be made", path);
        return;
    }
    const unsigned char length[8] = {(sizeof header - 1) & 255, (sizeof header - 1) >> 8};
    size_t written = fwrite(length, 1, 8, out) + fwrite(header, 1, sizeof header - 1, out) +
        fwrite(w, 1, sizeof w, out) + fwrite(b, 1, sizeof b, out) + fwrite(u, 1, sizeof u, out) +
        fwrite(v, 1, sizeof v, out);
    CHECK(!fclose(out) && written == 8 + sizeof header - 1 + 96, "%s cannot be written", path);

    rf_model *model = created();
    const rf_file_vector vectors[] = {{.size = sizeof *vectors, .vector = "u", .tensor = "u"},
        {.size = sizeof *vectors, .vector = "v", .tensor = "v"}};
    const rf_file_names names = {
        .size = sizeof names, .weight = "w", .bias = "b", .vectors = vectors, .num_vectors = 2};
    OK(rf_model_load_file(model, path, &names));
    check_forward(model);
    rf_model_destroy(model);

    rf_file *file = NULL;
    struct {
        rf_tensor_info info;
        unsigned char guard[256];
    } tensor = {.info.size = sizeof tensor.info};
    memset(tensor.guard, 0x5a, sizeof tensor.guard);
    OK(rf_file_open(&file, path));
    OK(rf_file_find(file, "u", &tensor.info));
    CHECK(tensor.info.dtype == RF_FLOAT32 && tensor.info.shape[0] == N && tensor.info.bytes == 16 &&
            tensor.info.offset == (int64_t)(8 + sizeof header - 1 + 64),
        "rf_tensor_info");
    for (size_t i = 0; i < sizeof tensor.guard; i++)
        CHECK(tensor.guard[i] == 0x5a, "rf_tensor_info was written beyond its end");
    rf_file_close(file);
    unlink(path);
}

int main(void) {
    from_memory();
    from_file();
    return failures != 0;
}
