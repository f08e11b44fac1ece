# SPDX-License-Identifier: MIT
"""One model of the library: its handle, and what it says of itself. Arrays are the business of model.py."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from . import _lib, arrays
from ._lib import DType


@dataclass(frozen=True)
class ResultInfo:
    """One array of results: its name, its columns, and its dtype unless the caller's array has another.

    ``features`` is 0 where the columns are those of the row input ``row_input`` of the call. ``part`` is 1 of
    "topk_indices", which belong to the values of the "topk" before them.
    """

    name: str
    features: int
    dtype: str
    part: int = 0
    row_input: str | None = None


@dataclass(frozen=True)
class ModelInfo:
    """What a model is and where it runs. Sizes in values, ``prepared_bytes`` in bytes, ``device`` -1 on a CPU.

    ``output_features`` and ``y_dtype`` are those of the first result. ``row_inputs`` says of each name whether it is a
    "number", a "column" or "columns". ``first_column`` and ``total_columns`` say which columns of how many the model
    has: 0 and ``out_features`` but in a shard.
    """

    backend: str
    chain: str
    in_features: int
    out_features: int
    output_features: int
    dtype: str
    x_dtype: str
    y_dtype: str
    math: str
    simplify: str
    threads: int
    device: int
    loaded: bool
    prepared_bytes: int
    results: tuple[ResultInfo, ...]
    row_inputs: dict[str, str]
    first_column: int
    total_columns: int


@dataclass(frozen=True)
class Ways:
    """Which ways the rows of a call take on a GPU; on a CPU all but ``rows`` are 0. See doc/kernels/accuracy.md.

    ``two_level_rows`` have values so far apart that they take terms of two levels, ``irregular_rows`` are those that
    terms do not represent, ``lone_rows`` have a value that outweighs all others. Of the kernel's ``tiles`` of rows
    ``two_level_tiles`` have a row of two levels. ``x_terms`` and ``weight_terms`` are the 16-bit terms that a value of
    x and of W is kept in, 0 where it is multiplied as stored; 1 and 0 where both are rounded to TF32.
    """

    rows: int
    two_level_rows: int
    irregular_rows: int
    tiles: int
    two_level_tiles: int
    x_terms: int
    weight_terms: int
    lone_rows: int


class Handle:
    """Owns one rf_model. A call in flight holds a reference, so the model goes only when the last of them is done."""

    __slots__ = ("__weakref__", "_lent", "library", "pointer")

    def __init__(self, library: _lib.Library, config: _lib.Config) -> None:
        self.library = library
        self.pointer = _lib.ModelPointer()
        library.rf_model_create(ctypes.byref(self.pointer), ctypes.byref(config))
        finalizer = weakref.finalize(self, library.rf_model_destroy, _lib.ModelPointer(self.pointer.value))
        # The process is ending: its memory goes anyway, and a daemon thread may still be inside a call.
        finalizer.atexit = False
        self._lent: Any = None

    def lend(self, owner: Any) -> None:
        """Holds an array that the library reads in place, until the model is gone or reads another one.

        A finaliser keeps its arguments until it has run, also where a process ends while a call is under way.
        """
        before, self._lent = self._lent, None
        if owner is not None:
            self._lent = weakref.finalize(self, _release, owner)
            self._lent.atexit = False
        if before is not None:
            before.detach()

    def info(self) -> ModelInfo:
        """What the model is and where it runs."""
        native = _lib.ModelInfo(size=ctypes.sizeof(_lib.ModelInfo))
        self.library.rf_model_get_info(self.pointer, ctypes.byref(native))
        return ModelInfo(
            backend=native.backend.decode(),
            chain=native.chain.decode(),
            in_features=native.in_features,
            out_features=native.out_features,
            output_features=native.output_features,
            dtype=arrays.dtype_name(DType(native.weight_dtype)),
            x_dtype=arrays.dtype_name(DType(native.x_dtype)),
            y_dtype=arrays.dtype_name(DType(native.y_dtype)),
            math=_lib.Math(native.math).name.lower(),
            simplify=_lib.Simplify(native.simplify).name.lower(),
            threads=native.threads,
            device=native.device,
            loaded=bool(native.loaded),
            prepared_bytes=native.prepared_bytes,
            results=tuple(self._result(i) for i in range(native.num_results)),
            row_inputs=dict(self._row_input(i) for i in range(native.num_row_inputs)),
            first_column=native.first_column,
            total_columns=native.total_columns,
        )

    def _result(self, index: int) -> ResultInfo:
        native = _lib.ResultInfo(size=ctypes.sizeof(_lib.ResultInfo))
        self.library.rf_model_result_info(self.pointer, index, ctypes.byref(native))
        row_input = self._row_input(native.row_input - 1)[0] if native.row_input else None
        dtype = arrays.dtype_name(DType(native.dtype))
        return ResultInfo(native.name.decode(), native.width, dtype, native.part, row_input)

    def _row_input(self, index: int) -> tuple[str, str]:
        native = _lib.RowInputInfo(size=ctypes.sizeof(_lib.RowInputInfo))
        self.library.rf_model_row_input_info(self.pointer, index, ctypes.byref(native))
        return native.name.decode(), _lib.RowUse(native.use).name.lower()

    def workspace_size(self, batch: int) -> int:
        """Bytes of working memory of one call, whatever its types."""
        size = ctypes.c_size_t()
        self.library.rf_model_workspace_size(self.pointer, batch, ctypes.byref(size))
        return size.value

    def call_workspace(self, args: _lib.ForwardArgs) -> int:
        """Bytes of working memory of the call with these arguments."""
        size = ctypes.c_size_t()
        self.library.rf_model_workspace_size_ex(self.pointer, ctypes.byref(args), ctypes.byref(size))
        return size.value

    def count_ways(self, args: _lib.ForwardArgs) -> Ways:
        """Which ways the rows of the call with these arguments take."""
        native = _lib.Ways(size=ctypes.sizeof(_lib.Ways))
        self.library.rf_model_count_ways(self.pointer, ctypes.byref(args), ctypes.byref(native))
        return Ways(**{field.name: getattr(native, field.name) for field in fields(Ways)})

    def explain(self, batch: int, format: _lib.Format) -> str:
        """The plan for one batch size, as text or as the text of a JSON document."""
        return _lib.read_text(partial(self.library.rf_model_explain, self.pointer, batch, format))


def _release(_owner: Any) -> None:
    """What holds an array does, at last: nothing."""
