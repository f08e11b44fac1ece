/* A sum or mean of affine columns as one dot product a row: see lib/collapse.h. Sums in double; reads x once. */
#include "epilogue.cuh"
#include "launch.cuh"

namespace {

constexpr int THREADS = 256, ROWS = 4, WARPS = THREADS / 32; /* a block's rows share what it reads of the summed weights */

/* Four values of a row from k on. `whole`: they are all there, at an address that is a multiple of their size. */
__device__ __forceinline__ void load_four(double (&v)[4], const rfi_cuda_rows &x, int64_t row, int64_t k, int64_t depth, bool whole) {
    const int64_t at = row * x.ld + k;
    if (whole && x.dtype == RF_FLOAT32) {
        const float4 f = *(const float4 *)((const float *)x.data + at);
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else if (whole && x.dtype != RF_FLOAT64) {
        const uint2 two = *(const uint2 *)((const uint16_t *)x.data + at);
        const uint16_t bits[4] = {(uint16_t)two.x, (uint16_t)(two.x >> 16), (uint16_t)two.y, (uint16_t)(two.y >> 16)};
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = rfi_load_as<double>(bits, x.dtype, i);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = k + i < depth ? rfi_load_as<double>(x.data, x.dtype, at + i) : 0;
    }
}

struct row_sum {
    double sum, largest, odd; /* odd: NaN once a value is not finite */
};

__device__ __forceinline__ row_sum add(row_sum a, row_sum b) { return row_sum{a.sum + b.sum, fmax(a.largest, b.largest), a.odd + b.odd}; }

/* Combines the threads' sums of each row in a fixed order; thread 0 has them then. */
__device__ void add_all(row_sum (&row)[ROWS], row_sum (*scratch)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        for (int step = 1; step < 32; step *= 2) {
            row_sum other = {__shfl_xor_sync(~0u, row[r].sum, step), __shfl_xor_sync(~0u, row[r].largest, step), __shfl_xor_sync(~0u, row[r].odd, step)};
            row[r] = add(row[r], other);
        }
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32][r] = row[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        row[r] = scratch[0][r];
        for (int w = 1; w < WARPS; w++) row[r] = add(row[r], scratch[w][r]);
    }
}

/* A row with infinities or NaN: the result, from what each of them does to the columns, and the largest finite magnitude. All threads call it. */
__device__ __noinline__ double special_row(const rfi_cuda_collapse &p, int64_t row, double *largest) {
    int up = 0, down = 0;
    double top = 0;
    __shared__ double tops[WARPS];
    for (int64_t k = threadIdx.x; k < p.fold.in_features; k += THREADS) {
        const double v = rfi_load_as<double>(p.fold.x.data, p.fold.x.dtype, row * p.fold.x.ld + k);
        if (fabs(v) < (double)INFINITY) {
            top = fmax(top, fabs(v));
            continue;
        }
        const int direction = v != v ? 0 : v > 0 ? p.sign[k] : -p.sign[k];
        up |= direction >= 0;
        down |= direction <= 0;
    }
    for (int step = 1; step < 32; step *= 2) top = fmax(top, __shfl_xor_sync(~0u, top, step));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    up = __syncthreads_or(up);
    down = __syncthreads_or(down);
    for (int w = 0; w < WARPS; w++) top = fmax(top, tops[w]);
    __syncthreads(); /* the tops are read */
    *largest = top;
    return up && down ? (double)NAN : up ? (double)INFINITY : -(double)INFINITY;
}

/* A row whose logits or partial sums might overflow, as the chain says it, column by column: such rows are rare. All threads call it. */
template <class T> __device__ __noinline__ double full_row(const rfi_cuda_collapse &p, int64_t row) {
    const rfi_cuda_fold &f = p.fold;
    __shared__ double sums[WARPS];
    const int lane = threadIdx.x % 32;
    double sum = 0;
    for (int64_t j = threadIdx.x / 32; j < f.out_features; j += WARPS) {
        T dot = 0;
        for (int64_t k = lane; k < f.in_features; k += 32)
            dot = fma(rfi_load_as<T>(f.x.data, f.x.dtype, row * f.x.ld + k), rfi_load_rows<T>(f.w, j, k), dot);
        for (int step = 1; step < 32; step *= 2) dot += __shfl_xor_sync(~0u, dot, step);
        T v = dot + ((const T *)f.bias)[j], saved = 0;
        for (int i = 0; i < f.chain.num_pre; i++) {
            const rfi_cuda_step &step = f.chain.steps[i];
            const T a = step.vector < 0 ? rfi_typed<T>::a(step) : ((const T *)f.vectors)[step.vector * f.out_features + j];
            v = rfi_typed<T>::apply(step.kind, v, a, rfi_typed<T>::b(step), saved);
            if (step.kind == RF_OP_SAVE) saved = v;
        }
        sum += v;
    }
    if (lane == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < WARPS; w++) sum += sums[w];
    __syncthreads(); /* the sums are read */
    return sum / p.divisor;
}

template <class T> __global__ void __launch_bounds__(THREADS) collapse_rows(const __grid_constant__ rfi_cuda_collapse p) {
    __shared__ row_sum scratch[WARPS][ROWS];
    const int64_t row0 = (int64_t)blockIdx.x * ROWS, depth = p.fold.in_features;
    const int rows = (int)min((int64_t)ROWS, p.fold.batch - row0);
    row_sum row[ROWS] = {};
    for (int64_t k = threadIdx.x * 4; k < depth; k += THREADS * 4) {
        double w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = k + i < depth ? p.weight_sum[k + i] : 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            double v[4];
            load_four(v, p.fold.x, row0 + min(r, rows - 1), k, depth, p.aligned && k + 4 <= depth);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                row[r].sum = fma(v[i], w[i], row[r].sum);
                row[r].largest = fmax(row[r].largest, fabs(v[i]));
                row[r].odd += v[i] * 0;
            }
        }
    }
    add_all(row, scratch);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= rows) break; /* the same for all threads, like every branch below */
        double value = (row[r].sum + p.constant) / p.divisor, largest = row[r].largest;
        if (row[r].odd != 0) value = special_row(p, row0 + r, &largest);
        if (!(largest * p.slope + p.offset <= p.limit)) value = full_row<T>(p, row0 + r);
        if (threadIdx.x == 0) rfi_finish_row<T>(p.fold, row0 + r, (T)value);
    }
}

} // namespace

cudaError_t rfi_cuda_launch_collapse(const rfi_cuda_collapse *collapse, cudaStream_t stream) {
    const int64_t blocks = rfi_tiles(collapse->fold.batch, ROWS);
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    auto kernel = collapse->fold.x.dtype == RF_FLOAT64 ? collapse_rows<double> : collapse_rows<float>;
    return rfi_launch(kernel, collapse, dim3((unsigned)blocks), THREADS, 0, stream);
}
