# SPDX-License-Identifier: MIT
"""Data types of the tests: values as the library is given them, and what stored values stand for."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
DTYPES = ("float32", "float64", "float16", "bfloat16")


def store(values: Array, dtype: str) -> Array:
    """Values rounded to nearest even. bfloat16 is uint16 bit patterns, which need no package."""
    with np.errstate(over="ignore"):
        if dtype != "bfloat16":
            return np.ascontiguousarray(values, dtype=dtype)
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded)


def widen(stored: Array, dtype: str) -> Array:
    """The values in float64, exactly."""
    if dtype != "bfloat16":
        assert stored.dtype == dtype, (stored.dtype, dtype)
        return stored.astype(np.float64)
    bits = stored.view(np.uint16)  # ml_dtypes.bfloat16 too
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def rounded(values: Array, dtype: str, up: bool) -> Array:
    """Float64 to a dtype and back, monotone. float32 on the way to bfloat16 is rounded outwards: no tie is lost."""
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":
            near = values.astype(np.float32)
            inside = near.astype(np.float64) < values if up else near.astype(np.float64) > values
            values = np.where(inside, np.nextafter(near, np.float32(np.inf if up else -np.inf)), near)
        return widen(store(values, dtype), dtype)
