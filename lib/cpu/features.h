/* SPDX-License-Identifier: MIT */
/* What this processor and its operating system offer. */
#ifndef ROWFOLD_CPU_FEATURES_H
#define ROWFOLD_CPU_FEATURES_H

/* Each says whether the kernels of that name can run here; if not, *reason is a sentence in static storage. */
int rfi_cpu_has_avx2(const char **reason);
int rfi_cpu_has_avx512(const char **reason);
int rfi_cpu_has_avx512_bf16(const char **reason);
/* Is VDPBF16PS quicker than the two multiply-adds that it stands for? */
int rfi_cpu_prefers_avx512_bf16(void);
int rfi_cpu_has_avx512_tiles(const char **reason);
int rfi_cpu_has_amx_bf16(const char **reason);
int rfi_cpu_has_amx_fp16(const char **reason);
int rfi_cpu_has_amx_terms(const char **reason);

/* Does it read what lies in order as fast unasked as anything that it is asked for? */
int rfi_cpu_reads_ahead(void);

/* Cores that the calling thread may use, at least 1: the affinity mask, not the machine, counts. */
int rfi_cpu_cores(void);

enum { RFI_CPU_MAX_THREADS = 4096 };

#endif
