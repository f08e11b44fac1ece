"""What README.md and the docstrings say, against the package."""

from __future__ import annotations

import doctest
import importlib
import inspect
import math
import pkgutil
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import rowfold
from rowfold import _lib, ops
from test_python_files import write

README = Path(__file__).resolve().parents[1] / "README.md"


def table(header):
    """First cells of the rows of the table whose first column has this header, without backquotes."""
    lines = README.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {header} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`").replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def written(row):
    """An operator as the README writes it: name, and parameters with their defaults."""
    params = [name if i < row.min_params else f"{name}={default:g}" for i, (name, default) in enumerate(row.params)]
    return f"{row.name}({', '.join(params)})" if params else row.name


def test_the_readme_has_every_operator_with_its_parameters():
    assert [cells[0] for cells in table("operator")] == [
        written(row) for row in ops.operators() if row.name != "linear"
    ]


def test_the_readme_has_every_preset():
    assert {name: chain for name, chain in table("preset")} == rowfold.presets()


def test_the_readme_s_python_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    scope = {}
    exec(compile(code, str(README), "exec"), scope)
    assert scope["y"].shape == (1024, 1)
    assert "logsumexp" in capsys.readouterr().out


class Module:
    """As much of an nn.Module as the README's line asks for."""

    def state_dict(self):
        rng = np.random.default_rng(0)
        return {
            "head.weight": rng.normal(size=(30, 8)).astype(np.float32),
            "head.bias": rng.normal(size=30).astype(np.float32),
        }


def test_the_readme_s_other_ways_to_make_a_model_work(tmp_path, monkeypatch):
    write(tmp_path / "model.safetensors", Module().state_dict())
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    (rowfold\.Model.*)$", README.read_text(), re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        with eval(line, {"rowfold": rowfold, "ops": ops, "module": Module()}) as model:
            assert "logsumexp" in model.info.chain


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


def test_the_readme_s_c_compiles_and_runs(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (code,) = re.findall(r"```c\n(.*?)```", README.read_text(), re.DOTALL)
    include, body = code.split("\n", 1)
    (tmp_path / "program.c").write_text(C_PROGRAM % (include, body))
    library = Path(_lib.load().path)
    command = [
        compiler,
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "program.c",
        f"-I{README.parent / 'lib'}",
        str(library),
    ]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", "program"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert done.stderr == ""
    assert [float(word) for word in done.stdout.split()] == pytest.approx([math.log(32000)] * 2, rel=1e-6)


@pytest.mark.parametrize("name", rowfold.__all__)
def test_public_names_are_documented(name):
    thing = getattr(rowfold, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if callable(value) and not member.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_exceptions_say_their_kind():
    kinds = {TypeError, ValueError, RuntimeError, MemoryError, OSError}
    for name in rowfold.__all__:
        thing = getattr(rowfold, name)
        if inspect.isclass(thing) and issubclass(thing, rowfold.Error) and thing is not rowfold.Error:
            assert len(kinds & set(thing.__mro__)) == 1, name


@pytest.mark.parametrize(
    "name", ["Model", "Model.load_weights", "Model.__call__", "Model.from_file", "Model.from_state_dict"]
)
def test_docstrings_name_every_parameter(name):
    thing = rowfold
    for part in name.split("."):
        thing = getattr(thing, part)
    documented = inspect.getdoc(thing)
    for parameter in list(inspect.signature(thing).parameters):
        assert parameter in ("self", "cls") or re.search(rf"\b{parameter}\b", documented), parameter


def modules():
    """Every module of the package, those aside that need what is not there."""
    for found in pkgutil.walk_packages(rowfold.__path__, "rowfold."):
        if found.name.endswith("__main__"):
            continue
        try:
            yield importlib.import_module(found.name)
        except ImportError as error:
            if not found.name.startswith("rowfold.torch") and error.name not in ("matplotlib", "tqdm", "rich"):
                raise


def test_examples_of_docstrings_run():
    names = {}
    for module in (rowfold, *modules()):
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={"rowfold": rowfold, "np": np}):
            if test.examples:
                names[test.name] = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert {"rowfold", "rowfold.model.Model", "rowfold.model.Model.from_state_dict", "rowfold.ops"} <= names.keys()
    assert [name for name, results in names.items() if results.failed] == []


def test_no_example_hides_from_doctest():
    """Code that only stands indented in a docstring is neither run nor kept by a formatter."""
    for module in (rowfold, *modules()):
        for thing in (module, *(v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__)):
            text = inspect.getdoc(thing) or ""
            assert not re.search(r"^ +(import|from|with) .*\b(rowfold|Model)\b", text, re.MULTILINE), thing
