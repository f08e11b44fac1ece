#include "affine.h"

#include <math.h>

#include "plan.h"

static const rfi_cuda_affine IDENTITY = {.a = 1, .b = -0.0f, .low = -INFINITY, .high = INFINITY, .a_vector = -1, .b_vector = -1};

/* What comes behind one another within an rfi_cuda_affine. */
typedef enum part { ARITHMETIC, BOUNDS, MEMORY } part;

/* One step as such an operator. 0 if it is none. rfi_step_affine says what a step is in exact arithmetic; this, what it is bit for bit: x + -0.0 is x, bit for bit: so is a product with nothing to add. */
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
    case RF_OP_ADD_SAVED: out->adds_saved = 1; return 1;
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

int rfi_cuda_affine_steps(const rfi_step *steps, int count, rfi_cuda_affine *out) {
    int used = 0;
    part last = MEMORY; /* nothing fits behind what is not there */
    for (int i = 0; i < count; i++) {
        rfi_cuda_affine one;
        part at;
        if (!affine_of(&steps[i], &one, &at)) return 0;
        if (!used || at <= last) {
            out[used++] = one;
        } else {
            rfi_cuda_affine *to = &out[used - 1];
            if (at == BOUNDS) to->low = one.low, to->high = one.high, to->clamps = 1;
            else to->saves = 1;
        }
        last = at;
    }
    return used;
}
