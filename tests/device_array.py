# SPDX-License-Identifier: MIT
"""Arrays on a CUDA device without a framework: each an allocation of its own, whose end a checking tool can see."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np


@functools.cache
def _driver() -> ctypes.CDLL:
    """CUDA's driver, with the context that the runtime uses on device 0 current in this thread."""
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    for status in (
        driver.cuInit(0),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        driver.cuCtxSetCurrent(context),
    ):
        _check(status)
    return driver


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver says {status}")


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D: from one memory to the other, rows apart."""

    _fields_ = [
        (f"{side}_{name}", kind)
        for side in ("from", "to")
        for name, kind in (
            ("x", ctypes.c_size_t),
            ("y", ctypes.c_size_t),
            ("memory", ctypes.c_uint),
            ("host", ctypes.c_void_p),
            ("device", ctypes.c_uint64),
            ("array", ctypes.c_void_p),
            ("pitch", ctypes.c_size_t),
        )
    ] + [("width", ctypes.c_size_t), ("rows", ctypes.c_size_t)]


class DeviceArray:
    """(rows, columns) with rows `ld` values apart, the first `skip` values behind the start of the allocation; or (n,).

    Only the values are written, and the allocation ends with the last of them.
    """

    def __init__(self, values: np.ndarray, ld: int = 0, skip: int = 0) -> None:
        self.shape, self.dtype = values.shape, values.dtype
        rows, columns = np.atleast_2d(values).shape
        self.ld = ld or columns
        assert self.ld >= columns
        self._start = ctypes.c_uint64()
        size = (skip + max(rows - 1, 0) * self.ld + columns) * self.dtype.itemsize
        _check(_driver().cuMemAlloc_v2(ctypes.byref(self._start), ctypes.c_size_t(max(size, 1))))
        self.pointer = self._start.value + skip * self.dtype.itemsize
        self._copy(np.ascontiguousarray(values), "from", "to")

    def _copy(self, values: np.ndarray, host: str, device: str) -> None:
        """Of no gap."""
        rows, columns = np.atleast_2d(values).shape
        item = values.dtype.itemsize
        if values.size:
            ends = {host: {"memory": 1, "host": values.ctypes.data, "pitch": columns * item}}
            ends[device] = {"memory": 2, "device": self.pointer, "pitch": self.ld * item}
            fields = {f"{side}_{name}": value for side, end in ends.items() for name, value in end.items()}
            copy = _Copy2D(width=columns * item, rows=rows, **fields)
            _check(_driver().cuMemcpy2DUnaligned_v2(ctypes.byref(copy)))

    def __del__(self) -> None:
        if self._start.value:
            _driver().cuMemFree_v2(self._start)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        item = self.dtype.itemsize
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": (self.ld * item, item)[-len(self.shape) :],
            "version": 3,
        }

    def numpy(self) -> np.ndarray:
        """Waits for the default stream."""
        values = np.empty(self.shape, self.dtype)
        self._copy(values, "to", "from")
        return values
