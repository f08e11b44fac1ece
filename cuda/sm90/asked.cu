/* SPDX-License-Identifier: MIT */
/* The logits of the columns that rows ask for, ahead of a search: 16-bit values as they are stored, which the kernels
 * of tiles sum up by parts of K. Each part is as good as any other, so that they are computed side by side, and added
 * in their order: the bits are those of the tile that has the column. */
#include "answers.h"
#include "common/clear.cuh"
#include "common/ptx.cuh"
#include "sm90/launch.cuh"

namespace hopper {
namespace {

constexpr int ROWS = 64, ASKED_THREADS = 128; /* of a block: one warpgroup */
constexpr int BLOCKS = 8;                     /* of a cluster, which share out the parts of K of 64 rows */
constexpr int DEEP = 3;                       /* parts on their way in a block */

template <bool BF16> using Asked = Config<1, 1, BF16, 64, 128, 1, 2, true, false>;
static_assert(
    Asked<true>::DEPTH * Asked<true>::K == RFI_SM90_PART && Asked<false>::DEPTH * Asked<false>::K == RFI_SM90_PART,
    "as the callers lay it out");

template <class C> constexpr int TILE = ROWS * C::ROW;                /* bytes of a stage of x, or of W */
template <class C> constexpr int PART_BYTES = 2 * C::DEPTH * TILE<C>; /* of both */

__device__ __forceinline__ int64_t asked_by(const rfi_cuda_asked &a, int64_t row) {
    const int64_t asked = row < a.fold.product.batch ? a.asked[row] : -1;
    return asked >= 0 && asked < a.columns_there ? asked : -1;
}

/* A part of K of 64 rows of x, from `first` on, and of the 64 rows of W that they ask for, on its way to the stages at
 * `to`, as wgmma reads them. */
template <class C> __device__ __forceinline__ void fetch_part(
    const rfi_cuda_product &f, const int64_t *asked, int64_t first, int64_t part, uint32_t to) {
    constexpr int STAGE_PIECES = C::ROW / 16, PIECES = STAGE_PIECES * C::DEPTH;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * PIECES; i += ASKED_THREADS) {
        const int row = i / PIECES, piece = i % PIECES;
        const int64_t k = part * (C::DEPTH * C::K) + piece * 8, from = min(first + row, f.batch - 1),
                      column = max(asked[row], (int64_t)0);
        const uint32_t place =
            to + piece / STAGE_PIECES * TILE<C> + row * C::ROW + (piece % STAGE_PIECES ^ row % 8) * 16;
        const int bytes = (int)min(max(2 * (f.in_features - k), (int64_t)0), (int64_t)16);
        const int64_t at = f.w.panel ? rfi_place(C::K, f.w.ld, column, k) : column * f.w.ld + k; /* panels of a stage */
        rfi_copy_async_16(place, (const uint16_t *)f.x.data + from * f.x.ld + k, bytes);
        rfi_copy_async_16(place + C::DEPTH * TILE<C>, (const uint16_t *)f.w.data + at, bytes);
    }
}

/* The products of rows of x with their own rows of W, of a part in its stages, to parts of K: of all products the
 * diagonal is kept. */
template <class C> __device__ __forceinline__ void multiply_part(uint32_t at, float *to, int64_t rows) {
    const int thread = threadIdx.x, lane = thread % 32;
    float part[C::NT / 2];
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < C::DEPTH; d++)
        multiply_terms<C>(part, wgmma_descriptor<C::ROW>(at + d * TILE<C>),
            wgmma_descriptor<C::ROW>(at + (C::DEPTH + d) * TILE<C>), d > 0);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < C::NT / 2; i++) asm volatile("" : "+f"(part[i])::"memory"); /* they were being written */
    if (lane % 4 == lane / 8)                                                       /* has some of the diagonal */
#pragma unroll
        for (int w = 0; w < 4; w++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = (2 * w + r) * 4 + 2 * r, row = w * 16 + 8 * r + lane / 4;
                if (thread / 32 == w && row < rows) to[row] = lane / 4 % 2 ? part[i + 1] : part[i];
            }
}

/* What belongs to the columns that 64 rows ask for: scale, bias and vectors, and what the search begins with. */
template <class C> __device__ __forceinline__ void fetch_columns(
    const rfi_cuda_asked &a, const int64_t *asked, int64_t first, float *table) {
    const rfi_cuda_fold &f = a.fold;
    const int thread = threadIdx.x;
    const int64_t row = first + thread, from = max(asked[thread], (int64_t)0);
    table[thread] = 1;
    table[C::BN + thread] = ((const float *)f.visitor.bias)[from];
    for (int v = 0; v < f.visitor.num_vectors; v++)
        table[(2 + v) * C::BN + thread] = ((const float *)f.visitor.vectors)[v * a.columns_there + from];
    if (row >= f.product.batch) return;
    a.own[row] = asked[thread] < 0 ? -1 : thread;
    a.columns[row] = (int32_t)asked[thread];
    a.counts[row] = 0;
    if (asked[thread] < 0) ((float *)f.visitor.picked)[row] = NAN;
}

/* The parts of 64 rows, added, through the steps: by the code of the tiles, for a tile of which the diagonal is there.
 */
template <class C>
__device__ __forceinline__ void finish_rows(const rfi_cuda_asked &a, int64_t first, int parts, const float *table) {
    const rfi_cuda_fold &f = a.fold;
    const int thread = threadIdx.x, lane = thread % 32;
    const int64_t row = first + thread / 32 * 16 + lane / 4;
    float total[C::NT / 2] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = 0;
        if (lane % 4 == lane / 8 && row + 8 * r < f.product.batch) {
#pragma unroll 32
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
    fold_sums<C>(
        f, total, row, 0, 2 * (lane % 4), table + 2 * (lane % 4), /* lone: x and W are as stored */ false, state);
}

/* A cluster for 64 rows at a time: each block multiplies some parts of K, the first one adds them. */
template <bool BF16> __global__ void __launch_bounds__(ASKED_THREADS)
    compute_asked(const __grid_constant__ rfi_cuda_asked a) {
    typedef Asked<BF16> C;
    extern __shared__ uint8_t raw[];
    __shared__ __align__(16) float table[C::COLUMN_ROWS * C::BN]; /* read two at a time */
    __shared__ int64_t asked[ROWS];
    const uint32_t stages = (shared_address(raw) + 1023) & ~1023u; /* as the swizzle wants it */
    const rfi_cuda_product &f = a.fold.product;
    const int rank = (int)cluster_rank(), parts = (int)rfi_tiles(f.in_features, RFI_SM90_PART);
    const int64_t step = (int64_t)(gridDim.x / BLOCKS) * ROWS;
    rfi_begin(a.clear);
    rfi_clear_words(a.clear);
#pragma unroll 1
    for (int64_t first = (int64_t)(blockIdx.x / BLOCKS) * ROWS; first < f.batch; first += step) {
        if (threadIdx.x < ROWS) asked[threadIdx.x] = asked_by(a, first + threadIdx.x);
        __syncthreads();
        const auto fetch = [&](int turn) {
            if (rank + turn * BLOCKS < parts)
                fetch_part<C>(f, asked, first, rank + turn * BLOCKS, stages + turn % DEEP * PART_BYTES<C>);
            rfi_copy_commit();
        };
        for (int turn = 0; turn < DEEP; turn++) fetch(turn);
        if (rank == 0 && threadIdx.x < ROWS) fetch_columns<C>(a, asked, first, table);
#pragma unroll 1
        for (int turn = 0; rank + turn * BLOCKS < parts; turn++) {
            rfi_copy_wait<DEEP - 1>();
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            multiply_part<C>(stages + turn % DEEP * PART_BYTES<C>, a.parts + (rank + turn * BLOCKS) * f.batch + first,
                f.batch - first);
            __syncthreads(); /* all have read the stages */
            fetch(turn + DEEP);
        }
        cluster_sync(); /* all parts are there */
        if (rank == 0) finish_rows<C>(a, first, parts, table);
        __syncthreads();
    }
}

template <bool BF16> cudaError_t launch_asked(const rfi_cuda_asked &a, cudaStream_t stream) {
    typedef Asked<BF16> C;
    rfi_cuda_asked parameters = a;
    return launch_blocks((const void *)compute_asked<BF16>, &parameters, rfi_tiles(a.fold.product.batch, ROWS) * BLOCKS,
        BLOCKS, ASKED_THREADS, 1024 + DEEP * PART_BYTES<C>, stream);
}

} // namespace
} // namespace hopper

cudaError_t rfi_cuda_launch_asked(const rfi_cuda_asked *asked, cudaStream_t stream) {
    return asked->fold.product.w.dtype == RF_BFLOAT16 ? hopper::launch_asked<true>(*asked, stream)
                                                      : hopper::launch_asked<false>(*asked, stream);
}
