# SPDX-License-Identifier: MIT
# RF_PYTHON
# The Python package is pure Python (ctypes), so all that is needed is an interpreter whose version names the directory. PYTHON=: on the
# command line installs without it. Debian's Python looks below /usr/local first; what is installed to /usr belongs elsewhere.
AC_DEFUN([RF_PYTHON],
[AM_PATH_PYTHON([3.9], [], [:])
AM_CONDITIONAL([HAVE_PYTHON], [test "$PYTHON" != :])
AS_IF([test "$PYTHON" = :], [rf_python_summary="no (Python 3.9 or newer was not found; the C library is complete without it)"],
  [rf_prefix=$prefix
  test "x$rf_prefix" = xNONE && rf_prefix=$ac_default_prefix
  rf_site=`$PYTHON -c 'import site, sys
prefix = sys.argv[[1]].rstrip("/")
below = [[p for p in site.getsitepackages() if p.startswith(prefix + "/") and not p.startswith(prefix + "/local/")]]
print("$" + "{prefix}" + below[[0]][[len(prefix):]] if below else "")' "$rf_prefix" 2>/dev/null`
  AS_IF([test -n "$rf_site" && test -z "$with_python_prefix" && test "x$am_use_python_sys" = xfalse],
    [pythondir=$rf_site])
  # By reference, so that make install pythondir=DIR takes all of the package along.
  pkgpythondir=\${pythondir}/$PACKAGE
  rf_dir=`prefix=$rf_prefix PYTHON_PREFIX=$rf_prefix; eval "echo $pythondir"`
  rf_python_summary="$PYTHON ($PYTHON_VERSION), package in $rf_dir"])])

# RF_COMPLETION
# Shell completion is written by the shtab package from the command line's parsers, which need numpy; a build without is complete but for that.
AC_DEFUN([RF_COMPLETION],
[AC_REQUIRE([RF_PYTHON])
AC_MSG_CHECKING([for what writes shell completion])
AS_IF([test "$PYTHON" != : && $PYTHON -c 'import numpy, shtab' 2>/dev/null],
  [rf_completion=yes rf_completion_summary="bash, zsh, fish"],
  [rf_completion=no rf_completion_summary="no (the Python packages shtab and numpy were not found)"])
# Older ones know no fish.
AS_IF([$PYTHON -c 'import shtab, sys; sys.exit("fish" not in shtab.SUPPORTED_SHELLS)' 2>/dev/null], [rf_fish=$rf_completion],
  [rf_fish=no
  AS_IF([test $rf_completion = yes], [rf_completion_summary="bash, zsh"])])
AC_MSG_RESULT([$rf_completion])
AM_CONDITIONAL([HAVE_COMPLETION], [test $rf_completion = yes])
AM_CONDITIONAL([HAVE_FISH_COMPLETION], [test $rf_fish = yes])])
