/* SPDX-License-Identifier: MIT */
#include "safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

enum { MAX_HEADER = 100000000 }; /* bytes: the format's own cap */

/* The format's types. A model takes those with an rf_dtype; the others may stand in the same file. */
static const struct {
    const char *name;
    int bits;
    rf_dtype dtype;
} types[] = {
    {"F64", 64, RF_FLOAT64},
    {"F32", 32, RF_FLOAT32},
    {"F16", 16, RF_FLOAT16},
    {"BF16", 16, RF_BFLOAT16},
    {"I64", 64, 0},
    {"I32", 32, 0},
    {"I16", 16, 0},
    {"I8", 8, 0},
    {"U64", 64, 0},
    {"U32", 32, 0},
    {"U16", 16, 0},
    {"U8", 8, 0},
    {"BOOL", 8, 0},
    {"C64", 64, 0},
    {"F8_E4M3", 8, 0},
    {"F8_E5M2", 8, 0},
    {"F8_E8M0", 8, 0},
    {"F8_E4M3FNUZ", 8, 0},
    {"F8_E5M2FNUZ", 8, 0},
    {"F6_E2M3", 6, 0},
    {"F6_E3M2", 6, 0},
    {"F4", 4, 0},
};

static rf_status invalid(const rfi_safetensors *file, const char *tensor, const char *reason) {
    if (tensor) return rfi_error(RF_INVALID_FILE, "%s: tensor \"%.100s\": %s", file->map.path, tensor, reason);
    return rfi_error(RF_INVALID_FILE, "%s: %s", file->map.path, reason);
}

static rf_status read_type(const rfi_safetensors *file, json_t *entry, rfi_tensor *tensor, int *bits) {
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name) return invalid(file, tensor->name, "dtype is missing or not a string");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name)) {
            tensor->type_name = types[i].name;
            tensor->dtype = types[i].dtype;
            *bits = types[i].bits;
            return RF_OK;
        }
    return rfi_error(RF_INVALID_FILE, "%s: tensor \"%.100s\": dtype \"%.40s\" is not one of the format", file->map.path,
        tensor->name, name);
}

/* *bits goes in as those of one element and comes out as those of the tensor. */
static rf_status read_shape(const rfi_safetensors *file, json_t *entry, rfi_tensor *tensor, int64_t *bits) {
    json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) return invalid(file, tensor->name, "shape is missing or not an array");
    if (json_array_size(shape) > RF_MAX_DIMS) return invalid(file, tensor->name, "shape has more than 8 dimensions");
    tensor->num_dims = (int)json_array_size(shape);
    for (int d = 0; d < tensor->num_dims; d++) {
        json_t *extent = json_array_get(shape, (size_t)d);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return invalid(file, tensor->name, "shape holds something else than whole numbers from 0");
        tensor->shape[d] = json_integer_value(extent);
        if (__builtin_mul_overflow(*bits, tensor->shape[d], bits))
            return invalid(file, tensor->name, "shape overflows");
    }
    return RF_OK;
}

static rf_status read_offsets(
    const rfi_safetensors *file, json_t *entry, rfi_tensor *tensor, int64_t data, int64_t bits) {
    json_t *offsets = json_object_get(entry, "data_offsets");
    json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return invalid(file, tensor->name, "data_offsets is not a pair of whole numbers");
    json_int_t first = json_integer_value(begin), last = json_integer_value(end);
    if (first < 0 || last < first) return invalid(file, tensor->name, "data_offsets are negative or reversed");
    if (last > file->map.size - data) return invalid(file, tensor->name, "data_offsets lie beyond the end of the file");
    if (bits % 8 || bits / 8 != last - first)
        return invalid(file, tensor->name, "shape and dtype do not make the number of bytes that data_offsets say");
    tensor->begin = data + first;
    tensor->end = data + last;
    return RF_OK;
}

static rf_status read_tensor(
    const rfi_safetensors *file, const char *name, json_t *entry, int64_t data, rfi_tensor *tensor) {
    tensor->name = strdup(name);
    if (!tensor->name) return rfi_error(RF_OUT_OF_MEMORY, "%s: no memory for the list of tensors", file->map.path);
    if (!json_is_object(entry)) return invalid(file, name, "its entry is not an object");
    const char *key;
    json_t *value;
    json_object_foreach(entry, key, value) {
        if (strcmp(key, "dtype") && strcmp(key, "shape") && strcmp(key, "data_offsets"))
            return invalid(file, name, "its entry has an unknown key");
    }
    int element = 0;
    rf_status status = read_type(file, entry, tensor, &element);
    int64_t bits = element;
    if (!status) status = read_shape(file, entry, tensor, &bits);
    if (!status) status = read_offsets(file, entry, tensor, data, bits);
    return status;
}

static rf_status check_metadata(const rfi_safetensors *file, json_t *metadata) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) return invalid(file, NULL, "__metadata__ is not an object");
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value)) return invalid(file, NULL, "__metadata__ holds something else than strings");
    }
    return RF_OK;
}

static int by_offset(const void *a, const void *b) {
    const rfi_tensor *p = a, *q = b;
    if (p->begin != q->begin) return p->begin < q->begin ? -1 : 1;
    return (p->end > q->end) - (p->end < q->end);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const rfi_tensor *const *)a)->name, (*(const rfi_tensor *const *)b)->name);
}

static int name_against(const void *name, const void *tensor) {
    return strcmp(name, (*(const rfi_tensor *const *)tensor)->name);
}

const rfi_tensor *rfi_safetensors_find(const rfi_safetensors *file, const char *name) {
    const rfi_tensor **found =
        file->num_tensors ? bsearch(name, file->by_name, file->num_tensors, sizeof *file->by_name, name_against) : NULL;
    return found ? *found : NULL;
}

/* The tensors fill the rest of the file without gap or overlap. */
static rf_status check_cover(const rfi_safetensors *file, int64_t data) {
    int64_t at = data;
    for (size_t i = 0; i < file->num_tensors; i++) {
        const rfi_tensor *tensor = &file->tensors[i];
        if (tensor->begin != at)
            return invalid(file, tensor->name,
                tensor->begin > at ? "there is a gap in front of its bytes" : "its bytes overlap another tensor's");
        at = tensor->end;
    }
    return at == file->map.size ? RF_OK : invalid(file, NULL, "the file goes on behind the last tensor");
}

static rf_status read_entries(rfi_safetensors *file, json_t *header, int64_t data) {
    file->tensors = calloc(json_object_size(header) + 1, sizeof *file->tensors);
    file->by_name = calloc(json_object_size(header) + 1, sizeof *file->by_name);
    if (!file->tensors || !file->by_name)
        return rfi_error(RF_OUT_OF_MEMORY, "%s: no memory for the list of tensors", file->map.path);
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) {
        rf_status status = !strcmp(name, "__metadata__")
            ? check_metadata(file, entry)
            : read_tensor(file, name, entry, data, &file->tensors[file->num_tensors++]);
        if (status) return status;
    }
    qsort(file->tensors, file->num_tensors, sizeof *file->tensors, by_offset);
    for (size_t i = 0; i < file->num_tensors; i++) file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, file->num_tensors, sizeof *file->by_name, by_name);
    return check_cover(file, data);
}

json_t *rfi_json_read(const char *text, size_t size, json_error_t *error, int *no_memory) {
    errno = 0;
    json_t *value = json_loadb(text, size, JSON_REJECT_DUPLICATES, error);
    /* It sets no text at all where building a value fails. */
    *no_memory = !value && (errno == ENOMEM || json_error_code(error) == json_error_out_of_memory || !*error->text);
    return value;
}

static rf_status read_header(rfi_safetensors *file) {
    uint64_t length = 0;
    if (file->map.size < 8) return invalid(file, NULL, "shorter than the 8 bytes of the header's length");
    for (int i = 7; i >= 0; i--) length = length << 8 | file->map.bytes[i];
    if (length > MAX_HEADER)
        return rfi_error(RF_INVALID_FILE,
            "%s: no safetensors file: its header would take %llu bytes, and the format allows 100000000",
            file->map.path, (unsigned long long)length);
    if ((int64_t)length > file->map.size - 8) return invalid(file, NULL, "the header goes beyond the end of the file");
    if (!length || file->map.bytes[8] != '{') return invalid(file, NULL, "the header does not begin with '{'");
    json_error_t error;
    int no_memory;
    json_t *header = rfi_json_read((const char *)file->map.bytes + 8, (size_t)length, &error, &no_memory);
    if (!header) {
        if (no_memory) return rfi_error(RF_OUT_OF_MEMORY, "%s: no memory for the header", file->map.path);
        return rfi_error(RF_INVALID_FILE, "%s: the header is not valid JSON: %s (byte %d)", file->map.path, error.text,
            error.position);
    }
    rf_status status = read_entries(file, header, 8 + (int64_t)length);
    json_decref(header);
    return status;
}

rf_status rfi_safetensors_open(const char *path, rfi_safetensors **out) {
    rfi_safetensors *file = calloc(1, sizeof *file);
    if (!file) return rfi_error(RF_OUT_OF_MEMORY, "%s: no memory to open it", path);
    rf_status status = rfi_mapping_open(path, &file->map);
    if (!status) status = read_header(file);
    if (status) {
        rfi_safetensors_close(file);
        return status;
    }
    *out = file;
    return RF_OK;
}

void rfi_safetensors_close(rfi_safetensors *file) {
    for (size_t i = 0; i < file->num_tensors; i++) free(file->tensors[i].name);
    free(file->tensors);
    free(file->by_name);
    rfi_mapping_close(&file->map);
    free(file);
}
