# SPDX-License-Identifier: MIT
"""Hypothesis strategies: chains and whole cases. Bulk data comes from a drawn seed: large arrays stay varied."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import datasets
import numpy as np
import oracle
import rowfold
from cases import Case, make_case
from hypothesis import strategies as st

# Around powers of two and tile edges, primes, one, nothing.
SIZES = [0, 1, 2, 3, 7, 8, 13, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 97, 127, 128, 129, 191, 193, 251, 255, 256, 257]
LARGE = [223, 224, 225, 383, 385, 511, 512, 513, 767, 1021, 1024, 1025, 2049]
WORK = 3_000_000  # multiplications in one case, so that the reference backend stays quick

COEFFICIENTS = st.one_of(
    st.sampled_from([1.0, 2.0, 0.5, -1.0, 0.25, -4.0, 3.0, 0.1]),
    st.floats(-4, 4, width=32).filter(lambda v: abs(v) > 1e-3),
)
VECTORS = ("v0", "v1")


def _number(value: float) -> str:
    return repr(float(value))


@cache
def without_arguments() -> list[str]:
    """The operators on logits that are complete as a name: a new one is drawn without a word here, if every backend
    has it.
    """

    def is_complete(name: str) -> bool:
        try:
            rowfold.Chain.parse(f"linear | {name}")
        except rowfold.ChainError:
            return False
        return True

    names = [row.name for row in rowfold.ops.operators() if row.op_class == "elementwise" and is_complete(row.name)]
    return [name for name in names if not oracle.OPS[name].host]


def as_tried(name: str, row: oracle.Row | oracle.Fold) -> list[str]:
    """An operator with the parameters that the oracle's table has for it; those that are NaN are for other tests."""
    return [f"{name}({text})" if text else name for text in row.tried if "nan" not in text]


def with_arguments() -> list[str]:
    """Those with numbers of their own. Vectors and row inputs may take the place of others, which are drawn apart."""
    rows = {name: row for name, row in oracle.OPS.items() if row.params and not row.vector and not row.host}
    return [text for name, row in rows.items() for text in as_tried(name, row)]


@st.composite
def elementwise(draw: st.DrawFn, behind: bool, rows: tuple[str, ...] = ()) -> str:
    """One operator as text, or a few where the first keeps the second in its domain."""
    vector = [f"#{name}" for name in rows] + ([] if behind else [f"@{name}" for name in VECTORS])
    other = st.one_of(COEFFICIENTS.map(_number), st.sampled_from(vector) if vector else st.nothing())
    bound = st.floats(-12, 12, width=32)
    return draw(
        st.one_of(
            st.builds("{}({})".format, st.sampled_from(["mul", "add", "sub", "div", "minimum", "maximum"]), other),
            st.sampled_from(without_arguments()),
            st.sampled_from(with_arguments()),
            st.sampled_from(
                [
                    "abs | sqrt",
                    "abs | add(0.5) | log",
                    "abs | log1p",
                    "sigmoid | add(0.25) | reciprocal",
                    "minimum(5) | exp",
                ]
            ),
            st.builds("leaky_relu({!r})".format, st.floats(-2, 2, width=32)),
            st.builds("elu({!r})".format, st.floats(-2, 2, width=32)),
            st.builds("clamp({!r}, {!r})".format, bound, bound),
            st.builds("clamp({}={!r})".format, st.sampled_from(["min", "max"]), bound),
            st.builds("hardtanh({!r}, {!r})".format, st.floats(-8, 0, width=32), st.floats(0, 8, width=32)),
        )
    )


@st.composite
def steps(draw: st.DrawFn, behind: bool, most: int, rows: tuple[str, ...] = ()) -> list[str]:
    """Operators on one side of the reduction, with a saved value now and then."""
    parts = draw(st.lists(elementwise(behind, rows), max_size=most))
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(parts)))
        parts[at:at] = [
            "save",
            *draw(st.lists(elementwise(behind), max_size=1)),
            draw(st.sampled_from(["add_saved", "mul_saved"])),
        ]
    return parts


INDICES = [row.name for row in rowfold.ops.operators() if row.gives_index and row.row_input == "none"]
WAVES = tuple(name for name, row in oracle.OPS.items() if row.host)


def runs_on(backend: str, case: Case) -> bool:
    """Whether the backend has all operators of a case."""
    return not backend.startswith("cuda") or not any(name in case.chain.replace("(", " ").split() for name in WAVES)


def has_result_of_nothing(name: str) -> bool:
    """Whether a row without columns has one."""
    try:
        rowfold.Model(f"linear(1, 0) | {name}").close()
    except rowfold.Error:
        return False
    return True


def reductions(host: bool) -> list[str]:
    """Those whose result is a number, as they are tried; apart those that a GPU has no kernel of their own for."""
    rows = {name: row for name, row in oracle.REDUCTIONS.items() if row.host == host and name not in INDICES}
    return [text for name, row in rows.items() for text in as_tried(name, row)]


EMPTY_OK = st.sampled_from([name for name in reductions(False) if has_result_of_nothing(name)])
VALUES = st.sampled_from(reductions(False))
REDUCTIONS = st.one_of(VALUES, VALUES, st.sampled_from(INDICES))
SPREADS = st.sampled_from(reductions(True))


@st.composite
def chains(draw: st.DrawFn, columns: int) -> str:
    """A chain for `columns` columns: max and min need one at least."""
    parts = draw(steps(False, 4))
    if draw(st.integers(0, 4)):
        parts.append(draw(EMPTY_OK if columns == 0 else REDUCTIONS))
        for _ in range(0 if parts[-1] in INDICES else draw(st.integers(0, 2))):
            parts += draw(steps(True, 2))
            parts += draw(st.lists(VALUES, max_size=2))
    return " | ".join(["linear", *parts])


ROWS = ("r0", "r1")
# #c names a column in every row, #t ignores some.
ASKING = st.sampled_from(
    ["pick(#c)", "logprob(#t)", "logprob(#c)", "logprob(#i, ignore_index=-7)", "logsumexp", "rank(#c)", "gather(#g)"]
)
ENDS = (*INDICES, "rank", "gather", "topk")  # no operator can be behind them


@st.composite
def trees(draw: st.DrawFn, columns: int) -> str:
    """A chain with several results, or with one in parentheses, and with row inputs."""
    trunk = draw(steps(False, 2, ROWS))
    saves = draw(st.booleans())  # what the trunk saves, a branch may read
    trunk += ["save"] if saves else []
    trunk += draw(steps(False, 1, ROWS))
    results = []
    for _ in range(draw(st.integers(1, 4))):
        own = [] if draw(st.booleans()) else draw(steps(False, 2, ROWS))
        own += [draw(st.sampled_from(["add_saved", "mul_saved"]))] if saves and draw(st.booleans()) else []
        own += [draw(st.sampled_from(WAVES))] if draw(st.integers(0, 9)) == 9 else []
        topk = st.builds("topk({})".format, st.integers(1, max(1, min(columns, 64))))
        some = st.one_of(EMPTY_OK, SPREADS) if columns == 0 else st.one_of(REDUCTIONS, ASKING, ASKING, SPREADS, topk)
        kind = draw(some)
        behind = [] if kind.partition("(")[0] in ENDS else draw(steps(True, 2, ROWS))
        text = " | ".join([*own, kind, *behind])
        grouped = draw(st.booleans()) or (not results and bool(own))
        results.append(f"({text})" if grouped else text)
    return " | ".join(["linear", *trunk, ", ".join(results)])


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int]:
    """(batch, K, N), one of them large now and then, all of them together bounded."""
    sizes = [draw(st.sampled_from(SIZES)) for _ in range(3)]
    if draw(st.integers(0, 2)) == 0:
        sizes[draw(st.integers(0, 2))] = draw(st.sampled_from(LARGE))
    while sizes[0] * sizes[1] * sizes[2] > WORK:
        largest = sizes.index(max(sizes))
        sizes[largest] = sizes[largest] // 2 + 1
    return sizes[0], sizes[1], sizes[2]


# W, x and y. float64 goes with float64 only; the others mix.
NARROW = ["float32", "float16", "bfloat16"]
DTYPE_SETS = [
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
    ("float64", "float64", "float32"),
] + [
    (w, x, y)
    for w in NARROW
    for x in NARROW
    for y in ("float32", "float16", "bfloat16")
    if (w, x, y) != ("float32",) * 3
]
dtypes = st.one_of(st.just(DTYPE_SETS[0]), st.sampled_from(DTYPE_SETS))


def told(dtype: str, x_dtype: str) -> st.SearchStrategy[bool]:
    """Whether the model knows the type of x; without it uint16 is bfloat16 beside weights of that type alone."""
    return st.just(True) if x_dtype == "bfloat16" != dtype else st.booleans()


@st.composite
def cases(draw: st.DrawFn, data: dict = datasets.ALL) -> Case:
    batch, k, n = draw(shapes())
    chain = draw(chains(n))
    dtype, x_dtype, y_dtype = draw(dtypes)
    kind = draw(st.sampled_from(sorted(data)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    inputs = data[kind](rng, batch, k, n)
    vectors = {
        name: rng.choice([-1.5, -0.5, 0.25, 1.0, 3.0], n) + 0.1 * rng.normal(size=n)
        for name in VECTORS
        if f"@{name}" in chain
    }
    case = make_case(chain, inputs, vectors, dtype, x_dtype, y_dtype)
    bias = case.b if draw(st.booleans()) else None
    return replace(case, b=bias, told=draw(told(dtype, x_dtype)))


@st.composite
def tree_cases(draw: st.DrawFn, data: dict = datasets.ALL) -> Case:
    """Cases with several results and row inputs."""
    batch, k, n = draw(shapes())
    chain = draw(trees(n))
    dtype, x_dtype, y_dtype = draw(dtypes)
    kind = draw(st.sampled_from(sorted(data)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    inputs = data[kind](rng, batch, k, n)
    numbers = {name: rng.choice([-1.5, -0.5, 0.25, 1.0, 3.0], n) for name in VECTORS if f"@{name}" in chain}
    case = make_case(chain, inputs, numbers, dtype, x_dtype, y_dtype)
    rows = {
        name: rng.choice([-2.0, -0.75, 0.3, 1.0, 4.0], batch).astype(case.compute)
        for name in ROWS
        if f"#{name}" in chain
    }
    for name, ignored in (("c", 0), ("t", -100), ("i", -7)):
        if f"#{name}" in chain:
            columns = rng.integers(0, n, batch)
            columns[rng.random(batch) < (0.2 if ignored else 0)] = ignored
            rows[name] = columns.astype(draw(st.sampled_from(["int64", "int32"])))
    if "#g" in chain:
        rows["g"] = rng.integers(0, n, (batch, draw(st.integers(1, 70)))).astype(
            draw(st.sampled_from(["int64", "int32"]))
        )
    return replace(case, rows=rows, told=draw(told(dtype, x_dtype)))
