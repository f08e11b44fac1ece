/* SPDX-License-Identifier: MIT */
/* What goes beside the fold of a thread's columns: the logit that is asked for, the columns before a bound, squares. */
#ifndef ROWFOLD_CUDA_SM90_SEARCHES_CUH
#define ROWFOLD_CUDA_SM90_SEARCHES_CUH

#include "sm90/states.cuh"

namespace hopper {

/* By shuffle, so that the compiler sees that it is the same for a warp: a vote alone costs the loop over products, see
 * hopper.md 80. */
__device__ __forceinline__ bool any_of_warp(bool v) { return __shfl_sync(~0u, (int)__any_sync(~0u, v), 0); }

/* What the 16 rows of a warp ask for, and their bounds, begin to come near: a lane for a row of an array, or of two. So
 * they are there when a tile is folded, which waits for each. `row` is this thread's first one. */
template <bool SEARCHES> __device__ __forceinline__ void prefetch_rows(const rfi_cuda_fold &f, int64_t row) {
    const int lane = threadIdx.x % 32;
    const int64_t at = min(row - lane / 4 + lane % 16, f.product.batch - 1);
    if constexpr (SEARCHES)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const rfi_cuda_before &b = f.visitor.before[i];
            static_assert(sizeof *b.columns == sizeof(float), "of the same size");
            if (b.columns) prefetch_l1(lane < 16 ? (const float *)b.values + at : (const float *)b.columns + at);
        }
    if (f.visitor.columns && !f.visitor.knows_picked) prefetch_l1(f.visitor.columns + at);
}

/* The logit that a row asks for, if it is one of this thread's, which are as in fold_columns: mostly it is not. */
template <int N> __device__ __forceinline__ void pick_column(
    const rfi_cuda_fold &f, const float (&v)[N], int64_t row, int64_t column, int r) {
    const uint64_t offset = (uint64_t)f.visitor.columns[min(row, f.product.batch - 1)] - (uint64_t)column;
    if (offset >= 2 * N) return;
    if (row >= f.product.batch || column + (int64_t)offset >= f.product.out_features || is_irregular(f.product, row))
        return;
#pragma unroll
    for (int j = 2 * r; j < N; j += j % 2 ? 3 : 1)
        if (offset == j / 4 * 8 + j % 2) ((float *)f.visitor.picked)[row] = v[j];
}

/* Of columns that all lie before the bound z's own, or all behind it, those come before it that are not below this:
 * NaN, too, and of equal ones those that lie before. Not 0, for -0 - 0 has a sign, -0 - -0 has none. NaN: no others do.
 */
__device__ __forceinline__ float least_before(float z, bool lie_before) {
    if (lie_before) return z == 0 ? -0.0f : z;
    if (z == INFINITY) return NAN;
    const int bits = __float_as_int(z);
    return __int_as_float(z > 0 ? bits + 1 : z < 0 ? bits - 1 : z == 0 ? 1 : bits);
}

/* A mask of the first `count` bits. */
__device__ __forceinline__ uint64_t first_bits(int count) {
    return count < 64 ? (UINT64_C(1) << count) - 1 : ~UINT64_C(0);
}

/* To above[r] the columns of a thread in row r that are not below t[r], a bit each; NaN is not. By the signs of
 * differences, shifted into words side by side: two instructions a column, none of which waits for a predicate. */
template <int N>
__device__ __forceinline__ void mark_not_below(const float (&v)[N], const float (&t)[2], uint64_t (&above)[2]) {
    constexpr int WORDS = (N / 2 + 31) / 32, BITS = N / 2 < 32 ? N / 2 : 32;
    static_assert(N / 2 % BITS == 0, "whole words");
    uint32_t below[2][WORDS] = {};
#pragma unroll
    for (int i = BITS - 1; i >= 0; i--)
#pragma unroll
        for (int w = 0; w < WORDS; w++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int j = w * BITS + i;
                below[r][w] = __funnelshift_l(__float_as_uint(v[j / 2 * 4 + 2 * r + j % 2] - t[r]), below[r][w], 1);
            }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        above[r] = 0;
#pragma unroll
        for (int w = 0; w < WORDS; w++) above[r] |= (uint64_t)(~below[r][w] & (uint32_t)first_bits(BITS)) << w * BITS;
    }
}

/* word |= bit if x is NaN. By hand: the compiler makes a tree of selects of all columns, and spills the tree. */
__device__ __forceinline__ void mark_nan(uint32_t &word, float x, uint32_t bit) {
    asm("{\n.reg .pred p;\nsetp.nan.f32 p, %1, %1;\n@p or.b32 %0, %0, %2;\n}" : "+r"(word) : "f"(x), "r"(bit));
}

/* How many of a thread's columns of a row, which are as in fold_columns, lie before the place `offset` from the first,
 * as a mask of so many bits. */
template <int N> __device__ __forceinline__ uint64_t places_before(int64_t offset) {
    const int at = (int)min(max(offset, (int64_t)0), (int64_t)2 * N);
    return first_bits(at / 8 * 2 + min(at % 8, 2));
}

/* All columns of a thread as they lie, those behind the last included. */
template <int N> __device__ __forceinline__ void store_all(
    const rfi_cuda_product &f, const rfi_cuda_before &b, const float (&v)[N], int64_t row, int64_t column) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= f.batch || is_irregular(f, row + 8 * r)) continue;
        float *const to = (float *)b.found + (row + 8 * r) * b.room + column;
#pragma unroll
        for (int g = 0; g < N / 4; g++) *(float2 *)(to + g * 8) = {v[4 * g + 2 * r], v[4 * g + 2 * r + 1]};
    }
}

/* Columns that a thread finds of a row, up to which it lists one at a time, whichever it is: mostly it has none or one.
 * Where some thread of a warp finds more all columns are gone through. */
constexpr int FEW_FOUND = 3;

/* Of this thread's columns, which are as in fold_columns, those before a bound are counted, or listed. `state` is of
 * these columns, at least: many tiles have nothing so large. All lanes of a warp. It is two instructions a column:
 * where a bound's own column is among them, a second round tells those before it from those behind it. */
template <bool RAGGED, int N> __device__ __forceinline__ void find_before(const rfi_cuda_product &f,
    const rfi_cuda_before &b, const float (&v)[N], int64_t row, int64_t column, int width,
    const State<rfi_answers::TOTALS> (&state)[2]) {
    if (!b.columns) {
        store_all(f, b, v, row, column);
        return;
    }
    const int lane = threadIdx.x % 4; /* of those that share the rows */
    float z[2];
    int32_t bound[2]; /* its column */
    bool looks[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t at = min(row + 8 * r, f.batch - 1);
        z[r] = ((const float *)b.values)[at], bound[r] = b.columns[at];
    }
    /* No more than this for most tiles: instructions wait for each other here. */
#pragma unroll
    for (int r = 0; r < 2; r++) looks[r] = z[r] == z[r] ? !(state[r].m < z[r]) || state[r].t[2] < 0 : bound[r] > column;
    if (!any_of_warp(looks[0] || looks[1])) return;
    uint64_t ahead[2]; /* of the bound's column */
    bool among = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        looks[r] = looks[r] && row + 8 * r < f.batch && !is_irregular(f, row + 8 * r);
        ahead[r] = places_before<N>(bound[r] - column);
        among |= ahead[r] && ahead[r] != places_before<N>(2 * N);
    }
    among = any_of_warp(among);
    uint64_t found[2] = {};
#pragma unroll 1
    for (int round = among; round >= 0; round--) {
        const float t[2] = {least_before(z[0], !round && ahead[0]), least_before(z[1], !round && ahead[1])};
        uint64_t above[2];
        mark_not_below(v, t, above);
        if (any_of_warp(t[0] != t[0] || t[1] != t[1])) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint64_t nan = 0;
#pragma unroll
                for (int w = 0; w < (N / 2 + 31) / 32; w++) {
                    uint32_t word = 0;
#pragma unroll
                    for (int i = 32 * w; i < min(N / 2, 32 * w + 32); i++)
                        mark_nan(word, v[i / 2 * 4 + 2 * r + i % 2], 1u << i % 32);
                    nan |= (uint64_t)word << 32 * w;
                }
                if (t[r] != t[r]) above[r] = nan;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (!among) found[r] = above[r];
            else if (!round) found[r] |= above[r] & ahead[r];
            else if (z[r] == z[r]) found[r] = above[r] & ~ahead[r];
        }
    }
    unsigned mine = 0; /* of both rows, of which this thread has 64 columns each at most */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (!looks[r]) found[r] = 0;
        if (RAGGED) found[r] &= places_before<N>(width);
        mine += (unsigned)__popcll(found[r]) << 16 * r;
    }
    unsigned before = mine;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const unsigned other = __shfl_up_sync(~0u, before, step, 4);
        if (lane >= step) before += other;
    }
    const unsigned all = __shfl_sync(~0u, before, 3, 4), count = lane < 2 ? all >> 16 * lane & 0xffff : 0;
    unsigned to = 0;
    if (count) to = atomicAdd(b.counts + row + 8 * lane, count);
    if (!b.found || !any_of_warp(all)) return;
    before -= mine;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        unsigned at = __shfl_sync(~0u, to, r, 4) + (before >> 16 * r & 0xffff);
        if (at + (mine >> 16 * r & 0xffff) > b.room) found[r] = 0;
        float *values = (float *)b.found + (row + 8 * r) * b.room;
        int32_t *places = b.found_columns + (row + 8 * r) * b.room;
        if (!any_of_warp(__popcll(found[r]) > FEW_FOUND)) {
            while (any_of_warp(found[r] != 0)) { /* one of each thread: registers have no run-time index */
                const uint64_t one = found[r] & (~found[r] + 1);
                found[r] ^= one;
                float x = 0;
#pragma unroll
                for (int j = 0; j < N / 2; j++) x = one >> j & 1 ? v[j / 2 * 4 + 2 * r + j % 2] : x;
                if (one) {
                    const int j = __ffsll((long long)one) - 1;
                    values[at] = x;
                    places[at++] = (int32_t)column + j / 2 * 8 + j % 2;
                }
            }
            continue;
        }
#pragma unroll
        for (int i = 0; i < N / 2; i += 4) {
            if (!any_of_warp(found[r] >> i & 15)) continue;
#pragma unroll
            for (int j = i; j < i + 4; j++)
                if (found[r] >> j & 1) {
                    values[at] = v[j / 2 * 4 + 2 * r + j % 2];
                    places[at++] = (int32_t)column + j / 2 * 8 + j % 2;
                }
        }
    }
}

/* The squares of the columns of four lanes. A unit is theirs alone, whatever they add to it one after the other, by
 * what the first ones are near, or brought down by what is largest so far. */
template <bool RAGGED, int N> __device__ __forceinline__ void add_squares(
    const rfi_cuda_fold &f, const float (&v)[N], int64_t row, int64_t column, int width) {
    const rfi_cuda_squares &s = f.visitor.squares;
    const bool magnitudes = s.magnitudes;
    const int64_t base = column - threadIdx.x % 4 * 2, start = base / f.visitor.fold_columns * f.visitor.fold_columns;
    const int count = (int)min(max(f.product.out_features - base, (int64_t)0), (int64_t)2 * N);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t at = min(row + 8 * r, f.product.batch - 1);
        rfi_square_unit<float> *const to = (rfi_square_unit<float> *)s.sums + at * s.units + start / RFI_FOLD_COLUMNS;
        float largest = magnitudes ? 0 : -INFINITY, below = 0;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float x = v[i / 2 * 4 + 2 * r + i % 2];
            if (!RAGGED || i / 2 * 8 + i % 2 < width) largest = fmaxf(largest, magnitudes ? fabsf(x) : x);
        }
#pragma unroll
        for (int step = 1; step < 4; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            if (!RAGGED || i / 2 * 8 + i % 2 < width) below += rfi_below(v[i / 2 * 4 + 2 * r + i % 2], largest);
#pragma unroll
        for (int step = 1; step < 4; step *= 2) below += __shfl_xor_sync(~0u, below, step);
        float centre = magnitudes ? largest : rfi_centre(largest, below, (float)count);
        rfi_square_unit<float> before = {};
        if (base != start && threadIdx.x % 4 == 0) before = *to; /* what this lane has written */
        before.centre = __shfl_sync(~0u, before.centre, 0, 4);
        if (base != start) {
            centre = magnitudes ? fmaxf(centre, before.centre) : centre == centre ? before.centre : centre;
        }
        const float factor = magnitudes ? rfi_down_f32(centre) : 1, shift = magnitudes ? 0 : centre;
        float sum = 0, squares = 0;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float part = (v[i / 2 * 4 + 2 * r + i % 2] - shift) * factor;
            if (RAGGED && i / 2 * 8 + i % 2 >= width) continue;
            sum += part;
            squares = fmaf(part, part, squares);
        }
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            sum += __shfl_xor_sync(~0u, sum, step);
            squares += __shfl_xor_sync(~0u, squares, step);
        }
        if (threadIdx.x % 4 || row + 8 * r >= f.product.batch || is_irregular(f.product, at) || !count) continue;
        const float less = magnitudes && before.count > 0 ? factor / rfi_down_f32(before.centre) : 1;
        *to = {before.count + (float)count, centre, before.sum + sum, fmaf(before.squares * less, less, squares)};
    }
}

} // namespace hopper
#endif
