/* SPDX-License-Identifier: MIT */
/* A tile of the logits: what its three parts share. tile_x.c has x ready, multiply.c makes the logits, tile.c has the
 * tasks and what becomes of them. */
#ifndef ROWFOLD_CPU_TILE_H
#define ROWFOLD_CPU_TILE_H

#include "cpu/forward.h"

/* A block of rows and of units, and the scratch of the thread that works on it. */
typedef struct rfi_cpu_tile {
    int64_t row, rows, unit, units;
    const int64_t *list; /* (rows) which of the run they are; NULL: from `row` on */
    size_t value, item;  /* bytes of the compute type, and of x */
    char *x, *w, *c;
    char *stretch;         /* as c, for the sums of a stretch behind the first */
    uint32_t *pairs;       /* x, where W is in pairs; several terms of it, where W is */
    rfi_cpu_range *ranges; /* (rows) of x in terms */
    char *apart;           /* where the sums of chunks lie, of the first column of the first row; NULL: added in c */
    int64_t begin, end;    /* of the inputs, whole chunks but for the last, */
    int64_t first, last;   /* and of the columns, in whole panels */
} rfi_cpu_tile;

/* Where the multiplication of a tile stands: a chunk of inputs, and in it one panel after the other. */
typedef struct rfi_cpu_place {
    int64_t k, depth;
    int64_t column;        /* first of the panel */
    int64_t panel, panels; /* it is this one of so many of the tile */
    char *sums;            /* the tile's c or stretch: where this chunk is added to the others of its stretch, */
    int from_zero;         /* which it begins */
    int least;             /* of x in pairs: rfi_cpu_pairs_exact; 0 if it is not there */
    int widened;           /* x is there in the compute type */
    int64_t apart;         /* rows of x in terms that this panel is multiplied with in float instead */
    int came_ahead;        /* x was asked for while the chunk before was multiplied */
    int asks;              /* while this one is, x is asked for beside W, */
    int asks_instead;      /* or, if it is one block but of tiles of pairs, instead: */
    int64_t wanted;        /* so many inputs */
    int of_next;           /* of this tile's next chunk, or of the next tile's first */
    int asked;             /* and has been */
} rfi_cpu_place;

static inline const char *rfi_cpu_x_of_tile(const rfi_cpu_run *run, const rfi_cpu_tile *t, int64_t i, int64_t k) {
    return rfi_cpu_x(run, t->list ? t->list[i] : t->row + i, t->item) + (size_t)k * t->item;
}

static inline int rfi_cpu_x_in_pairs(const rfi_cpu_run *run) {
    return run->prepared->pairs && run->call->x_dtype == run->spec->weight_dtype;
}

/* Whether x is multiplied where it lies, and not brought together: the same values in the same order. */
int rfi_cpu_x_lies(const rfi_cpu_run *run, const rfi_cpu_tile *t);

/* x of a chunk in the form that most of its products take: values, pairs or terms. */
void rfi_cpu_pack_x(const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at);

/* And as values of the compute type, where it is in another form. */
void rfi_cpu_need_values(const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at);

/* The logits of a tile, into its c or apart. */
void rfi_cpu_multiply_tile(const rfi_cpu_run *run, const rfi_cpu_tile *t);

/* Around all products of a thread in a task. */
void rfi_cpu_begin_products(const rfi_cpu_run *run);
void rfi_cpu_end_products(const rfi_cpu_run *run);

#endif
