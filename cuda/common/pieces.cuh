/* SPDX-License-Identifier: MIT */
/* x and W on their way to stages in shared memory through registers, in the compute type, from any types and any
 * alignment: for the kernels of plain multiply-adds. Pieces are kept as they came from memory until they are put into
 * the stage, so that a thread has its next ones on their way while it multiplies. */
#ifndef ROWFOLD_CUDA_PIECES_CUH
#define ROWFOLD_CUDA_PIECES_CUH

#include "common/epilogue.cuh"

namespace pieces {

constexpr int THREADS = 256, PIECES = 8;                    /* of a row in a stage; a thread loads one at a time */
template <class T> constexpr int PIECE = 32 / sizeof(T);    /* values, of one row */
template <class T> constexpr int DEPTH = PIECES * PIECE<T>; /* values of K in a stage */

/* Values as they came from memory: of the compute type, of a 16-bit type, or in up to TERMS terms. */
template <int TERMS> struct piece {
    uint4 raw[TERMS > 2 ? TERMS : 2];
};

enum form { VALUES, ONE_TERM, TWO_TERMS, THREE_TERMS };

/* An operand as the block reads it. */
struct operand {
    rfi_cuda_rows rows;
    form whole;           /* of pieces that are read at once */
    bool same, in_pieces; /* values of the compute type; pieces may be read at once */
};

template <class T> __device__ __forceinline__ operand operand_of(const rfi_cuda_rows &rows) {
    operand o = {rows, VALUES, false, false};
    const bool narrow = rows.dtype == RF_FLOAT16 || rows.dtype == RF_BFLOAT16;
    const int item = narrow ? 2 : rows.dtype == RF_FLOAT64 ? 8 : 4;
    if (narrow) o.whole = rows.least ? THREE_TERMS : rows.low ? TWO_TERMS : ONE_TERM;
    o.same = item == sizeof(T);
    o.in_pieces = (narrow ? sizeof(T) == 4 : o.same) &&
        (rows.panel || ((uintptr_t)rows.data % 16 == 0 && rows.ld * item % 16 == 0));
    return o;
}

__device__ __forceinline__ uint4 pack(const float (&v)[8], int i) {
    return make_uint4(__float_as_uint(v[4 * i]), __float_as_uint(v[4 * i + 1]), __float_as_uint(v[4 * i + 2]),
        __float_as_uint(v[4 * i + 3]));
}
__device__ __forceinline__ uint4 pack(const double (&v)[4], int i) {
    const double a = v[2 * i], b = v[2 * i + 1];
    return make_uint4((uint32_t)__double2loint(a), (uint32_t)__double2hiint(a), (uint32_t)__double2loint(b),
        (uint32_t)__double2hiint(b));
}
__device__ __forceinline__ void unpack(float (&v)[8], const uint4 &p, int i) {
    v[4 * i] = __uint_as_float(p.x), v[4 * i + 1] = __uint_as_float(p.y), v[4 * i + 2] = __uint_as_float(p.z),
          v[4 * i + 3] = __uint_as_float(p.w);
}
__device__ __forceinline__ void unpack(double (&v)[4], const uint4 &p, int i) {
    v[2 * i] = __hiloint2double((int)p.y, (int)p.x), v[2 * i + 1] = __hiloint2double((int)p.w, (int)p.z);
}

struct loaded {
    uint4 v[2];
};

/* A piece value by value: its rows are not aligned, or it reaches beyond them. */
template <class T>
__device__ __noinline__ loaded load_values(const rfi_cuda_rows &rows, int64_t row, int64_t k, int64_t end) {
    T v[PIECE<T>];
#pragma unroll
    for (int i = 0; i < PIECE<T>; i++) {
        v[i] = 0;
        if (row < 0 || k + i >= end) continue;
        const int64_t at = rows.panel ? rfi_place(rows.panel, rows.ld, row, k + i) : row * rows.ld + k + i;
        v[i] = rfi_load_as<T>(rows.data, rows.dtype, at);
        if (rows.low) v[i] += rfi_load_as<T>(rows.low, rows.dtype, at);
        if (rows.least) v[i] += rfi_load_as<T>(rows.least, rows.dtype, at);
    }
    return {{pack(v, 0), pack(v, 1)}};
}

/* A piece of a row from k on, values beyond `end` as zeros. Its form. */
template <class T, int TERMS> __device__ __forceinline__ form load_piece(
    piece<TERMS> &p, const operand &o, bool there, int64_t row, int64_t k, int64_t end) {
    const rfi_cuda_rows &rows = o.rows;
    if (there && o.in_pieces && k + PIECE<T> <= end) {
        const int64_t at = rows.panel ? rfi_place(rows.panel, rows.ld, row, k) : row * rows.ld + k;
        if (o.whole == VALUES) {
            const uint4 *from = (const uint4 *)((const T *)rows.data + at);
            p.raw[0] = from[0], p.raw[1] = from[1];
            return VALUES;
        }
        p.raw[0] = *(const uint4 *)((const uint16_t *)rows.data + at);
        if (TERMS > 1 && o.whole >= TWO_TERMS) p.raw[1] = *(const uint4 *)((const uint16_t *)rows.low + at);
        if (TERMS > 2 && o.whole == THREE_TERMS)
            p.raw[TERMS > 2 ? 2 : 0] = *(const uint4 *)((const uint16_t *)rows.least + at);
        return o.whole;
    }
    if (TERMS == 1 && o.whole == VALUES && o.same) {
        T v[PIECE<T>];
#pragma unroll
        for (int i = 0; i < PIECE<T>; i++)
            v[i] = there && k + i < end ? ((const T *)rows.data)[row * rows.ld + k + i] : (T)0;
        p.raw[0] = pack(v, 0), p.raw[1] = pack(v, 1);
        return VALUES;
    }
    if (TERMS == 1 && sizeof(T) == 4 && o.whole == ONE_TERM) {
        uint32_t words[4] = {};
#pragma unroll
        for (int i = 0; i < PIECE<T>; i++)
            if (there && k + i < end)
                words[i / 2] |= (uint32_t)((const uint16_t *)rows.data)[row * rows.ld + k + i] << i % 2 * 16;
        p.raw[0] = make_uint4(words[0], words[1], words[2], words[3]);
        return ONE_TERM;
    }
    const loaded two = load_values<T>(o.rows, there ? row : -1, k, end);
    p.raw[0] = two.v[0], p.raw[1] = two.v[1];
    return VALUES;
}

__device__ __forceinline__ void widen(float (&v)[8], const uint4 &p, bool bfloat16) {
    const uint32_t words[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = bfloat16 ? rfi_widen<__nv_bfloat16>(words[i]) : rfi_widen<__half>(words[i]);
        v[2 * i] = two.x, v[2 * i + 1] = two.y;
    }
}

/* The sums of terms are exact: they are the values that were taken apart. */
template <class T, int TERMS>
__device__ __forceinline__ void values_of(T (&v)[PIECE<T>], const piece<TERMS> &p, form f, bool bfloat16) {
    if (f == VALUES) {
        unpack(v, p.raw[0], 0);
        unpack(v, p.raw[1], 1);
        return;
    }
    if constexpr (sizeof(T) == 4) {
        widen(v, p.raw[0], bfloat16);
#pragma unroll
        for (int t = 1; t < TERMS; t++) {
            if (f <= t) continue;
            float more[PIECE<T>];
            widen(more, p.raw[t], bfloat16);
#pragma unroll
            for (int i = 0; i < PIECE<T>; i++) v[i] += more[i];
        }
    }
}

/* Where row `row` of depth k lies in a stage, which is k-major so that a thread's four rows are neighbours. Groups of
 * four rows are permuted by the piece of k, so that the pieces that a warp writes at once lie in different banks. */
template <class T, int ROWS> __device__ __forceinline__ int place(int k, int row) {
    return k * ROWS + ((row / 4 ^ (k / PIECE<T> & (ROWS < 32 ? ROWS / 4 - 1 : 7))) << 2) + row % 4;
}

/* A thread's share of a stage of one operand. */
template <class T, int ROWS, int STEPS, int TERMS> struct share {
    piece<TERMS> pieces[STEPS];
    form forms[STEPS];
    /* row_of(i) is the row that is the i-th of the stage's, of which there are `rows`. */
    template <class RowOf> __device__ __forceinline__ void load(
        const operand &o, int rows, int64_t k0, int64_t end, int thread, RowOf row_of) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int at = s * THREADS + thread, row = at / PIECES;
            if (ROWS * PIECES % THREADS && row >= ROWS) break;
            const bool there = row < rows;
            forms[s] = load_piece<T>(pieces[s], o, there, there ? row_of(row) : 0, k0 + at % PIECES * PIECE<T>, end);
        }
    }
    __device__ __forceinline__ void put(T *stage, const operand &o, const T (&scale)[STEPS], int thread) const {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int at = s * THREADS + thread, row = at / PIECES, k = at % PIECES * PIECE<T>;
            if (ROWS * PIECES % THREADS && row >= ROWS) break;
            T v[PIECE<T>];
            values_of<T>(v, pieces[s], forms[s], o.rows.dtype == RF_BFLOAT16);
#pragma unroll
            for (int i = 0; i < PIECE<T>; i++) stage[place<T, ROWS>(k + i, row)] = v[i] * scale[s];
        }
    }
};

template <class T> __device__ __forceinline__ void load_four(T (&v)[4], const T *from) {
    const four<T> all = *(const four<T> *)from;
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = all.v[i];
}

/* The scales of the rows of W that a thread puts into a stage. */
template <class T, int STEPS>
__device__ __forceinline__ void scales_of(T (&scale)[STEPS], const rfi_cuda_product &p, int64_t column0, int thread) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int64_t at = column0 + (s * THREADS + thread) / PIECES;
        scale[s] = p.w.scale && at < p.out_features ? (T)p.w.scale[at] : (T)1;
    }
}

} // namespace pieces
#endif
