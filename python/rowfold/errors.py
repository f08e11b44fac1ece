# SPDX-License-Identifier: MIT
"""Exceptions: one class for each status of the C library, and each also the standard exception its kind calls for.

``except rowfold.Error`` catches everything the package raises; ``except ValueError``, ``TypeError``, ``MemoryError``,
``OSError`` or ``RuntimeError`` catch by kind.
"""

from __future__ import annotations

import re


class Error(Exception):
    """Base of all of rowfold's exceptions. The message names the argument, what came and what was expected."""


class InvalidArgumentError(Error, ValueError):
    """An argument has a wrong value, shape or layout."""


class ArgumentTypeError(Error, TypeError):
    """An argument has a wrong type or a wrong dtype."""


class ChainError(Error, ValueError):
    """The chain is wrong; the message points at the column of the text, or at the operator."""


class FuseError(Error, ValueError):
    """A PyTorch module cannot be fused; the message names the node, its source line and the reason.

    ``reason`` is the last of these alone, where the message has more.
    """

    reason: str = ""


class NotLoadedError(Error, RuntimeError):
    """The model has no weights yet."""


class AlreadyLoadedError(Error, RuntimeError):
    """The model already has its weights, and is immutable."""


class ClosedError(Error, RuntimeError):
    """The model was closed."""


class OutOfMemoryError(Error, MemoryError):
    """Host or device memory could not be had."""


class UnsupportedError(Error, RuntimeError):
    """The backend that was forced cannot run this model."""


class UnavailableError(Error, RuntimeError):
    """The backend or device asked for is not in this machine or build."""


class BufferTooSmallError(Error, ValueError):
    """A result did not fit into the buffer it was to go to."""


class DeviceError(Error, RuntimeError):
    """The device reported an error; the message has the driver's own text."""


class FileError(Error, OSError):
    """A file could not be opened, read or mapped."""


class InvalidFileError(Error, ValueError):
    """A file's content breaks its format."""


class InternalError(Error, RuntimeError):
    """An internal check failed; please report it."""


class CommunicationError(Error, RuntimeError):
    """The processes that hold a layer's shards could not exchange what they need of each other.

    The message names the rank that it failed for, where that is known.
    """


class LibraryError(Error, OSError):
    """The native library was not found, could not be loaded, or is of another version."""


BY_STATUS: dict[str, type[Error]] = {
    "INVALID_ARGUMENT": InvalidArgumentError,
    "INVALID_CHAIN": ChainError,
    "NOT_LOADED": NotLoadedError,
    "ALREADY_LOADED": AlreadyLoadedError,
    "OUT_OF_MEMORY": OutOfMemoryError,
    "UNSUPPORTED": UnsupportedError,
    "UNAVAILABLE": UnavailableError,
    "WORKSPACE_TOO_SMALL": InvalidArgumentError,
    "BUFFER_TOO_SMALL": BufferTooSmallError,
    "DEVICE_ERROR": DeviceError,
    "IO_ERROR": FileError,
    "INVALID_FILE": InvalidFileError,
    "INTERNAL": InternalError,
    "COMMUNICATION": CommunicationError,
}


# What the library says in C, as Python has it.
_IN_PYTHON = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"expected it in the config or as linear\(", "expected it as an argument of Model, or written as linear("),
        (r"rf_op_get_info lists them", "rowfold.ops.operators() lists them"),
        (r"call rf_model_load_weights first", "call load_weights first"),
        (r"; expected args\.states, or rf_model_forward_sharded", "; expected a call of states(x), then merge_states"),
        (r"expected room for out_features, (\d+), or 0 and 0", r"expected room for out_features, \1"),
        (r"expected 0 \(all cores\) to", "expected None (all cores), or 1 to"),
        (r"expected 1 to 2\^40, or 0 for what the chain says", "expected 1 to 2**40, or None for what the chain says"),
        (r"config\.weight_dtype", "dtype"),
        (r"config\.(\w+)", r"\1"),
        (r"names\.(\w+)", r"\1"),
    )
)


def in_python(message: str) -> str:
    """A sentence of the C library with Python's names."""
    for pattern, text in _IN_PYTHON:
        message = pattern.sub(text, message)
    return message


def first_line(error: Exception) -> str:
    """What another library's exception says, without where in its code that was; its class where it says nothing."""
    return str(error).strip().partition("\n")[0].rstrip() or type(error).__name__


def for_status(name: str | None, message: str) -> Error:
    """The exception for a status by its name in rowfold.h without ``RF_``; InternalError for one that is not known."""
    return BY_STATUS.get(name or "", InternalError)(in_python(message))
