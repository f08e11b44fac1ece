# SPDX-License-Identifier: MIT
"""bench --compare, --plot and --results, on documents made here."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from cli import cli
from rowfold.bench import compare, gpu, plot
from rowfold.bench.report import SCHEMA
from rowfold.bench.runner import Result

pytestmark = pytest.mark.cpu_only
CASE = {"name": "max", "chain": "linear | max", "batch": 4, "in_features": 30, "out_features": 20}
CASE |= {"dtype": "float32", "data": "kernelbench", "seed": 0}


def result(label, seconds, **fields):
    return {"label": label, "seconds": seconds, "error": 1e-7, "algebraic": False, "product_only": False} | fields


def document(*results, peaks=({"flops_per_second": 1e9, "bytes_per_second": 1e9},), **fields):
    return {
        "schema": SCHEMA,
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {"cpu": "abacus", "threads": 2},
        "versions": {"rowfold": "0.0"},
        "cases": [{"case": CASE | fields, "peaks": list(peaks), "results": list(results)}],
    }


def write(path, value):
    path.write_text(json.dumps(value))
    return path


def bench(*arguments):
    return cli("bench", *arguments)


def test_the_chance_is_that_of_all_orders():
    """Against counting, over every way to deal 7 ranks to samples of 3 and 4."""
    deals = [(set(first), set(range(7)) - set(first)) for first in itertools.combinations(range(7), 3)]

    def wrong(first, second):
        u = sum(a < b for a in first for b in second)
        return min(u, 12 - u)

    for first, second in deals:
        as_extreme = sum(wrong(*deal) <= wrong(first, second) for deal in deals) / len(deals)
        assert compare.chance(list(first), list(second)) == pytest.approx(min(1, as_extreme))


def test_the_chance_keeps_its_level():
    rng = np.random.default_rng(1)
    found = [compare.chance(rng.random(6).tolist(), rng.random(6).tolist()) <= compare.LEVEL for _ in range(2000)]
    # A binomial of at most 1 %: five standard deviations above its mean.
    assert sum(found) <= 20 + 5 * math.sqrt(20)
    assert compare.chance([1.0] * 6, [1.0] * 6) == 1


def test_the_chance_of_many_samples(monkeypatch):
    """From where it is an approximation on, and right before."""
    first = [float(i) for i in range(100)]
    for apart in (0.0, 3.5, 10.5, 20.0, 21.5):
        second = [i + apart for i in first]
        exact = compare.chance(first, second)
        with monkeypatch.context() as patch:
            patch.setattr(compare, "MOST_PAIRS", 100)
            assert compare.chance(first, second) == pytest.approx(exact, rel=0.02, abs=1e-5)
    assert compare.chance(first * 4, [i + 20.0 for i in first] * 4) < 1e-9
    assert compare.chance(first * 4, first * 4) == 1


def test_changes_beyond_the_noise():
    old = document(result("a", [10, 11, 12, 13, 14]), result("b", [1, 2, 3, 4, 5]), result("c", [1.0]), result("d", []))
    new = document(result("a", [5, 6, 7, 8, 9]), result("b", [1.5, 2.5, 3.5, 4.5, 5.5]), result("c", [2.0]))
    assert [(c.contender, c.verdict) for c in compare.changes(old, new)] == [
        ("a", "faster"),
        ("b", "within the noise"),
        ("c", "too few samples to tell"),
    ]
    assert [c.verdict for c in compare.changes(new, old)][0] == "SLOWER"
    assert not compare.changes(old, document(result("a", [1.0]), batch=5))


def test_compare_prints_a_table(tmp_path):
    old = write(tmp_path / "old.json", document(result("a", [10, 11, 12, 13, 14])))
    new = write(tmp_path / "new.json", document(result("a", [5, 6, 7, 8, 9])))
    done = bench("--results", new, "--compare", old)
    assert done.returncode == 0, done.stderr
    for word in ("max, 4 x 30 -> 20, float32", "0.58", "faster", "1 then 1 GFLOP/s"):
        assert word in done.stdout
    other = write(tmp_path / "other.json", document(result("a", [1.0]), batch=5))
    assert "no case in common" in bench("--results", other, "--compare", old).stdout


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot(tmp_path, ending):
    pytest.importorskip("matplotlib")
    results = [
        result("rowfold (none)", [1e-3, 2e-3, 3e-3]),
        result("rowfold (algebraic)", [1e-5], algebraic=True, error=0.0),
        result("OpenBLAS", [2e-3], product_only=True, error=None),
        result("a stranger", [2e-3]),
        result("absent", []),
    ]
    cpu = write(tmp_path / "cpu.json", document(*results))
    gpu = write(tmp_path / "gpu.json", document(results[0], peaks=(), math="tf32", dtype="bfloat16"))
    for name, given in {"cpu": [cpu], "gpu": [gpu], "both": [cpu, gpu]}.items():
        picture = tmp_path / f"{name}.{ending}"
        done = bench(*itertools.chain(*(("--results", path) for path in given)), "--plot", picture)
        assert done.returncode == 0, done.stderr
        assert picture.stat().st_size > 10000


def drawn(*documents):
    """The axes of the picture of these documents."""
    pytest.importorskip("matplotlib")
    figures = []

    class Keep(plot.require(Path("x.png")).Figure):
        def savefig(self, path):
            figures.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plot.require(Path("x.png")), "Figure", Keep)
        plot.draw(documents, Path("x.png"))
    return figures[0].axes


def points(axes):
    """The values of the markers, from the top down."""
    markers = [line for line in axes.lines if line.get_marker() not in ("None", "|") and len(line.get_xdata())]
    found = [(line.get_ydata()[0], line.get_xdata()[0]) for line in markers]
    return [x for _, x in sorted(found)]


def labels(axes):
    return [label.get_text() for _, label in sorted(zip(axes.get_yticks(), axes.get_yticklabels()))]


def test_the_plot_shows_what_was_measured():
    seconds = [1e-3, 2e-3, 5e-3]
    times, relative, errors = drawn(document(result("rowfold (none)", seconds), result("absent", [])))
    (bar,) = times.containers
    assert bar.lines[0].get_xdata() == pytest.approx([2.0])
    (spread,) = bar.lines[2][0].get_segments()
    assert spread[:, 0] == pytest.approx([1.0, 5.0])
    assert points(relative) == [1]
    assert points(errors) == pytest.approx([1e-7])


@pytest.mark.parametrize(("threads", "words"), [(1, "1 thread"), (2, "2 threads")])
def test_the_plot_says_where_it_was_measured(threads, words):
    shown = document(result("rowfold (none)", [1e-3]))
    shown["machine"]["threads"] = threads
    assert plot._where(shown) == f"rowfold 0.0 on abacus, {words}, 2026-01-02"


def test_the_roofline_is_there_where_cases_differ_in_it():
    small, large = (document(result("rowfold (none)", [2e-3]), batch=batch) for batch in (4, 8))
    assert len(drawn(small)) == len(drawn(small, small)) == 3
    *_, roofline = drawn(small, large)
    point, other, roof = roofline.lines
    assert point.get_xdata() == pytest.approx([2 * 4 / 4])
    assert point.get_ydata() == pytest.approx([2 * 4 * 30 * 20 / 2e-3 / 1e9])
    assert other.get_xdata() == pytest.approx([2 * 8 / 4])
    assert roof.get_ydata()[1:] == pytest.approx([1.0, 1.0])
    unmeasured = document(result("rowfold (none)", []), batch=8)
    assert len(drawn(small, unmeasured)) == 3


@pytest.mark.parametrize("spread", [1.0, 1.01, 1.5, 3.0, 40.0, 150.0, 1e4, 1e11])
@pytest.mark.parametrize("start", [1e-6, 3.3e-4, 9.7e-3, 2.0])
def test_every_axis_has_some_numbers_and_not_too_many(start, spread):
    first = result("rowfold (none)", [start], error=start * 1e-4)
    second = result("numpy", [start * min(spread, 1e4)], error=start * spread * 1e-4)
    for axes in drawn(document(first, second)):
        low, high = axes.get_xlim()
        shown = [at for at in axes.get_xticks() if low <= at <= high]
        assert 2 <= len(shown) <= 12
        texts = [text.get_text() for at, text in zip(axes.get_xticks(), axes.get_xticklabels()) if low <= at <= high]
        assert all(float(text) > 0 for text in texts)
        assert all(low < x < high for x in points(axes))
        assert not overlapping(axes.xaxis)


def overlapping(axis):
    """The neighbours among the numbers of an axis that are written over each other."""
    importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(axis.figure).draw()
    low, high = axis.get_view_interval()
    shown = [label for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels()) if low <= at <= high]
    boxes = [(label.get_text(), label.get_window_extent()) for label in shown]
    return [(text, other) for (text, box), (other, next_box) in zip(boxes, boxes[1:]) if box.overlaps(next_box)]


@pytest.mark.parametrize("batch", [1, 30, 3000])
@pytest.mark.parametrize("share", [1.0, 0.5, 1e-3])
def test_the_numbers_beside_the_roof_can_be_read(batch, share):
    """However near the points are to the roof and to each other, two numbers or more on either axis."""
    rate = 2.0 * 30 * 20 / (share * 1e9)
    runs = [document(result("rowfold (none)", [rate * rows]), batch=rows) for rows in (batch, 2 * batch)]
    *_, roofline = drawn(*runs)
    for axis in (roofline.xaxis, roofline.yaxis):
        low, high = axis.get_view_interval()
        assert 2 <= sum(low <= at <= high for at in axis.get_ticklocs()) <= 12
        assert not overlapping(axis)
    # What the two parts of the roof are called is written inside the picture and not over its line.
    roof = roofline.lines[-1].get_path().transformed(roofline.transData)
    for text in roofline.texts:
        box = text.get_window_extent()
        assert roofline.bbox.count_contains(box.corners()) == 4
        assert not roof.intersects_bbox(box, filled=False)


def gpu_document(device, *cases):
    """As bench/gpu.py writes it: (dtype, math, batch), the medians, the errors, whether the second was a rewrite's."""
    found = []
    for (dtype, math_of, batch), medians, errors, algebraic in cases:
        case = gpu.GpuCase(**(CASE | {"dtype": dtype, "batch": batch}), math=math_of)
        names = ("rowfold (none)", "rowfold (algebraic)", "PyTorch eager", "torch.compile")
        results = [Result(name, [m], error) for name, m, error in zip(names, medians, errors)]
        results[1].algebraic = algebraic
        found.append(gpu.GpuResult(case, results, [], 256, device).as_dict())
    return document() | {"cases": found}


def test_the_plot_of_a_gpu():
    """Grouped by chain and size, no roof where no peak was measured, relative times without what a rewrite spared."""
    slow, fast = (2e-3, 1e-4, 6e-3, 5e-3), (1e-3, 9e-4, 2e-3, 5e-4)
    run = gpu_document(
        "an accelerator, PyTorch 0",
        (("float32", "f32", 8), slow, (1e-7, 2e-7, 3e-7, 4e-7), True),
        (("bfloat16", "f32", 1), fast, (1e-3, 1e-3, 2e-3, 0.0), False),
        (("float32", "tf32", 8), fast, (1e-4, 1e-4, 2e-4, 2e-4), False),
        (("float32", "f32", 1), fast, (1e-7, 1e-7, 2e-7, 2e-7), False),
    )
    times, relative, errors = drawn(run)
    assert labels(times) == ["1 row\nfloat32", "8 rows\nfloat32", "1 row\nbfloat16", "8 rows\nfloat32, tf32"]
    assert [text.get_text() for text in times.texts] == ["max, 30 to 20"]
    assert points(times)[4:8] == pytest.approx([2, 0.1, 6, 5])  # ms
    assert points(relative) == pytest.approx([1, 0.9, 2, 0.5, 1, 3, 2.5, 1, 0.9, 2, 0.5, 1, 0.9, 2, 0.5])
    # An error of 0 has no place on a logarithmic axis: it is drawn a decade or more below the least, and says so.
    assert points(errors)[11] <= 1e-8
    assert [text.get_text() for text in errors.texts] == ["0"]


@pytest.mark.parametrize("batch", [1, 4, 4096])
def test_the_roof_is_over_the_points(batch):
    """It rises to the corner, here at one operation a byte, and is level from there, wherever the points are."""
    *_, roofline = drawn(*(document(result("rowfold (none)", [1.0]), batch=rows) for rows in (batch, 2 * batch)))
    *shown, roof = roofline.lines
    low, corner, high = roof.get_xdata()
    reach = [point.get_xdata()[0] for point in shown]
    assert low < min(corner, *reach) and max(corner, *reach) < high
    assert corner == pytest.approx(1)
    assert roof.get_ydata() == pytest.approx([low, 1, 1])


def test_devices_are_kept_apart():
    slow, errors = (2e-3, 1e-3, 6e-3, 5e-3), (1e-7,) * 4
    run = gpu_document("an accelerator", (("float32", "f32", 4), slow, errors, False))
    own = [document(result("rowfold (none)", [1e-3]), batch=batch) for batch in (4, 8)]
    times, *_, roofline = drawn(*own, run)
    assert [text.get_text() for text in times.texts] == ["max, 30 to 20, CPU", "max, 30 to 20, an accelerator"]
    assert len(roofline.lines) == 3  # two points below one roof: those of the other device would mislead


def test_refusals_are_a_sentence(tmp_path):
    good = write(tmp_path / "good.json", document(result("a", [1.0])))
    other = write(tmp_path / "other.json", {"schema": "else"})
    text = tmp_path / "text.json"
    text.write_text("{")
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    flat = write(tmp_path / "flat.json", document() | {"cases": 3})
    undated = write(tmp_path / "undated.json", {k: v for k, v in document().items() if k != "date"})
    slow = write(tmp_path / "slow.json", document(result("a", ["1 s"])))
    for arguments, word in [
        (["--results", tmp_path / "none.json", "--compare", good], "none.json: No such file"),
        (["--results", deep, "--compare", good], "deep.json: not JSON that rowfold bench writes: it is nested"),
        (["--results", good, "--compare", flat], "flat.json: not what rowfold bench --json writes: 'int'"),
        (["--results", good, "--compare", undated], "undated.json: not what rowfold bench --json writes: 'date' is"),
        (["--results", slow, "--compare", good], "slow.json: not what rowfold bench --json writes: a result of 'max"),
        (["--results", text, "--compare", good], "text.json: not JSON"),
        (["--results", good, "--compare", other], "other.json: not a document of schema rowfold-bench/1"),
        (["--json", tmp_path / "none" / "x.json"], "none is not a directory"),
        (["--results", good], "--results goes with --plot or --compare"),
        (["--results", good, "--compare", good, "--markdown", "tables.md"], "--results measures nothing"),
    ]:
        done = bench(*arguments)
        assert done.returncode == 1
        assert word in done.stderr
        assert "Traceback" not in done.stderr


def test_without_matplotlib_nothing_is_measured(tmp_path, monkeypatch):
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    done = bench("--plot", tmp_path / "x.png")
    assert done.returncode == 1
    assert done.stderr == "rowfold: --plot needs matplotlib, which is not installed: pip install matplotlib\n"


def test_a_picture_of_unknown_type_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    good = write(tmp_path / "good.json", document(result("a", [1.0])))
    done = bench("--results", good, "--plot", tmp_path / "x.wat")
    assert done.returncode == 1
    assert done.stderr.startswith("rowfold: ")
    assert "wat" in done.stderr and ".png" in done.stderr
    assert bench("--plot", tmp_path / "y.wat").stdout == ""  # nothing is measured first
