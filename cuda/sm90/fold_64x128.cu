/* SPDX-License-Identifier: MIT */
/* Tiles of 64 x 128: for about a hundred rows. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_64x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (hopper::stores(*fold)) return rfi_cuda_store_sm90_64x128(fold, stream);
    return hopper::launch_for<64, 128, 1, 2>(*fold, stream);
}
