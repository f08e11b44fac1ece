/* SPDX-License-Identifier: MIT */
/* Of tiles of rows that terms of 16 bits do not represent: their sizes, what a block knows of one, and how the terms of
 * a stage lie in shared memory. */
#ifndef ROWFOLD_CUDA_IRREGULAR_STAGE_CUH
#define ROWFOLD_CUDA_IRREGULAR_STAGE_CUH

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

} // namespace irregular_tile
#endif
