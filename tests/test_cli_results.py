# SPDX-License-Identifier: MIT
"""``rowfold score``, and ``rowfold run`` with several results and values that rows bring."""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
import rowfold
from cases import flat
from cli import cli, environment, started
from rowfold import files
from rowfold.__main__ import main
from rowfold.commands import output, writers
from test_cli_streaming import MEBIBYTE, peak_of
from test_python_files import write

K, N = 24, 50
LEAD = (3, 7)


@pytest.fixture
def folder(tmp_path):
    """A layer, hidden states, and a token for each."""
    rng = np.random.default_rng(3)
    arrays = {
        "head.weight": rng.standard_normal((N, K), dtype=np.float32),
        "head.bias": rng.standard_normal(N, dtype=np.float32),
        "x": rng.standard_normal((*LEAD, K), dtype=np.float32),
        "ids": rng.integers(0, N, LEAD),
    }
    write(tmp_path / "all.safetensors", arrays)
    np.savez(tmp_path / "w.npz", **{name: arrays[name] for name in ("head.weight", "head.bias")})
    for name in ("x", "ids"):
        np.save(tmp_path / f"{name}.npy", arrays[name])
    return tmp_path


def read(path):
    """The arrays of a file."""
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files}
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    kinds = {"F32": "f4", "F64": "f8", "F16": "f2", "I64": "i8", "BOOL": "?"}
    found = {}
    for name, at in json.loads(data[8 : 8 + size]).items():
        begin, end = at["data_offsets"]
        found[name] = np.frombuffer(data[8 + size + begin : 8 + size + end], kinds[at["dtype"]]).reshape(at["shape"])
    return found


def logits(folder, scale=1.0, cap=None, temperature=1.0):
    held = read(folder / "w.npz")
    z = (np.load(folder / "x.npy").astype(float) @ held["head.weight"].T.astype(float) + held["head.bias"]) * scale
    return (z if cap is None else cap * np.tanh(z / cap)) / temperature


def expected_scores(folder, ids, **transforms):
    z = logits(folder, **transforms)
    logp = z - np.log(np.exp(z).sum(-1, keepdims=True))
    counts = ids != -100
    picked = np.where(counts, np.take_along_axis(logp, np.where(counts, ids, 0)[..., None], -1)[..., 0], 0)
    rank = np.where(counts, (z > np.take_along_axis(z, np.where(counts, ids, 0)[..., None], -1)).sum(-1), -1)
    return picked, (z.argmax(-1) == ids) & counts, rank, -(np.exp(logp) * logp).sum(-1)


def said(capsys, *arguments):
    """What a command that goes well prints."""
    assert main([str(a) for a in arguments]) == 0
    return capsys.readouterr().out


def refusal(capsys, *arguments):
    """The sentence of a command that does not."""
    assert main([str(a) for a in arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def score(folder, *more, x="x.npy", ids="ids.npy", weights="w.npz"):
    files_ = ["--weights", folder / weights, "--input", folder / x, "--targets", folder / ids]
    return ["score", *files_, "--weight", "head.weight", "--device", "cpu", *more]


def test_scores_of_a_gpu(folder, capsys):
    if not any(b.available for b in rowfold.backends() if b.name == "cuda"):
        pytest.skip("no GPU")
    said(capsys, *score(folder, "--output", folder / "cpu.npz"))
    said(capsys, *score(folder, "--device", "cuda", "--output", folder / "gpu.npz"))
    cpu, gpu = read(folder / "cpu.npz"), read(folder / "gpu.npz")
    assert list(gpu) == list(cpu)
    for name, values in gpu.items():
        np.testing.assert_allclose(values, cpu[name], rtol=2e-5, atol=2e-6)


# rowfold score


@pytest.mark.parametrize("name", ["scores.npz", "scores.safetensors"])
@pytest.mark.parametrize("options", [{}, {"scale": 0.5, "cap": 3.0, "temperature": 0.7}])
def test_scores(folder, capsys, name, options):
    ids = np.load(folder / "ids.npy")
    ids[0, 1] = -100
    np.save(folder / "ids.npy", ids)
    flags = {"scale": "--logit-scale", "cap": "--softcap", "temperature": "--temperature"}
    more = [v for key, value in options.items() for v in (flags[key], value)]
    document = json.loads(said(capsys, *score(folder, *more, "--output", folder / name, "--json", "--threads", 1)))
    found = read(folder / name)
    assert list(found) == ["logprob", "greedy", "rank", "entropy"]
    for got, wanted in zip(found.values(), expected_scores(folder, ids, **options)):
        assert got.shape == LEAD
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)
    counted = ids != -100
    nll = -found["logprob"].sum(dtype=float) / counted.sum()
    assert (document["rows"], document["tokens"]) == (ids.size, ids.size - 1)
    assert document["mean_nll"] == pytest.approx(nll)
    assert document["perplexity"] == pytest.approx(np.exp(nll))
    assert document["greedy_accuracy"] == pytest.approx(found["greedy"].sum() / counted.sum())
    assert document["mean_entropy"] == pytest.approx(found["entropy"][counted].mean())


def test_a_summary_for_people(folder, capsys):
    text = said(capsys, *score(folder))
    document = json.loads(said(capsys, *score(folder, "--json")))
    assert text.splitlines()[0] == "tokens           21"
    shown = dict(line.rsplit(maxsplit=1) for line in text.splitlines())
    for title, key in (("mean NLL", "mean_nll"), ("perplexity", "perplexity"), ("greedy accuracy", "greedy_accuracy")):
        assert float(shown[title]) == pytest.approx(document[key], rel=1e-5)
    np.save(folder / "ids.npy", np.full(LEAD, -100))
    assert "tokens           0 (21 ignored)\nmean NLL         nan" in said(capsys, *score(folder))
    assert json.loads(said(capsys, *score(folder, "--json")))["perplexity"] is None


def test_an_infinite_perplexity(folder, capsys):
    held = read(folder / "w.npz") | {"head.bias": np.full(N, -np.inf, np.float32)}
    held["head.bias"][7] = 0
    np.savez(folder / "w.npz", **held)
    document = json.loads(said(capsys, *score(folder, "--json")))
    assert document["perplexity"] == document["mean_nll"] == "inf"


def test_scores_do_not_depend_on_the_memory_nor_on_where_things_are(folder, capsys):
    said(capsys, *score(folder, "--output", folder / "a.npz"))
    wanted = read(folder / "a.npz")
    np.save(folder / "f.npy", np.asfortranarray(np.load(folder / "x.npy")))
    np.save(folder / "idsf.npy", np.asfortranarray(np.load(folder / "ids.npy"))[..., None].astype(np.int32))
    tensors = {"weights": "all.safetensors", "x": "all.safetensors:x", "ids": "all.safetensors:ids"}
    ways = [({}, ["--max-memory", "32K"]), ({"x": "f.npy", "ids": "idsf.npy"}, ["--max-memory", "32K"]), (tensors, [])]
    for i, (names, more) in enumerate(ways):
        said(capsys, *score(folder, *more, "--output", folder / f"{i}.npz", **names))
        for name, values in read(folder / f"{i}.npz").items():
            np.testing.assert_array_equal(values, wanted[name])


def test_scores_into_a_pipe(folder):
    ids = io.BytesIO()
    np.save(ids, np.load(folder / "ids.npy"))
    command = [*score(folder, "--output", "-"), "--targets", "-"]
    done = cli(*command, given=ids.getvalue(), text=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(b"tokens")
    with np.load(io.BytesIO(done.stdout)) as archive:
        assert archive["logprob"].shape == LEAD


def test_no_rows(folder, capsys):
    np.save(folder / "x.npy", np.empty((0, K), np.float32))
    np.save(folder / "ids.npy", np.empty(0, np.int64))
    for name in ("y.npz", "y.safetensors"):
        assert json.loads(said(capsys, *score(folder, "--json", "--output", folder / name)))["tokens"] == 0
        assert read(folder / name)["greedy"].shape == (0,)


def ids_of(*changes, dtype=np.int64, shape=LEAD):
    ids = np.zeros(shape, dtype)
    for at, value in changes:
        ids.reshape(-1)[at] = value
    return ids


@pytest.mark.parametrize(
    ("ids", "more", "words"),
    [
        (ids_of((17, N)), [], "ids.npy is 50 in row 17; logprob expects a column from 0 to 49, or -100 to ignore"),
        (ids_of((20, -1)), ["--max-memory", "32K"], "ids.npy is -1 in row 20; logprob expects"),
        (ids_of(dtype=np.float32), [], "ids.npy has dtype float32; expected int64 or int32, a column for each row"),
        (np.full(LEAD, np.nan), [], "ids.npy has dtype float64; expected int64 or int32, a column for each row"),
        (ids_of(dtype=np.int16), [], "ids.npy has dtype int16; expected int64 or int32, or a floating-point type"),
        (ids_of(dtype=np.uint64), [], "ids.npy has dtype uint64; expected int64 or int32, or a floating-point type"),
        (ids_of(dtype=">i8"), [], "ids.npy: has dtype >i8, of the other byte order"),
        (ids_of(shape=(3, 8)), [], "ids.npy has shape (3, 8); expected (3, 7), a value for each row of"),
        (ids_of(shape=(21,)), [], "ids.npy has shape (21,); expected (3, 7)"),
        (ids_of(), ["--output", "y.csv"], "y.csv: ends in .csv, but an .npy, .npz or .safetensors is written"),
        (ids_of(), ["--output", "y.npy"], "y.npy: an .npy holds one array, and there are 4 (logprob, greedy, rank,"),
        (ids_of(), ["--output", "ids.npy", "--force"], "ids.npy is the same file as"),
        (ids_of(), ["--output", "x.npy", "--force"], "x.npy is the same file as"),
        (ids_of(), ["--output", "w.npz"], "w.npz is the same file as"),
        (ids_of(), ["--output", "old.npz"], "old.npz exists; --force replaces it"),
        (ids_of(), ["--max-memory", "8"], "--max-memory is 8 bytes; a single row takes"),
        (ids_of(), ["--weight", "head.bias"], "head.bias"),
        (ids_of(), ["--targets", "none.npy"], "none.npy: No such file"),
        (ids_of(), ["--targets", "all.safetensors"], "names no tensor; expected all.safetensors:TENSOR, with one of"),
        (ids_of(), ["--targets", "-", "--input", "-"], "standard input, -, is named twice"),
    ],
)
def test_refusals(folder, capsys, monkeypatch, ids, more, words):
    monkeypatch.chdir(folder)
    np.save(folder / "ids.npy", ids)
    np.savez(folder / "old.npz", a=ids)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert words in refusal(capsys, *score(folder, "--output", "y.npz", *more))
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--temperature", "0"], "'0'; expected a number above 0"),
        (["--softcap", "-3"], "expected a number above 0"),
        (["--logit-scale", "nan"], "'nan'; expected a number"),
        (["--vector", "a=b"], "unrecognized arguments"),
    ],
)
def test_wrong_command_lines(folder, capsys, more, words):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in score(folder, *more)])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


WIDE = 1024


@pytest.fixture
def large(tmp_path):
    """A weight of 256 KiB, and 192 MiB of hidden states with their tokens."""
    rng = np.random.default_rng(6)
    np.savez(tmp_path / "w.npz", w=rng.standard_normal((64, WIDE)).astype(np.float32) / 32)
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (192 * MEBIBYTE // 4 // WIDE, WIDE))
    part = rng.standard_normal((1024, WIDE)).astype(np.float32)
    for first in range(0, len(rows), len(part)):
        rows[first : first + len(part)] = part
    rows.flush()
    np.save(tmp_path / "ids.npy", rng.integers(0, 64, len(rows)))
    return tmp_path


def files_of(large, x="x.npy", ids="ids.npy"):
    return ["score", "--weights", large / "w.npz", "--input", large / x, "--targets", large / ids]


def test_score_stays_within_its_memory(large):
    """192 MiB of hidden states with a cap of 16: at most the cap more than a run over 1 MiB of them."""
    np.save(large / "few.npy", np.zeros((256, WIDE), np.float32))
    np.save(large / "some.npy", np.zeros(256, np.int64))
    more = ["--max-memory", "16M", "--quiet"]
    least = peak_of([*files_of(large, "few.npy", "some.npy"), *more, "--output", large / "y1.npz"])
    most = peak_of([*files_of(large), *more, "--output", large / "y.npz"])
    assert most - least <= 16 * MEBIBYTE
    chain = "linear | logprob(#target), rank(#target), entropy"
    with rowfold.Model.from_file(large / "w.npz", chain, weight="w", batch_invariant=True) as expected:
        ids = np.load(large / "ids.npy")[-1024:]
        wanted = expected(np.load(large / "x.npy", mmap_mode="r")[-1024:], target=ids, keepdims=False)
    found = read(large / "y.npz")
    np.testing.assert_array_equal(found["logprob"][-1024:], wanted.logprob)
    np.testing.assert_array_equal(found["rank"][-1024:], wanted.rank)
    np.testing.assert_array_equal(found["greedy"][-1024:], wanted.rank == 0)
    np.testing.assert_array_equal(found["entropy"][-1024:], wanted.entropy)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_score_leaves_nothing(large, signal_number):
    wide = np.random.default_rng(7).standard_normal((4096, WIDE), np.float32)
    np.savez(large / "w.npz", w=wide)  # seconds of work: it does not end by itself before it is interrupted
    more = ["--output", large / "y.npz", "--max-memory", "1M", "--threads", "1", "--device", "cpu"]
    command = [sys.executable, "-m", "rowfold", *map(str, [*files_of(large), *more])]
    before = set(large.iterdir())

    def heed_signals():
        signal.signal(signal_number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, preexec_fn=heed_signals) as process:
        while process.poll() is None and set(large.iterdir()) == before:
            time.sleep(0.005)
        assert process.poll() is None, "it ended before it could be interrupted"
        process.send_signal(signal_number)
        _, error = process.communicate()
    assert process.returncode == 128 + signal_number, error
    assert b"Traceback" not in error
    assert set(large.iterdir()) == before


def test_a_signal_finds_no_file_half_made(tmp_path, monkeypatch, capsys):
    class Interrupted(tempfile.SpooledTemporaryFile):
        def __init__(self, *arguments, **keywords):
            signal.raise_signal(signal.SIGINT)
            super().__init__(*arguments, **keywords)

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", Interrupted)
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    results = [writers.Named(name, (3,), np.dtype(np.float32)) for name in "ab"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without one
    try:
        with pytest.raises(KeyboardInterrupt), output.interruptible():
            with writers.writer(tmp_path / "y.npz", ".npz", results):
                pass
    finally:
        signal.signal(signal.SIGINT, before)
    gc.collect()
    assert not complaints
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_sentence(large):
    def small_files_only():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    before = set(large.iterdir())
    done = started(*files_of(large), "--output", large / "y.npz", "--quiet", preexec_fn=small_files_only)
    assert done.returncode == 1
    assert done.stderr.startswith("rowfold: ") and "y.npz: cannot be written" in done.stderr
    assert set(large.iterdir()) == before


# rowfold run with several results and row inputs


def run(folder, chain, *more):
    names = ["--weights", folder / "w.npz", "--weight", "head.weight", "--input", folder / "x.npy"]
    return ["run", chain, *names, *more]


@pytest.mark.parametrize("name", ["y.npz", "y.safetensors"])
@pytest.mark.parametrize("cap", ["256M", "32K"])
def test_run_writes_several_results(folder, capsys, name, cap):
    chain = "linear | div(#t) | logprob(#target), argmax, max, (abs | max)"
    np.save(folder / "t.npy", np.random.default_rng(5).random(LEAD, np.float32) + 0.5)
    rows = ["--row", f"target={folder / 'ids.npy'}", "--row", f"t={folder / 't.npy'}"]
    assert said(capsys, *run(folder, chain, *rows, "--max-memory", cap, "--output", folder / name)) == ""
    with rowfold.Model.from_file(folder / "w.npz", chain, weight="head.weight", bias="head.bias") as model:
        t, ids = np.load(folder / "t.npy"), np.load(folder / "ids.npy")
        wanted = model(np.load(folder / "x.npy"), target=ids, t=t)
    found = read(folder / name)
    assert list(found) == ["logprob", "argmax", "max", "max_2"]
    for got, expected in zip(found.values(), wanted):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("chain", ["linear | topk(3)", "linear | max, topk(2), rank(#target), topk(4)"])
def test_run_writes_the_best_columns(folder, capsys, chain):
    rows = ["--row", f"target={folder / 'ids.npy'}"] if "#" in chain else []
    said(capsys, *run(folder, chain, *rows, "--output", folder / "y.npz"))
    with rowfold.Model.from_file(folder / "w.npz", chain, weight="head.weight", bias="head.bias") as model:
        wanted = model(np.load(folder / "x.npy"), **({"target": np.load(folder / "ids.npy")} if rows else {}))
        names = [result.name for result in model.info.results]
    found = read(folder / "y.npz")
    assert list(found) == names
    for got, expected in zip(found.values(), flat(wanted)):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def test_run_takes_a_number_for_all_rows_and_writes_one_result_in_any_form(folder, capsys):
    chain = "linear | div(#t) | logsumexp"
    for name in ("y.npy", "y.npz", "y.safetensors", "plain"):
        said(capsys, *run(folder, chain, "--row", "t=0.7", "--output", folder / name))
    with rowfold.Model.from_file(folder / "w.npz", chain, weight="head.weight", bias="head.bias") as model:
        wanted = model(np.load(folder / "x.npy"), t=0.7)
    np.testing.assert_array_equal(np.load(folder / "y.npy"), wanted)
    np.testing.assert_array_equal(np.load(folder / "plain"), wanted)
    np.testing.assert_array_equal(read(folder / "y.npz")["logsumexp"], wanted)
    np.testing.assert_array_equal(read(folder / "y.safetensors")["logsumexp"], wanted)
    assert [tensor.name for tensor in files.tensors(folder / "y.safetensors")] == ["logsumexp"]


@pytest.mark.parametrize(
    ("chain", "rows", "words"),
    [
        ("linear | logprob(#target)", [], "the row input #target is missing; --row target=FILE gives it, a column"),
        ("linear | div(#t) | max", [], "the row input #t is missing; --row t=FILE gives it, a number for each row"),
        ("linear | max", ["t=1"], "the chain names no #t; it has no row inputs"),
        ("linear | div(#t) | max", ["t=1", "s=2"], "the chain names no #s; it has #t"),
        ("linear | div(#t) | max", ["t=1", "t=2"], "--row t is given twice"),
        ("linear | div(#t) | max", ["t"], "--row 't'; expected NAME=FILE"),
        ("linear | div(#t) | max", ["t=ids.npy"], "ids.npy has dtype int64; expected a floating-point type"),
        ("linear | pick(#t)", ["t=7"], "--row t=7 has dtype float32; expected int64 or int32, a column for each row"),
        ("linear | pick(#t)", ["t=bad.npy"], "--row t=bad.npy is 99 in row 3; pick expects a column from 0 to 49"),
        (
            "linear | div(#t) | max",
            ["t=double.npy"],
            "double.npy has dtype float64, and the weights float32; float64 goes with",
        ),
        ("linear | gather(#t)", ["t=ids.npy"], "asks for several columns of each row, by #t, which no file gives"),
        ("linear | max, min", [], "y.npy: an .npy holds one array, and there are 2 (max, min); name an .npz or .safe"),
    ],
)
def test_run_refuses_rows_in_a_sentence(folder, capsys, monkeypatch, chain, rows, words):
    monkeypatch.chdir(folder)
    np.save("bad.npy", ids_of((3, 99)))
    np.save("double.npy", np.ones(LEAD))
    before = set(folder.iterdir())
    options = [v for row in rows for v in ("--row", row)]
    assert words in refusal(capsys, *run(folder, chain, *options, "--output", "y.npy"))
    assert set(folder.iterdir()) == before


def test_run_writes_the_largest_few(folder, capsys):
    said(capsys, *run(folder, "linear | topk(3)", "--output", folder / "one.npz"))
    said(capsys, *run(folder, "linear | max, topk(3), argmax", "--max-memory", "32K", "--output", folder / "y.npz"))
    z, found = logits(folder), read(folder / "y.npz")
    assert list(found) == ["max", "topk", "topk_indices", "argmax"]
    order = np.argsort(-z, axis=-1)[..., :3]
    np.testing.assert_array_equal(found["topk_indices"], order)
    np.testing.assert_allclose(found["topk"], np.take_along_axis(z, order, -1), rtol=2e-5, atol=2e-6)
    for name, values in read(folder / "one.npz").items():
        np.testing.assert_array_equal(values, found[name])


def test_row_inputs_from_a_pipe(folder):
    line = (
        f"{sys.executable} -m rowfold run 'linear | pick(#id)' --weights w.npz --weight head.weight --input x.npy "
        "--row id=<(cat ids.npy) --output y.npy --quiet"
    )
    subprocess.run(["bash", "-c", line], env=environment(), check=True, cwd=folder)
    picked = np.take_along_axis(logits(folder), np.load(folder / "ids.npy")[..., None], -1)
    np.testing.assert_allclose(np.load(folder / "y.npy"), picked, rtol=2e-5, atol=2e-6)


def test_explain_measures_chains_with_row_inputs():
    chain = "linear(8, 9) | div(#t) | logprob(#target), max, topk(2), gather(#kept)"
    done = cli("explain", chain, "--measure", "--batch", 3, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["measured_seconds"] > 0


def test_no_file_of_another_name_is_left(folder, capsys):
    """What is collected of each result has no name."""
    before = set(os.listdir(folder))
    said(capsys, *score(folder, "--output", folder / "y.npz"))
    assert set(os.listdir(folder)) == before | {"y.npz"}
