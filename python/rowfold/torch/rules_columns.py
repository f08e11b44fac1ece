# SPDX-License-Identifier: MIT
"""The rows of spellings.py that fold columns, or ask for some of them; called as those of rules.py are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from .rules import as_row, cast_step, describe, extend, maximum, minimum, need_dims, need_last
from .values import Leaf, LogSoftmax, Loss, Outside, Pair, Row, Step, Value, refuse

if TYPE_CHECKING:
    from .match import Matcher


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
    need_last(m, node, row, dim, 0, kind)
    steps = [Step(kind)] if dtype is None else [cast_step(node, dtype), Step(kind)]
    return Row(node, (row,), tuple(steps), folded=True, dropped=not keepdim, flat=row.flat)


def variance(
    m: Matcher, node: fx.Node, value: Value, kind: str, dim: Any, unbiased: Any, keepdim: Any, correction: Any
) -> Row:
    """torch.var and torch.std in both forms: unbiased, or what is taken from the number of columns."""
    row = as_row(node, value)
    if row.folded:
        raise refuse(node, f"{kind} of a reduced value is one of a single column")
    if unbiased is not None:
        if correction is not None or not isinstance(unbiased, bool):
            raise refuse(node, f"unbiased is {describe(unbiased)} beside correction; expected a bool alone")
        correction = int(unbiased)
    if correction is not None and (not isinstance(correction, (int, float)) or isinstance(correction, bool)):
        raise refuse(node, f"correction is {describe(correction)}; expected a number")
    folded = reduce(m, node, value, kind, dim, keepdim)
    folded.steps = (Step(kind, (1.0 if correction is None else float(correction),)),)
    return folded


def norm(m: Matcher, node: fx.Node, value: Value, p: Any, dim: Any, keepdim: Any, dtype: Any = None) -> Row:
    """The vector norm of each row, for p of 1, 2 and infinity."""
    row = as_row(node, value)
    known = {1: ("abs", "sum"), 2: ("square", "sum", "sqrt"), float("inf"): ("abs", "max")}
    names = known.get({"fro": 2, None: 2}.get(p, p) if not isinstance(p, (Leaf, Row)) else 0)
    if names is None or dtype is not None:
        raise refuse(node, f"the order is {describe(p)}; expected 1, 2 or inf, and no dtype")
    folded = reduce(m, node, extend(node, row, Step(names[0])), names[1], dim, keepdim)
    return extend(node, folded, *map(Step, names[2:]))


def extreme(m: Matcher, node: fx.Node, value: Value, kind: str, dim: Any, keepdim: Any) -> Value:
    """torch.max and torch.min: with a dim a pair, with a tensor the elementwise one."""
    if isinstance(dim, (Leaf, Row)) or isinstance(value, Leaf):
        return (maximum if kind == "max" else minimum)(m, node, value, dim)
    values = reduce(m, node, value, kind, dim, keepdim)
    indices = None if as_row(node, value).folded else best(m, node, value, f"arg{kind}", dim, keepdim)
    return Pair(values, indices, kind)


def best(m: Matcher, node: fx.Node, value: Value, kind: str, dim: Any, keepdim: Any) -> Row:
    """The column of the largest or smallest value."""
    if as_row(node, value).folded:
        raise refuse(node, f"{kind} of a reduced value names no column")
    found = reduce(m, node, value, kind, dim, keepdim)
    found.ends = True
    return found


def topk(m: Matcher, node: fx.Node, value: Value, k: Any, dim: Any, largest: Any, sorted: Any) -> Pair:  # noqa: A002
    """The largest columns of each row, and which they are."""
    row = as_row(node, value)
    if row.folded:
        raise refuse(node, "topk of a reduced value takes parts of the batch")
    if not isinstance(k, int):
        raise refuse(node, f"k is {describe(k)}; expected a number")
    most = min(64, m.weight_shape()[0])
    if not 0 < k <= most:
        raise refuse(node, f"k is {k}; expected 1 to {most}")
    if not largest:
        raise refuse(node, "it takes the smallest; expected largest=True, of the negated value")
    need_last(m, node, row, -1 if dim is None else dim, 0, "topk")

    def part(number: int) -> Row:
        steps = (Step("topk", (float(k),)),)
        return Row(node, (row,), steps, folded=True, flat=row.flat, ends=True, part=number)

    return Pair(part(0), part(1), "topk")


_NOT_IGNORED = -(2.0**53)  # no column that anyone names


def log_softmax(m: Matcher, node: fx.Node, value: Value, dim: Any, _stacklevel: Any = 3, dtype: Any = None) -> Value:
    """Something of which a column for each row may be asked for."""
    row = as_row(node, value)
    if dim is None:
        raise refuse(node, "log_softmax without dim acts on a dimension that depends on the input; expected dim=-1")
    if row.folded:
        raise refuse(node, "log_softmax of a reduced value acts on the batch")
    need_last(m, node, row, dim, 0, "log_softmax")
    return LogSoftmax(row if dtype is None else extend(node, row, cast_step(node, dtype)))


def gather(m: Matcher, node: fx.Node, value: Value, dim: Any, index: Any, sparse_grad: Any = False) -> Row:
    """One column for each row, which a tensor from outside names."""
    row = value.row if isinstance(value, LogSoftmax) else as_row(node, value)
    if row.folded:
        raise refuse(node, "it takes parts of a reduced value")
    need_last(m, node, row, dim, 0, "gather")
    column = m.column(_columns(node, index), True, row.flat)
    step = Step("logprob", (column, _NOT_IGNORED)) if isinstance(value, LogSoftmax) else Step("pick", (column,))
    return Row(node, (row,), (step,), folded=True, flat=row.flat)


def take(m: Matcher, node: fx.Node, value: Value, indices: Any, dim: Any) -> Row:
    """torch.take_along_dim."""
    if dim is None:
        raise refuse(node, "take_along_dim without dim takes parts of the batch too; expected dim=-1")
    return gather(m, node, value, dim, indices)


def _columns(node: fx.Node, value: Value) -> Outside:
    if not isinstance(value, Outside):
        raise refuse(node, f"the columns are {describe(value)}; expected a tensor that the forward is given")
    return value


def cross_entropy(
    m: Matcher,
    node: fx.Node,
    value: Value,
    target: Any,
    weight: Any,
    size_average: Any,
    ignore_index: Any,
    reduce: Any,  # noqa: A002  (PyTorch's name)
    reduction: Any,
    label_smoothing: Any,
) -> Value:
    """Of class indices (batch,), for values (batch, columns)."""
    row = as_row(node, value)
    if row.folded:
        raise refuse(node, "it takes classes of a reduced value")
    if size_average is not None or reduce is not None:
        raise refuse(node, "it has size_average or reduce, which are deprecated; expected reduction")
    if reduction not in ("none", "mean", "sum"):
        raise refuse(node, f"reduction is {reduction!r}; expected 'none', 'mean' or 'sum'")
    if weight is not None and not isinstance(weight, Leaf):
        raise refuse(node, f"weight is {describe(weight)}; expected a parameter or buffer")
    if not row.flat:
        need_dims(m, node, 2)
    column = m.column(_columns(node, target), False, row.flat)

    def folded(source: Row, *steps: Step) -> Row:
        return Row(node, (source,), steps, folded=True, dropped=True, flat=row.flat)

    logprob = folded(row, Step("logprob", (column, float(ignore_index))))
    if reduction == "none" and weight is None and not label_smoothing:
        return folded(logprob, Step("neg"))
    rows = [logprob]
    if label_smoothing:
        scaled = row if weight is None else extend(node, row, Step("mul", (weight,)))
        rows += [folded(row, Step("logsumexp")), folded(scaled, Step("mean"))]
    return Loss(tuple(rows), column, reduction, int(ignore_index), float(label_smoothing), weight)


def nll_loss(
    m: Matcher,
    node: fx.Node,
    value: Value,
    target: Any,
    weight: Any,
    size_average: Any,
    ignore_index: Any,
    reduce: Any,  # noqa: A002  (PyTorch's name)
    reduction: Any,
) -> Value:
    """The same of values that are log-probabilities already."""
    if not isinstance(value, LogSoftmax):
        as_row(node, value)
        raise refuse(node, "it takes what is no log_softmax; expected F.log_softmax before, or cross_entropy")
    return cross_entropy(m, node, value.row, target, weight, size_average, ignore_index, reduce, reduction, 0.0)
