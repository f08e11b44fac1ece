# SPDX-License-Identifier: MIT
"""The text of a chain, read apart from the library."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oracle.answers import ASKING, PAIRS
from oracle.operators import OPS
from oracle.reductions import REDUCTIONS


@dataclass(frozen=True)
class Op:
    name: str
    params: tuple[float | str, ...]  # a str is the name of a per-feature vector, or of a row input with its #


_PART = re.compile(r"\s*([a-z_0-9]+)\s*(?:\((.*)\))?\s*\Z")


def parse(text: str) -> list[Op]:
    """The operators behind the linear layer, of a chain with one result."""
    (ops,) = parse_results(text)
    return ops


def parse_results(text: str) -> list[list[Op]]:
    """For each result the operators behind the linear layer, those of the trunk first."""
    linear, *first = _split(_split(text, ",")[0], "|")
    match = _PART.match(linear)
    if not match or match.group(1) != "linear":
        raise ValueError(f"{text!r} does not begin with linear")
    trunk: list[Op] = []
    while first and not first[0].strip().startswith("("):
        op = _operator(first[0])
        if op.name in (*REDUCTIONS, *ASKING, *PAIRS):
            break
        trunk.append(op)
        first.pop(0)
    branches = ["|".join(first), *_split(text, ",")[1:]]
    results = []
    for branch in branches:
        inside = branch.strip()
        if inside.startswith("(") and inside.endswith(")"):
            inside = inside[1:-1]
        results.append([*trunk, *(_operator(part) for part in _split(inside, "|") if inside.strip())])
    return results


def _split(text: str, separator: str) -> list[str]:
    """Parts of the text between separators that stand in no parentheses."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == separator and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def _operator(part: str) -> Op:
    match = _PART.match(part)
    if not match:
        raise ValueError(f"cannot read {part!r}")
    name, inside = match.group(1), (match.group(2) or "").strip()
    if name == "topk":
        return Op(name, (float(inside.rpartition("=")[2]),))
    if name in ASKING:
        column, _, ignored = inside.partition(",")
        return Op(name, (column.strip(), float(ignored.rpartition("=")[2] or -100)))
    if name == "gelu" and inside == "tanh":
        name, inside = "gelu(tanh)", ""
    params = (OPS.get(name) or REDUCTIONS[name]).params
    names = [p for p, _ in params]
    values: list[float | str | None] = [default for _, default in params]
    for j, arg in enumerate(inside.split(",") if inside else []):
        key, equals, value = arg.rpartition("=")
        values[names.index(key.strip()) if equals else j] = _value(value.strip())
    if None in values:
        raise ValueError(f"{part!r} lacks a parameter")
    return Op(name, tuple(v for v in values if v is not None))


def _value(text: str) -> float | str:
    return text[1:] if text.startswith("@") else text if text.startswith("#") else float(text)
