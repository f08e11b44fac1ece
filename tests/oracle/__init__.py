# SPDX-License-Identifier: MIT
"""The judge: what a chain means, in float64, and how far a correct implementation may be from it.

Independent of the library: its own parser of chain text, its own operator table (PyTorch's meaning), numpy and math
only.

`evaluate` carries an interval beside every value. The interval must contain what a careful implementation in the
compute type (float32, or float64 for float64 weights) gets. u is the unit roundoff of that type.

Logits. With p_k the K products, s their sum, Q the sum of their squares and A of their absolute values, the error is
at most (K + 1) u A to first order, whatever the order of summation (Higham, Accuracy and Stability, 3.1). That is far
above what happens. The rounding errors of random data behave as independent ones of standard deviation at most u
|partial sum| / sqrt(3). Over a random order the squared partial sums average s^2 / 3 + Q / 6, and with a large term
first up to s^2 + Q, so that
    sigma = u / sqrt(3) * sqrt(K (s^2 + Q) / 2 + Q)
with the last Q for products rounded without FMA. A logit may be off by the smaller of 6 sigma and the worst case, and
by u of itself for the bias, added last. Repeated values break the independence: tests with structured data keep K
small, where the worst case rules.

Operators. An operator takes interval to interval: it is evaluated at both ends and at its own critical points in
between, so no derivative is needed. A row of OPS says by how much an implementation may miss: `slack`, a relative
change of the input in units of u (for formulas that round an argument before an ill-conditioned function, as gelu
does before erfc), and `ulps` of the result, plus a few of the smallest subnormals. Where a pole, an overflow or the
end of a domain lies inside the interval nothing can be said, and the result is `unsure`.

Reductions grow with each element, so they map ends to ends. For sums and logsumexp that is pessimistic: the errors of
different logits are independent, those of an operator need not be, and so `fold_band` takes the first in quadrature
and the second one by one. The folding itself adds the rounding of a blocked sum (BLOCK columns, then the blocks), and
logsumexp what exp and log lose.

Output. Rounding is monotone: the ends are rounded to the output type, and the result must lie between. There is no
further tolerance. test_oracle.py checks the values against torch in float64, and that no tolerance is far above the
error of a plain float32 program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from stored import rounded, widen

from oracle.answers import ASKING, PAIRS, TopColumns, ask, gather, rank, topk
from oracle.chains import Op, parse, parse_results
from oracle.intervals import MACHINES, Band, Result, State, Vectors, apply, logits, overflow, param
from oracle.operators import OPS, Row
from oracle.reductions import REDUCTIONS, Fold

Array = np.ndarray
_Shared = dict[tuple[Any, ...], State]  # behind operators with which several results begin
__all__ = [
    "ASKING",
    "MACHINES",
    "OPS",
    "PAIRS",
    "REDUCTIONS",
    "Fold",
    "Result",
    "Row",
    "TopColumns",
    "assert_matches",
    "error_bound",
    "evaluate",
    "evaluate_results",
    "folded",
    "parse",
    "plain_float32",
    "violations",
]


def _spelled_out(ops: list[Op]) -> list[Op]:
    """Without reductions that are like others."""
    likes = [REDUCTIONS[op.name].like if op.name in REDUCTIONS else "" for op in ops]
    return [part for op, like in zip(ops, likes) for part in (parse(f"linear | {like}") if like else [op])]


def folded(name: str, x: Array, *params: float) -> Array:
    """A reduction of the rows of x."""
    reduction = REDUCTIONS[name]
    if reduction.f:
        return reduction.f(x, *params)
    *steps, last = parse(f"linear | {reduction.like}")
    for op in steps:
        x = OPS[op.name].f(x, *(*op.params, 0.0, 0.0)[:2], x)
    return folded(last.name, x, *last.params)


def _reduce(op: Op, state: State, dtype: str) -> State:
    m, fold = MACHINES[dtype], REDUCTIONS[op.name]
    value = folded(op.name, state.value, *op.params)
    if fold.band:
        band, unsure = fold.band(state, value, m, *op.params)
    else:
        band, half, unsure = Band(*(folded(op.name, end) for end in state.all)), np.zeros_like(value), np.zeros(1, bool)
        if fold.losing and state.value.shape[1]:
            band, half, unsure = fold.losing(state, value, band, m)
        reached = np.isinf(value) & ((band.lo != value) | (band.hi != value))
        unsure = unsure | (reached & np.isfinite(state.value).all(axis=1))
        band = Band(band.lo - half, band.hi + half)
    band = Band(*(np.where(np.isfinite(value), end, value) for end in band))
    value, band, unsure = overflow(value, band, state.unsure.any(axis=1) | unsure, m)
    column = Band(band.lo[:, None], band.hi[:, None])
    return State(value[:, None], column, column, column, unsure[:, None])


def evaluate(
    chain: str,
    x: Array,
    w: Array,
    b: Array | None = None,
    vectors: Vectors | None = None,
    *,
    dtype: str = "float32",
    products: str = "f32",
) -> Result:
    """The chain on float64 copies of the stored inputs: x (batch, K), w (N, K), b (N). `dtype` is the compute type."""
    (result,) = evaluate_results(chain, x, w, b, vectors, dtype=dtype, products=products)
    assert isinstance(result, Result)
    return result


def evaluate_results(
    chain: str,
    x: Array,
    w: Array,
    b: Array | None = None,
    vectors: Vectors | None = None,
    *,
    dtype: str = "float32",
    products: str = "f32",
) -> list[Result | TopColumns]:
    """As `evaluate`, of a chain with any number of results; topk has two. Among the vectors "#name" is a row input,
    (batch, 1) or for gather (batch, k).
    """
    b, vectors = np.zeros(w.shape[0]) if b is None else b, vectors or {}
    rows = max(16, 32768 // max(1, w.shape[0]))  # what they need stays in a core's cache
    parts = []
    with np.errstate(all="ignore"):
        for first in range(0, max(1, len(x)), rows):
            own = slice(first, first + rows)
            named = {name: v[own] if name.startswith("#") else v for name, v in vectors.items()}
            columns = logits(x[own], w, b, dtype, products)
            shared: _Shared = {}
            results = [_evaluate(ops, columns, named, dtype, shared) for ops in parse_results(chain)]
            parts.append([part for result in results for part in result])
    return [_joined(results, [len(x[i * rows : (i + 1) * rows]) for i in range(len(parts))]) for results in zip(*parts)]


def _joined(parts: Sequence[Any], rows: Sequence[int]) -> Any:
    """Named tuples of arrays, each of so many rows, as one; an array of one row stands for all."""
    first = parts[0]
    if isinstance(first, tuple):
        return type(first)(*(_joined(fields, rows) for fields in zip(*parts)))
    if not isinstance(first, np.ndarray):
        return first
    return np.concatenate([np.broadcast_to(part, (n, *part.shape[1:])) for part, n in zip(parts, rows)])


def _evaluate(ops: list[Op], state: State, vectors: Vectors, dtype: str, shared: _Shared) -> list[Result | TopColumns]:
    saved, done, ops = None, False, _spelled_out(ops)
    causes = next((REDUCTIONS[op.name].apart for op in ops if op.name in REDUCTIONS), False)
    causes |= any(op.name == "logprob" for op in ops)
    for i, op in enumerate(ops):
        if op.name == "topk":
            return topk(state, int(float(op.params[0])))
        if op.name in ("rank", "gather"):
            columns = vectors[str(op.params[0])].astype(np.int64)
            state = rank(state, columns[:, 0]) if op.name == "rank" else gather(state, columns)
            done = True
        elif op.name in ASKING:
            column, ignored = op.params
            state, saved, done = ask(op.name, state, vectors[str(column)][:, 0], ignored, dtype), None, True
        elif op.name not in REDUCTIONS:
            before = (causes, done, *ops[: i + 1])
            if before not in shared:
                shared[before] = apply(op.name, op.params, state, saved, vectors, dtype, causes and not done)
            state = shared[before]
            saved = state if op.name == "save" else saved
        elif not done:
            state, saved, done = _reduce(op, state, dtype), None, True
        elif isinstance(alone := REDUCTIONS[op.name].alone, str):
            state = apply(alone, (), state, None, vectors, dtype, False) if alone else state
        else:
            value = alone(state.value, *op.params)
            band = Band(value, value)
            state = State(value, band, band, band, state.unsure)
    return [Result(state.value, state.all.lo, state.all.hi, state.unsure)]


def error_bound(result: Result) -> Array:
    """How far a number may be from `result.value` before it is rounded to the output type; 0 for infinities and NaN."""
    with np.errstate(invalid="ignore"):
        half = np.where(np.isfinite(result.value), np.maximum(result.hi - result.value, result.value - result.lo), 0)
    return np.where(result.unsure, np.inf, half)


def violations(y: Array, expected: Result | TopColumns, y_dtype: str) -> Array:
    """Boolean (batch, width): where the stored y is not what a correct implementation may give. The sign of a zero is
    free. Columns are int64 whatever y_dtype says.
    """
    if isinstance(expected, TopColumns):
        assert y.dtype == np.int64
        return expected.violations(y)
    if y.dtype == np.int64:
        wrong: Array = ~(((expected.lo <= y) & (y <= expected.hi)) | expected.unsure)
        return wrong
    got = widen(y, y_dtype)
    assert got.shape == expected.value.shape, (got.shape, expected.value.shape)
    lo, hi = rounded(expected.lo, y_dtype, False), rounded(expected.hi, y_dtype, True)
    right = np.where(np.isnan(expected.value), np.isnan(got), (lo <= got) & (got <= hi))
    return ~(right | expected.unsure)


def assert_matches(y: Array, expected: Result | TopColumns, y_dtype: str, context: str = "") -> None:
    wrong = np.argwhere(violations(y, expected, y_dtype))
    if len(wrong):
        i, j = wrong[0]
        if isinstance(expected, TopColumns):
            raise AssertionError(f"row {i}: number {j} is no column {y[i, j]}, of {y[i]}. {context}")
        raise AssertionError(
            f"{len(wrong)} of {y.size} wrong; row {i} column {j}: got {y[i, j]!r}, must lie in "
            f"[{expected.lo[i, j]!r}, {expected.hi[i, j]!r}] around {expected.value[i, j]!r}. {context}"
        )


def plain_float32(chain: str, x: Array, w: Array, b: Array | None = None, vectors: Vectors | None = None) -> Array:
    """What a straightforward float32 program gets: products added up one after the other, operators and folds in
    float32.

    The yardstick of promised accuracy. It says nothing about special values.
    """
    x, w = x.astype(np.float32), w.astype(np.float32)
    z = np.zeros((x.shape[0], w.shape[0]), np.float32)
    for k in range(x.shape[1]):
        z += x[:, k : k + 1] * w[:, k]
    z = z if b is None else z + b.astype(np.float32)
    saved, done = z, False
    with np.errstate(all="ignore"):
        for op in _spelled_out(parse(chain)):
            if op.name in REDUCTIONS:
                alone = REDUCTIONS[op.name].alone
                if not done:
                    z, done = folded(op.name, z, *op.params)[:, None].astype(np.float32), True
                elif alone:
                    z = OPS[alone].f(z, 0, 0, z) if isinstance(alone, str) else alone(z, *op.params)
                continue
            a, b2 = ([param(p, vectors or {}, "float32").astype(np.float32) for p in op.params] + [np.float32(0)] * 2)[
                :2
            ]
            z = OPS[op.name].f(z, a, b2, saved).astype(np.float32)
            saved = z if op.name == "save" else saved
    return z
