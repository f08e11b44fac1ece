# SPDX-License-Identifier: MIT
"""The ways of rows of x that 16-bit terms do not represent, on each kernel that multiplies terms: which one is taken is
asked of the library, and what comes of it is compared with float64."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import rowfold
from cases import Case, make_case, same_bits
from cuda_kernels import FORCE, HOPPER, each, needs_cuda
from cuda_ways import TERMS, Array, K, N, check_chain, on_wgmma, rows_of, tame, ways_of
from datasets import ALL, Data, infinities, kernelbench, spread
from hypothesis import given, settings

pytestmark = needs_cuda

PARTS = {
    "first": lambda batch: [0],
    "one": lambda batch: [17],
    "edges": lambda batch: [0, 15, 16, batch - 1],
    "all": lambda batch: list(range(batch)),
}


@pytest.fixture(params=TERMS)
def batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A kernel is forced, and takes so many rows."""
    monkeypatch.setenv(FORCE, request.param)
    return rows_of(request.param)


def test_tame_values_take_no_wider_way(batch: int) -> None:
    x, w, b = tame(batch)
    tiles = ways_of(x, w).tiles
    assert ways_of(x, w) == rowfold.Ways(batch, 0, 0, tiles, 0, 2, 2, 0)
    assert tiles in (1, 2, 3, 9)
    x[3, 5] = np.inf
    x[4, 6] = np.nan
    x[5] = 0
    assert ways_of(x, w).irregular_rows == ways_of(x, w).two_level_rows == 0
    check_chain(x, w, b)


def test_rows_of_two_levels(batch: int) -> None:
    x, w, b = tame(batch)
    x[[3, 5, batch - 1]] = spread(6.0, np.random.default_rng(1), 3, K).astype(np.float32)
    ways = ways_of(x, w)
    assert (ways.two_level_rows, ways.irregular_rows, ways.x_terms, ways.weight_terms) == (3, 0, 2, 2)
    assert ways.two_level_tiles == (1 if ways.tiles == 1 else 2)
    check_chain(x, w, b)


def _lone(batch: int) -> tuple[Array, Array, Array]:
    """Rows of one value, of an outlier, of one just large enough, and of two outliers; columns everywhere in x."""
    rng = np.random.default_rng(4)
    x, w, b = tame(batch)
    for row in range(batch):
        at = rng.integers(K) if row % 7 else K - 1
        kind = row % 5
        if kind == 0:
            x[row] = 0
            x[row, at] = rng.choice([1, -1, 3e-30, 0.7])
        elif kind == 1:
            x[row, at] = rng.choice([1e20, -1e20, 1e36])
        elif kind == 2:
            x[row, at] = 2**20 * np.abs(np.delete(x[row], at)).max()
        elif kind == 3:
            x[row, [at, (at + 1) % K]] = 1e20
    return x, w, b


def test_rows_with_a_value_that_outweighs_all_others(batch: int) -> None:
    """Its products are those of float32, rounded once: W with all of its 24 bits."""
    x, w, b = _lone(batch)
    lone = np.isin(np.arange(batch) % 5, (0, 1, 2))
    ways = ways_of(x, w)
    assert (ways.lone_rows, ways.irregular_rows) == (lone.sum(), 0)
    for chain in ("linear", "linear | logsumexp", "linear | silu | max"):
        check_chain(x, w, b, chain)
    y = Case("linear", x, w, np.zeros_like(b)).run("cuda").reshape(batch, N)
    rows = np.arange(batch) % 5 < 2  # of others the rest may be the larger in a logit
    exact = x[rows].astype(np.float64) @ w.T.astype(np.float64)
    assert (np.abs(y[rows] - exact) <= 0.5001 * np.spacing(np.abs(y[rows])).astype(np.float64)).all()
    single = np.arange(batch) % 5 == 0
    at = np.abs(x[single]).argmax(axis=1)
    assert same_bits(y[single], (x[single, at][:, None] * w.T[at]).astype(np.float32)), "the products themselves"


@pytest.mark.parametrize("apart", [1, 4, 33, 130, 700])
def test_rows_with_two_values_that_outweigh_all_others(batch: int, apart: int) -> None:
    """Whether a thread, a warp or a block has both: none outweighs the other, unless by 2^20."""
    x, w, b = tame(batch)
    x[:, 8] = np.float32(2.0**60)
    x[:, 8 + apart] = np.where(np.arange(batch) % 2, np.float32(2.0**-19.5), np.float32(2.0**-20)) * x[:, 8]
    assert ways_of(x, w).lone_rows == (batch + 1) // 2
    check_chain(x, w, b, "linear")


def test_a_row_that_is_irregular_without_its_largest_value(batch: int) -> None:
    """Such a row goes its way whole, and one with NaN has no such value."""
    x, w, b = tame(batch)
    w[(np.arange(N)[:, None] + np.arange(K)) % 3 == 0] = 0
    x[5] = spread(40.0, np.random.default_rng(1), 1, K).astype(np.float32).clip(-1e9, 1e9)
    x[5, 7] = 1e20
    x[9, 8], x[9, 9] = 1e20, np.nan
    x[11, 8], x[11, 9] = 1e20, np.inf
    ways = ways_of(x, w)
    assert ways.lone_rows == 0 and ways.irregular_rows == 1
    for chain in ("linear", "linear | logsumexp"):
        check_chain(x, w, b, chain)


@pytest.mark.parametrize("x_dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("k", [1, 2, 9, 100, 333, 1056, 2056, 9000, 20_001])
def test_one_value_a_row_of_any_length(k: int, x_dtype: str) -> None:
    """However rows lie in registers, shared memory or neither, and whether they are whole pieces."""
    rng = np.random.default_rng(k)
    for batch in (1, 5, 70, 200):
        w, b = rng.normal(size=(130, k)).astype(np.float32), np.zeros(130, np.float32)
        w[np.abs(w) < 1e-3] = 0.125
        x, at = np.zeros((batch, k), np.float32), rng.integers(k, size=batch)
        at[0] = k - 1
        x[np.arange(batch), at] = rng.choice([1, -0.5, 96], size=batch)
        case = make_case("linear", Data(x, w, b), dtype="float32", x_dtype=x_dtype)
        with case.model("cuda") as model:
            y, in_terms = model(case.x).reshape(batch, 130), model.count_ways(case.x).x_terms > 0
        products = (x[np.arange(batch), at][:, None] * w.T[at]).astype(np.float32)
        # Plain multiply-adds read two terms of W, 2^-23 of a value at most away from it, and both products are rounded.
        assert same_bits(y, products) if in_terms else (np.abs(y - products) <= 2.0**-22 * np.abs(products)).all()


def test_a_lone_value_and_an_update_that_keeps_the_form() -> None:
    """What W leaves is that of the new values; a row of W that became infinite is NaN and leaves the others alone."""
    x, w, b = _lone(140)
    infinite = np.roll(w, 1, axis=0)
    infinite[3, 7], infinite[70, 8], infinite[90, 9] = np.inf, -np.inf, np.nan
    with rowfold.Model("linear", dtype="float32", backend="cuda").load_weights(w, b) as model:
        for values in (infinite, w):
            model.update_weights(values, b, keep_form=True)
            y, finite = model(x), np.isfinite(values).all(axis=1)
            case = make_case("linear", Data(x, values[finite], b[finite]))
            case.check(np.ascontiguousarray(y[:, finite]), "kept", case.expected("cuda"))
            assert not np.isfinite(y[:, ~finite]).any()
            with rowfold.Model("linear", dtype="float32", backend="cuda").load_weights(values, b) as fresh:
                assert not finite.all() or same_bits(y, fresh(x))


def _with_infinities(batch: int, rows: list[int]) -> tuple[Array, Array, Array]:
    """Of which `rows` of x have several; W has zeros at some of their places, and values that a first term is too
    coarse for at others."""
    rng = np.random.default_rng(len(rows))
    x, w, b = tame(batch)
    w[rng.random(w.shape) < 0.1] = 0
    for row in rows:
        at = rng.choice(K, [2, 3, 8, 9, 16, K // 2][row % 6], replace=False)
        x[row, at] = rng.choice([np.inf, -np.inf] if row % 4 == 1 else [np.inf], len(at))
        w[row % N, at] = np.abs(w[row % N, at]) + 0.01  # so that one logit of many infinities is infinite
        w[(row + 3) % N, at[:2]] = 1e-30 if row % 3 else -1e-30
    if len(rows) > 1:
        x[rows[-1]] = -np.inf
    return x, w, b


@pytest.mark.parametrize("part", PARTS)
def test_rows_with_several_infinities(batch: int, part: str) -> None:
    x, w, b = _with_infinities(batch, PARTS[part](batch))
    assert ways_of(x, w).irregular_rows == 0
    for chain in ("linear | max", "linear", "linear | logsumexp, argmax"):
        check_chain(x, w, b, chain)
    first, second = (Case("linear", x, w, b).run("cuda") for _ in range(2))
    assert same_bits(first, second)


@pytest.mark.parametrize("part", ["one", "edges", "all"])
@pytest.mark.parametrize(
    "types", ["float32 bfloat16", "float32 float16", "bfloat16 float32", "float16 float32", "bfloat16 float16", "wide"]
)
def test_rows_with_several_infinities_of_other_terms(batch: int, types: str, part: str) -> None:
    """The last term of x meets the first of W alone, but for one of x beside two of W."""
    rows = PARTS[part](batch)
    x, w, b = _with_infinities(batch, rows)
    dtype, x_dtype = ("float32", "float32") if types == "wide" else types.split()
    if types == "wide":
        w *= np.abs(spread(6.0, np.random.default_rng(1), *w.shape)).clip(1e-8).astype(np.float32)
    elif dtype != "float32":
        w[np.abs(w) < 1e-20] = 0
    for chain in ("linear", "linear | max"):
        case = make_case(chain, Data(x, w, b), dtype=dtype, x_dtype=x_dtype)
        with case.model("cuda", simplify="none") as model:
            ways = model.count_ways(case.x)
        assert ways.weight_terms == (0 if dtype != "float32" else 3 if types == "wide" else 2)
        assert ways.irregular_rows == (len(rows) if (ways.x_terms, ways.weight_terms) == (1, 2) else 0)
        case.check_results(case.run("cuda", simplify="none"), "cuda", types)


def test_as_many_infinities_as_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one term beside two of W, which is read at up to 15 places in rows that are long enough for it; it has zeros
    at some."""
    rng = np.random.default_rng(12)
    x, w, b = tame(140)
    x, w = np.tile(x, 6), np.tile(w, 6)
    w[rng.random(w.shape) < 0.1] = 0
    for row in range(len(x)):
        at = rng.choice(6 * K, 14 + row % 4, replace=False)
        x[row, at] = np.inf
        w[row, at] = np.abs(w[row, at]) + np.float32(0.01)  # so that one logit of all of them is infinite
    case = make_case("linear", Data(x, w, b), x_dtype="bfloat16")
    expected = case.expected("cuda")
    for kernel in each(monkeypatch, ["", *TERMS]):
        case.check(case.run("cuda", simplify="none"), kernel, expected)


@pytest.mark.parametrize("batch", [1, 7, 16])
@pytest.mark.parametrize("n", [N, 1400])
def test_as_many_infinities_as_are_looked_up_in_few_rows(monkeypatch: pytest.MonkeyPatch, batch: int, n: int) -> None:
    """More of them, the fewer rows there are; all at once where some have more, or are irregular without infinities."""
    monkeypatch.setenv(FORCE, "hopper_small")
    rng = np.random.default_rng(batch)
    k, most = 6400, 480 // batch
    x, w, b = (np.ascontiguousarray(v, np.float32) for v in kernelbench(rng, batch, k, n))
    x -= np.float32(0.5)
    w[rng.random(w.shape) < 0.02] = 0
    for counts in ([most - 1], [most], [most + 1], [2, most + 1, 5], [most, 0, most, 900]):
        values = x.copy()
        for row, count in zip(range(batch), counts * batch):
            at = rng.choice(k, count, replace=False)
            values[row, at] = rng.choice([np.inf, -np.inf])
            w[row, at] = np.abs(w[row, at]) + np.float32(0.01)
            if not count:
                values[row] *= np.float32(10.0) ** rng.uniform(-30, 8, k).astype(np.float32)
        for x_dtype in ("float32", "float16"):
            if x_dtype == "float16":
                values = np.where(np.isinf(values), values, x)
            check_chain(values, w, b, "linear", x_dtype=x_dtype)


def test_rows_of_all_kinds_in_several_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than are looked at a time, whose groups are finished by different blocks; kinds in turns, and one that
    there is not among the first rows.
    """
    rng = np.random.default_rng(11)
    batch, n = 4500, 300
    x, w, b = (v[..., :64] if v.ndim > 1 else v for v in tame(batch, n))
    x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
    w[:, :40] *= rng.random((n, 40)) < 0.5
    x[::3] = rng.normal(size=x[::3].shape) * np.repeat([1e18, 1e-2, 1e-26], [3, 37, 24])
    x[1::3, 5] = np.inf
    x[1::3, 6] = rng.choice([np.inf, -np.inf], len(x[1::3]))
    x[2500::7, :32] = -np.inf
    for chain, x_dtype in (("linear | logsumexp", "float32"), ("linear", "bfloat16"), ("linear", "float32")):
        case = make_case(chain, Data(x, w, b), x_dtype=x_dtype)
        expected = case.expected("cuda")
        for kernel in each(monkeypatch, [name for name in TERMS if name != "hopper_small"]):
            case.check(case.run("cuda", simplify="none"), f"{kernel} {x_dtype}", expected)
            with case.model("cuda", simplify="none") as model:
                assert model.count_ways(case.x).irregular_rows > batch // 4 or not kernel.startswith("hopper")


@pytest.mark.parametrize("part", PARTS)
def test_rows_beyond_two_levels(batch: int, part: str) -> None:
    """A sum without what is lost would not show it unless W has zeros where x is large: then it must be there."""
    rows = PARTS[part](batch)
    x, w, b = tame(batch)
    rng = np.random.default_rng(5)
    x[rows] = rng.normal(size=(len(rows), K)) * np.repeat([1e18, 1e-2, 1e-26], [3, 297, K - 300])
    ways = ways_of(x, w)
    assert (ways.two_level_rows, ways.irregular_rows) == (len(rows), 0), "W has something of each"
    check_chain(x, w, b)
    w[5, 3::2] = 0
    ways = ways_of(x, w)
    assert (ways.two_level_rows, ways.irregular_rows) == (len(rows), 0), "the largest of a row meet no zero"
    check_chain(x, w, b)
    w[7, :3] = 0
    ways = ways_of(x, w)
    assert (ways.two_level_rows, ways.irregular_rows) == (0, len(rows)), "all of the largest may meet one"
    check_chain(x, w, b, "linear")
    w[:, :300] = 0
    assert ways_of(x, w).irregular_rows == len(rows)
    for chain in ("linear | max", "linear"):
        check_chain(x, w, b, chain)
    exact = x[rows].astype(np.float64) @ w.T.astype(np.float64)
    y = Case("linear", x, w, np.zeros_like(b)).run("cuda")[rows]
    sums = np.abs(x[rows].astype(np.float64)) @ np.abs(w.T.astype(np.float64))
    assert (np.abs(y - exact) <= 1e-6 * sums).all()


def test_what_is_wide_under_tf32(batch: int) -> None:
    """One term holds a row of x of which half of the values are large, whatever of the others it loses; but not a
    feature of W that is small beside the others in many rows, for x may rest on it alone.
    """
    rng = np.random.default_rng(7)
    x, w, b = tame(batch)

    def check(x: Array, w: Array, weight_terms: int, two_level_rows: int) -> None:
        ways = ways_of(x, w, "tf32")
        if weight_terms == 3 and on_wgmma():
            weight_terms = 0  # W and x in float32 rounded to TF32
        assert (ways.weight_terms, ways.two_level_rows) == (weight_terms, two_level_rows)
        for chain in ("linear", "linear | logsumexp"):
            case = Case(chain, x, w, b)
            case.check(case.run("cuda", math="tf32"), "tf32", case.expected("cuda", "tf32"))

    def few(share: float, shape: tuple[int, ...], little: float = 1e-10) -> Array:
        return np.where(rng.random(shape) < share, little, 1).astype(np.float32)

    check(x, spread(3.0, rng, N, K).astype(np.float32), 1, 0)
    check(x, w * few(0.0005, w.shape), 1, 0)
    check(x, w * few(0.4, w.shape), 3, 0)
    check(x * few(0.4, x.shape), w, 1, 0)
    check(x * few(0.6, x.shape), w, 1, batch)
    feature, alone = w.copy(), np.zeros_like(x)
    feature[:, 5] *= 1e-10
    alone[:, 5] = x[:, 5]
    check(alone, feature, 3, 0)
    rare = w.copy()
    rare[:2, 5] *= 1e-10
    check(x, rare, 1, 0)


@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16", "float16"])
def test_any_values_under_tf32(batch: int, x_dtype: str) -> None:
    """Of both sides: whatever W's way is."""
    rng = np.random.default_rng(9)
    x, w, b = tame(batch)
    wide = spread(6.0, rng, *w.shape)
    x[2:40] = spread(3.0, rng, 38, K).clip(-6e4, 6e4)
    x[40:44] *= np.float32(1e-3)
    for chain in ("linear", "linear | max", "linear | logsumexp, argmax"):
        for values in (wide, np.where(rng.random(w.shape) < 0.001, np.inf, w)):
            case = make_case(chain, Data(x, values, b), x_dtype=x_dtype, dtype="float32")
            y = case.run("cuda", math="tf32")
            if "argmax" not in chain:
                case.check(y, "tf32", case.expected("cuda", "tf32"))
    special = wide.copy()
    special[::3, 5], special[1, 6], special[2] = np.inf, np.nan, 0
    odd = x.copy()
    odd[1, 5], odd[2, 9], odd[3, 9], odd[4], odd[5, 5] = 0, np.inf, np.nan, 0, -np.inf
    case = make_case("linear", Data(odd, special, b), x_dtype=x_dtype, dtype="float32")
    case.check(case.run("cuda", math="tf32"), "tf32", case.expected("cuda", "tf32"))


def test_a_row_does_not_depend_on_others(batch: int) -> None:
    rng = np.random.default_rng(3)
    x, w, b = tame(batch)
    w[rng.integers(0, N, K), np.arange(K)] = 0
    x[::3, :2] = np.inf
    x[1::3] = spread(30.0, rng, *x[1::3].shape).clip(-1e38, 1e38).astype(np.float32)
    with Case("linear | logsumexp", x, w, b).model("cuda", batch_invariant=True) as model:
        whole = model(x)
        ways = model.count_ways(x)
        assert ways.irregular_rows > batch // 4 or not ways.x_terms  # hopper_small promises no invariance
        for first, last in ((0, 1), (1, 9), (5, 70), (64, 140)):
            assert same_bits(model(x[first:last]), whole[first:last])
        order = rng.permutation(len(x))
        assert same_bits(model(x[order]), whole[order])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("chain", ["linear", *(f"linear | {r}" for r in ("logsumexp", "argmax", "topk(3)", "entropy"))])
def test_float32_beside_weights_that_expect_their_own_type(
    monkeypatch: pytest.MonkeyPatch, chain: str, dtype: str
) -> None:
    """W may lie in blocks then, whose width is not that of every kernel's stages beside three terms."""
    x, w, b = tame(140)
    x[3, 5] = np.inf
    x[4, [6, 7]] = np.inf, -np.inf
    x[5, 8] = np.nan
    x[6, ::2] *= np.float32(1e-25)
    for k, n in ((K, N), (K - 24, N - 1), (40, 130)):
        whole = make_case(chain, Data(x[:, :k], w[:n, :k], b[:n]), dtype=dtype, x_dtype="float32")
        for rows in (9, 32, 140):
            case = replace(whole, x=whole.x[:rows], told=False)
            for kernel in each(monkeypatch, ("", *HOPPER)):
                case.check_results(case.run("cuda", simplify="none"), "cuda", kernel)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("k", [63, 1000, 1023, 1024, 1025, 1078, 1284, 2047, 2048, 2049, 2100, 5001, 17_001])
def test_rows_of_any_length(k: int, dtype: str) -> None:
    """Which threads bring a row to terms depends on its length, on their number, and on where it begins."""
    rng = np.random.default_rng(k)
    for batch in (100, 140):
        data = infinities(bool(k % 2), rng, batch, k, 40)
        data.x[1::4] = spread(25.0, rng, *data.x[1::4].shape)
        data.x[2::4] = rng.normal(size=data.x[2::4].shape)
        data.x[3::8] *= 1e-30
        for x_dtype in ("float32", "bfloat16"):
            if dtype == x_dtype == "bfloat16":
                continue
            case = make_case("linear | max", data, x_dtype=x_dtype, dtype=dtype)
            apart = np.ones((batch, k + 3), case.x.dtype)[:, 1 : k + 1]
            apart[:] = case.x
            with case.model("cuda", simplify="none") as model:
                y = model(case.x)
                assert same_bits(model(apart), y), (batch, x_dtype)
            case.check(y, f"{batch} rows of {x_dtype}", case.expected("cuda"))


@pytest.mark.parametrize("kernel", TERMS)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    batch=st.sampled_from([1, 5, 16, 33, 64, 65, 130]),
    k=st.sampled_from([32, 40, 100, 513, 1024]),
    n=st.sampled_from([1, 8, 64, 130, 300]),
    kind=st.sampled_from(["infinities", "infinities_both", "specials", "lognormal6", "mixed", "several"]),
    x_dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    dtype=st.sampled_from(["float32", "float32", "bfloat16", "float16"]),
    untold=st.booleans(),
)
def test_any_mixture(
    kernel: str, seed: int, batch: int, k: int, n: int, kind: str, x_dtype: str, dtype: str, untold: bool
) -> None:
    rng = np.random.default_rng(seed)
    mixed = kind in ("mixed", "several")
    data = infinities(bool(seed % 2), rng, batch, k, n) if mixed else ALL[kind](rng, batch, k, n)
    if kind == "several":
        data.x[::3] = np.abs(kernelbench(rng, len(data.x[::3]), k, 1)[0])
        for row in rng.choice(n, min(n, rng.choice([1, 2, 8, k // 8, n])), replace=False):
            data.w[row, rng.choice(k, rng.choice([2, 3, k]), replace=False)] = rng.choice([np.inf, -np.inf])
    if mixed:
        wide = rng.random(batch) < 0.3
        data.x[wide] = spread(25.0, rng, int(wide.sum()), k)
    case = make_case("linear | max", data, x_dtype=x_dtype, dtype=dtype)
    case = replace(case, told=not untold or x_dtype == "bfloat16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FORCE, kernel)
        case.check_results(case.run("cuda", simplify="none"), "cuda", kernel)
