# SPDX-License-Identifier: MIT
"""Backends, CUDA kernels, tests that run alone, and hypothesis profiles.

A test that takes `backend` runs on every backend of the build. One that this machine lacks is skipped by name, with the
library's own sentence.

    pytest tests                          everything this machine can run
    pytest tests --backends=cuda          backends whose name begins so; several with commas
    pytest tests --backends=cuda --cuda-kernels=all
                                          with each CUDA kernel forced, too; or names with commas
    ROWFOLD_BACKEND=reference pytest tests
    pytest tests --hypothesis-profile=long
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Read when numpy, torch and jax are imported. Workers that each start a thread a core wait for one another; jax takes
# most of a GPU's memory.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(_name, "1")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import cuda_kernels  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import rowfold  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
    ],
}
settings.register_profile("ci", max_examples=60, **_COMMON)
settings.register_profile("long", max_examples=3000, **_COMMON)
settings.load_profile("ci")

MOST_CACHED_BYTES = 256 << 20  # of a GPU's memory, by PyTorch in a worker between tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends", default=os.environ.get("ROWFOLD_BACKEND", ""), help="names or beginnings, with commas"
    )
    parser.addoption(
        "--cuda-kernels", default="", help="CUDA kernels to force one after the other: names with commas, or all"
    )


def wanted_backends(config: pytest.Config) -> list[rowfold.Backend]:
    wanted = [name for name in config.getoption("--backends").split(",") if name]
    found = [b for b in rowfold.backends() if not wanted or b.name.startswith(tuple(wanted))]
    if not found:
        names = ", ".join(b.name for b in rowfold.backends())
        raise pytest.UsageError(f"--backends={','.join(wanted)}: there is none of that name; there are {names}")
    return found


def wanted_kernels(config: pytest.Config) -> list[str]:
    try:
        return cuda_kernels.parse(config.getoption("--cuda-kernels"))
    except ValueError as error:
        raise pytest.UsageError(f"--cuda-kernels: {error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    rows = wanted_backends(metafunc.config)
    if "cpu_only" in metafunc.definition.keywords:
        rows = [b for b in rows if not b.name.startswith("cuda")]
    kernels = wanted_kernels(metafunc.config) or [""]
    metafunc.parametrize(
        ("backend", "cuda_kernel"),
        [
            pytest.param(
                b.name,
                kernel,
                id=f"{b.name}-{kernel}" if kernel else b.name,
                marks=() if b.available else pytest.mark.skip(reason=f"backend {b.name}: {b.reason}"),
            )
            for b in rows
            for kernel in (kernels if b.name == "cuda" else [""])
        ],
        indirect=["cuda_kernel"],
    )


@pytest.fixture(autouse=True)
def cuda_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel that --cuda-kernels forces in this test, "" for none. Tests that take no backend see the first."""
    kernel: str = getattr(request, "param", (wanted_kernels(request.config) or [""])[0])
    if kernel:
        monkeypatch.setenv(cuda_kernels.FORCE, kernel)
    return kernel


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(_FailuresAtOnce(config))
    config.addinivalue_line("markers", "cpu_only: a GPU has no part in it: a promise of CPU backends, a tool, a text")
    config.addinivalue_line("markers", "heavy: takes long by itself, as processes that import PyTorch do; begun early")
    config.addinivalue_line("markers", "alone: measures or fills what all share; no other worker runs a test meanwhile")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where only a GPU is asked for, what it has no part in is left out.

    Tests that run alone come last: in the midst of others they would hold a worker for as long as some other always
    runs, and at the end nobody has anything else to do.
    """
    if all(b.name.startswith("cuda") for b in wanted_backends(config)):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("cpu_only")])
        items[:] = [item for item in items if not item.get_closest_marker("cpu_only")]
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)
    if "PYTEST_XDIST_WORKER" in os.environ:
        spread(items, int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


def spread(items: list[pytest.Item], workers: int) -> None:
    """Deals tests marked `heavy` out to all workers, each of which begins with a part of the list of its own, over the
    first two thirds of what it does: begun last they would be what all wait for, and begun together they would run
    into their own time limits.
    """
    heavy = [item for item in items if item.get_closest_marker("heavy")]
    turns = -(-len(heavy) // workers)
    places = {}  # in lists of length 1, one behind the other
    for i, item in enumerate(heavy):
        turn, worker = divmod(i, workers)
        places[item] = worker + (turn + worker / workers) / turns * 2 / 3
    others = [item for item in items if item not in places]
    places.update((item, i * workers / len(others)) for i, item in enumerate(others))
    items.sort(key=places.__getitem__)


class _FailuresAtOnce:
    """A run that is stopped, or killed for its time, has said by then what failed."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            words = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            terminal.write_line("")
            terminal.write_line(f"FAILED {report.nodeid} ({report.when}) {' '.join(words[:2])}"[:400])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each reason to skip tests. pytest has one for each place: hundreds, where a backend is missing."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(r.longrepr[2] if isinstance(r.longrepr, tuple) else r.longrepr) for r in reports)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


def pytest_report_header(config: pytest.Config) -> str:
    states = (f"{b.name}" if b.available else f"{b.name} (not available: {b.reason})" for b in rowfold.backends())
    return f"rowfold {rowfold.__version__}, backends: {', '.join(states)}"


@pytest.fixture(autouse=True, scope="session")
def _mapped_device_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """A model that lives as long as the tests. Without one CUDA would map memory for each test's first model and unmap
    it with the last, which takes longer than most tests, the more so with many workers.
    """
    if not any(b.name == "cuda" and b.available for b in wanted_backends(request.config)):
        yield
        return
    with rowfold.Model("linear | max", 64, 64, backend="cuda") as model:
        model.load_weights(np.zeros((64, 64), np.float32))(np.zeros((1, 64), np.float32))
        yield


WATCHDOG_SECONDS = float(os.environ.get("ROWFOLD_TEST_TIMEOUT", "900"))


@pytest.fixture(autouse=True)
def _watchdog() -> Iterator[None]:
    """A test that stands still, as a kernel that never ends makes it, is named with its stack, and ends the process: no
    Python code runs while a thread waits for a device.
    """
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _no_forced_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests name their backend; the environment has chosen which tests run."""
    monkeypatch.delenv("ROWFOLD_BACKEND", raising=False)
    monkeypatch.delenv("ROWFOLD_NUM_THREADS", raising=False)


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked `alone` hold a lock by themselves that all others share: this directory."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    lock = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # for processes that a test forked, too
        os.close(lock)


@pytest.fixture(autouse=True)
def _cache_of_torch() -> Iterator[None]:
    """What PyTorch keeps of a GPU's memory for its next arrays is missing in other workers."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > MOST_CACHED_BYTES:
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def _torch_modes() -> Iterator[None]:
    """PyTorch's modes are the process's. A test that leaves one switched fails, and not one behind it."""
    before = _modes_of_torch()
    yield
    after = _modes_of_torch()
    if not before and after:  # the test imported it
        before = {**after, "gradients": True, "inference": False}
    if after != before:
        sys.modules["torch"].set_grad_enabled(True)
        sys.modules["torch"].set_num_threads(before["threads"])
        pytest.fail(f"PyTorch's modes were {before}; it left {after}")


def _modes_of_torch() -> dict[str, object]:
    """Of this thread, by name; none before PyTorch is imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
