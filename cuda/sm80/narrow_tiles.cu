/* SPDX-License-Identifier: MIT */
/* Up to 32 columns of float32 and many rows: plain multiply-adds from shared memory. x is read once, as it is stored,
 * so that no row is irregular and nothing is prepared.
 *
 * A block has tiles of 128 rows. Chunks of K are on their way to stages in shared memory by cp.async, several at a
 * time; W's part of a chunk comes through registers, where its terms become values. The two halves of a block share out
 * the columns of K of a chunk, and a thread has four rows and a fourth of W's columns:
 *
 *                  W's columns: lane % 4 + 4 j
 *   rows           +-------------------------+
 *   lane / 4 + 8 i | warps 0 to 3, each 32 rows of its own: K in the first half of a chunk
 *                  | warps 4 to 7 likewise: in the second
 *
 * What PROMOTED columns of K give is added to the rest of a sum at a time, and the halves' sums in one order. Where
 * rows are few K is shared out among blocks, too: see sm80/splits.cuh. */
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "common/pieces.cuh"
#include "common/ptx.cuh"
#include "sm80/splits.cuh"

using namespace pieces;

namespace {

constexpr int ROWS = 128, CHUNK = 32, HALF = CHUNK / 2, PROMOTED = 128;
constexpr int STAGES = 3;
constexpr int LD = CHUNK + 4; /* of a row in a stage: eight rows, 16 bytes of each, are in different banks */
constexpr int TILE_LD = RFI_FOLD_COLUMNS + 4;
constexpr int THREAD_ROWS = 4;
constexpr int BLOCKS = 2; /* a multiprocessor */

template <int COLUMNS> struct shape {
    static constexpr int columns = COLUMNS, thread_columns = COLUMNS / 4;
    static constexpr int x_stage = ROWS * LD, w_stage = COLUMNS * LD; /* values */
    static constexpr int shared = (STAGES * x_stage + 2 * w_stage) * (int)sizeof(float);
    static_assert(shared >= ROWS * TILE_LD * (int)sizeof(float), "the tile lies where the stages were");
    static_assert(COLUMNS * CHUNK / PIECE<float> <= THREADS, "a thread brings a piece of W");
    static_assert(RFI_SPLIT_DEPTH % CHUNK == 0 && PROMOTED % HALF == 0, "whole chunks");
};

/* A chunk of K of a tile's rows, on its way to a stage; zeros for rows that are not there. `whole`: rows begin at whole
 * pieces of 16 bytes. */
__device__ __forceinline__ void fetch(
    const rfi_cuda_rows &x, float *stage, int64_t row0, int rows, int64_t k0, int64_t end, bool whole) {
    if (whole && k0 + CHUNK <= end) {
        constexpr int STEP = THREADS / (CHUNK / 4); /* rows from one of a thread's to its next */
        const int row = threadIdx.x / (CHUNK / 4), k = threadIdx.x % (CHUNK / 4) * 4;
        const float *from = (const float *)x.data + (row0 + row) * x.ld + k0 + k;
        const uint32_t to = rfi_shared_address(stage + row * LD + k);
#pragma unroll
        for (int i = 0; i < ROWS / STEP; i++, from += STEP * x.ld)
            rfi_copy_async_16(to + i * (STEP * LD * 4), from, row + i * STEP < rows ? 16 : 0);
        return;
    }
    const int k = threadIdx.x % CHUNK;
#pragma unroll 4
    for (int row = threadIdx.x / CHUNK; row < ROWS; row += THREADS / CHUNK) {
        float *const to = stage + row * LD + k;
        if (row < rows && k0 + k < end)
            rfi_copy_async_4(rfi_shared_address(to), (const float *)x.data + (row0 + row) * x.ld + k0 + k);
        else *to = 0;
    }
}

/* sum += the products of a half of a chunk. `x` and `w` begin at the thread's first row and column. */
template <int COLUMNS>
__device__ __forceinline__ void multiply(float (&sum)[THREAD_ROWS][COLUMNS], const float *x, const float *w) {
#pragma unroll
    for (int k = 0; k < HALF; k += 4) {
        float a[THREAD_ROWS][4];
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; i++) load_four(a[i], x + 8 * i * LD + k);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float b[4];
            load_four(b, w + 4 * j * LD + k);
#pragma unroll
            for (int i = 0; i < THREAD_ROWS; i++)
#pragma unroll
                for (int n = 0; n < 4; n++) sum[i][j] = fmaf(a[i][n], b[n], sum[i][j]);
        }
    }
}

template <class S> __global__ void __launch_bounds__(THREADS, BLOCKS)
    fold_narrow_tiles(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    extern __shared__ __align__(16) float shared[];
    float *const x_stages = shared, *const w_stages = shared + STAGES * S::x_stage;
    const int64_t row0 = (int64_t)blockIdx.x * ROWS;
    const int rows = (int)min((int64_t)ROWS, p.product.batch - row0), columns = (int)p.product.out_features;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp / 4;
    const int row = warp % 4 * 32 + lane / 4, column = lane % 4; /* the thread's first */
    const rfi_part part = rfi_part_of(p);
    const int chunks = (int)((part.end - part.first + CHUNK - 1) / CHUNK);
    const bool whole = (uintptr_t)p.product.x.data % 16 == 0 && p.product.x.ld % 4 == 0;
    const operand w_from = operand_of<float>(p.product.w);
    const int w_column = threadIdx.x / (CHUNK / PIECE<float>), w_k = threadIdx.x % (CHUNK / PIECE<float>)*PIECE<float>;
    const bool brings = w_column < columns; /* columns that are not there hold whatever was there before */
    const float scale = brings && p.product.w.scale ? p.product.w.scale[w_column] : 1;
    piece<3> next;
    form next_form = VALUES;
    const auto load_w = [&](int chunk) {
        if (brings && chunk < chunks)
            next_form = load_piece<float>(next, w_from, true, w_column, part.first + chunk * CHUNK + w_k, part.end);
    };
    const auto fetch_x = [&](int chunk) {
        if (chunk < chunks)
            fetch(p.product.x, x_stages + chunk % STAGES * S::x_stage, row0, rows, part.first + chunk * CHUNK, part.end,
                whole);
        rfi_copy_commit();
    };
    float total[THREAD_ROWS][S::thread_columns] = {}, sum[THREAD_ROWS][S::thread_columns] = {};
    const auto promote = [&] {
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; i++)
#pragma unroll
            for (int j = 0; j < S::thread_columns; j++) total[i][j] += sum[i][j], sum[i][j] = 0;
    };
    rfi_release_next();
    rfi_wait_for_previous();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fetch_x(i);
    load_w(0);
    for (int chunk = 0; chunk < chunks; chunk++) {
        float *const w = w_stages + chunk % 2 * S::w_stage;
        if (brings) {
            float v[PIECE<float>];
            values_of<float>(v, next, next_form, w_from.rows.dtype == RF_BFLOAT16);
            float *const to = w + w_column * LD + w_k;
#pragma unroll
            for (int i = 0; i < PIECE<float>; i += 4)
                *(float4 *)(to + i) = {v[i] * scale, v[i + 1] * scale, v[i + 2] * scale, v[i + 3] * scale};
        }
        rfi_copy_wait<STAGES - 2>();
        __syncthreads(); /* the stages are there, and those of the chunk before are read */
        fetch_x(chunk + STAGES - 1);
        load_w(chunk + 1);
        multiply<S::thread_columns>(
            sum, x_stages + chunk % STAGES * S::x_stage + row * LD + half * HALF, w + column * LD + half * HALF);
        if ((chunk + 1) % (PROMOTED / HALF) == 0) promote();
    }
    promote();
    __syncthreads(); /* the stages are read */
    float *const tile = shared;
    for (int turn = 1; turn >= 0; turn--) {
        if (half == turn) {
#pragma unroll
            for (int i = 0; i < THREAD_ROWS; i++)
#pragma unroll
                for (int j = 0; j < S::thread_columns; j++) {
                    float *const to = tile + (row + 8 * i) * TILE_LD + column + 4 * j;
                    *to = turn ? total[i][j] : total[i][j] + *to;
                }
        }
        __syncthreads(); /* this half's sums are there */
    }
    if (p.schedule.splits > 1 && !rfi_add_splits<ROWS, S::columns, THREADS>(p.schedule, tile, TILE_LD, rows)) return;
    rfi_fold_tile<float>(p, tile, TILE_LD, row0, rows, 0, RFI_FOLD_COLUMNS);
    if (p.schedule.tickets) rfi_finish_rows<float>(p, blockIdx.x, 0, 1, row0, rows);
}

template <class S> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t row_blocks = rfi_tiles(fold->product.batch, ROWS);
    if (row_blocks > INT32_MAX || fold->schedule.splits > 65535 || fold->product.out_features > S::columns ||
        fold->product.x.dtype != RF_FLOAT32)
        return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_narrow_tiles<S>, fold, dim3((unsigned)row_blocks, 1, (unsigned)fold->schedule.splits),
        THREADS, S::shared, stream, fold->schedule.overlaps);
}

} // namespace

cudaError_t rfi_cuda_fold_narrow_128x16(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<16>>(fold, stream);
}
cudaError_t rfi_cuda_fold_narrow_128x32(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<32>>(fold, stream);
}
