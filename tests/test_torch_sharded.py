# SPDX-License-Identifier: MIT
"""fuse(module, tp_group=...): a layer split over processes, with gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rowfold

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

WORKER = Path(__file__).with_name("tp_worker.py")


def run(tmp_path: Path, scenario: str, size: int, *more: str) -> list:
    """What each process printed; None of one that printed nothing."""
    path = os.pathsep.join([str(Path(rowfold.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "ROWFOLD_LIBRARY": rowfold._lib.load().path,
        "OMP_NUM_THREADS": "1",
        "NCCL_NVLS_ENABLE": "0",  # which not every machine with two GPUs has
    }
    meeting = tmp_path / "meeting"
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), scenario, str(rank), str(size), str(meeting), *more],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        done = [worker.communicate(timeout=300) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    answers = []
    for rank, (worker, (out, err)) in enumerate(zip(workers, done)):
        assert worker.returncode == 0 or (scenario == "killed" and rank == 1 and worker.returncode == 7), err
        answers.append(json.loads(out) if out else None)
    return answers


@pytest.mark.parametrize("size", [2, 4])
def test_every_process_gets_the_bits_of_one(tmp_path, size):
    assert run(tmp_path, "numbers", size) == [[True, True, True, [2, 0], True]] * size


def check_several(answers: list, host: bool) -> None:
    last = len(answers) - 1
    expected = [
        ("InvalidArgumentError", f"rank {last} failed: flatten_1 has shape (3,); expected (6,), a column for each row"),
        ("InvalidArgumentError", "rank 0 failed: "),
        ("UnsupportedError", "rank 0 failed: "),
        ("FuseError", "rank 0 failed: the forward has a cross entropy with weights of all classes"),
    ]
    for same, answers_of_rank, again in answers:
        assert same and again
        for answer, (right_kind, right) in zip(answers_of_rank, expected):
            if answer is not None:
                kind, text, when = answer
                assert kind == right_kind and text.startswith(right) and when == "soon", text
        assert host == (answers_of_rank[1] is not None)


def test_several_results_and_columns_of_rows(tmp_path):
    check_several(run(tmp_path, "several", 2), True)


def test_dtensors_bring_their_group(tmp_path):
    pytest.importorskip("torch.distributed.tensor")
    check_dtensors(run(tmp_path, "dtensors", 2))


def check_dtensors(answers: list) -> None:
    for near, by_columns, replicated in answers:
        assert near
        assert by_columns[0] == "FuseError" and "expected Shard(0) over one dimension" in by_columns[1]
        assert replicated[0] == "FuseError" and "expected Shard(0) over one dimension" in replicated[1]


def test_groups_of_some_processes(tmp_path):
    assert run(tmp_path, "subgroup", 4) == [True] * 4


def test_a_process_that_fails_is_named_by_all(tmp_path):
    for size in (2, 3):
        (tmp_path / str(size)).mkdir()
        check_failing(run(tmp_path / str(size), "failing", size))


def check_failing(answers: list) -> None:
    last = len(answers) - 1
    expected = [
        ("ArgumentTypeError", f"rank {last} failed: x has dtype torch.float64; expected torch.float32"),
        ("InvalidArgumentError", f"rank {last} has x of shape (1, 3, 24), and rank 0 (2, 3, 24)"),
        ("InvalidArgumentError", "rank 0 failed: x has shape (2, 3, 23); expected (..., 24)"),
        ("InvalidArgumentError", "rank 0 failed: out.weight requires grad and grad mode is on"),
        ("FuseError", f"rank {last} failed: the weight has 5 rows, and had "),
        ("FuseError", f"rank {last} failed: the forward has no reduction over columns"),
        ("InvalidArgumentError", "rank 0 failed: the layer is split over processes, whose messages cannot"),
    ]
    for got, fine in answers:
        assert fine
        for (kind, text, when), (right_kind, right) in zip(got, expected):
            assert kind == right_kind and text.startswith(right) and when == "soon", text


def check_functions(answers: list) -> None:
    size = len(answers)
    last, host = size - 1, len(answers[0]) == 12
    expected = [
        ("InvalidArgumentError", f"rank {last} failed: topk needs all columns in one process"),
        ("InvalidArgumentError", f"rank {last} failed: hidden has shape (2, 3, 23)"),
        ("InvalidArgumentError", f"rank {last} asks for something else than rank 0"),
    ]
    if host:
        expected.append(("InvalidArgumentError", f'rank {last} failed: row input "target" is '))
    expected.append(("InvalidArgumentError", "weight has shape ("))
    for fine in answers:
        assert fine[:6] == [True] * 6 and fine[-1] is True
        for (kind, text, when), (right_kind, right) in zip(fine[6:-1], expected):
            assert kind == right_kind and text.startswith(right) and when == "soon", text


@pytest.mark.parametrize("size", [2, 4])
def test_functions_of_tensors(tmp_path, size):
    check_functions(run(tmp_path, "functions", size))


def test_batch_and_columns_together(tmp_path):
    pytest.importorskip("torch.distributed.tensor")
    assert run(tmp_path, "mesh", 4) == [[True, True]] * 4


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("transport", ["nccl", "cpu:gloo,cuda:nccl"])
def test_gpus(tmp_path, transport):
    for scenario in ("on_gpus", "functions", "bits_on_gpus"):
        (tmp_path / scenario).mkdir()
        answers = run(tmp_path / scenario, scenario, 2, transport)
        if scenario == "functions":
            check_functions(answers)
        else:
            assert answers == {"on_gpus": [[[True, True]] * 2] * 2, "bits_on_gpus": [[True] * 8] * 2}[scenario]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_modules_and_graphs_on_gpus(tmp_path):
    for scenario in ("several", "dtensors", "graph_on_gpus"):
        (tmp_path / scenario).mkdir()
        answers = run(tmp_path / scenario, scenario, 2, "nccl")
        if scenario == "several":
            check_several(answers, False)
        elif scenario == "dtensors":
            check_dtensors(answers)
        else:
            assert answers == [[True] * 3] * 2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_gpus_of_which_one_fails_or_is_gone(tmp_path):
    for scenario in ("failing", "killed", "late"):
        (tmp_path / scenario).mkdir()
        answers = run(tmp_path / scenario, scenario, 2, "nccl")
        if scenario == "failing":
            check_failing(answers)
        else:
            check_gone(scenario, answers)


@pytest.mark.parametrize("scenario", ["killed", "late"])
def test_a_process_that_is_gone_is_named_within_the_limit(tmp_path, scenario):
    check_gone(scenario, run(tmp_path, scenario, 3))


def check_gone(scenario: str, answers: list) -> None:
    assert answers[1] is None
    for rank in range(0, len(answers), 2):
        first = answers[rank][0] if scenario == "killed" else answers[rank]
        assert first[0] == "CommunicationError" and first[1].startswith("rank 1 (global rank 1) did not answer: "), (
            first
        )
        assert first[2] == "soon"
        if scenario == "killed":
            assert answers[rank][1][1].startswith("an exchange before has failed: rank 1")


def test_a_group_needs_a_module_that_is_fused_as_a_whole():
    import rowfold.torch

    with pytest.raises(rowfold.InvalidArgumentError, match="expected partial=False"):
        rowfold.torch.fuse(torch.nn.Linear(2, 2), partial=True, tp_group=object())
