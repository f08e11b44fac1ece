/* SPDX-License-Identifier: MIT */
/* Problems of few tiles: narrow layers, short batches, a long K. Plain multiply-adds in the compute type, any data
 * types, any alignment; x is read as it is stored, so that no row is irregular and nothing is prepared.
 *
 * A block of 256 threads multiplies a tile of ROWS x COLUMNS by teams, each of which takes its own part of every stage
 * of K; the teams' sums are added in their order. Where tiles are fewer than multiprocessors, K is shared out among
 * `splits` blocks a tile, too: each writes its sums, and the last of them, known by a ticket, adds all in the order of
 * K and goes on with the fold. So the bits depend on the number of parts, not on which block comes last.
 *
 *   K       0      64     128    192    256    320 ...
 *           |stage |stage |stage |stage |stage |
 *   splits  |---- block z = 0 ---|---- block z = 1 ---| ...
 *   teams   |0 |1  |0 |1  | ...                            (of a stage: its first half, its second)
 */
#include "epilogue.cuh"
#include "launch.cuh"
#include "splits.cuh"

namespace {

constexpr int THREADS = 256, PIECES = 8;                    /* of a row in a stage; a thread loads one at a time */
template <class T> constexpr int PIECE = 32 / sizeof(T);    /* values, of one row */
template <class T> constexpr int DEPTH = PIECES * PIECE<T>; /* values of K in a stage */
static_assert(RFI_SPLIT_DEPTH % DEPTH<float> == 0 && RFI_SPLIT_DEPTH % DEPTH<double> == 0, "parts are whole stages");
constexpr int TILE_LD = RFI_FOLD_COLUMNS + 4;
constexpr int THREAD_ROWS = 4, THREAD_COLUMNS = 4; /* of a tile */

template <int ROWS_, int COLUMNS_> struct shape {
    static constexpr int rows = ROWS_, columns = COLUMNS_;
    static constexpr int team = rows / THREAD_ROWS * (columns / THREAD_COLUMNS), teams = THREADS / team;
    static constexpr int row_groups = rows / THREAD_ROWS;
    static constexpr int x_steps = (rows * PIECES + THREADS - 1) / THREADS,
                         w_steps = (columns * PIECES + THREADS - 1) / THREADS;
    static_assert(
        THREADS % team == 0 && DEPTH<double> % teams == 0 && columns <= RFI_FOLD_COLUMNS, "whole teams; one state");
    template <class T> static constexpr size_t stage_bytes = sizeof(T) * DEPTH<T> * (rows + columns);
    template <class T> static constexpr size_t tile_bytes = sizeof(T) * rows * TILE_LD;
    template <class T> static constexpr size_t shared_bytes =
        stage_bytes<T> > tile_bytes<T> ? stage_bytes<T> : tile_bytes<T>;
};

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
    __device__ __forceinline__ void load(const operand &o, int64_t row0, int rows, int64_t k0, int64_t end) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int at = s * THREADS + threadIdx.x, row = at / PIECES;
            if (ROWS * PIECES % THREADS && row >= ROWS) break;
            forms[s] = load_piece<T>(pieces[s], o, row < rows, row0 + row, k0 + at % PIECES * PIECE<T>, end);
        }
    }
    __device__ __forceinline__ void put(T *stage, const operand &o, const T (&scale)[STEPS]) const {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int at = s * THREADS + threadIdx.x, row = at / PIECES, k = at % PIECES * PIECE<T>;
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

/* sum += a team's part of a stage. */
template <class S, class T> __device__ __forceinline__ void multiply(
    T (&sum)[THREAD_ROWS][THREAD_COLUMNS], const T *x, const T *w, int team, int row, int column) {
    constexpr int team_depth = DEPTH<T> / S::teams;
#pragma unroll
    for (int i = 0; i < team_depth; i++) {
        const int k = team * team_depth + i;
        T a[THREAD_ROWS], b[THREAD_COLUMNS];
        load_four(a, x + place<T, S::rows>(k, row));
        load_four(b, w + place<T, S::columns>(k, column));
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
            for (int c = 0; c < THREAD_COLUMNS; c++) sum[r][c] = fma(a[r], b[c], sum[r][c]);
    }
}

/* The teams' sums, added in their order, to the tile in shared memory. */
template <class S, class T> __device__ __forceinline__ void add_teams(
    T *tile, const T (&sum)[THREAD_ROWS][THREAD_COLUMNS], int team, int row, int column) {
#pragma unroll 1
    for (int turn = 0; turn < S::teams; turn++) {
        __syncthreads(); /* the stage is read, or the team before has added */
        if (team != turn) continue;
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
            for (int c = 0; c < THREAD_COLUMNS; c++) {
                T &to = tile[(row + r) * TILE_LD + column + c];
                to = turn ? to + sum[r][c] : sum[r][c];
            }
    }
    __syncthreads(); /* the tile is written */
}

/* Of many rows a thread has many loads on their way, and no second block the registers. */
template <class S, class T> __global__ void __launch_bounds__(THREADS, S::rows > 64 ? 1 : 2)
    fold_few_tiles(const __grid_constant__ rfi_cuda_fold p) {
    extern __shared__ __align__(16) unsigned char shared[];
    T *const x = (T *)shared, *const w = x + DEPTH<T> * S::rows;
    const int64_t row0 = (int64_t)blockIdx.x * S::rows, column0 = (int64_t)blockIdx.y * S::columns;
    const int rows = (int)min((int64_t)S::rows, p.batch - row0),
              columns = (int)min((int64_t)S::columns, p.out_features - column0);
    const int team = threadIdx.x / S::team, row = threadIdx.x % S::row_groups * THREAD_ROWS,
              column = threadIdx.x % S::team / S::row_groups * THREAD_COLUMNS;
    const auto [first, end] = rfi_part_of(p);
    const operand x_from = operand_of<T>(p.x), w_from = operand_of<T>(p.w);
    T x_scale[S::x_steps], w_scale[S::w_steps];
#pragma unroll
    for (int s = 0; s < S::x_steps; s++) x_scale[s] = 1;
#pragma unroll
    for (int s = 0; s < S::w_steps; s++) {
        const int64_t at = column0 + (s * THREADS + threadIdx.x) / PIECES;
        w_scale[s] = p.w.scale && at < p.out_features ? (T)p.w.scale[at] : (T)1;
    }
    share<T, S::rows, S::x_steps, 1> next_x;
    share<T, S::columns, S::w_steps, sizeof(T) == 4 ? 3 : 1> next_w;
    T sum[THREAD_ROWS][THREAD_COLUMNS] = {};
    rfi_release_next();
    rfi_wait_for_previous();
    next_x.load(x_from, row0, rows, first, end);
    next_w.load(w_from, column0, columns, first, end);
    for (int64_t k0 = first; k0 < end; k0 += DEPTH<T>) {
        __syncthreads(); /* the stage is read */
        next_x.put(x, x_from, x_scale);
        next_w.put(w, w_from, w_scale);
        __syncthreads(); /* the stage is written */
        if (k0 + DEPTH<T> < end) {
            next_x.load(x_from, row0, rows, k0 + DEPTH<T>, end);
            next_w.load(w_from, column0, columns, k0 + DEPTH<T>, end);
        }
        multiply<S>(sum, x, w, team, row, column);
    }
    T *const tile = (T *)shared;
    add_teams<S>(tile, sum, team, row, column);
    if (p.splits > 1 && !rfi_add_splits<S::rows, S::columns, THREADS>(p, tile, TILE_LD)) return;
    constexpr int AT_ONCE = sizeof(T) == 4 ? S::rows / 32 : 1; /* a warp then takes all its rows together */
    rfi_fold_tile<T, AT_ONCE>(p, (const T *)tile, TILE_LD, row0, rows, column0, RFI_FOLD_COLUMNS);
    if (p.tickets) rfi_finish_rows<T>(p, &p.tickets[blockIdx.x], gridDim.y, row0, rows);
}

template <class S, class T> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t row_blocks = rfi_tiles(fold->batch, S::rows),
                  column_blocks = rfi_tiles(fold->out_features, S::columns);
    if (row_blocks > INT32_MAX || column_blocks > 65535 || fold->splits > 65535) return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_few_tiles<S, T>, fold,
        dim3((unsigned)row_blocks, (unsigned)column_blocks, (unsigned)fold->splits), THREADS,
        S::template shared_bytes<T>, stream, fold->overlaps);
}

} // namespace

cudaError_t rfi_cuda_fold_few_32x64_f32(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<32, 64>, float>(fold, stream);
}
cudaError_t rfi_cuda_fold_few_128x8_f32(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<128, 8>, float>(fold, stream);
}
cudaError_t rfi_cuda_fold_few_32x64_f64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<32, 64>, double>(fold, stream);
}
cudaError_t rfi_cuda_fold_few_128x8_f64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch<shape<128, 8>, double>(fold, stream);
}
