/* float64 on the tensor cores, or on what stands for them. The pattern of portable_mma.cu: three stages by cp.async, zeros beyond the edges. A row of a stage is
 * padded by four values, so that the four rows by four columns that half a warp reads lie in different banks. */
#include "epilogue.cuh"
#include "launch.cuh"
#include "ptx.cuh"

namespace {

constexpr int ROWS = 128, COLUMNS = 64, DEPTH = 16, STAGES = 3, THREADS = 256, LD = DEPTH + 4;
constexpr int WARP_ROWS = 32, WARP_COLUMNS = 32, M_TILES = WARP_ROWS / 16, N_TILES = WARP_COLUMNS / 8;
constexpr int STAGE = (ROWS + COLUMNS) * LD, TILE_LD = COLUMNS + 4;
constexpr size_t SHARED_BYTES = sizeof(double) * (STAGES * STAGE > ROWS * TILE_LD ? STAGES * STAGE : ROWS * TILE_LD);

template <int TILE_ROWS>
__device__ __forceinline__ void copy_single(double *to, const rfi_cuda_rows &rows, int64_t row0, int64_t count, int64_t k0, int64_t depth) {
    const int k = threadIdx.x % DEPTH;
#pragma unroll
    for (int r = threadIdx.x / DEPTH; r < TILE_ROWS; r += THREADS / DEPTH) {
        const bool there = row0 + r < count && k0 + k < depth;
        const double *from = (const double *)rows.data + (there ? (row0 + r) * rows.ld + k0 + k : 0);
        rfi_copy_async_8(rfi_shared_address(to + r * LD + k), from, there ? 8 : 0);
    }
}

/* Two values at a time where every second one is at an address that is a multiple of 16. */
template <int TILE_ROWS>
__device__ __forceinline__ void copy_tile(double *to, const rfi_cuda_rows &rows, int64_t row0, int64_t count, int64_t k0, int64_t depth) {
    if (rows.ld % 2 || (uintptr_t)rows.data % 16) {
        copy_single<TILE_ROWS>(to, rows, row0, count, k0, depth);
        return;
    }
    const int k = threadIdx.x % (DEPTH / 2) * 2;
    const int bytes = k0 + k >= depth ? 0 : k0 + k + 1 == depth ? 8 : 16;
#pragma unroll
    for (int r = threadIdx.x / (DEPTH / 2); r < TILE_ROWS; r += THREADS / (DEPTH / 2)) {
        const int there = row0 + r < count ? bytes : 0;
        const double *from = (const double *)rows.data + (there ? (row0 + r) * rows.ld + k0 + k : 0);
        rfi_copy_async_16(rfi_shared_address(to + r * LD + k), from, there);
    }
}

__device__ __forceinline__ void copy_stage(const rfi_cuda_fold &p, double *stage, int64_t row0, int64_t column0, int64_t k0) {
    copy_tile<ROWS>(stage, p.x, row0, p.batch, k0, p.in_features);
    copy_tile<COLUMNS>(stage + ROWS * LD, p.w, column0, p.out_features, k0, p.in_features);
}

__device__ __forceinline__ void multiply_stage(double (&sum)[M_TILES][N_TILES][4], const double *stage, int warp_row, int warp_column) {
    const int lane = threadIdx.x % 32;
    const double *x = stage + (warp_row + lane / 4) * LD + lane % 4, *w = stage + (ROWS + warp_column + lane / 4) * LD + lane % 4;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
        double a[M_TILES][4], b[N_TILES][2];
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) a[m][i] = x[(m * 16 + i % 2 * 8) * LD + k + i / 2 * 4];
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) b[n][i] = w[n * 8 * LD + k + i * 4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int n = 0; n < N_TILES; n++) rfi_mma_f64(sum[m][n], a[m], b[n]);
    }
}

__global__ void __launch_bounds__(THREADS, 2) fold_mma_f64(const __grid_constant__ rfi_cuda_fold p) {
    extern __shared__ __align__(16) double ring[];
    const int64_t row0 = (int64_t)blockIdx.x * ROWS, column0 = (int64_t)blockIdx.y * COLUMNS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / (COLUMNS / WARP_COLUMNS) * WARP_ROWS, warp_column = warp % (COLUMNS / WARP_COLUMNS) * WARP_COLUMNS;
    const int64_t steps = (p.in_features + DEPTH - 1) / DEPTH;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) copy_stage(p, ring + s * STAGE, row0, column0, (int64_t)s * DEPTH);
        rfi_copy_commit(); /* empty groups too: the wait below counts them */
    }
    double sum[M_TILES][N_TILES][4] = {};
    int read = 0, write = STAGES - 1;
    for (int64_t step = 0; step < steps; step++) {
        rfi_copy_wait<STAGES - 2>();
        __syncthreads(); /* this stage is there for all; the one before it, written next, is read by all */
        if (step + STAGES - 1 < steps) copy_stage(p, ring + write * STAGE, row0, column0, (step + STAGES - 1) * DEPTH);
        rfi_copy_commit();
        multiply_stage(sum, ring + read * STAGE, warp_row, warp_column);
        read = read + 1 == STAGES ? 0 : read + 1;
        write = write + 1 == STAGES ? 0 : write + 1;
    }
    rfi_copy_wait<0>();
    __syncthreads(); /* the ring is read: the tile takes its place */
    double *tile = ring;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                tile[(warp_row + m * 16 + i / 2 * 8 + lane / 4) * TILE_LD + warp_column + n * 8 + lane % 4 * 2 + i % 2] = sum[m][n][i];
    __syncthreads(); /* the tile is written */
    const int rows = (int)min((int64_t)ROWS, p.batch - row0);
    rfi_fold_tile(p, (const double *)tile, TILE_LD, row0, rows, column0, COLUMNS);
    if (p.tickets) rfi_finish_rows<double>(p, &p.tickets[blockIdx.x], gridDim.y, row0, rows);
}

} // namespace

cudaError_t rfi_cuda_fold_mma_f64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    int64_t row_blocks = rfi_tiles(fold->batch, ROWS), column_blocks = rfi_tiles(fold->out_features, COLUMNS);
    if (row_blocks > INT32_MAX || column_blocks > 65535) return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_mma_f64, fold, dim3((unsigned)row_blocks, (unsigned)column_blocks), THREADS, SHARED_BYTES, stream);
}
