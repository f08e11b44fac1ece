# SPDX-License-Identifier: MIT
"""What this build and this machine can run."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from ._lib import load
from .arguments import integer


class Backend(NamedTuple):
    """A backend of this build.

    ``reason`` says why it is not available here, and is None if it is; ``by_name``: no model runs on it that does not
    name it.
    """

    name: str
    available: bool
    reason: str | None
    by_name: bool = False


class CpuPeak(NamedTuple):
    """The best this CPU does: float32 fused multiply-adds, two operations each, and bytes read from memory."""

    flops_per_second: float
    bytes_per_second: float


def backends() -> list[Backend]:
    """All backends of this build, the best first.

    A model runs on the first that is available, supports it and is not chosen by name alone.
    """
    library = load()
    found = []
    for index in range(library.rf_backend_count()):
        reason = ctypes.c_char_p()
        available = bool(library.rf_backend_available(index, ctypes.byref(reason)))
        why = (reason.value or b"").decode()
        found.append(
            Backend(
                library.rf_backend_name(index).decode(), available, None if available else why, bool(available and why)
            )
        )
    return found


def cpu_measure(threads: int = 0) -> CpuPeak:
    """Measures the CPU now, for about 0.2 s, with so many threads; 0 for all cores that this process may use."""
    flops, read = ctypes.c_double(), ctypes.c_double()
    load().rf_cpu_measure(integer(threads, "threads", 32), ctypes.byref(flops), ctypes.byref(read))
    return CpuPeak(flops.value, read.value)
