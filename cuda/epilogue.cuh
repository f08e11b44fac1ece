/* From logits to y: steps on register chunks, the fold of a tile's rows to partial states, and their deterministic
 * combination. */
#ifndef ROWFOLD_CUDA_EPILOGUE_CUH
#define ROWFOLD_CUDA_EPILOGUE_CUH

#include "typed.cuh"

/* A sum, by the scales of its row and column, the smaller first: a product that is in range does not overflow on the
 * way. A scale that is NaN is not lost. */
static __device__ __forceinline__ float rfi_unscale(float v, float a, float b) { return a < b ? v * a * b : v * b * a; }

/* The steps on a chunk of ROWS x COLS values held in registers. The branch on the kind is taken once a chunk. column(j)
 * is the feature of column j of the chunk; those beyond the last feature compute garbage that nobody reads, from the
 * last feature's parameters. */
template <int ROWS, int COLS, class T, class Column>
static __device__ __forceinline__ void rfi_apply_steps(const rfi_cuda_fold &p, T (&v)[ROWS][COLS], Column column) {
    T saved[ROWS][COLS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) saved[r][c] = 0;
#pragma unroll 1
    for (int i = 0; i < p.chain.num_pre; i++) {
        const rfi_cuda_step &step = p.chain.steps[i];
        T a[COLS], b = rfi_typed<T>::b(step);
#pragma unroll
        for (int c = 0; c < COLS; c++) a[c] = rfi_typed<T>::a(step);
        if (step.vector >= 0) {
            const T *vector = (const T *)p.vectors + step.vector * p.out_features;
#pragma unroll
            for (int c = 0; c < COLS; c++) a[c] = column(c) < p.out_features ? vector[column(c)] : (T)0;
        }
        switch (step.op) {
#define RFI_OP(id, number, name, params, flags, formula, doc)                                               \
    case RFI_CUDA_OP_##id:                                                                                  \
        _Pragma("unroll") for (int r = 0; r < ROWS; r++) _Pragma("unroll") for (int c = 0; c < COLS; c++) { \
            v[r][c] = rfi_op_##id(v[r][c], a[c], b, saved[r][c]);                                           \
            if ((flags) & RFI_OPF_SAVES) saved[r][c] = v[r][c];                                             \
        }                                                                                                   \
        break;
#include "ops.def"
#undef RFI_OP
        }
    }
}

/* Folds COLS values of each of `lanes` neighbouring lanes (a power of two) to one state a row; every lane of a group
 * gets it. valid(j): column j counts. The order of the additions depends on the lanes alone. */
template <class R, int ROWS, int COLS, class T, class Valid> static __device__ __forceinline__ void rfi_fold_chunk(
    const T (&v)[ROWS][COLS], Valid valid, int lanes, T (&m)[ROWS], T (&t)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        R::peak0(m[r]);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            T peak = R::peak(m[r], v[r][c]);
            m[r] = valid(c) ? peak : m[r];
        }
    }
    for (int step = 1; step < lanes; step *= 2)
#pragma unroll
        for (int r = 0; r < ROWS; r++) m[r] = R::peak(m[r], __shfl_xor_sync(~0u, m[r], step));
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        t[r] = 0;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            T term = R::term(m[r], v[r][c]);
            t[r] += valid(c) ? term : (T)0;
        }
    }
    for (int step = 1; step < lanes; step *= 2)
#pragma unroll
        for (int r = 0; r < ROWS; r++) t[r] += __shfl_xor_sync(~0u, t[r], step);
}

template <int ROWS, int COLS, class T, class Valid> static __device__ __forceinline__ void rfi_fold_chunk(
    int reduction, const T (&v)[ROWS][COLS], Valid valid, int lanes, T (&m)[ROWS], T (&t)[ROWS]) {
    switch (reduction) {
#define RFI_REDUCTION(id, number, ...) \
    case number: rfi_fold_chunk<rfi_reduction_##id>(v, valid, lanes, m, t); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
}

/* Values side by side, loaded at once. */
template <class T> struct alignas(16) four {
    T v[4];
};

/* Where the states of a tile go, unless a kernel says otherwise. */
struct rfi_to_partials {
    template <class T>
    __device__ __forceinline__ void operator()(const rfi_cuda_fold &p, int64_t row, int64_t index, T m, T t) const {
        if (index < p.num_partials) ((typename rfi_typed<T>::state *)p.partials)[row * p.num_partials + index] = {m, t};
    }
};

/* A tile of logits without bias, (ROWS, COLUMNS) with rows `ld` apart in shared memory, to y or to partial states. A
 * warp takes 4 rows of RFI_FOLD_COLUMNS features at a time, 8 lanes a row, or AT_ONCE times as many rows, whose
 * latencies then overlap. The bits of a row depend neither on that nor on the kernel's tiles. `rows` of the tile exist,
 * from row `first` on, or, where there is a list, those that it names. `ld` is 4 more than a multiple of 32, so that a
 * quarter of a warp reads every bank once; the tile begins at a multiple of 16 bytes. put(p, row, index, m, t) gets
 * each state, from one thread. Reads what all threads wrote: barrier before. Not inlined: the steps are compiled once
 * for all kernels of a file. */
template <class T, int AT_ONCE = 1, class Put = rfi_to_partials> static __device__ __noinline__ void rfi_fold_tile(
    const rfi_cuda_fold &p, const T *tile, int ld, int64_t first, int rows, int64_t column0, int columns,
    const int *list = nullptr, int thread = threadIdx.x, int warps = blockDim.x / 32, Put put = Put()) {
    constexpr int LANES = 8, COLS = RFI_FOLD_COLUMNS / LANES, ROWS = 32 / LANES;
    const int lane = thread % LANES, sub = thread % 32 / LANES, slabs = columns / RFI_FOLD_COLUMNS;
    const int row_steps = (rows + ROWS * AT_ONCE - 1) / (ROWS * AT_ONCE),
              there = (int)min(p.out_features - column0, (int64_t)columns);
    for (int step = thread / 32; step < row_steps * slabs; step += warps) {
        const int r0 = step / slabs * ROWS * AT_ONCE + sub, c0 = step % slabs * RFI_FOLD_COLUMNS + lane * 4;
        /* Two runs of four features a lane, half a slab apart. */
        auto offset = [=](int c) { return c0 + c / 4 * (RFI_FOLD_COLUMNS / 2) + c % 4; };
        auto column = [=](int c) { return column0 + offset(c); };
        auto valid = [=](int c) { return offset(c) < there; };
        T v[AT_ONCE][COLS];
#pragma unroll
        for (int c = 0; c < COLS; c += 4) {
            const four<T> *bias = (const four<T> *)((const T *)p.bias + column(c));
            const four<T> shift = valid(c + 3) ? *bias
                                               : four<T>{valid(c) ? bias->v[0] : (T)0, valid(c + 1) ? bias->v[1] : (T)0,
                                                     valid(c + 2) ? bias->v[2] : (T)0, 0};
#pragma unroll
            for (int a = 0; a < AT_ONCE; a++) {
                const four<T> logits = *(const four<T> *)(tile + (r0 + a * ROWS) * ld + offset(c));
#pragma unroll
                for (int i = 0; i < 4; i++) v[a][c + i] = logits.v[i] + shift.v[i];
            }
        }
        rfi_apply_steps(p, v, column);
        T m[AT_ONCE], t[AT_ONCE];
        if (p.chain.reduction) rfi_fold_chunk(p.chain.reduction, v, valid, LANES, m, t);
#pragma unroll
        for (int a = 0; a < AT_ONCE; a++) {
            const int r = r0 + a * ROWS;
            const int64_t row = r >= rows ? -1 : list ? list[r] : first + r;
            if (row < 0 || (!list && p.irregular && p.irregular[row])) continue;
            if (p.chain.reduction) {
                if (lane == 0) put(p, row, column0 / RFI_FOLD_COLUMNS + step % slabs, m[a], t[a]);
                continue;
            }
#pragma unroll
            for (int c = 0; c < COLS; c++)
                if (valid(c)) rfi_store_as<T>(p.y, p.y_dtype, row * p.ldy + column(c), v[a][c]);
        }
    }
}

/* Partial state i of a row, past the first-level cache: another block wrote it. */
static __device__ __forceinline__ rfi_state_f32 rfi_read_state(const rfi_state_f32 *partials, int64_t i) {
    float2 v = __ldcg((const float2 *)partials + i);
    return rfi_state_f32{v.x, v.y};
}
static __device__ __forceinline__ rfi_state_f64 rfi_read_state(const rfi_state_f64 *partials, int64_t i) {
    double2 v = __ldcg((const double2 *)partials + i);
    return rfi_state_f64{v.x, v.y};
}

/* The steps behind the reduction on the number of a row, and y. */
template <class T> static __device__ __noinline__ void rfi_finish_row(const rfi_cuda_fold &p, int64_t row, T v) {
    T saved = 0;
    for (int i = p.chain.num_pre; i < p.chain.num_pre + p.chain.num_post; i++) {
        const rfi_cuda_step &step = p.chain.steps[i];
        v = rfi_typed<T>::apply(step.kind, v, rfi_typed<T>::a(step), rfi_typed<T>::b(step), saved);
        if (step.kind == RF_OP_SAVE) saved = v;
    }
    rfi_store_as<T>(p.y, p.y_dtype, row * p.ldy, v);
}

constexpr int RFI_COMBINED_ROWS = 4; /* at a time by a warp: it waits for memory once, not once a row */

/* The whole states of RFI_COMBINED_ROWS rows, from row `first` on or, beyond `last`, of row `last` once more; every
 * lane gets them. The order of the additions depends on the number of partial states alone. */
template <class R, class T> static __device__ __forceinline__ void rfi_combine_states(
    const rfi_cuda_fold &p, int64_t first, int64_t last, T (&m)[RFI_COMBINED_ROWS], T (&t)[RFI_COMBINED_ROWS]) {
    constexpr int ROWS = RFI_COMBINED_ROWS, CHUNK = 4;
    typedef typename rfi_typed<T>::state state;
#pragma unroll
    for (int r = 0; r < ROWS; r++) R::peak0(m[r]), t[r] = 0;
    for (int64_t i = threadIdx.x % 32; i < p.num_partials; i += 32 * CHUNK) {
        state v[ROWS][CHUNK];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                R::peak0(v[r][c].m), v[r][c].t = 0;
                if (i + 32 * c < p.num_partials)
                    v[r][c] =
                        rfi_read_state((const state *)p.partials + min(first + r, last) * p.num_partials, i + 32 * c);
            }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            T peak = m[r];
#pragma unroll
            for (int c = 0; c < CHUNK; c++) peak = R::peak(peak, v[r][c].m);
            t[r] *= R::rescale(m[r], peak);
#pragma unroll
            for (int c = 0; c < CHUNK; c++) t[r] += v[r][c].t * R::rescale(v[r][c].m, peak);
            m[r] = peak;
        }
    }
    T peak[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) peak[r] = m[r];
    for (int step = 1; step < 32; step *= 2)
#pragma unroll
        for (int r = 0; r < ROWS; r++) peak[r] = R::peak(peak[r], __shfl_xor_sync(~0u, peak[r], step));
#pragma unroll
    for (int r = 0; r < ROWS; r++) t[r] *= R::rescale(m[r], peak[r]), m[r] = peak[r];
    for (int step = 1; step < 32; step *= 2)
#pragma unroll
        for (int r = 0; r < ROWS; r++) t[r] += __shfl_xor_sync(~0u, t[r], step);
}

/* The partial states of rows [first, first + rows) merged, the steps behind the reduction, and y. The warps take turns
 * by RFI_COMBINED_ROWS rows; once a warp has a row for every lane, the lanes finish theirs. */
template <class T>
static __device__ __noinline__ void rfi_combine_rows(const rfi_cuda_fold &p, int64_t first, int rows) {
    constexpr int ROWS = RFI_COMBINED_ROWS;
    const int lane = threadIdx.x % 32, stride = blockDim.x / 32 * ROWS;
    typename rfi_typed<T>::state mine = {};
    int64_t row = -1; /* whose state that is */
    for (int r = threadIdx.x / 32 * ROWS, had = 0; r < rows; r += stride) {
        T m[ROWS], t[ROWS];
        switch (p.chain.reduction) {
#define RFI_REDUCTION(id, number, ...) \
    case number: rfi_combine_states<rfi_reduction_##id>(p, first + r, first + rows - 1, m, t); break;
#include "reductions.def"
#undef RFI_REDUCTION
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (lane == had + i && r + i < rows) mine = {m[i], t[i]}, row = first + r + i;
        had += ROWS;
        if (had < 32 && r + stride < rows) continue;
        if (row >= 0) rfi_finish_row(p, row, rfi_typed<T>::finish(p.chain.reduction, mine, (T)p.out_features));
        had = 0, row = -1;
    }
}

/* Called by every block once its partial states are written: the last of the `blocks` that share rows [first, first +
 * rows) combines them. */
template <class T> static __device__ void rfi_finish_rows(
    const rfi_cuda_fold &p, unsigned *ticket, unsigned blocks, int64_t first, int rows) {
    __shared__ bool last;
    __syncthreads(); /* all partial states of this block are written */
    if (threadIdx.x == 0) {
        __threadfence(); /* ... and seen by all before the ticket is */
        last = atomicAdd(ticket, 1u) == blocks - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    rfi_combine_rows<T>(p, first, rows);
}

#endif
