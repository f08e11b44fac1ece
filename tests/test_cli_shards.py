# SPDX-License-Identifier: MIT
"""rowfold run and score --shard batch: several processes, one complete output."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import rowfold
from cli import environment
from rowfold.commands import shards

ON_GPU = any(backend.name == "cuda" and backend.available for backend in rowfold.backends())
K, N, ROWS = 24, 50, 23


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(3)
    W, b = rng.standard_normal((N, K), dtype=np.float32), rng.standard_normal(N, dtype=np.float32)
    np.savez(tmp_path / "w.npz", weight=W, bias=b)
    x = rng.standard_normal((ROWS, K), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    return tmp_path, rowfold.Model("linear | logsumexp").load_weights(W, b)(x)


def start(folder, rank, size, *more, names=("RANK", "WORLD_SIZE"), chain="linear | logsumexp"):
    return launch(folder, rank, size, "run", chain, "--output", "y.npy", *more, names=names)


def launch(folder, rank, size, *command, names=("RANK", "WORLD_SIZE"), shard=("--shard", "batch")):
    files = ["--weights", "w.npz", "--weight", "weight", "--bias", "bias", "--input", "x.npy"]
    command = [sys.executable, "-m", "rowfold", command[0], *files, "--threads", "1", *shard, *command[1:]]
    known = {name for pair in shards.NUMBERS for name in pair}
    variables = {k: v for k, v in environment().items() if k not in known}
    variables |= dict(zip(names, (str(rank), str(size))))
    return subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def finish(*processes):
    return [(p.communicate(timeout=120)[1], p.returncode) for p in processes]


@pytest.mark.parametrize("names", shards.NUMBERS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_output_with_the_bits_of_one_process(files, size, names):
    folder, right = files
    if size != 2 and names[0] != "RANK":
        return
    # The first is the last to come.
    processes = [start(folder, rank, size, names=names) for rank in reversed(range(size))]
    assert finish(*processes) == [("", 0)] * size
    np.testing.assert_array_equal(np.load(folder / "y.npy"), right)
    assert left(folder) == ["w.npz", "x.npy", "y.npy"]


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_several_results_and_row_inputs(files, ending):
    folder, _ = files
    np.save(folder / "ids.npy", np.arange(ROWS) * 7 % N)
    chain = "linear | logprob(#t), argmax, topk(3)"
    more = ["--row", "t=ids.npy", "--force", "--output", f"y.{ending}"]
    (folder / f"y.{ending}").write_bytes(b"old")
    assert finish(*(start(folder, rank, 3, *more, chain=chain) for rank in range(3))) == [("", 0)] * 3
    together = (folder / f"y.{ending}").read_bytes()
    ((said, status),) = finish(start(folder, 0, 1, *more, chain=chain))
    assert (said, status) == ("", 0)
    alone = (folder / f"y.{ending}").read_bytes()
    if ending == "npz":  # whose members have a time
        one, other = (np.load(io.BytesIO(data)) for data in (together, alone))
        assert one.files == other.files and all(np.array_equal(one[name], other[name]) for name in one.files)
    else:
        assert together == alone


def scored(*processes):
    said = [p.communicate(timeout=120) for p in processes]
    assert [(p.returncode, err) for p, (_, err) in zip(processes, said)] == [(0, "")] * len(processes)
    return [out for out, _ in said]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_scores_and_their_summary(files, size):
    folder, _ = files
    ids = np.arange(ROWS) * 7 % N
    ids[[0, 3, 20]] = -100
    np.save(folder / "ids.npy", ids)
    command = ["score", "--targets", "ids.npy", "--json"]
    (alone,) = scored(launch(folder, 0, 1, *command, "--output", "one.npz", shard=()))
    one, *others = scored(*(launch(folder, rank, size, *command, "--output", "s.npz") for rank in range(size)))
    assert others == [""] * (size - 1)
    got, right = json.loads(one), json.loads(alone)
    assert got.keys() == right.keys() and right["tokens"] == ROWS - 3
    for name in right:  # sums of three parts may round in another way
        assert got[name] == pytest.approx(right[name], rel=1e-12), name
    assert left(folder) == ["ids.npy", "one.npz", "s.npz", "w.npz", "x.npy"]
    together, one = (np.load(folder / name) for name in ("s.npz", "one.npz"))
    assert together.files == one.files == ["logprob", "greedy", "rank", "entropy"]
    assert all(np.array_equal(together[name], one[name]) for name in one.files)
    ((said, status),) = finish(launch(folder, 0, 2, *command))
    assert status == 1 and "--shard batch: the processes have nowhere to meet; expected --output FILE" in said


def test_more_processes_than_rows(files):
    folder, right = files
    np.save(folder / "x.npy", np.load(folder / "x.npy")[:1])
    assert finish(*(start(folder, rank, 3) for rank in range(3))) == [("", 0)] * 3
    np.testing.assert_array_equal(np.load(folder / "y.npy"), right[:1])


def test_a_process_that_fails_is_named_by_the_first(files):
    folder, _ = files
    first = start(folder, 0, 2)
    (folder / "other").mkdir()
    wrong = start(folder, 1, 2, "--weight", "nothing")
    (one, status), (two, other) = finish(first, wrong)
    assert (status, other) == (1, 1)
    assert "nothing" in two and one.startswith("rowfold: rank 1 of 2 failed: ") and "nothing" in one
    (folder / "other").rmdir()
    assert left(folder) == ["w.npz", "x.npy"]


def test_a_process_that_does_not_come_is_named(files):
    folder, _ = files
    ((said, status),) = finish(start(folder, 0, 2, "--shard-timeout", "1"))
    assert status == 1 and said == "rowfold: rank 1 of 2 has not come within 1 seconds (--shard-timeout)\n"
    ((said, status),) = finish(start(folder, 1, 2, "--shard-timeout", "1"))
    assert status == 1 and said == "rowfold: rank 0 has not come within 1 seconds (--shard-timeout)\n"
    assert left(folder) == ["w.npz", "x.npy"]


def test_a_process_that_dies_is_named(files):
    folder, _ = files
    # Much work for the second, which is killed as soon as it has begun.
    x = np.load(folder / "x.npy")
    np.save(folder / "x.npy", np.broadcast_to(x[:1], (3_000_000, K)))
    first, second = start(folder, 0, 2), start(folder, 1, 2)
    end = time.monotonic() + 60
    while not list(folder.glob(".y.npy.*.1")) and time.monotonic() < end:
        time.sleep(0.01)
    second.send_signal(signal.SIGKILL)
    (one, status), _ = finish(first, second)
    assert status == 1 and one == "rowfold: rank 1 of 2 ended before its rows were done\n", one
    assert not (folder / "y.npy").exists()
    assert left(folder) == ["w.npz", "x.npy"]


def test_what_an_earlier_run_has_left_names_no_one(files):
    folder, right = files
    (folder / ".y.npy.shards").write_text('{"token": "old", "size": 2}')
    (folder / ".y.npy.old.1").write_bytes(b"wrong")
    (folder / ".y.npy.old.1.done").write_text("")
    second = start(folder, 1, 2)
    time.sleep(0.5)
    assert finish(start(folder, 0, 2), second) == [("", 0)] * 2
    np.testing.assert_array_equal(np.load(folder / "y.npy"), right)


def test_wrong_numbers(files):
    folder, _ = files
    ((said, status),) = finish(start(folder, 2, 2))
    assert status == 1 and "RANK is '2' and WORLD_SIZE '2'; expected a number below that of all" in said
    ((said, status),) = finish(start(folder, 0, 2, names=("A", "B")))
    assert status == 1 and "expected RANK and WORLD_SIZE in the environment" in said
    ((said, status),) = finish(start(folder, 0, 2, "--input", "-"))
    assert status == 1 and "- is a stream" in said
    ((said, status),) = finish(start(folder, 0, 2, "--output", "/dev/null"))
    assert status == 1 and "is no file" in said
    first, second = start(folder, 0, 2), start(folder, 1, 3)
    said = second.communicate(timeout=120)[1]
    assert "rank 0 counts 2 processes, and rank 1 3" in said
    first.send_signal(signal.SIGTERM)
    finish(first)


def test_rows_are_shared_without_gaps():
    for count in (0, 1, 5, 64, 1000):
        for size in (1, 2, 3, 7):
            spans = [shards.own_rows(count, rank, size) for rank in range(size)]
            assert spans[0][0] == 0 and spans[-1][1] == count
            assert all(a[1] == b[0] for a, b in zip(spans, spans[1:]))


def test_the_environment_says_the_numbers(monkeypatch):
    for pair in shards.NUMBERS:
        for name in pair:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert shards.numbers() == (1, 4)
    assert os.environ.get("RANK") is None
