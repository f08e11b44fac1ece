/* SPDX-License-Identifier: MIT */
/* Whole rows in a cluster, for few columns and rows. */
#include "sm90/whole_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_whole_64x64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::whole::launch_for<64, 64, false>(*fold, stream);
}

cudaError_t rfi_cuda_fold_sm90_whole_64x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::whole::launch_for<64, 128, false>(*fold, stream);
}

cudaError_t rfi_cuda_fold_sm90_whole_128x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::whole::launch_for<128, 128, false>(*fold, stream);
}
