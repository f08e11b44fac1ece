# SPDX-License-Identifier: MIT
"""Options that several commands take, and the models they describe."""

from __future__ import annotations

import argparse
from typing import Any

from .. import files
from .._lib import Math, Simplify
from ..errors import InvalidArgumentError
from ..model import Model

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


def add_model(parser: argparse.ArgumentParser) -> None:
    """How the model runs."""
    group = parser.add_argument_group("model")
    group.add_argument("--device", help="cpu, cuda or cuda:N (the best there is)")
    group.add_argument("--backend", help="force one of those that `rowfold info` lists")
    group.add_argument("--math", choices=[m.name.lower() for m in Math], default="f32", help="of float32 weights (f32)")
    rules = [s.name.lower() for s in Simplify if s.name != "DEFAULT"]
    group.add_argument("--simplify", choices=rules, default="algebraic", help="rewrites allowed (algebraic)")
    group.add_argument("--threads", type=int, help="CPU threads (all cores this process may use)")


def add_weights(parser: argparse.ArgumentParser, required: bool) -> None:
    """Where the weights are."""
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
    group.add_argument(
        "--vector",
        metavar="VECTOR=NAME",
        action="append",
        default=[],
        help="the tensor (out_features,) of a vector that the chain names",
    )


def keywords(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keywords of Model that the options of add_model say."""
    names = ("device", "backend", "math", "simplify", "threads")
    return {name: getattr(arguments, name) for name in names}


def load(arguments: argparse.Namespace, **more: Any) -> Model:
    """The model that the command line describes, its weights loaded."""
    tensors = {t.name: t for t in files.tensors(arguments.weights)}
    weight = arguments.weight or _only_matrix(arguments.weights, tensors)
    vectors = dict(_pair(text) for text in arguments.vector)
    bias = _bias(arguments.bias, weight, tensors)
    return Model.from_file(
        arguments.weights, arguments.chain, weight=weight, bias=bias, vectors=vectors, **keywords(arguments), **more
    )


def _only_matrix(path: str, tensors: dict[str, files.Tensor]) -> str:
    fitting = [t.name for t in tensors.values() if len(t.shape) == 2 and t.dtype is not None]
    if len(fitting) == 1:
        return fitting[0]
    shown = ", ".join(fitting[:8]) + (", ..." if len(fitting) > 8 else "")
    raise InvalidArgumentError(f"{path}: {len(fitting)} tensors could be the weight; name one with --weight: {shown}")


def _bias(named: str | None, weight: str, tensors: dict[str, files.Tensor]) -> str | None:
    """The tensor beside the weight where PyTorch keeps a bias, unless another or none was asked for."""
    if named is not None:
        return None if named == "none" else named
    head, dot, tail = weight.rpartition(".")
    beside = f"{head}{dot}bias" if tail == "weight" else ""
    fits = beside in tensors and tensors[beside].shape == tensors[weight].shape[:1] if weight in tensors else False
    return beside if fits else None


def _pair(text: str) -> tuple[str, str]:
    vector, equals, name = text.partition("=")
    if not (vector and equals and name):
        raise InvalidArgumentError(f"--vector {text!r}; expected VECTOR=NAME, as in scale=head.scale")
    return vector, name
