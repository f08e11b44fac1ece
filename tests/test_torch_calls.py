# SPDX-License-Identifier: MIT
"""Fused modules in use: inputs, parameters that change, torch.compile, torch.export, CUDA graphs."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import rowfold
from torch_devices import DEVICES, needs_torch_cuda
from torch_modules import MODELS, agree, module_of, rt, torch

nn = torch.nn


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


def test_what_is_no_tensor_is_named(model):
    fused = rt.fuse(model).requires_grad_(False)
    x = torch.randn(3, 8)
    for _ in range(2):
        fused(x)  # after which calls take the shortest way
        for wrong, kind in ((x.tolist(), "list"), (x.numpy(), "ndarray"), (None, "NoneType")):
            with pytest.raises(TypeError, match=f"x is a {kind}; expected a torch.Tensor"):
                fused(wrong)


@pytest.mark.parametrize("around", [False, True])
def test_arguments_are_those_of_the_original(around):
    def forward(self, hidden_states, unused, scale=2.0, *, flag=None, **kwargs):
        y = torch.logsumexp(self.linear(hidden_states), -1) * scale
        return y.mean(0) if around else y

    module = module_of(forward).requires_grad_(False)
    fused, x = rt.fuse(module), torch.randn(3, 8)
    expected = fused(x, None)
    torch.testing.assert_close(expected, module(x, None))
    for y in (
        fused(hidden_states=x, unused=3),
        fused(x, unused=None),
        fused(x, None, 2.0),
        fused(x, None, scale=2.0, flag=None),
    ):
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
    for arguments, keywords, error, message in (
        (
            (x, None, 3.0),
            {},
            rowfold.FuseError,
            "scale is 3.0, but the forward was fused for its default, 2.0; make it",
        ),
        (
            (x, None),
            {"flag": x},
            rowfold.FuseError,
            "flag is a Tensor, but the forward was fused for its default, None",
        ),
        ((x,), {}, TypeError, "the forward lacks its argument unused"),
        ((), {"unused": x}, TypeError, "the forward lacks its argument hidden_states"),
        ((x, None), {"mask": x}, TypeError, "the forward has no argument mask; it has hidden_states, unused, scale, f"),
        ((x, None), {"unused": x}, TypeError, "the forward is given unused twice"),
        ((x, None, 2.0, None, x), {}, TypeError, "the forward is given 5 arguments; expected 4"),
    ):
        with pytest.raises(error, match=message):
            fused(*arguments, **keywords)


def test_keywords_in_a_compiled_call(model):
    torch._dynamo.reset()
    fused, x = rt.fuse(model).requires_grad_(False), torch.randn(3, 8)
    compiled = torch.compile(fused, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x=x), fused(x), rtol=0, atol=0)


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("borrow", [True, False])
def test_weights_are_used_where_they_are_or_copied(model, borrow, device):
    """What is written to them behind PyTorch's back shows which it is."""
    model = model.to(device, torch.bfloat16)
    fused = rt.fuse(model, borrow=borrow).requires_grad_(False)
    x = torch.randn(3, 8, dtype=torch.bfloat16, device=device)
    before = fused(x)
    model.linear.weight.data.mul_(4)
    assert torch.equal(fused(x), before) == (not borrow or device == "cpu")
    fused.reload()
    torch.testing.assert_close(fused(x), model(x), rtol=0.02, atol=0.02)


def test_a_program_of_an_older_version_borrows(model):
    from rowfold.torch.program import parse

    text = rt.fuse(model)._plan.text
    older = {key: value for key, value in json.loads(text).items() if key != "borrow"}
    assert parse(json.dumps(older)) == parse(text)


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


@pytest.mark.heavy
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


@needs_torch_cuda
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


@needs_torch_cuda
def test_weights_of_16_bits_are_borrowed_on_cuda():
    fused = rt.fuse(MODELS["logsumexp_gelu"](512, 1024).to("cuda", torch.bfloat16).eval()).requires_grad_(False)
    fused(torch.randn(4, 512, device="cuda", dtype=torch.bfloat16))
    assert fused._runner.model.info.prepared_bytes < 1024 * 512 * 2
