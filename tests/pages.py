# SPDX-License-Identifier: MIT
"""README.md and the pages under doc/, as tests read them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("doc/**/*.md")])


def text(page: str) -> str:
    """A page by its path from the top."""
    return (ROOT / page).read_text()


def table(page: str, first: str) -> list[list[str]]:
    """Cells of the rows below the heading whose first cell is `first`. A bar in a cell is written \\|."""
    rows, found = [], False
    for line in text(page).splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if found and not cells:
            break
        if found and not set(line) <= set("|- :"):
            rows.append(cells)
        found = found or (bool(cells) and cells[0] == first)
    assert rows, f"{page} has no table {first!r}"
    return rows


def bare(cell: str) -> str:
    """A cell without its backquotes."""
    return cell.strip("`")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)
