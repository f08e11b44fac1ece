# SPDX-License-Identifier: MIT
"""Modules in the manner of real code: what ``rowfold.torch.fuse`` makes of each is the table of doc/pytorch.md.

python tests/torch_zoo.py    # prints the table
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import rowfold
import rowfold.torch as rt
import torch
import torch.nn.functional as F
from torch import nn

K, N, TOKENS = 8, 12, 5


@dataclass
class Entry:
    """A module of the zoo, and the shape of its input."""

    title: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


ZOO: list[Entry] = []


def zoo(title: str, *shape: int) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Adds a class to the zoo."""

    def add(kind: type[nn.Module]) -> type[nn.Module]:
        ZOO.append(Entry(title, kind, shape or (4, K)))
        return kind

    return add


def entry(title: str, make: Callable[[], nn.Module], *shape: int) -> None:
    """Adds a function that makes a module."""
    ZOO.append(Entry(title, make, shape or (4, K)))


class Headed(nn.Module):
    """What most of them have: a linear layer named head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(K, N)


# Whole chains.


@zoo("log-partition function")
class LogZ(Headed):
    def forward(self, x):
        return torch.logsumexp(self.head(x), dim=-1)


@zoo("energy score with a temperature")
class Energy(Headed):
    temperature = 1.5

    def forward(self, x):
        return -self.temperature * torch.logsumexp(self.head(x) / self.temperature, dim=1)


@zoo("max head")
class MaxHead(Headed):
    def forward(self, x):
        return self.head(x).max(dim=1).values


@zoo("capped logits of a language model", 2, TOKENS, K)
class SoftCapped(Headed):
    cap = 30.0

    def forward(self, hidden_states):
        logits = self.head(hidden_states)
        logits = self.cap * torch.tanh(logits / self.cap)
        return logits.logsumexp(dim=-1)


@zoo("learned temperature, as CLIP has it")
class LearnedTemperature(Headed):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07) / 4))

    def forward(self, x):
        return (self.head(x) * self.logit_scale.exp()).logsumexp(-1)


@zoo("batch norm and activation, pooled")
class NormPooled(Headed):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(N)

    def forward(self, x):
        return F.relu(self.norm(self.head(x))).mean(dim=1, keepdim=True)


@zoo("mish of itself, residual")
class MishGate(Headed):
    def forward(self, x):
        h = self.head(x)
        h = h * F.mish(h)
        return h.sum(-1)


entry("sequence: linear, GELU", lambda: nn.Sequential(nn.Linear(K, N), nn.GELU()))


@zoo("dropout between, in eval mode")
class Dropped(Headed):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(F.silu(self.head(x))).amax(dim=-1)


@zoo("count model: log1p of rates")
class Rates(Headed):
    def forward(self, x):
        return torch.log1p(F.softplus(self.head(x))).sum(dim=-1)


@zoo("root mean square of features")
class RootMeanSquare(Headed):
    def forward(self, x):
        return self.head(x).norm(dim=-1) / math.sqrt(N)


@zoo("leaky relu written out")
class WhereLeaky(Headed):
    def forward(self, x):
        h = self.head(x)
        return torch.where(h > 0, h, 0.1 * h).sum(dim=-1)


@zoo("bound written with where")
class WhereBound(Headed):
    def forward(self, x):
        h = self.head(x)
        return torch.where(h > 1.0, 1.0, h).logsumexp(dim=-1)


@zoo("threshold module")
class Thresholded(Headed):
    def __init__(self):
        super().__init__()
        self.threshold = nn.Threshold(0.1, 0.1)

    def forward(self, x):
        return self.threshold(self.head(x)).mean(-1)


@zoo("scale by the width, from the shape")
class ScaledByWidth(Headed):
    def forward(self, x):
        h = self.head(x)
        return (h / h.shape[-1] ** 0.5).logsumexp(-1)


# Types and shapes around the layer.


@zoo("result in the type of the input")
class TypeOfInput(Headed):
    def forward(self, x):
        return self.head(x).float().logsumexp(-1).to(x.dtype)


@zoo("input in the type of the weight")
class TypeOfWeight(Headed):
    def forward(self, x):
        return self.head(x.to(self.head.weight.dtype)).logsumexp(-1)


@zoo("flattened images", 4, 2, 2, 2)
class Images(Headed):
    def forward(self, x):
        return self.head(x.flatten(1)).logsumexp(1)


@zoo("view(batch, -1)", 4, 2, 4)
class Viewed(Headed):
    def forward(self, x):
        x = x.view(x.size(0), -1)
        return F.relu(self.head(x)).sum(dim=1)


@zoo("logits as (tokens, vocabulary)", 2, TOKENS, K)
class FlatLogits(Headed):
    def forward(self, hidden):
        logits = self.head(hidden)
        return logits.view(-1, logits.size(-1)).logsumexp(dim=1)


@zoo("tokens flattened and restored", 2, TOKENS, K)
class Restored(Headed):
    def forward(self, x):
        b, t, k = x.shape[0], x.shape[1], x.shape[2]
        y = self.head(x.reshape(b * t, k)).logsumexp(-1)
        return y.reshape(b, t)


@zoo("last token's logits", 2, TOKENS, K)
class LastToken(Headed):
    def forward(self, hidden_states):
        return self.head(hidden_states[:, -1]).logsumexp(-1)


@zoo("first token, BERT's pooler with a maximum", 2, TOKENS, K)
class FirstToken(Headed):
    def forward(self, hidden_states):
        return torch.tanh(self.head(hidden_states[:, 0])).amax(-1)


@zoo("last token, taken of the logits", 2, TOKENS, K)
class LastOfLogits(Headed):
    def forward(self, hidden_states):
        return self.head(hidden_states)[:, -1, :].argmax(-1)


@zoo("shifted logits, as a causal loss has them", 2, TOKENS, K)
class ShiftedLogits(Headed):
    def forward(self, hidden):
        logits = self.head(hidden).float()
        return logits[..., :-1, :].contiguous().view(-1, logits.size(-1)).logsumexp(-1)


@zoo("spread of the logits")
class Spread(Headed):
    def forward(self, x):
        return self.head(x).std(dim=-1)


@zoo("shifted tokens, as a causal loss has them", 2, TOKENS, K)
class Shifted(Headed):
    def forward(self, hidden):
        logits = self.head(hidden[..., :-1, :].contiguous())
        return logits.float().logsumexp(-1)


# The result goes on.


@zoo("mean over the batch")
class MeanOverBatch(Headed):
    def forward(self, x):
        return self.head(x).logsumexp(-1).mean()


@zoo("contrastive denominator less its batch mean")
class Centred(Headed):
    def forward(self, x):
        z = self.head(x).logsumexp(-1)
        return z - z.mean(0)


@zoo("energy gate by a sigmoid and a threshold")
class Gate(Headed):
    def forward(self, x):
        energy = self.head(x).logsumexp(-1)
        return torch.sigmoid(energy - 2.0) > 0.5


@zoo("mean of tokens", 2, TOKENS, K)
class MeanOfTokens(Headed):
    def forward(self, x):
        return F.gelu(self.head(x)).amax(dim=-1).mean(dim=1)


@zoo("periodic feature of the maximum")
class Periodic(Headed):
    def forward(self, x):
        return torch.sin(self.head(x).amax(-1))


# Weights that are computed.


@zoo("weight_norm")
class WeightNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(K, N))

    def forward(self, x):
        return self.head(x).logsumexp(-1)


class LowRank(nn.Module):
    """W + s B A, as LoRA has it."""

    def __init__(self, rank=2, scale=0.5):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(rank, K)), nn.Parameter(torch.randn(N, rank))
        self.scale = scale

    def forward(self, w):
        return w + self.scale * (self.b @ self.a)


@zoo("LoRA as a parametrization")
class LoraParametrization(Headed):
    def __init__(self):
        super().__init__()
        nn.utils.parametrize.register_parametrization(self.head, "weight", LowRank())

    def forward(self, x):
        return self.head(x).logsumexp(-1)


@zoo("LoRA merged in the forward")
class LoraMerged(Headed):
    def __init__(self):
        super().__init__()
        self.lora_a, self.lora_b = nn.Parameter(torch.randn(2, K)), nn.Parameter(torch.randn(N, 2))

    def forward(self, x):
        weight = self.head.weight + 0.5 * (self.lora_b @ self.lora_a)
        return F.linear(x, weight, self.head.bias).logsumexp(-1)


@zoo("cosine head with a margin's scale")
class Cosine(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(N, K))

    def forward(self, x):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight))
        return (cosine * 16.0).logsumexp(-1)


@zoo("pruned weights")
class Pruned(Headed):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", (torch.rand(N, K) > 0.5).float())

    def forward(self, x):
        return F.linear(x, self.head.weight * self.mask, self.head.bias).amax(-1)


@zoo("int8 weights, scaled in the forward")
class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("q", torch.randint(-127, 128, (N, K), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(N, 1) / 64)

    def forward(self, x):
        return F.linear(x, self.q.float() * self.scale).logsumexp(-1)


@zoo("part of a vocabulary")
class PartOfVocabulary(Headed):
    def forward(self, x):
        return F.linear(x, self.head.weight[:7], self.head.bias[:7]).logsumexp(-1)


@zoo("tied embedding", 2, TOKENS)
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(N, K)

    def forward(self, tokens):
        x = self.wte(tokens.long())
        return F.linear(x, self.wte.weight).logsumexp(-1)


@zoo("1 - gate of parameters")
class ParameterArithmetic(Headed):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.rand(N))

    def forward(self, x):
        return (self.head(x) * (1 - self.gate)).sum(-1)


# Larger models.


@zoo("layer norm, then the head")
class NormThenHead(Headed):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(K)

    def forward(self, x):
        return self.head(self.norm(x)).logsumexp(-1)


@zoo("RMS norm in bfloat16 style, then the head", 2, TOKENS, K)
class RmsThenHead(Headed):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(K))

    def forward(self, hidden_states):
        kind = hidden_states.dtype
        h = hidden_states.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.head(self.scale * h.to(kind)).logsumexp(-1)


entry(
    "multilayer perceptron",
    lambda: nn.Sequential(nn.Linear(K, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)),
)


@zoo("transformer's feed-forward with a residual", 2, TOKENS, K)
class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(K)
        self.up, self.down = nn.Linear(K, 32), nn.Linear(32, K)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


@zoo("SwiGLU", 2, TOKENS, K)
class SwiGlu(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(K, 16, False), nn.Linear(K, 16, False), nn.Linear(16, K, False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


@zoo("two heads of one trunk")
class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.policy, self.value = nn.Linear(K, 16), nn.Linear(16, N), nn.Linear(16, 1)

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        return self.policy(h).logsumexp(-1), self.value(h)


@zoo("siamese towers with one encoder")
class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(K, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        a, b = self.encoder(x), self.encoder(-x)
        return (a * b).sum(-1)


@zoo("masked language model's head", 2, TOKENS, K)
class MaskedLmHead(nn.Module):
    """As BertLMPredictionHead: a transform, then a decoder over the vocabulary."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm = nn.Linear(K, K), nn.LayerNorm(K)
        self.decoder = nn.Linear(K, N, bias=False)
        self.bias = nn.Parameter(torch.zeros(N))

    def forward(self, hidden_states):
        hidden_states = self.norm(F.gelu(self.dense(hidden_states)))
        return (self.decoder(hidden_states) + self.bias).logsumexp(-1)


@zoo("classification head", 2, TOKENS, K)
class ClassificationHead(nn.Module):
    """As RobertaClassificationHead."""

    def __init__(self):
        super().__init__()
        self.dense, self.dropout, self.out_proj = nn.Linear(K, K), nn.Dropout(0.1), nn.Linear(K, 3)

    def forward(self, features):
        x = self.dropout(features[:, 0, :])
        x = self.dropout(torch.tanh(self.dense(x)))
        return self.out_proj(x)


@zoo("causal model with a dict of results", 2, TOKENS)
class CausalLm(nn.Module):
    """As a *ForCausalLM: embeddings, blocks whose forward asks for options, a head."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(use_cache=False, final_logit_softcapping=30.0)
        self.embed = nn.Embedding(N, K)
        self.layers = nn.ModuleList([FeedForward() for _ in range(2)])
        self.lm_head = nn.Linear(K, N, bias=False)

    def forward(self, input_ids, attention_mask=None, use_cache=None):
        use_cache = use_cache if use_cache is not None else self.config.use_cache
        h = self.embed(input_ids.long())
        if attention_mask is not None:
            h = h * attention_mask[..., None]
        for layer in self.layers:
            h = layer(h)
        logits = self.lm_head(h)
        logits = torch.tanh(logits / self.config.final_logit_softcapping) * self.config.final_logit_softcapping
        return {"log_z": logits.logsumexp(-1), "hidden": h}


@zoo("model whose forward looks at its values", 2, TOKENS, K)
class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.energy = FeedForward(), LogZ()

    def forward(self, x):
        if x.abs().max() > 100:
            x = x / x.abs().max()
        return self.energy(self.block(x))


@zoo("attention by hand", 2, TOKENS, K)
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(K, K) for _ in range(4))

    def forward(self, x):
        weights = (self.q(x) @ self.k(x).transpose(-1, -2) / math.sqrt(K)).softmax(-1)
        return F.relu(self.out(weights @ self.v(x)))


entry(
    "torch's encoder layer and a head",
    lambda: nn.Sequential(nn.TransformerEncoderLayer(K, 2, 16, batch_first=True), nn.Linear(K, N), nn.Softplus()),
    2,
    TOKENS,
    K,
)


@zoo("convolutions and a head", 2, 1, 8, 8)
class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4, N)

    def forward(self, x):
        return F.silu(self.head(self.features(x))).logsumexp(1)


@zoo("mixture of Gaussians: mean, variance, weight heads")
class MixtureHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.scale, self.weight = nn.Linear(K, 4), nn.Linear(K, 4), nn.Linear(K, 4)

    def forward(self, x):
        return self.mean(x), F.softplus(self.scale(x)), self.weight(x).softmax(-1)


@zoo("variational encoder")
class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.mu, self.log_var = nn.Linear(K, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x):
        h = F.leaky_relu(self.hidden(x), 0.2)
        return self.mu(h), self.log_var(h).clamp(-10, 10)


# What stays with PyTorch.


@zoo("softmax")
class Softmax(Headed):
    def forward(self, x):
        return self.head(x).softmax(-1)


entry("sequence: linear, log-softmax", lambda: nn.Sequential(nn.Linear(K, N), nn.LogSoftmax(dim=-1)))


@zoo("cross entropy against the rows' own classes")
class CrossEntropy(Headed):
    def forward(self, x):
        logits = self.head(x)
        return logits.logsumexp(-1) - logits[:, 0]


@zoo("predicted class")
class Predicted(Headed):
    def forward(self, x):
        return self.head(x).argmax(-1)


@zoo("masked columns")
class Masked(Headed):
    def __init__(self):
        super().__init__()
        self.register_buffer("banned", torch.arange(N) < 3)

    def forward(self, x):
        return self.head(x).masked_fill(self.banned, float("-inf")).logsumexp(-1)


@zoo("gated linear unit")
class Glu(Headed):
    def forward(self, x):
        return F.glu(self.head(x), dim=-1)


@zoo("linear layer alone")
class Alone(Headed):
    def forward(self, x):
        return self.head(x)


# The table.

# What release 0.1 fused of these, measured once with its own package; it refused the others, and took no parts.
IN_0_1 = frozenset(
    {
        "log-partition function",
        "energy score with a temperature",
        "max head",
        "capped logits of a language model",
        "learned temperature, as CLIP has it",
        "batch norm and activation, pooled",
        "mish of itself, residual",
        "sequence: linear, GELU",
        "dropout between, in eval mode",
        "linear layer alone",
    }
)


def inputs(one: Entry) -> torch.Tensor:
    """An input of the module; tokens for one that looks them up."""
    torch.manual_seed(0)
    tokens = one.shape == (2, TOKENS)
    return torch.randint(0, N, one.shape).float() if tokens else torch.rand(one.shape) * 2 - 1


def module(one: Entry) -> nn.Module:
    """The module, in eval mode, the same one every time."""
    torch.manual_seed(1)
    return one.make().eval()


@dataclass
class Outcome:
    """What fuse makes of a module: "fused", "partly" or "refused", how, and what it returned."""

    status: str
    how: str
    result: Any


def outcome(one: Entry) -> Outcome:
    """What fuse makes of a module."""
    original = module(one)
    try:
        fused = rt.fuse(original)
    except rowfold.FuseError as error:
        refusal = error
    else:
        rest = fused._rows.partition("left to PyTorch, on the result: ")[2]
        chain = " | ".join(["linear", *(step.op for step in fused._plan.steps)])
        return Outcome("fused", f"`{chain}`" + (f"; by PyTorch: {rest}" if rest else ""), fused)
    try:
        partly = rt.fuse(original, partial=True)
    except rowfold.FuseError:
        why = refusal.reason or str(refusal)
        return Outcome("refused", why, None)
    report = rt.report(partly)
    taken = [f"{name}: `{' | '.join(['linear', *found.steps])}`" for name, _, found, _ in report.taken]
    left = [f"not {name}: {why}" for name, _, why in report.left]
    return Outcome("partly", "; ".join([*taken, *left]), partly)


def table() -> str:
    """The summary and the table of doc/pytorch.md."""
    rows = ["| module | 0.1 | now | how, or why not |", "|---|---|---|---|"]
    count = {"fused": 0, "partly": 0, "refused": 0}
    for one in ZOO:
        found = outcome(one)
        count[found.status] += 1
        before = "fused" if one.title in IN_0_1 else "refused"
        rows.append(f"| {one.title} | {before} | {found.status} | {found.how.replace('|', chr(92) + '|')} |")
    summary = (
        f"Of {len(ZOO)} modules release 0.1 fused {len(IN_0_1)} and refused {len(ZOO) - len(IN_0_1)}; now "
        f"{count['fused']} are fused, {count['partly']} in part, and {count['refused']} are refused."
    )
    return "\n".join([summary, "", *rows]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
