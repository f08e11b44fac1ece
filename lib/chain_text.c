/* SPDX-License-Identifier: MIT */
/* Chain text to ops: the syntax. What the ops mean together is chain.c's.
 *
 *   chain    = "preset:" NAME | operator { "|" operator } [ "|" own ] { "," result }
 *   result   = own | operator { "|" operator }
 *   own      = "(" operator { "|" operator } ")"
 *   operator = NAME [ "(" [ argument { "," argument } ] ")" ]
 *   argument = [ NAME "=" ] ( number | "inf" | "-inf" | "nan" | "none" | "@" vector | "#" row input | WORD )
 *
 * White space is free between these. The text may be any bytes. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "chain.h"
#include "error.h"
#include "lexical.h"
#include "number.h"

typedef struct parser {
    const char *text, *at;
} parser;

/* A stretch of the text. */
typedef struct word {
    const char *start;
    size_t length;
} word;

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

static void skip_space(parser *p) {
    while (rfi_is_space(*p->at)) p->at++;
}

static word read_name(parser *p) {
    word w = {p->at, 0};
    if (rfi_is_letter(*p->at))
        while (rfi_is_letter(*p->at) || rfi_is_digit(*p->at)) p->at++;
    w.length = (size_t)(p->at - w.start);
    return w;
}

static int word_is(word w, const char *name) { return strlen(name) == w.length && !memcmp(w.start, name, w.length); }

const char *rfi_chain_column(const char *text, size_t offset, char place[RFI_PLACE_TEXT]) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) { /* not the continuation of a UTF-8 character */
            column++;
        }
    }
    if (line == 1) snprintf(place, RFI_PLACE_TEXT, "chain, column %zu", column);
    else snprintf(place, RFI_PLACE_TEXT, "chain, line %zu, column %zu", line, column);
    return place;
}

__attribute__((format(printf, 3, 4))) static rf_status fail(const parser *p, const char *at, const char *format, ...) {
    char sentence[600], place[RFI_PLACE_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return rfi_error(RF_INVALID_CHAIN, "%s: %s", rfi_chain_column(p->text, (size_t)(at - p->text), place), sentence);
}

/* What stands at `at`, for an error: a name, or a character, in quotes. */
enum { FOUND_TEXT = 48 };
static const char *found(const char *at, char text[FOUND_TEXT]) {
    int n = 0;
    while (rfi_is_letter(at[n]) || rfi_is_digit(at[n])) n++;
    if (!*at) return strcpy(text, "the end");
    if (n) snprintf(text, FOUND_TEXT, "\"%.*s\"", n < 32 ? n : 32, at);
    else if (*at > ' ' && *at < 127) snprintf(text, FOUND_TEXT, "\"%c\"", *at);
    else snprintf(text, FOUND_TEXT, "byte 0x%02x", (unsigned char)*at);
    return text;
}

/* Letters to insert, remove, replace or swap to make one name from the other, whatever their case. */
static int edit_distance(word w, const char *name) {
    enum { LONGEST = 24 };
    int rows[3][LONGEST + 1], n = (int)strlen(name);
    if (w.length > LONGEST || n > LONGEST) return LONGEST;
    int *before = rows[0], *last = rows[1], *now = rows[2];
    for (int j = 0; j <= n; j++) last[j] = j;
    for (int i = 1; i <= (int)w.length; i++) {
        now[0] = i;
        for (int j = 1; j <= n; j++) {
            int cost = lower(w.start[i - 1]) != name[j - 1];
            int best = last[j - 1] + cost;
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && lower(w.start[i - 1]) == name[j - 2] && lower(w.start[i - 2]) == name[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        int *spare = before;
        before = last, last = now, now = spare;
    }
    return last[n];
}

/* Names that other programs have, and what there is for them. */
static const struct {
    const char *name, *instead;
} elsewhere[] = {
    {"softmax",
        "its result is as large as the logits, which are not stored; logsumexp is the logarithm of its divisor"},
    {"log_softmax", "its result is as large as the logits, which are not stored; logsumexp is what it subtracts"},
    {"amax", "max is the largest column"},
    {"amin", "min is the smallest column"},
    {"relu6", "hardtanh(0, 6) is the same"},
    {"selu", "elu(1.6732632423543772848) | mul(1.0507009873554804934) is the same"},
    {"swish", "silu is the same"},
    {"rsqrt", "sqrt | reciprocal is the same"},
    {"pow", "square, sqrt and reciprocal are powers"},
    {"clip", "clamp is the same"},
    {"threshold", "clamp(min=c) replaces what is below c by c"},
    {"log2", "log | mul(1.4426950408889634) is the same"},
    {"log10", "log | mul(0.4342944819032518) is the same"},
    {"dropout", "outside of training it does nothing"},
    {"bias", "the linear layer adds it, if the weights have one"},
};

static rf_status unknown_operator(const parser *p, word name) {
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (word_is(name, elsewhere[i].name))
            return fail(p, name.start, "there is no operator \"%s\"; %s", elsewhere[i].name, elsewhere[i].instead);
    const char *nearest = NULL;
    int least = name.length < 4 ? 2 : 3; /* one edit in a short name, two in a long one */
    for (size_t i = 0; i < rf_op_count(); i++) {
        int distance = edit_distance(name, rfi_op_at(i)->name);
        if (distance < least) least = distance, nearest = rfi_op_at(i)->name;
    }
    int length = name.length < 40 ? (int)name.length : 40;
    if (nearest)
        return fail(p, name.start, "there is no operator \"%.*s\"; did you mean \"%s\"?", length, name.start, nearest);
    return fail(p, name.start, "there is no operator \"%.*s\"; rf_op_get_info lists them", length, name.start);
}

static const rfi_op_desc *find_operator(word name) {
    for (size_t i = 0; i < rf_op_count(); i++)
        if (word_is(name, rfi_op_at(i)->name)) return rfi_op_at(i);
    return NULL;
}

/* The row BASE(WORD) with this word, or with any if `variant` is NULL. */
static const rfi_op_desc *find_variant(const rfi_op_desc *base, const word *variant) {
    size_t length = strlen(base->name);
    for (size_t i = 0; i < rf_op_count(); i++) {
        const char *name = rfi_op_at(i)->name;
        if (strncmp(name, base->name, length) || name[length] != '(') continue;
        const word inner = {name + length + 1, strlen(name) - length - 2};
        if (!variant || (inner.length == variant->length && !memcmp(inner.start, variant->start, inner.length)))
            return rfi_op_at(i);
    }
    return NULL;
}

/* The arguments of one operator as they come. */
typedef struct arguments {
    const rfi_op_desc *desc;
    rf_op *op;
    int next;     /* the parameter that the next argument without a keyword sets */
    int keywords; /* a keyword was seen */
    int seen[RF_MAX_OP_PARAMS];
} arguments;

/* What stands where a value should: perhaps a name that lacks its sign. */
static rf_status no_value(const parser *p, const char *at, const arguments *args, int index) {
    const int vector = !index && args->desc->accepts_vector, column = !index && args->desc->row_use >= RF_ROW_COLUMN;
    const char *expected = vector ? "a number, inf, nan, none, @vector or #row_input"
        : column                  ? "#row_input"
                                  : "a number, inf, nan or none";
    char text[FOUND_TEXT], meant[RF_MAX_NAME + 32] = "";
    parser ahead = {p->text, at};
    const word name = read_name(&ahead);
    if ((vector || column) && name.length && name.length < RF_MAX_NAME)
        snprintf(meant, sizeof meant, "; did you mean %c%.*s?", vector ? '@' : '#', (int)name.length, name.start);
    return fail(p, at, "expected %s, found %s%s", expected, found(at, text), meant);
}

static rf_status read_number(parser *p, const arguments *args, int index, double *value) {
    const char *at = p->at;
    size_t length;
    switch (rfi_number_read(at, value, &length)) {
    case RFI_NUMBER_OK: break;
    case RFI_NUMBER_NONE: return no_value(p, at, args, index);
    case RFI_NUMBER_TOO_LONG: return fail(p, at, "the number has more than 100 digits");
    case RFI_NUMBER_TOO_LARGE: return fail(p, at, "the number is too large for a double; write inf for infinity");
    case RFI_NUMBER_TOO_SMALL: return fail(p, at, "the number is too small for a double; write 0 for zero");
    }
    p->at += length;
    return RF_OK;
}

/* The name behind @ or #. A row input keeps its #. */
static rf_status read_vector(parser *p, arguments *args, int index) {
    const char *at = p->at++;
    const int row = *at == '#', most = RF_MAX_NAME - 1 - row;
    const char *what = row ? "row input" : "vector";
    word name = read_name(p);
    if (name.length)
        while (rfi_is_name(*p->at, 1)) p->at++;
    name.length = (size_t)(p->at - name.start);
    if (!name.length) {
        char text[FOUND_TEXT];
        return fail(p, p->at, "expected the name of a %s behind %c, a letter or _ first, found %s", what, *at,
            found(p->at, text));
    }
    if (name.length > (size_t)most)
        return fail(p, name.start, "the %s's name has %zu letters; at most %d fit", what, name.length, most);
    if (index || !(row ? args->desc->row_use != RF_ROW_NONE : args->desc->accepts_vector)) {
        if (!row && !index && args->desc->row_use == RF_ROW_COLUMN)
            return fail(p, at, "%s takes a column of each row, #name; @%.*s is a vector of all columns",
                args->desc->name, (int)name.length, name.start);
        return fail(p, at, "%s takes numbers only, no %s", args->desc->name, what);
    }
    memcpy(args->op->vector, at + !row, name.length + (size_t)row);
    args->op->vector[name.length + (size_t)row] = 0;
    return RF_OK;
}

/* A word where a number may stand: inf, nan, none. *none: the parameter keeps its default. */
static rf_status read_value(parser *p, arguments *args, int index) {
    const char *at = p->at;
    if (*at == '@' || *at == '#') return read_vector(p, args, index);
    int sign = *at == '-' || *at == '+';
    parser ahead = {p->text, at + sign};
    word name = read_name(&ahead);
    double value;
    if (word_is(name, "inf")) {
        value = *at == '-' ? -INFINITY : INFINITY;
    } else if (!sign && word_is(name, "nan")) {
        value = NAN;
    } else if (!sign && word_is(name, "none")) {
        p->at = ahead.at;
        return RF_OK;
    } else {
        rf_status status = read_number(p, args, index, &value);
        if (status) return status;
        ahead.at = p->at;
    }
    p->at = ahead.at;
    args->op->params[index] = value;
    if (args->op->num_params <= index) args->op->num_params = index + 1;
    return RF_OK;
}

static rf_status no_such_keyword(const parser *p, const arguments *args, word keyword) {
    const rfi_op_desc *desc = args->desc;
    int length = keyword.length < 40 ? (int)keyword.length : 40;
    if (desc->num_params == 2)
        return fail(p, keyword.start, "%s has no parameter \"%.*s\"; expected %s or %s", desc->name, length,
            keyword.start, desc->param_names[0], desc->param_names[1]);
    return fail(p, keyword.start, "%s has no parameter \"%.*s\"; expected %s", desc->name, length, keyword.start,
        desc->param_names[0]);
}

/* Which parameter the argument at p->at sets; steps over `keyword=`. */
static rf_status choose_parameter(parser *p, arguments *args, int *index) {
    const rfi_op_desc *desc = args->desc;
    const char *at = p->at;
    parser ahead = *p;
    word keyword = read_name(&ahead);
    skip_space(&ahead);
    if (keyword.length && *ahead.at == '=') {
        int i = 0;
        while (i < desc->num_params && !word_is(keyword, desc->param_names[i])) i++;
        if (i == desc->num_params) return no_such_keyword(p, args, keyword);
        args->keywords = 1;
        p->at = ahead.at + 1;
        skip_space(p);
        *index = i;
    } else {
        if (args->keywords) return fail(p, at, "an argument without a keyword behind one with; expected keyword=value");
        if (args->next == desc->num_params)
            return fail(p, at, "%s takes at most %d argument%s", desc->name, desc->num_params,
                desc->num_params == 1 ? "" : "s");
        *index = args->next++;
    }
    if (args->seen[*index]++) return fail(p, at, "%s is given twice", desc->param_names[*index]);
    return RF_OK;
}

static rf_status read_arguments(parser *p, arguments *args) {
    for (;;) {
        int index = 0;
        rf_status status = choose_parameter(p, args, &index);
        if (!status) status = read_value(p, args, index);
        if (status) return status;
        skip_space(p);
        if (*p->at != ',') return RF_OK;
        p->at++;
        skip_space(p);
    }
}

/* gelu(tanh), gelu(none), gelu(approximate=tanh): the argument chooses the row. */
static rf_status read_variant(parser *p, arguments *args) {
    const rfi_op_desc *base = args->desc, *some = find_variant(base, NULL);
    const char *at = p->at;
    word name = read_name(p);
    skip_space(p);
    if (some && some->word_keyword && word_is(name, some->word_keyword) && *p->at == '=') {
        p->at++;
        skip_space(p);
        at = p->at;
        name = read_name(p);
    }
    if (some && word_is(name, "none")) return RF_OK;
    const rfi_op_desc *variant = name.length ? find_variant(base, &name) : NULL;
    if (!variant) {
        char text[FOUND_TEXT];
        if (some)
            return fail(
                p, at, "expected %s, %s or %s(none), found %s", base->name, some->name, base->name, found(at, text));
        return fail(p, at, "%s takes no arguments, found %s", base->name, found(at, text));
    }
    args->op->kind = variant->kind;
    return RF_OK;
}

static rf_status read_operator(parser *p, rf_op *op) {
    skip_space(p);
    word name = read_name(p);
    char text[FOUND_TEXT];
    if (!name.length) return fail(p, p->at, "expected an operator, found %s", found(p->at, text));
    const rfi_op_desc *desc = find_operator(name);
    if (!desc) return unknown_operator(p, name);
    *op = (rf_op){.kind = desc->kind};
    memcpy(op->params, desc->param_defaults, sizeof op->params);
    arguments args = {.desc = desc, .op = op};
    skip_space(p);
    if (*p->at != '(') return RF_OK;
    p->at++;
    skip_space(p);
    if (*p->at != ')') {
        rf_status status = desc->num_params ? read_arguments(p, &args) : read_variant(p, &args);
        if (status) return status;
        skip_space(p);
    }
    if (*p->at != ')')
        return fail(p, p->at, "expected %s\")\" to close %s(, found %s", desc->num_params ? "\",\" or " : "",
            desc->name, found(p->at, text));
    p->at++;
    skip_space(p);
    return RF_OK;
}

static rf_status find_preset(const parser *p, word name, const char **chain) {
    char known[300] = "";
    for (size_t i = 0; i < rf_preset_count(); i++) {
        const char *preset;
        rf_preset_get(i, &preset, chain);
        if (word_is(name, preset)) return RF_OK;
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", preset);
    }
    return fail(p, name.start, "there is no preset \"%.*s\"; there are %s", name.length < 40 ? (int)name.length : 40,
        name.start, known);
}

/* Room for one more op, whose text begins at p->at. */
static rf_status add_op(parser *p, rf_op ops[RF_MAX_OPS], size_t *num_ops, rfi_chain_place *place) {
    if (*num_ops == RF_MAX_OPS)
        return fail(p, p->at, "the chain has more than %d operators (where a result begins counts as one)", RF_MAX_OPS);
    place->offsets[*num_ops] = (size_t)(p->at - p->text);
    ops[(*num_ops)++] = (rf_op){.kind = RF_OP_RESULT};
    return RF_OK;
}

/* Operators up to the end of the chain, results after one another. */
static rf_status read_results(parser *p, rf_op ops[RF_MAX_OPS], size_t *num_ops, rfi_chain_place *place) {
    char what[FOUND_TEXT];
    int open = 0, folded = 0, first = 1; /* within parentheses; a reduction was read; the operator begins a result */
    for (;; p->at++) {
        rf_status status = RF_OK;
        skip_space(p);
        if (*p->at == '(' && *num_ops && (first || !folded) && !open) {
            /* Behind a comma the result has begun. */
            if (!first) status = add_op(p, ops, num_ops, place);
            if (status) return status;
            open = 1;
            p->at++;
            skip_space(p);
        }
        status = add_op(p, ops, num_ops, place);
        if (!status) status = read_operator(p, &ops[*num_ops - 1]);
        if (status) return status;
        first = 0;
        folded |= rfi_op_find(ops[*num_ops - 1].kind)->op_class == RF_CLASS_REDUCTION;
        const int closes = open && *p->at == ')';
        if (closes) {
            open = 0;
            p->at++;
            skip_space(p);
        }
        if (!*p->at && !open) return RF_OK;
        if (*p->at == ',' && !open) {
            if (!folded)
                return fail(p, p->at, "the result before the comma has no reduction; of several each needs one");
            status = add_op(p, ops, num_ops, place);
            if (status) return status;
            folded = 0;
            first = 1;
        } else if (*p->at != '|' || closes) {
            return fail(p, p->at, "expected %s, found %s",
                closes     ? "\",\" or the end"
                    : open ? "\"|\" or \")\""
                           : "\"|\", \",\" or the end",
                found(p->at, what));
        }
    }
}

rf_status rfi_chain_read(const char *text, rf_op ops[RF_MAX_OPS], size_t *num_ops, rfi_chain_place *place) {
    static const char prefix[] = "preset:";
    parser p = {text, text};
    char what[FOUND_TEXT];
    skip_space(&p);
    if (!strncmp(p.at, prefix, sizeof prefix - 1)) {
        p.at += sizeof prefix - 1;
        skip_space(&p);
        word name = read_name(&p);
        const char *chain;
        rf_status status = find_preset(&p, name, &chain);
        if (status) return status;
        skip_space(&p);
        if (*p.at) return fail(&p, p.at, "expected the end behind a preset, found %s", found(p.at, what));
        p.text = p.at = chain;
    }
    place->text = p.text;
    *num_ops = 0;
    return read_results(&p, ops, num_ops, place);
}
