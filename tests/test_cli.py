# SPDX-License-Identifier: MIT
"""The command line: info, explain and run. bench and quickstart are in test_python_bench.py."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rowfold
from cli import cli, environment
from rowfold.commands import output
from test_python_files import write

CHAIN = "linear | logsumexp"
K, N = 24, 50


def refused(done, status, *words):
    """One sentence on standard error, no traceback, nothing on standard output."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    if status == 1:
        assert done.stderr.startswith("rowfold: ")
        assert done.stderr.count("\n") <= 3  # a chain's error shows the chain with a caret


@pytest.fixture
def weights(tmp_path):
    rng = np.random.default_rng(3)
    path = tmp_path / "w.npz"
    np.savez(
        path,
        **{
            "head.weight": rng.standard_normal((N, K), dtype=np.float32),
            "head.bias": rng.standard_normal(N, dtype=np.float32),
            "scale": rng.standard_normal(N, dtype=np.float32),
        },
    )
    return path


@pytest.fixture
def x(tmp_path):
    rows = np.random.default_rng(4).standard_normal((3, 7, K), dtype=np.float32)
    np.save(tmp_path / "x.npy", rows)
    return rows


def model(weights, chain=CHAIN, bias=None, **keywords):
    return rowfold.Model.from_file(weights, chain, weight="head.weight", bias=bias, **keywords)


# help and wrong command lines


@pytest.mark.parametrize("command", ["info", "explain 'linear(64, 64) | max' --batch 3", "info --json"])
def test_a_reader_who_has_seen_enough_is_no_error(command):
    """As head is: it closes the pipe, sooner or later than the command writes."""
    line = f"{sys.executable} -m rowfold {command} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode in (0, 128 + signal.SIGPIPE)


@pytest.mark.parametrize("command", ["info", "explain", "run", "score", "bench", "quickstart"])
def test_each_command_has_help(command):
    done = cli(command, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: rowfold {command}")
    if command in ("explain", "run", "score", "bench"):
        assert "examples:" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["walk"], "invalid choice"),
        (["run", CHAIN], "--input"),
        (["bench", "--device", "gpu"], "'gpu'; expected cpu, cuda or cuda:N"),
        (["explain"], "CHAIN"),
        (["explain", "linear(2, 3)", "--math", "f8"], "invalid choice"),
        (["run", CHAIN, "--weights", "w", "--input", "x", "--output", "y", "--max-memory", "much"], "256M or 2G"),
        (["run", CHAIN, "--weights", "w", "--input", "x", "--output", "y", "--max-memory", "0"], "256M or 2G"),
        (["run", CHAIN, "--weights", "w", "--input", "x", "--output", "y", "--max-memory", "infK"], "256M or 2G"),
    ],
)
def test_wrong_command_lines_have_status_2(arguments, message):
    refused(cli(*arguments), 2, message)


# info


def test_a_machine_without_a_driver_is_told_so():
    """CUDA's own words for that are those for a driver that is too old."""
    reason = next(backend.reason for backend in rowfold.backends() if backend.name == "cuda")
    if not reason or "built without CUDA" in reason:
        pytest.skip("needs a library built with CUDA, and no GPU")
    assert "driver version is insufficient" not in reason
    if not Path("/proc/driver/nvidia").exists():
        assert reason == "CUDA finds no usable GPU: there is no NVIDIA driver"


def test_info_lists_the_backends():
    done = cli("info")
    assert done.returncode == 0, done.stderr
    for backend in rowfold.backends():
        (line,) = (line for line in done.stdout.splitlines() if line.split()[:1] == [backend.name])
        assert line.endswith(backend.reason or "available" + ", by name alone" * backend.by_name)
    by_name = {b.name: b.by_name for b in rowfold.backends() if b.available}
    assert by_name.get("cpu-avx512-tiles", True)
    with rowfold.Model("linear(1, 1) | max", device="cpu") as model:
        assert not by_name[model.info.backend]


def test_a_layer_that_fits_into_no_memory():
    done = cli("explain", "linear(9999999, 9999999) | max", "--measure")
    assert done.returncode == 1
    assert done.stderr.startswith("rowfold: not enough memory: ") and done.stderr.count("\n") == 1


def test_info_as_json():
    done = cli("info", "--json", "--measure")
    found = json.loads(done.stdout)
    assert found["version"] == rowfold.__version__
    assert [backend["name"] for backend in found["backends"]] == [backend.name for backend in rowfold.backends()]
    assert found["cpu"]["flops_per_second"] > 0
    assert found["cpu"]["bytes_per_second"] > 0


# explain


def test_explain_is_the_library_s():
    chain = "linear(24, 50) | mul(2) | logsumexp"
    done = cli("explain", chain, "--batch", 5, "--backend", "reference")
    assert done.returncode == 0, done.stderr
    with rowfold.Model(chain, backend="reference") as expected:
        assert done.stdout == expected.explain(5).rstrip() + "\n"


def test_explain_as_json_with_a_measurement():
    done = cli(
        "explain", "preset:sum_pool", "--in-features", K, "--out-features", N, "--json", "--measure", "--batch", 3
    )
    document = json.loads(done.stdout)
    with rowfold.Model.preset("sum_pool", K, N) as expected:
        assert set(document) == {*expected.explain(3, "json"), "measured_seconds"}
    assert document["measured_seconds"] > 0


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_explain_measures_every_type(dtype):
    done = cli("explain", "linear(24, 50) | mul(@s) | max", "--dtype", dtype, "--measure", "--batch", 3)
    assert done.returncode == 0, done.stderr
    assert "Measured" in done.stdout


@pytest.mark.parametrize("chain", ["linear(4, 0) | sum", "linear(0, 5) | logsumexp", "linear(0, 0)"])
def test_explain_measures_layers_without_inputs_or_outputs(chain):
    for batch in (0, 3):
        done = cli("explain", chain, "--measure", "--batch", batch)
        assert done.returncode == 0, done.stderr
        assert "Measured" in done.stdout


def test_explain_takes_sizes_from_weights(weights):
    done = cli("explain", "linear | mul(@s) | max", "--weights", weights, "--vector", "s=scale", "--measure")
    assert done.returncode == 0, done.stderr
    assert f"{K}" in done.stdout
    assert "Measured" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["linear(2, 3) | wat"], ["wat", "column"]),
        (["linear | sum"], ["--in-features"]),
        (["linear(2, 3) | sum", "--in-features", "5"], ["--in-features is 5, but the chain says 2"]),
        (["linear(2, 3) | softmax"], ["there is no operator", "logsumexp is the logarithm of its divisor"]),
        (["linear(2, 3) | frobnicate"], ["there is no operator", "there are mul add", "logsumexp"]),
        (["linear(2, 3)", "--backend", "abacus"], ["abacus"]),
        (["linear(2, 3)", "--batch", "-1"], ["-1"]),
        (["linear(2, 3)", "--batch", "-1", "--measure"], ["--batch is -1; expected 0 to 2**63 - 1"]),
        (
            ["linear(2, 3)", "--batch", 10**15, "--measure"],
            ["no memory for 1000000000000000 rows of 2 inputs to measure"],
        ),
        (["linear(2, 3)", "--batch", 2**62, "--measure"], ["no memory for 4611686018427387904 rows"]),
        (["linear(2, 3)", "--batch", 10**30, "--measure"], ["--batch is 1", "expected 0 to 2**63 - 1"]),
        (["linear(2, 3)", "--threads", "0"], ["threads"]),
        (["linear", "--weights", "/nowhere/w.npz"], ["/nowhere/w.npz"]),
        (["linear", "--weights", "/nowhere/w.safetensors"], ["/nowhere/w.safetensors"]),
    ],
)
def test_explain_refuses_in_a_sentence(arguments, words):
    refused(cli("explain", *arguments), 1, *words)


# run


def test_run_over_npy(tmp_path, weights, x):
    done = cli("run", CHAIN, "--weights", weights, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    y = np.load(tmp_path / "y.npy")
    with model(weights, bias="head.bias") as expected:  # the bias beside the weight is found
        np.testing.assert_array_equal(y, expected(x))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.npz", "x.npy", "y.npy"]
    assert (tmp_path / "y.npy").stat().st_mode & 0o777 == (tmp_path / "x.npy").stat().st_mode & 0o777


@pytest.mark.parametrize(
    "options", [["--bias", "none"], ["--max-memory", "64K", "--threads", "1"], ["--dtype", "float64"]]
)
def test_run_with_options(tmp_path, weights, x, options):
    files = ["--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy"]
    done = cli("run", CHAIN, "--weights", weights, *files, *options)
    assert done.returncode == 0, done.stderr
    keywords = {"y_dtype": "float64"} if "--dtype" in options else {}
    with model(weights, bias=None if "none" in options else "head.bias", **keywords) as expected:
        y = np.load(tmp_path / "y.npy")
        assert y.dtype == expected.info.y_dtype
        np.testing.assert_array_equal(y, expected(x))


def test_run_without_a_reduction_and_with_a_vector(tmp_path, weights, x):
    files = ["--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy"]
    done = cli("run", "linear | mul(@s)", "--weights", weights, "--vector", "s=scale", *files)
    assert done.returncode == 0, done.stderr
    with model(weights, "linear | mul(@s)", bias="head.bias", vectors={"s": "scale"}) as expected:
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected(x))


def test_run_over_safetensors(tmp_path, x):
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((N, K), dtype=np.float32)
    header = {
        "w": {"dtype": "F32", "shape": [N, K], "data_offsets": [0, 4 * N * K]},
        "hidden": {"dtype": "F32", "shape": list(x.shape), "data_offsets": [4 * N * K, 4 * (N * K + x.size)]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "both.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + weight.tobytes() + x.tobytes())
    files = ["--input", f"{path}:hidden", "--output", tmp_path / "y.npy"]
    done = cli("run", CHAIN, "--weights", path, "--weight", "w", *files)
    assert done.returncode == 0, done.stderr
    with rowfold.Model.from_file(path, CHAIN, weight="w") as expected:
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected(x))


def test_names_of_tensors_may_have_colons(tmp_path, weights, x):
    for name in ("x:0", "x.json:0", "a.safetensors:x"):
        for file in ("x.safetensors", "x.json.safetensors"):
            write(tmp_path / file, {name: x})
            files = ["--input", f"{tmp_path / file}:{name}", "--output", tmp_path / "y.npy", "--force"]
            done = cli("run", CHAIN, "--weights", weights, "--weight", "head.weight", *files)
            assert done.returncode == 0, done.stderr
            np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), model(weights, bias="head.bias")(x))


def test_run_over_rows_without_inputs(tmp_path):
    bias = np.arange(5, dtype=np.float32)
    np.savez(tmp_path / "w.npz", w=np.empty((5, 0), np.float32), b=bias)
    np.save(tmp_path / "x.npy", np.empty((3, 0), np.float32))
    common = ["linear(0, 5) | max", "--weights", tmp_path / "w.npz", "--bias", "b", "--output", tmp_path / "y.npy"]
    for given in (tmp_path / "x.npy", "-"):
        done = cli("run", *common, "--input", given, "--force", given=(tmp_path / "x.npy").read_bytes())
        assert done.returncode == 0, done.stderr
        assert np.load(tmp_path / "y.npy").tolist() == [[4]] * 3


def test_run_over_no_rows(tmp_path, weights):
    np.save(tmp_path / "x.npy", np.empty((0, K), np.float32))
    done = cli("run", CHAIN, "--weights", weights, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "y.npy").shape == (0, 1)


def test_run_keeps_an_output_that_exists(tmp_path, weights, x):
    (tmp_path / "y.npy").write_text("mine")
    command = ["run", CHAIN, "--weights", weights, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy"]
    refused(cli(*command), 1, "exists; --force replaces it")
    assert (tmp_path / "y.npy").read_text() == "mine"
    assert cli(*command, "--force").returncode == 0
    assert np.load(tmp_path / "y.npy").shape == (3, 7, 1)


def bad_inputs(folder):
    """What --input says, and words of the refusal."""
    good = np.zeros((4, K), np.float32)
    np.save(folder / "swapped.npy", good.astype(">f4"))
    np.save(folder / "integers.npy", good.astype(np.int32))
    np.save(folder / "wide.npy", np.zeros((4, K + 1), np.float32))
    np.save(folder / "scalar.npy", np.float32(1))
    np.save(folder / "double.npy", good.astype(np.float64))
    np.save(folder / "objects.npy", np.array([{}], object))
    np.savez(folder / "many.npz", a=good)
    header = (
        b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
    )
    (folder / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    (folder / "text.npy").write_text("1 2 3")
    np.save(folder / "cut.npy", good)
    (folder / "cut.npy").write_bytes((folder / "cut.npy").read_bytes()[:-8])
    return [
        ("swapped.npy", "byte order"),
        ("integers.npy", "int32"),
        ("wide.npy", str(K + 1)),
        ("scalar.npy", "()"),
        ("double.npy", "float64"),
        ("objects.npy", ""),
        ("many.npz", "one array"),
        ("text.npy", "is text"),
        ("w.safetensors", "w.safetensors:TENSOR, with one of w, b"),
        ("cut.npy", ""),
        ("none.npy", "No such file"),
        ("none.safetensors:x", "cannot be opened"),
    ]


def test_run_refuses_inputs_in_a_sentence(tmp_path, weights):
    for name, word in bad_inputs(tmp_path):
        before = set(tmp_path.iterdir())
        files = ["--input", tmp_path / name, "--output", tmp_path / "y.npy"]
        refused(cli("run", CHAIN, "--weights", weights, *files), 1, name.partition(":")[0], word)
        assert set(tmp_path.iterdir()) == before, name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-memory", "8"], ["8 bytes; a single row takes"]),
        (["--output", "/nowhere/y.npy"], ["/nowhere is not a directory"]),
        (["--output", "/", "--force"], ["/ is a directory; expected the name of a file"]),
        (["--weight", "tail"], ["tail"]),
        (["--bias", "tail"], ["tail"]),
        (["--vector", "s"], ["expected VECTOR=NAME"]),
        (["--vector", "s=scale"], ["s"]),
    ],
)
def test_run_refuses_options_in_a_sentence(tmp_path, weights, x, options, words):
    files = ["--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy"]
    refused(cli("run", CHAIN, "--weights", weights, *files, *options), 1, *words)
    assert not (tmp_path / "y.npy").exists()


def test_run_asks_which_of_several_weights(tmp_path, x):
    np.savez(tmp_path / "two.npz", a=np.zeros((N, K), np.float32), b=np.zeros((N, K), np.float32))
    files = ["--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy"]
    refused(cli("run", CHAIN, "--weights", tmp_path / "two.npz", *files), 1, "2 tensors", "--weight", "a, b")


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_run_compares_the_sizes_of_the_chain_with_the_weight(tmp_path, x, name):
    tensors = {"w": np.zeros((N, K), np.float32)}
    np.savez(tmp_path / name, **tensors) if name.endswith(".npz") else write(tmp_path / name, tensors)
    files = ["--weights", tmp_path / name, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy"]
    done = cli("run", f"linear({K + 1}, {N}) | sum", *files)
    refused(done, 1, f"has shape ({N}, {K}); expected ({N}, {K + 1})")
    assert "--in-features" not in done.stderr


# Outputs that are no new files


@pytest.fixture
def command(tmp_path, weights, x):
    """``rowfold run`` but for its output, and what that must hold."""
    files = ["--weights", weights, "--input", tmp_path / "x.npy"]
    assert cli("run", CHAIN, *files, "--output", tmp_path / "expected.npy").returncode == 0
    return ["run", CHAIN, *files, "--quiet"], (tmp_path / "expected.npy").read_bytes()


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_run_writes_into_a_pipe(tmp_path, command, force):
    arguments, expected = command
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        # One end open here, so that the reader ends whatever the command does with the pipe.
        held = os.open(tmp_path / "pipe", os.O_WRONLY)
        done = cli(*arguments, "--output", tmp_path / "pipe", *force)
        os.close(held)
        assert reader.communicate()[0] == expected
    assert done.returncode == 0, done.stderr
    assert stat.S_ISFIFO(os.lstat(tmp_path / "pipe").st_mode)


@pytest.mark.parametrize(("minor", "status"), [(3, 0), (7, 1)])  # as /dev/null and /dev/full are
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_run_writes_into_a_device(tmp_path, command, minor, status, force):
    device = tmp_path / "device"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        device.open("wb").close()
    except OSError as error:
        pytest.skip(f"no device can be made here: {error}")
    done = cli(*command[0], "--output", device, *force)
    assert done.returncode == status, done.stderr
    if status:
        refused(done, 1, "device: cannot be written: No space left")
    assert stat.S_ISCHR(os.lstat(device).st_mode)
    assert os.lstat(device).st_rdev == os.makedev(1, minor)


def test_run_writes_where_standard_output_is(tmp_path, command):
    if not Path("/dev/stdout").is_symlink():
        pytest.skip("/dev/stdout is no link into /proc")
    arguments, expected = command
    line = [sys.executable, "-m", "rowfold", *map(str, arguments), "--output", "/dev/stdout"]
    assert subprocess.run(line, env=environment(), capture_output=True, check=True).stdout == expected
    (tmp_path / "all").write_bytes(b"before")
    with open(tmp_path / "all", "ab") as out:
        subprocess.run(line, env=environment(), stdout=out, check=True)
    assert (tmp_path / "all").read_bytes() == b"before" + expected
    assert Path("/dev/stdout").is_symlink()


def test_run_writes_through_links_and_keeps_the_mode(tmp_path, command):
    arguments, expected = command
    (tmp_path / "there").mkdir()
    (tmp_path / "link.npy").symlink_to("there/y.npy")
    output = ["--output", tmp_path / "link.npy"]
    assert cli(*arguments, *output).returncode == 0
    assert (tmp_path / "link.npy").is_symlink() and (tmp_path / "there" / "y.npy").read_bytes() == expected
    (tmp_path / "there" / "y.npy").write_bytes(b"mine")
    (tmp_path / "there" / "y.npy").chmod(0o604)
    refused(cli(*arguments, *output), 1, "exists; --force replaces it")
    assert (tmp_path / "there" / "y.npy").read_bytes() == b"mine"
    assert cli(*arguments, *output, "--force").returncode == 0
    assert (tmp_path / "link.npy").is_symlink() and (tmp_path / "there" / "y.npy").read_bytes() == expected
    assert stat.S_IMODE((tmp_path / "there" / "y.npy").stat().st_mode) == 0o604
    assert [*(tmp_path / "there").iterdir()] == [tmp_path / "there" / "y.npy"]
    (tmp_path / "nowhere.npy").symlink_to("gone/y.npy")
    refused(cli(*arguments, "--output", tmp_path / "nowhere.npy"), 1, "gone is not a directory")
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    refused(cli(*arguments, "--output", tmp_path / "loop.npy", "--force"), 1, "loop.npy: cannot be written")


@pytest.mark.parametrize("how", ["itself", "link", "hard link"])
@pytest.mark.parametrize("which", ["x.npy", "w.safetensors", "w.index.json", "shard"])
def test_run_never_replaces_what_it_reads(tmp_path, x, which, how):
    w = np.zeros((N, K), np.float32)
    header = json.dumps({"w": {"dtype": "F32", "shape": [N, K], "data_offsets": [0, w.nbytes]}}).encode()
    for name in ("w.safetensors", "shard"):
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header + w.tobytes())
    (tmp_path / "w.index.json").write_text(json.dumps({"weight_map": {"w": "shard"}}))
    output = tmp_path / which
    if how != "itself":
        output = tmp_path / "other"
        (output.symlink_to if how == "link" else output.hardlink_to)(tmp_path / which)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    weights = tmp_path / ("w.safetensors" if which == "w.safetensors" else "w.index.json")
    files = ["--weights", weights, "--input", tmp_path / "x.npy", "--output", output]
    refused(cli("run", CHAIN, *files, "--force"), 1, "is the same file as", which, "which is read")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_of_bench_replaces_regular_files_only(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(rowfold.InvalidArgumentError, match="no regular file"):
            output.require_place(tmp_path / name)
        with pytest.raises(rowfold.InvalidArgumentError, match="no regular file"):
            with output.complete_or_absent(tmp_path / name):
                pytest.fail("there is nothing to write to")
    refused(cli("bench", "--json", tmp_path / "pipe"), 1, "pipe is no regular file")
    assert stat.S_ISFIFO(os.lstat(tmp_path / "pipe").st_mode) and (tmp_path / "link").is_symlink()
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "old").chmod(0o640)
    with output.complete_or_absent(tmp_path / "old") as file:
        file.write(b"new")
    assert (tmp_path / "old").read_bytes() == b"new" and stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o640


# Habits of the shell


def bytes_of(array):
    with io.BytesIO() as file:
        np.save(file, array)
        return file.getvalue()


def header_of(shape):
    with io.BytesIO() as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        return file.getvalue()


def test_run_reads_and_writes_pipes(weights, x, tmp_path):
    expected = model(weights)(x)
    common = [CHAIN, "--weights", weights, "--weight", "head.weight", "--bias", "none", "--max-memory", "64K"]
    done = cli("run", *common, "--input", "-", "--output", "-", given=bytes_of(x), text=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(io.BytesIO(done.stdout)), expected)
    line = "cat {x} | {run} --input - --output {y} && {run} --input <(cat {x}) --output - > {z}"
    run = shlex.join([sys.executable, "-m", "rowfold", "run", *map(str, common)])
    names = {"x": tmp_path / "x.npy", "y": tmp_path / "y.npy", "z": tmp_path / "z.npy", "run": run}
    subprocess.run(["bash", "-c", line.format(**names)], env=environment(), check=True)
    for name in ("y.npy", "z.npy"):
        np.testing.assert_array_equal(np.load(tmp_path / name), expected)


def test_a_file_may_be_called_minus(weights, x, tmp_path):
    (tmp_path / "-").write_bytes(bytes_of(x))
    common = [CHAIN, "--weights", weights, "--weight", "head.weight", "--bias", "none"]
    done = cli("run", *common, "--input", "./-", "--output", "y.npy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), model(weights)(x))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"", "standard input: no .npy: "),
        (b"1.0 2.0\n" * 20, "standard input: no .npy: "),
        (bytes_of(np.zeros((4, K), np.float32))[:-5], "standard input: ends after 0 rows and a part; expected 4"),
        (header_of((-3, K)), "standard input: no .npy: its header has the shape (-3, 24)"),
        (header_of((10**20, K)), "standard input: no .npy: its header has the shape (100000000000000000000, 24)"),
        (bytes_of(np.zeros((K, 4), np.float32).T), "standard input: is in Fortran order"),
        (bytes_of(np.zeros((4, K), np.int32)), "has dtype int32"),
        (bytes_of(np.zeros((4, K), ">f4")), "of the other byte order"),
        (bytes_of(np.zeros((4, 3), np.float32)), "expected (..., 24)"),
        (bytes_of(np.float32(1)), "expected (..., 24)"),
        (bytes_of(np.zeros((4, K))), "float64 goes with float64 weights only"),
    ],
)
def test_broken_pipes_are_refused(weights, given, words, tmp_path):
    out = tmp_path / "y.npy"
    common = [CHAIN, "--weights", weights, "--weight", "head.weight", "--bias", "none"]
    refused(cli("run", *common, "--input", "-", "--output", out, given=given), 1, words)
    assert not out.exists()


def test_arrays_in_fortran_order_are_read(weights, x, tmp_path):
    expected = model(weights)(x)
    common = [CHAIN, "--weights", weights, "--weight", "head.weight", "--bias", "none", "--max-memory", "64K"]
    np.save(tmp_path / "f.npy", np.asfortranarray(x))
    assert np.load(tmp_path / "f.npy").flags.f_contiguous
    done = cli("run", *common, "--input", tmp_path / "f.npy", "--output", tmp_path / "y.npy")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected)


def test_only_an_npy_is_written(weights, x, tmp_path):
    common = ["run", CHAIN, "--weights", weights, "--weight", "head.weight", "--input", tmp_path / "x.npy"]
    refused(
        cli(*common, "--output", tmp_path / "y.csv"),
        1,
        "y.csv: ends in .csv, but an .npy, .npz or .safetensors is written",
    )
    assert not (tmp_path / "y.csv").exists()
    done = cli(*common, "--output", tmp_path / "plain")
    assert done.returncode == 0 and np.load(tmp_path / "plain").shape == (3, 7, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--weight", "head.wieght"],
            "--weight is 'head.wieght', which is not among its 4 tensors; did you mean 'head.weight'?",
        ),
        (["--weight", "x"], "; those that fit are head.weight"),
        (
            ["--weight", "head.weight", "--bias", "head.bais"],
            "did you mean 'head.bias'? Those that fit: head.bias, scale",
        ),
        (["--weight", "head.weight", "--vector", "scale=scael"], "--vector scale is 'scael', which is not among its 4"),
        (["--weight", "head.weight"], 'vector "s" of the chain was not given; --vector s=NAME says it'),
    ],
)
def test_names_of_tensors_are_suggested(x, options, words, tmp_path):
    arrays = {"head.weight": np.zeros((N, K), np.float32), "head.bias": np.zeros(N, np.float32)}
    arrays |= {"scale": np.ones(N, np.float32), "steps": np.zeros(N, np.int64)}
    for name in ("w.npz", "w.safetensors"):
        np.savez(tmp_path / name, **arrays) if name.endswith("z") else write(tmp_path / name, arrays)
        common = ["run", "linear | mul(@s) | sum", "--weights", tmp_path / name, "--input", tmp_path / "x.npy"]
        refused(cli(*common, *options, "--output", tmp_path / "y.npy"), 1, words)


FILES = {
    "m.pt": (
        b"PK\x03\x04" + bytes(40) + b"m/data.pkl" + bytes(40),
        "a checkpoint of PyTorch, which only PyTorch can read",
    ),
    "old.pth": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a checkpoint of PyTorch"),
    "w.txt": (b"0.5 1.5 2.5\n" * 9, "text; numpy.loadtxt reads that"),
    "w.npy": (bytes_of(np.zeros(3)), "an array of numpy, an .npy; weights have names"),
    "w.bin": (
        b"PK\x03\x04" + bytes(60),
        "an archive of arrays, as numpy.savez writes them; weights are read from one whose name ends in .npz",
    ),
    "w.gguf": (b"GGUF\x03\0\0\0" + bytes(60), "a GGUF file"),
    "w.h5": (b"\x89HDF\r\n\x1a\n" + bytes(60), "an HDF5 file"),
    "w.gz": (b"\x1f\x8b\x08\0" + bytes(60), "compressed by gzip"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_kinds_are_named(x, name, tmp_path):
    content, words = FILES[name]
    (tmp_path / name).write_bytes(content)
    common = ["run", CHAIN, "--output", tmp_path / "y.npy"]
    refused(cli(*common, "--weights", tmp_path / name, "--input", tmp_path / "x.npy"), 1, f"{name}: is {words}")
    if name not in ("w.npy", "w.bin"):
        np.savez(tmp_path / "good.npz", w=np.zeros((N, K), np.float32))
        refused(cli(*common, "--weights", tmp_path / "good.npz", "--input", tmp_path / name), 1, f"{name}: is {words}")


def test_a_broken_safetensors_file_is_not_taken_for_another_kind(x, tmp_path):
    (tmp_path / "w.safetensors").write_bytes((2**40).to_bytes(8, "little") + b'{"w":')
    common = ["run", CHAIN, "--output", tmp_path / "y.npy", "--input", tmp_path / "x.npy"]
    refused(cli(*common, "--weights", tmp_path / "w.safetensors"), 1, "its header would take")
