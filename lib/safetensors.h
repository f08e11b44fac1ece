/* SPDX-License-Identifier: MIT */
/* Reader of one safetensors file: 8 bytes of header length (little-endian), a JSON header, the tensors' bytes.
 * Format: https://github.com/huggingface/safetensors (README, "Format"). */
#ifndef ROWFOLD_SAFETENSORS_H
#define ROWFOLD_SAFETENSORS_H

#include "mapping.h"

typedef struct rfi_tensor {
    char *name;            /* owned */
    const char *type_name; /* as in the file: "F32", "BF16" ...; static storage */
    rf_dtype dtype;        /* RF_DTYPE_DEFAULT for types that no model takes */
    int num_dims;
    int64_t shape[RF_MAX_DIMS];
    int64_t begin, end; /* bytes, from the start of the file */
} rfi_tensor;

typedef struct rfi_safetensors {
    rfi_mapping map;            /* owned */
    rfi_tensor *tensors;        /* in the order of their bytes */
    const rfi_tensor **by_name; /* the same, in the order of their names */
    size_t num_tensors;
} rfi_safetensors;

/* Opens, maps and validates everything the header says: RF_IO_ERROR, RF_INVALID_FILE, RF_OUT_OF_MEMORY with file,
 * tensor and reason. On failure nothing stays open. */
rf_status rfi_safetensors_open(const char *path, rfi_safetensors **file);
void rfi_safetensors_close(rfi_safetensors *file);

/* The tensor of this name, or NULL. */
const rfi_tensor *rfi_safetensors_find(const rfi_safetensors *file, const char *name);

/* json_loadb that refuses duplicate keys. Where it returns NULL *no_memory says whether that was for want of memory:
 * Jansson itself takes a string that it has no room for for a wrong one. */
struct json_t;
struct json_error_t;
struct json_t *rfi_json_read(const char *text, size_t size, struct json_error_t *error, int *no_memory);

#endif
