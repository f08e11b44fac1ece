# SPDX-License-Identifier: MIT
"""`rowfold bench --sweep`: the shapes that it draws, how it judges them, what it says."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rowfold import Chain
from rowfold.__main__ import main
from rowfold.bench import gpu, sweep
from rowfold.bench.cases import Case
from rowfold.bench.runner import Result
from rowfold.bench.unfused import reference
from rowfold.commands.options import DTYPES

WORK = sweep.MOST_WORK["cpu"]


def test_shapes_are_those_of_the_seed_and_within_the_bounds() -> None:
    cases = sweep.draw(400, 5, [sweep.CHAIN, "linear | max"], DTYPES, "kernelbench", WORK)
    assert cases == sweep.draw(400, 5, [sweep.CHAIN, "linear | max"], DTYPES, "kernelbench", WORK)
    assert cases != sweep.draw(400, 6, [sweep.CHAIN, "linear | max"], DTYPES, "kernelbench", WORK)
    for case in cases:
        sizes = (case.batch, case.in_features, case.out_features)
        assert all(1 <= size <= most for size, most in zip(sizes, sweep.LARGEST))
        assert math.prod(sizes) <= WORK
        assert max(sizes[0] * sizes[1], sizes[1] * sizes[2], sizes[0] * sizes[2]) <= sweep.MOST_VALUES
        assert case.row_stride == 0 or case.in_features < case.row_stride <= case.in_features + sweep.ALIGNED
    assert {case.dtype for case in cases} == set(DTYPES)
    assert {case.chain for case in cases} == {sweep.CHAIN, "linear | max"}
    assert 60 < sum(case.row_stride > 0 for case in cases) < 140
    aligned = [case.in_features % sweep.ALIGNED == 0 for case in cases]
    assert 140 < sum(aligned) < 260
    for few, many in ((2, 100), (100, 5000)):  # every decade has its share
        assert sum(few <= case.batch < many for case in cases) > 60


@pytest.mark.parametrize("dtype", DTYPES)
def test_gaps_hold_nan_that_nobody_reads(dtype: str) -> None:
    case = Case("c", sweep.CHAIN, 37, 21, 50, dtype, row_stride=30)
    x, weight, _ = case.inputs()
    assert x.strides == (30 * x.itemsize, x.itemsize)
    around = np.lib.stride_tricks.as_strided(x, (36, 30), x.strides)[:, 21:]
    if dtype == "bfloat16":
        around = (around.astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(around).all()
    outcome = sweep.CpuJudge(1, 2, {"simplify": "none", "backend": None}, ["numpy"]).measure(case)
    assert outcome.ours.error is not None
    assert outcome.ours.error < 1e-5
    assert not outcome.wrong
    assert len(outcome.ours.seconds) == 2
    narrow = weight.itemsize == 2
    assert (outcome.ratio is None) == narrow == (outcome.other.missing is not None)


def outcome(ours: float | None, other: float | None, dtype: str = "float32") -> sweep.Outcome:
    case = Case("c", sweep.CHAIN, 3, 4, 5, dtype)
    missing = None if ours is not None else "no memory"
    return sweep.Outcome(case, Result("rowfold", [3.0], ours, missing=missing), Result("other", [2.0], other))


def test_what_counts_as_wrong_and_as_less_exact() -> None:
    assert not outcome(1e-6, 6e-7).less_exact
    assert outcome(1e-6, 4e-7).less_exact
    assert not outcome(4e-7, 0.0).less_exact
    assert outcome(4e-7, 0.0, "float64").less_exact
    assert outcome(math.inf, math.inf).wrong
    assert outcome(None, 0.0).wrong
    assert outcome(1e-7, 0.0).ratio == 1.5


def test_a_slow_case_is_measured_again_and_all_samples_count() -> None:
    class Judge:
        other = "other"
        ours = iter([3.0, 1.0, 2.0, 2.0])

        def measure(self, case: Case) -> sweep.Outcome:
            return sweep.Outcome(case, Result("rowfold", [next(self.ours)]), Result("other", [2.0]), (2.3,))

    cases = [Case("c", sweep.CHAIN, 3, 4, 5)] * 2
    slow, quick = sweep.run(cases, Judge())
    assert slow.ours.seconds == [3.0, 1.0, 2.0]
    assert slow.ratio == 1.0
    assert slow.itself == (2.3,) * 3
    assert quick.ours.seconds == [2.0]
    assert (quick.noise, outcome(1e-7, 0.0).noise) == (1.15, None)
    assert sweep.summary([slow, quick])[0]["slower_by_itself"] == 2
    slow.ours.seconds[:], slow.other.seconds[:] = [1.0, 3.0, 3.0], [1.0, 1.0, 1.0]
    assert (slow.ratio, slow.least_ratio) == (3.0, 1.0)
    (line, _) = sweep.summary([slow])
    assert (line["slower"], line["slower_at_least"]) == (1, 0)
    assert sweep.summary([outcome(1e-7, 0.0)])[0]["slower_by_itself"] is None


def test_the_other_has_two_samples_of_a_turn_and_inputs_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Case.inputs
    calls: list[Case] = []

    def count(self: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        calls.append(self)
        return drawn(self)

    monkeypatch.setattr(Case, "inputs", count)
    case = Case("c", sweep.CHAIN, 37, 21, 50)
    found = sweep.CpuJudge(1, 3, {"simplify": "none", "backend": None}, ["numpy"]).measure(case)
    assert len(calls) == 1
    assert (len(found.ours.seconds), len(found.other.seconds), len(found.itself)) == (3, 3, 3)
    assert found.case is case
    assert found.as_dict()["noise"] == found.noise


def test_a_gpu_gets_the_same_gaps() -> None:
    """What a GPU is given, on the host: rows apart, NaN between them, and what float64 makes of the rows."""
    pytest.importorskip("torch")
    for dtype in DTYPES:
        case = gpu.GpuCase("c", sweep.CHAIN, 37, 21, 50, dtype, row_stride=30)
        inputs = gpu.Inputs(case, "cpu")
        for x in inputs.x:
            assert x.shape == (37, 21)
            assert x.stride() == (30, 1)
            assert x.as_strided((36, 30), (30, 1))[:, 21:].isnan().all()
        x, weight, bias = case.inputs()
        expected = reference(Chain.parse(case.chain), x, weight, bias, {})
        (of_the_chain,) = inputs.expected
        np.testing.assert_allclose(of_the_chain, expected, rtol=1e-14)


def test_a_gpu_measures_both_with_the_types_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def measure(self: object, case: gpu.GpuCase, *rest: object) -> gpu.GpuResult:
        asked.append((case, *rest))
        return gpu.GpuResult(case, [Result("rowfold", [1.0], 0.0), Result("PyTorch eager", [2.0], 0.0)], [], 3, "")

    monkeypatch.setattr(gpu.Runner, "__init__", lambda self, *arguments: None)
    monkeypatch.setattr(gpu.Runner, "measure", measure)
    judge = sweep.GpuJudge("cuda", 1, {"simplify": "none", "backend": None}, "tf32")
    for dtype, precision in (("float32", "tf32"), ("float16", "f32")):
        case = Case("c", sweep.CHAIN, 3, 4, 5, dtype, row_stride=7)
        assert judge.measure(case).ratio == 0.5
        assert asked[-1] == (gpu.GpuCase(**vars(case), math=precision), ["none"], ["torch"], None)


def test_the_summary_counts_by_dtype() -> None:
    lines = sweep.summary([outcome(1e-6, 0.0), outcome(math.inf, 0.0), outcome(1e-16, 0.0, "float64")])
    assert [line["dtype"] for line in lines] == ["float32", "float64", "all"]
    assert lines[0]["cases"] == lines[0]["slower"] == lines[0]["compared"] == 2
    assert (lines[0]["wrong"], lines[0]["less_exact"], lines[0]["largest_error"]) == (1, 2, "inf")
    assert lines[1]["largest_error"] == 1e-16
    assert lines[2]["median_ratio"] == 1.5


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sweep, "LARGEST", (60, 60, 200))
    path = tmp_path / "sweep.json"
    arguments = [
        "bench",
        "--sweep",
        "12",
        "--seed",
        "2",
        "--repeat",
        "1",
        "--competitors",
        "numpy",
        "--json",
        str(path),
    ]
    assert main([*arguments, "--chain", "linear | mul(@s) | max", "--threads", "1"]) == 0
    shown = capsys.readouterr()
    assert "12 of 12 cases" in shown.err
    assert shown.out.index("The worst of 12 cases") < shown.out.index("Times over those of numpy")
    document = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert document["schema"] == sweep.SCHEMA
    assert document["seed"] == 2
    assert len(document["cases"]) == 12
    assert document["summary"][-1]["cases"] == 12
    ratios = [case["ratio"] for case in document["cases"]]
    assert document["summary"][-1]["worst_ratio"] == max(ratio for ratio in ratios if ratio)


def test_data_without_numbers_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "LARGEST", (60, 60, 200))
    for data in ("nan", "inf-w"):
        assert main(["bench", "--sweep", "5", "--repeat", "1", "--competitors", "none", "--data", data]) == 0


def test_a_wrong_result_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sweep.CpuJudge, "measure", lambda self, case: outcome(math.inf, 0.0))
    assert main(["bench", "--sweep", "1", "--competitors", "none"]) == 1
    assert "WRONG: c, 3 x 4 -> 5, float32" in capsys.readouterr().out


@pytest.mark.parametrize("library", ["CDLL", "PyDLL"])  # which let others run meanwhile, or not
def test_a_case_that_stands_still_is_ended(library: str) -> None:
    program = f"""if True:
        import ctypes, signal, sys
        from rowfold.__main__ import main
        from rowfold.bench import sweep, watchdog
        watchdog._GRACE_SECONDS = 2
        sweep.CpuJudge._measure = lambda self, case: ctypes.{library}(None).sleep(300)
        main(["bench", "--sweep", "3", "--seed", "5", "--competitors", "none", "--time-limit", "1"])
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    if library == "PyDLL":
        assert ended.returncode == -signal.SIGALRM
        return
    assert ended.returncode == 124
    (case,) = sweep.draw(1, 5, [sweep.CHAIN], DTYPES, "kernelbench", WORK)
    assert f"rowfold bench: {case.label}, seed 5: not done within 1 s, and ended; --time-limit" in ended.stderr
    assert "in main" in ended.stderr  # the stacks


def test_a_case_that_ends_in_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep.CpuJudge, "_measure", lambda self, case: outcome(0.0, 0.0))
    assert main(["bench", "--sweep", "1", "--competitors", "none", "--time-limit", "1"]) == 0
    assert signal.alarm(0) == 0
    time.sleep(1.5)


@pytest.mark.parametrize(
    "option", [["--plot", "a.png"], ["--preset", "sum_pool"], ["--batch", "3"], ["--in-features", "3"]]
)
def test_what_does_not_go_with_it(option: list[str]) -> None:
    with pytest.raises(SystemExit, match=f"does not go with {option[0]}"):
        main(["bench", "--sweep", "3", *option])


def test_chains_have_no_sizes_of_their_own() -> None:
    with pytest.raises(SystemExit, match=r"'linear\(2, 3\)' has sizes of its own"):
        main(["bench", "--sweep", "3", "--chain", "linear(2, 3)"])
