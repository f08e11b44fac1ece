/* SPDX-License-Identifier: MIT */
/* Groups of up to 320 rows by 128 features, 16-bit values as they are stored. */
#include "sm90/turned_launch.cuh"

namespace hopper {
namespace turned {
namespace {

template <int PARTS> cudaError_t launch_rows(const rfi_cuda_fold &f, cudaStream_t stream) {
    const int64_t groups = groups_of<PARTS>(f.product);
    switch (rfi_turned_height(f.product.batch, groups)) {
#define HEIGHT(width, products) \
    case width *products: return launch_for<PARTS, width, products>(f, groups, stream);
        RFI_TURNED_LOW(HEIGHT)
        RFI_TURNED_HIGH(HEIGHT)
#undef HEIGHT
    default: return cudaErrorInvalidConfiguration;
    }
}

} // namespace
} // namespace turned
} // namespace hopper

cudaError_t rfi_cuda_fold_sm90_turned(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_rows<1>(*fold, stream);
}
cudaError_t rfi_cuda_fold_sm90_turned_halves(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_rows<2>(*fold, stream);
}
