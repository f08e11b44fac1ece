/* SPDX-License-Identifier: MIT */
/* Several results of tiles of 128 x 128, of one product: for some hundred rows, or too few features for wider tiles. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_answers_128x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    using namespace hopper;
    return fold->product.w.dtype == RF_BFLOAT16 ? launch_single<true, 128, 128, true>(*fold, stream)
                                                : launch_single<false, 128, 128, true>(*fold, stream);
}
