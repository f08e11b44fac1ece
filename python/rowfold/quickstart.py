# SPDX-License-Identifier: MIT
"""``python -m rowfold quickstart``: the three presets at their reference size on the best backend present."""

from __future__ import annotations

import argparse
import time

import numpy as np

from .backends import backends, cpu_measure
from .bench.cases import Case
from .bench.data import Array
from .bench.unfused import largest_error, reference, sampled_rows
from .commands.options import positive
from .model import Model
from .ops import Chain, presets

BATCH, IN_FEATURES, OUT_FEATURES = 1024, 8192, 8192
# Of each model: at most so many timed runs, and no new one after so many seconds, for slow machines.
MOST_RUNS = 3
RUN_SECONDS = 4.0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``quickstart`` to the sub-commands."""
    parser = commands.add_parser(
        "quickstart",
        help="run the three preset models at full size, with times, memory and errors",
        description="Runs the preset models on KernelBench's inputs in float32, on the best backend present.",
    )
    parser.add_argument("--batch", type=positive, default=BATCH, help=f"rows of x ({BATCH})")
    parser.add_argument(
        "--in-features", type=positive, default=IN_FEATURES, metavar="K", help=f"inputs ({IN_FEATURES})"
    )
    parser.add_argument(
        "--out-features", type=positive, default=OUT_FEATURES, metavar="N", help=f"outputs ({OUT_FEATURES})"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the models and prints what they did; the exit status."""
    for backend in backends():
        _say(
            f"backend {backend.name}: "
            + ("available" if backend.available else f"not used: {backend.reason}")
            + ", by name alone" * backend.by_name
        )
    case = Case("quickstart", "linear", arguments.batch, arguments.in_features, arguments.out_features)
    _say(f"drawing x ({case.batch}, {case.in_features}) and W ({case.out_features}, {case.in_features}), float32 ...")
    x, weight, bias = case.inputs()
    for name, chain in presets().items():
        _say(f"\n== {name}: {chain}")
        rows = sampled_rows(case.batch)
        expected = reference(Chain.parse(chain), x[rows], weight, bias, {})
        if _run_model(chain, case, (x, weight, bias), rows, expected, "algebraic"):
            _say("\nthe same with every operator computed as written:")
            _run_model(chain, case, (x, weight, bias), rows, expected, "none")
    return 0


def _run_model(
    chain: str, case: Case, inputs: tuple[Array, Array, Array], rows: list[int], expected: Array, simplify: str
) -> bool:
    """Runs and reports one model; whether a rewrite removed its matrix product."""
    x, weight, bias = inputs
    with Model(chain, case.in_features, case.out_features, simplify=simplify) as model:
        model.load_weights(weight, bias)
        y = np.zeros((case.batch, model.info.output_features), np.float32)
        model(x, out=y)
        seconds: list[float] = []
        while len(seconds) < MOST_RUNS and sum(seconds) < RUN_SECONDS:
            seconds.append(_time(model, x, y))
        plan = model.explain(case.batch, "json")
        removed: bool = plan["fused"]["flops"] < plan["unfused"]["flops"] / 2
        if simplify == "algebraic":
            _say("\n" + model.explain(case.batch).rstrip() + "\n")
        speed = _speed(model, case, min(seconds), removed)
        _say(f"{model.info.backend}, simplify={simplify}: {min(seconds) * 1e3:.4g} ms; {speed}")
        used, unfused = plan["fused"]["memory_bytes"], plan["unfused"]["memory_bytes"]
        _say(f"    memory beside x and weights {used / 2**20:.3g} MiB, unfused {unfused / 2**20:.3g} MiB")
        error = largest_error(y[rows], expected)
        _say(f"    largest relative error of {len(rows)} rows against float64: {error:.1e}")
    return removed


def _speed(model: Model, case: Case, seconds: float, removed: bool) -> str:
    if removed:
        return "a rewrite removed the matrix product, so this is no kernel's speed"
    rate = case.flops / seconds
    if model.info.device >= 0:
        return f"{rate / 1e12:.1f} TFLOP/s"
    peak = cpu_measure(model.info.threads).flops_per_second
    return f"{rate / 1e9:.0f} GFLOP/s, {100 * rate / peak:.0f}% of this machine's {peak / 1e9:.0f}"


def _time(model: Model, x: Array, y: Array) -> float:
    start = time.perf_counter()
    model(x, out=y)
    return time.perf_counter() - start


def _say(text: str) -> None:
    print(text, flush=True)
