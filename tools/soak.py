#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random models, batches, threads and forks for as long as asked; every result checked, memory and descriptors flat.

    tools/soak.py --minutes 10 [--seed N] [--backend NAME] [--cuda]

Each round draws a chain, a shape, types, backend, rewrites and thread count, makes a model, and calls it: from one
thread and from several at once, in other batches, with gaps between rows, in a child of fork now and then; now and then
random bytes are offered as weights. A row must have the bits that it has alone, and lie where float64 allows. With
--cuda, where PyTorch sees a GPU, x is on the device as well, calls run on streams, one is captured in a graph and
repeated, and the memory that this process has on the GPU is looked at, too; where nvidia-smi does not tell it, all that
is taken there, and nobody else should use it meanwhile. Exit status 1 at the first difference, or if memory or open
descriptors grew after the first tenth of the time. Each minute says how far it is; SIGTERM and Ctrl-C end it with the
verdict on what has been done, and a round that stands still ends it with its stacks.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rowfold
from rowfold.bench.unfused import reference

Array = np.ndarray[Any, Any]

BEFORE = [
    "gelu",
    "mul(2)",
    "add(-0.5)",
    "save | mish | mul_saved",
    "clamp(-3, 4)",
    "softplus(1, 20)",
    "relu",
    "tanh",
    "neg",
    "mul(@v)",
]
FOLDS = ["logsumexp", "sum", "mean", "max", "min", "entropy", "var(0)", ""]
AFTER = ["gelu", "leaky_relu(0.01)", "sigmoid", "add(1)", "abs"]
GROWTH_BYTES = 48 << 20  # of resident memory: what allocators keep of models that differ in size
DEVICE_GROWTH_BYTES = 512 << 20  # likewise, with PyTorch's; a model and its graph take less than ten
DEVICE_LOOK_SECONDS = 2  # nvidia-smi takes a part of one
STANDS_STILL_SECONDS = 180


class Soak:
    """One run: what it draws from, and what it has done."""

    def __init__(self, seed: int, backend: str | None, cuda: bool) -> None:
        self.draw = random.Random(seed)
        self.backends = [b.name for b in rowfold.backends() if b.available and (cuda or b.name != "cuda")]
        if backend:
            self.backends = [backend]
        self.torch: Any = None
        if cuda:
            import torch

            if not torch.cuda.is_available():
                raise SystemExit("soak: --cuda, but PyTorch sees no GPU")
            torch.ones(1, device="cuda")  # a context, which takes memory of its own
            self.torch = torch
        self.models = self.calls = self.rows = self.forks = self.graphs = 0

    def chain(self) -> str:
        """Chain text behind "linear"."""
        ops = self.draw.sample(BEFORE, self.draw.randint(0, 3)) + [self.draw.choice(FOLDS)]
        ops += self.draw.sample(AFTER, self.draw.randint(0, 2))
        return " | ".join(filter(None, ["linear", *ops]))

    def round(self, folder: Path) -> None:
        """One model and its calls."""
        chain, k = self.chain(), self.draw.choice([1, 7, 64, 100, 513])
        n = self.draw.choice([1, 3, 40, 257, 1000])
        dtype = self.draw.choice(["float32", "float32", "float64", "float16"])
        batch = self.draw.choice([1, 5, 33, 200])
        rng = np.random.default_rng(self.draw.randrange(1 << 32))
        x, weight, bias = (rng.standard_normal(s).astype(dtype) for s in ((batch, k), (n, k), (n,)))
        vectors = (
            {"v": rng.standard_normal(n).astype("float64" if dtype == "float64" else "float32")}
            if "@v" in chain
            else {}
        )
        options: dict[str, Any] = {
            "backend": self.draw.choice(self.backends),
            "threads": self.draw.randint(1, 4),
            "simplify": self.draw.choice(["none", "exact", "algebraic"]),
        }
        with rowfold.Model(chain, k, n, dtype=dtype, **options) as model:
            model.load_weights(weight, bias, vectors)
            what = f"{chain}, {batch} x {k} -> {n}, {dtype}, {options}"
            y = np.asarray(model(x))
            self.check(y, reference(rowfold.Chain.parse(chain), x, weight, bias, vectors), dtype, what)
            self.same(model, x, y, what, options["backend"] == "cuda")
            if options["backend"] == "cuda":
                self.on_device(model, x, y, what)
            if self.draw.random() < 0.05 and options["backend"] != "cuda":
                self.in_a_child(model, x, y, what)
        if self.draw.random() < 0.1:
            self.broken_file(folder)
        self.models += 1

    def check(self, y: Array, wanted: Array, dtype: str, what: str) -> None:
        """Against float64, loosely: what a wrong column, row or step shows. The test suite has the exact bounds."""
        wide = y.astype(np.float64)
        scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
        tolerance = {"float64": 1e-10, "float32": 2e-3, "float16": 2e-3}[dtype]
        close = np.isclose(wide, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        if y.shape != wanted.shape or not close.all():
            raise SystemExit(f"soak: {what}: not the reference's result in {int((~close).sum())} places")
        self.rows += len(y)

    def same(self, model: rowfold.Model, x: Array, y: Array, what: str, on_gpu: bool) -> None:
        """From several threads at once, in other batches, with gaps: the same bits."""
        wrong: list[str] = []

        def call(rows: Array, expected: Array, how: str) -> None:
            if np.asarray(model(rows)).tobytes() != expected.tobytes():
                wrong.append(how)

        apart = np.full((len(x), x.shape[1] + 3), np.nan, x.dtype)[:, : x.shape[1]]
        apart[...] = x
        row = self.draw.randrange(len(x))
        jobs = [(x, y, "again"), (apart, y, "with gaps"), (x[: row + 1], y[: row + 1], "in a smaller batch")]
        jobs.append((x[row : row + 1], y[row : row + 1], "alone"))
        if on_gpu:  # which promises it for other batches only if asked
            del jobs[2:]
        threads = [threading.Thread(target=call, args=job) for job in jobs for _ in range(self.draw.randint(1, 2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.calls += len(threads) + 1
        if wrong:
            raise SystemExit(f"soak: {what}: other bits {', '.join(sorted(set(wrong)))}")

    def in_a_child(self, model: rowfold.Model, x: Array, y: Array, what: str) -> None:
        """A child of fork calls the same model."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os._exit(int(np.asarray(model(x)).tobytes() != y.tobytes()))
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise SystemExit(f"soak: {what}: a child of fork has other bits, or died")
        self.forks += 1

    def on_device(self, model: rowfold.Model, x: Array, y: Array, what: str) -> None:
        """On a stream of its own, and captured in a graph that is repeated."""
        torch = self.torch
        there = torch.from_numpy(x).cuda()
        out = torch.empty(y.shape, dtype=model(there).dtype, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(there, out=out)
        for _ in range(self.draw.randint(1, 5)):
            graph.replay()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            beside = model(there)
        torch.cuda.synchronize()
        for found, how in ((out, "from a graph"), (beside, "on a stream")):
            if found.cpu().numpy().tobytes() != y.tobytes():
                raise SystemExit(f"soak: {what}: other bits {how}")
        del graph
        self.graphs += 1

    def broken_file(self, folder: Path) -> None:
        """Bytes that are no weights are refused, and leave nothing open."""
        path = folder / "broken.safetensors"
        path.write_bytes(self.draw.randbytes(self.draw.randint(0, 200)))
        try:
            rowfold.Model.from_file(path, "linear | sum", weight="w")
        except rowfold.Error:
            return
        raise SystemExit("soak: random bytes were taken for weights")


class Held(NamedTuple):
    """What this process has taken: bytes of memory, open files, bytes of the GPU."""

    memory: int
    descriptors: int
    device: int

    def most(self, other: Held) -> Held:
        """The larger of each."""
        return Held(*map(max, self, other))


class Device:
    """How many bytes of the GPU this process has, or, where that is not told, all processes."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.looked, self.seen = -math.inf, 0
        self.own = torch is not None and self.of_this_process() is not None

    def of_this_process(self) -> int | None:
        """As the driver counts it. None without nvidia-smi, or where it knows the process by another number."""
        command = ["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
            return {int(pid): int(mib) << 20 for pid, mib in (line.split(",") for line in said.splitlines())}[
                os.getpid()
            ]
        except (OSError, subprocess.SubprocessError, ValueError, KeyError):
            return None

    def bytes(self) -> int:
        """Not older than DEVICE_LOOK_SECONDS."""
        if self.torch is None:
            return 0
        if not self.own:
            free, total = self.torch.cuda.mem_get_info()
            return int(total - free)
        if time.monotonic() > self.looked + DEVICE_LOOK_SECONDS:
            self.seen = self.of_this_process() or self.seen
            self.looked = time.monotonic()
        return self.seen


def held(device: Device) -> Held:
    """What it holds now."""
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return Held(memory, len(os.listdir("/proc/self/fd")), device.bytes())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", help="one of rowfold's, by name (all that this machine has, in turn)")
    parser.add_argument("--cuda", action="store_true", help="the GPU, too, with streams and graphs")
    chosen = parser.parse_args()
    soak, start = Soak(chosen.seed, chosen.backend, chosen.cuda), time.monotonic()
    seconds, settled, most, told = chosen.minutes * 60, Held(0, 0, 0), Held(0, 0, 0), 60.0
    asked_to_end: list[int] = []
    device = Device(soak.torch)
    warnings.filterwarnings("ignore", ".* multi-threaded, use of fork", DeprecationWarning)  # it is what this tests
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: asked_to_end.append(received))

    def done() -> str:
        return (
            f"{soak.models} models, {soak.calls} calls, {soak.rows} rows against float64, {soak.forks} forks, "
            f"{soak.graphs} graphs in {(time.monotonic() - start) / 60:.1f} minutes"
        )

    with tempfile.TemporaryDirectory() as folder:
        while (elapsed := time.monotonic() - start) < seconds and not asked_to_end:
            faulthandler.dump_traceback_later(STANDS_STILL_SECONDS, exit=True)
            soak.round(Path(folder))
            now = held(device)
            if elapsed < seconds / 10 or not settled.memory:
                settled = settled.most(now)
            most = most.most(now)
            if elapsed > told:
                print(f"soak: no difference yet: {done()}", flush=True)
                told += 60
    faulthandler.cancel_dump_traceback_later()
    grew = (
        most.memory > settled.memory + GROWTH_BYTES
        or most.descriptors > settled.descriptors
        or most.device > settled.device + DEVICE_GROWTH_BYTES
    )
    whose = "this process's of the GPU's" if device.own else "the GPU's"
    on_device = f", {whose} {settled.device >> 20} and {most.device >> 20} MiB" if soak.torch else ""
    print(
        f"soak: {'GREW' if grew else 'passed'}: {done()}, no difference; resident memory {settled.memory >> 20} MiB "
        f"after a tenth of the time, {most.memory >> 20} MiB at most{on_device}, descriptors {settled.descriptors} and "
        f"{most.descriptors}",
        flush=True,
    )
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
