# SPDX-License-Identifier: MIT
"""Several results of one pass and row inputs: any tree of results, on every backend, against the oracle."""

from __future__ import annotations

import datasets
import pytest
import rowfold
from cases import Case, same_bits
from hypothesis import given, reject
from hypothesis import strategies as st
from strategies import tree_cases

SIMPLIFY = st.sampled_from(["none", "exact", "algebraic"])


def run(case: Case, backend: str, **keywords: object) -> object:
    try:
        return case.run(backend, **keywords)
    except rowfold.UnsupportedError as error:
        pytest.skip(f"backend {backend}: {error}")


@given(case=tree_cases(), simplify=SIMPLIFY, threads=st.integers(1, 3))
def test_any_tree(backend: str, case: Case, simplify: str, threads: int) -> None:
    case.check_results(run(case, backend, simplify=simplify, threads=threads), backend, f"with {simplify}")


@given(case=tree_cases(data=datasets.FINITE), simplify=SIMPLIFY)
def test_finite_data(backend: str, case: Case, simplify: str) -> None:
    """Without infinities and NaN, where most results are numbers."""
    case.check_results(run(case, backend, simplify=simplify), backend, f"with {simplify}")


@given(case=tree_cases(), data=st.data())
def test_a_result_has_the_bits_that_it_has_alone(backend: str, case: Case, data: st.DataObject) -> None:
    """Whatever else is computed with it, and whichever state it shares."""
    if backend.startswith("cuda"):
        pytest.skip("a GPU has kernels of their own for several results")
    results = run(case, backend, simplify="none")
    if not isinstance(results, tuple):
        reject()
    texts = [str(chain) for chain in single_chains(case.chain)]
    which = data.draw(st.integers(0, len(texts) - 1))
    used = {name: v for name, v in case.rows.items() if f"#{name}" in texts[which]}
    vectors = {name: v for name, v in case.vectors.items() if f"@{name}" in texts[which]}
    alone = Case(**{**case.__dict__, "chain": texts[which], "rows": used, "vectors": vectors})
    assert same_bits(results[which], run(alone, backend, simplify="none")), texts[which]


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
