"""``python -m rowfold quickstart``: the three presets at their reference size on the best backend present."""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

from .backends import backends, cpu_measure
from .bench.cases import Array, Case
from .bench.memory import growth
from .bench.unfused import largest_error, reference, sampled_rows
from .model import Model
from .ops import Chain, presets

BATCH, IN_FEATURES, OUT_FEATURES = 1024, 8192, 8192
REPEAT = 3


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``quickstart`` to the sub-commands."""
    parser = commands.add_parser(
        "quickstart",
        help="run the three preset models at full size, with times, memory and errors",
        description="Runs the preset models on KernelBench's inputs in float32, on the best backend present.",
    )
    parser.add_argument("--batch", type=int, default=BATCH, help=f"({BATCH})")
    parser.add_argument("--in-features", type=int, default=IN_FEATURES, metavar="K", help=f"({IN_FEATURES})")
    parser.add_argument("--out-features", type=int, default=OUT_FEATURES, metavar="N", help=f"({OUT_FEATURES})")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the models and prints what they did; the exit status."""
    for backend in backends():
        _say(f"backend {backend.name}: " + ("available" if backend.available else f"not used: {backend.reason}"))
    case = Case("quickstart", "linear", arguments.batch, arguments.in_features, arguments.out_features)
    _say(f"drawing x ({case.batch}, {case.in_features}) and W ({case.out_features}, {case.in_features}), float32 ...")
    x, weight, bias = case.inputs()
    for name, chain in presets().items():
        _say(f"\n== {name}: {chain}")
        rows = sampled_rows(case.batch)
        expected = reference(Chain.parse(chain), x[rows], weight, bias, {})
        for simplify in ("none", "algebraic"):
            with Model(chain, case.in_features, case.out_features, simplify=simplify) as model:
                model.load_weights(weight, bias)
                if simplify == "algebraic":
                    _say("\n" + model.explain(case.batch).rstrip() + "\n")
                y = np.zeros((case.batch, 1), np.float32)
                memory = growth(partial(model, x, y))
                seconds = min(_time(model, x, y) for _ in range(REPEAT))
                _report(model, case, seconds, memory, largest_error(y[rows], expected))
    return 0


def _report(model: Model, case: Case, seconds: float, memory: int | None, error: float) -> None:
    info = model.info
    rate = case.flops / seconds
    plan = model.explain(case.batch, "json")
    if plan["fused"]["flops"] < plan["unfused"]["flops"] / 2:
        speed = "a rewrite removed the matrix product, so this is no kernel's speed"
    elif info.device < 0:
        peak = cpu_measure(info.threads).flops_per_second
        speed = f"{rate / 1e9:.0f} GFLOP/s, {100 * rate / peak:.0f}% of this machine's {peak / 1e9:.0f}"
    else:
        speed = f"{rate / 1e12:.1f} TFLOP/s"
    unfused = case.batch * case.out_features * 4
    used = model.workspace_size(case.batch) if memory is None else memory
    _say(f"{info.backend}, simplify={info.simplify}: {seconds * 1e3:.4g} ms; {speed}")
    _say(f"    extra memory {used / 2**20:.1f} MiB; unfused, each matrix of logits takes {unfused / 2**20:.0f} MiB")
    _say(f"    largest relative error of sampled rows against float64: {error:.1e}")


def _time(model: Model, x: Array, y: Array) -> float:
    start = time.perf_counter()
    model(x, out=y)
    return time.perf_counter() - start


def _say(text: str) -> None:
    print(text, flush=True)
