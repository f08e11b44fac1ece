# SPDX-License-Identifier: MIT
"""``fuse(module, partial=True)``: every linear layer with a tail that fits, wherever it stands in a larger model."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from ..errors import Error, FuseError
from . import regions
from .again import Watch, called
from .module import Fused, is_watched, same, share
from .program import check_columns
from .regions import Found, Region
from .rows import rows_first
from .trace import Recording, kept_defaults, trace

_REPORT = "_rowfold_report"


class Part(Fused):
    """One region of a larger forward. It is computed as it is written where the fused operation would be refused."""

    def __init__(self, owner: PartlyFused, region: Region) -> None:
        super().__init__(owner.original, None, region.matcher, region.nodes, region.values, region.rows, region.plan)
        self.__dict__["_owner"] = owner
        self._written = regions.compiled(regions.extract(region))
        self.calls = {"fused": 0, "as written": 0}
        self.refused = ""  # why the last call that was not fused was not

    def forward(self, x: torch.Tensor, *columns: torch.Tensor) -> Any:
        """The region's values, in one operation if that can be."""
        y = self._like_the_last(x)
        if y is not None:
            self.calls["fused"] += 1
            return y
        onnx = torch.onnx.is_in_onnx_export()  # which may be compiling, too
        error = "the model is exported to ONNX" if onnx else self._refusal(x)
        leaves: list[torch.Tensor] = []
        if error is None:
            try:
                leaves = self._leaves()
            except FuseError as failure:  # parameters that are no more
                error = failure
            else:
                error = self._misfit(x, columns, leaves)
        compiling = torch.compiler.is_compiling()
        if error is not None:
            if not compiling:
                self.calls["as written"] += 1
                self.refused = str(error)
            return self._written(self._owner, x, *columns)
        if not compiling:
            self.calls["fused"] += 1
        return self._run(x, columns, leaves, compiling or is_watched(x))

    def _misfit(self, x: torch.Tensor, columns: Sequence[torch.Tensor], leaves: list[torch.Tensor]) -> str | None:
        """Why a call with x that nothing refuses is not fused; None if it is."""
        if any(map(torch._C._functorch.is_batchedtensor, leaves)):
            return "torch.vmap maps over the parameters"
        weight, plan = leaves[self._plan.weight.index], self._plan
        if x.dtype is not weight.dtype and not plan.cast:
            return f"x has dtype {x.dtype}, and the weight {weight.dtype}"
        if x.device != weight.device:
            return f"x is on {x.device}, and the weight on {weight.device}"
        if (plan.dims is not None and x.ndim != plan.dims) or x.ndim == 0:
            return f"x has {x.ndim} dimensions, where the forward names dim={(plan.dims or 2) - 1}"
        try:
            for tensor, wanted in zip(columns, plan.columns):
                check_columns(tensor, wanted, tuple(x.shape[:-1]))
        except Error as failure:
            return str(failure)
        if torch.compiler.is_compiling():
            return None
        try:
            least = self._loaded(leaves).least_dims
        except Error as failure:  # parameters that no longer fit
            return str(failure)
        return f"x has {x.ndim} dimensions, and a parameter more" if x.ndim < least else None


class PartlyFused(nn.Module):
    """A module whose forward is the original's, with each region that fits as one operation of rowfold.

    Parameters, buffers and submodules are shared with the original, as of a Fused module. Where a region cannot be
    fused for one call (a gradient would be recorded, autocast is on, x has another type or number of dimensions, a
    module has got hooks or was replaced) it is computed as it is written; ``report`` counts both. Other attributes are
    the original's.
    """

    def __init__(self, original: Any, recording: Recording, found: list[Found]) -> None:
        super().__init__()
        share(self, original)
        graph = recording.graph
        self.__dict__.update(recording.captured)
        self._parts: list[Part] = []
        for one in found:
            if one.region is not None:
                part = Part(self, one.region)
                # An attribute that is no submodule: the parameters are counted once, under the original's names.
                self.__dict__[f"rowfold_{len(self._parts)}"] = part
                self._parts.append(part)
        for index, region in enumerate([one.region for one in found if one.region is not None]):
            regions.replace(graph, region, f"rowfold_{index}")
        self._forward = regions.compiled(graph)
        self._arguments = [str(n.target) for n in graph.nodes if n.op == "placeholder"]
        self._defaults = kept_defaults(original)
        self._signature = inspect.signature(original.forward if isinstance(original, nn.Module) else original)
        # A forward may do something else in training mode. Modules of PyTorch see to that themselves.
        inner = original.modules() if isinstance(original, nn.Module) else ()
        self.__dict__["_watched"] = [m for m in inner if not _is_leaf(m)]
        self._traced_modes = self._modes()
        self._watch = Watch.of(recording.root, called(recording.root, recording.entered, {}))
        self._options: dict[str, Any] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original's forward."""
        recorded = self._modes() == self._traced_modes and self._watch.holds()
        if not kwargs and len(args) == len(self._arguments) and recorded:
            return self._forward(self, *args)
        bound = self._signature.bind(*args, **kwargs)
        others = {k: v for k, v in bound.arguments.items() if k not in self._arguments}
        kept = all(k in self._defaults and same(v, self._defaults[k]) for k, v in others.items())
        if not kept or not recorded:
            return self.original(*args, **kwargs)  # which was traced for its defaults, and for the mode of then
        return self._forward(self, *(bound.arguments[name] for name in self._arguments))

    def _modes(self) -> list[bool]:
        return [m.training for m in self._watched]

    def train(self, mode: bool = True) -> PartlyFused:
        """As nn.Module's, for the original too; in another mode than when it was fused the original runs."""
        super().train(mode)
        if isinstance(self.original, nn.Module):
            self.original.training = mode
        return self

    def reload(self) -> None:
        """Loads the weights anew at the next call, for changes that PyTorch does not record."""
        for part in self._parts:
            part.reload()

    def explain(self, batch: int = 1024) -> str:
        """The library's plan for each region, for this batch size."""
        return "\n\n".join(part.explain(batch) for part in self._parts)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "original" not in self.__dict__:
                raise
            return getattr(self.__dict__["original"], name)

    def __prepare_scriptable__(self) -> None:
        Fused.__prepare_scriptable__(self)  # type: ignore[arg-type]

    def __reduce__(self) -> Any:
        return functools.partial(fuse_parts, **self._options), (self.original,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return fuse_parts(copy.deepcopy(self.original, memo), **self._options)


class Report:
    """What became of each linear layer of a model: taken with which tail, or left to PyTorch and why.

    ``str`` gives the text. ``taken`` holds (name, module, what was found, the operation), ``left`` (name, the sentence,
    the sentence without the place).
    """

    def __init__(self, text: str = "") -> None:
        self.text = text  # of a copy or a pickle, which has none of the operations
        self.taken: list[tuple[str, str, Found, Part]] = []
        self.left: list[tuple[str, str, str]] = []

    def __reduce__(self) -> Any:
        return Report, (str(self),)

    def __str__(self) -> str:
        if self.text:
            return self.text
        count = len(self.taken) + len(self.left)
        lines = [f"{len(self.taken)} of {count} linear layers with what follows them are operations of rowfold"]
        for name, module, found, part in self.taken:
            inside = f" of {module}" if module else ""
            lines.append(f"  taken  {name}{inside}: {' | '.join(['linear', *found.steps])}")
            if found.region is not None and found.region.stopped:
                lines.append(f"         up to there: {found.region.stopped}")
            if part.calls["as written"]:
                lines.append(
                    f"         {part.calls['fused']} calls fused, {part.calls['as written']} as written; the last of "
                    f"these because {part.refused}"
                )
        lines += [f"  left   {name}: {reason}" for name, reason, _ in self.left]
        return "\n".join(lines)

    __repr__ = __str__


def fuse_parts(module: Any, **options: Any) -> Any:
    """The module with its regions fused. ``options`` are those of ``fuse``. Raises FuseError where nothing fits."""
    report = Report()
    borrow = bool(options.get("borrow", True))
    given = {k: v for k, v in options.items() if k != "borrow"}
    converted = _convert(module, "", report, given, borrow, options)
    if converted is None:
        if not report.left:
            raise FuseError("nothing to fuse: there is no linear layer; expected nn.Linear, F.linear or x @ W.t()")
        raise FuseError(f"nothing fits\n{report}")
    converted.__dict__[_REPORT] = report
    return converted


def report_of(module: nn.Module) -> Report:
    """What ``fuse(..., partial=True)`` took of the module that it returned, and what it left and why.

    Raises FuseError for other modules.
    """
    found = module.__dict__.get(_REPORT)
    if not isinstance(found, Report):
        raise FuseError(
            f"there is no report of this {type(module).__qualname__}; expected what fuse(partial=True) returned"
        )
    return found


def _convert(module: Any, path: str, report: Report, given: Any, borrow: bool, options: Any) -> nn.Module | None:
    """The module with its regions fused, or None where there are none. Names of the report begin with ``path``."""
    if isinstance(module, (Fused, PartlyFused)):
        return None
    if path and _is_leaf(module):
        for name, inner in module.named_modules():
            if isinstance(inner, nn.Linear) and inner is not module:
                kind = type(module).__qualname__
                why = f"{path} is an nn.{kind}, which PyTorch runs as a whole"
                report.left.append((_joined(path, name), why, why))
        return None
    if isinstance(module, nn.Module) and (module._forward_hooks or module._forward_pre_hooks):
        reason = "it has forward hooks, which would not be called"
    elif isinstance(module, nn.Module) and "forward" in module.__dict__:
        reason = "it has a forward of its own in place of its class's, which would not be called"
    elif type(module).forward is nn.Module.forward if isinstance(module, nn.Module) else False:
        reason = ""  # a container
    else:
        try:
            return _convert_graph(module, path, report, given, borrow, options)
        except FuseError as error:
            reason = str(error).split(". fuse reads")[0]
    return _convert_children(module, path, report, given, borrow, options, reason)


def _convert_graph(module: Any, path: str, report: Report, given: Any, borrow: bool, options: Any) -> nn.Module | None:
    recording = trace(module)
    graph, root, captured = recording.graph, recording.root, recording.captured
    rows_first(graph, root, captured)
    found = regions.find(graph, root, captured, given, borrow)
    for one in found:
        if one.region is None:
            report.left.append((_joined(path, one.name), one.reason, one.why))
    for node in graph.nodes:
        if node.op == "call_module":
            inner = root.get_submodule(str(node.target))
            if _is_leaf(inner) and not isinstance(inner, nn.Linear):
                _convert(inner, _joined(path, str(node.target)), report, given, borrow, options)
    if all(one.region is None for one in found):
        return None
    partly = PartlyFused(module, recording, found)
    partly._options = options
    taken = [one for one in found if one.region is not None]
    for one, part in zip(taken, partly._parts):
        report.taken.append((_joined(path, one.name), path, one, part))
    return partly


def _convert_children(
    module: Any, path: str, report: Report, given: Any, borrow: bool, options: Any, reason: str
) -> nn.Module | None:
    """A copy of the module, its parameters shared, whose children are fused; what it calls itself is left."""
    if not isinstance(module, nn.Module):
        raise FuseError(reason)
    children: dict[str, nn.Module | None] = dict(module._modules)
    changed = False
    for name, child in module._modules.items():
        if type_before_parametrizations(child) is nn.Linear if child is not None else False:
            why = f"it is called by {path or type(module).__name__}, of which {reason}"
            why = why if reason else "no operator follows it in its container"
            report.left.append((_joined(path, name), why, why))
        elif child is not None:
            converted = _convert(child, _joined(path, name), report, given, borrow, options)
            if converted is not None:
                children[name], changed = converted, True
    if not changed:
        return None
    clone = copy.copy(module)
    clone.__dict__["_modules"] = children
    return clone


def _is_leaf(module: Any) -> bool:
    """Whether PyTorch runs it as a whole: a module of torch.nn that is no container."""
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    return (
        isinstance(module, nn.Module)
        and type(module).__module__.startswith("torch.")
        and not isinstance(module, containers)
    )


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
