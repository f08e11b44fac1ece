/* SPDX-License-Identifier: MIT */
/* 9 to 16 rows. */
#include "sm90/small_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_small_16(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::small::launch_16<false>(*fold, stream);
}
