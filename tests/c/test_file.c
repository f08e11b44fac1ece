/* SPDX-License-Identifier: MIT */
/* The reader of weight files, against files written here byte by byte: every error names file, tensor and reason. */
#include <rowfold.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static char folder[] = "/tmp/rowfold-file-XXXXXX";

static char *path_of(const char *name) {
    static char path[4][256];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static void write_bytes(const char *name, const void *a, size_t na, const void *b, size_t nb) {
    FILE *f = fopen(path_of(name), "wb");
    if (!f || fwrite(a, 1, na, f) != na || fwrite(b, 1, nb, f) != nb || fclose(f)) {
        perror(name);
        exit(1);
    }
}

/* A file with this header and `bytes` bytes of data behind it: 0, 1, 2 ... */
static void write_file(const char *name, const char *header, size_t header_length, size_t bytes) {
    unsigned char head[4096], data[4096];
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)((uint64_t)header_length >> (8 * i));
    memcpy(head + 8, header, strlen(header));
    for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)i;
    write_bytes(name, head, 8 + strlen(header), data, bytes);
}

#define F32(name, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const struct {
    const char *label, *header;
    size_t data;
    rf_status status;
    const char *says;
} files[] = {
    {"empty header object", "{}", 0, RF_OK, ""},
    {"one tensor", "{" F32("w", "[2,3]", 0, 24) "}", 24, RF_OK, ""},
    {"padded with spaces", "{" F32("w", "[2,3]", 0, 24) "}   ", 24, RF_OK, ""},
    {"scalar and empty tensors", "{" F32("s", "[]", 0, 4) "," F32("e", "[0,7]", 4, 4) "}", 4, RF_OK, ""},
    {"empty in front of another", "{" F32("s", "[]", 0, 4) "," F32("e", "[0,7]", 0, 0) "}", 4, RF_OK, ""},
    {"metadata", "{\"__metadata__\":{\"format\":\"pt\"}," F32("w", "[1]", 0, 4) "}", 4, RF_OK, ""},
    {"types that no model takes",
        "{\"a\":{\"dtype\":\"F8_E4M3FNUZ\",\"shape\":[3],\"data_offsets\":[0,3]},"
        "\"b\":{\"dtype\":\"F8_E5M2FNUZ\",\"shape\":[1],\"data_offsets\":[3,4]}}",
        4, RF_OK, ""},
    {"order of names is free", "{" F32("b", "[1]", 4, 8) "," F32("a", "[1]", 0, 4) "}", 8, RF_OK, ""},
    {"not JSON", "{\"w\":", 0, RF_INVALID_FILE, "not valid JSON"},
    {"not an object", "[1]", 0, RF_INVALID_FILE, "does not begin with '{'"},
    {"leading space", " {}", 0, RF_INVALID_FILE, "does not begin with '{'"},
    {"text behind the object", "{} x", 0, RF_INVALID_FILE, "not valid JSON"},
    {"not UTF-8", "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, RF_INVALID_FILE,
        "not valid JSON"},
    {"duplicate key", "{" F32("w", "[1]", 0, 4) "," F32("w", "[1]", 4, 8) "}", 8, RF_INVALID_FILE, "uplicate"},
    {"duplicate inner key", "{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
        RF_INVALID_FILE, "uplicate"},
    {"unknown inner key", "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
        RF_INVALID_FILE, "unknown key"},
    {"metadata not strings", "{\"__metadata__\":{\"format\":1}}", 0, RF_INVALID_FILE, "__metadata__"},
    {"metadata not an object", "{\"__metadata__\":[]}", 0, RF_INVALID_FILE, "__metadata__"},
    {"entry not an object", "{\"w\":3}", 0, RF_INVALID_FILE, "\"w\": its entry is not an object"},
    {"no dtype", "{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, RF_INVALID_FILE, "dtype is missing"},
    {"unknown dtype", "{\"w\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, RF_INVALID_FILE,
        "dtype \"F33\""},
    {"no shape", "{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, RF_INVALID_FILE, "shape is missing"},
    {"negative extent", "{" F32("w", "[-1]", 0, 4) "}", 4, RF_INVALID_FILE, "whole numbers"},
    {"fractional extent", "{" F32("w", "[1.5]", 0, 4) "}", 4, RF_INVALID_FILE, "whole numbers"},
    {"overflowing shape", "{" F32("w", "[4611686018427387904,4611686018427387904]", 0, 4) "}", 4, RF_INVALID_FILE,
        "overflows"},
    {"huge integer", "{" F32("w", "[99999999999999999999]", 0, 4) "}", 4, RF_INVALID_FILE, "not valid JSON"},
    {"too many dimensions", "{" F32("w", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, RF_INVALID_FILE, "more than 8"},
    {"no offsets", "{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, RF_INVALID_FILE, "data_offsets is not a pair"},
    {"three offsets", "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, RF_INVALID_FILE,
        "data_offsets is not a pair"},
    {"reversed offsets", "{" F32("w", "[1]", 4, 0) "}", 4, RF_INVALID_FILE, "reversed"},
    {"negative offsets", "{" F32("w", "[1]", -4, 0) "}", 4, RF_INVALID_FILE, "negative"},
    {"beyond the end", "{" F32("w", "[2]", 0, 8) "}", 4, RF_INVALID_FILE, "beyond the end"},
    {"size does not fit the shape", "{" F32("w", "[2]", 0, 4) "}", 4, RF_INVALID_FILE,
        "do not make the number of bytes"},
    {"half a byte", "{\"w\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, RF_INVALID_FILE,
        "do not make the number of bytes"},
    {"offsets that are no numbers", "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,\"4\"]}}", 4,
        RF_INVALID_FILE, "data_offsets is not a pair"},
    {"offsets that are no list", "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":4}}", 4, RF_INVALID_FILE,
        "data_offsets is not a pair"},
    {"a shape that is no list", "{\"w\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, RF_INVALID_FILE,
        "shape is missing or not an array"},
    {"a NUL in a name", "{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, RF_INVALID_FILE,
        "not valid JSON"},
    {"gap", "{" F32("a", "[1]", 0, 4) "," F32("b", "[1]", 8, 12) "}", 12, RF_INVALID_FILE, "\"b\": there is a gap"},
    {"gap in front", "{" F32("a", "[1]", 4, 8) "}", 8, RF_INVALID_FILE, "\"a\": there is a gap"},
    {"overlap", "{" F32("a", "[2]", 0, 8) "," F32("b", "[2]", 4, 12) "}", 12, RF_INVALID_FILE,
        "\"b\": its bytes overlap"},
    {"data left over", "{" F32("a", "[1]", 0, 4) "}", 5, RF_INVALID_FILE, "goes on behind"},
};

static void open_as(const char *label, const char *path, rf_status status, const char *says) {
    rf_file *poison = (rf_file *)(uintptr_t)0x1234, *file = poison;
    rf_status got = rf_file_open(&file, path);
    CHECK(got == status, "%s: status %d, expected %d (%s)", label, got, status, rf_last_error());
    if (got) {
        CHECK(file == poison, "%s: the handle was written on failure", label);
        CHECK(strstr(rf_last_error(), says) && strstr(rf_last_error(), path),
            "%s: \"%s\" does not say \"%s\" and the path", label, rf_last_error(), says);
    } else {
        rf_file_close(file);
    }
}

static void headers(void) {
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        write_file("header", files[i].header, strlen(files[i].header), files[i].data);
        open_as(files[i].label, path_of("header"), files[i].status, files[i].says);
    }
    write_bytes("short", "1234567", 7, "", 0);
    open_as("7 bytes", path_of("short"), RF_INVALID_FILE, "shorter than the 8 bytes");
    write_file("long", "{}", 3, 0);
    open_as("header longer than the file", path_of("long"), RF_INVALID_FILE, "beyond the end of the file");
    write_file("huge", "{}", (size_t)1 << 40, 0);
    open_as("header over the format's cap", path_of("huge"), RF_INVALID_FILE, "the format allows");
    write_file("zero", "{}", 0, 0);
    open_as("no header", path_of("zero"), RF_INVALID_FILE, "does not begin with '{'");
    open_as("missing file", path_of("missing"), RF_IO_ERROR, "cannot be opened: No such file");
    rf_file *file = NULL;
    CHECK(rf_file_open(NULL, "x") == RF_INVALID_ARGUMENT && rf_file_open(&file, NULL) == RF_INVALID_ARGUMENT, "NULL");
    rf_file_close(NULL);
}

/* The longest header that the format allows, and one byte more. Spaces of which all but the ends lie on no disk. */
static void longest_header(void) {
    enum { MOST = 100000000 };
    for (int beyond = 0; beyond < 2; beyond++) {
        char *text = malloc(MOST + 1);
        if (!text) {
            CHECK(0, "no memory");
            return;
        }
        memset(text, ' ', MOST + 1);
        text[0] = '{', text[MOST - 1 + beyond] = '}';
        char head[8];
        for (int i = 0; i < 8; i++) head[i] = (char)(((uint64_t)MOST + (uint64_t)beyond) >> (8 * i));
        write_bytes("longest", head, sizeof head, text, (size_t)MOST + (size_t)beyond);
        free(text);
        if (beyond) open_as("a byte over the cap", path_of("longest"), RF_INVALID_FILE, "would take 100000001 bytes");
        else open_as("a header as long as the cap", path_of("longest"), RF_OK, "");
    }
    unlink(path_of("longest"));
}

/* What a path may lead to that is no file of weights, alone and as an index. */
static void not_files(void) {
    open_as("a folder", folder, RF_IO_ERROR, "not a regular file");
    CHECK(!mkdir(path_of("folder.json"), 0700), "mkdir");
    open_as("a folder as an index", path_of("folder.json"), RF_IO_ERROR, "not a regular file");
    rmdir(path_of("folder.json"));
    /* Opening one to read waits for a writer, unless it is asked not to. */
    CHECK(!mkfifo(path_of("pipe"), 0600) && !mkfifo(path_of("pipe.json"), 0600), "mkfifo");
    open_as("a pipe", path_of("pipe"), RF_IO_ERROR, "not a regular file");
    open_as("a pipe as an index", path_of("pipe.json"), RF_IO_ERROR, "not a regular file");
    unlink(path_of("pipe")), unlink(path_of("pipe.json"));
    open_as("a device", "/dev/null", RF_IO_ERROR, "not a regular file");
    write_bytes("empty", "", 0, "", 0);
    open_as("an empty file", path_of("empty"), RF_INVALID_FILE, "shorter than the 8 bytes");
    if (!access("/proc/self/status", R_OK))
        open_as("a file whose size the system gives as 0", "/proc/self/status", RF_INVALID_FILE,
            "shorter than the 8 bytes");
    CHECK(!symlink(path_of("nowhere"), path_of("link")), "symlink");
    open_as("a link to nothing", path_of("link"), RF_IO_ERROR, "cannot be opened: No such file");
    unlink(path_of("link"));
    CHECK(!chmod(path_of("empty"), 0), "chmod");
    if (geteuid()) open_as("no permission", path_of("empty"), RF_IO_ERROR, "cannot be opened: Permission denied");
    else puts("a file without permission: skipped, root may read everything (test_file_faults has it)");
    unlink(path_of("empty"));
}

static void tensors(void) {
    const char *header =
        "{" F32("w", "[2,3]", 0, 24) ",\"i\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[24,32]}}";
    write_file("tensors", header, strlen(header), 32);
    rf_file *file = NULL;
    rf_tensor_info info = {.size = sizeof info};
    CHECK(!rf_file_open(&file, path_of("tensors")), "%s", rf_last_error());
    CHECK(rf_file_tensor_count(file) == 2, "count");
    CHECK(!rf_file_find(file, "w", &info), "%s", rf_last_error());
    CHECK(
        info.dtype == RF_FLOAT32 && info.num_dims == 2 && info.shape[0] == 2 && info.shape[1] == 3 && info.bytes == 24,
        "description");
    CHECK(((const unsigned char *)info.data)[5] == 5, "data");
    CHECK(info.offset == (int64_t)(8 + strlen(header)), "offset %lld", (long long)info.offset);
    CHECK(!rf_file_find(file, "i", &info) && info.dtype == 0 && !strcmp(info.type_name, "I64"), "integer tensor");
    CHECK(rf_file_find(file, "v", &info) == RF_INVALID_ARGUMENT && strstr(rf_last_error(), "\"v\""), "unknown name");
    CHECK(rf_file_tensor(file, 2, &info) == RF_INVALID_ARGUMENT, "index");
    info.size = 3;
    CHECK(rf_file_tensor(file, 0, &info) == RF_INVALID_ARGUMENT, "size");
    info.size = sizeof info;
    CHECK(!truncate(path_of("tensors"), 100), "truncate");
    CHECK(rf_file_find(file, "w", &info) == RF_IO_ERROR && strstr(rf_last_error(), "shrank"), "a shrunken file");
    rf_file_close(file);
}

static rf_status load(const char *chain, const char *path, rf_file_names *names, float *y) {
    rf_model *model = NULL;
    rf_config config = {.size = sizeof config, .chain = chain};
    const float x[3] = {1, 10, 100};
    rf_status status = rf_model_create(&model, &config);
    names->size = sizeof *names;
    if (!status) status = rf_model_load_file(model, path, names);
    if (!status) status = rf_model_forward(model, x, 1, y);
    rf_model_destroy(model);
    return status;
}

/* Two models from one open file, which is there for a third. */
static void loading_from_an_open_file(void) {
    const char *header = "{" F32("w", "[1,2]", 0, 8) "," F32("b", "[1]", 8, 12) "}";
    unsigned char head[200] = {(unsigned char)strlen(header)};
    memcpy(head + 8, header, strlen(header));
    const float data[3] = {2, 3, 100}, x[2] = {1, 10};
    write_bytes("open", head, 8 + strlen(header), data, sizeof data);
    rf_file *file = NULL;
    CHECK(!rf_file_open(&file, path_of("open")), "%s", rf_last_error());
    rf_file_names names = {.size = sizeof names, .weight = "w"};
    for (int i = 0; i < 2; i++) {
        rf_model *model = NULL;
        rf_config config = {.size = sizeof config, .chain = "linear(2, 1) | neg"};
        float y = 0;
        CHECK(!rf_model_create(&model, &config), "%s", rf_last_error());
        CHECK(rf_model_load_open_file(NULL, file, &names) == RF_INVALID_ARGUMENT &&
                strstr(rf_last_error(), "model is NULL"),
            "%s", rf_last_error());
        CHECK(rf_model_load_open_file(model, NULL, &names) == RF_INVALID_ARGUMENT &&
                strstr(rf_last_error(), "file is NULL"),
            "%s", rf_last_error());
        CHECK(rf_model_load_open_file(model, file, NULL) == RF_INVALID_ARGUMENT &&
                strstr(rf_last_error(), "names is NULL"),
            "%s", rf_last_error());
        CHECK(!rf_model_load_open_file(model, file, &names), "%s", rf_last_error());
        CHECK(!rf_model_forward(model, x, 1, &y) && y == (i ? -132 : -32), "y is %g", (double)y);
        rf_model_destroy(model);
        names.bias = "b";
    }
    CHECK(rf_file_tensor_count(file) == 2, "the file is closed");
    rf_file_close(file);
}

/* W = [[1, 2, 3], [4, 5, 6]], b = [7, 8], v = [1, 10], with the header sized so that W is not aligned. */
static void loading(void) {
    const float data[10] = {1, 2, 3, 4, 5, 6, 7, 8, 1, 10};
    char header[512];
    for (int pad = 0; pad < 4; pad++) {
        int n = snprintf(header, sizeof header,
            "{" F32("w", "[2,3]", 0, 24) "," F32("b", "[2]", 24, 32) "," F32("v", "[2]", 32, 40) "}%*s", pad, "");
        unsigned char head[600] = {0};
        head[0] = (unsigned char)n, head[1] = (unsigned char)(n >> 8);
        memcpy(head + 8, header, (size_t)n);
        write_bytes("model", head, 8 + (size_t)n, data, sizeof data);
        float y = -1;
        rf_file_vector vector = {sizeof vector, "scale", "v"};
        rf_file_names names = {.weight = "w", .bias = "b", .vectors = &vector, .num_vectors = 1};
        CHECK(!load("linear(3, 2) | mul(@scale) | sum", path_of("model"), &names, &y), "%s", rf_last_error());
        CHECK(y == 321 + 7 + 10 * (654 + 8), "y is %g", (double)y);
        names.bias = NULL;
        CHECK(!load("linear(3, 2) | mul(@scale) | sum", path_of("model"), &names, &y) && y == 321 + 10 * 654,
            "without bias y is %g", (double)y);
    }
    float y = -1;
    rf_file_names names = {.weight = "b"};
    CHECK(load("linear(3, 2) | sum", path_of("model"), &names, &y) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "expected (2, 3)"),
        "%s", rf_last_error());
    names.weight = "w", names.bias = "w";
    CHECK(load("linear(3, 2) | sum", path_of("model"), &names, &y) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "expected (2)"),
        "%s", rf_last_error());
    names.bias = NULL, names.weight = NULL;
    CHECK(load("linear(3, 2) | sum", path_of("model"), &names, &y) == RF_INVALID_ARGUMENT, "no weight name");
    names.weight = "w";
    CHECK(load("linear(3, 2) | mul(@scale) | sum", path_of("model"), &names, &y) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "scale"),
        "a missing vector");
    static const struct {
        const char *label, *chain;
        rf_file_vector vector;
        size_t num_vectors;
        const char *says;
    } vectors[] = {
        {"no such tensor", "linear(3, 2) | mul(@scale) | sum", {sizeof(rf_file_vector), "scale", "u"}, 1,
            "no tensor \"u\""},
        {"a tensor of another shape", "linear(3, 2) | mul(@scale) | sum", {sizeof(rf_file_vector), "scale", "w"}, 1,
            "has shape (2, 3); expected (2)"},
        {"no name of a vector", "linear(3, 2) | mul(@scale) | sum", {sizeof(rf_file_vector), NULL, "v"}, 1,
            "names.vectors[0] has a NULL name"},
        {"no name of a tensor", "linear(3, 2) | mul(@scale) | sum", {sizeof(rf_file_vector), "scale", NULL}, 1,
            "names.vectors[0] has a NULL name"},
        {"a vector too many", "linear(3, 2) | sum", {sizeof(rf_file_vector), "scale", "v"}, 1, "scale"},
        {"more vectors than a chain has", "linear(3, 2) | sum", {sizeof(rf_file_vector), "scale", "v"}, RF_MAX_OPS + 1,
            "names.num_vectors is 65"},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        names.vectors = &vectors[i].vector, names.num_vectors = vectors[i].num_vectors;
        CHECK(load(vectors[i].chain, path_of("model"), &names, &y) == RF_INVALID_ARGUMENT &&
                strstr(rf_last_error(), vectors[i].says),
            "%s: %s", vectors[i].label, rf_last_error());
    }
    names.vectors = NULL, names.num_vectors = 1;
    CHECK(load("linear(3, 2) | sum", path_of("model"), &names, &y) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "names.vectors is NULL"),
        "%s", rf_last_error());
    CHECK(y == -1, "y was written on failure");
}

/* Models made from the files of loading() in one call: what config and chain leave open is the tensor's. */
static void create_from_file(void) {
    const float x[3] = {1, 10, 100};
    rf_file_names names = {.size = sizeof names, .weight = "w", .bias = "b"};
    rf_op ops[] = {{.kind = RF_OP_LINEAR}, {.kind = RF_OP_SUM}};
    const rf_config configs[] = {
        {.size = sizeof *configs, .chain = "linear | sum"},
        {.size = sizeof *configs, .chain = "linear(3, 2) | sum"},
        {.size = sizeof *configs, .chain = "linear | sum", .in_features = 3},
        {.size = sizeof *configs, .ops = ops, .num_ops = 2},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        rf_model *model = NULL;
        float y = -1;
        CHECK(!rf_model_create_from_file(&model, &configs[i], path_of("model"), &names), "%zu: %s", i, rf_last_error());
        CHECK(!rf_model_forward(model, x, 1, &y) && y == 321 + 7 + 654 + 8, "%zu: y is %g", i, (double)y);
        rf_model_destroy(model);
    }
    rf_config half = {.size = sizeof half, .chain = "linear | max"};
    rf_model *model = NULL;
    rf_model_info info = {.size = sizeof info};
    names.weight = "h", names.bias = NULL;
    CHECK(!rf_model_create_from_file(&model, &half, path_of("types"), &names) && !rf_model_get_info(model, &info) &&
            info.weight_dtype == RF_FLOAT16,
        "%s", rf_last_error());
    rf_model_destroy(model);
    static const struct {
        const char *chain, *file, *weight;
        rf_dtype dtype;
        rf_status status;
        const char *says;
    } wrong[] = {
        {"linear(5, 2) | sum", "model", "w", RF_DTYPE_DEFAULT, RF_INVALID_ARGUMENT,
            "has shape (2, 3); expected (2, 5)"},
        {"linear | sum", "model", "b", RF_DTYPE_DEFAULT, RF_INVALID_ARGUMENT, "has 1 dimensions; expected 2"},
        {"linear | sum", "model", "x", RF_DTYPE_DEFAULT, RF_INVALID_ARGUMENT, "there is no tensor \"x\" among its 3"},
        {"linear | sum", "types", "i", RF_DTYPE_DEFAULT, RF_INVALID_ARGUMENT, "is I32; expected a floating-point type"},
        {"linear | sum", "types", "h", RF_FLOAT32, RF_INVALID_ARGUMENT, "was created for float32 weights"},
        {"linear | sun", "model", "w", RF_DTYPE_DEFAULT, RF_INVALID_CHAIN, "sun"},
        {"linear | sum", "missing", "w", RF_DTYPE_DEFAULT, RF_IO_ERROR, "missing"},
        {NULL, "model", "w", RF_DTYPE_DEFAULT, RF_INVALID_ARGUMENT, "config.chain and config.ops"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        rf_config config = {.size = sizeof config, .chain = wrong[i].chain, .weight_dtype = wrong[i].dtype};
        rf_model *untouched = NULL;
        names.weight = wrong[i].weight;
        CHECK(rf_model_create_from_file(&untouched, &config, path_of(wrong[i].file), &names) == wrong[i].status &&
                strstr(rf_last_error(), wrong[i].says) && !untouched,
            "%s of %s: %s", wrong[i].weight, wrong[i].file, rf_last_error());
    }
    names.weight = "w";
    CHECK(rf_model_create_from_file(NULL, &half, path_of("model"), &names) == RF_INVALID_ARGUMENT, "no model");
    CHECK(rf_model_create_from_file(&model, NULL, path_of("model"), &names) == RF_INVALID_ARGUMENT, "no config");
    CHECK(rf_model_create_from_file(&model, &half, NULL, &names) == RF_INVALID_ARGUMENT, "no path");
    CHECK(rf_model_create_from_file(&model, &half, path_of("model"), NULL) == RF_INVALID_ARGUMENT, "no names");
}

/* A type that no model takes, one that this model does not take, and arguments that are none. */
static void wrong_loads(void) {
    const char *header =
        "{\"i\":{\"dtype\":\"I32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"h\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[24,36]}}";
    write_file("types", header, strlen(header), 36);
    float y = -1;
    rf_file_names names = {.weight = "i"};
    CHECK(load("linear(3, 2) | sum", path_of("types"), &names, &y) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "is I32; expected a floating-point type"),
        "%s", rf_last_error());
    names.weight = "h";
    CHECK(load("linear(3, 2) | sum", path_of("types"), &names, &y) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "is float16; the model was created for float32"),
        "%s", rf_last_error());
    CHECK(load("linear(3, 2) | sum", path_of("missing"), &names, &y) == RF_IO_ERROR, "%s", rf_last_error());
    CHECK(y == -1, "y was written on failure");
    rf_model *model = NULL;
    rf_config config = {.size = sizeof config, .chain = "linear(3, 2) | sum"};
    CHECK(!rf_model_create(&model, &config), "%s", rf_last_error());
    names.size = sizeof names - 1;
    CHECK(rf_model_load_file(model, path_of("types"), &names) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "names.size"),
        "%s", rf_last_error());
    CHECK(rf_model_load_file(model, path_of("types"), NULL) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "names is NULL"),
        "%s", rf_last_error());
    CHECK(rf_model_load_file(NULL, path_of("types"), &names) == RF_INVALID_ARGUMENT &&
            strstr(rf_last_error(), "model is NULL"),
        "%s", rf_last_error());
    names.size = sizeof names;
    CHECK(rf_model_load_file(model, NULL, &names) == RF_INVALID_ARGUMENT && strstr(rf_last_error(), "path is NULL"),
        "%s", rf_last_error());
    rf_model_destroy(model);

    rf_file *file = NULL;
    rf_tensor_info info = {.size = sizeof info};
    CHECK(!rf_file_open(&file, path_of("types")), "%s", rf_last_error());
    CHECK(!rf_file_tensor(file, 1, &info) && !strcmp(info.name, "h") && info.dtype == RF_FLOAT16, "by index");
    CHECK(rf_file_tensor(NULL, 0, &info) == RF_INVALID_ARGUMENT && rf_file_tensor(file, 0, NULL) == RF_INVALID_ARGUMENT,
        "NULL");
    CHECK(rf_file_find(NULL, "h", &info) == RF_INVALID_ARGUMENT &&
            rf_file_find(file, NULL, &info) == RF_INVALID_ARGUMENT &&
            rf_file_find(file, "h", NULL) == RF_INVALID_ARGUMENT,
        "NULL");
    CHECK(rf_file_tensor_count(NULL) == 0, "count of NULL");
    rf_file_close(file);
}

static void shards(void) {
    const char *first = "{" F32("w", "[2,3]", 0, 24) "}", *second = "{" F32("b", "[2]", 0, 8) "}";
    const char *both = "{" F32("b", "[2]", 24, 32) "," F32("w", "[2,3]", 0, 24) "}";
    write_file("s1", first, strlen(first), 24);
    write_file("s2", second, strlen(second), 8);
    write_file("s3", both, strlen(both), 32);
    write_bytes("s4", "1234567", 7, "", 0);
    static const struct {
        const char *label, *text;
        rf_status status;
        const char *says;
    } indexes[] = {
        {"two shards", "{\"metadata\":{},\"weight_map\":{\"w\":\"s1\",\"b\":\"s2\"}}", RF_OK, ""},
        {"one shard of two", "{\"weight_map\":{\"w\":\"s3\",\"b\":\"s3\"}}", RF_OK, ""},
        {"no such shard", "{\"weight_map\":{\"w\":\"s9\"}}", RF_IO_ERROR, "s9: cannot be opened"},
        {"a shard that is broken", "{\"weight_map\":{\"w\":\"s1\",\"b\":\"s4\"}}", RF_INVALID_FILE, "s4: shorter"},
        {"no name", "{\"weight_map\":{\"w\":\"\"}}", RF_INVALID_FILE, "plain name"},
        {"the folder itself", "{\"weight_map\":{\"w\":\".\"}}", RF_INVALID_FILE, "plain name"},
        {"the folder above", "{\"weight_map\":{\"w\":\"..\"}}", RF_INVALID_FILE, "plain name"},
        {"an array", "[]", RF_INVALID_FILE, "weight_map is missing"},
        {"a map that is none", "{\"weight_map\":[]}", RF_INVALID_FILE, "weight_map is missing or not an object"},
        {"not JSON", "{\"weight_map\":", RF_INVALID_FILE, "line 1"},
        {"nothing", "", RF_INVALID_FILE, "line 1"},
        {"not in its shard", "{\"weight_map\":{\"w\":\"s2\"}}", RF_INVALID_FILE, "\"w\""},
        {"leads elsewhere", "{\"weight_map\":{\"w\":\"../s1\"}}", RF_INVALID_FILE, "plain name"},
        {"no map", "{}", RF_INVALID_FILE, "weight_map"},
        {"not a string", "{\"weight_map\":{\"w\":1}}", RF_INVALID_FILE, "not a string"},
        {"twice", "{\"weight_map\":{\"w\":\"s1\",\"w\":\"s1\"}}", RF_INVALID_FILE, "uplicate"},
    };
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        write_bytes("index.json", indexes[i].text, strlen(indexes[i].text), "", 0);
        rf_file *file = NULL;
        rf_status got = rf_file_open(&file, path_of("index.json"));
        CHECK(got == indexes[i].status && (!got || strstr(rf_last_error(), indexes[i].says)), "%s: %d, %s",
            indexes[i].label, got, rf_last_error());
        if (!got) CHECK(rf_file_tensor_count(file) == 2, "count");
        rf_file_close(file);
    }
    open_as("missing index", path_of("none.json"), RF_IO_ERROR, "cannot be opened: No such file");
    /* Relative paths, and one too short to end in ".json". */
    write_bytes("index.json", indexes[0].text, strlen(indexes[0].text), "", 0);
    CHECK(!chdir(folder), "chdir");
    open_as("an index beside the shards, without a folder", "index.json", RF_OK, "");
    open_as("a shard without a folder", "s1", RF_OK, "");
    CHECK(!chdir("/"), "chdir");
}

/* An index of many tensors in one shard takes little longer than the shard itself, and so does asking for each by name.
 */
static void many_tensors(void) {
    enum { MANY = 40000, ENTRY = 100 };
    char *text = malloc(MANY * ENTRY), *bytes = calloc(1, MANY);
    if (!text || !bytes) {
        CHECK(0, "no memory");
        return;
    }
    for (int i = 0; i < MANY; i++) bytes[i] = (char)i;
    size_t n = 9;
    text[8] = '{';
    for (int i = 0; i < MANY; i++)
        n += (size_t)sprintf(text + n, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
            i ? "," : "", i * 7919 % MANY, i, i + 1);
    text[n++] = '}';
    for (int i = 0; i < 8; i++) text[i] = (char)((n - 8) >> (8 * i));
    write_bytes("many", text, n, bytes, MANY);
    n = (size_t)sprintf(text, "{\"weight_map\":{");
    for (int i = 0; i < MANY; i++) n += (size_t)sprintf(text + n, "%s\"t%d\":\"many\"", i ? "," : "", i);
    n += (size_t)sprintf(text + n, "}}");
    write_bytes("many.json", text, n, "", 0);
    free(text), free(bytes);
    rf_file *file = NULL;
    rf_tensor_info info = {.size = sizeof info};
    clock_t start = clock();
    CHECK(!rf_file_open(&file, path_of("many")), "%s", rf_last_error());
    clock_t alone = clock() - start;
    rf_file_close(file);
    start = clock();
    CHECK(!rf_file_open(&file, path_of("many.json")), "%s", rf_last_error());
    clock_t with_index = clock() - start;
    start = clock();
    for (int i = 0; i < MANY; i++) {
        char name[20];
        sprintf(name, "t%d", i * 7919 % MANY);
        CHECK(!rf_file_find(file, name, &info) && ((const unsigned char *)info.data)[0] == (unsigned char)i &&
                info.bytes == 1,
            "%s is not there", name);
    }
    clock_t finding = clock() - start;
    rf_file_close(file);
    CHECK(with_index < 3 * alone && finding < 3 * alone, "the shard %g s, the index with it %g s, each name %g s",
        (double)alone / CLOCKS_PER_SEC, (double)with_index / CLOCKS_PER_SEC, (double)finding / CLOCKS_PER_SEC);
}

/* The reason is at a sentence's end, and comes through whatever the path's length. */
static void long_paths(void) {
    char name[8 * 200 + 1] = "";
    CHECK(!chdir(folder), "chdir");
    for (int i = 0; i < 8; i++) {
        char part[201];
        memset(part, 'a' + i, 199);
        part[199] = '/', part[200] = 0;
        strcat(name, part);
        CHECK(!mkdir(name, 0700), "mkdir");
    }
    char file[sizeof name + 10], index[sizeof name + 20];
    snprintf(file, sizeof file, "%sx", name);
    snprintf(index, sizeof index, "%sx.json", name);
    open_as("no such file at a long path", file, RF_IO_ERROR, "x: cannot be opened: No such file");
    for (int i = 0; i < 2; i++) {
        FILE *out = fopen(i ? index : file, "wb");
        CHECK(out && fputs(i ? "{\"weight_map\":{\"w\":\"x\"}}" : "short", out) >= 0 && !fclose(out), "%s", file);
    }
    open_as("a broken file at a long path", file, RF_INVALID_FILE, "x: shorter than the 8 bytes");
    rf_file *opened = NULL;
    CHECK(rf_file_open(&opened, index) == RF_INVALID_FILE && strstr(rf_last_error(), file) &&
            strstr(rf_last_error(), "x: shorter than the 8 bytes"),
        "%s", rf_last_error());
    unlink(file), unlink(index);
    for (size_t end = strlen(name); end; end -= 200) {
        name[end - 1] = 0;
        CHECK(!rmdir(name), "rmdir");
    }
    CHECK(!chdir("/"), "chdir");
}

/* Rows of a larger layer, of a file that aligns its tensors and of one that does not. */
static void ranges(void) {
    for (int skew = 0; skew < 2; skew++) {
        const char *header = skew ? "{" F32("w", "[4,2]", 0, 32) "," F32("b", "[4]", 32, 48) "} "
                                  : "{" F32("w", "[4,2]", 0, 32) "," F32("b", "[4]", 32, 48) "}";
        unsigned char head[300] = {(unsigned char)strlen(header)};
        memcpy(head + 8, header, strlen(header));
        const float data[12] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 20, 30, 40}, x[2] = {1, 100};
        write_bytes("ranges", head, 8 + strlen(header), data, sizeof data);
        for (int first = 0; first <= 2; first++) {
            rf_model *model = NULL;
            rf_config config = {.size = sizeof config, .chain = "linear(2, 2)"};
            rf_file_names names = {
                .size = sizeof names, .weight = "w", .bias = "b", .first_column = first, .total_columns = 4};
            float y[2] = {0};
            CHECK(!rf_model_create(&model, &config) && !rf_model_load_file(model, path_of("ranges"), &names) &&
                    !rf_model_forward(model, x, 1, y),
                "%s", rf_last_error());
            for (int j = 0; j < 2; j++) {
                const float right = data[2 * (first + j)] + 100 * data[2 * (first + j) + 1] + data[8 + first + j];
                CHECK(y[j] == right, "row %d: %g, not %g", first + j, y[j], right);
            }
            rf_model_destroy(model);
        }
        const struct {
            int64_t first, total;
            const char *says;
        } wrong[] = {{3, 4, "names.first_column is 3"}, {-1, 4, "names.first_column is -1"},
            {1, 0, "names.first_column is 1"}, {0, 1, "names.total_columns 1"}, {0, -4, "names.total_columns -4"},
            {INT64_MAX, INT64_MAX, "expected room"}, {0, 5, "has shape (4, 2); expected (5, 2)"},
            {0, 0, "has shape (4, 2); expected (2, 2)"}};
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            rf_model *model = NULL;
            rf_config config = {.size = sizeof config, .chain = "linear(2, 2)"};
            rf_file_names names = {
                .size = sizeof names, .weight = "w", .first_column = wrong[i].first, .total_columns = wrong[i].total};
            CHECK(!rf_model_create(&model, &config), "%s", rf_last_error());
            CHECK(rf_model_load_file(model, path_of("ranges"), &names) == RF_INVALID_ARGUMENT &&
                    strstr(rf_last_error(), wrong[i].says),
                "%s", rf_last_error());
            rf_model_destroy(model);
        }
    }
    unlink(path_of("ranges"));
}

int main(void) {
    if (!mkdtemp(folder)) return perror(folder), 1;
    headers();
    longest_header();
    not_files();
    tensors();
    loading();
    loading_from_an_open_file();
    ranges();
    wrong_loads();
    create_from_file();
    shards();
    many_tensors();
    long_paths();
    static const char *const made[] = {"header", "short", "long", "huge", "zero", "tensors", "model", "s1", "s2", "s3",
        "s4", "types", "index.json", "many", "many.json"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) unlink(path_of(made[i]));
    rmdir(folder);
    return failures != 0;
}
