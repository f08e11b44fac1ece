# SPDX-License-Identifier: MIT
"""rowfold on a CUDA device beside PyTorch, eager and compiled: one process, the same arrays, interleaved repetitions.

A sample is a replay of a CUDA graph that calls the contender once for each of several copies of x, so that neither the
interpreter nor the caches take part; where a contender cannot be captured, its calls are timed back to back. Everything
a call does is in it. Errors are those of up to ERROR_ROWS rows against float64 on the same stored inputs.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

import numpy as np

from ..errors import Error, first_line
from ..model import Model
from ..ops import Chain, presets
from .cases import Case
from .contenders import CHUNK, TORCH_LABELS
from .data import Array
from .runner import CaseResult, Result
from .unfused import errors_of, flat, given_of, results, sampled_rows, torch_all
from .watchdog import TIME_LIMIT, watched

COPIES = 4  # of x, in turn
LEAST_SAMPLE_SECONDS = 2e-3  # calls of a graph are repeated until it takes so long
WARM_UP = 3
REFERENCE_COLUMNS = 8192  # of W, widened to float64 at a time
ERROR_ROWS = 256  # compared with float64, which costs a GPU milliseconds


@dataclass(frozen=True)
class GpuCase(Case):
    """A case with the precision of its products; float32 alone has a choice."""

    math: str = "f32"

    @property
    def label(self) -> str:
        """With the precision."""
        return super().label + ("" if self.math == "f32" else f", math={self.math}")


@dataclass
class GpuResult(CaseResult):
    """Results without a bound: a product in three parts and one in a single part have different ones."""

    device: str = ""  # what CUDA calls it, and PyTorch's version

    def where(self, threads: int) -> str:
        """The device."""
        return self.device

    @property
    def arithmetic_bound(self) -> bool:
        """Whether a rate in operations says more than one in bytes: from a batch of 128 on."""
        return self.case.batch >= 128

    def fraction(self, result: Result) -> float | None:
        """None."""
        return None

    def best_fraction(self, result: Result) -> float | None:
        """None."""
        return None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = [{**vars(r), "error": r.json_error, "median": r.median if r.seconds else None} for r in self.results]
        return {
            "case": self.case.as_dict(),
            "device": self.device,
            "error_rows": self.error_rows,
            "results": rows,
        }


def default_cases() -> list[GpuCase]:
    """The shapes that the library is judged by."""
    chains = {**presets(), "max": "linear | max", "logsumexp": "linear | logsumexp"}
    square, vocabulary = (8192, 8192), (4096, 128256)
    table = [(name, 1024, square, "float32", "f32") for name in (*presets(), "max")]
    for name in ("logsumexp_gelu", "scale_clamp_mish"):
        table.append((name, 1024, square, "float32", "tf32"))
        table += [(name, 1024, square, dtype, "f32") for dtype in ("bfloat16", "float16")]
    table.append(("logsumexp_gelu", 1024, square, "float64", "f32"))
    for dtype in ("float32", "bfloat16"):
        table += [("logsumexp", batch, square, dtype, "f32") for batch in (1, 8, 16, 64)]
    for batch, dtype in ((1024, "bfloat16"), (1024, "float32"), (8192, "bfloat16")):
        table.append(("logsumexp", batch, vocabulary, dtype, "f32"))
    return [
        GpuCase(name, chains[name], batch, *shape, dtype=dtype, math=math) for name, batch, shape, dtype, math in table
    ]


class Inputs:
    """A case's arrays on the device, and the expected values of its sampled rows."""

    def __init__(self, case: GpuCase, device: str) -> None:
        self.torch: Any = importlib.import_module("torch")
        x, weight, bias = (self._tensor(values, case, device) for values in case.inputs())
        self.weight, self.bias = weight, bias
        self.vectors = {n: self.torch.from_numpy(v).to(device, weight.dtype) for n, v in case.vectors().items()}
        self.row_inputs = {n: self.torch.from_numpy(v).to(device) for n, v in case.rows().items()}
        order = np.random.default_rng(case.seed)
        self.x = [x] + [x[self.torch.from_numpy(order.permutation(case.batch)).to(device)] for _ in range(COPIES - 1)]
        if case.row_stride:
            self.x = [self._with_gaps(values, case.row_stride) for values in self.x]
        self.rows = sampled_rows(case.batch, ERROR_ROWS)
        self.expected = self._reference(Chain.parse(case.chain))

    def _tensor(self, values: Array, case: GpuCase, device: str) -> Any:
        if case.dtype == "bfloat16":
            return self.torch.from_numpy(values.view(np.int16)).to(device).view(self.torch.bfloat16)
        return self.torch.from_numpy(values).to(device)

    def _with_gaps(self, x: Any, row_stride: int) -> Any:
        apart = x.new_full((len(x), row_stride), float("nan"))
        apart[:, : x.shape[1]] = x
        return apart[:, : x.shape[1]]

    def given(self, dtype: Any) -> dict[str, Any]:
        """Vectors and row inputs for ``unfused.results``, numbers in a dtype."""
        rows = {n: v.to(dtype) if v.is_floating_point() else v for n, v in self.row_inputs.items()}
        return given_of({name: values.to(dtype) for name, values in self.vectors.items()}, rows)

    def _reference(self, chain: Chain) -> list[Array]:
        rows = self.x[0][self.rows].double()
        blocks = [rows @ w.double().T for w in self.weight.split(REFERENCE_COLUMNS)]
        logits = self.torch.cat(blocks, 1) + self.bias.double()
        given = self.given(self.torch.float64)
        some = {name: values[self.rows] if name.startswith("#") else values for name, values in given.items()}
        return [values.cpu().numpy() for values in results(chain, logits, torch_all(), some)]


Call = Callable[[Any], Any]  # x to y, on the device, or to several


def _flat(y: Any) -> list[Any]:
    return y if isinstance(y, list) else flat(y)


Maker = Callable[[], tuple[Call, dict[str, Any]]]


def _rowfold(
    case: GpuCase, inputs: Inputs, device: str, simplify: str, backend: str | None
) -> tuple[Call, dict[str, Any]]:
    model = Model(
        case.chain,
        case.in_features,
        case.out_features,
        dtype=case.dtype,
        math=case.math,
        simplify=simplify,
        device=device,
        backend=backend,
    )
    model.load_weights(inputs.weight, inputs.bias, inputs.vectors)
    plan = model.explain(case.batch, "json")
    about = {"backend": plan.get("kernel") or model.info.backend, "explain": plan}
    about["workspace_bytes"] = model.workspace_size(x=inputs.x[0])  # any x of so many rows may need more
    return partial(model, **inputs.row_inputs) if inputs.row_inputs else model, about


def _torch(case: GpuCase, inputs: Inputs, compiled: bool, chunk: int = 0) -> tuple[Call, dict[str, Any]]:
    torch, table, chain = inputs.torch, torch_all(), Chain.parse(case.chain)
    given = inputs.given(inputs.weight.dtype)

    def forward(x: Any) -> Any:
        return results(chain, torch.nn.functional.linear(x, inputs.weight, inputs.bias), table, given)

    def chunked(x: Any) -> Any:
        found = []
        for first in range(0, len(x), chunk):
            part = slice(first, first + chunk)
            some = {name: v[part] if name.startswith("#") else v for name, v in given.items()}
            logits = torch.nn.functional.linear(x[part], inputs.weight, inputs.bias)
            found.append(results(chain, logits, table, some))
        return [torch.cat(pieces) for pieces in zip(*found)]

    if chunk:
        return chunked, {"version": torch.__version__, "chunk": chunk}
    if compiled:
        torch._dynamo.reset()
    return (torch.compile(forward, dynamic=False) if compiled else forward), {"version": torch.__version__}


class Runner:
    """Measures cases on one device. ``say`` receives a line on each step.

    A case that takes more than ``limit`` seconds ends the process: nothing else ends a kernel that stands still.
    """

    def __init__(self, device: str, repeat: int, say: Callable[[str], None], limit: float = TIME_LIMIT) -> None:
        try:
            self.torch: Any = importlib.import_module("torch")
        except ModuleNotFoundError:
            raise SystemExit(f"rowfold bench: --device {device} needs PyTorch, which is not installed") from None
        try:
            self.torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise SystemExit(f"rowfold bench: --device {device}: {first_line(error)}") from None
        self.device, self.repeat, self.say, self.limit = device, repeat, say, limit

    def measure(
        self, case: GpuCase, simplify: Sequence[str], competitors: Sequence[str], backend: str | None
    ) -> GpuResult:
        """One case: rowfold with each of the rewrites allowed, and the competitors."""
        with watched(f"{case.label}, seed {case.seed}", self.limit):
            return self._measure(case, simplify, competitors, backend)

    def _measure(
        self, case: GpuCase, simplify: Sequence[str], competitors: Sequence[str], backend: str | None
    ) -> GpuResult:
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = case.math == "tf32"
        self.say(f"{case.label}: drawing the inputs")
        inputs = Inputs(case, self.device)
        makers: dict[str, Maker] = {}
        for mode in simplify:
            makers[f"rowfold ({mode})"] = partial(_rowfold, case, inputs, self.device, mode, backend)
        for name in competitors:
            chunk = CHUNK if name == "torch-chunked" else 0
            makers[TORCH_LABELS[name]] = partial(_torch, case, inputs, name == "torch-compile", chunk)
        results = [self._prepare(case, label, maker, inputs) for label, maker in makers.items()]
        with torch.no_grad():
            for _ in range(self.repeat):
                for result, sample in results:
                    if sample:
                        result.seconds.append(sample())
        about = f"{torch.cuda.get_device_name(self.device)}, PyTorch {torch.__version__}"
        return GpuResult(case, [result for result, _ in results], [], len(inputs.rows), about)

    def _prepare(
        self, case: GpuCase, label: str, maker: Maker, inputs: Inputs
    ) -> tuple[Result, Callable[[], float] | None]:
        torch, result = self.torch, Result(label)
        self.say(f"{case.label}: starting {label}")
        try:
            with torch.no_grad():
                call, result.about = maker()
                for _ in range(WARM_UP):
                    y = call(inputs.x[0])
                torch.cuda.synchronize()
                made = [values[inputs.rows].double().cpu().numpy() for values in _flat(y)]
                result.error = errors_of(made, inputs.expected)
                result.extra_memory_bytes = result.about.get("workspace_bytes")
                if result.extra_memory_bytes is None:
                    result.extra_memory_bytes = self._memory(call, inputs, y)
                plan: Mapping[str, Any] | None = result.about.get("explain")
                if plan:
                    result.algebraic = plan["fused"]["flops"] < plan["unfused"]["flops"] / 2
                return result, self._sampler(call, inputs)
        except (Error, RuntimeError) as error:
            result.missing = str(error).strip().splitlines()[-1]
            return result, None

    def _memory(self, call: Call, inputs: Inputs, y: Any) -> int:
        """Bytes beside the inputs and the result that a call takes at its highest."""
        self.torch.cuda.reset_peak_memory_stats()
        before: int = self.torch.cuda.memory_allocated()
        call(inputs.x[0])
        self.torch.cuda.synchronize()
        peak: int = self.torch.cuda.max_memory_allocated()
        result: int = sum(values.nelement() * values.element_size() for values in _flat(y))
        extra: int = max(0, peak - before - result)
        return extra

    def _sampler(self, call: Call, inputs: Inputs) -> Callable[[], float]:
        """A function that returns the seconds of one call."""
        torch = self.torch

        def calls() -> None:
            for x in inputs.x:
                call(x)

        replay = calls
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                calls()
            replay = graph.replay
        except RuntimeError:
            torch.cuda.synchronize()
        replay()
        torch.cuda.synchronize()

        def events(rounds: int) -> float:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(rounds):
                replay()
            end.record()
            end.synchronize()
            elapsed: float = start.elapsed_time(end) * 1e-3
            return elapsed / (rounds * len(inputs.x))

        once = statistics.median(events(1) for _ in range(3)) * len(inputs.x)
        rounds = max(1, int(LEAST_SAMPLE_SECONDS / max(once, 1e-7)))

        def sample(_owner: Call = call) -> float:  # a graph does not keep the model alive whose memory it reads
            return events(rounds)

        return sample
