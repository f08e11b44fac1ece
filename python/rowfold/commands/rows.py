# SPDX-License-Identifier: MIT
"""What commands read: the rows of an array in a file or a pipe, in batches, and the values that go with each row."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
import stat
import sys
from typing import Any, BinaryIO

import numpy as np

from .. import arrays, npz
from .._lib import INDICES, DType
from ..errors import ArgumentTypeError, InvalidArgumentError, InvalidFileError
from ..files import mapped, tensors

Array = np.ndarray[Any, Any]


class Rows:
    """The rows of an array (..., width) that lies in a file in their order, as batches are taken of them."""

    def __init__(self, x: Array, dtype: DType) -> None:
        self.x, self.dtype, self.shape, self.itemsize = x, dtype, x.shape, x.dtype.itemsize

    def __len__(self) -> int:
        return math.prod(self.shape[:-1])

    def take(self, first: int, count: int) -> Array:
        """These rows, (count, width)."""
        return self.x.reshape(len(self), self.shape[-1])[first : first + count]

    def done(self, first: int, count: int) -> None:
        """Lets go of the pages of rows that are done: they would count as this process's until others need them."""
        width = self.shape[-1] * self.itemsize
        self._forget(first * width, count * width)

    def drop(self) -> None:
        """Takes a last dimension of size 1 away."""
        self.x, self.shape = self.x[..., 0], self.shape[:-1]

    def _forget(self, offset: int, size: int) -> None:
        base: Any = self.x
        while isinstance(base, np.ndarray):
            base = base.base
        if not isinstance(base, mmap.mmap) or not size:
            return
        begin = self.x.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data + offset
        end = begin + size
        begin -= begin % mmap.PAGESIZE
        base.madvise(mmap.MADV_DONTNEED, begin, end - begin)


class Scattered(Rows):
    """Rows whose numbers do not lie together, as in an array in Fortran order: a batch is gathered."""

    def take(self, first: int, count: int) -> Array:
        """These rows, gathered."""
        return np.ascontiguousarray(self.x[np.unravel_index(np.arange(first, first + count), self.shape[:-1])])

    def done(self, first: int, count: int) -> None:
        """Lets go of all: every page holds some number of every row."""
        self._forget(0, math.prod(self.shape) * self.itemsize)


class Piped(Rows):
    """Rows that come one after the other, from standard input or a pipe."""

    def __init__(self, text: str, label: str, column: bool) -> None:
        self.name = "standard input" if text == "-" else text
        self.file: BinaryIO = sys.stdin.buffer if text == "-" else open(text, "rb")
        shape, self.fortran, dtype = npz.stream_header(self.file, self.name)
        self.shape = (*shape, 1) if column else shape
        if self.fortran and len(shape) > 1:
            raise InvalidArgumentError(
                f"{self.name}: is in Fortran order, whose rows do not come one after the other; name the file, or "
                "write it in C order, as numpy.ascontiguousarray gives it"
            )
        self.dtype, self.kind, self.itemsize = _dtype(dtype, label, column), dtype, dtype.itemsize

    def take(self, first: int, count: int) -> Array:
        """The next rows."""
        wanted = count * self.shape[-1] * self.itemsize
        data = self.file.read(wanted)
        if len(data) != wanted:
            raise InvalidFileError(f"{self.name}: ends after {first} rows and a part; expected {len(self)}")
        return np.frombuffer(data, self.kind).reshape(count, self.shape[-1])

    def done(self, first: int, count: int) -> None:
        """Nothing is mapped."""

    def drop(self) -> None:
        """Takes a last dimension of size 1 away."""
        self.shape = self.shape[:-1]


class Same(Rows):
    """One number for all rows."""

    def __init__(self, value: float, dtype: DType, lead: tuple[int, ...]) -> None:
        self.value, self.dtype, self.shape, self.itemsize = value, dtype, (*lead, 1), 8

    def take(self, first: int, count: int) -> Array:
        """The number for so many rows."""
        return np.full((count, 1), self.value, arrays.numpy_dtype(self.dtype))

    def done(self, first: int, count: int) -> None:
        """Nothing is mapped."""


def open_rows(text: str, label: str, column: bool = False) -> Rows:
    """The rows of ``.npy``, ``FILE.safetensors:TENSOR``, a pipe, or ``-`` for standard input.

    ``label`` is what messages call it, as the command line has it. ``column``: a value for each row, (...), is read
    instead of (..., width), and integers are taken, too.
    """
    path, tensor, named = tensor_of(text)
    if named:
        return _rows(*mapped(path, tensor, indices=column), column)
    if text.endswith((".safetensors", ".json")):
        names = ", ".join(found.name for found in tensors(text)[:8])
        raise InvalidArgumentError(f"{label}: names no tensor; expected {text}:TENSOR, with one of {names}")
    if text == "-" or is_stream(text):
        return Piped(text, label, column)
    x = npz.mapped(text)
    return _rows(x, _dtype(x.dtype, label, column), column)


def _rows(x: Array, dtype: DType, column: bool) -> Rows:
    kind = Rows if x.flags.c_contiguous else Scattered
    return kind(x[..., None] if column else x, dtype)


def tensor_of(text: str) -> tuple[str, str, bool]:
    """A file and a tensor in it, and whether the text names one."""
    # At the first colon behind such a file: names of tensors have colons, too.
    named = re.match(r"(.*?\.(?:safetensors|json)):(.*)", text, re.DOTALL)
    return (named[1], named[2], True) if named else (text, "", False)


def is_stream(path: str) -> bool:
    """Whether it is a pipe or a device."""
    with contextlib.suppress(OSError):
        mode = os.stat(path).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
    return False


def _dtype(dtype: np.dtype[Any], label: str, column: bool) -> DType:
    if not dtype.isnative:
        raise ArgumentTypeError(f"{label}: has dtype {dtype}, of the other byte order")
    said = DType.__members__.get(dtype.name.upper(), DType.DEFAULT) if column else DType.DEFAULT
    if said in INDICES:
        return said
    if column and dtype.kind not in "fV":  # bfloat16 is of kind V
        raise ArgumentTypeError(f"{label} has dtype {dtype}; expected int64 or int32, or a floating-point type")
    return arrays.numpy_to_dtype(dtype, label, DType.DEFAULT)
