# SPDX-License-Identifier: MIT
# RF_PTHREAD
# PTHREAD_CFLAGS and PTHREAD_LIBS, for the CPU backend's pool and for one-time initialisation.
AC_DEFUN([RF_PTHREAD],
[AC_CACHE_CHECK([how to link POSIX threads], [rf_cv_pthread],
  [rf_save_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS -pthread"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <pthread.h>
static void *run(void *p) { return p; }]],
      [[pthread_t t; return pthread_create(&t, 0, run, 0) || pthread_atfork(0, 0, 0);]])],
    [rf_cv_pthread=-pthread], [rf_cv_pthread=no])
  CFLAGS=$rf_save_CFLAGS])
AS_VAR_IF([rf_cv_pthread], [no], [AC_MSG_ERROR([rowfold needs POSIX threads])])
# libtool drops -pthread from a shared library's link line on some systems, hence the library by name as well.
AC_SUBST([PTHREAD_CFLAGS], [-pthread])
AC_SUBST([PTHREAD_LIBS], [-lpthread])])
