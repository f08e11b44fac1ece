#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether two builds of the library give the same bits: random chains, shapes, types and data on every backend.

    python tools/same_bits.py --library OLD/librowfold.so --store bits.npz
    python tools/same_bits.py --library NEW/librowfold.so --against bits.npz

Both runs draw the same cases from the same seed, so they want the same --cases, --seed and --device, and a tests/
folder that makes the same data. With --device cuda the cases run with every kernel of the CUDA backend that takes them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

BEFORE = [
    "mul(2)", "mul(@v)", "add(@v)", "div(@v)", "neg", "abs", "relu", "gelu", "gelu(tanh)", "silu", "mish", "tanh",
    "softcap(3)", "clamp(-2, 2)", "save | mul_saved", "save | gelu | add_saved", "leaky_relu(0.01)",
    "exp | clamp(0, 9)",
]  # fmt: skip
BEHIND = ["gelu", "mul(0.5)", "exp", "save | mish | mul_saved", "logsumexp", "max", "sum", "add(-1)"]
REDUCTIONS = ["sum", "mean", "max", "min", "logsumexp", "logsumexp", ""]
SIZES = [1, 2, 3, 7, 16, 31, 48, 49, 64, 100, 256, 257, 300, 511, 1000, 2049]
TYPES = [("float64", "float64", "float64"), ("float64", "float64", "float32")] + [
    (w, x, y)
    for w in ("float32", "float16", "bfloat16")
    for x in ("float32", "float16", "bfloat16")
    for y in ("float32", "bfloat16", "float16")
]
WORK = 20_000_000  # multiply-adds of a case, at most


def drawn(count: int, seed: int, reductions: list[str]) -> Iterator[tuple[int, Any, dict[str, Any]]]:
    """Number, case and keywords of its model."""
    import datasets
    from cases import make_case

    for number in range(count):
        rng = np.random.default_rng([seed, number])
        sizes = [int(rng.choice(SIZES)) for _ in range(3)]
        while sizes[0] * sizes[1] * sizes[2] > WORK:
            at = sizes.index(max(sizes))
            sizes[at] = sizes[at] // 2 + 1
        parts = ["linear", *rng.choice(BEFORE, rng.integers(0, 4)), rng.choice(reductions)]
        if parts[-1]:
            parts += list(rng.choice(BEHIND, rng.integers(0, 3)))
        chain = " | ".join(part for part in parts if part)
        kind = rng.choice(sorted(datasets.ALL))
        data = datasets.ALL[kind](rng, *sizes)
        vectors = {"v": rng.normal(size=sizes[2])} if "@v" in chain else {}
        types = TYPES[rng.integers(len(TYPES))]
        keywords = {"simplify": str(rng.choice(["none", "exact", "algebraic"]))}
        yield number, make_case(chain, data, vectors, *types), keywords


def ways(device: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, keywords of the model and forced CUDA kernel of each way to compute a case."""
    import rowfold

    names = [b.name for b in rowfold.backends() if b.available]
    if device == "cpu":
        for name in names:
            if not name.startswith("cuda"):
                yield name, {"backend": name}, ""
                yield f"{name}, 2 threads", {"backend": name, "threads": 2}, ""
        return
    from cuda_kernels import KERNELS

    for kernel in ("", *KERNELS):
        yield kernel or "cuda", {"backend": "cuda"}, kernel


def results(args: argparse.Namespace) -> Iterator[tuple[str, str, np.ndarray]]:
    """Key, case in words and result, or the bytes of the refusal."""
    import rowfold

    every = list(ways(args.device))
    for number, case, keywords in drawn(args.cases, args.seed, args.reductions):
        for name, more, kernel in every:
            os.environ["ROWFOLD_CUDA_KERNEL"] = kernel
            if not kernel:
                del os.environ["ROWFOLD_CUDA_KERNEL"]
            try:
                y = case.run(**more, **keywords)
            except rowfold.Error as error:
                if "is no kernel of" in str(error):
                    continue
                y = np.frombuffer(str(error).encode(), np.uint8)
            yield f"{number} {name}", str(case), np.asarray(y)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="the librowfold.so to ask")
    parser.add_argument("--python", default=str(ROOT / "python"), help="the folder of the package that belongs to it")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--store", help="file to write the results to")
    action.add_argument("--against", help="file of the results to expect")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--reductions", nargs="+", default=REDUCTIONS)
    args = parser.parse_args()
    os.environ["ROWFOLD_LIBRARY"] = args.library
    sys.path.insert(0, args.python)

    from cases import same_bits

    if args.store:
        save: Any = np.savez
        save(args.store, **{key: y.view(f"u{y.dtype.itemsize}") for key, _, y in results(args)})
        return
    expected, count, wrong, new = np.load(args.against), 0, 0, 0
    for key, text, y in results(args):
        if key not in expected:  # a backend or kernel that the other build does not have
            new += 1
            continue
        count += 1
        if same_bits(expected[key].view(y.dtype), y):
            continue
        wrong += 1
        print(f"{key}: {text}")
    print(f"{count} results, {wrong} of them different; {new} of ways that the other build does not have")
    sys.exit(wrong > 0 or not count)


if __name__ == "__main__":
    main()
