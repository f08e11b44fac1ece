#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adds operators and a reduction to a copy of the tree, by the lists of HACKING.md alone: `tools/matrix rows`.

    python3 tools/trial.py TREE

softsign and celu have spellings of PyTorch, celu a parameter; norm1 is a reduction whose name PyTorch does not know.
What the tests of that tree then still miss, HACKING.md does not name. It says how many files were touched, and which
of them tools/generate.py wrote.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# File; how the line begins before which the new ones stand; these.
LINES = [
    (
        "lib/ops.def",
        "RFI_OP(SAVE,",
        'RFI_OP(SOFTSIGN, 136, "softsign", RFI_P0, RFI_OPF_INCREASING, x / (C(1) + ABS(x)), "x / (1 + |x|)")\n'
        'RFI_OP(CELU, 137, "celu", RFI_P1(alpha, 1.0), RFI_OPF_NONZERO_A, x > C(0) ? x : a * EXPM1(x / a), '
        '"x above 0, else alpha * (exp(x / alpha) - 1)")',
    ),
    (
        "lib/reductions.def",
        "/* Squares of what was brought near",
        'RFI_REDUCTION(NORM1, 216, "norm1", RFI_RF_EMPTY, C(0), m, (ADD, ABS(x), t0, C(1)), RFI_NO_TOTAL, t0, '
        '"the 1-norm of the columns")',
    ),
    (
        "tests/oracle/operators.py",
        '    "save": Row(',
        '    "softsign": Row(lambda x, a, b, s: x / (1 + np.abs(x)), ulps=2, inner=lambda x, a, b: 1 + np.abs(x)),\n'
        '    "celu": Row(lambda x, a, b, s: np.where(x > 0, x, a * np.expm1(x / a)), (("alpha", 1.0),), ulps=5,\n'
        "        slack=2, points=_at(0.0), inner=lambda x, a, b: np.where(x > 0, 0, np.exp(x / a)),\n"
        '        tried=("", "2", "-0.5")),',
    ),
    ("tests/oracle/reductions.py", '    "norm": Fold(', '    "norm1": Fold(like="abs | sum"),'),
    (
        "doc/operators.md",
        "| `save` | x itself",
        "| `softsign` | x / (1 + abs(x)) |\n| `celu(alpha=1)` | x above 0, else alpha * (exp(x / alpha) - 1) |",
    ),
    ("doc/operators.md", "| `norm` |", "| `norm1` | the 1-norm of the columns |"),
    (
        "python/rowfold/bench/unfused.py",
        '        "norm": lambda x: torch.',
        '        "norm1": lambda x: torch.linalg.vector_norm(x, 1, dim=1, keepdim=True),',
    ),
    (
        "python/rowfold/torch/spellings.py",
        "    # Choices.",
        '    Spelling("softsign", "", "softsign", "Softsign"),\n'
        '    Spelling("celu({alpha})", "alpha=1.0, inplace=False", "celu celu_", "CELU"),',
    ),
    (
        "doc/pytorch.md",
        "| the condition of where | `gt",
        "| softsign | `softsign` | `nn.Softsign` |\n| celu(alpha) | `celu` | `nn.CELU` |",
    ),
]


def add(tree: Path) -> tuple[list[str], list[str]]:
    """The files that it touched, and those that were then written anew."""
    for name, beginning, new in LINES:
        lines = (tree / name).read_text().splitlines()
        (at,) = [i for i, line in enumerate(lines) if line.startswith(beginning)]
        lines[at:at] = new.splitlines()
        (tree / name).write_text("\n".join(lines) + "\n")
    written = [tree / "lib/rowfold.h", *(tree / "doc").glob("*.[13]")]
    before = [path.read_text() for path in written]
    subprocess.run([sys.executable, "tools/generate.py"], cwd=tree, check=True)
    made = [str(path.relative_to(tree)) for path, text in zip(written, before) if path.read_text() != text]
    return list(dict.fromkeys(name for name, _, _ in LINES)), made


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1], "lib/ops.def").is_file() or Path(sys.argv[1], ".git").exists():
        sys.exit("usage: tools/trial.py TREE, a copy of the sources without .git")
    touched, made = add(Path(sys.argv[1]))
    print(f"{len(touched)} files: {' '.join(touched)}; written by tools/generate.py: {' '.join(made)}")
