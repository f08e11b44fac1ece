/* SPDX-License-Identifier: MIT */
/* Which kernel for which problem: a pure function of the problem and the device's figures, so that it is tested without
 * a GPU. */
#ifndef ROWFOLD_CUDA_CHOOSE_H
#define ROWFOLD_CUDA_CHOOSE_H

#include "config.h"
#include "rowfold.h"

/* Features in a partial state of the portable kernels, and of rows that terms do not represent. */
#define RFI_FOLD_COLUMNS 64

/* Blocks side by side along the columns whose states a portable kernel combines first, where a row of tiles has more
 * than twice as many: one block would have many to combine while all others are done. */
#define RFI_GROUP_BLOCKS 32

/* The kernels of sm_90a: states of a row that they merge at a time themselves, where they do, and per-feature vectors
 * that a block keeps in shared memory. */
#define RFI_SM90_GROUP 32
#define RFI_SM90_VECTORS 4

/* Multiprocessors of a device of sm_90a at most, so that the kernel for few rows has no more blocks. */
#define RFI_SM90_BLOCKS 144

/* Values of a row at most that half a warp brings to terms: see common/prepare.cu. */
#define RFI_SHORTEST_ROW 128

/* Values of K that tensor cores add up in the kernels of several results, of one product of 16 bits. */
#define RFI_SM90_PART 128

/* Values of K in a stage of sm90/halves.cuh. */
#define RFI_HALVES_DEPTH 64

/* Values of K in a stage of sm80/few_tiles.cu and of the small tiles of sm80/mma.cu; parts of K are whole stages but
 * for the last. So many parts are added at a time: see sm80/splits.cuh. */
#define RFI_SPLIT_DEPTH 64
#define RFI_SPLIT_GROUP 8

typedef struct rfi_cuda_figures {
    char name[64];
    int major, minor; /* compute capability */
    int multiprocessors;
    double clock_hz, memory_bytes_per_second;
    size_t l2_bytes, shared_per_block;
} rfi_cuda_figures;

/* In place of a reduction: the state from which several results are read, see rfi_answers in common/states.cuh. */
#define RFI_CUDA_ANSWERS (-1)

/* What its results show of that state, bits, besides the peak and whether there is a NaN: nothing else need be folded.
 */
enum {
    RFI_CUDA_SHOWS_TOTAL = 1,  /* the sum of a logsumexp */
    RFI_CUDA_SHOWS_TOTALS = 3, /* that of an entropy, too */
    RFI_CUDA_SHOWS_COLUMN = 4  /* the column of the peak */
};

/* What the state of a row is made of. */
typedef enum rfi_cuda_states {
    RFI_CUDA_PAIRS,         /* a peak and a sum; or there is none, and the result is (batch, N) */
    RFI_CUDA_ANSWER_STATES, /* that of RFI_CUDA_ANSWERS, or of what else reads row inputs and can be read from it */
    RFI_CUDA_SEARCH_STATES, /* likewise, with what goes beside the fold: see rfi_cuda_fold */
    RFI_CUDA_OTHER_STATES   /* which the kernels of sm_90a have no registers for */
} rfi_cuda_states;

typedef struct rfi_cuda_problem {
    int64_t batch, in_features, out_features;
    rf_dtype compute_dtype; /* RF_FLOAT32 or RF_FLOAT64 */
    rf_dtype x_dtype, w_dtype;
    int w_terms;         /* 16-bit terms that W is kept in: 0 (as stored), 1 or 2 of binary16, 3 of bfloat16 */
    int x_terms;         /* and that x is brought to; 0: as it is stored */
    rf_dtype term_dtype; /* of x's; RF_FLOAT32: x and W, which is as stored, are float32 rounded to TF32 */
    int w_infinite;      /* terms of W stand for infinities: kernels that read x as it is stored give NaN beside them */
    int w_panel;     /* columns of a panel of W in blocks, which the kernels of sm_90a alone read; 0: W is in rows */
    int num_vectors; /* per-feature vectors of the chain */
    int reduction;   /* as in rfi_cuda_chain; RF_OP_NONE: the result is (batch, N) */
    rfi_cuda_states states;
    int shows; /* as in rfi_cuda_chain */
    int plain; /* no steps before the reductions, and nothing asked for beside them: see sm90/turned_fold.cuh */
    int batch_invariant;
    int keeps_states; /* partial states are read behind the launch */
    int alike;        /* equal logits of a row must have equal bits wherever they are: columns are compared, seen by the
                         caller, or lie in shards */
} rfi_cuda_problem;

typedef enum rfi_cuda_kernel_id {
#define RFI_CUDA_KERNEL(id, name, family, tile_rows, tile_columns, fold_columns, can_run, efficiency, fold, launcher) \
    RFI_CUDA_##id,
#include "kernels.def"
#undef RFI_CUDA_KERNEL
    RFI_CUDA_NUM_KERNELS
} rfi_cuda_kernel_id;

enum { RFI_CUDA_SUMMED_ALL = -1 };

typedef struct rfi_cuda_choice {
    rfi_cuda_kernel_id kernel;
    const char *name;
    int tile_rows, tile_columns, fold_columns;
    rfi_cuda_kernel_id ahead; /* one that gives the same bits, for what is known ahead of a pass: few columns */
    int ahead_columns;        /* its fold_columns */
    int opens; /* x and W are 16-bit values as they are stored, in tiles of a kernel that searches: what is known
                  ahead is a part of the pass, or takes a kernel of its own (see rfi_cuda_asked) */
    int multiprocessors;
    int summed;    /* columns of one product of 16-bit values that tensor cores add up, and truncate, before they are
                      added in float32; RFI_CUDA_SUMMED_ALL: all of them; 0: nothing is left to tensor cores for long */
    int irregular; /* computes flagged rows itself: see rfi_cuda_fold */
    int affine;    /* computes steps on logits as rfi_cuda_affine where all of them are such */
    int grouped;   /* one of the kernels for sm_90a, which see kernels.h for their partial states and tickets */
    int apart; /* of those: a kernel behind the fold merges the states, and there are no tickets; or the fold finishes
                  a row that has one */
    int uses_terms;      /* reads x in terms: it must be prepared */
    int aligned_x;       /* reads x as it is stored, in 16-byte pieces */
    int splits;          /* parts that K is shared out in, among as many blocks a tile */
    int whole_columns;   /* tiles of the first so many columns of tiles have a block each all the same */
    int64_t split_depth; /* values of K in a part */
    double seconds;      /* expected, preparation of x included */
    double flops_per_second, bytes_per_second; /* of the device, that the expectation rests on */
    double flops, bytes;
} rfi_cuda_choice;

/* Index of a kernel by name, or -1. */
int rfi_cuda_kernel_find(const char *name);

/* The kernel expected to be the fastest, or `forced` (an index, -1 for none) where that can run the problem. Every
 * problem has one. With problem->batch_invariant the answer does not depend on the batch. */
void rfi_cuda_choose(
    const rfi_cuda_problem *problem, const rfi_cuda_figures *figures, int forced, rfi_cuda_choice *choice);

/* Columns of the panels of the blocks (see rfi_cuda_rows) that W is best kept in, for a problem that has it in rows,
 * with `forced` as in rfi_cuda_choose; 0: in rows. */
int rfi_cuda_weight_panel(const rfi_cuda_problem *problem, const rfi_cuda_figures *figures, int forced);

#endif
