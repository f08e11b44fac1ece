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
 * rows are side by side, and in rows. */
constexpr int PLACE_COLUMNS = 80, PLACE_COLUMNS_OF_ROWS = 200;

/* And to multiply them by plain multiply-adds with few rows, all at once: of W that is near, in the L2, or not. */
__device__ __forceinline__ int plain_place_columns(const rfi_cuda_product &p) {
    constexpr int64_t NEAR = 1 << 23; /* values */
    const int rows = (int)min(p.batch, (int64_t)PLAIN_ROWS);
    return max(8, p.depth * p.out_features <= NEAR ? rows : 5 * rows);
}

/* Places of a row that are looked up, at most. */
__device__ __forceinline__ int most_places(const rfi_cuda_product &p, bool plain) {
    return plain ? rfi_few_infinities(p.batch) : RFI_FEW_INFINITIES;
}

/* Which of a thread's rows of the WINDOW from row `first` on are of each kind: a bit a row. What is read for one row
 * waits for nothing of another's. */
struct Flags {
    unsigned of[KINDS];
    __device__ __forceinline__ Flags(const rfi_cuda_product &p, int64_t first, bool plain, int thread) : of() {
        const int64_t row = first + thread * ROWS_EACH;
        const int columns = plain ? plain_place_columns(p)
            : p.w.panel           ? PLACE_COLUMNS
                                  : PLACE_COLUMNS_OF_ROWS,
                  most = most_places(p, plain);
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
                       few = number[i] <= most && (int64_t)number[i] * columns <= p.in_features;
            of[FINITE] |= (flagged[i] && !infinite ? 1u : 0u) << i;
            of[FEW] |= (infinite && few ? 1u : 0u) << i;
            of[MANY] |= (infinite && !few ? 1u : 0u) << i;
        }
    }
};

/* How many of a window's rows are of each kind, and how many of these lie before this thread's: the same order in every
 * block. By THREADS threads; sync() is a barrier of them. */
struct Counts {
    int all[KINDS], before[KINDS];
    template <class Sync> __device__ __forceinline__ Counts(const Flags &flags, Notes &notes, int thread, Sync sync) {
        constexpr int BITS = 10; /* of a kind's number in a warp */
        static_assert(32 * ROWS_EACH < 1 << BITS && KINDS * BITS < 32, "they fit side by side");
        const int lane = thread % 32;
        int mine = 0;
#pragma unroll
        for (int kind = 0; kind < KINDS; kind++) mine |= __popc(flags.of[kind]) << kind * BITS;
        int upto = mine;
        for (int step = 1; step < 32; step *= 2) {
            const int below = __shfl_up_sync(~0u, upto, step);
            if (lane >= step) upto += below;
        }
        sync(); /* those of another window are read */
        if (lane == 31) notes.counts[thread / 32] = upto;
        sync(); /* the warps' are written */
#pragma unroll
        for (int kind = 0; kind < KINDS; kind++) {
            const auto of = [&](int packed) { return packed >> kind * BITS & (1 << BITS) - 1; };
            before[kind] = of(upto - mine), all[kind] = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const int those = of(notes.counts[w]);
                if (w < thread / 32) before[kind] += those;
                all[kind] += those;
            }
        }
    }
};

/* This thread's rows of one kind, by its `flags`, to the list: number `at` and those behind it. */
template <class Sync>
__device__ void list_rows(unsigned flags, int at, int64_t first, Notes &notes, int thread, Sync sync) {
    const int64_t row = first + thread * ROWS_EACH;
    sync(); /* what was there is read */
#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++)
        if (flags >> i & 1) notes.list[at++] = (int)(row + i);
    sync(); /* the list is written */
}

} // namespace irregular_tile
#endif
