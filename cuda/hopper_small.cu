/* SPDX-License-Identifier: MIT */
/* Up to 64 rows. */
#include "hopper_small_launch.cuh"

cudaError_t rfi_cuda_fold_hopper_small(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::small::launch_rows<false>(*fold, stream);
}
