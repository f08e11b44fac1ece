# SPDX-License-Identifier: MIT
"""First inputs of the fuzz targets: corpus.py DIRECTORY writes DIRECTORY/{chain,file,forward}/seed-*."""

from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def operators() -> list[str]:
    """Each operator of the tables as text, with numbers for the parameters that it needs."""
    found = []
    text = "".join((ROOT / "lib" / name).read_text() for name in ("ops.def", "reductions.def"))
    for name, params in re.findall(r'^RFI_[A-Z_]+\(\w+,\s*\d+,\s*"([^"]+)",\s*(\w*)', text, re.MULTILINE):
        found += [f"{name}(2)", f"{name}(@v)", f"{name}(#r)"] if params == "RFI_PV" else [name]
        found += [f"{name}(1, 2)"] if params == "RFI_P2" else []
        found += [f"{name}(#t)"] if "RFI_RF_COLUMN" in params else []
    return found


def chains() -> list[bytes]:
    presets = re.findall(r'"(linear[^"]*)"', (ROOT / "lib" / "presets.def").read_text())
    texts = [f"linear | {op}" for op in operators()] + presets
    texts += ["linear(3, 5) | save | mish | mul_saved | sum", "preset:sum_pool", "linear(0, 5) | max | gelu"]
    texts += ["linear | mul(#r), logprob(#t), argmax, topk(2)", "linear | gather(#t) | sub(#r), rank(#t)"]
    how = [0b0010, 0b0110, 0b1010, 0b10110010]
    found = [bytes([how[i % len(how)] & ~1]) + text.encode() for i, text in enumerate(texts)]
    ops = [bytes([7]) + bytes(b for kind in range(start, start + 6) for b in (kind, 1, 3)) for start in range(0, 40, 6)]
    return found + ops


def tensor(dtype: str, shape: list[int], start: int, size: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}


def weight_files() -> list[bytes]:
    headers = [
        {"w": tensor("F32", [2, 2], 0, 16), "b": tensor("F32", [2], 16, 8), "__metadata__": {"format": "pt"}},
        {"w": tensor("BF16", [2, 2], 0, 8), "q": tensor("I64", [], 8, 8), "e": tensor("F64", [0, 3], 16, 0)},
        {f"t{i}": tensor("U8", [1] * (i % 9), i, 1) for i in range(20)},
    ]
    found = []
    for header in headers:
        text = json.dumps(header).encode()
        values = struct.pack("<16f", *range(16))
        found.append(b"\0" + struct.pack("<Q", len(text)) + text + values)
        found.append(b"\1" + text)
    for where in ({"w": "a", "b": "b"}, {"w": "a"}, {"w": "../a"}, {"w": "missing"}, {}):
        found.append(b"\2" + json.dumps({"metadata": {"total_size": 1}, "weight_map": where}).encode())
    return found


def forwards() -> list[bytes]:
    found = []
    for i in range(48):
        shape = bytes([i * 3 & 255, i * 5 & 127, i, i * 7 & 255, i * 11 & 255, i * 13 & 255])
        chain = bytes((i * j * 3 + j) & (255 if i % 2 else 127) for j in range(1, 1 + i % 9))
        found.append(shape + struct.pack("<I", i) + chain)
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    for name, inputs in (("chain", chains()), ("file", weight_files()), ("forward", forwards())):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(inputs):
            (folder / name / f"seed-{i:03}").write_bytes(data)


if __name__ == "__main__":
    main()
