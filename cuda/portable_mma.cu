/* Tensor-core kernels for sm_80 and newer: x and W as 16-bit values, or in one or two binary16 terms, sums in float32.
 *
 * Of two terms a side three products are taken, low * high + high * low + high * high; with two terms on one side, two. The tensor cores add with
 * few bits more than float32 has and truncate, so a long sum drifts, by half a unit of its last place for every 16 values of K. With several products
 * every stage therefore starts from zero, the small products first, and is then added to the sums, rounded. One product of 16-bit values does so every
 * PROMOTE_DEPTH values: 16 units at most, less than float32 sums of as many values lose, and the sums so far can wait outside the registers.
 *
 * Three stages or more of x and W tiles are on their way in shared memory by cp.async, which fills with zeros what is beyond the last row or column: ragged sizes
 * take no other code. Within a row of a stage the 16-byte pieces are permuted by the row's number, so that the eight rows of an 8 x 8 matrix lie in
 * different banks. 96 KB of stages fit every device from sm_80 on. */
#include "epilogue.cuh"
#include "launch.cuh"
#include "ptx.cuh"

namespace {

/* What the ring of stages may take, and what it may take on devices with much shared memory, where small tiles keep more of W on its way. */
constexpr int RING = 98304, LARGE_RING = 163840;

/* Values of K that one product sums up before the sums are rounded to float32 properly. */
constexpr int PROMOTE_DEPTH = 512;

template <class Element, int X_TERMS, int W_TERMS, int ROWS, int COLUMNS, int WARPS_M, int WARPS_N, int RING_BYTES = RING> struct shape {
    typedef Element element;
    static constexpr int x_terms = X_TERMS, w_terms = W_TERMS, rows = ROWS, columns = COLUMNS, warps_m = WARPS_M, warps_n = WARPS_N;
    static constexpr int threads = WARPS_M * WARPS_N * 32;
    static constexpr int blocks = threads > 256 || (ROWS == 128 && X_TERMS + W_TERMS > 2) ? 1 : 2; /* a multiprocessor; two leave 128 registers a thread */
    static constexpr int depth = (ROWS * X_TERMS + COLUMNS * W_TERMS) * 128 * 3 <= RING ? 64 : 32; /* values of K in a stage */
    static constexpr int row_bytes = depth * 2, pieces = row_bytes / 16;
    static constexpr int x_bytes = ROWS * row_bytes, w_bytes = COLUMNS * row_bytes, stage_bytes = X_TERMS * x_bytes + W_TERMS * w_bytes;
    static constexpr int stages = RING_BYTES / stage_bytes < 8 ? RING_BYTES / stage_bytes : 8;
    static constexpr int promote_stages = X_TERMS + W_TERMS > 2 ? 1 : PROMOTE_DEPTH / depth;
    static constexpr int m_tiles = ROWS / WARPS_M / 16, n_tiles = COLUMNS / WARPS_N / 8;
    static constexpr int tile_rows = ROWS < 128 ? ROWS : 128, tile_ld = COLUMNS + 4; /* logits in shared memory at a time */
    static constexpr size_t tile_bytes = sizeof(float) * tile_rows * tile_ld, ring_bytes = (size_t)stages * stage_bytes;
    static constexpr size_t shared_bytes = ring_bytes > tile_bytes ? ring_bytes : tile_bytes;
    static_assert(shared_bytes <= RING_BYTES && stages >= 3 && n_tiles % 2 == 0, "matrices of W are loaded in pairs of tiles");
};

/* Byte offset of 16-byte piece `piece` of row `row` in a tile. The permutation depends on the row modulo 8 alone. */
template <class S> __device__ __forceinline__ int place(int row, int piece) {
    const int line = S::row_bytes == 128 ? row & 7 : (row >> 1) & 3;
    return row * S::row_bytes + ((piece ^ line) << 4);
}

/* What a thread copies of one operand: a piece of every `step`th row. All of it is kept between stages, since little else of 128 registers is left. */
template <class S> struct source {
    static constexpr int step = S::threads / S::pieces;
    static_assert(step % 8 == 0, "all rows of a thread are permuted alike");
    const char *high, *low; /* its first row in the next stage */
    int64_t stride;         /* bytes from one of its rows to the next */
    int rows;               /* of the tile's rows, those from its first on */
};

template <class S> __device__ __forceinline__ source<S> source_of(const rfi_cuda_rows &rows, int64_t row0, int64_t count) {
    const int first = threadIdx.x / S::pieces;
    const int64_t offset = ((row0 + first) * rows.ld + threadIdx.x % S::pieces * 8) * 2;
    return source<S>{(const char *)rows.data + offset, (const char *)rows.low + offset, source<S>::step * rows.ld * 2,
                     (int)min(count - row0, (int64_t)INT32_MAX) - first};
}

/* Starts the copy of one term of a tile of ROWS rows; `bytes` of the thread's pieces lie within K. */
template <class S, int ROWS> __device__ __forceinline__ void copy_tile(uint32_t to, const char *from, const char *valid, int64_t stride, int rows, int bytes) {
    constexpr int step = source<S>::step;
    static_assert(ROWS % step == 0, "the threads take whole rows of pieces");
#pragma unroll
    for (int i = 0; i < ROWS / step; i++) {
        const int there = i * step < rows ? bytes : 0;
        rfi_copy_async_16(to + i * step * S::row_bytes, there ? from : valid, there);
        from += stride;
    }
}

/* Starts the copy of the stage that begins `left` columns before the end of K, and moves on to the next. `to`: the thread's first place in it. */
template <class S> __device__ __forceinline__ void copy_stage(const rfi_cuda_fold &p, source<S> &x, source<S> &w, uint32_t to, int64_t left) {
    const int columns = (int)min(left, (int64_t)S::depth) - (int)(threadIdx.x % S::pieces) * 8;
    const int bytes = max(0, min(16, columns * 2));
    const char *valid = (const char *)p.w.data;
    copy_tile<S, S::rows>(to, x.high, valid, x.stride, x.rows, bytes);
    if (S::x_terms == 2) copy_tile<S, S::rows>(to + S::x_bytes, x.low, valid, x.stride, x.rows, bytes);
    to += S::x_terms * S::x_bytes;
    copy_tile<S, S::columns>(to, w.high, valid, w.stride, w.rows, bytes);
    if (S::w_terms == 2) copy_tile<S, S::columns>(to + S::w_bytes, w.low, valid, w.stride, w.rows, bytes);
    x.high += S::row_bytes, x.low += S::row_bytes, w.high += S::row_bytes, w.low += S::row_bytes;
}

/* Fragments, 16 of K at a time. `tile` is the address of the lane's row and piece in the warp's part of a tile at k = 0 (see lane_x, lane_w); the pieces behind
 * it differ in bits that the permutation leaves to an exclusive or, since rows begin at multiples of their size. */
template <class S> __device__ __forceinline__ void load_x(uint32_t (&x)[S::m_tiles][4], uint32_t tile, int k16) {
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++) rfi_load_matrices(x[m], (tile ^ (k16 << 5)) + m * 16 * S::row_bytes);
}

template <class S> __device__ __forceinline__ void load_w(uint32_t (&w)[S::n_tiles / 2][4], uint32_t tile, int k16) {
#pragma unroll
    for (int n = 0; n < S::n_tiles / 2; n++) rfi_load_matrices(w[n], (tile ^ (k16 << 5)) + n * 16 * S::row_bytes);
}

template <class S> __device__ __forceinline__ int lane_x(int warp_row) {
    const int lane = threadIdx.x % 32;
    return place<S>(warp_row + lane % 16, lane / 16);
}

template <class S> __device__ __forceinline__ int lane_w(int warp_column) {
    const int lane = threadIdx.x % 32;
    return place<S>(warp_column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

template <class S> using sums = float[S::m_tiles][S::n_tiles][4];

template <class S>
__device__ __forceinline__ void multiply_fragments(sums<S> &sum, const uint32_t (&x)[S::m_tiles][4], const uint32_t (&w)[S::n_tiles / 2][4]) {
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int n = 0; n < S::n_tiles; n++) rfi_mma<typename S::element>(sum[m][n], x[m], w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
}

/* part += the products of one stage, small ones first. */
template <class S> __device__ __forceinline__ void multiply_stage(sums<S> &part, uint32_t stage, int x_place, int w_place) {
    const uint32_t x_high = stage + x_place, x_low = x_high + S::x_bytes, w_high = stage + S::x_terms * S::x_bytes + w_place, w_low = w_high + S::w_bytes;
    uint32_t x[S::m_tiles][4], w[S::n_tiles / 2][4];
    if (S::x_terms + S::w_terms > 2) {
#pragma unroll
        for (int k = 0; k < S::depth / 16; k++) {
            if (S::x_terms == 2) {
                load_x<S>(x, x_low, k);
                load_w<S>(w, w_high, k);
                multiply_fragments<S>(part, x, w);
            }
            if (S::w_terms == 2) {
                load_x<S>(x, x_high, k);
                load_w<S>(w, w_low, k);
                multiply_fragments<S>(part, x, w);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < S::depth / 16; k++) {
        load_x<S>(x, x_high, k);
        load_w<S>(w, w_high, k);
        multiply_fragments<S>(part, x, w);
    }
}

/* total += part, which starts anew. */
template <class S> __device__ __forceinline__ void promote(sums<S> &total, sums<S> &part) {
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int n = 0; n < S::n_tiles; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                total[m][n][i] += part[m][n][i];
                part[m][n][i] = 0;
            }
}

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
                float2 v = {rfi_unscale(total[m][n][half * 2], x_scale, w_scale[0]), rfi_unscale(total[m][n][half * 2 + 1], x_scale, w_scale[1])};
                *(float2 *)&tile[r * S::tile_ld + c] = v;
            }
    }
}

template <class S> __global__ void __launch_bounds__(S::threads, S::blocks) fold_mma(const __grid_constant__ rfi_cuda_fold p) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int64_t row0 = (int64_t)blockIdx.x * S::rows, column0 = (int64_t)blockIdx.y * S::columns;
    const int warp = threadIdx.x / 32, warp_row = warp / S::warps_n * (S::rows / S::warps_m), warp_column = warp % S::warps_n * (S::columns / S::warps_n);
    const uint32_t ring = rfi_shared_address(shared), mine = ring + place<S>(threadIdx.x / S::pieces, threadIdx.x % S::pieces);
    const int x_place = lane_x<S>(warp_row), w_place = lane_w<S>(warp_column);
    source<S> x = source_of<S>(p.x, row0, p.batch), w = source_of<S>(p.w, column0, p.out_features);
    int64_t left = p.in_features; /* columns that no copy was started for */
#pragma unroll
    for (int s = 0; s < S::stages - 1; s++, left -= S::depth) {
        if (left > 0) copy_stage<S>(p, x, w, mine + s * S::stage_bytes, left);
        rfi_copy_commit(); /* empty groups too: the wait below counts them */
    }
    sums<S> total = {}, part = {};
    int read = 0, stages_in_part = 0, write = (S::stages - 1) * S::stage_bytes;
    for (int64_t unread = p.in_features; unread > 0; unread -= S::depth, left -= S::depth) {
        rfi_copy_wait<S::stages - 2>();
        __syncthreads(); /* this stage is there for all; the one before it, written next, is read by all */
        if (left > 0) copy_stage<S>(p, x, w, mine + write, left);
        rfi_copy_commit();
        if constexpr (S::promote_stages == 1) {
            sums<S> products = {};
            multiply_stage<S>(products, ring + read, x_place, w_place);
            promote<S>(total, products);
        } else {
            multiply_stage<S>(part, ring + read, x_place, w_place);
            if (++stages_in_part == S::promote_stages) {
                promote<S>(total, part);
                stages_in_part = 0;
            }
        }
        read = read + S::stage_bytes == S::stages * S::stage_bytes ? 0 : read + S::stage_bytes;
        write = write + S::stage_bytes == S::stages * S::stage_bytes ? 0 : write + S::stage_bytes;
    }
    promote<S>(total, part);
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
template <int ROWS, int COLUMNS, int WARPS_M, int WARPS_N, int RING_BYTES> cudaError_t launch_form(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (fold->x.dtype == RF_BFLOAT16) return launch<shape<__nv_bfloat16, 1, 1, ROWS, COLUMNS, WARPS_M, WARPS_N, RING_BYTES>>(fold, stream);
    if (fold->x.low && fold->w.low) return launch<shape<__half, 2, 2, ROWS, COLUMNS, WARPS_M, WARPS_N, RING_BYTES>>(fold, stream);
    if (fold->x.low) return launch<shape<__half, 2, 1, ROWS, COLUMNS, WARPS_M, WARPS_N, RING_BYTES>>(fold, stream);
    if (fold->w.low) return launch<shape<__half, 1, 2, ROWS, COLUMNS, WARPS_M, WARPS_N, RING_BYTES>>(fold, stream);
    return launch<shape<__half, 1, 1, ROWS, COLUMNS, WARPS_M, WARPS_N, RING_BYTES>>(fold, stream);
}

/* The number of stages changes no bit. */
template <int ROWS, int COLUMNS, int WARPS_M, int WARPS_N> cudaError_t launch_small(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return fold->shared_per_block >= LARGE_RING + 1024 ? launch_form<ROWS, COLUMNS, WARPS_M, WARPS_N, LARGE_RING>(fold, stream)
                                                       : launch_form<ROWS, COLUMNS, WARPS_M, WARPS_N, RING>(fold, stream);
}

} // namespace

cudaError_t rfi_cuda_fold_mma_128x128(const rfi_cuda_fold *fold, cudaStream_t stream) { return launch_form<128, 128, 2, 4, RING>(fold, stream); }
/* One product only: the stages of more do not fit. */
cudaError_t rfi_cuda_fold_mma_256x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (fold->x.low || fold->w.low) return cudaErrorInvalidConfiguration;
    return fold->x.dtype == RF_BFLOAT16 ? launch<shape<__nv_bfloat16, 1, 1, 256, 128, 4, 4>>(fold, stream) : launch<shape<__half, 1, 1, 256, 128, 4, 4>>(fold, stream);
}
cudaError_t rfi_cuda_fold_mma_64x64(const rfi_cuda_fold *fold, cudaStream_t stream) { return launch_small<64, 64, 2, 4>(fold, stream); }
cudaError_t rfi_cuda_fold_mma_16x64(const rfi_cuda_fold *fold, cudaStream_t stream) { return launch_small<16, 64, 1, 4>(fold, stream); }
