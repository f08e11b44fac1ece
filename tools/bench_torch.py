#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The three models of examples/torch_models.py: eager, torch.compile and rowfold.torch.fuse, as Markdown.

    python tools/bench_torch.py [--device cuda] [--size 1024 8192 8192] [--dtypes float32 bfloat16]

Times are the median of several calls behind warm-up ones. The error is the largest of a row relative to the same model
in float64 on the same stored values. Memory is what a call adds at its peak, on a CUDA device.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("examples", "python")]

import rowfold.torch  # noqa: E402
from torch_models import MODELS  # noqa: E402

Forward = Callable[[torch.Tensor], torch.Tensor]


def seconds(forward: Forward, x: torch.Tensor, budget: float) -> float:
    """The median of as many calls as fit into the budget, three at least."""
    event: Any = torch.cuda.Event
    for _ in range(2):
        forward(x)
    samples: list[float] = []
    end = time.perf_counter() + budget
    while len(samples) < 3 or (time.perf_counter() < end and len(samples) < 50):
        if x.is_cuda:
            start, stop = (event(enable_timing=True) for _ in range(2))
            start.record()
            forward(x)
            stop.record()
            stop.synchronize()
            samples.append(start.elapsed_time(stop) / 1e3)
        else:
            began = time.perf_counter()
            forward(x)
            samples.append(time.perf_counter() - began)
    return statistics.median(samples)


def memory(forward: Forward, x: torch.Tensor) -> str:
    """MiB at the peak of a call beyond what was there before."""
    if not x.is_cuda:
        return ""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    forward(x)
    return f"{(torch.cuda.max_memory_allocated() - before) / 2**20:.1f}"


def error(y: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest relative error of a row."""
    y, exact = y.double().cpu().flatten()[: len(exact)], exact.cpu().flatten()
    return ((y - exact).abs() / exact.abs().clamp_min(1e-300)).max().item()


def contenders(model: torch.nn.Module, name: str) -> dict[str, Forward]:
    """What is measured. A collapsed sum is an algebraic rewrite and a line of its own."""
    found: dict[str, Forward] = {"eager": model, "torch.compile": torch.compile(model)}
    found["fused"] = rowfold.torch.fuse(model, simplify="none")
    if name == "sum_pool":
        found["fused, algebraic"] = rowfold.torch.fuse(model)
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, nargs=3, default=[1024, 8192, 8192], metavar=("BATCH", "K", "N"))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each contender")
    options = parser.parse_args()
    batch, in_features, out_features = options.size
    print(f"torch {torch.__version__}, {options.device}, batch {batch}, {in_features} -> {out_features}\n")
    print("| model | dtype | way | ms | times eager | MiB | largest relative error |\n|---|---|---|---|---|---|---|")
    for dtype in options.dtypes:
        for name, kind in MODELS.items():
            torch.manual_seed(0)
            torch._dynamo.reset()
            model = kind(in_features, out_features).to(options.device, getattr(torch, dtype)).eval()
            x = torch.rand(batch, in_features, device=options.device).to(getattr(torch, dtype))
            with torch.inference_mode():
                double = kind(in_features, out_features).double().to(options.device)
                double.load_state_dict(model.state_dict())
                exact = double(x[:64].double())
                del double
                base = 0.0
                for way, forward in contenders(model, name).items():
                    took = seconds(forward, x, options.budget)
                    base = base or took
                    wrong = error(forward(x), exact)
                    row = (
                        name,
                        dtype,
                        way,
                        f"{took * 1e3:.3f}",
                        f"{took / base:.2f}",
                        memory(forward, x),
                        f"{wrong:.1e}",
                    )
                    print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
