"""The picture of a run: times beside competitors, errors against float64, and the roofline with the points on it."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
LEAST_ERROR = 1e-18  # where an error of 0 is drawn
ROW_INCHES = 0.14  # of one contender
ROOFLINE_INCHES = 4.0


def require() -> Any:
    """matplotlib.figure. Raises UnavailableError with what to do."""
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UnavailableError("--plot needs matplotlib, which is not installed: pip install matplotlib") from None


def draw(documents: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the cases of all documents into one picture, of the type that the file's name says."""
    cases = [case for document in documents for case in document["cases"]]
    labels = list(dict.fromkeys(result["label"] for case in cases for result in case["results"] if result["seconds"]))
    rows = sum(1 + len(_measured(case)) for case in cases)
    above = max(2.5, ROW_INCHES * rows)
    figure = require().Figure(figsize=(11, above + ROOFLINE_INCHES + 1.8), layout="constrained", dpi=110)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.6, 1), height_ratios=(above, ROOFLINE_INCHES))
    times = figure.add_subplot(grid[0, 0])
    errors = figure.add_subplot(grid[0, 1], sharey=times)
    roofline = figure.add_subplot(grid[1, :])
    _times_and_errors(times, errors, cases, labels)
    _roofline(roofline, cases, labels)
    handles = [_handle(times, label, labels) for label in labels]
    figure.legend(handles=handles, loc="outside upper center", ncols=max(1, len(labels)), frameon=False)
    figure.supxlabel("\n".join(dict.fromkeys(_where(document) for document in documents)), fontsize=8, color="#555555")
    try:
        figure.savefig(path)
    except ValueError as error:  # a type that matplotlib does not know
        raise UnavailableError(f"{path}: {error}") from None
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


def _lines(cases: Sequence[dict[str, Any]]) -> Iterator[tuple[float, float, dict[str, Any]]]:
    """For each case the height of its first contender and of its last, from the top down."""
    at = 0.0
    for case in cases:
        count = len(_measured(case))
        yield at, at + max(count - 1, 0), case
        at += count + 1


def _times_and_errors(times: Any, errors: Any, cases: Sequence[dict[str, Any]], labels: Sequence[str]) -> None:
    ticks = []
    for index, (top, bottom, case) in enumerate(_lines(cases)):
        ticks.append(((top + bottom) / 2, _case(case["case"])))
        if index % 2:
            for axes in (times, errors):
                axes.axhspan(top - 1, bottom + 1, color="#f3f3f3", zorder=0, linewidth=0)
        for offset, result in enumerate(_measured(case)):
            colour, marker = _style(result["label"], labels)
            drawn = {"color": colour, "marker": marker, "markersize": 5.5, "linestyle": "none"}
            if result["algebraic"] or result["product_only"]:
                drawn["markerfacecolor"] = "white"
            seconds = result["seconds"]
            median = statistics.median(seconds)
            spread = [[1e3 * (median - min(seconds))], [1e3 * (max(seconds) - median)]]
            times.errorbar(1e3 * median, top + offset, xerr=spread, capsize=2.5, elinewidth=1.1, **drawn)
            if result["error"] is not None:
                errors.plot(max(result["error"], LEAST_ERROR), top + offset, **drawn)
    times.set_yticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=8)
    times.invert_yaxis()
    times.set_ylim(bottom + 1, -1)
    errors.tick_params(labelleft=False)
    for axes in (times, errors):
        axes.set_xscale("log")
        axes.grid(axis="x", which="both", color="#e2e2e2", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
    _plain_numbers(times.xaxis)
    times.set_title("Time of a call", fontsize=10)
    times.set_xlabel(
        "ms: median, least and greatest sample\nhollow: less work (after a rewrite, or the product alone)", fontsize=8
    )
    errors.set_title("Error", fontsize=10)
    errors.set_xlabel("largest relative error of sampled rows\nagainst float64", fontsize=8)


def _roofline(axes: Any, cases: Sequence[dict[str, Any]], labels: Sequence[str]) -> None:
    reach = []
    cases = [
        case for case in cases if case.get("peaks")
    ] or cases  # points of one device under the roof of another mislead
    for case in cases:
        flops, size = _work(case["case"])
        reach.append(flops / size)
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
    peaks = [peak for case in cases for peak in case.get("peaks", [])]
    if peaks:
        flops = statistics.median(peak["flops_per_second"] for peak in peaks) / 1e9
        read = statistics.median(peak["bytes_per_second"] for peak in peaks) / 1e9
        low, corner, high = min(reach) / 2, flops / read, max(max(reach), flops / read) * 2
        axes.plot([low, corner, high], [low * read, flops, flops], color="black", linewidth=1.2, zorder=1)
        style = {"fontsize": 8, "color": "black", "textcoords": "offset points"}
        axes.annotate(f"{flops:.0f} GFLOP/s", (high, flops), xytext=(-4, 5), ha="right", **style)
        axes.annotate(f"{read:.1f} GB/s", (low, low * read), xytext=(14, 0), ha="left", va="center", **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_numbers(axes.xaxis)
    _plain_numbers(axes.yaxis)
    axes.grid(which="both", color="#e2e2e2", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title("Roofline" if peaks else "Rate (no peak was measured on this device)", fontsize=10)
    axes.set_xlabel("operations of the product for each byte of W", fontsize=8)
    axes.set_ylabel("GFLOP/s", fontsize=8)


def _plain_numbers(axis: Any) -> None:
    """10 and 100 rather than powers of ten."""
    axis.set_major_formatter(importlib.import_module("matplotlib.ticker").FuncFormatter(lambda value, _: f"{value:g}"))


def _work(case: dict[str, Any]) -> tuple[float, float]:
    """Operations of the product, and bytes of W."""
    weights = float(case["in_features"]) * case["out_features"]
    return 2 * weights * case["batch"], weights * numpy_dtype(parse_dtype(case["dtype"], "dtype")).itemsize


def _case(case: dict[str, Any]) -> str:
    mode = f", {case['math']}" if case.get("math", "f32") != "f32" else ""
    shape = f"{case['batch']} x {case['in_features']} to {case['out_features']}"
    return f"{case['name']}\n{shape}\n{case['dtype']}{mode}"


def _where(document: dict[str, Any]) -> str:
    machine = document["machine"]
    devices = {case["device"] for case in document["cases"] if case.get("device")}
    where = ", ".join(sorted(devices)) or f"{machine['cpu']}, {machine['threads']} threads"
    return f"rowfold {document['versions']['rowfold']} on {where}, {document['date'][:10]}"
