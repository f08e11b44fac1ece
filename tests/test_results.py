# SPDX-License-Identifier: MIT
"""Several results of one pass and row inputs: any tree of results, on every backend, against the oracle."""

from __future__ import annotations

from dataclasses import replace

import datasets
import numpy as np
import pytest
import rowfold
from cases import Case, flat, same_bits
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from strategies import runs_on, tree_cases

SIMPLIFY = st.sampled_from(["none", "exact", "algebraic"])


@given(case=tree_cases(), simplify=SIMPLIFY, threads=st.integers(1, 3))
def test_any_tree(backend: str, case: Case, simplify: str, threads: int) -> None:
    assume(runs_on(backend, case))
    case.check_results(case.run(backend, simplify=simplify, threads=threads), backend, f"with {simplify}")


@given(case=tree_cases(data=datasets.FINITE), simplify=SIMPLIFY)
def test_finite_data(backend: str, case: Case, simplify: str) -> None:
    """Without infinities and NaN, where most results are numbers."""
    assume(runs_on(backend, case))
    case.check_results(case.run(backend, simplify=simplify), backend, f"with {simplify}")


@given(case=tree_cases(), data=st.data())
def test_a_result_has_the_bits_that_it_has_alone(backend: str, case: Case, data: st.DataObject) -> None:
    """Whatever else is computed with it, and whichever state it shares."""
    if backend.startswith("cuda"):
        pytest.skip("a GPU has kernels of their own for several results")
    results = case.run(backend, simplify="none")
    texts = [str(chain) for chain in single_chains(case.chain)]
    if len(texts) == 1:
        reject()
    which = data.draw(st.integers(0, len(texts) - 1))
    used = {name: v for name, v in case.rows.items() if f"#{name}" in texts[which]}
    vectors = {name: v for name, v in case.vectors.items() if f"@{name}" in texts[which]}
    alone = replace(case, chain=texts[which], rows=used, vectors=vectors)
    for together, apart in zip(flat(results[which]), flat(alone.run(backend, simplify="none"))):
        assert same_bits(together, apart), texts[which]


@given(case=tree_cases(), data=st.data())
def test_wanted_rows_are_those_of_the_whole(backend: str, case: Case, data: st.DataObject) -> None:
    """Any rows in any order, on any number of threads, as if x and the row inputs had been indexed first."""
    assume(runs_on(backend, case))
    batch = len(case.x)
    wanted = data.draw(st.lists(st.integers(0, batch - 1), max_size=9)) if batch else []
    threads = data.draw(st.integers(1, 4))
    with case.model(backend, threads=threads, batch_invariant=True) as model:
        whole, part = flat(model(case.x, **case.rows)), flat(model(case.x, rows=wanted, **case.rows))
        indexed = flat(model(case.x[wanted], **{name: v[wanted] for name, v in case.rows.items()}))
    for y, some, same in zip(whole, part, indexed):
        assert some.shape == (len(wanted), *y.shape[1:])
        assert same_bits(some, y[wanted]) and same_bits(some, same)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [5, 48, 49, 257, 1300])
def test_order_is_stable_and_has_nan_first(backend: str, dtype: str, columns: int) -> None:
    """Few different values, so that there are ties in a unit and across units; the logits are the weights."""
    rng = np.random.default_rng(columns)
    values = np.array([np.nan, np.inf, 3.5, 0.0, -0.0, -1.0, -np.inf], dtype)
    for share in (0.5, 0.02, 0):
        weights = rng.random(len(values))
        weights[0] = share * weights[1:].sum()
        w = rng.choice(values, columns, p=weights / weights.sum())
        w = np.full(columns, -np.inf, dtype) if not share and columns % 2 else w
        k = min(columns, 64)
        batch = min(columns, 300)
        asked = rng.permutation(columns)[:batch]
        one = np.ones((batch, 1), dtype)
        case = Case(f"linear | rank(#c), topk({k})", one, w[:, None], None, {}, dtype, dtype, dtype, {"c": asked})
        rank, (best, at) = case.run(backend)
        order = np.lexsort((np.arange(columns), -np.where(np.isnan(w), 0, w), ~np.isnan(w)))
        assert np.array_equal(rank[:, 0], np.argsort(order)[asked])
        assert (at == order[:k]).all()
        assert np.array_equal(best, np.broadcast_to(w[order[:k]], best.shape), equal_nan=True)


def test_the_column_asked_for_has_the_same_bits_ahead_of_the_pass(backend: str) -> None:
    """rank compares the column with itself: one bit of difference and a column that is equal to no other were found
    before or behind itself.
    """
    rng = np.random.default_rng(3)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((200, 531), (2600, 531)))
    target = np.concatenate([rng.integers(0, 2600, 100), np.full(100, 2599)])
    chain = "linear | mul(0.3) | gelu | rank(#c), gather(#all)"
    every = np.tile(np.arange(2600), (200, 1))
    if backend.startswith("cuda"):
        pytest.skip("a GPU gathers by dot products of their own")
    for threads in (1, 2):
        rank, z = Case(chain, x, w, rows={"c": target, "all": every}).run(backend, threads=threads)
        own = z[np.arange(200), target][:, None]
        left = np.arange(2600) < target[:, None]
        assert np.array_equal(rank[:, 0], ((z > own) | ((z == own) & left)).sum(axis=1))


def test_ranks_are_a_permutation(backend: str) -> None:
    """Each column of a row asked for: its bits are those that it is compared with, or two had one rank. The best of all
    are found in the same order.
    """
    rng = np.random.default_rng(5)
    for k, n in ((531, 700), (72, 2600), (1, 300)):
        x, w = rng.normal(size=(1, k)).astype(np.float32), rng.normal(size=(n, k)).astype(np.float32)
        w[n // 2 :: 3] = w[: len(w[n // 2 :: 3])]  # ties
        case = Case("linear | gelu | rank(#c), topk(64), argmax", np.tile(x, (n, 1)), w, rows={"c": np.arange(n)})
        rank, (values, indices), argmax = case.run(backend)
        assert np.array_equal(np.sort(rank[:, 0]), np.arange(n))
        order = np.argsort(rank[:, 0])
        assert np.array_equal(indices, np.tile(order[:64], (n, 1)))
        assert (argmax == order[0]).all()
        assert (np.diff(values) <= 0).all()


def single_chains(text: str) -> list[rowfold.ops.Chain]:
    """For each result the chain that has it alone."""
    ops = list(rowfold.ops.Chain.parse(text))
    first = next(i for i, op in enumerate(ops) if op.operator.op_class in ("reduction", "result"))
    trunk, rest = ops[:first], ops[first:]
    branches: list[list[rowfold.ops.Op]] = [[]]
    for op in rest[1:] if rest[0].operator.op_class == "result" else rest:
        if op.operator.op_class == "result":
            branches.append([])
        else:
            branches[-1].append(op)
    return [rowfold.ops.Chain([*trunk, *branch]) for branch in branches]
