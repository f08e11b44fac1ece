/* SPDX-License-Identifier: MIT */
/* A chain: the validated list of operators, from text or from an op list. */
#ifndef ROWFOLD_CHAIN_H
#define ROWFOLD_CHAIN_H

#include "rowfold.h"

/* Row of the operator table built from ops.def and reductions.def (optable.c). */
typedef struct rfi_op_desc {
    int kind;
    rf_op_class op_class;
    const char *name;
    const char *word_keyword; /* of a name like gelu(tanh): the keyword that its word may be given by; else NULL */
    const char *doc;
    int num_params, min_params;
    int accepts_vector;
    const char *param_names[RF_MAX_OP_PARAMS];
    double param_defaults[RF_MAX_OP_PARAMS];
    unsigned flags; /* RFI_OPF_* */
    int empty_ok;   /* reductions: a row without columns has a result */
    rf_row_use row_use;
    int gives_index; /* reductions: the result is int64, a column or a number of them */
    int top;         /* and asks for the k best columns, k its parameter */
    int corrects;    /* and its parameter is taken from the number of columns */
} rfi_op_desc;

enum {
    RFI_OPF_NAN_PARAMS = 1,
    RFI_OPF_ONE_PARAM = 2,
    RFI_OPF_NONZERO_A = 4,
    RFI_OPF_READS_SAVED = 8,
    RFI_OPF_SAVES = 16,
    RFI_OPF_INCREASING = 32,
    RFI_OPF_INCREASING_A = 64,
    RFI_OPF_ORDERED = 128,
    RFI_OPF_HOST = 256
};

const rfi_op_desc *rfi_op_find(int kind);   /* NULL if there is none */
const rfi_op_desc *rfi_op_at(size_t index); /* of rf_op_count() */

/* Which ops of a chain are one result's own. */
typedef struct rfi_result {
    int first, end; /* ops[first .. end) */
    int reduction;  /* index of the op that folds the columns, or -1. Reductions behind it see a width of 1 */
} rfi_result;

typedef struct rfi_chain {
    int64_t in_features, out_features; /* -1 where nobody has said */
    /* The layer's columns are those from first_column on of total_columns. Given before the sizes are settled; 0 and 0
     * are all of them. */
    int64_t first_column, total_columns;
    int num_ops;           /* ops[0] is the linear layer */
    rf_op ops[RF_MAX_OPS]; /* params filled with their defaults */
    int trunk_end;         /* ops[1 .. trunk_end) are computed for all results */
    int num_results;       /* at least 1; each of several has a reduction */
    rfi_result results[RF_MAX_RESULTS];
} rfi_chain;

static inline int rfi_is_row_input(const char *vector) { return *vector == '#'; }

/* Both check everything that does not need K and N. Errors: RF_INVALID_CHAIN with the column (text) or index (ops),
 * RF_INVALID_ARGUMENT for NULL. */
rf_status rfi_chain_from_text(const char *text, rfi_chain *chain);
rf_status rfi_chain_from_ops(const rf_op *ops, size_t num_ops, rfi_chain *chain);

/* Settles K and N from the chain and the config (0: not given) and checks what depends on them. */
rf_status rfi_chain_set_size(rfi_chain *chain, int64_t in_features, int64_t out_features);

/* Where each op stood, for errors: `text` and byte offsets into it, or NULL for an op list. */
typedef struct rfi_chain_place {
    const char *text;
    size_t offsets[RF_MAX_OPS];
} rfi_chain_place;

/* "chain, column 12" (1-based, in characters), or "chain, line 2, column 3" behind a newline. */
enum { RFI_PLACE_TEXT = 80 };
const char *rfi_chain_column(const char *text, size_t offset, char place[RFI_PLACE_TEXT]);

/* Text to ops, syntax only: names, parentheses, keywords, numbers. The parameters not given get their defaults. */
rf_status rfi_chain_read(const char *text, rf_op ops[RF_MAX_OPS], size_t *num_ops, rfi_chain_place *place);

/* One valid op as it stands in a chain: "clamp(-10, max=10)". Not of RF_OP_RESULT. */
enum { RFI_OP_TEXT = 128, RFI_CHAIN_TEXT = RF_MAX_OPS * (RFI_OP_TEXT + 5) };
const char *rfi_op_format(const rf_op *op, char text[RFI_OP_TEXT]);

#endif
