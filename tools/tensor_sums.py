#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a sum of 16-bit products loses on the tensor cores of sm_90, by a model of their addition. As Markdown.

    python tools/tensor_sums.py [--pairs 2000] [--periods 128 64 32] [--units 6 2]

The model: 16 products and the sum so far are brought to the exponent of the largest, cut to two bits below float32's
last, added exactly, and the result is cut to float32; every PERIOD columns that sum is added to one in float32,
rounded, and begins at zero. doc/kernels/accuracy.md has what an H200 gave beside it. Errors are the largest of all
pairs of rows, of their sum of magnitudes, and the mean in parentheses. `regained`: each part is multiplied by
1 + UNITS 2^-24 (binary16, bfloat16) as it is added, rounded once, as the kernels do where W is not coarse.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
GROUP, BELOW = 16, 2  # products added at a time; bits kept below float32's last


def positive(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Nothing cancels."""
    return rng.random(shape), rng.random(shape)


def relu(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Half of x zeros, W positive."""
    return np.maximum(rng.standard_normal(shape), 0), rng.random(shape)


def spread(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Log-normal x, both positive."""
    return np.exp(1.5 * rng.standard_normal(shape)), rng.random(shape)


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Either sign."""
    return rng.standard_normal(shape), rng.standard_normal(shape)


DATA: tuple[Callable[[np.random.Generator, tuple[int, int]], tuple[Array, Array]], ...] = (
    positive, relu, spread, normal
)  # fmt: skip


def stored(values: Array, dtype: str) -> Array:
    """The values as a 16-bit type holds them."""
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def cut(values: Array, exponent: Array) -> Array:
    """To multiples of 2^exponent, towards zero."""
    return np.ldexp(np.trunc(np.ldexp(values, -exponent)), exponent)


def added(total: Array, products: Array) -> Array:
    """One step of the tensor cores for each row of products."""
    terms = np.concatenate([total[:, None], products], axis=1)
    exponent = np.frexp(np.abs(terms).max(axis=1))[1] - 24
    result = cut(terms, exponent[:, None] - BELOW).sum(axis=1)
    return cut(result, np.frexp(result)[1] - 24)


def sums(x: Array, w: Array, period: int, units: float = 0) -> Array:
    """The dot products of the rows, float32; each part times 1 + UNITS 2^-24."""
    total, part = np.zeros(len(x), np.float32), np.zeros(len(x))
    for first in range(0, x.shape[1], GROUP):
        part = added(part, x[:, first : first + GROUP] * w[:, first : first + GROUP])
        if (first + GROUP) % period == 0 or first + GROUP >= x.shape[1]:
            total = (total.astype(np.float64) + part * (1 + units * 2.0**-24)).astype(np.float32)
            part[:] = 0
    return total


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--periods", type=int, nargs="+", default=[128, 64, 32])
    parser.add_argument("--units", type=float, nargs=2, default=(6, 2))
    parser.add_argument("--depths", type=int, nargs="+", default=[512, 4096, 16384], help="values of K")
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    plain = [str(period) for period in options.periods]
    print(f"| type | data | K | {' | '.join(plain)} | {options.periods[0]}, regained |")
    print("| --- | --- | ---: |" + " ---: |" * (len(plain) + 1))
    for dtype, units in zip(("float16", "bfloat16"), options.units):
        for data in DATA:
            for k in options.depths:
                x, w = (stored(values, dtype) for values in data(rng, (options.pairs, k)))
                exact = np.einsum("ij,ij->i", x.astype(np.longdouble), w.astype(np.longdouble))
                scale = np.einsum("ij,ij->i", np.abs(x), np.abs(w))
                found = [sums(x, w, period) for period in options.periods]
                found.append(sums(x, w, options.periods[0], units))
                errors = [((total - exact) / scale).astype(np.float64) for total in found]
                cells = (f"{np.abs(error).max():.1e} ({error.mean():+.1e})" for error in errors)
                print(f"| {dtype} | {data.__name__} | {k} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
