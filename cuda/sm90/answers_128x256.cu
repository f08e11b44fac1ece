/* SPDX-License-Identifier: MIT */
/* Several results of tiles of 128 x 256: for many rows. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_answers_128x256(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::has_terms(*fold) ? rfi_cuda_fold_sm90_answers_128x256_terms(fold, stream)
                                    : hopper::launch_product<128, 256, 2, 1, true>(*fold, stream);
}
