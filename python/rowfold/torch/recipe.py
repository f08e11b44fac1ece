# SPDX-License-Identifier: MIT
"""Tensors that a forward computes from parameters and buffers alone: ``W * mask``, ``1 - scale``, weight_norm, LoRA.

They are recorded, computed when the weights are loaded, and again when one of their sources has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import FuseError


@dataclass(frozen=True)
class Result:
    """The result of an earlier step, by its index."""

    index: int


@dataclass(frozen=True)
class Recipe:
    """The steps that lead to one tensor; ``sources`` are the dotted names of what they read."""

    steps: tuple[tuple[str, Any, Any, Any], ...]
    sources: tuple[str, ...]

    def __call__(self, lookup: Callable[[str], Any]) -> torch.Tensor:
        """The tensor; ``lookup`` finds a tensor or a module of that name."""
        results: list[Any] = []

        def filled(value: Any) -> Any:
            return pytree.tree_map_only(Result, lambda result: results[result.index], value)

        for op, target, args, kwargs in self.steps:
            if op == "get_attr":
                results.append(lookup(target))
            elif op == "call_module":
                results.append(lookup(target)(*filled(args), **filled(kwargs)))
            elif op == "call_method":
                value, *rest = filled(args)
                results.append(getattr(value, target)(*rest, **filled(kwargs)))
            else:
                results.append(target(*filled(args), **filled(kwargs)))
        tensor: torch.Tensor = results[-1]
        return tensor

    def check(self, lookup: Callable[[str], Any], what: str) -> torch.Tensor:
        """The tensor, if it follows from its sources alone. Raises FuseError for chance and side effects."""
        with torch.no_grad(), _Pure(what):
            tensor = self(lookup)
        if not isinstance(tensor, torch.Tensor):
            raise FuseError(f"cannot fuse {what}: it gives a {type(tensor).__qualname__}; expected a tensor")
        return tensor


class _Pure(TorchDispatchMode):
    """Refuses random numbers, and changes of what was there before."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.made: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise FuseError(f"cannot fuse {self.what}: {func.name()} is random, and would be drawn once")
        for argument, given in zip(func._schema.arguments, args):
            if argument.alias_info is not None and argument.alias_info.is_write and id(given) not in self.made:
                raise FuseError(
                    f"cannot fuse {self.what}: {func.name()} changes a parameter or buffer; call eval() first"
                )
        result = func(*args, **(kwargs or {}))
        self.made.update((id(v), v) for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor))
        return result


def of_node(node: fx.Node, root: nn.Module) -> Recipe:
    """The recipe of a node that depends on parameters and buffers alone."""
    wanted, open_nodes = {node}, [node]
    while open_nodes:
        for other in open_nodes.pop().all_input_nodes:
            if other not in wanted:
                wanted.add(other)
                open_nodes.append(other)
    steps: list[tuple[str, Any, Any, Any]] = []
    sources: dict[str, None] = {}
    places: dict[fx.Node, Result] = {}
    for other in node.graph.nodes:
        if other not in wanted:
            continue
        places[other] = Result(len(steps))
        args, kwargs = (fx.node.map_arg(v, lambda n: cast(Any, places[n])) for v in (other.args, other.kwargs))
        steps.append((other.op, other.target, args, dict(kwargs)))
        if other.op == "get_attr":
            sources[str(other.target)] = None
        elif other.op == "call_module":
            sources.update(dict.fromkeys(_read_by(root, str(other.target))))
    return Recipe(tuple(steps), tuple(sources))


def of_parametrization(name: str, key: str, root: nn.Module) -> Recipe:
    """The recipe of ``key``, which the module of that name computes by torch.nn.utils.parametrize."""
    computed = f"{name}.parametrizations.{key}"
    return Recipe((("call_module", computed, (), {}),), tuple(_read_by(root, computed)))


def _read_by(root: nn.Module, name: str) -> list[str]:
    module = root.get_submodule(name)
    named: Mapping[str, Any] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return [f"{name}.{key}" for key in named]
