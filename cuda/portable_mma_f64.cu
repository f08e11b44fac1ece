/* float64 on the tensor cores, or on what stands for them. The pattern of portable_mma.cu: stages by cp.async, zeros beyond the edges.
 *
 * A row of a stage is 128 bytes, four units of four values, permuted by the row's number, so that the four rows by one unit that half a warp reads at once lie in
 * different banks. Blocks are small, three a multiprocessor, and a warp loads one half of a stage while it multiplies the other: so the tensor cores do not wait for
 * barriers and loads. */
#include "epilogue.cuh"
#include "launch.cuh"
#include "ptx.cuh"

namespace {

constexpr int ROWS = 64, COLUMNS = 64, DEPTH = 16, STAGES = 4, BLOCKS = 3; /* of a multiprocessor, by registers */
constexpr int WARP_ROWS = 32, WARP_COLUMNS = 32, M_TILES = WARP_ROWS / 16, N_TILES = WARP_COLUMNS / 8;
constexpr int THREADS = ROWS / WARP_ROWS * (COLUMNS / WARP_COLUMNS) * 32;
constexpr int ROW_BYTES = DEPTH * 8, PIECES = ROW_BYTES / 16, STEP = THREADS / PIECES; /* a thread copies a piece of every STEPth row */
constexpr int X_BYTES = ROWS * ROW_BYTES, STAGE = X_BYTES + COLUMNS * ROW_BYTES, RING = STAGES * STAGE;
constexpr int TILE_LD = COLUMNS + 4;
static_assert(ROW_BYTES == 128 && STEP % 4 == 0 && RING >= ROWS * TILE_LD * 8, "all rows of a thread are permuted alike; the tile takes the ring's place");

/* Byte offset of byte `at` of row `row` in a stage's part of x or W. The permutation depends on the row modulo 4 alone. */
__device__ __forceinline__ int place(int row, int at) { return row * ROW_BYTES + (at ^ (row & 3) << 5); }

/* What a thread copies of one operand. */
struct source {
    const char *from; /* its first row in the next stage */
    int64_t stride;   /* bytes from one of its rows to the next */
    int rows;         /* of the tile's rows, those from its first on */
};

__device__ __forceinline__ source source_of(const rfi_cuda_rows &rows, int64_t row0, int64_t count) {
    const int first = threadIdx.x / PIECES;
    return source{(const char *)rows.data + ((row0 + first) * rows.ld + threadIdx.x % PIECES * 2) * 8, STEP * rows.ld * 8, (int)min(count - row0, (int64_t)INT32_MAX) - first};
}

/* Starts the copy of an operand's part of the next stage, and moves on. `bytes` of the thread's pieces lie within K, the rest becomes zero. Rows that do not exist are left out:
 * what lies in their place adds to sums that nobody reads. PAIRS: rows begin at multiples of 16 bytes and have an even number of values. */
template <bool PAIRS, int TILE_ROWS> __device__ __forceinline__ void copy_tile(source &s, uint32_t to, int bytes) {
    static_assert(TILE_ROWS % STEP == 0, "the threads take whole rows of pieces");
    const char *from = s.from;
#pragma unroll
    for (int i = 0; i < TILE_ROWS / STEP; i++, from += s.stride)
        if (i * STEP < s.rows) {
            const uint32_t piece = to + i * STEP * ROW_BYTES;
            if (PAIRS) rfi_copy_async_16(piece, from, bytes);
            else rfi_copy_async_8(piece, from, min(bytes, 8)), rfi_copy_async_8(piece + 8, from + 8, max(bytes - 8, 0));
        }
    s.from += ROW_BYTES;
}

/* The copies of a thread. */
struct pipeline {
    source x, w;
    uint32_t mine;   /* shared address of the thread's first piece in the first stage */
    int write;       /* offset in the ring of the stage to copy */
    int next, whole; /* the number of that stage, and of those that K fills */
    int last_bytes;  /* of the thread's pieces in the stage behind those */
};

/* Starts the copies of the next stage; behind the end of K they read nothing. */
template <bool PAIRS> __device__ __forceinline__ void copy_stage(pipeline &pipe) {
    const uint32_t x = pipe.mine + pipe.write, w = x + X_BYTES;
    if (pipe.next < pipe.whole) {
        copy_tile<PAIRS, ROWS>(pipe.x, x, 16);
        copy_tile<PAIRS, COLUMNS>(pipe.w, w, 16);
    } else { /* a size that is no constant takes twice the instructions */
        const int bytes = pipe.next == pipe.whole ? pipe.last_bytes : 0;
        copy_tile<PAIRS, ROWS>(pipe.x, x, bytes);
        copy_tile<PAIRS, COLUMNS>(pipe.w, w, bytes);
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

template <bool PAIRS> __global__ void __launch_bounds__(THREADS, BLOCKS) fold_mma_f64(const __grid_constant__ rfi_cuda_fold p) {
    extern __shared__ __align__(128) uint8_t ring[];
    const int64_t row0 = (int64_t)blockIdx.x * ROWS, column0 = (int64_t)blockIdx.y * COLUMNS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / (COLUMNS / WARP_COLUMNS) * WARP_ROWS, warp_column = warp % (COLUMNS / WARP_COLUMNS) * WARP_COLUMNS;
    const int steps = (int)((p.in_features + DEPTH - 1) / DEPTH), piece = threadIdx.x % PIECES;
    pipeline pipe = {source_of(p.x, row0, p.batch), source_of(p.w, column0, p.out_features), rfi_shared_address(ring) + place(threadIdx.x / PIECES, piece * 16), 0, 0, (int)(p.in_features / DEPTH),
                     min(max((int)(p.in_features % DEPTH) * 8 - piece * 16, 0), 16)};
#pragma unroll
    for (int s = 0; s < STAGES; s++) copy_stage<PAIRS>(pipe);
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
        copy_stage<PAIRS>(pipe);
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
                tile[(warp_row + m * 16 + i / 2 * 8 + lane / 4) * TILE_LD + warp_column + n * 8 + lane % 4 * 2 + i % 2] = sum[m][n][i];
    __syncthreads(); /* the tile is written */
    const int rows = (int)min((int64_t)ROWS, p.batch - row0);
    rfi_fold_tile(p, (const double *)tile, TILE_LD, row0, rows, column0, COLUMNS);
    if (p.tickets) rfi_finish_rows<double>(p, &p.tickets[blockIdx.x], gridDim.y, row0, rows);
}

} // namespace

cudaError_t rfi_cuda_fold_mma_f64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    int64_t row_blocks = rfi_tiles(fold->batch, ROWS), column_blocks = rfi_tiles(fold->out_features, COLUMNS);
    if (row_blocks > INT32_MAX || column_blocks > 65535) return cudaErrorInvalidConfiguration;
    /* The device reads all of a pair whose second value is behind K, and zeroes it then: but it need not be there. */
    const auto pairs = [&](const rfi_cuda_rows &rows) { return fold->in_features % 2 == 0 && rows.ld % 2 == 0 && (uintptr_t)rows.data % 16 == 0; };
    return rfi_launch(pairs(fold->x) && pairs(fold->w) ? fold_mma_f64<true> : fold_mma_f64<false>, fold, dim3((unsigned)row_blocks, (unsigned)column_blocks), THREADS, RING, stream);
}
