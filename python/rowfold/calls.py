# SPDX-License-Identifier: MIT
"""Calls on plain tensors of a shape that was seen before, by the shortest way.

The first call with a shape goes the long way, through ``kinds`` and all checks. What it found out that the shape, dtype
and device decide is kept; a later call makes the checks that the tensor itself decides, and one call of the library.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _lib
from ._lib import Memory
from .arrays import Matrix
from .handle import Handle
from .tensors import torch_facts

_SHAPES = 32  # kept of a model, the oldest goes first
_STREAMS = 8  # whose workspaces are kept
_LARGEST_KEPT = 1 << 20  # bytes of workspace; with more rows a call takes longer than PyTorch needs to allocate it
_ALIGNED = 15


class _Shape(NamedTuple):
    """What calls of one shape, dtype and device share."""

    result: tuple[int, ...]
    dropped: tuple[int, ...] | None  # without its one column; None where there are more
    dtype: Any  # of the result, PyTorch's
    template: bytes  # of rf_forward_args
    spare: list[tuple[Any, Any]]  # arguments that no call is using: the struct, and the reference to it
    device: int  # of CUDA, -1 on the host
    workspace: int  # bytes, 0 on the host


class TensorCalls:
    """The short way of one model. Any number of threads may call it: nothing that two of them use is changed."""

    __slots__ = ("_facts", "_handle", "_known", "_pointer", "_workspaces")

    def __init__(self, handle: Handle) -> None:
        self._handle, self._pointer = handle, handle.pointer
        self._facts = torch_facts()
        self._known: dict[Any, _Shape] = {}
        self._workspaces: dict[int, list[Any]] = {}

    def learn(self, x: Any, given: Matrix, result: Matrix) -> None:
        """Remembers the shape of a call that the long way has made. Does nothing where the short one does not fit."""
        if type(x) not in self._facts.plain or given.owner is not x or not x.is_contiguous() or not given.batch:
            return
        args = _lib.ForwardArgs(
            size=ctypes.sizeof(_lib.ForwardArgs),
            x=given.pointer,
            batch=given.batch,
            x_dtype=given.dtype,
            y_dtype=result.dtype,
            x_memory=given.memory,
            y_memory=result.memory,
        )
        if given.pointer & _ALIGNED:
            return
        device = given.device if given.memory is Memory.DEVICE else -1
        workspace = self._handle.call_workspace(args) if device >= 0 else 0
        wanted = given.lead + result.owner.shape[len(given.lead) :]
        dropped = wanted[:-1] if wanted[-1] == 1 else None
        dtype = self._facts.by_dtype[result.dtype]  # the caller's out may hold it under another name
        shape = _Shape(wanted, dropped, dtype, bytes(args), [], device, workspace)
        for oldest in list(self._known)[: max(0, len(self._known) - _SHAPES + 1)]:
            self._known.pop(oldest, None)
        self._known[x.shape, x.dtype, x.device, x.layout] = shape

    def run(self, x: Any, out: Any = None, keepdims: bool = True) -> Any:
        """The result; None where the long way must be taken, which knows what to say if something is wrong.

        It is the caller's ``out``, with or without the one column of a reduction, if that is given.
        """
        facts = self._facts
        if type(x) not in facts.plain:
            return None
        shape = self._known.get((x.shape, x.dtype, x.device, x.layout))
        if (
            shape is None
            or not x.is_contiguous()
            or (x.requires_grad and facts.is_grad_enabled())
            or x.is_neg()
            or facts.forward_ad._current_level >= 0
            or facts.dispatch_modes()
            or facts.tracing_state() is not None
            or facts.transform() is not None
        ):
            return None
        try:
            pointer = x.data_ptr()
            if not pointer or pointer & _ALIGNED:
                return None
            if out is None:
                y = x.new_empty(shape.result if keepdims else shape.dropped, dtype=shape.dtype)
            elif self._fits(out, x, shape):
                y = out
            else:
                return None
        except RuntimeError:
            return None
        try:
            args, reference = shape.spare.pop()
        except IndexError:
            args = _lib.ForwardArgs.from_buffer_copy(shape.template)
            reference = ctypes.byref(args)
        args.x, args.y = pointer, y.data_ptr()
        if shape.device < 0:
            status = self._handle.library.forward_ex(self._pointer, reference)
        else:
            status = self._on_device(shape, x, args, reference)
        shape.spare.append((args, reference))
        if status:
            self._handle.library.check(status)
        if out is not None and not out.is_inference():
            facts.increment_version(out)
        return y

    def _fits(self, out: Any, x: Any, shape: _Shape) -> bool:
        """Whether a result may go there as it is. That it overlaps x the library itself says."""
        facts = self._facts
        return (
            type(out) in facts.plain
            and out.dtype is shape.dtype
            and (out.shape == shape.result or out.shape == shape.dropped)
            and out.device == x.device
            and out.layout is facts.strided
            and out.is_contiguous()
            and not (out.requires_grad and facts.is_grad_enabled())
            and not out.is_neg()
            and not out.data_ptr() & _ALIGNED
        )

    def _on_device(self, shape: _Shape, x: Any, args: Any, reference: Any) -> int:
        """A call on PyTorch's current stream, with a workspace that calls on that stream use one after the other."""
        facts, size = self._facts, shape.workspace
        stream = args.stream = facts.raw_stream(shape.device)
        if not size:
            return int(self._handle.library.forward_ex(self._pointer, reference))
        # What a graph captures must be the graph's own memory: it is used at each replay.
        free = None if size > _LARGEST_KEPT or facts.is_capturing() else self._free_on(stream)
        memory = None
        if free:
            try:
                memory = free.pop()
            except IndexError:  # another thread was faster
                pass
        if memory is None or memory.numel() < size:
            memory = facts.empty((size,), dtype=facts.uint8, device=x.device)
        args.workspace, args.workspace_size = memory.data_ptr(), size
        status = int(self._handle.library.forward_ex(self._pointer, reference))
        # All work of the call is on the stream now, and whatever uses the memory next comes behind it.
        if free is not None:
            free.append(memory)
        return status

    def _free_on(self, stream: int) -> list[Any]:
        """The workspaces that no call on this stream is using."""
        free = self._workspaces.get(stream)
        if free is None:
            if len(self._workspaces) >= _STREAMS:
                self._workspaces.clear()
            free = self._workspaces.setdefault(stream, [])
        return free
