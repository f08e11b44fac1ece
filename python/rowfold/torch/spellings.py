# SPDX-License-Identifier: MIT
"""The table: each spelling of PyTorch and the operators of the chain that it means.

A row has the chain's text, where ``{name}`` is an argument; the arguments with their defaults; the names under which
torch, torch.nn.functional, torch.special and torch.Tensor have it (a trailing ``_`` works in place); the classes of
torch.nn, whose attributes are the arguments; and Python's operators. Rows whose text begins with ``@`` are built by the
function of that name in one of the rules*.py, because what they mean depends on what they are applied to.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Spelling:
    """One row."""

    text: str
    arguments: str = ""
    names: str = ""
    modules: str = ""
    operators: str = ""
    meaning: str = ""
    inputs: int = 1  # tensors that a module of this row is called with
    sizes: bool = False  # its arguments may be sizes that are known when the module runs

    def parameters(self) -> list[tuple[str, Any]]:
        """(name, default) of each argument behind the first, which is the value itself; REQUIRED for no default."""
        found: list[tuple[str, Any]] = []
        for part in filter(None, self.arguments.split(", ")):
            name, equals, default = part.partition("=")
            found.append((name, _DEFAULTS[default] if equals and default in _DEFAULTS else _number(default, equals)))
        return found


REQUIRED = object()
_DEFAULTS: dict[str, Any] = {"None": None, "False": False, "True": True, "none": "none", "mean": "mean"}


def _number(text: str, given: str) -> Any:
    return float(text) if given else REQUIRED


_LOSS = "target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction=mean"
_REDUCTION = "dim=None, keepdim=False, dtype=None"

SPELLINGS = (
    # The linear layer.
    Spelling("@linear", "weight, bias=None", "linear", "Linear", meaning="linear"),
    Spelling("@matmul", "other", "matmul mm", operators="@", meaning="linear, of a parameter or its transpose"),
    Spelling("@addmm", "mat1, mat2, beta=1, alpha=1", "addmm", meaning="linear, with a bias"),
    # Arithmetic with a number, a 0-d or per-feature tensor, or an earlier value.
    Spelling("@add", "other, alpha=1", "add add_", operators="+ +=", meaning="add, add_saved, mul(2)"),
    Spelling(
        "@sub", "other, alpha=1", "sub sub_ subtract subtract_", operators="- -=", meaning="sub; neg and add, add_saved"
    ),
    Spelling("@rsub", "other, alpha=1", "rsub", meaning="neg and add"),
    Spelling("@mul", "other", "mul mul_ multiply multiply_", operators="* *=", meaning="mul, mul_saved, square"),
    Spelling(
        "@div",
        "other, rounding_mode=None",
        "div div_ divide divide_ true_divide true_divide_",
        operators="/ /=",
        meaning="div; reciprocal and mul",
    ),
    Spelling(
        "@pow",
        "exponent",
        "pow pow_",
        operators="** **=",
        meaning="square, sqrt, reciprocal, mul_saved: exponents -2, -1, -0.5, 0.5, 1, 2, 3, 4",
    ),
    Spelling("@minimum", "other", "minimum", meaning="minimum"),
    Spelling("@maximum", "other", "maximum", meaning="maximum"),
    Spelling("@clamp", "min=None, max=None", "clamp clamp_ clip clip_", meaning="clamp, maximum, minimum"),
    Spelling("@clamp_min", "min", "clamp_min clamp_min_", meaning="clamp, maximum"),
    Spelling("@clamp_max", "max", "clamp_max clamp_max_", meaning="clamp, minimum"),
    # Elementwise.
    Spelling("neg", "", "neg neg_ negative negative_", operators="neg"),
    Spelling("abs", "", "abs abs_ absolute absolute_", operators="abs"),
    Spelling("square", "", "square square_"),
    Spelling("sqrt", "", "sqrt sqrt_"),
    Spelling("sqrt | reciprocal", "", "rsqrt rsqrt_"),
    Spelling("exp", "", "exp exp_"),
    Spelling("log", "", "log log_"),
    Spelling("log1p", "", "log1p log1p_"),
    Spelling("reciprocal", "", "reciprocal reciprocal_"),
    Spelling("@wave sin", "", "sin sin_", meaning="sin, of each logit, on a CPU"),
    Spelling("@wave cos", "", "cos cos_", meaning="cos, of each logit, on a CPU"),
    Spelling("relu", "inplace=False", "relu relu_", "ReLU"),
    Spelling("hardtanh(0, 6)", "inplace=False", "relu6", "ReLU6"),
    Spelling(
        "leaky_relu({negative_slope})", "negative_slope=0.01, inplace=False", "leaky_relu leaky_relu_", "LeakyReLU"
    ),
    Spelling("leaky_relu({weight})", "weight", "prelu", "PReLU"),
    Spelling("elu({alpha})", "alpha=1.0, inplace=False", "elu elu_", "ELU"),
    Spelling("elu(1.6732632423543772848) | mul(1.0507009873554804934)", "inplace=False", "selu selu_", "SELU"),
    Spelling("@gelu", "approximate=none", "gelu", "GELU", meaning="gelu, gelu(tanh)"),
    Spelling("silu", "inplace=False", "silu", "SiLU"),
    Spelling("mish", "inplace=False", "mish", "Mish"),
    Spelling("softplus({beta}, {threshold})", "beta=1, threshold=20", "softplus", "Softplus"),
    Spelling("sigmoid", "", "sigmoid sigmoid_ expit", "Sigmoid"),
    Spelling("logsigmoid", "", "logsigmoid", "LogSigmoid"),
    Spelling("tanh", "", "tanh tanh_", "Tanh"),
    Spelling(
        "hardtanh({min_val}, {max_val})", "min_val=-1, max_val=1, inplace=False", "hardtanh hardtanh_", "Hardtanh"
    ),
    Spelling("hardswish", "inplace=False", "hardswish", "Hardswish"),
    Spelling("hardsigmoid", "inplace=False", "hardsigmoid", "Hardsigmoid"),
    # Choices.
    *(
        Spelling(f"@compare {sign}", "other", names, operators=sign, meaning="the condition of where")
        for sign, names in ((">", "gt greater"), (">=", "ge greater_equal"), ("<", "lt less"), ("<=", "le less_equal"))
    ),
    Spelling("@where", "input, other", "where", meaning="clamp, leaky_relu, by a comparison with a number"),
    Spelling("@threshold", "threshold, value, inplace=False", "threshold", "Threshold", meaning="clamp, if equal"),
    # In eval mode.
    Spelling(
        "@dropout",
        "p=0.5, training=True, inplace=False",
        "dropout alpha_dropout feature_alpha_dropout",
        meaning="nothing, in eval mode",
    ),
    Spelling("@dropout_module", "", "", "Dropout AlphaDropout FeatureAlphaDropout", meaning="nothing, in eval mode"),
    Spelling(
        "@batch_norm",
        "running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5",
        "batch_norm",
        meaning="mul and add of a vector, in eval mode",
    ),
    Spelling("@batch_norm_module", "", "", "BatchNorm1d", meaning="mul and add of a vector, in eval mode"),
    # Reductions of the last dimension.
    Spelling("@reduce sum", _REDUCTION, "sum"),
    Spelling("@reduce mean", _REDUCTION, "mean"),
    Spelling("@reduce logsumexp", _REDUCTION, "logsumexp"),
    Spelling("@reduce max", _REDUCTION, "amax"),
    Spelling("@reduce min", _REDUCTION, "amin"),
    Spelling("@variance var", "dim=None, unbiased=None, keepdim=False, correction=None", "var"),
    Spelling("@variance std", "dim=None, unbiased=None, keepdim=False, correction=None", "std"),
    Spelling(
        "@norm",
        "p=None, dim=None, keepdim=False, dtype=None",
        "norm vector_norm",
        meaning="abs or square, sum or max, sqrt: orders 1, 2 and inf",
    ),
    Spelling("@extreme max", "dim=None, keepdim=False", "max", meaning="max and argmax; maximum of two"),
    Spelling("@extreme min", "dim=None, keepdim=False", "min", meaning="min and argmin; minimum of two"),
    # A column of the last dimension, by the number it has or for each row.
    Spelling("@best argmax", "dim=None, keepdim=False", "argmax", meaning="argmax"),
    Spelling("@best argmin", "dim=None, keepdim=False", "argmin", meaning="argmin"),
    Spelling("@topk", "k, dim=None, largest=True, sorted=True", "topk", meaning="topk, of at most 64"),
    Spelling(
        "@log_softmax",
        "dim=None, _stacklevel=3, dtype=None",
        "log_softmax",
        meaning="logprob, of a column for each row: behind it gather, take_along_dim or nll_loss",
    ),
    Spelling("@log_softmax", "dim=None", "", "LogSoftmax", meaning="the same"),
    Spelling("@gather", "dim, index, sparse_grad=False", "gather", meaning="pick, logprob: a column for each row"),
    Spelling("@take", "indices, dim=None", "take_along_dim", meaning="pick, logprob: a column for each row"),
    Spelling(
        "@cross_entropy",
        f"{_LOSS}, label_smoothing=0.0",
        "cross_entropy",
        "CrossEntropyLoss",
        meaning="logprob, of class indices",
        inputs=2,
    ),
    Spelling(
        "@nll_loss", _LOSS, "nll_loss", "NLLLoss", meaning="logprob, of a log_softmax and class indices", inputs=2
    ),
    # Shapes and types.
    Spelling("@same", "memory_format=None", "contiguous clone", meaning="nothing"),
    Spelling("@detach", "", "detach", "Identity", meaning="nothing"),
    Spelling("@cast float32", "memory_format=None", "float"),
    Spelling("@cast float64", "memory_format=None", "double"),
    Spelling("@cast float16", "memory_format=None", "half"),
    Spelling("@cast bfloat16", "memory_format=None", "bfloat16"),
    Spelling(
        "@to",
        "dtype=None, second=None, device=None, non_blocking=False",
        "to type",
        meaning="the type of the result or the input",
    ),
    Spelling("@type_as", "other", "type_as", meaning="the type of the result or the input"),
    Spelling("@size", "dim=None", "size", meaning="a size, if it is the weight's; a view's argument", sizes=True),
    Spelling("@view", "*sizes", "view reshape", meaning="the leading dimensions as one: (-1, width)", sizes=True),
    Spelling("@flatten", "start_dim=0, end_dim=-1", "flatten", meaning="the leading dimensions as one: (0, -2)"),
    Spelling("@unsqueeze", "dim", "unsqueeze", meaning="the dimension that keepdim=False dropped"),
    Spelling("@squeeze", "dim=None", "squeeze", meaning="as keepdim=False"),
)

OPERATORS: dict[str, Callable[..., Any]] = {
    "@": operator.matmul,
    "+": operator.add,
    "+=": operator.iadd,
    "-": operator.sub,
    "-=": operator.isub,
    "*": operator.mul,
    "*=": operator.imul,
    "/": operator.truediv,
    "/=": operator.itruediv,
    "**": operator.pow,
    "**=": operator.ipow,
    "neg": operator.neg,
    "abs": operator.abs,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_NAMESPACES = (torch, nn.functional, torch.special, torch.linalg)


@cache
def by_function() -> dict[Any, Spelling]:
    """The row of each function; a name that PyTorch's version lacks is left out."""
    found: dict[Any, Spelling] = {}
    for row in SPELLINGS:
        for name in row.names.split():
            for space in _NAMESPACES:
                if hasattr(space, name) and callable(getattr(space, name)):
                    found[getattr(space, name)] = row
        for sign in row.operators.split():
            found[OPERATORS[sign]] = row
    return found


@cache
def by_method() -> dict[str, Spelling]:
    """The row of each method of torch.Tensor."""
    return {name: row for row in SPELLINGS for name in row.names.split() if hasattr(torch.Tensor, name)}


@cache
def by_module() -> dict[type, Spelling]:
    """The row of each class of torch.nn."""
    return {getattr(nn, name): row for row in SPELLINGS for name in row.modules.split()}


def page_rows() -> list[tuple[str, str, str]]:
    """The table of doc/pytorch.md: what it means, functions and methods, modules and operators."""
    rows = []
    for row in SPELLINGS:
        meaning = row.meaning or ("the type of the result or the input" if "@cast" in row.text else row.text)
        meaning = meaning.replace("@reduce ", "").replace("@variance ", "").replace("{", "").replace("}", "")
        names = [name for name in row.names.split() if not name.endswith("_")]
        others = [f"nn.{name}" for name in row.modules.split()]
        others += [sign for sign in row.operators.split() if sign not in row.names.split()]
        rows.append((meaning, " ".join(names), " ".join(others)))
    return rows
