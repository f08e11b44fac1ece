# SPDX-License-Identifier: MIT
"""What x, W and b are drawn as: x (batch, k), W (n, k), b (n,) in float32 from a generator, by the name of a kind."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable

import numpy as np

Array = np.ndarray[Any, Any]
Drawn = tuple[Array, Array, Array]
Draw = Callable[[np.random.Generator, int, int, int], Drawn]
TINY = 1e-20


def uniform_weights(rng: np.random.Generator, in_features: int, out_features: int) -> tuple[Array, Array]:
    """W and b as torch.nn.Linear initialises them: uniform within 1/sqrt(in_features) of 0."""
    bound = np.float32(1 / np.sqrt(in_features))

    def draw(shape: tuple[int, ...]) -> Array:
        values: Array = rng.random(shape, np.float32)
        values *= 2 * bound
        values -= bound
        return values

    return draw((out_features, in_features)), draw((out_features,))


def kernelbench(rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """KernelBench's inputs: x uniform in [0, 1), weights as torch.nn.Linear initialises them."""
    return rng.random((batch, k), np.float32), *uniform_weights(rng, k, n)


def sigma5(rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """Logits of standard deviation 5: W has variance 1/(3 k), and x makes up for it."""
    return rng.standard_normal((batch, k), np.float32) * np.float32(5 * np.sqrt(3)), *uniform_weights(rng, k, n)


def positive(rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """Nothing cancels."""
    weight, bias = uniform_weights(rng, k, n)
    return rng.random((batch, k), np.float32), np.abs(weight), np.abs(bias)


def _spread(rng: np.random.Generator, sigma: float, *shape: int) -> Array:
    """Either sign, magnitudes e^(sigma z) with normal z: over a factor of e^(8 sigma), four deviations either way."""
    values: Array = np.exp(rng.standard_normal(shape, np.float32) * np.float32(sigma))
    values *= rng.choice(np.array([-1, 1], np.float32), shape)
    return values


def lognormal(sigma: float, rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """Magnitudes of x spread by sigma. 1.73 is six decades."""
    return _spread(rng, sigma, batch, k), *uniform_weights(rng, k, n)


def lognormal_weights(sigma: float, rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """Magnitudes of W spread by sigma."""
    x, weight, bias = kernelbench(rng, batch, k, n)
    return x, _spread(rng, sigma, *weight.shape) * np.float32(1 / math.sqrt(k)), bias


def lognormal_both(sigma: float, rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """Magnitudes of x and of W spread by sigma."""
    _, weight, bias = lognormal_weights(sigma, rng, 0, k, n)
    return _spread(rng, sigma, batch, k), weight, bias


def _relu(x: Array) -> Array:
    return np.maximum(x, np.float32(0))


def _gelu(x: Array) -> Array:
    """The tanh form: a layer's input need not have its last bits."""
    result: Array = x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x))) / 2
    return result


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    result: Array = powers / powers.sum(axis=1, keepdims=True)
    return result


def activated(function: Callable[[Array], Array], rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """What a layer behind an activation gets: the function of normal values."""
    return function(rng.standard_normal((batch, k), np.float32)), *uniform_weights(rng, k, n)


def one_in_each_row(value: float, rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """One element of each row of x is the value."""
    x, weight, bias = kernelbench(rng, batch, k, n)
    x[np.arange(batch), rng.integers(k, size=batch)] = value
    return x, weight, bias


def two_in_each_row(value: float, rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """Two elements of each row of x are the value; one where there is but one."""
    x, weight, bias = kernelbench(rng, batch, k, n)
    columns = rng.integers(k, size=batch)
    x[np.arange(batch), columns] = value
    x[np.arange(batch), (columns + 1) % k] = value
    return x, weight, bias


def one_in_each_row_of_weights(
    value: float, twice: bool, rng: np.random.Generator, batch: int, k: int, n: int
) -> Drawn:
    """One element of each row of W is the value; ``twice``: two elements of the first row are."""
    x, weight, bias = kernelbench(rng, batch, k, n)
    columns = rng.integers(k, size=n)
    weight[np.arange(n), columns] = value
    if twice:
        weight[0, (columns[0] + 1) % k] = value
    return x, weight, bias


def one_in_weights(value: float, rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """One element of W is the value."""
    x, weight, bias = kernelbench(rng, batch, k, n)
    weight[rng.integers(n), rng.integers(k)] = value
    return x, weight, bias


def equal_columns(rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """All logits of a row are equal: each is the largest."""
    x, weight, bias = kernelbench(rng, batch, k, n)
    weight[:], bias[:] = weight[:1], bias[:1]
    return x, weight, bias


def ascending_columns(rng: np.random.Generator, batch: int, k: int, n: int) -> Drawn:
    """Every column is larger than those before: what is among the largest so far says nothing of what comes."""
    x, weight, bias = kernelbench(rng, batch, k, n)
    bias[:] = np.linspace(0, 100, n)
    return x, weight, bias


DATA: dict[str, Draw] = {
    "kernelbench": kernelbench,
    "sigma5": sigma5,
    "positive": positive,
    "relu": partial(activated, _relu),
    "gelu": partial(activated, _gelu),
    "silu": partial(activated, _silu),
    "softmax": partial(activated, _softmax),
    "sigmoid": partial(activated, _sigmoid),
    "tiny": partial(one_in_each_row, TINY),
    "tiny-w": partial(one_in_weights, TINY),
    "outlier1e4": partial(one_in_each_row, 1e4),
    "outlier1e8": partial(one_in_each_row, 1e8),
    "outlier1e20": partial(one_in_each_row, 1e20),
    "lognormal": partial(lognormal, 1.73),
    "lognormal1": partial(lognormal, 1.0),
    "lognormal3": partial(lognormal, 3.0),
    "lognormal6": partial(lognormal, 6.0),
    "lognormal-w3": partial(lognormal_weights, 3.0),
    "lognormal-both": partial(lognormal_both, 3.0),
    "inf": partial(one_in_each_row, math.inf),
    "nan": partial(one_in_each_row, math.nan),
    "infs": partial(two_in_each_row, math.inf),
    "inf-w": partial(one_in_weights, math.inf),
    "inf-each-w": partial(one_in_each_row_of_weights, math.inf, False),
    "infs-w": partial(one_in_each_row_of_weights, math.inf, True),
    "nan-w": partial(one_in_weights, math.nan),
    "equal": equal_columns,
    "ascending": ascending_columns,
}
