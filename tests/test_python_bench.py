# SPDX-License-Identifier: MIT
"""The benchmark's parts: its operator tables, its data, its workers, its command line."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys

import numpy as np
import pytest
import rowfold
from cli import cli, started
from rowfold import Chain, CpuPeak, ops
from rowfold.__main__ import parser
from rowfold.bench import command, contenders, memory, report, unfused
from rowfold.bench.cases import Case
from rowfold.bench.data import DATA
from rowfold.bench.runner import CaseResult, Entry, Process, Result, Runner, WorkerError

TINY = Case("tiny", "linear | mul(@scale) | logsumexp", 5, 33, 17)
BY_THE_CHAIN = {"linear", "save", "add_saved", "mul_saved"}

# Both sides of every branch of the operators, and where float64 formulas cancel.
VALUES = np.array([[-1000.0, -30.0, -6.0, -3.0, -1.0, -1e-8, -0.0, 0.0, 1e-8, 0.5, 2.0, 3.5, 7.0, 25.0, 700.0]])


def test_the_tables_have_operators_of_the_library_and_pytorch_s_all():
    names = {row.name for row in ops.operators() if row.row_input in ("none", "number")} - BY_THE_CHAIN - {"topk"}
    assert set(unfused.numpy_table()) <= names
    pytest.importorskip("torch")
    assert set(unfused.torch_table()) == names


def test_an_operator_that_numpy_does_not_have(monkeypatch):
    """numpy does not take part, and the library's plain loops in float64 are the reference."""
    x, weight, bias = TINY.inputs()
    args = Chain.parse(TINY.chain), x, weight, bias, TINY.vectors()
    expected = unfused.reference(*args)
    table = {name: function for name, function in unfused.numpy_table().items() if name != "logsumexp"}
    monkeypatch.setattr(unfused, "numpy_table", lambda: table)
    np.testing.assert_allclose(unfused.reference(*args), expected, rtol=1e-14)
    with pytest.raises(contenders.Unavailable, match="numpy has no logsumexp"):
        contenders.Numpy().setup(TINY, 1, {})


@pytest.mark.parametrize("name", sorted(unfused.numpy_table()))
def test_numpy_and_pytorch_mean_the_same_in_float64(name):
    """Within a few ulp of float64; and within 1e-15 where PyTorch's own formula cancels, as in the tail of gelu."""
    torch = pytest.importorskip("torch")
    row = next(row for row in ops.operators() if row.name == name)
    params = [1.5] * row.min_params + [default for _, default in row.params[row.min_params :]]
    with np.errstate(all="ignore"):
        ours = unfused.numpy_table()[name](VALUES, *params)
    theirs = unfused.torch_table()[name](torch.from_numpy(VALUES), *params).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-14, atol=1e-15)


def test_saved_values_and_vectors():
    chain = Chain.parse("linear | save | mul(@v) | add_saved | sum | save | mul_saved")
    logits = np.array([[1.0, 2.0]])
    vectors = {"v": np.array([10.0, 100.0])}
    assert unfused.apply(chain, logits, unfused.numpy_table(), vectors).tolist() == [[(11 + 202) ** 2]]


SEVERAL = (
    "linear | softcap(3) | div(#heat) | (abs | max), logprob(#t), argmax, rank(#t), topk(3), gather(#some), "
    "pick(#t) | exp"
)


def test_several_results_mean_the_same_to_all():
    """numpy, PyTorch, all rows at once or some at a time, and rowfold."""
    torch = pytest.importorskip("torch")
    case, threads = Case("several", SEVERAL, 300, 5, 40, "float64"), torch.get_num_threads()
    made = []
    for name, options in (("numpy", {}), ("torch", {}), ("torch", {"chunk": 128}), ("rowfold", {"simplify": "none"})):
        contender = contenders.CONTENDERS[name]()
        contender.setup(case, threads, options)
        contender.run()
        made.append(contender.result())
    assert [y.shape for y in made[0]] == [(300, width) for width in (1, 1, 1, 1, 3, 3, 20, 1)]
    for other in made[1:]:
        for ours, theirs in zip(made[0], other, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-13)


def test_errors_are_of_all_results_but_columns():
    expected = [np.array([[2.0]]), np.array([[7]])]
    assert unfused.errors_of([np.array([[2.0]]), np.array([[3.0]])], expected) == 0
    assert unfused.errors_of([np.array([[2.5]]), np.array([[7.0]])], expected) == 0.25


def test_the_reference_is_the_chain_in_float64():
    x, weight, bias = TINY.inputs()
    scale = TINY.vectors()
    logits = (x.astype(np.float64) @ weight.astype(np.float64).T + bias) * scale["scale"].astype(np.float64)
    expected = [[math.log(math.fsum(map(math.exp, row)))] for row in logits.tolist()]
    got = unfused.reference(Chain.parse(TINY.chain), x, weight, bias, scale)
    np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_the_largest_error_is_of_rows_and_relative():
    expected = np.array([[2.0], [-4.0], [np.inf], [0.0]])
    assert unfused.largest_error(expected, expected) == 0
    assert unfused.largest_error(expected + [[0.0], [1.0], [0.0], [0.0]], expected) == 0.25
    assert unfused.largest_error(expected + [[0.0], [0.0], [0.0], [0.125]], expected) == 0.125
    assert unfused.largest_error(expected * [[np.nan], [1], [1], [1]], expected) == math.inf


def test_infinities_and_nan_are_compared_by_class():
    nan, inf = np.nan, np.inf
    expected = np.array([[nan, 2.0], [inf, -1.0], [-inf, 4.0]])
    assert unfused.largest_error(expected, expected) == 0
    assert unfused.largest_error(expected + [[0.0, 0.5], [0.0, 0.0], [0.0, 0.0]], expected) == 0.25
    for row, column, wrong in ((0, 0, inf), (0, 0, 1.0), (1, 0, -inf), (1, 0, nan), (1, 0, 3e38), (2, 1, inf)):
        y = expected.copy()
        y[row, column] = wrong
        assert unfused.largest_error(y, expected) == inf


@pytest.mark.parametrize("data", sorted(DATA))
def test_data_comes_from_the_seed(data):
    case = Case("c", "linear", 64, 50, 30, data=data)
    first, again = case.inputs(), case.inputs()
    for array, same, shape in zip(first, again, [(64, 50), (30, 50), (30,)]):
        assert array.shape == shape
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, same)
    assert not np.array_equal(first[0], Case("c", "linear", 64, 50, 30, data=data, seed=1).inputs()[0])


def test_kernelbench_data_is_uniform_and_weights_are_pytorch_s():
    x, weight, bias = Case("c", "linear", 200, 400, 300).inputs()
    bound = 1 / math.sqrt(400)
    assert 0 <= x.min() < 0.001
    assert 0.999 < x.max() < 1
    for values in (weight, bias):
        assert np.abs(values).max() <= bound * (1 + 2**-23)
        assert values.max() > 0.98 * bound
        assert values.min() < -0.98 * bound


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("data", sorted(DATA))
def test_data_of_every_kind_in_every_type(data, dtype):
    """What does not fit a type is infinite there; what a kind promises is in each row, or in W."""
    x, weight, _ = (unfused.widened(values) for values in Case("c", "linear", 40, 30, 20, dtype, data).inputs())
    special = {"inf": np.isposinf, "nan": np.isnan}.get(data[:3])
    if special and data.endswith("-w"):
        assert special(weight).sum() == {"infs-w": len(weight) + 1, "inf-each-w": len(weight)}.get(data, 1)
    elif special:
        assert (special(x).sum(axis=1) == (2 if data == "infs" else 1)).all()
    elif dtype in ("float32", "float64", "bfloat16"):
        assert np.isfinite(x).all()
        assert np.isfinite(weight).all()
    if data.startswith("outlier"):
        value = float(data.removeprefix("outlier"))
        assert ((x > 0.99 * value).sum(axis=1) == 1).all()


def test_errors_of_data_that_is_not_finite():
    """Infinities and NaN come out where float64 has them."""
    for data in ("inf", "infs", "nan", "inf-w", "infs-w", "nan-w", "outlier1e20", "lognormal-both", "tiny"):
        for chain in ("linear", "linear | logsumexp", "linear | max"):
            case = Case("c", chain, 7, 40, 20, data=data)
            with rowfold.Model(chain, 40, 20) as model:
                x, weight, bias = case.inputs()
                y = model.load_weights(weight, bias)(x)
            expected = unfused.reference(Chain.parse(chain), x, weight, bias, {})
            assert np.isfinite(expected).all() == (data in ("outlier1e20", "lognormal-both", "tiny"))
            assert unfused.largest_error(y, expected) < 1e-5, (data, chain)


def test_bfloat16_data_is_rounded_to_nearest_even():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    exact = Case("c", "linear", 64, 50, 30, data="lognormal").inputs()
    rounded = Case("c", "linear", 64, 50, 30, data="lognormal", dtype="bfloat16").inputs()
    for ours, values in zip(rounded, exact):
        np.testing.assert_array_equal(ours, values.astype(ml_dtypes.bfloat16).view(np.uint16))
        np.testing.assert_array_equal(unfused.widened(ours), values.astype(ml_dtypes.bfloat16).astype(np.float64))


def test_sigma5_data_has_logits_of_deviation_5():
    x, weight, _ = Case("c", "linear", 300, 400, 300, data="sigma5").inputs()
    assert abs((x @ weight.T).std() - 5) < 0.1


def test_memory_growth_sees_what_an_action_touches():
    count, wrong = 16_000_000, max(5_000_000, memory.uncertainty())
    if wrong > 4 * count:
        pytest.skip("so many processors that the system cannot tell")
    grown = memory.growth(lambda: np.ones(count))
    if grown is None:
        pytest.skip("this system does not tell")
    assert 8 * count - wrong < grown < 8 * count + max(32_000_000, wrong)
    assert memory.growth(lambda: None) < wrong


def test_workers_measure_and_agree():
    runner = Runner(threads=1, repeat=2, say=lambda line: None)
    entries = [
        Entry("rowfold", "rowfold", {"simplify": "none"}),
        Entry("numpy", "numpy"),
        Entry("nowhere", "openblas", {"library": "/nowhere/libopenblas.so"}, product_only=True),
    ]
    result = runner.measure(TINY, entries)
    ours, numpy, missing = result.results
    for present in (ours, numpy):
        assert len(present.seconds) == 2
        assert min(present.seconds) > 0
        # 33 products and a logsumexp of 17 in float32: at most (33 + 17) roundings of 2**-24 of values up to about 4.
        assert present.error < 50 * 4 * 2**-24
    assert ours.about["backend"] in {backend.name for backend in rowfold.backends()}
    assert not missing.seconds
    assert "/nowhere/libopenblas.so" in missing.missing
    assert len(result.peaks) == 2
    assert 0 < result.fraction(ours) < 2
    assert json.loads(json.dumps(result.as_dict()))["error_rows"] == TINY.batch


def test_the_table_is_plain_without_rich(monkeypatch, capsys):
    case = CaseResult(
        TINY,
        [Result("rowfold", [0.5, 1.5, 1.0]), Result("other", missing="[not] here")],
        [CpuPeak(1e9, 1e10), CpuPeak(2e9, 1e10), CpuPeak(1e9, 1e10)],
        5,
    )
    monkeypatch.setitem(sys.modules, "rich.table", None)
    report.show(case)
    plain = capsys.readouterr().out
    assert (
        "Machine: 1 GFLOP/s (best 2), 10.0 GB/s (best 10.0); the bound is arithmetic; errors: the largest of 5 rows"
        in plain
    )
    assert "rowfold    1 s     500 ms  1.00" in plain
    # 5 * 33 * 17 multiply-adds at 1e9 operations a second.
    assert case.fraction(case.results[0]) == pytest.approx(2 * 5 * 33 * 17 / 1e9 / 1.0)
    assert case.best_fraction(case.results[0]) == pytest.approx(2 * 5 * 33 * 17 / 2e9 / 0.5)
    assert "[not] here" in plain
    monkeypatch.undo()
    pytest.importorskip("rich")
    report.show(case)
    assert "[not] here" in capsys.readouterr().out


def test_a_worker_that_dies_is_reported():
    process = Process(Entry("numpy", "numpy"), TINY, threads=1)
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="died of SIGKILL"):
        process.ask("time")
    process.close()


def test_a_worker_that_dies_leaves_the_others_measured(monkeypatch):
    ask = Process.ask
    killed = []

    def kill_the_first(self, what, **arguments):
        if what == "time" and not killed:
            killed.append(self)
            os.kill(self._process.pid, signal.SIGKILL)
        return ask(self, what, **arguments)

    monkeypatch.setattr(Process, "ask", kill_the_first)
    entries = [Entry("first", "rowfold", {"simplify": "none"}), Entry("second", "numpy")]
    first, second = Runner(threads=1, repeat=2, say=lambda line: None).measure(TINY, entries).results
    assert first.missing == "died of SIGKILL"
    assert not first.seconds
    assert len(second.seconds) == 2


def test_a_worker_that_stands_still_is_ended_and_the_others_measured(monkeypatch):
    ask = Process.ask
    stopped = []

    def stop_the_first(self, what, **arguments):
        if what == "time" and not stopped:
            stopped.append(self)
            self.limit = 0.5
            os.kill(self._process.pid, signal.SIGSTOP)
        return ask(self, what, **arguments)

    monkeypatch.setattr(Process, "ask", stop_the_first)
    entries = [Entry("first", "rowfold", {"simplify": "none"}), Entry("second", "numpy")]
    said = []
    first, second = Runner(threads=1, repeat=2, say=said.append, limit=300).measure(TINY, entries).results
    assert first.missing == "gave no answer within 0.5 s, and was ended; --time-limit allows more"
    assert f"{TINY.label}: first {first.missing}" in said
    assert len(second.seconds) == 2


def test_a_contender_that_cannot_take_part_says_why():
    case = Case("half", "linear | sum", 2, 8, 4, dtype="float16")
    with pytest.raises(WorkerError, match="numpy has no fast float16 product"):
        Process(Entry("numpy", "numpy"), case, threads=1)


SMALL = ("--batch", "3", "--in-features", "40", "--out-features", "20", "--repeat", "2", "--threads", "1")


def test_the_bench_command_prints_a_table_and_writes_json(tmp_path):
    file, pages = tmp_path / "result.json", tmp_path / "result.md"
    chains = ("--preset", "sum_pool", "--chain", "linear | max")
    done = cli("bench", *chains, *SMALL, "--competitors", "numpy", "--json", str(file), "--markdown", str(pages))
    assert done.returncode == 0, done.stderr
    assert "sum_pool" in done.stdout
    assert "rowfold (none)" in done.stdout
    assert "repetition 2 of 2" in done.stderr
    document = json.loads(file.read_text())
    assert document["schema"] == "rowfold-bench/1"
    assert document["versions"]["rowfold"] == rowfold.__version__
    assert document["machine"]["threads"] == 1
    assert document["command"][:2] == ["rowfold", "bench"]
    assert [case["case"]["name"] for case in document["cases"]] == ["sum_pool", "linear | max"]
    for case in document["cases"]:
        assert [result["label"] for result in case["results"]] == ["rowfold (none)", "rowfold (algebraic)", "numpy"]
        for result in case["results"]:
            assert len(result["seconds"]) == 2
            # Only a kernel that did the work has a share of the peak.
            assert (result["fraction"] is None) == result["algebraic"]
    assert sorted(tmp_path.iterdir()) == [file, pages]
    lines = pages.read_text().splitlines()
    assert lines[0].startswith("`rowfold bench --preset sum_pool")
    assert sum(line.startswith("| rowfold (none) |") for line in lines) == 2
    assert {re.sub(r"\\\|", "", line).count("|") for line in lines if line.startswith("|")} == {11}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("bench", "--preset", "nothing"), 1, "no preset nothing; there are logsumexp_gelu"),
        (("bench", "--competitors", "abacus"), 1, "no competitor abacus; there are numpy"),
        (("bench", "--batch", "0"), 2, "'0'; expected a whole number from 1 on"),
        (("bench", "--batch", "many"), 2, "'many'; expected a whole number"),
        (("bench", "--chain", "linear | nope"), 1, "chain, column 10: there is no operator"),
        (("bench", "--chain", "linear", *SMALL, "--threads", "99999999999"), 2, "'99999999999'; expected a whole"),
        (("bench", "--chain", "linear(40, 30)", *SMALL), 1, "--out-features 20, but --chain 'linear(40, 30)' says 30"),
        (("bench", "--chain", "linear(0, 30)"), 1, "a layer without inputs or outputs has nothing to time"),
        (("bench", "--json", "."), 1, ". is a directory; expected the name of a file"),
        (("quickstart", "--batch", "-1"), 2, "'-1'; expected a whole number"),
        (("quickstart", "--in-features", "0"), 2, "'0'; expected a whole number"),
        (("bench", "--data", "zeros"), 2, "invalid choice"),
        ((), 2, "COMMAND"),
        (("bench", "--chain", "linear | wat", *SMALL, "--competitors", "none"), 1, "wat"),
    ],
)
def test_wrong_command_lines(arguments, status, message):
    done = cli(*arguments)
    assert done.returncode == status
    assert message in done.stderr + done.stdout


def test_help_names_the_commands_and_needs_no_library(monkeypatch):
    monkeypatch.setenv("ROWFOLD_LIBRARY", "/nowhere")
    done = started("--help")
    assert done.returncode == 0, done.stderr
    assert "bench" in done.stdout
    assert "quickstart" in done.stdout


def test_a_library_that_is_missing_is_one_sentence(monkeypatch):
    monkeypatch.setenv("ROWFOLD_LIBRARY", "/nowhere")
    done = started("--version")
    assert done.returncode == 1
    assert done.stderr.startswith("rowfold: the native library librowfold was not found")


def test_quickstart_runs_the_presets():
    done = cli("quickstart", "--batch", "9", "--in-features", "64", "--out-features", "50")
    assert done.returncode == 0, done.stderr
    for name in rowfold.presets():
        assert f"== {name}: " in done.stdout
    errors = re.findall(r"error of 8 rows against float64: (.*)", done.stdout)
    # One each, and sum_pool once more without the rewrite that removes its product.
    assert len(errors) == 4
    # 64 products and a sum of 50 columns that cancel to about a tenth of their size: 10 * (64 + 50) roundings.
    assert max(map(float, errors)) < 10 * 114 * 2**-24
    assert done.stdout.count("simplify=none") == 1


def test_a_chain_with_sizes_is_the_shape_of_all_contenders(tmp_path):
    file = tmp_path / "result.json"
    chains = ("--chain", "linear(256, 40) | max", "--chain", "linear | max")
    sizes = ("--batch", "3", "--in-features", "256", "--repeat", "1", "--threads", "1", "--out-features", "40")
    done = cli("bench", *chains, *sizes, "--competitors", "numpy", "--json", str(file))
    assert done.returncode == 0, done.stderr
    cases = json.loads(file.read_text())["cases"]
    assert [(case["case"]["in_features"], case["case"]["out_features"]) for case in cases] == [(256, 40)] * 2
    assert all(result["missing"] is None and result["error"] < 1e-5 for case in cases for result in case["results"])
    alone = command._cases(parser().parse_args(["bench", "--chain", "linear(256, 4096) | sum"]))
    assert [(case.in_features, case.out_features) for case in alone] == [(256, 4096)]


def test_default_cases_are_the_presets_and_small_batches():
    cases = command.default_cases()
    assert [case.name for case in cases[:3]] == list(rowfold.presets())
    assert {case.batch for case in cases[3:]} == {1, 2, 4, 8}
    assert {case.dtype for case in cases[3:]} == {"float32", "bfloat16"}


def test_gpu_cases_are_chains_of_the_library() -> None:
    from rowfold.bench import gpu

    cases = gpu.default_cases()
    assert len({case.label for case in cases}) == len(cases)
    for case in cases:
        assert list(rowfold.Chain.parse(case.chain))
    assert {case.math for case in cases} == {"f32", "tf32"}


def test_rows_whose_errors_count() -> None:
    """Of a GPU 256, from the first to the last, as the accuracy is promised; of a CPU 8."""
    from rowfold.bench import gpu, unfused

    for batch, count in ((1024, 256), (8192, 256), (100, 100), (1, 1)):
        rows = unfused.sampled_rows(batch, gpu.ERROR_ROWS)
        assert (len(rows), rows[0], rows[-1]) == (count, 0, batch - 1)
    assert len(unfused.sampled_rows(1024)) == 8
    result = gpu.GpuResult(gpu.default_cases()[0], [], [], 256, "a device")
    assert (result.as_dict()["error_rows"], result.device) == (256, "a device")
    assert report.title(result).endswith("; errors: the largest of 256 rows")


def test_gpu_without_a_device_says_so() -> None:
    from rowfold.bench import gpu

    with pytest.raises(SystemExit, match="cuda"):
        gpu.Runner("cuda:99", 1, print)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_extra_memory_on_a_gpu_is_of_the_call(dtype: str) -> None:
    """Not of any x with so many rows: 16-bit x is not copied where its rows begin aligned."""
    from rowfold.bench import gpu

    backend = next(b for b in rowfold.backends() if b.name == "cuda")
    torch = pytest.importorskip("torch")
    if not backend.available or not torch.cuda.is_available():
        pytest.skip(f"backend cuda: {backend.reason}")
    case = gpu.GpuCase("c", "linear | logsumexp", 300, 512, 1000, dtype)
    result = gpu.Runner("cuda", 1, print).measure(case, ["none"], [], None).results[0]
    with rowfold.Model(case.chain, 512, 1000, dtype=dtype, device="cuda", simplify="none") as model:
        kind = getattr(torch, dtype)
        model.load_weights(torch.zeros(1000, 512, dtype=kind), torch.zeros(1000, dtype=kind))
        x = torch.zeros(300, 512, dtype=kind, device="cuda")
        assert result.extra_memory_bytes == model.workspace_size(x=x)
        assert dtype == "float32" or result.extra_memory_bytes < model.workspace_size(300)
