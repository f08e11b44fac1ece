# SPDX-License-Identifier: MIT
# RF_JANSSON
# Jansson writes explain's JSON and reads the header of weight files.
AC_DEFUN([RF_JANSSON],
[PKG_PROG_PKG_CONFIG
PKG_CHECK_MODULES([JANSSON], [jansson >= 2.11], [],
  [AC_MSG_ERROR([rowfold needs Jansson 2.11 or newer with its headers (Debian, Ubuntu: libjansson-dev; Fedora: jansson-devel)
$JANSSON_PKG_ERRORS])])])
