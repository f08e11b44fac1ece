/* SPDX-License-Identifier: MIT */
/* Logits as they are, of one product: kernels of their own, for the shuffles that storing them takes would cost those
 * that fold (hopper.md 80). */
#include "sm90/halves_launch.cuh"

namespace hopper {
namespace {

template <int BM, int BN, int CLUSTER_M, int CLUSTER_N> cudaError_t store(const rfi_cuda_fold &f, cudaStream_t stream) {
    if (f.product.w.dtype == RF_BFLOAT16)
        return launch<Config<1, 1, true, BM, BN, CLUSTER_M, CLUSTER_N, false, false, true>>(f, stream);
    return launch<Config<1, 1, false, BM, BN, CLUSTER_M, CLUSTER_N, false, false, true>>(f, stream);
}

} // namespace
} // namespace hopper

cudaError_t rfi_cuda_store_sm90_128x256(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::store<128, 256, 2, 1>(*fold, stream);
}

cudaError_t rfi_cuda_store_sm90_128x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::store<128, 128, 2, 1>(*fold, stream);
}

cudaError_t rfi_cuda_store_sm90_64x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::store<64, 128, 1, 2>(*fold, stream);
}

cudaError_t rfi_cuda_store_sm90_halves(const rfi_cuda_fold *fold, cudaStream_t stream) {
    using namespace hopper::halves;
    if (fold->product.w.dtype == RF_BFLOAT16) return launch<Config<1, 1, true, true>>(*fold, stream);
    return launch<Config<1, 1, false, true>>(*fold, stream);
}
