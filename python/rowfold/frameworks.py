# SPDX-License-Identifier: MIT
"""What no protocol says about a framework: how it makes arrays, and on which stream it works.

FRAMEWORKS has a row for each that needs one, by the name of its top module.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .errors import ArgumentTypeError, DeviceError

LEGACY_DEFAULT_STREAM = 1  # DLPack's and __cuda_array_interface__'s number for it

Shape = tuple[int, ...]
DTypeLike = np.dtype[Any]


def _default_stream(device: int) -> int:
    return LEGACY_DEFAULT_STREAM


def _as_it_is(array: Any, like: Any) -> Any:
    return array


class Framework(NamedTuple):
    """One framework's own ways.

    ``empty(like, shape, dtype)`` makes an array on the device of ``like``; ``dense(array)`` a contiguous copy on the
    current stream; ``current_stream(device)`` is a CUDA stream; ``finish(array, like)`` makes of the filled array what
    the caller gets.
    """

    empty: Callable[[Any, Shape, DTypeLike], Any]
    dense: Callable[[Any], Any] | None = None
    current_stream: Callable[[int], int] = _default_stream
    finish: Callable[[Any, Any], Any] = _as_it_is


def _cupy() -> Framework:
    cupy: Any = importlib.import_module("cupy")

    def empty(like: Any, shape: Shape, dtype: DTypeLike) -> Any:
        with like.device:
            return cupy.empty(shape, dtype)

    def current_stream(device: int) -> int:
        return int(cupy.cuda.get_current_stream(device).ptr)

    return Framework(empty, cupy.ascontiguousarray, current_stream)


class _Scratch:
    """A new jax array that nobody else has seen, which may be written through its DLPack export."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__dlpack__ = array.__dlpack__
        self.__dlpack_device__ = array.__dlpack_device__


def _jax() -> Framework:
    """Arrays of jax are immutable and have no current stream.

    So a result on the host is made by numpy and handed over; one on a GPU is a new array, written before anybody can
    see it, and the call waits until it is there: jax would not know what to wait for.
    """
    jax: Any = importlib.import_module("jax")

    def empty(like: Any, shape: Shape, dtype: DTypeLike) -> Any:
        if like.device.platform == "cpu":
            return np.empty(shape, dtype)
        return _Scratch(jax.numpy.empty(shape, dtype, device=like.device).block_until_ready())

    def finish(array: Any, like: Any) -> Any:
        if isinstance(array, np.ndarray):
            return jax.device_put(array, like.device)
        _wait_for_default_stream()
        return array.array

    return Framework(empty, finish=finish)


def _wait_for_default_stream() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    status = driver.cuStreamSynchronize(ctypes.c_void_p(LEGACY_DEFAULT_STREAM))
    if status:
        raise DeviceError(f"waiting for the result failed with the CUDA driver's status {status}")


def _numba() -> Framework:
    cuda: Any = importlib.import_module("numba.cuda")
    return Framework(lambda like, shape, dtype: cuda.device_array(shape, dtype))


FRAMEWORKS: dict[str, Callable[[], Framework]] = {
    "cupy": _cupy,
    "jax": _jax,
    "jaxlib": _jax,
    "numba": _numba,
}


def framework_of(array: Any) -> Framework:
    """The row of an array's framework; else the array API standard's way; else one that can make no arrays."""
    row = FRAMEWORKS.get(type(array).__module__.partition(".")[0])
    if row is not None:
        return row()
    if hasattr(array, "__array_namespace__"):
        return Framework(_standard_empty)
    return Framework(_no_empty)


def _standard_empty(like: Any, shape: Shape, dtype: DTypeLike) -> Any:
    space = like.__array_namespace__()
    wanted = getattr(space, dtype.name, None)
    if wanted is None:
        raise ArgumentTypeError(f"{type(like).__module__} has no dtype {dtype.name} for the result; pass out=")
    return space.empty(shape, dtype=wanted, device=like.device)


def _no_empty(like: Any, shape: Shape, dtype: DTypeLike) -> Any:
    kind = type(like)
    raise ArgumentTypeError(
        f"how to make a {kind.__module__}.{kind.__qualname__} for the result is not known; pass out="
    )
