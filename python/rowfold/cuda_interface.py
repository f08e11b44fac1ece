# SPDX-License-Identifier: MIT
"""Arrays with ``__cuda_array_interface__`` and no DLPack, such as numba's device arrays.

https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 2 and 3. The work runs on the stream that
the producer names, which keeps it in order with whatever filled the array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ._lib import DType, Memory
from .arrays import (
    Matrix,
    check_last_dimension,
    check_shape,
    deep_copied,
    numpy_dtype,
    numpy_to_dtype,
    output_text,
    row_stride,
    shape_text,
    type_name,
)
from .errors import ArgumentTypeError, InvalidArgumentError
from .frameworks import LEGACY_DEFAULT_STREAM, framework_of


class _Seen(NamedTuple):
    pointer: int
    read_only: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    dtype: np.dtype[Any]
    stream: int | None


def _see(array: Any, argument: str) -> _Seen:
    interface = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ArgumentTypeError(f"{argument} has a mask, which would be lost; expected a plain array")
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(dtype.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))
    pointer, read_only = interface["data"]
    stream = interface.get("stream")
    native = 0 if stream in (None, LEGACY_DEFAULT_STREAM) else int(stream)
    return _Seen(pointer or 0, bool(read_only), shape, tuple(strides), dtype, native)


class CudaInterfaceKind:
    """Anything with ``__cuda_array_interface__``."""

    def accepts(self, array: Any) -> bool:
        """Whether the object has the interface."""
        return hasattr(array, "__cuda_array_interface__")

    def matrix(self, array: Any, argument: str, width: int, said: DType) -> Matrix:
        """An input (..., width) as a matrix; it must have rows of unit stride, evenly spaced."""
        seen = _see(array, argument)
        check_last_dimension(seen.shape, argument, width)
        return _matrix(array, argument, seen, numpy_to_dtype(seen.dtype, argument, said))

    def weight(self, array: Any, argument: str, shape: tuple[int, ...], said: DType) -> Matrix:
        """An input of exactly this shape, (rows, columns) or (columns,)."""
        seen = _see(array, argument)
        check_shape(seen.shape, argument, shape)
        return _matrix(array, argument, seen, numpy_to_dtype(seen.dtype, argument, said))

    def copied(self, array: Any, argument: str) -> Any:
        """As the framework copies it."""
        return deep_copied(array, argument)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Matrix]:
        """A new array of the same framework."""
        y = framework_of(like).empty(like, shape, numpy_dtype(dtype))
        return y, self.output(y, like, shape, dtype)

    def finish(self, array: Any, like: Any) -> Any:
        """The array as it is."""
        return array

    def output(self, array: Any, like: Any, shape: tuple[int, ...], dtype: DType) -> Matrix:
        """The caller's ``out``, checked."""
        if not self.accepts(array):
            raise ArgumentTypeError(f"out is a {type_name(array)}; expected an array of x's kind, {type_name(like)}")
        seen = _see(array, "out")
        if numpy_to_dtype(seen.dtype, "out", dtype) is not dtype:
            raise ArgumentTypeError(f"out has dtype {seen.dtype}; expected {output_text(dtype)}")
        if seen.shape != shape:
            raise InvalidArgumentError(f"out has shape {shape_text(seen.shape)}; expected {shape_text(shape)}")
        if seen.read_only:
            raise InvalidArgumentError("out is read-only; expected a writable array")
        return _matrix(array, "out", seen, dtype)

    def written(self, array: Any) -> None:
        """Nothing to say."""

    def workspace(self, like: Any, size: Callable[[], int]) -> tuple[int, int, Any] | None:
        """None: the library takes it from the device's pool, ordered on the stream."""
        return None


def _matrix(array: Any, argument: str, seen: _Seen, dtype: DType) -> Matrix:
    ld = row_stride(seen.shape, seen.strides, seen.dtype.itemsize)
    if ld is None:
        raise InvalidArgumentError(
            f"{argument} has strides {seen.strides} in bytes; expected rows of unit stride, evenly spaced"
        )
    lead = seen.shape[:-1]
    # The interface does not say which device; the library asks the driver, and refuses another than the model's.
    return Matrix(seen.pointer, lead, math.prod(lead), ld, dtype, Memory.DEVICE, seen.stream, array)
