/* SPDX-License-Identifier: MIT */
/* What comes before a fold of 16-bit values as they are stored: copies of rows that kernels can read in pieces of 16
 * bytes, W in blocks, and cleared tickets. */
#include "common/clear.cuh"
#include "common/typed.cuh"

namespace {

constexpr int LOG_THREADS = 8, THREADS = 1 << LOG_THREADS;

__global__ void __launch_bounds__(THREADS) clear_all(const __grid_constant__ rfi_cuda_clear p) {
    rfi_begin(p);
    rfi_clear_words(p);
}

/* A block a row, 16 bytes a thread at a time. */
__global__ void __launch_bounds__(THREADS) pack_rows(const __grid_constant__ rfi_cuda_pack p) {
    constexpr int PIECE = 8;
    const int64_t row = blockIdx.x;
    const uint16_t *from = (const uint16_t *)p.from + row * p.ld_from;
    const bool whole = (uintptr_t)from % 16 == 0;
    for (int64_t i = threadIdx.x * PIECE; i < p.depth; i += THREADS * PIECE) {
        __align__(16) uint16_t v[PIECE];
        if (whole && i + PIECE <= p.columns) *(uint4 *)v = *(const uint4 *)(from + i);
        else
#pragma unroll
            for (int j = 0; j < PIECE; j++) v[j] = i + j < p.columns ? from[i + j] : 0;
        *(uint4 *)((uint16_t *)p.to + rfi_place(p.panel, p.panel_rows, row, i)) = *(const uint4 *)v;
    }
}

/* A block copies THREADS >> `shift` rows, 1 << shift threads a row and a piece each at a time; blocks along y share out
 * what is more. */
struct copying {
    rfi_cuda_copy rows;
    int shift;
};

/* U: what values are read by, as the rows are aligned. */
template <class U> __global__ void __launch_bounds__(THREADS) copy_rows(const __grid_constant__ copying c) {
    constexpr int PIECE = 8, UNIT = sizeof(U) / sizeof(uint16_t);
    const rfi_cuda_copy &p = c.rows;
    const int shift = c.shift;
    rfi_begin(p.clear);
    if (blockIdx.y == 0) rfi_clear_words(p.clear);
    const int64_t row = (int64_t)blockIdx.x * (THREADS >> shift) + (threadIdx.x >> shift);
    if (row >= p.rows) return;
    const uint16_t *from = (const uint16_t *)p.from + row * p.ld_from;
    uint16_t *to = (uint16_t *)p.to + row * p.ld_to;
    const int64_t step = (int64_t)gridDim.y << shift, pieces = p.ld_to / PIECE;
#pragma unroll 2
    for (int64_t i = ((int64_t)blockIdx.y << shift) + (threadIdx.x & ((1 << shift) - 1)); i < pieces; i += step) {
        __align__(16) uint16_t v[PIECE];
        if ((i + 1) * PIECE <= p.columns)
#pragma unroll
            for (int j = 0; j < PIECE; j += UNIT) *(U *)(v + j) = *(const U *)(from + i * PIECE + j);
        else
#pragma unroll
            for (int j = 0; j < PIECE; j++) v[j] = i * PIECE + j < p.columns ? from[i * PIECE + j] : 0;
        *(uint4 *)(to + i * PIECE) = *(const uint4 *)v;
    }
}

} // namespace

cudaError_t rfi_cuda_launch_clear(const rfi_cuda_clear *clear, cudaStream_t stream) {
    return clear->count ? rfi_launch(clear_all, clear, dim3(1), THREADS, 0, stream, clear->overlaps) : cudaSuccess;
}

cudaError_t rfi_cuda_overlaps(int32_t *overlaps) {
    cudaFuncAttributes attributes;
    cudaError_t error =
        cudaFuncGetAttributes(&attributes, clear_all); /* all portable files are compiled for the same architectures */
    *overlaps = !error && attributes.ptxVersion >= 90;
    return error;
}

cudaError_t rfi_cuda_launch_copy(const rfi_cuda_copy *copy, cudaStream_t stream) {
    if (copy->rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (!copy->rows || !copy->ld_to) return rfi_cuda_launch_clear(&copy->clear, stream);
    constexpr int64_t ENOUGH = 2048; /* blocks, for any device */
    const int64_t pieces = copy->ld_to / 8;
    copying c = {*copy, 0};
    while (c.shift < LOG_THREADS && 1 << c.shift < pieces) c.shift++;
    const int64_t blocks = ((copy->rows - 1) >> (LOG_THREADS - c.shift)) + 1, parts = ((pieces - 1) >> c.shift) + 1,
                  wanted = ENOUGH / blocks + 1;
    const auto aligned = [&](size_t bytes) {
        return (uintptr_t)copy->from % bytes == 0 && (copy->rows == 1 || copy->ld_from * sizeof(uint16_t) % bytes == 0);
    };
    const auto kernel = aligned(16) ? copy_rows<uint4>
        : aligned(8)                ? copy_rows<uint2>
        : aligned(4)                ? copy_rows<uint32_t>
                                    : copy_rows<uint16_t>;
    return rfi_launch(kernel, &c, dim3((unsigned)blocks, (unsigned)(parts < wanted ? parts : wanted)), THREADS, 0,
        stream, copy->clear.overlaps);
}

cudaError_t rfi_cuda_launch_pack(const rfi_cuda_pack *pack, cudaStream_t stream) {
    if (pack->rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (!pack->rows || !pack->depth) return cudaSuccess;
    return rfi_launch(pack_rows, pack, dim3((unsigned)pack->rows), THREADS, 0, stream);
}
