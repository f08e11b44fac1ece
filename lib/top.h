/* SPDX-License-Identifier: MIT */
/* The best k columns of a row so far, best first: larger values, NaN before all of them, and of equal ones the first
 * column. No two columns are equally good, so which k are left does not depend on the order in which they come. */
#ifndef ROWFOLD_TOP_H
#define ROWFOLD_TOP_H

#include <stdint.h>

typedef struct rfi_ranked {
    double value; /* of either compute type, exactly */
    int64_t column;
} rfi_ranked;

/* A list of k lies in rfi_top_bytes(k). All zeros: it is empty. */
typedef struct rfi_top {
    int64_t count, unused;
    rfi_ranked at[];
} rfi_top;

static inline int64_t rfi_top_bytes(int k) { return (int64_t)sizeof(rfi_top) + k * (int64_t)sizeof(rfi_ranked); }

static inline int rfi_comes_before(rfi_ranked p, rfi_ranked q) {
    const int p_nan = p.value != p.value, q_nan = q.value != q.value;
    if (p.value == q.value || (p_nan && q_nan)) return p.column < q.column;
    return p.value > q.value || (p_nan && !q_nan);
}

/* Would it be one of the best k? */
static inline int rfi_top_wants(const rfi_top *top, int k, rfi_ranked one) {
    return top->count < k || rfi_comes_before(one, top->at[k - 1]);
}

static inline void rfi_top_push(rfi_top *top, int k, rfi_ranked one) {
    if (!rfi_top_wants(top, k, one)) return;
    int64_t i = top->count < k ? top->count++ : k - 1;
    for (; i && rfi_comes_before(one, top->at[i - 1]); i--) top->at[i] = top->at[i - 1];
    top->at[i] = one;
}

#endif
