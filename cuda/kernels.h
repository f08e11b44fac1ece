/* What the host side and the kernels say to each other: parameter structs, and launchers that return CUDA's own status. Plain C. */
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

/* Features in a partial state of the portable kernels, and the unit in which room for them is counted. */
#define RFI_FOLD_COLUMNS 64

/* Operators by their row in ops.def: a branch on these is one jump. */
typedef enum rfi_cuda_op {
#define RFI_OP(id, number, name, params, flags, formula, doc) RFI_CUDA_OP_##id,
#include "ops.def"
#undef RFI_OP
} rfi_cuda_op;

/* One step of the chain, its parameters in both compute types so that no kernel converts. */
typedef struct rfi_cuda_step {
    int8_t op;      /* rfi_cuda_op */
    int16_t kind;   /* rf_op_kind */
    int16_t vector; /* index of the per-feature vector that replaces a, or -1 */
    float a32, b32;
    double a64, b64;
} rfi_cuda_step;

/* The plan as kernels run it. Passed by value: steps are read from the constant bank. */
typedef struct rfi_cuda_chain {
    int32_t num_pre, num_post; /* steps[0 .. num_pre) on logits, then num_post on the number of a row */
    int32_t num_affine;        /* the steps on logits once more, as these; 0 if there are none, or others among them */
    int32_t affine_saves;      /* whether one of these remembers its value */
    int32_t reduction;         /* rf_op_kind, or RF_OP_NONE */
    rfi_cuda_step steps[RF_MAX_OPS];
    rfi_cuda_affine affine[RF_MAX_OPS];
} rfi_cuda_chain;

/* Rows of x or W as a kernel reads them, K values each:
 *   data alone               values of `dtype`
 *   data, scale              one binary16 term: value = data * scale[row]
 *   data, low, scale         two binary16 terms: value = (data + low) * scale[row]
 * A scale is a power of two, so that the product with it is exact. `ld` and `panel` hold for both terms.
 *
 * W of 16-bit values may lie in blocks instead of rows, for the kernels of sm_90a: RFI_BLOCK_ROWS rows and `panel` columns of all terms, in RFI_BLOCK_VALUES values that lie
 * one behind the other in the order in which wgmma reads them from shared memory: a matrix a term, its pieces of 16 bytes permuted (see rfi_place). The blocks of a panel,
 * that is of the same columns, lie one behind the other, then come the next columns. A copy by address brings a block to shared memory, which memory serves faster than a
 * tensor map's rows. */
typedef struct rfi_cuda_rows {
    const void *data, *low;
    const float *scale;
    int64_t ld;    /* values from a row to the next; of blocks, the rows of a panel: what is behind the last row and column is zeros */
    int32_t dtype; /* rf_dtype; RF_FLOAT16 for terms */
    int32_t panel; /* its columns: 64 of one term, 32 of two; 0: rows */
} rfi_cuda_rows;

#define RFI_BLOCK_ROWS 64
#define RFI_BLOCK_VALUES 4096

/* Rows that terms do not represent (infinities, NaN, too wide a range), found while they are prepared. */
typedef struct rfi_cuda_irregular {
    uint8_t *flag;   /* of each row: 1 for those, which another kernel computes from the stored values */
    unsigned *count; /* how many are added to it; NULL: nobody asks */
} rfi_cuda_irregular;

/* One forward, as every fold kernel gets it.
 *
 * A kernel multiplies a tile of rows of x with a tile of rows of W, applies the steps and folds each row of the tile, `fold_columns` columns
 * to a partial state (m, t) of the compute type. The last block of a row of tiles, known by the ticket it draws, merges the partial states
 * of its rows in column order and writes y: the result does not depend on which block comes last. */
typedef struct rfi_cuda_fold {
    rfi_cuda_rows x, w;
    int64_t batch, in_features, out_features;
    const void *bias;    /* (N) of the compute type */
    const void *vectors; /* (num_vectors, N) of the compute type */
    int32_t num_vectors;
    void *y;
    int64_t ldy;
    int32_t y_dtype;
    int32_t fold_columns; /* of this kernel: a multiple of RFI_FOLD_COLUMNS. Irregular rows: RFI_FOLD_COLUMNS */
    void *partials;       /* (batch, num_partials) states, num_partials = max(1, ceil(N / RFI_FOLD_COLUMNS)). Feature j is in state
                             j / fold_columns * (fold_columns / RFI_FOLD_COLUMNS) */
    int64_t num_partials;
    int32_t shared_per_block; /* bytes of shared memory that a block of this device may have */
    unsigned *tickets;         /* one for each row of tiles, zero before the launch; NULL without a reduction */
    unsigned *next_tile;       /* counts the tiles that the Hopper kernels have drawn, zero before the launch; NULL: each block has a fixed share of them */
    const uint8_t *irregular;  /* a flag for each row: the kernel leaves out those with 1. NULL: it computes all */
    rfi_cuda_rows x_stored;    /* x as it came, from which a Hopper kernel computes flagged rows once it has computed the others */
    unsigned *irregular_ticket; /* for that, if there is a reduction; zero before the launch */
    int32_t overlaps;          /* kernels may be launched before the one in front has finished: see launch.cuh, and rfi_cuda_overlaps */
    int32_t w_borrowed;        /* W is the caller's memory, which a kernel of his may just be writing; else it is the model's, and does not change */
    rfi_cuda_chain chain;
} rfi_cuda_fold;

/* Words that a kernel in front of a fold clears for it, and when either may begin. */
typedef struct rfi_cuda_clear {
    unsigned *words;
    int64_t count;
    int32_t overlaps;   /* as in rfi_cuda_fold */
    int32_t w_borrowed; /* likewise */
} rfi_cuda_clear;

/* Prepares rows in terms of binary16, see rfi_cuda_rows. `low` NULL: one term. Rows that lose too much are noted in `irregular`. */
typedef struct rfi_cuda_split {
    const void *data; /* (rows, columns) of `dtype` */
    int64_t rows, columns, ld;
    int32_t dtype;
    void *high, *low; /* (rows, ld_terms); columns behind the last are zeroed up to ld_terms */
    int64_t ld_terms;
    int32_t panel;      /* as in rfi_cuda_rows; then `high` is the first row's first block and `low` the second term in it */
    int64_t panel_rows;
    float *scale;
    float average_loss; /* a row is irregular if its values lose more than this on average, relative to themselves */
    rfi_cuda_irregular irregular;
    rfi_cuda_clear clear;
} rfi_cuda_split;

/* Copies rows to a leading dimension that kernels can read in 16-byte pieces; converts nothing. Columns behind the last are zeroed. */
typedef struct rfi_cuda_copy {
    const void *from;
    void *to;
    int64_t rows, columns, ld_from, ld_to;
    int32_t item; /* bytes of a value */
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

/* A collapsed sum, see lib/collapse.h; weight_sum and sign are on the device, the first with zeros up to a multiple of 8. Of `fold` it uses what says x, y, the
 * chain and, for rows that must take the full path, W as it is. */
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
cudaError_t rfi_cuda_launch_clear(const rfi_cuda_clear *clear, cudaStream_t stream);
cudaError_t rfi_cuda_launch_copy(const rfi_cuda_copy *copy, cudaStream_t stream);
cudaError_t rfi_cuda_launch_pack(const rfi_cuda_pack *pack, cudaStream_t stream);

/* Whether the current device runs the portable kernels as they are compiled for sm_90 or newer. From older PTX a new device makes kernels that do not wait
 * for the one in front: they must not be launched to overlap with it. */
cudaError_t rfi_cuda_overlaps(int32_t *overlaps);

/* The rows flagged in fold->irregular alone, from the stored values of x: their partial states, or their logits to y. Follows the split that flags them. */
cudaError_t rfi_cuda_fold_irregular(const rfi_cuda_fold *fold, cudaStream_t stream);

/* Fold kernels. Each launcher is valid for what choose.c says of it. */
cudaError_t rfi_cuda_fold_fma_f32(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_fma_f64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_128x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_256x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_64x64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_16x64(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_stream(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_mma_f64(const rfi_cuda_fold *fold, cudaStream_t stream);

/* Of sm_90a alone. `num_partials` is even, for 16-byte copies of two states; behind those of the features, from an even number on, there is room for RFI_HOPPER_BLOCKS. */
cudaError_t rfi_cuda_fold_hopper_small(const rfi_cuda_fold *fold, cudaStream_t stream);

/* Of sm_90a too. Partial states are of `fold_columns` columns and lie side by side from state 0 of a row on; `num_partials` is even, for 16-byte copies of two states.
 * For each 64 rows there are a ticket for each RFI_HOPPER_GROUP partial states and one more. */
cudaError_t rfi_cuda_fold_hopper_128x256(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_hopper_128x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_hopper_64x128(const rfi_cuda_fold *fold, cudaStream_t stream);
cudaError_t rfi_cuda_fold_hopper_64x64(const rfi_cuda_fold *fold, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
