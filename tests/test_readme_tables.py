"""What stands in several lists stands in all of them: operators of the library, the README and the oracle; presets."""

from __future__ import annotations

import re
from pathlib import Path

import oracle
import pytest
import rowfold
import strategies

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
OPERATORS = [row for row in rowfold.ops.operators() if row.name != "linear"]


def table(first: str, text: str = README) -> list[list[str]]:
    """Cells of the rows below the heading whose first cell is `first`. A bar in a cell is written \\|."""
    rows, found = [], False
    for line in text.splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if found and not cells:
            break
        if found and not set(line) <= set("|- "):
            rows.append(cells)
        found = found or (bool(cells) and cells[0] == first)
    assert rows, f"there is no table {first!r}"
    return rows


def default(value: float) -> str:
    return f"{value:g}"


def signature(row: rowfold.ops.Operator) -> str:
    """As the README writes it: required parameters by name, the others with their defaults."""
    if not row.params:
        return row.name
    names = [name if i < row.min_params else f"{name}={default(value)}" for i, (name, value) in enumerate(row.params)]
    return f"{row.name}({', '.join(names)})"


def test_readme_has_every_operator_with_its_parameters() -> None:
    assert [cells[0].strip("`") for cells in table("operator")] == [signature(row) for row in OPERATORS]


def test_readme_has_a_meaning_for_every_operator() -> None:
    assert all(cells[1] for cells in table("operator"))


def test_readme_has_the_presets() -> None:
    assert {cells[0].strip("`"): cells[1].strip("`") for cells in table("preset")} == rowfold.presets()


def test_oracle_has_every_operator() -> None:
    assert [row.name for row in OPERATORS] == [*oracle.OPS, *oracle.REDUCTIONS, *oracle.ASKING]


@pytest.mark.parametrize("name", oracle.OPS)
def test_oracle_has_the_same_parameters(name: str) -> None:
    row = next(row for row in OPERATORS if row.name == name)
    ours = oracle.OPS[name]
    assert [p for p, _ in row.params] == [p for p, _ in ours.params]
    assert row.accepts_vector == ours.vector
    for i, ((_, theirs), (_, mine)) in enumerate(zip(row.params, ours.params)):
        assert mine is None if i < row.min_params else mine == theirs


def test_oracle_tells_reductions_from_operators() -> None:
    assert {row.name for row in OPERATORS if row.op_class == "reduction"} == {*oracle.REDUCTIONS, *oracle.ASKING}


def test_strategies_draw_every_operator() -> None:
    """From the source, where the names stand as text: an operator added to the library must be fuzzed too."""
    source = Path(strategies.__file__).read_text()
    for row in OPERATORS:
        assert re.search(rf"\b{re.escape(row.name)}(?![a-z_])", source), f"{row.name} is never drawn"


def test_environment_variables_in_the_readme_are_read_somewhere() -> None:
    sources = [*(ROOT / "lib").rglob("*.c"), *(ROOT / "python").rglob("*.py"), *(ROOT / "cuda").rglob("*.c")]
    texts = [path.read_text() for path in sources]
    used = set(re.findall(r'"(ROWFOLD_[A-Z_]+)"', "\n".join(texts)))
    assert {cells[0].strip("`") for cells in table("variable")} == used
