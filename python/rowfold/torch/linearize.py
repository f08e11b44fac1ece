# SPDX-License-Identifier: MIT
"""From the values of a matched forward to the steps of a chain, with at most one value saved at a time."""

from __future__ import annotations

from typing import Any

from ..errors import FuseError
from ..ops import reductions
from .match import Matcher
from .program import Branch, Output, Program
from .values import Loss, Pair, Row, Step, refuse


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
    common = _common(matcher, options, borrow)
    steps = tuple(step for _, step in linearize(output))
    if steps and steps[-1].op == "topk":
        raise refuse(output.node, "it gives values and columns, which a program of one tensor does not hold")
    return Program(
        steps=steps,
        dropped=output.dropped,
        folded=output.folded,
        flat=output.flat,
        **common,
    )


def several(matcher: Matcher, values: list[Row | Loss | Pair], options: dict[str, Any], borrow: bool) -> Program:
    """Several values of one linear layer as data, or one that needs tensors from outside."""
    chains: list[tuple[Step, ...]] = []

    def place(row: Row) -> int:
        chain = tuple(step for _, step in linearize(row))
        if chain not in chains:
            chains.append(chain)
        return chains.index(chain)

    outputs = []
    for value in values:
        if isinstance(value, Loss):
            branches = tuple(place(row) for row in value.rows)
            loss = (value.reduction, value.ignored, value.smoothing, value.column.index, value.weight)
            outputs.append(Output(branches, True, value.rows[0].flat, *loss))
        else:
            pair = (value.values, value.indices) if isinstance(value, Pair) else (value,)
            outputs += [Output((place(row),), row.dropped, row.flat, part=row.part) for row in pair if row is not None]
    trunk: tuple[Step, ...] = chains[0]
    if len(chains) > 1:
        shared = 0
        while all(len(c) > shared and c[shared] == trunk[shared] for c in chains) and (
            trunk[shared].op not in reductions()
        ):
            shared += 1
        trunk = trunk[:shared]
    return Program(
        steps=trunk,
        branches=tuple(Branch(chain[len(trunk) :]) for chain in chains) if len(chains) > 1 else (),
        outputs=tuple(outputs),
        columns=tuple(matcher.columns),
        dropped=False,
        folded=True,
        **_common(matcher, options, borrow),
    )


def _common(matcher: Matcher, options: dict[str, Any], borrow: bool) -> dict[str, Any]:
    """What programs of any kind have: the layer, and what its input must be."""
    linear = matcher.linear
    if linear is None:
        raise FuseError("cannot fuse: there is no linear layer; expected nn.Linear, F.linear or x @ W.t()")
    return {
        "names": tuple(matcher.leaves),
        "weight": linear.weight,
        "bias": linear.bias,
        "cast": linear.input.dtype,
        "dims": matcher.dims,
        "options": tuple(sorted(options.items())),
        "borrow": borrow,
        "sizes": matcher.weight_shape() if matcher.sized else (),
        "owned": matcher.leaves[linear.weight.index] in matcher.recipes,
    }
