# SPDX-License-Identifier: MIT
"""Calls of a fused module that are like the one before: the shortest way, and all that must lead away from it."""

from __future__ import annotations

import copy
import importlib
import pickle
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


def doubled(module, inputs, output=None):
    """A hook that changes what goes in, or what comes out."""
    return (inputs[0] * 2,) if output is None else output * 2


class Twice(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Doubled(nn.Module):
    def forward(self, w):
        return w * 2


# What a call would have to be recorded anew for, and what is said of it.
MISFITS = {
    "a hook": (lambda m: m.linear.register_forward_hook(doubled), "linear has other forward hooks"),
    "a hook before": (lambda m: m.linear.register_forward_pre_hook(doubled), "linear has other forward hooks"),
    "a hook of an operator": (lambda m: m.tail[0].register_forward_hook(doubled), "tail.0 has other forward hooks"),
    "a hook of a container": (lambda m: m.tail.register_forward_hook(doubled), "tail has other forward hooks"),
    "a hook of the whole": (lambda m: m.register_forward_hook(doubled), "Made has other forward hooks"),
    "a pruned weight": (
        lambda m: importlib.import_module("torch.nn.utils.prune").l1_unstructured(m.linear, "weight", 0.5),
        "linear has other forward hooks",
    ),
    "another class": (lambda m: setattr(m, "linear", Twice(8, 6)), "linear was replaced by Twice"),
    "several layers": (
        lambda m: setattr(m, "linear", nn.Sequential(m.linear, nn.Tanh())),
        "linear was replaced by Sequential",
    ),
    "nothing": (lambda m: setattr(m, "linear", None), "linear is no module any more"),
    "another operator": (lambda m: m.tail.__setitem__(0, nn.Tanh()), "tail.0 was replaced by Tanh"),
    "another number": (
        lambda m: m.tail.__setitem__(0, nn.LeakyReLU(0.5)),
        r"tail.0.negative_slope is 0.5, and was 0.01",
    ),
    "a number in place": (lambda m: setattr(m.tail[0], "negative_slope", 0.5), "tail.0.negative_slope is 0.5"),
    "another container": (
        lambda m: setattr(m, "tail", nn.Sequential(nn.LeakyReLU(), nn.GELU())),
        "tail was replaced by another Sequential",
    ),
    "one more": (lambda m: m.tail.append(nn.Tanh()), "tail holds 3 modules, and held 2"),
    "a forward": (lambda m: setattr(m.linear, "forward", torch.zeros_like), "linear has another forward"),
    "a forward of the whole": (lambda m: setattr(m, "forward", torch.zeros_like), "Made has another forward"),
    "no bias": (lambda m: setattr(m.linear, "bias", None), "linear.bias is None; expected a tensor"),
    "no buffer": (lambda m: setattr(m, "scale", None), "scale is None; expected a tensor"),
    "no weight": (lambda m: delattr(m.linear, "weight"), "linear.weight is None; expected a tensor"),
}


def with_a_tail(result=lambda h: h.amax(-1)):
    torch.manual_seed(3)
    tail = nn.Sequential(nn.LeakyReLU(), nn.GELU())
    forward = lambda self, x: result(self.tail(self.linear(x)) * self.scale)  # noqa: E731
    return module_of(forward, tail=tail, scale=scale()).eval()


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("result", [lambda h: h.amax(-1), lambda h: h.max(-1)], ids=["one", "two: no shortest way"])
@pytest.mark.parametrize(("change", "said"), MISFITS.values(), ids=MISFITS)
def test_what_was_not_recorded_is_refused(change, said, result, before):
    module = with_a_tail(result)
    fused, x = rt.fuse(module), torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(before):
            fused(x)
        change(module)
        for _ in range(2):
            with pytest.raises(rowfold.FuseError, match=said):
                fused(x)


def test_a_bias_where_there_was_none_is_refused():
    module = nn.Sequential(nn.Linear(8, 6, bias=False), nn.ReLU())
    fused, x = rt.fuse(module).requires_grad_(False), torch.randn(5, 8)
    for _ in range(3):
        fused(x)
    module[0].bias = nn.Parameter(torch.ones(6))
    with pytest.raises(rowfold.FuseError, match="0.bias is a Parameter, and was None"):
        fused(x)


def test_what_is_undone_is_fused_again(counted):
    module = with_a_tail()
    fused, x = rt.fuse(module), torch.randn(5, 8)
    with torch.no_grad():
        hook = module.linear.register_forward_hook(doubled)
        with pytest.raises(rowfold.FuseError, match="other forward hooks"):
            fused(x)
        hook.remove()
        module.tail[0] = nn.LeakyReLU()  # another one, with the same numbers
        for expected_short in (False, None, True):
            y, short = counted(fused, x)
            torch.testing.assert_close(y, module(x), rtol=1e-5, atol=1e-5)
            assert expected_short is None or short == expected_short


def test_hooks_that_were_recorded_stay(counted):
    """Those of a module whose forward is run for the recording are recorded with it."""
    module = with_a_tail()
    hook = module.tail.register_forward_hook(doubled)
    fused, x = rt.fuse(module), torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(3):
            y, short = counted(fused, x)
        assert short
        torch.testing.assert_close(y, module(x), rtol=1e-5, atol=1e-5)
        hook.remove()
        with pytest.raises(rowfold.FuseError, match="tail has other forward hooks"):
            fused(x)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_copies_look_at_their_own_modules(copied):
    module = nn.Sequential(nn.Linear(8, 6), nn.Sequential(nn.LeakyReLU(), nn.GELU())).requires_grad_(False)
    fused, x = rt.fuse(module), torch.randn(5, 8)
    y, other = fused(x), copied(fused)
    module[1].register_forward_hook(doubled)
    for _ in range(3):
        assert torch.equal(other(x), y)
    other.get_submodule("1").register_forward_hook(doubled)
    with pytest.raises(rowfold.FuseError, match="1 has other forward hooks"):
        other(x)


def test_what_weights_are_computed_by_is_looked_at():
    module = nn.Sequential(nn.Linear(8, 6), nn.ReLU()).requires_grad_(False)
    nn.utils.parametrize.register_parametrization(module[0], "weight", Doubled())
    fused, x = rt.fuse(module), torch.randn(5, 8)
    torch.testing.assert_close(fused(x), module(x))
    nn.utils.parametrize.register_parametrization(module[0], "weight", Doubled())
    with pytest.raises(rowfold.FuseError, match="0.parametrizations.weight holds 2 modules, and held 1"):
        fused(x)
    nn.utils.parametrize.remove_parametrizations(module[0], "weight")
    with pytest.raises(rowfold.FuseError, match="0.parametrizations"):
        fused(x)


def test_a_parametrization_that_comes_later_is_seen():
    module = nn.Sequential(nn.Linear(8, 6), nn.ReLU()).requires_grad_(False)
    fused, x = rt.fuse(module), torch.randn(5, 8)
    for _ in range(3):
        fused(x)
    nn.utils.parametrize.register_parametrization(module[0], "weight", Doubled())
    for _ in range(2):
        torch.testing.assert_close(fused(x), module(x), rtol=1e-5, atol=1e-5)


MODES = {
    "a function": lambda self, x: nn.functional.dropout(self.linear(x), 0.5, self.training).amax(-1),
    "a choice": lambda self, x: self.linear(x).amax(-1) if self.training else self.linear(x).sum(-1),
    "of the result": lambda self, x: nn.functional.dropout(self.linear(x).amax(-1), 0.5, self.training),
}


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("forward", MODES.values(), ids=MODES)
def test_a_forward_that_asks_for_its_mode_keeps_it(forward, before):
    module = module_of(forward).eval()
    fused, x = rt.fuse(module).requires_grad_(False), torch.randn(5, 8)
    assert "training" not in vars(nn.Module)
    for _ in range(before):
        fused(x)
    with pytest.raises(rowfold.FuseError, match="what the forward does depends on its mode, and it was fused in eval"):
        fused.train()
    module.train()
    with pytest.raises(rowfold.FuseError, match="the module was put in training mode, but the forward was fused in ev"):
        fused(x)
    module.eval()
    torch.testing.assert_close(fused(x), module(x), rtol=1e-5, atol=1e-5)


def test_a_forward_fused_in_training_mode_is_called_in_it():
    module = module_of(MODES["a choice"]).requires_grad_(False)
    fused, x = rt.fuse(module), torch.randn(5, 8)
    torch.testing.assert_close(fused.train()(x), module(x), rtol=1e-5, atol=1e-5)
    module.eval()
    with pytest.raises(rowfold.FuseError, match="was put in eval mode.*call train"):
        fused(x)


def test_a_mode_that_nothing_asks_for_is_free(counted):
    fused, x = rt.fuse(with_a_tail()).requires_grad_(False), torch.randn(5, 8)
    y = fused(x)
    assert torch.equal(fused.train()(x), y)


def test_a_parametrization_that_asks_for_its_mode_keeps_it():
    layer = nn.Linear(8, 6)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Dropout())
    module = nn.Sequential(layer, nn.ReLU()).eval().requires_grad_(False)
    fused, x = rt.fuse(module), torch.randn(5, 8)
    torch.testing.assert_close(fused(x), module(x), rtol=1e-5, atol=1e-5)
    module.train()
    with pytest.raises(rowfold.FuseError, match="0.parametrizations.weight.0 was put in training mode"):
        fused(x)


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
