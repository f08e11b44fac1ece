# SPDX-License-Identifier: MIT
"""What tests and tools promise about themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import graph  # noqa: E402
import mutate  # noqa: E402


def test_tests_that_run_alone_are_the_last_ones() -> None:
    files = ["tests/test_cuda_calls.py", "tests/test_tools.py"]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split("::")[1] for line in done.stdout.splitlines() if "::" in line]
    source = (ROOT / files[0]).read_text()
    alone = [part.split("(")[0] for part in source.split("@pytest.mark.alone\ndef ")[1:]]
    assert len(alone) > 3
    assert names[-len(alone) :] == alone


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
    sources.add("lib/cpu/kernel_amx_terms.c")  # a part of tests/c/emulated_tiles.c
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
