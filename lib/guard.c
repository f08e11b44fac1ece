/* SPDX-License-Identifier: MIT */
#include "guard.h"

#include <pthread.h>

#if defined __x86_64__ || defined __SSE__
enum { MXCSR_DEFAULT = 0x1f80, X87_DEFAULT = 0x37f }; /* nearest even, subnormals, no traps; x87: full precision */

static rfi_fp_mode default_mode(void) {
    rfi_fp_mode before;
    uint16_t x87 = X87_DEFAULT;
    before.mxcsr = __builtin_ia32_stmxcsr();
    __asm__ volatile("fnstcw %0" : "=m"(before.x87));
    __builtin_ia32_ldmxcsr(MXCSR_DEFAULT);
    if (before.x87 != x87) __asm__ volatile("fldcw %0" : : "m"(x87));
    return before;
}

static void restore_mode(const rfi_fp_mode *before) {
    __builtin_ia32_ldmxcsr(before->mxcsr);
    /* An exception that was noted in here and that the caller traps would trap at the caller's next x87 instruction. */
    if (before->x87 != X87_DEFAULT) __asm__ volatile("fnclex\n\tfldcw %0" : : "m"(before->x87));
}
#elif defined __aarch64__
static rfi_fp_mode default_mode(void) {
    rfi_fp_mode before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before.fpcr));
    if (before.fpcr) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return before;
}

static void restore_mode(const rfi_fp_mode *before) {
    if (before->fpcr) __asm__ volatile("msr fpcr, %0" : : "r"(before->fpcr));
}
#else
static rfi_fp_mode default_mode(void) {
    rfi_fp_mode before;
    fegetenv(&before.environment);
    fesetenv(FE_DFL_ENV);
    return before;
}

static void restore_mode(const rfi_fp_mode *before) { fesetenv(&before->environment); }
#endif

rfi_guard rfi_guard_enter(void) {
    rfi_guard guard;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &guard.cancellable);
    guard.mode = default_mode();
    return guard;
}

void rfi_guard_leave(rfi_guard *guard) {
    int disabled;
    restore_mode(&guard->mode);
    pthread_setcancelstate(guard->cancellable, &disabled);
}
