# SPDX-License-Identifier: MIT
"""The rows of spellings.py that shape and cast, and sizes, attributes and indices; called as those of rules.py are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .rules import as_row, cast_step, describe, extend, need_dims, need_last
from .values import Extent, Input, Row, Shape, Step, Value, WeightType, Where, refuse

if TYPE_CHECKING:
    from .match import Matcher


def same(m: Matcher, node: fx.Node, value: Value, memory_format: Any = None) -> Value:
    """What changes no value."""
    return value if isinstance(value, Input) else as_row(node, value)


def detach(m: Matcher, node: fx.Node, value: Value) -> Value:
    """Nothing: no gradient is computed anyway."""
    return same(m, node, value)


def cast(m: Matcher, node: fx.Node, value: Value, dtype: Any, memory_format: Any = None) -> Value:
    """Of the input, to the type of the weights; of a value, to the type that it is computed in, or at the end."""
    step = cast_step(node, dtype)
    if isinstance(value, Input):
        return Input(step.dtype)
    return extend(node, as_row(node, value), step)


def to(m: Matcher, node: fx.Node, value: Value, dtype: Any, second: Any, device: Any, non_blocking: Any) -> Value:
    """x.to(dtype), x.to(device), x.to(other) and x.type(dtype)."""
    if isinstance(dtype, (Row, Input)):
        return type_as(m, node, value, dtype)
    given = [v for v in (dtype, second, device) if v is not None]
    for what in given:
        if isinstance(what, WeightType):
            value = _as_weight(m, node, value, what)
        elif isinstance(what, torch.dtype):
            value = cast(m, node, value, what)
        elif not isinstance(what, Where):
            raise refuse(
                node,
                f"it moves to {describe(what)}; expected a dtype of torch, or the dtype or device of the input: move "
                "the result instead",
            )
    return value


def type_as(m: Matcher, node: fx.Node, value: Value, other: Any) -> Value:
    """x.type_as(other) and x.to(other)."""
    kind = attribute(m, node, other, "dtype") if isinstance(other, (Row, Input)) else None
    if kind is None:
        raise refuse(node, f"it takes the type of {describe(other)}; expected that of the input or a number's name")
    return _as_weight(m, node, value, kind)


def _as_weight(m: Matcher, node: fx.Node, value: Value, kind: Value) -> Value:
    """A cast to the type of the weight, which the input has too."""
    of = kind.of if isinstance(kind, WeightType) else None
    if isinstance(value, Input):
        return value if isinstance(of, Input) else Input("weight")
    if of is not None and m.linear is not None and m.linear.input.dtype:
        raise refuse(
            node, "it casts to the type of an input that may have any, since it is cast before; cast the result outside"
        )
    return extend(node, as_row(node, value), Step("cast", dtype="weight"))


def attribute(m: Matcher, node: fx.Node, value: Row | Input, name: str) -> Value:
    """x.shape, x.dtype, x.device and the like; None for others."""
    if name == "shape":
        return Shape(value)
    if name == "device":
        return Where()
    if name == "data":
        return value
    if name == "dtype":
        if isinstance(value, Input) and value.dtype:
            raise refuse(node, "it takes the type of an input that was cast; name the type")
        if isinstance(value, Row) and any(step.op == "cast" for row in value.spine for step in row.steps):
            raise refuse(node, "it takes the type of a value that was cast; name the type")
        return WeightType(value)
    return None


def size(m: Matcher, node: fx.Node, value: Value, dim: Any) -> Value:
    """x.size() and x.size(dim)."""
    if not isinstance(value, (Row, Input)):
        raise refuse(node, f"it takes the size of {describe(value)}")
    return Shape(value) if dim is None else extent(m, node, Shape(value), dim)


def extent(m: Matcher, node: fx.Node, shape: Shape, key: Any) -> Value:
    """A size: the last one is the weight's, a number; others are known when the module runs."""
    if isinstance(key, slice) and shape.part is None:
        return Shape(shape.of, key)
    if not isinstance(key, int) or shape.part is not None:
        raise refuse(node, f"the index {key!r} of a shape; expected one number")
    if key != -1:
        return Extent(shape.of, key)
    if isinstance(shape.of, Row) and shape.of.folded:
        return Extent(shape.of, key) if shape.of.dropped else 1
    if m.linear is None:
        return Extent(shape.of, key)
    m.sized = True
    return m.weight_shape()[0 if isinstance(shape.of, Row) else 1]


def view(m: Matcher, node: fx.Node, value: Value, sizes: tuple[Any, ...]) -> Row:
    """(-1, out_features) makes the leading dimensions one; sizes that a value has already change nothing."""
    row = as_row(node, value)
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    if len(sizes) == 1 and isinstance(sizes[0], Shape) and sizes[0].of is row and sizes[0].part is None:
        return row
    if not row.folded and m.linear is not None and len(sizes) > 1:
        m.sized = True
        columns = m.weight_shape()[0]
        lead = [s.dim if isinstance(s, Extent) else None for s in sizes[:-1]]
        last = sizes[-1].dim if isinstance(sizes[-1], Extent) and sizes[-1].of is row else None
        if (
            (sizes[-1] in (columns, -1) or last == len(lead))
            and lead == list(range(len(lead)))
            and (not row.flat or len(lead) == 1)
        ):
            if not row.flat:
                need_dims(m, node, len(sizes))
            return row
        if sizes[-1] == columns and sizes[0] == -1 and len(sizes) == 2:
            return Row(node, (row,), (), flat=True)
    raise refuse(
        node,
        "a view of a value is fused only where it keeps the columns and makes the leading dimensions one, as "
        "h.view(-1, h.size(-1)); shape the input before, or the result",
    )


def flatten(m: Matcher, node: fx.Node, value: Value, start_dim: Any, end_dim: Any) -> Row:
    """Makes the leading dimensions one: from 0 to -2."""
    row = as_row(node, value)
    if not row.folded and not row.flat and start_dim == 0 and end_dim in (-2, 1):
        if end_dim == 1:
            need_dims(m, node, 3)
        return Row(node, (row,), (), flat=True)
    raise refuse(
        node,
        f"flatten({describe(start_dim)}, {describe(end_dim)}) of a value; expected flatten(0, -2), which keeps the "
        "columns: shape the input before, or the result",
    )


def unsqueeze(m: Matcher, node: fx.Node, value: Value, dim: Any) -> Row:
    """Gives back the column that a reduction without keepdim dropped."""
    row = as_row(node, value)
    if not row.dropped:
        raise refuse(node, "it adds a dimension; expected that only behind a reduction without keepdim")
    need_last(m, node, row, dim, 0, "unsqueeze")
    return Row(node, (row,), (), folded=True, dropped=False, flat=row.flat)


def squeeze(m: Matcher, node: fx.Node, value: Value, dim: Any) -> Row:
    """Drops the one column of a reduced value."""
    row = as_row(node, value)
    if dim is None:
        raise refuse(node, "squeeze without dim drops the batch too when there is one row; expected dim=-1")
    if not row.folded or row.dropped:
        raise refuse(node, "squeeze is fused only where it drops the one column of a reduced value")
    need_last(m, node, row, dim, 0, "squeeze")
    return Row(node, (row,), (), folded=True, dropped=True, flat=row.flat)


def index(m: Matcher, node: fx.Node, row: Row, key: Any) -> Row:
    """[:, None] and [..., None] behind a reduction without keepdim, [:, 0] and [..., 0] behind one with."""
    if isinstance(key, tuple) and len(key) == 2 and key[0] in (Ellipsis, slice(None)):
        dim = -1 if key[0] is Ellipsis else 1
        if key[1] is None:
            return unsqueeze(m, node, row, dim)
        if key[1] in (0, -1) and row.folded and not row.dropped:
            return squeeze(m, node, row, dim)
    raise refuse(
        node,
        f"the index [{_index_text(key)}] takes parts of a value; expected [..., None] or [..., 0] of a reduced one: "
        "take parts of the weight, F.linear(x, W[:n], b[:n]), or rows of the input; of a value that nothing else reads "
        "they are taken by an index of all dimensions, [:, -1, :]",
    )


def _index_text(key: Any) -> str:
    """An index as it is written."""
    if isinstance(key, tuple):
        return ", ".join(map(_index_text, key)) if key else "()"
    if isinstance(key, slice):
        ends = ["" if end is None else str(end) for end in (key.start, key.stop, key.step)]
        return ":".join(ends if ends[2] else ends[:2])
    if key is Ellipsis:
        return "..."
    return repr(key) if isinstance(key, (int, str, type(None))) else describe(key)
