/* SPDX-License-Identifier: MIT */
/* CUDA's devices and errors in rowfold's terms. */
#ifndef ROWFOLD_CUDA_DEVICE_H
#define ROWFOLD_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "choose.h"

/* RF_OK for cudaSuccess. Else clears CUDA's last error, so that the caller's next check does not see ours, and returns
 * RF_OUT_OF_MEMORY or RF_DEVICE_ERROR with `what` (a clause like "copying x") and CUDA's own text as last error. */
rf_status rfi_cuda_status(cudaError_t error, const char *what);

/* Makes `device` the thread's current one; rfi_cuda_leave puts the old one back. */
rf_status rfi_cuda_enter(int device, int *before);
void rfi_cuda_leave(int before);

/* Is `pointer`, which the caller says is in device memory, memory that `device` may read? NULL is. */
rf_status rfi_cuda_check_pointer(const char *name, const void *pointer, int device);

rf_status rfi_cuda_get_figures(int device, rfi_cuda_figures *figures);

/* Index of the kernel that ROWFOLD_CUDA_KERNEL names, -1 where it is not set; RF_INVALID_ARGUMENT if there is none. */
rf_status rfi_cuda_forced(int *forced);

/* The device's memory pool for workspaces. It keeps what is freed while anyone holds it, so that memory is had from the
 * device once; the last to let go gives it back, all but a little. */
rf_status rfi_cuda_take_pool(int device, cudaMemPool_t *pool);
void rfi_cuda_leave_pool(int device);

#endif
