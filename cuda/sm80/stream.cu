/* SPDX-License-Identifier: MIT */
/* Up to eight rows: plain multiply-adds at the speed of reading W once, in rows or in blocks. x is read as it is
 * stored, so no row is irregular and nothing is prepared.
 *
 * A block computes RFI_FOLD_COLUMNS features, a warp four of them. Its lanes share out K by eights, hold the sums of
 * four features by all rows, and load the next piece of W while they work on one; that keeps about 64 KB a
 * multiprocessor on their way. x lies in shared memory as float32, a piece of K at a time, permuted so that a quarter
 * of a warp reads every bank once. Where features are few, K is shared out among blocks, too: see sm80/splits.cuh. */
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "sm80/splits.cuh"

namespace {

constexpr int THREADS = 512, WARP_COLUMNS = 4, COLUMNS = THREADS / 32 * WARP_COLUMNS, LANE_DEPTH = 8,
              WARP_DEPTH = 32 * LANE_DEPTH;
constexpr int X_DEPTH = 2048; /* of x in shared memory */
constexpr int TILE_LD = COLUMNS + 4;
static_assert(COLUMNS == RFI_FOLD_COLUMNS, "a block folds to one partial state a row");

/* Where value k of a piece of x lies: within WARP_DEPTH values, first the lower four of every lane, then the upper
 * four. */
__device__ __forceinline__ int place(int k) {
    return k / WARP_DEPTH * WARP_DEPTH + k % 8 / 4 * (WARP_DEPTH / 2) + k % WARP_DEPTH / 8 * 4 + k % 4;
}

template <int TERMS> struct piece {
    uint4 term[TERMS][WARP_COLUMNS]; /* eight values each */
};

/* W as a warp reads it: of blocks a feature's first value, but for its turn, and what rfi_place does with k. */
struct features {
    int64_t start[WARP_COLUMNS], panel_step;
    int turn[WARP_COLUMNS], shift, mask;
    __device__ __forceinline__ features(const rfi_cuda_product &p, int64_t first) {
        const int panel = p.w.panel;
        mask = panel - 1;
        shift = panel ? 31 - __clz(panel) : 0;
        panel_step = panel ? p.w.ld / RFI_BLOCK_ROWS * rfi_block_values(panel) : 0;
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS; c++) { /* beyond the last feature the last once more */
            const int64_t column = min(first + c, p.out_features - 1);
            start[c] = mask < 0 ? column * p.w.ld : rfi_place(panel, p.w.ld, column, 0);
            turn[c] = mask < 0 ? 0 : (int)start[c] & mask;
            start[c] -= turn[c];
        }
    }
};

/* Eight values of a row, of which `left` count, zero beyond them: only there are they read one by one, since what
 * follows may not be the library's. */
__device__ __forceinline__ uint4 load_eight(const uint16_t *from, int64_t left) {
    if (left >= 8) return __ldg((const uint4 *)from);
    uint32_t v[4] = {};
    for (int i = 0; i < 8; i++)
        if (i < left) v[i / 2] |= (uint32_t)from[i] << i % 2 * 16;
    return make_uint4(v[0], v[1], v[2], v[3]);
}

template <int TERMS> __device__ __forceinline__ void load(
    piece<TERMS> &w, const rfi_cuda_product &p, const features &f, int64_t k, int64_t end) {
    const int64_t panel = (k >> f.shift) * f.panel_step, in_panel = f.mask < 0 ? k : (int)k & f.mask;
#pragma unroll
    for (int c = 0; c < WARP_COLUMNS; c++) {
        const int64_t at = f.start[c] + panel + (in_panel ^ f.turn[c]);
        w.term[0][c] = load_eight((const uint16_t *)p.w.data + at, end - k);
        if (TERMS > 1) w.term[TERMS > 1][c] = load_eight((const uint16_t *)p.w.low + at, end - k);
        if (TERMS > 2) w.term[TERMS > 2 ? 2 : 0][c] = load_eight((const uint16_t *)p.w.least + at, end - k);
    }
}

/* Eight values of W, scaled back: unscaled they might overflow in the sum. All exact, unless they are subnormal. */
template <class E, int TERMS>
__device__ __forceinline__ void unpack(float (&v)[8], const piece<TERMS> &w, int c, float scale) {
    const uint32_t high[4] = {w.term[0][c].x, w.term[0][c].y, w.term[0][c].z, w.term[0][c].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 two = rfi_widen<E>(high[i]);
        v[2 * i] = two.x * scale;
        v[2 * i + 1] = two.y * scale;
    }
#pragma unroll
    for (int t = 1; t < TERMS; t++) {
        const uint4 &l = w.term[t][c];
        const uint32_t low[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 two = rfi_widen<E>(low[i]);
            v[2 * i] = fmaf(two.x, scale, v[2 * i]);
            v[2 * i + 1] = fmaf(two.y, scale, v[2 * i + 1]);
        }
    }
}

template <class E, int TERMS, int ROWS> __device__ __forceinline__ void multiply(float (&sum)[WARP_COLUMNS][ROWS],
    const piece<TERMS> &w, const float (&scale)[WARP_COLUMNS], const float *x, int k) {
    const float4 *at = (const float4 *)(x + k) + threadIdx.x % 32;
    float v[WARP_COLUMNS][8];
#pragma unroll
    for (int c = 0; c < WARP_COLUMNS; c++) unpack<E>(v[c], w, c, scale[c]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float4 a = at[r * (X_DEPTH / 4)], b = at[r * (X_DEPTH / 4) + WARP_DEPTH / 8];
        const float xs[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS; c++)
#pragma unroll
            for (int i = 0; i < 8; i++) sum[c][r] = fmaf(xs[i], v[c][i], sum[c][r]);
    }
}

/* Four values of row r of x from k on, zero from `end` and beyond the last row. `whole`: read at once where all are
 * there. */
__device__ __forceinline__ float4 load_four(const rfi_cuda_product &p, int r, int64_t k, int64_t end, bool whole) {
    float v[4] = {};
    const int64_t at = r * p.x.ld + k;
    if (r >= p.batch) return make_float4(0, 0, 0, 0);
    if (whole && k + 4 <= end) return *(const float4 *)((const float *)p.x.data + at);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (k + i < end) v[i] = rfi_load_as<float>(p.x.data, p.x.dtype, at + i);
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* Columns [k0, k0 + X_DEPTH) of x to shared memory: all loads first, then all stores. */
template <int ROWS>
__device__ __forceinline__ void fetch_x(float *x, const rfi_cuda_product &p, int64_t k0, int64_t end) {
    static_assert(X_DEPTH == THREADS * 4, "a thread takes four values of each row");
    const bool whole = p.x.dtype == RF_FLOAT32 && p.x.ld % 4 == 0 && (uintptr_t)p.x.data % 16 == 0;
    const int k = threadIdx.x * 4;
    float4 v[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) v[r] = load_four(p, r, k0 + k, end, whole);
#pragma unroll
    for (int r = 0; r < ROWS; r++) *(float4 *)&x[r * X_DEPTH + place(k)] = v[r];
}

template <class E, int TERMS, int ROWS> __global__ void __launch_bounds__(THREADS, 1)
    fold_stream(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    extern __shared__ __align__(16) float x[];
    __shared__ __align__(16) float tile[ROWS < 4 ? 4 : ROWS][TILE_LD]; /* the fold takes four rows at a time */
    const int lane = threadIdx.x % 32, warp_column = threadIdx.x / 32 * WARP_COLUMNS;
    const int64_t column0 = (int64_t)blockIdx.x * COLUMNS;
    const rfi_part part = rfi_part_of(p);
    const features w(p.product, column0 + warp_column);
    float sum[WARP_COLUMNS][ROWS] = {};
    piece<TERMS> next;
    rfi_release_next();
    const int64_t mine = part.first + lane * LANE_DEPTH;
    if (!p.schedule.w_in_flight) load(next, p.product, w, mine, part.end);
    rfi_wait_for_previous();
    float scale[WARP_COLUMNS];
#pragma unroll
    for (int c = 0; c < WARP_COLUMNS; c++)
        scale[c] =
            p.product.w.scale ? p.product.w.scale[min(column0 + warp_column + c, p.product.out_features - 1)] : 1;
    if (p.schedule.w_in_flight) load(next, p.product, w, mine, part.end);
    for (int64_t k0 = part.first; k0 < part.end; k0 += X_DEPTH) {
        __syncthreads(); /* the last piece of x is read */
        fetch_x<ROWS>(x, p.product, k0, part.end);
        __syncthreads(); /* this one is written */
        for (int k = 0; k < X_DEPTH && k0 + k < part.end; k += WARP_DEPTH) {
            const piece<TERMS> now = next;
            load(next, p.product, w, k0 + k + WARP_DEPTH + lane * LANE_DEPTH, part.end);
            multiply<E>(sum, now, scale, x, k);
        }
    }
#pragma unroll
    for (int c = 0; c < WARP_COLUMNS; c++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            for (int step = 1; step < 32; step *= 2) sum[c][r] += __shfl_xor_sync(~0u, sum[c][r], step);
            if (lane == 0) tile[r][warp_column + c] = sum[c][r];
        }
    }
    __syncthreads(); /* the tile is written */
    const int rows = (int)p.product.batch;
    if (p.schedule.splits > 1 && !rfi_add_splits<ROWS, COLUMNS, THREADS>(p.schedule, tile[0], TILE_LD, rows)) return;
    rfi_fold_tile<float>(p, tile[0], TILE_LD, 0, rows, column0, COLUMNS);
    if (p.schedule.tickets) rfi_finish_rows<float>(p, 0, blockIdx.x, gridDim.x, 0, rows);
}

template <class E, int TERMS, int ROWS> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return rfi_launch(fold_stream<E, TERMS, ROWS>, fold,
        dim3((unsigned)rfi_tiles(fold->product.out_features, COLUMNS), 1, (unsigned)fold->schedule.splits), THREADS,
        sizeof(float) * ROWS * X_DEPTH, stream, fold->schedule.overlaps);
}

/* A row's bits do not depend on how many there are: only what is computed beside it does. */
template <class E, int TERMS> cudaError_t launch_rows(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (fold->product.batch > 8 || !fold->product.out_features || fold->schedule.splits > 65535)
        return cudaErrorInvalidConfiguration;
    return fold->product.batch > 4 ? launch<E, TERMS, 8>(fold, stream)
        : fold->product.batch > 2  ? launch<E, TERMS, 4>(fold, stream)
        : fold->product.batch > 1  ? launch<E, TERMS, 2>(fold, stream)
                                   : launch<E, TERMS, 1>(fold, stream);
}

} // namespace

cudaError_t rfi_cuda_fold_stream(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (fold->product.w.dtype == RF_BFLOAT16)
        return fold->product.w.least ? launch_rows<__nv_bfloat16, 3>(fold, stream)
                                     : launch_rows<__nv_bfloat16, 1>(fold, stream);
    return fold->product.w.low ? launch_rows<__half, 2>(fold, stream) : launch_rows<__half, 1>(fold, stream);
}
