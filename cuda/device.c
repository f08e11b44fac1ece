/* SPDX-License-Identifier: MIT */
#include "device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

rf_status rfi_cuda_status(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return RF_OK;
    cudaGetLastError();
    return rfi_error(error == cudaErrorMemoryAllocation ? RF_OUT_OF_MEMORY : RF_DEVICE_ERROR,
        "%s: CUDA says \"%s\" (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

rf_status rfi_cuda_enter(int device, int *before) {
    rf_status status = rfi_cuda_status(cudaGetDevice(before), "asking for the current device");
    if (!status && *before != device) status = rfi_cuda_status(cudaSetDevice(device), "changing to the model's device");
    return status;
}

void rfi_cuda_leave(int before) {
    int now;
    if (cudaGetDevice(&now) == cudaSuccess && now != before) cudaSetDevice(before);
}

/* A host pointer called a device's would break the process's whole context when a kernel reads it. */
rf_status rfi_cuda_check_pointer(const char *name, const void *pointer, int device) {
    struct cudaPointerAttributes a;
    if (!pointer) return RF_OK;
    rf_status status = rfi_cuda_status(cudaPointerGetAttributes(&a, pointer), "asking what a pointer is");
    if (status) return status;
    if (a.type == cudaMemoryTypeUnregistered || (a.type == cudaMemoryTypeHost && a.devicePointer != pointer))
        return rfi_error(RF_INVALID_ARGUMENT, "%s is memory of the host, but its rf_memory is RF_MEMORY_DEVICE", name);
    if (a.type == cudaMemoryTypeDevice && a.device != device)
        return rfi_error(
            RF_INVALID_ARGUMENT, "%s is on CUDA device %d; expected the model's, %d", name, a.device, device);
    return RF_OK;
}

enum {
    MAX_DEVICES = 64,
    POOL_REST = 32 << 20 /* bytes that a pool keeps which nobody holds: the next model finds them mapped */
};

static struct pool {
    cudaMemPool_t pool;
    int holders;
} pools[MAX_DEVICES];
static rfi_cuda_figures figures_of[MAX_DEVICES];          /* without a name until somebody has asked */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of both */

/* CUDA does not work in a child of fork, and says so; a lock that a thread of the parent held would have the child wait
 * for ever instead. */
static void after_fork_child(void) { pthread_mutex_init(&mutex, NULL); }

__attribute__((constructor)) static void install_fork_handler(void) { pthread_atfork(NULL, NULL, after_fork_child); }

static rf_status read_figures(int device, rfi_cuda_figures *figures) {
    struct {
        enum cudaDeviceAttr attribute;
        int value;
    } wanted[] = {
        {cudaDevAttrComputeCapabilityMajor, 0},
        {cudaDevAttrComputeCapabilityMinor, 0},
        {cudaDevAttrMultiProcessorCount, 0},
        {cudaDevAttrClockRate, 0},
        {cudaDevAttrMemoryClockRate, 0},
        {cudaDevAttrGlobalMemoryBusWidth, 0},
        {cudaDevAttrL2CacheSize, 0},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, 0},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        rf_status status = rfi_cuda_status(
            cudaDeviceGetAttribute(&wanted[i].value, wanted[i].attribute, device), "reading the device's figures");
        if (status) return status;
    }
    struct cudaDeviceProp properties;
    rf_status status = rfi_cuda_status(cudaGetDeviceProperties(&properties, device), "reading the device's name");
    if (status) return status;
    *figures = (rfi_cuda_figures){
        .major = wanted[0].value,
        .minor = wanted[1].value,
        .multiprocessors = wanted[2].value,
        .clock_hz = wanted[3].value * 1e3,
        .memory_bytes_per_second = wanted[4].value * 1e3 * 2 * wanted[5].value / 8, /* two transfers a clock */
        .l2_bytes = (size_t)wanted[6].value,
        .shared_per_block = (size_t)wanted[7].value,
    };
    snprintf(figures->name, sizeof figures->name, "%.60s", properties.name);
    return RF_OK;
}

/* The driver takes longer over its clocks and its name than over loading a small model. */
rf_status rfi_cuda_get_figures(int device, rfi_cuda_figures *figures) {
    if (device < 0 || device >= MAX_DEVICES) return read_figures(device, figures);
    pthread_mutex_lock(&mutex);
    rfi_cuda_figures *known = &figures_of[device];
    rf_status status = *known->name ? RF_OK : read_figures(device, known);
    if (!status) *figures = *known;
    pthread_mutex_unlock(&mutex);
    return status;
}

rf_status rfi_cuda_forced(int *forced) {
    const char *name = getenv("ROWFOLD_CUDA_KERNEL");
    *forced = -1;
    if (!name || !*name) return RF_OK;
    *forced = rfi_cuda_kernel_find(name);
    return *forced < 0 ? rfi_error(RF_INVALID_ARGUMENT,
                             "ROWFOLD_CUDA_KERNEL is \"%.40s\", which is no kernel of the CUDA backend", name)
                       : RF_OK;
}

/* A pool is never destroyed. A model's own would be with the model, and cudaMemPoolDestroy beside another thread's
 * cudaStreamSynchronize, the library's or the caller's, leaves a lock of the driver taken: with driver 580 every thread
 * then waits forever. */
static rf_status create_pool(int device, cudaMemPool_t *pool) {
    struct cudaMemPoolProps properties = {
        .allocType = cudaMemAllocationTypePinned,
        .location = {.type = cudaMemLocationTypeDevice, .id = device},
    };
    return rfi_cuda_status(cudaMemPoolCreate(pool, &properties), "creating a memory pool for workspaces");
}

static rf_status set_up_pool(cudaMemPool_t pool) {
    uint64_t keep = UINT64_MAX;
    int wait_for_others = 0; /* memory that another stream has freed but still uses is no reason to run behind it */
    rf_status status = rfi_cuda_status(
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "setting up the memory pool");
    if (status) return status;
    return rfi_cuda_status(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &wait_for_others),
        "setting up the memory pool");
}

rf_status rfi_cuda_take_pool(int device, cudaMemPool_t *pool) {
    if (device >= MAX_DEVICES)
        return rfi_error(RF_UNSUPPORTED, "CUDA device %d: the library goes to %d", device, MAX_DEVICES - 1);
    struct pool *p = &pools[device];
    pthread_mutex_lock(&mutex);
    rf_status status = p->pool ? RF_OK : create_pool(device, &p->pool);
    if (!status && !p->holders) status = set_up_pool(p->pool);
    if (!status) {
        p->holders++;
        *pool = p->pool;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

void rfi_cuda_leave_pool(int device) {
    struct pool *p = &pools[device];
    pthread_mutex_lock(&mutex);
    if (--p->holders == 0 && cudaMemPoolTrimTo(p->pool, POOL_REST) != cudaSuccess)
        cudaGetLastError(); /* of a device that failed the caller has been told */
    pthread_mutex_unlock(&mutex);
}
