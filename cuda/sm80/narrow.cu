/* SPDX-License-Identifier: MIT */
/* Few columns: plain multiply-adds at the speed of reading x once, any data types, any alignment. x is read as it is
 * stored, so that no row is irregular and nothing is prepared.
 *
 * A warp has a few rows of x and all columns. Its lanes share out K value by value: wider loads, where rows allow them,
 * would give a lane other values, and a row's bits would depend on where it begins. A warp loads the next chunk while
 * it multiplies one, and asks the second-level cache for those behind. W's part of a chunk lies in shared memory, in
 * the compute type, for all warps of a block.
 *
 *   K        0                       32                                  chunk
 *   lanes    | 0 | 1 | ... | 30 | 31 | 0 | 1 | ... | 30 | 31 | ...       | 0 | 1 ...
 *
 * The lanes' sums are added in one order. Where rows are few, K is shared out among blocks, too: see sm80/splits.cuh.
 */
#include <type_traits>

#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "common/pieces.cuh"
#include "sm80/splits.cuh"

using namespace pieces;

namespace {

constexpr int WARPS = THREADS / 32, TILE_LD = RFI_FOLD_COLUMNS + 4;
constexpr int BLOCKS = 2; /* a multiprocessor at least, for what is on its way */
constexpr int AHEAD = 2;  /* chunks that the second-level cache is asked for ahead of the loads */

/* x of another type than those: which, is asked for each value. */
struct unknown {};

/* T is the compute type, E what x holds: values of 16 bits, of T, or unknown. */
template <class T_, class E_, int COLUMNS> struct shape {
    typedef T_ T;
    typedef E_ E;
    static constexpr bool known = !std::is_same<E, unknown>::value;
    typedef typename std::conditional<known, E, T>::type stored;
    static constexpr int columns = COLUMNS, sums = sizeof(T) == 4 ? 32 : 16, warp_rows = sums / COLUMNS,
                         rows = WARPS * warp_rows;
    static constexpr int share = PIECE<T>, chunk = 32 * share; /* values of K: of a lane, of a warp */
    static constexpr int w_steps = COLUMNS * 32 / THREADS;     /* lanes' shares of W that a thread brings */
    static constexpr int lines = chunk * (int)sizeof(stored) / 128;
    static_assert(COLUMNS * 32 % THREADS == 0 && warp_rows > 0, "whole shares");
    static_assert(!known || lines * warp_rows <= 32, "a lane asks for a line");
    static_assert(RFI_SPLIT_DEPTH % share == 0, "parts begin at whole shares of W");
};

__device__ __forceinline__ float value_of(__half v, float) { return __half2float(v); }
__device__ __forceinline__ float value_of(__nv_bfloat16 v, float) { return __bfloat162float(v); }
__device__ __forceinline__ float value_of(float v, float) { return v; }
__device__ __forceinline__ double value_of(double v, double) { return v; }

/* A lane's share of a chunk of a row, as it came from memory. */
template <class S> struct share_of {
    typedef typename S::stored stored;
    stored raw[S::share];

    /* From value `k` of the row that begins at value `at` on, zeros from `end` on. */
    __device__ __forceinline__ void load(const rfi_cuda_rows &x, int64_t at, int64_t k, int64_t end) {
        k += threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < S::share; i++, k += 32) {
            raw[i] = stored(0.0f);
            if (k >= end) continue;
            if constexpr (S::known) raw[i] = ((const stored *)x.data)[at + k];
            else raw[i] = rfi_load_as<stored>(x.data, x.dtype, at + k);
        }
    }
    __device__ __forceinline__ void values(typename S::T (&v)[S::share]) const {
#pragma unroll
        for (int i = 0; i < S::share; i++) v[i] = value_of(raw[i], typename S::T());
    }
};

/* sum += the shares of a chunk. */
template <class S, class T> __device__ __forceinline__ void multiply(
    T (&sum)[S::warp_rows][S::columns], const share_of<S> (&x)[S::warp_rows], const T *w, int columns) {
    T v[S::warp_rows][S::share];
#pragma unroll
    for (int r = 0; r < S::warp_rows; r++) x[r].values(v[r]);
#pragma unroll
    for (int c = 0; c < S::columns; c++) {
        if (c >= columns) break;
        T b[S::share];
#pragma unroll
        for (int i = 0; i < S::share; i++) b[i] = w[c * S::chunk + i * 32 + threadIdx.x % 32];
#pragma unroll
        for (int r = 0; r < S::warp_rows; r++)
#pragma unroll
            for (int i = 0; i < S::share; i++) sum[r][c] = fma(v[r][i], b[i], sum[r][c]);
    }
}

/* The sums over all lanes: lane l gets number l / (32 / N) of them. */
template <int N, class T> __device__ __forceinline__ T sum_lanes(T (&v)[N]) {
    static_assert(N <= 32 && (N & (N - 1)) == 0, "halves");
    int n = N;
#pragma unroll
    for (int step = 16; step; step /= 2) {
        if (n == 1) {
            v[0] += __shfl_xor_sync(~0u, v[0], step);
            continue;
        }
        const bool upper = threadIdx.x & step;
        n /= 2;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            if (i >= n) break;
            const T given = upper ? v[i] : v[i + n], kept = upper ? v[i + n] : v[i];
            v[i] = kept + __shfl_xor_sync(~0u, given, step);
        }
    }
    return v[0];
}

template <class S> __global__ void __launch_bounds__(THREADS, BLOCKS)
    fold_narrow(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    typedef typename S::T T;
    constexpr int TERMS = sizeof(T) == 4 ? 3 : 1,
                  STEP = THREADS / 32; /* columns of W from one of a thread's to its next */
    __shared__ __align__(16) T stages[2][S::columns * S::chunk], tile[S::rows * TILE_LD];
    const int64_t row0 = (int64_t)blockIdx.x * S::rows;
    const int rows = (int)min((int64_t)S::rows, p.product.batch - row0), columns = (int)p.product.out_features;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const rfi_part part = rfi_part_of(p);
    const operand w_from = operand_of<T>(p.product.w);
    const auto row_at = [&](int r) { /* beyond the last row that once more */
        return min(row0 + warp * S::warp_rows + r, p.product.batch - 1) * p.product.x.ld;
    };
    int64_t at[S::warp_rows];
#pragma unroll
    for (int r = 0; r < S::warp_rows; r++) at[r] = row_at(r);
    const int64_t line = row_at(min(lane / (S::known ? S::lines : 1), S::warp_rows - 1)) +
        lane % (S::known ? S::lines : 1) * (128 / (int)sizeof(typename S::stored)); /* that the lane asks for */
    const auto ask = [&](int64_t k) {
        if (!S::known || lane >= S::lines * S::warp_rows || k + S::chunk > part.end) return;
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const typename S::stored *)p.product.x.data + line + k));
    };
    share_of<S> next_x[S::warp_rows], x[S::warp_rows];
    piece<TERMS> next_w[S::w_steps];
    form w_form[S::w_steps];
    T sum[S::warp_rows][S::columns] = {};
    const auto load = [&](int64_t k) {
#pragma unroll
        for (int r = 0; r < S::warp_rows; r++) next_x[r].load(p.product.x, at[r], k, part.end);
#pragma unroll
        for (int s = 0; s < S::w_steps; s++) {
            const int column = warp + s * STEP;
            w_form[s] = load_piece<T>(next_w[s], w_from, column < columns, column, k + lane * S::share, part.end);
        }
        ask(k + AHEAD * S::chunk);
    };
    rfi_release_next();
    rfi_wait_for_previous();
    T scale[S::w_steps];
#pragma unroll
    for (int s = 0; s < S::w_steps; s++) {
        const int column = warp + s * STEP;
        scale[s] = p.product.w.scale && column < columns ? (T)p.product.w.scale[column] : (T)1;
    }
#pragma unroll
    for (int i = 1; i < AHEAD; i++) ask(part.first + i * S::chunk);
    load(part.first);
    int stage = 0;
    for (int64_t k = part.first; k < part.end; k += S::chunk, stage ^= 1) {
        T *const w = stages[stage];
#pragma unroll
        for (int s = 0; s < S::w_steps; s++) {
            T v[S::share];
            values_of<T>(v, next_w[s], w_form[s], w_from.rows.dtype == RF_BFLOAT16);
#pragma unroll
            for (int i = 0; i < S::share; i++) w[(warp + s * STEP) * S::chunk + lane * S::share + i] = v[i] * scale[s];
        }
#pragma unroll
        for (int r = 0; r < S::warp_rows; r++) x[r] = next_x[r];
        __syncthreads(); /* the stage is written, and the one before it read */
        if (k + S::chunk < part.end) load(k + S::chunk);
        multiply<S>(sum, x, w, columns);
    }
    constexpr int GROUP = 32 / S::sums; /* lanes that have the same */
    const T total = sum_lanes<S::sums>((T(&)[S::sums])sum);
    if (lane % GROUP == 0)
        tile[(warp * S::warp_rows + lane / GROUP / S::columns) * TILE_LD + lane / GROUP % S::columns] = total;
    __syncthreads(); /* the tile is written */
    if (p.schedule.splits > 1 && !rfi_add_splits<S::rows, S::columns, THREADS>(p.schedule, tile, TILE_LD, rows)) return;
    rfi_fold_tile<T>(p, tile, TILE_LD, row0, rows, 0, RFI_FOLD_COLUMNS);
    if (p.schedule.tickets) rfi_finish_rows<T>(p, blockIdx.x, 0, 1, row0, rows);
}

template <class S> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t row_blocks = rfi_tiles(fold->product.batch, S::rows);
    if (row_blocks > INT32_MAX || fold->schedule.splits > 65535 || fold->product.out_features > S::columns)
        return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_narrow<S>, fold, dim3((unsigned)row_blocks, 1, (unsigned)fold->schedule.splits), THREADS, 0,
        stream, fold->schedule.overlaps);
}

} // namespace

cudaError_t rfi_cuda_fold_narrow_32x8(const rfi_cuda_fold *fold, cudaStream_t stream) {
    switch (fold->product.x.dtype) {
    case RF_FLOAT16: return launch<shape<float, __half, 8>>(fold, stream);
    case RF_BFLOAT16: return launch<shape<float, __nv_bfloat16, 8>>(fold, stream);
    case RF_FLOAT32: return launch<shape<float, float, 8>>(fold, stream);
    default: return launch<shape<float, unknown, 8>>(fold, stream);
    }
}
/* Of 16 bits that many columns are left to tensor cores. */
cudaError_t rfi_cuda_fold_narrow_16x16(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (fold->product.x.dtype != RF_FLOAT32) return cudaErrorInvalidConfiguration;
    return launch<shape<float, float, 16>>(fold, stream);
}
cudaError_t rfi_cuda_fold_narrow_f64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return fold->product.x.dtype == RF_FLOAT64 ? launch<shape<double, double, 8>>(fold, stream)
                                               : launch<shape<double, unknown, 8>>(fold, stream);
}
