# SPDX-License-Identifier: MIT
"""Whatever records, transforms or differentiates what PyTorch computes sees the fused operator, or is refused: nothing
is recorded as a result that nobody computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import rowfold
from torch_modules import MODELS, rt, torch

forward_ad = torch.autograd.forward_ad
proxy_tensor = pytest.importorskip("torch.fx.experimental.proxy_tensor")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(params=["fused", "model"])
def subject(request: pytest.FixtureRequest) -> tuple[str, Callable[[Any], Any], Any]:
    """A fused module or a Model, and the module that it stands for."""
    torch.manual_seed(4)
    module = MODELS["logsumexp_gelu"](8, 6).eval().requires_grad_(False)
    if request.param == "fused":
        return "fused", rt.fuse(module), module
    chain = "linear | logsumexp | leaky_relu | leaky_relu | gelu | gelu"
    model = rowfold.Model(chain, 8, 6).load_weights(module.linear.weight, module.linear.bias)

    def call(x: Any) -> Any:  # torch.jit.trace wants a function
        return model(x)

    vars(call)["model"] = model
    return "model", call, module


def dual(call: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    def run(z: Any) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(call(forward_ad.make_dual(z, z))).primal

    return run


def fake(call: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    def run(z: Any) -> Any:
        with torch._subclasses.FakeTensorMode() as mode:
            return call(mode.from_tensor(z))

    return run


def out_of_graph(call: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    """With a result of the caller's, where a call can have one."""
    if isinstance(call, torch.nn.Module):
        pytest.skip("a module has no out")
    return torch.jit.trace(lambda z: call.model(z, torch.zeros(3, 1)), x)


def jit_trace(call: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    # The module may already have loaded its weights, or not yet.
    call(x)
    return torch.jit.trace(call, x, check_trace=False)


HAS_VMAP = {"fused"} if hasattr(torch.library, "register_vmap") else set()
WAYS = {
    "jit.trace": (jit_trace, {"fused"}),
    "jit.trace, checked": (lambda call, x: torch.jit.trace(call, x), {"fused"}),
    "jit.trace with out": (out_of_graph, set()),
    "jit.script": (lambda call, x: torch.jit.script(call), set()),
    "make_fx": (lambda call, x: proxy_tensor.make_fx(call)(x), {"fused"}),
    "make_fx with fakes": (lambda call, x: proxy_tensor.make_fx(call, tracing_mode="fake")(x), set()),
    "functionalize": (lambda call, x: torch.func.functionalize(call), {"fused"}),
    "vmap": (lambda call, x: lambda z: torch.vmap(call)(z[:, None])[:, 0], HAS_VMAP),
    "vjp": (lambda call, x: lambda z: torch.func.vjp(call, z)[0], set()),
    "jvp": (lambda call, x: lambda z: torch.func.jvp(call, (z,), (z,))[0], set()),
    "jacrev": (lambda call, x: lambda z: torch.func.jacrev(call)(z), set()),
    "jacfwd": (lambda call, x: lambda z: torch.func.jacfwd(call)(z), set()),
    "forward-mode": (dual, set()),
    "fake tensors": (fake, set()),
    "functional tensors": (lambda call, x: lambda z: call(torch._to_functional_tensor(z)), set()),
    "fx": (lambda call, x: torch.fx.symbolic_trace(call), set()),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_records_sees_the_operator_or_is_refused(subject, way):
    name, call, module = subject
    recorded, works_for = WAYS[way]
    x, z = torch.randn(3, 8), torch.randn(3, 8)
    if name in works_for:
        torch.testing.assert_close(recorded(call, x)(z), module(z))
        return
    with pytest.raises(Exception) as caught:  # noqa: PT011 - PyTorch's own, or rowfold's
        recorded(call, x)(z)
    assert str(caught.value) and "NULL" not in str(caught.value)


def test_a_model_says_why_it_is_not_recorded(subject):
    name, call, _ = subject
    x = torch.randn(3, 8)
    if name == "fused":
        assert "rowfold::fused" in str(torch.jit.trace(call, x).inlined_graph)
        with forward_ad.dual_level(), pytest.raises(ValueError, match="x has a tangent of forward-mode"):
            call(forward_ad.make_dual(x, x))
        return
    with pytest.raises(ValueError, match=r"torch.jit.trace is active, and sees nothing .* rowfold.torch.fuse"):
        torch.jit.trace(call, x)
    with pytest.raises(ValueError, match="ProxyTorchDispatchMode is active"):
        proxy_tensor.make_fx(call)(x)
    with pytest.raises(TypeError, match="x is a .*, whose memory cannot be read"):
        torch.func.functionalize(call)(x)
    with forward_ad.dual_level(), pytest.raises(ValueError, match="x has a tangent of forward-mode"):
        call(forward_ad.make_dual(x, x))


def test_who_only_watches_may(subject):
    _, call, module = subject
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 8)
    with Watch():
        y = call(x)
    assert seen
    torch.testing.assert_close(y, module(x))
    with forward_ad.dual_level():
        torch.testing.assert_close(call(x), module(x))


def test_vmap_is_the_rows_of_all_samples():
    if not HAS_VMAP:
        pytest.skip("PyTorch is older than 2.5")
    torch.manual_seed(4)
    w = torch.randn(6, 8)
    linear = torch.nn.functional.linear
    ways = (lambda x: linear(x, w).sum(-1), lambda x: linear(x, w).logsumexp(1), lambda x: linear(x, w).tanh())
    for forward in ways:
        fused, x = rt.fuse(forward), torch.randn(3, 5, 8)
        torch.testing.assert_close(torch.vmap(fused)(x), torch.vmap(forward)(x))
        torch.testing.assert_close(torch.vmap(fused, in_dims=1)(x), torch.vmap(forward, in_dims=1)(x))
    weights = torch.randn(2, 6, 8)
    fused = rt.fuse(torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU())).requires_grad_(False)
    with pytest.raises(ValueError, match="torch.vmap maps over the parameters, but a fused operation has one set"):
        torch.vmap(lambda w: torch.func.functional_call(fused, {"0.weight": w}, x[0]))(weights)


def test_what_differentiates_and_what_compiles_python_say_so():
    fused = rt.fuse(MODELS["logsumexp_gelu"](8, 6).eval()).requires_grad_(False)
    x = torch.randn(3, 8)
    ways = (
        lambda: torch.func.jvp(fused, (x,), (x,)),
        lambda: torch.func.vjp(fused, x),
        lambda: torch.func.jacrev(fused)(x),
    )
    for way in ways:
        with pytest.raises(ValueError, match="x is differentiated by torch.func .* differentiate the original module"):
            way()
    with pytest.raises(rowfold.FuseError, match="torch.jit.script compiles Python, which the fused forward is not"):
        torch.jit.script(fused)
