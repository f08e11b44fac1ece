# SPDX-License-Identifier: MIT
# RF_NCCL
# --with-nccl=check|yes|no: librowfold_nccl, a library beside librowfold. It is built from the CUDA runtime alone, which RF_CUDA has found by
# then; NCCL is loaded when it is used. HAVE_NCCL.
AC_DEFUN([RF_NCCL],
[AC_REQUIRE([RF_CUDA])
AC_ARG_WITH([nccl],
  [AS_HELP_STRING([--with-nccl=check|yes|no], [librowfold_nccl: if the CUDA backend is built, in any case, or never @<:@check@:>@])],
  [], [with_nccl=check])
AS_CASE([$with_nccl],
  [check], [rf_nccl=$rf_have_cuda],
  [yes], [rf_nccl=yes
    AS_VAR_IF([rf_have_cuda], [yes], [], [AC_MSG_ERROR([--with-nccl=yes, but the CUDA backend is not built: $rf_cuda_summary])])],
  [no], [rf_nccl=no],
  [AC_MSG_ERROR([--with-nccl=$with_nccl: expected check, yes or no])])
AS_VAR_IF([rf_nccl], [yes], [rf_nccl_summary="yes, loaded at run time"],
  [AS_VAR_IF([with_nccl], [no], [rf_nccl_summary="no (--with-nccl=no)"], [rf_nccl_summary="no (the CUDA backend is not built)"])])
AM_CONDITIONAL([HAVE_NCCL], [test "$rf_nccl" = yes])])
