# SPDX-License-Identifier: MIT
"""The command line over large files: memory, signals, full disks."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import rowfold
from cli import environment, started
from rowfold.__main__ import main
from rowfold.commands import output, streaming
from test_cli import CHAIN, refused

MEBIBYTE = 1 << 20
WIDE = 1024


@pytest.fixture
def large(tmp_path):
    """A weight of 256 KiB, and 192 MiB of input."""
    np.savez(tmp_path / "w.npz", w=np.random.default_rng(6).standard_normal((64, WIDE)).astype(np.float32) / 32)
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (192 * MEBIBYTE // 4 // WIDE, WIDE))
    part = np.random.default_rng(7).standard_normal((1024, WIDE)).astype(np.float32)
    for first in range(0, len(rows), len(part)):
        rows[first : first + len(part)] = part
    rows.flush()
    return tmp_path


def peak_of(arguments):
    """Peak resident memory of the command, in bytes: of a process between that has no other child."""
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'rowfold', *sys.argv[1:]], stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        "sys.exit(done.returncode)"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)


def test_run_stays_within_its_memory(large):
    """192 MiB of input with a cap of 16: at most the cap more than a run over 1 MiB of input.

    With that much input the smaller run starts the same threads and touches the same code.
    """
    np.save(large / "few.npy", np.zeros((256, WIDE), np.float32))
    cap = ["--max-memory", "16M", "--quiet"]
    weights = ["--weights", large / "w.npz"]
    least = peak_of(["run", CHAIN, *weights, *cap, "--input", large / "few.npy", "--output", large / "y1.npy"])
    most = peak_of(["run", CHAIN, *weights, *cap, "--input", large / "x.npy", "--output", large / "y.npy"])
    assert most - least <= 16 * MEBIBYTE
    y = np.load(large / "y.npy")
    with rowfold.Model.from_file(large / "w.npz", CHAIN, weight="w", batch_invariant=True) as expected:
        np.testing.assert_array_equal(y[-1024:], expected(np.load(large / "x.npy", mmap_mode="r")[-1024:]))


def long_run(large):
    """A command that is busy long enough to be interrupted."""
    files = ["--input", large / "x.npy", "--output", large / "y.npy", "--weights", large / "w.npz"]
    slowly = ["--max-memory", "16K", "--threads", "1", "--device", "cpu"]
    return [sys.executable, "-m", "rowfold", "run", CHAIN, *files, *slowly]


@pytest.mark.parametrize("times", [1, 200])
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_an_interrupted_run_leaves_no_half_file(large, signal_number, times):
    command = long_run(large)
    before = set(large.iterdir())

    def heed_signals():  # which a shell has its background jobs ignore
        signal.signal(signal_number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with subprocess.Popen(
        [*map(str, command)], env=environment(), stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals
    ) as process:
        while process.poll() is None and set(large.iterdir()) == before:
            time.sleep(0.005)
        assert process.poll() is None, "it ended before it could be interrupted"
        for _ in range(times):
            process.send_signal(signal_number)
        _, said = process.communicate()
    # One that comes when all is tidy, and the interpreter about to end, may end it as it ends any program.
    assert process.returncode in ([128 + signal_number] if times == 1 else [128 + signal_number, -signal_number])
    assert times > 1 or "Traceback" not in said
    assert set(large.iterdir()) == before


def test_an_ignored_signal_stays_ignored(large):
    """As under nohup."""
    command = [*long_run(large), "--quiet"]
    before = set(large.iterdir())
    with subprocess.Popen(
        [*map(str, command)],
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # noqa: PLW1509 - one thread
    ) as process:
        while process.poll() is None and set(large.iterdir()) == before:
            time.sleep(0.005)
        process.send_signal(signal.SIGHUP)
        assert process.wait() == 0
    assert set(large.iterdir()) == before | {large / "y.npy"}


def test_an_interrupt_right_behind_the_creation_leaves_no_half_file(tmp_path, monkeypatch):
    def interrupted(*arguments):
        open(*arguments).close()
        assert list(tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "open", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt), output.complete_or_absent(tmp_path / "y.npy"):
        pytest.fail("there is no file to write to")
    assert not list(tmp_path.iterdir())


class Dropped:
    """Python drops what is raised where this goes, as it does behind imports."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # the signal's handler runs between two of these
            pass


def test_a_signal_that_python_drops_is_heeded_nevertheless(tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "w.npz", w=np.ones((3, 2), np.float32))
    np.save(tmp_path / "x.npy", np.ones((5, 2), np.float32))
    before = set(tmp_path.iterdir())

    def progress(total, quiet):
        dropped = Dropped()
        del dropped
        return contextlib.nullcontext()

    monkeypatch.setattr(streaming, "_progress", progress)
    monkeypatch.setattr(streaming.Stream, "_some", lambda *_: pytest.fail("it went on"))
    files = ["--weights", tmp_path / "w.npz", "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy"]
    assert main(["run", CHAIN, *map(str, files)]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == ""
    assert set(tmp_path.iterdir()) == before


def test_a_signal_that_python_drops_at_the_end_replaces_nothing(tmp_path):
    (tmp_path / "y.npy").write_bytes(b"old")
    with pytest.raises(output.Stopped), output.interruptible(), output.complete_or_absent(tmp_path / "y.npy"):
        dropped = Dropped()
        del dropped
    assert (tmp_path / "y.npy").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_is_one_sentence_and_leaves_no_half_file(large):
    def small_files_only():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    before = set(large.iterdir())
    files = ["--input", large / "x.npy", "--output", large / "y.npy"]
    done = started("run", CHAIN, "--weights", large / "w.npz", *files, "--quiet", preexec_fn=small_files_only)
    refused(done, 1, "y.npy")
    assert set(large.iterdir()) == before
