# SPDX-License-Identifier: MIT
"""What commands write: one result as an .npy, several as an .npz or a safetensors file, a batch at a time.

In a file of several arrays one begins where the one before it ends, so each is collected in a file without a name
beside its place, on disk and not in memory; what has no name goes with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np

from ..errors import CommunicationError, InvalidArgumentError
from .output import stream_or_complete, undivided

Array = np.ndarray[Any, Any]
ENDINGS = (".npy", ".npz", ".safetensors")
_IN_MEMORY = 1 << 16  # bytes of each result that are collected before a file is made
_CODES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "bool": "BOOL"}


class Named(NamedTuple):
    """A result as it is written."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Writer(Protocol):
    """Takes the results of the rows in their order."""

    def write(self, parts: Sequence[Array]) -> None:
        """Those of the next rows, contiguous."""

    def append(self, index: int, rows: BinaryIO, size: int) -> None:
        """The next rows of one result as bytes, ``size`` of them, which another process has written."""


class Nothing:
    """Where nothing is written."""

    def write(self, parts: Sequence[Array]) -> None:
        """Nothing."""

    def append(self, index: int, rows: BinaryIO, size: int) -> None:
        """Nothing."""


def require_ending(path: Path) -> None:
    """Raises InvalidArgumentError for a name that says it is something else than what is written."""
    if path.suffix not in ("", *ENDINGS) and not (path.exists() and not path.is_file()):
        raise InvalidArgumentError(
            f"--output {path}: ends in {path.suffix}, but an .npy, .npz or .safetensors is written; name it so"
        )


def ending(path: Path, results: Sequence[Named], single: str = ".npy") -> str:
    """In which form the results are written: what the name says, or ``single`` for one and an .npz for several.

    Raises InvalidArgumentError for several in an .npy.
    """
    form = path.suffix if path.suffix in ENDINGS else single if len(results) == 1 else ".npz"
    if form == ".npy" and len(results) > 1:
        names = ", ".join(result.name for result in results)
        raise InvalidArgumentError(
            f"--output {path}: an .npy holds one array, and there are {len(results)} ({names}); name an .npz or "
            ".safetensors"
        )
    return form


@contextlib.contextmanager
def writer(path: Path, form: str, results: Sequence[Named]) -> Iterator[Writer]:
    """A file of these results, complete or not there at all; raises as ``stream_or_complete``."""
    with stream_or_complete(path) as file:
        if form == ".npy":
            _npy_header(file, results[0])
            yield _Single(file)
            return
        with _spooled(path, results) as spools:
            yield _Several(spools)
            for spool in spools:
                spool.seek(0)
            (_npz if form == ".npz" else _safetensors)(file, results, spools)


@contextlib.contextmanager
def share(file: BinaryIO, path: Path, results: Sequence[Named]) -> Iterator[Writer]:
    """The rows of one of several processes: all of the first result, then all of the second, for ``append``."""
    with _spooled(path, results) as spools:
        yield _Several(spools)
        for spool in spools:
            spool.seek(0)
            shutil.copyfileobj(spool, file, 1 << 20)


@contextlib.contextmanager
def _spooled(path: Path, results: Sequence[Named]) -> Iterator[list[Any]]:
    folder = os.path.dirname(os.path.realpath(path)) if path.suffix else None
    with contextlib.ExitStack() as opened:
        with undivided():
            spools = [tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+b", dir=folder) for _ in results]
            for spool in spools:
                opened.enter_context(spool)
        yield spools


def _copy(rows: BinaryIO, to: BinaryIO, size: int) -> None:
    while size:
        some = rows.read(min(size, 1 << 20))
        if not some:
            raise CommunicationError("the file of another process ends before its rows do")
        to.write(some)
        size -= len(some)


class _Single:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def write(self, parts: Sequence[Array]) -> None:
        self.file.write(parts[0].data)

    def append(self, index: int, rows: BinaryIO, size: int) -> None:
        _copy(rows, self.file, size)


class _Several:
    def __init__(self, spools: Sequence[BinaryIO]) -> None:
        self.spools = spools

    def write(self, parts: Sequence[Array]) -> None:
        for spool, part in zip(self.spools, parts):
            spool.write(part.data)

    def append(self, index: int, rows: BinaryIO, size: int) -> None:
        _copy(rows, self.spools[index], size)


def _npy_header(file: Any, result: Named) -> None:
    description = {
        "descr": np.lib.format.dtype_to_descr(result.dtype),
        "fortran_order": False,
        "shape": result.shape,
    }
    np.lib.format.write_array_header_1_0(file, description)


def _npz(file: BinaryIO, results: Sequence[Named], spools: Sequence[BinaryIO]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for result, spool in zip(results, spools):
            with archive.open(f"{result.name}.npy", "w", force_zip64=True) as member:
                _npy_header(member, result)
                shutil.copyfileobj(spool, member, 1 << 20)


def _safetensors(file: BinaryIO, results: Sequence[Named], spools: Sequence[BinaryIO]) -> None:
    # Not by the package of that name, which wants all tensors in memory.
    header, offset = {}, 0
    for result in results:
        end = offset + prod(result.shape) * result.dtype.itemsize
        header[result.name] = {
            "dtype": _CODES[result.dtype.name],
            "shape": list(result.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for spool in spools:
        shutil.copyfileobj(spool, file, 1 << 20)
