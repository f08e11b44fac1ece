# SPDX-License-Identifier: MIT
"""Loaded models by the weight that they were made of: functions of tensors, which have nowhere to keep one.

A model is kept as long as the tensor that is its weight, and until one of its tensors is changed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from ..errors import ArgumentTypeError, InvalidArgumentError
from ..model import Model
from .program import NAMES, signature

_CHAINS = 2  # models of one weight that are kept: on a CPU each holds a packed copy of it


class _Head(NamedTuple):
    """A model with the tensors as they were when it was loaded."""

    signature: list[Any]
    held: list[torch.Tensor]  # bias and vectors: while these are held, no other tensor can come to the same address
    model: Model


_kept = WeakTensorKeyDictionary()  # weight -> an OrderedDict of heads, the last used last
_lock = threading.Lock()


def _after_fork_in_child() -> None:
    """The thread that held the lock, if one did, is not in the child."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def head(
    chain: str,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    vectors: Mapping[str, torch.Tensor] | None = None,
    columns: Mapping[str, int] | None = None,
) -> Model:
    """A loaded model for these tensors as they are now: the one that is kept, or a new one.

    The weight is read where it is wherever a kernel can do that. Tensors of inference mode do not tell when they
    change, so a model of one is not kept. Of a shard ``columns`` says which it has: keywords of Model.
    """
    vectors, columns = vectors or {}, columns or {}
    others = [t for t in (bias, *vectors.values()) if t is not None]
    if any(t.is_inference() for t in (weight, *others)):
        return _loaded(chain, weight, bias, vectors, columns)
    now, key = signature([weight, *others]), (chain, *columns.values(), *(t.data_ptr() for t in others))
    with _lock:
        heads: OrderedDict[Any, _Head] | None = _kept.get(weight)
        found = None if heads is None else heads.get(key)
        if found is not None and found.signature == now:
            assert heads is not None
            heads.move_to_end(key)
            return found.model
        if heads is not None:  # what has changed is of no more use, and goes before there is another
            for old in [k for k, other in heads.items() if other.signature[:_OF_ONE] != now[:_OF_ONE] or k == key]:
                del heads[old]
            while len(heads) >= _CHAINS:
                heads.popitem(last=False)
        found = None
        model = _loaded(chain, weight, bias, vectors, columns)
        if heads is None:
            heads = _kept[weight] = OrderedDict()
        heads[key] = _Head(now, [t.detach() for t in others], model)
        return model


_OF_ONE = len(signature([torch.empty(0)]))  # entries of one tensor


def clear() -> None:
    """Frees all models that are kept."""
    with _lock:
        _kept.clear()


def _loaded(
    chain: str,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    vectors: Mapping[str, torch.Tensor],
    columns: Mapping[str, int],
) -> Model:
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        raise InvalidArgumentError(
            "the weight cannot be loaded while a CUDA graph is captured; make the same call once before"
        )
    place = "cpu" if weight.device.type == "cpu" else f"{weight.device.type}:{weight.device.index or 0}"
    where: dict[str, Any] = dict(columns)
    # Sizes of 0 are known only where they are written in the chain.
    sized = chain.replace("linear", f"linear({weight.shape[1]}, {weight.shape[0]})", 1)
    model = Model(sized, dtype=NAMES[weight.dtype], device=place, **where)
    # A copy of a transposed weight is not worth keeping beside what is made of it.
    borrow = weight.stride(-1) == 1
    with torch.no_grad():
        model.load_weights(weight, bias, vectors, borrow=borrow)
    return model


def check_layer(hidden: Any, weight: Any, bias: Any, names: tuple[str, str, str]) -> None:
    """Raises unless these are the input, weight and bias of a linear layer, on one device.

    ArgumentTypeError for what is no tensor and for dtypes, InvalidArgumentError for shapes and devices.
    """
    for tensor, name in zip((hidden, weight, bias), names):
        if not isinstance(tensor, torch.Tensor) and not (tensor is bias is None):
            raise ArgumentTypeError(f"{name} is a {type(tensor).__qualname__}; expected a torch.Tensor")
        if tensor is not None and tensor.dtype not in NAMES:
            raise ArgumentTypeError(f"{name} has dtype {tensor.dtype}; expected one of {', '.join(NAMES.values())}")
        if tensor is not None and tensor.layout is not torch.strided:
            raise ArgumentTypeError(f"{name} has layout {tensor.layout}; expected torch.strided")
        if tensor is not None and tensor.device != weight.device:
            raise InvalidArgumentError(f"{name} is on {tensor.device}; expected {weight.device}, as {names[1]}")
        if tensor is not None and (tensor.dtype is torch.float64) != (weight.dtype is torch.float64):
            raise ArgumentTypeError(
                f"{name} has dtype {tensor.dtype} and {names[1]} {weight.dtype}; float64 goes with float64 only"
            )
    if weight.ndim != 2:
        raise InvalidArgumentError(f"{names[1]} has shape {tuple(weight.shape)}; expected (out_features, in_features)")
    if weight.shape[0] == 0:
        raise InvalidArgumentError(
            f"{names[1]} has shape {tuple(weight.shape)}, no columns to choose from; expected out_features of 1 or more"
        )
    if hidden.ndim < 1 or hidden.shape[-1] != weight.shape[1]:
        raise InvalidArgumentError(
            f"{names[0]} has shape {tuple(hidden.shape)}; expected (..., {weight.shape[1]}), the in_features of "
            f"{names[1]}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InvalidArgumentError(f"{names[2]} has shape {tuple(bias.shape)}; expected ({weight.shape[0]},)")


def check_columns(columns: Any, name: str, lead: tuple[int, ...], device: torch.device) -> None:
    """Raises unless this is a column for each row: ArgumentTypeError for the dtype, else InvalidArgumentError."""
    if not isinstance(columns, torch.Tensor):
        raise ArgumentTypeError(f"{name} is a {type(columns).__qualname__}; expected a torch.Tensor")
    if columns.dtype not in (torch.int64, torch.int32):
        raise ArgumentTypeError(f"{name} has dtype {columns.dtype}; expected int64 or int32, a column for each row")
    if tuple(columns.shape) != lead:
        raise InvalidArgumentError(f"{name} has shape {tuple(columns.shape)}; expected {lead}, a column for each row")
    if columns.device != device:
        raise InvalidArgumentError(f"{name} is on {columns.device}; expected {device}, as the weight")


def check_gradients(what: str, tensors: Mapping[str, torch.Tensor | None]) -> None:
    """Raises InvalidArgumentError where PyTorch would record a gradient, or carry a tangent along."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
            raise InvalidArgumentError(
                f"{name} has a tangent of forward-mode differentiation, but {what} computes no gradients"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise InvalidArgumentError(
                f"{name} requires grad and grad mode is on, but {what} computes no gradients; call it under "
                "torch.no_grad() or torch.inference_mode()"
            )
