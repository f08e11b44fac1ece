# SPDX-License-Identifier: MIT
"""The short way of calls on tensors: the bits of the long one, and every check that the tensor itself decides."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rowfold
from rowfold import _lib
from rowfold.calls import _LARGEST_KEPT, _SHAPES, _STREAMS, TensorCalls

torch: Any = pytest.importorskip("torch")


@pytest.fixture
def model() -> rowfold.Model:
    rng = np.random.default_rng(0)
    made = rowfold.Model("linear(8, 5) | logsumexp", threads=1)
    return made.load_weights(rng.normal(size=(5, 8)).astype(np.float32), rng.normal(size=5).astype(np.float32))


def _x(*lead: int, seed: int = 1) -> Any:
    return torch.randn(*lead, 8, generator=torch.Generator().manual_seed(seed))


def _short(model: rowfold.Model, x: Any) -> Any:
    assert model._calls is not None
    return model._calls.run(x)


@pytest.mark.parametrize("lead", [(1,), (7,), (2, 3), ()])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_same_bits(model: rowfold.Model, lead: tuple[int, ...], dtype: str) -> None:
    x = _x(*lead).to(getattr(torch, dtype))
    first = model(x)
    other = _x(*lead, seed=2).to(x.dtype)
    short = _short(model, other)
    assert short is not None
    assert short.shape == (*lead, 1) == first.shape
    assert short.dtype is first.dtype
    expected = model(other, out=torch.empty_like(first))
    assert torch.equal(short, expected)
    assert not torch.equal(short, first)


def test_a_column_that_is_dropped(model: rowfold.Model) -> None:
    x = _x(2, 3)
    for _ in range(2):  # the long way, then the short one
        dropped = model(x, keepdims=False)
        assert dropped.shape == (2, 3)
        assert torch.equal(dropped, model(x)[..., 0])
    assert _short(model, x).shape == (2, 3, 1)
    out = torch.zeros(2, 3)
    assert model(x, out=out) is out
    assert torch.equal(out, dropped)
    logits = rowfold.Model("linear", 8, 5).load_weights(torch.ones(5, 8))
    for _ in range(2):
        assert logits(x).shape == (2, 3, 5)
        with pytest.raises(rowfold.InvalidArgumentError, match="keepdims is False, but the result has 5 columns"):
            logits(x, keepdims=False)


def test_the_caller_s_tensor(model: rowfold.Model) -> None:
    x, dual = _x(4), torch.autograd.forward_ad
    expected = model(x)
    for shape in ((4, 1), (4,)):
        out = torch.zeros(shape)
        version = out._version
        assert model._calls is not None
        assert model._calls.run(x, out) is out
        assert model(x, out=out) is out
        assert torch.equal(out.view(4, 1), expected)
        assert out._version == version + 2
    # What does not fit as it is takes the long way, which refuses it or writes to it.
    for odd in (torch.zeros(8, 1)[::2], torch.zeros(5)[1:].view(4, 1), torch.zeros(4, 2)[:, 1:]):
        assert model._calls.run(x, odd) is None
        assert model(x, out=odd) is odd
        assert torch.equal(odd, expected)
    refused = {
        "out has shape": torch.zeros(5, 1),
        "out has dtype": torch.zeros(4, 1, dtype=torch.float64),
        "out requires grad": torch.zeros(4, 1, requires_grad=True),
        "out is a list": [0.0] * 4,
        "lazily negated": torch._neg_view(torch.zeros(4, 1)),
        "out has layout": torch.zeros(4, 1).to_sparse(),
    }
    for reason, wrong in refused.items():
        with pytest.raises(rowfold.Error, match=reason):
            model(x, out=wrong)
    with pytest.raises(rowfold.InvalidArgumentError, match="y overlaps x"):
        model(x, out=x.view(-1)[:4])
    with dual.dual_level(), pytest.raises(rowfold.InvalidArgumentError, match="tangent"):
        model(x, out=dual.make_dual(torch.zeros(4, 1), torch.ones(4, 1)))
    with torch.inference_mode():
        out = torch.zeros(4, 1)
        assert torch.equal(model(x, out=out), expected)


def test_a_shape_is_learned_from_a_call_with_out() -> None:
    weight = torch.ones(5, 8, dtype=torch.bfloat16)
    model = rowfold.Model("linear | max", dtype="bfloat16", y_dtype="bfloat16").load_weights(weight)
    x = _x(4).to(torch.bfloat16)
    bits = torch.zeros(4, 1, dtype=torch.uint16)
    model(x, out=bits)
    y = _short(model, x)
    assert y.dtype is torch.bfloat16
    assert torch.equal(y.view(torch.uint16), bits)


def test_tensors_are_not_cast() -> None:
    model = rowfold.Model("linear | logsumexp", 8, 5, cast=True).load_weights(torch.ones(5, 8).tolist())
    expected = model(_x(3))
    assert torch.equal(model(_x(3)), expected)
    assert np.array_equal(model(_x(3).tolist()), expected.numpy())
    with pytest.raises(rowfold.ArgumentTypeError, match="float64"):
        model(_x(3).double())


def test_shapes_of_open_sizes_are_learned_anew() -> None:
    model = rowfold.Model("linear | logsumexp")
    with pytest.raises(rowfold.NotLoadedError):
        model(_x(3))
    model.load_weights(torch.ones(5, 8))
    assert torch.equal(model(_x(3)), model(_x(3)))
    assert _short(model, _x(3)) is not None
    model.close()
    with pytest.raises(rowfold.ClosedError):
        model(_x(3))


def test_parameters_and_values_that_change(model: rowfold.Model) -> None:
    x = torch.nn.Parameter(_x(3), requires_grad=False)
    first = model(x).clone()
    x.data += 1
    assert _short(model, x) is not None
    assert not torch.equal(model(x), first)


def test_what_the_tensor_decides_is_checked_again(model: rowfold.Model) -> None:
    x = _x(8)
    expected = model(x)
    assert torch.equal(model(x.t().contiguous().t()), expected)  # rows that are not dense
    assert torch.equal(model(torch.cat([x, x], 1)[:, :8]), expected)
    with pytest.raises(rowfold.InvalidArgumentError, match="requires grad"):
        model(x.clone().requires_grad_())
    with torch.no_grad():
        assert torch.equal(model(x.clone().requires_grad_()), expected)
    with pytest.raises(rowfold.InvalidArgumentError, match="lazily negated"):
        model(torch._neg_view(x))
    with pytest.raises(rowfold.ArgumentTypeError, match="float64"):
        model(x.double())
    with pytest.raises(rowfold.ArgumentTypeError, match="layout"):
        model(x.to_sparse())
    with pytest.raises(rowfold.ArgumentTypeError, match="cannot be read"):
        torch.func.vmap(model)(x)
    dual = torch.autograd.forward_ad
    with dual.dual_level(), pytest.raises(rowfold.InvalidArgumentError, match="tangent"):
        model(dual.make_dual(x, torch.ones_like(x)))
    shifted = torch.empty(65)[1:].view(8, 8).copy_(x)  # four bytes beside what a GPU reads at once
    assert _short(model, shifted) is None
    assert torch.equal(model(shifted), expected)
    assert model(x[:0]).shape == (0, 1)


class _Named(torch.Tensor):
    """A subclass, whose own ways the long way asks for."""


def test_subclasses_and_other_arrays_take_the_long_way(model: rowfold.Model) -> None:
    x = _x(4)
    expected = model(x)
    assert _short(model, x.as_subclass(_Named)) is None
    assert torch.equal(model(x.as_subclass(_Named)), expected)
    assert _short(model, x.numpy()) is None
    assert np.array_equal(model(x.numpy()), expected.numpy())


def test_a_closed_model(model: rowfold.Model) -> None:
    x = _x(4)
    model(x)
    model.close()
    with pytest.raises(rowfold.ClosedError):
        model(x)


def test_shapes_are_bounded(model: rowfold.Model) -> None:
    for rows in range(1, 3 * _SHAPES):
        assert model(_x(rows)).shape == (rows, 1)
    assert model._calls is not None
    assert len(model._calls._known) == _SHAPES


def test_threads(model: rowfold.Model) -> None:
    """Each with tensors of its own, of shapes that they share."""
    inputs = [[_x(rows, seed=10 * t + rows) for rows in (1, 2, 3)] for t in range(4)]
    expected = [[model(x).clone() for x in row] for row in inputs]
    wrong: list[int] = []

    def work(t: int) -> None:
        for _ in range(300):
            for x, y in zip(inputs[t], expected[t]):
                if not torch.equal(model(x), y):
                    wrong.append(t)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class _Device:
    """A library that notes the calls it gets, with PyTorch's tensors on the host in place of a device's."""

    def __init__(self, workspace: int) -> None:
        self.calls: list[tuple[int, int, int]] = []
        self.stream, self.capturing, self.status = 7, False, 0
        self.pointer, self.library, self.size = None, self, workspace
        self.taken = 0

    def call_workspace(self, args: Any) -> int:
        return self.size

    def forward_ex(self, pointer: Any, reference: Any) -> int:
        args = reference._obj
        self.calls.append((args.stream or 0, args.workspace or 0, args.workspace_size))
        return self.status

    def check(self, status: int) -> None:
        raise rowfold.DeviceError(f"status {status}")

    def empty(self, *args: Any, **keywords: Any) -> Any:
        self.taken += 1
        return torch.empty(*args, **keywords)

    def calls_for(self, x: Any) -> TensorCalls:
        calls = TensorCalls(self)  # type: ignore[arg-type]
        calls._facts = calls._facts._replace(
            raw_stream=lambda device: self.stream, is_capturing=lambda: self.capturing, empty=self.empty
        )
        given = SimpleNamespace(
            owner=x, batch=len(x), pointer=x.data_ptr(), dtype=1, memory=_lib.Memory.DEVICE, device=0, lead=x.shape[:-1]
        )
        result = SimpleNamespace(owner=torch.empty(len(x), 1), dtype=1, memory=_lib.Memory.DEVICE)
        calls.learn(x, given, result)  # type: ignore[arg-type]
        return calls


def test_a_workspace_is_kept_for_each_stream() -> None:
    x, device = _x(4), _Device(512)
    calls = device.calls_for(x)
    for stream in (7, 7, 9, 7, 9):
        device.stream = stream
        assert calls.run(x).shape == (4, 1)
    assert [c[0] for c in device.calls] == [7, 7, 9, 7, 9]
    assert all(c[2] == 512 for c in device.calls)
    on_7, on_9 = ({c[1] for c in device.calls if c[0] == stream} for stream in (7, 9))
    assert len(on_7) == len(on_9) == 1
    assert on_7 != on_9
    assert device.taken == 2
    for stream in range(100, 100 + 3 * _STREAMS):
        device.stream = stream
        calls.run(x)
    assert len(calls._workspaces) <= _STREAMS


def test_a_captured_call_has_memory_of_its_own() -> None:
    x, device = _x(4), _Device(512)
    calls = device.calls_for(x)
    calls.run(x)
    kept = device.calls[-1][1]
    device.capturing = True
    calls.run(x)
    assert device.calls[-1][1] != kept
    device.capturing = False
    calls.run(x)
    assert device.calls[-1][1] == kept


def test_a_large_workspace_is_not_kept() -> None:
    x, device = _x(4), _Device(_LARGEST_KEPT + 1)
    calls = device.calls_for(x)
    for _ in range(3):
        calls.run(x)
    assert device.taken == 3
    assert not calls._workspaces


def test_a_status_raises_and_loses_nothing() -> None:
    x, device = _x(4), _Device(512)
    calls = device.calls_for(x)
    device.status = 10
    with pytest.raises(rowfold.DeviceError, match="status 10"):
        calls.run(x)
    device.status = 0
    calls.run(x)
    assert device.taken == 1
