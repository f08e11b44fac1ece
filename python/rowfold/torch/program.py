# SPDX-License-Identifier: MIT
"""A fused forward as plain data: the chain's steps, where their parameters come from, and what the output looks like.

It is written as JSON, so that an exported graph holds all of it. Nothing here knows the module that it came from.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import torch

from ..errors import ArgumentTypeError, FuseError, InvalidArgumentError
from ..model import Model
from ..ops import RESULT, Chain, Op, operator
from .losses import reduced, row_losses
from .values import BatchNorm, Column, ColumnTensor, Leaf, Param, Source, Step

DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Branch:
    """The steps of one result behind those that all share."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Output:
    """A tensor that the forward returns, of the results with these numbers.

    With a ``reduction`` it is a cross entropy of them: of the log-probability, and with label smoothing of the
    logsumexp and the mean.
    """

    branches: tuple[int, ...]
    dropped: bool
    flat: bool
    reduction: str = ""
    ignored: int = -100
    smoothing: float = 0.0
    column: int = -1
    weight: Leaf | None = None
    part: int = 0  # 1 of the columns of topk


@dataclass(frozen=True)
class Program:
    """A chain whose parameters are tensors yet to be given, the leaves; ``names`` are theirs, for messages.

    ``cast`` is the dtype the input is cast to, "weight" for the weight's, or empty. ``dims`` is how many dimensions the
    input must have, or None. ``folded``: there is a reduction. ``dropped``: its column is no dimension of the output.
    ``borrow``: 16-bit weights on a GPU are used where they are; texts of older programs do not say, and mean it.
    ``flat``: the leading dimensions of the output are one. ``sizes``: those of the weight, where a number of the
    forward is one of them. ``owned``: the weight is computed from parameters, so that nobody else writes to it and it
    is used where it is.

    A program with ``outputs`` returns those, and takes a tensor for each of ``columns``. ``steps`` are then what its
    results share: all of a single one, which has no branch.
    """

    names: tuple[str, ...]
    weight: Leaf
    bias: Leaf | None
    steps: tuple[Step, ...]
    cast: str
    dims: int | None
    dropped: bool
    folded: bool
    options: tuple[tuple[str, Any], ...]
    borrow: bool = True
    flat: bool = False
    sizes: tuple[int, ...] = ()
    owned: bool = False
    branches: tuple[Branch, ...] = ()
    outputs: tuple[Output, ...] = ()
    columns: tuple[ColumnTensor, ...] = ()

    @cached_property
    def text(self) -> str:
        """The program as JSON."""
        return json.dumps(_encode(self))

    def result_dtype(self, leaves: Sequence[torch.Tensor]) -> torch.dtype:
        """The dtype that PyTorch would give the output. The leaves' values are not read."""
        return self._types(_Types(_evaluate(self.weight, leaves).dtype), self.steps, leaves).dtype

    def output_dtypes(self, leaves: Sequence[torch.Tensor]) -> list[torch.dtype]:
        """The same of each of ``outputs``."""
        trunk = self._types(_Types(_evaluate(self.weight, leaves).dtype), self.steps, leaves)
        branches = [self._types(copy.copy(trunk), branch.steps, leaves).dtype for branch in self.branches]
        results = branches or [trunk.dtype]
        return [torch.int64 if output.part else results[output.branches[0]] for output in self.outputs]

    def width(self, output: Output) -> int:
        """How many columns an output has."""
        steps = self.branches[output.branches[0]].steps if self.branches else self.steps
        params = steps[-1].params if steps and steps[-1].op == "topk" else (1,)
        return int(params[0]) if isinstance(params[0], (int, float)) else 1

    def _types(self, types: _Types, steps: tuple[Step, ...], leaves: Sequence[torch.Tensor]) -> _Types:
        for step in steps:
            for param in step.params:
                if isinstance(param, Leaf):
                    types.promote(_evaluate(param, leaves), self.names[param.index])
            types.step(step)
        return types

    @property
    def outline(self) -> list[str]:
        """The operators, those of several results in one entry with commas."""
        names = [step.op for step in self.steps]
        if self.branches:
            results = [" | ".join(step.op for step in branch.steps) for branch in self.branches]
            names.append(", ".join(f"({r})" if " | " in r else r for r in results))
        return names

    def load(self, leaves: Sequence[torch.Tensor]) -> Loaded:
        """The chain for these tensors. Raises FuseError where they do not fit it."""
        with torch.no_grad():
            return _load(self, leaves)


@lru_cache(maxsize=256)
def parse(text: str) -> Program:
    """The program of a JSON text."""
    program = _decode(json.loads(text))
    assert isinstance(program, Program)
    return program


_KINDS = (Leaf, BatchNorm, Column, ColumnTensor, Step, Branch, Output, Program)
_CLASSES = {kind.__name__: kind for kind in _KINDS}


def _encode(value: Any) -> Any:
    if type(value).__name__ in _CLASSES:
        return {"": type(value).__name__, **{k: _encode(getattr(value, k)) for k in value.__dataclass_fields__}}
    return [_encode(v) for v in value] if isinstance(value, tuple) else value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return _CLASSES[value.pop("")](**{k: _decode(v) for k, v in value.items()})
    return tuple(_decode(v) for v in value) if isinstance(value, list) else value


@dataclass(frozen=True, eq=False)
class Loaded:
    """The program with the values that its tensors have now."""

    chain: Chain
    weight: torch.Tensor
    bias: torch.Tensor | None
    vectors: dict[str, torch.Tensor]
    x_dtype: torch.dtype | None  # None: any that casts exactly to the weights'
    y_dtype: torch.dtype | None  # None: what the library gives
    least_dims: int

    def like(self, other: Loaded) -> bool:
        """Whether a model of one takes the other's tensors: it does where only their values differ."""
        return (
            self.chain == other.chain
            and self._kinds() == other._kinds()
            and (self.x_dtype, self.y_dtype, self.least_dims) == (other.x_dtype, other.y_dtype, other.least_dims)
        )

    def _kinds(self) -> list[Any]:
        tensors = {"weight": self.weight, "bias": self.bias, **self.vectors}
        return [t if t is None else (name, t.dtype, t.shape, t.device) for name, t in tensors.items()]

    def model(self, options: tuple[tuple[str, Any], ...], columns: Mapping[str, int] | None = None) -> Model:
        """A Model for this chain, without its weights; of a shard ``columns`` says which it has."""
        device = self.weight.device
        place = "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
        dtype, y_dtype = NAMES[self.weight.dtype], None if self.y_dtype is None else NAMES[self.y_dtype]
        return Model(self.chain, dtype=dtype, y_dtype=y_dtype, device=place, **{**dict(options), **(columns or {})})


def _load(program: Program, leaves: Sequence[torch.Tensor]) -> Loaded:
    weight = _evaluate(program.weight, leaves)
    name = program.names[program.weight.index]
    if weight.ndim != 2:
        raise FuseError(f"the weight {name} has shape {tuple(weight.shape)}; expected (out_features, in_features)")
    if program.sizes and tuple(weight.shape) != program.sizes:
        raise FuseError(
            f"the weight {name} has shape {tuple(weight.shape)}, but the forward was fused with numbers of "
            f"{program.sizes}; fuse it anew"
        )
    if weight.dtype not in NAMES:
        raise FuseError(f"the weight {name} has dtype {weight.dtype}; expected one of {', '.join(DTYPES)}")
    writer = _Writer(program, leaves, weight)
    for step in program.steps:
        writer.step(step)
    for i, branch in enumerate(program.branches):
        writer.branch(branch, i == 0)
    bias = None if program.bias is None else _evaluate(program.bias, leaves).detach()
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
        raise FuseError(
            f"the bias has shape {tuple(bias.shape)} and dtype {bias.dtype}; expected {tuple(weight.shape[:1])} and "
            f"{weight.dtype}, the weight's"
        )
    if program.cast not in ("", "weight", NAMES[weight.dtype]):
        raise FuseError(f"the input is cast to {program.cast}, but the weight {name} has dtype {weight.dtype}")
    chain = Chain(writer.ops)
    try:
        str(chain)  # which validates it
    except ValueError as error:
        raise FuseError(f"the chain is not one that rowfold computes: {error}") from error
    return Loaded(
        chain=chain,
        weight=weight.detach(),
        bias=bias,
        vectors=writer.vectors,
        x_dtype=None if program.cast else weight.dtype,
        y_dtype=writer.types.dtype if not program.outputs and writer.types.dtype in NAMES else None,
        least_dims=writer.least_dims,
    )


class _Types:
    """Follows the dtype that PyTorch would give each value.

    It refuses where the chain, which is computed in one type and rounded once, would not give the same.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.weight = self.dtype = self.saved = dtype
        self.compute = torch.float64 if dtype is torch.float64 else torch.float32
        self.rounds = ""  # a cast that must be the last step

    def step(self, step: Step) -> None:
        if self.rounds:
            raise FuseError(
                f"cannot fuse: {self.rounds} stands before {step.op}, but a chain of {NAMES[self.weight]} weights is "
                f"computed in {NAMES[self.compute]} and rounded once, at the end"
            )
        if step.op == "cast":
            dtype = self.weight if step.dtype == "weight" else DTYPES[step.dtype]
            if dtype not in (self.dtype, self.compute):
                self.rounds = f"the cast to {NAMES[dtype]}"
            self.dtype = dtype
        elif operator(step.op).gives_index:
            self.dtype = torch.int64
        elif step.op == "save":
            self.saved = self.dtype
        elif step.op.endswith("_saved"):
            self.dtype = torch.promote_types(self.dtype, self.saved)

    def promote(self, vector: torch.Tensor, name: str) -> None:
        """A tensor with a value for each column takes part in type promotion; one with a single value does not."""
        if vector.numel() == 1 and vector.ndim == 0:
            return
        dtype = torch.promote_types(self.dtype, vector.dtype)
        if dtype not in (self.dtype, self.compute):
            raise FuseError(
                f"cannot fuse: {name} has dtype {vector.dtype}, which makes PyTorch compute in {dtype}, but a chain of "
                f"{NAMES[self.weight]} weights is computed in {NAMES[self.compute]}; convert it"
            )
        self.dtype = dtype


class _Writer:
    """Builds the chain step by step."""

    def __init__(self, program: Program, leaves: Sequence[torch.Tensor], weight: torch.Tensor) -> None:
        self.program, self.leaves, self.weight = program, leaves, weight
        self.columns, self.folded = weight.shape[0], False
        self.ops = [operator("linear")(weight.shape[1], weight.shape[0])]
        self.vectors: dict[str, torch.Tensor] = {}
        self.types = _Types(weight.dtype)
        self.least_dims = 1

    def branch(self, branch: Branch, first: bool) -> None:
        """One of several results, behind what they share."""
        if not first or operator(branch.steps[0].op if branch.steps else "save").op_class != "reduction":
            self.ops.append(RESULT())
        trunk = copy.copy(self.types)
        for step in branch.steps:
            self.step(step)
        self.types, self.folded = trunk, False

    def step(self, step: Step) -> None:
        params = [self._param(step.op, p) for p in step.params]
        self.types.step(step)
        if step.op == "cast":
            return
        if step.op == "topk" and isinstance(params[0], float) and params[0] > self.columns:
            raise FuseError(f"cannot fuse: topk of {params[0]:g} of {self.columns} columns; expected no more than that")
        row = operator(step.op)
        if params and isinstance(params[0], str):
            rest = tuple(float(p) for p in params[1:])
            self.ops.append(Op(row, (0.0, *rest) if rest else (), params[0]))
        else:
            self.ops.append(Op(row, tuple(float(p) for p in params)))
        self.folded |= row.op_class == "reduction"

    def _param(self, op: str, param: Param) -> float | str:
        """A number, or the name of a vector."""
        if isinstance(param, (int, float)):
            return float(param)
        if isinstance(param, Column):
            return f"#{_column_name(param.index)}"
        value = _evaluate(param, self.leaves)
        name = name_of(param, self.program.names)
        if isinstance(param, Leaf):
            self.types.promote(value, name)
        if value.numel() == 1:
            self.least_dims = max(self.least_dims, value.ndim + (1 if self.program.dropped else 0))
            return float(value.item())
        if value.shape[-1:] != (self.columns,) or value.numel() != self.columns:
            raise FuseError(
                f"{name}, which {op} takes, has shape {tuple(value.shape)}; expected () or ({self.columns},)"
            )
        if self.folded:
            raise FuseError(
                f"{name}, which {op} takes, has a value for each column; behind a reduction there is one column"
            )
        self.least_dims = max(self.least_dims, value.ndim)
        return self._vector(param, name, value.reshape(-1).detach())

    def _vector(self, param: Source, name: str, value: torch.Tensor) -> str:
        if value.dtype not in NAMES or (value.dtype is torch.float64) != (self.types.compute is torch.float64):
            value = value.to(self.types.compute)
        if len(name) > 31 or not name.replace(".", "_").isidentifier() or not name.isascii():
            name = f"vector{len(self.vectors)}"
        held = self.vectors.setdefault(name, value)
        if held is not value and not torch.equal(held, value):
            name = f"vector{len(self.vectors)}"
            self.vectors[name] = value
        return name


def name_of(param: Source, names: Sequence[str]) -> str:
    """What a parameter is called in the chain."""
    if isinstance(param, Leaf):
        return names[param.index]
    first = next(leaf for leaf in param.of if leaf is not None)
    return f"{names[first.index].rpartition('.')[0] or 'batch_norm'}.{param.part}"


def _evaluate(source: Source, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    if isinstance(source, Leaf):
        value = leaves[source.index]
        if source.methods:
            methods = list(source.methods)
            # A transpose of a transpose is the tensor itself, and keeps its memory.
            while methods[-2:] == ["t", "t"]:
                del methods[-2:]
            for name in methods:
                value = getattr(value, name)()
        return value
    mean, variance, weight, bias = (None if leaf is None else _evaluate(leaf, leaves).double() for leaf in source.of)
    assert mean is not None and variance is not None
    scale = torch.rsqrt(variance + source.eps)
    scale = scale if weight is None else scale * weight
    if source.part == "scale":
        return scale
    return -mean * scale if bias is None else bias - mean * scale


class Runner:
    """A loaded program: the model, and the tensors as they were when it was loaded."""

    def __init__(
        self, program: Program, leaves: Sequence[torch.Tensor], columns: Mapping[str, int] | None = None
    ) -> None:
        self.program = program
        _check_loadable(program, leaves)
        self.signature: list[Any] | None = signature(leaves)
        # While these are held, no other tensor can come to the same address.
        self.held = [t.detach() for t in leaves]
        loaded = program.load(leaves)
        self.loaded = loaded
        self.device, self.x_dtype = loaded.weight.device, loaded.x_dtype
        self.least_dims, self.dims = loaded.least_dims, program.dims
        self.model = loaded.model(program.options, columns)
        self.dtypes = program.output_dtypes(leaves)
        # A token for each call under way. Adding and removing one is atomic, and so is asking whether there is any.
        self._calls: list[None] = []
        with torch.no_grad():
            self.model.load_weights(loaded.weight, loaded.bias, loaded.vectors, borrow=self._borrows(loaded))

    def _borrows(self, loaded: Loaded) -> bool:
        sixteen = loaded.weight.dtype in (torch.float16, torch.bfloat16)
        return self.program.owned or (self.program.borrow and sixteen and loaded.weight.is_cuda)

    def update(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Takes other values of the same tensors; False where only a new Runner does. One thread at a time.

        A call that begins meanwhile finds no signature, one that began earlier left its token: neither is disturbed.
        """
        before, now = self.signature, signature(leaves)
        _check_loadable(self.program, leaves)
        loaded = self.program.load(leaves)
        if before is None or not loaded.like(self.loaded) or self.program.output_dtypes(leaves) != self.dtypes:
            return False
        self.signature = None
        if self._calls:
            return False
        with torch.no_grad():
            borrow = self._borrows(loaded)
            self.model.update_weights(loaded.weight, loaded.bias, loaded.vectors, borrow=borrow)
        if self.device.type == "cuda":  # the update is in the order of this stream, but calls may come on any
            torch.cuda.current_stream(self.device).synchronize()
        self.loaded, self.held, self.signature = loaded, [t.detach() for t in leaves], now
        return True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The fused forward of x (..., in_features)."""
        self.check(x)
        self._calls.append(None)
        try:
            if self.signature is not None:
                y: torch.Tensor = self.model(x, keepdims=not self.program.dropped)
                return y.reshape(-1, *y.shape[x.ndim - 1 :]) if self.program.flat else y
        finally:
            self._calls.pop()
        return Runner(self.program, self.held)(x)  # another thread is updating this one

    def several(self, x: torch.Tensor, columns: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of x (..., in_features) and the columns that its rows name."""
        self.check(x)
        self._calls.append(None)
        try:
            if self.signature is not None:
                return self._several(x, columns)
        finally:
            self._calls.pop()
        return Runner(self.program, self.held).several(x, columns)

    def _several(self, x: torch.Tensor, columns: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = self.given(x, columns)
        try:
            found = self.model(x, **given)
        except InvalidArgumentError as error:
            named = [column.name for column in self.program.columns]
            text = re.sub(r'row input "column(\d+)"', lambda found: named[int(found[1])], str(error))
            raise InvalidArgumentError(text) from None
        return self.outputs(found, columns)

    def given(self, x: torch.Tensor, columns: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The model's row inputs: for each row of x the columns that it names."""
        lead, given = tuple(x.shape[:-1]), {}
        for i, (tensor, wanted) in enumerate(zip(columns, self.program.columns)):
            check_columns(tensor, wanted, lead)
            given[_column_name(i)] = tensor.reshape(lead)
        return given

    def outputs(self, found: Any, columns: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of what the model gives."""
        results = found if self.program.branches else (found,)
        return [self._output(output, results, columns).to(d) for output, d in zip(self.program.outputs, self.dtypes)]

    def _output(self, output: Output, results: Sequence[Any], columns: Sequence[torch.Tensor]) -> torch.Tensor:
        shaped = [results[i][output.part] if isinstance(results[i], tuple) else results[i] for i in output.branches]
        if output.flat:
            shaped = [result.reshape(-1, result.shape[-1]) for result in shaped]
        if output.dropped:
            shaped = [result.squeeze(-1) for result in shaped]
        if not output.reduction:
            return shaped[0]
        smooth = (shaped[1], shaped[2]) if output.smoothing else None
        weight = None if output.weight is None else _evaluate(output.weight, self.held)
        loss = row_losses(shaped[0], smooth, columns[output.column], weight, output.ignored, output.smoothing)
        return reduced(*loss, output.reduction)

    def check(self, x: torch.Tensor) -> None:
        """Raises for an x that the forward was not written for."""
        if x.dtype is not self.x_dtype and self.x_dtype is not None:
            raise ArgumentTypeError(f"x has dtype {x.dtype}; expected {self.x_dtype}, the module's")
        if x.device != self.device:
            raise InvalidArgumentError(f"x is on {x.device}; expected {self.device}, the module's device")
        check_dims(x, self.dims, self.least_dims)

    def again(self, x: torch.Tensor) -> torch.Tensor | None:
        """The fused forward of an x like one that there was, by the shortest way; None if it must be called."""
        calls = self.model._calls
        if calls is None:
            return None
        self._calls.append(None)
        try:
            if self.signature is None:
                return None
            y: torch.Tensor | None = calls.run(x, None, not self.program.dropped)
        finally:
            self._calls.pop()
        return y.reshape(-1, *y.shape[x.ndim - 1 :]) if self.program.flat and y is not None else y

    def finish(self, y: torch.Tensor) -> torch.Tensor:
        """What the model gives, in the output's shape."""
        if self.program.flat:
            y = y.reshape(-1, y.shape[-1])
        return y.squeeze(-1) if self.program.dropped else y


def _column_name(index: int) -> str:
    """What a tensor of columns is called in the chain."""
    return f"column{index}"


def check_columns(tensor: torch.Tensor, wanted: ColumnTensor, lead: tuple[int, ...]) -> None:
    """Raises unless this tensor names a column for each row of an input with these leading dimensions.

    ArgumentTypeError for its dtype, else InvalidArgumentError.
    """
    if tensor.dtype not in (torch.int64, torch.int32):
        raise ArgumentTypeError(f"{wanted.name} has dtype {tensor.dtype}; expected int64, a column for each row")
    expected = ((prod(lead),) if wanted.flat else lead) + ((1,) if wanted.kept else ())
    if tuple(tensor.shape) != expected:
        raise InvalidArgumentError(
            f"{wanted.name} has shape {tuple(tensor.shape)}; expected {expected}, a column for each row"
        )


def _check_loadable(program: Program, leaves: Sequence[torch.Tensor]) -> None:
    for name, tensor in zip(program.names, leaves):
        if tensor.is_inference():
            raise FuseError(
                f"{name} was made in inference mode, and changes of it could not be noticed; make it outside "
                "of torch.inference_mode()"
            )
    if any(t.is_cuda for t in leaves) and torch.cuda.is_current_stream_capturing():
        raise FuseError("the weights cannot be loaded while a CUDA graph is captured; call the module once before")


def check_dims(x: torch.Tensor, dims: int | None, least: int) -> None:
    """Raises InvalidArgumentError unless x has the dimensions that the forward was written for."""
    if (dims is not None and x.ndim != dims) or x.ndim < least:
        expected = f"{dims}, as the forward names dim={dims - 1}" if dims is not None else f"at least {least}"
        raise InvalidArgumentError(f"x has {x.ndim} dimensions; expected {expected}")


def signature(leaves: Sequence[torch.Tensor]) -> list[Any]:
    """What tells a tensor that was changed or replaced: its memory, version, type, place and layout."""
    found: list[Any] = []
    for t in leaves:
        found += (t.data_ptr(), t._version, t.dtype, t.device, t.shape, t.stride())
    return found
