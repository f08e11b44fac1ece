# SPDX-License-Identifier: MIT
"""Inputs that reach both sides of every branch: x (batch, K), W (N, K), b (N), in float64, from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray
Generator = np.random.Generator


class Data(NamedTuple):
    x: Array
    w: Array
    b: Array


def kernelbench(rng: Generator, batch: int, k: int, n: int) -> Data:
    """x uniform in [0, 1), torch.nn.Linear's default initialisation."""
    bound = 1 / np.sqrt(max(k, 1))
    return Data(rng.random((batch, k)), rng.uniform(-bound, bound, (n, k)), rng.uniform(-bound, bound, n))


def sigma5(rng: Generator, batch: int, k: int, n: int) -> Data:
    """Logits of standard deviation 5, beyond +-10 now and then."""
    return Data(rng.normal(size=(batch, k)), rng.normal(size=(n, k)) * 5 / np.sqrt(max(k, 1)), rng.normal(size=n))


def positive(rng: Generator, batch: int, k: int, n: int) -> Data:
    """Nothing cancels: rounding errors that lean one way add up."""
    return Data(*(np.abs(v) for v in kernelbench(rng, batch, k, n)))


def lognormal(rng: Generator, batch: int, k: int, n: int) -> Data:
    """Magnitudes over a range of about 1e6 in x and in W."""

    def wide(*shape: int) -> Array:
        return rng.normal(size=shape) * np.exp(np.clip(rng.normal(size=shape) * 1.7, -7, 7))

    return Data(wide(batch, k), wide(n, k) / np.sqrt(max(k, 1)), wide(n))


def outlier(rng: Generator, batch: int, k: int, n: int) -> Data:
    """One value of 1e4 in each row of x."""
    x, w, b = kernelbench(rng, batch, k, n)
    x = x - 0.5
    if k:
        x[np.arange(batch), rng.integers(0, k, batch)] = 1e4
    return Data(x, w, b)


def offset(rng: Generator, batch: int, k: int, n: int) -> Data:
    """Logits that share an offset of 1e4."""
    x, w, b = sigma5(rng, batch, k, n)
    return Data(x, w, b + 1e4)


def branches(rng: Generator, batch: int, k: int, n: int) -> Data:
    """Columns of every scale from 1e-3 to 1e2 and of every offset of interest: each operator sees both its sides."""
    x, w, b = sigma5(rng, batch, k, n)
    scale = 10 ** rng.uniform(-3, 1.3, n)
    return Data(x, w * scale[:, None], b * scale + rng.choice([0, 0, -3, 3, -10, 10, 20, -90, 90], n))


def negative(rng: Generator, batch: int, k: int, n: int) -> Data:
    """Logits so low that logsumexp is negative too."""
    x, w, b = sigma5(rng, batch, k, n)
    return Data(x, w * 0.2, b - np.log(n + 1) - 4)


def infinite_bias(rng: Generator, batch: int, k: int, n: int) -> Data:
    """Masked columns: -inf in the bias, all of them in one case of eight."""
    x, w, b = sigma5(rng, batch, k, n)
    return Data(x, w, np.where(rng.random(n) < rng.choice([0.1, 0.9, 0.9, 1.0]), -np.inf, b))


def infinite_rows(rng: Generator, batch: int, k: int, n: int) -> Data:
    """Some rows of logits are all -inf, some all +inf."""
    x, w, b = sigma5(rng, batch, k, n)
    if k:
        x[:, 0] = rng.choice([-np.inf, np.inf, 1.0], batch)
    return Data(x, np.abs(w) + 0.01, b)


def specials(rng: Generator, batch: int, k: int, n: int) -> Data:
    """NaN, infinities, zeros and the ends of float32 here and there in x, W and b."""
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-40, -1e-40])

    def sprinkle(v: Array) -> Array:
        hit = rng.random(v.shape) < min(0.05, 2 / max(v.size, 1))
        return np.where(hit, rng.choice(values, v.shape), v)

    return Data(*(sprinkle(v) for v in sigma5(rng, batch, k, n)))


Kind = Callable[[Generator, int, int, int], Data]
EXPONENT = 80.0  # of e, at most: what is finite in float64 stays so in float32


def named(name: str, make: Callable[..., Data], *parameters: object) -> Kind:
    """The kind `make` of these parameters, under a name of its own."""

    def kind(rng: Generator, batch: int, k: int, n: int) -> Data:
        return make(*parameters, rng, batch, k, n)

    kind.__name__ = name
    return kind


def activated(function: Callable[[Array], Array], rng: Generator, batch: int, k: int, n: int) -> Data:
    """x is what an activation makes of normal values: zeros, small negative ones, or shares of 1."""
    _, w, b = kernelbench(rng, batch, k, n)
    return Data(function(rng.normal(size=(batch, k))), w, b)


def spread(sigma: float, rng: Generator, *shape: int) -> Array:
    """Either sign, the logarithm of the magnitude normal of deviation sigma."""
    return rng.choice([-1.0, 1.0], shape) * np.exp(np.clip(sigma * rng.normal(size=shape), -EXPONENT, EXPONENT))


def spread_x(sigma: float, rng: Generator, batch: int, k: int, n: int) -> Data:
    _, w, b = kernelbench(rng, batch, k, n)
    return Data(spread(sigma, rng, batch, k), w, b)


def spread_w(sigma: float, rng: Generator, batch: int, k: int, n: int) -> Data:
    x, w, b = kernelbench(rng, batch, k, n)
    return Data(x, spread(sigma, rng, *w.shape) / np.sqrt(max(k, 1)), b)


def spread_both(sigma: float, rng: Generator, batch: int, k: int, n: int) -> Data:
    _, w, b = spread_w(sigma, rng, 0, k, n)
    return Data(spread(sigma, rng, batch, k), w, b)


def one_in_each_row(value: float, rng: Generator, batch: int, k: int, n: int) -> Data:
    x, w, b = kernelbench(rng, batch, k, n)
    if k:
        x[np.arange(batch), rng.integers(0, k, batch)] = value
    return Data(x, w, b)


def one_in_w(value: float, rng: Generator, batch: int, k: int, n: int) -> Data:
    x, w, b = kernelbench(rng, batch, k, n)
    if k and n:
        w[rng.integers(n), rng.integers(k)] = value
    return Data(x, w, b)


def infinities(in_w: bool, rng: Generator, batch: int, k: int, n: int) -> Data:
    """None, one, two, some or many infinities of either sign or of one in each row of x, beside zeros of W.

    Of x those are -inf where they are many, as masks are. ``in_w``: and one in every other row of W.
    """
    x, w, b = kernelbench(rng, batch, k, n)
    w[rng.random((n, k)) < 0.1] = 0
    if not k:
        return Data(x, w, b)
    for row, count in zip(x, rng.choice([0, 1, 2, 2, 5, k // 2, k], batch)):
        signs = rng.choice([[np.inf, np.inf], [np.inf, -np.inf], [-np.inf, -np.inf]])
        at = rng.choice(k, min(count, k), replace=False)
        row[at] = rng.choice(signs, len(at)) if count < 6 else -np.inf
    if in_w:
        rows = np.arange(0, n, 2)
        w[rows, rng.integers(0, k, len(rows))] = rng.choice([np.inf, -np.inf], len(rows))
    return Data(x, w, b)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def _softmax(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


FINITE: dict[str, Kind] = {
    f.__name__: f
    for f in (
        kernelbench,
        sigma5,
        positive,
        lognormal,
        outlier,
        offset,
        branches,
        negative,
        named("relu", activated, lambda x: np.maximum(x, 0.0)),
        named("gelu", activated, _gelu),
        named("silu", activated, lambda x: x * _sigmoid(x)),
        named("softmax", activated, _softmax),
        named("sigmoid", activated, _sigmoid),
        named("tiny", one_in_each_row, 1e-20),
        named("tiny_w", one_in_w, 1e-20),
        named("outlier1e4", one_in_each_row, 1e4),
        named("outlier1e8", one_in_each_row, 1e8),
        named("outlier1e20", one_in_each_row, 1e20),
        named("lognormal1", spread_x, 1.0),
        named("lognormal3", spread_x, 3.0),
        named("lognormal6", spread_x, 6.0),
        named("lognormal_w3", spread_w, 3.0),
        named("lognormal_both", spread_both, 3.0),
    )
}
ALL = FINITE | {
    f.__name__: f
    for f in (
        infinite_bias,
        infinite_rows,
        specials,
        named("inf", one_in_each_row, np.inf),
        named("nan", one_in_each_row, np.nan),
        named("inf_w", one_in_w, np.inf),
        named("infinities", infinities, False),
        named("infinities_both", infinities, True),
        named("nan_w", one_in_w, np.nan),
    )
}
