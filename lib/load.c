/* SPDX-License-Identifier: MIT */
/* Loading weights: everything is checked here, and brought to the form that backends take. */
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "guard.h"
#include "model.h"
#include "sized.h"

static int memory_known(int memory) { return memory >= RF_MEMORY_DEFAULT && memory <= RF_MEMORY_DEVICE; }

static rf_status check_memory(const rf_model *model, const char *what, int memory) {
    if (!memory_known(memory)) return rfi_error(RF_INVALID_ARGUMENT, "%s is %d, which is no rf_memory", what, memory);
    if (memory == RF_MEMORY_DEVICE && !model->backend->is_cuda)
        return rfi_error(RF_INVALID_ARGUMENT,
            "%s is RF_MEMORY_DEVICE, but the model runs on backend \"%s\", which has host memory only", what,
            model->backend->name);
    return RF_OK;
}

static rf_status check_vector(const rf_model *model, const rf_vector *vector, size_t index) {
    int64_t n = model->spec.plan.out_features;
    if (!vector->name) return rfi_error(RF_INVALID_ARGUMENT, "vectors[%zu].name is NULL", index);
    if (vector->length != n)
        return rfi_error(RF_INVALID_ARGUMENT, "vector \"%.40s\" has length %lld; expected out_features, %lld",
            vector->name, (long long)vector->length, (long long)n);
    if (!vector->data && n) return rfi_error(RF_INVALID_ARGUMENT, "vector \"%.40s\" has NULL data", vector->name);
    if (vector->dtype && !rfi_dtype_size((rf_dtype)vector->dtype))
        return rfi_error(
            RF_INVALID_ARGUMENT, "vector \"%.40s\" has dtype %d, which is no rf_dtype", vector->name, vector->dtype);
    rf_dtype dtype = vector->dtype ? (rf_dtype)vector->dtype : model->spec.weight_dtype;
    if ((uintptr_t)vector->data % rfi_dtype_size(dtype))
        return rfi_error(RF_INVALID_ARGUMENT, "vector \"%.40s\" is not aligned to its type, %s", vector->name,
            rfi_dtype_name(dtype));
    return check_memory(model, "the memory of a vector", vector->memory);
}

/* Finds each vector of the plan among the given ones: all there, none twice, none left over. */
static rf_status match_vectors(const rf_model *model, const rf_weights *weights, rf_vector *in_order) {
    const rfi_plan *plan = &model->spec.plan;
    int found[RF_MAX_OPS] = {0};
    if (weights->num_vectors && !weights->vectors)
        return rfi_error(RF_INVALID_ARGUMENT, "vectors is NULL and num_vectors %zu", weights->num_vectors);
    for (size_t i = 0; i < weights->num_vectors; i++) {
        rf_vector vector;
        rf_status status = rfi_sized_item("vectors", "rf_vector", weights->vectors, i, &vector, sizeof vector);
        if (!status) status = check_vector(model, &vector, i);
        if (status) return status;
        int v = 0;
        while (v < plan->num_vectors && strcmp(plan->vectors[v], vector.name)) v++;
        if (v == plan->num_vectors)
            return rfi_error(
                RF_INVALID_ARGUMENT, "vector \"%.40s\" is not in the chain \"%.200s\"", vector.name, model->chain_text);
        if (found[v]++) return rfi_error(RF_INVALID_ARGUMENT, "vector \"%.40s\" was given twice", vector.name);
        in_order[v] = vector;
    }
    for (int v = 0; v < plan->num_vectors; v++)
        if (!found[v])
            return rfi_error(RF_INVALID_ARGUMENT, "vector \"%s\" of the chain was not given", plan->vectors[v]);
    return RF_OK;
}

static rf_status check_weights(const rf_model *model, const rf_weights *weights, uint32_t flags) {
    const rfi_plan *plan = &model->spec.plan;
    int64_t ld = weights->ld ? weights->ld : plan->in_features;
    if (!weights->weight && plan->in_features && plan->out_features)
        return rfi_error(RF_INVALID_ARGUMENT, "weight is NULL");
    if (ld < plan->in_features)
        return rfi_error(RF_INVALID_ARGUMENT, "ld is %lld; expected in_features, %lld, or more", (long long)ld,
            (long long)plan->in_features);
    int64_t elements = rfi_size_mul(ld, plan->out_features);
    if (elements < 0 || rfi_size_mul(elements, 8) < 0)
        return rfi_error(RF_INVALID_ARGUMENT, "ld %lld times out_features %lld overflows", (long long)ld,
            (long long)plan->out_features);
    if ((uintptr_t)weights->weight % rfi_dtype_size(model->spec.weight_dtype))
        return rfi_error(
            RF_INVALID_ARGUMENT, "weight is not aligned to its type, %s", rfi_dtype_name(model->spec.weight_dtype));
    if (weights->bias_dtype && !rfi_dtype_size((rf_dtype)weights->bias_dtype))
        return rfi_error(RF_INVALID_ARGUMENT, "bias_dtype is %d, which is no rf_dtype", weights->bias_dtype);
    rf_dtype bias_dtype = weights->bias_dtype ? (rf_dtype)weights->bias_dtype : model->spec.weight_dtype;
    if ((uintptr_t)weights->bias % rfi_dtype_size(bias_dtype))
        return rfi_error(RF_INVALID_ARGUMENT, "bias is not aligned to its type, %s", rfi_dtype_name(bias_dtype));
    if (weights->flags & ~flags)
        return rfi_error(RF_INVALID_ARGUMENT, "flags is 0x%x; expected %s", weights->flags,
            flags & RF_KEEP_FORM ? "RF_BORROW, RF_KEEP_FORM, both or 0" : "RF_BORROW or 0");
    if (weights->reserved) return rfi_error(RF_INVALID_ARGUMENT, "reserved is %u; expected 0", weights->reserved);
    return check_memory(model, "memory", weights->memory);
}

/* Bias and vectors: those on the host as rows of a block (1 + num_vectors, N) of the compute type, the others where
 * they are. */
static void gather(const rf_model *model, const rf_weights *weights, const rf_vector *in_order, char *block,
    rfi_device_column *on_device) {
    const rfi_spec *spec = &model->spec;
    const int64_t n = spec->plan.out_features;
    const size_t row = (size_t)n * rfi_dtype_size(spec->compute_dtype);
    memset(block, 0, row);
    for (int i = 0; i < 1 + spec->plan.num_vectors; i++) {
        const void *data = i ? in_order[i - 1].data : weights->bias;
        const int given = i ? in_order[i - 1].dtype : weights->bias_dtype,
                  memory = i ? in_order[i - 1].memory : weights->memory;
        const rf_dtype dtype = given ? (rf_dtype)given : spec->weight_dtype;
        on_device[i] = (rfi_device_column){memory == RF_MEMORY_DEVICE ? data : NULL, dtype};
        if (data && !on_device[i].data) rfi_convert(block + (size_t)i * row, spec->compute_dtype, data, dtype, n);
    }
}

static rf_status already_loaded(void) {
    return rfi_error(
        RF_ALREADY_LOADED, "the weights are loaded already, and a loaded model is immutable; create another");
}

/* Bias, vectors and W, checked, to what the model's backend computes with: anew, or in the place of what is there. */
static rf_status prepare(rf_model *model, const rf_weights *weights, const rf_vector *in_order) {
    const rfi_spec *spec = &model->spec;
    const rfi_plan *plan = &spec->plan;
    size_t row = (size_t)plan->out_features * rfi_dtype_size(spec->compute_dtype);
    char *block = malloc(row * (size_t)(1 + plan->num_vectors) + 1);
    if (!block)
        return rfi_error(
            RF_OUT_OF_MEMORY, "no memory for the bias and %d vectors of %zu bytes", plan->num_vectors, row);
    const void *vectors[RF_MAX_OPS];
    rfi_device_column on_device[1 + RF_MAX_OPS];
    for (int v = 0; v < plan->num_vectors; v++) vectors[v] = block + (size_t)(v + 1) * row;
    gather(model, weights, in_order, block, on_device);
    const rfi_weight_view view = {
        .weight = weights->weight,
        .ld = weights->ld ? weights->ld : plan->in_features,
        .memory = weights->memory == RF_MEMORY_DEVICE ? RF_MEMORY_DEVICE : RF_MEMORY_HOST,
        .borrow = (weights->flags & RF_BORROW) != 0,
        .stream = weights->stream,
        .bias = block,
        .vectors = vectors,
        .has_bias = weights->bias != NULL,
        .on_device = on_device,
    };
    void *prepared = model->prepared;
    size_t bytes = model->prepared_bytes;
    rf_status status = prepared
        ? model->backend->update(spec, &view, (weights->flags & RF_KEEP_FORM) != 0, prepared, &bytes)
        : model->backend->prepare(spec, &view, &prepared, &bytes);
    free(block);
    if (prepared) model->prepared_bytes = bytes;
    if (!status) model->prepared = prepared;
    return status;
}

rf_status rf_model_load_weights_ex(rf_model *model, const rf_weights *given) {
    RFI_GUARDED;
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_weights own, *weights = &own;
    rf_status status = rfi_sized_read("weights", "rf_weights", given, weights, sizeof *weights);
    if (status) return status;
    if (model->prepared) return already_loaded();
    rf_vector in_order[RF_MAX_OPS];
    status = check_weights(model, weights, RF_BORROW);
    if (!status) status = match_vectors(model, weights, in_order);
    if (status) return status;

    if (atomic_flag_test_and_set(&model->claimed))
        return model->prepared ? already_loaded()
                               : rfi_error(RF_ALREADY_LOADED, "another thread is loading the model's weights");
    status = prepare(model, weights, in_order);
    if (status) atomic_flag_clear(&model->claimed);
    return status;
}

rf_status rf_model_load_weights(
    rf_model *model, const void *weight, const void *bias, const rf_vector *vectors, size_t num_vectors) {
    const rf_weights weights = {
        .size = sizeof weights, .weight = weight, .bias = bias, .vectors = vectors, .num_vectors = num_vectors};
    return rf_model_load_weights_ex(model, &weights);
}

rf_status rf_model_update_weights(rf_model *model, const rf_weights *given) {
    RFI_GUARDED;
    if (!model) return rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    rf_weights own, *weights = &own;
    rf_vector in_order[RF_MAX_OPS];
    rf_status status = rfi_sized_read("weights", "rf_weights", given, weights, sizeof *weights);
    if (status) return status;
    if (!model->prepared)
        return rfi_error(RF_NOT_LOADED, "the model has no weights yet; call rf_model_load_weights first");
    status = check_weights(model, weights, RF_BORROW | RF_KEEP_FORM);
    if (!status) status = match_vectors(model, weights, in_order);
    return status ? status : prepare(model, weights, in_order);
}
