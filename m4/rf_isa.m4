# SPDX-License-Identifier: MIT
# RF_ISA
# The CPU kernels are one source compiled per instruction set, each in a convenience library of its own; which of them runs is decided
# at run time. Sets for each a conditional, BUILD_AVX2 and so on, a macro in config.h, RFI_BUILD_AVX2 and so on, and
#   KERNEL_CFLAGS   for all of them: -O3 unless the user's CFLAGS ask for less than -O2; loops are not split where a comparison's result changes,
#                   which is no faster and fills a tenth of the library; neither errno nor traps, which would keep loops scalar.
#                   Never -ffast-math: NaN, infinities and subnormals have a meaning here.
#   AVX2_CFLAGS AVX512_CFLAGS AVX512_BF16_CFLAGS AMX_CFLAGS AMX_FP16_CFLAGS
# --disable-avx2, --disable-avx512, --disable-avx512-bf16, --disable-amx and --disable-amx-fp16 leave one out.
AC_DEFUN([RF_ISA],
[AS_CASE([" $CFLAGS "], [*" -O0 "*|*" -O1 "*|*" -Og "*], [rf_optimize=], [rf_optimize=-O3])
KERNEL_CFLAGS=
for rf_flag in $rf_optimize -fno-split-loops -fno-math-errno -fno-trapping-math; do
  RF_CHECK_CFLAGS([$rf_flag], [], [], [KERNEL_CFLAGS="$KERNEL_CFLAGS $rf_flag"])
done
AC_SUBST([KERNEL_CFLAGS])
rf_isa_summary=generic
_RF_ISA([avx2], [AVX2], [-mavx2 -mfma -mf16c],
  [[__m256 v = _mm256_cvtph_ps(_mm_setzero_si128()); v = _mm256_fmadd_ps(v, v, v);
    __m256i i = _mm256_abs_epi32(_mm256_castps_si256(v)); (void)i;]])
_RF_ISA([avx512], [AVX512], [-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512],
  [[__m512 v = _mm512_cvtph_ps(_mm256_setzero_si256()); v = _mm512_fmadd_ps(v, v, v); v = _mm512_and_ps(v, v);
    __m512i i = _mm512_abs_epi16(_mm512_castps_si512(v)); (void)i;]])
_RF_ISA([avx512-bf16], [AVX512_BF16], [$AVX512_CFLAGS -mavx512bf16],
  [[__m512i i = _mm512_setzero_si512(); __m512 v = _mm512_setzero_ps();
    v = _mm512_dpbf16_ps(v, (__m512bh)i, (__m512bh)i); (void)v;]], [avx512])
_RF_ISA([amx], [AMX], [$AVX512_BF16_CFLAGS -mamx-tile -mamx-bf16],
  [[static const char config@<:@64@:>@ = {1}; _tile_loadconfig(config); _tile_dpbf16ps(0, 1, 2); _tile_release();]], [avx512_bf16])
_RF_ISA([amx-fp16], [AMX_FP16], [$AMX_CFLAGS], [[__asm__ volatile("tdpfp16ps %tmm2, %tmm1, %tmm0");]], [amx])])

# _RF_ISA(name, NAME, FLAGS, BODY, [NEEDS]): NEEDS is the one whose kernels these are a part of.
AC_DEFUN([_RF_ISA],
[m4_pushdef([_rf_build], [rf_build_]m4_translit([[$1]], [-], [_]))
AC_ARG_ENABLE([$1], [AS_HELP_STRING([--disable-$1], [leave out the $2 CPU kernels])],
  [_rf_build=$enableval], [_rf_build=yes])
m4_ifval([$5], [AS_VAR_IF([rf_build_$5], [no], [_rf_build=no])
])AC_MSG_CHECKING([whether to build the $2 kernels])
AS_VAR_IF([_rf_build], [no], [],
  [RF_CHECK_CFLAGS([$3], [[#if !defined __x86_64__
# error only x86-64
#endif
#include <immintrin.h>]], [$4], [_rf_build=yes], [_rf_build=no])])
AC_MSG_RESULT([$_rf_build])
AS_VAR_IF([_rf_build], [yes],
  [AC_DEFINE([RFI_BUILD_$2], [1], [The $2 CPU kernels are part of this build.])
  rf_isa_summary="$rf_isa_summary $1"])
AC_SUBST([$2_CFLAGS], ["$3"])
AM_CONDITIONAL([BUILD_$2], [test "x$_rf_build" = xyes])
m4_popdef([_rf_build])])
