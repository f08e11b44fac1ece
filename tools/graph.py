#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Who includes or imports whom: files and arrows of each folder, arrows between folders, circles.

    python3 tools/graph.py [-v]       -v prints the arrows

A .c file and the header of its name are one node, as are the .cu and .cuh files of one. An import counts wherever it
stands, but for those that only a type checker sees.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
Graph = dict[str, set[str]]


def includes() -> Graph:
    """Of the files of lib/ and cuda/: which of them each includes."""
    files = [p for folder in ("lib", "cuda") for p in (ROOT / folder).rglob("*.*") if p.suffix in _SUFFIXES]
    names = {p.relative_to(ROOT): _node(p) for p in files}
    found: Graph = {name: set() for name in names.values()}
    for path in files:
        for included in re.findall(r'^\s*#\s*include "([^"]+)"', path.read_text(), re.MULTILINE):
            places = (path.parent.relative_to(ROOT) / included, Path("lib") / included)
            targets = [names[place] for place in places if place in names]
            if targets and targets[0] != _node(path):
                found[_node(path)].add(targets[0])
    return found


_SUFFIXES = (".c", ".h", ".cu", ".cuh", ".def")


def _node(path: Path) -> str:
    name = path.relative_to(ROOT)
    return str(name if name.suffix == ".def" else name.with_suffix(""))


def imports() -> Graph:
    """Of the package's modules: which of them each imports. What a package's __init__ imports is for its users."""
    place = ROOT / "python" / "rowfold"
    files = {p.relative_to(place).with_suffix("").parts: p for p in place.rglob("*.py")}
    found: Graph = {}
    for name, path in files.items():
        if name[-1] in ("__init__", "__main__"):
            continue
        arrows = found["/".join(("python/rowfold", *name))] = set()
        for node in _executed(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(name):
                base = (*name[: -node.level], *(node.module or "").split("."))
                base = tuple(part for part in base if part)
                for module in (base, *((*base, alias.name) for alias in node.names)):
                    if module in files and module != name:
                        arrows.add("/".join(("python/rowfold", *module)))
    return found


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)):
            yield child
            yield from _executed(child)


def circles(arrows: Graph) -> list[list[str]]:
    """The sets of two or more nodes that lead to each other, in order (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(arrows.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return sorted(found)


def main() -> int:
    """Prints all of it; the exit status is 1 if there is a circle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-v", action="store_true", help="print the arrows")
    verbose, arrows = parser.parse_args().v, {**includes(), **imports()}
    folder = {name: str(PurePosixPath(name).parent) for name in arrows}
    between = Counter((folder[a], folder[b]) for a, targets in arrows.items() for b in targets)
    for place, count in Counter(folder.values()).items():
        print(f"{place}: {count} nodes, {between[place, place]} arrows")
        for (begin, end), number in sorted(between.items()):
            if begin == place != end:
                print(f"  to {end}: {number}")
    rings = circles(arrows)
    print(f"{len(rings)} circles")
    for ring in rings:
        print(f"  circle: {' '.join(ring)}")
    for name in sorted(arrows) if verbose else ():
        print(f"{name}: {' '.join(sorted(arrows[name]))}")
    return int(bool(rings))


if __name__ == "__main__":
    sys.exit(main())
