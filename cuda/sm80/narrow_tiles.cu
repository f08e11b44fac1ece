/* SPDX-License-Identifier: MIT */
/* Few columns of float32, or a short K, and many rows: plain multiply-adds from shared memory. x is read as it is
 * stored, so that no row is irregular and nothing is prepared.
 *
 * A block has a tile of 128 rows and 16, 32 or 64 columns. Chunks of K are on their way to stages in shared memory by
 * cp.async, several at a time; W's part of a chunk comes through registers, where its terms become values. The two
 * halves of a block share out the columns of K of a chunk, and of a half a warp has 32 rows and all columns, of which
 * each LANES lanes share out a row's:
 *
 *                                     W's columns: lane % LANES + LANES j
 *   rows                              +-------------------------+
 *   lane / LANES + 32 / LANES i       | warps 0 to 3, each 32 rows of its own: K in the first half of a chunk
 *                                     | warps 4 to 7 likewise: in the second
 *
 * What PROMOTED columns of K give is added to the rest of a sum at a time, and the halves' sums in one order. With 64
 * columns a thread has no registers for both: the rest of its sums lies in shared memory. Where tiles are few K is
 * shared out among blocks, too: see sm80/splits.cuh. */
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

template <int COLUMNS> struct shape {
    static constexpr int columns = COLUMNS, lanes = COLUMNS == 64 ? 8 : 4, thread_columns = COLUMNS / lanes,
                         thread_rows = lanes, row_step = 32 / lanes, sums = thread_rows * thread_columns;
    static constexpr int x_stage = ROWS * LD, w_stage = COLUMNS * LD; /* values */
    static constexpr int stages = STAGES * x_stage + 2 * w_stage;
    static constexpr bool apart = COLUMNS == 64;         /* the rest of the sums lies behind the stages */
    static constexpr int blocks = COLUMNS == 64 ? 1 : 2; /* a multiprocessor */
    static_assert(stages >= ROWS * TILE_LD, "the tile lies where the stages were");
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
template <class S> __device__ __forceinline__ void multiply(float (&sum)[S::sums], const float *x, const float *w) {
#pragma unroll
    for (int k = 0; k < HALF; k += 4) {
        float a[S::thread_rows][4];
#pragma unroll
        for (int i = 0; i < S::thread_rows; i++) load_four(a[i], x + S::row_step * i * LD + k);
#pragma unroll
        for (int j = 0; j < S::thread_columns; j++) {
            float b[4];
            load_four(b, w + S::lanes * j * LD + k);
#pragma unroll
            for (int i = 0; i < S::thread_rows; i++) {
                float &to = sum[i * S::thread_columns + j];
#pragma unroll
                for (int n = 0; n < 4; n++) to = fmaf(a[i][n], b[n], to);
            }
        }
    }
}

/* The rest of a thread's sums. */
template <class S, bool APART> struct rest;
template <class S> struct rest<S, false> {
    float all[S::sums] = {};
    __device__ __forceinline__ rest(float *) {}
    __device__ __forceinline__ void add(float (&sum)[S::sums]) {
#pragma unroll
        for (int i = 0; i < S::sums; i++) all[i] += sum[i], sum[i] = 0;
    }
    __device__ __forceinline__ void take(float (&sum)[S::sums]) const {
#pragma unroll
        for (int i = 0; i < S::sums; i++) sum[i] = all[i] + sum[i];
    }
};
template <class S> struct rest<S, true> {
    float *const all;
    bool any = false;
    __device__ __forceinline__ rest(float *shared) : all(shared + threadIdx.x) {}
    __device__ __forceinline__ void add(float (&sum)[S::sums]) {
#pragma unroll
        for (int i = 0; i < S::sums; i++) all[i * THREADS] = any ? all[i * THREADS] + sum[i] : sum[i], sum[i] = 0;
        any = true;
    }
    __device__ __forceinline__ void take(float (&sum)[S::sums]) const {
#pragma unroll
        for (int i = 0; i < S::sums; i++) sum[i] = any ? all[i * THREADS] + sum[i] : sum[i];
    }
};

constexpr int PROMOTED_CHUNKS = PROMOTED / HALF;

template <class S> __global__ void __launch_bounds__(THREADS, S::blocks)
    fold_narrow_tiles(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    extern __shared__ __align__(16) float shared[];
    float *const x_stages = shared, *const w_stages = shared + STAGES * S::x_stage;
    const int64_t row0 = (int64_t)blockIdx.x * ROWS,
                  column0 = S::columns < RFI_FOLD_COLUMNS ? 0 : (int64_t)blockIdx.y * S::columns;
    const int rows = (int)min((int64_t)ROWS, p.product.batch - row0);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp / 4;
    const int row = warp % 4 * 32 + lane / S::lanes, column = lane % S::lanes; /* the thread's first */
    const rfi_part part = rfi_part_of(p);
    const int chunks = (int)((part.end - part.first + CHUNK - 1) / CHUNK);
    const bool whole = (uintptr_t)p.product.x.data % 16 == 0 && p.product.x.ld % 4 == 0;
    const operand w_from = operand_of<float>(p.product.w);
    const int w_column = threadIdx.x / (CHUNK / PIECE<float>), w_k = threadIdx.x % (CHUNK / PIECE<float>)*PIECE<float>;
    /* Columns that are not there hold whatever was there before. */
    const bool brings = w_column < S::columns && column0 + w_column < p.product.out_features;
    piece<3> next;
    form next_form = VALUES;
    const auto load_w = [&](int chunk) {
        if (brings && chunk < chunks)
            next_form =
                load_piece<float>(next, w_from, true, column0 + w_column, part.first + chunk * CHUNK + w_k, part.end);
    };
    const auto fetch_x = [&](int chunk) {
        if (chunk < chunks)
            fetch(p.product.x, x_stages + chunk % STAGES * S::x_stage, row0, rows, part.first + chunk * CHUNK, part.end,
                whole);
        rfi_copy_commit();
    };
    float sum[S::sums] = {};
    rest<S, S::apart> rest_of(shared + S::stages);
    rfi_release_next();
    rfi_wait_for_previous();
    const float scale = brings && p.product.w.scale ? p.product.w.scale[column0 + w_column] : 1;
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
        multiply<S>(
            sum, x_stages + chunk % STAGES * S::x_stage + row * LD + half * HALF, w + column * LD + half * HALF);
        if ((chunk + 1) % PROMOTED_CHUNKS == 0 && chunk + 1 < chunks) rest_of.add(sum);
    }
    rest_of.take(sum);
    __syncthreads(); /* the stages are read */
    float *const tile = shared;
    for (int turn = 1; turn >= 0; turn--) {
        if (half == turn) {
#pragma unroll
            for (int i = 0; i < S::thread_rows; i++)
#pragma unroll
                for (int j = 0; j < S::thread_columns; j++) {
                    float *const to = tile + (row + S::row_step * i) * TILE_LD + column + S::lanes * j;
                    const float mine = sum[i * S::thread_columns + j];
                    *to = turn ? mine : mine + *to;
                }
        }
        __syncthreads(); /* this half's sums are there */
    }
    if (p.schedule.splits > 1 && !rfi_add_splits<ROWS, S::columns, THREADS>(p.schedule, tile, TILE_LD, rows)) return;
    rfi_fold_tile<float>(p, tile, TILE_LD, row0, rows, column0, RFI_FOLD_COLUMNS);
    if (p.schedule.tickets) rfi_finish_rows<float>(p, blockIdx.x, blockIdx.y, gridDim.y, row0, rows);
}

template <class S> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t row_blocks = rfi_tiles(fold->product.batch, ROWS),
                  column_blocks = rfi_tiles(fold->product.out_features, S::columns);
    if (row_blocks > INT32_MAX || column_blocks > (S::columns < RFI_FOLD_COLUMNS ? 1 : 65535) ||
        fold->schedule.splits > 65535 || fold->product.x.dtype != RF_FLOAT32)
        return cudaErrorInvalidConfiguration;
    const int64_t depth = fold->schedule.splits > 1 ? fold->schedule.split_depth : fold->product.in_features;
    const int values = S::stages + (S::apart && depth > PROMOTED_CHUNKS * CHUNK ? THREADS * S::sums : 0);
    return rfi_launch(fold_narrow_tiles<S>, fold,
        dim3((unsigned)row_blocks, (unsigned)column_blocks, (unsigned)fold->schedule.splits), THREADS,
        values * sizeof(float), stream, fold->schedule.overlaps);
}

} // namespace

cudaError_t rfi_cuda_fold_narrow_128x16(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<16>>(fold, stream);
}
cudaError_t rfi_cuda_fold_narrow_128x32(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<32>>(fold, stream);
}
cudaError_t rfi_cuda_fold_narrow_128x64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<64>>(fold, stream);
}
