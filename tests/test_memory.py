# SPDX-License-Identifier: MIT
"""Working memory stays far below the (batch, out_features) matrix, and can be asked for beforehand."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import rowfold

MIB = 1 << 20


def loaded(backend: str, chain: str, k: int, n: int, **keywords: object) -> rowfold.Model:
    return rowfold.Model(chain, k, n, backend=backend, **keywords).load_weights(np.zeros((n, k), np.float32))


@pytest.mark.parametrize("preset", ["logsumexp_gelu", "sum_pool", "scale_clamp_mish"])
def test_workspace_of_the_presets(backend: str, preset: str) -> None:
    """16 MiB at most by a few threads, where the logits would take 32; K does not count, so it is small here."""
    for simplify, threads in (("none", 4), ("algebraic", 4), ("none", None), ("algebraic", None)):
        with loaded(backend, f"preset:{preset}", 16, 8192, simplify=simplify, threads=threads) as model:
            most = 16 * MIB if model.info.threads <= 4 else (9 + 4 * model.info.threads) * MIB
            assert model.workspace_size(1024) <= most
            assert model.workspace_size(0) >= 0


def test_workspace_grows_like_batch_times_tiles(backend: str) -> None:
    """8 bytes of state for 64 columns, a sixteenth of the logits in half their size, and a constant for each thread."""
    with loaded(backend, "linear | gelu | logsumexp", 4, 50000, threads=2) as model:
        sizes = [model.workspace_size(batch) for batch in (1, 10, 100, 1000, 10000)]
        assert sizes == sorted(sizes)
        assert sizes[-1] <= 10000 * 50000 // 64 * 8 + 16 * MIB
    with loaded(backend, "linear | gelu", 4, 5000, threads=2) as model:
        assert model.workspace_size(100000) <= 100000 * 16 + 16 * MIB


PEAK = """
import json, resource, sys
import numpy as np, rowfold
backend, chain, k, n, batch, threads = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
model = rowfold.Model(chain, k, n, backend=backend, threads=threads)
model.load_weights(rng.random((n, k), dtype=np.float32), borrow=True)
x = rng.random((batch, k), dtype=np.float32)
model(x[:64])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
y = model(x)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([(after - before) * 1024, model.workspace_size(batch)]))
"""


def growth(*arguments: object) -> tuple[int, int]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PEAK, json.dumps(arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    grown, workspace = json.loads(done.stdout)
    return grown, workspace


@pytest.mark.cpu_only
@pytest.mark.parametrize("threads", [1, 3])
def test_resident_memory_of_a_forward(backend: str, threads: int) -> None:
    """It grows by the workspace that was told and no more; 1 MiB is granted for stacks and rounding.

    The logits would be 256 MiB (reference: 50).
    """
    batch = 200 if backend == "reference" else 1024
    grown, workspace = growth(backend, "linear | softplus | logsumexp", 8, 65536, batch, threads)
    assert grown <= workspace + MIB
    assert workspace <= batch * 65536 * 4 // 12


@pytest.mark.cpu_only
def test_models_leave_nothing_behind(backend: str) -> None:
    """A hundred models made, loaded, run and dropped, in which errors happen too, do not add up."""
    script = f"""
import resource
import numpy as np, rowfold
w, x, backend = np.ones((500, 400), np.float32), np.ones((3, 400), np.float32), {backend!r}
def once():
    model = rowfold.Model("linear | mul(@v) | logsumexp", 400, 500, backend=backend, threads=2)
    for wrong in (dict(), dict(vectors={{"u": w[:, 0]}}), dict(bias=np.ones(3, np.float32))):
        try:
            model.load_weights(w, **wrong)
        except rowfold.Error:
            pass
        else:
            raise SystemExit("no error")
    model.load_weights(w, vectors={{"v": w[:, 0].copy()}})(x)
    model.explain()
for _ in range(20):
    once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(100):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) <= 2048  # KiB: two or three models' weights, where a hundred would be 80 MB
