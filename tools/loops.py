#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What stands between the products of the main loops of kernels for sm_90a, by their machine code.

    python tools/loops.py build/cuda/sm90/.libs/*.o

A line for each loop over products: how many wgmma it has of how many instructions, and what it should not have
(doc/kernels/hopper.md 80): moves to uniform registers and warps that are brought together, which the compiler puts
there where it does not see that a warp goes one way, and spills. It needs cuobjdump and nvdisasm of the CUDA toolkit,
or of PyPI (nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm). The status is 1 if a loop has more than MOST_MOVES moves, or
anything else that it should not have.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PRODUCT = "HGMMA"
UNWANTED = ("R2UR", "WARPSYNC", "LDL", "STL")  # a move to a uniform register, a warp brought together, spills
MOST_MOVES = 5  # to uniform registers: where a loop has more, all descriptors pass through them
DENSE = 0.7  # products an instruction, of the most in a loop of the kernel: see _main
_FUNCTION = re.compile(r"^\s*Function : (\w+)")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)([^;]*);")
_TF32_KERNEL = re.compile(r"fold_kernel.*Lb1EEEE")  # TF32 of sm90/config.cuh, the last of a configuration
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")


@dataclass(frozen=True)
class Loop:
    """A loop over products of a kernel, by its mangled name."""

    kernel: str
    products: int
    instructions: int
    unwanted: dict[str, int]  # those of UNWANTED that it has
    tf32: bool

    @property
    def density(self) -> float:
        """Products an instruction."""
        return self.products / self.instructions

    @property
    def is_clean(self) -> bool:
        """Whether it has a few moves at most."""
        return set(self.unwanted) <= {"R2UR"} and self.unwanted.get("R2UR", 0) <= MOST_MOVES

    def __str__(self) -> str:
        found = ", ".join(f"{count} {name}" for name, count in self.unwanted.items()) or "nothing else"
        return f"{self.products:3d} {PRODUCT} in {self.instructions:4d} instructions, {found}: {self.kernel}"


def search_path() -> str:
    """Where the tools are looked for: PATH, and what the packages of PyPI install."""
    installed = Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin")
    return os.pathsep.join([os.environ.get("PATH", ""), *map(str, installed)])


def missing_tools() -> list[str]:
    """Names of the tools that are not installed."""
    return [name for name in ("cuobjdump", "nvdisasm") if not shutil.which(name, path=search_path())]


def main_loops(lines: Iterator[str]) -> list[Loop]:
    """The innermost loops with products, of the output of `cuobjdump -sass`."""
    found: list[Loop] = []
    kernel, code = "", list[tuple[int, str, str]]()
    for line in lines:
        if function := _FUNCTION.match(line):
            found += _loops_of(kernel, code)
            kernel, code = function[1], []
        elif instruction := _INSTRUCTION.match(line):
            code.append((int(instruction[1], 16), instruction[2], instruction[3]))
    return found + _loops_of(kernel, code)


def _loops_of(kernel: str, code: list[tuple[int, str, str]]) -> list[Loop]:
    products = [at for at, name, _ in code if name == PRODUCT]
    spans = set[tuple[int, int]]()
    for at, name, operands in code:
        target = _TARGET.search(operands) if name == "BRA" else None
        if target and int(target[1], 16) <= at and any(int(target[1], 16) <= p <= at for p in products):
            spans.add((int(target[1], 16), at))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    loops = []
    for first, last in sorted(inner):
        body = [(name, operands) for at, name, operands in code if first <= at <= last]
        names = Counter(name for name, _ in body)
        tf32 = any(name == PRODUCT and ".TF32" in operands for name, operands in body)
        unwanted = {name: names[name] for name in UNWANTED if names[name]}
        loops.append(Loop(kernel, names[PRODUCT], len(body), unwanted, tf32))
    return _main(loops, bool(_TF32_KERNEL.search(kernel)))


def _main(loops: list[Loop], tf32: bool) -> list[Loop]:
    """Irregular rows have loops of their own, of both kinds of products, in which there is more to do beside these."""
    some = [loop for loop in loops if loop.tf32 == tf32]
    densest = max((loop.density for loop in some), default=0)
    return [loop for loop in some if loop.density >= DENSE * densest]


def loops_of(path: str | Path) -> list[Loop]:
    """The main loops of an object or a library."""
    command = ["cuobjdump", "-sass", "-arch", "sm_90a", str(path)]
    environment = os.environ | {"PATH": search_path()}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as dump:
        assert dump.stdout is not None
        loops = main_loops(iter(dump.stdout))
    if dump.returncode:
        raise SystemExit(f"loops.py: {path}: cuobjdump says {dump.returncode}")
    return loops


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="objects or libraries with code of sm_90a")
    files = parser.parse_args().files
    if missing := missing_tools():
        parser.error(f"{', '.join(missing)}: not found")
    clean = True
    for path in files:
        for loop in loops_of(path):
            print(loop, flush=True)
            clean &= loop.is_clean
    return int(not clean)


if __name__ == "__main__":
    sys.exit(main())
