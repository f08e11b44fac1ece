# SPDX-License-Identifier: MIT
"""Two runs beside each other: what became faster or slower beyond the noise.

A difference counts where the samples say that chance hardly makes one: the two-sided rank test of Mann and Whitney
(1947), at 1 %, exact up to a hundred samples a run. Five samples a run are the least that can show one. What the test
cannot see is a machine that was busier during one of the runs, so the peaks measured in both are shown besides.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import FileError, InvalidFileError
from .report import SCHEMA, seconds_text, show_table

LEVEL = 0.01
MOST_PAIRS = 10_000  # a second of counting; the approximation errs by less than a fiftieth of itself at the level
COLUMNS = ("case", "contender", "old", "new", "new / old", "verdict")


class Change(NamedTuple):
    """One contender on one case in both runs. ``chance``: how often mere noise gives such a difference."""

    case: str
    contender: str
    old: float
    new: float
    chance: float
    enough: bool

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.enough:
            return "too few samples to tell"
        if self.chance > LEVEL:
            return "within the noise"
        return "faster" if self.new < self.old else "SLOWER"


def read(path: Path) -> dict[str, Any]:
    """A document that ``--json`` wrote. Raises FileError or InvalidFileError."""
    try:
        document: Any = json.loads(path.read_text())
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None
    except RecursionError:
        raise InvalidFileError(f"{path}: not JSON that rowfold bench writes: it is nested too deeply") from None
    except ValueError as error:
        raise InvalidFileError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InvalidFileError(f"{path}: not a document of schema {SCHEMA}, which rowfold bench --json writes")
    try:
        _require_parts(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InvalidFileError(f"{path}: not what rowfold bench --json writes: {what}") from None
    return document


def _require_parts(document: dict[str, Any]) -> None:
    """What a comparison reads. Raises the errors of a part that is missing or of another type."""
    if not isinstance(document["date"], str):
        raise TypeError("date is no text")
    _machines(document, document)
    for (case, label), result in _results(document):
        seconds = result["seconds"]
        if not isinstance(label, str) or not isinstance(seconds, list):
            raise TypeError(f"a result of {case!r} has no label or no list of seconds")
        if any(isinstance(s, bool) or not isinstance(s, (int, float)) or not 0 < s < math.inf for s in seconds):
            raise ValueError(f"a result of {case!r} has seconds that are no positive numbers")


def case_text(case: dict[str, Any]) -> str:
    """A case of a document in one line, whatever fields it has beside the shape."""
    shape = f"{case['batch']} x {case['in_features']} -> {case['out_features']}"
    math_of = f", math={case['math']}" if case.get("math", "f32") != "f32" else ""
    data = "" if case["data"] == "kernelbench" else f", {case['data']} data"
    return f"{case['name']}, {shape}, {case['dtype']}{math_of}{data}"


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Of all contenders that both documents have on the same case."""
    before = {key: result["seconds"] for key, result in _results(old)}
    return [
        _change(key, before[key], result["seconds"])
        for key, result in _results(new)
        if key in before and before[key] and result["seconds"]
    ]


def show(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Prints the table, and returns it."""
    found = changes(old, new)
    lines = [
        (c.case, c.contender, seconds_text(c.old), seconds_text(c.new), f"{c.new / c.old:.2f}", c.verdict)
        for c in found
    ]
    title = f"Medians of {old['date'][:16]} and {new['date'][:16]}{_machines(old, new)}"
    show_table(title, COLUMNS, lines, left=("case", "contender", "verdict"))
    if not found:
        print("The two runs have no case in common.")
    return found


def chance(first: Sequence[float], second: Sequence[float]) -> float:
    """How often samples of one distribution differ as much in rank as these: the two-sided rank test.

    Of many samples by the normal approximation, without a correction for ties, which would count for a difference.
    """
    n, m = len(first), len(second)
    smaller = sum((a < b) + 0.5 * (a == b) for a in first for b in second)
    extreme = math.floor(min(smaller, n * m - smaller) + 0.5)  # a tie counts against a difference
    if n * m > MOST_PAIRS:
        return min(1.0, math.erfc((n * m / 2 - extreme - 0.5) / math.sqrt(n * m * (n + m + 1) / 6)))
    ways = sum(_orders(n, m)[: extreme + 1])
    return min(1.0, 2 * ways / math.comb(n + m, n))


@cache
def _orders(n: int, m: int) -> list[int]:
    """In how many orders of n and m samples 0, 1, 2 ... n * m pairs stand the wrong way round.

    The coefficients of the Gaussian binomial: the product of (1 - q^(m + i)) / (1 - q^i) for i from 1 to n.
    """
    ways = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            ways[u] -= ways[u - m - i]
        for u in range(i, n * m + 1):
            ways[u] += ways[u - i]
    return ways


def _change(key: tuple[str, str], old: Sequence[float], new: Sequence[float]) -> Change:
    enough = 2 / math.comb(len(old) + len(new), len(old)) <= LEVEL
    return Change(*key, statistics.median(old), statistics.median(new), chance(old, new), enough)


def _results(document: dict[str, Any]) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    return [
        ((case_text(case["case"]), result["label"]), result) for case in document["cases"] for result in case["results"]
    ]


def _machines(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The machine's peaks in both runs, where they were measured."""
    peaks = [
        [peak["flops_per_second"] for case in document["cases"] for peak in case.get("peaks", [])]
        for document in (old, new)
    ]
    if not all(peaks):
        return ""
    before, after = (statistics.median(values) / 1e9 for values in peaks)
    return f". The machine's multiply-add peak: {before:.0f} then {after:.0f} GFLOP/s"
