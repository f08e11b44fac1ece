# SPDX-License-Identifier: MIT
"""Each rewrite against the chain without it: exact rules bit for bit, algebraic ones within the oracle's tolerance,
special values included.
"""

from __future__ import annotations

import datasets
import numpy as np
import pytest
import rowfold
from cases import Case, make_case, same_bits
from hypothesis import given, reject
from hypothesis import strategies as st
from strategies import COEFFICIENTS, cases, shapes

INF, NAN = np.inf, np.nan

# Chains in which a rule has something to do, by the name that explain gives it.
EXACT = {
    "width_one_reduction": [
        "max | sum",
        "max | mean | min",
        "sum | max | mean | logsumexp | logsumexp",
        "max | neg | logsumexp",
    ],
    "zero_sign": ["max | logsumexp | exp", "max | logsumexp | softplus", "max | sum | sigmoid"],
    "identity": [
        "mul(1)",
        "div(1)",
        "sub(0)",
        "add(-0)",
        "neg | add(-0)",
        "clamp(-inf, inf)",
        "maximum(-inf)",
        "minimum(inf)",
    ],
    "clamp_of_clamp": [
        "clamp(-10, 10) | clamp(-3, 20)",
        "clamp(5, -5) | clamp(-1, 1)",
        "clamp(-1, 1) | clamp(5, 7)",
        "hardtanh(0, 6) | clamp(min=-1)",
        "minimum(3) | maximum(0)",
        "neg | maximum(0) | minimum(0)",
        "clamp(max=1e30) | hardtanh | minimum(0.5)",
    ],
    "relu_of_relu": ["relu | relu", "neg | relu | relu | relu"],
    "abs_of_abs": ["abs | abs"],
    "neg_of_neg": ["neg | neg", "neg | neg | neg"],
    "double": ["save | add_saved", "save | add_saved | add_saved", "mul(0.3) | save | add_saved | mul_saved"],
    "square": ["save | mul_saved", "save | mul_saved | add_saved"],
    "dead_save": ["save | neg", "save | save | relu | add_saved"],
    "div_power_of_two": [
        "div(4)",
        "div(-0.5)",
        "div(1.1754943508222875e-38)",
        "div(8.507059173023462e37)",
        "div(0.5) | div(2)",
    ],
    "power_of_two": [
        "mul(2) | mul(4)",
        "neg | mul(0.3)",
        "mul(-1) | mul(-1)",
        "mul(1.1) | neg | mul(2)",
        "mul(1e30) | neg",
    ],
}
TINY32, TINY64 = 2.0**-149, 2.0**-1074
VALUES = [
    0.0,
    1.0,
    -1.0,
    0.3,
    -2.5,
    5.0,
    11.0,
    -11.0,
    1e-8,
    1e-38,
    -1e-38,
    1.7e38,
    3.4e38,
    -3.4e38,
    8e307,
    INF,
    -INF,
    NAN,
]
VALUES += [k * tiny for tiny in (TINY32, TINY64) for k in (1, -3, 5, 1001)]


def special_logits(chain: str, dtype: str) -> Case:
    """Every value as a logit, times 1 and -1 and 1.5, so that rows differ along the columns too."""
    with np.errstate(over="ignore"):
        x = np.array(VALUES + list(np.random.default_rng(5).normal(size=40) * 4)).astype(dtype)[:, None]
    w = np.resize(np.array([1.0, -1.0, 1.5], dtype), (35, 1))
    return Case(f"linear | {chain}", x, w, None, {}, dtype, dtype, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", EXACT)
def test_exact_rule_keeps_every_bit(backend: str, rule: str, dtype: str) -> None:
    for chain in EXACT[rule]:
        fold = "" if chain.startswith(("max", "sum")) else " | max"
        for case in (special_logits(chain, dtype), special_logits(chain + fold, dtype)):
            plain = case.run(backend, simplify="none")
            with case.model(backend, simplify="exact") as model:
                assert rule in model.explain(), (rule, case)
                rewritten = model(case.x)
            bad = [] if same_bits(plain, rewritten) else np.argwhere(plain != rewritten)
            assert same_bits(plain, rewritten), (case, [(VALUES[i], plain[i, j], rewritten[i, j]) for i, j in bad[:3]])


@pytest.mark.parametrize("rule", EXACT)
def test_none_switches_rules_off(rule: str) -> None:
    for chain in EXACT[rule]:
        with rowfold.Model(f"linear(3, 4) | {chain}", simplify="none") as model:
            assert rule not in model.explain()


@given(case=cases(), threads=st.integers(1, 2))
def test_exact_rewrites_of_any_chain(backend: str, case: Case, threads: int) -> None:
    try:
        plain = case.run(backend, simplify="none", threads=threads)
        rewritten = case.run(backend, simplify="exact", threads=threads)
    except rowfold.UnsupportedError:
        reject()
    assert same_bits(plain, rewritten)


@st.composite
def affine_sums(draw: st.DrawFn) -> Case:
    """Chains that collapse to one dot product: affine steps, vectors and x + saved among them, before a sum or mean."""
    number = COEFFICIENTS.map(lambda v: repr(float(v)))
    step = st.one_of(
        st.builds("{}({})".format, st.sampled_from(["mul", "add", "sub", "div"]), st.one_of(number, st.just("@v0"))),
        st.just("neg"),
        st.builds("save | {} | add_saved".format, st.sampled_from(["neg", "mul(3)", "mul(-1)", "add(1)", "mul(@v0)"])),
    )
    parts = draw(st.lists(step, max_size=4))
    behind = draw(st.sampled_from(["", " | gelu", " | max | logsumexp | relu"]))
    chain = " | ".join(["linear", *parts, draw(st.sampled_from(["sum", "mean"]))]) + behind
    batch, k, n = draw(shapes())
    kind = draw(st.sampled_from(sorted(datasets.ALL)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    vectors = (
        {"v0": rng.choice([-1.5, 0.0, 1.0, 2.0, INF], n, p=[0.3, 0.01, 0.4, 0.28, 0.01])} if "@v0" in chain else {}
    )
    return make_case(
        chain, datasets.ALL[kind](rng, batch, k, n), vectors, draw(st.sampled_from(["float32", "float64", "bfloat16"]))
    )


@given(case=affine_sums())
def test_collapsed_sum_of_any_data(backend: str, case: Case) -> None:
    expected = case.expected(backend)
    for simplify in ("none", "algebraic"):
        case.check(case.run(backend, simplify=simplify), simplify, expected)


def collapse_case(
    chain: str, x: list[list[float]], w: list[list[float]], b: list[float] | None = None, dtype: str = "float32"
) -> Case:
    stored = (None if v is None else np.array(v, dtype) for v in (x, w, b))
    return Case(chain, *stored, {}, dtype, dtype, dtype)


# x, W, b: where one dot product with the column sums of W might give another special value than the columns one by one.
GUARDS = {
    "+inf times positive": ([[INF, 1]], [[1, 1], [2, 1]], None),
    "-inf times positive": ([[-INF, 1]], [[1, 1], [2, 1]], None),
    "+inf times negative": ([[INF, 1]], [[-1, 1], [-2, 1]], None),
    "+inf times both signs, sum positive": ([[INF, 1]], [[-1, 1], [3, 1]], None),
    "+inf times both signs, sum zero": ([[INF, 1]], [[-1, 1], [1, 1]], None),
    "+inf times positive and one zero": ([[INF, 1]], [[0, 1], [2, 1]], None),
    "+inf times negative and one zero": ([[INF, 1]], [[-0.0, 1], [-2, 1]], None),
    "+inf times zeros": ([[INF, 1]], [[0, 1], [0, 1]], None),
    "+inf and -inf in one row": ([[INF, -INF]], [[1, 1], [2, 1]], None),
    "+inf and -inf that agree": ([[INF, -INF]], [[1, -1], [2, -1]], None),
    "NaN in x": ([[NAN, 1]], [[0, 1], [0, 1]], None),
    "NaN in one row only": ([[NAN, 1], [1, 1]], [[1, 1], [2, 1]], None),
    "+inf in W": ([[1, 1], [0, 1], [-1, 1]], [[INF, 1], [1, 1]], None),
    "+inf and -inf in W": ([[1, 1], [0, 1]], [[INF, 1], [-INF, 1]], None),
    "NaN in W": ([[1, 1], [0, 1]], [[NAN, 1], [1, 1]], None),
    "-inf in b": ([[1, 1], [INF, 1]], [[1, 1], [1, 1]], [-INF, 0]),
    "+inf and -inf in b": ([[1, 1]], [[1, 1], [1, 1]], [-INF, INF]),
    "NaN in b": ([[1, 1]], [[1, 1], [1, 1]], [NAN, 0]),
    "column sums overflow, columns cancel": (
        [[1, 1], [0, 1], [1, 0.5]],
        [[3e38, 1], [3e38, 1], [-3e38, 1], [-3e38, 1]],
        None,
    ),
    "column sums overflow": ([[1e-10, 1], [-1e-10, 1], [0, 1]], [[3e38, 1], [3e38, 1]], None),
    "bias sums overflow": ([[0, 0]], [[1, 1], [1, 1]], [3e38, 3e38]),
    "logits overflow": ([[3e38, 0], [-3e38, 0]], [[2, 1], [3, 1]], None),
    "logits overflow both ways": ([[3e38, 0]], [[2, 1], [-3, 1]], None),
    "zero times infinity behind the dot product": ([[INF, 1]], [[1, 1], [2, 1]], None),
}
# The steps in front of the sum.
AFFINE = [
    "",
    "mul(2) | ",
    "mul(-1) | ",
    "mul(0) | ",
    "neg | add(1) | ",
    "save | neg | add_saved | ",
    "save | mul(3) | add_saved | ",
    "div(0.5) | ",
]


@pytest.mark.parametrize("about", GUARDS)
def test_collapsed_sum_keeps_special_values(backend: str, about: str) -> None:
    """Of the chain as written; where the chain itself depends on the order of summation (overflow that cancels),
    anything goes.
    """
    for dtype in ("float32", "float64"):
        for steps in AFFINE:
            for fold in ("sum", "mean"):
                case = collapse_case(f"linear | {steps}{fold}", *GUARDS[about], dtype=dtype)
                expected = case.expected(backend)
                for simplify in ("none", "algebraic"):
                    case.check(case.run(backend, simplify=simplify), f"{about}, {simplify}", expected)


@pytest.mark.cpu_only
def test_few_rows_of_a_collapsed_sum_in_full(backend: str) -> None:
    """Those near overflow alone have tiles, fewer than the batch would have, of which threads share some."""
    case = make_case("linear | add(1) | sum", datasets.sigma5(np.random.default_rng(3), 130, 8300, 600))
    case.x[[5, 64]] *= np.float32(1e37)
    assert same_bits(case.run(backend, threads=23), case.run(backend, threads=1))


@pytest.mark.parametrize(
    "chain", ["linear | sum", "linear | mul(2) | add(1) | mean", "linear | div(@v) | sub(@v) | sum | gelu"]
)
def test_collapse_is_shown_and_can_be_switched_off(chain: str) -> None:
    for simplify, there in (("algebraic", True), ("exact", False), ("none", False)):
        with rowfold.Model(chain, 8, 8, simplify=simplify) as model:
            assert ("collapse" in model.explain()) is there


@pytest.mark.parametrize(
    "chain", ["linear | gelu | sum", "linear | max", "linear | exp | mean", "linear", "linear | mul(inf) | sum"]
)
def test_what_is_not_affine_does_not_collapse(chain: str) -> None:
    with rowfold.Model(chain, 8, 8) as model:
        assert "collapse" not in model.explain()


def test_constant_chain_is_called_out(backend: str) -> None:
    with rowfold.Model("linear(8, 8) | max | save | mean | neg | add_saved", backend=backend) as model:
        assert "every finite input" in model.explain()
    with rowfold.Model("linear(8, 8) | max | save | neg | mul_saved", backend=backend) as model:
        assert "every finite input" not in model.explain()
