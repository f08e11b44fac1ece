# SPDX-License-Identifier: MIT
"""PyTorch, if it is installed, and the devices that it and rowfold share."""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
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


def on_cuda(values: np.ndarray) -> Any:
    """A tensor on the device; of bfloat16 from its bits."""
    if values.dtype == np.uint16:
        return torch.from_numpy(values.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(values).cuda()


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


class Gate:
    """What is given to a stream behind it starts when it is opened. It opens by itself after a while: then a call that
    should not wait for the stream, and does, returns late and finds the stream empty.
    """

    def __init__(self, stream: Any, seconds: float = 20) -> None:
        self._flag = torch.zeros(1, dtype=torch.int32).pin_memory()
        status = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2(
            ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(self._flag.data_ptr()), 1, 0
        )
        assert not status, f"the CUDA driver says {status}"
        self._timer = threading.Timer(seconds, self._flag.fill_, (1,))
        self._timer.start()

    def open(self) -> None:
        self._timer.cancel()
        self._flag.fill_(1)
