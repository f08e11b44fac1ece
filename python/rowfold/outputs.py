# SPDX-License-Identifier: MIT
"""What a call gives: the arrays of a model's results, new ones or the caller's, and how they are put together."""

from __future__ import annotations

import ctypes
import re
from collections import namedtuple
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _lib
from ._lib import DType
from .arrays import ArrayKind, Matrix, check_apart
from .errors import ArgumentTypeError, InvalidArgumentError
from .handle import ModelInfo


class TopK(NamedTuple):
    """What topk gives, as torch.topk does: the values, best first, and their columns; (..., k) each."""

    values: Any
    indices: Any


class Outputs:
    """The results of one model. Each has an array, topk two."""

    def __init__(self, info: ModelInfo) -> None:
        self.infos = info.results
        # For each result the place of its array, or of the first of two.
        self.places = [i for i, result in enumerate(info.results) if not result.part]
        self._tuple: Any = namedtuple("Results", [info.results[i].name for i in self.places])  # type: ignore[misc]

    def has_one_column(self, place: int) -> bool:
        """Whether the array is of a reduction to one number a row, not of topk or gather."""
        pair = [result.part for result in self.infos[place : place + 2]]
        return self.infos[place].features == 1 and 1 not in pair

    def together(self, made: list[Any]) -> Any:
        """What a call returns: the array, or the pair, of one result, or a named tuple of those of several."""
        results = []
        for place in self.places:
            pair = place + 1 < len(made) and self.infos[place + 1].part
            results.append(TopK(made[place], made[place + 1]) if pair else made[place])
        return results[0] if len(results) == 1 else self._tuple(*results)

    def shapes(
        self, lead: tuple[int, ...], values: dict[str, tuple[Matrix, int]]
    ) -> list[tuple[tuple[int, ...], DType]]:
        """The shape and dtype of each result's array."""
        shapes = []
        for result in self.infos:
            features = result.features if result.row_input is None or result.features else values[result.row_input][1]
            shapes.append(((*lead, features), DType[result.dtype.upper()]))
        return shapes

    def arrays(
        self,
        kind: ArrayKind,
        x: Any,
        given: Matrix,
        out: Any,
        lead: tuple[int, ...],
        values: dict[str, tuple[Matrix, int]],
    ) -> tuple[list[Any], list[Matrix]]:
        """The arrays of the results, new or the caller's, and what the library writes to."""
        shapes = self.shapes(lead, values)
        if out is None:
            pairs = [kind.empty(x, shape, dtype) for shape, dtype in shapes]
            return [y for y, _ in pairs], [matrix for _, matrix in pairs]
        outs = self._apart(out)
        views = [self._with_column(i, y, lead) for i, y in enumerate(outs)]
        return outs, [self._output(kind, i, y, given, *shapes[i]) for i, y in enumerate(views)]

    def _with_column(self, index: int, array: Any, lead: tuple[int, ...]) -> Any:
        """The caller's array, seen with the one column of a reduction where it has no dimension for it."""
        # One that does not fit stays as it is, for the error to name its shape.
        fits = self.has_one_column(index) and getattr(array, "shape", None) == lead
        return array[..., None] if fits else array

    def _output(
        self, kind: ArrayKind, index: int, array: Any, given: Matrix, shape: tuple[int, ...], dtype: DType
    ) -> Matrix:
        """The array of one result, checked; that of one among several is by name in what is raised."""
        try:
            matrix = kind.output(array, given.owner, shape, dtype)
            check_apart(given.source, matrix, shape[-1])
            return matrix
        except (ArgumentTypeError, InvalidArgumentError) as error:
            if len(self.infos) == 1:
                raise
            raise type(error)(f"out of {self.infos[index].name}{str(error).removeprefix('out')}") from None

    def _apart(self, out: Any) -> list[Any]:
        """The arrays of the caller's ``out``, those of topk one behind the other."""
        count = len(self.places)
        if count > 1 and not isinstance(out, Sequence):
            raise ArgumentTypeError(
                f"out is a {type(out).__qualname__}; expected a sequence of {count} arrays, one for each result"
            )
        given = [out] if count == 1 else list(out)
        if len(given) != count:
            raise InvalidArgumentError(f"out has {len(given)} arrays; expected {count}, one for each result")
        outs = []
        for place, one in zip(self.places, given):
            pair = self.infos[place + 1 : place + 2]
            if not pair or not pair[0].part:
                outs.append(one)
            elif isinstance(one, (tuple, list)) and len(one) == 2:
                outs += one
            else:
                raise ArgumentTypeError(
                    f"out of {self.infos[place].name} is a {type(one).__qualname__}; expected a pair of arrays, "
                    "values and columns"
                )
        return outs

    @staticmethod
    def give(args: _lib.ForwardArgs, results: list[Matrix]) -> None:
        """Has the library write to these."""
        size = ctypes.sizeof(_lib.Result)
        args.results = (_lib.Result * len(results))(
            *(_lib.Result(size, y.pointer, y.ld, y.dtype, y.memory) for y in results)
        )
        args.num_results = len(results)

    def by_name(self, message: str) -> str:
        """What the library says of ``results`` by number, with their names."""
        return re.sub(r"results\[(\d+)\]", lambda found: f"out of {self.infos[int(found[1])].name}", message)
