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
    int64_t begin, end;    /* bytes, from the start of the file */
} rfi_tensor;

typedef struct rfi_safetensors {
    rfi_mapping map;       /* owned */
    rfi_tensor *tensors;   /* in the order of their bytes */
    size_t num_tensors;
} rfi_safetensors;

/* Opens, maps and validates everything the header says: RF_IO_ERROR, RF_INVALID_FILE, RF_OUT_OF_MEMORY with file, tensor and reason. On failure
 * nothing stays open. */
rf_status rfi_safetensors_open(const char *path, rfi_safetensors **file);
void rfi_safetensors_close(rfi_safetensors *file);

/* Whether a parse failed for want of memory. Jansson does not always say so: in the middle of a string it takes it for a wrong token. */
struct json_error_t;
int rfi_json_no_memory(const struct json_error_t *error);

#endif
