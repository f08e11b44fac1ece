# SPDX-License-Identifier: MIT
"""`rowfold bench --scaling`: the model, what it measures, what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rowfold
from rowfold.__main__ import main
from rowfold.bench import scaling
from rowfold.bench.machine import cores
from rowfold.bench.scaling import Link


def test_the_time_of_an_exchange() -> None:
    link = Link(latency=1e-5, bandwidth=1e9)
    assert link.all_gather(1, 1e6) == 0
    assert link.all_gather(2, 1e6) == pytest.approx(1e-5 + 1e-3)
    assert link.all_gather(8, 1e6) == pytest.approx(3e-5 + 7e-3)
    assert link.all_gather(9, 0) == pytest.approx(4e-5)
    # Two nodes of four: what each has sent goes to its like, and then twice as much around its node.
    nodes = scaling.Cluster(latency=1e-5, bandwidth=1e9, node=4, between=Link(1e-4, 1e8))
    assert nodes.all_gather(4, 1e6) == link.all_gather(4, 1e6)
    assert nodes.all_gather(8, 1e6) == pytest.approx(1e-4 + 1e-2 + 2e-5 + 6e-3)
    # 16 groups of 2 words for 8192 rows are 2 MiB, of which every one of two lacks half.
    states = scaling.exchange_seconds(Link(0, 1), 2, 8192, 128256, 2) - 2 * scaling.STATUS
    assert states == 2**20
    assert scaling.exchange_seconds(Link(0, 1), 1, 8192, 128256, 2) == 0
    # More devices than groups send one state a row each.
    assert scaling.exchange_seconds(Link(0, 1), 64, 10, 128256, 2) == 63 * (2 * scaling.STATUS + 160)


def test_the_largest_shard() -> None:
    assert scaling.largest_shard(128256, 1) == (0, 128256)
    assert scaling.largest_shard(128256, 2)[1] == 64256
    assert scaling.largest_shard(128256, 512) == (250, 251)
    assert scaling.largest_shard(300, 2) == (0, 256)


@pytest.mark.parametrize("columns", [1, 255, 300, 5000, 128256])
def test_shards_and_their_groups(columns: int) -> None:
    for devices in (1, 2, 3, 8, 16, 17, 64, 500):
        shards = scaling.shards_of(columns, min(devices, columns))
        assert [sum(count for _, count in shards[:i]) for i in range(len(shards))] == [first for first, _ in shards]
        assert sum(count for _, count in shards) == columns
        for first, count in shards[:: max(1, len(shards) // 9)]:
            model = rowfold.Model("linear | max", 2, count, first_column=first, total_columns=columns)
            assert scaling.groups_of(columns, first, count) == model.states_info.num_groups, (first, count)


def test_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scaling.json"
    arguments = ["--scaling", "--batch", "20", "--in-features", "8", "--out-features", "1200", "--repeat", "2"]
    nodes = ["--node", "8", "--node-latency", "2e-3", "--node-bandwidth", "1e8"]
    assert main(["bench", *arguments, "--latency", "1e-3", "--bandwidth", "1e9", *nodes, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    between = {"latency": 2e-3, "bandwidth": 1e8}
    assert document["schema"] == scaling.SCHEMA
    assert document["link"] == {"latency": 1e-3, "bandwidth": 1e9, "node": 8, "between": between}
    points = document["points"]
    assert [p["devices"] for p in points] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    for p in points:
        assert p["call"] == pytest.approx(p["kernel"] + p["exchange"] + p["merge"])
        assert p["weight_bytes"] == p["columns"] * 8 * 4
        assert (p["exchange"] > 0) == (p["devices"] > 1)
        assert (p["ran"] is not None) == (p["devices"] <= min(cores(), 5)), p
    assert points[9]["exchange"] > points[1]["exchange"] >= 3e-3
    said = capsys.readouterr().out
    assert "as given" in said and "1200" in said and "node" in said


def test_a_link_between_two_processes_here() -> None:
    link = scaling.measure_link(1)
    assert 0 < link.latency < 1 and link.bandwidth > 1e6


def _sum(gather: object, rank: int, more: int) -> int:
    total = 0
    for turn in range(5):
        everyone = gather(np.full(3, rank + 10 * turn + more, np.int64)).view(np.int64)  # type: ignore[operator]
        assert everyone.tolist() == [[10 * turn + more + i] * 3 for i in range(3)]
        total += int(everyone.sum())
    return total


def test_processes_that_share_memory() -> None:
    assert scaling.Ranks(3, 64).run(_sum, 7) == 3 * sum(3 * (10 * turn + 7) + 3 for turn in range(5))


def _fail(gather: object, rank: int) -> None:
    if rank == 1:
        raise ValueError("on purpose")
    gather(np.zeros(1, np.int64))  # type: ignore[operator]


def test_a_process_that_fails_stops_all() -> None:
    with pytest.raises(RuntimeError, match="a process of the benchmark has failed"):
        scaling.Ranks(2, 64).run(_fail)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--latency", "1e-6"], "expected both of --latency and --bandwidth"),
        (["--node", "8", "--node-latency", "1e-5"], "expected all of --node, --node-latency and --node-bandwidth"),
        (["--plot", "x.png"], "does not go with --plot"),
    ],
)
def test_what_does_not_go_together(more: list[str], says: str) -> None:
    with pytest.raises(SystemExit, match=says):
        main(["bench", "--scaling", *more])


@pytest.mark.heavy
def test_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="--device cuda:1; expected cpu, or cuda for all GPUs"):
        main(["bench", "--scaling", "--device", "cuda:1"])
    torch = pytest.importorskip("torch")
    link = ["--latency", "1e-5", "--bandwidth", "1e11"]
    sizes = ["--batch", "64", "--in-features", "64", "--out-features", "5000", "--repeat", "1", "--dtype", "bfloat16"]
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="PyTorch sees no GPU"):
            main(["bench", "--scaling", "--device", "cuda", *link])
        return
    assert main(["bench", "--scaling", "--device", "cuda", *sizes, *link]) == 0
    assert "512" in capsys.readouterr().out
