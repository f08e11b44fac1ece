/* SPDX-License-Identifier: MIT */
/* Several results and searches of tiles of 128 x 256: see rfi_cuda_before. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_searches_128x256(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::has_terms(*fold) ? rfi_cuda_fold_sm90_searches_128x256_terms(fold, stream)
                                    : hopper::launch_product<128, 256, 2, 1, true, true>(*fold, stream);
}
