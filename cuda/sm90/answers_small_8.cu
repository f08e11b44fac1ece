/* SPDX-License-Identifier: MIT */
/* Several results of up to 8 rows; more are for the other files. */
#include "sm90/small_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_answers_small(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return fold->product.batch > 16 ? rfi_cuda_fold_sm90_answers_small_64(fold, stream)
        : fold->product.batch > 8   ? rfi_cuda_fold_sm90_answers_small_16(fold, stream)
                                    : hopper::small::launch_8<true>(*fold, stream);
}
