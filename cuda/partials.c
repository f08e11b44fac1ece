/* SPDX-License-Identifier: MIT */
#include "partials.h"

#include "sizes.h"

enum {
    PIECE_STATES = 1 << 20, /* of the rows of a piece, about */
    LEAST_STATES = 64,      /* of a row: fewer take little beside x */
    WALKED_ROWS = 2048,     /* that kernels of sm_90a fold before they read W again */
    /* Rounds of tiles in a piece, whose end takes as long as half a round and some 10 us: those of few inputs take
     * longer to fold than to multiply, by so many. */
    LEAST_ROUNDS = 48,
    FEW_INPUTS = 384,
    LEAST_INPUTS = 1 << 17 /* of all rounds, with what folding is worth */
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
