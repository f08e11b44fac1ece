# SPDX-License-Identifier: MIT
"""What a call says of the rows of x: row inputs, by the name that the chain has behind #, and which rows it wants."""

from __future__ import annotations

import ctypes
import math
from numbers import Real
from typing import Any

import numpy as np

from . import _lib, arrays
from ._lib import INDICES, DType, Memory, RowUse
from .arrays import ConvertedKind, Matrix
from .errors import ArgumentTypeError, InvalidArgumentError
from .kinds import kind_of

_ASKED = ("shape", "dtype", "reshape")
_PER_ROW = {RowUse.NUMBER: "a number", RowUse.COLUMN: "a column", RowUse.COLUMNS: "k columns"}


def row_values(
    value: Any, name: str, use: RowUse, lead: tuple[int, ...], compute: DType, cast: bool
) -> tuple[Matrix, int]:
    """The values of one row input, one row behind the other, and how many each row has.

    ``value`` has the leading dimensions of x, or those and one of size 1; of columns, those and one of any size. A
    single number counts for all rows. ``compute`` is the dtype of a number that brings none, and of those that a model
    which casts converts; lists and integers of any size become columns of int64.
    """
    argument = f"the row input {name!r}"
    if isinstance(value, Real) and not isinstance(value, np.generic):
        if use is not RowUse.NUMBER:
            raise ArgumentTypeError(f"{argument} is {value!r}; expected an array of {_PER_ROW[use]} for each row")
        try:
            number = float(value)
        except OverflowError:
            raise InvalidArgumentError(f"{argument} is larger than any float64; expected a number") from None
        value = np.full(lead, number, arrays.numpy_dtype(compute))
    elif cast and use is RowUse.NUMBER:
        value = arrays.cast(value, compute, argument, compute is DType.FLOAT64)
    elif cast:
        value = _cast_columns(value, argument)
    value = _shaped(value, argument)
    shape = tuple(value.shape)
    batch = math.prod(lead)
    if use is RowUse.COLUMNS:
        if shape[:-1] != lead or not shape[-1:] > (0,):
            wanted = f"({', '.join(map(str, lead))}, k)" if lead else "(k,)"
            raise InvalidArgumentError(
                f"{argument} has shape {arrays.shape_text(shape)}; expected {wanted}, k columns for each row"
            )
    elif shape not in (lead, (*lead, 1)):
        raise InvalidArgumentError(
            f"{argument} has shape {arrays.shape_text(shape)}; expected {arrays.shape_text(lead)}, a value for each row"
        )
    said = compute
    if use is not RowUse.NUMBER:
        said = DType.__members__.get(str(value.dtype).rpartition(".")[2].upper(), DType.DEFAULT)
        if said not in INDICES:
            raise ArgumentTypeError(f"{argument} has dtype {value.dtype}; expected int64 or int32")
    if use is RowUse.COLUMNS:
        return kind_of(value, argument).matrix(value.reshape(batch, shape[-1]), argument, shape[-1], said), shape[-1]
    return kind_of(value, argument).matrix(value.reshape(batch), argument, batch, said), 1


def _cast_columns(value: Any, argument: str) -> Any:
    """Lists, and integers that are not int64 or int32 already, as int64. What is no integer stays, and is refused."""
    given = arrays.read_by_numpy(value, argument)
    if given is None or given.dtype in (np.int64, np.int32) or (given.size and given.dtype.kind not in "iu"):
        return value if given is None else given
    return _int64(given, argument, "a column")


def _int64(given: np.ndarray[Any, Any], argument: str, expected: str) -> np.ndarray[Any, Any]:
    """Integers as the library reads them, copied if they do not lie so."""
    if given.dtype == np.uint64 and given.size and given.max() > np.iinfo(np.int64).max:
        raise InvalidArgumentError(f"{argument} has {given.max()}; expected {expected}")
    return np.require(given, np.int64, ["C", "A"])


def _shaped(value: Any, argument: str) -> Any:
    """The values as an array that can be reshaped: what only numpy reads, as numpy has it."""
    if all(hasattr(value, name) for name in _ASKED):
        return value
    if isinstance(kind_of(value, argument), ConvertedKind):
        return np.asarray(value)
    raise ArgumentTypeError(f"{argument} is a {arrays.type_name(value)}; expected an array with {', '.join(_ASKED)}")


def wanted(value: Any, lead: tuple[int, ...]) -> Matrix:
    """The rows that a call wants, int64: numbers of rows of x as a matrix, or a boolean for each of its rows."""
    if getattr(value, "is_cuda", False):
        if str(value.dtype) == "torch.bool":
            _check_mask(tuple(value.shape), lead)
            value = value.reshape(-1).nonzero().reshape(-1)
        elif str(value.dtype) != "torch.int64":
            raise ArgumentTypeError(
                f"rows has dtype {value.dtype}; expected int64 on a device, or a boolean for each row"
            )
        if value.ndim != 1:
            raise InvalidArgumentError(f"rows has shape {arrays.shape_text(value.shape)}; expected one dimension")
        return (
            kind_of(value, "rows")
            .matrix(value.contiguous(), "rows", len(value), DType.INT64)
            ._replace(batch=len(value))
        )
    listed = _wanted_on_host(value, lead)
    # Of an empty list numpy's address is no NULL.
    return Matrix(listed.ctypes.data, (), len(listed), 0, DType.INT64, Memory.HOST, None, listed)


def _check_mask(shape: tuple[int, ...], lead: tuple[int, ...]) -> None:
    if shape != lead:
        raise InvalidArgumentError(
            f"rows has shape {arrays.shape_text(shape)}; expected {arrays.shape_text(lead)}, a boolean for each row, "
            "or a list of rows"
        )


def _wanted_on_host(value: Any, lead: tuple[int, ...]) -> np.ndarray[Any, Any]:
    arrays.check_unmasked(value, "rows")
    try:
        given = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # of a tensor on a device, of lists of different lengths
        raise ArgumentTypeError(f"rows is no array of the host: {error}") from None
    if given.dtype == np.bool_:
        _check_mask(given.shape, lead)
        return np.flatnonzero(given)
    if given.size and given.dtype.kind not in "iu":
        raise ArgumentTypeError(f"rows has dtype {given.dtype}; expected integers, or a boolean for each row")
    if given.ndim != 1:
        raise InvalidArgumentError(f"rows has shape {arrays.shape_text(given.shape)}; expected one dimension")
    return _int64(given, "rows", "a row of x")


def native(name: str, use: RowUse, matrix: Matrix, batch: int, width: int) -> _lib.RowInput:
    """As the library takes it: ``width`` values for each of ``batch`` rows."""
    return _lib.RowInput(
        size=ctypes.sizeof(_lib.RowInput),
        name=name.encode(),
        data=matrix.pointer,
        length=batch,
        ld=matrix.ld if use is RowUse.COLUMNS else 0,
        columns=width,
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
            raise InvalidArgumentError(
                f"the row input #{name} is missing; expected {name}=, {_PER_ROW[use]} for each row"
            )
