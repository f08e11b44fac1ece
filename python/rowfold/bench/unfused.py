# SPDX-License-Identifier: MIT
"""A chain operator by operator, as it is written without rowfold: in numpy, PyTorch, and float64 as the reference.

An operator that numpy or PyTorch has under the library's name needs no entry here.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ..model import Model
from ..ops import RESULT, Chain, Op, operators

Array = np.ndarray[Any, Any]
Table = Mapping[str, Callable[..., Any]]

_erfc: Any = np.frompyfunc(math.erfc, 1, 1)


def _numpy_gelu(x: Array) -> Array:
    result: Array = x * (0.5 * _erfc(-x / math.sqrt(2)).astype(x.dtype))
    return result


def _numpy_gelu_tanh(x: Array) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _numpy_sigmoid(x: Array) -> Any:
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


def _numpy_softplus(x: Array, beta: float, threshold: float) -> Any:
    return np.where(x * beta > threshold, x, np.log1p(np.exp(np.minimum(x * beta, threshold))) / beta)


def _numpy_logsumexp(x: Array) -> Any:
    peak = x.max(axis=1, keepdims=True)
    anchor = np.where(np.isfinite(peak), peak, 0).astype(x.dtype)
    return anchor + np.log(np.exp(x - anchor).sum(axis=1, keepdims=True))


def _numpy_entropy(x: Array) -> Any:
    d = x - x.max(axis=1, keepdims=True)
    e = np.exp(d)
    t = e.sum(axis=1, keepdims=True)
    return np.log(t) - np.where(e == 0, 0, d * e).sum(axis=1, keepdims=True) / t


def _numpy_logprob(x: Array, q: Array, ignored: float = -100) -> Any:
    picked = np.take_along_axis(x, np.where(q == ignored, 0, q), 1) - _numpy_logsumexp(x)
    return np.where(q == ignored, 0, picked)


def _numpy_rank(x: Array, q: Array) -> Any:
    z = np.take_along_axis(x, q, 1)
    before = (x > z) | ((x == z) & (np.arange(x.shape[1]) < q))
    return before.sum(axis=1, keepdims=True)


def _numpy_topk(x: Array, k: float) -> tuple[Array, Array]:
    columns = np.argsort(-x, axis=1, kind="stable")[:, : int(k)]
    return np.take_along_axis(x, columns, 1), columns


_NUMPY: Table = {
    "mul": lambda x, a: x * a,
    "sub": lambda x, a: x - a,
    "div": lambda x, a: x / a,
    "neg": lambda x: -x,
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x, slope: np.where(x > 0, x, x * slope),
    "elu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "gelu": _numpy_gelu,
    "gelu(tanh)": _numpy_gelu_tanh,
    "silu": lambda x: x * _numpy_sigmoid(x),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, x.dtype.type(0))),
    "softplus": _numpy_softplus,
    "sigmoid": _numpy_sigmoid,
    "logsigmoid": lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))),
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "hardtanh": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "softcap": lambda x, cap: cap * np.tanh(x / cap),
    "logsumexp": _numpy_logsumexp,
    "entropy": _numpy_entropy,
    "argmax": lambda x: x.argmax(axis=1, keepdims=True).astype(x.dtype),
    "argmin": lambda x: x.argmin(axis=1, keepdims=True).astype(x.dtype),
    "var": lambda x, correction=1.0: np.var(x, axis=1, keepdims=True, ddof=correction),
    "std": lambda x, correction=1.0: np.std(x, axis=1, keepdims=True, ddof=correction),
    "norm": lambda x: np.linalg.norm(x, axis=1, keepdims=True),
}
# Of several columns, or of those that a row asks for: no function of the logits by that name.
_NUMPY_MORE: Table = {
    "pick": lambda x, q: np.take_along_axis(x, q, 1),
    "gather": lambda x, q: np.take_along_axis(x, q, 1),
    "logprob": _numpy_logprob,
    "rank": _numpy_rank,
    "topk": _numpy_topk,
}


def _table(own: Table, packages: tuple[Any, ...], keep: Mapping[str, Any]) -> Table:
    """For each operator of the library its entry, or the first package's function of its name."""
    table = dict(own)
    for row in operators():
        if row.name in own or row.name in _NUMPY_MORE or row.op_class not in ("elementwise", "reduction"):
            continue
        function = next((getattr(package, row.name) for package in packages if hasattr(package, row.name)), None)
        if function is not None:
            table[row.name] = partial(function, **keep) if row.op_class == "reduction" else function
    return table


@cache
def numpy_table() -> Table:
    """The table for numpy's arrays. An operator that is not in it has no counterpart in numpy."""
    return _table(_NUMPY, (np,), {"axis": 1, "keepdims": True})


@cache
def torch_table() -> Table:
    """The table for torch.Tensor, in PyTorch's own functions."""
    torch: Any = importlib.import_module("torch")
    functional = torch.nn.functional

    def number(x: Any, value: Any) -> Any:
        return value if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=x.dtype, device=x.device)

    own: Table = {
        "minimum": lambda x, a: torch.minimum(x, number(x, a)),
        "maximum": lambda x, a: torch.maximum(x, number(x, a)),
        "gelu(tanh)": lambda x: functional.gelu(x, approximate="tanh"),
        "softcap": lambda x, cap: cap * torch.tanh(x / cap),
        "max": lambda x: torch.max(x, dim=1, keepdim=True)[0],
        "min": lambda x: torch.min(x, dim=1, keepdim=True)[0],
        "entropy": lambda x: torch.special.entr(torch.softmax(x, dim=1)).sum(dim=1, keepdim=True),
        "argmax": lambda x: torch.argmax(x, dim=1, keepdim=True).to(x.dtype),
        "argmin": lambda x: torch.argmin(x, dim=1, keepdim=True).to(x.dtype),
        "var": lambda x, correction=1.0: torch.var(x, dim=1, keepdim=True, correction=correction),
        "std": lambda x, correction=1.0: torch.std(x, dim=1, keepdim=True, correction=correction),
        "norm": lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True),
    }
    return _table(own, (torch, functional), {"dim": 1, "keepdim": True})


def numpy_all() -> Table:
    """The table for numpy with what is of several columns, or of those that a row asks for."""
    return {**numpy_table(), **_NUMPY_MORE}


@cache
def torch_all() -> Table:
    """Likewise in PyTorch's functions."""
    torch: Any = importlib.import_module("torch")
    functional = torch.nn.functional
    return {
        **torch_table(),
        "pick": lambda x, q: x.gather(1, q),
        "gather": lambda x, q: x.gather(1, q),
        "logprob": lambda x, q, ignored=-100.0: (
            -functional.cross_entropy(x, q[:, 0], reduction="none", ignore_index=int(ignored))[:, None]
        ),
        "rank": lambda x, q: (x > x.gather(1, q)).sum(dim=1, keepdim=True),
        "topk": lambda x, k: tuple(torch.topk(x, int(k), dim=1)),
    }


def parts(chain: Chain) -> tuple[list[Op], list[list[Op]]]:
    """The operators that all results share, without the linear layer, and those of each result."""
    segments: list[list[Op]] = [[]]
    for op in list(chain)[1:]:
        if op.operator is RESULT:
            segments.append([])
        else:
            segments[-1].append(op)
    if len(segments) == 1:
        return [], segments
    shared = segments[0]
    reduces = (i for i, op in enumerate(shared) if op.operator.op_class == "reduction")
    first = next(reduces, len(shared))
    own = [shared[first:]] if first < len(shared) else []
    return shared[:first], [*own, *segments[1:]]


def _run(steps: Iterable[Op], x: Any, table: Table, given: Mapping[str, Any], saved: Any) -> tuple[Any, Any]:
    for op in steps:
        name = op.operator.name
        if name == "save":
            saved = x
        elif name == "add_saved":
            x = x + saved
        elif name == "mul_saved":
            x = x * saved
        elif op.operator.row_input in ("column", "columns"):
            x = table[name](x, given[op.vector or ""], *op.params[1:])
        else:
            x = table[name](x, *([given[op.vector]] if op.vector else op.params))
    return x, saved


def results(chain: Chain, logits: Any, table: Table, given: Mapping[str, Any]) -> list[Any]:
    """All results of (batch, out_features) logits in turn, operator by operator; those of topk are two.

    ``given``: the vectors by name, and the row inputs by theirs with the #, numbers and columns as (batch, 1) or
    (batch, k).
    """
    shared, branches = parts(chain)
    x, saved = _run(shared, logits, table, given, None)
    found: list[Any] = []
    for branch in branches:
        y, _ = _run(branch, x, table, given, saved)
        found += y if isinstance(y, tuple) else (y,)
    return found


def apply(chain: Chain, logits: Any, table: Table, vectors: Mapping[str, Any]) -> Any:
    """The one result of a chain without row inputs."""
    return results(chain, logits, table, vectors)[0]


def given_of(vectors: Mapping[str, Any], rows: Mapping[str, Any]) -> dict[str, Any]:
    """What ``results`` is given, of vectors and of row inputs as a model takes them."""
    return {**vectors, **{f"#{name}": v.reshape(len(v), -1) for name, v in rows.items()}}


def missing(chain: Chain, table: Table) -> str:
    """The first operator of the chain that a table does not have; empty if it has all."""
    classes = ("elementwise", "reduction")
    names = (op.operator.name for op in chain if op.operator.op_class in classes)
    return next((name for name in names if name not in table), "")


def widened(values: Array) -> Array:
    """The values in float64, uint16 read as bfloat16."""
    if values.dtype == np.uint16:
        values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float64)


def reference(chain: Chain, x: Array, weight: Array, bias: Array, vectors: Mapping[str, Array]) -> Array:
    """The one result of a chain without row inputs, as ``references`` has it: (rows, 1) or (rows, out_features)."""
    return references(chain, x, weight, bias, vectors, {})[0]


def references(
    chain: Chain,
    x: Array,
    weight: Array,
    bias: Array,
    vectors: Mapping[str, Array],
    rows: Mapping[str, Array],
) -> list[Array]:
    """The results in float64 on inputs as they are stored, columns as integers.

    W is widened in blocks, so that the extra memory is small. Of a chain with an operator that numpy does not have it
    is what the library's own plain loops give.
    """
    wide_x = widened(x)
    wide = {name: widened(values) for name, values in vectors.items()}
    if missing(chain, numpy_all()):
        sizes = weight.shape[::-1]
        with Model(chain, *sizes, dtype="float64", simplify="none", backend="reference") as model:
            given: dict[str, Any] = dict(rows)
            return flat(model.load_weights(widened(weight), widened(bias), wide)(wide_x, **given))
    logits = np.empty((x.shape[0], weight.shape[0]))
    step = max(1, 2**22 // max(1, weight.shape[1]))
    with np.errstate(all="ignore"):
        for start in range(0, weight.shape[0], step):
            block = slice(start, start + step)
            logits[:, block] = wide_x @ widened(weight[block]).T
        logits += widened(bias)
        return results(chain, logits, numpy_all(), given_of(wide, rows))


def flat(made: Any) -> list[Any]:
    """What a model's call returns, of topk both arrays one after the other."""
    if not isinstance(made, tuple):
        return [made]
    return [array for one in made for array in flat(one)]


def sampled_rows(batch: int, count: int = 8) -> list[int]:
    """Rows spread over the batch, the first and the last among them. All would take a CPU minutes in float64."""
    return sorted(set(np.linspace(0, batch - 1, min(batch, count)).astype(int).tolist()))


def errors_of(found: Sequence[Any], expected: Sequence[Array]) -> float:
    """The largest error of all results. Columns have none: which of two nearly equal logits is larger is no error."""
    pairs = zip(found, expected)
    return max((largest_error(y, e) for y, e in pairs if e.dtype.kind == "f"), default=0.0)


def largest_error(y: Array, expected: Array) -> float:
    """The largest relative error of a row, of its largest finite element if it has several.

    Where an infinity or NaN is expected the same one is no error, and anything else an infinite one; so is an infinity
    or NaN where a number is expected.
    """
    y = np.asarray(y, np.float64)
    finite = np.isfinite(expected)
    same = (y == expected) | (np.isnan(y) & np.isnan(expected))
    scale = np.abs(np.where(finite, expected, 0.0)).max(axis=1, keepdims=True, initial=0.0)
    with np.errstate(all="ignore"):
        relative = np.abs(y - expected) / np.where(scale > 0, scale, 1.0)
    error = np.where(same, 0.0, np.where(finite & np.isfinite(y), relative, np.inf))
    return float(error.max(initial=0.0))
