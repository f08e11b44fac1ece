# SPDX-License-Identifier: MIT
"""From a traced forward to a chain: each node becomes a value, and the way from the linear layer to the output a chain.

Nodes are matched in order against the table of spellings.py. A node that does not fit becomes the error that says so,
and that error is raised only if the output depends on it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from ..errors import FuseError
from . import recipe, rules, rules_columns, rules_shapes
from .recipe import Recipe
from .spellings import OPERATORS, REQUIRED, Spelling, by_function, by_method, by_module
from .trace import IN_PLACE_OPERATORS, modes_of, modes_read
from .values import (
    Column,
    ColumnTensor,
    Comparison,
    Extent,
    Input,
    Leaf,
    LogSoftmax,
    Loss,
    Outside,
    Pair,
    Param,
    Row,
    Shape,
    Step,
    Value,
    WeightType,
    Where,
    from_linear,
    refuse,
)

_ALIASES = {"axis": "dim", "keepdims": "keepdim", "ord": "p", "x": "input", "self": "input"}
_TRANSPOSES = {"T", "mT", "H", "mH"}
# Methods of a parameter that are applied to it when it is loaded.
_PARAMETER_METHODS = frozenset(
    "t neg abs exp log sqrt rsqrt square reciprocal sigmoid tanh relu "
    "float double half bfloat16 detach contiguous".split()
)
_FOLDED_NUMBERS = frozenset([*OPERATORS.values(), operator.floordiv, operator.mod])
_PART = re.compile(r"([a-z_0-9]+)(?:\((.*)\))?\Z")


class Matcher:
    """Matches one graph. ``leaves`` collects the names of the tensors that the chain depends on.

    With a ``seed``, a linear layer's node, only what follows from that is matched: its operand is the input, and every
    other tensor is one from outside.
    """

    def __init__(
        self, graph: fx.Graph, root: nn.Module, captured: dict[str, torch.Tensor], seed: fx.Node | None = None
    ) -> None:
        self.graph, self.root, self.captured, self.seed = graph, root, captured, seed
        self.leaves: list[str] = []
        self.recipes: dict[str, Recipe] = {}  # of those leaves that are computed from others
        self.values: dict[fx.Node, Value] = {}
        self.modes: dict[str, bool] = {}  # training modes that modules must stay in
        self.taken: dict[str, dict[str, Any]] = {}  # modules of the table: what they hold that is no tensor
        self.linear: rules.Linear | None = None
        self.dims: int | None = None  # how many the input must have; None for any
        self.columns: dict[ColumnTensor, fx.Node] = {}  # tensors from outside that name a column for each row
        self.sized = False  # a number of the forward is a size of the weight
        self.parametric = parametric(graph)

    def run(self) -> Row:
        """Matches all nodes and returns the output's Row. Raises FuseError."""
        result: Value = None
        for node in self.graph.nodes:
            self.values[node] = value = self._try(node)
            if node.op == "output":
                result = value
        if isinstance(result, FuseError):
            raise result
        if isinstance(result, LogSoftmax):
            raise refuse(result.row.node, rules.no_function("log_softmax"))
        if not isinstance(result, Row):
            what = "its input" if isinstance(result, Input) else f"a {type(result).__name__}"
            raise FuseError(
                f"cannot fuse: the forward returns {what}; expected one tensor computed from a linear layer"
            )
        self.check_in_place()
        return result

    def grow(self, operand: fx.Node) -> dict[fx.Node, Value]:
        """What follows from the seed, whose operand is the node given: a value for each node, or why there is none."""
        self.values[operand] = Input()
        found: dict[fx.Node, Value] = {}
        node = self.seed
        while node is not None and node.op not in ("root", "output"):
            if node is self.seed or any(from_linear(found.get(n)) for n in node.all_input_nodes):
                found[node] = self.values[node] = self._try(node)
            node = node.next
        return found

    def _try(self, node: fx.Node) -> Value:
        try:
            return self._node(node)
        except FuseError as error:
            return error

    def value(self, node: fx.Node) -> Value:
        """What a node stands for."""
        if node not in self.values:
            self.values[node] = self._try(node) if node in self.parametric else Outside(node)
        return self.values[node]

    def column(self, given: Outside, kept: bool, flat: bool) -> Column:
        """A tensor from outside that names a column for each row."""
        tensor = ColumnTensor(given.node.name, kept, flat)
        self.columns.setdefault(tensor, given.node)
        return Column(list(self.columns).index(tensor))

    def leaf(self, name: str) -> Leaf:
        """The tensor of that dotted name."""
        if name not in self.leaves:
            self.leaves.append(name)
        return Leaf(self.leaves.index(name))

    def tensor(self, leaf: Leaf) -> torch.Tensor:
        """What the leaf is now, before its methods."""
        name = self.leaves[leaf.index]
        return self.recipes[name](self.lookup) if name in self.recipes else self.lookup(name)

    def weight_shape(self) -> tuple[int, ...]:
        """(out_features, in_features) of the linear layer."""
        assert self.linear is not None
        shape = tuple(self.tensor(self.linear.weight).shape)
        return shape[::-1] if self.linear.weight.methods.count("t") % 2 else shape

    def tensors(self, names: Iterable[str]) -> list[torch.Tensor]:
        """What leaves of these names are now."""
        with torch.no_grad():
            return [self.recipes[n](self.lookup) if n in self.recipes else self.lookup(n) for n in names]

    def lookup(self, name: str) -> Any:
        """A tensor or a module by its dotted name."""
        return self.captured[name] if name in self.captured else operator.attrgetter(name)(self.root)

    def _computed(self, name: str, made: Recipe, node: fx.Node) -> Leaf:
        """A tensor that is computed from parameters alone."""
        if name not in self.recipes:
            if name in self.leaves or hasattr(self.root, name):
                name += "_computed"
            with modes_read() as asked:
                made.check(self.lookup, f"{name} (computed from {', '.join(made.sources)})")
            self.modes.update(modes_of(self.root, asked))
            self.recipes[name] = made
        return self.leaf(name)

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
        if node.target in (getattr, operator.getitem) and len(node.args) == 2:
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
        value = self.value(argument)
        if isinstance(value, FuseError):
            raise value
        return value

    def _operands(self, node: fx.Node, argument: Any) -> Any:
        """The same of arguments that may stand in tuples, lists and slices."""
        if isinstance(argument, (tuple, list)):
            return type(argument)(self._operands(node, a) for a in argument)
        if isinstance(argument, slice):
            return slice(*(self._operands(node, a) for a in (argument.start, argument.stop, argument.step)))
        return self._operand(node, argument)

    def _module(self, node: fx.Node) -> Value:
        name = str(node.target)
        module = self.root.get_submodule(name)
        if node in self.parametric:
            return self._computed(node.name, recipe.of_node(node, self.root), node)
        row = by_module().get(type_before_parametrizations(module))
        if row is None:
            raise refuse(node, rules.no_module(name, module))
        if module._forward_hooks or module._forward_pre_hooks:
            old = "weight_g" in module._parameters or "weight_orig" in module._parameters
            way = "use torch.nn.utils.parametrizations, which are fused, or remove it" if old else "remove them first"
            raise refuse(node, f"{name} has forward hooks, which would not be called; {way}")
        if "forward" in module.__dict__:
            raise refuse(node, f"{name} has a forward of its own in place of its class's, which would not be called")
        if len(node.args) != row.inputs or node.kwargs:
            expected = "one" if row.inputs == 1 else row.inputs
            count = len(node.args) + len(node.kwargs)
            raise refuse(node, f"{name} is called with {count} arguments; expected {expected}")
        value = self._operand(node, node.args[0])
        parameters = row.parameters()
        taken = self.taken.setdefault(name, {})
        given: dict[str, Any] = {
            key: self._operand(node, argument) for (key, _), argument in zip(parameters, node.args[1:])
        }
        for key, default in parameters[len(given) :]:
            if is_parametrized(module, key):
                given[key] = self._parametrized(node, name, key, module)
                continue
            held = getattr(module, key, default)
            if isinstance(held, torch.Tensor):
                held = self.leaf(f"{name}.{key}")
            else:
                taken[key] = held
            given[key] = held
        if row.text.endswith("_module"):
            given = {"module": module, "name": name}
        return self._apply(node, row, value, given)

    def _parametrized(self, node: fx.Node, name: str, key: str, module: nn.Module) -> Leaf:
        """A parameter that torch.nn.utils.parametrize computes from others."""
        held = getattr(module.parametrizations, key)
        if any(True for _ in held.buffers()):  # which it may change while it trains, as spectral_norm does
            if held.training:
                raise refuse(node, f"{name}.{key} is parametrized by what keeps buffers; call eval() first")
            self.modes[f"{name}.parametrizations.{key}"] = False
        return self._computed(f"{name}.{key}", recipe.of_parametrization(name, key, self.root), node)

    def _call(self, node: fx.Node, row: Spelling | None, name: str) -> Value:
        arguments = [self._operands(node, a) for a in node.args]
        keywords = {_ALIASES.get(k, k): self._operands(node, v) for k, v in node.kwargs.items()}
        if node.target in _FOLDED_NUMBERS and all(isinstance(a, (int, float)) for a in arguments) and not keywords:
            folded: Value = node.target(*arguments)
            return folded
        if arguments or "input" in keywords:
            value = arguments.pop(0) if arguments else keywords.pop("input")
        else:
            value = None
        everything = (value, *arguments, *keywords.values())
        if node in self.parametric and any(isinstance(v, Leaf) for v in everything):
            return self._parameter_call(node, value, name, arguments, keywords)
        if any(isinstance(v, Extent) for v in everything) and (row is None or not row.sizes):
            raise refuse(node, rules.BATCH_SIZE)
        if row is None:
            known = (int, float, Row, Input, Pair, LogSoftmax, Loss, Comparison)
            if any(isinstance(v, known) for v in everything):
                raise refuse(node, rules.no_function(name))
            raise refuse(node, f"what {name} returns is not known before the module runs")
        return self._apply(node, row, value, _bind(node, row, name, arguments, keywords))

    def _apply(self, node: fx.Node, row: Spelling, value: Value, given: dict[str, Any]) -> Value:
        kind, _, extra = row.text.partition(" ")
        if kind.startswith("@"):
            return _rule(kind[1:])(self, node, value, *filter(None, [extra]), **given)
        given.pop("inplace", None)
        row_value = rules.as_row(node, value)
        return rules.extend(node, row_value, *_steps(node, row.text, given))

    def _parameter_call(self, node: fx.Node, leaf: Value, name: str, arguments: list[Any], keywords: Any) -> Leaf:
        """A parameter's own methods, which are applied when it is loaded, or anything else computed from parameters."""
        if isinstance(leaf, Leaf) and not keywords:
            if name in ("transpose", "swapaxes", "swapdims") and sorted(a % 2 for a in arguments) == [0, 1]:
                return Leaf(leaf.index, (*leaf.methods, "t"))
            if name == "permute" and (arguments in ([1, 0], [(1, 0)], [[1, 0]])):
                return Leaf(leaf.index, (*leaf.methods, "t"))
            if name in _PARAMETER_METHODS and not arguments:
                return Leaf(leaf.index, (*leaf.methods, name))
        return self._computed(node.name, recipe.of_node(node, self.root), node)

    def _access(self, node: fx.Node) -> Value:
        """Attributes and indices: W.T, torch.max(...)[0], .values, [:, None], x.shape, x.dtype."""
        value, key = self._operand(node, node.args[0]), self._operands(node, node.args[1])
        if isinstance(value, Pair):
            if key in (0, "values"):
                return value.values
            if key in (1, "indices") and value.indices is not None:
                return value.indices
            raise refuse(node, "the indices of a value that was reduced before are not computed")
        if isinstance(value, Leaf):
            if isinstance(key, str) and key in _TRANSPOSES:
                return Leaf(value.index, (*value.methods, "t"))
            if key == "data":
                return value
            if key == "device":
                return Where()
            if key == "dtype" and self._is_weight(value):
                return WeightType()
            if node.target is operator.getitem:
                return self._computed(node.name, recipe.of_node(node, self.root), node)
        if isinstance(value, (Row, Input)) and node.target is getattr:
            found = rules_shapes.attribute(self, node, value, str(key))
            if found is not None:
                return found
        if isinstance(value, Shape):
            return rules_shapes.extent(self, node, value, key)
        if isinstance(value, Row) and node.target is operator.getitem:
            return rules_shapes.index(self, node, value, key)
        if isinstance(value, Input) and node.target is operator.getitem:
            raise refuse(node, "it takes parts of the input, before the linear layer")
        text = f"attribute {key}" if node.target is getattr else f"index {key!r}"
        raise refuse(node, f"the {text} of a value is not known before the module runs")

    def _is_weight(self, leaf: Leaf) -> bool:
        """Whether a leaf is the weight of the linear layer, or of the only ones that there are."""
        weights = {self.leaves[self.linear.weight.index]} if self.linear else self._weights()
        return self.leaves[leaf.index] in weights and len(weights) == 1

    def _weights(self) -> set[str]:
        return {f"{n}.weight" for n, m in self.root.named_modules() if isinstance(m, nn.Linear)}

    def check_in_place(self) -> None:
        """An operator in place changes a value that nobody else may look at, under whatever name."""
        for node in self.graph.nodes:
            if not self._is_in_place(node):
                continue
            changed = _base(self.values.get(node.args[0]))
            if isinstance(changed, Leaf) or (node in self.parametric and node.op != "call_module"):
                raise refuse(
                    node,
                    "it changes a parameter or buffer, which the fused module would not do; use the form that does not",
                )
            users = [
                other
                for alias, value in self.values.items()
                if _base(value) is changed and alias is not node
                for other in alias.users
                if _base(self.values.get(other)) is not changed and other is not node
            ]
            # A region reads its input where the linear layer stands, so what becomes of that later is no matter.
            if isinstance(changed, Row if self.seed is not None else (Row, Input)) and users:
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


def parametric(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that depend on parameters and buffers alone."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr" or (node.op == "call_module" and not node.all_input_nodes):
            found.add(node)
        elif node.op in ("call_function", "call_method", "call_module") and node.all_input_nodes:
            if all(n in found for n in node.all_input_nodes):
                found.add(node)
    return found


def _base(value: Value) -> Value:
    """The value whose memory this one may share: casts and shapes can be views."""
    while isinstance(value, Row) and len(value.operands) == 1 and all(step.op == "cast" for step in value.steps):
        value = value.operands[0]
    return value


def _rule(name: str) -> Callable[..., Value]:
    """The function of that name that builds a row of the table."""
    found: Callable[..., Value] = next(vars(m)[name] for m in (rules, rules_columns, rules_shapes) if name in vars(m))
    return found


def _bind(node: fx.Node, row: Spelling, name: str, arguments: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, with the row's defaults."""
    if row.arguments.startswith("*"):
        return {row.arguments[1:]: tuple(arguments), **keywords}
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
