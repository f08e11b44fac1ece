# SPDX-License-Identifier: MIT
"""What users of numpy and scikit-learn do without thinking: keepdims, out, lists, open sizes, copies and pickles."""

from __future__ import annotations

import array
import copy
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import rowfold
from exporters import Exporter
from rowfold import Model
from test_python_files import write

try:
    import torch
except ImportError:
    torch = None

K, N = 5, 7
PYTHON = Path(__file__).resolve().parents[1] / "python"


@pytest.fixture
def weights():
    rng = np.random.default_rng(1)
    return rng.normal(size=(N, K)).astype(np.float32), rng.normal(size=N).astype(np.float32)


@pytest.fixture
def x():
    return np.random.default_rng(2).normal(size=(2, 3, K)).astype(np.float32)


def model(weights, chain="linear | logsumexp", **keywords):
    sizes = () if "linear(" in chain else (K, N)
    return rowfold.Model(chain, *sizes, **keywords).load_weights(*weights)


# keepdims and out


def test_keepdims_drops_the_column(weights, x):
    m = model(weights)
    y = m(x)
    assert y.shape == (2, 3, 1) and m(x, keepdims=False).shape == (2, 3)
    np.testing.assert_array_equal(m(x, keepdims=False), y[..., 0])
    np.testing.assert_array_equal(m(x[:, :, ::-1], keepdims=False), m(x[:, :, ::-1].copy(), keepdims=False))
    assert m(x[0, 0], keepdims=False).shape == ()
    if torch is not None:
        assert m(torch.from_numpy(x), keepdims=False).shape == (2, 3)
    with pytest.raises(ValueError, match="keepdims is False, but the result has 7 columns; it drops the one column"):
        model(weights, "linear | relu")(x, keepdims=False)


def test_out_of_either_shape(weights, x):
    m = model(weights)
    y = m(x)
    for shape in ((2, 3), (2, 3, 1)):
        out = np.full(shape, np.nan, np.float32)
        assert m(x, out=out) is out
        np.testing.assert_array_equal(out.reshape(y.shape), y)
        assert m(x, out=out, keepdims=False) is out
    table = np.zeros((2, 3, 4), np.float32)
    m(x, out=table[..., 2])  # numbers that do not lie together
    np.testing.assert_array_equal(table[..., 2], y[..., 0])
    assert not table[..., [0, 1, 3]].any()
    if torch is not None:
        out = torch.zeros(2, 3)
        assert m(torch.from_numpy(x), out=out) is out
        np.testing.assert_array_equal(out.numpy(), y[..., 0])
    with pytest.raises(ValueError, match="out overlaps x"):
        m(x, out=x[..., 0])


def test_out_of_either_shape_of_every_result(weights, x):
    one = model(weights, "linear | div(#t) | logsumexp")
    out = np.full((2, 3), np.nan, np.float32)
    assert one(x, out=out, t=2.0) is out
    np.testing.assert_array_equal(out, one(x, t=2.0, keepdims=False))
    several = model(weights, "linear | max, argmax, topk(1), gather(#c)")
    columns = np.zeros((2, 3, 1), np.int64)
    right = several(x, c=columns)
    best = np.empty((2, 3), np.float32)
    outs = (best, np.empty((2, 3, 1), np.int64), tuple(map(np.empty_like, right.topk)), np.empty_like(right.gather))
    y = several(x, out=outs, c=columns)
    assert y.max is best and y.argmax is outs[1]
    np.testing.assert_array_equal(best, right.max[..., 0])
    np.testing.assert_array_equal(y.argmax, right.argmax)
    # Two results of as many rows as are wanted; the dimension of topk and gather stays.
    flat = np.empty(2, np.float32), np.empty(2, np.int64), outs[2], outs[3]
    with pytest.raises(ValueError, match=r"out of topk has shape \(2, 3, 1\); expected \(2, 1\)"):
        several(x, out=flat, rows=[0, 5], c=columns)
    flat = *flat[:2], (np.empty((2, 1), np.float32), np.empty((2, 1), np.int64)), np.empty(2, np.float32)
    with pytest.raises(ValueError, match=r"out of gather has shape \(2,\); expected \(2, 1\)"):
        several(x, out=flat, rows=[0, 5], c=columns)
    flat = *flat[:3], np.empty((2, 1), np.float32)
    several(x, out=flat, rows=[0, 5], c=columns)
    np.testing.assert_array_equal(flat[0], right.max.reshape(6)[[0, 5]])
    with pytest.raises(TypeError, match="out is a list; expected a numpy.ndarray"):
        model(weights)(x[0, 0], out=[0.0])


# cast


def test_cast_takes_lists_integers_and_float64(weights, x):
    w, b = weights
    plain = model(weights)
    m = rowfold.Model("linear | mul(@s) | logsumexp", K, N, cast=True)
    m.load_weights(w.tolist(), b.astype(np.float64), {"s": [1] * N})
    np.testing.assert_array_equal(m(x.tolist()), plain(x))
    np.testing.assert_array_equal(m(x.astype(np.float64)), plain(x))
    np.testing.assert_array_equal(m(x.astype(">f4")), plain(x))
    np.testing.assert_array_equal(m(range(K) and list(range(K))), plain(np.arange(K, dtype=np.float32)))
    np.testing.assert_array_equal(m(np.arange(K)), plain(np.arange(K, dtype=np.float32)))
    np.testing.assert_array_equal(m(np.ones(K, bool)), plain(np.ones(K, np.float32)))
    half = x.astype(np.float16)
    np.testing.assert_array_equal(m(half), plain(half))  # which goes as it is
    out = np.zeros((2, 3), np.float32)
    assert m(x.tolist(), out=out) is out
    np.testing.assert_array_equal(out, plain(x)[..., 0])


def test_cast_into_other_types(weights, x):
    w, b = weights
    double = rowfold.Model("linear | sum", K, N, dtype="float64", cast=True).load_weights(w, b)
    assert double(x).dtype == np.float64
    half = rowfold.Model("linear | sum", K, N, dtype="float16", cast=True).load_weights(w, b)
    assert half.info.dtype == "float16"
    fixed = model(weights, x_dtype="float16", cast=True)
    np.testing.assert_array_equal(fixed(x), fixed(x.astype(np.float16)))
    ml_dtypes = pytest.importorskip("ml_dtypes")
    short = rowfold.Model("linear | sum", K, N, dtype="bfloat16", cast=True).load_weights(w, b)
    same = rowfold.Model("linear | sum", K, N, dtype="bfloat16").load_weights(w.astype(ml_dtypes.bfloat16), b)
    np.testing.assert_array_equal(short(x), same(x))
    bits = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(short(bits), same(bits))  # not numbers


def test_cast_takes_values_of_rows(weights, x):
    chain = "linear | div(#t) | pick(#c), gather(#g)"
    plain, m = model(weights, chain), model(weights, chain, cast=True)
    t, c, g = np.array([1, 2, 4], np.float32), np.array([0, 6, 3]), np.array([[0, 1], [2, 3], [6, 5]])
    right = plain(x[0], t=t, c=c, g=g)
    for convert in (np.ndarray.tolist, lambda a: a.astype(np.int16), lambda a: a.astype(np.uint64), lambda a: a):
        for got, y in zip(m(x[0], t=convert(t), c=convert(c), g=convert(g)), right):
            np.testing.assert_array_equal(got, y)
    for got, y in zip(m(x[0], t=t.astype(np.float64), c=c.astype(np.int32), g=g), right):
        np.testing.assert_array_equal(got, y)
    np.testing.assert_array_equal(m(x[0], t=True, c=c, g=g).pick, plain(x[0], t=1.0, c=c, g=g).pick)
    assert m(x[0, :0], t=[], c=[], g=np.empty((0, 2))).gather.shape == (0, 2)
    double = rowfold.Model("linear | div(#t) | sum", K, N, dtype="float64", cast=True).load_weights(*weights)
    np.testing.assert_array_equal(double(x[0], t=t), double(x[0], t=t.astype(np.float64)))
    for rows, error, message in [
        ({"t": ["a"] * 3}, TypeError, "the row input 't' has dtype <U1; expected real numbers"),
        ({"t": [[1], [2, 3]]}, ValueError, "the row input 't' makes no array"),
        ({"t": [1, 2]}, ValueError, r"the row input 't' has shape \(2,\); expected \(3,\)"),
        ({"c": [0.0, 1.0, 2.0]}, TypeError, "the row input 'c' has dtype float64; expected int64 or int32"),
        ({"c": [False] * 3}, TypeError, "the row input 'c' has dtype bool; expected int64 or int32"),
        ({"c": np.array([0, 1, 2**63], np.uint64)}, ValueError, f"the row input 'c' has {2**63}; expected a column"),
        ({"c": np.ma.masked_array([0, 1, 2], True)}, TypeError, "the row input 'c' is a masked array"),
    ]:
        with pytest.raises(error, match=message):
            m(x[0], **{"t": t, "c": c, "g": g, **rows})
    with pytest.raises(TypeError, match="the row input 't' is a list; .* or a Model with cast=True"):
        plain(x[0], t=[1, 2, 4], c=c, g=g)


def test_cast_counts_ways_and_states(weights, x):
    m, plain = model(weights, cast=True), model(weights)
    assert m.count_ways(x.tolist()) == plain.count_ways(x)
    np.testing.assert_array_equal(m.states(x.tolist()).data, plain.states(x).data)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["a"] * K, TypeError, "x has dtype <U1; expected real numbers"),
        ([1j] * K, TypeError, "x has dtype complex128; expected real numbers"),
        ([[1, 2], [3]], ValueError, "x makes no array"),
        ([None] * K, TypeError, "x has dtype object"),
        ([1.0] * 4, ValueError, r"x has shape \(4,\); expected \(..., 5\)"),
        (np.ma.masked_array(np.zeros(K), [True] * K), TypeError, "x is a masked array"),
        (object(), TypeError, "x is a object; expected an array"),
    ],
)
def test_cast_refuses_what_holds_no_numbers(weights, given, error, message):
    with pytest.raises(error, match=message) as caught:
        model(weights, cast=True)(given)
    assert isinstance(caught.value, rowfold.Error)


def test_without_cast_the_sentence_says_that_there_is_one(weights):
    with pytest.raises(TypeError, match="x is a list; expected an array; .* or a Model with cast=True"):
        model(weights)([1.0] * K)


# Values of rows as other objects


def test_buffers_and_exporters_as_values_of_rows(weights, x):
    m = model(weights, "linear | div(#t) | pick(#c)")
    t, c = np.array([1, 2, 4], np.float32), np.array([0, 6, 3])
    right = m(x[0], t=t, c=c)
    np.testing.assert_array_equal(m(x[0], t=array.array("f", t), c=memoryview(c)), right)
    np.testing.assert_array_equal(m(x[0], t=unaligned(t), c=unaligned(c)), right)
    with pytest.raises(TypeError, match="'c' is a exporters.Exporter; expected an array with shape, dtype, reshape"):
        m(x[0], t=t, c=Exporter(c))


def unaligned(values):
    return np.frombuffer(bytearray(b"0" + values.tobytes()), np.uint8)[1:].view(values.dtype)


def test_rows_that_are_not_aligned_are_copied(weights, x):
    m = model(weights)
    rows = unaligned(np.array([2, 0, 5]))
    assert not rows.flags.aligned
    np.testing.assert_array_equal(m(x, rows=rows), m(x, rows=[2, 0, 5]))


# Sizes that the weight says


def test_sizes_are_the_weight_s(weights, x):
    for given in ({}, {"in_features": K}, {"out_features": N}):
        m = rowfold.Model("linear | logsumexp", **given)
        assert "no weights yet" in repr(m)
        assert not m.closed
        for ask in (Model.info.fget, Model.explain, lambda it: it.workspace_size(1), lambda it: it(x)):
            with pytest.raises(rowfold.NotLoadedError, match="its sizes are theirs to say; call load_weights first"):
                ask(m)
        with m:
            m.load_weights(*weights)
            np.testing.assert_array_equal(m(x), model(weights)(x))
        assert m.closed


def test_open_sizes_stay_open_after_an_error(weights, x):
    w, b = weights
    m = rowfold.Model(rowfold.ops.linear | rowfold.ops.max)
    for wrong, message in (
        ((w[0],), r"weight has shape \(5,\); expected \(out_features, in_features\)"),
        (([1.0],), "weight is a list; expected"),
        ((w[:3], b), r"bias has shape \(7,\); expected \(3,\)"),
        ((w.astype(np.float64),), "weight has dtype float64"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            m.load_weights(*wrong)
    m.load_weights(w, b)
    assert m(x).shape == (2, 3, 1)
    with pytest.raises(ValueError, match=r"weight has shape \(7, 5\); expected \(7, 4\)"):
        rowfold.Model("linear | max", in_features=4).load_weights(w)


@pytest.mark.parametrize("fits", [True, False])
def test_of_threads_that_say_the_sizes_one_loads(weights, x, fits):
    """What the other one fails with takes nothing away."""
    w = weights[0]
    m = rowfold.Model("linear | max")
    started = []

    class Late:
        """Weights that are asked for their shape while another thread loads."""

        @property
        def shape(self):
            if not started:
                started.append(threading.Thread(target=m.load_weights, args=(w[:3],)))
                started[0].start()
                started[0].join()
            return w.shape

        def __array__(self, dtype=None, copy=None):
            return w if fits else w.astype(np.float64)

    error, message = (rowfold.AlreadyLoadedError, "another thread") if fits else (TypeError, "weight has dtype float64")
    with pytest.raises(error, match=message):
        m.load_weights(Late())
    np.testing.assert_array_equal(m(x), model((w[:3], None), "linear(5, 3) | max")(x))
    with pytest.raises(rowfold.AlreadyLoadedError):
        m.load_weights(w[:3])


def test_a_model_that_was_closed_while_it_was_loaded_stays_closed(weights):
    m = rowfold.Model("linear | max")

    class Closing:
        shape = weights[0].shape

        def __array__(self, dtype=None, copy=None):
            m.close()
            return weights[0]

    m.load_weights(Closing())
    assert m.closed and repr(m) == "<rowfold.Model, closed>"


def test_a_layer_without_inputs_or_outputs_is_the_chain_s_to_say(tmp_path):
    for shape in ((5, 0), (0, 5), (0, 0)):
        w = np.empty(shape, np.float32)
        write(tmp_path / "w.safetensors", {"w": w})
        np.savez(tmp_path / "w.npz", w=w)
        sizes = f"linear({shape[1]}, {shape[0]})"
        said = (
            rf"has shape \({shape[0]}, {shape[1]}\); sizes of a layer .* written in the chain, as {re.escape(sizes)}$"
        )
        for load, what in (
            (lambda chain, w=w: Model(chain).load_weights(w), "^weight"),
            (lambda chain, w=w: Model.from_state_dict({"w": w}, chain, weight="w"), "^'w'"),
            (lambda chain: Model.from_file(tmp_path / "w.safetensors", chain, weight="w"), "w.safetensors: tensor 'w'"),
            (lambda chain: Model.from_file(tmp_path / "w.npz", chain, weight="w"), "^'w'"),
        ):
            with pytest.raises(ValueError, match=f"{what} {said}"):
                load("linear | sum")
            assert load(f"{sizes} | sum")(np.empty((2, shape[1]), np.float32)).tolist() == [[0], [0]]
    with pytest.raises(ValueError, match=r"weight has shape \(5, 0\); expected \(5, 4\)"):
        Model.from_state_dict({"w": np.empty((5, 0), np.float32)}, "linear | sum", weight="w", in_features=4)


@pytest.mark.parametrize(
    "keywords", [{"backend": "abacus"}, {"device": "tpu"}, {"x_dtype": "float64"}, {"chain": "linear | sun"}]
)
def test_what_is_wrong_besides_sizes_is_said_at_once(keywords):
    with pytest.raises(rowfold.Error):
        rowfold.Model(**{"chain": "linear | sum", **keywords})


# Copies and pickles


def copies(m):
    return [copy.copy(m), copy.deepcopy(m), pickle.loads(pickle.dumps(m))]


def test_models_of_files_are_copied(weights, x, tmp_path, monkeypatch):
    w, b = weights
    write(tmp_path / "model.safetensors", {"w": w, "b": b, "s": b})
    np.savez(tmp_path / "model.npz", w=w, b=b, s=b)
    monkeypatch.chdir(tmp_path)
    chain = rowfold.ops.linear | rowfold.ops.mul("@s") | rowfold.ops.logsumexp
    for name in ("model.safetensors", "model.npz"):
        m = rowfold.Model.from_file(name, chain, weight="w", bias="b", vectors={"s": "s"}, threads=1)
        monkeypatch.chdir("/")  # the path was told from where the model was made
        for other in copies(m):
            np.testing.assert_array_equal(other(x), m(x))
            assert other.info.threads == 1
        monkeypatch.chdir(tmp_path)
        pickled = pickle.dumps(m)
        (tmp_path / name).unlink()
        with pytest.raises((OSError, ValueError), match=name):
            pickle.loads(pickled)


def test_a_chain_in_a_list_is_not_the_caller_s(weights, x, tmp_path):
    w, b = weights
    write(tmp_path / "w.safetensors", {"w": w})
    np.savez(tmp_path / "w.npz", w=w)
    for name in ("w.safetensors", "w.npz"):
        operators = [rowfold.ops.linear, rowfold.ops.max]
        for chain in (operators, iter(operators), rowfold.ops.linear | rowfold.ops.max):
            m = Model.from_file(tmp_path / name, chain, weight="w")
            pickled = pickle.dumps(m)
            operators[1] = rowfold.ops.min
            for other in (copy.copy(m), pickle.loads(pickled)):
                assert other.info.chain == m.info.chain
            operators[1] = rowfold.ops.max
    sized = [rowfold.ops.linear(K, N), rowfold.ops.max]
    with pytest.raises(ValueError, match=r"weight has shape \(5, 7\); expected \(7, 5\); pass weight.T"):
        Model.from_state_dict({"w": w.T}, sized, weight="w")


def test_models_that_keep_their_arrays_are_copied(weights, x):
    w, b = weights
    own = w.copy()
    m = rowfold.Model("linear | mul(@s) | max", cast=True, simplify="none").load_weights(own, b, {"s": b}, keep=True)
    expected = m(x)
    own[:] = 0  # the caller's array is the caller's
    np.testing.assert_array_equal(m(x), expected)
    for other in copies(m):
        np.testing.assert_array_equal(other(x), expected)
        assert other.info.simplify == "none"
        np.testing.assert_array_equal(copy.copy(other)(x.tolist()), expected)
    state = rowfold.Model.from_state_dict({"w": w}, "linear | max", weight="w", keep=True)
    np.testing.assert_array_equal(copy.copy(state)(x), state(x))
    if torch is not None:
        tensors = rowfold.Model("linear | max").load_weights(torch.from_numpy(w), keep=True)
        np.testing.assert_array_equal(copy.copy(tensors)(x), tensors(x))


def test_what_is_kept_is_dense_and_its_own(weights, x):
    w, b = weights
    expected = model(weights, "linear | max")(x)
    buffers = rowfold.Model("linear | max", K, N).load_weights(memoryview(w), array.array("f", b), keep=True)
    np.testing.assert_array_equal(copy.copy(buffers)(x), expected)
    torch = pytest.importorskip("torch")
    storage = torch.zeros(1000, K)
    storage[:N] = torch.from_numpy(w)
    computed = torch.nn.Parameter(torch.from_numpy(w)) * 1
    for weight in (storage[:N], computed, torch.from_numpy(w).t().contiguous().t()):
        m = rowfold.Model("linear | max").load_weights(weight, torch.from_numpy(b), keep=True)
        pickled = pickle.dumps(m)
        assert len(pickled) < 5000  # without the 20,000 bytes of the storage
        np.testing.assert_array_equal(pickle.loads(pickled)(x), expected)
    with pytest.raises(TypeError, match="weight has layout torch.sparse_coo; expected torch.strided"):
        rowfold.Model("linear | max").load_weights(torch.from_numpy(w).to_sparse(), keep=True)


def test_a_mask_is_not_dropped_by_a_copy(weights):
    w, b = weights
    hidden = np.ma.masked_array(b, b > 0)
    chain = "linear | mul(@s) | max"
    cases = [
        ("weight", (np.ma.masked_array(w, w > 0), b, {"s": b})),
        ("bias", (w, hidden, {"s": b})),
        ("vector 's'", (w, b, {"s": hidden})),
    ]
    loaded = rowfold.Model(chain, K, N).load_weights(w, b, {"s": b})
    for argument, arguments in cases:
        for load in (rowfold.Model(chain, K, N).load_weights, loaded.update_weights):
            for keep in (False, True):
                with pytest.raises(TypeError, match=f"^{argument} is a masked array, whose mask would be lost"):
                    load(*arguments, keep=keep)
    with pytest.raises(TypeError, match="^rows is a masked array, whose mask would be lost"):
        loaded(np.zeros((2, K), np.float32), rows=np.ma.masked_array([0, 1], [True, False]))


def test_an_exporter_that_cannot_be_copied_is_named(weights):
    with pytest.raises(TypeError, match="^weight is a exporters.Exporter, which keep cannot copy: "):
        rowfold.Model("linear | max", K, N).load_weights(Exporter(weights[0]), keep=True)


def test_updated_models_are_copied_with_the_new_numbers(weights, x, tmp_path):
    w, b = weights
    write(tmp_path / "w.safetensors", {"w": w, "b": b})
    of_file = Model.from_file(tmp_path / "w.safetensors", "linear | logsumexp", weight="w", bias="b")
    of_arrays = rowfold.Model("linear | logsumexp", K, N).load_weights(w, b, keep=True)
    for m in (of_file, of_arrays):
        new = w * 2
        m.update_weights(new, b, keep=True)
        y = m(x)
        new[:] = 0  # what is kept is a copy, which the library reads
        for other in (copy.copy(m), pickle.loads(pickle.dumps(m)), m):
            np.testing.assert_array_equal(other(x), y)
        m.update_weights(w * 3, b)
        with pytest.raises(TypeError, match="keep=True"):
            pickle.dumps(m)


def test_updates_are_cast_as_weights_are(weights, x):
    w, b = weights
    m = model(weights, cast=True)
    m.update_weights((w * 2).astype(np.float64), b.tolist())
    np.testing.assert_array_equal(m(x), model((w * 2, b))(x))
    with pytest.raises(rowfold.NotLoadedError, match="call load_weights first"):
        rowfold.Model("linear | logsumexp").update_weights(w, b)


def test_models_without_weights_are_copied(weights, x):
    for m in (rowfold.Model("linear | max", K, N), rowfold.Model("linear | max")):
        other = pickle.loads(pickle.dumps(m)).load_weights(*weights)
        np.testing.assert_array_equal(other(x), model(weights, "linear | max")(x))


def test_other_models_say_how_they_would_be(weights):
    with pytest.raises(
        TypeError, match="Load or update them with keep=True, or make it from a file with Model.from_file"
    ):
        pickle.dumps(model(weights))
    closed = model(weights)
    closed.close()
    with pytest.raises(rowfold.ClosedError):
        copy.copy(closed)


def _score(pair):
    return pair[0](pair[1])


@pytest.mark.heavy
def test_models_go_to_processes_that_are_spawned(weights, x):
    m = rowfold.Model("linear | max", threads=1).load_weights(*weights, keep=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (y,) = pool.map(_score, [(m, x)])
    np.testing.assert_array_equal(y, m(x))


# What completion shows


@pytest.mark.parametrize("module", [rowfold, rowfold.ops])
def test_dir_has_what_is_for_users(module):
    shown = {name for name in dir(module) if not name.startswith("_")}
    for name in shown:
        thing = getattr(module, name)
        assert getattr(thing, "__module__", "rowfold").startswith("rowfold"), name
    assert not shown & {"annotations", "ctypes", "np", "arrays", "arguments", "kinds", "inspect", "cache"}
    assert {"Model", "ops", "presets"} <= set(dir(rowfold))
    assert {"linear", "logsumexp", "operators", "Chain"} <= set(dir(rowfold.ops))


def test_dir_of_a_model_has_what_is_for_users():
    shown = dir(Model("linear(2, 3) | sum"))
    assert not [name for name in shown if name.startswith("_") and not name.endswith("__")]
    assert {"load_weights", "explain", "info", "states", "__call__"} <= set(shown)


def test_an_import_loads_no_library():
    """The build writes completions before there is one."""
    code = "import rowfold, rowfold.ops, rowfold.__main__ as m; m.parser(); from rowfold.ops import Chain"
    environment = {**os.environ, "ROWFOLD_LIBRARY": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=PYTHON)
    assert not done.stderr


# Sentences


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("logsumxp", 'did you mean "logsumexp"\\?'),
        ("softmax", "its result is as large as the logits, which are not stored; logsumexp is the logarithm of its"),
        ("attention", r"rowfold.ops.operators\(\) lists them"),
    ],
)
def test_an_operator_that_there_is_not(name, said):
    with pytest.raises(AttributeError, match=f"^rowfold.ops has no operator '{name}'; {said}"):
        getattr(rowfold.ops, name)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: Model("linear | sum", 5, 0), "out_features is 0; a layer without"),
        (
            lambda: Model("linear | sum", np.zeros((2, 3), np.float32)),
            "in_features is an array; .*load_weights takes the",
        ),
        (lambda: Model("linear(3, 4) | sum", 5), r"^in_features is 5, but the chain says 3$"),
        (
            lambda: Model("linear | sum", 2**41, 3),
            r"^in_features is 2199023255552; expected 1 to 2\*\*40, or None for wh",
        ),
        (
            lambda: Model("linear | sum", 2, 3, threads=100000),
            r"^threads is 100000; expected None \(all cores\), or 1 to",
        ),
        (lambda: Model("linear | sum", 2, 3, x_dtype="float64"), "^x_dtype is float64 and dtype float32; float64 goes"),
        (lambda: Model("linear | sum", 2, 3)(np.zeros((1, 2), np.float32)), "no weights yet; call load_weights first"),
        (lambda: Model("linear | sum", 2, 3, device="tpu"), "^device is "),
    ],
)
def test_sentences_have_python_s_names(attempt, message):
    with pytest.raises(rowfold.Error, match=message) as caught:
        attempt()
    assert not re.search(r"\brf_|\bRF_|config|NULL", str(caught.value))
