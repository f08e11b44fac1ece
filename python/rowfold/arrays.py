# SPDX-License-Identifier: MIT
"""Arrays of the caller, as the pointers, sizes and dtypes that the library takes; and new arrays for its results.

An ArrayKind knows one family of arrays: numpy's here, the others in modules of their own. kinds.py lists them.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from ._lib import FLOATS, INDICES, DType, Memory
from .errors import ArgumentTypeError, InvalidArgumentError, OutOfMemoryError


class Matrix(NamedTuple):
    """A (batch, width) matrix in the caller's memory, its rows of unit stride and evenly spaced."""

    pointer: int
    lead: tuple[int, ...]  # the leading dimensions that `batch` counts
    batch: int
    ld: int  # elements from one row to the next; 0 where it does not matter
    dtype: DType
    memory: Memory
    stream: int | None
    owner: Any  # keeps the memory alive
    device: int = -1  # CUDA device; -1 for the host, or where the array does not say
    source: Any = None  # the caller's array, or its Place, where the library sees another one or none


class Place:
    """Where an array lies, on whatever device, for numpy to compare: nothing is read there. Strides are in bytes."""

    def __init__(self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (pointer, True),
            "shape": tuple(shape),
            "strides": tuple(strides),
            "typestr": f"|V{itemsize}",
        }


class ArrayKind(Protocol):
    """What the package needs of one family of arrays. Errors name the argument, what came and what was expected."""

    def accepts(self, array: Any) -> bool:
        """Whether the object is one of this family."""

    def matrix(self, array: Any, argument: str, width: int, said: DType) -> Matrix:
        """An input (..., width) as a matrix; copied only if one leading dimension cannot describe it. Never written.

        ``said`` is the dtype the model expects, under which uint16 bits are read if it is bfloat16.
        """

    def weight(self, array: Any, argument: str, shape: tuple[int, ...], said: DType) -> Matrix:
        """An input of exactly this shape, (rows, columns) or (columns,)."""

    def copied(self, array: Any, argument: str) -> Any:
        """An array of the caller's as one of its own, which can be pickled."""

    def empty(self, like: Any, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Matrix]:
        """A new dense array of this family on the device of ``like``, and itself as a matrix."""

    def output(self, array: Any, like: Any, shape: tuple[int, ...], dtype: DType) -> Matrix:
        """The caller's ``out``, checked: shape, dtype, layout, writable. ``like`` owns the input's Matrix."""

    def written(self, array: Any) -> None:
        """Tells the family that the caller's ``out`` was written behind its back."""

    def finish(self, array: Any, like: Any) -> Any:
        """What the caller gets for the array of ``empty``, once the call has been made. ``like`` is the input."""

    def workspace(self, like: Any, size: Callable[[], int]) -> tuple[int, int, Any] | None:
        """Device memory for one call: address, bytes and owner; None to let the library take it."""


def dtype_name(dtype: DType) -> str:
    """``"float32"`` and so on."""
    return dtype.name.lower()


def parse_dtype(value: Any, argument: str) -> DType:
    """A DType from a name, a numpy dtype or scalar type, ml_dtypes.bfloat16, or another framework's dtype object.

    Raises ArgumentTypeError for anything else.
    """
    name = value if isinstance(value, str) else _numpy_name(value) or str(value).rpartition(".")[2]
    try:
        dtype = DType[name.upper()]
    except KeyError:
        dtype = DType.DEFAULT
    if dtype not in FLOATS or name != name.lower():
        expected = ", ".join(dtype_name(d) for d in FLOATS)
        raise ArgumentTypeError(f"{argument} is {value!r}; expected one of {expected}")
    return dtype


def _numpy_name(value: Any) -> str | None:
    if value is None:  # which numpy takes for float64
        return None
    try:
        dtype = np.dtype(value)
    except TypeError:
        return None
    return str(dtype.name if dtype.isnative else dtype.str)


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype of a DType. bfloat16 is ml_dtypes' where that is installed, else uint16 bit patterns."""
    if dtype is DType.BFLOAT16:
        try:
            bfloat16: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        except ImportError:
            return np.dtype(np.uint16)
        return bfloat16
    return np.dtype(dtype_name(dtype))


_OVERLAP_WORK = 1_000_000  # some milliseconds; what rows and columns ask for is far below


def check_apart(source: Any, out: Matrix, width: int) -> None:
    """Raises InvalidArgumentError if a row of ``out`` has a byte of the array ``source`` that x came from."""
    if source is None or not out.batch:
        return
    itemsize = numpy_dtype(out.dtype).itemsize
    rows = Place(out.pointer, (out.batch, width), ((out.ld or width) * itemsize, itemsize), itemsize)
    try:
        overlaps = np.shares_memory(source, rows, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except RuntimeError:  # TooHardError: strides for which an exact answer may take for ever
        overlaps = True
    if overlaps:
        raise InvalidArgumentError("out overlaps x in memory; expected separate arrays")


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array for a result. Raises OutOfMemoryError."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):  # the second where no address reaches so far
        raise OutOfMemoryError(f"no memory for a result of shape {shape_text(shape)} and dtype {dtype}") from None


def dense(array: np.ndarray[Any, Any], argument: str) -> np.ndarray[Any, Any]:
    """A copy whose rows lie one behind the other. Raises OutOfMemoryError."""
    try:
        return array.copy(order="C")
    except (MemoryError, ValueError):
        raise OutOfMemoryError(f"no memory for a copy of {argument}, of shape {shape_text(array.shape)}") from None


def cast(value: Any, dtype: DType, argument: str, only: bool = True) -> Any:
    """Lists, numbers and what numpy reads, as an array that a model of this dtype takes; others as they are.

    ``only``: this dtype alone will do, not any of float32, float16 and bfloat16. Raises ArgumentTypeError for what
    holds no real numbers, InvalidArgumentError for lists of no shape.
    """
    array = read_by_numpy(value, argument)
    if array is None:
        return value
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ArgumentTypeError(f"{argument} has dtype {array.dtype}; expected real numbers, which cast converts")
    bits = array.dtype == _UINT16 and dtype is DType.BFLOAT16
    mixes = array.dtype.name in ("float32", "float16", "bfloat16") and array.dtype.isnative and not only
    target = numpy_dtype(dtype if only else DType.FLOAT32)
    if array.dtype == target or bits or mixes:
        return array
    if target == _UINT16:
        raise ArgumentTypeError(f"{argument} has dtype {array.dtype}; numpy needs ml_dtypes to convert it to bfloat16")
    return array.astype(target)


def deep_copied(array: Any, argument: str) -> Any:
    """The array copied as its own framework does it. Raises OutOfMemoryError, ArgumentTypeError."""
    try:
        return copy.deepcopy(array)
    except MemoryError:
        raise OutOfMemoryError(f"no memory for a copy of {argument}") from None
    except (TypeError, ValueError) as error:  # the second of what holds ctypes' pointers
        raise ArgumentTypeError(f"{argument} is a {type_name(array)}, which keep cannot copy: {error}") from None


def check_unmasked(array: Any, argument: str) -> None:
    """Raises ArgumentTypeError for a masked array: its mask would be lost."""
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentTypeError(
            f"{argument} is a masked array, whose mask would be lost; expected a plain array, e.g. filled()"
        )


def read_by_numpy(value: Any, argument: str) -> np.ndarray[Any, Any] | None:
    """What a model that casts may convert, as numpy has it; None for arrays of other frameworks and what is no array.

    Raises InvalidArgumentError for lists of no shape.
    """
    plain = isinstance(value, (list, tuple, int, float, np.ndarray, np.generic))
    if not plain and (not hasattr(value, "__array__") or hasattr(value, "__dlpack__")):
        return None
    if isinstance(value, np.ma.MaskedArray):
        return None  # which is refused, with the reason
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InvalidArgumentError(f"{argument} makes no array: {error}") from None


class NumpyKind:
    """numpy.ndarray, its subclasses and numpy scalars."""

    def accepts(self, array: Any) -> bool:
        """Whether the object is one of this family."""
        return isinstance(array, (np.ndarray, np.generic))

    def matrix(self, array: Any, argument: str, width: int, said: DType) -> Matrix:
        """An input (..., width) as a matrix, copied if its rows are not of unit stride and evenly spaced."""
        source = values = self._array(array, argument)
        dtype = numpy_to_dtype(values.dtype, argument, said, cast_hint(argument))
        check_last_dimension(values.shape, argument, width)
        if not values.flags.aligned:
            values = dense(values, argument)
        ld = row_stride(values.shape, values.strides, values.itemsize)
        if ld is None:
            values = dense(values, argument)
            ld = width
        lead = values.shape[:-1]
        return Matrix(values.ctypes.data, lead, math.prod(lead), ld, dtype, Memory.HOST, None, values, source=source)

    def weight(self, array: Any, argument: str, shape: tuple[int, ...], said: DType) -> Matrix:
        """An input of exactly this shape, (rows, columns) or (columns,)."""
        values = self._array(array, argument)
        check_shape(values.shape, argument, shape)
        return self.matrix(values, argument, shape[-1], said)

    def copied(self, array: Any, argument: str) -> Any:
        """A new array of the same values."""
        return dense(self._array(array, argument), argument)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Matrix]:
        """A new array."""
        y = new_array(shape, numpy_dtype(dtype))
        return y, Matrix(y.ctypes.data, shape[:-1], math.prod(shape[:-1]), 0, dtype, Memory.HOST, None, y)

    def output(self, array: Any, like: Any, shape: tuple[int, ...], dtype: DType) -> Matrix:
        """The caller's ``out``, checked."""
        if not isinstance(array, np.ndarray):
            raise ArgumentTypeError(f"out is a {type_name(array)}; expected a numpy.ndarray, as x is one")
        if isinstance(array, np.ma.MaskedArray):
            raise ArgumentTypeError("out is a masked array, whose mask would hide the result; expected a plain array")
        if numpy_to_dtype(array.dtype, "out", dtype) is not dtype:
            raise ArgumentTypeError(f"out has dtype {array.dtype}; expected {output_text(dtype)}")
        if array.shape != shape:
            raise InvalidArgumentError(f"out has shape {shape_text(array.shape)}; expected {shape_text(shape)}")
        if not array.flags.writeable:
            raise InvalidArgumentError("out is read-only; expected a writable array")
        ld = row_stride(array.shape, array.strides, array.itemsize)
        if ld is None or not array.flags.aligned:
            raise InvalidArgumentError(
                f"out has strides {array.strides} in bytes; expected aligned rows of unit stride, evenly spaced"
            )
        lead = shape[:-1]
        return Matrix(array.ctypes.data, lead, math.prod(lead), ld, dtype, Memory.HOST, None, array)

    def written(self, array: Any) -> None:
        """Nothing to say."""

    def finish(self, array: Any, like: Any) -> Any:
        """The array as it is."""
        return array

    def workspace(self, like: Any, size: Callable[[], int]) -> tuple[int, int, Any] | None:
        """None: host arrays go through memory of the library's own."""
        return None

    def _array(self, array: Any, argument: str) -> np.ndarray[Any, Any]:
        check_unmasked(array, argument)
        return np.asarray(array)


class ConvertedKind(NumpyKind):
    """Objects with the buffer protocol (memoryview, array.array) or ``__array__``, as numpy sees them.

    The result for them is a numpy array. Lists are refused: they have no dtype, and a guess would often be wrong.
    """

    def accepts(self, array: Any) -> bool:
        """Whether the object is one of this family."""
        return hasattr(array, "__array__") or _has_buffer(array)

    def _array(self, array: Any, argument: str) -> np.ndarray[Any, Any]:
        return super()._array(memoryview(array) if _has_buffer(array) else array, argument)


def _has_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except TypeError:
        return False
    return True


def check_last_dimension(shape: tuple[int, ...], argument: str, width: int) -> None:
    """Raises InvalidArgumentError unless the shape is (..., width)."""
    if not shape or shape[-1] != width:
        raise InvalidArgumentError(
            f"{argument} has shape {shape_text(shape)}; expected (..., {width}), the last dimension in_features"
        )


def check_shape(shape: tuple[int, ...], argument: str, expected: tuple[int, ...]) -> None:
    """Raises InvalidArgumentError unless the shape is exactly this one."""
    if shape != expected:
        hint = ""
        if len(expected) == 2 and shape == expected[::-1]:
            hint = f"; pass {argument}.T: rows are output features, as torch.nn.Linear stores them"
        raise InvalidArgumentError(f"{argument} has shape {shape_text(shape)}; expected {shape_text(expected)}{hint}")


def row_stride(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int | None:
    """Elements from one row of (..., width) to the next; None if the rows are not evenly spaced.

    ``strides`` are in bytes. Rows must be unit-stride and must not overlap. 0 stands for "does not matter": at most one
    row.
    """
    width = shape[-1]
    if math.prod(shape) == 0:
        return 0
    if width > 1 and strides[-1] != itemsize:
        return None
    step = None  # bytes from one row to the next
    span = 0  # bytes that the dimensions seen so far cover, in steps
    for size, stride in zip(reversed(shape[:-1]), reversed(strides[:-1])):
        if size == 1:
            continue
        if step is None:
            step = stride
        elif stride != span:
            return None
        span = stride * size
    if step is None:
        return 0
    if step % itemsize or step < width * itemsize:
        return None
    return step // itemsize


_BY_NUMPY = {
    np.dtype(np.float32): DType.FLOAT32,
    np.dtype(np.float64): DType.FLOAT64,
    np.dtype(np.float16): DType.FLOAT16,
}
_UINT16 = np.dtype(np.uint16)


def numpy_to_dtype(dtype: np.dtype[Any], argument: str, said: DType, hint: str = "") -> DType:
    """The DType of an array with this numpy dtype. Else ArgumentTypeError.

    uint16 is bfloat16 where ``said`` is, and integers are columns where ``said`` is of their type.
    """
    known = _BY_NUMPY.get(dtype)
    if known is not None:
        return known
    if dtype.name == "bfloat16" and dtype.isnative:
        return DType.BFLOAT16
    if dtype == _UINT16 and said is DType.BFLOAT16:
        return DType.BFLOAT16
    if said in INDICES and dtype == numpy_dtype(said):
        return said
    if dtype == _UINT16:
        hint = " (uint16 is read as bfloat16 only where the model's dtype says bfloat16)"
    raise ArgumentTypeError(f"{argument} has dtype {dtype}; expected {expected_text(said)}{hint}")


def cast_hint(argument: str) -> str:
    """What takes an array of numpy as x or a row input, where its type is another one than was expected."""
    return "; a Model with cast=True converts it" if argument == "x" or argument.startswith("the row input ") else ""


def expected_text(said: DType) -> str:
    """What an array may be where ``said`` is expected and another of the same use would do."""
    return dtype_name(said) if said in INDICES else "float32, float64, float16 or bfloat16"


def output_text(dtype: DType) -> str:
    """The one dtype of a result."""
    return dtype_name(dtype) if dtype in INDICES else f"{dtype_name(dtype)}, the model's y_dtype"


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as Python writes a tuple of ints."""
    return str(tuple(int(n) for n in shape))


def type_name(value: Any) -> str:
    """The type of a value, with its module unless that is builtins."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


NUMPY = NumpyKind()
