/* SPDX-License-Identifier: MIT */
/* float64 on the tensor cores, or on what stands for them. The pattern of sm80/mma.cu: stages by cp.async, zeros
 * beyond the edges.
 *
 * A row of a stage is 128 bytes, four units of four values, permuted by the row's number, so that the four rows by one
 * unit that half a warp reads at once lie in different banks. Blocks are small, three a multiprocessor or, with tiles
 * of 32 rows, four, and a warp loads one half of a stage while it multiplies the other: so the tensor cores do not wait
 * for barriers and loads. K of few tiles, or of the last of many, is shared out: see sm80/splits.cuh.
 *
 * Rows that begin at any value are copied in pieces of 16 bytes as well, from the multiple of 16 at or before their
 * beginning; in a stage their values then lie one place further than those of other rows, the last one of 16 at the
 * beginning of the next stage:
 *
 *   row           k =  0  1 | 2  3 | ...  | 14 15 | 16 17 |
 *   shifted row       -1  0 | 1  2 | ...  | 13 14 | 15 16 |
 *                    one stage                    | the next one */
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

/* See sm80/stages.cuh. SHIFTS: rows may begin anywhere. ROWS of a tile; BLOCKS of a multiprocessor, by registers. */
template <bool SHIFTS, int ROWS, int BLOCKS> struct shape {
    static constexpr bool shifts = SHIFTS;
    static constexpr int threads = THREADS, item = 8, row_bytes = ROW_BYTES, pieces = row_bytes / 16;
    static constexpr int rows = ROWS, blocks = BLOCKS, warps_n = THREADS / 32 / (ROWS / WARP_ROWS),
                         warp_columns = COLUMNS / warps_n, n_tiles = warp_columns / 8;
    static constexpr int x_bytes = ROWS * ROW_BYTES, stage = x_bytes + COLUMNS * ROW_BYTES, ring = STAGES * stage;
    static_assert(ring >= ROWS * TILE_LD * 8, "the tile takes the ring's place");
    static_assert(n_tiles % 2 == 0, "even and odd rows of W");
};

/* Byte offset of byte `at` of row `row` in a stage's part of x or W. The permutation depends on the row modulo 8 alone.
 */
__device__ __forceinline__ int place(int row, int at) { return row * ROW_BYTES + (at ^ (row / 2 & 3) << 5); }

/* Values by which row `row` of x or W lies further in a stage: 0 or 1. */
template <class S> __device__ __forceinline__ int shift_of(const rfi_cuda_rows &rows, int64_t row) {
    return S::shifts ? (int)(((uintptr_t)rows.data / 8 + row * rows.ld) & 1) : 0;
}

/* The copies of a thread. All of its rows of an operand are shifted alike. */
template <class S> struct operand {
    source<S> from;
    int shift, last_bytes; /* bytes of its pieces in the stage behind those that K fills */
};
template <class S> struct pipeline {
    operand<S> x, w;
    uint32_t mine;   /* shared address of the thread's first piece in the first stage */
    int write;       /* offset in the ring of the stage to copy */
    int next, whole; /* the number of that stage, and of those that K fills */
};

/* The columns of K from `first` on, `depth` of them. */
template <class S> __device__ __forceinline__ operand<S> operand_of(
    const rfi_cuda_rows &rows, int64_t row0, int64_t count, int64_t first, int64_t depth) {
    const int row = threadIdx.x / S::pieces, piece = threadIdx.x % S::pieces;
    operand<S> o = {.from = source_of<S>(rows, row0, count), .shift = shift_of<S>(rows, row0 + row)};
    o.from.term[0] += (first - o.shift) * S::item;
    o.last_bytes = min(max(((int)(depth % DEPTH) + o.shift) * S::item - piece * 16, 0), 16);
    return o;
}

/* Starts the copy of an operand's part of the next stage, `bytes` of each of the thread's pieces, by halves: the first
 * half may belong to nobody, and is left out where it lies in front of the row. */
template <class S, int TILE_ROWS>
__device__ __forceinline__ void copy_halves(const operand<S> &o, uint32_t to, int stage, int bytes) {
    const source<S> &from = o.from;
    if (stage > 0 || !o.shift || threadIdx.x % S::pieces > 0)
        copy_tile<S, TILE_ROWS, 8>(to, from.term[0], from.stride, from.rows, min(bytes, 8));
    copy_tile<S, TILE_ROWS, 8>(to + 8, from.term[0] + 8, from.stride, from.rows, max(bytes - 8, 0));
}

/* Starts the copies of the next stage, and moves on. */
template <class S> __device__ __forceinline__ void copy_stage(pipeline<S> &pipe) {
    const uint32_t x = pipe.mine + pipe.write, w = x + S::x_bytes;
    if (pipe.next < pipe.whole && !(S::shifts && pipe.next == 0)) {
        copy_tile<S, S::rows>(x, pipe.x.from.term[0], pipe.x.from.stride, pipe.x.from.rows, 16);
        copy_tile<S, COLUMNS>(w, pipe.w.from.term[0], pipe.w.from.stride, pipe.w.from.rows, 16);
    } else {
        const int all = pipe.next < pipe.whole ? 16 : 0;
        const bool last = pipe.next == pipe.whole;
        copy_halves<S, S::rows>(pipe.x, x, pipe.next, last ? pipe.x.last_bytes : all);
        copy_halves<S, COLUMNS>(pipe.w, w, pipe.next, last ? pipe.w.last_bytes : all);
    }
    rfi_copy_commit();
    pipe.x.from.term[0] += S::row_bytes;
    pipe.w.from.term[0] += S::row_bytes;
    pipe.next++;
    pipe.write = pipe.write + S::stage == S::ring ? 0 : pipe.write + S::stage;
}

/* A lane's places in the rows of an operand that it reads, of which half are even and half are odd: rows
 * 2 (lane / 4) + i % 2 of 16. So the lanes of a warp read rows that are shifted alike, from different banks. */
struct places {
    int even, odd; /* of values lane % 4 of the even units of four values, and of the odd ones, but for the units */
    bool ends_in_next;
};
template <class S> __device__ __forceinline__ places places_of(const rfi_cuda_rows &rows, int64_t row0, int odd_row) {
    const int lane = threadIdx.x % 32, row = lane / 4 * 2 + odd_row, first = lane % 4 + shift_of<S>(rows, row0 + row),
              beyond = first / 4;
    const int at = place(row, first % 4 * 8);
    return {at ^ beyond << 5, at ^ (beyond * 3) << 5, S::shifts && beyond};
}

/* What a warp multiplies of half a stage: see rfi_mma_f64. */
template <class S> struct fragments {
    double a[M_TILES][4], b[S::n_tiles][2];
};

/* Half `half` of the stage at `read` of the ring, `after` the next one. `x` and `w` are the warp's rows. */
template <class S> __device__ __forceinline__ void load_half(fragments<S> &f, const uint8_t *x, const uint8_t *w,
    const places (&in_x)[2], const places (&in_w)[2], int read, int after, int half) {
    const auto at = [&](const places &in, int i) {
        const int unit = 2 * half + i;
        return (unit == 3 && in.ends_in_next ? after : read) + ((i ? in.odd : in.even) ^ unit << 5);
    };
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int odd_row = 0; odd_row < 2; odd_row++) {
            /* rows that are not shifted lie alike, so that one sum of addresses serves both */
            const int other = S::shifts ? odd_row : 0, below = (odd_row - other) * ROW_BYTES;
            const uint8_t *const a = x + at(in_x[other], i) + below, *const b = w + at(in_w[other], i) + below;
#pragma unroll
            for (int m = 0; m < M_TILES; m++) f.a[m][2 * i + odd_row] = *(const double *)(a + m * 16 * ROW_BYTES);
#pragma unroll
            for (int n = odd_row; n < S::n_tiles; n += 2) f.b[n][i] = *(const double *)(b + n / 2 * 16 * ROW_BYTES);
        }
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
    const int steps = (int)((depth + DEPTH - 1) / DEPTH);
    pipeline<S> pipe = {
        .x = operand_of<S>(p.product.x, row0, p.product.batch, first_column, depth),
        .w = operand_of<S>(p.product.w, column0, p.product.out_features, first_column, depth),
        .mine = rfi_shared_address(ring) + place(threadIdx.x / S::pieces, threadIdx.x % S::pieces * 16),
        .whole = (int)(depth / DEPTH),
    };
    const places in_x[2] = {places_of<S>(p.product.x, row0, 0), places_of<S>(p.product.x, row0, 1)},
                 in_w[2] = {places_of<S>(p.product.w, column0, 0), places_of<S>(p.product.w, column0, 1)};
    rfi_release_next();
    rfi_wait_for_previous();
#pragma unroll
    for (int s = 0; s < STAGES; s++) copy_stage<S>(pipe);
    const uint8_t *x = ring + warp_row * ROW_BYTES, *w = ring + S::x_bytes + warp_column * ROW_BYTES;
    double sum[M_TILES][S::n_tiles][4] = {};
    fragments<S> first, second;
    rfi_copy_wait<STAGES - 1>();
    __syncthreads();
    load_half(first, x, w, in_x, in_w, 0, 0, 0);
    int read = 0;
    for (int step = 0; step < steps; step++) {
        const int after = read + S::stage == S::ring ? 0 : read + S::stage;
        if (S::shifts) { /* the second half ends in the next stage */
            rfi_copy_wait<STAGES - 2>();
            __syncthreads();
        }
        load_half(second, x, w, in_x, in_w, read, after, 1);
        multiply(sum, first);
        if (!S::shifts) rfi_copy_wait<STAGES - 2>();
        __syncthreads(); /* the next stage is there for all; this one is read by all */
        copy_stage<S>(pipe);
        read = after;
        load_half(first, x, w, in_x, in_w, read, read, 0);
        multiply(sum, second);
    }
    rfi_copy_wait<0>();
    __syncthreads(); /* the ring is read: the tile takes its place */
    double *tile = (double *)ring;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < S::n_tiles; n += 2) /* of neighbouring columns, see `places` */
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(double2 *)&tile[(warp_row + m * 16 + lane / 4 * 2 + i / 2) * TILE_LD + warp_column + n * 8 +
                    (lane % 4 * 2 + i % 2) * 2] = {sum[m][n][i], sum[m][n + 1][i]};
    __syncthreads(); /* the tile is written */
    const int rows = (int)min((int64_t)S::rows, p.product.batch - row0);
    if (in_parts && !rfi_add_splits<S::rows, COLUMNS, THREADS>(p.schedule, shared, part, tile, TILE_LD, rows)) return;
    rfi_fold_tile<double>(p, (const double *)tile, TILE_LD, row0, rows, column0, COLUMNS);
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
    const auto whole_rows = [](const rfi_cuda_rows &rows) {
        return rows.ld % 2 == 0 && (uintptr_t)rows.data % 16 == 0;
    };
    typedef shape<false, ROWS, BLOCKS> whole_pieces;
    return rfi_launch(whole_rows(fold->product.x) && whole_rows(fold->product.w)
            ? fold_mma_f64<whole_pieces>
            : fold_mma_f64<shape<true, ROWS, BLOCKS>>,
        fold, dim3((unsigned)blocks), THREADS, whole_pieces::ring, stream, fold->schedule.overlaps);
}

} // namespace

cudaError_t rfi_cuda_fold_mma_f64_64x64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<64, 3>(fold, stream);
}
cudaError_t rfi_cuda_fold_mma_f64_32x64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<32, 4>(fold, stream);
}
