/* SPDX-License-Identifier: MIT */
/* Values of one type as another, on the device: a model's bias and vectors, and what calls bring for each row. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels.h"
#include "common/launch.cuh"

enum { THREADS = 256 };

template <class To, class From> static __device__ To converted(From value) { return (To)value; }
template <> __device__ float converted<float, __half>(__half value) { return __half2float(value); }
template <> __device__ double converted<double, __half>(__half value) { return __half2float(value); }
template <> __device__ float converted<float, __nv_bfloat16>(__nv_bfloat16 value) { return __bfloat162float(value); }
template <> __device__ double converted<double, __nv_bfloat16>(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class To, class From> static __global__ void convert(const __grid_constant__ rfi_cuda_convert c) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < c.count) ((To *)c.to)[i] = converted<To, From>(((const From *)c.from)[i * c.ld]);
}

template <class To> static void (*kernel_for(int dtype))(rfi_cuda_convert) {
    return dtype == RF_FLOAT64 ? convert<To, double>
        : dtype == RF_FLOAT16  ? convert<To, __half>
        : dtype == RF_BFLOAT16 ? convert<To, __nv_bfloat16>
                               : convert<To, float>;
}

cudaError_t rfi_cuda_launch_convert(const rfi_cuda_convert *convert, cudaStream_t stream) {
    const int64_t blocks = (convert->count + THREADS - 1) / THREADS;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (!blocks) return cudaSuccess;
    auto kernel = convert->to_dtype == RF_FLOAT64 ? kernel_for<double>(convert->from_dtype)
        : convert->to_dtype == RF_FLOAT32         ? kernel_for<float>(convert->from_dtype)
        : convert->from_dtype == RF_INT32         ? ::convert<int64_t, int32_t>
                                                  : ::convert<int64_t, int64_t>;
    return rfi_launch(kernel, convert, dim3((unsigned)blocks), THREADS, 0, stream);
}
