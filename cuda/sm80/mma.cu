/* SPDX-License-Identifier: MIT */
/* Tensor-core kernels for sm_80 and newer: x and W as 16-bit values, or in one or two binary16 terms, sums in float32.
 *
 * Of two terms a side three products are taken, low * high + high * low + high * high, of three a side the six largest;
 * with one term on a side, as many as on the other. The tensor cores add with few bits more than float32 has and
 * truncate, so a long sum drifts. With several products every PROMOTE_STEPS steps therefore start from zero, the small
 * products first, and are then added to the sums, rounded. One product of 16-bit values does so every promote_depth
 * values, and the sums so far wait outside the registers.
 *
 * Three stages or more of x and W tiles are on their way in shared memory by cp.async. Within a row of a stage the
 * 16-byte pieces are permuted by the row's number, so that the eight rows of an 8 x 8 matrix lie in different banks. 96
 * KB of stages fit every device from sm_80 on.
 *
 * With one product shared memory is the limit, so a warp has 64 x 64 values, which read the fewest bytes a
 * multiplication, and all the registers that there are. It loads the fragments of one step while it multiplies those of
 * the one before; the copies of a stage start in two places. Both keep the tensor cores busy. */
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "sm80/splits.cuh"
#include "sm80/stages.cuh"

namespace {

/* Steps of 16 values of K that several products sum up by themselves; see rfi_unbiased. */
constexpr int PROMOTE_STEPS = 2;

/* Values of K that one product sums up before the sums are rounded to float32 properly. On positive data, the worst,
 * one of n values drifts by 0.10 n (binary16) or 0.043 n (bfloat16, whose products are short) times 2^-24 of itself,
 * measured on sm_90. These depths keep that below 2.45 sqrt(n), six standard deviations of what rounding does to a
 * float32 sum of as many values. */
template <class Element> constexpr int promote_depth = 512;
template <> constexpr int promote_depth<__nv_bfloat16> = 2048;

/* Bytes of shared memory that a block has wherever this code runs. Machine code for 9.0 runs nowhere else. */
#if defined RFI_NO_PTX_90 && defined __CUDA_ARCH__ && __CUDA_ARCH__ == 900
constexpr int SHARED_HERE = 227 * 1024;
#else
constexpr int SHARED_HERE = 0;
#endif

/* DEPTH: values of K in a stage. RING: bytes of all stages, at most. BLOCKS: a multiprocessor at least; that and the
 * warps decide the registers a thread has. ASIDE_SHARED: sums wait in shared memory, else in local memory. BELOW: bytes
 * of shared memory; where a block has as many, another shape takes this one's place. */
template <class Element, int X_TERMS, int W_TERMS, int ROWS, int COLUMNS, int WARPS_M, int WARPS_N, int DEPTH, int RING,
    int BLOCKS, bool ASIDE_SHARED, int BELOW = INT32_MAX>
struct shape {
    typedef Element element;
    static constexpr bool runs_here = BELOW > SHARED_HERE;
    static constexpr int item = 2;
    static constexpr bool small = ROWS <= 64; /* K may be in parts; the tile of logits is one */
    static constexpr int x_terms = X_TERMS, w_terms = W_TERMS, rows = ROWS, columns = COLUMNS, warps_m = WARPS_M,
                         warps_n = WARPS_N;
    static constexpr int threads = WARPS_M * WARPS_N * 32, blocks = BLOCKS;
    static constexpr bool single = X_TERMS + W_TERMS == 2;
    static constexpr int depth = DEPTH, row_bytes = depth * 2, pieces = row_bytes / 16;
    static constexpr int x_bytes = ROWS * row_bytes, w_bytes = COLUMNS * row_bytes,
                         stage_bytes = X_TERMS * x_bytes + W_TERMS * w_bytes;
    static constexpr int stages = RING / stage_bytes < 8 ? RING / stage_bytes : 8, ring_bytes = stages * stage_bytes;
    static constexpr int m_tiles = ROWS / WARPS_M / 16, n_tiles = COLUMNS / WARPS_N / 8;
    static constexpr bool takes_blocks = small && single && COLUMNS == RFI_BLOCK_ROWS && depth == 64; /* of W */
    static constexpr bool aside_shared = ASIDE_SHARED;
    static constexpr int aside_bytes = aside_shared ? threads * m_tiles * n_tiles * 16 : 0;
    static constexpr int tile_ld = COLUMNS + 4, row_tile_bytes = tile_ld * 4; /* logits in shared memory */
    static constexpr int tile_rows = ring_bytes >= ROWS * row_tile_bytes || ROWS < 128 ? ROWS
        : ring_bytes >= ROWS / 2 * row_tile_bytes                                      ? ROWS / 2
                                                                                       : ROWS / 4; /* at a time */
    static constexpr int shared_bytes =
        ring_bytes + aside_bytes > tile_rows *row_tile_bytes ? ring_bytes + aside_bytes : tile_rows *row_tile_bytes;
    static_assert(depth % (16 * PROMOTE_STEPS) == 0, "a stage is whole sums");
    static_assert(stages >= 3 && n_tiles % 2 == 0 && tile_rows % (ROWS / WARPS_M) == 0,
        "matrices of W are loaded in pairs of tiles");
    static_assert(!small || tile_rows == ROWS, "parts of a whole tile");
};

/* Byte offset of 16-byte piece `piece` of row `row` in a tile. The permutation depends on the row modulo 8 alone. */
template <class S> __device__ __forceinline__ int place(int row, int piece) {
    const int line = S::row_bytes == 128 ? row & 7 : (row >> 1) & 3;
    return row * S::row_bytes + ((piece ^ line) << 4);
}

/* The copies of a thread. Their number does not depend on K: behind its end they read nothing. */
template <class S> struct pipeline {
    source<S> x, w;
    uint32_t ring, mine; /* shared addresses: of the first stage, and of the thread's first piece in it */
    int read, write;     /* offsets in the ring of the stage to multiply and the one to copy */
    int next, whole;     /* the number of the stage to copy, and of those that K fills */
    int last_bytes;      /* of the thread's pieces in the stage behind those */
    int end;             /* stages of a level */
    int64_t back;        /* bytes from the second level of x to the first; 0: there is no level to come */
    int64_t w_step;      /* bytes from a stage of W to the next */
    uint32_t there;      /* of the thread's rows of x, a bit for each that the level has */
};

template <class S> __device__ __forceinline__ int behind(int offset) {
    return offset + S::stage_bytes == S::stages * S::stage_bytes ? 0 : offset + S::stage_bytes;
}

/* Starts the copy of an operand's part of the next stage, of the rows in `there`, and moves on by `step` bytes. */
template <class S, int ROWS, int TERMS> __device__ __forceinline__ void copy_operand(
    const pipeline<S> &pipe, source<S> &from, uint32_t to, int64_t step, uint32_t there = UINT32_MAX) {
    const int bytes = pipe.next < pipe.whole ? 16 : pipe.next == pipe.whole ? pipe.last_bytes : 0;
#pragma unroll
    for (int t = 0; t < TERMS; t++) {
        copy_tile<S, ROWS>(to + t * ROWS * S::row_bytes, from.term[t], from.stride, from.rows, bytes, there);
        from.term[t] += step;
    }
}

template <class S> __device__ __forceinline__ void copy_x(pipeline<S> &pipe) {
    copy_operand<S, S::rows, S::x_terms>(pipe, pipe.x, pipe.mine + pipe.write, S::row_bytes, pipe.there);
}

/* Completes the stage. */
template <class S> __device__ __forceinline__ void copy_w(pipeline<S> &pipe) {
    const int64_t step = S::takes_blocks ? pipe.w_step : S::row_bytes;
    copy_operand<S, S::columns, S::w_terms>(pipe, pipe.w, pipe.mine + pipe.write + S::x_terms * S::x_bytes, step);
    rfi_copy_commit();
    pipe.write = behind<S>(pipe.write);
    if (++pipe.next < pipe.end || !pipe.back) return;
    /* The first level follows the second, with the same W. */
#pragma unroll
    for (int t = 0; t < S::x_terms; t++) pipe.x.term[t] -= pipe.back + (int64_t)pipe.end * S::row_bytes;
#pragma unroll
    for (int t = 0; t < S::w_terms; t++) pipe.w.term[t] -= pipe.end * step;
    pipe.next = 0;
    pipe.back = 0;
    pipe.there = UINT32_MAX;
}

/* Fragments, 16 of K at a time. `tile` is the address of the lane's row and piece in the warp's part of a tile at k = 0
 * (see lane_x, lane_w); the pieces behind it differ in bits that the permutation leaves to an exclusive or, since rows
 * begin at multiples of their size. */
template <class S> __device__ __forceinline__ void load_x(uint32_t (&x)[S::m_tiles][4], uint32_t tile, int k16) {
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++) rfi_load_matrices(x[m], (tile ^ (k16 << 5)) + m * 16 * S::row_bytes);
}

template <class S> __device__ __forceinline__ void load_w(uint32_t (&w)[S::n_tiles / 2][4], uint32_t tile, int k16) {
#pragma unroll
    for (int n = 0; n < S::n_tiles / 2; n++) rfi_load_matrices(w[n], (tile ^ (k16 << 5)) + n * 16 * S::row_bytes);
}

template <class S> __device__ __forceinline__ int lane_x(int warp_row) {
    const int lane = threadIdx.x % 32;
    return place<S>(warp_row + lane % 16, lane / 16);
}

template <class S> __device__ __forceinline__ int lane_w(int warp_column) {
    const int lane = threadIdx.x % 32;
    return place<S>(warp_column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

template <class S> struct fragments {
    uint32_t x[S::m_tiles][4], w[S::n_tiles / 2][4];
};

template <class S> __device__ __forceinline__ void load_fragments(fragments<S> &f, uint32_t x, uint32_t w, int k16) {
    load_x<S>(f.x, x, k16);
    load_w<S>(f.w, w, k16);
}

template <class S> using sums = float[S::m_tiles][S::n_tiles][4];

template <class S> __device__ __forceinline__ void multiply_fragments(sums<S> &sum, const fragments<S> &f) {
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int n = 0; n < S::n_tiles; n++)
            rfi_mma<typename S::element>(sum[m][n], f.x[m], f.w[n / 2][n % 2 * 2], f.w[n / 2][n % 2 * 2 + 1]);
}

/* part += the products of PROMOTE_STEPS steps of one stage from `first` on, small ones first. */
template <class S>
__device__ __forceinline__ void multiply_steps(sums<S> &part, uint32_t stage, int x_place, int w_place, int first) {
    const uint32_t x_first = stage + x_place, w_first = stage + S::x_terms * S::x_bytes + w_place;
    constexpr int order = S::x_terms > S::w_terms
        ? S::x_terms
        : S::w_terms; /* products of terms i and j are taken where i + j is below */
    fragments<S> f;
#pragma unroll
    for (int sum = order - 1; sum >= 0; sum--)
#pragma unroll
        for (int k = first; k < first + PROMOTE_STEPS; k++)
#pragma unroll
            for (int i = min(sum, S::x_terms - 1); i >= 0; i--) {
                if (sum - i >= S::w_terms) continue;
                load_fragments<S>(f, x_first + i * S::x_bytes, w_first + (sum - i) * S::w_bytes, k);
                multiply_fragments<S>(part, f);
            }
}

/* From the second level of x to the first: what is summed up so far, in units of the first. `row0` is the warp's first
 * row. */
template <class S> __device__ __forceinline__ void change_level(const rfi_cuda_product &p, sums<S> &sum, int64_t row0) {
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = row0 + m * 16 + half * 8 + threadIdx.x % 32 / 4;
            const float ratio = row < p.batch ? p.levels.ratio[row] : 0;
#pragma unroll
            for (int n = 0; n < S::n_tiles; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) sum[m][n][i] = ratio != 0 ? sum[m][n][i] * ratio : 0;
        }
}

/* Whether a row of a block's has two levels; all of its threads ask. */
__device__ __forceinline__ bool is_wide(const rfi_cuda_product &p, int64_t row0, int rows) {
    if (!p.levels.wide) return false;
    bool wide = false;
    for (int r = threadIdx.x; r < rows; r += blockDim.x) wide |= row0 + r < p.batch && p.levels.wide[row0 + r];
    return __syncthreads_or(wide);
}

/* Several products: total += x times W, PROMOTE_STEPS steps by themselves. */
template <class S, class Change> __device__ __forceinline__ void multiply_terms(
    pipeline<S> &pipe, int stages, int x_place, int w_place, sums<S> &total, int change_at, Change change) {
    for (int stage = 0; stage < stages; stage++) {
        if (stage == change_at) change(total);
        rfi_copy_wait<S::stages - 2>();
        __syncthreads(); /* this stage is there for all; the one before it, written next, is read by all */
        copy_x<S>(pipe);
        copy_w<S>(pipe);
#pragma unroll
        for (int first = 0; first < S::depth / 16; first += PROMOTE_STEPS) {
            sums<S> part = {};
            multiply_steps<S>(part, pipe.ring + pipe.read, x_place, w_place, first);
#pragma unroll
            for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
                for (int n = 0; n < S::n_tiles; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) total[m][n][i] += part[m][n][i];
        }
        pipe.read = behind<S>(pipe.read);
    }
}

/* sum += what waits in `aside`, if `more`. If `stays`, that is where the result goes, and sum starts anew. */
template <class S> __device__ __forceinline__ void put_aside(sums<S> &sum, float4 *aside, bool more, bool stays) {
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int n = 0; n < S::n_tiles; n++) {
            float (&s)[4] = sum[m][n];
            float4 &a = aside[(m * S::n_tiles + n) * (S::aside_shared ? S::threads : 1)];
            if (more) s[0] += a.x, s[1] += a.y, s[2] += a.z, s[3] += a.w;
            if (!stays) continue;
            a = make_float4(s[0], s[1], s[2], s[3]);
            s[0] = s[1] = s[2] = s[3] = 0;
        }
}

/* One product: sum += x times W. The fragments of a step are loaded during the one before, across stages too. */
template <class S, class Change> __device__ __forceinline__ void multiply_single(pipeline<S> &pipe, int stages,
    int x_place, int w_place, float4 *aside, sums<S> &sum, int change_at, Change change) {
    constexpr int steps = S::depth / 16;
    static_assert(steps % 2 == 0, "two sets of fragments take turns");
    const uint32_t x_first = pipe.ring + x_place, w_first = pipe.ring + S::x_bytes + w_place;
    constexpr int promote_stages = promote_depth<typename S::element> / S::depth;
    bool waiting = false;
    int until = promote_stages;
    fragments<S> f[2];
    rfi_copy_wait<S::stages - 2>();
    __syncthreads(); /* the first stage is there for all */
    load_fragments<S>(f[0], x_first, w_first, 0);
    copy_x<S>(pipe);
    for (int stage = 0; stage < stages; stage++) {
        if (stage == change_at) {
            put_aside<S>(sum, aside, waiting, false);
            waiting = false;
            until = promote_stages;
            change(sum);
        }
#pragma unroll
        for (int k = 0; k < steps; k++) {
            if (k == steps - 1) {
                rfi_copy_wait<S::stages - 2>();
                __syncthreads(); /* the next stage is there for all, if there is one; this one, written next, is read by
                                    all */
                pipe.read = behind<S>(pipe.read);
            }
            load_fragments<S>(f[(k + 1) % 2], x_first + pipe.read, w_first + pipe.read, (k + 1) % steps);
            if (k == 0) copy_w<S>(pipe);
            if (k == steps - 1) copy_x<S>(pipe);
            multiply_fragments<S>(sum, f[k % 2]);
        }
        if (--until == 0) {
            put_aside<S>(sum, aside, waiting, true);
            waiting = true;
            until = promote_stages;
        }
    }
    put_aside<S>(sum, aside, waiting, false);
}

/* The sums to the tile in shared memory, in units of x and W where they are whole. Parts of K are not: infinities in a
 * row of terms are in its scale, which would make NaN of the parts without one. */
template <class S> __device__ __forceinline__ void store_tile(const rfi_cuda_product &p, float *tile,
    const sums<S> &total, int64_t row0, int64_t column0, int warp_row, int warp_column, bool whole) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < S::n_tiles; n++) {
        const int c = warp_column + n * 8 + lane % 4 * 2;
        float w_scale[2] = {1, 1};
        if (whole && p.w.scale)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (column0 + c + i < p.out_features) w_scale[i] = p.w.scale[column0 + c + i];
#pragma unroll
        for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = warp_row + m * 16 + half * 8 + lane / 4;
                const float x_scale = whole && p.x.scale && row0 + r < p.batch ? p.x.scale[row0 + r] : 1;
                const float a = total[m][n][half * 2], b = total[m][n][half * 2 + 1];
                float2 v = {rfi_unscale(S::single ? a : rfi_unbiased(a), x_scale, w_scale[0]),
                    rfi_unscale(S::single ? b : rfi_unbiased(b), x_scale, w_scale[1])};
                *(float2 *)&tile[r * S::tile_ld + c] = v;
            }
    }
}

/* What the parts of K come to, in the tile, in units of x and W. By all threads, before and after a barrier. */
template <class S> __device__ __forceinline__ void scale_tile(
    const rfi_cuda_product &p, float *tile, int64_t row0, int rows, int64_t column0) {
    if (!p.x.scale && !p.w.scale) return;
    for (int i = threadIdx.x; i < rows * S::columns; i += S::threads) {
        const int r = i / S::columns, c = i % S::columns;
        float &v = tile[r * S::tile_ld + c];
        if (column0 + c < p.out_features)
            v = rfi_unscale(v, p.x.scale ? p.x.scale[row0 + r] : 1, p.w.scale ? p.w.scale[column0 + c] : 1);
    }
    __syncthreads(); /* all are scaled */
}

template <class S> __global__ void __launch_bounds__(S::threads, S::blocks)
    fold_mma(const __grid_constant__ rfi_cuda_fold p) {
    if (!S::runs_here) { /* what is never launched is not compiled */
        __trap();
        return;
    }
    if (!rfi_is_wanted(p.schedule)) return;
    extern __shared__ __align__(128) unsigned char shared[];
    const int64_t row0 = (int64_t)blockIdx.x * S::rows, column0 = (int64_t)blockIdx.y * S::columns;
    const int warp = threadIdx.x / 32, warp_row = warp / S::warps_n * (S::rows / S::warps_m),
              warp_column = warp % S::warps_n * (S::columns / S::warps_n);
    const uint32_t ring = rfi_shared_address(shared);
    const auto [first_column, end_column] = S::small ? rfi_part_of(p) : rfi_part{0, p.product.depth};
    const int64_t depth = end_column - first_column;
    pipeline<S> pipe = {
        .x = source_of<S>(p.product.x, row0, p.product.batch),
        .w = source_of<S>(p.product.w, column0, p.product.out_features),
        .ring = ring,
        .mine = ring + place<S>(threadIdx.x / S::pieces, threadIdx.x % S::pieces),
        .whole = (int)(depth / S::depth),
        .last_bytes = max(0, min(16, ((int)(depth % S::depth) - (int)threadIdx.x % S::pieces * 8) * 2)),
        .w_step = S::row_bytes,
        .there = UINT32_MAX,
    };
    pipe.end = pipe.whole + (depth % S::depth > 0);
    if (S::small) {
#pragma unroll
        for (int t = 0; t < S::x_terms; t++) pipe.x.term[t] += first_column * S::item;
#pragma unroll
        for (int t = 0; t < S::w_terms; t++) pipe.w.term[t] += first_column * S::item;
    }
    if (S::takes_blocks && p.product.w.panel) { /* a block is a stage: what lies where is the same */
        pipe.w.term[0] = (const char *)p.product.w.data + (pipe.mine - ring) +
            rfi_place(S::depth, p.product.w.ld, column0, first_column) * S::item;
        pipe.w.stride = source<S>::step * S::row_bytes;
        pipe.w_step = p.product.w.ld * S::row_bytes;
    }
    rfi_wait_for_previous();
    const bool wide = is_wide(p.product, row0, S::rows);
    if (wide) {
        pipe.back = p.product.x.level * S::item;
#pragma unroll
        for (int t = 0; t < S::x_terms; t++) pipe.x.term[t] += pipe.back;
        pipe.there = 0; /* nobody has written what lies in the place of a level that a row has not */
        for (int i = 0; i * source<S>::step < min(S::rows, pipe.x.rows); i++)
            pipe.there |= (uint32_t)p.product.levels.wide[row0 + threadIdx.x / S::pieces + i * source<S>::step] << i;
    }
    const int stages = wide ? 2 * pipe.end : pipe.end, change_at = wide ? pipe.end : -1;
    const auto change = [&](sums<S> &sum) { change_level<S>(p.product, sum, row0 + warp_row); };
#pragma unroll 1
    for (int s = 0; s < S::stages - 1; s++) {
        copy_x<S>(pipe);
        copy_w<S>(pipe);
    }
    sums<S> sum = {};
    if constexpr (S::single) {
        float4 local[S::m_tiles * S::n_tiles],
            *aside = S::aside_shared ? (float4 *)(shared + S::ring_bytes) + threadIdx.x : local;
        if (!S::aside_shared)
            asm volatile(""
                : "+l"(aside)); /* what is known of the address would put the sums into registers that are not there */
        multiply_single<S>(pipe, stages, lane_x<S>(warp_row), lane_w<S>(warp_column), aside, sum, change_at, change);
    } else {
        multiply_terms<S>(pipe, stages, lane_x<S>(warp_row), lane_w<S>(warp_column), sum, change_at, change);
    }
    rfi_copy_commit(); /* what was started for stages that there are not */
    rfi_copy_wait<0>();
    const int rows = (int)min((int64_t)S::rows, p.product.batch - row0);
    float *const tile = (float *)shared;
    const bool in_parts = S::small && p.schedule.splits > 1;
#pragma unroll 1
    for (int first = 0; first < rows; first += S::tile_rows) {
        __syncthreads(); /* the ring, or the tile before, is read: the tile takes its place */
        if (warp_row >= first && warp_row < first + S::tile_rows)
            store_tile<S>(p.product, tile, sum, row0 + first, column0, warp_row - first, warp_column, !in_parts);
        __syncthreads(); /* the tile is written */
        if constexpr (S::small)
            if (in_parts) {
                if (!rfi_add_splits<S::rows, S::columns, S::threads>(p.schedule, tile, S::tile_ld, rows)) return;
                scale_tile<S>(p.product, tile, row0, rows, column0);
            }
        if (!S::single && p.product.lone) {
            rfi_add_lone_to_tile<S::columns>(p.product, tile, S::tile_ld, row0 + first, min(S::tile_rows, rows - first),
                column0, warp, S::threads / 32);
            __syncthreads(); /* all are added */
        }
        rfi_fold_tile(
            p, (const float *)tile, S::tile_ld, row0 + first, min(S::tile_rows, rows - first), column0, S::columns);
    }
    if (p.schedule.tickets) rfi_finish_rows<float>(p, blockIdx.x, blockIdx.y, gridDim.y, row0, rows);
}

/* The batch varies fastest: W streams from memory once, x stays in the second-level cache. */
template <class S> cudaError_t launch(const rfi_cuda_fold *fold, cudaStream_t stream) {
    const int64_t row_blocks = rfi_tiles(fold->product.batch, S::rows),
                  column_blocks = rfi_tiles(fold->product.out_features, S::columns);
    if (row_blocks > INT32_MAX || column_blocks > 65535 || fold->schedule.splits > 65535 ||
        fold->product.depth / S::depth > INT32_MAX / 2 - S::stages)
        return cudaErrorInvalidConfiguration;
    const unsigned parts = S::small ? (unsigned)fold->schedule.splits : 1;
    return rfi_launch(fold_mma<S>, fold, dim3((unsigned)row_blocks, (unsigned)column_blocks, parts), S::threads,
        S::shared_bytes, stream, fold->schedule.overlaps);
}

/* What a block of a device must have, that there is room for as many of these on a multiprocessor as they are made for.
 * A block takes 1 KB and its static memory besides; a multiprocessor has 1 KB more than one block may take. */
template <class S> constexpr int room_bytes = S::blocks * (S::shared_bytes + 1024 + 256) - 1024;

/* Neither the place of the sums nor the number of stages changes a bit. */
template <class E, int ROWS, int COLUMNS, int WARPS_M, int WARPS_N, int RING, int BLOCKS>
cudaError_t launch_large(const rfi_cuda_fold *fold, cudaStream_t stream) {
    typedef shape<E, 1, 1, ROWS, COLUMNS, WARPS_M, WARPS_N, 32, RING, BLOCKS, true> with_room;
    return fold->schedule.shared_per_block >= room_bytes<with_room>
        ? launch<with_room>(fold, stream)
        : launch<shape<E, 1, 1, ROWS, COLUMNS, WARPS_M, WARPS_N, 32, RING, BLOCKS, false, room_bytes<with_room>>>(
              fold, stream);
}

bool is_single(const rfi_cuda_fold *fold) { return !fold->product.x.low && !fold->product.w.low; }

/* WIDE: bytes of stages of three terms a side, which take the most. */
template <int ROWS, int COLUMNS, int WARPS_M, int WARPS_N, int DEPTH, int RING, int BLOCKS, int WIDE,
    int BELOW = INT32_MAX>
cudaError_t launch_terms(const rfi_cuda_fold *fold, cudaStream_t stream) {
    constexpr int LEAST = ROWS < 32 ? 64 : 32; /* columns of a stage, so that each thread has a row to copy */
    const int x_terms = rfi_terms_of(fold->product.x), w_terms = rfi_terms_of(fold->product.w);
    if (w_terms == 3)
        return launch<shape<__nv_bfloat16, 3, 3, ROWS, COLUMNS, WARPS_M, WARPS_N, LEAST, WIDE, 1, false, BELOW>>(
            fold, stream);
    if (x_terms == 3)
        return launch<shape<__nv_bfloat16, 3, 1, ROWS, COLUMNS, WARPS_M, WARPS_N, LEAST, RING, BLOCKS, false, BELOW>>(
            fold, stream);
    if (x_terms == 1)
        return launch<shape<__half, 1, 2, ROWS, COLUMNS, WARPS_M, WARPS_N, DEPTH, RING, BLOCKS, false, BELOW>>(
            fold, stream);
    if (w_terms == 2)
        return launch<shape<__half, 2, 2, ROWS, COLUMNS, WARPS_M, WARPS_N, DEPTH, RING, BLOCKS, false, BELOW>>(
            fold, stream);
    if (fold->product.w.dtype == RF_BFLOAT16)
        return launch<shape<__nv_bfloat16, 2, 1, ROWS, COLUMNS, WARPS_M, WARPS_N, DEPTH, RING, BLOCKS, false, BELOW>>(
            fold, stream);
    return launch<shape<__half, 2, 1, ROWS, COLUMNS, WARPS_M, WARPS_N, DEPTH, RING, BLOCKS, false, BELOW>>(
        fold, stream);
}

/* Bytes of stages: what every device has, and what small tiles take where they can, to keep more of W on its way. */
constexpr int RING = 98304, LARGE_RING = 163840;

template <int ROWS, int COLUMNS, int WARPS_M, int WARPS_N, int BYTES, int BELOW>
cudaError_t launch_small(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (!is_single(fold))
        return launch_terms<ROWS, COLUMNS, WARPS_M, WARPS_N, 64, BYTES, 2, BYTES, BELOW>(fold, stream);
    if (fold->product.x.dtype == RF_BFLOAT16)
        return launch<shape<__nv_bfloat16, 1, 1, ROWS, COLUMNS, WARPS_M, WARPS_N, 64, BYTES, 2, false, BELOW>>(
            fold, stream);
    return launch<shape<__half, 1, 1, ROWS, COLUMNS, WARPS_M, WARPS_N, 64, BYTES, 2, false, BELOW>>(fold, stream);
}

template <int ROWS, int COLUMNS, int WARPS_M, int WARPS_N>
cudaError_t launch_small(const rfi_cuda_fold *fold, cudaStream_t stream) {
    constexpr int ENOUGH = LARGE_RING + 1024;
    return fold->schedule.shared_per_block >= ENOUGH
        ? launch_small<ROWS, COLUMNS, WARPS_M, WARPS_N, LARGE_RING, INT32_MAX>(fold, stream)
        : launch_small<ROWS, COLUMNS, WARPS_M, WARPS_N, RING, ENOUGH>(fold, stream);
}

} // namespace

cudaError_t rfi_cuda_fold_mma_128x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (!is_single(fold)) return launch_terms<128, 128, 2, 4, 32, RING, 1, LARGE_RING>(fold, stream);
    return fold->product.x.dtype == RF_BFLOAT16 ? launch_large<__nv_bfloat16, 128, 128, 2, 2, RING / 2, 2>(fold, stream)
                                                : launch_large<__half, 128, 128, 2, 2, RING / 2, 2>(fold, stream);
}
cudaError_t rfi_cuda_fold_mma_256x128(const rfi_cuda_fold *fold, cudaStream_t stream) {
    if (!is_single(fold)) return cudaErrorInvalidConfiguration; /* the stages of several products do not fit */
    return fold->product.x.dtype == RF_BFLOAT16 ? launch_large<__nv_bfloat16, 256, 128, 4, 2, RING, 1>(fold, stream)
                                                : launch_large<__half, 256, 128, 4, 2, RING, 1>(fold, stream);
}
cudaError_t rfi_cuda_fold_mma_64x64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch_small<64, 64, 2, 4>(fold, stream);
}
cudaError_t rfi_cuda_fold_mma_16x64(const rfi_cuda_fold *fold, cudaStream_t stream) {
    return launch_small<16, 64, 1, 4>(fold, stream);
}
