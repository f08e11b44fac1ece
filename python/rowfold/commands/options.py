# SPDX-License-Identifier: MIT
"""Options that several commands take, and the models they describe."""

from __future__ import annotations

import argparse
import re
from typing import Any

from .. import files
from .._lib import Math, Simplify
from ..errors import InvalidArgumentError
from ..filetype import nearest
from ..model import Model
from ..ops import operators
from .columns import Columns, own_columns

DTYPES = ("float32", "float64", "float16", "bfloat16")


def positive(text: str) -> int:
    """A number of rows, features, threads or the like, from 1 on."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number from 1 on")
    return value


def thread_count(text: str) -> int:
    """As many as a model can have: before other contenders have started and been measured."""
    value = positive(text)
    if value >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number from 1 to 2**31 - 1")
    return value


def seconds(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number of seconds above 0")
    return value


def add_model(parser: argparse.ArgumentParser) -> None:
    """How the model runs."""
    group = parser.add_argument_group("model")
    group.add_argument("--device", help="cpu, cuda or cuda:N (the best there is)")
    group.add_argument("--backend", help="force one of those that `rowfold info` lists")
    group.add_argument("--math", choices=[m.name.lower() for m in Math], default="f32", help="of float32 weights (f32)")
    rules = [s.name.lower() for s in Simplify if s.name != "DEFAULT"]
    group.add_argument("--simplify", choices=rules, default="algebraic", help="rewrites allowed (algebraic)")
    group.add_argument("--threads", type=int, help="CPU threads (all cores this process may use)")


def add_weights(parser: argparse.ArgumentParser, required: bool, vectors: bool = True) -> None:
    """Where the weights are; ``vectors``: those of the chain, too."""
    group = parser.add_argument_group("weights")
    group.add_argument(
        "--weights",
        metavar="FILE",
        required=required,
        help=".safetensors, the .index.json of a sharded model, or .npz",
    )
    group.add_argument("--weight", metavar="NAME", help="the tensor (out_features, in_features); needed if several fit")
    group.add_argument(
        "--bias",
        metavar="NAME",
        help="the tensor (out_features,), or 'none' (the .bias beside a .weight, if there is one)",
    )
    if vectors:
        group.add_argument(
            "--vector",
            metavar="VECTOR=NAME",
            action="append",
            default=[],
            help="the tensor (out_features,) of a vector that the chain names",
        )


def add_shards(parser: argparse.ArgumentParser) -> None:
    """Several processes that share the work."""
    parser.add_argument(
        "--shard",
        choices=("batch", "columns"),
        help="share the rows (batch) or the columns of the layer (columns) among the processes that torchrun, mpirun "
        "or srun started, or that RANK and WORLD_SIZE count: one output, progress on rank 0. The processes meet in the "
        "output's folder; columns need PyTorch, whose messages they send",
    )
    parser.add_argument(
        "--shard-timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="to wait for a process that has not begun, or does not answer (600)",
    )


def keywords(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keywords of Model that the options of add_model say."""
    names = ("device", "backend", "math", "simplify", "threads")
    return {name: getattr(arguments, name) for name in names}


def load(arguments: argparse.Namespace, columns: Columns | None = None, **more: Any) -> Model:
    """The model that the command line describes, its weights loaded: all of them, or those of this process."""
    tensors = {t.name: t for t in files.tensors(arguments.weights)}
    matrices = [t.name for t in tensors.values() if len(t.shape) == 2 and t.dtype is not None]
    weight = arguments.weight or _only_matrix(arguments.weights, matrices)
    _require(arguments.weights, "--weight", weight, tensors, matrices)
    rows = tensors[weight].shape[:1]
    fitting = [t.name for t in tensors.values() if t.shape == rows and t.dtype is not None]
    vectors = dict(_pair(text) for text in arguments.vector)
    for vector, name in vectors.items():
        _require(arguments.weights, f"--vector {vector}", name, tensors, fitting)
    named = {"none": None, None: files.BESIDE}.get(arguments.bias, arguments.bias)
    bias = files.bias_of(named, weight, lambda name: tensors[name].shape if name in tensors else None)
    if bias is not None:
        _require(arguments.weights, "--bias", bias, tensors, fitting)
    more |= own_columns(tensors[weight].shape[0], columns) | keywords(arguments)
    return Model.from_file(arguments.weights, arguments.chain, weight=weight, bias=bias, vectors=vectors, **more)


def _require(path: str, option: str, name: str, tensors: dict[str, files.Tensor], fitting: list[str]) -> None:
    """Says which tensors would fit where the one named is not there. Raises InvalidArgumentError."""
    if name in tensors:
        return
    # One that fits and is most like it, or the ones that fit.
    hint = nearest(name, fitting) if fitting else "; none of its tensors has a shape that fits"
    if hint.startswith("; there are"):
        hint = hint.replace("; there are", "; those that fit are")
    elif fitting[1:]:
        hint += f" Those that fit: {_shown(fitting)}"
    raise InvalidArgumentError(f"{path}: {option} is {name!r}, which is not among its {len(tensors)} tensors{hint}")


def _shown(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _only_matrix(path: str, fitting: list[str]) -> str:
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise InvalidArgumentError(
            f"{path}: no tensor could be the weight; expected one of two dimensions of a float type"
        )
    count = len(fitting)
    raise InvalidArgumentError(
        f"{path}: {count} tensors could be the weight; name one with --weight: {_shown(fitting)}"
    )


def _pair(text: str) -> tuple[str, str]:
    vector, equals, name = text.partition("=")
    if not (vector and equals and name):
        raise InvalidArgumentError(f"--vector {text!r}; expected VECTOR=NAME, as in scale=head.scale")
    return vector, name


# What a sentence of the package begins with, and the option that says it here.
_OPTIONS = ("in_features", "out_features", "dtype", "math", "simplify", "device", "threads", "backend", "batch")
_IN_OPTIONS = (
    (re.compile(rf"^({'|'.join(_OPTIONS)}) is "), lambda m: f"--{m[1].replace('_', '-')} is "),
    (
        re.compile(r"^the model has no weights yet, and its sizes are theirs to say; .*"),
        lambda m: "the sizes are open; give --weights, --in-features and --out-features, or linear(IN, OUT)",
    ),
    (
        re.compile(r'^vector "(.*)" of the chain was not given$'),
        lambda m: f"{m[0]}; --vector {m[1]}=NAME says it",
    ),
    (
        re.compile(r"^the row input #(\S+) is missing; expected \S+=, (a \w+ for each row)"),
        lambda m: f"the row input #{m[1]} is missing; --row {m[1]}=FILE gives it, {m[2]}",
    ),
    (re.compile(r"expected None \(all cores\), or 1 to"), lambda m: "expected 1 to"),
    (re.compile(r", or None for what the chain says"), lambda m: ""),
    (re.compile(r"rowfold\.ops\.operators\(\) lists them"), lambda m: f"there are {' '.join(_names())}"),
)


def _names() -> list[str]:
    return [row.name for row in operators() if row.name != "linear"]


def in_options(message: str) -> str:
    """A sentence of the package with the names that the command line has."""
    for pattern, text in _IN_OPTIONS:
        message = pattern.sub(text, message)
    return message
