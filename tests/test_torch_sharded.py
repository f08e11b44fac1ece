# SPDX-License-Identifier: MIT
"""A layer split over processes, in PyTorch: with gloo, and over two GPUs with NCCL. tp_worker.py has the scenarios."""

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

pytestmark = pytest.mark.heavy

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


def check_refused(answers: list, expected: list[tuple[str, str]]) -> None:
    """The kinds of errors and how they begin, in time."""
    assert len(answers) == len(expected)
    for (kind, text, when), (right_kind, right) in zip(answers, expected):
        assert kind == right_kind and text.startswith(right) and when == "soon", text


def check_several(answers: list) -> None:
    last = len(answers) - 1
    for same, (shape, *column, other, weighted), again in answers:
        assert same and again and len(column) < 2
        expected = [
            (
                "InvalidArgumentError",
                f"rank {last} failed: flatten_1 has shape (3,); expected (6,), a column for each row",
            ),
            *[("InvalidArgumentError", "rank 0 failed: ")] * len(column),
            ("UnsupportedError", "rank 0 failed: "),
            ("FuseError", "rank 0 failed: the forward has a cross entropy with weights of all classes"),
        ]
        check_refused([shape, *column, other, weighted], expected)


def check_dtensors(answers: list) -> None:
    for near, *others in answers:
        assert near
        for kind, text, _ in others:
            assert kind == "FuseError" and "expected Shard(0) over one dimension" in text


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
        check_refused(got, expected)


def check_functions(answers: list) -> None:
    last = len(answers) - 1
    for fine in answers:
        assert fine[:6] == [True] * 6 and fine[-1] is True
        several, width, asks, *column, weight = fine[6:-1]
        assert len(column) < 2
        expected = [
            ("InvalidArgumentError", f"rank {last} failed: topk needs all columns in one process"),
            ("InvalidArgumentError", f"rank {last} failed: hidden has shape (2, 3, 23)"),
            ("InvalidArgumentError", f"rank {last} asks for something else than rank 0"),
            *[("InvalidArgumentError", f'rank {last} failed: row input "target')] * len(column),
            ("InvalidArgumentError", "weight has shape ("),
        ]
        check_refused([several, width, asks, *column, weight], expected)


def check_gone(answers: list) -> None:
    """The second process is gone, and the others know it."""
    assert answers[1] is None
    for refusals in answers[::2]:
        (kind, text, when), *later = refusals
        assert kind == "CommunicationError" and text.startswith("rank 1 (global rank 1) did not answer: "), text
        assert when == "soon"
        assert all(text.startswith("an exchange before has failed: rank 1") for _, text, _ in later)


def check_absent(answers: list) -> None:
    assert answers[1] is None
    expected = "the processes with global ranks 0, 1 could not make a group of gloo beside tp_group, which has none, "
    check_refused(answers[0], [("CommunicationError", expected + "within 2 s (tp_timeout): ")])


CHECKS = {
    "several": check_several,
    "dtensors": check_dtensors,
    "failing": check_failing,
    "functions": check_functions,
    "killed": check_gone,
    "late": check_gone,
    "absent": check_absent,
}
RIGHT = {  # what each process prints
    "numbers": [True, True, True, [2, 0], True],
    "subgroup": True,
    "mesh": [True, True],
    "on_gpus": [[True, True]] * 2,
    "bits_on_gpus": [True] * 8,
    "graph_on_gpus": [True] * 3,
}


def check(tmp_path: Path, scenario: str, size: int, *transport: str) -> None:
    if scenario in ("dtensors", "mesh"):
        pytest.importorskip("torch.distributed.tensor")
    answers = run(tmp_path, scenario, size, *transport)
    if scenario in RIGHT:
        assert answers == [RIGHT[scenario]] * size
    else:
        CHECKS[scenario](answers)


@pytest.mark.parametrize(
    ("scenario", "size"),
    [
        ("numbers", 2),
        ("numbers", 4),
        ("several", 2),
        ("dtensors", 2),
        ("subgroup", 4),
        ("functions", 2),
        ("functions", 4),
        ("mesh", 4),
        ("failing", 2),
        ("failing", 3),
        ("killed", 3),
        ("late", 3),
        ("absent", 2),
    ],
)
@pytest.mark.cpu_only
def test_processes(tmp_path, scenario, size):
    check(tmp_path, scenario, size)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    ("scenario", "transport"),
    [
        ("on_gpus", "nccl"),
        ("functions", "nccl"),
        ("bits_on_gpus", "nccl"),
        ("several", "nccl"),
        ("dtensors", "nccl"),
        ("graph_on_gpus", "nccl"),
        ("failing", "nccl"),
        ("killed", "nccl"),
        ("late", "nccl"),
        ("absent", "nccl"),
        ("on_gpus", "cpu:gloo,cuda:nccl"),
        ("functions", "cpu:gloo,cuda:nccl"),
        ("bits_on_gpus", "cpu:gloo,cuda:nccl"),
    ],
)
def test_gpus(tmp_path, scenario, transport):
    check(tmp_path, scenario, 2, transport)


def test_a_group_needs_a_module_that_is_fused_as_a_whole():
    import rowfold.torch

    with pytest.raises(rowfold.InvalidArgumentError, match="expected partial=False"):
        rowfold.torch.fuse(torch.nn.Linear(2, 2), partial=True, tp_group=object())
