# SPDX-License-Identifier: MIT
"""From a module or function to a torch.fx graph in which every node knows its source line."""

from __future__ import annotations

import inspect
import linecache
import operator
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import FuseError

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
SOURCE, KIND = "rowfold_source", "rowfold_kind"  # keys of node.meta: the source line; the class of a module

IN_PLACE_OPERATORS = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow)


class _Proxy(fx.Proxy):
    """A proxy that also records what fx.Proxy does not: abs(), and operators in place, which change their operand."""

    def __abs__(self) -> Any:
        return self.tracer.create_proxy("call_function", operator.abs, (self,), {})


def _record(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: _Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _function in IN_PLACE_OPERATORS:
    setattr(_Proxy, f"__{_function.__name__}__", _record(_function))


class _Tracer(fx.Tracer):
    """Notes source lines, and takes tensors that are no attribute of the module as leaves of their own."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__()
        self.captured: dict[str, torch.Tensor] = {}
        self.entered: dict[str, nn.Module] = {}

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        path = self.path_of_module(m)
        if not self.is_leaf_module(m, path):
            self.entered[path] = m
        return super().call_module(m, forward, args, kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta[SOURCE] = _source(inspect.currentframe())
        if node.op == "call_module":
            node.meta[KIND] = type(self.root.get_submodule(str(node.target))).__qualname__
        return node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # What is fused already is one operation, not what its forward consists of.
        fused = type(m).__module__.startswith(__package__ + ".")
        return fused or super().is_leaf_module(m, module_qualified_name)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if isinstance(attr_val, torch.Tensor) and attr_val in self.tensor_attrs:
            return self.create_proxy("get_attr", str(self.tensor_attrs[attr_val]), (), {})
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor) and not self._is_attribute(a):
            name = next((n for n, t in self.captured.items() if t is a), f"captured_{len(self.captured)}")
            self.captured[name] = a
            return self.create_node("get_attr", name, (), {})
        return super().create_arg(a)

    def _is_attribute(self, a: torch.Tensor) -> bool:
        named = (*self.root.named_parameters(), *self.root.named_buffers())
        return a in self.tensor_attrs or any(a is tensor for _, tensor in named)


class _NothingIsComputed(TorchDispatchMode):
    """Refuses what would be computed once, while tracing, and be a constant ever after.

    That is random numbers, and values of tensors that may change. Constants made from nothing, as torch.tensor(2.0) or
    torch.ones(3) * 2, are fine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, torch.Tensor] = {}  # held, so that no other tensor gets the same id

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        where = _source(inspect.currentframe())
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise FuseError(f"cannot fuse {func.name()} at {where}: it is random, and would be drawn once")
        given = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        if func is not torch.ops.aten.lift_fresh.default and any(id(v) not in self.made for v in given):
            raise FuseError(
                f"cannot fuse {func.name()} at {where}: it computes from a tensor that is no parameter, buffer or "
                "attribute of the module, once, and would miss changes of it; compute it before and use the result"
            )
        result = func(*args, **(kwargs or {}))
        self.made.update((id(v), v) for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor))
        return result


def _source(frame: Any) -> str:
    """The innermost line that is neither PyTorch's nor this package's: ``model.py:12: x = 2 / x``."""
    while frame is not None:
        if frame.f_code is trace.__code__:  # beyond it are the lines that asked for the trace
            return ""
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _HERE, "<")):
            line = linecache.getline(name, frame.f_lineno).strip()
            return f"{os.path.basename(name)}:{frame.f_lineno}" + (f": {line}" if line else "")
        frame = frame.f_back
    return ""


@dataclass(frozen=True, eq=False)
class Recording:
    """A graph, the module that its attributes belong to, and tensors that belong to none.

    ``entered`` are the modules whose own forward was run for it, ``modes`` what those that were asked said of their
    training mode.
    """

    graph: fx.Graph
    root: nn.Module
    captured: dict[str, torch.Tensor]
    entered: dict[str, nn.Module]
    modes: dict[str, bool]


@contextmanager
def modes_read() -> Iterator[set[nn.Module]]:
    """The modules that are asked for their training mode meanwhile.

    A property of the class is found before what an object holds; so it is for all modules, as fx has it for calls.
    """
    asked: set[nn.Module] = set()

    def read(module: nn.Module) -> bool:
        if "training" not in module.__dict__:
            raise AttributeError("training")  # upon which it is asked for as before: one of torch.jit has it elsewhere
        asked.add(module)
        return bool(module.__dict__["training"])

    def write(module: nn.Module, mode: bool) -> None:
        module.__dict__["training"] = mode

    cast(Any, nn.Module).training = property(read, write)
    try:
        yield asked
    finally:
        del cast(Any, nn.Module).training


def modes_of(root: nn.Module, asked: set[nn.Module]) -> dict[str, bool]:
    """The training modes of those modules, by their names in ``root``."""
    return {name: module.training for name, module in root.named_modules() if module in asked}


def trace(target: nn.Module | Callable[..., Any]) -> Recording:
    """What the forward does, recorded without values.

    Parameters with a default keep it. Raises FuseError where the forward cannot be traced, with the source line.
    """
    tracer = _Tracer()
    defaults = kept_defaults(target)
    if not parameter_names(target):
        raise FuseError("the forward names no parameter; expected its tensors by name, not *args or **kwargs alone")
    try:
        with torch.no_grad(), _NothingIsComputed(), modes_read() as asked:
            graph = tracer.trace(target, concrete_args=defaults or None)
    except FuseError:
        raise
    except Exception as error:
        where, said = _source_of(error), str(error).split(". ")[0]
        raise FuseError(
            f"the forward cannot be traced{where}: {type(error).__name__}: {said}. fuse reads a forward by running it "
            "once without values: put what depends on values before or after a module of its own that holds the linear "
            "layer and what follows it, and fuse that; fuse(module, partial=True) looks into the modules inside"
        ) from error
    for node in reversed(list(graph.nodes)):
        # What fx leaves of the parameters that keep their defaults.
        name = str(node.target)
        made = node.op == "placeholder" and any(name.startswith(f"{key}_") for key in defaults)
        if node.target is torch._assert or made or getattr(node.target, "__name__", "") == "_assert_is_none":
            if not node.users:
                graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node.target is operator.eq and not node.users:
            graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        name = str(node.target)
        if node.op == "placeholder" and not node.users and name.startswith(("*", *(f"{k}_" for k in defaults))):
            graph.erase_node(node)
    graph.set_codegen(fx.graph.CodeGen())
    if isinstance(target, nn.Module):
        tracer.entered[""] = target
    return Recording(graph, tracer.root, tracer.captured, tracer.entered, modes_of(tracer.root, asked))


def parameter_names(target: nn.Module | Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of a forward, but for ``*args`` and ``**kwargs``."""
    function = target.forward if isinstance(target, nn.Module) else target
    found = inspect.signature(function).parameters.values()
    return tuple(p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))


def kept_defaults(target: nn.Module | Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a forward that have a default, but for the first: a trace holds for these values alone."""
    function = target.forward if isinstance(target, nn.Module) else target
    return {
        name: parameter.default
        for name, parameter in list(inspect.signature(function).parameters.items())[1:]
        if parameter.default is not inspect.Parameter.empty
    }


def _source_of(error: BaseException) -> str:
    frames = []
    walk = error.__traceback__ or sys.exc_info()[2]
    while walk is not None:
        frames.append((walk.tb_frame.f_code.co_filename, walk.tb_lineno))
        walk = walk.tb_next
    for name, number in reversed(frames):
        if not name.startswith((_TORCH, _HERE, "<")):
            line = linecache.getline(name, number).strip()
            return f" at {os.path.basename(name)}:{number}" + (f": {line}" if line else "")
    return ""
