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

from ..errors import InvalidArgumentError
from ..model import Model
from ..shards import States, merge_states, shard_columns, state_groups
from .cases import Case
from .scaling import DEVICES, PROBE_BYTES, Link, Point, largest_shard

SMALL_BYTES = 512


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
    model = Model(
        case.chain,
        case.in_features,
        columns,
        dtype=case.dtype,
        simplify=options["simplify"],
        device=f"cuda:{torch.cuda.current_device()}",
        first_column=first,
        total_columns=case.out_features,
    )
    if model.info.row_inputs:
        raise InvalidArgumentError("the chain has row inputs; rowfold bench --scaling gives none")
    dtype = torch.float64 if case.dtype == "float64" else torch.float32
    vectors = {name: torch.from_numpy(v[first : first + columns]).cuda() for name, v in case.vectors().items()}
    bias = torch.zeros(columns, device="cuda", dtype=dtype)
    return model.load_weights(_drawn(torch, case, columns, first), bias, vectors, borrow=False)


def _timed(torch: Any, call: Callable[[], Any], repeat: int) -> float:
    """The median time of a call, as a graph: what the host takes for it is not in it."""
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
    samples = []
    for _ in range(repeat + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(4):
            graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e-3 / 4)
    return float(statistics.median(samples[1:]))


def _parts(case: Case, devices: int, everyone: Callable[[int, int, int], Any]) -> list[States]:
    """States of so many shards; ``everyone(shard, groups, words)`` are a shard's words."""
    parts = []
    for i in range(devices):
        first, columns = shard_columns(case.out_features, i, devices)
        if devices > len(state_groups(case.out_features)) - 1:
            first, end = case.out_features * i // devices, case.out_features * (i + 1) // devices
            columns = end - first
        shard = Model(
            case.chain,
            case.in_features,
            columns,
            device="cpu",
            first_column=first,
            total_columns=case.out_features,
        )
        info = shard.states_info
        parts.append(
            States(
                everyone(i, info.num_groups, info.num_words),
                first,
                columns,
                case.out_features,
                0,
            )
        )
    return parts


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
        parts = _parts(case, count, lambda _, g, w: torch.ones(case.batch, g, w, device="cuda", dtype=torch.float64))
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
        processes = [
            context.Process(target=_rank, args=(work, rank, size, meeting, answers, arguments), daemon=True)
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process of the benchmark has failed; its error is above")
    return answers.get()


def _probe(rank: int, size: int, repeat: int) -> tuple[float, float]:
    torch, times = _torch(), []
    for count in (SMALL_BYTES, PROBE_BYTES):
        mine = torch.zeros(count, dtype=torch.uint8, device="cuda")
        everyone = mine.new_empty(size * count)
        times.append(
            _timed(torch, lambda e=everyone, m=mine: torch.distributed.all_gather_into_tensor(e, m), 5 * repeat)  # type: ignore[misc]
        )
    return times[0], times[1]


def measure_link(repeat: int) -> Link:
    """Between two GPUs of this machine, by NCCL."""
    few, many = _run(2, _probe, repeat)
    return Link(few, PROBE_BYTES / max(many - few, 1e-9))


def _calls(rank: int, size: int, case: Case, options: dict[str, Any]) -> float:
    """The median time of a call: states, their exchange, the merge."""
    torch = _torch()
    x = _drawn(torch, case, case.batch, -1)
    model = _model(torch, case, *shard_columns(case.out_features, rank, size), options)
    most = max(part.data for part in _parts(case, size, lambda _, g, w: g * w)) * case.batch

    def call() -> Any:
        own = model.states(x).data.reshape(-1)
        sent = own if own.numel() == most else torch.cat([own, own.new_zeros(most - own.numel())])
        everyone = own.new_empty(size, most)
        torch.distributed.all_gather_into_tensor(everyone, sent)
        parts = _parts(case, size, lambda i, g, w: everyone[i, : case.batch * g * w].view(case.batch, g, w))
        return merge_states(model, parts)

    return _timed(torch, call, options["repeat"])


def measure(
    case: Case, link: Link | None, options: dict[str, Any], devices: Sequence[int] = DEVICES
) -> tuple[Link, list[Point]]:
    """Predictions, and beside them what ran: 1, 2, 4 ... GPUs, as many as there are."""
    torch = _torch()
    there = torch.cuda.device_count()
    if link is None and there < 2:
        raise SystemExit("rowfold bench: one GPU has no link to measure; expected --latency and --bandwidth")
    used = measure_link(options["repeat"]) if link is None else link
    points = predict(case, devices, used, options)
    for point in points:
        if point.devices <= min(there, len(state_groups(case.out_features)) - 1):
            point.ran = float(_run(point.devices, _calls, case, options))
    return used, points
