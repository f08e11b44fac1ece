/* SPDX-License-Identifier: MIT */
/* Several results with K in eight parts, for layers of few columns: of up to 136 rows. */
#include "sm90/turned_launch.cuh"

cudaError_t rfi_cuda_fold_sm90_turned_answers_eighths(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_rows<8, true>(*fold, stream);
}
