# SPDX-License-Identifier: MIT
"""What tests and tools promise about themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import spread

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import graph  # noqa: E402
import mutate  # noqa: E402
import tensor_sums  # noqa: E402

pytestmark = pytest.mark.cpu_only


@pytest.mark.heavy
def test_tests_that_run_alone_are_the_last_ones() -> None:
    files = ["tests/test_cuda_calls.py", "tests/test_tools.py"]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split("::")[1] for line in done.stdout.splitlines() if "::" in line]
    source = (ROOT / files[0]).read_text()
    alone = re.findall(r"^@pytest\.mark\.alone\n(?:@.*\n)*def (\w+)", source, re.MULTILINE)
    assert len(alone) == source.count("@pytest.mark.alone") > 3
    assert names[-len(alone) :] == alone


def test_heavy_tests_are_dealt_out_to_all_workers() -> None:
    """Each has some in the first two thirds of what it begins with, no two of them at the same place."""

    class Item:
        def __init__(self, marks: set[str]) -> None:
            self.marks = marks

        def get_closest_marker(self, name: str) -> str | None:
            return name if name in self.marks else None

    items = [Item({"heavy"} if i > 480 else {"alone"} if i > 470 else set()) for i in range(500)]
    light = [item for item in items if not item.marks]
    spread(items, 4)
    places = [i for i, item in enumerate(items) if "heavy" in item.marks]
    assert [item for item in items if not item.marks] == light
    assert sorted(place // 125 for place in places) == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 4
    assert all(place % 125 < 90 for place in places) and len({place % 125 // 3 for place in places}) > 15
    assert all("alone" in item.marks for item in items[-10:])


def test_mutants_stand_where_the_set_says() -> None:
    """A line that changed takes its mutant along: correct tests/mutants.txt, or draw another one."""
    mutants = mutate.read()
    assert mutate.misplaced(mutants) == []
    assert sum(not mutant.why for mutant in mutants) >= 150
    assert len({(m.file, m.old, m.new) for m in mutants}) == len(mutants)


def test_mutants_are_built_of_files_and_by_tests_that_exist() -> None:
    recipe = mutate.Recipe()
    sources = {source for source, _ in recipe.flags.values()}
    assert all((ROOT / name).exists() for name in sources)
    assert len(recipe.library) > 30
    programs = set(re.findall(r"tests/c/test_\w+", (ROOT / "tests" / "local.mk").read_text()))
    assert programs - set(recipe.programs) == {"tests/c/test_cuda_faults", "tests/c/test_nccl"}
    sources.add("lib/cpu/kernel_amx_terms.c")  # a part of tests/c/emulated_amx_terms.c
    assert {mutant.file for mutant in mutate.read() if mutant.file.endswith(".c")} <= sources
    assert all((ROOT / "tests" / name).exists() for name in mutate.PYTHON_TESTS)


def test_first_inputs_of_the_fuzz_targets_are_made(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "tests" / "fuzz" / "corpus.py"), str(tmp_path)], check=True)
    texts = [file.read_bytes()[1:].decode(errors="replace") for file in (tmp_path / "chain").iterdir()]
    for table in ("ops.def", "reductions.def"):
        for name in re.findall(r'^RFI_\w+\(\w+,\s*\d+,\s*"([^"]+)"', (ROOT / "lib" / table).read_text(), re.MULTILINE):
            assert any(name in text for text in texts), name
    assert {folder.name for folder in tmp_path.iterdir()} == {"chain", "file", "forward"}
    assert all(any(folder.iterdir()) for folder in tmp_path.iterdir())


def test_nobody_includes_or_imports_in_a_circle() -> None:
    arrows = {**graph.includes(), **graph.imports()}
    assert graph.circles(arrows) == []
    assert "lib/rewrite" in arrows["lib/plan"] and "lib/steps" in arrows["lib/rewrite"]
    assert "lib/reductions.def" in arrows["lib/ops"]
    assert "python/rowfold/torch/match" in arrows["python/rowfold/torch/module"]
    # What the library's core and the package's know nothing of.
    assert not [(a, b) for a, targets in arrows.items() for b in targets if a.startswith("lib/") and "cuda/" in b]
    outside = [a for a, targets in arrows.items() if "/torch/" not in a and any("/torch/" in b for b in targets)]
    assert outside == []


def test_circles_are_found() -> None:
    assert graph.circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}) == [
        ["a", "b", "c"],
        ["e", "f"],
    ]
    assert graph.circles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []


def test_tables_of_several_results(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each kind of data and type; log-probabilities about as exact as float32's, single logits within six
    standard deviations of what a float32 sum of 300 values loses, which is 2.45 sqrt(n) units.
    """
    threads = str(pytest.importorskip("torch").get_num_threads())  # the tool sets the process's
    import bench_answers

    def rows(*arguments: str) -> list[list[str]]:
        size = ["--size", "16", "300", "400", "--threads", threads]
        monkeypatch.setattr(sys, "argv", ["bench_answers.py", *arguments, *size])
        bench_answers.main()
        lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if "|" in line]
        return lines[2:]

    found = rows("errors")
    assert [row[:2] for row in found] == [
        [kind, dtype] for kind in bench_answers.KINDS for dtype in ("float32", "bfloat16", "float16")
    ]
    assert all(0 < float(mine) < 2 * float(single) + 1e-6 for _, _, mine, single, _ in found)
    assert all(float(own) > 1e-4 for _, dtype, _, _, own in found if dtype != "float32")
    found = rows("logits", "--dtypes", "float16", "--backends", "reference", "cpu-generic")
    assert len(found) == 4 and all(0 < float(error) < 2.45 * 300**0.5 * 2**-24 for row in found for error in row[3:9])
    assert len(rows("cost", "--dtypes", "float32", "--turns", "1")) == 1 + len(bench_answers.SINGLE) + 4


def test_tables_of_kinds_of_data(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each kind in each table, ordinary data first, infinities in their places, or errors are infinite."""
    pytest.importorskip("torch")
    import bench_data

    kinds = ["silu", "infs", "infs-w"]
    arguments = ["--device", "cpu", "--size", "16", "256", "300", "--few", "4", "--turns", "1", "--kinds", *kinds]
    monkeypatch.setattr(sys, "argv", ["bench_data.py", *arguments])
    bench_data.main()
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if "|" in line]
    forms = [form for form in bench_data.FORMS if not form.kernel and form.math == "f32"]
    each = 2 + 1 + len(kinds)
    tables = [lines[i : i + each][2:] for i in range(0, len(lines), each)]
    assert [[row[0] for row in table] for table in tables] == 3 * [["kernelbench", *kinds]]
    assert [{len(row) for row in table} for table in tables] == [{1 + len(forms)}, {1 + len(forms)}, {3}]
    assert all(float(cell.split(" / ")[0]) < 1e-6 for row in tables[2] for cell in row[1:])


def test_modelled_sums_truncate() -> None:
    """Of positive products too little, the more the longer; of short integers nothing."""
    rng = np.random.default_rng(2)
    x, w = (tensor_sums.stored(values, "float16") for values in tensor_sums.positive(rng, (50, 512)))
    exact = (x * w).sum(axis=1)
    lost = [((tensor_sums.sums(x, w, period) - exact) / exact).mean() for period in (512, 128, 32)]
    assert lost[0] < 2 * lost[1] < 4 * lost[2] < 0
    assert abs(((tensor_sums.sums(x, w, 128, units=8) - exact) / exact).mean()) < -lost[1] / 4
    x, w = rng.integers(-3, 4, (2, 20, 100)).astype(float)
    assert (tensor_sums.sums(x, w, 64) == (x * w).sum(axis=1)).all()
