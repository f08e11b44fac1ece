/* SPDX-License-Identifier: MIT */
/* Cheap steps as one operator: the bits of one step after the other, on every kind of value. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "ops.h"
#include "random.h"
#include "plan.h"
#include "../../cuda/affine.h"

/* The steps of an array as operators. */
static int affine_steps(const rfi_step *at, int count, rfi_cuda_affine *out, rfi_cuda_span *spans) {
    rfi_steps steps = {.count = count};
    memcpy(steps.at, at, (size_t)count * sizeof *at);
    return rfi_cuda_affine_steps(&steps, out, spans);
}

static float evaluate(const rfi_cuda_affine *steps, int count, float v) {
    float saved = 0;
    for (int i = 0; i < count; i++) {
        const rfi_cuda_affine *s = &steps[i];
        v = fmaf(v, s->a, s->addend == RFI_CUDA_ADDS_SAVED ? saved : s->b);
        if (s->clamps) v = rfi_minn_f32(rfi_maxn_f32(v, s->low), s->high);
        if (s->saves) saved = v;
    }
    return v;
}

static float one_by_one(const rfi_step *steps, int count, float v) {
    float saved = 0;
    for (int i = 0; i < count; i++) {
        v = rfi_op_apply_f32(steps[i].kind, v, (float)steps[i].a, (float)steps[i].b, saved);
        if (steps[i].kind == RF_OP_SAVE) saved = v;
    }
    return v;
}

/* Any NaN is as good as another; behind a bound, so is either zero. */
static int same(float a, float b, int bounded) {
    return (isnan(a) && isnan(b)) || (a == b && (bounded || !signbit(a) == !signbit(b)));
}

static const float values[] = {0, -0.0f, 1, -1, 2, 0.5f, 0x1p100f, 0.1f, -7.3f, 3e38f, -3e38f, 1e-40f, -1e-45f,
    INFINITY, -INFINITY, NAN, 16777218, 1e-8f, 2.5f};
static const rf_op_kind kinds[] = {RF_OP_MUL, RF_OP_ADD, RF_OP_SUB, RF_OP_DIV, RF_OP_NEG, RF_OP_SAVE, RF_OP_ADD_SAVED,
    RF_OP_RELU, RF_OP_MAXIMUM, RF_OP_MINIMUM, RF_OP_CLAMP, RF_OP_HARDTANH};

static void test_random_chains(void) {
    enum { COUNT = 6 };
    for (int round = 0; round < 50000; round++) {
        rfi_step steps[COUNT];
        rfi_cuda_affine affine[COUNT];
        const int count = 1 + (int)(next_random() % COUNT);
        for (int i = 0; i < count; i++) {
            steps[i] = (rfi_step){.kind = kinds[next_random() % (sizeof kinds / sizeof *kinds)], .vector = -1};
            steps[i].a = values[next_random() % (sizeof values / sizeof *values)];
            steps[i].b = values[next_random() % (sizeof values / sizeof *values)];
            if (steps[i].kind == RF_OP_DIV)
                steps[i].a = ldexp(next_random() % 2 ? 1 : -1, (int)(next_random() % 200) - 100);
        }
        rfi_cuda_span spans[COUNT];
        const int used = affine_steps(steps, count, affine, spans);
        int bounded = 0, next = 0;
        for (int i = 0; i < used; i++) {
            CHECK(spans[i].first == next && spans[i].last >= next, "operator %d from %d to %d", i, spans[i].first,
                spans[i].last);
            next = spans[i].last + 1;
        }
        CHECK(next == count, "operators of %d of %d steps", next, count);
        for (int i = 0; i < used; i++) bounded |= affine[i].clamps;
        CHECK(used >= 1 && used <= count, "%d of %d steps", used, count);
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            const float expected = one_by_one(steps, count, values[i]), got = evaluate(affine, used, values[i]);
            CHECK(same(got, expected, bounded), "chain %d of %d steps at %g: %.9g, expected %.9g", round, count,
                values[i], got, expected);
        }
    }
}

static void test_what_is_merged(void) {
    rfi_cuda_affine affine[4];
    const rfi_step scale_clamp[] = {{RF_OP_MUL, -1, 2, 0, 0, 0}, {RF_OP_SAVE, -1, 0, 0, 0, 0},
        {RF_OP_ADD_SAVED, -1, 0, 0, 0, 0}, {RF_OP_CLAMP, -1, -10, 10, 0, 0}};
    CHECK(affine_steps(scale_clamp, 4, affine, NULL) == 1, "products with powers of two, of which one is v + v");
    CHECK(affine[0].a == 4 && affine[0].clamps && !affine[0].saves, "their product, bounded");
    const rfi_step falls[] = {{RF_OP_MUL, -1, 2, 0, 0, 0}, {RF_OP_MUL, -1, 0.5, 0, 0, 0}, {RF_OP_MUL, -1, 2, 0, 0, 0},
        {RF_OP_MUL, -1, 3, 0, 0, 0}};
    CHECK(affine_steps(falls, 4, affine, NULL) == 4, "what overflows must not come back");
    const rfi_step apart[] = {{RF_OP_SAVE, -1, 0, 0, 0, 0}, {RF_OP_MUL, -1, 2, 0, 0, 0},
        {RF_OP_ADD_SAVED, -1, 0, 0, 0, 0}, {RF_OP_SAVE, -1, 0, 0, 0, 0}};
    CHECK(affine_steps(apart, 4, affine, NULL) == 3 && affine[0].saves && affine[2].addend == RFI_CUDA_ADDS_SAVED &&
            !affine[2].saves,
        "what is read later is kept");
    const rfi_step vectors[] = {{RF_OP_MUL, 1, 0, 0, 0, 0}, {RF_OP_ADD, 0, 0, 0, 0, 0}, {RF_OP_RELU, -1, 0, 0, 0, 0}};
    CHECK(affine_steps(vectors, 3, affine, NULL) == 2 && affine[0].a_vector == 1 && affine[1].b_vector == 0 &&
            affine[1].clamps,
        "vectors; a product and a sum are rounded apart");
}

static void test_others(void) {
    static const rfi_step others[] = {
        {RF_OP_GELU, -1, 0, 0, 0, 0},
        {RF_OP_DIV, -1, 3, 0, 0, 0},
        {RF_OP_DIV, -1, 1e-39, 0, 0, 0},
        {RF_OP_DIV, -1, 0, 0, 0, 0},
        {RF_OP_MUL_SAVED, -1, 0, 0, 0, 0},
        {RF_OP_SUB, 0, 0, 0, 0, 0},
        {RF_OP_DIV, 0, 2, 0, 0, 0},
        {RF_OP_MINIMUM, 0, 0, 0, 0, 0},
        {RF_OP_LEAKY_RELU, -1, 0.5, 0, 0, 0},
    };
    rfi_cuda_affine affine[2];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const rfi_step steps[] = {{RF_OP_NEG, -1, 0, 0, 0, 0}, others[i]};
        CHECK(affine_steps(steps, 2, affine, NULL) == 0, "step of kind %d, number %zu", others[i].kind, i);
    }
    CHECK(affine_steps(others, 0, affine, NULL) == 0, "no steps");
}

/* What explain says of a chain, without rewrites; `turned`: of a pass that turns the sign. */
static void expect_lines(const char *text, int turned, int count, const char *const *lines) {
    rfi_chain chain;
    rfi_plan plan;
    rfi_rewrites log = {.count = 0};
    rf_status status = rfi_chain_from_text(text, &chain);
    if (!status) status = rfi_chain_set_size(&chain, 64, 96);
    if (!status) status = rfi_plan_make(&chain, RF_SIMPLIFY_NONE, &plan, NULL);
    CHECK(!status, "%s: %s", text, rf_last_error());
    rfi_steps steps = plan.trunk;
    if (turned) steps.at[steps.count++] = (rfi_step){.kind = RF_OP_MUL, .vector = -1, .a = -1, .source = -1};
    for (int twice = 0; twice < 2; twice++) rfi_cuda_affine_tell(&plan, &steps, &log);
    CHECK(log.count == count, "%s: %d lines, expected %d", text, log.count, count);
    for (int i = 0; i < log.count && i < count; i++) {
        char line[200];
        const rfi_rewrite *entry = &log.at[i];
        snprintf(line, sizeof line, "%d-%d %s: %s", entry->first, entry->last, entry->rule, entry->text);
        CHECK(!strcmp(line, lines[i]) && !entry->algebraic, "%s: \"%s\", expected \"%s\"", text, line, lines[i]);
    }
}

#define EXPECT(text, turned, ...)                                               \
    do {                                                                        \
        const char *const lines[] = {__VA_ARGS__};                              \
        expect_lines(text, turned, (int)(sizeof lines / sizeof *lines), lines); \
    } while (0)

static void test_what_is_told(void) {
    EXPECT("linear | mul(2) | save | add_saved | clamp(-10, 10) | logsumexp", 0,
        "1-4 multiply_add: v * 4, at least -10, at most 10");
    EXPECT("linear | mul(@s) | save | sub(3) | add_saved | relu | max", 0, "1-2 multiply_add: v * @s, saved",
        "3-3 multiply_add: v + -3", "4-5 multiply_add: v + saved, at least 0");
    EXPECT("linear | add(@b) | minimum(4) | max", 0, "1-2 multiply_add: v + @b, at most 4");
    EXPECT("linear | add(0) | save | max", 0, "1-2 multiply_add: v + 0");
    EXPECT("linear | mul(2) | argmin", 1, "1-1 multiply_add: v * -2");
    EXPECT("linear | add(2) | argmin", 1, "1-1 multiply_add: v + 2");
    expect_lines("linear | mul(2) | gelu | max", 0, 0, NULL);
    expect_lines("linear | max", 0, 0, NULL);
    expect_lines("linear | argmin", 1, 0, NULL);
}

int main(void) {
    test_random_chains();
    test_what_is_merged();
    test_others();
    test_what_is_told();
    return failures != 0;
}
