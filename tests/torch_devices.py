# SPDX-License-Identifier: MIT
"""PyTorch, if it is installed, and the devices that it and rowfold share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import rowfold

torch: Any
try:
    torch = importlib.import_module("torch")
except ImportError:
    torch = None

DEVICES = ["cpu"]
if torch is not None and torch.cuda.is_available() and "cuda" in [b.name for b in rowfold.backends() if b.available]:
    DEVICES.append("cuda")

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
needs_torch_cuda = pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA device that PyTorch and rowfold share")


def captured(call: Callable[[], Any]) -> tuple[Any, Any]:
    """A CUDA graph of a call, and the results that a replay writes."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()  # what it keeps for later calls is made before
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph, results
