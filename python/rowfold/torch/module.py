# SPDX-License-Identifier: MIT
"""The module that ``fuse`` returns: the same parameters, state_dict and results as the one it was made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import fx, nn
from torch.autograd import forward_ad

from ..errors import ArgumentTypeError, Error, FuseError, InvalidArgumentError
from . import library
from .again import Again, Watch, called
from .linearize import linearize
from .match import Matcher
from .program import Program, Runner, name_of, signature
from .sharded import Shards, local
from .trace import SOURCE, Recording, kept_defaults, parameter_names
from .values import Column, Loss, Pair, Row, Step

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

    The modules that the forward calls are not called any more. Calls are refused where one of them has got forward
    hooks or a forward of its own, or was replaced: PyTorch's by another kind or other numbers, those whose own forward
    was recorded by any other. Hooks for all modules, as of register_module_forward_hook, see the fused module alone.

    A captured CUDA graph reads the weights as loaded before the capture. They are freed with the module, and by the
    first call after a change of a parameter: a graph must be captured anew then, and must not be replayed before.
    """

    def __init__(
        self,
        original: nn.Module | Callable[..., Any],
        recording: Recording | None,
        matcher: Matcher,
        nodes: Iterable[fx.Node],
        values: Sequence[Row | Loss | Pair],
        rows: Sequence[Row],
        plan: Program,
    ) -> None:
        """Of the ``nodes`` of a graph; ``recording`` None where somebody else sees to the modules around them."""
        super().__init__()
        share(self, original)
        self._plan, self._text = plan, plan.text
        self._captured = matcher.captured
        self._recipes = {name: made for name, made in matcher.recipes.items() if name in plan.names}
        # What a gradient would be recorded for: the leaves, and what others are computed from.
        sources = [n for name in plan.names for n in (self._recipes[name].sources if name in self._recipes else [name])]
        self._sources = tuple(dict.fromkeys(sources))
        self._paths = {n: tuple(n.split(".")) for n in (*plan.names, *self._sources)}
        self._made: dict[str, tuple[list[Any], list[torch.Tensor], torch.Tensor]] = {}
        taken = {
            n.target: matcher.taken[n.target] for n in nodes if n.op == "call_module" and n.target in matcher.taken
        }
        computed = [step for name in self._recipes for step in self._recipes[name].steps if step[0] == "call_module"]
        entered = [*(recording.entered if recording else ()), *_inside(matcher.root, [step[1] for step in computed])]
        self._called = called(matcher.root, entered, taken)
        self._modes = {**(recording.modes if recording else {}), **matcher.modes}
        self._arguments, self._defaults = parameter_names(original), kept_defaults(original)
        self._inputs = tuple(str(node.target) for node in matcher.graph.nodes if node.op == "placeholder")
        self._rows = _describe(matcher, rows)
        self._shapes = _shapes(values)
        self._runner: Runner | None = None
        self._watch: Watch | None = None  # of the modules, since they were looked at
        self._last: Again | None = None  # the shortest way of a call that is like the one before
        self._around: Callable[..., Any] | None = None
        self._again: Callable[[Any], Fused] | None = None  # makes it anew from the original
        self._shards: Shards | None = None  # where other processes have the other columns

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original's forward, fused: of one tensor, and of those that name columns of its rows.

        Raises InvalidArgumentError where a gradient would be recorded, under autocast, or for x of wrong shape or
        device; ArgumentTypeError for its dtype, or for arguments that the original's forward does not have; FuseError
        if the parameters no longer fit, a module was replaced, has got hooks or is in another mode, or an argument is
        not what it was fused for.
        """
        if kwargs or len(args) != len(self._inputs):
            args = self._bind(args, kwargs)
        if self._around is None:
            return self._operation(args[0])
        return self._for_onnx(*args) if torch.onnx.is_in_onnx_export() else self._around(self, *args)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The inputs of the trace among the arguments of a call; the others must be its defaults."""
        if len(args) > len(self._arguments):
            raise ArgumentTypeError(f"the forward is given {len(args)} arguments; expected {len(self._arguments)}")
        given = dict(zip(self._arguments, args))
        for name, value in kwargs.items():
            if name in given:
                raise ArgumentTypeError(f"the forward is given {name} twice")
            if name not in self._arguments:
                raise ArgumentTypeError(f"the forward has no argument {name}; it has {', '.join(self._arguments)}")
            given[name] = value
        for name, value in given.items():
            if name not in self._inputs and not same(value, self._defaults[name]):
                shown = repr(value) if isinstance(value, (int, float, str)) else f"a {type(value).__qualname__}"
                raise FuseError(
                    f"{name} is {shown}, but the forward was fused for its default, {self._defaults[name]!r}; make it "
                    "an attribute of the module, or fuse with partial=True, which runs the original then"
                )
        missing = [name for name in self._inputs if name not in given]
        if missing:
            raise ArgumentTypeError(f"the forward lacks its argument {missing[0]}")
        return tuple(given[name] for name in self._inputs)

    def _for_onnx(self, *args: Any, **kwargs: Any) -> Any:
        """The operators of the original: ONNX has none for the fused one."""
        return cast(Any, self.original)(*args, **kwargs)

    def _operation(self, x: torch.Tensor, *columns: torch.Tensor) -> Any:
        if not columns:
            y = self._like_the_last(x)
            if y is not None:
                return y
        if not isinstance(x, torch.Tensor):
            raise ArgumentTypeError(f"x is a {type(x).__qualname__}; expected a torch.Tensor")
        if self._shards is not None:
            return self._sharded(self._shards, x, columns)
        error, watched = self._refusal(x), is_watched(x)
        if (watched or error is not None) and self._around is None and torch.onnx.is_in_onnx_export():
            return self._for_onnx(x)
        if error is not None:
            raise error
        return self._run(x, columns, self._leaves(), watched)

    def _like_the_last(self, x: torch.Tensor) -> torch.Tensor | None:
        """The result by the shortest way; None where all must be looked at."""
        if torch.compiler.is_compiling() or self._last is None or _jit_trace() or not isinstance(x, torch.Tensor):
            return None
        if self._last.holds():
            return self._last.runner.again(x)
        self._last = None
        return None

    def _sharded(self, shards: Shards, x: torch.Tensor, columns: Sequence[torch.Tensor]) -> Any:
        error = self._refusal(x)
        if error is None and is_watched(x):
            error = InvalidArgumentError(
                "the layer is split over processes, whose messages cannot be recorded; call it outside of "
                "torch.compile, torch.export, torch.jit.trace and torch.func"
            )
        found = shards.run(self._plan, self._leaves, x, columns, error)
        return self._as_returned(found) if self._plan.outputs else found

    def _as_returned(self, results: Sequence[torch.Tensor]) -> Any:
        """What the forward returns of the program's outputs."""
        shaped = tuple(_shaped(shape, results) for shape in self._shapes)
        return shaped[0] if len(shaped) == 1 else shaped

    def _run(self, x: torch.Tensor, columns: Sequence[torch.Tensor], leaves: list[torch.Tensor], watched: bool) -> Any:
        # Whatever records or transforms operators sees one. The short way would be recorded as an empty tensor.
        if self._plan.outputs:
            if watched:
                results = torch.ops.rowfold.fused_results(x, leaves, list(columns), self._text)
            else:
                results = self._loaded(leaves).several(x, columns)
            return self._as_returned(results)
        if watched:
            return torch.ops.rowfold.fused(x, leaves, self._text)
        runner = self._loaded(leaves)
        y = runner(x)
        # What recipes compute is compared by what it is computed from, which only the long way does.
        watch = self._watch
        if self._last is None and watch is not None and not self._recipes:
            paths = [(name, self._paths[name]) for name in self._plan.names]
            self._last = Again.learn(runner, self._root, self._captured, paths, self._modes, watch)
        return y

    def _loaded(self, leaves: list[torch.Tensor]) -> Runner:
        runner = self._runner
        if runner is None or runner.signature != signature(leaves):
            runner = self._runner = library.runner(self._text, leaves)
        return runner

    def _refusal(self, x: torch.Tensor) -> Error | None:
        """Why a call with x is refused, whatever its shape; None if it is not."""
        change = self._change()
        if change:
            return FuseError(f"the forward was fused, and since then {change}; undo that, or fuse it anew")
        for name, mode in self._modes.items():
            if self._root.get_submodule(name).training is not mode:
                now, then = ("eval", "training") if mode else ("training", "eval")
                return FuseError(
                    f"{name or 'the module'} was put in {now} mode, but the forward was fused in {then} mode; call "
                    f"{'train' if mode else 'eval'}()"
                )
        device = x.device.type
        if device in _AUTOCAST and torch.is_autocast_enabled(device):
            return InvalidArgumentError(
                "autocast is on, which the fused forward would ignore; put it under "
                "torch.autocast(..., enabled=False), or convert the module with to(dtype)"
            )
        if not torch.compiler.is_compiling() and _transform() and torch._C._functorch.is_gradtrackingtensor(x):
            return InvalidArgumentError(
                "x is differentiated by torch.func (grad, vjp, jvp or what is made of them), but the fused forward "
                "computes no gradients; differentiate the original module"
            )
        if torch.is_grad_enabled() or forward_ad._current_level >= 0:
            try:
                return library.grad_error([x, *map(self._find, self._sources)], ["x", *self._sources])
            except FuseError as error:
                return error
        return None

    def _change(self) -> str:
        """Which of the modules that are not called any more is not as it was, in words; empty where all are."""
        watch = None
        if not torch.compiler.is_compiling():
            watch = self._watch
            if watch is not None and watch.holds():
                return ""
            self._watch = None
            try:
                watch = Watch.of(self._root, self._called)  # before they are looked at: it sees what changes meanwhile
            except KeyError:  # of which change says more
                watch = None
        for one in self._called:
            change = one.change(self._root)
            if change:
                return change
        if watch is not None:
            self._watch = watch
        return ""

    def reload(self) -> None:
        """Loads the weights anew at the next call, for changes that PyTorch does not record."""
        leaves = self._leaves()
        self._runner = self._last = None
        if self._shards is not None:
            self._shards.forget()
        self._made.clear()
        library.forget(self._text, leaves)

    @property
    def chain(self) -> str:
        """The chain text for the parameters as they are now."""
        return str(self._plan.load(self._leaves()).chain)

    def explain(self, batch: int = 1024) -> str:
        """What became of every operator of the forward, and the library's plan for this batch size."""
        columns = None if self._shards is None else self._shards.columns
        with self._plan.load(self._leaves()).model(self._plan.options, columns) as model:
            return f"{self._rows}\n\n{model.explain(batch)}"

    def train(self, mode: bool = True) -> Fused:
        """As nn.Module's, but refused for a forward that does something else in this mode, as with dropout."""
        for name, then in self._modes.items():
            if then is not mode:
                raise FuseError(
                    f"what {name or 'the forward'} does depends on its mode, and it was fused in "
                    f"{'training' if then else 'eval'} mode; change that of the original module, and fuse it anew"
                )
        super().train(mode)
        if isinstance(self.original, nn.Module):
            self.original.training = mode
        return self

    def extra_repr(self) -> str:
        """The chain without its numbers."""
        return " | ".join(["linear", *self._plan.outline])

    def _leaves(self) -> list[torch.Tensor]:
        """The tensors as they are now."""
        return [self._compute(name) if name in self._recipes else local(self._find(name)) for name in self._plan.names]

    def _find(self, name: str) -> Any:
        """A tensor or a module of that name, as it is now. Raises FuseError where there is none."""
        found = self._captured.get(name)
        if found is None:
            try:
                found = find(self, self.original, self._paths.get(name) or tuple(name.split(".")))
            except AttributeError:
                pass
        if not isinstance(found, (torch.Tensor, nn.Module)):
            shown = found if found is None else f"a {type(found).__qualname__}"
            raise FuseError(f"{name} is {shown}; expected a tensor, as when the forward was fused")
        return found

    @property
    def _root(self) -> nn.Module:
        """What the names of modules begin at."""
        return self.original if isinstance(self.original, nn.Module) else self

    def _compute(self, name: str) -> torch.Tensor:
        """A tensor that is computed from others, anew where one of them has changed."""
        recipe = self._recipes[name]
        if torch.compiler.is_compiling() or _dispatch_modes() or _jit_trace() or _transform():
            return recipe(self._find)  # recorded with the rest, or with tensors that are none
        sources = [self._find(source) for source in recipe.sources]
        now = signature(sources)
        held = self._made.get(name)
        if held is None or held[0] != now:
            with torch.no_grad():
                tensor = recipe(self._find).detach()
            # While the sources are held, no other tensor can come to the same address.
            held = self._made[name] = (now, [t.detach() for t in sources], tensor)
        return held[2]

    def __prepare_scriptable__(self) -> None:
        raise FuseError(
            "torch.jit.script compiles Python, which the fused forward is not; use torch.export or torch.jit.trace, "
            "which record the operator, or script the original module"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_runner": None, "_watch": None, "_last": None, "_made": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        share(self, self.original)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._around is not None:  # which was made of source text, and is made again
            return self._again, (self.original,)
        return super().__reduce_ex__(protocol)


def _inside(root: nn.Module, names: Iterable[str]) -> list[str]:
    """The names of these modules and of all that they hold."""
    held = [(name, root.get_submodule(name).named_modules()) for name in names]
    return [f"{name}.{inner}" if inner else name for name, modules in held for inner, _ in modules]


def share(module: nn.Module, original: Any) -> None:
    """Gives a module the parameters, buffers and submodules of another.

    The same dicts, not copies: what is added, replaced or moved on one side is so on the other.
    """
    module.__dict__["original"] = original
    if isinstance(original, nn.Module):
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            module.__dict__[name] = original.__dict__[name]
        module.training = original.training


def find(module: nn.Module, original: Any, path: tuple[str, ...]) -> Any:
    """A tensor or a module by the parts of its dotted name; plain attributes are the original's."""
    at: Any = module
    for part in path[:-1]:
        inner = at._modules.get(part)
        at = getattr(at, part) if inner is None else inner
    last = path[-1]
    found = at._parameters.get(last)
    if found is None:
        found = at._buffers.get(last)
    if found is None:
        found = at._modules.get(last)
    return getattr(original if at is module else at, last) if found is None else found


def same(value: Any, default: Any) -> bool:
    """Whether an argument is the default that a forward was traced with."""
    return value is default or (
        type(value) is type(default) and isinstance(value, (int, float, str)) and value == default
    )


def is_watched(x: torch.Tensor) -> bool:
    """Whether something records or transforms the operators that are called."""
    return (
        torch.compiler.is_compiling()
        or type(x) not in _PLAIN
        or bool(_dispatch_modes())
        or bool(_jit_trace())
        or bool(_transform())
    )


def _shapes(values: Sequence[Row | Loss | Pair]) -> list[tuple[str, tuple[int, ...]]]:
    """For each value the outputs of the program that it is made of, and for a pair the type that it has."""
    found: list[tuple[str, tuple[int, ...]]] = []
    seen: dict[int, tuple[str, tuple[int, ...]]] = {}
    count = 0
    for value in values:
        if id(value) not in seen:
            width = 2 if isinstance(value, Pair) else 1
            seen[id(value)] = (value.kind if isinstance(value, Pair) else "", tuple(range(count, count + width)))
            count += width
        found.append(seen[id(value)])
    return found


def _shaped(shape: tuple[str, tuple[int, ...]], results: Sequence[torch.Tensor]) -> Any:
    kind, places = shape
    return getattr(torch.return_types, kind)([results[i] for i in places]) if kind else results[places[0]]


def _describe(matcher: Matcher, rows: Sequence[Row]) -> str:
    """A line for each node that the results depend on: what it became."""
    steps: dict[Any, list[Step]] = {}
    for output in rows:
        for row, step in linearize(output):
            held = steps.setdefault(row.node, [])
            if step not in held or not rows[1:]:  # what results share is there once for each
                held.append(step)
    lines = []
    needed = {output.node for output in rows}
    for node in reversed(list(matcher.graph.nodes)):
        if node.op == "output" or node in needed:
            needed.update(node.all_input_nodes)
    for node in matcher.graph.nodes:
        if node not in needed or node.op in ("placeholder", "get_attr", "output"):
            continue
        names = [_step_text(step, matcher) for step in steps.get(node, [])]
        if node is rows[0].spine[0].node:
            names.insert(0, "linear")
        lines.append((node.name, " | ".join(names) or "(no operator)", node.meta.get(SOURCE, "")))
    widths = [max((len(line[i]) for line in lines), default=0) for i in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in lines)


def _step_text(step: Step, matcher: Matcher) -> str:
    if step.op == "cast":
        return f"cast to {step.dtype}"
    params = []
    for param in step.params:
        if isinstance(param, Column):
            params.append("#" + list(matcher.columns)[param.index].name)
        elif not isinstance(param, (int, float)):
            params.append("@" + name_of(param, matcher.leaves))
        elif step.op != "logprob":  # whose number says what is ignored
            params.append(f"{param:g}")
    return step.op + (f"({', '.join(params)})" if params else "")
