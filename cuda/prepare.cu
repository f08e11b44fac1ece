/* What comes before a fold: rows in terms of binary16, and copies that kernels can read in 16-byte pieces. */
#include "launch.cuh"
#include "typed.cuh"

namespace {

constexpr int THREADS = 256;

/* Every thread gets the combined value of the block. `scratch` holds a value a warp. */
template <class T, class Combine> __device__ T block_all(T v, T *scratch, Combine combine) {
    for (int step = 1; step < 32; step *= 2) v = combine(v, __shfl_xor_sync(~0u, v, step));
    __syncthreads(); /* the scratch of the previous call is read */
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = scratch[0];
    for (int w = 1; w < THREADS / 32; w++) v = combine(v, scratch[w]);
    return v;
}

/* Scaling so that the largest finite magnitude lies in [2^14, 2^15) leaves 2^15 of headroom above binary16's subnormals for the second term: high + low
 * is exact to 22 bits down to 2^-15 of the largest, and to 2^-40 of it below. The inverse must be a float, subnormals included, so that a row of the smallest
 * subnormals is scaled by 2^149 only: its values are then small integers, which the terms hold exactly. */
__device__ __forceinline__ int scale_exponent(float largest) {
    if (largest == 0) return 0;
    int exponent = ilogbf(largest);
    return min(14 - exponent, 149);
}

/* A power of two beyond float's range in two factors; exact wherever the result is normal, and subnormal results do not occur (|v| 2^e < 2^15 and
 * e >= -113). */
__device__ __forceinline__ float scale_by(float v, int exponent) {
    int half = exponent / 2;
    return v * __int_as_float((half + 127) << 23) * __int_as_float((exponent - half + 127) << 23);
}

/* Values of a row that a thread takes at once, and how many times that it keeps in registers between the two passes over a row; longer rows are read twice. */
constexpr int WIDTH = 4, KEPT = 8;

/* Columns [i, i + WIDTH) of a row that begins at value `first`; zeros behind the last column. */
__device__ __forceinline__ void load_values(const rfi_cuda_split &p, int64_t first, int64_t i, bool aligned, float (&v)[WIDTH]) {
    if (aligned && i + WIDTH <= p.columns) {
        const float4 q = *(const float4 *)((const float *)p.data + first + i);
        v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < WIDTH; j++) v[j] = i + j < p.columns ? rfi_load_as<float>(p.data, p.dtype, first + i + j) : 0;
}

/* What is known of a thread's part of a row. */
struct account {
    float largest; /* of the finite magnitudes */
    int finite;
    float loss, counted, worst; /* relative losses: their sum, number and the largest */
};

__device__ __forceinline__ void measure(const float (&v)[WIDTH], account &a) {
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        const float magnitude = fabsf(v[j]);
        if (magnitude < INFINITY) a.largest = fmaxf(a.largest, magnitude);
        else a.finite = 0;
    }
}

/* A quotient of approximate reciprocals will do: losses are compared with powers of two far apart from what occurs. */
__device__ __forceinline__ void write_terms(const rfi_cuda_split &p, int64_t at, const float (&stored)[WIDTH], int exponent, account &a) {
    __align__(8) __half high[WIDTH], low[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        const float s = a.finite ? stored[j] : 0, v = scale_by(s, exponent);
        high[j] = __float2half_rn(v);
        float rest = v - __half2float(high[j]);
        if (p.low) {
            low[j] = __float2half_rn(rest);
            rest -= __half2float(low[j]);
        }
        if (s != 0) {
            const float lost = v != 0 ? fabsf(__fdividef(rest, v)) : 1;
            a.loss += lost;
            a.worst = fmaxf(a.worst, lost);
            a.counted += 1;
        }
    }
    *(uint2 *)((__half *)p.high + at) = *(const uint2 *)high;
    if (p.low) *(uint2 *)((__half *)p.low + at) = *(const uint2 *)low;
}

/* A block a row: the largest magnitude, then the terms, and whether they say enough. */
__global__ void __launch_bounds__(THREADS) split_rows(const __grid_constant__ rfi_cuda_split p) {
    __shared__ float scratch[THREADS / 32];
    constexpr int STEP = THREADS * WIDTH;
    const int64_t row = blockIdx.x, first = row * p.ld, to = row * p.ld_terms, mine = threadIdx.x * WIDTH;
    const bool aligned = p.dtype == RF_FLOAT32 && (uintptr_t)p.data % 16 == 0 && p.ld % WIDTH == 0;
    float kept[KEPT][WIDTH];
    account a = {0, 1, 0, 0, 0};
#pragma unroll
    for (int g = 0; g < KEPT; g++) load_values(p, first, mine + g * STEP, aligned, kept[g]);
#pragma unroll
    for (int g = 0; g < KEPT; g++) measure(kept[g], a);
    for (int64_t i = mine + KEPT * STEP; i < p.columns; i += STEP) {
        float v[WIDTH];
        load_values(p, first, i, aligned, v);
        measure(v, a);
    }
    a.largest = block_all(a.largest, scratch, [](float x, float y) { return fmaxf(x, y); });
    a.finite = __syncthreads_and(a.finite);
    const int exponent = scale_exponent(a.largest);
#pragma unroll
    for (int g = 0; g < KEPT; g++)
        if (mine + g * STEP < p.ld_terms) write_terms(p, to + mine + g * STEP, kept[g], exponent, a);
    for (int64_t i = mine + KEPT * STEP; i < p.ld_terms; i += STEP) {
        float v[WIDTH];
        load_values(p, first, i, aligned, v);
        write_terms(p, to + i, v, exponent, a);
    }
    a.loss = block_all(a.loss, scratch, [](float x, float y) { return x + y; });
    a.counted = block_all(a.counted, scratch, [](float x, float y) { return x + y; });
    a.worst = block_all(a.worst, scratch, [](float x, float y) { return fmaxf(x, y); });
    if (threadIdx.x) return;
    p.scale[row] = scalbnf(1.0f, -exponent);
    /* One value lost outright (1/64 of itself) is told too, however many there are: infinity times it must not become NaN. */
    const bool irregular = !a.finite || a.loss > p.average_loss * a.counted || a.worst > 0x1p-6f;
    p.irregular.flag[row] = irregular;
    if (irregular) p.irregular.list[atomicAdd(p.irregular.count, 1u)] = (int32_t)row;
}

template <class T> __global__ void __launch_bounds__(THREADS) copy_rows(const __grid_constant__ rfi_cuda_copy p) {
    const int64_t row = blockIdx.x;
    const T *from = (const T *)p.from + row * p.ld_from;
    T *to = (T *)p.to + row * p.ld_to;
    for (int64_t i = threadIdx.x; i < p.ld_to; i += THREADS) to[i] = i < p.columns ? from[i] : (T)0;
}

} // namespace

cudaError_t rfi_cuda_launch_split(const rfi_cuda_split *split, cudaStream_t stream) {
    if (split->rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    return split->rows ? rfi_launch(split_rows, split, dim3((unsigned)split->rows), THREADS, 0, stream) : cudaSuccess;
}

cudaError_t rfi_cuda_launch_copy(const rfi_cuda_copy *copy, cudaStream_t stream) {
    if (copy->rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (!copy->rows || !copy->ld_to) return cudaSuccess;
    auto kernel = copy->item == 2 ? copy_rows<uint16_t> : copy->item == 4 ? copy_rows<uint32_t> : copy_rows<uint64_t>;
    return rfi_launch(kernel, copy, dim3((unsigned)copy->rows), THREADS, 0, stream);
}
