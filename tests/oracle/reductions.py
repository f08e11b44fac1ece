# SPDX-License-Identifier: MIT
"""What each reduction means, in float64, and the interval that it makes of those of the columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from oracle.intervals import SIGMAS, Band, Machine, State

Array = np.ndarray
BLOCK = 128


def logsumexp(x: Array) -> Array:
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


def sum_rounding(v: Array, m: Machine) -> Array:
    """What summing the rows of v may lose: 6 sigma of a blocked sum, or the worst case if that is less.

    The sigma of a logit, once for sums of `inner` columns, whose squares add up to s^2 / outer + Q, and once for
    `outer` sums.
    """
    n = v.shape[1]
    inner, outer = min(BLOCK, n), max(1.0, n / BLOCK)
    s2, q = np.sum(v, axis=1) ** 2, np.sum(v * v, axis=1)
    sigma = m.u * np.sqrt(((outer + inner / outer + 1) * s2 + (2 * inner + outer) * q) / 6)
    return m.errors * np.minimum(SIGMAS * sigma, n * m.u * np.sum(np.abs(v), axis=1))


def logsumexp_rounding(v: Array, value: Array, terms: Array, m: Machine) -> Array:
    """What logsumexp of the rows of v may lose beside its sum, in units of u: 2 E[max - x] under softmax (x - max and
    its product with log2(e) are rounded, and exp makes that a relative error), 6 for exp and 6 for rescaling blocks,
    2 |log t| for the logarithm, |value| for the last addition.
    """
    t = terms.sum(axis=1)
    distance = np.where(terms > 0, (v.max(axis=1)[:, None] - v) * terms, 0).sum(axis=1) / t
    units = 2 * distance + 12 + 2 * np.abs(np.log(t)) + np.abs(value)
    return m.errors * m.u * units + sum_rounding(terms, m) / t


def fold_band(state: State, value: Array, weights: Array, one_by_one: Band) -> Band:
    """`one_by_one`, where every element is off in the same direction, the two causes apart, errors of logits as the sum
    of independent ones, or all as large as they may be, whichever is narrowest.

    `weights` are the derivatives of the reduction. They hold at the value; across small intervals they change by no
    more than the factor exp(2 widest).
    """

    def deviation(band: Band) -> Array:
        return np.where(np.isfinite(state.value), np.maximum(band.hi - state.value, state.value - band.lo), 0) * weights

    widest = np.max(deviation(state.all) / np.maximum(weights, 1e-300), axis=1, initial=0)
    curved = np.exp(2 * widest) if weights.ndim == 2 else 1.0
    half = deviation(state.op_error).sum(axis=1) + np.sqrt((deviation(state.logit_error) ** 2).sum(axis=1))
    half = np.fmin(half, deviation(state.all).sum(axis=1))
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
    band = fold_band(state, value, weights, Band(np.zeros_like(value), np.full_like(value, np.log(v.shape[1]))))
    products = np.where(p > 0, -d, 0) * e
    relative = logsumexp_rounding(v, np.zeros_like(value), e, m)
    half = relative * (1 + products.sum(axis=1) / t) + sum_rounding(products, m) / t
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
    band = fold_band(state, value, np.abs(v) / scale[:, None], Band(value - reach, value + reach))
    squares = (v / scale[:, None]) ** 2
    half = scale * (sum_rounding(squares, m) / 2 + m.errors * 4 * m.u) + m.tiny
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
    apart = fold_band(state, s, np.abs(d) / scale[:, None], Band(s - reach, s + reach))
    lo, hi = np.maximum(apart.lo, 0) ** 2, apart.hi**2
    half = sum_rounding(d * d, m) + m.errors * 6 * m.u * s * s + (n + 2) * m.tiny
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
    half = sum_rounding(v, m) * weight + m.errors * 2 * m.u * np.abs(value) + m.tiny
    up, down = np.maximum(v, 0).sum(axis=1), np.maximum(-v, 0).sum(axis=1)
    most, least = np.maximum(up, down), np.minimum(up, down)
    surely = (not mean) & (most - least - half > m.top * (1 + 1e-3)) & (least < m.top * (1 - 1e-3))
    return fold_band(state, value, weight, ends), half, (most > m.top * (1 - 1e-3)) & ~surely


def _logsumexp_losing(state: State, value: Array, ends: Band, m: Machine) -> tuple[Band, Array, Array]:
    v = np.where(np.isfinite(state.value), state.value, 0)
    terms = np.exp(v - np.where(np.isfinite(value), state.value.max(axis=1), 0)[:, None])
    terms = np.where(np.isfinite(state.value), terms, 0)
    half = logsumexp_rounding(v, value, terms, m)
    return fold_band(state, value, terms / terms.sum(axis=1)[:, None], ends), half, np.zeros(value.shape, bool)


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
    "logsumexp": Fold(logsumexp, _logsumexp_losing),
    "entropy": Fold(_entropy, band=_entropy_band, alone=lambda x: np.where(np.isfinite(x), 0.0, np.nan)),
    "argmax": Fold(lambda x: np.argmax(x, axis=1).astype(np.float64), band=partial(_index_band, 1), apart=False),
    "argmin": Fold(lambda x: np.argmin(x, axis=1).astype(np.float64), band=partial(_index_band, -1), apart=False),
    "var": _spread(_variance, 1.0),
    "std": _spread(_deviation, 0.5),
    "norm": Fold(_norm, band=_norm_band, alone="abs", host=True),
}
