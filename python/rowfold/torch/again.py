# SPDX-License-Identifier: MIT
"""Calls of a fused module that nothing has changed since the last one: the shortest way to the one call of the library.

A call that went the long way, through all checks, leaves a list of what it found where. The next one asks whether all
of it is still there, as it was; what a tensor x decides is checked as for every Model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from .program import Runner, signature


@dataclass(frozen=True, eq=False)
class Called:
    """A module whose calls an operation takes the place of, as it was when the forward was recorded.

    ``module`` is one whose own forward was run for that, and must stay. One of PyTorch's may be replaced by another of
    its ``kind`` that has the same ``values``, which are what it holds besides tensors.
    """

    name: str
    module: nn.Module | None
    kind: type
    values: Mapping[str, Any]
    hooks: tuple[int, ...]
    forward: Any
    size: int | None

    @classmethod
    def of(cls, root: nn.Module, name: str, values: Mapping[str, Any] | None) -> Called:
        """The module of that name in ``root``; ``values`` None where it must stay."""
        module = root.get_submodule(name)
        return cls(
            name,
            module if values is None else None,
            type_before_parametrizations(module),
            values or {},
            _hooks(module),
            module.__dict__.get("forward"),
            _size(module),
        )

    def change(self, root: nn.Module) -> str:
        """What is no longer as it was, in words; empty where all is."""
        now, name = _submodule(root, self.name), self.name or self.kind.__qualname__
        if now is None:
            return f"{name} is no module any more"
        if type_before_parametrizations(now) is not self.kind or (self.module is not None and now is not self.module):
            return f"{name} was replaced by {'another ' if type(now) is self.kind else ''}{type(now).__qualname__}"
        if _hooks(now) != self.hooks:
            return f"{name} has other forward hooks, which would not be called"
        if now.__dict__.get("forward") is not self.forward:
            return f"{name} has another forward"
        if _size(now) != self.size:
            return f"{name} holds {_size(now)} modules, and held {self.size}"
        for key, value in self.values.items():
            held = getattr(now, key, value)
            if held is not value and (isinstance(held, torch.Tensor) or held != value):
                shown = f"a {type(held).__qualname__}" if isinstance(held, torch.Tensor) else repr(held)
                return f"{name}.{key} is {shown}, and was {value!r}"
        return ""


def called(root: nn.Module, entered: Iterable[str], taken: Mapping[str, Mapping[str, Any]]) -> list[Called]:
    """The modules of these names; and those that hold them, whose loops over what they hold were recorded, too."""
    names = dict.fromkeys(entered)
    for name in [*names, *taken]:
        parts = name.split(".")
        names.update(dict.fromkeys(".".join(parts[:i]) for i in range(1, len(parts))))
    found = [Called.of(root, name, None) for name in names]
    return found + [Called.of(root, name, values) for name, values in taken.items() if name not in names]


def _hooks(module: nn.Module) -> tuple[int, ...]:
    return (*module._forward_hooks, *module._forward_pre_hooks)


def _size(module: nn.Module) -> int | None:
    """How many modules one holds that has no names of its own for them."""
    return len(module._modules) if isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)) else None


def _submodule(root: nn.Module, name: str) -> nn.Module | None:
    at: Any = root
    for part in name.split(".") if name else ():
        at = None if at is None else at._modules.get(part)
    return at


class Watch:
    """What must be as it was, in the form in which that is asked fastest."""

    __slots__ = ("_empty", "_full", "_objects")

    def __init__(self) -> None:
        self._objects: list[tuple[dict[Any, Any], Any, Any]] = []  # a dict, and what it must hold under a name
        self._empty: list[dict[Any, Any]] = []
        self._full: list[tuple[dict[Any, Any], int]] = []  # a dict, and how much it must hold

    def walk(self, module: nn.Module, path: Iterable[str]) -> Any:
        """The submodule of that path, which must stay. Raises KeyError where there is none."""
        for part in path:
            module = self.hold(module._modules, part)
        return module

    def hold(self, where: dict[Any, Any], name: Any) -> Any:
        """What a dict holds, which must stay. Raises KeyError for nothing and for None."""
        if where[name] is None:
            raise KeyError(name)
        return self.keep(where, name)

    def keep(self, where: dict[Any, Any], name: Any) -> Any:
        """What a dict holds or None, which must stay."""
        found = where.get(name)
        if not any(where is held[0] and name == held[1] for held in self._objects):
            self._objects.append((where, name, found))
        return found

    @classmethod
    def of(cls, root: nn.Module, modules: Iterable[Called]) -> Watch:
        """Modules as they are. Raises KeyError where there is none of them."""
        made = cls()
        for one in modules:
            made._called(root, one)
        return made

    def _called(self, root: nn.Module, one: Called) -> None:
        module = self.walk(root, one.name.split(".") if one.name else ())
        self.keep(module.__dict__, "forward")
        wholes: list[dict[Any, Any]] = [module._forward_hooks, module._forward_pre_hooks]
        for whole in wholes if one.size is None else (*wholes, module._modules):
            for key in whole:
                self.keep(whole, key)
            if whole:
                self._full.append((whole, len(whole)))
            else:
                self._empty.append(whole)
        for key in one.values:
            self.keep(module._parameters if key in module._parameters else module.__dict__, key)

    def holds(self) -> bool:
        """Whether all is as it was."""
        for where, name, held in self._objects:
            if where.get(name) is not held:
                return False
        for whole, size in self._full:
            if len(whole) != size:
                return False
        return not any(self._empty)


class Again(Watch):
    """What one call of a module found. Immutable: any number of threads may use it."""

    __slots__ = ("_autocast", "_modes", "_sources", "_tensors", "runner")

    def __init__(self, runner: Runner, modules: Watch) -> None:
        super().__init__()
        self._objects += modules._objects
        self._empty += modules._empty
        self._full += modules._full
        self.runner = runner
        self._autocast = runner.device.type
        self._tensors: list[tuple[Any, int, int, Any, Any, Any]] = []
        self._sources: list[torch.Tensor] = []
        self._modes: list[tuple[nn.Module, bool]] = []

    @classmethod
    def learn(
        cls,
        runner: Runner,
        module: nn.Module,
        captured: dict[str, Any],
        paths: Iterable[tuple[str, tuple[str, ...]]],
        modes: Mapping[str, bool],
        modules: Watch,
    ) -> Again | None:
        """What tells that the next call is like this one; None where a tensor is no parameter, buffer or constant."""
        made = cls(runner, modules)
        try:
            for name, path in paths:
                made._sources.append(made._find(module, captured, name, path))
            for name, mode in modes.items():
                made._modes.append((made.walk(module, name.split(".") if name else ()), mode))
        except KeyError:
            return None
        for t in made._sources:
            made._tensors.append((t, t.data_ptr(), t._version, t.dtype, t.shape, t.stride()))
        # Another thread may have changed a tensor since the runner was asked for.
        return made if runner.signature == signature(made._sources) else None

    def _find(self, module: nn.Module, captured: dict[str, Any], name: str, path: tuple[str, ...]) -> Any:
        if name in captured:
            return self.hold(captured, name)
        at = self.walk(module, path[:-1])
        return self.hold(at._parameters if at._parameters.get(path[-1]) is not None else at._buffers, path[-1])

    def holds(self) -> bool:
        """Whether all is as it was, and nothing has come that refuses a call."""
        if not super().holds():
            return False
        for t, pointer, version, dtype, shape, stride in self._tensors:
            if (
                t._version != version
                or t.data_ptr() != pointer
                or t.dtype is not dtype
                or t.shape != shape
                or t.stride() != stride
            ):
                return False
        for module, mode in self._modes:
            if module.training is not mode:
                return False
        if torch.is_grad_enabled():
            for t in self._sources:
                if t.requires_grad:
                    return False
        return not torch.is_autocast_enabled(self._autocast)
