# SPDX-License-Identifier: MIT
"""rowfold.ops: the operator table, and chains built from Python."""

from __future__ import annotations

import math
import pickle

import pytest
import rowfold
from rowfold import Chain, ops


def test_the_table_has_all_classes_and_unique_names():
    table = ops.operators()
    assert {row.op_class for row in table} == {"linear", "elementwise", "saved", "reduction"}
    assert len({row.name for row in table}) == len({row.kind for row in table}) == len(table)
    for row in table:
        assert row.description
        assert 0 <= row.min_params <= len(row.params)


def test_every_operator_is_an_attribute_and_callable():
    for row in ops.operators():
        base, _, variant = row.name.rstrip(")").partition("(")
        operator = getattr(ops, base)
        op = operator(variant) if variant else operator(*["#t" if row.row_input == "column" else 1.0] * row.min_params)
        assert op.operator == row
        assert base in dir(ops)


def test_chains_print_as_text_and_parse_back():
    chain = ops.linear(512, 1000) | ops.mul("@scale") | ops.clamp(min=-10, max=10) | ops.logsumexp | ops.gelu("tanh")
    text = "linear(512, 1000) | mul(@scale) | clamp(-10, 10) | logsumexp | gelu(tanh)"
    assert str(chain) == text
    assert Chain.parse(text) == chain
    assert hash(Chain.parse(text)) == hash(chain)
    assert len(chain) == 5
    assert chain[1].vector == "scale"
    assert [op.operator.name for op in chain] == ["linear", "mul", "clamp", "logsumexp", "gelu(tanh)"]


@pytest.mark.parametrize("value", [0.1, 1e-300, -1.7976931348623157e308, 1 / 3, 5e-324, 2.0**-149, 123456789.123456789])
def test_numbers_keep_every_bit_through_the_text(value):
    assert Chain.parse(str(ops.linear | ops.add(value)))[1].params == (value,)


def test_a_missing_bound_stays_missing():
    (_, op) = Chain.parse(str(ops.linear | ops.clamp(max=3)))
    low, high = op.params
    assert (low, high) == (-math.inf, 3.0)
    assert Chain.parse(str(ops.linear | ops.clamp(None, 3))) == Chain.parse("linear | clamp(max=3)")


@pytest.mark.parametrize("name", ["logsumexp_gelu", "sum_pool", "scale_clamp_mish"])
def test_presets_parse(name):
    assert Chain.parse(f"preset:{name}") == Chain.parse(rowfold.presets()[name])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ops.mul(), TypeError, "mul"),
        (lambda: ops.mul(1, 2), TypeError, "mul"),
        (lambda: ops.clamp(floor=2), TypeError, "unexpected keyword argument 'floor'"),
        (lambda: ops.mul(1j), TypeError, "expected a number or a vector"),
        (lambda: ops.clamp(min="low"), TypeError, "expected a number"),
        (lambda: ops.relu(1), TypeError, "relu"),
        (lambda: ops.mul("scale"), TypeError, "a per-feature vector is '@scale', a value of each row '#scale'"),
        (lambda: ops.gelu("sigmoid"), TypeError, r"gelu\('sigmoid'\) is not known; expected one of gelu\(tanh\)"),
        (lambda: ops.mul("@" + "x" * 32), ValueError, "31 bytes"),
        (lambda: ops.what, AttributeError, "no operator 'what'"),
        (lambda: str(ops.relu() | ops.sum), ValueError, "linear"),
        (lambda: Chain.parse("linear | "), ValueError, "column"),
        (lambda: Chain.parse(b"linear"), TypeError, "chain is a bytes"),
        (lambda: Chain([1]), TypeError, "a chain holds operators"),
        (lambda: Chain(3), TypeError, "operators is a int"),
        (lambda: Chain.parse("linear\udc80"), ValueError, "not valid Unicode"),
        (lambda: ops.mul("@a\0b"), ValueError, "NUL"),
        (lambda: ops.mul(10**400), ValueError, "beyond the range of a double"),
    ],
)
def test_mistakes_are_named(build, error, message):
    with pytest.raises(error, match=message) as caught:
        build()
    assert error is AttributeError or isinstance(caught.value, rowfold.Error)


def test_operators_do_not_join_with_other_things():
    with pytest.raises(TypeError):
        ops.linear | 3


def test_chains_can_be_pickled():
    chain = ops.linear(4, 5) | ops.leaky_relu(0.2) | ops.max
    assert pickle.loads(pickle.dumps(chain)) == chain


def test_several_results_are_a_tuple():
    scores = ops.linear | ops.softcap(30) | (ops.logsumexp, ops.argmax, ops.abs | ops.mean)
    assert str(scores) == "linear | softcap(30) | logsumexp, argmax, (abs | mean)"
    assert Chain.parse(str(scores)) == scores
    own = ops.linear | (ops.abs | ops.max, ops.min)
    assert str(own) == "linear | (abs | max), min" and Chain.parse(str(own)) == own
    assert repr(own) == "Chain(linear | result | abs | max | result | min)"
    assert str(ops.linear | (ops.max,)) == "linear | max"


def test_row_inputs():
    chain = (
        ops.linear | ops.div("#t") | (ops.logprob("#target", ignore_index=-1), ops.pick("#c"), ops.max | ops.sub("#s"))
    )
    assert str(chain) == "linear | div(#t) | logprob(#target, -1), pick(#c), (max | sub(#s))"
    assert Chain.parse(str(chain)) == chain
    assert chain[2].vector == "#target" and chain[2].params == (0.0, -1.0)
    assert ops.pick.row_input == "column" and ops.mul.row_input == "number" and ops.relu.row_input == "none"
    assert ops.argmax.gives_index and not ops.max.gives_index
    for wrong in ("@v", "t"):
        with pytest.raises((rowfold.Error, TypeError), match="pick"):
            ops.pick(wrong)
    with pytest.raises(TypeError, match="clamp"):
        ops.clamp("#t")
