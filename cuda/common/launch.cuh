/* SPDX-License-Identifier: MIT */
/* Launching a kernel: dynamic shared memory that with the static may pass the default must be asked for, and errors are
 * this launch's own: `<<<>>>` with cudaGetLastError would report what the caller left behind. */
#ifndef ROWFOLD_CUDA_LAUNCH_CUH
#define ROWFOLD_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Programmatic dependent launch, from sm_90 on. A kernel that calls rfi_release_next lets the next one of the stream
 * begin, if that is launched to overlap; a kernel that is must call rfi_wait_for_previous before it touches what
 * kernels in front of it write or read, even if it uses nothing of theirs: the one behind it relies on all of them.
 * Compiled for older devices both do nothing: `overlaps` is then not to be asked for. */
static __device__ __forceinline__ void rfi_release_next(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
static __device__ __forceinline__ void rfi_wait_for_previous(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class Parameters> static cudaError_t rfi_launch(void (*kernel)(Parameters), const Parameters *parameters,
    dim3 grid, int threads, size_t shared, cudaStream_t stream, bool overlaps = false) {
    cudaError_t error = cudaSuccess;
    if (shared > 32 * 1024)
        error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error) return error;
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = overlaps ? 1 : 0;
    void *arguments[] = {const_cast<Parameters *>(parameters)};
    return cudaLaunchKernelExC(&config, (const void *)kernel, arguments);
}

static __host__ __device__ inline int64_t rfi_tiles(int64_t size, int64_t tile) {
    return size > tile ? (size + tile - 1) / tile : 1;
}

#endif
