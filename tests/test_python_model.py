# SPDX-License-Identifier: MIT
"""rowfold.Model as a numpy user meets it: what it accepts, what it returns, what it refuses and how."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref

import exporters
import numpy as np
import pytest
import rowfold
from rowfold import ops

K, N = 13, 7
FLOATS = ("float32", "float64", "float16", "bfloat16")


def bfloat16():
    return pytest.importorskip("ml_dtypes").bfloat16


def numpy_dtype(name):
    return np.dtype(bfloat16() if name == "bfloat16" else name)


@pytest.fixture
def rng():
    return np.random.default_rng(20240501)


@pytest.fixture
def weights(rng):
    return rng.standard_normal((N, K), dtype=np.float32), rng.standard_normal(N, dtype=np.float32)


@pytest.fixture
def model(weights):
    with rowfold.Model("linear | logsumexp", K, N) as model:
        yield model.load_weights(*weights)


def logsumexp(x, weights):
    weight, bias = (np.asarray(a, np.float64) for a in weights)
    logits = np.asarray(x, np.float64) @ weight.T + bias
    return np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def close(y, expected):
    """Within 1e-4: 13 float32 products of numbers up to 3, summed, are off by at most 13 * 13 * 9 * 2**-24 = 9e-5."""
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=1e-4, atol=1e-4)


# What comes back


@pytest.mark.parametrize("lead", [(), (1,), (5,), (2, 3), (2, 1, 3), (0,), (3, 0)])
def test_leading_dimensions_are_kept(model, weights, rng, lead):
    x = rng.standard_normal((*lead, K), dtype=np.float32)
    y = model(x)
    assert y.shape == (*lead, 1)
    assert y.dtype == np.float32
    close(y, logsumexp(x, weights))


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (0,)])
def test_without_a_reduction_all_columns_come_back(weights, rng, lead):
    with rowfold.Model("linear | relu", K, N) as model:
        model.load_weights(*weights)
        x = rng.standard_normal((*lead, K), dtype=np.float32)
        y = model(x)
    assert y.shape == (*lead, N)
    close(y, np.maximum(x.astype(np.float64) @ weights[0].T.astype(np.float64) + weights[1], 0))


def test_no_bias_is_a_bias_of_zeros(weights, rng):
    x = rng.standard_normal((4, K), dtype=np.float32)
    with rowfold.Model("linear | sum", K, N) as plain, rowfold.Model("linear | sum", K, N) as zeros:
        plain.load_weights(weights[0])
        zeros.load_weights(weights[0], np.zeros(N, np.float32))
        np.testing.assert_array_equal(plain(x), zeros(x))


# Layouts


LAYOUTS = {
    "row stride": lambda x: np.repeat(x, 2, axis=0)[::2],
    "wide rows": lambda x: np.concatenate([x, x + 1], axis=1)[:, :K],
    "column-major": np.asfortranarray,
    "column stride": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed rows": lambda x: x[::-1].copy()[::-1],
    "reversed columns": lambda x: x[:, ::-1].copy()[:, ::-1],
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
    "subclass": lambda x: x.view(type("Own", (np.ndarray,), {})),
    "middle axis": lambda x: np.stack([x, x + 1], axis=1)[:, 0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_gives_the_same_bits_in_any_layout_and_is_not_written(model, rng, layout):
    x = rng.standard_normal((6, K), dtype=np.float32)
    laid_out = LAYOUTS[layout](x)
    np.testing.assert_array_equal(laid_out, x)
    y = model(laid_out)
    np.testing.assert_array_equal(y, model(x))
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(laid_out, x)


def test_a_broadcast_row_is_repeated(model, rng):
    row = rng.standard_normal(K, dtype=np.float32)
    y = model(np.broadcast_to(row, (4, K)))
    np.testing.assert_array_equal(y, np.broadcast_to(model(row), (4, 1)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_may_have_any_layout(model, weights, rng, layout):
    x = rng.standard_normal((6, K), dtype=np.float32)
    with rowfold.Model("linear | logsumexp", K, N) as other:
        bias = np.repeat(weights[1], 3)[::3]
        other.load_weights(LAYOUTS[layout](weights[0]), bias)
        np.testing.assert_array_equal(other(x), model(x))


def test_an_object_with_array_is_converted(model, rng):
    class Boxed:
        def __init__(self, values):
            self.values = values

        def __array__(self, dtype=None, copy=None):
            return self.values

    x = rng.standard_normal((3, K), dtype=np.float32)
    np.testing.assert_array_equal(model(Boxed(x)), model(x))


# Data types


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("x_name", FLOATS)
def test_float64_goes_with_float64_and_the_others_mix(weights, rng, dtype, x_name):
    weight = weights[0].astype(numpy_dtype(dtype))
    x = rng.standard_normal((3, K)).astype(numpy_dtype(x_name))
    with rowfold.Model("linear | logsumexp", K, N, dtype=dtype) as model:
        model.load_weights(weight)
        if (dtype == "float64") != (x_name == "float64"):
            with pytest.raises(TypeError, match=f"x has dtype {x_name}; expected "):
                model(x)
            return
        y = model(x)
        assert y.dtype == ("float64" if dtype == "float64" else "float32")
        close(y, logsumexp(x, (weight, np.zeros(N))))


@pytest.mark.parametrize("spelled", [np.float16, np.dtype(np.float16), "float16", "f2"])
def test_dtypes_may_be_spelled_as_numpy_does(spelled):
    if isinstance(spelled, str) and spelled == "f2":
        with pytest.raises(TypeError, match="dtype is 'f2'; expected one of float32, float64, float16, bfloat16"):
            rowfold.Model("linear | sum", K, N, dtype=spelled)
        return
    with rowfold.Model("linear | sum", K, N, dtype=spelled) as model:
        assert model.info.dtype == "float16"


def test_uint16_is_bfloat16_where_the_dtype_says_so(weights, rng):
    weight, x = (a.astype(bfloat16()) for a in (weights[0], rng.standard_normal((3, K))))
    with rowfold.Model("linear | logsumexp", K, N, dtype="bfloat16") as model:
        model.load_weights(weight.view(np.uint16))
        y = model(x.view(np.uint16))
        np.testing.assert_array_equal(y, model(x))
    close(y, logsumexp(x, (weight, np.zeros(N))))
    with rowfold.Model("linear | logsumexp", K, N) as model:
        with pytest.raises(TypeError, match="weight has dtype uint16; .*only where the model's dtype says bfloat16"):
            model.load_weights(weight.view(np.uint16))


@pytest.mark.parametrize("y_name", ["float32", "float16", "bfloat16"])
def test_y_dtype_rounds_the_float32_result_once(weights, rng, y_name):
    x = rng.standard_normal((5, K), dtype=np.float32)
    with (
        rowfold.Model("linear | logsumexp", K, N) as wide,
        rowfold.Model("linear | logsumexp", K, N, y_dtype=y_name) as model,
    ):
        expected = wide.load_weights(*weights)(x)
        y = model.load_weights(*weights)(x)
    assert y.dtype == numpy_dtype(y_name)
    np.testing.assert_array_equal(y, expected.astype(numpy_dtype(y_name)))


def test_bfloat16_results_are_bit_patterns_without_ml_dtypes(weights, rng, monkeypatch):
    x = rng.standard_normal((5, K), dtype=np.float32)
    with rowfold.Model("linear | logsumexp", K, N) as wide:
        expected = wide.load_weights(*weights)(x)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with rowfold.Model("linear | logsumexp", K, N, y_dtype="bfloat16") as model:
        y = model.load_weights(*weights)(x)
    assert y.dtype == np.uint16
    # Half a unit in the last of bfloat16's 8 bits.
    np.testing.assert_allclose((y.astype(np.uint32) << 16).view(np.float32), expected, rtol=2**-8)


def test_x_dtype_fixes_the_dtype_of_x(weights):
    with rowfold.Model("linear | logsumexp", K, N, x_dtype="float16") as model:
        model.load_weights(*weights)
        assert model(np.ones((2, K), np.float16)).dtype == np.float32
        with pytest.raises(TypeError, match="x has dtype float32; expected float16, the model's x_dtype"):
            model(np.ones((2, K), np.float32))


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", ">f4", "O", "U3"])
def test_other_dtypes_are_refused(model, dtype):
    with pytest.raises(TypeError, match="x has dtype .*; expected float32, float64, float16 or bfloat16"):
        model(np.zeros((2, K), dtype))


# out=


def test_out_receives_the_result_and_is_returned(model, rng):
    x = rng.standard_normal((4, K), dtype=np.float32)
    out = np.full((4, 1), np.nan, np.float32)
    assert model(x, out=out) is out
    np.testing.assert_array_equal(out, model(x))


def test_out_may_be_a_column_or_a_block_of_a_larger_array(model, weights, rng):
    x = rng.standard_normal((4, K), dtype=np.float32)
    table = np.full((4, 3), np.nan, np.float32)
    model(x, out=table[:, 1:2])
    np.testing.assert_array_equal(table[:, 1:2], model(x))
    assert np.isnan(table[:, [0, 2]]).all()
    with rowfold.Model("linear", K, N) as plain:
        plain.load_weights(*weights)
        block = np.full((4, N + 2), np.nan, np.float32)
        plain(x, out=block[:, 1:-1])
        np.testing.assert_array_equal(block[:, 1:-1], plain(x))
        assert np.isnan(block[:, [0, -1]]).all()


def test_out_of_no_rows(model):
    out = np.empty((0, 1), np.float32)
    assert model(np.empty((0, K), np.float32), out=out) is out


def test_out_is_checked_and_left_alone(model, rng):
    x = rng.standard_normal((4, K), dtype=np.float32)
    frozen = np.zeros((4, 1), np.float32)
    frozen.flags.writeable = False
    cases = [
        (np.zeros((4, 2), np.float32), ValueError, r"out has shape \(4, 2\); expected \(4, 1\)"),
        (np.zeros(3, np.float32), ValueError, r"out has shape \(3,\); expected \(4, 1\)"),
        (np.zeros((4, 1)), TypeError, "out has dtype float64; expected float32"),
        (np.zeros((4, 1), np.int32), TypeError, "out has dtype int32"),
        (frozen, ValueError, "out is read-only"),
        (np.zeros((4, 1), np.float32)[::-1], ValueError, "out has strides"),
        ([[0.0]] * 4, TypeError, "out is a list; expected a numpy.ndarray"),
    ]
    for out, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            model(x, out=out)
        assert isinstance(caught.value, rowfold.Error)
        assert not np.any(out), message


def test_out_must_not_overlap_x(model, rng):
    table = rng.standard_normal((4, K + 1), dtype=np.float32)
    before = table.copy()
    with pytest.raises(ValueError, match="out overlaps x"):
        model(table[:, :K], out=table[:, 3:4])
    np.testing.assert_array_equal(table, before)


@pytest.mark.parametrize("family", ["numpy", "torch", "dlpack", "cast"])
def test_out_must_not_overlap_an_x_that_is_copied(model, weights, family):
    """Columns of a transposed matrix, and numbers of another type: x that the library never sees."""
    memory = np.arange(2 * 4 * K, dtype=np.int32 if family == "cast" else np.float32)
    before = memory.copy()
    x, out = memory.reshape(K, 8)[:, ::2].T, memory.view(np.float32)
    inside, beside = (out[first : first + 8 * 4].reshape(4, 8)[:, :1] for first in (0, 1))
    model = rowfold.Model("linear | logsumexp", K, N, cast=family == "cast").load_weights(*weights)
    expected = model(x)
    if family == "torch":
        convert = pytest.importorskip("torch").from_numpy
    else:
        convert = exporters.Exporter if family == "dlpack" else np.asarray
    with pytest.raises(ValueError, match="out overlaps x in memory; expected separate arrays"):
        model(convert(x), out=convert(inside))
    np.testing.assert_array_equal(memory, before)
    model(convert(x), out=convert(beside))  # between the columns: no byte is common
    np.testing.assert_array_equal(beside, expected)
    np.testing.assert_array_equal(memory.reshape(K, 8)[:, ::2], before.reshape(K, 8)[:, ::2])
    several = rowfold.Model("linear | max, min", K, N, cast=family == "cast").load_weights(*weights)
    with pytest.raises(ValueError, match="out of min overlaps x in memory; expected separate arrays"):
        several(convert(x), out=(convert(beside), convert(inside)))


def test_whether_out_overlaps_x_is_not_looked_into_for_ever(monkeypatch):
    """Strides for which an exact answer takes too long: refused, though they have no byte in common."""
    memory, strided = np.zeros(20_000, np.float32), np.lib.stride_tricks.as_strided
    x = strided(memory, (3, 3, 3, 12), (4 * 313, 4 * 237, 4 * 86, 8))
    out = strided(memory[1:], (3, 3, 3, 1), (36 * 137, 12 * 137, 4 * 137, 4))
    model = rowfold.Model("linear | sum").load_weights(np.ones((N, 12), np.float32))
    model(x, out=out)
    monkeypatch.setattr("rowfold.arrays._OVERLAP_WORK", 1)
    with pytest.raises(ValueError, match="out overlaps x in memory"):
        model(x, out=out)


def test_out_may_lie_between_the_rows_of_x(model, rng):
    """One matrix for both: no byte is common."""
    table = rng.standard_normal((4, K + 1), dtype=np.float32)
    before = table.copy()
    y = model(table[:, :K], out=table[:, K:])
    assert y.base is table
    np.testing.assert_array_equal(table[:, :K], before[:, :K])
    np.testing.assert_array_equal(table[:, K:], model(before[:, :K].copy()))


def test_rows_apart_go_by_the_short_way(model, rng, monkeypatch):
    """A matrix with gaps costs a small call no more than a dense one; other strides are looked into."""
    table = rng.standard_normal((9, K + 5), dtype=np.float32)
    matrices = [table[:, :K], table[:, 3 : 3 + K], table[::2, :K], table[:0, :K], table[4:5, 1 : 1 + K]]
    others = [
        table[::-1, :K],
        np.broadcast_to(table[0, :K], (4, K)),
        np.lib.stride_tricks.as_strided(table, (9, K), (4, 4)),
        np.asfortranarray(table[:, :K]),
        table.reshape(-1)[: 6 * 2 * K].reshape(6, 2 * K)[:, ::2],
        table.reshape(3, 3, K + 5)[:, :, :K],
        np.frombuffer(b"0" + table[:, :K].tobytes(), np.uint8)[1:].view(np.float32).reshape(9, K),
    ]
    expected = [model(x.copy()) for x in matrices + others]
    for x, y in zip(others, expected[len(matrices) :]):
        np.testing.assert_array_equal(model(x), y)

    def careful(*unused):
        raise AssertionError("not the short way")

    monkeypatch.setattr(rowfold.Model, "_call", careful)
    for x, y in zip(matrices, expected):
        np.testing.assert_array_equal(model(x), y)
        out = np.full_like(y, np.nan)
        assert model(x, out=out) is out
        np.testing.assert_array_equal(out, y)
    for x in others[:3]:
        with pytest.raises(AssertionError, match="not the short way"):
            model(x)


# Refusals


@pytest.mark.parametrize("shape", [(3, K + 1), (K - 1,), (), (K, 3), (3, 0)])
def test_a_wrong_last_dimension_is_named(model, shape):
    with pytest.raises(ValueError, match=rf"x has shape .*; expected \(\.\.\., {K}\)"):
        model(np.zeros(shape, np.float32))


@pytest.mark.parametrize("x", [[[1.0] * K], (1.0,) * K, 1.0, None, "x", object()])
def test_what_is_no_array_is_refused(model, x):
    with pytest.raises(TypeError, match="x is a .*; expected an array"):
        model(x)


def test_a_mask_is_not_dropped_silently(model):
    with pytest.raises(TypeError, match="masked array"):
        model(np.ma.masked_less(np.zeros((2, K), np.float32), 0))
    hidden = np.ma.masked_all((2, 1), np.float32)
    with pytest.raises(TypeError, match="out is a masked array, whose mask would hide the result"):
        model(np.zeros((2, K), np.float32), out=hidden)


def test_weights_are_checked(weights):
    weight, bias = weights
    chain = "linear | mul(@scale) | logsumexp"
    scale = {"scale": bias}
    cases = [
        ((weight.T, bias, scale), ValueError, r"weight has shape \(13, 7\); expected \(7, 13\); pass weight.T"),
        ((weight[0], bias, scale), ValueError, r"weight has shape \(13,\); expected \(7, 13\)"),
        ((weight.astype(float), bias, scale), TypeError, "weight has dtype float64; expected float32"),
        ((weight, bias[:-1], scale), ValueError, r"bias has shape \(6,\); expected \(7,\)"),
        ((weight, bias.astype(float), scale), TypeError, "bias has dtype float64; expected float32"),
        ((weight, bias.astype(int), scale), TypeError, "bias has dtype int64"),
        ((weight, bias), ValueError, "scale"),
        ((weight, bias, {"scale": bias.astype(float)}), TypeError, "vector 'scale' has dtype float64"),
        ((weight, bias, {"scale": bias, "other": bias}), ValueError, "other"),
        ((weight, bias, {"scale": bias[1:]}), ValueError, r"vector 'scale' has shape \(6,\)"),
        ((weight.tolist(), bias, scale), TypeError, "weight is a list"),
    ]
    with rowfold.Model(chain, K, N) as model:
        for arguments, error, message in cases:
            with pytest.raises(error, match=message) as caught:
                model.load_weights(*arguments)
            assert isinstance(caught.value, rowfold.Error)
            assert not model.info.loaded
        model.load_weights(weight, bias, scale)
        with pytest.raises(rowfold.AlreadyLoadedError):
            model.load_weights(weight, bias, scale)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"dtype": "int8"}, TypeError, "dtype is 'int8'; expected one of float32"),
        ({"math": "fp8"}, ValueError, "math is 'fp8'; expected one of 'f32', 'tf32', 'bf16'"),
        ({"simplify": "default"}, ValueError, "simplify is 'default'; expected one of 'none', 'exact', 'algebraic'"),
        ({"simplify": None}, ValueError, "simplify is None"),
        ({"threads": 0}, ValueError, "threads is 0"),
        ({"threads": 2**31}, ValueError, "threads is 2147483648"),
        ({"threads": 1.5}, TypeError, "threads is 1.5; expected an int"),
        ({"in_features": 2**63}, ValueError, "in_features is 9223372036854775808"),
        ({"in_features": -1}, ValueError, "in_features is -1"),
        ({"out_features": 0}, ValueError, r"written in the chain, as in linear\(0, 5\)"),
        ({"backend": "abacus"}, ValueError, "abacus"),
        ({"device": "tpu"}, ValueError, "tpu"),
        ({"chain": "linear | what"}, ValueError, "what"),
        ({"chain": "linear | sum\0 | max"}, ValueError, "NUL"),
        ({"chain": 3}, TypeError, "chain is a int; expected"),
        ({"chain": b"linear | sum"}, TypeError, "chain is a bytes; expected"),
        ({"chain": ["linear"]}, TypeError, "a chain holds operators of rowfold.ops"),
    ],
)
def test_the_constructor_names_what_is_wrong(keywords, error, message):
    arguments = {"chain": "linear | sum", "in_features": K, "out_features": N, **keywords}
    with pytest.raises(error, match=message):
        rowfold.Model(**arguments)


def test_casting_is_advised_where_it_helps():
    with rowfold.Model("linear | div(#t) | sum", K, N) as model:
        model.load_weights(np.ones((N, K), np.float32))
        x, t = np.ones((2, K), np.float32), np.ones(2, np.float32)
        for wrong in ((x.astype(np.float64), t), (x.astype(int), t), (x, t.astype(np.float64)), (x, t.astype(int))):
            with pytest.raises(TypeError, match="a Model with cast=True converts it$"):
                model(wrong[0], t=wrong[1])
            with rowfold.Model("linear | div(#t) | sum", K, N, cast=True) as casting:
                np.testing.assert_array_equal(
                    casting.load_weights(np.ones((N, K), np.float32))(wrong[0], t=wrong[1]), model(x, t=t)
                )


def test_a_layer_without_inputs_is_written_in_the_chain():
    with rowfold.Model("linear(0, 5)") as model:
        model.load_weights(np.empty((5, 0), np.float32), np.arange(5, dtype=np.float32))
        y = model(np.empty((2, 0), np.float32))
    np.testing.assert_array_equal(y, np.broadcast_to(np.arange(5, dtype=np.float32), (2, 5)))


# The model's life


def test_forward_before_the_weights(model):
    with rowfold.Model("linear | sum", K, N) as empty:
        with pytest.raises(rowfold.NotLoadedError) as caught:
            empty(np.zeros((1, K), np.float32))
        assert isinstance(caught.value, RuntimeError)
        assert "no weights yet" in repr(empty)


def test_a_closed_model_raises_and_closes_again(weights):
    model = rowfold.Model("linear | sum", K, N).load_weights(*weights)
    assert not model.closed
    model.close()
    model.close()
    assert model.closed
    for use in (
        lambda: model(np.zeros((1, K), np.float32)),
        model.explain,
        lambda: model.info,
        lambda: model.workspace_size(1),
    ):
        with pytest.raises(rowfold.ClosedError, match="closed"):
            use()
    with pytest.raises(rowfold.ClosedError), model:
        pass
    assert repr(model) == "<rowfold.Model, closed>"


def test_the_native_model_goes_with_the_python_one(weights):
    model = rowfold.Model("linear | sum", K, N).load_weights(*weights)
    handle = weakref.ref(model._handle)
    del model
    gc.collect()
    assert handle() is None


def test_close_waits_for_calls_in_other_threads(rng):
    """A call holds a reference. Without it this is a use after free: close() comes while forward runs."""
    weight = rng.standard_normal((512, 512), dtype=np.float32)
    x = rng.standard_normal((256, 512), dtype=np.float32)
    with rowfold.Model("linear | logsumexp", 512, 512) as once:
        expected = once.load_weights(weight)(x)
    for _ in range(5):
        model = rowfold.Model("linear | logsumexp", 512, 512).load_weights(weight)
        results, started = [], threading.Event()

        def work(model=model, results=results, started=started):
            started.set()
            try:
                results.append(model(x))
            except rowfold.ClosedError:
                results.append(None)

        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        model.close()
        thread.join()
        assert len(results) == 1
        if results[0] is not None:
            np.testing.assert_array_equal(results[0], expected)


def test_many_threads_call_one_model(model, rng):
    inputs = [rng.standard_normal((n, K), dtype=np.float32) for n in (1, 3, 8, 17)] * 4
    expected = [model(x) for x in inputs]
    results = [None] * len(inputs)

    def work(i):
        for _ in range(20):
            results[i] = model(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, wanted in zip(results, expected):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_model_is_not_pickled_or_copied(model, attempt):
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        attempt(model)


def test_the_weights_may_go_after_loading(weights, rng):
    x = rng.standard_normal((3, K), dtype=np.float32)
    weight, bias = weights[0].copy(), weights[1].copy()
    with rowfold.Model("linear | logsumexp", K, N) as model:
        model.load_weights(weight, bias)
        before = model(x)
        weight.fill(np.nan)
        bias.fill(np.nan)
        np.testing.assert_array_equal(model(x), before)


def test_borrowed_weights_are_kept_alive(weights, rng):
    weight = weights[0].copy()
    alive = weakref.ref(weight)
    model = rowfold.Model("linear | logsumexp", K, N).load_weights(weight, borrow=True)
    del weight
    gc.collect()
    assert alive() is not None
    close(model(np.zeros((1, K), np.float32)), np.log(N))
    model.close()
    gc.collect()
    assert alive() is None


# What it says of itself


def test_info(model):
    info = model.info
    assert (info.in_features, info.out_features, info.output_features) == (K, N, 1)
    assert (info.dtype, info.x_dtype, info.y_dtype) == ("float32", "float32", "float32")
    assert (info.math, info.simplify, info.loaded) == ("f32", "algebraic", True)
    assert info.backend in {backend.name for backend in rowfold.backends() if backend.available}
    assert info.threads >= 1
    assert info.prepared_bytes > 0
    assert repr(model) == f"<rowfold.Model {info.chain!r}, 13 -> 7, float32, {info.backend}>"


def test_workspace_size(model):
    assert model.workspace_size(0) >= 0
    assert isinstance(model.workspace_size(100), int)
    with pytest.raises(ValueError, match="batch is -1"):
        model.workspace_size(-1)
    assert 0 <= model.workspace_size(x=np.ones((100, K), np.float32)) <= model.workspace_size(100)
    with pytest.raises(ValueError, match=r"x .*12"):
        model.workspace_size(x=np.ones((100, K - 1), np.float32))
    for both in ({}, {"batch": 1, "x": np.ones((1, K), np.float32)}):
        with pytest.raises(TypeError, match="either batch or x"):
            model.workspace_size(**both)


def test_ways_on_a_cpu():
    """One way for all values: nothing to count."""
    w = np.ones((N, K), np.float32)
    w[0, 0] = np.inf
    m = rowfold.Model("linear | max", K, N, device="cpu").load_weights(w)
    x = np.ones((5, 3, K), np.float32)
    x[0] = np.inf
    assert m.count_ways(x) == rowfold.Ways(15, 0, 0, 0, 0, 0, 0, 0)
    assert m.count_ways(x[:0]).rows == 0
    with pytest.raises(ValueError, match="x has shape"):
        m.count_ways(x[..., :1])
    with pytest.raises(rowfold.NotLoadedError):
        rowfold.Model("linear | max", K, N).count_ways(x)


def test_explain(model):
    text = model.explain(batch=64)
    assert "logsumexp" in text
    document = model.explain(batch=64, format="json")
    assert (document["backend"], document["batch"]) == (model.info.backend, 64)
    assert [op["operator"] for op in document["operators"]][1:] == ["logsumexp"]
    with pytest.raises(ValueError, match="format is 'xml'; expected one of 'text', 'json'"):
        model.explain(format="xml")


def test_explain_needs_neither_weights_nor_rows(model, weights):
    with rowfold.Model("linear | logsumexp", K, N) as empty:
        assert "logsumexp" in empty.explain(16)
        assert empty.explain(0, "json")["batch"] == 0
        assert model.explain(0, "json")["batch"] == 0
        assert model.workspace_size(0) == 0
    for chain in ("linear(0, 5)", "linear(5, 0) | sum"):
        with rowfold.Model(chain) as flat:
            assert flat.explain(3)


@pytest.mark.parametrize("name", ["logsumexp_gelu", "sum_pool", "scale_clamp_mish"])
def test_presets(name, weights):
    assert name in rowfold.presets()
    with rowfold.Model.preset(name, K, N, simplify="none") as model:
        model.load_weights(*weights)
        assert model(np.ones((2, K), np.float32)).shape == (2, 1)
        assert model.info.simplify == "none"


def test_a_chain_of_operators_is_the_same_as_its_text(weights, rng):
    x = rng.standard_normal((4, K), dtype=np.float32)
    built = ops.linear | ops.mul(0.5) | ops.clamp(max=1) | ops.logsumexp | ops.gelu("tanh")
    with rowfold.Model(built, K, N) as a, rowfold.Model(str(built), K, N) as b, rowfold.Model(list(built), K, N) as c:
        results = [model.load_weights(*weights)(x) for model in (a, b, c)]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_backends():
    found = rowfold.backends()
    assert found
    assert any(backend.available for backend in found)
    for backend in found:
        assert (backend.reason is None) == backend.available
        assert backend.available or backend.reason


def test_cpu_measure():
    peak = rowfold.cpu_measure(threads=1)
    assert peak.flops_per_second > 1e8
    assert peak.bytes_per_second > 1e8
