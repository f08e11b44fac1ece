/* SPDX-License-Identifier: MIT */
/* x of a tile, a chunk of inputs at a time: widened to the compute type, in pairs, or split into terms. */
#include <string.h>

#include "cpu/tile.h"
#include "dtype.h"

enum { ROWS_AHEAD = 8 }; /* rows between the packing of x and its prefetch */

/* A row's part of a chunk is too short for the processor to see where the next one begins, unless that is where this
 * one ends. */
static void ask_for_row(const rfi_cpu_run *run, const rfi_cpu_tile *t, int64_t i, const rfi_cpu_place *at) {
    if (i + ROWS_AHEAD >= t->rows || at->depth == run->call->ldx || at->came_ahead) return;
    const char *x = rfi_cpu_x_of_tile(run, t, i + ROWS_AHEAD, at->k);
    const size_t bytes = (size_t)at->depth * t->item;
    for (size_t b = 0; b < bytes; b += RFI_CPU_ALIGN) __builtin_prefetch(x + b);
    if (bytes) __builtin_prefetch(x + bytes - 1);
}

static void widen_x(const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at) {
    at->widened = 1;
    if (!at->depth) return; /* x may be NULL */
    for (int64_t i = 0; i < t->rows; i++) {
        ask_for_row(run, t, i, at);
        run->prepared->kernel->widen(t->x + (size_t)(i * RFI_CPU_X_LD) * t->value, rfi_cpu_x_of_tile(run, t, i, at->k),
            run->call->x_dtype, at->depth);
    }
}

void rfi_cpu_need_values(const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at) {
    if (!at->widened) widen_x(run, t, at);
}

/* x of another type has fewer terms, and the others are zero. */
static void split_x(const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at) {
    const rfi_cpu_terms *terms = run->prepared->terms;
    const int in_float = run->call->x_dtype == RF_FLOAT32;
    if (!in_float) widen_x(run, t, at);
    for (int64_t i = 0; i < t->rows; i++) {
        if (in_float) ask_for_row(run, t, i, at);
        const void *x = in_float ? rfi_cpu_x_of_tile(run, t, i, at->k) : t->x + (size_t)(i * RFI_CPU_X_LD) * t->value;
        t->ranges[i] = terms->split_row(t->pairs + i * RFI_CPU_TERMS_LD, x, at->depth);
    }
}

/* Few panels read x so few times that bringing it together does not pay; rows that share cache sets are brought apart.
 */
int rfi_cpu_x_lies(const rfi_cpu_run *run, const rfi_cpu_tile *t) {
    enum { MOST_BYTES = 512, SETS_BYTES = 4096 }; /* of a row of logits; from one line of a cache set to the next */
    const rfi_cpu_prepared *p = run->prepared;
    const rf_dtype compute = run->spec->compute_dtype;
    return p->kernel->multiply_lying && !p->pairs && !p->terms && run->spec->weight_dtype == compute &&
        run->call->x_dtype == compute && (size_t)(t->last - t->first) * t->value <= MOST_BYTES && !t->list &&
        !run->row_list && !run->call->wanted && run->call->ldx * (int64_t)t->item % SETS_BYTES;
}

void rfi_cpu_pack_x(const rfi_cpu_run *run, const rfi_cpu_tile *t, rfi_cpu_place *at) {
    const rfi_cpu_pairs *pairs = run->prepared->pairs;
    if (at->depth && rfi_cpu_x_lies(run, t)) return;
    if (run->prepared->terms && at->depth) {
        split_x(run, t, at);
        return;
    }
    if (!rfi_cpu_x_in_pairs(run) || !at->depth) {
        widen_x(run, t, at);
        return;
    }
    uint16_t smallest[RFI_CPU_LEAST];
    memset(smallest, 0xff, sizeof smallest);
    for (int64_t i = 0; i < t->rows; i++) {
        ask_for_row(run, t, i, at);
        pairs->pack(
            t->pairs + i * RFI_CPU_PAIRS_LD, (const void *)rfi_cpu_x_of_tile(run, t, i, at->k), at->depth, smallest);
    }
    for (int i = 1; i < RFI_CPU_LEAST; i++) smallest[0] = smallest[i] < smallest[0] ? smallest[i] : smallest[0];
    at->least = rfi_cpu_least_exponent(smallest[0]);
}
