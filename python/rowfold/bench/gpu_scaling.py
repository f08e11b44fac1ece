# SPDX-License-Identifier: MIT
"""``rowfold bench --scaling --device cuda``: the same of GPUs, beside as many as this machine has.

What goes before the states is not in the prediction: it goes by the host while the GPU computes (rowfold.torch).
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..model import Model
from ..shards import merge_states, shard_columns, state_groups
from .cases import Case
from .scaling import (
    DEVICES,
    PROBE_BYTES,
    Link,
    Point,
    groups_of,
    largest_shard,
    received,
    shard_model,
    shards_of,
    together,
)

SMALL_BYTES = 512
WARM_SECONDS = 0.3  # until the clocks of a GPU that was idle are those of one that works


def _own(number: int) -> int:
    return number


def _of_first(torch: Any) -> Callable[[int], int]:
    """Of a number that each process has, that of the first: what they do together they do as often."""

    def same(number: int) -> int:
        told = torch.tensor([number], device="cuda")
        torch.distributed.broadcast(told, 0)
        return int(told)

    return same


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise SystemExit("rowfold bench: --scaling --device cuda needs PyTorch, which is not installed") from None
    if not torch.cuda.is_available():
        raise SystemExit("rowfold bench: --scaling --device cuda: PyTorch sees no GPU")
    return torch


def _drawn(torch: Any, case: Case, rows: int, seed: int) -> Any:
    """Rows of W, or of x. What a kernel takes does not depend on values."""
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(rows, case.in_features, device="cuda", generator=generator) * case.in_features**-0.5
    return values.to(getattr(torch, case.dtype))


def _model(torch: Any, case: Case, first: int, columns: int, options: dict[str, Any]) -> Model:
    device = f"cuda:{torch.cuda.current_device()}"
    model = shard_model(case, first, columns, device=device, simplify=options["simplify"])
    dtype = torch.float64 if case.dtype == "float64" else torch.float32
    vectors = {name: torch.from_numpy(v[first : first + columns]).cuda() for name, v in case.vectors().items()}
    bias = torch.zeros(columns, device="cuda", dtype=dtype)
    return model.load_weights(_drawn(torch, case, columns, first), bias, vectors, borrow=False)


def _timed(torch: Any, call: Callable[[], Any], repeat: int, same: Callable[[int], int] = _own) -> float:
    """The median time of a call, as a graph: what the host takes for it is not in it.

    ``same`` makes of the number of calls that this process chooses that of all that take part.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def seconds(calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / calls

    seconds(1)
    seconds(same(min(10000, int(WARM_SECONDS / max(seconds(1), 1e-6)) + 1)))
    return statistics.median(seconds(4) for _ in range(repeat))


def predict(case: Case, devices: Sequence[int], link: Link, options: dict[str, Any]) -> list[Point]:
    """A row for each number of devices, from what the shards take on one GPU."""
    torch, points = _torch(), []
    x = _drawn(torch, case, case.batch, -1)
    groups = len(state_groups(case.out_features)) - 1
    for count in devices:
        if count > case.out_features:
            break
        first, columns = largest_shard(case.out_features, count)
        model = _model(torch, case, first, columns, options)
        kernel = _timed(torch, lambda model=model: model.states(x), options["repeat"])  # type: ignore[misc]
        words = model.states_info.num_words
        most = max(groups_of(case.out_features, *shard) for shard in shards_of(case.out_features, count))
        everyone = torch.ones(count, case.batch * most * words, device="cuda", dtype=torch.float64)
        parts = received(case, count, 0, everyone, words)
        merge = _timed(torch, lambda m=model, p=parts: merge_states(m, p), options["repeat"])  # type: ignore[misc]
        exchange = link.all_gather(count, case.batch * words * 8 * max(1, -(-groups // count)))
        points.append(Point(count, columns, kernel, exchange, merge, columns * case.in_features * x.element_size()))
    return points


def _rank(work: Callable[..., float], rank: int, size: int, meeting: str, answers: Any, arguments: Any) -> None:
    torch = _torch()
    torch.cuda.set_device(rank)
    distributed = torch.distributed
    distributed.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=size)
    try:
        answer = work(rank, size, *arguments)
    finally:
        distributed.destroy_process_group()
    if rank == 0:
        answers.put(answer)


def _run(size: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """What rank 0 of ``work(rank, size, *arguments)`` returns, on a GPU each."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        together(context, _rank, [(work, rank, size, meeting, answers, arguments) for rank in range(size)])
    return answers.get()


def _all_gather(torch: Any) -> Callable[[Any, Any], Any]:
    distributed = torch.distributed  # which has named it so since 2.13
    gather: Callable[[Any, Any], Any] = (
        getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    )
    return gather


def _probe(rank: int, size: int, repeat: int) -> tuple[float, float]:
    torch, times = _torch(), []
    gather, same = _all_gather(torch), _of_first(torch)
    for count in (SMALL_BYTES, PROBE_BYTES):
        mine = torch.zeros(count, dtype=torch.uint8, device="cuda")
        everyone = mine.new_empty(size * count)
        times.append(
            _timed(torch, lambda e=everyone, m=mine: gather(e, m), 5 * repeat, same)  # type: ignore[misc]
        )
    return times[0], times[1]


def measure_link(repeat: int) -> Link:
    """Between two GPUs of this machine, by NCCL."""
    if _torch().cuda.device_count() < 2:
        raise SystemExit("rowfold bench: one GPU has no link to measure; expected --latency and --bandwidth")
    few, many = _run(2, _probe, repeat)
    return Link(few, PROBE_BYTES / max(many - few, 1e-9))


def _calls(rank: int, size: int, case: Case, options: dict[str, Any]) -> float:
    """The median time of a call: states, their exchange, the merge."""
    torch = _torch()
    x = _drawn(torch, case, case.batch, -1)
    model = _model(torch, case, *shard_columns(case.out_features, rank, size), options)
    words, chain = model.states_info.num_words, model.states_info.chain
    gather, shards = _all_gather(torch), shards_of(case.out_features, size)
    most = max(groups_of(case.out_features, *shard) for shard in shards) * case.batch * words

    def call() -> Any:
        own = model.states(x).data.reshape(-1)
        sent = own if own.numel() == most else torch.cat([own, own.new_zeros(most - own.numel())])
        everyone = own.new_empty(size, most)
        gather(everyone, sent)
        return merge_states(model, received(case, size, chain, everyone, words))

    return _timed(torch, call, options["repeat"], _of_first(torch))


def measure(case: Case, link: Link, options: dict[str, Any], devices: Sequence[int] = DEVICES) -> list[Point]:
    """Predictions, and beside them what ran: 1, 2, 4 ... GPUs, as many as there are."""
    there = _torch().cuda.device_count()
    points = predict(case, devices, link, options)
    for point in points:
        if point.devices <= min(there, len(state_groups(case.out_features)) - 1):
            point.ran = float(_run(point.devices, _calls, case, options))
    return points
