# SPDX-License-Identifier: MIT
"""One layer on many processes: partial states of some of its columns, and what becomes of those of all."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _lib, arguments, arrays
from ._lib import DType, Memory, load
from .errors import ArgumentTypeError, InvalidArgumentError
from .handle import Handle
from .kinds import kind_of

if TYPE_CHECKING:
    from .model import Model


@dataclass(frozen=True)
class StatesInfo:
    """What states a model writes: ``num_groups`` times ``num_words`` numbers of ``dtype`` for each row.

    ``chain`` is a number that is the same for two models if their states may be merged.
    """

    dtype: str
    num_words: int
    num_groups: int
    first_column: int
    num_columns: int
    total_columns: int
    chain: int


@dataclass(frozen=True)
class States:
    """Partial states of the columns ``first_column`` to ``first_column + num_columns - 1``, as ``Model.states`` gives.

    ``data`` is (..., num_groups, num_words), of x's kind. Both it and the numbers are all that has to travel to the
    process that merges; an instance can be pickled.
    """

    data: Any
    first_column: int
    num_columns: int
    total_columns: int
    chain: int


def states_info(handle: Handle) -> StatesInfo:
    """What states the model writes."""
    native = _lib.StatesInfo(size=ctypes.sizeof(_lib.StatesInfo))
    handle.library.rf_model_states_info(handle.pointer, ctypes.byref(native))
    return StatesInfo(
        arrays.dtype_name(DType(native.dtype)),
        native.num_words,
        native.num_groups,
        native.first_column,
        native.num_columns,
        native.total_columns,
        native.chain,
    )


def native_part(part: States, matrix: arrays.Matrix, size: int) -> _lib.States:
    """One shard's states as the library takes them; ``size`` in bytes."""
    return _lib.States(
        size=ctypes.sizeof(_lib.States),
        data=matrix.pointer,
        bytes=size,
        first_column=part.first_column,
        num_columns=part.num_columns,
        chain=part.chain,
        memory=matrix.memory,
    )


_UNIT = 256  # columns: RFI_GROUP_UNIT of lib/groups.h


def groups_of(first_column: int, num_columns: int, borders: Sequence[int]) -> int:
    """How many groups the states of a shard are of, where the groups of all columns have these borders.

    It is cut into units from its own first column on, and a unit is of the group that it begins in.
    """
    if not num_columns:
        return 0
    last = first_column + (num_columns - 1) // _UNIT * _UNIT
    return bisect_right(borders, last) - bisect_right(borders, first_column) + 1


def part_matrix(
    part: Any, argument: str, num_words: int, borders: Sequence[int]
) -> tuple[arrays.Matrix, tuple[int, ...]]:
    """A shard's states as dense memory, and the leading dimensions of the x that they are of.

    ``borders`` are those of the groups of all columns.
    """
    if not isinstance(part, States):
        raise ArgumentTypeError(f"{argument} is a {arrays.type_name(part)}; expected what Model.states gives")
    kind = kind_of(part.data, f"{argument}.data")
    shape = tuple(part.data.shape)
    if len(shape) < 2 or shape[-1] != num_words:
        raise InvalidArgumentError(
            f"{argument}.data has shape {arrays.shape_text(shape)}; expected (..., groups, {num_words})"
        )
    first, count = (
        arguments.integer(getattr(part, name), f"{argument}.{name}", 64) for name in ("first_column", "num_columns")
    )
    arguments.integer(part.chain, f"{argument}.chain", 65)  # without a sign
    # The library takes memory that is larger, and refuses columns that there are not.
    groups = groups_of(first, count, borders)
    if shape[-2] != groups and first + count <= borders[-1]:
        raise InvalidArgumentError(
            f"{argument}.data has shape {arrays.shape_text(shape)}; expected (..., {groups}, {num_words}), the groups "
            f"of {count} columns from column {first} on"
        )
    matrix = kind.matrix(part.data, f"{argument}.data", num_words, DType.FLOAT64)
    if matrix.dtype is not DType.FLOAT64:
        raise ArgumentTypeError(f"{argument}.data has dtype {arrays.dtype_name(matrix.dtype)}; expected float64")
    if matrix.ld not in (0, num_words):
        if hasattr(part.data, "contiguous"):
            dense = part.data.contiguous()
        elif matrix.memory is Memory.HOST:
            dense = np.ascontiguousarray(part.data)
        else:
            raise InvalidArgumentError(f"{argument}.data has rows apart from each other; expected dense ones")
        matrix = kind.matrix(dense, f"{argument}.data", num_words, DType.FLOAT64)
    return matrix, shape[:-2]


def merge_states(model: Model, parts: Sequence[States], *, keepdims: bool = True, **row_inputs: Any) -> Any:
    """Results from the states of all columns of a layer.

    >>> import numpy as np
    >>> W, x = np.ones((1000, 8), np.float32), np.ones((2, 8), np.float32)
    >>> parts = []
    >>> for rank in range(2):  # each in a process of its own, say
    ...     first, count = rowfold.shard_columns(1000, rank, 2)
    ...     shard = rowfold.Model("linear | logsumexp", 8, count, first_column=first, total_columns=1000)
    ...     parts.append(shard.load_weights(W[first : first + count]).states(x))
    >>> y = rowfold.merge_states(shard, parts)
    >>> y.shape
    (2, 1)

    Parameters
    ----------
    model
        The model of any shard, or of all columns; its weights are not looked at.
    parts
        What ``Model.states`` gave for each shard, in the order of their columns, all columns once.
    keepdims, row_inputs
        As in a call of the model.

    Returns
    -------
    What a model of all columns returns for the same x, of the kind of ``parts[0].data``. The bits, too, if the shards
    are whole groups of columns (``shard_columns``) and the backend is the same.

    """
    return model._merge(list(parts), keepdims, row_inputs)


def shard_columns(total_columns: int, shard: int, num_shards: int) -> tuple[int, int]:
    """The first column and the number of columns of shard ``shard`` of ``num_shards``: whole groups, nearly even.

    Results that are merged from such shards have the bits of a model with all columns, whatever their number.
    """
    first, count = ctypes.c_int64(), ctypes.c_int64()
    load().rf_shard_columns(
        arguments.integer(total_columns, "total_columns", 64),
        arguments.integer(shard, "shard", 64),
        arguments.integer(num_shards, "num_shards", 64),
        ctypes.byref(first),
        ctypes.byref(count),
    )
    return first.value, count.value


def state_groups(total_columns: int) -> list[int]:
    """The borders of the groups of columns that states are of: group i is ``borders[i]`` to ``borders[i + 1] - 1``."""
    total, groups = arguments.integer(total_columns, "total_columns", 64), ctypes.c_size_t()
    load().rf_states_groups(total, None, 0, ctypes.byref(groups))
    borders = (ctypes.c_int64 * (groups.value + 1))()
    load().rf_states_groups(total, borders, len(borders), ctypes.byref(groups))
    return list(borders)
