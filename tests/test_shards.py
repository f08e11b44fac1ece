# SPDX-License-Identifier: MIT
"""One layer in parts: states of shards, merged, have the bits of one model with all columns."""

from __future__ import annotations

import ctypes
import dataclasses
import pickle

import numpy as np
import pytest
import rowfold
from rowfold import _lib
from rowfold.shards import groups_of

K = 24
CHAINS = (
    "linear | logsumexp | gelu",
    "linear | mul(@s) | softcap(30) | logsumexp, max | exp, argmax, entropy, (abs | mean)",
    "linear | logprob(#target, -100), argmin, pick(#other), min",
    "linear | var, (mul(@s) | std(0)), norm, (abs | var | sqrt)",
)


def layer(n: int, seed: int = 0, dtype: str = "float32"):
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(n, K)).astype(dtype)
    return W, rng.normal(size=n).astype(dtype), {"s": rng.uniform(0.5, 2, n).astype(dtype)}, rng


def rows_of(chain: str, lead: tuple[int, ...], n: int, rng) -> dict[str, np.ndarray]:
    rows = {}
    if "#target" in chain:
        target = rng.integers(0, n, lead)
        target[..., :1] = -100
        rows = {"target": target, "other": rng.integers(0, n, lead).astype(np.int32)}
    return rows


def model_of(chain, W, b, vectors, backend, first=0, count=None, total=None, **keywords):
    rows = slice(first, None if count is None else first + count)
    named = {name: v[rows] for name, v in vectors.items() if f"@{name}" in chain}
    model = rowfold.Model(
        chain,
        K,
        len(W[rows]),
        dtype=W.dtype,
        backend=backend,
        simplify="none",
        first_column=first,
        total_columns=total,
        **keywords,
    )
    return model.load_weights(W[rows], b[rows], named)


def as_tuple(y):
    return y if isinstance(y, tuple) else (y,)


def near(got, right, backend):
    """On a GPU one model with all columns has other last bits than merged states."""
    if backend == "cuda" and got.dtype.kind == "f":
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_do_not_depend_on_the_number_of_shards(backend, chain, dtype):
    n = 4700
    W, b, vectors, rng = layer(n, dtype=dtype)
    x = rng.normal(size=(2, 2, K)).astype(dtype)
    rows = rows_of(chain, (2, 2), n, rng)
    expected = as_tuple(model_of(chain, W, b, vectors, backend)(x, **rows))
    for shards in (1, 2, 4, 8, 20):
        parts = []
        for shard in range(shards):
            first, count = rowfold.shard_columns(n, shard, shards)
            model = model_of(chain, W, b, vectors, backend, first, count, n)
            parts.append(pickle.loads(pickle.dumps(model.states(x, **rows))))
        for got, right in zip(as_tuple(rowfold.merge_states(model, parts, **rows)), expected):
            assert got.dtype == right.dtype
            near(got, right, backend if shards == 1 else "")
        if backend == "cuda" and shards == 1:  # to which the others are compared bit for bit
            expected = as_tuple(rowfold.merge_states(model, parts, **rows))


@pytest.mark.parametrize("chain", [CHAINS[1], CHAINS[3]])
def test_shards_that_begin_anywhere_give_right_results(backend, chain):
    W, b, vectors, rng = layer(1000)
    x = rng.normal(size=(3, K)).astype(np.float32)
    whole = model_of(chain, W, b, vectors, backend)
    cuts = [0, 0, 1, 333, 334, 800, 1000, 1000]
    models = [model_of(chain, W, b, vectors, backend, first, end - first, 1000) for first, end in zip(cuts, cuts[1:])]
    parts = [model.states(x) for model in models]
    for got, right in zip(rowfold.merge_states(models[0], parts, keepdims=False), whole(x, keepdims=False)):
        np.testing.assert_allclose(got, right, rtol=1e-5 if backend == "cuda" else 2e-6)
    # A model of all columns merges, too.
    for got, right in zip(rowfold.merge_states(whole, parts), whole(x)):
        assert got.dtype == right.dtype and got.shape == right.shape


def test_borders():
    assert rowfold.state_groups(0) == [0]
    assert rowfold.state_groups(300) == [0, 256, 300]
    borders = rowfold.state_groups(128256)
    assert len(borders) == 17 and borders[-1] == 128256 and not any(border % 256 for border in borders[:-1])
    assert [rowfold.shard_columns(128256, i, 2) for i in range(2)] == [
        (0, borders[8]),
        (borders[8], 128256 - borders[8]),
    ]
    with pytest.raises(rowfold.InvalidArgumentError, match="shard is 2; expected 0 to 1"):
        rowfold.shard_columns(10, 2, 2)


def test_groups_of_a_shard():
    rng = np.random.default_rng(3)
    for total in (1, 256, 700, 5000, 128256):
        borders = rowfold.state_groups(total)
        for _ in range(20):
            first, end = sorted(rng.integers(0, total + 1, 2).tolist())
            model = rowfold.Model("linear | max", 4, end - first, first_column=first, total_columns=total)
            assert groups_of(first, end - first, borders) == model.states_info.num_groups


def test_what_a_shard_says_of_itself():
    model = rowfold.Model("linear | max", 4, 300, first_column=256, total_columns=700)
    info = model.info
    assert (info.first_column, info.out_features, info.total_columns) == (256, 300, 700)
    states = model.states_info
    assert (states.dtype, states.num_words, states.num_groups) == ("float64", 2, 2)
    assert "columns 256 to 555 of 700" in model.explain()
    assert model.explain(8, "json")["first_column"] == 256
    whole = rowfold.Model("linear | max", 4, 300)
    assert (whole.info.first_column, whole.info.total_columns) == (0, 300)
    assert whole.states_info.chain != states.chain


@pytest.mark.parametrize("form", ["text", "ops", "sizes"])
def test_an_empty_shard_has_no_states(form):
    chain = {"text": "linear | max", "ops": rowfold.Chain.parse("linear | max"), "sizes": "linear(4, 0) | max"}[form]
    sizes = () if form == "sizes" else (4, 0)
    model = rowfold.Model(chain, *sizes, first_column=5, total_columns=5)
    model.load_weights(np.empty((0, 4), np.float32))
    x = np.ones((2, 4), np.float32)
    states = model.states(x)
    assert states.data.shape == (2, 0, 2) and states.num_columns == 0
    rest = rowfold.Model("linear | max", 4, 5, total_columns=5).load_weights(np.ones((5, 4), np.float32))
    np.testing.assert_array_equal(rowfold.merge_states(model, [rest.states(x), states]), [[4], [4]])


def test_the_sizes_may_be_the_weights():
    W, b, _, rng = layer(700)
    x = rng.normal(size=(3, K)).astype(np.float32)
    parts = []
    for first, end in ((0, 512), (512, 700), (700, 700)):
        model = rowfold.Model("linear | logsumexp", first_column=first, total_columns=700)
        parts.append(model.load_weights(W[first:end], b[first:end]).states(x))
    right = rowfold.Model("linear | logsumexp").load_weights(W, b)(x)
    np.testing.assert_array_equal(rowfold.merge_states(model, parts), right)


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_rows_of_a_file(tmp_path, kind):
    W, b, vectors, rng = layer(700)
    x = rng.normal(size=(3, K)).astype(np.float32)
    path = tmp_path / f"layer.{kind}"
    if kind == "npz":
        np.savez(path, w=W, b=b, s=vectors["s"])
    else:
        pytest.importorskip("safetensors.numpy").save_file({"w": W, "b": b, **vectors}, path)
    named = {"weight": "w", "bias": "b", "vectors": {"s": "s"}}
    chain = "linear | mul(@s) | logsumexp"
    parts = []
    for shard in range(3):
        first, count = rowfold.shard_columns(700, shard, 3)
        sizes = {"first_column": first, "out_features": count, "total_columns": 700}
        model = pickle.loads(pickle.dumps(rowfold.Model.from_file(path, chain, **named, **sizes)))
        parts.append(model.states(x))
    right = rowfold.Model.from_file(path, chain, **named)(x)
    np.testing.assert_array_equal(rowfold.merge_states(model, parts), right)
    with pytest.raises(rowfold.InvalidArgumentError, match="out_features is not given"):
        rowfold.Model.from_file(path, chain, **named, total_columns=700)
    with pytest.raises(rowfold.InvalidArgumentError, match=r"\b701\b"):
        rowfold.Model.from_file(path, chain, **named, out_features=5, total_columns=701)


def test_torch_tensors_give_torch_tensors():
    torch = pytest.importorskip("torch")
    W, b, _, rng = layer(700)
    x = torch.from_numpy(rng.normal(size=(2, 3, K)).astype(np.float32))
    parts = []
    for shard in range(2):
        first, count = rowfold.shard_columns(700, shard, 2)
        model = rowfold.Model("linear | logsumexp", K, count, first_column=first, total_columns=700)
        parts.append(model.load_weights(W[first : first + count], b[first : first + count]).states(x))
    assert isinstance(parts[0].data, torch.Tensor)
    y = rowfold.merge_states(model, parts, keepdims=False)
    assert isinstance(y, torch.Tensor) and y.shape == (2, 3)
    np.testing.assert_array_equal(y, rowfold.Model("linear | logsumexp").load_weights(W, b)(x.numpy())[..., 0])


def test_states_that_are_not_dense_are_copied():
    W, b, _, rng = layer(600)
    x = rng.normal(size=(5, K)).astype(np.float32)
    model = rowfold.Model("linear | logsumexp").load_weights(W, b)
    dense = model.states(x)
    wide = np.full((5, 3, 4), np.nan)
    wide[:, :, 1:3] = dense.data
    part = rowfold.States(wide[:, :, 1:3], 0, 600, 600, dense.chain)
    y = rowfold.merge_states(model, [part])
    np.testing.assert_array_equal(y, rowfold.merge_states(model, [dense]))
    if model.info.backend.startswith("cuda"):  # a plain call there may have other last bits
        np.testing.assert_allclose(y, model(x), rtol=4 * np.finfo(np.float32).eps)
    else:
        np.testing.assert_array_equal(y, model(x))


def test_wrong_calls():
    W, b, _, rng = layer(700)
    x = rng.normal(size=(3, K)).astype(np.float32)
    model = rowfold.Model("linear | max", K, 300, first_column=256, total_columns=700).load_weights(W[:300])
    with pytest.raises(
        rowfold.InvalidArgumentError,
        match=r"columns 256 to 555 of 700, and has no results of its own; expected a call of states\(x\), then merge",
    ):
        model(x)
    part = model.states(x)
    with pytest.raises(rowfold.InvalidArgumentError, match=r"parts\[0\] has 300 columns from column 256"):
        rowfold.merge_states(model, [part])
    with pytest.raises(rowfold.InvalidArgumentError, match="parts is empty"):
        rowfold.merge_states(model, [])
    with pytest.raises(rowfold.ArgumentTypeError, match=r"parts\[0\] is a numpy.ndarray; expected what Model.states"):
        rowfold.merge_states(model, [part.data])
    with pytest.raises(rowfold.InvalidArgumentError, match=r"parts\[1\] is of x .* \(2,\), and parts\[0\] \(3,\)"):
        rowfold.merge_states(model, [part, model.states(x[:2])])
    with pytest.raises(rowfold.ArgumentTypeError, match=r"parts\[0\].data has dtype float32; expected float64"):
        rowfold.merge_states(model, [rowfold.States(part.data.astype(np.float32), 256, 300, 700, part.chain)])
    other = rowfold.Model("linear | min", K, 700).load_weights(W)
    with pytest.raises(rowfold.InvalidArgumentError, match=r"parts\[0\] was written by a model of another chain"):
        rowfold.merge_states(rowfold.Model("linear | max", K, 700), [other.states(x)])
    with pytest.raises(rowfold.UnsupportedError, match="folds no columns"):
        rowfold.Model("linear | gelu", K, 700).load_weights(W).states(x)
    with pytest.raises(rowfold.InvalidArgumentError, match="first_column is 500 .* for out_features, 300$"):
        rowfold.Model("linear | max", K, 300, first_column=500, total_columns=700)
    with pytest.raises(rowfold.NotLoadedError):
        rowfold.Model("linear | max", K, 300, total_columns=700).states(x)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"groups": 6}, ValueError, r"data has shape \(3, 6, 2\); expected \(..., 3, 2\), the groups of 700 columns"),
        ({"groups": 2}, ValueError, r"data has shape \(3, 2, 2\); expected \(..., 3, 2\), the groups of 700 columns"),
        ({"num_columns": 300}, ValueError, r"expected \(..., 2, 2\), the groups of 300 columns from column 0 on"),
        ({"num_columns": 0}, ValueError, r"expected \(..., 0, 2\), the groups of 0 columns from column 0 on"),
        ({"num_columns": 2**64 + 700}, ValueError, r"num_columns is 18446744073709552316; expected 0 to 2\*\*63 - 1"),
        ({"num_columns": 700.0}, TypeError, "num_columns is 700.0; expected an int"),
        ({"num_columns": 701}, ValueError, r"^parts\[0\] has 701 columns from column 0"),
        ({"first_column": -1}, ValueError, "first_column is -1; expected 0 to"),
        ({"first_column": None}, TypeError, "first_column is None; expected an int"),
        ({"chain": 2**64}, ValueError, r"chain is 18446744073709551616; expected 0 to 2\*\*64 - 1"),
    ],
)
def test_states_that_do_not_fit_their_columns(change, error, message):
    W, b, _, rng = layer(700)
    x = rng.normal(size=(3, K)).astype(np.float32)
    model = rowfold.Model("linear | logsumexp").load_weights(W, b)
    part = model.states(x)
    data = np.concatenate([part.data, part.data], -2)[:, : change.get("groups", 3)]
    numbers = {name: value for name, value in change.items() if name != "groups"}
    with pytest.raises(error, match=message) as caught:
        rowfold.merge_states(model, [dataclasses.replace(part, data=data, **numbers)])
    assert isinstance(caught.value, rowfold.Error)
    assert str(caught.value).startswith("parts[0]")
    same = dataclasses.replace(part, num_columns=np.int64(700), chain=np.uint64(part.chain))
    np.testing.assert_array_equal(rowfold.merge_states(model, [same]), rowfold.merge_states(model, [part]))


@pytest.mark.parametrize(
    ("reduction", "name"),
    [("rank(#t)", "rank"), ("topk(3)", "topk"), ("gather(#t)", "gather"), ("max, topk(3)", "topk")],
)
def test_what_needs_all_columns_in_one_model_is_refused(backend, reduction, name):
    W, _, _, rng = layer(700)
    x = rng.normal(size=(2, K)).astype(np.float32)
    t = {"t": np.array([[1], [2]])} if "#t" in reduction else {}
    with pytest.raises(rowfold.UnsupportedError, match=f"^{name} needs all columns of the layer .* 300 of 700"):
        rowfold.Model(f"linear | {reduction}", K, 300, total_columns=700, backend=backend)
    try:
        whole = rowfold.Model(f"linear | {reduction}", backend=backend).load_weights(W)
    except rowfold.UnsupportedError:
        assert backend == "cuda"  # which has no kernel for it
        return
    with pytest.raises(rowfold.UnsupportedError, match=f"^{name} has no states"):
        whole.states(x, **t)
    with pytest.raises(rowfold.UnsupportedError, match=f"^{name} has no states"):
        rowfold.merge_states(whole, [rowfold.States(np.zeros((2, 3, 2)), 0, 700, 700, 0)], **t)


@pytest.mark.parametrize("n", [5, 300])
def test_states_of_all_columns_of_one_model(backend, n):
    W, b, vectors, rng = layer(n)
    x = rng.normal(size=(70, K)).astype(np.float32)
    for chain in CHAINS:
        rows = rows_of(chain, (70,), n, rng)
        whole = model_of(chain, W, b, vectors, backend)
        for got, right in zip(
            as_tuple(rowfold.merge_states(whole, [whole.states(x, **rows)], **rows)), as_tuple(whole(x, **rows))
        ):
            near(got, right, backend)


def test_a_target_in_another_shard_is_no_error_and_one_outside_is():
    W, b, _, rng = layer(700)
    model = rowfold.Model("linear | pick(#t)", K, 300, total_columns=700).load_weights(W[:300])
    x = rng.normal(size=(2, K)).astype(np.float32)
    rest = rowfold.Model("linear | pick(#t)", K, 400, first_column=300, total_columns=700).load_weights(W[300:])
    t = np.array([699, 5])
    y = rowfold.merge_states(model, [model.states(x, t=t), rest.states(x, t=t)], t=t)
    np.testing.assert_allclose(y[:, 0], np.sum(x * W[t], 1), rtol=1e-5)
    with pytest.raises(rowfold.InvalidArgumentError, match="is 700 in row 0; pick expects a column from 0 to 699"):
        model.states(x, t=np.array([700, 5]))


def test_a_shard_has_its_own_logits():
    W, b, _, rng = layer(700)
    x = rng.normal(size=(2, K)).astype(np.float32)
    whole = rowfold.Model("linear | tanh").load_weights(W)(x)
    shard = rowfold.Model("linear | tanh", first_column=512, total_columns=700).load_weights(W[512:])
    np.testing.assert_array_equal(shard(x), whole[:, 512:])


def forward_sharded(model, x, all_gather, y):
    """One rank of one, by the C function."""
    by = _lib.Collective(ctypes.sizeof(_lib.Collective), None, 0, 1, 1.5, _lib.AllGather(all_gather))
    args = _lib.ForwardArgs(
        size=ctypes.sizeof(_lib.ForwardArgs), x=x.ctypes.data, y=y.ctypes.data, batch=len(x), states=None
    )
    handle = model._open()
    handle.library.rf_model_forward_sharded(handle.pointer, ctypes.byref(by), ctypes.byref(args))


def test_a_collective_of_python():
    W, b, _, rng = layer(700)
    x = rng.normal(size=(3, K)).astype(np.float32)
    model = rowfold.Model("linear | logsumexp").load_weights(W, b)
    y, sizes = np.full((3, 1), np.nan, np.float32), []

    def alone(user, send, receive, size, timeout, failed, message, message_size):
        assert timeout == 1.5 and failed[0] == -1
        sizes.append(size)
        ctypes.memmove(receive, send, size)
        return 0

    forward_sharded(model, x, alone, y)
    np.testing.assert_array_equal(y, model(x))
    assert sizes == [512, 512, 3 * 3 * 2 * 8]

    def broken(user, send, receive, size, timeout, failed, message, message_size):
        failed[0] = 0
        ctypes.memmove(message, b"the cable is out\0", 17)
        return 1

    with pytest.raises(
        rowfold.CommunicationError, match="^the exchange of shapes failed, for rank 0: the cable is out$"
    ):
        forward_sharded(model, x, broken, y)
