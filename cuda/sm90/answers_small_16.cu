/* SPDX-License-Identifier: MIT */
/* Several results of 9 to 16 rows. */
#include "sm90/small_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_answers_small_16(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::small::launch_16<true>(*fold, stream);
}
