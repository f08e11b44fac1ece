/* SPDX-License-Identifier: MIT */
/* Weight files. The first byte says what the rest of the input is: a whole safetensors file; a header, which gets its
 * length in front and a few values behind; an index, beside two good shards. Promises: a status with a sentence, or
 * tensors of which every byte can be read; a model loads what fits it. */
#include "fuzz.h"

#include <sys/stat.h>
#include <unistd.h>

static char folder[64], file_path[96], index_path[96];

static void write_file(const char *path, const void *front, size_t front_size, const void *rest, size_t rest_size) {
    FILE *out = fopen(path, "wb");
    REQUIRE(out && fwrite(front, 1, front_size, out) == front_size && fwrite(rest, 1, rest_size, out) == rest_size,
        "%s cannot be written", path);
    REQUIRE(!fclose(out), "%s cannot be written", path);
}

static void remove_files(void) {
    char shard[112];
    unlink(file_path), unlink(index_path);
    for (int i = 0; i < 2; i++) snprintf(shard, sizeof shard, "%s/%c", folder, 'a' + i), unlink(shard);
    rmdir(folder);
}

static void prepare(void) {
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]}}";
    uint8_t front[8 + sizeof header - 1] = {sizeof header - 1};
    char shard[112];
    const float values[6] = {1, 2, 3, 4, 5, 6};
    snprintf(folder, sizeof folder, "%s/rowfold-fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    REQUIRE(mkdtemp(folder), "%s cannot be made", folder);
    snprintf(file_path, sizeof file_path, "%s/file", folder);
    snprintf(index_path, sizeof index_path, "%s/index.json", folder);
    memcpy(front + 8, header, sizeof header - 1);
    for (int i = 0; i < 2; i++) {
        snprintf(shard, sizeof shard, "%s/%c", folder, 'a' + i);
        write_file(shard, front, sizeof front, values, sizeof values);
    }
    atexit(remove_files);
}

static uint8_t sum; /* so that no compiler leaves the reads out */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t zeros[64];
    if (!*folder) prepare();
    if (!size) return 0;
    const uint8_t how = *data++ % 3;
    const char *path = how == 2 ? index_path : file_path;
    size--;
    if (how == 1) {
        uint8_t front[8];
        for (int i = 0; i < 8; i++) front[i] = (uint8_t)((uint64_t)size >> 8 * i);
        uint8_t *whole = malloc(size + sizeof zeros);
        memcpy(whole, data, size);
        memcpy(whole + size, zeros, sizeof zeros);
        write_file(path, front, sizeof front, whole, size + sizeof zeros);
        free(whole);
    } else {
        write_file(path, data, size, NULL, 0);
    }

    rf_file *file = NULL;
    rf_status status = rf_file_open(&file, path);
    REQUIRE(status ? !file && *rf_last_error() : file != NULL, "status %d", (int)status);
    const size_t count = status ? 0 : rf_file_tensor_count(file);
    for (size_t i = 0; i < count; i++) {
        rf_tensor_info info = {.size = sizeof info}, found = {.size = sizeof found};
        status = rf_file_tensor(file, i, &info);
        REQUIRE(!status, "%s", rf_last_error());
        for (int64_t at = 0; at < info.bytes; at++) sum += ((const uint8_t *)info.data)[at];
        REQUIRE(strlen(info.name) == 0 || !rf_file_find(file, info.name, &found), "%s", rf_last_error());
    }
    rf_file_close(file);

    rf_model *model = NULL;
    const rf_config config = {
        .size = sizeof config, .chain = "linear(2, 2) | sum", .backend = "reference", .threads = 1};
    const rf_file_names names = {.size = sizeof names, .weight = "w", .bias = "b"};
    const float x[2] = {1, 10};
    float y[1];
    REQUIRE(!rf_model_create(&model, &config), "%s", rf_last_error());
    status = rf_model_load_file(model, path, &names);
    if (status)
        REQUIRE(*rf_last_error() && rf_model_forward(model, x, 1, y) == RF_NOT_LOADED, "status %d", (int)status);
    else REQUIRE(!rf_model_forward(model, x, 1, y), "%s", rf_last_error());
    rf_model_destroy(model);
    return 0;
}
