/* SPDX-License-Identifier: MIT */
/* Launching a Hopper kernel: its tensor maps and its grid. Each tile has a file of its own, for they take long to
 * compile. */
#ifndef ROWFOLD_CUDA_SM90_LAUNCH_CUH
#define ROWFOLD_CUDA_SM90_LAUNCH_CUH

#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <string.h>

#include "sm90/fold.cuh"

namespace hopper {
namespace {

using Encode = PFN_cuTensorMapEncodeTiled_v12000;

/* libcuda is not linked with: the library must load on machines without a driver. NULL if the driver has no such
 * function. */
Encode find_encode() {
    void *symbol = NULL;
    cudaDriverEntryPointQueryResult result;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &result);
    return !error && result == cudaDriverEntryPointSuccess ? (Encode)symbol : NULL;
}

/* What a tensor map is of: 16-bit values, or halves of 32-bit ones, the nearest dimension first, strides in bytes. */
struct Map {
    int dimensions;
    cuuint64_t size[3], stride[2];
    cuuint32_t box[3];
    CUtensorMapSwizzle swizzle;
};

bool same(const Map &a, const Map &b) {
    return a.dimensions == b.dimensions && a.swizzle == b.swizzle && !memcmp(a.size, b.size, sizeof a.size) &&
        !memcmp(a.stride, b.stride, sizeof a.stride) && !memcmp(a.box, b.box, sizeof a.box);
}

/* The latest of a thread: more than the twelve of a call. */
enum { KNOWN = 16 };

/* A map is a function of what it is asked for alone. So those of W are encoded once, and those of x where its place or
 * shape has changed. */
cudaError_t encode(CUtensorMap *map, const void *data, int dtype, const Map &m) {
    struct Known {
        const void *data;
        int dtype; /* 0: not yet used */
        Map asked;
        CUtensorMap map;
    };
    static thread_local Known known[KNOWN];
    static thread_local int next;
    for (const Known &k : known)
        if (k.data == data && k.dtype == dtype && same(k.asked, m)) {
            *map = k.map;
            return cudaSuccess;
        }
    static const Encode encode = find_encode();
    if (!encode) return cudaErrorNotSupported;
    const CUtensorMapDataType type =
        dtype == RF_BFLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const cuuint32_t step[3] = {1, 1, 1};
    CUresult result = encode(map, type, m.dimensions, const_cast<void *>(data), m.size, m.stride, m.box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, m.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) return cudaErrorInvalidValue;
    known[next] = {data, dtype, m, *map};
    next = (next + 1) % KNOWN;
    return cudaSuccess;
}

/* Boxes of `box_rows` rows of `row_bytes` bytes, 32, 64 or 128, of a matrix, swizzled as wgmma reads them; one more
 * dimension of one where `dimensions` is 3. Reads outside of the matrix give zeros. */
cudaError_t encode_rows(CUtensorMap *map, const void *data, const rfi_cuda_rows &matrix, int64_t rows, int64_t columns,
    int row_bytes, int box_rows, int dimensions) {
    const cuuint64_t row = (cuuint64_t)matrix.ld * (matrix.dtype == RF_FLOAT32 ? 4 : 2);
    return encode(map, data, matrix.dtype,
        {dimensions, {(cuuint64_t)columns, (cuuint64_t)rows, 1}, {row, row * (cuuint64_t)rows},
            {(cuuint32_t)row_bytes / 2, (cuuint32_t)box_rows, 1},
            row_bytes == 128      ? CU_TENSOR_MAP_SWIZZLE_128B
                : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                  : CU_TENSOR_MAP_SWIZZLE_32B});
}

/* The same of a term of W in blocks, which are swizzled already, by three coordinates: 0, 0 and the block. A box is of
 * whole blocks. What lies together in a block and a term is read as rows of `piece` values, for TMA takes its time for
 * rows: see few-rows.md 22. */
cudaError_t encode_blocks(
    CUtensorMap *map, const void *data, const rfi_cuda_rows &w, int64_t columns, int box_rows, cuuint64_t piece) {
    const cuuint64_t panel = (cuuint64_t)w.panel, pieces = panel * RFI_BLOCK_ROWS / piece,
                     blocks = ((cuuint64_t)columns + panel - 1) / panel * ((cuuint64_t)w.ld / RFI_BLOCK_ROWS);
    return encode(map, data, w.dtype,
        {3, {piece, pieces, blocks}, {piece * 2, (cuuint64_t)rfi_block_values(w.panel) * 2},
            {(cuuint32_t)piece, (cuuint32_t)pieces, (cuuint32_t)box_rows / RFI_BLOCK_ROWS},
            CU_TENSOR_MAP_SWIZZLE_NONE});
}

const void *term_of(const rfi_cuda_rows &rows, int i) { return i == 0 ? rows.data : i == 1 ? rows.low : rows.least; }

/* Columns of x that are read, those of the second level included. */
int64_t columns_of(const rfi_cuda_product &f) { return f.x.level ? 2 * f.x.level : f.depth; }

/* Maps of TERMS terms of `rows` rows by boxes of `box_rows`, and of the rest, by a multiple of `unit` rows, to
 * *rest_rows how many: encode(map, term, rows of a box) makes one. */
template <int TERMS, class Encode> cudaError_t encode_terms(CUtensorMap (&whole)[3], CUtensorMap (&rest)[3],
    int32_t *rest_rows, int64_t rows, int box_rows, int unit, Encode encode) {
    *rest_rows = (int32_t)((rows % box_rows + unit - 1) / unit * unit);
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < TERMS && !error; i++) {
        if (rows >= box_rows) error = encode(&whole[i], i, box_rows);
        if (!error && *rest_rows) error = encode(&rest[i], i, *rest_rows);
        if (rows < box_rows) whole[i] = rest[i]; /* blocks fetch the first map before they know which they need */
    }
    return error;
}

/* Of x and W, by boxes of so many rows and of rows of so many bytes; of W in blocks what lies together is read as rows
 * of `piece` values. */
template <int X_TERMS, int W_TERMS> cudaError_t encode_operands(
    Parameters *p, int64_t x_columns, int x_bytes, int x_rows, int64_t w_columns, int w_bytes, int w_rows, int piece) {
    const rfi_cuda_product &f = p->fold.product;
    const auto x = [&](CUtensorMap *map, int term, int rows) {
        return encode_rows(map, term_of(f.x, term), f.x, f.batch, x_columns, x_bytes, rows, 2);
    };
    const auto w = [&](CUtensorMap *map, int term, int rows) {
        return f.w.panel ? encode_blocks(map, term_of(f.w, term), f.w, f.depth, rows, (cuuint64_t)piece)
                         : encode_rows(map, term_of(f.w, term), f.w, f.out_features, w_columns, w_bytes, rows, 3);
    };
    const cudaError_t error = encode_terms<X_TERMS>(p->x, p->x_rest, &p->x_rest_rows, f.batch, x_rows, 8, x);
    return error ? error
                 : encode_terms<W_TERMS>(
                       p->w, p->w_rest, &p->w_rest_rows, f.out_features, w_rows, f.w.panel ? RFI_BLOCK_ROWS : 8, w);
}

template <class C> cudaError_t fill(Parameters *p, const rfi_cuda_fold &f) {
    memset(p, 0, sizeof *p);
    p->fold = f;
    if (!takes<C>(f)) return cudaErrorInvalidConfiguration;
    p->m_tiles = (int32_t)((f.product.batch + C::BM - 1) / C::BM);
    const int32_t all_tiles = (int32_t)((f.product.out_features + C::BN - 1) / C::BN);
    p->first_tile = f.schedule.first_column / C::BN;
    p->n_tiles = (f.schedule.end_column ? f.schedule.end_column / C::BN : all_tiles) - p->first_tile;
    /* What lies behind the last column is zeros. */
    constexpr int64_t DEPTH = C::K * C::DEPTH;
    p->stages = (int32_t)((f.product.depth * C::UNITS + DEPTH - 1) / DEPTH * C::DEPTH);
    p->w_column = f.product.w.panel ? 0 : C::K;
    p->w_block = f.product.w.panel ? (int32_t)(f.product.w.ld / RFI_BLOCK_ROWS) : 0;
    p->m_group = 16 / C::CLUSTER_M; /* 16 row tiles of x stay in the L2 while W passes */
    p->slots = all_tiles * C::SPLITS;
    p->group_slot = (p->slots + 1) / 2 * 2;
    constexpr int W_PART = C::BN / C::CLUSTER_M;
    static_assert(W_PART % RFI_BLOCK_ROWS == 0, "boxes of whole blocks");
    return encode_operands<C::X_TERMS, C::W_TERMS>(p, columns_of(f.product) * C::UNITS, C::ROW, C::BM / C::CLUSTER_N,
        f.product.depth * C::UNITS, C::ROW, W_PART, (int)f.product.w.panel);
}

/* Allows the kernel its shared memory, and says how many multiprocessors there are: once for a kernel and a device. */
inline cudaError_t set_up(const void *kernel, int shared, int *multiprocessors) {
    struct Ready {
        const void *kernel;
        int device, shared, multiprocessors;
    };
    static thread_local Ready ready[KNOWN];
    static thread_local int next;
    int device, most;
    cudaError_t error = cudaGetDevice(&device);
    if (error) return error;
    for (const Ready &r : ready)
        if (r.kernel == kernel && r.device == device && r.shared == shared) {
            *multiprocessors = r.multiprocessors;
            return cudaSuccess;
        }
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (!error) error = cudaDeviceGetAttribute(&most, cudaDevAttrMultiProcessorCount, device);
    if (error) return error;
    ready[next] = {kernel, device, shared, most};
    next = (next + 1) % KNOWN;
    *multiprocessors = most;
    return cudaSuccess;
}

/* Whether a launch that waits for W had better not begin early. Where the one in front leaves half of the
 * multiprocessors its blocks would get the others, and then what that gives back: pairs that share a way to memory
 * (few-rows.md 66), while a device that nothing runs on has one for each block. */
inline bool fits_better_alone(const rfi_cuda_fold &f, int blocks, int multiprocessors) {
    return f.product.batch <= 96 && 8 * blocks > 3 * multiprocessors && 11 * blocks < 8 * multiprocessors;
}

/* As many blocks as there are tiles for, or as the device runs at a time, in whole clusters; to *blocks how many. The
 * kernel is to call rfi_wait_for_previous. */
template <class P> cudaError_t launch_blocks(const void *kernel, P *p, int64_t tiles, int cluster, int threads,
    int shared, cudaStream_t stream, int *blocks = nullptr) {
    int most;
    cudaError_t error = set_up(kernel, shared, &most);
    if (error) return error;
    const int64_t clusters = (tiles + cluster - 1) / cluster;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)((clusters < most / cluster ? clusters : most / cluster) * cluster));
    if (blocks) *blocks = (int)config.gridDim.x;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = (size_t)shared;
    config.stream = stream;
    config.attrs = attributes;
    /* What belongs to columns is read before what is in front has finished; W is waited for where it must be. */
    rfi_cuda_schedule &s = p->fold.schedule;
    if (s.w_in_flight && fits_better_alone(p->fold, (int)config.gridDim.x, most)) s.apart = 1;
    config.numAttrs = !s.apart || follows_own(p->fold) ? 2 : 1;
    void *arguments[] = {p};
    return cudaLaunchKernelExC(&config, kernel, arguments);
}

/* Merges what a fold without tickets has written: `slots` states of a row, from number `first` on. Of several results
 * there are none where only what goes beside them is wanted. */
cudaError_t finish_apart(const rfi_cuda_fold &f, int first, int slots, cudaStream_t stream) {
    const bool gives = f.visitor.chain.reduction == RFI_CUDA_ANSWERS ? f.visitor.num_results > 0
                                                                     : f.visitor.chain.reduction != RF_OP_NONE;
    return gives && !f.schedule.tickets ? rfi_cuda_finish_sm90(&f, first, slots, stream) : cudaSuccess;
}

template <class C> cudaError_t launch(const rfi_cuda_fold &f, cudaStream_t stream) {
    Parameters p;
    cudaError_t error = fill<C>(&p, f);
    const int64_t clusters =
        (int64_t)((p.m_tiles + C::CLUSTER_M - 1) / C::CLUSTER_M) * ((p.n_tiles + C::CLUSTER_N - 1) / C::CLUSTER_N);
    if (!error)
        error = launch_blocks(
            (const void *)fold_kernel<C>, &p, clusters * C::CLUSTER, C::CLUSTER, THREADS, C::SHARED, stream);
    return error || finishes_alone<C>(p) ? error : finish_apart(f, 0, p.slots, stream);
}

/* The same of one product of 16-bit values, the blocks of a cluster neighbours along the batch. Where all rows are in
 * one tile they are so along the columns, for the second would have no rows; but not of a search, a launch of which may
 * end with an odd tile of columns. */
template <bool BF16, int BM, int BN, bool ANSWERS>
cudaError_t launch_single(const rfi_cuda_fold &f, cudaStream_t stream) {
    return f.product.batch <= BM ? launch<Config<1, 1, BF16, BM, BN, 1, 2, ANSWERS, false>>(f, stream)
                                 : launch<Config<1, 1, BF16, BM, BN, 2, 1, ANSWERS, false>>(f, stream);
}

/* Whether the logits are stored, of one product, beside which storing them shows: see stores.cu. */
inline bool stores(const rfi_cuda_fold &f) {
    return f.visitor.chain.reduction == RF_OP_NONE && f.product.w.dtype != RF_FLOAT32 &&
        rfi_terms_of(f.product.x) == 1 && rfi_terms_of(f.product.w) == 1;
}

/* Are there several products, of terms? */
inline bool has_terms(const rfi_cuda_fold &f) {
    return f.product.w.dtype != RF_FLOAT32 && rfi_terms_of(f.product.x) + rfi_terms_of(f.product.w) > 2;
}

template <int BM, int BN, int CLUSTER_M, int CLUSTER_N, bool ANSWERS = false, bool SEARCHES = false>
cudaError_t launch_terms(const rfi_cuda_fold &f, cudaStream_t stream) {
    const int x_terms = rfi_terms_of(f.product.x), w_terms = rfi_terms_of(f.product.w);
    if (w_terms == 3) return launch<Config<3, 3, true, BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES>>(f, stream);
    if (x_terms == 3) return launch<Config<3, 1, true, BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES>>(f, stream);
    if (x_terms == 2 && w_terms == 2)
        return launch<Config<2, 2, false, BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES>>(f, stream);
    if (w_terms == 2) return launch<Config<1, 2, false, BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES>>(f, stream);
    if (f.product.w.dtype == RF_BFLOAT16)
        return launch<Config<2, 1, true, BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES>>(f, stream);
    return launch<Config<2, 1, false, BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES>>(f, stream);
}

template <int BM, int BN, int CLUSTER_M, int CLUSTER_N, bool ANSWERS = false, bool SEARCHES = false>
cudaError_t launch_product(const rfi_cuda_fold &f, cudaStream_t stream) {
    const bool bf16 = f.product.w.dtype == RF_BFLOAT16;
    if (f.product.w.dtype == RF_FLOAT32)
        return launch<Config<1, 1, false, BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES, false, true>>(f, stream);
    if constexpr (CLUSTER_M == 2 && !SEARCHES) {
        return bf16 ? launch_single<true, BM, BN, ANSWERS>(f, stream)
                    : launch_single<false, BM, BN, ANSWERS>(f, stream);
    } else {
        return bf16 ? launch<Config<1, 1, true, BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES>>(f, stream)
                    : launch<Config<1, 1, false, BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES>>(f, stream);
    }
}

template <int BM, int BN, int CLUSTER_M, int CLUSTER_N, bool ANSWERS = false, bool SEARCHES = false>
cudaError_t launch_for(const rfi_cuda_fold &f, cudaStream_t stream) {
    return has_terms(f) ? launch_terms<BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES>(f, stream)
                        : launch_product<BM, BN, CLUSTER_M, CLUSTER_N, ANSWERS, SEARCHES>(f, stream);
}

} // namespace
} // namespace hopper
#endif
