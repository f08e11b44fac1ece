/* SPDX-License-Identifier: MIT */
/* Groups of up to 320 rows by 128 features, 16-bit values as they are stored. */
#include "sm90/launch.cuh"
#include "sm90/turned.cuh"

namespace hopper {
namespace turned {
namespace {

cudaError_t fill(Parameters *p, const rfi_cuda_fold &f, bool halves, int64_t groups) {
    memset(p, 0, sizeof *p);
    p->fold = f;
    p->groups = (int32_t)groups;
    p->group_rows = (int32_t)((f.product.batch + p->groups - 1) / p->groups);
    /* One, where a block loads all rows: the thread that asks for them has no time to lose. */
    p->box_rows[0] = min(halves ? MOST_BOX_ROWS : (p->group_rows + 15) / 16 * 8, p->group_rows);
    p->box_rows[1] = p->group_rows - p->box_rows[0];
    p->stages = (int32_t)((f.product.depth + (halves ? 2 : 1) * K - 1) / ((halves ? 2 : 1) * K));
    p->tiles = (int32_t)rfi_tiles(f.product.out_features, FEATURES);
    p->halves = halves;
    p->w_panel = f.product.w.panel ? f.product.w.ld * ROW : 0;
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < BOXES && !error; i++)
        if (p->box_rows[i])
            error = encode_rows(
                &p->x[i], f.product.x.data, f.product.x, f.product.batch, f.product.depth, ROW, p->box_rows[i], 2);
    if (error || f.product.w.panel) return error; /* read without a map */
    return encode_rows(&p->w, f.product.w.data, f.product.w, f.product.out_features, f.product.depth, ROW, FEATURES, 2);
}

template <class C> cudaError_t launch(const rfi_cuda_fold &f, bool halves, int64_t groups, cudaStream_t stream) {
    Parameters p;
    cudaError_t error = fill(&p, f, halves, groups);
    if (!error)
        error = launch_blocks((const void *)turned_kernel<C>, &p, f, (int64_t)cluster_tiles(p) * CLUSTER, CLUSTER,
            BLOCK_THREADS, C::SHARED, stream);
    return error ? error : finish_apart(f, 0, (int)rfi_tiles(f.product.out_features, RFI_FOLD_COLUMNS), stream);
}

template <int NT, int PARTS>
cudaError_t launch_for(const rfi_cuda_fold &f, bool halves, int64_t groups, cudaStream_t stream) {
    return f.product.w.dtype == RF_BFLOAT16 ? launch<Config<true, NT, PARTS>>(f, halves, groups, stream)
                                            : launch<Config<false, NT, PARTS>>(f, halves, groups, stream);
}

/* By the height of a tile. */
cudaError_t launch_rows(const rfi_cuda_fold &f, bool halves, cudaStream_t stream) {
    const rfi_cuda_product &of = f.product;
    const int64_t groups = rfi_turned_groups(of.batch, of.out_features, of.depth, halves);
    switch (rfi_turned_height(of.batch, groups)) {
#define HEIGHT(width, products) \
    case width *products: return launch_for<width, products>(f, halves, groups, stream);
        RFI_TURNED_HEIGHTS(HEIGHT)
#undef HEIGHT
    default: return cudaErrorInvalidConfiguration;
    }
}

} // namespace
} // namespace turned
} // namespace hopper

cudaError_t rfi_cuda_fold_sm90_turned(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_rows(*fold, false, stream);
}
cudaError_t rfi_cuda_fold_sm90_turned_halves(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return hopper::turned::launch_rows(*fold, true, stream);
}
