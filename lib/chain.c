/* SPDX-License-Identifier: MIT */
/* What makes a list of ops a chain, and the way back to text. */
#include "chain.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "guard.h"
#include "lexical.h"
#include "number.h"

/* Largest K and N: sizes stay exact in a double, and a byte count of one row far from overflow. */
#define MAX_FEATURES ((int64_t)1 << 40)

__attribute__((format(printf, 4, 5))) static rf_status fail(
    const rf_op *ops, const rfi_chain_place *place, int i, const char *format, ...) {
    char sentence[600], where[RFI_PLACE_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    const rfi_op_desc *desc = rfi_op_find(ops[i].kind);
    if (place)
        return rfi_error(RF_INVALID_CHAIN, "%s: %s", rfi_chain_column(place->text, place->offsets[i], where), sentence);
    if (desc) return rfi_error(RF_INVALID_CHAIN, "ops[%d] (%s): %s", i, desc->name, sentence);
    return rfi_error(RF_INVALID_CHAIN, "ops[%d]: %s", i, sentence);
}

static int vector_name_ok(const char *vector) {
    if (!memchr(vector, 0, RF_MAX_NAME)) return 0;
    const char *name = vector + rfi_is_row_input(vector);
    for (const char *c = name; *c; c++)
        if (!rfi_is_name(*c, c > name)) return 0;
    return name == vector || *name;
}

static int names_columns(const rfi_op_desc *desc) {
    return desc->row_use == RF_ROW_COLUMN || desc->row_use == RF_ROW_COLUMNS;
}

/* What may stand in the place of the first parameter besides a number. */
static const char *other_operands(const rfi_op_desc *desc) {
    return desc->accepts_vector && desc->row_use ? ", a number, an @vector or a #row_input"
        : desc->accepts_vector                   ? ", a number or an @vector"
        : desc->row_use == RF_ROW_COLUMN         ? ", a #row_input that names a column of each row"
        : desc->row_use == RF_ROW_COLUMNS        ? ", a #row_input that names columns of each row"
        : desc->top                              ? ", how many columns"
                                                 : "";
}

static rf_status check_vector(const rf_op *ops, const rfi_chain_place *place, int i) {
    const rf_op *op = &ops[i];
    const rfi_op_desc *desc = rfi_op_find(op->kind);
    if (!vector_name_ok(op->vector))
        return fail(ops, place, i,
            "the vector's name is not letters, digits, _ and ., a letter or _ first (behind the # of a row input), of at most %d",
            RF_MAX_NAME - 1);
    if (rfi_is_row_input(op->vector) && !desc->row_use) return fail(ops, place, i, "%s takes no row input", desc->name);
    if (*op->vector && !rfi_is_row_input(op->vector) && !desc->accepts_vector)
        return fail(ops, place, i, "%s takes no vector", desc->name);
    if (*op->vector && op->num_params && (desc->num_params == 1 || op->num_params < desc->num_params))
        return fail(ops, place, i, "%s takes a number or a %s, got both", desc->name,
            rfi_is_row_input(op->vector) ? "row input" : "vector");
    if (!*op->vector && (op->num_params < desc->min_params || names_columns(desc)))
        return fail(
            ops, place, i, "%s needs its parameter %s%s", desc->name, desc->param_names[0], other_operands(desc));
    return RF_OK;
}

static rf_status check_params(const rf_op *ops, const rfi_chain_place *place, int i) {
    const rf_op *op = &ops[i];
    const rfi_op_desc *desc = rfi_op_find(op->kind);
    if (!desc) return fail(ops, place, i, "kind is %d, which is no rf_op_kind", (int)op->kind);
    if (op->num_params < 0 || op->num_params > desc->num_params)
        return fail(ops, place, i, "%s takes at most %d number%s, got %d", desc->name, desc->num_params,
            desc->num_params == 1 ? "" : "s", (int)op->num_params);
    rf_status status = check_vector(ops, place, i);
    if (status) return status;
    if ((desc->flags & RFI_OPF_ONE_PARAM) && !op->num_params)
        return fail(ops, place, i, "%s needs %s or %s", desc->name, desc->param_names[0], desc->param_names[1]);
    for (int p = *op->vector ? 1 : 0; p < op->num_params; p++)
        if (isnan(op->params[p]) && !(desc->flags & RFI_OPF_NAN_PARAMS))
            return fail(ops, place, i, "%s of %s is nan; expected a number", desc->param_names[p], desc->name);
    if ((desc->flags & RFI_OPF_NONZERO_A) && op->num_params && !*op->vector && op->params[0] == 0)
        return fail(ops, place, i, "%s of %s is 0; expected another number", desc->param_names[0], desc->name);
    if (desc->top && !(op->params[0] >= 1 && op->params[0] <= RF_MAX_TOP && op->params[0] == floor(op->params[0]))) {
        char number[RFI_NUMBER_TEXT];
        return fail(ops, place, i, "%s of %s is %s; expected a whole number from 1 to %d", desc->param_names[0],
            desc->name, rfi_number_format(op->params[0], number), RF_MAX_TOP);
    }
    if (desc->corrects && op->num_params && !isfinite(op->params[0]))
        return fail(ops, place, i, "%s of %s is infinite; expected a number", desc->param_names[0], desc->name);
    if (desc->row_use == RF_ROW_COLUMN && op->num_params == 2 &&
        !(fabs(op->params[1]) <= 0x1p53 && op->params[1] == floor(op->params[1]))) {
        char number[RFI_NUMBER_TEXT];
        return fail(ops, place, i, "%s of %s is %s; expected a whole number from -2^53 to 2^53", desc->param_names[1],
            desc->name, rfi_number_format(op->params[1], number));
    }
    if (desc->flags & RFI_OPF_ORDERED) {
        double least = op->num_params > 0 ? op->params[0] : desc->param_defaults[0],
               most = op->num_params > 1 ? op->params[1] : desc->param_defaults[1];
        char numbers[2][RFI_NUMBER_TEXT];
        if (least > most)
            return fail(ops, place, i, "%s of %s is %s, above its %s %s", desc->param_names[0], desc->name,
                rfi_number_format(least, numbers[0]), desc->param_names[1], rfi_number_format(most, numbers[1]));
    }
    return RF_OK;
}

static rf_status check_linear(const rf_op *ops, const rfi_chain_place *place, rfi_chain *chain) {
    const rf_op *op = &ops[0];
    chain->in_features = chain->out_features = -1;
    chain->first_column = chain->total_columns = 0;
    if (!op->num_params) return RF_OK;
    if (op->num_params == 1)
        return fail(ops, place, 0, "linear takes both sizes or none: linear(in_features, out_features)");
    for (int p = 0; p < 2; p++) {
        double v = op->params[p];
        char number[RFI_NUMBER_TEXT];
        if (!(v >= 0 && v <= (double)MAX_FEATURES && v == floor(v)))
            return fail(ops, place, 0, "%s is %s; expected a whole number from 0 to 2^40, and both sizes or none",
                rfi_op_find(RF_OP_LINEAR)->param_names[p], rfi_number_format(v, number));
    }
    chain->in_features = (int64_t)op->params[0];
    chain->out_features = (int64_t)op->params[1];
    return RF_OK;
}

/* The ops of one result in their order: those of the trunk, then its own. */
static int next_of_result(const rfi_chain *chain, const rfi_result *result, int i) {
    return i + 1 == chain->trunk_end && i < result->first ? result->first : i + 1;
}

/* Reading a saved value needs one, of the same shape: saved and read on the same side of the folding reduction. */
static rf_status check_saved(const rfi_chain_place *place, const rfi_chain *chain, const rfi_result *result) {
    const rf_op *ops = chain->ops;
    int saved = -1;
    for (int i = 0; i < result->end; i = next_of_result(chain, result, i)) {
        const rfi_op_desc *desc = rfi_op_find(ops[i].kind);
        if (desc->flags & RFI_OPF_SAVES) saved = i;
        if (!(desc->flags & RFI_OPF_READS_SAVED)) continue;
        if (saved < 0) return fail(ops, place, i, "%s has nothing to read; expected a save before it", desc->name);
        if (result->reduction >= 0 && saved < result->reduction && i > result->reduction)
            return fail(ops, place, i,
                "%s cannot read what was saved before %s: saved has out_features columns, the value here has 1",
                desc->name, rfi_op_find(ops[result->reduction].kind)->name);
    }
    return RF_OK;
}

static rf_status check_result(const rfi_chain_place *place, const rfi_chain *chain, const rfi_result *result) {
    const rf_op *ops = chain->ops;
    const int begun = result->first > chain->trunk_end; /* by RF_OP_RESULT */
    if (result->first == result->end && begun)
        return fail(ops, place, result->first - 1, "a result has no operators; expected a reduction at least");
    if (result->reduction < 0 && chain->num_results > 1)
        return fail(ops, place, result->first,
            "a result has no reduction; of several each needs one, else it would be all of the logits");
    for (int i = result->first; i < result->end; i++) {
        const rfi_op_desc *desc = rfi_op_find(ops[i].kind);
        if (result->reduction < 0 || i <= result->reduction) continue;
        const char *fold = rfi_op_find(ops[result->reduction].kind)->name;
        if (*ops[i].vector && !rfi_is_row_input(ops[i].vector))
            return fail(ops, place, i,
                "@%s is a per-feature vector, and behind %s the value has 1 column; expected a number", ops[i].vector,
                fold);
        if (names_columns(desc) || desc->gives_index || desc->top)
            return fail(ops, place, i, "%s asks for a column, and behind %s the value has 1", desc->name, fold);
        const rfi_op_desc *folds = rfi_op_find(ops[result->reduction].kind);
        if (folds->gives_index || folds->top || folds->row_use == RF_ROW_COLUMNS)
            return fail(ops, place, i, "the result of %s is %s; expected no operator behind it", fold,
                !folds->gives_index  ? "several columns"
                    : folds->row_use ? "a number of columns"
                                     : "a column");
    }
    return check_saved(place, chain, result);
}

/* A row input is a number everywhere, or a column everywhere, or several. */
static rf_status check_row_inputs(const rfi_chain_place *place, const rfi_chain *chain) {
    const rf_op *ops = chain->ops;
    for (int i = 1; i < chain->num_ops; i++)
        for (int k = 1; k < i && rfi_is_row_input(ops[i].vector); k++) {
            const rfi_op_desc *one = rfi_op_find(ops[k].kind), *two = rfi_op_find(ops[i].kind);
            if (strcmp(ops[i].vector, ops[k].vector) || one->row_use == two->row_use) continue;
            static const char *const uses[] = {
                [RF_ROW_NUMBER] = "a number", [RF_ROW_COLUMN] = "a column", [RF_ROW_COLUMNS] = "several columns"};
            return fail(ops, place, i, "%s is %s for %s and %s for %s; expected two names", ops[i].vector,
                uses[two->row_use], two->name, uses[one->row_use], one->name);
        }
    return RF_OK;
}

/* Where the trunk ends and each result begins. */
static rf_status find_results(const rf_op *ops, const rfi_chain_place *place, rfi_chain *chain) {
    int i = 1;
    while (
        i < chain->num_ops && ops[i].kind != RF_OP_RESULT && rfi_op_find(ops[i].kind)->op_class != RF_CLASS_REDUCTION)
        i++;
    chain->trunk_end = i;
    if (i < chain->num_ops && ops[i].kind == RF_OP_RESULT) i++;
    for (;; i++) {
        if (chain->num_results == RF_MAX_RESULTS)
            return fail(ops, place, i - 1, "the chain has more than %d results", RF_MAX_RESULTS);
        rfi_result *result = &chain->results[chain->num_results++];
        *result = (rfi_result){.first = i, .reduction = -1};
        for (; i < chain->num_ops && ops[i].kind != RF_OP_RESULT; i++)
            if (rfi_op_find(ops[i].kind)->op_class == RF_CLASS_REDUCTION && result->reduction < 0)
                result->reduction = i;
        result->end = i;
        if (i == chain->num_ops) return RF_OK;
    }
}

static rf_status check_chain(const rf_op *ops, size_t num_ops, const rfi_chain_place *place, rfi_chain *chain) {
    chain->num_ops = (int)num_ops;
    chain->num_results = 0;
    for (int i = 0; i < chain->num_ops; i++) {
        const int begins = ops[i].kind == RF_OP_RESULT;
        rf_op *op = &chain->ops[i];
        *op = (rf_op){.kind = ops[i].kind, .num_params = ops[i].num_params};
        if (begins && i && !ops[i].num_params && !*ops[i].vector) continue;
        if (begins)
            return fail(ops, place, i, "RF_OP_RESULT begins a result: not the chain, and without any parameter");
        rf_status status = check_params(ops, place, i);
        if (status) return status;
        const rfi_op_desc *desc = rfi_op_find(ops[i].kind);
        if (!i && desc->op_class != RF_CLASS_LINEAR)
            return fail(ops, place, i, "a chain begins with linear, not with %s", desc->name);
        if (i && desc->op_class == RF_CLASS_LINEAR) return fail(ops, place, i, "linear stands first, and once");
        strcpy(op->vector, ops[i].vector);
        for (int p = 0; p < desc->num_params; p++)
            op->params[p] = p < op->num_params ? ops[i].params[p] : desc->param_defaults[p];
        if (*op->vector) op->params[0] = 0;
    }
    rf_status status = find_results(ops, place, chain);
    for (int r = 0; r < chain->num_results && !status; r++) status = check_result(place, chain, &chain->results[r]);
    if (!status) status = check_row_inputs(place, chain);
    if (!status) status = check_linear(ops, place, chain);
    return status;
}

rf_status rfi_chain_from_text(const char *text, rfi_chain *chain) {
    if (!text) return rfi_error(RF_INVALID_ARGUMENT, "the chain's text is NULL");
    rf_op ops[RF_MAX_OPS];
    size_t num_ops;
    rfi_chain_place place;
    rf_status status = rfi_chain_read(text, ops, &num_ops, &place);
    return status ? status : check_chain(ops, num_ops, &place, chain);
}

rf_status rfi_chain_from_ops(const rf_op *ops, size_t num_ops, rfi_chain *chain) {
    if (!ops) return rfi_error(RF_INVALID_ARGUMENT, "ops is NULL");
    if (!num_ops || num_ops > RF_MAX_OPS)
        return rfi_error(RF_INVALID_CHAIN, "the chain has %zu operators; expected 1 to %d", num_ops, RF_MAX_OPS);
    return check_chain(ops, num_ops, NULL, chain);
}

static rf_status settle(const char *name, int64_t given, int64_t *size) {
    if (given < 0 || given > MAX_FEATURES)
        return rfi_error(RF_INVALID_ARGUMENT, "config.%s is %lld; expected 1 to 2^40, or 0 for what the chain says",
            name, (long long)given);
    if (given && *size >= 0 && *size != given)
        return rfi_error(RF_INVALID_ARGUMENT, "config.%s is %lld, but the chain says %lld", name, (long long)given,
            (long long)*size);
    if (given) *size = given;
    if (*size < 0)
        return rfi_error(RF_INVALID_ARGUMENT,
            "%s is not known; expected it in the config or as linear(in_features, out_features)", name);
    return RF_OK;
}

static rf_status settle_columns(rfi_chain *chain) {
    const int64_t first = chain->first_column, n = chain->out_features;
    if (!first && !chain->total_columns) chain->total_columns = n;
    const int64_t total = chain->total_columns;
    if (total >= n && total <= MAX_FEATURES && first >= 0 && first <= total - n) return RF_OK;
    return rfi_error(RF_INVALID_ARGUMENT,
        "config.first_column is %lld and config.total_columns %lld; expected room for out_features, %lld, or 0 and 0",
        (long long)first, (long long)total, (long long)n);
}

rf_status rfi_chain_set_size(rfi_chain *chain, int64_t in_features, int64_t out_features) {
    rf_status status = settle("in_features", in_features, &chain->in_features);
    if (!status && chain->total_columns && !out_features && chain->out_features < 0) chain->out_features = 0;
    if (!status) status = settle("out_features", out_features, &chain->out_features);
    if (!status) status = settle_columns(chain);
    if (status) return status;
    int64_t elements;
    /* 8 bytes is the widest type. */
    if (__builtin_mul_overflow(chain->in_features, chain->out_features, &elements) || elements > PTRDIFF_MAX / 8)
        return rfi_error(RF_INVALID_ARGUMENT,
            "in_features %lld times out_features %lld is more than memory can address", (long long)chain->in_features,
            (long long)chain->out_features);
    for (int r = 0; r < chain->num_results; r++) {
        if (chain->results[r].reduction < 0) continue;
        const rf_op *op = &chain->ops[chain->results[r].reduction];
        const rfi_op_desc *desc = rfi_op_find(op->kind);
        if (desc->top && op->params[0] > (double)chain->total_columns)
            return rfi_error(RF_INVALID_CHAIN,
                "k of %s is %d, and out_features %lld; expected no more columns than there are", desc->name,
                (int)op->params[0], (long long)chain->total_columns);
        if (!chain->total_columns && !desc->empty_ok)
            return rfi_error(
                RF_INVALID_CHAIN, "%s of no columns has no value; expected out_features of 1 or more", desc->name);
    }
    return RF_OK;
}

rf_status rf_chain_parse(const char *text, rf_op *ops, size_t capacity, size_t *num_ops) {
    RFI_GUARDED;
    if (!num_ops) return rfi_error(RF_INVALID_ARGUMENT, "num_ops is NULL");
    if (!ops && capacity)
        return rfi_error(
            RF_INVALID_ARGUMENT, "ops is NULL and capacity %zu; expected a buffer, or capacity 0", capacity);
    rfi_chain chain;
    rf_status status = rfi_chain_from_text(text, &chain);
    if (status) return status;
    *num_ops = (size_t)chain.num_ops;
    if (*num_ops > capacity)
        return rfi_error(RF_BUFFER_TOO_SMALL, "capacity is %zu; the chain has %d operators", capacity, chain.num_ops);
    memcpy(ops, chain.ops, *num_ops * sizeof *ops);
    return RF_OK;
}

/* A parameter that has its default where a later one is given is left out, and the later one named: clamp(max=10). */
const char *rfi_op_format(const rf_op *op, char text[RFI_OP_TEXT]) {
    const rfi_op_desc *desc = rfi_op_find(op->kind);
    int used = snprintf(text, RFI_OP_TEXT, "%s", desc->name), named = 0, p = 0;
    const char *before = "(";
    if (*op->vector) {
        used += snprintf(
            text + used, RFI_OP_TEXT - (size_t)used, "(%s%s", rfi_is_row_input(op->vector) ? "" : "@", op->vector);
        before = ", ";
        p = 1;
    }
    for (; p < op->num_params; p++) {
        char number[RFI_NUMBER_TEXT];
        if (p + 1 < op->num_params && !memcmp(&op->params[p], &desc->param_defaults[p], sizeof(double))) {
            named = 1;
            continue;
        }
        used += snprintf(text + used, RFI_OP_TEXT - (size_t)used, "%s%s%s%s", before, named ? desc->param_names[p] : "",
            named ? "=" : "", rfi_number_format(op->params[p], number));
        before = ", ";
    }
    if (op->num_params || *op->vector) snprintf(text + used, RFI_OP_TEXT - (size_t)used, ")");
    return text;
}

/* What stands before op i, and behind it. The operators of a result are in parentheses where that has more than one,
 * and those of the first where only they tell that they are no trunk. */
static void around(const rfi_chain *chain, int i, const char **before, const char **behind) {
    *before = i ? " | " : "";
    *behind = "";
    for (int r = 0; r < chain->num_results; r++) {
        const rfi_result *result = &chain->results[r];
        const int several = r ? result->end > result->first + 1 : result->first > chain->trunk_end;
        if (i == result->first && r) *before = several ? ", (" : ", ";
        else if (i == result->first && several) *before = " | (";
        if (i == result->end - 1 && several && i >= result->first) *behind = ")";
    }
}

rf_status rf_chain_format(const rf_op *ops, size_t num_ops, char *text, size_t size, size_t *needed) {
    RFI_GUARDED;
    if (!text && size)
        return rfi_error(RF_INVALID_ARGUMENT, "text is NULL and size %zu; expected a buffer, or size 0", size);
    rfi_chain chain;
    rf_status status = rfi_chain_from_ops(ops, num_ops, &chain);
    if (status) return status;
    char whole[RFI_CHAIN_TEXT];
    size_t used = 0;
    for (int i = 0; i < chain.num_ops; i++) {
        char one[RFI_OP_TEXT];
        const char *before, *behind;
        if (chain.ops[i].kind == RF_OP_RESULT) continue;
        around(&chain, i, &before, &behind);
        used += (size_t)sprintf(whole + used, "%s%s%s", before, rfi_op_format(&chain.ops[i], one), behind);
    }
    used++;
    if (needed) *needed = used;
    if (used <= size) memcpy(text, whole, used);
    else if (text) return rfi_error(RF_BUFFER_TOO_SMALL, "size is %zu; the chain's text takes %zu bytes", size, used);
    return RF_OK;
}
