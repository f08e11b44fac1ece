# SPDX-License-Identifier: MIT
"""Reductions that ask for columns of each row, and those with two results."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from oracle.intervals import MACHINES, Band, Result, State, overflow
from oracle.reductions import fold_band, logsumexp, logsumexp_rounding

Array = np.ndarray

# Reductions that ask for columns of each row, by a row input; logprob knows rows that are ignored, too.
ASKING = ("pick", "logprob", "rank", "gather")
# Those with two results.
PAIRS = ("topk",)


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
            least, most = columns_before(self.state, columns[:, i])
            unsure = self.state.unsure.any(axis=1)
            wrong[:, i] |= ~(((least <= i) & (i <= most)) | unsure)
            wrong[:, i] |= (columns[:, :i] == columns[:, i : i + 1]).any(axis=1)
        return wrong


def columns_before(state: State, columns: Array) -> tuple[Array, Array]:
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


def rank(state: State, columns: Array) -> State:
    surely, maybe = columns_before(state, columns)
    exact = State(state.value, Band(state.value, state.value), *state[2:])
    column = Band(*(end[:, None].astype(np.float64) for end in (surely, maybe)))
    value = columns_before(exact, columns)[0][:, None].astype(np.float64)
    return State(value, column, column, column, state.unsure.any(axis=1)[:, None])


def topk(state: State, k: int) -> list[Result | TopColumns]:
    """Column i is between number i of the lower and number i of the upper ends."""

    def best(v: Array) -> Array:
        first = np.where(np.isnan(state.value), np.inf, v)
        found: Array = -np.sort(-first, axis=1)[:, :k]
        nans = np.isnan(state.value).sum(axis=1, keepdims=True)
        return np.where(np.arange(k) < nans, np.nan, found)

    lo, hi = np.minimum(*state.all), np.maximum(*state.all)
    unsure = np.repeat(state.unsure.any(axis=1)[:, None], k, axis=1)
    return [Result(best(state.value), best(lo), best(hi), unsure), TopColumns(state, k)]


def gather(state: State, columns: Array) -> State:
    at = np.arange(len(columns))[:, None], columns.astype(np.int64)
    value, lo, hi, unsure = (v[at] for v in (state.value, *state.all, state.unsure))
    return State(value, Band(lo, hi), Band(lo, hi), Band(lo, hi), unsure)


def ask(name: str, state: State, columns: Array, ignored: float | str, dtype: str) -> State:
    """pick and logprob. The difference of the column and the peak is not rounded, and the result once: of logsumexp's
    error there is all but what comes with its size.
    """
    m, n = MACHINES[dtype], state.value.shape[1]
    none = (columns == ignored) if name == "logprob" else np.zeros(len(columns), bool)
    at = np.arange(len(columns)), np.where(none, 0, columns).astype(np.int64)
    value, lo, hi, unsure = (v[at] for v in (state.value, *state.all, state.unsure))
    if name == "logprob" and n:
        total = logsumexp(state.value)
        v = np.where(np.isfinite(state.value), state.value, 0)
        terms = np.exp(v - np.where(np.isfinite(total), state.value.max(axis=1), 0)[:, None])
        terms = np.where(np.isfinite(state.value), terms, 0)
        ends = Band(logsumexp(state.all.lo), logsumexp(state.all.hi))
        band = fold_band(state, total, terms / terms.sum(axis=1)[:, None], ends)
        half = logsumexp_rounding(v, np.zeros_like(total), terms, m)
        value = np.where(np.isfinite(total), value - total, np.nan)
        last = m.errors * 2 * m.u * np.abs(value) + m.tiny
        lo, hi = lo - (band.hi + half) - last, hi - (band.lo - half) + last
        unsure = state.unsure.any(axis=1)
    lo, hi = (np.where(np.isfinite(value), end, value) for end in (lo, hi))
    value, lo, hi = (np.where(none, 0, v) for v in (value, lo, hi))
    value, band, unsure = overflow(value, Band(lo, hi), unsure & ~none, m)
    column = Band(band.lo[:, None], band.hi[:, None])
    return State(value[:, None], column, column, column, unsure[:, None])
