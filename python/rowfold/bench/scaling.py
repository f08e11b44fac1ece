# SPDX-License-Identifier: MIT
"""A layer split by columns over 1 to 512 processes: how long a call should take, and how long it did where it ran.

What a process computes is measured: the largest shard of so many, alone on this machine. What it sends follows from the
states, and the time of that from a latency and a bandwidth, which are given or measured between two processes here.
Layers that were really split, over as many processes as there are cores, stand beside the prediction.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..commands.output import complete_or_absent
from ..errors import InvalidArgumentError
from ..model import Model
from ..shards import States, merge_states, shard_columns, state_groups
from .cases import Case
from .report import about, seconds_text, show_table

SCHEMA = "rowfold-scaling/1"
DEVICES = tuple(1 << i for i in range(10))
STATUS = 512  # bytes of what a process says before any states, twice (rf_model_forward_sharded)
SAMPLE_SECONDS = 5e-3
PROBE_BYTES = 1 << 22
START_SECONDS = 300.0
UNIT = 256  # columns, of which every border of a group is a multiple
COLUMNS = ("devices", "columns", "kernel", "exchange", "merge", "call", "times one", "efficient", "weights", "ran here")


@dataclass(frozen=True)
class Link:
    """From one process to another: seconds that any message takes, and bytes a second."""

    latency: float
    bandwidth: float

    def all_gather(self, devices: int, each: float) -> float:
        """Seconds until each of so many has what all of them sent, in rounds that double what is known."""
        if devices == 1:
            return 0.0
        return math.ceil(math.log2(devices)) * self.latency + (devices - 1) * each / self.bandwidth


@dataclass(frozen=True)
class Cluster(Link):
    """The same within a node of ``node`` devices, each of which reaches its likes in other nodes by ``between``."""

    node: int
    between: Link

    def all_gather(self, devices: int, each: float) -> float:
        """Between the nodes first, then within each: there a device passes on what all its likes have sent."""
        nodes = math.ceil(devices / self.node)
        return self.between.all_gather(nodes, each) + super().all_gather(min(devices, self.node), nodes * each)


@dataclass
class Point:
    """So many devices: seconds predicted, and measured where they ran."""

    devices: int
    columns: int  # of the largest shard
    kernel: float
    exchange: float
    merge: float
    weight_bytes: int
    ran: float | None = None

    @property
    def call(self) -> float:
        """Seconds of a call, predicted."""
        return self.kernel + self.exchange + self.merge


def shards_of(columns: int, devices: int) -> list[tuple[int, int]]:
    """The first column and the number of columns of each: whole groups, or evenly where there are too few."""
    if devices <= len(state_groups(columns)) - 1:
        return [shard_columns(columns, i, devices) for i in range(devices)]
    cuts = [columns * i // devices for i in range(devices + 1)]
    return [(first, end - first) for first, end in zip(cuts, cuts[1:])]


def largest_shard(columns: int, devices: int) -> tuple[int, int]:
    """The first column and the columns of the largest shard."""
    return max(shards_of(columns, devices), key=lambda shard: shard[1])


def parts_of(case: Case, devices: int, chain: int, data: Callable[[int, int], Any]) -> list[States]:
    """States of so many shards; ``data(shard, groups)`` are the words of one."""
    columns = case.out_features
    return [
        States(data(i, groups_of(columns, *shard)), *shard, columns, chain)
        for i, shard in enumerate(shards_of(columns, devices))
    ]


def groups_of(total: int, first: int, count: int) -> int:
    """How many groups a shard writes states of: those that its units of 256 columns begin in (lib/groups.h)."""
    if not count:
        return 0
    last = first + (count - 1) // UNIT * UNIT
    borders = state_groups(total)[:-1]
    return bisect_right(borders, last) - bisect_right(borders, first) + 1


def exchange_seconds(link: Link, devices: int, batch: int, columns: int, words: int) -> float:
    """Seconds of the three exchanges of a call. Every process sends as many bytes as that with the most states."""
    groups = len(state_groups(columns)) - 1
    each = batch * words * 8 * max(1, -(-groups // devices))
    return 2 * link.all_gather(devices, STATUS) + link.all_gather(devices, each)


def predict(case: Case, devices: Sequence[int], link: Link, options: dict[str, Any]) -> list[Point]:
    """A row for each number of devices, from what the shards take here."""
    points = []
    x, weight, bias = case.inputs()
    for count in devices:
        if count > case.out_features:
            break
        first, columns = largest_shard(case.out_features, count)
        model = _model(case, weight, bias, first, columns, options)
        kernel = _median(lambda model=model: model.states(x), options["repeat"])  # type: ignore[misc]
        info = model.states_info
        merge = _median(_merging(model, case, count), options["repeat"])
        exchange = exchange_seconds(link, count, case.batch, case.out_features, info.num_words)
        points.append(Point(count, columns, kernel, exchange, merge, columns * weight.strides[0]))
    return points


def shard_model(case: Case, first: int, columns: int, **options: Any) -> Model:
    """A model of some columns, without weights yet."""
    model = Model(
        case.chain,
        case.in_features,
        columns,
        dtype=case.dtype,
        first_column=first,
        total_columns=case.out_features,
        **options,
    )
    if model.info.row_inputs:
        raise InvalidArgumentError("the chain has row inputs; rowfold bench --scaling gives none")
    return model


def _model(case: Case, weight: Any, bias: Any, first: int, columns: int, options: dict[str, Any]) -> Model:
    own = {name: options[name] for name in ("simplify", "threads", "backend")}
    model, rows = shard_model(case, first, columns, device="cpu", **own), slice(first, first + columns)
    vectors = {name: value[rows] for name, value in case.vectors().items()}
    return model.load_weights(weight[rows], bias[rows], vectors)


def _merging(model: Model, case: Case, devices: int) -> Callable[[], Any]:
    """A merge of as many states as so many shards give."""
    words = model.states_info.num_words
    parts = parts_of(case, devices, 0, lambda _, groups: np.ones((case.batch, groups, words)))
    return lambda: merge_states(model, parts)


def _median(call: Callable[[], Any], repeat: int) -> float:
    call()
    start = time.perf_counter()
    call()
    calls = max(1, round(SAMPLE_SECONDS / max(time.perf_counter() - start, 1e-7)))
    samples = []
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - start) / calls)
    return statistics.median(samples)


def together(context: Any, work: Callable[..., None], arguments: Sequence[Any]) -> None:
    """A process for each of the arguments, at the same time; raises RuntimeError where one fails."""
    processes = [context.Process(target=work, args=own, daemon=True) for own in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process of the benchmark has failed; its error is above")


class Ranks:
    """Processes of this machine that gather bytes through memory that they share: a stand-in for a network."""

    def __init__(self, size: int, most: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self.size, self.most = size, most
        self.memory = self._context.RawArray("B", 2 * size * most)
        self.barrier = self._context.Barrier(size)
        self.answers = self._context.SimpleQueue()

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What rank 0 of ``work(gather, rank, *arguments)`` returns."""
        shared = (self.size, self.most, self.memory, self.barrier, self.answers, arguments)
        together(self._context, _rank, [(work, rank, *shared) for rank in range(self.size)])
        return self.answers.get()


def _rank(
    work: Callable[..., Any], rank: int, size: int, most: int, memory: Any, barrier: Any, answers: Any, arguments: Any
) -> None:
    turns = np.frombuffer(memory, np.uint8).reshape(2, size, most)
    turn = 0

    def gather(mine: Any) -> Any:
        """What each process gave, of the same size from all; good until the next."""
        nonlocal turn
        here = turns[turn % 2]
        turn += 1
        here[rank, : mine.nbytes] = mine.view(np.uint8).reshape(-1)
        barrier.wait(START_SECONDS)
        return here[:, : mine.nbytes]

    try:
        answer = work(gather, rank, *arguments)
    except BaseException:
        barrier.abort()
        raise
    if rank == 0:
        answers.put(answer)


def _probe(gather: Callable[[Any], Any], rank: int, repeat: int) -> tuple[float, float]:
    small, large = np.zeros(STATUS, np.uint8), np.zeros(PROBE_BYTES, np.uint8)
    few = _gathering(gather, small, repeat)
    return few, _gathering(gather, large, repeat)


def _gathering(gather: Callable[[Any], Any], data: Any, repeat: int) -> float:
    samples = []
    for _ in range(10 * repeat):
        start = time.perf_counter()
        gather(data).sum()  # which reads it
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def measure_link(repeat: int) -> Link:
    """Between two processes of this machine."""
    few, many = Ranks(2, PROBE_BYTES).run(_probe, repeat)
    return Link(few, PROBE_BYTES / max(many - few, 1e-9))


def _calls(gather: Callable[[Any], Any], rank: int, case: Case, size: int, options: dict[str, Any]) -> float:
    """The median time of calls as rf_model_forward_sharded makes them, from the first rank's start to its result."""
    x, weight, bias = case.inputs()
    model = _model(case, weight, bias, *shard_columns(case.out_features, rank, size), options)
    del weight
    words, chain = model.states_info.num_words, model.states_info.chain
    most = max(groups_of(case.out_features, *shard) for shard in shards_of(case.out_features, size))
    status, samples = np.zeros(STATUS, np.uint8), []
    for sample in range(options["repeat"] + 1):
        gather(status)  # all begin together
        start = time.perf_counter()
        gather(status)
        part = model.states(x)
        gather(status)
        sent = np.zeros((case.batch * most * words,))
        sent[: part.data.size] = part.data.reshape(-1)
        merge_states(model, received(case, size, chain, gather(sent).view(np.float64), words))
        if sample:
            samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def received(case: Case, devices: int, chain: int, everyone: Any, words: int) -> list[States]:
    """The states of all shards, from what each device has sent, (devices, most)."""

    def own(shard: int, groups: int) -> Any:
        return everyone[shard, : case.batch * groups * words].reshape(case.batch, groups, words)

    return parts_of(case, devices, chain, own)


def run_here(case: Case, size: int, options: dict[str, Any]) -> float:
    """Seconds of a call on so many processes of this machine."""
    words = 8 * case.batch * 16 * Model(case.chain, case.in_features, case.out_features).states_info.num_words
    return float(Ranks(size, max(words, STATUS)).run(_calls, case, size, options))


def measure(
    case: Case, link: Link, cores: int, options: dict[str, Any], devices: Sequence[int] = DEVICES
) -> list[Point]:
    """Predictions, and beside them what ran: 1, 2, 4 ... processes, as many as there are cores for their threads."""
    points = predict(case, devices, link, options)
    for point in points:
        if point.devices * options["threads"] <= cores and point.devices <= len(state_groups(case.out_features)) - 1:
            point.ran = run_here(case, point.devices, options)
    return points


def show(case: Case, link: Link, measured: bool, points: Sequence[Point]) -> None:
    """Prints the table."""
    one = points[0].call
    lines = []
    for p in points:
        ran = "" if p.ran is None else f"{seconds_text(p.ran)}, {p.ran / p.call:.2f} of it"
        lines.append(
            (
                str(p.devices),
                str(p.columns),
                *map(seconds_text, (p.kernel, p.exchange, p.merge, p.call)),
                f"{one / p.call:.2f}",
                f"{one / p.call / p.devices:.0%}",
                f"{p.weight_bytes / 2**20:.1f} MiB",
                ran,
            )
        )
    how = "measured between two processes here" if measured else "as given"
    title = (
        f"{case.chain}, {case.batch} x {case.in_features} -> {case.out_features} {case.dtype}; a message takes "
        f"{seconds_text(link.latency)} and a second for {link.bandwidth / 1e9:.3g} GB ({how})"
    )
    if isinstance(link, Cluster):
        other = link.between
        title += (
            f", from node to node of {link.node} {seconds_text(other.latency)} and a second for "
            f"{other.bandwidth / 1e9:.3g} GB (as given)"
        )
    show_table(title, COLUMNS, lines, ("ran here",))


def write(path: Path, case: Case, link: Link, points: Sequence[Point], threads: int) -> None:
    """The same as JSON."""
    document = {
        **about(SCHEMA, threads),
        "case": case.as_dict(),
        "link": asdict(link),
        "points": [{**vars(p), "call": p.call} for p in points],
    }
    with complete_or_absent(path) as file:
        file.write((json.dumps(document, indent=1) + "\n").encode())
