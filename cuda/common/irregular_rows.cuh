/* SPDX-License-Identifier: MIT */
/* Which rows terms of 16 bits do not represent, by kinds: each kind is computed in its own way. */
#ifndef ROWFOLD_CUDA_IRREGULAR_ROWS_CUH
#define ROWFOLD_CUDA_IRREGULAR_ROWS_CUH

#include "common/irregular_stage.cuh"

namespace irregular_tile {

/* The rows of x that are computed in one way. A scale says whether they are finite; where the infinities of others are,
 * in place of their terms: see rfi_cuda_split. */
enum Kind { FINITE, FEW, MANY, KINDS };

__device__ __forceinline__ const int *infinities_of(const rfi_cuda_product &p, int64_t row) {
    return (const int *)((const uint16_t *)p.x.data + row * p.x.ld);
}

constexpr int ROWS_EACH = WINDOW / THREADS; /* that a thread looks at */
/* To look W up at one place of each row of a tile takes about as long as to multiply so many columns: in blocks, whose
 * rows are side by side, in rows, and for few rows by plain multiply-adds. */
constexpr int PLACE_COLUMNS = 224, PLACE_COLUMNS_OF_ROWS = 384, PLAIN_PLACE_COLUMNS = 128;

/* Which of a thread's rows of the WINDOW from row `first` on are of each kind: a bit a row. What is read for one row
 * waits for nothing of another's. */
struct Flags {
    unsigned of[KINDS];
    __device__ __forceinline__ Flags(const rfi_cuda_product &p, int64_t first, bool plain, int thread) : of() {
        const int64_t row = first + thread * ROWS_EACH;
        const int columns = plain ? PLAIN_PLACE_COLUMNS : p.w.panel ? PLACE_COLUMNS : PLACE_COLUMNS_OF_ROWS;
        bool flagged[ROWS_EACH];
        float scale[ROWS_EACH];
        int number[ROWS_EACH];
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++) flagged[i] = row + i < p.batch && p.irregular[row + i];
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++) scale[i] = flagged[i] ? p.x.scale[row + i] : 0;
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++) number[i] = scale[i] == INFINITY ? infinities_of(p, row + i)[0] : 0;
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++) {
            const bool infinite = scale[i] == INFINITY,
                       few = number[i] <= RFI_FEW_INFINITIES && number[i] * columns <= p.in_features;
            of[FINITE] |= (flagged[i] && !infinite ? 1u : 0u) << i;
            of[FEW] |= (infinite && few ? 1u : 0u) << i;
            of[MANY] |= (infinite && !few ? 1u : 0u) << i;
        }
    }
};

/* The rows whose `flags` say so among the WINDOW from row `first` on, in their order, which is the same in every block.
 * Their number. By THREADS threads; sync() is a barrier of them. */
template <class Sync> __device__ int list_rows(unsigned flags, int64_t first, Notes &notes, int thread, Sync sync) {
    const int64_t row = first + thread * ROWS_EACH;
    const int lane = thread % 32;
    int upto = __popc(flags);
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += below;
    }
    sync(); /* what was there is read */
    if (lane == 31) notes.counts[thread / 32] = upto;
    sync(); /* the counts are written */
    int at = upto - __popc(flags), all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w < thread / 32) at += notes.counts[w];
        all += notes.counts[w];
    }
#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++)
        if (flags >> i & 1) notes.list[at++] = (int)(row + i);
    sync(); /* the list is written */
    return all;
}

} // namespace irregular_tile
#endif
