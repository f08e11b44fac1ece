"""What README.md and the docstrings say, against the package."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import rowfold
from rowfold import ops

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
