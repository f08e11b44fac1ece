# SPDX-License-Identifier: MIT
"""rowfold run and score --shard columns: several processes with some columns each, one complete output."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import rowfold
from cli import cli, environment
from rowfold.commands import shards
from test_cli_shards import ON_GPU, finish, left

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

pytestmark = pytest.mark.heavy

K, N, ROWS = 24, 3000, 23
CHAIN = "linear | mul(@s) | div(#heat) | logprob(#t, -100), argmax, entropy, var"


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(3)
    W, b = rng.standard_normal((N, K), dtype=np.float32), rng.standard_normal(N, dtype=np.float32)
    np.savez(tmp_path / "w.npz", weight=W, bias=b, s=rng.uniform(0.5, 2, N).astype(np.float32))
    np.save(tmp_path / "x.npy", rng.standard_normal((ROWS, K), dtype=np.float32))
    ids = rng.integers(0, N, ROWS)
    ids[3] = -100
    np.save(tmp_path / "ids.npy", ids)
    return tmp_path


def start(folder, rank, size, *command, names=("RANK", "WORLD_SIZE"), **more):
    known = {name for pair in shards.NUMBERS for name in pair} | {"MASTER_ADDR", "MASTER_PORT"}
    variables = {k: v for k, v in environment().items() if k not in known}
    variables |= dict(zip(names, (str(rank), str(size)))) | more
    return subprocess.Popen(
        [sys.executable, "-m", "rowfold", *of_files(*command)],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def of_files(command, *more):
    files = ["--weights", "w.npz", "--weight", "weight", "--bias", "bias", "--input", "x.npy", "--threads", "1"]
    return [command, *files, *more]


RUN = ["run", CHAIN, "--row", "t=ids.npy", "--row", "heat=0.7", "--vector", "s=s"]
SCORE = ["score", "--targets", "ids.npy"]


def run(folder, rank, size, *more, output="y.npz", **keywords):
    return start(folder, rank, size, *RUN, "--output", output, "--shard", "columns", *more, **keywords)


def score(folder, rank, size, *more, **keywords):
    return start(folder, rank, size, *SCORE, "--shard", "columns", *more, **keywords)


def check_same(folder, command, outputs, names=None):
    """That all `outputs` are what one process writes.

    On a GPU with the bits of the first, and near a plain call, which folds its columns there in another order.
    """
    done = cli(*of_files(*command), "--output", "plain.npz", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    with np.load(folder / "plain.npz") as plain, np.load(folder / outputs[0]) as first:
        for output in outputs:
            with np.load(folder / output) as got:
                assert got.files == (names or plain.files)
                for name in got.files:
                    np.testing.assert_array_equal(got[name], (first if ON_GPU else plain)[name])
                    np.testing.assert_allclose(got[name], plain[name], rtol=1e-5, atol=1e-6)


def test_one_output_with_the_bits_of_one_process(files):
    for size, names in ((1, shards.NUMBERS[0]), (2, shards.NUMBERS[1]), (3, shards.NUMBERS[3])):
        # Little memory: several batches. The first is the last to come.
        more = {"names": names, "output": f"y{size}.npz"}
        processes = [run(files, rank, size, "--max-memory", "300K", **more) for rank in reversed(range(size))]
        assert finish(*processes) == [("", 0)] * size
    assert left(files) == ["ids.npy", "w.npz", "x.npy", "y1.npz", "y2.npz", "y3.npz"]
    check_same(files, RUN, ["y1.npz", "y2.npz", "y3.npz"])


def test_torchrun_says_where_they_meet(files):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    processes = [score(files, rank, 2, **meeting) for rank in range(2)]
    said = [p.communicate(timeout=120) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], said
    lines = cli(*of_files(*SCORE), cwd=files).stdout.splitlines()
    assert said[1][0] == "" and said[0][0].splitlines() == lines and lines[0] == "tokens           22 (1 ignored)"


def test_scores(files):
    processes = [score(files, rank, size, "--output", f"s{size}.npz") for size in (1, 2) for rank in range(size)]
    assert finish(*processes) == [("", 0)] * 3
    # A rank needs all columns in one process.
    check_same(files, SCORE, ["s1.npz", "s2.npz"], ["logprob", "greedy", "entropy"])


def test_a_process_that_fails_is_named_by_all(files):
    ids = np.load(files / "ids.npy")
    ids[9] = N
    np.save(files / "bad.npy", ids)
    processes = [run(files, 0, 2), run(files, 1, 2, "--weight", "nothing")]
    command = [part.replace("ids", "bad") for part in RUN]
    bad = [start(files, rank, 2, *command, "--output", "z.npz", "--shard", "columns") for rank in range(2)]
    (one, status), (two, other) = finish(*processes)
    assert (status, other) == (1, 1)
    assert "nothing" in two and one.startswith("rowfold: rank 1 failed: ") and "nothing" in one
    for said, status in finish(*bad):
        assert status == 1 and f"rank 0 failed: --row t=bad.npy is {N} in row 9" in said
    assert left(files) == ["bad.npy", "ids.npy", "w.npz", "x.npy"]


def test_a_process_that_does_not_come_or_dies_is_named(files):
    first, second = run(files, 0, 2, "--shard-timeout", "2", output="z.npz"), run(files, 1, 2, "--shard-timeout", "1")
    (said, status), (other, second_status) = finish(first, second)
    assert (other, second_status) == ("rowfold: rank 0 has not come within 1 seconds (--shard-timeout)\n", 1)
    assert status == 1 and "the 2 processes have not met within 2 seconds (--shard-timeout)" in said
    # Much work for the second, which is killed after it has begun.
    x = np.load(files / "x.npy")
    np.save(files / "x.npy", np.broadcast_to(x[:1], (300_000, K)))
    np.save(files / "ids.npy", np.zeros(300_000, np.int64))
    processes = [run(files, rank, 2, "--max-memory", "1M") for rank in range(2)]
    begun = time.monotonic()  # then there are a file of the first, one of the second, and one that they share
    while len(list(files.glob(".y.npz.*"))) < 3 and time.monotonic() - begun < 90:
        time.sleep(0.1)
    time.sleep(2)
    processes[1].kill()
    (said, status), _ = finish(*processes)
    assert status == 1 and "rank 1 (global rank 1) did not answer" in said, said
    assert left(files) == ["ids.npy", "w.npz", "x.npy"]


# What a process has had at most, mapped files included, in KiB. ru_maxrss is not it: that begins with the parent's.
PEAK = """
import sys
from rowfold.__main__ import main
status = main(sys.argv[1:])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(status)
"""


def test_each_process_holds_its_columns_alone(tmp_path):
    """Of four, a quarter: in the file, which is mapped, and of what is prepared of it."""
    columns, width = 16384, 1024
    weight = tmp_path / "w.safetensors"
    data = np.ones((columns, width), np.float32)
    head = json.dumps(
        {"weight": {"dtype": "F32", "shape": [columns, width], "data_offsets": [0, data.nbytes]}}
    ).encode()
    head += b" " * (-len(head) % 8)  # aligned, so that rows are read where they are
    weight.write_bytes(len(head).to_bytes(8, "little") + head + data.tobytes())
    np.save(tmp_path / "x.npy", np.ones((4, width), np.float32))
    command = [sys.executable, "-c", PEAK, "run", "linear | logsumexp", "--weights", weight.name, "--input"]
    command += ["x.npy", "--output", "y.npy", "--device", "cpu", "--threads", "1", "--shard", "columns", "--force"]

    def peaks(size):
        known = {name for pair in shards.NUMBERS for name in pair} | {"MASTER_ADDR", "MASTER_PORT"}
        base = {k: v for k, v in environment().items() if k not in known} | {"OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env=base | {"RANK": str(rank), "WORLD_SIZE": str(size)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        said = [process.communicate(timeout=120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * size
        return [int(text) * 1024 for text in said]

    (alone,), parts = peaks(1), peaks(4)
    # Twice the weights, once as the file has them and once prepared; what differs otherwise is a few MiB.
    saved = 2 * data.nbytes * 3 // 4
    assert all(saved * 0.8 < alone - part < saved * 1.2 for part in parts), (alone, parts)


def test_refusals(files):
    command = ["run", "linear | gelu", "--output", "y.npy", "--shard", "columns"]
    processes = [score(files, 0, 2), run(files, 0, 2, "--input", "-")]
    processes += [start(files, rank, 2, *command) for rank in range(2)]
    (meeting, *others), statuses = zip(*finish(*processes))
    assert statuses == (1,) * 4
    assert "the processes have nowhere to meet; expected --output FILE" in meeting
    assert "--shard columns: - is a stream" in others[0]
    assert all("folds no columns" in said for said in others[1:])
    with pytest.raises(rowfold.UnsupportedError):
        rowfold.Model("linear | topk(3)", K, 300, total_columns=N)
