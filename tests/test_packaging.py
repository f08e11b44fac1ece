# SPDX-License-Identifier: MIT
"""The sdist and the wheel hold what they should, and the wheel works where nothing of the source tree is in reach."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from types import ModuleType, SimpleNamespace

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


def test_a_label_reaches_the_wheel_of_an_sdist(sdist, tmp_path):
    """Where PKG-INFO says another version: a wheel with CUDA would else take the place of that without."""
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path)
    tree = tmp_path / f"rowfold-{VERSION}"
    sys_path = {"PYTHONPATH": str(tree / "packaging" / "python"), "ROWFOLD_LABEL": "cuda"}
    code = "import rowfold_build as backend; print(backend.prepare_metadata_for_build_wheel('.'))"
    made = passed(run(sys.executable, "-c", code, cwd=tree, **sys_path)).split()[-1]
    assert made == f"rowfold-{VERSION}+cuda.dist-info"
    assert metadata((tree / made / "METADATA").read_text())["Version"] == f"{VERSION}+cuda"


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


DEBIAN_PYTHON = Path("/usr/bin/python3")


def has_dist_packages() -> bool:
    code = "import site; print(site.getsitepackages())"
    return (
        DEBIAN_PYTHON.exists() and "/usr/lib/python3/dist-packages" in run(DEBIAN_PYTHON, "-c", code, cwd=ROOT).stdout
    )


def build(directory: Path, configure: str, *flags: object) -> Path:
    """Both libraries, quickly compiled, with debugging information."""
    if not (ROOT / "configure").exists():
        pytest.skip("there is no ./configure in the source tree: autoreconf -fi")
    if (ROOT / "config.status").exists():
        pytest.skip("the source tree is configured in place")
    directory.mkdir(parents=True)
    quick = ("CFLAGS=-g -O0", "--enable-static", "--disable-avx2", "--disable-avx512", "--with-cuda=no")
    passed(run(configure, "--quiet", *quick, *flags, cwd=directory))
    # A compiler cache may give the compiler other paths than make does.
    passed(run("make", "-j2", cwd=directory, CCACHE_DISABLE="1"))
    return directory


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("near") / "build"
    configure = os.path.relpath(ROOT / "configure", directory)
    return build(directory, configure, f"--prefix={directory.parent}/prefix", f"PYTHON={sys.executable}")


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("far") / "away" / "and" / "deeper"
    python = DEBIAN_PYTHON if has_dist_packages() else ":"
    return build(directory, str(ROOT / "configure"), "--prefix=/usr", f"PYTHON={python}")


@pytest.mark.parametrize("name", ["librowfold.so", "librowfold.a"])
def test_two_directories_give_the_same_bits(near, far, name):
    assert (near / "lib" / ".libs" / name).read_bytes() == (far / "lib" / ".libs" / name).read_bytes()


def test_make_install_pythondir_takes_the_whole_package_along(near, tmp_path):
    wanted = tmp_path / "elsewhere"
    passed(run("make", "install", f"pythondir={wanted}", cwd=near))
    prefix = near.parent / "prefix"
    assert (wanted / "rowfold" / "bench" / "cases.py").exists()
    assert not list(prefix.glob("lib/**/*.py"))
    assert passed(run(prefix / "bin" / "rowfold", "--version", cwd=tmp_path)) == f"rowfold {VERSION}\n"


def test_a_debian_package_has_it_where_debians_python_looks(far, tmp_path):
    if not has_dist_packages():
        pytest.skip("there is no Python of Debian's")
    passed(run("make", "install", f"DESTDIR={tmp_path}", cwd=far))
    (found,) = tmp_path.glob("**/rowfold/__init__.py")
    assert found.parent.parent == tmp_path / "usr" / "lib" / "python3" / "dist-packages"


def test_an_older_python_is_named():
    code = """if True:
        import sys
        sys.version_info, sys.version = (3, 8, 18, "final", 0), "3.8.18 (default)"
        import rowfold
    """
    done = run(sys.executable, "-c", code, cwd=ROOT / "python", PYTHONDONTWRITEBYTECODE="1")
    assert done.stderr.splitlines()[-1] == "ImportError: rowfold needs Python 3.9 or newer; this is Python 3.8.18"


def test_every_recipe_has_the_version():
    def found(name: str, pattern: str) -> set[str]:
        return set(re.findall(pattern, (ROOT / "packaging" / name).read_text(), re.MULTILINE))

    assert found("conda/recipe.yaml", r'^  version: "(.*)"') == {VERSION}
    assert found("spack/packages/rowfold/package.py", r'version\("(.*?)"|rowfold-(.*?)\.tar') >= {(VERSION, "")}
    assert found("debian/changelog", r"^rowfold \((.*)-1\)") == {VERSION}


def test_the_conda_recipe_renders():
    conda = pytest.importorskip("rattler_build", reason="needs the Python package py-rattler-build")
    platform = dict.fromkeys(("build_platform", "host_platform", "target_platform"), "linux-64")
    variants = conda.VariantConfig({"c_compiler": ["gcc"], "c_stdlib": ["sysroot"], "python": ["3.9.*"]})
    recipe = conda.Stage0Recipe.from_file(ROOT / "packaging" / "conda" / "recipe.yaml")
    (rendered,) = recipe.render(variants, conda.RenderConfig(platform=conda.PlatformConfig(**platform)))
    package = rendered.recipe.to_dict()
    assert package["package"] == {"name": "rowfold", "version": VERSION}
    assert "gcc_linux-64" in package["requirements"]["build"]


class SpackSpec:
    """What Spack's recipe asks of a specification: variants by name, and where dependencies are."""

    def __init__(self, text: str, arch: str = "") -> None:
        self.text = text
        self.variants = {"cuda_arch": SimpleNamespace(value=tuple(arch.split(",")))}

    def satisfies(self, wanted: str) -> bool:
        return wanted in self.text.split()

    def __getitem__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(prefix=f"/{name}", command=SimpleNamespace(path=f"/bin/{name}"))


@pytest.mark.parametrize("release", ["0.23", "1.0"])
@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        (SpackSpec("+python +shared"), "PYTHON=/bin/python --with-mpi=no --with-cuda=no"),
        (SpackSpec("+static"), "PYTHON=: --with-mpi=no --with-cuda=no"),
        (SpackSpec("+cuda", "80,90"), "PYTHON=: --with-mpi=no --with-cuda=/cuda --with-cuda-arch=sm_80,sm_90,sm_90a"),
        (SpackSpec("+cuda", "90a"), "PYTHON=: --with-mpi=no --with-cuda=/cuda --with-cuda-arch=sm_90a,sm_90"),
    ],
)
def test_spack_s_recipe_configures(spec, arguments, release, monkeypatch):
    """With a stand-in for Spack: which modules a release of it has, and the names that a recipe takes from them."""

    class Package:
        def enable_or_disable(self, name: str) -> list[str]:
            return [f"--{'enable' if self.spec.satisfies(f'+{name}') else 'disable'}-{name}"]

    classes = {"AutotoolsPackage": type("AutotoolsPackage", (Package,), {}), "CudaPackage": type("C", (), {})}
    names = {name: lambda *_, **__: contextlib.nullcontext() for name in "license version variant depends_on".split()}
    names |= {name: lambda *_, **__: contextlib.nullcontext() for name in "when extends conflicts".split()}
    modules = {"spack": {}, "spack.package": names | (classes if release == "0.23" else {})}
    if release == "1.0":
        parts = "spack_repo.builtin.build_systems".split(".")
        modules |= {".".join(parts[: n + 1]): {} for n in range(3)}
        modules |= {f"{'.'.join(parts)}.{name}": classes for name in ("autotools", "cuda")}
    else:
        modules["spack_repo"] = None
    for name, held in modules.items():
        module = None if held is None else ModuleType(name)
        if module is not None:
            module.__dict__.update(held, __path__=[])
        monkeypatch.setitem(sys.modules, name, module)
    scope = runpy.run_path(str(ROOT / "packaging" / "spack" / "packages" / "rowfold" / "package.py"))
    package = scope["Rowfold"]()
    package.spec = spec
    given = package.configure_args()
    assert " ".join(given[2:]) == arguments
    known = passed(run(ROOT / "configure", "--help", cwd=ROOT)) if (ROOT / "configure").exists() else None
    for flag in given:
        name = re.sub("^--(enable|disable)-", "--enable-", flag).partition("=")[0]
        assert known is None or re.search(rf"^ +{re.escape(name)}\b", known, re.MULTILINE), flag


def test_every_source_names_its_licence(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import spdx

    assert len(list(spdx.sources())) > 200
    assert not spdx.missing(), "python3 tools/spdx.py adds the line"


@pytest.mark.parametrize(
    ("capabilities", "processors", "flags"),
    [
        ("9.0", 16, "--with-cuda-arch=sm_90,sm_90a"),
        ("9.0", 2, "--with-cuda-arch=sm_90"),  # the others would take twenty minutes
        ("8.9 8.0", 2, "--with-cuda-arch=sm_80"),
        ("10.0 9.0 9.0", 16, "--with-cuda-arch=compute_80,sm_90,sm_90a"),
        ("7.5", 2, "--with-cuda=no"),
        ("[N/A]", 2, "--with-cuda=no"),
        ("", 2, "--with-cuda=no"),
    ],
)
def test_quickstart_builds_first_for_the_gpu_that_is_there(capabilities, processors, flags, tmp_path):
    for name, text in (("nvcc", "exit 1"), ("nvidia-smi", f"printf '%s\\n' '{capabilities}' | tr ' ' '\\n'")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    functions = tmp_path / "functions.sh"
    functions.write_text((ROOT / "quickstart").read_text().replace('\nmain "$@"\n', "\ngpu_flags\n"))
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert passed(run("bash", functions, cwd=tmp_path, PATH=path, JOBS=str(processors))).strip() == flags


def test_a_script_that_names_its_interpreter_can_be_run():
    scripts = [p for p in (ROOT / "quickstart", *sorted((ROOT / "tools").iterdir())) if p.is_file()]
    named = [p for p in scripts if p.read_bytes().startswith(b"#!")]
    assert len(named) > 8
    assert [p.name for p in named if not os.access(p, os.X_OK)] == []


AVX512 = "fma f16c avx2 avx512f avx512dq avx512bw avx512vl"


@pytest.mark.parametrize(
    ("cpuinfo", "flags"),
    [
        (f"flags\t\t: fpu {AVX512} avx512_bf16 amx_bf16 amx_tile amx_fp16", ["avx2"]),
        (f"flags\t\t: fpu {AVX512} avx512_bf16 amx_bf16 amx_tile", ["avx2", "amx-fp16"]),
        (f"flags\t\t: fpu {AVX512} avx512_bf16", ["avx2", "amx", "amx-fp16"]),
        (f"flags\t\t: fpu {AVX512}", ["avx2", "avx512-bf16", "amx", "amx-fp16"]),
        ("flags\t\t: fpu fma f16c avx2 avx512f", ["avx512"]),
        ("flags\t\t: fpu sse2", ["avx512", "avx2"]),
        ("Features\t: fp asimd", []),  # another architecture, and configure knows that it has none of them
        (None, []),
    ],
)
def test_quickstart_builds_first_for_the_processor_that_is_there(cpuinfo, flags, tmp_path):
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{cpuinfo}\nbogomips\t: 1\n\nprocessor\t: 1\n{cpuinfo}\n")
    functions = tmp_path / "functions.sh"
    functions.write_text((ROOT / "quickstart").read_text().replace('\nmain "$@"\n', "\ncpu_flags\n"))
    said = passed(run("bash", functions, cwd=tmp_path, CPUINFO=str(tmp_path / "cpuinfo"))).split()
    assert said == [f"--disable-{name}" for name in flags]


@pytest.mark.parametrize(
    ("cuda", "codes", "sm90a", "said"),
    [
        (False, [], False, "about a minute on 2 processors"),
        (True, ["sm_90"], True, "about 3 minutes on 64 processors"),
        (True, ["sm_80", "sm_90", "compute_80"], True, "about 5 minutes on 64 processors"),
        (True, ["sm_80"], False, "about 4 minutes on 2 processors"),
        (True, ["sm_80", "sm_90", "compute_80"], True, "about 28 minutes on 2 processors"),
    ],
)
def test_quickstart_says_how_long_a_build_takes(cuda, codes, sm90a, said, tmp_path):
    """From what configure writes, whose form is that of this tree's own."""
    status = {"HAVE_CUDA_TRUE": "" if cuda else "#", "BUILD_SM90_TRUE": "" if sm90a else "#"}
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "config.status").write_text("".join(f'S["{k}"]="{v}"\n' for k, v in status.items()))
    flags = " ".join(f"-gencode=arch=x,code={code}" for code in codes)
    (tmp_path / "build" / "Makefile").write_text(
        f"NVCC_GENCODE =  {flags}\nNVCC_GENCODE_SM90 = -gencode=arch=y,code=sm_90a\n"
    )
    functions = tmp_path / "functions.sh"
    functions.write_text((ROOT / "quickstart").read_text().replace('\nmain "$@"\n', "\nbuild_time\n"))
    assert passed(run("bash", functions, cwd=tmp_path, JOBS=said.split()[-2])).strip() == said
    made = ROOT / "build" / "config.status"
    if made.exists():
        assert re.search(r'^S\["HAVE_CUDA_TRUE"\]="#?"$', made.read_text(), re.MULTILINE)
        assert "\nNVCC_GENCODE = " in (ROOT / "build" / "Makefile").read_text()
