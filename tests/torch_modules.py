# SPDX-License-Identifier: MIT
"""What the tests of rowfold.torch share. Importing it skips a module of tests where PyTorch is missing or too old."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not hasattr(torch.library, "custom_op"):
    pytest.skip("PyTorch is older than 2.4", allow_module_level=True)

import rowfold.torch as rt  # noqa: E402
from torch import nn  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
DTYPES = ["float32", "float64", "float16", "bfloat16"]


def example_models():
    spec = importlib.util.spec_from_file_location("torch_models", ROOT / "examples" / "torch_models.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import would, for pickle
    spec.loader.exec_module(module)
    return module.MODELS


MODELS = example_models()


def module_of(forward, k=8, n=6, **attributes):
    """A module with `self.linear` and what else is given, whose forward is the function."""

    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(k, n)
            for name, value in attributes.items():
                if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                    self.register_buffer(name, value)
                else:
                    setattr(self, name, value)

    Made.forward = forward
    return Made()


def agree(module, x=None, **keywords):
    """The fused module, after checking that it gives what eager gives; K = 8 makes float32 sums nearly exact."""
    x = torch.linspace(-2, 2, 3 * 8).reshape(3, 8) if x is None else x
    fused = rt.fuse(module, **keywords)
    with torch.no_grad():
        expected, y = module(x), fused(x)
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    return fused
