/* SPDX-License-Identifier: MIT */
/* From logits to y: steps on register chunks, the fold of a tile's rows to partial states, and their deterministic
 * combination. */
#ifndef ROWFOLD_CUDA_EPILOGUE_CUH
#define ROWFOLD_CUDA_EPILOGUE_CUH

#include "common/launch.cuh"
#include "common/states.cuh"

/* A sum, by the scales of its row and column, the smaller first: a product that is in range does not overflow on the
 * way. One that is infinite comes first: a sum that is not zero must not become so. A scale that is NaN is not lost. */
static __device__ __forceinline__ float rfi_unscale(float v, float a, float b) {
    return (a < b) != (fmaxf(a, b) == INFINITY) ? v * a * b : v * b * a;
}

/* What values of x that outweigh all others of their row come to, added to a tile of sums in units of x and W, in
 * shared memory: by warps, some rows each, whose lookups are on their way at once. Barrier behind. Not inlined: other
 * tiles would jump over it, to instructions that nobody has fetched ahead. */
template <int COLUMNS> static __device__ __noinline__ void rfi_add_lone_to_tile(
    const rfi_cuda_product &f, float *tile, int tile_ld, int64_t row0, int rows, int64_t column0, int warp, int warps) {
    constexpr int AT_ONCE = 4;
    for (int first = warp; first < rows; first += AT_ONCE * warps) {
        rfi_cuda_lone lone[AT_ONCE];
        bool any = false;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            lone[i] = f.lone[row0 + min(first + i * warps, rows - 1)];
            if (first + i * warps >= rows) lone[i].column = -1;
            any |= lone[i].column >= 0;
        }
        if (!any) continue;
#pragma unroll 2
        for (int c = threadIdx.x % 32; c < COLUMNS; c += 32) {
            const int64_t column = min(column0 + c, f.out_features - 1);
            const float scale = f.w.scale ? f.w.scale[column] : 1;
            float w[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) w[i] = rfi_unscaled(f.w, column, max(lone[i].column, 0)) * scale;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                float *const logit = tile + (first + i * warps) * tile_ld + c;
                if (lone[i].column >= 0) *logit = fmaf(lone[i].value, w[i], *logit);
            }
        }
    }
}

/* A step whose parameter is a row input, on values of that row: one of those that take a vector, too. */
template <class T, int COUNT>
static __device__ __forceinline__ void rfi_apply_row_step(const rfi_cuda_step &step, T (&v)[COUNT], T a) {
    switch (step.op) {
#define RFI_P0 false
#define RFI_PV(name) true
#define RFI_P1(name, number) false
#define RFI_P1R(name) false
#define RFI_P2(name, number, name2, number2) false
#define RFI_PW(keyword) false
#define RFI_OP(id, number, name, params, ...)                                                          \
    case RFI_CUDA_OP_##id:                                                                             \
        if constexpr (params) {                                                                        \
            _Pragma("unroll") for (int j = 0; j < COUNT; j++) v[j] = rfi_op_##id(v[j], a, v[j], v[j]); \
        }                                                                                              \
        break;
#include "ops.def"
#undef RFI_OP
#undef RFI_P0
#undef RFI_PV
#undef RFI_P1
#undef RFI_P1R
#undef RFI_P2
#undef RFI_PW
    }
}

/* The steps on a chunk of ROWS x COLS values held in registers. The branch on the kind is taken once a chunk. column(j)
 * is the feature of column j of the chunk; those beyond the last feature compute garbage that nobody reads, from the
 * last feature's parameters. rows[i] is the row, or one below 0 whose values nobody reads. */
template <int ROWS, int COLS, class T, class Column> static __device__ __forceinline__ void rfi_apply_steps(
    const rfi_cuda_visitor &p, T (&v)[ROWS][COLS], const int64_t (&rows)[ROWS], Column column) {
    T saved[ROWS][COLS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) saved[r][c] = 0;
#pragma unroll 1
    for (int i = 0; i < p.chain.num_pre; i++) {
        const rfi_cuda_step &step = p.chain.steps[i];
        if (step.row >= 0) {
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                rfi_apply_row_step(
                    step, v[r], ((const T *)p.row_inputs)[step.row * p.batch + max(rows[r], (int64_t)0)]);
            continue;
        }
        T a[COLS], b = rfi_typed<T>::b(step);
#pragma unroll
        for (int c = 0; c < COLS; c++) a[c] = rfi_typed<T>::a(step);
        if (step.vector >= 0) {
            const T *vector = (const T *)p.vectors + step.vector * p.out_features;
#pragma unroll
            for (int c = 0; c < COLS; c++) a[c] = column(c) < p.out_features ? vector[column(c)] : (T)0;
        }
        switch (step.op) {
#define RFI_OP(id, number, name, params, flags, ...)                                                        \
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

/* The peak of COLS values of each of LANES neighbouring lanes, for each row. */
template <class R, int LANES, int ROWS, int COLS, class T, class Valid>
static __device__ __forceinline__ void rfi_find_peaks(const T (&v)[ROWS][COLS], Valid valid, T (&m)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        R::peak0(m[r]);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            T peak = R::peak(m[r], v[r][c]);
            m[r] = valid(c) ? peak : m[r];
        }
    }
    rfi_join_peaks<R, LANES>(m);
}

/* Joins to total I of each row, whose peak is known, what its columns have of it. */
template <class R, int I, int ROWS, int COLS, class T, class Valid, class Column>
static __device__ __forceinline__ void rfi_fold_total(
    const T (&v)[ROWS][COLS], Valid valid, Column column, rfi_state_of<T, R::TOTALS> (&s)[ROWS]) {
    typedef typename rfi_typed<T>::column number;
    T none;
    R::empty(I, none);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const T term = R::term(I, s[r].m, v[r][c], (number)column(c), (number)RFI_COLUMN_OUTSIDE);
            s[r].t[I] = R::join(I, s[r].t[I], valid(c) ? term : none);
        }
}

/* Folds COLS values of each of LANES neighbouring lanes (a power of two) to one state a row; every lane of a group gets
 * it. valid(j): column j counts; column(j): its number. The order of the joins depends on the lanes alone. */
template <class R, int LANES, int ROWS, int COLS, class T, class Valid, class Column>
static __device__ __forceinline__ void rfi_fold_chunk(
    const T (&v)[ROWS][COLS], Valid valid, Column column, rfi_state_of<T, R::TOTALS> (&s)[ROWS]) {
    T m[ROWS];
    rfi_find_peaks<R, LANES>(v, valid, m);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        rfi_empty_state<R>(s[r]);
        s[r].m = m[r];
    }
    rfi_fold_total<R, 0>(v, valid, column, s);
    if constexpr (R::TOTALS > 1) rfi_fold_total<R, 1>(v, valid, column, s);
    rfi_join_totals<R, LANES>(s);
}

/* The same of rfi_answers, of which results show what `shows` says. rows[i] is the row, or one below 0, whose state
 * nobody reads. Beside a row with a NaN the last word is folded, whatever they show: it says so. */
template <int LANES, int ROWS, int COLS, class T, class Valid, class Column>
static __device__ __forceinline__ void rfi_fold_answers(const T (&v)[ROWS][COLS], const int64_t (&rows)[ROWS],
    Valid valid, Column column, int shows, rfi_state_of<T, rfi_answers::TOTALS> (&s)[ROWS]) {
    typedef rfi_answers R;
    typedef typename rfi_typed<T>::column number;
    T m[ROWS];
    rfi_find_peaks<rfi_reduction_MAX, LANES>(v, valid, m);
    bool nan = false;
#pragma unroll
    for (int r = 0; r < ROWS; r++) nan |= rows[r] >= 0 && m[r] != m[r];
    nan = __any_sync(~0u, nan);
    if (nan) rfi_find_peaks<R, LANES>(v, valid, m);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        rfi_empty_state<R>(s[r]);
        s[r].m = m[r];
    }
    if ((shows & RFI_CUDA_SHOWS_TOTALS) == RFI_CUDA_SHOWS_TOTALS) {
        rfi_fold_total<R, 0>(v, valid, column, s);
        rfi_fold_total<R, 1>(v, valid, column, s);
        rfi_join_total<R, 0, LANES>(s);
        rfi_join_total<R, 1, LANES>(s);
    } else if (shows & RFI_CUDA_SHOWS_TOTAL) {
        rfi_fold_total<R, 0>(v, valid, column, s);
        rfi_join_total<R, 0, LANES>(s);
    }
    if (shows & RFI_CUDA_SHOWS_COLUMN || nan) {
        rfi_fold_total<R, 2>(v, valid, column, s);
        if (nan)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < COLS; c++)
                    if (valid(c) && v[r][c] != v[r][c])
                        s[r].t[2] = R::join(2, s[r].t[2], R::template nan_word<T>((number)column(c)));
        rfi_join_total<R, 2, LANES>(s);
    }
}

/* Whether the launch is to do anything: asked by all threads before they do. By shuffle, so that the compiler sees that
 * whole warps leave. */
static __device__ __forceinline__ bool rfi_is_wanted(const rfi_cuda_schedule &p) {
    unsigned wanted = 1;
    if (p.wanted) {
        rfi_wait_for_previous();
        wanted = __ldcg(p.wanted);
    }
    return __shfl_sync(~0u, wanted, 0) != 0;
}

/* COLS values of each of LANES neighbouring lanes: those before a bound are counted, or listed, or all stored. rows[i]
 * is the row, or one below 0, whose values nobody looks at. All lanes of a warp. */
template <int LANES, int ROWS, int COLS, class T, class Valid, class Column>
static __device__ __forceinline__ void rfi_find_before(const rfi_cuda_before &b, const T (&v)[ROWS][COLS],
    const int64_t (&rows)[ROWS], Valid valid, Column column, int lane) {
    if (!b.columns) { /* all as they lie */
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLS; c++)
                if (rows[r] >= 0 && valid(c)) ((T *)b.found)[rows[r] * b.room + column(c)] = v[r][c];
        return;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        unsigned found = 0;
        if (rows[r] >= 0) {
            const T z = ((const T *)b.values)[rows[r]];
            const int64_t q = b.columns[rows[r]];
#pragma unroll
            for (int c = 0; c < COLS; c++)
                if (valid(c) && rfi_comes_before(v[r][c], column(c), z, q)) found |= 1u << c;
        }
        if (!b.found) {
            unsigned count = __popc(found);
#pragma unroll
            for (int step = 1; step < LANES; step *= 2) count += __shfl_xor_sync(~0u, count, step);
            if (lane == 0 && count) atomicAdd(b.counts + rows[r], count);
        } else if (found) {
            unsigned at = atomicAdd(b.counts + rows[r], (unsigned)__popc(found));
#pragma unroll
            for (int c = 0; c < COLS; c++)
                if (found >> c & 1) {
                    if (at < b.room) {
                        ((T *)b.found)[rows[r] * b.room + at] = v[r][c];
                        b.found_columns[rows[r] * b.room + at] = (int32_t)column(c);
                    }
                    at++;
                }
        }
    }
}

/* Likewise: their squares, as the unit that begins with the first. */
template <int LANES, int ROWS, int COLS, class T, class Valid>
static __device__ __forceinline__ void rfi_add_squares(const rfi_cuda_squares &s, const T (&v)[ROWS][COLS],
    const int64_t (&rows)[ROWS], Valid valid, int64_t unit, int lane) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        rfi_square_unit<T> u = {};
        T largest = s.magnitudes ? (T)0 : -(T)INFINITY, below = 0;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            if (!valid(c)) continue;
            u.count += 1;
            largest = fmax(largest, s.magnitudes ? fabs(v[r][c]) : v[r][c]);
        }
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) {
            u.count += __shfl_xor_sync(~0u, u.count, step);
            largest = fmax(largest, __shfl_xor_sync(~0u, largest, step));
        }
#pragma unroll
        for (int c = 0; c < COLS; c++)
            if (valid(c)) below += rfi_below(v[r][c], largest);
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) below += __shfl_xor_sync(~0u, below, step);
        u.centre = s.magnitudes ? largest : rfi_centre(largest, below, u.count);
        const T factor = s.magnitudes ? rfi_typed<T>::down(u.centre) : (T)1, shift = s.magnitudes ? (T)0 : u.centre;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const T part = valid(c) ? (v[r][c] - shift) * factor : (T)0;
            u.sum += part;
            u.squares += part * part;
        }
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) {
            u.sum += __shfl_xor_sync(~0u, u.sum, step);
            u.squares += __shfl_xor_sync(~0u, u.squares, step);
        }
        if (lane == 0 && rows[r] >= 0) ((rfi_square_unit<T> *)s.sums)[rows[r] * s.units + unit] = u;
    }
}

/* Values side by side, loaded at once. */
template <class T> struct alignas(16) four {
    T v[4];
};

/* Not inlined: the steps are compiled once for all that finish rows. */
template <class T> static __device__ __noinline__ void rfi_finish_row(const rfi_cuda_visitor &p, int64_t row, T v) {
    rfi_store_number(p, row, v);
}

/* What the state of a whole row comes to, to y. Not inlined: once a row it costs nothing, and each reduction's is
 * compiled once, with the steps behind every result, for all that finish rows. */
template <class R, class T> static __device__ __noinline__ void rfi_finish_whole(
    const rfi_cuda_visitor &p, int64_t row, rfi_state_of<T, R::TOTALS> s) {
    rfi_finish_state<R>(p, row, s, [](const rfi_cuda_visitor &p, int64_t row, T v) { rfi_finish_row<T>(p, row, v); });
}

/* Whether one state is all that there is of a row, nothing else reads it and no other kernel brings any: the block that
 * folds the row finishes it. */
static __host__ __device__ __forceinline__ bool rfi_is_alone(const rfi_cuda_fold &p) {
    return p.product.out_features <= RFI_FOLD_COLUMNS && !p.visitor.keeps_states && !p.visitor.columns &&
        !p.product.irregular;
}

/* Where the states of a tile go, unless a kernel says otherwise. */
struct rfi_to_partials {
    template <class T, int N> __device__ __forceinline__ void operator()(
        const rfi_cuda_fold &p, int64_t row, int64_t index, const rfi_state_of<T, N> &s) const {
        if (!index || index * RFI_FOLD_COLUMNS < p.product.out_features)
            rfi_write_state(p.visitor.partials, row * p.visitor.num_partials + index, s);
    }
};

/* The same of rows that are not alone: what these take is not compiled. */
struct rfi_beside_others : rfi_to_partials {};

/* A tile of logits without bias, (ROWS, COLUMNS) with rows `ld` apart in shared memory, to y or to partial states. A
 * warp takes 4 rows of RFI_FOLD_COLUMNS features at a time, 8 lanes a row, or AT_ONCE times as many rows, whose
 * latencies then overlap. The bits of a row depend neither on that nor on the kernel's tiles. `rows` of the tile exist,
 * from row `first` on, or, where there is a list, those that it names. `ld` is 4 more than a multiple of 32, so that a
 * quarter of a warp reads every bank once; the tile begins at a multiple of 16 bytes. put(p, row, index, state) gets
 * each state, from one thread. Reads what all threads wrote: barrier before. Not inlined: the steps are compiled once
 * for all kernels of a file. */
template <class T, int AT_ONCE = 1, class Put = rfi_to_partials> static __device__ __noinline__ void rfi_fold_tile(
    const rfi_cuda_fold &p, const T *tile, int ld, int64_t first, int rows, int64_t column0, int columns,
    const int *list = nullptr, int thread = threadIdx.x, int warps = blockDim.x / 32, Put put = Put()) {
    constexpr int LANES = 8, COLS = RFI_FOLD_COLUMNS / LANES, ROWS = 32 / LANES;
    const int lane = thread % LANES, sub = thread % 32 / LANES, slabs = columns / RFI_FOLD_COLUMNS;
    const int row_steps = (rows + ROWS * AT_ONCE - 1) / (ROWS * AT_ONCE),
              there = (int)min(p.product.out_features - column0, (int64_t)columns);
    /* What the steps below ask for is fetched once: each question by itself would be a load that they wait for. */
    const rfi_cuda_visitor &visitor = p.visitor;
    const int reduction = visitor.chain.reduction, shows = visitor.chain.shows;
    const T *const biases = (const T *)visitor.bias;
    const uint8_t *const irregular = list ? nullptr : p.product.irregular;
    const bool has_steps = visitor.chain.num_pre > 0,
               is_read =
                   visitor.columns || visitor.before[0].values || visitor.before[1].values || visitor.squares.sums,
               alone = std::is_same<Put, rfi_to_partials>::value && rfi_is_alone(p) && !column0;
    for (int step = thread / 32; step < row_steps * slabs; step += warps) {
        const int r0 = step / slabs * ROWS * AT_ONCE + sub, c0 = step % slabs * RFI_FOLD_COLUMNS + lane * 4;
        /* Two runs of four features a lane, half a slab apart. */
        auto offset = [=](int c) { return c0 + c / 4 * (RFI_FOLD_COLUMNS / 2) + c % 4; };
        auto column = [=](int c) { return column0 + offset(c); };
        auto valid = [=](int c) { return offset(c) < there; };
        T v[AT_ONCE][COLS];
#pragma unroll
        for (int c = 0; c < COLS; c += 4) {
            const four<T> *bias = (const four<T> *)(biases + column(c));
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
        int64_t row[AT_ONCE];
#pragma unroll
        for (int a = 0; a < AT_ONCE; a++) {
            const int r = r0 + a * ROWS;
            row[a] = r >= rows ? -1 : list ? list[r] : first + r;
        }
        if (has_steps) rfi_apply_steps(visitor, v, row, column);
#pragma unroll
        for (int a = 0; a < AT_ONCE; a++)
            if (row[a] >= 0 && irregular && irregular[row[a]]) row[a] = -1;
        if (is_read) {
            if (visitor.columns) {
#pragma unroll
                for (int a = 0; a < AT_ONCE; a++) {
                    const int64_t asked = rfi_asked(visitor, max(row[a], (int64_t)0));
#pragma unroll
                    for (int c = 0; c < COLS; c++)
                        if (row[a] >= 0 && valid(c) && column(c) == asked) ((T *)visitor.picked)[row[a]] = v[a][c];
                }
            }
#pragma unroll 1
            for (int i = 0; i < 2; i++)
                if (visitor.before[i].values) rfi_find_before<LANES>(visitor.before[i], v, row, valid, column, lane);
            if (visitor.squares.sums)
                rfi_add_squares<LANES>(visitor.squares, v, row, valid, column0 / RFI_FOLD_COLUMNS + step % slabs, lane);
        }
        if (reduction != RF_OP_NONE) {
            rfi_with_reduction(reduction, [&](auto of) {
                typedef decltype(of) R;
                rfi_state_of<T, R::TOTALS> s[AT_ONCE];
                if constexpr (std::is_same<R, rfi_answers>::value)
                    rfi_fold_answers<LANES>(v, row, valid, column, shows, s);
                else rfi_fold_chunk<R, LANES>(v, valid, column, s);
                if constexpr (std::is_same<Put, rfi_to_partials>::value) {
                    if (alone) {
#pragma unroll
                        for (int a = 0; a < AT_ONCE; a++) {
                            rfi_state_of<T, R::TOTALS> all; /* joined as others are that are not alone */
                            rfi_empty_state<R>(all);
                            rfi_join_states<R>(all, {s[a]});
                            if (lane == 0 && row[a] >= 0 && step % slabs == 0)
                                rfi_finish_whole<R, T>(visitor, row[a], all);
                        }
                        return;
                    }
                }
#pragma unroll
                for (int a = 0; a < AT_ONCE; a++)
                    if (lane == 0 && row[a] >= 0) put(p, row[a], column0 / RFI_FOLD_COLUMNS + step % slabs, s[a]);
            });
            continue;
        }
#pragma unroll
        for (int a = 0; a < AT_ONCE; a++)
#pragma unroll
            for (int c = 0; c < COLS; c++)
                if (row[a] >= 0 && valid(c))
                    rfi_store_as<T>(visitor.y, visitor.y_dtype, row[a] * visitor.ldy + column(c), v[a][c]);
    }
}

/* States side by side, of rows [first, first + rows): `count` of them from number `from` of the row on. What they come
 * to goes to number `to`, or, if that is below 0, is the row's. */
struct rfi_neighbours {
    int64_t first;
    int rows;
    int64_t from, count, to;
};

/* Rows of so few states are combined by a thread each: nothing waits for lanes that have none. Rows of more, up to so
 * many, have RFI_FEW_LANES, for of the rows of a large tile a warp has several turns. In double a factor takes many
 * instructions, and lanes that wait with it are worth more: rows of yet more states have RFI_MORE_LANES, each of which
 * has several factors under way; of other types a warp. */
template <class T> constexpr int RFI_LEAST_PARTIALS = sizeof(T) == 8 ? 4 : 8;
constexpr int RFI_FEW_PARTIALS = 32, RFI_FEW_LANES = 4, RFI_MORE_LANES = 8;

/* The states of a row that the `lane`-th of LANES neighbouring lanes has, every LANES-th, and what those of all lanes
 * come to, which all get. Lanes without a row have none; they take the same way, for all lanes of a warp join. */
template <class R, int LANES, class T> static __device__ __forceinline__ rfi_state_of<T, R::TOTALS> rfi_combine_few(
    const rfi_cuda_visitor &p, const rfi_neighbours &of, int64_t row, int lane, bool has_row = true) {
    constexpr int N = R::TOTALS, CHUNK = N == 1 ? 8 : 4;
    const int64_t count = has_row ? of.count : 0;
    const auto load = [&](int64_t i, rfi_state_of<T, N>(&v)[CHUNK]) {
#pragma unroll
        for (int c = 0; c < CHUNK; c++) {
            rfi_empty_state<R>(v[c]);
            if (i + c * LANES < count)
                v[c] = rfi_read_state<T, N>(p.partials, row * p.num_partials + of.from + i + c * LANES);
        }
    };
    rfi_state_of<T, N> all[1];
    rfi_empty_state<R>(all[0]);
    T m[1] = {all[0].m};
    const auto join_peaks = [&](const rfi_state_of<T, N>(&v)[CHUNK]) {
#pragma unroll
        for (int c = 0; c < CHUNK; c++) m[0] = R::peak(m[0], v[c].m);
    };
    const auto join_totals = [&](int64_t i, rfi_state_of<T, N>(&v)[CHUNK]) {
#pragma unroll
        for (int c = 0; c < CHUNK; c++) {
            if (i + c * LANES >= count) continue;
            rfi_carry<R>(v[c], m[0]);
#pragma unroll
            for (int k = 0; k < N; k++) all[0].t[k] = R::join(k, all[0].t[k], v[c].t[k]);
        }
    };
    rfi_state_of<T, N> v[CHUNK];
    if (N == 1 && of.count <= CHUNK * LANES) { /* then registers keep what is loaded for the peak */
        load(lane, v);
        join_peaks(v);
        rfi_join_peaks<R, LANES>(m);
        all[0].m = m[0];
        join_totals(lane, v);
    } else {
#pragma unroll 1
        for (int64_t i = lane; i < count; i += CHUNK * LANES) {
            load(i, v);
            join_peaks(v);
        }
        rfi_join_peaks<R, LANES>(m);
        all[0].m = m[0];
#pragma unroll 1
        for (int64_t i = lane; i < count; i += CHUNK * LANES) {
            load(i, v);
            join_totals(i, v);
        }
    }
    rfi_join_totals<R, LANES>(all);
    return all[0];
}

constexpr int RFI_COMBINED_ROWS = 4; /* at a time by a warp: it waits for memory once, not once a row */

/* The whole states of RFI_COMBINED_ROWS rows, from the r-th on or, beyond the last, of the last once more; every lane
 * gets them. The order of the joins depends on the number of states alone. */
template <class R, class T> static __device__ __forceinline__ void rfi_combine_states(
    const rfi_cuda_visitor &p, const rfi_neighbours &of, int r0, rfi_state_of<T, R::TOTALS> (&s)[RFI_COMBINED_ROWS]) {
    constexpr int ROWS = RFI_COMBINED_ROWS, N = R::TOTALS, CHUNK = N > 2 ? 1 : 4 / N; /* of a row, by registers */
#pragma unroll
    for (int r = 0; r < ROWS; r++) rfi_empty_state<R>(s[r]);
    for (int64_t i = threadIdx.x % 32; i < of.count; i += 32 * CHUNK) {
        rfi_state_of<T, N> v[ROWS][CHUNK];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                rfi_empty_state<R>(v[r][c]);
                if (i + 32 * c < of.count)
                    v[r][c] = rfi_read_state<T, N>(
                        p.partials, (of.first + min(r0 + r, of.rows - 1)) * p.num_partials + of.from + i + 32 * c);
            }
#pragma unroll
        for (int r = 0; r < ROWS; r++) rfi_join_states<R>(s[r], v[r]);
    }
    rfi_join_lanes<R, 32>(s);
}

/* LANES to a row, which a warp takes turns with. Once it has a row for every lane, the lanes finish theirs. */
template <class R, int LANES, class T, class Finish> static __device__ __forceinline__ void rfi_combine_by_lanes(
    const rfi_cuda_visitor &p, const rfi_neighbours &of, Finish finish) {
    const int lane = threadIdx.x % LANES, stride = blockDim.x / LANES;
    rfi_state_of<T, R::TOTALS> mine = {};
    int64_t row = -1;                                       /* whose state that is */
    for (int r0 = 0, had = 0; r0 < of.rows; r0 += stride) { /* all lanes of a warp take part */
        const int r = r0 + threadIdx.x / LANES;
        const auto all = rfi_combine_few<R, LANES, T>(p, of, of.first + r, lane, r < of.rows);
        if (lane == had && r < of.rows) mine = all, row = of.first + r;
        if (++had < LANES && r0 + stride < of.rows) continue;
        if (row >= 0) finish(row, mine);
        had = 0, row = -1;
    }
}

/* What joined states come to: to memory, or through the steps behind the reduction to y. The warps take turns by
 * RFI_COMBINED_ROWS rows; once a warp has a row for every lane, the lanes finish theirs. In which way the states are
 * joined, and so what bits they come to, depends on their number alone. */
template <class R, class T>
static __device__ __forceinline__ void rfi_combine_rows_of(const rfi_cuda_fold &p, const rfi_neighbours &of) {
    constexpr int ROWS = RFI_COMBINED_ROWS;
    const auto finish = [&](int64_t row, const rfi_state_of<T, R::TOTALS> &s) {
        if (of.to >= 0) rfi_write_state(p.visitor.partials, row * p.visitor.num_partials + of.to, s);
        else rfi_finish_whole<R, T>(p.visitor, row, s);
    };
    if (of.count <= RFI_LEAST_PARTIALS<T>) {
        for (int r = threadIdx.x; r < of.rows; r += blockDim.x)
            finish(of.first + r, rfi_combine_few<R, 1, T>(p.visitor, of, of.first + r, 0));
        return;
    }
    if (of.count <= RFI_FEW_PARTIALS) {
        rfi_combine_by_lanes<R, RFI_FEW_LANES, T>(p.visitor, of, finish);
        return;
    }
    if constexpr (sizeof(T) == 8) {
        rfi_combine_by_lanes<R, RFI_MORE_LANES, T>(p.visitor, of, finish);
    } else {
        rfi_state_of<T, R::TOTALS> mine = {};
        int64_t row = -1; /* whose state that is */
        const int lane = threadIdx.x % 32, stride = blockDim.x / 32 * ROWS;
        for (int r = threadIdx.x / 32 * ROWS, had = 0; r < of.rows; r += stride) {
            rfi_state_of<T, R::TOTALS> s[ROWS];
            rfi_combine_states<R>(p.visitor, of, r, s);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (lane == had + i && r + i < of.rows) mine = s[i], row = of.first + r + i;
            had += ROWS;
            if (had < 32 && r + stride < of.rows) continue;
            if (row >= 0) finish(row, mine);
            had = 0, row = -1;
        }
    }
}

template <class T>
static __device__ __noinline__ void rfi_combine_rows(const rfi_cuda_fold &p, const rfi_neighbours &of) {
    rfi_with_reduction(p.visitor.chain.reduction, [&](auto is) { rfi_combine_rows_of<decltype(is), T>(p, of); });
}

/* Whether the block is the last of `holders` to come here; what the others wrote before is then visible to all of its
 * threads. */
static __device__ __forceinline__ bool rfi_is_last(unsigned *ticket, unsigned holders) {
    __shared__ bool last;
    __syncthreads(); /* all of this block have written */
    if (threadIdx.x == 0) {
        __threadfence(); /* ... which is seen by all before the ticket is */
        last = atomicAdd(ticket, 1u) == holders - 1;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

/* Called by each of the `blocks` that share rows [first, first + rows), the `block`-th in the order of the columns,
 * once its partial states are written. The last combines them; where they are many (p.schedule.groups), the last of a
 * group of blocks combines those of the group, and the last of the groups what these come to. `row_tile` is the number
 * of the rows' tile. */
template <class T> static __device__ void rfi_finish_rows(
    const rfi_cuda_fold &p, unsigned row_tile, unsigned block, unsigned blocks, int64_t first, int rows) {
    if (rfi_is_alone(p)) return;
    const int64_t states =
        p.product.out_features > RFI_FOLD_COLUMNS ? rfi_tiles(p.product.out_features, RFI_FOLD_COLUMNS) : 1;
    unsigned *tickets = p.schedule.tickets + (int64_t)row_tile * (p.schedule.groups + 1);
    rfi_neighbours of = {first, rows, 0, states, -1};
    if (blocks == 1) {
        __syncthreads(); /* its states are written */
    } else if (p.schedule.groups) {
        const unsigned group = block / RFI_GROUP_BLOCKS, from = group * RFI_GROUP_BLOCKS,
                       holders = min(blocks - from, (unsigned)RFI_GROUP_BLOCKS);
        if (!rfi_is_last(tickets + group, holders)) return;
        const int64_t a_block = rfi_tiles(states, blocks); /* states */
        of.from = from * a_block, of.count = min(holders * a_block, states - of.from), of.to = states + group;
        rfi_combine_rows<T>(p, of);
        if (!rfi_is_last(tickets + p.schedule.groups, (unsigned)p.schedule.groups)) return;
        of.from = states, of.count = p.schedule.groups, of.to = -1;
    } else if (!rfi_is_last(tickets, blocks)) {
        return;
    }
    rfi_combine_rows<T>(p, of);
}

#endif
