# SPDX-License-Identifier: MIT
"""Every size around the edges of tiles, chunks and vectors, in each dimension, with numbers that no sum rounds.

One lost column, input or row shows.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cases import Case, same_bits

# All small sizes, then both sides of every multiple of 32 that a tile may have, of powers of two and of what the
# kernels use beside them.
NEAR = [*range(96, 289, 32), 384, 448, 512, 640, 768, 1024, 1280, 2048]
SIZES = sorted({*range(1, 70), *(n + d for n in NEAR for d in (-1, 0, 1)), 223, 225, 337, 4097})
OTHERS = {"few": (2, 3, 5), "several tiles": (37, 45, 150)}


def whole_numbers(batch: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Products of up to 4, so that sums of logits stay below 2^24. The last input, row and column count most."""
    rng = np.random.default_rng([batch, k, n])
    x, w = rng.integers(-2, 3, (batch, k)), rng.integers(-2, 3, (n, k))
    x[:, -1] = 3
    w[:, -1], w[-1] = 3, 2
    return x.astype(np.float32), w.astype(np.float32), np.arange(n, dtype=np.float32) % 7


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("dimension", ["batch", "K", "N"])
def test_sizes_around_edges(backend: str, dimension: str, others: str) -> None:
    sizes = SIZES if others == "few" or backend != "reference" else SIZES[::9]
    for size in sizes:
        shape = list(OTHERS[others])
        shape[["batch", "K", "N"].index(dimension)] = size
        x, w, b = whole_numbers(*shape)
        z = x.astype(np.float64) @ w.T.astype(np.float64) + b
        wanted = {
            "linear": z,
            "linear | sum": z.sum(1, keepdims=True),
            "linear | max": z.max(1, keepdims=True),
            "linear | relu | neg | min": -np.maximum(z, 0).max(1, keepdims=True),
        }
        for chain, exact in wanted.items():
            y = Case(chain, x, w, b).run(backend, simplify="none", threads=2)
            wrong = np.argwhere(y != exact)
            assert not len(wrong), (chain, shape, wrong[:3], y[tuple(wrong[0])], exact[tuple(wrong[0])])


@pytest.mark.parametrize("batch", [3, 40])
def test_long_sums_around_edges(backend: str, batch: int) -> None:
    """On a CPU sums of thousands of inputs are made in stretches, and groups of rows share the chunks of a large W of
    few columns: nothing is lost, whoever computes which, and the bits do not depend on that.
    """
    for k, n in itertools.product((8191, 8192, 8193, 16384, 17000), (70, 31)):
        x, w, b = whole_numbers(batch, k, n)
        exact = x.astype(np.float64) @ w.T.astype(np.float64) + b
        for threads in (1, 3):
            y = Case("linear", x, w, b).run(backend, threads=threads)
            assert np.array_equal(y, exact), (k, n, threads, np.argwhere(y != exact)[:3])
        if backend.startswith("cuda"):
            continue
        rng = np.random.default_rng(k)
        case = Case("linear", rng.standard_normal((batch, k), np.float32), rng.standard_normal((n, k), np.float32), b)
        one = case.run(backend, threads=1)
        assert same_bits(case.run(backend, threads=3), one), (k, n)
        alone = Case("linear", case.x[-1:], case.w, b).run(backend, threads=2)
        assert same_bits(alone, one[-1:]), (k, n)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("dimension", ["batch", "K", "N"])
def test_sizes_around_edges_of_other_types(backend: str, dimension: str, dtype: str) -> None:
    for size in SIZES[::3] if backend != "reference" else SIZES[::9]:
        shape = [5, 18, 40]
        shape[["batch", "K", "N"].index(dimension)] = size
        x, w, _ = whole_numbers(*shape)
        exact = (x.astype(np.float64) @ w.T.astype(np.float64)).sum(1, keepdims=True)
        if dtype == "bfloat16":
            stored = [(v.view(np.uint32) >> 16).astype(np.uint16) for v in (x, w)]
        else:
            stored = [v.astype(dtype) for v in (x, w)]
        y_dtype = "float64" if dtype == "float64" else "float32"
        case = Case("linear | sum", *stored, None, {}, dtype, dtype, y_dtype)
        for simplify in ("none", "algebraic"):
            np.testing.assert_array_equal(case.run(backend, simplify=simplify), exact, err_msg=str(case))
