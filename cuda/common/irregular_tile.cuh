/* SPDX-License-Identifier: MIT */
/* A tile of logits of rows that terms of 16 bits do not represent, on tensor cores: what each kernel that reads x in
 * terms does with the rows that it leaves out.
 *
 * A finite row is brought to two terms of TF32, which have the range of float32, on its way to shared memory, and so
 * are W's values, whatever terms they are kept in: three products. Of a row with infinities only these count, and only
 * the signs of W: one product of values of -1, 0 and 1. The sum is as large as the number of the row's infinities where
 * all of them pull to one side, and smaller where the logit is NaN. Where they are few, W is read at their places
 * alone. A row of W with infinities is the same with x and W changed over: x is read at their places, or, where these
 * are many, there is one more product for its tile, of the signs of x. The sum of a row depends on the row and W alone,
 * not on what else is in the tile. */
#ifndef ROWFOLD_CUDA_IRREGULAR_TILE_CUH
#define ROWFOLD_CUDA_IRREGULAR_TILE_CUH

#include "common/irregular_infinities.cuh"
#include "common/irregular_rows.cuh"
#include "common/irregular_sums.cuh"

namespace irregular_tile {

/* By shuffle, so that the compiler sees that it is the same for a warp: products of warpgroups are otherwise brought to
 * an end one by one. */
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(~0u, v, 0); }

__device__ __forceinline__ float logit_of(
    const rfi_cuda_product &p, const Notes &notes, int64_t row, int c, float sum) {
    return (float)((double)rfi_unbiased(sum) * (double)p.x.scale[row] * (double)notes.w_scale[c] * down_of(p));
}

/* Logits without bias of a tile: `rows` rows of one kind, those of notes.list from `first` on, to `shared`, TILE_LD
 * apart; that has `bytes`, LEAST_BYTES or more. Whether W has infinite rows there, and others. */
template <template <Pass> class Sums, class Sync> __device__ __forceinline__ void compute_tile(const rfi_cuda_fold &p,
    Kind kind, bool infinite, bool finite, unsigned char *shared, int bytes, Notes &notes, int first, int rows,
    int64_t column0, int thread, Sync sync) {
    const int *list = notes.list + first;
    float *tile = (float *)shared;
    constexpr int TILE_LD = Sums<VALUES>::Tile::TILE_LD;
    unsigned fates[Sums<W_INFINITIES>::COUNT / 16] = {}; /* by the infinities of W, two bits each */
    if (infinite) {
        typedef typename Sums<VALUES>::Tile S;
        Sums<W_INFINITIES> sums(thread, rows, true);
        if (uniform(look_up_x<S>(p.product, shared, notes, first, rows, column0, thread, sync))) {
            const Seen<S> &seen = *(const Seen<S> *)shared;
            sums.each([&](int r, int c, float, int i) {
                if (r < rows) fates[i / 16] |= seen.fate_at(r, c) << i % 16 * 2;
            });
        } else {
            multiply(sums, p, shared, bytes, notes, list, rows, column0, thread, sync);
            sums.each([&](int, int c, float sum, int i) {
                fates[i / 16] |= fate_of(sum, notes.infinities[c]) << i % 16 * 2;
            });
        }
        sync(); /* what this is from is read */
    }
    const auto fate_at = [&](int i) { return fates[i / 16] >> i % 16 * 2 & 3; };
    if (kind == FINITE) {
        Sums<VALUES> sums(thread, rows, true);
        if (finite) multiply(sums, p, shared, bytes, notes, list, rows, column0, thread, sync);
        sums.each([&](int r, int c, float sum, int i) {
            const unsigned fate = fate_at(i);
            if (r < rows) tile[r * TILE_LD + c] = fate ? fated(fate) : logit_of(p.product, notes, list[r], c, sum);
        });
    } else {
        Sums<X_INFINITIES> sums(thread, rows, true);
        multiply(sums, p, shared, bytes, notes, list, rows, column0, thread, sync);
        sums.each([&](int r, int c, float sum, int i) {
            if (r < rows) tile[r * TILE_LD + c] = fated(fate_at(i) | fate_of(sum, notes.infinities[r]));
        });
    }
    sync(); /* the tile is written */
}

/* What the rows of W of a tile are like, to the notes. */
template <class Sync> __device__ __forceinline__ void note_columns(
    const rfi_cuda_product &p, Notes &notes, int64_t column0, int columns, int thread, Sync sync) {
    const int64_t column = column0 + thread;
    const bool there = thread < columns && column < p.out_features;
    const float scale = there && p.w.scale ? p.w.scale[column] : 1;
    if (thread == 0) notes.infinite = notes.finite = 0;
    sync(); /* that is there, and the notes of another tile are read */
    if (thread < columns) notes.w_scale[thread] = scale;
    if (there) *(scale == INFINITY ? &notes.infinite : &notes.finite) = 1;
    sync(); /* all have looked */
}

/* Rows of all kinds as if they had many infinities: numbers of them, or sets of bits that have none in common. */
template <class T> __device__ __forceinline__ void merge(T (&kinds)[KINDS]) {
    kinds[MANY] += kinds[FINITE] + kinds[FEW];
    kinds[FINITE] = kinds[FEW] = 0;
}

/* Tiles of all flagged rows, shared out among `blocks`, of which this is number `block`: to y or to partial states.
 * Rows that are in a tile together are a group. finish(number, groups, rows, count, tiles, first) is called by all
 * threads once a block's tiles of the rows of notes.list are done: that are `count` in groups of `rows`, number
 * `number` of all groups and those behind it, of so many tiles each. Tile i of them is of group i % groups, and this
 * block's are number `first` and each `blocks` further on: where the tiles of one list end, those of the next begin. */
template <template <Pass> class Sums, class Sync, class Finish> __device__ void compute(const rfi_cuda_fold &p,
    unsigned char *shared, int bytes, Notes &notes, int thread, unsigned block, unsigned blocks, Sync sync,
    Finish finish) {
    typedef typename Sums<VALUES>::Tile S;
    constexpr int COLUMNS = S::COLUMNS;
    const int64_t columns = (p.product.out_features + COLUMNS - 1) / COLUMNS;
    const int places = most_places(p.product, Sums<VALUES>::PLAIN);
    int64_t all_groups = 0;
    unsigned turn = 0; /* the block whose the next tile is */
    for (int64_t window = 0; window < p.product.batch; window += WINDOW) {
        Flags flags(p.product, window, Sums<VALUES>::PLAIN, thread);
        Counts counts(flags, notes, thread, sync);
        if (Sums<VALUES>::PLAIN && counts.all[FINITE] + counts.all[MANY]) {
            /* W is read for one of them: for all of them at once, whatever they are. */
            merge(flags.of);
            merge(counts.all);
            merge(counts.before);
        }
#pragma unroll 1
        for (int kind = FINITE; kind < KINDS; kind++) {
            const auto of = [&](const auto(&kinds)[KINDS]) {
                return kind == FINITE ? kinds[FINITE] : kind == FEW ? kinds[FEW] : kinds[MANY];
            };
            const int count = uniform(of(counts.all));
            if (!count) continue;
            list_rows(of(flags.of), of(counts.before), window, notes, thread, sync);
            const int most = Sums<VALUES>::PLAIN && kind != FEW ? PLAIN_ROWS : S::ROWS;
            const int64_t groups = (count + most - 1) / most, tiles = groups * columns;
            const unsigned mine = (block + blocks - turn) % blocks;
            for (int64_t i = mine; i < tiles; i += blocks) {
                const int first = (int)(i % groups) * most, rows = min(most, count - first);
                const int64_t column0 = i / groups * COLUMNS;
                note_columns(p.product, notes, column0, COLUMNS, thread, sync);
                const bool infinite = uniform(notes.infinite), finite = uniform(notes.finite);
                const auto fold = [&](int first, int rows) {
                    rfi_fold_tile(p, (const float *)shared, S::TILE_LD, 0, rows, column0, COLUMNS, notes.list + first,
                        thread, WARPS, rfi_beside_others());
                    sync(); /* the tile is read, its states are written */
                };
                if (kind == FEW && !infinite)
                    look_up<S>(p.product, (float *)shared, notes, first, rows, places, column0, thread, sync);
                else if constexpr (Sums<VALUES>::PLAIN) {
                    for (int part = 0; part < rows; part += PLAIN_ROWS) {
                        const int there = min(rows - part, PLAIN_ROWS);
                        Sums<VALUES>::multiply(
                            p, (float *)shared, bytes, notes, infinite, first + part, there, column0, thread, sync);
                        fold(first + part, there);
                    }
                    continue;
                } else
                    compute_tile<Sums>(
                        p, (Kind)kind, infinite, finite, shared, bytes, notes, first, rows, column0, thread, sync);
                fold(first, rows);
            }
            finish(all_groups, groups, most, count, columns, (int64_t)mine);
            all_groups += groups;
            turn = (unsigned)((turn + tiles) % blocks);
        }
    }
}

} // namespace irregular_tile
#endif
