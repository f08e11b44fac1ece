"""Files that commands write: complete, or not there."""

from __future__ import annotations

import contextlib
import os
import secrets
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
    # The name is known before there is a file: an interrupt may come as soon as there is one.
    partial = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, Error):
            raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None
        raise
