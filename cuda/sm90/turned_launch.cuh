/* SPDX-License-Identifier: MIT */
/* Launching the kernels of groups of rows: their tensor maps. */
#ifndef ROWFOLD_CUDA_SM90_TURNED_LAUNCH_CUH
#define ROWFOLD_CUDA_SM90_TURNED_LAUNCH_CUH

#include "sm90/launch.cuh"
#include "sm90/turned.cuh"

namespace hopper {
namespace turned {
namespace {

/* PARTS: of K, or 1. */
template <int PARTS> cudaError_t fill(Parameters *p, const rfi_cuda_fold &f, int64_t groups) {
    memset(p, 0, sizeof *p);
    p->fold = f;
    p->groups = (int32_t)groups;
    p->group_rows = (int32_t)((f.product.batch + p->groups - 1) / p->groups);
    /* One, where a block loads all rows: the thread that asks for them has no time to lose. */
    p->box_rows[0] = min(PARTS > 1 ? MOST_BOX_ROWS : (p->group_rows + 15) / 16 * 8, p->group_rows);
    p->box_rows[1] = p->group_rows - p->box_rows[0];
    p->stages = (int32_t)((f.product.depth + PARTS * K - 1) / (PARTS * K));
    p->last_stages = (int32_t)rfi_tiles(f.product.depth, K) - (PARTS - 1) * p->stages;
    p->tiles = (int32_t)rfi_tiles(f.product.out_features, FEATURES);
    p->halves = PARTS == 2;
    p->w_panel = f.product.w.panel ? f.product.w.ld * ROW : 0;
    if (p->w_panel && p->group_rows <= NEAR_ROWS && f.product.depth * f.product.w.ld * 2 <= NEAR_BYTES)
        p->w_near = NEAR_STAGES;
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < BOXES && !error; i++)
        if (p->box_rows[i])
            error = encode_rows(
                &p->x[i], f.product.x.data, f.product.x, f.product.batch, f.product.depth, ROW, p->box_rows[i], 2);
    if (error || f.product.w.panel) return error; /* read without a map */
    return encode_rows(&p->w, f.product.w.data, f.product.w, f.product.out_features, f.product.depth, ROW, FEATURES, 2);
}

template <class C, int PARTS> cudaError_t launch(const rfi_cuda_fold &f, int64_t groups, cudaStream_t stream) {
    Parameters p;
    cudaError_t error = fill<PARTS>(&p, f, groups);
    if (!error)
        error = launch_blocks((const void *)turned_kernel<C>, &p, (int64_t)cluster_tiles<C>(p) * C::CLUSTER, C::CLUSTER,
            BLOCK_THREADS, C::SHARED, stream);
    return error || rfi_is_alone(f)
        ? error
        : finish_apart(f, 0, (int)rfi_tiles(f.product.out_features, RFI_FOLD_COLUMNS), stream);
}

template <int PARTS, bool ANSWERS, int NT, int PRODUCTS>
cudaError_t launch_for(const rfi_cuda_fold &f, int64_t groups, cudaStream_t stream) {
    constexpr int CLUSTER = PARTS > 1 ? PARTS : 2;
    return f.product.w.dtype == RF_BFLOAT16
        ? launch<Config<true, NT, PRODUCTS, CLUSTER, ANSWERS>, PARTS>(f, groups, stream)
        : launch<Config<false, NT, PRODUCTS, CLUSTER, ANSWERS>, PARTS>(f, groups, stream);
}

template <int PARTS, bool ANSWERS> cudaError_t launch_rows(const rfi_cuda_fold &f, cudaStream_t stream) {
    const rfi_cuda_product &of = f.product;
    const int64_t groups = rfi_turned_groups(of.batch, of.out_features, of.depth, PARTS, ANSWERS);
    const int height = rfi_turned_height(of.batch, groups);
#define HEIGHT(width, products) \
    case width *products: return launch_for<PARTS, ANSWERS, width, products>(f, groups, stream);
    switch (height) { RFI_TURNED_LOW(HEIGHT) }
    if constexpr (PARTS <= 3) {
        if constexpr (ANSWERS) {
            switch (height) { RFI_TURNED_ANSWERS_MIDDLE(HEIGHT) }
        } else {
            switch (height) { RFI_TURNED_MIDDLE(HEIGHT) }
        }
    }
    if constexpr (PARTS <= 2) {
        if constexpr (ANSWERS) {
            switch (height) { RFI_TURNED_ANSWERS_HIGH(HEIGHT) }
        } else {
            switch (height) { RFI_TURNED_HIGH(HEIGHT) }
        }
    }
#undef HEIGHT
    return cudaErrorInvalidConfiguration;
}

} // namespace
} // namespace turned
} // namespace hopper
#endif
