# SPDX-License-Identifier: MIT
"""What rowfold.torch.fuse does not take: each refusal names the node and the reason."""

from __future__ import annotations

import pytest
import rowfold
from torch_modules import module_of, rt, torch

F, nn = torch.nn.functional, torch.nn
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
    "argmax of all": (lambda self, x: self.linear(x).argmax(), "argmax without dim reduces the batch too"),
    "two results": (lambda self, x: (self.linear(x), self.linear.weight), "the forward returns a tuple"),
    "a log_softmax": (
        lambda self, x: torch.log_softmax(self.linear(x), -1),
        "log_softmax is fused where a column for each row is taken of it; its result is as large as the logits",
    ),
    "a log_softmax that goes on": (
        lambda self, x: torch.log_softmax(self.linear(x), -1).exp(),
        "log_softmax is fused where a column for each row is taken of it",
    ),
    "a log_softmax without dim": (
        lambda self, x: F.log_softmax(self.linear(x)),
        "acts on a dimension that depends on the input; expected dim=-1",
    ),
    "a log_softmax of the batch": (lambda self, x: F.log_softmax(self.linear(x), 0), "log_softmax acts on dim=0"),
    "the smallest few": (
        lambda self, x: self.linear(x).topk(2, largest=False),
        "it takes the smallest; expected largest=True, of the negated value",
    ),
    "too many": (lambda self, x: self.linear(x).topk(7), "k is 7; expected 1 to 6"),
    "columns of a buffer": (
        lambda self, x: self.linear(x).gather(-1, self.ids),
        "the columns are a parameter or buffer; expected a tensor that the forward is given",
    ),
    "columns of the batch": (lambda self, x: self.linear(x).gather(0, self.ids), "gather acts on dim=0"),
    "columns of all": (lambda self, x: torch.take_along_dim(self.linear(x), self.ids), "parts of the batch too"),
    "a loss of buffers": (lambda self, x: F.cross_entropy(self.linear(x), self.ids[0]), "expected a tensor that the"),
    "a loss that reduces otherwise": (
        lambda self, x: F.cross_entropy(self.linear(x), self.ids[0], reduction="max"),
        "reduction is 'max'; expected 'none', 'mean' or 'sum'",
    ),
    "a loss in the old manner": (
        lambda self, x: F.cross_entropy(self.linear(x), self.ids[0], size_average=False),
        "it has size_average or reduce, which are deprecated",
    ),
    "a loss of what is no log_softmax": (
        lambda self, x: F.nll_loss(self.linear(x), self.ids[0]),
        "it takes what is no log_softmax; expected F.log_softmax before, or cross_entropy",
    ),
    "a sum of all": (lambda self, x: self.linear(x).sum(), "sum without dim reduces the batch too"),
    "a sum over the batch": (lambda self, x: self.linear(x).sum(0), "sum acts on dim=0; expected the last dimension"),
    "a sum over two": (lambda self, x: self.linear(x).sum((0, 1)), "sum reduces the dimensions"),
    "a squeeze of columns": (lambda self, x: self.linear(x).squeeze(-1), "only where it drops the one column"),
    "an unsqueeze of columns": (lambda self, x: self.linear(x).unsqueeze(1), "it adds a dimension"),
    "a slice": (lambda self, x: self.linear(x)[:, 2:], r"the index \[:, 2:\] takes parts of a .*: take parts of the w"),
    "the shape": (lambda self, x: self.linear(x) * x.shape[0], "a size of the input that is known only when the mod"),
    "a matrix parameter": (lambda self, x: self.linear(x) * self.grid, r"grid, which mul takes, has shape \(3, 6\)"),
    "random weights": (
        lambda self, x: F.linear(x, self.linear.weight * torch.rand_like(self.linear.weight)),
        r"rand_like \(computed from linear.weight\): aten::rand_like is random, and would be drawn once",
    ),
    "another notation": (
        lambda self, x: torch.einsum("bk,nk->bn", x, self.linear.weight).sum(-1),
        r"einsum is not in the table of what rowfold fuses; write the linear layer as F.linear",
    ),
    "a comparison of all columns": (lambda self, x: (self.linear(x) > 0).any(-1), "any is not in the table"),
    "columns that are not last": (
        lambda self, x: self.linear(x).transpose(0, 1),
        r"the columns stay the last dimension; a loss takes them so, F.cross_entropy\(h.flatten\(0, 1\), y.flat",
    ),
    "two moments at once": (
        lambda self, x: torch.var_mean(self.linear(x), -1),
        r"h.var\(-1\) and h.mean\(-1\) are, in one pass",
    ),
    "a variance of all": (lambda self, x: self.linear(x).var(), "var without dim reduces the batch too"),
    "a variance, corrected twice": (
        lambda self, x: torch.var(self.linear(x), -1, self.linear.bias),
        "unbiased is a parameter or buffer beside correction; expected a bool alone",
    ),
    "a deviation with a correction that is learned": (
        lambda self, x: self.linear(x).std(-1, correction=self.s),
        "correction is a parameter or buffer; expected a number",
    ),
    "several results, one of which does not fit": (
        lambda self, x: (lambda h: (h.sum(-1), h.softmax(-1)))(self.linear(x)),
        "cannot fuse softmax .*its largest value is",
    ),
    "a mask": (
        lambda self, x: torch.where(self.r > 0, self.linear(x), 0.0),
        r"to leave columns out, take the rows of the weight that stay, F.linear\(x, W\[keep\], b\[keep\]\)",
    ),
    "relu by where": (
        lambda self, x: (lambda h: torch.where(h > 0, h, 0.0))(self.linear(x)),
        r"gives 0 where h is NaN, which no operator does; write where\(h < 0, 0, h\) or clamp",
    ),
    "another choice": (lambda self, x: (lambda h: torch.where(h > 1, h, 0.0))(self.linear(x)), "it is fused as where"),
    "a comparison": (lambda self, x: self.linear(x) > 0, "the forward returns a Comparison"),
    "a comparison with a value": (lambda self, x: self.linear(x) > x, "it compares with the input; expected a number"),
    "a threshold to another": (lambda self, x: F.threshold(self.linear(x), 1, 2), "another number than the threshold"),
    "a norm of order 3": (lambda self, x: self.linear(x).norm(3, -1), "the order is 3; expected 1, 2 or inf"),
    "a softmax of columns": (lambda self, x: self.linear(x).softmax(-1), "its result is as large as the logits"),
    "another view": (lambda self, x: self.linear(x).view(-1, 2), "a view of a value is fused only where it keeps"),
    "another flatten": (lambda self, x: self.linear(x).flatten(), "expected flatten"),
    "a cast to the type of an input of any": (
        lambda self, x: F.relu(self.linear(x.float())).to(x.dtype) * 2,
        "the type of an input that may have any, since it is cast before; cast the result outside",
    ),
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
        r"cannot be traced at test_torch_refusals.py:\d+",
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
    tensors["ids"] = torch.zeros(3, 1, dtype=torch.int64)
    module = module_of(forward, m=torch.rand(8, 5), other=nn.Linear(8, 6), norm=nn.LayerNorm(6), **tensors)
    with pytest.raises(rowfold.FuseError, match=message):
        rt.fuse(module.eval())


def test_a_refusal_names_the_node_and_its_source_line():
    def forward(self, x):
        h = self.linear(x)
        return torch.erf(h)

    with pytest.raises(
        rowfold.FuseError,
        match=r"cannot fuse erf \(erf\) at test_torch_refusals.py:\d+: return torch.erf\(h\): erf is not in",
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


def test_forwards_of_single_objects_are_refused():
    module = nn.Sequential(nn.Linear(8, 6), nn.ReLU())
    module[1].forward = torch.tanh
    with pytest.raises(rowfold.FuseError, match="1 has a forward of its own in place of its class's"):
        rt.fuse(module)
    del module[1].forward
    module.forward = torch.tanh
    with pytest.raises(rowfold.FuseError, match="the Sequential has a forward of its own in place of its class's"):
        rt.fuse(module)


def test_a_refusal_in_a_sequence_names_the_module():
    sequence = nn.Sequential(nn.Linear(8, 6), nn.Sequential(nn.Tanh(), nn.Softmax(dim=-1)))
    with pytest.raises(rowfold.FuseError, match=r"^cannot fuse 1.1 \(Softmax\): 1.1 is a Softmax, which is not"):
        rt.fuse(sequence)


def test_a_refusal_names_the_module_whose_forward_it_is():
    inner = module_of(lambda self, x: torch.erf(self.linear(x)))
    with pytest.raises(rowfold.FuseError, match=r"cannot fuse erf \(erf\) at test_torch_refusals.py:.* in inner: "):
        rt.fuse(module_of(lambda self, x: self.inner(x), inner=inner))


def test_a_refusal_says_what_partial_would_take():
    module = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(rowfold.FuseError, match=r"fuse\(module, partial=True\) takes linear \| relu of 0, and leaves"):
        rt.fuse(module)


def test_what_is_fused_already_is_refused():
    fused = rt.fuse(nn.Sequential(nn.Linear(8, 6), nn.ReLU()))
    with pytest.raises(rowfold.FuseError, match="the Fused is fused already; its attribute original is what it was"):
        rt.fuse(fused)
    with pytest.raises(rowfold.FuseError, match="0 is fused already, as an operation of its own"):
        rt.fuse(nn.Sequential(fused, nn.ReLU()))


@pytest.mark.filterwarnings("ignore")
def test_the_old_weight_norm_says_what_to_use():
    module = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 6)), nn.ReLU())
    with pytest.raises(rowfold.FuseError, match="has forward hooks.*use torch.nn.utils.parametrizations"):
        rt.fuse(module)


def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match="module is a int; expected an nn.Module or a function"):
        rt.fuse(3)
    with pytest.raises(TypeError, match="module is the class Linear; expected one of its modules"):
        rt.fuse(nn.Linear)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            lambda: torch.compile(nn.Linear(8, 6), backend="eager"),
            "compiled already; fuse the one it was made from, and",
        ),
        (
            lambda: nn.DataParallel(nn.Linear(8, 6)),
            "a DataParallel calls its module on several devices; fuse its attri",
        ),
        (lambda: nn.ModuleList([nn.Linear(8, 6)]), "a ModuleList has no forward; fuse what it holds, or use partial"),
        (lambda: lambda *tensors: tensors[0], "the forward names no parameter; expected its tensors by name, not"),
        (
            lambda: nn.LazyLinear(6),
            "is a LazyLinear, which is not .*call the model once before, which makes it a Linear",
        ),
        (
            lambda: torch.ao.nn.quantized.dynamic.Linear(8, 6),
            r"is a torch.ao.nn.quantized.dynamic.modules.linear.Linear, which is not in the table",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_wraps_or_holds_modules_says_what_to_fuse(module, message):
    made = module()
    if "which is not" in message:
        made = nn.Sequential(made, nn.ReLU())
    with pytest.raises(rowfold.FuseError, match=message):
        rt.fuse(made)


# What refusals say to write instead.

INSTEAD = {
    "the largest of a softmax": (
        lambda self, x: self.linear(x).softmax(-1).amax(-1),
        lambda self, x: (lambda h: (h.amax(-1) - h.logsumexp(-1)).exp())(self.linear(x)),
    ),
    "one of a softmax for each row": (
        lambda self, x, y: self.linear(x).softmax(-1).gather(-1, y),
        lambda self, x, y: self.linear(x).log_softmax(-1).gather(-1, y).exp(),
    ),
    "two moments": (
        lambda self, x: torch.var_mean(self.linear(x), -1),
        lambda self, x: (lambda h: (h.var(-1), h.mean(-1)))(self.linear(x)),
    ),
    "another notation": (
        lambda self, x: torch.einsum("bk,nk->bn", x, self.linear.weight).sum(-1),
        lambda self, x: F.linear(x, self.linear.weight).sum(-1),
    ),
    "masked columns": (
        lambda self, x: self.linear(x).masked_fill(~self.keep, -torch.inf).logsumexp(-1),
        lambda self, x: F.linear(x, self.linear.weight[self.keep], self.linear.bias[self.keep]).logsumexp(-1),
    ),
    "a choice that loses NaN": (
        lambda self, x: (lambda h: torch.where(h > 0, h, 0.0).sum(-1))(self.linear(x)),
        lambda self, x: (lambda h: torch.where(h < 0, 0.0, h).sum(-1))(self.linear(x)),
    ),
    "a quotient": (
        lambda self, x: (lambda h: (h / h.sigmoid()).sum(-1))(self.linear(x)),
        lambda self, x: (lambda h: (h * torch.reciprocal(h.sigmoid())).sum(-1))(self.linear(x)),
    ),
    "rows of the logits": (
        lambda self, x: self.linear(x[None])[:, -1].logsumexp(-1),
        lambda self, x: self.linear(x[None])[:, -1, :].logsumexp(-1),
    ),
}


@pytest.mark.parametrize("name", INSTEAD)
def test_what_a_refusal_says_is_fused_and_the_same(name):
    torch.manual_seed(4)
    keep = torch.tensor([True, False, True, True, False, True])
    refused, written = (module_of(forward, keep=keep) for forward in INSTEAD[name])
    written.load_state_dict(refused.state_dict())
    inputs = [torch.randn(3, 8), torch.tensor([[5], [0], [3]])][: 2 if "each row" in name else 1]
    with pytest.raises(rowfold.FuseError):
        rt.fuse(refused)
    with torch.no_grad():
        found, expected = rt.fuse(written)(*inputs), refused(*inputs)
    for ours, theirs in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, expected))):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_gated_units_by_two_layers_are_fused_in_part():
    """As the refusal of glu says: the gate with its function is an operation, the rest is PyTorch's."""

    def unit(self, x):
        return F.glu(self.linear(x), -1)

    def written(self, x):
        w, b = self.linear.weight, self.linear.bias
        return F.linear(x, w[:3], b[:3]) * F.linear(x, w[3:], b[3:]).sigmoid()

    module = module_of(unit)
    with pytest.raises(rowfold.FuseError, match="as two linear layers, F.linear.*is fused with partial=True"):
        rt.fuse(module)
    apart = module_of(written)
    apart.load_state_dict(module.state_dict())
    partly, x = rt.fuse(apart, partial=True), torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(partly(x), module(x), rtol=1e-5, atol=1e-6)
    assert [found.steps for _, _, found, _ in rt.report(partly).taken] == [["sigmoid"]]
