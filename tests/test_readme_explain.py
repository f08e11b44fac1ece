# SPDX-License-Identifier: MIT
"""What explain says in the README is what it says; so are the test files behind its promises."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from rowfold.__main__ import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
SHOWN = re.findall(r"```text\n\$ rowfold (explain .*)\n((?:.*\n)*?)```", README)
# What depends on the machine: its instruction set and caches, and what they make of blocks and times.
MACHINE_LINES = ("backend ", "  The fused way reads W", "  Expected times rest on")
MACHINE_FIGURES = ("  memory read and written", "  memory held", "  expected time")


def masked(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.startswith(MACHINE_LINES)]
    return [re.sub(r"[\d.]+ \w+ *", "# ", line) if line.startswith(MACHINE_FIGURES) else line for line in lines]


def test_the_three_presets_are_explained() -> None:
    assert re.findall(r"preset:(\w+)", " ".join(command for command, _ in SHOWN)) == [
        "logsumexp_gelu",
        "sum_pool",
        "scale_clamp_mish",
    ]


@pytest.mark.parametrize(("command", "expected"), SHOWN, ids=[shlex.split(command)[1] for command, _ in SHOWN])
def test_explain_says_what_the_readme_shows(command: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 0
    assert masked(capsys.readouterr().out) == masked(expected)


def test_tests_named_in_the_readme_exist() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", README)
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).is_file(), name


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target
