/* Tensor-core kernels for sm_80 and newer: x and W as 16-bit values, or in one or two binary16 terms, sums in float32.
 *
 * Of two terms a side three products are taken, low * high + high * low + high * high; with two terms on one side, two. The tensor cores add with
 * few bits more than float32 has and truncate, so a long sum drifts: every stage starts from zero, the small products first, and is then added to
 * the sums in registers, rounded.
 *
 * Three stages of x and W tiles are on their way in shared memory by cp.async, which fills with zeros what is beyond the last row or column: ragged sizes
 * take no other code. Within a row of a stage the 16-byte pieces are permuted by the row's number, so that the eight rows of an 8 x 8 matrix lie in
 * different banks. 96 KB of stages fit every device from sm_80 on. */
#include "epilogue.cuh"
#include "launch.cuh"
#include "ptx.cuh"

namespace {

template <class Element, int X_TERMS, int W_TERMS, int ROWS, int COLUMNS, int WARPS_M, int WARPS_N> struct shape {
    typedef Element element;
    static constexpr int x_terms = X_TERMS, w_terms = W_TERMS, rows = ROWS, columns = COLUMNS, warps_m = WARPS_M, warps_n = WARPS_N;
    static constexpr int threads = WARPS_M * WARPS_N * 32;
    static constexpr int stages = 3;
    static constexpr int blocks = threads <= 256 ? 2 : 1; /* on a multiprocessor at a time, where its shared memory allows: 128 registers a thread */
    static constexpr int depth = (ROWS * X_TERMS + COLUMNS * W_TERMS) * 128 * stages <= 98304 ? 64 : 32; /* values of K in a stage */
    static constexpr int row_bytes = depth * 2, pieces = row_bytes / 16;
    static constexpr int x_bytes = ROWS * row_bytes, w_bytes = COLUMNS * row_bytes, stage_bytes = X_TERMS * x_bytes + W_TERMS * w_bytes;
    static constexpr int m_tiles = ROWS / WARPS_M / 16, n_tiles = COLUMNS / WARPS_N / 8;
    static constexpr int tile_rows = ROWS < 128 ? ROWS : 128, tile_ld = COLUMNS + 4; /* logits in shared memory at a time */
    static constexpr size_t tile_bytes = sizeof(float) * tile_rows * tile_ld, ring_bytes = (size_t)stages * stage_bytes;
    static constexpr size_t shared_bytes = ring_bytes > tile_bytes ? ring_bytes : tile_bytes;
    static_assert(shared_bytes <= 98304 + 1024 && n_tiles % 2 == 0, "fits the smallest device; matrices of W are loaded in pairs of tiles");
};

/* Byte offset of 16-byte piece `piece` of row `row` in a tile. */
template <class S> __device__ __forceinline__ int place(int row, int piece) {
    const int line = S::row_bytes == 128 ? row & 7 : (row >> 1) & 3;
    return row * S::row_bytes + ((piece ^ line) << 4);
}

/* Starts the copy of one term of a tile of ROWS rows from `row0` on, columns [k0, k0 + depth). */
template <class S, int ROWS>
__device__ __forceinline__ void copy_tile(uint32_t to, const void *data, int64_t ld, int64_t row0, int64_t rows, int64_t k0, int64_t depth) {
    constexpr int step = S::threads / S::pieces;
    const int piece = threadIdx.x % S::pieces, r0 = threadIdx.x / S::pieces;
    const int64_t k = k0 + piece * 8;
    const int bytes = k >= depth ? 0 : depth - k < 8 ? (int)(depth - k) * 2 : 16;
    const char *from = (const char *)data + ((row0 + r0) * ld + k) * 2;
#pragma unroll
    for (int r = r0; r < ROWS; r += step) {
        const int there = row0 + r < rows ? bytes : 0;
        rfi_copy_async_16(to + place<S>(r, piece), there ? from : (const char *)data, there);
        from += (int64_t)step * ld * 2;
    }
}

template <class S> __device__ __forceinline__ void copy_stage(const rfi_cuda_fold &p, uint32_t stage, int64_t row0, int64_t column0, int64_t k0) {
    copy_tile<S, S::rows>(stage, p.x.data, p.x.ld, row0, p.batch, k0, p.in_features);
    if (S::x_terms == 2) copy_tile<S, S::rows>(stage + S::x_bytes, p.x.low, p.x.ld, row0, p.batch, k0, p.in_features);
    const uint32_t w = stage + S::x_terms * S::x_bytes;
    copy_tile<S, S::columns>(w, p.w.data, p.w.ld, column0, p.out_features, k0, p.in_features);
    if (S::w_terms == 2) copy_tile<S, S::columns>(w + S::w_bytes, p.w.low, p.w.ld, column0, p.out_features, k0, p.in_features);
}

template <class S> struct fragments {
    uint32_t x[S::m_tiles][4], w[S::n_tiles / 2][4]; /* w: two tiles of 8 columns each */
};

/* 16 rows by 16 of K from `tile` + warp's first row. */
template <class S> __device__ __forceinline__ void load_x(uint32_t (&x)[S::m_tiles][4], uint32_t tile, int row0, int k16) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++) rfi_load_matrices(x[m], tile + place<S>(row0 + m * 16 + lane % 16, k16 * 2 + lane / 16));
}

template <class S> __device__ __forceinline__ void load_w(uint32_t (&w)[S::n_tiles / 2][4], uint32_t tile, int column0, int k16) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < S::n_tiles / 2; n++)
        rfi_load_matrices(w[n], tile + place<S>(column0 + n * 16 + lane / 16 * 8 + lane % 8, k16 * 2 + lane / 8 % 2));
}

template <class S> using sums = float[S::m_tiles][S::n_tiles][4];

template <class S>
__device__ __forceinline__ void multiply_fragments(sums<S> &sum, const uint32_t (&x)[S::m_tiles][4], const uint32_t (&w)[S::n_tiles / 2][4]) {
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int n = 0; n < S::n_tiles; n++) rfi_mma<typename S::element>(sum[m][n], x[m], w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
}

/* total += the products of one stage, small ones first. */
template <class S> __device__ __forceinline__ void multiply_stage(sums<S> &total, uint32_t stage, int warp_row, int warp_column) {
    const uint32_t x_high = stage, x_low = stage + S::x_bytes, w_high = stage + S::x_terms * S::x_bytes, w_low = w_high + S::w_bytes;
    sums<S> part = {};
    uint32_t x[S::m_tiles][4], w[S::n_tiles / 2][4];
    if (S::x_terms + S::w_terms > 2) {
#pragma unroll
        for (int k = 0; k < S::depth / 16; k++) {
            if (S::x_terms == 2) {
                load_x<S>(x, x_low, warp_row, k);
                load_w<S>(w, w_high, warp_column, k);
                multiply_fragments<S>(part, x, w);
            }
            if (S::w_terms == 2) {
                load_x<S>(x, x_high, warp_row, k);
                load_w<S>(w, w_low, warp_column, k);
                multiply_fragments<S>(part, x, w);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < S::depth / 16; k++) {
        load_x<S>(x, x_high, warp_row, k);
        load_w<S>(w, w_high, warp_column, k);
        multiply_fragments<S>(part, x, w);
    }
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int n = 0; n < S::n_tiles; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) total[m][n][i] += part[m][n][i];
}

/* The scales of a row and a column, the smaller first: a product that is in range does not overflow on the way. */
__device__ __forceinline__ float unscale(float v, float a, float b) { return v * fminf(a, b) * fmaxf(a, b); }

/* The sums, unscaled, to the tile in shared memory. */
template <class S>
__device__ __forceinline__ void store_tile(const rfi_cuda_fold &p, float *tile, const sums<S> &total, int64_t row0, int64_t column0, int warp_row, int warp_column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < S::n_tiles; n++) {
        const int c = warp_column + n * 8 + lane % 4 * 2;
        float w_scale[2] = {1, 1};
        if (p.w.scale)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (column0 + c + i < p.out_features) w_scale[i] = p.w.scale[column0 + c + i];
#pragma unroll
        for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = warp_row + m * 16 + half * 8 + lane / 4;
                const float x_scale = p.x.scale && row0 + r < p.batch ? p.x.scale[row0 + r] : 1;
                float2 v = {unscale(total[m][n][half * 2], x_scale, w_scale[0]), unscale(total[m][n][half * 2 + 1], x_scale, w_scale[1])};
                *(float2 *)&tile[r * S::tile_ld + c] = v;
            }
    }
}

template <class S> __global__ void __launch_bounds__(S::threads, S::blocks) fold_mma(const __grid_constant__ rfi_cuda_fold p) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int64_t row0 = (int64_t)blockIdx.x * S::rows, column0 = (int64_t)blockIdx.y * S::columns;
    const int warp = threadIdx.x / 32, warp_row = warp / S::warps_n * (S::rows / S::warps_m), warp_column = warp % S::warps_n * (S::columns / S::warps_n);
    const uint32_t ring = rfi_shared_address(shared);
    const int64_t steps = (p.in_features + S::depth - 1) / S::depth;
#pragma unroll
    for (int s = 0; s < S::stages - 1; s++) {
        if (s < steps) copy_stage<S>(p, ring + s * S::stage_bytes, row0, column0, (int64_t)s * S::depth);
        rfi_copy_commit(); /* empty groups too: the wait below counts them */
    }
    sums<S> total = {};
    int read = 0, write = S::stages - 1;
    for (int64_t step = 0; step < steps; step++) {
        rfi_copy_wait<S::stages - 2>();
        __syncthreads(); /* this stage is there for all; the one before it, written next, is read by all */
        if (step + S::stages - 1 < steps) copy_stage<S>(p, ring + write * S::stage_bytes, row0, column0, (step + S::stages - 1) * S::depth);
        rfi_copy_commit();
        multiply_stage<S>(total, ring + read * S::stage_bytes, warp_row, warp_column);
        read = read + 1 == S::stages ? 0 : read + 1;
        write = write + 1 == S::stages ? 0 : write + 1;
    }
    rfi_copy_wait<0>();
    const int rows = (int)min((int64_t)S::rows, p.batch - row0);
#pragma unroll 1
    for (int first = 0; first < rows; first += S::tile_rows) {
        __syncthreads(); /* the ring, or the tile before, is read: the tile takes its place */
        if (warp_row >= first && warp_row < first + S::tile_rows)
            store_tile<S>(p, (float *)shared, total, row0 + first, column0, warp_row - first, warp_column);
        __syncthreads(); /* the tile is written */
        rfi_fold_tile(p, (const float *)shared, S::tile_ld, row0 + first, min(S::tile_rows, rows - first), column0, S::columns);
    }
    if (p.tickets) rfi_finish_rows<float>(p, &p.tickets[blockIdx.x], gridDim.y, row0, rows);
}

/* The batch varies fastest: W streams from memory once, x stays in the second-level cache. */
template <class S> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    int64_t row_blocks = rfi_tiles(fold->batch, S::rows), column_blocks = rfi_tiles(fold->out_features, S::columns);
    if (row_blocks > INT32_MAX || column_blocks > 65535) return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_mma<S>, fold, dim3((unsigned)row_blocks, (unsigned)column_blocks), S::threads, S::shared_bytes, stream);
}

/* By the forms of x and W. */
template <int ROWS, int COLUMNS, int WARPS_M, int WARPS_N> cudaError_t launch_form(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (fold->x.dtype == RF_BFLOAT16) return launch<shape<__nv_bfloat16, 1, 1, ROWS, COLUMNS, WARPS_M, WARPS_N>>(fold, stream);
    if (fold->x.low && fold->w.low) return launch<shape<__half, 2, 2, ROWS, COLUMNS, WARPS_M, WARPS_N>>(fold, stream);
    if (fold->x.low) return launch<shape<__half, 2, 1, ROWS, COLUMNS, WARPS_M, WARPS_N>>(fold, stream);
    if (fold->w.low) return launch<shape<__half, 1, 2, ROWS, COLUMNS, WARPS_M, WARPS_N>>(fold, stream);
    return launch<shape<__half, 1, 1, ROWS, COLUMNS, WARPS_M, WARPS_N>>(fold, stream);
}

} // namespace

cudaError_t rfi_cuda_fold_mma_128x128(const rfi_cuda_fold *fold, cudaStream_t stream) { return launch_form<128, 128, 2, 4>(fold, stream); }
/* One product only: the stages of more do not fit. */
cudaError_t rfi_cuda_fold_mma_256x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (fold->x.low || fold->w.low) return cudaErrorInvalidConfiguration;
    return fold->x.dtype == RF_BFLOAT16 ? launch<shape<__nv_bfloat16, 1, 1, 256, 128, 4, 4>>(fold, stream) : launch<shape<__half, 1, 1, 256, 128, 4, 4>>(fold, stream);
}
cudaError_t rfi_cuda_fold_mma_64x64(const rfi_cuda_fold *fold, cudaStream_t stream) { return launch_form<64, 64, 2, 4>(fold, stream); }
cudaError_t rfi_cuda_fold_mma_16x64(const rfi_cuda_fold *fold, cudaStream_t stream) { return launch_form<16, 64, 1, 4>(fold, stream); }
