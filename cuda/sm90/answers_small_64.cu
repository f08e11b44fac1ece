/* SPDX-License-Identifier: MIT */
/* Several results of 17 to 64 rows. */
#include "sm90/small_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_answers_small_64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::small::launch_64<true>(*fold, stream);
}
