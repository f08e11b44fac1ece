# SPDX-License-Identifier: MIT
"""``torch.ops.rowfold.fused``: the fused forward as an operator that torch.compile, torch.export and CUDA graphs know.

An exported graph that holds it runs in any process that has imported ``rowfold.torch``.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from ..errors import InvalidArgumentError
from .program import Runner, check_dims, parse, signature

_MOST_RECENT = 16  # programs that the operator itself keeps loaded; a Fused module keeps its own

_Key = tuple[object, ...]
_live: weakref.WeakValueDictionary[_Key, Runner] = weakref.WeakValueDictionary()
_recent: OrderedDict[_Key, Runner] = OrderedDict()
_lock = threading.Lock()


def _after_fork_in_child() -> None:
    """The thread that held the lock, if one did, is not in the child.

    What it was doing can be left as it is: freeing a program of a GPU would call CUDA, which has not survived.
    """
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def runner(text: str, leaves: Sequence[torch.Tensor]) -> Runner:
    """A loaded program for these tensors as they are now: one that is there already, or a new one."""
    key = (text, *(t.data_ptr() for t in leaves))
    with _lock:
        found = _live.get(key)
        if found is None or (found.signature != signature(leaves) and not found.update(leaves)):
            found = _live[key] = Runner(parse(text), leaves)
            if key in _recent:
                _recent[key] = found
        return found


def check_grad(tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    """Raises InvalidArgumentError where PyTorch would record a gradient, or carry a tangent along."""
    error = grad_error(tensors, names)
    if error is not None:
        raise error


def grad_error(tensors: Sequence[torch.Tensor], names: Sequence[str]) -> InvalidArgumentError | None:
    """The error of a call for which PyTorch would record a gradient, or carry a tangent along; None if it would not."""
    if forward_ad._current_level >= 0:
        for tensor, name in zip(tensors, names):
            if forward_ad.unpack_dual(tensor).tangent is not None:
                return InvalidArgumentError(
                    f"{name} has a tangent of forward-mode differentiation, but the fused forward computes none; "
                    "differentiate the original module"
                )
    if torch.is_grad_enabled():
        for tensor, name in zip(tensors, names):
            if tensor.requires_grad:
                return InvalidArgumentError(
                    f"{name} requires grad and grad mode is on, but the fused forward computes no gradients; call it "
                    "under torch.no_grad() or torch.inference_mode(), or freeze the module with requires_grad_(False)"
                )
    return None


@torch.library.custom_op("rowfold::fused", mutates_args=(), schema="(Tensor x, Tensor[] leaves, str program) -> Tensor")
def fused(x: torch.Tensor, leaves: Sequence[torch.Tensor], program: str) -> torch.Tensor:
    """The program on x, with the leaves' values."""
    check_grad([x, *leaves], ["x", *parse(program).names])
    return _recently(program, leaves)(x)


@fused.register_fake
def _(x: torch.Tensor, leaves: Sequence[torch.Tensor], program: str) -> torch.Tensor:
    read = parse(program)
    check_dims(x, read.dims, 1)
    weight = leaves[read.weight.index]
    columns = weight.shape[read.weight.methods.count("t") % 2]
    lead = [prod(x.shape[:-1])] if read.flat else list(x.shape[:-1])
    tail = [] if read.dropped else [1 if read.folded else columns]
    return x.new_empty(lead + tail, dtype=read.result_dtype(leaves))


@torch.library.custom_op(
    "rowfold::fused_results",
    mutates_args=(),
    schema="(Tensor x, Tensor[] leaves, Tensor[] columns, str program) -> Tensor[]",
)
def fused_results(
    x: torch.Tensor, leaves: Sequence[torch.Tensor], columns: Sequence[torch.Tensor], program: str
) -> list[torch.Tensor]:
    """The program with several outputs on x and columns, with the leaves' values."""
    check_grad([x, *leaves], ["x", *parse(program).names])
    return _recently(program, leaves).several(x, columns)


@fused_results.register_fake
def _(
    x: torch.Tensor, leaves: Sequence[torch.Tensor], columns: Sequence[torch.Tensor], program: str
) -> list[torch.Tensor]:
    read = parse(program)
    check_dims(x, read.dims, 1)
    made = []
    for output, dtype in zip(read.outputs, read.output_dtypes(leaves)):
        lead = [prod(x.shape[:-1])] if output.flat else list(x.shape[:-1])
        shape = [] if output.reduction in ("mean", "sum") else lead + ([] if output.dropped else [read.width(output)])
        made.append(x.new_empty(shape, dtype=dtype))
    return made


def _recently(program: str, leaves: Sequence[torch.Tensor]) -> Runner:
    """The loaded program, which is kept while it is one of the last that were called."""
    found = runner(program, leaves)
    key = (program, *(t.data_ptr() for t in leaves))
    with _lock:
        _recent[key] = found
        _recent.move_to_end(key)
        while len(_recent) > _MOST_RECENT:
            _recent.popitem(last=False)
    return found


def _over_batch(info: Any, dims: Any, x: torch.Tensor, leaves: Sequence[torch.Tensor], program: str) -> Any:
    """torch.vmap: the rows of all samples in one call."""
    if any(dim is not None for dim in pytree.tree_leaves(dims[1], is_leaf=lambda dim: dim is None)):
        raise InvalidArgumentError(
            "torch.vmap maps over the parameters, but a fused operation has one set of weights; map over x alone, or "
            "call the original module"
        )
    if dims[0] is None:
        return fused(x, leaves, program), None
    x = x.movedim(dims[0], 0)
    wanted = parse(program).dims
    if (wanted is None and x.ndim > 1 and not parse(program).flat) or (wanted is not None and x.ndim - 1 != wanted):
        return fused(x, leaves, program), 0
    return torch.stack([fused(sample, leaves, program) for sample in x]), 0


def _results_over_batch(
    info: Any, dims: Any, x: torch.Tensor, leaves: Sequence[torch.Tensor], columns: Sequence[torch.Tensor], program: str
) -> Any:
    """torch.vmap: one sample after the other, since a loss is one of each."""
    if any(dim is not None for dim in pytree.tree_leaves(dims[1], is_leaf=lambda dim: dim is None)):
        raise InvalidArgumentError(
            "torch.vmap maps over the parameters, but a fused operation has one set of weights; map over x and the "
            "targets alone, or call the original module"
        )

    def sample(tensor: torch.Tensor, dim: Any, i: int) -> torch.Tensor:
        return tensor if dim is None else tensor.select(dim, i)

    samples = [
        fused_results(sample(x, dims[0], i), leaves, [sample(c, dim, i) for c, dim in zip(columns, dims[2])], program)
        for i in range(info.batch_size)
    ]
    stacked = [torch.stack(outputs) for outputs in zip(*samples)]
    return stacked, [0] * len(stacked)


if hasattr(torch.library, "register_vmap"):  # PyTorch 2.5
    torch.library.register_vmap(fused, _over_batch)
    torch.library.register_vmap(fused_results, _results_over_batch)


def clear() -> None:
    """Frees the programs that the operator keeps loaded for compiled and exported graphs."""
    with _lock:
        _recent.clear()


def forget(text: str, leaves: Sequence[torch.Tensor]) -> None:
    """Drops a loaded program, so that the next call loads it anew."""
    key = (text, *(t.data_ptr() for t in leaves))
    with _lock:
        _live.pop(key, None)
        _recent.pop(key, None)
