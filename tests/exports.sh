#!/bin/sh
# SPDX-License-Identifier: MIT
# The shared library exports names that begin with rf_, every one that rowfold.h declares, and nothing else.
set -eu
: "${srcdir:=.}" "${NM:=nm}"
library=lib/.libs/librowfold.so
if ! test -r "$library" || ! "$NM" --version >/dev/null 2>&1; then
    echo "skipped: needs $library and nm"
    exit 77
fi
exported=$("$NM" -D --defined-only "$library" | awk '{ print $NF }' | sort)
declared=$(grep -o 'rf_[a-z0-9_]* *(' "$srcdir/lib/rowfold.h" | tr -d ' (' | sort -u)
failed=0
for name in $exported; do
    case $name in
    rf_*) ;;
    *) echo "exported, but not rf_: $name"; failed=1 ;;
    esac
done
# Comments mention functions, too; all of them exist.
for name in $declared; do
    echo "$exported" | grep -qx "$name" || { echo "in rowfold.h, but not exported: $name"; failed=1; }
done
for name in $exported; do
    echo "$declared" | grep -qx "$name" || { echo "exported, but not in rowfold.h: $name"; failed=1; }
done
exit $failed
