# SPDX-License-Identifier: MIT
"""What the nodes of a traced forward stand for while it is matched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from torch import fx

from ..errors import FuseError
from .trace import KIND, SOURCE


@dataclass(frozen=True)
class Leaf:
    """A tensor of the module, by its index among the leaves, and the tensor methods applied to it: ``("t",)``."""

    index: int
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchNorm:
    """The scale or the shift of a batch norm in eval mode, of (mean, variance, weight, bias)."""

    part: str
    of: tuple[Leaf | None, ...]
    eps: float


@dataclass(frozen=True)
class Column:
    """The column of each row that a tensor from outside names, by its index among those tensors."""

    index: int


@dataclass(frozen=True)
class ColumnTensor:
    """How a tensor from outside names columns: ``kept``, its last dimension is one of size 1; ``flat`` as of a Row."""

    name: str
    kept: bool
    flat: bool


Source = Union[Leaf, BatchNorm]
Param = Union[float, Source, Column]


@dataclass(frozen=True)
class Step:
    """An operator of the chain with its parameters, or ``cast`` to a dtype by name."""

    op: str
    params: tuple[Param, ...] = ()
    dtype: str = ""


@dataclass(eq=False)
class Input:
    """The module's input, as it is or cast to a wider type."""

    dtype: str = ""


@dataclass(eq=False)
class Row:
    """A value with a row for each row of the input.

    ``steps`` lead to it from its one operand; a Row with two combines them by ``join``: "add" or "mul".
    """

    node: fx.Node
    operands: tuple[Row, ...] = ()
    steps: tuple[Step, ...] = ()
    join: str = ""
    folded: bool = False  # a reduction stands before: one column
    dropped: bool = False  # that column is no dimension any more
    flat: bool = False  # its leading dimensions were made one
    ends: bool = False  # no operator can follow: it is a column, or of several
    part: int = 0  # 1 of the columns that belong to the values of topk
    spine: list[Row] = field(default_factory=list)  # from the linear layer to this value, itself included

    def __post_init__(self) -> None:
        if len(self.operands) == 2:
            first, second = self.operands
            longer = second if first in second.spine else first
            self.spine = [*longer.spine, self]
        else:
            self.spine = [*(self.operands[0].spine if self.operands else ()), self]


@dataclass(eq=False)
class Pair:
    """(values, indices), as torch.max with a dim returns them."""

    values: Row
    indices: Row | None  # None of a value that was reduced before
    kind: str  # of torch.return_types


@dataclass(eq=False)
class LogSoftmax:
    """The logarithm of the softmax of a value's columns, of which one for each row may be asked for."""

    row: Row


@dataclass(eq=False)
class Loss:
    """What cross_entropy makes of (log-probability) or (log-probability, logsumexp, mean) of each row."""

    rows: tuple[Row, ...]
    column: Column
    reduction: str
    ignored: int
    smoothing: float
    weight: Leaf | None


@dataclass(eq=False)
class Comparison:
    """A value compared with a number: ``value > number``."""

    row: Row
    sign: str
    number: float


@dataclass(frozen=True, eq=False)
class Shape:
    """The shape of a value, or a part of it: ``of.shape[part]``."""

    of: Row | Input
    part: slice | None = None


@dataclass(frozen=True, eq=False)
class Extent:
    """A size that is known when the module runs: ``of.shape[dim]``, but for the last, which is a number."""

    of: Row | Input
    dim: int


class Where:
    """The device of a value, which is the module's."""


@dataclass(frozen=True, eq=False)
class WeightType:
    """The dtype of the weight: the weight's own, or that of the input or a value, which are the same if not cast."""

    of: Row | Input | None = None


@dataclass(eq=False)
class Outside:
    """A tensor that is neither computed from the linear layer nor a parameter's alone."""

    node: fx.Node


Value = Union[Input, Row, Pair, LogSoftmax, Loss, Leaf, Comparison, Shape, Extent, Outside, FuseError, float, None, Any]


def from_linear(value: Value) -> bool:
    """Whether a value depends on the linear layer."""
    return isinstance(value, (Row, Pair, LogSoftmax, Loss, Comparison)) or (
        isinstance(value, (Shape, Extent)) and isinstance(value.of, Row)
    )


def refuse(node: fx.Node, reason: str) -> FuseError:
    """The error for one node: its name, what it calls, its source line and its module, and the reason."""
    error = FuseError(f"cannot fuse {label(node)}: {reason}")
    error.reason = reason
    return error


def label(node: fx.Node) -> str:
    """A node by its name, what it calls, its source line, and the module that it stands in."""
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    where = node.meta.get(SOURCE) if node.op != "placeholder" else None
    stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values() if path]
    if node.op == "call_module":
        return f"{node.target} ({node.meta.get(KIND, 'a module')})" + (f" at {where}" if where else "")
    inside = f" in {stack[-1]}" if stack else ""
    return f"{node.name} ({target}){f' at {where}' if where else ''}{inside}"
