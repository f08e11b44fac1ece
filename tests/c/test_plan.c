/* SPDX-License-Identifier: MIT */
/* Plans, from inside: which rewrite applies where and where not, that exact ones keep every bit, and which chains are
 * constant. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "constant.h"
#include "groups.h"
#include "ops.h"
#include "plan.h"
#include "random.h"

static rfi_rewrites rewrites; /* of the plan made last */

static int make(const char *text, rf_simplify simplify, rfi_plan *plan) {
    rfi_chain chain;
    rf_status status = rfi_chain_from_text(text, &chain);
    if (!status) status = rfi_chain_set_size(&chain, chain.in_features < 0 ? 3 : 0, chain.out_features < 0 ? 4 : 0);
    if (!status) status = rfi_plan_make(&chain, simplify, plan, &rewrites);
    CHECK(status == RF_OK, "\"%s\": %s", text, rf_last_error());
    return status == RF_OK;
}

/* "pre | reduction | post" of a plan. */
static const char *show(const rfi_plan *plan) {
    static char text[RF_MAX_OPS * RFI_OP_TEXT];
    char one[RFI_OP_TEXT];
    *text = 0;
    for (int i = 0; i < plan->trunk.count; i++)
        strcat(strcat(text, " | "), rfi_step_format(&plan->chain, &plan->trunk.at[i], one));
    if (plan->branches[0].reduction) strcat(strcat(text, " | "), rfi_op_find(plan->branches[0].reduction)->name);
    for (int i = 0; i < plan->branches[0].post.count; i++)
        strcat(strcat(text, " | "), rfi_step_format(&plan->chain, &plan->branches[0].post.at[i], one));
    return *text ? text + 3 : text;
}

static int applied(const char *rule) {
    int count = 0;
    for (int i = 0; i < rewrites.count; i++) count += !strcmp(rewrites.at[i].rule, rule);
    return count;
}

/* What exact rewrites make of a chain, and a rule that must have taken part ("" for none at all). */
static void exact_rewrites(void) {
    static const char *const cases[][3] = {
        {"relu | relu", "relu", "relu_of_relu"},
        {"abs | abs | abs", "abs", "abs_of_abs"},
        {"neg | neg", "", "neg_of_neg"},
        {"neg | neg | neg", "neg", "neg_of_neg"},
        {"mul(1) | div(1) | sub(0) | add(-0)", "", "identity"},
        {"clamp(-inf, inf) | maximum(-inf) | minimum(inf)", "", "identity"},
        {"add(0) | mul(-1.5) | sub(-0) | div(3)", "add(0) | mul(-1.5) | sub(-0) | div(3)", ""},
        {"mul(2) | mul(4)", "mul(8)", "power_of_two"},
        {"mul(2) | mul(-4) | neg", "mul(8)", "power_of_two"},
        {"mul(0.5) | mul(2)", "mul(0.5) | mul(2)", ""},
        {"mul(0.5) | mul(0.5)", "mul(0.5) | mul(0.5)", ""},
        {"mul(3) | mul(2)", "mul(3) | mul(2)", ""},
        {"mul(3) | neg", "mul(-3)", "power_of_two"},
        {"mul(-1) | neg", "", "power_of_two"},
        {"mul(8.507059173023462e37) | mul(2)", "mul(8.507059173023462e37) | mul(2)",
            ""}, /* 2^126: the product is 2^127 */
        {"mul(1e300) | mul(0.5)", "mul(1e300) | mul(0.5)", ""},
        {"div(4)", "mul(0.25)", "div_power_of_two"},
        {"div(-0.5) | div(2)", "mul(-2) | mul(0.5)", "div_power_of_two"},
        {"div(5.877471754111438e-39)", "div(5.877471754111438e-39)", ""}, /* 2^-127 is subnormal in float32 */
        {"div(1e30) | div(inf) | div(0)", "div(1e30) | div(inf) | div(0)", ""},
        {"mul(@v) | mul(2) | div(@v)", "mul(@v) | mul(2) | div(@v)", ""},
        {"neg | mul(@v)", "neg | mul(@v)", ""},
        {"clamp(-10, 10) | clamp(0, 20)", "clamp(0, 10)", "clamp_of_clamp"},
        {"clamp(-10, 10) | hardtanh", "clamp(-1, 1)", "clamp_of_clamp"},
        {"clamp(0, 1) | clamp(2, 3)", "clamp(2, 2)", "clamp_of_clamp"},
        {"clamp(5, 1) | clamp(0, 3)", "clamp(1, 1)", "clamp_of_clamp"},
        {"clamp(0, 3) | clamp(5, 1)", "clamp(1, 1)", "clamp_of_clamp"},
        {"minimum(3) | maximum(-3)", "clamp(-3, 3)", "clamp_of_clamp"},
        {"clamp(min=-3) | clamp(min=2)", "clamp(2)", "clamp_of_clamp"},
        {"clamp(nan, 1) | clamp(0, 1)", "clamp(nan, 1) | clamp(0, 1)", ""},
        {"clamp(-0, 1) | clamp(0, 1)", "clamp(-0, 1) | clamp(0, 1)", ""},
        {"clamp(-1e-60, 1) | clamp(0, 1)", "clamp(-1e-60, 1) | clamp(0, 1)", ""},
        {"minimum(@v) | minimum(1)", "minimum(@v) | minimum(1)", ""},
        {"save | add_saved", "mul(2)", "double"},
        {"mul(2) | save | add_saved | clamp(-10, 10)", "mul(4) | clamp(-10, 10)", "double"},
        {"save | mul_saved", "square", "square"},
        {"save | add_saved | mul_saved", "save | mul(2) | mul_saved", "double"},
        {"save | mul(1) | add_saved", "mul(2)", "double"},
        {"save | relu | add_saved", "save | relu | add_saved", ""},
        {"save | relu | save | neg | add_saved", "relu | save | neg | add_saved", "dead_save"},
        {"relu | save", "relu", "dead_save"},
        {"sum | max", "sum", "width_one_reduction"},
        {"max | sum | exp", "max | exp", "width_one_reduction"},
        {"max | logsumexp | gelu", "max | add(0) | gelu", "width_one_reduction"},
        {"max | logsumexp | square", "max | square", "zero_sign"},
        {"sum | max | mean | logsumexp | logsumexp", "sum | add(0)", "zero_sign"},
        {"add(0) | abs", "abs", "zero_sign"},
        {"add(0) | add(1)", "add(1)", "zero_sign"},
        {"add(0) | sub(0)", "add(0)", "identity"},
        {"add(0) | save | add_saved", "add(0) | mul(2)", "double"},
        {"add(0) | neg", "add(0) | neg", ""},
        {"add(0) | mul(@v)", "add(0) | mul(@v)", ""},
        {"logsumexp | max | relu | relu", "logsumexp | relu", "relu_of_relu"},
        {"relu | max | relu", "relu | max | relu", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300];
        rfi_plan plan;
        snprintf(text, sizeof text, "linear | %s", cases[i][0]);
        if (!make(text, RF_SIMPLIFY_EXACT, &plan)) continue;
        CHECK(!strcmp(show(&plan), cases[i][1]), "\"%s\" became \"%s\", expected \"%s\"", cases[i][0], show(&plan),
            cases[i][1]);
        if (*cases[i][2]) CHECK(applied(cases[i][2]), "\"%s\": %s did not apply", cases[i][0], cases[i][2]);
        else CHECK(!rewrites.count, "\"%s\": %s applied", cases[i][0], rewrites.at[0].rule);
        for (int r = 0; r < rewrites.count; r++)
            CHECK(!rewrites.at[r].algebraic && *rewrites.at[r].text, "%s", rewrites.at[r].rule);
        if (!make(text, RF_SIMPLIFY_NONE, &plan)) continue;
        CHECK(!rewrites.count &&
                plan.trunk.count + plan.branches[0].post.count + (plan.branches[0].reduction != 0) ==
                    plan.chain.num_ops - 1,
            "\"%s\": simplify=none rewrote it", cases[i][0]);
    }
}

static void collapses(void) {
    static const struct {
        const char *chain;
        int collapsible;
    } cases[] = {
        {"linear | sum", 1},
        {"linear | mean | gelu", 1},
        {"linear | mul(@s) | add(@t) | div(3) | sub(1) | neg | sum", 1},
        {"linear | save | mul(3) | add_saved | mean", 1},
        {"linear | relu | sum", 0},
        {"linear | save | add(1) | mul_saved | sum", 0},
        {"linear | mul(inf) | sum", 0},
        {"linear | div(0) | sum", 0},
        {"linear | add(-inf) | sum", 0},
        {"linear | max", 0},
        {"linear | logsumexp", 0},
        {"linear | mul(2)", 0},
        {"linear(3, 0) | sum", 0}, /* an infinite x must not meet the empty sum */
        {"preset:sum_pool", 1},
        {"preset:scale_clamp_mish", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rfi_plan plan;
        if (!make(cases[i].chain, RF_SIMPLIFY_ALGEBRAIC, &plan)) continue;
        CHECK(plan.collapsible == cases[i].collapsible && applied("collapse") == cases[i].collapsible, "\"%s\"",
            cases[i].chain);
        if (make(cases[i].chain, RF_SIMPLIFY_EXACT, &plan))
            CHECK(!plan.collapsible, "\"%s\" collapses with simplify=exact", cases[i].chain);
    }
}

static void constants(void) {
    static const char *const cases[][2] = {
        /* a chain, and the value it always has, or "" */
        {"max | save | mean | neg | add_saved", "is 0 "},
        {"max | save | neg | add_saved | gelu", "is 0 "},
        {"save | neg | add_saved | logsumexp", "is 1.3862943611198906 "}, /* log 4 */
        {"mul(0) | sum", "is 0 "},
        {"mul(0) | add(2) | sum", "is 8 "},
        {"mul(0) | add(2) | mean | square", "is 4 "},
        {"clamp(3, 3) | max", "is 3 "},
        {"clamp(0, 1) | clamp(2, 3)", "is 2 "},
        {"clamp(5, 1)", "is 1 "},
        {"clamp(nan, 1) | relu", "is nan "},
        {"relu | neg | relu | add(1)", "is 1 "},
        {"logsumexp | exp | neg | relu", "is 0 "},
        {"max | save | mul(2) | neg | add_saved | add_saved", "is 0 "},
        {"sum | clamp(max=-30) | leaky_relu(0) | add(1)", "is 1 "},
        {"max | save | relu | neg | add_saved", ""},
        {"max | save | neg | add_saved | save | exp | add_saved", "is 1 "},
        {"mul(@v)", ""},
        {"mul(0) | mul(@v)", ""},
        {"max | save | mul(-2) | add_saved", ""},
        {"relu | neg | leaky_relu(-1) | clamp(max=0)", ""}, /* |x| is not 0: a negative slope is not increasing */
        {"abs | neg | softplus(1, -5) | minimum(3)", ""},
        {"logsumexp", ""},
        {"mean | tanh | mul(1e-3)", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const rf_simplify levels[] = {RF_SIMPLIFY_NONE, RF_SIMPLIFY_EXACT, RF_SIMPLIFY_ALGEBRAIC};
        for (int k = 0; k < 3; k++) {
            char text[300];
            rfi_plan plan;
            snprintf(text, sizeof text, "linear | %s", cases[i][0]);
            char constant[RFI_CONSTANT_TEXT];
            if (!make(text, levels[k], &plan)) continue;
            rfi_find_constant(&plan, &plan.branches[0], constant);
            if (*cases[i][1])
                CHECK(strstr(constant, cases[i][1]), "\"%s\": \"%s\", expected \"%s\"", cases[i][0], constant,
                    cases[i][1]);
            else CHECK(!*constant, "\"%s\": \"%s\"", cases[i][0], constant);
        }
    }
    for (size_t i = 0; i < rf_preset_count(); i++) {
        const char *name, *chain;
        rfi_plan plan;
        rf_preset_get(i, &name, &chain);
        char constant[RFI_CONSTANT_TEXT];
        if (!make(chain, RF_SIMPLIFY_NONE, &plan)) continue;
        CHECK(!rfi_find_constant(&plan, &plan.branches[0], constant), "%s is constant: %s", name, constant);
    }
}

/* Values at every edge of either type. */
static const double values[] = {0.0, -0.0, 1, -1, 2, -2, 0.5, 3, -7.25, 0.1, 1e-3, -1e-3, 10, -10, 20.5, 88.5, -88.5,
    -104, 709, -745, 1e10, 0x1p126, -0x1p126, 0x1p127, 3.4e38, -3.4e38, 0x1.fffffep127, 0x1p-126, -0x1p-126, 0x1.8p-126,
    0x1p-127, 0x1.000002p-126, 0x3p-149, -0x3p-149, 0x5p-149, 0x7p-148, 0x1p-149, -0x1p-149, 1.7e308, -1.7e308,
    0x1p1023, 0x1p-1022, 0x3p-1074, -0x5p-1074, 0x1p-1074, INFINITY, -INFINITY, NAN};
enum { NUM_VALUES = sizeof values / sizeof *values };

/* The steps on one column; a vector stands for 1.7 in it, and the reduction for one over a single column. */
static float run_f32(const rfi_plan *plan, float x) {
    float s = 0;
    for (int i = 0; i < plan->trunk.count; i++) {
        const rfi_step *step = &plan->trunk.at[i];
        x = rfi_op_apply_f32(step->kind, x, step->vector < 0 ? (float)step->a : 1.7f, (float)step->b, s);
        if (step->kind == RF_OP_SAVE) s = x;
    }
    x = rfi_op_apply_f32(plan->branches[0].reduction, x, 0, 0, 0);
    for (int i = 0; i < plan->branches[0].post.count; i++) {
        x = rfi_op_apply_f32(plan->branches[0].post.at[i].kind, x, (float)plan->branches[0].post.at[i].a,
            (float)plan->branches[0].post.at[i].b, s);
        if (plan->branches[0].post.at[i].kind == RF_OP_SAVE) s = x;
    }
    return x;
}

static double run_f64(const rfi_plan *plan, double x) {
    double s = 0;
    for (int i = 0; i < plan->trunk.count; i++) {
        const rfi_step *step = &plan->trunk.at[i];
        x = rfi_op_apply_f64(step->kind, x, step->vector < 0 ? step->a : 1.7, step->b, s);
        if (step->kind == RF_OP_SAVE) s = x;
    }
    x = rfi_op_apply_f64(plan->branches[0].reduction, x, 0, 0, 0);
    for (int i = 0; i < plan->branches[0].post.count; i++) {
        x = rfi_op_apply_f64(
            plan->branches[0].post.at[i].kind, x, plan->branches[0].post.at[i].a, plan->branches[0].post.at[i].b, s);
        if (plan->branches[0].post.at[i].kind == RF_OP_SAVE) s = x;
    }
    return x;
}

static void random_chain(rfi_chain *chain) {
    static const double params[] = {1, -1, 2, -2, 4, 0.5, -0.25, 3, -10, 0.0, -0.0, 0x1p126, 0x1p-126, 0x1p127,
        0x1p-127, 1e-40, -1e-60, 1e300, INFINITY, -INFINITY, NAN, 0.01};
    static const int favourites[] = {RF_OP_MUL, RF_OP_DIV, RF_OP_NEG, RF_OP_SAVE, RF_OP_ADD_SAVED, RF_OP_MUL_SAVED,
        RF_OP_CLAMP, RF_OP_ADD, RF_OP_SUB, RF_OP_RELU, RF_OP_ABS, RF_OP_MINIMUM, RF_OP_MAXIMUM, RF_OP_LOGSUMEXP,
        RF_OP_SUM, RF_OP_HARDTANH};
    rf_op ops[RF_MAX_OPS] = {{.kind = RF_OP_LINEAR}};
    size_t count = 2 + next_random() % 14, i = 1;
    for (int tries = 0; i < count && tries < 100; tries++) {
        int kind = next_random() % 4 ? favourites[next_random() % (sizeof favourites / sizeof *favourites)]
                                     : rfi_op_at(1 + next_random() % (rf_op_count() - 1))->kind;
        const rfi_op_desc *desc = rfi_op_find(kind);
        ops[i] = (rf_op){.kind = kind, .num_params = desc->num_params};
        for (int k = 0; k < desc->num_params; k++)
            ops[i].params[k] = params[next_random() % (sizeof params / sizeof *params)];
        if (desc->accepts_vector && next_random() % 16 == 0) {
            ops[i].num_params = 0;
            strcpy(ops[i].vector, "v");
        }
        if (!rfi_chain_from_ops(ops, i + 1, chain)) i++;
    }
    rfi_chain_from_ops(ops, i, chain);
    chain->in_features = chain->out_features = 1;
}

/* Exact rewrites keep every bit, on every edge of either type; which NaN does not count. */
static void bits(int count) {
    int rewritten = 0;
    for (int i = 0; i < count; i++) {
        rfi_chain chain;
        rfi_plan plain, exact;
        random_chain(&chain);
        rfi_plan_make(&chain, RF_SIMPLIFY_NONE, &plain, NULL);
        rfi_plan_make(&chain, RF_SIMPLIFY_EXACT, &exact, &rewrites);
        rewritten += rewrites.count > 0;
        char text[8192];
        rf_chain_format(chain.ops, (size_t)chain.num_ops, text, sizeof text, NULL);
        for (int v = 0; v < NUM_VALUES; v++) {
            float f = run_f32(&plain, (float)values[v]), g = run_f32(&exact, (float)values[v]);
            double d = run_f64(&plain, values[v]), e = run_f64(&exact, values[v]);
            CHECK((isnan(f) && isnan(g)) || !memcmp(&f, &g, sizeof f),
                "\"%s\" as \"%s\" at %a in float32: %a became %a", text, show(&exact), values[v], f, g);
            CHECK((isnan(d) && isnan(e)) || !memcmp(&d, &e, sizeof d),
                "\"%s\" as \"%s\" at %a in float64: %a became %a", text, show(&exact), values[v], d, e);
        }
    }
    CHECK(rewritten > count / 3, "only %d of %d chains were rewritten: the generator lost its use", rewritten, count);
}

/* The longest chains that keep the rules busy fit the plan's tables. */
static void longest(void) {
    static const char *const fillers[] = {"div(2)", "mul(2)", "neg", "logsumexp", "clamp(0, 1)", "save", "add_saved"};
    for (size_t f = 0; f < sizeof fillers / sizeof *fillers; f++) {
        char text[RF_MAX_OPS * 20] = "linear | save";
        rfi_plan plan;
        for (int i = 2; i < RF_MAX_OPS; i++)
            strcat(strcat(text, " | "), i == 2 && !strcmp(fillers[f], "logsumexp") ? "sum" : fillers[f]);
        if (make(text, RF_SIMPLIFY_ALGEBRAIC, &plan))
            CHECK(rewrites.count < RFI_MAX_REWRITES, "%s: %d rewrites", fillers[f], rewrites.count);
    }
}

/* As many elements of W as 8 bytes each can be addressed, and no more, whether or not their number overflows. */
static void sizes(void) {
    static const struct {
        int64_t k, n;
        int fits;
    } cases[] = {
        {INT64_C(1) << 30, (INT64_C(1) << 30) - 1, 1},
        {INT64_C(1) << 30, INT64_C(1) << 30, 0},
        {INT64_C(1) << 32, INT64_C(1) << 32, 0}, /* 0 in 64 bits */
        {INT64_C(1) << 40, INT64_C(1) << 40, 0},
        {INT64_C(1) << 40, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rfi_chain chain;
        rf_status status = rfi_chain_from_text("linear | sum", &chain);
        if (!status) status = rfi_chain_set_size(&chain, cases[i].k, cases[i].n);
        CHECK(status == (cases[i].fits ? RF_OK : RF_INVALID_ARGUMENT), "case %zu: status %d", i, (int)status);
        CHECK(!status || strstr(rf_last_error(), "more than memory can address"), "%s", rf_last_error());
    }
}

/* A column's group is the one between whose borders it lies; a model of all columns cuts them at these borders, and a
 * shard where its units pass them. */
static void groups(void) {
    enum { UNIT = RFI_GROUP_UNIT };
    for (int64_t total = 1; total < 40 * UNIT; total += 173) {
        const rfi_shard whole = {.first = 0, .count = total, .total = total};
        const int64_t count = rfi_num_groups(total);
        CHECK(rfi_shard_groups(&whole) == count, "%lld columns", (long long)total);
        for (int64_t g = 0; g < count; g++) {
            const int64_t begin = rfi_group_border(total, g), end = rfi_group_border(total, g + 1);
            CHECK(rfi_group_of(total, begin) == g && rfi_group_of(total, end - 1) == g,
                "of %lld columns %lld and %lld are in groups %lld and %lld, expected %lld", (long long)total,
                (long long)begin, (long long)end - 1, (long long)rfi_group_of(total, begin),
                (long long)rfi_group_of(total, end - 1), (long long)g);
            CHECK(rfi_shard_border(&whole, g) * UNIT == begin, "of %lld columns group %lld begins with unit %lld",
                (long long)total, (long long)g, (long long)rfi_shard_border(&whole, g));
        }
        for (int64_t first = 0; first < total; first += 401) {
            const rfi_shard part = {.first = first, .count = total - first, .total = total};
            for (int64_t u = 0, g = 0; u < rfi_shard_units(&part); u++) {
                while (u >= rfi_shard_border(&part, g + 1)) g++;
                CHECK(rfi_group_of(total, first + u * UNIT) == rfi_group_of(total, first) + g,
                    "of %lld columns from %lld on unit %lld is in group %lld", (long long)total, (long long)first,
                    (long long)u, (long long)g);
            }
        }
    }
}

int main(int argc, char **argv) {
    int scale = argc > 1 ? atoi(argv[1]) : 1;
    sizes();
    groups();
    exact_rewrites();
    collapses();
    constants();
    bits(20000 * scale);
    longest();
    return failures != 0;
}
