#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Do the tests notice a mistake? Plants each mutant of tests/mutants.txt, builds, and runs tests until one fails.

    tools/mutate.py run [--only TEXT] [--from N] [--to N]      the score, and the mutants that nothing noticed
    tools/mutate.py check                                      every mutant still has its place (a test runs this)
    tools/mutate.py propose FILE...                            mechanical mutants of a file, to choose from

A mutant is a file, a text that stands there once, and what it becomes. Works on a copy of what git tracks, below --work
(build-mutants/), whose build is incremental: CPU only, one vector kernel beside the generic one, -O1, ccache if it is
there. One that does not compile is no mutant and an error of the set. A mutant with a line "= why" changes no result
that is promised (only speed, or nothing at all), and is not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "tests" / "mutants.txt"
TIMEOUT = 300  # seconds without a verdict are one, too: the mutant stands still

# The quickest first. Python tests are the reference's and the generic kernel's as well as the best backend's.
C_TESTS = (
    "test_sizes test_plan test_collapse test_blocking test_vmath test_explain test_chain test_rounding test_api "
    "test_file test_header_0_1 test_cpu_threads test_signals test_fp_mode test_file_faults test_cpu_invariance "
    "test_malloc"
).split()
PYTHON_TESTS = "test_semantics.py test_rewrites.py test_edges.py test_weights.py test_fuzz.py".split()
INTERNAL = ("test_plan", "test_collapse", "test_blocking", "test_vmath", "test_explain")


class Mutant(NamedTuple):
    """``why`` is the reason that it changes no promised result, or empty."""

    number: int
    file: str
    old: str
    new: str
    why: str

    def __str__(self) -> str:
        return f"{self.number:3} {self.file}: {self.old.strip()!r} -> {self.new.strip()!r}"


def read(path: Path = MUTANTS) -> list[Mutant]:
    """The set: a line with the file, then pairs of "- text" and "+ text", each perhaps with "= why" behind."""
    found: list[Mutant] = []
    file, old = "", ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        mark, text = line[:2], line[2:]
        if mark == "- ":
            old = text
        elif mark == "+ " or line == "+":
            found.append(Mutant(len(found) + 1, file, old, text, ""))
        elif mark == "= ":
            found[-1] = found[-1]._replace(why=text)
        elif re.fullmatch(r"[\w./-]+", line):
            file = line
        else:
            raise SystemExit(f"{path}:{number}: neither a file nor '- ', '+ ' or '= '")
    return found


def misplaced(mutants: list[Mutant]) -> list[str]:
    """What is wrong with the set against the files as they are."""
    wrong = []
    for mutant in mutants:
        count = (ROOT / mutant.file).read_text().count(mutant.old)
        if count != 1 or mutant.old == mutant.new:
            wrong.append(f"{mutant}: stands {count} times in the file")
    return wrong


SWAPS = [
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r"\b1\b", "2"),
    (r"\b0\b", "1"),
    (r"!(?=[a-z*(])", ""),
]


def propose(path: Path) -> list[tuple[str, str]]:
    """Every mechanical change of one place in a line of code that stands there once."""
    found, inside = [], False
    lines = path.read_text().splitlines()
    for line in lines:
        code = line.strip()
        inside = inside or code.startswith("/*")
        if inside:
            inside = "*/" not in code
            continue
        if not code or code.startswith("#") or "rfi_error" in code or lines.count(line) > 1 or '"' in code:
            continue
        for pattern, new in SWAPS:
            for match in re.finditer(pattern, line):
                found.append((line, line[: match.start()] + new + line[match.end() :]))
        if code.endswith(";") and re.match(r"(?!return)(\*?[\w.>\[\]-]+ [+|&-]?= |\w+\()", code):
            found.append((line, line[: len(line) - len(line.lstrip())] + ";"))
    return found


class Tree:
    """A copy of the sources and a build of it."""

    def __init__(self, work: Path) -> None:
        self.source, self.build = work / "source", work / "build"
        self.python = sys.executable

    def prepare(self) -> None:
        """Copies what git tracks, and what is new; configures and builds once."""
        tracked = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        for name in tracked:
            to = self.source / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file() and (not to.exists() or to.read_bytes() != (ROOT / name).read_bytes()):
                shutil.copy(ROOT / name, to)  # with a time of its own: what an interrupted run left is built anew
        if not (self.source / "configure").exists():
            subprocess.run(["autoreconf", "-fi"], cwd=self.source, check=True, capture_output=True)
        self.build.mkdir(exist_ok=True)
        if not (self.build / "Makefile").exists():
            compiler = os.environ.get("CC") or ("ccache gcc" if shutil.which("ccache") else "gcc")
            flags = ["--quiet", "--with-cuda=no", "--disable-avx2", f"PYTHON={self.python}"]
            flags += [f"CC={compiler}", "CFLAGS=-O1"]
            subprocess.run([str(self.source / "configure"), *flags], cwd=self.build, check=True)
        if not self.make("all", *(f"tests/c/{name}" for name in C_TESTS)):
            raise SystemExit("the tree does not build as it is")

    def make(self, *targets: str) -> bool:
        """Whether it builds."""
        command = ["make", "-s", "-j", str(os.cpu_count()), *targets]
        return subprocess.run(command, cwd=self.build, capture_output=True).returncode == 0

    def compile(self) -> bool:
        """The library, and the programs that look inside it. The others are linked with it when they start."""
        return self.make("lib/librowfold.la", *(f"tests/c/{name}" for name in INTERNAL))

    def failing(self, python: bool) -> str:
        """The first test that fails; "" where none does."""
        library = self.build / "lib" / ".libs"
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": "python"}
        environment["ROWFOLD_LIBRARY"] = str(library / "librowfold.so")
        for name in C_TESTS:
            program = self.build / "tests" / "c" / ".libs" / name
            program = program if program.exists() else self.build / "tests" / "c" / name
            if self._fails([str(program)], self.build, environment):
                return name
        for name in PYTHON_TESTS if python else ():
            options = ["-q", "-x", "-p", "no:cacheprovider", "--backends=cpu-avx512,cpu-generic,reference"]
            if self._fails([self.python, "-m", "pytest", *options, f"tests/{name}"], self.source, environment):
                return name
        return ""

    @staticmethod
    def _fails(command: list[str], folder: Path, environment: dict[str, str]) -> bool:
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            return process.wait(TIMEOUT) not in (0, 77)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True


def run(arguments: argparse.Namespace) -> int:
    """Runs the mutants and prints a line for each; the exit status is 1 if the score is below 95 %."""
    mutants = read()
    wrong = misplaced(mutants)
    if wrong:
        raise SystemExit("\n".join(wrong))
    chosen = [
        m for m in mutants if arguments.only in str(m) and arguments.first <= m.number <= arguments.last and not m.why
    ]
    tree = Tree(arguments.work.resolve())
    tree.prepare()
    failing = tree.failing(not arguments.c_tests)
    if failing:
        raise SystemExit(f"{failing} fails without any mutant")
    log = arguments.work / "results.json"
    results: dict[str, str] = json.loads(log.read_text()) if log.exists() and arguments.resume else {}
    for mutant in chosen:
        key = str(mutant)[4:]
        if key not in results:
            results[key] = _verdict(tree, mutant, not arguments.c_tests)
            log.write_text(json.dumps(results, indent=1))
        print(f"{mutant}: {results[key]}", flush=True)
    killed = sum(results[str(m)[4:]].startswith("killed") for m in chosen)
    print(f"{killed} of {len(chosen)} mutants were noticed")
    return int(killed < 0.95 * len(chosen))


def _verdict(tree: Tree, mutant: Mutant, python: bool) -> str:
    place = tree.source / mutant.file
    text = (ROOT / mutant.file).read_text()
    start = time.monotonic()
    try:
        place.write_text(text.replace(mutant.old, mutant.new))
        if not tree.compile():
            return "does not compile"
        failing = tree.failing(python)
    finally:
        place.write_text(text)
    return f"killed by {failing} in {time.monotonic() - start:.0f} s" if failing else "SURVIVED"


def check(_: argparse.Namespace) -> int:
    """Prints what is wrong with the set."""
    wrong = misplaced(read())
    print("\n".join(wrong) or f"{len(read())} mutants have their places")
    return int(bool(wrong))


def print_proposals(arguments: argparse.Namespace) -> int:
    """In the form of the set."""
    for file in arguments.files:
        for old, new in propose(file):
            print(f"{file}\n- {old}\n+ {new}")
    return 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--only", default="", help="mutants whose line has this text")
    runs.add_argument("--from", dest="first", type=int, default=1)
    runs.add_argument("--to", dest="last", type=int, default=1 << 30)
    runs.add_argument("--work", type=Path, default=ROOT / "build-mutants")
    runs.add_argument("--c-tests", action="store_true", help="without the Python tests")
    runs.add_argument("--resume", action="store_true", help="keep the verdicts of an earlier run")
    runs.set_defaults(run=run)
    commands.add_parser("check").set_defaults(run=check)
    proposes = commands.add_parser("propose")
    proposes.add_argument("files", nargs="+", type=Path)
    proposes.set_defaults(run=print_proposals)
    chosen = parser.parse_args()
    return int(chosen.run(chosen))


if __name__ == "__main__":
    sys.exit(main())
