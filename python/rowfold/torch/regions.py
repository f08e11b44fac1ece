# SPDX-License-Identifier: MIT
"""The parts of a traced forward that are a linear layer with what follows it: each can be one operation."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from ..errors import Error, FuseError
from .linearize import linearize, program, several
from .match import Matcher, parametric
from .program import Program
from .values import Column, Loss, Pair, Row, from_linear, label, refuse

_PRODUCTS = {"matmul", "mm", "linear"}


@dataclass(eq=False)
class Region:
    """One linear layer and its tail: ``nodes`` from the layer to ``outputs``, all that becomes one operation.

    ``values`` are what the outputs stand for, each once: a node may stand for what another one does. ``columns`` are
    tensors from outside that the operation takes besides the operand.
    """

    matcher: Matcher
    operand: fx.Node
    nodes: list[fx.Node]
    outputs: list[fx.Node]
    values: list[Row | Loss | Pair]
    columns: list[fx.Node]
    plan: Program
    stopped: str  # why what follows the outputs is not in it; empty where nothing follows

    @property
    def folded(self) -> bool:
        """Whether the outputs are numbers of each row."""
        return all(not isinstance(value, Row) or value.folded for value in self.values)

    @property
    def rows(self) -> list[Row]:
        """The results of the layer that the outputs are made of."""
        found: list[Row] = []
        for value in self.values:
            if isinstance(value, Pair):
                found += [row for row in (value.values, value.indices) if row is not None]
            else:
                found += value.rows if isinstance(value, Loss) else (value,)
        return found


@dataclass(eq=False)
class Found:
    """What became of one linear layer: its region, or why there is none."""

    name: str
    where: str
    region: Region | None = None
    reason: str = ""  # the sentence
    why: str = ""  # the same without the place
    steps: list[str] = field(default_factory=list)

    def say(self, error: Error) -> None:
        """Why there is no region."""
        self.reason, self.why = str(error), getattr(error, "reason", "") or str(error)


def linear_layers(graph: fx.Graph, root: nn.Module) -> list[tuple[fx.Node, fx.Node, str]]:
    """Each linear layer of parameters: its node, the node it is applied to, its name."""
    constant = parametric(graph)
    found = []
    for node in graph.nodes:
        inputs = [*node.args, *node.kwargs.values()]
        nodes = [a for a in inputs if isinstance(a, fx.Node)]
        if not nodes or node in constant:
            continue
        if node.op == "call_module":
            if type_before_parametrizations(root.get_submodule(str(node.target))) is nn.Linear:
                found.append((node, nodes[0], str(node.target)))
            continue
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if node.op not in ("call_method", "call_function") or name not in (*_PRODUCTS, "addmm"):
            continue
        x, weight = (nodes[1], nodes[2]) if name == "addmm" and len(nodes) == 3 else (nodes[0], nodes[-1])
        if name == "linear" and len(nodes) > 1:
            weight = nodes[1]
        if x not in constant and weight in constant and weight is not x:
            base = weight
            while base.all_input_nodes:
                base = base.all_input_nodes[0]
            found.append((node, x, str(base.target)))
    return found


def find(
    graph: fx.Graph,
    root: nn.Module,
    captured: dict[str, torch.Tensor],
    options: dict[str, Any],
    borrow: bool,
) -> list[Found]:
    """What can become of each linear layer of a graph."""
    results = []
    layers = linear_layers(graph, root)
    ends = {node for node, _, _ in layers}  # where a tail ends without that there is more to say
    for node, operand, name in layers:
        matcher = Matcher(graph, root, captured, node)
        found = Found(name, label(node))
        results.append(found)
        values = matcher.grow(operand)
        try:
            matcher.check_in_place()
        except FuseError as error:
            found.say(error)
            continue
        first = values[node]
        if isinstance(first, FuseError):
            found.say(first)
            continue
        refused = {n: v for n, v in values.items() if isinstance(v, FuseError) and n not in ends}
        found.say(_first_obstacle(node, refused))
        try:
            found.region = _several(matcher, operand, values, refused, options, borrow)
        except FuseError as error:
            found.say(error)
        if found.region is not None:
            found.steps = found.region.plan.outline
            continue
        if matcher.columns:  # what follows may be fused without the nodes that take them
            matcher.columns.clear()
        for output in reversed(list(values)):
            row, nodes = values[output], _between(node, output, values)
            if not isinstance(row, Row) or nodes is None or row.spine[0].node not in nodes or _asks(row):
                continue
            try:
                steps = [step for _, step in linearize(row)]
                if all(step.op in ("cast", "save") for step in steps):
                    continue
                plan = program(matcher, row, options, borrow)
                plan.load(matcher.tensors(plan.names))
            except Error as error:
                found.say(error)
                continue
            stopped = "; ".join(str(refused[n]) for n in output.users if n in refused)
            found.region = Region(matcher, operand, nodes, [output], [row], [], plan, stopped)
            found.steps = [step.op for step in steps]
            break
    return results


def _asks(row: Row) -> bool:
    """Whether a value depends on tensors from outside that name columns."""
    steps = (step for one in row.spine for step in one.steps)
    return any(isinstance(param, Column) for step in steps for param in step.params)


def _several(
    matcher: Matcher,
    operand: fx.Node,
    values: dict[fx.Node, Any],
    refused: dict[fx.Node, FuseError],
    options: dict[str, Any],
    borrow: bool,
) -> Region | None:
    """The region of all values of each row that something else reads; None if one of them is a value of each column.

    None, too, for a single one that needs nothing from outside, which is a region of the plain kind.
    """
    seed = matcher.seed
    outputs = []

    def taken(node: fx.Node) -> bool:
        value = values.get(node)
        if isinstance(value, Pair) and value.indices is None:  # of which the values alone can be given
            return all(isinstance(values.get(user), Row) for user in node.users)
        return from_linear(value)

    for node, value in values.items():
        inside = [user for user in node.users if taken(user)]
        result = isinstance(value, Loss) or (isinstance(value, Row) and value.folded)
        result = result or (isinstance(value, Pair) and value.indices is not None)
        if result and (len(inside) < len(node.users) or not node.users):
            outputs.append(node)
    wanted = set(outputs)
    for node in reversed(list(values)):
        if node in wanted:
            wanted.update(n for n in node.all_input_nodes if _follows(values.get(n)))
    if not outputs or seed not in wanted:
        return None
    for node in wanted:
        if node not in outputs and any(user not in wanted for user in node.users):
            return None
    found = [values[node] for node in outputs]
    few = any(step.op == "topk" for step in found[0].steps) if isinstance(found[0], Row) else False
    if len(outputs) == 1 and isinstance(found[0], Row) and not few and not _asks(found[0]):
        return None
    distinct: list[Any] = []
    for value in found:
        if all(value is not other for other in distinct):
            distinct.append(value)
    plan = several(matcher, distinct, options, borrow)
    plan.load(matcher.tensors(plan.names))
    nodes = [node for node in values if node in wanted]
    columns = list(matcher.columns.values())
    _check_columns(columns, nodes, operand)
    stopped = "; ".join(str(refused[n]) for output in outputs for n in output.users if n in refused)
    return Region(matcher, operand, nodes, outputs, found, columns, plan, stopped)


def _check_columns(columns: list[fx.Node], nodes: list[fx.Node], operand: fx.Node) -> None:
    """Raises FuseError for columns that are computed from what the operation gives."""
    inside = set(nodes)
    for column in columns:
        for node in _ancestors([column]):
            if node in inside:
                raise refuse(column, "it names columns, and is computed from the layer that it is to be used with")


def _ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    """All that these nodes depend on, themselves included."""
    found: set[fx.Node] = set(nodes)
    waiting = list(nodes)
    while waiting:
        new = [n for n in waiting.pop().all_input_nodes if n not in found]
        found.update(new)
        waiting += new
    return found


def _first_obstacle(seed: fx.Node, refused: dict[fx.Node, FuseError]) -> FuseError:
    """Why a linear layer without a region has none, unless a better reason turns up."""
    for error in refused.values():
        return error
    if len(seed.users) > 1:
        users = ", ".join(user.name for user in seed.users)
        return FuseError(f"its result is read by {users}, and so must be stored")
    return FuseError("no operator follows it, so that there is nothing to fuse")


def _follows(value: Any) -> bool:
    """Whether a node that was grown is part of what it is grown for: a value, or a size of one that became a number."""
    return from_linear(value) or type(value) is int


def _between(seed: fx.Node, output: fx.Node, values: dict[fx.Node, Any]) -> list[fx.Node] | None:
    """The nodes on the ways from the linear layer to the output, in order; None if one of them is read elsewhere."""
    wanted = {output}
    ordered = list(values)
    for node in reversed(ordered):
        if node in wanted:
            wanted.update(n for n in node.all_input_nodes if _follows(values.get(n)))
    nodes = [node for node in ordered if node in wanted]
    if seed not in wanted:
        return None
    for node in nodes:
        if node is not output and any(user not in wanted for user in node.users):
            return None
    return nodes


def extract(region: Region) -> fx.Graph:
    """A region as a graph of its own, of its operand."""
    graph = fx.Graph()
    places = {region.operand: graph.placeholder("x")}
    places |= {column: graph.placeholder(f"columns_{i}") for i, column in enumerate(region.columns)}
    inside = set(region.nodes)
    needed: set[fx.Node] = set()
    waiting = list(region.nodes)
    while waiting:
        for other in waiting.pop().all_input_nodes:
            if other not in places and other not in inside and other not in needed:
                needed.add(other)
                waiting.append(other)
    for node in region.operand.graph.nodes:
        if node in inside or node in needed:
            places[node] = graph.node_copy(node, places.__getitem__)
    outputs = tuple(places[output] for output in region.outputs)
    graph.output(outputs[0] if len(outputs) == 1 else outputs)
    return graph


def replace(graph: fx.Graph, region: Region, target: str) -> None:
    """Calls ``self.target`` of the operand where the region stands."""
    # The operand may be what another region has become.
    (operand,) = (n for n in region.nodes[0].all_input_nodes if n not in region.matcher.parametric)
    # At the layer's own place: what follows may change the operand in place, and a region reads nothing later.
    layer = region.nodes[0]
    order = list(graph.nodes)
    for node in order[order.index(layer) :]:
        if node in _ancestors(region.columns):
            layer.prepend(node)
    with graph.inserting_before(layer):
        call = graph.create_node("call_module", target, (operand, *region.columns), {})
        outputs = [call]
        if len(region.outputs) > 1:
            outputs = [graph.call_function(operator.getitem, (call, i)) for i in range(len(region.outputs))]
    for output, made in zip(region.outputs, outputs):
        output.replace_all_uses_with(made)
    for node in reversed(region.nodes):
        graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if node in region.matcher.parametric and not node.users:
            graph.erase_node(node)


def compiled(graph: fx.Graph) -> Callable[..., Any]:
    """The graph as a function of the module that its names belong to, and the graph's inputs."""
    code = graph.python_code("self")
    scope: dict[str, Any] = dict(code.globals)
    exec(compile(code.src, "<rowfold.torch>", "exec"), scope)
    function: Callable[..., Any] = scope["forward"]
    return function
