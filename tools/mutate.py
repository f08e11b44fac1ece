#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Do the tests notice a mistake? Plants each mutant of tests/mutants.txt, builds, and runs tests until one fails.

    tools/mutate.py run [-j N] [--from N] [--to N] [--every N] [--only TEXT]    the score, and what nothing noticed
    tools/mutate.py check                     every mutant still has its place (a test runs this)
    tools/mutate.py propose FILE...           mechanical mutants of a file, to choose from
    tools/mutate.py pack                      Jansson beside the builds, for a machine without it

A mutant is a file, a text that stands there once, and what it becomes. One that does not compile is no mutant and an
error of the set. A mutant with a line "= why" changes no result that is promised (only speed, or nothing at all), and
is not run.

Works on copies of what git tracks, below --work (build-mutants/), one for each of -j mutants at a time. They are built
by the compiler alone ($CC, or gcc), from the lists of the local.mk: -O1, CPU only, one vector kernel beside the generic
one. So a machine with a compiler, Jansson and a Python with numpy, pytest and hypothesis will do: no Autotools.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "tests" / "mutants.txt"
# A test that takes so much longer than without a mutant stands still, which is a verdict, too.
PATIENCE_SECONDS, PATIENCE = 60, 10
# What a mutant may change, and what compiling and testing it needs.
FOLDERS = ("lib", "cuda", "tests", "python", "examples", "doc", "tools")
# Python tests are the reference's and the generic kernel's as well as the best backend's.
PYTHON_TESTS = [
    f"test_{name}.py"
    for name in ("semantics", "rewrites", "edges", "errors", "weights", "pairs", "terms", "fuzz", "explain", "results")
]
BACKENDS = "cpu-avx512,cpu-generic,reference"
NOT_RUN = ("tests/c/version",)  # which compares the version of a release

FLAGS = "-std=gnu11 -O1 -fPIC -pthread -DHAVE_CONFIG_H -I. -Ilib".split()
KERNEL_FLAGS = "-fno-math-errno -fno-trapping-math".split()
AVX512_FLAGS = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512".split()
CONFIG = """#define PACKAGE_VERSION "0"
#define RFI_BUILD_AVX512 1
#define RFI_BUILD_AVX512_BF16 1
"""


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


def make_variables(*paths: Path) -> dict[str, list[str]]:
    """The lists of automake files; what a condition adds is left out."""
    found: dict[str, list[str]] = {}
    for path in paths:
        text = re.sub(r"^if \w+\n.*?^endif$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for name, add, words in re.findall(r"^(\w+) (\+?)=(.*)$", text.replace("\\\n", " "), re.MULTILINE):
            found[name] = [*(found.get(name, []) if add else []), *words.split()]
    return found


class Recipe:
    """What is compiled of which source with which flags, and what is linked of it."""

    def __init__(self) -> None:
        lists = make_variables(ROOT / "lib" / "local.mk", ROOT / "cuda" / "local.mk", ROOT / "tests" / "local.mk")
        plain, kernel = FLAGS, FLAGS + KERNEL_FLAGS
        self.flags: dict[str, tuple[str, list[str]]] = {}  # of an object: its source, and its flags
        self.plan = self._objects(lists["lib_libplan_la_SOURCES"], plain)
        self.library = self.plan + self._objects([*lists["lib_librowfold_la_SOURCES"], *lists["cuda_stub"]], plain)
        self.library += self._objects(lists["lib_cpu_libgeneric_la_SOURCES"], kernel)
        self.library += self._objects(lists["lib_cpu_libavx512_la_SOURCES"], kernel + AVX512_FLAGS)
        pairs = kernel + AVX512_FLAGS + ["-mavx512bf16"]
        of_pairs = self._objects(lists["lib_cpu_libavx512_bf16_la_SOURCES"], pairs)
        self.library += of_pairs
        # Of a program: its objects, and whether it is linked with the library, or holds a part of it.
        self.programs: dict[str, tuple[list[str], bool]] = {}
        for program in [*lists["public_programs"], *lists["internal_programs"]]:
            if program in NOT_RUN:
                continue
            name = program.replace("/", "_")
            flags = kernel if program == "tests/c/test_vmath" else plain
            own = [word for word in lists.get(f"{name}_CFLAGS", []) if word.startswith("-")]
            objects = self._objects(lists.get(f"{name}_SOURCES", [f"{program}.c"]), flags + own, f"{program}-")
            linked = lists.get(f"{name}_LDADD", ["lib/librowfold.la"])
            plan = self.plan if "lib/libplan.la" in linked else []
            self.programs[program] = (objects + plan, "lib/librowfold.la" in linked)
        tiles = self._objects(lists["tests_c_libtiles_la_SOURCES"], pairs, "tests/c/libtiles-")
        for program in ("tests/c/test_terms", "tests/c/test_tiles"):
            own_objects = self._objects([f"{program}.c"], plain, f"{program}-")
            self.programs[program] = (own_objects + tiles + of_pairs, False)

    def _objects(self, sources: Iterable[str], flags: list[str], prefix: str = "") -> list[str]:
        found = []
        for source in sources:
            if source.endswith(".c"):
                name = f"{prefix}{source.replace('/', '-') if prefix else source}.o"
                self.flags[name] = (source, flags)
                found.append(name)
        return found


class Tree:
    """A copy of the sources, and a build of it in the same place."""

    def __init__(self, place: Path, jansson: Path, recipe: Recipe) -> None:
        self.place, self.recipe = place, recipe
        self.said = ""  # by the compiler, of what it would not compile
        self.changed: set[str] = set()  # files that are others than when objects were last compiled
        self.compiler = (os.environ.get("CC") or ("ccache gcc" if shutil.which("ccache") else "gcc")).split()
        self.libraries = ["-L.", f"-L{jansson}", "-ljansson", "-lpthread", "-lm", "-ldl"]
        self.headers = [f"-I{jansson}"] if jansson.is_dir() else []
        self.environment = {**os.environ, "LD_LIBRARY_PATH": f"{place}:{jansson}", "PYTHONPATH": "python"}
        self.environment["ROWFOLD_LIBRARY"] = str(place / "librowfold.so")
        self.environment.setdefault("ROWFOLD_NUM_THREADS", "2")
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            self.environment.setdefault(name, "1")

    def fill(self) -> None:
        """Copies what git tracks, and what is new. Without git, all there is."""
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
        )
        names = listed.stdout.splitlines()
        if not names:
            names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if "__pycache__" not in p.parts]
        for name in names:
            if (name.split("/")[0] in FOLDERS or "/" not in name) and (ROOT / name).is_file():
                (self.place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.place / name)
        (self.place / "config.h").write_text(CONFIG)

    def build(self, jobs: int = 1) -> bool:
        """Compiles what is new or reads a file that has changed, and links. Whether it builds."""
        objects = [name for name in self.recipe.flags if not self._made(name) or self._read_by(name) & self.changed]
        with ThreadPoolExecutor(jobs) as pool:
            if not all(list(pool.map(self._compile, objects))):
                return False
        new = set(objects)
        if new & set(self.recipe.library):
            shared = ["-shared", "-Wl,-soname,librowfold.so", "-Wl,--version-script=lib/rowfold.map"]
            if not self._run([*shared, "-o", "librowfold.so", *self.recipe.library, *self.libraries]):
                return False
        for program, (parts, with_library) in self.recipe.programs.items():
            library = ["-lrowfold"] if with_library else []
            if new & set(parts) and not self._run(["-o", program, *parts, *library, *self.libraries]):
                return False
        return True

    def _made(self, name: str) -> bool:
        return (self.place / f"{name[:-1]}d").exists()

    def _read_by(self, name: str) -> set[str]:
        """The files that were read for an object."""
        return set((self.place / f"{name[:-1]}d").read_text().replace("\\\n", " ").split()[1:])

    def _compile(self, name: str) -> bool:
        source, flags = self.recipe.flags[name]
        return self._run([*flags, *self.headers, "-MD", "-MF", f"{name[:-1]}d", "-c", "-o", name, source])

    def _run(self, arguments: list[str]) -> bool:
        done = subprocess.run([*self.compiler, *arguments], cwd=self.place, capture_output=True, text=True)
        if done.returncode:
            self.said = done.stderr
        return done.returncode == 0

    def test(self, name: str, patience: float) -> float | None:
        """Seconds until it passed; None where it failed or stood still."""
        if name.endswith(".py"):
            options = ["-q", "-x", "-p", "no:cacheprovider", f"--backends={BACKENDS}"]
            command = [sys.executable, "-m", "pytest", *options, f"tests/{name}"]
        else:
            command = [f"./{name}"]
        quiet, start = subprocess.DEVNULL, time.monotonic()
        process = subprocess.Popen(
            command, cwd=self.place, env=self.environment, stdout=quiet, stderr=quiet, start_new_session=True
        )
        under_way.add(process.pid)
        try:
            return time.monotonic() - start if process.wait(patience) in (0, 77) else None
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        finally:
            under_way.discard(process.pid)


under_way: set[int] = set()  # tests, each of which leads a process group


def stop(number: int, _: object) -> NoReturn:
    """A mutant's test may never end, so none is left behind."""
    for process in list(under_way):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
    os._exit(128 + number)


def run(arguments: argparse.Namespace) -> int:
    """Runs the mutants and prints a line for each; the exit status is 1 if the score is below 95 %."""
    mutants = read()
    wrong = misplaced(mutants)
    if wrong:
        raise SystemExit("\n".join(wrong))
    meant = [m for m in mutants if arguments.only in str(m) and arguments.first <= m.number <= arguments.last]
    chosen = [m for m in meant if not m.why][:: arguments.every]
    work, recipe = arguments.work.resolve(), Recipe()
    for ends in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ends, stop)
    tree = Tree(work / "0", work / "jansson", recipe)
    patience = _tested_without(tree, arguments)
    log = work / "results.json"
    results: dict[str, str] = json.loads(log.read_text()) if log.exists() and arguments.resume else {}
    free: SimpleQueue[Tree] = SimpleQueue()
    free.put(tree)
    for number in range(1, min(arguments.jobs, len(chosen))):
        other = Tree(work / str(number), work / "jansson", recipe)
        shutil.rmtree(other.place, ignore_errors=True)
        shutil.copytree(tree.place, other.place, symlinks=True)
        free.put(other)
    lock = threading.Lock()

    def one(mutant: Mutant) -> None:
        key = str(mutant)[4:]
        if key not in results:
            place = free.get()
            try:
                verdict = _verdict(place, mutant, patience)
            finally:
                free.put(place)
            with lock:
                results[key] = verdict
                log.write_text(json.dumps(results, indent=1))
        with lock:
            print(f"{mutant}: {results[key]}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, chosen))
    killed = sum(results[str(m)[4:]].startswith("killed") for m in chosen)
    print(f"{killed} of {len(chosen)} mutants were noticed")
    return int(killed < 0.95 * len(chosen))


def _tested_without(tree: Tree, arguments: argparse.Namespace) -> dict[str, float]:
    """Builds the tree and, unless an earlier run did, tests it: how long a mutant's tests may take, quickest first."""
    shutil.rmtree(tree.place, ignore_errors=True)
    tree.place.mkdir(parents=True)
    tree.fill()
    if not tree.build(jobs=arguments.jobs):
        raise SystemExit(f"the tree does not build as it is:\n{tree.said}")
    names = [*tree.recipe.programs, *(() if arguments.c_tests else PYTHON_TESTS)]
    log = tree.place.parent / "seconds.json"
    earlier: dict[str, float] = json.loads(log.read_text()) if arguments.resume and log.exists() else {}
    if all(name in earlier for name in names):
        taken = {name: earlier[name] for name in names}
    else:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            found = dict(zip(names, pool.map(lambda name: tree.test(name, 3600), names), strict=True))
        failing = [name for name in names if found[name] is None]
        if failing:
            raise SystemExit(f"without any mutant these fail: {', '.join(failing)}")
        taken = {name: seconds for name, seconds in found.items() if seconds is not None}
        log.write_text(json.dumps(taken, indent=1))
    print(f"{len(taken)} tests take {sum(taken.values()):.0f} s without a mutant", flush=True)
    return {name: PATIENCE_SECONDS + PATIENCE * taken[name] for name in sorted(taken, key=taken.__getitem__)}


def _verdict(tree: Tree, mutant: Mutant, patience: dict[str, float]) -> str:
    place = tree.place / mutant.file
    text, start = (ROOT / mutant.file).read_text(), time.monotonic()
    place.write_text(text.replace(mutant.old, mutant.new))
    tree.changed.add(mutant.file)
    try:
        if not tree.build():
            return "does not compile"
        for name, seconds in patience.items():
            if tree.test(name, seconds) is None:
                return f"killed by {name.rpartition('/')[2]} in {time.monotonic() - start:.0f} s"
        return "SURVIVED"
    finally:
        place.write_text(text)
        tree.changed = {mutant.file}  # of which there are objects that the next mutant must not be linked with


def pack(arguments: argparse.Namespace) -> int:
    """Copies Jansson's headers and its shared library to where ``run`` looks first."""
    asked = ["pkg-config", "--variable=includedir", "jansson"]
    headers = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    asked = ["gcc", "-print-file-name=libjansson.so"]
    library = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    place = arguments.work / "jansson"
    place.mkdir(parents=True, exist_ok=True)
    for header in ("jansson.h", "jansson_config.h"):
        shutil.copy(f"{headers}/{header}", place)
    for name in ("libjansson.so", "libjansson.so.4"):  # to link with, and to run with
        shutil.copy(library, place / name)
    return 0


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
    runs.add_argument("--every", type=int, default=1, help="each Nth of those alone, a sample")
    runs.add_argument("--work", type=Path, default=ROOT / "build-mutants")
    runs.add_argument("-j", "--jobs", type=int, default=1, help="mutants at a time (1)")
    runs.add_argument("--c-tests", action="store_true", help="without the Python tests")
    runs.add_argument("--resume", action="store_true", help="keep the verdicts and times of an earlier run")
    runs.set_defaults(run=run)
    packs = commands.add_parser("pack")
    packs.add_argument("--work", type=Path, default=ROOT / "build-mutants")
    packs.set_defaults(run=pack)
    commands.add_parser("check").set_defaults(run=check)
    proposes = commands.add_parser("propose")
    proposes.add_argument("files", nargs="+", type=Path)
    proposes.set_defaults(run=print_proposals)
    chosen = parser.parse_args()
    return int(chosen.run(chosen))


if __name__ == "__main__":
    sys.exit(main())
