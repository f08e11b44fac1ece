# SPDX-License-Identifier: MIT
"""Calls of a fused module that are like the one before: the shortest way, and all that must lead away from it."""

from __future__ import annotations

import copy
import threading

import pytest
import rowfold
from torch_devices import DEVICES
from torch_modules import module_of, rt, torch

nn = torch.nn


class Counted:
    """How often a fused module went the long way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.long = 0
        found = rt.module.Fused._refusal

        def counted(fused, x):
            self.long += 1
            return found(fused, x)

        monkeypatch.setattr(rt.module.Fused, "_refusal", counted)

    def __call__(self, fused, x):
        """The result, and whether it came by the shortest way."""
        before = self.long
        return fused(x), self.long == before


@pytest.fixture
def counted(monkeypatch):
    torch.manual_seed(3)
    return Counted(monkeypatch)


def head(**keywords):
    return module_of(lambda self, x: torch.logsumexp(self.linear(x) * self.scale, -1), **keywords).eval()


def called_twice():
    """A module, it fused, and an input of calls that went both ways."""
    module = head(scale=scale())
    fused, x = rt.fuse(module), torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(2):
            fused(x)
    return module, fused, x


def scale(n=6):
    return torch.linspace(0.5, 1.5, n)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: torch.logsumexp(self.linear(x), -1),
        lambda self, x: torch.logsumexp(self.linear(x), -1, keepdim=True),
        lambda self, x: self.linear(x).relu(),
        lambda self, x: self.linear(x.reshape(-1, 8)).amax(1),
        lambda self, x: self.linear(x.reshape(-1, 8)).relu(),
    ],
)
def test_the_same_result(counted, forward, device):
    module = module_of(forward).eval().requires_grad_(False).to(device)
    fused = rt.fuse(module)
    for shape in ((5, 8), (2, 3, 8)):
        # Parameters were looked at by the first call, shapes are learned by the first one of theirs.
        first, _ = counted(fused, torch.randn(shape, device=device))
        x = torch.randn(shape, device=device)
        y, short = counted(fused, x)
        assert short
        expected = module(x)
        assert (y.shape, y.dtype, y.device) == (expected.shape, expected.dtype, expected.device)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        assert y.shape == first.shape
        assert torch.equal(fused(x[:, ..., :]), y)
        strided = torch.stack([x, x], -1)[..., 0]
        assert torch.equal(fused(strided), y)


CHANGES = {
    "a step": lambda m: m.linear.weight.mul_(2),
    "the bias": lambda m: m.linear.bias.add_(1),
    "a buffer": lambda m: m.scale.mul_(3),
    "one value": lambda m: m.linear.weight[3].zero_(),
    "another parameter": lambda m: setattr(m.linear, "weight", nn.Parameter(torch.randn(6, 8))),
    "another buffer": lambda m: setattr(m, "scale", scale() + 1),
    "another layer": lambda m: setattr(m, "linear", nn.Linear(8, 6)),
    "another size": lambda m: (setattr(m, "linear", nn.Linear(8, 5)), setattr(m, "scale", scale(5))),
    "data": lambda m: setattr(m.linear.weight, "data", torch.randn(6, 8)),
    "rows of its own memory": lambda m: (
        setattr(m.linear.weight, "data", m.linear.weight.data[:4]),
        setattr(m.linear.bias, "data", m.linear.bias.data[:4]),
        setattr(m, "scale", scale(4)),
    ),
    "loaded": lambda m: m.load_state_dict(head(scale=scale() + 2).state_dict()),
    "assigned": lambda m: m.load_state_dict(head(scale=scale() + 2).state_dict(), assign=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_is_seen(counted, change):
    module = head(scale=scale())
    fused, x = rt.fuse(module), torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(2):
            before, _ = counted(fused, x)
        assert counted(fused, x)[1]
        change(module)
        for expected_short in (False, None, True):
            y, short = counted(fused, x)
            torch.testing.assert_close(y, module(x), rtol=1e-5, atol=1e-5)
            assert expected_short is None or short == expected_short
        assert not torch.equal(y, before)


def test_a_transposed_square_matrix_is_seen(counted):
    module = module_of(lambda self, x: self.linear(x).amax(-1), n=8).eval()
    fused, x = rt.fuse(module), torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(2):
            fused(x)
        weight = module.linear.weight
        weight.data = weight.data.t()  # the same address, version and shape
        torch.testing.assert_close(fused(x), module(x), rtol=1e-5, atol=1e-5)


def test_fewer_rows_of_the_same_memory_are_seen(counted):
    module = module_of(lambda self, x: self.linear(x).relu()).eval()
    fused, x = rt.fuse(module), torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(2):
            fused(x)
        for parameter in module.linear.parameters():
            parameter.data = parameter.data[:4]  # the same address, version and strides
        assert fused(x).shape == (5, 4)


def test_a_gradient_is_refused_after_a_call_without(counted):
    fused, x = rt.fuse(head(scale=scale())), torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(2):
            fused(x)
    with pytest.raises(ValueError, match="linear.weight requires grad and grad mode is on"):
        fused(x)


def test_what_is_refused_is_refused_after_a_call_that_was_not(counted):
    module, fused, x = called_twice()
    with torch.no_grad():
        with pytest.raises(ValueError, match="autocast is on"), torch.autocast("cpu", dtype=torch.bfloat16):
            fused(x)
        with pytest.raises(rowfold.InvalidArgumentError, match=r"shape \(5, 7\)"):
            fused(x[:, :7])
        with pytest.raises(TypeError, match="float64"):
            fused(x.double())
    with pytest.raises(ValueError, match="linear.weight requires grad and grad mode is on"):
        fused(x)
    fused.requires_grad_(False)
    for _ in range(2):
        fused(x)
    with pytest.raises(ValueError, match="x requires grad and grad mode is on"):
        fused(x.clone().requires_grad_())
    dual = torch.autograd.forward_ad
    with dual.dual_level(), pytest.raises(ValueError, match="tangent"):
        fused(dual.make_dual(x, torch.ones_like(x)))


def test_a_part_in_training_mode_is_refused_after_a_call_that_was_not(counted):
    module = module_of(lambda self, x: self.drop(self.linear(x)).amax(-1), drop=nn.Dropout()).eval()
    fused, x = rt.fuse(module).requires_grad_(False), torch.randn(5, 8)
    for _ in range(2):
        fused(x)
    module.drop.train()
    with pytest.raises(rowfold.FuseError, match="drop was put in training mode"):
        fused(x)


@pytest.mark.heavy
def test_recorders_see_the_operator_after_a_call_that_nothing_recorded(counted):
    module = head(scale=scale()).requires_grad_(False)
    fused, x = rt.fuse(module), torch.randn(5, 8)
    for _ in range(3):
        y = fused(x)
    assert torch.equal(torch.jit.trace(fused, x)(x), y)
    assert torch.equal(torch.func.vmap(fused)(x[None])[0], y)
    graph = torch.export.export(fused, (x,)).graph
    assert any("fused" in str(node.target) for node in graph.nodes)


def test_a_copy_has_tensors_of_its_own(counted):
    module = head(scale=scale()).requires_grad_(False)
    fused, x = rt.fuse(module), torch.randn(5, 8)
    for _ in range(2):
        y = fused(x)
    other = copy.deepcopy(fused)
    other.linear.weight.mul_(2)
    assert not torch.equal(other(x), y)
    assert torch.equal(fused(x), y)


# Other values of the same tensors.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_of_an_optimizer_plans_nothing_anew(counted, device, dtype):
    module = head(scale=scale()).to(device, dtype)
    fused, x = rt.fuse(module), torch.randn(5, 8, device=device, dtype=dtype)
    with torch.no_grad():
        fused(x)
        runner, model = fused._runner, fused._runner.model
        for factor in (2, -3):
            module.linear.weight.mul_(factor)
            module.scale.add_(1)
            assert torch.equal(fused(x), rt.fuse(copy.deepcopy(module))(x))
            assert fused._runner is runner
            assert runner.model is model


def test_a_number_of_the_chain_plans_anew(counted):
    module = module_of(lambda self, x: (self.linear(x) * self.factor).amax(-1), factor=torch.tensor(2.0)).eval()
    fused, x = rt.fuse(module), torch.randn(5, 8)
    with torch.no_grad():
        fused(x)
        runner = fused._runner
        module.factor.mul_(-1)
        torch.testing.assert_close(fused(x), module(x), rtol=1e-5, atol=1e-5)
        assert fused._runner is not runner


def test_a_call_under_way_is_not_disturbed(counted):
    """Another thread is inside a call, which may read the weights: they are loaded into another model."""
    module = head(scale=scale())
    fused, x = rt.fuse(module), torch.randn(5, 8)
    with torch.no_grad():
        before = fused(x)
        runner, inside, go = fused._runner, threading.Event(), threading.Event()
        found = runner.model

        class Slow:
            _calls = None

            def __call__(self, *arguments, **keywords):
                inside.set()
                assert go.wait(60)
                return found(*arguments, **keywords)

            def update_weights(self, *arguments, **keywords):
                raise AssertionError("a call is under way")

        runner.model = Slow()
        results = []
        fused._last = None
        worker = threading.Thread(target=lambda: results.append(runner(x)))
        worker.start()
        assert inside.wait(60)
        module.linear.weight.mul_(2)
        torch.testing.assert_close(fused(x), module(x), rtol=1e-5, atol=1e-5)
        assert fused._runner is not runner
        go.set()
        worker.join()
        assert torch.equal(results[0], before)


def test_a_call_that_begins_during_an_update_does_not_wait(counted):
    module = head(scale=scale())
    fused, x = rt.fuse(module), torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(2):
            expected = fused(x)
        runner = fused._runner
        found, meanwhile = runner.model.update_weights, []

        def update(*arguments, **keywords):
            meanwhile.append((runner.again(x), runner(x)))
            return found(*arguments, **keywords)

        runner.model.update_weights = update
        module.linear.weight.mul_(1)
        assert torch.equal(fused(x), expected)
        ((again, other),) = meanwhile
        assert again is None
        assert torch.equal(other, expected)
        assert fused._runner is runner


def test_an_update_that_fails_is_made_up_for(counted):
    module, fused, x = called_twice()
    with torch.no_grad():
        runner = fused._runner

        def update(*arguments, **keywords):
            raise rowfold.OutOfMemoryError("no memory")

        runner.model.update_weights = update
        module.linear.weight.mul_(2)
        with pytest.raises(MemoryError):
            fused(x)
        for _ in range(3):
            torch.testing.assert_close(fused(x), module(x), rtol=1e-5, atol=1e-5)
        assert fused._runner is not runner
