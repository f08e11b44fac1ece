/* SPDX-License-Identifier: MIT */
/* Few rows of float64: plain multiply-adds that read W once, x and W as they are stored, any alignment.
 *
 * A block multiplies a tile of 8 rows x 64 features, or a part of K of it: see sm80/splits.cuh. Its warps share out K
 * by chunks of 16 columns, each with a ring of its own, and wait for nobody before their sums are added, in their
 * order. A lane has two features of all rows. A row of a chunk is 128 bytes, whose pieces of 16 are permuted by the
 * row's number, so that eight rows lie in different banks. */
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "sm80/splits.cuh"

namespace {

constexpr int ROWS = 8, COLUMNS = 64, WARPS = 4, THREADS = WARPS * 32, BLOCKS = 3; /* of a multiprocessor */
constexpr int CHUNK = 16, ROW_BYTES = CHUNK * 8, W_BYTES = COLUMNS * ROW_BYTES, X_BYTES = ROWS * ROW_BYTES, SLOTS = 2,
              SLOT = W_BYTES + X_BYTES, RINGS = WARPS * SLOTS * SLOT;
constexpr int TILE_LD = COLUMNS + 4, EACH = COLUMNS / 32, PIECES = ROW_BYTES / 16;
static_assert(COLUMNS == RFI_FOLD_COLUMNS && RFI_SPLIT_DEPTH % CHUNK == 0, "one state; whole chunks");
static_assert(RINGS >= 8 * (ROWS * TILE_LD + WARPS * ROWS * COLUMNS), "the tile and the sums take the rings' place");

__device__ __forceinline__ int place(int row, int piece) { return row * ROW_BYTES + ((piece ^ (row & 7)) << 4); }

/* A warp's copies of the chunks of an operand: by pieces, a lane the piece `piece` of every fourth row; or, where rows
 * are no whole pieces, by values, half a warp a row: each 32 bytes of memory are asked for once. */
template <int TILE_ROWS> struct chunks {
    static constexpr int STEPS = TILE_ROWS * PIECES / 32;
    const double *from; /* of the first row */
    int64_t ld;
    int rows, lane;
    bool whole; /* pieces may be read at once */
    __device__ __forceinline__ chunks(const rfi_cuda_rows &operand, int64_t first, int64_t rows, int lane)
        : from((const double *)operand.data + first * operand.ld), ld(operand.ld),
          rows((int)min(rows - first, (int64_t)TILE_ROWS)), lane(lane),
          whole((uintptr_t)operand.data % 16 == 0 && operand.ld % 2 == 0) {}
    /* Columns from k on, zeros from `end` on. */
    __device__ __forceinline__ void load(uint32_t to, int64_t k, int64_t end) const {
        if (whole && k + CHUNK <= end) {
            const int row = lane / PIECES, piece = lane % PIECES;
            const double *const source = from + row * ld + k + piece * 2;
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const int r = row + i * (32 / PIECES);
                rfi_copy_async_16(to + place(r, piece), source + i * (32 / PIECES) * ld, r < rows ? 16 : 0);
            }
            return;
        }
        const int row = lane / CHUNK, value = lane % CHUNK;
        const bool there = value < end - k;
        const double *const source = from + row * ld + k + value;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            const int r = row + i * (32 / CHUNK);
            rfi_copy_async_8(
                to + place(r, value / 2) + value % 2 * 8, source + i * (32 / CHUNK) * ld, there && r < rows ? 8 : 0);
        }
    }
};

__device__ __forceinline__ double2 load_two(uint32_t from) {
    double2 v;
    asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(v.x), "=d"(v.y) : "r"(from) : "memory");
    return v;
}

__global__ void __launch_bounds__(THREADS, BLOCKS) fold_few_f64(const __grid_constant__ rfi_cuda_fold p) {
    if (!rfi_is_wanted(p.schedule)) return;
    extern __shared__ __align__(128) unsigned char shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t row0 = (int64_t)blockIdx.x * ROWS, column0 = (int64_t)blockIdx.y * COLUMNS;
    const int rows = (int)min((int64_t)ROWS, p.product.batch - row0);
    const rfi_part part = rfi_part_of(p);
    const int64_t first = part.first, end = part.end;
    const chunks<ROWS> x(p.product.x, row0, p.product.batch, lane);
    const chunks<COLUMNS> w(p.product.w, column0, p.product.out_features, lane);
    const uint32_t ring = rfi_shared_address(shared) + warp * SLOTS * SLOT;
    double sum[EACH][ROWS] = {};
    int64_t asked = first + warp * CHUNK;
    const auto load_w = [&](int slot, int64_t k) {
        if (k < end) w.load(ring + slot * SLOT, k, end);
    };
    const auto load_x = [&](int slot) {
        if (asked < end) x.load(ring + slot * SLOT + W_BYTES, asked, end);
        rfi_copy_commit();
        asked += WARPS * CHUNK;
    };
    /* W is asked for while the kernel in front of this one ends, unless that may be writing it. */
    const bool early = !p.schedule.w_in_flight;
    rfi_release_next();
    if (!early) rfi_wait_for_previous();
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) load_w(slot, asked + slot * WARPS * CHUNK);
    if (early) rfi_wait_for_previous();
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) load_x(slot);
    int slot = 0;
    for (int64_t k0 = first + warp * CHUNK; k0 < end; k0 += WARPS * CHUNK) {
        const uint32_t w_chunk = ring + slot * SLOT, x_chunk = w_chunk + W_BYTES;
        rfi_copy_wait<SLOTS - 1>();
        __syncwarp(); /* the chunk is there */
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            double2 v[EACH];
#pragma unroll
            for (int j = 0; j < EACH; j++) v[j] = load_two(w_chunk + place(lane + 32 * j, piece));
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const double2 xs = load_two(x_chunk + place(r, piece));
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    sum[j][r] = fma(xs.x, v[j].x, sum[j][r]);
                    sum[j][r] = fma(xs.y, v[j].y, sum[j][r]);
                }
            }
        }
        __syncwarp(); /* the chunk is read */
        load_w(slot, asked);
        load_x(slot);
        if (++slot == SLOTS) slot = 0;
    }
    rfi_copy_wait<0>();
    __syncthreads(); /* all rings are read */
    double *const tile = (double *)shared, *const sums = tile + ROWS * TILE_LD;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int j = 0; j < EACH; j++) sums[(warp * ROWS + r) * COLUMNS + lane + 32 * j] = sum[j][r];
    __syncthreads(); /* the sums of all warps are there */
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
        double all = sums[i];
#pragma unroll
        for (int other = 1; other < WARPS; other++) all += sums[other * ROWS * COLUMNS + i];
        tile[i / COLUMNS * TILE_LD + i % COLUMNS] = all;
    }
    __syncthreads(); /* the tile is written */
    if (p.schedule.splits > 1 && !rfi_add_splits<ROWS, COLUMNS, THREADS>(p.schedule, tile, TILE_LD, rows)) return;
    rfi_fold_tile<double>(p, (const double *)tile, TILE_LD, row0, rows, column0, COLUMNS);
    if (p.schedule.tickets) rfi_finish_rows<double>(p, blockIdx.x, blockIdx.y, gridDim.y, row0, rows);
}

} // namespace

cudaError_t rfi_cuda_fold_few_8x64_f64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t row_blocks = rfi_tiles(fold->product.batch, ROWS),
                  column_blocks = rfi_tiles(fold->product.out_features, COLUMNS);
    if (row_blocks > INT32_MAX || column_blocks > 65535 || fold->schedule.splits > 65535 ||
        fold->product.x.dtype != RF_FLOAT64 || fold->product.w.dtype != RF_FLOAT64)
        return cudaErrorInvalidConfiguration;
    return rfi_launch(fold_few_f64, fold,
        dim3((unsigned)row_blocks, (unsigned)column_blocks, (unsigned)fold->schedule.splits), THREADS, RINGS, stream,
        fold->schedule.overlaps);
}
