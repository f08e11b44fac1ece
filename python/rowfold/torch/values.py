# SPDX-License-Identifier: MIT
"""What the nodes of a traced forward stand for while it is matched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from torch import fx

from ..errors import FuseError
from .trace import SOURCE


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


Source = Union[Leaf, BatchNorm]
Param = Union[float, Source]


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


Value = Union[Input, Row, Pair, Leaf, FuseError, float, None, Any]


def refuse(node: fx.Node, reason: str) -> FuseError:
    """The error for one node: its name, what it calls, its source line, and the reason."""
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    where = node.meta.get(SOURCE) if node.op != "placeholder" else None
    return FuseError(f"cannot fuse {node.name} ({target}){f' at {where}' if where else ''}: {reason}")
