/* SPDX-License-Identifier: MIT */
/* Tiles of 64 x 64: for problems so small that larger ones would leave multiprocessors without a tile. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_64x64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::launch_for<64, 64, 1, 2>(*fold, stream);
}
