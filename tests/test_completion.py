# SPDX-License-Identifier: MIT
"""Shell completion knows every option of every command, in each shell that is here."""

from __future__ import annotations

import argparse
import importlib.util
import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from rowfold import presets
from rowfold.__main__ import parser

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
# What bash does when Tab is pressed behind the words given: it fills in COMP_WORDS and calls the function that the
# script registered.
PRESS_TAB = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_rowfold
printf '%s\\n' "${COMPREPLY[@]}"
"""


def tool():
    spec = importlib.util.spec_from_file_location("completion", ROOT / "tools" / "completion.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["bash", "zsh", "fish"])
def script(request, tmp_path):
    pytest.importorskip("shtab")
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    path = tmp_path / f"rowfold.{request.param}"
    path.write_text(tool().completion(request.param))
    return request.param, path


def output(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def completed(shell, path, *words):
    """The words that the shell offers for the last one."""
    if shell == "bash":
        return set(output("bash", "-c", PRESS_TAB, "bash", path, "rowfold", *words).split())
    if shell == "fish":
        offered = output("fish", "-c", f"source {path}; complete -C 'rowfold {' '.join(words)}'")
        return {line.split("\t")[0] for line in offered.splitlines()}
    pytest.skip("zsh completes only at a terminal: see test_zsh_at_a_terminal")


def typed(zsh, text, *expected):
    """Types the text and waits until the terminal has shown all that is expected."""
    os.write(zsh, text.encode())
    shown, end = "", time.monotonic() + 20
    while not all(word in shown for word in expected):
        ready, _, _ = select.select([zsh], [], [], max(0, end - time.monotonic()))
        assert ready, f"{expected} is not in {shown!r}"
        shown += os.read(zsh, 4096).decode(errors="replace")


def test_zsh_at_a_terminal(tmp_path):
    """The function is found by its name in a directory of fpath, as make install puts it there."""
    pytest.importorskip("shtab")
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    (tmp_path / "_rowfold").write_text(tool().completion("zsh"))
    process, zsh = pty.fork()
    if not process:
        os.environ["TERM"] = "dumb"
        os.execvp("zsh", ["zsh", "-f"])
    try:
        line = f"fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D; rowfold() {{:}}; echo rea''dy\n"
        typed(zsh, line, "ready")
        typed(zsh, "rowfold ex\t", "explain")
        typed(zsh, "\x15rowfold run --math \t", "bf16", "f32", "tf32")
        typed(zsh, "\x15rowfold bench --preset \t", *presets())
    finally:
        os.close(zsh)
        os.waitpid(process, 0)


def test_the_shell_can_read_it(script):
    shell, path = script
    assert output(shell, "-n", path) == ""
    text = path.read_text()
    for name, command in COMMANDS.items():
        assert name in text
        for action in command._actions:
            for option in action.option_strings:
                assert option.lstrip("-") in text, option


def test_commands_and_their_options(script):
    assert completed(*script, "") >= set(COMMANDS)
    assert completed(*script, "ex") == {"explain"}
    for name, command in COMMANDS.items():
        options = {o for action in command._actions for o in action.option_strings if o.startswith("--")}
        assert {o for o in completed(*script, name, "--") if o.startswith("--")} == options


def test_values(script, tmp_path):
    assert completed(*script, "run", "--math", "") == {"f32", "tf32", "bf16"}
    assert completed(*script, "bench", "--preset", "") == set(presets())
    (tmp_path / "weights.npz").touch()
    assert completed(*script, "run", "--weights", f"{tmp_path}/w") == {f"{tmp_path}/weights.npz"}
