/* SPDX-License-Identifier: MIT */
/* Tiles of 128 x 192, of one product: where larger ones leave multiprocessors without one. */
#include "sm90/launch.cuh"

cudaError_t rfi_cuda_fold_sm90_128x192(const rfi_cuda_fold *fold, cudaStream_t stream) {
    using namespace hopper;
    if (fold->product.w.dtype == RF_BFLOAT16)
        return launch<Config<1, 1, true, 128, 192, 1, 2, false, false>>(*fold, stream);
    return launch<Config<1, 1, false, 128, 192, 1, 2, false, false>>(*fold, stream);
}
