# SPDX-License-Identifier: MIT
"""Explain speaks on every backend, before and after the weights are there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rowfold

CHAINS = [
    "linear(300, 500) | mul(2) | logsumexp | gelu",
    "linear(300, 500) | sum | max",
    "linear(300, 500) | relu",
    "linear(0, 3) | sum",
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("batch", [0, 1, 1024])
def test_explain_needs_no_weights(backend: str, chain: str, batch: int) -> None:
    with rowfold.Model(chain, backend=backend) as model:
        before = model.explain(batch=batch)
        assert backend in before and "linear" in before
        assert model.explain(batch=batch, format="json")
        info = model.info
        weights = np.ones((info.out_features, info.in_features), np.float32)
        model.load_weights(weights)
        assert backend in model.explain(batch=batch)


@pytest.mark.cpu_only
def test_a_collapsed_sum_is_reckoned_as_it_is_computed(backend: str) -> None:
    """x, the summed weights in float64 and y; a dot product, the bias's sum and one operator for each row. Weights that
    have no sum take the full path, and float64 does half of the multiply-adds.
    """
    if backend == "reference":
        pytest.skip("it collapses nothing and measures nothing")
    batch, k, n = 100, 64, 512
    weights = np.ones((n, k), np.float32)
    with rowfold.Model("linear | sum | gelu", k, n, backend=backend) as model:
        about = model.load_weights(weights).explain(batch=batch, format="json")
    assert about["collapsed"]
    assert about["fused"]["bytes"] == 4 * batch * k + 8 * k + 4 * batch
    assert about["fused"]["flops"] == 2 * batch * k + batch + batch
    weights[0, 0] = np.inf
    with rowfold.Model("linear | sum | gelu", k, n, backend=backend) as model:
        assert not model.load_weights(weights).explain(batch=batch, format="json")["collapsed"]
    rates = []
    for dtype in ("float32", "float64"):
        with rowfold.Model("linear | max", k, n, backend=backend, dtype=dtype) as model:
            rates.append(model.explain(batch=batch, format="json")["machine"]["flops_per_second"])
    assert rates[1] == pytest.approx(rates[0] / 2, rel=0.3)


def test_the_readings_of_the_weights_fill_the_batch(backend: str) -> None:
    """A CPU kernel reads W once for each block of rows; the blocks make the batch, and the bytes the readings."""
    batch, size = 1000, 512
    with rowfold.Model(f"linear({size}, {size}) | logsumexp", backend=backend) as model:
        about = model.explain(batch=batch, format="json")
        text = model.explain(batch=batch)
    reads, rows = about["weight_reads"], about["block_rows"]
    if not backend.startswith("cpu-"):
        assert reads is None and rows is None
        assert "reads W" not in text
        return
    assert 1 < reads <= batch
    assert (reads - 1) * rows < batch <= reads * rows
    weight = 6 if backend.endswith("-terms") else 4  # bytes
    assert about["fused"]["bytes"] == reads * size * size * weight + 4 * (batch * size + batch)
    assert f"reads W {reads} times, once for each block of {rows} rows" in text


def test_numbers_have_a_point_in_any_locale(backend: str, tmp_path: Path) -> None:
    """A program in a locale with a decimal comma: text and JSON are as in any other."""
    localedef = shutil.which("localedef")
    made = localedef and subprocess.run(
        [localedef, "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "de_DE.UTF-8")], capture_output=True, check=False
    )
    if not made or not (tmp_path / "de_DE.UTF-8").is_dir():
        pytest.skip("no localedef, or no source of de_DE")
    script = f"""
import ctypes, locale
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.localeconv()["decimal_point"] == ","
import rowfold
with rowfold.Model("linear(1000, 3000) | mul(0.25) | logsumexp", backend={backend!r}) as model:
    print(model.explain(7))
    print(model.explain(7, "json"))
"""
    environment = os.environ | {"LOCPATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mul(0.25)" in done.stdout
    assert not re.search(r"\d,\d", done.stdout), done.stdout
    if backend.startswith("cpu"):
        assert re.search(r"\d\.\d GB/s", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("chain", "narrow"),
    [
        ("linear(300, 1) | gelu", True),
        ("linear(300, 48)", True),
        ("linear(300, 49)", False),
        ("linear(30, 16)", True),
        ("linear(30, 17)", False),
        ("linear(30, 17) | max", True),
        ("linear(30, 0) | sum", False),
    ],
)
def test_few_columns_are_dot_products(backend: str, chain: str, narrow: bool) -> None:
    """The CPU kernels say which way they take."""
    if not backend.startswith("cpu-"):
        pytest.skip("one of several ways on CPU backends alone")
    with rowfold.Model(chain, backend=backend, simplify="none", threads=1) as model:
        assert ("few columns: dot products" in model.explain(batch=100)) == narrow
        assert model.explain(batch=100, format="json")["weight_reads"] == (None if narrow else 1)


@pytest.mark.parametrize("simplify", ["none", "exact"])
def test_what_a_kernel_computes_as_one_is_said(backend: str, simplify: str) -> None:
    """Multiply-adds of cheap steps: in the kernels of sm_90a for more than a few rows, and nowhere else."""
    chain = "linear(300, 500) | mul(2) | save | add_saved | clamp(-10, 10) | logsumexp"
    with rowfold.Model(chain, backend=backend, simplify=simplify) as model:
        about, text = model.explain(1000, "json"), model.explain(1000)
    is_one = about["kernel"] is not None and re.match("hopper_(?!small)", about["kernel"]) is not None
    step = {
        "rule": "multiply_add",
        "algebraic": False,
        "first": 1,
        "last": 4,
        "text": "v * 4, at least -10, at most 10",
    }
    assert about["lowered"] == ([step] if is_one else [])
    assert ("lowered:" in text) == is_one
