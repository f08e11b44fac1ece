#!/bin/sh
# SPDX-License-Identifier: MIT
# check_wheel.sh WHEEL PYTHON...: WHEEL works in an empty environment of each PYTHON, with nothing of this tree in reach.
set -eu
wheel=$(readlink -f "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset ROWFOLD_LIBRARY PYTHONPATH LD_LIBRARY_PATH
for python; do
    rm -rf "$work"/*
    "$python" -m venv "$work/venv"
    (
        cd "$work"
        venv/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: "$wheel"
        venv/bin/rowfold info >info
        venv/bin/python - <<'PY'
import sys

import numpy as np
import rowfold

path = rowfold._lib.load().path
assert path.startswith(sys.prefix), f"loaded {path}, not the library of the wheel"
rng = np.random.default_rng(0)
weight, bias = rng.normal(size=(1000, 64)).astype("f4"), np.zeros(1000, "f4")
x = rng.normal(size=(32, 64)).astype("f4")
logits = x.astype("f8") @ weight.T.astype("f8") + bias
expected = np.log(np.exp(logits).sum(1, keepdims=True))
model = rowfold.Model("linear(64, 1000) | logsumexp")
model.load_weights(weight, bias)
np.testing.assert_allclose(model(x), expected, rtol=1e-6)
np.savez("weights.npz", weight=weight, bias=bias)
np.save("x.npy", x)
np.save("expected.npy", expected)
targets = np.arange(32) * 31
np.save("targets.npy", targets)
np.save("logprob.npy", logits[np.arange(32), targets] - expected[:, 0])
PY
        venv/bin/rowfold run 'linear | logsumexp' --weights weights.npz --weight weight --bias bias --input x.npy --output y.npy >log
        venv/bin/rowfold score --weights weights.npz --weight weight --bias bias --input x.npy --targets targets.npy --output scores.npz >log
        venv/bin/python - <<'PY'
import importlib.metadata
import platform
import re

import numpy as np
import rowfold

np.testing.assert_allclose(np.load("y.npy"), np.load("expected.npy"), rtol=1e-6)
np.testing.assert_allclose(np.load("scores.npz")["logprob"], np.load("logprob.npy"), rtol=1e-6)
# The example of the README, which the wheel brings along.
described = importlib.metadata.metadata("rowfold")
readme = described.get_payload() or described["Description"]
scope = {"print": lambda text: None}
exec(re.search("```python\n(.*?)```", readme, re.DOTALL)[1], scope)
logits = scope["rng"].normal(size=(3, 512)).astype("f4")
np.testing.assert_allclose(scope["m"](logits)[:, 0], np.log(np.exp(logits @ scope["W"].T.astype("f8")).sum(1)), rtol=1e-5)
assert scope["y"].shape == (1024, 1)
print(f"rowfold {rowfold.__version__} works with {platform.python_implementation()} {platform.python_version()}, numpy {np.__version__}")
PY
    )
done
