# SPDX-License-Identifier: MIT
"""token_logprobs and linear_cross_entropy beside PyTorch, and what they keep of a weight."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_devices import DEVICES
from torch_modules import rt, torch

from rowfold.torch import heads, linear_cross_entropy, token_logprobs  # isort: skip  (torch_modules skips without torch)

F = torch.nn.functional
K, N = 24, 50


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield
    heads.clear()


def drawn(*lead, dtype="float32", seed=0, device="cpu"):
    """Hidden states, weight, bias and targets."""
    g = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    hidden, weight, bias = (torch.randn(*shape, generator=g).to(kind) for shape in ((*lead, K), (N, K), (N,)))
    target = torch.randint(0, N, lead, generator=g)
    return (t.to(device) for t in (hidden, weight, bias, target))


def expected_logprobs(hidden, weight, bias, target, scale=None, cap=None, temperature=None):
    z = hidden.double() @ weight.double().T
    z = z if bias is None else z + bias.double()
    z = z if scale is None else z * scale
    z = z if cap is None else cap * torch.tanh(z / cap)
    z = z if temperature is None else z / temperature
    logp = z.log_softmax(-1)
    picked = logp.gather(-1, target.clamp(0)[..., None].long())[..., 0]
    return torch.where(target == -100, 0.0, picked), torch.special.entr(logp.exp()).sum(-1)


def close(got, wanted, tolerance=2e-5):
    assert got.shape == wanted.shape
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


# token_logprobs


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("lead", [(), (7,), (2, 3, 4), (0, 3)])
def test_log_probabilities(lead, dtype, device):
    hidden, weight, bias, target = drawn(*lead, dtype=dtype, device=device)
    got = token_logprobs(hidden, weight, target, bias)
    assert got.dtype is (torch.float64 if dtype == "float64" else torch.float32)
    close(got, expected_logprobs(hidden, weight, bias, target)[0])
    close(token_logprobs(hidden, weight, target.int()), expected_logprobs(hidden, weight, None, target)[0])


@pytest.mark.parametrize("per_row", [False, True])
def test_transforms_are_in_the_order_that_is_stated(per_row):
    hidden, weight, bias, target = drawn(2, 9)
    temperature = torch.rand(2, 9) + 0.5 if per_row else 0.7
    scale = torch.rand(2, 9) + 0.5 if per_row else 1.5
    wide = (t[..., None].double() if per_row else t for t in (scale, temperature))
    wanted = expected_logprobs(hidden, weight, bias, target, next(wide), 3.0, next(wide))
    got = token_logprobs(
        hidden, weight, target, bias, temperature=temperature, softcap=3.0, logit_scale=scale, entropy=True
    )
    assert got._fields == ("logprobs", "entropy")
    for a, b in zip(got, wanted):
        close(a, b)


def test_ranks_and_the_largest_few():
    hidden, weight, bias, target = drawn(2, 9)
    target[0, 3] = -100
    z = hidden.double() @ weight.double().T + bias
    scores = token_logprobs(hidden, weight, target, bias, entropy=True, rank=True, topk=5)
    assert scores._fields == ("logprobs", "entropy", "rank", "topk")
    best = z.log_softmax(-1).topk(5)
    assert torch.equal(scores.topk.indices, best.indices)
    close(scores.topk.values, best.values)
    rank = (z > z.gather(-1, target.clamp(0)[..., None])).sum(-1)
    rank[0, 3] = -1
    assert torch.equal(scores.rank, rank)
    wanted = expected_logprobs(hidden, weight, bias, target)
    close(scores.logprobs, wanted[0])
    close(scores.entropy, wanted[1])
    assert token_logprobs(hidden, weight, target, bias, topk=1)._fields == ("logprobs", "topk")
    assert torch.equal(token_logprobs(hidden, weight, target.int(), bias, rank=True).rank, rank)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("entropy", [False, True])
def test_the_best_of_large_logits_are_as_exact_as_the_targets(device, entropy):
    """Logits of 1e5, whose logsumexp is known to 0.004."""
    hidden = torch.ones(4, 1, device=device)
    weight = torch.tensor([[1e5], [1e5 - 2.75], [-3e4]], device=device)
    exact = (hidden.double() @ weight.double().T).log_softmax(-1)
    target = torch.tensor([0, 1, 2, -100], device=device)
    scores = token_logprobs(hidden, weight, target, topk=3, rank=True, entropy=entropy)
    assert scores.topk.indices.tolist() == [[0, 1, 2]] * 4
    assert scores.rank.tolist() == [0, 1, 2, -1]
    assert scores.logprobs[3] == 0
    wrong = (scores.topk.values.double() - exact).abs()
    # An ulp of each, and half a one of what was subtracted: of a target that is far away, or ignored, the logsumexp.
    allowed = exact.abs() * 2.0**-23
    allowed[:2] += 2.0**-23
    allowed[2:] += 1e5 * 2.0**-24
    assert (wrong <= allowed).all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_best_of_rows_without_a_finite_logsumexp(device):
    hidden = torch.ones(3, 1, device=device)
    hidden[1], hidden[2] = float("inf"), float("nan")
    weight = torch.tensor([[3.0], [2.0], [-1.0]], device=device)
    scores = token_logprobs(hidden, weight, torch.tensor([2, 0, 1], device=device), topk=2)
    z = hidden @ weight.T
    expected = z.topk(2).values - z.logsumexp(-1, keepdim=True)
    torch.testing.assert_close(scores.topk.values, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_one_number_as_a_tensor():
    hidden, weight, bias, target = drawn(3, 5)
    wanted = token_logprobs(hidden, weight, target, bias, temperature=0.7, logit_scale=2.5)
    for shape in ((), (1,)):
        numbers = {"temperature": torch.full(shape, 0.7), "logit_scale": torch.full(shape, 2.5)}
        assert torch.equal(token_logprobs(hidden, weight, target, bias, **numbers), wanted)


def test_all_temperatures_share_a_model():
    hidden, weight, bias, target = drawn(5)
    for temperature in (0.3, 0.7, 1.3, torch.ones(5)):
        token_logprobs(hidden, weight, target, bias, temperature=temperature)
    assert len(heads._kept[weight]) == 1


def test_ignored_targets():
    hidden, weight, bias, target = drawn(2, 8)
    target[0, ::2] = -100
    hidden[0, 0] = float("nan")
    got = token_logprobs(hidden, weight, target, bias)
    assert (got[target == -100] == 0).all()
    close(got[target != -100], expected_logprobs(hidden, weight, bias, target)[0][target != -100])
    target[target == -100] = 7
    assert (token_logprobs(hidden, weight, target, bias, ignore_index=7)[target == 7] == 0).all()


def test_special_values():
    hidden, weight, target = torch.eye(3), torch.zeros(N, 3), torch.tensor([0, 0, 1])
    weight[0, 0], weight[1, 1], weight[0, 2] = float("inf"), float("nan"), -1e30
    hidden[0, 1:] = 0
    got = token_logprobs(hidden, weight, target)
    assert got.isnan().all()  # 0 * inf is NaN in every row
    bias = torch.zeros(N)
    bias[3] = float("-inf")
    got = token_logprobs(torch.zeros(2, 3), torch.zeros(N, 3), torch.tensor([3, 4]), bias, entropy=True)
    assert got.logprobs[0] == float("-inf")
    close(got.logprobs[1:], torch.tensor([-np.log(N - 1)]).double())
    close(got.entropy, torch.full((2,), np.log(N - 1)).double())


def test_a_view_of_hidden_states_needs_no_copy():
    hidden, weight, bias, target = drawn(4, 10)
    shifted, ids = hidden[:, :-1], target[:, 1:]
    close(token_logprobs(shifted, weight, ids, bias), expected_logprobs(shifted, weight, bias, ids)[0])
    transposed = weight.T.contiguous().T  # as a (K, N) matrix has it
    assert torch.equal(token_logprobs(shifted, transposed, ids, bias), token_logprobs(shifted, weight, ids, bias))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"targets": torch.zeros(5)}, TypeError, "targets has dtype torch.float32; expected int64 or int32"),
        ({"targets": torch.full((5,), float("nan"))}, TypeError, "targets has dtype torch.float32"),
        ({"targets": torch.zeros(5, dtype=torch.int16)}, TypeError, "targets has dtype torch.int16; expected int64"),
        ({"targets": torch.zeros(4, dtype=torch.int64)}, ValueError, r"targets has shape \(4,\); expected \(5,\)"),
        ({"targets": torch.zeros(5, 1, dtype=torch.int64)}, ValueError, r"targets has shape \(5, 1\); expected \(5,\)"),
        ({"targets": [0] * 5}, TypeError, "targets is a list; expected a torch.Tensor"),
        ({"targets": torch.tensor([0, 1, N, 3, -1])}, ValueError, "is 50 in row 2; logprob expects a column from 0"),
        ({"targets": torch.tensor([0, 1, 2, 3, -1])}, ValueError, "is -1 in row 4"),
        ({"hidden": torch.zeros(5, K + 1)}, ValueError, rf"hidden has shape \(5, {K + 1}\); expected \(..., {K}\)"),
        ({"hidden": torch.zeros(5, K).double()}, TypeError, "weight torch.float32; float64 goes with float64 only"),
        ({"hidden": np.zeros((5, K), np.float32)}, TypeError, "hidden is a ndarray; expected a torch.Tensor"),
        ({"hidden": torch.zeros(5, K, dtype=torch.int64)}, TypeError, "hidden has dtype torch.int64; expected one of"),
        ({"weight": torch.zeros(N)}, ValueError, r"weight has shape \(50,\); expected \(out_features, in_features\)"),
        ({"bias": torch.zeros(N + 1)}, ValueError, r"bias has shape \(51,\); expected \(50,\)"),
        ({"temperature": 0}, ValueError, "temperature is 0; expected a number above 0"),
        ({"temperature": float("nan")}, ValueError, "temperature is nan; expected a number above 0"),
        ({"temperature": "1"}, TypeError, "temperature is '1'; expected a number"),
        ({"temperature": torch.ones(4)}, ValueError, r"temperature has shape \(4,\); expected \(5,\), a number for"),
        ({"temperature": torch.ones(5, dtype=torch.int64)}, TypeError, "temperature has dtype torch.int64; expected a"),
        ({"softcap": -1.0}, ValueError, "softcap is -1.0; expected a number above 0"),
        ({"logit_scale": "2"}, TypeError, "logit_scale is '2'; expected a number or a torch.Tensor"),
        ({"ignore_index": 1.0}, TypeError, "ignore_index is 1.0; expected an int"),
        ({"topk": 1.0}, TypeError, "topk is 1.0; expected an int"),
        ({"topk": -1}, ValueError, "topk is -1; expected 0 for none, or 1 to 50"),
        ({"topk": 51}, ValueError, "topk is 51; expected 0 for none, or 1 to 50"),
        ({"targets": torch.tensor([0, 1, N, 3, -1]), "rank": True}, ValueError, 'input "targets" is 50 in row 2'),
    ],
)
def test_wrong_arguments(change, error, message):
    hidden, weight, bias, target = drawn(5)
    given = {"hidden": hidden, "weight": weight, "targets": target, "bias": bias} | change
    with pytest.raises(error, match=message):
        token_logprobs(**given)


@pytest.mark.parametrize("name", ["hidden", "weight", "bias", "temperature", "logit_scale"])
def test_gradients_are_refused(name):
    hidden, weight, bias, target = drawn(5)
    given = {
        "hidden": hidden,
        "weight": weight,
        "bias": bias,
        "temperature": torch.ones(5),
        "logit_scale": torch.ones(5),
    }
    given[name].requires_grad_()
    with torch.enable_grad(), pytest.raises(ValueError, match=f"{name} requires grad and grad mode is on, but token_l"):
        token_logprobs(targets=target, **given)
    assert token_logprobs(targets=target, **given).requires_grad is False
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(ValueError, match=f"{name} has a tangent"),
    ):
        given[name] = torch.autograd.forward_ad.make_dual(given[name].detach(), torch.ones_like(given[name]))
        token_logprobs(targets=target, **given)


def test_inside_torch_compile_the_graph_is_broken():
    hidden, weight, bias, target = drawn(5)

    def loss(hidden, target):
        return -token_logprobs(hidden * 2, weight, target, bias).mean()

    torch.testing.assert_close(torch.compile(loss, backend="eager")(hidden, target), loss(hidden, target))


# What is kept


def test_a_model_is_kept_as_long_as_its_weight():
    hidden, weight, bias, target = drawn(5)
    token_logprobs(hidden, weight, target, bias)
    (first,) = heads._kept[weight].values()
    token_logprobs(hidden[:2], weight, target[:2], bias)
    (again,) = heads._kept[weight].values()
    assert again.model is first.model
    model, memory = weakref.ref(first.model), weakref.ref(weight)
    del first, again, weight
    gc.collect()
    assert memory() is None
    assert model() is None
    assert len(heads._kept) == 0


def test_a_parameter_and_its_module_are_freed():
    layer = torch.nn.Linear(K, N)
    hidden, _, _, target = drawn(5)
    token_logprobs(hidden, layer.weight, target, layer.bias)
    linear_cross_entropy(hidden, layer.weight, target, linear_bias=layer.bias, label_smoothing=0.1)
    gone = weakref.ref(layer.weight)
    del layer
    gc.collect()
    assert gone() is None
    assert len(heads._kept) == 0


def test_at_most_two_models_of_a_weight_are_kept():
    hidden, weight, bias, target = drawn(5)
    for cap in (1.0, 2.0, 3.0, 4.0):
        token_logprobs(hidden, weight, target, bias, softcap=cap)
    assert len(heads._kept[weight]) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_changes_in_place_are_seen(device):
    hidden, weight, bias, target = drawn(5, device=device)
    cap = {"softcap": 20.0}
    for changed in (weight, bias):
        token_logprobs(hidden, weight, target, bias)
        token_logprobs(hidden, weight, target, bias, **cap)
        changed.mul_(-1.5)
        close(token_logprobs(hidden, weight, target, bias), expected_logprobs(hidden, weight, bias, target)[0])
        wanted = expected_logprobs(hidden, weight, bias, target, cap=20.0)[0]
        close(token_logprobs(hidden, weight, target, bias, **cap), wanted)
    weight.data = weight * 2  # other memory, the same version
    close(token_logprobs(hidden, weight, target, bias), expected_logprobs(hidden, weight, bias, target)[0])
    assert len(heads._kept[weight]) <= 2


def test_a_change_frees_the_other_models_of_the_weight():
    hidden, weight, bias, target = drawn(5)
    token_logprobs(hidden, weight, target, bias)
    token_logprobs(hidden, weight, target, bias, softcap=3.0)
    weight.add_(1)
    token_logprobs(hidden, weight, target, bias)
    assert len(heads._kept[weight]) == 1


def test_tensors_of_inference_mode_are_not_kept():
    with torch.inference_mode():
        hidden, weight, bias, target = drawn(5)
        wanted = expected_logprobs(hidden, weight, bias, target)[0]
        close(token_logprobs(hidden, weight, target, bias), wanted)
        weight.mul_(2)
        close(token_logprobs(hidden, weight, target, bias), expected_logprobs(hidden, weight, bias, target)[0])
    assert len(heads._kept) == 0


def test_clear_cache():
    hidden, weight, bias, target = drawn(5)
    token_logprobs(hidden, weight, target, bias)
    rt.clear_cache()
    assert len(heads._kept) == 0
    token_logprobs(hidden, weight, target, bias)


def test_threads():
    hidden, weight, bias, target = drawn(64)
    wanted = token_logprobs(hidden, weight, target, bias)
    heads.clear()
    results = [None] * 8

    def score(i):
        results[i] = token_logprobs(hidden, weight, target, bias)

    threads = [threading.Thread(target=score, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(result, wanted) for result in results)
    assert len(heads._kept[weight]) == 1


# linear_cross_entropy


@pytest.mark.parametrize("device", DEVICES)
@given(
    lead=st.sampled_from([(), (1,), (17,), (0,)]),
    dtype=st.sampled_from(["float32", "float64", "bfloat16"]),
    bias=st.booleans(),
    weights=st.booleans(),
    reduction=st.sampled_from(["none", "mean", "sum"]),
    ignored=st.sampled_from([-100, 3, None]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    masked=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_cross_entropy_is_pytorchs(device, lead, dtype, bias, weights, reduction, ignored, smoothing, masked, seed):
    with torch.no_grad():
        x, w, b, target = drawn(*lead, dtype=dtype, seed=seed, device=device)
        index = -100 if ignored is None else ignored
        if masked:
            target = torch.where(torch.arange(target.numel(), device=device).reshape(lead) % 3 == 0, index, target)
        classes = torch.rand(N, device=device).to(w.dtype) if weights else None
        more = {"reduction": reduction, "label_smoothing": smoothing}
        got = linear_cross_entropy(
            x, w, target, linear_bias=b if bias else None, weight=classes, ignore_index=ignored, **more
        )
        logits = F.linear(x.double(), w.double(), b.double() if bias else None)
        wide = None if classes is None else classes.double().cpu()
        # Of one target alone that is ignored PyTorch's mean is NaN on a CPU, and 0 on a GPU.
        wanted = F.cross_entropy(logits.cpu(), target.cpu(), weight=wide, ignore_index=index, **more).to(device)
        assert got.dtype is x.dtype
        assert got.shape == wanted.shape
        tolerance = {"float32": 3e-5, "float64": 1e-12, "bfloat16": 5e-3}[dtype]
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_cross_entropy_has_the_signature_of_pytorch():
    if not hasattr(F, "linear_cross_entropy"):
        pytest.skip("this PyTorch has no linear_cross_entropy")
    x, w, b, target = drawn(9)
    target[2] = -100
    for more in ({}, {"reduction": "none"}, {"label_smoothing": 0.2}, {"weight": torch.rand(N)}):
        torch.testing.assert_close(
            linear_cross_entropy(x, w, target, linear_bias=b, **more),
            F.linear_cross_entropy(x, w, target, linear_bias=b, **more),
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_layer_without_inputs_has_its_bias(with_bias, batch, reduction, device):
    x, weight = torch.ones(batch, 0, device=device), torch.ones(5, 0, device=device)
    bias = torch.linspace(-1, 2, 5, device=device) if with_bias else None
    target = torch.tensor([4, 0, -100], device=device)[:batch]
    wanted = F.cross_entropy(F.linear(x, weight, bias), target, reduction=reduction)
    got = linear_cross_entropy(x, weight, target, linear_bias=bias, reduction=reduction)
    torch.testing.assert_close(got, wanted, equal_nan=True)  # the mean of no rows
    expected = F.linear(x, weight, bias).log_softmax(-1)
    close(token_logprobs(x, weight, target, bias, topk=5).topk.values, expected.sort(descending=True)[0].double())


def test_a_layer_without_outputs_is_refused():
    x, weight, target = torch.ones(3, 4), torch.ones(0, 4), torch.zeros(3, dtype=torch.int64)
    said = r"has shape \(0, 4\), no columns to choose from; expected out_features of 1 or more"
    with pytest.raises(ValueError, match=f"linear_weight {said}"):
        linear_cross_entropy(x, weight, target)
    with pytest.raises(ValueError, match=f"weight {said}"):
        token_logprobs(x, weight, target)


def test_cross_entropy_of_special_values():
    x, w, b, target = torch.zeros(4, K), torch.zeros(N, K), torch.zeros(N), torch.tensor([0, 1, -100, 2])
    x[2] = float("nan")
    b[1] = float("-inf")
    for smoothing in (0.0, 0.1):
        got = linear_cross_entropy(x, w, target, linear_bias=b, reduction="none", label_smoothing=smoothing)
        wanted = F.cross_entropy(
            F.linear(x, w, b)[[0, 1, 3]], target[[0, 1, 3]], reduction="none", label_smoothing=smoothing
        )
        torch.testing.assert_close(got[[0, 1, 3]], wanted)
        assert got[2] == 0
    nobody = torch.full((4,), -100)
    assert linear_cross_entropy(x, w, nobody).isnan()
    assert linear_cross_entropy(x, w, nobody, reduction="sum") == 0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"target": torch.rand(5, N)}, ValueError, "target holds class probabilities; expected class indices"),
        ({"target": torch.rand(5)}, TypeError, "target has dtype torch.float32; expected int64 or int32"),
        ({"target": torch.tensor([0, 1, 2, 3, N])}, ValueError, "is 50 in row 4"),
        ({"target": torch.zeros(4, dtype=torch.int64)}, ValueError, r"target has shape \(4,\); expected \(5,\)"),
        ({"input": torch.zeros(1, 5, K)}, ValueError, r"input has shape \(1, 5, 24\); expected \(batch, in_features\)"),
        ({"linear_weight": torch.zeros(N, 2, K)}, ValueError, r"linear_weight has shape \(50, 2, 24\); expected \(out"),
        ({"linear_bias": torch.zeros(3)}, ValueError, r"linear_bias has shape \(3,\); expected \(50,\)"),
        ({"weight": torch.zeros(3)}, ValueError, r"weight has shape \(3,\); expected \(50,\), a number for each class"),
        ({"weight": torch.zeros(N, dtype=torch.int64)}, TypeError, "weight is torch.int64; expected a torch.Tensor of"),
        ({"weight": torch.zeros(N).double()}, TypeError, "float64 goes with float64 only"),
        ({"reduction": "max"}, ValueError, "reduction is 'max'; expected 'none', 'mean' or 'sum'"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing is 1.5; expected a number from 0 to 1"),
        ({"ignore_index": "x"}, TypeError, "ignore_index is 'x'; expected an int"),
    ],
)
def test_wrong_arguments_of_cross_entropy(change, error, message):
    x, w, b, target = drawn(5)
    given = {"input": x, "linear_weight": w, "target": target, "linear_bias": b} | change
    with pytest.raises(error, match=message):
        linear_cross_entropy(**given)


@pytest.mark.parametrize("name", ["input", "linear_weight", "linear_bias", "weight"])
def test_gradients_of_cross_entropy_are_refused(name):
    x, w, b, target = drawn(5)
    given = {"input": x, "linear_weight": w, "linear_bias": b, "weight": torch.ones(N)}
    given[name].requires_grad_()
    with torch.enable_grad(), pytest.raises(ValueError, match=f"{name} requires grad and grad mode is on, but linear_"):
        linear_cross_entropy(target=target, **given)
