"""``fuse``: a module in, a module out, with the same parameters, state_dict and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from ..errors import ArgumentTypeError, FuseError, InvalidArgumentError
from . import library
from .linearize import linearize, program
from .match import Matcher
from .program import Program, Runner, name_of, signature
from .trace import SOURCE, trace
from .values import Row, Step

_AUTOCAST = ("cpu", "cuda")
_PLAIN = (torch.Tensor, nn.Parameter)
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_jit_trace: Callable[[], Any] = torch._C._get_tracing_state
_transform: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack


class Fused(nn.Module):
    """A module whose forward is one operation of rowfold; ``fuse`` makes them.

    It shares parameters, buffers and submodules with the module it was made from, so that both have the same state_dict
    and each sees what happens to the other. Weights are loaded at the first call, and again when a parameter was
    changed by an optimizer, load_state_dict or to(). Two things PyTorch does not record: writing through an alias made
    with ``.data`` (call ``reload``), and Python numbers in the forward, which are read when ``fuse`` is called.

    A captured CUDA graph reads the weights as loaded before the capture. They are freed with the module, and by the
    first call after a change of a parameter: a graph must be captured anew then, and must not be replayed before.
    """

    def __init__(self, original: nn.Module | Callable[..., Any], matcher: Matcher, output: Row, plan: Program) -> None:
        super().__init__()
        if isinstance(original, nn.Module):
            # The same dicts, not copies: what is added, replaced or moved on one side is so on the other.
            for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
                self.__dict__[name] = original.__dict__[name]
            self.training = original.training
        self.__dict__["original"] = original
        self._plan, self._text = plan, plan.text
        self._captured = {name: t for name, t in matcher.captured.items() if name in plan.names}
        self._paths = [None if name in self._captured else tuple(name.split(".")) for name in plan.names]
        self._modal = tuple(matcher.modal)
        self._modal_calls = matcher.modal_calls
        self._rows = _describe(matcher, output)
        self._runner: Runner | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The original's forward of x, fused.

        Raises InvalidArgumentError where a gradient would be recorded, under autocast, or for x of wrong shape or
        device; ArgumentTypeError for its dtype; FuseError if the parameters no longer fit, or a part is in training
        mode.
        """
        leaves = self._leaves()
        self._check_mode()
        device = x.device.type
        if device in _AUTOCAST and torch.is_autocast_enabled(device):
            raise InvalidArgumentError(
                "autocast is on, which the fused forward would ignore; put it under "
                "torch.autocast(..., enabled=False), or convert the module with to(dtype)"
            )
        # Whatever records or transforms operators sees one. The short way would be recorded as an empty tensor.
        if torch.compiler.is_compiling() or type(x) not in _PLAIN or _dispatch_modes() or _jit_trace() or _transform():
            library.check_grad([x, *leaves], ["x", *self._plan.names])
            result: torch.Tensor = torch.ops.rowfold.fused(x, leaves, self._text)
            return result
        if torch.is_grad_enabled() or forward_ad._current_level >= 0:
            library.check_grad([x, *leaves], ["x", *self._plan.names])
        runner = self._runner
        if runner is None or runner.signature != signature(leaves):
            runner = self._runner = library.runner(self._text, leaves)
        return runner(x)

    def reload(self) -> None:
        """Loads the weights anew at the next call, for changes that PyTorch does not record."""
        self._runner = None
        library.forget(self._text, self._leaves())

    @property
    def chain(self) -> str:
        """The chain text for the parameters as they are now."""
        return str(self._plan.load(self._leaves()).chain)

    def explain(self, batch: int = 1024) -> str:
        """What became of every operator of the forward, and the library's plan for this batch size."""
        with self._plan.load(self._leaves()).model(self._plan.options) as model:
            return f"{self._rows}\n\n{model.explain(batch)}"

    def train(self, mode: bool = True) -> Fused:
        """As nn.Module's, but refused for a forward with dropout or batch norm, which is fused in eval mode."""
        if mode and (self._modal or self._modal_calls):
            raise FuseError(
                "the forward has dropout or batch norm and was fused in eval mode; train the original module instead"
            )
        super().train(mode)
        if isinstance(self.original, nn.Module):
            self.original.training = mode
        return self

    def extra_repr(self) -> str:
        """The chain without its numbers."""
        return " | ".join(["linear", *(step.op for step in self._plan.steps)])

    def _leaves(self) -> list[torch.Tensor]:
        """The tensors as they are now."""
        found = []
        for name, path in zip(self._plan.names, self._paths):
            if path is None:
                found.append(self._captured[name])
                continue
            module: Any = self
            for part in path[:-1]:
                module = module._modules[part]
            last = path[-1]
            tensor = module._parameters.get(last)
            if tensor is None:
                tensor = module._buffers.get(last)
            if tensor is None:
                held = self.original if module is self else module
                tensor = getattr(held, last)
            found.append(tensor)
        return found

    def _check_mode(self) -> None:
        for name in self._modal:
            if self.get_submodule(name).training:
                raise FuseError(f"{name} was put in training mode, but the forward was fused in eval mode; call eval()")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_runner": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.original, nn.Module):
            for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
                self.__dict__[name] = self.original.__dict__[name]


def fuse(
    module: nn.Module | Callable[..., Any],
    *,
    explain: bool = False,
    batch: int = 1024,
    math: str = "f32",
    simplify: str = "algebraic",
    threads: int | None = None,
    backend: str | None = None,
    batch_invariant: bool = False,
    borrow: bool = True,
) -> Fused:
    """A drop-in module whose forward is one operation and stores no logits.

    Parameters
    ----------
    module
        An nn.Module, or a function of one tensor, whose forward is one linear layer, elementwise operators and at most
        one reduction over columns, in any spelling of the README's list. Its parameters are shared, not copied.
    explain, batch
        Whether to print what became of every operator, for this batch size.
    math, simplify, threads, backend, batch_invariant
        As for rowfold.Model. The device is the parameters'.
    borrow
        Whether 16-bit weights on a GPU are used where they are. A copy takes their size in memory once more; in it they
        lie in the order in which they are read fastest for up to 64 rows on an H100 or H200. Other weights are always
        copied.

    Returns
    -------
    A Fused module with the parameters and the state_dict of the original, and its output's shape and dtype. It computes
    no gradients: call it under torch.no_grad(), or freeze the parameters.

    Raises
    ------
    FuseError (ValueError) for a forward that does not fit; it names the node, the source line and the reason.

    """
    if not callable(module):
        raise ArgumentTypeError(f"module is a {type(module).__qualname__}; expected an nn.Module or a function")
    if isinstance(module, nn.Module) and (module._forward_hooks or module._forward_pre_hooks):
        raise FuseError(f"{type(module).__qualname__} has forward hooks, which would not be called; remove them first")
    graph, root, captured = trace(module)
    matcher = Matcher(graph, root, captured)
    output = matcher.run()
    options = {
        "math": math,
        "simplify": simplify,
        "threads": threads,
        "backend": backend,
        "batch_invariant": batch_invariant,
    }
    plan = program(matcher, output, options, bool(borrow))
    fused = Fused(module, matcher, output, plan)
    plan.load(fused._leaves())  # all that can be refused is refused here
    if explain:
        print(fused.explain(batch))
    return fused


def _describe(matcher: Matcher, output: Row) -> str:
    """A line for each node that the output depends on: what it became."""
    steps: dict[Any, list[Step]] = {}
    for row, step in linearize(output):
        steps.setdefault(row.node, []).append(step)
    lines = []
    needed = {output.node}
    for node in reversed(list(matcher.graph.nodes)):
        if node.op == "output" or node in needed:
            needed.update(node.all_input_nodes)
    for node in matcher.graph.nodes:
        if node not in needed or node.op in ("placeholder", "get_attr", "output"):
            continue
        names = [_step_text(step, matcher) for step in steps.get(node, [])]
        if node is output.spine[0].node:
            names.insert(0, "linear")
        lines.append((node.name, " | ".join(names) or "(no operator)", node.meta.get(SOURCE, "")))
    widths = [max((len(line[i]) for line in lines), default=0) for i in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in lines)


def _step_text(step: Step, matcher: Matcher) -> str:
    if step.op == "cast":
        return f"cast to {step.dtype}"
    params = []
    for param in step.params:
        params.append(f"{param:g}" if isinstance(param, (int, float)) else "@" + name_of(param, matcher.leaves))
    return step.op + (f"({', '.join(params)})" if params else "")
