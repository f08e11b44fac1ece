# SPDX-License-Identifier: MIT
"""Resident memory of this process, in bytes, where Linux tells it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Callable

_STATUS = Path("/proc/self/status")


def _field(name: str) -> int | None:
    try:
        text = _STATUS.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None


def uncertainty() -> int:
    """Bytes that Linux may count late: each processor keeps up to a batch of pages to itself (percpu_counter_batch)."""
    processors = os.cpu_count() or 1
    return processors * max(32, 2 * processors) * mmap.PAGESIZE


def growth(action: Callable[[], object]) -> int | None:
    """How far the resident memory rose at its highest while the action ran; None where that cannot be measured.

    Counts what the action touches for the first time, so thread stacks and code pages too, and is as wrong as
    `uncertainty` says where threads move from one processor to another.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from now
    except OSError:
        action()
        return None
    before = _field("VmRSS")
    action()
    peak = _field("VmHWM")
    return None if before is None or peak is None else max(0, peak - before)
