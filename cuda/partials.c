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
    X_INPUTS = 8192,   /* of its rounds, at least */
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

/* Of the time, for which a piece may take more memory. */
static const double WORTH_MEMORY = 1.0 / 16;

int64_t rfi_cuda_rows_of_x(const rfi_cuda_choice *c, int64_t batch, int64_t k, int64_t n, int64_t row_bytes) {
    if (!row_bytes || c->splits > 1) return batch;
    /* In pairs of tiles along the batch. */
    const int64_t pair = 2 * (int64_t)c->tile_rows, all = ceil_div(batch, pair), inputs = k + FEW_INPUTS,
                  tiles = 2 * most(ceil_div(n, c->tile_columns), 1), most_room = MOST_X_BYTES / row_bytes / pair,
                  soon = most(X_INPUTS / inputs, 1) * c->multiprocessors / tiles,
                  room = most(least(most(all / 2, X_BYTES / row_bytes / pair), most_room), most(soon, 1)),
                  limit = least(all, most(most_room, room));
    if (all <= room) return batch;
    int64_t best = 0;
    double least_cost = INFINITY; /* of all pieces, in inputs */
    for (int64_t most_pairs = 1; most_pairs <= limit; most_pairs++) {
        /* Pieces are made even: layout.c. */
        const int64_t pieces = ceil_div(all, most_pairs), pairs = ceil_div(all, pieces),
                      rounds = ceil_div(pairs * tiles, c->multiprocessors);
        const double cost = (double)pieces * (double)(rounds * inputs + PIECE_INPUTS);
        if (cost > (most_pairs <= room ? 1 : 1 - WORTH_MEMORY) * least_cost) continue;
        best = pairs;
        least_cost = cost;
    }
    return least(batch, best * pair);
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
