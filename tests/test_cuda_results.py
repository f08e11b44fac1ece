# SPDX-License-Identifier: MIT
"""Several results of one pass and row inputs on a GPU: each kernel forced, device and host memory, graphs, columns that
are not there. Any tree of results is test_results.py's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import rowfold
import strategies
from cases import Case, flat, make_case, same_bits
from cuda_kernels import FORCE, KERNELS, each, needs_cuda
from datasets import ALL, Data
from hypothesis import assume, given, settings
from stored import store, widen
from torch_devices import captured, needs_torch_cuda, on_cuda, torch

pytestmark = needs_cuda

SCORE = "linear | softcap(30) | div(#heat) | logprob(#target), argmax, entropy, logsumexp, pick(#target), max"
TREES = [
    SCORE,
    "linear | argmax, logsumexp",
    "linear | div(#heat) | logsumexp | sub(#heat)",
    "linear | mul(#heat) | sum",
]
TREES += ["linear | gelu | entropy, (abs | max), sum, logprob(#target)"]
SEARCH = "linear | softcap(30) | div(#heat) | logprob(#target), rank(#target), argmax, topk(7), gather(#some)"
SPREAD = "linear | mul(3) | var, std(0) | log, logsumexp, (abs | norm)"
TREES += [SEARCH, SPREAD, "linear | rank(#target), (neg | topk(1)), gather(#some)"]


def _case(chain: str, batch: int, k: int, n: int, dtype: str = "float32", kind: str = "sigma5", seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    case = make_case(chain, ALL[kind](rng, batch, k, n), dtype=dtype)
    rows = {"heat": rng.uniform(0.5, 2, batch).astype(case.compute), "target": rng.integers(0, n, batch)}
    rows["target"][::7] = -100
    rows["some"] = rng.integers(0, n, (batch, 5))
    if "pick" in chain or "rank" in chain:
        rows["target"] = np.maximum(rows["target"], 0)
    return replace(case, rows={name: v for name, v in rows.items() if f"#{name}" in chain})


@pytest.mark.parametrize("part", range(12))
@settings(max_examples=10)
@given(case=strategies.tree_cases())
def test_each_kernel(part: int, case: Case) -> None:
    """A kernel that cannot run a pass gives way to one that can."""
    assume(strategies.runs_on("cuda", case))
    expected = case.expected_results("cuda")
    with pytest.MonkeyPatch.context() as patch:
        for kernel in each(patch):
            case.check_results(case.run("cuda", simplify="none"), "cuda", kernel, expected)


@pytest.mark.parametrize("chain", TREES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_shapes(chain: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges of tiles, several of them, groups of states; the same bits every run."""
    for shape in ((1, 64, 1), (5, 72, 259), (70, 136, 131), (300, 64, 513), (70, 40, 9000)):
        case = _case(chain.replace("topk(7)", f"topk({min(7, shape[2])})"), *shape, dtype=dtype, kind="kernelbench")
        expected = case.expected_results("cuda")
        for kernel in each(monkeypatch, ["", *KERNELS]):
            with case.model("cuda", simplify="none") as model:
                results = model(case.x, **case.rows)
                case.check_results(results, "cuda", kernel, expected)
                again = model(case.x, **case.rows)
            assert all(same_bits(a, b) for a, b in zip(flat(results), flat(again))), kernel


@pytest.mark.parametrize("kind", ALL)
def test_kinds_of_data(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that terms do not represent, of two levels, with NaN and infinities, columns that are all -inf."""
    for shape in ((6, 129, 67), (70, 65, 131)):
        for chain in (SCORE, SEARCH, SPREAD):
            case = _case(chain, *shape, kind=kind)
            expected = case.expected_results("cuda")
            for kernel in each(monkeypatch):
                case.check_results(case.run("cuda", simplify="none"), "cuda", kernel, expected)


def test_ties_and_special_values() -> None:
    """The first of ties, the first NaN before an infinity, -inf alone."""
    n = 5000
    x = np.ones((8, 1), np.float32)
    w = np.zeros((n, 1), np.float32)
    for values, expected in (
        ({}, 0),
        ({77: 1.0, 4000: 1.0}, 77),
        ({77: np.inf, 4000: np.inf}, 77),
        ({77: np.inf, 300: np.nan, 4000: np.nan}, 300),
        ({i: -np.inf for i in range(n)}, 0),
        ({i: -np.inf for i in range(n) if i != 4999}, 4999),
    ):
        b = np.zeros(n, np.float32)
        b[list(values)] = list(values.values())
        with rowfold.Model("linear | argmax, max, entropy, argmin", 1, n, backend="cuda") as model:
            model.load_weights(w, b)
            y = model(x)
            assert (y.argmax == expected).all(), values
            assert np.array_equal(y.max, np.full((8, 1), b.max()), equal_nan=True), values
            assert (y.argmin == np.argmin(b)).all(), values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "results",
    ["max", "min", "argmax", "argmin", "pick(#target), max", "logprob(#target)", "logsumexp, max", "logsumexp, argmax"]
    + ["entropy, max", "entropy, argmax", "topk(3), max", "rank(#target)", "var"],
)
def test_what_results_show(results: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel folds no more of a state than its results show, and beside numbers a row that has some NaN, one that has
    nothing else, and ties; one state a row, several, and none behind the last column of a tile.
    """
    batch, k = 70, 520  # stages for K in eighths
    for n in (7, 64, 100, 300):
        rng = np.random.default_rng(n)
        x, w, b = rng.normal(size=(batch, k)), rng.normal(size=(n, k)) / k**0.5, rng.normal(size=n)
        x[3, 0], x[40, 1], x[5] = np.inf, np.nan, 0
        w[:, 0] = np.where(np.arange(n) % 50 < 2, 0, rng.normal(size=n))
        b[n // 2 :] = b[0]
        case = make_case(f"linear | {results}", Data(x, w, b), dtype=dtype)
        case = replace(case, rows={"target": rng.integers(0, n, batch)} if "#" in results else {})
        expected = case.expected_results("cuda")
        for kernel in each(monkeypatch):
            case.check_results(case.run("cuda", simplify="none"), f"cuda {n}", kernel, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("best", [2, 20])
def test_comparisons_of_any_logits(dtype: str, best: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros of both signs, neighbours, the largest, infinities and NaN, before a row's own column and behind it; the k
    best of all columns, which the pass stores, or of a list.
    """
    n, rng = 700, np.random.default_rng(5)
    top, tiny = (65504, 2.0**-24) if dtype == "float16" else (2.0**127, 2.0**-133)
    kinds = [[0.0, 1.0, -1.0, tiny, -tiny], [np.inf, top, -top, -np.inf, 0.0], [np.inf, np.nan, -np.inf, 1.0, 0.0]]
    for values in kinds:
        b, signs = rng.choice(np.float32(values), n), rng.choice(np.float32([-1, 1]), n)
        z = b * signs
        targets = np.arange(130) * 5 % n
        q, j = z[targets][:, None], targets[:, None]
        before = (z > q) | (np.isnan(z) & ~np.isnan(q))
        equal = (z == q) | (np.isnan(z) & np.isnan(q))
        ranks = (before | equal & (np.arange(n) < j)).sum(1)
        order = np.lexsort((np.arange(n), -np.where(np.isnan(z), 0, z), ~np.isnan(z)))[:best]
        w, x = store(np.zeros((n, 70)), dtype), store(np.zeros((130, 70)), dtype)
        with_all = f"linear | mul(@signs) | rank(#target), topk({best}), argmax"
        for kernel in each(monkeypatch):
            with rowfold.Model(with_all, 70, n, dtype=dtype, backend="cuda", simplify="none") as model:
                model.load_weights(w, store(b, dtype), {"signs": store(signs, dtype)})
                y = model(x, target=targets)
            assert (y.rank[:, 0] == ranks).all(), (kernel, values)
            assert (y.topk.indices == order).all(), (kernel, values)
            assert (y.argmax == order[0]).all(), (kernel, values)


@pytest.mark.parametrize("batch", [9, 300])
@needs_torch_cuda
def test_device_tensors(batch: int) -> None:
    """Results and row inputs on the device or not, of both index types, with gaps; columns that are not there."""
    case = _case(SCORE, batch, 72, 1000)
    ids = np.abs(case.rows["target"])
    with case.model("cuda", simplify="none") as model:
        want = model(case.x, target=ids, heat=case.rows["heat"])
        x, heat = torch.tensor(case.x, device="cuda"), torch.tensor(case.rows["heat"], device="cuda")
        wide = torch.tensor(np.stack([ids, ids + 1], 1), device="cuda")
        for target in (
            torch.tensor(ids, device="cuda"),
            torch.tensor(ids, device="cuda", dtype=torch.int32),
            wide[:, 0],
        ):
            got = model(x, target=target, heat=heat)
            assert all(g.is_cuda and same_bits(g.cpu().numpy(), np.asarray(w)) for g, w in zip(got, want))
        outside = torch.tensor(ids, device="cuda")
        outside[1], outside[2], outside[3] = 1000, -1, 2**40
        got = model(x, target=outside, heat=heat)
        assert got.logprob[1:4].isnan().all() and got.pick[1:4].isnan().all()
        assert same_bits(got.logprob[4:].cpu().numpy(), np.asarray(want.logprob)[4:])
        assert same_bits(got.argmax.cpu().numpy(), np.asarray(want.argmax))
        assert torch.cuda.current_stream().query() or torch.cuda.synchronize() is None


@needs_torch_cuda
def test_a_graph_reads_row_inputs_anew() -> None:
    case = _case(SCORE, 40, 72, 1000)
    ids = np.abs(case.rows["target"])
    with case.model("cuda", simplify="none") as model:
        x, heat = torch.tensor(case.x, device="cuda"), torch.tensor(case.rows["heat"], device="cuda")
        target = torch.tensor(ids, device="cuda")
        graph, y = captured(lambda: model(x, target=target, heat=heat))
        for turn in range(3):
            target.copy_(torch.tensor(np.roll(ids, turn)))
            graph.replay()
            torch.cuda.synchronize()
            want = model(x, target=target, heat=heat)
            assert all(torch.equal(a, b) for a, b in zip(y, want))


def test_rows_that_pass_in_pieces() -> None:
    """More host rows than are on the device at a time: each with its own row inputs."""
    case = _case(SCORE, 1500, 4096, 70)
    some = slice(None, None, 97)
    with case.model("cuda", simplify="none") as model:
        results = model(case.x, **case.rows)
        part = model(case.x[some], **{name: v[some] for name, v in case.rows.items()})
    few = replace(case, x=case.x[some], rows={name: v[some] for name, v in case.rows.items()})
    few.check_results(tuple(np.asarray(y)[some] for y in results), "cuda")
    few.check_results(part, "cuda")


WHOLE = [f"{of}whole_{tile}" for of in ("", "answers_") for tile in ("64x64", "64x128", "128x128")]


@pytest.mark.parametrize("kernel", WHOLE)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_whole_rows_in_a_cluster(kernel: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of blocks, with columns that are not there and blocks without any; one cluster and all that run at a
    time; one stage of K, and more than the ring has. Tame values and others in turn, and the same bits every run.
    """
    chains = ["linear | logsumexp", "linear | gelu | mul(2) | sum | silu", "linear | mean"]
    if "answers" in kernel:
        chains = [
            SCORE,
            "linear | div(#heat) | logsumexp | sub(#heat)",
            "linear | max, argmax",
            "linear | pick(#target)",
        ]
    monkeypatch.setenv(FORCE, f"hopper_{kernel}")
    shapes = [(1, 8, 1), (63, 72, 65), (64, 512, 128), (65, 40, 129), (130, 1032, 256), (129, 64, 257), (200, 136, 512)]
    shapes += [(257, 512, 513), (448, 64, 897), (300, 2056, 1000), (61, 8, 1023), (440, 520, 1024)]
    if not kernel.endswith("64x64"):
        shapes += [(960, 64, 897)]
    for chain in chains:
        for i, shape in enumerate(shapes):
            case = _case(chain, *shape, dtype=dtype, kind=("kernelbench", "infinities", "outlier", "sigma5")[i % 4])
            with case.model("cuda", simplify="none") as model:
                assert model.explain(shape[0], "json")["kernel"].startswith(f"hopper_{kernel}"), shape
                results = model(case.x, **case.rows)
                case.check_results(results, "cuda", kernel)
                again = model(case.x, **case.rows)
            assert all(same_bits(a, b) for a, b in zip(flat(results), flat(again))), shape


PIECES = [
    "linear | logsumexp",
    "linear | max, logsumexp",
    "linear | logprob(#target), rank(#target), topk(3), entropy",
    "linear | softcap(30) | div(#heat) | logprob(#target), gather(#some), argmax",
    "linear | var, max",
]


@pytest.mark.parametrize("kind", ["sigma5", "infinities"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("chain", PIECES)
@needs_torch_cuda
def test_device_rows_that_pass_in_pieces(chain: str, dtype: str, kind: str) -> None:
    """More rows of many columns than states have room for: each with its own row inputs, wherever it lies, and with the
    bits that it has among others of its piece.
    """
    case = _case(chain, 10_301, 40, 128_256, dtype=dtype, kind=kind)
    x, rows = on_cuda(case.x), {name: on_cuda(v) for name, v in case.rows.items()}
    some = np.r_[0:3, 127:130, 2046:2050, 5118:5123, 5370:5380, 6780:6784, 10_238:10_243, 10_295:10_301]
    with case.model("cuda", simplify="none") as model:
        results = flat(model(x, **rows))
        first = flat(model(x[:2048], **{name: v[:2048] for name, v in rows.items()}))
        again = flat(model(x, **rows))
    torch.cuda.synchronize()
    assert all(same_bits(a.cpu().numpy(), b.cpu().numpy()) for a, b in zip(results, again))
    assert all(same_bits(a[:1400].cpu().numpy(), b[:1400].cpu().numpy()) for a, b in zip(results, first))
    few = replace(case, x=case.x[some], rows={name: v[some] for name, v in case.rows.items()})
    few.check_results(tuple(y.cpu().numpy()[some] for y in results), "cuda")


@pytest.mark.parametrize("kind", ["sigma5", "wide", "infinities"])
@pytest.mark.parametrize("chain", ["linear | gelu", SCORE, SEARCH, SPREAD])
@needs_torch_cuda
def test_rows_whose_terms_pass_in_pieces(chain: str, kind: str) -> None:
    """More float32 rows than there is room for terms of: each with its own row inputs and the same bits every time.
    Of those of the kinds behind the first some have a second level, or infinities.
    """
    batch, k, n = 9001, 1024, 4224
    case = _case(chain, batch, k, n, kind="infinities" if kind == "infinities" else "sigma5")
    if kind == "wide":
        case.x[::7] *= 10.0 ** -np.random.default_rng(1).uniform(0, 9, case.x[::7].shape).astype(case.x.dtype)
    x, rows = on_cuda(case.x), {name: on_cuda(v) for name, v in case.rows.items()}
    some = np.r_[0:3, 2250:2258, 4500:4512, 4605:4612, 5118:5123, 5882:5894, 8995:9001]  # pieces of 5888
    with case.model("cuda", simplify="none") as model:
        if chain not in (SEARCH, SPREAD):  # which take more for themselves
            assert model.workspace_size(x=x) < batch * k * 8, "two levels of two terms of all rows"
        results, again = ([y[some].cpu().numpy() for y in flat(model(x, **rows))] for _ in range(2))
    assert all(same_bits(a, b) for a, b in zip(results, again))
    few = replace(case, x=case.x[some], rows={name: v[some] for name, v in case.rows.items()})
    few.check_results(tuple(results), "cuda")


@pytest.mark.parametrize("k", [512, 4096])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("chain", ["max", "min", "pick(#c)", "max, argmax", "min, argmin", "logprob(#c), max"])
def test_single_logits_of_16_bits(chain: str, dtype: str, k: int) -> None:
    """Positive values, so that all truncation adds up: 16 columns at a time, one unit of the last place at most, of
    as many columns as explain says, and these rounded; with what is given back of 128 columns at most 4e-7. Sums left
    to the tensor cores are off by ten times as much.
    """
    batch, n = 130, 700
    rng = np.random.default_rng(3)
    case = make_case(f"linear | {chain}", Data(rng.random((batch, k)), rng.random((n, k)), np.zeros(n)), dtype=dtype)
    z = widen(case.x, case.x_dtype) @ widen(case.w, case.dtype).T
    columns = rng.integers(0, n, batch)
    with case.model("cuda", simplify="none") as model:
        sums = model.explain(batch, "json")["sums"]
        y = model(case.x, **({"c": columns} if "#c" in chain else {}))
    assert sums.startswith("by tensor cores of "), sums
    summed = int(sums.split()[4])
    allowed = 4e-7 if summed == 128 else summed / 16 * 2.0**-23 + k / summed * 2.0**-24
    want = {"max": z.max(1), "min": z.min(1), "pick": z[np.arange(batch), columns]}
    for name in want:
        if name in chain:
            got = np.asarray(getattr(y, name) if isinstance(y, tuple) else y)[:, 0]
            assert np.all(np.abs(got - want[name]) <= allowed * want[name]), (name, np.abs(got / want[name] - 1).max())


@pytest.mark.parametrize("batch", [8, 64, 200])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_of_whole_numbers_of_16_bits(dtype: str, batch: int) -> None:
    """They are exact, although of others what tensor cores cut off on average is given back."""
    k, n = 4096, 20000
    rng = np.random.default_rng(4)
    data = Data(rng.integers(0, 16, (batch, k)), rng.integers(0, 8, (n, k)), np.zeros(n))
    case = make_case("linear | max, min, pick(#c), rank(#c), topk(3)", data, dtype=dtype)
    z = (data.x.astype(np.float32) @ data.w.T.astype(np.float32)).astype(np.float64)  # below 2^24
    columns = rng.integers(0, n, batch)
    own = z[np.arange(batch), columns][:, None]
    with case.model("cuda", simplify="none") as model:
        y = model(case.x, c=columns)
    assert np.array_equal(y.max[:, 0], z.max(1)) and np.array_equal(y.min[:, 0], z.min(1))
    assert np.array_equal(y.pick, own) and np.array_equal(y.topk.values, -np.sort(-z)[:, :3])
    assert np.array_equal(y.rank[:, 0], ((z > own) | ((z == own) & (np.arange(n) < columns[:, None]))).sum(1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("first", ["logsumexp", "max", "min", "argmax"])
@pytest.mark.parametrize("batch", [40, 300])
def test_a_rank_beside_another_result(batch: int, first: str, dtype: str) -> None:
    """With so many columns that it is asked for ahead of the pass, which is of searches whatever else it gives."""
    k, n = 64, 20000
    rng = np.random.default_rng(7)
    data = Data(rng.integers(-3, 4, (batch, k)), rng.integers(-3, 4, (n, k)), np.zeros(n))
    case = make_case(f"linear | {first}, rank(#c)", data, dtype=dtype)
    z = (data.x @ data.w.T).astype(float)
    columns = rng.integers(0, n, batch)
    with case.model("cuda", simplify="none") as model:
        got = model(case.x, c=columns).rank[:, 0]
    own = z[np.arange(batch), columns][:, None]
    before = (z > own) | ((z == own) & (np.arange(n) < columns[:, None]))
    assert np.array_equal(got, before.sum(1))


def _ordered(z: np.ndarray) -> np.ndarray:
    """The columns in a stable descending order, NaN first."""
    return np.lexsort((np.arange(z.size), -np.where(np.isnan(z), 0, z), ~np.isnan(z)))


@pytest.mark.parametrize("kernel", ["", *KERNELS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_many_columns(kernel: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds known ahead of the pass: where the first columns tell nothing of the best ones, all are equal, or few are
    numbers. One row is the bias, exactly.
    """
    monkeypatch.setenv(FORCE, kernel)
    batch, k, n, top = 70, 40, 33000, 20
    rng = np.random.default_rng(7)
    x, w = rng.normal(size=(batch, k)), rng.normal(size=(n, k))
    x[0] = 0
    kinds = {
        "rising": np.arange(n) // 8 * 8.0,
        "falling": -(np.arange(n) // 8) * 8.0,
        "equal": np.zeros(n),
        "last": np.where(np.arange(n) >= n - 3, 1.0, -1.0),
        "few numbers": np.where(rng.random(n) < 0.0005, rng.integers(-4, 4, n), -np.inf),
        "special": rng.choice([0, 1, np.nan, np.inf, -np.inf], n, p=[0.5, 0.4996, 0.0001, 0.0001, 0.0002]),
        "-inf": np.full(n, -np.inf),
    }
    for name, bias in kinds.items():
        case = make_case(f"linear | rank(#c), topk({top}), argmax", Data(x, w, bias), dtype=dtype)
        with case.model("cuda", simplify="none") as model:
            _, (values, columns), argmax = model(case.x, c=np.zeros(batch, np.int64))
            assert np.array_equal(columns[0], _ordered(widen(case.b, dtype))[:top]), name
            assert np.array_equal(argmax[:, 0], columns[:, 0]), name
            for place in (0, 1, top - 1):
                again = model(case.x, c=columns[:, place])
                assert (again.rank == place).all(), (name, place)
                assert all(same_bits(a, b) for a, b in zip(flat(again)[1:], (values, columns, argmax)))


@pytest.mark.parametrize("types", ["bfloat16", "float16", "float32", "bfloat16 float32", "float16 float32"])
@pytest.mark.parametrize(
    ("k", "chain"),
    [
        (64, ""),
        (1000, ""),
        (531, ""),
        (1000, " | mul(0.3) | clamp(-900, 900)"),
        (264, " | mul(@v) | gelu"),
        (264, " | div(#h) | softcap(900)"),
    ],
)
def test_bounds_have_the_bits_of_the_pass(k: int, chain: str, types: str) -> None:
    """What is asked for ahead of a pass is a column of it: a logit with one bit less would come before itself. Columns
    of the last tile, which is not whole, are asked for, too.
    """
    batch, n, top = 300, 33001, 40
    rng = np.random.default_rng(11)
    data = Data(rng.normal(size=(batch, k)), rng.normal(size=(n, k)), rng.normal(size=n))
    data.w[n - 300 :] *= 2
    vectors = {"v": rng.uniform(0.5, 1, n)} if "@v" in chain else {}
    rows = {"h": rng.uniform(0.5, 2, batch).astype(np.float32)} if "#h" in chain else {}
    case = make_case(f"linear{chain} | rank(#c), topk({top}), argmax", data, vectors, *types.split())
    with case.model("cuda", simplify="none") as model:
        _, (values, columns), argmax = model(case.x, **rows, c=np.zeros(batch, np.int64))
        assert np.array_equal(argmax[:, 0], columns[:, 0])
        assert (np.diff(values) <= 0).all()
        assert (columns > n - 300).any() and (columns < n // 2).any()
        for place in (0, 1, 17, top - 1):
            assert (model(case.x, **rows, c=columns[:, place]).rank == place).all(), place


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_in_parts(dtype: str) -> None:
    """More rows than are asked ahead at a time, or listed: every column's rank once."""
    batch, k, n = 2500, 40, 20000
    rng = np.random.default_rng(8)
    w = rng.normal(size=(n, k))
    w[n // 2 :] = w[: n // 2]
    data = Data(np.tile(rng.normal(size=(1, k)), (batch, 1)), w, np.zeros(n))
    case = make_case("linear | gelu | rank(#c), topk(64)", data, dtype=dtype)
    with case.model("cuda", simplify="none") as model:
        parts = [model(case.x, c=np.arange(first, first + batch)) for first in range(0, n, batch)]
    ranks = np.concatenate([part.rank[:, 0] for part in parts])
    assert np.array_equal(np.sort(ranks), np.arange(n))
    best = np.argsort(ranks)[:64]
    assert all((part.topk.indices == best).all() for part in parts)


@pytest.mark.parametrize("n", [300, 33000])
@needs_torch_cuda
def test_searches_of_device_tensors(n: int) -> None:
    """Row inputs, and lists of rows, on the device: columns and rows that are not there; graphs."""
    case = _case(SEARCH + ", var", 50, 72, n)
    with case.model("cuda", batch_invariant=True, simplify="none") as model:
        want = flat(model(case.x, **case.rows))
        x, heat, target, some = (
            torch.tensor(v, device="cuda") for v in (case.x, case.rows["heat"], case.rows["target"], case.rows["some"])
        )
        rows = torch.tensor([49, 3, 3, 0], device="cuda")

        def bits(got: object, expected: list) -> bool:
            given = got if isinstance(got, list) else flat(got)
            return all(same_bits(g.cpu().numpy(), e) for g, e in zip(given, expected, strict=True))

        assert bits(model(x, target=target, heat=heat, some=some), want)
        assert bits(model(x, target=target, heat=heat, some=some.int()[:, ::2]), [*want[:5], want[5][:, ::2], want[6]])
        listed = rows.cpu().numpy()
        for wanted in (rows, listed, listed.tolist()):
            assert bits(model(x, target=target, heat=heat, some=some, rows=wanted), [y[listed] for y in want])
        mask = torch.arange(50, device="cuda") % 3 == 1
        part = [y[mask.cpu().numpy()] for y in want]
        assert bits(model(x, target=target, heat=heat, some=some, rows=mask), part)
        with pytest.raises(ValueError, match=r"expected row input \"target\" there, too"):
            model(x, target=case.rows["target"], heat=heat, some=some, rows=rows)
        outside = torch.tensor([50, -1, 7], device="cuda")
        got = model(x, target=target, heat=heat, some=some, rows=outside)
        assert got.logprob[:2].isnan().all() and got.gather[:2].isnan().all() and got.topk.values[:2].isnan().all()
        assert bits([got.logprob[2:], got.rank[2:]], [want[0][7:8], want[1][7:8]])
        target[5], some[6, 1] = n, -1
        got = model(x, target=target, heat=heat, some=some)
        assert got.rank[5, 0] == -1 and got.gather[6, 1].isnan() and not got.gather[6, 2:].isnan().any()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = model(x, target=target, heat=heat, some=some, rows=rows)
        rows.copy_(torch.tensor([1, 2, 44, 8]))
        target.copy_(torch.tensor(case.rows["target"]))
        some.copy_(torch.tensor(case.rows["some"]))
        graph.replay()
        torch.cuda.synchronize()
        assert bits(held, [y[[1, 2, 44, 8]] for y in want])


@pytest.mark.parametrize("kernel", ["", *KERNELS])
def test_batch_invariant(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCE, kernel)
    for chain, n in ((SCORE, 200), (SEARCH + ", std", 200), (SEARCH, 20000)):
        case = _case(chain, 140, 100, n)
        with case.model("cuda", batch_invariant=True, simplify="none") as model:
            whole = flat(model(case.x, **case.rows))
            for first, last in ((0, 1), (1, 9), (5, 70), (139, 140)):
                part = flat(model(case.x[first:last], **{name: v[first:last] for name, v in case.rows.items()}))
                assert all(same_bits(a[first:last], b) for a, b in zip(whole, part))
