#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Names the licence in every source file, so that one file taken out of the tree still says it.

Run in a checkout it adds the line where it is missing; a test calls missing().
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINE = "SPDX-License-Identifier: MIT"
C = ("*.c", "*.h", "*.cu", "*.cuh", "*.def")
HASH = ("*.py", "*.sh", "*.mk", "*.in", "*.yaml", "CMakeLists.txt", "rf_*.m4")
DIRECTORIES = ("cuda", "examples", "lib", "m4", "packaging", "python", "tests", "tools")
# In the top directory configure and others leave files, too.
TOP = (
    ".ci/run",
    "Makefile.am",
    "configure.ac",
    "packaging/debian/rules",
    "pyproject.toml",
    "quickstart",
    "rowfold.pc.in",
)
GENERATED = ("Makefile.in", "_config.py")


def sources() -> Iterator[tuple[Path, str]]:
    """Every source file and its line."""
    for directory in DIRECTORIES:
        for patterns, line in ((C, f"/* {LINE} */"), (HASH, f"# {LINE}")):
            for pattern in patterns:
                yield from ((path, line) for path in (ROOT / directory).rglob(pattern) if path.name not in GENERATED)
    yield from ((ROOT / name, f"# {LINE}") for name in TOP)


def missing() -> list[tuple[Path, str]]:
    """Those without, among the first two lines, and what they lack."""
    return [(path, line) for path, line in sources() if line not in path.read_text().split("\n", 2)[:2]]


def add(path: Path, line: str) -> None:
    """Writes it first, or after the line that names an interpreter."""
    text = path.read_text()
    first, newline, rest = text.partition("\n")
    path.write_text(f"{first}\n{line}\n{rest}" if first.startswith("#!") and newline else f"{line}\n{text}")


if __name__ == "__main__":
    for path, line in missing():
        add(path, line)
        print(path.relative_to(ROOT))
