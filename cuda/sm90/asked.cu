/* SPDX-License-Identifier: MIT */
/* The logits of the columns that rows ask for, ahead of a search: 16-bit values as they are stored, which the kernels
 * of tiles sum up by parts of K. Each part is as good as any other, so that they are computed side by side, and added
 * in their order: the bits are those of the tile that has the column. */
#include "answers.h"
#include "sm90/launch.cuh"

namespace hopper {
namespace {

constexpr int ROWS = 64, ASKED_THREADS = 128; /* of a block: one warpgroup */

template <bool BF16> using Asked = Config<1, 1, BF16, 64, 128, 1, 2, true, false>;
static_assert(
    Asked<true>::DEPTH * Asked<true>::K == RFI_SM90_PART && Asked<false>::DEPTH * Asked<false>::K == RFI_SM90_PART,
    "as the callers lay it out");

__device__ __forceinline__ int64_t asked_by(const rfi_cuda_asked &a, int64_t row) {
    const int64_t asked = row < a.fold.product.batch ? a.asked[row] : -1;
    return asked >= 0 && asked < a.columns_there ? asked : -1;
}

/* Eight values from k on; those from `end` on are zeros. */
__device__ __forceinline__ uint4 load_eight(const void *values, int64_t at, int64_t k, int64_t end) {
    uint4 piece = {};
    if (k < end) piece = *(const uint4 *)((const uint16_t *)values + at);
    if (k + 8 > end) {
        uint32_t *words = (uint32_t *)&piece;
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] &= k + 2 * i + 1 < end ? 0xffffffffu : k + 2 * i < end ? 0xffffu : 0;
    }
    return piece;
}

/* A part of K of 64 rows of x with the 64 rows of W that they ask for: of the products those of a row with its own are
 * kept. */
template <bool BF16> __global__ void __launch_bounds__(ASKED_THREADS)
    multiply_asked(const __grid_constant__ rfi_cuda_asked a) {
    typedef Asked<BF16> C;
    constexpr int STAGE_PIECES = C::ROW / 16, PIECES = STAGE_PIECES * C::DEPTH, TILE = ROWS * C::ROW;
    __shared__ alignas(1024) uint8_t x_tiles[C::DEPTH * TILE], w_tiles[C::DEPTH * TILE];
    const rfi_cuda_fold &f = a.fold;
    const int thread = threadIdx.x, lane = thread % 32;
    const int64_t first = (int64_t)blockIdx.x * ROWS, start = (int64_t)blockIdx.y * (C::DEPTH * C::K);
    rfi_release_next();
    rfi_wait_for_previous();
#pragma unroll
    for (int i = thread; i < ROWS * PIECES; i += ASKED_THREADS) {
        const int row = i / PIECES, piece = i % PIECES;
        const int64_t k = start + piece * 8, from = min(first + row, f.product.batch - 1),
                      asked = max(asked_by(a, from), (int64_t)0);
        const int to = piece / STAGE_PIECES * TILE + row * C::ROW + (piece % STAGE_PIECES ^ row % 8) * 16;
        *(uint4 *)(x_tiles + to) = load_eight(f.product.x.data, from * f.product.x.ld + k, k, f.product.in_features);
        const int64_t at =
            f.product.w.panel ? rfi_place(f.product.w.panel, f.product.w.ld, asked, k) : asked * f.product.w.ld + k;
        *(uint4 *)(w_tiles + to) = load_eight(f.product.w.data, at, k, f.product.in_features);
    }
    if (blockIdx.y == 0 && thread < ROWS && first + thread < f.product.batch)
        a.own[first + thread] = asked_by(a, first + thread) < 0 ? -1 : thread;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float part[C::NT / 2];
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < C::DEPTH; d++)
        multiply_terms<C>(part, wgmma_descriptor<C::ROW>(shared_address(x_tiles) + d * TILE),
            wgmma_descriptor<C::ROW>(shared_address(w_tiles) + d * TILE), d > 0);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < C::NT / 2; i++) asm volatile("" : "+f"(part[i])::"memory"); /* they were being written */
    if (lane % 4 != lane / 8) return;                                               /* has none of the diagonal */
#pragma unroll
    for (int w = 0; w < 4; w++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = (2 * w + r) * 4 + 2 * r;
            const int64_t row = first + w * 16 + 8 * r + lane / 4;
            if (thread / 32 == w && row < f.product.batch)
                a.parts[blockIdx.y * f.product.batch + row] = lane / 4 % 2 ? part[at + 1] : part[at];
        }
}

/* The parts of 64 rows, added, through the steps: by the code of the tiles, for a tile of which the diagonal is there.
 */
template <bool BF16> __global__ void __launch_bounds__(ASKED_THREADS)
    finish_asked(const __grid_constant__ rfi_cuda_asked a) {
    typedef Asked<BF16> C;
    __shared__ float table[C::COLUMN_ROWS * C::BN];
    const rfi_cuda_fold &f = a.fold;
    const int thread = threadIdx.x, lane = thread % 32;
    const int64_t first = (int64_t)blockIdx.x * ROWS;
    rfi_release_next();
    rfi_wait_for_previous();
    if (thread < ROWS) {
        const int64_t row = first + thread, asked = asked_by(a, row), from = max(asked, (int64_t)0);
        table[thread] = 1;
        table[C::BN + thread] = ((const float *)f.visitor.bias)[from];
        for (int v = 0; v < f.visitor.num_vectors; v++)
            table[(2 + v) * C::BN + thread] = ((const float *)f.visitor.vectors)[v * a.columns_there + from];
        if (row < f.product.batch) {
            a.columns[row] = (int32_t)asked;
            a.counts[row] = 0;
            if (asked < 0) ((float *)f.visitor.picked)[row] = NAN;
        }
    }
    __syncthreads();
    const int64_t row = first + thread / 32 * 16 + lane / 4;
    const int parts = (int)((f.product.in_features + C::DEPTH * C::K - 1) / (C::DEPTH * C::K));
    float total[C::NT / 2] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = 0;
        if (lane % 4 == lane / 8 && row + 8 * r < f.product.batch) {
#pragma unroll 8
            for (int i = 0; i < parts; i++)
                sum = fmaf(__ldcg(a.parts + i * f.product.batch + row + 8 * r), f.product.regain, sum);
        }
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const int at = (2 * w + r) * 4 + 2 * r;
            if (thread / 32 == w) total[at] = total[at + 1] = sum; /* of these one is asked for */
        }
    }
    State<C::TOTALS> state[2];
    fold_sums<C>(f, total, row, 2 * (lane % 4), table + 2 * (lane % 4), state);
}

template <bool BF16> cudaError_t launch_asked(const rfi_cuda_asked &a, cudaStream_t stream) {
    typedef Asked<BF16> C;
    const int64_t blocks = rfi_tiles(a.fold.product.batch, ROWS),
                  parts = rfi_tiles(a.fold.product.in_features, C::DEPTH * C::K);
    if (blocks > INT32_MAX || parts > 65535) return cudaErrorInvalidConfiguration;
    const dim3 grid((unsigned)blocks, (unsigned)parts);
    cudaError_t error =
        rfi_launch(multiply_asked<BF16>, &a, grid, ASKED_THREADS, 0, stream, a.fold.schedule.overlaps != 0);
    if (error) return error;
    return rfi_launch(
        finish_asked<BF16>, &a, dim3((unsigned)blocks), ASKED_THREADS, 0, stream, a.fold.schedule.overlaps != 0);
}

} // namespace
} // namespace hopper

cudaError_t rfi_cuda_launch_asked(const rfi_cuda_asked *asked, cudaStream_t stream) {
    return asked->fold.product.w.dtype == RF_BFLOAT16 ? hopper::launch_asked<true>(*asked, stream)
                                                      : hopper::launch_asked<false>(*asked, stream);
}
