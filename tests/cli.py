# SPDX-License-Identifier: MIT
"""How tests give command lines: in this process, or in one of its own where signals, memory or links are the matter."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import rowfold
from rowfold.__main__ import main

PYTHON_DIR = Path(rowfold.__file__).resolve().parents[1]
_PIPE_HOLDS = 65536


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PYTHON_DIR), "COLUMNS": "200"}


def started(*arguments: object, **keywords: Any) -> subprocess.CompletedProcess[str]:
    """``rowfold ARGUMENTS`` as a process, to its end."""
    command = [sys.executable, "-m", "rowfold", *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, **keywords)


def cli(
    *arguments: object, given: bytes = b"", text: bool = True, cwd: Path | None = None
) -> subprocess.CompletedProcess[Any]:
    """``rowfold ARGUMENTS`` in this process: to start Python, and CUDA, takes longer than most commands.

    Standard input is a pipe that holds ``given``. An exception that the command line lets through fails the test.
    """
    assert len(given) <= _PIPE_HOLDS, "nobody would read the rest"
    line = [*map(str, arguments)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, contextlib.ExitStack() as stack:
        stdin, pipe = os.pipe()
        stack.callback(os.close, stdin)
        with open(pipe, "wb") as file:
            file.write(given)
        for number, (name, to) in enumerate({"stdin": stdin, "stdout": out.fileno(), "stderr": err.fileno()}.items()):
            before = os.dup(number)
            stack.callback(os.close, before)
            stack.callback(os.dup2, before, number)
            os.dup2(to, number)
            stream = stack.enter_context(open(number, "w" if number else "r", closefd=False))
            stack.enter_context(mock.patch.object(sys, name, stream))
        stack.enter_context(mock.patch.dict(os.environ, COLUMNS="200"))
        stack.enter_context(mock.patch.object(sys, "argv", ["rowfold", *line]))
        if cwd is not None:
            stack.callback(os.chdir, os.getcwd())
            os.chdir(cwd)
        try:
            status = main(line)
        except SystemExit as end:
            status = end.code
            if not isinstance(status, int):  # as Python ends with a sentence
                print(status, file=sys.stderr)
                status = 1
        stack.close()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode() if text else file.read())
    return subprocess.CompletedProcess(line, status, *texts)
