/* SPDX-License-Identifier: MIT */
/* Launching the kernel that shares out K: its tensor maps. */
#ifndef ROWFOLD_CUDA_SM90_HALVES_LAUNCH_CUH
#define ROWFOLD_CUDA_SM90_HALVES_LAUNCH_CUH

#include "sm90/launch.cuh"
#include "sm90/halves.cuh"

namespace hopper {
namespace halves {
namespace {

template <class C> cudaError_t fill(Parameters *p, const rfi_cuda_fold &f) {
    using E = typename C::Folded;
    memset(p, 0, sizeof *p);
    p->fold = f;
    if (!takes<E>(f)) return cudaErrorInvalidConfiguration;
    p->m_tiles = (int32_t)((f.product.batch + C::BM - 1) / C::BM);
    p->n_tiles = (int32_t)((f.product.out_features + E::BN - 1) / E::BN);
    p->stages = (int32_t)((f.product.depth + C::K - 1) / C::K);
    p->part = (p->stages + 1) / 2;
    p->w_column = f.product.w.panel ? 0 : C::W_ROW / 2;
    p->w_block = f.product.w.panel ? (int32_t)(f.product.w.ld / RFI_BLOCK_ROWS) : 0;
    p->w_once = p->m_tiles == 1;
    p->m_group = 16;
    p->slots = (p->n_tiles + 1) / 2;
    return encode_operands<C::X_TERMS, C::W_TERMS>(
        p, columns_of(f.product), C::X_ROW, C::BM, f.product.depth, C::W_ROW, C::BN, 256);
}

template <class C> cudaError_t launch(const rfi_cuda_fold &f, cudaStream_t stream) {
    Parameters p;
    cudaError_t error = fill<C>(&p, f);
    const int64_t clusters = (int64_t)p.m_tiles * ((p.n_tiles + 1) / 2);
    if (!error) error = launch_blocks((const void *)halves_kernel<C>, &p, 2 * clusters, 2, THREADS, C::SHARED, stream);
    return error ? error : finish_apart(f, 0, p.slots, stream);
}

} // namespace
} // namespace halves
} // namespace hopper
#endif
