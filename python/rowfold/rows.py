# SPDX-License-Identifier: MIT
"""Row inputs of a call: one value for each row of x, by the name that the chain has behind #."""

from __future__ import annotations

import ctypes
import math
from numbers import Real
from typing import Any

import numpy as np

from . import _lib, arrays
from ._lib import INDICES, DType, RowUse
from .arrays import Matrix
from .errors import ArgumentTypeError, InvalidArgumentError
from .kinds import kind_of


def row_values(value: Any, name: str, use: RowUse, lead: tuple[int, ...], compute: DType) -> Matrix:
    """The values of one row input, one behind the other.

    ``value`` has the leading dimensions of x, or those and one of size 1. A single number counts for all rows.
    ``compute`` is the dtype of a number that brings none.
    """
    argument = f"the row input {name!r}"
    if isinstance(value, Real) and not isinstance(value, np.generic):
        if use is RowUse.COLUMN:
            raise ArgumentTypeError(f"{argument} is {value!r}; expected an array of a column for each row")
        value = np.full(lead, value, arrays.numpy_dtype(compute))
    if not hasattr(value, "shape") or not hasattr(value, "dtype") or not hasattr(value, "reshape"):
        value = np.asarray(value) if hasattr(value, "__array__") else value
        kind_of(value, argument)  # refuses what is no array
    shape = tuple(value.shape)
    if shape not in (lead, (*lead, 1)):
        raise InvalidArgumentError(
            f"{argument} has shape {arrays.shape_text(shape)}; expected {arrays.shape_text(lead)}, a value for each row"
        )
    said = compute
    if use is RowUse.COLUMN:
        said = DType.__members__.get(str(value.dtype).rpartition(".")[2].upper(), DType.DEFAULT)
        if said not in INDICES:
            raise ArgumentTypeError(f"{argument} has dtype {value.dtype}; expected int64 or int32")
    batch = math.prod(lead)
    return kind_of(value, argument).matrix(value.reshape(batch), argument, batch, said)


def native(name: str, matrix: Matrix, batch: int) -> _lib.RowInput:
    """As the library takes it."""
    return _lib.RowInput(
        size=ctypes.sizeof(_lib.RowInput),
        name=name.encode(),
        data=matrix.pointer,
        length=batch,
        dtype=matrix.dtype,
        memory=matrix.memory,
    )


def check_names(given: dict[str, Any], expected: dict[str, RowUse]) -> None:
    """Raises InvalidArgumentError unless exactly the row inputs of the chain were given."""
    for name in given:
        if name not in expected:
            known = "it has " + ", ".join(f"#{row}" for row in expected) if expected else "it has no row inputs"
            raise InvalidArgumentError(f"the chain names no #{name}; {known}")
    for name, use in expected.items():
        if name not in given:
            what = "a column" if use is RowUse.COLUMN else "a number"
            raise InvalidArgumentError(f"the row input #{name} is missing; expected {name}=, {what} for each row")
