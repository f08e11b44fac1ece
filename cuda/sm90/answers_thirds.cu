/* SPDX-License-Identifier: MIT */
/* Several results with K in three parts, for layers of few columns: of up to 224 rows. */
#include "sm90/turned_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_turned_answers_thirds(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_rows<3, true>(*fold, stream);
}
