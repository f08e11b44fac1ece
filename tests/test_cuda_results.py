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
from cases import Case, make_case, same_bits
from cuda_kernels import FORCE, KERNELS
from datasets import ALL
from hypothesis import given, reject, settings

_CUDA = next(b for b in rowfold.backends() if b.name == "cuda")
pytestmark = pytest.mark.skipif(not _CUDA.available, reason=f"backend cuda: {_CUDA.reason}")

SCORE = "linear | softcap(30) | div(#heat) | logprob(#target), argmax, entropy, logsumexp, pick(#target), max"
TREES = [
    SCORE,
    "linear | argmax, logsumexp",
    "linear | div(#heat) | logsumexp | sub(#heat)",
    "linear | mul(#heat) | sum",
]
TREES += ["linear | gelu | entropy, (abs | max), sum, logprob(#target)"]


def _case(chain: str, batch: int, k: int, n: int, dtype: str = "float32", kind: str = "sigma5", seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    case = make_case(chain, ALL[kind](rng, batch, k, n), dtype=dtype)
    rows = {"heat": rng.uniform(0.5, 2, batch).astype(case.compute), "target": rng.integers(0, n, batch)}
    rows["target"][::7] = -100
    if "pick" in chain:
        rows["target"] = np.maximum(rows["target"], 0)
    return replace(case, rows={name: v for name, v in rows.items() if f"#{name}" in chain})


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=20)
@given(case=strategies.tree_cases())
def test_each_kernel(kernel: str, case: Case) -> None:
    """A kernel that cannot run a pass gives way to one that can."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FORCE, kernel)
        try:
            results = case.run("cuda", simplify="none")
        except rowfold.UnsupportedError:
            reject()  # rank, topk and the like
        case.check_results(results, "cuda", kernel)


@pytest.mark.parametrize("kernel", ["", *KERNELS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_shapes(kernel: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges of tiles, several of them, groups of states; the same bits every run."""
    monkeypatch.setenv(FORCE, kernel)
    for chain in TREES:
        for shape in ((1, 64, 1), (5, 72, 259), (70, 136, 131), (300, 64, 513), (130, 40, 9000)):
            case = _case(chain, *shape, dtype=dtype, kind="kernelbench")
            with case.model("cuda", simplify="none") as model:
                results = model(case.x, **case.rows)
                case.check_results(results, "cuda", kernel)
                again = model(case.x, **case.rows)
            pairs = zip(results, again) if isinstance(results, tuple) else [(results, again)]
            assert all(same_bits(a, b) for a, b in pairs)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", ALL)
def test_kinds_of_data(kernel: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that terms do not represent, of two levels, with NaN and infinities, columns that are all -inf."""
    monkeypatch.setenv(FORCE, kernel)
    for shape in ((6, 129, 67), (70, 65, 131)):
        case = _case(SCORE, *shape, kind=kind)
        case.check_results(case.run("cuda", simplify="none"), "cuda", kernel)


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


@pytest.mark.parametrize("batch", [9, 300])
def test_device_tensors(batch: int) -> None:
    """Results and row inputs on the device or not, of both index types, with gaps; columns that are not there."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
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


def test_a_graph_reads_row_inputs_anew() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    case = _case(SCORE, 40, 72, 1000)
    ids = np.abs(case.rows["target"])
    with case.model("cuda", simplify="none") as model:
        x, heat = torch.tensor(case.x, device="cuda"), torch.tensor(case.rows["heat"], device="cuda")
        target = torch.tensor(ids, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(x, target=target, heat=heat)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x, target=target, heat=heat)
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


@pytest.mark.parametrize("kernel", ["", *KERNELS])
def test_batch_invariant(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCE, kernel)
    case = _case(SCORE, 140, 100, 200)
    with case.model("cuda", batch_invariant=True, simplify="none") as model:
        whole = model(case.x, **case.rows)
        for first, last in ((0, 1), (1, 9), (5, 70), (139, 140)):
            part = model(case.x[first:last], **{name: v[first:last] for name, v in case.rows.items()})
            assert all(same_bits(np.asarray(a)[first:last], np.asarray(b)) for a, b in zip(whole, part))
