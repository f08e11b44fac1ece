# SPDX-License-Identifier: MIT
"""One layer in parts on a GPU: each kernel forced, device and host memory, graphs, threads as ranks. That results are
right at all, and what is refused, is test_shards.py's.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import rowfold
from cases import Case, flat, make_case, same_bits
from cuda_kernels import FORCE, KERNELS, each, needs_cuda
from datasets import ALL
from rowfold import _lib
from torch_devices import captured, needs_torch_cuda, torch

pytestmark = needs_cuda

SCORE = "linear | softcap(30) | div(#heat) | logprob(#target, -100), argmax, entropy, logsumexp, pick(#other), max"
PLAIN = "linear | gelu | logsumexp | exp"
OTHERS = "linear | mul(@s) | sum, argmin, mean, min, (abs | max), (abs | argmax)"
SPREADS = "linear | var, std(0), (mul(@s) | norm), (abs | var | sqrt), logsumexp, norm"
CHAINS = [PLAIN, SCORE, OTHERS, SPREADS, "linear | logprob(#target, -100)", "linear | max"]


def case_of(chain: str, batch: int, k: int, n: int, dtype: str = "float32", kind: str = "sigma5") -> Case:
    rng = np.random.default_rng(batch + n)
    vectors = {"s": rng.uniform(0.5, 2, n)} if "@s" in chain else {}
    case = make_case(chain, ALL[kind](rng, batch, k, n), vectors, dtype=dtype)
    rows: dict[str, Any] = {"heat": rng.uniform(0.5, 2, batch).astype(case.compute)}
    rows["target"], rows["other"] = rng.integers(0, n, batch), rng.integers(0, n, batch).astype(np.int32)
    rows["target"][::7] = -100
    return replace(case, rows={name: v for name, v in rows.items() if f"#{name}" in chain})


def shard_of(case: Case, first: int, count: int, **keywords: Any) -> rowfold.Model:
    n, k = case.w.shape
    model = rowfold.Model(
        case.chain,
        k,
        count,
        dtype=case.dtype,
        x_dtype=case.x_dtype,
        y_dtype=case.y_dtype,
        simplify="none",
        first_column=first,
        total_columns=n,
        **{"backend": "cuda", **keywords},
    )
    own = slice(first, first + count)
    return model.load_weights(case.w[own], case.b[own], {name: v[own] for name, v in case.vectors.items()})


def merged(case: Case, cuts: list[int], **keywords: Any) -> list[np.ndarray]:
    models = [shard_of(case, first, end - first, **keywords) for first, end in zip(cuts, cuts[1:])]
    parts = [model.states(case.x, **case.rows) for model in models]
    results = flat(rowfold.merge_states(models[-1], parts, **case.rows))
    for model in models:
        model.close()
    return results


def as_given(results: list[np.ndarray]) -> Any:
    """As a call gives them."""
    return results[0] if len(results) == 1 else tuple(results)


def even(n: int, shards: int) -> list[int]:
    return [rowfold.shard_columns(n, shard, shards)[0] for shard in range(shards)] + [n]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_bits_do_not_depend_on_the_number_of_shards(
    dtype: str, chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few and of many rows, with fewer tiles than multiprocessors in a shard, and more. A kernel that is forced has
    one number of shards with each shape.
    """
    for of_kernel, shape in {8: (3, 64, 9000), 2: (40, 72, 2100), 4: (140, 64, 2300)}.items():
        case = case_of(chain, *shape, dtype=dtype)
        for kernel in each(monkeypatch, ["", *KERNELS] if chain in CHAINS[:4] else [""]):
            one = merged(case, [0, shape[2]])
            case.check_results(as_given(one), "cuda", kernel)
            for shards in (of_kernel,) if kernel else (2, 4, 8):
                got = merged(case, even(shape[2], shards))
                for i, (a, b) in enumerate(zip(got, one)):
                    assert same_bits(a, b), f"result {i} of {case}, {shards} shards, {kernel}"


@pytest.mark.parametrize("shards", range(1, 10))
def test_shards_of_any_size(shards: int) -> None:
    """Uneven, empty ones, and some that begin within a group."""
    rng = np.random.default_rng(shards)
    for chain in CHAINS:
        case = case_of(chain, 20, 40, 1500)
        inner = np.sort(rng.choice([0, 1, 255, 256, 300, 511, 777, 1024, 1025, 1499, 1500], shards - 1))
        case.check_results(as_given(merged(case, [0, *map(int, inner), 1500])), "cuda", str(inner))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", ALL)
def test_kinds_of_data(kernel: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that terms do not represent, of two levels, with NaN and infinities, columns that are all -inf."""
    monkeypatch.setenv(FORCE, kernel)
    for shape in ((6, 129, 600), (70, 65, 700)):
        case = case_of(SCORE, *shape, kind=kind)
        case.check_results(as_given(merged(case, even(shape[2], 3))), "cuda", kernel)


def test_irregular_rows_and_shards_that_are_all_infinite() -> None:
    for kind in ("lognormal", "outlier"):
        for batch in (30, 200):
            case = case_of(SCORE, batch, 600, 5000, kind=kind)
            one = merged(case, [0, 5000])
            assert all(same_bits(a, b) for a, b in zip(merged(case, even(5000, 4)), one)), (kind, batch)
    case = case_of(SCORE, 40, 64, 4096)
    b = case.b.copy()
    b[:2048] = -np.inf
    case = replace(case, b=b)
    for shards in (1, 2, 4, 16):
        case.check_results(as_given(merged(case, even(4096, shards))), "cuda", str(shards))


def test_states_of_other_backends_are_merged() -> None:
    """The layout is one for all."""
    for chain in CHAINS:
        case = case_of(chain, 33, 48, 2000)
        parts, models = [], []
        for i, (first, end) in enumerate(((0, 512), (512, 1024), (1024, 2000))):
            models.append(shard_of(case, first, end - first, backend="cuda" if i % 2 else "cpu-generic"))
            parts.append(models[-1].states(case.x, **case.rows))
        for model in models:
            case.check_results(rowfold.merge_states(model, parts, **case.rows), "cuda", chain)


@needs_torch_cuda
def test_device_tensors_and_graphs() -> None:
    """Without a wait, in the order of the stream, and again from a graph."""
    for batch in (5, 300):
        check_on_device(case_of(SCORE, batch, 72, 5000))


def check_on_device(case: Case) -> None:
    cuts = even(5000, 4)
    models = [shard_of(case, first, end - first) for first, end in zip(cuts, cuts[1:])]
    x = torch.tensor(case.x, device="cuda")
    rows = {name: torch.tensor(v, device="cuda") for name, v in case.rows.items()}

    def call() -> Any:
        return rowfold.merge_states(models[0], [model.states(x, **rows) for model in models], **rows)

    want = merged(case, cuts)
    got = call()
    assert all(y.is_cuda and same_bits(y.cpu().numpy(), w) for y, w in zip(got, want))
    graph, got = captured(call)
    for turn in range(3):
        x.copy_(torch.tensor(np.roll(case.x, turn, 0)))
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(got, call())), turn
    host = [model.states(case.x, **case.rows) for model in models]
    mixed = [replace(part, data=torch.tensor(part.data, device="cuda")) for part in host]
    assert all(same_bits(y.cpu().numpy(), w) for y, w in zip(rowfold.merge_states(models[1], mixed, **rows), want))


@needs_torch_cuda
def test_many_parts() -> None:
    """More than one launch merges from where they are."""
    case = case_of(SCORE, 12, 32, 40 * 256)
    cuts = [256 * i for i in range(41)]
    models = [shard_of(case, first, end - first) for first, end in zip(cuts, cuts[1:])]
    x = torch.tensor(case.x, device="cuda")
    rows = {name: torch.tensor(v, device="cuda") for name, v in case.rows.items()}
    got = rowfold.merge_states(models[0], [model.states(x, **rows) for model in models], **rows)
    case.check_results(tuple(y.cpu().numpy() for y in got), "cuda")


@pytest.mark.parametrize("columns", [256, 100])
@needs_torch_cuda
def test_many_parts_of_one_gather(columns: int) -> None:
    """What lies at even distances is merged where it is: the bits are those of parts that are gathered first."""
    for chain in (SCORE, "linear | logsumexp"):
        case = case_of(chain, 130, 32, 5000)
        cuts = [*range(0, 5000, columns), 5000]
        models = [shard_of(case, first, end - first) for first, end in zip(cuts, cuts[1:])]
        x = torch.tensor(case.x, device="cuda")
        rows = {name: torch.tensor(v, device="cuda") for name, v in case.rows.items()}
        parts = [model.states(x, **rows) for model in models]
        everyone = torch.zeros(len(parts), max(part.data.numel() for part in parts), dtype=torch.float64, device="cuda")
        for own, part in zip(everyone, parts):
            own[: part.data.numel()] = part.data.reshape(-1)
        even_parts = [
            replace(part, data=own[: part.data.numel()].view(part.data.shape)) for own, part in zip(everyone, parts)
        ]
        host = [replace(part, data=part.data.cpu()) for part in parts]
        want = tuple(np.asarray(y) for y in flat(rowfold.merge_states(models[0], host, **case.rows)))
        case.check_results(as_given(want), "cuda", "of the host")
        for given in (even_parts, parts):
            got = flat(rowfold.merge_states(models[0], given, **rows))
            assert all(same_bits(y.cpu().numpy(), w) for y, w in zip(got, want)), (columns, chain)


class Ranks:
    """Threads that gather what each of them sends."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.sent: list[bytes] = [b""] * size

    def gather(self, rank: int) -> Any:
        def call(user: Any, send: int, receive: int, size: int, *_: Any) -> int:
            self.sent[rank] = ctypes.string_at(send, size)
            self.barrier.wait()
            everyone = b"".join(self.sent)
            ctypes.memmove(receive, everyone, len(everyone))
            self.barrier.wait()
            return 0

        return _lib.AllGather(call)


@pytest.mark.parametrize("size", range(1, 10))
def test_threads_as_ranks(size: int) -> None:
    """Every rank gets the same results, of pointers of the host."""
    case = case_of(PLAIN, 50, 64, 4700)
    want = merged(case, [0, 4700])[0]
    cuts, ranks = even(4700, size), Ranks(size)
    results = [np.full((50, 1), np.nan, np.float32) for _ in range(size)]
    errors: list[Exception] = []

    def work(rank: int) -> None:
        try:
            with shard_of(case, cuts[rank], cuts[rank + 1] - cuts[rank]) as model:
                gather = ranks.gather(rank)
                by = _lib.Collective(ctypes.sizeof(_lib.Collective), None, rank, size, 60.0, gather)
                args = _lib.ForwardArgs(
                    size=ctypes.sizeof(_lib.ForwardArgs),
                    x=case.x.ctypes.data,
                    y=results[rank].ctypes.data,
                    batch=50,
                )
                handle = model._open()
                handle.library.rf_model_forward_sharded(handle.pointer, ctypes.byref(by), ctypes.byref(args))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(same_bits(y, want) for y in results)


@needs_torch_cuda
def test_device_memory_is_checked() -> None:
    case = case_of(PLAIN, 4, 32, 600)
    model = shard_of(case, 0, 600)
    part = model.states(case.x)
    native = _lib.States(
        size=ctypes.sizeof(_lib.States),
        data=part.data.ctypes.data,
        bytes=part.data.nbytes,
        num_columns=600,
        memory=_lib.Memory.DEVICE,
    )
    y = torch.empty(4, 1, device="cuda")
    args = _lib.ForwardArgs(size=ctypes.sizeof(_lib.ForwardArgs), y=y.data_ptr(), y_memory=_lib.Memory.DEVICE, batch=4)
    handle = model._open()
    with pytest.raises(rowfold.InvalidArgumentError, match="memory of the host, but its rf_memory is RF_MEMORY_DEVICE"):
        handle.library.rf_states_merge(handle.pointer, ctypes.byref(native), 1, ctypes.byref(args))
    native.memory = 7
    with pytest.raises(rowfold.InvalidArgumentError, match="memory is 7; expected RF_MEMORY_HOST or RF_MEMORY_DEVICE"):
        handle.library.rf_states_merge(handle.pointer, ctypes.byref(native), 1, ctypes.byref(args))
