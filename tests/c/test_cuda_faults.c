/* SPDX-License-Identifier: MIT */
/* Calls of the CUDA runtime that fail: the runtime is linked statically, so nothing can be put in front of it when the
 * program starts. Instead the program is made of the library's own objects, and the linker (--wrap) leads each of their
 * calls through one below, which fails in its turn. What fails ends with a status and a sentence, gives back what it
 * took, and the next model computes the same bits. */
#include <rowfold.h>

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static long calls, failing = -1; /* how many more are let through before one fails; negative: all are */
static long living;              /* blocks of device memory */
static const char *failed;       /* the call that was made to fail */

static int refuse(const char *name) {
    calls++;
    if (failing < 0 || failing-- > 0) return 0;
    failed = name;
    return 1;
}

/* As the linker names them: NAME is the call that the objects make, and the runtime's own is the real one. The two
 * levels are for names that the runtime's header defines as others. */
#define WRAPPED_(name) __wrap_##name
#define WRAPPED(name) WRAPPED_(name)
#define REAL_(name) __real_##name
#define REAL(name) REAL_(name)
#define CALL(name, error, parameters, arguments)    \
    cudaError_t CUDARTAPI REAL(name) parameters;    \
    cudaError_t CUDARTAPI WRAPPED(name) parameters; \
    cudaError_t CUDARTAPI WRAPPED(name) parameters { return refuse(#name) ? (error) : REAL(name) arguments; }
/* One that takes device memory, or gives it back: what could not be freed is not the caller's any more. */
#define TAKES(name, parameters, arguments)                   \
    cudaError_t CUDARTAPI REAL(name) parameters;             \
    cudaError_t CUDARTAPI WRAPPED(name) parameters;          \
    cudaError_t CUDARTAPI WRAPPED(name) parameters {         \
        if (refuse(#name)) return cudaErrorMemoryAllocation; \
        const cudaError_t error = REAL(name) arguments;      \
        living += !error;                                    \
        return error;                                        \
    }
#define FREES(name, parameters, arguments)                               \
    cudaError_t CUDARTAPI REAL(name) parameters;                         \
    cudaError_t CUDARTAPI WRAPPED(name) parameters;                      \
    cudaError_t CUDARTAPI WRAPPED(name) parameters {                     \
        living -= block != NULL;                                         \
        const cudaError_t error = REAL(name) arguments;                  \
        return refuse(#name) && !error ? cudaErrorLaunchFailure : error; \
    }

CALL(cudaGetDeviceCount, cudaErrorInsufficientDriver, (int *count), (count))
CALL(cudaDeviceGetAttribute, cudaErrorUnknown, (int *value, enum cudaDeviceAttr attribute, int device),
    (value, attribute, device))
CALL(cudaGetDeviceProperties, cudaErrorUnknown, (struct cudaDeviceProp * properties, int device), (properties, device))
CALL(cudaGetDevice, cudaErrorUnknown, (int *device), (device))
CALL(cudaSetDevice, cudaErrorUnknown, (int device), (device))
CALL(cudaPointerGetAttributes, cudaErrorUnknown, (struct cudaPointerAttributes * attributes, const void *pointer),
    (attributes, pointer))
CALL(cudaFuncGetAttributes, cudaErrorUnknown, (struct cudaFuncAttributes * attributes, const void *function),
    (attributes, function))
CALL(cudaFuncSetAttribute, cudaErrorUnknown, (const void *function, enum cudaFuncAttribute attribute, int value),
    (function, attribute, value))
CALL(cudaGetDriverEntryPointByVersion, cudaErrorUnknown,
    (const char *symbol, void **function, unsigned int version, unsigned long long flags,
        enum cudaDriverEntryPointQueryResult *result),
    (symbol, function, version, flags, result))
CALL(cudaMemPoolCreate, cudaErrorMemoryAllocation, (cudaMemPool_t * pool, const struct cudaMemPoolProps *properties),
    (pool, properties))
CALL(cudaMemPoolSetAttribute, cudaErrorUnknown, (cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value),
    (pool, attribute, value))
CALL(cudaMemPoolTrimTo, cudaErrorUnknown, (cudaMemPool_t pool, size_t bytes), (pool, bytes))
CALL(cudaMemcpyAsync, cudaErrorLaunchFailure,
    (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream),
    (to, from, bytes, kind, stream))
CALL(cudaMemcpy2DAsync, cudaErrorLaunchFailure,
    (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
        enum cudaMemcpyKind kind, cudaStream_t stream),
    (to, to_pitch, from, from_pitch, width, height, kind, stream))
CALL(cudaMemsetAsync, cudaErrorLaunchFailure, (void *block, int value, size_t bytes, cudaStream_t stream),
    (block, value, bytes, stream))
CALL(cudaStreamSynchronize, cudaErrorLaunchFailure, (cudaStream_t stream), (stream))
CALL(cudaLaunchKernelExC, cudaErrorLaunchOutOfResources,
    (const cudaLaunchConfig_t *config, const void *function, void **arguments), (config, function, arguments))
TAKES(cudaMalloc, (void **block, size_t bytes), (block, bytes))
TAKES(cudaMallocFromPoolAsync, (void **block, size_t bytes, cudaMemPool_t pool, cudaStream_t stream),
    (block, bytes, pool, stream))
FREES(cudaFree, (void *block), (block))
FREES(cudaFreeAsync, (void *block, cudaStream_t stream), (block, stream))

enum { BATCH = 40, K = 96, N = 300, TOP = 3, ASKED = 2 };
static float weight[N * K], other[N * K], bias[N], scale[N], x[BATCH * K];
static uint16_t narrow[N * K]; /* bfloat16 */
static int64_t asked[BATCH * ASKED];

typedef enum manner {
    ONE,     /* result */
    PARTS,   /* states, and results of these */
    ANSWERS, /* several results, for columns that the rows ask for */
} manner;

typedef struct subject {
    const char *chain;
    rf_dtype dtype;
    int on_device; /* x and y are */
    manner manner;
} subject;

static const char questions[] = "linear | mul(@scale) | logprob(#asked), rank(#asked), topk(3), gather(#columns)";
static const subject subjects[] = {
    {"linear | mul(@scale) | softplus | logsumexp | gelu", RF_FLOAT32, 0, ONE},
    {"linear | mul(@scale) | logsumexp", RF_FLOAT32, 1, ONE},
    {"linear | mul(@scale) | max", RF_BFLOAT16, 1, ONE},
    {"linear | mul(@scale) | add(1) | sum", RF_FLOAT32, 0, ONE}, /* a dot product */
    {"linear | mul(@scale) | var", RF_FLOAT32, 0, ONE},          /* two passes */
    {"linear | mul(@scale) | logsumexp | gelu", RF_FLOAT32, 0, PARTS},
    {"linear | mul(@scale) | max", RF_BFLOAT16, 1, PARTS},
    {questions, RF_FLOAT32, 0, ANSWERS},
    {questions, RF_BFLOAT16, 0, ANSWERS},
};

typedef struct answers {
    float logprob[BATCH], values[BATCH * TOP], gathered[BATCH * ASKED];
    int64_t rank[BATCH], indices[BATCH * TOP];
} answers;

/* What a life ended with, and what it computed: before and after the weights were changed. */
typedef struct outcome {
    rf_status status;
    float y[2 * BATCH];
    answers several[2];
} outcome;

static int same_results(const outcome *a, const outcome *b) {
    return !memcmp(a->y, b->y, sizeof a->y) && !memcmp(a->several, b->several, sizeof a->several);
}

/* Of two groups of columns, by way of host memory. */
static rf_status in_parts(const rf_model *model, const rf_forward_args *whole) {
    static double words[BATCH * 2 * 2];
    const rf_states states = {.size = sizeof states, .data = words, .bytes = sizeof words, .num_columns = N};
    rf_forward_args args = *whole;
    args.y = NULL;
    args.states = &states;
    const rf_status status = rf_model_forward_ex(model, &args);
    return status ? status : rf_states_merge(model, &states, 1, whole);
}

/* Each row asks for a column, and for two more. */
static rf_status several(const rf_model *model, const rf_forward_args *one, answers *to) {
    const rf_result results[] = {
        {.size = sizeof *results, .data = to->logprob},
        {.size = sizeof *results, .data = to->rank},
        {.size = sizeof *results, .data = to->values},
        {.size = sizeof *results, .data = to->indices},
        {.size = sizeof *results, .data = to->gathered},
    };
    const rf_row_input inputs[] = {
        {.size = sizeof *inputs, .name = "asked", .data = asked, .length = BATCH},
        {.size = sizeof *inputs, .name = "columns", .data = asked, .length = BATCH, .columns = ASKED},
    };
    rf_forward_args args = *one;
    args.y = NULL;
    args.results = results;
    args.num_results = sizeof results / sizeof *results;
    args.row_inputs = inputs;
    args.num_row_inputs = sizeof inputs / sizeof *inputs;
    return rf_model_forward_ex(model, &args);
}

static rf_status life(const subject *s, outcome *o, void *device_x, void *device_y) {
    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config,
        .chain = s->chain,
        .in_features = K,
        .out_features = N,
        .weight_dtype = s->dtype,
        .x_dtype = s->dtype == RF_FLOAT32 ? RF_FLOAT32 : RF_DTYPE_DEFAULT,
        .device = "cuda"};
    const rf_vector vector = {.size = sizeof vector, .name = "scale", .data = scale, .length = N, .dtype = RF_FLOAT32};
    rf_weights weights = {.size = sizeof weights,
        .weight = s->dtype == RF_FLOAT32 ? (const void *)weight : narrow,
        .bias = bias,
        .bias_dtype = RF_FLOAT32,
        .vectors = &vector,
        .num_vectors = 1};
    rf_forward_args args = {.size = sizeof args, .x = x, .y = o->y, .batch = BATCH, .x_dtype = RF_FLOAT32};
    if (s->on_device) {
        args.x = device_x;
        args.y = device_y;
        args.x_memory = args.y_memory = RF_MEMORY_DEVICE;
    }
    rf_status status = rf_model_create(&model, &config);
    if (!status) status = rf_model_load_weights_ex(model, &weights);
    for (int i = 0; i < 2 && !status; i++) {
        if (i && s->dtype == RF_FLOAT32) weights.weight = other;
        if (i) status = rf_model_update_weights(model, &weights);
        if (!status)
            status = s->manner == PARTS ? in_parts(model, &args)
                : s->manner == ANSWERS  ? several(model, &args, &o->several[i])
                                        : rf_model_forward_ex(model, &args);
        if (!status && s->on_device &&
            cudaMemcpy(o->y + i * BATCH, device_y, sizeof o->y / 2, cudaMemcpyDeviceToHost) != cudaSuccess)
            status = RF_INTERNAL;
        if (!s->on_device) args.y = o->y + BATCH;
    }
    size_t needed;
    if (!status) status = rf_model_explain(model, BATCH, RF_FORMAT_TEXT, NULL, 0, &needed);
    rf_model_destroy(model);
    /* A call that only said that it failed has left work under way. */
    cudaDeviceSynchronize();
    cudaGetLastError();
    return o->status = status;
}

static int prepare(void **device_x, void **device_y) {
    for (int i = 0; i < N * K; i++) {
        weight[i] = (float)(i % 1009) * 1e-3f - 0.5f;
        other[i] = (float)(i % 991) * 1e-3f - 0.5f;
        narrow[i] = (uint16_t)(0x3e80 + i % 97);
    }
    for (int i = 0; i < N; i++) {
        bias[i] = (float)(i % 11) * 0.1f;
        scale[i] = 0.5f + (float)(i % 7) * 0.1f;
    }
    for (int i = 0; i < BATCH * K; i++) x[i] = (float)(i % 997) * 1e-3f;
    for (int i = 0; i < BATCH * ASKED; i++) asked[i] = i * 7 % N;
    return cudaMalloc(device_x, sizeof x) || cudaMalloc(device_y, BATCH * sizeof(float)) ||
        cudaMemcpy(*device_x, x, sizeof x, cudaMemcpyHostToDevice);
}

/* Whether there is a device is asked once in a process: in a child, which has not used CUDA yet. */
static void without_devices(void) {
    const pid_t child = fork();
    if (!child) {
        rf_model *model = NULL;
        const rf_config config = {
            .size = sizeof config, .chain = "linear | max", .in_features = K, .out_features = N, .device = "cuda"};
        failing = 0;
        const rf_status status = rf_model_create(&model, &config);
        CHECK(status == RF_UNAVAILABLE && failed && strstr(rf_last_error(), "CUDA finds no usable GPU"), "%d: %s",
            (int)status, rf_last_error());
        _exit(failures != 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status), "status %d", status);
}

static void in_turn(const subject *s, void *device_x, void *device_y) {
    outcome wanted = {0}, o = {0};
    life(s, &wanted, device_x, device_y); /* what is made once in a process */
    calls = 0;
    const long before = living;
    CHECK(!life(s, &wanted, device_x, device_y), "%s: %s", s->chain, rf_last_error());
    const long all = calls;
    CHECK(all > 10 && living == before, "%s: %ld calls, %ld blocks remain", s->chain, all, living - before);
    long noticed = 0;
    for (long i = 0; i < all; i++) {
        failed = NULL;
        failing = i;
        memset(&o, 0, sizeof o);
        const rf_status status = life(s, &o, device_x, device_y);
        failing = -1;
        const char *sentence = rf_last_error();
        if (status) {
            noticed++;
            CHECK(status == RF_DEVICE_ERROR || status == RF_OUT_OF_MEMORY || status == RF_UNAVAILABLE ||
                    status == RF_UNSUPPORTED,
                "%s, call %ld, %s: status %d: %s", s->chain, i, failed, (int)status, sentence);
            CHECK(sentence[0], "%s, call %ld, %s: no sentence", s->chain, i, failed);
        } else /* what is tidied up, and what is asked for a better choice */
            CHECK(same_results(&o, &wanted), "%s, call %ld, %s: another result", s->chain, i, failed);
        CHECK(failed, "%s, call %ld: nothing failed", s->chain, i);
        CHECK(living == before, "%s, call %ld, %s: %ld blocks remain", s->chain, i, failed, living - before);
        living = before; /* what is lost is told once */
        CHECK(!life(s, &o, device_x, device_y) && same_results(&o, &wanted), "%s, after call %ld, %s, failed: %s",
            s->chain, i, failed, rf_last_error());
    }
    CHECK(noticed > all / 2, "%s: of %ld calls %ld were noticed to fail", s->chain, all, noticed);
    printf("%s: %ld calls failed in turn, %ld ended the life\n", s->chain, all, noticed);
}

int main(void) {
    without_devices();
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) return failures ? 1 : 77;
    void *device_x, *device_y;
    if (prepare(&device_x, &device_y)) {
        fprintf(stderr, "the device cannot be used\n");
        return 1;
    }
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) in_turn(&subjects[i], device_x, device_y);
    return failures != 0;
}
