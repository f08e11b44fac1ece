# SPDX-License-Identifier: MIT
"""The results as a table on the screen and as a JSON document."""

from __future__ import annotations

import datetime
import importlib
import platform
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .machine import cores, cpu_name
from .runner import CaseResult, Result

SCHEMA = "rowfold-bench/1"
WIDE = 200
TEXT_COLUMNS = ("contender", "notes")
COLUMNS = (
    "contender",
    "median",
    "best",
    "x first",
    "rate",
    "of the bound",
    "at best",
    "extra memory",
    "largest error",
    "notes",
)


def about(schema: str, threads: int) -> dict[str, Any]:
    """How, when and where a run was, for JSON."""
    import rowfold

    return {
        "schema": schema,
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
    }


def document(results: Sequence[CaseResult], threads: int) -> dict[str, Any]:
    """All there is to know of a run, for JSON."""
    return {**about(SCHEMA, threads), "cases": [result.as_dict() for result in results]}


def rows(result: CaseResult) -> list[tuple[str, ...]]:
    """The table of one case as text, a row for each contender."""
    return [_row(result, entry) for entry in result.results]


def _row(case: CaseResult, result: Result) -> tuple[str, ...]:
    if not result.seconds:
        return (result.label, "-", *[""] * 7, result.missing or "")
    median = result.median
    what = "product alone" if result.product_only else "a rewrite removed work" if result.algebraic else ""
    notes = ", ".join(filter(None, [what, result.about.get("backend", ""), result.about.get("core", "")]))
    first = case.results[0]
    if result.algebraic:
        rate = ""
    elif case.arithmetic_bound:
        rate = f"{case.case.flops / median / 1e9:.0f} GFLOP/s"
    else:
        rate = f"{case.case.bytes / median / 1e9:.1f} GB/s"
    return (
        result.label,
        seconds_text(median),
        seconds_text(min(result.seconds)),
        f"{median / first.median:.2f}" if first.seconds else "",
        rate,
        _percent(case.fraction(result)),
        _percent(case.best_fraction(result)),
        _mebibytes(result.extra_memory_bytes),
        "" if result.error is None else f"{result.error:.1e}",
        notes,
    )


def title(result: CaseResult) -> str:
    """One line above a case's table."""
    rows = f"errors: the largest of {result.error_rows} row{'s' * (result.error_rows != 1)}"
    if not result.peaks:
        return f"{result.case.label}; {rows}"
    bound = "arithmetic" if result.arithmetic_bound else "reading W"
    usual, best = result.peak(), result.peak(max)
    flops = f"{usual.flops_per_second / 1e9:.0f} GFLOP/s (best {best.flops_per_second / 1e9:.0f})"
    read = f"{usual.bytes_per_second / 1e9:.1f} GB/s (best {best.bytes_per_second / 1e9:.1f})"
    return f"{result.case.label}. Machine: {flops}, {read}; the bound is {bound}; {rows}"


def show(result: CaseResult) -> None:
    """Prints the table of one case."""
    show_table(title(result), COLUMNS, rows(result), left=TEXT_COLUMNS)


def show_table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]], left: Sequence[str]) -> None:
    """Prints a table, with rich where it is installed. ``left`` names the columns that hold text."""
    try:
        rich: Any = importlib.import_module("rich.table")
        console: Any = importlib.import_module("rich.console")
    except ImportError:
        _show_plainly(title, columns, lines)
        return
    drawn = rich.Table(title=title, title_justify="left")
    for column in columns:
        drawn.add_column(column, justify="left" if column in left else "right")
    for line in lines:
        drawn.add_row(*line)
    # Where no terminal says how wide it is, nothing is to be cut off. Reasons may hold brackets, which are no markup.
    console.Console(width=None if sys.stdout.isatty() else WIDE, markup=False).print(drawn)


def _show_plainly(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(columns, *lines)]
    print(f"\n{title}")
    for line in (columns, *lines):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def markdown(results: Sequence[CaseResult], threads: int) -> str:
    """The tables for a document, with the machine and the versions they were measured on."""
    run = about(SCHEMA, threads)
    versions = run["versions"]
    parts = [
        f"`{shlex.join(run['command'])}` on {results[0].where(threads)}, {run['date'][:10]}: "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + "."
    ]
    for result in results:
        rule = ["---" if column in TEXT_COLUMNS else "---:" for column in COLUMNS]
        lines = [_markdown_row(line) for line in (COLUMNS, rule, *rows(result))]
        parts.append("\n".join([f"**{title(result)}**", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def seconds_text(value: float) -> str:
    """Three digits and a unit."""
    for scale, unit in ((1, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}%"


def _mebibytes(value: int | None) -> str:
    return "" if value is None else f"{value / 2**20:.1f} MiB"
