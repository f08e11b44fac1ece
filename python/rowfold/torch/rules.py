# SPDX-License-Identifier: MIT
"""What the rows of spellings.py mean whose meaning depends on what they are applied to.

Here are the linear layer, arithmetic and activations; rules_columns.py has the reductions, rules_shapes.py shapes and
types.

Each function takes the Matcher, the node and the value, then the row's extra word and its arguments; it returns the new
value or raises the error that says why not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx, nn

from .values import (
    BatchNorm,
    Comparison,
    Extent,
    Input,
    Leaf,
    LogSoftmax,
    Loss,
    Outside,
    Pair,
    Param,
    Row,
    Shape,
    Source,
    Step,
    Value,
    refuse,
)

if TYPE_CHECKING:
    from .match import Matcher

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}


SECOND = "it is a second linear layer; a chain has one: fuse with partial=True, which makes an operation of each"
BATCH_SIZE = (
    "it takes a size of the input that is known only when the module runs; divide the result by it outside, or reduce "
    "the result, as y.mean(0) does"
)
# What to do instead of a function or a module that the table lacks.
_INSTEAD = {
    "softmax": "its result is as large as the logits, which is what a fused operation does not store; its largest "
    "value is (h.amax(-1) - h.logsumexp(-1)).exp(), that of one column for each row "
    "h.log_softmax(-1).gather(-1, y).exp()",
    "log_softmax": "its result is as large as the logits, which is what a fused operation does not store; logsumexp, "
    "and one column for each row by gather or nll_loss, are fused",
    "layer_norm": "it looks at whole rows twice; before the linear layer or behind the reduction it is left to PyTorch",
    "masked_fill": "a chain has no mask; to leave columns out, take the rows of the weight that stay: "
    "F.linear(x, W[keep], b[keep])",
    "glu": "it multiplies two halves of the columns; a chain has one current value: as two linear layers, "
    "F.linear(x, W[:n], b[:n]) * F.linear(x, W[n:], b[n:]).sigmoid(), the gate is fused with partial=True",
    "chunk": "it takes parts of a value; take parts of the weight: F.linear(x, W[:n], b[:n])",
    "split": "it takes parts of a value; take parts of the weight: F.linear(x, W[:n], b[:n])",
    "einsum": "write the linear layer as F.linear(x, W, b) or x @ W.t()",
    "baddbmm": "write the linear layer as F.linear(x, W, b) or x @ W.t()",
    "bmm": "write the linear layer as F.linear(x, W, b) or x @ W.t()",
    "transpose": "the columns stay the last dimension; a loss takes them so, F.cross_entropy(h.flatten(0, 1), "
    "y.flatten())",
    "permute": "the columns stay the last dimension; a loss takes them so, F.cross_entropy(h.flatten(0, 1), "
    "y.flatten())",
    "var_mean": "h.var(-1) and h.mean(-1) are, in one pass",
    "std_mean": "h.std(-1) and h.mean(-1) are, in one pass",
    "lazy": "call the model once before, which makes it a Linear",
}
_OTHERWISE = "write it with operators that are, or put it before the linear layer or behind the reduction"
_ALIKE = {"Softmax": "softmax", "LayerNorm": "layer_norm", "GLU": "glu", "LazyLinear": "lazy"}


def no_function(name: str) -> str:
    """Why a function is refused that has no row, and what to do instead."""
    if name == "log_softmax":
        return f"{name} is fused where a column for each row is taken of it; {_INSTEAD[name]}"
    way = _INSTEAD.get(name, _OTHERWISE)
    return f"{name} is not in the table of what rowfold fuses; {way}"


def no_module(name: str, module: nn.Module) -> str:
    """The same of a module."""
    kind = type(module).__qualname__
    if type(module).__module__.startswith(__package__ + "."):
        return f"{name} is fused already, as an operation of its own"
    way = _INSTEAD.get(
        _ALIKE.get(kind, ""), "write it with operators of doc/pytorch.md, or put it behind the reduction"
    )
    if getattr(nn, kind, type(module)) is not type(module):  # one of the same name
        kind = f"{type(module).__module__}.{kind}"
    return f"{name} is a {kind}, which is not in the table of what rowfold fuses; {way}"


class Linear(NamedTuple):
    """The linear layer: W (out_features, in_features) and b."""

    weight: Leaf
    bias: Leaf | None
    input: Input


def as_row(node: fx.Node, value: Value) -> Row:
    """The value, if it is computed from the linear layer."""
    if isinstance(value, Row):
        need_numbers(node, value)
        return value
    if isinstance(value, LogSoftmax):
        raise refuse(node, no_function("log_softmax"))
    if isinstance(value, Loss):
        raise refuse(node, "it takes a loss over the batch, of which a chain computes nothing more")
    if isinstance(value, Input):
        raise refuse(
            node,
            "it acts on the input, before the linear layer; a chain begins with the linear layer: apply it to x before "
            "the call, or fuse with partial=True",
        )
    if isinstance(value, Pair):
        raise refuse(node, "it takes a maximum or minimum with its indices; take the values, [0]")
    if isinstance(value, Comparison):
        raise refuse(node, "it takes a comparison; expected that only as the condition of torch.where")
    if isinstance(value, Extent):
        raise refuse(node, BATCH_SIZE)
    raise refuse(node, f"it is applied to {describe(value)}; expected a value computed from the linear layer")


def need_numbers(node: fx.Node, row: Row) -> None:
    """Raises for what is no number."""
    if row.ends:
        raise refuse(node, "it takes what argmax, argmin or topk gives, of which a chain computes nothing more")


def number(node: fx.Node, value: Any) -> Param:
    """A parameter of an operator: a Python number, or a tensor of the module."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, (Leaf, BatchNorm)):
        return value
    if isinstance(value, Outside):
        raise refuse(node, "it takes a value that the linear layer has no part in, which is left to PyTorch")
    raise refuse(node, f"an argument is {describe(value)}; expected a number, or a parameter or buffer")


def describe(value: Value) -> str:
    """What a value is, for a sentence."""
    if isinstance(value, (Row, Pair, LogSoftmax, Loss)):
        return "a value computed from the linear layer"
    if isinstance(value, Input):
        return "the input"
    if isinstance(value, Leaf):
        return "a parameter or buffer"
    if isinstance(value, Outside):
        return "a value that the linear layer has no part in"
    if isinstance(value, (Extent, Shape)):
        return "a size that is known only when the module runs"
    if isinstance(value, Comparison):
        return "a comparison"
    return repr(value)


def extend(node: fx.Node, row: Row, *steps: Step) -> Row:
    """The row behind these steps."""
    need_numbers(node, row)
    return Row(node, (row,), steps, folded=row.folded, dropped=row.dropped, flat=row.flat)


def join(node: fx.Node, how: str, a: Row, b: Row) -> Row:
    """A value combined with one that was saved on the way to it: ``how`` is add or mul."""
    need_numbers(node, a)
    need_numbers(node, b)
    if a.folded != b.folded:
        raise refuse(
            node,
            "it combines a value with its own reduction, which would take a second pass over the columns; use the "
            "reduction alone",
        )
    if a.dropped != b.dropped:
        raise refuse(
            node, "it combines (batch, 1) with (batch,), which PyTorch broadcasts to (batch, batch); use keepdim=True"
        )
    if a.flat != b.flat:
        raise refuse(node, "it combines a value with one whose leading dimensions were made one; do that to both")
    if a not in b.spine and b not in a.spine:
        raise refuse(
            node,
            f"it combines {a.node.name} and {b.node.name}, neither of which is computed from the other; a chain has "
            "one current value and one that was saved on the way to it; compute one of them from the other, or leave "
            "this to PyTorch with partial=True",
        )
    return Row(node, (a, b), join=how, folded=a.folded, dropped=a.dropped, flat=a.flat)


def need_dims(m: Matcher, node: fx.Node, dims: int) -> None:
    """The input must have so many dimensions."""
    if m.dims not in (None, dims):
        raise refuse(node, f"it needs an input of {dims} dimensions, and an earlier operator one of {m.dims}")
    m.dims = dims


def need_last(m: Matcher, node: fx.Node, row: Row, dim: Any, missing: int, what: str) -> None:
    """``dim`` is the last of a value that has ``missing`` dimensions fewer than the input."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise refuse(node, f"dim is {describe(dim)}; expected -1 or a number")
    if dim == 0 or dim < -1 or (row.flat and dim > 1):
        raise refuse(node, f"{what} acts on dim={dim}; expected the last dimension, dim=-1")
    if dim > 0 and not row.flat:
        need_dims(m, node, dim + 1 + missing)


def cast_step(node: fx.Node, dtype: Any) -> Step:
    """The step that rounds to a type."""
    name = dtype if isinstance(dtype, str) else DTYPES.get(dtype)
    if name is None:
        raise refuse(node, f"it casts to {dtype}; expected float32, float64, float16 or bfloat16")
    return Step("cast", dtype=name)


# The linear layer.


def _linear(m: Matcher, node: fx.Node, value: Value, weight: Any, bias: Any) -> Row:
    if isinstance(value, Row):
        raise refuse(node, SECOND)
    if not isinstance(value, Input):
        raise refuse(node, f"it multiplies {describe(value)}; expected the input")
    if not isinstance(weight, Leaf):
        raise refuse(node, f"its weight is {describe(weight)}; expected a parameter or buffer, or its transpose")
    if bias is not None and not isinstance(bias, Leaf):
        raise refuse(node, f"its bias is {describe(bias)}; expected a parameter or buffer, or None")
    if m.linear is not None:
        raise refuse(node, SECOND)
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
        raise refuse(node, f"it multiplies with {describe(other)}; expected a parameter or buffer, such as W.t()")
    return _linear(m, node, value, Leaf(other.index, (*other.methods, "t")), None)


def addmm(m: Matcher, node: fx.Node, value: Value, mat1: Any, mat2: Any, beta: Any, alpha: Any) -> Row:
    """Adds a bias to x @ V."""
    if (alpha, beta) != (1, 1):
        raise refuse(node, f"alpha is {alpha} and beta {beta}; expected 1")
    row = matmul(m, node, mat1, mat2)
    if not isinstance(value, Leaf):
        raise refuse(node, f"the matrix that is added is {describe(value)}; expected a bias")
    assert m.linear is not None
    m.linear = m.linear._replace(bias=value)
    return row


# Arithmetic.


def add(m: Matcher, node: fx.Node, value: Value, other: Any, alpha: Any = 1) -> Row:
    """Value + alpha * other."""
    if alpha != 1:
        if not isinstance(other, (Row, int, float)):
            raise refuse(node, f"alpha is {alpha} beside {describe(other)}; expected 1")
        other = mul(m, node, other, alpha) if isinstance(other, Row) else other * alpha
    if isinstance(value, Row) and isinstance(other, Row):
        return extend(node, value, Step("mul", (2.0,))) if value is other else join(node, "add", value, other)
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
            return join(node, "add", value, extend(node, other, Step("neg")))
        return extend(node, join(node, "add", extend(node, value, Step("neg")), other), Step("neg"))
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
        return extend(node, value, Step("square")) if value is other else join(node, "mul", value, other)
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
        return join(node, "mul", row, extend(node, row, Step("square")))
    names = _POWERS.get(exponent) if isinstance(exponent, (int, float)) else None
    if names is None:
        raise refuse(node, f"the exponent is {describe(exponent)}; expected one of {sorted([1, 3, *_POWERS])}")
    return extend(node, row, *map(Step, names))


def wave(m: Matcher, node: fx.Node, value: Value, kind: str) -> Row:
    """torch.sin and torch.cos: of a row's result PyTorch's, which has it on a GPU, too."""
    row = as_row(node, value)
    if row.folded:
        raise refuse(node, f"{kind} of a row's result is left to PyTorch")
    return extend(node, row, Step(kind))


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
    return value


def dropout_module(m: Matcher, node: fx.Node, value: Value, module: nn.Module, name: str) -> Value:
    """nn.Dropout in eval mode is the identity."""
    if module.training:
        raise refuse(node, f"{name} is a dropout in training mode, which is random; call eval() first")
    m.modes[name] = False
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
    return _normalize(m, node, value, of, float(eps))


def _normalize(m: Matcher, node: fx.Node, value: Value, of: tuple[Leaf | None, ...], eps: float) -> Row:
    row = as_row(node, value)
    if row.folded:
        raise refuse(node, "batch norm stands behind the reduction, where the value has one column")
    need_dims(m, node, 2)
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
    m.modes[name] = False
    keys = ("running_mean", "running_var", "weight", "bias")
    held = tuple(m.leaf(f"{name}.{key}") if getattr(module, key) is not None else None for key in keys)
    m.taken[name].update({key: None for key, leaf in zip(keys, held) if leaf is None}, eps=module.eps)
    return _normalize(m, node, value, held, float(module.eps))


# Comparisons and choices by them.


def compare(m: Matcher, node: fx.Node, value: Value, sign: str, other: Any) -> Comparison:
    """A value beside a number."""
    if isinstance(value, (int, float)) and isinstance(other, Row):
        value, other, sign = other, value, {">": "<", "<": ">", ">=": "<=", "<=": ">="}[sign]
    row = as_row(node, value)
    if not isinstance(other, (int, float)) or isinstance(other, bool):
        raise refuse(node, f"it compares with {describe(other)}; expected a number")
    return Comparison(row, sign, float(other))


def where(m: Matcher, node: fx.Node, value: Value, input: Any, other: Any) -> Row:  # noqa: A002  (PyTorch's name)
    """Choices that an operator makes, at NaN too: bounds, and leaky_relu."""
    if not isinstance(value, Comparison):
        raise refuse(
            node,
            f"it chooses by {describe(value)}; expected a value compared with a number: to leave columns out, take "
            "the rows of the weight that stay, F.linear(x, W[keep], b[keep])",
        )
    row, sign, bound = value.row, value.sign, value.number
    if other is row and isinstance(input, (int, float)) and float(input) == bound:
        # NaN compares as false, and stays.
        return extend(node, row, Step("clamp", (bound,) if sign[0] == "<" else (float("-inf"), bound)))
    slope = _slope(row, other)
    if input is row and sign[0] == ">" and bound == 0 and slope is not None:
        return extend(node, row, Step("leaky_relu", (slope,)))
    if input is row and isinstance(other, (int, float)) and float(other) == bound:
        raise refuse(
            node,
            f"where(h {sign} {bound:g}, h, {bound:g}) gives {bound:g} where h is NaN, which no operator does; write "
            f"where(h {'<' if sign[0] == '>' else '>'} {bound:g}, {bound:g}, h) or clamp, which keep NaN",
        )
    raise refuse(
        node,
        "it is fused as where(h < c, c, h), where(h > c, c, h) and where(h > 0, h, a * h), with numbers c and a; write "
        "others with clamp, relu, leaky_relu or elu",
    )


def _slope(row: Row, value: Value) -> float | None:
    """a, where the value is a * row."""
    if isinstance(value, Row) and value.operands == (row,) and len(value.steps) == 1 and not value.join:
        (step,) = value.steps
        if step.op == "mul" and isinstance(step.params[0], (int, float)):
            return float(step.params[0])
    return None


def threshold(m: Matcher, node: fx.Node, given: Value, /, threshold: Any, value: Any, inplace: Any = False) -> Row:
    """F.threshold with twice the same number is a bound."""
    row = as_row(node, given)
    if not isinstance(value, (int, float)) or value != threshold:
        raise refuse(node, "it replaces values by another number than the threshold; only equal ones are a bound")
    return extend(node, row, Step("clamp", (float(value),)))
