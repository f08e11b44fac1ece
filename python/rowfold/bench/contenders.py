# SPDX-License-Identifier: MIT
"""Who computes a case. Each contender lives in a worker process of its own.

A contender's ``setup`` may take long and raises Unavailable, with the reason, where it cannot take part; ``run`` is
what is timed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
import os
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from .._lib import DType
from ..errors import first_line
from ..model import Model
from ..ops import Chain
from .cases import Case
from .data import Array
from .unfused import flat, given_of, missing, numpy_all, results, torch_all

TORCH_LABELS = {"torch": "PyTorch eager", "torch-compile": "torch.compile", "torch-chunked": "PyTorch, chunks of rows"}
CHUNK = 128  # rows of "torch-chunked"


class Unavailable(Exception):
    """The contender is not installed here or cannot compute this case."""


class Contender(Protocol):
    """One way to compute a case."""

    def setup(self, case: Case, threads: int, options: Mapping[str, Any]) -> None:
        """Draws the inputs and prepares all that is done once."""

    def run(self) -> Any:
        """Computes the case once."""

    def result(self) -> list[Array] | None:
        """The results that ``run`` computed last, (batch, columns) in float64 each; None for a product alone."""

    def describe(self) -> dict[str, Any]:
        """Versions and settings, for the report."""


class Rowfold:
    """rowfold's model; options: simplify, backend."""

    def setup(self, case: Case, threads: int, options: Mapping[str, Any]) -> None:
        """Loads the weights and lets go of them."""
        self.model = Model(
            case.chain,
            case.in_features,
            case.out_features,
            dtype=case.dtype,
            simplify=options["simplify"],
            backend=options.get("backend"),
            device="cpu",
            threads=threads,
        )
        self.x, weight, bias = case.inputs()
        self.model.load_weights(weight, bias, case.vectors())
        self.rows: dict[str, Any] = dict(case.rows())
        self.y = self.model(self.x, **self.rows)
        self.batch = case.batch

    def run(self) -> Any:
        """One forward."""
        return self.model(self.x, out=self.y, **self.rows)

    def result(self) -> list[Array] | None:
        """The output."""
        return [values.astype(np.float64) for values in flat(self.y)]

    def describe(self) -> dict[str, Any]:
        """The backend and the plan."""
        return {
            "backend": self.model.info.backend,
            "workspace_bytes": self.model.workspace_size(x=self.x),
            "prepared_bytes": self.model.info.prepared_bytes,
            "explain": self.model.explain(self.batch, "json"),
        }


class Numpy:
    """numpy, operator by operator."""

    def setup(self, case: Case, threads: int, options: Mapping[str, Any]) -> None:
        """Draws the inputs. The number of threads comes through the environment that the worker was started with."""
        if case.native_dtype in (DType.FLOAT16, DType.BFLOAT16):
            raise Unavailable(f"numpy has no fast {case.dtype} product")
        self.chain = Chain.parse(case.chain)
        if name := missing(self.chain, numpy_all()):
            raise Unavailable(f"numpy has no {name}")
        self.x, self.weight, self.bias = case.inputs()
        self.given = given_of(case.vectors(), case.rows())
        self.y: list[Array] | None = None

    def run(self) -> Any:
        """Product, bias, then each operator over the whole matrix."""
        with np.errstate(all="ignore"):
            logits = self.x @ self.weight.T + self.bias
            self.y = results(self.chain, logits, numpy_all(), self.given)

    def result(self) -> list[Array] | None:
        """The output."""
        return self.y and [values.astype(np.float64) for values in self.y]

    def describe(self) -> dict[str, Any]:
        """The version."""
        return {"version": np.__version__}


class OpenBLAS:
    """OpenBLAS' matrix product alone, without bias or operators; the worker's environment sets the core type."""

    ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE = 101, 111, 112

    def setup(self, case: Case, threads: int, options: Mapping[str, Any]) -> None:
        """Loads the library."""
        path = options.get("library") or ctypes.util.find_library("openblas")
        if not path:
            raise Unavailable("no OpenBLAS library was found")
        kind = {DType.FLOAT32: "s", DType.FLOAT64: "d"}.get(case.native_dtype)
        if kind is None:
            raise Unavailable(f"OpenBLAS has no {case.dtype} product")
        self.library = ctypes.CDLL(path)
        self.library.openblas_get_config.restype = ctypes.c_char_p
        self.library.openblas_get_corename.restype = ctypes.c_char_p
        self.x, self.weight, _ = case.inputs()
        self.y = np.zeros((case.batch, case.out_features), self.x.dtype)
        scalar = ctypes.c_float if kind == "s" else ctypes.c_double
        integer, pointer = ctypes.c_int, ctypes.c_void_p
        m, n, k, ldx = case.batch, case.out_features, case.in_features, case.row_stride or case.in_features
        x, w, y = (array.ctypes.data for array in (self.x, self.weight, self.y))
        if m == 1:  # faster than its own product of one row
            self.function = getattr(self.library, f"cblas_{kind}gemv")
            self.function.argtypes = [
                *[integer] * 4, scalar, pointer, integer, pointer, integer, scalar, pointer, integer,
            ]  # fmt: skip
            self.arguments: tuple[Any, ...] = (self.ROW_MAJOR, self.NO_TRANSPOSE, n, k, 1.0, w, k, x, 1, 0.0, y, 1)
        else:
            self.function = getattr(self.library, f"cblas_{kind}gemm")
            self.function.argtypes = [
                *[integer] * 6, scalar, pointer, integer, pointer, integer, scalar, pointer, integer,
            ]  # fmt: skip
            self.arguments = (self.ROW_MAJOR, self.NO_TRANSPOSE, self.TRANSPOSE, m, n, k, 1.0, x, ldx, w, k, 0.0, y, n)

    def run(self) -> Any:
        """One product."""
        self.function(*self.arguments)

    def result(self) -> list[Array] | None:
        """None: there is no chain in it."""
        return None

    def describe(self) -> dict[str, Any]:
        """Version and the core type that it runs with."""
        return {
            "version": self.library.openblas_get_config().decode(),
            "core": self.library.openblas_get_corename().decode(),
            "coretype": os.environ.get("OPENBLAS_CORETYPE", ""),
        }


class Torch:
    """PyTorch; options: compile, and chunk: rows at a time, as those do who have no room for all logits.

    No tensor requires gradients, so that nothing is recorded: the grad mode, which is the process's, is left alone.
    """

    def setup(self, case: Case, threads: int, options: Mapping[str, Any]) -> None:
        """Draws the inputs; compiles when asked to."""
        try:
            self.torch: Any = importlib.import_module("torch")
        except ImportError:
            raise Unavailable("PyTorch is not installed") from None
        torch = self.torch
        torch.set_num_threads(threads)
        self.x, weight, bias = (self._tensor(values) for values in case.inputs())
        vectors = {name: self._tensor(values).to(self.x.dtype) for name, values in case.vectors().items()}
        rows = {name: self._tensor(values) for name, values in case.rows().items()}
        numbers = {name: v.to(self.x.dtype) if v.is_floating_point() else v for name, v in rows.items()}
        chain, table = Chain.parse(case.chain), torch_all()
        given, chunk = given_of(vectors, numbers), int(options.get("chunk") or 0)

        def whole(x: Any) -> Any:
            return results(chain, torch.nn.functional.linear(x, weight, bias), table, given)

        def chunked(x: Any) -> Any:
            found = []
            for first in range(0, len(x), chunk):
                part = slice(first, first + chunk)
                some = {name: v[part] if name.startswith("#") else v for name, v in given.items()}
                found.append(results(chain, torch.nn.functional.linear(x[part], weight, bias), table, some))
            return [torch.cat(pieces) for pieces in zip(*found)]

        forward = chunked if chunk else whole
        self.forward = torch.compile(forward, dynamic=False) if options.get("compile") else forward
        self.y: Any = None
        if options.get("compile"):
            try:
                self.run()
            except Exception as error:
                raise Unavailable(f"torch.compile failed: {first_line(error)[:200]}") from None

    def _tensor(self, values: Array) -> Any:
        if values.dtype == np.uint16:
            return self.torch.from_numpy(values.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(values)

    def run(self) -> Any:
        """One forward."""
        self.y = self.forward(self.x)

    def result(self) -> list[Array] | None:
        """The output."""
        return self.y and [values.double().numpy() for values in self.y]

    def describe(self) -> dict[str, Any]:
        """PyTorch's version and threads."""
        return {"version": self.torch.__version__, "threads": self.torch.get_num_threads()}


CONTENDERS: dict[str, type[Contender]] = {"rowfold": Rowfold, "numpy": Numpy, "openblas": OpenBLAS, "torch": Torch}
