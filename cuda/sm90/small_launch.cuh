/* SPDX-License-Identifier: MIT */
/* Launching the kernel for few rows: its tensor maps, and the widths of batch that it is compiled for. */
#ifndef ROWFOLD_CUDA_SM90_SMALL_LAUNCH_CUH
#define ROWFOLD_CUDA_SM90_SMALL_LAUNCH_CUH

#include "sm90/launch.cuh"
#include "sm90/small.cuh"
#include "common/launch.cuh"

namespace hopper {
namespace small {
namespace {

template <class C> cudaError_t fill(Parameters *p, const rfi_cuda_fold &f) {
    memset(p, 0, sizeof *p);
    p->fold = f;
    if (!takes<C>(f)) return cudaErrorInvalidConfiguration;
    p->stages = (int32_t)((f.product.depth + C::K - 1) / C::K);
    p->tiles = (int32_t)rfi_tiles(f.product.out_features, FEATURES);
    p->w_panel = f.product.w.panel ? f.product.w.ld * (f.product.w.panel * C::W_TERMS * 2) : 0;
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < C::X_TERMS && !error; i++)
        error = encode_rows(&p->x[i], term_of(f.product.x, i), f.product.x, f.product.batch, columns_of(f.product),
            BOX_ROW, (int)f.product.batch, 2);
    if (f.product.w.panel) return error; /* read without a map */
    for (int i = 0; i < C::W_TERMS && !error; i++)
        error = encode_rows(&p->w[i], term_of(f.product.w, i), f.product.w, f.product.out_features, f.product.depth,
            C::W_ROW, FEATURES, 2);
    return error;
}

template <class C> cudaError_t launch(const rfi_cuda_fold &f, cudaStream_t stream) {
    Parameters p;
    cudaError_t error = fill<C>(&p, f);
    int blocks = 0;
    if (!error)
        error = launch_blocks(
            (const void *)small_kernel<C>, &p, p.tiles, C::CLUSTER, BLOCK_THREADS, C::SHARED, stream, &blocks);
    const int tiles = (p.tiles + C::CLUSTER - 1) / C::CLUSTER, clusters = blocks / C::CLUSTER;
    return error ? error
                 : finish_apart(f, first_merged(p, is_single(p, blocks)), tiles < clusters ? tiles : clusters, stream);
}

/* By the terms that x and W are in. */
template <int ROWS, int CLUSTER, bool ANSWERS> cudaError_t launch_for(const rfi_cuda_fold &f, cudaStream_t stream) {
    const int x_terms = rfi_terms_of(f.product.x), w_terms = rfi_terms_of(f.product.w);
    if constexpr (ROWS <= 32) {
        if (x_terms == 3 && w_terms == 1) return launch<Config<3, 1, true, ROWS, CLUSTER, ANSWERS>>(f, stream);
        if (x_terms == 3 && w_terms == 3) return launch<Config<3, 3, true, ROWS, CLUSTER, ANSWERS>>(f, stream);
    }
    if (x_terms == 3) return cudaErrorInvalidConfiguration; /* the stages do not fit */
    if (x_terms == 2 && w_terms == 2) return launch<Config<2, 2, false, ROWS, CLUSTER, ANSWERS>>(f, stream);
    if (w_terms == 2) return launch<Config<1, 2, false, ROWS, CLUSTER, ANSWERS>>(f, stream);
    if (x_terms == 2 && f.product.w.dtype == RF_BFLOAT16)
        return launch<Config<2, 1, true, ROWS, CLUSTER, ANSWERS>>(f, stream);
    if (x_terms == 2) return launch<Config<2, 1, false, ROWS, CLUSTER, ANSWERS>>(f, stream);
    if (f.product.w.dtype == RF_BFLOAT16) return launch<Config<1, 1, true, ROWS, CLUSTER, ANSWERS>>(f, stream);
    return launch<Config<1, 1, false, ROWS, CLUSTER, ANSWERS>>(f, stream);
}

/* The more rows, the more it costs that every block reads all of x from the L2: pairs of blocks read it once. Larger
 * clusters leave multiprocessors out. */
template <bool ANSWERS> cudaError_t launch_8(const rfi_cuda_fold &f, cudaStream_t stream) {
    return launch_for<8, 1, ANSWERS>(f, stream);
}
template <bool ANSWERS> cudaError_t launch_16(const rfi_cuda_fold &f, cudaStream_t stream) {
    return launch_for<16, 1, ANSWERS>(f, stream);
}
template <bool ANSWERS> cudaError_t launch_64(const rfi_cuda_fold &f, cudaStream_t stream) {
    if (f.product.batch > 64) return cudaErrorInvalidConfiguration;
    return f.product.batch > 32 ? launch_for<64, 2, ANSWERS>(f, stream) : launch_for<32, 2, ANSWERS>(f, stream);
}

} // namespace
} // namespace small
} // namespace hopper
#endif
