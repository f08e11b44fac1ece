# SPDX-License-Identifier: MIT
"""What the rows of spellings.py mean whose meaning depends on what they are applied to.

Each function takes the Matcher, the node and the value, then the row's extra word and its arguments; it returns the new
value or raises the error that says why not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx, nn

from .values import BatchNorm, Input, Leaf, Pair, Param, Row, Source, Step, Value, refuse

if TYPE_CHECKING:
    from .match import Matcher

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Linear(NamedTuple):
    """The linear layer: W (out_features, in_features) and b."""

    weight: Leaf
    bias: Leaf | None
    input: Input


def as_row(node: fx.Node, value: Value) -> Row:
    """The value, if it is computed from the linear layer."""
    if isinstance(value, Row):
        return value
    if isinstance(value, Input):
        raise refuse(node, "it acts on the input, before the linear layer; a chain begins with the linear layer")
    if isinstance(value, Pair):
        raise refuse(node, "it takes a maximum or minimum with its indices; take the values, [0]")
    raise refuse(node, f"it is applied to {_describe(value)}; expected a value computed from the linear layer")


def number(node: fx.Node, value: Any) -> Param:
    """A parameter of an operator: a Python number, or a tensor of the module."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, (Leaf, BatchNorm)):
        return value
    raise refuse(node, f"an argument is {_describe(value)}; expected a number, or a parameter or buffer")


def _describe(value: Value) -> str:
    if isinstance(value, Row):
        return "a value computed from the linear layer"
    if isinstance(value, Input):
        return "the input"
    if isinstance(value, Leaf):
        return "a parameter or buffer"
    return repr(value)


def extend(node: fx.Node, row: Row, *steps: Step) -> Row:
    """The row behind these steps."""
    return Row(node, (row,), steps, folded=row.folded, dropped=row.dropped)


def _join(node: fx.Node, how: str, a: Row, b: Row) -> Row:
    if a.folded != b.folded:
        raise refuse(
            node, "it combines a value with its own reduction, which would take a second pass over the columns"
        )
    if a.dropped != b.dropped:
        raise refuse(
            node, "it combines (batch, 1) with (batch,), which PyTorch broadcasts to (batch, batch); use keepdim=True"
        )
    if a not in b.spine and b not in a.spine:
        raise refuse(
            node,
            f"it combines {a.node.name} and {b.node.name}, neither of which is computed from the other; a chain has "
            "one current value and one that was saved on the way to it",
        )
    return Row(node, (a, b), join=how, folded=a.folded, dropped=a.dropped)


# The linear layer.


def _linear(m: Matcher, node: fx.Node, value: Value, weight: Any, bias: Any) -> Row:
    if isinstance(value, Row):
        raise refuse(node, "it is a second linear layer; a chain has one")
    if not isinstance(value, Input):
        raise refuse(node, f"it multiplies {_describe(value)}; expected the input")
    if not isinstance(weight, Leaf):
        raise refuse(node, f"its weight is {_describe(weight)}; expected a parameter or buffer, or its transpose")
    if bias is not None and not isinstance(bias, Leaf):
        raise refuse(node, f"its bias is {_describe(bias)}; expected a parameter or buffer, or None")
    if m.linear is not None:
        raise refuse(node, "it is a second linear layer; a chain has one")
    m.linear = Linear(weight, bias, value)
    return Row(node)


def linear(m: Matcher, node: fx.Node, value: Value, weight: Any, bias: Any) -> Row:
    """nn.Linear and F.linear."""
    return _linear(m, node, value, weight, bias)


def matmul(m: Matcher, node: fx.Node, value: Value, other: Any) -> Row:
    """X @ V, V (in_features, out_features): mostly W.t()."""
    if isinstance(value, Leaf):
        raise refuse(node, "the parameter stands on the left; expected x @ W.t(), as in torch.nn.Linear")
    if not isinstance(other, Leaf):
        raise refuse(node, f"it multiplies with {_describe(other)}; expected a parameter or buffer, such as W.t()")
    return _linear(m, node, value, Leaf(other.index, (*other.methods, "t")), None)


def addmm(m: Matcher, node: fx.Node, value: Value, mat1: Any, mat2: Any, beta: Any, alpha: Any) -> Row:
    """Adds a bias to x @ V."""
    if (alpha, beta) != (1, 1):
        raise refuse(node, f"alpha is {alpha} and beta {beta}; expected 1")
    row = matmul(m, node, mat1, mat2)
    if not isinstance(value, Leaf):
        raise refuse(node, f"the matrix that is added is {_describe(value)}; expected a bias")
    assert m.linear is not None
    m.linear = m.linear._replace(bias=value)
    return row


# Arithmetic.


def add(m: Matcher, node: fx.Node, value: Value, other: Any, alpha: Any = 1) -> Row:
    """Value + alpha * other."""
    if alpha != 1:
        if not isinstance(other, (Row, int, float)):
            raise refuse(node, f"alpha is {alpha} beside {_describe(other)}; expected 1")
        other = mul(m, node, other, alpha) if isinstance(other, Row) else other * alpha
    if isinstance(value, Row) and isinstance(other, Row):
        return extend(node, value, Step("mul", (2.0,))) if value is other else _join(node, "add", value, other)
    row, param = _sort(node, value, other)
    if m.linear is not None and isinstance(param, Leaf) and _is_bias(m, m.linear, node, row, param):
        m.linear = m.linear._replace(bias=param)
        return Row(node)
    return extend(node, row, Step("add", (param,)))


def _is_bias(m: Matcher, linear: Linear, node: fx.Node, row: Row, param: Leaf) -> bool:
    """Whether this is the b of x @ W.t() + b, and nothing else reads the product without it."""
    alone = row.node in node.all_input_nodes and len(row.node.users) == 1
    if not alone or linear.bias is not None or row.spine != [row] or param.methods:
        return False
    weight, bias = m.tensor(linear.weight), m.tensor(param)
    columns = weight.shape[linear.weight.methods.count("t") % 2]
    return bias.shape == (columns,) and bias.dtype is weight.dtype


def sub(m: Matcher, node: fx.Node, value: Value, other: Any, alpha: Any = 1) -> Row:
    """Value - alpha * other."""
    if alpha != 1:
        return add(m, node, value, other, -alpha)
    if isinstance(value, Row) and isinstance(other, Row):
        if value is other:
            raise refuse(node, "it subtracts a value from itself")
        if value in other.spine:
            return _join(node, "add", value, extend(node, other, Step("neg")))
        return extend(node, _join(node, "add", extend(node, value, Step("neg")), other), Step("neg"))
    if isinstance(value, Row):
        return extend(node, value, Step("sub", (number(node, other),)))
    row, param = _sort(node, value, other)
    return extend(node, row, Step("neg"), Step("add", (param,)))


def rsub(m: Matcher, node: fx.Node, value: Value, other: Any, alpha: Any) -> Row:
    """Other - alpha * value."""
    return sub(m, node, other, value, alpha)


def mul(m: Matcher, node: fx.Node, value: Value, other: Any) -> Row:
    """Value * other."""
    if isinstance(value, Row) and isinstance(other, Row):
        return extend(node, value, Step("square")) if value is other else _join(node, "mul", value, other)
    row, param = _sort(node, value, other)
    return extend(node, row, Step("mul", (param,)))


def div(m: Matcher, node: fx.Node, value: Value, other: Any, rounding_mode: Any = None) -> Row:
    """Value / other. PyTorch itself computes 2 / x as x.reciprocal() * 2."""
    if rounding_mode is not None:
        raise refuse(node, f"rounding_mode is {rounding_mode!r}; expected None")
    if isinstance(value, Row) and isinstance(other, Row):
        raise refuse(
            node,
            "it divides one computed value by another; write a product, a * torch.reciprocal(b), rounded once more",
        )
    if isinstance(value, Row):
        return extend(node, value, Step("div", (number(node, other),)))
    row, param = _sort(node, value, other)
    return extend(node, row, Step("reciprocal"), *([] if param == 1.0 else [Step("mul", (param,))]))


_POWERS = {
    2.0: ("square",),
    0.5: ("sqrt",),
    -0.5: ("sqrt", "reciprocal"),
    -1.0: ("reciprocal",),
    -2.0: ("square", "reciprocal"),
    4.0: ("square", "square"),
}


def pow(m: Matcher, node: fx.Node, value: Value, exponent: Any) -> Row:  # noqa: A001  (the row's name)
    """Value ** exponent for the exponents that the table has."""
    row = as_row(node, value)
    if exponent == 1:
        return row
    if exponent == 3:
        return _join(node, "mul", row, extend(node, row, Step("square")))
    names = _POWERS.get(exponent) if isinstance(exponent, (int, float)) else None
    if names is None:
        raise refuse(node, f"the exponent is {_describe(exponent)}; expected one of {sorted([1, 3, *_POWERS])}")
    return extend(node, row, *map(Step, names))


def _sort(node: fx.Node, a: Value, b: Value) -> tuple[Row, Param]:
    """The computed value and the parameter, whichever side they are on."""
    if isinstance(a, Row):
        return a, number(node, b)
    if isinstance(b, Row):
        return b, number(node, a)
    return as_row(node, b if isinstance(b, Input) else a), 0.0  # raises


def minimum(m: Matcher, node: fx.Node, value: Value, other: Any) -> Row:
    """torch.minimum with a tensor of the module."""
    row, param = _sort_bound(node, value, other)
    return extend(node, row, Step("minimum", (param,)))


def maximum(m: Matcher, node: fx.Node, value: Value, other: Any) -> Row:
    """torch.maximum with a tensor of the module."""
    row, param = _sort_bound(node, value, other)
    return extend(node, row, Step("maximum", (param,)))


def _sort_bound(node: fx.Node, value: Value, other: Any) -> tuple[Row, Param]:
    if isinstance(value, Row) and isinstance(other, Row):
        raise refuse(node, "it compares two computed values; expected a parameter or buffer on one side")
    return _sort(node, value, other)


def clamp(m: Matcher, node: fx.Node, value: Value, min: Any, max: Any) -> Row:  # noqa: A002
    """Numbers make one clamp; tensors one step each, in PyTorch's order: min(max(x, low), high)."""
    row = as_row(node, value)
    if min is None and max is None:
        raise refuse(node, "it has neither min nor max")
    if all(bound is None or isinstance(bound, (int, float)) for bound in (min, max)):
        low = float("-inf") if min is None else float(min)
        return extend(node, row, Step("clamp", (low,) if max is None else (low, float(max))))
    steps = [Step(op, (number(node, b),)) for op, b in (("maximum", min), ("minimum", max)) if b is not None]
    return extend(node, row, *steps)


def clamp_min(m: Matcher, node: fx.Node, value: Value, min: Any) -> Row:  # noqa: A002
    """Clamp from below."""
    return clamp(m, node, value, min, None)


def clamp_max(m: Matcher, node: fx.Node, value: Value, max: Any) -> Row:  # noqa: A002
    """Clamp from above."""
    return clamp(m, node, value, None, max)


def gelu(m: Matcher, node: fx.Node, value: Value, approximate: Any) -> Row:
    """Both forms."""
    names = {"none": "gelu", "tanh": "gelu(tanh)"}
    if approximate not in names:
        raise refuse(node, f"approximate is {approximate!r}; expected 'none' or 'tanh'")
    return extend(node, as_row(node, value), Step(names[approximate]))


# Eval mode.


def dropout(m: Matcher, node: fx.Node, value: Value, p: Any, training: Any, inplace: Any) -> Value:
    """F.dropout outside of training is the identity."""
    if training:
        raise refuse(
            node, "dropout is in training mode, which is random; call eval() first, or pass training=self.training"
        )
    m.modal_calls = True
    return value


def dropout_module(m: Matcher, node: fx.Node, value: Value, module: nn.Module, name: str) -> Value:
    """nn.Dropout in eval mode is the identity."""
    if module.training:
        raise refuse(node, f"{name} is a dropout in training mode, which is random; call eval() first")
    m.modal.append(name)
    return value


def batch_norm(
    m: Matcher,
    node: fx.Node,
    value: Value,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    training: Any,
    momentum: Any,
    eps: Any,
) -> Row:
    """A scale and a shift for each column, computed when the parameters are loaded."""
    if training:
        raise refuse(node, "batch norm is in training mode, where rows depend on each other; call eval() first")
    of = (running_mean, running_var, weight, bias)
    if not all(isinstance(v, Leaf) or (v is None and i > 1) for i, v in enumerate(of)):
        raise refuse(node, "batch norm has no running statistics; expected parameters or buffers of the module")
    m.modal_calls = True
    return _normalize(m, node, value, of, float(eps))


def _normalize(m: Matcher, node: fx.Node, value: Value, of: tuple[Leaf | None, ...], eps: float) -> Row:
    row = as_row(node, value)
    if row.folded:
        raise refuse(node, "batch norm stands behind the reduction, where the value has one column")
    _need_dims(m, node, 2)
    parts: list[Source] = [BatchNorm(part, of, eps) for part in ("scale", "shift")]
    return extend(node, row, Step("mul", (parts[0],)), Step("add", (parts[1],)))


def batch_norm_module(m: Matcher, node: fx.Node, value: Value, module: Any, name: str) -> Row:
    """nn.BatchNorm1d in eval mode with running statistics."""
    if module.training:
        raise refuse(
            node, f"{name} is a batch norm in training mode, where rows depend on each other; call eval() first"
        )
    if module.running_mean is None:
        raise refuse(node, f"{name} keeps no running statistics, so that rows depend on each other even in eval mode")
    m.modal.append(name)
    held = tuple(
        m.leaf(f"{name}.{key}") if getattr(module, key) is not None else None
        for key in ("running_mean", "running_var", "weight", "bias")
    )
    return _normalize(m, node, value, held, float(module.eps))


# Reductions.


def reduce(m: Matcher, node: fx.Node, value: Value, kind: str, dim: Any, keepdim: Any, dtype: Any = None) -> Row:
    """A reduction of the last dimension."""
    row = as_row(node, value)
    if dim is None:
        raise refuse(node, f"{kind} without dim reduces the batch too; expected dim=-1")
    if isinstance(dim, (tuple, list)):
        if len(dim) != 1:
            raise refuse(node, f"{kind} reduces the dimensions {tuple(dim)}; expected the last one alone, dim=-1")
        dim = dim[0]
    if row.dropped:
        raise refuse(
            node,
            f"{kind} over dim={dim} of a value whose columns were reduced before without keepdim reduces the batch; "
            "use keepdim=True before",
        )
    _need_last(m, node, dim, 0, kind)
    steps = [Step(kind)] if dtype is None else [_cast(node, dtype), Step(kind)]
    return Row(node, (row,), tuple(steps), folded=True, dropped=not keepdim)


def extreme(m: Matcher, node: fx.Node, value: Value, kind: str, dim: Any, keepdim: Any) -> Value:
    """torch.max and torch.min: with a dim a pair, with a tensor the elementwise one."""
    if isinstance(dim, (Leaf, Row)) or isinstance(value, Leaf):
        return (maximum if kind == "max" else minimum)(m, node, value, dim)
    return Pair(reduce(m, node, value, kind, dim, keepdim))


def _need_dims(m: Matcher, node: fx.Node, dims: int) -> None:
    if m.dims not in (None, dims):
        raise refuse(node, f"it needs an input of {dims} dimensions, and an earlier operator one of {m.dims}")
    m.dims = dims


def _need_last(m: Matcher, node: fx.Node, dim: Any, missing: int, what: str) -> None:
    """``dim`` is the last of a value that has ``missing`` dimensions fewer than the input."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise refuse(node, f"dim is {_describe(dim)}; expected -1 or a number")
    if dim == 0 or dim < -1:
        raise refuse(node, f"{what} acts on dim={dim}; expected the last dimension, dim=-1")
    if dim > 0:
        _need_dims(m, node, dim + 1 + missing)


# Shapes and types.


def same(m: Matcher, node: fx.Node, value: Value, memory_format: Any = None) -> Value:
    """What changes no value."""
    return value if isinstance(value, Input) else as_row(node, value)


def detach(m: Matcher, node: fx.Node, value: Value) -> Value:
    """Nothing: no gradient is computed anyway."""
    return same(m, node, value)


def _cast(node: fx.Node, dtype: Any) -> Step:
    name = dtype if isinstance(dtype, str) else DTYPES.get(dtype)
    if name is None:
        raise refuse(node, f"it casts to {dtype}; expected float32, float64, float16 or bfloat16")
    return Step("cast", dtype=name)


def cast(m: Matcher, node: fx.Node, value: Value, dtype: Any, memory_format: Any = None) -> Value:
    """Of the input, to the type of the weights; of a value, to the type that it is computed in, or at the end."""
    step = _cast(node, dtype)
    if isinstance(value, Input):
        return Input(step.dtype)
    return extend(node, as_row(node, value), step)


def to(m: Matcher, node: fx.Node, value: Value, dtype: Any) -> Value:
    """x.to(dtype) and x.type(dtype)."""
    if not isinstance(dtype, torch.dtype):
        raise refuse(node, f"it moves to {_describe(dtype)}; expected a dtype of torch")
    return cast(m, node, value, dtype)


def unsqueeze(m: Matcher, node: fx.Node, value: Value, dim: Any) -> Row:
    """Gives back the column that a reduction without keepdim dropped."""
    row = as_row(node, value)
    if not row.dropped:
        raise refuse(node, "it adds a dimension; expected that only behind a reduction without keepdim")
    _need_last(m, node, dim, 0, "unsqueeze")
    return Row(node, (row,), (), folded=True, dropped=False)


def squeeze(m: Matcher, node: fx.Node, value: Value, dim: Any) -> Row:
    """Drops the one column of a reduced value."""
    row = as_row(node, value)
    if dim is None:
        raise refuse(node, "squeeze without dim drops the batch too when there is one row; expected dim=-1")
    if not row.folded or row.dropped:
        raise refuse(node, "squeeze is fused only where it drops the one column of a reduced value")
    _need_last(m, node, dim, 0, "squeeze")
    return Row(node, (row,), (), folded=True, dropped=True)


def index(m: Matcher, node: fx.Node, row: Row, key: Any) -> Row:
    """[:, None] and [..., None] behind a reduction without keepdim, [:, 0] and [..., 0] behind one with."""
    if isinstance(key, tuple) and len(key) == 2 and key[0] in (Ellipsis, slice(None)):
        dim = -1 if key[0] is Ellipsis else 1
        if key[1] is None:
            return unsqueeze(m, node, row, dim)
        if key[1] in (0, -1) and row.folded and not row.dropped:
            return squeeze(m, node, row, dim)
    raise refuse(node, f"the index {key!r} takes parts of a value; expected [..., None] or [..., 0] of a reduced one")
