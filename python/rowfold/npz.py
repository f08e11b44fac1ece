# SPDX-License-Identifier: MIT
"""Files of numpy: the arrays of an .npz, as ``numpy.savez`` writes it, and an .npy, mapped."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

import numpy as np

from ._lib import DType
from .arguments import path_text
from .arrays import numpy_to_dtype
from .errors import ArgumentTypeError, Error, FileError, InvalidArgumentError, InvalidFileError, OutOfMemoryError
from .filetype import nearest, what_is

MEMBER = ".npy"
Array = np.ndarray[Any, Any]
Header = tuple[tuple[int, ...], "np.dtype[Any]"]


def is_npz(path: str | os.PathLike[str]) -> bool:
    """Whether a path is one of numpy's archives, by its name."""
    return path_text(path).endswith(".npz")


def headers(path: str | os.PathLike[str]) -> dict[str, Header]:
    """Shape and dtype of each array of a file, by name. Raises FileError (OSError) or InvalidFileError (ValueError)."""
    with _opened(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(MEMBER)]
        return {name[: -len(MEMBER)]: _header(path, archive, name) for name in names}


def shape(path: str | os.PathLike[str], name: str) -> tuple[int, ...] | None:
    """The shape of an array of a file by its name, None if there is no such array. Raises as ``headers``."""
    with _opened(path) as archive:
        return _header(path, archive, name + MEMBER)[0] if name + MEMBER in archive.namelist() else None


def rows_of(path: Any, name: str, array: np.ndarray[Any, Any], total: int) -> np.ndarray[Any, Any]:
    """The array, if it has the rows of a whole layer."""
    if array.ndim and array.shape[0] == total:
        return array
    raise InvalidArgumentError(
        f"{os.fsdecode(path)}: array {name!r} has shape {array.shape}; expected {total} rows, total_columns"
    )


def arrays(path: str | os.PathLike[str], names: list[str]) -> dict[str, Array]:
    """These arrays of a file; bfloat16 as uint16. Raises as ``headers``; InvalidArgumentError for unknown names."""
    with _opened(path) as archive:
        return {name: _read(path, archive, name) for name in names}


def model_dtype(dtype: np.dtype[Any]) -> DType | None:
    """The type as a model takes it; None for one that no model does."""
    try:
        return numpy_to_dtype(dtype, "", DType.DEFAULT)
    except ArgumentTypeError:
        return None


def mapped(path: str | os.PathLike[str]) -> Array:
    """The array of an .npy, which reads from the file. Raises FileError, InvalidFileError or OutOfMemoryError."""
    name = path_text(path)
    with _in_a_sentence(name):
        with open(name, "rb") as file:
            # numpy would take anything else for a pickle, and advise to trust it.
            if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                what = what_is(name) or "no .npy file"
                raise InvalidFileError(f"{name}: is {what}: expected one array, as numpy.save writes it")
            file.seek(0)
            shape, _, dtype = _read_header(file)
            need, there = file.tell() + math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size
        if need > there and not dtype.hasobject:
            raise InvalidFileError(f"{name}: has {there} bytes of the {need} that its header tells of")
        array: Array = np.load(name, mmap_mode="r", allow_pickle=False)
        return array


def stream_header(file: BinaryIO, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype of an .npy whose data comes next. Raises InvalidFileError."""
    with _in_a_sentence(name, "no .npy: "):
        shape, fortran, dtype = _read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python's objects")
        return shape, fortran, dtype


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """What an .npy begins with. Raises ValueError for a shape that no array has, and what numpy raises."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > np.iinfo(np.int64).max:
        raise ValueError(f"its header has the shape {shape}")
    return shape, fortran, dtype


@contextmanager
def _in_a_sentence(where: str, what: str = "") -> Iterator[None]:
    """Whatever numpy, zipfile and what they call raise for a broken file, which is nearly everything, as rowfold's.

    ``what`` stands before the reason that a file's content is refused.
    """
    try:
        yield
    except Error:
        raise
    except OSError as error:
        raise FileError(f"{where}: {error.strerror or error}") from None
    except MemoryError as error:
        raise OutOfMemoryError(f"{where}: {error or 'no memory to read it'}") from None
    except Exception as error:  # noqa: BLE001 - there is no list of them
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidFileError(f"{where}: {what}{said}") from None


def _read(path: str | os.PathLike[str], archive: zipfile.ZipFile, name: str) -> Array:
    if name + MEMBER not in archive.namelist():
        names = [member[: -len(MEMBER)] for member in archive.namelist() if member.endswith(MEMBER)]
        raise InvalidArgumentError(
            f"{path_text(path)}: there is no array {name!r} among its {len(names)}{nearest(name, names)}"
        )
    with _in_a_sentence(f"{path_text(path)}: array {name!r}"), archive.open(name + MEMBER) as member:
        values: Array = np.lib.format.read_array(member, allow_pickle=False)
    # What numpy.savez makes of ml_dtypes.bfloat16; numpy itself has no name for it.
    return values.view(np.uint16) if values.dtype == np.dtype("V2") else values


def _header(path: str | os.PathLike[str], archive: zipfile.ZipFile, name: str) -> Header:
    with _in_a_sentence(f"{path_text(path)}: array {name[: -len(MEMBER)]!r}"), archive.open(name) as member:
        shape, _, dtype = _read_header(member)
    return shape, dtype


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    with ExitStack() as opened:
        with _in_a_sentence(path_text(path), "no archive of arrays: "):
            archive = opened.enter_context(zipfile.ZipFile(path_text(path)))
        yield archive
