# SPDX-License-Identifier: MIT
"""The pages do what they say: their code runs, explain says what they show, their links and test files are there."""

from __future__ import annotations

import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pytest
import rowfold
from rowfold import _lib, ops
from rowfold.__main__ import main
from test_python_files import write

SHOWN = [
    found
    for page in ("doc/explain.md", "README.md")
    for found in re.findall(r"```text\n\$ rowfold (explain .*)\n((?:.*\n)*?)```", pages.text(page))
]
# What depends on the machine: its instruction set and caches, and what they make of blocks and times.
MACHINE_LINES = ("backend ", "  The fused way reads W", "  Expected times rest on")
MACHINE_FIGURES = ("  memory read and written", "  memory held", "  expected time")


def masked(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.startswith(MACHINE_LINES)]
    return [re.sub(r"[\d.]+ \w+ *", "# ", line) if line.startswith(MACHINE_FIGURES) else line for line in lines]


def test_the_presets_are_explained() -> None:
    assert sorted(re.findall(r"preset:(\w+)", " ".join(command for command, _ in SHOWN))) == sorted(rowfold.presets())


@pytest.mark.parametrize(("command", "expected"), SHOWN, ids=[shlex.split(command)[1] for command, _ in SHOWN])
def test_explain_says_what_is_shown(command: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 0
    assert masked(capsys.readouterr().out) == masked(expected)


def test_tests_that_are_named_exist() -> None:
    for page in pages.PAGES:
        for name in re.findall(r"`(tests/[\w/.]+\.\w+)`", page.read_text()):
            assert (pages.ROOT / name).is_file(), (page.name, name)
    assert len(re.findall(r"`tests/", pages.text("doc/guarantees.md"))) > 15


def links(page: Path) -> Iterator[Path]:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        yield (page.parent / target).resolve()


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: str(page.relative_to(pages.ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [target for target in links(page) if not target.is_file()] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, queue = set(), [pages.ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            queue += links(page)
    assert set(pages.PAGES) <= reached


def test_numbers_of_experiments_are_given_once() -> None:
    for page in pages.ROOT.glob("doc/kernels/*.md"):
        numbers = [int(number) for number in re.findall(r"^(\d+)\. \*\*", page.read_text(), re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1)), page


def test_experiments_that_comments_name_are_there() -> None:
    known = {page.name: page.read_text() for page in pages.ROOT.glob("doc/kernels/*.md")}
    sources = [path for place in ("lib/**/*", "cuda/**/*", "doc/**/*.md") for path in pages.ROOT.glob(place)]
    for path in sources:
        if path.is_file() and path.suffix not in (".png", ".o", ".lo"):
            for page, number in re.findall(r"([\w-]+\.md)\]?(?:\([^)]*\))? (\d+)\b", path.read_text(errors="replace")):
                if page in known:
                    assert re.search(rf"^{number}\. \*\*", known[page], re.MULTILINE), (path, page, number)


# Code.


def run(page: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The page's blocks of Python, one after the other, up to the first that needs PyTorch where there is none."""
    scope: dict[str, Any] = {}
    for code in pages.blocks(page, "python"):
        if "import torch" in code and not find_spec("torch"):
            break
        exec(compile(code, page, "exec"), scope)
    return scope | {"said": capsys.readouterr().out}


def test_the_readme_s_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    scope = run("README.md", capsys)
    assert scope["y"].shape == (1024, 1)
    assert "logsumexp" in scope["said"]
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        x = torch.randn(5, 512)
        torch.testing.assert_close(scope["fused"](x), scope["model"](x))
    assert scope["energy"].shape == (64,)


def test_the_python_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    scope = run("doc/python.md", capsys)
    logits = scope["x"].astype(np.float64) @ scope["W"].T * 0.5
    np.testing.assert_allclose(scope["y"][:, 0], np.logaddexp.reduce(logits, axis=1), rtol=1e-5)


class Module:
    """As much of an nn.Module as the page's line asks for."""

    def state_dict(self) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        return {
            "head.weight": rng.normal(size=(30, 8)).astype(np.float32),
            "head.bias": rng.normal(size=30).astype(np.float32),
        }


def test_other_ways_to_make_a_model_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model.safetensors", Module().state_dict())
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    (rowfold\.Model.*)$", pages.text("doc/python.md"), re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        with eval(line, {"rowfold": rowfold, "ops": ops, "module": Module()}) as model:
            assert "logsumexp" in model.info.chain


def test_the_page_s_pytorch_models_are_the_example_s() -> None:
    source, page = pages.text("examples/torch_models.py"), pages.text("doc/pytorch.md")
    for name in ("LogSumExpGelu", "SumPool", "ScaleClampMish"):
        assert f"class {name}(" in page and f"class {name}(" in source
    lines = [line.strip() for line in source.splitlines() if line.strip().startswith("x = ")]
    for line in lines:
        assert line in page or "randn" in line, line


C_PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
%s
int main(void) {
    int64_t batch = 2;
    float *W = calloc(32000 * 512, sizeof *W), *b = calloc(32000, sizeof *b), x[2 * 512] = {0}, y[2] = {0};
%s
    printf("%%.6f %%.6f\\n", (double)y[0], (double)y[1]);
    free(W);
    free(b);
    return 0;
}
"""


def test_the_readme_s_c_compiles_and_runs(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (code,) = pages.blocks("README.md", "c")
    include, body = code.split("\n", 1)
    (tmp_path / "program.c").write_text(C_PROGRAM % (include, body))
    library = Path(_lib.load().path)
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *warnings, "program.c", f"-I{pages.ROOT / 'lib'}", str(library)]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", "program"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert done.stderr == ""
    assert [float(word) for word in done.stdout.split()] == pytest.approx([math.log(32000)] * 2, rel=1e-6)
