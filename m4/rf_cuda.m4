# SPDX-License-Identifier: MIT
# RF_CUDA
# --with-cuda=check|yes|no|DIR   "check" builds the CUDA backend if a working nvcc is found and says so; "yes" or a toolkit's directory
#                                fails if not; "no" builds the stub backend, which has the same interface and says why it cannot run.
# --with-cuda-arch=LIST          architectures by nvcc's names: sm_NN for machine code, compute_NN for PTX that later GPUs compile for
#                                themselves. Names with a letter (sm_90a) are for the files that need them, *not* for the others.
# Nothing here looks at the GPU of the machine that builds. The runtime is linked statically and libcuda not at all, so the library loads
# on machines without a driver.
# Sets conditionals HAVE_CUDA and BUILD_SM90, the macro RFI_BUILD_SM90, and NVCC NVCCFLAGS NVCC_GENCODE NVCC_GENCODE_SM90
# CUDA_CPPFLAGS CUDA_LIBS.
AC_DEFUN([RF_CUDA],
[AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags, by default -O3])
AC_ARG_WITH([cuda],
  [AS_HELP_STRING([--with-cuda=check|yes|no|DIR], [build the CUDA backend: if nvcc works (check, the default), in any case, never,
    or with the toolkit in DIR])], [], [with_cuda=check])
AC_ARG_WITH([cuda-arch],
  [AS_HELP_STRING([--with-cuda-arch=LIST], [GPU architectures by nvcc's names, separated by commas (sm_80,sm_90,sm_90a,compute_80)])],
  [], [with_cuda_arch=sm_80,sm_90,sm_90a,compute_80])
: "${NVCCFLAGS=-O3}"
rf_have_cuda=no
rf_sm90=no
AS_CASE([$with_cuda],
  [no], [rf_cuda_summary="no (--with-cuda=no)"],
  [check|yes], [rf_cuda_path="$PATH$PATH_SEPARATOR/usr/local/cuda/bin"],
  [rf_cuda_path=$with_cuda/bin])
AS_IF([test "x$with_cuda" != xno],
  [AC_PATH_PROG([NVCC], [nvcc], [], [$rf_cuda_path])
  AS_IF([test -n "$NVCC"], [_RF_CUDA_FLAGS
    _RF_CUDA_WORKS], [rf_cuda_why="nvcc was not found"])
  AS_IF([test "x$rf_have_cuda" = xyes],
    [rf_cuda_summary="$NVCC for $with_cuda_arch"],
    [AS_CASE([$with_cuda],
      [check], [rf_cuda_summary="no ($rf_cuda_why)"],
      [AC_MSG_ERROR([--with-cuda=$with_cuda: $rf_cuda_why])])])])
AS_VAR_IF([rf_sm90], [yes], [AC_DEFINE([RFI_BUILD_SM90], [1], [The kernels for sm_90a are part of this build.])])
AC_SUBST([NVCC_GENCODE])
AC_SUBST([NVCC_GENCODE_SM90])
AC_SUBST([CUDA_CPPFLAGS])
AC_SUBST([CUDA_LIBS])
# One object serves the shared and the static library: a second compilation would take minutes.
NVCC_LIBTOOLFLAGS=
test "x$enable_shared" = xno || NVCC_LIBTOOLFLAGS=-shared
AC_SUBST([NVCC_LIBTOOLFLAGS])
AM_CONDITIONAL([HAVE_CUDA], [test "x$rf_have_cuda" = xyes])
AM_CONDITIONAL([BUILD_SM90], [test "x$rf_sm90" = xyes])])

# The flags: architectures from the list; directories from what nvcc itself would use, since every distribution has its own (but for its
# stubs, which stand in for libcuda).
AC_DEFUN([_RF_CUDA_FLAGS],
[for rf_arch in `AS_ECHO(["$with_cuda_arch"]) | tr , ' '`; do
  AS_CASE([$rf_arch],
    [sm_90a], [NVCC_GENCODE_SM90="-gencode=arch=compute_90a,code=sm_90a"
      rf_sm90=yes],
    [sm_*[[a-z]]], [AC_MSG_ERROR([--with-cuda-arch: no file is written for $rf_arch; of the names with a letter only sm_90a is known])],
    [sm_*], [rf_ptx=`AS_ECHO(["$rf_arch"]) | $SED 's/^sm_/compute_/'`
      NVCC_GENCODE="$NVCC_GENCODE -gencode=arch=$rf_ptx,code=$rf_arch"],
    [compute_*], [NVCC_GENCODE="$NVCC_GENCODE -gencode=arch=$rf_arch,code=$rf_arch"],
    [AC_MSG_ERROR([--with-cuda-arch: '$rf_arch' is not of the form sm_NN or compute_NN])])
done
dnl Machine code for 9.0 runs on 9.0 alone, PTX on whatever comes later: sm80/mma.cu leaves out of the one what no such device takes.
AS_CASE([",$with_cuda_arch,"],
  [*,compute_90,*], [],
  [*,sm_90,*], [NVCC_GENCODE="$NVCC_GENCODE -DRFI_NO_PTX_90"])
AS_IF([test -z "$NVCC_GENCODE"], [AC_MSG_ERROR([--with-cuda-arch=$with_cuda_arch names no architecture for the portable kernels])])
: > conftest.cu
rf_dryrun=`"$NVCC" --dryrun -c conftest.cu 2>&1`
rm -f conftest.cu
CUDA_CPPFLAGS=`AS_ECHO(["$rf_dryrun"]) | $SED -n 's/^.@S|@ INCLUDES=//p' | tr -d '"'`
rf_cuda_ldflags=
for rf_flag in `AS_ECHO(["$rf_dryrun"]) | $SED -n 's/^.@S|@ LIBRARIES=//p' | tr -d '"'`; do
  AS_CASE([$rf_flag], [*/stubs], [], [rf_cuda_ldflags="$rf_cuda_ldflags $rf_flag"])
done
CUDA_LIBS="$rf_cuda_ldflags -lcudart_static -lstdc++ -lrt -ldl -lpthread"])

# Does it compile for these architectures, and does a C program link with the static runtime?
AC_DEFUN([_RF_CUDA_WORKS],
[AC_MSG_CHECKING([whether $NVCC compiles and links for $with_cuda_arch])
cat > conftest.cu <<'_RF_EOF'
__global__ void rf_set(int *p) { *p = 1; }
extern "C" int rf_launch(int *p) { rf_set<<<1, 1>>>(p); return (int)cudaGetLastError(); }
_RF_EOF
AS_IF([rf_output=`"$NVCC" $NVCC_GENCODE $NVCCFLAGS -c -o conftest.$OBJEXT conftest.cu 2>&1` &&
    { test -z "$NVCC_GENCODE_SM90" ||
      rf_output=`"$NVCC" $NVCC_GENCODE_SM90 $NVCCFLAGS -c -o conftest.$OBJEXT conftest.cu 2>&1`; }],
  [cp conftest.$OBJEXT rf_conftest.$OBJEXT
  rf_save_LIBS=$LIBS
  LIBS="rf_conftest.$OBJEXT $CUDA_LIBS $LIBS"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[int rf_launch(int *p);]], [[return rf_launch(0);]])],
    [rf_have_cuda=yes], [rf_cuda_why="$NVCC works, but libcudart_static or libstdc++ was not found to link with (config.log says more)"])
  LIBS=$rf_save_LIBS],
  [rf_cuda_why="$NVCC does not compile for $with_cuda_arch (config.log says more)"
  AS_ECHO(["$rf_output"]) >&AS_MESSAGE_LOG_FD])
rm -f conftest.cu conftest.$OBJEXT rf_conftest.$OBJEXT
AC_MSG_RESULT([$rf_have_cuda])
AS_VAR_IF([rf_have_cuda], [no], [rf_sm90=no CUDA_CPPFLAGS= CUDA_LIBS=])])
