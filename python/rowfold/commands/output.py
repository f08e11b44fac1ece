# SPDX-License-Identifier: MIT
"""Files that commands write: complete, or as they were.

A file is written beside its place under another name, which it changes for its own when all went well. Only what is
absent or a regular file is ever replaced: a device or a pipe is written into, or refused. A link is followed, and
stays: what it leads to is what is written.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import Error, FileError, InvalidArgumentError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Stopped(KeyboardInterrupt):
    """A signal that ends a command through the code that tidies up."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def require_place(path: Path, *, streams: bool = False, force: bool = True, inputs: Iterable[Any] = ()) -> None:
    """Says before any work is done that a file cannot go there. Raises InvalidArgumentError or FileError.

    ``streams``: a device or a pipe will do, too. ``force``: a regular file may be replaced, unless it is one of the
    files at ``inputs``.
    """
    place = _state(path)
    if place is None:
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise InvalidArgumentError(f"{target.parent} is not a directory; {target.name} is to be written there")
        return
    if stat.S_ISDIR(place.st_mode):
        raise InvalidArgumentError(f"{path} is a directory; expected the name of a file")
    if _is_stream(path, place):
        writable = stat.S_ISCHR(place.st_mode) or stat.S_ISFIFO(place.st_mode) or _descriptor(path) is not None
        if not (streams and writable):
            raise InvalidArgumentError(f"{path} is no regular file; expected one, or a new name")
        return
    for other in inputs:
        with contextlib.suppress(OSError):
            if os.path.samestat(place, os.stat(other)):
                raise InvalidArgumentError(f"{path} is the same file as {other}, which is read; expected another name")
    if not force:
        raise InvalidArgumentError(f"{path} exists; --force replaces it")


@contextlib.contextmanager
def complete_or_absent(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when all went well, and goes otherwise. Raises as ``require_place``.

    A file that is replaced leaves its mode to the new one, and its owner where the system allows it.
    """
    require_place(path)
    old, target = _state(path), Path(os.path.realpath(path))
    # The name is known before there is a file: an interrupt may come as soon as there is one.
    partial = target.parent / f".{target.name[:200]}.{secrets.token_hex(8)}"
    try:
        with open(partial, "xb") as file:
            if old is not None:
                with contextlib.suppress(OSError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode) & 0o777)
            yield file
            stop_if_asked()
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, Error):
            raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None
        raise


@contextlib.contextmanager
def stream_or_complete(path: Path) -> Iterator[BinaryIO]:
    """``complete_or_absent``, but into a device or a pipe where ``path`` is one. Raises BrokenPipeError besides."""
    place = _state(path)
    if place is None or not _is_stream(path, place):
        with complete_or_absent(path) as file:
            yield file
        return
    try:
        descriptor = _descriptor(path)
        # Not opened anew: a file that standard output was sent to would be written from its start.
        with os.fdopen(os.open(path, os.O_WRONLY) if descriptor is None else os.dup(descriptor), "wb") as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None


_asked: Stopped | None = None  # by the first signal, within ``interruptible``


def stop_if_asked() -> None:
    """Raises Stopped once more where it was lost: Python drops what is raised in finalizers, and when it imports."""
    if _asked is not None:
        raise _asked


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes the signals that end a program leave through the code that tidies up.

    The first raises Stopped; those that follow are ignored, since one of them would interrupt the tidying.
    """

    def stop(number: int, _: object) -> None:
        global _asked  # noqa: PLW0603 - signals are the process's
        if _asked is None:
            _asked = Stopped(number)
            raise _asked

    def dropped(what: Any) -> None:
        if what.exc_type is not Stopped:  # which is said in time
            tell(what)

    global _asked  # noqa: PLW0603
    # One that is ignored, as nohup has it, stays so.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heeded = [number for number in SIGNALS if before[number] is not signal.SIG_IGN]
    tell, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        for number in heeded:
            signal.signal(number, stop)
        yield
        stop_if_asked()
    finally:
        for number in heeded:
            signal.signal(number, before[number])
        sys.unraisablehook, _asked = tell, None


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Signals come behind it: an object that one finds half made cannot be tidied away without complaint."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _state(path: Path) -> os.stat_result | None:
    """Of what ``path`` leads to; None if there is nothing."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None


def _is_stream(path: Path, place: os.stat_result) -> bool:
    """Whether it is written into instead of replaced."""
    return not stat.S_ISREG(place.st_mode) or _descriptor(path) is not None


def _descriptor(path: Path) -> int | None:
    """N where ``path`` leads to /proc/self/fd/N, as /dev/stdout does; else None."""
    for _ in range(40):
        folder = os.path.realpath(path.parent)
        if re.fullmatch(rf"/proc/{os.getpid()}(/task/\d+)?/fd", folder) and path.name.isdecimal():
            return int(path.name)
        try:
            path = Path(folder) / os.readlink(path)
        except OSError:
            return None
    return None
