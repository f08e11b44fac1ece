/* SPDX-License-Identifier: MIT */
/* A sum or mean of affine columns as one dot product a row: see lib/collapse.h. Sums in double; reads x once.
 *
 * Memory is what limits it: x is read in pieces of 16 bytes, a step ahead of their use, and a block takes several rows,
 * which share what it reads of the summed weights. Which thread adds what, and in which order, depends on K and the
 * type of x alone: the bits of a row do not depend on those beside it.
 *
 * Rows with infinities or NaN, and those that might overflow on the full path, are told by the largest magnitude in the
 * block and are rare: only then is it asked which rows they are, and the block computes its rows once more, one by one.
 */
#include <type_traits>

#include "common/epilogue.cuh"
#include "common/launch.cuh"

namespace {

constexpr int BUSY = 512; /* threads of a multiprocessor that, with several rows each, keep enough loads on their way */

template <class E> using wide =
    std::conditional_t<std::is_same_v<E, double>, double, float>; /* holds E, and is the compute type */
template <class E> constexpr int VALUES = 16 / sizeof(E);         /* of a piece */

__device__ __forceinline__ void unpack(float (&v)[4], const uint4 &p, float) {
    v[0] = __uint_as_float(p.x), v[1] = __uint_as_float(p.y), v[2] = __uint_as_float(p.z), v[3] = __uint_as_float(p.w);
}
__device__ __forceinline__ void unpack(double (&v)[2], const uint4 &p, double) {
    v[0] = __hiloint2double((int)p.y, (int)p.x), v[1] = __hiloint2double((int)p.w, (int)p.z);
}
template <class E> __device__ __forceinline__ void unpack(float (&v)[8], const uint4 &p, E) {
    const uint32_t two[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = rfi_widen<E>(two[i]);
        v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
}

/* Ordered like the absolute values, infinity and then NaN above all. */
__device__ __forceinline__ uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }
__device__ __forceinline__ uint64_t magnitude(double v) {
    return (uint64_t)__double_as_longlong(v) & 0x7fffffffffffffffu;
}
__device__ __forceinline__ double value_of(uint32_t magnitude) { return __uint_as_float(magnitude); }
__device__ __forceinline__ double value_of(uint64_t magnitude) { return __longlong_as_double((long long)magnitude); }

/* One step of a thread: a piece of each row, and their summed weights. */
template <class E, int ROWS> struct step {
    uint4 x[ROWS];
    double2 w[VALUES<E> / 2];
};

/* A piece that ends with the row or is not aligned, zero beyond the row. */
template <class E> __device__ __noinline__ uint4 load_ragged(const E *x, int64_t count) {
    E v[VALUES<E>];
#pragma unroll
    for (int i = 0; i < VALUES<E>; i++) v[i] = i < count ? x[i] : (E)0.0f;
    uint4 piece;
    memcpy(&piece, v, sizeof piece);
    return piece;
}

/* `last`: the last row that exists. */
template <class E, int ROWS>
__device__ __forceinline__ void load(step<E, ROWS> &to, const rfi_cuda_collapse &p, const E *x, int last, int64_t k) {
    const int64_t left = p.fold.product.in_features - k, ld = p.fold.product.x.ld;
    if (left <= 0) return;
#pragma unroll
    for (int i = 0; i < VALUES<E> / 2; i++) to.w[i] = __ldg((const double2 *)(p.weight_sum + k) + i);
    if (p.aligned && left >= VALUES<E>) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) to.x[r] = __ldg((const uint4 *)(x + min(r, last) * ld + k));
    } else {
#pragma unroll 1
        for (int r = 0; r < ROWS; r++) {
            const uint4 piece = load_ragged(x + min(r, last) * ld + k, left);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (i == r) to.x[i] = piece; /* no index into registers */
        }
    }
}

template <class E, int ROWS, class M>
__device__ __forceinline__ void add(double (&sum)[ROWS], M &largest, const step<E, ROWS> &now) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        wide<E> v[VALUES<E>];
        unpack(v, now.x[r], E());
#pragma unroll
        for (int i = 0; i < VALUES<E>; i++) {
            sum[r] = fma((double)v[i], i % 2 ? now.w[i / 2].y : now.w[i / 2].x, sum[r]);
            largest = max(largest, magnitude(v[i]));
        }
    }
}

/* The sums over the lanes of a warp: lane l gets that of row l / (32 / ROWS). Lanes exchange halves of their rows while
 * they have several; the pairs that are added do not depend on ROWS. */
template <int ROWS> __device__ __forceinline__ double add_lanes(double (&sum)[ROWS]) {
    int distance = 16;
#pragma unroll
    for (int n = ROWS / 2; n > 0; n /= 2, distance /= 2) {
        const bool upper = threadIdx.x & distance;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const double other = __shfl_xor_sync(~0u, upper ? sum[i] : sum[i + n], distance);
            sum[i] = (upper ? sum[i + n] : sum[i]) + other;
        }
    }
#pragma unroll
    for (; distance > 0; distance /= 2) sum[0] += __shfl_xor_sync(~0u, sum[0], distance);
    return sum[0];
}

/* What the infinities and NaN of a row do to the columns, and the largest finite magnitude. All threads of the block
 * call it and get the same. */
struct special {
    int up, down;
    double largest;
};

__device__ __noinline__ special look_at_row(const rfi_cuda_collapse &p, int64_t row) {
    __shared__ double largest[32];
    special s = {0, 0, 0};
    for (int64_t k = threadIdx.x; k < p.fold.product.in_features; k += blockDim.x) {
        const double v =
            rfi_load_as<double>(p.fold.product.x.data, p.fold.product.x.dtype, row * p.fold.product.x.ld + k);
        if (fabs(v) < (double)INFINITY) {
            s.largest = fmax(s.largest, fabs(v));
            continue;
        }
        const int direction = v != v ? 0 : v > 0 ? p.sign[k] : -p.sign[k];
        s.up |= direction >= 0;
        s.down |= direction <= 0;
    }
    for (int distance = 1; distance < 32; distance *= 2)
        s.largest = fmax(s.largest, __shfl_xor_sync(~0u, s.largest, distance));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = s.largest;
    s.up = __syncthreads_or(s.up);
    s.down = __syncthreads_or(s.down);
    for (int w = 0; w < blockDim.x / 32; w++) s.largest = fmax(s.largest, largest[w]);
    __syncthreads(); /* largest is read */
    return s;
}

/* A row whose logits or partial sums might overflow, as the chain says it, column by column. All threads of the block
 * call it and get the same. */
template <class T> __device__ __noinline__ double full_row(const rfi_cuda_collapse &p, int64_t row) {
    const rfi_cuda_fold &f = p.fold;
    __shared__ double sums[32];
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    double sum = 0;
    for (int64_t j = threadIdx.x / 32; j < f.product.out_features; j += warps) {
        T dot = 0;
        for (int64_t k = lane; k < f.product.in_features; k += 32)
            dot = fma(rfi_load_as<T>(f.product.x.data, f.product.x.dtype, row * f.product.x.ld + k),
                rfi_load_rows<T>(f.product.w, j, k), dot);
        for (int distance = 1; distance < 32; distance *= 2) dot += __shfl_xor_sync(~0u, dot, distance);
        T v = dot + ((const T *)f.visitor.bias)[j], saved = 0;
        for (int i = 0; i < f.visitor.chain.num_pre; i++) {
            const rfi_cuda_step &step = f.visitor.chain.steps[i];
            const T a = step.vector < 0 ? rfi_typed<T>::a(step)
                                        : ((const T *)f.visitor.vectors)[step.vector * f.product.out_features + j];
            v = rfi_typed<T>::apply(step.kind, v, a, rfi_typed<T>::b(step), saved);
            if (step.kind == RF_OP_SAVE) saved = v;
        }
        sum += v;
    }
    if (lane == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < warps; w++) sum += sums[w];
    __syncthreads(); /* the sums are read */
    return sum / p.divisor;
}

__device__ __forceinline__ bool may_overflow(const rfi_cuda_collapse &p, double largest) {
    return !(largest * p.slope + p.offset <= p.limit);
}

/* A row of a block in which one is special: `value` unless it is that one. All threads of the block call it. */
template <class E>
__device__ __noinline__ void finish_special_row(const rfi_cuda_collapse &p, int64_t row, double value) {
    const special s = look_at_row(p, row);
    if (s.up || s.down) value = s.up && s.down ? (double)NAN : s.up ? (double)INFINITY : -(double)INFINITY;
    if (may_overflow(p, s.largest)) value = full_row<wide<E>>(p, row);
    if (threadIdx.x == 0) rfi_finish_row<wide<E>>(p.fold.visitor, row, (wide<E>)value);
}

template <class E, int THREADS, int ROWS> __global__ void __launch_bounds__(
    THREADS, (ROWS > 1 ? BUSY : 2 * BUSY) / THREADS) collapse_rows(const __grid_constant__ rfi_cuda_collapse p) {
    constexpr int WARPS = THREADS / 32, LANES = 32 / ROWS, STEP = THREADS * VALUES<E>;
    __shared__ double sums[WARPS][ROWS];
    const int64_t row0 = (int64_t)blockIdx.x * ROWS, depth = p.fold.product.in_features;
    const int rows = (int)min((int64_t)ROWS, p.fold.product.batch - row0), lane = threadIdx.x % 32;
    const E *x = (const E *)p.fold.product.x.data + row0 * p.fold.product.x.ld;
    double sum[ROWS] = {};
    decltype(magnitude(wide<E>())) largest = 0;
    step<E, ROWS> now, next;
    int64_t k = threadIdx.x * VALUES<E>;
    rfi_release_next();
    rfi_wait_for_previous();
    load(next, p, x, rows - 1, k);
    for (; k < depth; k += STEP) {
        now = next;
        load(next, p, x, rows - 1, k + STEP);
        add(sum, largest, now);
    }
    const double row_sum = add_lanes(sum);
    if (lane % LANES == 0) sums[threadIdx.x / 32][lane / LANES] = row_sum;
    const bool is_special =
        __syncthreads_or(may_overflow(p, value_of(largest))); /* infinity and NaN never pass; the sums are written */
    double value = 0;
    if (threadIdx.x < ROWS) {
        double total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) total += sums[w][threadIdx.x];
        value = (total + p.constant) / p.divisor;
    }
    if (!is_special) {
        if (threadIdx.x < rows) rfi_finish_row<wide<E>>(p.fold.visitor, row0 + threadIdx.x, (wide<E>)value);
        return;
    }
    for (int r = 0; r < rows; r++)
        finish_special_row<E>(p, row0 + r, __shfl_sync(~0u, value, r)); /* thread 0's value counts */
}

template <class E, int THREADS, int ROWS> cudaError_t launch(const rfi_cuda_collapse *collapse, cudaStream_t stream) {
    const int64_t blocks = rfi_tiles(collapse->fold.product.batch, ROWS);
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    return rfi_launch(collapse_rows<E, THREADS, ROWS>, collapse, dim3((unsigned)blocks), THREADS, 0, stream,
        collapse->fold.schedule.overlaps);
}

/* As many rows a block as leave all multiprocessors busy, or nearly: 1024 rows fill 128 of 132. */
template <class E, int THREADS> cudaError_t launch_rows(const rfi_cuda_collapse *collapse, cudaStream_t stream) {
    const int64_t rows = collapse->fold.product.batch * THREADS / (BUSY * (int64_t)collapse->multiprocessors * 15 / 16);
    return rows >= 8 ? launch<E, THREADS, 8>(collapse, stream)
        : rows >= 4  ? launch<E, THREADS, 4>(collapse, stream)
                     : launch<E, THREADS, 1>(collapse, stream);
}

/* About four pieces of a row for each thread. */
template <class E> cudaError_t launch_values(const rfi_cuda_collapse *collapse, cudaStream_t stream) {
    const int64_t pieces = rfi_tiles(collapse->fold.product.in_features, VALUES<E>);
    return pieces <= 128 ? launch_rows<E, 32>(collapse, stream)
        : pieces <= 512  ? launch_rows<E, 128>(collapse, stream)
        : pieces <= 1024 ? launch_rows<E, 256>(collapse, stream)
                         : launch_rows<E, 512>(collapse, stream);
}

} // namespace

cudaError_t rfi_cuda_launch_collapse(const rfi_cuda_collapse *collapse, cudaStream_t stream) {
    switch (collapse->fold.product.x.dtype) {
    case RF_FLOAT64: return launch_values<double>(collapse, stream);
    case RF_FLOAT16: return launch_values<__half>(collapse, stream);
    case RF_BFLOAT16: return launch_values<__nv_bfloat16>(collapse, stream);
    default: return launch_values<float>(collapse, stream);
    }
}
