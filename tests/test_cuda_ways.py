# SPDX-License-Identifier: MIT
"""The ways of values that 16-bit terms do not represent, on each kernel that multiplies terms: which one is taken is
asked of the library, and what comes of it is compared with float64."""

from __future__ import annotations

import os

import hypothesis.strategies as st
import numpy as np
import pytest
import rowfold
from cases import Case, make_case, same_bits
from cuda_kernels import FORCE, KERNELS, each
from datasets import ALL, Data, infinities, kernelbench, spread
from hypothesis import given, settings

_CUDA = next(b for b in rowfold.backends() if b.name == "cuda")
pytestmark = pytest.mark.skipif(not _CUDA.available, reason=f"backend cuda: {_CUDA.reason}")

Array = np.ndarray
# Where float32 x is brought to terms; those of several results have the same code for it, two are of one product alone.
TERMS = [
    name
    for name in KERNELS
    if name.startswith(("mma", "hopper"))
    and not name.startswith(("hopper_answers", "hopper_searches", "mma_f64"))
    and name not in ("hopper_128x192", "hopper_320x128", "hopper_halves_320x128", "mma_256x128")
]
K, N = 1056, 200
VERDICTS = K // 8  # rows of W with several infinities that have a column each, at most
PARTS = {
    "first": lambda batch: [0],
    "one": lambda batch: [17],
    "edges": lambda batch: [0, 15, 16, batch - 1],
    "all": lambda batch: list(range(batch)),
}


def _tame(batch: int, n: int = N, seed: int = 0) -> tuple[Array, Array, Array]:
    """W without zeros, which x of any range may meet."""
    x, w, b = kernelbench(np.random.default_rng(seed), batch, K, n)
    x, w = x - 0.5, np.where(np.abs(w) < 1e-6, 1e-6, w)
    return tuple(np.ascontiguousarray(v, np.float32) for v in (x, w, b))


def _ways(x: Array, w: Array, math: str = "f32") -> rowfold.Ways:
    with rowfold.Model("linear | logsumexp", backend="cuda", math=math).load_weights(w) as model:
        return model.count_ways(x)


def _check(x: Array, w: Array, b: Array, chain: str = "linear | max", **keywords: str) -> None:
    case = make_case(chain, Data(x, w, b), **keywords)
    case.check_results(case.run("cuda", simplify="none"), "cuda")


def _on_wgmma() -> bool:
    """Whether the forced kernel is one of sm_90a, on such a device."""
    with rowfold.Model(f"linear({K}, {N}) | max", backend="cuda") as model:
        return os.environ[FORCE].startswith("hopper") and model.explain(1, "json")["kernel"].startswith("hopper")


@pytest.fixture(params=TERMS)
def batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """As many rows as are several tiles, if the kernel, which is forced, takes so many."""
    monkeypatch.setenv(FORCE, request.param)
    return 60 if request.param == "hopper_small" else 140


def test_tame_values_take_no_wider_way(batch: int) -> None:
    x, w, b = _tame(batch)
    tiles = _ways(x, w).tiles
    assert _ways(x, w) == rowfold.Ways(batch, 0, 0, tiles, 0, 2, 2)
    assert tiles in (1, 2, 3, 9)
    x[3, 5] = np.inf
    x[4, 6] = np.nan
    x[5] = 0
    assert _ways(x, w).irregular_rows == _ways(x, w).two_level_rows == 0
    _check(x, w, b)


def test_rows_of_two_levels(batch: int) -> None:
    x, w, b = _tame(batch)
    x[[3, 5, batch - 1]] = spread(6.0, np.random.default_rng(1), 3, K).astype(np.float32)
    ways = _ways(x, w)
    assert (ways.two_level_rows, ways.irregular_rows, ways.x_terms, ways.weight_terms) == (3, 0, 2, 2)
    assert ways.two_level_tiles == (1 if ways.tiles == 1 else 2)
    _check(x, w, b)


def _with_infinities(batch: int, rows: list[int]) -> tuple[Array, Array, Array]:
    """Of which `rows` of x have several; W has zeros at some of their places, and values that a first term is too
    coarse for at others."""
    rng = np.random.default_rng(len(rows))
    x, w, b = _tame(batch)
    w[rng.random(w.shape) < 0.1] = 0
    for row in rows:
        at = rng.choice(K, [2, 3, 8, 9, 16, K // 2][row % 6], replace=False)
        x[row, at] = rng.choice([np.inf, -np.inf] if row % 4 == 1 else [np.inf], len(at))
        w[row % N, at] = np.abs(w[row % N, at]) + 0.01  # so that one logit of many infinities is infinite
        w[(row + 3) % N, at[:2]] = 1e-30 if row % 3 else -1e-30
    if len(rows) > 1:
        x[rows[-1]] = -np.inf
    return x, w, b


@pytest.mark.parametrize("part", PARTS)
def test_rows_with_several_infinities(batch: int, part: str) -> None:
    x, w, b = _with_infinities(batch, PARTS[part](batch))
    assert _ways(x, w).irregular_rows == 0
    for chain in ("linear | max", "linear", "linear | logsumexp, argmax"):
        _check(x, w, b, chain)
    first, second = (Case("linear", x, w, b).run("cuda") for _ in range(2))
    assert same_bits(first, second)


@pytest.mark.parametrize("part", ["one", "edges", "all"])
@pytest.mark.parametrize(
    "types", ["float32 bfloat16", "float32 float16", "bfloat16 float32", "float16 float32", "bfloat16 float16", "wide"]
)
def test_rows_with_several_infinities_of_other_terms(batch: int, types: str, part: str) -> None:
    """The last term of x meets the first of W alone, but for one of x beside two of W."""
    rows = PARTS[part](batch)
    x, w, b = _with_infinities(batch, rows)
    dtype, x_dtype = ("float32", "float32") if types == "wide" else types.split()
    if types == "wide":
        w *= np.abs(spread(6.0, np.random.default_rng(1), *w.shape)).clip(1e-8).astype(np.float32)
    elif dtype != "float32":
        w[np.abs(w) < 1e-20] = 0
    for chain in ("linear", "linear | max"):
        case = make_case(chain, Data(x, w, b), dtype=dtype, x_dtype=x_dtype)
        with case.model("cuda", simplify="none") as model:
            ways = model.count_ways(case.x)
        assert ways.weight_terms == (0 if dtype != "float32" else 3 if types == "wide" else 2)
        assert ways.irregular_rows == (len(rows) if (ways.x_terms, ways.weight_terms) == (1, 2) else 0)
        case.check_results(case.run("cuda", simplify="none"), "cuda", types)


def test_as_many_infinities_as_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one term beside two of W, which is read at up to 15 places in rows that are long enough for it; it has zeros
    at some."""
    rng = np.random.default_rng(12)
    x, w, b = _tame(140)
    x, w = np.tile(x, 6), np.tile(w, 6)
    w[rng.random(w.shape) < 0.1] = 0
    for row in range(len(x)):
        at = rng.choice(6 * K, 14 + row % 4, replace=False)
        x[row, at] = np.inf
        w[row, at] = np.abs(w[row, at]) + np.float32(0.01)  # so that one logit of all of them is infinite
    case = make_case("linear", Data(x, w, b), x_dtype="bfloat16")
    expected = case.expected("cuda")
    for kernel in each(monkeypatch, ["", *TERMS]):
        case.check(case.run("cuda", simplify="none"), kernel, expected)


@pytest.mark.parametrize("batch", [1, 7, 16])
@pytest.mark.parametrize("n", [N, 1400])
def test_as_many_infinities_as_are_looked_up_in_few_rows(monkeypatch: pytest.MonkeyPatch, batch: int, n: int) -> None:
    """More of them, the fewer rows there are; all at once where some have more, or are irregular without infinities."""
    monkeypatch.setenv(FORCE, "hopper_small")
    rng = np.random.default_rng(batch)
    k, most = 6400, 480 // batch
    x, w, b = (np.ascontiguousarray(v, np.float32) for v in kernelbench(rng, batch, k, n))
    x -= np.float32(0.5)
    w[rng.random(w.shape) < 0.02] = 0
    for counts in ([most - 1], [most], [most + 1], [2, most + 1, 5], [most, 0, most, 900]):
        values = x.copy()
        for row, count in zip(range(batch), counts * batch):
            at = rng.choice(k, count, replace=False)
            values[row, at] = rng.choice([np.inf, -np.inf])
            w[row, at] = np.abs(w[row, at]) + np.float32(0.01)
            if not count:
                values[row] *= np.float32(10.0) ** rng.uniform(-30, 8, k).astype(np.float32)
        for x_dtype in ("float32", "float16"):
            if x_dtype == "float16":
                values = np.where(np.isinf(values), values, x)
            _check(values, w, b, "linear", x_dtype=x_dtype)


def test_rows_of_all_kinds_in_several_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than are looked at a time, whose groups are finished by different blocks; kinds in turns, and one that
    there is not among the first rows.
    """
    rng = np.random.default_rng(11)
    batch, n = 4500, 300
    x, w, b = (v[..., :64] if v.ndim > 1 else v for v in _tame(batch, n))
    x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
    w[:, :40] *= rng.random((n, 40)) < 0.5
    x[::3] = rng.normal(size=x[::3].shape) * np.repeat([1e18, 1e-2, 1e-26], [3, 37, 24])
    x[1::3, 5] = np.inf
    x[1::3, 6] = rng.choice([np.inf, -np.inf], len(x[1::3]))
    x[2500::7, :32] = -np.inf
    for chain, x_dtype in (("linear | logsumexp", "float32"), ("linear", "bfloat16"), ("linear", "float32")):
        case = make_case(chain, Data(x, w, b), x_dtype=x_dtype)
        expected = case.expected("cuda")
        for kernel in each(monkeypatch, [name for name in TERMS if name != "hopper_small"]):
            case.check(case.run("cuda", simplify="none"), f"{kernel} {x_dtype}", expected)
            with case.model("cuda", simplify="none") as model:
                assert model.count_ways(case.x).irregular_rows > batch // 4 or not kernel.startswith("hopper")


@pytest.mark.parametrize("part", PARTS)
def test_rows_beyond_two_levels(batch: int, part: str) -> None:
    """A sum without what is lost would not show it unless W has zeros where x is large: then it must be there."""
    rows = PARTS[part](batch)
    x, w, b = _tame(batch)
    rng = np.random.default_rng(5)
    x[rows] = rng.normal(size=(len(rows), K)) * np.repeat([1e18, 1e-2, 1e-26], [3, 297, K - 300])
    ways = _ways(x, w)
    assert (ways.two_level_rows, ways.irregular_rows) == (len(rows), 0), "W has something of each"
    _check(x, w, b)
    w[5, 3::2] = 0
    ways = _ways(x, w)
    assert (ways.two_level_rows, ways.irregular_rows) == (len(rows), 0), "the largest of a row meet no zero"
    _check(x, w, b)
    w[7, :3] = 0
    ways = _ways(x, w)
    assert (ways.two_level_rows, ways.irregular_rows) == (0, len(rows)), "all of the largest may meet one"
    _check(x, w, b, "linear")
    w[:, :300] = 0
    assert _ways(x, w).irregular_rows == len(rows)
    for chain in ("linear | max", "linear"):
        _check(x, w, b, chain)
    exact = x[rows].astype(np.float64) @ w.T.astype(np.float64)
    y = Case("linear", x, w, np.zeros_like(b)).run("cuda")[rows]
    sums = np.abs(x[rows].astype(np.float64)) @ np.abs(w.T.astype(np.float64))
    assert (np.abs(y - exact) <= 1e-6 * sums).all()


@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("several", [0, 5, VERDICTS, VERDICTS + 1])
def test_infinities_of_w(batch: int, x_dtype: str, several: int) -> None:
    """Terms, also several in a row. Where many rows have several, wgmma computes all of x as irregular rows, and
    without it W is kept as it is stored.
    """
    rng = np.random.default_rng(0)
    x, w, b = _tame(batch)
    rows = np.arange(0, N, 3)
    w[rows, rng.integers(0, K, len(rows))] = rng.choice([np.inf, -np.inf], len(rows))
    w[rng.random(w.shape) < 0.1] = 0
    w[0] = 0.5
    w[0, 7] = np.inf
    x[1] = np.maximum(x[1], 0)  # zero where W is infinite, sometimes
    x[2, ::2] *= 1e-30
    x[3] = 1e-40
    x[4, 9] = np.inf
    x[5, [9, 10]] = -np.inf
    x[6, 8] = np.nan
    x[7, 7] = -np.inf
    if several:
        w[rows[1], [3, 4]] = np.inf
        w[rows[2], : K // 2] = -np.inf
        w[rows[3]] = np.inf
        w[[130, 131]] = 0.5  # in a tile without rows of so many
        w[130, [3, 4]] = np.inf
        w[131, [5, 6, K - 1]] = np.inf, -np.inf, np.inf
        x[10, [3, 6]] = 0
        x[8] = np.abs(x[8]) + 0.1
        x[9] = np.where(np.isinf(w[rows[1]]), w[rows[1]], x[9])
        more = np.setdiff1d(np.arange(N), [*rows[:4], 130, 131])[: several - 5]
        w[more[:, None], rng.permuted(np.tile(np.arange(K), (len(more), 1)), axis=1)[:, :3]] = np.inf
        x[11:40] = np.abs(x[11:40])  # some of these pull to one side
        assert (np.isinf(w).sum(axis=1) > 1).sum() == several
    with rowfold.Model("linear | max", dtype="float32", backend="cuda").load_weights(w) as model:
        text = model.explain(batch)
    assert ("several infinities" in text) == (several > 0)
    ways = _ways(x, w)
    assert ways.weight_terms == (0 if "as it is stored" in text else 2)
    assert ways.weight_terms or several > VERDICTS
    if several > VERDICTS and ways.weight_terms:
        assert ways.irregular_rows == batch - 1, "all but that with NaN"
    elif ways.weight_terms:
        assert 3 <= ways.irregular_rows < batch // 2
    for chain in ("linear | max", "linear"):
        _check(x, w, b, chain, x_dtype=x_dtype)


@pytest.mark.parametrize("types", ["bfloat16 float32", "bfloat16 float16", "float16 float32", "float16 bfloat16"])
@pytest.mark.parametrize("several", [0, 2, VERDICTS + 1])
def test_weights_of_16_bits_that_are_not_finite(batch: int, types: str, several: int) -> None:
    """Beside x of another type, which is to come, in terms as float32 is; beside their own, and while they are finite,
    as they are stored.
    """
    dtype, x_dtype = types.split()
    rng = np.random.default_rng(4)
    x, w, b = _tame(batch)
    finite = w.copy()
    w[rng.random(w.shape) < 0.1] = 0
    w[::7, 8] = rng.choice([np.inf, -np.inf], len(w[::7]))
    w[1, 3] = np.nan
    if several:
        w[2, [3, 4, K - 1]] = np.inf
        w[9, ::2] = -np.inf
        w[N - several + 2 :, 20:22] = np.inf
    x[1] = np.maximum(x[1], 0)
    x[3, 9], x[4, 8], x[5, 7] = np.inf, 0, np.nan
    x[6, [8, 9]] = -np.inf
    if x_dtype == "float32":
        x[8, ::2] *= np.float32(1e-25)
    for chain in ("linear", "linear | max"):
        for values, of_x in ((w, x_dtype), (w, dtype), (finite, x_dtype)):
            case = make_case(chain, Data(x, values, b), dtype=dtype, x_dtype=of_x)
            with case.model("cuda", simplify="none") as model:
                text, ways = model.explain(batch), model.count_ways(case.x)
            many = several > VERDICTS
            in_terms = values is w and of_x == x_dtype and not (many and not _on_wgmma())
            assert ways.weight_terms == (2 if in_terms else 0)
            assert ("are not finite" in text) == (values is w and not (in_terms and several))
            if in_terms and many:
                assert ways.irregular_rows == batch - 1, "all but that with NaN"
            case.check(case.run("cuda", simplify="none"), f"{chain}, {types}", case.expected("cuda"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_infinities_of_narrow_and_of_short_layers(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Plain multiply-adds do not ask: few features, and many rows of few inputs with several infinities."""
    for n, k, rows in ((40, K, 0), (64, K, 3), (65, K, 0), (200, 300, 3), (200, 300, 70), (200, 520, 70)):
        x, w, b = (np.ascontiguousarray(v[..., :k]) if v.ndim > 1 else v for v in _tame(140, n))
        w[::3, 7] = -np.inf
        w[1 : 1 + rows, 20:23] = np.inf
        x[3, 7], x[5, 9] = 0, np.inf
        case = make_case("linear | logsumexp", Data(x, w, b), None, dtype, "float32")
        with case.model("cuda", simplify="none") as model:
            plain = n <= 64 or (rows > k // 8 and (k <= 512 or "as it is stored" in model.explain(140)))
            ways = model.count_ways(x)
            assert (ways.weight_terms == 0) == (plain or "plain multiply-adds" in model.explain(140))
        expected = case.expected("cuda")
        for kernel in each(monkeypatch, ["", *KERNELS]):
            case.check(case.run("cuda", simplify="none"), f"{kernel} {n} {k}", expected)


@pytest.mark.parametrize("types", ["float32 float32", "bfloat16 float32", "float16 float16"])
@pytest.mark.parametrize("shape", [(16, 4096, 40), (140, K, N), (1, 3000, 100)])
def test_workspaces_are_large_enough_for_any_weights(types: str, shape: tuple[int, int, int]) -> None:
    """What explain says before there are weights holds whichever way these take."""
    dtype, x_dtype = types.split()
    batch, k, n = shape
    x, w, b = kernelbench(np.random.default_rng(0), batch, k, n)
    one, several, wide, nan = w.copy(), w.copy(), spread(6.0, np.random.default_rng(1), n, k), w.copy()
    one[3, 5], several[3, 5:9], nan[2, 2] = np.inf, np.inf, np.nan
    with rowfold.Model("linear | logsumexp", k, n, dtype=dtype, x_dtype=x_dtype, backend="cuda") as model:
        before = model.explain(batch, "json")["workspace_bytes"]
    for values in (w, one, several, wide, np.where(np.isinf(several), several, wide), nan):
        case = make_case("linear | logsumexp", Data(x, values, b), None, dtype, x_dtype)
        with case.model("cuda") as model:
            assert model.workspace_size(batch) <= before


def test_weights_of_16_bits_that_become_infinite() -> None:
    """The form follows updates there and back."""
    x, w, b = _tame(40)
    infinite = w.copy()
    infinite[3, 5] = np.inf
    first, second = (make_case("linear | max", Data(x, v, b), None, "bfloat16", "float32") for v in (w, infinite))
    with first.model("cuda") as model:
        for case in (second, first, second, second, first):
            model.update_weights(case.w, case.b)
            with case.model("cuda") as fresh:
                assert same_bits(model(x), fresh(x)) and model.count_ways(x) == fresh.count_ways(x)


@pytest.mark.parametrize("rows", [40, VERDICTS + 1])
def test_several_infinities_beside_wide_weights(batch: int, rows: int) -> None:
    """Three terms of bfloat16; where many rows have several, all rows of x are irregular, whatever their range."""
    rng = np.random.default_rng(2)
    x, w, b = _tame(batch)
    w = spread(6.0, rng, *w.shape).astype(np.float32)
    w[: 5 * rows : 5 if rows * 5 <= N else 1][:rows, :2] = np.inf
    w[1::5, 3] = -np.inf
    assert (np.isinf(w).sum(axis=1) > 1).sum() >= rows
    x[1::4] *= np.float32(1e20)
    x[2::4] *= np.float32(1e-25)
    x[3, ::2] = np.inf
    ways = _ways(x, w)
    assert ways.weight_terms == (3 if _on_wgmma() or rows == 40 else 0)
    if ways.weight_terms:
        assert ways.irregular_rows == (1 if rows == 40 else batch)
    for chain in ("linear", "linear | max"):
        _check(x, w, b, chain)


@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 32])
def test_few_rows_beside_wide_weights(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Three terms on both sides in the kernel for few rows, whose irregular ones then go to tensor cores."""
    monkeypatch.setenv(FORCE, "hopper_small")
    rng = np.random.default_rng(rows)
    for k, several in ((33, 0), (K, 4), (4100, 0)):
        x, _, b = (v.astype(np.float32) for v in kernelbench(rng, rows, k, N))
        x -= np.float32(0.5)
        w = spread(6.0, rng, N, k).astype(np.float32)
        w[5 : 5 + several, :3], w[3, 2] = np.inf, -np.inf
        x[1::4] *= np.float32(1e20)
        x[2::4] *= np.float32(1e-25)
        x[3:4, ::2], x[5:6, 7], x[6:7, 1:3] = np.inf, np.nan, -np.inf
        with rowfold.Model("linear | max", backend="cuda").load_weights(w, b) as model:
            if _on_wgmma():
                assert model.count_ways(x).weight_terms == 3
                assert model.explain(rows, "json")["kernel"].startswith("hopper_small")
        for chain in ("linear", "linear | max", "linear | logsumexp, max"):
            _check(x, w, b, chain)


@pytest.mark.parametrize("k", [33, 64, 96, 1023, 1024, 1100, 4096, 8100])
def test_verdicts_behind_any_number_of_columns(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """In a stage, a panel or a part of K of their own, or in what is left of the last one."""
    rng = np.random.default_rng(k)
    n = 100
    most = min(max(k // 8, 8), 64)
    for batch, rows in ((3, 1), (50, most - 1), (140, most)):
        x, w, b = (v.astype(np.float32) for v in kernelbench(rng, batch, k, n))
        x[rng.random(x.shape) < 0.3 / k] = 0
        x[::4] *= -1
        for i, row in enumerate(rng.choice(n, rows, replace=False)):
            at = rng.choice(k, k if i % 16 == 5 else 2 + i % 2, replace=False)
            w[row, at] = rng.choice([np.inf, -np.inf], len(at)) if i % 5 == 0 else [np.inf, -np.inf][i % 2]
        x[1, 5], x[2, [3, 6]] = np.inf, -np.inf
        case = make_case("linear", Data(x, w, b))
        expected = case.expected("cuda")
        with case.model("cuda", simplify="none") as model:
            assert model.count_ways(x).weight_terms == 2
        for kernel in each(monkeypatch, ["", *TERMS]):
            case.check(case.run("cuda", simplify="none"), f"{kernel} {batch}", expected)


def test_verdicts_of_weights_whose_form_is_kept(batch: int) -> None:
    """As many as there were: rows beyond that, or with more infinities than all had, are NaN."""
    x, w, b = _tame(batch)
    x = np.abs(x) + np.float32(0.01)
    before, moved, fewer, more, longer = (w.copy() for _ in range(5))
    before[[3, 150], 5:8] = np.inf
    moved[[70, 199], 9:12] = np.inf, np.inf, -np.inf
    fewer[9, 20:22] = -np.inf
    more[[3, 4, 5], 5:7] = np.inf
    longer[7, :7] = np.inf
    with rowfold.Model("linear", dtype="float32", backend="cuda").load_weights(before, b) as model:
        for values, lost in ((moved, 0), (before, 0), (fewer, 0), (more, 1), (before, 0), (longer, 1), (w, 0)):
            model.update_weights(values, b, keep_form=True)
            y = model(x)
            case = make_case("linear", Data(x, values, b))
            nan = np.isnan(y).all(axis=0) & ~np.isnan(case.expected("cuda").value).any(axis=0)
            assert nan.sum() == lost
            case = make_case("linear", Data(x, values[~nan], b[~nan]))
            case.check(np.ascontiguousarray(y[:, ~nan]), "kept", case.expected("cuda"))


def test_columns_gathered_beside_infinities() -> None:
    """What a dot product makes of the terms of such a row: the infinity alone, and the signs of what it meets."""
    x, w, _ = _tame(40)
    w[::3, 7] = np.inf
    w[1, 9] = -np.inf
    w[::4, 11] = 0
    w[[1, 6, 10], 13] = np.inf  # several
    w[10, 200:] = np.inf
    x[20:] = np.abs(x[20:])
    x[21, 13] = 0
    x[::5, 7] = 0
    x[3, 11] = np.inf
    x[4, [9, 11]] = -np.inf, np.inf
    x[6, 12] = np.nan
    asked = np.tile(np.arange(len(w)), (len(x), 1))
    with rowfold.Model("linear | gather(#asked)", dtype="float32", backend="cuda").load_weights(w) as model:
        y = model(x, asked=asked)
    with np.errstate(invalid="ignore"):
        wanted = (x[:, None].astype(np.float64) * w.astype(np.float64)).sum(-1)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    np.testing.assert_array_equal(y[np.isinf(y)], wanted[np.isinf(wanted)])
    there = np.isfinite(wanted)
    np.testing.assert_allclose(y[there], wanted[there], rtol=0, atol=1e-3)


def test_an_infinity_of_w_under_tf32(batch: int) -> None:
    x, w, b = _tame(batch)
    w[5, 9] = -np.inf
    x[3, 4] = np.inf
    w[5, 4] = 0
    assert _ways(x, w, "tf32").weight_terms == (0 if _on_wgmma() else 2)
    y = Case("linear", x, w, b).run("cuda", math="tf32")
    with np.errstate(invalid="ignore"):
        exact = x.astype(np.float64) @ w.T.astype(np.float64) + b
    assert np.array_equal(np.isnan(y), np.isnan(exact)) and np.array_equal(np.isinf(y), np.isinf(exact))
    assert (y[np.isinf(y)] == exact[np.isinf(y)]).all()


def test_what_is_wide_under_tf32(batch: int) -> None:
    """One term holds a row of x of which half of the values are large, whatever of the others it loses; but not a
    feature of W that is small beside the others in many rows, for x may rest on it alone.
    """
    rng = np.random.default_rng(7)
    x, w, b = _tame(batch)

    def check(x: Array, w: Array, weight_terms: int, two_level_rows: int) -> None:
        ways = _ways(x, w, "tf32")
        if weight_terms == 3 and _on_wgmma():
            weight_terms = 0  # W and x in float32 rounded to TF32
        assert (ways.weight_terms, ways.two_level_rows) == (weight_terms, two_level_rows)
        for chain in ("linear", "linear | logsumexp"):
            case = Case(chain, x, w, b)
            case.check(case.run("cuda", math="tf32"), "tf32", case.expected("cuda", "tf32"))

    def few(share: float, shape: tuple[int, ...], little: float = 1e-10) -> Array:
        return np.where(rng.random(shape) < share, little, 1).astype(np.float32)

    check(x, spread(3.0, rng, N, K).astype(np.float32), 1, 0)
    check(x, w * few(0.0005, w.shape), 1, 0)
    check(x, w * few(0.4, w.shape), 3, 0)
    check(x * few(0.4, x.shape), w, 1, 0)
    check(x * few(0.6, x.shape), w, 1, batch)
    feature, alone = w.copy(), np.zeros_like(x)
    feature[:, 5] *= 1e-10
    alone[:, 5] = x[:, 5]
    check(alone, feature, 3, 0)
    rare = w.copy()
    rare[:2, 5] *= 1e-10
    check(x, rare, 1, 0)


@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16", "float16"])
def test_any_values_under_tf32(batch: int, x_dtype: str) -> None:
    """Of both sides: whatever W's way is."""
    rng = np.random.default_rng(9)
    x, w, b = _tame(batch)
    wide = spread(6.0, rng, *w.shape)
    x[2:40] = spread(3.0, rng, 38, K).clip(-6e4, 6e4)
    x[40:44] *= np.float32(1e-3)
    for chain in ("linear", "linear | max", "linear | logsumexp, argmax"):
        for values in (wide, np.where(rng.random(w.shape) < 0.001, np.inf, w)):
            case = make_case(chain, Data(x, values, b), x_dtype=x_dtype, dtype="float32")
            y = case.run("cuda", math="tf32")
            if "argmax" not in chain:
                case.check(y, "tf32", case.expected("cuda", "tf32"))
    special = wide.copy()
    special[::3, 5], special[1, 6], special[2] = np.inf, np.nan, 0
    odd = x.copy()
    odd[1, 5], odd[2, 9], odd[3, 9], odd[4], odd[5, 5] = 0, np.inf, np.nan, 0, -np.inf
    case = make_case("linear", Data(odd, special, b), x_dtype=x_dtype, dtype="float32")
    case.check(case.run("cuda", math="tf32"), "tf32", case.expected("cuda", "tf32"))


def test_updated_weights(batch: int) -> None:
    """The way follows from the values that are there."""
    x, w, b = _tame(batch)
    infinite, several = w.copy(), w.copy()
    infinite[3, 5] = several[3, [5, 6]] = np.inf
    with rowfold.Model("linear | max", dtype="float32", backend="cuda").load_weights(w, b) as model:
        for values in (infinite, w, several, infinite, w):
            model.update_weights(values, b)
            with rowfold.Model("linear | max", dtype="float32", backend="cuda").load_weights(values, b) as fresh:
                assert same_bits(model(x), fresh(x)) and model.count_ways(x) == fresh.count_ways(x)


def test_a_row_does_not_depend_on_others(batch: int) -> None:
    rng = np.random.default_rng(3)
    x, w, b = _tame(batch)
    w[rng.integers(0, N, K), np.arange(K)] = 0
    x[::3, :2] = np.inf
    x[1::3] = spread(30.0, rng, *x[1::3].shape).clip(-1e38, 1e38).astype(np.float32)
    with Case("linear | logsumexp", x, w, b).model("cuda", batch_invariant=True) as model:
        whole = model(x)
        ways = model.count_ways(x)
        assert ways.irregular_rows > batch // 4 or not ways.x_terms  # hopper_small promises no invariance
        for first, last in ((0, 1), (1, 9), (5, 70), (64, 140)):
            assert same_bits(model(x[first:last]), whole[first:last])
        order = rng.permutation(len(x))
        assert same_bits(model(x[order]), whole[order])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("k", [63, 1000, 1023, 1024, 1025, 1078, 1284, 2047, 2048, 2049, 2100, 5001, 17_001])
def test_rows_of_any_length(k: int, dtype: str) -> None:
    """Which threads bring a row to terms depends on its length, on their number, and on where it begins."""
    rng = np.random.default_rng(k)
    for batch in (100, 140):
        data = infinities(bool(k % 2), rng, batch, k, 40)
        data.x[1::4] = spread(25.0, rng, *data.x[1::4].shape)
        data.x[2::4] = rng.normal(size=data.x[2::4].shape)
        data.x[3::8] *= 1e-30
        for x_dtype in ("float32", "bfloat16"):
            if dtype == x_dtype == "bfloat16":
                continue
            case = make_case("linear | max", data, x_dtype=x_dtype, dtype=dtype)
            apart = np.ones((batch, k + 3), case.x.dtype)[:, 1 : k + 1]
            apart[:] = case.x
            with case.model("cuda", simplify="none") as model:
                y = model(case.x)
                assert same_bits(model(apart), y), (batch, x_dtype)
            case.check(y, f"{batch} rows of {x_dtype}", case.expected("cuda"))


@pytest.mark.parametrize("kernel", TERMS)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    batch=st.sampled_from([1, 5, 16, 33, 64, 65, 130]),
    k=st.sampled_from([32, 40, 100, 513, 1024]),
    n=st.sampled_from([1, 8, 64, 130, 300]),
    kind=st.sampled_from(["infinities", "infinities_both", "specials", "lognormal6", "mixed", "several"]),
    x_dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    dtype=st.sampled_from(["float32", "float32", "bfloat16", "float16"]),
)
def test_any_mixture(kernel: str, seed: int, batch: int, k: int, n: int, kind: str, x_dtype: str, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    mixed = kind in ("mixed", "several")
    data = infinities(bool(seed % 2), rng, batch, k, n) if mixed else ALL[kind](rng, batch, k, n)
    if kind == "several":
        data.x[::3] = np.abs(kernelbench(rng, len(data.x[::3]), k, 1)[0])
        for row in rng.choice(n, min(n, rng.choice([1, 2, 8, k // 8, n])), replace=False):
            data.w[row, rng.choice(k, rng.choice([2, 3, k]), replace=False)] = rng.choice([np.inf, -np.inf])
    if mixed:
        wide = rng.random(batch) < 0.3
        data.x[wide] = spread(25.0, rng, int(wide.sum()), k)
    case = make_case("linear | max", data, x_dtype=x_dtype, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FORCE, kernel)
        case.check_results(case.run("cuda", simplify="none"), "cuda", kernel)
