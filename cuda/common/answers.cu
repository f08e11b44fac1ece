/* SPDX-License-Identifier: MIT */
/* What results take beside passes over W: bounds of searches, what was found, spreads, columns that are gathered, rows
 * that are wanted. */
#include "answers.h"

#include <cuda_runtime.h>

#include "common/pieces.cuh"
#include "common/squares.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;

/* A column of a row and its value; below 0: none. */
template <class T> struct ranked {
    T value;
    int32_t column;
};

/* By what columns are sorted: above another is what comes before it; none is above no column. */
template <class T> struct sort_key {
    ranked<T> one;
    static __device__ sort_key of(const ranked<T> &one) { return {one}; }
    static __device__ sort_key none() { return {{0, -1}}; }
    __device__ bool is_none() const { return one.column < 0; }
    __device__ bool above(const sort_key &q) const {
        if (is_none() || q.is_none()) return !is_none() && q.is_none();
        return rfi_comes_before(one.value, one.column, q.one.value, q.one.column);
    }
    __device__ sort_key of_lane(int step) const {
        return {{__shfl_xor_sync(~0u, one.value, step), __shfl_xor_sync(~0u, one.column, step)}};
    }
};

/* In one word: NaN above all numbers, which are in their order, zeros of both signs alike, and of equal ones the first
 * column above the others. */
template <> struct sort_key<float> {
    unsigned long long word;
    static __device__ sort_key of(const ranked<float> &one) {
        const unsigned bits = __float_as_uint(one.value + 0.0f), number = bits >> 31 ? ~bits : bits | 0x80000000u;
        const unsigned value = one.value != one.value ? ~0u : number;
        return {one.column < 0 ? 0 : (unsigned long long)value << 32 | ~(unsigned)one.column};
    }
    static __device__ sort_key none() { return {0}; }
    __device__ bool is_none() const { return !word; }
    __device__ bool above(const sort_key &q) const { return word > q.word; }
    __device__ sort_key of_lane(int step) const { return {__shfl_xor_sync(~0u, word, step)}; }
};

constexpr int KEPT = 1024;       /* columns */
constexpr int MOST_GROUPS = 128; /* of threads: twice k at least */
static_assert(MOST_GROUPS >= 2 * RF_MAX_TOP, "each k has its groups");

/* The first k of `count` columns, item(i) the i-th, by a block: put(n, column) gets each from one thread, less than k
 * where there are less. What no more than k - 1 groups of threads have better ones than is a bound; those that are not
 * behind it are few, and each counts the others before it. Of groups there are twice k at least, and not many more:
 * that each is compared with all is what takes time. No two are the same column, so which thread holds which does not
 * matter. */
template <class T, class Item, class Put> __device__ void select_first(int64_t count, int k, Item item, Put put) {
    using key = sort_key<T>;
    __shared__ key best[MOST_GROUPS], kept[KEPT], bound;
    __shared__ int64_t kept_items[KEPT];
    __shared__ int num_kept;
    key mine = key::none();
    for (int64_t i = threadIdx.x; i < count; i += THREADS) {
        const key one = key::of(item(i));
        if (one.above(mine)) mine = one;
    }
    const int group = k <= THREADS / 16 ? 8 : k <= THREADS / 8 ? 4 : 2, groups = THREADS / group; /* threads */
    for (int step = 1; step < group; step *= 2) {
        const key other = mine.of_lane(step);
        if (other.above(mine)) mine = other;
    }
    if (threadIdx.x % group == 0) best[threadIdx.x / group] = mine;
    if (threadIdx.x == 0) num_kept = 0, bound = key::none();
    __syncthreads();
    if (threadIdx.x < groups && !best[threadIdx.x].is_none()) {
        int before = 0;
        for (int i = 0; i < groups; i++) before += best[i].above(best[threadIdx.x]);
        if (before == k - 1) bound = best[threadIdx.x];
    }
    __syncthreads();
    const key last = bound;
    const auto counts = [&](const key &one) { return !one.is_none() && !last.above(one); };
    for (int64_t i = threadIdx.x; i < count; i += THREADS) {
        const key one = key::of(item(i));
        if (!counts(one)) continue;
        const int at = atomicAdd(&num_kept, 1);
        if (at < KEPT) kept[at] = one, kept_items[at] = i;
    }
    __syncthreads();
    if (num_kept <= KEPT) {
        for (int j = threadIdx.x; j < num_kept; j += THREADS) {
            int place = 0;
            for (int i = 0; i < num_kept; i++) place += kept[i].above(kept[j]);
            if (place < k) put(place, item(kept_items[j]));
        }
        return;
    }
    for (int64_t j = threadIdx.x; j < count; j += THREADS) {
        const key one = key::of(item(j));
        if (!counts(one)) continue;
        int64_t place = 0;
        for (int64_t i = 0; i < count; i++) place += key::of(item(i)).above(one);
        if (place < k) put((int)place, item(j));
    }
}

/* The best column of a partial state. */
template <class T> __device__ __forceinline__ ranked<T> best_of_state(const rfi_cuda_bound &b, int64_t at) {
    const rfi_state_of<T, rfi_answers::TOTALS> s = rfi_read_state<T, rfi_answers::TOTALS>(b.partials, at);
    const T word = s.t[2];
    if (word < 0) return {(T)NAN, (int32_t)(rfi_answers::BEHIND - rfi_typed<T>::column_of(-word))};
    if (!(word < (T)INFINITY)) return {0, -1};
    return {s.m, (int32_t)rfi_typed<T>::column_of(word)};
}

/* A block a row. No more than k - 1 blocks of columns have a best one that comes before the k-th best of all blocks,
 * and so the first k columns lie in k blocks, none of them behind that one. */
template <class T> __global__ void __launch_bounds__(THREADS) bound_by_peaks(const __grid_constant__ rfi_cuda_bound b) {
    const int64_t row = blockIdx.x;
    T *const value = (T *)b.values + row;
    if (b.wanted && b.counts[row] >= (unsigned)b.top && b.counts[row] <= b.room) {
        if (threadIdx.x) return;
        *value = (T)NAN;
        b.columns[row] = 0;
        return;
    }
    const int unit = b.irregular && b.irregular[row] ? RFI_FOLD_COLUMNS : b.fold_columns;
    const int64_t states = (b.out_features + unit - 1) / unit, first = row * b.num_partials;
    if (threadIdx.x == 0) { /* with fewer blocks all columns come before */
        *value = -(T)INFINITY;
        b.columns[row] = INT32_MAX;
        if (b.wanted) *b.wanted = 1;
    }
    __syncthreads(); /* the count is read, and what may be written once more is written */
    if (threadIdx.x == 0) b.counts[row] = 0;
    select_first<T>(
        states, b.top, [&](int64_t i) { return best_of_state<T>(b, first + i); },
        [&](int n, const ranked<T> &one) {
            if (n < b.top - 1) return;
            *value = one.value;
            b.columns[row] = one.column + 1; /* it is one of them itself */
        });
}

/* A block a row. */
template <class T> __global__ void __launch_bounds__(THREADS)
    bound_by_stored(const __grid_constant__ rfi_cuda_bound b) {
    rfi_release_next();
    rfi_wait_for_previous();
    const int64_t row = blockIdx.x;
    const T *const stored = (const T *)b.stored + row * b.out_features;
    if (threadIdx.x == 0) {
        b.counts[row] = (unsigned)b.top;
        if (row == 0) *b.wanted = 0;
    }
    select_first<T>(
        b.out_features, b.top, [&](int64_t i) { return ranked<T>{stored[i], (int32_t)i}; },
        [&](int n, const ranked<T> &one) {
            ((T *)b.found)[row * b.room + n] = one.value;
            b.found_columns[row * b.room + n] = one.column;
            if (n < b.top - 1) return;
            ((T *)b.values)[row] = one.value;
            b.columns[row] = one.column; /* nothing behind it is searched before it */
        });
}

template <class T> __global__ void __launch_bounds__(THREADS) bound_by_pick(const __grid_constant__ rfi_cuda_bound b) {
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= b.batch) return;
    const int64_t asked = b.asked[row];
    const bool there = asked >= 0 && asked < b.out_features;
    ((T *)b.values)[row] = there ? ((const T *)b.picked)[row] : (T)NAN;
    b.columns[row] = there ? (int32_t)asked : -1;
    b.counts[row] = 0;
}

/* A block a row. W has no more bytes of a row than are whole pieces of 16. */
template <class T> __global__ void __launch_bounds__(THREADS)
    take_diagonal(const __grid_constant__ rfi_cuda_diagonal d) {
    const int64_t row = blockIdx.x, asked = d.asked[row];
    const bool there = asked >= 0 && asked < d.out_features;
    const int64_t from = there ? asked : 0;
    const void *const terms[3] = {d.from.data, d.from.low, d.from.least};
    const void *const places[3] = {d.to.data, d.to.low, d.to.least};
    const int item = d.from.dtype == RF_FLOAT64 ? 8 : d.from.dtype == RF_FLOAT32 ? 4 : 2, values = 16 / item;
    const int64_t depth = d.from.panel ? rfi_panel_depth(d.from.panel, d.depth) : d.depth;
    for (int t = 0; t < 3 && terms[t]; t++)
        for (int64_t i = threadIdx.x * values; i < depth; i += THREADS * values) {
            const int64_t a = d.from.panel ? rfi_place(d.from.panel, d.from.ld, from, i) : from * d.from.ld + i,
                          b = d.from.panel ? rfi_place(d.from.panel, d.to.ld, row, i) : row * d.to.ld + i;
            *(uint4 *)((char *)places[t] + b * item) = *(const uint4 *)((const char *)terms[t] + a * item);
        }
    for (int64_t i = threadIdx.x; d.from.rest && i < (d.depth + 7) / 8; i += THREADS)
        ((uint8_t *)d.to.rest)[i * d.to.rest_ld + row] = d.from.rest[i * d.from.rest_ld + from];
    if (threadIdx.x) return;
    d.columns[row] = there ? row : -1;
    if (d.from.scale) ((float *)d.to.scale)[row] = d.from.scale[from];
    ((T *)d.to_bias)[row] = ((const T *)d.bias)[from];
    for (int v = 0; v < d.num_vectors; v++)
        ((T *)d.to_vectors)[v * d.rows + row] = ((const T *)d.vectors)[v * d.out_features + from];
}

/* A block a row. */
template <class T> __global__ void __launch_bounds__(THREADS) store_top(const __grid_constant__ rfi_cuda_found f) {
    const int32_t *const columns = f.search.found_columns;
    const int64_t row = blockIdx.x, first = row * f.search.room,
                  count = columns ? min((int64_t)f.search.counts[row], f.search.room) : f.columns;
    select_first<T>(
        count, f.top,
        [&](int64_t i) {
            return ranked<T>{((const T *)f.search.found)[first + i], columns ? columns[first + i] : (int32_t)i};
        },
        [&](int n, const ranked<T> &one) {
            rfi_store_as<T>(f.y, f.y_dtype, row * f.ldy + n, one.value);
            f.indices[row * f.ld_indices + n] = one.column;
        });
}

__global__ void __launch_bounds__(THREADS) store_ranks(const __grid_constant__ rfi_cuda_found f) {
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= f.batch) return;
    f.indices[row * f.ld_indices] = f.search.columns[row] < 0 ? -1 : (int64_t)f.search.counts[row];
}

/* A warp a row. */
template <class T> __global__ void __launch_bounds__(THREADS) store_spreads(const __grid_constant__ rfi_cuda_spread s) {
    const rfi_cuda_fold &f = s.fold;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= f.product.batch) return;
    const rfi_square_unit<T> *const units =
        (const rfi_square_unit<T> *)f.visitor.squares.sums + row * f.visitor.squares.units;
    const rfi_squares all = f.visitor.squares.magnitudes
        ? rfi_squares_of(units, f.visitor.squares.units)
        : rfi_squares_around(units, f.visitor.squares.units, (double)f.product.out_features);
    if (threadIdx.x % 32) return;
    const double whole =
        f.visitor.squares.magnitudes ? sqrt(all.squares) / rfi_typed<T>::down((T)all.centre) : all.squares;
    for (int i = 0; i < f.visitor.num_results; i++) {
        const rfi_cuda_result &result = f.visitor.results[i];
        T v = (T)whole;
        if (result.reduction == RF_OP_STD) v = (T)sqrt(whole / s.counts[i]);
        else if (result.reduction == RF_OP_VAR) v = (T)(whole / s.counts[i]);
        v = rfi_run_steps(f.visitor, result.first_step, result.num_steps, row, v);
        rfi_store_as<T>(result.y, result.y_dtype, row * result.ldy, v);
    }
}

/* A lane's part of the product of a row of x, as it is stored, with a row of W that has an infinity: whatever is finite
 * does not count. The terms of such a row are that infinity's sign, and zeros that say what the others were, for an
 * infinite x meets them (doc/kernels/accuracy.md). */
template <class T> __device__ T meet_infinity(const rfi_cuda_product &f, int64_t row, int64_t column, int lane) {
    const T little = (T)0x1p-100f; /* finite x times this is finite, however many are added */
    const auto place = [&](int64_t k) {
        return f.w.panel ? rfi_place(f.w.panel, f.w.ld, column, k) : column * f.w.ld + k;
    };
    T sum = 0;
    const auto add = [&](int64_t k, T w) { sum = fma(rfi_load_as<T>(f.x.data, f.x.dtype, row * f.x.ld + k), w, sum); };
    for (int64_t k = lane; k < f.in_features; k += 32) {
        const T first = rfi_load_as<T>(f.w.data, f.w.dtype, place(k)),
                second = f.w.low ? rfi_load_as<T>(f.w.low, f.w.dtype, place(k)) : (T)0;
        add(k, first != 0 ? copysign((T)INFINITY, first) : signbit(second) ? copysign(little, first) : (T)0);
    }
    int verdict = -1;
    for (int v = lane; v < f.verdicts.columns; v += 32)
        if (rfi_load_as<T>(f.w.data, f.w.dtype, place(f.in_features + v)) != 0) verdict = v;
    verdict = __reduce_max_sync(~0u, verdict);
    if (verdict < 0) return sum;
    const int count = rfi_verdict_places(f.verdicts);
    for (int i = lane; i < count; i += 32) {
        const rfi_cuda_infinity one = f.verdicts.at[i];
        if (one.verdict == verdict) add(one.place >> 1, one.place & 1 ? -(T)INFINITY : (T)INFINITY);
    }
    return sum;
}

/* The next pieces of a lane's, of 16-bit values as they are stored, several on their way at once: in the order of the
 * loop that takes one at a time. */
__device__ __forceinline__ void add_stored(
    const rfi_cuda_product &f, int64_t row, int64_t column, int64_t &k, float &sum) {
    using namespace pieces;
    constexpr int AT_ONCE = 4, STEP = 32 * PIECE<float>;
    for (; k + (AT_ONCE - 1) * STEP + PIECE<float> <= f.in_features; k += AT_ONCE * STEP) {
        uint4 x[AT_ONCE], w[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int64_t i = k + j * STEP,
                          at = f.w.panel ? rfi_place(f.w.panel, f.w.ld, column, i) : column * f.w.ld + i;
            x[j] = *(const uint4 *)((const uint16_t *)f.x.data + row * f.x.ld + i);
            w[j] = *(const uint4 *)((const uint16_t *)f.w.data + at);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float xs[PIECE<float>], ws[PIECE<float>];
            widen(xs, x[j], f.x.dtype == RF_BFLOAT16);
            widen(ws, w[j], f.w.dtype == RF_BFLOAT16);
#pragma unroll
            for (int i = 0; i < PIECE<float>; i++) sum = fma(xs[i], ws[i], sum);
        }
    }
}

/* A warp a column: the lanes share out K by pieces. */
template <class T> __global__ void __launch_bounds__(THREADS) gather(const __grid_constant__ rfi_cuda_gather g) {
    using namespace pieces;
    const rfi_cuda_fold &f = g.fold;
    const int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (at >= f.product.batch * g.columns) return;
    const int lane = threadIdx.x % 32;
    const int64_t row = at / g.columns, place = at % g.columns, from = g.list ? g.list[row] : row;
    int64_t column = -1;
    if (from >= 0 && from < g.asked_rows)
        column = g.asked_dtype == RF_INT32 ? ((const int32_t *)g.asked)[from * g.ld + place]
                                           : ((const int64_t *)g.asked)[from * g.ld + place];
    T v = (T)NAN;
    if (column >= 0 && column < f.product.out_features) {
        const operand x = operand_of<T>(f.product.x), w = operand_of<T>(f.product.w);
        const T scale = f.product.w.scale ? (T)f.product.w.scale[column] : (T)1;
        T sum = 0;
        const bool infinite = isinf(scale);
        if (infinite) sum = meet_infinity<T>(f.product, row, column, lane);
        int64_t k = infinite ? f.product.in_features : lane * PIECE<T>;
        if constexpr (sizeof(T) == 4)
            if (x.whole == ONE_TERM && x.in_pieces && w.whole == ONE_TERM && w.in_pieces && !f.product.w.scale)
                add_stored(f.product, row, column, k, sum);
        for (; k < f.product.in_features; k += 32 * PIECE<T>) {
            piece<1> x_piece;
            piece<sizeof(T) == 4 ? 3 : 1> w_piece;
            const form x_form = load_piece<T>(x_piece, x, true, row, k, f.product.in_features),
                       w_form = load_piece<T>(w_piece, w, true, column, k, f.product.in_features);
            T xs[PIECE<T>], ws[PIECE<T>];
            values_of<T>(xs, x_piece, x_form, f.product.x.dtype == RF_BFLOAT16);
            values_of<T>(ws, w_piece, w_form, f.product.w.dtype == RF_BFLOAT16);
#pragma unroll
            for (int i = 0; i < PIECE<T>; i++) sum = fma(xs[i], ws[i] * scale, sum);
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        v = sum + ((const T *)f.visitor.bias)[column];
        T saved = 0;
        for (int i = 0; i < f.visitor.chain.num_pre; i++) {
            const rfi_cuda_step &step = f.visitor.chain.steps[i];
            const T a = step.row >= 0 ? ((const T *)f.visitor.row_inputs)[step.row * f.product.batch + row]
                : step.vector >= 0    ? ((const T *)f.visitor.vectors)[step.vector * f.product.out_features + column]
                                      : rfi_typed<T>::a(step);
            v = rfi_typed<T>::apply(step.kind, v, a, rfi_typed<T>::b(step), saved);
            if (step.kind == RF_OP_SAVE) saved = v;
        }
    }
    if (lane == 0) rfi_store_as<T>(f.visitor.y, f.visitor.y_dtype, row * f.visitor.ldy + place, v);
}

/* A block a row; values by their bits. */
template <class T> __global__ void __launch_bounds__(THREADS)
    take_rows(const __grid_constant__ rfi_cuda_take t, T missing) {
    const int64_t from = t.list[blockIdx.x];
    const bool there = from >= 0 && from < t.from_rows;
    for (int64_t i = threadIdx.x; i < t.ld_to; i += THREADS)
        ((T *)t.to)[blockIdx.x * t.ld_to + i] = i >= t.columns ? (T)0
            : there                                            ? ((const T *)t.from)[from * t.ld_from + i]
                                                               : missing;
}

/* A thread a row of one column. */
template <class T> __global__ void __launch_bounds__(THREADS)
    take_values(const __grid_constant__ rfi_cuda_take t, T missing) {
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= t.rows) return;
    const int64_t from = t.list[row];
    ((T *)t.to)[row] = from >= 0 && from < t.from_rows ? ((const T *)t.from)[from * t.ld_from] : missing;
}

template <class T> cudaError_t launch_take(const rfi_cuda_take *take, T missing, cudaStream_t stream) {
    const bool single = take->columns == 1 && take->ld_to == 1;
    const int64_t blocks = single ? rfi_tiles(take->rows, THREADS) : take->rows;
    if (!take->rows) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, single ? take_values<T> : take_rows<T>, *take, missing);
}

/* A thread a row, or a warp. */
template <class P>
cudaError_t launch_rows(void (*kernel)(P), const P *parameters, int64_t rows, int rows_a_block, cudaStream_t stream) {
    const int64_t blocks = rfi_tiles(rows, rows_a_block);
    if (!rows) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    return rfi_launch(kernel, parameters, dim3((unsigned)blocks), THREADS, 0, stream);
}

} // namespace

cudaError_t rfi_cuda_launch_bound(const rfi_cuda_bound *bound, cudaStream_t stream) {
    const bool wide = bound->dtype == RF_FLOAT64;
    if (!bound->top)
        return launch_rows(wide ? bound_by_pick<double> : bound_by_pick<float>, bound, bound->batch, THREADS, stream);
    if (bound->stored)
        return launch_rows(wide ? bound_by_stored<double> : bound_by_stored<float>, bound, bound->batch, 1, stream);
    return launch_rows(wide ? bound_by_peaks<double> : bound_by_peaks<float>, bound, bound->batch, 1, stream);
}

cudaError_t rfi_cuda_launch_diagonal(const rfi_cuda_diagonal *diagonal, cudaStream_t stream) {
    return launch_rows(diagonal->dtype == RF_FLOAT64 ? take_diagonal<double> : take_diagonal<float>, diagonal,
        diagonal->rows, 1, stream);
}

cudaError_t rfi_cuda_launch_found(const rfi_cuda_found *found, cudaStream_t stream) {
    if (!found->top) return launch_rows(store_ranks, found, found->batch, THREADS, stream);
    return launch_rows(
        found->dtype == RF_FLOAT64 ? store_top<double> : store_top<float>, found, found->batch, 1, stream);
}

cudaError_t rfi_cuda_launch_spread(const rfi_cuda_spread *spread, cudaStream_t stream) {
    return launch_rows(spread->dtype == RF_FLOAT64 ? store_spreads<double> : store_spreads<float>, spread,
        spread->fold.product.batch, WARPS, stream);
}

cudaError_t rfi_cuda_launch_gather(const rfi_cuda_gather *g, cudaStream_t stream) {
    return launch_rows(
        g->dtype == RF_FLOAT64 ? gather<double> : gather<float>, g, g->fold.product.batch * g->columns, WARPS, stream);
}

cudaError_t rfi_cuda_launch_take(const rfi_cuda_take *take, cudaStream_t stream) {
    switch (take->dtype) {
    case RF_FLOAT64: return launch_take<uint64_t>(take, UINT64_C(0x7ff8000000000000), stream);
    case RF_INT64: return launch_take<uint64_t>(take, UINT64_MAX, stream);
    case RF_INT32: return launch_take<uint32_t>(take, UINT32_MAX, stream);
    case RF_FLOAT16: return launch_take<uint16_t>(take, 0x7e00, stream);
    case RF_BFLOAT16: return launch_take<uint16_t>(take, 0x7fc0, stream);
    default: return launch_take<uint32_t>(take, 0x7fc00000u, stream);
    }
}
