# SPDX-License-Identifier: MIT
"""Weight files: safetensors, or the JSON index of a sharded model, as the native library reads them; and .npz."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from . import _lib, npz
from ._lib import DType, load
from .arguments import path_text
from .arrays import numpy_dtype
from .errors import ArgumentTypeError, InvalidArgumentError, InvalidFileError
from .filetype import nearest, what_is
from .ops import encode


class Tensor(NamedTuple):
    """A tensor of a file: ``type_name`` as the file says it, ``dtype`` None for a type that no model takes."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    dtype: DType | None
    path: str
    offset: int  # of the data, in bytes from the start of ``path``; -1 in an .npz, whose arrays may be compressed


def tensors(path: str | os.PathLike[str]) -> list[Tensor]:
    """All tensors of a file, in its order. Raises FileError (OSError) or InvalidFileError (ValueError)."""
    if npz.is_npz(path):
        return [
            Tensor(name, shape, str(dtype), npz.model_dtype(dtype), path_text(path), -1)
            for name, (shape, dtype) in npz.headers(path).items()
        ]
    with opened(path) as file:
        return list(_tensors_in(file))


BESIDE = "*.bias"  # in place of a bias' name: the one beside the weight


def bias_of(bias: str | None, weight: str, shape_of: Callable[[str], tuple[int, ...] | None]) -> str | None:
    """The name of the bias: as given, or for BESIDE of the tensor that PyTorch keeps beside this weight, if it fits.

    ``shape_of`` gives the shape of a tensor by its name, None if there is none.
    """
    head, dot, tail = weight.rpartition(".")
    if bias != BESIDE or tail != "weight":
        return None if bias == BESIDE else bias
    beside, rows = f"{head}{dot}bias", (shape_of(weight) or ())[:1]
    return beside if rows and shape_of(beside) == rows else None


def find(path: str | os.PathLike[str], name: str) -> Tensor:
    """One tensor by name. Raises FileError, InvalidFileError, or InvalidArgumentError if there is no such name."""
    with opened(path) as file:
        return find_in(file, name)


def find_in(file: _lib.FilePointer, name: str) -> Tensor:
    """One tensor of an open file by name. Raises InvalidArgumentError if there is no such name."""
    try:
        return _found_in(file, name)
    except InvalidArgumentError as error:
        names = [tensor.name for tensor in _tensors_in(file)]
        raise InvalidArgumentError(f"{error}{nearest(name, names)}") from None


def shape_in(file: _lib.FilePointer, name: str) -> tuple[int, ...] | None:
    """The shape of a tensor of an open file by name, None if there is no such name."""
    try:
        return _found_in(file, name).shape
    except InvalidArgumentError:
        return None


def native_names(weight: str, bias: str | None, vectors: Mapping[str, str]) -> _lib.FileNames:
    """As the library takes them: the tensors' names, for vectors by those that the chain has."""
    return _lib.FileNames(
        size=ctypes.sizeof(_lib.FileNames),
        weight=encode(weight, "weight"),
        bias=None if bias is None else encode(bias, "bias"),
        vectors=(_lib.FileVector * len(vectors))(
            *(
                _lib.FileVector(ctypes.sizeof(_lib.FileVector), encode(vector, "vectors"), encode(name, "vectors"))
                for vector, name in vectors.items()
            )
        ),
        num_vectors=len(vectors),
    )


def _found_in(file: _lib.FilePointer, name: str) -> Tensor:
    info = _lib.TensorInfo(size=ctypes.sizeof(_lib.TensorInfo))
    load().rf_file_find(file, encode(name, "name"), ctypes.byref(info))
    return _tensor(info)


def _tensors_in(file: _lib.FilePointer) -> Iterator[Tensor]:
    library = load()
    for index in range(library.rf_file_tensor_count(file)):
        info = _lib.TensorInfo(size=ctypes.sizeof(_lib.TensorInfo))
        library.rf_file_tensor(file, index, ctypes.byref(info))
        yield _tensor(info)


_INDICES = {"I64": DType.INT64, "I32": DType.INT32}


def mapped(path: str | os.PathLike[str], name: str, indices: bool = False) -> tuple[np.memmap[Any, Any], DType]:
    """One tensor of a safetensors file as an array that reads from it, and its dtype.

    ``indices``: one of int64 or int32 will do, too.
    """
    tensor = find(path, name)
    if indices and tensor.type_name in _INDICES:
        tensor = tensor._replace(dtype=_INDICES[tensor.type_name])
    if tensor.dtype is None:
        expected = "a floating-point type" + (", I64 or I32" if indices else "")
        raise ArgumentTypeError(f"{tensor.path}: tensor {name!r} is {tensor.type_name}; expected {expected}")
    if 0 in tensor.shape:
        raise InvalidArgumentError(f"{tensor.path}: tensor {name!r} has shape {tensor.shape}; there is nothing to map")
    kind = numpy_dtype(tensor.dtype)
    return np.memmap(tensor.path, kind, "r", tensor.offset, tensor.shape), tensor.dtype


def encode_path(path: str | os.PathLike[str]) -> bytes:
    """A path for the library: without a NUL, at which C would end it."""
    raw = os.fsencode(path_text(path))
    if b"\0" in raw:
        raise InvalidArgumentError(f"path is {path!r}, which holds a NUL character")
    return raw


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[_lib.FilePointer]:
    """A file of the library's, closed at the end. Raises FileError (OSError) or InvalidFileError (ValueError)."""
    library, file = load(), _lib.FilePointer()
    try:
        library.rf_file_open(ctypes.byref(file), encode_path(path))
    except InvalidFileError:
        what = "" if path_text(path).endswith(".json") else what_is(path)
        if not what or what.startswith("a safetensors file"):
            raise
        raise InvalidFileError(f"{path_text(path)}: is {what}") from None
    try:
        yield file
    finally:
        library.rf_file_close(file)


def _tensor(info: Any) -> Tensor:
    shape = tuple(info.shape[: info.num_dims])
    dtype = DType(info.dtype) if info.dtype else None
    return Tensor(info.name.decode(), shape, info.type_name.decode(), dtype, os.fsdecode(info.path), info.offset)
