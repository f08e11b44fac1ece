# SPDX-License-Identifier: MIT
"""``rowfold explain``: what becomes of every operator of a chain, and what it costs."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from ..arguments import integer
from ..arrays import parse_dtype
from ..bench.cases import stored
from ..errors import OutOfMemoryError
from ..model import Model
from ..ops import Chain
from . import options

EXAMPLES = """examples:
  rowfold explain 'linear(8192, 8192) | logsumexp | gelu'
  rowfold explain preset:sum_pool --in-features 8192 --out-features 8192 --simplify none
  rowfold explain 'linear | logsumexp' --weights model.safetensors --weight lm_head.weight --measure
"""
REPEAT = 5


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``explain`` to the sub-commands."""
    parser = commands.add_parser(
        "explain",
        help="say what becomes of every operator of a chain, and what it costs",
        description="Which operators are fused, replaced or removed and by which rule; arithmetic, memory and times.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("chain", metavar="CHAIN", help="chain text, or preset:NAME")
    parser.add_argument("--batch", type=int, default=1024, help="rows of x (1024)")
    parser.add_argument("--in-features", type=int, metavar="K", help="if neither chain nor weights say it")
    parser.add_argument("--out-features", type=int, metavar="N", help="likewise")
    parser.add_argument("--dtype", choices=options.DTYPES, help="of the weights (float32, or the file's)")
    parser.add_argument("--measure", action="store_true", help="also measure, on random x (and W, without --weights)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options.add_weights(parser, required=False)
    options.add_model(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the explanation; the exit status."""
    given = {"in_features": arguments.in_features, "out_features": arguments.out_features, "dtype": arguments.dtype}
    more = {name: value for name, value in given.items() if value is not None}
    with _model(arguments, more) as model:
        seconds = _measure(model, arguments.batch) if arguments.measure else None
        if arguments.json:
            document = model.explain(arguments.batch, "json")
            if seconds is not None:
                document["measured_seconds"] = seconds
            print(json.dumps(document, indent=1))
        else:
            print(model.explain(arguments.batch).rstrip())
            if seconds is not None:
                print(f"  Measured, median of {REPEAT}: {seconds * 1e3:.4g} ms.")
    return 0


def _model(arguments: argparse.Namespace, more: dict[str, Any]) -> Model:
    if arguments.weights:
        return options.load(arguments, **more)
    return Model(arguments.chain, **options.keywords(arguments), **more)


def _measure(model: Model, batch: int) -> float:
    """Median time of a forward. Random values: a processor may be quicker on zeros."""
    random, info, batch = np.random.default_rng(0), model.info, integer(batch, "batch", 64)
    if not info.loaded:
        weight = random.standard_normal((info.out_features, info.in_features), np.float32)
        names = [op.vector for op in Chain.parse(info.chain) if op.vector and not op.vector.startswith("#")]
        dtype = parse_dtype(info.dtype, "dtype")
        vectors = {name: stored(random.random(info.out_features, np.float32), dtype) for name in names}
        model.load_weights(stored(weight, dtype), vectors=vectors)
    try:
        x = random.standard_normal((batch, info.in_features), np.float64 if info.dtype == "float64" else np.float32)
        columns = random.integers(0, max(info.out_features, 1), batch)
    except (MemoryError, ValueError):  # the second where no address reaches so far
        raise OutOfMemoryError(f"no memory for {batch} rows of {info.in_features} inputs to measure with") from None
    given = {"number": 1.0, "column": columns, "columns": columns[:, None]}
    rows: dict[str, Any] = {name: given[use] for name, use in info.row_inputs.items()}
    times = []
    for _ in range(1 + REPEAT):
        start = time.perf_counter()
        model(x, **rows)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
