/* SPDX-License-Identifier: MIT */
/* AVX-512: 14 rows of 2 vectors are 28 sums; with 2 vectors of W and one of x, 31 of 32 registers. */
#include <immintrin.h>

#include "config.h"

typedef __m512 vf;
typedef __m512d vd;

#define RFI_CPU_ISA(stem) stem##_avx512
#define ISA_NAME "AVX-512"
#define ISA_BYTES 64
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define F32_VECTORS 2
#define F64_VECTORS 2
#define F32_BROADCAST(s) _mm512_set1_ps(s)
#define F64_BROADCAST(s) _mm512_set1_pd(s)
#define F32_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define F64_FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#define ISA_WIDENS
#define HALF_LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define HALF_LOAD_PART(p, n) _mm256_maskz_loadu_epi16((__mmask16)((1u << (n)) - 1), p)
#define F32_FROM_F16(h) _mm512_cvtph_ps(h)
#define F32_FROM_BF16(h) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))
#define F32_STORE_F16(p, v) \
    _mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))

/* 4 rows of 6 columns are 24 sums; with 6 vectors of W and one of x, 31 of 32 registers. */
#define INNER_COLUMNS 6
#define EACH_INNER_COLUMNS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define F32_LOAD_PART(p, n) _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p)
#define F64_LOAD_PART(p, n) _mm512_maskz_loadu_pd((__mmask8)((1u << (n)) - 1), p)
#define F32_NEAR(a, b) (_mm512_shuffle_ps(a, b, 0x88) + _mm512_shuffle_ps(a, b, 0xdd))
#define F64_NEAR(a, b) (_mm512_unpacklo_pd(a, b) + _mm512_unpackhi_pd(a, b))
#define F32_FAR(a, b) (_mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd))
#define F64_FAR(a, b) (_mm512_shuffle_f64x2(a, b, 0x88) + _mm512_shuffle_f64x2(a, b, 0xdd))

#include "cpu/kernel_typed.h"

#ifdef RFI_BUILD_AVX512_BF16
RFI_CPU_TABLE(rfi_cpu_avx512_bf16, ISA_NAME, &rfi_cpu_pairs_avx512_bf16, NULL, NULL);
RFI_CPU_TABLE(rfi_cpu_avx512_tiles, ISA_NAME, &rfi_cpu_pairs_avx512_tiles, &rfi_cpu_f16_pairs_avx512_tiles, NULL);
RFI_CPU_TABLE(rfi_cpu_avx512_terms, ISA_NAME, &rfi_cpu_pairs_avx512_tiles, NULL, &rfi_cpu_terms_avx512);
#endif
#ifdef RFI_BUILD_AMX
RFI_CPU_TABLE(rfi_cpu_amx_bf16, ISA_NAME, &rfi_cpu_pairs_amx_bf16, NULL, NULL);
RFI_CPU_TABLE(rfi_cpu_amx_terms, ISA_NAME, &rfi_cpu_pairs_amx_bf16, NULL, &rfi_cpu_terms_amx);
#endif
#ifdef RFI_BUILD_AMX_FP16
RFI_CPU_TABLE(rfi_cpu_amx_fp16, ISA_NAME, &rfi_cpu_pairs_amx_bf16, &rfi_cpu_f16_pairs_amx_fp16, NULL);
#endif
