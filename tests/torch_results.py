# SPDX-License-Identifier: MIT
"""Forwards with several results, indices and a column for each row: some in the manner of real code, some random."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import strategies as st
from torch import nn

F = nn.functional
K, N = 8, 13


def scored(self, x, ids):
    """The log-probability of a token for each row, with its greedy choice."""
    h = self.linear(x)
    logp = torch.log_softmax(h, dim=-1)
    return torch.gather(logp, -1, ids.unsqueeze(-1)).squeeze(-1), h.argmax(dim=-1) == ids


def nothing():
    """No attributes."""
    return {}


def weights():
    """Of classes."""
    return {"w": torch.linspace(0.5, 2, N)}


# Forward; chain; whether it takes targets, or masked ones; leading dimensions; attributes.
FORWARDS = {
    "argmax": (lambda self, x: self.linear(x).argmax(-1), "argmax", "", (2, 5), nothing),
    "argmin with its dimension": (
        lambda self, x: torch.argmin(self.linear(x), dim=1, keepdim=True),
        "argmin",
        "",
        (5,),
        nothing,
    ),
    "index of a maximum": (lambda self, x: self.linear(x).max(-1)[1], "argmax", "", (5,), nothing),
    "pair of a maximum": (lambda self, x: torch.max(self.linear(x), -1), "max, argmax", "", (5,), nothing),
    "pair of a minimum": (
        lambda self, x: self.linear(x).min(dim=1, keepdim=True),
        "min, argmin",
        "",
        (5,),
        nothing,
    ),
    "the largest few": (lambda self, x: torch.topk(self.linear(x), 3), "topk(3)", "", (2, 5), nothing),
    "values of the largest few": (lambda self, x: self.linear(x).topk(k=2, dim=-1)[0], "topk(2)", "", (5,), nothing),
    "columns of the largest few": (
        lambda self, x: self.linear(x).topk(4, dim=1, sorted=True).indices,
        "topk(4)",
        "",
        (5,),
        nothing,
    ),
    "mixture of the best experts": (
        lambda self, x: (lambda t: (torch.softmax(t.values, -1), t.indices))(self.linear(x).topk(2)),
        "topk(2)",
        "",
        (5,),
        nothing,
    ),
    "pick": (lambda self, x, y: self.linear(x).gather(1, y[:, None]), "pick(#column0)", "any", (5,), nothing),
    "take": (
        lambda self, x, y: torch.take_along_dim(self.linear(x), y.unsqueeze(-1), dim=-1),
        "pick(#column0)",
        "any",
        (2, 5),
        nothing,
    ),
    "loss of each row": (
        lambda self, x, y: F.cross_entropy(self.linear(x), y, reduction="none"),
        "logprob(#column0, -100) | neg",
        "masked",
        (7,),
        nothing,
    ),
    "mean loss": (
        lambda self, x, y: F.cross_entropy(self.linear(x), y),
        "logprob(#column0, -100)",
        "masked",
        (7,),
        nothing,
    ),
    "sum of losses, another number ignored": (
        lambda self, x, y: F.cross_entropy(self.linear(x), y, reduction="sum", ignore_index=3),
        "logprob(#column0, 3)",
        "any",
        (40,),
        nothing,
    ),
    "module of a loss": (
        lambda self, x, y: self.loss(self.linear(x), y),
        "logprob(#column0, -100)",
        "masked",
        (7,),
        lambda: {"loss": nn.CrossEntropyLoss()},
    ),
    "smooth targets": (
        lambda self, x, y: F.cross_entropy(self.linear(x), y, label_smoothing=0.2),
        "logprob(#column0, -100), logsumexp, mean",
        "masked",
        (7,),
        nothing,
    ),
    "weights of classes": (
        lambda self, x, y: F.cross_entropy(self.linear(x), y, self.w),
        "logprob(#column0, -100)",
        "masked",
        (7,),
        weights,
    ),
    "weights of classes, smooth targets, each row": (
        lambda self, x, y: F.cross_entropy(self.linear(x), y, weight=self.w, label_smoothing=0.2, reduction="none"),
        "logprob(#column0, -100), logsumexp, (mul(@w) | mean)",
        "masked",
        (7,),
        weights,
    ),
    "module of a loss with weights": (
        lambda self, x, y: self.loss(self.linear(x), y),
        "logprob(#column0, -100), logsumexp, (mul(@loss.weight) | mean)",
        "masked",
        (7,),
        lambda: {"loss": nn.CrossEntropyLoss(torch.linspace(0.5, 2, N), label_smoothing=0.1)},
    ),
    "nll_loss of a log_softmax": (
        lambda self, x, y: F.nll_loss(F.log_softmax(self.linear(x), dim=1), y),
        "logprob(#column0, -100)",
        "masked",
        (7,),
        nothing,
    ),
    "modules of log_softmax and nll_loss": (
        lambda self, x, y: self.loss(self.soft(self.linear(x)), y),
        "logprob(#column0, -100)",
        "masked",
        (7,),
        lambda: {"soft": nn.LogSoftmax(dim=-1), "loss": nn.NLLLoss(reduction="sum")},
    ),
    "logits as (tokens, vocabulary)": (
        lambda self, x, y: F.cross_entropy(self.linear(x).view(-1, N), y.view(-1)),
        "logprob(#column0, -100)",
        "masked",
        (3, 7),
        nothing,
    ),
    "tokens flattened, each loss": (
        lambda self, x, y: F.cross_entropy(self.linear(x).flatten(0, 1), y.flatten(), reduction="none").view(y.shape),
        "logprob(#column0, -100) | neg",
        "masked",
        (3, 7),
        nothing,
    ),
    "log-probabilities and greedy choices": (
        scored,
        "logprob(#column0, -9007199254740992), argmax",
        "any",
        (2, 5),
        nothing,
    ),
    "a loss and its greedy choice": (
        lambda self, x, y: (lambda h: (F.cross_entropy(h, y), h.argmax(-1)))(self.linear(x)),
        "logprob(#column0, -100), argmax",
        "masked",
        (7,),
        nothing,
    ),
    "logsumexp beside a bound": (
        lambda self, x: (lambda h: {"lse": h.logsumexp(-1, keepdim=True), "top": h.amax(-1)})(self.linear(x) * 2),
        "mul(2) | logsumexp, max",
        "",
        (2, 3, 5),
        nothing,
    ),
}

TRUNKS = ["h", "h * 1.5", "torch.tanh(h / 5) * 5", "F.gelu(h)", "h + self.shift", "F.relu(h) - 0.5"]
RESULTS = [
    "h.logsumexp(-1)",
    "h.sum(-1, keepdim=True)",
    "h.mean(dim=-1)",
    "h.argmax(-1)",
    "h.argmin(-1, keepdim=True)",
    "h.max(-1)",
    "h.min(-1).indices",
    "h.abs().amax(-1)",
    "h.square().mean(-1).sqrt()",
    "torch.exp(h.logsumexp(-1) - 3)",
    "h.norm(dim=-1)",
    "h.topk(3)",
    "h.view(-1, 13).topk(5).values.sum(-1)",
    "h.gather(-1, y.unsqueeze(-1))",
    "h.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)",
    "F.cross_entropy(h.view(-1, 13), y.view(-1), reduction='none')",
    "F.cross_entropy(h.view(-1, 13), y.view(-1), label_smoothing=0.1)",
    "F.nll_loss(F.log_softmax(h.view(-1, 13), -1), y.view(-1), reduction='sum')",
]


@st.composite
def written(draw):
    """A forward of a trunk and some results, and what to call it with."""
    chosen = draw(st.lists(st.sampled_from(RESULTS), min_size=1, max_size=5))
    if not any("y" in one for one in chosen):
        chosen.append("h.logsumexp(-1) + (y * 0)")
    structure = draw(st.sampled_from(["({},)", "[{}]", "{{'a': ({},)}}"]))
    trunk = draw(st.sampled_from(TRUNKS))
    if "relu" in trunk:  # of equal columns PyTorch's topk takes any
        chosen = ["h.topk(3).values" if one == "h.topk(3)" else one for one in chosen]
    lines = ["def forward(self, x, y):", "    h = self.linear(x)", f"    h = {trunk}"]
    lines += [f"    return {structure.format(', '.join(chosen))}"]
    scope = {"torch": torch, "F": F}
    exec(compile("\n".join(lines), "<a random forward>", "exec"), scope)
    lead = draw(st.sampled_from([(4,), (2, 3)]))
    g = torch.Generator().manual_seed(draw(st.integers(0, 50)))
    x, y = torch.randn(*lead, K, generator=g), torch.randint(0, N, lead, generator=g)
    return SimpleNamespace(forward=scope["forward"], attributes={"shift": torch.linspace(-1, 1, N)}), (x, y)
