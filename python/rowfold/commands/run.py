# SPDX-License-Identifier: MIT
"""``rowfold run``: a model over a file of rows, in batches that fit a memory cap."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError
from . import columns, options
from .streaming import Stream, add_files, meeting_of
from .writers import Named

EXAMPLES = """examples:
  rowfold run 'linear | logsumexp' --weights model.safetensors --input x.npy --output y.npy
  rowfold run 'linear | div(@temperature) | max' --weights model.safetensors --weight head.weight \\
      --vector temperature=head.temperature --input x.safetensors:hidden --output y.npy --max-memory 64M
  rowfold run 'linear | div(#t) | logprob(#target), argmax' --weights model.safetensors --row t=0.7 \\
      --row target=ids.npy --input x.npy --output y.npz
  torchrun --nproc-per-node 2 --no-python rowfold run 'linear | logsumexp' --weights model.safetensors \\
      --input x.npy --output y.npy --shard batch --threads 8
  python make_rows.py | rowfold run 'linear | max' --weights model.npz --input - --output - | python use.py
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``run`` to the sub-commands."""
    parser = commands.add_parser(
        "run",
        help="run a model over a file of rows",
        description="Computes the chain for every row of a file. The input is mapped, so it may be larger than memory; "
        "the output appears under its name only when it is complete. A link is followed; a device or a pipe is written "
        "into; what is read is never replaced.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("chain", metavar="CHAIN", help="chain text, or preset:NAME")
    add_files(parser, "(..., in_features)", ".npy, (..., 1 or out_features); .npz or .safetensors", required=True)
    parser.add_argument(
        "--row",
        metavar="NAME=FILE",
        action="append",
        default=[],
        help="the values (...) of a row input that the chain names with #, as --input is named, or one number "
        "for all rows where a number is wanted",
    )
    options.add_shards(parser)
    options.add_weights(parser, required=True)
    options.add_model(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the model over the file; the exit status."""
    meeting = meeting_of(arguments, [arguments.input, *(row.partition("=")[2] for row in arguments.row)])
    attended: Any = contextlib.nullcontext() if meeting is None else meeting.attend()
    together: Any = columns.attend(arguments) if arguments.shard == "columns" else contextlib.nullcontext()
    with attended as own, together as others:
        stream = Stream(arguments, _labels(arguments), columns=others)
        with stream.model() as model:
            results = [Named(r.name, (*stream.lead, r.features), np.dtype(r.dtype)) for r in model.info.results]
            stream.run(model, results, lambda parts, _: parts, meeting, own)
    return 0


def _labels(arguments: argparse.Namespace) -> dict[str, tuple[str, str]]:
    labels: dict[str, tuple[str, str]] = {}
    for text in arguments.row:
        name, equals, source = text.partition("=")
        if not (name and equals and source):
            raise InvalidArgumentError(f"--row {text!r}; expected NAME=FILE, as in target=ids.npy, or NAME=NUMBER")
        if name in labels:
            raise InvalidArgumentError(f"--row {name} is given twice; expected one file or number for #{name}")
        labels[name] = (f"--row {text}", source)
    return labels
