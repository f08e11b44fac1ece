/* SPDX-License-Identifier: MIT */
/* What comes from memory for a stage of a tile of irregular_tile.cuh, and how it is brought to terms or to signs on its
 * way to shared memory. */
#ifndef ROWFOLD_CUDA_IRREGULAR_PIECES_CUH
#define ROWFOLD_CUDA_IRREGULAR_PIECES_CUH

#include "common/irregular_stage.cuh"

namespace irregular_tile {

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

} // namespace irregular_tile
#endif
