#!/bin/sh
# What make install put down works as a user would use it: a C program compiled through pkg-config, and the Python package.
set -eu
sources=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "installcheck: $*" >&2; exit 1; }

PKG_CONFIG_PATH=$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PKG_CONFIG_PATH LD_LIBRARY_PATH
test "$("$PKG_CONFIG" --modversion rowfold)" = "$VERSION" || fail "rowfold.pc has another version than $VERSION"
# Unquoted: these are lists of words.
$CC $("$PKG_CONFIG" --cflags rowfold) -DEXPECTED_VERSION="\"$VERSION\"" -o "$work/version" "$sources/version.c" \
    $("$PKG_CONFIG" --libs rowfold) || fail "a C program does not compile through pkg-config"
"$work/version" || fail "a C program does not run with the installed library"
unset LD_LIBRARY_PATH

test -r "$pythondir/rowfold/__main__.py" || exit 0
# From an empty directory, so that nothing of the source or build tree is found by chance; -I would hide the path we want to test.
cd "$work"
unset ROWFOLD_LIBRARY
"$bindir/rowfold" --version || fail "the rowfold command does not run"
