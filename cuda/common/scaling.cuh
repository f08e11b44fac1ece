/* SPDX-License-Identifier: MIT */
/* How a row is scaled before it is brought to terms, and what these do to its values: for who brings it to them, and
 * for who asks beforehand what they would lose. */
#ifndef ROWFOLD_CUDA_SCALING_CUH
#define ROWFOLD_CUDA_SCALING_CUH

#include "common/typed.cuh"

namespace scaling {

/* Every thread gets the combined value of the block, of whole warps, a power of two, or of its warp alone. `scratch`
 * holds a value a warp; FRESH: nobody has used it yet. */
template <int WARPS, bool FRESH = false, class T, class Combine>
__device__ T block_all(T v, T *scratch, Combine combine) {
    for (int step = 1; step < 32; step *= 2) v = combine(v, __shfl_xor_sync(~0u, v, step));
    if (WARPS == 1) return v;
    if (!FRESH) __syncthreads(); /* the scratch of the previous call is read */
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = scratch[threadIdx.x % WARPS];
    for (int step = 1; step < WARPS; step *= 2) v = combine(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

/* binary16: scaling so that the largest finite magnitude lies in [2^14, 2^15) leaves 2^15 of headroom above the
 * subnormals for the second term: high + low is exact to 22 bits down to 2^-17 of the largest, and to 2^-40 of it
 * below. The inverse must be a float, subnormals included, so that a row of the smallest subnormals is scaled by 2^149
 * only: its values are then small integers, which the terms hold exactly. What is binary16 already is never scaled
 * down, and so held exactly. bfloat16 has the range of float32: only rows whose last terms would be subnormal are
 * scaled, to no more than what no product overflows with, and rows that rounding would make infinite. */
template <bool BF16> __device__ __forceinline__ int scale_exponent(float largest, int dtype) {
    if (largest == 0) return 0;
    const int exponent = ilogbf(largest);
    if (BF16) return exponent < -60 ? min(-60 - exponent, 149) : exponent > 119 ? -8 : 0;
    return dtype == RF_FLOAT16 ? max(14 - exponent, 0) : min(14 - exponent, 149);
}

/* A power of two; one beyond float's range in two factors. Products with both are exact wherever the result is normal,
 * and subnormal results do not occur
 * (|v| 2^e < 2^15 and e >= -113). */
struct power {
    float a, b;
    __device__ __forceinline__ explicit power(int exponent) {
        const int second = max(exponent - 127, 0);
        a = __int_as_float((exponent - second + 127) << 23);
        b = __int_as_float((second + 127) << 23);
    }
};

/* What terms of binary16 do to a scaled row, see doc/kernels/accuracy.md. A value is poor if they leave more than POOR
 * of it, which none does that is not below poor_below. */
template <int TERMS> __host__ __device__ constexpr float poor_share(int dtype) {
    return TERMS == 1 && dtype == RF_FLOAT32 ? 0x1p-10f : 0x1p-20f;
}
template <int TERMS> __host__ __device__ constexpr float poor_below(int dtype) {
    return dtype == RF_FLOAT16 ? 0 : TERMS == 2 ? 0x1p-5f : dtype == RF_FLOAT32 ? 0x1p-15f : 0x1p-17f;
}
/* Below this, terms are subnormal, and what they leave goes to the second level. */
template <int TERMS> __device__ constexpr float subnormal_below() { return TERMS == 2 ? 0x1p-3f : 0x1p-14f; }
/* Of the values of a row that are not zero, one in so many may be poor. */
template <int TERMS> __host__ __device__ constexpr float few_poor(int dtype) {
    return TERMS == 1 && dtype == RF_FLOAT32 ? 2 : 32;
}

/* A row of W with a scaled value below this, 2^-36 of the largest, is sparse. A scaled value of x from this on is a
 * fourth of its row's largest or more. */
constexpr float SPARSE_BELOW = 0x1p-22f, LARGE_FROM = 0x1p13f;

} // namespace scaling
#endif
