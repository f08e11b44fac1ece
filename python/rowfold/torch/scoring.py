# SPDX-License-Identifier: MIT
"""Functions of a linear layer's input, weight and targets that store no logits.

``token_logprobs`` scores tokens; ``linear_cross_entropy`` is PyTorch's loss of that name, forward alone.
"""

from __future__ import annotations

import math
from collections import namedtuple
from functools import cache
from numbers import Real
from typing import Any

import torch
from torch._compile import _disable_dynamo

from ..errors import ArgumentTypeError, InvalidArgumentError
from ..outputs import TopK
from .heads import check_columns, check_gradients, check_layer, head
from .losses import reduced, row_losses
from .sharded import Layer, exchange_of, local, results_of


# Under torch.compile a break of the graph; decorated so that importing this does not import the compiler.
@_disable_dynamo
def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    temperature: float | torch.Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float | torch.Tensor | None = None,
    ignore_index: int = -100,
    entropy: bool = False,
    rank: bool = False,
    topk: int = 0,
    tp_group: Any = None,
    tp_timeout: float | None = None,
) -> Any:
    """The log-probability of each target under softmax(logits), without storing the logits.

    The logits are ``hidden @ weight.T + bias``, times ``logit_scale``, ``softcap * tanh(logits / softcap)``, divided by
    ``temperature``, in this order; all in float32 (float64 for float64 weights), whatever the type of the tensors.

    >>> import torch
    >>> from rowfold.torch import token_logprobs
    >>> hidden, weight = torch.ones(2, 5, 64), torch.zeros(1000, 64)
    >>> scores = token_logprobs(hidden, weight, torch.zeros(2, 5, dtype=torch.int64), entropy=True)
    >>> scores.logprobs.shape, scores.entropy.shape
    (torch.Size([2, 5]), torch.Size([2, 5]))

    What is prepared of the weight is kept as long as the tensor, and made anew when that was changed: pass the same
    tensor, such as a module's parameter, and not a new view of it each time. Autocast has no effect.

    Parameters
    ----------
    hidden
        (..., in_features).
    weight, bias
        (out_features, in_features) and (out_features,), as torch.nn.Linear has them. A GPU reads a weight of 16 bits
        where it is.
    targets
        (...), int64 or int32: a column of the logits for each row.
    temperature
        A number above 0, or a tensor with one for each row.
    softcap
        A number above 0, or None for none.
    logit_scale
        A number, a tensor of one element, or a tensor with a number for each row.
    ignore_index
        A target for which the log-probability is 0.
    entropy
        Whether the entropy of each row is wanted, too, in nats.
    rank
        Whether the target's place among the columns is wanted, the best first: 0 for the greedy choice, -1 for a row
        whose target is ignored.
    topk
        How many of the best columns are wanted with their log-probabilities, at most 64. Besides their own rounding
        these have that of the target's log-probability, or of the row's logsumexp where that is the smaller number or
        the target is ignored: half an ulp, 0.004 of a logsumexp of 1e5.
    tp_group
        A torch.distributed process group over which the columns are split: ``weight`` has this process's rows, in the
        order of the ranks, and ``bias`` what belongs to them. All of its processes make the same calls with the same
        other tensors, and each gets the result over all columns; targets count in the whole layer. A weight that is a
        DTensor with the placement Shard(0) brings its group along. Not with ``rank`` and ``topk``. States go by NCCL
        from GPU to GPU where the group has it, else by gloo. A group of a mesh's columns shares out the columns alone:
        other rows are another group's.
    tp_timeout
        Seconds that a message of another process may take; None for the group's own limit.

    Returns
    -------
    The log-probabilities (...), float32, or float64 for float64 weights; if more was asked for, a named tuple of
    ``logprobs``, ``entropy``, ``rank`` (int64), and ``topk``, a pair of ``values`` and ``indices`` (..., topk).

    Raises
    ------
    InvalidArgumentError for shapes, devices, a target out of range (which names the row; on a GPU the result is NaN),
    and where a gradient would be recorded; ArgumentTypeError for dtypes. With ``tp_group`` every process raises what
    one of them has failed with, and the message names its rank; CommunicationError where one does not answer.

    """
    exchange = exchange_of([("weight", weight)], tp_group, tp_timeout)
    weight, bias = local(weight), local(bias)
    fields: list[str] = []
    counts: torch.Tensor | None = None

    def prepared() -> Layer:
        nonlocal fields, counts
        if exchange is not None and (rank or topk):
            raise InvalidArgumentError(
                f"{'rank' if rank else 'topk'} needs all columns in one process; expected a call without it, or "
                "without tp_group"
            )
        layer, fields, counts = _token_layer(
            hidden, weight, targets, bias, temperature, softcap, logit_scale, ignore_index, entropy, rank, topk
        )
        return layer

    if exchange is not None:
        found, _ = results_of(exchange, prepared)
    else:
        layer = prepared()
        found = head(layer.chain, weight, bias)(hidden, keepdims=False, **layer.rows)
    if not fields[1:]:
        return found
    scores = found._asdict()
    if rank and counts is not None:
        scores["rank"] = torch.where(counts, scores["rank"], -1)
    if topk and counts is not None:
        values, indices = scores["topk"]
        total = _normalizer(scores["logprob"], scores["pick"], scores["logsumexp"], counts)
        scores["topk"] = TopK((values.double() - total[..., None]).to(values.dtype), indices)
    return _named(tuple(fields))(*(scores[field.replace("logprobs", "logprob")] for field in fields))


def _token_layer(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    bias: torch.Tensor | None,
    temperature: float | torch.Tensor,
    softcap: float | None,
    logit_scale: float | torch.Tensor | None,
    ignore_index: int,
    entropy: bool,
    rank: bool,
    topk: int,
) -> tuple[Layer, list[str], torch.Tensor | None]:
    """The checked call of ``token_logprobs``, the fields of its result, and for rank and topk the rows that count."""
    check_layer(hidden, weight, bias, ("hidden", "weight", "bias"))
    lead = tuple(hidden.shape[:-1])
    check_columns(targets, "targets", lead, weight.device)
    rows: dict[str, Any] = {"targets": targets}
    steps = ["linear"]
    if logit_scale is not None:
        steps.append(_operator("mul", "logit_scale", logit_scale, hidden, rows))
    if softcap is not None:
        steps.append(f"softcap({_positive(softcap, 'softcap')!r})")
    if isinstance(temperature, torch.Tensor):
        steps.append(_operator("div", "temperature", temperature, hidden, rows))
    elif _positive(temperature, "temperature") != 1.0:
        # As a row input, so that all temperatures share what is prepared of the weight.
        rows["temperature"] = float(temperature)
        steps.append("div(#temperature)")
    check_gradients(
        "token_logprobs",
        {"hidden": hidden, "weight": weight, "bias": bias}
        | {name: value for name, value in rows.items() if isinstance(value, torch.Tensor)},
    )
    results = [f"logprob(#targets, {_index(ignore_index)})"]
    fields = ["logprobs"]
    counts, column = None, "targets"
    if rank or topk:
        counts = targets != ignore_index
        if not hidden.is_cuda:  # where nothing is refused, one row input serves all
            column = "known"
            rows[column] = torch.where(counts, targets, 0)
    if entropy:
        results.append("entropy")
        fields.append("entropy")
    if rank:
        results.append(f"rank(#{column})")
        fields.append("rank")
    if topk:
        results += [f"topk({_count(topk, weight.shape[0])})", "logsumexp", f"pick(#{column})"]
        fields.append("topk")
    chain = " | ".join([*steps, ", ".join(results)])
    return Layer(chain, hidden, weight, bias, rows, {}), fields, counts


def _normalizer(
    logprob: torch.Tensor, picked: torch.Tensor, logsumexp: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """What is to be subtracted from a row's logits, in float64.

    That is the logsumexp, which is rounded as large as it is. The target's logit less its log-probability is the same,
    and of the two only the second was rounded, as large as that is: the smaller loses less.
    """
    near = counts & (logprob.abs() < logsumexp.abs())
    return torch.where(near, picked.double() - logprob.double(), logsumexp.double())


@cache
def _named(fields: tuple[str, ...]) -> Any:
    return namedtuple("TokenScores", fields)


def _count(value: Any, columns: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"topk is {value!r}; expected an int")
    if not 0 < value <= min(64, columns):
        raise InvalidArgumentError(f"topk is {value}; expected 0 for none, or 1 to {min(64, columns)}")
    return value


def _positive(value: Any, name: str) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ArgumentTypeError(f"{name} is {value!r}; expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise InvalidArgumentError(f"{name} is {value!r}; expected a number above 0")
    return number


def _operator(op: str, name: str, value: Any, hidden: torch.Tensor, rows: dict[str, Any]) -> str:
    """The operator's text: with a number in it, or a row input that goes to ``rows``."""
    if not isinstance(value, torch.Tensor):
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ArgumentTypeError(f"{name} is {value!r}; expected a number or a torch.Tensor")
        return f"{op}({float(value)!r})"
    lead = tuple(hidden.shape[:-1])
    if value.numel() == 1 and value.ndim <= 1:
        value = value.reshape(()).expand(lead)
    if tuple(value.shape) not in (lead, (*lead, 1)):
        raise InvalidArgumentError(
            f"{name} has shape {tuple(value.shape)}; expected {lead}, a number for each row, or one number"
        )
    if not value.is_floating_point():
        raise ArgumentTypeError(f"{name} has dtype {value.dtype}; expected a floating-point type")
    if value.device != hidden.device:
        raise InvalidArgumentError(f"{name} is on {value.device}; expected {hidden.device}, as hidden")
    rows[name] = value.to(torch.float64 if hidden.dtype is torch.float64 else torch.float32)
    return f"{op}(#{name})"


def _index(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"ignore_index is {value!r}; expected an int")
    return value


@_disable_dynamo
def linear_cross_entropy(
    input: torch.Tensor,  # noqa: A002  (PyTorch's name)
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    *,
    linear_bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    tp_group: Any = None,
    tp_timeout: float | None = None,
) -> torch.Tensor:
    """``F.cross_entropy(F.linear(input, linear_weight, linear_bias), target, ...)`` without storing the logits.

    It means what torch.nn.functional.linear_cross_entropy does (PyTorch 2.13) for targets that are class indices. The
    logits are float32 (float64 for float64 tensors), also of 16-bit tensors; the result is rounded once, to the type of
    ``input``. No gradients are computed.

    Parameters
    ----------
    input
        (batch, in_features), or (in_features,).
    linear_weight, linear_bias
        (classes, in_features) and (classes,).
    target
        (batch,), or (): int64 or int32.
    weight
        (classes,): the loss of a row is scaled by the weight of its target.
    reduction
        ``"none"``, ``"sum"``, or ``"mean"``: of the rows that are not ignored, each counting as its target's weight.
    ignore_index
        A target for which a row's loss is 0. None stands for -100.
    label_smoothing
        0 to 1: how much of a target is spread evenly over all classes.
    tp_group, tp_timeout
        As for ``token_logprobs``: ``linear_weight`` and ``linear_bias`` are this process's part; ``weight`` has all
        classes on every process.

    Raises
    ------
    InvalidArgumentError for shapes, devices, a target out of range, and where a gradient would be recorded;
    ArgumentTypeError for dtypes. With ``tp_group`` as ``token_logprobs``.

    """
    exchange = exchange_of([("linear_weight", linear_weight)], tp_group, tp_timeout)
    linear_weight, linear_bias = local(linear_weight), local(linear_bias)
    ignored, recorded = -100, torch.is_grad_enabled()

    def prepared() -> Layer:
        nonlocal ignored
        ignored = -100 if ignore_index is None else _index(ignore_index)
        with torch.set_grad_enabled(recorded):
            return _loss_layer(
                input,
                linear_weight,
                target,
                linear_bias,
                weight,
                reduction,
                ignored,
                label_smoothing,
                exchange is not None,
            )

    with torch.no_grad():
        smoothing = 0.0
        if exchange is not None:
            found, classes = results_of(exchange, prepared)
            if weight is not None and len(weight) != classes:
                raise InvalidArgumentError(
                    f"weight has shape {tuple(weight.shape)}; expected ({classes},), a number for each class of all "
                    "processes"
                )
        else:
            layer = prepared()
            found = head(layer.chain, linear_weight, linear_bias, layer.vectors)(input, keepdims=False, **layer.rows)
        smoothing = float(label_smoothing)
        logprob, *smooth = found if smoothing else (found,)
        pair = (smooth[0], smooth[1]) if smooth else None
        loss, scale = row_losses(logprob, pair, target, weight, ignored, smoothing)
        return reduced(loss, scale, reduction).to(input.dtype)


def _loss_layer(
    input: torch.Tensor,  # noqa: A002
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    reduction: str,
    ignored: int,
    label_smoothing: float,
    split: bool,
) -> Layer:
    """The checked call of ``linear_cross_entropy``; ``split`` says that other processes have other classes."""
    check_layer(input, linear_weight, linear_bias, ("input", "linear_weight", "linear_bias"))
    if input.ndim > 2:
        raise InvalidArgumentError(
            f"input has shape {tuple(input.shape)}; expected (batch, in_features) or (in_features,)"
        )
    lead, classes = tuple(input.shape[:-1]), linear_weight.shape[0]
    if isinstance(target, torch.Tensor) and target.is_floating_point() and tuple(target.shape) == (*lead, classes):
        raise InvalidArgumentError(
            "target holds class probabilities; expected class indices: a sum over all classes weighted anew in each "
            "row is not computed"
        )
    check_columns(target, "target", lead, linear_weight.device)
    if reduction not in ("none", "mean", "sum"):
        raise InvalidArgumentError(f"reduction is {reduction!r}; expected 'none', 'mean' or 'sum'")
    if not isinstance(label_smoothing, (int, float)) or not 0 <= label_smoothing <= 1:
        raise InvalidArgumentError(f"label_smoothing is {label_smoothing!r}; expected a number from 0 to 1")
    if weight is not None:
        _check_class_weights(weight, linear_weight, split)
    check_gradients(
        "linear_cross_entropy",
        {"input": input, "linear_weight": linear_weight, "linear_bias": linear_bias, "weight": weight},
    )
    more = "" if not label_smoothing else ", logsumexp, mean" if weight is None else _WEIGHTED
    vectors = {"class_weight": weight} if weight is not None and label_smoothing else {}
    chain = f"linear | logprob(#target, {ignored}){more}"
    return Layer(chain, input, linear_weight, linear_bias, {"target": target}, vectors)


# What label smoothing needs besides: more results of the same pass.
_WEIGHTED = ", logsumexp, (mul(@class_weight) | mean)"


def _check_class_weights(weight: Any, linear_weight: torch.Tensor, split: bool) -> None:
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
        what = weight.dtype if isinstance(weight, torch.Tensor) else type(weight).__qualname__
        raise ArgumentTypeError(f"weight is {what}; expected a torch.Tensor of a floating-point type")
    if (weight.dtype is torch.float64) != (linear_weight.dtype is torch.float64):
        raise ArgumentTypeError(
            f"weight has dtype {weight.dtype} and linear_weight {linear_weight.dtype}; float64 goes with float64 only"
        )
    if weight.ndim != 1 or (weight.shape != linear_weight.shape[:1] and not split):
        raise InvalidArgumentError(
            f"weight has shape {tuple(weight.shape)}; expected ({linear_weight.shape[0]},), a number for each class"
        )
    if weight.device != linear_weight.device:
        raise InvalidArgumentError(f"weight is on {weight.device}; expected {linear_weight.device}, as linear_weight")
