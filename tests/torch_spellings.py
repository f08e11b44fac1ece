# SPDX-License-Identifier: MIT
"""Random PyTorch modules for a chain: each operator in one of the many ways people write it.

Independent of the package's own table: Python source, which torch itself runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from hypothesis import strategies as st
from oracle import OPS, REDUCTIONS, parse
from torch import nn

# {a} is the parameter, {n} and {m} are both as numbers, {x} the value, {d} the last dimension as 1 or -1. Operators
# that people write by PyTorch's own name alone need no line: see ways_of.
WAYS: dict[str, list[str]] = {
    "mul": ["{x} * {a}", "{a} * {x}", "torch.mul({x}, {a})", "{x}.mul({a})", "torch.multiply({x}, {a})"],
    "add": ["{x} + {a}", "{a} + {x}", "torch.add({x}, {a})", "{x}.add({a})", "{x} - (-{a})"],
    "sub": ["{x} - {a}", "torch.sub({x}, {a})", "{x}.sub({a})", "torch.subtract({x}, {a})", "-({a} - {x})"],
    "div": ["{x} / {a}", "torch.div({x}, {a})", "{x}.div({a})", "torch.true_divide({x}, {a})"],
    "minimum": ["torch.minimum({x}, {t})", "{x}.minimum({t})", "torch.min({x}, {t})", "{x}.clamp(max={a})"],
    "maximum": ["torch.maximum({x}, {t})", "{x}.maximum({t})", "{x}.max({t})", "torch.clamp_min({x}, {a})"],
    "neg": ["-{x}", "torch.neg({x})", "{x}.neg()", "torch.negative({x})", "0 - {x}"],
    "abs": ["abs({x})", "torch.abs({x})", "{x}.abs()", "{x}.absolute()"],
    "square": ["{x} ** 2", "torch.square({x})", "{x}.square()", "{x} * {x}", "{x}.pow(2)", "torch.pow({x}, 2.0)"],
    "sqrt": ["torch.sqrt({x})", "{x}.sqrt()", "{x} ** 0.5", "{x}.pow(0.5)"],
    "reciprocal": ["1 / {x}", "torch.reciprocal({x})", "{x}.reciprocal()", "{x} ** -1"],
    "sin": ["torch.sin({x})", "{x}.sin()", "torch.sin_({x} + 0)"],
    "cos": ["torch.cos({x})", "{x}.cos()", "{x}.add(0).cos_()"],
    "relu": ["F.relu({x})", "torch.relu({x})", "{x}.relu()", "nn.ReLU()", "F.relu({x} + 0, inplace=True)"],
    "leaky_relu": ["F.leaky_relu({x}, {n})", "F.leaky_relu({x}, negative_slope={n})", "nn.LeakyReLU({n})"],
    "elu": ["F.elu({x}, {n})", "F.elu({x}, alpha={n})", "nn.ELU({n})"],
    "gelu": ["F.gelu({x})", "nn.GELU()", "F.gelu({x}, approximate='none')"],
    "gelu(tanh)": ["F.gelu({x}, approximate='tanh')", "nn.GELU(approximate='tanh')", "nn.GELU('tanh')"],
    "silu": ["F.silu({x})", "nn.SiLU()", "{x} * torch.sigmoid({x})", "{x}.sigmoid() * {x}"],
    "softplus": ["F.softplus({x}, {n}, {m})", "F.softplus({x}, beta={n}, threshold={m})", "nn.Softplus({n}, {m})"],
    "sigmoid": ["torch.sigmoid({x})", "{x}.sigmoid()", "F.sigmoid({x})", "nn.Sigmoid()", "torch.special.expit({x})"],
    "clamp": ["torch.clamp({x}, {n}, {m})", "{x}.clamp({n}, {m})", "torch.clip({x}, min={n}, max={m})"],
    "hardtanh": ["F.hardtanh({x}, {n}, {m})", "nn.Hardtanh({n}, {m})", "F.hardtanh({x}, min_val={n}, max_val={m})"],
    "softcap": ["{n} * torch.tanh({x} / {n})", "torch.tanh({x} / {n}) * {n}"],
    "add_saved": ["{x} + {s}", "{s} + {x}", "torch.add({x}, {s})", "{s}.add({x})"],
    "mul_saved": ["{x} * {s}", "{s} * {x}", "torch.mul({s}, {x})", "{x}.mul({s})"],
    "sum": ["torch.sum({x}, {d}, keepdim={k})", "{x}.sum({d}, {k})", "{x}.sum(dim=({d},), keepdim={k})"],
    "mean": ["torch.mean({x}, dim={d}, keepdim={k})", "{x}.mean({d}, keepdim={k})", "{x}.mean(axis={d}, keepdims={k})"],
    "max": ["torch.max({x}, {d}, keepdim={k})[0]", "{x}.max(dim={d}, keepdim={k}).values", "{x}.amax({d}, {k})"],
    "min": ["torch.min({x}, dim={d}, keepdim={k}).values", "{x}.min({d}, {k})[0]", "torch.amin({x}, {d}, {k})"],
}
WAYS["argmax"] = ["{x}.argmax({d}, {k})", "torch.argmax({x}, dim={d}, keepdim={k})", "{x}.max({d}, {k}).indices"]
WAYS["argmin"] = ["{x}.argmin({d}, {k})", "torch.argmin({x}, dim={d}, keepdim={k})", "torch.min({x}, {d}, {k})[1]"]
for _kind in ("var", "std"):
    WAYS[_kind] = [
        f"torch.{_kind}({{x}}, dim={{d}}, correction={{n}}, keepdim={{k}})",
        f"{{x}}.{_kind}({{d}}, correction={{n}}, keepdim={{k}})",
    ]
LINEAR = ["self.linear(x)", "F.linear(x, self.linear.weight, self.linear.bias)"]
LINEAR += ["x @ self.linear.weight.t() + self.linear.bias", "torch.matmul(x, self.linear.weight.T) + self.linear.bias"]
LINEAR += ["torch.addmm(self.linear.bias, x, self.linear.weight.transpose(0, 1))"]
LINEAR_WITHOUT_BIAS = ["self.linear(x)", "F.linear(x, self.linear.weight)", "x @ self.linear.weight.mT"]
LINEAR_WITHOUT_BIAS += ["torch.mm(x, self.linear.weight.permute(1, 0))", "x.matmul(self.linear.weight.t())"]
NOTHING = ["nn.Identity()", "nn.Dropout(0.3)", "{x}.contiguous()", "F.dropout({x}, training=False)", "{x}.clone()"]


@cache
def ways_of(name: str) -> list[str]:
    """The line in WAYS, or a function, a method and a module of torch that bear an operator's name."""
    if name in WAYS:
        return WAYS[name]
    folds = name in REDUCTIONS
    count = len((REDUCTIONS if folds else OPS)[name].params)
    rest = ["dim={d}", "keepdim={k}"] if folds else ["{n}", "{m}"][:count]
    if folds and count:
        return []
    spaces = {"torch": torch, "F": nn.functional, "torch.special": torch.special, "torch.linalg": torch.linalg}
    found = [f"{space}.{name}({', '.join(['{x}', *rest])})" for space, at in spaces.items() if hasattr(at, name)]
    found += [f"{{x}}.{name}({', '.join(rest)})"] if hasattr(torch.Tensor, name) else []
    modules = [] if folds else [module for module in dir(nn) if module.lower() == name.replace("_", "")]
    return found + [f"nn.{module}({', '.join(rest)})" for module in modules]


def is_written(chain: str) -> bool:
    """Whether there is a way to write each of the chain's operators; Writer itself writes save."""
    return all(op.name == "save" or ways_of(op.name) for op in parse(chain))


def _literal(value: float) -> str:
    return f"float('{value!r}')" if value in (float("inf"), float("-inf")) else repr(value)


class Writer:
    """Writes a forward for a chain; `draw` chooses among the ways."""

    def __init__(self, draw: st.DrawFn, dtype: torch.dtype) -> None:
        self.draw, self.dtype = draw, dtype
        self.modules: dict[str, str] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        self.lines: list[str] = []

    def _tensor(self, value: float | str) -> str:
        if isinstance(value, str):
            return f"self.{value}"
        name = f"c{len(self.buffers)}"
        self.buffers[name] = torch.tensor(value, dtype=self.dtype if self.dtype.itemsize > 2 else torch.float32)
        return f"self.{name}"

    def _param(self, value: float | str) -> str:
        if isinstance(value, str) or self.draw(st.booleans()):
            return self._tensor(value)
        return f"({_literal(value)})"

    def say(self, way: str, params: tuple[float | str, ...] = (), keep: bool = True) -> None:
        """One line, x = ..., or a module called by name."""
        numbers = [_literal(p) for p in params if not isinstance(p, str)]
        names = {
            "x": "x",
            "s": "s",
            "n": numbers[0] if numbers else "",
            "m": numbers[1] if len(numbers) > 1 else "",
            "k": str(keep),
            "d": str(self.draw(st.sampled_from([1, -1]))),
        }
        if "{a}" in way:
            names["a"] = self._param(params[0])
        if "{t}" in way:
            names["t"] = self._tensor(params[0])
        text = way.format(**names)
        if way.startswith("nn."):
            name = f"m{len(self.modules)}"
            self.modules[name] = text
            text = f"self.{name}(x)"
        self.lines.append(f"x = {text}")

    def write(self, chain: str, bias: bool) -> None:
        """The whole forward."""
        ops = parse(chain)
        self.lines.append("x = " + self.draw(st.sampled_from(LINEAR if bias else LINEAR_WITHOUT_BIAS)))
        keep, live = True, False
        folds = [i for i, op in enumerate(ops) if op.name in REDUCTIONS]
        for i, op in enumerate(ops):
            if op.name == "save":
                self.lines.append("s = x")
                live = True
                continue
            ways = ways_of(op.name)
            if live:  # these work in place on, or save, a value of their own
                ways = [w for w in ways if w.count("{x}") < 2 and "inplace" not in w]
            if op.name == "hardtanh" and op.params[0] == op.params[1]:  # which nn.Hardtanh alone refuses
                ways = [w for w in ways if not w.startswith("nn.")]
            live = live and not op.name.endswith("_saved")
            if folds and i == folds[-1]:
                keep = self.draw(st.booleans())
            self.say(self.draw(st.sampled_from(ways)), op.params, keep)
            if not live and keep and self.draw(st.integers(0, 7)) == 0:
                self.say(self.draw(st.sampled_from(NOTHING)))
        if not keep and self.draw(st.booleans()):
            self.lines.append("x = " + self.draw(st.sampled_from(["x.unsqueeze(1)", "x[:, None]", "x[..., None]"])))

    def source(self) -> str:
        """Python for a class Model."""
        init = [f"self.{name} = {text}" for name, text in self.modules.items()]
        body = ["def __init__(self, linear, buffers):", "    super().__init__()", "    self.linear = linear"]
        body += ["    for name, value in buffers.items():", "        self.register_buffer(name, value)"]
        body += [f"    {line}" for line in init]
        body += ["def forward(self, x):", *(f"    {line}" for line in self.lines), "    return x"]
        return "class Model(nn.Module):\n" + "\n".join(f"    {line}" for line in body)

    def module(self, weight: torch.Tensor, bias: torch.Tensor | None, vectors: Mapping[str, torch.Tensor]) -> nn.Module:
        """The module, in eval mode, with these weights."""
        scope: dict[str, object] = {"torch": torch, "nn": nn, "F": nn.functional}
        exec(compile(self.source(), "<a random module>", "exec"), scope)
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
        with torch.no_grad():
            linear.weight.copy_(weight)
            if bias is not None:
                linear.bias.copy_(bias)
        model = scope["Model"](linear, {**self.buffers, **vectors}).eval()
        return model.requires_grad_(False)


def to_torch(stored: np.ndarray, dtype: str) -> torch.Tensor:
    """Stored values as a tensor of the same bits."""
    if dtype == "bfloat16":
        return torch.from_numpy(stored.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(stored.copy())


def to_stored(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    """The way back."""
    tensor = tensor.detach().cpu()
    return tensor.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else tensor.numpy()
