#include "device.h"

#include <stdio.h>
#include <string.h>

#include "error.h"

rf_status rfi_cuda_status(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return RF_OK;
    cudaGetLastError();
    return rfi_error(error == cudaErrorMemoryAllocation ? RF_OUT_OF_MEMORY : RF_DEVICE_ERROR, "%s: CUDA says \"%s\" (%s)", what, cudaGetErrorString(error),
                     cudaGetErrorName(error));
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

rf_status rfi_cuda_get_figures(int device, rfi_cuda_figures *figures) {
    struct { enum cudaDeviceAttr attribute; int value; } wanted[] = {
        {cudaDevAttrComputeCapabilityMajor, 0}, {cudaDevAttrComputeCapabilityMinor, 0}, {cudaDevAttrMultiProcessorCount, 0},
        {cudaDevAttrClockRate, 0},              {cudaDevAttrMemoryClockRate, 0},        {cudaDevAttrGlobalMemoryBusWidth, 0},
        {cudaDevAttrL2CacheSize, 0},            {cudaDevAttrMaxSharedMemoryPerBlockOptin, 0},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        rf_status status = rfi_cuda_status(cudaDeviceGetAttribute(&wanted[i].value, wanted[i].attribute, device), "reading the device's figures");
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
