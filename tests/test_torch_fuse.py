# SPDX-License-Identifier: MIT
"""rowfold.torch.fuse: the original models, random modules in random spellings, what fits, what the table says."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import oracle
import pytest
import rowfold
from cases import make_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import chains
from torch_devices import DEVICES
from torch_modules import DTYPES, MODELS, agree, module_of, rt, torch
from torch_spellings import Writer, is_written, to_stored, to_torch

F, nn = torch.nn.functional, torch.nn
ROOT = Path(__file__).resolve().parents[1]


def stored(module, x, chain, dtype):
    """The oracle's answer for a module with one linear layer, from the stored values."""
    layer = next(m for m in module.modules() if isinstance(m, nn.Linear))
    w, b = (v.detach().cpu().double().numpy() for v in (layer.weight, layer.bias))
    compute = "float64" if dtype == "float64" else "float32"
    return oracle.evaluate(chain, x.cpu().double().numpy(), w, b, dtype=compute)


# The three original models.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_the_original_models(name, dtype, device):
    torch.manual_seed(3)
    kind = getattr(torch, dtype)
    model = MODELS[name](160, 300).to(device, kind).eval()
    x = (torch.rand(37, 160) * 4 - 2).to(device, kind)
    fused = rt.fuse(model)
    with torch.no_grad():
        eager, y = model(x), fused(x)
    assert (y.shape, y.dtype, y.device) == (eager.shape, eager.dtype, eager.device)
    expected = stored(model, x, rowfold.presets()[name], dtype)
    oracle.assert_matches(to_stored(y, dtype), expected, dtype, name)
    if dtype == "float32":
        # Both are within the bound of a float32 program around the exact value, so twice that apart at most.
        both = 2 * oracle.error_bound(expected) + np.spacing(np.abs(expected.value).astype(np.float32))
        assert (np.abs(eager.cpu().double().numpy() - y.cpu().double().numpy()) <= both).all()


@pytest.mark.parametrize("name", MODELS)
def test_the_fused_module_is_a_drop_in(name):
    model = MODELS[name](16, 24).eval()
    fused = rt.fuse(model)
    assert isinstance(fused, nn.Module)
    assert list(fused.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(fused.parameters(), model.parameters()))
    assert [n for n, _ in fused.named_modules()] == [n for n, _ in model.named_modules()]


def test_explain_tells_what_became_of_every_operator(capsys):
    rt.fuse(MODELS["scale_clamp_mish"](16, 24).eval(), explain=True, batch=64)
    text = capsys.readouterr().out
    for part in ("matmul", "linear", "clamp(-10, 10)", "x = torch.clamp(", "mul_saved", "torch_models.py:", "64"):
        assert part in text, part


# Random chains in random spellings.


@st.composite
def random_modules(draw):
    dtype = draw(st.sampled_from(DTYPES + ["float32"] * 3))
    batch, k, n = (draw(st.sampled_from([1, 2, 3, 8, 17, 33])) for _ in range(3))
    chain = draw(chains(n).filter(is_written))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    data = datasets.FINITE[draw(st.sampled_from(sorted(datasets.FINITE)))](rng, batch, k, n)
    vectors = {name: rng.choice([-1.5, -0.5, 0.25, 1.0, 3.0], n) for name in ("v0", "v1") if f"@{name}" in chain}
    case = make_case(chain, data, vectors, dtype, y_dtype=dtype)
    bias = draw(st.booleans())
    writer = Writer(draw, getattr(torch, dtype))
    writer.write(chain, bias)
    tensors = {name: to_torch(v, dtype) for name, v in case.vectors.items()}
    module = writer.module(to_torch(case.w, dtype), to_torch(case.b, dtype) if bias else None, tensors)
    return case if bias else type(case)(**{**case.__dict__, "b": None}), module, writer.source()


class GeluWithoutCancellation(torch.overrides.TorchFunctionMode):
    """PyTorch adds 1 to erf or tanh, which leaves float64 nothing of gelu's tail: erfc and a sigmoid keep it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not F.gelu:
            return function(*args, **(kwargs or {}))
        return self.gelu(*args, **(kwargs or {}))

    @staticmethod
    def gelu(x, approximate="none"):
        if approximate == "none":
            return x * 0.5 * torch.special.erfc(-x / 2**0.5)
        return x * torch.sigmoid(2 * (2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))


@pytest.mark.parametrize("device", DEVICES)
@settings(suppress_health_check=list(HealthCheck))
@given(random_modules())
def test_any_chain_in_any_spelling(device, drawn):
    case, module, source = drawn
    dtype = case.dtype
    module, x = module.to(device), to_torch(case.x, dtype).to(device)
    try:
        y = rt.fuse(module)(x)
    except rowfold.UnsupportedError:
        return
    eager = module(x)
    assert (y.shape, y.dtype) == (eager.shape, eager.dtype), source
    expected = case.expected()
    value = y if y.ndim == 2 else y[:, None]
    held = to_stored(value, dtype) if value.is_floating_point() else value.cpu().numpy()
    oracle.assert_matches(held, expected, dtype, f"{case.chain}\n{source}")
    # The oracle read the chain, and PyTorch the module: they must mean the same.
    with GeluWithoutCancellation():
        exact = module.double()(x.double()).cpu().numpy().reshape(expected.value.shape)
    sure = ~expected.unsure & np.isfinite(expected.value) & np.isfinite(exact)
    near = 4 * oracle.error_bound(expected) + 1e-6 * np.abs(expected.value) + 1e-30
    assert (np.abs(exact - expected.value) <= near)[sure].all(), source


FITTING = {
    "scalars on the left": lambda self, x: (1 - self.linear(x)) * 3 + 2 / 4,
    "a scalar over a value": lambda self, x: 2 / (self.linear(x).abs() + 1),
    "a parameter over a value": lambda self, x: self.s / (self.linear(x).abs() + 1),
    "powers": lambda self, x: (self.linear(x).abs() + 1) ** 3 + 0,
    "an inverse root": lambda self, x: (self.linear(x).abs() + 1) ** -0.5,
    "rsqrt": lambda self, x: torch.rsqrt(self.linear(x).abs() + 1),
    "alpha": lambda self, x: torch.add(self.linear(x), 3, alpha=2).sub(1, alpha=4),
    "rsub": lambda self, x: torch.rsub(self.linear(x), 5),
    "a parameter's transpose": lambda self, x: x @ self.v.t().T,
    "a stored (in, out) matrix": lambda self, x: torch.matmul(x, self.m).logsumexp(-1),
    "a residual": lambda self, x: (lambda h: h + F.silu(h))(self.linear(x)),
    "a residual twice": lambda self, x: (lambda h: h * torch.tanh(h) + h)(self.linear(x)),
    "a difference": lambda self, x: (lambda h: h - torch.tanh(h))(self.linear(x)),
    "a difference the other way": lambda self, x: (lambda h: torch.tanh(h) - h)(self.linear(x)),
    "relu6": lambda self, x: F.relu6(self.linear(x) * 10),
    "selu": lambda self, x: F.selu(self.linear(x)),
    "prelu": lambda self, x: F.prelu(self.linear(x), self.p1),
    "tensor bounds": lambda self, x: torch.clamp(self.linear(x), min=-self.s, max=self.r),
    "an augmented sum": lambda self, x: _augmented(self.linear(x)),
    "a method in place": lambda self, x: self.linear(x).mul_(2).relu_(),
    "without keepdim": lambda self, x: self.linear(x).sum(dim=-1),
    "squeezed": lambda self, x: self.linear(x).amax(1, keepdim=True).squeeze(1) * 2,
    "indexed": lambda self, x: self.linear(x).mean(1, keepdim=True)[:, 0],
    "unsqueezed and reduced again": lambda self, x: self.linear(x).sum(1).unsqueeze(1).mean(dim=1),
    "a parameter's function": lambda self, x: self.linear(x) * self.r.exp(),
    "a cast at the end": lambda self, x: self.linear(x).sum(1, keepdim=True).double(),
    "casts that change nothing": lambda self, x: self.linear(x.float()).float().to(torch.float32),
    "a dtype for the sum": lambda self, x: self.linear(x).sum(1, dtype=torch.float32),
    "a function's default": lambda self, x, flag=False, other=None: self.linear(x) if flag else -self.linear(x),
    "constants": lambda self, x: self.linear(x) * torch.tensor(2.0) + torch.ones(6) * 3,
    "a tensor attribute": lambda self, x: self.linear(x) * self.plain,
    "a sum with a product that is read again": lambda self, x: (lambda h: (h + self.r) * h)(
        F.linear(x, self.linear.weight)
    ),
    "a product and one number": lambda self, x: F.linear(x, self.linear.weight) + self.p1,
    "log1p": lambda self, x: torch.log1p(self.linear(x).abs()),
    "a bound from above, by where": lambda self, x: (lambda h: torch.where(h > 0.5, 0.5, h))(self.linear(x)),
    "a bound from below, by where": lambda self, x: (lambda h: torch.where(h <= 0.5, 0.5, h))(self.linear(x)),
    "a bound, the number on the left": lambda self, x: (lambda h: torch.where(0.5 < h, 0.5, h))(self.linear(x)),
    "leaky relu, by where": lambda self, x: (lambda h: torch.where(h >= 0, h, h * 0.2))(self.linear(x)),
    "a threshold": lambda self, x: F.threshold(self.linear(x), 0.1, 0.1),
    "norms": lambda self, x: self.linear(x).norm(dim=-1),
    "norm 1": lambda self, x: self.linear(x).norm(1, -1, keepdim=True),
    "the largest magnitude": lambda self, x: torch.linalg.vector_norm(self.linear(x), float("inf"), dim=-1),
    "the weight's type": lambda self, x: self.linear(x.to(self.linear.weight.dtype)),
    "the input's type": lambda self, x: self.linear(x).float().sum(-1).to(x.dtype),
    "the type of another": lambda self, x: self.linear(x).type_as(x),
    "the input's device": lambda self, x: self.linear(x.to(self.s.device)).to(x.device),
    "sizes of the weight": lambda self, x: (lambda h: h / h.shape[-1] + h.size(-1) ** 0.5)(self.linear(x)),
    "the shape it has": lambda self, x: (lambda h: h.view(h.size(0), h.size(1)))(self.linear(x)).sum(1),
    "the same shape": lambda self, x: (lambda h: h.reshape(h.shape))(self.linear(x)).sum(1),
    "a view of all": lambda self, x: self.linear(x).view(-1, 6).logsumexp(1),
    "parameters together": lambda self, x: self.linear(x) * (self.r * self.s),
    "a number less a parameter": lambda self, x: self.linear(x) * (1 - self.s),
    "part of the weight": lambda self, x: F.linear(x, self.linear.weight[:4], self.linear.bias[:4]).sum(-1),
    "a weight that is computed": lambda self, x: F.linear(x, F.normalize(self.linear.weight), self.linear.bias * 2),
    "rows of the input": lambda self, x: self.linear(x[1:]).logsumexp(-1),
    "the last row": lambda self, x: self.linear(x[-1]).logsumexp(-1),
    "a batch mean": lambda self, x: self.linear(x).logsumexp(-1).mean(),
    "waves of each logit": lambda self, x: (torch.sin(self.linear(x)) + self.r).cos_().logsumexp(-1),
    "random features of a kernel": lambda self, x: torch.cos(self.linear(x)) * 0.5,
    "sines of the result": lambda self, x: torch.sin(self.linear(x).sum(-1)) + torch.cos(x[:, 0]),
    "a bare squeeze": lambda self, x: self.linear(x).sum(1, True).squeeze(),
    "a broadcast of results": lambda self, x: (lambda h: h + h.squeeze(1))(self.linear(x).sum(1, keepdim=True)),
    "the batch's size": lambda self, x: self.linear(x).sum(1) / x.shape[0],
    "a vector behind the reduction": lambda self, x: self.linear(x).sum(1, True) * self.r,
    "a row vector": lambda self, x: self.linear(x) + self.row,
}


def _augmented(h):
    h += 1
    h *= 2
    h -= 3
    h /= 4
    return h


@pytest.mark.parametrize("name", FITTING)
def test_spellings_that_fit(name):
    torch.manual_seed(1)
    tensors = {"s": torch.tensor(1.5), "r": torch.linspace(0.5, 2, 6), "p1": torch.tensor([0.2])}
    tensors |= {"v": torch.randn(8, 5), "m": torch.randn(8, 5), "row": torch.randn(1, 6)}
    module = module_of(FITTING[name], **tensors).eval()
    module.plain = torch.rand(6)  # neither a parameter nor a buffer
    agree(module)


def test_batch_norm_and_dropout_fold_in_eval_mode():
    torch.manual_seed(2)
    norm = nn.BatchNorm1d(6)
    module = module_of(lambda self, x: self.drop(torch.relu(self.norm(self.linear(x)))).sum(1), norm=norm)
    module.drop = nn.Dropout(0.5)
    for _ in range(5):
        module(torch.randn(32, 8))
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
    fused = agree(module.eval())
    with pytest.raises(rowfold.FuseError, match="what (drop|norm) does depends on its mode, and it was fused in eval"):
        fused.train()
    module.train()
    with pytest.raises(rowfold.FuseError, match="norm was put in training mode"), torch.no_grad():
        fused(torch.randn(3, 8))
    module.eval()
    norm.running_mean.add_(1)
    with torch.no_grad():
        x = torch.randn(3, 8)
        torch.testing.assert_close(fused(x), module(x), rtol=1e-5, atol=1e-5)


def test_a_function_is_fused_too():
    w, b = torch.randn(6, 8), nn.Parameter(torch.randn(6))
    fused = rt.fuse(lambda x: F.linear(x, w, b).logsumexp(-1, keepdim=True))
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), F.linear(x, w, b).logsumexp(-1, keepdim=True))


def test_tracing_leaves_the_module_as_it_was():
    table = torch.randn(6)
    module = module_of(lambda self, x: self.linear(x) * table)
    before = set(module.__dict__), list(module.state_dict())
    agree(module)
    assert (set(module.__dict__), list(module.state_dict())) == before


def test_a_sequential_is_fused_with_its_names():
    module = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Identity())
    fused = agree(module)
    assert list(fused.state_dict()) == ["0.weight", "0.bias"]
    assert fused.chain == "linear(8, 6) | gelu"


# What is written.


def test_every_name_of_the_table_is_pytorch_s():
    from rowfold.torch import spellings

    for row in spellings.SPELLINGS:
        for name in row.names.split():
            spaces = (torch, F, torch.special, torch.linalg)
            known = hasattr(torch.Tensor, name) or any(hasattr(s, name) for s in spaces)
            assert known, name
