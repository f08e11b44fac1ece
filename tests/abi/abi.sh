#!/bin/sh
# SPDX-License-Identifier: MIT
# A program linked with an earlier release finds in this library what it was compiled for: libabigail compares functions, structs, enums and
# symbol versions with each baseline here. Functions and enumerators may be added, and fields at the ends of structs that have a size.
#     tests/abi/abi.sh --write FILE     from the build directory, at a release: writes its baseline, which is never changed afterwards
set -eu
: "${srcdir:=..}"
library=lib/.libs/librowfold.so
skip() { echo "skipped: $*"; exit 77; }
abidw --version >/dev/null 2>&1 && abidiff --version >/dev/null 2>&1 || skip "needs abidw and abidiff (abigail-tools)"
test -r "$library" || skip "needs $library"
readelf -h "$library" 2>/dev/null | grep -q 'X86-64' || skip "the baselines are of x86-64"
readelf -S "$library" | grep -q '\.debug_info' || skip "needs a build with -g"
readelf -V "$library" | grep -q 'ROWFOLD_' || skip "built without symbol versions"
! readelf -p .comment "$library" | grep -q clang || skip "the baselines are of gcc, and abidiff does not always survive what clang tells debuggers"
# Sanitizers and other levels of optimization leave types out of what the debugger is told.
test "${built_with--g -O2}" = '-g -O2' || skip "the baselines are of CFLAGS='-g -O2'"

# As the header shows it: what is in opaque structs is nobody's business. It is found by its name, for the paths in debugging symbols are
# not those of this machine (-ffile-prefix-map).
describe() {
    abidw --headers-dir "$work" --drop-private-types --exported-interfaces-only --no-show-locs --no-corpus-path \
        --no-comp-dir-path --no-elf-needed --type-id-style hash --out-file "$1" "$library"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$srcdir/lib/rowfold.h" "$work"
if test "${1-}" = --write; then
    describe "$2"
    exit
fi
describe "$work/now.abi"
failed=0
for baseline in "$srcdir"/tests/abi/*.abi; do
    abidiff --leaf-changes-only --no-added-syms --suppressions "$srcdir/tests/abi/growth.suppr" "$baseline" "$work/now.abi" >"$work/log" ||
        { echo "not compatible with $(basename "$baseline"):"; cat "$work/log"; failed=1; }
done
exit $failed
