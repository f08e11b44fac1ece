# SPDX-License-Identifier: MIT
"""The picture of a run: times beside competitors, absolute and relative, errors against float64, and the roofline.

The roofline has the points of those devices whose peaks the run measured.
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..arrays import numpy_dtype, parse_dtype
from ..errors import FileError, UnavailableError

# Okabe and Ito's colours, which those who see few colours can tell apart, and a shape each.
STYLES = {
    "rowfold (none)": ("#0072B2", "o"),
    "rowfold (exact)": ("#56B4E9", "p"),
    "rowfold (algebraic)": ("#56B4E9", "D"),
    "numpy": ("#999999", "s"),
    "OpenBLAS": ("#009E73", "v"),
    "PyTorch eager": ("#D55E00", "^"),
    "torch.compile": ("#E69F00", "<"),
}
OTHERS = (("#CC79A7", "X"), ("#000000", "P"))
GRID = "#e2e2e2"
BAND = "#f3f3f3"
ROW_INCHES = 0.13  # of one contender
BETWEEN_CASES = 1.0  # rows
HEADING = 1.6  # rows
ROOFLINE_INCHES = 4.0
LEAST_RANGE = 5.0  # of a logarithmic axis: two of 1, 2 and 5 times a power of ten lie in it
# What is written on an axis whose ends are apart by less than this factor: these times powers of ten. Errors take more
# room: 2e-08.
NUMBERS = ((8, (1, 1.5, 2, 3, 5)), (300, (1, 2, 5)), (math.inf, (1,)))
WIDE_NUMBERS = ((20, (1, 2, 5)), (300, (1, 3)), (math.inf, (1,)))
MOST_POWERS = 6  # of ten


class Group(NamedTuple):
    """Cases of one chain, size of W and device, from the top down, each with the height of its first contender."""

    title: str
    top: float
    bottom: float
    cases: list[tuple[float, dict[str, Any]]]


def require(path: Path) -> Any:
    """matplotlib.figure. Raises UnavailableError with what to do, also for a file of a type that it does not write."""
    try:
        figure = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UnavailableError("--plot needs matplotlib, which is not installed: pip install matplotlib") from None
    types = figure.Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in types:
        raise UnavailableError(f"--plot {path}: expected a name that ends in one of .{', .'.join(sorted(types))}")
    return figure


def draw(documents: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the cases of all documents into one picture, of the type that the file's name says."""
    cases = [case for document in documents for case in document["cases"]]
    labels = list(dict.fromkeys(result["label"] for case in cases for result in _measured(case)))
    groups = _groups(cases)
    above = max(2.5, ROW_INCHES * (groups[-1].bottom if groups else 0))
    # Points of a device whose peaks are not known, under the roof of another, would mislead. Points that are all above
    # each other say no more than the table's share of the bound.
    roofed = [case for case in cases if case.get("peaks") and _measured(case)]
    if len({_intensity(case["case"]) for case in roofed}) < 2:
        roofed = []
    below = ROOFLINE_INCHES if roofed else 0.0
    figure = require(path).Figure(figsize=(12, above + below + 1.8), layout="constrained", dpi=110)
    rows = [above, below] if roofed else [above]
    grid = figure.add_gridspec(len(rows), 3, width_ratios=(1.5, 1, 1), height_ratios=rows)
    times = figure.add_subplot(grid[0, 0])
    relative = figure.add_subplot(grid[0, 1], sharey=times)
    errors = figure.add_subplot(grid[0, 2], sharey=times)
    _bands((times, relative, errors), groups)
    _times(times, groups, labels)
    _relative(relative, groups, labels)
    _errors(errors, groups, labels)
    _readable(times.xaxis)
    _readable(relative.xaxis)
    _readable(errors.xaxis, WIDE_NUMBERS)
    if roofed:
        _roofline(figure.add_subplot(grid[1, :]), roofed, labels)
    handles = [_handle(times, label, labels) for label in labels]
    figure.legend(handles=handles, loc="outside upper center", ncols=max(1, len(labels)), frameon=False)
    figure.supxlabel("\n".join(dict.fromkeys(_where(document) for document in documents)), fontsize=8, color="#555555")
    try:
        figure.savefig(path)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None


def _style(label: str, labels: Sequence[str]) -> tuple[str, str]:
    if label in STYLES:
        return STYLES[label]
    strange = [other for other in labels if other not in STYLES]
    return OTHERS[strange.index(label) % len(OTHERS)]


def _handle(axes: Any, label: str, labels: Sequence[str]) -> Any:
    colour, marker = _style(label, labels)
    (handle,) = axes.plot([], [], color=colour, marker=marker, linestyle="none", label=label)
    return handle


def _measured(case: dict[str, Any]) -> list[dict[str, Any]]:
    return [result for result in case["results"] if result["seconds"]]


def _groups(cases: Sequence[dict[str, Any]]) -> list[Group]:
    """All cases by chain, size and device, in the order of their first cases; in a group by type, then by batch."""
    devices = {case.get("device", "") for case in cases}
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for case in cases:
        about = case["case"]
        key = (about["name"], about["in_features"], about["out_features"], case.get("device", ""))
        found.setdefault(key, []).append(case)
    groups, at = [], 0.0
    for (name, in_features, out_features, device), members in found.items():
        top, placed = at, []
        at += HEADING
        types = list(dict.fromkeys(_type(case["case"]) for case in members))
        for case in sorted(members, key=lambda c: (types.index(_type(c["case"])), c["case"]["batch"])):
            placed.append((at, case))
            at += max(len(_measured(case)), 1) - 1 + BETWEEN_CASES + 1
        where = f", {device or 'CPU'}" if len(devices) > 1 else ""
        groups.append(Group(f"{name}, {in_features} to {out_features}{where}", top, at - BETWEEN_CASES + 0.3, placed))
    return groups


def _bands(panels: Sequence[Any], groups: Sequence[Group]) -> None:
    """What the panels share: a band for each group, its heading, a label for each case."""
    times = panels[0]
    ticks: list[tuple[float, str]] = []
    for index, group in enumerate(groups):
        if index % 2:
            for axes in panels:
                axes.axhspan(group.top - 0.3, group.bottom, color=BAND, zorder=0, linewidth=0)
        heading = {"fontsize": 8.5, "fontweight": "bold", "ha": "left", "va": "center"}
        times.text(0.01, group.top + 0.4, group.title, transform=times.get_yaxis_transform(), **heading)
        for first, case in group.cases:
            ticks.append((first + (max(len(_measured(case)), 1) - 1) / 2, _case(case["case"])))
    times.set_yticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=8)
    times.set_ylim(groups[-1].bottom if groups else 1, -0.3)
    for axes in panels:
        axes.set_xscale("log")
        axes.grid(axis="x", which="both", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0, labelleft=axes is times)


def _points(groups: Sequence[Group], labels: Sequence[str]) -> list[tuple[float, dict[str, Any], dict[str, Any], Any]]:
    """Of each measured contender the height, its case, its result, and how it is drawn: hollow where it did less."""
    points = []
    for group in groups:
        for first, case in group.cases:
            for offset, result in enumerate(_measured(case)):
                colour, marker = _style(result["label"], labels)
                drawn = {"color": colour, "marker": marker, "markersize": 5.5, "linestyle": "none"}
                if result["algebraic"] or result["product_only"]:
                    drawn["markerfacecolor"] = "white"
                points.append((first + offset, case, result, drawn))
    return points


def _times(axes: Any, groups: Sequence[Group], labels: Sequence[str]) -> None:
    for at, _, result, drawn in _points(groups, labels):
        seconds = result["seconds"]
        median = statistics.median(seconds)
        spread = [[1e3 * (median - min(seconds))], [1e3 * (max(seconds) - median)]]
        axes.errorbar(1e3 * median, at, xerr=spread, capsize=2.5, elinewidth=1.1, **drawn)
    axes.set_title("Time of a call", fontsize=10)
    axes.set_xlabel(
        "ms: median, least and greatest sample\nhollow: less work (after a rewrite, or the product alone)", fontsize=8
    )


def _relative(axes: Any, groups: Sequence[Group], labels: Sequence[str]) -> None:
    """Medians over that of the case's first contender, rowfold's, without those that a rewrite spared the work."""
    for at, case, result, drawn in _points(groups, labels):
        first = case["results"][0]
        if first["seconds"] and not first["algebraic"] and not result["algebraic"]:
            axes.plot(statistics.median(result["seconds"]) / statistics.median(first["seconds"]), at, **drawn)
    axes.axvline(1, color="black", linewidth=0.8, zorder=1)
    axes.set_title("Relative", fontsize=10)
    axes.set_xlabel("time over that of the first contender:\nto the right of 1 is slower", fontsize=8)


def _errors(axes: Any, groups: Sequence[Group], labels: Sequence[str]) -> None:
    points = [point for point in _points(groups, labels) if isinstance(point[2]["error"], (int, float))]
    known = [result["error"] for _, _, result, _ in points if result["error"] > 0]
    nothing = 10.0 ** (math.floor(math.log10(min(known))) - 1) if known else 1e-18
    for at, _, result, drawn in points:
        axes.plot(result["error"] or nothing, at, **drawn)
        if not result["error"]:
            axes.annotate("0", (nothing, at), xytext=(6, 0), textcoords="offset points", fontsize=7, va="center")
    axes.set_title("Error", fontsize=10)
    axes.set_xlabel("largest relative error of sampled rows\nagainst float64", fontsize=8)


def _roofline(axes: Any, cases: Sequence[dict[str, Any]], labels: Sequence[str]) -> None:
    reach = []
    for case in cases:
        flops, size = _work(case["case"])
        reach.append(_intensity(case["case"]))
        for result in _measured(case):
            if not result["algebraic"]:
                colour, marker = _style(result["label"], labels)
                fill = "white" if result["product_only"] else colour
                rate = flops / statistics.median(result["seconds"]) / 1e9
                axes.plot(
                    flops / size,
                    rate,
                    color=colour,
                    marker=marker,
                    markersize=6,
                    linestyle="none",
                    markerfacecolor=fill,
                )
    peaks = [peak for case in cases for peak in case["peaks"]]
    flops = statistics.median(peak["flops_per_second"] for peak in peaks) / 1e9
    read = statistics.median(peak["bytes_per_second"] for peak in peaks) / 1e9
    corner = flops / read
    low, high = min(*reach, corner) / 2, max(*reach, corner) * 2
    axes.plot([low, corner, high], [low * read, flops, flops], color="black", linewidth=1.2, zorder=1)
    style = {"fontsize": 8, "color": "black", "textcoords": "offset points"}
    axes.annotate(f"{flops:.0f} GFLOP/s", (high, flops), xytext=(-4, 5), ha="right", **style)
    axes.annotate(f"{read:.1f} GB/s", (low, low * read), xytext=(0, -6), ha="left", va="top", **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _readable(axes.xaxis)
    _readable(axes.yaxis)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title("Roofline", fontsize=10)
    axes.set_xlabel("operations of the product for each byte of W", fontsize=8)
    axes.set_ylabel("GFLOP/s", fontsize=8)


def _readable(axis: Any, numbers: Sequence[tuple[float, tuple[float, ...]]] = NUMBERS) -> None:
    """Puts at least two numbers on a logarithmic axis, however near its points are to each other, and not too many."""
    low, high = axis.get_view_interval()
    if high < LEAST_RANGE * low:
        middle, half = math.sqrt(low * high), math.sqrt(LEAST_RANGE)
        low, high = middle / half, middle * half
        axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})
    subs = next(subs for most, subs in numbers if high < most * low)
    axis.set_major_locator(_ticker().LogLocator(subs=subs, numticks=MOST_POWERS))
    axis.set_minor_locator(_ticker().NullLocator())
    # 10 and 100 rather than powers of ten.
    axis.set_major_formatter(_ticker().FuncFormatter(lambda value, _: f"{value:g}"))


def _ticker() -> Any:
    return importlib.import_module("matplotlib.ticker")


def _work(case: dict[str, Any]) -> tuple[float, float]:
    """Operations of the product, and bytes of W."""
    weights = float(case["in_features"]) * case["out_features"]
    return 2 * weights * case["batch"], weights * numpy_dtype(parse_dtype(case["dtype"], "dtype")).itemsize


def _intensity(case: dict[str, Any]) -> float:
    flops, size = _work(case)
    return flops / size


def _type(case: dict[str, Any]) -> str:
    math_of = case.get("math", "f32")
    return case["dtype"] if math_of == "f32" else f"{case['dtype']}, {math_of}"


def _case(case: dict[str, Any]) -> str:
    data = "" if case["data"] == "kernelbench" else f"\n{case['data']} data"
    return f"{case['batch']} row{'' if case['batch'] == 1 else 's'}\n{_type(case)}{data}"


def _where(document: dict[str, Any]) -> str:
    machine = document["machine"]
    devices = {case["device"] for case in document["cases"] if case.get("device")}
    where = (
        ", ".join(sorted(devices)) or f"{machine['cpu']}, {machine['threads']} thread{'s' * (machine['threads'] != 1)}"
    )
    return f"rowfold {document['versions']['rowfold']} on {where}, {document['date'][:10]}"
