# SPDX-License-Identifier: MIT
"""W that is lent stays in the caller's memory, in rows: each kernel reads it there, when it may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rowfold
import sanitize
from cases import flat, make_case, same_bits
from cuda_kernels import FORCE, HOPPER, KERNELS, each, needs_cuda
from datasets import ALL
from torch_devices import needs_torch_cuda, torch

pytestmark = needs_cuda


@pytest.mark.parametrize("kernel", [*HOPPER, "mma_64x64", "mma_16x64"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_lent_weights_give_the_same_bits(kernel: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These kernels read W in rows, where the caller has it, and in blocks of the library's."""
    monkeypatch.setenv(FORCE, kernel)
    for shape in ((5, 8, 70), (40, 72, 259), (64, 264, 1000), (33, 1000, 64), (200, 136, 300), (20, 2056, 70)):
        for chain in ("linear | logsumexp", "linear", "linear | entropy"):
            case = make_case(chain, ALL["sigma5"](np.random.default_rng(0), *shape), dtype=dtype)
            with (
                sanitize.load(case, "f32", "none", borrow=False) as own,
                sanitize.load(case, "f32", "none", borrow=True) as lent,
            ):
                assert lent.info.prepared_bytes + case.w.nbytes <= own.info.prepared_bytes
                y = own(case.x)
                case.check(y, kernel, case.expected("cuda"))
                assert same_bits(y, lent(case.x))


@pytest.mark.parametrize("kernel", HOPPER)
@pytest.mark.parametrize("types", ["float16 float32", "bfloat16 float32", "bfloat16 float16"])
def test_lent_weights_beside_x_of_another_type(kernel: str, types: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In rows, which tiles read that cannot read blocks of as many columns beside three terms of x."""
    monkeypatch.setenv(FORCE, kernel)
    dtype, x_dtype = types.split()
    for batch, k, n in ((5, 72, 70), (40, 264, 259), (200, 1000, 300), (70, 2056, 130)):
        for chain in ("linear | logsumexp", "linear", "linear | entropy"):
            data = ALL["sigma5"](np.random.default_rng(batch), batch, k, n)
            case = sanitize.odd_rows(make_case(chain, data, dtype=dtype, x_dtype=x_dtype))
            with sanitize.load(case, "f32", "none", borrow=True) as lent:
                case.check(lent(case.x), kernel, case.expected("cuda"))


@pytest.mark.parametrize("chain", ["linear", *(f"linear | {r}" for r in ("logsumexp", "max, argmax", "topk(3)"))])
@pytest.mark.parametrize(("batch", "x_dtype"), [(3, "bfloat16"), (40, "bfloat16"), (200, "bfloat16"), (40, "float32")])
@needs_torch_cuda
def test_lent_weights_that_the_kernel_in_front_writes(
    monkeypatch: pytest.MonkeyPatch, chain: str, batch: int, x_dtype: str
) -> None:
    """A kernel of rowfold's own lets the next one begin as it begins itself: this one, of few blocks that take long,
    leaves multiprocessors to a call that is not to read W yet. In a stream and in a graph.
    """
    n, k, depth = 256, 520, 16384
    generator = torch.Generator("cuda").manual_seed(6)

    def random(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator).to(dtype)

    weight, x = torch.empty(n, k, dtype=torch.bfloat16, device="cuda"), random(batch, k, dtype=getattr(torch, x_dtype))
    makes = rowfold.Model("linear", depth, k, dtype="bfloat16", y_dtype="bfloat16", backend="cuda")
    makes.load_weights(random(k, depth) / 100)
    sources = [random(n, depth), random(n, depth)]
    for kernel in each(monkeypatch, ("", *KERNELS)):
        with rowfold.Model(chain, k, n, dtype="bfloat16", backend="cuda", simplify="none") as model:
            model.load_weights(weight, borrow=True)

            def pair() -> list:
                results = []
                for source in sources:
                    makes(source, out=weight)
                    results += flat(model(x))
                return results

            expected = []
            for source in sources:
                makes(source, out=weight)
                torch.cuda.synchronize()
                expected += [y.clone() for y in flat(model(x))]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = pair()
            for _ in range(10):
                results = pair()
                graph.replay()
                for y, again, wanted in zip(results, captured, expected):
                    assert torch.equal(y, wanted) and torch.equal(again, wanted), kernel
