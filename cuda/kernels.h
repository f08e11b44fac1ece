/* SPDX-License-Identifier: MIT */
/* What the host side and the kernels say to each other: parameter structs, and launchers that return CUDA's own status.
 * Plain C. */
#ifndef ROWFOLD_CUDA_KERNELS_H
#define ROWFOLD_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "affine.h"
#include "choose.h"
#include "rowfold.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Operators by their row in ops.def: a branch on these is one jump. */
typedef enum rfi_cuda_op {
#define RFI_HOST_OP(...)
#define RFI_OP(id, ...) RFI_CUDA_OP_##id,
#include "ops.def"
#undef RFI_OP
} rfi_cuda_op;

/* One step of the chain, its parameters in both compute types so that no kernel converts. */
typedef struct rfi_cuda_step {
    int8_t op;      /* rfi_cuda_op */
    int8_t row;     /* index of the row input that replaces a, or -1 */
    int16_t kind;   /* rf_op_kind */
    int16_t vector; /* index of the per-feature vector that replaces a, or -1 */
    float a32, b32;
    double a64, b64;
} rfi_cuda_step;

/* The plan, or a pass of it, as kernels run it. Passed by value: steps are read from the constant bank. */
typedef struct rfi_cuda_chain {
    int32_t num_pre, num_post; /* steps[0 .. num_pre) on logits, then num_post on the number of a row */
    int32_t num_affine;        /* the steps on logits once more, as these; 0 if there are none, or others among them */
    int32_t affine_saves;      /* whether one of these remembers its value */
    int32_t reduction;         /* rf_op_kind, RF_OP_NONE or RFI_CUDA_ANSWERS */
    int32_t shows;             /* of RFI_CUDA_ANSWERS: RFI_CUDA_SHOWS_... */
    rfi_cuda_step steps[RF_MAX_OPS];
    rfi_cuda_affine affine[RF_MAX_OPS];
} rfi_cuda_chain;

/* Rows of x or W as a kernel reads them, K values each:
 *   data alone               values of `dtype`
 *   data, scale, ...         terms of `dtype`: value = (data + low + least) * scale[row], `low` and `least` NULL where
 *                            there are fewer terms, `scale` NULL for 1
 * binary16 has one term or two, bfloat16 two or three. A scale is a power of two, so that the product with it is exact,
 * but for rows that are not finite: NaN where a value is NaN; infinity where one value is infinite, whose term is then
 * a power of two with its sign and all others zero. Of W these zeros have the signs of the values in the first term,
 * and are -0 in the second where the value is not zero: what an infinite x makes of them can be told. Where several
 * values are infinite, all are such zeros, and the row has a verdict: see rfi_cuda_verdicts; or, where such rows are
 * many, each has a term of its own.
 *
 * Rows of x in binary16 may have two levels, see rfi_cuda_levels: `ld` is then twice `level`, and the terms of the
 * second begin `level` values behind those of the first.
 *
 * W of 16-bit values may lie in blocks instead of rows, for the kernels of sm_90a: RFI_BLOCK_ROWS rows and `panel`
 * columns of all terms, in rfi_block_values(panel) values that lie one behind the other in the order in which wgmma
 * reads them from shared memory: a matrix a term, its pieces of 16 bytes permuted (see rfi_place). The blocks of a
 * panel, that is of the same columns, lie one behind the other, then come the next columns. A copy by address brings a
 * block to shared memory, which memory serves faster than a tensor map's rows. One term in panels of 64 is what a stage
 * of 64 columns of sm80/mma.cu looks like, too. */
typedef struct rfi_cuda_rows {
    const void *data, *low, *least;
    const float *scale;
    const uint8_t *rest; /* of float32 W in two terms, a bit for each value: 1 where it is half of a last place of its
                            second term more. A byte has eight columns, from its lowest bit on, and the next is the next
                            row's; NULL: that is not known */
    int64_t rest_ld;     /* bytes from eight columns to the next */
    int64_t ld; /* values from a row to the next; of blocks, the rows of a panel: what is behind the last row and column
                   is zeros */
    int32_t dtype; /* rf_dtype */
    int32_t panel; /* its columns: 64 of one term, 32 of two, 16 of three; 0: rows */
    int64_t level; /* columns of a level; 0: there is one */
} rfi_cuda_rows;

#define RFI_BLOCK_ROWS 64

#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int rfi_terms_of(rfi_cuda_rows rows) {
    return 1 + (rows.low != NULL) + (rows.least != NULL);
}

#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int rfi_block_values(int panel) {
    return RFI_BLOCK_ROWS * (panel == 16 ? 48 : 64);
}

/* Columns of a row in blocks, of which `depth` count: of whole stages of the kernel for few rows, two panels or, of 16
 * columns, four. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int64_t rfi_panel_depth(int panel, int64_t depth) {
    const int64_t stage = panel == 16 ? 64 : 2 * panel;
    return (depth + stage - 1) / stage * stage;
}

/* A value of a row of x that is 2^20 times all others or more, so that float32 rounds a logit's largest product alone:
 * its terms are zero, and its products, with W as it was before it was brought to terms, are added to the logits. */
typedef struct rfi_cuda_lone {
    int32_t column; /* -1: there is none */
    float value;
} rfi_cuda_lone;

/* Which rows of x have a second level: what a binary16 term or two leave of the values far below the row's largest, in
 * terms and a scale of their own. A kernel sums the products of the second level first, multiplies the sum of each row
 * by its `ratio`, and goes on with the first, or sums both side by side; the sum of a row without one has nothing of
 * whatever lies in the place of its second level. */
typedef struct rfi_cuda_levels {
    uint8_t *wide; /* of each row, and zeros up to a multiple of RFI_LEVEL_ROWS; NULL: no row has two levels */
    float *ratio;  /* of the second level's scale to the first's; 0 for a row that has one level */
} rfi_cuda_levels;

#define RFI_LEVEL_ROWS 256

/* Rows of W with several infinities: whether these pull to one side the terms of x do not say. Each has a column of its
 * own behind those of W, where its terms are a power of two and those of all other rows zero, and x has there what the
 * row's infinities come to beside it: 1, -1, or 0 where the logit is NaN. */
typedef struct rfi_cuda_infinity {
    int32_t place;   /* its column of W twice, and 1 for one below zero */
    int32_t verdict; /* which; -1: of none */
} rfi_cuda_infinity;

typedef struct rfi_cuda_verdicts {
    int32_t columns;          /* no more than RFI_VERDICTS; 0: there are none */
    unsigned room;            /* of `at` */
    unsigned long long *used; /* of `columns`, and of `at`: two counts, of those, too, for which there is no room */
    rfi_cuda_infinity *at;    /* in any order */
} rfi_cuda_verdicts;

#define RFI_VERDICTS 256

/* One result that is read from a state of RFI_CUDA_ANSWERS. */
typedef struct rfi_cuda_result {
    void *y;
    int64_t ldy, ignore; /* `ignore` as in rfi_branch */
    int32_t y_dtype, reduction;
    int32_t first_step, num_steps; /* of the chain's: those behind the reduction */
} rfi_cuda_result;

/* The columns of a row that come before a bound in a stable descending sort with NaN first: a value and a column. */
typedef struct rfi_cuda_before {
    const void *values;     /* (batch) of the compute type; NULL: nobody asks */
    const int32_t *columns; /* (batch). NaN and 0: no column comes before. NULL: no bound, and all columns that the
                               launch folds, the first of all, are stored in `found` as they lie, for which there is
                               room up to whole tiles */
    unsigned *counts;       /* (batch) how many come before: added to */
    void *found;            /* (batch, room) of the compute type: what comes before, in any order; NULL: it is counted
                               alone. What has no room any more is, too */
    int32_t *found_columns; /* (batch, room) */
    int64_t room;
} rfi_cuda_before;

/* What the distances of a row's columns from a number near their mean add up to, and the squares of these; or the
 * squares of the columns brought down by the largest. A unit is RFI_FOLD_COLUMNS columns or more, at the place of the
 * first, and RFI_CUDA_SQUARE_WORDS words: how many columns it has, that number or the largest magnitude, both sums. */
typedef struct rfi_cuda_squares {
    void *sums; /* (batch, units, RFI_CUDA_SQUARE_WORDS) of the compute type, zero before the launch; NULL: nobody asks
                 */
    int64_t units;
    int32_t magnitudes; /* of the columns themselves */
} rfi_cuda_squares;

#define RFI_CUDA_SQUARE_WORDS 4

/* What is multiplied: rows of x with rows of W. */
typedef struct rfi_cuda_product {
    rfi_cuda_rows x, w;
    int64_t batch, in_features, out_features;
    int64_t depth; /* columns that are multiplied: in_features, and behind them those of the verdicts */
    rfi_cuda_verdicts verdicts;
    float regain; /* what a sum of up to RFI_SM90_PART products of 16-bit values as stored is multiplied by, for
                     tensor cores cut off a part of it: see doc/kernels/accuracy.md. 1: sums may be exact */
    rfi_cuda_levels levels;    /* of x */
    const rfi_cuda_lone *lone; /* of each row of x; NULL: none has such a value */
    const uint8_t *irregular;  /* a flag for each row: the kernel leaves out those with 1. NULL: it computes all */
    rfi_cuda_rows x_stored;    /* x as it came, from which flagged rows are computed: a kernel of sm_90a does so itself
                                  once it has computed the others */
} rfi_cuda_product;

/* What becomes of a tile of sums: the bias, the steps, and results or the states of rows. */
typedef struct rfi_cuda_visitor {
    int64_t batch, out_features; /* as the product's: rows and columns of what it sees */
    const void *bias;            /* (N) of the compute type */
    const void *vectors;         /* (num_vectors, N) of the compute type */
    int32_t num_vectors;
    void *y;
    int64_t ldy;
    int32_t y_dtype;
    int32_t fold_columns; /* of this kernel */
    void
        *partials; /* (batch, num_partials) states. The state of features j * fold_columns and on is the j-th of its
                      row. Irregular rows that a kernel of sm_90a leaves out have states of RFI_FOLD_COLUMNS features */
    int64_t num_partials;
    const void *row_inputs; /* (number, batch) of the compute type: what steps with `row` read */
    const int64_t *columns; /* (batch): the column that each row asks for, or any other number; NULL: none is asked
                               for */
    void *picked;           /* (batch) of the compute type: the logit there, written where there is such a column */
    int32_t keeps_states;   /* partial states of all columns are read behind the launch */
    int32_t knows_picked;   /* a kernel in front has written `picked`, of all rows */
    rfi_cuda_chain chain;
    /* Beside the fold, by kernels that take RFI_CUDA_ANSWERS, with those alone; of sm_90a by those for few rows and for
     * groups of rows and by those that are made for it. */
    rfi_cuda_before before[2];
    rfi_cuda_squares squares;
    int32_t num_results; /* of RFI_CUDA_ANSWERS; y is then none of them */
    rfi_cuda_result results[RF_MAX_RESULTS];
} rfi_cuda_visitor;

/* Who does it when. */
typedef struct rfi_cuda_schedule {
    int32_t shared_per_block; /* bytes of shared memory that a block of this device may have */
    unsigned *tickets;        /* for each row of tiles one, and one for each group, zero before the launch, unless a
                                 block has all columns: then there are none; NULL without a reduction, or where a kernel
                                 of sm_90a leaves its states to one behind it */
    int32_t groups;           /* of partial states: of the portable kernels, see rfi_finish_rows; 0: they are few */
    unsigned *next_tile; /* counts the tiles that the kernels of sm_90a have drawn, zero before the launch; NULL: each
                            block has a fixed share of them */
    unsigned *irregular_tickets; /* one for each group of irregular rows, see rfi_cuda_irregular_groups, if there is a
                                    reduction; zero before the launch */
    int32_t splits;              /* parts of K, a block each, of kernels that share it out; of others 1 */
    int32_t whole_columns;       /* tiles of so many columns of tiles, the first, have a block each all the same */
    int64_t split_depth;         /* values of K in a part but for the last */
    void *split_sums;            /* (tiles in parts, splits, values of a tile) of the compute type, if there are such */
    unsigned *split_tickets;     /* rfi_split_tickets for each tile in parts, zero before the launch */
    int32_t overlaps;    /* kernels may be launched before the one in front has finished: see common/launch.cuh, and
                            rfi_cuda_overlaps */
    int32_t w_in_flight; /* a kernel in front may just be writing W: one of the caller's, whose memory it is, or an
                            update's */
    int32_t apart;       /* the launch waits for what is in front, which may be writing all that belongs to columns */
    const unsigned *wanted;           /* 0 there: the launch is to do nothing; NULL: it is wanted */
    int32_t first_column, end_column; /* of the kernels of tiles of sm_90a: a launch folds those of whole clusters,
                                         others in other launches with the same tickets; 0 and 0: all */
} rfi_cuda_schedule;

/* One forward, as every fold kernel gets it.
 *
 * A kernel multiplies a tile of rows of x with a tile of rows of W, applies the steps and folds each row of the tile,
 * `fold_columns` columns to a partial state of the compute type (common/states.cuh). The last block of a row of tiles,
 * known by the ticket it draws, merges the partial states of its rows in column order and writes y: the result does not
 * depend on which block comes last. Without tickets a kernel behind the launch does: see rfi_cuda_finish_sm90. */
typedef struct rfi_cuda_fold {
    rfi_cuda_product product;
    rfi_cuda_schedule schedule;
    rfi_cuda_visitor visitor; /* the last: its results are seldom read */
} rfi_cuda_fold;

/* Words that a kernel in front of a fold clears for it, and when either may begin. */
typedef struct rfi_cuda_clear {
    unsigned *words;
    int64_t count;
    int32_t overlaps;    /* as in rfi_cuda_fold */
    int32_t w_in_flight; /* likewise */
} rfi_cuda_clear;

/* Prepares rows in terms of 16 bits, see rfi_cuda_rows. */
typedef struct rfi_cuda_split {
    const void *data; /* (rows, columns) of `dtype` */
    int64_t rows, columns, ld;
    int32_t dtype;
    int32_t terms, term_dtype; /* RF_FLOAT32: one of float32 rounded to TF32, at `high`; nothing else is written */
    void *high, *low, *least;  /* (rows, ld_terms) each, as many as there are terms; columns behind the last are zeroed
                                  up to `depth` */
    int64_t ld_terms, depth;
    int32_t panel;  /* as in rfi_cuda_rows; then `high` is the first row's first block, and the other terms lie in it */
    int32_t strict; /* no value may be lost, see doc/kernels/accuracy.md; 0: a few may */
    int32_t dense;  /* no value of W is far below its row's largest: what two levels leave is not missed */
    const uint8_t *thin; /* (columns): where W has such a value, 1; a row whose largest values are elsewhere does not
                            miss what two levels leave either. NULL: that is not known */
    int32_t w_infinite;  /* W has infinities, and is not dense: no x that is not zero becomes so, and a row with an
                            infinity is irregular */
    int32_t last_meets_first; /* of x: its last term is multiplied by W's first alone, which are finite: several
                                 infinities of a row are what they are, there. 0: such a row is irregular */
    int32_t w_several; /* of rows of W there may be many with several: all rows of x but those with NaN are irregular;
                          of W itself, such a row has a term for each */
    rfi_cuda_verdicts verdicts; /* of W itself, written; a row with several infinities for which there is no room has
                                   NaN for a scale, as it has without verdicts and w_several */
    int64_t panel_rows;
    float *scale;
    rfi_cuda_levels levels; /* where the second levels are told of, which lie `depth` values behind the first; ratio
                               NULL: a row has one level, whatever that loses */
    uint8_t *rest;          /* as in rfi_cuda_rows, written; NULL: nobody asks */
    int64_t rest_ld;
    rfi_cuda_lone *lone; /* of each row, likewise */
    uint8_t *irregular;  /* of each row: 1 for those that terms do not represent, which another way computes from the
                            stored values; NULL: nobody asks. Such a row with infinities has in place of its terms
                            their number and, if these are no more than rfi_few_infinities, the places as ints, twice
                            the column and 1 for one below zero */
    rfi_cuda_clear clear;
} rfi_cuda_split;

#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int rfi_split_groups(int splits) {
    return (splits + RFI_SPLIT_GROUP - 1) / RFI_SPLIT_GROUP;
}

/* Tickets of a tile: one for each group of parts and, if there are several, one for the groups. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int rfi_split_tickets(int splits) {
    const int groups = rfi_split_groups(splits);
    return groups + (groups > 1);
}

/* Irregular rows are computed in groups of one kind of three, among RFI_IRREGULAR_WINDOW rows: no smaller than
 * RFI_IRREGULAR_ROWS but for the last of a kind. So many at most. */
#define RFI_IRREGULAR_WINDOW 2048
#define RFI_IRREGULAR_ROWS 16

/* Infinities of such a row that are listed, at most: the fewer rows there are, the more. */
#define RFI_FEW_INFINITIES 15
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int rfi_few_infinities(int64_t batch) {
    return batch > RFI_IRREGULAR_ROWS ? RFI_FEW_INFINITIES : 2 * RFI_IRREGULAR_ROWS * RFI_FEW_INFINITIES / (int)batch;
}

static inline int64_t rfi_cuda_irregular_groups(int64_t batch) {
    return batch / RFI_IRREGULAR_ROWS + 3 * (batch / RFI_IRREGULAR_WINDOW + 1);
}

/* What W is like, counted before it is prepared. See doc/kernels/accuracy.md. */
typedef struct rfi_cuda_findings {
    unsigned wide;              /* rows of which terms of binary16 would lose too many values */
    unsigned concentrated;      /* rows of which few columns make up most */
    unsigned infinite;          /* rows with an infinity */
    unsigned many;              /* rows with several */
    unsigned long long several; /* infinities of those */
    unsigned nonfinite;         /* rows with an infinity or NaN */
    unsigned sparse;            /* rows with a value far below their largest, or zero */
    unsigned fine;              /* rows whose values are no small multiples of one number, as whole numbers are */
} rfi_cuda_findings;

typedef struct rfi_cuda_survey {
    const void *data; /* (rows, columns) of `dtype` */
    int64_t rows, columns, ld;
    int32_t dtype, terms; /* how many of binary16 would be made; 0: that is not asked */
    rfi_cuda_findings *findings;
    unsigned *lost; /* (columns): how many rows would lose the value there */
    uint8_t *thin;  /* (columns): set where a row has a value far below its largest, or zero */
} rfi_cuda_survey;

/* Copies rows of 16-bit values to a leading dimension that kernels can read in 16-byte pieces. Columns behind the last
 * are zeroed. */
typedef struct rfi_cuda_copy {
    const void *from;
    void *to;
    int64_t rows, columns, ld_from, ld_to;
    rfi_cuda_clear clear;
} rfi_cuda_copy;

/* Brings rows of 16-bit values to blocks: see rfi_cuda_rows. */
typedef struct rfi_cuda_pack {
    const void *from;
    void *to; /* the first row's first block */
    int64_t rows, columns, ld_from;
    int64_t depth; /* columns of all panels: those behind the last are zeroed */
    int64_t panel_rows;
    int32_t panel;
} rfi_cuda_pack;

/* Brings values to a compute type, or columns to int64. */
typedef struct rfi_cuda_convert {
    const void *from;
    void *to;
    int64_t count, ld;            /* `ld` values from one to the next */
    int32_t from_dtype, to_dtype; /* to_dtype: RF_FLOAT32, RF_FLOAT64 or RF_INT64 */
} rfi_cuda_convert;

/* A collapsed sum, see lib/collapse.h; weight_sum and sign are on the device, the first with zeros up to a multiple
 * of 8. Of `fold` it uses what says x, y, the chain and, for rows that must take the full path, W as it is. */
typedef struct rfi_cuda_collapse {
    rfi_cuda_fold fold;
    const double *weight_sum;
    const signed char *sign;
    double constant, divisor, slope, offset, limit;
    int32_t multiprocessors; /* of the device */
    int32_t aligned;         /* x and its rows begin at multiples of 16 bytes */
} rfi_cuda_collapse;

cudaError_t rfi_cuda_launch_collapse(const rfi_cuda_collapse *collapse, cudaStream_t stream);
cudaError_t rfi_cuda_launch_split(const rfi_cuda_split *split, cudaStream_t stream);
cudaError_t rfi_cuda_launch_survey(const rfi_cuda_survey *survey, cudaStream_t stream);
cudaError_t rfi_cuda_launch_clear(const rfi_cuda_clear *clear, cudaStream_t stream);
cudaError_t rfi_cuda_launch_copy(const rfi_cuda_copy *copy, cudaStream_t stream);
cudaError_t rfi_cuda_launch_convert(const rfi_cuda_convert *convert, cudaStream_t stream);
cudaError_t rfi_cuda_launch_pack(const rfi_cuda_pack *pack, cudaStream_t stream);

/* Whether the current device runs the portable kernels as they are compiled for sm_90 or newer. From older PTX a new
 * device makes kernels that do not wait for the one in front: they must not be launched to overlap with it. */
cudaError_t rfi_cuda_overlaps(int32_t *overlaps);

/* The rows flagged in fold->irregular alone, from x_stored and the scales of x: their partial states, or their logits
 * to y. Follows the split that flags them. */
cudaError_t rfi_cuda_fold_irregular(const rfi_cuda_fold *fold, cudaStream_t stream);

/* Fold kernels. Each launcher is valid for what choose.c says of it. */
cudaError_t rfi_cuda_fold_fma_f32(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_fma_f64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_128x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_256x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_64x64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_16x64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_stream(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_f64_64x64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_f64_32x64(const rfi_cuda_fold *fold, cudaStream_t stream);

/* Few tiles: see sm80/few_tiles.cu, and sm80/few_f64.cu. Narrow ones are for as many features as they have columns,
 * but for that of 64, which has tiles of more: sm80/narrow.cu, and with 128 rows sm80/narrow_tiles.cu. */
cudaError_t rfi_cuda_fold_few_8x64_f32(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_few_32x64_f32(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_narrow_32x8(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_narrow_16x16(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_narrow_128x16(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_narrow_128x32(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_narrow_128x64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_few_8x64_f64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_narrow_f64(const rfi_cuda_fold *fold, cudaStream_t stream);

/* Of sm_90a alone. `num_partials` is even, for 16-byte copies of two states; behind those of the features, from an even
 * number on, there is room for RFI_SM90_BLOCKS. There are no tickets: it launches rfi_cuda_finish_sm90 behind it. */
cudaError_t rfi_cuda_fold_sm90_small(const rfi_cuda_fold *fold, cudaStream_t stream);

/* Of sm_90a too. Partial states are of `fold_columns` columns and lie side by side from state 0 of a row on;
 * `num_partials` is even, for 16-byte copies of two states. There are no tickets, and these launch rfi_cuda_finish_sm90
 * behind the kernel; of several results there may be some, a ticket for each RFI_SM90_GROUP partial states of 64 rows
 * and one more. */
cudaError_t rfi_cuda_fold_sm90_128x256(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_128x192(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_turned(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_turned_halves(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_turned_thirds(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_turned_quarters(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_turned_eighths(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_128x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_64x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_halves(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_64x64(const rfi_cuda_fold *fold, cudaStream_t stream);

/* What these, but the last, run for logits of one product that are stored. */
cudaError_t rfi_cuda_store_sm90_128x256(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_store_sm90_128x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_store_sm90_64x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_store_sm90_halves(const rfi_cuda_fold *fold, cudaStream_t stream);

/* Folds of sm_90a as those above, for states of RFI_CUDA_ANSWERS and for steps that read row inputs. */
cudaError_t rfi_cuda_fold_sm90_answers_small(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_answers_128x256(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_answers_128x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_answers_64x128(const rfi_cuda_fold *fold, cudaStream_t stream);

/* Whole rows in a cluster, see sm90/whole.cuh: no partial states are written. */
cudaError_t rfi_cuda_fold_sm90_whole_64x64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_whole_64x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_whole_128x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_answers_whole_64x64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_answers_whole_64x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_answers_whole_128x128(const rfi_cuda_fold *fold, cudaStream_t stream);

cudaError_t rfi_cuda_fold_sm90_turned_answers(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_turned_answers_halves(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_turned_answers_thirds(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_turned_answers_quarters(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_turned_answers_eighths(const rfi_cuda_fold *fold, cudaStream_t stream);

/* From `slots` states of a row, pairs or those of RFI_CUDA_ANSWERS, from number `first` on, to y, for rows that are not
 * irregular. */
cudaError_t rfi_cuda_finish_sm90(const rfi_cuda_fold *fold, int first, int slots, cudaStream_t stream);

/* The same with what goes beside the fold, `before` and `squares`. */
cudaError_t rfi_cuda_fold_sm90_searches_128x256(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_searches_64x128(const rfi_cuda_fold *fold, cudaStream_t stream);

/* Parts of the above, with more rows or with terms, in files of their own: they take long to compile. */
cudaError_t rfi_cuda_fold_sm90_small_16(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_small_64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_answers_small_16(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_answers_small_64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_answers_128x256_terms(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_sm90_searches_128x256_terms(const rfi_cuda_fold *fold, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
