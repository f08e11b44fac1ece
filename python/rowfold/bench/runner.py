# SPDX-License-Identifier: MIT
"""Runs the contenders of a case side by side, one process each, with interleaved repetitions."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

import numpy as np

from .. import _lib
from ..backends import CpuPeak
from ..errors import Error
from ..ops import Chain
from .cases import Case
from .machine import cpu_name
from .unfused import errors_of, references, sampled_rows
from .watchdog import TIME_LIMIT

Pick = Callable[[Sequence[float]], float]

# OpenBLAS' names for processors with AVX2 or more; "" leaves the choice to it.
CORE_TYPES = ("", "Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids")
# Before each sample: threads of the contender before it may still be spinning, 26 ms in OpenBLAS.
SETTLE_SECONDS = 0.1


@dataclass(frozen=True)
class Entry:
    """A contender as it takes part: under which label, with which options and environment."""

    label: str
    contender: str
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    product_only: bool = False


@dataclass
class Result:
    """What came of one entry on one case. ``seconds`` are the samples; ``missing`` says why there are none.

    ``algebraic``: a rewrite removed the matrix product, so the time is no kernel's speed.
    """

    label: str
    seconds: list[float] = field(default_factory=list)
    error: float | None = None
    extra_memory_bytes: int | None = None
    about: dict[str, Any] = field(default_factory=dict)
    product_only: bool = False
    algebraic: bool = False
    missing: str | None = None

    @property
    def median(self) -> float:
        """Median seconds of a call."""
        return statistics.median(self.seconds)

    @property
    def json_error(self) -> float | str | None:
        """The error; "inf" where it is infinite, for which JSON has no number."""
        return "inf" if self.error == math.inf else self.error


@dataclass
class CaseResult:
    """All results of a case, and the machine's peaks as the rowfold worker measured them between the repetitions.

    ``error_rows`` is the number of rows whose largest error is a result's.
    """

    case: Case
    results: list[Result]
    peaks: list[CpuPeak]
    error_rows: int

    def peak(self, pick: Pick = statistics.median) -> CpuPeak:
        """The machine's peak for the case's type; a float64 vector has half the lanes of a float32 one."""
        lanes = 0.5 if self.case.native_dtype is _lib.DType.FLOAT64 else 1.0
        flops = pick([peak.flops_per_second for peak in self.peaks]) * lanes
        return CpuPeak(flops, pick([peak.bytes_per_second for peak in self.peaks]))

    def bounds(self, pick: Pick = statistics.median) -> tuple[float, float]:
        """Seconds that the machine takes at its peak for the arithmetic, and to read W."""
        peak = self.peak(pick)
        return self.case.flops / peak.flops_per_second, self.case.bytes / peak.bytes_per_second

    @property
    def arithmetic_bound(self) -> bool:
        """Whether arithmetic, rather than reading W, bounds the case on this machine."""
        arithmetic, reading = self.bounds()
        return arithmetic > reading

    def fraction(self, result: Result) -> float | None:
        """The bound's time over the contender's, of medians; None where it did less work than the bound counts."""
        return max(self.bounds()) / result.median if result.seconds and not result.algebraic else None

    def best_fraction(self, result: Result) -> float | None:
        """The same of the machine's and the contender's best, which other load on the machine disturbs less."""
        return max(self.bounds(max)) / min(result.seconds) if result.seconds and not result.algebraic else None

    def where(self, threads: int) -> str:
        """The machine, for people."""
        return f"{cpu_name()}, {threads} threads"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "case": self.case.as_dict(),
            "peaks": [peak._asdict() for peak in self.peaks],
            "bound": "arithmetic" if self.arithmetic_bound else "bandwidth",
            "error_rows": self.error_rows,
            "results": [
                {
                    **asdict(result),
                    "error": result.json_error,
                    "median": result.median if result.seconds else None,
                    "fraction": self.fraction(result),
                    "best_fraction": self.best_fraction(result),
                }
                for result in self.results
            ],
        }


class WorkerError(Error, RuntimeError):
    """A worker could not do what it was asked, or died."""


class Process:
    """The parent's end of a worker. One that does not answer within ``limit`` seconds is ended."""

    def __init__(self, entry: Entry, case: Case, threads: int, limit: float = TIME_LIMIT) -> None:
        self.limit = limit
        environment = {**os.environ, **entry.environment}
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[name] = str(threads)
        package_parent = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_parent, environment.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rowfold.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        try:
            options = {"contender": entry.contender, "options": entry.options}
            self._send({"case": case.as_dict(), "threads": threads, **options})
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, **arguments: Any) -> Any:
        """One request, and the worker's answer."""
        return self._send({"do": what, **arguments})

    def _send(self, request: Mapping[str, Any]) -> Any:
        assert self._process.stdin and self._process.stdout
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(self.limit, end)
        timer.daemon = True
        timer.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            code = self._process.wait()
            if late.is_set():
                raise WorkerError(f"gave no answer within {self.limit:g} s, and was ended; --time-limit allows more")
            raise WorkerError(f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["ok"]

    def close(self) -> None:
        """Ends the worker."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
        self._process.wait()


class Runner:
    """Measures cases. ``say`` receives a line on each step."""

    def __init__(self, threads: int, repeat: int, say: Callable[[str], None], limit: float = TIME_LIMIT) -> None:
        self.threads, self.repeat, self.say, self.limit = threads, repeat, say, limit
        self._core_types: dict[tuple[str, bool], str] = {}

    def measure(self, case: Case, entries: Sequence[Entry]) -> CaseResult:
        """One case. The first entry is a rowfold one; it also measures the machine."""
        results = [Result(entry.label, product_only=entry.product_only) for entry in entries]
        running: list[tuple[Process, Result]] = []
        peaks: list[CpuPeak] = []
        try:
            for entry, result in zip(entries, results):
                self.say(f"{case.label}: starting {entry.label}")
                self._start(entry, case, result, running)
            for repetition in range(self.repeat):
                self.say(f"{case.label}: repetition {repetition + 1} of {self.repeat}")
                for process, result in list(running):
                    time.sleep(SETTLE_SECONDS)
                    try:
                        result.seconds.append(process.ask("time"))
                    except WorkerError as error:
                        self.say(f"{case.label}: {result.label} {error}")
                        result.seconds, result.missing = [], str(error)
                        running.remove((process, result))
                        process.close()
                if running:
                    peaks.append(CpuPeak(*running[0][0].ask("peak")))
            self.say(f"{case.label}: errors against float64")
            rows = sampled_rows(case.batch)
            self._errors(case, rows, running)
        except WorkerError as error:
            raise WorkerError(f"{case.label}: {error}") from None
        finally:
            for process, _ in running:
                process.close()
        return CaseResult(case, results, peaks, len(rows))

    def _start(self, entry: Entry, case: Case, result: Result, running: list[tuple[Process, Result]]) -> None:
        try:
            if entry.contender == "openblas":
                entry = replace(entry, environment={**entry.environment, **self._best_openblas(entry, case)})
            process = Process(entry, case, self.threads, self.limit)
            running.append((process, result))
            result.about = process.ask("describe")
        except WorkerError as error:
            if running and running[-1][1] is result:
                running.pop()[0].close()
            self.say(f"{case.label}: {result.label} {error}")
            result.missing = str(error)
            return
        result.extra_memory_bytes = result.about.pop("extra_memory_bytes")
        if entry.contender == "rowfold":
            plan = result.about["explain"]
            result.algebraic = plan["fused"]["flops"] < plan["unfused"]["flops"] / 2

    def _best_openblas(self, entry: Entry, case: Case) -> dict[str, str]:
        """The environment OpenBLAS is fastest with: a processor it does not know gets the kernels of an old one."""
        key = (case.dtype, case.batch == 1)
        if key not in self._core_types:
            trial = replace(
                case, batch=min(case.batch, 256), in_features=min(case.in_features, 4096), out_features=4096
            )
            trial = replace(trial, chain="linear")
            best = (float("inf"), "")
            for core in CORE_TYPES:
                self.say(f"trying OpenBLAS with OPENBLAS_CORETYPE={core or '(unset)'}")
                environment = {"OPENBLAS_CORETYPE": core} if core else {}
                try:
                    process = Process(replace(entry, environment=environment), trial, self.threads, self.limit)
                except WorkerError:
                    if not core:  # it is not here, or has no such product: no core type will help
                        raise
                    continue
                best = min(best, (min(process.ask("time") for _ in range(3)), core))
                process.close()
            self._core_types[key] = best[1]
        core = self._core_types[key]
        return {"OPENBLAS_CORETYPE": core} if core else {}

    def _errors(self, case: Case, rows: list[int], running: Sequence[tuple[Process, Result]]) -> None:
        x, weight, bias = case.inputs()
        asked = {name: values[rows] for name, values in case.rows().items()}
        expected = references(Chain.parse(case.chain), x[rows], weight, bias, case.vectors(), asked)
        for process, result in running:
            values = process.ask("rows", rows=rows)
            if values is not None:
                result.error = errors_of([np.array(one) for one in values], expected)
