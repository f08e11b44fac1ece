# SPDX-License-Identifier: MIT
"""The three presets as PyTorch models, written the usual way, and fused by one call each.

    python examples/torch_models.py [batch [in_features [out_features]]]

prints what became of each operator, the time of both forwards, and the largest difference between them.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class LogSumExpGelu(nn.Module):
    """Linear, logsumexp, leaky_relu twice, gelu twice."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps x (batch, in_features) to (batch, 1)."""
        x = self.linear(x)
        x = torch.logsumexp(x, dim=1, keepdim=True)
        x = F.leaky_relu(x, negative_slope=0.01)
        x = F.leaky_relu(x, negative_slope=0.01)
        x = F.gelu(x)
        x = F.gelu(x)
        return x


class SumPool(nn.Module):
    """Linear, then sum, max, mean, logsumexp and logsumexp, each over the columns."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps x (batch, in_features) to (batch, 1)."""
        x = self.linear(x)
        x = torch.sum(x, dim=1, keepdim=True)
        x = torch.max(x, dim=1, keepdim=True)[0]
        x = torch.mean(x, dim=1, keepdim=True)
        x = torch.logsumexp(x, dim=1, keepdim=True)
        x = torch.logsumexp(x, dim=1, keepdim=True)
        return x


class ScaleClampMish(nn.Module):
    """Linear, scale, x + x, clamp, logsumexp, x * mish(x)."""

    def __init__(
        self, in_features: int, out_features: int, scale_factor: float = 2.0, low: float = -10.0, high: float = 10.0
    ) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scale_factor = scale_factor
        self.clamp_min = low
        self.clamp_max = high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps x (batch, in_features) to (batch, 1)."""
        x = self.matmul(x)
        x = x * self.scale_factor
        x = x + x
        x = torch.clamp(x, self.clamp_min, self.clamp_max)
        x = torch.logsumexp(x, dim=1, keepdim=True)
        x = x * F.mish(x)
        return x


MODELS = {"logsumexp_gelu": LogSumExpGelu, "sum_pool": SumPool, "scale_clamp_mish": ScaleClampMish}


def main(sizes: list[int]) -> None:
    """Runs the three models."""
    import rowfold.torch

    batch, in_features, out_features = [*sizes, *(256, 1024, 4096)[len(sizes) :]]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(batch, in_features, device=device)
    for name, kind in MODELS.items():
        model = kind(in_features, out_features).to(device).eval()
        print(f"\n{name}")
        fused = rowfold.torch.fuse(model, explain=True, batch=batch)
        with torch.no_grad():
            results, seconds = [], []
            for forward in (model, fused):
                forward(x)
                start = time.perf_counter()
                results.append(forward(x).cpu())
                seconds.append(time.perf_counter() - start)
        difference = (results[0] - results[1]).abs().max().item()
        print(f"eager {seconds[0] * 1e3:.2f} ms, fused {seconds[1] * 1e3:.2f} ms, largest difference {difference:.2g}")


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
