# SPDX-License-Identifier: MIT
"""What the tests of values that 16-bit terms do not represent share: layers, and questions to the library."""

from __future__ import annotations

import os

import numpy as np
import rowfold
from cases import make_case
from cuda_kernels import FORCE, KERNELS
from datasets import Data, kernelbench

Array = np.ndarray
# Where float32 x is brought to terms; those of several results have the same code for it, some of one product alone.
_WITHOUT_TERMS = ("hopper_128x192", "mma_256x128")
TERMS = [
    name
    for name in KERNELS
    if name.startswith(("mma", "hopper"))
    and not name.startswith(("hopper_answers", "hopper_searches", "hopper_whole", "mma_f64"))
    and not name.endswith(("_320x128", "_thirds_256x128", "_136x128"))
    and name not in _WITHOUT_TERMS
]
K, N = 1056, 200


def tame(batch: int, n: int = N, seed: int = 0) -> tuple[Array, Array, Array]:
    """W without zeros, which x of any range may meet."""
    x, w, b = kernelbench(np.random.default_rng(seed), batch, K, n)
    x, w = x - 0.5, np.where(np.abs(w) < 1e-6, 1e-6, w)
    return tuple(np.ascontiguousarray(v, np.float32) for v in (x, w, b))


def ways_of(x: Array, w: Array, math: str = "f32") -> rowfold.Ways:
    with rowfold.Model("linear | logsumexp", backend="cuda", math=math).load_weights(w) as model:
        return model.count_ways(x)


def check_chain(x: Array, w: Array, b: Array, chain: str = "linear | max", **keywords: str) -> None:
    case = make_case(chain, Data(x, w, b), **keywords)
    case.check_results(case.run("cuda", simplify="none"), "cuda")


def on_wgmma() -> bool:
    """Whether the forced kernel is one of sm_90a, on such a device."""
    with rowfold.Model(f"linear({K}, {N}) | max", backend="cuda") as model:
        return os.environ[FORCE].startswith("hopper") and model.explain(1, "json")["kernel"].startswith("hopper")


def rows_of(kernel: str) -> int:
    """As many as are several tiles, if the kernel takes so many."""
    return 60 if kernel == "hopper_small" else 140
