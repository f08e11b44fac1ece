# SPDX-License-Identifier: MIT
"""torch.Tensor by its own attributes, the short way: no capsule, no copy.

Nothing here imports PyTorch: who has a tensor has done so.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from ._lib import FLOATS, INDICES, DType, Memory
from .arrays import (
    Matrix,
    Place,
    check_last_dimension,
    check_shape,
    dtype_name,
    expected_text,
    output_text,
    row_stride,
    shape_text,
    type_name,
)
from .errors import ArgumentTypeError, InvalidArgumentError, OutOfMemoryError


class TorchFacts(NamedTuple):
    """What is asked of PyTorch at every call, looked up once."""

    tensor: Any
    plain: tuple[Any, ...]
    dtypes: dict[Any, DType]
    by_dtype: dict[DType, Any]
    uint8: Any
    uint16: Any
    strided: Any
    contiguous_format: Any
    is_grad_enabled: Any
    empty: Any
    raw_stream: Any
    is_capturing: Any
    increment_version: Any
    forward_ad: Any
    dispatch_modes: Any
    tracing_state: Any
    transform: Any
    recorders: dict[str, Any]
    out_of_memory: Any


def _raw_stream(device: int) -> int:
    """The handle of PyTorch's current stream, where PyTorch has no function for it alone."""
    stream: int = sys.modules["torch"].cuda.current_stream(device).cuda_stream
    return stream


@cache
def torch_facts() -> TorchFacts:
    """PyTorch must have been imported."""
    torch: Any = sys.modules["torch"]
    native = torch._C
    dtypes = {getattr(torch, dtype_name(d)): d for d in FLOATS}
    return TorchFacts(
        tensor=torch.Tensor,
        plain=(torch.Tensor, torch.nn.Parameter),
        dtypes=dtypes,
        by_dtype={d: getattr(torch, dtype_name(d)) for d in DType if d},
        uint8=torch.uint8,
        uint16=getattr(torch, "uint16", None),
        strided=torch.strided,
        contiguous_format=torch.contiguous_format,
        is_grad_enabled=torch.is_grad_enabled,
        empty=torch.empty,
        raw_stream=getattr(native, "_cuda_getCurrentRawStream", None) or _raw_stream,
        is_capturing=torch.cuda.is_current_stream_capturing,
        increment_version=torch.autograd.graph.increment_version,
        forward_ad=torch.autograd.forward_ad,
        dispatch_modes=native._len_torch_dispatch_stack,
        tracing_state=native._get_tracing_state,
        transform=native._functorch.peek_interpreter_stack,
        recorders={
            "torch.jit.trace": native._get_tracing_state,
            "a transform of torch.func": native._functorch.peek_interpreter_stack,
        },
        out_of_memory=torch.cuda.OutOfMemoryError,
    )


class TorchKind:
    """torch.Tensor on a CPU or a CUDA device, and on that device's current stream."""

    def accepts(self, array: Any) -> bool:
        """Whether the object is a tensor. If PyTorch was never imported, nothing is."""
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(array, torch.Tensor)

    def matrix(self, array: Any, argument: str, width: int, said: DType) -> Matrix:
        """An input (..., width) as a matrix, copied if its rows are not of unit stride and evenly spaced."""
        dtype = _dtype_of(array, argument, said)
        _check(array, argument)
        shape = array.shape
        check_last_dimension(shape, argument, width)
        ld = 0 if array.is_contiguous() else row_stride(tuple(shape), array.stride(), 1)
        if ld is not None:
            return _matrix(array, argument, shape[:-1], ld, dtype)
        with _out_of_memory(array, f"a copy of {argument}, of shape {shape_text(shape)}"):
            dense = array.contiguous()
        matrix, itemsize = _matrix(dense, argument, shape[:-1], 0, dtype), array.element_size()
        strides = tuple(n * itemsize for n in array.stride())
        return matrix._replace(source=Place(array.data_ptr(), shape, strides, itemsize))

    def weight(self, array: Any, argument: str, shape: tuple[int, ...], said: DType) -> Matrix:
        """An input of exactly this shape, (rows, columns) or (columns,)."""
        check_shape(tuple(array.shape), argument, shape)
        return self.matrix(array.detach(), argument, shape[-1], said)

    def copied(self, array: Any, argument: str) -> Any:
        """A dense tensor with storage of its own: of a view all of the storage would be pickled."""
        torch = torch_facts()
        if array.layout is not torch.strided:
            return array  # which is refused, with the reason
        with _out_of_memory(array, f"a copy of {argument}, of shape {shape_text(array.shape)}"):
            return array.detach().clone(memory_format=torch.contiguous_format)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Matrix]:
        """A new tensor on the device of ``like``."""
        torch = torch_facts()
        _check_recorded(torch)
        with _out_of_memory(like, f"a result of shape {shape_text(shape)} and dtype {dtype_name(dtype)}"):
            y = torch.empty(shape, dtype=torch.by_dtype[dtype], device=like.device)
        lead, memory = shape[:-1], Memory.DEVICE if y.is_cuda else Memory.HOST
        return y, Matrix(y.data_ptr(), lead, math.prod(lead), 0, dtype, memory, None, y, y.get_device())

    def output(self, array: Any, like: Any, shape: tuple[int, ...], dtype: DType) -> Matrix:
        """The caller's ``out``, checked. The library itself refuses one that overlaps the x that it sees."""
        torch = torch_facts()
        _check_recorded(torch)
        if not isinstance(array, torch.tensor):
            raise ArgumentTypeError(f"out is a {type_name(array)}; expected a torch.Tensor, as x is one")
        if _dtype_of(array, "out", dtype) is not dtype:
            raise ArgumentTypeError(f"out has dtype {array.dtype}; expected {output_text(dtype)}")
        if array.shape != shape:
            raise InvalidArgumentError(f"out has shape {shape_text(array.shape)}; expected {shape_text(shape)}")
        if array.device != like.device:
            raise InvalidArgumentError(f"out is on {array.device}; expected x's device, {like.device}")
        _check(array, "out")
        ld = 0 if array.is_contiguous() else row_stride(shape, array.stride(), 1)
        if ld is None:
            raise InvalidArgumentError(f"out has strides {array.stride()}; expected rows of unit stride, evenly spaced")
        return _matrix(array, "out", shape[:-1], ld, dtype)

    def finish(self, array: Any, like: Any) -> Any:
        """The tensor as it is."""
        return array

    def written(self, array: Any) -> None:
        """Autograd and caches that watch the tensor's version learn that it changed."""
        if not array.is_inference():
            torch_facts().increment_version(array)

    def workspace(self, like: Any, size: Callable[[], int]) -> tuple[int, int, Any]:
        """Memory from PyTorch's own allocator, ordered on the current stream and safe inside a CUDA graph."""
        torch = torch_facts()
        memory = torch.empty((size(),), dtype=torch.uint8, device=like.device)
        return memory.data_ptr(), memory.numel(), memory


@contextmanager
def _out_of_memory(like: Any, what: str) -> Iterator[None]:
    """What PyTorch raises where it has no memory on the device of ``like``, which on a CPU has no class of its own."""
    try:
        yield
    except RuntimeError as error:
        if like.is_cuda and not isinstance(error, torch_facts().out_of_memory):
            raise
        raise OutOfMemoryError(f"no memory for {what} on {like.device}") from None


def _check_recorded(torch: TorchFacts) -> None:
    """Refuses to compute where a program is being recorded or transformed: of the call nothing would be seen."""
    names = [name for name, active in torch.recorders.items() if active()]
    if torch.dispatch_modes():
        # Those that trace (proxies, fakes, functional tensors); one that only watches may.
        stack = sys.modules["torch.utils._python_dispatch"]._get_current_dispatch_mode_stack()
        names += [type(mode).__qualname__ for mode in stack if mode.is_infra_mode()]
    if names:
        raise InvalidArgumentError(
            f"{names[0]} is active, and sees nothing of what a rowfold.Model computes; "
            "rowfold.torch.fuse makes modules whose forward is an operator of PyTorch"
        )


def _check(array: Any, argument: str) -> None:
    torch = torch_facts()
    if torch.forward_ad._current_level >= 0 and torch.forward_ad.unpack_dual(array).tangent is not None:
        raise InvalidArgumentError(
            f"{argument} has a tangent of forward-mode differentiation, but rowfold computes none; "
            f"pass the primal of torch.autograd.forward_ad.unpack_dual({argument})"
        )
    if array.requires_grad and torch.is_grad_enabled():
        raise InvalidArgumentError(
            f"{argument} requires grad and grad mode is on, but rowfold computes no gradients; "
            f"call under torch.no_grad() or torch.inference_mode(), or pass {argument}.detach()"
        )
    if array.device.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(f"{argument} is on the device {array.device}; expected cpu or cuda")
    if array.is_neg():
        raise InvalidArgumentError(f"{argument} is a lazily negated view; pass {argument}.resolve_neg()")


def _matrix(array: Any, argument: str, lead: Any, ld: int, dtype: DType) -> Matrix:
    try:
        pointer = array.data_ptr()
        if not pointer and array.numel():
            raise RuntimeError("it has none")
    except RuntimeError as error:  # fake tensors, functorch's wrappers, and other subclasses without memory
        raise ArgumentTypeError(
            f"{argument} is a {type_name(array)}, whose memory cannot be read: {error}; expected a plain torch.Tensor"
        ) from None
    if not array.is_cuda:
        return Matrix(pointer, tuple(lead), math.prod(lead), ld, dtype, Memory.HOST, None, array)
    device = array.device.index
    stream = torch_facts().raw_stream(device)
    return Matrix(pointer, tuple(lead), math.prod(lead), ld, dtype, Memory.DEVICE, stream, array, device)


def _dtype_of(array: Any, argument: str, said: DType) -> DType:
    torch = torch_facts()
    known = torch.dtypes.get(array.dtype)
    if known is None and array.dtype is torch.uint16 and said is DType.BFLOAT16:
        known = DType.BFLOAT16
    if known is None and said in INDICES and array.dtype is torch.by_dtype[said]:
        known = said
    if known is None or array.layout is not torch.strided:
        came = f"dtype {array.dtype}" if known is None else f"layout {array.layout}"
        expected = expected_text(said) if known is None else "torch.strided"
        raise ArgumentTypeError(f"{argument} has {came}; expected {expected}")
    return known
