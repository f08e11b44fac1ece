# SPDX-License-Identifier: MIT
"""What the docstrings say, against the package."""

from __future__ import annotations

import inspect
import re

import pytest
import rowfold


@pytest.mark.parametrize("name", rowfold.__all__)
def test_public_names_are_documented(name):
    thing = getattr(rowfold, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if callable(value) and not member.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_exceptions_say_their_kind():
    kinds = {TypeError, ValueError, RuntimeError, MemoryError, OSError}
    for name in rowfold.__all__:
        thing = getattr(rowfold, name)
        if inspect.isclass(thing) and issubclass(thing, rowfold.Error) and thing is not rowfold.Error:
            assert len(kinds & set(thing.__mro__)) == 1, name


@pytest.mark.parametrize(
    "name", ["Model", "Model.load_weights", "Model.__call__", "Model.from_file", "Model.from_state_dict"]
)
def test_docstrings_name_every_parameter(name):
    thing = rowfold
    for part in name.split("."):
        thing = getattr(thing, part)
    documented = inspect.getdoc(thing)
    for parameter in list(inspect.signature(thing).parameters):
        assert parameter in ("self", "cls") or re.search(rf"\b{parameter}\b", documented), parameter
