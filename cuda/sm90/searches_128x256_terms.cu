/* SPDX-License-Identifier: MIT */
/* What searches_128x256.cu runs for several products. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_searches_128x256_terms(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::launch_terms<128, 256, 2, 1, true, true>(*fold, stream);
}
