# SPDX-License-Identifier: MIT
# RF_CHECK_CFLAGS(FLAGS, PROLOGUE, BODY, IF-OK, IF-NOT)
# Does the compiler take FLAGS and, with them, compile BODY? -Werror, because clang only warns about a flag it does not know.
AC_DEFUN([RF_CHECK_CFLAGS],
[rf_save_CFLAGS=$CFLAGS
CFLAGS="$CFLAGS -Werror $1"
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([$2], [$3])], [rf_cflags_ok=yes], [rf_cflags_ok=no])
CFLAGS=$rf_save_CFLAGS
AS_VAR_IF([rf_cflags_ok], [yes], [$4], [$5])])

# RF_WARNINGS
# WARNING_CFLAGS: the language and the warnings every C file is compiled with.
AC_DEFUN([RF_WARNINGS],
[AC_ARG_ENABLE([werror],
  [AS_HELP_STRING([--enable-werror], [turn warnings into errors (for development)])], [], [enable_werror=no])
WARNING_CFLAGS=
for rf_flag in -std=gnu11 -Wall -Wextra -Wstrict-prototypes -Wmissing-prototypes; do
  RF_CHECK_CFLAGS([$rf_flag], [], [], [WARNING_CFLAGS="$WARNING_CFLAGS $rf_flag"])
done
AS_VAR_IF([enable_werror], [yes], [WARNING_CFLAGS="$WARNING_CFLAGS -Werror"])
AC_SUBST([WARNING_CFLAGS])])

# RF_PREFIX_MAP
# PREFIX_MAP_CFLAGS: the names of files in debugging information, and so the identifier of a build, are those of the source tree wherever it
# lies and is built.
AC_DEFUN([RF_PREFIX_MAP],
[RF_CHECK_CFLAGS([-ffile-prefix-map=a=b], [], [],
  [PREFIX_MAP_CFLAGS='-ffile-prefix-map=$(top_srcdir)/= -ffile-prefix-map=$(abs_builddir)=.'], [PREFIX_MAP_CFLAGS=])
AC_SUBST([PREFIX_MAP_CFLAGS])])

# RF_LINK_DEFS
# DEFS_LDFLAGS: make a symbol that nobody provides an error when the library is linked, not when it is loaded. Tried on a real
# shared object with the user's CFLAGS, because sanitizers leave their symbols to the program.
AC_DEFUN([RF_LINK_DEFS],
[AC_CACHE_CHECK([whether shared objects link with -Wl,-z,defs], [rf_cv_link_defs],
  [rf_save_LDFLAGS=$LDFLAGS
  LDFLAGS="$LDFLAGS -shared -fPIC -Wl,-z,defs"
  AC_LINK_IFELSE([AC_LANG_SOURCE([[int rf_defs(int *p); int rf_defs(int *p) { return p[1] + p[2]; }]])],
    [rf_cv_link_defs=yes], [rf_cv_link_defs=no])
  LDFLAGS=$rf_save_LDFLAGS])
AS_VAR_IF([rf_cv_link_defs], [yes], [DEFS_LDFLAGS=-Wl,-z,defs], [DEFS_LDFLAGS=])
AC_SUBST([DEFS_LDFLAGS])])

# RF_LINK_NODELETE
# NODELETE_LDFLAGS: dlclose must not unmap the code that the CPU backend's threads sleep in.
AC_DEFUN([RF_LINK_NODELETE],
[AC_CACHE_CHECK([whether shared objects link with -Wl,-z,nodelete], [rf_cv_link_nodelete],
  [rf_save_LDFLAGS=$LDFLAGS
  LDFLAGS="$LDFLAGS -shared -fPIC -Wl,-z,nodelete"
  AC_LINK_IFELSE([AC_LANG_SOURCE([[int rf_nodelete(void); int rf_nodelete(void) { return 1; }]])],
    [rf_cv_link_nodelete=yes], [rf_cv_link_nodelete=no])
  LDFLAGS=$rf_save_LDFLAGS])
AS_VAR_IF([rf_cv_link_nodelete], [yes], [NODELETE_LDFLAGS=-Wl,-z,nodelete], [NODELETE_LDFLAGS=])
AC_SUBST([NODELETE_LDFLAGS])])

# RF_LINK_EXPORTS
# EXPORTS_LDFLAGS: what the library exports. With symbol versions where the linker takes a version script, else by the names' beginning.
# libtool makes a script without versions from -export-symbols-regex, and one link cannot have both.
AC_DEFUN([RF_LINK_EXPORTS],
[AC_CACHE_CHECK([whether shared objects link with -Wl,--version-script], [rf_cv_link_version_script],
  [rf_save_LDFLAGS=$LDFLAGS
  AS_ECHO(["RF_1 { global: rf_exported; local: *; };"]) > conftest.map
  LDFLAGS="$LDFLAGS -shared -fPIC -Wl,--version-script=conftest.map"
  AC_LINK_IFELSE([AC_LANG_SOURCE([[int rf_exported(void); int rf_exported(void) { return 1; }]])],
    [rf_cv_link_version_script=yes], [rf_cv_link_version_script=no])
  rm -f conftest.map
  LDFLAGS=$rf_save_LDFLAGS])
AS_VAR_IF([rf_cv_link_version_script], [yes],
  [EXPORTS_LDFLAGS='-Wl,--version-script=$(srcdir)/lib/rowfold.map'],
  [EXPORTS_LDFLAGS="-export-symbols-regex '^rf_'"])
AC_SUBST([EXPORTS_LDFLAGS])])
