# SPDX-License-Identifier: MIT
"""``fuse``: a module in, a module out, with the same parameters, state_dict and results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from ..errors import ArgumentTypeError, FuseError, InvalidArgumentError
from . import regions
from .linearize import program
from .match import Matcher
from .module import Fused
from .partial import PartlyFused, fuse_parts, report_of
from .rows import rows_first
from .sharded import Exchange, Shards, group_of
from .trace import Recording, trace


def fuse(
    module: nn.Module | Callable[..., Any],
    *,
    partial: bool = False,
    explain: bool = False,
    batch: int = 1024,
    math: str = "f32",
    simplify: str = "algebraic",
    threads: int | None = None,
    backend: str | None = None,
    batch_invariant: bool = False,
    borrow: bool = True,
    tp_group: Any = None,
    tp_timeout: float | None = None,
) -> Any:
    """A drop-in module whose forward is one operation and stores no logits.

    Parameters
    ----------
    module
        An nn.Module, or a function of one tensor, whose forward is one linear layer, elementwise operators and at most
        one reduction over columns, in any spelling of doc/pytorch.md. The input may be cast and shaped before the
        linear layer, and the result of a reduction may go on to anything, which PyTorch computes. Parameters are
        shared, not copied; weights that are computed from parameters (weight_norm, LoRA, W * mask) are computed anew
        when those change.
    partial
        Whether to look for linear layers anywhere in a larger model, make each with what follows it an operation, and
        leave the rest to PyTorch. ``rowfold.torch.report`` of the result says what was taken, and what not and why.
    explain, batch
        Whether to print what became of every operator, for this batch size; the report, with ``partial``.
    math, simplify, threads, backend, batch_invariant
        As for rowfold.Model. The device is the parameters'.
    borrow
        Whether 16-bit weights on a GPU are used where they are. A copy takes their size in memory once more; in it they
        lie in the order in which they are read fastest for up to 64 rows on an H100 or H200. Other weights are always
        copied.
    tp_group
        A torch.distributed process group over which the linear layer is split by columns: the module's weight has this
        process's rows of W, in the order of the ranks, and its bias and vectors the values that belong to them. All of
        its processes call ``fuse``, and then the module, with the same x; each gets the result over all columns.
        DTensor weights with the placement Shard(0) bring their group along. States go by NCCL from GPU to GPU where
        the group has it, else by gloo, which a group without it gets beside it for what goes before.
    tp_timeout
        Seconds that an exchange with the other processes may take; None for the group's own limit.

    Returns
    -------
    A Fused module with the parameters and the state_dict of the original, and its output's shape and dtype. It computes
    no gradients: call it under torch.no_grad(), or freeze the parameters. With ``partial``, a module of the same kind
    whose regions are computed as they are written where a gradient is recorded.

    Raises
    ------
    FuseError (ValueError) for a forward that does not fit; it names the node, the source line and the reason. With
    ``tp_group`` every process raises what one of them has failed with, here and in calls, and the message names its
    rank; CommunicationError where one does not answer.

    """
    options = {
        "math": math,
        "simplify": simplify,
        "threads": threads,
        "backend": backend,
        "batch_invariant": batch_invariant,
    }
    if partial:
        if tp_group is not None:
            raise InvalidArgumentError("tp_group goes with a module that is fused as a whole; expected partial=False")
        _check(module)
        found = fuse_parts(module, **options, borrow=borrow)
        if explain:
            print(report_of(found))
        return found
    exchange = None if tp_group is None else Exchange(tp_group, tp_timeout)
    fused: Fused | None = None
    failure: Exception | None = None
    count = 0
    try:
        _check(module)
        fused = _fuse_whole(module, options, bool(borrow))
        group = group_of([(name, fused._find(name)) for name in fused._sources], tp_group)
        if exchange is None and group is not None:
            exchange = Exchange(group, tp_timeout)
        if exchange is not None:
            count = _rows_of_shard(fused)
    except Exception as error:
        failure = error
        if exchange is None:
            raise
    if exchange is not None:
        shards = Shards.open(exchange, failure, count)
        assert fused is not None
        fused._shards = shards
    assert fused is not None
    if explain:
        print(fused.explain(batch))
    return fused


def _check(module: Any) -> None:
    if not callable(module):
        raise ArgumentTypeError(f"module is a {type(module).__qualname__}; expected an nn.Module or a function")
    if isinstance(module, (Fused, PartlyFused)):
        raise FuseError(
            f"the {type(module).__qualname__} is fused already; its attribute original is what it was made from"
        )
    if isinstance(module, type):
        raise ArgumentTypeError(f"module is the class {module.__qualname__}; expected one of its modules")
    if isinstance(module, torch.jit.ScriptModule):
        raise FuseError("a module of torch.jit has no Python to read; fuse the one it was made from")
    if type(module).__module__.startswith("torch._dynamo."):  # whose import takes seconds
        raise FuseError("the module is compiled already; fuse the one it was made from, and compile what fuse returns")
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise FuseError(f"a {type(module).__qualname__} calls its module on several devices; fuse its attribute module")


def _fuse_whole(module: Any, options: dict[str, Any], borrow: bool) -> Fused:
    if isinstance(module, nn.Module) and (module._forward_hooks or module._forward_pre_hooks):
        raise FuseError(f"{type(module).__qualname__} has forward hooks, which would not be called; remove them first")
    if isinstance(module, nn.Module) and "forward" in module.__dict__:
        raise FuseError(
            f"the {type(module).__qualname__} has a forward of its own in place of its class's, which would not be "
            "called; remove it first"
        )
    if isinstance(module, nn.Module) and type(module).forward is nn.Module.forward:
        raise FuseError(f"a {type(module).__qualname__} has no forward; fuse what it holds, or use partial=True")
    recording = trace(module)
    graph, root, captured = recording.graph, recording.root, recording.captured
    rows_first(graph, root, captured)
    try:
        matcher = Matcher(graph, root, captured)
        output = matcher.run()
        plan = program(matcher, output, options, borrow)
        fused = Fused(module, recording, matcher, graph.nodes, [output], [output], plan)
        plan.load(fused._leaves())  # all that can be refused is refused here
    except FuseError as error:
        fused = _fuse_within(module, recording, options, borrow, error)
    return fused


def _rows_of_shard(fused: Fused) -> int:
    """How many columns this process has, of a forward that can be split."""
    if any(output.weight is not None for output in fused._plan.outputs):
        raise FuseError(
            "the forward has a cross entropy with weights of all classes, of which each process has some; "
            "rowfold.torch.linear_cross_entropy takes those of all"
        )
    if not fused._plan.folded:
        raise FuseError("the forward has no reduction over columns, so that its processes have nothing to merge")
    return int(fused._plan.load(fused._leaves()).weight.shape[0])


# What shapes or casts a tensor, before the linear layer or behind it.
_SHAPES = frozenset(
    "view reshape flatten unflatten squeeze unsqueeze transpose swapaxes movedim permute contiguous getitem getattr "
    "size dim numel to type type_as float double half bfloat16 expand clone detach Flatten Unflatten Identity".split()
)
_ON_SIZES = frozenset("add sub mul floordiv truediv mod neg iadd imul".split())


def _fuse_within(module: Any, recording: Recording, options: Any, borrow: bool, error: FuseError) -> Fused:
    """The one region of a forward that only shapes its input, and does what it likes with the reduced result.

    Raises ``error``, and says what ``partial`` would take, where there is none or more.
    """
    graph, root, captured = recording.graph, recording.root, recording.captured
    found = regions.find(graph, root, captured, options, borrow)
    taken = [one.region for one in found if one.region is not None]
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    (output,) = (node for node in graph.nodes if node.op == "output")
    plain = len(inputs) == 1 and isinstance(output.args[0], fx.Node)
    if len(found) == len(taken) == 1 and (plain or taken[0].folded):
        region = taken[0]
        if _only_shapes(graph, root, region):
            fused = Fused(module, recording, region.matcher, region.nodes, region.values, region.rows, region.plan)
            left = [n.name for made in region.outputs for n in made.users if n.op != "output"]
            fused._rows += f"\nleft to PyTorch, on the result: {', '.join(left)} and what follows" if left else ""
            regions.replace(graph, region, "_operation")
            fused._around = regions.compiled(graph)
            fused._again = functools.partial(fuse, **options, borrow=borrow)
            fused.__dict__.update(captured)
            return fused
    if not taken:
        # Of several results the one that does not fit says more than that there are several.
        reasons = [one.reason for one in found if one.reason.startswith("cannot fuse")]
        raise FuseError(reasons[0]) if reasons and not isinstance(output.args[0], fx.Node) else error
    names = ", ".join(f"{' | '.join(['linear', *f.steps])} of {f.name}" for f in found if f.region is not None)
    raise FuseError(f"{error}. fuse(module, partial=True) takes {names}, and leaves the rest to PyTorch") from error


def _only_shapes(graph: fx.Graph, root: nn.Module, region: regions.Region) -> bool:
    """Whether all nodes outside of a region shape or cast something, or are computed from its reduced result."""
    inside, before, waiting = set(region.nodes), {region.operand}, [region.operand]
    while waiting:
        new = [n for n in waiting.pop().all_input_nodes if n not in before]
        before.update(new)
        waiting += new
    sizes: set[fx.Node] = set()
    for node in graph.nodes:
        if node in inside or node in region.matcher.parametric or node.op in ("placeholder", "output"):
            continue
        if region.folded and node not in before:
            continue  # of the results, or of the tensors that name columns
        name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))
        if node.op == "call_module":
            name = type(root.get_submodule(str(node.target))).__name__
        if name in ("size", "dim", "numel") or (name == "getattr" and node.args[1] in ("shape", "ndim")):
            sizes.add(node)
        elif node.all_input_nodes and all(n in sizes for n in node.all_input_nodes):
            if name not in (*_ON_SIZES, "getitem"):
                return False
            sizes.add(node)
        elif name not in _SHAPES:
            return False
    return True
