# SPDX-License-Identifier: MIT
"""Errors against float64 of the same stored inputs, per row: within the oracle's bound, and those of a plain float32
program.
"""

from __future__ import annotations

import importlib

import datasets
import numpy as np
import oracle
import pytest
import rowfold
from cases import Case, make_case
from stored import rounded, store, widen

PRESETS = {
    "logsumexp_gelu": "linear | logsumexp | leaky_relu(0.01) | leaky_relu(0.01) | gelu | gelu",
    "sum_pool": "linear | sum | max | mean | logsumexp | logsumexp",
    "scale_clamp_mish": "linear | mul(2) | save | add_saved | clamp(-10, 10) | logsumexp | save | mish | mul_saved",
}
FOLDS = ["linear", "linear | logsumexp", "linear | max", "linear | sum", "linear | mean", "linear | gelu | sum"]
U = 2.0**-24


def seeded(name: str, batch: int, k: int, n: int) -> datasets.Data:
    return datasets.ALL[name](np.random.default_rng([11, batch, k, n]), batch, k, n)


@pytest.mark.parametrize("data", datasets.ALL)
@pytest.mark.parametrize("preset", PRESETS)
def test_presets(backend: str, preset: str, data: str) -> None:
    """On data that reaches both sides of every branch, with and without rewrites."""
    for batch, k, n in ((33, 300, 517), (1, 129, 65), (5, 1, 1)):
        case = make_case(PRESETS[preset], seeded(data, batch, k, n))
        expected = case.expected(backend)
        for simplify in ("none", "exact", "algebraic"):
            case.check(case.run(backend, simplify=simplify), simplify, expected)


def test_presets_are_the_documented_chains() -> None:
    assert rowfold.presets() == PRESETS


@pytest.mark.parametrize("data", datasets.FINITE)
@pytest.mark.parametrize("chain", [*FOLDS, *PRESETS.values()])
def test_error_is_that_of_plain_float32(backend: str, chain: str, data: str) -> None:
    """The root mean square over the rows is at most 1.5 times a plain float32 program's.

    Each row in units of its own bound, so that all count: of gelu's sums far below zero one row outweighs all others,
    and the plain program's own error varies fivefold with the order of its columns. Of 80 independent errors the root
    mean square scatters by 8% on each side, so 1.5 is four standard deviations off. One u of the result is granted for
    its rounding, and an ulp for each operator behind the reduction, where the plain program may be lucky with a few
    distinct results. Of logits there are so many that they scatter by less than 1%: on a CPU theirs is no larger.
    """
    case = make_case(chain, seeded(data, 80, 777, 301))
    expected = case.expected(backend)
    wide = [widen(v, "float32") for v in (case.x, case.w, case.b)]
    plain = oracle.plain_float32(chain, *wide)
    units = 1 + 2 * max(0, len(oracle.parse(chain)) - 1)
    bound = oracle.error_bound(expected)
    counts = np.isfinite(bound) & (bound > 0)
    assert counts.mean() > 0.9

    def mean_square(error: np.ndarray) -> float:
        return float(np.mean((error[counts] / bound[counts]) ** 2))

    allowed = 1.5 * np.sqrt(mean_square(plain - expected.value)) + units * U * np.sqrt(mean_square(expected.value))
    if chain == "linear" and not backend.startswith("cuda"):
        allowed = 1.01 * np.sqrt(mean_square(plain - expected.value))
    for simplify in ("none", "algebraic"):
        y = case.run(backend, simplify=simplify)
        case.check(y, simplify, expected)
        ours = np.sqrt(mean_square(y.astype(np.float64) - expected.value))
        assert ours <= allowed, (simplify, ours, allowed)


@pytest.mark.parametrize("chain", ["linear", "linear | logsumexp", "linear | sum"])
def test_long_dot_products(backend: str, chain: str) -> None:
    """K of 8192, as in the presets: the error grows like sqrt(K), not like K."""
    for data in ("sigma5", "positive", "offset"):
        case = make_case(chain, seeded(data, 6, 8192, 70))
        case.check(case.run(backend, simplify="none"), data, case.expected(backend))


@pytest.mark.cpu_only
@pytest.mark.parametrize("k", [200, 512, 777, 1024, 2048, 2500, 8192, 65536])
@pytest.mark.parametrize("values", ["normal", "positive"])
def test_error_of_a_logit_is_that_of_numpy_and_pytorch(backend: str, values: str, k: int) -> None:
    """The root mean square over 16384 logits is at most that of numpy's and PyTorch's float32 products of the
    same data, whichever is larger. It scatters by 1%; without fused multiply-adds it is 2% larger; 5% are granted.
    Of positive values a sum grows with each product, and the roundings of a long one with it.
    """
    rng = np.random.default_rng(k)
    drawn = rng.standard_normal if values == "normal" else rng.random
    x = drawn((64, k), dtype=np.float32)
    w = drawn((256, k), dtype=np.float32) / np.float32(np.sqrt(k))
    exact = x.astype(np.float64) @ w.T.astype(np.float64)

    def error(y: np.ndarray) -> float:
        return float(np.sqrt(np.mean((y - exact) ** 2)))

    others = [error(x @ w.T)]
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        pass
    else:
        others.append(error((torch.tensor(x) @ torch.tensor(w).T).numpy()))
    ours = error(Case("linear", x, w).run(backend))
    assert ours <= 1.05 * max(others), (ours, others)


@pytest.mark.cpu_only
@pytest.mark.parametrize("k", [512, 1024, 4096])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_error_of_a_single_logit_of_16_bit_values(backend: str, dtype: str, k: int) -> None:
    """Of positive values, whose sums err most: at most 4e-7 of its row's scale, the sum of magnitudes |x| |w|. Blocks
    of 176 products have up to 4.6e-7 here.
    """
    rng = np.random.default_rng(k)
    x, w = (store(rng.random((rows, k), dtype=np.float32), dtype) for rows in (128, 1024))
    exact = widen(x, dtype) @ widen(w, dtype).T
    y = Case("linear", x, w, dtype=dtype, x_dtype=dtype).run(backend)
    assert np.max(np.abs(y - exact) / exact) <= 4e-7


def whole_range(top: float, tiny: float) -> np.ndarray:
    """Dense where functions bend, then every binade of either sign, ends and subnormals included."""
    grid = np.concatenate([np.linspace(-30, 30, 4001), np.linspace(-110, 110, 1501), np.linspace(-760, 760, 501)])
    exponents = np.arange(np.log2(tiny), np.log2(top))
    binades = np.exp2(exponents) * (1 + np.random.default_rng(0).random(exponents.size))
    ends = np.array([0.0, top, tiny, np.inf])
    return np.concatenate([grid, binades, -binades, ends, -ends, [np.nan]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [n for n in oracle.OPS if "save" not in n])
def test_operator_over_its_whole_range(backend: str, name: str, dtype: str) -> None:
    """By relative error, in front of and behind a reduction: tails, and numbers near 0, count as much as the rest."""
    if oracle.OPS[name].host and backend.startswith("cuda"):
        pytest.skip("no CUDA kernel has it")
    machine = oracle.MACHINES[dtype]
    x = np.clip(whole_range(machine.top, machine.tiny), -machine.top, machine.top)
    x = np.concatenate([x, [np.inf, -np.inf]]).astype(dtype)[:, None]
    for given in oracle.OPS[name].tried:
        op = f"{name}({given})" if given else name
        for chain, columns in ((f"linear | {op}", 3), (f"linear | max | {op}", 1), (f"linear | {op} | max", 5)):
            case = Case(chain, x, np.ones((columns, 1), dtype), None, {}, dtype, dtype, dtype)
            case.check(case.run(backend), expected=case.expected(backend))


@pytest.mark.parametrize("saved", ["save | sigmoid | mul_saved", "save | mish | mul_saved", "save | tanh | add_saved"])
def test_saved_values_over_their_whole_range(backend: str, saved: str) -> None:
    x = np.linspace(-40, 40, 3001, dtype=np.float32)[:, None]
    for chain in (f"linear | {saved}", f"linear | max | {saved}"):
        case = Case(chain, x, np.ones((1, 1), np.float32))
        case.check(case.run(backend), expected=case.expected(backend))


@pytest.mark.parametrize("math", ["tf32", "bf16"])
@pytest.mark.parametrize("data", ["sigma5", "lognormal", "outlier"])
def test_coarser_products_stay_within_their_types(backend: str, math: str, data: str) -> None:
    for chain in ("linear", "linear | logsumexp", "linear | max"):
        case = make_case(chain, seeded(data, 40, 300, 130))
        try:
            y = case.run(backend, math=math)
        except rowfold.UnsupportedError as error:
            pytest.skip(str(error))
        case.check(y, math, case.expected(backend, math))


@pytest.mark.parametrize("y_dtype", ["float16", "bfloat16", "float32"])
def test_result_is_rounded_once(backend: str, y_dtype: str) -> None:
    """Sums of small integers are exact in float32, so the stored result is the correctly rounded one, ties to even
    included.
    """
    rng = np.random.default_rng(4)
    x, w = rng.integers(-8, 9, (64, 40)).astype(np.float32), rng.integers(-8, 9, (50, 40)).astype(np.float32)
    case = Case("linear | mul(0.0078125)", x, w, None, {}, "float32", "float32", y_dtype)
    exact = (x.astype(np.float64) @ w.T) / 128
    y = case.run(backend)
    np.testing.assert_array_equal(widen(y, y_dtype), rounded(exact, y_dtype, False))
    overflow = Case("linear | mul(1e30)", x, w, None, {}, "float32", "float32", "float16").run(backend)
    assert (np.isinf(overflow) | (exact == 0)).all()
