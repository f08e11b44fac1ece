/* SPDX-License-Identifier: MIT */
#include "partials.h"

#include <math.h>

#include "sizes.h"

enum {
    PIECE_STATES = 1 << 20, /* of the rows of a piece, about */
    LEAST_STATES = 64,      /* of a row: fewer take little beside x */
    WALKED_ROWS = 2048,     /* that kernels of sm_90a fold before they read W again */
    /* Rounds of tiles in a piece, whose end takes as long as half a round and some 10 us: those of few inputs take
     * longer to fold than to multiply, by so many. */
    LEAST_ROUNDS = 48,
    FEW_INPUTS = 384,
    LEAST_INPUTS = 1 << 17, /* of all rounds, with what folding is worth */
    X_BYTES = 32 << 20,     /* of a piece's rows, as terms or as a copy */
    MOST_X_BYTES = 128 << 20,
    X_ROWS = 256, /* a piece has whole multiples of, two tiles high, */
    X_COLUMNS = 256,
    X_INPUTS = 8192,   /* of its rounds, where few tiles have all columns */
    PIECE_INPUTS = 700 /* that a piece more costs as much as */
};

int32_t rfi_cuda_groups(const rfi_cuda_choice *choice, int64_t n) {
    const int64_t blocks = ceil_div(n, choice->tile_columns);
    return choice->irregular || blocks <= 2 * RFI_GROUP_BLOCKS ? 0 : (int32_t)ceil_div(blocks, RFI_GROUP_BLOCKS);
}

/* With more rows memory grows and nothing is gained: pieces read W as often as all rows at once. */
static int64_t rows_at_once(const rfi_cuda_choice *c, int64_t batch, int64_t k, int64_t n, int64_t states) {
    if (states < LEAST_STATES || c->splits > 1) return batch;
    const int64_t rounds = most(LEAST_ROUNDS, LEAST_INPUTS / (k + FEW_INPUTS)),
                  tiles = rounds * c->multiprocessors / ceil_div(n, c->tile_columns),
                  rows = most(PIECE_STATES / states, tiles * c->tile_rows) / WALKED_ROWS * WALKED_ROWS;
    return least(batch, most(rows, WALKED_ROWS));
}

/* Whose pieces take hardly longer than those of the best size. */
static const double NEARLY = 1 + 1.0 / 16;

/* Of X_ROWS and n columns. */
static int64_t tiles_of(int64_t n) { return 2 * most(ceil_div(n, X_COLUMNS), 1); }

/* What a piece takes for each X_ROWS of so many, in inputs of a tile. */
static double time_of_piece(const rfi_cuda_choice *c, int64_t size, int64_t k, int64_t n) {
    const int64_t rounds = ceil_div(size * tiles_of(n), c->multiprocessors);
    return (double)(rounds * (k + FEW_INPUTS) + PIECE_INPUTS) / (double)size;
}

/* The best of sizes `from` to `to`, the larger of equals. */
static int64_t best_size(const rfi_cuda_choice *c, int64_t from, int64_t to, int64_t k, int64_t n) {
    int64_t best = from;
    double least_time = INFINITY;
    for (int64_t size = from; size <= to; size++) {
        const double time = time_of_piece(c, size, k, n);
        if (time > least_time) continue;
        best = size;
        least_time = time;
    }
    return best;
}

/* A function of the layer and the batch, not of the kernel's tiles, that never falls as the batch grows: what fewer
 * rows take has room in a workspace for more. */
int64_t rfi_cuda_rows_of_x(const rfi_cuda_choice *c, int64_t batch, int64_t k, int64_t n, int64_t row_bytes) {
    if (!row_bytes || c->splits > 1) return batch;
    /* Sizes are in X_ROWS. */
    const int64_t all = ceil_div(batch, X_ROWS), few = X_BYTES / row_bytes / X_ROWS,
                  many = MOST_X_BYTES / row_bytes / X_ROWS,
                  busy = most(X_INPUTS / (k + FEW_INPUTS), 1) * c->multiprocessors / tiles_of(n);
    if (all <= few) return batch;
    const int64_t from = most(few, 1), range = most(most(many, busy), from);
    const double enough = NEARLY * time_of_piece(c, best_size(c, from, range, k, n), k, n);
    int64_t least_size = from;
    while (time_of_piece(c, least_size, k, n) > enough) least_size++;
    const int64_t room = most(least(most(all / 2, few), many), least_size);
    return least(batch, best_size(c, from, room, k, n) * X_ROWS);
}

rfi_cuda_partials rfi_cuda_partials_of(const rfi_cuda_choice *c, int64_t batch, int64_t k, int64_t n, int searched) {
    const int64_t units = most(ceil_div(n, RFI_FOLD_COLUMNS), 1);
    rfi_cuda_partials p = {.states = units};
    int64_t groups = 0; /* where tiles of sm_90a merge states: theirs lie behind an even number of others */
    if (c->grouped) {
        const int64_t own = ceil_div(n, c->tile_columns) * (c->tile_columns / c->fold_columns);
        if (!c->apart) groups = ceil_div(own, RFI_SM90_GROUP);
        /* Rows that terms do not represent have units, and so has what is known ahead. */
        if (!c->uses_terms && !searched) p.states = 1;
        p.states = most(p.states, round_up(own, 2) + groups);
    } else {
        p.groups = rfi_cuda_groups(c, n);
        p.states += p.groups; /* behind those of the columns */
    }
    if (c->irregular) p.states = round_up(p.states, 2) + (c->grouped ? 0 : RFI_SM90_BLOCKS); /* see kernels.h */
    p.rows = rows_at_once(c, batch, k, n, p.states);
    if (c->apart) return p;
    /* Where a block of a portable kernel has all columns nobody else writes a row's states. */
    if (c->grouped) p.tickets = ceil_div(p.rows, 64) * (groups + 1);
    else if (n > c->tile_columns) p.tickets = ceil_div(p.rows, c->tile_rows) * (p.groups + 1);
    return p;
}
