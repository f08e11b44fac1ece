/* SPDX-License-Identifier: MIT */
/* Few rows that terms do not represent, by plain multiply-adds that read W once, which is in one term or two.
 * To bring a stage to tensor cores takes longer than to multiply it with so few rows. Infinities multiply as they are:
 * what is finite beside them is brought to where its sums do not overflow, but not to zero unless it is.
 *
 * The warps of a block share out K by chunks of 32 columns, each with a ring of its own, and wait for nobody before
 * their sums are added. A lane has up to eight rows of a few features, so that what it reads of shared memory is used
 * often enough. A row's sums depend neither on the rows beside it nor on how many there are. */
#ifndef ROWFOLD_CUDA_IRREGULAR_PLAIN_CUH
#define ROWFOLD_CUDA_IRREGULAR_PLAIN_CUH

#include <type_traits>

#include "common/irregular_tile.cuh"

namespace irregular_tile {
namespace plain {

constexpr int FEATURES = 64, CHUNK = 32;
constexpr int W_ROW = 2 * CHUNK, W_TERM = FEATURES * W_ROW, X_ROW = 4 * (CHUNK + 4); /* bytes of a chunk in a ring; rows
                                                     of x apart by a bank, for those of a lane are side by side */
constexpr int TILE_LD = FEATURES + 4, TILE_BYTES = PLAIN_ROWS * TILE_LD * 4;
constexpr int SUMS_BYTES = WARPS * PLAIN_ROWS * FEATURES * 4; /* behind the tile, where the rings were */

__device__ __forceinline__ float load_shared_32(uint32_t from) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
    return v;
}

/* What a lane brings of W's chunks: of every eighth row the piece at `column`. */
struct WChunks {
    const uint16_t *high, *low;
    int64_t base, apart, panel_step, first, out_features, end;
    int shift, mask, turn, column, to; /* `to`: in a chunk */
    __device__ __forceinline__ WChunks(const rfi_cuda_fold &p, int64_t column0, int lane)
        : high((const uint16_t *)p.product.w.data), low((const uint16_t *)p.product.w.low), first(column0 + lane / 4),
          out_features(p.product.out_features), end(p.product.depth), column(lane % 4 * 8) {
        const int panel = p.product.w.panel, row = lane / 4;
        mask = panel - 1;
        shift = panel ? 31 - __clz(panel) : 0;
        panel_step = panel ? p.product.w.ld / RFI_BLOCK_ROWS * rfi_block_values(panel) : 0;
        base = panel ? rfi_place(panel, p.product.w.ld, first, 0) : first * p.product.w.ld;
        turn = panel ? (int)(base & mask) : 0; /* the same for every eighth row */
        base -= turn;
        apart = panel ? 8 * panel : 8 * p.product.w.ld;
        to = place_of<W_ROW>(row, lane % 4);
    }
    __device__ __forceinline__ void load(uint32_t ring, int64_t k0) const {
        const int64_t k = k0 + column, at = mask < 0 ? k : (k >> shift) * panel_step + ((int)k & mask ^ turn);
#pragma unroll
        for (int i = 0; i < FEATURES / 8; i++) {
            const bool reads = first + 8 * i < out_features && k < end;
            const int64_t from = reads ? base + i * apart + at : 0;
            rfi_copy_async_16(ring + to + i * 8 * W_ROW, high + from, reads ? 16 : 0);
            if (low) rfi_copy_async_16(ring + W_TERM + to + i * 8 * W_ROW, low + from, reads ? 16 : 0);
        }
    }
};

/* And of x's: of every fourth row the piece of four values at `column`, which it scales itself. */
template <int ROWS> struct XChunks {
    static constexpr int STEPS = ROWS / 4;
    const rfi_cuda_product &product;
    rfi_cuda_rows from;
    int64_t row[STEPS], end; /* -1: not there */
    float a[STEPS], b[STEPS];
    bool infinite[STEPS]; /* has infinities: nothing else counts, but that it is not zero, of the finite values */
    int column, to;
    bool narrow, bfloat16, whole; /* values of 16 bits, which lie in a chunk as they are until they are scaled; pieces
                                     may be read at once */
    __device__ __forceinline__ XChunks(const rfi_cuda_fold &p, const int *list, int rows, int lane)
        : product(p.product), from(p.product.x_stored), end(p.product.in_features), column(lane % 8 * 4),
          to(lane / 8 * X_ROW + column * 4), narrow(from.dtype == RF_FLOAT16 || from.dtype == RF_BFLOAT16),
          bfloat16(from.dtype == RF_BFLOAT16), whole((narrow || from.dtype == RF_FLOAT32) &&
                                                   (uintptr_t)from.data % (narrow ? 8 : 16) == 0 && from.ld % 4 == 0) {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int r = i * 4 + lane / 8;
            row[i] = r < rows ? list[r] : -1;
            const float scale = row[i] < 0 ? 1 : p.product.x.scale[row[i]];
            infinite[i] = scale == INFINITY;
            const int exponent = infinite[i] ? 0 : up_of(p.product) - ilogbf(scale), second = max(exponent - 127, 0);
            a[i] = __int_as_float((exponent - second + 127) << 23);
            b[i] = __int_as_float((second + 127) << 23);
        }
    }
    __device__ __forceinline__ void load(uint32_t ring, int64_t k0) const {
        const int64_t k = k0 + column;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const uint32_t at = ring + to + i * 4 * X_ROW;
            const int64_t first = row[i] * from.ld + k;
            if (row[i] < 0 || k >= product.depth) rfi_copy_async_16(at, product.x.data, 0); /* zeros */
            else if (whole && k + 4 <= end) {
                if (narrow) rfi_copy_async_8(at, (const uint16_t *)from.data + first, 8);
                else rfi_copy_async_16(at, (const float *)from.data + first, 16);
            } else if (narrow) {
                /* All of them at once: no branch on what the type is. */
                uint16_t v[4];
#pragma unroll
                for (int j = 0; j < 4; j++) v[j] = k + j < end ? ((const uint16_t *)from.data)[first + j] : 0;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    if (k + j >= end && k + j < product.depth) v[j] = verdict_at(row[i], k + j, 1, 0x8001);
                    store_shared_16(at + 2 * j, v[j]);
                }
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    store_shared_32(at + 4 * j,
                        k + j < end                 ? rfi_load_as<float>(from.data, from.dtype, first + j)
                            : k + j < product.depth ? verdict_at(row[i], k + j, 0x1p-149f, -0x1p-149f)
                                                    : 0);
            }
        }
    }
    /* As small as can be: scaled it must stay finite, for rows of W that have no verdict there have a zero. */
    template <class T> __device__ __forceinline__ T verdict_at(int64_t row, int64_t k, T up, T down) const {
        const float v = x_at(product, row, k);
        return v > 0 ? up : v < 0 ? down : 0;
    }
    __device__ __forceinline__ void scale(uint32_t ring) const {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const uint32_t at = ring + to + i * 4 * X_ROW;
            uint4 v = load_shared(at);
            if (narrow) {
                float values[8];
                pieces::widen(values, v, bfloat16);
                v = pieces::pack(values, 0);
            }
            uint32_t *const word = (uint32_t *)&v;
#pragma unroll
            for (int j = 0; j < 4; j++) word[j] = __float_as_uint(scaled(__uint_as_float(word[j]), i));
            store_shared(at, v);
        }
    }
    __device__ __forceinline__ float scaled(float v, int i) const {
        const float to = infinite[i] ? copysignf(0x1p-64f, v) : v * a[i] * b[i], kept = copysignf(0x1p-149f, v);
        return v == 0 || (infinite[i] & (fabsf(v) == INFINITY)) ? v : to == 0 ? kept : to;
    }
};

/* How W is in a chunk. Branches on that lie around a whole chunk: within, what each of them loads would be waited for
 * by itself. */
enum Form { ONE_TERM, TWO_TERMS, TWO_WITH_INFINITIES };

/* Eight values of W at `from`. `infinite`: of a row with infinities, see rfi_cuda_rows: these, and 1 with its sign for
 * what is not zero. */
template <bool BF16, Form FORM>
__device__ __forceinline__ void load_values(float (&v)[8], uint32_t from, bool infinite) {
    const uint4 first = load_shared(from);
    pieces::widen(v, first, BF16);
    if (FORM == ONE_TERM) return;
    const uint4 second = load_shared(from + W_TERM);
    float rest[8];
    pieces::widen(rest, second, BF16);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] += rest[i];
    if (FORM == TWO_TERMS) return;
    const Words high = words_of(first), low = words_of(second);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t h = high.w[i / 2] >> i % 2 * 16, l = low.w[i / 2] >> i % 2 * 16 & 0xffff,
                       odd = (h & 0x8000) << 16 |
            (h & 0x7fff ? 0x7f800000
                    : l ? 0x3f800000
                        : 0);
        v[i] = infinite ? __uint_as_float(odd) : v[i];
    }
}

/* What a lane has of a tile: every FEATURE_LANES-th feature from f0 on, every ROW_LANES-th row from r0 on. */
template <int ROWS> struct Lanes {
    static constexpr int LANE_ROWS = ROWS < 8 ? ROWS : 8;
    static constexpr int ROW_LANES = ROWS / LANE_ROWS, FEATURE_LANES = 32 / ROW_LANES, EACH = FEATURES / FEATURE_LANES;
    static_assert(FEATURE_LANES % 8 == 0, "the features of a lane are permuted alike");
    int f0, r0;
    unsigned infinite; /* bit j: the j-th of the features has infinities */
};

/* sum += a chunk */
template <bool BF16, Form FORM, int ROWS>
__device__ __forceinline__ void multiply_chunk(float (&sum)[Lanes<ROWS>::EACH][Lanes<ROWS>::LANE_ROWS],
    const Lanes<ROWS> &lane, uint32_t w_chunk, uint32_t x_chunk) {
    constexpr int EACH = Lanes<ROWS>::EACH, LANE_ROWS = Lanes<ROWS>::LANE_ROWS;
#pragma unroll
    for (int piece = 0; piece < CHUNK / 8; piece++) {
        float v[EACH][8];
#pragma unroll
        for (int j = 0; j < EACH; j++)
            load_values<BF16, FORM>(v[j],
                w_chunk + j * Lanes<ROWS>::FEATURE_LANES * W_ROW + place_of<W_ROW>(lane.f0, piece),
                lane.infinite >> j & 1);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) {
            const uint32_t at = x_chunk + (lane.r0 + r * Lanes<ROWS>::ROW_LANES) * X_ROW + piece * 32;
            const uint4 first = load_shared(at), second = load_shared(at + 16);
            float xs[8];
            pieces::unpack(xs, first, 0);
            pieces::unpack(xs, second, 1);
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) sum[j][r] = fmaf(xs[i], v[j][i], sum[j][r]);
        }
    }
}

/* Logits without bias of `rows` rows, ROWS at most, those of notes.list from `from` on, to `tile`, which has `bytes`.
 * `infinite`: rows of W have infinities here. */
template <bool BF16, bool TWO, int ROWS, class Sync> __device__ __noinline__ void multiply_rows(const rfi_cuda_fold &p,
    float *tile, int bytes, const Notes &notes, bool infinite, int from, int rows, int64_t column0, int thread,
    Sync sync) {
    constexpr int ROW_LANES = Lanes<ROWS>::ROW_LANES, FEATURE_LANES = Lanes<ROWS>::FEATURE_LANES,
                  EACH = Lanes<ROWS>::EACH, LANE_ROWS = Lanes<ROWS>::LANE_ROWS;
    const int *const list = notes.list + from;
    const int lane = thread % 32, warp = thread / 32;
    Lanes<ROWS> mine = {lane % FEATURE_LANES, lane / FEATURE_LANES, 0};
    for (int j = 0; j < EACH; j++)
        if (notes.w_scale[mine.f0 + j * FEATURE_LANES] == INFINITY) mine.infinite |= 1u << j;
    constexpr int x_at = (TWO ? 2 : 1) * W_TERM, slot_bytes = x_at + ROWS * X_ROW;
    const int slots = min(bytes / WARPS / slot_bytes, MOST_STAGES);
    const uint32_t shared = rfi_shared_address(tile), rings = shared + warp * slots * slot_bytes;
    const WChunks w(p, column0, lane);
    const XChunks<ROWS> x(p, list, rows, lane);
    float sum[EACH][LANE_ROWS] = {};
    int64_t asked = warp * CHUNK;
    const auto load = [&](int slot) {
        if (asked < p.product.depth) {
            w.load(rings + slot * slot_bytes, asked);
            x.load(rings + slot * slot_bytes + x_at, asked);
        }
        rfi_copy_commit();
        asked += WARPS * CHUNK;
    };
    sync(); /* what lay in this memory is read */
    for (int slot = 0; slot < slots; slot++) load(slot);
    int slot = 0;
    for (int64_t k0 = warp * CHUNK; k0 < p.product.depth; k0 += WARPS * CHUNK) {
        const uint32_t w_chunk = rings + slot * slot_bytes, x_chunk = w_chunk + x_at;
        wait_for_oldest(slots);
        x.scale(x_chunk); /* what it has brought itself */
        __syncwarp();     /* the chunk is there */
        if constexpr (!TWO) multiply_chunk<BF16, ONE_TERM>(sum, mine, w_chunk, x_chunk);
        else if (!infinite) multiply_chunk<BF16, TWO_TERMS>(sum, mine, w_chunk, x_chunk);
        else multiply_chunk<BF16, TWO_WITH_INFINITIES>(sum, mine, w_chunk, x_chunk);
        __syncwarp(); /* the chunk is read */
        load(slot);
        if (++slot == slots) slot = 0;
    }
    rfi_copy_wait<0>();
    sync(); /* all rings are read */
    const uint32_t sums = shared + TILE_BYTES;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++)
#pragma unroll
        for (int j = 0; j < EACH; j++)
            store_shared_32(
                sums + 4 * ((warp * ROWS + mine.r0 + r * ROW_LANES) * FEATURES + mine.f0 + j * FEATURE_LANES),
                sum[j][r]);
    sync(); /* the sums of all warps are there */
    for (int i = thread; i < rows * FEATURES; i += THREADS) {
        const int r = i / FEATURES, c = i % FEATURES;
        float all = 0;
#pragma unroll
        for (int other = 0; other < WARPS; other++) all += load_shared_32(sums + 4 * (other * ROWS * FEATURES + i));
        tile[r * TILE_LD + c] =
            (float)((double)all * (double)p.product.x.scale[list[r]] * (double)notes.w_scale[c] * down_of(p.product));
    }
    sync(); /* the tile is written */
}

/* In place of sums in registers: the logits of a tile, of up to PLAIN_ROWS rows of any kind. W is of binary16 or of
 * bfloat16, in one term or two, and no batch has more than MOST rows: a kernel has code for its own alone. */
template <bool BF16, int W_TERMS, int MOST> struct Sums {
    static_assert(W_TERMS <= 2 && MOST <= PLAIN_ROWS, "as multiply_rows does");
    static constexpr bool PLAIN = true;
    typedef Shape<VALUES, 64, FEATURES> Tile;
    static_assert(Tile::TILE_LD == TILE_LD, "the same tile");
    static_assert(TILE_BYTES + SUMS_BYTES <= Tile::TWO_STAGES_BYTES &&
            WARPS * (2 * W_TERM + PLAIN_ROWS * X_ROW) <= Tile::TWO_STAGES_BYTES,
        "they fit, and a chunk of each warp at least");
    template <class Sync> static __device__ __forceinline__ void multiply(const rfi_cuda_fold &p, float *tile,
        int bytes, const Notes &notes, bool infinite, int first, int rows, int64_t column0, int thread, Sync sync) {
        const auto run = [&](auto most) {
            multiply_rows<BF16, W_TERMS == 2, decltype(most)::value>(
                p, tile, bytes, notes, infinite, first, rows, column0, thread, sync);
        };
        if (rows <= 4) run(std::integral_constant<int, 4>());
        else if (MOST <= 8 || rows <= 8) run(std::integral_constant<int, 8>());
        else if constexpr (MOST > 8) run(std::integral_constant<int, PLAIN_ROWS>());
    }
};

} // namespace plain
} // namespace irregular_tile
#endif
