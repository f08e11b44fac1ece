# SPDX-License-Identifier: MIT
# RF_MPI
# --with-mpi=check|yes|no: librowfold_mpi, a library beside librowfold, which does not depend on MPI itself. Where pkg-config does not know
# it, MPI_CFLAGS and MPI_LIBS say how to compile and link. HAVE_MPI, and MPIRUN for the tests.
AC_DEFUN([RF_MPI],
[AC_ARG_WITH([mpi],
  [AS_HELP_STRING([--with-mpi=check|yes|no], [librowfold_mpi: if MPI is found, in any case, or never @<:@check@:>@])],
  [], [with_mpi=check])
AS_CASE([$with_mpi], [check|yes|no], [], [AC_MSG_ERROR([--with-mpi=$with_mpi: expected check, yes or no])])
rf_mpi=no
rf_mpi_summary="no (--with-mpi=no)"
AS_VAR_IF([with_mpi], [no], [],
  [PKG_CHECK_MODULES([MPI], [mpi-c], [rf_mpi=maybe],
    [PKG_CHECK_MODULES([MPI], [ompi-c], [rf_mpi=maybe], [PKG_CHECK_MODULES([MPI], [mpich], [rf_mpi=maybe], [rf_mpi=no])])])
  AS_VAR_IF([rf_mpi], [maybe],
    [AC_MSG_CHECKING([whether a program of MPI 3 can be linked])
    rf_save_CFLAGS=$CFLAGS; rf_save_LIBS=$LIBS
    CFLAGS="$CFLAGS $MPI_CFLAGS"; LIBS="$LIBS $MPI_LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <mpi.h>]], [[MPI_Request request;
      return MPI_Iallgather(0, 0, MPI_BYTE, 0, 0, MPI_BYTE, MPI_COMM_WORLD, &request);]])], [rf_mpi=yes], [rf_mpi=no])
    CFLAGS=$rf_save_CFLAGS; LIBS=$rf_save_LIBS
    AC_MSG_RESULT([$rf_mpi])])
  rf_mpi_summary=$rf_mpi
  AS_VAR_IF([rf_mpi], [no],
    [rf_mpi_summary="no (pkg-config finds no MPI)"
    AS_VAR_IF([with_mpi], [yes],
      [AC_MSG_ERROR([--with-mpi=yes, but no MPI was found (Debian, Ubuntu: libopenmpi-dev, or MPI_CFLAGS and MPI_LIBS)])])])])
AM_CONDITIONAL([HAVE_MPI], [test "$rf_mpi" = yes])
AC_PATH_PROGS([MPIRUN], [mpirun mpiexec], [no])])
