# SPDX-License-Identifier: MIT
"""The same bits: every run, and on a CPU for every batch, place in it and number of threads."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
import rowfold
from cases import Case, flat, make_case, same_bits
from hypothesis import given, reject
from hypothesis import strategies as st
from strategies import DTYPE_SETS, cases

CHAINS = [
    "linear | logsumexp | gelu",
    "linear | mul(2) | save | add_saved | clamp(-10, 10) | logsumexp | save | mish | mul_saved",
    "linear | gelu | sum",
    "linear | softplus | mean",
    "linear | add(1) | sum",
    "linear | max",
    "linear | mul(3) | entropy",
    "linear | argmax",
    "linear | silu",
]
# Enough work for several threads, and a little more than whole tiles in each dimension.
SHAPES = [(230, 261, 515), (3, 1030, 2100), (500, 40, 700)]


def sized(backend: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The reference has one thread, no tiles and no hurry: a few rows of each will do."""
    return (7, *shape[1:]) if backend == "reference" else shape


def large(chain: str, shape: tuple[int, int, int], dtypes: tuple[str, str, str] = ("float32",) * 3) -> Case:
    return make_case(chain, datasets.sigma5(np.random.default_rng(3), *shape), None, *dtypes)


def invariant(backend: str) -> dict:
    """A GPU promises batch invariance only where it is asked for."""
    return {"batch_invariant": True} if backend.startswith("cuda") else {}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_every_run_gives_the_same_bits(backend: str, chain: str, shape: tuple[int, int, int]) -> None:
    case = large(chain, sized(backend, shape))
    with case.model(backend) as model:
        first = model(case.x)
        for _ in range(3):
            assert same_bits(model(case.x), first)
    assert same_bits(case.run(backend), first)


@pytest.mark.cpu_only
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_threads_do_not_change_bits(backend: str, chain: str, shape: tuple[int, int, int]) -> None:
    case = large(chain, sized(backend, shape))
    one = case.run(backend, threads=1)
    for threads in (2, 3, 5):
        assert same_bits(case.run(backend, threads=threads), one), threads


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtypes", DTYPE_SETS[::4], ids=str)
@pytest.mark.parametrize("chain", [*CHAINS, "linear | topk(3)", "linear | argmax, mul(2) | logsumexp, max"])
def test_threads_that_share_few_columns_do_not_change_bits(
    backend: str, chain: str, dtypes: tuple[str, str, str]
) -> None:
    """W is large, and rows are too few for a block each."""
    if backend == "reference":
        pytest.skip("the reference has one thread")
    case = large(chain, (48, 4001, 30), dtypes)
    with case.model(backend, threads=1) as model:
        whole = flat(model(case.x))
    for threads in (2, 3, 31):
        with case.model(backend, threads=threads) as model:
            for rows in (1, 16, 17, 32, 48):
                for got, right in zip(flat(model(case.x[:rows])), whole, strict=True):
                    assert same_bits(got, right[:rows]), (threads, rows)


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("chain", ["linear | gelu | logsumexp", "linear | silu", "linear | topk(3), argmax, logsumexp"])
def test_threads_that_share_the_last_tiles_do_not_change_bits(backend: str, chain: str, dtype: str) -> None:
    """Few tiles that do not go evenly into the threads; more inputs than a stretch."""
    if backend == "reference":
        pytest.skip("the reference has one thread")
    shared = 0
    for shape, counts in (((66, 8300, 800), (17, 31)), ((70, 4100, 520), (13,))):
        case = large(chain, shape, (dtype,) * 3)
        with case.model(backend, threads=1) as model:
            one = flat(model(case.x))
            assert " parts," not in model.explain(len(case.x))
        for threads in counts:
            with case.model(backend, threads=threads) as model:
                shared += " parts," in model.explain(len(case.x))
                for got, right in zip(flat(model(case.x)), one, strict=True):
                    assert same_bits(got, right), (shape, threads)
    # Where AMX multiplies, how many threads share some is up to its rate.
    assert shared or backend.startswith("cpu-amx"), "no tile is shared"


@pytest.mark.parametrize("dtypes", DTYPE_SETS[::4], ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_batch_does_not_change_bits(backend: str, chain: str, dtypes: tuple[str, str, str]) -> None:
    """One row alone, a few, rows in another order, and many: small batches may take another path."""
    case = large(chain, (61, 261, 515), dtypes)
    rng = np.random.default_rng(9)
    with case.model(backend, **invariant(backend)) as model:
        whole = model(case.x)
        for rows in ([0], [60], [7, 8], range(16), range(5, 38), rng.permutation(61), rng.integers(0, 61, 463)):
            rows = np.array(rows)
            assert same_bits(model(case.x[rows]), whole[rows]), rows


@given(case=cases(), data=st.data())
def test_rows_alone_of_any_case(backend: str, case: Case, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, max(len(case.x) - 1, 0)), max_size=5)) if len(case.x) else []
    threads = data.draw(st.integers(1, 5))
    try:
        whole = case.run(backend, threads=1, **invariant(backend))
        with case.model(backend, threads=threads, **invariant(backend)) as model:
            part = model(case.x[rows])
    except rowfold.UnsupportedError:
        reject()
    assert same_bits(part, whole[rows])


def test_layout_and_way_of_calling_do_not_change_bits(backend: str) -> None:
    case = large("linear | logsumexp | gelu", (45, 70, 300))
    plain = case.run(backend)
    wide = np.full((45, 91), np.nan, np.float32)
    wide[:, 5:75] = case.x
    out = np.full((45, 3), np.nan, np.float32)
    with case.model(backend) as model:
        assert same_bits(model(wide[:, 5:75]), plain)
        assert model(case.x, out=out[:, 1:2]).base is out
        assert same_bits(np.ascontiguousarray(out[:, 1:2]), plain)
        assert np.isnan(out[:, [0, 2]]).all()
        assert same_bits(model(case.x.reshape(9, 5, 70)).reshape(45, 1), plain)
    w = np.full((300, 83), np.nan, np.float32)
    w[:, 7:77] = case.w
    for borrow in (False, True):
        for weight in (case.w, w[:, 7:77], np.asfortranarray(case.w)):
            with rowfold.Model(case.chain, 70, 300, backend=backend) as model:
                model.load_weights(weight, case.b, borrow=borrow)
                assert same_bits(model(case.x), plain)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_that_share_cache_sets(backend: str, dtype: str) -> None:
    """Few columns read x where it lies, but not rows whole pages apart: the same bits."""
    for k, n in ((1100, 70), (512, 128), (700, 64), (3, 100)):
        case = make_case("linear | logsumexp", datasets.sigma5(np.random.default_rng(0), 115, k, n), dtype=dtype)
        apart = np.full((115, 2048), np.nan, dtype)
        apart[:, :k] = case.x
        with case.model(backend) as model:
            assert same_bits(model(case.x), model(apart[:, :k]))


def test_weights_may_go_after_loading(backend: str) -> None:
    case = large("linear | logsumexp", (5, 70, 300))
    plain = case.run(backend)
    w, b = case.w.copy(), case.b.copy()
    with rowfold.Model(case.chain, 70, 300, backend=backend) as model:
        model.load_weights(w, b)
        w[:], b[:] = np.nan, np.nan
        assert same_bits(model(case.x), plain)


def test_no_bias_is_a_bias_of_zeros(backend: str) -> None:
    case = large("linear | logsumexp", (5, 70, 300))
    zeros = Case(case.chain, case.x, case.w, np.zeros(300, np.float32))
    assert same_bits(Case(case.chain, case.x, case.w).run(backend), zeros.run(backend))
