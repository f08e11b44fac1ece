# SPDX-License-Identifier: MIT
"""PyTorch modules fused by one call: ``rowfold.torch.fuse(module)``.

    import rowfold.torch

    fused = rowfold.torch.fuse(model.eval())    # or FuseError, which names the node, its source line and the reason
    with torch.no_grad():
        y = fused(x)                            # the same shape, dtype and values, and no logits in memory

Needs PyTorch 2.4 or newer. Importing this module registers the operator ``torch.ops.rowfold.fused``, which an exported
graph needs to run.
"""

from __future__ import annotations

from ..errors import FuseError
from .library import clear as clear_cache
from .module import Fused, fuse

__all__ = ["FuseError", "Fused", "clear_cache", "fuse"]
