# SPDX-License-Identifier: MIT
"""One model, many threads; and a child of fork, which inherits the pool's memory but not its threads."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import datasets
import numpy as np
import pytest
import rowfold
from cases import Case, make_case, same_bits
from rowfold import _lib

CHAIN = "linear | softplus | logsumexp | gelu"


def threaded(seed: int = 0, batch: int = 120) -> Case:
    """Enough work for a pool of threads to be woken."""
    return make_case(CHAIN, datasets.sigma5(np.random.default_rng(seed), batch, 250, 600))


def together(count: int, work: Callable[[int], None]) -> None:
    """`work` in so many threads at once; the first error is raised here."""
    barrier, errors = threading.Barrier(count), []

    def run(index: int) -> None:
        try:
            barrier.wait()
            work(index)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_threads_call_one_model(backend: str, threads: int) -> None:
    batch = 6 if backend == "reference" else 120
    inputs = [threaded(i, batch + i).x for i in range(6)]
    with threaded().model(backend, threads=threads) as model:
        wanted = [model(x) for x in inputs]

        def work(index: int) -> None:
            for turn in range(6):
                i = (index + turn) % len(inputs)
                assert same_bits(model(inputs[i]), wanted[i])
                model.workspace_size(10 + i)
                model.explain(batch=i + 1)

        together(6, work)


def test_many_threads_make_models(backend: str) -> None:
    case = threaded(batch=4)
    wanted = case.run(backend)

    def work(index: int) -> None:
        for turn in range(5):
            assert same_bits(case.run(backend, threads=1 + (index + turn) % 3), wanted)
            with pytest.raises(rowfold.ChainError, match=f"nonsense{index}"):
                rowfold.Model(f"linear(3, 3) | nonsense{index}")

    together(6, work)


def test_many_threads_load_one_model(backend: str) -> None:
    """One does, the others are told; and whoever calls meanwhile gets the result, or that there are no weights yet."""
    case = threaded(batch=4)
    wanted = case.run(backend)
    for _ in range(10):
        model, outcomes = rowfold.Model(CHAIN, 250, 600, backend=backend), []

        def work(index: int, model: rowfold.Model = model, outcomes: list[str] = outcomes) -> None:
            try:
                if index % 2:
                    model.load_weights(case.w, case.b)
                    outcomes.append("loaded")
                else:
                    assert same_bits(model(case.x), wanted)
            except rowfold.AlreadyLoadedError as error:
                assert "load" in str(error)
                outcomes.append("refused")
            except rowfold.NotLoadedError:
                pass

        together(8, work)
        assert sorted(outcomes) == ["loaded", "refused", "refused", "refused"]
        assert same_bits(model(case.x), wanted)


def in_child(work: Callable[[], bool], seconds: float = 60) -> None:
    """`work` in a child of fork must return True. One that hangs is ended, and fails."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0, f"the child ended with {status}"
            return
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail(f"the child was still running after {seconds} s")
        time.sleep(0.005)


@pytest.mark.cpu_only
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_child_of_fork_calls_forward(backend: str, threads: int) -> None:
    case = threaded(batch=6 if backend == "reference" else 120)
    with case.model(backend, threads=threads) as model:
        wanted = model(case.x)  # the pool is running

        def child() -> bool:
            same = all(same_bits(model(case.x), wanted) for _ in range(5))
            fresh = same_bits(case.run(backend, threads=threads), wanted)
            results = []
            workers = [
                threading.Thread(target=lambda: results.append(same_bits(model(case.x), wanted))) for _ in range(3)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return same and fresh and results == [True] * 3

        for _ in range(3):
            in_child(child)
        in_child(lambda: (in_child(child), True)[1])  # and a child's child
        assert same_bits(model(case.x), wanted)


@pytest.mark.cpu_only
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_fork_while_other_threads_are_inside_forward(backend: str) -> None:
    """Whatever lock the pool holds at that moment, the child must not wait for it."""
    case = threaded(batch=6 if backend == "reference" else 120)
    with case.model(backend, threads=2) as model:
        wanted = model(case.x)
        stop = threading.Event()

        def busy() -> None:
            while not stop.is_set():
                model(case.x)

        workers = [threading.Thread(target=busy) for _ in range(2)]
        for worker in workers:
            worker.start()
        try:
            for _ in range(10):
                in_child(lambda: same_bits(model(case.x), wanted))
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        assert same_bits(model(case.x), wanted)


@pytest.mark.cpu_only
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("held", ["rowfold._lib._loading", "rowfold.torch.library._lock"])
def test_no_lock_of_python_is_held_in_a_child(held: str) -> None:
    """Whoever loads the library, or a program, when another thread forks: the child does not wait for it."""
    module_name, _, name = held.rpartition(".")
    if module_name.startswith("rowfold.torch"):
        pytest.importorskip("torch")
    module = importlib.import_module(module_name)
    case = threaded(batch=4)

    def child() -> bool:
        loaded, _lib._loaded = _lib._loaded, None  # as in a process that has not loaded it
        if module_name.startswith("rowfold.torch"):
            module.clear()
        return _lib.load() is not None and loaded is not None and case.run("reference").shape == (4, 1)

    _lib.load()
    with getattr(module, name):
        in_child(child, 20)


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads(**keywords: int) -> int:
        with rowfold.Model("linear(4, 4)", device="cpu", **keywords) as model:
            return model.info.threads

    assert threads() == len(os.sched_getaffinity(0))
    assert threads(threads=7) == 7
    monkeypatch.setenv("ROWFOLD_NUM_THREADS", "3")
    assert threads() == 3
    assert threads(threads=2) == 2
    for wrong in ("0", "-1", "two", "3 ", "99999999999999999999"):
        monkeypatch.setenv("ROWFOLD_NUM_THREADS", wrong)
        with pytest.raises(rowfold.InvalidArgumentError, match="ROWFOLD_NUM_THREADS"):
            threads()


def test_process_ends_while_a_thread_is_inside_forward(backend: str) -> None:
    """No crash and no hang at exit, with a pool running and a daemon thread in the middle of a call."""
    script = f"""
import threading, time
import numpy as np, rowfold
model = rowfold.Model({CHAIN!r}, 250, 600, backend={backend!r}, threads=2)
model.load_weights(np.ones((600, 250), np.float32))
x = np.ones((400, 250), np.float32)
def busy():
    while True:
        model(x)
threading.Thread(target=busy, daemon=True).start()
time.sleep(0.3)
print("ending")
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ending\n", "")
