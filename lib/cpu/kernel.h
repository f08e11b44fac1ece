/* SPDX-License-Identifier: MIT */
/* What the blocked CPU kernel is made of. One source, compiled once per instruction set (kernel_*.c), fills one of
 * these tables; forward.c drives it and does not know which.
 *
 * Shapes. W is cut into units of RFI_CPU_UNIT columns (output features), a unit into chunks of RFI_CPU_DEPTH inputs, a
 * chunk into panels of `panel` columns; a panel holds its (depth, panel) values input by input, and panels, chunks,
 * units follow each other in memory in this order (prepare.c). A layer of few columns (RFI_CPU_NARROW) would leave most
 * of a panel empty: its logits are dot products with the rows of W, of which a chunk holds its inputs column by column
 * (narrow.c).
 *
 * Why a row has the same bits wherever it stands in whatever batch on any number of threads: a logit is the sums of
 * stretches, in order, plus the bias, a stretch's is that of its chunks, a chunk's that of its blocks, a block's sum
 * starts from 0 and adds products in the order of k, and a unit's columns fold into one state in one order. All of
 * these are fixed by K and N alone; blocking and threads only choose who computes what when. The same goes for dot
 * products: lanes, then a tree of them, then the columns in order. */
#ifndef ROWFOLD_CPU_KERNEL_H
#define ROWFOLD_CPU_KERNEL_H

#include "backend.h"

enum {
    RFI_CPU_DEPTH = 512,     /* inputs in a chunk: beginning and ending a sliver costs little against so many; a panel's
                                slice is 64 KiB */
    RFI_CPU_STRETCH = 8192,  /* inputs, whole chunks, that are added up before they join others: a rounding errs by the
                                size of the sum that it is made in */
    RFI_CPU_BLOCK_ROWS = 16, /* rows and floats of a panel of the kernels that take blocks of a chunk, at most */
    RFI_CPU_BLOCK_PANEL = 32,
    RFI_CPU_UNIT = RFI_GROUP_UNIT, /* columns folded into one partial state */
    RFI_CPU_ROWS = 112, /* of a task's block: W passes through the cache once for so many rows, quicker than memory is
                           slow */
    RFI_CPU_X_LD = RFI_CPU_DEPTH +
        16, /* elements from one row of packed x to the next: no multiple of 4 KiB, which would share cache sets */
    RFI_CPU_PAIRS_LD = (RFI_CPU_DEPTH + 32) / 2, /* pairs from one row of x packed in pairs to the next, likewise */
    RFI_CPU_TERMS = 3,                           /* of a float32, */
    RFI_CPU_TERMS_LD = RFI_CPU_TERMS * RFI_CPU_PAIRS_LD, /* and pairs from one row of x in them to the next: an odd
                                                            number of cache lines */
    RFI_CPU_STEP = 4,                                    /* inputs that the microkernel takes in one turn of its loop */
    RFI_CPU_TILE = 16,                                   /* rows of a tile, and pairs of a row */
    RFI_CPU_TILE_DEPTH = 32,                             /* inputs that a step of tiles takes */
    RFI_CPU_TILE_ROWS = 32,                              /* rows of a sliver of tiles */
    RFI_CPU_TILE_BLOCK = 128,                            /* rows of a task's block, for tiles, */
    RFI_CPU_ALONE_BLOCK = 256,                           /* and for tiles of pairs where one thread has all */
    RFI_CPU_TILE_PANEL = 32,                             /* columns of a panel, for tiles */
    RFI_CPU_NARROW = 48,       /* columns of a layer up to which it is computed in dot products, */
    RFI_CPU_NARROW_PAIRS = 12, /* where panels multiply x and W in pairs, */
    RFI_CPU_NARROW_SHORT = 16, /* and with fewer inputs than RFI_CPU_LONG, where panels multiply in pairs or the layer
                                  folds nothing, so that sums of lanes cost more than panels */
    RFI_CPU_LONG = 128,
    RFI_CPU_NARROW_ROWS = 64, /* rows in a block of those, at most */
    RFI_CPU_GROUP_ROWS = 16,  /* rows whose dot products are under way at a time */
    RFI_CPU_FOLD_ROWS = 16,   /* rows that are folded together, at most: a unit of them fits the first cache */
    RFI_CPU_FINISH_ROWS = 64, /* rows a task merges */
    RFI_CPU_ALIGN = 64,       /* bytes of a cache line */
    RFI_CPU_LEAST_PANEL = 4,  /* columns of a panel */
    RFI_CPU_DTYPES = RF_BFLOAT16 + 1
};

/* `rows` rows of x times one chunk of one panel, or a block of that chunk: out = (in + x w) + more + bias. Values are
 * of the compute type, w of the table's weight type. Only kernels that take blocks know of `more`. */
typedef struct rfi_cpu_sliver {
    int64_t depth;
    const void *x;    /* (rows, depth), RFI_CPU_X_LD elements apart; for multiply_lying ld_x */
    const void *w;    /* (depth, panel), aligned to RFI_CPU_ALIGN */
    const void *in;   /* (rows, panel): the chunk's blocks before this one, or if it is the only one the chunks; or
                         zeros (ld_in = 0) */
    const void *more; /* (rows, panel): the chunks before with the last of several blocks, else zeros */
    const void *bias; /* (panel): zeros but with the last block. A large bias added first would have every block rounded
                         at its size */
    void *out;        /* (rows, panel) */
    int64_t ld_in, ld_more, ld_out, ld_x;
    int inner; /* more blocks of this chunk follow: more and bias are zeros, and out is near, its rows a panel apart.
                  Tiles leave their sums as they are: whole tiles of rows, a panel apart, whatever in, bias and ld_out
                  say */
    int half;  /* the panel's second half is padding: a kernel need not multiply it, if it leaves numbers there */
    const float *begun; /* of tiles: the sums that an inner block of the same rows, whole tiles of them, has left in its
                           out, and that go on here; NULL: they begin here */
    const char *ahead;  /* memory that is wanted soon: */
    int ahead_lines;    /* in every turn, of RFI_CPU_STEP inputs, so many lines of it, */
    int ahead_turns;    /* or so many turns in a step of tiles of pairs, */
    int64_t ahead_apart, ahead_step; /* so many bytes apart, and the next so many bytes on */
    int ahead_is_x;                  /* each of which is read once, and soon: to the first cache, else to the second */
} rfi_cpu_sliver;

/* What is wanted soon, one turn's lines from `ahead` on. Which cache is a constant of the instruction. */
static inline __attribute__((always_inline)) void rfi_cpu_ask_for_lines(
    const rfi_cpu_sliver *s, const char *ahead, int lines, int near) {
    for (int line = 0; line < lines; line++)
        if (near) __builtin_prefetch(ahead + line * s->ahead_apart, 0, 3);
        else __builtin_prefetch(ahead + line * s->ahead_apart, 0, 2);
}

typedef void (*rfi_cpu_multiply)(const rfi_cpu_sliver *sliver);

/* X(1) X(2) ... X(RFI_CPU_TILE_ROWS) */
/* clang-format off */
#define RFI_CPU_EACH_TILE_ROWS(X) \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) \
    X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31) X(32)
/* clang-format on */
/* For these: multiply_1 to multiply_32 from a file's own multiply(sliver, rows), and a row of a table of them. */
#define RFI_CPU_ONE_TILE_ROWS(rows) \
    static void multiply_##rows(const rfi_cpu_sliver *s) { multiply(s, rows); }
#define RFI_CPU_NAME_TILE_ROWS(rows) multiply_##rows,

/* The same from a file's own multiply_tiles(sliver, rows, tiles), which is compiled for one tile and for two alone. */
#define RFI_CPU_TILE_TABLE(name)                                                                      \
    static void multiply_one_tile(const rfi_cpu_sliver *s, int rows) { multiply_tiles(s, rows, 1); }  \
    static void multiply_two_tiles(const rfi_cpu_sliver *s, int rows) { multiply_tiles(s, rows, 2); } \
    static inline void multiply(const rfi_cpu_sliver *s, int rows) {                                  \
        if (rows <= RFI_CPU_TILE) multiply_one_tile(s, rows);                                         \
        else multiply_two_tiles(s, rows);                                                             \
    }                                                                                                 \
    RFI_CPU_EACH_TILE_ROWS(RFI_CPU_ONE_TILE_ROWS)                                                     \
    static const rfi_cpu_multiply name[] = {RFI_CPU_EACH_TILE_ROWS(RFI_CPU_NAME_TILE_ROWS)}

/* Dot products of `rows` <= RFI_CPU_GROUP_ROWS rows of x with all columns of W, which is of the compute type, over one
 * chunk of inputs. */
typedef struct rfi_cpu_inner {
    const void *const *x; /* (rows) pointers to `depth` values of the table's type */
    const void *w;        /* (columns, ldw), aligned to RFI_CPU_ALIGN, zeros from `depth` on */
    int64_t ldw;
    void *lanes; /* (columns, RFI_CPU_GROUP_ROWS, lanes): the sums of every lane, written with the first chunk, then
                    added to */
    int64_t depth;
    int64_t ahead; /* values from a row's part of the chunk to what of x is read next and worth asking for */
    int columns, rows, first;
    int far; /* so much of x is read that one column asks for what comes next, too: less is near, and asking costs it
                more than it gains */
} rfi_cpu_inner;

/* Products of two 16-bit values of one type in pairs, for instruction sets that add two of them to a float at once. A
 * pair is 32 bits, the earlier input in the upper half; a chunk of odd depth ends with a zero. A panel has the same
 * shape as one of values, (depth / 2, panel) pairs.
 *
 * Of bfloat16 such an instruction takes a subnormal input for zero and flushes a subnormal sum. Where
 * rfi_cpu_pairs_exact says that there can be neither, its bits are those of multiply-adds in the same order (but for
 * the payload of a NaN, where several meet), so which of the two computes what is free, and may depend on what lies
 * beside a row.
 *
 * VDPBF16PS adds as two multiply-adds do, the upper half first: the order of the table's other kernels, so elsewhere
 * the panel is widened for those. Tiles have an order of their own (tiles_typed.h), which `multiply_any` has, too. */
typedef struct rfi_cpu_pairs {
    const char *name;
    int max_rows;   /* rows a sliver of pairs may have */
    int rows_step;  /* slivers but the last have whole multiples of so many; x has rows up to one, of any contents */
    int block_rows; /* rows in a task's block; */
    int alone_rows; /* of one thread, if more: it need not share evenly, and reads W less often */
    int flushes;    /* it takes subnormal inputs for zero and flushes subnormal sums: rfi_cpu_pairs_exact */
    int tiles;      /* a chunk is one block: the order of its sums bounds how long they grow */
    int begins;     /* but `multiply` knows of `begun` */
    double rate;    /* of its products to that of multiply-adds in float */
    /* By rows - 1. x is pairs, RFI_CPU_PAIRS_LD apart, with zeros up to a multiple of RFI_CPU_TILE_DEPTH inputs. */
    const rfi_cpu_multiply *multiply;
    /* The same whatever the values; NULL where the table's other kernels do. */
    const rfi_cpu_multiply *multiply_any;
    /* The same of float x, RFI_CPU_X_LD apart. NULL where a panel is widened for it, however few rows there are. */
    const rfi_cpu_multiply *multiply_float;
    /* depth values to pairs. Any of least[RFI_CPU_LEAST] may become as small as the smallest of (bits & 0x7fff) - 1. */
    void (*pack)(uint32_t *to, const uint16_t *from, int64_t depth, uint16_t *least);
    /* A panel of pairs to (depth, panel) floats. */
    void (*widen)(float *to, const uint32_t *from, int64_t depth);
    /* Before and after a thread's products. NULL: nothing to do. */
    void (*begin)(void);
    void (*end)(void);
} rfi_cpu_pairs;

enum { RFI_CPU_ALL_ZERO = 255, RFI_CPU_LEAST = RFI_CPU_ALIGN / 2 };

/* The exponent, as stored, of the smallest magnitude in bfloat16 that is not zero: 0 if one is subnormal,
 * RFI_CPU_ALL_ZERO if there is none. `least` is the smallest of (bits & 0x7fff) - 1 in 16 bits, where zero is largest.
 */
static inline int rfi_cpu_least_exponent(uint16_t least) {
    return least == 0xffff ? RFI_CPU_ALL_ZERO : (least + 1) >> 7;
}

/* Can products of values with these least exponents be added in pairs? A product is a multiple of 2^(x + w - 2 * 134),
 * and so is every sum of them, rounded or not: from 2^-126 on none is subnormal. */
static inline int rfi_cpu_pairs_exact(int x, int w) { return x && w && x + w >= 2 * 134 - 126; }

/* float32 in three terms of bfloat16 each, for instruction sets that add products of bfloat16 so much faster that six
 * of them take less time than one of float32: the first term is the value rounded to bfloat16, the second what is left
 * of it, rounded, the third the rest, which has no more than seven bits. Of x = x0 + x1 + x2 and w likewise these
 * products are added (x's term, then w's), in this order, for every RFI_CPU_TILE_DEPTH inputs of a chunk; then x0 w0 of
 * all of the chunk, whose sum is so large beside the others that roundings count in it alone. Left out are x1 w2, x2 w1
 * and x2 w2, at most 2^-24 of a product (doc/kernels/cpu.md 34). Next to each other are products that share a factor,
 * which is loaded once. */
#define RFI_CPU_EACH_SMALL_PRODUCT(X) X(0, 2) X(0, 1) X(1, 1) X(1, 0) X(2, 0)

/* Of values: the least of (bits & 0x7fffffff) - 1, where zero is largest, and the greatest and second of bits &
 * 0x7fffffff. */
typedef struct rfi_cpu_seen {
    uint32_t least, greatest, second;
} rfi_cpu_seen;

/* Exponents, as stored, of the smallest magnitude that is not zero (RFI_CPU_ALL_ZERO if there is none) and of the
 * largest; and whether that stands alone: 2^RFI_CPU_ALONE times all others. */
typedef struct rfi_cpu_range {
    uint8_t least, greatest, alone;
} rfi_cpu_range;

enum { RFI_CPU_ALONE = 20 };

static inline rfi_cpu_range rfi_cpu_range_of(rfi_cpu_seen seen) {
    const int greatest = (int)(seen.greatest >> 23), second = (int)(seen.second >> 23);
    return (rfi_cpu_range){
        .least = (uint8_t)(seen.least == UINT32_MAX ? RFI_CPU_ALL_ZERO : (seen.least + 1) >> 23),
        .greatest = (uint8_t)greatest,
        .alone = seen.greatest && greatest - second >= RFI_CPU_ALONE,
    };
}

typedef struct rfi_cpu_terms {
    const char *name;
    int max_rows, rows_step, block_rows; /* as rfi_cpu_pairs' */
    double rate;                         /* of its products, six as one, to that of multiply-adds in float */
    /* By rows - 1. A chunk is one block. A row of x is RFI_CPU_TERMS times RFI_CPU_PAIRS_LD pairs, a term after the
     * other; the terms of a panel are panels of pairs, one behind the other, too. */
    const rfi_cpu_multiply *multiply;
    /* A row of depth values, with zeros up to a multiple of RFI_CPU_TILE_DEPTH inputs. */
    rfi_cpu_range (*split_row)(uint32_t *to, const float *from, int64_t depth);
    /* Inputs of a panel, (depth, panel) values, to terms that are `apart` pairs apart; adds to what was (panel) seen.
     */
    void (*split_panel)(uint32_t *to, int64_t apart, const float *from, int64_t depth, rfi_cpu_seen *seen);
    /* A whole panel to its values. */
    void (*join_panel)(float *to, const uint32_t *from, int64_t depth);
    void (*begin)(void); /* as rfi_cpu_pairs' */
    void (*end)(void);
} rfi_cpu_terms;

/* Are the terms of values in this range normal numbers, that add up to them, and no infinities? A value is a multiple
 * of 2^-23 of its power of two, and so is each of its terms. Of a value that stands alone the products make the sum
 * all by themselves, so that what terms leave out of them shows: plain float32 rounds nothing else, either. */
static inline int rfi_cpu_has_terms(rfi_cpu_range r) {
    return r.least >= 127 - 126 + 23 && r.greatest <= 127 + 126 && !r.alone;
}

/* May values in these ranges be multiplied in terms? All products are multiples of 2^-46 of those of the least powers
 * of two, and so are their sums, rounded or not: none is subnormal, which tiles would flush. Each product of two first
 * terms is below 4 times that of the greatest powers of two, the others are 2^-6 of it together, and a chunk has 512:
 * no sum overflows. */
static inline int rfi_cpu_terms_exact(rfi_cpu_range x, rfi_cpu_range w) {
    return rfi_cpu_has_terms(x) && rfi_cpu_has_terms(w) && x.least + w.least >= 2 * 127 - 126 + 46 &&
        x.greatest + w.greatest <= 2 * 127 + 127 - 12;
}

/* For one compute type on one instruction set. */
typedef struct rfi_cpu_kernel {
    int max_rows; /* rows a sliver may have */
    int panel;    /* columns of a panel; divides RFI_CPU_UNIT */
    int lanes;    /* values of a vector */
    /* By weight type, then rows - 1. NULL where W has to be widened first. */
    const rfi_cpu_multiply *multiply[RFI_CPU_DTYPES];
    /* The same of W and x of the compute type, where x lies. NULL: it has to be brought together. */
    const rfi_cpu_multiply *multiply_lying;
    /* n values of `dtype` to the compute type, exactly. */
    void (*widen)(void *to, const void *from, rf_dtype dtype, int64_t n);
    /* n values of the compute type to `dtype`, rounded once. */
    void (*narrow)(void *to, const void *from, rf_dtype dtype, int64_t n);
    /* The steps in order on n <= RFI_CPU_UNIT values, n a multiple of `panel`. vectors[v] + first is where the columns'
     * parameters start. A reduction among them is one over a single column. */
    void (*apply)(const rfi_step *steps, int num_steps, const void *const *vectors, int64_t first, void *values, int n);
    /* n <= RFI_CPU_UNIT values, of columns from `first` on, of each of `rows` <= RFI_CPU_FOLD_ROWS rows, `ld` values
     * apart and up to a whole panel there, to a state (states.h) for each row, `stride` words apart, of the compute
     * type, whose peak is there already where the reduction is seeded. The rows ask for columns (rows) asked. */
    void (*fold)(int reduction, const void *values, int64_t ld, int rows, int n, int64_t first, const int64_t *asked,
        void *states, int64_t stride);
    /* out = the sum of `count` runs of n values, `stride` apart, plus bias: `together` of them in order from 0 on, then
     * these sums likewise. n is a multiple of `panel`; out may be the first run. */
    void (*add_up)(
        void *out, const void *runs, int64_t stride, int64_t count, int64_t together, const void *bias, int n);
    /* `count` states of the compute type of each of (rows) rows, `words` apart and `stride` from one row to the next,
     * to one in double, of which each is `ld` words apart. */
    void (*join)(
        int reduction, const void *states, int words, int64_t stride, int64_t count, int rows, double *out, int64_t ld);
    /* (rows, groups) such states in double that begin with those of the reduction, `words` apart and `stride` from one
     * row to the next, to (rows) results over `count` columns (less a correction), written up to whole panels of
     * floats; indices and numbers of columns are WORDs. q: (rows), or NULL. */
    void (*merge)(int reduction, const double *states, int words, int64_t stride, int64_t groups, double count,
        int rows, const int64_t *q, void *out);
    /* Of n values of the compute type with float64 weights: see dot_typed.h. */
    double (*dot)(const void *values, const double *weight, int64_t n, double *largest);
    /* By the type of x. NULL where x has to be widened first. */
    void (*inner[RFI_CPU_DTYPES])(const rfi_cpu_inner *inner);
    /* The sum of lanes[c][r], plus bias[c], at values[c * ld + r] or values[r * ld + c]. Each run of values is written
     * up to whole vectors. */
    void (*sums_by_column)(const void *lanes, int columns, int rows, const void *bias, void *values, int64_t ld);
    void (*sums_by_row)(const void *lanes, int columns, int rows, const void *bias, void *values, int64_t ld);
    /* out[c * ld_out + r] = values[r * ld + c]. */
    void (*turn)(const void *values, int64_t ld, int columns, int rows, void *out, int64_t ld_out);
    /* Values by column to (rows) results, with `count` and as merge writes them. q: (rows), or NULL. Or, with `states`,
     * to a state in double for each row, `ld_states` words apart. */
    void (*fold_rows)(int reduction, const void *values, int64_t ld, int columns, double count, int rows,
        const int64_t *q, void *out, double *states, int64_t ld_states);
    /* By weight type. NULL: it is multiplied value by value. */
    const rfi_cpu_pairs *pairs[RFI_CPU_DTYPES];
    const rfi_cpu_terms *terms; /* NULL: so is float32 */
} rfi_cpu_kernel;

typedef struct rfi_cpu_isa {
    const char *name;
    rfi_cpu_kernel f32, f64;
    /* `count` rounds of independent multiply-adds in registers, as fast as the core can; returns the floating point
     * operations done. */
    double (*burn)(int64_t count);
    /* Reads bytes (a multiple of 4096) from memory, as fast as the core can. The result depends on all of them. */
    uint64_t (*read)(const void *data, size_t bytes);
} rfi_cpu_isa;

extern const rfi_cpu_isa rfi_cpu_generic, rfi_cpu_avx2, rfi_cpu_avx512, rfi_cpu_avx512_bf16, rfi_cpu_avx512_tiles,
    rfi_cpu_amx_bf16, rfi_cpu_amx_fp16, rfi_cpu_avx512_terms, rfi_cpu_amx_terms;

/* Of panels as AVX-512 has them, and what they share. */
extern const rfi_cpu_pairs rfi_cpu_pairs_avx512_bf16, rfi_cpu_pairs_avx512_tiles, rfi_cpu_pairs_amx_bf16;
extern const rfi_cpu_pairs rfi_cpu_f16_pairs_avx512_tiles, rfi_cpu_f16_pairs_amx_fp16;
extern const rfi_cpu_multiply rfi_cpu_pairs_multiply_float[], rfi_cpu_tiles_multiply[];
extern const rfi_cpu_multiply rfi_cpu_f16_tiles_multiply[];
void rfi_cpu_pairs_pack(uint32_t *to, const uint16_t *from, int64_t depth, uint16_t *least);
void rfi_cpu_pairs_widen(float *to, const uint32_t *from, int64_t depth);
void rfi_cpu_f16_pairs_widen(float *to, const uint32_t *from, int64_t depth);
extern const rfi_cpu_terms rfi_cpu_terms_avx512, rfi_cpu_terms_amx;
extern const rfi_cpu_multiply rfi_cpu_terms_multiply[];
rfi_cpu_range rfi_cpu_terms_split_row(uint32_t *to, const float *from, int64_t depth);
void rfi_cpu_terms_split_panel(uint32_t *to, int64_t apart, const float *from, int64_t depth, rfi_cpu_seen *seen);
void rfi_cpu_terms_join_panel(float *to, const uint32_t *from, int64_t depth);

/* Does this processor, which has the instruction, round as is said above? That of AMX needs the kernel's permission. */
int rfi_cpu_pairs_as_documented_avx512_bf16(void);
int rfi_cpu_tiles_as_documented_amx_bf16(void);
int rfi_cpu_tiles_as_documented_amx_fp16(void);
int rfi_cpu_terms_as_documented_amx(void);

#endif
