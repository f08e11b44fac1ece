# SPDX-License-Identifier: MIT
"""Rows that a forward takes of its logits are rows of the input: ``head(x)[:, -1, :]`` is ``head(x[:, -1, :])``.

Written before the linear layer, they are what a chain begins with, and nothing is computed of the other rows.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from .match import parametric
from .regions import linear_layers
from .spellings import by_function, by_method, by_module
from .trace import IN_PLACE_OPERATORS

# Rules that give a value for each value, whatever its place.
_RULES = frozenset("@add @sub @mul @div @pow @clamp @clamp_min @clamp_max @gelu @same @detach @cast @wave".split())
_NAMES = ("linear", "matmul")


def rows_first(graph: fx.Graph, root: nn.Module, captured: dict[str, torch.Tensor]) -> None:
    """Moves what takes rows to before the linear layer, where only operators on single values are between."""
    layers = {node: operand for node, operand, _ in linear_layers(graph, root) if _keeps_rows(node)}
    constant = parametric(graph)
    gone: set[fx.Node] = set()
    for node in list(graph.nodes):
        if (
            node in gone
            or node.op != "call_function"
            or node.target is not operator.getitem
            or not _is_of_rows(node.args[1])
        ):
            continue
        value = node.args[0]
        same = [user for user in value.users if user.target is operator.getitem and user.args[1] == node.args[1]]
        if len(same) != len(_readers(value)):
            continue
        at = value
        while at not in layers:
            found = _operand(at, root, captured, constant)
            if found is None or len(_readers(found)) != 1:
                break
            at = found
        if at not in layers:
            continue
        with graph.inserting_before(at):
            taken = graph.call_function(operator.getitem, (layers[at], node.args[1]))
        taken.meta = dict(node.meta)
        at.replace_input_with(layers[at], taken)
        for other in same:
            other.replace_all_uses_with(value)
            graph.erase_node(other)
            gone.add(other)


def _readers(node: fx.Node) -> list[fx.Node]:
    """What reads a value, and not only how many columns it has."""
    return [user for user in node.users if not _is_width(user)]


def _is_width(node: fx.Node) -> bool:
    """h.size(-1) or h.shape[-1]."""
    if node.op == "call_method":
        return node.target == "size" and node.args[1:] == (-1,)
    read = node.target is getattr and bool(node.args[1] == "shape")
    return read and all(user.target is operator.getitem and user.args[1] == -1 for user in node.users)


def _is_of_rows(key: Any) -> bool:
    """Whether an index leaves the columns as they are, of a value with as many dimensions as it names or more."""
    if not isinstance(key, tuple) or len(key) < 2 or key[-1] != slice(None) or key.count(Ellipsis) > 1:
        return False
    ends = [end for part in key if isinstance(part, slice) for end in (part.start, part.stop, part.step)]
    others = [part for part in key if part is not Ellipsis and not isinstance(part, slice)]
    return all(type(end) is int or end is None for end in ends) and all(type(part) is int for part in others)


def _keeps_rows(node: fx.Node) -> bool:
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return node.op == "call_module" or name in _NAMES


def _operand(
    node: fx.Node, root: nn.Module, captured: dict[str, torch.Tensor], constant: set[fx.Node]
) -> fx.Node | None:
    """What a node computes each of its values from; None if it does something else."""
    if node.op == "call_module":
        row = by_module().get(type(root.get_submodule(str(node.target))))
    else:
        row = by_method().get(str(node.target)) if node.op == "call_method" else by_function().get(node.target)
    if row is None or node.target in IN_PLACE_OPERATORS:
        return None
    if row.text.startswith("@") and row.text.partition(" ")[0] not in _RULES:
        return None
    values = [n for n in node.all_input_nodes if n not in constant]
    for other in node.all_input_nodes:
        # A value for each row would have to be indexed, too.
        if other in constant and not _is_of_columns(other, root, captured):
            return None
    return values[0] if len(values) == 1 else None


def _is_of_columns(node: fx.Node, root: nn.Module, captured: dict[str, torch.Tensor]) -> bool:
    name = str(node.target)
    if node.op != "get_attr":
        return False
    found = captured[name] if name in captured else operator.attrgetter(name)(root)
    return isinstance(found, torch.Tensor) and found.ndim <= 1
