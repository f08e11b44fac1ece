# SPDX-License-Identifier: MIT
"""Products of 16 bits that are added in pairs or in tiles, subnormals taken for zero: no result may show it."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rowfold
from cases import Case
from stored import store, widen

pytestmark = pytest.mark.cpu_only
Array = np.ndarray
PAIRS, VALUES = "cpu-avx512-bf16", "cpu-avx512"
TILES, STEPS = "cpu-amx-bf16", "cpu-avx512-tiles"
F16_TILES = "cpu-amx-fp16"
AVAILABLE = {b.name for b in rowfold.backends() if b.available}
KINDS = [(TILES, "bfloat16"), (STEPS, "bfloat16"), (F16_TILES, "float16"), (STEPS, "float16")]
SHAPES = [(1, 1, 49), (3, 2, 64), (15, 513, 257), (60, 1101, 300), (113, 40, 50)]


def case_of(
    chain: str, x: Array, w: Array, b: Array | None = None, x_dtype: str = "bfloat16", dtype: str = "bfloat16"
) -> Case:
    return Case(chain, store(x, x_dtype), store(w, dtype), b, {}, dtype, x_dtype)


def scaled(rng: np.random.Generator, shape: tuple[int, int], exponent: int) -> Array:
    """Magnitudes from 2^exponent to just below its double, in bfloat16."""
    return np.ldexp(rng.choice([-1.0, 1.0], shape) * (1 + rng.integers(0, 128, shape) / 128), exponent)


def spoil(rng: np.random.Generator, values: Array, with_what: list[float]) -> Array:
    """Three of the values replaced."""
    values = values.copy()
    values.flat[rng.integers(0, values.size, 3)] = rng.choice(with_what, 3)
    return values


@pytest.mark.cpu_only
@pytest.mark.parametrize("x_dtype", ["bfloat16", "float32"])
def test_subnormal_inputs_count(backend: str, x_dtype: str) -> None:
    """One subnormal in x or W, in each half of a pair, in the last pair of an odd K, beside a large factor."""
    n, k = 66, 515
    for at, value in itertools.product((0, 1, 256, 511, 512, 514), (2.0**-133, -(2.0**-127))):
        for in_x in (True, False):
            x, w = np.zeros((17, k)), np.zeros((n, k))
            x[5, at], w[7, at] = (value, 2.0**120) if in_x else (2.0**120, value)
            y = case_of("linear", x, w, x_dtype=x_dtype).run(backend)
            want = np.zeros((17, n), np.float32)
            want[5, 7] = value * 2.0**120
            np.testing.assert_array_equal(y, want)


@pytest.mark.cpu_only
@pytest.mark.parametrize("exponents", [(-70, -70), (-110, -10), (-10, -110), (-64, -48), (-64, -49), (-56, -57)])
def test_subnormal_sums_are_kept(backend: str, exponents: tuple[int, int]) -> None:
    """Products of normal values that are subnormal, and sums that become so where they cancel: all are exact.

    The square of 1 + 2^-7 lies 2^-14 above 1 + 2^-6: the last bit that a product has, subnormal from exponents of -113
    together on.
    """
    above = 1 + 2.0**-7
    x = np.ldexp(np.tile([[above, -(1 + 2.0**-6), above]], (20, 1)), exponents[0])
    w = np.ldexp(np.tile([[above, 1.0, 1.0]], (70, 1)), exponents[1])
    for columns, what in (([0, 1], 2.0**-14), ([1, 0], 2.0**-14), ([0, 1, 2], above + 2.0**-14), ([0], above**2)):
        y = case_of("linear", x[:, columns], w[:, columns]).run(backend)
        want = np.float32(np.ldexp(what, sum(exponents)))
        np.testing.assert_array_equal(y, np.full((20, 70), want))


@pytest.mark.cpu_only
def test_rows_do_not_notice_a_neighbour_with_subnormals(backend: str) -> None:
    """Nor do columns: what stands beside a row in its tile decides how its products are added, but not their sum."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((40, 700)), rng.standard_normal((300, 700))
    case = case_of("linear | logsumexp", x, w)
    alone = case.run(backend)
    x[[3, 20], [5, 650]] = 2.0**-130, -(2.0**-127)
    together = case_of("linear | logsumexp", x, w).run(backend)
    untouched = np.delete(np.arange(40), [3, 20])
    np.testing.assert_array_equal(together[untouched].view(np.uint32), alone[untouched].view(np.uint32))
    w[[100], [699]] = 2.0**-128
    logits = [case_of("linear", x, w).run(backend), case_of("linear", x, np.delete(w, 100, axis=0)).run(backend)]
    np.testing.assert_array_equal(np.delete(logits[0], 100, axis=1).view(np.uint32), logits[1].view(np.uint32))


@pytest.mark.cpu_only
@pytest.mark.parametrize("x_dtype", ["float16", "float32"])
def test_subnormal_float16_counts(backend: str, x_dtype: str) -> None:
    """The smallest in x or W, in each half of a pair, in the last pair of an odd K; and its square."""
    n, k, least = 66, 515, 2.0**-24
    for at, (of_x, of_w) in itertools.product((0, 1, 511, 514), ((least, -3.0), (-3.0, least), (least, least))):
        x, w = np.zeros((17, k)), np.zeros((n, k))
        x[5, at], w[7, at] = of_x, of_w
        y = case_of("linear", x, w, x_dtype=x_dtype, dtype="float16").run(backend)
        want = np.zeros((17, n), np.float32)
        want[5, 7] = of_x * of_w
        np.testing.assert_array_equal(y, want)


def both(case: Case, names: tuple[str, str]) -> list[Array]:
    return [np.nan_to_num(case.run(name), nan=12345.0).view(np.uint32) for name in names]


@pytest.mark.parametrize(
    ("names", "x_dtype"),
    [
        *itertools.product([(PAIRS, VALUES), (TILES, STEPS)], ["bfloat16", "float32", "float16"]),
        ((STEPS, VALUES), "float32"),
        ((STEPS, VALUES), "float16"),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(v),
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pairs_have_the_bits_of_values(shape: tuple[int, int, int], x_dtype: str, names: tuple[str, str]) -> None:
    """AVX512-BF16 against AVX-512, AMX against its order in multiply-adds: on ordinary values and all that is not."""
    if not AVAILABLE.issuperset(names):
        pytest.skip(f"not both {names[0]} and {names[1]} here")
    rng = np.random.default_rng(list(shape))
    batch, k, n = shape
    x, w = rng.standard_normal((batch, k)), rng.standard_normal((n, k))
    x = widen(store(x, x_dtype), x_dtype)  # values of its type, which others may lie beside
    b = 10 * rng.standard_normal(n).astype(np.float32)
    cases = [
        (x, w),
        (spoil(rng, x, [0.0, -0.0]), spoil(rng, w, [0.0, -0.0])),
        (spoil(rng, x, [np.inf, -np.inf, 0.0]), spoil(rng, w, [0.0, np.inf])),
        (spoil(rng, x, [np.nan]), w),
    ]
    if x_dtype != "float16":
        cases += [
            (spoil(rng, x, [2.0**-133, -(2.0**-127)]), w),
            (x, spoil(rng, w, [2.0**-133, -(2.0**-127)])),
            (spoil(rng, x, [3e38, -3e38]), spoil(rng, w, [3e38, -3e38])),
            (spoil(rng, x, [2.0**-60]), spoil(rng, w, [2.0**-60])),
        ]
        for left, right in ((-62, -50), (-62, -51), (-50, -62), (-51, -62), (-56, -57), (-70, -65)):
            cases.append((scaled(rng, x.shape, left), scaled(rng, w.shape, right)))
    for of_x, of_w in cases:
        bias = b if np.abs(of_w).max() > 1e-9 else None
        for chain in ("linear", "linear | max"):
            pairs, values = both(case_of(chain, of_x, of_w, bias, x_dtype), names)
            np.testing.assert_array_equal(pairs, values)


@pytest.mark.parametrize(
    ("names", "x_dtype"),
    [((F16_TILES, STEPS), "float16"), ((STEPS, VALUES), "float32"), ((STEPS, VALUES), "bfloat16")],
    ids=lambda v: v if isinstance(v, str) else "-".join(v),
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float16_has_the_bits_of_values(shape: tuple[int, int, int], x_dtype: str, names: tuple[str, str]) -> None:
    """AMX-FP16 against its order in multiply-adds, which x of another type does not take: subnormals, infinities."""
    if not AVAILABLE.issuperset(names):
        pytest.skip(f"not both {names[0]} and {names[1]} here")
    rng = np.random.default_rng([*shape, 16])
    batch, k, n = shape
    x, w = rng.standard_normal((batch, k)), rng.standard_normal((n, k))
    b = 10 * rng.standard_normal(n).astype(np.float32)
    for of_x, of_w in (
        (x, w),
        (x * 2.0**-14, w),  # subnormal ones among them
        (x, w * 2.0**-20),
        (spoil(rng, x, [np.inf, -np.inf, 0.0]), spoil(rng, w, [0.0, np.inf])),
        (spoil(rng, x, [np.nan]), spoil(rng, w, [65504.0, -0.0])),
    ):
        for chain in ("linear", "linear | max"):
            tiles, values = both(case_of(chain, of_x, of_w, b, x_dtype, "float16"), names)
            np.testing.assert_array_equal(tiles, values)


def added_by_steps(x: Array, w: Array) -> Array:
    """Logits as tiles add them: steps of 32 inputs, of which the even and the odd are a sum each, and chunks of 512.

    Products have 16 bits, of float16 22. Where exponents differ little, a sum of one and a float has no more than
    float64 holds, so it is rounded once.
    """
    total = np.zeros((len(x), len(w)), np.float32)
    for chunk in range(0, x.shape[1], 512):
        in_chunk = np.zeros_like(total)
        for step in range(chunk, min(chunk + 512, x.shape[1]), 32):
            halves = [np.zeros_like(total), np.zeros_like(total)]
            for k in range(step, min(step + 32, chunk + 512, x.shape[1])):
                halves[k % 2] = (halves[k % 2] + np.multiply.outer(x[:, k], w[:, k])).astype(np.float32)
            in_chunk += halves[0] + halves[1]
        total += in_chunk
    return total


@pytest.mark.parametrize(("name", "dtype"), KINDS)
@pytest.mark.parametrize("shape", [(1, 32, 49), (33, 31, 50), (17, 33, 64), (40, 543, 300), (130, 1100, 70)], ids=str)
def test_tiles_add_in_their_order(shape: tuple[int, int, int], name: str, dtype: str) -> None:
    if name not in AVAILABLE:
        pytest.skip(f"no {name} here")
    rng = np.random.default_rng(list(shape))
    batch, k, n = shape
    x, w = (widen(store(rng.uniform(0.125, 2, size), dtype), dtype) for size in ((batch, k), (n, k)))
    x *= rng.choice([-1.0, 1.0], x.shape)
    y = case_of("linear", x, w, x_dtype=dtype, dtype=dtype).run(name)
    np.testing.assert_array_equal(y.view(np.uint32), added_by_steps(x, w).view(np.uint32))


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_tiles_err_less_than_float32(name: str, dtype: str) -> None:
    """Of all positive products, whose sums grow the most, and of mixed ones: the error of logits against float64,
    beside that of multiply-adds of the same values as float32. Of 16 bits these add shorter blocks.

    Of thousands of mixed inputs most of it is made where the sums of chunks are added, in the same order by both: there
    it is no larger, but for the 1% that the root mean square of 16384 errors scatters by.
    """
    if not AVAILABLE.issuperset((name, VALUES)):
        pytest.skip(f"not both {name} and {VALUES} here")
    rng = np.random.default_rng(5)
    for k, low in itertools.product((64, 512, 1000, 8192), (0.0, -1.0)):
        x, w = (widen(store(rng.uniform(low, 1, size), dtype), dtype) for size in ((64, k), (256, k)))
        both = (
            (case_of("linear", x, w, x_dtype=dtype, dtype=dtype), name),
            (Case("linear", store(x, "float32"), store(w, "float32")), VALUES),
        )
        errors = [case.run(backend).astype(np.float64) - x @ w.T for case, backend in both]
        tiles, values = (np.sqrt(np.mean(error**2)) for error in errors)
        assert tiles <= values * (1.01 if (k, low) == (8192, -1.0) else 1), (k, low, tiles, values)


@pytest.mark.parametrize(
    ("name", "pairs", "by", "rows"),
    [
        (PAIRS, "bfloat16", "AVX512-BF16", 14),
        (TILES, "bfloat16", "AMX-BF16", 32),
        (F16_TILES, "bfloat16", "AMX-BF16", 32),
        (F16_TILES, "float16", "AMX-FP16", 32),
        (STEPS, "bfloat16", "multiply-adds in the order of tiles", 32),
        (STEPS, "float16", "multiply-adds in the order of tiles", 32),
    ],
)
def test_explain_says_where_products_come_in_pairs(name: str, pairs: str, by: str, rows: int) -> None:
    if name not in AVAILABLE:
        pytest.skip(f"no {name} here")
    for dtype, x_dtype, chain in itertools.product(
        (pairs, "float32"), (pairs, "float32"), ("linear(30, 70)", "linear(300, 4)")
    ):
        with rowfold.Model(chain, dtype=dtype, x_dtype=x_dtype, backend=name) as model:
            said = f"in pairs by {by}, slivers of {rows} x 32" in model.explain(batch=100)
        assert said == ((dtype, x_dtype, chain) == (pairs, pairs, "linear(30, 70)"))


def test_tiles_in_multiply_adds_have_to_be_asked_for() -> None:
    """And so has AVX512-BF16 on an Intel processor, which is quicker without."""
    code = "import rowfold; print(rowfold.Model('linear', 300, 70, dtype='bfloat16', device='cpu').explain(batch=100))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    chosen = run.stdout.split("backend ")[1].split(":")[0]
    is_intel = platform.machine() == "x86_64" and "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    assert chosen in AVAILABLE - {STEPS} - ({PAIRS} if is_intel else set())


SMALL_STACK = """
import ctypes, rowfold
class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
room = ctypes.create_string_buffer(4096)
assert not ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(room), 0, 4096)), None)
print([b.reason for b in rowfold.backends() if b.name == "cpu-amx-bf16"][0])
with rowfold.Model("linear", 300, 70, dtype="bfloat16", device="cpu") as model:
    print(model.explain(batch=100))
"""


@pytest.mark.skipif(TILES not in AVAILABLE, reason="no AMX here")
def test_a_kernel_that_refuses_tiles_is_named() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
    run = subprocess.run(
        [sys.executable, "-c", SMALL_STACK], check=True, capture_output=True, text=True, env=environment
    )
    assert "alternate signal stack is too small" in run.stdout.splitlines()[0], run.stdout
    assert f"backend {TILES}" not in run.stdout
