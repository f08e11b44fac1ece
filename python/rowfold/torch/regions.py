# SPDX-License-Identifier: MIT
"""The parts of a traced forward that are a linear layer with what follows it: each can be one operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from ..errors import Error, FuseError
from .linearize import linearize, program
from .match import Matcher, parametric
from .program import Program
from .values import Row, from_linear, label

_PRODUCTS = {"matmul", "mm", "linear"}


@dataclass(eq=False)
class Region:
    """One linear layer and its tail: ``nodes`` from the layer to ``output``, all that becomes one operation."""

    matcher: Matcher
    operand: fx.Node
    nodes: list[fx.Node]
    output: fx.Node
    row: Row
    plan: Program
    stopped: str  # why what follows the output is not in it; empty where nothing follows


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
        for output in reversed(list(values)):
            row, nodes = values[output], _between(node, output, values)
            if not isinstance(row, Row) or nodes is None or row.spine[0].node not in nodes:
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
            found.region = Region(matcher, operand, nodes, output, row, plan, stopped)
            found.steps = [step.op for step in steps]
            break
    return results


def _first_obstacle(seed: fx.Node, refused: dict[fx.Node, FuseError]) -> FuseError:
    """Why a linear layer without a region has none, unless a better reason turns up."""
    for error in refused.values():
        return error
    if len(seed.users) > 1:
        users = ", ".join(user.name for user in seed.users)
        return FuseError(f"its result is read by {users}, and so must be stored")
    return FuseError("no operator follows it, so that there is nothing to fuse")


def _between(seed: fx.Node, output: fx.Node, values: dict[fx.Node, Any]) -> list[fx.Node] | None:
    """The nodes on the ways from the linear layer to the output, in order; None if one of them is read elsewhere."""
    wanted = {output}
    ordered = list(values)
    for node in reversed(ordered):
        if node in wanted:
            wanted.update(n for n in node.all_input_nodes if from_linear(values.get(n)))
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
    inside = set(region.nodes)
    needed: set[fx.Node] = set()
    waiting = list(region.nodes)
    while waiting:
        for other in waiting.pop().all_input_nodes:
            if other is not region.operand and other not in inside and other not in needed:
                needed.add(other)
                waiting.append(other)
    for node in region.operand.graph.nodes:
        if node in inside or node in needed:
            places[node] = graph.node_copy(node, places.__getitem__)
    graph.output(places[region.output])
    return graph


def replace(graph: fx.Graph, region: Region, target: str) -> None:
    """Calls ``self.target`` of the operand where the region stands."""
    # The operand may be what another region has become.
    (operand,) = (n for n in region.nodes[0].all_input_nodes if n not in region.matcher.parametric)
    # At the layer's own place: what follows may change the operand in place, and a region reads nothing later.
    with graph.inserting_before(region.nodes[0]):
        call = graph.create_node("call_module", target, (operand,), {})
    region.output.replace_all_uses_with(call)
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
