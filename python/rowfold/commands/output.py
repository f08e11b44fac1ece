"""Files that commands write: complete, or not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import Error, FileError, InvalidArgumentError


def require_place(path: Path) -> None:
    """Says before any work is done that a file cannot go there."""
    if not path.parent.is_dir():
        raise InvalidArgumentError(f"{path.parent} is not a directory; {path.name} is to be written there")
    if path.is_dir():
        raise InvalidArgumentError(f"{path} is a directory; expected the name of a file")


@contextlib.contextmanager
def complete_or_absent(path: Path) -> Iterator[BinaryIO]:
    """A file beside ``path`` that takes its name when all went well, and goes otherwise. Raises FileError."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                yield file  # type: ignore[misc]
                file.flush()
                os.fsync(file.fileno())
                mask = os.umask(0)
                os.umask(mask)
                os.chmod(file.name, 0o666 & ~mask)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except Error:
        raise
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None
