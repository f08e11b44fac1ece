/* SPDX-License-Identifier: MIT */
/* Whole rows in a cluster, for few columns and rows, of several results. */
#include "sm90/whole_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_answers_whole_64x64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::whole::launch_for<64, 64, true>(*fold, stream);
}

cudaError_t rfi_cuda_fold_sm90_answers_whole_64x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::whole::launch_for<64, 128, true>(*fold, stream);
}

cudaError_t rfi_cuda_fold_sm90_answers_whole_128x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::whole::launch_for<128, 128, true>(*fold, stream);
}
