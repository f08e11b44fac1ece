# SPDX-License-Identifier: MIT
"""What each operator means, in float64, and by how much an implementation may miss it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray

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
