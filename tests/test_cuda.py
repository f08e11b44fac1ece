"""What the CUDA backend promises beside the right numbers: kernels, device pointers, streams, graphs, threads, memory.

The numbers themselves are judged by the tests that every backend runs; here each kernel is forced in turn.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rowfold
import strategies
from cases import Case, make_case, same_bits
from datasets import ALL
from hypothesis import given, settings

_CUDA = next(b for b in rowfold.backends() if b.name == "cuda")
pytestmark = pytest.mark.skipif(not _CUDA.available, reason=f"backend cuda: {_CUDA.reason}")

_ROWS = Path(__file__).parent.parent / "cuda" / "kernels.def"
KERNELS = re.findall(r'^RFI_CUDA_KERNEL\(\w+, "(\w+)"', _ROWS.read_text(), re.MULTILINE)
CHAINS = ["linear", "linear | logsumexp", "linear | mul(2) | max | gelu", "linear | clamp(-1, 1) | sum"]


@pytest.fixture
def torch() -> Iterator:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("torch has no CUDA")
    yield module


def _case(chain: str, batch: int, k: int, n: int, dtype: str = "float32", kind: str = "sigma5", seed: int = 0) -> Case:
    return make_case(chain, ALL[kind](np.random.default_rng(seed), batch, k, n), dtype=dtype)


def test_there_are_kernels() -> None:
    assert len(KERNELS) > 4


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=25)
@given(case=strategies.cases())
def test_each_kernel(kernel: str, case: Case) -> None:
    """A kernel that cannot run a case gives way to one that can."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROWFOLD_CUDA_KERNEL", kernel)
        case.check(case.run("cuda", simplify="none"), kernel, case.expected("cuda"))


def test_unknown_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWFOLD_CUDA_KERNEL", "fastest")
    with pytest.raises(rowfold.InvalidArgumentError, match="fastest"):
        _case("linear", 1, 3, 3).run("cuda")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("math", ["tf32", "bf16"])
def test_math(kernel: str, math: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWFOLD_CUDA_KERNEL", kernel)
    for shape in ((7, 129, 65), (130, 257, 191)):
        case = _case("linear", *shape)
        case.check(case.run("cuda", math=math), kernel, case.expected("cuda", math))


@pytest.mark.parametrize("kernel", KERNELS)
def test_irregular_rows(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of x that binary16 terms cannot hold, among rows that they can."""
    monkeypatch.setenv("ROWFOLD_CUDA_KERNEL", kernel)
    for chain in CHAINS:
        case = _case(chain, 150, 65, 131)
        x = case.x.copy()
        x[3, 5], x[64, 1], x[65, 64] = np.inf, -np.inf, np.nan
        x[70] *= np.float32(1e-41)
        x[71, :2] = 1e30, 1e-30
        x[72, 7:] *= np.float32(1e-30)
        x[149] = 0
        odd = replace(case, x=x)
        odd.check(odd.run("cuda", simplify="none"), kernel, odd.expected("cuda"))


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
    monkeypatch.setenv("ROWFOLD_CUDA_KERNEL", kernel)
    for chain in CHAINS:
        case = _case(chain, 140, 100, 200)
        with case.model("cuda", batch_invariant=True, simplify="none") as model:
            whole = model(case.x)
            for first, last in ((0, 1), (1, 9), (5, 70), (139, 140)):
                assert same_bits(whole[first:last], model(case.x[first:last])), (chain, first, last)


def _on_device(torch, case: Case) -> tuple:
    x, w, b = (torch.from_numpy(v).cuda() for v in (case.x, case.w, case.b))
    n, k = case.w.shape
    return rowfold.Model(case.chain, k, n, backend="cuda", simplify="none").load_weights(w, b), x


@pytest.mark.parametrize("chain", CHAINS)
def test_device_arrays(torch, chain: str) -> None:
    """The bits of the host call; x and y of any leading dimension, at any address."""
    case = _case(chain, 37, 65, 130)
    model, x = _on_device(torch, case)
    expected = case.run("cuda", simplify="none")
    y = model(x)
    assert y.is_cuda
    assert same_bits(expected, y.cpu().numpy())
    wide = torch.full((37, 80), float("nan"), device="cuda")
    wide[:, 3:68] = x
    out = torch.full((37, expected.shape[1] + 5), -7.0, device="cuda")
    model(wide[:, 3:68], out=out[:, 2 : 2 + expected.shape[1]])
    assert same_bits(expected, out[:, 2 : 2 + expected.shape[1]].contiguous().cpu().numpy())
    assert bool((out[:, :2] == -7).all())
    assert bool((out[:, 2 + expected.shape[1] :] == -7).all())


def test_stream_order(torch) -> None:
    """Work goes to the caller's stream, behind what is there already, and the call does not wait for it."""
    case = _case("linear | logsumexp", 256, 512, 1024)
    model, x = _on_device(torch, case)
    expected = model(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(200_000_000)  # cycles: about a tenth of a second
        late.copy_(x)
        y = model(late)
        assert not stream.query(), "forward waited for the stream"
    stream.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("batch", [1, 16, 200])
def test_graph(torch, batch: int) -> None:
    case = _case("linear | mul(2) | logsumexp | gelu", batch, 300, 700)
    model, x = _on_device(torch, case)
    x, y = x.clone(), torch.empty(batch, 1, device="cuda")
    model(x, out=y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x, out=y)
    for seed in range(3):
        other = _case(case.chain, batch, 300, 700, seed=seed + 10)
        x.copy_(torch.from_numpy(other.x))
        y.fill_(float("nan"))
        graph.replay()
        assert torch.equal(y, model(x.clone()))


def test_threads_and_streams(torch) -> None:
    """One model, many threads with a stream each."""
    case = _case("linear | logsumexp", 96, 256, 900)
    model, x = _on_device(torch, case)
    expected, wrong = model(x), []
    torch.cuda.synchronize()

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for rows in (1, 7, 33, 96):
                for _ in range(10):
                    y = model(x[:rows])
                    stream.synchronize()
                    if not torch.allclose(y, expected[:rows], rtol=1e-5):
                        wrong.append(rows)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory(torch) -> None:
    """A forward takes what workspace_size says, not the logits, and a closed model gives everything back."""
    torch.cuda.synchronize()
    start = torch.cuda.mem_get_info()[0]
    batch, k, n = 512, 256, 60_000
    x, w = torch.randn(batch, k, device="cuda"), torch.randn(n, k, device="cuda")
    model = rowfold.Model("linear | logsumexp", k, n, backend="cuda").load_weights(w)
    out = torch.empty(batch, 1, device="cuda")
    model(x[:1], out=out[:1])
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    model(x, out=out)
    torch.cuda.synchronize()
    taken = before - torch.cuda.mem_get_info()[0]
    granule = 64 << 20  # pools grow in steps of up to this
    assert taken <= model.workspace_size(batch) + granule
    assert model.workspace_size(batch) < batch * n * 4 / 2
    model.close()
    del x, w, out
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] >= start - granule


def test_out_of_memory(torch) -> None:
    """A status, after which the same model can be loaded."""
    k = n = 8192
    w = np.zeros((n, k), np.float32)
    with rowfold.Model("linear | max", k, n, backend="cuda") as model:
        torch.cuda.empty_cache()
        hog = torch.empty(torch.cuda.mem_get_info()[0] - (100 << 20), dtype=torch.uint8, device="cuda")
        with pytest.raises(rowfold.OutOfMemoryError):
            model.load_weights(w)
        del hog
        torch.cuda.empty_cache()
        assert model.load_weights(w)(np.ones((3, k), np.float32)).tolist() == [[0.0]] * 3


def test_device_that_is_not_there(torch) -> None:
    missing = torch.cuda.device_count()
    with pytest.raises(rowfold.UnavailableError, match=f"cuda:{missing}"):
        rowfold.Model("linear", 3, 3, device=f"cuda:{missing}")
