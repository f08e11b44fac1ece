# SPDX-License-Identifier: MIT
"""Each CUDA kernel, forced in turn: its numbers, its special values, its bits.

The numbers of the kernels that the backend chooses by itself are judged by the tests that every backend runs. Those run
with each kernel forced by --cuda-kernels=all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import rowfold
import sanitize
import strategies
from cases import Case, flat, make_case, same_bits
from cuda_kernels import FORCE, HOPPER, KERNELS, each, needs_cuda
from datasets import ALL, Data
from device_array import DeviceArray
from hypothesis import given, settings
from stored import store

pytestmark = needs_cuda

CHAINS = ["linear", "linear | logsumexp", "linear | mul(2) | max | gelu", "linear | clamp(-1, 1) | sum"]
CHAINS += ["linear | entropy"]  # for the kernels of several results


def _case(chain: str, batch: int, k: int, n: int, dtype: str = "float32", kind: str = "sigma5", seed: int = 0) -> Case:
    return make_case(chain, ALL[kind](np.random.default_rng(seed), batch, k, n), dtype=dtype)


@pytest.mark.parametrize("part", range(12))
@settings(max_examples=10)
@given(case=strategies.cases())
def test_each_kernel(part: int, case: Case) -> None:
    """A kernel that cannot run a case gives way to one that can."""
    expected = case.expected("cuda")
    with pytest.MonkeyPatch.context() as patch:
        for kernel in each(patch):
            case.check(case.run("cuda", simplify="none"), kernel, expected)


def test_unknown_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCE, "fastest")
    with pytest.raises(rowfold.InvalidArgumentError, match="fastest"):
        _case("linear", 1, 3, 3).run("cuda")


@pytest.mark.parametrize(
    "chain", ["linear | {}", "linear | {} | logsumexp", "linear | max | {}", "linear | sum, ({} | max)"]
)
@pytest.mark.parametrize("name", strategies.WAVES)
def test_operators_of_the_host(chain: str, name: str) -> None:
    with pytest.raises(rowfold.UnsupportedError, match=f'no CUDA kernel computes {name}; device "cpu" does'):
        _case(chain.format(name), 2, 3, 5).run("cuda")


@pytest.mark.parametrize("math", ["tf32", "bf16"])
@pytest.mark.parametrize("shape", [(7, 129, 65), (130, 257, 191)])
def test_math(math: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case("linear", *shape)
    expected = case.expected("cuda", math)
    for kernel in each(monkeypatch):
        case.check(case.run("cuda", math=math), kernel, expected)


@pytest.mark.parametrize("batch", [60, 150, 2500])
@pytest.mark.parametrize("chain", CHAINS)
def test_irregular_rows(chain: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of x that binary16 terms cannot hold, among rows that they can."""
    case = _case(chain, batch, 65, 131)
    x, half = case.x.copy(), batch // 2
    x[3, 5], x[half, 1], x[half + 1, 64] = np.inf, -np.inf, np.nan
    x[half + 6] *= np.float32(1e-41)
    x[half + 7, :2] = 1e30, 1e-30
    x[-2, 7:] *= np.float32(1e-30)
    x[-1] = 0
    odd = replace(case, x=x)
    expected = odd.expected("cuda")
    for kernel in each(monkeypatch):
        odd.check(odd.run("cuda", simplify="none"), kernel, expected)


@pytest.mark.parametrize("k", [20_000, 33_001])
@pytest.mark.parametrize("math", ["f32", "tf32"])
def test_long_rows(k: int, math: str) -> None:
    """Longer than what shared memory holds of a row while it is split; of whole pieces and of others."""
    case = _case("linear", 5, k, 70)
    x = case.x.copy()
    x[1, -1], x[2, -2], x[3, k // 2] = np.inf, 1e4, np.nan
    odd = replace(case, x=x)
    odd.check(odd.run("cuda", math=math), math, odd.expected("cuda", math))


@pytest.mark.parametrize("chain", CHAINS)
def test_rows_that_are_all_irregular(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case(chain, 50, 65, 400)
    x = case.x.copy()
    x[:, 0], x[:, 1:] = 1e20, x[:, 1:] * np.float32(1e-20)
    odd = replace(case, x=x)
    expected = odd.expected("cuda")
    for kernel in each(monkeypatch):
        odd.check(odd.run("cuda", simplify="none"), kernel, expected)


@pytest.mark.parametrize(
    "chain", ["linear | logsumexp", "linear | mul(2) | save | add_saved | clamp(-9, 9) | sum", "linear | entropy"]
)
@pytest.mark.parametrize("batch", [60, 200])
def test_more_tiles_than_multiprocessors(chain: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks share them out as they get on, and the bits do not show how; the last tile is narrower. The judge, who
    takes longest, is shown some of the rows.
    """
    case = _case(chain, batch, 40, 70_001)
    some = replace(case, x=case.x[::7])
    expected = some.expected("cuda")
    for kernel in each(monkeypatch, [name for name in HOPPER if name.endswith("_small") == (batch == 60)]):
        with case.model("cuda", simplify="none") as model:
            first = model(case.x)
            some.check(first[::7], kernel, expected)
            assert all(same_bits(first, model(case.x)) for _ in range(5)), kernel


@pytest.mark.parametrize("k", [65, 128, 200, 256, 330, 512, 600, 900])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_halves_of_a_short_k_in_many_tiles(dtype: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer stages than the ring has: what brings them is tiles ahead of what multiplies them, and no block may be told
    twice that the other is ready.
    """
    monkeypatch.setenv(FORCE, "hopper_halves_128x128")
    for batch, columns in ((9216, 336), (300, 9000), (2100, 1000)):
        case = _case("linear | logsumexp", batch, k, columns, dtype, "kernelbench")
        some = replace(case, x=case.x[::97])
        expected = some.expected("cuda")
        x, y = DeviceArray(case.x), DeviceArray(np.full((batch, 1), 7, case.y_dtype))
        with case.model("cuda", simplify="none") as model:
            for _ in range(20):
                model(x, out=y)
            some.check(y.numpy()[::97], dtype, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "kernel, k",
    [(name, k) for name in ("320x128", "halves_320x128") for k in (1, 64, 200, 2100)]
    + [("thirds_256x128", k) for k in (129, 300, 2100, 2040)]
    + [("quarters_136x128", k) for k in (193, 420, 2040)]
    + [("eighths_136x128", k) for k in (449, 940, 2040)]
    + [(name, k) for name in ("answers_272x128", "answers_halves_272x128") for k in (1, 64, 200, 2100)]
    + [("answers_thirds_224x128", k) for k in (129, 300, 2100, 2040)]
    + [("answers_quarters_136x128", k) for k in (193, 420, 2040)]
    + [("answers_eighths_136x128", k) for k in (449, 940, 2040)],
)
def test_groups_of_rows(kernel: str, dtype: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each height of a tile, one row, boxes of unequal height, groups of which the last has fewer; a tile a block and
    several; features that fill no tile and no pair of tiles; an odd number of stages of K and an even one, and fewer in
    the last part; W in blocks and as it is lent; the same bits every time.
    """
    kernel, reduction = f"hopper_{kernel}", "max" if "answers" in kernel else "logsumexp"
    monkeypatch.setenv(FORCE, kernel)
    columns = {1: 7, 8: 64, 9: 100, 137: 300, 185: 190, 225: 500, 255: 8000, 257: 1000, 289: 70, 300: 130}
    # One group each, with as many columns: two would take twice as many rounds.
    heights = (48, 79, 96, 112, 136, 160, 192, 224, 256, 272, 288, 320) if 1 < k <= 200 or k == 449 else ()
    columns |= {rows: 33_000 + rows for rows in heights}
    many = {144: 20_600 if k > 200 else 40_960, 210: 12_290}  # states of a row, merged by a warp in one round and more
    for batch, n in {**columns, 321: 257, 800: 10_240, 1537: 1500, **many}.items():
        case = _case(f"linear | mul(@v) | {reduction}", batch, k, n, dtype, "kernelbench")
        rng = np.random.default_rng(batch)
        case = replace(case, vectors={"v": store(rng.normal(size=n), dtype)})
        some = replace(case, x=case.x[:: 1 + batch // 50])
        expected = some.expected("cuda")
        first = None
        for borrow in (False, True):
            w, b, v = DeviceArray(case.w), DeviceArray(case.b), DeviceArray(case.vectors["v"])
            x, y = DeviceArray(case.x), DeviceArray(np.full((batch, 1), 7, case.y_dtype))
            with rowfold.Model(case.chain, dtype=dtype, x_dtype=dtype, y_dtype=case.y_dtype, device="cuda") as model:
                model.load_weights(w, b, {"v": v}, borrow=borrow)
                assert model.explain(batch, "json")["kernel"].startswith(kernel)
                for _ in range(3):
                    model(x, out=y)
                    got = y.numpy()
                    first = got if first is None else first
                    assert same_bits(got, first), (batch, k, n, borrow)
            some.check(np.ascontiguousarray(first[:: 1 + batch // 50]), f"{batch} {k} {n}", expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "kernel",
    ["320x128", "halves_320x128", "thirds_256x128", "quarters_136x128", "eighths_136x128"]
    + ["answers_" + form for form in ("272x128", "halves_272x128", "thirds_224x128", "quarters_136x128")]
    + ["answers_eighths_136x128", "128x128", "64x128", "64x64"],
)
def test_a_plain_fold(kernel: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without steps groups of rows have a fold of their own, and that of the first tile may be rehearsed: each height
    of a tile, several tiles a block, columns that are not there, on tame values and others in turn. A step that changes
    nothing takes the other way, to the same bits but for the entropy, whose terms are products that may be rounded by
    themselves or with their sum: once more of each term, of the same sign as all others, relative to a result that is
    no smaller than what they come to.
    """
    monkeypatch.setenv(FORCE, f"hopper_{kernel}")
    reductions = ["logsumexp", "sum", "mean"]
    if "answers" in kernel:
        reductions = ["max", "entropy", "max, argmax", "logsumexp, max"]
    heights = (1, 8, 48, 79, 96, 112, 136, 160, 192, 224, 256, 272, 288, 320, 641)
    columns = (7, 130, 1000, 65, 4200, 190, 127, 500, 3000, 257, 1, 1032, 70, 2100, 9000)
    for i, (batch, n) in enumerate(zip(heights, columns)):
        kind = ("kernelbench", "infinities", "outlier", "sigma5", "nan")[i % 5]
        reduction = reductions[i % len(reductions)]
        case = _case(f"linear | {reduction}", batch, 940, n, dtype, kind, seed=i)
        with case.model("cuda", simplify="none") as model:
            assert model.explain(batch, "json")["kernel"].startswith(f"hopper_{kernel}"), (batch, n)
            results, again = model(case.x), model(case.x)
        some = slice(None, None, 1 + batch // 20)
        replace(case, x=case.x[some]).check_results(tuple(y[some] for y in flat(results)), "cuda", kernel)
        with replace(case, chain=f"linear | mul(1) | {reduction}").model("cuda", simplify="none") as model:
            other = model(case.x)
        assert all(map(same_bits, flat(results), flat(again))), (batch, n, reduction, kind)
        if reduction == "entropy":
            for a, b in zip(flat(results), flat(other)):
                np.testing.assert_allclose(a, b, rtol=2**-22)
        else:
            assert all(map(same_bits, flat(results), flat(other))), (batch, n, reduction, kind)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("chain", ["linear", "linear | mul(0.5) | clamp(-3, 3)", "linear | gelu"])
def test_stored_logits_of_16_bits(chain: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of 16 bytes where y lies so and all columns of a tile are there, one by one elsewhere: float32 results,
    rounded, and nothing beside them.
    """
    for batch, k, n in ((300, 200, 520), (131, 330, 600), (200, 70, 256)):
        case = _case(chain, batch, k, n, dtype)
        x = DeviceArray(case.x)
        for _ in each(monkeypatch, [name for name in HOPPER if "answers" not in name and "searches" not in name]):
            with case.model("cuda", simplify="none") as model:
                expected = store(model(case.x), dtype)
            with replace(case, y_dtype=dtype).model("cuda", simplify="none") as model:
                for ld, skip in ((n, 0), (n + 8, 8), (n + 4, 0), (n + 8, 4), (n + 2, 0), (n + 1, 0), (n + 8, 1)):
                    y = DeviceArray(np.full((batch, ld + skip), store(np.array(7.0), dtype)))
                    y.shape, y.pointer = (batch, n), y.pointer + skip * y.dtype.itemsize
                    y.ld = ld + skip
                    model(x, out=y)
                    y.shape, y.pointer = (batch, ld + skip), y.pointer - skip * y.dtype.itemsize
                    got = y.numpy()
                    assert (got[:, skip : skip + n] == expected).all(), (chain, dtype, ld, skip)
                    beside = np.delete(got, np.s_[skip : skip + n], axis=1)
                    assert (beside == store(np.array(7.0), dtype)).all(), (chain, dtype, ld, skip)


def _inputs_of(kernel: str, others: int) -> int:
    """A stage of each part of K, where it is in thirds, quarters or eighths."""
    return {"thirds": 150, "quarters": 200, "eighths": 450}.get(f"_{kernel}".split("_")[-2], others)


@pytest.mark.parametrize(
    "kernel, columns",
    [
        ("small", 64),
        ("128x256", 256),
        ("128x128", 128),
        ("halves_128x128", 128),
        ("320x128", 64),
        ("halves_320x128", 64),
        ("thirds_256x128", 64),
        ("quarters_136x128", 64),
        ("eighths_136x128", 64),
        ("answers_small", 64),
        ("answers_128x256", 256),
        ("answers_128x128", 128),
        ("answers_64x128", 64),
        ("answers_272x128", 64),
        ("answers_halves_272x128", 64),
        ("answers_thirds_224x128", 64),
        ("answers_quarters_136x128", 64),
        ("answers_eighths_136x128", 64),
        ("64x128", 64),
        ("64x64", 32),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chain", ["linear | logsumexp | gelu", "linear | max"])
def test_states_that_a_kernel_behind_the_fold_merges(
    kernel: str, columns: int, dtype: str, chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one lane up to 4 of a row, by more up to a warp, 256 at a time. One alone, a ragged last one; few rows, and
    more than rehearse.
    """
    monkeypatch.setenv(FORCE, f"hopper_{kernel}")
    small = kernel.endswith("small")
    counts = ((1, 0), (2, 1), (4, 0), (5, 0), (8, 3), (9, 0), (16, 0), (17, 5), (64, 0), (65, 1), (128, 0), (129, 2))
    for states, less in (*counts, (256, 0), (257, 3), (513, 0), (700, 1)):
        rows, k = 33 if small else 300 if states in (128, 257) else 70, _inputs_of(kernel, 24)
        case = _case(chain, rows, k, columns * states - less, dtype)
        case.check(case.run("cuda", simplify="none"), f"{kernel} with {states} states")


_WIDE = {
    "tame": lambda rng, x: None,
    "outliers": lambda rng, x: np.multiply.at(x, (slice(None), slice(0, None, 7)), 1e8),
    "tiny": lambda rng, x: np.multiply.at(x, (slice(None, None, 2),), 1e-300),
    "not finite": lambda rng, x: x.__setitem__((rng.integers(len(x)), 1), np.nan) or x.__setitem__((-1, 0), np.inf),
}


@pytest.mark.parametrize("data", list(_WIDE))
@pytest.mark.parametrize("kernel", ["mma_f64_64x64", "few_f64_8x64", "fma_f64_64x128"])
def test_rows_of_many_states_in_double(kernel: str, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are joined by a thread, in groups, one alone in the last, more groups than registers hold; a row's bits
    do not depend on its company.
    """
    rng = np.random.default_rng(0)
    monkeypatch.setenv(FORCE, kernel)
    for columns in (3000, 16_385, 33_000, 140_000):
        for reduction in ("logsumexp", "mean", "max"):
            for batch in (1, 70):
                case = _case(f"linear | {reduction}", batch, 5, columns, "float64")
                x = case.x.copy()
                _WIDE[data](rng, x)
                some = replace(case, x=x[-1::-9])  # for the judge, who takes longest
                with case.model("cuda", simplify="none", batch_invariant=True) as model:
                    y = model(x)
                    some.check(y[-1::-9], f"{reduction}, {batch} x {columns}", some.expected("cuda"))
                    assert same_bits(y, model(x))
                    assert same_bits(y[batch // 2 :], model(x[batch // 2 :]))


_READERS = [
    (kernel, dtype, 9) for kernel in ("hopper_64x64", "mma_64x64", "mma_16x64") for dtype in ("float16", "bfloat16")
]
_READERS += [("narrow_32x8", dtype, 7) for dtype in ("float16", "bfloat16", "float32")]
_READERS += [("narrow_16x16", "float32", 13), ("narrow_f64_16x8", "float64", 7)]
_READERS += [("narrow_128x16", "float32", 13), ("narrow_128x32", "float32", 29), ("narrow_128x64", "float32", 70)]
_READERS += [("stream_8x64", dtype, 70) for dtype in ("float16", "bfloat16", "float32")]
_READERS += [
    ("few_8x64", "float32", 9),
    ("few_32x64", "float32", 9),
    ("few_f64_8x64", "float64", 9),
    ("mma_f64_64x64", "float64", 9),
    ("mma_f64_32x64", "float64", 9),
]


@pytest.mark.parametrize("kernel, dtype, columns", _READERS)
def test_rows_that_begin_anywhere(kernel: str, dtype: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits whatever the rows' alignment and distance: kernels that read pieces of 16 bytes get them by a copy,
    others read values in an order that does not depend on it.
    """
    monkeypatch.setenv(FORCE, kernel)
    for batch, k in ((1, 4099), (3, 5), (70, 100), (300, 64), (2, 16)):
        case = _case("linear", batch, k, columns, dtype)
        expected = case.expected("cuda")
        with case.model("cuda", simplify="none") as model:
            first = model(case.x)
            case.check(first, kernel, expected)
            for begin in (0, 1, 2, 4, 8):
                for gap in (0, 1, 2, 3, 4, 8, 12):
                    y = DeviceArray(np.full_like(first, 7))
                    model(DeviceArray(case.x, k + gap, begin), out=y)
                    assert same_bits(first, y.numpy()), (batch, k, begin, gap)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 16, 17, 40])
def test_sums_of_few_products(k: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so few the tensor cores cut off hardly anything, and nothing is to be regained. All of one sign, so that the
    worst case of a float32 program is what an error is compared with.
    """
    rng = np.random.default_rng(k)
    data = Data(1 + rng.random((70, k)), 30 * (1 + rng.random((300, k))), np.zeros(300))
    for chain in ("linear", "linear | max", "linear | topk(2), max"):
        case = make_case(chain, data, dtype=dtype)
        expected = case.expected_results("cuda")
        for kernel in each(monkeypatch, HOPPER):
            case.check_results(case.run("cuda", simplify="none"), "cuda", kernel, expected)


@pytest.mark.parametrize("kernel", HOPPER)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rows_that_are_not_there(kernel: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not loaded for the last tiles, of x nor of W: what lies in their place, here NaN that a call before has
    left in shared memory, is in no result.
    """
    monkeypatch.setenv(FORCE, kernel)
    for batch, k, n in (
        (129, 200, 300),
        (257, 72, 193),
        (130, 520, 130),
        (385, 264, 1000),
        (65, 136, 40),
        (9, 64, 257),
    ):
        before = _case("linear | logsumexp", 512, k, 1024, dtype)
        before = replace(
            before, x=store(np.full(before.x.shape, np.nan), dtype), w=store(np.full((1024, k), np.nan), dtype)
        )
        for chain in ("linear | logsumexp", "linear", "linear | entropy"):
            case = _case(chain, batch, k, n, dtype)
            with case.model("cuda", simplify="none") as model, before.model("cuda", simplify="none") as others:
                y = model(case.x)
                case.check(y, kernel, case.expected("cuda"))
                assert np.isnan(others(before.x)).all()
                assert same_bits(y, model(case.x)), (batch, k, n, chain)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_pass_in_slices(dtype: str) -> None:
    """More than what is on the device at a time of a host's weights, and no whole number of blocks of rows."""
    case = _case("linear | max", 7, 20_000, 2200 if dtype == "bfloat16" else 1100, dtype=dtype)
    with (
        case.model("cuda") as host,
        rowfold.Model(case.chain, *case.w.shape[::-1], dtype=dtype, x_dtype=dtype, backend="cuda") as device,
    ):
        device.load_weights(DeviceArray(case.w), DeviceArray(case.b))
        y = host(case.x)
        case.check(y, dtype, case.expected("cuda"))
        assert same_bits(y, device(case.x))


@pytest.mark.parametrize("kind", ALL)
def test_kinds_of_data(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the products that the kernel takes, K being large enough for three: infinities, NaN, subnormals, one
    large value in a row of x, columns and rows that are all -inf, wide ranges.
    """
    for chain in CHAINS:
        for shape in ((6, 129, 67), (70, 65, 131)):
            case = _case(chain, *shape, kind=kind)
            expected = case.expected("cuda")
            for kernel in each(monkeypatch):
                case.check(case.run("cuda", simplify="none"), kernel, expected)


@pytest.mark.parametrize("chain", CHAINS)
def test_rows_and_bias_that_are_all_negative_infinity(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay -inf, beside rows and columns that are numbers; a row of x of zeros gives the bias."""
    case = _case(chain, 70, 65, 131)
    x, w = case.x.copy(), case.w.copy()
    w[:, 0] = np.abs(w[:, 0]) + 1
    x[7, 0], x[69, 0], x[20] = -np.inf, -np.inf, 0
    cases = [replace(case, x=x, w=w)]
    for columns in (slice(None), slice(1, None), slice(64, 128)):
        b = case.b.copy()
        b[columns] = -np.inf
        cases.append(replace(case, b=b))
    for odd in cases:
        expected = odd.expected("cuda")
        for kernel in each(monkeypatch):
            odd.check(odd.run("cuda", simplify="none"), kernel, expected)


@pytest.mark.parametrize("form", sanitize.FORMS)
def test_program_for_the_sanitizers(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels that are compiled for a form of W and x, on device arrays that end where their allocation does."""
    monkeypatch.setenv(FORCE, "")
    assert sum(sanitize.runs(kernel, form) for kernel in (*KERNELS, sanitize.COLLAPSE))


def test_irregular_weights() -> None:
    """Rows of W likewise: the outlier's feature is zero in x, so the small ones are all there is."""
    case = _case("linear", 20, 64, 70)
    x, w = case.x.copy(), case.w.copy()
    x[:, 0] = 0
    w[5] = np.float32(1e-3) * w[5]
    w[5, 0] = 1e30
    odd = replace(case, x=x, w=w)
    odd.check(odd.run("cuda"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_same_bits_again(dtype: str) -> None:
    for chain in CHAINS:
        case = _case(chain, 131, 300, 515, dtype)
        with case.model("cuda", simplify="none") as model:
            first = model(case.x)
            assert all(same_bits(first, model(case.x)) for _ in range(5))


@pytest.mark.parametrize("kernel", ["", *KERNELS])
def test_batch_invariant(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCE, kernel)
    for chain in CHAINS:
        case = _case(chain, 140, 100, 200)
        with case.model("cuda", batch_invariant=True, simplify="none") as model:
            whole = model(case.x)
            for first, last in ((0, 1), (1, 9), (5, 70), (139, 140)):
                assert same_bits(whole[first:last], model(case.x[first:last])), (chain, first, last)


WILD = ["lognormal3", "lognormal6", "outlier1e4", "outlier1e20", "tiny", "silu", "inf", "nan", "inf_w", "nan_w"]
WILD += ["lognormal_w3", "lognormal_both", "tiny_w"]


@pytest.mark.parametrize("kind", [kind for kind in WILD if kind in ALL])
def test_wild_values(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides of the depth from which a few tiny values may be lost, and with rows enough for several tiles."""
    for batch, k, n in ((7, 130, 67), (40, 700, 131), (150, 1030, 200)):
        for chain in ("linear", "linear | logsumexp", "linear | entropy"):
            case = _case(chain, batch, k, n, kind=kind, seed=batch)
            expected = case.expected("cuda")
            for kernel in each(monkeypatch):
                case.check(case.run("cuda", simplify="none"), kernel, expected)


@pytest.mark.parametrize("kernel", HOPPER + ["mma_128x128", "mma_64x64"])
def test_values_that_would_be_lost(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large values of x where W is zero and the reverse, terms that cancel, one-hot rows, and a feature that W
    makes as small as x makes it large: what is left is far below the row's largest value.
    """
    monkeypatch.setenv(FORCE, kernel)
    rng = np.random.default_rng(5)
    batch, k, n = 70, 600, 90
    for case in range(6):
        x, w = rng.normal(size=(batch, k)), rng.normal(size=(n, k))
        if case == 0:
            x[:, ::2] *= 1e12
            w[:, ::2] = 0
        elif case == 1:
            w[:, ::2] *= 1e12
            x[:, ::2] = 0
        elif case == 2:
            x[:, 0] = x[:, 1] = 1e15
            w[:, 0] = rng.normal(size=n)
            w[:, 1] = -w[:, 0]
        elif case == 3:
            w = np.eye(n, k)
            x[:, :3] = (1e-20, 1e20, 1e-10)
        elif case == 4:
            x = np.eye(batch, k)
            w[:, :3] = (1e-20, 1e20, 1e-10)
        else:
            x[:, 5] *= 1e12
            w[:, 5] *= 1e-12
        made = make_case("linear", Data(x, w, rng.normal(size=n) * 0))
        made.check(made.run("cuda", simplify="none"), f"{kernel}, {case}", made.expected("cuda"))


def test_the_way_of_a_row_is_its_own() -> None:
    """Bits of rows beside rows of two levels, NaN and infinities, alone and among them, and every run."""
    rng = np.random.default_rng(1)
    data = ALL["sigma5"](rng, 300, 1000, 700)
    x = data.x.copy()
    x[10:200:7] *= np.exp(rng.normal(size=x[10:200:7].shape) * 4)
    x[3, 5], x[77, 6], x[78, ::9] = np.nan, np.inf, np.inf
    for chain in ("linear", "linear | logsumexp"):
        mixed, tame = make_case(chain, data._replace(x=x)), make_case(chain, data)
        with mixed.model("cuda", simplify="none", batch_invariant=True) as model:
            together, plain = model(mixed.x), model(tame.x)
            same = (mixed.x == tame.x).all(axis=1)
            assert same_bits(together[same], plain[same])
            assert same_bits(together[100:130], model(mixed.x[100:130]))
            for _ in range(3):
                assert same_bits(together, model(mixed.x))


_PARTS = [name for name in KERNELS if name.startswith(("few", "narrow", "stream"))]
_PARTS += ["mma_16x64", "mma_64x64", "mma_f64_64x64", "mma_f64_32x64"]
_SHAPES_IN_PARTS = [(1, 64, 1), (3, 4097, 5), (33, 12000, 8), (200, 2500, 3), (70, 3002, 13), (40, 9000, 70)]
_SHAPES_IN_PARTS += [(5, 40_000, 3), (7, 5001, 130)]  # more than a thread's registers sum up; several tiles of few rows


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("kernel", _PARTS)
def test_parts_of_k(kernel: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K in parts, whole stages or not, aligned or not: the same bits every run, and alone where that is promised. As
    many parts as one block adds, and more.
    """
    monkeypatch.setenv(FORCE, kernel)
    for chain in ("linear", "linear | logsumexp", "linear | entropy"):
        for batch, k, n in _SHAPES_IN_PARTS:
            case = _case(chain, batch, k, n, dtype, "kernelbench")
            apart = np.full((batch, k + 3), np.nan, case.x.dtype)
            apart[:, :k] = case.x
            with case.model("cuda", simplify="none") as model:
                first = model(case.x)
                case.check(first, f"{kernel}, {batch} x {k} -> {n}", case.expected("cuda"))
                about = model.explain(batch, "json")["kernel"]
                assert k < 2500 or not about.startswith(kernel) or "parts" in about
                assert all(same_bits(first, model(x)) for x in (case.x, apart[:, :k], case.x))
            with case.model("cuda", simplify="none", batch_invariant=True) as model:
                together = model(case.x)
                case.check(together, kernel, case.expected("cuda"))
                assert same_bits(together[batch // 2 :], model(case.x[batch // 2 :]))


@pytest.mark.parametrize("kind", ["kernelbench", "sigma5", "inf", "nan_w"])
def test_last_tiles_in_parts(kind: str) -> None:
    """More tiles than multiprocessors hold, and K of the last columns of tiles in parts, where nobody compares columns:
    the same bits wherever a row is, in host memory, which comes in pieces, as in the device's.
    """
    in_parts = 0
    for batch, k, n in ((1000, 3000, 1700), (1001, 4003, 1700)):
        order = np.random.default_rng(0).permutation(batch)
        for chain in ("linear | logsumexp", "linear | mul(2) | max", "linear | argmax", "linear"):
            case = _case(chain, batch, k, n, "float64", kind)
            with case.model("cuda", simplify="none") as model:
                y, about = model(case.x), model.explain(batch, "json")["kernel"]
                at_once = DeviceArray(np.full_like(y, 7))
                model(DeviceArray(case.x), out=at_once)
                assert same_bits(at_once.numpy(), y) and same_bits(model(case.x[order]), y[order])
            some = replace(case, x=case.x[::128])
            some.check(y[::128], about, some.expected("cuda"))
            shared = "of the last tiles" in about
            assert not shared or chain in ("linear | logsumexp", "linear | mul(2) | max"), about
            in_parts += shared
    assert in_parts


@pytest.mark.parametrize("kind", ["kernelbench", "tiny_w", "lognormal_both", "inf"])
def test_few_rows_by_blocks_of_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """W in blocks, as the library keeps it for other kernels, and in rows, where this kernel is forced: the same bits.
    In two terms and in three.
    """
    monkeypatch.delenv(FORCE, raising=False)
    streamed = 0
    for batch, k, n in ((1, 2400, 300), (5, 3000, 100), (3, 2382, 697), (2, 4097, 130), (8, 6000, 65)):
        for chain in ("linear", "linear | logsumexp"):
            case = _case(chain, batch, k, n, kind=kind)
            expected = case.expected("cuda")
            with case.model("cuda", simplify="none") as model:
                y, about = model(case.x), model.explain(batch, "json")["kernel"]
            case.check(y, about, expected)
            if not about.startswith("stream_8x64"):
                continue
            streamed += 1
            with monkeypatch.context() as patch:
                patch.setenv(FORCE, "stream_8x64")
                assert same_bits(y, case.run("cuda", simplify="none"))
    assert streamed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_layer_of_no_columns(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is summed up in parts of K is nothing, and is written."""
    for reduction in ("sum", "logsumexp"):
        for batch, k in ((1, 223), (70, 5000)):
            case = _case(f"linear | {reduction}", batch, k, 0, dtype)
            expected = case.expected("cuda")
            for kernel in each(monkeypatch, ["", *KERNELS]):
                case.check(case.run("cuda", simplify="none"), kernel, expected)


@pytest.mark.parametrize("kernel", ["", *HOPPER])
def test_one_stage_and_thousands_of_tiles(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are told their tiles faster than anywhere else: none may be told over one that is still read."""
    monkeypatch.setenv(FORCE, kernel)
    rng = np.random.default_rng(0)
    rows, k = 13008, _inputs_of(kernel, 8)
    n, reduction = 16592, "logsumexp"
    if kernel.endswith(("320x128", "272x128", "thirds_256x128", "224x128", "136x128")):
        n = 10_000  # which have no more states
    if "answers" in kernel:
        n, reduction = n // 2, "max"
    data = Data(rng.normal(size=(rows, k)), rng.normal(size=(n, k)) / np.sqrt(8), rng.normal(size=n))
    case = make_case(f"linear | {reduction}", data, dtype="bfloat16", x_dtype="bfloat16")
    some = replace(case, x=case.x[::271])
    expected = some.expected("cuda")
    x = DeviceArray(case.x)
    y = DeviceArray(np.full((rows, 1), 7, case.y_dtype))
    with case.model("cuda") as model:
        for _ in range(400):
            model(x, out=y)
        first = y.numpy()
        some.check(first[::271], kernel, expected)
        assert same_bits(first, model(case.x))
