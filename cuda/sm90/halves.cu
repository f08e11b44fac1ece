/* SPDX-License-Identifier: MIT */
/* Tiles of 128 x 128, K in two parts: for about a hundred rows. */
#include "sm90/halves_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_halves(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::halves::launch_for(*fold, stream);
}
