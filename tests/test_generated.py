# SPDX-License-Identifier: MIT
"""What tools/generate.py writes is up to date: the numbers in the header, and the man pages, which troff accepts."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "doc").glob("*.[13]"))


def tool():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_committed_is_what_the_sources_say():
    made = tool().files()
    assert sorted(made) == sorted([*PAGES, ROOT / "lib" / "rowfold.h"])
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name} is out of date: python3 tools/generate.py"


def test_every_function_and_type_of_the_header_is_there():
    header = (ROOT / "lib" / "rowfold.h").read_text()
    page = (ROOT / "doc" / "librowfold.3").read_text()
    titles = set(re.findall(r"\w+", " ".join(re.findall(r"^\.SS (.*)", page, re.MULTILINE))))
    assert set(re.findall(r"\b(rf_\w+)\(\w[^)]*\);", header)) <= titles
    assert set(re.findall(r"^} (rf_\w+);", header, re.MULTILINE)) <= titles


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_troff_accepts_it(page):
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    # A page of code has lines wider than a terminal; that alone is no fault.
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-Wbreak", str(page)], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
