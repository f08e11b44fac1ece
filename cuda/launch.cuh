/* Launching a fold kernel: dynamic shared memory that with the static may pass the default must be asked for, and errors are this launch's own: `<<<>>>` with
 * cudaGetLastError would report what the caller left behind. */
#ifndef ROWFOLD_CUDA_LAUNCH_CUH
#define ROWFOLD_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

template <class Parameters>
static cudaError_t rfi_launch(void (*kernel)(Parameters), const Parameters *parameters, dim3 grid, int threads, size_t shared, cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    if (shared > 32 * 1024) error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error) return error;
    void *arguments[] = {const_cast<Parameters *>(parameters)};
    return cudaLaunchKernel((const void *)kernel, grid, dim3((unsigned)threads), arguments, shared, stream);
}

static inline int64_t rfi_tiles(int64_t size, int64_t tile) { return size > tile ? (size + tile - 1) / tile : 1; }

#endif
