#!/bin/sh
# SPDX-License-Identifier: MIT
# What make install put down works as a user would use it: C programs compiled through pkg-config against the installed header alone, and
# the Python package with the rowfold command. make installcheck sets the variables; with DESTDIR they lead below it.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "installcheck: $*" >&2; exit 1; }

PKG_CONFIG_PATH=$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export PKG_CONFIG_PATH
# Paths in rowfold.pc are those of the system that was packed below DESTDIR. A package manager calls that one's root a sysroot.
test -z "$DESTDIR" || export PKG_CONFIG_SYSROOT_DIR="$DESTDIR"
test "$("$PKG_CONFIG" --modversion rowfold)" = "$VERSION" || fail "rowfold.pc has another version than $VERSION"

# compile FILE: to $work/NAME, unquoted where a variable is a list of words.
compile() {
    $CC $CFLAGS -std=gnu11 -Wall -Wextra -Werror -DEXPECTED_VERSION="\"$VERSION\"" $("$PKG_CONFIG" --cflags rowfold) \
        -o "$work/$(basename "$1" .c)" "$1" $("$PKG_CONFIG" --libs rowfold) -lm || fail "$1 does not compile through pkg-config"
}
run() { LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"; }

for program in $programs; do
    compile "$srcdir/$program.c"
    run "$work/$(basename "$program")" >"$work/log" 2>&1 || { cat "$work/log"; fail "$program fails with the installed library"; }
done

# The header is plain C11 and also C++.
echo '#include <rowfold.h>' >"$work/header.c"
$CC -std=c11 -pedantic-errors -Wall -Wextra -Werror -I"$includedir" -c -o "$work/header.o" "$work/header.c" || fail "rowfold.h is not C11"
if c++ --version >/dev/null 2>&1; then
    c++ -x c++ -std=c++11 -pedantic-errors -Wall -Wextra -Werror -I"$includedir" -c -o "$work/header.o" "$work/header.c" ||
        fail "rowfold.h is not C++"
fi

for program in "$srcdir"/examples/*.c; do
    case $program in *_mpi.c) continue ;; esac
    compile "$program"
done
if test -e "$libdir/pkgconfig/rowfold_mpi.pc"; then
    # Below DESTDIR pkg-config looks for MPI there, too, and it is not.
    $CC $CFLAGS -std=gnu11 $("$PKG_CONFIG" --cflags rowfold_mpi) $MPI_CFLAGS -o "$work/shards_mpi" "$srcdir/examples/shards_mpi.c" \
        $("$PKG_CONFIG" --libs rowfold_mpi) $MPI_LIBS || fail "examples/shards_mpi.c does not compile through pkg-config"
    test -s "$mandir/man3/librowfold_mpi.3" || fail "librowfold_mpi(3) is not installed"
fi
if test -e "$libdir/pkgconfig/rowfold_nccl.pc"; then
    echo '#include <rowfold_nccl.h>' >"$work/nccl.c"
    echo 'int main(void) { rf_collective by = {.size = sizeof by}; return !rf_nccl_open(&by, 0, 0, 0, 0); }' >>"$work/nccl.c"
    $CC $CFLAGS -std=gnu11 $("$PKG_CONFIG" --cflags rowfold_nccl) -o "$work/nccl" "$work/nccl.c" $("$PKG_CONFIG" --libs rowfold_nccl) ||
        fail "a program with rowfold_nccl.h does not compile through pkg-config"
    run "$work/nccl" || fail "librowfold_nccl takes a communicator that is NULL"
    test -s "$mandir/man3/librowfold_nccl.3" || fail "librowfold_nccl(3) is not installed"
fi
run "$work/from_memory" >"$work/log" || fail "examples/from_memory.c fails"
# A weight of (2, 3) zeros: the result is log(2), whatever x is.
header='{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
{
    printf "\\$(printf '%o' ${#header})"
    head -c 7 /dev/zero
    printf %s "$header"
    head -c 24 /dev/zero
} >"$work/zeros.safetensors"
test "$(echo 0 1 2 3 1 1 2 3 -100 1 2 3 | run "$work/score_file" "$work/zeros.safetensors" w | tr '\n' ' ')" = \
    '-0.693147182 1 0.693147182 -0.693147182 0 0.693147182 0 0 0.693147182 ' ||
    fail "examples/score_file.c does not score the tokens of two equal logits"
if echo 0 1 2 3 1 1 | run "$work/score_file" "$work/zeros.safetensors" w >/dev/null 2>&1; then
    fail "examples/score_file.c takes a part of a row"
fi

# The static library, where it was asked for, and what a program needs besides.
if test -e "$libdir/librowfold.a"; then
    $CC $CFLAGS -std=gnu11 $("$PKG_CONFIG" --cflags rowfold) -o "$work/static" "$srcdir/examples/from_memory.c" \
        $("$PKG_CONFIG" --static --libs rowfold | sed "s|-lrowfold|$libdir/librowfold.a|") || fail "librowfold.a does not link"
    "$work/static" >"$work/log" || fail "examples/from_memory.c fails with librowfold.a"
fi

# CMake's way to find the package, for a version that serves and for one that does not, and with the add-on for MPI if that is there.
if cmake --version >/dev/null 2>&1; then
    use_cmake() {
        cmake -S "$srcdir/tests/cmake" -B "$work/cmake" -Drowfold_DIR="$libdir/cmake/rowfold" -DWANTED_VERSION="$1" -DWANTED_COMPONENTS="${2-}" \
            >"$work/log" 2>&1
    }
    use_cmake 99 && fail "find_package finds version 99"
    grep -q "$VERSION" "$work/log" || { cat "$work/log"; fail "find_package does not say which version there is"; }
    rm -rf "$work/cmake"
    use_cmake "$VERSION" gpu && fail "find_package finds a component that there is not"
    grep -q 'no component gpu' "$work/log" || { cat "$work/log"; fail "find_package does not say which component there is not"; }
    rm -rf "$work/cmake"
    { use_cmake "$VERSION" && cmake --build "$work/cmake" >"$work/log" 2>&1; } || { cat "$work/log"; fail "a CMake project does not build"; }
    run "$work/cmake/from_memory" >"$work/log" || fail "examples/from_memory.c fails as CMake builds it"
    rm -rf "$work/cmake"
    if test -e "$libdir/pkgconfig/rowfold_mpi.pc"; then
        { use_cmake "$VERSION" mpi && cmake --build "$work/cmake" >"$work/log" 2>&1; } || { cat "$work/log"; fail "a CMake project with MPI does not build"; }
        test "$(echo 1 2 3 | run "$work/cmake/shards_mpi" "$work/zeros.safetensors" w)" = 0.693147182 ||
            fail "examples/shards_mpi.c of one process fails as CMake builds it"
    else
        use_cmake "$VERSION" mpi && fail "find_package finds librowfold_mpi, which is not installed"
        grep -q 'no librowfold_mpi' "$work/log" || { cat "$work/log"; fail "find_package does not say that librowfold_mpi is missing"; }
    fi
else
    echo "installcheck: skipped find_package: cmake is not installed"
fi

test -s "$mandir/man3/librowfold.3" || fail "librowfold(3) is not installed"
functions=$(sed -n 's/.*\(rf_[a-z0-9_]*\)(.*/\1/p' "$includedir/rowfold.h" | sort -u)
for function in $functions; do
    grep -qx '.so man3/librowfold.3' "$mandir/man3/$function.3" || fail "$function(3) does not lead to librowfold(3)"
done

test "$PYTHON" = : && exit 0
for file in $completions; do
    grep -q max-memory "$file" || fail "$file does not know the options of rowfold run"
done
test -s "$mandir/man1/rowfold.1" || fail "rowfold(1) is not installed"
# From an empty directory and without the variables of the build, so that nothing of the source or build tree is found by chance.
unset ROWFOLD_LIBRARY PYTHONPATH
cd "$work"
if ! "$PYTHON" -c 'import numpy' 2>/dev/null; then
    echo "installcheck: skipped the Python package: $PYTHON has no numpy"
    exit 0
fi
# Below DESTDIR neither the command nor the package is where it will be.
if test -n "$DESTDIR"; then
    ROWFOLD_LIBRARY=$(find "$libdir" -name 'librowfold.so.*' -type l)
    export ROWFOLD_LIBRARY
    rowfold() { PYTHONPATH=$pythondir "$PYTHON" "$bindir/rowfold" "$@"; }
else
    rowfold() { "$bindir/rowfold" "$@"; }
fi
rowfold --version >"$work/log" || fail "the rowfold command does not run"
grep -qF "$VERSION" "$work/log" || fail "rowfold --version does not say $VERSION: $(cat "$work/log")"
PYTHONPATH=$pythondir "$PYTHON" -c '
import sys, numpy, rowfold
path = rowfold._lib.load().path
assert path.startswith(sys.argv[1]), f"loaded {path}, not the library in {sys.argv[1]}"
assert rowfold.__file__.startswith(sys.argv[2]), rowfold.__file__
model = rowfold.Model("linear(3, 2) | logsumexp")
model.load_weights(numpy.zeros((2, 3), "float32"), numpy.zeros(2, "float32"))
assert abs(model(numpy.ones((1, 3), "float32")).item() - numpy.log(2)) < 1e-6
' "$libdir" "$pythondir" || fail "the installed Python package does not work"
