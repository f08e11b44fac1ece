/* SPDX-License-Identifier: MIT */
/* Several results of tiles of 64 x 128: for few rows. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_answers_64x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::launch_for<64, 128, 1, 2, true>(*fold, stream);
}
