# SPDX-License-Identifier: MIT
"""The build backend that pyproject.toml names: hatchling for the wheel, ./configure and make for the library in it.

Settings, by ``pip wheel -C NAME=VALUE`` or in the environment:

    configure   CONFIGURE_FLAGS     for ./configure, such as --with-cuda=no
    jobs        JOBS                for make -j, by default the number of processors
    label       ROWFOLD_LABEL       what follows the version and a plus sign, for wheels of different contents
"""

from __future__ import annotations

import atexit
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional, Union

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"configure": "CONFIGURE_FLAGS", "jobs": "JOBS", "label": "ROWFOLD_LABEL"}
Settings = Optional[Mapping[str, Union[str, list[str]]]]


def version() -> str:
    """The version in configure.ac, with the label; pyproject.toml has hatchling call this."""
    found = re.search(r"^AC_INIT\(\[rowfold\], \[([^]]+)\]\)", (ROOT / "configure.ac").read_text(), re.MULTILINE)
    if not found:
        raise SystemExit("configure.ac has no AC_INIT([rowfold], [VERSION])")
    label = os.environ.get("ROWFOLD_LABEL")
    return found[1] + (f"+{label}" if label else "")


def _adopt(settings: Settings) -> None:
    """Hatchling passes no settings to its hooks, but all of this happens in one process."""
    for name, value in (settings or {}).items():
        if name not in SETTINGS:
            raise SystemExit(f"-C {name}: there is no such setting; there are {', '.join(SETTINGS)}")
        os.environ[SETTINGS[name]] = value if isinstance(value, str) else " ".join(value)


def _run(*command: str, cwd: Path) -> None:
    print("rowfold:", shlex.join(command), flush=True)
    try:
        subprocess.run(command, cwd=cwd, check=True)
    except FileNotFoundError:
        raise SystemExit(f"rowfold needs {command[0]} to be built, and it is not installed") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"rowfold was not built: {command[0]} failed with status {error.returncode}") from None


def _configure_flags() -> list[str]:
    try:
        return shlex.split(os.environ.get("CONFIGURE_FLAGS", ""))
    except ValueError as error:
        raise SystemExit(f"CONFIGURE_FLAGS: {error}") from None


def _configure(build: Path, *flags: str) -> None:
    inputs = [ROOT / "configure.ac", *ROOT.glob("m4/rf_*.m4")]
    made = ROOT / "configure"
    if not made.exists() or any(path.stat().st_mtime > made.stat().st_mtime for path in inputs):
        if not shutil.which("autoreconf"):
            raise SystemExit(
                "a checkout has no ./configure; making it takes autoconf, automake, libtool and pkg-config "
                "(Debian: apt-get install autoconf automake libtool pkg-config). A release has it"
            )
        _run("autoreconf", "-fi", cwd=ROOT)
    build.mkdir(exist_ok=True)
    _run(os.path.relpath(made, build), "--quiet", *flags, cwd=build)


def _make(build: Path, *targets: str) -> None:
    jobs = os.environ.get("JOBS") or str(len(os.sched_getaffinity(0)))
    _run("make", "--no-print-directory", f"-j{jobs}", *targets, cwd=build)


def _library(work: Path) -> Path:
    """Builds the library below work; the file, without debugging symbols."""
    # pip runs this with PYTHON of its own, which says nothing here: the wheel takes the package, make install does not.
    _configure(work / "build", "--prefix=/usr", "--libdir=/usr/lib", "PYTHON=:", *_configure_flags())
    _make(work / "build")
    _make(work / "build", "install-strip", f"DESTDIR={work / 'root'}")
    library = work / "root" / "usr" / "lib" / "librowfold.so"
    if not library.exists():
        raise SystemExit("the Python package needs the shared library, which CONFIGURE_FLAGS leave out")
    return library.resolve()


class NativeLibrary(BuildHookInterface[Any]):
    """Puts the library into the wheel, beside the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds it. Only the platform is in the tag, since ctypes asks nothing of the interpreter."""
        platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        if version == "editable":
            # The package in the source tree looks for builds in that tree.
            build = ROOT / "build"
            if not (build / "Makefile").exists():
                _configure(build, f"PYTHON={sys.executable}", *_configure_flags())
            _make(build)
            return
        # Until the end of the process, also where the build fails: hatchling packs after this returns.
        work = Path(tempfile.mkdtemp(prefix="rowfold-"))
        atexit.register(shutil.rmtree, work, ignore_errors=True)
        build_data["force_include"][str(_library(work))] = "rowfold/librowfold.so"


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """PEP 517."""
    _adopt(config_settings)
    return _build(wheel_directory, "standard")


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """PEP 660."""
    _adopt(config_settings)
    return _build(wheel_directory, "editable")


def _builder() -> WheelBuilder:
    builder = WheelBuilder(str(ROOT))
    # In an unpacked sdist hatchling takes the version from PKG-INFO, where there is no label.
    described = builder.metadata.core_raw_metadata
    if "version" in described:
        described["version"] = version()
    return builder


def _build(directory: str, kind: str) -> str:
    return Path(next(_builder().build(directory=directory, versions=[kind]))).name


def _metadata() -> str:
    builder = _builder()
    metadata: str = builder.config.core_metadata_constructor(builder.metadata)
    return metadata


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """PEP 517. Hatchling leaves it out for pip, which would then build the library to learn the version."""
    _adopt(config_settings)
    directory = Path(metadata_directory, f"rowfold-{version()}.dist-info")
    directory.mkdir()
    (directory / "METADATA").write_text(_metadata(), encoding="utf-8")
    return directory.name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """PEP 517: what make dist packs, and PKG-INFO."""
    _adopt(config_settings)
    name = f"rowfold-{version()}"
    with tempfile.TemporaryDirectory(prefix="rowfold-") as directory:
        work = Path(directory)
        _configure(work, "--with-cuda=no", "PYTHON=:")
        _make(work, "distdir")
        tree = work / f"rowfold-{version().partition('+')[0]}"
        (tree / "PKG-INFO").write_text(_metadata(), encoding="utf-8")
        # Times of the files are kept: by them make knows that configure is newer than configure.ac.
        path = Path(sdist_directory, f"{name}.tar.gz")
        with open(path, "wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as compressed:
            with tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar:
                tar.add(tree, name, filter=_anonymous)
    return path.name


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
