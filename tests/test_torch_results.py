# SPDX-License-Identifier: MIT
"""fuse of forwards with several results, with indices, and with a column for each row: losses and scores."""

from __future__ import annotations

import copy
import pickle

import pytest
import rowfold
from hypothesis import given, settings
from torch_devices import DEVICES
from torch_modules import module_of, rt, torch
from torch_results import FORWARDS, written

F, nn = torch.nn.functional, torch.nn
K, N = 8, 13


def inputs(lead=(5,), device="cpu", dtype=None, masked=False):
    g = torch.Generator().manual_seed(7)
    x = torch.randn(*lead, K, generator=g).to(device, dtype or torch.float32)
    ids = torch.randint(0, N, lead, generator=g).to(device)
    if masked:
        ids.reshape(-1)[1::3] = -100
    return x, ids


def same(got, expected, tolerance=1e-5):
    """Equal structures of tensors that are close, with the same types and shapes."""
    assert type(got) is type(expected)
    if isinstance(got, torch.Tensor):
        assert (got.shape, got.dtype, got.device) == (expected.shape, expected.dtype, expected.device)
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    elif isinstance(got, dict):
        assert list(got) == list(expected)
        for key in got:
            same(got[key], expected[key], tolerance)
    elif isinstance(got, (tuple, list)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            same(a, b, tolerance)
    else:
        assert got == expected


def made(forward, **attributes):
    torch.manual_seed(3)
    return module_of(forward, K, N, **attributes).eval().requires_grad_(False)


def check(forward, *given, tolerance=1e-5, **attributes):
    module = made(forward, **attributes).to(given[0].device, given[0].dtype)
    fused = rt.fuse(module)
    assert isinstance(fused, rt.Fused)
    same(fused(*given), module(*given), tolerance)
    return fused


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FORWARDS)
def test_forwards(name, device):
    forward, chain, needs, lead, attributes = FORWARDS[name]
    x, ids = inputs(lead, device, masked=needs == "masked")
    fused = check(forward, x, *([ids] if needs else []), **attributes())
    assert fused.chain == f"linear({K}, {N}) | {chain}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FORWARDS)
def test_types(name, dtype):
    """The types are PyTorch's; the numbers are closer to the truth than its own."""
    forward, _, needs, lead, attributes = FORWARDS[name]
    x, ids = inputs(lead, dtype=dtype, masked=needs == "masked")
    module = made(forward, **attributes()).to(dtype)
    given = [ids] if needs else []
    expected, got = module(x, *given), rt.fuse(module)(x, *given)
    same(got, torch.utils._pytree.tree_map(lambda t: t, expected), 1e-12 if dtype is torch.float64 else 0.3)
    wide = made(forward, **attributes()).to(dtype).double()(x.double(), *given)
    flat = zip(*(torch.utils._pytree.tree_leaves(tree) for tree in (got, wide)))
    for a, b in flat:
        if a.is_floating_point():
            torch.testing.assert_close(a.double(), b.double(), rtol=1e-2, atol=1e-2)


@given(case=written())
@settings(max_examples=40, deadline=None)
def test_any_results_of_any_trunk(case):
    source, given = case
    module = made(source.forward, **source.attributes)
    fused = rt.fuse(module)
    same(fused(*given), module(*given), 3e-5)


# Several results


def test_structures_are_kept():
    def forward(self, x, y):
        h = self.linear(x)
        return {"loss": F.cross_entropy(h, y), "more": [h.argmax(-1), (h.amax(-1), None, "text")]}

    check(forward, *inputs())


def test_a_result_that_is_returned_twice():
    def forward(self, x):
        h = self.linear(x)
        best = h.max(-1)
        return best.values, best[0], best.indices, best[1] + 0, best

    check(forward, inputs()[0])


def test_a_result_that_is_used_within_and_outside():
    def forward(self, x):
        h = self.linear(x)
        lse = h.logsumexp(-1)
        return lse, lse.exp(), torch.sin(lse), h.mean(-1) - lse

    fused = check(forward, inputs()[0])
    assert fused.chain.count("logsumexp") <= 2


def test_what_results_share_is_computed_once():
    def forward(self, x):
        h = torch.tanh(self.linear(x) / 3) * 3
        return h.logsumexp(-1), h.abs().amax(-1), h.square().mean(-1).sqrt()

    fused = check(forward, inputs()[0])
    text = f"linear({K}, {N}) | div(3) | tanh | mul(3) | logsumexp, (abs | max), square | mean | sqrt"
    assert fused.chain == str(rowfold.Chain.parse(text))
    assert "tanh" in fused.explain(4)


def test_more_than_sixteen_results_are_refused():
    def forward(self, x):
        h = self.linear(x)
        return [(h * i).logsumexp(-1) for i in range(2, 20)]

    with pytest.raises(rowfold.FuseError):
        rt.fuse(made(forward))


def test_logits_that_are_returned_too_are_refused():
    with pytest.raises(rowfold.FuseError, match="linear is read by|returns a tuple|its result is read by"):
        rt.fuse(made(lambda self, x: (lambda h: (h, h.logsumexp(-1)))(self.linear(x))))


REDUCED = {
    "indices": lambda h, y: h.max(1)[1],
    "argmax": lambda h, y: h.argmax(1),
    "log_softmax": lambda h, y: h.log_softmax(-1),
    "gather": lambda h, y: h.gather(1, y[:, None] * 0),
    "cross_entropy": lambda h, y: F.cross_entropy(h, y * 0),
}


@pytest.mark.parametrize("name", REDUCED)
def test_of_a_reduced_value_they_are_pytorchs(name):
    fused = check(lambda self, x, y: (REDUCED[name](self.linear(x).sum(1, keepdim=True), y), y), *inputs())
    assert fused.chain == f"linear({K}, {N}) | sum"


# Calls


def test_weights_that_change_are_seen():
    module = made(FORWARDS["a loss and its greedy choice"][0])
    fused = rt.fuse(module)
    x, ids = inputs()
    fused(x, ids)
    module.linear.weight.mul_(-2)
    same(fused(x, ids), module(x, ids))
    module.linear = nn.Linear(K, N).requires_grad_(False)
    same(fused(x, ids), module(x, ids))


def test_class_weights_that_change_are_seen():
    module = made(lambda self, x, y: F.cross_entropy(self.linear(x), y, self.w, label_smoothing=0.1), w=torch.rand(N))
    fused = rt.fuse(module)
    x, ids = inputs()
    fused(x, ids)
    module.w.mul_(torch.arange(N))
    same(fused(x, ids), module(x, ids))


def test_keyword_arguments():
    def forward(self, x, labels):
        return F.cross_entropy(self.linear(x), labels)

    module = made(forward)
    x, ids = inputs()
    same(rt.fuse(module)(x=x, labels=ids), module(x, ids))
    same(rt.fuse(module)(x, labels=ids), module(x, ids))


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([0, 1, N, 3, 4]), ValueError, "^y is 13 in row 2; logprob expects a column from 0 to 12"),
        (
            torch.tensor([0, 1, 2, 3, -1]),
            ValueError,
            "^y is -1 in row 4; logprob expects a column from 0 to 12, or",
        ),
        (torch.zeros(5), TypeError, "y has dtype torch.float32; expected int64, a column for each row"),
        (torch.rand(5, N), TypeError, "y has dtype torch.float32; expected int64"),
        (torch.zeros(4, dtype=torch.int64), ValueError, r"y has shape \(4,\); expected \(5,\), a column for each row"),
        (torch.zeros(5, 1, dtype=torch.int64), ValueError, r"y has shape \(5, 1\); expected \(5,\)"),
    ],
)
def test_wrong_targets(ids, error, message):
    fused = rt.fuse(made(lambda self, x, y: F.cross_entropy(self.linear(x), y)))
    with pytest.raises(error, match=message):
        fused(inputs()[0], ids)


def test_gather_of_several_columns_is_refused_when_it_is_called():
    fused = rt.fuse(made(lambda self, x, ids: self.linear(x).gather(-1, ids)))
    with pytest.raises(ValueError, match=r"ids has shape \(5, 3\); expected \(5, 1\), a column for each row"):
        fused(inputs()[0], torch.zeros(5, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="is -100 in row 0; pick expects a column from 0"):
        fused(inputs()[0], torch.full((5, 1), -100))
    scores = rt.fuse(made(lambda self, x, ids: F.log_softmax(self.linear(x), -1).gather(-1, ids)))
    with pytest.raises(ValueError, match="is -100 in row 0; logprob expects a column from 0"):
        scores(inputs()[0], torch.full((5, 1), -100))


def test_gradients_are_refused():
    fused = rt.fuse(made(FORWARDS["a loss and its greedy choice"][0])).requires_grad_(True)
    with pytest.raises(ValueError, match="linear.weight requires grad and grad mode is on"):
        fused(*inputs())


@pytest.mark.parametrize("name", ["a loss and its greedy choice", "pair of a maximum", "mean loss"])
def test_recording(name):
    forward, _, needs, lead, attributes = FORWARDS[name]
    x, ids = inputs(lead)
    given = (x, ids) if needs else (x,)
    module = made(forward, **attributes())
    fused = rt.fuse(module)
    expected = module(*given)
    same(torch.compile(fused, backend="eager", fullgraph=True)(*given), expected)
    exported = torch.export.export(fused, given)
    assert any("fused_results" in str(node.target) for node in exported.graph.nodes)
    same(
        tuple(torch.utils._pytree.tree_leaves(exported.module()(*given))),
        tuple(torch.utils._pytree.tree_leaves(expected)),
    )


def test_the_operator_is_one_that_pytorch_accepts():
    fused = rt.fuse(made(FORWARDS["a loss and its greedy choice"][0]))
    x, ids = inputs()
    plan = fused._plan
    leaves = [t.detach() for t in fused._leaves()]
    torch.library.opcheck(torch.ops.rowfold.fused_results, (x, leaves, [ids], plan.text))


def test_vmap():
    def forward(self, x, y):
        h = self.linear(x)
        return F.cross_entropy(h, y), h.argmax(-1)

    module = made(forward)
    x, ids = inputs((3, 5))
    same(torch.vmap(rt.fuse(module))(x, ids), torch.vmap(module)(x, ids))
    same(torch.vmap(rt.fuse(module), in_dims=(0, None))(x, ids[0]), torch.vmap(module, in_dims=(0, None))(x, ids[0]))


def test_copies_and_pickles():
    module = nn.Sequential(nn.Linear(K, N)).requires_grad_(False)
    fused = rt.fuse(Scored(module[0]))
    x, ids = inputs()
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        same(other(x, ids), fused(x, ids))


class Scored(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, x, ids):
        logp = F.log_softmax(self.head(x), -1)
        return logp.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


# Parts of larger models


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(N, K)
        self.norm = nn.LayerNorm(K)
        self.head = nn.Linear(K, N, bias=False)

    def forward(self, ids, labels):
        h = self.norm(self.embed(ids))
        logits = self.head(h[:, :-1])
        loss = F.cross_entropy(logits.view(-1, N), labels[:, 1:].reshape(-1))
        return {"loss": loss, "greedy": logits.argmax(-1)}


def test_the_loss_of_a_language_model_as_a_part():
    torch.manual_seed(5)
    model = Causal().eval().requires_grad_(False)
    _, ids = inputs((4, 9))
    with pytest.raises(rowfold.FuseError, match="partial=True"):
        rt.fuse(model)
    partly = rt.fuse(model, partial=True)
    same(partly(ids, ids), model(ids, ids))
    assert "taken  head: linear | " in str(rt.report(partly))
    assert "1 of 1" in str(rt.report(partly))
    model.requires_grad_(True)
    loss = partly(ids, ids)["loss"]
    loss.backward()  # as it is written, where a gradient is recorded
    assert model.head.weight.grad is not None
    assert "as written" in str(rt.report(partly))


def test_targets_that_do_not_fit_are_computed_as_they_are_written():
    module = nn.Module.__new__(Loss)
    nn.Module.__init__(module)
    torch.manual_seed(1)
    module.up, module.head = nn.Linear(K, K), nn.Linear(K, N)
    module.eval().requires_grad_(False)
    partly = rt.fuse(module, partial=True)
    x, ids = inputs()
    same(partly(x, ids), module(x, ids))
    probabilities = torch.rand(5, N).softmax(-1)
    same(partly(x, probabilities), module(x, probabilities))
    assert "1 as written; the last of these because y has dtype" in str(rt.report(partly))


class Loss(nn.Module):
    def forward(self, x, y):
        return F.cross_entropy(self.head(torch.sin(self.up(x))), y)


def test_columns_that_come_later_than_the_layer():
    def forward(self, x, y):
        h = self.linear(x)
        best = h.argmax(-1)
        again = best + 1
        ids = (y * 1).unsqueeze(-1)
        return again, h.gather(-1, ids)

    check(forward, *inputs())


def test_columns_that_the_layer_itself_gives_are_refused():
    def forward(self, x):
        h = self.linear(x)
        return F.log_softmax(h, -1).gather(-1, (h.argmax(-1, keepdim=True) + 1) % 3)

    with pytest.raises(rowfold.FuseError):
        rt.fuse(made(forward))
