"""Backends and hypothesis profiles.

A test that takes `backend` runs on every backend of the build. One that this machine lacks is skipped by name, with the
library's own sentence.

    pytest tests                          everything this machine can run
    pytest tests --backends=cuda          backends whose name begins so; several with commas
    ROWFOLD_BACKEND=reference pytest tests
    pytest tests --hypothesis-profile=long
"""

from __future__ import annotations

import os

import pytest
import rowfold
from hypothesis import HealthCheck, settings

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends", default=os.environ.get("ROWFOLD_BACKEND", ""), help="names or beginnings, with commas"
    )


def wanted_backends(config: pytest.Config) -> list[rowfold.Backend]:
    wanted = [name for name in config.getoption("--backends").split(",") if name]
    found = [b for b in rowfold.backends() if not wanted or b.name.startswith(tuple(wanted))]
    if not found:
        names = ", ".join(b.name for b in rowfold.backends())
        raise pytest.UsageError(f"--backends={','.join(wanted)}: there is none of that name; there are {names}")
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    rows = wanted_backends(metafunc.config)
    if "cpu_only" in metafunc.definition.keywords:
        rows = [b for b in rows if not b.name.startswith("cuda")]
    metafunc.parametrize(
        "backend",
        [
            pytest.param(b.name, marks=() if b.available else pytest.mark.skip(reason=f"backend {b.name}: {b.reason}"))
            for b in rows
        ],
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cpu_only: about a promise that only CPU backends make")


def pytest_report_header(config: pytest.Config) -> str:
    states = (f"{b.name}" if b.available else f"{b.name} (not available: {b.reason})" for b in rowfold.backends())
    return f"rowfold {rowfold.__version__}, backends: {', '.join(states)}"


@pytest.fixture(autouse=True)
def _no_forced_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests name their backend; the environment has chosen which tests run."""
    monkeypatch.delenv("ROWFOLD_BACKEND", raising=False)
    monkeypatch.delenv("ROWFOLD_NUM_THREADS", raising=False)
