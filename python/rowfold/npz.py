"""Weight files of numpy: the arrays of an .npz, as ``numpy.savez`` writes it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ._lib import DType
from .arguments import path_text
from .arrays import numpy_to_dtype
from .errors import ArgumentTypeError, Error, FileError, InvalidArgumentError, InvalidFileError

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
        return {name[: -len(MEMBER)]: _header(archive, name) for name in names}


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


def _read(path: str | os.PathLike[str], archive: zipfile.ZipFile, name: str) -> Array:
    if name + MEMBER not in archive.namelist():
        count = sum(member.endswith(MEMBER) for member in archive.namelist())
        raise InvalidArgumentError(f"{path_text(path)}: there is no array {name!r} among its {count}")
    try:
        with archive.open(name + MEMBER) as member:
            values: Array = np.lib.format.read_array(member, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidFileError(f"{path_text(path)}: array {name!r}: {error}") from None
    # What numpy.savez makes of ml_dtypes.bfloat16; numpy itself has no name for it.
    return values.view(np.uint16) if values.dtype == np.dtype("V2") else values


def _header(archive: zipfile.ZipFile, name: str) -> Header:
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    return shape, dtype


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path_text(path)) as archive:
            yield archive
    except Error:
        raise
    except OSError as error:
        raise FileError(f"{path_text(path)}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise InvalidFileError(f"{path_text(path)}: not an archive of arrays: {error}") from None
