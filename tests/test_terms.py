# SPDX-License-Identifier: MIT
"""float32 in three terms of bfloat16, on AMX or by multiply-adds in the order of its tiles."""

from __future__ import annotations

import importlib
import itertools

import datasets
import numpy as np
import pytest
import rowfold
from cases import Case, make_case, same_bits
from stored import store, widen

pytestmark = pytest.mark.cpu_only
Array = np.ndarray
TERMS = ["cpu-amx-terms", "cpu-avx512-terms"]
VALUES = "cpu-avx512"
AVAILABLE = {b.name: b.available for b in rowfold.backends()}
SHAPES = [(1, 2, 49), (3, 33, 64), (15, 513, 257), (60, 1101, 300), (113, 40, 50), (129, 512, 2050)]


@pytest.fixture(params=TERMS)
def name(request: pytest.FixtureRequest) -> str:
    """Each backend that has terms, where it can run."""
    if not AVAILABLE[request.param]:
        pytest.skip(f"no {request.param} here")
    return str(request.param)


def linear(x: Array, w: Array, b: Array | None = None, x_dtype: str = "float32") -> Case:
    return Case("linear", store(x, x_dtype), store(w, "float32"), b, {}, "float32", x_dtype)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Without values that stand alone where there are two."""
    return rng.choice([-1.0, 1.0], shape) * (0.5 + rng.random(shape))


def terms(values: Array) -> list[Array]:
    """Three of bfloat16, which add up to float32 values."""
    found, rest = [], values.astype(np.float64)
    for _ in range(3):
        found.append(widen(store(rest, "bfloat16"), "bfloat16"))
        rest = rest - found[-1]
    assert not rest.any()
    return found


SMALL = [(0, 2), (0, 1), (1, 1), (1, 0), (2, 0)]


def added_by_steps(x: Array, w: Array) -> Array:
    """Logits as tiles add them: of each chunk of 512 inputs the small products of every 32, then those of first terms.

    The even and the odd inputs of a step are a sum each. What is added there has 16 bits and exponents that differ
    little, so float64 holds the sum of it and a float, which is then rounded once.
    """
    of_x, of_w = terms(x), terms(w)
    total = np.zeros((len(x), len(w)), np.float32)
    for chunk in range(0, x.shape[1], 512):
        steps = [range(k, min(k + 32, chunk + 512, x.shape[1])) for k in range(chunk, min(chunk + 512, x.shape[1]), 32)]
        products = [(step, i, j) for step in steps for i, j in SMALL] + [(step, 0, 0) for step in steps]
        in_chunk = np.zeros_like(total)
        for step, i, j in products:
            halves = [np.zeros_like(total), np.zeros_like(total)]
            for k in step:
                halves[k % 2] = (halves[k % 2] + np.multiply.outer(of_x[i][:, k], of_w[j][:, k])).astype(np.float32)
            in_chunk += halves[0] + halves[1]
        total += in_chunk
    return total


@pytest.mark.parametrize("x_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 32, 49), (33, 31, 50), (17, 33, 64), (20, 543, 300), (130, 1100, 70)], ids=str)
def test_terms_are_added_in_their_order(shape: tuple[int, int, int], x_dtype: str, name: str) -> None:
    rng = np.random.default_rng(list(shape))
    batch, k, n = shape
    x, w = widen(store(normal(rng, batch, k), x_dtype), x_dtype), normal(rng, n, k).astype(np.float32)
    y = linear(x, w, x_dtype=x_dtype).run(name)
    np.testing.assert_array_equal(y.view(np.uint32), added_by_steps(x, w).view(np.uint32))


@pytest.mark.parametrize("data", datasets.ALL)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tiles_have_the_bits_of_multiply_adds(shape: tuple[int, int, int], data: str) -> None:
    if not all(AVAILABLE[name] for name in TERMS):
        pytest.skip(f"not both {TERMS[0]} and {TERMS[1]} here")
    batch, k, n = shape
    for chain in ("linear", "linear | max"):
        case = make_case(chain, datasets.ALL[data](np.random.default_rng(list(shape)), batch, k, n))
        assert same_bits(*(case.run(name) for name in TERMS))


def error(y: Array, exact: Array, scale: Array) -> float:
    counts = np.isfinite(exact) & (scale > 0)
    return float(np.sqrt(np.mean(((y[counts] - exact[counts]) / scale[counts]) ** 2)))


@pytest.mark.parametrize("data", datasets.FINITE)
def test_terms_err_no_more_than_values(data: str, name: str) -> None:
    """Of logits, in units of the sum of their products' magnitudes; beside PyTorch's, too, where it is there."""
    case = make_case("linear", datasets.ALL[data](np.random.default_rng([12, 777]), 80, 777, 301))
    x, w, b = (widen(v, "float32") for v in (case.x, case.w, case.b))
    exact, scale = x @ w.T + b, np.abs(x) @ np.abs(w).T + np.abs(b)
    others = [error(case.run(VALUES).astype(np.float64), exact, scale)]
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        pass
    else:
        x32, w32, b32 = (torch.tensor(v) for v in (case.x, case.w, case.b))
        others.append(error(torch.nn.functional.linear(x32, w32, b32).numpy().astype(np.float64), exact, scale))
    ours = error(case.run(name).astype(np.float64), exact, scale)
    assert ours <= 1.001 * min(others), (ours, others)


@pytest.mark.parametrize("k", [1, 2, 31, 512, 1100])
def test_sums_of_integers_are_exact(k: int, name: str) -> None:
    """As long as the sum of the products' magnitudes is below 2^23, whatever share of it each has."""
    rng = np.random.default_rng(k)
    for bits in range(1, 22):
        x = rng.integers(-(2**bits), 2**bits, (40, k)).astype(np.float64)
        most = max(1, int(2**23 / max(1, np.abs(x).sum(axis=1).max())))
        w = rng.integers(-most, most + 1, (70, k)).astype(np.float64)
        if (np.abs(x) @ np.abs(w).T).max() >= 2**23:
            continue
        np.testing.assert_array_equal(linear(x, w).run(name), x @ w.T)


ODD = {
    "infinite": [np.inf],
    "both infinities": [np.inf, -np.inf],
    "not a number": [np.nan],
    "subnormal": [2.0**-149, -(2.0**-127)],
    "small": [2.0**-104],
    "smaller than the others allow": [2.0**-80, 2.0**-70],
    "large": [3e38],
    "larger than the others allow": [2.0**118, -(2.0**117)],
    "alone": [2.0**21],
}


@pytest.mark.parametrize("what", ODD)
def test_a_row_without_terms_is_multiplied_in_float(what: str, name: str) -> None:
    """With the bits of that kernel in the chunk concerned. No other row notices, and neither does it."""
    rng = np.random.default_rng(len(what))
    x, w = normal(rng, 75, 700).astype(np.float32), normal(rng, 300, 700).astype(np.float32)
    before = linear(x, w).run(name)
    rows = [0, 3, 4, 5, 20, *range(32, 49), 74]
    for i, row in enumerate(rows):
        values = ODD[what]
        x[row, 5 + 9 * i : 5 + 9 * i + len(values)] = values
    case = linear(x, w)
    y, by_value = case.run(name), case.run(VALUES)
    others = np.setdiff1d(np.arange(75), rows)
    assert same_bits(y[others], before[others])
    assert not same_bits(y[others], by_value[others])
    alone = linear(x[:, :512], w[:, :512], rng.standard_normal(300).astype(np.float32))
    assert same_bits(alone.run(name)[rows], alone.run(VALUES)[rows])
    case.check(y, what, case.expected(name))
    for row in (0, 4, 74, 50):
        assert same_bits(linear(x[[row]], w).run(name)[0], y[row])
    permuted = rng.permutation(75)
    assert same_bits(linear(x[permuted], w).run(name), y[permuted])


@pytest.mark.parametrize("what", ODD)
def test_a_panel_without_terms_is_multiplied_in_float(what: str, name: str) -> None:
    """32 columns have one way, in each chunk; others do not notice."""
    rng = np.random.default_rng(len(what))
    x, w = normal(rng, 40, 700).astype(np.float32), normal(rng, 300, 700).astype(np.float32)
    before = linear(x, w).run(name)
    w[33, 5 : 5 + len(ODD[what])] = ODD[what]
    case = linear(x, w)
    y = case.run(name)
    assert same_bits(np.delete(y, np.s_[32:64], axis=1), np.delete(before, np.s_[32:64], axis=1))
    assert same_bits(
        linear(x[:, :512], w[:, :512]).run(name)[:, 32:64], linear(x[:, :512], w[:, :512]).run(VALUES)[:, 32:64]
    )
    case.check(y, what, case.expected(name))
    with case.model(name) as model:
        model.update_weights(np.where(np.isfinite(w) & (np.abs(w) < 2) & (np.abs(w) > 0.4), w, 1).astype(np.float32))
        assert not same_bits(model(case.x)[:, 32:64], y[:, 32:64])
        model.update_weights(w)
        assert same_bits(model(case.x), y)


@pytest.mark.parametrize(
    "exponents", [(-40, -40), (-60, -20), (-41, -40), (-70, -70), (0, -103), (-126, 0), (-104, 80)]
)
def test_least_products_are_kept(exponents: tuple[int, int], name: str) -> None:
    """The product of two last bits alone is left, where the rest cancels."""
    last = 2.0**-23
    for x, w, left in (
        ([1 + last, -1, -1, -last], [1 + last, 1, 2 * last, 0], last**2),
        ([1 + last, -(1 + last), 1], [1, 1, last], last),
    ):
        case = linear(np.ldexp([x] * 20, exponents[0]), np.ldexp([w] * 70, exponents[1]))
        want = np.ldexp(left, sum(exponents))
        y = case.run(name).astype(np.float64)
        bound = np.ldexp(2.0**-22 if left < last else 0, sum(exponents))  # what any order of additions may lose
        assert np.all(np.abs(y - want) <= bound + 2.0**-149), (y[0, 0], want)


def test_weights_take_half_as_much_again(name: str) -> None:
    """And no more, of float32; other types take what they take elsewhere."""
    for dtype, (k, n) in itertools.product(("float32", "bfloat16", "float16"), ((512, 512), (1023, 320))):
        held = []
        for backend in (name, VALUES):
            with rowfold.Model("linear", k, n, dtype=dtype, backend=backend) as model:
                model.load_weights(store(np.ones((n, k)), dtype))
                held.append(model.info.prepared_bytes)
        item = 6 if dtype == "float32" else 2
        assert held[0] <= item * (k + 1) * n + 4 * n + 4096, (dtype, held)


def test_explain_says_so_and_nothing_chooses_it(name: str) -> None:
    by = "AMX-BF16" if name == TERMS[0] else "multiply-adds in the order of tiles"
    for dtype, chain in itertools.product(("float32", "bfloat16", "float64"), ("linear(30, 70)", "linear(300, 4)")):
        with rowfold.Model(chain, dtype=dtype, backend=name) as model:
            said = f"products of three bfloat16 terms each by {by}, slivers of 32 x 32" in model.explain(batch=100)
        assert said == ((dtype, chain) == ("float32", "linear(30, 70)"))
    with rowfold.Model("linear(30, 70)", device="cpu") as model:
        assert not any(f"backend {other}" in model.explain(batch=100) for other in TERMS)
