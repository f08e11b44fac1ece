/* SPDX-License-Identifier: MIT */
/* Chains through the public interface: text to ops and back, every error with its column, arbitrary bytes. */
#include <rowfold.h>

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "random.h"

static const char *format(const rf_op *ops, size_t num_ops) {
    static char text[8192];
    rf_status status = rf_chain_format(ops, num_ops, text, sizeof text, NULL);
    CHECK(status == RF_OK, "format: %s", rf_last_error());
    return status ? "" : text;
}

/* The text, parsed, prints as `expected` and parses to the same ops again. */
static void round_trip(const char *text, const char *expected) {
    rf_op ops[RF_MAX_OPS], again[RF_MAX_OPS];
    size_t n = 0, m = 0;
    memset(ops, 0, sizeof ops);
    memset(again, 0, sizeof again);
    rf_status status = rf_chain_parse(text, ops, RF_MAX_OPS, &n);
    CHECK(status == RF_OK, "\"%s\": %s", text, rf_last_error());
    if (status) return;
    const char *printed = format(ops, n);
    CHECK(!strcmp(printed, expected), "\"%s\" printed as \"%s\", expected \"%s\"", text, printed, expected);
    status = rf_chain_parse(printed, again, RF_MAX_OPS, &m);
    CHECK(status == RF_OK && n == m, "\"%s\": %s", printed, rf_last_error());
    CHECK(!memcmp(ops, again, sizeof ops), "\"%s\" did not come back the same", text);
}

static void good_text(void) {
    static const char *const same[] = {
        "linear",
        "linear | logsumexp, max, sum",
        "linear(3, 4) | mul(2) | logsumexp | exp, max, (abs | mean | add(1))",
        "linear | mul(2) | (abs | max), min",
        "linear | (abs | max), (neg | max)",
        "linear | (max), min",
        "linear | logprob(#target), argmax, entropy, logsumexp, pick(#other)",
        "linear | logprob(#target, -1), logprob(#target, -100)",
        "linear | (abs | max)",
        "linear | save | relu | (add_saved | sum), (mul_saved | mean | save | mul_saved)",
        "linear | div(#temperature) | add(@b) | logsumexp | sub(#t.0), max",
        "linear(8192, 8192) | mul(2) | clamp(-10, 10) | add(@bias2) | gelu(tanh) | logsumexp",
        "linear(0, 5) | relu",
        "linear(5, 0) | sum",
        "linear | mul(@a.b_9) | sub(-0) | div(1e-300) | minimum(nan) | maximum(@_v)",
        "linear | clamp(max=3) | clamp(-1) | clamp(-1, inf) | clamp(nan, nan)",
        "linear | leaky_relu | leaky_relu(0.01) | elu(2) | softplus | softplus(2) | softplus(threshold=30) | softplus(2, 30)",
        "linear | hardtanh | hardtanh(-2, 2) | softcap(30) | hardswish | hardsigmoid",
        "linear | save | mish | mul_saved | max | save | neg | add_saved | min | mean",
        "linear | mul(1000) | mul(1e16) | mul(1234567890123456) | mul(0.00001) | mul(1.5e-7) | mul(0.1) | mul(inf) | mul(-inf)",
        "linear(1099511627776, 1)",
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) round_trip(same[i], same[i]);
    static const char *const other[][2] = {
        {"linear(8192, 8192) | mul(2) | clamp(-10, max=10) | add(@bias2) | gelu(tanh) | logsumexp",
            "linear(8192, 8192) | mul(2) | clamp(-10, 10) | add(@bias2) | gelu(tanh) | logsumexp"},
        {"\n\tlinear  (  3 ,\r\n4 )|gelu( none )|gelu()|gelu(approximate = tanh)|gelu(approximate=none)\n",
            "linear(3, 4) | gelu | gelu | gelu(tanh) | gelu"},
        {"linear(out_features=4, in_features=3) | mul(other=+2.50e0) | add(other = @v)",
            "linear(3, 4) | mul(2.5) | add(@v)"},
        {"linear|(abs|max ) ,min,( sum )", "linear | (abs | max), min, sum"},
        {"linear | max, abs | min | neg", "linear | max, (abs | min | neg)"},
        {"linear | div(other = #t)", "linear | div(#t)"},
        {"linear() | clamp(none, 5) | clamp(5, none) | clamp(min=-inf, max=1) | softplus(none, none)",
            "linear | clamp(max=5) | clamp(5) | clamp(max=1) | softplus"},
        {"linear | mul(.5) | mul(1.) | mul(100e-2) | mul(0001) | mul(-0e99)",
            "linear | mul(0.5) | mul(1) | mul(1) | mul(1) | mul(-0)"},
        {"preset:logsumexp_gelu", "linear | logsumexp | leaky_relu(0.01) | leaky_relu(0.01) | gelu | gelu"},
        {" preset: sum_pool ", "linear | sum | max | mean | logsumexp | logsumexp"},
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) round_trip(other[i][0], other[i][1]);
    for (size_t i = 0; i < rf_preset_count(); i++) {
        const char *name, *chain;
        char text[64];
        CHECK(rf_preset_get(i, &name, &chain) == RF_OK, "%s", rf_last_error());
        snprintf(text, sizeof text, "preset:%s", name);
        round_trip(text, chain);
    }
}

/* Each wrong text with the place and a piece of the sentence that it must get. */
static void bad_text(void) {
    static const char *const wrong[][3] = {
        {"", "column 1:", "expected an operator, found the end"},
        {"linear |", "column 9:", "found the end"},
        {"linear | | relu", "column 10:", "found \"|\""},
        {"relu", "column 1:", "begins with linear"},
        {"linear | linear", "column 10:", "once"},
        {"linear | logsumexpp", "column 10:", "did you mean \"logsumexp\"?"},
        {"linear | softmax", "column 10:", "logsumexp is the logarithm of its divisor"},
        {"linear | relu6", "column 10:", "hardtanh(0, 6) is the same"},
        {"linear | frobnicate", "column 10:", "rf_op_get_info lists them"},
        {"linear | GELU", "column 10:", "did you mean \"gelu\"?"},
        {"linear | smu", "column 10:", "did you mean \"sum\"?"},
        {"linear | frobnicate", "column 10:", "no operator \"frobnicate\""},
        {"linear relu", "column 8:", "expected \"|\", \",\" or the end, found \"relu\""},
        {"linear\n| relu |\n  nope", "line 3, column 3:", "no operator"},
        {"linear | \xc3\xa9", "column 10:", "byte 0xc3"},
        {"linear | relu | mul(\xc2\xb5)", "column 21:", "expected a number"},
        {"linear | mul", "column 10:", "needs its parameter other, a number, an @vector or a #row_input"},
        {"linear | mul()", "column 10:", "needs its parameter"},
        {"linear | mul(none)", "column 10:", "needs its parameter"},
        {"linear | mul(2", "column 15:", "to close mul("},
        {"linear | mul(2, 3)", "column 17:", "at most 1 argument"},
        {"linear | mul(2,)", "column 16:", "at most 1 argument"},
        {"linear | mul(x=2)", "column 14:", "no parameter \"x\"; expected other"},
        {"linear | mul(nan)", "column 10:", "other of mul is nan"},
        {"linear | mul(0x10)", "column 15:", "to close mul("},
        {"linear | mul(1e999)", "column 14:", "too large"},
        {"linear | mul(1e-999)", "column 14:", "too small"},
        {"linear | mul(--1)", "column 14:", "expected a number"},
        {"linear | mul(infinity)", "column 14:", "expected a number"},
        {"linear | mul(scale)", "column 14:", "@vector or #row_input, found \"scale\"; did you mean @scale?"},
        {"linear | pick(target)", "column 15:", "expected #row_input, found \"target\"; did you mean #target?"},
        {"linear | clamp(min=x)", "column 20:", "expected a number, inf, nan or none, found \"x\""},
        {"linear | mul(@)", "column 15:", "expected the name of a vector"},
        {"linear | mul(@9)", "column 15:", "expected the name of a vector"},
        {"linear | mul(@v234567890123456789012345678901x)", "column 15:", "at most 31 fit"},
        {"linear | relu(@v)", "column 15:", "relu takes no arguments"},
        {"linear | elu(@v)", "column 14:", "no vector"},
        {"linear | relu(1)", "column 15:", "relu takes no arguments"},
        {"linear | gelu(erf)", "column 15:", "expected gelu, gelu(tanh) or gelu(none), found \"erf\""},
        {"linear | gelu(approximate=)", "column 27:", "expected gelu, gelu(tanh)"},
        {"linear | gelu(tanh, 1)", "column 19:", "to close gelu("},
        {"linear | clamp", "column 10:", "clamp needs min or max"},
        {"linear | clamp(none, none)", "column 10:", "clamp needs min or max"},
        {"linear | clamp(max=1, 2)", "column 23:", "behind one with"},
        {"linear | clamp(1, min=2)", "column 19:", "min is given twice"},
        {"linear | clamp(top=1)", "column 16:", "expected min or max"},
        {"linear | hardtanh(nan)", "column 10:", "min_val of hardtanh is nan"},
        {"linear | hardtanh(2, -2)", "column 10:", "min_val of hardtanh is 2, above its max_val -2"},
        {"linear | hardtanh(1.5)", "column 10:", "min_val of hardtanh is 1.5, above its max_val 1"},
        {"linear | softcap(0)", "column 10:", "cap of softcap is 0"},
        {"linear | softplus(-0)", "column 10:", "beta of softplus is 0"},
        {"linear(5)", "column 1:", "both sizes or none"},
        {"linear(out_features=5)", "column 1:", "both sizes or none"},
        {"linear(-3, 5)", "column 1:", "in_features is -3"},
        {"linear(3, 5.5)", "column 1:", "out_features is 5.5"},
        {"linear(3, inf)", "column 1:", "out_features is inf"},
        {"linear(3, nan)", "column 1:", "nan"},
        {"linear(3, 1099511627777)", "column 1:", "2^40"},
        {"linear | add_saved", "column 10:", "nothing to read"},
        {"linear | sum | mul_saved | save", "column 16:", "nothing to read"},
        {"linear | save | sum | add_saved", "column 23:", "saved has out_features columns, the value here has 1"},
        {"linear | sum | add(@v)", "column 16:", "behind sum the value has 1 column"},
        {"linear | pick", "column 10:", "needs its parameter column, a #row_input that names a column of each row"},
        {"linear | pick(3)", "column 10:", "needs its parameter column"},
        {"linear | pick(@v)", "column 15:", "pick takes a column of each row, #name; @v is a vector of all columns"},
        {"linear | pick(#t, 3)", "column 19:", "at most 1 argument"},
        {"linear | logprob(#t, ignore_index=0.5)",
            "column 10:", "ignore_index of logprob is 0.5; expected a whole number"},
        {"linear | logprob(#t, #u)", "column 22:", "takes numbers only, no row input"},
        {"linear | div(#t) | pick(#t)", "column 20:", "#t is a column for pick and a number for div"},
        {"linear | argmax | add(1)", "column 19:", "the result of argmax is a column"},
        {"linear | max | argmax", "column 16:", "argmax asks for a column, and behind max the value has 1"},
        {"linear | max | pick(#t)", "column 16:", "pick asks for a column"},
        {"linear, max", "column 7:", "no reduction; of several each needs one"},
        {"linear | relu, max", "column 14:", "no reduction"},
        {"linear | max, relu", "column 15:", "a result has no reduction"},
        {"linear | max,", "column 14:", "expected an operator, found the end"},
        {"linear | max,, min", "column 14:", "expected an operator, found \",\""},
        {"linear | max, min | (abs | sum)", "column 21:", "expected an operator, found \"(\""},
        {"linear | (max", "column 14:", "expected \"|\" or \")\", found the end"},
        {"linear | (max, min)", "column 14:", "expected \"|\" or \")\", found \",\""},
        {"linear | (max) | exp, min", "column 16:", "expected \",\" or the end, found \"|\""},
        {"linear | ((max))", "column 11:", "expected an operator, found \"(\""},
        {"linear | ()", "column 11:", "expected an operator, found \")\""},
        {"linear | max)", "column 13:", "expected \"|\", \",\" or the end"},
        {"(linear | max)", "column 1:", "expected an operator"},
        {"linear | max, linear", "column 15:", "linear stands first, and once"},
        {"linear | max, add_saved | sum", "column 15:", "nothing to read"},
        {"linear | save | max, min | add_saved", "column 28:", "saved has out_features columns"},
        {"linear | max, min | add(@v)", "column 21:", "behind min the value has 1 column"},
        {"linear | relu(#t)", "column 15:", "relu takes no arguments"},
        {"linear | clamp(#t)", "column 16:", "clamp takes numbers only, no row input"},
        {"linear | mul(#)", "column 15:", "expected the name of a row input behind #"},
        {"linear | mul(#t23456789012345678901234567890x)", "column 15:", "at most 30 fit"},
        {"preset:nope", "column 8:", "there are logsumexp_gelu, sum_pool"},
        {"preset:sum_pool | relu", "column 17:", "expected the end"},
        {"Preset:sum_pool", "column 1:", "no operator"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        rf_op ops[RF_MAX_OPS];
        size_t n = 12345;
        rf_status status = rf_chain_parse(wrong[i][0], ops, RF_MAX_OPS, &n);
        const char *error = rf_last_error();
        CHECK(status == RF_INVALID_CHAIN && n == 12345, "\"%s\" gave status %d", wrong[i][0], (int)status);
        CHECK(strstr(error, wrong[i][1]) && strstr(error, wrong[i][2]), "\"%s\": expected \"%s ... %s\" in \"%s\"",
            wrong[i][0], wrong[i][1], wrong[i][2], error);
    }
    char text[RF_MAX_OPS * 8 + 16] = "linear";
    for (int i = 1; i < RF_MAX_OPS; i++) strcat(text, "|relu");
    size_t n;
    CHECK(rf_chain_parse(text, NULL, 0, &n) == RF_BUFFER_TOO_SMALL && n == RF_MAX_OPS, "%s", rf_last_error());
    static const char names[] = "there are logsumexp_gelu, sum_pool, scale_clamp_mish";
    rf_chain_parse("preset:nope", NULL, 0, &n);
    CHECK(!strcmp(rf_last_error() + strlen(rf_last_error()) - strlen(names), names), "%s", rf_last_error());
    strcat(text, "|relu");
    CHECK(rf_chain_parse(text, NULL, 0, &n) == RF_INVALID_CHAIN && strstr(rf_last_error(), "more than 64 operators"),
        "%s", rf_last_error());
}

static void bad_ops(void) {
    rf_op ops[3] = {{.kind = RF_OP_LINEAR}, {.kind = RF_OP_MUL, .num_params = 1, .params = {2}}, {.kind = RF_OP_SUM}};
    char text[64], tiny[4] = "abc";
    size_t needed = 0, n = 0;
    CHECK(rf_chain_format(ops, 3, NULL, 0, &needed) == RF_OK && needed == sizeof "linear | mul(2) | sum",
        "needed %zu: %s", needed, rf_last_error());
    CHECK(rf_chain_format(ops, 3, tiny, sizeof tiny, &needed) == RF_BUFFER_TOO_SMALL && !strcmp(tiny, "abc"),
        "a short buffer was written");
    CHECK(
        rf_chain_format(ops, 3, text, needed, NULL) == RF_OK && !strcmp(text, "linear | mul(2) | sum"), "\"%s\"", text);
    CHECK(rf_chain_format(ops, 0, text, sizeof text, NULL) == RF_INVALID_CHAIN, "no ops");
    CHECK(rf_chain_format(ops, RF_MAX_OPS + 1, text, sizeof text, NULL) == RF_INVALID_CHAIN, "too many ops");
    CHECK(rf_chain_format(NULL, 1, text, sizeof text, NULL) == RF_INVALID_ARGUMENT, "NULL ops");
    CHECK(rf_chain_format(ops, 1, NULL, 1, NULL) == RF_INVALID_ARGUMENT, "NULL text");
    CHECK(rf_chain_parse(NULL, ops, 3, &n) == RF_INVALID_ARGUMENT, "NULL text");
    CHECK(rf_chain_parse("linear", ops, 3, NULL) == RF_INVALID_ARGUMENT, "NULL num_ops");
    CHECK(rf_chain_parse("linear", NULL, 3, &n) == RF_INVALID_ARGUMENT, "NULL ops");
    static const struct {
        rf_op op;
        const char *sentence;
    } wrong[] = {
        {{.kind = 77}, "kind is 77"},
        {{.kind = RF_OP_NONE}, "kind is 0"},
        {{.kind = RF_OP_RELU, .num_params = 1}, "at most 0 numbers"},
        {{.kind = RF_OP_MUL, .num_params = -1}, "got -1"},
        {{.kind = RF_OP_MUL}, "needs its parameter other"},
        {{.kind = RF_OP_MUL, .num_params = 1, .vector = "v"}, "a number or a vector, got both"},
        {{.kind = RF_OP_RELU, .vector = "v"}, "takes no vector"},
        {{.kind = RF_OP_MUL, .vector = "1v"}, "vector's name"},
        {{.kind = RF_OP_MUL, .vector = "a b"}, "vector's name"},
        {{.kind = RF_OP_MUL, .vector = "0123456789012345678901234567890"}, "vector's name"},
        {{.kind = RF_OP_CLAMP}, "min or max"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ops[1] = wrong[i].op;
        rf_status status = rf_chain_format(ops, 3, text, sizeof text, NULL);
        CHECK(status == RF_INVALID_CHAIN && strstr(rf_last_error(), "ops[1]") &&
                strstr(rf_last_error(), wrong[i].sentence),
            "expected \"%s\", got \"%s\"", wrong[i].sentence, rf_last_error());
    }
    static const struct {
        rf_op ops[4];
        size_t count;
        const char *text, *sentence; /* one of them */
    } results[] = {
        {{{.kind = RF_OP_LINEAR}, {.kind = RF_OP_MAX}, {.kind = RF_OP_RESULT}, {.kind = RF_OP_MIN}}, 4,
            "linear | max, min", ""},
        {{{.kind = RF_OP_LINEAR}, {.kind = RF_OP_RESULT}, {.kind = RF_OP_ABS}, {.kind = RF_OP_MIN}}, 4,
            "linear | (abs | min)", ""},
        {{{.kind = RF_OP_LINEAR}, {.kind = RF_OP_DIV, .vector = "#t"}}, 2, "linear | div(#t)", ""},
        {{{.kind = RF_OP_LINEAR}, {.kind = RF_OP_MAX}, {.kind = RF_OP_RESULT}}, 3, "",
            "ops[2]: a result has no operators"},
        {{{.kind = RF_OP_LINEAR}, {.kind = RF_OP_RESULT}}, 2, "", "ops[1]: a result has no operators"},
        {{{.kind = RF_OP_LINEAR}, {.kind = RF_OP_RESULT}, {.kind = RF_OP_RESULT}, {.kind = RF_OP_MAX}}, 4, "",
            "ops[1]: a result has no operators"},
        {{{.kind = RF_OP_RESULT}, {.kind = RF_OP_MAX}}, 2, "", "ops[0]: RF_OP_RESULT begins a result"},
        {{{.kind = RF_OP_LINEAR}, {.kind = RF_OP_MAX}, {.kind = RF_OP_RESULT, .num_params = 1}, {.kind = RF_OP_MIN}}, 4,
            "", "ops[2]: RF_OP_RESULT begins a result"},
        {{{.kind = RF_OP_LINEAR}, {.kind = RF_OP_DIV, .vector = "#"}}, 2, "", "ops[1] (div): the vector's name"},
        {{{.kind = RF_OP_LINEAR}, {.kind = RF_OP_CLAMP, .vector = "#t"}}, 2, "",
            "ops[1] (clamp): clamp takes no row input"},
        {{{.kind = RF_OP_LINEAR}, {.kind = RF_OP_DIV, .num_params = 1, .vector = "#t"}}, 2, "",
            "ops[1] (div): div takes a number or a row input, got both"},
    };
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        rf_status status = rf_chain_format(results[i].ops, results[i].count, text, sizeof text, NULL);
        CHECK(
            status == (*results[i].text ? RF_OK : RF_INVALID_CHAIN), "%zu: status %d, %s", i, status, rf_last_error());
        if (status) CHECK(strstr(rf_last_error(), results[i].sentence), "%zu: %s", i, rf_last_error());
        else CHECK(!strcmp(text, results[i].text), "%zu: \"%s\"", i, text);
    }
    char many[RF_MAX_OPS * 8] = "linear | max";
    for (int i = 1; i < RF_MAX_RESULTS; i++) strcat(many, ", min");
    CHECK(rf_chain_parse(many, NULL, 0, &n) == RF_BUFFER_TOO_SMALL, "%s", rf_last_error());
    strcat(many, ", sum");
    CHECK(rf_chain_parse(many, NULL, 0, &n) == RF_INVALID_CHAIN && strstr(rf_last_error(), "more than 16 results"),
        "%s", rf_last_error());
    memset(ops[1].vector, 'v', RF_MAX_NAME); /* no NUL */
    ops[1].kind = RF_OP_MUL;
    CHECK(rf_chain_format(ops, 3, text, sizeof text, NULL) == RF_INVALID_CHAIN, "a name without an end");
}

static void op_table(void) {
    for (size_t i = 0; i < rf_op_count(); i++) {
        rf_op_info info = {.size = sizeof info}, other = {.size = sizeof other};
        CHECK(rf_op_get_info(i, &info) == RF_OK, "%s", rf_last_error());
        CHECK(info.name && info.description && *info.description && info.min_params <= info.num_params, "row %zu", i);
        for (int p = 0; p < RF_MAX_OP_PARAMS; p++)
            CHECK((info.param_names[p] != NULL) == (p < info.num_params), "%s parameter %d", info.name, p);
        for (size_t j = 0; j < i; j++) {
            rf_op_get_info(j, &other);
            CHECK(strcmp(info.name, other.name) && info.kind != other.kind, "%s is there twice", info.name);
        }
        if (info.op_class == RF_CLASS_LINEAR) continue;
        /* Every row can be written: with numbers, and with a vector where it says so. */
        const int asks = info.row_input == RF_ROW_COLUMN || info.row_input == RF_ROW_COLUMNS;
        rf_op ops[3] = {{.kind = RF_OP_LINEAR}, {.kind = RF_OP_SAVE},
            {.kind = info.kind, .num_params = info.num_params, .params = {info.kind == RF_OP_TOPK ? 7 : 0.25, 0.5}}};
        if (asks) ops[2] = (rf_op){.kind = info.kind, .vector = "#c"};
        char text[200];
        CHECK(rf_chain_format(ops, 3, text, sizeof text, NULL) == RF_OK, "%s: %s", info.name, rf_last_error());
        CHECK(strstr(text, info.name), "\"%s\" has no %s", text, info.name);
        round_trip(text, text);
        if (!info.accepts_vector) continue;
        ops[2] = (rf_op){.kind = info.kind, .vector = "v"};
        CHECK(rf_chain_format(ops, 3, text, sizeof text, NULL) == RF_OK && strstr(text, "(@v)"), "%s: %s", info.name,
            rf_last_error());
    }
    rf_op_info info = {.size = sizeof info};
    CHECK(rf_op_get_info(rf_op_count(), &info) == RF_INVALID_ARGUMENT, "an index outside");
    CHECK(rf_op_get_info(0, NULL) == RF_INVALID_ARGUMENT, "NULL");
    info.size = 1;
    CHECK(rf_op_get_info(0, &info) == RF_INVALID_ARGUMENT, "a wrong size");
    const char *name, *chain;
    CHECK(rf_preset_get(rf_preset_count(), &name, &chain) == RF_INVALID_ARGUMENT, "a preset outside");
    CHECK(rf_preset_get(0, NULL, &chain) == RF_INVALID_ARGUMENT, "NULL");
}

/* Any double comes back bit for bit, in any locale. */
static void numbers(int count) {
    for (int i = 0; i < count; i++) {
        uint64_t bits = next_random();
        if (i % 3 == 1) bits &= 0xfff8000000000000u;                /* few digits */
        if (i % 3 == 2) bits = (uint64_t)(next_random() % 2000000); /* subnormals */
        double value;
        memcpy(&value, &bits, sizeof value);
        if (i % 7 == 0) value = (double)(int64_t)(next_random() >> (next_random() % 64)) / 1000;
        if (isnan(value)) continue;
        rf_op ops[2] = {{.kind = RF_OP_LINEAR}, {.kind = RF_OP_MUL, .num_params = 1, .params = {value}}}, again[2];
        char text[100];
        size_t n = 0;
        CHECK(rf_chain_format(ops, 2, text, sizeof text, NULL) == RF_OK, "%s", rf_last_error());
        CHECK(rf_chain_parse(text, again, 2, &n) == RF_OK && !memcmp(&again[1].params[0], &value, sizeof value),
            "%a printed as \"%s\": %s", value, text, rf_last_error());
        CHECK(!strchr(text, ','), "\"%s\" follows the locale", text);
    }
}

/* Arbitrary bytes and damaged chains: an answer, never a crash; what is accepted prints and comes back. Sanitizers make
 * this stronger. */
static void fuzz(int count) {
    static const char *const pieces[] = {"linear", "(", ")", "|", ",", "=", "@", "mul", "clamp", "gelu", "tanh", "none",
        "nan", "inf", "-", "1e", "1e308", "8192", "max", "min", "preset:", "sum_pool", "save", "add_saved", "logsumexp",
        "approximate", "#t", "#", " ", "\n", "\xff", "0.", "v.w"};
    static const char *const seeds[] = {
        "linear(8192, 8192) | mul(2) | clamp(-10, max=10) | add(@bias2) | gelu(approximate=tanh) | logsumexp | save | mul_saved",
        "linear | save | div(#t) | (mul_saved | logsumexp | exp | sub(#u)), max, (abs | mean)",
        "linear | softplus(beta=1.5, threshold=none) | hardtanh(-1e-3, 4.25E+2) | save | mish | add_saved | max | mean"};
    int accepted = 0;
    for (int i = 0; i < count; i++) {
        char text[400] = "";
        size_t length = 0;
        if (i % 3 == 0) {
            length = next_random() % 60;
            for (size_t j = 0; j < length; j++) text[j] = (char)(1 + next_random() % 255);
        } else if (i % 3 == 1) {
            for (size_t k = next_random() % 24; k; k--)
                strcat(text, pieces[next_random() % (sizeof pieces / sizeof *pieces)]);
        } else {
            strcpy(text, seeds[next_random() % (sizeof seeds / sizeof *seeds)]);
            length = strlen(text);
            for (size_t k = next_random() % 3; k; k--) text[next_random() % length] = (char)(next_random() % 128);
        }
        /* On the heap at its exact size, so that a read past the end is seen. */
        char *exact = malloc(strlen(text) + 1);
        if (!exact) return;
        strcpy(exact, text);
        rf_op ops[RF_MAX_OPS];
        size_t n;
        rf_status status = rf_chain_parse(exact, ops, RF_MAX_OPS, &n);
        CHECK(status == RF_OK || status == RF_INVALID_CHAIN, "\"%s\": status %d", text, (int)status);
        free(exact);
        if (status) {
            CHECK(strncmp(rf_last_error(), "chain, ", 7) == 0, "no place in \"%s\"", rf_last_error());
        } else {
            char printed[8192];
            strcpy(printed, format(ops, n));
            round_trip(printed, printed);
            accepted++;
        }
    }
    CHECK(accepted > count / 20, "only %d of %d texts were accepted: the generator lost its use", accepted, count);
}

int main(int argc, char **argv) {
    int scale = argc > 1 ? atoi(argv[1]) : 1;
    good_text();
    bad_text();
    bad_ops();
    op_table();
    numbers(20000 * scale);
    fuzz(20000 * scale);
    static const char *const comma[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    for (size_t i = 0; i < sizeof comma / sizeof *comma; i++)
        if (setlocale(LC_ALL, comma[i])) {
            good_text();
            numbers(2000);
            break;
        }
    return failures != 0;
}
