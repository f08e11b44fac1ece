/* SPDX-License-Identifier: MIT */
/* Infinities of x or W that are few: read at their places, instead of a product of signs. */
#ifndef ROWFOLD_CUDA_IRREGULAR_INFINITIES_CUH
#define ROWFOLD_CUDA_IRREGULAR_INFINITIES_CUH

#include "common/irregular_rows.cuh"

namespace irregular_tile {

/* What becomes of a logit whose infinities have this sum of signs: nothing, if there are none. */
enum Fate { NONE, UP_TO_INFINITY, DOWN_TO_INFINITY, NOT_A_NUMBER };
__device__ __forceinline__ unsigned fate_of(float sum, int infinities) {
    const float all = (float)infinities;
    return !infinities ? NONE : sum == all ? UP_TO_INFINITY : sum == -all ? DOWN_TO_INFINITY : NOT_A_NUMBER;
}
__device__ __forceinline__ float fated(unsigned fate) {
    return fate == UP_TO_INFINITY ? INFINITY : fate == DOWN_TO_INFINITY ? -INFINITY : NAN;
}

/* Whether a logit has terms that pull up, and whether it has some that pull down, for each row of a tile: of its
 * columns, 32 a word, first those that go up, then those that go down. Both: NaN. */
template <class S> struct Seen {
    static constexpr int WORDS = S::COLUMNS / 32 * 2;
    unsigned of[S::ROWS * WORDS];
    __device__ __forceinline__ void clear(int rows, int thread) {
        for (int i = thread; i < rows * WORDS; i += THREADS) of[i] = 0;
    }
    __device__ __forceinline__ void mark(int row, int column, bool up, bool down) {
        unsigned *const at = &of[row * WORDS + column / 32 * 2];
        if (up) atomicOr(at, 1u << column % 32);
        if (down) atomicOr(at + 1, 1u << column % 32);
    }
    __device__ __forceinline__ unsigned fate_at(int row, int column) const {
        const unsigned *const at = &of[row * WORDS + column / 32 * 2];
        return (at[0] >> column % 32 & 1) * UP_TO_INFINITY | (at[1] >> column % 32 & 1) * DOWN_TO_INFINITY;
    }
};

/* x as it is stored in column k, or the verdict there. */
__device__ __forceinline__ float x_at(const rfi_cuda_product &p, int64_t row, int64_t k) {
    const rfi_cuda_rows &from = k < p.in_features ? p.x_stored : p.x;
    return rfi_load_as<float>(from.data, from.dtype, row * from.ld + k);
}

/* What rows of x are at the places of W's infinities in a tile, and what W's verdicts say of them, to `shared`, if
 * these are few enough to be listed; else false. A warp looks through a row of W at a time. */
template <class S, class Sync> __device__ __noinline__ bool look_up_x(const rfi_cuda_product &p, unsigned char *shared,
    Notes &notes, int first, int rows, int64_t column0, int thread, Sync sync) {
    constexpr int PLACES = 1024, AT_ONCE = 8;
    struct Room {
        Seen<S> seen;
        int count;
        int2 at[PLACES]; /* the place, twice, and 1 for one below zero, and the column */
    };
    static_assert(sizeof(Room) <= S::LEAST_BYTES, "it fits");
    Room &room = *(Room *)shared;
    const int *const list = notes.list + first, lane = thread % 32;
    room.seen.clear(rows, thread);
    if (thread == 0) room.count = 0;
    sync(); /* that is there, and what lay in this memory is read */
#pragma unroll 1
    for (int c = thread / 32; c < S::COLUMNS; c += WARPS) {
        if (notes.w_scale[c] != INFINITY) continue;
        const int64_t column = column0 + c;
#pragma unroll 1
        for (int64_t k0 = lane * 8; k0 < p.depth; k0 += AT_ONCE * 256) {
            uint4 piece[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int64_t k = k0 + i * 256;
                piece[i] = make_uint4(0, 0, 0, 0);
                if (k < p.depth)
                    piece[i] = *(const uint4 *)((const uint16_t *)p.w.data +
                        (p.w.panel ? rfi_place(p.w.panel, p.w.ld, column, k) : column * p.w.ld + k));
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const Words words = words_of(piece[i]);
                if (!((words.w[0] | words.w[1] | words.w[2] | words.w[3]) & 0x7fff7fff)) continue;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const uint32_t value = words.w[j / 2] >> j % 2 * 16;
                    if (!(value & 0x7fff)) continue;
                    const int number = atomicAdd(&room.count, 1);
                    if (number < PLACES)
                        room.at[number] = make_int2((int)(k0 + i * 256 + j) << 1 | (int)(value >> 15 & 1), c);
                }
            }
        }
    }
    sync(); /* all places are listed */
    const int count = room.count;
    if (count > PLACES) return false;
#pragma unroll 4
    for (int i = thread; i < count * rows; i += THREADS) {
        const int row = i % rows;
        const int2 at = room.at[i / rows];
        const float v = x_at(p, list[row], at.x >> 1);
        const bool negative = (v < 0) != (at.x & 1);
        room.seen.mark(row, at.y, v == 0 || !negative, v == 0 || negative);
    }
    sync(); /* all have been seen */
    return true;
}

/* Logits of rows with few infinities, where W's rows have none, to `tile`: what the columns of W are at their places.
 * The places of all rows are brought in the order of their columns first, so that a block has what it waits for side by
 * side: one by one they lie all over W, further apart than the addresses that a multiprocessor can translate at a time.
 */
template <class S, class Sync> __device__ __noinline__ void look_up(const rfi_cuda_product &p, float *tile,
    Notes &notes, int first, int rows, int most, int64_t column0, int thread, Sync sync) {
    constexpr int COLUMNS = S::COLUMNS, TILE_LD = S::TILE_LD, GROUPS = COLUMNS / 32, WORDS = Seen<S>::WORDS,
                  BUCKETS = THREADS, AT_ONCE = 16 / GROUPS; /* places of a warp whose latencies overlap */
    struct Places {
        Seen<S> seen;
        int buckets[BUCKETS], warps[WARPS];
        int2 at[S::ROWS * RFI_FEW_INFINITIES]; /* as in infinities_of, and the row */
    };
    Places &places = *(Places *)(tile + S::ROWS * TILE_LD);
    static_assert(sizeof(Places) + sizeof(float) * S::ROWS * TILE_LD <= S::LEAST_BYTES, "it fits behind the tile");
    const int *const list = notes.list + first, lane = thread % 32, warp = thread / 32,
                     shift = max(0, 24 - __clz((int)min(p.in_features - 1, (int64_t)INT32_MAX))); /* BUCKETS of K */
    places.seen.clear(rows, thread);
    places.buckets[thread] = 0;
    sync(); /* that is there, and what lay in this memory is read */
    constexpr int MINE = S::ROWS * RFI_FEW_INFINITIES / THREADS + 1;
    int mine[MINE]; /* this thread's places, which are fetched at once; -1: not there */
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int e = i * THREADS + thread, row = min(e / most, rows - 1), number = e % most;
        const int *const from = infinities_of(p, list[row]);
        const int count = e < rows * most ? from[0] : 0, at = number < count ? from[1 + number] : 0;
        mine[i] = number < count ? at : -1;
    }
    const auto each_place = [&](auto use) {
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (mine[i] >= 0) use((i * THREADS + thread) / most, mine[i]);
    };
    each_place([&](int, int at) { atomicAdd(&places.buckets[at >> 1 >> shift], 1); });
    sync(); /* counted */
    int upto = places.buckets[thread];
    const int in_bucket = upto;
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += below;
    }
    if (lane == 31) places.warps[warp] = upto;
    sync(); /* the warps' numbers are written */
    int before = upto - in_bucket, all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += places.warps[w];
        all += places.warps[w];
    }
    places.buckets[thread] = before;
    sync(); /* each bucket says where it begins */
    each_place(
        [&](int row, int at) { places.at[atomicAdd(&places.buckets[at >> 1 >> shift], 1)] = make_int2(at, row); });
    sync(); /* the places are in order */
    const int panel = p.w.panel, mask = panel - 1, panel_shift = panel ? 31 - __clz(panel) : 0;
    const int64_t panel_step = panel ? p.w.ld / RFI_BLOCK_ROWS * rfi_block_values(panel) : 0,
                  start = panel ? rfi_place(panel, p.w.ld, column0 + lane, 0) : (column0 + lane) * p.w.ld;
    const int turn = panel ? (int)(start & mask) : 0; /* the same for each of the lane's columns */
    const uint16_t *const low = (const uint16_t *)p.w.low, *const least = (const uint16_t *)p.w.least;
    int64_t apart[GROUPS]; /* the lane's columns, from its first */
    bool there[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        static_assert(RFI_BLOCK_ROWS == 64, "two groups a block");
        apart[g] = panel ? g / 2 * rfi_block_values(panel) + g % 2 * 32 * panel : g * 32 * p.w.ld;
        there[g] = column0 + g * 32 + lane < p.out_features;
    }
    static_assert(AT_ONCE * GROUPS * 2 == 32 && WORDS == GROUPS * 2, "a lane a word");
    for (int e = warp * AT_ONCE; e < all; e += WARPS * AT_ONCE) {
        int at[AT_ONCE];
        int64_t from[AT_ONCE];
        uint32_t value[AT_ONCE][GROUPS], least_seen = 0x7fff;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) at[i] = places.at[min(e + i, all - 1)].x;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int k = at[i] >> 1;
            from[i] = panel ? start - turn + (k >> panel_shift) * panel_step + (k & mask ^ turn) : start + k;
            const uint16_t *const high = (const uint16_t *)p.w.data + from[i];
#pragma unroll
            for (int g = 0; g < GROUPS; g++) value[i][g] = there[g] ? high[apart[g]] : 1;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int g = 0; g < GROUPS; g++) least_seen = min(least_seen, value[i][g] & 0x7fff);
        const bool zeros = __any_sync(~0u, !least_seen); /* of a first term: another may have the value */
        unsigned word = 0;                               /* one of those of the places */
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                const unsigned down = __ballot_sync(~0u, (value[i][g] >> 15 ^ at[i]) & 1);
                unsigned both = 0; /* up and down: NaN */
                if (zeros) {
                    uint32_t rest = value[i][g] & 0x7fff;
                    if (!rest && low) rest = low[from[i] + apart[g]];
                    if (!rest && least) rest = least[from[i] + apart[g]];
                    both = __ballot_sync(~0u, !rest);
                }
                if (lane / 2 == i * GROUPS + g) word = (lane % 2 ? down : ~down) | both;
            }
        const int mine = e + lane / WORDS;
        if (mine < all) atomicOr(&places.seen.of[places.at[mine].y * WORDS + lane % WORDS], word);
    }
    sync(); /* all have been seen */
    for (int i = thread; i < rows * COLUMNS / 4; i += THREADS) {
        const int r = i / (COLUMNS / 4), c = i % (COLUMNS / 4) * 4;
        float4 four;
        float *const each = (float *)&four;
#pragma unroll
        for (int j = 0; j < 4; j++) each[j] = fated(places.seen.fate_at(r, c + j));
        *(float4 *)&tile[r * TILE_LD + c] = four;
    }
    sync(); /* the tile is written */
}

} // namespace irregular_tile
#endif
