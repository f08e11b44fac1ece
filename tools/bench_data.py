#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every kind of data of `rowfold bench --data` through every form of a layer, beside ordinary data. As Markdown.

    python tools/bench_data.py [--device cuda] [--size 1024 8192 8192] [--few 32] [--kinds silu lognormal3 ...]

A form is a type of W and of x, the accuracy of the products, what becomes of the logits, and how many rows there are.
The first table has what a kind takes over KernelBench's data in the same form and run, whose milliseconds come first:
on a GPU medians of replays of a CUDA graph. The second has rowfold's times over PyTorch's, of the same type, or in
float32 where x and W have different ones; what does not depend on values is timed once, with KernelBench's data. The
third has, of float32, the largest relative error of a row against float64 of the same stored values, rowfold's and that
of PyTorch's float32.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from captured import WARM_UP, replays

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "python")]

import rowfold  # noqa: E402
from rowfold.bench.data import DATA  # noqa: E402
from rowfold.bench.machine import cpu_name  # noqa: E402
from rowfold.bench.unfused import largest_error, results, torch_all  # noqa: E402

Call = Callable[[], Any]
TAME = "kernelbench"
FORCE = "ROWFOLD_CUDA_KERNEL"
LEAST_SECONDS = 1e-3  # of a sample
ERROR_ROWS = 256


class Form(NamedTuple):
    """A column of the tables.

    "few rows" are those of the form before. `vocabulary`: so many times as many columns, of half as many inputs.
    """

    text: str
    w: str = "float32"
    x: str = "float32"
    math: str = "f32"
    chain: str = "linear | logsumexp"
    few: bool = False
    batch_invariant: bool = False
    kernel: str = ""
    vocabulary: int = 1


SCORES = "linear | logsumexp, argmax, entropy"
TOP = "linear | logsumexp, topk(20)"


def also_few(form: Form) -> tuple[Form, Form]:
    """A form, and the same with few rows."""
    return form, form._replace(text="few rows", few=True)


FORMS = (
    *also_few(Form("float32")),
    Form("`linear` alone", chain="linear"),
    Form("`batch_invariant`", batch_invariant=True),
    Form("mma_128x128 forced", kernel="mma_128x128"),
    Form("scores", chain=SCORES),
    Form("16 times the columns", vocabulary=16),
    Form("the same, `topk(20)`", vocabulary=16, chain=TOP),
    *also_few(Form("`math=tf32`", math="tf32")),
    *also_few(Form("bfloat16", w="bfloat16", x="bfloat16")),
    Form("16 times the columns, `topk(20)`", w="bfloat16", x="bfloat16", vocabulary=16, chain=TOP),
    *also_few(Form("W bfloat16", w="bfloat16")),
    *also_few(Form("x bfloat16", x="bfloat16")),
    *also_few(Form("W bfloat16, x float16", w="bfloat16", x="float16")),
    *also_few(Form("W float16", w="float16")),
    *also_few(Form("x float16", x="float16")),
    *also_few(Form("W float16, x bfloat16", w="float16", x="bfloat16")),
    *also_few(Form("float64", w="float64", x="float64")),
)


class Drawn:
    """x, W and b of a kind in float32, on a device."""

    def __init__(self, device: str, kind: str, size: tuple[int, int, int]) -> None:
        self.device = device
        drawn = DATA[kind](np.random.default_rng(0), *size)
        self.x, self.weight, self.bias = (torch.from_numpy(values).to(device) for values in drawn)

    def of(self, form: Form, few: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Those of a form. A vocabulary repeats W."""
        x, w, b = self.x, self.weight, self.bias
        if form.vocabulary > 1:
            k = x.shape[1] // 2
            x, w = x[:, :k].contiguous(), w.view(-1, k).repeat(form.vocabulary // 2, 1)
            b = b.repeat_interleave(form.vocabulary)
        x = x[:few] if form.few else x
        return x.to(getattr(torch, form.x)), w.to(getattr(torch, form.w)), b.to(getattr(torch, form.w))


@contextmanager
def forced(kernel: str) -> Iterator[None]:
    """With a CUDA kernel forced, if one is named."""
    if kernel:
        os.environ[FORCE] = kernel
    try:
        yield
    finally:
        os.environ.pop(FORCE, None)


def sampler(call: Call, device: str) -> Callable[[], float]:
    """A function that returns the seconds of one call."""
    if device != "cpu":
        seconds = replays(call)
        return partial(seconds, max(1, round(LEAST_SECONDS / seconds(1))))
    for _ in range(WARM_UP):
        call()

    def elapsed() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return elapsed


def unfused(form: Form, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Call:
    """What PyTorch does instead. It has no product of two types: all are brought to float32 before."""
    chain, table = rowfold.Chain.parse(form.chain), torch_all()
    if form.w != form.x:
        x, w, b = x.float(), w.float(), b.float()
    return lambda: results(chain, torch.nn.functional.linear(x, w, b), table, {})


class Measured(NamedTuple):
    """Seconds of rowfold and of PyTorch, and the errors of both; None for what is not asked for."""

    mine: float
    theirs: float | None
    errors: tuple[float, float] | None


def measured(drawn: Drawn, form: Form, tame: bool, options: argparse.Namespace) -> Measured:
    """Both in turns."""
    x, w, b = drawn.of(form, options.few)
    model = rowfold.Model(
        form.chain,
        w.shape[1],
        w.shape[0],
        dtype=form.w,
        x_dtype=form.x,
        math=form.math,
        batch_invariant=form.batch_invariant,
        device=options.device,
    )
    with forced(form.kernel), model.load_weights(w, b):
        calls: list[Call] = [lambda: model(x)]
        if tame or form.chain == TOP:
            calls.append(unfused(form, x, w, b))
        samples = [sampler(call, options.device) for call in calls]
        seconds = zip(*[[sample() for sample in samples] for _ in range(options.turns)])
        mine, *others = (statistics.median(values) for values in seconds)
        errors = errors_of(model, x, w, b) if form in FORMS[:2] else None
        return Measured(mine, others[0] if others else None, errors)


def errors_of(model: rowfold.Model, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """Of a logsumexp of float32: rowfold's, and PyTorch's."""
    x = x[:ERROR_ROWS]

    def plain(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(torch.nn.functional.linear(x, w, b), 1, keepdim=True)

    expected = plain(x.double(), w.double(), b.double()).cpu().numpy()
    mine, theirs = (largest_error(y.double().cpu().numpy(), expected) for y in (model(x), plain(x, w, b)))
    return mine, theirs


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, nargs=3, metavar=("BATCH", "K", "N"), default=(1024, 8192, 8192))
    parser.add_argument("--few", type=int, default=32, metavar="ROWS", help="of the forms for few rows (32)")
    parser.add_argument("--kinds", nargs="+", choices=list(DATA), metavar="KIND", default=list(DATA), help="(all)")
    parser.add_argument("--turns", type=int, default=5, help="samples of each, of which the median counts (5)")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    machine = cpu_name() if on_cpu else torch.cuda.get_device_name(options.device)
    forms = [form for form in FORMS if not (on_cpu and (form.kernel or form.math != "f32"))]
    batch, k, n = options.size
    print(f"rowfold {rowfold.__version__}, PyTorch {torch.__version__}, {machine}, {batch} x {k} -> {n}\n")
    head = f" | {' | '.join(form.text for form in forms)} |\n| --- |{' ---: |' * len(forms)}"
    print(f"| x, W{head}", flush=True)
    found: dict[str, list[Measured]] = {}
    with torch.inference_mode():
        for kind in dict.fromkeys([TAME, *options.kinds]):
            drawn = Drawn(options.device, kind, options.size)
            found[kind] = [measured(drawn, form, kind == TAME, options) for form in forms]
            pairs = zip(found[kind], found[TAME])
            cells = [f"{m.mine * 1e3:.4g} ms" if kind == TAME else f"{m.mine / t.mine:.2f}" for m, t in pairs]
            print(f"| {kind} | {' | '.join(cells)} |", flush=True)
    print(f"\n| over PyTorch{head}")
    for kind, ways in found.items():
        cells = [f"{m.mine / (m.theirs or t.theirs or 1):.2f}" for m, t in zip(ways, found[TAME])]
        print(f"| {kind} | {' | '.join(cells)} |")
    print(f"\n| error | float32 | {options.few} rows |\n| --- | --- | --- |")
    for kind, ways in found.items():
        cells = [f"{m.errors[0]:.1e} / {m.errors[1]:.1e}" for m in ways[:2] if m.errors]
        print(f"| {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
