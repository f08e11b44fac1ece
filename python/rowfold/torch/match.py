# SPDX-License-Identifier: MIT
"""From a traced forward to a chain: each node becomes a value, and the way from the linear layer to the output a chain.

Nodes are matched in order against the table of spellings.py. A node that does not fit becomes the error that says so,
and that error is raised only if the output depends on it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from ..errors import FuseError
from . import rules
from .spellings import REQUIRED, Spelling, by_function, by_method, by_module
from .trace import IN_PLACE_OPERATORS
from .values import Input, Leaf, Pair, Param, Row, Step, Value, refuse

_ALIASES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "self": "input"}
_TRANSPOSES = {"T", "mT", "H", "mH"}
# Methods of a parameter that are applied to it when it is loaded.
_PARAMETER_METHODS = frozenset(
    "t neg abs exp log sqrt rsqrt square reciprocal sigmoid tanh relu "
    "float double half bfloat16 detach contiguous".split()
)
_PART = re.compile(r"([a-z_0-9]+)(?:\((.*)\))?\Z")


class Matcher:
    """Matches one graph. ``leaves`` collects the names of the tensors that the chain depends on."""

    def __init__(self, graph: fx.Graph, root: nn.Module, captured: dict[str, torch.Tensor]) -> None:
        self.graph, self.root, self.captured = graph, root, captured
        self.leaves: list[str] = []
        self.values: dict[fx.Node, Value] = {}
        self.modal: list[str] = []  # names of modules that must stay in eval mode
        self.modal_calls = False  # functions that were traced in eval mode
        self.linear: rules.Linear | None = None
        self.dims: int | None = None  # how many the input must have; None for any

    def run(self) -> Row:
        """Matches all nodes and returns the output's Row. Raises FuseError."""
        result: Value = None
        for node in self.graph.nodes:
            try:
                value = self._node(node)
            except FuseError as error:
                value = error
            self.values[node] = value
            if node.op == "output":
                result = value
        if isinstance(result, FuseError):
            raise result
        if not isinstance(result, Row):
            what = "its input" if isinstance(result, Input) else f"a {type(result).__name__}"
            raise FuseError(
                f"cannot fuse: the forward returns {what}; expected one tensor computed from a linear layer"
            )
        self._check_in_place()
        return result

    def leaf(self, name: str) -> Leaf:
        """The tensor of that dotted name."""
        if name not in self.leaves:
            self.leaves.append(name)
        return Leaf(self.leaves.index(name))

    def tensor(self, leaf: Leaf) -> torch.Tensor:
        """What the leaf is now, before its methods."""
        name = self.leaves[leaf.index]
        return self.captured[name] if name in self.captured else operator.attrgetter(name)(self.root)

    def _node(self, node: fx.Node) -> Value:
        if node.op == "placeholder":
            first = next(iter(self.graph.nodes)) is node
            return Input() if first else refuse(node, "it is a second input; expected a forward of one tensor")
        if node.op == "get_attr":
            return self._attribute(node)
        if node.op == "output":
            return self._operand(node, node.args[0])
        if node.op == "call_module":
            return self._module(node)
        if node.op == "call_method":
            return self._call(node, by_method().get(str(node.target)), str(node.target))
        if node.target in (getattr, operator.getitem):
            return self._access(node)
        name = getattr(node.target, "__name__", str(node.target))
        return self._call(node, by_function().get(node.target), name)

    def _attribute(self, node: fx.Node) -> Value:
        name = str(node.target)
        found = self.captured.get(name)
        if found is None:
            found = operator.attrgetter(name)(self.root)
        if not isinstance(found, torch.Tensor):
            return refuse(node, f"{name} is a {type(found).__qualname__}; expected a tensor")
        return self.leaf(name)

    def _operand(self, node: fx.Node, argument: Any) -> Value:
        """A node's value, a number or whatever else stands there. Errors of earlier nodes are raised."""
        if not isinstance(argument, fx.Node):
            if isinstance(argument, (tuple, list, dict)) and node.op == "output":
                raise refuse(node, f"the forward returns a {type(argument).__name__}; expected one tensor")
            return argument
        value = self.values[argument]
        if isinstance(value, FuseError):
            raise value
        return value

    def _module(self, node: fx.Node) -> Value:
        name = str(node.target)
        module = self.root.get_submodule(name)
        row = by_module().get(type(module))
        if row is None:
            raise refuse(
                node, f"{name} is a {type(module).__qualname__}, which is not in the table of what rowfold fuses"
            )
        if module._forward_hooks or module._forward_pre_hooks:
            raise refuse(node, f"{name} has forward hooks, which would not be called")
        if len(node.args) != 1 or node.kwargs:
            raise refuse(node, f"{name} is called with {len(node.args) + len(node.kwargs)} arguments; expected one")
        value = self._operand(node, node.args[0])
        given: dict[str, Any] = {}
        for key, _ in row.parameters():
            held = getattr(module, key)
            if isinstance(held, nn.Parameter):
                held = self.leaf(f"{name}.{key}")
            given[key] = held
        if row.text.endswith("_module"):
            given = {"module": module, "name": name}
        return self._apply(node, row, value, given)

    def _call(self, node: fx.Node, row: Spelling | None, name: str) -> Value:
        arguments = [self._operand(node, a) for a in node.args]
        keywords = {_ALIASES.get(k, k): self._operand(node, v) for k, v in node.kwargs.items()}
        if arguments or "input" in keywords:
            value = arguments.pop(0) if arguments else keywords.pop("input")
        else:
            value = None
        everything = (value, *arguments, *keywords.values())
        if any(isinstance(v, Leaf) for v in everything) and not any(
            isinstance(v, (Row, Input, Pair)) for v in everything
        ):
            return self._parameter_call(node, value, name, arguments, keywords)
        if row is None:
            if isinstance(value, (int, float, Row, Input)):
                raise refuse(node, f"{name} is not in the table of what rowfold fuses")
            raise refuse(node, f"what {name} returns is not known before the module runs")
        return self._apply(node, row, value, _bind(node, row, name, arguments, keywords))

    def _apply(self, node: fx.Node, row: Spelling, value: Value, given: dict[str, Any]) -> Value:
        kind, _, extra = row.text.partition(" ")
        if kind.startswith("@"):
            build: Callable[..., Value] = getattr(rules, kind[1:])
            return build(self, node, value, *filter(None, [extra]), **given)
        given.pop("inplace", None)
        row_value = rules.as_row(node, value)
        return rules.extend(node, row_value, *_steps(node, row.text, given))

    def _parameter_call(self, node: fx.Node, leaf: Value, name: str, arguments: list[Any], keywords: Any) -> Leaf:
        """A parameter's own methods, which are applied when it is loaded."""
        if not isinstance(leaf, Leaf):
            leaf, name = Leaf(0), f"{name} of {leaf!r} and a parameter"
        if name in ("transpose", "swapaxes", "swapdims") and sorted(a % 2 for a in arguments) == [0, 1]:
            return Leaf(leaf.index, (*leaf.methods, "t"))
        if name == "permute" and (arguments in ([1, 0], [(1, 0)], [[1, 0]])):
            return Leaf(leaf.index, (*leaf.methods, "t"))
        if name in _PARAMETER_METHODS and not arguments and not keywords:
            return Leaf(leaf.index, (*leaf.methods, name))
        raise refuse(
            node,
            f"{name} computes from a parameter alone; expected the parameter itself, its transpose or one of "
            f"{', '.join(sorted(_PARAMETER_METHODS))}. Compute it once and register it as a buffer",
        )

    def _access(self, node: fx.Node) -> Value:
        """Attributes and indices: W.T, torch.max(...)[0], .values, [:, None]."""
        value, key = self._operand(node, node.args[0]), node.args[1]
        if isinstance(value, Pair):
            if key in (0, "values"):
                return value.values
            raise refuse(node, "the indices of a maximum or minimum are not computed; only its values, [0]")
        if isinstance(value, Leaf) and key in _TRANSPOSES:
            return Leaf(value.index, (*value.methods, "t"))
        if isinstance(value, Leaf) and key == "data":
            return value
        if isinstance(value, Row) and node.target is operator.getitem:
            return rules.index(self, node, value, key)
        text = f"attribute {key}" if node.target is getattr else f"index {key!r}"
        raise refuse(node, f"the {text} of a value is not known before the module runs")

    def _check_in_place(self) -> None:
        """An operator in place changes a value that nobody else may look at, under whatever name."""
        for node in self.graph.nodes:
            if not self._is_in_place(node):
                continue
            changed = _base(self.values.get(node.args[0]))
            if isinstance(changed, Leaf):
                raise refuse(node, "it changes a parameter or buffer, which the fused module would not do")
            users = [
                other
                for alias, value in self.values.items()
                if _base(value) is changed and alias is not node
                for other in alias.users
                if _base(self.values.get(other)) is not changed and other is not node
            ]
            if isinstance(changed, (Row, Input)) and users:
                raise refuse(
                    node, f"it works in place on a value that {users[0].name} reads too; use the form that does not"
                )

    def _is_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self.root.get_submodule(str(node.target)), "inplace", False))
        if node.target in IN_PLACE_OPERATORS or node.kwargs.get("inplace"):
            return True
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        return node.op in ("call_method", "call_function") and str(name).endswith("_") and not str(name).endswith("__")


def _base(value: Value) -> Value:
    """The value whose memory this one may share: casts and shapes can be views."""
    while isinstance(value, Row) and len(value.operands) == 1 and all(step.op == "cast" for step in value.steps):
        value = value.operands[0]
    return value


def _bind(node: fx.Node, row: Spelling, name: str, arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, with the row's defaults."""
    parameters = row.parameters()
    if len(arguments) > len(parameters):
        raise refuse(node, f"{name} has {len(arguments) + 1} arguments; expected at most {len(parameters) + 1}")
    given = dict(zip((key for key, _ in parameters), arguments))
    unknown = keywords.keys() - {key for key, _ in parameters}
    if unknown:
        raise refuse(node, f"the argument {min(unknown)} of {name} is not in the table of what rowfold fuses")
    given.update(keywords)
    for key, default in parameters:
        if key not in given:
            if default is REQUIRED:
                raise refuse(node, f"{name} lacks its argument {key}")
            given[key] = default
    return given


def _steps(node: fx.Node, text: str, given: dict[str, Any]) -> list[Step]:
    """The row's text with the arguments filled in."""
    steps = []
    for part in text.split(" | "):
        match = _PART.match(part)
        assert match, part
        params: list[Param] = []
        for piece in filter(None, (match.group(2) or "").split(", ")):
            params.append(rules.number(node, given[piece[1:-1]]) if piece.startswith("{") else float(piece))
        steps.append(Step(match.group(1), tuple(params)))
    return steps
