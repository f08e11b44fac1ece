# SPDX-License-Identifier: MIT
"""PyTorch's behaviour on special values, line by line, on every backend.

An operator stands in front of the reduction, behind it, and in a chain without one; the logit is exactly the value
wanted, since K is 1, W is 1 and there is no bias. Reductions get their columns from W or from the bias, alone and
among neutral columns.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import rowfold
from cases import Case, same_bits

NAN, INF = math.nan, math.inf
WIDTHS = (1, 7, 67)  # columns: alone, less than a vector, vectors and a rest
MACHINES = {"float32": (2.0**-23, 2.0**-149), "float64": (2.0**-52, 2.0**-1074)}


class Either(NamedTuple):
    """More than one result is right."""

    values: tuple[float, ...]


class Exactly(NamedTuple):
    """The sign of a zero counts."""

    value: float


def phi(x: float) -> float:
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


# What the line is about; operators; logit; result.
ELEMENTWISE = [
    ("clamp: NaN stays", "clamp(-1, 1)", NAN, NAN),
    ("clamp: a NaN bound makes everything NaN", "clamp(nan, 1)", 0.5, NAN),
    ("clamp: a NaN bound makes everything NaN", "clamp(-1, nan)", 0.5, NAN),
    ("clamp: a NaN bound makes everything NaN", "clamp(min=nan)", INF, NAN),
    ("clamp: lo > hi gives hi", "clamp(3, -3)", 0.0, -3.0),
    ("clamp: lo > hi gives hi", "clamp(3, -3)", 10.0, -3.0),
    ("clamp: lo > hi gives hi", "clamp(3, -3)", -INF, -3.0),
    ("clamp: -0.0 at bound 0, either", "neg | clamp(0, 1)", 0.0, 0.0),
    ("clamp: a missing bound is unbounded", "clamp(min=-1)", INF, INF),
    ("clamp: a missing bound is unbounded", "clamp(min=-1)", -5.0, -1.0),
    ("clamp: a missing bound is unbounded", "clamp(max=1)", -INF, -INF),
    ("clamp: a missing bound is unbounded", "clamp(max=1)", 1e30, 1.0),
    ("clamp", "clamp(-10, 10)", 10.5, 10.0),
    ("hardtanh: NaN stays", "hardtanh", NAN, NAN),
    ("hardtanh", "hardtanh", -INF, -1.0),
    ("hardtanh", "hardtanh(-2, 3)", INF, 3.0),
    ("hardtanh: equal bounds are allowed", "hardtanh(2, 2)", -INF, 2.0),
    ("relu: NaN stays", "relu", NAN, NAN),
    ("relu: -0.0, either", "neg | relu", 0.0, 0.0),
    ("relu", "relu", -INF, 0.0),
    ("relu", "relu", INF, INF),
    ("leaky_relu: NaN stays", "leaky_relu", NAN, NAN),
    ("leaky_relu: -0.0 stays", "neg | leaky_relu(0.01)", 0.0, Exactly(-0.0)),
    ("leaky_relu: a = 0 at -inf gives NaN", "leaky_relu(0)", -INF, NAN),
    ("leaky_relu: x > 0 ? x : x*a", "leaky_relu(0.01)", -INF, -INF),
    ("leaky_relu: x > 0 ? x : x*a", "leaky_relu(-2)", -3.0, 6.0),
    ("leaky_relu: x > 0 ? x : x*a", "leaky_relu(0.5)", 4.0, 4.0),
    ("gelu: NaN stays", "gelu", NAN, NAN),
    ("gelu: -inf is NaN", "gelu", -INF, NAN),
    ("gelu: +inf", "gelu", INF, INF),
    ("gelu: large x is x", "gelu", 3e38, 3e38),
    ("gelu: large negative x", "gelu", -3e38, 0.0),
    ("gelu: full relative accuracy near 0", "gelu", -1e-8, -1e-8 * phi(-1e-8)),
    ("gelu: the tail does not cancel", "gelu", -6.0, -6.0 * phi(-6.0)),
    ("gelu: the erf form", "gelu", 1.0, phi(1.0)),
    ("gelu(tanh) is another function", "gelu(tanh)", 1.0, 0.8411919906082768),
    ("gelu(tanh): -inf is NaN", "gelu(tanh)", -INF, NAN),
    ("gelu(tanh): +inf", "gelu(tanh)", INF, INF),
    ("gelu(tanh): large x is x", "gelu(tanh)", 3e38, 3e38),
    ("silu: -inf is NaN", "silu", -INF, NAN),
    ("silu: +inf", "silu", INF, INF),
    ("silu: the tail", "silu", -80.0, -80.0 * math.exp(-80.0)),
    ("x*sigmoid(x): -inf is NaN", "save | sigmoid | mul_saved", -INF, NAN),
    ("x*sigmoid(x): +inf", "save | sigmoid | mul_saved", INF, INF),
    ("hardswish: -inf is NaN", "hardswish", -INF, NAN),
    ("hardswish: +inf", "hardswish", INF, INF),
    ("hardswish: may overflow on the way", "hardswish", 3e38, Either((3e38, INF))),
    ("hardsigmoid", "hardsigmoid", -INF, 0.0),
    ("hardsigmoid: NaN stays", "hardsigmoid", NAN, NAN),
    ("logsigmoid: -inf", "logsigmoid", -INF, -INF),
    ("logsigmoid: +inf", "logsigmoid", INF, 0.0),
    ("logsigmoid: the tail is -exp(-x)", "logsigmoid", 100.0, -math.exp(-100.0)),
    ("logsigmoid: the tail is -exp(-x)", "logsigmoid", 80.0, -math.exp(-80.0)),
    ("logsigmoid: x far below", "logsigmoid", -90.0, -90.0),
    ("elu: -1 at -inf", "elu", -INF, -1.0),
    ("elu: alpha", "elu(2)", -INF, -2.0),
    ("elu: accurate near 0", "elu", -1e-8, math.expm1(-1e-8)),
    ("elu: large x", "elu", INF, INF),
    ("mish: large x gives x", "mish", 50.0, 50.0),
    ("mish: large x gives x", "mish", 3e38, 3e38),
    ("mish: +inf", "mish", INF, INF),
    ("mish: -inf is NaN", "mish", -INF, NAN),
    ("mish: -1000 gives -0.0", "mish", -1000.0, Exactly(-0.0)),
    ("mish: subnormals kept", "mish", -100.0, -100.0 * math.exp(-100.0)),
    ("mish: the tail", "mish", -80.0, -80.0 * math.exp(-80.0)),
    ("mish: no threshold", "mish", 8.0, 8.0 * math.tanh(math.log1p(math.exp(8.0)))),
    ("softplus: x above the threshold", "softplus", 20.5, 20.5),
    ("softplus: x above the threshold", "softplus(2, 20)", 10.25, 10.25),
    ("softplus: below it, the formula", "softplus(1, 20)", 19.5, math.log1p(math.exp(19.5))),
    ("softplus: beta", "softplus(4, 20)", -0.5, math.log1p(math.exp(-2.0)) / 4),
    ("softplus: the tail", "softplus", -80.0, math.exp(-80.0)),
    ("softplus: -inf", "softplus", -INF, 0.0),
    ("softplus: NaN stays", "softplus", NAN, NAN),
    ("sigmoid saturates", "sigmoid", INF, 1.0),
    ("sigmoid saturates", "sigmoid", -INF, 0.0),
    ("sigmoid: NaN stays", "sigmoid", NAN, NAN),
    ("sigmoid: the tail", "sigmoid", -80.0, math.exp(-80.0)),
    ("tanh saturates", "tanh", INF, 1.0),
    ("tanh saturates", "tanh", -1e30, -1.0),
    ("tanh: NaN stays", "tanh", NAN, NAN),
    ("tanh: accurate near 0", "tanh", 1e-8, 1e-8),
    ("minimum: NaN on either side", "minimum(1)", NAN, NAN),
    ("minimum: NaN on either side", "minimum(nan)", 1.0, NAN),
    ("minimum", "minimum(1)", INF, 1.0),
    ("maximum: NaN on either side", "maximum(1)", NAN, NAN),
    ("maximum: NaN on either side", "maximum(nan)", 1.0, NAN),
    ("maximum", "maximum(1)", -INF, 1.0),
    ("exp", "exp", -INF, 0.0),
    ("exp: subnormals kept", "exp", -100.0, math.exp(-100.0)),
    ("exp overflows to inf", "exp", 1000.0, INF),
    ("exp: NaN stays", "exp", NAN, NAN),
    ("log", "log", 0.0, -INF),
    ("log", "log", -1.0, NAN),
    ("log", "log", INF, INF),
    ("log: subnormal argument", "log", 2.0**-140, -140 * math.log(2.0)),
    ("log1p", "log1p", -1.0, -INF),
    ("log1p", "log1p", -1.5, NAN),
    ("log1p", "log1p", INF, INF),
    ("log1p: NaN stays", "log1p", NAN, NAN),
    ("log1p: accurate near 0", "log1p", 1e-10, math.log1p(1e-10)),
    ("log1p: subnormals kept", "log1p", 2.0**-140, 2.0**-140),
    ("log1p of -0.0", "neg | log1p", 0.0, Exactly(-0.0)),
    ("log1p of the largest", "log1p", 3e38, math.log(3e38)),
    ("sqrt", "sqrt", -1.0, NAN),
    ("sqrt", "sqrt", INF, INF),
    ("sqrt of -0.0", "neg | sqrt", 0.0, Exactly(-0.0)),
    ("reciprocal", "reciprocal", 0.0, INF),
    ("reciprocal of -0.0", "neg | reciprocal", 0.0, -INF),
    ("reciprocal", "reciprocal", -INF, Exactly(-0.0)),
    ("division by 0", "div(0)", -1.0, -INF),
    ("division by 0", "div(0)", 0.0, NAN),
    ("inf - inf", "save | neg | add_saved", INF, NAN),
    ("inf * 0", "mul(0)", INF, NAN),
    ("softcap saturates", "softcap(30)", INF, 30.0),
    ("softcap: NaN stays", "softcap(30)", NAN, NAN),
    ("square overflows to inf", "square", -INF, INF),
    ("abs", "abs", -INF, INF),
    ("neg: NaN stays", "neg", NAN, NAN),
]


def right(got: float, want: float | Either | Exactly, logit: float, dtype: str) -> bool:
    """Finite results to 32 ulp and a few of the smallest subnormals times the logit: factors in mish and gelu."""
    if isinstance(want, Either):
        return any(right(got, value, logit, dtype) for value in want.values)
    if isinstance(want, Exactly):
        return got == want.value and math.copysign(1, got) == math.copysign(1, want.value)
    if math.isnan(want):
        return math.isnan(got)
    if math.isinf(want):
        return got == want
    ulp, tiny = MACHINES[dtype]
    if want == 0 or abs(want) > 2 * tiny * (1 + min(abs(logit), 1000)):
        assert want == 0 or got != 0, "lost to zero"
    return abs(got - want) <= 32 * ulp * abs(want) + 2 * tiny * (1 + min(abs(logit), 1000))


def one_logit(chain: str, value: float, columns: int, dtype: str) -> Case:
    return Case(chain, np.full((3, 1), value, dtype), np.ones((columns, 1), dtype), None, {}, dtype, dtype, dtype)


@pytest.mark.parametrize(
    ("about", "ops", "logit", "want"), ELEMENTWISE, ids=lambda v: str(v) if isinstance(v, str) else ""
)
def test_elementwise(backend: str, about: str, ops: str, logit: float, want: float | Either | Exactly) -> None:
    for dtype in MACHINES:
        for columns in WIDTHS:
            for chain in (f"linear | {ops}", f"linear | {ops} | max", f"linear | max | {ops}", f"linear | {ops} | min"):
                for simplify in ("none", "algebraic"):
                    case = one_logit(chain, logit, columns, dtype)
                    for got in case.run(backend, simplify=simplify).ravel():
                        assert right(float(got), want, logit, dtype), (about, case, simplify, got, want)


@pytest.mark.parametrize("logit", [1.1, -0.3, 3e38, 1e-40, NAN, INF])
def test_doubling_has_one_meaning(backend: str, logit: float) -> None:
    """x + x and 2*x are the same bits."""
    for tail in ("", " | max", " | logsumexp"):
        a = one_logit(f"linear | save | add_saved{tail}", logit, 67, "float32")
        b = one_logit(f"linear | mul(2){tail}", logit, 67, "float32")
        for simplify in ("none", "exact", "algebraic"):
            assert same_bits(a.run(backend, simplify=simplify), b.run(backend, simplify=simplify)), (tail, simplify)


BIG = 3.4e38
REDUCTIONS = [
    ("logsumexp: NaN anywhere", "logsumexp", (NAN, 1.0), NAN),
    ("logsumexp: NaN anywhere", "logsumexp", (1.0, NAN), NAN),
    ("logsumexp: NaN also beside +inf", "logsumexp", (NAN, INF), NAN),
    ("logsumexp: NaN also beside +inf", "logsumexp", (INF, NAN), NAN),
    ("logsumexp: NaN beside -inf", "logsumexp", (-INF, NAN), NAN),
    ("logsumexp: +inf anywhere", "logsumexp", (1.0, INF, -2.0), INF),
    ("logsumexp: +inf anywhere", "logsumexp", (INF, -INF), INF),
    ("logsumexp: +inf twice", "logsumexp", (INF, INF), INF),
    ("logsumexp: all -inf", "logsumexp", (-INF, -INF, -INF), -INF),
    ("logsumexp: {-inf, finite}", "logsumexp", (-INF, 2.5), 2.5),
    ("logsumexp: {-inf, finite}", "logsumexp", (1e-5, -INF), 1e-5),
    ("logsumexp: {finite, -inf} far down", "logsumexp", (-3e38, -INF), -3e38),
    ("logsumexp: no overflow on the way", "logsumexp", (BIG, BIG), BIG),
    ("logsumexp: no underflow on the way", "logsumexp", (-200.0, -201.0), -200.0 + math.log1p(math.exp(-1.0))),
    ("logsumexp: the maximum is subtracted", "logsumexp", (1000.0, 1001.0), 1001.0 + math.log1p(math.exp(-1.0))),
    ("logsumexp: rising maxima are not mixed", "logsumexp", (-80.0, 0.0, 80.0, 80.0), 80.0 + math.log(2.0)),
    ("max: NaN propagates", "max", (NAN, 1.0), NAN),
    ("max: NaN propagates", "max", (1.0, NAN), NAN),
    ("max: NaN beside +inf", "max", (INF, NAN), NAN),
    ("max: all -inf", "max", (-INF, -INF), -INF),
    ("max", "max", (-5.0, -3.0, -4.0), -3.0),
    ("min: NaN propagates", "min", (NAN, 1.0), NAN),
    ("min: NaN propagates", "min", (1.0, NAN), NAN),
    ("min: NaN beside -inf", "min", (-INF, NAN), NAN),
    ("min: all +inf", "min", (INF, INF), INF),
    ("min", "min", (5.0, 3.0, 4.0), 3.0),
    ("entropy: NaN anywhere", "entropy", (NAN, 1.0), NAN),
    ("entropy: NaN beside -inf", "entropy", (-INF, NAN), NAN),
    ("entropy: +inf anywhere", "entropy", (1.0, INF, -2.0), NAN),
    ("entropy: +inf twice", "entropy", (INF, INF), NAN),
    ("entropy: all -inf", "entropy", (-INF, -INF), NAN),
    ("entropy: one column, or one that is not -inf", "entropy", (2.5,), 0.0),
    ("entropy: 0 * -inf is 0", "entropy", (-INF, 2.5), 0.0),
    ("entropy: 0 * -inf is 0", "entropy", (3.0, -INF, 3.0), math.log(2.0)),
    ("entropy: equal columns far out", "entropy", (BIG, BIG), math.log(2.0)),
    ("entropy: far apart, no inf - inf on the way", "entropy", (-BIG, BIG), 0.0),
    ("entropy: rising maxima", "entropy", (-80.0, 0.0, 80.0, 80.0), math.log(2.0)),
    ("entropy", "entropy", (math.log(0.5), math.log(0.25), math.log(0.25)), 1.5 * math.log(2.0)),
    ("sum: {-inf, +inf}", "sum", (-INF, INF), NAN),
    ("sum: {+inf, finite}", "sum", (INF, -5.0), INF),
    ("sum: {-inf, finite}", "sum", (-INF, 5.0), -INF),
    ("sum: NaN", "sum", (1.0, NAN), NAN),
    ("sum overflows", "sum", (BIG, BIG), INF),
    ("sum", "sum", (1.5, -4.0, 0.25), -2.25),
    ("mean: {-inf, +inf}", "mean", (-INF, INF), NAN),
    ("mean: +inf", "mean", (INF, 1.0), INF),
    ("mean: NaN", "mean", (1.0, NAN), NAN),
    ("mean may overflow where the sum does", "mean", (BIG, BIG), Either((BIG, INF))),
    ("mean may not where the sum does not", "mean", (BIG, -BIG), 0.0),
    ("mean", "mean", (1.0, 2.0, 4.5), 2.5),
]
# A column that changes nothing, to spread the others over tiles and threads. There is none for mean.
NEUTRAL = {"logsumexp": -INF, "entropy": -INF, "max": -INF, "min": INF, "sum": 0.0}


def layouts(kind: str, columns: tuple[float, ...]) -> list[np.ndarray]:
    found = [np.array(columns)]
    for width in (64, 129, 1000) if kind in NEUTRAL else ():
        row = np.full(width, NEUTRAL[kind])
        for places in (range(len(columns)), range(width - len(columns), width), range(5, width, width // len(columns))):
            spread = row.copy()
            spread[list(places)[: len(columns)]] = columns
            found.append(spread)
    return found


@pytest.mark.parametrize(
    ("about", "kind", "columns", "want"), REDUCTIONS, ids=lambda v: str(v) if isinstance(v, str) else ""
)
def test_reduction(backend: str, about: str, kind: str, columns: tuple[float, ...], want: float | Either) -> None:
    for dtype in MACHINES:
        if dtype == "float64" and any(abs(v) == BIG for v in columns):
            columns = tuple(v / BIG * 1.7e308 if abs(v) == BIG else v for v in columns)
            want = {BIG: 1.7e308}.get(want, want) if not isinstance(want, Either) else Either((1.7e308, INF))
        for row in layouts(kind, columns):
            row = row.astype(dtype)
            one, none = np.ones((2, 1), dtype), np.zeros((2, 1), dtype)
            from_w = Case(f"linear | {kind}", one, row[:, None], None, {}, dtype, dtype, dtype)
            from_b = Case(f"linear | {kind}", none, 0 * np.ones((row.size, 1), dtype), row, {}, dtype, dtype, dtype)
            for case in (from_w, from_b):
                for got in case.run(backend).ravel():
                    assert right(float(got), want, 0.0, dtype), (about, case, row[:10], got, want)


# Columns, and the first best one among them.
INDICES = [
    ("ties: the first", "argmax", (1.0, 5.0, 5.0, 2.0), 1),
    ("ties of zeros", "argmax", (-0.0, 0.0), 0),
    ("all -inf", "argmax", (-INF, -INF, -INF), 0),
    ("+inf", "argmax", (1.0, INF, INF), 1),
    ("the first NaN, before +inf", "argmax", (INF, NAN, 1.0, NAN), 1),
    ("NaN alone", "argmax", (NAN, NAN), 0),
    ("ties: the first", "argmin", (1.0, -5.0, -5.0, 2.0), 1),
    ("ties of zeros", "argmin", (0.0, -0.0), 0),
    ("all +inf", "argmin", (INF, INF, INF), 0),
    ("-inf", "argmin", (1.0, -INF, -INF), 1),
    ("the first NaN, before -inf", "argmin", (-INF, NAN, 1.0, NAN), 1),
]


@pytest.mark.parametrize(
    ("about", "kind", "columns", "want"), INDICES, ids=lambda v: str(v) if isinstance(v, str) else ""
)
def test_index(backend: str, about: str, kind: str, columns: tuple[float, ...], want: int) -> None:
    worst = -INF if kind == "argmax" else INF
    for dtype in MACHINES:
        for width, first in [(len(columns), 0), (129, 0), (600, 300), (600, 255), (1000, 990)]:
            row = np.full(width, worst, dtype)
            row[first : first + len(columns)] = columns
            # Where nothing is better than the columns around, the first of those is meant.
            alone = np.all(np.array(columns) == worst)
            one = np.ones((2, 1), dtype)
            case = Case(f"linear | {kind}", one, row[:, None], None, {}, dtype, dtype, dtype)
            assert (case.run(backend) == (0 if alone else first + want)).all(), (about, dtype, width, first)


@pytest.mark.cpu_only  # whose kernels take so many columns
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_an_index_is_exact_beyond_what_float32_can_tell_apart(backend: str, kind: str) -> None:
    n = 2**24 + 10
    row = np.zeros(n, np.float32)
    row[2**24 + 3] = 1 if kind == "argmax" else -1
    one = np.ones((1, 1), np.float32)
    y = Case(f"linear | {kind}", one, row[:, None]).run(backend)
    assert y.dtype == np.int64 and y == 2**24 + 3


@pytest.mark.parametrize(
    ("kind", "value", "want"),
    [("entropy", 3.0, 0.0), ("entropy", -INF, NAN), ("argmax", NAN, 0.0), ("argmin", 3e38, 0.0)],
)
def test_of_one_column(backend: str, kind: str, value: float, want: float) -> None:
    chains = [f"linear | {kind}"]
    if kind == "entropy":
        chains += [f"linear | max | {kind}", f"linear | {kind} | {kind}"]
    for chain in chains:
        expected = 0.0 if chain.endswith("entropy | entropy") and want == 0 else want
        for y in one_logit(chain, value, 1, "float32").run(backend).ravel():
            assert right(float(y), expected, 0.0, "float32"), (chain, y)


@pytest.mark.parametrize("value", [0.1, -7.25, 3e38, -3e38, 1e-45, INF, -INF, NAN])
def test_reduction_of_one_column_is_the_column(backend: str, value: float) -> None:
    for kind in ("logsumexp", "sum", "mean", "max", "min"):
        for chain in (f"linear | {kind}", f"linear | max | {kind}", f"linear | {kind} | {kind} | {kind}"):
            case = one_logit(chain, value, 1, "float32")
            for simplify in ("none", "algebraic"):
                y = case.run(backend, simplify=simplify)
                assert same_bits(y, np.full((3, 1), value, np.float32)), (chain, simplify, y)


def test_logsumexp_of_minus_zero_is_plus_zero(backend: str) -> None:
    for chain in ("linear | neg | logsumexp", "linear | neg | max | logsumexp", "linear | max | neg | logsumexp"):
        for simplify in ("none", "exact", "algebraic"):
            y = one_logit(chain, 0.0, 1, "float32").run(backend, simplify=simplify)
            assert (y == 0).all() and not np.signbit(y).any(), (chain, simplify)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_ties_of_zeros_give_a_zero(backend: str, kind: str) -> None:
    w = np.array([[0.0], [-0.0], [0.0], [-0.0]], np.float32)
    assert (Case(f"linear | {kind}", np.ones((2, 1), np.float32), w).run(backend) == 0).all()


@pytest.mark.parametrize(("kind", "want"), [("logsumexp", -INF), ("sum", 0.0), ("mean", NAN)])
def test_no_columns(backend: str, kind: str, want: float) -> None:
    for k in (0, 5):
        y = Case(f"linear | {kind}", np.ones((3, k), np.float32), np.ones((0, k), np.float32)).run(backend)
        assert y.shape == (3, 1) and all(right(float(v), want, 0.0, "float32") for v in y.ravel())
    assert Case("linear", np.ones((3, 2), np.float32), np.ones((0, 2), np.float32)).run(backend).shape == (3, 0)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_max_of_no_columns_is_an_error(backend: str, kind: str) -> None:
    with pytest.raises(rowfold.ChainError, match=f"{kind}.*out_features"):
        rowfold.Model(f"linear(4, 0) | {kind}", backend=backend)


def test_both_bounds_of_a_clamp_missing_is_an_error() -> None:
    with pytest.raises(rowfold.ChainError, match="clamp"):
        rowfold.Model("linear(4, 4) | clamp")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_16_bit_inputs_accumulate_in_float32(backend: str, dtype: str, kind: str) -> None:
    """4097 columns of 1 + 2^-7, which both types hold: a 16-bit sum would stop at 256 or 2048. It is rounded once."""
    n, value = 4097, 1 + 2.0**-7
    stored = np.full((n, 1), value).astype(np.float16) if dtype == "float16" else np.full((n, 1), 0x3F81, np.uint16)
    one = np.ones((2, 1), np.float16) if dtype == "float16" else np.full((2, 1), 0x3F80, np.uint16)
    for y_dtype in ("float32", "float16"):
        case = Case(f"linear | {kind}", one, stored, None, {}, dtype, dtype, y_dtype)
        exact = n * value if kind == "sum" else value
        assert (case.run(backend) == np.dtype(y_dtype).type(exact)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_no_inputs_give_the_bias(backend: str, dtype: str) -> None:
    b = np.array([1.5, -INF, NAN, 0.25, INF] * 30, dtype)
    case = Case("linear", np.ones((3, 0), dtype), np.ones((b.size, 0), dtype), b, {}, dtype, dtype, dtype)
    np.testing.assert_array_equal(case.run(backend), np.broadcast_to(b, (3, b.size)))
    case = Case("linear | max", case.x, case.w[:2], b[:2], {}, dtype, dtype, dtype)
    np.testing.assert_array_equal(case.run(backend), np.full((3, 1), 1.5))


def test_empty_batch(backend: str) -> None:
    for chain, width in (("linear | max", 1), ("linear", 5)):
        y = Case(chain, np.ones((0, 4), np.float32), np.ones((5, 4), np.float32)).run(backend)
        assert y.shape == (0, width) and y.dtype == np.float32


@pytest.mark.parametrize("k", [1, 5, 64, 70, 300])
@pytest.mark.parametrize("infinite", [INF, -INF, NAN])
def test_infinity_times_zero_in_the_dot_product(backend: str, k: int, infinite: float) -> None:
    """At every place in K, on either side. The other columns and rows do not notice."""
    for at in {0, k // 2, k - 1}:
        w = np.ones((66, k), np.float32)
        w[7, at] = 0
        x = np.ones((9, k), np.float32)
        x[4, at] = infinite
        y = Case("linear", x, w).run(backend)
        assert np.isnan(y[4, 7])
        rest = np.delete(y[4], 7)
        assert np.isnan(rest).all() if math.isnan(infinite) else (rest == infinite).all()
        np.testing.assert_array_equal(np.delete(y, 4, axis=0), np.delete(np.broadcast_to(w.sum(1), y.shape), 4, axis=0))
        w[7, at], w[20, at] = 1, infinite
        x[4, at], x[2, at] = 1, 0
        y = Case("linear", x, w).run(backend)
        assert np.isnan(y[2, 20]) and np.isfinite(np.delete(y, 20, axis=1)).all()
        assert math.isnan(infinite) or (np.delete(y[:, 20], 2) == infinite).all()


@pytest.mark.parametrize("shape", [(6,), (1, 6), (2, 3, 6), (2, 0, 6), (4, 1, 2, 6)])
def test_leading_dimensions_are_kept(backend: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=shape).astype(np.float32), rng.normal(size=(5, 6)).astype(np.float32)
    for chain, width in (("linear | max", 1), ("linear", 5)):
        with Case(chain, x.reshape(-1, 6), w).model(backend) as model:
            y = model(x)
            assert y.shape == (*shape[:-1], width)
            assert same_bits(y.reshape(-1, width), model(x.reshape(-1, 6)))


def test_any_layout_is_accepted_and_never_written(backend: str) -> None:
    x = np.random.default_rng(2).normal(size=(12, 10)).astype(np.float32)
    case = Case("linear | logsumexp", x, np.random.default_rng(3).normal(size=(7, 10)).astype(np.float32))
    with case.model(backend) as model:
        plain = model(x)
        wide = np.full((12, 33), NAN, np.float32)
        wide[:, 3:13] = x
        spread = np.full((12, 20), NAN, np.float32)
        spread[:, ::2] = x
        read_only = x.copy()
        read_only.flags.writeable = False
        backwards = np.ascontiguousarray(x[::-1])[::-1]
        for layout in (np.asfortranarray(x), x.T.copy().T, wide[:, 3:13], spread[:, ::2], read_only, backwards):
            before = layout.copy()
            assert same_bits(model(layout), plain)
            np.testing.assert_array_equal(layout, before)


def test_wrong_input_is_named(backend: str) -> None:
    with Case("linear | max", np.ones((1, 4), np.float32), np.ones((5, 4), np.float32)).model(backend) as model:
        with pytest.raises(rowfold.InvalidArgumentError, match=r"x .*\(2, 3\).*4"):
            model(np.ones((2, 3), np.float32))
        with pytest.raises(rowfold.ArgumentTypeError, match="x .*float64.*float32"):
            model(np.ones((2, 4)))
        with pytest.raises(rowfold.ArgumentTypeError, match="x .*int64"):
            model(np.ones((2, 4), np.int64))
        with pytest.raises(rowfold.InvalidArgumentError, match="x "):
            model(np.float32(3))


# Columns, the one that is asked for, and log_softmax there, as PyTorch has it.
LOGPROBS = [
    ("-inf beside finite ones", (1.0, -INF, 1.0), 1, -INF),
    ("beside -inf", (1.0, -INF, 1.0), 0, -math.log(2.0)),
    ("NaN in the row", (1.0, NAN), 0, NAN),
    ("NaN is asked for", (1.0, NAN), 1, NAN),
    ("+inf in the row", (1.0, INF), 0, NAN),
    ("+inf is asked for", (1.0, INF), 1, NAN),
    ("all -inf", (-INF, -INF), 0, NAN),
    ("far apart", (1e30, -1e30), 0, 0.0),
    ("far apart", (1e30, -1e30), 1, -2e30),
    ("one column", (7.0,), 0, 0.0),
    ("no cancellation", (4096.0, 4096.0 - 12.0), 0, -math.log1p(math.exp(-12.0))),
    ("no cancellation", (-60000.0, -60000.0), 1, -math.log(2.0)),
]


@pytest.mark.parametrize(
    ("about", "columns", "at", "want"), LOGPROBS, ids=lambda v: str(v) if isinstance(v, str) else ""
)
def test_logprob(backend: str, about: str, columns: tuple[float, ...], at: int, want: float) -> None:
    """To some ulp of itself, or of 1, as far as a sum of 1 and more is known: not of the logits. And what an ignored
    row holds does not matter.
    """
    for dtype in MACHINES:
        for width, first in [(len(columns), 0), (129, 100), (600, 255)]:
            row = np.full(width, -INF, dtype)
            row[first : first + len(columns)] = columns
            one = np.ones((3, 1), dtype)
            asked = np.array([first + at, -100, first + at])
            case = Case("linear | logprob(#t), pick(#c)", one, row[:, None], None, {}, dtype, dtype, dtype)
            case = Case(**{**case.__dict__, "rows": {"t": asked, "c": np.abs(asked) % width}})
            logprob, pick = case.run(backend)
            assert logprob[1, 0] == 0
            for i in (0, 2):
                assert np.isclose(
                    logprob[i, 0], want, rtol=8 * np.finfo(dtype).eps, atol=2 * np.finfo(dtype).eps, equal_nan=True
                ), width
                assert np.array_equal(pick[i, 0], row[first + at], equal_nan=True)


# Operator, columns.
SPREADS = [
    ("var", (1.0, 2.0, 4.0)),
    ("var(0)", (1.0, 2.0, 4.0)),
    ("var(correction=2)", (1.0, 2.0, 4.0)),
    ("var", (7.0,)),
    ("var(0)", (7.0,)),
    ("var(900)", (1.0, 2.0)),
    ("var", (1.0, INF)),
    ("var", (-INF, -INF)),
    ("var", (NAN, 1.0)),
    ("var", (4096.25, 4096.75)),
    ("std", (-1.0, 3.0)),
    ("std(0)", (65536.5, 65536.75)),
    ("std", (2.0, NAN)),
    ("norm", (3.0, -4.0)),
    ("norm", (-0.0, 0.0)),
    ("norm", (-INF, 1.0)),
    ("norm", (INF, NAN)),
    ("norm", (1e30, 2e30, -1e35)),
    ("norm", (3e-40, -4e-40)),
    ("norm", (1e-30, 2e-30)),
    ("norm", (2e38, -1e38)),
]


@pytest.mark.parametrize(("operator", "columns"), SPREADS)
def test_var_std_norm(backend: str, operator: str, columns: tuple[float, ...]) -> None:
    """As float64 has it, to 32 ulp: no square of a sum is subtracted, and the squares of norm leave no range."""
    name, _, inside = operator.rstrip(")").partition("(")
    correction = float(inside.rpartition("=")[2] or 1)
    for dtype in MACHINES:
        for times in (1, 11, 67, 400):
            row = np.tile(np.array(columns, dtype), times)
            exact = row.astype(np.longdouble)
            with np.errstate(all="ignore"):
                spread = np.square(exact - exact.mean()).sum() / max(exact.size - correction, 0)
                wanted = {"var": spread, "std": np.sqrt(spread), "norm": np.sqrt(np.square(exact).sum())}[name]
                wanted = float(np.dtype(dtype).type(wanted))  # infinite beyond the type's range
            case = Case(f"linear | {operator}", np.ones((3, 1), dtype), row[:, None], None, {}, dtype, dtype, dtype)
            y = case.run(backend)
            assert all(right(float(v), wanted, 0.0, dtype) for v in y.ravel()), (case, y, wanted)


def test_spread_of_one_number(backend: str) -> None:
    """Behind another reduction, over its one column; and of no columns."""
    for operator, value, want in [
        ("var", 3.0, NAN),
        ("var(0)", 3.0, 0.0),
        ("std(0.5)", -2.0, 0.0),
        ("std", 1.0, NAN),
        ("norm", -3.5, 3.5),
        ("norm", -INF, INF),
        ("norm", NAN, NAN),
        ("var(0)", INF, NAN),
    ]:
        for simplify in ("none", "algebraic"):
            y = one_logit(f"linear | max | {operator}", value, 67, "float32").run(backend, simplify=simplify)
            assert all(right(float(v), want, 0.0, "float32") for v in y.ravel()), (operator, value, y)
    for operator, want in [("var", NAN), ("std(0)", NAN), ("norm", 0.0)]:
        y = Case(f"linear | {operator}", np.ones((3, 2), np.float32), np.ones((0, 2), np.float32)).run(backend)
        assert all(right(float(v), want, 0.0, "float32") for v in y.ravel()), operator
