/* SPDX-License-Identifier: MIT */
/* States of groups of columns, and results from them. Little work beside a fold, in double throughout. */
#include "shards.h"
#include "common/launch.cuh"
#include "common/squares.cuh"

namespace {

enum { THREADS = 128 };

static_assert(sizeof(rfi_cuda_merging) <= 4096 && sizeof(rfi_cuda_grouping) <= 4096, "parameters of a kernel");

/* Every reduction that the device has, as a type. */
template <class F> __device__ __forceinline__ void with_any_reduction(int32_t reduction, F f) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, ...) \
    case number: f(rfi_reduction_##id()); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}

/* ---- groups ---- */

template <int N> using wide_state = rfi_state_of<double, N>;

template <class T, int N> __device__ __forceinline__ wide_state<N> widened(const rfi_state_of<T, N> &s) {
    wide_state<N> w;
    w.m = s.m;
#pragma unroll
    for (int i = 0; i < N; i++) w.t[i] = s.t[i];
    return w;
}

/* The word of a column of the model as that of the layer's. */
template <class T> __device__ __forceinline__ double moved_word(const rfi_cuda_grouping &p, double word) {
    typedef typename rfi_typed<T>::column number;
    return rfi_typed<T>::word((number)(rfi_typed<T>::column_of((T)word) + p.first_column));
}

/* What a row picked, if that is in columns [begin, end). */
template <class T>
__device__ __forceinline__ double picked_in(const rfi_cuda_grouping &p, int64_t row, int64_t begin, int64_t end) {
    if (!p.columns || p.columns[row] < begin || p.columns[row] >= end) return 0;
    return ((const T *)p.picked)[row];
}

/* The state of one of the reductions that rfi_answers has all of. */
template <class T> __device__ __forceinline__ void write_answer(const rfi_cuda_grouping &p, int32_t reduction,
    const wide_state<rfi_answers::TOTALS> &s, double picked, double *to) {
    const bool nan = s.t[2] < 0;
    to[0] = s.m;
    switch (reduction) {
    case RF_OP_LOGSUMEXP: to[1] = s.t[0]; break;
    case RF_OP_ENTROPY: to[1] = s.t[0], to[2] = s.t[1]; break;
    case RF_OP_LOGPROB: to[1] = s.t[0], to[2] = picked; break;
    case RF_OP_PICK: to[0] = 0, to[1] = picked; break;
    case RF_OP_MAX:
    case RF_OP_MIN:
        to[0] = nan ? NAN : reduction == RF_OP_MIN ? -s.m : s.m;
        to[1] = 0;
        break;
    default: /* RF_OP_ARGMAX, RF_OP_ARGMIN */
        to[0] = nan ? NAN : reduction == RF_OP_ARGMIN ? -s.m : s.m;
        to[1] = moved_word<T>(
            p, nan ? (double)rfi_typed<T>::word(rfi_answers::BEHIND - rfi_typed<T>::column_of((T)-s.t[2])) : s.t[2]);
    }
}

/* A warp for each group of each row. */
template <class R, class T>
__device__ __forceinline__ void group_states(const rfi_cuda_grouping &p, int64_t row, int group) {
    constexpr int N = R::TOTALS;
    const int lane = threadIdx.x % 32;
    const int64_t unit = p.irregular && p.irregular[row] ? RFI_FOLD_COLUMNS : p.unit, begin = p.borders[group],
                  end = p.borders[group + 1], first = begin / unit, count = (end - begin + unit - 1) / unit;
    wide_state<N> s[1];
    rfi_empty_state<R>(s[0]);
    for (int64_t i = lane; i < count; i += 32) {
        const wide_state<N> next[1] = {widened(rfi_read_state<T, N>(p.partials, row * p.num_partials + first + i))};
        rfi_join_states<R>(s[0], next);
    }
    __syncwarp();
    rfi_join_lanes<R, 32>(s);
    if (lane) return;
    double *const to = p.states + (row * p.groups + group) * p.words;
    for (int f = 0; f < p.num_folds; f++) {
        double *const own = to + p.folds[f].word;
        if constexpr (std::is_same<R, rfi_answers>::value) {
            write_answer<T>(p, p.folds[f].reduction, s[0], picked_in<T>(p, row, begin, end), own);
        } else {
            own[0] = s[0].m;
#pragma unroll
            for (int i = 0; i < N; i++) own[1 + i] = s[0].t[i];
            if constexpr ((R::FLAGS & RFI_RF_INDEX) != 0) own[1] = moved_word<T>(p, s[0].t[0]);
        }
    }
}

/* Likewise, of squares. A mean that is not finite makes what is joined with it NaN, and so does a NaN. */
template <class T> __device__ __forceinline__ void group_squares(const rfi_cuda_grouping &p, int64_t row, int group) {
    const int64_t first = p.borders[group] / RFI_FOLD_COLUMNS, columns = p.borders[group + 1] - p.borders[group],
                  count = (columns + RFI_FOLD_COLUMNS - 1) / RFI_FOLD_COLUMNS;
    const rfi_square_unit<T> *const units = (const rfi_square_unit<T> *)p.squares.sums + row * p.squares.units + first;
    const rfi_squares s =
        p.squares.magnitudes ? rfi_squares_of(units, count) : rfi_squares_around(units, count, (double)columns);
    if (threadIdx.x % 32) return;
    double *const to = p.states + (row * p.groups + group) * p.words;
    for (int f = 0; f < p.num_folds; f++) {
        double *const own = to + p.folds[f].word;
        own[0] = s.squares == s.squares ? s.centre : s.squares;
        if (p.squares.magnitudes) {
            own[1] = s.squares;
        } else {
            own[1] = (double)columns;
            own[2] = s.squares;
        }
    }
}

template <class T> __global__ void __launch_bounds__(THREADS) group(const __grid_constant__ rfi_cuda_grouping p) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32, row = i / p.groups;
    if (row >= p.batch) return;
    const int group = (int)(i % p.groups);
    if (p.squares.sums) return group_squares<T>(p, row, group);
    rfi_with_reduction(p.reduction, [&](auto of) { group_states<decltype(of), T>(p, row, group); });
}

/* ---- results ---- */

template <class T> __device__ __noinline__ T run_steps(const rfi_cuda_merging &p, int64_t row, T v) {
    T saved = 0;
#pragma unroll 1
    for (int i = 0; i < p.num_steps; i++) {
        const rfi_cuda_number_step &step = p.steps[i];
        T a = (T)step.a;
        if (step.row >= 0) {
            const rfi_cuda_given &given = p.rows[step.row];
            a = rfi_load_as<T>(given.data, given.dtype, row * given.ld);
        }
        v = rfi_typed<T>::apply(step.kind, v, a, (T)step.b, saved);
        if (step.kind == RF_OP_SAVE) saved = v;
    }
    return v;
}

/* The column that a row asks for, or RFI_COLUMN_*. */
__device__ __forceinline__ int64_t asked_column(const rfi_cuda_merging &p, int64_t row) {
    if (p.asks < 0) return RFI_COLUMN_OUTSIDE;
    const rfi_cuda_given &given = p.rows[p.asks];
    const int64_t i = row * given.ld,
                  column =
                      given.dtype == RF_INT32 ? ((const int32_t *)given.data)[i] : ((const int64_t *)given.data)[i];
    if (column == p.ignore) return RFI_COLUMN_IGNORED;
    return column >= 0 && column < p.total_columns ? column : RFI_COLUMN_OUTSIDE;
}

/* Calls f with the words of every group's state, in the order of the columns, whatever parts they lie in. */
template <class F> __device__ __forceinline__ void each_group(const rfi_cuda_merging &p, int64_t row, F f) {
#pragma unroll 1
    for (int i = 0; i < p.num_runs; i++) {
        const int64_t groups = p.runs[i].groups, count = p.runs[i].count, stride = p.runs[i].stride;
        const double *from = p.runs[i].states + row * groups * p.words + p.word;
        /* Of many devices each has one group: the loop with more turns is the one whose loads overlap. */
        if (groups == 1) {
#pragma unroll 8
            for (int64_t c = 0; c < count; c++) f(from + c * stride);
            continue;
        }
#pragma unroll 1
        for (int64_t c = 0; c < count; c++, from += stride) {
#pragma unroll 4
            for (int64_t g = 0; g < groups; g++) f(from + g * p.words);
        }
    }
}

/* The peak of all groups first, so that nothing waits for the join before it. */
template <class R, class T> __device__ __forceinline__ void merge_row(const rfi_cuda_merging &p, int64_t row) {
    constexpr int N = R::TOTALS;
    wide_state<N> all;
    rfi_empty_state<R>(all);
    each_group(p, row, [&](const double *words) { all.m = R::peak(all.m, words[0]); });
    each_group(p, row, [&](const double *words) {
        wide_state<N> s;
        s.m = words[0];
#pragma unroll
        for (int k = 0; k < N; k++) s.t[k] = words[1 + k];
        rfi_carry<R>(s, all.m);
#pragma unroll
        for (int k = 0; k < N; k++) all.t[k] = R::join(k, all.t[k], s.t[k]);
    });
    const T v = (T)R::finish(all.m, all.t, p.count, asked_column(p, row));
    if constexpr ((R::FLAGS & RFI_RF_INDEX) != 0) ((int64_t *)p.y)[row * p.ldy] = rfi_typed<T>::column_of(v);
    else rfi_store_as<T>(p.y, p.y_dtype, row * p.ldy, run_steps(p, row, v));
}

/* As lib/states.h joins them. A row's mean is known before the distances from it. */
template <class T> __device__ double spread_of(const rfi_cuda_merging &p, int64_t row) {
    double mean = 0, count = 0, squares = 0;
    each_group(p, row, [&](const double *words) {
        if (!(words[1] > 0)) return;
        count += words[1];
        mean += (words[0] - mean) * (words[1] / count);
    });
    each_group(
        p, row, [&](const double *words) { squares += words[2] + rfi_moved_squares<T>(words[1], words[0] - mean); });
    return squares / p.count;
}

template <class T> __device__ double norm_of(const rfi_cuda_merging &p, int64_t row) {
    double largest = 0, squares = 0;
    each_group(p, row, [&](const double *words) { largest = words[0] <= largest ? largest : words[0] + largest * 0; });
    const double down = rfi_typed<double>::down(largest);
    each_group(p, row, [&](const double *words) {
        const double less = down / rfi_typed<double>::down(words[0]);
        squares += words[1] * less * less;
    });
    return largest < INFINITY ? sqrt(squares) / down : largest;
}

template <class T> __global__ void __launch_bounds__(THREADS) merge(const __grid_constant__ rfi_cuda_merging p) {
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= p.batch) return;
    if (p.reduction == RF_OP_VAR || p.reduction == RF_OP_STD || p.reduction == RF_OP_NORM) {
        const double found = p.reduction == RF_OP_NORM ? norm_of<T>(p, row) : spread_of<T>(p, row);
        rfi_store_as<T>(
            p.y, p.y_dtype, row * p.ldy, run_steps(p, row, (T)(p.reduction == RF_OP_STD ? sqrt(found) : found)));
        return;
    }
    with_any_reduction(p.reduction, [&](auto of) { merge_row<decltype(of), T>(p, row); });
}

__global__ void own_columns(const __grid_constant__ rfi_cuda_own_columns p) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= p.count) return;
    const int64_t column = p.columns[i];
    p.columns[i] = column >= p.first && column - p.first < p.width ? column - p.first : RFI_COLUMN_OUTSIDE;
}

template <class P> cudaError_t launch(void (*kernel)(P), const P *parameters, int64_t threads, cudaStream_t stream) {
    const int64_t blocks = (threads + THREADS - 1) / THREADS;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    return blocks ? rfi_launch(kernel, parameters, dim3((unsigned)blocks), THREADS, 0, stream) : cudaSuccess;
}

} // namespace

cudaError_t rfi_cuda_launch_grouping(const rfi_cuda_grouping *grouping, cudaStream_t stream) {
    return launch(
        grouping->wide ? group<double> : group<float>, grouping, grouping->batch * grouping->groups * 32, stream);
}

cudaError_t rfi_cuda_launch_merging(const rfi_cuda_merging *merging, cudaStream_t stream) {
    return launch(merging->wide ? merge<double> : merge<float>, merging, merging->batch, stream);
}

cudaError_t rfi_cuda_launch_own_columns(const rfi_cuda_own_columns *own, cudaStream_t stream) {
    return launch(own_columns, own, own->count, stream);
}
