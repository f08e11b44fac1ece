/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "cpu/features.h"

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config.h"
#include "cpu/kernel.h"

#if defined RFI_BUILD_AVX2 || defined RFI_BUILD_AVX512
#include <cpuid.h>

/* __builtin_cpu_supports also asks the operating system whether it saves the wide registers, but not every compiler
 * lets it ask for F16C. */
static int has_f16c(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

#ifdef RFI_BUILD_AVX512_BF16
static int has_bf16(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 5);
}
#endif

#ifdef RFI_BUILD_AMX_FP16
static int has_amx_fp16(void) {
    enum { FP16 = 1 << 21 };
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & FP16);
}
#endif

#ifdef RFI_BUILD_AMX
static int has_amx_bf16(void) {
    enum { BF16 = 1 << 22, TILE = 1 << 24 };
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & BF16) && (edx & TILE);
}

/* Linux saves the tiles, 8 KiB a thread, only for a process that has asked for it, once for all its threads. From then
 * on it refuses signal stacks that are too small for them. */
static const char *refusal_of_tiles(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    if (!syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA)) return NULL;
    return errno == ENOSPC ? "the kernel refuses AMX's tiles: a thread's alternate signal stack is too small for them"
        : errno == EINVAL  ? "this kernel has no permission for AMX's tiles to give (Linux has from 5.16 on)"
        : errno == EOPNOTSUPP ? "the kernel does not support AMX's tiles on this processor"
                              : "the kernel refuses AMX's tiles to this process";
}
#endif

static int has_avx2_fma_f16c(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#endif

int rfi_cpu_has_avx2(const char **reason) {
#ifdef RFI_BUILD_AVX2
    *reason = "this processor lacks AVX2, FMA or F16C";
    return has_avx2_fma_f16c();
#else
    *reason = "this build has no AVX2 kernels";
    return 0;
#endif
}

int rfi_cpu_has_avx512(const char **reason) {
#ifdef RFI_BUILD_AVX512
    *reason = "this processor lacks AVX-512 F, BW, VL or DQ";
    return has_avx2_fma_f16c() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
    *reason = "this build has no AVX-512 kernels";
    return 0;
#endif
}

int rfi_cpu_has_avx512_bf16(const char **reason) {
#ifdef RFI_BUILD_AVX512_BF16
    if (!rfi_cpu_has_avx512(reason)) return 0;
    *reason = "this processor lacks AVX512-BF16";
    if (!has_bf16()) return 0;
    *reason = "this processor's products of bfloat16 are not rounded as Intel's manual says";
    return rfi_cpu_pairs_as_documented_avx512_bf16();
#else
    *reason = "this build has no AVX512-BF16 kernels";
    return 0;
#endif
}

int rfi_cpu_prefers_avx512_bf16(void) {
#ifdef RFI_BUILD_AVX512_BF16
    /* On Intel's it takes four times as long as one (doc/kernels/cpu.md 16). */
    return !__builtin_cpu_is("intel");
#else
    return 0;
#endif
}

int rfi_cpu_has_avx512_tiles(const char **reason) {
#ifdef RFI_BUILD_AVX512_BF16
    if (!rfi_cpu_has_avx512(reason)) return 0;
    *reason = "this processor lacks AVX512-BF16";
    return has_bf16();
#else
    *reason = "this build has no AVX512-BF16 kernels";
    return 0;
#endif
}

int rfi_cpu_has_amx_bf16(const char **reason) {
#ifdef RFI_BUILD_AMX
    if (!rfi_cpu_has_avx512_tiles(reason)) return 0;
    *reason = "this processor lacks AMX-BF16";
    if (!has_amx_bf16()) return 0;
    if ((*reason = refusal_of_tiles())) return 0;
    *reason = "this processor's tiles of bfloat16 are not added as Intel's manual says";
    return rfi_cpu_tiles_as_documented_amx_bf16();
#else
    *reason = "this build has no AMX kernels";
    return 0;
#endif
}

int rfi_cpu_has_amx_fp16(const char **reason) {
#ifdef RFI_BUILD_AMX_FP16
    if (!rfi_cpu_has_amx_bf16(reason)) return 0;
    *reason = "this processor lacks AMX-FP16";
    if (!has_amx_fp16()) return 0;
    *reason = "this processor's tiles of float16 are not added as Intel's manual says";
    return rfi_cpu_tiles_as_documented_amx_fp16();
#else
    *reason = "this build has no AMX-FP16 kernels";
    return 0;
#endif
}

int rfi_cpu_has_amx_terms(const char **reason) {
#ifdef RFI_BUILD_AMX
    if (!rfi_cpu_has_amx_bf16(reason)) return 0;
    *reason = "this processor's tiles of terms are not added as multiply-adds are";
    return rfi_cpu_terms_as_documented_amx();
#else
    *reason = "this build has no AMX kernels";
    return 0;
#endif
}

int rfi_cpu_reads_ahead(void) {
#ifdef __x86_64__
    return __builtin_cpu_is("amd"); /* Zen 4 does, a Xeon does not (doc/kernels/cpu.md 43, 57) */
#else
    return 0;
#endif
}

int rfi_cpu_cores(void) {
    cpu_set_t set;
    /* The set is too small for a kernel that knows of more than 1024 processors. */
    long count = sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    return count < 1 ? 1 : count < RFI_CPU_MAX_THREADS ? (int)count : RFI_CPU_MAX_THREADS;
}
