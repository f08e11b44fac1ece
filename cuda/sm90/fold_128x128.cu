/* SPDX-License-Identifier: MIT */
/* Tiles of 128 x 128: for some hundred rows, or too few features for wider tiles. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_128x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (hopper::stores(*fold)) return rfi_cuda_store_sm90_128x128(fold, stream);
    return hopper::launch_for<128, 128, 2, 1>(*fold, stream);
}
