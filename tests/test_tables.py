# SPDX-License-Identifier: MIT
"""What stands in several lists stands in all of them: operators of the library, the pages and the oracle; presets."""

from __future__ import annotations

import re
from pathlib import Path

import oracle
import pages
import pytest
import rowfold
import strategies

OPERATORS = [row for row in rowfold.ops.operators() if row.name != "linear"]


def default(value: float) -> str:
    return f"{value:g}"


def signature(row: rowfold.ops.Operator) -> str:
    """As the page writes it: required parameters by name, the others with their defaults."""
    if not row.params:
        return row.name
    names = [name if i < row.min_params else f"{name}={default(value)}" for i, (name, value) in enumerate(row.params)]
    return f"{row.name}({', '.join(names)})"


def test_page_has_every_operator_with_its_parameters_and_a_meaning() -> None:
    rows = pages.table("doc/operators.md", "operator")
    assert [pages.bare(cells[0]) for cells in rows] == [signature(row) for row in OPERATORS]
    assert all(cells[1] for cells in rows)


def test_page_has_the_presets() -> None:
    rows = pages.table("doc/operators.md", "preset")
    assert {pages.bare(name): pages.bare(chain) for name, chain in rows} == rowfold.presets()


def test_page_has_the_spellings_of_pytorch() -> None:
    pytest.importorskip("torch")
    from rowfold.torch.spellings import page_rows

    assert [tuple(map(pages.bare, row)) for row in pages.table("doc/pytorch.md", "rowfold")] == page_rows()


def test_oracle_has_every_operator() -> None:
    assert [row.name for row in OPERATORS] == [*oracle.OPS, *oracle.REDUCTIONS, *oracle.ASKING, *oracle.PAIRS]


@pytest.mark.parametrize("name", [*oracle.OPS, *oracle.REDUCTIONS])
def test_oracle_has_the_same_parameters(name: str) -> None:
    row = next(row for row in OPERATORS if row.name == name)
    ours = oracle.OPS.get(name) or oracle.REDUCTIONS[name]
    assert [p for p, _ in row.params] == [p for p, _ in ours.params]
    assert row.accepts_vector == (isinstance(ours, oracle.Row) and ours.vector)
    for i, ((_, theirs), (_, mine)) in enumerate(zip(row.params, ours.params)):
        assert mine is None if i < row.min_params else mine == theirs


def test_oracle_tells_reductions_from_operators() -> None:
    assert {row.name for row in OPERATORS if row.op_class == "reduction"} == {
        *oracle.REDUCTIONS,
        *oracle.ASKING,
        *oracle.PAIRS,
    }


def test_strategies_draw_every_operator() -> None:
    """By what the library and the oracle say of them, with parameters where they have some; the others, of vectors,
    saved values and columns, from the source, where their names stand as text.
    """
    source = Path(strategies.__file__).read_text()
    drawn = [*strategies.without_arguments(), *strategies.with_arguments(), *strategies.WAVES, *strategies.INDICES]
    drawn += [*strategies.reductions(True), *strategies.reductions(False)]
    for row in OPERATORS:
        named = re.search(rf"\b{re.escape(row.name)}(?![a-z_])", source)
        given = [text for text in drawn if text.startswith(f"{row.name}(")]
        assert named or (given if row.params else row.name in drawn), f"{row.name} is never drawn with parameters"


def test_environment_variables_of_the_page_are_read_somewhere() -> None:
    sources = [path for place in ("lib/**/*.c", "python/**/*.py", "cuda/*.c") for path in pages.ROOT.glob(place)]
    texts = [path.read_text() for path in sources]
    used = set(re.findall(r'"(ROWFOLD_[A-Z_]+)"', "\n".join(texts)))
    assert {pages.bare(cells[0]) for cells in pages.table("doc/command-line.md", "variable")} == used
