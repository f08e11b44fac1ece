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
different logits are independent, those of an operator need not be, and so `_fold_band` takes the first in quadrature
and the second one by one. The folding itself adds the rounding of a blocked sum (BLOCK columns, then the blocks), and
logsumexp what exp and log lose.

Output. Rounding is monotone: the ends are rounded to the output type, and the result must lie between. There is no
further tolerance. test_oracle.py checks the values against torch in float64, and that no tolerance is far above the
error of a plain float32 program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from stored import rounded, widen

Array = np.ndarray
Vectors = Mapping[str, Array]
SIGMAS = 6.0
BLOCK = 128


@dataclass(frozen=True)
class Op:
    name: str
    params: tuple[float | str, ...]  # a str is the name of a per-feature vector, or of a row input with its #


_PART = re.compile(r"\s*([a-z_0-9]+)\s*(?:\((.*)\))?\s*\Z")


def parse(text: str) -> list[Op]:
    """The operators behind the linear layer, of a chain with one result."""
    (ops,) = parse_results(text)
    return ops


def parse_results(text: str) -> list[list[Op]]:
    """For each result the operators behind the linear layer, those of the trunk first."""
    linear, *first = _split(_split(text, ",")[0], "|")
    match = _PART.match(linear)
    if not match or match.group(1) != "linear":
        raise ValueError(f"{text!r} does not begin with linear")
    trunk: list[Op] = []
    while first and not first[0].strip().startswith("("):
        op = _operator(first[0])
        if op.name in (*REDUCTIONS, *ASKING, *PAIRS):
            break
        trunk.append(op)
        first.pop(0)
    branches = ["|".join(first), *_split(text, ",")[1:]]
    results = []
    for branch in branches:
        inside = branch.strip()
        if inside.startswith("(") and inside.endswith(")"):
            inside = inside[1:-1]
        results.append([*trunk, *(_operator(part) for part in _split(inside, "|") if inside.strip())])
    return results


def _split(text: str, separator: str) -> list[str]:
    """Parts of the text between separators that stand in no parentheses."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == separator and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def _operator(part: str) -> Op:
    match = _PART.match(part)
    if not match:
        raise ValueError(f"cannot read {part!r}")
    name, inside = match.group(1), (match.group(2) or "").strip()
    if name == "topk":
        return Op(name, (float(inside.rpartition("=")[2]),))
    if name in ASKING:
        column, _, ignored = inside.partition(",")
        return Op(name, (column.strip(), float(ignored.rpartition("=")[2] or -100)))
    if name == "gelu" and inside == "tanh":
        name, inside = "gelu(tanh)", ""
    params = (OPS.get(name) or REDUCTIONS[name]).params
    names = [p for p, _ in params]
    values: list[float | str | None] = [default for _, default in params]
    for j, arg in enumerate(inside.split(",") if inside else []):
        key, equals, value = arg.rpartition("=")
        values[names.index(key.strip()) if equals else j] = _value(value.strip())
    if None in values:
        raise ValueError(f"{part!r} lacks a parameter")
    return Op(name, tuple(v for v in values if v is not None))


def _value(text: str) -> float | str:
    return text[1:] if text.startswith("@") else text if text.startswith("#") else float(text)


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _log1p_exp(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # 1 / (1 + exp(-x)) would lose the subnormal end of the tail
    return np.where(x < 0, small, 1) / (1 + small)


class Row(NamedTuple):
    """One operator: f(x, a, b, s), s the saved value.

    `points(a, b)`: where f may turn or jump. `inner(x, a, b)`: the largest number that a formula may pass through;
    where that overflows, the formula may or may not, and both are right. `crest`: where a wave of length 2 pi is 1.
    `tried`: what tests write between its parentheses. `host`: no CUDA kernel has it.
    """

    f: Callable[..., Array]
    params: tuple[tuple[str, float | None], ...] = ()
    vector: bool = False
    ulps: float = 0.0
    slack: float = 0.0
    points: Callable[..., tuple] = lambda a, b: ()
    inner: Callable[..., Array] | None = None
    crest: float | None = None
    tried: tuple[str, ...] = ("",)
    host: bool = False


def _at(*points: float) -> Callable[..., tuple]:
    return lambda a, b: points


def _jump(at: Array) -> tuple:
    beside = 1e-15 * np.abs(at) + 1e-300
    return at, at - beside, at + beside


_OTHER: tuple[tuple[str, float | None], ...] = (("other", None),)
_2U = 2 * math.sqrt(2 / math.pi)

# An ulp is 2 u: half of one would be a correctly rounded operation, and one leaves room for merged factors and x * (1
# / c). exp, log, tanh and their like are allowed 3; formulas, the sum of their parts.
OPS: dict[str, Row] = {
    "mul": Row(lambda x, a, b, s: x * a, _OTHER, True, 1, points=_at(0.0), tried=("0.7", "2.5", "-0.1", "0")),
    "add": Row(lambda x, a, b, s: x + a, _OTHER, True, 1, tried=("0.7", "1.5")),
    "sub": Row(lambda x, a, b, s: x - a, _OTHER, True, 1, tried=("-3", "1.5")),
    "div": Row(lambda x, a, b, s: x / a, _OTHER, True, 1, points=_at(0.0), tried=("0.3", "3", "-0.5")),
    "minimum": Row(lambda x, a, b, s: np.minimum(x, a), _OTHER, True, tried=("1", "0.5", "nan")),
    "maximum": Row(lambda x, a, b, s: np.maximum(x, a), _OTHER, True, tried=("1", "0.5", "nan")),
    "neg": Row(lambda x, a, b, s: -x),
    "abs": Row(lambda x, a, b, s: np.abs(x), points=_at(0.0)),
    "square": Row(lambda x, a, b, s: x * x, ulps=1, points=_at(0.0)),
    "sqrt": Row(lambda x, a, b, s: np.sqrt(x), ulps=1),
    "exp": Row(lambda x, a, b, s: np.exp(x), ulps=3),
    "log": Row(lambda x, a, b, s: np.log(x), ulps=3),
    "log1p": Row(lambda x, a, b, s: np.log1p(x), ulps=3),
    "reciprocal": Row(lambda x, a, b, s: 1 / x, ulps=1, points=_at(0.0, -0.0)),
    "sin": Row(lambda x, a, b, s: np.sin(x), ulps=1, crest=math.pi / 2, host=True),
    "cos": Row(lambda x, a, b, s: np.cos(x), ulps=1, crest=0.0, host=True),
    "relu": Row(lambda x, a, b, s: np.maximum(x, 0)),
    "leaky_relu": Row(
        lambda x, a, b, s: np.where(x > 0, x, x * a),
        (("negative_slope", 0.01),),
        ulps=1,
        points=_at(0.0),
        tried=("", "-0.5", "-2", "0"),
    ),
    "elu": Row(
        lambda x, a, b, s: np.where(x > 0, x, a * np.expm1(x)),
        (("alpha", 1.0),),
        ulps=4,
        points=_at(0.0),
        tried=("", "2.5", "-1"),
    ),
    "gelu": Row(
        lambda x, a, b, s: x * (0.5 * _erfc(-x * math.sqrt(0.5))), ulps=5, slack=2, points=_at(-0.75179152469356)
    ),
    "gelu(tanh)": Row(
        lambda x, a, b, s: x * _sigmoid(_2U * (x + 0.044715 * x**3)), ulps=6, slack=6, points=_at(-0.75246142207102)
    ),
    "silu": Row(lambda x, a, b, s: x * _sigmoid(x), ulps=6, points=_at(-1.27846454276107)),
    "mish": Row(lambda x, a, b, s: x * np.tanh(_log1p_exp(x)), ulps=8, points=_at(-1.19243121451550)),
    "softplus": Row(
        lambda x, a, b, s: np.where(x * a > b, x, _log1p_exp(x * a) / a),
        (("beta", 1.0), ("threshold", 20.0)),
        ulps=7,
        slack=2,
        points=lambda a, b: _jump(b / a),
        inner=lambda x, a, b: np.where(x * a > b, 0, np.exp(x * a)),
        tried=("", "2, 5", "0.5, 0", "2, 1", "-1.5, 3"),
    ),
    "sigmoid": Row(lambda x, a, b, s: _sigmoid(x), ulps=5),
    "logsigmoid": Row(lambda x, a, b, s: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))), ulps=7),
    "tanh": Row(lambda x, a, b, s: np.tanh(x), ulps=3),
    "clamp": Row(
        lambda x, a, b, s: np.minimum(np.maximum(x, a), b),
        (("min", -math.inf), ("max", math.inf)),
        tried=("-3, 2.5", "max=1", "3, -3", "nan, 1"),
    ),
    "hardtanh": Row(
        lambda x, a, b, s: np.minimum(np.maximum(x, a), b),
        (("min_val", -1.0), ("max_val", 1.0)),
        tried=("", "-2, 0.5", "-2, 5"),
    ),
    "hardswish": Row(
        lambda x, a, b, s: x * (np.minimum(np.maximum(x + 3, 0), 6) / 6),
        ulps=2,
        points=_at(-1.5),
        inner=lambda x, a, b: np.where(np.isinf(x), 0, 6 * np.abs(x)),
    ),
    "hardsigmoid": Row(lambda x, a, b, s: np.minimum(np.maximum(x + 3, 0), 6) / 6, ulps=2),
    "softcap": Row(
        lambda x, a, b, s: a * np.tanh(x / a), (("cap", None),), ulps=4, slack=2, tried=("30", "1", "10", "-2")
    ),
    "save": Row(lambda x, a, b, s: x),
    "add_saved": Row(lambda x, a, b, s: x + s, ulps=1),
    "mul_saved": Row(lambda x, a, b, s: x * s, ulps=1),
}


def _logsumexp(x: Array) -> Array:
    top = np.max(x, axis=1, initial=-np.inf)  # propagates NaN
    anchor = np.where(np.isfinite(top), top, 0)
    return anchor + np.log(np.sum(np.exp(x - anchor[:, None]), axis=1))


def _entropy(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        d = x - np.max(x, axis=1, initial=-np.inf)[:, None]
        e = np.exp(d)
        t = np.sum(e, axis=1)
        return np.log(t) - np.sum(np.where(e == 0, 0, d * e), axis=1) / t


def _squares(x: Array) -> Array:
    """The sum of the squared distances from the mean."""
    d = x - x.sum(axis=1, keepdims=True) / max(x.shape[1], 1)
    return np.sum(d * d, axis=1)


def _variance(x: Array, correction: float = 1.0) -> Array:
    return _squares(x) / np.float64(max(x.shape[1] - correction, 0))


def _deviation(x: Array, correction: float = 1.0) -> Array:
    return np.sqrt(_variance(x, correction))


def _norm(x: Array) -> Array:
    top = np.max(np.abs(x), axis=1, initial=0)  # propagates NaN
    scale = np.where(np.isfinite(top) & (top > 0), top, 1)
    return np.where(np.isfinite(top), scale * np.sqrt(np.sum((x / scale[:, None]) ** 2, axis=1)), top)


# Reductions that ask for columns of each row, by a row input; logprob knows rows that are ignored, too.
ASKING = ("pick", "logprob", "rank", "gather")
# Those with two results.
PAIRS = ("topk",)


class Band(NamedTuple):
    lo: Array
    hi: Array


class Result(NamedTuple):
    """Float64 (batch, width) each. The computed number must lie between lo and hi; where `unsure`, any will do."""

    value: Array
    lo: Array
    hi: Array
    unsure: Array


class TopColumns(NamedTuple):
    """Which columns a topk may name: of each, the fewest and the most that come before it."""

    state: State
    k: int

    def violations(self, y: Array) -> Array:
        """Where column y[row, i] cannot be number i, or stands there twice, or is none."""
        n = self.state.value.shape[1]
        assert y.shape == (len(self.state.value), self.k), y.shape
        inside = (y >= 0) & (y < n)
        columns = np.where(inside, y, 0)
        wrong = ~inside
        for i in range(self.k):
            least, most = _columns_before(self.state, columns[:, i])
            unsure = self.state.unsure.any(axis=1)
            wrong[:, i] |= ~(((least <= i) & (i <= most)) | unsure)
            wrong[:, i] |= (columns[:, :i] == columns[:, i : i + 1]).any(axis=1)
        return wrong


class Machine(NamedTuple):
    """The compute type: unit roundoff, largest number, smallest subnormal, and how often an error counts.

    That is twice in float64, where the judge rounds as coarsely as the judged.
    """

    u: float
    top: float
    tiny: float
    errors: float


MACHINES = {
    "float32": Machine(2.0**-24, float(np.finfo(np.float32).max), 2.0**-149, 1.0),
    "float64": Machine(2.0**-53, float(np.finfo(np.float64).max), 2.0**-1074, 2.0),
}


class State(NamedTuple):
    """A value beside the interval `all`; `op_error` and `logit_error` are what one cause alone would make of it."""

    value: Array
    all: Band
    op_error: Band
    logit_error: Band
    unsure: Array


def _overflow(value: Array, band: Band, unsure: Array, m: Machine) -> tuple[Array, Band, Array]:
    """Numbers beyond the compute type are infinite. Where only one end of the interval is, nobody knows."""
    lo, hi = (np.where(np.abs(v) > m.top, np.copysign(np.inf, v), v) for v in band)
    sure = (lo == hi) | (np.isfinite(lo) & np.isfinite(hi)) | np.isnan(value)
    return np.where(np.abs(value) > m.top, np.copysign(np.inf, value), value), Band(lo, hi), unsure | ~sure


def _waves(x: Band, crest: float, otherwise: Array) -> list[Array]:
    """1 and -1 where an interval has a crest and a trough of a wave, or may have one for all that float64 can tell."""
    reach = 4e-16 * np.maximum(np.abs(x.lo), np.abs(x.hi))
    found = []
    for top, at in ((1.0, crest), (-1.0, crest + math.pi)):
        with np.errstate(invalid="ignore"):
            turns = np.floor((x.hi + reach - at) / (2 * math.pi)) - np.ceil((x.lo - reach - at) / (2 * math.pi))
            found.append(np.where((x.lo < x.hi) & (turns >= 0), top, otherwise))
    return found


def _apply_band(row: Row, a: Array, b: Array, x: Band, s: Band, m: Machine, rounds: bool) -> tuple[Band, Array]:
    """The interval behind an operator, and where NaN is one of several possible results."""
    if rounds and row.slack:  # the argument is rounded, and may underflow when it is divided by a
        step, floor = row.slack * m.u * m.errors, m.tiny * (1 + np.abs(a))
        x = Band(x.lo - step * np.abs(x.lo) - floor, x.hi + step * np.abs(x.hi) + floor)
    inputs = [x.lo, x.hi] + [np.where((x.lo <= p) & (p <= x.hi), p, x.lo) for p in row.points(a, b)]
    saved = s if row in (OPS["add_saved"], OPS["mul_saved"]) else s[:1]
    outputs = np.stack(np.broadcast_arrays(*[row.f(v, a, b, w) for v in inputs for w in saved]))
    if row.crest is not None:
        outputs = np.stack([*outputs, *_waves(x, row.crest, outputs[0])])
    nan = np.isnan(outputs)
    lo, hi = np.fmin.reduce(outputs), np.fmax.reduce(outputs)
    if rounds and row.ulps:
        step = 2 * row.ulps * m.u * m.errors
        floor = 2 * m.tiny * (1 + np.minimum(np.abs(np.nan_to_num(x.lo)), 1000))  # a subnormal factor, times x
        lo, hi = lo - (step * np.abs(lo) + floor), hi + (step * np.abs(hi) + floor)
    return Band(lo, hi), nan.any(axis=0) & ~nan.all(axis=0)


def _param(p: float | str, vectors: Vectors, dtype: str) -> Array:
    """Parameters are brought to the compute type before they are used."""
    value = np.asarray(vectors[p] if isinstance(p, str) else p, dtype=np.float64)
    return value.astype(dtype).astype(np.float64)


def _apply(op: Op, state: State, saved: State | None, vectors: Vectors, dtype: str, causes: bool) -> State:
    row, m = OPS[op.name], MACHINES[dtype]
    a, b = ([_param(p, vectors, dtype) for p in op.params] + [np.float64(0)] * 2)[:2]
    s = saved or state
    value = row.f(state.value, a, b, s.value)
    band, mixed = _apply_band(row, a, b, state.all, s.all, m, True)
    # Infinities know no rounding, and where they come from finite numbers (1 / 0) the interval was a point.
    exact = ~np.isfinite(value) & (state.all.lo == state.all.hi) & (s.all.lo == s.all.hi) | np.isnan(state.value)
    band = Band(np.where(exact, value, np.fmin(band.lo, value)), np.where(exact, value, np.fmax(band.hi, value)))
    unsure = state.unsure | (mixed & ~exact) | (s.unsure if op.name.endswith("_saved") else False)
    if row.inner:
        far = np.where(np.abs(state.all.hi) > np.abs(state.all.lo), state.all.hi, state.all.lo)
        unsure = unsure | (row.inner(far, a, b) > m.top)
    op_error, logit_error = state.op_error, state.logit_error
    if causes:
        op_error = _apply_band(row, a, b, op_error, s.op_error, m, True)[0]
        logit_error = _apply_band(row, a, b, logit_error, s.logit_error, m, False)[0]
    value, band, unsure = _overflow(value, band, unsure, m)
    return State(value, band, op_error, logit_error, np.broadcast_to(unsure, value.shape))


# Relative error of an operand of a product, by how the products are computed. "split": two 16-bit halves of a
# float32, which also lose what lies SPLIT_FLOOR below the largest of their row.
OPERAND_ERROR = {"f32": 0.0, "tf32": 2.0**-11, "bf16": 2.0**-8, "split": 2.0**-22}
SPLIT_FLOOR = 2.0**-39


def _partial_overflow(x: Array, w: Array, b: Array, value: Array, error: Array, m: Machine) -> Array:
    """Where a partial sum may leave the range of the compute type though the whole does not, or leaves it at the other
    end.
    """
    up, down = (np.maximum(x, 0), np.maximum(-x, 0)), (np.maximum(w, 0), np.maximum(-w, 0))
    positive = up[0] @ down[0].T + up[1] @ down[1].T + np.maximum(b, 0)
    negative = up[1] @ down[0].T + up[0] @ down[1].T + np.maximum(-b, 0)
    top = m.top * (1 - 1e-3)
    surely = ((value - error > m.top) & (negative < top)) | ((value + error < -m.top) & (positive < top))
    return ((positive > top) | (negative > top)) & ~surely


def logits(x: Array, w: Array, b: Array, dtype: str, products: str = "f32") -> State:
    """x (batch, K), w (N, K), b (N) as stored, in float64."""
    m, k = MACHINES[dtype], x.shape[1]
    wide = np.longdouble if dtype == "float64" else np.float64  # where squares neither round nor underflow
    x, w, b = (np.asarray(v, dtype=wide) for v in (x, w, b))
    fx, fw, fb = (np.where(np.isfinite(v), v, 0) for v in (x, w, b))
    dot = fx @ fw.T
    value = dot + fb
    for i in np.flatnonzero(~np.isfinite(x).all(axis=1)):
        value[i] = (x[i] * w).sum(axis=1) + b
    for j in np.flatnonzero(~(np.isfinite(w).all(axis=1) & np.isfinite(b))):
        value[:, j] = (x * w[j]).sum(axis=1) + b[j]
    finite = np.isfinite(value)
    q, total = (fx * fx) @ (fw * fw).T, np.abs(fx) @ np.abs(fw).T
    operand = OPERAND_ERROR[products]
    sigma = np.sqrt((m.u**2 * (k * (dot * dot + q) / 2 + q) + 2 * operand**2 * q) / 3)
    worst = ((k + 1) * m.u + 2 * operand) * total
    last = m.u * np.abs(dot + fb) + (k + 1) * m.tiny
    if products == "split" and k:
        largest = [np.abs(v).max(axis=1) for v in (fx, fw)]
        sums = [np.abs(v).sum(axis=1) for v in (fx, fw)]
        last = last + SPLIT_FLOOR * (np.outer(largest[0], sums[1]) + np.outer(sums[0], largest[1]))
    error = np.where(finite, np.minimum(SIGMAS * sigma, worst) + last, 0)
    spread = np.where(finite, SIGMAS * sigma + last, 0)
    unsure = np.zeros(value.shape, bool)
    if (total + np.abs(fb) > m.top * (1 - 1e-3)).any():
        unsure = _partial_overflow(fx, fw, fb, value, error, m)
    value, error, spread = (np.asarray(v, dtype=np.float64) for v in (value, error, spread))
    value, band, unsure = _overflow(value, Band(value - error, value + error), unsure, m)
    return State(value, band, Band(value, value), Band(value - spread, value + spread), unsure)


def _sum_rounding(v: Array, m: Machine) -> Array:
    """What summing the rows of v may lose: 6 sigma of a blocked sum, or the worst case if that is less.

    The sigma of a logit, once for sums of `inner` columns, whose squares add up to s^2 / outer + Q, and once for
    `outer` sums.
    """
    n = v.shape[1]
    inner, outer = min(BLOCK, n), max(1.0, n / BLOCK)
    s2, q = np.sum(v, axis=1) ** 2, np.sum(v * v, axis=1)
    sigma = m.u * np.sqrt(((outer + inner / outer + 1) * s2 + (2 * inner + outer) * q) / 6)
    return m.errors * np.minimum(SIGMAS * sigma, n * m.u * np.sum(np.abs(v), axis=1))


def _logsumexp_rounding(v: Array, value: Array, terms: Array, m: Machine) -> Array:
    """What logsumexp of the rows of v may lose beside its sum, in units of u: 2 E[max - x] under softmax (x - max and
    its product with log2(e) are rounded, and exp makes that a relative error), 6 for exp and 6 for rescaling blocks,
    2 |log t| for the logarithm, |value| for the last addition.
    """
    t = terms.sum(axis=1)
    distance = np.where(terms > 0, (v.max(axis=1)[:, None] - v) * terms, 0).sum(axis=1) / t
    units = 2 * distance + 12 + 2 * np.abs(np.log(t)) + np.abs(value)
    return m.errors * m.u * units + _sum_rounding(terms, m) / t


def _fold_band(state: State, value: Array, weights: Array, one_by_one: Band) -> Band:
    """`one_by_one`, where every element is off in the same direction, or the two causes apart, whichever is narrower.

    `weights` are the derivatives of the reduction. They hold at the value; across small intervals they change by no
    more than the factor exp(2 widest).
    """

    def deviation(band: Band) -> Array:
        return np.where(np.isfinite(state.value), np.maximum(band.hi - state.value, state.value - band.lo), 0) * weights

    widest = np.max(deviation(state.all) / np.maximum(weights, 1e-300), axis=1, initial=0)
    curved = np.exp(2 * widest) if weights.ndim == 2 else 1.0
    half = deviation(state.op_error).sum(axis=1) + np.sqrt((deviation(state.logit_error) ** 2).sum(axis=1))
    half = np.where(np.isfinite(half), half * curved, np.inf)
    return Band(np.fmax(one_by_one.lo, value - half), np.fmin(one_by_one.hi, value + half))


def _entropy_band(state: State, value: Array, m: Machine) -> tuple[Band, Array]:
    """The derivatives are -p (log p + H). Where they vanish, for equal columns, the squares of the errors count, and
    everywhere else they are added. Rounding: log t as in logsumexp; of sum p d, with d = x - max, each d and exp once
    more, and the sum.
    """
    finite = np.isfinite(state.value)
    v = np.where(finite, state.value, 0)
    d = np.where(finite, v - np.where(finite, v, -np.inf).max(axis=1, initial=-np.inf)[:, None], -np.inf)
    e = np.exp(d)
    t = e.sum(axis=1)
    p = e / t[:, None]
    slope = np.where(p > 0, np.abs(np.where(p > 0, d, 0) - np.log(t)[:, None] + value[:, None]), 0)
    error = np.where(finite, np.maximum(state.all.hi - state.value, state.value - state.all.lo), 0)
    widest = np.where(p > 0, error, 0).max(axis=1, initial=0)[:, None]
    weights = p * (slope + 2 * widest * (1 + slope))
    band = _fold_band(state, value, weights, Band(np.zeros_like(value), np.full_like(value, np.log(v.shape[1]))))
    products = np.where(p > 0, -d, 0) * e
    relative = _logsumexp_rounding(v, np.zeros_like(value), e, m)
    half = relative * (1 + products.sum(axis=1) / t) + _sum_rounding(products, m) / t
    half = half + m.errors * m.u * ((np.where(p > 0, -d, 0) * 2 + 14) * products).sum(axis=1) / t
    half = half + m.errors * m.u * np.abs(value) + m.tiny
    return Band(band.lo - half, band.hi + half), np.zeros(value.shape, bool)


def _index_band(sign: int, state: State, value: Array, m: Machine) -> tuple[Band, Array]:
    """The first and the last column that may be the best one: none is surely better, and none before it as good."""
    ends = sign * state.all.lo, sign * state.all.hi
    lo, hi = np.minimum(*ends), np.maximum(*ends)
    before = np.maximum.accumulate(np.concatenate([np.full((len(lo), 1), -np.inf), lo[:, :-1]], axis=1), axis=1)
    first = np.arange(lo.shape[1]) == 0
    possible = (hi >= lo.max(axis=1)[:, None]) & ((hi > before) | first)
    columns = np.broadcast_to(np.arange(lo.shape[1], dtype=np.float64), lo.shape)
    reach = np.where(possible, columns, np.inf).min(axis=1), np.where(possible, columns, -np.inf).max(axis=1)
    nan = np.isnan(state.value).any(axis=1)
    return Band(*(np.where(nan, value, end) for end in reach)), np.zeros(value.shape, bool)


def _columns_before(state: State, columns: Array) -> tuple[Array, Array]:
    """How many columns surely, and how many possibly, come before the one of each row: larger ones, NaN first, and of
    equal ones those on the left.
    """
    rows = np.arange(len(columns))
    lo, hi = np.minimum(*state.all), np.maximum(*state.all)
    nan, own_nan = np.isnan(state.value), np.isnan(state.value[rows, columns])[:, None]
    low, high = lo[rows, columns][:, None], hi[rows, columns][:, None]
    left = np.arange(lo.shape[1]) < columns[:, None]
    other = np.arange(lo.shape[1]) != columns[:, None]
    surely = np.where(nan, ~own_nan | left, ~own_nan & ((lo > high) | ((lo >= high) & left)))
    maybe = np.where(nan, ~own_nan | left, ~own_nan & ((hi > low) | ((hi >= low) & left)))
    return (surely & other).sum(axis=1), (maybe & other).sum(axis=1)


def _rank(state: State, columns: Array) -> State:
    surely, maybe = _columns_before(state, columns)
    exact = State(state.value, Band(state.value, state.value), *state[2:])
    column = Band(*(end[:, None].astype(np.float64) for end in (surely, maybe)))
    value = _columns_before(exact, columns)[0][:, None].astype(np.float64)
    return State(value, column, column, column, state.unsure.any(axis=1)[:, None])


def _topk(state: State, k: int) -> list[Result | TopColumns]:
    """Column i is between number i of the lower and number i of the upper ends."""

    def best(v: Array) -> Array:
        first = np.where(np.isnan(state.value), np.inf, v)
        found: Array = -np.sort(-first, axis=1)[:, :k]
        nans = np.isnan(state.value).sum(axis=1, keepdims=True)
        return np.where(np.arange(k) < nans, np.nan, found)

    lo, hi = np.minimum(*state.all), np.maximum(*state.all)
    unsure = np.repeat(state.unsure.any(axis=1)[:, None], k, axis=1)
    return [Result(best(state.value), best(lo), best(hi), unsure), TopColumns(state, k)]


def _gather(state: State, columns: Array) -> State:
    at = np.arange(len(columns))[:, None], columns.astype(np.int64)
    value, lo, hi, unsure = (v[at] for v in (state.value, *state.all, state.unsure))
    return State(value, Band(lo, hi), Band(lo, hi), Band(lo, hi), unsure)


# Additions on the way to the mean of a block, at most, the division included.
MEAN_STEPS = 70
MEAN_BLOCK = 256


def _norm_band(state: State, value: Array, m: Machine) -> tuple[Band, Array]:
    """Of the root of a sum of squares, whose derivatives are x / value, and which no error changes by more than its own
    norm. Each square is rounded once, and their sum.
    """
    finite = np.isfinite(state.value)
    v = np.where(finite, state.value, 0)
    error = np.where(finite, np.maximum(state.all.hi - state.value, state.value - state.all.lo), 0)
    reach = _norm(error)
    scale = np.where(np.isfinite(value) & (value > 0), value, 1)
    band = _fold_band(state, value, np.abs(v) / scale[:, None], Band(value - reach, value + reach))
    squares = (v / scale[:, None]) ** 2
    half = scale * (_sum_rounding(squares, m) / 2 + m.errors * 4 * m.u) + m.tiny
    return Band(np.maximum(band.lo - half, 0), band.hi + half), np.zeros(value.shape, bool)


def _spread_band(power: float, state: State, value: Array, m: Machine, correction: float) -> tuple[Band, Array]:
    """Of the variance, to a power. The distances d from the mean have the norm s: its band, squared; then rounding.
    The mean of a block is off by MEAN_STEPS roundings of its columns' size. About that mean the squares are larger by
    n times that error squared, and what joins the block to the others by twice the error times their distance. Each d
    and its square are rounded.
    """
    n = state.value.shape[1]
    finite = np.isfinite(state.value)
    v = np.where(finite, state.value, 0)
    mean = v.sum(axis=1, keepdims=True) / max(n, 1)
    d = v - mean
    s = _norm(d)
    error = np.where(finite, np.maximum(state.all.hi - state.value, state.value - state.all.lo), 0)
    reach = _norm(error)
    scale = np.where(s > 0, s, 1)
    apart = _fold_band(state, s, np.abs(d) / scale[:, None], Band(s - reach, s + reach))
    lo, hi = np.maximum(apart.lo, 0) ** 2, apart.hi**2
    half = _sum_rounding(d * d, m) + m.errors * 6 * m.u * s * s + (n + 2) * m.tiny
    sums = np.zeros(len(v))
    for first in range(0, n, MEAN_BLOCK):
        block = v[:, first : first + MEAN_BLOCK]
        count, size = block.shape[1], np.abs(block).sum(axis=1)
        off = m.errors * MEAN_STEPS * m.u * size / count + m.tiny
        half = half + count * off * (2 * np.abs(block.mean(axis=1) - mean[:, 0]) + off)
        sums = np.maximum(sums, size)
    divisor = np.float64(max(n - correction, 0))
    band = Band(np.maximum(lo - half, 0) / divisor, (hi + half) / divisor)
    unsure = (np.maximum(sums, hi + half) > m.top * (1 - 1e-3)) | ((divisor == 0) & (n > 1))
    band = Band(*(end**power * (1 + sign * m.errors * 4 * m.u) + sign * m.tiny for end, sign in zip(band, (-1, 1))))
    return Band(np.maximum(band.lo, 0), band.hi), unsure & np.isfinite(state.value).all(axis=1)


def _total_losing(mean: bool, state: State, value: Array, ends: Band, m: Machine) -> tuple[Band, Array, Array]:
    v = np.where(np.isfinite(state.value), state.value, 0)
    weight = np.asarray(1 / v.shape[1] if mean else 1.0)
    half = _sum_rounding(v, m) * weight + m.errors * 2 * m.u * np.abs(value) + m.tiny
    up, down = np.maximum(v, 0).sum(axis=1), np.maximum(-v, 0).sum(axis=1)
    most, least = np.maximum(up, down), np.minimum(up, down)
    surely = (not mean) & (most - least - half > m.top * (1 + 1e-3)) & (least < m.top * (1 - 1e-3))
    return _fold_band(state, value, weight, ends), half, (most > m.top * (1 - 1e-3)) & ~surely


def _logsumexp_losing(state: State, value: Array, ends: Band, m: Machine) -> tuple[Band, Array, Array]:
    v = np.where(np.isfinite(state.value), state.value, 0)
    terms = np.exp(v - np.where(np.isfinite(value), state.value.max(axis=1), 0)[:, None])
    terms = np.where(np.isfinite(state.value), terms, 0)
    half = _logsumexp_rounding(v, value, terms, m)
    return _fold_band(state, value, terms / terms.sum(axis=1)[:, None], ends), half, np.zeros(value.shape, bool)


class Fold(NamedTuple):
    """One reduction: f(x, *params) of the columns of each row, its band, and what it makes of a single column.

    The band of one that grows with each element goes from end to end; `losing(state, value, ends, machine)` makes it
    narrower, and says what rounding adds and which rows are unsure. Of another, `band(state, value, machine, *params)`
    is all of it, and the rows that are unsure. `like`: in place of these, operators and a reduction that mean the same.
    `alone`: an operator, or a function with the params; a reduction without leaves the column as it is. `apart`: the
    band takes the errors of logits and of operators apart. `tried`, `host`: as of operators.
    """

    f: Callable[..., Array] | None = None
    losing: Callable[..., tuple[Band, Array, Array]] | None = None
    band: Callable[..., tuple[Band, Array]] | None = None
    like: str = ""
    params: tuple[tuple[str, float | None], ...] = ()
    alone: str | Callable[..., Array] = ""
    apart: bool = True
    tried: tuple[str, ...] = ("",)
    host: bool = False

    def __call__(self, x: Array, *params: float) -> Array:
        if self.f:
            return self.f(x, *params)
        *steps, fold = parse(f"linear | {self.like}")
        for op in steps:
            x = OPS[op.name].f(x, *(*op.params, 0.0, 0.0)[:2], x)
        return REDUCTIONS[fold.name](x, *fold.params)


def _spread(f: Callable[..., Array], power: float) -> Fold:
    return Fold(
        f,
        band=partial(_spread_band, power),
        params=(("correction", 1.0),),
        alone=lambda x, correction: np.where(np.isfinite(x) & (correction < 1), 0.0, np.nan),
        tried=("", "0", "correction=2", "-0.5"),
        host=True,
    )


REDUCTIONS: dict[str, Fold] = {
    "sum": Fold(lambda x: np.sum(x, axis=1), partial(_total_losing, False)),
    "mean": Fold(lambda x: np.sum(x, axis=1) / x.shape[1], partial(_total_losing, True)),
    "max": Fold(lambda x: np.max(x, axis=1), apart=False),
    "min": Fold(lambda x: np.min(x, axis=1), apart=False),
    "logsumexp": Fold(_logsumexp, _logsumexp_losing),
    "entropy": Fold(_entropy, band=_entropy_band, alone=lambda x: np.where(np.isfinite(x), 0.0, np.nan)),
    "argmax": Fold(lambda x: np.argmax(x, axis=1).astype(np.float64), band=partial(_index_band, 1), apart=False),
    "argmin": Fold(lambda x: np.argmin(x, axis=1).astype(np.float64), band=partial(_index_band, -1), apart=False),
    "var": _spread(_variance, 1.0),
    "std": _spread(_deviation, 0.5),
    "norm": Fold(_norm, band=_norm_band, alone="abs", host=True),
}


def _spelled_out(ops: list[Op]) -> list[Op]:
    """Without reductions that are like others."""
    likes = [REDUCTIONS[op.name].like if op.name in REDUCTIONS else "" for op in ops]
    return [part for op, like in zip(ops, likes) for part in (parse(f"linear | {like}") if like else [op])]


def _reduce(op: Op, state: State, dtype: str) -> State:
    m, fold = MACHINES[dtype], REDUCTIONS[op.name]
    value = fold(state.value, *op.params)
    if fold.band:
        band, unsure = fold.band(state, value, m, *op.params)
    else:
        band, half, unsure = Band(fold(state.all.lo), fold(state.all.hi)), np.zeros_like(value), np.zeros(1, bool)
        if fold.losing and state.value.shape[1]:
            band, half, unsure = fold.losing(state, value, band, m)
        reached = np.isinf(value) & ((band.lo != value) | (band.hi != value))
        unsure = unsure | (reached & np.isfinite(state.value).all(axis=1))
        band = Band(band.lo - half, band.hi + half)
    band = Band(*(np.where(np.isfinite(value), end, value) for end in band))
    value, band, unsure = _overflow(value, band, state.unsure.any(axis=1) | unsure, m)
    column = Band(band.lo[:, None], band.hi[:, None])
    return State(value[:, None], column, column, column, unsure[:, None])


def _ask(name: str, state: State, columns: Array, ignored: float | str, dtype: str) -> State:
    """pick and logprob. The difference of the column and the peak is not rounded, and the result once: of logsumexp's
    error there is all but what comes with its size.
    """
    m, n = MACHINES[dtype], state.value.shape[1]
    none = (columns == ignored) if name == "logprob" else np.zeros(len(columns), bool)
    at = np.arange(len(columns)), np.where(none, 0, columns).astype(np.int64)
    value, lo, hi, unsure = (v[at] for v in (state.value, *state.all, state.unsure))
    if name == "logprob" and n:
        total = _logsumexp(state.value)
        v = np.where(np.isfinite(state.value), state.value, 0)
        terms = np.exp(v - np.where(np.isfinite(total), state.value.max(axis=1), 0)[:, None])
        terms = np.where(np.isfinite(state.value), terms, 0)
        ends = Band(_logsumexp(state.all.lo), _logsumexp(state.all.hi))
        band = _fold_band(state, total, terms / terms.sum(axis=1)[:, None], ends)
        half = _logsumexp_rounding(v, np.zeros_like(total), terms, m)
        value = np.where(np.isfinite(total), value - total, np.nan)
        last = m.errors * 2 * m.u * np.abs(value) + m.tiny
        lo, hi = lo - (band.hi + half) - last, hi - (band.lo - half) + last
        unsure = state.unsure.any(axis=1)
    lo, hi = (np.where(np.isfinite(value), end, value) for end in (lo, hi))
    value, lo, hi = (np.where(none, 0, v) for v in (value, lo, hi))
    value, band, unsure = _overflow(value, Band(lo, hi), unsure & ~none, m)
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
    b = np.zeros(w.shape[0]) if b is None else b
    with np.errstate(all="ignore"):
        columns = logits(x, w, b, dtype, products)
        return [part for ops in parse_results(chain) for part in _evaluate(ops, columns, vectors or {}, dtype)]


def _evaluate(ops: list[Op], state: State, vectors: Vectors, dtype: str) -> list[Result | TopColumns]:
    saved, folded, ops = None, False, _spelled_out(ops)
    causes = next((REDUCTIONS[op.name].apart for op in ops if op.name in REDUCTIONS), False)
    causes |= any(op.name == "logprob" for op in ops)
    for op in ops:
        if op.name == "topk":
            return _topk(state, int(float(op.params[0])))
        if op.name in ("rank", "gather"):
            columns = vectors[str(op.params[0])].astype(np.int64)
            state = _rank(state, columns[:, 0]) if op.name == "rank" else _gather(state, columns)
            folded = True
        elif op.name in ASKING:
            column, ignored = op.params
            state, saved, folded = _ask(op.name, state, vectors[str(column)][:, 0], ignored, dtype), None, True
        elif op.name not in REDUCTIONS:
            state = _apply(op, state, saved, vectors, dtype, causes and not folded)
            saved = state if op.name == "save" else saved
        elif not folded:
            state, saved, folded = _reduce(op, state, dtype), None, True
        elif isinstance(alone := REDUCTIONS[op.name].alone, str):
            state = _apply(Op(alone, ()), state, None, vectors, dtype, False) if alone else state
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
    saved, folded = z, False
    with np.errstate(all="ignore"):
        for op in _spelled_out(parse(chain)):
            if op.name in REDUCTIONS:
                alone = REDUCTIONS[op.name].alone
                if not folded:
                    z, folded = REDUCTIONS[op.name](z, *op.params)[:, None].astype(np.float32), True
                elif alone:
                    z = OPS[alone].f(z, 0, 0, z) if isinstance(alone, str) else alone(z, *op.params)
                continue
            a, b2 = ([_param(p, vectors or {}, "float32").astype(np.float32) for p in op.params] + [np.float32(0)] * 2)[
                :2
            ]
            z = OPS[op.name].f(z, a, b2, saved).astype(np.float32)
            saved = z if op.name == "save" else saved
    return z
