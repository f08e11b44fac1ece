# SPDX-License-Identifier: MIT
"""A value and the interval about it: of logits, and what an operator makes of both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from oracle.operators import OPS, Row

Array = np.ndarray
Vectors = Mapping[str, Array]
SIGMAS = 6.0


class Band(NamedTuple):
    lo: Array
    hi: Array


class Result(NamedTuple):
    """Float64 (batch, width) each. The computed number must lie between lo and hi; where `unsure`, any will do."""

    value: Array
    lo: Array
    hi: Array
    unsure: Array


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


def overflow(value: Array, band: Band, unsure: Array, m: Machine) -> tuple[Array, Band, Array]:
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


def param(p: float | str, vectors: Vectors, dtype: str) -> Array:
    """Parameters are brought to the compute type before they are used."""
    value = np.asarray(vectors[p] if isinstance(p, str) else p, dtype=np.float64)
    return value.astype(dtype).astype(np.float64)


def apply(
    name: str,
    params: tuple[float | str, ...],
    state: State,
    saved: State | None,
    vectors: Vectors,
    dtype: str,
    causes: bool,
) -> State:
    """The operator, with its two causes of error apart where asked for."""
    row, m = OPS[name], MACHINES[dtype]
    a, b = ([param(p, vectors, dtype) for p in params] + [np.float64(0)] * 2)[:2]
    s = saved or state
    value = row.f(state.value, a, b, s.value)
    band, mixed = _apply_band(row, a, b, state.all, s.all, m, True)
    # Infinities know no rounding, and where they come from finite numbers (1 / 0) the interval was a point.
    exact = ~np.isfinite(value) & (state.all.lo == state.all.hi) & (s.all.lo == s.all.hi) | np.isnan(state.value)
    band = Band(np.where(exact, value, np.fmin(band.lo, value)), np.where(exact, value, np.fmax(band.hi, value)))
    unsure = state.unsure | (mixed & ~exact) | (s.unsure if name.endswith("_saved") else False)
    if row.inner:
        far = np.where(np.abs(state.all.hi) > np.abs(state.all.lo), state.all.hi, state.all.lo)
        unsure = unsure | (row.inner(far, a, b) > m.top)
    op_error, logit_error = state.op_error, state.logit_error
    if causes:
        op_error = _apply_band(row, a, b, op_error, s.op_error, m, True)[0]
        logit_error = _apply_band(row, a, b, logit_error, s.logit_error, m, False)[0]
    value, band, unsure = overflow(value, band, unsure, m)
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
    addition, last = m.u * np.abs(dot + fb), (k + 1) * m.tiny  # of the bias, a rounding of its own
    if products == "split" and k:
        largest = [np.abs(v).max(axis=1) for v in (fx, fw)]
        sums = [np.abs(v).sum(axis=1) for v in (fx, fw)]
        last = last + SPLIT_FLOOR * (np.outer(largest[0], sums[1]) + np.outer(sums[0], largest[1]))
    error = np.where(finite, np.minimum(SIGMAS * sigma, worst) + addition + last, 0)
    spread = np.where(finite, SIGMAS * np.sqrt(sigma**2 + addition**2 / 3) + last, 0)
    unsure = np.zeros(value.shape, bool)
    if (total + np.abs(fb) > m.top * (1 - 1e-3)).any():
        unsure = _partial_overflow(fx, fw, fb, value, error, m)
    value, error, spread = (np.asarray(v, dtype=np.float64) for v in (value, error, spread))
    value, band, unsure = overflow(value, Band(value - error, value + error), unsure, m)
    return State(value, band, Band(value, value), Band(value - spread, value + spread), unsure)
