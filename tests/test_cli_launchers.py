# SPDX-License-Identifier: MIT
"""rowfold run and score as mpirun and torchrun start them: one complete output, and an end when a process fails."""

from __future__ import annotations

import glob
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from cli import cli, environment
from rowfold.commands import shards
from test_cli_shards import ON_GPU, left

K, N, ROWS = 24, 3000, 23
MPIRUN = os.environ.get("MPIRUN") or shutil.which("mpirun") or "no"
FILES = ["--weights", "w.npz", "--weight", "weight", "--bias", "bias", "--input", "x.npy", "--threads", "1"]
RUN = ["run", "linear | logprob(#t, -100), argmax, entropy", "--row", "t=ids.npy", *FILES, "--output", "y.npz"]
SCORE = ["score", "--targets", "ids.npy", *FILES, "--output", "s.npz"]
pytestmark = pytest.mark.heavy
needs_mpirun = pytest.mark.skipif(MPIRUN == "no", reason="needs mpirun")


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(3)
    W, b = rng.standard_normal((N, K), dtype=np.float32), rng.standard_normal(N, dtype=np.float32)
    np.savez(tmp_path / "w.npz", weight=W, bias=b)
    np.save(tmp_path / "x.npy", rng.standard_normal((ROWS, K), dtype=np.float32))
    ids = rng.integers(0, N, ROWS)
    ids[3] = -100
    np.save(tmp_path / "ids.npy", ids)
    return tmp_path


def variables():
    known = {name for pair in shards.NUMBERS for name in pair} | {"MASTER_ADDR", "MASTER_PORT"}
    # mpirun is careful about root and about more ranks than processors; tests are not.
    careless = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMP_NUM_THREADS": "1",
    }
    return {k: v for k, v in environment().items() if k not in known} | careless


def rowfold(*arguments):
    return [sys.executable, "-m", "rowfold", *arguments]


def call(folder, command):
    """Exit status, standard output and standard error."""
    done = subprocess.run(command, cwd=folder, env=variables(), capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def alone(folder, command, output):
    """What one process prints."""
    done = cli(*command, "--output", output, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def check_same(folder, got, right, shard):
    """On a GPU a plain call folds its columns in another order than processes that share them."""
    one, other = np.load(folder / got), np.load(folder / right)
    # Processes that share them have no rank.
    assert one.files == [name for name in other.files if (shard, name) != ("columns", "rank")]
    for name in one.files:
        if ON_GPU and shard == "columns":
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(one[name], other[name])


def torchrun(size, *command):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), *command]


@needs_mpirun
@pytest.mark.parametrize("shard", ["batch", "columns"])
def test_four_processes_of_mpirun(files, shard):
    if shard == "columns":
        pytest.importorskip("torch")
    more = ["--shard", shard]
    assert call(files, [MPIRUN, "-n", "4", *rowfold(*RUN, *more)])[:2] == (0, "")
    alone(files, RUN, "one.npz")
    check_same(files, "y.npz", "one.npz", shard)
    status, said, _ = call(files, [MPIRUN, "-n", "4", *rowfold(*SCORE, *more)])
    assert status == 0 and said.splitlines() == alone(files, SCORE, "two.npz").splitlines()
    check_same(files, "s.npz", "two.npz", shard)
    assert left(files) == ["ids.npy", "one.npz", "s.npz", "two.npz", "w.npz", "x.npy", "y.npz"]


@pytest.mark.parametrize("shard", ["batch", "columns"])
def test_two_processes_of_torchrun(files, shard):
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch has no gloo")
    status, said, error = call(files, torchrun(2, "-m", "rowfold", *SCORE, "--shard", shard))
    assert status == 0, error
    assert said.splitlines() == alone(files, SCORE, "two.npz").splitlines()
    check_same(files, "s.npz", "two.npz", shard)
    assert left(files) == ["ids.npy", "s.npz", "two.npz", "w.npz", "x.npy"]


@needs_mpirun
@pytest.mark.parametrize("shard", ["batch", "columns"])
def test_a_process_that_fails_or_is_late_ends_all(files, shard):
    """mpirun ends the others as soon as one has failed, so only that one is sure to say why."""
    if shard == "columns":
        pytest.importorskip("torch")
    # Where many processes share the processors, half a minute passes before all have begun: one that fails waits for
    # the others to begin, and one that is late is later than `call` waits.
    more = ["--shard", shard, "--shard-timeout", "200"]
    right, wrong = rowfold(*RUN, *more), rowfold(*RUN, *more, "--weight", "nothing")
    status, _, error = call(files, [MPIRUN, "-n", "1", *right, ":", "-n", "1", *wrong, ":", "-n", "2", *right])
    assert status != 0 and "nothing" in error and "Traceback" not in error, error
    right = rowfold(*RUN, "--shard", shard, "--shard-timeout", "4")
    late = ["sh", "-c", "sleep 600; exec " + shlex.join(right)]
    status, _, error = call(files, [MPIRUN, "-n", "1", *right, ":", "-n", "1", *late])
    assert status != 0 and "within 4 seconds (--shard-timeout)" in error, error
    assert not (files / "y.npz").exists()


@needs_mpirun
def test_a_process_that_is_killed_ends_all(files):
    # Much work, in the midst of which the second is killed.
    np.save(files / "x.npy", np.zeros((400_000, K), np.float32))
    np.save(files / "ids.npy", np.zeros(400_000, np.int64))
    command = [MPIRUN, "-n", "2", *rowfold(*RUN, "--shard", "batch", "--max-memory", "4M")]
    with subprocess.Popen(command, cwd=files, env=variables(), stderr=subprocess.PIPE, text=True) as launched:
        end = time.monotonic() + 60
        while not (there := list(files.glob(".y.npz.*.1"))) and time.monotonic() < end:
            time.sleep(0.01)
        assert there
        os.kill(holder_of(there[0]), signal.SIGKILL)
        error = launched.communicate(timeout=60)[1]
    assert launched.returncode != 0, error
    assert not (files / "y.npz").exists()


def holder_of(path):
    """The process that has the file open. Others come and go meanwhile, and so do files that it has open."""
    for opened in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(opened) == str(path):
                return int(opened.split("/")[2])
        except OSError:
            continue
    raise AssertionError(f"nobody has {path} open")
