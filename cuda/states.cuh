/* The state of a row on the device, of reductions with one total: see lib/states.h. */
#ifndef ROWFOLD_CUDA_STATES_CUH
#define ROWFOLD_CUDA_STATES_CUH

#include "ops.h"

typedef struct rfi_state_f32 {
    float m, t;
} rfi_state_f32;

typedef struct rfi_state_f64 {
    double m, t;
} rfi_state_f64;

RFI_FN rfi_state_f32 rfi_state_empty_f32(int kind) {
    rfi_state_f32 state = {0, 0};
    switch (kind) {
#define RFI_REDUCTION(id, number, ...) \
    case number: state.m = rfi_peak0_##id##_f32(); break;
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return state;
}

RFI_FN rfi_state_f32 rfi_state_merge_f32(int kind, rfi_state_f32 p, rfi_state_f32 q) {
    switch (kind) {
#define RFI_REDUCTION(id, number, ...)                                                               \
    case number: {                                                                                   \
        const float m = rfi_peak_##id##_f32(p.m, q.m);                                               \
        return {m, p.t * rfi_factor_##id##_f32(0, p.m, m) + q.t * rfi_factor_##id##_f32(0, q.m, m)}; \
    }
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return p;
}

RFI_FN float rfi_state_finish_f32(int kind, rfi_state_f32 p, float n) {
    switch (kind) {
#define RFI_REDUCTION(id, number, ...) \
    case number: return rfi_finish_##id##_f32(p.m, p.t, 0, n, 0);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return p.t;
}

RFI_FN double rfi_state_finish_f64(int kind, rfi_state_f64 p, double n) {
    switch (kind) {
#define RFI_REDUCTION(id, number, ...) \
    case number: return rfi_finish_##id##_f64(p.m, p.t, 0, n, 0);
#include "reductions.def"
#undef RFI_REDUCTION
    }
    return p.t;
}

#endif
