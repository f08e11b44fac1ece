/* SPDX-License-Identifier: MIT */
/* What the units of squares that a fold has written (rfi_cuda_squares) come to, by a warp in an order that depends on
 * their number alone. All lanes get the same. */
#ifndef ROWFOLD_CUDA_SQUARES_CUH
#define ROWFOLD_CUDA_SQUARES_CUH

#include "common/states.cuh"

template <class Join> static __device__ __forceinline__ double rfi_join_warp(double v, Join join) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) v = join(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

static __device__ __forceinline__ double rfi_sum_of_warp(double v) {
    return rfi_join_warp(v, [](double a, double b) { return a + b; });
}

/* What so many columns' squared distance from one number to another comes to: beyond the type's range as within a
 * unit. */
template <class T> static __device__ __forceinline__ double rfi_moved_squares(double count, double distance) {
    const double square = distance * distance;
    return (T)square < (T)INFINITY ? count * square : (double)(T)square;
}

/* The mean of n columns, or their largest magnitude, and the squares of the distances from it, or of the columns
 * brought down by it. */
struct rfi_squares {
    double centre, squares;
};

/* Of each unit the distances from its own mean, and those of the means, pairwise and so with no square of a sum
 * subtracted but for that of what rounding left of a unit's. Means are taken from the first unit's on, so that equal
 * columns have no distance, and by quarters, which do not overflow. */
template <class T>
static __device__ rfi_squares rfi_squares_around(const rfi_square_unit<T> *units, int64_t count, double n) {
    const auto moved = [&](const rfi_square_unit<T> &u) {
        return 0.25 * (double)u.centre - 0.25 * (double)units[0].centre +
            (u.squares < INFINITY ? 0.25 * (double)u.sum / (double)u.count : 0);
    };
    double mean = 0, squares = 0;
    for (int64_t i = threadIdx.x % 32; i < count; i += 32)
        if (units[i].count > 0) mean += (double)units[i].count / n * moved(units[i]);
    mean = rfi_sum_of_warp(mean);
    for (int64_t i = threadIdx.x % 32; i < count; i += 32) {
        const rfi_square_unit<T> u = units[i];
        if (!(u.count > 0)) continue;
        squares += u.squares;
        if (!(u.squares < INFINITY)) continue;
        squares -= fmin((double)u.sum * ((double)u.sum / (double)u.count), (double)u.squares);
        squares += rfi_moved_squares<T>((double)u.count, 4 * (moved(u) - mean));
    }
    return {4 * mean + (double)units[0].centre, rfi_sum_of_warp(squares)};
}

template <class T> static __device__ rfi_squares rfi_squares_of(const rfi_square_unit<T> *units, int64_t count) {
    double largest = 0, squares = 0;
    for (int64_t i = threadIdx.x % 32; i < count; i += 32) largest = fmax(largest, (double)units[i].centre);
    largest = rfi_join_warp(largest, [](double a, double b) { return fmax(a, b); });
    const double down = rfi_typed<T>::down((T)largest);
    for (int64_t i = threadIdx.x % 32; i < count; i += 32) {
        const rfi_square_unit<T> u = units[i];
        const double less = down / rfi_typed<T>::down(u.centre);
        if (u.count > 0) squares += u.squares * less * less;
    }
    return {largest, rfi_sum_of_warp(squares)};
}

#endif
