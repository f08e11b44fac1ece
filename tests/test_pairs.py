# SPDX-License-Identifier: MIT
"""Products of bfloat16, which some processors add in pairs with subnormals taken for zero: no result may show it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import rowfold
from cases import Case
from stored import store, widen

Array = np.ndarray
PAIRS, VALUES = "cpu-avx512-bf16", "cpu-avx512"
SHAPES = [(1, 1, 49), (3, 2, 64), (15, 513, 257), (60, 1101, 300), (113, 40, 50)]


def case_of(chain: str, x: Array, w: Array, b: Array | None = None, x_dtype: str = "bfloat16") -> Case:
    return Case(chain, store(x, x_dtype), store(w, "bfloat16"), b, {}, "bfloat16", x_dtype)


def scaled(rng: np.random.Generator, shape: tuple[int, int], exponent: int) -> Array:
    """Magnitudes from 2^exponent to just below its double, in bfloat16."""
    return np.ldexp(rng.choice([-1.0, 1.0], shape) * (1 + rng.integers(0, 128, shape) / 128), exponent)


def spoil(rng: np.random.Generator, values: Array, with_what: list[float]) -> Array:
    """Three of the values replaced."""
    values = values.copy()
    values.flat[rng.integers(0, values.size, 3)] = rng.choice(with_what, 3)
    return values


@pytest.mark.cpu_only
@pytest.mark.parametrize("x_dtype", ["bfloat16", "float32"])
def test_subnormal_inputs_count(backend: str, x_dtype: str) -> None:
    """One subnormal in x or W, in each half of a pair, in the last pair of an odd K, beside a large factor."""
    n, k = 66, 515
    for at, value in itertools.product((0, 1, 256, 511, 512, 514), (2.0**-133, -(2.0**-127))):
        for in_x in (True, False):
            x, w = np.zeros((17, k)), np.zeros((n, k))
            x[5, at], w[7, at] = (value, 2.0**120) if in_x else (2.0**120, value)
            y = case_of("linear", x, w, x_dtype=x_dtype).run(backend)
            want = np.zeros((17, n), np.float32)
            want[5, 7] = value * 2.0**120
            np.testing.assert_array_equal(y, want)


@pytest.mark.cpu_only
@pytest.mark.parametrize("exponents", [(-70, -70), (-110, -10), (-10, -110), (-64, -48), (-64, -49), (-56, -57)])
def test_subnormal_sums_are_kept(backend: str, exponents: tuple[int, int]) -> None:
    """Products of normal values that are subnormal, and sums that become so where they cancel: all are exact.

    The square of 1 + 2^-7 lies 2^-14 above 1 + 2^-6: the last bit that a product has, subnormal from exponents of -113
    together on.
    """
    above = 1 + 2.0**-7
    x = np.ldexp(np.tile([[above, -(1 + 2.0**-6), above]], (20, 1)), exponents[0])
    w = np.ldexp(np.tile([[above, 1.0, 1.0]], (70, 1)), exponents[1])
    for columns, what in (([0, 1], 2.0**-14), ([1, 0], 2.0**-14), ([0, 1, 2], above + 2.0**-14), ([0], above**2)):
        y = case_of("linear", x[:, columns], w[:, columns]).run(backend)
        want = np.float32(np.ldexp(what, sum(exponents)))
        np.testing.assert_array_equal(y, np.full((20, 70), want))


@pytest.mark.cpu_only
def test_rows_do_not_notice_a_neighbour_with_subnormals(backend: str) -> None:
    """Nor do columns: what stands beside a row in its tile decides how its products are added, but not their sum."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((40, 700)), rng.standard_normal((300, 700))
    case = case_of("linear | logsumexp", x, w)
    alone = case.run(backend)
    x[[3, 20], [5, 650]] = 2.0**-130, -(2.0**-127)
    together = case_of("linear | logsumexp", x, w).run(backend)
    untouched = np.delete(np.arange(40), [3, 20])
    np.testing.assert_array_equal(together[untouched].view(np.uint32), alone[untouched].view(np.uint32))
    w[[100], [699]] = 2.0**-128
    logits = [case_of("linear", x, w).run(backend), case_of("linear", x, np.delete(w, 100, axis=0)).run(backend)]
    np.testing.assert_array_equal(np.delete(logits[0], 100, axis=1).view(np.uint32), logits[1].view(np.uint32))


def both(case: Case) -> list[Array]:
    return [np.nan_to_num(case.run(name), nan=12345.0).view(np.uint32) for name in (PAIRS, VALUES)]


@pytest.mark.skipif(
    not all(b.available for b in rowfold.backends() if b.name in (PAIRS, VALUES)), reason="no AVX512-BF16 here"
)
@pytest.mark.parametrize("x_dtype", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pairs_have_the_bits_of_values(shape: tuple[int, int, int], x_dtype: str) -> None:
    """AVX512-BF16 against AVX-512: the same order and roundings, on ordinary values and all that is not."""
    rng = np.random.default_rng(list(shape))
    batch, k, n = shape
    x, w = rng.standard_normal((batch, k)), rng.standard_normal((n, k))
    x = widen(store(x, x_dtype), x_dtype)  # values of its type, which others may lie beside
    b = 10 * rng.standard_normal(n).astype(np.float32)
    cases = [
        (x, w),
        (spoil(rng, x, [0.0, -0.0]), spoil(rng, w, [0.0, -0.0])),
        (spoil(rng, x, [np.inf, -np.inf, 0.0]), spoil(rng, w, [0.0, np.inf])),
        (spoil(rng, x, [np.nan]), w),
    ]
    if x_dtype != "float16":
        cases += [
            (spoil(rng, x, [2.0**-133, -(2.0**-127)]), w),
            (x, spoil(rng, w, [2.0**-133, -(2.0**-127)])),
            (spoil(rng, x, [3e38, -3e38]), spoil(rng, w, [3e38, -3e38])),
            (spoil(rng, x, [2.0**-60]), spoil(rng, w, [2.0**-60])),
        ]
        for left, right in ((-62, -50), (-62, -51), (-50, -62), (-51, -62), (-56, -57), (-70, -65)):
            cases.append((scaled(rng, x.shape, left), scaled(rng, w.shape, right)))
    for of_x, of_w in cases:
        bias = b if np.abs(of_w).max() > 1e-9 else None
        for chain in ("linear", "linear | max"):
            pairs, values = both(case_of(chain, of_x, of_w, bias, x_dtype))
            np.testing.assert_array_equal(pairs, values)


@pytest.mark.skipif(not all(b.available for b in rowfold.backends() if b.name == PAIRS), reason="no AVX512-BF16 here")
def test_explain_says_where_products_come_in_pairs() -> None:
    for dtype, x_dtype, chain in itertools.product(
        ("bfloat16", "float32"), ("bfloat16", "float32"), ("linear(30, 70)", "linear(300, 4)")
    ):
        with rowfold.Model(chain, dtype=dtype, x_dtype=x_dtype, backend=PAIRS) as model:
            said = "in pairs by AVX512-BF16" in model.explain(batch=100)
        assert said == ((dtype, x_dtype, chain) == ("bfloat16", "bfloat16", "linear(30, 70)"))
