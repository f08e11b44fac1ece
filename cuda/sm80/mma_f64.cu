/* SPDX-License-Identifier: MIT */
/* float64 on the tensor cores, or on what stands for them. The pattern of sm80/mma.cu: stages by cp.async, zeros
 * beyond the edges.
 *
 * A row of a stage is 128 bytes, four units of four values, permuted by the row's number, so that the four rows by one
 * unit that half a warp reads at once lie in different banks. Blocks are small, three a multiprocessor, and a warp
 * loads one half of a stage while it multiplies the other: so the tensor cores do not wait for barriers and loads. */
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "sm80/splits.cuh"
#include "sm80/stages.cuh"

namespace {

constexpr int ROWS = 64, COLUMNS = 64, BLOCKS = 3; /* of a multiprocessor, by registers */
constexpr int WARP_ROWS = 32, WARP_COLUMNS = 32, M_TILES = WARP_ROWS / 16, N_TILES = WARP_COLUMNS / 8;
constexpr int THREADS = ROWS / WARP_ROWS * (COLUMNS / WARP_COLUMNS) * 32;
constexpr int DEPTH = 16, ROW_BYTES = DEPTH * 8, X_BYTES = ROWS * ROW_BYTES, STAGES = 4,
              STAGE = X_BYTES + COLUMNS * ROW_BYTES, RING = STAGES * STAGE;
constexpr int TILE_LD = COLUMNS + 4;
static_assert(ROW_BYTES == 128 && RING >= ROWS * TILE_LD * 8, "four units a row; the tile takes the ring's place");

/* See sm80/stages.cuh. */
template <bool WHOLE_PIECES> struct shape {
    static constexpr int threads = THREADS, item = 8, row_bytes = ROW_BYTES, pieces = row_bytes / 16;
    static constexpr bool whole_pieces = WHOLE_PIECES;
};

/* Byte offset of byte `at` of row `row` in a stage's part of x or W. The permutation depends on the row modulo 4 alone.
 */
__device__ __forceinline__ int place(int row, int at) { return row * ROW_BYTES + (at ^ (row & 3) << 5); }

/* The copies of a thread. */
template <class S> struct pipeline {
    source<S> x, w;
    uint32_t mine;   /* shared address of the thread's first piece in the first stage */
    int write;       /* offset in the ring of the stage to copy */
    int next, whole; /* the number of that stage, and of those that K fills */
    int last_bytes;  /* of the thread's pieces in the stage behind those */
};

/* Starts the copy of an operand's part of the next stage, and moves on. */
template <class S, int TILE_ROWS>
__device__ __forceinline__ void copy_operand(source<S> &from, uint32_t to, int bytes) {
    copy_tile<S, TILE_ROWS>(to, from.term[0], from.stride, from.rows, bytes);
    from.term[0] += S::row_bytes;
}

/* Starts the copies of the next stage. */
template <class S> __device__ __forceinline__ void copy_stage(pipeline<S> &pipe) {
    const uint32_t x = pipe.mine + pipe.write, w = x + X_BYTES;
    if (pipe.next < pipe.whole) {
        copy_operand<S, ROWS>(pipe.x, x, 16);
        copy_operand<S, COLUMNS>(pipe.w, w, 16);
    } else { /* a size that is no constant takes twice the instructions */
        const int bytes = pipe.next == pipe.whole ? pipe.last_bytes : 0;
        copy_operand<S, ROWS>(pipe.x, x, bytes);
        copy_operand<S, COLUMNS>(pipe.w, w, bytes);
    }
    rfi_copy_commit();
    pipe.next++;
    pipe.write = pipe.write + STAGE == RING ? 0 : pipe.write + STAGE;
}

/* What a warp multiplies of half a stage: see rfi_mma_f64. */
struct fragments {
    double a[M_TILES][4], b[N_TILES][2];
};

/* Half `half` of a stage. `x` and `w` are the warp's rows in it, `lane_at` the lane's place in them at depth 0. */
__device__ __forceinline__ void load_half(fragments &f, const uint8_t *x, const uint8_t *w, int lane_at, int half) {
    const int at[2] = {lane_at ^ (2 * half) << 5, lane_at ^ (2 * half + 1) << 5};
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) f.a[m][i] = *(const double *)(x + at[i / 2] + (m * 16 + i % 2 * 8) * ROW_BYTES);
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) f.b[n][i] = *(const double *)(w + at[i] + n * 8 * ROW_BYTES);
}

__device__ __forceinline__ void multiply(double (&sum)[M_TILES][N_TILES][4], const fragments &f) {
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++) rfi_mma_f64(sum[m][n], f.a[m], f.b[n]);
}

template <class S> __global__ void __launch_bounds__(THREADS, BLOCKS)
    fold_mma_f64(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    extern __shared__ __align__(128) uint8_t ring[];
    const int64_t row0 = (int64_t)blockIdx.x * ROWS, column0 = (int64_t)blockIdx.y * COLUMNS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / (COLUMNS / WARP_COLUMNS) * WARP_ROWS,
              warp_column = warp % (COLUMNS / WARP_COLUMNS) * WARP_COLUMNS;
    const auto [first_column, end_column] = rfi_part_of(p);
    const int64_t depth = end_column - first_column;
    const int steps = (int)((depth + DEPTH - 1) / DEPTH), piece = threadIdx.x % S::pieces;
    pipeline<S> pipe = {
        .x = source_of<S>(p.product.x, row0, p.product.batch),
        .w = source_of<S>(p.product.w, column0, p.product.out_features),
        .mine = rfi_shared_address(ring) + place(threadIdx.x / S::pieces, piece * 16),
        .whole = (int)(depth / DEPTH),
        .last_bytes = min(max((int)(depth % DEPTH) * S::item - piece * 16, 0), 16),
    };
    rfi_release_next();
    rfi_wait_for_previous();
    pipe.x.term[0] += first_column * S::item;
    pipe.w.term[0] += first_column * S::item;
#pragma unroll
    for (int s = 0; s < STAGES; s++) copy_stage<S>(pipe);
    const uint8_t *x = ring + warp_row * ROW_BYTES, *w = ring + X_BYTES + warp_column * ROW_BYTES;
    const int lane_at = place(lane / 4, lane % 4 * 8);
    double sum[M_TILES][N_TILES][4] = {};
    fragments first, second;
    rfi_copy_wait<STAGES - 1>();
    __syncthreads();
    load_half(first, x, w, lane_at, 0);
    int read = 0;
    for (int step = 0; step < steps; step++) {
        load_half(second, x + read, w + read, lane_at, 1);
        multiply(sum, first);
        rfi_copy_wait<STAGES - 2>();
        __syncthreads(); /* the next stage is there for all; this one is read by all */
        copy_stage<S>(pipe);
        read = read + STAGE == RING ? 0 : read + STAGE;
        load_half(first, x + read, w + read, lane_at, 0);
        multiply(sum, second);
    }
    rfi_copy_wait<0>();
    __syncthreads(); /* the ring is read: the tile takes its place */
    double *tile = (double *)ring;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                tile[(warp_row + m * 16 + i / 2 * 8 + lane / 4) * TILE_LD + warp_column + n * 8 + lane % 4 * 2 +
                    i % 2] = sum[m][n][i];
    __syncthreads(); /* the tile is written */
    const int rows = (int)min((int64_t)ROWS, p.product.batch - row0);
    if (p.schedule.splits > 1 && !rfi_add_splits<ROWS, COLUMNS, THREADS>(p.schedule, tile, TILE_LD, rows)) return;
    rfi_fold_tile<double, 2>(p, (const double *)tile, TILE_LD, row0, rows, column0, COLUMNS);
    if (p.schedule.tickets) rfi_finish_rows<double>(p, blockIdx.x, blockIdx.y, gridDim.y, row0, rows);
}

} // namespace

cudaError_t rfi_cuda_fold_mma_f64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    int64_t row_blocks = rfi_tiles(fold->product.batch, ROWS),
            column_blocks = rfi_tiles(fold->product.out_features, COLUMNS);
    if (row_blocks > INT32_MAX || column_blocks > 65535 || fold->schedule.splits > 65535 ||
        fold->product.in_features / DEPTH > INT32_MAX - STAGES)
        return cudaErrorInvalidConfiguration;
    /* As in forward.c, but what lies beside a row is not known here. */
    const auto in_pieces = [&](const rfi_cuda_rows &rows) {
        return fold->product.in_features % 2 == 0 && rows.ld % 2 == 0 && (uintptr_t)rows.data % 16 == 0;
    };
    return rfi_launch(in_pieces(fold->product.x) && in_pieces(fold->product.w) ? fold_mma_f64<shape<true>>
                                                                               : fold_mma_f64<shape<false>>,
        fold, dim3((unsigned)row_blocks, (unsigned)column_blocks, (unsigned)fold->schedule.splits), THREADS, RING,
        stream, fold->schedule.overlaps);
}
