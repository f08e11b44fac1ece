#!/bin/sh
# SPDX-License-Identifier: MIT
# The shared library exports every function that rowfold.h declares, and nothing else; each is bound to the version of the release that
# brought it (lib/rowfold.map), where the linker knows versions.
set -eu
: "${srcdir:=.}" "${NM:=nm}"
library=lib/.libs/librowfold.so
if ! test -r "$library" || ! "$NM" --version >/dev/null 2>&1; then
    echo "skipped: needs $library and nm"
    exit 77
fi
# Absolute symbols are the versions themselves.
versioned=$("$NM" -D --defined-only "$library" | awk '$2 != "A" { print $NF }' | sort)
exported=$(echo "$versioned" | sed 's/@.*//')
declared() { grep -o 'rf_[a-z0-9_]* *(' "$1" | tr -d ' (' | sort -u; }
failed=0
for name in $exported; do
    case $name in
    rf_*) ;;
    *) echo "exported, but not rf_: $name"; failed=1 ;;
    esac
done
# Comments mention functions, too; all of them exist.
for name in $(declared "$srcdir/lib/rowfold.h"); do
    echo "$exported" | grep -qx "$name" || { echo "in rowfold.h, but not exported: $name; is it in lib/rowfold.map?"; failed=1; }
done
for name in $exported; do
    declared "$srcdir/lib/rowfold.h" | grep -qx "$name" || { echo "exported, but not in rowfold.h: $name"; failed=1; }
done
# Neither MPI nor NCCL is linked with; librowfold_nccl, too, finds NCCL at run time.
for unlinked in "$library" lib/nccl/.libs/librowfold_nccl.so; do
    test -r "$unlinked" || continue
    "$NM" -D --undefined-only "$unlinked" | grep -E ' (MPI_|ompi_|nccl)' && { echo "wanted by $unlinked"; failed=1; }
done
case $versioned in *@*)
    for name in $(declared "$srcdir/tests/c/rowfold_0_1.h"); do
        echo "$versioned" | grep -qx "$name@@ROWFOLD_0.1" || { echo "not of version ROWFOLD_0.1, as programs of 0.1.0 expect: $name"; failed=1; }
    done ;;
esac
exit $failed
