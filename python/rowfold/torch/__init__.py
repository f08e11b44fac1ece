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

Needs PyTorch 2.4 or newer. Importing this module registers the operator ``torch.ops.rowfold.fused``, which an exported
graph needs to run.
"""

from __future__ import annotations

from ..errors import FuseError
from .fuse import fuse
from .library import clear as clear_cache
from .module import Fused
from .partial import PartlyFused, Report
from .partial import report_of as report

__all__ = ["FuseError", "Fused", "PartlyFused", "Report", "clear_cache", "fuse", "report"]


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__name__"]
