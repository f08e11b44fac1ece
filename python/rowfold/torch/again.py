# SPDX-License-Identifier: MIT
"""Calls of a fused module that nothing has changed since the last one: the shortest way to the one call of the library.

A call that went the long way, through all checks, leaves a list of what it found where. The next one asks whether all
of it is still there, as it was; what a tensor x decides is checked as for every Model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .program import Runner, signature


class Again:
    """What one call of a module found. Immutable: any number of threads may use it."""

    __slots__ = ("_autocast", "_modal", "_objects", "_sources", "_tensors", "runner")

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._autocast = runner.device.type
        self._objects: list[tuple[dict[str, Any], str, Any]] = []  # a dict, and what it must hold under a name
        self._tensors: list[tuple[Any, int, int, Any, Any, Any]] = []
        self._sources: list[torch.Tensor] = []
        self._modal: list[nn.Module] = []

    @classmethod
    def learn(
        cls,
        runner: Runner,
        module: nn.Module,
        captured: dict[str, Any],
        paths: Iterable[tuple[str, tuple[str, ...]]],
        modal: Iterable[str],
    ) -> Again | None:
        """What tells that the next call is like this one; None where a tensor is no parameter, buffer or constant."""
        made = cls(runner)
        try:
            for name, path in paths:
                made._sources.append(made._find(module, captured, name, path))
            for name in modal:
                made._modal.append(made._walk(module, tuple(name.split("."))))
        except KeyError:
            return None
        for t in made._sources:
            made._tensors.append((t, t.data_ptr(), t._version, t.dtype, t.shape, t.stride()))
        # Another thread may have changed a tensor since the runner was asked for.
        return made if runner.signature == signature(made._sources) else None

    def _find(self, module: nn.Module, captured: dict[str, Any], name: str, path: tuple[str, ...]) -> Any:
        if name in captured:
            return self._hold(captured, name)
        at = self._walk(module, path[:-1])
        return self._hold(at._parameters if at._parameters.get(path[-1]) is not None else at._buffers, path[-1])

    def _walk(self, module: nn.Module, path: tuple[str, ...]) -> Any:
        for part in path:
            module = self._hold(module._modules, part)
        return module

    def _hold(self, where: Any, name: str) -> Any:
        row = (where, name, where[name])
        if row[2] is None:
            raise KeyError(name)
        if not any(where is held[0] and name == held[1] for held in self._objects):
            self._objects.append(row)
        return row[2]

    def holds(self) -> bool:
        """Whether all is as it was, and nothing has come that refuses a call."""
        for where, name, held in self._objects:
            if where.get(name) is not held:
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
        for module in self._modal:
            if module.training:
                return False
        if torch.is_grad_enabled():
            for t in self._sources:
                if t.requires_grad:
                    return False
        return not torch.is_autocast_enabled(self._autocast)
