/* SPDX-License-Identifier: MIT */
/* Launching the kernels of whole rows in a cluster. */
#ifndef ROWFOLD_CUDA_SM90_WHOLE_LAUNCH_CUH
#define ROWFOLD_CUDA_SM90_WHOLE_LAUNCH_CUH

#include "sm90/launch.cuh"
#include "sm90/whole.cuh"
#include "whole.h"

namespace hopper {
namespace whole {
namespace {

/* More blocks than every device can have in a cluster, once for a kernel and a device. */
template <class C> cudaError_t allow_large_clusters() {
    static thread_local int ready = -1;
    int device;
    cudaError_t error = cudaGetDevice(&device);
    if (error || device == ready) return error;
    error = cudaFuncSetAttribute((const void *)whole_kernel<C>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (!error) ready = device;
    return error;
}

template <class C> cudaError_t launch(const rfi_cuda_fold &f, cudaStream_t stream) {
    enum { PORTABLE = 8 };
    Parameters p;
    cudaError_t error = fill<C>(&p, f);
    p.blocks = rfi_whole_blocks(f.product.out_features, C::BN);
    if (!error && (!p.blocks || f.visitor.keeps_states)) error = cudaErrorInvalidConfiguration;
    if (!error && p.blocks > PORTABLE) error = allow_large_clusters<C>();
    return error ? error
                 : launch_blocks((const void *)whole_kernel<C>, &p, (int64_t)p.m_tiles * p.blocks, p.blocks, THREADS,
                       C::SHARED, stream);
}

template <int BM, int BN, bool ANSWERS> cudaError_t launch_for(const rfi_cuda_fold &f, cudaStream_t stream) {
    return f.product.w.dtype == RF_BFLOAT16 ? launch<Config<1, 1, true, BM, BN, 1, 1, ANSWERS, false>>(f, stream)
                                            : launch<Config<1, 1, false, BM, BN, 1, 1, ANSWERS, false>>(f, stream);
}

} // namespace
} // namespace whole
} // namespace hopper
#endif
