# SPDX-License-Identifier: MIT
"""Any chain on any data, any shape and any types, on every backend, against the oracle."""

from __future__ import annotations

import datasets
import rowfold
from cases import Case
from hypothesis import given, reject
from hypothesis import strategies as st
from strategies import cases

SIMPLIFY = st.sampled_from(["none", "exact", "algebraic"])


def check(case: Case, backend: str, **keywords: object) -> None:
    try:
        y = case.run(backend, **keywords)
    except rowfold.UnsupportedError:
        reject()
    case.check(y, f"on {backend} with {keywords}", case.expected(backend))


@given(case=cases(), simplify=SIMPLIFY, threads=st.integers(1, 3))
def test_any_case(backend: str, case: Case, simplify: str, threads: int) -> None:
    check(case, backend, simplify=simplify, threads=threads)


@given(case=cases(data=datasets.FINITE), simplify=SIMPLIFY)
def test_finite_data(backend: str, case: Case, simplify: str) -> None:
    """Without infinities and NaN, where most results are numbers."""
    check(case, backend, simplify=simplify)
