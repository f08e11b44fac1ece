# SPDX-License-Identifier: MIT
"""The CUDA kernels by name, from the table that the library is compiled from, and what skips tests of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import rowfold

_CUDA = Path(__file__).parent.parent / "cuda"
_ROWS = "".join((_CUDA / name).read_text() for name in ("sm90/kernels.def", "kernels.def"))  # in their order
KERNELS = re.findall(r'^RFI_CUDA_KERNEL\(\w+, "(\w+)"', _ROWS, re.MULTILINE)
HOPPER = [name for name in KERNELS if name.startswith("hopper")]
FORCE = "ROWFOLD_CUDA_KERNEL"  # the environment variable that forces one wherever it can run

_BACKEND = next(b for b in rowfold.backends() if b.name == "cuda")
needs_cuda = pytest.mark.skipif(not _BACKEND.available, reason=f"backend cuda: {_BACKEND.reason}")


def each(patch: pytest.MonkeyPatch, names: Iterable[str] = KERNELS) -> Iterator[str]:
    """The kernels, each forced while its turn is; "" is the library's own choice. What a test expects of all of them
    it works out once.
    """
    for name in names:
        patch.setenv(FORCE, name)
        yield name
    patch.delenv(FORCE)


def parse(text: str) -> list[str]:
    """Names with commas, or "all"; none for an empty text."""
    names = KERNELS if text == "all" else [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in KERNELS]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no CUDA kernel of that name; there are {', '.join(KERNELS)}")
    return list(names)
