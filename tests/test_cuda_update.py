# SPDX-License-Identifier: MIT
"""Other weights for a model on a GPU, in the order of a stream. What holds on any backend is in test_update.py."""

from __future__ import annotations

import numpy as np
import pytest
import rowfold
from cases import Case, make_case
from cuda_kernels import FORCE, KERNELS
from datasets import ALL
from torch_devices import Gate, needs_torch_cuda, on_cuda, torch

pytestmark = needs_torch_cuda


def _layer(chain: str, batch: int, k: int, n: int, dtype: str) -> tuple:
    """A case, and its x, W and bias on the device."""
    case = make_case(chain, ALL["sigma5"](np.random.default_rng(0), batch, k, n), dtype=dtype)
    return case, *(on_cuda(v) for v in (case.x, case.w, case.b))


def _fresh(case: Case, w, b, **keywords: object) -> rowfold.Model:
    n, k = w.shape
    model = rowfold.Model(case.chain, k, n, dtype=case.dtype, y_dtype=case.y_dtype, backend="cuda", **keywords)
    return model.load_weights(w, b)


def _check_in_turn(models: list[rowfold.Model], weights: list, x, times: int) -> None:
    """The first with the weights of each in turn, a call right behind each update: it has the results of that one."""
    expected, model, got = [m(x) for m in models], models[0], []
    for i in range(times):
        model.update_weights(weights[i % len(weights)], keep_form=True)
        got.append(model(x))
    for i, y in enumerate(got):
        assert torch.equal(y, expected[i % len(expected)]), (str(model), i)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("keep_form", [False, True])
def test_update_from_device_memory(dtype: str, borrow: bool, keep_form: bool) -> None:
    """The bits of a new model, on a stream of the caller's, for bias of the weights' type and another."""
    case, x, w, b = _layer("linear | mul(2) | logsumexp", 70, 640, 200, dtype)
    model = _fresh(case, w, b)
    model(x)
    held = model.info.prepared_bytes
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for factor in (2, -0.5):
            other, bias = w * factor, (b * factor).to(torch.float32 if dtype != "float64" else b.dtype)
            model.update_weights(other, bias, borrow=borrow, keep_form=keep_form)
            assert torch.equal(model(x), _fresh(case, other, bias)(x))
    stream.synchronize()
    if not borrow:
        assert model.info.prepared_bytes == held


@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_update_changes_the_form_where_values_ask_for_it(dtype: str, x_dtype: str) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    w = torch.randn(256, 1024, device="cuda", generator=generator)
    x = torch.randn(16, 1024, device="cuda", generator=generator).to(getattr(torch, x_dtype))
    infinite, wide = w.clone(), w * torch.logspace(-12, 12, 1024, device="cuda")
    infinite[3, 5] = torch.inf
    kinds = [v.to(getattr(torch, dtype)) for v in (w, wide, infinite)]
    expected = [rowfold.Model("linear(1024, 256) | max", dtype=dtype).load_weights(v)(x) for v in kinds]
    model = rowfold.Model("linear(1024, 256) | max", dtype=dtype).load_weights(kinds[0])
    for i in (1, 2, 0, 2, 1, 0):
        model.update_weights(kinds[i])
        assert torch.equal(model(x), expected[i]), i


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("features", [128, 1024, 4096])
def test_a_call_right_behind_an_update_waits_for_it(dtype: str, features: int) -> None:
    """Kernels that begin early fetch W before what is in front of them has finished."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(16, features, device="cuda", generator=generator).to(getattr(torch, dtype))
    kinds = [torch.randn(2000, features, device="cuda", generator=generator).to(x.dtype) * scale for scale in (1, 2)]
    models = [rowfold.Model(f"linear({features}, 2000) | logsumexp", dtype=dtype).load_weights(w) for w in kinds]
    _check_in_turn(models, kinds, x, 60)


@pytest.mark.parametrize("kernel", KERNELS)
def test_logits_right_behind_an_update(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cleared for a call without a reduction: its fold is right behind what prepares W."""
    monkeypatch.setenv(FORCE, kernel)
    generator = torch.Generator("cuda").manual_seed(0)
    layers = (("float32", 256, 8), ("float32", 1024, 2000), ("float64", 256, 8), ("bfloat16", 512, 700))
    for dtype, features, out in layers:
        x = torch.randn(8, features, device="cuda", generator=generator).to(getattr(torch, dtype))
        kinds = [torch.randn(out, features, device="cuda", generator=generator).to(x.dtype) * scale for scale in (1, 8)]
        models = [rowfold.Model(f"linear({features}, {out}) | relu", dtype=dtype).load_weights(w) for w in kinds]
        _check_in_turn(models, kinds, x, 20)


def test_update_does_not_wait() -> None:
    """Behind work that takes long: with keep_form always, without it where no value decides."""
    for dtype, keep_form in (("float32", True), ("bfloat16", True), ("float64", False)):
        case, x, w, b = _layer("linear | logsumexp", 16, 512, 256, dtype)
        model = _fresh(case, w, b)
        expected = _fresh(case, w * 2, b)(x)
        model(x)
        torch.cuda.synchronize()
        gate = Gate(torch.cuda.current_stream())
        other = w * 2
        model.update_weights(other, b, keep_form=keep_form)
        y = model(x)
        assert not torch.cuda.current_stream().query(), f"{dtype}: the update waited"
        gate.open()
        torch.cuda.synchronize()
        assert torch.equal(y, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_update_in_a_graph(dtype: str) -> None:
    """Captured with keep_form; a graph of calls that was captured before reads the new weights."""
    case, x, w, b = _layer("linear | logsumexp", 8, 512, 256, dtype)
    model, source = _fresh(case, w, b), w.clone()
    expected = [_fresh(case, w * f, b)(x) for f in (1, 2, 4)]
    model(x)
    torch.cuda.synchronize()
    calls, updates = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(calls):
        y = model(x)
    with torch.cuda.graph(updates):
        model.update_weights(source, b, keep_form=True)
    for factor, right in zip((1, 2, 4), expected):
        source.copy_(w * factor)
        updates.replay()
        calls.replay()
        assert torch.equal(y, right)
        assert torch.equal(model(x), right)
