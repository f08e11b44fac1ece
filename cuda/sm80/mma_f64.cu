/* SPDX-License-Identifier: MIT */
/* float64 on the tensor cores, or on what stands for them. The pattern of sm80/mma.cu: stages by cp.async, zeros
 * beyond the edges.
 *
 * A row of a stage is 128 bytes, four units of four values, permuted by the row's number, so that the four rows by one
 * unit that half a warp reads at once lie in different banks. Blocks are small, three a multiprocessor or, with tiles
 * of 32 rows, four, and a warp loads one half of a stage while it multiplies the other: so the tensor cores do not wait
 * for barriers and loads. K of few tiles, or of the last of many, is shared out: see sm80/splits.cuh. */
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "sm80/splits.cuh"
#include "sm80/stages.cuh"

namespace {

constexpr int COLUMNS = 64, THREADS = 128, WARP_ROWS = 32, M_TILES = WARP_ROWS / 16;
constexpr int DEPTH = 16, ROW_BYTES = DEPTH * 8, STAGES = 4;
constexpr int TILE_LD = COLUMNS + 4;
static_assert(ROW_BYTES == 128, "four units a row");

/* See sm80/stages.cuh. ROWS of a tile; BLOCKS of a multiprocessor, by registers. */
template <int PIECE_BYTES, int ROWS, int BLOCKS> struct shape {
    static constexpr int threads = THREADS, item = 8, row_bytes = ROW_BYTES, piece_bytes = PIECE_BYTES,
                         pieces = row_bytes / piece_bytes;
    static constexpr int rows = ROWS, blocks = BLOCKS, warps_n = THREADS / 32 / (ROWS / WARP_ROWS),
                         warp_columns = COLUMNS / warps_n, n_tiles = warp_columns / 8;
    static constexpr int x_bytes = ROWS * ROW_BYTES, stage = x_bytes + COLUMNS * ROW_BYTES, ring = STAGES * stage;
    static_assert(ring >= ROWS * TILE_LD * 8, "the tile takes the ring's place");
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
    const uint32_t x = pipe.mine + pipe.write, w = x + S::x_bytes;
    if (pipe.next < pipe.whole) {
        copy_operand<S, S::rows>(pipe.x, x, S::piece_bytes);
        copy_operand<S, COLUMNS>(pipe.w, w, S::piece_bytes);
    } else { /* a size that is no constant takes twice the instructions */
        const int bytes = pipe.next == pipe.whole ? pipe.last_bytes : 0;
        copy_operand<S, S::rows>(pipe.x, x, bytes);
        copy_operand<S, COLUMNS>(pipe.w, w, bytes);
    }
    rfi_copy_commit();
    pipe.next++;
    pipe.write = pipe.write + S::stage == S::ring ? 0 : pipe.write + S::stage;
}

/* What a warp multiplies of half a stage: see rfi_mma_f64. */
template <class S> struct fragments {
    double a[M_TILES][4], b[S::n_tiles][2];
};

/* Half `half` of a stage. `x` and `w` are the warp's rows in it, `lane_at` the lane's place in them at depth 0. */
template <class S>
__device__ __forceinline__ void load_half(fragments<S> &f, const uint8_t *x, const uint8_t *w, int lane_at, int half) {
    const int at[2] = {lane_at ^ (2 * half) << 5, lane_at ^ (2 * half + 1) << 5};
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) f.a[m][i] = *(const double *)(x + at[i / 2] + (m * 16 + i % 2 * 8) * ROW_BYTES);
#pragma unroll
    for (int n = 0; n < S::n_tiles; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) f.b[n][i] = *(const double *)(w + at[i] + n * 8 * ROW_BYTES);
}

template <class S>
__device__ __forceinline__ void multiply(double (&sum)[M_TILES][S::n_tiles][4], const fragments<S> &f) {
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < S::n_tiles; n++) rfi_mma_f64(sum[m][n], f.a[m], f.b[n]);
}

template <class S> __global__ void __launch_bounds__(THREADS, S::blocks)
    fold_mma_f64(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    extern __shared__ __align__(128) uint8_t ring[];
    /* Blocks are whole tiles first, then the first parts of the others, the second parts, and so on. */
    const unsigned splits = p.schedule.splits, row_blocks = (unsigned)rfi_tiles(p.product.batch, S::rows),
                   whole = p.schedule.whole_columns * row_blocks;
    const bool in_parts = splits > 1 && blockIdx.x >= whole;
    const unsigned shared_tiles = (gridDim.x - whole) / splits,
                   shared = in_parts ? (blockIdx.x - whole) % shared_tiles : 0,
                   part = in_parts ? (blockIdx.x - whole) / shared_tiles : 0,
                   tile_index = in_parts ? whole + shared : blockIdx.x, row_block = tile_index % row_blocks,
                   column_block = tile_index / row_blocks;
    const int64_t row0 = (int64_t)row_block * S::rows, column0 = (int64_t)column_block * COLUMNS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / S::warps_n * WARP_ROWS, warp_column = warp % S::warps_n * S::warp_columns;
    const auto [first_column, end_column] = rfi_part_of(p, in_parts, part);
    const int64_t depth = end_column - first_column;
    const int steps = (int)((depth + DEPTH - 1) / DEPTH), piece = threadIdx.x % S::pieces;
    pipeline<S> pipe = {
        .x = source_of<S>(p.product.x, row0, p.product.batch),
        .w = source_of<S>(p.product.w, column0, p.product.out_features),
        .mine = rfi_shared_address(ring) + place(threadIdx.x / S::pieces, piece * S::piece_bytes),
        .whole = (int)(depth / DEPTH),
        .last_bytes = min(max((int)(depth % DEPTH) * S::item - piece * S::piece_bytes, 0), S::piece_bytes),
    };
    rfi_release_next();
    rfi_wait_for_previous();
    pipe.x.term[0] += first_column * S::item;
    pipe.w.term[0] += first_column * S::item;
#pragma unroll
    for (int s = 0; s < STAGES; s++) copy_stage<S>(pipe);
    const uint8_t *x = ring + warp_row * ROW_BYTES, *w = ring + S::x_bytes + warp_column * ROW_BYTES;
    const int lane_at = place(lane / 4, lane % 4 * 8);
    double sum[M_TILES][S::n_tiles][4] = {};
    fragments<S> first, second;
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
        read = read + S::stage == S::ring ? 0 : read + S::stage;
        load_half(first, x + read, w + read, lane_at, 0);
        multiply(sum, second);
    }
    rfi_copy_wait<0>();
    __syncthreads(); /* the ring is read: the tile takes its place */
    double *tile = (double *)ring;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < S::n_tiles; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                tile[(warp_row + m * 16 + i / 2 * 8 + lane / 4) * TILE_LD + warp_column + n * 8 + lane % 4 * 2 +
                    i % 2] = sum[m][n][i];
    __syncthreads(); /* the tile is written */
    const int rows = (int)min((int64_t)S::rows, p.product.batch - row0);
    if (in_parts && !rfi_add_splits<S::rows, COLUMNS, THREADS>(p.schedule, shared, part, tile, TILE_LD, rows)) return;
    rfi_fold_tile<double, 2>(p, (const double *)tile, TILE_LD, row0, rows, column0, COLUMNS);
    if (p.schedule.tickets)
        rfi_finish_rows<double>(
            p, row_block, column_block, (unsigned)rfi_tiles(p.product.out_features, COLUMNS), row0, rows);
}

/* ROWS and BLOCKS as in shape. */
template <int ROWS, int BLOCKS> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t row_blocks = rfi_tiles(fold->product.batch, ROWS),
                  column_blocks = rfi_tiles(fold->product.out_features, COLUMNS);
    if (row_blocks > INT32_MAX || column_blocks > 65535 || fold->product.in_features / DEPTH > INT32_MAX - STAGES)
        return cudaErrorInvalidConfiguration;
    const int64_t whole = fold->schedule.whole_columns,
                  blocks = row_blocks * (whole + (column_blocks - whole) * fold->schedule.splits);
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    /* As in forward.c, but what lies beside a row is not known here. */
    const auto in_pieces = [&](const rfi_cuda_rows &rows) {
        return fold->product.in_features % 2 == 0 && rows.ld % 2 == 0 && (uintptr_t)rows.data % 16 == 0;
    };
    typedef shape<16, ROWS, BLOCKS> pieces;
    return rfi_launch(in_pieces(fold->product.x) && in_pieces(fold->product.w) ? fold_mma_f64<pieces>
                                                                               : fold_mma_f64<shape<8, ROWS, BLOCKS>>,
        fold, dim3((unsigned)blocks), THREADS, pieces::ring, stream, fold->schedule.overlaps);
}

} // namespace

cudaError_t rfi_cuda_fold_mma_f64_64x64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<64, 3>(fold, stream);
}
cudaError_t rfi_cuda_fold_mma_f64_32x64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<32, 4>(fold, stream);
}
