"""The results as a table on the screen and as a JSON document."""

from __future__ import annotations

import datetime
import importlib
import platform
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .machine import cores, cpu_name
from .runner import CaseResult, Result

SCHEMA = "rowfold-bench/1"
COLUMNS = ("contender", "median", "spread", "rate", "of the bound", "extra memory", "largest error", "notes")


def document(results: Sequence[CaseResult], threads: int) -> dict[str, Any]:
    """All there is to know of a run, for JSON."""
    import rowfold

    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": ["rowfold", *sys.argv[1:]],
        "machine": {
            "cpu": cpu_name(),
            "cores": cores(),
            "threads": threads,
            "system": platform.platform(),
        },
        "versions": {
            "rowfold": rowfold.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "cases": [result.as_dict() for result in results],
    }


def rows(result: CaseResult) -> list[tuple[str, ...]]:
    """The table of one case as text, a row for each contender."""
    return [_row(result, entry) for entry in result.results]


def _row(case: CaseResult, result: Result) -> tuple[str, ...]:
    if not result.seconds:
        return (result.label, "-", "", "", "", "", "", result.missing or "")
    median = result.median
    spread = (max(result.seconds) - min(result.seconds)) / median
    what = "product alone" if result.product_only else "a rewrite removed work" if result.algebraic else ""
    notes = ", ".join(filter(None, [what, result.about.get("backend", ""), result.about.get("core", "")]))
    rate = (
        f"{case.case.flops / median / 1e9:.0f} GFLOP/s"
        if case.arithmetic_bound
        else f"{case.case.bytes / median / 1e9:.1f} GB/s"
    )
    fraction = case.fraction(result)
    return (
        result.label,
        _seconds(median),
        f"{100 * spread:.0f}%",
        "" if fraction is None else rate,
        "" if fraction is None else f"{100 * fraction:.0f}%",
        _mebibytes(result.extra_memory_bytes),
        "" if result.error is None else f"{result.error:.1e}",
        notes,
    )


def title(result: CaseResult) -> str:
    """One line above a case's table."""
    if not result.peaks:
        return result.case.label
    bound = "arithmetic" if result.arithmetic_bound else "reading W"
    flops, read = result.flops_per_second / 1e9, result.bytes_per_second / 1e9
    return f"{result.case.label}. Machine: {flops:.0f} GFLOP/s, {read:.1f} GB/s; the bound is {bound}"


def show(result: CaseResult) -> None:
    """Prints the table of one case, with rich where it is installed."""
    table = rows(result)
    try:
        rich_table: Any = importlib.import_module("rich.table")
        console: Any = importlib.import_module("rich.console").Console(width=None if sys.stdout.isatty() else 160)
    except ImportError:
        print(f"\n{title(result)}")
        widths = [max(map(len, column)) for column in zip(COLUMNS, *table)]
        for line in (COLUMNS, *table):
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
        return
    drawn = rich_table.Table(title=title(result), title_justify="left")
    for column in COLUMNS:
        drawn.add_column(column, justify="left" if column in ("contender", "notes") else "right")
    for line in table:
        drawn.add_row(*line)
    console.print(drawn)


def _seconds(value: float) -> str:
    for scale, unit in ((1, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def _mebibytes(value: int | None) -> str:
    return "" if value is None else f"{value / 2**20:.1f} MiB"
