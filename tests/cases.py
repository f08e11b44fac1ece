# SPDX-License-Identifier: MIT
"""One question to the library: a chain, its stored inputs, and how to run it and judge the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import oracle
import rowfold
from datasets import Data
from stored import store, widen

Array = np.ndarray
_EXPECTED: dict[bytes, list[oracle.Result | oracle.TopColumns]] = {}  # the oldest first
_MOST_BYTES = 2**26


def _bytes(results: Any) -> int:
    return sum(map(_bytes, results)) if isinstance(results, (list, tuple)) else getattr(results, "nbytes", 0)


@dataclass(frozen=True, repr=False)
class Case:
    """x, w, b and vectors hold stored values: what the library sees, and through `widen` what the oracle sees."""

    chain: str
    x: Array
    w: Array
    b: Array | None = None
    vectors: Mapping[str, Array] = field(default_factory=dict)
    dtype: str = "float32"
    x_dtype: str = "float32"
    y_dtype: str = "float32"
    rows: Mapping[str, Array] = field(default_factory=dict)  # row inputs, of the compute type
    told: bool = True  # whether the model knows the type of x, and may lay out W for it

    @property
    def expected_x(self) -> str | None:
        """What a model is told of the type of x."""
        return self.x_dtype if self.told else None

    @property
    def compute(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"

    def model(self, backend: str, **keywords: Any) -> rowfold.Model:
        n, k = self.w.shape
        chain = self.chain if k and n else self.chain.replace("linear", f"linear({k}, {n})", 1)
        model = rowfold.Model(
            chain,
            k or None,
            n or None,
            dtype=self.dtype,
            x_dtype=self.expected_x,
            y_dtype=self.y_dtype,
            backend=backend,
            **keywords,
        )
        return model.load_weights(self.w, self.b, self.vectors)

    def run(self, backend: str, **keywords: Any) -> Array:
        """The one result, or a named tuple of several."""
        with self.model(backend, **keywords) as model:
            return model(self.x, **self.rows)

    def expected(self, backend: str = "", math: str = "f32") -> oracle.Result:
        """What the backend may answer. A CUDA backend may compute float32 products from 16-bit halves, to 22 bits."""
        (result,) = self.expected_results(backend, math)
        assert isinstance(result, oracle.Result)
        return result

    def expected_results(self, backend: str = "", math: str = "f32") -> list[oracle.Result | oracle.TopColumns]:
        """The same of each result, worked out once for all kernels that a test runs one after the other."""
        halves = backend.startswith("cuda") and "float32" in (self.dtype, self.x_dtype)
        products = "split" if halves and math == "f32" else math
        key = self._digest(products)
        if key not in _EXPECTED:
            _EXPECTED[key] = self._evaluate(products)
            while len(_EXPECTED) > 1 and sum(map(_bytes, _EXPECTED.values())) > _MOST_BYTES:
                del _EXPECTED[next(iter(_EXPECTED))]
        return _EXPECTED[key]

    def _digest(self, products: str) -> bytes:
        """Of all that `_evaluate` reads."""
        named = {"x": self.x, "w": self.w, "b": self.b, **{f"@{k}": v for k, v in self.vectors.items()}}
        named |= {f"#{k}": v for k, v in self.rows.items()}
        what = hashlib.blake2b(repr([self.chain, self.dtype, self.x_dtype, products]).encode())
        for name, array in named.items():
            if array is not None:
                what.update(repr([name, str(array.dtype), array.shape]).encode())
                what.update(array.tobytes())
        return what.digest()

    def _evaluate(self, products: str) -> list[oracle.Result | oracle.TopColumns]:
        wide = {name: widen(v, self.dtype) for name, v in self.vectors.items()}
        for name, v in self.rows.items():
            wide[f"#{name}"] = v.astype(np.float64) if v.ndim == 2 else v.astype(np.float64)[:, None]
        b = None if self.b is None else widen(self.b, self.dtype)
        x, w = widen(self.x, self.x_dtype), widen(self.w, self.dtype)
        return oracle.evaluate_results(self.chain, x, w, b, wide, dtype=self.compute, products=products)

    def check_results(
        self,
        results: Any,
        backend: str,
        context: str = "",
        expected: list[oracle.Result | oracle.TopColumns] | None = None,
    ) -> None:
        given = flat(results)
        expected = expected or self.expected_results(backend)
        assert len(given) == len(expected)
        for i, (y, wanted) in enumerate(zip(given, expected)):
            oracle.assert_matches(y, wanted, self.y_dtype, f"result {i} of {self} on {backend} {context}")

    def check(self, y: Array, context: str = "", expected: oracle.Result | None = None) -> None:
        oracle.assert_matches(y, expected or self.expected(), self.y_dtype, f"{self} {context}")

    def __str__(self) -> str:
        shape = (*self.x.shape, self.w.shape[0])
        x = self.x_dtype + ("" if self.told else " untold")
        return f"{self.chain!r} (batch, K, N) {shape} W {self.dtype} x {x} y {self.y_dtype}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How hypothesis shows it: the arrays follow from the drawn seed, and would bury the rest."""
        printer.text(f"Case({self})")


def make_case(
    chain: str,
    data: Data,
    vectors: Mapping[str, Array] | None = None,
    dtype: str = "float32",
    x_dtype: str | None = None,
    y_dtype: str | None = None,
) -> Case:
    """A case from float64 data, which is stored, that is rounded, here."""
    x_dtype = x_dtype or dtype
    y_dtype = y_dtype or ("float64" if dtype == "float64" else "float32")
    named = {name: store(v, dtype) for name, v in (vectors or {}).items()}
    x, w, b = store(data.x, x_dtype), store(data.w, dtype), store(data.b, dtype)
    return Case(chain, x, w, b, named, dtype, x_dtype, y_dtype)


def flat(results: Any) -> list[Array]:
    """The arrays of one result or of several, those of topk one behind the other."""
    return [array for one in results for array in flat(one)] if isinstance(results, tuple) else [results]


def same_bits(a: Array, b: Array) -> bool:
    """Equal bit for bit; one NaN is as good as another."""
    if a.shape != b.shape:
        return False
    bits = f"u{a.dtype.itemsize}"
    floating = a.dtype.kind == "f" or a.dtype.name == "bfloat16"  # whose kind numpy does not know
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)) if floating else np.zeros(a.shape, bool)
    return bool(((a.view(bits) == b.view(bits)) | nan).all())
