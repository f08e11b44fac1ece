/* SPDX-License-Identifier: MIT */
/* Tiles of 128 x 128, K in two parts: for about a hundred rows. */
#include "sm90/halves_launch.cuh"

namespace hopper {
namespace halves {
namespace {

/* By the terms that x and W are in. */
cudaError_t launch_for(const rfi_cuda_fold &f, cudaStream_t stream) {
    const int x_terms = rfi_terms_of(f.product.x), w_terms = rfi_terms_of(f.product.w);
    const bool bf16 = f.product.w.dtype == RF_BFLOAT16;
    if (w_terms == 3) return cudaErrorInvalidConfiguration; /* the stages do not fit */
    if (x_terms == 3) return launch<Config<3, 1, true>>(f, stream);
    if (x_terms == 2 && w_terms == 2) return launch<Config<2, 2, false>>(f, stream);
    if (w_terms == 2) return launch<Config<1, 2, false>>(f, stream);
    if (x_terms == 2 && bf16) return launch<Config<2, 1, true>>(f, stream);
    if (x_terms == 2) return launch<Config<2, 1, false>>(f, stream);
    if (bf16) return launch<Config<1, 1, true>>(f, stream);
    return launch<Config<1, 1, false>>(f, stream);
}

} // namespace
} // namespace halves
} // namespace hopper

cudaError_t rfi_cuda_fold_sm90_halves(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (hopper::stores(*fold)) return rfi_cuda_store_sm90_halves(fold, stream);
    return hopper::halves::launch_for(*fold, stream);
}
