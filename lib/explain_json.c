/* SPDX-License-Identifier: MIT */
/* The explanation as JSON: the same facts as the text, under fixed names, in fixed order. */
#include <jansson.h>
#include <stdlib.h>

#include "dtype.h"
#include "explain_parts.h"

static const char *const place_names[] = {[RFI_PLACE_TILE] = "tile",
    [RFI_PLACE_REDUCTION] = "reduction",
    [RFI_PLACE_ROW] = "row",
    [RFI_PLACE_COLLAPSED] = "collapsed",
    [RFI_PLACE_REMOVED] = "removed"};

/* Every json_ function takes NULL and fails, and `new` ones eat their argument: with lists that are gone where an
 * element is missing, one check at the end is enough. */
static void append(json_t **list, json_t *element) {
    if (!json_array_append_new(*list, element)) return;
    json_decref(*list);
    *list = NULL;
}

static json_t *known_or_null(double value) { return value >= 0 ? json_real(value) : json_null(); }
static json_t *known_count(int64_t value) { return value ? json_integer((json_int_t)value) : json_null(); }
static json_t *text_or_null(const char *text) { return *text ? json_string(text) : json_null(); }

/* A whole number, as long as it fits. */
static json_t *count(double value) { return value < 0x1p62 ? json_integer((json_int_t)value) : json_real(value); }

static json_t *cost_of(const rfi_cost *cost) {
    return json_pack("{s:o, s:o, s:o, s:o}", "flops", count(cost->flops), "bytes", count(cost->bytes), "memory_bytes",
        count(cost->memory), "seconds", known_or_null(cost->seconds));
}

/* The rules that concerned operator i, in the order they were applied. */
static json_t *rules_of(const rfi_rewrites *log, int i) {
    json_t *list = json_array();
    for (int r = 0; r < log->count; r++)
        if (rfi_rewrite_concerns(&log->at[r], i)) append(&list, json_string(log->at[r].rule));
    return list;
}

static json_t *operators_of(const rfi_explanation *about) {
    json_t *list = json_array();
    for (int i = 0; i < about->spec->plan.chain.num_ops; i++) {
        const rfi_story *story = &about->story[i];
        if (about->spec->plan.chain.ops[i].kind == RF_OP_RESULT) continue;
        append(&list,
            json_pack("{s:i, s:s, s:s, s:o, s:o}", "index", i, "operator", story->written, "place",
                place_names[story->place], "computed_as", text_or_null(story->now), "rules", rules_of(&about->log, i)));
    }
    return list;
}

static json_t *rewrites_of(const rfi_rewrites *log) {
    json_t *list = json_array();
    for (int r = 0; r < log->count; r++) {
        const rfi_rewrite *rewrite = &log->at[r];
        append(&list,
            json_pack("{s:s, s:b, s:i, s:i, s:s}", "rule", rewrite->rule, "algebraic", rewrite->algebraic, "first",
                rewrite->first, "last", rewrite->last, "text", rewrite->text));
    }
    return list;
}

static json_t *results_of(const rfi_explanation *about) {
    const rfi_plan *plan = &about->spec->plan;
    json_t *list = json_array();
    for (int i = 0; i < plan->num_outputs; i++) {
        const rfi_result_part *part = &plan->outputs[i];
        const rfi_branch *branch = &plan->branches[part->branch];
        append(&list,
            json_pack("{s:s, s:o, s:s, s:o, s:o}", "name", part->name, "features",
                branch->gathers ? json_null() : json_integer((json_int_t)branch->width), "dtype",
                rfi_dtype_name(part->is_index ? RF_INT64 : about->spec->y_dtype), "state",
                branch->fold < 0 ? json_null() : json_integer(branch->fold), "constant",
                text_or_null(about->constant[part->branch])));
    }
    return list;
}

static json_t *row_inputs_of(const rfi_plan *plan) {
    json_t *list = json_array();
    for (int r = 0; r < plan->num_rows; r++)
        append(&list,
            json_pack("{s:s, s:s}", "name", plan->rows[r].name, "use",
                plan->rows[r].several         ? "columns"
                    : plan->rows[r].is_column ? "column"
                                              : "number"));
    return list;
}

static json_t *machine_of(const rfi_estimate *estimate) {
    if (!estimate) return json_null();
    return json_pack("{s:o, s:o, s:o}", "description", text_or_null(estimate->machine), "flops_per_second",
        known_or_null(estimate->flops_per_second > 0 ? estimate->flops_per_second : -1), "bytes_per_second",
        known_or_null(estimate->bytes_per_second > 0 ? estimate->bytes_per_second : -1));
}

/* As json_dumps, which loses a key without a word where its buffer cannot grow. */
static char *text_of(const json_t *root) {
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(9), length = json_dumpb(root, NULL, 0, flags);
    char *text = length ? malloc(length + 1) : NULL;
    if (!text) return NULL;
    if (json_dumpb(root, text, length, flags) == length) {
        text[length] = 0;
        return text;
    }
    free(text);
    return NULL;
}

char *rfi_explain_json(const rfi_explanation *about) {
    const rfi_spec *spec = about->spec;
    const rfi_plan *plan = &spec->plan;
    size_t needed = 0;
    char chain[RFI_CHAIN_TEXT];
    if (rf_chain_format(plan->chain.ops, (size_t)plan->chain.num_ops, chain, sizeof chain, &needed)) return NULL;
    json_t *root = json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:I}", "chain", chain, "backend", about->backend, "kernel",
        text_or_null(about->estimate ? about->estimate->kernel : ""), "batch", (json_int_t)about->batch, "in_features",
        (json_int_t)plan->in_features, "out_features", (json_int_t)plan->out_features, "output_features",
        (json_int_t)plan->width);
    json_t *types = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "x_dtype", rfi_dtype_name(spec->x_dtype),
        "weight_dtype", rfi_dtype_name(spec->weight_dtype), "compute_dtype", rfi_dtype_name(spec->compute_dtype),
        "y_dtype", rfi_dtype_name(spec->y_dtype), "math", about->math, "simplify", about->simplify);
    int failed = json_object_update(root, types);
    failed |= json_object_set_new(root, "sums", text_or_null(about->estimate ? about->estimate->sums : ""));
    failed |= json_object_set_new(root, "first_column", json_integer((json_int_t)plan->columns.first));
    failed |= json_object_set_new(root, "total_columns", json_integer((json_int_t)plan->columns.total));
    failed |= json_object_set_new(root, "operators", operators_of(about));
    failed |= json_object_set_new(root, "results", results_of(about));
    failed |= json_object_set_new(root, "row_inputs", row_inputs_of(plan));
    failed |= json_object_set_new(root, "rewrites", rewrites_of(&about->log));
    failed |= json_object_set_new(root, "lowered", about->lowered ? rewrites_of(about->lowered) : json_array());
    failed |= json_object_set_new(root, "collapsible", json_boolean(plan->collapsible));
    failed |= json_object_set_new(root, "collapsed", json_boolean(about->collapsed));
    failed |= json_object_set_new(root, "constant", text_or_null(about->constant[0]));
    failed |= json_object_set_new(root, "workspace_bytes", json_integer((json_int_t)about->workspace));
    failed |=
        json_object_set_new(root, "weight_reads", known_count(about->estimate ? about->estimate->weight_reads : 0));
    failed |= json_object_set_new(root, "block_rows", known_count(about->estimate ? about->estimate->block_rows : 0));
    failed |=
        json_object_set_new(root, "columns_twice", json_integer(about->estimate ? about->estimate->columns_twice : 0));
    failed |= json_object_set_new(root, "fused", cost_of(&about->fused));
    failed |= json_object_set_new(root, "unfused", cost_of(&about->unfused));
    failed |= json_object_set_new(root, "machine", machine_of(about->estimate));
    char *text = failed ? NULL : text_of(root);
    json_decref(types);
    json_decref(root);
    return text;
}
