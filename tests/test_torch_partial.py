# SPDX-License-Identifier: MIT
"""fuse(module, partial=True): larger models, parts of which are fused; weights that are computed from parameters."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import pytest
import rowfold
import torch_modules  # noqa: F401  # ahead of the zoo, for it skips this file where PyTorch is missing
import torch_zoo
from torch_modules import module_of, rt, torch

F, nn = torch.nn.functional, torch.nn
PAGE = Path(__file__).resolve().parents[1] / "doc" / "pytorch.md"
TITLES = [one.title for one in torch_zoo.ZOO]


def zoo(title):
    return next(one for one in torch_zoo.ZOO if one.title == title)


def agree(y, expected):
    """Every tensor of the results, in whatever they stand."""
    ours, theirs = (torch.utils._pytree.tree_flatten(v) for v in (y, expected))
    assert ours[1] == theirs[1]
    for a, b in zip(ours[0], theirs[0]):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        # Both are within some roundings of the exact value: K is 16 at most, and values are below 100.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# The zoo.


def test_the_page_has_the_table():
    assert torch_zoo.table() in PAGE.read_text()


def test_there_are_sixty_and_none_is_twice():
    assert len(TITLES) == len(set(TITLES)) >= 60


@pytest.mark.parametrize("title", TITLES)
def test_the_zoo_computes_what_it_did(title):
    one = zoo(title)
    original, x = torch_zoo.module(one), torch_zoo.inputs(one)
    found = torch_zoo.outcome(one)
    if found.result is None:
        return
    with torch.no_grad():
        agree(found.result(x), original(x))
        assert list(found.result.state_dict()) == list(original.state_dict())
        # The weights are read again: the module that was fused shares them.
        for parameter in found.result.parameters():
            parameter.mul_(0.5)
        for parameter in original.parameters():
            parameter.mul_(0.5)
        agree(found.result(x), original(x))
    for part in getattr(found.result, "_parts", []):
        assert part.calls["as written"] == 0 and part.calls["fused"] > 0


# Where a region is computed as it is written.


@pytest.fixture
def mlp():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 6), nn.Tanh()).eval()


def test_gradients_are_those_of_the_original(mlp):
    partly = rt.fuse(mlp, partial=True)
    x = torch.randn(3, 8)
    partly(x).sum().backward()
    expected = [p.grad.clone() for p in mlp.parameters()]
    mlp.zero_grad()
    mlp(x).sum().backward()
    for ours, p in zip(expected, mlp.parameters()):
        torch.testing.assert_close(ours, p.grad, rtol=0, atol=0)
    report = str(rt.report(partly))
    assert "0 calls fused, 1 as written; the last of these because" in report
    assert "requires grad and grad mode is on" in report


def test_training_runs_the_original(mlp):
    partly = rt.fuse(mlp, partial=True)
    partly.train()
    x = torch.randn(400, 8)
    with torch.no_grad():
        hidden = partly.original[2](torch.ones(1000))
        assert (hidden == 0).any()  # dropout is at work again
        partly(x)
        partly.eval()
        agree(partly(x), mlp(x))


def test_the_mode_is_that_of_the_call():
    """A function of PyTorch does not see the mode itself: it was recorded for one."""

    def forward(self, x):
        h = self.linear(F.dropout(x, 0.5, self.training)).relu()
        return h, torch.full_like(h, float(self.training))

    module = module_of(forward).eval()
    partly = rt.fuse(module, partial=True)
    x = torch.randn(3, 8)
    with torch.no_grad():
        agree(partly(x), module(x))
        assert partly.train()(x)[1].min() == 1
        assert partly.eval()(x)[1].max() == 0


def test_what_was_not_recorded_is_computed_as_written(mlp):
    def doubled(module, inputs, output):
        return output * 2

    def changes():
        first = next(m for m in mlp.modules() if isinstance(m, nn.Linear))
        yield first.register_forward_hook(doubled).remove, "other forward hooks"
        yield mlp.register_forward_hook(doubled).remove, ""
        bias, first.bias = first.bias, None
        yield lambda: setattr(first, "bias", bias), "bias is None"
        yield lambda: None, ""
        mlp.append(nn.Tanh())
        yield lambda: None, ""

    partly = rt.fuse(mlp, partial=True)
    x = torch.randn(3, 8)
    with torch.no_grad():
        for undo, said in changes():
            for _ in range(2):
                agree(partly(x), mlp(x))
            assert said in str(rt.report(partly))
            undo()


def test_other_types_places_and_modes_are_computed_as_written(mlp):
    partly = rt.fuse(mlp, partial=True)
    x = torch.randn(3, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        agree(partly(x), mlp(x))
    assert "autocast is on" in str(rt.report(partly))
    with torch.no_grad():
        partly.double()
        agree(partly(x.double()), mlp(x.double()))
        with pytest.raises(RuntimeError):  # as the original's
            partly(x)


def test_dimensions_that_the_forward_names_are_those_of_the_call():
    module = module_of(lambda self, x: self.linear(self.norm(x)).logsumexp(1), norm=nn.LayerNorm(8))
    partly = rt.fuse(module, partial=True)
    with torch.no_grad():
        for shape in ((3, 8), (2, 5, 8)):  # in three dimensions dim=1 is not the columns
            x = torch.randn(shape)
            agree(partly(x), module(x))
    assert partly._parts[0].calls == {"fused": 1, "as written": 1}


def test_other_arguments_run_the_original():
    module = torch_zoo.CausalLm().eval()
    partly = rt.fuse(module, partial=True)
    tokens, mask = torch.randint(0, 12, (2, 5)), torch.tensor([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    with torch.no_grad():
        agree(partly(tokens), module(tokens))
        agree(partly(input_ids=tokens), module(tokens))
        agree(partly(tokens, attention_mask=None), module(tokens))
        assert all(part.calls["fused"] == 3 for part in partly._parts)
        agree(partly(tokens, mask), module(tokens, mask))
        agree(partly(tokens, attention_mask=mask), module(tokens, mask))
        assert all(part.calls["fused"] == 3 for part in partly._parts)
    assert partly.config is module.config


def test_several_inputs():
    def forward(self, x, scale, *, power=1):
        return self.linear(x).logsumexp(-1) * scale**power

    module = module_of(forward)
    partly = rt.fuse(module, partial=True)
    x, scale = torch.randn(3, 8), torch.rand(3)
    with torch.no_grad():
        agree(partly(x, scale), module(x, scale))
        agree(partly(scale=scale, x=x), module(x, scale))
        agree(partly(x, scale, power=2), module(x, scale, power=2))
    with pytest.raises(TypeError, match="missing a required argument: 'scale'"):
        partly(x)


# What must not be taken, or not there.

HAZARDS = {
    "read twice": lambda self, x: (lambda h: (h.relu().sum(-1), h))(self.linear(x)),
    "its size is read": lambda self, x: (lambda h: (h.relu().sum(-1), h.shape[0]))(self.linear(x)),
    "changed in place and read": lambda self, x: (lambda h: (h.relu_(), h.sum(-1))[1])(self.linear(x)),
    "the input is changed after": lambda self, x: (lambda h, y: (y.mul_(0), torch.tanh(h))[1])(
        *(lambda y: (self.linear(y), y))(x + 0)
    ),
    "the result is changed": lambda self, x: self.linear(x).relu().sum(-1).add_(1),
    "two layers of one": lambda self, x: self.linear(x).relu().sum(-1) + self.linear(-x).relu().sum(-1),
    "a residual of the input": lambda self, x: self.linear(x).relu()[:, :4] + x[:, :4],
    "both extremes": lambda self, x: (lambda m: m.values + m.indices)(self.linear(x).max(-1)),
    "random": lambda self, x: (self.linear(x).relu() + torch.zeros_like(x)[:, :6]).sum(-1),
    "nothing of it": lambda self, x: (self.linear(x), x)[1],
}


@pytest.mark.parametrize("name", HAZARDS)
def test_hazards(name):
    torch.manual_seed(6)
    module, x = module_of(HAZARDS[name]), torch.randn(3, 8)
    expected_x = x.clone()
    with torch.no_grad():
        expected = module(x)
        try:
            partly = rt.fuse(module, partial=True)
        except rowfold.FuseError:
            return
        agree(partly(x), expected)
    assert torch.equal(x, expected_x)


def test_a_changed_buffer_is_no_constant():
    def forward(self, x):
        self.count.add_(1)
        return self.linear(x * 2).relu() * self.count

    module = module_of(forward, count=torch.zeros(()))
    with pytest.raises(rowfold.FuseError, match="it changes a parameter or buffer"):
        rt.fuse(module, partial=True)


def test_nothing_that_fits_is_an_error_with_the_reasons():
    with pytest.raises(rowfold.FuseError, match=r"(?s)nothing fits\n0 of 1 .*left   1: no operator follows it"):
        rt.fuse(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6)), partial=True)
    with pytest.raises(rowfold.FuseError, match="nothing to fuse: there is no linear layer"):
        rt.fuse(nn.Sequential(nn.LayerNorm(8)), partial=True)


# The report.


def test_the_report_names_every_layer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.energy, self.last = torch_zoo.FeedForward(), torch_zoo.LogZ(), nn.Linear(8, 3)
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, x):
            if x.sum() > 0:
                x = x + 1
            x = self.encoder(self.block(x))
            return self.energy(x), torch.relu(self.last(x))

    model = Model().eval()
    partly = rt.fuse(model, partial=True)
    report = rt.report(partly)
    linears = {name for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert {name for name, *_ in report.taken} | {name for name, *_ in report.left} == linears
    text = str(report)
    assert text.startswith("2 of 7 linear layers with what follows them are operations of rowfold")
    assert "taken  block.up of block: linear | gelu" in text
    assert "left   last: it is called by Model, of which the forward cannot be traced at test_torch_partial.py:" in text
    assert "0 is an" not in text and "encoder is an nn.TransformerEncoderLayer, which PyTorch runs as a whole" in text
    assert type(partly) is Model and list(partly.state_dict()) == list(model.state_dict())
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        agree(partly(x), model(x))
        model.energy.head.weight.mul_(3)
        agree(partly(x), model(x))


def test_explain_prints_the_report(mlp, capsys):
    rt.fuse(mlp, partial=True, explain=True)
    assert "2 of 2 linear layers" in capsys.readouterr().out


def test_a_report_is_only_of_what_partial_returned(mlp):
    with pytest.raises(rowfold.FuseError, match="there is no report of this Sequential"):
        rt.report(mlp)


# As modules.


def test_copies_and_pickles(mlp):
    x = torch.randn(3, 8)
    for module in (mlp, torch_zoo.Branching().eval(), torch_zoo.MeanOverBatch(), torch_zoo.LoraMerged()):
        partly = rt.fuse(module, partial=not isinstance(module, torch_zoo.Headed))
        given = x if module is mlp or isinstance(module, torch_zoo.Headed) else torch.randn(2, 5, 8)
        for other in (copy.deepcopy(partly), pickle.loads(pickle.dumps(partly))):
            with torch.no_grad():
                agree(other(given), module(given))
                for parameter in other.parameters():
                    parameter.zero_()
                assert all(p.abs().sum() > 0 for p in module.parameters() if p.ndim > 1)
                assert not torch.equal(other(given), module(given))


def test_a_replaced_layer_is_noticed(mlp):
    partly = rt.fuse(mlp, partial=True)
    x = torch.randn(3, 8)
    with torch.no_grad():
        agree(partly(x), mlp(x))
        mlp[0] = nn.Linear(8, 16)
        agree(partly(x), mlp(x))
        assert partly._parts[0].calls["as written"] == 0


def test_compile_without_a_graph_break(mlp):
    torch._dynamo.reset()
    partly = rt.fuse(mlp, partial=True).requires_grad_(False)
    x = torch.randn(3, 8)
    compiled = torch.compile(partly, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), partly(x), rtol=0, atol=0)


def test_compile_of_computed_weights():
    torch._dynamo.reset()
    module = torch_zoo.LoraMerged().requires_grad_(False)
    fused, x = rt.fuse(module), torch.randn(3, 8)
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-5, atol=1e-5)


def test_export_has_the_operator(mlp):
    partly = rt.fuse(mlp, partial=True).requires_grad_(False)
    x = torch.randn(3, 8)
    program = torch.export.export(partly, (x,))
    assert str(program.graph).count("rowfold.fused") == 2
    torch.testing.assert_close(program.module()(x), partly(x), rtol=0, atol=0)


def test_partly_fused_within_larger(mlp):
    partly = rt.fuse(mlp, partial=True)
    outer = nn.Sequential(nn.LayerNorm(8), partly, nn.Linear(6, 2), nn.ReLU())
    again = rt.fuse(outer, partial=True)
    x = torch.randn(3, 8)
    with torch.no_grad():
        agree(again(x), outer(x))
    assert [name for name, *_ in rt.report(again).taken] == ["2"]


# Weights that are computed.


def test_computed_weights_follow_their_sources():
    torch.manual_seed(7)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 6))
    module = module_of(lambda self, x: self.layer(x).logsumexp(-1), layer=layer)
    fused = rt.fuse(module)
    x = torch.randn(3, 8)
    with torch.no_grad():
        agree(fused(x), module(x))
        held = fused._runner
        agree(fused(x), module(x))
        assert fused._runner is held  # nothing has changed, and nothing was loaded
        layer.parametrizations.weight.original0.mul_(2)
        agree(fused(x), module(x))
        assert fused._runner is not held
    with pytest.raises(ValueError, match="layer.parametrizations.weight.original0 requires grad and grad mode is on"):
        fused(x)


def test_computed_weights_are_borrowed():
    module = torch_zoo.Pruned()
    fused = rt.fuse(module)
    assert fused._plan.owned
    with torch.no_grad():
        fused(torch.randn(3, 8))
        (held,) = fused._made.values()
        assert fused._runner.loaded.weight.data_ptr() == held[2].data_ptr()


def test_a_parametrization_that_changes_while_it_trains_needs_eval():
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6))
    module = module_of(lambda self, x: self.layer(x).logsumexp(-1), layer=layer)
    with pytest.raises(rowfold.FuseError, match="layer.weight is parametrized by what keeps buffers; call eval"):
        rt.fuse(module)
    fused = rt.fuse(module.eval())
    with torch.no_grad():
        agree(fused(torch.ones(3, 8)), module(torch.ones(3, 8)))
        module.train()
        with pytest.raises(rowfold.FuseError, match="layer.parametrizations.weight was put in training mode"):
            fused(torch.ones(3, 8))


def test_an_export_to_onnx_gets_the_original_s_operators(monkeypatch):
    """What the exporter sees while it runs the forward; it needs packages that are not here."""
    fused = rt.fuse(torch_zoo.LogZ()).requires_grad_(False)
    partly = rt.fuse(torch_zoo.NormThenHead(), partial=True).requires_grad_(False)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    x = torch.randn(3, 8)
    for module in (fused, partly):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = torch.jit.trace(module, x, check_trace=False).inlined_graph
        assert "rowfold::fused" not in str(graph)
        assert "rowfold" not in str(
            torch.export.export(module, (x,)).graph
        )  # of which the newer exporter makes its graph
        agree(module(x), module.original(x))


def test_vmap_over_parameters_is_computed_as_written():
    module = torch_zoo.NormThenHead().eval()
    partly, x = rt.fuse(module, partial=True), torch.randn(3, 8)
    several = {name: torch.stack([p, p * 2]).detach() for name, p in module.named_parameters()}

    def over(model):
        call = torch.func.vmap(lambda parameters: torch.func.functional_call(model, parameters, (x,)))
        with torch.no_grad():
            return call(several)

    agree(over(partly), over(module))
    assert "torch.vmap maps over the parameters" in str(rt.report(partly))
