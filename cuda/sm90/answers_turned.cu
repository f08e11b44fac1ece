/* SPDX-License-Identifier: MIT */
/* Several results of groups of up to 272 rows by 128 features, 16-bit values as they are stored. */
#include "sm90/turned_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_turned_answers(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_rows<1, true>(*fold, stream);
}
cudaError_t rfi_cuda_fold_sm90_turned_answers_halves(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_rows<2, true>(*fold, stream);
}
