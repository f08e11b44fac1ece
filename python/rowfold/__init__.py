# SPDX-License-Identifier: MIT
"""Linear layer, elementwise operators and row reduction as one fused operation, on a CPU or an NVIDIA GPU.

>>> import numpy as np
>>> import rowfold
>>> W, b = np.ones((1000, 64), np.float32), np.zeros(1000, np.float32)  # (out_features, in_features), (out_features,)
>>> model = rowfold.Model("linear(64, 1000) | logsumexp | leaky_relu(0.01) | gelu").load_weights(W, b)
>>> y = model(np.ones((16, 64), np.float32))  # x (..., in_features); the (16, 1000) matrix is never stored
>>> y.shape
(16, 1)
>>> "logsumexp" in model.explain(batch=16)
True

Chains are text, or built from ``rowfold.ops``. Every exception is a ``rowfold.Error``, and the standard exception of
its kind. The native library is loaded on first use, from $ROWFOLD_LIBRARY if that is set.
"""

# This file alone is read by Pythons that are too old, so it uses nothing that they do not know.
import sys

if sys.version_info < (3, 9):  # noqa: UP036
    raise ImportError("rowfold needs Python 3.9 or newer; this is Python " + sys.version.split()[0])

from . import ops
from .backends import Backend, CpuPeak, backends, cpu_measure
from .errors import (
    AlreadyLoadedError,
    ArgumentTypeError,
    BufferTooSmallError,
    ChainError,
    ClosedError,
    CommunicationError,
    DeviceError,
    Error,
    FileError,
    FuseError,
    InternalError,
    InvalidArgumentError,
    InvalidFileError,
    LibraryError,
    NotLoadedError,
    OutOfMemoryError,
    UnavailableError,
    UnsupportedError,
)
from .handle import ModelInfo, Ways
from .model import Model
from .ops import Chain, presets
from .shards import States, StatesInfo, merge_states, shard_columns, state_groups

__all__ = [
    "AlreadyLoadedError",
    "ArgumentTypeError",
    "Backend",
    "BufferTooSmallError",
    "Chain",
    "ChainError",
    "ClosedError",
    "CommunicationError",
    "CpuPeak",
    "DeviceError",
    "Error",
    "FileError",
    "FuseError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidFileError",
    "LibraryError",
    "Model",
    "ModelInfo",
    "NotLoadedError",
    "OutOfMemoryError",
    "States",
    "StatesInfo",
    "UnavailableError",
    "UnsupportedError",
    "Ways",
    "backends",
    "cpu_measure",
    "merge_states",
    "ops",
    "presets",
    "shard_columns",
    "state_groups",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from ._lib import load

        version: bytes = load().rf_version()
        return version.decode()
    raise AttributeError(f"module 'rowfold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__name__", "__version__"]
