# SPDX-License-Identifier: MIT
"""Model with several results and row inputs: named tuples, out=, kinds of arrays, and every wrong call."""

from __future__ import annotations

import numpy as np
import pytest
import rowfold

CHAIN = "linear | div(#temperature) | logprob(#target), argmax, max, (abs | max)"
RNG = np.random.default_rng(5)
W = RNG.normal(size=(40, 6)).astype(np.float32)
X = RNG.normal(size=(2, 3, 6)).astype(np.float32)
IDS = RNG.integers(0, 40, (2, 3))
HEAT = RNG.uniform(0.5, 2, (2, 3)).astype(np.float32)


@pytest.fixture
def model():
    with rowfold.Model(CHAIN, 6, 40, device="cpu") as made:
        yield made.load_weights(W)


def expected():
    z = X.astype(np.float64) @ W.T / HEAT[..., None]
    logs = z - np.log(np.exp(z).sum(-1, keepdims=True))
    return np.take_along_axis(logs, IDS[..., None], -1), z.argmax(-1)[..., None], z.max(-1), np.abs(z).max(-1)


def test_results_are_a_named_tuple(model):
    y = model(X, target=IDS, temperature=HEAT)
    assert y._fields == ("logprob", "argmax", "max", "max_2")
    for got, want in zip(y, expected()):
        assert got.shape == (2, 3, 1)
        np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-5, atol=1e-6)
    assert y.argmax.dtype == np.int64 and y.logprob.dtype == np.float32
    info = model.info
    assert [(r.name, r.features, r.dtype) for r in info.results][:2] == [
        ("logprob", 1, "float32"),
        ("argmax", 1, "int64"),
    ]
    assert info.row_inputs == {"temperature": "number", "target": "column"}


def test_row_inputs_have_many_forms(model):
    want = model(X, target=IDS, temperature=HEAT)
    ones = model(X, target=IDS, temperature=np.ones((2, 3), np.float32))
    for target, temperature, same in [
        (IDS.astype(np.int32), HEAT, want),
        (IDS[..., None], HEAT[..., None], want),
        (np.asfortranarray(IDS), np.repeat(HEAT, 2, axis=1)[:, ::2], want),
        (IDS, 1, ones),
        (IDS, 1.0, ones),
    ]:
        got = model(X, target=target, temperature=temperature)
        assert all(np.array_equal(a, b) for a, b in zip(got, same))
    row = model(X[0, 0], target=IDS[0, 0], temperature=HEAT[0, 0])
    assert row.logprob.shape == (1,) and row.logprob[0] == want.logprob[0, 0, 0]


def test_out_is_a_sequence(model):
    want = model(X, target=IDS, temperature=HEAT)
    out = [np.zeros_like(y) for y in want]
    got = model(X, out, target=IDS, temperature=HEAT)
    assert all(y is o for y, o in zip(got, out)) and all(np.array_equal(y, w) for y, w in zip(out, want))
    with pytest.raises(rowfold.InvalidArgumentError, match="out has 3 arrays; expected 4"):
        model(X, out[:3], target=IDS, temperature=HEAT)
    with pytest.raises(TypeError, match="out has dtype float32; expected int64"):
        model(X, [out[0], out[0], out[2], out[3]], target=IDS, temperature=HEAT)


def test_torch_tensors_stay_tensors(model):
    torch = pytest.importorskip("torch")
    want = model(X, target=IDS, temperature=HEAT)
    y = model(torch.tensor(X), target=torch.tensor(IDS), temperature=torch.tensor(HEAT))
    assert all(isinstance(v, torch.Tensor) for v in y) and y.argmax.dtype is torch.int64
    assert all(np.array_equal(v.numpy(), w) for v, w in zip(y, want))
    with pytest.raises(rowfold.Error, match="'temperature' requires grad"):
        model(torch.tensor(X), target=torch.tensor(IDS), temperature=torch.tensor(HEAT, requires_grad=True))


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ({}, ValueError, "#temperature is missing; expected temperature=, a number for each row"),
        ({"temperature": HEAT}, ValueError, "#target is missing; expected target=, a column for each row"),
        ({"temperature": HEAT, "target": IDS, "more": 1}, ValueError, "names no #more; it has #temperature, #target"),
        ({"temperature": HEAT, "target": IDS[0]}, ValueError, "'target' has shape (3,); expected (2, 3)"),
        ({"temperature": HEAT, "target": 3}, TypeError, "'target' is 3; expected an array of a column for each row"),
        ({"temperature": HEAT, "target": HEAT}, TypeError, "'target' has dtype float32; expected int64 or int32"),
        ({"temperature": HEAT, "target": IDS.astype(np.uint8)}, TypeError, "has dtype uint8; expected int64 or int32"),
        ({"temperature": IDS, "target": IDS}, TypeError, "'temperature' has dtype int64; expected float32"),
        ({"temperature": HEAT.astype(np.float64), "target": IDS}, TypeError, "'temperature' has dtype float64"),
        ({"temperature": HEAT, "target": IDS + 40}, ValueError, 'row input "target" is'),
        ({"temperature": HEAT, "target": "ids"}, TypeError, "'target' is a str; expected an array"),
    ],
)
def test_wrong_row_inputs(model, rows, error, message):
    out = [np.full((2, 3, 1), 7, np.int64 if i == 1 else np.float32) for i in range(4)]
    with pytest.raises(error) as caught:
        model(X, out, **rows)
    assert message in str(caught.value)
    assert all((y == 7).all() for y in out)


def test_one_result_may_have_row_inputs_and_one_may_be_a_column():
    with rowfold.Model("linear | argmax", 6, 40, device="cpu") as model:
        y = model.load_weights(W)(X)
        assert y.dtype == np.int64 and np.array_equal(y[..., 0], (X.astype(np.float64) @ W.T).argmax(-1))
        with pytest.raises(rowfold.InvalidArgumentError, match="names no #target; it has no row inputs"):
            model(X, target=IDS)
    with rowfold.Model("linear | pick(#c)", 6, 40, device="cpu") as model:
        y = model.load_weights(W)(X, c=IDS)
        assert isinstance(y, np.ndarray) and y.shape == (2, 3, 1)
    with pytest.raises(rowfold.InvalidArgumentError, match="row input #out"):
        rowfold.Model("linear | div(#out) | max", 6, 40)
