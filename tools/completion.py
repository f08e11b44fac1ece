#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints what completes ``rowfold`` in a shell, from the command line's own parsers: python3 tools/completion.py bash.

The build runs it for bash, zsh and fish where the shtab package is installed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shtab

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from rowfold.__main__ import parser  # noqa: E402

# From the table and not from the library, which a cross compiler makes for another machine.
PRESETS = re.findall(r'^RFI_PRESET\("(\w+)"', (ROOT / "lib" / "presets.def").read_text(), re.MULTILINE)
# What a parser leaves open and a shell can suggest.
SUGGESTED = {"--preset": PRESETS, "--device": ["cpu", "cuda"]}


def actions(top: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All options and arguments, those of sub-commands too."""
    for action in top._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from actions(command)


def completion(shell: str) -> str:
    """The script for one of shtab's shells."""
    top = parser()
    for action in actions(top):
        hinted: Any = action
        if action.metavar in ("FILE", "OLD"):
            hinted.complete = shtab.FILE
        for option in action.option_strings:
            action.choices = SUGGESTED.get(option, action.choices)
    script: str = shtab.complete(top, shell)
    return script.rstrip("\n") + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in shtab.SUPPORTED_SHELLS:
        sys.exit(f"usage: completion.py {'|'.join(shtab.SUPPORTED_SHELLS)}")
    sys.stdout.write(completion(sys.argv[1]))
