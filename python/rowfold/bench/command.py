# SPDX-License-Identifier: MIT
"""The command line of ``python -m rowfold bench``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..commands.options import DTYPES, positive, seconds, thread_count
from ..commands.output import complete_or_absent, require_place
from ..ops import Chain, presets
from . import compare, gpu, gpu_scaling, plot, scaling, sweep
from .cases import Case, default_cases
from .contenders import CHUNK, TORCH_LABELS
from .data import DATA
from .machine import cores
from .report import document, markdown, show
from .runner import CaseResult, Entry, Runner
from .watchdog import TIME_LIMIT

COMPETITORS = ("numpy", "openblas", "torch", "torch-compile")
CHUNKED = "torch-chunked"
SIMPLIFY = ("none", "exact", "algebraic")
DESCRIPTION = """\
Measures time, rate, memory and error of rowfold and its competitors, interleaved, in one run.

With --sweep it draws COUNT shapes instead: rows and inputs from 1 to 16384, columns from 1 to 65536, log-uniform, half
of the sizes multiples of 64, a quarter of the x with gaps between its rows, all dtypes alike unless --dtype names some,
and the chain linear | logsumexp unless --chain names others. A shape of more than 2^32 multiply-adds (2^36 on a GPU)
or with more than 2^25 values in x, in W or in the logits, is drawn again: a thousand cases take minutes. Ratios are
rowfold's median time over that of PyTorch eager, or of numpy where PyTorch is not installed; a case above 1.1 is
measured with twice as many turns more. On a CPU the other is also timed beside itself, which says how many cases noise
alone takes above 1.1. Errors are against float64 for 8 rows (256 on a GPU). A result is called less exact if its error
is above twice the other's and above four units in the last place of float32 (of float64 for float64). The exit status
is 1 if a case has no result, or infinities or NaN that float64 does not have; 124 if one stood still.

With --scaling one layer is split by columns over 1 to 512 devices. What a device computes is measured, as the largest
shard alone on this machine with --threads; what is sent takes --latency for each round of messages and --bandwidth for
the bytes, and --node-latency and --node-bandwidth between machines of --node devices. The last column is what the same
took on so many processes of this machine, as many as it has cores for, or with --device cuda GPUs, which NCCL joins."""
EXAMPLES = """examples:
  rowfold bench                                       the presets at 1024 x 8192 -> 8192, and small batches
  rowfold bench --preset logsumexp_gelu --json new.json
  rowfold bench --chain 'linear | max' --batch 64 --in-features 4096 --out-features 32000 --dtype bfloat16
  rowfold bench --device cuda --json gpu.json         the same on a GPU, beside PyTorch on it
  rowfold bench --device cuda --preset logsumexp_gelu --dtype float32 --math tf32
  rowfold bench --json new.json --plot new.png --compare old.json
  rowfold bench --results presets.json --results small.json --plot all.png
  rowfold bench --data sigma5 --competitors torch --simplify none
  rowfold bench --scaling --out-features 128256 --in-features 512 --latency 5e-6 --bandwidth 50e9
  rowfold bench --sweep 1000 --seed 7 --json sweep.json    random shapes beside PyTorch eager, the worst ratios first
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``bench`` to the sub-commands."""
    parser = commands.add_parser(
        "bench",
        help="measure rowfold beside numpy, OpenBLAS and PyTorch on this machine",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", action="append", default=[], metavar="NAME", help="a preset; may be repeated")
    parser.add_argument(
        "--chain", action="append", default=[], metavar="TEXT", help="a chain, as text; may be repeated"
    )
    parser.add_argument("--batch", type=positive, action="append", help="rows of x; may be repeated (1024)")
    sizes = "as the chain says, or 8192"
    parser.add_argument("--in-features", type=positive, metavar="K", help=f"inputs of the layer ({sizes})")
    parser.add_argument("--out-features", type=positive, metavar="N", help=f"outputs of the layer ({sizes})")
    parser.add_argument(
        "--dtype",
        action="append",
        choices=("float32", "float64", "float16", "bfloat16"),
        help="of x and W; may be repeated (float32)",
    )
    parser.add_argument("--device", default="cpu", type=_device, metavar="DEVICE", help="cpu, cuda or cuda:N (cpu)")
    parser.add_argument(
        "--math",
        choices=("f32", "tf32", "bf16"),
        default="f32",
        help="of float32, on a GPU: what may be lost, where bf16 is computed as tf32 (f32)",
    )
    parser.add_argument(
        "--data",
        choices=list(DATA),
        default="kernelbench",
        metavar="KIND",
        help=f"what x and W are drawn as, of {', '.join(DATA)} (kernelbench)",
    )
    parser.add_argument("--sweep", type=positive, metavar="COUNT", help="so many random shapes, as described above")
    parser.add_argument(
        "--scaling", action="store_true", help="one layer split by columns over 1 to 512 devices, as described above"
    )
    parser.add_argument(
        "--latency", type=seconds, metavar="SECONDS", help="of a message between devices (measured here)"
    )
    parser.add_argument(
        "--bandwidth", type=seconds, metavar="BYTES", help="a second, from one device to others (measured here)"
    )
    parser.add_argument("--node", type=positive, metavar="DEVICES", help="of a machine, where there are several")
    parser.add_argument("--node-latency", type=seconds, metavar="SECONDS", help="of a message between machines")
    parser.add_argument(
        "--node-bandwidth", type=seconds, metavar="BYTES", help="a second, from a device to its like in other machines"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random values (0)")
    parser.add_argument("--threads", type=thread_count, help="of every contender (all cores this process may use)")
    parser.add_argument("--repeat", type=positive, default=5, help="samples of each contender, interleaved (5)")
    parser.add_argument(
        "--time-limit",
        type=positive,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help=f"what a case (without --sweep on a CPU: a request) may take before it is ended ({TIME_LIMIT})",
    )
    parser.add_argument(
        "--simplify",
        choices=SIMPLIFY,
        action="append",
        help="rewrites allowed to rowfold; may be repeated (none and algebraic)",
    )
    parser.add_argument("--backend", help="force one of rowfold's backends")
    parser.add_argument(
        "--competitors",
        default=",".join(COMPETITORS),
        metavar="LIST",
        help=f"of {', '.join(COMPETITORS)}, or 'none' (all); and {CHUNKED}, some rows at a time",
    )
    parser.add_argument("--openblas", metavar="FILE", help="the OpenBLAS library to use (the system's)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables to FILE as Markdown")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw times, errors and roofline (.png, .svg)")
    parser.add_argument("--compare", type=Path, metavar="OLD", help="also say what changed since OLD, a --json file")
    parser.add_argument(
        "--results",
        type=Path,
        action="append",
        metavar="FILE",
        help="measure nothing: --plot and --compare the results of FILE, an earlier --json; may be repeated to plot",
    )
    parser.set_defaults(run=run)


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r}; expected cpu, cuda or cuda:N")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Measures and reports; the exit status."""
    if arguments.sweep:
        return _sweep(arguments)
    if arguments.scaling:
        return _scaling(arguments)
    if arguments.plot:
        plot.require(arguments.plot)
    for path in filter(None, (arguments.plot, arguments.json, arguments.markdown)):
        require_place(path)
    old = compare.read(arguments.compare) if arguments.compare else None
    if arguments.results:
        status, documents = 0, [compare.read(path) for path in arguments.results]
        if not (arguments.plot or old):
            raise SystemExit("rowfold bench: --results goes with --plot or --compare")
        if arguments.json or arguments.markdown:
            raise SystemExit("rowfold bench: --json and --markdown write what is measured; --results measures nothing")
    else:
        results, threads, status = _run_on_gpu(arguments) if arguments.device != "cpu" else _run_on_cpu(arguments)
        documents = [document(results, threads)]
    if arguments.plot:
        plot.draw(documents, arguments.plot)
    if old:
        compare.show(old, documents[-1])
    return status


def _sweep(arguments: argparse.Namespace) -> int:
    for name in ("preset", "batch", "in_features", "out_features", "markdown", "plot", "compare", "results"):
        if getattr(arguments, name):
            option = name.replace("_", "-")
            raise SystemExit(f"rowfold bench: --sweep draws its own shapes and does not go with --{option}")
    if arguments.json:
        require_place(arguments.json)
    on_gpu, threads = arguments.device != "cpu", arguments.threads or cores()
    chains, dtypes = arguments.chain or [sweep.CHAIN], arguments.dtype or DTYPES
    for chain in chains:
        if Chain.parse(chain)[0].params:
            raise SystemExit(f"rowfold bench: --sweep draws its own shapes; --chain {chain!r} has sizes of its own")
    work = sweep.MOST_WORK["cuda" if on_gpu else "cpu"]
    cases = sweep.draw(arguments.sweep, arguments.seed, chains, dtypes, arguments.data, work)
    options = {"simplify": (arguments.simplify or ["none"])[0], "backend": arguments.backend}
    judge: sweep.Judge
    if on_gpu:
        judge = sweep.GpuJudge(arguments.device, arguments.repeat, options, arguments.math, arguments.time_limit)
    else:
        judge = sweep.CpuJudge(threads, arguments.repeat, options, _competitors(arguments), arguments.time_limit)
    outcomes = sweep.run(cases, judge)
    sweep.show(outcomes, judge.other)
    if arguments.json:
        sweep.write(arguments.json, outcomes, judge, threads, arguments.seed, work)
    return int(any(outcome.wrong for outcome in outcomes))


def _scaling(arguments: argparse.Namespace) -> int:
    for name in ("markdown", "plot", "compare", "results"):
        if getattr(arguments, name):
            raise SystemExit(f"rowfold bench: --scaling does not go with --{name}")
    if arguments.device not in ("cpu", "cuda"):
        raise SystemExit(f"rowfold bench: --scaling --device {arguments.device}; expected cpu, or cuda for all GPUs")
    if (arguments.latency is None) != (arguments.bandwidth is None):
        raise SystemExit("rowfold bench: expected both of --latency and --bandwidth, or neither")
    nodes = (arguments.node, arguments.node_latency, arguments.node_bandwidth)
    if any(n is None for n in nodes) and any(n is not None for n in nodes):
        raise SystemExit("rowfold bench: expected all of --node, --node-latency and --node-bandwidth, or none")
    if arguments.json:
        require_place(arguments.json)
    if not (arguments.preset or arguments.chain):
        arguments.chain = [sweep.CHAIN]
    arguments.batch = arguments.batch or [1024]
    cases = _cases(arguments)
    if arguments.json and len(cases) > 1:
        raise SystemExit(f"rowfold bench: --json writes one case; {len(cases)} were asked for")
    threads = arguments.threads or 1
    options = {
        "simplify": (arguments.simplify or ["none"])[0],
        "backend": arguments.backend,
        "threads": threads,
        "repeat": arguments.repeat,
    }
    measured, on_gpus = arguments.latency is None, arguments.device == "cuda"
    if measured:
        link = (gpu_scaling if on_gpus else scaling).measure_link(arguments.repeat)
    else:
        link = scaling.Link(arguments.latency, arguments.bandwidth)
    if arguments.node:
        between = scaling.Link(arguments.node_latency, arguments.node_bandwidth)
        link = scaling.Cluster(link.latency, link.bandwidth, arguments.node, between)
    for case in cases:
        if on_gpus:
            points = gpu_scaling.measure(case, link, options)
        else:
            points = scaling.measure(case, link, cores(), options)
        scaling.show(case, link, measured, points)
        if arguments.json:
            scaling.write(arguments.json, case, link, points, threads)
    return 0


def _run_on_cpu(arguments: argparse.Namespace) -> tuple[list[CaseResult], int, int]:
    """Results, threads, and the exit status."""
    cases = _cases(arguments)
    entries = _entries(arguments)
    threads = arguments.threads or cores()
    runner = Runner(threads, arguments.repeat, _say, arguments.time_limit)
    results: list[CaseResult] = []
    for case in cases:
        results.append(runner.measure(case, entries))
        show(results[-1])
        _keep(arguments, results, threads)
    return results, threads, _status(results)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _status(results: Sequence[CaseResult]) -> int:
    return 0 if all(result.results[0].seconds for result in results) else 1


def _run_on_gpu(arguments: argparse.Namespace) -> tuple[list[CaseResult], int, int]:
    runner = gpu.Runner(arguments.device, arguments.repeat, _say, arguments.time_limit)
    wanted = [] if arguments.competitors == "none" else arguments.competitors.split(",")
    competitors = [name for name in wanted if name.startswith("torch")]
    drawn = {"data": arguments.data, "seed": arguments.seed}
    sizes = arguments.in_features or arguments.out_features
    if arguments.preset or arguments.chain or arguments.batch or arguments.dtype or sizes:
        cases = [gpu.GpuCase(**vars(case), math=arguments.math) for case in _cases(arguments)]
    else:
        cases = [replace(case, **drawn) for case in gpu.default_cases()]
    results: list[CaseResult] = []
    for case in cases:
        simplify = arguments.simplify or ("none", "algebraic")
        results.append(runner.measure(case, simplify, competitors, arguments.backend))
        show(results[-1])
        _keep(arguments, results, 0)
    return results, 0, _status(results)


def _keep(arguments: argparse.Namespace, results: Sequence[CaseResult], threads: int) -> None:
    """Writes what has been measured so far to the files asked for."""
    if arguments.json:
        _write(arguments.json, json.dumps(document(results, threads), indent=1) + "\n")
    if arguments.markdown:
        _write(arguments.markdown, markdown(results, threads))


def _cases(arguments: argparse.Namespace) -> list[Case]:
    unknown = set(arguments.preset) - set(presets())
    if unknown:
        raise SystemExit(f"rowfold bench: no preset {', '.join(sorted(unknown))}; there are {', '.join(presets())}")
    chains = [(name, presets()[name]) for name in arguments.preset] + [(chain, chain) for chain in arguments.chain]
    if not chains and not arguments.batch and not arguments.dtype:
        k, n = _features(arguments, "linear")
        shaped_as = partial(replace, in_features=k, out_features=n, data=arguments.data, seed=arguments.seed)
        return [shaped_as(case) for case in default_cases()]
    shaped = [(name, chain, *_features(arguments, chain)) for name, chain in chains or presets().items()]
    return [
        Case(name, chain, batch, k, n, dtype, arguments.data, arguments.seed)
        for name, chain, k, n in shaped
        for dtype in arguments.dtype or ["float32"]
        for batch in arguments.batch or [1024]
    ]


def _features(arguments: argparse.Namespace, chain: str) -> tuple[int, int]:
    """Inputs and outputs: what the chain says, which the options may not contradict; else the options."""
    said = tuple(int(value) for value in Chain.parse(chain)[0].params) or (None, None)
    features = []
    for option, in_chain in zip(("in_features", "out_features"), said):
        given = getattr(arguments, option)
        if in_chain is not None and given not in (None, in_chain):
            option = option.replace("_", "-")
            raise SystemExit(f"rowfold bench: --{option} {given}, but --chain {chain!r} says {in_chain}")
        if in_chain == 0:
            raise SystemExit(f"rowfold bench: --chain {chain!r}: a layer without inputs or outputs has nothing to time")
        features.append(given or in_chain or 8192)
    return features[0], features[1]


def _competitors(arguments: argparse.Namespace) -> list[str]:
    wanted: list[str] = [] if arguments.competitors == "none" else arguments.competitors.split(",")
    known = (*COMPETITORS, CHUNKED)
    unknown = set(wanted) - set(known)
    if unknown:
        raise SystemExit(f"rowfold bench: no competitor {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return wanted


def _entries(arguments: argparse.Namespace) -> list[Entry]:
    entries = []
    for simplify in arguments.simplify or ("none", "algebraic"):
        options = {"simplify": simplify, "backend": arguments.backend}
        entries.append(Entry(f"rowfold ({simplify})", "rowfold", options))
    for name in _competitors(arguments):
        if name == "openblas":
            entries.append(Entry("OpenBLAS", name, {"library": arguments.openblas}, product_only=True))
        elif name == "numpy":
            entries.append(Entry("numpy", name))
        else:
            options = {"compile": name == "torch-compile", "chunk": CHUNK if name == CHUNKED else 0}
            entries.append(Entry(TORCH_LABELS[name], "torch", options))
    return entries


def _write(path: Path, text: str) -> None:
    """Replaces the file as a whole, so that an interrupted run leaves the last complete one."""
    with complete_or_absent(path) as file:
        file.write(text.encode())
