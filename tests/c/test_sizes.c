/* SPDX-License-Identifier: MIT */
/* Structs of another size than the library's: what a shorter one lacks is zero, what a longer one has besides must be
 * zero, and a size that cannot be one is refused. */
#include <rowfold.h>

#include <stddef.h>
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

/* Bytes of a struct up to and with a member. */
#define UP_TO(type, member) (offsetof(type, member) + sizeof((type *)0)->member)

static const float x[3] = {1, 2, 3}, w[2][3] = {{1, 1, 1}, {2, 2, 2}}, b[2] = {1, 2}, v[2] = {10, 100};
static char path[] = "/tmp/rowfold-sizes-XXXXXX";

static int make_file(void) {
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[24,32]}}";
    const unsigned char length[8] = {sizeof header - 1};
    int fd = mkstemp(path);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!out) return 0;
    size_t written = fwrite(length, 1, 8, out) + fwrite(header, 1, sizeof header - 1, out) +
        fwrite(w, 1, sizeof w, out) + fwrite(v, 1, sizeof v, out);
    return !fclose(out) && written == 8 + sizeof header - 1 + 32;
}

static rf_model *created(const char *chain) {
    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config, .chain = chain, .backend = "reference"};
    OK(rf_model_create(&model, &config));
    return model;
}

/* Calls that take one struct, which `s` points at; 0 is success. What they make goes again. */
static rf_status create(void *s) {
    rf_model *model = NULL;
    rf_status status = rf_model_create(&model, s);
    rf_model_destroy(model);
    return status;
}
static rf_status load(void *s) {
    rf_model *model = created("linear(3, 2) | sum");
    rf_status status = rf_model_load_weights_ex(model, s);
    rf_model_destroy(model);
    return status;
}
static rf_status load_vector(void *s) {
    rf_model *model = created("linear(3, 2) | mul(@v) | sum");
    float y = 0;
    rf_status status = rf_model_load_weights(model, w, b, s, 1);
    if (!status) {
        OK(rf_model_forward(model, x, 1, &y));
        CHECK(y == 1470, "y is %g", (double)y);
    }
    rf_model_destroy(model);
    return status;
}
static rf_status load_file(void *s) {
    rf_model *model = created("linear(3, 2) | sum");
    rf_status status = rf_model_load_file(model, path, s);
    rf_model_destroy(model);
    return status;
}
static rf_status load_file_vector(void *s) {
    rf_model *model = created("linear(3, 2) | mul(@v) | sum");
    const rf_file_names names = {.size = sizeof names, .weight = "w", .vectors = s, .num_vectors = 1};
    rf_status status = rf_model_load_file(model, path, &names);
    rf_model_destroy(model);
    return status;
}
static rf_status forward(void *s) {
    rf_model *model = created("linear(3, 2) | sum");
    OK(rf_model_load_weights(model, w, b, NULL, 0));
    rf_status status = rf_model_forward_ex(model, s);
    rf_model_destroy(model);
    return status;
}
static rf_status forward_result(void *s) {
    rf_model *model = created("linear(3, 2) | sum");
    OK(rf_model_load_weights(model, w, b, NULL, 0));
    const rf_forward_args args = {.size = sizeof args, .x = x, .batch = 1, .results = s, .num_results = 1};
    rf_status status = rf_model_forward_ex(model, &args);
    rf_model_destroy(model);
    return status;
}
static rf_status forward_row_input(void *s) {
    rf_model *model = created("linear(3, 2) | mul(#v) | sum");
    OK(rf_model_load_weights(model, w, b, NULL, 0));
    float out = 0;
    const rf_forward_args args = {
        .size = sizeof args, .x = x, .y = &out, .batch = 1, .row_inputs = s, .num_row_inputs = 1};
    rf_status status = rf_model_forward_ex(model, &args);
    CHECK(status || out == 210, "y is %g", (double)out);
    rf_model_destroy(model);
    return status;
}
static rf_status result_info(void *s) {
    rf_model *model = created("linear(3, 2) | sum");
    rf_status status = rf_model_result_info(model, 0, s);
    rf_model_destroy(model);
    return status;
}
static rf_status row_input_info(void *s) {
    rf_model *model = created("linear(3, 2) | mul(#v) | sum");
    rf_status status = rf_model_row_input_info(model, 0, s);
    rf_model_destroy(model);
    return status;
}
static rf_status count_ways(void *s) {
    rf_model *model = created("linear(3, 2) | sum");
    OK(rf_model_load_weights(model, w, b, NULL, 0));
    const rf_forward_args args = {.size = sizeof args, .x = x, .batch = 1};
    rf_status status = rf_model_count_ways(model, &args, s);
    rf_model_destroy(model);
    return status;
}
static rf_status op_info(void *s) { return rf_op_get_info(0, s); }
static rf_status model_info(void *s) {
    rf_model *model = created("linear(3, 2) | sum");
    rf_status status = rf_model_get_info(model, s);
    rf_model_destroy(model);
    return status;
}
static rf_status tensor_info(void *s) {
    rf_file *file = NULL;
    OK(rf_file_open(&file, path));
    rf_status status = rf_file_find(file, "v", s), by_index = rf_file_tensor(file, 0, s);
    CHECK(status == by_index, "find %d, by index %d", status, by_index);
    rf_file_close(file);
    return status;
}

static float y;
static const rf_config config = {.chain = "linear(3, 2) | sum"};
static const rf_weights weights = {.weight = w, .bias = b};
static const rf_vector vector = {.name = "v", .data = v, .length = 2};
static const rf_file_names names = {.weight = "w"};
static const rf_file_vector file_vector = {.vector = "v", .tensor = "v"};
static const rf_forward_args args = {.x = x, .y = &y, .batch = 1};
static const rf_result result = {.data = &y};
static const rf_row_input row_input = {.name = "v", .data = v, .length = 1};

static const struct {
    const char *type, *named;
    size_t size, least; /* sizeof, and the shortest that says what the call needs */
    const void *given;  /* NULL: the library writes it */
    rf_status (*call)(void *);
} structs[] = {
    {"rf_config", "config.size", sizeof config, UP_TO(rf_config, chain), &config, create},
    {"rf_weights", "weights.size", sizeof weights, UP_TO(rf_weights, bias), &weights, load},
    {"rf_vector", "vectors[0].size", sizeof vector, UP_TO(rf_vector, length), &vector, load_vector},
    {"rf_file_names", "names.size", sizeof names, UP_TO(rf_file_names, weight), &names, load_file},
    {"rf_file_vector", "names.vectors[0].size", sizeof file_vector, UP_TO(rf_file_vector, tensor), &file_vector,
        load_file_vector},
    {"rf_forward_args", "args.size", sizeof args, UP_TO(rf_forward_args, batch), &args, forward},
    {"rf_result", "results[0].size", sizeof result, UP_TO(rf_result, data), &result, forward_result},
    {"rf_row_input", "row_inputs[0].size", sizeof row_input, UP_TO(rf_row_input, length), &row_input,
        forward_row_input},
    {"rf_result_info", "info.size", sizeof(rf_result_info), sizeof(size_t), NULL, result_info},
    {"rf_row_input_info", "info.size", sizeof(rf_row_input_info), sizeof(size_t), NULL, row_input_info},
    {"rf_ways", "ways.size", sizeof(rf_ways), sizeof(size_t), NULL, count_ways},
    {"rf_op_info", "info.size", sizeof(rf_op_info), sizeof(size_t), NULL, op_info},
    {"rf_model_info", "info.size", sizeof(rf_model_info), sizeof(size_t), NULL, model_info},
    {"rf_tensor_info", "info.size", sizeof(rf_tensor_info), sizeof(size_t), NULL, tensor_info},
};

static union {
    size_t size;
    unsigned char bytes[512];
} room;

static void lay_out(size_t i, size_t size, int rest) {
    memset(room.bytes, rest, sizeof room.bytes);
    if (structs[i].given) memcpy(room.bytes, structs[i].given, structs[i].size);
    else memset(room.bytes, 0, structs[i].size);
    room.size = size;
}

static void shorter(size_t i) {
    for (size_t size = structs[i].least; size <= structs[i].size; size += sizeof(size_t)) {
        lay_out(i, size, 0);
        /* What lies behind the size must be neither read nor written. */
        memset(room.bytes + size, 0x5a, sizeof room.bytes - size);
        rf_status status = structs[i].call(&room);
        CHECK(!status, "%s of %zu bytes: %s", structs[i].type, size, rf_last_error());
        CHECK(room.size == size, "%s: the size became %zu", structs[i].type, room.size);
        for (size_t at = size; at < sizeof room.bytes; at++)
            CHECK(room.bytes[at] == 0x5a, "%s of %zu bytes: byte %zu was written", structs[i].type, size, at);
    }
}

static void longer(size_t i) {
    for (size_t size = structs[i].size; size <= structs[i].size + 64; size += sizeof(size_t)) {
        lay_out(i, size, 0);
        CHECK(!structs[i].call(&room), "%s of %zu bytes: %s", structs[i].type, size, rf_last_error());
        if (size == structs[i].size) continue;
        for (size_t at = structs[i].size; at < size; at += 7) {
            char known[80], came[80];
            lay_out(i, size, 0);
            room.bytes[at] = 1;
            rf_status status = structs[i].call(&room);
            snprintf(came, sizeof came, "%s is %zu:", structs[i].named, size);
            snprintf(known, sizeof known, "knows %zu bytes of %s", structs[i].size, structs[i].type);
            CHECK(status == RF_INVALID_ARGUMENT && strstr(rf_last_error(), came) && strstr(rf_last_error(), known),
                "%s of %zu bytes, byte %zu: %d, %s", structs[i].type, size, at, status, rf_last_error());
        }
    }
}

static void impossible(size_t i) {
    static const size_t sizes[] = {
        0, 1, sizeof(size_t) - 1, sizeof(size_t) + 1, sizeof(size_t) + 4, 1 << 20, (size_t)-8, (size_t)-1};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        char came[120];
        lay_out(i, sizes[n], 0);
        rf_status status = structs[i].call(&room);
        snprintf(came, sizeof came, "%s is %zu; expected sizeof(%s), %zu", structs[i].named, sizes[n], structs[i].type,
            structs[i].size);
        CHECK(status == RF_INVALID_ARGUMENT && strstr(rf_last_error(), came), "%s of %zu bytes: %d, %s",
            structs[i].type, sizes[n], status, rf_last_error());
    }
}

/* Elements of an array lie as far apart as their own header says. */
static void arrays(void) {
    struct {
        rf_vector known;
        size_t more[3];
    } longer_ones[2] = {
        {.known = {.size = sizeof *longer_ones, .name = "a", .data = v, .length = 2}},
        {.known = {.size = sizeof *longer_ones, .name = "b", .data = b, .length = 2}},
    };
    struct {
        size_t size;
        const char *name;
        const void *data;
        int64_t length;
    } shorter_ones[2] = {{sizeof *shorter_ones, "a", v, 2}, {sizeof *shorter_ones, "b", b, 2}};
    const rf_vector *both[] = {&longer_ones[0].known, (const rf_vector *)(const void *)shorter_ones};
    for (int i = 0; i < 2; i++) {
        rf_model *model = created("linear(3, 2) | mul(@a) | add(@b) | sum");
        float sum = 0;
        OK(rf_model_load_weights(model, w, NULL, both[i], 2));
        OK(rf_model_forward(model, x, 1, &sum));
        CHECK(sum == 1263, "the sum is %g", (double)sum);
        rf_model_destroy(model);
    }
    rf_model *model = created("linear(3, 2) | mul(@a) | add(@b) | sum");
    longer_ones[1].known.size = sizeof(rf_vector);
    CHECK(rf_model_load_weights(model, w, NULL, both[0], 2) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "vectors[1].size is 40; expected that of vectors[0], 64"),
        "%s", rf_last_error());
    longer_ones[1].known.size = sizeof *longer_ones, longer_ones[1].more[2] = 1;
    CHECK(rf_model_load_weights(model, w, NULL, both[0], 2) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "vectors[1].size is 64: "),
        "%s", rf_last_error());
    rf_model_destroy(model);
}

int main(void) {
    CHECK(make_file(), "%s cannot be made", path);
    for (size_t i = 0; i < sizeof structs / sizeof *structs; i++) {
        shorter(i);
        longer(i);
        impossible(i);
    }
    arrays();
    unlink(path);
    return failures != 0;
}
