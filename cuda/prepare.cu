/* What comes before a fold: rows in terms of binary16, copies that kernels can read in 16-byte pieces, and cleared tickets. */
#include "launch.cuh"
#include "ptx.cuh"
#include "typed.cuh"

namespace {

constexpr int THREADS = 256;

__device__ __forceinline__ void clear_words(const rfi_cuda_clear &clear) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < clear.count; i += (int64_t)gridDim.x * blockDim.x) clear.words[i] = 0;
}

/* The fold that follows fetches W as soon as it runs: the model's W at any time, the caller's once all that is in front of this kernel has finished. */
__device__ __forceinline__ void begin(const rfi_cuda_clear &clear) {
    if (!clear.w_borrowed) rfi_release_next();
    rfi_wait_for_previous();
    if (clear.w_borrowed) rfi_release_next();
}

__global__ void __launch_bounds__(THREADS) clear_all(const __grid_constant__ rfi_cuda_clear p) {
    begin(p);
    clear_words(p);
}

/* Every thread gets the combined value of the block, of whole warps, a power of two. `scratch` holds a value a warp. */
template <int WARPS, class T, class Combine> __device__ T block_all(T v, T *scratch, Combine combine) {
    for (int step = 1; step < 32; step *= 2) v = combine(v, __shfl_xor_sync(~0u, v, step));
    __syncthreads(); /* the scratch of the previous call is read */
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = scratch[threadIdx.x % WARPS];
    for (int step = 1; step < WARPS; step *= 2) v = combine(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

/* Scaling so that the largest finite magnitude lies in [2^14, 2^15) leaves 2^15 of headroom above binary16's subnormals for the second term: high + low
 * is exact to 22 bits down to 2^-15 of the largest, and to 2^-40 of it below. The inverse must be a float, subnormals included, so that a row of the smallest
 * subnormals is scaled by 2^149 only: its values are then small integers, which the terms hold exactly. */
__device__ __forceinline__ int scale_exponent(float largest) {
    if (largest == 0) return 0;
    int exponent = ilogbf(largest);
    return min(14 - exponent, 149);
}

/* A power of two; one beyond float's range in two factors. Products with both are exact wherever the result is normal, and subnormal results do not occur
 * (|v| 2^e < 2^15 and e >= -113). */
struct power {
    float a, b;
    __device__ __forceinline__ explicit power(int exponent) {
        const int second = max(exponent - 127, 0);
        a = __int_as_float((exponent - second + 127) << 23);
        b = __int_as_float((second + 127) << 23);
    }
};

/* Values of a row that a thread takes at once, and bytes of a row at most that lie in shared memory between the two passes over it; what is behind is read
 * twice. So many blocks of one row of 8192 values then have theirs on the way that memory is busy all the time, which registers do not have room for. */
constexpr int WIDTH = 4, KEPT_BYTES = 64 * 1024;
/* Few rows lie in registers, so many pieces of a thread's: no other row waits for the room, and the detour through shared memory takes longer. Their blocks are as large as
 * can be, for there is one a multiprocessor, and its latencies are hidden by nothing else. */
constexpr int PIECES = 2, FEW_ROWS = 128, FEW_THREADS = 1024;

/* Values [i, i + WIDTH) of `data`, all at once. */
__device__ __forceinline__ void load_whole(const void *data, int64_t i, int dtype, float (&v)[WIDTH]) {
    if (dtype == RF_FLOAT32) {
        const float4 q = *(const float4 *)((const float *)data + i);
        v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
        return;
    }
    __align__(8) uint16_t bits[WIDTH];
    *(uint2 *)bits = *(const uint2 *)((const uint16_t *)data + i);
#pragma unroll
    for (int j = 0; j < WIDTH; j++) v[j] = rfi_load_as<float>(bits, dtype, j);
}

/* Columns [i, i + WIDTH) of a row that begins at value `first`; zeros behind the last column. `whole`: rows can be read WIDTH values at a time. */
__device__ __forceinline__ void load_values(const rfi_cuda_split &p, int64_t first, int64_t i, int dtype, bool whole, float (&v)[WIDTH]) {
    if (whole && i + WIDTH <= p.columns) {
        load_whole(p.data, first + i, dtype, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < WIDTH; j++) v[j] = i + j < p.columns ? rfi_load_as<float>(p.data, dtype, first + i + j) : 0;
}

/* The largest magnitude; NaN if there is one. */
__device__ __forceinline__ float largest_of(const float (&v)[WIDTH], float largest) {
#pragma unroll
    for (int j = 0; j < WIDTH; j++) largest = rfi_maxn_f32(largest, fabsf(v[j]));
    return largest;
}

/* Relative losses of a thread's values: their sum and the largest. */
struct account {
    float loss, worst;
};

/* Scaled values from here on lose at most half of what may be lost on average (two terms: 2^-22), or nothing (one term of a 16-bit value), and are not looked at
 * one by one. */
template <int TERMS> __device__ __forceinline__ constexpr float least_safe() { return TERMS == 2 ? 0x1p-3f : 0x1p-13f; }

/* A quotient of approximate reciprocals will do: losses are compared with powers of two far apart from what occurs. SINGLE: scale.b is 1, as it nearly always is. */
template <int TERMS, bool SINGLE>
__device__ __forceinline__ void write_terms(const rfi_cuda_split &p, int64_t at, const float (&stored)[WIDTH], power scale, account &a) {
    __align__(8) __half2 high[WIDTH / 2], low[WIDTH / 2];
    float v[WIDTH], rest[WIDTH], least = INFINITY;
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        v[j] = SINGLE ? stored[j] * scale.a : stored[j] * scale.a * scale.b;
        if (stored[j] != 0) least = fminf(least, fabsf(v[j]));
    }
    const auto subtract = [&](const __half2 (&term)[WIDTH / 2]) {
#pragma unroll
        for (int j = 0; j < WIDTH; j += 2) {
            const float2 t = __half22float2(term[j / 2]);
            rest[j] -= t.x, rest[j + 1] -= t.y;
        }
    };
#pragma unroll
    for (int j = 0; j < WIDTH; j++) rest[j] = v[j];
#pragma unroll
    for (int j = 0; j < WIDTH; j += 2) high[j / 2] = __floats2half2_rn(v[j], v[j + 1]);
    *(uint2 *)((__half *)p.high + at) = *(const uint2 *)high;
    if (TERMS == 2) {
        subtract(high);
#pragma unroll
        for (int j = 0; j < WIDTH; j += 2) low[j / 2] = __floats2half2_rn(rest[j], rest[j + 1]);
        *(uint2 *)((__half *)p.low + at) = *(const uint2 *)low;
    }
    if (least >= least_safe<TERMS>()) return;
    subtract(TERMS == 2 ? low : high);
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        const float lost = stored[j] == 0 ? 0 : v[j] != 0 ? fabsf(__fdividef(rest[j], v[j])) : 1;
        a.loss += lost;
        a.worst = fmaxf(a.worst, lost);
    }
}

/* A row as a thread goes through it, STEP values apart: first what it has in registers (FEW) or has copied to shared memory, then the rest. */
template <bool FEW> struct row_walk {
    static constexpr int BLOCK = FEW ? FEW_THREADS : THREADS, STEP = BLOCK * WIDTH;
    const rfi_cuda_split &p;
    const uint8_t *kept;
    const float (&pieces)[FEW ? PIECES : 1][WIDTH];
    int64_t first; /* of the row: its first value in p.data */
    int copied;    /* how many from there on are in shared memory */
    int dtype;
    bool whole;
    /* use(i, v) gets columns [i, i + WIDTH), zeros behind the last of p's, from thread to thread, up to column `end`. */
    template <class Use> __device__ __forceinline__ void each(int64_t end, Use use) const {
        const int mine = threadIdx.x * WIDTH;
        int i = mine;
        float v[WIDTH];
        if (FEW) {
#pragma unroll
            for (int g = 0; g < PIECES; g++)
                if (mine + g * STEP < end) use(mine + g * STEP, pieces[FEW ? g : 0]);
            i += PIECES * STEP;
        } else {
#pragma unroll 2
            for (; i < copied; i += STEP) {
                load_whole(kept, i, dtype, v);
                use(i, v);
            }
        }
#pragma unroll 1
        for (int64_t j = i; j < end; j += STEP) {
            load_values(p, first, j, dtype, whole, v);
            use(j, v);
        }
    }
};

__host__ __device__ inline int item_of(int dtype) { return dtype == RF_FLOAT32 ? 4 : 2; } /* but for float64, which is read value by value */

/* Whether rows can be read WIDTH values at a time. */
__host__ __device__ inline bool is_whole(const rfi_cuda_split &p) {
    return p.dtype != RF_FLOAT64 && (uintptr_t)p.data % (item_of(p.dtype) * WIDTH) == 0 && p.ld % WIDTH == 0;
}

/* A block a row: the largest magnitude, then the terms, and whether they say enough. PLAIN: whole rows of float32, the usual case, without a question in its loops. */
template <int TERMS, bool FEW, bool PLAIN> __global__ void __launch_bounds__(row_walk<FEW>::BLOCK, FEW ? 1 : 6) split_rows(const __grid_constant__ rfi_cuda_split p) {
    extern __shared__ __align__(16) uint8_t kept[];
    constexpr int STEP = row_walk<FEW>::STEP, WARPS = row_walk<FEW>::BLOCK / 32;
    __shared__ float scratch[WARPS];
    const int64_t row = blockIdx.x, first = row * p.ld;
    const int dtype = PLAIN ? RF_FLOAT32 : p.dtype, item = item_of(dtype), mine = threadIdx.x * WIDTH;
    const bool whole = PLAIN || is_whole(p);
    /* A thread's columns are STEP apart, whole panels, so that from column to column its terms are a constant number of values apart. */
    static_assert(STEP % 64 == 0, "whole panels");
    const int64_t to = p.panel ? rfi_place(p.panel, p.panel_rows, row, mine) : row * p.ld_terms + mine, apart = p.panel ? p.panel_rows * TERMS : 1;
    const int copied = FEW || !whole ? 0 : (int)min(p.columns, (int64_t)KEPT_BYTES / item) / WIDTH * WIDTH;
    float pieces[FEW ? PIECES : 1][WIDTH];
    const row_walk<FEW> walk = {p, kept, pieces, first, copied, dtype, whole};
    begin(p.clear);
    if (FEW)
#pragma unroll
        for (int g = 0; g < PIECES; g++) load_values(p, first, mine + g * STEP, dtype, whole, pieces[FEW ? g : 0]);
#pragma unroll 4
    for (int i = mine; i < copied; i += STEP) {
        const uint8_t *from = (const uint8_t *)p.data + (first + i) * item;
        if (item == 4) rfi_copy_async_16(rfi_shared_address(kept + i * 4), from, 16);
        else rfi_copy_async_8(rfi_shared_address(kept + i * 2), from, 8);
    }
    rfi_copy_commit();
    clear_words(p.clear);
    rfi_copy_wait<0>(); /* a thread reads what it has copied itself: no barrier */
    float top = 0;
    walk.each(p.columns, [&](int64_t, const float(&v)[WIDTH]) { top = largest_of(v, top); });
    top = block_all<WARPS>(top, scratch, [](float x, float y) { return rfi_maxn_f32(x, y); });
    const bool finite = top < INFINITY;
    const int exponent = finite ? scale_exponent(top) : 0;
    const power scale(exponent);
    account a = {0, 0};
    /* Terms that are not used are multiplied all the same: zeros. */
    if (!finite)
        for (int64_t i = mine; i < p.ld_terms; i += STEP) {
            const int64_t at = to + (i - mine) * apart;
            *(uint2 *)((__half *)p.high + at) = uint2{0, 0};
            if (TERMS == 2) *(uint2 *)((__half *)p.low + at) = uint2{0, 0};
        }
    else if (scale.b == 1) walk.each(p.ld_terms, [&](int64_t i, const float(&v)[WIDTH]) { write_terms<TERMS, true>(p, to + (i - mine) * apart, v, scale, a); });
    else walk.each(p.ld_terms, [&](int64_t i, const float(&v)[WIDTH]) { write_terms<TERMS, false>(p, to + (i - mine) * apart, v, scale, a); });
    bool irregular = !finite;
    if (__syncthreads_or(a.loss > 0)) {
        float counted = 0;
        walk.each(p.columns, [&](int64_t, const float(&v)[WIDTH]) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) counted += v[j] != 0;
        });
        const auto add = [](float x, float y) { return x + y; };
        a.loss = block_all<WARPS>(a.loss, scratch, add);
        counted = block_all<WARPS>(counted, scratch, add);
        a.worst = block_all<WARPS>(a.worst, scratch, [](float x, float y) { return fmaxf(x, y); });
        /* One value lost outright (1/64 of itself) is told too, however many there are: infinity times it must not become NaN. */
        irregular |= a.loss > p.average_loss * counted || a.worst > 0x1p-6f;
    }
    if (threadIdx.x) return;
    p.scale[row] = scalbnf(1.0f, -exponent);
    p.irregular.flag[row] = irregular;
    if (irregular && p.irregular.count) atomicAdd(p.irregular.count, 1u);
}

/* A block a row, 16 bytes a thread at a time. */
__global__ void __launch_bounds__(THREADS) pack_rows(const __grid_constant__ rfi_cuda_pack p) {
    constexpr int PIECE = 8;
    const int64_t row = blockIdx.x;
    const uint16_t *from = (const uint16_t *)p.from + row * p.ld_from;
    const bool whole = (uintptr_t)from % 16 == 0;
    for (int64_t i = threadIdx.x * PIECE; i < p.depth; i += THREADS * PIECE) {
        __align__(16) uint16_t v[PIECE];
        if (whole && i + PIECE <= p.columns) *(uint4 *)v = *(const uint4 *)(from + i);
        else
#pragma unroll
            for (int j = 0; j < PIECE; j++) v[j] = i + j < p.columns ? from[i + j] : 0;
        *(uint4 *)((uint16_t *)p.to + rfi_place(p.panel, p.panel_rows, row, i)) = *(const uint4 *)v;
    }
}

template <class T> __global__ void __launch_bounds__(THREADS) copy_rows(const __grid_constant__ rfi_cuda_copy p) {
    const int64_t row = blockIdx.x;
    const T *from = (const T *)p.from + row * p.ld_from;
    T *to = (T *)p.to + row * p.ld_to;
    for (int64_t i = threadIdx.x; i < p.ld_to; i += THREADS) to[i] = i < p.columns ? from[i] : (T)0;
}

} // namespace

cudaError_t rfi_cuda_launch_split(const rfi_cuda_split *split, cudaStream_t stream) {
    if (split->rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (!split->rows) return cudaSuccess;
    const bool few = split->rows <= FEW_ROWS, plain = split->dtype == RF_FLOAT32 && is_whole(*split);
    const int64_t row = split->columns * item_of(split->dtype), kept = few || split->dtype == RF_FLOAT64 ? 0 : row < KEPT_BYTES ? row : KEPT_BYTES;
    void (*const kernels[2][2][2])(rfi_cuda_split) = {{{split_rows<1, false, false>, split_rows<1, false, true>}, {split_rows<1, true, false>, split_rows<1, true, true>}},
                                                      {{split_rows<2, false, false>, split_rows<2, false, true>}, {split_rows<2, true, false>, split_rows<2, true, true>}}};
    return rfi_launch(kernels[!!split->low][few][plain], split, dim3((unsigned)split->rows), few ? FEW_THREADS : THREADS, (size_t)kept, stream, split->clear.overlaps);
}

cudaError_t rfi_cuda_launch_clear(const rfi_cuda_clear *clear, cudaStream_t stream) {
    return clear->count ? rfi_launch(clear_all, clear, dim3(1), THREADS, 0, stream, clear->overlaps) : cudaSuccess;
}

cudaError_t rfi_cuda_overlaps(int32_t *overlaps) {
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, clear_all); /* all portable files are compiled for the same architectures */
    *overlaps = !error && attributes.ptxVersion >= 90;
    return error;
}

cudaError_t rfi_cuda_launch_copy(const rfi_cuda_copy *copy, cudaStream_t stream) {
    if (copy->rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (!copy->rows || !copy->ld_to) return cudaSuccess;
    auto kernel = copy->item == 2 ? copy_rows<uint16_t> : copy->item == 4 ? copy_rows<uint32_t> : copy_rows<uint64_t>;
    return rfi_launch(kernel, copy, dim3((unsigned)copy->rows), THREADS, 0, stream);
}

cudaError_t rfi_cuda_launch_pack(const rfi_cuda_pack *pack, cudaStream_t stream) {
    if (pack->rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (!pack->rows || !pack->depth) return cudaSuccess;
    return rfi_launch(pack_rows, pack, dim3((unsigned)pack->rows), THREADS, 0, stream);
}
