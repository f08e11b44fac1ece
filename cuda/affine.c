/* SPDX-License-Identifier: MIT */
#include "affine.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "number.h"
#include "plan.h"

static const rfi_cuda_affine IDENTITY =
    {.a = 1, .b = -0.0f, .low = -INFINITY, .high = INFINITY, .a_vector = -1, .b_vector = -1};

/* What comes behind one another within an rfi_cuda_affine. */
typedef enum part { ARITHMETIC, BOUNDS, MEMORY } part;

/* One step as such an operator. 0 if it is none. rfi_step_affine says what a step is in exact arithmetic; this, what it
 * is bit for bit: x + -0.0 is x, bit for bit: so is a product with nothing to add. */
static int affine_of(const rfi_step *step, rfi_cuda_affine *out, part *at) {
    const float a = (float)step->a;
    const int vector = step->vector >= 0;
    *out = IDENTITY;
    *at = ARITHMETIC;
    switch (step->kind) {
    case RF_OP_MUL:
        out->a = a;
        out->a_vector = (int16_t)step->vector;
        return 1;
    case RF_OP_ADD:
        out->b = a;
        out->b_vector = (int16_t)step->vector;
        return 1;
    case RF_OP_SUB: out->b = -a; return !vector;
    case RF_OP_DIV: {
        /* By a power of two, whose reciprocal is exact. */
        int exponent;
        out->a = 1 / a;
        return !vector && fabsf(frexpf(a, &exponent)) == 0.5f && isfinite(out->a);
    }
    case RF_OP_NEG: out->a = -1; return 1;
    case RF_OP_ADD_SAVED: out->addend = RFI_CUDA_ADDS_SAVED; return 1;
    case RF_OP_SAVE:
        *at = MEMORY;
        out->saves = 1;
        return 1;
    }
    *at = BOUNDS;
    out->clamps = 1;
    switch (step->kind) {
    case RF_OP_RELU: out->low = 0; return 1;
    case RF_OP_MAXIMUM: out->low = a; return !vector;
    case RF_OP_MINIMUM: out->high = a; return !vector;
    case RF_OP_CLAMP:
    case RF_OP_HARDTANH:
        out->low = a;
        out->high = (float)step->b;
        return !vector;
    }
    return 0;
}

/* What nobody reads before it is overwritten is not saved. */
static void drop_dead_saves(rfi_cuda_affine *steps, int count) {
    int read = 0;
    for (int i = count - 1; i >= 0; i--) {
        if (steps[i].saves) {
            steps[i].saves = (int8_t)read;
            read = 0;
        }
        read |= steps[i].addend == RFI_CUDA_ADDS_SAVED;
    }
}

/* A product with a power of two from 1 on, and nothing to add: it is exact, or it overflows as any product with more of
 * them does. */
static int grows(const rfi_cuda_affine *step) {
    int exponent;
    return step->addend == RFI_CUDA_ADDS_B && step->b == 0 && signbit(step->b) && step->a_vector < 0 &&
        step->b_vector < 0 && isfinite(step->a) && fabsf(step->a) >= 1 && fabsf(frexpf(step->a, &exponent)) == 0.5f;
}

/* Such products side by side become one. The number of steps left. */
static int merge_growth(rfi_cuda_affine *steps, rfi_cuda_span *spans, int count) {
    int used = 0;
    for (int i = 0; i < count; i++) {
        rfi_cuda_affine one = steps[i];
        rfi_cuda_span span = spans[i];
        const rfi_cuda_affine *before = used ? &steps[used - 1] : NULL;
        if (before && grows(before) && !before->clamps && !before->saves && grows(&one) &&
            isfinite(before->a * one.a)) {
            one.a *= before->a;
            span.first = spans[--used].first;
        }
        spans[used] = span;
        steps[used++] = one;
    }
    return used;
}

int rfi_cuda_affine_steps(const rfi_steps *steps, rfi_cuda_affine *out, rfi_cuda_span *spans) {
    int used = 0, current = 0; /* whether the value is the one last saved */
    part last = MEMORY;        /* nothing fits behind what is not there */
    rfi_cuda_span own[RF_MAX_OPS];
    if (!spans) spans = own;
    for (int i = 0; i < steps->count; i++) {
        rfi_cuda_affine one;
        part at;
        if (steps->at[i].row || !affine_of(&steps->at[i], &one, &at)) return 0;
        if (current && one.addend == RFI_CUDA_ADDS_SAVED) one = IDENTITY, one.a = 2; /* v + v */
        current = at == MEMORY;
        if (!used || at <= last) {
            spans[used].first = i;
            out[used++] = one;
        } else {
            rfi_cuda_affine *to = &out[used - 1];
            if (at == BOUNDS) to->low = one.low, to->high = one.high, to->clamps = 1;
            else to->saves = 1;
        }
        spans[used - 1].last = i;
        last = at;
    }
    drop_dead_saves(out, used);
    return merge_growth(out, spans, used);
}

/* Text behind what is there, as far as there is room. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size, const char *format, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

/* "v * 4 + saved, at least -10, at most 10, saved" */
static void describe(const rfi_plan *plan, const rfi_cuda_affine *step, char *text, size_t size) {
    char number[RFI_NUMBER_TEXT];
    snprintf(text, size, "v");
    if (step->a_vector >= 0) append(text, size, " * @%.40s", plan->vectors[step->a_vector]);
    else if (step->a != 1) append(text, size, " * %s", rfi_number_format(step->a, number));
    if (step->addend == RFI_CUDA_ADDS_SAVED) append(text, size, " + saved");
    else if (step->b_vector >= 0) append(text, size, " + @%.40s", plan->vectors[step->b_vector]);
    else if (step->b != 0 || !signbit(step->b)) append(text, size, " + %s", rfi_number_format(step->b, number));
    if (step->clamps && step->low != -INFINITY)
        append(text, size, ", at least %s", rfi_number_format(step->low, number));
    if (step->clamps && step->high != INFINITY)
        append(text, size, ", at most %s", rfi_number_format(step->high, number));
    if (step->saves) append(text, size, ", saved");
}

static int knows(const rfi_rewrites *log, const rfi_rewrite *entry) {
    for (int i = 0; i < log->count; i++)
        if (log->at[i].first == entry->first && log->at[i].last == entry->last && !strcmp(log->at[i].text, entry->text))
            return 1;
    return 0;
}

void rfi_cuda_affine_tell(const rfi_plan *plan, const rfi_steps *steps, rfi_rewrites *log) {
    rfi_cuda_affine affine[RF_MAX_OPS];
    rfi_cuda_span spans[RF_MAX_OPS];
    const int count = rfi_cuda_affine_steps(steps, affine, spans);
    for (int i = 0; i < count && log->count < RFI_MAX_REWRITES; i++) {
        const int last = spans[i].last - (steps->at[spans[i].last].source < 0); /* a pass's own step is no operator */
        if (last < spans[i].first) continue;
        rfi_rewrite *entry = &log->at[log->count];
        *entry = (rfi_rewrite){
            .rule = "multiply_add", .first = steps->at[spans[i].first].source, .last = steps->at[last].source};
        describe(plan, &affine[i], entry->text, sizeof entry->text);
        log->count += !knows(log, entry);
    }
}
