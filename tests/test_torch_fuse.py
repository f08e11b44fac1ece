"""rowfold.torch.fuse: random modules in random spellings, the original models, changes, refusals."""

from __future__ import annotations

import copy
import importlib.util
import os
import pickle
import subprocess
import sys
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

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not hasattr(torch.library, "custom_op"):
    pytest.skip("PyTorch is older than 2.4", allow_module_level=True)

import rowfold.torch as rt  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_spellings import Writer, to_stored, to_torch  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
DTYPES = ["float32", "float64", "float16", "bfloat16"]
DEVICES = ["cpu"]
if torch.cuda.is_available() and any(b.name == "cuda" and b.available for b in rowfold.backends()):
    DEVICES.append("cuda")


def example_models():
    spec = importlib.util.spec_from_file_location("torch_models", ROOT / "examples" / "torch_models.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import would, for pickle
    spec.loader.exec_module(module)
    return module.MODELS


MODELS = example_models()


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
    chain = draw(chains(n))
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
    oracle.assert_matches(to_stored(value, dtype), expected, dtype, f"{case.chain}\n{source}")
    # The oracle read the chain, and PyTorch the module: they must mean the same.
    # Where PyTorch's formulas cancel (gelu's tail), how far its float32 is off shows where its float64 may be too.
    exact, plain = (
        module.to(kind)(x.to(kind)).double().cpu().numpy().reshape(expected.value.shape)
        for kind in (torch.float64, torch.float32)
    )
    sure = ~expected.unsure & np.isfinite(expected.value) & np.isfinite(exact) & np.isfinite(plain)
    near = 4 * oracle.error_bound(expected) + 1e-6 * np.abs(expected.value) + np.abs(exact - plain) + 1e-30
    assert (np.abs(exact - expected.value) <= near)[sure].all(), source


def module_of(forward, k=8, n=6, **attributes):
    """A module with `self.linear` and what else is given, whose forward is the function."""

    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(k, n)
            for name, value in attributes.items():
                if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                    self.register_buffer(name, value)
                else:
                    setattr(self, name, value)

    Made.forward = forward
    return Made()


def agree(module, x=None, **keywords):
    """The fused module, after checking that it gives what eager gives; K = 8 makes float32 sums nearly exact."""
    x = torch.linspace(-2, 2, 3 * 8).reshape(3, 8) if x is None else x
    fused = rt.fuse(module, **keywords)
    with torch.no_grad():
        expected, y = module(x), fused(x)
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    return fused


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
    with pytest.raises(rowfold.FuseError, match="has dropout or batch norm and was fused in eval mode"):
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


# What does not fit.

ELSEWHERE = torch.ones(6)
REFUSED = {
    "a second linear layer": (lambda self, x: self.linear(self.linear(x)), "it is a second linear layer"),
    "two linear layers": (lambda self, x: self.linear(x) + self.other(x), "it is a second linear layer"),
    "no linear layer": (lambda self, x: torch.relu(x), "it acts on the input, before the linear layer"),
    "the input itself": (lambda self, x: x, "the forward returns its input"),
    "an operator before": (lambda self, x: self.linear(x * 2), "mul.*: it acts on the input, before the linear layer"),
    "an unknown function": (lambda self, x: torch.erf(self.linear(x)), "erf is not in the table"),
    "an unknown method": (lambda self, x: self.linear(x).sinh(), "sinh is not in the table"),
    "an unknown module": (lambda self, x: self.norm(self.linear(x)), "norm is a LayerNorm, which is not in the table"),
    "a gate": (
        lambda self, x: (lambda h: torch.sigmoid(h) * torch.tanh(h))(self.linear(x)),
        "it combines sigmoid and tanh, neither of which is computed from the other",
    ),
    "two remembered values": (
        lambda self, x: (lambda h: (lambda g: g * torch.tanh(g) + h)(F.relu(h)))(self.linear(x)),
        "linear would have to be remembered for it while relu is for mul; a chain remembers one value at a time",
    ),
    "a quotient": (
        lambda self, x: (lambda h: h / (h * h + 1))(self.linear(x)),
        "divides one computed value by another",
    ),
    "a softmax": (
        lambda self, x: (lambda h: h - h.logsumexp(1, keepdim=True))(self.linear(x)),
        "combines a value with its own reduction",
    ),
    "a difference with itself": (lambda self, x: (lambda h: h - h)(self.linear(x)), "subtracts a value from itself"),
    "a broadcast by accident": (
        lambda self, x: (lambda h: h + h.squeeze(1))(self.linear(x).sum(1, keepdim=True)),
        r"it combines \(batch, 1\) with \(batch,\)",
    ),
    "the indices": (lambda self, x: self.linear(x).max(1)[1], "the indices of a maximum or minimum are not computed"),
    "a pair": (lambda self, x: torch.relu(self.linear(x).max(1)), "it takes a maximum or minimum with its indices"),
    "two results": (lambda self, x: (self.linear(x), self.linear.weight), "the forward returns a tuple"),
    "a sum of all": (lambda self, x: self.linear(x).sum(), "sum without dim reduces the batch too"),
    "a sum over the batch": (lambda self, x: self.linear(x).sum(0), "sum acts on dim=0; expected the last dimension"),
    "a sum over two": (lambda self, x: self.linear(x).sum((0, 1)), "sum reduces the dimensions"),
    "a sum of the batch behind": (
        lambda self, x: self.linear(x).sum(1).mean(-1),
        "were reduced before without keepdim reduces the batch",
    ),
    "contradictory dims": (
        lambda self, x: self.linear(x).sum(1, keepdim=True).mean(2),
        "it needs an input of 3 dimensions, and an earlier operator one of 2",
    ),
    "a bare squeeze": (lambda self, x: self.linear(x).sum(1, True).squeeze(), "squeeze without dim drops the batch"),
    "a squeeze of columns": (lambda self, x: self.linear(x).squeeze(-1), "only where it drops the one column"),
    "an unsqueeze of columns": (lambda self, x: self.linear(x).unsqueeze(1), "it adds a dimension"),
    "a slice": (lambda self, x: self.linear(x)[:, 2:], "takes parts of a value"),
    "the shape": (lambda self, x: self.linear(x) * x.shape[0], "attribute shape of a value is not known"),
    "a vector behind the reduction": (
        lambda self, x: self.linear(x).sum(1, True) * self.r,
        "behind a reduction there is one",
    ),
    "a matrix parameter": (lambda self, x: self.linear(x) * self.grid, r"grid, which mul takes, has shape \(3, 6\)"),
    "parameters together": (lambda self, x: self.linear(x) * (self.r * self.s), "computes from a parameter alone"),
    "a number less a parameter": (lambda self, x: self.linear(x) * (1 - self.s), "register it as a buffer"),
    "an exponent": (lambda self, x: self.linear(x) ** 2.5, "the exponent is 2.5; expected one of"),
    "a rounding mode": (
        lambda self, x: torch.div(self.linear(x), 2, rounding_mode="floor"),
        "rounding_mode is 'floor'",
    ),
    "an unknown gelu": (lambda self, x: F.gelu(self.linear(x), approximate="x"), "approximate is 'x'"),
    "a clamp without bounds": (lambda self, x: self.linear(x).clamp(), "it has neither min nor max"),
    "a boolean": (lambda self, x: self.linear(x) * True, "an argument is True; expected a number"),
    "an argument unknown": (lambda self, x: torch.exp(self.linear(x), out=None), "the argument out of exp is not in"),
    "too many arguments": (lambda self, x: self.linear(x).tanh(1), "tanh has 2 arguments; expected at most 1"),
    "control flow": (
        lambda self, x: x if self.linear(x).sum() > 0 else -x,
        r"cannot be traced at test_torch_fuse.py:\d+",
    ),
    "the parameter on the left": (lambda self, x: self.m @ x, "the parameter stands on the left"),
    "a weight that is computed": (lambda self, x: x @ self.linear(x), "it multiplies with a value computed"),
    "addmm with beta": (
        lambda self, x: torch.addmm(self.r, x, self.linear.weight.t(), beta=2),
        "alpha is 1.0 and beta 2",
    ),
    "dropout in training": (lambda self, x: F.dropout(self.linear(x)), "dropout is in training mode, which is random"),
    "batch norm in training": (
        lambda self, x: F.batch_norm(self.linear(x), self.r, self.r, training=True),
        "batch norm is in training mode, where rows depend on each other",
    ),
    "batch norm without statistics": (
        lambda self, x: F.batch_norm(self.linear(x), None, None),
        "batch norm has no running statistics",
    ),
    "in place on what is read again": (
        lambda self, x: (lambda h: h.relu_() + h)(self.linear(x)),
        "it works in place on a value that add reads too",
    ),
    "an augmented alias": (lambda self, x: _alias(self.linear(x)), "it works in place on a value that .* reads too"),
    "a buffer changed": (lambda self, x: (self.s.add_(1), self.linear(x))[1], "it changes a parameter or buffer"),
    "a move": (lambda self, x: self.linear(x).to("cpu"), "it moves to 'cpu'; expected a dtype"),
    "a cast in the middle": (lambda self, x: self.linear(x).half().relu(), "the cast to float16 stands before relu"),
    "randomness": (lambda self, x: self.linear(x) + torch.rand(6), "aten::rand at test_torch_fuse.py.*: it is random"),
    "a tensor from elsewhere": (
        lambda self, x: self.linear(x) + ELSEWHERE * 2,
        "aten::mul.Tensor at .*: it computes from a tensor that is no parameter, buffer or attribute of the module",
    ),
    "a wider type": (lambda self, x: self.linear(x) * self.wide, "wide has dtype torch.float64, which makes PyTorch"),
    "the input's cast": (lambda self, x: self.linear(x.double()), "the input is cast to float64, but the weight"),
    "a second input": (lambda self, x, y: self.linear(x) + y, r"cannot fuse y \(y\): it is a second input"),
}


def _alias(h):
    r = h.contiguous()
    h += 1
    return r + h


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name):
    forward, message = REFUSED[name]
    tensors = {"r": torch.rand(6), "s": torch.tensor(1.5), "grid": torch.rand(3, 6), "wide": torch.rand(6).double()}
    module = module_of(forward, m=torch.rand(8, 5), other=nn.Linear(8, 6), norm=nn.LayerNorm(6), **tensors)
    with pytest.raises(rowfold.FuseError, match=message):
        rt.fuse(module.eval())


def test_a_refusal_names_the_node_and_its_source_line():
    def forward(self, x):
        h = self.linear(x)
        return torch.erf(h)

    with pytest.raises(
        rowfold.FuseError,
        match=r"cannot fuse erf \(erf\) at test_torch_fuse.py:\d+: return torch.erf\(h\): erf is not in",
    ):
        rt.fuse(module_of(forward))


@pytest.mark.parametrize("part", [nn.Dropout(), nn.BatchNorm1d(6)])
def test_training_mode_is_refused(part):
    module = module_of(lambda self, x: self.part(self.linear(x)), part=part)
    with pytest.raises(
        rowfold.FuseError, match=r"part is a (dropout|batch norm) in training mode.*call eval\(\) first"
    ):
        rt.fuse(module)


def test_batch_norm_without_statistics_is_refused():
    module = module_of(lambda self, x: self.part(self.linear(x)), part=nn.BatchNorm1d(6, track_running_stats=False))
    with pytest.raises(rowfold.FuseError, match="part keeps no running statistics"):
        rt.fuse(module.eval())


def test_hooks_are_refused():
    module = nn.Sequential(nn.Linear(8, 6))
    module[0].register_forward_hook(lambda *_: None)
    with pytest.raises(rowfold.FuseError, match="0 has forward hooks, which would not be called"):
        rt.fuse(module)
    outer = nn.Sequential(nn.Linear(8, 6))
    outer.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(rowfold.FuseError, match="Sequential has forward hooks"):
        rt.fuse(outer)


def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match="module is a int; expected an nn.Module or a function"):
        rt.fuse(3)


# Calls.


@pytest.fixture
def model():
    torch.manual_seed(4)
    return MODELS["logsumexp_gelu"](8, 6).eval()


def test_a_needed_gradient_is_an_error(model):
    fused = rt.fuse(model)
    x = torch.randn(3, 8)
    with pytest.raises(
        ValueError, match="linear.weight requires grad and grad mode is on, but the fused forward computes"
    ):
        fused(x)
    fused.requires_grad_(False)
    y = fused(x)
    assert not y.requires_grad
    with pytest.raises(ValueError, match="x requires grad and grad mode is on"):
        fused(x.requires_grad_())
    with torch.inference_mode():
        torch.testing.assert_close(fused(x), y)


def test_autocast_is_an_error(model):
    fused = rt.fuse(model).requires_grad_(False)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ValueError, match="autocast is on, which the fused forward"),
    ):
        fused(torch.randn(3, 8))


def test_inputs_are_checked(model):
    fused = rt.fuse(model).requires_grad_(False)
    with pytest.raises(TypeError, match="x has dtype torch.float64; expected torch.float32, the module's"):
        fused(torch.randn(3, 8).double())
    with pytest.raises(ValueError, match="x has 3 dimensions; expected 2, as the forward names dim=1"):
        fused(torch.randn(2, 3, 8))
    with pytest.raises(ValueError, match=r"x has shape \(3, 7\); expected \(\.\.\., 8\)"):
        fused(torch.randn(3, 7))
    with pytest.raises(ValueError, match="x is on meta; expected cpu, the module's device"):
        fused(torch.randn(3, 8, device="meta"))


@pytest.mark.parametrize("shape", [(8,), (0, 8), (4, 8), (2, 3, 8), (2, 0, 8)])
def test_leading_dimensions_are_kept(shape):
    agree(nn.Sequential(nn.Linear(8, 6), nn.Tanh()), torch.randn(shape))
    agree(module_of(lambda self, x: self.linear(x).logsumexp(-1)), torch.randn(shape))


# Parameters that change.


def same(fused, module, dtype=torch.float32):
    x = torch.randn(5, 8, dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), module(x))


@pytest.mark.parametrize("device", DEVICES)
def test_changed_parameters_are_never_used_stale(model, device):
    model.to(device)
    fused = rt.fuse(model)

    def check(dtype=torch.float32):
        x = torch.randn(5, 8, dtype=dtype, device=device)
        with torch.no_grad():
            torch.testing.assert_close(fused(x), model(x), rtol=2e-3 if dtype.itemsize < 4 else 1e-5, atol=1e-3)

    check()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.randn(5, 8, device=device)).sum().backward()
    optimizer.step()
    check()
    fused.load_state_dict(MODELS["logsumexp_gelu"](8, 6).state_dict())
    check()
    with torch.no_grad():
        model.linear.bias[2] = 5.0
    check()
    model.linear.weight = nn.Parameter(torch.randn(6, 8, device=device))
    check()
    model.linear = nn.Linear(8, 6, device=device)
    check()
    for dtype in (torch.float64, torch.float16, torch.float32):
        fused.to(dtype)
        assert model.linear.weight.dtype is dtype
        check(dtype)


def test_a_write_behind_pytorch_s_back_needs_reload(model):
    fused = rt.fuse(model)
    same(fused, model)
    model.linear.weight.data.mul_(2)
    fused.reload()
    same(fused, model)


def test_a_parameter_of_another_shape_is_an_error(model):
    fused = rt.fuse(model)
    model.linear.bias = nn.Parameter(torch.randn(7))
    with pytest.raises(rowfold.FuseError, match=r"the bias has shape \(7,\)"), torch.no_grad():
        fused(torch.randn(3, 8))


def test_numbers_in_tensors_are_read_again():
    module = module_of(lambda self, x: self.linear(x) * self.s, s=torch.tensor(2.0))
    fused = agree(module)
    module.s.fill_(7.0)
    same(fused, module)
    assert fused.chain == "linear(8, 6) | mul(7)"


def test_parameters_made_in_inference_mode_are_refused():
    with torch.inference_mode():
        module = nn.Sequential(nn.Linear(8, 6))
        with pytest.raises(rowfold.FuseError, match="0.weight was made in inference mode"):
            rt.fuse(module)(torch.randn(3, 8))


def test_copies_and_pickles_are_modules_of_their_own(model):
    fused = rt.fuse(model)
    same(fused, model)
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        same(other, model)
        with torch.no_grad():
            other.original.linear.weight.zero_()
        same(other, other.original)
        assert not torch.equal(model.linear.weight, other.original.linear.weight)


# torch.library, torch.compile, torch.export, CUDA graphs.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8)])
def test_opcheck(shape, device):
    module = module_of(lambda self, x: (self.linear(x) * self.r).logsumexp(-1), r=torch.rand(6)).to(device)
    fused = rt.fuse(module.requires_grad_(False))
    torch.library.opcheck(
        torch.ops.rowfold.fused.default, (torch.randn(shape, device=device), fused._leaves(), fused._text)
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_compile_without_a_graph_break(name, device):
    torch._dynamo.reset()
    fused = rt.fuse(MODELS[name](8, 6).to(device).eval()).requires_grad_(False)
    x = torch.randn(4, 8, device=device)
    compiled = torch.compile(lambda x: fused(x * 2) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), fused(x * 2) + 1, rtol=0, atol=0)
    with torch.no_grad():
        fused.original.get_parameter(next(n for n, _ in fused.named_parameters())).mul_(0.5)
    torch.testing.assert_close(compiled(x), fused(x * 2) + 1, rtol=0, atol=0)


def test_export_and_load_in_another_process(model, tmp_path):
    fused = rt.fuse(model).requires_grad_(False)
    x = torch.randn(4, 8)
    program = torch.export.export(fused, (x,))
    torch.testing.assert_close(program.module()(x), fused(x), rtol=0, atol=0)
    torch.export.save(program, tmp_path / "model.pt2")
    torch.save((x, fused(x)), tmp_path / "expected.pt")
    code = (
        "import sys, torch, rowfold.torch; x, y = torch.load(sys.argv[2]);"
        "assert torch.equal(torch.export.load(sys.argv[1]).module()(x), y)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(rowfold.__file__).resolve().parents[1])}
    files = [tmp_path / "model.pt2", tmp_path / "expected.pt"]
    subprocess.run([sys.executable, "-c", code, *files], env=environment, check=True)


@pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA device that PyTorch and rowfold share")
def test_a_cuda_graph_replays_the_fused_forward():
    fused = rt.fuse(MODELS["scale_clamp_mish"](64, 96).cuda().eval()).requires_grad_(False)
    x = torch.randn(16, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    fused(x)
    with torch.cuda.graph(graph):
        y = fused(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(y, fused(x))


@pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA device that PyTorch and rowfold share")
def test_weights_of_16_bits_are_borrowed_on_cuda():
    fused = rt.fuse(MODELS["logsumexp_gelu"](512, 1024).to("cuda", torch.bfloat16).eval()).requires_grad_(False)
    fused(torch.randn(4, 512, device="cuda", dtype=torch.bfloat16))
    assert fused._runner.model.info.prepared_bytes < 1024 * 512 * 2


# What is written.


def test_the_readme_lists_what_fuse_accepts():
    from rowfold.torch.spellings import readme_rows
    from test_python_docs import table

    assert [tuple(row) for row in table("rowfold")] == readme_rows()


def test_the_readme_s_models_are_the_example_s():
    source = (ROOT / "examples" / "torch_models.py").read_text()
    readme = (ROOT / "README.md").read_text()
    for name in ("LogSumExpGelu", "SumPool", "ScaleClampMish"):
        assert name in readme and f"class {name}(" in source
    lines = [line.strip() for line in source.splitlines() if line.strip().startswith("x = ")]
    for line in lines:
        assert line in readme or "randn" in line, line


def test_every_name_of_the_table_is_pytorch_s():
    from rowfold.torch import spellings

    for row in spellings.SPELLINGS:
        for name in row.names.split():
            known = hasattr(torch.Tensor, name) or any(hasattr(s, name) for s in (torch, F, torch.special))
            assert known, name
