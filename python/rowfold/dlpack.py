# SPDX-License-Identifier: MIT
"""Arrays that export themselves by the DLPack protocol: cupy, jax, and any other.

The ownership rules (https://dmlc.github.io/dlpack/latest/python_spec.html), each kept in one place here:

- A capsule is consumed once, and renamed before anything else can fail, so that its own destructor leaves the memory
  to us (``_consume``).
- The deleter is called exactly once, when the last user of the memory is gone (``_Managed``), and may be NULL.
- The consumer says on which stream it will read (``_export``): 1 is CUDA's legacy default stream, 0 is not allowed, and
  a host array gets None. The producer makes that stream wait for the data.
- Strides count elements and may be NULL for a dense array; the data begins at ``data + byte_offset``.
- A producer that does not know ``max_version`` raises TypeError and is asked again without. Memory of a higher major
  version is given back unread: only the deleter's place is known.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from typing import Any, NamedTuple

import numpy as np

from ._lib import INDICES, DType, Memory
from .arrays import (
    NUMPY,
    Matrix,
    Place,
    check_last_dimension,
    check_shape,
    deep_copied,
    dense,
    expected_text,
    numpy_dtype,
    output_text,
    row_stride,
    shape_text,
    type_name,
)
from .errors import ArgumentTypeError, InvalidArgumentError
from .frameworks import LEGACY_DEFAULT_STREAM, framework_of

MAJOR_VERSION, MINOR_VERSION = 1, 1
READ_ONLY, IS_COPIED = 1, 2
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_HOST, _DEVICE = (CPU, CUDA_HOST), (CUDA, CUDA_MANAGED)


class Device(Structure):
    """DLDevice."""

    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DataType(Structure):
    """DLDataType: ``code`` is a key of _CODES."""

    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(Structure):
    """DLTensor."""

    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


# PYFUNCTYPE keeps the GIL: some producers' deleters touch Python objects without taking it.
Deleter = ctypes.PYFUNCTYPE(None, c_void_p)


class ManagedTensor(Structure):
    """DLManagedTensor, the form without a version."""

    _fields_ = [("dl_tensor", Tensor), ("manager_ctx", c_void_p), ("deleter", Deleter)]


class ManagedTensorVersioned(Structure):
    """DLManagedTensorVersioned. What stands before ``flags`` is the same in all versions."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", Deleter),
        ("flags", c_uint64),
        ("dl_tensor", Tensor),
    ]


# A capsule does not copy its name: these bytes live as long as the module.
_KINDS: tuple[tuple[bytes, bytes, type[Structure]], ...] = (
    (b"dltensor_versioned", b"used_dltensor_versioned", ManagedTensorVersioned),
    (b"dltensor", b"used_dltensor", ManagedTensor),
)

_DTYPES = {
    (2, 32): DType.FLOAT32,
    (2, 64): DType.FLOAT64,
    (2, 16): DType.FLOAT16,
    (4, 16): DType.BFLOAT16,
}
_CODES = {0: "int", 1: "uint", 2: "float", 3: "opaque", 4: "bfloat", 5: "complex", 6: "bool"}

_api = ctypes.pythonapi
_is_valid = _api.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (py_object, ctypes.c_char_p), ctypes.c_int
_get_pointer = _api.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = (py_object, ctypes.c_char_p), c_void_p
_set_name = _api.PyCapsule_SetName
_set_name.argtypes, _set_name.restype = (py_object, ctypes.c_char_p), ctypes.c_int


class _Managed:
    """Owns a consumed tensor: calls its deleter once, when nobody uses the memory any more."""

    __slots__ = ("managed", "array")

    def __init__(self, managed: Any, array: Any) -> None:
        self.managed = managed
        self.array = array  # the exporter too, for producers whose deleter does not hold it

    def __del__(self) -> None:
        deleter = self.managed.deleter
        if deleter:
            deleter(ctypes.addressof(self.managed))


class View(NamedTuple):
    """A consumed tensor: everything but the strides as the producer said it. ``strides`` count elements."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    code: int
    bits: int
    lanes: int
    device: tuple[int, int]
    flags: int | None  # None where the producer's version has none
    owner: Any


def view(array: Any, argument: str, stream: int | None) -> View:
    """Exports and consumes ``array``. ``stream`` is where a CUDA array will be read; it must be None for a host array.

    Raises ArgumentTypeError with the producer's own words if it does not export itself.
    """
    managed = _consume(_export(array, argument, stream), array, argument)
    tensor = managed.managed.dl_tensor
    if (tensor.device.device_type in _HOST) != (stream is None):
        raise ArgumentTypeError(
            f"{argument} came on DLPack device type {tensor.device.device_type}, which is not what its "
            "__dlpack_device__ says"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else dense_strides(shape)
    dtype, device = tensor.dtype, tensor.device
    return View(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        shape=shape,
        strides=strides,
        code=dtype.code,
        bits=dtype.bits,
        lanes=dtype.lanes,
        device=(device.device_type, device.device_id),
        flags=getattr(managed.managed, "flags", None),
        owner=managed,
    )


def _export(array: Any, argument: str, stream: int | None) -> Any:
    try:
        try:
            return array.__dlpack__(stream=stream, max_version=(MAJOR_VERSION, MINOR_VERSION))
        except TypeError:
            return array.__dlpack__(stream=stream)
    except Exception as error:
        raise ArgumentTypeError(
            f"{argument} is a {type_name(array)}, and its __dlpack__ failed: {type(error).__name__}: {error}"
        ) from error


def _consume(capsule: Any, array: Any, argument: str) -> _Managed:
    for name, used, kind in _KINDS:
        if not _is_valid(capsule, name):
            continue
        address = _get_pointer(capsule, name)
        if _set_name(capsule, used):
            raise ArgumentTypeError(f"{argument}: the DLPack capsule could not be renamed")
        managed = _Managed(kind.from_address(address), array)
        major = getattr(managed.managed, "major", MAJOR_VERSION)
        if major > MAJOR_VERSION:
            raise ArgumentTypeError(
                f"{argument} came as DLPack version {major}; expected {MAJOR_VERSION} or older, which was asked for"
            )
        return managed
    raise ArgumentTypeError(f"{argument}: __dlpack__ of a {type_name(array)} gave no unused DLPack capsule")


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a row-major array."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class DlpackKind:
    """Anything with ``__dlpack__`` and ``__dlpack_device__``."""

    def accepts(self, array: Any) -> bool:
        """Whether the object has the protocol's two methods."""
        return hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")

    def matrix(self, array: Any, argument: str, width: int, said: DType) -> Matrix:
        """An input (..., width) as a matrix, copied if its rows are not of unit stride and evenly spaced."""
        return self._input(array, argument, lambda shape: check_last_dimension(shape, argument, width), said)

    def weight(self, array: Any, argument: str, shape: tuple[int, ...], said: DType) -> Matrix:
        """An input of exactly this shape, (rows, columns) or (columns,)."""
        return self._input(array, argument, lambda came: check_shape(came, argument, shape), said)

    def _input(self, array: Any, argument: str, check: Callable[[tuple[int, ...]], None], said: DType) -> Matrix:
        """What is checked is what was exported, whatever attributes the exporter has."""
        stream = _stream_of(array, argument)
        seen = view(array, argument, stream)
        dtype = _dtype_of(seen, argument, said)
        check(seen.shape)
        ld = row_stride(seen.shape, seen.strides, 1)
        if ld is not None:
            return _matrix(seen, dtype, ld, stream)
        itemsize = seen.bits // 8
        source = Place(seen.pointer, seen.shape, tuple(n * itemsize for n in seen.strides), itemsize)
        if stream is None:
            values = dense(_as_numpy(seen), argument)
            lead = seen.shape[:-1]
            return Matrix(values.ctypes.data, lead, math.prod(lead), 0, dtype, Memory.HOST, None, values, source=source)
        dense_copy = framework_of(array).dense
        if dense_copy is None:
            raise InvalidArgumentError(
                f"{argument} has strides {seen.strides}; expected rows of unit stride, evenly spaced"
            )
        return self._input(dense_copy(array), argument, check, said)._replace(source=source)

    def copied(self, array: Any, argument: str) -> Any:
        """As the framework copies it."""
        return deep_copied(array, argument)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Matrix]:
        """A new array of the same framework on the device of ``like``."""
        y = framework_of(like).empty(like, shape, numpy_dtype(dtype))
        return y, self._checked(y, like, shape, dtype)

    def finish(self, array: Any, like: Any) -> Any:
        """What the caller gets for the array of ``empty``, once the call has been made."""
        return framework_of(like).finish(array, like)

    def output(self, array: Any, like: Any, shape: tuple[int, ...], dtype: DType) -> Matrix:
        """The caller's ``out``, checked as far as DLPack says. ``like`` owns the input."""
        if type(array).__module__.startswith("jax"):
            raise ArgumentTypeError("out is a jax array, which is immutable; leave out= away")
        return self._checked(array, getattr(like, "array", like), shape, dtype)

    def _checked(self, array: Any, like: Any, shape: tuple[int, ...], dtype: DType) -> Matrix:
        if isinstance(array, np.ndarray):
            return NUMPY.output(array, None, shape, dtype)
        if not self.accepts(array):
            raise ArgumentTypeError(f"out is a {type_name(array)}; expected an array of x's kind, {type_name(like)}")
        stream = _stream_of(array, "out")
        seen = view(array, "out", stream)
        if _dtype_of(seen, "out", dtype) is not dtype:
            raise ArgumentTypeError(f"out has dtype {_said(seen)}; expected {output_text(dtype)}")
        if seen.shape != shape:
            raise InvalidArgumentError(f"out has shape {shape_text(seen.shape)}; expected {shape_text(shape)}")
        if seen.flags is not None and seen.flags & (READ_ONLY | IS_COPIED):
            raise InvalidArgumentError("out is read-only, or exports itself as a copy; expected a writable array")
        ld = row_stride(shape, seen.strides, 1)
        if ld is None:
            raise InvalidArgumentError(f"out has strides {seen.strides}; expected rows of unit stride, evenly spaced")
        return _matrix(seen, dtype, ld, stream)

    def written(self, array: Any) -> None:
        """Nothing to say."""

    def workspace(self, like: Any, size: Callable[[], int]) -> tuple[int, int, Any] | None:
        """None: the library takes it from the device's pool, ordered on the stream."""
        return None


def _matrix(seen: View, dtype: DType, ld: int, stream: int | None) -> Matrix:
    lead = seen.shape[:-1]
    if seen.device[0] in _HOST:
        return Matrix(seen.pointer, lead, math.prod(lead), ld, dtype, Memory.HOST, None, seen.owner)
    native = 0 if stream == LEGACY_DEFAULT_STREAM else stream
    return Matrix(seen.pointer, lead, math.prod(lead), ld, dtype, Memory.DEVICE, native, seen.owner, seen.device[1])


def _stream_of(array: Any, argument: str) -> int | None:
    """In DLPack's numbers: None on the host, else the current stream of the array's framework."""
    kind, index = array.__dlpack_device__()
    if kind in _HOST:
        return None
    if kind not in _DEVICE:
        raise InvalidArgumentError(
            f"{argument} is on DLPack device type {int(kind)}; expected a CPU ({CPU}, {CUDA_HOST}) or CUDA ({CUDA}, "
            f"{CUDA_MANAGED})"
        )
    return framework_of(array).current_stream(int(index)) or LEGACY_DEFAULT_STREAM


def _dtype_of(seen: View, argument: str, said: DType) -> DType:
    known = _DTYPES.get((seen.code, seen.bits)) if seen.lanes == 1 else None
    if known is None and (seen.code, seen.bits, seen.lanes) == (1, 16, 1) and said is DType.BFLOAT16:
        known = DType.BFLOAT16
    if (
        known is None
        and said in INDICES
        and (seen.code, seen.bits, seen.lanes) == (0, numpy_dtype(said).itemsize * 8, 1)
    ):
        known = said
    if known is None:
        raise ArgumentTypeError(f"{argument} has dtype {_said(seen)}; expected {expected_text(said)}")
    return known


def _said(seen: View) -> str:
    name = _CODES.get(seen.code, f"code {seen.code}, bits ")
    return f"{name}{seen.bits}" + (f" x {seen.lanes}" if seen.lanes != 1 else "")


def _as_numpy(seen: View) -> np.ndarray[Any, Any]:
    """Host memory, of any strides, as a numpy array of the same bits."""
    bits = np.dtype(f"u{seen.bits // 8}")
    reach = [(n - 1) * s for n, s in zip(seen.shape, seen.strides)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    start = seen.pointer + low * bits.itemsize
    memory: Any = (ctypes.c_char * ((high - low + 1) * bits.itemsize)).from_address(start)
    strides = tuple(s * bits.itemsize for s in seen.strides)
    return np.ndarray(seen.shape, bits, memory, -low * bits.itemsize, strides)
