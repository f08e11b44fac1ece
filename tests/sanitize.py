# SPDX-License-Identifier: MIT
"""Every CUDA kernel over small odd shapes, on arrays whose ends and gaps a checking tool can see.

    python tests/sanitize.py [KERNEL ...]           all rows of cuda/kernels.def, collapse and preparation included
    compute-sanitizer --tool racecheck python tests/sanitize.py

Each kernel is forced over every form of W and x that it is compiled for, with and without a reduction, and its results
are judged by the oracle. Rows that terms of binary16 cannot hold are among the others. A status of 77 says that there
is no GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import cuda_kernels
import datasets
import numpy as np
import rowfold
from cases import Case, make_case
from device_array import DeviceArray
from stored import store

# dtype of W, of x, and the accuracy of the products: all that the kernels are compiled for. Of x that a model was not
# told of the kernel is the one that it would take for x as expected; a call may take another.
FORMS = {
    "float32": ("float32", "float32", "f32"),
    "wide float32": ("float32", "float32", "f32"),
    "infinite float32": ("float32", "float32", "f32"),
    "tf32": ("float32", "float32", "tf32"),
    "wide tf32": ("float32", "float32", "tf32"),
    "bfloat16": ("bfloat16", "bfloat16", "f32"),
    "float16": ("float16", "float16", "f32"),
    "float32 W, 16-bit x": ("float32", "float16", "f32"),
    "16-bit W, float32 x": ("bfloat16", "float32", "f32"),
    "16-bit W, float32 x untold": ("bfloat16", "float32", "f32"),
    "two 16-bit types": ("float16", "bfloat16", "f32"),
    "two 16-bit types, bfloat16 W": ("bfloat16", "float16", "f32"),
    "float16 W, float32 x": ("float16", "float32", "f32"),
    "float64": ("float64", "float64", "f32"),
}
# (batch, K, N). Less than a tile and a little more in each dimension, the widths of batch that the small tiles are
# compiled for and some of those of larger ones; a K that goes round every ring of stages; so many columns that a
# persistent block has several tiles and that states are merged in two levels.
SHAPES = [(1, 33, 1), (5, 70, 67), (12, 129, 67), (19, 37, 131), (40, 65, 200), (67, 37, 131), (130, 129, 259)]
SHAPES += [(7, 2100, 70), (3, 40, 21000), (200, 129, 259), (280, 70, 131), (300, 70, 131), (150, 420, 259)]
# One stage of K and hundreds of tiles: what tells blocks their tiles is as busy as it can be. And K that clusters of
# three, four and eight blocks share out, with several tiles for each; eight leave a stage to the last of few numbers.
SHAPES += [(520, 8, 3000), (600, 420, 900), (560, 420, 900), (70, 500, 140), (41, 1000, 70), (130, 500, 259)]
SHAPES += [(20, 500, 131)]
CHAINS = [
    "linear | logsumexp | gelu",
    "linear | mul(@v) | max",
    "linear | save | mul(0.5) | add_saved | clamp(-1, 1) | sum",
    "linear | gelu | entropy",
    "linear | logsumexp, topk(1)",
    "linear | max, logsumexp",
    "linear | var",
]
COLLAPSES = ["linear | sum", "linear | mul(@v) | mean | gelu"]
WATCHDOG_SECONDS = 1200  # for one form of one kernel, under a tool that makes it a hundred times slower
COLLAPSE = "collapse"  # the one kernel that is no row of kernels.def


def odd_rows(case: Case) -> Case:
    """Among ordinary rows, such as take another path: infinities, zeros, subnormals, a range that terms cannot hold."""
    x = case.x.copy()
    if len(x) >= 5 and case.x_dtype != "bfloat16":  # whose bits these numbers are not
        tiny, top = np.finfo(x.dtype).smallest_subnormal, np.finfo(x.dtype).max
        x[1, 2], x[2] = np.inf, 0
        x[3, 4:], x[3, :4] = tiny, 0
        x[4, ::2], x[4, 1::2] = top / 1e4, tiny
    if len(x) >= 12 and case.x_dtype == "float32":  # two levels, and rows of one beside them
        x[7] *= 10 ** np.linspace(-9, 9, x.shape[1], dtype=np.float32)
        x[9, 1], x[10, ::3] = np.nan, np.inf
        x[6, -1], x[8], x[8, 1] = 1e20, 0, 1.5  # values that outweigh all others
    return replace(case, x=x)


def cases(chains: list[str], shapes: list[tuple[int, int, int]], form: str) -> Iterator[Case]:
    w_dtype, x_dtype, _ = FORMS[form]
    for i, shape in enumerate(shapes):
        for chain in ("linear", chains[i % len(chains)]):
            rng = np.random.default_rng([i, len(chain)])
            vectors = {"v": rng.normal(size=shape[2])} if "@v" in chain else {}
            data = datasets.sigma5(rng, *shape)
            if form.startswith("wide"):  # more than two terms of binary16 hold
                data = data._replace(w=data.w * 10 ** rng.uniform(-12, 3, data.w.shape))
            if form in ("float32", "tf32"):  # then x may rest on what two levels leave
                data.w[np.arange(shape[1]) % shape[2], np.arange(shape[1])] = 0
            if form == "infinite float32":  # several in a row, of few rows or of many, and rows without
                data.w[:: 2 if i % 3 == 2 else max(2, shape[2] // 40), -2:] = np.inf
            y_dtype = w_dtype if chain == "linear" and "16" in w_dtype and i % 3 != 1 else None
            case = make_case(chain, data, vectors, w_dtype, x_dtype, y_dtype)
            yield odd_rows(replace(case, told=not form.endswith("untold")))


def on_device(case: Case, model: rowfold.Model, width: int, aligned: bool) -> np.ndarray:
    """The result of a call on device memory, x and y with gaps between their rows that nobody wrote."""
    k = case.x.shape[1]
    x = DeviceArray(case.x, (k + 7) // 8 * 8) if aligned else DeviceArray(case.x, k + 1 + k % 2, 1)
    y = DeviceArray(
        store(np.full((len(case.x), width), 7.0), case.y_dtype), (width + 7) // 8 * 8 + 8 if aligned else width + 3
    )
    model(x, out=y)
    return y.numpy()


def load(case: Case, math: str, simplify: str, borrow: bool) -> rowfold.Model:
    n, k = case.w.shape
    model = rowfold.Model(
        case.chain,
        k,
        n,
        dtype=case.dtype,
        x_dtype=case.expected_x,
        y_dtype=case.y_dtype,
        math=math,
        simplify=simplify,
        backend="cuda",
    )
    if not borrow:
        return model.load_weights(case.w, case.b, case.vectors)
    # Lent, W is read where it is, with the gaps between its rows; a multiple of 16 bytes lets it be.
    vectors = {name: DeviceArray(v) for name, v in case.vectors.items()}
    return model.load_weights(DeviceArray(case.w, (k + 7) // 8 * 8), DeviceArray(case.b), vectors, borrow=True)


def runs(kernel: str, form: str) -> int:
    """Runs a kernel over the cases of a form that it can do, and says how many. AssertionError for a wrong result."""
    collapse, math, done = kernel == COLLAPSE, FORMS[form][2], 0
    os.environ[cuda_kernels.FORCE] = "" if collapse else kernel
    for i, case in enumerate(cases(COLLAPSES if collapse else CHAINS, SHAPES, form)):
        with load(case, math, "algebraic" if collapse else "none", borrow=i % 4 > 1 and "16" in case.dtype) as model:
            if not model.explain(len(case.x), "json")["kernel"].startswith(f"{kernel},"):
                continue
            if "," in case.chain:
                case.check_results(model(case.x), "cuda", f"{kernel}, {form}", case.expected_results("cuda", math))
            else:
                expected = case.expected("cuda", math)
                y = on_device(case, model, expected.value.shape[1], aligned=i // 2 % 2 == 0)
                case.check(y, f"{kernel}, {form}", expected)
            done += 1
    return done


def main() -> int:
    names = [*cuda_kernels.KERNELS, COLLAPSE]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=", ".join(names))
    wanted = parser.parse_args().kernels or names
    if set(wanted) - set(names):
        parser.error(f"there are {', '.join(names)}")
    backend = next(b for b in rowfold.backends() if b.name == "cuda")
    if not backend.available:
        print(f"skipped: backend cuda: {backend.reason}")
        return 77
    for kernel in wanted:
        for form in FORMS:
            faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
            start = time.monotonic()
            if done := runs(kernel, form):
                print(f"{kernel}, {form}: {done} cases right, {time.monotonic() - start:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
