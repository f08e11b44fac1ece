# SPDX-License-Identifier: MIT
"""``rowfold info``: the version, what can run here and why the rest cannot."""

from __future__ import annotations

import argparse
import json
import os
import platform
from typing import Any

from .. import _lib
from ..backends import backends, cpu_measure
from ..bench.machine import cores, cpu_name


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``info`` to the sub-commands."""
    parser = commands.add_parser(
        "info",
        help="say which version and backends there are, and why one cannot run",
        description="The version, the backends (best first) and what keeps one from running, and the CPU.",
    )
    parser.add_argument("--measure", action="store_true", help="also measure what the CPU does at best (0.2 s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints it; the exit status."""
    found = gather(arguments.measure)
    print(json.dumps(found, indent=1) if arguments.json else _text(found))
    return 0


def gather(measure: bool) -> dict[str, Any]:
    """All of it as plain data."""
    import rowfold

    found: dict[str, Any] = {
        "version": rowfold.__version__,
        "library": _lib.load().path,
        "backends": [b._asdict() for b in backends()],
        "cpu": {"name": cpu_name(), "cores": cores(), "machine": platform.machine()},
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("ROWFOLD_")},
    }
    if measure:
        found["cpu"].update(cpu_measure()._asdict())
    return found


def _text(found: dict[str, Any]) -> str:
    lines = [f"rowfold {found['version']}", f"library  {found['library']}", "backends, the best first"]
    width = max(len(b["name"]) for b in found["backends"])
    for backend in found["backends"]:
        state = (
            f"available{', by name alone' * backend['by_name']}" if backend["available"] else f"no: {backend['reason']}"
        )
        lines.append(f"  {backend['name']:{width}}  {state}")
    cpu = found["cpu"]
    lines.append(f"cpu      {cpu['name']} ({cpu['machine']}), {cpu['cores']} cores for this process")
    if "flops_per_second" in cpu:
        lines.append(
            f"         {cpu['flops_per_second'] / 1e9:.0f} GFLOP/s in float32 multiply-adds, "
            f"{cpu['bytes_per_second'] / 1e9:.1f} GB/s read"
        )
    lines += [f"{name}={value}" for name, value in found["environment"].items()]
    return "\n".join(lines)
