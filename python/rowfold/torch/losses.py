# SPDX-License-Identifier: MIT
"""From log-probabilities to the cross entropy of PyTorch: class weights, label smoothing, ignored rows, reductions."""

from __future__ import annotations

import torch


def row_losses(
    logprob: torch.Tensor,
    smooth: tuple[torch.Tensor, torch.Tensor] | None,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignored: int,
    smoothing: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each row, and what it counts in a mean, in float64.

    ``smooth`` is the logsumexp of each row, and the mean over the classes of the logits times ``weight``, in what
    label smoothing spreads: the mean of weight * -(logit - logsumexp).
    """
    counts = target != ignored
    if weight is None:
        scale = counts.double()
    else:
        column = target.long().clamp(0, weight.shape[0] - 1)  # out of range is an ignored row
        scale = torch.where(counts, weight.double()[column], 0.0)
    loss = -logprob.double() * scale
    if smooth is not None:
        logsumexp, mean = (value.double() for value in smooth)
        total = 1.0 if weight is None else weight.double().mean()
        loss = (1 - smoothing) * loss + smoothing * (total * logsumexp - mean)
    return torch.where(counts, loss, 0.0), scale


def reduced(loss: torch.Tensor, scale: torch.Tensor, reduction: str) -> torch.Tensor:
    """``"none"``, ``"sum"`` or ``"mean"`` of what ``row_losses`` returns."""
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / scale.sum()
