/* SPDX-License-Identifier: MIT */
/* What a public call keeps away from the library while it is in it, and gives back as it was. */
#ifndef ROWFOLD_GUARD_H
#define ROWFOLD_GUARD_H

#include <fenv.h>
#include <stdint.h>

/* How the thread rounds, and whether it takes subnormals for zeros. */
typedef struct rfi_fp_mode {
#if defined __x86_64__ || defined __SSE__
    uint32_t mxcsr;
    uint16_t x87;
#elif defined __aarch64__
    uint64_t fpcr;
#else
    fenv_t environment;
#endif
} rfi_fp_mode;

typedef struct rfi_guard {
    rfi_fp_mode mode;
    int cancellable;
} rfi_guard;

/* The default floating-point mode: the same input gives the same bits whatever mode the calling thread is in, and
 * threads that the call starts inherit this one. No cancellation: a thread that ended inside would keep locks, memory
 * and descriptors, and leave other threads with pointers to its stack. Functions of a file of their own, so that the
 * compiler moves no arithmetic past them. */
rfi_guard rfi_guard_enter(void);
void rfi_guard_leave(rfi_guard *guard);

/* As the first declaration of a function: holds until it returns, wherever that is. */
#define RFI_GUARDED rfi_guard guard_ __attribute__((cleanup(rfi_guard_leave), unused)) = rfi_guard_enter()

#endif
