/* SPDX-License-Identifier: MIT */
/* Words that are cleared in front of a fold, by whatever kernel runs there anyway. */
#ifndef ROWFOLD_CUDA_CLEAR_CUH
#define ROWFOLD_CUDA_CLEAR_CUH

#include "common/launch.cuh"
#include "kernels.h"

static __device__ __forceinline__ void rfi_clear_words(const rfi_cuda_clear &clear) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < clear.count;
        i += (int64_t)gridDim.x * blockDim.x)
        clear.words[i] = 0;
}

/* The fold that follows fetches W as soon as it runs: at any time, or, if W may just be being written, once all that is
 * in front of this kernel has finished. */
static __device__ __forceinline__ void rfi_begin(const rfi_cuda_clear &clear) {
    if (!clear.w_in_flight) rfi_release_next();
    rfi_wait_for_previous();
    if (clear.w_in_flight) rfi_release_next();
}

#endif
