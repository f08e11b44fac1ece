# SPDX-License-Identifier: MIT
"""PyTorch modules fused by one call: ``rowfold.torch.fuse(module)``.

>>> import torch
>>> import rowfold.torch
>>> class Energy(torch.nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.head = torch.nn.Linear(64, 1000)
...
...     def forward(self, x):
...         return -self.head(x).logsumexp(dim=-1)
>>> fused = rowfold.torch.fuse(Energy().eval())  # or FuseError, which names the node, its source line and the reason
>>> with torch.no_grad():
...     fused(torch.ones(16, 64)).shape  # the same shape, dtype and values, and no logits in memory
torch.Size([16])

``token_logprobs`` and ``linear_cross_entropy`` are functions of a layer's input, weight and targets.

Needs PyTorch 2.4 or newer. Importing this module registers the operator ``torch.ops.rowfold.fused``, which an exported
graph needs to run.
"""

from __future__ import annotations

from ..errors import FuseError
from . import heads, library
from .fuse import fuse
from .module import Fused
from .partial import PartlyFused, Report
from .partial import report_of as report
from .scoring import linear_cross_entropy, token_logprobs

__all__ = [
    "FuseError",
    "Fused",
    "PartlyFused",
    "Report",
    "clear_cache",
    "fuse",
    "linear_cross_entropy",
    "report",
    "token_logprobs",
]


def clear_cache() -> None:
    """Frees what is kept for compiled and exported graphs, and for functions of tensors."""
    library.clear()
    heads.clear()


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__name__"]
