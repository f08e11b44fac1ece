# SPDX-License-Identifier: MIT
"""Arguments of Model as the library takes them. Errors name the argument, what came and what was expected."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, TypeVar

from .errors import ArgumentTypeError, InvalidArgumentError
from .filetype import nearest
from .ops import Chain, Op, Operator

_E = TypeVar("_E", bound=IntEnum)


def as_chain(chain: str | Chain | Op | Operator | Iterable[Op | Operator]) -> str | Chain:
    """A chain that nobody changes or uses up, from any way to write one: text as it is."""
    if isinstance(chain, (str, Chain)):
        return chain
    if isinstance(chain, (Op, Operator)):
        return Chain([chain])
    if isinstance(chain, Iterable) and not isinstance(chain, (bytes, bytearray)):
        return Chain(chain)
    raise ArgumentTypeError(f"chain is a {type(chain).__qualname__}; expected text, or operators of rowfold.ops")


def choice(kind: type[_E], value: str, argument: str) -> _E:
    """A member of an enumeration by its name in lower case."""
    if isinstance(value, str) and value == value.lower():
        found = kind.__members__.get(value.upper())
        if found is not None and found.name != "DEFAULT":
            return found
    expected = ", ".join(repr(member.name.lower()) for member in kind if member.name != "DEFAULT")
    raise InvalidArgumentError(f"{argument} is {value!r}; expected one of {expected}")


def integer(value: Any, argument: str, bits: int, least: int = 0) -> int:
    """An int that C's signed integer of so many bits holds: ctypes would wrap others silently."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{argument} is {value!r}; expected an int") from None
    if not least <= number < 2 ** (bits - 1):
        raise InvalidArgumentError(f"{argument} is {number}; expected {least} to 2**{bits - 1} - 1")
    return number


def size(value: int | None, argument: str) -> int:
    """A size as the library takes it, where 0 is for the chain to say."""
    if value is None:
        return 0
    if hasattr(value, "shape") and hasattr(value, "dtype") and value.shape != ():
        raise ArgumentTypeError(f"{argument} is an array; expected an int or None: load_weights takes the weight")
    if value == 0:
        raise InvalidArgumentError(
            f"{argument} is 0; a layer without inputs or outputs is written in the chain, as in linear(0, 5)"
        )
    return integer(value, argument, 64)


def says_sizes(chain: str | Chain) -> bool:
    """Whether the chain itself says the sizes of its linear layer. Raises ChainError for text that is no chain."""
    ops = Chain.parse(chain) if isinstance(chain, str) else chain
    return len(ops) == 0 or bool(ops[0].params)


def open_size(value: int, shape: tuple[int, ...], what: str) -> int:
    """A size that is the weight's to say; that of a layer without inputs or outputs is the chain's.

    ``shape`` is the weight's, and ``what`` is how a sentence names it.
    """
    if value == 0:
        raise InvalidArgumentError(
            f"{what} has shape {shape}; sizes of a layer without inputs or outputs are written in the chain, as "
            f"linear({shape[1]}, {shape[0]})"
        )
    return int(value)


def say_sizes(keywords: dict[str, Any], chain: str | Chain, shape: tuple[int, ...], what: str) -> None:
    """Makes the weight's sizes keywords of Model, where neither these nor the chain say them. ``what``: the weight."""
    if says_sizes(chain):
        return  # load_weights compares, and names what differs
    if keywords.get("total_columns") is not None:
        if keywords.get("out_features") is None:
            raise InvalidArgumentError("out_features is not given; a shard's columns are for the caller to say")
    elif len(shape) == 2 and keywords.get("out_features") is None:
        keywords["out_features"] = open_size(shape[0], shape, what)
    if len(shape) == 2 and keywords.get("in_features") is None:
        keywords["in_features"] = open_size(shape[1], shape, what)


def path_text(value: Any) -> str:
    """A path as a str, whichever way it was given."""
    try:
        return os.fsdecode(value)
    except TypeError:
        raise ArgumentTypeError(f"path is a {type(value).__qualname__}; expected a str, bytes or os.PathLike") from None


def mapping(value: Any, argument: str) -> Mapping[str, Any]:
    """A mapping of names; an empty one for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{argument} is a {type(value).__qualname__}; expected a mapping, as a dict is one")
    return value


def entry(state_dict: Mapping[str, Any], name: str, argument: str) -> Any:
    """The array of that name; InvalidArgumentError if there is none."""
    try:
        return state_dict[name]
    except KeyError:
        hint = nearest(name, [key for key in state_dict if isinstance(key, str)])
        raise InvalidArgumentError(
            f"{argument} is {name!r}, which is not among the {len(state_dict)} arrays given{hint}"
        ) from None
