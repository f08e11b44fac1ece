/* SPDX-License-Identifier: MIT */
/* The same with K in four parts, for layers of few columns: of up to 136 rows. */
#include "sm90/turned_launch.cuh"

namespace hopper {
namespace turned {
namespace {

cudaError_t launch_quarters(const rfi_cuda_fold &f, cudaStream_t stream) {
    const int64_t groups = groups_of<4>(f.product);
    switch (rfi_turned_height(f.product.batch, groups)) {
#define HEIGHT(width, products) \
    case width *products: return launch_for<4, width, products>(f, groups, stream);
        RFI_TURNED_LOW(HEIGHT)
#undef HEIGHT
    default: return cudaErrorInvalidConfiguration;
    }
}

} // namespace
} // namespace turned
} // namespace hopper

cudaError_t rfi_cuda_fold_sm90_turned_quarters(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_quarters(*fold, stream);
}
