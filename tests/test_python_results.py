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
    with pytest.raises(TypeError, match="out of argmax has dtype float32; expected int64"):
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
        (
            {"temperature": HEAT, "target": np.full((2, 3), np.nan)},
            TypeError,
            "'target' has dtype float64; expected int64",
        ),
        (
            {"temperature": 10**400, "target": IDS},
            ValueError,
            "'temperature' is larger than any float64",
        ),
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


MORE = "linear | logprob(#target), topk(3), gather(#kept), rank(#target), (abs | topk(1)), std"
KEPT = RNG.integers(0, 40, (2, 3, 4))


@pytest.fixture
def more():
    with rowfold.Model(MORE, 6, 40, device="cpu") as made:
        yield made.load_weights(W)


def logits():
    return X.astype(np.float64) @ W.T


def test_topk_is_a_pair(more):
    y = more(X, target=IDS, kept=KEPT)
    assert y._fields == ("logprob", "topk", "gather", "rank", "topk_2", "std")
    z = logits()
    order = np.argsort(-z, axis=-1, kind="stable")
    assert np.array_equal(y.topk.indices, order[..., :3]) and y.topk.indices.dtype == np.int64
    np.testing.assert_allclose(y.topk.values, np.take_along_axis(z, order[..., :3], -1), rtol=1e-5)
    np.testing.assert_allclose(y.gather, np.take_along_axis(z, KEPT, -1), rtol=1e-4, atol=1e-5)
    assert np.array_equal(y.rank, np.argmax(order == IDS[..., None], axis=-1)[..., None]) and y.rank.dtype == np.int64
    assert y.topk_2.values.shape == (2, 3, 1)
    np.testing.assert_allclose(y.std[..., 0], z.std(-1, ddof=1), rtol=1e-5)
    flat = more(X, keepdims=False, target=IDS, kept=KEPT)
    assert flat.logprob.shape == (2, 3) and flat.topk.values.shape == (2, 3, 3)
    assert flat.topk_2.values.shape == (2, 3, 1) and flat.gather.shape == (2, 3, 4)
    assert [(r.name, r.features, r.part, r.row_input) for r in more.info.results[1:4]] == [
        ("topk", 3, 0, None),
        ("topk_indices", 3, 1, None),
        ("gather", 0, 0, "kept"),
    ]
    assert more.info.row_inputs == {"target": "column", "kept": "columns"}


def test_out_of_topk_is_a_pair(more):
    want = more(X, target=IDS, kept=KEPT)
    out = [tuple(map(np.zeros_like, y)) if isinstance(y, tuple) else np.zeros_like(y) for y in want]
    got = more(X, out, target=IDS, kept=KEPT)
    assert got.topk.indices is out[1][1] and np.array_equal(got.topk.indices, want.topk.indices)
    assert got.gather is out[2] and np.array_equal(got.gather, want.gather)
    with pytest.raises(TypeError, match="out of topk is a ndarray; expected a pair of arrays, values and columns"):
        more(X, [out[0], out[0], *out[2:]], target=IDS, kept=KEPT)
    with pytest.raises(TypeError, match="out of topk_indices has dtype float32; expected int64"):
        more(X, [out[0], (out[1][0], out[1][0]), *out[2:]], target=IDS, kept=KEPT)


def test_topk_alone_is_what_torch_gives():
    torch = pytest.importorskip("torch")
    with rowfold.Model("linear | topk(5)", 6, 40, device="cpu") as model:
        values, indices = model.load_weights(W)(torch.tensor(X))
        theirs = torch.topk(torch.tensor(logits()), 5)
        assert torch.equal(indices, theirs.indices) and torch.allclose(values.double(), theirs.values)
        again = model(torch.tensor(X))
        assert torch.equal(again.values, values) and torch.equal(again.indices, indices)


class Instead:
    """Of the arrays of ``out`` for MORE, one is another."""

    def __init__(self, place, made):
        self.place, self.made = place, made

    def __call__(self, out):
        return [self.made(one) if i == self.place else one for i, one in enumerate(out)]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (Instead(0, lambda y: y[:1]), ValueError, "out of logprob has shape (1, 3, 1); expected (2, 3, 1)"),
        (Instead(0, lambda y: y.astype(np.int64)), TypeError, "out of logprob has dtype int64; expected float32, flo"),
        (
            Instead(0, lambda y: y.astype(np.float64)),
            TypeError,
            "of logprob has dtype float64; expected float32",
        ),
        (Instead(0, lambda y: None), TypeError, "out of logprob is a NoneType; expected a numpy.ndarray, as x is one"),
        (
            Instead(1, lambda y: (y[0], y[1].astype(np.int32))),
            TypeError,
            "topk_indices has dtype int32; expected",
        ),
        (
            Instead(1, lambda y: (y[0][..., :2], y[1])),
            ValueError,
            "topk has shape (2, 3, 2); expected (2, 3, 3)",
        ),
        (Instead(2, lambda y: y[..., :3]), ValueError, "out of gather has shape (2, 3, 3); expected (2, 3, 4)"),
        (Instead(3, lambda y: y.astype(np.float32)), TypeError, "out of rank has dtype float32; expected int64"),
        (lambda out: [*out[:5], out[0]], ValueError, "out of std overlaps out of logprob; expected separate buffers"),
        (lambda out: out[:5], ValueError, "out has 5 arrays; expected 6, one for each result"),
        (
            lambda out: dict(enumerate(out)),
            TypeError,
            "out is a dict; expected a sequence of 6 arrays",
        ),
        (lambda out: out[0], TypeError, "out is a ndarray; expected a sequence of 6 arrays"),
    ],
)
def test_wrong_out(more, change, error, message):
    good = more(X, target=IDS, kept=KEPT)
    out = [tuple(np.full_like(a, 7) for a in y) if isinstance(y, tuple) else np.full_like(y, 7) for y in good]
    given = change(out)
    with pytest.raises(error) as caught:
        more(X, given, target=IDS, kept=KEPT)
    assert message in str(caught.value)
    assert all((a == 7).all() for y in out for a in (y if isinstance(y, tuple) else (y,)))


@pytest.mark.parametrize("wanted", [[4, 0, 0, 5], [], np.array([[True, False, True], [False, False, True]]), range(6)])
def test_rows_are_as_if_indexed_first(more, wanted):
    whole = more(X, target=IDS, kept=KEPT)
    part = more(X, rows=wanted, target=IDS, kept=KEPT)
    rows = np.flatnonzero(wanted) if isinstance(wanted, np.ndarray) else list(wanted)
    for y, some in zip(whole, part):
        for a, b in zip(y if isinstance(y, tuple) else (y,), some if isinstance(some, tuple) else (some,)):
            assert np.array_equal(b, a.reshape(6, -1)[rows])
    with rowfold.Model("linear | max", 6, 40, device="cpu") as model:
        model.load_weights(W)
        assert np.array_equal(model(X, rows=wanted), model(X).reshape(6, 1)[rows])
        out = np.zeros((len(rows), 1), np.float32)
        assert model(X, out=out, rows=wanted) is out


def test_rows_that_are_not_wanted_are_not_looked_at(more):
    targets = IDS.copy()
    targets[0, 1] = 77777
    with pytest.raises(ValueError, match='row input "target" is 77777 in row 1;'):
        more(X, target=targets, kept=KEPT)
    assert more(X, rows=[0, 2], target=targets, kept=KEPT).logprob.shape == (2, 1)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([0, 6], ValueError, "rows[1] is 6; expected a row of x, of which there are 6"),
        ([-1], ValueError, "rows[0] is -1; expected a row of x"),
        ([0.5], TypeError, "rows has dtype float64; expected integers"),
        ([[0, 1]], ValueError, "rows has shape (1, 2); expected one dimension"),
        ([True, False], ValueError, "rows has shape (2,); expected (2, 3), a boolean for each row"),
        ("all", TypeError, "rows has dtype <U3; expected integers"),
        (3, ValueError, "rows has shape (); expected one dimension"),
        (np.array([2**63 + 1], np.uint64), ValueError, "rows has 9223372036854775809; expected a row of x"),
    ],
)
def test_wrong_rows(more, rows, error, message):
    with pytest.raises(error) as caught:
        more(X, rows=rows, target=IDS, kept=KEPT)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kept", "error", "message"),
    [
        (KEPT[..., 0], ValueError, "'kept' has shape (2, 3); expected (2, 3, k), k columns for each row"),
        (KEPT[..., :0], ValueError, "'kept' has shape (2, 3, 0); expected (2, 3, k), k columns for each row"),
        (KEPT.astype(np.float32), TypeError, "'kept' has dtype float32; expected int64 or int32"),
        (5, TypeError, "'kept' is 5; expected an array of k columns for each row"),
        (KEPT - 40, ValueError, 'row input "kept" is -'),
    ],
)
def test_wrong_columns(more, kept, error, message):
    with pytest.raises(error) as caught:
        more(X, target=IDS, kept=kept)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ("linear | topk(0)", "k of topk is 0; expected a whole number from 1 to 64"),
        ("linear | topk(65)", "k of topk is 65; expected a whole number from 1 to 64"),
        ("linear | topk(nan)", "k of topk is nan; expected a number"),
        ("linear | logprob(#a, 1e300)", "ignore_index of logprob is 1e300; expected a whole number from -2^53 to 2^53"),
        ("linear | topk(1.5)", "k of topk is 1.5; expected a whole number from 1 to 64"),
        ("linear | topk", "topk needs its parameter k, how many columns"),
        ("linear | topk(#k)", "topk takes numbers only, no row input"),
        ("linear | topk(41)", "k of topk is 41, and out_features 40; expected no more columns than there are"),
        ("linear | topk(3) | exp", "the result of topk is several columns; expected no operator behind it"),
        ("linear | gather(#a) | exp", "the result of gather is several columns; expected no operator behind it"),
        ("linear | rank(#a) | exp", "the result of rank is a number of columns; expected no operator behind it"),
        ("linear | max | topk(1)", "topk asks for a column, and behind max the value has 1"),
        ("linear | gather(3)", "gather needs its parameter columns, a #row_input that names columns of each row"),
        ("linear | gather(#a), pick(#a)", "#a is a column for pick and several columns for gather; expected two names"),
        ("linear | var(inf)", "correction of var is infinite; expected a number"),
        ("linear | var(nan)", "correction of var is nan"),
    ],
)
def test_wrong_chains(chain, message):
    with pytest.raises(rowfold.ChainError) as caught:
        rowfold.Model(chain, 6, 40)
    assert message in str(caught.value)


def test_ops_have_the_new_reductions():
    ops = rowfold.ops
    chain = ops.linear | (ops.topk(k=3), ops.rank("#t"), ops.gather("#g"), ops.var(0), ops.std, ops.norm)
    assert str(chain) == "linear | topk(3), rank(#t), gather(#g), var(0), std, norm"
    assert ops.Chain.parse(str(chain)) == rowfold.ops.Chain.parse(str(chain)) and len(chain) == 12
