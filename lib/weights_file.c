/* SPDX-License-Identifier: MIT */
/* Weight files as the API shows them: one safetensors file, or the index of a sharded model with its shards. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "guard.h"
#include "model.h"
#include "safetensors.h"
#include "sized.h"

typedef struct entry {
    const rfi_tensor *tensor;
    const rfi_safetensors *shard;
} entry;

struct rf_file {
    char *path;               /* owned */
    rfi_safetensors **shards; /* owned */
    size_t num_shards;
    entry *entries;        /* owned */
    const entry **by_name; /* owned; the same in the order of their names */
    size_t num_entries;
};

static rf_status no_memory(const char *path) { return rfi_error(RF_OUT_OF_MEMORY, "%s: no memory to open it", path); }

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* A shard lies beside its index: the name must not lead anywhere else. */
static rf_status open_shard(rf_file *file, const char *name, rfi_safetensors **shard) {
    if (!*name || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
        return rfi_error(RF_INVALID_FILE,
            "%s: weight_map names the file \"%.100s\"; expected the plain name of a file beside the index", file->path,
            name);
    const char *slash = strrchr(file->path, '/');
    int folder = slash ? (int)(slash - file->path) + 1 : 0;
    size_t size = (size_t)folder + strlen(name) + 1;
    char *path = malloc(size);
    if (!path) return no_memory(file->path);
    snprintf(path, size, "%.*s%s", folder, file->path, name);
    for (size_t i = 0; i < file->num_shards; i++)
        if (!strcmp(file->shards[i]->map.path, path)) {
            *shard = file->shards[i];
            free(path);
            return RF_OK;
        }
    rf_status status = rfi_safetensors_open(path, shard);
    free(path);
    if (!status) file->shards[file->num_shards++] = *shard;
    return status;
}

static rf_status read_weight_map(rf_file *file, json_t *map) {
    if (!json_is_object(map))
        return rfi_error(RF_INVALID_FILE, "%s: weight_map is missing or not an object", file->path);
    file->entries = calloc(json_object_size(map) + 1, sizeof *file->entries);
    file->shards = calloc(json_object_size(map) + 1, sizeof *file->shards);
    if (!file->entries || !file->shards) return no_memory(file->path);
    const char *name;
    json_t *where;
    json_object_foreach(map, name, where) {
        if (!json_is_string(where))
            return rfi_error(RF_INVALID_FILE, "%s: weight_map[\"%.100s\"] is not a string", file->path, name);
        entry *e = &file->entries[file->num_entries];
        rfi_safetensors *shard = NULL;
        rf_status status = open_shard(file, json_string_value(where), &shard);
        if (status) return status;
        e->shard = shard;
        e->tensor = rfi_safetensors_find(shard, name);
        if (!e->tensor)
            return rfi_error(RF_INVALID_FILE, "%s: tensor \"%.100s\" is not in the file that weight_map names",
                shard->map.path, name);
        file->num_entries++;
    }
    return RF_OK;
}

static rf_status open_index(rf_file *file) {
    rfi_mapping map;
    json_error_t error;
    json_t *index = NULL;
    int out_of_memory = 0;
    rf_status status = rfi_mapping_open(file->path, &map);
    if (!status)
        index = rfi_json_read(map.size ? (const char *)map.bytes : "", (size_t)map.size, &error, &out_of_memory);
    rfi_mapping_close(&map);
    if (status) return status;
    if (!index) {
        if (out_of_memory) return no_memory(file->path);
        return rfi_error(RF_INVALID_FILE, "%s: line %d: %s", file->path, error.line, error.text);
    }
    status = read_weight_map(file, json_object_get(index, "weight_map"));
    json_decref(index);
    return status;
}

static rf_status open_single(rf_file *file) {
    file->shards = calloc(1, sizeof *file->shards);
    if (!file->shards) return no_memory(file->path);
    rf_status status = rfi_safetensors_open(file->path, &file->shards[0]);
    if (status) return status;
    file->num_shards = 1;
    const rfi_safetensors *shard = file->shards[0];
    file->entries = calloc(shard->num_tensors + 1, sizeof *file->entries);
    if (!file->entries) return no_memory(file->path);
    for (size_t i = 0; i < shard->num_tensors; i++) file->entries[i] = (entry){&shard->tensors[i], shard};
    file->num_entries = shard->num_tensors;
    return RF_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const entry *const *)a)->tensor->name, (*(const entry *const *)b)->tensor->name);
}

static int name_against(const void *name, const void *e) {
    return strcmp(name, (*(const entry *const *)e)->tensor->name);
}

static rf_status sort_names(rf_file *file) {
    file->by_name = calloc(file->num_entries + 1, sizeof *file->by_name);
    if (!file->by_name) return no_memory(file->path);
    for (size_t i = 0; i < file->num_entries; i++) file->by_name[i] = &file->entries[i];
    qsort(file->by_name, file->num_entries, sizeof *file->by_name, by_name);
    return RF_OK;
}

rf_status rf_file_open(rf_file **out, const char *path) {
    RFI_GUARDED;
    if (!out) return rfi_error(RF_INVALID_ARGUMENT, "file is NULL");
    if (!path) return rfi_error(RF_INVALID_ARGUMENT, "path is NULL");
    rf_file *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        rf_file_close(file);
        return no_memory(path);
    }
    rf_status status = ends_with(path, ".json") ? open_index(file) : open_single(file);
    if (!status) status = sort_names(file);
    if (status) {
        rf_file_close(file);
        return status;
    }
    *out = file;
    return RF_OK;
}

void rf_file_close(rf_file *file) {
    RFI_GUARDED;
    if (!file) return;
    for (size_t i = 0; i < file->num_shards; i++) rfi_safetensors_close(file->shards[i]);
    free(file->shards);
    free(file->entries);
    free(file->by_name);
    free(file->path);
    free(file);
}

size_t rf_file_tensor_count(const rf_file *file) { return file ? file->num_entries : 0; }

static rf_status check_info(const rf_tensor_info *info) {
    return rfi_sized_check("info", "rf_tensor_info", info, sizeof *info);
}

static rf_status describe(const entry *e, rf_tensor_info *info) {
    rf_status status = rfi_mapping_check(&e->shard->map);
    if (status) return status;
    const rfi_tensor *tensor = e->tensor;
    rf_tensor_info own = {
        .name = tensor->name,
        .type_name = tensor->type_name,
        .path = e->shard->map.path,
        .dtype = tensor->dtype,
        .num_dims = tensor->num_dims,
        .data = e->shard->map.bytes + tensor->begin,
        .bytes = tensor->end - tensor->begin,
        .offset = tensor->begin,
    };
    memcpy(own.shape, tensor->shape, sizeof own.shape);
    rfi_sized_write(info, &own, sizeof own);
    return RF_OK;
}

rf_status rf_file_tensor(const rf_file *file, size_t index, rf_tensor_info *info) {
    if (!file) return rfi_error(RF_INVALID_ARGUMENT, "file is NULL");
    rf_status status = check_info(info);
    if (status) return status;
    if (index >= file->num_entries)
        return rfi_error(RF_INVALID_ARGUMENT, "index is %zu; the file has %zu tensors", index, file->num_entries);
    return describe(&file->entries[index], info);
}

rf_status rf_file_find(const rf_file *file, const char *name, rf_tensor_info *info) {
    if (!file) return rfi_error(RF_INVALID_ARGUMENT, "file is NULL");
    if (!name) return rfi_error(RF_INVALID_ARGUMENT, "name is NULL");
    rf_status status = check_info(info);
    if (status) return status;
    const entry **found =
        file->num_entries ? bsearch(name, file->by_name, file->num_entries, sizeof *file->by_name, name_against) : NULL;
    if (found) return describe(*found, info);
    return rfi_error(
        RF_INVALID_ARGUMENT, "%s: there is no tensor \"%.100s\" among its %zu", file->path, name, file->num_entries);
}

/* The rows of a tensor that are wanted, and the shape of all of it. */
typedef struct wanted {
    int64_t shape[2], first, count;
} wanted;

/* The tensor as a buffer that a model takes. The format does not align tensors to their type: *copy is what to free
 * where one had to be moved. */
static rf_status fetch(const rf_file *file, const char *name, int dims, const wanted *range, rf_dtype dtype,
    rf_tensor_info *info, void **copy) {
    const int64_t *shape = range->shape;
    info->size = sizeof *info;
    rf_status status = rf_file_find(file, name, info);
    if (status) return status;
    if (!info->dtype)
        return rfi_error(RF_INVALID_ARGUMENT, "%s: tensor \"%.100s\" is %s; expected a floating-point type", info->path,
            name, info->type_name);
    if (dtype && info->dtype != (int32_t)dtype)
        return rfi_error(RF_INVALID_ARGUMENT, "%s: tensor \"%.100s\" is %s; the model was created for %s weights",
            info->path, name, rfi_dtype_name((rf_dtype)info->dtype), rfi_dtype_name(dtype));
    int same = info->num_dims == dims;
    for (int d = 0; same && d < dims; d++) same = info->shape[d] == shape[d];
    if (!same) {
        char got[200] = "";
        for (int d = 0; d < info->num_dims; d++)
            snprintf(got + strlen(got), sizeof got - strlen(got), d ? ", %lld" : "%lld", (long long)info->shape[d]);
        if (dims == 2)
            return rfi_error(RF_INVALID_ARGUMENT, "%s: tensor \"%.100s\" has shape (%s); expected (%lld, %lld)",
                info->path, name, got, (long long)shape[0], (long long)shape[1]);
        return rfi_error(RF_INVALID_ARGUMENT, "%s: tensor \"%.100s\" has shape (%s); expected (%lld)", info->path, name,
            got, (long long)shape[0]);
    }
    if (shape[0]) {
        const int64_t row = info->bytes / shape[0];
        info->data = (const char *)info->data + range->first * row;
        info->bytes = range->count * row;
    }
    if ((uintptr_t)info->data % rfi_dtype_size((rf_dtype)info->dtype)) {
        *copy = malloc((size_t)info->bytes + 1);
        if (!*copy) return rfi_error(RF_OUT_OF_MEMORY, "%s: no memory to align tensor \"%.100s\"", info->path, name);
        memcpy(*copy, info->data, (size_t)info->bytes);
        info->data = *copy;
    }
    return RF_OK;
}

/* Which rows: those that the names say, else those that the model is of. */
static rf_status want(const rfi_plan *plan, const rf_file_names *names, wanted *range) {
    const int64_t n = plan->out_features;
    const int said = names->first_column || names->total_columns;
    const int64_t first = said ? names->first_column : plan->columns.first,
                  total = said ? names->total_columns : plan->columns.total;
    if (total < n || first < 0 || first > total - n)
        return rfi_error(RF_INVALID_ARGUMENT,
            "names.first_column is %lld and names.total_columns %lld; expected room for out_features, %lld, or 0 and 0",
            (long long)first, (long long)total, (long long)n);
    *range = (wanted){.shape = {total, plan->in_features}, .first = first, .count = n};
    return RF_OK;
}

static rf_status load(rf_model *model, const rf_file *file, const rf_file_names *names, void **copies) {
    const rfi_plan *plan = &model->spec.plan;
    wanted range;
    rf_tensor_info tensor;
    rf_status status = want(plan, names, &range);
    if (status) return status;
    status = fetch(file, names->weight, 2, &range, model->spec.weight_dtype, &tensor, &copies[0]);
    if (status) return status;
    rf_vector vectors[RF_MAX_OPS];
    rf_weights weights = {
        .size = sizeof weights, .weight = tensor.data, .vectors = vectors, .num_vectors = names->num_vectors};
    if (names->bias) {
        status = fetch(file, names->bias, 1, &range, RF_DTYPE_DEFAULT, &tensor, &copies[1]);
        if (status) return status;
        weights.bias = tensor.data;
        weights.bias_dtype = tensor.dtype;
    }
    for (size_t i = 0; i < names->num_vectors; i++) {
        rf_file_vector vector;
        status = rfi_sized_item("names.vectors", "rf_file_vector", names->vectors, i, &vector, sizeof vector);
        if (status) return status;
        if (!vector.vector || !vector.tensor)
            return rfi_error(RF_INVALID_ARGUMENT, "names.vectors[%zu] has a NULL name", i);
        status = fetch(file, vector.tensor, 1, &range, RF_DTYPE_DEFAULT, &tensor, &copies[2 + i]);
        if (status) return status;
        vectors[i] = (rf_vector){.size = sizeof *vectors,
            .name = vector.vector,
            .data = tensor.data,
            .length = plan->out_features,
            .dtype = tensor.dtype};
    }
    return rf_model_load_weights_ex(model, &weights);
}

/* What can be said of the names before a file is opened. */
static rf_status read_names(const rf_file_names *given, rf_file_names *names) {
    rf_status status = rfi_sized_read("names", "rf_file_names", given, names, sizeof *names);
    if (status) return status;
    if (!names->weight) return rfi_error(RF_INVALID_ARGUMENT, "names.weight is NULL");
    if (names->num_vectors && !names->vectors)
        return rfi_error(RF_INVALID_ARGUMENT, "names.vectors is NULL and names.num_vectors %zu", names->num_vectors);
    if (names->num_vectors > RF_MAX_OPS)
        return rfi_error(
            RF_INVALID_ARGUMENT, "names.num_vectors is %zu; a chain has at most %d", names->num_vectors, RF_MAX_OPS);
    return RF_OK;
}

static rf_status load_open(rf_model *model, const rf_file *file, const rf_file_names *names) {
    void *copies[RF_MAX_OPS + 2] = {NULL};
    rf_status status = load(model, file, names, copies);
    for (size_t i = 0; i < RF_MAX_OPS + 2; i++) free(copies[i]);
    return status;
}

rf_status rf_model_load_open_file(rf_model *model, const rf_file *file, const rf_file_names *given) {
    RFI_GUARDED;
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_file_names names;
    rf_status status = read_names(given, &names);
    if (status) return status;
    if (!file) return rfi_error(RF_INVALID_ARGUMENT, "file is NULL");
    return load_open(model, file, &names);
}

rf_status rf_model_load_file(rf_model *model, const char *path, const rf_file_names *given) {
    RFI_GUARDED;
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_file_names names;
    rf_status status = read_names(given, &names);
    if (status) return status;
    rf_file *file = NULL;
    status = rf_file_open(&file, path);
    if (status) return status;
    status = load_open(model, file, &names);
    rf_file_close(file);
    return status;
}

/* Fills in what the config leaves open with what the weight's tensor says. */
static rf_status complete(rf_config *config, const rf_file *file, const rf_file_names *names) {
    rf_tensor_info weight = {.size = sizeof weight};
    rf_status status = rf_file_find(file, names->weight, &weight);
    if (status) return status;
    if (!weight.dtype)
        return rfi_error(RF_INVALID_ARGUMENT, "%s: tensor \"%.100s\" is %s; expected a floating-point type",
            weight.path, names->weight, weight.type_name);
    if (weight.num_dims != 2)
        return rfi_error(RF_INVALID_ARGUMENT,
            "%s: tensor \"%.100s\" has %d dimensions; expected 2, (out_features, in_features)", weight.path,
            names->weight, weight.num_dims);
    if (!config->weight_dtype) config->weight_dtype = weight.dtype;
    rf_op ops[RF_MAX_OPS] = {{0}};
    size_t count = 0;
    if (config->chain) {
        status = rf_chain_parse(config->chain, ops, RF_MAX_OPS, &count);
    } else if (config->ops && config->num_ops) {
        ops[0] = config->ops[0];
    }
    if (status || ops[0].num_params) return status; /* rf_model_create compares what the chain says */
    /* How many rows of a range a shard takes is for the caller to say. */
    const int part = config->total_columns || names->total_columns;
    if (!config->out_features && !part) config->out_features = weight.shape[0];
    if (!config->in_features) config->in_features = weight.shape[1];
    return RF_OK;
}

rf_status rf_model_create_from_file(
    rf_model **out, const rf_config *given, const char *path, const rf_file_names *given_names) {
    RFI_GUARDED;
    if (!out) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_config config;
    rf_status status = rfi_sized_read("config", "rf_config", given, &config, sizeof config);
    if (status) return status;
    config.size = sizeof config;
    rf_file_names names;
    status = read_names(given_names, &names);
    if (status) return status;
    rf_file *file = NULL;
    rf_model *model = NULL;
    status = rf_file_open(&file, path);
    if (!status) status = complete(&config, file, &names);
    if (!status) status = rf_model_create(&model, &config);
    if (!status) status = load_open(model, file, &names);
    rf_file_close(file);
    if (status) {
        rf_model_destroy(model);
        return status;
    }
    *out = model;
    return RF_OK;
}
