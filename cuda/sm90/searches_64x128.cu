/* SPDX-License-Identifier: MIT */
/* Several results and searches of tiles of 64 x 128: see rfi_cuda_before. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_searches_64x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::launch_for<64, 128, 1, 2, true, true>(*fold, stream);
}
