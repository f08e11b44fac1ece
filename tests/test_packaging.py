"""The sdist and the wheel hold what they should, and the wheel works where nothing of the source tree is in reach."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.search(r"AC_INIT\(\[rowfold\], \[(.*?)\]\)", (ROOT / "configure.ac").read_text())[1]
# What would lead back to this tree, or change what is built.
FORGOTTEN = ("CONFIGURE_FLAGS", "PYTHONPATH", "ROWFOLD_LABEL", "ROWFOLD_LIBRARY", "LD_LIBRARY_PATH")


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in FORGOTTEN}
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**kept, **environment}, capture_output=True, text=True
    )


def passed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def backend(call: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A function of the build backend, in a process of its own as PEP 517 wants it."""
    pytest.importorskip("hatchling", reason="the build backend needs the Python package hatchling")
    path = str(ROOT / "packaging" / "python")
    code = f"import rowfold_build as backend; print(backend.{call})"
    return run(sys.executable, "-c", code, cwd=cwd, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **environment)


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sdist")
    return directory / passed(backend(f"build_sdist({str(directory)!r})", ROOT)).split()[-1]


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    passed(run(*pip, "--wheel-dir", directory, sdist, cwd=directory, CONFIGURE_FLAGS="--with-cuda=no"))
    (made,) = directory.glob("*.whl")
    return made


def metadata(text: str) -> Message:
    return HeaderParser().parsestr(text)


def tracked() -> set[str]:
    done = run("git", "-c", "safe.directory=*", "ls-files", cwd=ROOT)
    if done.returncode:
        pytest.skip("no git repository to compare with")
    return {name for name in done.stdout.splitlines() if name != ".gitignore" and (ROOT / name).exists()}


def test_the_sdist_is_the_release_with_metadata(sdist):
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        described = metadata(tar.extractfile(f"rowfold-{VERSION}/PKG-INFO").read().decode())
    assert sdist.name == f"rowfold-{VERSION}.tar.gz"
    assert "configure" in names
    assert not tracked() - names
    assert (described["Name"], described["Version"]) == ("rowfold", VERSION)


def test_the_wheel_holds_the_package_and_the_library(wheel):
    platform = re.sub("[-.]", "_", sysconfig.get_platform())
    assert wheel.name == f"rowfold-{VERSION}-py3-none-{platform}.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        described = metadata(archive.read(f"rowfold-{VERSION}.dist-info/METADATA").decode())
    package = ROOT / "python"
    sources = {
        str(path.relative_to(package)) for path in package.glob("rowfold/**/*") if path.suffix in (".py", ".typed")
    }
    assert {name for name in names if name.startswith("rowfold/")} == {*sources, "rowfold/librowfold.so"}
    assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE", "LICENSE.jansson"}
    assert described["Requires-Python"] == ">=3.9"
    assert wheel.stat().st_size < 2**20


def test_auditwheel_knows_every_library_that_it_needs(wheel):
    pytest.importorskip("auditwheel", reason="needs the Python package auditwheel")
    assert "is consistent with" in passed(run(sys.executable, "-m", "auditwheel", "show", wheel, cwd=wheel.parent))


def test_the_wheel_works_away_from_the_tree(wheel, tmp_path):
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel)
    passed(run(*pip, cwd=tmp_path))
    code = """if True:
        import numpy, rowfold
        print(rowfold._lib.load().path)
        model = rowfold.Model("linear(3, 2) | logsumexp")
        model.load_weights(numpy.zeros((2, 3), "f4"))
        assert abs(model(numpy.ones((1, 3), "f4")).item() - numpy.log(2)) < 1e-6
        numpy.savez("w.npz", w=numpy.zeros((2, 3), "f4"))
        numpy.save("x.npy", numpy.ones((4, 3), "f4"))
    """
    site = str(tmp_path / "site")
    found = passed(run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=site))
    assert found.strip() == str(tmp_path / "site" / "rowfold" / "librowfold.so")
    words = ("linear | sum", "--weights", "w.npz", "--weight", "w", "--input", "x.npy", "--output", "y.npy")
    passed(run(tmp_path / "site" / "bin" / "rowfold", "run", *words, cwd=tmp_path, PYTHONPATH=site))
    assert (tmp_path / "y.npy").exists()


def test_a_label_follows_the_version():
    assert passed(backend("version()", ROOT, ROWFOLD_LABEL="cuda")).strip() == f"{VERSION}+cuda"


def test_a_setting_that_does_not_exist_is_refused():
    done = backend("build_wheel('.', {'confgure': ''})", ROOT)
    assert done.returncode == 1
    assert done.stderr.strip() == "-C confgure: there is no such setting; there are configure, jobs, label"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--with-cuda=/nowhere", "rowfold was not built: ../../"),
        ("--no-such-option='", "CONFIGURE_FLAGS: No closing quotation"),
    ],
)
def test_a_build_that_fails_says_so(flags, sentence, tmp_path):
    done = backend(f"build_wheel({str(tmp_path)!r})", ROOT, CONFIGURE_FLAGS=flags)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
