# SPDX-License-Identifier: MIT
"""What the docstrings say, against the package."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re

import numpy as np
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
    "name",
    [
        "Model",
        "Model.load_weights",
        "Model.update_weights",
        "Model.__call__",
        "Model.from_file",
        "Model.from_state_dict",
    ],
)
def test_docstrings_name_every_parameter(name):
    thing = rowfold
    for part in name.split("."):
        thing = getattr(thing, part)
    documented = inspect.getdoc(thing)
    for parameter in list(inspect.signature(thing).parameters):
        assert parameter in ("self", "cls") or re.search(rf"\b{parameter}\b", documented), parameter


def modules():
    """Every module of the package, those aside that need what is not there."""
    for found in pkgutil.walk_packages(rowfold.__path__, "rowfold."):
        if found.name.endswith("__main__"):
            continue
        try:
            yield importlib.import_module(found.name)
        except ImportError as error:
            if not found.name.startswith("rowfold.torch") and error.name not in ("matplotlib", "tqdm", "rich"):
                raise


@pytest.mark.heavy
def test_examples_of_docstrings_run():
    names = {}
    for module in (rowfold, *modules()):
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={"rowfold": rowfold, "np": np}):
            if test.examples:
                names[test.name] = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert {"rowfold", "rowfold.model.Model", "rowfold.model.Model.from_state_dict", "rowfold.ops"} <= names.keys()
    assert [name for name, results in names.items() if results.failed] == []


def test_no_example_hides_from_doctest():
    """Code that only stands indented in a docstring is neither run nor kept by a formatter."""
    for module in (rowfold, *modules()):
        for thing in (module, *(v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__)):
            text = inspect.getdoc(thing) or ""
            assert not re.search(r"^ +(import|from|with) .*\b(rowfold|Model)\b", text, re.MULTILINE), thing
