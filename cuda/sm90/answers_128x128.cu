/* SPDX-License-Identifier: MIT */
/* Several results of tiles of 128 x 128, of one product: for some hundred rows, or too few features for wider tiles. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_answers_128x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    using namespace hopper;
    if (fold->product.w.dtype == RF_BFLOAT16)
        return launch<Config<1, 1, true, 128, 128, 2, 1, true, false>>(*fold, stream);
    return launch<Config<1, 1, false, 128, 128, 2, 1, true, false>>(*fold, stream);
}
