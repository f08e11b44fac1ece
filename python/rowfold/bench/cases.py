# SPDX-License-Identifier: MIT
"""What is measured: a chain, a shape, dtypes, and data drawn from a seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from .. import _lib, arrays, ops
from .data import DATA, Array

COLUMN_OPERATORS = ("pick", "logprob", "rank")
GATHERED = 20  # columns of a row that a gather asks for


@dataclass(frozen=True)
class Case:
    """One thing to measure. ``chain`` is chain text without sizes, or with the sizes of this case."""

    name: str
    chain: str
    batch: int
    in_features: int
    out_features: int
    dtype: str = "float32"
    data: str = "kernelbench"
    seed: int = 0
    row_stride: int = 0  # elements from one row of x to the next; 0: rows without gaps

    @property
    def flops(self) -> float:
        """Floating-point operations of the product, a multiply-add counted as two."""
        return 2.0 * self.batch * self.in_features * self.out_features

    @property
    def bytes(self) -> float:
        """Bytes of W, which any way to compute the logits must read."""
        return float(self.in_features) * self.out_features * arrays.numpy_dtype(self.native_dtype).itemsize

    @property
    def native_dtype(self) -> _lib.DType:
        """The dtype of x and W."""
        return arrays.parse_dtype(self.dtype, "dtype")

    @property
    def label(self) -> str:
        """Name, shape and dtype in one line."""
        gaps = f", rows of x {self.row_stride} apart" if self.row_stride else ""
        shape = f"{self.batch} x {self.in_features} -> {self.out_features}"
        return f"{self.name}, {shape}, {self.dtype}, {self.data} data{gaps}"

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)

    def inputs(self) -> tuple[Array, Array, Array]:
        """Draws x (batch, in_features), W (out_features, in_features), b (out_features,) of the case's dtype.

        bfloat16 as uint16 bit patterns, which needs no package beside numpy. Gaps between the rows of x hold NaN.
        """
        rng = np.random.default_rng(self.seed)
        drawn = DATA[self.data](rng, self.batch, self.in_features, self.out_features)
        x, weight, bias = (stored(values, self.native_dtype) for values in drawn)
        return self._with_gaps(x), weight, bias

    def _with_gaps(self, x: Array) -> Array:
        if not self.row_stride:
            return x
        nan = stored(np.full(1, np.nan, np.float32), self.native_dtype)
        apart = np.full((self.batch, self.row_stride), nan)
        apart[:, : self.in_features] = x
        return apart[:, : self.in_features]

    def vectors(self) -> dict[str, Array]:
        """The per-feature vectors that the chain names, in [0.5, 1.5): float64 for a float64 case, else float32."""
        rng = np.random.default_rng(self.seed + 1)
        chain = ops.Chain.parse(self.chain)
        names = sorted({op.vector for op in chain if op.vector and not op.vector.startswith("#")})
        drawn = {name: rng.random(self.out_features, np.float32) + np.float32(0.5) for name in names}
        return {name: values.astype(self._number_dtype) for name, values in drawn.items()}

    def rows(self) -> dict[str, Array]:
        """The row inputs that the chain names, without their #: numbers in [0.5, 1.5) as of ``vectors``, or columns.

        Several columns are GATHERED of each row.
        """
        rng = np.random.default_rng(self.seed + 2)
        drawn: dict[str, Array] = {}
        for op in ops.Chain.parse(self.chain):
            if not op.vector or not op.vector.startswith("#") or op.vector[1:] in drawn:
                continue
            if op.operator.name == "gather":
                drawn[op.vector[1:]] = rng.integers(self.out_features, size=(self.batch, GATHERED))
            elif op.operator.name in COLUMN_OPERATORS:
                drawn[op.vector[1:]] = rng.integers(self.out_features, size=self.batch)
            else:
                drawn[op.vector[1:]] = (rng.random(self.batch, np.float32) + np.float32(0.5)).astype(self._number_dtype)
        return drawn

    @property
    def _number_dtype(self) -> type[Any]:
        return np.float64 if self.native_dtype is _lib.DType.FLOAT64 else np.float32


def stored(values: Array, dtype: _lib.DType) -> Array:
    """float32 values rounded to a dtype, those too large to infinity; bfloat16 to nearest even, as bit patterns."""
    if dtype is not _lib.DType.BFLOAT16:
        with np.errstate(over="ignore"):
            return values.astype(arrays.numpy_dtype(dtype), copy=False)
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def default_cases() -> list[Case]:
    """The presets at their reference size, and small batches that stream W."""
    presets = [Case(name, chain, 1024, 8192, 8192) for name, chain in ops.presets().items()]
    stream = Case("logsumexp", "linear | logsumexp", 1, 8192, 8192)
    small = [replace(stream, batch=batch, dtype=dtype) for dtype in ("float32", "bfloat16") for batch in (1, 2, 4, 8)]
    return presets + small
