# SPDX-License-Identifier: MIT
"""Host time of a call on a CUDA tensor: how long a program is busy until a call returns, beside PyTorch.

    python tools/host_time.py [--rows 8] [--in-features 8192] [--out-features 8192] [--dtype bfloat16]

Calls are timed in bursts that are short enough for no queue to be full, and the device is waited for between them: what
is shown is the time of the host alone. The contenders take turns; each gets its fastest bursts' median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import rowfold
import rowfold.torch
import torch
from torch import nn

BURST = 20  # calls; a queue of launches holds some thousand


class Head(nn.Module):
    """What eager PyTorch runs and torch.compile compiles."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, in_features) to (rows, 1)."""
        return torch.logsumexp(self.linear(x), dim=1, keepdim=True)


def contenders(args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """The same head in every way, on the same x."""
    dtype = getattr(torch, args.dtype)
    head = Head(args.in_features, args.out_features).to(args.device, dtype).eval().requires_grad_(False)
    x = torch.randn(args.rows, args.in_features, device=args.device, dtype=dtype)
    sizes = args.in_features, args.out_features
    model = rowfold.Model("linear | logsumexp", *sizes, dtype=args.dtype, y_dtype=args.dtype, device=args.device)
    model.load_weights(head.linear.weight, head.linear.bias)
    out = torch.empty(args.rows, 1, device=args.device, dtype=dtype)
    fused = rowfold.torch.fuse(head)
    found: dict[str, Callable[[], Any]] = {
        "rowfold.Model": lambda: model(x),
        "rowfold.Model, out=": lambda: model(x, out=out),
        "rowfold.torch.fuse": lambda: fused(x),
        "PyTorch eager": lambda: head(x),
    }
    if not args.no_compile:
        compiled = torch.compile(head)
        found["torch.compile"] = lambda: compiled(x)
    return found


def measure(calls: dict[str, Callable[[], Any]], bursts: int, wait: Callable[[], None]) -> dict[str, float]:
    """Microseconds of the host a call: the median of the faster half of the bursts."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(BURST):
            call()
    for _ in range(bursts):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            for _ in range(BURST):
                call()
            taken[name].append((time.perf_counter() - start) / BURST * 1e6)
    wait()
    return {name: statistics.median(sorted(times)[: (len(times) + 1) // 2]) for name, times in taken.items()}


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--in-features", type=int, default=8192)
    parser.add_argument("--out-features", type=int, default=8192)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bursts", type=int, default=100)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()
    with torch.no_grad():
        times = measure(contenders(args), args.bursts, torch.cuda.synchronize if args.device != "cpu" else lambda: None)
    eager = times["PyTorch eager"]
    print(f"{args.rows} x {args.in_features} -> {args.out_features}, {args.dtype}, {args.device}: host time of a call")
    for name, microseconds in times.items():
        print(f"{name:<22}{microseconds:8.1f} us  {microseconds / eager:5.2f} of eager's")


if __name__ == "__main__":
    main()
