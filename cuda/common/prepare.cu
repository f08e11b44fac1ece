/* SPDX-License-Identifier: MIT */
/* Rows in terms of 16 bits, or rounded to TF32. */
#include "common/clear.cuh"
#include "common/ptx.cuh"
#include "common/scaling.cuh"

using namespace scaling;

namespace {

constexpr int THREADS = 256;

/* Values of a row that a thread takes at once, and bytes of a row at most that lie in shared memory between the two
 * passes over it; what is behind is read twice. So many blocks of one row of 8192 values then have theirs on the way
 * that memory is busy all the time, which registers do not have room for. */
constexpr int WIDTH = 4, KEPT_BYTES = 64 * 1024;
/* Few rows lie in registers, so many pieces of a thread's: no other row waits for the room, and the detour through
 * shared memory takes longer. Their blocks are as large as can be, for there is one a multiprocessor, and its latencies
 * are hidden by nothing else. Short rows do, too, a warp each, which waits for no other, or half of one. */
constexpr int FEW_ROWS = 128, FEW_THREADS = 1024, SHORT_ROW = 1024, SHORT_THREADS = 128, WARP = 32;
constexpr int HALF_WARP = 16;
/* Those of middling length do, in small blocks, of which there are many. */
constexpr int MIDDLE_ROW = 2048, MIDDLE_THREADS = 64;
template <int TEAM> constexpr int PIECES = TEAM == FEW_THREADS ? 2
    : TEAM == WARP                                             ? SHORT_ROW / WARP / WIDTH
    : TEAM == HALF_WARP                                        ? RFI_SHORTEST_ROW / HALF_WARP / WIDTH
    : TEAM == MIDDLE_THREADS                                   ? MIDDLE_ROW / MIDDLE_THREADS / WIDTH
                                                               : 0;

template <int TEAM> constexpr int ROWS = TEAM <= WARP ? SHORT_THREADS / TEAM : 1; /* of a block, */
template <int TEAM> constexpr int BLOCK = TEAM <= WARP ? SHORT_THREADS : TEAM;    /* its threads, */
template <int TEAM> constexpr int BLOCKS = TEAM == HALF_WARP ? 8
    : TEAM == WARP                                           ? 5
    : TEAM == FEW_THREADS                                    ? 1
    : TEAM == MIDDLE_THREADS                                 ? 10
                                                             : 6; /* and how many a multiprocessor must hold */
constexpr int MOST_ROWS = SHORT_THREADS / HALF_WARP;

template <int TEAM> __device__ __forceinline__ int64_t row_of_team() {
    return TEAM <= WARP ? blockIdx.x * (int64_t)ROWS<TEAM> + threadIdx.x / TEAM : blockIdx.x;
}

/* What the threads of a row do together: a block, or a warp or half of one, of which the other may be elsewhere. */
template <int TEAM> __device__ __forceinline__ unsigned lanes_of_team() {
    return TEAM == HALF_WARP ? 0xffffu << (threadIdx.x & HALF_WARP) : ~0u;
}
template <int TEAM> __device__ __forceinline__ bool any_of_team(bool v) {
    return TEAM <= WARP ? __any_sync(lanes_of_team<TEAM>(), v) : __syncthreads_or(v);
}
template <int TEAM> __device__ __forceinline__ int count_of_team(bool v) {
    return TEAM <= WARP ? __popc(__ballot_sync(lanes_of_team<TEAM>(), v)) : __syncthreads_count(v);
}
template <int TEAM> __device__ __forceinline__ void wait_for_team() {
    if (TEAM <= WARP) __syncwarp(lanes_of_team<TEAM>());
    else __syncthreads();
}
/* As block_all. */
template <int TEAM, bool FRESH = false, class Combine>
__device__ __forceinline__ float all_of_team(float v, float *scratch, Combine combine) {
    if constexpr (TEAM > HALF_WARP) return block_all<TEAM / 32, FRESH>(v, scratch, combine);
    else {
        for (int step = 1; step < HALF_WARP; step *= 2) v = combine(v, __shfl_xor_sync(lanes_of_team<TEAM>(), v, step));
        return v;
    }
}

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

/* Columns [i, i + WIDTH) of a row that begins at value `first`; zeros behind the last column. `whole`: rows can be read
 * WIDTH values at a time. */
__device__ __forceinline__ void load_values(
    const rfi_cuda_split &p, int64_t first, int64_t i, int dtype, bool whole, float (&v)[WIDTH]) {
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

/* WIDTH values in TERMS terms; `v` becomes what these leave. */
template <int TERMS, bool BF16> __device__ __forceinline__ void to_terms(float (&v)[WIDTH], uint2 (&term)[TERMS]) {
#pragma unroll
    for (int t = 0; t < TERMS; t++) {
        __align__(8) uint32_t pair[WIDTH / 2];
#pragma unroll
        for (int j = 0; j < WIDTH; j += 2) {
            if (BF16) {
                const __nv_bfloat162 two = __floats2bfloat162_rn(v[j], v[j + 1]);
                pair[j / 2] = *(const uint32_t *)&two;
                const float2 back = rfi_widen<__nv_bfloat16>(pair[j / 2]);
                v[j] -= back.x, v[j + 1] -= back.y;
            } else {
                const __half2 two = __floats2half2_rn(v[j], v[j + 1]);
                pair[j / 2] = *(const uint32_t *)&two;
                const float2 back = rfi_widen<__half>(pair[j / 2]);
                v[j] -= back.x, v[j + 1] -= back.y;
            }
        }
        term[t] = *(const uint2 *)pair;
    }
}

template <int TERMS>
__device__ __forceinline__ void store_terms(const rfi_cuda_split &p, int64_t at, const uint2 (&term)[TERMS]) {
    *(uint2 *)((uint16_t *)p.high + at) = term[0];
    if (TERMS > 1) *(uint2 *)((uint16_t *)p.low + at) = term[TERMS > 1];
    if (TERMS > 2) *(uint2 *)((uint16_t *)p.least + at) = term[TERMS > 2 ? 2 : 0];
}

/* A value of W that is not zero has a first term that is not: infinity times it must not become NaN. Likewise one of x
 * that W's infinities may meet, but for rows of two levels: there the second has it, or the row is irregular. `v` is
 * what the terms leave of the scaled values: where the first is zero, so are the others. */
__device__ __forceinline__ void keep_signs(const float (&v)[WIDTH], uint2 &term) {
    uint16_t *first = (uint16_t *)&term;
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (v[j] != 0 && !(first[j] & 0x7fff)) first[j] = v[j] < 0 ? 0x8001 : 1;
}

/* SINGLE: scale.b is 1, as it nearly always is. `keeps`: see keep_signs. Returns how many values are poor. */
template <int TERMS, bool BF16, bool SINGLE> __device__ __forceinline__ int write_terms(
    const rfi_cuda_split &p, int64_t at, const float (&stored)[WIDTH], power scale, int dtype, bool keeps) {
    float v[WIDTH], least = INFINITY;
    uint2 term[TERMS];
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
        v[j] = SINGLE ? stored[j] * scale.a : stored[j] * scale.a * scale.b;
        if (!BF16 && stored[j] != 0) least = fminf(least, fabsf(v[j]));
    }
    const float below = BF16 ? 0 : poor_below<TERMS>(dtype);
    int poor = 0;
    if (least < below) {
#pragma unroll
        for (int j = 0; j < WIDTH; j++) poor += stored[j] != 0 && fabsf(v[j]) < below;
    }
    to_terms<TERMS, BF16>(v, term);
    if (keeps && (BF16 || least < 0x1p-23f)) keep_signs(v, term[0]);
    store_terms<TERMS>(p, at, term);
    return poor;
}

/* Scaled values in the terms of the first level; `v` becomes what these leave for the second. */
template <int TERMS> __device__ __forceinline__ void rest_of(float (&v)[WIDTH]) {
    float whole[WIDTH];
    uint2 term[TERMS];
#pragma unroll
    for (int j = 0; j < WIDTH; j++) whole[j] = v[j];
    to_terms<TERMS, false>(v, term);
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (fabsf(whole[j]) >= subnormal_below<TERMS>()) v[j] = 0;
}

/* A row as a thread of TEAM goes through it, STEP values apart: first what it has in registers or has copied to shared
 * memory, then the rest. */
template <int TEAM> struct row_walk {
    static constexpr int STEP = TEAM * WIDTH, IN_REGISTERS = PIECES<TEAM>;
    const rfi_cuda_split &p;
    const uint8_t *kept;
    const float (&pieces)[IN_REGISTERS ? IN_REGISTERS : 1][WIDTH];
    int64_t first; /* of the row: its first value in p.data */
    int copied;    /* how many from there on are in shared memory */
    int dtype;
    bool whole;
    int64_t without = -1; /* of what neither registers nor shared memory keep, a column that is taken for zero */
    /* use(i, v) gets columns [i, i + WIDTH), zeros behind the last of p's, from thread to thread, up to column `end`.
     */
    template <class Use> __device__ __forceinline__ void each(int64_t end, Use use) const {
        const int mine = threadIdx.x % TEAM * WIDTH;
        int i = mine;
        float v[WIDTH];
        if (IN_REGISTERS) {
#pragma unroll
            for (int g = 0; g < IN_REGISTERS; g++)
                if (mine + g * STEP < end) use(mine + g * STEP, pieces[IN_REGISTERS ? g : 0]);
            i += IN_REGISTERS * STEP;
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
#pragma unroll
            for (int c = 0; c < WIDTH; c++)
                if (j + c == without) v[c] = 0;
            use(j, v);
        }
    }
};

__host__ __device__ inline int item_of(int dtype) {
    return dtype == RF_FLOAT32 ? 4 : 2;
} /* but for float64, which is read value by value */

/* Whether rows can be read WIDTH values at a time. */
__host__ __device__ inline bool is_whole(const rfi_cuda_split &p) {
    return p.dtype != RF_FLOAT64 && (uintptr_t)p.data % (item_of(p.dtype) * WIDTH) == 0 && p.ld % WIDTH == 0;
}

constexpr uint16_t ONE_BINARY16 = 0x3c00, ONE_BFLOAT16 = 0x3f80, INFINITE_BINARY16 = 0x7c00, INFINITE_BFLOAT16 = 0x7f80;

/* Of a row of W with so many infinities: writes where they are, and returns the column of its verdict, or -1 if there
 * is no room. */
template <int TEAM> __device__ __noinline__ int64_t take_verdict(const rfi_cuda_split &p, int64_t row, int infinities) {
    __shared__ unsigned long long before[MOST_ROWS][2];
    __shared__ int counts[MOST_ROWS];
    const int team = threadIdx.x / TEAM, thread = threadIdx.x % TEAM;
    if (thread < 2) before[team][thread] = atomicAdd(p.verdicts.used + thread, thread ? infinities : 1);
    if (thread == 0) counts[team] = 0;
    wait_for_team<TEAM>(); /* that is there */
    const int64_t verdict = (int64_t)before[team][0], first = (int64_t)before[team][1], room = p.verdicts.room;
    const bool fits = verdict < p.verdicts.columns && first + infinities <= room;
    for (int64_t i = first + thread; !fits && i < min(first + infinities, room); i += TEAM)
        p.verdicts.at[i].verdict = -1;
    for (int64_t k = thread; fits && k < p.columns; k += TEAM) {
        const float v = rfi_load_as<float>(p.data, p.dtype, row * p.ld + k);
        if (fabsf(v) == INFINITY)
            p.verdicts.at[first + atomicAdd(&counts[team], 1)] = {(int)k << 1 | (v < 0), (int)verdict};
    }
    return fits ? p.columns + verdict : -1;
}

/* Of a row of x: what W's infinities come to beside it, to its terms, of which all have been written. */
template <int TEAM> __device__ __noinline__ void write_verdicts(const rfi_cuda_split &p, uint16_t one) {
    constexpr int WORDS = RFI_VERDICTS / 32;
    __shared__ unsigned pulls[MOST_ROWS][2][WORDS]; /* of each verdict: up, and down */
    unsigned (*const mine)[WORDS] = pulls[threadIdx.x / TEAM];
    const int thread = threadIdx.x % TEAM, count = rfi_verdict_places(p.verdicts);
    const int64_t row = row_of_team<TEAM>();
    for (int i = thread; i < 2 * WORDS; i += TEAM) mine[i / WORDS][i % WORDS] = 0;
    wait_for_team<TEAM>(); /* that is there, and so are the terms */
#pragma unroll 4
    for (int i = thread; i < count; i += TEAM) {
        const rfi_cuda_infinity at = p.verdicts.at[i];
        if (at.verdict < 0) continue;
        const float v = rfi_load_as<float>(p.data, p.dtype, row * p.ld + (at.place >> 1));
        const bool negative = (v < 0) != (at.place & 1);
        const unsigned bit = 1u << at.verdict % 32;
#pragma unroll
        for (int down = 0; down < 2; down++) {
            unsigned *const word = &mine[down][at.verdict / 32];
            if ((v == 0 || negative == (down == 1)) && !(*(volatile unsigned *)word & bit)) atomicOr(word, bit);
        }
    }
    wait_for_team<TEAM>(); /* all have been met */
    for (int v = thread; v < p.verdicts.columns; v += TEAM) {
        const bool up = mine[0][v / 32] >> v % 32 & 1, down = mine[1][v / 32] >> v % 32 & 1;
        ((uint16_t *)p.high)[row * p.ld_terms + p.columns + v] = up == down ? 0 : one | (down ? 0x8000 : 0);
    }
}

/* A row that is not finite. Returns its scale, finite where infinities are terms, in *place that of what its terms say,
 * an infinity or a verdict, or -1, and in *irregular whether they do not say what the row is. */
template <int TEAM> __device__ __forceinline__ float find_infinity(
    const row_walk<TEAM> &walk, float *scratch, int64_t row, int64_t *place, bool *irregular) {
    float nans = 0, infinities = 0, at = -1;
    walk.each(walk.p.columns, [&](int64_t i, const float (&v)[WIDTH]) {
#pragma unroll
        for (int j = 0; j < WIDTH; j++) {
            nans += v[j] != v[j];
            if (fabsf(v[j]) == INFINITY)
                infinities += 1, at = (float)(i + j); /* the kernels' depth is below 2^24, or the row is irregular */
        }
    });
    const auto add = [](float x, float y) { return x + y; };
    nans = all_of_team<TEAM>(nans, scratch, add);
    infinities = all_of_team<TEAM>(infinities, scratch, add);
    at = all_of_team<TEAM>(at, scratch, [](float x, float y) { return fmaxf(x, y); });
    const bool several = infinities > 1 || walk.p.columns > 1 << 24, as_terms = several && walk.p.last_meets_first;
    *irregular = walk.p.irregular && nans == 0 && ((several && !as_terms) || walk.p.w_infinite);
    *place = -1;
    if (nans > 0) return NAN;
    if (as_terms) return 1;
    if (walk.p.irregular || !several || walk.p.w_several) {
        if (!*irregular) *place = (int64_t)at;
        return INFINITY;
    }
    if (walk.p.verdicts.columns) *place = take_verdict<TEAM>(walk.p, row, (int)infinities);
    return *place < 0 ? NAN : INFINITY;
}

/* Their number and the places of those that are met first, as many as may be listed, to `list`. */
template <int TEAM> __device__ __forceinline__ void list_infinities(const row_walk<TEAM> &walk, int *list) {
    /* A row of short terms has no room for more; more of its values than those are not few. */
    const int most = (int)min((int64_t)rfi_few_infinities(walk.p.rows), walk.p.depth / 2 - 1);
    __shared__ int counts[MOST_ROWS];
    int &count = counts[threadIdx.x / TEAM];
    if (threadIdx.x % TEAM == 0) count = 0;
    wait_for_team<TEAM>(); /* that is there, and the terms are written that lie in this place */
    walk.each(walk.p.columns, [&](int64_t i, const float (&v)[WIDTH]) {
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            if (fabsf(v[j]) == INFINITY) {
                const int at = atomicAdd(&count, 1);
                if (at < most) list[1 + at] = (int)(i + j) << 1 | (v[j] < 0);
            }
    });
    wait_for_team<TEAM>(); /* all are counted */
    if (threadIdx.x % TEAM == 0) list[0] = count;
}

/* Whether a value of a row may outweigh all others, of which `top` is the largest magnitude and `own` this thread's,
 * for which `scratch` has just been used: the same for all threads of a row, and mostly false without another barrier.
 * Zero is no such value, nor are infinity and NaN. */
template <int TEAM> __device__ __forceinline__ bool may_be_lone(const float *scratch, float own, float top) {
    const float others = top * 0x1p-20f;
    constexpr int WARPS = TEAM / 32, ALIKE = TEAM <= WARP ? 1 : 32 / WARPS; /* lanes that ask for the same warp */
    const float theirs = TEAM <= WARP ? own : scratch[threadIdx.x % (WARPS ? WARPS : 1)];
    return __popc(__ballot_sync(lanes_of_team<TEAM>(), theirs > others)) == ALIKE && top < INFINITY;
}

/* That value, and of the others the largest magnitude in *top. */
template <int TEAM>
__device__ __forceinline__ rfi_cuda_lone find_lone(const row_walk<TEAM> &walk, float *scratch, float own, float *top) {
    __shared__ rfi_cuda_lone found[MOST_ROWS];
    const float others = *top * 0x1p-20f;
    if (count_of_team<TEAM>(own > others) != 1) return {-1, 0};
    rfi_cuda_lone &lone = found[threadIdx.x / TEAM];
    float second = own;
    if (own > others) {
        int several = 0;
        second = 0;
        walk.each(walk.p.columns, [&](int64_t i, const float (&v)[WIDTH]) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) {
                if (fabsf(v[j]) > others) lone = {(int32_t)(i + j), v[j]}, several++;
                else second = fmaxf(second, fabsf(v[j]));
            }
        });
        if (several > 1) lone.column = -1;
    }
    wait_for_team<TEAM>(); /* that is told */
    if (lone.column >= 0) *top = all_of_team<TEAM>(second, scratch, [](float x, float y) { return fmaxf(x, y); });
    return lone;
}

/* Whether no logit misses what two levels of a row leave: one of its largest values meets none of W that is far below
 * the largest there. */
template <int TEAM> __device__ __forceinline__ bool outweighs_rest(const row_walk<TEAM> &walk, power scale) {
    const uint8_t *const thin = walk.p.thin;
    bool found = walk.p.dense;
    if (!found && thin)
        walk.each(walk.p.columns, [&](int64_t i, const float (&v)[WIDTH]) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                if (fabsf(v[j] * scale.a * scale.b) >= LARGE_FROM) found |= !thin[i + j];
        });
    return any_of_team<TEAM>(found);
}

/* The second level of a row: the terms of what the first leaves. Returns the ratio of the scales; 0: nothing is left.
 * *irregular: even so the row loses too much. */
template <int TERMS, int TEAM> __device__ __forceinline__ float write_rest(
    const row_walk<TEAM> &walk, float *scratch, int64_t to, power scale, float counted, bool *irregular) {
    const rfi_cuda_split &p = walk.p;
    const int mine = threadIdx.x % TEAM * WIDTH;
    float top = 0, poor = 0;
    const auto scaled = [&](const float (&stored)[WIDTH], float (&v)[WIDTH]) {
#pragma unroll
        for (int j = 0; j < WIDTH; j++) v[j] = stored[j] * scale.a * scale.b;
    };
    walk.each(p.columns, [&](int64_t, const float (&stored)[WIDTH]) {
        float v[WIDTH];
        scaled(stored, v);
        rest_of<TERMS>(v);
        top = largest_of(v, top);
    });
    top = all_of_team<TEAM>(top, scratch, [](float x, float y) { return fmaxf(x, y); });
    const int exponent = top > 0 ? min(14 - ilogbf(top), 126) : 0;
    const float up = scalbnf(1.0f, exponent), down = scalbnf(1.0f, -exponent);
    walk.each(p.depth, [&](int64_t i, const float (&stored)[WIDTH]) {
        float v[WIDTH];
        uint2 term[TERMS];
        scaled(stored, v);
        rest_of<TERMS>(v);
#pragma unroll
        for (int j = 0; j < WIDTH; j++) v[j] *= up;
        to_terms<TERMS, false>(v, term);
        store_terms<TERMS>(p, to + p.depth + i - mine, term);
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            poor += fabsf(v[j]) * down > poor_share<TERMS>(walk.dtype) * fabsf(stored[j] * scale.a * scale.b);
    });
    poor = all_of_team<TEAM>(poor, scratch, [](float x, float y) { return x + y; });
    if (!outweighs_rest(walk, scale))
        *irregular |= p.strict || p.w_infinite
            ? poor > 0
            : poor * 4 > counted; /* so far below the row's largest that a sum without them would not show it */
    return top > 0 ? down : 0;
}

/* TEAM threads a row: the largest magnitude, then the terms, and whether they say enough. PLAIN: whole rows of float32,
 * the usual case, without a question in its loops. */
template <int TERMS, bool BF16, int TEAM, bool PLAIN> __global__ void __launch_bounds__(BLOCK<TEAM>, BLOCKS<TEAM>)
    split_rows(const __grid_constant__ rfi_cuda_split p) {
    extern __shared__ __align__(16) uint8_t kept[];
    constexpr bool IN_REGISTERS = PIECES<TEAM> > 0;
    constexpr int STEP = row_walk<TEAM>::STEP, WARPS = TEAM / 32;
    __shared__ float scratch[WARPS ? WARPS : 1];
    const int thread = threadIdx.x % TEAM;
    const int64_t row = row_of_team<TEAM>(), first = row * p.ld;
    const int dtype = PLAIN ? RF_FLOAT32 : p.dtype, item = item_of(dtype), mine = thread * WIDTH;
    const bool whole = PLAIN || is_whole(p);
    /* A thread's columns are STEP apart, whole panels, so that from column to column its terms are a constant number of
     * values apart. */
    static_assert(STEP % 64 == 0, "whole panels");
    const int64_t to = p.panel ? rfi_place(p.panel, p.panel_rows, row, mine) : row * p.ld_terms + mine;
    const int64_t apart = p.panel ? p.panel_rows / RFI_BLOCK_ROWS * rfi_block_values(p.panel) / p.panel : 1;
    constexpr bool KEEPS = !IN_REGISTERS || TEAM == MIDDLE_THREADS; /* values in shared memory */
    const bool by_value = KEEPS && !whole && dtype == RF_FLOAT32;   /* rows begin anywhere */
    const int copied =
        by_value || (!IN_REGISTERS && whole) ? (int)min(p.columns, (int64_t)KEPT_BYTES / item) / WIDTH * WIDTH : 0;
    float pieces[IN_REGISTERS ? PIECES<TEAM> : 1][WIDTH];
    row_walk<TEAM> walk = {p, kept, pieces, first, copied, dtype, whole};
    rfi_begin(p.clear);
    if (row >= p.rows) {
        rfi_clear_words(p.clear);
        return;
    }
    if (IN_REGISTERS && !by_value)
#pragma unroll
        for (int g = 0; g < PIECES<TEAM>; g++)
            load_values(p, first, mine + g * STEP, dtype, whole, pieces[IN_REGISTERS ? g : 0]);
    if (by_value)
#pragma unroll 4
        for (int i = threadIdx.x; i < copied; i += BLOCK<TEAM>)
            rfi_copy_async_4(rfi_shared_address(kept + i * 4), (const float *)p.data + first + i);
    else
#pragma unroll 4
        for (int i = mine; i < copied; i += STEP) {
            const uint8_t *from = (const uint8_t *)p.data + (first + i) * item;
            if (item == 4) rfi_copy_async_16(rfi_shared_address(kept + i * 4), from, 16);
            else rfi_copy_async_8(rfi_shared_address(kept + i * 2), from, 8);
        }
    rfi_copy_commit();
    rfi_clear_words(p.clear);
    rfi_copy_wait<0>();            /* a thread reads what it has copied itself: no barrier */
    if (by_value) __syncthreads(); /* but here */
    if (IN_REGISTERS && by_value)
#pragma unroll
        for (int g = 0; g < PIECES<TEAM>; g++) {
            const int i = mine + g * STEP;
            if (i < copied) load_whole(kept, i, RF_FLOAT32, pieces[IN_REGISTERS ? g : 0]);
            else load_values(p, first, i, dtype, false, pieces[IN_REGISTERS ? g : 0]);
        }
    float own = 0;
    walk.each(p.columns, [&](int64_t, const float (&v)[WIDTH]) { own = largest_of(v, own); });
    float top = all_of_team<TEAM, true>(own, scratch, [](float x, float y) { return rfi_maxn_f32(x, y); });
    rfi_cuda_lone lone = {-1, 0};
    if (!BF16 && p.lone && may_be_lone<TEAM>(scratch, own, top)) lone = find_lone(walk, scratch, own, &top);
    if (lone.column >= 0) { /* the thread that reads it takes it away */
        const int column = lone.column;
#pragma unroll
        for (int g = 0; g < PIECES<TEAM>; g++)
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                if (mine + g * STEP + j == column) pieces[IN_REGISTERS ? g : 0][j] = 0;
        if (!IN_REGISTERS && column < copied) {
            if (column / WIDTH % TEAM == thread) {
                if (item == 4) ((float *)kept)[column] = 0;
                else ((uint16_t *)kept)[column] = 0;
            }
        } else walk.without = column;
    }
    const int exponent = top < INFINITY ? scale_exponent<BF16>(top, dtype) : 0;
    const power scale(exponent);
    float row_scale = scalbnf(1.0f, -exponent), ratio = 0;
    int poor = 0;
    bool irregular = p.irregular && p.w_several;
    const bool keeps = p.w_infinite || (!BF16 && !p.levels.ratio);
    if (!(top < INFINITY)) {
        int64_t place = -1;
        row_scale = find_infinity(walk, scratch, row, &place, &irregular);
        const bool weights = !p.irregular && place >= 0;   /* whose signs are kept */
        const bool all = weights && p.w_several;           /* and all of whose infinities */
        const bool as_terms = fabsf(row_scale) < INFINITY; /* the row has several, and its terms, too */
        walk.each(p.depth, [&](int64_t i, const float (&v)[WIDTH]) {
            /* Terms that are not used are multiplied all the same: zeros. */
            __align__(8) uint16_t terms[TERMS][WIDTH] = {};
#pragma unroll
            for (int j = 0; j < WIDTH; j++) {
                const bool infinite = fabsf(v[j]) == INFINITY, there = all ? infinite : i + j == place;
                const uint16_t sign = v[j] < 0 ? 0x8000 : 0;
                if (there || weights)
                    terms[0][j] = (there ? BF16 ? 0x5d80 : ONE_BINARY16 : 0) | sign; /* 2^60: times a subnormal it is
                                                                                        none */
                if (TERMS > 1 && weights && !there && v[j] != 0) terms[TERMS > 1][j] = 0x8000;
                if (as_terms && infinite) terms[TERMS - 1][j] = (BF16 ? INFINITE_BFLOAT16 : INFINITE_BINARY16) | sign;
            }
            uint2 term[TERMS];
#pragma unroll
            for (int t = 0; t < TERMS; t++) term[t] = *(const uint2 *)terms[t];
            store_terms<TERMS>(p, to + (i - mine) * apart, term);
        });
        if (irregular) list_infinities(walk, (int *)((uint16_t *)p.high + to - mine));
    } else if (scale.b == 1)
        walk.each(p.depth, [&](int64_t i, const float (&v)[WIDTH]) {
            poor += write_terms<TERMS, BF16, true>(p, to + (i - mine) * apart, v, scale, dtype, keeps);
        });
    else
        walk.each(p.depth, [&](int64_t i, const float (&v)[WIDTH]) {
            poor += write_terms<TERMS, BF16, false>(p, to + (i - mine) * apart, v, scale, dtype, keeps);
        });
    if (!BF16 && p.levels.ratio && !irregular && any_of_team<TEAM>(poor > 0)) {
        float counted = 0;
        walk.each(p.columns, [&](int64_t, const float (&v)[WIDTH]) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) counted += v[j] != 0;
        });
        const auto add = [](float x, float y) { return x + y; };
        const float all_poor = all_of_team<TEAM>((float)poor, scratch, add);
        counted = all_of_team<TEAM>(counted, scratch, add);
        if (p.strict || all_poor * few_poor<TERMS>(dtype) > counted) {
            if (keeps)
                walk.each(p.depth, [&](int64_t i, const float (&v)[WIDTH]) {
                    write_terms<TERMS, BF16, false>(p, to + i - mine, v, scale, dtype, false);
                });
            ratio = write_rest<TERMS, TEAM>(walk, scratch, to, scale, counted, &irregular);
        }
    }
    if (p.levels.wide && row == p.rows - 1)
        for (int64_t i = p.rows + thread; i < (p.rows + RFI_LEVEL_ROWS - 1) / RFI_LEVEL_ROWS * RFI_LEVEL_ROWS;
            i += TEAM)
            p.levels.wide[i] = 0;
    if (irregular && lone.column >= 0) { /* it is computed from x as it came, by the scale of that */
        row_scale = scalbnf(1.0f, -scale_exponent<BF16>(fabsf(lone.value), dtype));
        lone.column = -1;
    }
    if (thread == 0) {
        p.scale[row] = row_scale;
        if (p.irregular) p.irregular[row] = irregular;
        if (p.lone) p.lone[row] = lone;
        if (p.levels.ratio) {
            if (irregular) ratio = 0; /* nobody wants the product */
            p.levels.ratio[row] = ratio;
            p.levels.wide[row] = ratio != 0;
        }
    }
    if (p.irregular && p.verdicts.columns) write_verdicts<TEAM>(p, BF16 ? ONE_BFLOAT16 : ONE_BINARY16);
}

/* What two terms of binary16 leave of rows of W, a block a row: an odd last place of a value, if anything, where the
 * second term is normal. That is halfway between two second terms, of which the one nearer to zero is kept, so that a
 * bit says that more is there: see rfi_rest_of. */
__global__ void __launch_bounds__(THREADS) keep_rest(const __grid_constant__ rfi_cuda_split p) {
    const int64_t row = blockIdx.x;
    const double up = 1 / (double)p.scale[row];
    for (int64_t i = threadIdx.x * 8; i < p.columns; i += THREADS * 8) {
        const int64_t at = p.panel ? rfi_place(p.panel, p.panel_rows, row, i) : row * p.ld_terms + i;
        uint16_t *const second = (uint16_t *)p.low + at;
        unsigned bits = 0;
#pragma unroll
        for (int j = 0; j < 8 && i + j < p.columns; j++) {
            const float first = __half2float(((const __half *)p.high)[at + j]),
                        term = __half2float(__ushort_as_half(second[j])),
                        left = (float)(((const float *)p.data)[row * p.ld + i + j] * up - first - term);
            const uint16_t nearer = second[j] - ((left < 0) != (term < 0));
            const float kept = __half2float(__ushort_as_half(nearer));
            if (left == 0 || left + (term - kept) != rfi_rest_of(kept)) continue; /* of a subnormal: not one bit */
            second[j] = nearer;
            bits |= 1u << j;
        }
        p.rest[i / 8 * p.rest_ld + row] = (uint8_t)bits;
    }
}

/* Rounded to 10 bits behind the point, ties away from zero; what is finite stays so. */
__device__ __forceinline__ float to_tf32(float v) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    const float rounded = __uint_as_float(bits & 0xffffe000);
    return fabsf(v) < INFINITY ? fabsf(rounded) < INFINITY ? rounded : copysignf(0x1.ffcp127f, v) : v;
}

/* A block a row: values as tensor cores take them for TF32. Infinities and NaN are what they are: no row is irregular.
 */
__global__ void __launch_bounds__(THREADS) round_rows(const __grid_constant__ rfi_cuda_split p) {
    const int64_t row = blockIdx.x, first = row * p.ld;
    const bool whole = is_whole(p);
    float *to = (float *)p.high + row * p.ld_terms;
    rfi_begin(p.clear);
    rfi_clear_words(p.clear);
#pragma unroll 4
    for (int64_t i = threadIdx.x * WIDTH; i < p.depth; i += THREADS * WIDTH) {
        float v[WIDTH];
        load_values(p, first, i, p.dtype, whole, v);
#pragma unroll
        for (int j = 0; j < WIDTH; j++) v[j] = to_tf32(v[j]);
        *(float4 *)(to + i) = make_float4(v[0], v[1], v[2], v[3]);
    }
    if (threadIdx.x == 0 && p.irregular) p.irregular[row] = 0;
}

} // namespace

template <int TERMS, bool BF16> static void (*split_kernel(int team, bool plain))(rfi_cuda_split) {
    switch (team) {
    case HALF_WARP: return plain ? split_rows<TERMS, BF16, HALF_WARP, true> : split_rows<TERMS, BF16, HALF_WARP, false>;
    case WARP: return plain ? split_rows<TERMS, BF16, WARP, true> : split_rows<TERMS, BF16, WARP, false>;
    case FEW_THREADS:
        return plain ? split_rows<TERMS, BF16, FEW_THREADS, true> : split_rows<TERMS, BF16, FEW_THREADS, false>;
    case MIDDLE_THREADS:
        return plain ? split_rows<TERMS, BF16, MIDDLE_THREADS, true> : split_rows<TERMS, BF16, MIDDLE_THREADS, false>;
    default: return plain ? split_rows<TERMS, BF16, THREADS, true> : split_rows<TERMS, BF16, THREADS, false>;
    }
}

cudaError_t rfi_cuda_launch_split(const rfi_cuda_split *split, cudaStream_t stream) {
    if (split->rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (!split->rows) return cudaSuccess;
    if (split->term_dtype == RF_FLOAT32)
        return rfi_launch(round_rows, split, dim3((unsigned)split->rows), THREADS, 0, stream, split->clear.overlaps);
    const int team = split->rows <= FEW_ROWS ? FEW_THREADS
        : split->depth <= RFI_SHORTEST_ROW   ? HALF_WARP
        : split->depth <= SHORT_ROW          ? WARP
        : split->depth <= MIDDLE_ROW         ? MIDDLE_THREADS
                                             : THREADS;
    const bool whole = is_whole(*split), plain = split->dtype == RF_FLOAT32 && whole,
               bf16 = split->term_dtype == RF_BFLOAT16;
    const bool keeps =
        team == MIDDLE_THREADS ? split->dtype == RF_FLOAT32 && !whole : team == THREADS && split->dtype != RF_FLOAT64;
    const int64_t row = split->columns * item_of(split->dtype),
                  kept = !keeps ? 0
        : row < KEPT_BYTES      ? row
                                : KEPT_BYTES,
                  rows = team <= WARP ? SHORT_THREADS / team : 1;
    const auto kernel = split->terms == 3 ? split_kernel<3, true>(team, plain)
        : bf16                            ? split_kernel<2, true>(team, plain)
        : split->terms == 2               ? split_kernel<2, false>(team, plain)
                                          : split_kernel<1, false>(team, plain);
    const cudaError_t error = rfi_launch(kernel, split, dim3((unsigned)((split->rows + rows - 1) / rows)),
        team <= WARP ? SHORT_THREADS : team, (size_t)kept, stream, split->clear.overlaps);
    return error || !split->rest ? error
                                 : rfi_launch(keep_rest, split, dim3((unsigned)split->rows), THREADS, 0, stream);
}
