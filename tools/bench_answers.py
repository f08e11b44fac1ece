#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Several results of one pass beside PyTorch: what they cost, how exact they are, what they hold. As Markdown.

    python tools/bench_answers.py cost [--device cuda] [--dtypes float32 bfloat16] [--size 256 2048 32000]
    python tools/bench_answers.py peers [--device cuda]
    python tools/bench_answers.py errors [--device cuda]
    python tools/bench_answers.py logits [--device cuda] [--backends cpu-avx2 cpu-generic]
    python tools/bench_answers.py memory [--device cuda]

cost     each result beside a logsumexp, over the logsumexp alone, in turns. On a CPU the least processor time of all
         threads, which other programs disturb least; on a GPU medians of replays of a CUDA graph.
peers    PyTorch's times over rowfold's, likewise.
errors   the largest absolute error of a log-probability against float64 of the same stored values, on five kinds of
         data of `rowfold bench --data`.
logits   the largest error of single logits, of the sum of magnitudes |x| |w| of their column.
memory   what a call adds at its peak, results included: resident memory of a process of its own on a CPU, PyTorch's
         count on a GPU, where rowfold's is its workspace.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from captured import WARM_UP, replays

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "python")]

import rowfold  # noqa: E402
from rowfold.bench.contenders import CHUNK  # noqa: E402
from rowfold.bench.data import DATA  # noqa: E402
from rowfold.bench.machine import cpu_name  # noqa: E402
from rowfold.bench.memory import growth  # noqa: E402
from rowfold.bench.unfused import flat, given_of, results, torch_all  # noqa: E402

Call = Callable[[], Any]
KINDS = ("kernelbench", "sigma5", "positive", "relu", "lognormal1")
GATHERED = 20
LSE = "linear | logsumexp"
SCORES = "linear | logprob(#target), argmax, entropy, logsumexp"
SINGLE = (
    "pick(#target)", "logprob(#target)", "max", "argmax", "argmin", "entropy", "rank(#target)", "topk(20)",
    "gather(#some)", "var", "std", "norm",
)  # fmt: skip
LOGITS = ("pick(#target)", "max", "min", "topk(20)", "gather(#some)", "logprob(#target)")
PAUSE, PAUSES = 0.008, 3  # seconds behind a sample on a GPU, at least, and times what it took: or power decides


class Inputs:
    """x, W and b of a kind of data, of a dtype, on a device, with columns that rows ask for.

    Without a kind x is normal, W uniform, and both are drawn on the device, where a large vocabulary takes no time.
    """

    def __init__(self, device: str, dtype: str, size: tuple[int, int, int], kind: str = "") -> None:
        self.device, self.dtype, self.size = device, dtype, size
        batch, k, columns = size
        rng, kept = np.random.default_rng(0), getattr(torch, dtype)
        if kind:
            drawn = [torch.from_numpy(values).to(device) for values in DATA[kind](rng, *size)]
        else:
            torch.manual_seed(0)
            weight, bias = torch.rand(columns, k, device=device), torch.rand(columns, device=device)
            drawn = [5 * torch.randn(batch, k, device=device), (2 * weight - 1) * (3 / k) ** 0.5, bias]
        self.x, self.weight, self.bias = (values.to(kept) for values in drawn)
        self.rows = {
            "target": torch.from_numpy(rng.integers(columns, size=batch)).to(device),
            "some": torch.from_numpy(rng.integers(columns, size=(batch, GATHERED))).to(device),
        }

    def named(self, chain: str) -> dict[str, Any]:
        """The row inputs that a chain names."""
        return {name: values for name, values in self.rows.items() if f"#{name}" in chain}

    def model(self, chain: str, threads: int, backend: str | None = None) -> rowfold.Model:
        """A model of the chain."""
        sizes = self.size[1:]
        model = rowfold.Model(chain, *sizes, dtype=self.dtype, device=self.device, threads=threads, backend=backend)
        return model.load_weights(self.weight, self.bias)

    def rowfold(self, chain: str, threads: int, backend: str | None = None) -> Call:
        """A call of a model of the chain."""
        model, rows = self.model(chain, threads, backend), self.named(chain)
        return lambda: model(self.x, **rows)

    def unfused(self, chain: str, wide: bool = False, chunk: int = 0, compiled: bool = False) -> Call:
        """The same in PyTorch, of logits in the inputs' dtype or widened, of all rows or some at a time."""
        parsed, table, given = rowfold.Chain.parse(chain), torch_all(), given_of({}, self.named(chain))

        def of(first: int, x: torch.Tensor) -> list[Any]:
            logits = torch.nn.functional.linear(x, self.weight, self.bias)
            some = {name: values[first : first + len(x)] for name, values in given.items()}
            return results(parsed, logits.float() if wide else logits, table, some)

        if chunk:
            pieces = range(0, self.size[0], chunk)
            return lambda: [torch.cat(p) for p in zip(*(of(i, self.x[i : i + chunk]) for i in pieces))]
        function = torch.compile(of, dynamic=False) if compiled else of
        return lambda: function(0, self.x)

    def peers(self, chain: str, threads: int) -> dict[str, Call]:
        """rowfold, and what a user would run instead."""
        found = {"rowfold": self.rowfold(chain, threads), "PyTorch eager": self.unfused(chain)}
        if self.dtype in ("float16", "bfloat16"):
            found["with float32 logits"] = self.unfused(chain, wide=True)
        found[f"by chunks of {CHUNK} rows"] = self.unfused(chain, chunk=CHUNK)
        found["torch.compile"] = self.unfused(chain, compiled=True)
        return found


def in_turns(calls: dict[str, Call], turns: int, device: str) -> dict[str, float]:
    """Seconds of each call, one after the other in each turn."""
    samplers = {name: _sampler(call, device) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, sample in samplers.items():
            seconds[name].append(sample())
            if device != "cpu":
                time.sleep(max(PAUSE, PAUSES * seconds[name][-1]))
    pick = min if device == "cpu" else statistics.median
    return {name: pick(values) for name, values in seconds.items()}


def _sampler(call: Call, device: str) -> Callable[[], float]:
    if device != "cpu":
        return partial(replays(call), 1)
    for _ in range(WARM_UP):
        call()

    def processor() -> float:
        start = time.process_time()
        call()
        return time.process_time() - start

    return processor


def cost(options: argparse.Namespace) -> None:
    """Prints what each result takes beside a logsumexp."""
    every = [(f"`{one}`", f"{LSE}, {one}") for one in SINGLE]
    every += [("scores: `logprob`, `argmax`, `entropy`", SCORES), ("scores, `rank`", SCORES + ", rank(#target)")]
    every += [("scores, `topk(20)`", SCORES + ", topk(20)"), ("scores, both", SCORES + ", rank(#target), topk(20)")]
    print(f"| `logsumexp` and | {' | '.join(options.dtypes)} |\n| --- |{' ---: |' * len(options.dtypes)}", flush=True)
    columns = []
    for dtype in options.dtypes:
        inputs = Inputs(options.device, dtype, options.size)
        calls = {text: inputs.rowfold(chain, options.threads) for text, chain in [("", LSE), *every]}
        columns.append(in_turns(calls, options.turns, options.device))
    print("| nothing |", " | ".join(f"{column[''] * 1e3:.3f} ms" for column in columns), "|")
    for text, _ in every:
        print(f"| {text} |", " | ".join(f"{column[text] / column['']:.3f}" for column in columns), "|")


def peers(options: argparse.Namespace) -> None:
    """Prints what PyTorch takes."""
    print("| dtype | results | rowfold, ms | times rowfold's |\n| --- | --- | ---: | --- |")
    for dtype in options.dtypes:
        inputs = Inputs(options.device, dtype, options.size)
        for chain in (LSE, SCORES, SCORES + ", rank(#target), topk(20)"):
            torch._dynamo.reset()
            took = in_turns(inputs.peers(chain, options.threads), options.turns, options.device)
            mine = took.pop("rowfold")
            others = ", ".join(f"{name} {seconds / mine:.2f}" for name, seconds in took.items())
            print(f"| {dtype} | `{chain[9:]}` | {mine * 1e3:.3f} | {others} |", flush=True)


def errors(options: argparse.Namespace) -> None:
    """Prints the largest errors of log-probabilities."""
    print("| data | dtype | rowfold | PyTorch float32 | PyTorch, logits of the dtype |")
    print("| --- | --- | ---: | ---: | ---: |")
    for kind in KINDS:
        for dtype in options.dtypes:
            inputs = Inputs(options.device, dtype, options.size, kind)
            target = inputs.rows["target"][:, None]
            x, w, b = (values.double() for values in (inputs.x, inputs.weight, inputs.bias))
            wanted = torch.log_softmax(torch.nn.functional.linear(x, w, b), 1).gather(1, target)
            mine = inputs.rowfold("linear | logprob(#target), argmax", options.threads)().logprob
            single = torch.nn.functional.linear(x.float(), w.float(), b.float())
            own = torch.nn.functional.linear(inputs.x, inputs.weight, inputs.bias)
            theirs = (torch.log_softmax(z, 1).gather(1, target) for z in (single, own))
            found = [f"{(values.double() - wanted).abs().max().item():.1e}" for values in (mine, *theirs)]
            print(f"| {kind} | {dtype} | {' | '.join(found)} |", flush=True)


def logits(options: argparse.Namespace) -> None:
    """Prints the largest errors of single logits."""
    backends = options.backends or [None]
    print(f"| data | dtype | backend | {' | '.join(f'`{one}`' for one in LOGITS)} | PyTorch float32 |")
    print("| --- | --- | --- |" + " ---: |" * (len(LOGITS) + 1))
    for kind in ("sigma5", "positive"):
        for dtype in options.dtypes:
            inputs = Inputs(options.device, dtype, options.size, kind)
            x, w, b = (values.double() for values in (inputs.x, inputs.weight, inputs.bias))
            z = torch.nn.functional.linear(x, w, b)
            scale = torch.nn.functional.linear(x.abs(), w.abs(), b.abs())
            order = z.sort(dim=1, descending=True, stable=True).indices
            target, some = inputs.rows["target"][:, None], inputs.rows["some"]
            asked = {
                "pick(#target)": target, "max": order[:, :1], "min": order[:, -1:], "topk(20)": order[:, :20],
                "gather(#some)": some, "logprob(#target)": target,
            }  # fmt: skip
            single = torch.nn.functional.linear(x.float(), w.float(), b.float()).double()
            theirs = f"{((single - z).abs() / scale).max().item():.1e}"
            for backend in backends:
                row = []
                for one, columns in asked.items():
                    call = inputs.rowfold(f"linear | {one}", options.threads, backend)
                    got = flat(call())[0].double()
                    wanted = z.gather(1, columns) - (torch.logsumexp(z, 1, keepdim=True) if "prob" in one else 0)
                    row.append(f"{((got - wanted).abs() / scale.gather(1, columns)).max().item():.1e}")
                print(f"| {kind} | {dtype} | {backend or ''} | {' | '.join(row)} | {theirs} |", flush=True)


def memory(options: argparse.Namespace) -> None:
    """Prints what calls add at their peak."""
    # What a process frees goes back at once, or a second call would find it there.
    os.environ.update(MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="0")
    print("| dtype | results | MiB |\n| --- | --- | --- |")
    for dtype in options.dtypes:
        for chain in (LSE, SCORES, SCORES + ", rank(#target), topk(20)"):
            found = dict(_held(options, dtype, chain))
            print(f"| {dtype} | `{chain[9:]}` |", ", ".join(f"{name} {mib:.1f}" for name, mib in found.items()), "|")


def _held(options: argparse.Namespace, dtype: str, chain: str) -> Iterator[tuple[str, float]]:
    request = (options.device, dtype, options.size, chain, options.threads)
    if options.device != "cpu":
        for name in _names(dtype):
            yield name, _peak(*request, name) / 2**20
        return
    for name in _names(dtype):
        with multiprocessing.get_context("spawn").Pool(1) as apart:
            yield name, apart.apply(_peak, (*request, name)) / 2**20


def _names(dtype: str) -> list[str]:
    wide = ["with float32 logits"] if dtype in ("float16", "bfloat16") else []
    return ["rowfold", "PyTorch eager", *wide, f"by chunks of {CHUNK} rows", "torch.compile"]


def _peak(device: str, dtype: str, size: tuple[int, int, int], chain: str, threads: int, name: str) -> int:
    """Bytes that one way adds, by a call that is its second: threads and code are there by then."""
    torch.set_num_threads(threads)
    inputs = Inputs(device, dtype, size)
    with torch.inference_mode():
        call = inputs.peers(chain, threads)[name]
        call()
        if device == "cpu":
            return growth(call) or 0
        if name == "rowfold":
            held = sum(values.nelement() * values.element_size() for values in flat(call()))
            return held + inputs.model(chain, threads).workspace_size(x=inputs.x)
        cuda: Any = torch.cuda
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before: int = cuda.memory_allocated()
        made = call()
        cuda.synchronize()
        peak: int = cuda.max_memory_allocated()
        del made
        return peak - before


TABLES = {"cost": cost, "peers": peers, "errors": errors, "logits": logits, "memory": memory}
SIZES = {  # on a CPU, and on a GPU
    "cost": ((256, 2048, 32000), (1024, 4096, 128256)),
    "peers": ((256, 2048, 32000), (1024, 4096, 128256)),
    "errors": ((64, 2048, 16384), (256, 2048, 16384)),
    "logits": ((64, 4096, 1024), (300, 4096, 4096)),
    "memory": ((1024, 512, 32000), (1024, 4096, 128256)),
}


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, nargs=3, metavar=("BATCH", "K", "N"))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--backends", nargs="+", help="of rowfold, for logits (the best)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    options.size = tuple(options.size or SIZES[options.table][options.device != "cpu"])
    torch.set_num_threads(options.threads)
    machine = f"{cpu_name()}, {options.threads} threads"
    if options.device != "cpu":
        machine = torch.cuda.get_device_name(options.device)
    batch, k, n = options.size
    print(f"rowfold {rowfold.__version__}, PyTorch {torch.__version__}, {machine}, {batch} x {k} -> {n}\n", flush=True)
    with torch.inference_mode():
        TABLES[options.table](options)


if __name__ == "__main__":
    main()
