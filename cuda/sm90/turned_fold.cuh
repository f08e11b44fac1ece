/* SPDX-License-Identifier: MIT */
/* The fold of the kernels for groups of rows: a plain one, of little code, or that of all tiles. */
#ifndef ROWFOLD_CUDA_SM90_TURNED_FOLD_CUH
#define ROWFOLD_CUDA_SM90_TURNED_FOLD_CUH

#include "sm90/turned_ring.cuh"

namespace hopper {
namespace turned {

/* Where a plain fold reads the parameters. */
template <class C> __device__ __forceinline__ const rfi_cuda_fold &folded(const Parameters &p, const Shared &sh) {
    return C::COPIES ? *sh.fold : p.fold;
}

/* The bias of a tile's columns, for a plain fold: asked for before what is sent comes, in shared memory behind it. */
__device__ __forceinline__ float fetch_bias(const rfi_cuda_fold &f, int64_t column0, int features) {
    const int64_t column = column0 + threadIdx.x;
    return threadIdx.x < features && column < f.product.out_features ? ((const float *)f.visitor.bias)[column] : 0;
}

/* Whether nothing is asked of a tile but the states of its rows, as they come from the products: that is little code,
 * and takes few registers. */
__device__ __forceinline__ bool is_plain(const rfi_cuda_fold &f) {
    const rfi_cuda_visitor &v = f.visitor;
    return !v.chain.num_pre && !v.columns && !v.before[0].values && !v.before[1].values && !v.squares.sums &&
        !f.product.irregular && !rfi_is_alone(f);
}

/* What rfi_fold_tile does of such a tile, with the same bits but where a product and its sum are rounded as one (the
 * entropy's): rows of FEATURES or HALF columns, of which `there` are there, from `column0` on, to the states of the
 * first row at `states`, rows of which are `stride` apart. With `rows` below 0 it takes the same way, and stores
 * nothing. */
template <int TOTALS, int AT_ONCE> __device__ __forceinline__ void fold_plain(const rfi_cuda_chain &chain,
    const float *tile, int tile_ld, const float *bias, int rows, int64_t column0, int there, State<TOTALS> *states,
    int64_t stride, int warp, int warps) {
    constexpr int LANES = 8, COLS = RFI_FOLD_COLUMNS / LANES, ROWS = 32 / LANES;
    const int lane = threadIdx.x % LANES, sub = threadIdx.x % 32 / LANES,
              slabs = (there + RFI_FOLD_COLUMNS - 1) / RFI_FOLD_COLUMNS,
              steps = rows < 0 ? warps : (rows + ROWS * AT_ONCE - 1) / (ROWS * AT_ONCE) * slabs;
#pragma unroll 1
    for (int step = warp; step < steps; step += warps) {
        const int slab = slabs > 1 ? step % 2 : 0, r0 = (slabs > 1 ? step / 2 : step) * ROWS * AT_ONCE + sub,
                  c0 = slab * RFI_FOLD_COLUMNS + lane * 4;
        const auto offset = [=](int c) { return c0 + c / 4 * (RFI_FOLD_COLUMNS / 2) + c % 4; };
        const bool whole = there >= (slab + 1) * RFI_FOLD_COLUMNS;
        float v[AT_ONCE][COLS];
#pragma unroll
        for (int c = 0; c < COLS; c += 4) {
            const four<float> shift = *(const four<float> *)(bias + offset(c));
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++) {
                const four<float> logits = *(const four<float> *)(tile + (r0 + a * ROWS) * tile_ld + offset(c));
#pragma unroll
                for (int i = 0; i < 4; i++) v[a][c + i] = logits.v[i] + shift.v[i];
            }
        }
        with_reduction<TOTALS>(chain.reduction, [&](auto of) {
            typedef decltype(of) R;
            State<TOTALS> s[AT_ONCE];
            if (!whole) {
                float peak0;
                R::peak0(peak0);
#pragma unroll
                for (int c = 0; c < COLS; c++)
                    if (offset(c) >= there)
#pragma unroll
                        for (int a = 0; a < AT_ONCE; a++) v[a][c] = peak0;
            }
            const auto valid = [](int) { return true; };
            const auto column = [=](int c) { return column0 + offset(c); };
            if constexpr (std::is_same<R, rfi_answers>::value) {
                int64_t row[AT_ONCE];
#pragma unroll
                for (int a = 0; a < AT_ONCE; a++) row[a] = r0 + a * ROWS < rows ? 0 : -1;
                rfi_fold_answers<LANES>(v, row, valid, column, chain.shows, s);
            } else rfi_fold_chunk<R, LANES>(v, valid, column, s);
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++)
                if (lane == 0 && r0 + a * ROWS < rows) rfi_write_state(states, (r0 + a * ROWS) * stride + slab, s[a]);
        });
    }
}

/* The states of `rows` rows of a tile, from `row0` on. A plain fold comes once ahead of all products, `rehearses`,
 * while x is not there yet: instructions that nobody has run come from far, and all of a block would wait for them. */
template <class C> __device__ __forceinline__ void fold_rows(const Parameters &p, const Shared &sh, bool plain,
    bool rehearses, const float *tile, int tile_ld, int64_t row0, int rows, int64_t column0, int features) {
    const rfi_cuda_fold &f = folded<C>(p, sh);
    typedef State<C::TOTALS> S;
    if (plain)
        fold_plain<C::TOTALS, C::FOLDED_PLAIN>(f.visitor.chain, rehearses ? sh.bias : tile, rehearses ? 0 : tile_ld,
            sh.bias, rehearses ? -1 : rows, column0, (int)min(f.product.out_features - column0, (int64_t)features),
            (S *)f.visitor.partials + row0 * f.visitor.num_partials + column0 / RFI_FOLD_COLUMNS,
            f.visitor.num_partials, threadIdx.x / 32, CONSUMER_THREADS / 32);
    else
        rfi_fold_tile<float, C::FOLDED>(
            *sh.fold, tile, tile_ld, row0, rows, column0, features, nullptr, threadIdx.x, CONSUMER_THREADS / 32);
}

/* Before the first tile. What is rehearsed comes before the kernel in front is waited for. */
template <class C> __device__ __forceinline__ void begin_fold(const rfi_cuda_fold &f, const Shared &sh, bool plain) {
    if (C::COPIES || !plain) copy_parameters<true>(f, sh.fold, threadIdx.x, CONSUMER_THREADS);
    if (plain && C::COPIES) barrier_sync(TILE_BARRIER, CONSUMER_THREADS);
    if (!plain && C::REHEARSES) barrier_arrive(COPIED_BARRIER, CONSUMER_THREADS + 32);
    if (!plain || !C::AHEAD) rfi_wait_for_previous();
}

} // namespace turned
} // namespace hopper
#endif
