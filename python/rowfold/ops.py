# SPDX-License-Identifier: MIT
"""Operators as Python objects, for building chains; the table itself is the library's.

>>> from rowfold import ops
>>> chain = ops.linear(512, 1000) | ops.mul("@scale") | ops.clamp(min=-10, max=10) | ops.logsumexp | ops.gelu("tanh")
>>> str(chain)
'linear(512, 1000) | mul(@scale) | clamp(-10, 10) | logsumexp | gelu(tanh)'

Several results of one pass are a tuple behind the trunk, and one value per row that each call gives is ``"#name"``:

    scores = ops.linear | ops.softcap(30) | (ops.logsumexp, ops.max, ops.abs | ops.mean)
    str(scores)     # 'linear | softcap(30) | logsumexp, max, (abs | mean)'
    str(ops.linear | ops.div("#temperature") | ops.logsumexp)   # 'linear | div(#temperature) | logsumexp'

Every operator of ``operators()`` is an attribute of this module. ``str`` gives the chain text and ``Chain.parse`` reads
it.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Union

from ._lib import MAX_NAME, MAX_OPS, OpClass, RowUse, load, read_text
from ._lib import Op as _NativeOp
from ._lib import OpInfo as _NativeOpInfo
from .errors import ArgumentTypeError, ChainError, InvalidArgumentError


@dataclass(frozen=True)
class Operator:
    """One row of the library's table; call it to get an Op.

    ``params`` are (name, default) pairs; a parameter with index below ``min_params`` has no default.
    """

    name: str
    kind: int
    op_class: str
    description: str
    params: tuple[tuple[str, float], ...]
    min_params: int
    accepts_vector: bool
    row_input: str = "none"  # whether the first parameter may be a "#name": "none", "number", "column" or "columns"
    gives_index: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Op:
        """An Op with these parameters, by position or by name.

        ``"@name"`` is a per-feature vector, ``"#name"`` a row input.

        A bare string picks a variant of the operator: ``gelu("tanh")``. Raises TypeError for parameters that the
        operator does not have, lacks or that are no numbers.
        """
        if len(args) == 1 and isinstance(args[0], str) and not args[0].startswith(("@", "#")):
            return _variant(self, args[0])(**kwargs)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentTypeError(f"{self.name}{self.signature}: {error}") from None
        count = 1 + max((i for i, (name, _) in enumerate(self.params) if name in bound.arguments), default=-1)
        bound.apply_defaults()
        given = list(bound.arguments.values())[:count]
        if given and isinstance(given[0], str) and (self.accepts_vector or self.row_input != "none"):
            rest = [self._number(*param, value) for param, value in zip(self.params[1:], given[1:])]
            return Op(self, (0.0, *rest) if rest else (), _vector_name(self, given[0]))
        return Op(self, tuple(self._number(*param, value) for param, value in zip(self.params, given)))

    @property
    def signature(self) -> inspect.Signature:
        """The parameters with their defaults, as of a Python function."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = []
        for i, (name, default) in enumerate(self.params):
            parameters.append(
                inspect.Parameter(name, kind, default=inspect.Parameter.empty if i < self.min_params else default)
            )
        return inspect.Signature(parameters)

    def _number(self, name: str, default: float, value: Any) -> float:
        if value is None:
            return default
        try:
            if not isinstance(value, str):
                return float(value)
        except OverflowError:
            raise InvalidArgumentError(f"{self.name}() got a {name} beyond the range of a double") from None
        except TypeError:
            pass
        vector = ' or a vector "@name"' if self.accepts_vector else ""
        vector += ' or a row input "#name"' if self.row_input != "none" else ""
        raise ArgumentTypeError(f"{self.name}() got {name} = {value!r}; expected a number{vector}")

    def __or__(self, other: ChainLike | tuple[ChainLike, ...]) -> Chain:
        return Chain([self()]) | other

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Op:
    """One operator of a chain with its parameters: numbers, or in place of the first one the name of a vector.

    ``vector`` is the name of a per-feature vector, or of a row input with its #.
    """

    operator: Operator
    params: tuple[float, ...] = ()
    vector: str | None = None

    def __or__(self, other: ChainLike | tuple[ChainLike, ...]) -> Chain:
        return Chain([self]) | other

    def _native(self) -> _NativeOp:
        native = _NativeOp(self.operator.kind, len(self.params))
        native.params[: len(self.params)] = self.params
        native.vector = (self.vector or "").encode()
        return native


class Chain:
    """An immutable sequence of operators, the first of them ``linear``, joined with ``|``.

    ``chain | (one, two)`` has several results of what it computes. RESULT stands before the operators of each.
    """

    __slots__ = ("_ops",)
    _ops: tuple[Op, ...]

    def __init__(self, operators: Iterable[Op | Operator]) -> None:
        if not isinstance(operators, Iterable):
            raise ArgumentTypeError(f"operators is a {type(operators).__qualname__}; expected operators of rowfold.ops")
        self._ops = tuple(_as_op(op) for op in operators)

    @classmethod
    def parse(cls, text: str) -> Chain:
        """Reads chain text, or ``preset:NAME``. Raises ChainError, pointing at the column."""
        library = load()
        native = (_NativeOp * MAX_OPS)()
        count = ctypes.c_size_t()
        library.rf_chain_parse(encode(text, "chain"), native, MAX_OPS, ctypes.byref(count))
        return cls(_from_native(op) for op in native[: count.value])

    def __or__(self, other: ChainLike | tuple[ChainLike, ...]) -> Chain:
        if isinstance(other, tuple):
            return Chain([*self._ops, *_results(other)])
        if isinstance(other, Chain):
            return Chain(self._ops + other._ops)
        if isinstance(other, (Op, Operator)):
            return Chain((*self._ops, other))
        return NotImplemented

    def __str__(self) -> str:
        """The chain text. Raises ChainError if the operators do not make a chain."""
        return read_text(partial(load().rf_chain_format, self.native(), len(self._ops)))

    def native(self) -> Any:
        """The operators as a C array of rf_op."""
        return (_NativeOp * len(self._ops))(*(op._native() for op in self._ops))

    def __iter__(self) -> Iterator[Op]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def __getitem__(self, index: int) -> Op:
        return self._ops[index]

    def __eq__(self, other: object) -> bool:
        return self._ops == other._ops if isinstance(other, Chain) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._ops)

    def __repr__(self) -> str:
        return f"Chain({' | '.join(_repr_op(op) for op in self._ops)})"


ChainLike = Union[Chain, Op, Operator]

RESULT = Operator("result", 2, "result", "begins a result; no operator", (), 0, False)


def _results(branches: tuple[ChainLike, ...]) -> Iterator[Op]:
    """The operators of several results; the first needs no RESULT where it begins with its reduction."""
    for i, branch in enumerate(branches):
        ops = list(branch) if isinstance(branch, Chain) else [_as_op(branch)]
        if i or not ops or ops[0].operator.op_class != "reduction":
            yield RESULT()
        yield from ops


def encode(text: str, argument: str) -> bytes:
    """Text for the library: UTF-8 without a NUL, at which C would end it."""
    if not isinstance(text, str):
        raise ArgumentTypeError(f"{argument} is a {type(text).__qualname__}; expected a str")
    if "\0" in text:
        raise InvalidArgumentError(f"{argument} holds a NUL character at index {text.index(chr(0))}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{argument} is {text!r}, which is not valid Unicode: {error.reason}") from None


@cache
def operators() -> tuple[Operator, ...]:
    """The library's table, the linear layer and the reductions included, in its order."""
    library = load()
    return tuple(_read_row(library, index) for index in range(library.rf_op_count()))


def operator(name: str) -> Operator:
    """The row of that name, as chain text writes it: ``"gelu(tanh)"``. Raises ChainError for others."""
    found = _by_name().get(name)
    if found is None:
        raise ChainError(f"there is no operator {name!r}; rowfold.ops.operators() lists them")
    return found


@cache
def reductions() -> tuple[str, ...]:
    """Names of the operators that fold the columns of a row."""
    return tuple(row.name for row in operators() if row.op_class == "reduction")


@cache
def presets() -> dict[str, str]:
    """Name and chain text of each preset."""
    library = load()
    found = {}
    for index in range(library.rf_preset_count()):
        name, chain = ctypes.c_char_p(), ctypes.c_char_p()
        library.rf_preset_get(index, ctypes.byref(name), ctypes.byref(chain))
        found[(name.value or b"").decode()] = (chain.value or b"").decode()
    return found


def _read_row(library: Any, index: int) -> Operator:
    info = _NativeOpInfo(size=ctypes.sizeof(_NativeOpInfo))
    library.rf_op_get_info(index, ctypes.byref(info))
    params = tuple((info.param_names[i].decode(), info.param_defaults[i]) for i in range(info.num_params))
    return Operator(
        name=info.name.decode(),
        kind=info.kind,
        op_class=OpClass(info.op_class).name.lower(),
        description=info.description.decode(),
        params=params,
        min_params=info.min_params,
        accepts_vector=bool(info.accepts_vector),
        row_input=RowUse(info.row_input).name.lower(),
        gives_index=bool(info.gives_index),
    )


@cache
def _by_name() -> dict[str, Operator]:
    return {row.name: row for row in operators()}


@cache
def _by_kind() -> dict[int, Operator]:
    return {row.kind: row for row in (RESULT, *operators())}


def _variant(row: Operator, name: str) -> Operator:
    found = _by_name().get(f"{row.name}({name})")
    if found is None:
        names = [other.name for other in operators() if other.name.startswith(row.name + "(")]
        expected = f"one of {', '.join(names)}" if names else f"{row.name}{row.signature}"
        if row.accepts_vector and name.isidentifier():
            expected += f"; a per-feature vector is {'@' + name!r}, a value of each row {'#' + name!r}"
        raise ArgumentTypeError(f"{row.name}({name!r}) is not known; expected {expected}")
    return found


def _vector_name(row: Operator, text: str) -> str:
    kinds = ("@",) * row.accepts_vector + ("#",) * (row.row_input != "none")
    name = text if text.startswith("#") else text[1:]  # a row input keeps its #
    if not text.startswith(kinds) or len(encode(name, "vector")) >= MAX_NAME:
        number = "" if row.row_input in ("column", "columns") else "a number, or "
        raise InvalidArgumentError(
            f"{row.name}() got {text!r}; expected {number}{' or '.join(kinds)} and a name of at most "
            f"{MAX_NAME - 1} bytes"
        )
    return name


def _from_native(native: Any) -> Op:
    params = tuple(native.params[: native.num_params])
    return Op(_by_kind()[native.kind], params, native.vector.decode() or None)


def _as_op(op: Op | Operator) -> Op:
    if isinstance(op, Op):
        return op
    if isinstance(op, Operator):
        return op()
    raise ArgumentTypeError(f"a chain holds operators of rowfold.ops; got {op!r}")


def _repr_op(op: Op) -> str:
    numbers = op.params[1:] if op.vector else op.params
    named = [] if not op.vector else [op.vector if op.vector.startswith("#") else f"@{op.vector}"]
    inside = ", ".join([*named, *map(repr, numbers)])
    return f"{op.operator.name}({inside})" if inside else op.operator.name


def __getattr__(name: str) -> Operator:
    if name.startswith("_"):  # what the interpreter asks for; the library may not be there yet
        raise AttributeError(f"module 'rowfold.ops' has no attribute {name!r}")
    found = _by_name().get(name)
    if found is not None:
        return found
    raise AttributeError(f"rowfold.ops has no operator {name!r}; {_instead(name)}")


def _instead(name: str) -> str:
    """What the library says of an operator that it does not have, but for the list of all."""
    try:
        Chain.parse(f"linear | {name}")
    except ChainError as error:
        said = str(error).partition('"; ')[2]
        if said and not said.startswith("there are "):
            return said
    return "rowfold.ops.operators() lists them"


def __dir__() -> list[str]:
    public = ["Chain", "Op", "Operator", "operator", "operators", "presets", "__doc__", "__name__"]
    return sorted([*public, *(name for name in _by_name() if name.isidentifier())])
