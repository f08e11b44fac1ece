/* SPDX-License-Identifier: MIT */
/* The rewrites. A rule looks at one place of a list of steps and proposes an edit; the loop at the end applies edits
 * until no rule has one.
 *
 * The type the steps will be computed in is not known here, so an exact rule keeps every bit in float32 and in float64
 * alike; parameters of a float32 model are rounded to float32 first. Which NaN a NaN is does not count. */
#include "rewrite.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ops.h"

/* Powers of two up to here, and their reciprocals, are normal numbers of either type. */
#define LARGEST_FACTOR 0x1p126
#define SMALLEST_NORMAL 0x1p-126

/* The list, and the chain that it came from. */
typedef struct phase {
    const rfi_chain *chain;
    const rfi_step *steps;
    int count;
} phase;

typedef struct edit {
    int replace; /* index of the step that becomes `with`, or -1 */
    rfi_step with;
    int remove[2];   /* indices of steps that go, the later first; -1 for none */
    int first, last; /* as in rfi_rewrite */
    char text[160];
} edit;

static int is_scalar(const rfi_step *step, int kind) { return step->kind == kind && rfi_step_is_scalar(step); }
static int is_power_of_two(double v) {
    int exponent;
    return isfinite(v) && fabs(frexp(v, &exponent)) == 0.5;
}
static int is_plus_zero(double v) { return v == 0 && !signbit(v); }

/* Step i goes. */
__attribute__((format(printf, 4, 5))) static int drop(const phase *p, int i, edit *e, const char *why, ...) {
    char op[RFI_OP_TEXT], reason[100];
    va_list args;
    va_start(args, why);
    vsnprintf(reason, sizeof reason, why, args);
    va_end(args);
    e->remove[0] = i;
    e->first = e->last = p->steps[i].source;
    snprintf(e->text, sizeof e->text, "%.50s removed: %.95s", rfi_step_format(p->chain, &p->steps[i], op), reason);
    return 1;
}

/* Step i becomes `with`, and stays where it was. */
static int turn(const phase *p, int i, rfi_step with, edit *e) {
    char before[RFI_OP_TEXT], after[RFI_OP_TEXT];
    with.source = p->steps[i].source;
    e->replace = i;
    e->with = with;
    e->first = e->last = with.source;
    snprintf(e->text, sizeof e->text, "%.70s became %.70s", rfi_step_format(p->chain, &p->steps[i], before),
        rfi_step_format(p->chain, &with, after));
    return 1;
}

/* Steps i and i + 1 become the one step `with` at the place of the first. */
static int merge(const phase *p, int i, rfi_step with, edit *e) {
    char one[RFI_OP_TEXT], two[RFI_OP_TEXT], after[RFI_OP_TEXT];
    with.source = p->steps[i].source;
    e->replace = i;
    e->with = with;
    e->remove[0] = i + 1;
    e->first = with.source;
    e->last = p->steps[i + 1].source;
    snprintf(e->text, sizeof e->text, "%.48s and %.48s became %.48s", rfi_step_format(p->chain, &p->steps[i], one),
        rfi_step_format(p->chain, &p->steps[i + 1], two), rfi_step_format(p->chain, &with, after));
    return 1;
}

static rfi_step plain_step(int kind, double a, double b) {
    return (rfi_step){.kind = kind, .vector = -1, .a = a, .b = b};
}

static int width_one_reduction(const phase *p, int i, edit *e) {
    if (rfi_op_find(p->steps[i].kind)->op_class != RF_CLASS_REDUCTION) return 0;
    switch (rfi_reduction_width_one(p->steps[i].kind)) {
    case RFI_WIDTH_ONE_SAME: return drop(p, i, e, "over 1 column it is the column");
    case RFI_WIDTH_ONE_PLUS_ZERO:
        turn(p, i, plain_step(RF_OP_ADD, 0, 0), e);
        snprintf(e->text, sizeof e->text, "%s over 1 column became add(0): it only turns -0 into +0",
            rfi_op_find(p->steps[i].kind)->name);
        return 1;
    default: return 0;
    }
}

/* x + 0 differs from x at -0 alone: nothing is lost if the next step makes the same of both zeros. Asked of the formula
 * itself. */
static int zero_sign(const phase *p, int i, edit *e) {
    if (!is_scalar(&p->steps[i], RF_OP_ADD) || !is_plus_zero(p->steps[i].a) || i + 1 == p->count) return 0;
    const rfi_step *next = &p->steps[i + 1];
    if (!rfi_step_is_scalar(next) || (rfi_op_find(next->kind)->flags & RFI_OPF_READS_SAVED)) return 0;
    float f[2] = {rfi_op_apply_f32(next->kind, 0.0f, (float)next->a, (float)next->b, 0),
        rfi_op_apply_f32(next->kind, -0.0f, (float)next->a, (float)next->b, 0)};
    double d[2] = {rfi_op_apply_f64(next->kind, 0.0, next->a, next->b, 0),
        rfi_op_apply_f64(next->kind, -0.0, next->a, next->b, 0)};
    if (memcmp(&f[0], &f[1], sizeof *f) || memcmp(&d[0], &d[1], sizeof *d)) return 0;
    char text[RFI_OP_TEXT];
    return drop(
        p, i, e, "it only clears the sign of -0, and %.30s does not see that", rfi_step_format(p->chain, next, text));
}

static int identity(const phase *p, int i, edit *e) {
    const rfi_step *step = &p->steps[i];
    int same = 0;
    if (!rfi_step_is_scalar(step)) return 0;
    switch (step->kind) {
    case RF_OP_MUL:
    case RF_OP_DIV: same = step->a == 1; break;
    case RF_OP_SUB: same = is_plus_zero(step->a); break;
    case RF_OP_ADD: same = step->a == 0 && signbit(step->a); break; /* -0 + 0 is +0, but -0 + -0 is -0 */
    case RF_OP_MAXIMUM: same = step->a == -INFINITY; break;
    case RF_OP_MINIMUM: same = step->a == INFINITY; break;
    case RF_OP_CLAMP:
    case RF_OP_HARDTANH: same = step->a == -INFINITY && step->b == INFINITY; break;
    }
    return same ? drop(p, i, e, "it changes nothing") : 0;
}

/* Bounds of a step that clamps. Refuses NaN, and bounds that are -0 or might round to it: which zero comes out of a tie
 * is the backend's affair. */
static int clamp_bounds(const rfi_step *step, double bounds[2]) {
    if (!rfi_step_is_scalar(step)) return 0;
    bounds[0] = step->kind == RF_OP_MINIMUM ? -INFINITY : step->a;
    bounds[1] = step->kind == RF_OP_MAXIMUM ? INFINITY : step->kind == RF_OP_MINIMUM ? step->a : step->b;
    for (int i = 0; i < 2; i++)
        if (!is_plus_zero(bounds[i]) && !(fabs(bounds[i]) >= SMALLEST_NORMAL)) return 0;
    return step->kind == RF_OP_CLAMP || step->kind == RF_OP_HARDTANH || step->kind == RF_OP_MINIMUM ||
        step->kind == RF_OP_MAXIMUM;
}

/* The second clamp of the first one's bounds: monotone, so their images bound the image of everything. Crossed bounds
 * mean the upper one. */
static int clamp_of_clamp(const phase *p, int i, edit *e) {
    double one[2], two[2], both[2];
    if (i + 1 == p->count || !clamp_bounds(&p->steps[i], one) || !clamp_bounds(&p->steps[i + 1], two)) return 0;
    if (one[0] > one[1]) one[0] = one[1];
    for (int k = 0; k < 2; k++) both[k] = fmin(fmax(one[k], two[0]), two[1]);
    return merge(p, i, plain_step(RF_OP_CLAMP, both[0], both[1]), e);
}

/* The second of two equal steps finds nothing to do. */
static int repeated(const phase *p, int i, int kind, edit *e) {
    if (i + 1 == p->count || p->steps[i].kind != kind || p->steps[i + 1].kind != kind) return 0;
    drop(p, i + 1, e, "it changes nothing behind another");
    e->first = p->steps[i].source;
    return 1;
}
static int relu_of_relu(const phase *p, int i, edit *e) { return repeated(p, i, RF_OP_RELU, e); }
static int abs_of_abs(const phase *p, int i, edit *e) { return repeated(p, i, RF_OP_ABS, e); }

static int neg_of_neg(const phase *p, int i, edit *e) {
    if (i + 1 == p->count || p->steps[i].kind != RF_OP_NEG || p->steps[i + 1].kind != RF_OP_NEG) return 0;
    e->remove[0] = i + 1;
    e->remove[1] = i;
    e->first = p->steps[i].source;
    e->last = p->steps[i + 1].source;
    snprintf(e->text, sizeof e->text, "neg and neg removed: together they change nothing");
    return 1;
}

/* x + x has the bits of 2 x, also where it overflows; x * x is square. The save is left to dead_save. */
static int saved_at_once(const phase *p, int i, int kind, rfi_step with, edit *e) {
    if (i + 1 == p->count || p->steps[i].kind != RF_OP_SAVE || p->steps[i + 1].kind != kind) return 0;
    turn(p, i + 1, with, e);
    e->first = p->steps[i].source;
    return 1;
}
static int double_(const phase *p, int i, edit *e) {
    return saved_at_once(p, i, RF_OP_ADD_SAVED, plain_step(RF_OP_MUL, 2, 0), e);
}
static int square(const phase *p, int i, edit *e) {
    return saved_at_once(p, i, RF_OP_MUL_SAVED, plain_step(RF_OP_SQUARE, 0, 0), e);
}

static int dead_save(const phase *p, int i, edit *e) {
    if (p->steps[i].kind != RF_OP_SAVE) return 0;
    for (int j = i + 1; j < p->count && p->steps[j].kind != RF_OP_SAVE; j++)
        if (rfi_op_find(p->steps[j].kind)->flags & RFI_OPF_READS_SAVED) return 0;
    return drop(p, i, e, "nothing reads it");
}

/* Both are the same real number rounded once, for a reciprocal that is exact in either type. */
static int div_power_of_two(const phase *p, int i, edit *e) {
    const rfi_step *step = &p->steps[i];
    if (!is_scalar(step, RF_OP_DIV) || !is_power_of_two(step->a) || fabs(step->a) > LARGEST_FACTOR ||
        fabs(step->a) < 1 / LARGEST_FACTOR)
        return 0;
    return turn(p, i, plain_step(RF_OP_MUL, 1 / step->a, 0), e);
}

static int factor_of(const rfi_step *step, double *factor) {
    *factor = step->kind == RF_OP_NEG ? -1 : step->a;
    return step->kind == RF_OP_NEG || is_scalar(step, RF_OP_MUL);
}

/* Two factors are one if no rounding lies between them. A factor of -1 never rounds. A power of two of at least 1 is
 * exact up to overflow, and what has overflowed stays infinite; below 1 the first product might be subnormal and round,
 * and then round again. */
static int power_of_two(const phase *p, int i, edit *e) {
    double one, two;
    if (i + 1 == p->count || !factor_of(&p->steps[i], &one) || !factor_of(&p->steps[i + 1], &two)) return 0;
    int sign = one == -1 || two == -1;
    int scale = is_power_of_two(one) && is_power_of_two(two) && fabs(one) >= 1 && fabs(two) >= 1 &&
        fabs(one * two) <= LARGEST_FACTOR;
    if (!sign && !scale) return 0;
    return merge(p, i, one * two == -1 ? plain_step(RF_OP_NEG, 0, 0) : plain_step(RF_OP_MUL, one * two, 0), e);
}

static const struct rule {
    const char *name;
    int (*match)(const phase *p, int i, edit *e); /* proposes an edit at step i */
} rules[] = {
    {"width_one_reduction", width_one_reduction},
    {"identity", identity},
    {"zero_sign", zero_sign},
    {"clamp_of_clamp", clamp_of_clamp},
    {"relu_of_relu", relu_of_relu},
    {"abs_of_abs", abs_of_abs},
    {"neg_of_neg", neg_of_neg},
    {"double", double_},
    {"square", square},
    {"dead_save", dead_save},
    {"div_power_of_two", div_power_of_two},
    {"power_of_two", power_of_two},
};
enum { NUM_RULES = sizeof rules / sizeof *rules };

static void record(rfi_rewrites *log, const struct rule *rule, const edit *e) {
    rfi_rewrite *rewrite = &log->at[log->count++];
    *rewrite = (rfi_rewrite){.rule = rule->name, .first = e->first, .last = e->last};
    memcpy(rewrite->text, e->text, sizeof rewrite->text);
}

/* One edit somewhere in the list, if any rule has one. */
static int rewrite_once(const rfi_chain *chain, rfi_steps *list, rfi_rewrites *log) {
    rfi_step *steps = list->at;
    const phase p = {chain, steps, list->count};
    for (int i = 0; i < list->count; i++)
        for (int r = 0; r < NUM_RULES; r++) {
            edit e = {.replace = -1, .remove = {-1, -1}};
            if (!rules[r].match(&p, i, &e)) continue;
            if (e.replace >= 0) steps[e.replace] = e.with;
            for (int k = 0; k < 2 && e.remove[k] >= 0; k++) {
                memmove(&steps[e.remove[k]], &steps[e.remove[k] + 1],
                    (size_t)(list->count - e.remove[k] - 1) * sizeof *steps);
                list->count--;
            }
            /* The last place of the log is for what concerns the whole plan. */
            if (log && log->count < RFI_MAX_REWRITES - 1) record(log, &rules[r], &e);
            return 1;
        }
    return 0;
}

void rfi_rewrite_steps(const rfi_chain *chain, rfi_steps *steps, rfi_rewrites *log) {
    while (rewrite_once(chain, steps, log)) {}
}
