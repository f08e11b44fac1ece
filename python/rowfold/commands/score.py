# SPDX-License-Identifier: MIT
"""``rowfold score``: the log-probability of a token for every row of hidden states, and what goes with it."""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from ..errors import CommunicationError
from . import columns, options, shards
from .rows import Array
from .streaming import Stream, add_files, meeting_of
from .writers import Named

EXAMPLES = """examples:
  rowfold score --weights model.safetensors --weight lm_head.weight --input hidden.npy --targets ids.npy \\
      --output scores.npz
  rowfold score --weights model.safetensors.index.json --weight lm_head.weight --softcap 30 \\
      --input states.safetensors:hidden --targets states.safetensors:ids --json
"""
DESCRIPTION = """\
Scores a token for every row of a file of hidden states: its log-probability under the softmax of the row's logits, in
nats, how many tokens are likelier (its rank), whether it is the greedy choice, and the entropy of that softmax. The
logits are W x + b, times --logit-scale, softcap * tanh(logits / softcap), divided by --temperature, in this order.
Rows whose target is --ignore-index are not counted, and have log-probability 0 and rank -1. A summary goes to standard
output: the number of tokens, the mean of the negative log-probabilities, its exponential (the perplexity), and the
share of greedy choices. The input is mapped, so it may be larger than memory; the output appears under its name only
when it is complete. With --shard batch each process scores some rows; with --shard columns each has some columns of the
layer, and all read all rows: there the rank is left out."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``score`` to the sub-commands."""
    parser = commands.add_parser(
        "score",
        help="score the tokens that follow hidden states, without storing logits",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_files(
        parser,
        "(..., in_features)",
        ".npz or .safetensors of logprob, greedy, rank and entropy, (...) each",
        required=False,
    )
    parser.add_argument(
        "--targets",
        required=True,
        metavar="FILE",
        help="the tokens (...), int64 or int32: .npy, FILE.safetensors:TENSOR, or - for an .npy from standard input",
    )
    parser.add_argument("--temperature", type=_positive, metavar="T", help="logits are divided by it (1)")
    parser.add_argument("--softcap", type=_positive, metavar="C", help="a soft bound of the logits (none)")
    parser.add_argument("--logit-scale", type=_finite, metavar="S", help="logits are multiplied by it (1)")
    parser.add_argument("--ignore-index", type=int, default=-100, metavar="I", help="a target not to score (-100)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    options.add_shards(parser)
    options.add_weights(parser, required=True, vectors=False)
    options.add_model(parser)
    parser.set_defaults(run=run, vector=[])


def run(arguments: argparse.Namespace) -> int:
    """Scores the file and prints the summary; the exit status."""
    named = [arguments.input, arguments.targets]
    meeting = meeting_of(arguments, named)
    if meeting is not None:
        with meeting.attend() as own:
            return _score(arguments, None, meeting, own)
    if arguments.shard == "columns":
        with columns.attend(arguments) as others:
            return _score(arguments, others)
    return _score(arguments, None)


def _score(
    arguments: argparse.Namespace,
    others: columns.Columns | None,
    meeting: shards.Meeting | None = None,
    own: BinaryIO | None = None,
) -> int:
    """Scores the rows; ``others`` have other columns, those of the ``meeting`` other rows, as Stream.run has them."""
    ranks = others is None
    arguments.chain = _chain(arguments, ranks)
    source, ignored = (f"--targets {arguments.targets}", arguments.targets), arguments.ignore_index
    ranked = {"ranked": lambda values: np.where(values["target"] == ignored, 0, values["target"])}
    stream = Stream(arguments, {"target": source}, ranked if ranks else None, others)
    with stream.model() as model:
        summary = Summary(ignored, ranks)
        dtypes = {result.name: np.dtype(result.dtype) for result in model.info.results}
        results = [
            Named("logprob", stream.lead, dtypes["logprob"]),
            Named("greedy", stream.lead, np.dtype(np.bool_)),
            *([Named("rank", stream.lead, dtypes["rank"])] if ranks else []),
            Named("entropy", stream.lead, dtypes["entropy"]),
        ]
        stream.run(model, results, summary.part, meeting, own, summary.read)
    if own is not None:
        own.write(summary.packed())
    if own is not None or (others is not None and others.rank):
        return 0
    # Scores that go to standard output are not to be mixed with it.
    print(summary.text(arguments.json), file=sys.stderr if arguments.output == "-" else sys.stdout)
    return 0


def _chain(arguments: argparse.Namespace, ranks: bool) -> str:
    steps = ["linear"]
    if arguments.logit_scale is not None:
        steps.append(f"mul({arguments.logit_scale!r})")
    if arguments.softcap is not None:
        steps.append(f"softcap({arguments.softcap!r})")
    if arguments.temperature is not None:
        steps.append(f"div({arguments.temperature!r})")
    place = "rank(#ranked)" if ranks else "argmax"
    return " | ".join([*steps, f"logprob(#target, {arguments.ignore_index}), {place}, entropy"])


_SUMS = struct.Struct("<3q2d")


class Summary:
    """What is told of all rows that are scored."""

    def __init__(self, ignored: int, ranks: bool) -> None:
        self.ignored, self.ranks = ignored, ranks
        self.rows = self.tokens = self.greedy = 0
        self.logprob = self.entropy = 0.0

    def part(self, results: Sequence[Array], values: Mapping[str, Array]) -> Sequence[Array]:
        """What is written of some rows, which are counted."""
        (logprob, place, entropy), target = results, values["target"]
        scored = target != self.ignored
        if self.ranks:
            place[~scored] = -1
            greedy = place == 0
        else:
            greedy = (place == target.reshape(place.shape)) & scored.reshape(place.shape)
        self.rows += len(target)
        self.tokens += int(scored.sum())
        self.greedy += int(greedy.sum())
        self.logprob += float(logprob.sum(dtype=np.float64))
        self.entropy += float(entropy[scored].sum(dtype=np.float64))
        return (logprob, greedy, place, entropy) if self.ranks else (logprob, greedy, entropy)

    def packed(self) -> bytes:
        """What another process, which has other rows, adds to its own by ``read``."""
        return _SUMS.pack(self.rows, self.tokens, self.greedy, self.logprob, self.entropy)

    def read(self, file: BinaryIO) -> None:
        """Adds what another process has counted."""
        data = file.read(_SUMS.size)
        if len(data) != _SUMS.size:
            raise CommunicationError("the file of another process ends before its sums do")
        rows, tokens, greedy, logprob, entropy = _SUMS.unpack(data)
        self.rows += rows
        self.tokens += tokens
        self.greedy += greedy
        self.logprob += logprob
        self.entropy += entropy

    def figures(self) -> dict[str, Any]:
        """The summary as numbers."""
        tokens = self.tokens or math.nan
        nll = -self.logprob / tokens
        with np.errstate(over="ignore"):
            perplexity = float(np.exp(nll))
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "mean_nll": nll,
            "perplexity": perplexity,
            "greedy_accuracy": self.greedy / tokens,
            "mean_entropy": self.entropy / tokens,
        }

    def text(self, as_json: bool) -> str:
        """The summary, for people or as JSON, which has no NaN or infinity: null stands for the first."""
        figures = self.figures()
        if as_json:
            named = {math.inf: "inf", -math.inf: "-inf"}
            return json.dumps({k: None if v != v else named.get(v, v) for k, v in figures.items()}, indent=1)
        ignored = self.rows - self.tokens
        lines = [f"tokens           {self.tokens}" + (f" ({ignored} ignored)" if ignored else "")]
        lines += [
            f"{title:<17}{figures[key]:.6g}"
            for title, key in (
                ("mean NLL", "mean_nll"),
                ("perplexity", "perplexity"),
                ("greedy accuracy", "greedy_accuracy"),
                ("mean entropy", "mean_entropy"),
            )
        ]
        return "\n".join(lines)


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number")
    return value


def _positive(text: str) -> float:
    value = _finite(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number above 0")
    return value
