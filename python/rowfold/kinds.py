# SPDX-License-Identifier: MIT
"""The families of arrays that the package takes."""

from __future__ import annotations

from typing import Any

from .arrays import NUMPY, ArrayKind, ConvertedKind, type_name
from .cuda_interface import CudaInterfaceKind
from .dlpack import DlpackKind
from .errors import ArgumentTypeError
from .tensors import TorchKind

# The first that accepts an object has it. A tensor or a jax array would also pass for one of the families further down,
# by a longer way or with a numpy result.
KINDS: tuple[ArrayKind, ...] = (NUMPY, TorchKind(), DlpackKind(), CudaInterfaceKind(), ConvertedKind())
_kinds_by_type: dict[type, ArrayKind] = {}


def kind_of(array: Any, argument: str) -> ArrayKind:
    """The family that an array belongs to, by its type. Raises ArgumentTypeError for objects that are no array."""
    found = _kinds_by_type.get(type(array))
    if found is not None:
        return found
    for kind in KINDS:
        if kind.accepts(array):
            _kinds_by_type[type(array)] = kind
            return kind
    hint = (
        "; numpy.asarray(..., dtype=...) makes one, or a Model with cast=True"
        if isinstance(array, (list, tuple, int, float))
        else ""
    )
    raise ArgumentTypeError(f"{argument} is a {type_name(array)}; expected an array{hint}")
