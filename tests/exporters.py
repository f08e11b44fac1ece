# SPDX-License-Identifier: MIT
"""A DLPack producer made by hand, so that every rule can be broken and every deleter counted."""

from __future__ import annotations

import ctypes

import numpy as np
from rowfold import dlpack

Array = np.ndarray
_CODES = {"f": 2, "i": 0, "u": 1}

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Exporter:
    """Exports a numpy array. `deleted` counts calls of the deleter; `streams` holds what was asked for.

    versioned: the capsule's form. dense: strides are NULL. offset: bytes that `data` begins before the array.
    """

    def __init__(
        self,
        array: Array,
        *,
        versioned: bool = True,
        dense: bool = False,
        offset: int = 0,
        flags: int = 0,
        major: int = 1,
        device: tuple[int, int] = (dlpack.CPU, 0),
        code: int | None = None,
        lanes: int = 1,
        deleter: bool = True,
    ) -> None:
        self.array, self.versioned, self.deleted, self.streams = array, versioned, 0, []
        self.shape, self.device = array.shape, device
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        kind = dlpack.ManagedTensorVersioned if versioned else dlpack.ManagedTensor
        self._deleter = dlpack.Deleter(self._delete)
        self.managed = kind()
        if deleter:
            self.managed.deleter = self._deleter
        if versioned:
            self.managed.major, self.managed.minor, self.managed.flags = major, 0, flags
        tensor = self.managed.dl_tensor
        tensor.data, tensor.byte_offset = array.ctypes.data - offset, offset
        tensor.device.device_type, tensor.device.device_id = device
        tensor.ndim, tensor.shape = array.ndim, self._shape
        tensor.dtype.code = _CODES[array.dtype.kind] if code is None else code
        tensor.dtype.bits, tensor.dtype.lanes = array.itemsize * 8, lanes
        if not dense:
            tensor.strides = self._strides

    def _delete(self, address: int) -> None:
        assert address == ctypes.addressof(self.managed)
        self.deleted += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None, **keywords: object) -> object:
        if keywords and not self.versioned:
            raise TypeError(f"unexpected {sorted(keywords)}")
        self.streams.append(stream)
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        self._name = name
        return _new_capsule(ctypes.addressof(self.managed), name, None)
