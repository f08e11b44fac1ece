# SPDX-License-Identifier: MIT
"""How long replays of a CUDA graph of a call take: no interpreter takes part. For the other tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 2


def replays(call: Callable[[], Any]) -> Callable[[int], float]:
    """A function that replays the call so many times and returns the mean seconds of one. It keeps what that needs."""
    cuda: Any = torch.cuda
    for _ in range(WARM_UP):
        call()
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        call()

    def seconds(rounds: int) -> float:
        start, stop = (cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(rounds):
            graph.replay()
        stop.record()
        stop.synchronize()
        milliseconds: float = start.elapsed_time(stop)
        return milliseconds / 1e3 / rounds

    seconds.owner = call  # type: ignore[attr-defined]  # a graph does not keep the model alive whose memory it reads
    return seconds
