/* SPDX-License-Identifier: MIT */
/* Tiles of 128 x 256: for many rows. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_128x256(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (hopper::stores(*fold)) return rfi_cuda_store_sm90_128x256(fold, stream);
    return hopper::launch_for<128, 256, 2, 1>(*fold, stream);
}
