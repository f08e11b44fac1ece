# SPDX-License-Identifier: MIT
"""Random shapes beside PyTorch eager: where rowfold is slow or wrong on shapes that nobody thought of.

Sizes are log-uniform, half of them multiples of ALIGNED, a quarter of the x with gaps between its rows, and all dtypes
alike. A shape beyond the bounds is drawn again, so that a thousand cases take minutes. On a CPU both contenders live in
this process and take turns, with a pause in which the other's threads come to rest. A processor that has paused is
slower at first, on a virtual machine by half and for several calls: both pause alike, warm up as long, and have as many
calls in a sample. The other has a second sample in each turn: how often it is slower than itself says what the
machine's noise makes of a ratio. The least times of both
have the least of that noise. On a GPU see gpu.py. A case slower than SLOWER is measured again, and all samples count.
Without PyTorch, numpy stands in for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Protocol

import numpy as np

from ..commands.options import DTYPES
from ..commands.output import complete_or_absent
from ..errors import Error
from ..ops import Chain
from . import gpu
from .cases import Case
from .contenders import CONTENDERS, Contender, Unavailable
from .data import Array
from .report import about, seconds_text, show_table
from .runner import Result
from .unfused import errors_of, references, sampled_rows
from .watchdog import TIME_LIMIT, watched

SCHEMA = "rowfold-sweep/1"
CHAIN = "linear | logsumexp"
LARGEST = (16384, 16384, 65536)  # rows, in_features, out_features
ALIGNED = 64
MOST_VALUES = 2**25  # of x, of W and of the logits, each
MOST_WORK = {"cpu": 2**32, "cuda": 2**36}  # multiply-adds
SLOWER = 1.1
SHOWN = 20
SAMPLE_SECONDS = 2e-3  # a sample lasts at least so long, by repeating the call
SETTLE_SECONDS = 12e-3  # OpenMP's threads wait awake for 300,000 pauses after a call, 8 ms on an Intel Xeon
WARM_SECONDS = 4e-3  # of calls before each sample
AGAIN = 2  # times as many turns more for a case slower than SLOWER
COLUMNS = (
    "x as long",
    "least",
    "dtype",
    "rows",
    "inputs",
    "columns",
    "gap",
    "chain",
    "rowfold",
    "other",
    "error",
    "its error",
)
SUMMARY = (
    "dtype",
    "cases",
    "compared",
    "median",
    "worst",
    f"over {SLOWER}",
    "of least times",
    "other by itself",
    "largest error",
    "less exact",
)


@dataclass(frozen=True)
class Outcome:
    """rowfold and the one beside it on one case."""

    case: Case
    ours: Result
    other: Result
    itself: tuple[float, ...] = ()  # the other's second samples

    def joined(self, more: Outcome) -> Outcome:
        """With the samples of another measurement of the case behind its own."""
        ours, other = (
            replace(mine, seconds=mine.seconds + theirs.seconds)
            for mine, theirs in ((self.ours, more.ours), (self.other, more.other))
        )
        return Outcome(self.case, ours, other, self.itself + more.itself)

    @property
    def noise(self) -> float | None:
        """The median of the other's second samples over that of its first; None where there are none."""
        return statistics.median(self.itself) / self.other.median if self.itself and self.other.seconds else None

    @property
    def ratio(self) -> float | None:
        """The median time of rowfold over the other's; None where either has none."""
        return self.ours.median / self.other.median if self.ours.seconds and self.other.seconds else None

    @property
    def least_ratio(self) -> float | None:
        """Likewise of the least times, which other programs on the machine have the least part in."""
        return min(self.ours.seconds) / min(self.other.seconds) if self.ours.seconds and self.other.seconds else None

    @property
    def less_exact(self) -> bool:
        """Whether rowfold's error is above twice the other's and above four units in the last place of float32."""
        if self.ours.error is None:
            return False
        last_place = np.finfo(np.float64 if self.case.dtype == "float64" else np.float32).eps
        return self.ours.error > max(2 * (self.other.error or 0.0), 4 * float(last_place))

    @property
    def wrong(self) -> bool:
        """Whether there is no result, or none of the right class."""
        return self.ours.error is None or self.ours.error == math.inf

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        results = [{**vars(result), "error": result.json_error} for result in (self.ours, self.other)]
        return {
            "case": self.case.as_dict(),
            "ratio": self.ratio,
            "least_ratio": self.least_ratio,
            "noise": self.noise,
            "less_exact": self.less_exact,
            "results": results,
        }


def draw(count: int, seed: int, chains: Sequence[str], dtypes: Sequence[str], data: str, work: float) -> list[Case]:
    """`count` cases of at most `work` multiply-adds and MOST_VALUES values a matrix, the same for the same seed."""
    rng, cases = np.random.default_rng(seed), list[Case]()
    while len(cases) < count:
        sizes = [round(2 ** rng.uniform(0, math.log2(most))) for most in LARGEST]
        aligned, gap = rng.random(3) < 0.5, int(rng.integers(1, ALIGNED + 1)) * int(rng.random() < 0.25)
        batch, k, n = (-(-size // ALIGNED) * ALIGNED if even else size for size, even in zip(sizes, aligned))
        chain, dtype = chains[int(rng.integers(len(chains)))], dtypes[int(rng.integers(len(dtypes)))]
        if batch * k * n > work or max(batch * k, k * n, batch * n) > MOST_VALUES:
            continue
        cases.append(Case(chain, chain, batch, k, n, dtype, data, seed + len(cases), k + gap if gap else 0))
    return cases


class _Drawn(Case):
    """A case whose inputs are drawn once for all that want them."""

    def inputs(self) -> tuple[Array, Array, Array]:
        return self._inputs

    @functools.cached_property
    def _inputs(self) -> tuple[Array, Array, Array]:
        return super().inputs()


class Judge(Protocol):
    """Measures one case. One that takes too long ends the process."""

    other: str  # who stands beside rowfold

    def measure(self, case: Case) -> Outcome:
        """Times and errors of both."""


class CpuJudge:
    """Both in this process."""

    def __init__(
        self, threads: int, repeat: int, options: dict[str, Any], competitors: Sequence[str], limit: float = TIME_LIMIT
    ) -> None:
        self.threads, self.repeat, self.options, self.limit = threads, repeat, options, limit
        installed = importlib.util.find_spec("torch") is not None
        fitting = [name for name in ("torch", "numpy") if name in competitors and (name != "torch" or installed)]
        self._name = fitting[0] if fitting else None
        self.other = {"torch": "PyTorch eager", "numpy": "numpy", None: "nothing"}[self._name]

    def measure(self, case: Case) -> Outcome:
        """Times in turns; errors of a sample of the rows."""
        with watched(f"{case.label}, seed {case.seed}", self.limit):
            return replace(self._measure(_Drawn(**vars(case))), case=case)

    def _measure(self, case: Case) -> Outcome:
        x, weight, bias = case.inputs()
        rows = sampled_rows(case.batch)
        asked = {name: values[rows] for name, values in case.rows().items()}
        expected = references(Chain.parse(case.chain), x[rows], weight, bias, case.vectors(), asked)
        running: list[tuple[Contender, Result]] = []
        for result, name in ((ours := Result("rowfold"), "rowfold"), (other := Result(self.other), self._name)):
            if name is None:
                result.missing = "not asked for"
                continue
            try:
                contender: Contender = CONTENDERS[name]()
                contender.setup(case, self.threads, self.options)
                contender.run()
            except (Unavailable, Error, RuntimeError, MemoryError) as error:
                result.missing = str(error) or type(error).__name__
                continue
            values = contender.result()
            result.error = None if values is None else errors_of([one[rows] for one in values], expected)
            running.append((contender, result))
        calls = max([1, *(round(SAMPLE_SECONDS / _warm_up(contender.run)) for contender, _ in running)])
        itself: list[float] = []
        turns = [(contender, result.seconds) for contender, result in running]
        turns += [(contender, itself) for contender, result in running if result is other]
        for _ in range(self.repeat):
            for contender, seconds in turns:
                time.sleep(SETTLE_SECONDS)
                _warm_up(contender.run)
                seconds.append(_seconds(contender.run, calls))
        return Outcome(case, ours, other, tuple(itself))


class GpuJudge:
    """Both on one device."""

    other = "PyTorch eager"

    def __init__(
        self, device: str, repeat: int, options: dict[str, Any], math_of: str, limit: float = TIME_LIMIT
    ) -> None:
        self.runner, self.options, self.math = gpu.Runner(device, repeat, lambda line: None, limit), options, math_of

    def measure(self, case: Case) -> Outcome:
        """As `rowfold bench --device cuda` does."""
        full = gpu.GpuCase(**vars(case), math=self.math if case.dtype == "float32" else "f32")
        result = self.runner.measure(full, [self.options["simplify"]], ["torch"], self.options["backend"])
        ours, other = result.results
        return Outcome(full, ours, other)


def _warm_up(run: Callable[[], Any]) -> float:
    """Calls for WARM_SECONDS, one at least. Returns what the last one took."""
    end = time.perf_counter() + WARM_SECONDS
    while True:
        seconds = _seconds(run, 1)
        if time.perf_counter() >= end:
            return seconds


def _seconds(run: Callable[[], Any], calls: int) -> float:
    """Of one call, the mean of several."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def run(cases: Sequence[Case], judge: Judge) -> list[Outcome]:
    """All cases, with progress on standard error."""
    outcomes = []
    with _progress(len(cases)) as step:
        for case in cases:
            outcome = judge.measure(case)
            for _ in range(AGAIN if (outcome.ratio or 0) > SLOWER else 0):
                outcome = outcome.joined(judge.measure(case))
            outcomes.append(outcome)
            step(len(outcomes))
    return outcomes


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar where tqdm is installed and a terminal there; else a line for every twentieth of the way."""
    try:
        tqdm: Any = importlib.import_module("tqdm")
    except ModuleNotFoundError:
        tqdm = None
    if tqdm and sys.stderr.isatty():
        with tqdm.tqdm(total=total, unit="case") as bar:
            yield lambda done: bar.update(1)
        return
    every = max(1, total // 20)

    def say(done: int) -> None:
        if done % every == 0 or done == total:
            print(f"sweep: {done} of {total} cases", file=sys.stderr, flush=True)

    yield say


def summary(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """For each dtype, and for all: how many cases, the ratios, the errors."""
    groups = {dtype: [o for o in outcomes if o.case.dtype == dtype] for dtype in DTYPES}
    return [_summary(name, group) for name, group in [*groups.items(), ("all", list(outcomes))] if group]


def _summary(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    ratios = [o.ratio for o in outcomes if o.ratio is not None]
    least = [o.least_ratio for o in outcomes if o.least_ratio is not None]
    noises = [o.noise for o in outcomes if o.noise is not None]
    errors = [o.ours.error for o in outcomes if o.ours.error is not None]
    largest = max(errors, default=None)
    return {
        "dtype": name,
        "cases": len(outcomes),
        "compared": len(ratios),
        "median_ratio": statistics.median(ratios) if ratios else None,
        "worst_ratio": max(ratios, default=None),
        "slower": sum(ratio > SLOWER for ratio in ratios),
        "slower_at_least": sum(ratio > SLOWER for ratio in least),
        "slower_by_itself": sum(noise > SLOWER for noise in noises) if noises else None,
        "largest_error": "inf" if largest == math.inf else largest,
        "less_exact": sum(o.less_exact for o in outcomes),
        "wrong": sum(o.wrong for o in outcomes),
    }


def show(outcomes: Sequence[Outcome], other: str) -> None:
    """Prints the worst ratios first, what went wrong, and the summary."""
    worst = sorted((o for o in outcomes if o.ratio is not None), key=lambda o: -(o.ratio or 0.0))[:SHOWN]
    if worst:
        show_table(
            f"The worst of {len(outcomes)} cases; times beside {other}", COLUMNS, [_row(o) for o in worst], ("dtype",)
        )
    for o in outcomes:
        if o.wrong:
            print(f"WRONG: {o.case.label}: {o.ours.missing or 'infinities or NaN differ from float64'}")
    lines = [
        (
            line["dtype"],
            str(line["cases"]),
            str(line["compared"]),
            _ratio(line["median_ratio"]),
            _ratio(line["worst_ratio"]),
            str(line["slower"]),
            str(line["slower_at_least"]),
            "" if line["slower_by_itself"] is None else str(line["slower_by_itself"]),
            _error(line["largest_error"]),
            str(line["less_exact"]),
        )
        for line in summary(outcomes)
    ]
    show_table(f"Times over those of {other}; errors against float64", SUMMARY, lines, ("dtype",))


def _row(o: Outcome) -> tuple[str, ...]:
    case = o.case
    return (
        _ratio(o.ratio),
        _ratio(o.least_ratio),
        case.dtype,
        str(case.batch),
        str(case.in_features),
        str(case.out_features),
        str(case.row_stride - case.in_features) if case.row_stride else "",
        "" if case.chain == CHAIN else case.chain,
        seconds_text(o.ours.median),
        seconds_text(o.other.median),
        _error(o.ours.error),
        _error(o.other.error),
    )


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _error(value: float | str | None) -> str:
    return "" if value is None else f"{float(value):.1e}"


def write(path: Path, outcomes: Sequence[Outcome], judge: Judge, threads: int, seed: int, work: float) -> None:
    """Everything measured, as JSON."""
    document = {
        **about(SCHEMA, threads),
        "seed": seed,
        "most_work": work,
        "most_values": MOST_VALUES,
        "other": judge.other,
        "summary": summary(outcomes),
        "cases": [o.as_dict() for o in outcomes],
    }
    with complete_or_absent(path) as file:
        file.write((json.dumps(document, indent=1) + "\n").encode())
