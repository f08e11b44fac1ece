# SPDX-License-Identifier: MIT
"""What goes into a model: its weights and the inputs of a call, checked, and as the library takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import _lib, arrays, rows
from ._lib import DType, Memory
from .errors import ArgumentTypeError, InvalidArgumentError
from .handle import ModelInfo
from .kinds import kind_of
from .ops import encode


class Inputs:
    """The arrays that one model takes: x of one dtype if ``x_fixed``, host arrays of any if it is to ``cast``."""

    def __init__(self, info: ModelInfo, x_fixed: bool, cast: bool) -> None:
        self.in_features, self.out_features = info.in_features, info.out_features
        self.weight_dtype, self.x_dtype = DType[info.dtype.upper()], DType[info.x_dtype.upper()]
        self.rows = {name: _lib.RowUse[use.upper()] for name, use in info.row_inputs.items()}
        self.device, self.backend = info.device, info.backend
        self.x_fixed, self.cast = x_fixed, cast

    def own(self, weight: Any, bias: Any, vectors: Mapping[str, Any], keep: bool) -> tuple[Any, Any, dict[str, Any]]:
        """The arrays converted, if the model casts, and copied, if it is to keep them: no one else writes to those."""
        if self.cast:
            dtype, only = self.weight_dtype, self.weight_dtype is DType.FLOAT64
            weight = arrays.cast(weight, dtype, "weight")
            bias = None if bias is None else arrays.cast(bias, dtype, "bias", only)
            vectors = {name: arrays.cast(value, dtype, f"vector {name!r}", only) for name, value in vectors.items()}
        if keep:
            weight, bias = _copied(weight, "weight"), None if bias is None else _copied(bias, "bias")
            vectors = {name: _copied(value, f"vector {name!r}") for name, value in vectors.items()}
        return weight, bias, dict(vectors)

    @contextmanager
    def native_weights(
        self, weight: Any, bias: Any, vectors: Mapping[str, Any], flags: int
    ) -> Iterator[tuple[_lib.Weights, Any]]:
        """The weights as the library takes them, checked, and what owns W's memory."""
        features, dtype = self.out_features, self.weight_dtype
        matrix = kind_of(weight, "weight").weight(weight, "weight", (features, self.in_features), dtype)
        self.check_dtype("weight", matrix.dtype, dtype)
        self.check_device("weight", matrix)
        row = None if bias is None else self._feature_vector(bias, "bias", matrix)
        named = {name: self._feature_vector(value, f"vector {name!r}", matrix) for name, value in vectors.items()}
        native = (_lib.Vector * len(named))(
            *(
                _lib.Vector(ctypes.sizeof(_lib.Vector), encode(name, "vectors"), m.pointer, features, m.dtype, m.memory)
                for name, m in named.items()
            )
        )
        weights = _lib.Weights(
            size=ctypes.sizeof(_lib.Weights),
            weight=matrix.pointer,
            ld=matrix.ld,
            memory=matrix.memory,
            flags=flags,
            vectors=native,
            num_vectors=len(named),
            stream=matrix.stream,
        )
        if row is not None:
            weights.bias, weights.bias_dtype = row.pointer, row.dtype
        yield weights, matrix.owner

    def _feature_vector(self, values: Any, argument: str, weight: arrays.Matrix) -> arrays.Matrix:
        shape = (self.out_features,)
        vector = kind_of(values, argument).weight(values, argument, shape, self.weight_dtype)
        self.check_dtype(argument, vector.dtype)
        self.check_device(argument, vector)
        if vector.memory is not weight.memory:
            raise InvalidArgumentError(f"{argument} and weight must both be on the host, or both on the model's device")
        return vector

    def matrix(self, x: Any) -> tuple[arrays.ArrayKind, arrays.Matrix]:
        """The inputs as the library takes them, converted if the model casts, and the family of their results."""
        values = x
        if self.cast:
            values = arrays.cast(x, self.x_dtype, "x", self.x_fixed or self.weight_dtype is DType.FLOAT64)
        kind = kind_of(values, "x")
        given = kind.matrix(values, "x", self.in_features, self.x_dtype)
        if values is not x and isinstance(x, np.ndarray):
            given = given._replace(source=x)
        hint = arrays.cast_hint("x") if isinstance(values, np.ndarray) else ""
        self.check_dtype("x", given.dtype, self.x_dtype if self.x_fixed else None, "x_dtype", hint)
        self.check_device("x", given)
        return kind, given

    @staticmethod
    def args(given: arrays.Matrix) -> _lib.ForwardArgs:
        """The arguments of a call but for what it gives."""
        return _lib.ForwardArgs(
            size=ctypes.sizeof(_lib.ForwardArgs),
            x=given.pointer,
            batch=given.batch,
            ldx=given.ld,
            x_dtype=given.dtype,
            x_memory=given.memory,
            stream=given.stream,
        )

    def give_row_values(self, args: _lib.ForwardArgs, values: dict[str, tuple[arrays.Matrix, int]], batch: int) -> None:
        """Puts ``row_values`` of so many rows into the arguments of a call."""
        args.row_inputs = (_lib.RowInput * len(values))(
            *(rows.native(name, self.rows[name], matrix, batch, width) for name, (matrix, width) in values.items())
        )
        args.num_row_inputs = len(values)

    def row_values(self, given: arrays.Matrix, row_inputs: dict[str, Any]) -> dict[str, tuple[arrays.Matrix, int]]:
        """The row inputs by name, and how many values each row has."""
        if not self.rows and not row_inputs:
            return {}
        rows.check_names(row_inputs, self.rows)
        compute = DType.FLOAT64 if self.weight_dtype is DType.FLOAT64 else DType.FLOAT32
        values = {}
        for name, use in self.rows.items():
            matrix, width = rows.row_values(row_inputs[name], name, use, given.lead, compute, self.cast)
            values[name] = matrix, width
            if use is _lib.RowUse.NUMBER:
                argument = f"the row input {name!r}"
                hint = arrays.cast_hint(argument) if isinstance(row_inputs[name], np.ndarray) else ""
                self.check_dtype(argument, matrix.dtype, hint=hint)
            self.check_device(f"the row input {name!r}", matrix)
        return values

    def check_device(self, argument: str, given: arrays.Matrix) -> None:
        """Host arrays go anywhere; device ones only to the model's own device."""
        if given.memory is Memory.HOST or (self.device >= 0 and given.device in (-1, self.device)):
            return
        where = f"CUDA device {given.device}" if given.device >= 0 else "a CUDA device"
        if self.device < 0:
            runs, expected = self.backend, "the host"
        else:
            runs, expected = f"CUDA device {self.device}", "that device or the host"
            if given.device >= 0:
                expected += f', or a model with device="cuda:{given.device}"'
        raise InvalidArgumentError(f"{argument} is on {where}, but the model runs on {runs}; expected {expected}")

    def check_dtype(
        self, argument: str, dtype: DType, only: DType | None = None, named: str = "dtype", hint: str = ""
    ) -> None:
        """``only`` is the one dtype accepted, of the keyword ``named``; None for any that goes with the weights.

        ``hint`` is what the message ends with.
        """
        if only is None and self.weight_dtype is DType.FLOAT64:
            only = DType.FLOAT64
        if only is not None:
            fits, expected = dtype is only, f"{arrays.dtype_name(only)}, the model's {named}"
        else:
            weights = arrays.dtype_name(self.weight_dtype)
            fits, expected = dtype is not DType.FLOAT64, f"float32, float16 or bfloat16 for a {weights} model"
        if not fits:
            raise ArgumentTypeError(f"{argument} has dtype {arrays.dtype_name(dtype)}; expected {expected}{hint}")


def _copied(array: Any, argument: str) -> Any:
    return kind_of(array, argument).copied(array, argument)
