/* SPDX-License-Identifier: MIT */
/* What W is like, asked before it is prepared. */
#include <limits.h>

#include "common/launch.cuh"
#include "common/scaling.cuh"

using namespace scaling;

namespace {

constexpr int THREADS = 256;

/* The exponents of the last bit of a magnitude that is one, and of the first, from the same number on. */
__device__ __forceinline__ int last_bit(float v) {
    const uint32_t bits = __float_as_uint(v);
    const int exponent = (int)(bits >> 23);
    return exponent ? exponent + __ffs((int)(bits & 0x7fffff | 0x800000)) : 1 + __ffs((int)bits);
}
__device__ __forceinline__ int first_bit(float v) {
    const uint32_t bits = __float_as_uint(v);
    const int exponent = (int)(bits >> 23);
    return exponent ? exponent + 24 : 33 - __clz((int)bits);
}

/* Sums of values of so many bits, from the first of the largest to the last of any, may be meant to be exact. */
constexpr int COARSE_BITS = 14;

/* A block a row. Values are compared with the row's largest as write_terms would; what is wide, concentrated and lost,
 * doc/kernels/accuracy.md says. */
__global__ void __launch_bounds__(THREADS) survey_rows(const __grid_constant__ rfi_cuda_survey p) {
    constexpr int WARPS = THREADS / 32;
    __shared__ float scratch[WARPS];
    const int64_t first = (int64_t)blockIdx.x * p.ld;
    const auto add = [](float x, float y) { return x + y; };
    float top = 0, sum = 0, poor = 0, counted = 0;
    int infinities = 0, last = INT_MAX;
    bool nan = false, sparse = false;
    for (int64_t i = threadIdx.x; i < p.columns; i += THREADS) {
        const float v = fabsf(rfi_load_as<float>(p.data, p.dtype, first + i));
        infinities += v == INFINITY, nan |= v != v;
        top = fmaxf(top, v);
    }
    nan = __syncthreads_or(nan);
    const bool infinite = __syncthreads_or(infinities);
    if (infinite) infinities = (int)block_all<WARPS>((float)infinities, scratch, add); /* as many as float counts */
    if (threadIdx.x == 0) {
        if (infinite) atomicAdd(&p.findings->infinite, 1u);
        if (infinite && !nan && (infinities > 1 || p.columns > 1 << 24)) {
            atomicAdd(&p.findings->many, 1u);
            atomicAdd(&p.findings->several, (unsigned long long)infinities);
        }
        if (infinite || nan) atomicAdd(&p.findings->nonfinite, 1u);
    }
    top = block_all<WARPS>(top, scratch, [](float x, float y) { return fmaxf(x, y); });
    if (!p.terms || infinite || nan || top == 0) return;
    const power scale(scale_exponent<false>(top, p.dtype));
    const bool single = p.terms == 1;
    const float below = single ? poor_below<1>(p.dtype) : poor_below<2>(p.dtype), share = 1 / top,
                few = single ? few_poor<1>(p.dtype) : few_poor<2>(p.dtype), lost = single ? below : below * 0x1p-6f;
    for (int64_t i = threadIdx.x; i < p.columns; i += THREADS) {
        const float v = fabsf(rfi_load_as<float>(p.data, p.dtype, first + i)), scaled = v * scale.a * scale.b;
        if (scaled < SPARSE_BELOW) {
            sparse = true;
            if (!p.thin[i]) p.thin[i] = 1;
        }
        if (v == 0) continue;
        counted += 1, sum += v * share;
        last = min(last, last_bit(v));
        poor += scaled < below;
        if (scaled < lost) atomicAdd(&p.lost[i], 1u);
    }
    sum = block_all<WARPS>(sum, scratch, add);
    poor = block_all<WARPS>(poor, scratch, add);
    counted = block_all<WARPS>(counted, scratch, add);
    sparse = __syncthreads_or(sparse);
    const bool fine = __syncthreads_or(first_bit(top) - last >= COARSE_BITS);
    if (threadIdx.x) return;
    if (sparse) atomicAdd(&p.findings->sparse, 1u);
    if (fine) atomicAdd(&p.findings->fine, 1u);
    if (poor * few > counted) atomicAdd(&p.findings->wide, 1u);
    if (sum * 128 < (float)p.columns) atomicAdd(&p.findings->concentrated, 1u);
}

} // namespace

cudaError_t rfi_cuda_launch_survey(const rfi_cuda_survey *survey, cudaStream_t stream) {
    if (survey->rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    return survey->rows && survey->columns
        ? rfi_launch(survey_rows, survey, dim3((unsigned)survey->rows), THREADS, 0, stream)
        : cudaSuccess;
}
