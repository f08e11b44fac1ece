/* SPDX-License-Identifier: MIT */
/* Groups of up to 320 rows by 128 features, 16-bit values as they are stored. */
#include "sm90/turned_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_turned(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_rows<1, false>(*fold, stream);
}
cudaError_t rfi_cuda_fold_sm90_turned_halves(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_rows<2, false>(*fold, stream);
}
