# SPDX-License-Identifier: MIT
"""Other numbers in the place of loaded weights: the bits of a new model, and nothing else changed."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import rowfold
from rowfold import _lib

CHAINS = [
    "linear | logsumexp",
    "linear",
    "linear | mul(@scale) | clamp(-3, 3) | add(@shift) | max | gelu",
    "linear | mul(@scale) | add(@shift) | sum",  # collapses to a dot product, where that is allowed
]
# Edges of panels and slices; narrow layers are kept in another way.
SHAPES = [(1, 1), (65, 3), (40, 16), (300, 130), (33, 1000)]


def _weights(chain: str, k: int, n: int, seed: int, dtype: Any = np.float32) -> tuple[Any, Any, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    vectors = {name: rng.normal(size=n).astype(dtype) for name in ("scale", "shift") if f"@{name}" in chain}
    return rng.normal(size=(n, k)).astype(dtype), rng.normal(size=n).astype(dtype), vectors


def _model(backend: str, chain: str, k: int, n: int, dtype: Any = np.float32, **keywords: Any) -> rowfold.Model:
    return rowfold.Model(chain, k, n, dtype=np.dtype(dtype).name, backend=backend, **keywords)


@pytest.mark.parametrize("simplify", ["none", "algebraic"])
@pytest.mark.parametrize("chain", CHAINS)
def test_bits_of_a_new_model(backend: str, chain: str, simplify: str) -> None:
    for k, n in SHAPES:
        x = np.random.default_rng(9).normal(size=(5, k)).astype(np.float32)
        model = _model(backend, chain, k, n, simplify=simplify).load_weights(*_weights(chain, k, n, 0))
        held = model.info.prepared_bytes
        for seed in (1, 2):
            w, b, v = _weights(chain, k, n, seed)
            fresh = _model(backend, chain, k, n, simplify=simplify).load_weights(w, b, v)
            assert model.update_weights(w, b, v) is model
            assert np.array_equal(model(x), fresh(x))
            assert model.info.prepared_bytes == held
        w, _, v = _weights(chain, k, n, 3)
        fresh = _model(backend, chain, k, n, simplify=simplify).load_weights(w, None, v)
        model.update_weights(np.asfortranarray(w), None, v)
        assert np.array_equal(model(x), fresh(x))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_types(backend: str, dtype: str) -> None:
    chain = "linear | logsumexp"
    x = np.random.default_rng(9).normal(size=(70, 96)).astype(dtype)
    model = _model(backend, chain, 96, 200, dtype).load_weights(*_weights(chain, 96, 200, 0, dtype))
    w, b, v = _weights(chain, 96, 200, 1, dtype)
    model.update_weights(w, b, v)
    assert np.array_equal(model(x), _model(backend, chain, 96, 200, dtype).load_weights(w, b, v)(x))


# How the products of a GPU are computed follows from the values, as does whether a sum collapses.
KINDS = {
    "tame": lambda w: w,
    "wide": lambda w: w * np.exp(12 * np.sin(np.arange(w.size, dtype=np.float64))).reshape(w.shape),
    "one row wide": lambda w: np.vstack([w[:1] * np.geomspace(1e-12, 1e12, w.shape[1]), w[1:]]),
    "infinite": lambda w: np.where(np.arange(w.size).reshape(w.shape) == 7, np.inf, w),
    "nan": lambda w: np.where(np.arange(w.size).reshape(w.shape) == 7, np.nan, w),
    "one-hot": lambda w: np.eye(*w.shape),
}


@pytest.mark.parametrize("x_dtype", ["float32", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("chain", ["linear | logsumexp", "linear | sum"])
def test_every_kind_of_values_after_every_other(backend: str, chain: str, dtype: str, x_dtype: str) -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(130, 640))
    x = rng.normal(size=(9, 640)).astype(x_dtype)
    with np.errstate(over="ignore"):
        kinds = {name: make(w).astype(dtype) for name, make in KINDS.items()}
    expected = {n: _model(backend, chain, 640, 130, dtype).load_weights(v)(x) for n, v in kinds.items()}
    for first in ("tame", "infinite"):
        model = _model(backend, chain, 640, 130, dtype).load_weights(kinds[first])
        for name in [*kinds, *reversed(kinds)]:
            model.update_weights(kinds[name])
            assert np.array_equal(model(x), expected[name], equal_nan=True), (first, name)


def test_keep_form_says_nothing_on_a_cpu(backend: str) -> None:
    w, b, _ = _weights("linear | max", 40, 50, 0)
    model = _model(backend, "linear | max", 40, 50).load_weights(w, b)
    x = np.ones((2, 40), np.float32)
    model.update_weights(2 * w, 2 * b, keep_form=True)
    assert np.allclose(model(x), 2 * _model(backend, "linear | max", 40, 50).load_weights(w, b)(x))


def test_refusals(backend: str) -> None:
    chain = "linear | mul(@scale) | max"
    w, b, vectors = _weights(chain, 8, 5, 0)
    model = _model(backend, chain, 8, 5)
    with pytest.raises(rowfold.NotLoadedError, match="no weights yet"):
        model.update_weights(w, b, vectors)
    model.load_weights(w, b, vectors)
    x = np.ones((2, 8), np.float32)
    before = model(x)
    for wrong, arguments in {
        "shape": (w[:4], b, vectors),
        "dtype float64": (w.astype(np.float64), b, vectors),
        "was not given": (w, b, {}),
        "is not in the chain": (w, b, {**vectors, "other": b}),
    }.items():
        with pytest.raises(rowfold.Error, match=wrong):
            model.update_weights(*arguments)
    assert np.array_equal(model(x), before)
    native = _lib.Weights(size=ctypes.sizeof(_lib.Weights), weight=w.ctypes.data, flags=4)
    handle = model._open()
    with pytest.raises(rowfold.InvalidArgumentError, match="flags is 0x4"):
        handle.library.rf_model_update_weights(handle.pointer, ctypes.byref(native))
    native.flags = _lib.KEEP_FORM
    other = _model(backend, "linear | max", 8, 5)
    with pytest.raises(rowfold.InvalidArgumentError, match="flags is 0x2; expected RF_BORROW or 0"):
        other._open().library.rf_model_load_weights_ex(other._open().pointer, ctypes.byref(native))
    model.close()
    with pytest.raises(rowfold.ClosedError):
        model.update_weights(w, b, vectors)


def test_lent_arrays_are_let_go(backend: str) -> None:
    def lent(seed: int) -> tuple[Any, weakref.ref]:
        w = _weights("linear | max", 40, 50, seed)[0]
        return w, weakref.ref(w)

    model = _model(backend, "linear | max", 40, 50)
    (first, seen_first), (second, seen_second) = lent(0), lent(1)
    model.load_weights(first, borrow=True)
    del first
    gc.collect()
    assert seen_first() is not None
    model.update_weights(second, borrow=True)
    del second
    gc.collect()
    assert seen_first() is None
    assert seen_second() is not None
    model.update_weights(lent(2)[0])
    gc.collect()
    assert seen_second() is None
