/* SPDX-License-Identifier: MIT */
/* The explanation in words, for a terminal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "explain_parts.h"
#include "number.h"

enum { QUANTITY_TEXT = 48 };

/* Four digits and a unit, each `step` times the one before: "137.4 GFLOP". The first unit is for 1. */
static const char *quantity(
    double value, double step, const char *const units[], int num_units, char text[QUANTITY_TEXT]) {
    char number[RFI_NUMBER_TEXT];
    int u = 0;
    while (u + 1 < num_units && value >= step) value /= step, u++;
    double digits = value >= 1000 ? 1 : value >= 100 ? 10 : value >= 10 ? 100 : 1000;
    snprintf(text, QUANTITY_TEXT, "%s %s", rfi_number_format(round(value * digits) / digits, number), units[u]);
    return text;
}

static const char *flops(double value, char text[QUANTITY_TEXT]) {
    static const char *const units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"};
    return quantity(value, 1000, units, 6, text);
}

static const char *bytes(double value, char text[QUANTITY_TEXT]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    return quantity(value, 1024, units, 5, text);
}

static const char *seconds(double value, char text[QUANTITY_TEXT]) {
    static const char *const units[] = {"us", "ms", "s"};
    return quantity(value * 1e6, 1000, units, 3, text);
}

/* " (rule, rule)" */
static void say_rules(FILE *out, const rfi_rewrites *log, int i) {
    const char *before = " (";
    for (int r = 0; r < log->count; r++) {
        if (!rfi_rewrite_concerns(&log->at[r], i)) continue;
        fprintf(out, "%s%s", before, log->at[r].rule);
        before = ", ";
    }
    if (*before == ',') fputc(')', out);
}

static void say_operator(FILE *out, const rfi_explanation *about, int i, int width) {
    static const char *const words[] = {
        [RFI_PLACE_TILE] = "on each tile of logits, fused into the linear layer",
        [RFI_PLACE_REDUCTION] = "the reduction: folds each tile of logits into one state per row",
        [RFI_PLACE_ROW] = "on one number per row, after the reduction",
        [RFI_PLACE_COLLAPSED] = "in one dot product a row",
        [RFI_PLACE_REMOVED] = "removed",
    };
    const rfi_plan *plan = &about->spec->plan;
    const rfi_story *story = &about->story[i];
    fprintf(out, "  %2d  %-*s  ", i, width, story->written);
    if (!i && story->place == RFI_PLACE_TILE) {
        fprintf(out, "tile by tile; the (%lld, %lld) logits are never stored", (long long)about->batch,
            (long long)plan->out_features);
    } else {
        fputs(words[story->place], out);
        int changed = story->place != RFI_PLACE_REMOVED && strcmp(story->now, story->written);
        if (changed) fprintf(out, ", as %s", story->now);
        if (changed || story->place == RFI_PLACE_REMOVED) say_rules(out, &about->log, i);
    }
    fputc('\n', out);
}

static void say_operators(FILE *out, const rfi_explanation *about) {
    const rfi_plan *plan = &about->spec->plan;
    int width = 0;
    for (int i = 0; i < plan->chain.num_ops; i++) {
        int length = (int)strlen(about->story[i].written);
        if (length > width) width = length < 32 ? length : 32;
    }
    fprintf(out, "\noperators\n");
    for (int i = 0; i < plan->chain.num_ops; i++)
        if (plan->chain.ops[i].kind != RF_OP_RESULT) say_operator(out, about, i, width);
}

/* Which state each result is read from, and with which others. */
static void say_results(FILE *out, const rfi_explanation *about) {
    const rfi_plan *plan = &about->spec->plan;
    int width = 0;
    for (int b = 0; b < plan->num_branches; b++) {
        int length = (int)strlen(plan->branches[b].name);
        if (length > width) width = length;
    }
    fprintf(out, "\nresults (%d of them from %d state%s a row)\n", plan->num_branches, plan->num_folds,
        plan->num_folds == 1 ? "" : "s");
    for (int b = 0; b < plan->num_branches; b++) {
        const rfi_branch *branch = &plan->branches[b];
        const char *before = ", shared with ";
        fprintf(out, "  %2d  %-*s  ", b, width, branch->name);
        if (branch->fold < 0) fprintf(out, "no state: as the columns pass");
        else fprintf(out, "state %d", branch->fold);
        for (int other = 0; other < plan->num_branches && branch->fold >= 0; other++) {
            if (other == b || plan->branches[other].fold != branch->fold) continue;
            fprintf(out, "%s%s", before, plan->branches[other].name);
            before = ", ";
        }
        fputc('\n', out);
    }
}

static void say_rewrites(FILE *out, const rfi_explanation *about) {
    const rfi_rewrites *log = &about->log;
    const rfi_plan *plan = &about->spec->plan;
    fprintf(out, "\nrewrites (simplify=%s)\n", about->simplify);
    if (!log->count) fprintf(out, "  none\n");
    for (int r = 0; r < log->count; r++) {
        const rfi_rewrite *rewrite = &log->at[r];
        char operators[16];
        if (rewrite->first == rewrite->last) snprintf(operators, sizeof operators, "%d", rewrite->first);
        else
            snprintf(
                operators, sizeof operators, rewrite->algebraic ? "%d-%d" : "%d, %d", rewrite->first, rewrite->last);
        fprintf(out, "  %-6s  %-19s  %-9s  %s\n", operators, rewrite->rule, rewrite->algebraic ? "algebraic" : "exact",
            rewrite->text);
    }
    if (plan->collapsible && !about->collapsed)
        fprintf(out, "  This backend does not make use of collapse: it computes every column.\n");
    if (about->collapsed)
        fprintf(out,
            "  The column sums are taken in float64 when the weights are loaded: O(in_features) a row instead of O(in_features * out_features).\n"
            "  Weights that are not finite, and rows where a logit might overflow, take the full way.\n");
}

/* What the kernel computes of logits otherwise than step by step. */
static void say_lowered(FILE *out, const rfi_rewrites *lowered) {
    if (!lowered || !lowered->count) return;
    fprintf(out, "\nlowered: what the kernel computes as one multiply-add, to the same bits; v is the value before\n");
    for (int i = 0; i < lowered->count; i++) {
        const rfi_rewrite *step = &lowered->at[i];
        char operators[16];
        if (step->first == step->last) snprintf(operators, sizeof operators, "%d", step->first);
        else snprintf(operators, sizeof operators, "%d-%d", step->first, step->last);
        fprintf(out, "  %-6s  %-19s  %s\n", operators, step->rule, step->text);
    }
}

/* Why the fused way may read more than the unfused one. */
static void say_weight_reads(FILE *out, const rfi_explanation *about) {
    const rfi_estimate *estimate = about->estimate;
    if (!estimate || estimate->weight_reads < 2) return;
    const rfi_plan *plan = &about->spec->plan;
    const double weight =
        (double)plan->in_features * (double)plan->out_features * (double)rfi_dtype_size(about->spec->weight_dtype);
    if ((double)(estimate->weight_reads - 1) * weight < 0.1 * estimate->bytes)
        return; /* nothing that anyone would notice */
    const int hidden = estimate->flops * estimate->bytes_per_second > estimate->bytes * estimate->flops_per_second;
    fprintf(out,
        "  The fused way reads W %lld times, once for each block of %lld rows, to keep a block's logits in the cache%s.\n",
        (long long)estimate->weight_reads, (long long)estimate->block_rows,
        hidden ? "; the reading hides behind the arithmetic" : "");
}

static void say_columns_twice(FILE *out, const rfi_explanation *about) {
    if (!about->estimate || !about->estimate->columns_twice) return;
    const int columns = about->estimate->columns_twice;
    fprintf(out,
        "  Of each row up to %d column%s computed twice: rank compares with the one asked for, which is wanted before the pass.\n",
        columns, columns == 1 ? " is" : "s are");
}

static void say_costs(FILE *out, const rfi_explanation *about) {
    const rfi_cost *fused = &about->fused, *unfused = &about->unfused;
    const rfi_estimate *estimate = about->estimate;
    char one[QUANTITY_TEXT], two[QUANTITY_TEXT];
    fprintf(out, "\n  %-32s %-16s %s\n", "", "fused",
        "unfused: an operator at a time, each over its whole matrix, at the same rates");
    fprintf(out, "  %-32s %-16s %s\n", "arithmetic", flops(fused->flops, one), flops(unfused->flops, two));
    fprintf(out, "  %-32s %-16s %s\n", "memory read and written", bytes(fused->bytes, one), bytes(unfused->bytes, two));
    fprintf(out, "  %-32s %-16s %s\n", "memory held beside x and weights", bytes(fused->memory, one),
        bytes(unfused->memory, two));
    if (fused->seconds >= 0 && unfused->seconds >= 0) {
        fprintf(
            out, "  %-32s %-16s %s\n", "expected time", seconds(fused->seconds, one), seconds(unfused->seconds, two));
        fprintf(out, "  Expected times rest on: %s.\n",
            *estimate->machine ? estimate->machine : "the backend's own figures");
        if (about->collapsed)
            fprintf(
                out, "  The difference to the unfused way is algebraic: work that was removed, no kernel's speed.\n");
    } else {
        fprintf(out, "  Expected times: not known for this backend.\n");
    }
    say_weight_reads(out, about);
    say_columns_twice(out, about);
}

static void say(FILE *out, const rfi_explanation *about) {
    const rfi_spec *spec = about->spec;
    const rfi_plan *plan = &spec->plan;
    char chain[RFI_CHAIN_TEXT];
    if (!rf_chain_format(plan->chain.ops, (size_t)plan->chain.num_ops, chain, sizeof chain, NULL)) fputs(chain, out);
    fprintf(out, "\nx (%lld, %lld) %s, W (%lld, %lld) %s", (long long)about->batch, (long long)plan->in_features,
        rfi_dtype_name(spec->x_dtype), (long long)plan->out_features, (long long)plan->in_features,
        rfi_dtype_name(spec->weight_dtype));
    if (rfi_plan_is_shard(plan))
        fprintf(out, ", columns %lld to %lld of %lld", (long long)plan->columns.first,
            (long long)(plan->columns.first + plan->columns.count) - 1, (long long)plan->columns.total);
    for (int r = 0; r < plan->num_rows; r++)
        fprintf(out, ", #%s (%lld%s) %s", plan->rows[r].name, (long long)about->batch,
            plan->rows[r].several ? ", k" : "",
            plan->rows[r].is_column ? "columns" : rfi_dtype_name(spec->compute_dtype));
    for (int i = 0; i < plan->num_outputs; i++) {
        const rfi_result_part *part = &plan->outputs[i];
        const rfi_branch *branch = &plan->branches[part->branch];
        char columns[24] = "k";
        if (!branch->gathers) snprintf(columns, sizeof columns, "%lld", (long long)branch->width);
        fprintf(out, "%s%s (%lld, %s) %s", i ? ", " : " -> ", plan->num_outputs == 1 ? "y" : part->name,
            (long long)about->batch, columns, rfi_dtype_name(part->is_index ? RF_INT64 : spec->y_dtype));
    }
    fprintf(out, "; steps in %s, math %s\n", rfi_dtype_name(spec->compute_dtype), about->math);
    fprintf(out, "backend %s%s%s\n", about->backend, about->estimate && *about->estimate->kernel ? ": " : "",
        about->estimate ? about->estimate->kernel : "");
    if (about->estimate && *about->estimate->sums) fprintf(out, "sums of products: %s\n", about->estimate->sums);
    for (int b = 0; b < plan->num_branches; b++)
        if (*about->constant[b])
            fprintf(out, "\nWARNING: %s%s%s. This is almost always a mistake in the model.\n",
                plan->num_branches > 1 ? plan->branches[b].name : "", plan->num_branches > 1 ? ": " : "",
                about->constant[b]);
    say_operators(out, about);
    if (plan->num_branches > 1) say_results(out, about);
    say_rewrites(out, about);
    say_lowered(out, about->lowered);
    say_costs(out, about);
}

char *rfi_explain_text(const rfi_explanation *about) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    say(out, about);
    int failed = ferror(out);
    if (fclose(out) || failed) {
        free(text);
        return NULL;
    }
    return text;
}
