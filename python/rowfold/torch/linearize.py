# SPDX-License-Identifier: MIT
"""From the values of a matched forward to the steps of a chain, with at most one value saved at a time."""

from __future__ import annotations

from typing import Any

from ..errors import FuseError
from .match import Matcher
from .program import Program
from .values import Row, Step, refuse


def linearize(output: Row) -> list[tuple[Row, Step]]:
    """The steps behind the linear layer, each with the value it belongs to. Raises FuseError if one slot is too few."""
    spine = output.spine
    place = {id(row): i for i, row in enumerate(spine)}
    reads: dict[int, int] = {}  # place of a saved value -> place of its last reader
    for i, row in enumerate(spine):
        if len(row.operands) == 2:
            saved = min(place[id(operand)] for operand in row.operands)
            reads[saved] = i
    _check_slots(spine, reads)
    steps: list[tuple[Row, Step]] = []
    for i, row in enumerate(spine):
        steps += [(row, step) for step in row.steps]
        if row.join:
            steps.append((row, Step(f"{row.join}_saved")))
        if i in reads:
            steps.append((row, Step("save")))
    return steps


def _check_slots(spine: list[Row], reads: dict[int, int]) -> None:
    saved = sorted(reads)
    for first, second in zip(saved, saved[1:]):
        if second < reads[first]:
            reader, other = spine[reads[first]], spine[second]
            raise refuse(
                reader.node,
                f"{spine[first].node.name} would have to be remembered for it while {other.node.name} is for "
                f"{spine[reads[second]].node.name}; a chain remembers one value at a time",
            )


def program(matcher: Matcher, output: Row, options: dict[str, Any], borrow: bool) -> Program:
    """The whole of a matched forward as data."""
    linear = matcher.linear
    if linear is None:
        raise FuseError("cannot fuse: there is no linear layer; expected nn.Linear, F.linear or x @ W.t()")
    return Program(
        names=tuple(matcher.leaves),
        weight=linear.weight,
        bias=linear.bias,
        steps=tuple(step for _, step in linearize(output)),
        cast=linear.input.dtype,
        dims=matcher.dims,
        dropped=output.dropped,
        folded=output.folded,
        options=tuple(sorted(options.items())),
        borrow=borrow,
        flat=output.flat,
        sizes=matcher.weight_shape() if matcher.sized else (),
        owned=matcher.leaves[linear.weight.index] in matcher.recipes,
    )
