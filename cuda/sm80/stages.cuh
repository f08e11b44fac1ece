/* SPDX-License-Identifier: MIT */
/* x and W on their way to stages in shared memory by cp.async, in the portable tensor-core kernels. A shape S says
 *   threads       of a block
 *   item          bytes of a value
 *   row_bytes     of a row of a stage, in `pieces` pieces of 16
 * Rows begin at multiples of 16 bytes but for what the kernel shifts, and what the last piece of a row holds beside the
 * row may be read. */
#ifndef ROWFOLD_CUDA_STAGES_CUH
#define ROWFOLD_CUDA_STAGES_CUH

#include "kernels.h"
#include "common/ptx.cuh"

namespace {

/* What a thread copies of one operand: a piece of every `step`th row. */
template <class S> struct source {
    static constexpr int step = S::threads / S::pieces;
    static_assert(step % 8 == 0, "all rows of a thread are permuted alike");
    const char *term[3]; /* its first row in the next stage */
    int64_t stride;      /* bytes from one of its rows to the next */
    int rows;            /* of the tile's rows, those from its first on */
};

template <class S>
__device__ __forceinline__ source<S> source_of(const rfi_cuda_rows &rows, int64_t row0, int64_t count) {
    const int first = threadIdx.x / S::pieces;
    const int64_t offset = ((row0 + first) * rows.ld + threadIdx.x % S::pieces * (16 / S::item)) * S::item;
    return source<S>{
        {(const char *)rows.data + offset, (const char *)rows.low + offset, (const char *)rows.least + offset},
        source<S>::step * rows.ld * S::item, (int)min(count - row0, (int64_t)INT32_MAX) - first};
}

/* Starts the copy of one term of a tile of ROWS rows, SIZE bytes of each piece; `bytes` of them lie within K, the rest
 * becomes zero, as do rows of the thread whose bit in `there` is not set. Rows that do not exist are left out: what
 * lies in their place adds to sums that nobody reads. */
template <class S, int ROWS, int SIZE = 16> __device__ __forceinline__ void copy_tile(
    uint32_t to, const char *from, int64_t stride, int rows, int bytes, uint32_t there = UINT32_MAX) {
    constexpr int step = source<S>::step;
    static_assert(ROWS % step == 0 && ROWS / step <= 32, "the threads take whole rows of pieces, with a bit each");
#pragma unroll
    for (int i = 0; i < ROWS / step; i++) {
        if (i * step < rows) {
            const uint32_t piece = to + i * step * S::row_bytes;
            const int valid = there >> i & 1 ? bytes : 0;
            if (SIZE == 8) rfi_copy_async_8(piece, from, valid);
            else rfi_copy_async_16(piece, from, valid);
        }
        from += stride;
    }
}

} // namespace

#endif
