# SPDX-License-Identifier: MIT
"""Rows that a forward takes of its logits: taken of the input instead, where that is the same."""

from __future__ import annotations

import pytest
import rowfold
from torch_modules import module_of, rt, torch

F, nn = torch.nn.functional, torch.nn

TAKEN = {
    "the last token": lambda self, x: self.linear(x)[:, -1, :].argmax(-1),
    "all but the last, as a causal loss has them": lambda self, x: (
        self.linear(x)[..., :-1, :].contiguous().logsumexp(-1)
    ),
    "flattened then": lambda self, x: (lambda h: h.view(-1, h.size(-1)).logsumexp(1))(
        self.linear(x)[:, 1:, :].contiguous()
    ),
    "of logits whose width is asked": lambda self, x: (
        lambda h: h[..., :-1, :].contiguous().view(-1, h.size(-1)).logsumexp(-1)
    )(self.linear(x)),
    "of logits whose width is asked by shape": lambda self, x: (
        lambda h: (h.float()[:, -1, :] / h.shape[-1]).logsumexp(-1)
    )(self.linear(x)),
    "after a cap": lambda self, x: (torch.tanh(self.linear(x) / 30) * 30)[:, -1, :].topk(3).values,
    "after a value of each column": lambda self, x: (self.linear(x) * self.scale).float()[:, ::2, :].logsumexp(-1),
    "after an operator in place": lambda self, x: F.relu_(self.linear(x))[:, -1, :].sum(-1),
    "twice the same": lambda self, x: (lambda h: (h[:, -1, :].amax(-1), h[:, -1, :].logsumexp(-1)))(self.linear(x)),
    "of one sequence": lambda self, x: self.linear(x)[0, :, :].relu(),
    "of a product": lambda self, x: (x @ self.linear.weight.t())[..., 1:3, :].logsumexp(-1),
}
PARTS = "takes parts of a value.* by an index of all dimensions"
LEFT = {
    "two different": (lambda self, x: (lambda h: (h[:, -1, :].amax(-1), h[:, 0, :].sum(-1)))(self.linear(x)), PARTS),
    "all and the last": (lambda self, x: (lambda h: (h[:, -1, :].amax(-1), h.sum(-1)))(self.linear(x)), PARTS),
    "maybe columns": (lambda self, x: self.linear(x)[:, -1].logsumexp(-1), PARTS),
    "columns": (lambda self, x: self.linear(x)[:, :, 2:].logsumexp(-1), PARTS),
    "of logits whose length is asked": (
        lambda self, x: (lambda h: (h[:, 1:, :] / h.shape[1]).logsumexp(-1))(self.linear(x)),
        PARTS,
    ),
    "a new dimension": (lambda self, x: self.linear(x)[:, None, :].logsumexp(-1), PARTS),
    "after a value of each token": (lambda self, x: (self.linear(x) + self.places)[:, -1, :].logsumexp(-1), PARTS),
    "after a value of the input": (
        lambda self, x: (self.linear(x) * x[..., :1])[:, -1, :].logsumexp(-1),
        "it takes parts of the input",
    ),
    "after a norm over tokens": (
        lambda self, x: self.norm(self.linear(x))[:, -1, :].logsumexp(-1),
        "norm, of 5 features|takes parts of a value",
    ),
}


def module(forward):
    torch.manual_seed(2)
    return module_of(forward, scale=torch.rand(6), places=torch.rand(5, 6), norm=nn.BatchNorm1d(5)).eval()


def results(y):
    return y if isinstance(y, tuple) else (y,)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("name", TAKEN)
def test_rows_of_the_logits_are_rows_of_the_input(name, partial, monkeypatch):
    original, x = module(TAKEN[name]), torch.randn(2, 5, 8)
    fused = rt.fuse(original, partial=partial)
    rows, run = [], rt.module.Fused._run

    def counted(self, x, *rest):
        rows.append(x.shape[:-1].numel())
        return run(self, x, *rest)

    monkeypatch.setattr(rt.module.Fused, "_run", counted)
    with torch.no_grad():
        for y, expected in zip(results(fused(x)), results(original(x))):
            assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert len(rows) == 1 and rows[0] < 10  # of 2 x 5


@pytest.mark.parametrize("name", LEFT)
def test_other_rows_are_refused(name):
    forward, message = LEFT[name]
    original, x = module(forward), torch.randn(2, 5, 8)
    with pytest.raises(rowfold.FuseError, match=message):
        rt.fuse(original)
    try:
        partly = rt.fuse(original, partial=True)
    except rowfold.FuseError:
        return
    with torch.no_grad():
        for y, expected in zip(results(partly(x)), results(original(x))):
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
