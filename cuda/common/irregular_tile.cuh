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

#include "common/pieces.cuh"
#include "common/ptx.cuh"

namespace irregular_tile {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int MOST = 128;                      /* rows and columns of a tile, at most */
constexpr int PLAIN_ROWS = RFI_IRREGULAR_ROWS; /* at a time, at most, by plain multiply-adds */
constexpr int DEPTH = 32, PIECES = DEPTH / 8;  /* of a stage, and of a row in it */
constexpr int WINDOW = RFI_IRREGULAR_WINDOW;   /* rows among which flagged ones are looked for at a time */
/* x is scaled to a largest magnitude of 2^90, that of the terms of binary16 and so much more; beside W in three terms
 * of bfloat16, which has float32's range itself, to that of its own terms. */
__device__ __forceinline__ int up_of(const rfi_cuda_product &p) { return p.w.least ? 0 : 76; }
__device__ __forceinline__ double down_of(const rfi_cuda_product &p) { return p.w.least ? 1 : 0x1p-76; }

/* What is multiplied: values; the signs of x's infinities and those of all of W; and the reverse. */
enum Pass { VALUES, X_INFINITIES, W_INFINITIES };

/* What a block knows of a tile besides its values, in shared memory, and what rows there are. */
struct Notes {
    float w_scale[MOST];
    int infinities[MOST];                              /* of a row of x, or of W */
    int list[WINDOW], counts[WARPS], infinite, finite; /* of W's rows there are both kinds, or one */
    int last[WINDOW / PLAIN_ROWS];                     /* of groups of rows: whether this block drew the last ticket */
};

/* A tile, and the terms of a stage of it: first those of x, then those of W. */
template <Pass PASS_, int ROWS_, int COLUMNS_> struct Shape {
    static constexpr Pass PASS = PASS_;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, TILE_LD = COLUMNS + 4;
    static constexpr bool TF32 = PASS == VALUES; /* signs are bfloat16 */
    static constexpr int TERMS = TF32 ? 2 : 1;
    static constexpr int ROW = DEPTH * (TF32 ? 4 : 2); /* bytes */
    static constexpr int X_TERM = ROWS * ROW, W_TERM = COLUMNS * ROW, FIRST_W = TERMS * X_TERM,
                         STAGE = TERMS * (X_TERM + W_TERM);
    static constexpr int X_STEPS = ROWS * PIECES / THREADS,
                         W_STEPS = COLUMNS * PIECES / THREADS; /* pieces of a thread */
    /* Of a stage as it comes from memory. */
    static constexpr __host__ __device__ int raw(int w_terms) {
        return THREADS * 16 * (X_STEPS * 2 + W_STEPS * w_terms);
    }
    /* Bytes that are needed: a stage, and one on its way; for what reads a stage while the next one is brought, two. */
    static constexpr int LEAST_BYTES = STAGE + raw(3), TWO_STAGES_BYTES = 2 * STAGE + raw(3);
    static_assert(LEAST_BYTES >= (int)sizeof(float) * ROWS * TILE_LD || PASS != VALUES, "the tile takes its place");
    static_assert(
        ROWS <= MOST && COLUMNS <= MOST && X_STEPS * THREADS == ROWS * PIECES && W_STEPS * THREADS == COLUMNS * PIECES,
        "whole steps");
};

/* The rows of x that are computed in one way. A scale says whether they are finite; where the infinities of others are,
 * in place of their terms: see rfi_cuda_split. */
enum Kind { FINITE, FEW, MANY, KINDS };

__device__ __forceinline__ const int *infinities_of(const rfi_cuda_product &p, int64_t row) {
    return (const int *)((const uint16_t *)p.x.data + row * p.x.ld);
}

constexpr int ROWS_EACH = WINDOW / THREADS; /* that a thread looks at */

/* Which of a thread's rows of the WINDOW from row `first` on are of each kind: a bit a row. What is read for one row
 * waits for nothing of another's. */
struct Flags {
    unsigned of[KINDS];
    __device__ __forceinline__ Flags(const rfi_cuda_product &p, int64_t first, int thread) : of() {
        const int64_t row = first + thread * ROWS_EACH;
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
            const bool infinite = scale[i] == INFINITY, few = number[i] <= RFI_FEW_INFINITIES;
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

/* Where a piece of a row of a stage lies: permuted by the row's number, so that the eight rows of an 8 x 8 matrix lie
 * in different banks. */
template <int ROW> __device__ __forceinline__ int place_of(int row, int piece) {
    static_assert(ROW == 64 || ROW == 128, "as wgmma wants it");
    return row * ROW + ((piece ^ (ROW == 64 ? row >> 1 & 3 : row & 7)) << 4);
}

struct Words {
    uint32_t w[4];
};
__device__ __forceinline__ Words words_of(const uint4 &v) { return {{v.x, v.y, v.z, v.w}}; }
__device__ __forceinline__ uint4 pack(const Words &v) { return make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]); }

/* By address: of a pointer that it gets the compiler does not know that it is to shared memory. */
__device__ __forceinline__ uint4 load_shared(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "r"(from)
        : "memory");
    return v;
}
__device__ __forceinline__ void store_shared(uint32_t to, const uint4 &v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
}

__device__ __forceinline__ void store_shared_32(uint32_t to, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}
__device__ __forceinline__ void store_shared_16(uint32_t to, uint16_t v) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(v) : "memory");
}

/* Eight finite values to the terms of shape S, of TF32, to `to` and TERM bytes further on. Rounded as cvt.rna does, but
 * for what that asks about infinities, and tensor cores do not read the last bits of a term. */
template <class S, int TERM> __device__ __forceinline__ void put_terms(uint32_t to, float (&v)[8]) {
#pragma unroll
    for (int t = 0; t < S::TERMS; t++) {
        uint32_t term[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            term[i] = __float_as_uint(v[i]) + 0x1000;
            if (t + 1 == S::TERMS) continue;
            term[i] &= 0xffffe000;
            v[i] -= __uint_as_float(term[i]);
        }
        store_shared(to + t * TERM, make_uint4(term[0], term[1], term[2], term[3]));
        store_shared((to ^ 16) + t * TERM, make_uint4(term[4], term[5], term[6], term[7]));
    }
}

/* Shared memory: what is multiplied, one stage or two, then what each thread has on its way there, as it comes from
 * memory, of several: nobody else reads that. */
struct Room {
    int buffer, buffers, raw, stages; /* bytes of a stage and their number; of a raw one, and theirs */
};
constexpr int MOST_STAGES = 4;
template <class Sums> __device__ __forceinline__ Room room_of(int bytes, int w_terms) {
    typedef typename Sums::Tile S;
    Room room;
    room.buffer = S::STAGE;
    room.raw = S::raw(w_terms);
    room.buffers = Sums::ASYNCHRONOUS || bytes >= 2 * (room.buffer + room.raw) ? 2 : 1;
    room.stages = min((bytes - room.buffers * room.buffer) / room.raw, MOST_STAGES);
    return room;
}

/* Until the oldest of a thread's `stages` raw stages is there. */
__device__ __forceinline__ void wait_for_oldest(int stages) {
    switch (stages) {
    case 4: rfi_copy_wait<3>(); break;
    case 3: rfi_copy_wait<2>(); break;
    case 2: rfi_copy_wait<1>(); break;
    default: rfi_copy_wait<0>(); break;
    }
}

/* A thread's pieces of x of a stage. Rows that are not there are left as they are: nobody reads what comes of them. */
template <class S> struct XPieces {
    static constexpr Pass PASS = S::PASS;
    static constexpr int STEPS = S::X_STEPS;
    pieces::operand from;
    int64_t row[STEPS];       /* -1: not there */
    float a[STEPS], b[STEPS]; /* what it is scaled with: a power of two, in two factors */
    int infinities[STEPS];    /* so far, of this thread's pieces of the row */
    int place;                /* of the first in a stage */

    __device__ __forceinline__ XPieces(const rfi_cuda_fold &p, const int *list, int rows, int thread)
        : from(pieces::operand_of<float>(p.product.x_stored)),
          place(place_of<S::ROW>(thread / PIECES, thread % PIECES * (S::TF32 ? 2 : 1))) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int r = (s * THREADS + thread) / PIECES;
            row[s] = r < rows ? list[r] : -1;
            a[s] = b[s] = 1;
            infinities[s] = 0;
            if (PASS != VALUES || row[s] < 0) continue;
            const int exponent = up_of(p.product) - ilogbf(p.product.x.scale[row[s]]), second = max(exponent - 127, 0);
            a[s] = __int_as_float((exponent - second + 127) << 23);
            b[s] = __int_as_float((second + 127) << 23);
        }
    }
    /* To the thread's place in a raw stage. */
    __device__ __forceinline__ void load(uint32_t raw, int64_t k, int64_t end) const {
        const bool narrow = from.whole != pieces::VALUES;
#pragma unroll
        for (int s = 0; s < STEPS; s++, raw += 2 * THREADS * 16) {
            if (row[s] < 0) continue;
            if (from.in_pieces && k + 8 <= end) {
                const unsigned char *at =
                    (const unsigned char *)from.rows.data + (row[s] * from.rows.ld + k) * (narrow ? 2 : 4);
                rfi_copy_async_16(raw, at, 16);
                if (!narrow) rfi_copy_async_16(raw + THREADS * 16, at + 16, 16);
                continue;
            }
#pragma unroll 1
            for (int i = 0; i < 8; i++) {
                const int64_t at = row[s] * from.rows.ld + k + i;
                if (narrow) store_shared_16(raw + 2 * i, k + i < end ? ((const uint16_t *)from.rows.data)[at] : 0);
                else
                    store_shared_32(raw + i / 4 * THREADS * 16 + i % 4 * 4,
                        k + i < end ? rfi_load_as<float>(from.rows.data, from.rows.dtype, at) : 0);
            }
        }
    }
    /* Of two values in 16 bits the signs of those that are infinite: -1, 0 or 1. Those of float32 by their upper
     * halves, for there is no NaN. */
    static __device__ __forceinline__ uint32_t infinite_signs_of(uint32_t two, uint32_t infinity, int &infinities) {
        const uint32_t there = __vcmpeq2(two & infinity, infinity);
        infinities += __popc(there) / 16;
        return (two & 0x80008000 | 0x3f803f80) & there;
    }
    /* What has come, of all steps before any is put: none of them then waits for another. */
    struct Fetched {
        pieces::piece<1> of[STEPS];
    };
    __device__ __forceinline__ void fetch(Fetched &fetched, uint32_t raw) const {
#pragma unroll
        for (int s = 0; s < STEPS; s++, raw += 2 * THREADS * 16)
            fetched.of[s] = {{load_shared(raw), load_shared(raw + THREADS * 16)}};
    }
    __device__ __forceinline__ void put(uint32_t stage, const Fetched &fetched) {
        const bool narrow = from.whole != pieces::VALUES;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (row[s] < 0) continue;
            /* The steps' rows are a multiple of eight apart: they are permuted alike. */
            const uint32_t to = stage + place + s * (THREADS / PIECES) * S::ROW;
            const pieces::piece<1> &piece = fetched.of[s];
            if (PASS != VALUES) {
                const uint32_t infinity = from.rows.dtype == RF_FLOAT16 ? 0x7c007c00 : 0x7f807f80;
                const Words low = words_of(piece.raw[0]), high = words_of(piece.raw[1]);
                Words signs;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const Words &half = i < 2 ? low : high;
                    const uint32_t first = half.w[i % 2 * 2], second = half.w[i % 2 * 2 + 1],
                                   two = narrow ? low.w[i] : __byte_perm(first, second, 0x7632);
                    if (PASS == X_INFINITIES) signs.w[i] = infinite_signs_of(two, infinity, infinities[s]);
                    else {
                        const uint32_t there = narrow ? __vcmpne2(two & 0x7fff7fff, 0)
                                                      : (first << 1 ? 0xffff : 0) | (second << 1 ? 0xffff0000 : 0);
                        signs.w[i] = (two & 0x80008000 | 0x3f803f80) & there;
                    }
                }
                store_shared(to, pack(signs));
            } else {
                float v[8];
                pieces::values_of<float>(v, piece, from.whole, from.rows.dtype == RF_BFLOAT16);
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = v[i] * a[s] * b[s];
                put_terms<S, S::X_TERM>(to, v);
            }
        }
    }
    /* Once all of K has been put: what this thread knows of the number of infinities of each row. */
    __device__ __forceinline__ void count(int *counts, int thread) const {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (infinities[s]) atomicAdd(&counts[(s * THREADS + thread) / PIECES], infinities[s]);
    }
};

/* And those of W. */
template <class S> struct WPieces {
    static constexpr Pass PASS = S::PASS;
    static constexpr int STEPS = S::W_STEPS, TERMS = 3; /* at most, as W is kept */
    int terms;
    int64_t end;         /* pieces from here on are zeros */
    int64_t base[STEPS]; /* of the row, in values */
    bool there[STEPS], infinite[STEPS];
    int infinities[STEPS]; /* so far, of this thread's pieces of the row */
    int64_t panel_step;    /* from a panel to the next */
    int shift, mask, turn[STEPS];

    __device__ __forceinline__ WPieces(const rfi_cuda_fold &p, int64_t column0, int thread) {
        const int panel = p.product.w.panel;
        terms = rfi_terms_of(p.product.w);
        end = p.product.in_features;
        mask = panel - 1;
        shift = panel ? 31 - __clz(panel) : 0;
        panel_step = panel ? p.product.w.ld / RFI_BLOCK_ROWS * rfi_block_values(panel) : 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int64_t row = column0 + (s * THREADS + thread) / PIECES;
            there[s] = row < p.product.out_features;
            infinite[s] = there[s] && p.product.w.scale && p.product.w.scale[row] == INFINITY;
            base[s] = panel ? rfi_place(panel, p.product.w.ld, row, 0) : row * p.product.w.ld;
            turn[s] = panel ? (int)(base[s] & mask) : 0; /* where the row's first piece lies */
            base[s] -= turn[s];
            infinities[s] = 0;
        }
    }
    /* Whole pieces: terms are padded with zeros, and stored values begin, with each row, at multiples of 16 bytes. */
    __device__ __forceinline__ void load(const rfi_cuda_product &p, uint32_t raw, int64_t k) const {
        const int64_t offset = mask < 0 ? k : (k >> shift) * panel_step;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const bool reads = there[s] && k < end;
            const int64_t at = reads ? base[s] + offset + (mask < 0 ? 0 : (int)k & mask ^ turn[s]) : 0;
#pragma unroll
            for (int t = 0; t < TERMS; t++) {
                if (t >= terms) break;
                const void *term = t == 0 ? p.w.data : t == 1 ? p.w.low : p.w.least;
                rfi_copy_async_16(
                    raw + (2 * S::X_STEPS + s * terms + t) * THREADS * 16, (const uint16_t *)term + at, reads ? 16 : 0);
            }
        }
    }
    struct Fetched {
        uint4 term[STEPS][TERMS];
    };
    __device__ __forceinline__ void fetch(Fetched &fetched, uint32_t raw) const {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int t = 0; t < TERMS; t++)
                fetched.term[s][t] = t < terms ? load_shared(raw + (2 * S::X_STEPS + s * terms + t) * THREADS * 16)
                                               : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void put(const rfi_cuda_product &p, uint32_t stage, const Fetched &fetched, int thread) {
        const bool bfloat16 = p.w.dtype == RF_BFLOAT16;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int column = (s * THREADS + thread) / PIECES;
            const uint32_t to = stage + S::FIRST_W + place_of<S::ROW>(column, thread % PIECES * (S::TF32 ? 2 : 1));
            const uint4(&term)[TERMS] = fetched.term[s];
            if (PASS != VALUES) {
                /* A value that is not zero has a term that is not, or, in a row with infinities, a second one of -0;
                 * the first has its sign in any case. In such a row the infinities alone have a first term that is not
                 * zero. */
                const Words high = words_of(term[0]), low = words_of(term[1]), least = words_of(term[2]);
                Words signs;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t any = high.w[i] & 0x7fff7fff;
                    uint32_t there;
                    if (PASS == X_INFINITIES) there = __vcmpne2(any | low.w[i] | least.w[i], 0);
                    else {
                        there = infinite[s] ? __vcmpne2(any, 0) : 0;
                        infinities[s] += __popc(there) / 16;
                    }
                    signs.w[i] = (high.w[i] & 0x80008000 | 0x3f803f80) & there;
                }
                store_shared(to, pack(signs));
            } else if (!bfloat16) {
                /* A value of binary16 is one of TF32. */
#pragma unroll
                for (int t = 0; t < S::TERMS; t++) {
                    float v[8];
                    pieces::widen(v, term[t], false);
                    store_shared(to + t * S::W_TERM, pieces::pack(v, 0));
                    store_shared((to ^ 16) + t * S::W_TERM, pieces::pack(v, 1));
                }
            } else {
                float v[8], more[8];
                pieces::widen(v, term[0], bfloat16);
#pragma unroll
                for (int t = 1; t < TERMS; t++) {
                    if (t >= terms) break;
                    pieces::widen(more, term[t], bfloat16);
#pragma unroll
                    for (int i = 0; i < 8; i++) v[i] += more[i];
                }
                put_terms<S, S::W_TERM>(to, v);
            }
        }
    }
    __device__ __forceinline__ void count(int *counts, int thread) const {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (infinities[s]) atomicAdd(&counts[(s * THREADS + thread) / PIECES], infinities[s]);
    }
};

/* The sums of a tile by mma.sync: a warp has 32 x 32 of them. Of the two warps that share a scheduler one multiplies a
 * stage in start, before it brings the next one, the other in finish. */
template <Pass PASS> struct ByWarps {
    static constexpr bool PLAIN = false,
                          ASYNCHRONOUS = false; /* of what is: start and finish lie around what brings the next stage */
    typedef Shape<PASS, 64, 128> Tile;
    static constexpr int ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS, WARP_ROWS = 32, WARP_COLUMNS = 32,
                         M = WARP_ROWS / 16, N = WARP_COLUMNS / 8;
    static constexpr int COUNT = M * N * 4;
    static constexpr int PAIR = 2; /* tiles of 16 rows, and of 8 columns, whose products are taken together */
    static_assert(M % PAIR == 0 && N % PAIR == 0, "whole pairs");
    static_assert(ROWS / WARP_ROWS * (COLUMNS / WARP_COLUMNS) == WARPS, "warps cover the tile");
    float total[M][N][4] = {};
    uint32_t x, w; /* where the lane's first fragments lie in a stage */
    int row, column, pairs;
    bool late;

    __device__ __forceinline__ ByWarps(int thread, int rows, bool overlaps) {
        const int warp = thread / 32, lane = thread % 32;
        row = warp / (COLUMNS / WARP_COLUMNS) * WARP_ROWS, column = warp % (COLUMNS / WARP_COLUMNS) * WARP_COLUMNS;
        x = place_of<Tile::ROW>(row + lane % 16, lane / 16);
        w = Tile::FIRST_W + place_of<Tile::ROW>(column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
        pairs = (rows - row + PAIR * 16 - 1) / (PAIR * 16);
        late = overlaps && warp >= WARPS / 2;
        row += lane / 4, column += lane % 4 * 2;
    }
    /* By each thread that has written to a stage, before the barrier behind which it is read. */
    static __device__ __forceinline__ void written() {}
    __device__ __forceinline__ void start(uint32_t stage) {
        if (!late) multiply(stage);
    }
    __device__ __forceinline__ void finish(uint32_t stage) {
        if (late) multiply(stage);
    }
    /* use(row, column, sum, its number) */
    template <class Use> __device__ __forceinline__ void each(Use use) const {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    use(row + m * 16 + i / 2 * 8, column + n * 8 + i % 2, total[m][n][i], (m * N + n) * 4 + i);
    }

  private:
    /* Fragments of 32 bytes of K of a pair: of 32 rows of one term of x, of 16 columns of one of W. */
    static __device__ __forceinline__ void load_x(uint32_t (&x)[PAIR][4], uint32_t at, int k) {
#pragma unroll
        for (int m = 0; m < PAIR; m++) rfi_load_matrices(x[m], (at ^ k << 5) + m * 16 * Tile::ROW);
    }
    static __device__ __forceinline__ void multiply_pair(
        float (&sum)[PAIR][PAIR][4], const uint32_t (&x)[PAIR][4], const uint32_t (&w)[4]) {
#pragma unroll
        for (int m = 0; m < PAIR; m++)
#pragma unroll
            for (int n = 0; n < PAIR; n++) {
                if (Tile::TF32) rfi_mma_tf32(sum[m][n], x[m], w[2 * n], w[2 * n + 1]);
                else rfi_mma<__nv_bfloat16>(sum[m][n], x[m], w[2 * n], w[2 * n + 1]);
            }
    }
    /* total += a stage; `pairs` of the warp's rows are there. Three products are summed up by themselves, the small
     * ones first, see rfi_unbiased; of signs any sum is exact. */
    __device__ __forceinline__ void multiply(uint32_t stage) {
        constexpr int STEPS = Tile::ROW / 32, BIG = Tile::TERMS;
#pragma unroll
        for (int m = 0; m < M / PAIR; m++) {
            if (m >= pairs) break;
            const uint32_t x_pair = stage + x + m * PAIR * 16 * Tile::ROW;
#pragma unroll
            for (int n = 0; n < N / PAIR; n++) {
                const uint32_t w_pair = stage + w + n * PAIR * 8 * Tile::ROW;
                float part[PAIR][PAIR][4] = {};
                uint32_t a[BIG][PAIR][4], b[BIG][4];
                if (PASS == VALUES)
#pragma unroll
                    for (int k = 0; k < STEPS; k++) {
#pragma unroll
                        for (int t = 0; t < BIG; t++) {
                            load_x(a[t], x_pair + t * Tile::X_TERM, k);
                            rfi_load_matrices(b[t], (w_pair ^ k << 5) + t * Tile::W_TERM);
                        }
#pragma unroll
                        for (int sum = BIG - 1; sum > 0; sum--)
#pragma unroll
                            for (int i = sum; i >= 0; i--) multiply_pair(part, a[i], b[sum - i]);
                    }
#pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    load_x(a[0], x_pair, k);
                    rfi_load_matrices(b[0], w_pair ^ k << 5);
                    multiply_pair(part, a[0], b[0]);
                }
#pragma unroll
                for (int i = 0; i < PAIR; i++)
#pragma unroll
                    for (int j = 0; j < PAIR; j++)
#pragma unroll
                        for (int c = 0; c < 4; c++) total[m * PAIR + i][n * PAIR + j][c] += part[i][j][c];
            }
        }
    }
};

/* The sums of a tile of `rows` rows, those of `list`, over all of K, from stages in `shared`, which has `bytes`. By
 * THREADS threads; sync() is a barrier of them. Of signs, notes.infinities has the numbers then. Nobody reads `shared`
 * any more. */
template <class Sums, class Sync> __device__ __forceinline__ void multiply(Sums &sums, const rfi_cuda_fold &p,
    unsigned char *shared, int bytes, Notes &notes, const int *list, int rows, int64_t column0, int thread, Sync sync) {
    typedef typename Sums::Tile S;
    constexpr Pass PASS = S::PASS;
    XPieces<S> x(p, list, rows, thread);
    WPieces<S> w(p, column0, thread);
    const Room room = room_of<Sums>(bytes, w.terms);
    const uint32_t stages = rfi_shared_address(shared), raw = stages + room.buffers * room.buffer + thread * 16;
    int64_t asked = 0; /* columns of which raw stages are asked for */
    int slot = 0;      /* of the raw stage to be put */
    const auto load = [&](int to) {
        if (asked < p.product.in_features) {
            x.load(raw + to * room.raw, asked + thread % PIECES * 8, p.product.in_features);
            w.load(p.product, raw + to * room.raw, asked + thread % PIECES * 8);
        }
        rfi_copy_commit();
        asked += DEPTH;
    };
    /* The next stage to a buffer; a thread reads what it has asked for itself: no barrier. */
    const auto put = [&](int buffer) {
        wait_for_oldest(room.stages);
        typename XPieces<S>::Fetched xs;
        typename WPieces<S>::Fetched ws;
        x.fetch(xs, raw + slot * room.raw);
        w.fetch(ws, raw + slot * room.raw);
        x.put(stages + buffer, xs);
        w.put(p.product, stages + buffer, ws, thread);
        load(slot);
        if (++slot == room.stages) slot = 0;
        Sums::written();
    };
    const bool single = !Sums::ASYNCHRONOUS && room.buffers == 1;
    const int other = single ? 0 : room.buffer;
    if (PASS != VALUES && thread < (PASS == X_INFINITIES ? S::ROWS : S::COLUMNS)) notes.infinities[thread] = 0;
    sync(); /* the notes are there, and what lay in this memory is read */
    for (int i = 0; i < room.stages; i++) load(i);
    put(0);
    sync(); /* the first stage is written */
    int buffer = 0;
    for (int64_t k0 = 0; k0 < p.product.in_features; k0 += DEPTH) {
        sums.start(stages + buffer);
        if (single) {
            sums.finish(stages);
            sync(); /* the stage is read */
        }
        if (k0 + DEPTH < p.product.in_features) put(other - buffer);
        if (!single) sums.finish(stages + buffer);
        sync(); /* the next stage is written, and this one is read */
        buffer = other - buffer;
    }
    rfi_copy_wait<0>();
    if (PASS == X_INFINITIES) x.count(notes.infinities, thread);
    if (PASS == W_INFINITIES) w.count(notes.infinities, thread);
    if (PASS != VALUES) sync(); /* all infinities are counted */
}

/* By shuffle, so that the compiler sees that it is the same for a warp: products of warpgroups are otherwise brought to
 * an end one by one. */
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(~0u, v, 0); }

/* What becomes of a logit whose infinities have this sum of signs: nothing, if there are none. */
enum Fate { NONE, UP_TO_INFINITY, DOWN_TO_INFINITY, NOT_A_NUMBER };
__device__ __forceinline__ unsigned fate_of(float sum, int infinities) {
    const float all = (float)infinities;
    return !infinities ? NONE : sum == all ? UP_TO_INFINITY : sum == -all ? DOWN_TO_INFINITY : NOT_A_NUMBER;
}
__device__ __forceinline__ float fated(unsigned fate) {
    return fate == UP_TO_INFINITY ? INFINITY : fate == DOWN_TO_INFINITY ? -INFINITY : NAN;
}

__device__ __forceinline__ float logit_of(
    const rfi_cuda_product &p, const Notes &notes, int64_t row, int c, float sum) {
    return (float)((double)rfi_unbiased(sum) * (double)p.x.scale[row] * (double)notes.w_scale[c] * down_of(p));
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

/* What rows of x are at the places of W's infinities in a tile, to `shared`, if these are few enough to be listed; else
 * false. A warp looks through a row of W at a time. */
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
        for (int64_t k0 = lane * 8; k0 < p.in_features; k0 += AT_ONCE * 256) {
            uint4 piece[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int64_t k = k0 + i * 256;
                piece[i] = make_uint4(0, 0, 0, 0);
                if (k < p.in_features)
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
        const float v = rfi_load_as<float>(p.x_stored.data, p.x_stored.dtype, list[row] * p.x_stored.ld + (at.x >> 1));
        const bool negative = (v < 0) != (at.x & 1);
        room.seen.mark(row, at.y, v == 0 || !negative, v == 0 || negative);
    }
    sync(); /* all have been seen */
    return true;
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

/* The same for rows with few infinities, where W's rows have none: what the columns of W are at their places. The
 * places of all rows are brought in the order of their columns first, so that a block has what it waits for side by
 * side: one by one they lie all over W, further apart than the addresses that a multiprocessor can translate at a time.
 */
template <class S, class Sync> __device__ __noinline__ void look_up(
    const rfi_cuda_product &p, float *tile, Notes &notes, int first, int rows, int64_t column0, int thread, Sync sync) {
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
    const auto each_place = [&](auto use) {
        for (int i = thread; i < rows * RFI_FEW_INFINITIES; i += THREADS) {
            const int row = i / RFI_FEW_INFINITIES, number = i % RFI_FEW_INFINITIES;
            const int *const from = infinities_of(p, list[row]);
            if (number < from[0]) use(row, from[1 + number]);
        }
    };
    each_place([&](int, int at) { atomicAdd(&places.buckets[at >> 1 >> shift], 1); });
    sync(); /* counted */
    int upto = places.buckets[thread];
    const int mine = upto;
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += below;
    }
    if (lane == 31) places.warps[warp] = upto;
    sync(); /* the warps' numbers are written */
    int before = upto - mine, all = 0;
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
    const int64_t panel_step = panel ? p.w.ld / RFI_BLOCK_ROWS * rfi_block_values(panel) : 0;
    const uint16_t *const high = (const uint16_t *)p.w.data, *const low = (const uint16_t *)p.w.low,
                          *const least = (const uint16_t *)p.w.least;
    int64_t start[GROUPS];
    int turn[GROUPS];
    bool there[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int64_t column = column0 + g * 32 + lane;
        there[g] = column < p.out_features;
        start[g] = panel ? rfi_place(panel, p.w.ld, column, 0) : column * p.w.ld;
        turn[g] = panel ? (int)(start[g] & mask) : 0;
    }
    for (int e = warp * AT_ONCE; e < all; e += WARPS * AT_ONCE) {
        int2 at[AT_ONCE];
        int64_t from[AT_ONCE][GROUPS];
        uint32_t value[AT_ONCE][GROUPS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) at[i] = places.at[min(e + i, all - 1)];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int k = at[i].x >> 1;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                from[i][g] =
                    panel ? start[g] - turn[g] + (k >> panel_shift) * panel_step + (k & mask ^ turn[g]) : start[g] + k;
                value[i][g] = there[g] ? high[from[i][g]] : 0;
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                uint32_t rest = value[i][g] & 0x7fff;
                if (!rest && there[g] && low) rest = low[from[i][g]];
                if (!rest && there[g] && least) rest = least[from[i][g]];
                /* Up and down: NaN. */
                const bool negative = (value[i][g] >> 15 ^ at[i].x) & 1;
                const unsigned up = __ballot_sync(~0u, !rest || !negative),
                               down = __ballot_sync(~0u, !rest || negative);
                if (lane < 2 && e + i < all)
                    atomicOr(&places.seen.of[at[i].y * WORDS + 2 * g + lane], lane ? down : up);
            }
    }
    sync(); /* all have been seen */
    for (int i = thread; i < rows * COLUMNS; i += THREADS) {
        const int r = i / COLUMNS, c = i % COLUMNS;
        tile[r * TILE_LD + c] = fated(places.seen.fate_at(r, c));
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

/* Tiles of all flagged rows, shared out among `blocks`, of which this is number `block`: to y or to partial states.
 * Rows that are in a tile together are a group. finish(number, groups, rows, count, tiles) is called by all threads
 * once a block's tiles of the rows of notes.list are done: that are `count` in groups of `rows`, number `number` of all
 * groups and those behind it, of so many tiles each. Tile i of them is of group i % groups. */
template <template <Pass> class Sums, class Sync, class Finish> __device__ void compute(const rfi_cuda_fold &p,
    unsigned char *shared, int bytes, Notes &notes, int thread, unsigned block, unsigned blocks, Sync sync,
    Finish finish) {
    typedef typename Sums<VALUES>::Tile S;
    constexpr int COLUMNS = S::COLUMNS;
    const int64_t columns = (p.product.out_features + COLUMNS - 1) / COLUMNS;
    int64_t all_groups = 0;
    for (int64_t window = 0; window < p.product.batch; window += WINDOW) {
        const Flags flags(p.product, window, thread);
#pragma unroll 1
        for (int kind = FINITE; kind < KINDS; kind++) {
            const int count = uniform(list_rows(kind == FINITE ? flags.of[FINITE]
                    : kind == FEW                              ? flags.of[FEW]
                                                               : flags.of[MANY],
                window, notes, thread, sync));
            if (!count) continue;
            const int most = Sums<VALUES>::PLAIN && kind != FEW ? PLAIN_ROWS : S::ROWS;
            const int64_t groups = (count + most - 1) / most, tiles = groups * columns;
            for (int64_t i = block; i < tiles; i += blocks) {
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
                    look_up<S>(p.product, (float *)shared, notes, first, rows, column0, thread, sync);
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
            finish(all_groups, groups, most, count, columns);
            all_groups += groups;
        }
    }
}

} // namespace irregular_tile
#endif
