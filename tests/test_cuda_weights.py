# SPDX-License-Identifier: MIT
"""The forms of W: infinities, NaN and values that terms of binary16 do not represent, on each kernel that multiplies
terms, and updates from one form to another."""

from __future__ import annotations

import numpy as np
import pytest
import rowfold
from cases import Case, make_case, same_bits
from cuda_kernels import FORCE, KERNELS, each, needs_cuda
from cuda_ways import TERMS, K, N, check_chain, on_wgmma, rows_of, tame, ways_of
from datasets import Data, kernelbench, spread

pytestmark = needs_cuda

VERDICTS = K // 8  # rows of W with several infinities that have a column each, at most


@pytest.fixture(params=TERMS)
def batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A kernel is forced, and takes so many rows."""
    monkeypatch.setenv(FORCE, request.param)
    return rows_of(request.param)


@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("several", [0, 5, VERDICTS, VERDICTS + 1])
def test_infinities_of_w(batch: int, x_dtype: str, several: int) -> None:
    """Terms, also several in a row. Where many rows have several, wgmma computes all of x as irregular rows, and
    without it W is kept as it is stored.
    """
    rng = np.random.default_rng(0)
    x, w, b = tame(batch)
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
    ways = ways_of(x, w)
    assert ways.weight_terms == (0 if "as it is stored" in text else 2)
    assert ways.weight_terms or several > VERDICTS
    if several > VERDICTS and ways.weight_terms:
        assert ways.irregular_rows == batch - 1, "all but that with NaN"
    elif ways.weight_terms:
        assert 3 <= ways.irregular_rows < batch // 2
    for chain in ("linear | max", "linear"):
        check_chain(x, w, b, chain, x_dtype=x_dtype)


@pytest.mark.parametrize("types", ["bfloat16 float32", "bfloat16 float16", "float16 float32", "float16 bfloat16"])
@pytest.mark.parametrize("several", [0, 2, VERDICTS + 1])
def test_weights_of_16_bits_that_are_not_finite(batch: int, types: str, several: int) -> None:
    """Beside x of another type, which is to come, in terms as float32 is; beside their own, and while they are finite,
    as they are stored.
    """
    dtype, x_dtype = types.split()
    rng = np.random.default_rng(4)
    x, w, b = tame(batch)
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
            in_terms = values is w and of_x == x_dtype and not (many and not on_wgmma())
            assert ways.weight_terms == (2 if in_terms else 0)
            assert ("are not finite" in text) == (values is w and not (in_terms and several))
            if in_terms and many:
                assert ways.irregular_rows == batch - 1, "all but that with NaN"
            case.check(case.run("cuda", simplify="none"), f"{chain}, {types}", case.expected("cuda"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_infinities_of_narrow_and_of_short_layers(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Plain multiply-adds do not ask: few features, and many rows of few inputs with several infinities."""
    for n, k, rows in ((40, K, 0), (64, K, 3), (65, K, 0), (200, 300, 3), (200, 300, 70), (200, 520, 70)):
        x, w, b = (np.ascontiguousarray(v[..., :k]) if v.ndim > 1 else v for v in tame(140, n))
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


def test_a_forced_kernel_before_there_are_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """What explain says then is of that kernel, and an unknown name is an error of the same words everywhere."""
    _, w, b = tame(16)
    for kernel in each(monkeypatch, ["stream_8x64", "mma_64x64", "mma_128x128"]):
        with rowfold.Model("linear | logsumexp", K, N, backend="cuda") as model:
            before = model.explain(8, "json")
            model.load_weights(w, b)
            assert before["kernel"].split(",")[0] == model.explain(8, "json")["kernel"].split(",")[0] == kernel
            assert model.workspace_size(8) <= before["workspace_bytes"]
    monkeypatch.setenv(FORCE, "mma_8x8")
    with rowfold.Model("linear | logsumexp", K, N, backend="cuda") as model:
        for call in (lambda: model.explain(8), lambda: model.load_weights(w, b)):
            with pytest.raises(rowfold.InvalidArgumentError, match='"mma_8x8", which is no kernel'):
                call()


def test_weights_of_16_bits_that_become_infinite() -> None:
    """The form follows updates there and back."""
    x, w, b = tame(40)
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
    x, w, b = tame(batch)
    w = spread(6.0, rng, *w.shape).astype(np.float32)
    w[: 5 * rows : 5 if rows * 5 <= N else 1][:rows, :2] = np.inf
    w[1::5, 3] = -np.inf
    assert (np.isinf(w).sum(axis=1) > 1).sum() >= rows
    x[1::4] *= np.float32(1e20)
    x[2::4] *= np.float32(1e-25)
    x[3, ::2] = np.inf
    ways = ways_of(x, w)
    assert ways.weight_terms == (3 if on_wgmma() or rows == 40 else 0)
    if ways.weight_terms:
        assert ways.irregular_rows == (1 if rows == 40 else batch)
    for chain in ("linear", "linear | max"):
        check_chain(x, w, b, chain)


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
            if on_wgmma():
                assert model.count_ways(x).weight_terms == 3
                assert model.explain(rows, "json")["kernel"].startswith("hopper_small")
        for chain in ("linear", "linear | max", "linear | logsumexp, max"):
            check_chain(x, w, b, chain)


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
    x, w, b = tame(batch)
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
    x, w, _ = tame(40)
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
    x, w, b = tame(batch)
    w[5, 9] = -np.inf
    x[3, 4] = np.inf
    w[5, 4] = 0
    assert ways_of(x, w, "tf32").weight_terms == (0 if on_wgmma() else 2)
    y = Case("linear", x, w, b).run("cuda", math="tf32")
    with np.errstate(invalid="ignore"):
        exact = x.astype(np.float64) @ w.T.astype(np.float64) + b
    assert np.array_equal(np.isnan(y), np.isnan(exact)) and np.array_equal(np.isinf(y), np.isinf(exact))
    assert (y[np.isinf(y)] == exact[np.isinf(y)]).all()


def test_updated_weights(batch: int) -> None:
    """The way follows from the values that are there."""
    x, w, b = tame(batch)
    infinite, several = w.copy(), w.copy()
    infinite[3, 5] = several[3, [5, 6]] = np.inf
    with rowfold.Model("linear | max", dtype="float32", backend="cuda").load_weights(w, b) as model:
        for values in (infinite, w, several, infinite, w):
            model.update_weights(values, b)
            with rowfold.Model("linear | max", dtype="float32", backend="cuda").load_weights(values, b) as fresh:
                assert same_bits(model(x), fresh(x)) and model.count_ways(x) == fresh.count_ways(x)
