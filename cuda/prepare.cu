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

/* A block a row: the largest magnitude, then the terms, and whether they say enough. */
__global__ void __launch_bounds__(THREADS) split_rows(const __grid_constant__ rfi_cuda_split p) {
    __shared__ float scratch[THREADS / 32];
    const int64_t row = blockIdx.x, first = row * p.ld;
    float largest = 0;
    int finite = 1;
    for (int64_t i = threadIdx.x; i < p.columns; i += THREADS) {
        float v = fabsf(rfi_load_as<float>(p.data, p.dtype, first + i));
        if (v < INFINITY) largest = fmaxf(largest, v);
        else finite = 0;
    }
    largest = block_all(largest, scratch, [](float a, float b) { return fmaxf(a, b); });
    finite = __syncthreads_and(finite);
    const int exponent = scale_exponent(largest);
    __half *high = (__half *)p.high + row * p.ld_terms, *low = p.low ? (__half *)p.low + row * p.ld_terms : NULL;
    float loss = 0, counted = 0, worst = 0;
    for (int64_t i = threadIdx.x; i < p.ld_terms; i += THREADS) {
        const float stored = i < p.columns && finite ? rfi_load_as<float>(p.data, p.dtype, first + i) : 0;
        const float v = scale_by(stored, exponent);
        __half h = __float2half_rn(v);
        float rest = v - __half2float(h);
        high[i] = h;
        if (low) {
            __half l = __float2half_rn(rest);
            low[i] = l;
            rest -= __half2float(l);
        }
        if (stored != 0) {
            const float lost = v != 0 ? fabsf(rest / v) : 1;
            loss += lost;
            worst = fmaxf(worst, lost);
            counted += 1;
        }
    }
    loss = block_all(loss, scratch, [](float a, float b) { return a + b; });
    counted = block_all(counted, scratch, [](float a, float b) { return a + b; });
    worst = block_all(worst, scratch, [](float a, float b) { return fmaxf(a, b); });
    if (threadIdx.x) return;
    p.scale[row] = scalbnf(1.0f, -exponent);
    /* One value lost outright (1/64 of itself) is told too, however many there are: infinity times it must not become NaN. */
    bool irregular = !finite || loss > p.average_loss * counted || worst > 0x1p-6f;
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
